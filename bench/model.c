/* model: training and decoding rates of a small model with random weights and random tokens.
 * Usage: build/bench/model [D L F V H G K]. Prints, per line, what was run and
 *  - training: tokens/s, the GFLOP/s of its matrix products (6 per weight and token, attention left out), and their
 *    ratio to the bare matmul rate: the same products on the same shapes, nothing else;
 *  - decode: tokens/s with 64 sequences around context 500. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/str.h"
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
        be->linear_dw(be, dw, tensor_full(y, T, N), tensor_full(x, T, K));
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

int main(int argc, char **argv) {
    long long d[7] = {256, 6, 768, 2048, 8, 4, 32};
    for (int i = 1; i < argc && i <= 7; i++) {
        int64_t v;
        if (!parse_i64(argv[i], &v) || v < 1) return fprintf(stderr, "usage: model [D L F V H G K]\n"), 2;
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
    if (cpu_backend_open(pool, &be, &e) != ST_OK || model_init(str_c(&s), 1, be, &m, &e) != ST_OK) return fatal(&e);
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
