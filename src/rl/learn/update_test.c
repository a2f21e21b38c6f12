/* From groups to gradients: shared prompts, normalisers, masking, substeps, clipping, and what is refused. */
#include "rl/learn/update.h"

#include <math.h>

#include "engine/engine.h"
#include "rl/rollout/curriculum.h"
#include "rl/test_util.h"

/* learning_rate 0: the weights stay, and the gradient of the last substep can be looked at afterwards. */
static const struct train_options base = {.rollout.max_tokens = 8,
                                          .update = {.loss.kind = LOSS_REINFORCE,
                                                     .loss_norm = NORM_TOKENS,
                                                     .num_substeps = 1,
                                                     .train_tokens = 1 << 20,
                                                     .adam = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8}}};

/* Group of n samples of length 3, 4, ... under one prompt; no recorded log-probabilities. */
static struct sample_group make_group(uint64_t seed, int n_prompt, int n) {
    struct sample_group g = {.n = n, .ep = xcalloc((size_t)n, sizeof *g.ep)};
    struct rng r = rng_make(seed, 1);
    for (int i = 0; i < n_prompt; i++) ids_add(&g.prompt, (int32_t)rng_below(&r, TINY_V));
    for (int j = 0; j < n; j++) {
        struct sample *s = &g.ep[j].sample;
        s->n = 3 + j;
        s->ids = xmalloc((size_t)s->n * sizeof *s->ids);
        for (int t = 0; t < s->n; t++) s->ids[t] = (int32_t)rng_below(&r, TINY_V);
        g.ep[j].present = true;
        g.ep[j].advantage = 1 - 0.7 * j;
    }
    return g;
}

/* One group a sample, each with its own copy of the prompt. */
static void split_group(const struct sample_group *g, struct sample_group *out) {
    for (int j = 0; j < g->n; j++) {
        out[j] = (struct sample_group){.n = 1, .ep = xcalloc(1, sizeof *out[j].ep)};
        for (size_t i = 0; i < g->prompt.len; i++) ids_add(&out[j].prompt, g->prompt.p[i]);
        out[j].ep[0] = g->ep[j];
        struct sample *s = &out[j].ep[0].sample;
        s->ids = xmalloc((size_t)s->n * sizeof *s->ids);
        memcpy(s->ids, g->ep[j].sample.ids, (size_t)s->n * sizeof *s->ids);
    }
}

struct flat { /* all gradients or weights in one array */
    float *p;
    int64_t n;
};
static struct flat flatten(struct model *m, bool gradients) {
    int n;
    const struct param *p = model_params(m, &n);
    struct flat f = {0};
    for (int i = 0; i < n; i++) f.n += p[i].n;
    f.p = xmalloc((size_t)f.n * sizeof *f.p);
    for (int64_t i = 0, at = 0; i < n; at += p[i++].n)
        memcpy(f.p + at, gradients ? p[i].g : p[i].w, (size_t)p[i].n * sizeof *f.p);
    return f;
}

/* |a - scale b| over |a|. */
static double distance(struct flat a, struct flat b, double scale) {
    double diff = 0, norm = 0;
    assert_int_equal(a.n, b.n);
    for (int64_t i = 0; i < a.n; i++) {
        double d = (double)a.p[i] - scale * (double)b.p[i];
        diff += d * d;
        norm += (double)a.p[i] * (double)a.p[i];
    }
    assert_true(norm > 0);
    return sqrt(diff / norm);
}

static struct flat gradient(struct model *m, const struct train_options *o, struct sample_group *g, int n,
                            struct update_stats *stats) {
    struct trainer *t;
    CHECK(trainer_open(test_comm(), m, ADAPTER_OWN, base.update.train_tokens, &t, &err));
    int64_t opt_step = 0;
    CHECK(update_policy(t, NULL, o, NULL, g, n, &opt_step, stats, &err));
    trainer_close(t);
    return flatten(m, true);
}

static void shared_prompt_gives_the_same_gradient(void **state) {
    (void)state;
    for (int lora = 0; lora < 2; lora++) {
        struct model *m = tiny_model(1, lora);
        struct sample_group g = make_group(5, 9, 3), apart[3];
        split_group(&g, apart);
        struct update_stats one, many, micro;
        struct train_options small = base;
        small.update.train_tokens = 1; /* a micro-batch for every group */
        struct flat a = gradient(m, &base, &g, 1, &one), b = gradient(m, &base, apart, 3, &many),
                    c = gradient(m, &small, apart, 3, &micro);
        assert_true(distance(a, b, 1) == 0); /* the trainer finds the prompt that they share */
        assert_true(distance(a, c, 1) < 1e-5);
        /* A group larger than a micro-batch is cut between its samples: here after the second. */
        small.update.train_tokens = 9 + 2 + 3;
        struct update_stats cut;
        struct flat d = gradient(m, &small, &g, 1, &cut);
        assert_true(distance(a, d, 1) < 1e-5);
        assert_int_equal(cut.rows, 2 * 9 + 2 + 3 + 4);
        assert_int_equal(cut.groups_trained, 1);
        free(d.p);
        assert_int_equal(one.rows, 9 + 2 + 3 + 4); /* the last token of a sample predicts nothing */
        assert_int_equal(many.rows, one.rows);
        assert_int_equal(micro.rows, 3 * 9 + 2 + 3 + 4);
        assert_int_equal(one.loss.n, 3 + 4 + 5);
        assert_true(fabs(one.loss.loss - many.loss.loss) < 1e-4 && fabs(one.entropy - micro.entropy) < 1e-4);
        assert_int_equal(one.groups_trained, 1);
        assert_int_equal(many.groups_trained, 3);
        free(a.p);
        free(b.p);
        free(c.p);
        groups_free(&g, 1);
        groups_free(apart, 3);
        model_free(m);
    }
}

static struct {
    void (*embed)(struct backend *be, struct tensor x, const struct weight *table, const int32_t *ids);
    int64_t most;
    int passes;
} seen;
static void counted_embed(struct backend *be, struct tensor x, const struct weight *table, const int32_t *ids) {
    if (x.rows > seen.most) seen.most = x.rows;
    seen.passes++;
    seen.embed(be, x, table, ids);
}

/* Of six samples of 2 to 7 rows five would fit beside a prompt of 9: they are cut into four and two. */
static void a_group_is_cut_evenly(void **state) {
    (void)state;
    struct model *m = tiny_model(1, true);
    struct sample_group g = make_group(5, 9, 6);
    struct train_options o = base;
    struct update_stats s;
    struct backend *be = test_backend();
    o.update.train_tokens = 9 + 2 + 3 + 4 + 5 + 6;
    seen.embed = be->embed;
    seen.most = seen.passes = 0;
    be->embed = counted_embed;
    free(gradient(m, &o, &g, 1, &s).p);
    be->embed = seen.embed;
    assert_int_equal(seen.passes, 2);
    assert_int_equal(seen.most, 9 + 2 + 3 + 4 + 5);
    assert_int_equal(s.rows, 2 * 9 + 2 + 3 + 4 + 5 + 6 + 7);
    groups_free(&g, 1);
    model_free(m);
}

/* The gradient is that of sum A logp over the normaliser: against finite differences of the loss along the gradient. */
static void gradient_is_that_of_the_loss(void **state) {
    (void)state;
    struct model *m = tiny_model(1, false);
    struct sample_group g = make_group(5, 4, 2);
    struct update_stats s, up, down;
    struct flat grad = gradient(m, &base, &g, 1, &s);
    double norm = s.grad_norm, h = 1e-2 / norm;
    int n;
    const struct param *p = model_params(m, &n);
    for (int side = 0; side < 2; side++) {
        double step = side ? -2 * h : h;
        for (int64_t i = 0, at = 0; i < n; at += p[i++].n)
            for (int64_t k = 0; k < p[i].n; k++) p[i].w[k] += (float)(step / norm * (double)grad.p[at + k]);
        model_params_changed(m);
        free(gradient(m, &base, &g, 1, side ? &down : &up).p);
    }
    double slope = (up.loss.loss - down.loss.loss) / (double)s.loss.n / (2 * h);
    if (fabs(slope - norm) > 0.01 * norm) fail_msg("slope %g, gradient norm %g", slope, norm);
    free(grad.p);
    groups_free(&g, 1);
    model_free(m);
}

static void normalisers(void **state) {
    (void)state;
    struct model *m = tiny_model(1, false);
    struct sample_group g = make_group(5, 6, 1); /* one sample of 3 tokens */
    struct train_options o = base;
    struct update_stats s;
    struct flat tokens = gradient(m, &o, &g, 1, &s);
    o.update.loss_norm = NORM_SEQUENCES;
    struct flat sequences = gradient(m, &o, &g, 1, &s);
    o.update.loss_norm = NORM_CONSTANT;
    struct flat constant = gradient(m, &o, &g, 1, &s);
    assert_true(distance(tokens, sequences, 1) < 1e-6);
    assert_true(distance(tokens, constant, 8.0 / 3) < 1e-6); /* max_tokens 8 for 3 */
    free(sequences.p);
    free(constant.p);
    groups_free(&g, 1);

    /* Two samples of 3 and 4 tokens: 7 tokens, or each its own mean. The first alone has weight 3/7, or 1/2. */
    struct sample_group two = make_group(5, 6, 2);
    two.ep[1].advantage = 1e-12; /* takes part, weighs nothing */
    struct flat t2 = gradient(m, &base, &two, 1, &s);
    o.update.loss_norm = NORM_SEQUENCES;
    struct flat s2 = gradient(m, &o, &two, 1, &s);
    assert_true(distance(t2, s2, 6.0 / 7) < 1e-5);
    free(t2.p);
    free(s2.p);
    free(tokens.p);
    groups_free(&two, 1);
    model_free(m);
}

static void who_takes_part(void **state) {
    (void)state;
    struct model *m = tiny_model(1, false);
    struct sample_group g = make_group(5, 6, 3), alone = make_group(5, 6, 1);
    struct train_options o = base;
    struct update_stats s;
    g.ep[1].sample.stop = STOP_LENGTH;
    g.ep[2].present = false; /* never judged */
    struct flat want = gradient(m, &o, &alone, 1, &s);
    struct flat kept = gradient(m, &o, &g, 1, &s);
    assert_int_equal(s.loss.n, 3 + 4);
    assert_true(distance(want, kept, 1) > 0.1);
    o.update.mask_truncated = true;
    struct flat masked = gradient(m, &o, &g, 1, &s);
    assert_int_equal(s.loss.n, 3);
    assert_int_equal(s.rows, 6 + 2);
    assert_true(distance(want, masked, 1) == 0);
    free(want.p);
    free(kept.p);
    free(masked.p);

    /* Nothing left: no step, and the weights stay. */
    g.ep[0].advantage = 0;
    o.update.adam.learning_rate = 0.1;
    struct trainer *t;
    CHECK(trainer_open(test_comm(), m, ADAPTER_OWN, base.update.train_tokens, &t, &err));
    struct flat before = flatten(m, false);
    int64_t opt_step = 4;
    CHECK(update_policy(t, NULL, &o, NULL, &g, 1, &opt_step, &s, &err));
    struct flat after = flatten(m, false);
    assert_memory_equal(before.p, after.p, (size_t)before.n * sizeof(float));
    assert_int_equal(opt_step, 4);
    assert_int_equal(t->opt->step, 0);
    assert_int_equal(s.groups_trained, 0);
    free(before.p);
    free(after.p);
    trainer_close(t);
    groups_free(&g, 1);
    groups_free(&alone, 1);
    model_free(m);
}

static struct flat train(int substeps, int calls, struct update_stats *s, int64_t *opt_step) {
    struct model *m = tiny_model(1, false);
    struct train_options o = base;
    o.update.num_substeps = substeps;
    o.update.adam.learning_rate = 0.01;
    o.warmup_steps = 3;
    o.update.adam.weight_decay = 0.1;
    struct sample_group g[4];
    for (int i = 0; i < 4; i++) g[i] = make_group(20 + (uint64_t)i, 5, 2);
    struct trainer *t;
    CHECK(trainer_open(test_comm(), m, ADAPTER_OWN, base.update.train_tokens, &t, &err));
    *opt_step = 0;
    struct rng r = rng_make(0, UINT64_C(0x6d696e6900000000)); /* as update_policy shuffles before its first step */
    if (calls > 1) rng_shuffle(&r, g, 4, sizeof *g);
    for (int c = 0; c < calls; c++) {
        int begin = 4 * c / calls, end = 4 * (c + 1) / calls;
        CHECK(update_policy(t, NULL, &o, NULL, g + begin, end - begin, opt_step, s, &err));
        double want =
            o.update.adam.learning_rate * (double)i64_min(*opt_step, 3) / 3; /* warm-up counts optimizer steps */
        assert_true(fabs(s->learning_rate - want) < 1e-12);
    }
    assert_int_equal(t->opt->step, *opt_step);
    struct flat w = flatten(m, false);
    trainer_close(t);
    groups_free(g, 4);
    model_free(m);
    return w;
}

static void substeps_are_steps_of_their_own(void **state) {
    (void)state;
    struct update_stats s;
    int64_t steps;
    struct flat two = train(2, 1, &s, &steps);
    assert_int_equal(steps, 2);
    struct flat calls = train(1, 2, &s, &steps);
    assert_int_equal(steps, 2);
    assert_memory_equal(two.p, calls.p, (size_t)two.n * sizeof(float));
    struct flat many = train(64, 1, &s, &steps); /* no more than there are groups */
    assert_int_equal(steps, 4);
    assert_true(distance(two, many, 1) > 1e-4);
    free(two.p);
    free(calls.p);
    free(many.p);
}

static void clipping(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct model *m = tiny_model(1, false);
        struct sample_group g = make_group(5, 6, 2);
        struct train_options o = base;
        struct update_stats s;
        struct trainer *t;
        CHECK(trainer_open(test_comm(), m, ADAPTER_OWN, base.update.train_tokens, &t, &err));
        int64_t opt_step = 0;
        o.update.max_grad_norm = i ? 0.01 : 0;
        CHECK(update_policy(t, NULL, &o, NULL, &g, 1, &opt_step, &s, &err));
        assert_true(s.grad_norm > 0.01); /* reported as it was before clipping */
        double sum = 0;                  /* after one step the first moment is (1 - beta1) times the gradient */
        int count;
        const struct param *p = model_params(m, &count);
        for (int k = 0; k < count; k++)
            for (int64_t j = 0; j < p[k].n; j++) sum += (double)t->opt->m[k][j] * (double)t->opt->m[k][j];
        double want = i ? 0.01 : s.grad_norm;
        assert_true(fabs(sqrt(sum) / 0.1 / want - 1) < 1e-4);
        trainer_close(t);
        groups_free(&g, 1);
        model_free(m);
    }
}

/* ---- with the engine's own samples --------------------------------------------------------------------------------*/

static void sampled_groups(struct model *m, struct sample_group *g, int n) {
    struct engine *en;
    CHECK(engine_open(m, &(struct engine_options){.max_batch = 8}, &en, &err));
    for (int i = 0; i < n; i++) {
        g[i] = make_group(40 + (uint64_t)i, 5 + i, 3);
        struct sample s[3];
        struct request r = {.prompt = g[i].prompt.p,
                            .n_prompt = (int)g[i].prompt.len,
                            .n_samples = 3,
                            .id = (uint64_t)i,
                            .params = {.temperature = 1, .top_p = 1, .max_tokens = 6 + i, .seed = 1}};
        CHECK(engine_run(en, &r, 1, s, NULL, NULL, &err));
        for (int j = 0; j < 3; j++) {
            sample_free(&g[i].ep[j].sample);
            g[i].ep[j].sample = s[j];
        }
    }
    engine_close(en);
}

static void sampler_and_trainer_must_agree(void **state) {
    (void)state;
    for (int lora = 0; lora < 2; lora++) {
        struct model *m = tiny_model(1, lora);
        struct sample_group g[2];
        sampled_groups(m, g, 2);
        struct trainer *t;
        CHECK(trainer_open(test_comm(), m, ADAPTER_OWN, base.update.train_tokens, &t, &err));
        struct train_options o = base;
        o.update.loss.kind = LOSS_IMPORTANCE_SAMPLING;
        int64_t opt_step = 0;
        struct update_stats s;

        /* On policy every ratio is one, and the gradient is that of plain reinforce. */
        CHECK(update_policy(t, NULL, &o, NULL, g, 2, &opt_step, &s, &err));
        assert_true(s.kl_before == 0 && s.loss.k3 == 0);
        assert_true(s.loss.ratio == (double)s.loss.n);
        struct flat importance = flatten(m, true), plain = gradient(m, &base, g, 2, &s);
        assert_true(distance(importance, plain, 1) == 0);

        /* The least difference before any update stops the run, and nothing was stepped. */
        float *logp = &g[1].ep[2].sample.logp[1], was = *logp;
        *logp = nextafterf(was, 0);
        o.update.adam.learning_rate = 0.01;
        struct flat before = flatten(m, false);
        CHECK_FAILS(update_policy(t, NULL, &o, NULL, g, 2, &opt_step, &s, &err), ST_FAILED, "must agree bit for bit");
        assert_true(s.kl_before > 0 && s.kl_before < 1e-5);
        struct flat after = flatten(m, false);
        assert_memory_equal(before.p, after.p, (size_t)before.n * sizeof(float));
        assert_int_equal(opt_step, 1);
        /* numerics fast takes it, and says how far apart they were. */
        o.numerics = NUMERICS_FAST;
        o.update.adam.learning_rate = 0;
        CHECK(update_policy(t, NULL, &o, NULL, g, 2, &opt_step, &s, &err));
        assert_true(s.kl_before > 0 && s.loss.k3 > 0);
        assert_int_equal(opt_step, 2);
        o.numerics = NUMERICS_EXACT;
        o.update.adam.learning_rate = 0.01;
        *logp = was;

        /* The second substep is off policy, which is as it should be. */
        o.update.num_substeps = 2;
        CHECK(update_policy(t, NULL, &o, NULL, g, 2, &opt_step, &s, &err));
        assert_true(s.kl_before == 0 && s.loss.k3 > 0);
        assert_int_equal(opt_step, 4);
        /* And a batch of old samples is refused. */
        CHECK_FAILS(update_policy(t, NULL, &o, NULL, g, 2, &opt_step, &s, &err), ST_FAILED, "before any update");
        free(importance.p);
        free(plain.p);
        free(before.p);
        free(after.p);
        trainer_close(t);
        groups_free(g, 2);
        model_free(m);
    }
}

static void a_gradient_that_is_no_number_is_refused(void **state) {
    (void)state;
    struct model *m = tiny_model(1, false);
    struct sample_group g = make_group(5, 6, 2);
    g.ep[0].advantage = 3e38; /* a number, but not behind the products */
    struct trainer *t;
    CHECK(trainer_open(test_comm(), m, ADAPTER_OWN, base.update.train_tokens, &t, &err));
    struct train_options o = base;
    o.update.adam.learning_rate = 0.01;
    int64_t opt_step = 8;
    struct update_stats s;
    struct flat before = flatten(m, false);
    CHECK_FAILS(update_policy(t, NULL, &o, NULL, &g, 1, &opt_step, &s, &err), ST_FAILED,
                "the gradient is not finite at optimizer step 8: gradient of ");
    struct flat after = flatten(m, false);
    assert_memory_equal(before.p, after.p, (size_t)before.n * sizeof(float));
    assert_int_equal(opt_step, 8);

    /* A weight that is no number shows in the log-probabilities, before there is a gradient. */
    g.ep[0].advantage = 1;
    int count;
    const struct param *p = model_params(m, &count);
    for (int i = 0; i < count; i++)
        if (strcmp(p[i].name, "model.layers.1.self_attn.o_proj.weight") == 0) p[i].w[3] = INFINITY;
    model_params_changed(m);
    CHECK_FAILS(update_policy(t, NULL, &o, NULL, &g, 1, &opt_step, &s, &err), ST_FAILED,
                "log-probability of a token is not finite at optimizer step 8: weight "
                "model.layers.1.self_attn.o_proj.weight: element 3 of 1024 is infinite");
    assert_int_equal(opt_step, 8);
    free(before.p);
    free(after.p);
    trainer_close(t);
    groups_free(&g, 1);
    model_free(m);
}

/* Steps of changing size in several micro-batches: after each was seen once, nothing more is taken from the system, and
 * what an earlier step left in the memory changes nothing. */
static void micro_batches_reuse_memory(void **state) {
    (void)state;
    struct model *m[2] = {tiny_model(1, true), tiny_model(1, true)};
    struct trainer *t[2];
    struct train_options o = base;
    o.update.adam.learning_rate = 0.01;
    o.update.train_tokens = 60;
    o.update.num_substeps = 2;
    for (int i = 0; i < 2; i++) CHECK(trainer_open(test_comm(), m[i], ADAPTER_OWN, 60, &t[i], &err));
    size_t bytes = 0;
    int64_t opt_step[2] = {0, 0};
    for (int step = 0; step < 16; step++) {
        struct sample_group g[6];
        const int n = 2 + step * 3 % 4;
        struct update_stats s[2];
        for (int i = 0; i < n; i++) g[i] = make_group((uint64_t)(step % 4 * 10 + i), 5 + 7 * i, 2 + step % 3);
        CHECK(update_policy(t[0], NULL, &o, NULL, g, n, &opt_step[0], &s[0], &err));
        CHECK(update_policy(t[1], NULL, &o, NULL, g, n, &opt_step[1], &s[1], &err));
        arena_free(&t[1]->datums);
        arena_free(&t[1]->parts);
        arena_free(&t[1]->micro);
        assert_true(s[0].loss.loss == s[1].loss.loss && s[0].grad_norm == s[1].grad_norm);
        const size_t now = arena_bytes(&t[0]->datums) + arena_bytes(&t[0]->parts) + arena_bytes(&t[0]->micro);
        if (step == 11) bytes = now; /* sizes repeat after twelve steps */
        if (step > 11) assert_int_equal(now, bytes);
        groups_free(g, n);
    }
    assert_true(bytes > 0);
    struct flat a = flatten(m[0], false), b = flatten(m[1], false);
    assert_memory_equal(a.p, b.p, (size_t)a.n * sizeof(float));
    free(a.p);
    free(b.p);
    for (int i = 0; i < 2; i++) {
        trainer_close(t[i]);
        model_free(m[i]);
    }
}

static void *no_alloc(struct backend *b, size_t bytes) {
    (void)b;
    fail_msg("%zu bytes of device memory were allocated in a step like the last", bytes);
    return NULL;
}

static void steps_allocate_nothing(void **state) {
    (void)state;
    struct backend *be = test_backend();
    void *(*const alloc)(struct backend *, size_t) = be->mem_alloc;
    for (int lora = 0; lora < 2; lora++) {
        struct model *m = tiny_model(1, lora);
        struct trainer *t;
        CHECK(trainer_open(test_comm(), m, ADAPTER_OWN, base.update.train_tokens, &t, &err));
        struct train_options o = base;
        o.update.adam.learning_rate = 0.01;
        o.update.train_tokens = 30; /* a micro-batch for each group */
        struct sample_group g[3];
        for (int i = 0; i < 3; i++) g[i] = make_group((uint64_t)i, 12 - i, 3);
        struct update_stats s;
        int64_t opt_step = 0;
        uint64_t before = 0;
        for (int step = 0; step < 4; step++) {
            if (step == 1) { /* what is kept has grown to its size */
                before = base_allocations();
                be->mem_alloc = no_alloc;
            }
            CHECK(update_policy(t, NULL, &o, NULL, g, 3, &opt_step, &s, &err));
        }
        be->mem_alloc = alloc;
        assert_int_equal(base_allocations(), before);
        groups_free(g, 3);
        trainer_close(t);
        model_free(m);
    }
}

/* ---- references, epochs, schedules --------------------------------------------------------------------------------*/

static struct flat gradient_from(struct model *m, const struct kl_reference *reference, const struct train_options *o,
                                 struct sample_group *g, int n, struct update_stats *stats) {
    struct trainer *t;
    CHECK(trainer_open(test_comm(), m, ADAPTER_OWN, base.update.train_tokens, &t, &err));
    int64_t opt_step = 0;
    CHECK(update_policy(t, reference, o, NULL, g, n, &opt_step, stats, &err));
    trainer_close(t);
    return flatten(m, true);
}

static struct flat gradient_against(struct model *m, struct model *reference, const struct train_options *o,
                                    struct sample_group *g, int n, struct update_stats *stats) {
    return gradient_from(m, &(struct kl_reference){reference, ADAPTER_OWN}, o, g, n, stats);
}

/* KL to another model, and the entropy's estimator, as terms of the loss: nothing but the KL is left when advantages
 * are zero, its gradient is that of the loss by differences, and it vanishes against the model itself. */
static void divergence_in_the_loss(void **state) {
    (void)state;
    struct model *m = tiny_model(1, false), *other = tiny_model(2, false);
    struct train_options o = base;
    o.update.loss.kind = LOSS_IMPORTANCE_SAMPLING;
    o.update.loss.kl_coef = 0.3;
    for (int kl = KL_K2; kl <= KL_K3; kl++) {
        o.update.loss.kl = kl;
        struct sample_group g[2];
        sampled_groups(m, g, 2);
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < g[i].n; j++) {
                g[i].ep[j].advantage = 0;
                g[i].ep[j].kept = true;
            }
        struct update_stats s, up, down;
        struct flat grad = gradient_against(m, other, &o, g, 2, &s);
        assert_true(s.loss.ref_kl > 0 && fabs(s.loss.loss - 0.3 * s.loss.ref_kl) < 1e-9);
        const double norm = s.grad_norm, h = 1e-2 / norm;
        int n;
        const struct param *p = model_params(m, &n);
        for (int i = 0; i < 2; i++) g[i].stale = 1; /* the weights are moved: no longer those that sampled */
        for (int side = 0; side < 2; side++) {
            const double step = side ? -2 * h : h;
            for (int64_t i = 0, at = 0; i < n; at += p[i++].n)
                for (int64_t k = 0; k < p[i].n; k++) p[i].w[k] += (float)(step / norm * (double)grad.p[at + k]);
            model_params_changed(m);
            free(gradient_against(m, other, &o, g, 2, side ? &down : &up).p);
        }
        const double slope = (up.loss.loss - down.loss.loss) / (double)s.loss.n / (2 * h);
        if (fabs(slope - norm) > 0.02 * norm) fail_msg("estimator %d: slope %g, gradient norm %g", kl, slope, norm);
        for (int64_t i = 0, at = 0; i < n; at += p[i++].n) /* back again */
            for (int64_t k = 0; k < p[i].n; k++) p[i].w[k] += (float)(h / norm * (double)grad.p[at + k]);
        model_params_changed(m);
        free(grad.p);
        groups_free(g, 2);
    }
    struct sample_group g[2];
    struct update_stats s;
    sampled_groups(m, g, 2);
    struct flat with = gradient_against(m, m, &o, g, 2, &s);
    assert_true(s.loss.ref_kl == 0);
    o.update.loss.kl_coef = 0;
    struct flat without = gradient_against(m, NULL, &o, g, 2, &s);
    assert_true(distance(with, without, 1) == 0);
    o.update.loss.entropy_coef = 0.1;
    struct flat bonus = gradient_against(m, NULL, &o, g, 2, &s);
    assert_true(distance(without, bonus, 1) > 1e-3);
    free(with.p);
    free(without.p);
    free(bonus.p);
    groups_free(g, 2);
    model_free(m);
    model_free(other);
}

/* With LoRA the reference needs no model of its own: the same rows without the adapter, or through another, have the
 * bits of a model that has none, or that one. */
static void divergence_from_adapters(void **state) {
    (void)state;
    struct model *m = tiny_model(1, true), *start = tiny_model(1, true), *bare = tiny_model(1, false);
    int n_params;
    const struct param *p = model_params(start, &n_params);
    for (int i = 0; i < n_params; i++)
        for (int64_t k = 0; k < p[i].n; k++) p[i].w[k] *= 0.5f;
    model_params_changed(start);
    CHECK(model_lora_save(start, in_tmp("start"), &err));
    int index;
    CHECK(model_adapter_load(m, in_tmp("start"), &index, &err));
    const struct kl_reference pairs[2][2] = {{{m, ADAPTER_BASE}, {bare, ADAPTER_OWN}},
                                             {{m, index}, {start, ADAPTER_OWN}}};
    struct train_options o = base;
    o.update.loss.kl_coef = 0.3;
    double kl[2];
    for (int k = 0; k < 2; k++) {
        struct flat grad[2];
        struct update_stats s[2];
        for (int i = 0; i < 2; i++) {
            struct sample_group g[2];
            sampled_groups(m, g, 2);
            grad[i] = gradient_from(m, &pairs[k][i], &o, g, 2, &s[i]);
            groups_free(g, 2);
        }
        assert_true(s[0].loss.ref_kl > 0 && s[0].loss.ref_kl == s[1].loss.ref_kl);
        assert_true(distance(grad[0], grad[1], 1) == 0);
        kl[k] = s[0].loss.ref_kl;
        free(grad[0].p);
        free(grad[1].p);
    }
    assert_true(kl[0] != kl[1]);
    model_free(m);
    model_free(start);
    model_free(bare);
}

/* KL in the reward: tokens that have become likelier than under the reference lose, against the mean over the batch;
 * with a discount they also answer for those behind them. */
static void divergence_in_the_reward(void **state) {
    (void)state;
    struct model *m = tiny_model(1, false), *other = tiny_model(2, false);
    for (int discounted = 0; discounted < 2; discounted++) {
        struct train_options o = base;
        o.update.loss.kind = LOSS_IMPORTANCE_SAMPLING;
        o.update.loss.kl_coef = 0.5;
        o.update.kl_penalty_in = KL_IN_REWARD;
        o.update.kl_discount_factor = discounted ? 0.5 : 0;
        struct sample_group g[2];
        struct update_stats s;
        sampled_groups(m, g, 2);
        free(gradient_against(m, other, &o, g, 2, &s).p);
        double mean = 0, total = 0, n = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < g[i].n; j++) {
                    const struct episode *ep = &g[i].ep[j];
                    if (ep->advantage == 0) continue;
                    double later = 0;
                    for (int t = ep->sample.n - 1; t >= 0; t--) {
                        const double d = (double)ep->sample.logp[t] - (double)ep->ref_logp[t];
                        if (pass == 0) {
                            mean += d;
                            n++;
                            continue;
                        }
                        later = mean / n - d + o.update.kl_discount_factor * later;
                        assert_true(fabs((double)ep->token_advantage[t] - (ep->advantage + 0.5 * later)) < 1e-4);
                        total += later;
                    }
                }
        assert_true(discounted || fabs(total) < 1e-4); /* nothing is given or taken on average */
        groups_free(g, 2);
    }
    model_free(m);
    model_free(other);
}

/* Samples, and nothing, as normalisers: 2 samples of 3 and 4 tokens. */
static void other_normalisers(void **state) {
    (void)state;
    struct model *m = tiny_model(1, false);
    struct sample_group g = make_group(5, 6, 2);
    struct train_options o = base;
    struct update_stats s;
    struct flat tokens = gradient(m, &o, &g, 1, &s);
    o.update.loss_norm = NORM_SAMPLES;
    struct flat samples = gradient(m, &o, &g, 1, &s);
    o.update.loss_norm = NORM_SUM;
    struct flat sum = gradient(m, &o, &g, 1, &s);
    assert_true(distance(sum, tokens, 7) < 1e-5);
    assert_true(distance(sum, samples, 2) < 1e-5);
    free(tokens.p);
    free(samples.p);
    free(sum.p);
    groups_free(&g, 1);
    model_free(m);
}

/* Two passes of two minibatches are four steps; stale samples are scored first, and weighed by what has become of them.
 */
static void epochs_and_stale_samples(void **state) {
    (void)state;
    struct model *m = tiny_model(1, false);
    struct train_options o = base;
    struct sample_group g[2];
    struct update_stats s;
    struct trainer *t;
    int64_t opt_step = 0;
    o.update.loss.kind = LOSS_IMPORTANCE_SAMPLING;
    o.update.update_epochs = o.update.num_substeps = 2;
    o.update.adam.learning_rate = 1e-3;
    sampled_groups(m, g, 2);
    CHECK(trainer_open(test_comm(), m, ADAPTER_OWN, base.update.train_tokens, &t, &err));
    CHECK(update_policy(t, NULL, &o, NULL, g, 2, &opt_step, &s, &err));
    assert_true(opt_step == 4 && s.optimizer_steps == 4 && s.loss.k3 > 0 && s.loss.ratio_max > 1);
    trainer_close(t);

    /* The weights have moved: as fresh samples these are refused, as stale ones they are compared with today's model.
     */
    o.update.update_epochs = o.update.num_substeps = 1;
    o.update.adam.learning_rate = 0;
    g[0].stale = g[1].stale = 1;
    struct flat plain = gradient(m, &o, g, 2, &s);
    assert_true(fabs(s.loss.ratio / (double)s.loss.n - 1) < 1e-6); /* to the model before the update */
    assert_true(s.loss.k3 > 0);                                    /* to the sampler */
    assert_non_null(g[0].ep[0].old_logp);
    o.update.loss.correction = CORRECT_TRUNCATE;
    o.update.loss.correction_high = 2;
    struct flat truncated = gradient(m, &o, g, 2, &s);
    assert_true(distance(plain, truncated, 1) > 1e-6);
    o.update.loss.correction = CORRECT_SEQUENCE_MASK;
    o.update.loss.correction_low = o.update.loss.correction_high = 1; /* nothing is exactly the same any more */
    struct flat masked = gradient(m, &o, g, 2, &s);
    assert_true(s.loss.masked == (double)s.loss.n && s.grad_norm == 0);
    free(plain.p);
    free(truncated.p);
    free(masked.p);
    groups_free(g, 2);
    model_free(m);
}

/* An advantage of its own for the first tokens: the gradient is the sum of both parts'. */
static void advantages_by_token(void **state) {
    (void)state;
    struct model *m = tiny_model(1, false);
    struct sample_group g = make_group(5, 6, 1);
    struct update_stats s;
    struct flat part[3];
    for (int i = 0; i < 3; i++) {
        const float adv[3][3] = {{2, 0, 0}, {0, -1, -1}, {2, -1, -1}};
        free(g.ep[0].token_advantage);
        g.ep[0].token_advantage = xmalloc(sizeof adv[i]);
        memcpy(g.ep[0].token_advantage, adv[i], sizeof adv[i]);
        part[i] = gradient(m, &base, &g, 1, &s);
    }
    for (int64_t k = 0; k < part[0].n; k++) part[0].p[k] += part[1].p[k];
    assert_true(distance(part[2], part[0], 1) < 1e-5);
    for (int i = 0; i < 3; i++) free(part[i].p);
    groups_free(&g, 1);
    model_free(m);
}

/* The rate of an optimizer step in a step of training that begins at this share of the run. */
static double rate(const struct train_options *o, double progress, int64_t opt_step) {
    const struct train_options now = schedule_at(o, progress);
    return update_learning_rate(&now, opt_step);
}

static void learning_rates(void **state) {
    (void)state;
    struct train_options o = {.update.adam.learning_rate = 2, .warmup_steps = 4, .min_lr_ratio = 0.1};
    assert_true(rate(&o, 0, 0) == 0.5 && rate(&o, 0, 4) == 2);
    assert_true(rate(&o, 0.5, 10) == 2); /* constant */
    o.lr_schedule = LR_LINEAR;
    assert_true(fabs(rate(&o, 0.5, 10) - 1.1) < 1e-12);
    o.lr_schedule = LR_COSINE;
    assert_true(fabs(rate(&o, 0.5, 10) - 1.1) < 1e-12);
    assert_true(fabs(rate(&o, 1, 10) - 0.2) < 1e-12);
    assert_true(fabs(rate(&o, 1, 1) - 0.1) < 1e-12); /* warming up at the same time */
}

/* Every algorithm by its name, from scores to the gradient, against weights worked out by hand: on-policy all of them
 * have the gradient of -sum over tokens of w log p. Three answers of 3, 4 and 5 tokens with scores 0.5, 1 and 3, whose
 * mean is 1.5 and variance 3.5/3. */
static void algorithms_by_hand(void **state) {
    (void)state;
    const double d[] = {-1, -0.5, 1.5}, z = sqrt(3 / 3.5), scores[] = {0.5, 1, 3};
    const struct {
        const char *name;
        double weight[3]; /* of each of an answer's tokens */
    } rows[] = {
        {"reinforce", {0.5 / 3, 1. / 3, 3. / 3}},                               /* scores, over answers */
        {"rloo", {1.5 * d[0] / 3, 1.5 * d[1] / 3, 1.5 * d[2] / 3}},             /* minus the mean of the others */
        {"grpo", {d[0] * z / (3 * 3), d[1] * z / (3 * 4), d[2] * z / (3 * 5)}}, /* each answer's mean */
        {"dr_grpo", {d[0] / (3 * 8), d[1] / (3 * 8), d[2] / (3 * 8)}},          /* over the longest answer */
        {"dapo", {d[0] * z / 12, d[1] * z / 12, d[2] * z / 12}},                /* over tokens */
        {"gspo", {d[0] * z / (3 * 3), d[1] * z / (3 * 4), d[2] * z / (3 * 5)}}, /* one ratio an answer */
        {"cispo", {d[0] * z / 12, d[1] * z / 12, d[2] * z / 12}},
        {"ppo", {d[0] * z / 12, d[1] * z / 12, d[2] * z / 12}}, /* the batch is the group here */
        {"importance_sampling", {d[0], d[1], d[2]}},            /* a sum */
        {"best_of_n", {0, 1. / 9, 1. / 9}},                     /* scores over 0.5 */
        {"reward_weighted", {0.5 / 12, 1. / 12, 3. / 12}},
        {"rejection_sampling", {0, 1. / 9, 1. / 9}},
    };
    struct model *m = tiny_model(1, false);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct train_options o, plain = base;
        struct config c;
        char assignment[64];
        config_init(&c, &train_schema, &o);
        snprintf(assignment, sizeof assignment, "algorithm=%s", rows[i].name);
        CHECK(config_set(&c, assignment, &err));
        CHECK(config_set(&c, "max_tokens=8", &err));
        CHECK(train_options_finish(&c, &o, &err));
        o.update.adam.learning_rate = 0;
        o.update.update_epochs = 1;
        struct advantage_sample s[3];
        for (int j = 0; j < 3; j++) s[j] = (struct advantage_sample){.present = true, .score = scores[j]};
        double baseline = NAN;
        assert_int_equal(advantage_batch(&o.advantage, s, 3, 1, &baseline), 0);
        struct sample_group g = make_group(5, 4, 3);
        for (int j = 0; j < 3; j++) g.ep[j].advantage = s[j].advantage;
        g.stale = 1; /* scored with the model as it is, so that every ratio is 1 */
        struct update_stats u;
        const struct flat got = gradient(m, &o, &g, 1, &u);
        for (int j = 0; j < 3; j++) g.ep[j].advantage = rows[i].weight[j];
        plain.update.loss.kind = LOSS_REINFORCE;
        plain.update.loss_norm = NORM_SUM;
        const struct flat want = gradient(m, &plain, &g, 1, &u);
        if (distance(want, got, 1) > 1e-4)
            fail_msg("%s: the gradient is %g of its length away", rows[i].name, distance(want, got, 1));
        free(got.p);
        free(want.p);
        groups_free(&g, 1);
        config_free(&c);
    }
    model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_prompt_gives_the_same_gradient),
        cmocka_unit_test(a_group_is_cut_evenly),
        cmocka_unit_test(gradient_is_that_of_the_loss),
        cmocka_unit_test(algorithms_by_hand),
        cmocka_unit_test(normalisers),
        cmocka_unit_test(who_takes_part),
        cmocka_unit_test(substeps_are_steps_of_their_own),
        cmocka_unit_test(divergence_in_the_loss),
        cmocka_unit_test(divergence_from_adapters),
        cmocka_unit_test(divergence_in_the_reward),
        cmocka_unit_test(other_normalisers),
        cmocka_unit_test(epochs_and_stale_samples),
        cmocka_unit_test(advantages_by_token),
        cmocka_unit_test(learning_rates),
        cmocka_unit_test(clipping),
        cmocka_unit_test(sampler_and_trainer_must_agree),
        cmocka_unit_test(a_gradient_that_is_no_number_is_refused),
        cmocka_unit_test(micro_batches_reuse_memory),
        cmocka_unit_test(steps_allocate_nothing),
    };
    const int failed = cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
    return failed;
}
