/* A wave's answers: prompts are chosen and made, answers are sampled and read. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "optimize/internal.h"
#include "optimize/search_prompt.h"
#include "optimize/source_text.h"

/* Random numbers: streams of a wave lie apart by task and group. */
#define STREAM UINT64_C(0x0f71000000000000)
enum { GROUPS_OF_TASK = 1024 };

void wave_free(struct wave *w) {
    for (int i = 0; i < w->n; i++) candidate_free(&w->answer[i].c);
    free(w->answer);
    rollout_free(&w->r);
    *w = (struct wave){0};
}

/* ---- prompts ------------------------------------------------------------------------------------------------------*/

static bool same_choice(const struct arm_choice *a, const struct arm_choice *b) {
    bool same = a->arm == b->arm && a->island == b->island && a->n_parents == b->n_parents;
    for (int i = 0; i < a->n_parents && same; i++) same = a->parent[i] == b->parent[i];
    return same && (a->plan && b->plan ? strcmp(a->plan, b->plan) == 0 : a->plan == b->plan);
}

/* Choices for n answers, a prompt each `prompt_answers`; equal ones become one with more answers. */
static int choose(const struct answer_search *s, int task, int n, struct arm_choice *choice, int *answers) {
    const struct search_task *t = &s->tasks->items[task];
    const struct search_options *o = &s->search;
    const struct actor *a = &s->session.actor;
    const uint64_t key[2] = {(uint64_t)s->state.waves, hash_str(t->key)};
    struct rng r = rng_make((uint64_t)s->train.seed, hash_bytes(key, sizeof key, 7));
    const struct prompt_example *unused;
    const bool examples = a->raicl || prompt_examples(a->backend ? a->backend->name : "c", 1, &unused) > 0;
    struct arms arms;
    int n_choices = 0;
    arms_count(s->tasks, task, &arms);
    for (int left = n; left > 0;) {
        const int part = left < o->prompt_answers ? left : o->prompt_answers;
        /* Where nothing is known, a wave asks in the plain way. */
        struct arm_choice c = arms.known == 0
                                  ? (struct arm_choice){.island = o->islands > 1 ? n_choices % o->islands : 0}
                                  : arms_choose(&arms, t, o, examples, &r);
        int same = 0;
        while (same < n_choices && !same_choice(&choice[same], &c)) same++;
        if (same < n_choices) {
            free(c.plan);
            answers[same] += part;
        } else {
            choice[n_choices] = c;
            answers[n_choices++] = part;
        }
        left -= part;
    }
    arms_free(&arms);
    return n_choices;
}

static void note_answers(struct wave *w, int task, const struct arm_choice *c, const struct sample_group *g) {
    for (int j = 0; j < g->n; j++) {
        if (w->n == w->cap)
            w->answer = xrealloc(w->answer, (size_t)(w->cap = w->cap ? 2 * w->cap : 64) * sizeof *w->answer);
        struct wave_answer *x = &w->answer[w->n++];
        *x = (struct wave_answer){.task = task, .c = {.arm = c->arm, .island = c->island, .same_as = -1}};
        x->c.n_parents = c->n_parents;
        memcpy(x->c.parent, c->parent, sizeof c->parent);
        x->c.group = w->r.n - 1;
        x->c.sample = j;
    }
}

/* Adds the group of one choice, with its prompt. */
static enum status add_group(struct answer_search *s, struct wave *w, int task, struct arm_choice *c, int answers,
                             struct err *e) {
    const struct actor *a = &s->session.actor;
    const struct search_task *t = &s->tasks->items[task];
    struct arena arena = ARENA_INIT;
    struct prompt_made made;
    struct ids ids = {0};
    const enum status st = search_prompt_make(a, t, c, s->full_prompts, s->train.rollout.max_tokens, &arena, &made, e);
    if (st == ST_OK) {
        (void)rollout_encode(a, made.messages, &ids);
        if (made.begun) tokenizer_encode(a->tok, made.begun, strlen(made.begun), false, &ids);
        struct sample_group *g = rollout_add_group(&w->r, &t->shape[0], &ids, w->r.n, 0, 0, answers);
        w->r.n_tasks = w->r.n;
        if (made.begun) g->begun = xstrdup(made.begun);
        for (int i = 0; i < 2 && a->texts.fn; i++) g->message[i] = xstrdup(made.messages[i].content);
        note_answers(w, task, c, g);
    }
    arena_free(&arena);
    return st;
}

static enum status add_task(struct answer_search *s, struct wave *w, const struct share *share, struct err *e) {
    struct arm_choice *choice = xcalloc((size_t)share->answers, sizeof *choice);
    int *answers = xcalloc((size_t)share->answers, sizeof *answers);
    const int n = choose(s, share->task, share->answers, choice, answers);
    enum status st = ST_OK;
    for (int i = 0; i < n; i++) {
        if (st == ST_OK) st = add_group(s, w, share->task, &choice[i], answers[i], e);
        free(choice[i].plan);
    }
    free(answers);
    free(choice);
    return st;
}

/* ---- answers ------------------------------------------------------------------------------------------------------*/

/* Names that mean something outside of an answer: those of the problem, and of the arguments. */
static enum status outer_names(struct answer_search *s, const struct search_task *t, struct str *out, struct err *e) {
    const struct spec *spec;
    str_adds(out, t->shape[0].code);
    if (s->session.actor.backend->is_module) return ST_OK;
    TRY(verifier_spec(s->session.verifier, &t->shape[0], &spec, e));
    str_addc(out, '\n');
    spec_render_c(spec, out);
    return ST_OK;
}

/* Reads the answers of a task, which stand together, into its candidates. */
static enum status read_answers(struct answer_search *s, struct wave *w, int task, struct err *e) {
    const bool is_python = s->session.actor.backend->is_module;
    CLEANUP_STR struct str names = STR_INIT;
    TRY(outer_names(s, &s->tasks->items[task], &names, e));
    for (int i = 0; i < w->n; i++) {
        struct wave_answer *x = &w->answer[i];
        if (x->task != task) continue;
        x->group = &w->r.group[x->c.group];
        x->ep = &w->r.group[x->c.group].ep[x->c.sample];
        x->c.wave = s->state.waves;
        x->c.format_ok = x->ep->format_ok;
        x->c.tokens = x->ep->tokens;
        if (!x->ep->kernel) continue;
        x->c.kernel = xstrdup(x->ep->kernel);
        x->c.plan = source_plan(x->c.kernel);
        x->c.normal = source_normal(x->c.kernel, names.p, is_python);
    }
    return ST_OK;
}

enum status wave_sample(struct answer_search *s, struct wave *w, struct err *e) {
    struct rollout_params p = session_rollout_params(&s->train);
    p.step = s->state.waves;
    p.stream = STREAM + (uint64_t)s->state.waves * GROUPS_OF_TASK * WAVE_SHARES;
    for (int i = 0; i < w->n_shares; i++) {
        const int best = population_best(&s->tasks->items[w->share[i].task].found);
        w->before[i] = best < 0 ? 0 : candidate_speed(&s->tasks->items[w->share[i].task].found.c[best]);
        TRY(add_task(s, w, &w->share[i], e));
    }
    TRY(rollout_play(&s->session.actor, &p, &w->r, 0, e));
    for (int i = 0; i < w->n_shares; i++) TRY(read_answers(s, w, w->share[i].task, e));
    return ST_OK;
}
