/* The program over a device whose memory the host cannot reach, and whose results arrive late. The device is the CPU
 * backend behind a wall: its memory may be touched only while an op runs (a host access is a segmentation fault), every
 * address an op gets is checked to lie on the right side, and outputs in host memory are written at sync. Weights,
 * samples, gradients, updates and files must be those of the plain CPU backend, bit for bit. */
#include <math.h>
#include <sys/mman.h>

#include "engine/engine.h"
#include "rl/learn/update.h"
#include "rl/run/run.h"
#include "rl/test_util.h"

enum { WALLED_BYTES = 256 << 20 };

struct late { /* host outputs of an op, not there yet */
    float *host, *value;
    int64_t n;
    struct late *next;
};

static struct wall {
    struct backend *in;
    char *mem;
    size_t used;
    int allocations; /* not freed */
    int64_t ops, syncs;
    int64_t fails_at; /* the device breaks at this sync or get, counted in `events`, and stays so; 0: never */
    int64_t events;
    struct late *late;
} wall;

static bool walled(const void *p) { return (const char *)p >= wall.mem && (const char *)p < wall.mem + WALLED_BYTES; }
static void device(const void *p) { assert_true(walled(p)); }
static void device_or_null(const void *p) { assert_true(!p || walled(p)); }
static void host(const void *p) { assert_false(walled(p)); }
static void view(struct tensor t) {
    if (t.rows > 0) device(t.data);
}
static void open_wall(void) {
    wall.ops++;
    assert_int_equal(mprotect(wall.mem, WALLED_BYTES, PROT_READ | PROT_WRITE), 0);
}
static void shut_wall(void) { assert_int_equal(mprotect(wall.mem, WALLED_BYTES, PROT_NONE), 0); }
#define RUN(call)      \
    do {               \
        open_wall();   \
        wall.in->call; \
        shut_wall();   \
    } while (0)
#define IN wall.in
static bool broken(void) {
    wall.events++;
    return wall.fails_at > 0 && wall.events >= wall.fails_at;
}

static void *d_alloc(struct backend *be, size_t bytes) {
    (void)be;
    void *p = wall.mem + wall.used;
    const size_t end = wall.used + ((bytes + 255) & ~(size_t)255);
    if (end > WALLED_BYTES) return NULL;
    open_wall();
    memset(p, 0xa5, bytes); /* contents are undefined: make them bad */
    shut_wall();
    wall.used = end;
    wall.allocations++;
    return p;
}
static void d_free(struct backend *be, void *p) {
    (void)be;
    device_or_null(p);
    wall.allocations -= p != NULL;
}
static int64_t d_available(struct backend *be) {
    (void)be;
    return (int64_t)(WALLED_BYTES - wall.used);
}
static void d_put(struct backend *be, void *dst, const void *src, size_t bytes) {
    (void)be;
    device(dst), host(src);
    RUN(mem_put(IN, dst, src, bytes));
}
static void d_get(struct backend *be, void *dst, const void *src, size_t bytes) {
    (void)be;
    host(dst), device(src);
    if (broken())
        memset(dst, 0xa5, bytes);
    else
        RUN(mem_get(IN, dst, src, bytes));
}
static void d_copy(struct backend *be, void *dst, const void *src, size_t bytes) {
    (void)be;
    device(dst), device(src);
    RUN(mem_copy(IN, dst, src, bytes));
}
static void d_zero(struct backend *be, void *dst, size_t bytes) {
    (void)be;
    device(dst);
    RUN(mem_zero(IN, dst, bytes));
}
static enum status d_sync(struct backend *be, struct err *e) {
    (void)be;
    wall.syncs++;
    const bool lost = broken();
    while (wall.late) {
        struct late *l = wall.late;
        wall.late = l->next;
        if (!lost) memcpy(l->host, l->value, (size_t)l->n * sizeof(float));
        free(l->value);
        free(l);
    }
    return lost ? FAIL(e, ST_DEVICE, "walled: sync: unspecified launch failure") : ST_OK;
}
static void d_close(struct backend *be) { (void)be; }
static void d_put_rows(struct backend *be, struct weight *w, int64_t row, int64_t rows, const uint16_t *src) {
    (void)be;
    host(src);
    RUN(weight_put(IN, w, row, rows, src));
}
static void d_get_rows(struct backend *be, const struct weight *w, int64_t row, int64_t rows, uint16_t *dst) {
    (void)be;
    host(dst);
    RUN(weight_get(IN, w, row, rows, dst));
}
static void d_pack(struct backend *be, struct weight *w) {
    (void)be;
    device(w->w);
    RUN(weight_pack(IN, w));
}
static void d_unpack(struct backend *be, struct weight *w) {
    (void)be;
    RUN(weight_free(IN, w));
}
static void d_linear(struct backend *be, struct tensor y, struct tensor x, const struct weight *w, const float *bias,
                     bool accumulate) {
    (void)be;
    view(y), view(x), device_or_null(w->w), device_or_null(bias);
    RUN(linear(IN, y, x, w, bias, accumulate));
}
static void d_linear_dx(struct backend *be, struct tensor dx, struct tensor dy, const struct weight *w,
                        bool accumulate) {
    (void)be;
    view(dx), view(dy), device_or_null(w->w);
    RUN(linear_dx(IN, dx, dy, w, accumulate));
}
static void d_linear_dw(struct backend *be, float *dw, struct tensor dy, struct tensor x, enum dtype dt) {
    (void)be;
    device(dw), view(dy), view(x);
    RUN(linear_dw(IN, dw, dy, x, dt));
}
static void d_bias_grad(struct backend *be, float *db, struct tensor dy) {
    (void)be;
    device(db), view(dy);
    RUN(bias_grad(IN, db, dy));
}
static void d_embed(struct backend *be, struct tensor x, const struct weight *table, const int32_t *ids) {
    (void)be;
    view(x), device_or_null(table->w), host(ids);
    RUN(embed(IN, x, table, ids));
}
static void d_embed_grad(struct backend *be, float *dtable, struct tensor dx, const int32_t *ids) {
    (void)be;
    device(dtable), view(dx), host(ids);
    RUN(embed_grad(IN, dtable, dx, ids));
}
static void d_rmsnorm(struct backend *be, struct tensor y, struct tensor x, const float *gain, float eps) {
    (void)be;
    view(y), view(x), device(gain);
    RUN(rmsnorm(IN, y, x, gain, eps));
}
static void d_rmsnorm_grad(struct backend *be, struct tensor dx, float *dgain, struct tensor dy, struct tensor x,
                           const float *gain, float eps, bool accumulate) {
    (void)be;
    view(dx), device_or_null(dgain), view(dy), view(x), device(gain);
    RUN(rmsnorm_grad(IN, dx, dgain, dy, x, gain, eps, accumulate));
}
static void rope_sides(const struct rope_args *a) {
    host(a), host(a->pos), device(a->cos_t), device(a->sin_t), device_or_null(a->q_gain), device_or_null(a->k_gain);
}
static void d_rope(struct backend *be, struct tensor qk, struct tensor qkv, const struct rope_args *a) {
    (void)be;
    view(qk), view(qkv), rope_sides(a);
    RUN(rope(IN, qk, qkv, a));
}
static void d_rope_grad(struct backend *be, struct tensor dqkv, float *dq_gain, float *dk_gain, struct tensor qkv,
                        const struct rope_args *a) {
    (void)be;
    view(dqkv), device_or_null(dq_gain), device_or_null(dk_gain), view(qkv), rope_sides(a);
    RUN(rope_grad(IN, dqkv, dq_gain, dk_gain, qkv, a));
}
static void d_swiglu(struct backend *be, struct tensor y, struct tensor gu) {
    (void)be;
    view(y), view(gu);
    RUN(swiglu(IN, y, gu));
}
static void d_swiglu_grad(struct backend *be, struct tensor dgu, struct tensor dy, struct tensor gu) {
    (void)be;
    view(dgu), view(dy), view(gu);
    RUN(swiglu_grad(IN, dgu, dy, gu));
}
static void seq_sides(const struct attn_seq *seq, int n, struct attn_shape s) {
    host(seq), device_or_null(s.kv);
    for (int i = 0; i < n; i++) host(seq[i].blocks);
}
static void d_kv_write(struct backend *be, struct tensor k, struct tensor v, const struct attn_seq *seq, int n_seq,
                       struct attn_shape s) {
    (void)be;
    view(k), view(v), seq_sides(seq, n_seq, s);
    RUN(kv_write(IN, k, v, seq, n_seq, s));
}
static void d_attention(struct backend *be, struct tensor o, float *stats, struct tensor q, struct tensor k,
                        struct tensor v, const struct attn_seq *seq, int n_seq, struct attn_shape s) {
    (void)be;
    view(o), device_or_null(stats), view(q), view(k), view(v), seq_sides(seq, n_seq, s);
    RUN(attention(IN, o, stats, q, k, v, seq, n_seq, s));
}
static void d_attention_grad(struct backend *be, struct tensor dq, struct tensor dk, struct tensor dv,
                             struct tensor d_o, struct tensor o, const float *stats, struct tensor q, struct tensor k,
                             struct tensor v, const struct attn_seq *seq, int n_seq, struct attn_shape s) {
    (void)be;
    view(dq), view(dk), view(dv), view(d_o), view(o), device(stats), view(q), view(k), view(v),
        seq_sides(seq, n_seq, s);
    RUN(attention_grad(IN, dq, dk, dv, d_o, o, stats, q, k, v, seq, n_seq, s));
}
static float *arrives_late(float *to, int64_t n) {
    struct late *l = xmalloc(sizeof *l);
    *l = (struct late){to, xmalloc((size_t)n * sizeof(float) + 1), n, wall.late};
    for (int64_t i = 0; i < n; i++) to[i] = NAN;
    wall.late = l;
    return l->value;
}
static void d_logprob(struct backend *be, float *logp, float *entropy, struct tensor logits, const int32_t *targets) {
    (void)be;
    host(logp), host(entropy), view(logits), host(targets);
    float *lp = arrives_late(logp, logits.rows), *en = entropy ? arrives_late(entropy, logits.rows) : NULL;
    RUN(logprob(IN, lp, en, logits, targets));
}
static void d_logprob_grad(struct backend *be, struct tensor logits, const int32_t *targets, const float *g) {
    (void)be;
    view(logits), host(targets), host(g);
    RUN(logprob_grad(IN, logits, targets, g));
}
static void d_axpby(struct backend *be, struct tensor y, float a, struct tensor x, float b) {
    (void)be;
    view(y), view(x);
    RUN(axpby(IN, y, a, x, b));
}
static void d_gather(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows) {
    (void)be;
    view(y), view(x), host(rows);
    RUN(gather_rows(IN, y, x, rows));
}
static void d_scatter(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows, const float *scale) {
    (void)be;
    view(y), view(x), host(rows);
    if (scale) host(scale);
    RUN(scatter_add_rows(IN, y, x, rows, scale));
}
static void d_adamw(struct backend *be, float *w, float *m, float *v, const float *g, int64_t n,
                    const struct adamw_args *a) {
    (void)be;
    device(w), device(m), device(v), device(g), host(a);
    RUN(adamw(IN, w, m, v, g, n, a));
}
static double d_sum_squares(struct backend *be, const float *x, int64_t n) {
    (void)be;
    device(x);
    open_wall();
    const double s = IN->sum_squares(IN, x, n);
    shut_wall();
    return s;
}

/* Chunks of logits are 4 KiB, so that every loop over them goes round more than once. */
static struct backend walled_backend = {.name = "walled",
                                        .logit_chunk_bytes = 4096,
                                        .mem_alloc = d_alloc,
                                        .mem_free = d_free,
                                        .mem_available = d_available,
                                        .mem_put = d_put,
                                        .mem_get = d_get,
                                        .mem_copy = d_copy,
                                        .mem_zero = d_zero,
                                        .sync = d_sync,
                                        .close = d_close,
                                        .weight_pack = d_pack,
                                        .weight_free = d_unpack,
                                        .weight_put = d_put_rows,
                                        .weight_get = d_get_rows,
                                        .bf16 = true,
                                        .linear = d_linear,
                                        .linear_dx = d_linear_dx,
                                        .linear_dw = d_linear_dw,
                                        .bias_grad = d_bias_grad,
                                        .embed = d_embed,
                                        .embed_grad = d_embed_grad,
                                        .rmsnorm = d_rmsnorm,
                                        .rmsnorm_grad = d_rmsnorm_grad,
                                        .rope = d_rope,
                                        .rope_grad = d_rope_grad,
                                        .swiglu = d_swiglu,
                                        .swiglu_grad = d_swiglu_grad,
                                        .kv_write = d_kv_write,
                                        .attention = d_attention,
                                        .attention_grad = d_attention_grad,
                                        .logprob = d_logprob,
                                        .logprob_grad = d_logprob_grad,
                                        .axpby = d_axpby,
                                        .gather_rows = d_gather,
                                        .scatter_add_rows = d_scatter,
                                        .adamw = d_adamw,
                                        .sum_squares = d_sum_squares};

/* ---- the program ------------------------------------------------------------------------------------------------- */

enum { GROUPS = 2, SAMPLES = 3, MAX_NEW = 40, MAX_FLOATS = 1 << 17, MAX_TRACE = 1 << 16 };

/* Whatever the program computed, in the order of computing. */
struct trace {
    double x[MAX_TRACE];
    int n;
};

static void note(struct trace *t, double x) {
    assert_true(t->n < MAX_TRACE);
    t->x[t->n++] = x;
}

static void note_params(struct trace *t, struct model *m, bool gradients) {
    static float w[MAX_FLOATS];
    int n;
    const struct param *p = model_params(m, &n);
    for (int i = 0; i < n; i++) {
        assert_true(p[i].n <= MAX_FLOATS);
        if (gradients)
            model_grad_get(m, &p[i], w);
        else
            model_param_get(m, &p[i], w);
        uint64_t sum = 0; /* of the bits, position by position */
        for (int64_t k = 0; k < p[i].n; k++) {
            uint32_t bits;
            memcpy(&bits, &w[k], sizeof bits);
            sum = sum * UINT64_C(6364136223846793005) + bits;
        }
        note(t, (double)(sum >> 12));
    }
}

static void sample(struct model *m, struct sample_group *g, struct trace *t) {
    struct engine *en;
    /* Five sequences at a time: some samples wait, prompts are shared by copying caches. */
    CHECK(engine_open(m, &(struct engine_options){.max_batch = 5}, &en, &err));
    struct request r[GROUPS];
    struct sample s[GROUPS * SAMPLES];
    for (int i = 0; i < GROUPS; i++) {
        g[i] = (struct sample_group){.n = SAMPLES, .ep = xcalloc(SAMPLES, sizeof *g[i].ep)};
        struct rng rng = rng_make(3, (uint64_t)i);
        for (int k = 0; k < 70 + 30 * i; k++) ids_add(&g[i].prompt, (int32_t)rng_below(&rng, TINY_V));
        r[i] = (struct request){.prompt = g[i].prompt.p,
                                .n_prompt = (int)g[i].prompt.len,
                                .n_samples = SAMPLES,
                                .id = (uint64_t)i,
                                .params = {.temperature = 1, .top_p = 1, .max_tokens = MAX_NEW - 7 * i, .seed = 1}};
    }
    CHECK(engine_run(en, r, GROUPS, s, NULL, NULL, &err));
    for (int i = 0; i < GROUPS * SAMPLES; i++) {
        struct episode *ep = &g[i / SAMPLES].ep[i % SAMPLES];
        *ep = (struct episode){.present = true, .advantage = i % SAMPLES - 0.9, .sample = s[i]};
        for (int k = 0; k < s[i].n; k++) note(t, s[i].ids[k]), note(t, (double)s[i].logp[k]);
    }
    engine_close(en);
}

/* Load, sample, train on the samples, save, load into a fresh model and optimizer, train on, and look at logits. */
static void program(struct backend *be, bool lora, bool bf16, const char *name, struct trace *t) {
    const struct model_options mo = {.dtype = bf16 ? "bf16" : "f32", .frozen = lora};
    struct model *m, *again;
    struct trainer *trainer, *trainer2;
    struct sample_group g[GROUPS];
    const char *dir = in_tmp(name), *start = in_tmp("start");
    CHECK(model_load(start, &mo, be, &m, &err));
    if (lora) CHECK(model_lora_load(m, in_tmp("start_lora"), &err));
    CHECK(model_train_prepare(m, lora ? TRAIN_LORA : TRAIN_FULL, &err));
    CHECK(trainer_open(test_comm(), m, ADAPTER_OWN, 200, &trainer, &err));
    sample(m, g, t);
    const struct train_options o = {
        .rollout.max_tokens = MAX_NEW,
        .update = {.loss.kind = LOSS_IMPORTANCE_SAMPLING,
                   .loss_norm = NORM_TOKENS,
                   .num_substeps = 2,
                   .train_tokens = 200,
                   .max_grad_norm = 0.5,
                   .adam = {.learning_rate = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1}}};
    struct update_stats s;
    int64_t opt_step = 0, next;
    CHECK(update_policy(trainer, NULL, &o, NULL, g, GROUPS, &opt_step, &s,
                        &err)); /* checks: sampler == trainer, bit for bit */
    note(t, s.grad_norm), note(t, s.entropy), note(t, s.loss.loss);
    note_params(t, m, true);
    note_params(t, m, false);
    CHECK(checkpoint_write(dir, 1, opt_step, NULL, m, lora, "f32", trainer->opt, NULL, &err));

    CHECK(model_load(lora ? start : dir, &mo, be, &again, &err));
    if (lora) CHECK(model_lora_init(again, 2, 4.0f, 1, &err));
    CHECK(model_train_prepare(again, lora ? TRAIN_LORA : TRAIN_FULL, &err));
    CHECK(trainer_open(test_comm(), again, ADAPTER_OWN, 200, &trainer2, &err));
    CHECK(checkpoint_read(dir, &next, &opt_step, again, lora, trainer2->opt, &err));
    for (int i = 0; i < GROUPS; i++)
        for (int j = 0; j < SAMPLES; j++) { /* old samples: plain likelihood from here on */
            free(g[i].ep[j].sample.logp);
            g[i].ep[j].sample.logp = NULL;
        }
    struct train_options plain = o;
    plain.update.loss.kind = 0;
    CHECK(update_policy(trainer2, NULL, &plain, NULL, g, GROUPS, &opt_step, &s, &err));
    note_params(t, again, false);
    for (int i = 0; i < GROUPS; i++) {
        const struct sample *x = &g[i].ep[0].sample;
        const int64_t prompt = (int64_t)g[i].prompt.len;
        int32_t ids[256];
        float logp_of[MAX_NEW];
        memcpy(ids, g[i].prompt.p, (size_t)prompt * sizeof *ids);
        memcpy(ids + prompt, x->ids, (size_t)x->n * sizeof *ids);
        const struct datum d = {.ids = ids,
                                .n = prompt + x->n - 1,
                                .prompt = prompt,
                                .begin = prompt - 1,
                                .end = prompt + x->n - 1,
                                .targets = x->ids,
                                .logp = logp_of};
        CHECK(train_forward(trainer2, again, ADAPTER_OWN, &d, 1, &err));
        for (int k = 0; k < x->n; k++) note(t, (double)logp_of[k]);
    }

    const struct segment seg = {0, 30, -1, 0};
    const int32_t row = 29, target = 5;
    const struct train_batch b = {g[0].prompt.p, 30, &seg, 1, &row, &target, 1, false};
    static float logits[30 * TINY_V], hidden[30 * 32], logp;
    CHECK(model_logits(again, &b, logits, &err));
    CHECK(model_forward(again, &b, &logp, NULL, hidden, &err));
    for (int i = 0; i < 30 * TINY_V; i++) note(t, (double)logits[i]);
    for (int i = 0; i < 30 * 32; i++) note(t, (double)hidden[i]);
    note(t, (double)logp);
    groups_free(g, GROUPS);
    trainer_close(trainer);
    trainer_close(trainer2);
    model_free(m);
    model_free(again);
}

static void nothing_reaches_over_the_wall(void **state) {
    (void)state;
    wall.in = test_backend();
    wall.mem = mmap(NULL, WALLED_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(wall.mem != MAP_FAILED);
    struct model *m = tiny_model(4, true);
    CHECK(model_save(m, in_tmp("start"), "f32", &err));
    CHECK(model_lora_save(m, in_tmp("start_lora"), &err));
    model_free(m);
    static struct trace plain, behind;
    for (int kind = 0; kind < 4; kind++) { /* all parameters or LoRA, products in f32 or in bf16 */
        const bool lora = kind % 2, bf16 = kind / 2;
        plain.n = behind.n = 0;
        wall.used = 0;
        program(test_backend(), lora, bf16, lora ? "plain_lora" : "plain", &plain);
        program(&walled_backend, lora, bf16, lora ? "walled_lora" : "walled", &behind);
        assert_int_equal(wall.allocations, 0);
        assert_null(wall.late);
        assert_int_equal(plain.n, behind.n);
        for (int i = 0; i < plain.n; i++)
            if (memcmp(&plain.x[i], &behind.x[i], sizeof(double)) != 0)
                fail_msg("kind %d value %d of %d: %.17g on the CPU, %.17g behind the wall", kind, i, plain.n,
                         plain.x[i], behind.x[i]);
    }
    assert_true(wall.ops > 1000 && wall.syncs > 10);
    munmap(wall.mem, WALLED_BYTES);
}

/* A device that is too small says so, whatever it is that does not fit, and nothing is lost. */
static void a_small_device_is_an_error(void **state) {
    (void)state;
    wall = (struct wall){.in = test_backend()};
    wall.mem = mmap(NULL, WALLED_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(wall.mem != MAP_FAILED);
    struct model *m;
    struct kv_cache *kv;
    struct adamw *opt;
    int n, steps = 0;
    bool done = false;
    for (size_t room = 0; !done; room += 100000, steps++) {
        wall.used = WALLED_BYTES - (room & ~(size_t)255);
        enum status st = model_init(tiny_config, 1, NULL, &walled_backend, &m, &err);
        if (st == ST_OK) {
            st = model_train_prepare(m, TRAIN_FULL, &err);
            if (st == ST_OK) {
                const struct param *p = model_params(m, &n);
                st = adamw_create(&walled_backend, p, n, &opt, &err);
                if (st == ST_OK) adamw_free(opt);
            }
            if (st == ST_OK) {
                st = kv_create(m, 2, 500, 0, &kv, &err);
                const int seq = 0, count = 200;
                static int32_t ids[200];
                static float logits[TINY_V];
                if (st == ST_OK) {
                    st = model_step(m, kv, 1, &seq, &count, ids, logits, &err);
                    kv_free(kv);
                    done = st == ST_OK;
                }
            }
            model_free(m);
        }
        if (st != ST_OK) assert_int_equal(st, ST_MEMORY);
        assert_int_equal(wall.allocations, 0);
        assert_true(room < WALLED_BYTES);
    }
    assert_true(steps > 5);
    munmap(wall.mem, WALLED_BYTES);
}

/* Sample, train on it, save; the first failure. The weights as they are in the end are noted when there was none. */
static enum status work(const char *checkpoint, struct trace *t) {
    struct model *m;
    struct trainer *trainer = NULL;
    struct engine *en = NULL;
    struct sample_group g = {.n = SAMPLES, .ep = xcalloc(SAMPLES, sizeof *g.ep)};
    struct sample s[SAMPLES] = {0};
    struct update_stats stats;
    int64_t opt_step = 0;
    enum status st = model_load(in_tmp("start"), NULL, &walled_backend, &m, &err);
    if (st != ST_OK) m = NULL;
    if (st == ST_OK) st = model_train_prepare(m, TRAIN_FULL, &err);
    if (st == ST_OK) st = trainer_open(test_comm(), m, ADAPTER_OWN, 200, &trainer, &err);
    if (st == ST_OK) st = engine_open(m, &(struct engine_options){.max_batch = 5}, &en, &err);
    for (int k = 0; k < 70; k++) ids_add(&g.prompt, k % TINY_V);
    const struct request r = {.prompt = g.prompt.p,
                              .n_prompt = (int)g.prompt.len,
                              .n_samples = SAMPLES,
                              .params = {.temperature = 1, .top_p = 1, .max_tokens = 5, .seed = 1}};
    if (st == ST_OK) st = engine_run(en, &r, 1, s, NULL, NULL, &err);
    for (int i = 0; i < SAMPLES; i++) g.ep[i] = (struct episode){.present = true, .advantage = i - 0.9, .sample = s[i]};
    const struct train_options o = {
        .rollout.max_tokens = 5,
        .update = {.loss.kind = LOSS_IMPORTANCE_SAMPLING,
                   .loss_norm = NORM_TOKENS,
                   .num_substeps = 1,
                   .train_tokens = 200,
                   .max_grad_norm = 0.5,
                   .adam = {.learning_rate = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8}}};
    if (st == ST_OK) st = update_policy(trainer, NULL, &o, NULL, &g, 1, &opt_step, &stats, &err);
    if (st == ST_OK) st = checkpoint_write(checkpoint, 1, opt_step, NULL, m, false, "f32", trainer->opt, NULL, &err);
    if (st == ST_OK) note_params(t, m, false);
    if (st == ST_OK) st = walled_backend.sync(&walled_backend, &err);
    groups_free(&g, 1);
    if (en) engine_close(en);
    trainer_close(trainer);
    if (m) model_free(m);
    return st;
}

/* Wherever the device breaks, the failure is reported in its words, nothing is left behind, what was saved before is
 * whole, and doing the work again gives what it would have given. */
static void a_broken_device_is_an_error(void **state) {
    (void)state;
    wall = (struct wall){.in = test_backend()};
    wall.mem = mmap(NULL, WALLED_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(wall.mem != MAP_FAILED);
    struct model *m = tiny_model(4, false);
    CHECK(model_save(m, in_tmp("start"), "f32", &err));
    model_free(m);
    static struct trace want, got;
    want.n = got.n = 0;
    CHECK(work(in_tmp("whole"), &want));
    const int64_t events = wall.events;
    assert_true(events > 20);
    for (int64_t at = 1; at <= events; at += 1 + at / 20) {
        wall.used = 0;
        wall.events = 0;
        wall.fails_at = at;
        const enum status st = work(in_tmp("torn"), &got);
        if (st != ST_OK) {
            assert_int_equal(st, ST_DEVICE);
            assert_non_null(strstr(err.msg, "unspecified launch failure"));
        }
        assert_int_equal(wall.allocations, 0);
        assert_null(wall.late);
        if (st == ST_OK) fail_msg("the failure at event %lld of %lld was lost", (long long)at, (long long)events);
    }
    wall.fails_at = 0;
    wall.used = 0;
    got.n = 0;
    CHECK(work(in_tmp("again"), &got));
    assert_int_equal(got.n, want.n);
    assert_memory_equal(got.x, want.x, (size_t)want.n * sizeof *want.x);
    munmap(wall.mem, WALLED_BYTES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_reaches_over_the_wall),
        cmocka_unit_test(a_small_device_is_an_error),
        cmocka_unit_test(a_broken_device_is_an_error),
    };
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
