/* model: training and decoding rates of a model with random weights and random tokens.
 * Usage: build/bench/model [D L F V H G K | qwen2.5-0.5b]. Prints, per line, what was run and
 *  - training: tokens/s, the GFLOP/s of its matrix products (6 per weight and token, attention left out), and their
 *    ratio to the bare matmul rate: the same products on the same shapes, nothing else;
 *  - decode: tokens/s with 64 sequences around context 500.
 * qwen2.5-0.5b is that model's shape with frozen bf16 weights: each line then ends with the share it reaches of what no
 * program can beat, the larger of bytes / bandwidth and flops / rate, with bandwidth (all threads read 256 MB) and rate
 * (the best product of the model at 2048 rows) measured in the same run. Bytes are weights and cached keys and values,
 * flops those of the weights' products. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/str.h"
#include "bench/bandwidth.h"
#include "cpu/pairs.h"
#include "model/model.h"
#include "tensor/backend.h"

static int fatal(const struct err *e) {
    fprintf(stderr, "bench/model: %s\n", e->msg);
    return 1;
}

static void fill(float *p, int64_t n, uint64_t stream) {
    struct rng r = rng_make(2, stream);
    for (int64_t i = 0; i < n; i++) p[i] = (float)(rng_next_f64(&r) - 0.5);
}

/* Seconds for the forward, dX and dW products of one [N,K] weight over T rows. */
static double bare(struct backend *be, int64_t T, int64_t N, int64_t K) {
    float *x = xaligned((size_t)(T * K) * 4), *y = xaligned((size_t)(T * N) * 4), *w = xaligned((size_t)(N * K) * 4);
    float *dw = xaligned((size_t)(N * K) * 4), *dx = xaligned((size_t)(T * K) * 4);
    fill(x, T * K, 1);
    fill(w, N * K, 2);
    struct weight wt = {.w = w, .N = N, .K = K};
    be->weight_pack(be, &wt);
    double best = 1e9;
    for (int i = 0; i < 4; i++) {
        double t0 = clock_now_s();
        be->linear(be, tensor_full(y, T, N), tensor_full(x, T, K), &wt, NULL, false);
        be->linear_dx(be, tensor_full(dx, T, K), tensor_full(y, T, N), &wt, false);
        be->linear_dw(be, dw, tensor_full(y, T, N), tensor_full(x, T, K), DT_F32);
        double t = clock_now_s() - t0;
        best = t < best ? t : best;
    }
    be->weight_free(be, &wt);
    free(x);
    free(y);
    free(w);
    free(dw);
    free(dx);
    return best;
}

/* `groups` prompts of `prompt` tokens, each continued by `samples` answers of `answer` tokens. */
static enum status train(struct model *m, int groups, int samples, int prompt, int answer, struct err *e) {
    const struct model_config *c = model_cfg(m);
    const int64_t T = (int64_t)groups * (prompt + samples * answer), N = (int64_t)groups * samples * answer;
    const int n_seg = groups * (1 + samples);
    struct segment *seg = xcalloc((size_t)n_seg, sizeof *seg);
    int32_t *ids = xcalloc((size_t)T, 4), *rows = xcalloc((size_t)N, 4), *targets = xcalloc((size_t)N, 4);
    float *logp = xcalloc((size_t)N, 4), *g = xcalloc((size_t)N, 4);
    struct rng r = rng_make(3, 0);
    for (int64_t t = 0; t < T; t++) ids[t] = (int32_t)rng_below(&r, (uint64_t)c->V);
    int64_t t = 0, n = 0;
    for (int i = 0, s = 0; i < groups; i++) {
        const int head = s;
        seg[s++] = (struct segment){t, prompt, -1};
        t += prompt;
        for (int j = 0; j < samples; j++) {
            seg[s++] = (struct segment){t, answer, head};
            for (int k = 0; k < answer; k++, n++) { /* the last prompt row predicts the first token */
                rows[n] = (int32_t)(k ? t + k - 1 : seg[head].start + prompt - 1);
                targets[n] = ids[t + k];
                g[n] = (float)(rng_next_f64(&r) - 0.5);
            }
            t += answer;
        }
    }
    const struct train_batch b = {ids, T, seg, n_seg, rows, targets, N};
    double fwd = 1e9, bwd = 1e9;
    for (int i = 0; i < 4; i++) {
        double t0 = clock_now_s();
        TRY(model_forward(m, &b, logp, NULL, NULL, e));
        double t1 = clock_now_s();
        TRY(model_backward(m, &b, g, e));
        double t2 = clock_now_s();
        if (i && t1 - t0 < fwd) fwd = t1 - t0; /* the first run allocates */
        if (i && t2 - t1 < bwd) bwd = t2 - t1;
    }
    const int64_t D = c->D, Q = (c->H + 2 * c->G) * (int64_t)c->K, HK = (int64_t)c->H * c->K;
    const double flop =
        6.0 * ((double)T * (double)c->L * (double)(D * Q + D * HK + 3 * D * c->F) + (double)N * (double)(c->V * D));
    struct backend *be = model_backend(m);
    const double products =
        c->L * (bare(be, T, Q, D) + bare(be, T, D, HK) + bare(be, T, 2 * c->F, D) + bare(be, T, D, c->F)) +
        bare(be, N, c->V, D);
    const double rate = flop / (fwd + bwd) * 1e-9;
    printf("train %d x (%d + %d x %d), T %lld: forward %.3f s, backward %.3f s, %.0f tok/s, %.0f GFLOP/s, bare matmuls "
           "%.0f GFLOP/s, ratio %.2f\n",
           groups, prompt, samples, answer, (long long)T, fwd, bwd, (double)T / (fwd + bwd), rate,
           flop / products * 1e-9, products / (fwd + bwd));
    double t0 = clock_now_s();
    model_params_changed(m);
    printf("repack after an update: %.2f ms\n", (clock_now_s() - t0) * 1e3);
    free(seg);
    free(ids);
    free(rows);
    free(targets);
    free(logp);
    free(g);
    return ST_OK;
}

static enum status decode(struct model *m, int n_seq, int context, struct err *e) {
    const struct model_config *c = model_cfg(m);
    const int before = 20, after = 20;
    struct kv_cache *kv;
    TRY(kv_create(m, n_seq, context + after, 0, &kv, e));
    int *seq = xcalloc((size_t)n_seq, sizeof *seq), *n = xcalloc((size_t)n_seq, sizeof *n);
    int32_t *ids = xcalloc((size_t)n_seq * (size_t)context, 4);
    float *logits = xcalloc((size_t)n_seq * (size_t)c->V, 4);
    struct rng r = rng_make(4, 0);
    for (int64_t i = 0; i < (int64_t)n_seq * context; i++) ids[i] = (int32_t)rng_below(&r, (uint64_t)c->V);
    for (int i = 0; i < n_seq; i++) {
        seq[i] = i;
        n[i] = context - before;
    }
    double t0 = clock_now_s();
    TRY(model_step(m, kv, n_seq, seq, n, ids, logits, e));
    double prefill = clock_now_s() - t0;
    for (int i = 0; i < n_seq; i++) n[i] = 1;
    t0 = clock_now_s();
    for (int k = 0; k < before + after; k++) TRY(model_step(m, kv, n_seq, seq, n, ids + (int64_t)k * n_seq, logits, e));
    double t = (clock_now_s() - t0) / (before + after);
    printf("prefill %d x %d: %.0f tok/s; decode %d sequences at context %d: %.0f tok/s\n", n_seq, context - before,
           (double)(n_seq * (context - before)) / prefill, n_seq, context, n_seq / t);
    kv_free(kv);
    free(seq);
    free(n);
    free(ids);
    free(logits);
    return ST_OK;
}

/* ---- Qwen2.5-0.5B ------------------------------------------------------------------------------------------------ */

static const char qwen[] = "{\"architectures\":[\"Qwen2ForCausalLM\"],\"hidden_size\":896,\"num_hidden_layers\":24,"
                           "\"intermediate_size\":4864,\"vocab_size\":151936,\"num_attention_heads\":14,"
                           "\"num_key_value_heads\":2,\"tie_word_embeddings\":true,\"max_position_embeddings\":32768,"
                           "\"rope_theta\":1000000.0}";
struct limits {
    double bytes_s, flop_s;
};

/* Best of the forward products at 2048 rows, and of reading memory. */
static struct limits measure(struct backend *be, const struct model_config *c) {
    struct limits l = {0};
    const int64_t bytes = 256 << 20, T = 2048;
    void *memory = packed_alloc((size_t)bytes);
    l.bytes_s = read_bandwidth(be->pool, memory, bytes, 1);
    free(memory);
    const int64_t shape[][2] = {{2 * c->F, c->D}, {c->D, c->F}, {c->D, c->D}};
    for (size_t s = 0; s < ARRAY_LEN(shape); s++) {
        const int64_t N = shape[s][0], K = shape[s][1];
        struct weight w = {.N = N, .K = K, .dt = DT_BF16};
        float *x = xaligned((size_t)(T * K) * 4), *y = xaligned((size_t)(T * N) * 4);
        uint16_t *bits = xcalloc((size_t)(N * K), 2);
        fill(x, T * K, 1);
        for (int64_t i = 0; i < N * K; i++) bits[i] = (uint16_t)(0x3c00 + i % 300);
        be->weight_put(be, &w, 0, N, bits);
        for (int i = 0; i < 6; i++) {
            double t0 = clock_now_s();
            be->linear(be, tensor_full(y, T, N), tensor_full(x, T, K), &w, NULL, false);
            const double rate = 2.0 * (double)(T * N) * (double)K / (clock_now_s() - t0);
            l.flop_s = rate > l.flop_s ? rate : l.flop_s;
        }
        be->weight_free(be, &w);
        free(x);
        free(y);
        free(bits);
    }
    return l;
}

static double larger(double a, double b) { return a > b ? a : b; }

/* Best of a few decode steps and the prefill before them. */
static enum status qwen_decode(struct model *m, const struct limits *l, int n_seq, int prompt, struct err *e) {
    const struct model_config *c = model_cfg(m);
    const int steps = n_seq > 16 ? 16 : 32;
    const double D = c->D, layers = c->L * (D * (c->H + 2 * c->G) * c->K + D * c->H * c->K + 3 * D * c->F),
                 head = D * c->V;
    struct kv_cache *kv;
    TRY(kv_create(m, n_seq, prompt + steps, 0, &kv, e));
    int *seq = xcalloc((size_t)n_seq, sizeof *seq), *n = xcalloc((size_t)n_seq, sizeof *n);
    int32_t *ids = xcalloc((size_t)(n_seq > prompt ? n_seq : prompt), 4);
    float *logits = xcalloc((size_t)n_seq * (size_t)c->V, 4);
    struct rng r = rng_make(4, 0);
    for (int i = 0; i < (n_seq > prompt ? n_seq : prompt); i++) ids[i] = (int32_t)rng_below(&r, (uint64_t)c->V);
    double prefill = 1e9, best = 1e9;
    for (int i = 0; i < n_seq; i++) {
        seq[i] = i;
        n[i] = prompt;
        double t0 = clock_now_s();
        TRY(model_step(m, kv, 1, seq + i, n + i, ids, logits, e));
        const double t = clock_now_s() - t0;
        prefill = t < prefill ? t : prefill;
    }
    for (int i = 0; i < n_seq; i++) n[i] = 1;
    for (int k = 0; k < steps; k++) {
        double t0 = clock_now_s();
        TRY(model_step(m, kv, n_seq, seq, n, ids, logits, e));
        const double t = clock_now_s() - t0;
        best = t < best ? t : best;
    }
    const double cached = 8.0 * c->L * c->G * c->K * (prompt + steps / 2), bytes = 2 * (layers + head) + n_seq * cached;
    const double limit = larger(bytes / l->bytes_s, 2 * (layers + head) * n_seq / l->flop_s);
    printf("decode %2d sequences at context %d: %7.1f tok/s, %5.1f GB/s, %.2f of the limit\n", n_seq, prompt,
           n_seq / best, bytes / best * 1e-9, limit / best);
    if (n_seq == 1)
        printf("prefill %d tokens: %.0f tok/s, %.2f of the limit\n", prompt, prompt / prefill,
               (2 * layers * prompt / l->flop_s) / prefill);
    fflush(stdout);
    kv_free(kv);
    free(seq);
    free(n);
    free(ids);
    free(logits);
    return ST_OK;
}

/* One LoRA step: forward and backward of a prompt with answers. The limit counts what LoRA training of frozen weights
 * needs: each product forward and its dX, and the adapter's own products at the same rate. */
static enum status qwen_train(struct model *m, const struct limits *l, int rank, int prompt, int samples, int answer,
                              struct err *e) {
    const struct model_config *c = model_cfg(m);
    const int64_t T = prompt + (int64_t)samples * answer, N = (int64_t)samples * answer;
    struct segment *seg = xcalloc((size_t)samples + 1, sizeof *seg);
    int32_t *ids = xcalloc((size_t)T, 4), *rows = xcalloc((size_t)N, 4), *targets = xcalloc((size_t)N, 4);
    float *logp = xcalloc((size_t)N, 4), *g = xcalloc((size_t)N, 4);
    struct rng r = rng_make(3, 0);
    for (int64_t t = 0; t < T; t++) ids[t] = (int32_t)rng_below(&r, (uint64_t)c->V);
    seg[0] = (struct segment){0, prompt, -1};
    for (int j = 0; j < samples; j++) {
        const int64_t start = prompt + (int64_t)j * answer;
        seg[j + 1] = (struct segment){start, answer, 0};
        for (int k = 0; k < answer; k++) {
            const int64_t i = (int64_t)j * answer + k;
            rows[i] = (int32_t)(k ? start + k - 1 : prompt - 1);
            targets[i] = ids[start + k];
            g[i] = (float)(rng_next_f64(&r) - 0.5);
        }
    }
    const struct train_batch b = {ids, T, seg, samples + 1, rows, targets, N};
    double fwd = 1e9, bwd = 1e9;
    for (int i = 0; i < 3; i++) {
        double t0 = clock_now_s();
        TRY(model_forward(m, &b, logp, NULL, NULL, e));
        double t1 = clock_now_s();
        TRY(model_backward(m, &b, g, e));
        double t2 = clock_now_s();
        fwd = t1 - t0 < fwd ? t1 - t0 : fwd;
        bwd = t2 - t1 < bwd ? t2 - t1 : bwd;
    }
    const double D = c->D, HK = c->H * c->K, GK = c->G * c->K, F = c->F;
    const double layers = c->L * (D * (HK + 2 * GK) + D * HK + 3 * D * F), head = D * c->V;
    const double lora = c->L * rank * (4 * D + 2 * (HK + GK) + 3 * (D + F));
    const double flop = 4 * ((double)T * layers + (double)N * head) + 6 * (double)T * lora;
    printf("LoRA step, rank %d, %d + %d x %d tokens: forward %.2f s, backward %.2f s, %.0f tok/s, %.2f of the limit\n",
           rank, prompt, samples, answer, fwd, bwd, (double)T / (fwd + bwd), flop / l->flop_s / (fwd + bwd));
    free(seg);
    free(ids);
    free(rows);
    free(targets);
    free(logp);
    free(g);
    return ST_OK;
}

static enum status bench_qwen(struct backend *be, struct err *e) {
    struct model *m;
    const struct model_options opt = {.frozen = true}; /* and bf16 by its size */
    double t0 = clock_now_s();
    TRY(model_init(qwen, 1, &opt, be, &m, e));
    const struct limits l = measure(be, model_cfg(m));
    printf("%s, %d threads; Qwen2.5-0.5B, %s weights made in %.0f s; memory %.1f GB/s, products %.0f GFLOP/s\n",
           cpu_isa_name(), pool_threads(be->pool), model_dtype(m), clock_now_s() - t0, l.bytes_s * 1e-9,
           l.flop_s * 1e-9);
    fflush(stdout);
    static const int batch[] = {1, 16, 64};
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < ARRAY_LEN(batch); i++) st = qwen_decode(m, &l, batch[i], 384, e);
    const int rank = 16;
    if (st == ST_OK) st = model_lora_init(m, rank, 32, 1, e);
    if (st == ST_OK) st = model_train_prepare(m, TRAIN_LORA, e);
    if (st == ST_OK) st = qwen_train(m, &l, rank, 256, 4, 192, e);
    model_free(m);
    return st;
}

int main(int argc, char **argv) {
    const bool large = argc == 2 && strcmp(argv[1], "qwen2.5-0.5b") == 0;
    long long d[7] = {256, 6, 768, 2048, 8, 4, 32};
    for (int i = 1; i < argc && i <= 7 && !large; i++) {
        int64_t v;
        if (!parse_i64(argv[i], &v) || v < 1)
            return fprintf(stderr, "usage: model [D L F V H G K | qwen2.5-0.5b]\n"), 2;
        d[i - 1] = v;
    }
    struct str s = STR_INIT;
    str_addf(&s,
             "{\"architectures\":[\"Qwen3ForCausalLM\"],\"hidden_size\":%lld,\"num_hidden_layers\":%lld,"
             "\"intermediate_size\":%lld,\"vocab_size\":%lld,\"num_attention_heads\":%lld,\"num_key_value_heads\":%lld,"
             "\"head_dim\":%lld,\"tie_word_embeddings\":true,\"max_position_embeddings\":4096}",
             d[0], d[1], d[2], d[3], d[4], d[5], d[6]);
    struct err e = {0};
    struct pool *pool = pool_create(0);
    struct backend *be;
    struct model *m;
    if (cpu_backend_open(pool, &be, &e) != ST_OK) return fatal(&e);
    if (large) {
        const enum status st = bench_qwen(be, &e);
        be->close(be);
        pool_destroy(pool);
        str_free(&s);
        return st == ST_OK ? 0 : fatal(&e);
    }
    if (model_init(str_c(&s), 1, NULL, be, &m, &e) != ST_OK) return fatal(&e);
    printf("%s, %d threads; D %lld L %lld F %lld V %lld H %lld G %lld K %lld\n", cpu_isa_name(), pool_threads(pool),
           d[0], d[1], d[2], d[3], d[4], d[5], d[6]);
    enum status st = decode(m, 64, 500, &e);
    if (st == ST_OK) st = decode(m, 16, 500, &e);
    if (st == ST_OK) st = decode(m, 1, 500, &e);
    if (st == ST_OK) st = model_train_prepare(m, TRAIN_FULL, &e);
    if (st == ST_OK) st = train(m, 2, 16, 300, 200, &e);
    if (st == ST_OK) st = train(m, 8, 0 + 1, 300, 700, &e);
    if (st != ST_OK) return fatal(&e);
    model_free(m);
    be->close(be);
    pool_destroy(pool);
    str_free(&s);
    return 0;
}
