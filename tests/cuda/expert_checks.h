/* A part of plugin_test.c: mixtures of experts (tensor/experts.h). In float32 every op gives the CPU's bits; in
 * bfloat16 a product of an expert's rows those of the same rows alone. */
#ifndef KERNELRL_EXPERT_CHECKS_H
#define KERNELRL_EXPERT_CHECKS_H

#include "tensor/experts.h"

/* One array on both sides. */
struct both {
    struct backend *be[2]; /* CPU, device */
    void *p[2];
    size_t bytes;
};

static struct both both_make(struct backend *cpu, struct backend *gpu, const void *init, size_t bytes) {
    struct both b = {{cpu, gpu}, {NULL, NULL}, bytes};
    for (int i = 0; i < 2; i++) {
        b.p[i] = b.be[i]->mem_alloc(b.be[i], bytes);
        if (init) b.be[i]->mem_put(b.be[i], b.p[i], init, bytes);
        if (!init) b.be[i]->mem_zero(b.be[i], b.p[i], bytes);
    }
    return b;
}

/* Whether both hold the same; frees them where asked for. */
static bool both_same(struct both *b, bool last, const char *what) {
    char *x[2] = {xmalloc(b->bytes + 1), xmalloc(b->bytes + 1)};
    struct err e;
    bool ok = true;
    for (int i = 0; i < 2; i++) {
        b->be[i]->mem_get(b->be[i], x[i], b->p[i], b->bytes);
        ok &= b->be[i]->sync(b->be[i], &e) == ST_OK;
        if (last) b->be[i]->mem_free(b->be[i], b->p[i]);
    }
    ok = ok && memcmp(x[0], x[1], b->bytes) == 0;
    if (!ok) printf("  %s\n", what);
    free(x[0]);
    free(x[1]);
    return ok;
}

static struct both both_random(struct backend *cpu, struct backend *gpu, int64_t n, uint64_t seed) {
    struct rng r = rng_make(seed, (uint64_t)n);
    float *v = xmalloc((size_t)n * sizeof *v);
    for (int64_t i = 0; i < n; i++) v[i] = (float)rng_normal(&r);
    struct both b = both_make(cpu, gpu, v, (size_t)n * sizeof *v);
    free(v);
    return b;
}

/* Few different logits, so that many are equal. */
static struct both both_logits(struct backend *cpu, struct backend *gpu, int64_t n) {
    struct rng r = rng_make(5, (uint64_t)n);
    float *v = xmalloc((size_t)n * sizeof *v);
    for (int64_t i = 0; i < n; i++) v[i] = (float)rng_below(&r, 9) * 0.37f - 1.0f;
    struct both b = both_make(cpu, gpu, v, (size_t)n * sizeof *v);
    free(v);
    return b;
}

/* T rows through k of E experts, matrices [N,depth] each. */
static bool experts_as_on_cpu(struct backend *cpu, struct backend *gpu, int64_t T, int64_t E, int64_t k, int64_t N,
                              int64_t depth, bool normalised) {
    const int64_t P = T * k, stride = (N * depth + 15) & ~(int64_t)15;
    struct both logits = both_logits(cpu, gpu, T * E),
                memory = both_make(cpu, gpu, NULL, (size_t)routing_words(T, E, k) * 4);
    struct both places = both_make(cpu, gpu, NULL, (size_t)(2 * E) * 4), x = both_random(cpu, gpu, T * depth, 1);
    struct both w = both_random(cpu, gpu, E * stride, 2), g = both_random(cpu, gpu, E * stride, 3);
    struct both xp = both_make(cpu, gpu, NULL, (size_t)(P * depth) * 4),
                y = both_make(cpu, gpu, NULL, (size_t)(P * N) * 4);
    struct both part = both_random(cpu, gpu, P * N, 4), out = both_random(cpu, gpu, T * depth, 5);
    struct both dx = both_random(cpu, gpu, P * depth, 6), dweight = both_make(cpu, gpu, NULL, (size_t)P * 4);
    struct both dlogits = both_make(cpu, gpu, NULL, (size_t)(T * E) * 4), scaled = both_random(cpu, gpu, P * depth, 7);
    for (int i = 0; i < 2; i++) {
        struct backend *b = i ? gpu : cpu;
        const struct expert_ops *ops = b->experts;
        const struct routing r = routing_in(memory.p[i], T, E, k);
        const struct expert_places some = {places.p[i], (int32_t *)places.p[i] + E};
        const struct tensor l = tensor_full(logits.p[i], T, E), rows = tensor_full(xp.p[i], P, depth);
        struct weight *of = xcalloc((size_t)E, sizeof *of);
        for (int64_t e = 0; e < E; e++) {
            of[e] = (struct weight){.w = (float *)w.p[i] + e * stride, .N = N, .K = depth, .dt = DT_F32};
            b->weight_pack(b, &of[e]);
        }
        ops->route(b, &r, l, normalised, false);
        ops->rows_of(b, some, &r, T / 3, T / 2);
        ops->gather(b, rows, tensor_full(x.p[i], T, depth), &r, false);
        ops->linear(b, tensor_full(y.p[i], P, N), rows, of, E, routing_places(&r), 1, false);
        ops->linear(b, tensor_full(part.p[i], P, N), rows, of, E, some, 0.3f, false);
        ops->linear(b, tensor_full(y.p[i], P, N), rows, of, E, some, 1, true);
        ops->linear_dx(b, tensor_full(dx.p[i], P, depth), tensor_full(y.p[i], P, N), of, E, some, 1, true);
        ops->linear_dw(b, g.p[i], stride, tensor_full(y.p[i], P, N), rows, E, routing_places(&r), DT_F32);
        ops->combine(b, tensor_full(out.p[i], T, depth), tensor_full(out.p[i], T, depth),
                     tensor_full(dx.p[i], P, depth), &r, true);
        ops->combine(b, tensor_full(x.p[i], T, depth), (struct tensor){0}, tensor_full(dx.p[i], P, depth), &r, false);
        ops->dot(b, dweight.p[i], rows, tensor_full(dx.p[i], P, depth), &r);
        ops->scale(b, tensor_full(scaled.p[i], P, depth), &r);
        ops->route_grad(b, tensor_full(dlogits.p[i], T, E), &r, dweight.p[i], l, normalised);
        ops->route(b, &r, l, !normalised, true); /* the same choices, other weights */
        for (int64_t e = 0; e < E; e++) b->weight_free(b, &of[e]);
        free(of);
    }
    bool ok = both_same(&memory, true, "routing") & both_same(&places, true, "rows of a run");
    ok &= both_same(&xp, true, "gathered rows") & both_same(&y, true, "linear");
    ok &= both_same(&part, true, "linear of a run") & both_same(&dx, true, "linear_dx");
    ok &= both_same(&g, true, "linear_dw") & both_same(&out, true, "combine") & both_same(&x, true, "combine alone");
    ok &= both_same(&dweight, true, "dot") & both_same(&scaled, true, "scale");
    ok &= both_same(&dlogits, true, "route_grad") & both_same(&logits, true, "logits") & both_same(&w, true, "weights");
    return ok;
}

/* In bfloat16, with results in it and in float32, added to what is there and not, forth and back: the products of all
 * rows have the bits of those of each row of x alone (of many rows: of two or three together) and, where `as_linear`,
 * of what linear and linear_dx give of an expert's rows. */
static bool experts_by_row(struct backend *gpu, int64_t T, int64_t E, int64_t k, int64_t N, int64_t depth,
                           bool as_linear) {
    enum { WAYS = 4, ALL = 0, ALONE = 1, LINEAR = 2 };
    const int64_t P = T * k, run = 1 + T / 64;
    struct rng rng = rng_make(91, (uint64_t)(T + E));
    struct err e;
    uint16_t *m = xmalloc((size_t)(N * depth) * 2), *x = xmalloc((size_t)(P * (N + depth)) * 2);
    float *l = xmalloc((size_t)(T * E) * sizeof *l);
    struct weight *w = xcalloc((size_t)E, sizeof *w);
    for (int64_t i = 0; i < E; i++) {
        w[i] = (struct weight){.N = N, .K = depth, .dt = DT_BF16};
        for (int64_t j = 0; j < N * depth; j++) m[j] = bf16_random(&rng);
        gpu->weight_put(gpu, &w[i], 0, N, m);
    }
    for (int64_t i = 0; i < P * (N + depth); i++) x[i] = bf16_random(&rng);
    for (int64_t i = 0; i < T * E; i++) l[i] = (float)rng_normal(&rng);
    void *dl = gpu->mem_alloc(gpu, (size_t)(T * E) * 4),
         *memory = gpu->mem_alloc(gpu, (size_t)routing_words(T, E, k) * 4),
         *dx = gpu->mem_alloc(gpu, (size_t)(P * (N + depth)) * 2);
    gpu->mem_put(gpu, dl, l, (size_t)(T * E) * 4);
    gpu->mem_put(gpu, dx, x, (size_t)(P * (N + depth)) * 2);
    const struct routing r = routing_in(memory, T, E, k);
    gpu->experts->route(gpu, &r, tensor_full(dl, T, E), true, false);
    struct expert_places alone = {gpu->mem_alloc(gpu, (size_t)E * 4), gpu->mem_alloc(gpu, (size_t)E * 4)};
    int32_t *begin = xmalloc((size_t)(E + 1) * sizeof *begin);
    gpu->mem_get(gpu, begin, r.begin, (size_t)(E + 1) * sizeof *begin);
    const struct tensor in = tensor_of(dx, DT_BF16, P, depth),
                        back = tensor_of((uint16_t *)dx + P * depth, DT_BF16, P, N);
    bool ok = true;
    for (int way = 0; way < 2 * WAYS; way++) {
        const bool narrow = way & 1, adds = way & 2, is_back = way & 4;
        const int64_t cols = is_back ? depth : N;
        const size_t bytes = (size_t)(P * cols) * (narrow ? 2 : 4);
        char *got[3] = {NULL, NULL, NULL};
        for (int i = ALL; i <= (as_linear ? LINEAR : ALONE); i++) {
            void *out = gpu->mem_alloc(gpu, bytes);
            const struct tensor y = tensor_of(out, narrow ? DT_BF16 : DT_F32, P, cols);
            gpu->mem_zero(gpu, out, bytes);
            if (adds && cols <= N + depth && narrow) gpu->mem_copy(gpu, out, dx, bytes);
            for (int64_t t = 0; i < LINEAR && t < (i == ALL ? 1 : T); t += run) {
                if (i == ALONE) gpu->experts->rows_of(gpu, alone, &r, t, i64_min(run, T - t));
                const struct expert_places at = i == ALL ? routing_places(&r) : alone;
                if (is_back)
                    gpu->experts->linear_dx(gpu, y, back, w, E, at, 1, adds);
                else
                    gpu->experts->linear(gpu, y, in, w, E, at, 1, adds);
            }
            for (int64_t j = 0; i == LINEAR && j < E; j++) {
                const int64_t n = begin[j + 1] - begin[j];
                if (n == 0) continue;
                if (is_back)
                    gpu->linear_dx(gpu, tensor_rows(y, begin[j], n), tensor_rows(back, begin[j], n), &w[j], adds);
                else
                    gpu->linear(gpu, tensor_rows(y, begin[j], n), tensor_rows(in, begin[j], n), &w[j], NULL, adds);
            }
            got[i] = xmalloc(bytes);
            gpu->mem_get(gpu, got[i], out, bytes);
            ok &= gpu->sync(gpu, &e) == ST_OK;
            gpu->mem_free(gpu, out);
        }
        for (int i = ALONE; i <= LINEAR && got[i]; i++) {
            const bool same = memcmp(got[ALL], got[i], bytes) == 0;
            if (!same) printf("  way %d, %s\n", way, i == ALONE ? "each row alone" : "linear");
            ok &= same;
        }
        for (int i = ALL; i <= LINEAR; i++) free(got[i]);
    }
    for (int64_t i = 0; i < E; i++) gpu->weight_free(gpu, &w[i]);
    gpu->mem_free(gpu, dl);
    gpu->mem_free(gpu, memory);
    gpu->mem_free(gpu, dx);
    gpu->mem_free(gpu, alone.lo);
    gpu->mem_free(gpu, alone.hi);
    free(begin), free(l), free(x), free(m), free(w);
    return ok;
}

/* gates of all rows: the bits of gather, linear and swiglu, one after the other. */
static bool gates_in_one(struct backend *gpu, int64_t T, int64_t E, int64_t k, int64_t F, int64_t depth) {
    const int64_t P = T * k, sizes[] = {T * depth, P * depth, P * 2 * F, P * F};
    struct rng rng = rng_make(92, (uint64_t)(T + E));
    struct err e;
    void *at[ARRAY_LEN(sizes)], *logits = gpu->mem_alloc(gpu, (size_t)(T * E) * 4),
                                *memory = gpu->mem_alloc(gpu, (size_t)routing_words(T, E, k) * 4);
    float *l = xmalloc((size_t)(T * E) * sizeof *l);
    uint16_t *m = xmalloc((size_t)(2 * F * depth) * 2), *x = xmalloc((size_t)(T * depth) * 2),
             *got[2] = {xmalloc((size_t)(P * F) * 2), xmalloc((size_t)(P * F) * 2)};
    struct weight *w = xcalloc((size_t)E, sizeof *w);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) at[i] = gpu->mem_alloc(gpu, (size_t)sizes[i] * 2);
    for (int64_t i = 0; i < E; i++) {
        w[i] = (struct weight){.N = 2 * F, .K = depth, .dt = DT_BF16};
        for (int64_t j = 0; j < 2 * F * depth; j++) m[j] = bf16_random(&rng);
        gpu->weight_put(gpu, &w[i], 0, 2 * F, m);
    }
    for (int64_t i = 0; i < T * depth; i++) x[i] = bf16_random(&rng);
    for (int64_t i = 0; i < T * E; i++) l[i] = (float)rng_normal(&rng);
    gpu->mem_put(gpu, logits, l, (size_t)(T * E) * 4);
    gpu->mem_put(gpu, at[0], x, (size_t)(T * depth) * 2);
    const struct routing r = routing_in(memory, T, E, k);
    const struct tensor h = tensor_of(at[0], DT_BF16, T, depth), hp = tensor_of(at[1], DT_BF16, P, depth);
    const struct tensor gu = tensor_of(at[2], DT_BF16, P, 2 * F), y = tensor_of(at[3], DT_BF16, P, F);
    gpu->experts->route(gpu, &r, tensor_full(logits, T, E), true, false);
    bool taken = false;
    for (int i = 0; i < 2; i++) {
        gpu->mem_zero(gpu, at[3], (size_t)(P * F) * 2);
        if (i == 0) {
            taken = gpu->experts->gates(gpu, y, gu, hp, h, w, &r);
        } else {
            gpu->experts->gather(gpu, hp, h, &r, false);
            gpu->experts->linear(gpu, gu, hp, w, E, routing_places(&r), 1, false);
            gpu->swiglu(gpu, y, gu);
        }
        gpu->mem_get(gpu, got[i], at[3], (size_t)(P * F) * 2);
    }
    const bool ok = gpu->sync(gpu, &e) == ST_OK && taken && memcmp(got[0], got[1], (size_t)(P * F) * 2) == 0;
    for (int64_t i = 0; i < E; i++) gpu->weight_free(gpu, &w[i]);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) gpu->mem_free(gpu, at[i]);
    gpu->mem_free(gpu, logits);
    gpu->mem_free(gpu, memory);
    free(w), free(l), free(m), free(x), free(got[0]), free(got[1]);
    return ok;
}

static void *random_on(struct backend *gpu, struct rng *rng, int64_t n, enum dtype dt) {
    void *p = gpu->mem_alloc(gpu, (size_t)n * dtype_bytes(dt));
    uint16_t *narrow = xmalloc((size_t)n * sizeof *narrow);
    float *wide = xmalloc((size_t)n * sizeof *wide);
    for (int64_t i = 0; i < n; i++) narrow[i] = bf16_random(rng);
    for (int64_t i = 0; i < n; i++) wide[i] = (float)rng_normal(rng);
    gpu->mem_put(gpu, p, dt == DT_BF16 ? (void *)narrow : (void *)wide, (size_t)n * dtype_bytes(dt));
    free(narrow), free(wide);
    return p;
}

/* Rows that are gathered, with their weights or without, into bfloat16: those in float32, rounded. */
static bool gathered_rounded(struct backend *gpu, int64_t T, int64_t cols, bool weighted) {
    const int64_t E = 5, k = 2, P = T * k;
    struct rng rng = rng_make(94, (uint64_t)(T + cols));
    struct err e;
    void *const memory = gpu->mem_alloc(gpu, (size_t)routing_words(T, E, k) * 4);
    void *const logits = random_on(gpu, &rng, T * E, DT_F32), *x = random_on(gpu, &rng, T * cols, DT_F32);
    void *const wide = random_on(gpu, &rng, P * cols, DT_F32), *narrow = random_on(gpu, &rng, P * cols, DT_BF16);
    float *const want = xmalloc((size_t)(P * cols) * sizeof *want);
    uint16_t *const got = xmalloc((size_t)(P * cols) * sizeof *got);
    const struct routing r = routing_in(memory, T, E, k);
    const struct tensor from = tensor_full(x, T, cols), to = tensor_full(wide, P, cols);
    gpu->experts->route(gpu, &r, tensor_full(logits, T, E), true, false);
    gpu->experts->gather(gpu, to, from, &r, false);
    if (weighted) gpu->experts->scale(gpu, to, &r);
    gpu->mem_get(gpu, want, wide, (size_t)(P * cols) * sizeof *want);
    gpu->experts->gather(gpu, tensor_of(narrow, DT_BF16, P, cols), from, &r, weighted);
    gpu->mem_get(gpu, got, narrow, (size_t)(P * cols) * sizeof *got);
    bool ok = gpu->sync(gpu, &e) == ST_OK;
    for (int64_t i = 0; i < P * cols; i++) ok = ok && got[i] == coded_round(want[i]);
    void *const own[] = {memory, logits, x, wide, narrow};
    for (size_t i = 0; i < ARRAY_LEN(own); i++) gpu->mem_free(gpu, own[i]);
    free(want), free(got);
    return ok;
}

/* What adapters of rank R add to products of all rows, with N columns a site: the bits of the products one after the
 * other. out: the type of what is written. back: linear_dx, which has one site. */
static bool lora_in_one(struct backend *gpu, int64_t T, int64_t E, int64_t N, int sites, int64_t depth, int64_t R,
                        enum dtype out, bool back) {
    const int64_t k = 2, P = T * k, cols = N * sites, rows = back ? R : N, width = back ? N : R;
    const size_t bytes = (size_t)(P * cols) * dtype_bytes(out);
    struct rng rng = rng_make(93, (uint64_t)(T + E + R));
    struct err e;
    struct weight *w = xcalloc((size_t)E * (size_t)(1 + sites), sizeof *w), *b = w + E;
    void *const memory = gpu->mem_alloc(gpu, (size_t)routing_words(T, E, k) * 4), *y = gpu->mem_alloc(gpu, bytes);
    void *const logits = random_on(gpu, &rng, T * E, DT_F32), *x = random_on(gpu, &rng, P * depth, DT_BF16),
                *t = random_on(gpu, &rng, P * sites * R, DT_BF16);
    float *const masters = random_on(gpu, &rng, sites * E * rows * width, DT_F32);
    uint16_t *const m = xmalloc((size_t)(cols * depth) * sizeof *m);
    char *const got[2] = {xmalloc(bytes), xmalloc(bytes)};
    for (int64_t i = 0; i < E; i++) {
        w[i] = (struct weight){.N = back ? depth : cols, .K = back ? cols : depth, .dt = DT_BF16};
        for (int64_t j = 0; j < cols * depth; j++) m[j] = bf16_random(&rng);
        gpu->weight_put(gpu, &w[i], 0, w[i].N, m);
    }
    for (int64_t i = 0; i < sites * E; i++) {
        b[i] = (struct weight){.w = masters + i * rows * width, .N = rows, .K = width, .dt = DT_BF16};
        gpu->weight_pack(gpu, &b[i]);
    }
    const struct routing r = routing_in(memory, T, E, k);
    const struct tensor yt = tensor_of(y, out, P, cols), xt = tensor_of(x, DT_BF16, P, depth),
                        tt = tensor_of(t, DT_BF16, P, sites * R);
    struct lora_site_args site[LORA_SITES_MAX];
    for (int s = 0; s < sites; s++) site[s] = (struct lora_site_args){b + s * E, tensor_cols(yt, s * N, N)};
    gpu->experts->route(gpu, &r, tensor_full(logits, T, E), true, false);
    const struct expert_places all = routing_places(&r);
    const struct expert_ops *ops = gpu->experts;
    const bool taken = ops->linear_lora(gpu, yt, xt, w, &r, tt, site, sites, back);
    gpu->mem_get(gpu, got[0], y, bytes);
    gpu->mem_zero(gpu, y, bytes);
    (back ? ops->linear_dx : ops->linear)(gpu, yt, xt, w, E, all, 1, false);
    for (int s = 0; s < sites; s++)
        (back ? ops->linear_dx : ops->linear)(gpu, site[s].y, tensor_cols(tt, s * R, R), site[s].b, E, all, 1, true);
    gpu->mem_get(gpu, got[1], y, bytes);
    const bool ok = gpu->sync(gpu, &e) == ST_OK && taken && memcmp(got[0], got[1], bytes) == 0;
    for (int64_t i = 0; i < E * (1 + sites); i++) gpu->weight_free(gpu, &w[i]);
    void *const own[] = {memory, y, logits, x, t, masters};
    for (size_t i = 0; i < ARRAY_LEN(own); i++) gpu->mem_free(gpu, own[i]);
    free(w), free(m), free(got[0]), free(got[1]);
    return ok;
}

/* Scales in float32 in place of codes of scales, as in files without nested quantisation. The caller frees them. */
static float *unnest(struct coded_matrix *c) {
    const int64_t blocks = c->rows * c->K / NF4_BLOCK;
    float *scale = xmalloc((size_t)blocks * sizeof *scale);
    for (int64_t i = 0; i < blocks; i++) scale[i] = c->nested_map[c->absmax[i]] * c->nested[i / NF4_NESTED] + c->offset;
    c->scale = scale;
    c->absmax = NULL;
    c->nested = c->nested_map = NULL;
    return scale;
}

/* E matrices in codes, each of two tensors, or of one if N is odd times 64, and the matrices that they mean. Of NF4
 * those of depth 64 have scales in float32. */
static void coded_experts(struct backend *gpu, enum weight_format format, enum dtype dt, int64_t E, int64_t N,
                          int64_t depth, struct weight *coded, struct weight *plain) {
    struct rng rng = rng_make(94, (uint64_t)(E * N));
    const int parts = N % 128 == 64 ? 1 : 2;
    const int64_t all = N * depth, each = all / parts;
    uint16_t *m = xmalloc((size_t)all * sizeof *m);
    for (int64_t i = 0; i < E; i++) {
        coded[i] = (struct weight){.N = N, .K = depth, .dt = dt, .format = format};
        plain[i] = (struct weight){.N = N, .K = depth, .dt = dt, .format = dt == DT_F32 ? FORMAT_F32 : FORMAT_BF16};
        for (int64_t j = 0; j < all; j++) m[j] = bf16_near(rng_normal(&rng) / sqrt((double)depth));
        for (int part = 0; part < parts; part++) {
            struct coded_matrix c;
            format_of(format)->quantise(m + part * each, N / parts, depth, NULL, &c);
            format_of(format)->decode(&c, 0, each, m + part * each);
            float *scales = format == FORMAT_NF4 && depth == 64 ? unnest(&c) : NULL;
            gpu->weight_put_coded(gpu, &coded[i], part * (N / parts), &c);
            free(scales);
            coded_release(&c);
        }
        if (dt == DT_BF16) {
            gpu->weight_put(gpu, &plain[i], 0, N, m);
            continue;
        }
        float *wide = xmalloc((size_t)all * sizeof *wide);
        for (int64_t j = 0; j < all; j++) wide[j] = (float)bf16_value(m[j]);
        plain[i].w = gpu->mem_alloc(gpu, (size_t)all * sizeof *wide);
        gpu->mem_put(gpu, plain[i].w, wide, (size_t)all * sizeof *wide);
        gpu->weight_pack(gpu, &plain[i]);
        free(wide);
    }
    free(m);
}

/* Products with experts in codes, forth and back, and gates: the bits of those with the matrices that they mean. Some
 * experts have no rows. */
static bool experts_in_codes(struct backend *gpu, enum weight_format format, enum dtype dt, int64_t T, int64_t E,
                             int64_t k, int64_t N, int64_t depth) {
    enum { Y, DX, GATED, OUTS };
    const int64_t P = T * k, sizes[OUTS] = {P * N, P * depth, P * N / 2};
    struct rng rng = rng_make(95, (uint64_t)(T + E));
    struct err e;
    struct weight *w[2] = {xcalloc((size_t)E, sizeof **w), xcalloc((size_t)E, sizeof **w)};
    coded_experts(gpu, format, dt, E, N, depth, w[0], w[1]);
    float *l = xmalloc((size_t)(T * E) * sizeof *l);
    for (int64_t i = 0; i < T * E; i++) l[i] = (float)rng_normal(&rng);
    uint16_t *x = xmalloc((size_t)(P * (N + depth)) * sizeof *x);
    float *wide = xmalloc((size_t)(P * (N + depth)) * sizeof *wide);
    for (int64_t i = 0; i < P * (N + depth); i++) wide[i] = (float)bf16_value(x[i] = bf16_random(&rng));
    const size_t each = dtype_bytes(dt);
    void *logits = gpu->mem_alloc(gpu, (size_t)(T * E) * 4),
         *memory = gpu->mem_alloc(gpu, (size_t)routing_words(T, E, k) * 4),
         *in = gpu->mem_alloc(gpu, (size_t)(P * (N + depth)) * each);
    gpu->mem_put(gpu, logits, l, (size_t)(T * E) * 4);
    gpu->mem_put(gpu, in, dt == DT_BF16 ? (const void *)x : wide, (size_t)(P * (N + depth)) * each);
    const struct routing r = routing_in(memory, T, E, k);
    gpu->experts->route(gpu, &r, tensor_full(logits, T, E), true, false);
    const struct expert_places all = routing_places(&r);
    const struct tensor rows = tensor_of(in, dt, P, depth), h = tensor_of(in, dt, T, depth),
                        back = tensor_of((char *)in + (size_t)(P * depth) * each, dt, P, N);
    char *got[2][OUTS];
    bool ok = true, taken[2] = {false, false};
    for (int i = 0; i < 2; i++) {
        void *out[OUTS];
        for (int o = 0; o < OUTS; o++) {
            out[o] = gpu->mem_alloc(gpu, (size_t)sizes[o] * 4);
            gpu->mem_zero(gpu, out[o], (size_t)sizes[o] * 4);
        }
        gpu->experts->linear(gpu, tensor_full(out[Y], P, N), rows, w[i], E, all, 1, false);
        gpu->experts->linear_dx(gpu, tensor_full(out[DX], P, depth), back, w[i], E, all, 1, false);
        const struct tensor none = tensor_of(out[Y], dt, P, N);
        taken[i] = gpu->experts->gates(gpu, tensor_of(out[GATED], dt, P, N / 2), none, rows, h, w[i], &r);
        for (int o = 0; o < OUTS; o++) {
            got[i][o] = xmalloc((size_t)sizes[o] * 4);
            gpu->mem_get(gpu, got[i][o], out[o], (size_t)sizes[o] * 4);
            gpu->mem_free(gpu, out[o]);
        }
    }
    ok &= gpu->sync(gpu, &e) == ST_OK && taken[0] == taken[1];
    for (int o = 0; o < OUTS; o++) {
        const bool same = memcmp(got[0][o], got[1][o], (size_t)sizes[o] * 4) == 0;
        if (!same) printf("  %s\n", o == Y ? "linear" : o == DX ? "linear_dx" : "gates");
        ok &= same;
        free(got[0][o]), free(got[1][o]);
    }
    for (int i = 0; i < 2; i++) {
        for (int64_t j = 0; j < E; j++) gpu->weight_free(gpu, &w[i][j]);
        for (int64_t j = 0; i == 1 && j < E && dt == DT_F32; j++) gpu->mem_free(gpu, w[i][j].w);
        free(w[i]);
    }
    void *const dev[] = {logits, memory, in};
    for (size_t i = 0; i < ARRAY_LEN(dev); i++) gpu->mem_free(gpu, dev[i]);
    free(l), free(x), free(wide);
    return ok;
}

/* A router's product over bfloat16 rows has the CPU's bits for the same rows in float32, for few rows and many. */
static bool router_as_on_cpu(struct backend *cpu, struct backend *gpu, int64_t T, int64_t N, int64_t depth) {
    struct rng rng = rng_make(93, (uint64_t)T);
    uint16_t *x = xmalloc((size_t)(T * depth) * 2);
    float *wide = xmalloc((size_t)(T * depth) * sizeof *wide);
    for (int64_t i = 0; i < T * depth; i++) wide[i] = (float)bf16_value(x[i] = bf16_random(&rng));
    struct both y = both_make(cpu, gpu, NULL, (size_t)(T * N) * 4), w = both_random(cpu, gpu, N * depth, 8);
    struct both rows = both_make(cpu, gpu, wide, (size_t)(T * depth) * 4);
    gpu->mem_put(gpu, rows.p[1], x, (size_t)(T * depth) * 2);
    for (int i = 0; i < 2; i++) {
        struct backend *b = i ? gpu : cpu;
        struct weight of = {.w = w.p[i], .N = N, .K = depth, .dt = DT_F32};
        b->weight_pack(b, &of);
        b->linear(b, tensor_full(y.p[i], T, N), tensor_of(rows.p[i], i ? DT_BF16 : DT_F32, T, depth), &of, NULL, false);
        b->weight_free(b, &of);
    }
    const bool ok = both_same(&y, true, "router's logits") & both_same(&w, true, "router");
    for (int i = 0; i < 2; i++) rows.be[i]->mem_free(rows.be[i], rows.p[i]);
    free(x), free(wide);
    return ok;
}

/* On a card, cuBLASLt's products sum k in another order than the experts' own kernel, so that only the emulated device
 * has the bits of `linear`. */
static void test_experts(struct backend *gpu, bool emulated) {
    struct backend *cpu;
    struct err e;
    if (cpu_backend_open(NULL, &cpu, &e) != ST_OK) {
        report("experts: a CPU to compare with", false);
        return;
    }
    report("experts in float32 as on the CPU, ties among them",
           experts_as_on_cpu(cpu, gpu, 40, 8, 2, 24, 40, true) & experts_as_on_cpu(cpu, gpu, 7, 5, 5, 9, 13, false));
    report("one row, one expert, and more experts than rows",
           experts_as_on_cpu(cpu, gpu, 1, 1, 1, 16, 16, true) & experts_as_on_cpu(cpu, gpu, 3, 130, 8, 16, 24, false));
    report("more experts a row than a warp's half", experts_as_on_cpu(cpu, gpu, 5, 40, 20, 16, 24, true));
    report("more experts than a launch takes", experts_as_on_cpu(cpu, gpu, 30, 300, 4, 8, 16, true));
    report(emulated ? "experts in bfloat16 as each row alone, and as linear has each one's rows"
                    : "experts in bfloat16 as each row alone",
           experts_by_row(gpu, 50, 6, 2, 48, 64, emulated) & experts_by_row(gpu, 5, 40, 4, 24, 40, emulated));
    report("experts of few, some and many rows, with tiles that are not full",
           experts_by_row(gpu, 4, 3, 2, 136, 200, emulated) & experts_by_row(gpu, 9, 3, 2, 136, 200, emulated) &
               experts_by_row(gpu, 70, 2, 1, 136, 104, emulated) & experts_by_row(gpu, 180, 3, 2, 136, 72, emulated));
    report("gather, gates and what they gate in one", gates_in_one(gpu, 9, 6, 2, 24, 40) &
                                                          gates_in_one(gpu, 60, 3, 2, 72, 136) &
                                                          gates_in_one(gpu, 130, 3, 2, 72, 72));
    for (int f = FORMAT_FP8; f < FORMAT_COUNT; f++) {
        const enum weight_format format = (enum weight_format)f;
        char name[96];
        snprintf(name, sizeof name, "experts in %s as the matrices that they mean", format_of(format)->name);
        report(name, experts_in_codes(gpu, format, DT_BF16, 30, 3, 1, 144, 72) &
                         experts_in_codes(gpu, format, DT_BF16, 250, 3, 1, 128, 64) &
                         experts_in_codes(gpu, format, DT_F32, 4, 5, 2, 48, 136));
        snprintf(name, sizeof name, "the same, decoded inside the products: %s", format_of(format)->name);
        report(name, experts_in_codes(gpu, format, DT_BF16, 5, 7, 2, 128, 64) &
                         experts_in_codes(gpu, format, DT_BF16, 8, 7, 2, 192, 448) &
                         experts_in_codes(gpu, format, DT_BF16, 20, 12, 2, 384, 192) &
                         experts_in_codes(gpu, format, DT_BF16, 20, 12, 2, 192, 576) &
                         experts_in_codes(gpu, format, DT_BF16, 20, 12, 2, 384, 64) &
                         experts_in_codes(gpu, format, DT_BF16, 100, 3, 2, 192, 320));
    }
    report("experts and what adapters add to them in one",
           lora_in_one(gpu, 5, 6, 32, 2, 40, 4, DT_BF16, false) & lora_in_one(gpu, 40, 5, 96, 1, 72, 3, DT_F32, false) &
               lora_in_one(gpu, 130, 3, 160, 2, 72, 16, DT_BF16, false));
    report("gradients through experts and adapters in one", lora_in_one(gpu, 5, 6, 64, 1, 40, 8, DT_F32, true) &
                                                                lora_in_one(gpu, 70, 3, 160, 1, 72, 32, DT_BF16, true) &
                                                                lora_in_one(gpu, 190, 3, 96, 1, 40, 4, DT_F32, true));
    report("gathered rows, rounded", gathered_rounded(gpu, 9, 24, true) & gathered_rounded(gpu, 9, 13, true) &
                                         gathered_rounded(gpu, 20, 40, false));
    report("a router over bfloat16 as on the CPU",
           router_as_on_cpu(cpu, gpu, 3, 20, 200) & router_as_on_cpu(cpu, gpu, 9, 40, 136) &
               router_as_on_cpu(cpu, gpu, 40, 130, 72) & router_as_on_cpu(cpu, gpu, 90, 130, 72));
    cpu->close(cpu);
}

#endif
