/* Every op against the oracle of naive.c, over odd sizes, 0 and 1 rows, each instruction set this machine has, and one
 * and two threads; the bits of all instruction sets and thread counts must agree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/naive.h"
#include "cpu/test_util.h"

enum { N_ISA = 3, N_BE = 2 * N_ISA };

static int setup(void **state) {
    (void)state;
    return open_backends(N_ISA);
}

static void same_bits(const float *a, const float *b, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof(float)) != 0)
            fail_msg("%s: element %lld: %.9g is not %.9g", what, (long long)i, (double)a[i], (double)b[i]);
}

static void near(float got, double want, double abs_tol, double rel_tol, const char *what) {
    if (!(fabs((double)got - want) <= abs_tol + rel_tol * fabs(want)))
        fail_msg("%s: got %.9g, expected %.9g", what, (double)got, want);
}

/* M, N, K of the products; leading dimensions are a little larger, and guards behind each row must survive. */
static const int64_t sizes[][3] = {{0, 5, 3},    {1, 1, 1},    {1, 64, 128}, {2, 65, 129},  {5, 15, 0},
                                   {6, 16, 16},  {7, 17, 127}, {8, 63, 130}, {11, 130, 31}, {12, 48, 64},
                                   {13, 1, 257}, {64, 70, 20}, {1, 200, 5},  {250, 33, 40}, {500, 20, 9}};

static void test_products(void **state) {
    (void)state;
    for (size_t c = 0; c < ARRAY_LEN(sizes); c++) {
        const int64_t M = sizes[c][0], N = sizes[c][1], K = sizes[c][2], ldx = K + 3, ldy = N + 5;
        float *x = randoms(M * ldx, 1, 1), *w = randoms(N * K, 2, 1), *y0 = randoms(M * ldy, 3, 1);
        float *dx0 = randoms(M * ldx, 4, 1), *dw0 = randoms(N * K, 5, 1), *bias = randoms(N, 6, 1);
        float *want[4] = {copy_of(y0, M * ldy), copy_of(y0, M * ldy), copy_of(dx0, M * ldx), copy_of(dx0, M * ldx)};
        float *want_dw = copy_of(dw0, N * K);
        ref_linear(want[0], ldy, x, ldx, w, bias, false, M, N, K);
        ref_linear(want[1], ldy, x, ldx, w, NULL, true, M, N, K);
        ref_linear_dx(want[2], ldx, y0, ldy, w, false, M, N, K);
        ref_linear_dx(want[3], ldx, y0, ldy, w, true, M, N, K);
        ref_linear_dw(want_dw, y0, ldy, x, ldx, M, N, K);
        for (int i = 0; i < N_BE; i++) {
            if (!be[i]) continue;
            struct backend *b = be[i];
            struct weight wt = {.w = w, .N = N, .K = K};
            b->weight_pack(b, &wt);
            for (int acc = 0; acc < 2; acc++) {
                float *y = copy_of(y0, M * ldy), *dx = copy_of(dx0, M * ldx);
                b->linear(b, tensor_f32(y, M, N, ldy), tensor_f32(x, M, K, ldx), &wt, acc ? NULL : bias, acc);
                same_bits(y, want[acc], M * ldy, "linear");
                b->linear_dx(b, tensor_f32(dx, M, K, ldx), tensor_f32(y0, M, N, ldy), &wt, acc);
                same_bits(dx, want[2 + acc], M * ldx, "linear_dx");
                free(y);
                free(dx);
            }
            float *dw = copy_of(dw0, N * K);
            b->linear_dw(b, dw, tensor_f32(y0, M, N, ldy), tensor_f32(x, M, K, ldx), DT_F32);
            same_bits(dw, want_dw, N * K, "linear_dw");
            free(dw);
            b->weight_free(b, &wt);
        }
        free(x), free(w), free(y0), free(dx0), free(dw0), free(bias), free(want_dw);
        for (int i = 0; i < 4; i++) free(want[i]);
    }
}

static void test_rmsnorm(void **state) {
    (void)state;
    static const int64_t shape[][2] = {{0, 8}, {1, 1}, {3, 15}, {5, 64}, {300, 33}};
    for (size_t c = 0; c < ARRAY_LEN(shape); c++) {
        const int64_t T = shape[c][0], n = shape[c][1];
        const float eps = 1e-5f;
        float *x = randoms(T * n, 11, 2), *gain = randoms(n, 12, 1), *dy = randoms(T * n, 13, 1),
              *dx0 = randoms(T * n, 14, 1);
        double *want = xcalloc((size_t)n, 8), *want_dg = xcalloc((size_t)n, 8);
        float *first_y = NULL, *first_dx = NULL, *first_dg = NULL;
        for (int i = 0; i < N_BE; i++) {
            if (!be[i]) continue;
            float *y = xaligned((size_t)(T * n) * 4), *dx = copy_of(dx0, T * n), *dg = xaligned((size_t)n * 4);
            be[i]->rmsnorm(be[i], tensor_full(y, T, n), tensor_full(x, T, n), gain, eps);
            be[i]->rmsnorm_grad(be[i], tensor_full(dx, T, n), dg, tensor_full(dy, T, n), tensor_full(x, T, n), gain,
                                eps, true);
            if (!first_y) {
                for (int64_t t = 0; t < T; t++) {
                    ref_rmsnorm(want, x + t * n, gain, (double)eps, n);
                    for (int64_t j = 0; j < n; j++) near(y[t * n + j], want[j], 1e-7, 1e-6, "rmsnorm");
                    ref_rmsnorm_grad(want, want_dg, dy + t * n, x + t * n, gain, (double)eps, n);
                    for (int64_t j = 0; j < n; j++)
                        near(dx[t * n + j], (double)dx0[t * n + j] + want[j], 3e-6, 3e-6, "rmsnorm_grad");
                }
                for (int64_t j = 0; j < n; j++) near(dg[j], want_dg[j], 1e-4, 1e-5, "gain gradient");
                first_y = y;
                first_dx = dx;
                first_dg = dg;
                continue;
            }
            same_bits(y, first_y, T * n, "rmsnorm");
            same_bits(dx, first_dx, T * n, "rmsnorm_grad");
            same_bits(dg, first_dg, n, "gain gradient");
            free(y), free(dx), free(dg);
        }
        free(x), free(gain), free(dy), free(dx0), free(want), free(want_dg), free(first_y), free(first_dx),
            free(first_dg);
    }
}

static void test_swiglu(void **state) {
    (void)state;
    static const int64_t shape[][2] = {{0, 3}, {1, 1}, {7, 17}, {3, 64}};
    for (size_t c = 0; c < ARRAY_LEN(shape); c++) {
        const int64_t T = shape[c][0], F = shape[c][1];
        float *gu = randoms(T * 2 * F, 21, 3), *dy = randoms(T * F, 22, 1), *first_y = NULL, *first_d = NULL;
        if (T && F > 2) { /* the ends of sigmoid */
            gu[0] = 200;
            gu[1] = -200;
        }
        for (int i = 0; i < N_BE; i++) {
            if (!be[i]) continue;
            float *y = xaligned((size_t)(T * F) * 4), *d = xaligned((size_t)(T * 2 * F) * 4);
            be[i]->swiglu(be[i], tensor_full(y, T, F), tensor_full(gu, T, 2 * F));
            be[i]->swiglu_grad(be[i], tensor_full(d, T, 2 * F), tensor_full(dy, T, F), tensor_full(gu, T, 2 * F));
            if (!first_y) {
                for (int64_t t = 0; t < T; t++)
                    for (int64_t f = 0; f < F; f++) {
                        const double g = (double)gu[t * 2 * F + f], u = (double)gu[t * 2 * F + F + f];
                        const double s = 1 / (1 + exp(-g)), go = (double)dy[t * F + f];
                        near(y[t * F + f], g * s * u, 1e-7, 1e-6, "swiglu");
                        near(d[t * 2 * F + f], go * u * (s + g * s * (1 - s)), 1e-6, 1e-5, "gate gradient");
                        near(d[t * 2 * F + F + f], go * g * s, 1e-7, 1e-6, "up gradient");
                    }
                first_y = y;
                first_d = d;
                continue;
            }
            same_bits(y, first_y, T * F, "swiglu");
            same_bits(d, first_d, T * 2 * F, "swiglu_grad");
            free(y), free(d);
        }
        free(gu), free(dy), free(first_y), free(first_d);
    }
}

static void test_rope(void **state) {
    (void)state;
    const int64_t T = 140, H = 4, G = 2, K = 22, half = K / 2, cols = (H + 2 * G) * K;
    float *qkv = randoms(T * cols, 31, 1), *d0 = randoms(T * cols, 32, 1), *gain = randoms(2 * K, 33, 1);
    float *cs = xaligned((size_t)(T * half) * 4), *sn = xaligned((size_t)(T * half) * 4);
    int32_t *pos = xcalloc((size_t)T, 4);
    for (int64_t t = 0; t < T; t++) {
        pos[t] = (int32_t)(T - 1 - t);
        for (int64_t j = 0; j < half; j++) {
            cs[t * half + j] = cosf(0.1f * (float)(t * (j + 1)));
            sn[t * half + j] = sinf(0.1f * (float)(t * (j + 1)));
        }
    }
    for (int norm = 0; norm < 2; norm++) {
        const struct rope_args a = {H, G, K, pos, cs, sn, norm ? gain : NULL, norm ? gain + K : NULL, 1e-6f};
        float *first = NULL, *first_d = NULL, *first_g = NULL;
        for (int i = 0; i < N_BE; i++) {
            if (!be[i]) continue;
            float *y = xaligned((size_t)(T * (H + G) * K) * 4), *d = copy_of(d0, T * cols),
                  *dg = xaligned((size_t)(2 * K) * 4);
            be[i]->rope(be[i], tensor_full(y, T, (H + G) * K), tensor_full(qkv, T, cols), &a);
            be[i]->rope_grad(be[i], tensor_full(d, T, cols), norm ? dg : NULL, norm ? dg + K : NULL,
                             tensor_full(qkv, T, cols), &a);
            if (!first) {
                /* Forward from the definition; the gradient as the transposed Jacobian: <d0, J v> = <d, v>. */
                double lhs = 0, rhs = 0, *v = xcalloc((size_t)K, 8), *z = xcalloc((size_t)K, 8),
                       *zg = xcalloc((size_t)K, 8);
                for (int64_t t = 0; t < T; t++)
                    for (int64_t h = 0; h < H + G; h++) {
                        const float *x = qkv + t * cols + h * K, *gn = h < H ? gain : gain + K;
                        const double scale = h < H ? 1 / sqrt((double)K) : 1, step = 1e-6;
                        for (int sign = -1; sign <= 1; sign++) {
                            double s = 0;
                            for (int64_t j = 0; j < K; j++) {
                                v[j] = (double)x[j] + sign * step * cos((double)(t + 3 * h + 5 * j));
                                s += v[j] * v[j];
                            }
                            const double r = norm ? 1 / sqrt(s / (double)K + 1e-6) : 1;
                            for (int64_t j = 0; j < K; j++) v[j] *= r * (norm ? (double)gn[j] : 1);
                            for (int64_t j = 0; j < half; j++) {
                                const double c = (double)cs[pos[t] * half + j], w = (double)sn[pos[t] * half + j];
                                z[j] = scale * (v[j] * c - v[j + half] * w);
                                z[j + half] = scale * (v[j + half] * c + v[j] * w);
                            }
                            for (int64_t j = 0; j < K; j++) {
                                if (sign == 0)
                                    near(y[(t * (H + G) + h) * K + j], z[j], 1e-6, 1e-6, "rope");
                                else
                                    lhs += (double)d0[t * cols + h * K + j] * z[j] * sign / (2 * step);
                            }
                        }
                        for (int64_t j = 0; j < K; j++)
                            rhs += (double)d[t * cols + h * K + j] * cos((double)(t + 3 * h + 5 * j));
                    }
                near((float)rhs, lhs, 1e-3, 1e-4, "rope_grad");
                free(v), free(z), free(zg);
                first = y;
                first_d = d;
                first_g = dg;
                continue;
            }
            same_bits(y, first, T * (H + G) * K, "rope");
            same_bits(d, first_d, T * cols, "rope_grad");
            same_bits(dg, first_g, 2 * K, "rope gain gradient");
            free(y), free(d), free(dg);
        }
        free(first), free(first_d), free(first_g);
    }
    free(qkv), free(d0), free(gain), free(cs), free(sn), free(pos);
}

/* Two families: a prefix with two users (one of them empty-handed), and a lone sequence. */
static void test_attention(void **state) {
    (void)state;
    static const int64_t heads[][3] = {{4, 2, 16}, {6, 3, 10}, {3, 1, 70}, {2, 2, 32}};
    for (size_t c = 0; c < ARRAY_LEN(heads); c++) {
        const int64_t H = heads[c][0], G = heads[c][1], K = heads[c][2], rep = H / G;
        const struct attn_seq seq[] = {{0, 70, 0, 0, NULL},
                                       {70, 1, 70, 0, NULL},
                                       {71, 40, 70, 0, NULL},
                                       {111, 0, 70, 0, NULL},
                                       {111, 19, 0, 0, NULL}};
        enum { S = 5 };
        const int64_t T = 130;
        float *q = randoms(T * H * K, 41, 0.7f), *k = randoms(T * G * K, 42, 0.7f), *v = randoms(T * G * K, 43, 1);
        float *d_o = randoms(T * H * K, 44, 1);
        const struct tensor qt = tensor_full(q, T, H * K), kt = tensor_full(k, T, G * K), vt = tensor_full(v, T, G * K);
        const struct attn_shape shape = {H, G, K, NULL, 0};
        float *first_o = NULL, *first_d = NULL;
        const int64_t n_d = T * (H + 2 * G) * K;
        for (int i = 0; i < N_BE; i++) {
            if (!be[i]) continue;
            float *o = xaligned((size_t)(T * H * K) * 4), *stats = xaligned((size_t)(T * H * 2) * 4);
            float *d = xaligned((size_t)n_d * 4);
            struct tensor ot = tensor_full(o, T, H * K), dt = tensor_full(d, T, (H + 2 * G) * K);
            be[i]->attention(be[i], ot, stats, qt, kt, vt, seq, S, shape);
            be[i]->attention_grad(be[i], tensor_cols(dt, 0, H * K), tensor_cols(dt, H * K, G * K),
                                  tensor_cols(dt, (H + G) * K, G * K), tensor_full(d_o, T, H * K), ot, stats, qt, kt,
                                  vt, seq, S, shape);
            /* The same rows out of a cache, one sequence after the other. */
            /* Five blocks, two layers each, of which this is the second. */
            const int64_t layer = kv_layer_floats(G, K);
            float *mem = randoms(5 * 2 * layer, 45, 9);
            const struct attn_shape cached = {H, G, K, mem + layer, 2 * layer};
            static const int32_t tables[S][2] = {{3, 1}, {0, 2}, {4, 3}, {1, 0}, {2, 4}};
            float *o2 = xaligned((size_t)(T * H * K) * 4);
            for (int s = 0; s < S; s++) {
                struct attn_seq own = seq[s], past = {0, seq[s].past, 0, 0, tables[s]};
                own.blocks = tables[s];
                be[i]->kv_write(be[i], kt, vt, &past, 1, cached);
                be[i]->kv_write(be[i], kt, vt, &own, 1, cached);
                be[i]->attention(be[i], tensor_full(o2, T, H * K), NULL, qt, kt, vt, &own, 1, cached);
            }
            same_bits(o2, o, T * H * K, "attention from a cache");
            free(mem), free(o2);
            if (!first_o) {
                double *want = xcalloc((size_t)n_d, 8), *p = xcalloc((size_t)T, 8), *out = xcalloc((size_t)K, 8);
                for (int s = 0; s < S; s++)
                    for (int64_t r = 0; r < seq[s].len; r++)
                        for (int64_t h = 0; h < H; h++) {
                            const float *kp[130], *vp[130];
                            int64_t row[130];
                            const int64_t n = seq[s].past + r + 1, g = h / rep, t = seq[s].row + r;
                            for (int64_t j = 0; j < n; j++) {
                                row[j] = j < seq[s].past ? seq[s].past_row + j : seq[s].row + j - seq[s].past;
                                kp[j] = k + row[j] * G * K + g * K;
                                vp[j] = v + row[j] * G * K + g * K;
                            }
                            const float *qr = q + t * H * K + h * K, *go = d_o + t * H * K + h * K;
                            ref_attention_row(out, p, qr, kp, vp, n, K);
                            double delta = 0;
                            for (int64_t e = 0; e < K; e++) {
                                near(o[t * H * K + h * K + e], out[e], 5e-6, 1e-5, "attention");
                                delta += out[e] * (double)go[e];
                            }
                            for (int64_t j = 0; j < n; j++) {
                                double dp = 0;
                                for (int64_t e = 0; e < K; e++) dp += (double)go[e] * (double)vp[j][e];
                                for (int64_t e = 0; e < K; e++) {
                                    double *dr = want + row[j] * (H + 2 * G) * K;
                                    want[t * (H + 2 * G) * K + h * K + e] += p[j] * (dp - delta) * (double)kp[j][e];
                                    dr[(H + g) * K + e] += p[j] * (dp - delta) * (double)qr[e];
                                    dr[(H + G + g) * K + e] += p[j] * (double)go[e];
                                }
                            }
                        }
                for (int64_t j = 0; j < n_d; j++) near(d[j], want[j], 2e-5, 2e-5, "attention_grad");
                free(want), free(p), free(out);
                first_o = o;
                first_d = d;
                free(stats);
                continue;
            }
            same_bits(o, first_o, T * H * K, "attention");
            same_bits(d, first_d, n_d, "attention_grad");
            free(o), free(d), free(stats);
        }
        free(q), free(k), free(v), free(d_o), free(first_o), free(first_d);
    }
}

static void test_logprob(void **state) {
    (void)state;
    static const int64_t vocab[] = {1, 7, 16, 33, 1000};
    for (size_t c = 0; c < ARRAY_LEN(vocab); c++) {
        const int64_t V = vocab[c], n = 5;
        float *x = randoms(n * V, 51, 4), *g = randoms(n, 52, 1), *first = NULL, *first_d = NULL;
        int32_t target[5];
        for (int64_t i = 0; i < n; i++) target[i] = (int32_t)((i * 37) % V);
        for (int i = 0; i < N_BE; i++) {
            if (!be[i]) continue;
            float *out = xaligned((size_t)(2 * n) * 4), *d = copy_of(x, n * V);
            be[i]->logprob(be[i], out, out + n, tensor_full(x, n, V), target);
            be[i]->logprob_grad(be[i], tensor_full(d, n, V), target, g);
            assert_true(cpu_isa_force(isa[i / 2]));
            for (int64_t r = 0; r < n; r++) { /* what a sampler calls gives the same bits */
                float lp, ent;
                lp = logprob_row(x + r * V, V, target[r], &ent);
                same_bits(&lp, out + r, 1, "logprob_row");
                same_bits(&ent, out + n + r, 1, "entropy of logprob_row");
            }
            if (!first) {
                for (int64_t r = 0; r < n; r++) {
                    double lp, ent, p;
                    ref_logprob(&lp, &ent, x + r * V, V, target[r]);
                    near(out[r], lp, 2e-6, 1e-6, "logprob");
                    near(out[n + r], ent, 2e-6, 1e-6, "entropy");
                    for (int32_t j = 0; j < V; j++) {
                        ref_logprob(&p, &ent, x + r * V, V, j);
                        near(d[r * V + j], (double)g[r] * ((j == target[r]) - exp(p)), 1e-6, 1e-5, "logprob_grad");
                    }
                }
                first = out;
                first_d = d;
                continue;
            }
            same_bits(out, first, 2 * n, "logprob");
            same_bits(d, first_d, n * V, "logprob_grad");
            free(out), free(d);
        }
        free(x), free(g), free(first), free(first_d);
    }
}

static void test_exp(void **state) {
    (void)state;
    for (int i = 0; i < N_ISA; i++) {
        if (!cpu_isa_force(isa[i])) continue;
        float y, x;
        double worst = 0;
        for (int j = -87290; j <= 88290; j += 7) {
            x = (float)j * 1e-3f;
            exp_f32(&y, &x, 1);
            const double want = exp((double)x), ulp = (double)(nextafterf((float)want, INFINITY) - (float)want);
            worst = fmax(worst, fabs((double)y - want) / ulp);
        }
        assert_true(worst <= 2.0);
        x = -100;
        exp_f32(&y, &x, 1);
        assert_true(y == 0);
        x = -INFINITY;
        exp_f32(&y, &x, 1);
        assert_true(y == 0);
        x = 1e30f;
        exp_f32(&y, &x, 1);
        assert_true(isfinite(y) && y > 1e38f);
        x = NAN;
        exp_f32(&y, &x, 1);
        assert_true(isnan(y));
    }
    assert_false(cpu_isa_force("sse9"));
}

static void test_rows_by_index(void **state) {
    (void)state;
    const int64_t V = 9, D = 37, T = 50;
    float *table = randoms(V * D, 61, 1), *dx = randoms(T * D, 62, 1), *want = xaligned((size_t)(V * D) * 4);
    int32_t ids[50];
    for (int64_t t = 0; t < T; t++) ids[t] = (int32_t)((t * t) % V);
    for (int64_t t = 0; t < T; t++)
        for (int64_t j = 0; j < D; j++) want[ids[t] * D + j] += dx[t * D + j];
    for (int i = 0; i < N_BE; i++) {
        if (!be[i]) continue;
        float *x = xaligned((size_t)(T * D) * 4), *d = xaligned((size_t)(V * D) * 4), *db = xaligned((size_t)D * 4);
        be[i]->embed(be[i], tensor_full(x, T, D), &(struct weight){.w = table, .K = D}, ids);
        for (int64_t t = 0; t < T; t++) same_bits(x + t * D, table + ids[t] * D, D, "embed");
        be[i]->embed_grad(be[i], d, tensor_full(dx, T, D), ids);
        same_bits(d, want, V * D, "embed_grad");
        be[i]->bias_grad(be[i], db, tensor_full(dx, T, D));
        for (int64_t j = 0; j < D; j++) {
            float s = 0;
            for (int64_t t = 0; t < T; t++) s += dx[t * D + j];
            same_bits(db + j, &s, 1, "bias_grad");
        }
        be[i]->axpby(be[i], tensor_full(x, T, D), 2, tensor_full(dx, T, D), 0.5f);
        for (int64_t t = 0; t < T; t++)
            for (int64_t j = 0; j < D; j++)
                near(x[t * D + j], 2 * (double)dx[t * D + j] + 0.5 * (double)table[ids[t] * D + j], 1e-6, 1e-6,
                     "axpby");
        free(x), free(d), free(db);
    }
    free(table), free(dx), free(want);
}

/* Long enough that threads share it and that the sums take more than one round; odd at the end. */
static void test_optimizer(void **state) {
    (void)state;
    static const int64_t lengths[] = {0, 1, 1000, 1024, 1025, 70000, (int64_t)SUM_BLOCK * (1 << 14) + 4099};
    for (size_t l = 0; l < ARRAY_LEN(lengths); l++) {
        const int64_t n = lengths[l];
        float *x = randoms(n + 1, 80 + l, 1);
        double want = 0, sum = 0;
        for (int64_t run = 0, runs = (int64_t)SUM_BLOCK * SUM_BLOCK; run < n; run += runs) {
            double all = 0;
            for (int64_t i = run; i < n && i < run + runs; i += SUM_BLOCK) {
                double s = 0;
                for (int64_t j = i; j < n && j < i + SUM_BLOCK; j++) s += (double)x[j] * (double)x[j];
                all += s;
            }
            want += all;
        }
        for (int i = 0; i < N_BE; i++) {
            if (!be[i]) continue;
            sum = be[i]->sum_squares(be[i], x, n);
            if (memcmp(&sum, &want, sizeof sum) != 0)
                fail_msg("sum_squares of %lld: %.17g, %.17g", (long long)n, sum, want);
        }
        free(x);
    }
    float big[3] = {1e30f, 0, 3e30f}; /* squares beyond float */
    assert_true(fabs(be[0]->sum_squares(be[0], big, 3) / 1e61 - 1) < 1e-6);
    big[1] = NAN;
    assert_true(isnan(be[0]->sum_squares(be[0], big, 3)));

    const int64_t n = 70001;
    const struct adamw_args a = {0.9f, 0.95f, 1e-8f, 0.37f, 0.999f, 3e-3f, 4.5f};
    float *g = randoms(n, 90, 1), *w0 = randoms(n, 91, 1), *m0 = randoms(n, 92, 0.3f), *v0 = randoms(n, 93, 1);
    float *first[3] = {NULL, NULL};
    for (int64_t i = 0; i < n; i++) v0[i] *= v0[i];
    for (int i = 0; i < N_BE; i++) {
        if (!be[i]) continue;
        float *w = copy_of(w0, n), *m = copy_of(m0, n), *v = copy_of(v0, n);
        be[i]->adamw(be[i], w, m, v, g, n - 1, &a);
        assert_true(w[n - 1] == w0[n - 1] && m[n - 1] == m0[n - 1] && v[n - 1] == v0[n - 1]); /* not its own */
        for (int64_t j = 0; j < n - 1; j++) {
            const double gs = (double)g[j] * (double)a.scale, b1 = (double)a.beta1, b2 = (double)a.beta2;
            const double mw = b1 * (double)m0[j] + (1 - b1) * gs, vw = b2 * (double)v0[j] + (1 - b2) * gs * gs;
            near(m[j], mw, 1e-7, 1e-6, "adamw m");
            near(v[j], vw, 1e-8, 1e-6, "adamw v");
            near(w[j],
                 (double)w0[j] * (double)a.decay -
                     (double)a.step_size * mw / (sqrt(vw) * (double)a.inv_sqrt_bias2 + (double)a.eps),
                 1e-6, 1e-6, "adamw w");
        }
        if (!first[0]) {
            first[0] = w, first[1] = m, first[2] = v;
            continue;
        }
        same_bits(w, first[0], n, "adamw w");
        same_bits(m, first[1], n, "adamw m");
        same_bits(v, first[2], n, "adamw v");
        free(w), free(m), free(v);
    }
    free(first[0]), free(first[1]), free(first[2]);
    free(g), free(w0), free(m0), free(v0);
}

static void test_memory(void **state) {
    (void)state;
    struct backend *b = be[0];
    const int64_t have = b->mem_available(b);
    assert_true(have > 1 << 20);
    float *x = randoms(1000, 95, 1), back[1000], *p = b->mem_alloc(b, 4000), *q = b->mem_alloc(b, 4000);
    assert_true(((uintptr_t)p & 63) == 0 && ((uintptr_t)q & 63) == 0);
    b->mem_put(b, p, x, 4000);
    b->mem_copy(b, q, p, 4000);
    b->mem_zero(b, p + 10, 40);
    b->mem_get(b, back, q, 4000);
    same_bits(back, x, 1000, "put, copy, get");
    b->mem_get(b, back, p, 4000);
    for (int i = 0; i < 1000; i++) assert_true(back[i] == (i >= 10 && i < 20 ? 0.0f : x[i]));
    b->mem_free(b, p);
    b->mem_free(b, q);
    b->mem_free(b, NULL);
    free(x);
}

static void test_forced_isa(void **state) {
    (void)state;
    struct err e;
    struct backend *b = NULL;
    setenv("KERNELRL_CPU", "quantum", 1);
    assert_int_equal(cpu_backend_open(NULL, &b, &e), ST_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "quantum"));
    unsetenv("KERNELRL_CPU");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),  cmocka_unit_test(test_rmsnorm),       cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_rope),      cmocka_unit_test(test_attention),     cmocka_unit_test(test_logprob),
        cmocka_unit_test(test_exp),       cmocka_unit_test(test_rows_by_index), cmocka_unit_test(test_forced_isa),
        cmocka_unit_test(test_optimizer), cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
