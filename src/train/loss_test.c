/* Every loss's gradient against central differences of its value, and the clip branches by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "train/loss.h"

/* loss value as a function of logp, with CISPO's stop-gradient ratio frozen at logp0 */
static double value(const struct loss_params *p, double logp, double logp0, double logq, double a) {
    double r = exp(logp - logq);
    switch (p->kind) {
    case LOSS_IMPORTANCE_SAMPLING: return -r * a;
    case LOSS_PPO: {
        double rc = fmin(fmax(r, 1 - p->clip_low), 1 + p->clip_high);
        return -fmin(r * a, rc * a);
    }
    case LOSS_CISPO: return -fmin(exp(logp0 - logq), 1 + p->clip_high) * a * logp;
    default: return -a * logp;
    }
}

static void gradients_match_differences(void **state) {
    (void)state;
    for (int kind = LOSS_CROSS_ENTROPY; kind <= LOSS_CISPO; kind++)
        for (int i = 0; i < 200; i++) {
            struct loss_params p = {(enum loss_kind)kind, 0.2, 0.28};
            float logp = -0.1f - 0.037f * (float)(i % 19), logq = -0.2f - 0.041f * (float)(i % 17);
            float a = (i % 2 ? 1.0f : -1.0f) * (0.5f + 0.1f * (float)(i % 7)), g;
            double d = (double)logp - (double)logq, h = 1e-5;
            if (fabs(exp(d) - 0.8) < 1e-3 || fabs(exp(d) - 1.28) < 1e-3) continue; /* kinks */
            struct loss_stats s = {0};
            loss_token_grad(&p, &logp, &logq, &a, 1, 3.0, &g, &s);
            double want = 3 * (value(&p, logp + h, logp, logq, a) - value(&p, logp - h, logp, logq, a)) / (2 * h);
            assert_true(fabs(g - want) < 1e-4);
            assert_true(fabs(s.loss - value(&p, logp, logp, logq, a)) < 1e-9);
            assert_true(s.kl >= 0 && s.n == 1);
        }
}

static void clips_one_side_only(void **state) {
    (void)state;
    struct loss_params p = {LOSS_PPO, 0.2, 0.2};
    float q = 0, adv[] = {1, -1}, up = 0.5f, down = -0.5f, g;
    struct loss_stats s = {0};
    loss_token_grad(&p, &up, &q, &adv[0], 1, 1, &g, &s);
    assert_true(g == 0 && s.clipped == 1);
    loss_token_grad(&p, &up, &q, &adv[1], 1, 1, &g, &s);
    assert_true(g > 0 && s.clipped == 1);
    loss_token_grad(&p, &down, &q, &adv[1], 1, 1, &g, &s);
    assert_true(g == 0 && s.clipped == 2);
    loss_token_grad(&p, &down, &q, &adv[0], 1, 1, &g, &s);
    assert_true(g < 0 && s.clipped == 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(clips_one_side_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
