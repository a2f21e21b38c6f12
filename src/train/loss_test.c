/* Every loss's gradient against central differences of its value, clip branches and corrections by hand, and the
 * entropy's and the divergence's estimators against the exact gradients of a small softmax. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "train/loss.h"

enum { N = 5 };

/* The loss of a sequence as a function of its log-probabilities x, written out from the papers, with what carries no
 * gradient taken at x0. */
static double value(const struct loss_params *p, const double *x, const struct loss_sequence *s) {
    double sum = 0, mean = 0, rho_mean = 0;
    for (int i = 0; i < N; i++) {
        mean += (x[i] - (double)s->old[i]) / N;
        rho_mean += ((double)s->old[i] - (double)s->sampled[i]) / N;
    }
    for (int i = 0; i < N; i++) {
        const double a = s->adv[i], d = x[i] - (double)s->old[i], rho = exp((double)s->old[i] - (double)s->sampled[i]);
        double r = p->kind == LOSS_GSPO ? exp(mean) : exp(d), loss = 0, w = 1;
        switch (p->kind) {
        case LOSS_IMPORTANCE_SAMPLING: loss = -r * a; break;
        case LOSS_PPO:
        case LOSS_GSPO: {
            const double surrogate = fmin(r * a, fmin(fmax(r, 1 - p->clip_low), 1 + p->clip_high) * a);
            loss = -(p->clip_dual > 0 && a < 0 ? fmax(surrogate, p->clip_dual * a) : surrogate);
            break;
        }
        case LOSS_CISPO: loss = -fmin(exp((double)s->logp[i] - (double)s->old[i]), 1 + p->clip_high) * a * x[i]; break;
        case LOSS_DRO: loss = -a * x[i] + 0.5 * p->dro_beta * d * d; break;
        case LOSS_REINFORCE:
        case LOSS_CROSS_ENTROPY: loss = -a * x[i]; break;
        }
        if (p->correction == CORRECT_TRUNCATE) w = fmin(rho, p->correction_high);
        if (p->correction == CORRECT_MASK) w = rho >= p->correction_low && rho <= p->correction_high ? rho : 0;
        if (p->correction == CORRECT_SEQUENCE_MASK)
            w = exp(rho_mean) >= p->correction_low && exp(rho_mean) <= p->correction_high;
        const double k = x[i] - (double)s->ref[i];
        const double kl[] = {k, k * k / 2, exp(-k) + k - 1};
        sum += w * loss + p->kl_coef * kl[p->kl];
    }
    return sum;
}

/* Away from the kinks of the clips, where there is no derivative. */
static bool near_kink(const struct loss_params *p, const struct loss_sequence *s) {
    double mean = 0;
    for (int i = 0; i < N; i++) mean += ((double)s->logp[i] - (double)s->old[i]) / N;
    for (int i = 0; i < N; i++) {
        const double r = p->kind == LOSS_GSPO ? exp(mean) : exp((double)s->logp[i] - (double)s->old[i]);
        if (fabs(r - 1 + p->clip_low) < 1e-3 || fabs(r - 1 - p->clip_high) < 1e-3 || fabs(r - p->clip_dual) < 1e-3)
            return true;
    }
    return false;
}

static void gradients_match_differences(void **state) {
    (void)state;
    int checked = 0, clipped = 0, masked = 0;
    for (int kind = LOSS_REINFORCE; kind <= LOSS_CROSS_ENTROPY; kind++)
        for (int correction = CORRECT_NONE; correction <= CORRECT_SEQUENCE_MASK; correction++)
            for (int k = 0; k < 60; k++) {
                const struct loss_params p = {.kind = (enum loss_kind)kind,
                                              .clip_low = 0.2,
                                              .clip_high = 0.28,
                                              .clip_dual = k % 4 == 1 ? 1.5 : 0,
                                              .dro_beta = 0.3,
                                              .correction = (enum ratio_correction)correction,
                                              .correction_low = 0.9,
                                              .correction_high = 1.15,
                                              .kl_coef = k % 3 ? 0.1 : 0,
                                              .kl = (enum kl_estimator)(k % 3)};
                float logp[N], old[N], sampled[N], ref[N], adv[N], g[N];
                for (int i = 0; i < N; i++) {
                    const int m = 7 * i + 11 * k;
                    logp[i] = -0.1f - 0.037f * (float)(m % 23);
                    old[i] = -0.2f - 0.041f * (float)((m + 5) % 19);
                    sampled[i] = old[i] + 0.06f * (float)(m % 5 - 2);
                    ref[i] = -0.3f - 0.03f * (float)(m % 17);
                    adv[i] = (k % 2 ? 1.0f : -1.0f) * (0.5f + 0.1f * (float)(m % 7));
                }
                const struct loss_sequence s = {
                    .n = N, .logp = logp, .old = old, .sampled = sampled, .ref = ref, .adv = adv};
                if (near_kink(&p, &s)) continue;
                struct loss_stats stats = {0};
                loss_grad(&p, &s, 3.0, g, &stats);
                double x[N];
                for (int i = 0; i < N; i++) x[i] = logp[i];
                assert_true(fabs(stats.loss - value(&p, x, &s)) < 1e-9);
                for (int i = 0; i < N; i++) {
                    const double h = 1e-5;
                    x[i] = (double)logp[i] + h;
                    const double up = value(&p, x, &s);
                    x[i] = (double)logp[i] - h;
                    const double want = 3 * (up - value(&p, x, &s)) / (2 * h);
                    x[i] = logp[i];
                    if (fabs((double)g[i] - want) > 2e-4 * (1 + fabs(want)))
                        fail_msg("loss %d, correction %d, case %d, token %d: %g, expected %g", kind, correction, k, i,
                                 (double)g[i], want);
                }
                assert_true(stats.k2 >= 0 && stats.k3 >= 0 && stats.n == N);
                checked++;
                clipped += stats.clipped > 0;
                masked += stats.masked > 0;
            }
    assert_true(checked > 1000 && clipped > 100 && masked > 100);
}

static void one(const struct loss_params *p, double logp, double old, double adv, float *g, struct loss_stats *stats) {
    const float x = (float)logp, o = (float)old, a = (float)adv;
    const struct loss_sequence s = {.n = 1, .logp = &x, .old = &o, .adv = &a};
    loss_grad(p, &s, 1, g, stats);
}

static void clips_one_side_only(void **state) {
    (void)state;
    struct loss_params p = {.kind = LOSS_PPO, .clip_low = 0.2, .clip_high = 0.2};
    float g;
    struct loss_stats s = {0};
    one(&p, 0.5, 0, 1, &g, &s);
    assert_true(g == 0 && s.clipped == 1);
    one(&p, 0.5, 0, -1, &g, &s);
    assert_true(g > 0 && s.clipped == 1);
    one(&p, -0.5, 0, -1, &g, &s);
    assert_true(g == 0 && s.clipped == 2);
    one(&p, -0.5, 0, 1, &g, &s);
    assert_true(g < 0 && s.clipped == 2);
    p.clip_dual = 3; /* exp(2) is over it */
    one(&p, 2, 0, -1, &g, &s);
    assert_true(g == 0 && s.clipped == 3);
}

/* By hand: ratio e^0.5 = 1.6487, weight A = 2. */
static void values_by_hand(void **state) {
    (void)state;
    const double r = exp(0.5);
    struct loss_params p = {.clip_low = 0.2, .clip_high = 0.28, .dro_beta = 0.1};
    const struct {
        enum loss_kind kind;
        double a, loss, grad;
    } rows[] = {
        {LOSS_REINFORCE, 2, 2 * 1.0, -2},
        {LOSS_CROSS_ENTROPY, 2, 2 * 1.0, -2},
        {LOSS_IMPORTANCE_SAMPLING, 2, -2 * r, -2 * r},
        {LOSS_IMPORTANCE_SAMPLING, -2, 2 * r, 2 * r},
        {LOSS_PPO, 2, -2 * 1.28, 0},
        {LOSS_PPO, -2, 2 * r, 2 * r},
        {LOSS_GSPO, 2, -2 * 1.28, 0}, /* of one token it is PPO */
        {LOSS_GSPO, -2, 2 * r, 2 * r},
        {LOSS_CISPO, 2, 2 * 1.28, -2 * 1.28}, /* 1.28 A times log p = -1 */
        {LOSS_DRO, 2, 2 * 1.0 + 0.05 * 0.25, -2 + 0.1 * 0.5},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct loss_stats s = {0};
        float g;
        p.kind = rows[i].kind;
        one(&p, -1, -1.5, rows[i].a, &g, &s);
        if (fabs(s.loss - rows[i].loss) > 1e-6 || fabs((double)g - rows[i].grad) > 1e-6)
            fail_msg("row %zu: loss %g, gradient %g", i, s.loss, (double)g);
        assert_true(fabs(s.ratio - r) < 1e-9 && fabs(s.k1 + 0.5) < 1e-9 && fabs(s.k2 - 0.125) < 1e-9);
    }
    /* A reference at -2: d = 1. */
    const float logp = -1, ref = -2, a = 0;
    const double want[] = {1, 0.5, exp(-1)}, grad[] = {1, 1, 1 - exp(-1)};
    for (int kl = KL_K1; kl <= KL_K3; kl++) {
        struct loss_stats s = {0};
        float g;
        const struct loss_params q = {.kind = LOSS_PPO, .kl_coef = 0.5, .kl = (enum kl_estimator)kl};
        loss_grad(&q, &(struct loss_sequence){.n = 1, .logp = &logp, .old = &logp, .ref = &ref, .adv = &a}, 1, &g, &s);
        assert_true(fabs(s.loss - 0.5 * want[kl]) < 1e-9 && fabs((double)g - 0.5 * grad[kl]) < 1e-7);
        assert_true(fabs(s.ref_kl - want[kl]) < 1e-9);
    }
}

/* A softmax over four tokens: the mean over its tokens of g * d log p / d logit is the exact gradient of the entropy,
 * or of the divergence, by differences of the formulas. */
static double exact(const double *z, const double *ref, bool entropy) {
    double sum = 0, out = 0;
    for (int v = 0; v < 4; v++) sum += exp(z[v]);
    for (int v = 0; v < 4; v++) {
        const double logp = z[v] - log(sum);
        out += exp(logp) * (entropy ? -logp : logp - ref[v]);
    }
    return out;
}

static void estimators_have_the_exact_gradient(void **state) {
    (void)state;
    double z[4] = {0.3, -0.5, 1.2, 0.1}, ref[4] = {-1.0, -1.9, -1.2, -1.6}, sum = 0;
    for (int v = 0; v < 4; v++) sum += exp(z[v]);
    for (int entropy = 0; entropy < 2; entropy++) {
        double mean[4] = {0};
        const struct loss_params p = {
            .kind = LOSS_REINFORCE, .kl_coef = entropy ? 0 : 1, .kl = KL_K2, .entropy_coef = entropy ? 1 : 0};
        for (int v = 0; v < 4; v++) {
            const float logp = (float)(z[v] - log(sum)), r = (float)ref[v], h = (float)exact(z, ref, true), a = 0;
            const double prob = exp((double)logp);
            float g;
            loss_grad(&p,
                      &(struct loss_sequence){
                          .n = 1, .logp = &logp, .old = &logp, .ref = entropy ? NULL : &r, .entropy = &h, .adv = &a},
                      1, &g, NULL);
            for (int u = 0; u < 4; u++) mean[u] += prob * (double)g * ((u == v) - exp(z[u]) / sum);
        }
        for (int u = 0; u < 4; u++) {
            const double h = 1e-5, at = z[u];
            z[u] = at + h;
            const double up = exact(z, ref, entropy);
            z[u] = at - h;
            const double slope = (up - exact(z, ref, entropy)) / (2 * h);
            z[u] = at;
            assert_true(fabs(mean[u] - (entropy ? -slope : slope)) < 1e-6);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(clips_one_side_only),
        cmocka_unit_test(values_by_hand),
        cmocka_unit_test(estimators_have_the_exact_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
