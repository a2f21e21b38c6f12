#include "optimize/share.h"

#include <math.h>

/* What an untried problem may bring, and what the first right answer counts, in log speed. */
#define FIRST_GAIN 1.0
/* Answers that were there already cost no verdict; a problem of which nothing new comes is left after so many. */
enum { SAMPLES_A_VERDICT = 8, LEAST_ANSWERS = 4 };

int64_t share_left(const struct optimize_options *o, const struct tasks *t, int task, int64_t spent_by_all) {
    const struct search_task *x = &t->items[task];
    if (x->trouble) return 0;
    if (o->verdicts == 0) return INT64_MAX;
    const int64_t each = (o->verdicts + t->n - 1) / t->n, all = o->verdicts - spent_by_all;
    const int64_t bound = o->search.share == SHARE_EQUAL ? each : o->verdicts;
    if (x->sampled >= SAMPLES_A_VERDICT * bound) return 0;
    return i64_max(0, o->search.share == SHARE_EQUAL ? i64_min(each - x->spent, all) : all);
}

void share_note(struct search_task *t, double before, double after) {
    const double gain = after <= 0 ? 0 : before <= 0 ? FIRST_GAIN : log(fmax(1, after / before));
    t->gain = 0.5 * t->gain + 0.5 * gain;
}

/* Higher: earlier. An untried problem is hoped for most; one that was worked on long without gain least. */
static double hope(const struct optimize_options *o, const struct search_task *t) {
    if (o->search.share == SHARE_EQUAL) return -(double)t->spent - 1e-3 * (double)t->sampled;
    if (t->waves == 0) return 2 * FIRST_GAIN;
    return t->gain + 0.3 / sqrt(1.0 + t->waves);
}

/* Answers to a task: as many as a wave has, less where little of the budget is left. Some will be known already. */
static int answers_for(const struct optimize_options *o, const struct search_task *t, int64_t left,
                       const struct share_state *s) {
    double n = o->search.wave_answers;
    if (left < INT64_MAX) {
        const double per_verdict = t->spent > 0 ? (double)t->sampled / (double)t->spent : 1;
        n = fmin(n, ceil((double)left * fmin(per_verdict, 4)));
    }
    if (o->budget_s > 0 && s->sampled > 0) {
        const double a_second = (double)s->sampled / fmax(s->elapsed_s, 1e-3);
        n = fmin(n, fmax(LEAST_ANSWERS, (o->budget_s - s->elapsed_s) * a_second));
    }
    return (int)fmax(1, n);
}

int share_wave(const struct optimize_options *o, const struct tasks *t, const struct share_state *s,
               struct share *out) {
    CLEANUP_FREE bool *taken = xcalloc((size_t)t->n + 1, sizeof *taken);
    int n = 0;
    int64_t planned = 0;
    if (o->budget_s > 0 && s->elapsed_s >= o->budget_s) return 0;
    while (n < o->search.wave_problems) {
        int best = -1;
        for (int i = 0; i < t->n; i++) {
            if (taken[i] || share_left(o, t, i, s->spent + planned) <= 0) continue;
            if (best < 0 || hope(o, &t->items[i]) > hope(o, &t->items[best])) best = i;
        }
        if (best < 0) break;
        taken[best] = true;
        const int64_t left = share_left(o, t, best, s->spent + planned);
        out[n] = (struct share){best, answers_for(o, &t->items[best], left, s)};
        planned += out[n++].answers;
    }
    return n;
}
