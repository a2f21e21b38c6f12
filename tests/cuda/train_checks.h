/* A part of plugin_test.c: checks of what training puts into one op or does otherwise in bfloat16. */
#ifndef KERNELRL_TRAIN_CHECKS_H
#define KERNELRL_TRAIN_CHECKS_H

/* rmsnorm_back against rmsnorm and rmsnorm_grad, whose sums are in another order, with the gain's gradient and without;
 * and the rounding that it leaves to the product behind it, bit for bit. */
static bool norm_back_right(struct backend *gpu, int64_t n) {
    enum { T = 18, OUT = 16, WAYS = 3 };
    struct rng r = rng_make(91, (uint64_t)n);
    struct err e;
    const size_t all = (size_t)(T * n);
    float *host = xmalloc((3 * all + (size_t)n) * sizeof *host), *dx[WAYS], *dgain[WAYS], product[WAYS][T * OUT];
    uint16_t *y[WAYS], *matrix = xmalloc((size_t)(OUT * n) * 2);
    uint16_t *dy16 = xmalloc(all * 2);
    for (size_t i = 0; i < 3 * all + (size_t)n; i++) host[i] = 2 * (float)rng_normal(&r);
    for (size_t i = 0; i < all; i++) host[all + i] = (float)bf16_value(dy16[i] = bf16_near(2 * rng_normal(&r)));
    for (int64_t i = 0; i < OUT * n; i++) matrix[i] = bf16_near(rng_normal(&r));
    struct weight w = {.N = n, .K = OUT, .dt = DT_BF16};
    gpu->weight_put(gpu, &w, 0, n, matrix);
    float *const dev = gpu->mem_alloc(gpu, (3 * all + (size_t)n) * sizeof *dev);
    void *const h = gpu->mem_alloc(gpu, all * 2), *const out = gpu->mem_alloc(gpu, sizeof product[0]);
    const struct tensor to = tensor_full(dev, T, n), dy = tensor_full(dev + all, T, n),
                        narrow = tensor_of(gpu->mem_alloc(gpu, all * 2), DT_BF16, T, n),
                        x = tensor_full(dev + 2 * all, T, n), norm = tensor_of(h, DT_BF16, T, n),
                        thin = tensor_full(out, T, OUT);
    const float *gain = dev + 3 * all;
    float *const dg = gpu->mem_alloc(gpu, (size_t)n * sizeof *dg);
    gpu->mem_put(gpu, narrow.data, dy16, all * 2);
    for (int way = 0; way < WAYS; way++) { /* two ops; one; one, and its dx rounded once more */
        dx[way] = xmalloc(all * sizeof(float));
        y[way] = xmalloc(all * 2);
        dgain[way] = xmalloc((size_t)n * sizeof(float));
        gpu->mem_put(gpu, dg, host, (size_t)n * sizeof *dg); /* it is added to */
        gpu->mem_put(gpu, dev, host, (3 * all + (size_t)n) * sizeof *dev);
        if (way == 0) {
            gpu->rmsnorm(gpu, norm, x, gain, 1e-6f);
            gpu->rmsnorm_grad(gpu, to, dg, dy, x, gain, 1e-6f, true);
        } else {
            gpu->linear_dx(gpu, thin, to, &w, false); /* makes room for a rounding */
            gpu->rmsnorm_back(gpu, to, norm, narrow, x, gain, 1e-6f, way == 2 ? dg : NULL);
        }
        if (way == 2) gpu->axpby(gpu, to, 1, to, 0);
        gpu->linear_dx(gpu, thin, to, &w, false);
        gpu->mem_get(gpu, dx[way], dev, all * sizeof(float));
        gpu->mem_get(gpu, y[way], h, all * 2);
        gpu->mem_get(gpu, dgain[way], dg, (size_t)n * sizeof *dg);
        gpu->mem_get(gpu, product[way], out, sizeof product[0]);
    }
    bool ok = gpu->sync(gpu, &e) == ST_OK && memcmp(product[1], product[2], sizeof product[1]) == 0 &&
              memcmp(dx[1], dx[2], all * sizeof(float)) == 0;
    for (size_t i = 0; i < all; i++) {
        ok &= fabsf(dx[0][i] - dx[1][i]) < 1e-5f * (1 + fabsf(dx[0][i])) && dx[1][i] != host[i];
        ok &= fabs(bf16_value(y[0][i]) - bf16_value(y[1][i])) <= 0.008 * fabs(bf16_value(y[0][i]));
    }
    for (int64_t j = 0; j < n; j++)
        ok &= fabsf(dgain[0][j] - dgain[2][j]) < 1e-4f && dgain[1][j] == host[j] && dgain[2][j] != host[j];
    for (int way = 0; way < WAYS; way++) free(dx[way]), free(y[way]), free(dgain[way]);
    gpu->weight_free(gpu, &w);
    gpu->mem_free(gpu, dg), gpu->mem_free(gpu, dev), gpu->mem_free(gpu, h), gpu->mem_free(gpu, out),
        gpu->mem_free(gpu, narrow.data);
    free(host), free(matrix), free(dy16);
    return ok;
}

/* bias_grad of bfloat16 rows against that of the same numbers in float32; columns that do not come in aligned pairs
 * give its bits. */
static bool bias_grad_right(struct backend *gpu, int64_t T, int64_t n) {
    struct rng r = rng_make(93, (uint64_t)n);
    struct err e;
    const size_t all = (size_t)(T * n);
    float *wide = xmalloc(all * sizeof *wide), *sum[2];
    uint16_t *narrow = xmalloc(all * 2);
    for (size_t i = 0; i < all; i++) wide[i] = (float)bf16_value(narrow[i] = bf16_near(rng_normal(&r)));
    float *const dy = gpu->mem_alloc(gpu, all * sizeof *dy), *const db = gpu->mem_alloc(gpu, (size_t)n * sizeof *db);
    for (int way = 0; way < 2; way++) {
        sum[way] = xmalloc((size_t)n * sizeof(float));
        gpu->mem_put(gpu, db, wide, (size_t)n * sizeof *db); /* it is added to */
        gpu->mem_put(gpu, dy, way ? (const void *)narrow : wide, all * (way ? 2 : sizeof *wide));
        gpu->bias_grad(gpu, db, tensor_of(dy, way ? DT_BF16 : DT_F32, T, n));
        gpu->mem_get(gpu, sum[way], db, (size_t)n * sizeof *db);
    }
    bool ok = gpu->sync(gpu, &e) == ST_OK && (n % 2 == 0 || memcmp(sum[0], sum[1], (size_t)n * sizeof *db) == 0);
    for (int64_t j = 0; j < n; j++) ok &= fabsf(sum[0][j] - sum[1][j]) < 1e-5f * (float)T && sum[1][j] != wide[j];
    free(sum[0]), free(sum[1]), free(wide), free(narrow);
    gpu->mem_free(gpu, dy), gpu->mem_free(gpu, db);
    return ok;
}

/* ---- LoRA over many rows ------------------------------------------------------------------------------------------
 */

/* A weight [n,k] of random bf16 numbers that the backend holds alone. */
static struct weight random_weight(struct backend *gpu, struct rng *r, int64_t n, int64_t k) {
    struct weight w = {.N = n, .K = k, .dt = DT_BF16};
    uint16_t *host = xmalloc((size_t)(n * k) * sizeof *host);
    for (int64_t i = 0; i < n * k; i++) host[i] = bf16_random(r);
    gpu->weight_put(gpu, &w, 0, n, host);
    free(host);
    return w;
}

/* T rows at once against the same rows in runs of `few`, which other kernels take: x A^T and what is added to float32
 * and to bfloat16 outputs, bit for bit. */
static bool lora_same_bits(struct backend *gpu, int64_t T, int64_t few, int64_t in, int64_t R) {
    enum { SITES = 3 };
    static const int64_t width[SITES] = {136, 24, 40};
    struct rng r = rng_make(51, (uint64_t)(in + R));
    struct err e;
    struct attention a = {.gpu = gpu, .rng = rng_make(52, (uint64_t)in)};
    struct weight wa = random_weight(gpu, &r, SITES * R, in), wb[SITES];
    for (int s = 0; s < SITES; s++) wb[s] = random_weight(gpu, &r, width[s], R);
    const int64_t cols = 200, n_xa = T * SITES * R;
    const size_t bytes[2] = {(size_t)(T * cols) * 2, (size_t)(T * cols) * 4};
    void *x = randoms(&a, T * in);
    uint16_t *start = xmalloc(bytes[1]);
    for (int64_t i = 0; i < 2 * T * cols; i++) start[i] = bf16_random(&a.rng);
    uint16_t *xa = gpu->mem_alloc(gpu, (size_t)n_xa * sizeof *xa);
    void *y = gpu->mem_alloc(gpu, bytes[1]);
    bool same = true;
    for (int wide = 0; wide < 2; wide++) {
        void *got[2];
        uint16_t *got_xa[2];
        for (int cut = 0; cut < 2; cut++) {
            gpu->mem_put(gpu, y, start, bytes[wide]);
            gpu->mem_zero(gpu, xa, (size_t)n_xa * sizeof *xa);
            for (int64_t t = 0; t < T; t += cut ? few : T) {
                const int64_t n = i64_min(cut ? few : T, T - t);
                struct tensor out = tensor_rows(tensor_of(y, wide ? DT_F32 : DT_BF16, T, cols), t, n);
                struct lora_site_args site[SITES];
                for (int64_t s = 0, col = 0; s < SITES; col += width[s++])
                    site[s] = (struct lora_site_args){&wb[s], tensor_cols(out, col, width[s])};
                struct tensor down = tensor_rows(tensor_of(xa, DT_BF16, T, SITES * R), t, n);
                gpu->lora_down(gpu, tensor_rows(tensor_of(x, DT_BF16, T, in), t, n), &wa, down, 0.5f);
                gpu->lora_up(gpu, down, site, SITES);
            }
            got[cut] = xmalloc(bytes[wide]);
            got_xa[cut] = xmalloc((size_t)n_xa * sizeof *xa);
            gpu->mem_get(gpu, got[cut], y, bytes[wide]);
            gpu->mem_get(gpu, got_xa[cut], xa, (size_t)n_xa * sizeof *xa);
        }
        same &= gpu->sync(gpu, &e) == ST_OK && memcmp(got[0], got[1], bytes[wide]) == 0 &&
                memcmp(got_xa[0], got_xa[1], (size_t)n_xa * sizeof *xa) == 0 && memcmp(got[0], start, bytes[wide]) != 0;
        for (int cut = 0; cut < 2; cut++) free(got[cut]), free(got_xa[cut]);
    }
    gpu->mem_free(gpu, x);
    gpu->mem_free(gpu, xa);
    gpu->mem_free(gpu, y);
    gpu->weight_free(gpu, &wa);
    for (int s = 0; s < SITES; s++) gpu->weight_free(gpu, &wb[s]);
    free(start);
    return same;
}

/* Gradients of a thin matrix, beside a wide one on either side, added to what is there: against sums in double; and the
 * same bits again. */
static bool thin_right(struct backend *gpu, int64_t T, int64_t N, int64_t R) {
    struct rng r = rng_make(101, (uint64_t)(N + R));
    struct err e;
    const size_t n = (size_t)(N * R);
    uint16_t *w = xmalloc((size_t)(T * N) * 2), *s = xmalloc((size_t)(T * R) * 2);
    float *start = xmalloc(n * sizeof *start), *got[2][2];
    for (int64_t i = 0; i < T * N; i++) w[i] = bf16_near(rng_normal(&r));
    for (int64_t i = 0; i < T * R; i++) s[i] = bf16_near(rng_normal(&r));
    for (size_t i = 0; i < n; i++) start[i] = 10 * (float)rng_normal(&r);
    uint16_t *const dw = gpu->mem_alloc(gpu, (size_t)(T * N) * 2), *const ds = gpu->mem_alloc(gpu, (size_t)(T * R) * 2);
    float *const out = gpu->mem_alloc(gpu, n * sizeof *out);
    gpu->mem_put(gpu, dw, w, (size_t)(T * N) * 2);
    gpu->mem_put(gpu, ds, s, (size_t)(T * R) * 2);
    const struct tensor wide = tensor_of(dw, DT_BF16, T, N), thin = tensor_of(ds, DT_BF16, T, R);
    for (int way = 0; way < 2; way++)
        for (int again = 0; again < 2; again++) {
            got[way][again] = xmalloc(n * sizeof *start);
            gpu->mem_put(gpu, out, start, n * sizeof *start);
            gpu->linear_dw(gpu, out, way ? thin : wide, way ? wide : thin, DT_BF16);
            gpu->mem_get(gpu, got[way][again], out, n * sizeof *start);
        }
    bool ok = gpu->sync(gpu, &e) == ST_OK;
    for (int way = 0; way < 2; way++) ok &= memcmp(got[way][0], got[way][1], n * sizeof *start) == 0;
    for (int64_t i = 0; i < N; i++)
        for (int64_t j = 0; j < R; j++) {
            double sum = 0;
            for (int64_t t = 0; t < T; t++) sum += bf16_value(w[t * N + i]) * bf16_value(s[t * R + j]);
            for (int way = 0; way < 2; way++) {
                const int64_t at = way ? j * N + i : i * R + j;
                ok &= fabs((double)got[way][0][at] - (double)start[at] - sum) < 1e-3;
            }
        }
    for (int way = 0; way < 2; way++) free(got[way][0]), free(got[way][1]);
    gpu->mem_free(gpu, dw), gpu->mem_free(gpu, ds), gpu->mem_free(gpu, out);
    free(w), free(s), free(start);
    return ok;
}

/* SwiGLU with LoRA's second half in it against the two one after the other, bit for bit, and the sums where they are
 * kept; and that LoRA does something. */
static bool lora_into_swiglu(struct backend *gpu, int64_t T, int64_t R) {
    enum { IN = 64, F = 168 };
    struct rng r = rng_make(61, (uint64_t)(T + R));
    struct err e;
    struct attention a = {.gpu = gpu, .rng = rng_make(62, (uint64_t)T)};
    struct weight wa = random_weight(gpu, &r, 2 * R, IN), wb[2];
    for (int s = 0; s < 2; s++) wb[s] = random_weight(gpu, &r, F, R);
    const size_t bytes = (size_t)(T * F) * 2;
    void *x = randoms(&a, T * IN), *start = randoms(&a, T * 2 * F), *g = gpu->mem_alloc(gpu, 2 * bytes);
    void *y = gpu->mem_alloc(gpu, bytes);
    uint16_t *xa = gpu->mem_alloc(gpu, (size_t)(T * 2 * R) * sizeof *xa);
    struct tensor gu = tensor_of(g, DT_BF16, T, 2 * F), out = tensor_of(y, DT_BF16, T, F);
    struct tensor down = tensor_of(xa, DT_BF16, T, 2 * R);
    const struct lora_site_args site[2] = {{&wb[0], tensor_cols(gu, 0, F)}, {&wb[1], tensor_cols(gu, F, F)}};
    uint16_t *got[4];
    for (int way = 0; way < 4; way++) { /* in one, in two, without LoRA, in one that keeps gu */
        got[way] = xmalloc(3 * bytes);
        gpu->mem_copy(gpu, g, start, 2 * bytes);
        gpu->mem_zero(gpu, y, bytes);
        if (way != 2) gpu->lora_down(gpu, tensor_of(x, DT_BF16, T, IN), &wa, down, 0.25f);
        if (way == 0 || way == 3) {
            gpu->lora_swiglu(gpu, out, gu, down, site, 2, way == 3);
        } else {
            if (way == 1) gpu->lora_up(gpu, down, site, 2);
            gpu->swiglu(gpu, out, gu);
        }
        gpu->mem_get(gpu, got[way], y, bytes);
        gpu->mem_get(gpu, got[way] + T * F, g, 2 * bytes);
    }
    const bool same = gpu->sync(gpu, &e) == ST_OK && memcmp(got[0], got[1], bytes) == 0 &&
                      memcmp(got[1], got[2], bytes) != 0 && memcmp(got[1], got[3], 3 * bytes) == 0;
    for (int way = 0; way < 4; way++) free(got[way]);
    gpu->mem_free(gpu, x);
    gpu->mem_free(gpu, start);
    gpu->mem_free(gpu, g);
    gpu->mem_free(gpu, y);
    gpu->mem_free(gpu, xa);
    gpu->weight_free(gpu, &wa);
    for (int s = 0; s < 2; s++) gpu->weight_free(gpu, &wb[s]);
    return same;
}

#endif
