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

/* What the log-probabilities of recorded policies are: a little off today's, so that no ratio is 1. */
static void record(struct trainer *t, struct texts *x) {
    CHECK(train_forward(t, t->model, ADAPTER_OWN, x->d, TEXTS, &err));
    for (int i = 0; i < TEXTS; i++) {
        struct rng r = rng_make(3, (uint64_t)i);
        for (int k = 0; k < LONGEST; k++) {
            x->old[i][k] = x->logp[i][k] + 0.1f * (float)rng_normal(&r);
            x->sampled[i][k] = x->old[i][k] + 0.1f * (float)rng_normal(&r);
            x->ref[i][k] = x->logp[i][k] - 0.5f + 0.2f * (float)rng_normal(&r);
        }
        x->d[i].old = x->old[i];
        x->d[i].sampled = x->sampled[i];
        x->d[i].ref = x->ref[i];
    }
}

/* All weights, LoRA, LoRA with a part for the head, which is the embedding table, LoRA over a base of bfloat16. */
enum { MODEL_FULL, MODEL_LORA, MODEL_HEAD, MODEL_BF16, MODELS };
static struct model *open_model(int kind) {
    if (kind == MODEL_FULL || kind == MODEL_LORA) return tiny_model(1, kind == MODEL_LORA);
    struct model *m = kind == MODEL_HEAD ? tiny_model(1, false) : NULL;
    int n;
    if (!m) CHECK(model_init(tiny_config, 1, &(struct model_options){.dtype = "bf16"}, test_backend(), &m, &err));
    CHECK(model_lora_create(m, &(struct adapter_shape){2, 4.0f, kind == MODEL_HEAD ? 7 : 0, 0}, 1, &err));
    CHECK(model_train_prepare(m, TRAIN_LORA, &err));
    assert_string_equal(model_dtype(m), kind == MODEL_HEAD ? "f32" : "bf16");
    const struct param *p = model_params(m, &n);
    for (int i = 0; i < n; i++) {
        struct rng r = rng_make(1, (uint64_t)i);
        for (int64_t k = 0; k < p[i].n; k++) p[i].w[k] += 0.1f * (float)rng_normal(&r);
    }
    model_params_changed(m);
    return m;
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
/* Where a parameter's gradient begins in the slab. */
static int64_t place(struct model *m, const struct param *p) {
    int64_t n;
    return p->g - model_grad_slab(m, &n);
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

static double loss_of(struct trainer *t, const struct loss_params *p, const struct datum *d) {
    struct train_stats s = {0};
    CHECK(train_accumulate(t, &(struct train_call){.loss = *p}, d, TEXTS, &s, &err));
    train_forget(t);
    return s.loss.loss;
}

/* The gradient of every fourth tensor, from the first-th on, against differences along a random direction in it. Where
 * the direction is across the gradient, the tolerance is that of the gradient's length. */
static void check_tensors(struct trainer *t, const struct loss_params *p, const struct datum *d, const char *what,
                          int first) {
    int n;
    const struct param *params = model_params(t->model, &n);
    struct train_stats s;
    (void)gradient_of(t, &(struct train_call){.loss = *p}, d, TEXTS, NULL, &s);
    float *g = slab_like(t->model), *w = slab_like(t->model), *moved = slab_like(t->model);
    for (int i = first % 4; i < n; i += 4) {
        const struct param *q = &params[i];
        struct rng r = rng_make(17, (uint64_t)i);
        const double h = 1e-3 * sqrt((double)q->n); /* a thousandth for every weight */
        double want = 0, length = 0, norm = 0, loss[2];
        (void)gradient_of(t, &(struct train_call){.loss = *p}, d, TEXTS, NULL, &s);
        model_grad_get(t->model, q, g);
        model_param_get(t->model, q, w);
        double *u = xcalloc((size_t)q->n, sizeof *u);
        for (int64_t k = 0; k < q->n; k++) norm += pow(u[k] = rng_normal(&r), 2);
        for (int side = 0; side < 2; side++) {
            for (int64_t k = 0; k < q->n; k++) moved[k] = w[k] + (float)((side ? -h : h) * u[k] / sqrt(norm));
            model_param_put(t->model, q, moved);
            model_params_changed(t->model);
            loss[side] = loss_of(t, p, d);
        }
        model_param_put(t->model, q, w);
        model_params_changed(t->model);
        for (int64_t k = 0; k < q->n; k++) {
            want += (double)g[k] * u[k] / sqrt(norm);
            length += pow((double)g[k], 2);
        }
        const double got = (loss[0] - loss[1]) / (2 * h);
        if (!(fabs(got - want) <= 3e-3 * sqrt(length) + 1e-4))
            fail_msg("%s, %s: slope %g, gradient %g", what, q->name, got, want);
        free(u);
    }
    free(g);
    free(w);
    free(moved);
}

/* Every loss of the list with every correction, and every estimator of the KL term. Ratios stay away from the clips'
 * corners: old is a little off the present log-probabilities, and clips are wide, but for CISPO, whose factor has no
 * gradient: there it is always at its bound. */
static void gradients_are_those_of_the_losses(void **state) {
    (void)state;
    static const char *const losses[] = {CHOICE_NAMES(LOSS_LIST)},
                             *const corrections[] = {CHOICE_NAMES(CORRECTION_LIST)},
                             *const kls[] = {CHOICE_NAMES(KL_LIST)};
    for (int kind = MODEL_FULL; kind <= MODEL_HEAD; kind++) {
        struct model *m = open_model(kind);
        struct trainer *t = open_trainer(m, 1 << 20);
        struct texts x;
        make_texts(&x);
        record(t, &x);
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
                check_tensors(t, &p, x.d, what, (int)(k + c));
            }
        for (size_t k = 0; k < ARRAY_LEN(kls); k++) {
            const struct loss_params p = {.kind = LOSS_IMPORTANCE_SAMPLING, .kl_coef = 0.7, .kl = (enum kl_estimator)k};
            check_slope(t, &p, x.d, kls[k]);
            check_tensors(t, &p, x.d, kls[k], (int)k);
        }
        trainer_close(t);
        model_free(m);
    }
}

/* What loss_grad (tested in loss_test.c) says about the texts: as likelihoods whose weights are the gradients, and the
 * statistics. */
static void as_likelihoods(struct model *m, const struct loss_params *p, const struct texts *x, struct datum *like,
                           float weights[TEXTS][LONGEST], struct train_stats *s) {
    for (int i = 0; i < TEXTS; i++) {
        const struct datum *d = &x->d[i];
        const int64_t R = d->end - d->begin;
        float logp[LONGEST], entropy[LONGEST], g[LONGEST];
        int32_t rows[LONGEST];
        for (int64_t r = 0; r < R; r++) rows[r] = (int32_t)(d->begin + r);
        const struct segment seg = {0, d->n, -1, ADAPTER_OWN};
        const struct train_batch b = {d->ids, d->n, &seg, 1, rows, d->targets, R, true};
        CHECK(model_forward(m, &b, logp, entropy, NULL, &err));
        const struct loss_sequence q = {.n = R,
                                        .logp = logp,
                                        .old = d->old ? d->old : d->sampled,
                                        .sampled = d->sampled,
                                        .ref = p->kl_coef != 0 ? d->ref : NULL,
                                        .entropy = entropy,
                                        .adv = d->weights};
        loss_grad(p, &q, d->scale, g, &s->loss);
        for (int64_t r = 0; r < R; r++) {
            s->entropy += (double)entropy[r];
            weights[i][r] = -g[r];
        }
        like[i] = *d;
        like[i].weights = weights[i];
        like[i].scale = 1;
        like[i].likelihood = true;
        like[i].old = like[i].sampled = like[i].ref = NULL;
    }
}

static void assert_stats_equal(const struct train_stats *a, const struct train_stats *b, const char *what) {
    if (memcmp(&a->loss, &b->loss, sizeof a->loss) != 0 || a->entropy != b->entropy)
        fail_msg("%s: loss %.17g, expected %.17g; entropy %.17g, expected %.17g", what, b->loss.loss, a->loss.loss,
                 b->entropy, a->entropy);
}

/* Every loss, with every correction, every KL term and the entropy's, with clips and masks that bite: each token has
 * the weight that the loss's formula gives it for this datum's recorded log-probabilities, reference, weights and
 * scale, to the bit. */
static void tokens_weigh_what_the_loss_says(void **state) {
    (void)state;
    static const char *const losses[] = {CHOICE_NAMES(LOSS_LIST)},
                             *const corrections[] = {CHOICE_NAMES(CORRECTION_LIST)},
                             *const kls[] = {CHOICE_NAMES(KL_LIST)};
    enum { L = ARRAY_LEN(losses), C = ARRAY_LEN(corrections), KLS = ARRAY_LEN(kls) + 1 };
    double clipped = 0, masked = 0;
    for (int kind = 0; kind < MODELS; kind++) {
        struct model *m = open_model(kind);
        struct trainer *t = open_trainer(m, 1 << 20);
        float *want = slab_like(m), *got = slab_like(m), weights[TEXTS][LONGEST];
        int64_t n;
        struct texts x;
        (void)model_grad_slab(m, &n);
        make_texts(&x);
        record(t, &x);
        x.d[0].scale = 0.25;
        x.d[1].scale = -3;
        x.d[1].K = 1; /* as 0 is */
        for (int k = 0; k < L * C * KLS * 2; k++) {
            const int kl = k / (L * C) % KLS;
            const struct train_call c = {.loss = {.kind = (enum loss_kind)(k % L),
                                                  .clip_low = 0.05,
                                                  .clip_high = 0.08,
                                                  .clip_dual = 1.1,
                                                  .dro_beta = 0.3,
                                                  .correction = (enum ratio_correction)(k / L % C),
                                                  .correction_low = 0.97,
                                                  .correction_high = 1.06,
                                                  .kl_coef = !kl     ? 0
                                                             : k % 5 ? 0.6
                                                                     : -0.6, /* also as a reward */
                                                  .kl = (enum kl_estimator)(kl ? kl - 1 : 0),
                                                  .entropy_coef = k / (L * C * KLS) ? 0.2 : 0}};
            char what[160];
            snprintf(what, sizeof what, "model %d, %s, %s, KL %s, entropy %g", kind, losses[k % L],
                     corrections[k / L % C], kl ? kls[kl - 1] : "none", c.loss.entropy_coef);
            struct datum like[TEXTS];
            struct train_stats expected = {0}, s, none;
            x.d[2].old = k % 2 ? x.old[2] : NULL; /* then the sampler's are the update's */
            x.d[1].stale = k % 3;                 /* is for the on-policy check alone */
            as_likelihoods(m, &c.loss, &x, like, weights, &expected);
            (void)gradient_of(t, &c, like, TEXTS, want, &none);
            (void)gradient_of(t, &c, x.d, TEXTS, got, &s);
            assert_stats_equal(&expected, &s, what);
            assert_true(none.loss.n == 0 && none.loss.loss == 0 && none.entropy == 0 && none.rows == s.rows);
            if (memcmp(want, got, (size_t)n * sizeof *want) != 0) fail_msg("%s: another gradient", what);
            clipped += s.loss.clipped;
            masked += s.loss.masked;
        }
        free(want);
        free(got);
        trainer_close(t);
        model_free(m);
    }
    assert_true(clipped > 500 && masked > 500);
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
    /* The same as a datum of a prompt's kind, under whatever loss, among others. */
    x.d[1].likelihood = d.likelihood = true;
    struct datum all[] = {x.d[1], d};
    (void)gradient_of(t, &c, &x.d[1], 1, hard, &s);
    int64_t n;
    (void)model_grad_slab(m, &n);
    for (int64_t i = 0; i < n; i++) hard[i] += soft[i];
    (void)gradient_of(t, &(struct train_call){.loss = {.kind = LOSS_PPO, .kl_coef = 1, .entropy_coef = 1}}, all, 2,
                      soft, &s);
    assert_true(distance(m, soft, hard) < 1e-5 && s.loss.n == 0);
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

/* Whatever is found to be shared and however the texts are cut, the log-probabilities of train_forward and of
 * train_accumulate are, bit for bit, those of each text alone; among them texts whose prompt is all they have, or in
 * the middle of which they predict. */
static void log_probabilities_are_those_of_each_text_alone(void **state) {
    (void)state;
    enum { MANY = 9 };
    static const int64_t tokens[] = {1, 7, 11, 13, 20, 1 << 20};
    for (int kind = 0; kind < MODELS; kind++) {
        struct model *m = open_model(kind);
        struct trainer *t = open_trainer(m, 1);
        const struct train_call c = {.loss.kind = LOSS_CROSS_ENTROPY};
        struct texts x;
        float alone[MANY][LONGEST] = {{0}}, got[MANY][LONGEST];
        int64_t all = 0;
        make_texts(&x);
        struct datum d[MANY] = {x.d[0], x.d[1], x.d[0], x.d[0], x.d[2], x.d[1], x.d[1], x.d[2], x.d[2]};
        d[2].n = d[2].end = d[2].prompt; /* one token answers */
        d[3].begin = 2;                  /* predicts the end of its prompt as well */
        d[3].targets = x.ids[0] + 3;
        d[4].begin = d[4].prompt + 1; /* not all of its answer */
        d[4].end = d[4].n - 1;
        d[6].begin = 1; /* rows of its own, in which it predicts nothing */
        d[6].end = 3;
        d[7].prompt = 5; /* as long as its neighbour's and another one */
        d[8].prompt = d[8].n;
        for (int i = 0; i < MANY; i++) {
            d[i].logp = alone[i];
            CHECK(train_forward(t, m, ADAPTER_OWN, &d[i], 1, &err));
            d[i].logp = got[i];
            all += d[i].n;
        }
        for (size_t k = 0; k < ARRAY_LEN(tokens); k++) {
            struct train_stats s = {0};
            t->train_tokens = tokens[k];
            memset(got, 0, sizeof got);
            CHECK(train_forward(t, m, ADAPTER_OWN, d, MANY, &err));
            assert_memory_equal(got, alone, sizeof alone);
            memset(got, 0, sizeof got);
            CHECK(train_accumulate(t, &c, d, MANY, &s, &err));
            train_forget(t);
            assert_memory_equal(got, alone, sizeof alone);
            if (tokens[k] == 1) assert_int_equal(s.rows, all);
            if (tokens[k] == 1 << 20) assert_int_equal(s.rows, (5 + 3 + 4 + 3) + (7 + 5) + (5 + 4 + 4) + 12 + 12);
        }
        trainer_close(t);
        model_free(m);
    }
}

static void *(*backend_alloc)(struct backend *be, size_t bytes);
static int allocations_left;
static void *scarce_alloc(struct backend *be, size_t bytes) {
    return allocations_left-- > 0 ? backend_alloc(be, bytes) : NULL;
}

/* Memory that ends anywhere, in opening a trainer or in a call, is ST_MEMORY, and the work can be done again. */
static void memory_that_ends_is_an_error(void **state) {
    (void)state;
    struct backend *be = test_backend();
    const struct train_call c = {.loss.kind = LOSS_CROSS_ENTROPY};
    struct texts x;
    struct trainer *t;
    int opened = 0, accumulated = 0;
    make_texts(&x);
    backend_alloc = be->mem_alloc;
    be->mem_alloc = scarce_alloc;
    allocations_left = 1 << 20;
    struct model *m = tiny_model(1, true);
    for (int i = 0;; i++, opened++) {
        allocations_left = i;
        const enum status st = trainer_open(test_comm(), m, ADAPTER_OWN, 100, &t, &err);
        if (st == ST_OK) break;
        assert_int_equal(st, ST_MEMORY);
        assert_null(t);
    }
    struct train_stats s = {0};
    for (int i = 0;; i++, accumulated++) {
        allocations_left = i;
        const enum status st = train_accumulate(t, &c, x.d, TEXTS, &s, &err);
        if (st == ST_OK) break;
        assert_int_equal(st, ST_MEMORY);
        assert_non_null(strstr(err.msg, "; a train_tokens below 100 "));
        train_forget(t);
    }
    assert_true(opened >= 2 && accumulated >= 1);
    allocations_left = 0; /* the next call of this size needs no more */
    float *want = slab_like(m), *got = slab_like(m);
    (void)gradient(t, got);
    (void)gradient_of(t, &c, x.d, TEXTS, want, &s);
    int64_t n;
    (void)model_grad_slab(m, &n);
    assert_memory_equal(want, got, (size_t)n * sizeof *want);
    be->mem_alloc = backend_alloc;
    free(want);
    free(got);
    trainer_close(t);
    model_free(m);
}

/* A number that is none ends the step before anything has changed, and after it another one succeeds. */
static void what_is_not_finite_is_refused(void **state) {
    (void)state;
    struct model *m = tiny_model(1, false);
    struct trainer *t = open_trainer(m, 1 << 20);
    const struct train_call c = {.loss.kind = LOSS_CROSS_ENTROPY, .step = 7};
    const struct adamw_config adam = {.learning_rate = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    struct texts x;
    struct train_stats s = {0};
    int count;
    int64_t n;
    double norm;
    const struct param *p = model_params(m, &count);
    (void)model_grad_slab(m, &n);
    float *want = slab_like(m), *got = slab_like(m), *w = slab_like(m), *after = slab_like(m);
    make_texts(&x);
    (void)gradient_of(t, &c, x.d, TEXTS, want, &s);

    for (int i = 0; i < 2; i++) { /* a weight */
        model_param_get(m, &p[1], w);
        const float held = w[3];
        w[3] = i ? NAN : INFINITY;
        model_param_put(m, &p[1], w);
        model_params_changed(m);
        CHECK_FAILS(train_accumulate(t, &c, x.d, TEXTS, &s, &err), ST_FAILED,
                    "the log-probability of a token is not finite at optimizer step 7: ");
        assert_non_null(strstr(err.msg, p[1].name));
        train_forget(t);
        w[3] = held;
        model_param_put(m, &p[1], w);
        model_params_changed(m);
    }
    (void)gradient_of(t, &c, x.d, TEXTS, got, &s);
    assert_memory_equal(want, got, (size_t)n * sizeof *want);

    x.d[1].scale = 1e300; /* a factor that is finite, with a gradient that is not */
    const int64_t steps = t->opt->step;
    CHECK(train_accumulate(t, &c, x.d, TEXTS, &s, &err));
    for (int i = 0; i < count; i++) model_param_get(m, &p[i], w + place(m, &p[i]));
    float *moments = xmalloc((size_t)p[1].n * sizeof *moments);
    memcpy(moments, t->opt->m[1], (size_t)p[1].n * sizeof *moments);
    CHECK_FAILS(train_optimizer_step(t, &adam, 0, 7, &norm, &err), ST_FAILED,
                "the gradient is not finite at optimizer step 7: gradient of ");
    CHECK_FAILS(train_optimizer_step(t, &adam, 1, 8, &norm, &err), ST_FAILED, "at optimizer step 8");
    for (int i = 0; i < count; i++) model_param_get(m, &p[i], after + place(m, &p[i]));
    assert_memory_equal(w, after, (size_t)n * sizeof *w);
    assert_memory_equal(moments, t->opt->m[1], (size_t)p[1].n * sizeof *moments);
    assert_int_equal(t->opt->step, steps);
    train_forget(t);
    x.d[1].scale = 1;
    (void)gradient_of(t, &c, x.d, TEXTS, got, &s);
    assert_memory_equal(want, got, (size_t)n * sizeof *want);
    free(moments);
    free(want);
    free(got);
    free(w);
    free(after);
    trainer_close(t);
    model_free(m);
}

/* On-policy the sampler's log-probabilities are the trainer's to the bit, but for stale datums and likelihoods. */
static void samplers_are_held_to_their_word(void **state) {
    (void)state;
    struct model *m = tiny_model(1, true);
    struct trainer *t = open_trainer(m, 1 << 20);
    struct train_call c = {.loss.kind = LOSS_IMPORTANCE_SAMPLING, .on_policy = true, .exact = true};
    struct texts x;
    struct train_stats s = {0};
    make_texts(&x);
    CHECK(train_forward(t, m, ADAPTER_OWN, x.d, TEXTS, &err));
    for (int i = 0; i < TEXTS; i++) {
        memcpy(x.sampled[i], x.logp[i], sizeof x.logp[i]);
        x.d[i].sampled = x.sampled[i];
    }
    CHECK(train_accumulate(t, &c, x.d, TEXTS, &s, &err));
    assert_true(s.kl_before == 0 && s.loss.ratio == (double)s.loss.n && s.loss.ratio_max == 1);
    x.sampled[1][0] += 0.25f;
    CHECK_FAILS(train_accumulate(t, &c, x.d, TEXTS, &s, &err), ST_FAILED, "must agree bit for bit");
    for (int i = 0; i < 4; i++) { /* an error; a number; not asked for; stale; a likelihood */
        s = (struct train_stats){0};
        c.exact = i >= 2;
        c.on_policy = i != 1;
        x.d[1].stale = i == 2;
        x.d[1].likelihood = i == 3;
        train_forget(t);
        CHECK(train_accumulate(t, &c, x.d, TEXTS, &s, &err));
        if (fabs(s.kl_before - (i ? 0 : 0.25)) > 1e-6) fail_msg("case %d: %g", i, s.kl_before);
    }
    trainer_close(t);
    model_free(m);
}

/* The norm is that of the sum before clipping, weights move as the formula of AdamW says of the clipped gradient, and
 * the next gradient begins at zero. */
static void optimizer_steps_by_the_formula(void **state) {
    (void)state;
    const struct adamw_config adam = {
        .learning_rate = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 0.5, .weight_decay = 0.1};
    for (int lora = 0; lora < 2; lora++)
        for (int clip = 0; clip < 3; clip++) { /* none; more than the norm; less */
            struct model *m = tiny_model(1, lora);
            struct trainer *t = open_trainer(m, 1 << 20);
            const struct train_call c = {.loss.kind = LOSS_CROSS_ENTROPY};
            struct texts x;
            struct train_stats s = {0};
            int count;
            double sum = 0, norm;
            const struct param *p = model_params(m, &count);
            float *w = slab_like(m), *g = slab_like(m), *now = slab_like(m);
            make_texts(&x);
            (void)gradient_of(t, &c, x.d, TEXTS, g, &s); /* at rate 0 it leaves moments: a new trainer has none */
            trainer_close(t);
            t = open_trainer(m, 1 << 20);
            for (int i = 0; i < count; i++) {
                model_param_get(m, &p[i], w + place(m, &p[i]));
                for (int64_t k = 0; k < p[i].n; k++) sum += pow((double)g[place(m, &p[i]) + k], 2);
            }
            const double most = clip == 0   ? 0
                                : clip == 1 ? 2 * sqrt(sum)
                                            : 0.3,
                         scale = clip == 2 ? 0.3 / sqrt(sum) : 1;
            CHECK(train_accumulate(t, &c, x.d, TEXTS, &s, &err));
            CHECK(train_optimizer_step(t, &adam, most, 0, &norm, &err));
            assert_true(fabs(norm - sqrt(sum)) < 1e-6 * norm && norm > 0.6);
            assert_int_equal(t->opt->step, 1);
            for (int i = 0; i < count; i++) {
                model_param_get(m, &p[i], now);
                for (int64_t k = 0; k < p[i].n; k++) {
                    const int64_t at = place(m, &p[i]) + k;
                    const double before = w[at], d = scale * (double)g[at],
                                 decay = p[i].nd == 1 ? 0 : adam.weight_decay * before,
                                 want = before - adam.learning_rate * (d / (fabs(d) + adam.eps) + decay);
                    if (fabs((double)now[k] - want) > 1e-6 * (1 + fabs(want)))
                        fail_msg("%s[%lld]: %g, expected %g", p[i].name, (long long)k, (double)now[k], want);
                }
            }
            assert_true(gradient(t, now) == 0); /* nothing is left for the next one */
            (void)gradient_of(t, &c, x.d, TEXTS, now, &s);
            assert_true(distance(m, g, now) > 1e-4); /* and the forward pass uses the new weights */
            free(w);
            free(g);
            free(now);
            trainer_close(t);
            model_free(m);
        }
}

/* train_forward goes through the adapter and the model it is told to, and gradients do not notice; train_accumulate
 * changes the own adapter's gradient alone. */
static void forwards_through_other_adapters(void **state) {
    (void)state;
    struct model *m = tiny_model(1, true), *other = tiny_model(2, false);
    struct trainer *t = open_trainer(m, 1 << 20), *of_other = open_trainer(other, 1 << 20);
    const struct train_call c = {.loss.kind = LOSS_CROSS_ENTROPY};
    const struct adamw_config adam = {.learning_rate = 0.05, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    struct texts x;
    struct train_stats s = {0};
    float before[TEXTS][LONGEST], reference[TEXTS][LONGEST];
    int kept;
    int64_t n;
    double norm;
    make_texts(&x);
    CHECK(train_forward(of_other, other, ADAPTER_OWN, x.d, TEXTS, &err));
    memcpy(reference, x.logp, sizeof x.logp);
    CHECK(train_forward(t, m, ADAPTER_OWN, x.d, TEXTS, &err));
    memcpy(before, x.logp, sizeof x.logp);
    CHECK(model_lora_save(m, in_tmp("adapter"), &err));
    CHECK(model_adapter_load(m, in_tmp("adapter"), &kept, &err));
    CHECK(train_accumulate(t, &c, x.d, TEXTS, &s, &err));
    CHECK(train_optimizer_step(t, &adam, 0, 0, &norm, &err));
    CHECK(train_forward(t, m, ADAPTER_OWN, x.d, TEXTS, &err));
    assert_memory_not_equal(x.logp, before, sizeof before);

    float *want = slab_like(m), *got = slab_like(m);
    (void)model_grad_slab(m, &n);
    t->train_tokens = 1;
    (void)gradient_of(t, &c, x.d, TEXTS, want, &s);
    for (int i = 0; i < TEXTS; i++) {
        CHECK(train_accumulate(t, &c, &x.d[i], 1, &s, &err));
        t->train_tokens = 1 << 20;
        CHECK(train_forward(t, m, kept, x.d, TEXTS, &err));
        assert_memory_equal(x.logp, before, sizeof before);
        CHECK(train_forward(t, other, ADAPTER_BASE, x.d, TEXTS, &err));
        assert_memory_equal(x.logp, reference, sizeof reference);
        t->train_tokens = 1;
    }
    (void)gradient(t, got);
    assert_memory_equal(want, got, (size_t)n * sizeof *want);
    CHECK(train_forward(t, m, kept, x.d, TEXTS, &err));
    assert_memory_equal(x.logp, before, sizeof before);
    free(want);
    free(got);
    trainer_close(t);
    trainer_close(of_other);
    model_free(m);
    model_free(other);
}

/* Datums that predict inside their prompt alone, but go on behind it, take rows, and these are bounded, too. */
static void rows_that_predict_nothing_are_bounded(void **state) {
    (void)state;
    struct model *m = tiny_model(1, true);
    struct trainer *t = open_trainer(m, 20);
    const struct train_call c = {.loss.kind = LOSS_CROSS_ENTROPY};
    struct texts x;
    struct train_stats s = {0};
    struct datum d[20];
    make_texts(&x);
    for (int i = 0; i < 20; i++) {
        d[i] = x.d[1];
        d[i].begin = 1;
        d[i].end = 3;
    }
    CHECK(train_accumulate(t, &c, d, 20, &s, &err));
    assert_int_equal(s.rows, 7 * 5 + 20 * 4); /* a prompt of 5, and three times 4 beside it */
    trainer_close(t);
    model_free(m);
}

static void count_border(void *ctx) { ++*(int *)ctx; }

/* The border is called once before every micro-batch, of calls with and without a gradient. */
static void borders_lie_before_micro_batches(void **state) {
    (void)state;
    static const struct {
        int64_t tokens;
        int borders;
    } rows[] = {{1, 3}, {11, 3}, {12, 2}, {23, 2}, {24, 1}}; /* texts of 8, 9 (with one prompt of 5) and 12 rows */
    struct model *m = tiny_model(1, true);
    struct trainer *t = open_trainer(m, 1);
    struct texts x;
    struct train_stats s = {0};
    int borders;
    make_texts(&x);
    t->border = count_border;
    t->border_ctx = &borders;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        for (int forward = 0; forward < 2; forward++) {
            borders = 0;
            t->train_tokens = rows[i].tokens;
            CHECK(forward ? train_forward(t, m, ADAPTER_OWN, x.d, TEXTS, &err)
                          : train_accumulate(t, &(struct train_call){.loss.kind = LOSS_CROSS_ENTROPY}, x.d, TEXTS, &s,
                                             &err));
            assert_int_equal(borders, rows[i].borders);
        }
    trainer_close(t);
    model_free(m);
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

/* The ways in which datum 1 can be bad; the first NO_FORWARD ones are so for train_forward as well. */
#define BAD_LIST(X)                                                                                                   \
    X(ce, d->n = 0, "datum 1 has no tokens")                                                                          \
    X(ce, d->n = -3, "datum 1 has no tokens")                                                                         \
    X(ce, d->n = 1025, "datum 1 has 1025 tokens, the model takes 1024")                                               \
    X(ce, d->prompt = 0, "datum 1: the prompt has 0 of 9 tokens, expected 1 to all of them")                          \
    X(ce, d->prompt = 10, "datum 1: the prompt has 10 of 9 tokens, expected 1 to all of them")                        \
    X(ce, d->begin = d->end, "datum 1: rows 9 to 9 predict, of 9; expected at least one")                             \
    X(ce, d->begin = -1, "datum 1: rows -1 to 9 predict, of 9; expected at least one")                                \
    X(ce, d->end = 10, "datum 1: rows 4 to 10 predict, of 9; expected at least one")                                  \
    X(ce, x.ids[1][2] = -1, "datum 1: token 2 is -1, expected 0 to 271")                                              \
    X(ce, x.ids[1][8] = TINY_V, "datum 1: token 8 is 272, expected 0 to 271")                                         \
    X(ce, x.ids[1][9] = TINY_V, "datum 1: target 4 is 272, expected 0 to 271")                                        \
    X(ce, (d->targets = many, d->K = 2, many[9] = -7), "datum 1: target 9 is -7, expected 0 to 271")                  \
    X(ce, d->weights = NULL, "datum 1: a weight or the scale is missing or not finite")                               \
    X(ce, x.weights[1][4] = NAN, "datum 1: a weight or the scale is missing or not finite")                           \
    X(ce, x.weights[1][0] = INFINITY, "datum 1: a weight or the scale is missing or not finite")                      \
    X(ce, (d->likelihood = true, x.weights[1][0] = NAN), "datum 1: a weight or the scale is missing or not finite")   \
    X(ce, d->scale = INFINITY, "datum 1: a weight or the scale is missing or not finite")                             \
    X(ce, (d->targets = many, d->K = 2, x.weights[1][9] = NAN), "datum 1: a weight or the scale is missing")          \
    X(ce, (d->old = x.old[1], x.old[1][4] = NAN), "datum 1: a recorded log-probability is not finite")                \
    X(ce, (d->sampled = x.old[1], x.old[1][0] = -INFINITY), "datum 1: a recorded log-probability is not finite")      \
    X(kl, (d->ref = x.ref[1], x.ref[1][1] = NAN), "datum 1: a recorded log-probability is not finite")                \
    X(kl, d->ref = NULL, "datum 1: a KL term needs the reference's log-probabilities")                                \
    X(ce, (d->targets = many, d->K = 2, d->sampled = x.old[1]), "datum 1 has 2 targets a row, which cross_entropy")   \
    X(ce, (d->targets = many, d->K = 2, d->old = x.old[1]), "datum 1 has 2 targets a row, which cross_entropy takes") \
    X(kl, (d->targets = many, d->K = 2), "datum 1 has 2 targets a row, which cross_entropy takes, without KL")        \
    X(entropy, (d->targets = many, d->K = 2), "datum 1 has 2 targets a row, which cross_entropy takes, without KL")
enum { NO_FORWARD = 12 };

/* A refused call has done nothing: no log-probability, no statistic, no gradient, and the calls before it count. */
/* The history after one call and one step, in which one thing may be another. */
static uint64_t history(int other) {
    static struct texts x;
    const struct train_call call = {.loss = {.kind = LOSS_CROSS_ENTROPY, .kl_coef = 0}};
    struct adamw_config adam = {.learning_rate = other == 1 ? 2e-3 : 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    struct train_stats stats = {0};
    double norm;
    struct model *m = open_model(MODEL_LORA);
    struct trainer *t = open_trainer(m, other == 2 ? 20 : 1000);
    make_texts(&x);
    if (other == 3) x.ids[2][1] ^= 1;
    if (other == 4) x.weights[1][0] += 1e-6f;
    if (other == 5) x.d[0].scale = 0.5;
    CHECK(train_accumulate(t, &call, x.d, other == 6 ? 2 : TEXTS, &stats, &err));
    CHECK(train_optimizer_step(t, &adam, other == 7 ? 0 : 1, 0, &norm, &err));
    const uint64_t h = t->history;
    trainer_close(t);
    model_free(m);
    return h;
}

static void histories_tell_what_was_trained(void **state) {
    (void)state;
    const uint64_t h = history(0);
    assert_true(h == history(0) && h != 0);
    for (int other = 1; other <= 7; other++) assert_true(history(other) != h);
}

static void bad_datums_are_refused(void **state) {
    (void)state;
    struct model *m = tiny_model(1, false);
    struct trainer *t = open_trainer(m, 1 << 20);
    const struct train_call ce = {.loss.kind = LOSS_CROSS_ENTROPY},
                            kl = {.loss = {.kind = LOSS_CROSS_ENTROPY, .kl_coef = 1}},
                            entropy = {.loss = {.kind = LOSS_CROSS_ENTROPY, .entropy_coef = 1}};
    struct texts x, good;
    struct datum *d = &x.d[1];
    int32_t many[2 * LONGEST];
    struct train_stats s;
    int64_t n;
    int at = 0;
    (void)model_grad_slab(m, &n);
    float *want = slab_like(m), *got = slab_like(m);
    make_texts(&good);
    (void)gradient_of(t, &ce, good.d, TEXTS, want, &s);
    const struct train_stats before = s;
    CHECK(train_accumulate(t, &ce, good.d, TEXTS, &s, &err)); /* the refused calls come behind it */
    s = before;
#define REFUSED(call, change, message)                                                                         \
    make_texts(&x);                                                                                            \
    for (int i = 0; i < TEXTS; i++) x.d[i].ref = x.ref[i];                                                     \
    memset(many, 0, sizeof many);                                                                              \
    (void)(change);                                                                                            \
    CHECK_FAILS(train_accumulate(t, &(call), x.d, TEXTS, &s, &err), ST_INVALID, message);                      \
    assert_memory_equal(&s, &before, sizeof s);                                                                \
    if (at < NO_FORWARD) CHECK_FAILS(train_forward(t, m, ADAPTER_OWN, x.d, TEXTS, &err), ST_INVALID, message); \
    for (int i = 0; i < TEXTS * LONGEST; i++) assert_true(x.logp[i / LONGEST][i % LONGEST] == 0);              \
    if (at++ >= NO_FORWARD && d->weights) CHECK(train_forward(t, m, ADAPTER_OWN, x.d, TEXTS, &err));
    BAD_LIST(REFUSED)
#undef REFUSED
    /* Every loss but the likelihoods needs to know who sampled, and none of those takes several targets a row. */
    static const char *const losses[] = {CHOICE_NAMES(LOSS_LIST)};
    for (size_t k = 0; k < ARRAY_LEN(losses); k++) {
        const struct train_call c = {.loss.kind = (enum loss_kind)k};
        char message[100];
        if (k == LOSS_CROSS_ENTROPY || k == LOSS_REINFORCE) continue;
        make_texts(&x);
        for (int i = 0; i < TEXTS; i++) x.d[i].sampled = i == 2 ? NULL : x.sampled[i];
        snprintf(message, sizeof message, "datum 2: the loss %s needs the sampler's log-probabilities", losses[k]);
        CHECK_FAILS(train_accumulate(t, &c, x.d, TEXTS, &s, &err), ST_INVALID, message);
        x.d[2].targets = many;
        x.d[2].K = 2;
        CHECK_FAILS(train_accumulate(t, &c, x.d, TEXTS, &s, &err), ST_INVALID, "datum 2 has 2 targets a row");
    }
    assert_memory_equal(&s, &before, sizeof s);
    (void)gradient(t, got);
    assert_memory_equal(want, got, (size_t)n * sizeof *want);
    (void)gradient_of(t, &ce, good.d, TEXTS, got, &s);
    assert_memory_equal(want, got, (size_t)n * sizeof *want);
    free(want);
    free(got);
    trainer_close(t);
    model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_those_of_the_losses),
        cmocka_unit_test(tokens_weigh_what_the_loss_says),
        cmocka_unit_test(entropy_has_the_gradient_of_its_score),
        cmocka_unit_test(soft_targets_are_sums_of_hard_ones),
        cmocka_unit_test(leaves_add_up_in_their_order),
        cmocka_unit_test(sharing_changes_no_log_probability),
        cmocka_unit_test(prompts_are_learned_once),
        cmocka_unit_test(log_probabilities_are_those_of_each_text_alone),
        cmocka_unit_test(forwards_through_other_adapters),
        cmocka_unit_test(rows_that_predict_nothing_are_bounded),
        cmocka_unit_test(borders_lie_before_micro_batches),
        cmocka_unit_test(optimizer_steps_by_the_formula),
        cmocka_unit_test(samplers_are_held_to_their_word),
        cmocka_unit_test(what_is_not_finite_is_refused),
        cmocka_unit_test(memory_that_ends_is_an_error),
        cmocka_unit_test(histories_tell_what_was_trained),
        cmocka_unit_test(bad_datums_are_refused),
    };
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
