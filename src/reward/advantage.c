#include "reward/advantage.h"

#include <math.h>
#include <stdlib.h>

#define EPSILON 1e-6
enum { WEIGHT_MAX = 20 };

struct moments { /* of the present scores of a group, or of the batch */
    int n;
    double sum, mean, std, low, high;
    double beta, weight; /* ENTROPIC: of a group, and the mean of exp(beta (r - high)) */
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

/* ---- objectives that favour the best of a group -------------------------------------------------------------------*/

/* The mean of exp(beta (r - high)) over a group, and how far the weights that are proportional to it are from equal
 * ones: their KL, in nats. */
static double entropic_weights(const struct advantage_sample *s, int n, int group, double beta, double high,
                               double *kl) {
    double sum = 0, sum_log = 0;
    int m = 0;
    for (int i = 0; i < n; i++) {
        if (!s[i].present || s[i].group != group) continue;
        const double log_w = beta * (s[i].score - high);
        sum += exp(log_w);
        sum_log += exp(log_w) * log_w;
        m++;
    }
    *kl = sum_log / sum - log(sum / m);
    return sum / m;
}

/* The KL grows with beta, up to ln n where one sample is the best. Where half of the group is, it does not reach ln 2:
 * then the difference that counts e^20 times is all there is. */
static double entropic_beta(const struct advantage_sample *s, int n, int group, const struct moments *m) {
    double low = 0, high = 20 / (m->high - m->low), kl;
    for (int i = 0; i < 60; i++) {
        const double middle = (low + high) / 2;
        (void)entropic_weights(s, n, group, middle, m->high, &kl);
        *(kl < M_LN2 ? &low : &high) = middle;
    }
    return high;
}

static double choose(int n, int k) {
    double c = 1;
    for (int i = 1; i <= k; i++) c *= (double)(n - k + i) / i;
    return k < 0 || k > n ? 0 : c;
}

/* The mean over all k of the group that sample i is one of, of what their best score loses without it, times the share
 * of those. Only where i is the best does it lose anything: its distance to the second best, j, which has k - 2 of the
 * samples below it in the choice. */
static double max_k_gain(const struct advantage_sample *s, int n, int i, int group_n, int wanted) {
    const int k = wanted < group_n ? wanted : group_n;
    double gain = 0;
    if (k < 2) return 0;
    for (int j = 0; j < n; j++) {
        if (j == i || !s[j].present || s[j].group != s[i].group || s[j].score >= s[i].score) continue;
        const int below = group_n - 1 - rank_of(s, n, j);
        gain += choose(below, k - 2) * (s[i].score - s[j].score);
    }
    return gain / choose(group_n, k);
}

/* ---- all of them --------------------------------------------------------------------------------------------------*/

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
    case ADVANTAGE_ENTROPIC: return exp(group->beta * (r - group->high)) / group->weight - 1;
    case ADVANTAGE_MAX_K: return max_k_gain(s, n, i, group->n, p->max_k);
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
    for (int g = 0; g < n_groups && p->kind == ADVANTAGE_ENTROPIC; g++) {
        double kl;
        if (is_constant(&group[g])) continue;
        group[g].beta = p->entropic_beta > 0 ? p->entropic_beta : entropic_beta(s, n, g, &group[g]);
        group[g].weight = entropic_weights(s, n, g, group[g].beta, group[g].high, &kl);
    }
    const double before = isnan(*baseline) ? batch.mean : *baseline;
    for (int i = 0; i < n; i++) {
        const struct moments *m = &group[s[i].group];
        s[i].constant = is_constant(m);
        s[i].takes_part = s[i].present && !(s[i].constant && p->drop_constant && is_difference(p->kind));
        s[i].advantage = s[i].takes_part ? advantage_of(p, s, n, i, m, &batch, before) : 0;
        /* Not what rounding leaves. */
        if (s[i].constant && (p->kind <= ADVANTAGE_LEAVE_ONE || p->kind == ADVANTAGE_ENTROPIC)) s[i].advantage = 0;
        if (s[i].advantage < 0) s[i].advantage *= p->negative_scale;
    }
    if (p->kind == ADVANTAGE_EMA && batch.n)
        *baseline =
            isnan(*baseline) ? batch.mean : p->baseline_decay * *baseline + (1 - p->baseline_decay) * batch.mean;
    free(group);
    return constant;
}
