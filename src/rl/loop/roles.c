#include "rl/loop/roles.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "generate/generator.h"
#include "io/json.h"

/* Repairs stand in the journal apart from the solver's answers. */
enum { REPAIR_PLACE = 1 << 24 };
/* A proposal that is a problem earns this, and the rest by how open its outcome was. */
static const double valid_credit = 0.2;

static int64_t samples_of(const struct train_options *o, enum role role) {
    switch (role) {
    case ROLE_VERIFIER: return o->roles.verifier_samples;
    case ROLE_CORRECTOR: return o->roles.corrector_samples;
    case ROLE_JUDGE: return o->roles.judge_reward > 0 ? o->roles.judge_samples : 0;
    default: return o->roles.proposals;
    }
}

static double weight_of(const struct train_options *o, enum role role) {
    switch (role) {
    case ROLE_VERIFIER: return o->roles.verifier_weight;
    case ROLE_CORRECTOR: return o->roles.corrector_weight;
    case ROLE_JUDGE: return o->roles.judge_weight;
    default: return o->roles.proposer_weight;
    }
}

enum status roles_open(struct roles *x, const struct train_options *o, struct err *e) {
    *x = (struct roles){.length = 1};
    for (int i = 0; i < ROLES; i++) x->on |= samples_of(o, (enum role)i) > 0;
    return o->roles.proposals > 0 ? generator_open(NULL, &x->generator, e) : ST_OK;
}

static void free_step(struct roles *x) {
    if (x->judging) judging_drop(x->judging, &x->verdicts);
    for (int i = 0; i < ROLES; i++) {
        groups_free(x->of[i].group, x->of[i].n);
        x->of[i].n = 0;
    }
    free(x->proposed);
    x->proposed = NULL;
    x->n_proposed = 0;
    x->verdicts = (struct judging_batch){0};
    x->counts = (struct roles_counts){0};
    arena_reset(&x->arena);
}

void roles_close(struct roles *x) {
    free_step(x);
    for (int i = 0; i < ROLES; i++) free(x->of[i].group);
    generator_close(x->generator);
    arena_free(&x->arena);
    *x = (struct roles){0};
}

/* ---- sampling -----------------------------------------------------------------------------------------------------*/

/* n samples of the prompt, which becomes the group's own; about: numbers of a task's samples. */
static void add_group(struct roles *x, enum role role, const struct problem *p, struct ids *prompt, int n, int task,
                      int about0, int about1) {
    struct role_groups *q = &x->of[role];
    if (q->n == q->cap) {
        q->cap = q->cap ? 2 * q->cap : 32;
        q->group = xrealloc(q->group, (size_t)q->cap * sizeof *q->group);
    }
    struct sample_group *g = &q->group[q->n++];
    *g = (struct sample_group){.problem = p,
                               .prompt = *prompt,
                               .n = n,
                               .task = task,
                               .role = role_names[role],
                               .judged = role == ROLE_CORRECTOR,
                               .about = {about0, about1}};
    *prompt = (struct ids){0};
    g->ep = xcalloc((size_t)n, sizeof *g->ep);
}

/* The role's prompt as tokens; false when it leaves no room for an answer. */
static bool encode(struct roles *x, const struct actor *a, const struct role_prompt *in, int max_tokens,
                   struct ids *out) {
    struct arena arena = ARENA_INIT;
    struct chat_message m[2];
    role_prompt_build(in, &arena, m);
    chat_encode(a->tok, a->style, m, 2, CHAT_GENERATE, out);
    arena_free(&arena);
    if ((int64_t)out->len + max_tokens <= model_cfg(a->model)->max_positions) return true;
    x->counts.too_long++;
    ids_free(out);
    return false;
}

static bool go_on(void *ctx, int64_t tokens, int done, int total) {
    const struct actor *a = ctx;
    log_progress("  roles: %d of %d answers, %lld tokens", done, total, (long long)tokens);
    lease_yield(a->lease);
    return !(a->cancel && *a->cancel);
}

/* Samples all groups of a role. The random stream of each is a function of the step's and of its place. */
static enum status sample(struct roles *x, const struct actor *a, const struct rollout_params *p, enum role role,
                          int max_tokens, struct rollout_times *times, struct err *e) {
    struct role_groups *q = &x->of[role];
    const struct stop_set stops = answer_stops(a->tok, a->style, model_cfg(a->model), false);
    const double from = clock_now_s();
    int total = 0;
    for (int i = 0; i < q->n; i++) total += q->group[i].n;
    if (total == 0) return ST_OK;
    CLEANUP_FREE struct request *req = xcalloc((size_t)q->n, sizeof *req);
    CLEANUP_FREE struct sample *out = xcalloc((size_t)total, sizeof *out);
    for (int i = 0; i < q->n; i++) {
        const uint64_t key[3] = {p->stream, UINT64_C(0x726f6c6573) + (uint64_t)role, (uint64_t)i};
        req[i] = (struct request){.prompt = q->group[i].prompt.p,
                                  .n_prompt = (int)q->group[i].prompt.len,
                                  .n_samples = q->group[i].n,
                                  .id = hash_bytes(key, sizeof key, 0),
                                  .params = rollout_sampling(a, p, max_tokens, &stops)};
    }
    TRY(actor_run(a, req, q->n, out, go_on, (void *)(uintptr_t)a, e));
    for (int i = 0, k = 0; i < q->n; i++)
        for (int j = 0; j < q->group[i].n; j++, k++) {
            struct episode *ep = &q->group[i].ep[j];
            ep->sample = out[k];
            rollout_decode(a, ep);
            if (times) times->tokens += ep->sample.n;
        }
    log_progress_end();
    if (times) times->generate_s += clock_now_s() - from;
    return a->cancel && *a->cancel ? FAIL(e, ST_CANCELLED, "interrupted") : ST_OK;
}

static void reward(struct roles *x, enum role role, struct episode *ep, double value) {
    ep->present = true;
    ep->reward.total = value;
    x->counts.reward[role] += value;
    x->counts.rewarded[role]++;
}

/* ---- the answers they are about -----------------------------------------------------------------------------------*/

struct role_answer { /* the last turn of a sample */
    const struct problem *problem;
    struct trajectory *t;
    struct episode *ep;
};

/* Answers with a kernel and a verdict to the task, in the order of their samples. */
static int answers_of(const struct rollout *r, int task, struct role_answer *out) {
    int n = 0;
    const struct problem *problem = NULL;
    for (int i = 0; i < r->n && !problem; i++)
        if (r->group[i].task == task) problem = r->group[i].problem;
    for (int k = 0; k < r->n_trajectories; k++) {
        struct trajectory *t = &r->trajectory[k];
        if (t->task != task) continue;
        struct episode *ep = t->turn[t->n_turns - 1];
        if (ep->present && ep->kernel && outcome_class(ep->verdict.outcome) != 'F')
            out[n++] = (struct role_answer){problem, t, ep};
    }
    return n;
}

static bool is_correct(const struct role_answer *x) { return x->ep->verdict.outcome == OUTCOME_CORRECT; }
static bool is_cheat(const struct role_answer *x) { return outcome_class(x->ep->verdict.outcome) == 'H'; }

/* ---- verifier -----------------------------------------------------------------------------------------------------*/

/* Of up to `most` answers, working and failing ones by turns as long as there are both. */
static void ask_verifier(struct roles *x, const struct actor *a, const struct train_options *o, int task,
                         const struct role_answer *answer, int n) {
    CLEANUP_FREE bool *taken = xcalloc((size_t)n + 1, sizeof *taken);
    for (int k = 0; k < o->roles.verifier_answers && k < n; k++) {
        int pick = -1;
        for (int i = 0; i < n && pick < 0; i++)
            if (!taken[i] && is_correct(&answer[i]) == (k % 2 == 0)) pick = i;
        for (int i = 0; i < n && pick < 0; i++)
            if (!taken[i]) pick = i;
        taken[pick] = true;
        struct ids prompt = {0};
        const struct role_prompt in = {.role = ROLE_VERIFIER,
                                       .backend = a->backend,
                                       .think = a->think,
                                       .problem = answer[pick].problem,
                                       .kernel = {answer[pick].ep->kernel}};
        if (encode(x, a, &in, (int)o->roles.answer_tokens, &prompt))
            add_group(x, ROLE_VERIFIER, answer[pick].problem, &prompt, (int)o->roles.verifier_samples, task,
                      answer[pick].t->sample, -1);
    }
}

static const struct verdict *verdict_of(const struct rollout *r, int task, int sample) {
    for (int k = 0; k < r->n_trajectories; k++)
        if (r->trajectory[k].task == task && r->trajectory[k].sample == sample)
            return &r->trajectory[k].turn[r->trajectory[k].n_turns - 1]->verdict;
    return NULL;
}

/* Predictions of working and of failing answers weigh the same in a step, however many there are of each: else naming
 * the more frequent one always would be what is learned. A step that shows only one of them teaches nothing. */
static void balance_verifier(struct roles *x, const struct rollout *r) {
    const int *n = x->counts.about;
    for (int i = 0; i < x->of[ROLE_VERIFIER].n; i++) {
        struct sample_group *g = &x->of[ROLE_VERIFIER].group[i];
        const bool works = prediction_of(verdict_of(r, g->task, g->about[0])) == PREDICT_CORRECT;
        g->balance = n[0] && n[1] ? (double)(n[0] + n[1]) / (2 * n[works]) : 0;
    }
}

/* 1 for what the test found; half for knowing whether it works. */
static void score_verifier(struct roles *x, const struct rollout *r) {
    CLEANUP_STR struct str said = STR_INIT;
    int of_class[PREDICTIONS] = {0};
    for (int i = 0; i < x->of[ROLE_VERIFIER].n; i++) {
        struct sample_group *g = &x->of[ROLE_VERIFIER].group[i];
        const enum prediction truth = prediction_of(verdict_of(r, g->task, g->about[0]));
        for (int j = 0; j < g->n; j++) {
            struct episode *ep = &g->ep[j];
            const enum prediction got =
                role_answer(ROLE_VERIFIER, ep->text, strlen(ep->text), &said) ? role_prediction(said.p) : PREDICT_NONE;
            const bool works = got != PREDICT_NONE && (got == PREDICT_CORRECT) == (truth == PREDICT_CORRECT);
            x->counts.predictions++;
            x->counts.unreadable += got == PREDICT_NONE;
            x->counts.exact += got == truth;
            x->counts.works += works;
            x->counts.about[truth == PREDICT_CORRECT]++;
            x->counts.works_about[truth == PREDICT_CORRECT] += works;
            of_class[truth]++;
            reward(x, ROLE_VERIFIER, ep, got == truth ? 1 : works ? 0.5 : 0);
        }
    }
    for (int i = 0; i < PREDICTIONS; i++)
        if (of_class[i] > x->counts.most_common) x->counts.most_common = of_class[i];
    balance_verifier(x, r);
}

/* ---- corrector ----------------------------------------------------------------------------------------------------*/

static enum status ask_corrector(struct roles *x, const struct actor *a, const struct train_options *o,
                                 const struct rollout_params *p, int task, const struct role_answer *answer, int n,
                                 struct err *e) {
    int asked = 0;
    for (int i = 0; i < n && asked < o->roles.corrector_answers; i++) {
        if (is_correct(&answer[i]) || is_cheat(&answer[i])) continue;
        struct ids prompt = {0};
        const enum status st = rollout_refine_prompt(a, answer[i].problem, answer[i].ep, p->o.max_tokens, &prompt, e);
        if (st != ST_OK) ids_free(&prompt);
        if (st == ST_INVALID) { /* too long to be shown */
            x->counts.too_long++;
            continue;
        }
        TRY(st);
        add_group(x, ROLE_CORRECTOR, answer[i].problem, &prompt, (int)o->roles.corrector_samples, task,
                  answer[i].t->sample, -1);
        asked++;
    }
    return ST_OK;
}

static double score_of(const struct rollout *r, int task, int sample) {
    for (int k = 0; k < r->n_trajectories; k++)
        if (r->trajectory[k].task == task && r->trajectory[k].sample == sample)
            return r->trajectory[k].turn[r->trajectory[k].n_turns - 1]->reward.total;
    return 0;
}

/* What the repair scores more than the answer it repairs. */
static enum status score_corrector(struct roles *x, const struct actor *a, const struct rollout_params *p,
                                   const struct rollout *r, struct rollout_times *times, struct err *e) {
    struct role_groups *q = &x->of[ROLE_CORRECTOR];
    const double from = clock_now_s();
    x->judging = a->judging;
    for (int i = 0; i < q->n; i++)
        for (int j = 0; j < q->group[i].n; j++) {
            struct episode *ep = &q->group[i].ep[j];
            const struct journal_place at = {.step = p->step, .group = REPAIR_PLACE + i, .sample = j};
            judging_add(a->judging, &x->verdicts, q->group[i].problem, ep->kernel, &at, &ep->verdict);
        }
    if (q->n > 0) TRY(judging_wait(a->judging, &x->verdicts, e));
    if (times) times->verify_s += clock_now_s() - from;
    for (int i = 0; i < q->n; i++)
        for (int j = 0; j < q->group[i].n; j++) {
            struct episode *ep = &q->group[i].ep[j];
            if (outcome_class(ep->verdict.outcome) == 'I') continue;
            ep->reward = rollout_reward(p, ep);
            const double gain = ep->reward.total - score_of(r, q->group[i].task, q->group[i].about[0]);
            x->counts.repairs++;
            x->counts.repaired += ep->verdict.outcome == OUTCOME_CORRECT;
            x->counts.repair_gain += gain;
            reward(x, ROLE_CORRECTOR, ep, gain);
        }
    return ST_OK;
}

/* ---- judge --------------------------------------------------------------------------------------------------------*/

static void compare(struct roles *x, const struct actor *a, const struct train_options *o, int task,
                    const struct role_answer *first, const struct role_answer *second) {
    struct ids prompt[2] = {{0}, {0}};
    const struct role_answer *both[2] = {first, second};
    for (int swap = 0; swap < 2; swap++) {
        const struct role_prompt in = {.role = ROLE_JUDGE,
                                       .backend = a->backend,
                                       .think = a->think,
                                       .problem = first->problem,
                                       .kernel = {both[swap]->ep->kernel, both[!swap]->ep->kernel}};
        if (encode(x, a, &in, (int)o->roles.answer_tokens, &prompt[swap])) continue;
        ids_free(&prompt[0]);
        return;
    }
    for (int swap = 0; swap < 2; swap++)
        add_group(x, ROLE_JUDGE, first->problem, &prompt[swap], (int)o->roles.judge_samples, task,
                  both[swap]->t->sample, both[!swap]->t->sample);
}

/* Each answer with its neighbour, in both orders, works with works and failing with failing: a preference never lifts a
 * wrong answer over a right one by being compared with it. */
static void ask_judge(struct roles *x, const struct actor *a, const struct train_options *o, int task,
                      const struct role_answer *answer, int n) {
    for (int correct = 0; correct < 2; correct++) {
        const struct role_answer *first = NULL, *last = NULL;
        int count = 0;
        for (int i = 0; i < n; i++) {
            if (is_cheat(&answer[i]) || is_correct(&answer[i]) != correct) continue;
            if (last) compare(x, a, o, task, last, &answer[i]);
            if (!first) first = &answer[i];
            last = &answer[i];
            count++;
        }
        if (count > 2) compare(x, a, o, task, last, first);
    }
}

/* The bonus joins the last turn's score and what the earlier turns led to. */
static void prefer(struct trajectory *t, double share, double weight, double gamma) {
    struct episode *ep = t->turn[t->n_turns - 1];
    double bonus = weight * share;
    ep->reward.preference = share;
    ep->reward.total += bonus;
    ep->reward.code += bonus;
    for (int i = t->n_turns - 1; i >= 0; i--, bonus *= gamma) {
        t->turn[i]->ret += bonus;
        t->turn[i]->code_ret += bonus;
    }
}

struct standing { /* of an answer among those of its task */
    int won, decided;
};

/* The judge earns 1 where it names the answer that scored more, and nothing can be earned where both scored the same.
 */
static void score_judge(struct roles *x, const struct rollout *r, struct standing *standing, int samples) {
    CLEANUP_STR struct str said = STR_INIT;
    const struct role_groups *q = &x->of[ROLE_JUDGE];
    int balance = 0; /* of the pair's first order: votes for its first answer less those for the second */
    for (int i = 0; i < q->n; i++) {
        struct sample_group *g = &q->group[i];
        const double ahead = score_of(r, g->task, g->about[0]) - score_of(r, g->task, g->about[1]);
        int votes = 0;
        for (int j = 0; j < g->n; j++) {
            struct episode *ep = &g->ep[j];
            const int choice = role_answer(ROLE_JUDGE, ep->text, strlen(ep->text), &said) ? role_choice(said.p) : -1;
            x->counts.comparisons++;
            if (choice >= 0) {
                x->counts.decided++;
                votes += choice == 0 ? 1 : -1;
                for (int k = 0; k < 2; k++) {
                    struct standing *s = &standing[g->task * samples + g->about[k]];
                    s->decided++;
                    s->won += choice == k;
                }
            }
            if (fabs(ahead) <= 1e-9) continue;
            x->counts.rated++;
            const bool agrees = choice == (ahead > 0 ? 0 : 1);
            x->counts.agreed += agrees;
            reward(x, ROLE_JUDGE, ep, agrees);
        }
        if (i % 2 == 0) {
            balance = votes;
        } else if (balance != 0 && votes != 0) {
            x->counts.pairs++;
            x->counts.consistent += (balance > 0) == (votes < 0); /* the second order names them the other way round */
        }
    }
}

/* Every answer that could be compared gets its share of comparisons won; one half when none was decided. */
static void add_preferences(const struct train_options *o, const struct rollout_params *p, struct rollout *r,
                            const struct standing *standing, struct role_answer *answer) {
    for (int task = 0; task < r->n_tasks; task++) {
        const int n = answers_of(r, task, answer);
        for (int i = 0; i < n; i++) {
            if (is_cheat(&answer[i])) continue;
            const struct standing *s = &standing[task * p->o.group_size + answer[i].t->sample];
            prefer(answer[i].t, s->decided ? (double)s->won / s->decided : 0.5, o->roles.judge_reward, p->o.gamma);
        }
    }
}

/* ---- proposer -----------------------------------------------------------------------------------------------------*/

static int count_words(const char *s) {
    int n = *s != 0;
    for (; *s; s++) n += *s == ' ';
    return n;
}

static double mean_rate(const struct roles *x) {
    double sum = 0;
    for (int i = 0; i < x->n_rates; i++) sum += x->rate[i];
    return x->n_rates ? sum / x->n_rates : (double)NAN;
}

/* Whether the proposal is a problem of the length asked for that nobody else proposed; it then stands in x->proposed.
 * ST_CANCELLED and what keeps the reference from answering at all are errors. */
static enum status accept(struct roles *x, const struct actor *a, const struct rollout_params *p, const char *text,
                          int sample, bool *valid, struct err *e) {
    const uint64_t key[3] = {p->seed, (uint64_t)p->step, (uint64_t)sample};
    struct gen_item item;
    struct err why;
    *valid = false;
    if (generator_compose(x->generator, text, hash_bytes(key, sizeof key, 0), &x->arena, &item, &why) != ST_OK)
        return ST_OK;
    if (count_words(item.problem.ops) != x->length) return ST_OK;
    for (int i = 0; i < x->n_proposed; i++)
        if (strcmp(x->proposed[i].problem.ops, item.problem.ops) == 0) return ST_OK;
    if (a->verifier) {
        const struct spec *spec;
        judging_pause(a->judging); /* the verifier is asked by one thread at a time */
        const enum status st = verifier_spec(a->verifier, &item.problem, &spec, e);
        judging_resume(a->judging);
        if (st == ST_INVALID) return ST_OK; /* its module does not run */
        TRY(st);
    }
    x->proposed[x->n_proposed].problem = item.problem;
    x->proposed[x->n_proposed++].sample = sample;
    *valid = true;
    return ST_OK;
}

enum status roles_propose(struct roles *x, const struct actor *a, const struct train_options *o,
                          const struct rollout_params *p, const struct problem **problems, int n, struct err *e) {
    const int wanted = (int)o->roles.proposals;
    if (wanted == 0) return ST_OK;
    struct role_prompt in = {.role = ROLE_PROPOSER, .think = a->think, .length = x->length, .solved = mean_rate(x)};
    struct ids prompt = {0};
    in.n_operators = generator_operators(&in.operators);
    if (!encode(x, a, &in, (int)o->roles.answer_tokens, &prompt)) return ST_OK;
    add_group(x, ROLE_PROPOSER, NULL, &prompt, wanted, -1, -1, -1);
    TRY(sample(x, a, p, ROLE_PROPOSER, (int)o->roles.answer_tokens, NULL, e));
    x->proposed = xcalloc((size_t)wanted, sizeof *x->proposed);
    CLEANUP_STR struct str text = STR_INIT;
    const struct sample_group *g = &x->of[ROLE_PROPOSER].group[0];
    for (int j = 0; j < g->n; j++) {
        bool valid = false;
        x->counts.proposals++;
        if (role_answer(ROLE_PROPOSER, g->ep[j].text, strlen(g->ep[j].text), &text))
            TRY(accept(x, a, p, text.p, j, &valid, e));
        x->counts.valid += valid;
        if (!valid) reward(x, ROLE_PROPOSER, &g->ep[j], 0);
    }
    for (int i = 0; i < x->n_proposed && i < n; i++) problems[i] = &x->proposed[i].problem;
    return ST_OK;
}

/* A problem is worth proposing when it is open whether it will be solved: 4 p (1 - p) of its rate p is 1 at a half, 0
 * where always or never. One without a verdict earns nothing and costs nothing. */
static void score_proposer(struct roles *x, const struct rollout *r) {
    for (int i = 0; i < x->n_proposed; i++) {
        int judged = 0, correct = 0;
        for (int k = 0; k < r->n; k++) {
            if (r->group[k].problem != &x->proposed[i].problem) continue;
            for (int j = 0; j < r->group[k].n; j++) {
                judged += r->group[k].ep[j].present;
                correct += r->group[k].ep[j].present && r->group[k].ep[j].verdict.outcome == OUTCOME_CORRECT;
            }
        }
        if (!judged) continue;
        const double rate = (double)correct / judged;
        x->counts.played++;
        x->counts.solved += rate;
        reward(x, ROLE_PROPOSER, &x->of[ROLE_PROPOSER].group[0].ep[x->proposed[i].sample],
               valid_credit + (1 - valid_credit) * 4 * rate * (1 - rate));
    }
}

/* ---- the step -----------------------------------------------------------------------------------------------------*/

enum status roles_play(struct roles *x, const struct actor *a, const struct train_options *o,
                       const struct rollout_params *p, struct rollout *r, struct rollout_times *times, struct err *e) {
    if (!x->on) return ST_OK;
    const int tokens = (int)o->roles.answer_tokens;
    CLEANUP_FREE struct role_answer *answer = xcalloc((size_t)p->o.group_size + 1, sizeof *answer);
    CLEANUP_FREE struct standing *standing =
        xcalloc((size_t)r->n_tasks * (size_t)p->o.group_size + 1, sizeof *standing);
    for (int task = 0; task < r->n_tasks; task++) {
        const int n = answers_of(r, task, answer);
        if (samples_of(o, ROLE_VERIFIER) > 0) ask_verifier(x, a, o, task, answer, n);
        if (samples_of(o, ROLE_CORRECTOR) > 0) TRY(ask_corrector(x, a, o, p, task, answer, n, e));
        if (samples_of(o, ROLE_JUDGE) > 0) ask_judge(x, a, o, task, answer, n);
    }
    TRY(sample(x, a, p, ROLE_VERIFIER, tokens, times, e));
    TRY(sample(x, a, p, ROLE_CORRECTOR, p->o.max_tokens, times, e));
    TRY(sample(x, a, p, ROLE_JUDGE, tokens, times, e));
    score_verifier(x, r);
    TRY(score_corrector(x, a, p, r, times, e));
    score_judge(x, r, standing, p->o.group_size);
    score_proposer(x, r);
    if (samples_of(o, ROLE_JUDGE) > 0) add_preferences(o, p, r, standing, answer);
    return ST_OK;
}

void roles_advantages(struct roles *x, const struct train_options *o, bool idle_tokens_count) {
    for (int role = 0; role < ROLES; role++) {
        const struct role_groups *q = &x->of[role];
        const double weight = weight_of(o, (enum role)role);
        double baseline = NAN; /* advantage: ema takes the step's own mean */
        int total = 0;
        for (int i = 0; i < q->n; i++) total += q->group[i].n;
        CLEANUP_FREE struct advantage_sample *s = xcalloc((size_t)total + 1, sizeof *s);
        for (int i = 0, k = 0; i < q->n; i++)
            for (int j = 0; j < q->group[i].n; j++)
                s[k++] = (struct advantage_sample){
                    .group = i, .present = q->group[i].ep[j].present, .score = q->group[i].ep[j].reward.total};
        (void)advantage_batch(&o->advantage, s, total, q->n, &baseline);
        for (int i = 0, k = 0; i < q->n; i++)
            for (int j = 0; j < q->group[i].n; j++, k++) {
                const double factor = role == ROLE_VERIFIER ? weight * q->group[i].balance : weight;
                q->group[i].ep[j].advantage = factor * s[k].advantage;
                q->group[i].ep[j].kept = s[k].takes_part && idle_tokens_count && factor > 0;
            }
    }
}

struct sample_group *roles_join(const struct roles *x, const struct rollout *r, int *n) {
    int total = r->n;
    for (int i = 0; i < ROLES; i++) total += x->of[i].n;
    struct sample_group *all = xmalloc(((size_t)total + 1) * sizeof *all);
    if (r->n) memcpy(all, r->group, (size_t)r->n * sizeof *all);
    *n = r->n;
    for (int i = 0; i < ROLES; i++) {
        if (x->of[i].n) memcpy(all + *n, x->of[i].group, (size_t)x->of[i].n * sizeof *all);
        *n += x->of[i].n;
    }
    return all;
}

void roles_end(struct roles *x, const struct train_options *o, bool counts) {
    if (counts && x->counts.played > 0) {
        const int window = (int)o->roles.proposer_window;
        while (x->n_rates >= window) memmove(x->rate, x->rate + 1, (size_t)--x->n_rates * sizeof *x->rate);
        x->rate[x->n_rates++] = x->counts.solved / x->counts.played;
        if (x->n_rates == window && mean_rate(x) >= o->roles.proposer_trigger && x->length < ROLES_LENGTH_MAX) {
            x->length++;
            x->n_rates = 0;
        }
    }
    free_step(x);
}

/* ---- records ------------------------------------------------------------------------------------------------------*/

static double over(double a, int b) { return b > 0 ? a / b : (double)NAN; }

void roles_metrics(const struct roles *x, const struct train_options *o, struct metrics *m) {
    const struct roles_counts *c = &x->counts;
    for (int i = 0; i < ROLES; i++) {
        if (samples_of(o, (enum role)i) == 0) continue;
        metrics_add(m, over(c->reward[i], c->rewarded[i]), "roles/%s_reward", role_names[i]);
    }
    if (samples_of(o, ROLE_VERIFIER) > 0) {
        metrics_add(m, c->predictions, "roles/verifier_predictions");
        metrics_add(m, over(c->exact, c->predictions), "roles/verifier_accuracy");
        metrics_add(m, over(c->works, c->predictions), "roles/verifier_works_accuracy");
        metrics_add(m, over(c->most_common, c->predictions), "roles/verifier_majority");
        metrics_add(m, 0.5 * (over(c->works_about[0], c->about[0]) + over(c->works_about[1], c->about[1])),
                    "roles/verifier_balanced_accuracy");
        metrics_add(m, over(c->unreadable, c->predictions), "roles/verifier_unreadable");
    }
    if (samples_of(o, ROLE_CORRECTOR) > 0) {
        metrics_add(m, c->repairs, "roles/corrector_repairs");
        metrics_add(m, over(c->repaired, c->repairs), "roles/corrector_correct_rate");
        metrics_add(m, over(c->repair_gain, c->repairs), "roles/corrector_gain");
    }
    if (samples_of(o, ROLE_JUDGE) > 0) {
        metrics_add(m, c->comparisons, "roles/judge_comparisons");
        metrics_add(m, over(c->decided, c->comparisons), "roles/judge_decided");
        metrics_add(m, over(c->agreed, c->rated), "roles/judge_accuracy");
        metrics_add(m, over(c->consistent, c->pairs), "roles/judge_consistency");
    }
    if (samples_of(o, ROLE_PROPOSER) > 0) {
        metrics_add(m, c->proposals, "roles/proposer_proposals");
        metrics_add(m, over(c->valid, c->proposals), "roles/proposer_valid_rate");
        metrics_add(m, over(c->solved, c->played), "roles/proposer_solved_rate");
        metrics_add(m, x->length, "roles/proposer_length");
    }
    metrics_add(m, c->too_long, "roles/prompts_too_long");
}

enum status roles_traces(const struct roles *x, struct run_dir *run, int64_t step, const struct tokenizer *t,
                         struct err *e) {
    for (int i = 0; i < ROLES; i++) {
        const struct rollout view = {.group = x->of[i].group, .n = x->of[i].n};
        TRY(run_traces(run, step, t, &view, e));
    }
    return ST_OK;
}

void roles_save(const struct roles *x, struct str *out) {
    js_begin(out, "self_play", '{');
    js_put_i64(out, "length", x->length);
    js_begin(out, "rates", '[');
    for (int i = 0; i < x->n_rates; i++) js_put_f64(out, NULL, x->rate[i]);
    js_end(out, ']');
    js_end(out, '}');
}

enum status roles_load(struct roles *x, const json_t *state, const char *where, struct err *e) {
    const json_t *o = json_object_get(state, "self_play");
    json_t *rates;
    int64_t length;
    if (!o) return ST_OK;
    TRY(js_get_i64(o, where, "length", &length, e));
    TRY(js_get_array(o, where, "rates", &rates, e));
    if (length < 1 || length > ROLES_LENGTH_MAX || json_array_size(rates) > ROLES_WINDOW)
        return FAIL(e, ST_PARSE, "%s: self_play: length %lld with %zu rates, expected 1 to %d with at most %d", where,
                    (long long)length, json_array_size(rates), ROLES_LENGTH_MAX, ROLES_WINDOW);
    x->length = (int)length;
    x->n_rates = (int)json_array_size(rates);
    for (int i = 0; i < x->n_rates; i++) x->rate[i] = json_number_value(json_array_get(rates, (size_t)i));
    return ST_OK;
}
