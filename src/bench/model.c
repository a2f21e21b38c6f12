#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/rng.h"
#include "bench/bench.h"
#include "io/json.h"
#include "train/adamw.h"

/* ---- limits of whole steps --------------------------------------------------------------------------------------- */

static enum dtype dtype_of(const struct model *m) { return strcmp(model_dtype(m), "bf16") == 0 ? DT_BF16 : DT_F32; }

/* Parameters of one layer's matrices that a row is multiplied with. */
static double layer_params(const struct model_config *c) {
    const double D = c->D, K = c->K;
    return D * (c->H + 2 * c->G) * K + D * c->H * K + 3 * D * model_ffn_columns(c, 1);
}
static double head_params(const struct model_config *c) { return (double)c->V * c->D; }

/* Bytes of a weight of a layer, and of the head. */
static double head_weight_bytes(const struct model *m) { return (double)dtype_bytes(dtype_of(m)); }
static double layer_weight_bytes(const struct model *m) {
    const char *codes = model_base_codes(m);
    if (!codes) return head_weight_bytes(m);
    const int64_t side = 1 << 10; /* of a matrix in which tables weigh nothing */
    return (double)format_of((enum weight_format)format_find(codes))->bytes(side, side) / (double)(side * side);
}

/* Rows over their products with a layer's feed-forward parts: so many of their parameters a column. In a mixture of
 * experts a row is multiplied with few columns, and all rows together read more. */
static double ffn_limit_s(const struct bench *b, const struct model_config *c, double rows, double each, double bytes) {
    return bench_limit_s(&b->limits, each * model_ffn_columns(c, rows) * bytes,
                         2 * rows * each * model_ffn_columns(c, 1));
}

/* Rows over their products with one weight of n parameters, of so many bytes each. */
static double weight_limit_s(const struct bench *b, double rows, double n, double bytes) {
    return bench_limit_s(&b->limits, n * bytes, 2 * rows * n);
}

/* Floating point operations of one layer's attention for `pairs` pairs of a query and a key it sees. */
static double attention_flop(const struct model_config *c, double pairs) { return 4.0 * c->H * c->K * pairs; }

/* Of one cached token, in all layers. */
static double kv_bytes(const struct model *m) { return (double)kv_block_bytes(m) / KV_BLOCK; }

double bench_step_limit_s(const struct bench *b, const struct model *m, double rows, double n_seq, double pairs,
                          double cached) {
    const struct model_config *c = model_cfg(m);
    const double D = c->D, K = c->K, each = layer_weight_bytes(m);
    const double layer = weight_limit_s(b, rows, D * (c->H + 2 * c->G) * K, each) +
                         weight_limit_s(b, rows, D * c->H * K, each) + ffn_limit_s(b, c, rows, 2 * D, each) +
                         ffn_limit_s(b, c, rows, D, each) +
                         bench_limit_s(&b->limits, cached * kv_bytes(m) / c->L, attention_flop(c, pairs));
    return c->L * layer + weight_limit_s(b, n_seq, head_params(c), head_weight_bytes(m));
}

/* Twice the parameters a token forward, as much for the gradient of the input, and for that of the weight where weights
 * are trained; attention's gradient is four products for the forward's two. */
double bench_train_flop(const struct model_config *c, bool full, double rows, double predict, double pairs) {
    return (full ? 6 : 4) * (rows * c->L * layer_params(c) + predict * head_params(c)) +
           3 * c->L * attention_flop(c, pairs);
}

/* ---- sampling ---------------------------------------------------------------------------------------------------- */

static int32_t *random_ids(int64_t n, int32_t V, uint64_t stream) {
    int32_t *ids = xmalloc((size_t)n * sizeof *ids);
    struct rng r = rng_make(4, stream);
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)rng_below(&r, (uint64_t)V);
    return ids;
}

struct step_buffers {
    int *seq, *n;
    int32_t *ids;
    float *logits;
    struct step_want *want;
    struct draw *draw;
    struct step_drawn *drawn;
    double *t;
};

static void step_buffers_free(struct step_buffers *s) {
    free(s->seq);
    free(s->n);
    free(s->ids);
    free(s->logits);
    free(s->want);
    free(s->draw);
    free(s->drawn);
    free(s->t);
}

static struct step_buffers step_buffers(const struct model_config *c, int n_seq, int64_t n_ids, int64_t n_times) {
    struct step_buffers s = {.seq = xcalloc((size_t)n_seq, sizeof(int)),
                             .n = xcalloc((size_t)n_seq, sizeof(int)),
                             .ids = random_ids(n_ids, c->V, (uint64_t)n_seq),
                             .logits = xmalloc((size_t)n_seq * (size_t)c->V * sizeof(float)),
                             .want = xcalloc((size_t)n_seq, sizeof(struct step_want)),
                             .draw = xcalloc((size_t)n_seq, sizeof(struct draw)),
                             .drawn = xcalloc((size_t)n_seq, sizeof(struct step_drawn)),
                             .t = xcalloc((size_t)n_times, sizeof(double))};
    for (int i = 0; i < n_seq; i++) {
        s.seq[i] = i;
        s.draw[i] = (struct draw){1, 0, (i + 0.5) / n_seq};
        s.want[i] = (struct step_want){STEP_DRAW, s.draw[i]};
    }
    return s;
}

/* A step as the engine makes it: where the device draws the tokens, logits stay there. */
static enum status bench_step(struct model *m, struct kv_cache *kv, int n_seq, const struct step_buffers *s,
                              const int32_t *ids, struct err *e) {
    if (!model_can_draw(m)) return model_step(m, kv, n_seq, s->seq, s->n, ids, s->logits, e);
    return model_step_draw(m, kv, n_seq, s->seq, s->n, ids, s->want, model_cfg(m)->V, s->drawn, s->logits, e);
}

/* n steps of one token each, s->t the seconds of each. As the engine makes them: where the device draws, a step is
 * asked for before the tokens of the one before are known. The limits are measured in the middle again. */
static enum status decode_steps(struct bench *b, struct model *m, struct kv_cache *kv, int n_seq, int64_t n,
                                struct step_buffers *s, struct err *e) {
    const bool ahead = model_can_begin(m, n_seq);
    const int32_t limit = model_cfg(m)->V;
    int32_t *const drawn_before = s->ids + n_seq; /* of the step before: -1 - place */
    for (int i = 0; i < n_seq; i++) {
        s->n[i] = 1;
        if (ahead) drawn_before[i] = -1 - i;
    }
    double t = 0;
    for (int64_t k = 0; k < n; k++) {
        const bool first = k == 0 || k == n / 2, last = k + 1 == n / 2 || k + 1 == n;
        if (k == n / 2) TRY(bench_limits_raise(b, model_cfg(m), dtype_of(m), e));
        if (first) t = clock_now_s();
        if (!ahead) {
            TRY(bench_step(m, kv, n_seq, s, s->ids + k * n_seq, e));
        } else {
            if (first) TRY(model_step_begin(m, kv, n_seq, s->seq, s->ids, s->draw, limit, e));
            if (!last) TRY(model_step_begin(m, kv, n_seq, s->seq, drawn_before, s->draw, limit, e));
            TRY(model_step_end(m, s->drawn, e));
        }
        const double now = clock_now_s();
        s->t[k] = now - t;
        t = now;
    }
    return ST_OK;
}

/* The sequences of an empty cache, in as many runs as there are adapters. */
static void share_adapters(const struct bench_options *o, struct kv_cache *kv, int n_seq) {
    for (int i = 0; o->adapters > 1 && i < n_seq; i++) kv_set_adapter(kv, i, (int)((int64_t)i * o->adapters / n_seq));
}

static void lora_keys(const struct bench_options *o, struct str *line) {
    if (o->sample_lora) js_put_i64(line, "lora_rank", o->lora_rank);
    if (o->adapters > 1) js_put_i64(line, "adapters", o->adapters);
}

static enum status decode(struct bench *b, struct model *m, int n_seq, struct err *e) {
    const struct bench_options *o = b->o;
    const struct model_config *c = model_cfg(m);
    const int64_t begin = o->context_begin, end = o->context_end, steps = end - begin;
    struct kv_cache *kv;
    TRY(kv_create(m, n_seq, end, 0, &kv, e));
    struct step_buffers s = step_buffers(c, n_seq, n_seq * i64_max(i64_max(begin, steps), 2), steps);
    enum status st;
    share_adapters(o, kv, n_seq);
    bench_begin(b);
    TRY_GOTO(bench_limits_raise(b, c, dtype_of(m), e), out);
    for (int i = 0; i < n_seq; i++) s.n[i] = (int)begin;
    TRY_GOTO(bench_step(m, kv, n_seq, &s, s.ids, e), out);
    TRY_GOTO(decode_steps(b, m, kv, n_seq, steps, &s, e), out); /* the prompts have warmed up */
    TRY_GOTO(bench_limits_raise(b, c, dtype_of(m), e), out);
    const double keys = (double)n_seq * ((double)(begin + end + 1) / 2); /* of the step in the middle */
    const struct bench_times t = bench_times(s.t, (int)steps);
    struct str line = STR_INIT;
    char label[80];
    bench_line(b, "decode", model_dtype(m), &line);
    if (model_base_codes(m)) js_put_str(&line, "base_dtype", model_base_codes(m));
    js_put_i64(&line, "batch", n_seq);
    lora_keys(o, &line);
    js_put_i64(&line, "context_begin", begin);
    js_put_i64(&line, "context_end", end);
    snprintf(label, sizeof label, "%d x context %lld-%lld", n_seq, (long long)begin, (long long)end);
    const double bytes =
        c->L * layer_params(c) * layer_weight_bytes(m) + head_params(c) * head_weight_bytes(m) + keys * kv_bytes(m);
    js_put_f64(&line, "gb_per_s", bytes / t.median * 1e-9);
    bench_line_end(b, &line, label, &t, n_seq / t.median, "token", bench_step_limit_s(b, m, n_seq, n_seq, keys, keys));
out:
    step_buffers_free(&s);
    kv_free(kv);
    return st;
}

static const int *batches(const struct bench_options *o, const int *usual, int n_usual, int *n) {
    *n = o->n_batch ? o->n_batch : n_usual;
    return o->n_batch ? o->batch : usual;
}

enum status bench_decode(struct bench *b, struct model *m, struct err *e) {
    static const int usual[] = {1, 16, 64};
    int n;
    const int *batch = batches(b->o, usual, ARRAY_LEN(usual), &n);
    for (int i = 0; i < n; i++) TRY(decode(b, m, batch[i], e));
    return ST_OK;
}

static enum status prefill(struct bench *b, struct model *m, int n_seq, struct err *e) {
    const struct bench_options *o = b->o;
    const struct model_config *c = model_cfg(m);
    const int64_t tokens = o->tokens, repeat = o->repeat ? o->repeat : 7;
    struct kv_cache *kv;
    TRY(kv_create(m, n_seq, tokens, 0, &kv, e));
    struct step_buffers s = step_buffers(c, n_seq, n_seq * tokens, repeat);
    enum status st;
    for (int i = 0; i < n_seq; i++) s.n[i] = (int)tokens;
    bench_begin(b);
    TRY_GOTO(bench_limits_raise(b, c, dtype_of(m), e), out);
    for (int64_t k = -1; k < repeat; k++) { /* one to warm up */
        for (int i = 0; i < n_seq; i++) kv_reset(kv, i);
        share_adapters(o, kv, n_seq);
        const double t0 = clock_now_s();
        TRY_GOTO(bench_step(m, kv, n_seq, &s, s.ids, e), out);
        if (k >= 0) s.t[k] = clock_now_s() - t0;
    }
    TRY_GOTO(bench_limits_raise(b, c, dtype_of(m), e), out);
    const double rows = (double)n_seq * (double)tokens, pairs = rows * (double)(tokens + 1) / 2;
    const double flop =
        2 * rows * c->L * layer_params(c) + 2 * n_seq * head_params(c) + c->L * attention_flop(c, pairs);
    const struct bench_times t = bench_times(s.t, (int)repeat);
    struct str line = STR_INIT;
    char label[80];
    bench_line(b, "prefill", model_dtype(m), &line);
    js_put_i64(&line, "batch", n_seq);
    lora_keys(o, &line);
    js_put_i64(&line, "tokens", tokens);
    js_put_f64(&line, "of_matmul_rate", flop / t.median / b->limits.flop_s);
    snprintf(label, sizeof label, "%d x %lld tokens", n_seq, (long long)tokens);
    bench_line_end(b, &line, label, &t, rows / t.median, "token", bench_step_limit_s(b, m, rows, n_seq, pairs, 0));
out:
    step_buffers_free(&s);
    kv_free(kv);
    return st;
}

enum status bench_prefill(struct bench *b, struct model *m, struct err *e) {
    static const int usual[] = {1};
    int n;
    const int *batch = batches(b->o, usual, ARRAY_LEN(usual), &n);
    for (int i = 0; i < n; i++) TRY(prefill(b, m, batch[i], e));
    return ST_OK;
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

/* Most memory this process had resident, in bytes; -1 where Linux does not say. */
static int64_t peak_resident_bytes(void) {
    CLEANUP_FREE char *text = NULL;
    size_t n;
    long long kb;
    if (fs_read("/proc/self/status", 1 << 20, &text, &n, NULL) != ST_OK) return -1;
    const char *p = strstr(text, "VmHWM:");
    return p && sscanf(p + 6, " %lld", &kb) == 1 ? kb * 1024 : -1;
}

/* From here on (proc(5), clear_refs). Where that is refused the peak is the process's from its beginning. */
static void reset_peak(void) {
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (!f) return;
    fputs("5", f);
    fclose(f);
}

/* B of a new adapter is zero, and products with zeros prove little. */
static void random_lora(struct model *m, uint64_t seed) {
    int n;
    const struct param *p = model_params(m, &n);
    for (int i = 0; i < n; i++) {
        struct rng r = rng_make(6 + seed, (uint64_t)i);
        CLEANUP_FREE float *host = xmalloc((size_t)p[i].n * sizeof *host);
        for (int64_t j = 0; j < p[i].n; j++) host[j] = 0.02f * (float)(rng_next_f64(&r) - 0.5);
        model_param_put(m, &p[i], host);
    }
    model_params_changed(m);
}

enum status bench_lora(const struct bench *b, struct model *m, struct err *e) {
    const struct adapter_shape shape = {.rank = b->o->lora_rank, .alpha = 32, .expert_rank = b->o->lora_expert_rank};
    return model_lora_create(m, &shape, 1, e);
}

enum status bench_adapter(struct bench *b, struct model *m, struct err *e) {
    const int n = b->o->adapters > 1 ? b->o->adapters : 1;
    for (int i = 0; i < n; i++) {
        if (i > 0) (void)model_adapter_keep(m);
        TRY(bench_lora(b, m, e));
        TRY(model_train_prepare(m, TRAIN_LORA, e)); /* model_params() lists the adapter now */
        random_lora(m, (uint64_t)i);
    }
    return ST_OK;
}

struct train_times {
    double *forward, *backward, *optimizer, *step;
};

/* The rows of all sequences, taken `micro` sequences at a time, as a step of `train` takes its micro-batches. */
struct train_rows {
    int n_seq, micro;
    int64_t tokens;
    const int32_t *ids, *rows, *targets; /* [n_seq * tokens]; rows within a micro-batch */
    const struct segment *seg;           /* [micro] */
    const float *g;
    float *logp;
};

static enum status train_steps(struct model *m, struct adamw *opt, const struct train_rows *r, int64_t repeat,
                               const struct train_times *t, struct err *e) {
    const struct adamw_config cfg = {1e-6, 0.9, 0.95, 1e-8, 0};
    for (int64_t k = -1; k < repeat; k++) { /* one to warm up */
        const double start = clock_now_s();
        double forward = 0, backward = 0;
        for (int i = 0; i < r->n_seq; i += r->micro) {
            const int n = (int)i64_min(r->micro, r->n_seq - i);
            const int64_t at = i * r->tokens, T = n * r->tokens;
            const struct train_batch batch = {r->ids + at, T, r->seg, n, r->rows + at, r->targets + at, T, false};
            const double t0 = clock_now_s();
            TRY(model_forward(m, &batch, r->logp, NULL, NULL, e));
            const double t1 = clock_now_s();
            TRY(model_backward(m, &batch, r->g + at, e));
            forward += t1 - t0;
            backward += clock_now_s() - t1;
        }
        int n;
        const struct param *p = model_params(m, &n);
        const double t2 = clock_now_s();
        (void)model_grad_norm(m);
        adamw_step(opt, p, n, &cfg, 1, false);
        model_params_changed(m);
        model_zero_grad(m);
        TRY(model_backend(m)->sync(model_backend(m), e));
        const double end = clock_now_s();
        if (k < 0) continue;
        t->forward[k] = forward;
        t->backward[k] = backward;
        t->optimizer[k] = end - t2;
        t->step[k] = end - start;
    }
    return ST_OK;
}

static enum status train(struct bench *b, struct model *m, enum train_what what, struct adamw *opt, int n_seq,
                         struct err *e) {
    const struct bench_options *o = b->o;
    const struct model_config *c = model_cfg(m);
    const int64_t tokens = o->tokens, T = n_seq * tokens, repeat = o->repeat ? o->repeat : 3;
    const int micro = (int)i64_max(1, i64_min(n_seq, (o->train_tokens ? o->train_tokens : 1024) / tokens));
    struct segment *seg = xcalloc((size_t)micro, sizeof *seg);
    int32_t *ids = random_ids(T, c->V, 1), *rows = xmalloc((size_t)T * sizeof *rows), *targets = random_ids(T, c->V, 2);
    float *logp = xcalloc((size_t)T, sizeof *logp), *g = xcalloc((size_t)T, sizeof *g);
    double *t = xcalloc((size_t)(4 * repeat), sizeof *t);
    const struct train_times times = {t, t + repeat, t + 2 * repeat, t + 3 * repeat};
    struct rng r = rng_make(5, 0);
    for (int i = 0; i < micro; i++) seg[i] = (struct segment){i * tokens, tokens, -1, 0};
    for (int64_t i = 0; i < T; i++) { /* every row predicts, and matters */
        rows[i] = (int32_t)(i % (micro * tokens));
        g[i] = (float)((rng_next_f64(&r) - 0.5) / (double)T);
    }
    const struct train_rows all = {n_seq, micro, tokens, ids, rows, targets, seg, g, logp};
    enum status st;
    bench_begin(b);
    TRY_GOTO(bench_limits_raise(b, c, dtype_of(m), e), out);
    reset_peak();
    TRY_GOTO(train_steps(m, opt, &all, repeat, &times, e), out);
    const int64_t peak = peak_resident_bytes();
    TRY_GOTO(bench_limits_raise(b, c, dtype_of(m), e), out);

    const bool full = what == TRAIN_FULL;
    const double flop = bench_train_flop(c, full, (double)T, (double)T, (double)T * (double)(tokens + 1) / 2);
    int n_params;
    const struct param *p = model_params(m, &n_params);
    double trained = 0;
    for (int i = 0; i < n_params; i++) trained += (double)p[i].n;
    const double limit = flop / b->limits.flop_s + 28 * trained / b->limits.bytes_s; /* w, m, v both ways, and g */
    const struct bench_times step = bench_times(times.step, (int)repeat);
    const struct model_memory mem = model_memory(m);
    struct str line = STR_INIT;
    char label[80];
    bench_line(b, full ? "train_full" : "train_lora", model_dtype(m), &line);
    js_put_i64(&line, "batch", n_seq);
    js_put_i64(&line, "tokens", tokens);
    js_put_i64(&line, "train_tokens", micro * tokens);
    if (!full) js_put_i64(&line, "lora_rank", o->lora_rank);
    js_put_f64(&line, "forward_s", bench_times(times.forward, (int)repeat).median);
    js_put_f64(&line, "backward_s", bench_times(times.backward, (int)repeat).median);
    js_put_f64(&line, "optimizer_s", bench_times(times.optimizer, (int)repeat).median);
    js_put_f64(&line, "step_flop", flop);
    js_put_i64(&line, "weight_bytes", mem.weight_bytes);
    js_put_i64(&line, "activation_bytes", mem.activation_bytes);
    js_put_i64(&line, "recomputed_layers", mem.recomputed_layers);
    js_put_bool(&line, "logits_kept", mem.logits_kept);
    if (peak > 0) js_put_i64(&line, "peak_resident_bytes", peak);
    snprintf(label, sizeof label, "%d x %lld tokens, peak %.2f GB", n_seq, (long long)tokens, (double)peak * 1e-9);
    bench_line_end(b, &line, label, &step, (double)T / step.median, "token", limit);
out:
    free(seg);
    free(ids);
    free(rows);
    free(targets);
    free(logp);
    free(g);
    free(t);
    return st;
}

enum status bench_train(struct bench *b, struct model *m, enum train_what what, struct err *e) {
    static const int usual[] = {8};
    int n, n_params;
    const int *batch = batches(b->o, usual, ARRAY_LEN(usual), &n);
    if (what == TRAIN_LORA) TRY(bench_lora(b, m, e));
    TRY(model_train_prepare(m, what, e));
    if (what == TRAIN_LORA) random_lora(m, 0);
    const struct param *p = model_params(m, &n_params);
    struct adamw *opt;
    TRY(adamw_create(b->be, p, n_params, &opt, e));
    enum status st = ST_OK;
    for (int i = 0; st == ST_OK && i < n; i++) st = train(b, m, what, opt, batch[i], e);
    adamw_free(opt);
    return st;
}
