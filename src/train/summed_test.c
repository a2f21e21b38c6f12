/* The Tinker protocol's losses: each gradient against differences of a value that is written out here from the
 * protocol's formulas, by log-probability and through a model with an adapter; what masks and infinities do; gradients
 * that add up over calls, and calls that fail between them. */
#include "train/summed.h"

#include <math.h>

#include "rl/test_util.h"
#include "train/step.h"

static const char *const names[] = {CHOICE_NAMES(SUMMED_LIST)};
static const int n_kinds = ARRAY_LEN(names);

/* The loss as a function of log-probabilities x; what carries no gradient is taken at x0. */
static double value(const struct summed_loss *l, const double *x, const double *x0, const struct summed_sequence *s) {
    double mean = 0, n = 0, sum = 0;
    for (int64_t i = 0; s->sampled && i < s->n; i++)
        if (!s->mask || s->mask[i] != 0) {
            mean += x0[i] - (double)s->sampled[i];
            n++;
        }
    for (int64_t i = 0; i < s->n; i++) {
        const double w = s->weights[i], d = s->sampled ? x[i] - (double)s->sampled[i] : 0;
        const double s_ratio = exp(mean / n) * exp(x[i] - x0[i]), r = l->kind == SUMMED_GSPO ? s_ratio : exp(d);
        const double r0 = exp(s->sampled ? x0[i] - (double)s->sampled[i] : 0);
        switch (l->kind) {
        case SUMMED_CROSS_ENTROPY: sum -= w * x[i]; break;
        case SUMMED_IMPORTANCE_SAMPLING: sum -= r * w; break;
        case SUMMED_PPO:
        case SUMMED_GSPO: sum -= fmin(r * w, fmin(fmax(r, l->low), l->high) * w); break;
        case SUMMED_CISPO: sum -= fmin(fmax(r0, l->low), l->high) * x[i] * w; break;
        case SUMMED_DRO: sum -= w * x[i] - l->beta / 2 * d * d; break;
        }
    }
    return sum;
}

static void gradients_match_differences(void **state) {
    (void)state;
    enum { N = 6 };
    int clipped = 0;
    for (int kind = 0; kind < n_kinds; kind++)
        for (int k = 0; k < 40; k++) {
            struct rng r = rng_make(5, (uint64_t)(kind * 100 + k));
            const struct summed_loss l = {(enum summed_kind)kind, 0.7, 1.25, 0.05 * k};
            float logp[N], sampled[N], weights[N], mask[N], g[N];
            double x[N], loss = 0;
            for (int i = 0; i < N; i++) {
                x[i] = logp[i] = -0.1F - 3 * (float)rng_next_f64(&r);
                sampled[i] = logp[i] + 0.5F * (float)rng_normal(&r);
                weights[i] = i == 2 ? 0 : (float)rng_normal(&r); /* any sign, also for cross_entropy */
                mask[i] = i % 3 ? 1 : 0;
            }
            const struct summed_sequence s = {N, logp, weights, kind ? sampled : NULL, k % 2 ? mask : NULL};
            CHECK(summed_grad(&l, &s, g, &loss, &err));
            const double want = value(&l, x, x, &s);
            assert_true(fabs(loss - want) <= 1e-9 * (1 + fabs(want)));
            for (int i = 0; i < N; i++) {
                const double h = 1e-6;
                double up[N], down[N];
                memcpy(up, x, sizeof x);
                memcpy(down, x, sizeof x);
                up[i] += h;
                down[i] -= h;
                const double slope = (value(&l, up, x, &s) - value(&l, down, x, &s)) / (2 * h);
                if (fabs(slope - (double)g[i]) > 1e-5 * (1 + fabs(slope)))
                    fail_msg("%s, case %d, token %d: slope %g, gradient %g", names[kind], k, i, slope, (double)g[i]);
                clipped += kind == SUMMED_PPO && weights[i] != 0 && g[i] == 0;
            }
        }
    assert_true(clipped > 10);
}

/* Numbers that can be checked by hand: bounds are of the ratio itself, sums are not divided. */
static void values_by_hand(void **state) {
    (void)state;
    const float logp[] = {-1, -1, -1, -1}, sampled[] = {-1, -2, 0, -1}, a[] = {1, 1, -1, 0};
    const struct summed_sequence s = {4, logp, a, sampled, NULL};
    float g[4];
    double loss = 0;
    const struct summed_loss ppo = {SUMMED_PPO, 0.8, 1.2, 0};
    CHECK(summed_grad(&ppo, &s, g, &loss, &err)); /* ratios 1, e, 1/e, 1 */
    assert_true(fabs(loss - (-1 - 1.2 + 0.8)) < 1e-12);
    assert_true(g[0] == -1 && g[1] == 0 && g[2] == 0 && g[3] == 0);
    loss = 0;
    const struct summed_loss cispo = {SUMMED_CISPO, 0, 4, 0};
    CHECK(summed_grad(&cispo, &s, g, &loss, &err));
    assert_true(fabs((double)g[1] + exp(1)) < 1e-6 && fabs((double)g[2] - exp(-1)) < 1e-6);
    loss = 0;
    const struct summed_loss dro = {SUMMED_DRO, 0, 0, 0.5};
    CHECK(summed_grad(&dro, &s, g, &loss, &err));
    assert_true(g[1] == -0.5F && g[2] == 0.5F);
}

static void what_is_masked_makes_no_nan(void **state) {
    (void)state;
    const float logp[] = {-1, -1}, zero[] = {0, 0}, far[] = {-INFINITY, -1}, one[] = {1, 0};
    float g[2];
    double loss = 0;
    for (int kind = SUMMED_IMPORTANCE_SAMPLING; kind < n_kinds; kind++) {
        const struct summed_loss l = {(enum summed_kind)kind, 0, 4, 0.1};
        const float mask[] = {0, 1};
        const struct summed_sequence masked = {2, logp, zero, far, mask}, hit = {2, logp, one, far, mask};
        if (kind == SUMMED_DRO) {
            CHECK_FAILS(summed_grad(&l, &masked, g, &loss, &err), ST_INVALID, "token 0: its loss is not finite");
            continue;
        }
        CHECK(summed_grad(&l, &masked, g, &loss, &err));
        assert_true(loss == 0 && g[0] == 0 && g[1] == 0);
        if (kind == SUMMED_IMPORTANCE_SAMPLING)
            CHECK_FAILS(summed_grad(&l, &hit, g, &loss, &err), ST_INVALID, "token 0");
    }
}

/* ---- through a model ----------------------------------------------------------------------------------------------*/

enum { TEXTS = 3, LONGEST = 12, SOFT = 3 };
struct texts {
    int32_t ids[TEXTS][LONGEST], targets[TEXTS][LONGEST * SOFT];
    float weights[TEXTS][LONGEST * SOFT], sampled[TEXTS][LONGEST], mask[TEXTS][LONGEST], logp[TEXTS][LONGEST * SOFT];
    struct datum d[TEXTS];
};

/* As clients send them: every place predicts; the first two texts share their beginning. */
static void make_texts(struct trainer *t, struct texts *x, int K) {
    struct rng r = rng_make(23, (uint64_t)K);
    *x = (struct texts){0};
    for (int i = 0; i < TEXTS; i++) {
        const int n = 7 + 2 * i;
        for (int k = 0; k < n; k++) x->ids[i][k] = (int32_t)rng_below(&r, TINY_V);
        if (i == 1) memcpy(x->ids[1], x->ids[0], 4 * sizeof(int32_t));
        for (int k = 0; k < n * K; k++) {
            x->targets[i][k] = (int32_t)rng_below(&r, TINY_V);
            x->weights[i][k] = k < 3 * K ? 0 : (float)rng_normal(&r);
        }
        x->d[i] = (struct datum){.ids = x->ids[i],
                                 .n = n,
                                 .prompt = i < 2 ? 4 : 1,
                                 .end = n,
                                 .K = K,
                                 .targets = x->targets[i],
                                 .weights = x->weights[i],
                                 .logp = x->logp[i]};
    }
    CHECK(train_forward(t, t->model, t->adapter, x->d, TEXTS, &err));
    for (int i = 0; i < TEXTS && K == 1; i++) {
        for (int k = 0; k < LONGEST; k++) {
            x->sampled[i][k] = x->logp[i][k] + 0.1F * (float)rng_normal(&r);
            x->mask[i][k] = k >= 3;
        }
        x->d[i].sampled = x->sampled[i];
        x->d[i].mask = x->mask[i];
    }
}

static struct model *open_model(struct trainer **t, int64_t rows) {
    struct model *m = tiny_model(1, false);
    int n;
    CHECK(model_lora_create(m, &(struct adapter_shape){.rank = 2, .alpha = 4.0F, .parts = 7}, 1, &err));
    CHECK(model_train_prepare(m, TRAIN_LORA, &err));
    const struct param *p = model_params(m, &n);
    for (int i = 0; i < n; i++) { /* B is no longer zero, so that A has a gradient */
        struct rng r = rng_make(1, (uint64_t)i);
        for (int64_t k = 0; k < p[i].n; k++) p[i].w[k] += 0.1F * (float)rng_normal(&r);
    }
    model_params_changed(m);
    CHECK(trainer_open(test_comm(), m, ADAPTER_OWN, rows, t, &err));
    return m;
}

/* A step of rate 0 puts the gradient in the slab. */
static double take_gradient(struct trainer *t, float *out) {
    const struct adamw_config c = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    double norm;
    int64_t n;
    CHECK(train_optimizer_step(t, &c, 0, 0, &norm, &err));
    const float *g = model_grad_slab(t->model, &n);
    if (out) memcpy(out, g, (size_t)n * sizeof *g);
    return norm;
}

static double loss_of(struct trainer *t, const struct train_call *c, const struct datum *d) {
    struct train_stats s = {0};
    CHECK(train_accumulate(t, c, d, TEXTS, &s, &err));
    train_forget(t);
    return s.loss.loss;
}

static void move(struct model *m, const float *g, double by) {
    int n;
    int64_t floats;
    const struct param *p = model_params(m, &n);
    const float *slab = model_grad_slab(m, &floats);
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < p[i].n; k++) p[i].w[k] += (float)(by * (double)g[p[i].g - slab + k]);
    model_params_changed(m);
}

static void slopes_are_gradients(void **state) {
    (void)state;
    for (int kind = 0; kind < n_kinds + 1; kind++) { /* the last: cross entropy of soft targets */
        const int K = kind == n_kinds ? SOFT : 1;
        const struct summed_loss l = {(enum summed_kind)(kind % n_kinds), kind == SUMMED_CISPO ? 1 : 0.1,
                                      kind == SUMMED_CISPO ? 1 : 9, 0.3};
        const struct train_call c = {.summed = &l};
        struct trainer *t;
        struct model *m = open_model(&t, 20);
        struct texts x;
        struct train_stats s = {0};
        int64_t floats;
        make_texts(t, &x, K);
        (void)model_grad_slab(m, &floats);
        float *g = xcalloc((size_t)floats, sizeof *g);
        CHECK(train_accumulate(t, &c, x.d, TEXTS, &s, &err));
        const double norm = take_gradient(t, g), h = 2e-3;
        move(m, g, h / norm);
        const double up = loss_of(t, &c, x.d);
        move(m, g, -2 * h / norm);
        const double slope = (up - loss_of(t, &c, x.d)) / (2 * h);
        /* gspo's value moves by the sequence's ratio as a whole, its gradient by that of each token */
        if (kind != SUMMED_GSPO && !(fabs(slope - norm) <= 0.02 * norm))
            fail_msg("%s, %d targets: slope %g, gradient norm %g", names[l.kind], K, slope, norm);
        assert_true(norm > 0.01);
        free(g);
        trainer_close(t);
        model_free(m);
    }
}

/* gspo's value has the sequence's ratio at each token, and the gradient of a token is that ratio times its weight. */
static void gspo_moves_with_its_sequence(void **state) {
    (void)state;
    const struct summed_loss l = {SUMMED_GSPO, 0.1, 9, 0};
    float logp[] = {-1, -2, -3}, sampled[] = {-1.2F, -1.9F, -3.1F}, a[] = {0.5F, 0.5F, 0.5F}, g[3];
    const struct summed_sequence s = {3, logp, a, sampled, NULL};
    double loss = 0;
    CHECK(summed_grad(&l, &s, g, &loss, &err));
    const double ratio = exp(0.2 / 3);
    assert_true(fabs(loss + 1.5 * ratio) < 1e-6);
    for (int i = 0; i < 3; i++) assert_true(fabs((double)g[i] + 0.5 * ratio) < 1e-6);
}

static void gradients_add_up_and_outlive_failures(void **state) {
    (void)state;
    const struct summed_loss l = {SUMMED_IMPORTANCE_SAMPLING, 0, 0, 0};
    const struct train_call c = {.summed = &l};
    struct trainer *t;
    struct model *m = open_model(&t, 1);
    struct texts x;
    struct train_stats s = {0}, one = {0};
    struct train_mark mark;
    int64_t floats;
    make_texts(t, &x, 1);
    (void)model_grad_slab(m, &floats);
    const size_t bytes = (size_t)floats * sizeof(float);
    float *want = xmalloc(bytes), *got = xmalloc(bytes);
    CHECK(train_accumulate(t, &c, x.d, TEXTS, &s, &err));
    take_gradient(t, want);
    for (int i = 0; i < TEXTS; i++) CHECK(train_accumulate(t, &c, &x.d[i], 1, &one, &err));
    take_gradient(t, got);
    assert_true(s.loss.loss == one.loss.loss);
    for (int64_t i = 0; i < floats; i++) assert_true(fabsf(want[i] - got[i]) <= 1e-5F * (1 + fabsf(want[i])));
    /* a call that fails in its second micro-batch, first and between two others */
    memcpy(want, got, bytes);
    float spoiled[LONGEST];
    memcpy(spoiled, x.sampled[1], sizeof spoiled);
    spoiled[5] = -1e30F;
    for (int at = 0; at < TEXTS; at++) {
        struct datum bad[2] = {x.d[0], x.d[1]};
        const uint64_t history = t->history;
        bad[1].sampled = spoiled;
        for (int i = 0; i < TEXTS; i++) {
            if (i == at) {
                CHECK(train_mark_take(t, &mark, &err));
                assert_true(mark.begun == (at > 0));
                CHECK_FAILS(train_accumulate(t, &c, bad, 2, &one, &err), ST_INVALID, "datum 1: token 5");
                CHECK(train_mark_restore(t, &mark, &err));
                train_mark_free(&mark);
                if (at == 0) assert_true(t->history == history);
            }
            CHECK(train_accumulate(t, &c, &x.d[i], 1, &one, &err));
        }
        take_gradient(t, got);
        assert_memory_equal(want, got, bytes);
    }
    free(want);
    free(got);
    trainer_close(t);
    model_free(m);
}

static void bad_datums_are_refused(void **state) {
    (void)state;
    struct trainer *t;
    struct model *m = open_model(&t, 100);
    struct texts x;
    struct train_stats s = {0};
    make_texts(t, &x, 1);
    const struct summed_loss ppo = {SUMMED_PPO, 0.8, 1.2, 0}, odd = {SUMMED_PPO, NAN, 1, 0};
    struct datum d = x.d[0];
    d.sampled = NULL;
    CHECK_FAILS(train_accumulate(t, &(struct train_call){.summed = &ppo}, &d, 1, &s, &err), ST_INVALID, "needs the");
    d = x.d[0];
    d.K = 2;
    d.end = 3;
    CHECK_FAILS(train_accumulate(t, &(struct train_call){.summed = &ppo}, &d, 1, &s, &err), ST_INVALID, "2 targets");
    CHECK_FAILS(train_accumulate(t, &(struct train_call){.summed = &odd}, x.d, 1, &s, &err), ST_INVALID, "parameter");
    x.weights[0][4] = INFINITY;
    CHECK_FAILS(train_accumulate(t, &(struct train_call){.summed = &ppo}, x.d, 1, &s, &err), ST_INVALID, "weight");
    x.weights[0][4] = 1;
    x.sampled[0][4] = NAN;
    CHECK_FAILS(train_accumulate(t, &(struct train_call){.summed = &ppo}, x.d, 1, &s, &err), ST_INVALID, "token 4");
    x.weights[0][4] = 0; /* and where it does not count it is not looked at */
    CHECK(train_accumulate(t, &(struct train_call){.summed = &ppo}, x.d, 1, &s, &err));
    assert_true(isfinite(s.loss.loss));
    trainer_close(t);
    model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_differences),  cmocka_unit_test(values_by_hand),
        cmocka_unit_test(what_is_masked_makes_no_nan),  cmocka_unit_test(slopes_are_gradients),
        cmocka_unit_test(gspo_moves_with_its_sequence), cmocka_unit_test(gradients_add_up_and_outlive_failures),
        cmocka_unit_test(bad_datums_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
