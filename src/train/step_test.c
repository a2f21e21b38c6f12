/* The training step: gradients against differences for every loss, soft targets, shared prompts, leaves and their
 * order, what is refused. */
#include "train/step.h"

#include <math.h>

#include "rl/test_util.h"

/* Three texts; the first two share a prompt of five tokens. */
enum { TEXTS = 3, LONGEST = 16 };
struct texts {
    int32_t ids[TEXTS][LONGEST];
    float weights[TEXTS][LONGEST], sampled[TEXTS][LONGEST], old[TEXTS][LONGEST], ref[TEXTS][LONGEST],
        logp[TEXTS][LONGEST];
    struct datum d[TEXTS];
};

static void make_texts(struct texts *x) {
    struct rng r = rng_make(11, 1);
    *x = (struct texts){0};
    for (int i = 0; i < TEXTS; i++) {
        const int prompt = i < 2 ? 5 : 7, n = prompt + 3 + i;
        for (int k = 0; k <= n; k++) x->ids[i][k] = (int32_t)rng_below(&r, TINY_V);
        if (i == 1) memcpy(x->ids[1], x->ids[0], 5 * sizeof(int32_t));
        for (int k = 0; k < LONGEST; k++) x->weights[i][k] = 0.4f + 0.5f * (float)rng_normal(&r);
        x->d[i] = (struct datum){.ids = x->ids[i],
                                 .n = n,
                                 .prompt = prompt,
                                 .begin = prompt - 1,
                                 .end = n,
                                 .targets = x->ids[i] + prompt,
                                 .weights = x->weights[i],
                                 .scale = 1,
                                 .logp = x->logp[i]};
    }
}

static struct trainer *open_trainer(struct model *m, int64_t rows) {
    struct trainer *t;
    CHECK(trainer_open(test_comm(), m, ADAPTER_OWN, rows, &t, &err));
    return t;
}

/* A step of rate 0: the gradient, and its norm. */
static double gradient(struct trainer *t, float *out) {
    const struct adamw_config c = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    double norm;
    int64_t n;
    CHECK(train_optimizer_step(t, &c, 0, 0, &norm, &err));
    const float *slab = model_grad_slab(t->model, &n);
    if (out) memcpy(out, slab, (size_t)n * sizeof *out);
    return norm;
}
static double gradient_of(struct trainer *t, const struct train_call *c, const struct datum *d, int n, float *out,
                          struct train_stats *s) {
    *s = (struct train_stats){0};
    CHECK(train_accumulate(t, c, d, n, s, &err));
    return gradient(t, out);
}
static float *slab_like(struct model *m) {
    int64_t n;
    (void)model_grad_slab(m, &n);
    return xcalloc((size_t)n, sizeof(float));
}
/* |a - b| / |a| */
static double distance(struct model *m, const float *a, const float *b) {
    int64_t n;
    double diff = 0, norm = 0;
    (void)model_grad_slab(m, &n);
    for (int64_t i = 0; i < n; i++) {
        diff += pow((double)a[i] - (double)b[i], 2);
        norm += pow((double)a[i], 2);
    }
    assert_true(norm > 0);
    return sqrt(diff / norm);
}

/* Moves the weights along a gradient of this norm by so much. */
static void move(struct model *m, const float *g, double norm, double by) {
    int n;
    int64_t floats;
    const struct param *p = model_params(m, &n);
    const float *slab = model_grad_slab(m, &floats);
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < p[i].n; k++) p[i].w[k] += (float)(by / norm * (double)g[p[i].g - slab + k]);
    model_params_changed(m);
}

/* The loss falls along its gradient as steeply as the gradient is long. */
static void check_slope(struct trainer *t, const struct loss_params *p, const struct datum *d, const char *what) {
    const struct train_call c = {.loss = *p};
    struct train_stats s, up, down;
    float *g = slab_like(t->model);
    const double norm = gradient_of(t, &c, d, TEXTS, g, &s), h = 2e-3;
    move(t->model, g, norm, h);
    (void)gradient_of(t, &c, d, TEXTS, NULL, &up);
    move(t->model, g, norm, -2 * h);
    (void)gradient_of(t, &c, d, TEXTS, NULL, &down);
    move(t->model, g, norm, h);
    const double slope = (up.loss.loss - down.loss.loss) / (2 * h);
    if (!(fabs(slope - norm) <= 0.02 * norm)) fail_msg("%s: slope %g, gradient norm %g", what, slope, norm);
    free(g);
}

/* Every loss of the list with every correction, and every estimator of the KL term. Ratios stay away from the clips'
 * corners: old is a little off the present log-probabilities, and clips are wide, but for CISPO, whose factor has no
 * gradient: there it is always at its bound. */
static void gradients_are_those_of_the_losses(void **state) {
    (void)state;
    static const char *const losses[] = {CHOICE_NAMES(LOSS_LIST)},
                             *const corrections[] = {CHOICE_NAMES(CORRECTION_LIST)},
                             *const kls[] = {CHOICE_NAMES(KL_LIST)};
    struct model *m = tiny_model(1, true);
    struct trainer *t = open_trainer(m, 1 << 20);
    struct texts x;
    make_texts(&x);
    CHECK(train_forward(t, m, ADAPTER_OWN, x.d, TEXTS, &err));
    for (int i = 0; i < TEXTS; i++) {
        struct rng r = rng_make(3, (uint64_t)i);
        for (int k = 0; k < LONGEST; k++) {
            x.old[i][k] = x.logp[i][k] + 0.1f * (float)rng_normal(&r);
            x.sampled[i][k] = x.old[i][k] + 0.1f * (float)rng_normal(&r);
            x.ref[i][k] = x.logp[i][k] - 0.5f;
        }
        x.d[i].old = x.old[i];
        x.d[i].sampled = x.sampled[i];
        x.d[i].ref = x.ref[i];
    }
    for (size_t k = 0; k < ARRAY_LEN(losses); k++)
        for (size_t c = 0; c < ARRAY_LEN(corrections); c++) {
            char what[80];
            snprintf(what, sizeof what, "%s, %s", losses[k], corrections[c]);
            const struct loss_params p = {.kind = (enum loss_kind)k,
                                          .clip_low = 0.9,
                                          .clip_high = k == LOSS_CISPO ? -0.9 : 9,
                                          .dro_beta = 0.1,
                                          .correction = (enum ratio_correction)c,
                                          .correction_low = 0.5,
                                          .correction_high = 2};
            check_slope(t, &p, x.d, what);
        }
    for (size_t k = 0; k < ARRAY_LEN(kls); k++) {
        const struct loss_params p = {.kind = LOSS_IMPORTANCE_SAMPLING, .kl_coef = 0.7, .kl = (enum kl_estimator)k};
        check_slope(t, &p, x.d, kls[k]);
    }
    trainer_close(t);
    model_free(m);
}

/* The entropy's gradient is the score function's (loss.h): that of weights -coef (logp + entropy) where ratios are 1.
 */
static void entropy_has_the_gradient_of_its_score(void **state) {
    (void)state;
    struct model *m = tiny_model(1, false);
    struct trainer *t = open_trainer(m, 1 << 20);
    struct texts x;
    make_texts(&x);
    struct datum *d = &x.d[2];
    float entropy[LONGEST], logp[LONGEST];
    int32_t rows[LONGEST];
    const int64_t R = d->end - d->begin;
    for (int64_t r = 0; r < R; r++) rows[r] = (int32_t)(d->begin + r);
    const struct segment seg = {0, d->n, -1, ADAPTER_OWN};
    const struct train_batch b = {d->ids, d->n, &seg, 1, rows, d->targets, R, true};
    CHECK(model_forward(m, &b, logp, entropy, NULL, &err));
    memcpy(x.old[2], logp, sizeof logp);
    memset(x.weights[2], 0, sizeof x.weights[2]);
    d->old = x.old[2];
    float *a = slab_like(m), *w = slab_like(m);
    struct train_stats s;
    (void)gradient_of(t, &(struct train_call){.loss = {.kind = LOSS_PPO, .entropy_coef = 0.3}}, d, 1, a, &s);
    for (int64_t r = 0; r < R; r++) x.weights[2][r] = -0.3f * (logp[r] + entropy[r]);
    (void)gradient_of(t, &(struct train_call){.loss.kind = LOSS_CROSS_ENTROPY}, d, 1, w, &s);
    assert_true(distance(m, a, w) < 1e-5);
    double sum = 0;
    for (int64_t r = 0; r < R; r++) sum += (double)entropy[r];
    assert_true(fabs(s.entropy - sum) < 1e-4);
    free(a);
    free(w);
    trainer_close(t);
    model_free(m);
}

static void soft_targets_are_sums_of_hard_ones(void **state) {
    (void)state;
    struct model *m = tiny_model(1, false);
    struct trainer *t = open_trainer(m, 1 << 20);
    struct texts x;
    make_texts(&x);
    enum { K = 3, R = 4 };
    struct datum d = x.d[0];
    assert_int_equal(d.end - d.begin, R);
    int32_t targets[R * K], one[K][R];
    float weights[R * K], logp[R * K], of_one[K][R], logp_of_one[K][R];
    for (int i = 0; i < R * K; i++) {
        one[i % K][i / K] = targets[i] = (i * 37 + 5) % TINY_V;
        of_one[i % K][i / K] = weights[i] = 0.1f * (float)(1 + i);
    }
    d.K = K;
    d.targets = targets;
    d.weights = weights;
    d.logp = logp;
    const struct train_call c = {.loss.kind = LOSS_CROSS_ENTROPY};
    struct train_stats s, sum = {0};
    float *soft = slab_like(m), *hard = slab_like(m);
    (void)gradient_of(t, &c, &d, 1, soft, &s);
    for (int k = 0; k < K; k++) {
        struct datum h = x.d[0];
        h.targets = one[k];
        h.weights = of_one[k];
        h.logp = logp_of_one[k];
        CHECK(train_accumulate(t, &c, &h, 1, &sum, &err));
        for (int r = 0; r < R; r++) assert_true(logp[r * K + k] == logp_of_one[k][r]);
    }
    (void)gradient(t, hard);
    assert_true(distance(m, soft, hard) < 1e-5 && fabs(s.loss.loss - sum.loss.loss) < 1e-4);
    assert_true(s.loss.n == R * K && sum.loss.n == R * K);
    free(soft);
    free(hard);
    trainer_close(t);
    model_free(m);
}

/* The gradient is ((0 + leaf 0) + leaf 1) + leaf 2, to the bit, in one call or in several; in one micro-batch it is the
 * same but for rounding. */
static void leaves_add_up_in_their_order(void **state) {
    (void)state;
    for (int lora = 0; lora < 2; lora++) {
        struct model *m = tiny_model(1, lora);
        struct trainer *t = open_trainer(m, 1); /* a micro-batch each */
        const struct train_call c = {.loss.kind = LOSS_CROSS_ENTROPY};
        struct texts x;
        make_texts(&x);
        struct train_stats s;
        float *leaf = slab_like(m), *want = slab_like(m), *got = slab_like(m);
        int64_t n;
        (void)model_grad_slab(m, &n);
        for (int i = 0; i < TEXTS; i++) {
            (void)gradient_of(t, &c, &x.d[i], 1, leaf, &s);
            for (int64_t k = 0; k < n; k++) want[k] += leaf[k];
        }
        (void)gradient_of(t, &c, x.d, TEXTS, got, &s);
        assert_memory_equal(got, want, (size_t)n * sizeof *got);
        for (int i = 0; i < TEXTS; i++) CHECK(train_accumulate(t, &c, &x.d[i], 1, &s, &err));
        (void)gradient(t, got);
        assert_memory_equal(got, want, (size_t)n * sizeof *got);
        t->train_tokens = 1 << 20;
        (void)gradient_of(t, &c, x.d, TEXTS, got, &s);
        assert_true(distance(m, want, got) < 1e-5);
        assert_int_equal(s.rows, x.d[0].n + (x.d[1].n - 5) + x.d[2].n); /* the prompt of the first two once */
        CHECK(train_accumulate(t, &c, x.d, TEXTS, &s, &err));
        train_forget(t);
        assert_true(gradient(t, got) == 0); /* nothing since the last step */
        free(leaf);
        free(want);
        free(got);
        trainer_close(t);
        model_free(m);
    }
}

static void sharing_changes_no_log_probability(void **state) {
    (void)state;
    struct model *m = tiny_model(1, true), *bare;
    struct trainer *t = open_trainer(m, 1 << 20);
    struct texts together, apart;
    make_texts(&together);
    make_texts(&apart);
    CHECK(train_forward(t, m, ADAPTER_OWN, together.d, TEXTS, &err));
    for (int i = 0; i < TEXTS; i++) CHECK(train_forward(t, m, ADAPTER_OWN, &apart.d[i], 1, &err));
    assert_memory_equal(together.logp, apart.logp, sizeof apart.logp);
    t->train_tokens = 7;
    memset(together.logp, 0, sizeof together.logp);
    CHECK(train_forward(t, m, ADAPTER_OWN, together.d, TEXTS, &err));
    assert_memory_equal(together.logp, apart.logp, sizeof apart.logp);

    /* Without the adapter they are the base's. */
    struct trainer *base;
    CHECK(train_forward(t, m, ADAPTER_BASE, apart.d, TEXTS, &err));
    assert_memory_not_equal(together.logp, apart.logp, sizeof apart.logp);
    bare = tiny_model(1, false);
    base = open_trainer(bare, 1 << 20);
    CHECK(train_forward(base, bare, ADAPTER_OWN, together.d, TEXTS, &err));
    assert_memory_equal(together.logp, apart.logp, sizeof apart.logp);
    trainer_close(t);
    trainer_close(base);
    model_free(m);
    model_free(bare);
}

/* A prompt's own tokens as a datum: it adds its gradient in proportion to its weight, is in no statistics, takes no
 * rows of its own and is counted once where a run of datums is cut. */
static void prompts_are_learned_once(void **state) {
    (void)state;
    struct model *m = tiny_model(1, false);
    struct trainer *t = open_trainer(m, 1 << 20);
    struct texts x;
    make_texts(&x);
    float half[LONGEST], one[LONGEST];
    for (int i = 0; i < LONGEST; i++) half[i] = 0.5f, one[i] = 1;
    const struct datum prompt = {.ids = x.ids[0],
                                 .n = 5,
                                 .prompt = 5,
                                 .begin = 0,
                                 .end = 4,
                                 .targets = x.ids[0] + 1,
                                 .weights = half,
                                 .scale = 1,
                                 .likelihood = true};
    struct datum with[3] = {prompt, x.d[0], x.d[1]}, alone = prompt;
    alone.weights = one;
    alone.likelihood = false;
    const struct train_call c = {.loss.kind = LOSS_CROSS_ENTROPY};
    struct train_stats plain, more, cut, s;
    float *a = slab_like(m), *b = slab_like(m), *p = slab_like(m);
    int64_t n;
    (void)model_grad_slab(m, &n);
    (void)gradient_of(t, &c, x.d, 2, a, &plain);
    (void)gradient_of(t, &c, with, 3, b, &more);
    (void)gradient_of(t, &c, &alone, 1, p, &s);
    assert_true(more.loss.n == plain.loss.n && more.rows == plain.rows && more.loss.loss == plain.loss.loss);
    for (int64_t i = 0; i < n; i++) a[i] += 0.5f * p[i];
    assert_true(distance(m, a, b) < 1e-5);
    t->train_tokens = 1;
    (void)gradient_of(t, &c, with, 3, a, &cut);
    assert_int_equal(cut.rows, x.d[0].n + x.d[1].n);
    assert_true(distance(m, a, b) < 1e-5);
    free(a);
    free(b);
    free(p);
    trainer_close(t);
    model_free(m);
}

static void bad_datums_are_refused(void **state) {
    (void)state;
    struct model *m = tiny_model(1, false);
    struct trainer *t = open_trainer(m, 1 << 20);
    struct texts x;
    float *want = slab_like(m), *got = slab_like(m);
    struct train_stats s;
    const struct train_call ce = {.loss.kind = LOSS_CROSS_ENTROPY}, ppo = {.loss.kind = LOSS_PPO},
                            kl = {.loss = {.kind = LOSS_CROSS_ENTROPY, .kl_coef = 1}};
    int64_t n;
    (void)model_grad_slab(m, &n);
    make_texts(&x);
    (void)gradient_of(t, &ce, x.d, TEXTS, want, &s);
    const struct {
        const struct train_call *call;
        const char *message;
        int what;
    } rows[] = {
        {&ce, "datum 1 has no tokens", 0},
        {&ce, "datum 1: the prompt has 0 of", 1},
        {&ce, "datum 1: rows 9 to 9 predict", 2},
        {&ce, "datum 1: token 2 is -1, expected 0 to", 3},
        {&ce, "datum 1: target 1 is 100000, expected 0 to", 4},
        {&ce, "datum 1: a weight or the scale is missing or not finite", 5},
        {&ppo, "needs the sampler's log-probabilities", 6},
        {&kl, "a KL term needs the reference's log-probabilities", 6},
        {&ce, "datum 1 has 2 targets a row", 7},
        {&ce, "datum 1: a recorded log-probability is not finite", 8},
        {&ce, "datum 1 has 2000 tokens, the model takes 1024", 9},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        make_texts(&x);
        struct datum *d = &x.d[1];
        static int32_t targets[2 * LONGEST];
        static float weights[2 * LONGEST];
        switch (rows[i].what) {
        case 0: d->n = 0; break;
        case 1: d->prompt = 0; break;
        case 2: d->begin = d->end; break;
        case 3: x.ids[1][2] = -1; break;
        case 4:
            x.ids[1][d->prompt + 1] = 100000;
            d->n = d->prompt + 1, d->end = d->n;
            break;
        case 5: x.weights[1][1] = NAN; break;
        case 7: d->K = 2, d->targets = targets, d->weights = weights, d->sampled = x.sampled[1]; break;
        case 8: x.sampled[1][0] = NAN, d->sampled = x.sampled[1]; break;
        case 9: d->n = 2000; break;
        default: break;
        }
        s = (struct train_stats){0};
        CHECK_FAILS(train_accumulate(t, rows[i].call, x.d, TEXTS, &s, &err), ST_INVALID, rows[i].message);
        assert_int_equal(s.rows, 0);
    }
    make_texts(&x); /* nothing is left of them */
    (void)gradient_of(t, &ce, x.d, TEXTS, got, &s);
    assert_memory_equal(want, got, (size_t)n * sizeof *want);
    free(want);
    free(got);
    trainer_close(t);
    model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_those_of_the_losses),
        cmocka_unit_test(entropy_has_the_gradient_of_its_score),
        cmocka_unit_test(soft_targets_are_sums_of_hard_ones),
        cmocka_unit_test(leaves_add_up_in_their_order),
        cmocka_unit_test(sharing_changes_no_log_probability),
        cmocka_unit_test(prompts_are_learned_once),
        cmocka_unit_test(bad_datums_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
