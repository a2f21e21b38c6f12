/* What becomes of a wave's answers: known ones are recognised, the others judged on one shape after another; and who
 * may win is measured again. Every verdict is in the journal before it is used. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "optimize/internal.h"
#include "optimize/racing.h"
#include "rl/rollout/journal.h"

/* Places in the journal: the wave is the step; a measurement for the race is a later turn. */
static struct journal_place place(const struct answer_search *s, int task, int shape, int number, int turn) {
    return (struct journal_place){
        .step = s->state.waves, .group = task * SHAPES_MAX + shape, .sample = number, .turn = turn};
}

static enum status judge(struct answer_search *s, struct verify_item *items, const struct journal_place *at, size_t n,
                         struct err *e) {
    if (n == 0) return ST_OK;
    return journal_judge(s->journal, &s->session.judge, items, at, n, s->stop, e);
}

/* ---- a wave -------------------------------------------------------------------------------------------------------*/

/* Whether an answer equals one of the same task in front of it in the wave; -1: none, else its place. */
static int same_in_wave(const struct answer_search *s, const struct wave *w, int i) {
    struct population one = {.n = 1, .novelty = s->o->search.novelty};
    for (int k = 0; k < i; k++) {
        if (w->answer[k].task != w->answer[i].task || w->answer[k].dropped) continue;
        one.c = &w->answer[k].c;
        if (population_same(&one, &w->answer[i].c, 1) == 0) return k;
    }
    return -1;
}

/* Decides who is known, gives the candidates their numbers, and counts what will be spent. */
static void number_answers(struct answer_search *s, struct wave *w) {
    CLEANUP_FREE int64_t *spent = xcalloc((size_t)s->tasks->n + 1, sizeof *spent);
    CLEANUP_FREE int *id = xcalloc((size_t)s->tasks->n + 1, sizeof *id);
    int64_t all = s->state.spent;
    for (int i = 0; i < s->tasks->n; i++) {
        spent[i] = s->tasks->items[i].spent;
        id[i] = s->tasks->items[i].found.n;
    }
    for (int i = 0; i < w->n; i++) {
        struct wave_answer *x = &w->answer[i];
        struct search_task *t = &s->tasks->items[x->task];
        x->c.same_as = population_same(&t->found, &x->c, t->found.n);
        const int earlier = x->c.same_as < 0 ? same_in_wave(s, w, i) : -1;
        if (earlier >= 0) x->c.same_as = w->answer[earlier].c.id;
        /* Without novelty an answer is a verdict, known or not. */
        const bool costs = x->c.same_as < 0 || !s->o->search.novelty;
        const int64_t left = share_left(s->o, s->tasks, x->task, all) - (spent[x->task] - t->spent);
        if (costs && left <= 0) {
            x->dropped = true;
            continue;
        }
        spent[x->task] += costs;
        all += costs;
        x->c.spent = spent[x->task];
        x->c.id = id[x->task]++;
    }
}

/* Judges one shape of all answers that are correct so far. */
static enum status judge_shape(struct answer_search *s, struct wave *w, int shape, struct err *e) {
    struct verify_item *items = xcalloc((size_t)w->n + 1, sizeof *items);
    struct journal_place *at = xcalloc((size_t)w->n + 1, sizeof *at);
    struct search_candidate **of = xcalloc((size_t)w->n + 1, sizeof *of);
    size_t n = 0;
    for (int i = 0; i < w->n; i++) {
        struct wave_answer *x = &w->answer[i];
        const struct search_task *t = &s->tasks->items[x->task];
        if (x->dropped || x->c.same_as >= 0 || shape >= t->n_shapes || x->c.n_verdicts != shape) continue;
        if (shape > 0 && x->c.verdict[shape - 1].outcome != OUTCOME_CORRECT) continue;
        items[n] = (struct verify_item){.problem = &t->shape[shape], .source = x->c.kernel};
        at[n] = place(s, x->task, shape, x->c.id, 0);
        of[n++] = &x->c;
    }
    const enum status st = judge(s, items, at, n, e);
    for (size_t i = 0; st == ST_OK && i < n; i++) candidate_add_verdict(of[i], &items[i].verdict);
    free(of);
    free(at);
    free(items);
    return st;
}

/* A known answer has the verdicts of the first one. */
static void copy_verdicts(const struct answer_search *s, struct wave *w, int i) {
    struct wave_answer *x = &w->answer[i];
    const struct population *p = &s->tasks->items[x->task].found;
    const struct search_candidate *first = x->c.same_as < p->n ? &p->c[x->c.same_as] : NULL;
    for (int k = 0; k < i && !first; k++)
        if (w->answer[k].task == x->task && !w->answer[k].dropped && w->answer[k].c.id == x->c.same_as)
            first = &w->answer[k].c;
    ASSERT(first);
    for (int k = 0; k < first->n_verdicts; k++) candidate_add_verdict(&x->c, &first->verdict[k]);
}

enum status wave_judge(struct answer_search *s, struct wave *w, struct err *e) {
    int shapes = 0;
    number_answers(s, w);
    for (int i = 0; i < w->n_shares; i++) {
        const int n = s->tasks->items[w->share[i].task].n_shapes;
        shapes = n > shapes ? n : shapes;
    }
    for (int shape = 0; shape < shapes; shape++) TRY(judge_shape(s, w, shape, e));
    const struct rollout_params p = session_rollout_params(&s->train);
    for (int i = 0; i < w->n; i++) {
        struct wave_answer *x = &w->answer[i];
        const struct search_task *t = &s->tasks->items[x->task];
        if (x->dropped) continue;
        if (x->c.same_as >= 0) copy_verdicts(s, w, i);
        candidate_judged(&x->c, t->weight, t->n_shapes);
        const struct verdict *says = candidate_verdict(&x->c);
        if (says->outcome == OUTCOME_PROBLEM_ERROR && !t->trouble) task_trouble(s->tasks, x->task, says->message);
        /* The episode scores by the verdict that says most, and by the speed over all shapes. */
        x->ep->verdict = *says;
        if (x->c.estimate.n > 0) x->ep->verdict.speedup = estimate_bounds(&x->c.estimate).ratio;
        x->ep->present = outcome_class(x->ep->verdict.outcome) != 'I';
        if (x->ep->present) x->ep->reward = rollout_reward(&p, x->ep);
        x->ep->has_return = x->ep->present;
        x->ep->ret = x->c.reward = x->ep->reward.total;
    }
    return ST_OK;
}

void wave_take(struct answer_search *s, struct wave *w) {
    for (int i = 0; i < w->n; i++) {
        struct wave_answer *x = &w->answer[i];
        struct search_task *t = &s->tasks->items[x->task];
        if (x->dropped) continue;
        const int64_t costs = x->c.spent - t->spent;
        ASSERT(x->c.id == t->found.n);
        (void)population_add(&t->found, &x->c);
        t->spent += costs;
        t->sampled++;
        s->state.spent += costs;
        s->state.sampled++;
        s->state.tokens += x->c.tokens;
        x->c = (struct search_candidate){0}; /* it is the population's now */
        x->dropped = true;
    }
    for (int i = 0; i < w->n_shares; i++) {
        struct search_task *t = &s->tasks->items[w->share[i].task];
        const int best = population_best(&t->found);
        share_note(t, w->before[i], best < 0 ? 0 : candidate_speed(&t->found.c[best]));
        t->waves++;
    }
}

/* ---- racing -------------------------------------------------------------------------------------------------------*/

/* Measures candidates of a task once more, on all shapes. */
static enum status measure_again(struct answer_search *s, int task, const int *pick, int n, struct str *lines,
                                 struct err *e) {
    struct search_task *t = &s->tasks->items[task];
    const int m = t->n_shapes;
    struct verify_item *items = xcalloc((size_t)(n * m), sizeof *items);
    struct journal_place *at = xcalloc((size_t)(n * m), sizeof *at);
    struct verdict *v = xcalloc((size_t)m, sizeof *v);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < m; k++) {
            const struct search_candidate *c = &t->found.c[pick[i]];
            items[k * n + i] = (struct verify_item){.problem = &t->shape[k], .source = c->kernel, .again = true};
            at[k * n + i] = place(s, task, k, c->id, c->judged);
        }
    const enum status st = judge(s, items, at, (size_t)(n * m), e);
    for (int i = 0; st == ST_OK && i < n; i++) {
        struct search_candidate *c = &t->found.c[pick[i]];
        for (int k = 0; k < m; k++) v[k] = items[k * n + i].verdict;
        record_put_again(t, c, s->state.waves, v, lines);
        candidate_judged_again(c, v, t->weight, m);
    }
    t->spent += n;
    s->state.spent += n;
    s->state.measured += n;
    free(v);
    free(at);
    free(items);
    return st;
}

enum status wave_race(struct answer_search *s, const struct wave *w, struct str *lines, struct err *e) {
    /* Other hosts may answer from what they know: a second measurement would be the first one again. */
    if (!s->o->search.racing || !s->train.verify.measure || s->session.judge.stream) return ST_OK;
    for (int i = 0; i < w->n_shares; i++) {
        const int task = w->share[i].task;
        for (;;) {
            int pick[RACE_MOST];
            int n = race_next(&s->tasks->items[task].found, pick);
            const int64_t left = share_left(s->o, s->tasks, task, s->state.spent);
            if (n > left) n = (int)left;
            if (n == 0) break;
            TRY(measure_again(s, task, pick, n, lines, e));
        }
    }
    return ST_OK;
}
