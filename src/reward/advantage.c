#include "reward/advantage.h"

#include <math.h>
#include <stdlib.h>

#define EPSILON 1e-6
enum { WEIGHT_MAX = 20 };

struct moments { /* of the present scores of a group, or of the batch */
    int n;
    double sum, mean, std, low, high;
};

static void add_score(struct moments *m, double score) {
    m->low = m->n ? fmin(m->low, score) : score;
    m->high = m->n ? fmax(m->high, score) : score;
    m->sum += score;
    m->n++;
}

static bool is_constant(const struct moments *m) { return m->n < 2 || m->high - m->low < 1e-9; }

/* How many of the group have a better score, the earlier of equals being the better one. */
static int rank_of(const struct advantage_sample *s, int n, int i) {
    int rank = 0;
    for (int k = 0; k < n; k++)
        if (k != i && s[k].present && s[k].group == s[i].group)
            rank += s[k].score > s[i].score || (s[k].score == s[i].score && k < i);
    return rank;
}

/* Likelihood training weighs answers; it has no baseline that a constant group could equal. */
static bool is_difference(enum advantage_kind kind) {
    return kind != ADVANTAGE_NONE && kind != ADVANTAGE_EXPONENTIAL && kind != ADVANTAGE_BEST;
}

static double advantage_of(const struct advantage_params *p, const struct advantage_sample *s, int n, int i,
                           const struct moments *group, const struct moments *batch, double baseline) {
    const double r = s[i].score, centered = r - group->mean;
    switch (p->kind) {
    case ADVANTAGE_CENTER: return centered;
    case ADVANTAGE_STD: return centered * (1 / (group->std + EPSILON));
    case ADVANTAGE_LEAVE_ONE: return group->n > 1 ? centered * ((double)group->n / (group->n - 1)) : 0;
    case ADVANTAGE_NONE: return r;
    case ADVANTAGE_BATCH_MEAN: return r - batch->mean;
    case ADVANTAGE_BATCH_STD: return (r - batch->mean) / (batch->std + EPSILON);
    case ADVANTAGE_EMA: return r - baseline;
    case ADVANTAGE_MAXRL: return centered / (group->mean + EPSILON);
    case ADVANTAGE_EXPONENTIAL: return fmin(exp(centered / p->temperature), WEIGHT_MAX);
    case ADVANTAGE_BEST: return r > p->threshold && rank_of(s, n, i) < p->keep;
    }
    return 0;
}

int advantage_batch(const struct advantage_params *p, struct advantage_sample *s, int n, int n_groups,
                    double *baseline) {
    struct moments *group = xcalloc((size_t)n_groups + 1, sizeof *group), batch = {0};
    for (int i = 0; i < n; i++) {
        if (!s[i].present) continue;
        add_score(&group[s[i].group], s[i].score);
        add_score(&batch, s[i].score);
    }
    for (int g = 0; g < n_groups; g++)
        if (group[g].n) group[g].mean = group[g].sum / group[g].n;
    if (batch.n) batch.mean = batch.sum / batch.n;
    for (int i = 0; i < n; i++) { /* std holds the sum of squares first */
        if (!s[i].present) continue;
        struct moments *m = &group[s[i].group];
        m->std += (s[i].score - m->mean) * (s[i].score - m->mean);
        batch.std += (s[i].score - batch.mean) * (s[i].score - batch.mean);
    }
    int constant = 0;
    for (int g = 0; g < n_groups; g++) {
        if (group[g].n) group[g].std = sqrt(group[g].std / group[g].n);
        constant += is_constant(&group[g]);
    }
    if (batch.n) batch.std = sqrt(batch.std / batch.n);
    const double before = isnan(*baseline) ? batch.mean : *baseline;
    for (int i = 0; i < n; i++) {
        const struct moments *m = &group[s[i].group];
        s[i].constant = is_constant(m);
        s[i].takes_part = s[i].present && !(s[i].constant && p->drop_constant && is_difference(p->kind));
        s[i].advantage = s[i].takes_part ? advantage_of(p, s, n, i, m, &batch, before) : 0;
        if (s[i].constant && p->kind <= ADVANTAGE_LEAVE_ONE) s[i].advantage = 0; /* not what rounding leaves */
        if (s[i].advantage < 0) s[i].advantage *= p->negative_scale;
    }
    if (p->kind == ADVANTAGE_EMA && batch.n)
        *baseline =
            isnan(*baseline) ? batch.mean : p->baseline_decay * *baseline + (1 - p->baseline_decay) * batch.mean;
    free(group);
    return constant;
}
