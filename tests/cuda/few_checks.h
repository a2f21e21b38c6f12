/* A part of plugin_test.c: products of few rows, which have a kernel of their own on some devices. */
#ifndef KERNELRL_FEW_CHECKS_H
#define KERNELRL_FEW_CHECKS_H

/* The product of rows as wide as w's with a bias, added to what is there, in bfloat16, and as SwiGLU: those of the
 * first T of `rows` rows. out gets T rows each, one behind the other, as numbers. */
enum { FEW_MORE = 20, FEW_WAYS = 4 };
struct few_case {
    struct backend *gpu;
    int64_t N, K;
    struct weight w;
    void *x, *h;
    float *y, *old, *bias; /* device */
};

static bool few_products(const struct few_case *f, int64_t rows, int64_t T, float *out) {
    struct backend *gpu = f->gpu;
    const int64_t N = f->N, n = T * N;
    const struct tensor x = tensor_of(f->x, DT_BF16, rows, f->K), y = tensor_full(f->y, rows, N),
                        h = tensor_of(f->h, DT_BF16, rows, N);
    uint16_t *narrow = xmalloc((size_t)n * sizeof *narrow);
    struct err e;
    gpu->linear(gpu, y, x, &f->w, f->bias, false);
    gpu->mem_get(gpu, out, f->y, (size_t)n * sizeof *out);
    gpu->mem_copy(gpu, f->y, f->old, (size_t)(rows * N) * sizeof *f->y);
    gpu->linear(gpu, y, x, &f->w, NULL, true);
    gpu->mem_get(gpu, out + n, f->y, (size_t)n * sizeof *out);
    gpu->linear(gpu, h, x, &f->w, NULL, false);
    gpu->mem_get(gpu, narrow, f->h, (size_t)n * sizeof *narrow);
    for (int64_t i = 0; i < n; i++) out[2 * n + i] = widened(narrow[i]);
    const struct tensor act = tensor_of(f->y, DT_BF16, rows, N / 2);
    if (rows == T)
        gpu->linear_swiglu(gpu, act, h, x, &f->w);
    else
        gpu->swiglu(gpu, act, h);
    gpu->mem_get(gpu, narrow, f->y, (size_t)(n / 2) * sizeof *narrow);
    for (int64_t i = 0; i < n / 2; i++) out[3 * n + i] = widened(narrow[i]);
    free(narrow);
    return gpu->sync(gpu, &e) == ST_OK;
}

/* T rows alone: fast, near double precision; exact, with the bits that they have among many. */
static bool few_rows_right(struct backend *gpu, int64_t T, int64_t cols, int64_t depth) {
    struct rng r = rng_make(101, (uint64_t)(T * 1000 + cols));
    const int64_t many = T + FEW_MORE;
    const size_t nx = (size_t)(many * depth), nw = (size_t)(cols * depth), ny = (size_t)(many * cols),
                 n = (size_t)(T * cols);
    uint16_t *x = xmalloc(nx * sizeof *x), *m = xmalloc(nw * sizeof *m);
    float *plus = xmalloc((ny + (size_t)cols) * sizeof *plus), *out[2];
    for (int i = 0; i < 2; i++) out[i] = xcalloc(FEW_WAYS * n, sizeof **out);
    for (size_t i = 0; i < nx; i++) x[i] = bf16_random(&r);
    for (size_t i = 0; i < nw; i++) m[i] = bf16_near(rng_normal(&r) / sqrt((double)depth));
    for (size_t i = 0; i < ny + (size_t)cols; i++) plus[i] = (float)rng_normal(&r);
    struct few_case f = {.gpu = gpu, .N = cols, .K = depth, .w = {.N = cols, .K = depth, .dt = DT_BF16}};
    gpu->weight_put(gpu, &f.w, 0, cols, m);
    f.x = gpu->mem_alloc(gpu, nx * sizeof *x);
    f.h = gpu->mem_alloc(gpu, ny * sizeof(uint16_t));
    f.y = gpu->mem_alloc(gpu, ny * sizeof *f.y);
    f.old = gpu->mem_alloc(gpu, ny * sizeof *f.old);
    f.bias = gpu->mem_alloc(gpu, (size_t)cols * sizeof *f.bias);
    gpu->mem_put(gpu, f.x, x, nx * sizeof *x);
    gpu->mem_put(gpu, f.old, plus, ny * sizeof *plus);
    gpu->mem_put(gpu, f.bias, plus + ny, (size_t)cols * sizeof *plus);
    bool ok = few_products(&f, many, T, out[0]) && few_products(&f, T, T, out[1]) &&
              memcmp(out[0], out[1], FEW_WAYS * n * sizeof **out) == 0;
    if (!ok) printf("  exact\n");
    gpu->fast = true;
    ok &= few_products(&f, T, T, out[0]);
    gpu->fast = false;
    double worst = 0;
    for (int64_t t = 0; t < T; t++)
        for (int64_t j = 0; j < cols; j += 1 + cols / 300) {
            double s[2] = {0, 0};
            for (int half = 0; half < 2; half++)
                for (int64_t k = 0; k < depth; k++)
                    s[half] +=
                        bf16_value(x[t * depth + k]) * bf16_value(m[(half ? (j + cols / 2) % cols : j) * depth + k]);
            const size_t at = (size_t)(t * cols + j);
            worst = fmax(worst, fabs((double)out[0][at] - s[0] - (double)plus[ny + (size_t)j]));
            worst = fmax(worst, fabs((double)out[0][n + at] - s[0] - (double)plus[at]));
            worst = fmax(worst, fabs((double)out[0][2 * n + at] - s[0]) / 1000); /* rounded */
            if (j < cols / 2)
                worst = fmax(
                    worst,
                    fabs((double)out[0][3 * n + (size_t)(t * (cols / 2) + j)] - s[0] / (1 + exp(-s[0])) * s[1]) / 4000);
        }
    if (!(worst < 3e-5)) printf("  fast: off by %g\n", worst);
    gpu->weight_free(gpu, &f.w);
    void *const dev[] = {f.x, f.h, f.y, f.old, f.bias};
    for (size_t i = 0; i < ARRAY_LEN(dev); i++) gpu->mem_free(gpu, dev[i]);
    free(x), free(m), free(plus), free(out[0]), free(out[1]);
    return ok && worst < 3e-5;
}

static void test_few_rows(struct backend *gpu, bool emulated) {
    static const int64_t emulated_case[][3] = {{1, 48, 128},   {5, 96, 384},  {16, 144, 128}, {33, 240, 192},
                                               {64, 560, 128}, {7, 720, 128}, {70, 72, 256},  {9, 64, 72}};
    static const int64_t real_case[][3] = {{1, 1536, 1536},   {5, 2048, 1536},  {16, 17920, 1536}, {33, 3584, 576},
                                           {64, 17920, 1536}, {64, 37888, 640}, {100, 2048, 1536}, {128, 17920, 640}};
    const int64_t(*const of)[3] = emulated ? emulated_case : real_case;
    for (size_t i = 0; i < (emulated ? ARRAY_LEN(emulated_case) : ARRAY_LEN(real_case)); i++) {
        char name[100];
        snprintf(name, sizeof name, "products of few rows: %lld of %lld x %lld", (long long)of[i][0],
                 (long long)of[i][1], (long long)of[i][2]);
        report(name, few_rows_right(gpu, of[i][0], of[i][1], of[i][2]));
    }
}

#endif
