/* Ops on weights and activations in bfloat16: the host side of bf16_*.cu. All that a sampling step calls can be
 * recorded (record.c). Attention's work lists are in attention_plan.c. */
#include <cuda_runtime_api.h>
#include <math.h>
#include <string.h>

#include "cuda/host/host.h"

static struct cu_mat16 mat16(struct tensor t) {
    ASSERT(t.dt == DT_BF16);
    return (struct cu_mat16){t.data, t.rows, t.cols, t.ld};
}
static uint64_t float_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
static struct cu_mat mat32(struct tensor t) {
    ASSERT(t.dt == DT_F32);
    return (struct cu_mat){t.data, t.rows, t.cols, t.ld};
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

static bool weight_room(struct backend *be, struct weight *w) {
    struct cuda_backend *c = (struct cuda_backend *)be;
    if (!w->packed) w->packed = pieces_take(&c->pieces, be, w->N * w->K * (int64_t)sizeof(uint16_t));
    if (w->packed) return true;
    cuda_refuse(c, "weight", "out of device memory");
    return false;
}

void bf16_weight_pack(struct backend *be, struct weight *w) {
    if (!w->w) return; /* put row by row */
    struct cuda_backend *c = cuda_begin(be, "weight_pack");
    if (c && weight_room(be, w))
        cuda_ok(c, "weight_pack",
                cu_round16(&c->dev, (struct cu_mat16){w->packed, w->N, w->K, w->K},
                           (struct cu_mat){w->w, w->N, w->K, w->K}));
}

void bf16_weights_pack(struct backend *be, struct weight *const *w, int n) {
    struct cuda_backend *c = cuda_begin(be, "weights_pack");
    struct cu_round_list l = {.count = 0};
    if (!c) return;
    if (c->profile) profile_mark(c, "weights_pack");
    for (int i = 0; i < n; i++) {
        if (!w[i]->w || w[i]->N * w[i]->K == 0 || !weight_room(be, w[i])) continue;
        l.from[l.count] = w[i]->w;
        l.to[l.count] = w[i]->packed;
        l.n[l.count++] = w[i]->N * w[i]->K;
        if (l.count < CU_ROUND_MOST) continue;
        if (!cuda_ok(c, "weights_pack", cu_round_list16(&c->dev, &l))) return;
        l.count = 0;
    }
    cuda_ok(c, "weights_pack", cu_round_list16(&c->dev, &l));
}

void bf16_weight_put(struct backend *be, struct weight *w, int64_t row, int64_t rows, const uint16_t *src) {
    ASSERT(row >= 0 && row + rows <= w->N);
    if (weight_room(be, w))
        be->mem_put(be, (uint16_t *)w->packed + row * w->K, src, (size_t)(rows * w->K) * sizeof *src);
}

void bf16_weight_get(struct backend *be, const struct weight *w, int64_t row, int64_t rows, uint16_t *dst) {
    ASSERT(row >= 0 && row + rows <= w->N);
    be->mem_get(be, dst, (const uint16_t *)w->packed + row * w->K, (size_t)(rows * w->K) * sizeof *dst);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Rounds or copies x to `s`. */
static bool make_factor(struct cuda_backend *c, const char *op, struct tensor *x, enum cuda_slab s,
                        int64_t offset_bytes, int64_t room_bytes) {
    char *p = cuda_scratch(c, op, s, room_bytes);
    if (!p) return false;
    struct tensor y = tensor_of(p + offset_bytes, DT_BF16, x->rows, x->cols);
    int rc = 0;
    if (!NOTE(c, "round", OF_TENSOR(*x), ADDRESS(y.data))) { /* replayed */
    } else if (x->dt == DT_F32) {
        rc = cu_round16(&c->dev, mat16(y), mat32(*x));
    } else {
        rc = cudaMemcpy2DAsync(y.data, (size_t)y.ld * 2, x->data, (size_t)x->ld * 2, (size_t)x->cols * 2,
                               (size_t)x->rows, cudaMemcpyDeviceToDevice, c->stream);
    }
    *x = y;
    return cuda_ok(c, op, rc);
}

/* x in bfloat16, and lined up for wide reads where its width allows it; rounded or copied into x16 when it is not so
 * already. What x16 begins with is remembered until another op than a gradient's product comes (cuda_begin). */
static bool factor(struct cuda_backend *c, const char *op, struct tensor *x, int64_t offset_bytes, int64_t room_bytes) {
    if (cuda_is_factor(*x)) return true;
    struct tensor *const r = &c->rounded;
    const bool grows = room_bytes > (int64_t)c->slab[CUDA_X16].bytes;
    if (offset_bytes == 0 && !grows && x->dt == DT_F32 && r->data == x->data && r->rows == x->rows &&
        r->cols == x->cols && r->ld == x->ld) {
        *x = tensor_of(c->slab[CUDA_X16].p, DT_BF16, x->rows, x->cols);
        return true;
    }
    if (grows || (r->data && offset_bytes < cuda_factor_bytes(*r))) r->data = NULL;
    const struct tensor from = *x;
    if (!make_factor(c, op, x, CUDA_X16, offset_bytes, room_bytes)) return false;
    if (from.dt == DT_F32 && offset_bytes == 0 && c->pass.mode == PASS_RUN) *r = from;
    return true;
}

/* The next op must not take the rounding of what is written to here for its own. */
static void written(struct cuda_backend *c, const void *p, size_t bytes) {
    const struct tensor *r = &c->rounded;
    const uintptr_t begin = (uintptr_t)p, first = (uintptr_t)r->data;
    if (begin < first + (size_t)(r->rows * r->ld) * sizeof(float) && first < begin + bytes) c->rounded.data = NULL;
}

bool bf16_lines_up(struct tensor x) { return x.cols % 8 == 0 && cuda_lines_up(x.data, x.ld, 4); }

uint16_t *bf16_rounding_room(const struct cuda_backend *c, struct tensor x) {
    const struct device_slab *s = &c->slab[CUDA_X16];
    return bf16_lines_up(x) && cuda_factor_bytes(x) <= (int64_t)s->bytes ? s->p : NULL;
}

void bf16_round_to(struct cuda_backend *c, const char *op, uint16_t *y, struct tensor x) {
    cuda_ok(c, op, cu_round16(&c->dev, (struct cu_mat16){y, x.rows, x.cols, x.cols}, mat32(x)));
}

static struct cu_side16 side(const void *p, int64_t row, int64_t step) {
    return (struct cu_side16){p, row, step, step == 1 && cuda_lines_up(p, row, 2)};
}

/* ---- few rows ---- */

static bool few_of(const struct lt_product *p, struct cu_few *f) {
    const int64_t parts = p->parts > 1 ? p->parts : 1;
    *f = (struct cu_few){.x = p->b,
                         .w = p->a,
                         .ldx = p->ldb,
                         .ldw = p->lda,
                         .T = p->n,
                         .N = p->m,
                         .K = p->k,
                         .parts = parts,
                         .part_step = p->part_step,
                         .y = p->d,
                         .ldy = p->ldd,
                         .bias = p->bias,
                         .end = p->out16        ? CU_FEW_BF16
                                : p->accumulate ? CU_FEW_ADD
                                                : CU_FEW_F32};
    return p->ta && !p->tb && p->alpha == 0.0f && (!p->c || p->c == p->d) &&
           !(p->out16 && (p->accumulate || p->bias)) && (parts == 1 || f->end == CU_FEW_F32);
}

bool few_takes(const struct cuda_backend *c, const struct lt_product *p) {
    struct cu_few f;
    return few_of(p, &f) && cu_few_takes(&c->dev, &f);
}

/* In a pass, and nowhere else, no kernel before this one can have written weights, but for those that were expanded. */
static struct cu_dev dev_of_pass(const struct cuda_backend *c, const void *weights) {
    struct cu_dev dev = c->dev;
    dev.overlaps = dev.overlaps && c->pass.open && !coded_is_expanded(c, weights);
    return dev;
}

int few_run(const struct cuda_backend *c, const struct lt_product *p) {
    const struct cu_dev dev = dev_of_pass(c, p->a);
    struct cu_few f;
    return few_of(p, &f) ? cu_few(&dev, &f) : (int)cudaErrorInvalidValue;
}

/* ---- few rows of a matrix in codes ---- */

static bool decode_of(const struct lt_product *p, struct cu_coded_few *f) {
    if (!p->codes) return false;
    *f = *p->codes;
    return few_of(p, &f->few);
}

bool decode_takes(const struct cuda_backend *c, const struct lt_product *p) {
    struct cu_coded_few f;
    return decode_of(p, &f) && cu_coded_few_takes(&c->dev, &f);
}

int decode_run(const struct cuda_backend *c, const struct lt_product *p) {
    struct cu_dev dev = c->dev;
    struct cu_coded_few f;
    dev.overlaps = dev.overlaps && c->pass.open; /* nothing in a pass writes codes */
    return decode_of(p, &f) ? cu_coded_few(&dev, &f) : (int)cudaErrorInvalidValue;
}

static void part_product(struct cuda_backend *c, const char *op, const struct lt_product *whole,
                         const struct cu_gemm16 *own, int64_t i, float *d);

/* y = a b as cublas.c and as the own kernel have it. Which of the two is decided by the sizes of the matrix alone, so
 * that it is the same one for every number of rows. */
static void run_product(struct cuda_backend *c, const char *op, struct lt_product p, const struct cu_gemm16 *own) {
    const size_t out = p.out16 ? 2 : 4;
    bool done = false;
    if (p.m % 8 == 0 && p.k % 8 == 0 && p.k > 0) {
        const struct lt_product wanted = p;
        if (!cuda_lines_up(p.d, p.ldd, (int64_t)out)) { /* only tests have such */
            const size_t row = (size_t)p.m * out;
            if (!(p.d = cuda_scratch(c, op, CUDA_Y32, p.n * (int64_t)row))) return;
            p.ldd = p.m;
            if (p.accumulate && !cuda_ok(c, op,
                                         cudaMemcpy2DAsync(p.d, row, wanted.d, (size_t)wanted.ldd * out, row,
                                                           (size_t)p.n, cudaMemcpyDeviceToDevice, c->stream)))
                return;
        }
        if (!lt_run(c, op, &p, &done)) return;
        if (done && p.d != wanted.d)
            cuda_ok(c, op,
                    cudaMemcpy2DAsync(wanted.d, (size_t)wanted.ldd * out, p.d, (size_t)p.m * out, (size_t)p.m * out,
                                      (size_t)p.n, cudaMemcpyDeviceToDevice, c->stream));
    }
    if (done || c->pass.abort) return;
    if (p.parts > 1) {
        for (int64_t i = 0; i < p.parts; i++) part_product(c, op, &p, own, i, (float *)p.d + i * p.part_step);
        return;
    }
    const bool few = c->be.fast && few_takes(c, &p); /* its order of sums is another one */
    cuda_ok(c, op, few ? few_run(c, &p) : cu_gemm16(&c->dev, own));
}

/* One of a product's parts, by itself. */
static void part_product(struct cuda_backend *c, const char *op, const struct lt_product *whole,
                         const struct cu_gemm16 *own, int64_t i, float *d) {
    struct lt_product p = *whole;
    struct cu_gemm16 g = *own;
    p.a = (const uint16_t *)p.a + i * p.k;
    p.b = (const uint16_t *)p.b + i * p.k;
    p.d = g.c = d;
    p.parts = p.part_step = 0;
    g.a.p += i * p.k;
    g.b.p += i * p.k;
    run_product(c, op, p, &g);
}

static void product(struct cuda_backend *c, const char *op, struct lt_product p, const struct cu_gemm16 *own) {
    op = profile_name(c, op, p.m, p.k);
    if (NOTE(c, op, ADDRESS(p.a), ADDRESS(p.b), ADDRESS(p.d), (uint64_t)p.m, (uint64_t)p.n, (uint64_t)p.k,
             (uint64_t)p.lda, (uint64_t)p.ldb, (uint64_t)p.ldd, ADDRESS(p.bias), p.accumulate, p.out16,
             (uint64_t)p.parts, (uint64_t)p.part_step))
        run_product(c, op, p, own);
}

/* The product of a matrix that may be in codes: decoded inside where a search found that to be the same and fast, else
 * expanded first. p.a and own->b are of nothing yet. */
static void weight_product(struct cuda_backend *c, const char *op, struct lt_product p, struct cu_gemm16 *own,
                           const struct weight *w) {
    struct cu_coded_few codes;
    struct weight plain;
    if (coded_few_of(w, &codes)) p.codes = &codes;
    if (p.codes && (c->lt ? lt_decodes(c, &p) : c->be.fast && decode_takes(c, &p))) {
        op = profile_name(c, op, p.m, p.k);
        if (NOTE(c, op, ADDRESS(w->packed), ADDRESS(p.b), ADDRESS(p.d), (uint64_t)p.m, (uint64_t)p.n, (uint64_t)p.k,
                 (uint64_t)p.ldb, (uint64_t)p.ldd, ADDRESS(p.bias), p.accumulate, p.out16, (uint64_t)p.parts,
                 (uint64_t)p.part_step))
            cuda_ok(c, op, decode_run(c, &p));
        return;
    }
    if (!coded_expand(c, op, w, &plain)) return;
    p.a = plain.packed;
    own->b = side(plain.packed, w->K, 1);
    product(c, op, p, own);
}

static struct lt_product linear_product(struct tensor y, struct tensor x, const struct weight *w) {
    return (struct lt_product){.ta = true,
                               .out16 = y.dt == DT_BF16,
                               .exact = true,
                               .m = w->N,
                               .n = y.rows,
                               .k = w->K,
                               .lda = w->K,
                               .ldb = x.ld,
                               .ldd = y.ld,
                               .a = w->packed,
                               .b = x.data,
                               .d = y.data};
}

/* ---- sums in parts --------------------------------------------------------------------------------------------------
 */

/* A product that is added to what is there, with a matrix so long and narrow that over few rows its outputs do not
 * occupy a GPU, is cut along k into CUDA_LONG_PARTS products, which are added one after the other. Over few rows they
 * are one launch and leave their results side by side, owed to y: the norm that reads y next adds them as it reads, any
 * other op finds them added. Over many rows each product adds to what the one before left. Both are the same additions,
 * so that the bits do not depend on the number of rows; which products are cut depends on the matrix alone. */
static int64_t parts_of(const struct cuda_backend *c, const struct weight *w, bool accumulate, struct tensor y) {
    return !c->be.fast && accumulate && y.dt == DT_F32 ? cuda_long_parts(w->N, w->K) : 1;
}

static void linear_parts(struct cuda_backend *c, struct tensor y, struct tensor x, const struct weight *w) {
    struct lt_product p = linear_product(y, x, w);
    p.k = w->K / CUDA_LONG_PARTS;
    struct cu_gemm16 own = {
        side(x.data, x.ld, 1), side(w->packed, w->K, 1), y.data, 0, y.ld, NULL, 1, y.rows, w->N, p.k, 0};
    if (y.rows <= CUDA_LONG_ROWS) {
        const int64_t step = y.rows * y.cols;
        float *const part = cuda_scratch(c, "linear", CUDA_PARTS, cuda_long_bytes(y.rows, w->N));
        if (!part) return;
        p.d = own.c = part;
        p.ldd = own.ldc = y.cols;
        p.parts = CUDA_LONG_PARTS;
        p.part_step = step;
        own.accumulate = 0;
        weight_product(c, "linear", p, &own, w);
        c->owed = (struct owed){y, part, CUDA_LONG_PARTS};
        return;
    }
    struct weight plain;
    if (!coded_expand(c, "linear", w, &plain)) return;
    const char *op = profile_name(c, "linear", w->N, w->K);
    p.accumulate = true;
    p.a = plain.packed;
    own.b = side(plain.packed, w->K, 1);
    if (NOTE(c, op, OF_TENSOR(y), OF_TENSOR(x), ADDRESS(plain.packed)))
        for (int64_t i = 0; i < CUDA_LONG_PARTS; i++) part_product(c, op, &p, &own, i, y.data);
}

void bf16_settle(struct cuda_backend *c) {
    const struct owed o = c->owed;
    c->owed.n = 0;
    if (o.n > 0 && NOTE(c, "linear", OF_TENSOR(o.y), ADDRESS(o.part), (uint64_t)o.n))
        cuda_ok(c, "linear", cu_add_parts(&c->dev, mat32(o.y), o.part, o.n));
}

void bf16_linear(struct cuda_backend *c, struct tensor y, struct tensor x, const struct weight *w, const float *bias,
                 bool accumulate) {
    if (y.rows == 0 || y.cols == 0 || !factor(c, "linear", &x, 0, cuda_factor_bytes(x))) return;
    if (parts_of(c, w, accumulate, y) > 1) {
        linear_parts(c, y, x, w);
        return;
    }
    struct lt_product p = linear_product(y, x, w);
    p.accumulate = accumulate;
    p.bias = bias;
    ASSERT(!(bias && p.out16));
    struct cu_gemm16 own = {
        side(x.data, x.ld, 1), side(NULL, w->K, 1), y.data, p.out16, y.ld, bias, accumulate, y.rows, w->N, w->K, 0};
    weight_product(c, "linear", p, &own, w);
}

/* The two ops are fused only where our kernel for few rows would do the product anyway. The result has the bits of the
 * two ops. */
void bf16_linear_swiglu(struct backend *be, struct tensor y, struct tensor gu, struct tensor x,
                        const struct weight *w) {
    ASSERT(y.rows == x.rows && gu.rows == x.rows && gu.cols == w->N && 2 * y.cols == w->N && x.cols == w->K);
    struct cuda_backend *c = cuda_begin(be, "linear");
    if (!c || y.rows == 0) return;
    if (!format_is_coded(w->format) && y.rows <= CU_FEW_ROWS && y.dt == DT_BF16 && gu.dt == DT_BF16 &&
        x.dt == DT_BF16 && x.cols % 8 == 0 && w->N % 16 == 0 && cuda_lines_up(y.data, y.ld, 2) &&
        cuda_lines_up(x.data, x.ld, 2) && cuda_lines_up(gu.data, gu.ld, 2)) {
        const char *op = profile_name(c, "linear", w->N, w->K);
        const struct lt_product p = linear_product(gu, x, w);
        const bool few = c->lt ? lt_few_swiglu(c, op, &p) : c->be.fast;
        struct cu_few f;
        if (few && few_of(&p, &f)) {
            f.y = y.data;
            f.ldy = y.ld;
            f.N = y.cols;
            f.end = CU_FEW_SWIGLU;
            const struct cu_dev dev = dev_of_pass(c, f.w);
            if (cu_few_takes(&dev, &f)) {
                if (NOTE(c, op, OF_TENSOR(y), OF_TENSOR(x), ADDRESS(w->packed))) cuda_ok(c, op, cu_few(&dev, &f));
                return;
            }
        }
    }
    be->linear(be, gu, x, w, NULL, false);
    be->swiglu(be, y, gu);
}

/* Where cuBLASLt reads z itself; elsewhere z is copied first. */
void bf16_linear_add(struct backend *be, struct tensor y, struct tensor x, const struct weight *w, struct tensor z) {
    ASSERT(y.rows == x.rows && y.cols == w->N && x.cols == w->K && z.rows == y.rows && z.cols == y.cols);
    if (format_is_coded(w->format)) {
        be->axpby(be, y, 1.0f, z, 0);
        be->linear(be, y, x, w, NULL, true);
        return;
    }
    struct lt_product p = linear_product(y, x, w);
    const int64_t parts = parts_of((struct cuda_backend *)be, w, true, y);
    p.accumulate = true;
    p.c = z.data;
    p.k /= parts;
    const bool aligned = cuda_lines_up(p.d, p.ldd, 4) && cuda_lines_up(p.c, z.ld, 4) && cuda_lines_up(p.b, p.ldb, 2);
    if (y.dt == DT_F32 && z.dt == DT_F32 && z.ld == y.ld && x.dt == DT_BF16 && aligned && p.m % 8 == 0 &&
        p.k % 8 == 0 && p.k > 0 && y.rows > 0) {
        struct cuda_backend *c = cuda_begin(be, "linear");
        bool done = true;
        if (!c) return;
        const char *op = profile_name(c, "linear", w->N, w->K);
        if (c->profile) profile_mark(c, op);
        for (int64_t i = 0; i < parts && done && c->pass.mode == PASS_RUN; i++) { /* none or all have an algorithm */
            if (!lt_run(c, op, &p, &done)) return;
            p.a = (const uint16_t *)p.a + p.k;
            p.b = (const uint16_t *)p.b + p.k;
            p.c = NULL;
        }
        if (done && c->pass.mode == PASS_RUN) return;
    }
    be->axpby(be, y, 1.0f, z, 0);
    be->linear(be, y, x, w, NULL, true);
}

void bf16_linear_dx(struct cuda_backend *c, struct tensor dx, struct tensor dy, const struct weight *w, float alpha,
                    bool accumulate) {
    if (dx.rows == 0 || dx.cols == 0 || !factor(c, "linear_dx", &dy, 0, cuda_factor_bytes(dy))) return;
    const struct lt_product p = {.out16 = dx.dt == DT_BF16,
                                 .accumulate = accumulate,
                                 .exact = true,
                                 .m = w->K,
                                 .n = dx.rows,
                                 .k = w->N,
                                 .lda = w->K,
                                 .ldb = dy.ld,
                                 .ldd = dx.ld,
                                 .a = w->packed,
                                 .b = dy.data,
                                 .d = dx.data,
                                 .alpha = alpha};
    product(c, "linear_dx", p,
            &(struct cu_gemm16){side(dy.data, dy.ld, 1), side(w->packed, 1, w->K), dx.data, p.out16, dx.ld, NULL,
                                accumulate, dx.rows, w->K, w->N, alpha});
    written(c, dx.data, (size_t)(dx.rows * dx.ld) * (p.out16 ? 2 : 4));
}

void bf16_linear_dw(struct cuda_backend *c, float *dw, struct tensor dy, struct tensor x) {
    const int64_t first = cuda_factor_bytes(dy), both = first + cuda_factor_bytes(x);
    if (dy.cols == 0 || x.cols == 0 || !factor(c, "linear_dw", &dy, 0, both) ||
        !factor(c, "linear_dw", &x, first, both))
        return;
    written(c, dw, (size_t)(dy.cols * x.cols) * sizeof *dw);
    if (c->profile) profile_mark(c, profile_name(c, "linear_dw", dy.cols, x.cols));
    const bool wide_rows = dy.cols > x.cols;
    const struct tensor wide = wide_rows ? dy : x, thin = wide_rows ? x : dy;
    struct cu_thin t = {.w = wide.data,
                        .s = thin.data,
                        .ldw = wide.ld,
                        .lds = thin.ld,
                        .out = dw,
                        .wide_rows = wide_rows,
                        .T = x.rows,
                        .N = wide.cols,
                        .R = thin.cols};
    if (cu_thin_takes(&c->dev, &t)) {
        const int64_t bytes = cuda_thin_bytes(c->dev.sm_count, t.T, t.N, t.R);
        float *const room = bytes > 0 ? cuda_scratch(c, "linear_dw", CUDA_SCRATCH, bytes) : NULL;
        t.part_rows = cuda_thin_part_rows(c->dev.sm_count, t.T, t.N, t.R);
        if (bytes == 0 || room) cuda_ok(c, "linear_dw", cu_thin(&c->dev, &t, room));
        return;
    }
    const struct lt_product p = {.tb = true,
                                 .accumulate = true,
                                 .m = x.cols,
                                 .n = dy.cols,
                                 .k = x.rows,
                                 .lda = x.ld,
                                 .ldb = dy.ld,
                                 .ldd = x.cols,
                                 .a = x.data,
                                 .b = dy.data,
                                 .d = dw};
    const struct cu_gemm16 own = {
        side(dy.data, 1, dy.ld), side(x.data, 1, x.ld), dw, 0, x.cols, NULL, 1, dy.cols, x.cols, x.rows, 0};
    /* Here the rows of the inputs are what is summed over: their widths must line up, their number need not. */
    if (x.cols % 8 == 0 && dy.cols % 8 == 0 && cuda_lines_up(dw, x.cols, 4)) {
        bool done;
        if (!lt_run(c, "linear_dw", &p, &done) || done) return;
    }
    cuda_ok(c, "linear_dw", cu_gemm16(&c->dev, &own));
}

bool bf16_factor(struct cuda_backend *c, const char *op, struct tensor *x) {
    return factor(c, op, x, 0, cuda_factor_bytes(*x));
}

bool bf16_factors(struct cuda_backend *c, const char *op, struct tensor *dy, struct tensor *x) {
    const int64_t first = cuda_factor_bytes(*dy), both = first + cuda_factor_bytes(*x);
    return factor(c, op, dy, 0, both) && factor(c, op, x, first, both);
}

void bf16_linear_exact(struct cuda_backend *c, struct tensor y, struct tensor x, const struct weight *w) {
    if (cu_router16_takes(&c->dev, mat16(x), w->w)) {
        const struct cu_dev dev = dev_of_pass(c, w->w);
        const char *op = profile_name(c, "linear", w->N, w->K);
        if (NOTE(c, op, OF_TENSOR(y), OF_TENSOR(x), ADDRESS(w->w)))
            cuda_ok(c, op, cu_router16(&dev, mat32(y), mat16(x), w->w));
        return;
    }
    float *const wide = cuda_scratch(c, "linear", CUDA_WIDE, cuda_wide_bytes(x));
    if (!wide || !NOTE(c, "linear", OF_TENSOR(y), OF_TENSOR(x), ADDRESS(w->w), ADDRESS(wide))) return;
    const struct cu_gemm g = {wide, w->w, y.data, x.cols, w->K, y.ld, NULL, false, y.rows, w->N, w->K};
    if (cuda_ok(c, "linear", cu_widen16(&c->dev, (struct cu_mat){wide, x.rows, x.cols, x.cols}, mat16(x), NULL, NULL)))
        cuda_ok(c, "linear", cu_gemm(&c->dev, CU_GEMM_NT, &g));
}

void bf16_linear_exact_dx(struct cuda_backend *c, struct tensor dx, struct tensor dy, const struct weight *w,
                          bool accumulate) {
    float *const wide = cuda_scratch(c, "linear_dx", CUDA_WIDE, cuda_wide_bytes(dx));
    if (!wide) return;
    const struct cu_mat sum = {wide, dx.rows, dx.cols, dx.cols};
    const struct cu_gemm g = {dy.data, w->w, wide, dy.ld, w->K, dx.cols, NULL, false, dx.rows, w->K, w->N};
    ASSERT(dy.dt == DT_F32);
    if (cuda_ok(c, "linear_dx", cu_gemm(&c->dev, CU_GEMM_NN, &g)))
        cuda_ok(c, "linear_dx", accumulate ? cu_add16(&c->dev, mat16(dx), sum) : cu_round16(&c->dev, mat16(dx), sum));
}

/* The first half runs on a stream of its own beside what comes next on the main one; the second waits for it. A kernel
 * that does nothing goes ahead of it: the product beside has blocks in clusters, each of which needs several
 * multiprocessors that lie together, so it must take its places first. (Over few rows that has not been seen to help.)
 */
enum { LORA_FEW = 32 };
void bf16_lora_down(struct backend *be, struct tensor x, const struct weight *a, struct tensor xa, float scale) {
    struct cuda_backend *c = cuda_begin(be, "lora");
    if (!c || x.rows == 0 || a->N == 0) return;
    if (!cuda_is_factor(x) && !make_factor(c, "lora", &x, CUDA_LORA_X, 0, cuda_factor_bytes(x))) return;
    ASSERT(a->dt == DT_BF16 && xa.dt == DT_BF16 && xa.cols == a->N && xa.ld == a->N && a->K == x.cols);
    struct cu_lora l = {.x = side(x.data, x.ld, 1),
                        .a = side(a->packed, a->K, 1),
                        .t = xa.data,
                        .n = 1,
                        .scale = scale,
                        .T = x.rows,
                        .K = a->K,
                        .R = a->N};
    const int64_t tiles = cuda_lora_tiles(x.rows, a->K, a->N);
    if (tiles > 0) {
        l.part = cuda_scratch(c, "lora", CUDA_LORA_PART, tiles * CUDA_LORA_TILE * (int64_t)sizeof *l.part);
        l.count = zeroed_counts(c, "lora", CUDA_LORA_COUNT, tiles);
        if (!l.part || !l.count) return;
    }
    if (!NOTE(c, NULL, OF_TENSOR(x), ADDRESS(a->packed), OF_TENSOR(xa), float_bits(scale), ADDRESS(l.part),
              ADDRESS(l.count)))
        return;
    struct cu_dev beside = c->dev;
    beside.stream = c->side;
    if (cuda_ok(c, "lora", cudaEventRecord(c->fork, c->stream)) &&
        cuda_ok(c, "lora", cudaStreamWaitEvent(c->side, c->fork, 0)) &&
        (x.rows <= LORA_FEW || cuda_ok(c, "lora", cu_nothing(&beside))) &&
        cuda_ok(c, "lora", cu_lora_down(&beside, &l)))
        cuda_ok(c, "lora", cudaEventRecord(c->join, c->side));
}

static struct cu_lora second_half(struct tensor xa, const struct lora_site_args *site, int n) {
    const int64_t R = xa.cols / n;
    ASSERT(n <= LORA_SITES_MAX && R * n == xa.cols && xa.dt == DT_BF16 && xa.ld == xa.cols);
    struct cu_lora l = {.t = xa.data, .n = n, .T = xa.rows, .R = R};
    for (int i = 0; i < n; i++) {
        const struct lora_site_args *s = &site[i];
        ASSERT(s->b->K == R && s->b->N == s->y.cols && s->b->dt == DT_BF16);
        l.site[i] = (struct cu_lora_site){side(s->b->packed, R, 1), s->y.data, s->y.dt == DT_BF16, s->y.ld, s->y.cols};
    }
    return l;
}

void bf16_lora_up(struct backend *be, struct tensor xa, const struct lora_site_args *site, int n) {
    struct cuda_backend *c = cuda_begin(be, "lora");
    if (!c || xa.rows == 0 || n == 0) return;
    struct cu_lora l = second_half(xa, site, n);
    bool launch = true;
    for (int i = 0; i < n; i++)
        launch = NOTE(c, i == 0 ? "lora_up" : NULL, OF_TENSOR(xa), OF_TENSOR(site[i].y), ADDRESS(site[i].b->packed));
    if (launch && cuda_ok(c, "lora", cudaStreamWaitEvent(c->stream, c->join, 0)))
        cuda_ok(c, "lora", cu_lora_up(&c->dev, &l));
}

void bf16_lora_swiglu(struct backend *be, struct tensor y, struct tensor gu, struct tensor xa,
                      const struct lora_site_args *site, int n, bool keep) {
    struct cuda_backend *c = cuda_begin(be, "lora");
    if (!c || xa.rows == 0) return;
    const struct cu_lora l = n > 0 ? second_half(xa, site, n) : (struct cu_lora){0};
    const bool fits = n == 2 && site[0].y.data == gu.data;
    if (!fits || !(keep ? cu_lora_takes_many(&l, mat16(y)) : cu_lora_takes_swiglu(&l, mat16(y)))) {
        bf16_lora_up(be, xa, site, n);
        be->swiglu(be, y, gu);
        return;
    }
    if (!NOTE(c, "lora_swiglu", OF_TENSOR(xa), OF_TENSOR(y), OF_TENSOR(gu), ADDRESS(site[0].b->packed),
              ADDRESS(site[1].b->packed), keep) ||
        !cuda_ok(c, "lora", cudaStreamWaitEvent(c->stream, c->join, 0)))
        return;
    cuda_ok(c, "lora", keep ? cu_lora_swiglu_many(&c->dev, &l, mat16(y), 1) : cu_lora_swiglu(&c->dev, &l, mat16(y)));
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

void bf16_embed(struct cuda_backend *c, struct tensor x, const struct weight *table, const int32_t *ids) {
    if (x.rows == 0) return;
    const int32_t *rows = pass_send(c, "embed", ids, (size_t)x.rows * sizeof *ids);
    if (rows && NOTE(c, "embed", OF_TENSOR(x), ADDRESS(table->packed), ADDRESS(rows), ADDRESS(c->slab[CUDA_DRAWN].p)))
        cuda_ok(c, "embed",
                cu_widen16(&c->dev, mat32(x), (struct cu_mat16){table->packed, table->N, table->K, table->K}, rows,
                           c->slab[CUDA_DRAWN].p));
}

void bf16_gather(struct cuda_backend *c, struct tensor y, struct tensor x, const int32_t *ids) {
    if (y.rows == 0) return;
    const int32_t *rows = pass_send(c, "gather_rows", ids, (size_t)y.rows * sizeof *ids);
    if (rows && NOTE(c, "gather_rows", OF_TENSOR(y), OF_TENSOR(x), ADDRESS(rows)))
        cuda_ok(c, "gather_rows", cu_gather16(&c->dev, mat16(y), mat16(x), rows));
}

void bf16_gather_scaled(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows, const float *scale) {
    struct cuda_backend *c = cuda_begin(be, "gather_scaled");
    ASSERT(x.cols == y.cols && x.dt == DT_BF16 && y.dt == DT_BF16);
    const size_t n = (size_t)y.rows;
    struct host_stage s;
    if (!c || n == 0 || !stage_begin(c, "gather_scaled", n * (sizeof *rows + sizeof *scale) + 32, &s)) return;
    const int32_t *const d_rows = stage_add(&s, rows, n * sizeof *rows);
    const float *const d_scale = stage_add(&s, scale, n * sizeof *scale);
    if (stage_send(c, "gather_scaled", &s))
        cuda_ok(c, "gather_scaled", cu_gather_scaled16(&c->dev, mat16(y), mat16(x), d_rows, d_scale));
}

void bf16_rmsnorm(struct cuda_backend *c, struct tensor y, struct tensor x, const float *gain, float eps) {
    if (c->owed.n != CUDA_LONG_PARTS || x.cols % 4 != 0 || x.cols > CU_PARTS_COLS || !cuda_lines_up(x.data, x.ld, 4))
        bf16_settle(c);
    const float *const part = c->owed.n > 0 ? c->owed.part : NULL;
    c->owed.n = 0;
    if (NOTE(c, "rmsnorm", OF_TENSOR(y), OF_TENSOR(x), ADDRESS(gain), float_bits(eps), ADDRESS(part)))
        cuda_ok(c, "rmsnorm",
                part ? cu_rmsnorm16_parts(&c->dev, mat16(y), mat32(x), gain, eps, part)
                     : cu_rmsnorm16(&c->dev, mat16(y), mat32(x), gain, eps));
}

/* The tables move when they grow, and not together. */
#define OF_ROPE(r)                                                                                          \
    ADDRESS((r)->cos_t), ADDRESS((r)->sin_t), ADDRESS((r)->q_gain), ADDRESS((r)->k_gain), (uint64_t)(r)->H, \
        (uint64_t)(r)->G, (uint64_t)(r)->K

void bf16_rope(struct cuda_backend *c, struct tensor qk, struct tensor qkv, const struct rope_args *r) {
    if (qk.rows == 0) return;
    const int32_t *pos = pass_send(c, "rope", r->pos, (size_t)qk.rows * sizeof *pos);
    const struct cu_rope a = {r->H,     r->G,      r->K,      pos,    r->cos_t,
                              r->sin_t, r->q_gain, r->k_gain, r->eps, 1.0f / sqrtf((float)r->K)};
    if (pos && NOTE(c, "rope", OF_TENSOR(qk), OF_TENSOR(qkv), ADDRESS(pos), OF_ROPE(r)))
        cuda_ok(c, "rope", cu_rope16(&c->dev, mat16(qk), mat32(qkv), &a));
}

/* The cache's layout is that of kv_write. */
void bf16_rope_kv(struct backend *be, struct tensor qk, struct tensor qkv, const struct rope_args *r,
                  const struct attn_seq *seq, int n_seq, struct attn_shape s) {
    struct cuda_backend *c = cuda_begin(be, "rope");
    if (!c || qk.rows == 0) return;
    const struct plan16 *p = plan16_of(c, "rope", seq, n_seq, s, false);
    const int32_t *pos = p ? pass_send(c, "rope", r->pos, (size_t)qk.rows * sizeof *pos) : NULL;
    const struct cu_rope a = {r->H,     r->G,      r->K,      pos,    r->cos_t,
                              r->sin_t, r->q_gain, r->k_gain, r->eps, 1.0f / sqrtf((float)r->K)};
    if (pos && NOTE(c, "rope", OF_TENSOR(qk), OF_TENSOR(qkv), ADDRESS(pos), OF_ROPE(r), ADDRESS(s.kv),
                    (uint64_t)s.kv_stride, ADDRESS(p->kv_task), (uint64_t)p->n_kv))
        cuda_ok(c, "rope",
                cu_rope_kv16(&c->dev, mat16(qk), mat32(qkv), &a, p->kv_task, p->n_kv, (uint16_t *)(void *)s.kv,
                             2 * s.kv_stride));
}

void bf16_swiglu(struct cuda_backend *c, struct tensor y, struct tensor gu) {
    if (NOTE(c, "swiglu", OF_TENSOR(y), OF_TENSOR(gu))) cuda_ok(c, "swiglu", cu_swiglu16(&c->dev, mat16(y), mat16(gu)));
}

bool bf16_widen(struct cuda_backend *c, const char *op, struct tensor *const t[], int n) {
    int64_t bytes = 0;
    for (int i = 0; i < n; i++) bytes += cuda_wide_bytes(*t[i]);
    if (bytes == 0) return true;
    char *p = cuda_scratch(c, op, CUDA_WIDE, bytes);
    if (!p) return false;
    for (int i = 0; i < n; i++) {
        if (t[i]->dt != DT_BF16) continue;
        const struct tensor y = tensor_of(p, DT_F32, t[i]->rows, t[i]->cols);
        if (!cuda_ok(c, op, cu_widen16(&c->dev, mat32(y), mat16(*t[i]), NULL, NULL))) return false;
        p += cuda_wide_bytes(*t[i]);
        *t[i] = y;
    }
    return true;
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

void bf16_kv_write(struct cuda_backend *c, struct tensor k, struct tensor v, const struct attn_seq *seq, int n_seq,
                   struct attn_shape s) {
    const struct plan16 *p = plan16_of(c, "kv_write", seq, n_seq, s, false);
    if (p && NOTE(c, "kv_write", OF_TENSOR(k), OF_TENSOR(v), ADDRESS(s.kv), (uint64_t)s.kv_stride, ADDRESS(p->kv_task),
                  (uint64_t)p->n_kv))
        cuda_ok(c, "kv_write",
                cu_kv_write16(&c->dev, mat16(k), mat16(v), p->kv_task, p->n_kv, s.G, s.K, (uint16_t *)(void *)s.kv,
                              2 * s.kv_stride));
}

void bf16_attention(struct cuda_backend *c, struct tensor o, float *stats, struct tensor q, struct tensor k,
                    struct tensor v, const struct attn_seq *seq, int n_seq, struct attn_shape s) {
    bool training = false;
    for (int i = 0; i < n_seq; i++) training |= seq[i].len > 0 && !seq[i].blocks;
    struct plan16 *p = plan16_of(c, "attention", seq, n_seq, s, training);
    if (!p || p->n_split + p->n_walk == 0) return;
    const uint16_t *kv = (const uint16_t *)(const void *)s.kv;
    int64_t stride = 2 * s.kv_stride;
    if (training) { /* keys and values go into a cache of their own first */
        stride = 2 * kv_layer_floats_of(DT_BF16, s.G, s.K);
        uint16_t *own = cuda_scratch(c, "attention", CUDA_OWN_KV, cuda_own_kv_bytes(p->n_blocks, s.G, s.K));
        if (!own || !cuda_ok(c, "attention",
                             cu_kv_write16(&c->dev, mat16(k), mat16(v), p->kv_task, p->n_kv, s.G, s.K, own, stride)))
            return;
        kv = own;
    }
    struct cu_attn16 a = {.q = mat16(q),
                          .o = mat16(o),
                          .stats = stats,
                          .H = s.H,
                          .G = s.G,
                          .K = s.K,
                          .kv = kv,
                          .kv_stride = stride,
                          .table = p->table,
                          .settled = !training,
                          .late = p->late,
                          .runs = {p->runs[0], p->runs[1]},
                          .run_units = {p->run_units[0], p->run_units[1]},
                          .part_units = p->part_units};
    if (p->n_split > 0) {
        a.part = cuda_scratch(c, "attention", CUDA_UNIT_PART, cuda_unit_bytes(p->part_units, s.K));
        a.count = zeroed_counts(c, "attention", CUDA_UNIT_COUNT, p->n_split);
        if (!a.part || !a.count) return;
    }
    if (!NOTE(c, "attention", OF_TENSOR(o), OF_TENSOR(q), ADDRESS(stats), (uint64_t)s.H, (uint64_t)s.G, (uint64_t)s.K,
              ADDRESS(kv), (uint64_t)stride, ADDRESS(p->table), ADDRESS(p->split), (uint64_t)p->n_split,
              (uint64_t)p->n_walk, (uint64_t)p->late, (uint64_t)p->runs[0], (uint64_t)p->runs[1],
              (uint64_t)p->run_units[0], (uint64_t)p->run_units[1], (uint64_t)p->part_units, ADDRESS(a.part),
              ADDRESS(a.count)))
        return;
    a.task = p->split;
    a.n_tasks = p->n_split;
    if (!cuda_ok(c, "attention", cu_attention16_decode(&c->dev, &a))) return;
    a.task = p->walk;
    a.n_tasks = p->n_walk;
    cuda_ok(c, "attention", cu_attention16(&c->dev, &a));
}
