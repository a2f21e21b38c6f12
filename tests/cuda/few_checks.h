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

/* Products of T rows with a matrix in codes, of two tensors, against those with the matrix it decodes to, in bits:
 * exact and, where no library chooses algorithms, fast, which decodes inside the product. */
static bool coded_rows_right(struct backend *gpu, enum weight_format format, int64_t T, int64_t cols, int64_t depth,
                             bool fast) {
    enum { WAYS = 4 };
    struct rng r = rng_make(102, (uint64_t)(T * 1000 + cols));
    const int64_t upper = cols > 128 ? 64 : cols; /* rows of the first tensor */
    const size_t nx = (size_t)(T * depth), nw = (size_t)(cols * depth), ny = (size_t)(T * cols);
    uint16_t *x = xmalloc(nx * sizeof *x), *m = xmalloc(nw * sizeof *m);
    float *plus = xmalloc((ny + (size_t)cols) * sizeof *plus), *out[2];
    for (int i = 0; i < 2; i++) out[i] = xcalloc(WAYS * ny, sizeof **out);
    for (size_t i = 0; i < nx; i++) x[i] = bf16_random(&r);
    for (size_t i = 0; i < nw; i++) m[i] = bf16_near(rng_normal(&r) / sqrt((double)depth));
    for (size_t i = 0; i < ny + (size_t)cols; i++) plus[i] = (float)rng_normal(&r);
    struct weight w[2] = {{.N = cols, .K = depth, .dt = DT_BF16, .format = format},
                          {.N = cols, .K = depth, .dt = DT_BF16, .format = FORMAT_BF16}};
    for (int64_t row = 0; row < cols; row += row ? cols : upper) {
        struct coded_matrix c;
        const int64_t rows = row ? cols - upper : upper;
        format_of(format)->quantise(m + row * depth, rows, depth, NULL, &c);
        format_of(format)->decode(&c, 0, rows * depth, m + row * depth);
        gpu->weight_put_coded(gpu, &w[0], row, &c);
        coded_release(&c);
        if (upper == cols) break;
    }
    gpu->weight_put(gpu, &w[1], 0, cols, m);
    void *const dx = gpu->mem_alloc(gpu, nx * sizeof *x), *const dh = gpu->mem_alloc(gpu, ny * sizeof *x);
    float *const dy = gpu->mem_alloc(gpu, ny * sizeof *dy), *const bias = gpu->mem_alloc(gpu, (size_t)cols * 4);
    gpu->mem_put(gpu, dx, x, nx * sizeof *x);
    gpu->mem_put(gpu, bias, plus + ny, (size_t)cols * sizeof *plus);
    const struct tensor tx = tensor_of(dx, DT_BF16, T, depth), y = tensor_full(dy, T, cols),
                        h = tensor_of(dh, DT_BF16, T, cols);
    uint16_t *narrow = xmalloc(ny * sizeof *narrow), *back = xmalloc(nw * sizeof *back);
    struct err e;
    gpu->fast = fast;
    for (int i = 0; i < 2; i++) {
        float *to = out[i];
        gpu->linear(gpu, y, tx, &w[i], bias, false);
        gpu->mem_get(gpu, to, dy, ny * sizeof *to);
        gpu->linear(gpu, y, tx, &w[i], NULL, false);
        gpu->mem_get(gpu, to + ny, dy, ny * sizeof *to);
        gpu->mem_put(gpu, dy, plus, ny * sizeof *plus);
        gpu->linear(gpu, y, tx, &w[i], NULL, true);
        gpu->mem_get(gpu, to + 2 * ny, dy, ny * sizeof *to);
        gpu->linear(gpu, h, tx, &w[i], NULL, false);
        gpu->mem_get(gpu, narrow, dh, ny * sizeof *narrow);
        for (size_t k = 0; k < ny; k++) to[3 * ny + k] = widened(narrow[k]);
    }
    gpu->fast = false;
    gpu->weight_get(gpu, &w[0], 0, cols, back);
    const bool ok = gpu->sync(gpu, &e) == ST_OK && memcmp(out[0], out[1], WAYS * ny * sizeof **out) == 0 &&
                    memcmp(back, m, nw * sizeof *back) == 0;
    for (int i = 0; i < 2; i++) gpu->weight_free(gpu, &w[i]);
    void *const dev[] = {dx, dh, dy, bias};
    for (size_t i = 0; i < ARRAY_LEN(dev); i++) gpu->mem_free(gpu, dev[i]);
    free(x), free(m), free(plus), free(out[0]), free(out[1]), free(narrow), free(back);
    return ok;
}

/* The kernel of few rows takes as many as 576 rows of W on the emulated device. */
static void test_coded_rows(struct backend *gpu, bool emulated) {
    static const int64_t emulated_case[][3] = {{1, 64, 64},  {9, 192, 320},  {17, 576, 192}, {64, 448, 1088},
                                               {3, 576, 64}, {2, 128, 4096}, {70, 64, 128},  {5, 72, 96}};
    static const int64_t real_case[][3] = {{1, 4608, 3584},   {16, 3584, 3584},  {64, 37888, 3584}, {33, 3584, 18944},
                                           {64, 3584, 18944}, {300, 3584, 3584}, {7, 1000, 700},    {9, 1536, 8960},
                                           {20, 1536, 1536},  {3, 1152, 896},    {64, 10240, 5120}};
    const int64_t(*const of)[3] = emulated ? emulated_case : real_case;
    for (size_t i = 0; i < (emulated ? ARRAY_LEN(emulated_case) : ARRAY_LEN(real_case)); i++)
        for (int f = FORMAT_FP8; f < FORMAT_COUNT; f++)
            for (int fast = 0; fast < 1 + emulated; fast++) {
                char name[120];
                snprintf(name, sizeof name,
                         "%s: products with codes are those of the decoded matrix: %lld of %lld x %lld%s",
                         format_of((enum weight_format)f)->name, (long long)of[i][0], (long long)of[i][1],
                         (long long)of[i][2], fast ? ", decoded inside" : "");
                report(name, coded_rows_right(gpu, (enum weight_format)f, of[i][0], of[i][1], of[i][2], fast));
            }
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
