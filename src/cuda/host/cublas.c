/* Products in bfloat16 through cuBLASLt. The library is looked for when the backend opens: no build needs it, and where
 * it is missing our own kernel computes the products.
 *
 * Exact numerics. A row's bits must not depend on how many rows there are, but the fastest algorithm does. So each kind
 * of product (matrix size, types, epilogue) has a reference: an algorithm that does not split the sum, chosen for
 * REFERENCE_ROWS rows. For each range of row counts the fastest algorithm without a split is taken whose rows have the
 * reference's bits. This is tried on rows that are spread over the output. On Hopper all of them pass. The reference
 * itself is taken when none is faster or none has its bits: its tiles do not know of each other. It also computes the
 * products of few rows with matrices so small that a launch takes most of the time.
 *
 * For few rows, our own kernel (few_rows_gemm.cu) is one more candidate. It is taken even when it is a little slower
 * alone, because in a pass it reads its weights while the kernel before it ends. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/host/host.h"

#if __has_include(<cublasLt.h>) && !defined(KERNELRL_EMULATED)
#include <cublasLt.h>

enum { REFERENCE_ROWS = 16, CANDIDATES = 8, GROUPS = 128, RANGES = 40, TIMINGS = 3, GRADIENTS = 128 };
#define FEW_AHEAD_MS 2e-3f /* So much earlier our own kernel for few rows begins in a pass. */
#define SWIGLU_MS 3e-3f    /* So long SwiGLU takes as a kernel of its own. */
#define WORKSPACE_BYTES ((size_t)32 << 20)
#define SMALL_MATRIX 65536 /* Elements of a matrix that counts as small when there are fewer than MANY_ROWS rows. */
#define MANY_ROWS 1024
#define FLUSH_BYTES ((size_t)96 << 20)

/* How a product is computed. */
struct gemm_choice {
    cublasLtMatmulAlgo_t algo;
    bool decodes;         /* by our kernel that decodes inside, where that takes the product */
    bool few, few_swiglu; /* few: by our kernel for few rows, where that takes the product. few_swiglu: by its variant
                             with SwiGLU fused. */
};

/* One kind of product. The number of columns of D, which are rows in our terms, is left open. */
struct gemm_group {
    struct lt_product like;    /* n and the addresses do not count. */
    enum weight_format format; /* as format_in gives it */
    bool usable;
    struct gemm_choice reference;
    int64_t n[RANGES]; /* The upper ends of the ranges that have been searched. */
    struct gemm_choice choice[RANGES];
    int n_ranges;
};

/* A product of a gradient, of exactly these sizes, and the algorithm that computes it. */
struct gradient {
    struct lt_product like; /* The addresses do not count. */
    cublasLtMatmulAlgo_t algo;
};

struct lt {
    void *library;
    cublasLtHandle_t handle;
    struct gemm_group group[GROUPS];
    int n_groups;
    struct gradient gradient[GRADIENTS]; /* A ring. */
    int64_t n_gradients;
    void *workspace; /* Only with fast numerics. */
    cublasStatus_t (*create)(cublasLtHandle_t *);
    cublasStatus_t (*destroy)(cublasLtHandle_t);
    size_t (*version)(void);
    cublasStatus_t (*layout_init)(cublasLtMatrixLayout_t, size_t, cudaDataType, uint64_t, uint64_t, int64_t);
    cublasStatus_t (*layout_set)(cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, const void *, size_t);
    cublasStatus_t (*desc_init)(cublasLtMatmulDesc_t, size_t, cublasComputeType_t, cudaDataType_t);
    cublasStatus_t (*desc_set)(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *, size_t);
    cublasStatus_t (*pref_init)(cublasLtMatmulPreference_t, size_t);
    cublasStatus_t (*pref_set)(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *, size_t);
    cublasStatus_t (*heuristic)(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
                                cublasLtMatmulHeuristicResult_t *, int *);
    cublasStatus_t (*check)(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                            cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *,
                            cublasLtMatmulHeuristicResult_t *);
    cublasStatus_t (*matmul)(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *, cublasLtMatrixLayout_t,
                             const void *, cublasLtMatrixLayout_t, const void *, const void *, cublasLtMatrixLayout_t,
                             void *, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, void *, size_t,
                             cudaStream_t);
};

static bool symbol(void *library, const char *name, void *to) {
    void *p = dlsym(library, name);
    memcpy(to, &p, sizeof p); /* C has no conversion between pointers to objects and to functions. */
    return p != NULL;
}

static bool symbols(struct lt *l) {
    return symbol(l->library, "cublasLtCreate", &l->create) && symbol(l->library, "cublasLtDestroy", &l->destroy) &&
           symbol(l->library, "cublasLtGetVersion", &l->version) &&
           symbol(l->library, "cublasLtMatrixLayoutInit_internal", &l->layout_init) &&
           symbol(l->library, "cublasLtMatrixLayoutSetAttribute", &l->layout_set) &&
           symbol(l->library, "cublasLtMatmulDescInit_internal", &l->desc_init) &&
           symbol(l->library, "cublasLtMatmulDescSetAttribute", &l->desc_set) &&
           symbol(l->library, "cublasLtMatmulPreferenceInit_internal", &l->pref_init) &&
           symbol(l->library, "cublasLtMatmulPreferenceSetAttribute", &l->pref_set) &&
           symbol(l->library, "cublasLtMatmulAlgoGetHeuristic", &l->heuristic) &&
           symbol(l->library, "cublasLtMatmulAlgoCheck", &l->check) && symbol(l->library, "cublasLtMatmul", &l->matmul);
}

/* The version that these declarations are from. Opaque structs are laid out for it. */
#define STRING_(x) #x
#define STRING(x) STRING_(x)
#define LIBRARY "libcublasLt.so." STRING(CUBLAS_VER_MAJOR)

struct lt *lt_open(void) {
    struct lt *l = xcalloc(1, sizeof *l);
    /* KERNELRL_CUBLASLT is a path, or "none" to do without the library. */
    const char *named = getenv("KERNELRL_CUBLASLT");
    const char *const places[] = {named && *named ? named : LIBRARY, "/usr/local/cuda/lib64/" LIBRARY,
                                  "/usr/local/cuda/targets/x86_64-linux/lib/" LIBRARY};
    for (size_t i = 0; i < (named && *named ? 1 : ARRAY_LEN(places)) && !l->library; i++)
        l->library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
    if (l->library && symbols(l) && l->create(&l->handle) == CUBLAS_STATUS_SUCCESS) return l;
    if (l->library) dlclose(l->library);
    free(l);
    return NULL;
}

void lt_close(struct lt *l) {
    if (!l) return;
    cudaFree(l->workspace);
    l->destroy(l->handle);
    dlclose(l->library);
    free(l);
}

/* ---- one product ------------------------------------------------------------------------------------------------- */

struct gemm_shape {
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t a, b, d;
};

static int64_t parts_of(const struct lt_product *p) { return p->parts > 1 ? p->parts : 1; }

static bool set_parts(const struct lt *l, cublasLtMatrixLayout_t m, int64_t parts, int64_t step) {
    const int32_t n = (int32_t)parts;
    return !l->layout_set(m, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n, sizeof n) &&
           !l->layout_set(m, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step);
}

static bool shape_init(const struct lt *l, const struct lt_product *p, struct gemm_shape *s) {
    const cublasOperation_t ta = p->ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb = p->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t bias = CUBLASLT_EPILOGUE_BIAS;
    const cudaDataType_t out = p->out16 ? CUDA_R_16BF : CUDA_R_32F, f32 = CUDA_R_32F;
    const uint64_t m = (uint64_t)p->m, n = (uint64_t)p->n, k = (uint64_t)p->k;
    memset(s, 0, sizeof *s);
    return !(l->desc_init(&s->desc, sizeof s->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) ||
             l->desc_set(&s->desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta) ||
             l->desc_set(&s->desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb) ||
             (p->bias && (l->desc_set(&s->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &bias, sizeof bias) ||
                          l->desc_set(&s->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &f32, sizeof f32) ||
                          l->desc_set(&s->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof p->bias))) ||
             l->layout_init(&s->a, sizeof s->a, CUDA_R_16BF, p->ta ? k : m, p->ta ? m : k, p->lda) ||
             l->layout_init(&s->b, sizeof s->b, CUDA_R_16BF, p->tb ? n : k, p->tb ? k : n, p->ldb) ||
             l->layout_init(&s->d, sizeof s->d, out, m, n, p->ldd)) &&
           (parts_of(p) == 1 || (set_parts(l, &s->a, p->parts, p->k) && set_parts(l, &s->b, p->parts, p->k) &&
                                 set_parts(l, &s->d, p->parts, p->part_step)));
}

static int candidates(const struct lt *l, struct gemm_shape *s, bool fast, int most,
                      cublasLtMatmulHeuristicResult_t *out) {
    cublasLtMatmulPreferenceOpaque_t pref;
    const size_t workspace = fast ? WORKSPACE_BYTES : 0;
    const uint32_t align = 16, no_split = CUBLASLT_REDUCTION_SCHEME_NONE;
    int n = 0;
    memset(&pref, 0, sizeof pref);
    if (l->pref_init(&pref, sizeof pref) ||
        l->pref_set(&pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace) ||
        l->pref_set(&pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align, sizeof align) ||
        l->pref_set(&pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align, sizeof align) ||
        l->pref_set(&pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align, sizeof align) ||
        l->pref_set(&pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align, sizeof align) ||
        (!fast && l->pref_set(&pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &no_split, sizeof no_split)) ||
        l->heuristic(l->handle, &s->desc, &s->a, &s->b, &s->d, &s->d, &pref, most, out, &n) != CUBLAS_STATUS_SUCCESS)
        return 0;
    int good = 0;
    for (int i = 0; i < n; i++)
        if (out[i].state == CUBLAS_STATUS_SUCCESS) out[good++] = out[i];
    return good;
}

static bool launch_algo(const struct cuda_backend *c, struct gemm_shape *s, const struct lt_product *p,
                        const cublasLtMatmulAlgo_t *algo) {
    const float alpha = p->alpha != 0.0f ? p->alpha : 1.0f, beta = p->accumulate ? 1.0f : 0.0f;
    const struct lt *l = c->lt;
    return l->matmul(l->handle, &s->desc, &alpha, p->a, &s->a, p->b, &s->b, &beta, p->c ? p->c : p->d, &s->d, p->d,
                     &s->d, algo, l->workspace, l->workspace ? WORKSPACE_BYTES : 0, c->stream) == CUBLAS_STATUS_SUCCESS;
}

static bool launch(const struct cuda_backend *c, struct gemm_shape *s, const struct lt_product *p,
                   const struct gemm_choice *by) {
    if (by->decodes && decode_takes(c, p)) return decode_run(c, p) == 0;
    if (by->few && few_takes(c, p)) return few_run(c, p) == 0;
    return launch_algo(c, s, p, &by->algo);
}

/* ---- choosing an algorithm --------------------------------------------------------------------------------------- */

struct trial { /* The device memory and events of a search. */
    void *x, *d, *few, *want, *flush;
    int32_t *differ;
    cudaEvent_t begin, end;
};

static void trial_close(struct trial *t) {
    cudaFree(t->x);
    cudaFree(t->d);
    cudaFree(t->few);
    cudaFree(t->want);
    cudaFree(t->flush);
    cudaFree(t->differ);
    if (t->begin) cudaEventDestroy(t->begin);
    if (t->end) cudaEventDestroy(t->end);
    cudaGetLastError(); /* Too little room for a search is no error: the reference is taken. */
}

static bool trial_open(struct trial *t, const struct lt_product *p) {
    const size_t few = REFERENCE_ROWS, x = (size_t)(p->k * parts_of(p)) * 2,
                 d = (size_t)(p->m * parts_of(p)) * (p->out16 ? 2 : 4);
    void *differ = NULL;
    *t = (struct trial){0};
    const bool ok = !cudaMalloc(&t->x, (size_t)p->n * x) && !cudaMalloc(&t->d, (size_t)p->n * d) &&
                    !cudaMalloc(&t->few, few * x) && !cudaMalloc(&t->want, few * d) &&
                    !cudaMalloc(&t->flush, FLUSH_BYTES) && !cudaMalloc(&differ, few * sizeof(int32_t)) &&
                    !cudaEventCreateWithFlags(&t->begin, 0) && !cudaEventCreateWithFlags(&t->end, 0);
    t->differ = differ;
    return ok;
}

/* Sets the strides of operands that lie end to end, as they do in a trial. */
static void of_trial(struct lt_product *p) {
    p->ldb = p->k * parts_of(p);
    p->ldd = p->m;
    p->part_step = p->n * p->m;
}

/* Computes the product on the trial's rows. The old contents of d are the same few numbers everywhere. */
static bool try_run(const struct cuda_backend *c, const struct lt_product *p, void *b, void *d, int64_t n,
                    const struct gemm_choice *by) {
    struct lt_product q = *p;
    struct gemm_shape s;
    q.b = b;
    q.c = NULL;
    q.d = d;
    q.n = n;
    of_trial(&q);
    return !cudaMemsetAsync(d, 0x3c, (size_t)(n * p->m * parts_of(p)) * (p->out16 ? 2 : 4), c->stream) &&
           shape_init(c->lt, &q, &s) && launch(c, &s, &q, by);
}

static bool same_rows(const struct cuda_backend *c, const struct lt_product *p, const struct trial *t, int64_t wanted) {
    const int64_t row = p->m * (p->out16 ? 2 : 4);
    int32_t differ[REFERENCE_ROWS] = {0}, any = 0;
    if (cudaMemsetAsync(t->differ, 0, sizeof differ, c->stream)) return false;
    for (int64_t i = 0; i < parts_of(p); i++)
        if (cu_rows_differ(&c->dev, t->differ, (char *)t->d + i * p->n * row, row,
                           (char *)t->want + i * REFERENCE_ROWS * row, row, row, p->n, wanted))
            return false;
    if (cudaMemcpyAsync(differ, t->differ, sizeof differ, cudaMemcpyDeviceToHost, c->stream) ||
        cudaStreamSynchronize(c->stream))
        return false;
    for (int i = 0; i < REFERENCE_ROWS; i++) any |= differ[i];
    return !any;
}

static float best_time(const struct cuda_backend *c, const struct lt_product *p, const struct trial *t,
                       const struct gemm_choice *by) {
    struct lt_product q = *p;
    struct gemm_shape s;
    float best = 1e30f;
    q.b = t->x;
    q.c = NULL;
    q.d = t->d;
    of_trial(&q);
    if (!shape_init(c->lt, &q, &s)) return best;
    for (int i = 0; i < TIMINGS; i++) {
        float ms = 1e30f;
        if (cudaMemsetAsync(t->flush, i, FLUSH_BYTES, c->stream) || cudaEventRecord(t->begin, c->stream) ||
            !launch(c, &s, &q, by) || cudaEventRecord(t->end, c->stream) || cudaEventSynchronize(t->end) ||
            cudaEventElapsedTime(&ms, t->begin, t->end))
            return 1e30f;
        if (ms < best) best = ms;
    }
    return best;
}

/* Returns how many milliseconds a candidate takes. It is 1e30 when the candidate cannot compute the product, or when
 * its rows have other bits than the reference's. */
static float judge(const struct cuda_backend *c, const struct lt_product *p, const struct trial *t, int64_t wanted,
                   const struct gemm_choice *by) {
    if (!try_run(c, p, t->x, t->d, p->n, by) || (!c->be.fast && !same_rows(c, p, t, wanted))) return 1e30f;
    return best_time(c, p, t, by);
}

/* Finds how products of p->n rows are computed. */
static void search(struct cuda_backend *c, const char *op, const struct gemm_group *g, const struct lt_product *p,
                   struct gemm_choice *out) {
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    struct trial t;
    struct gemm_shape s;
    struct lt_product q = *p;
    const int64_t width = p->k * parts_of(p);
    *out = g->reference;
    of_trial(&q);
    if (c->profile) profile_mark(c, "search");
    const int n = shape_init(c->lt, &q, &s) ? candidates(c->lt, &s, c->be.fast, CANDIDATES, found) : 0;
    const int64_t wanted = i64_min(p->n, REFERENCE_ROWS);
    if (trial_open(&t, p) && !cu_random16(&c->dev, t.few, REFERENCE_ROWS * width, 1) &&
        !cu_random16(&c->dev, t.x, p->n * width, 2) && !cu_spread_rows(&c->dev, t.x, t.few, width, p->n, wanted) &&
        try_run(c, p, t.few, t.want, REFERENCE_ROWS, &g->reference)) {
        float best = 1e30f, own = 1e30f, decoding = 1e30f;
        for (int i = 0; i < n; i++) {
            const struct gemm_choice by = {.algo = found[i].algo};
            const float ms = judge(c, p, &t, wanted, &by);
            if (ms >= best) continue;
            best = ms;
            *out = by;
        }
        if (few_takes(c, &q)) {
            const struct gemm_choice by = {.algo = out->algo, .few = true};
            own = judge(c, p, &t, wanted, &by);
            out->few = own < best + FEW_AHEAD_MS;
            out->few_swiglu = own < best + FEW_AHEAD_MS + SWIGLU_MS;
        }
        if (decode_takes(c, &q)) {
            struct gemm_choice by = *out;
            by.decodes = true;
            /* The others come behind an expansion, which reads and writes more than they read. */
            decoding = judge(c, p, &t, wanted, &by);
            out->decodes = decoding < 2 * (own < best ? own : best);
        }
        if (getenv("KERNELRL_CUDA_PROFILE")) {
            fprintf(stderr, "product %lld x %lld x %lld%s, %lld parts: %d algorithms, %.1f us", (long long)p->n,
                    (long long)p->m, (long long)p->k, p->out16 ? ", bf16" : "", (long long)parts_of(p), n,
                    (double)best * 1e3);
            if (own < 1e30f) fprintf(stderr, "; own %.1f us", (double)own * 1e3);
            if (decode_takes(c, &q)) fprintf(stderr, "; decoding %.1f us", (double)decoding * 1e3);
            fprintf(stderr, "\n");
        }
    }
    trial_close(&t);
    if (c->profile) profile_mark(c, op);
}

/* The format of the codes that a product is of; FORMAT_F32: of none. */
static enum weight_format format_in(const struct lt_product *p) {
    return p->codes ? p->codes->part[0].format : FORMAT_F32;
}

static struct gemm_group *group_of(struct cuda_backend *c, const struct lt_product *p) {
    struct lt *l = c->lt;
    for (int i = 0; i < l->n_groups; i++) {
        const struct lt_product *q = &l->group[i].like;
        if (q->ta == p->ta && q->tb == p->tb && q->m == p->m && q->k == p->k && q->out16 == p->out16 &&
            q->accumulate == p->accumulate && !q->bias == !p->bias && parts_of(q) == parts_of(p) &&
            l->group[i].format == format_in(p))
            return &l->group[i];
    }
    if (l->n_groups == GROUPS) return NULL;
    struct gemm_group *g = &l->group[l->n_groups++];
    struct gemm_shape s;
    cublasLtMatmulHeuristicResult_t one;
    *g = (struct gemm_group){.like = *p, .format = format_in(p)};
    g->like.codes = NULL; /* they do not live as long */
    g->like.n = REFERENCE_ROWS;
    of_trial(&g->like);
    if (p->tb) g->like.ldb = REFERENCE_ROWS;
    g->usable = shape_init(l, &g->like, &s) && candidates(l, &s, false, 1, &one) == 1;
    if (g->usable) g->reference = (struct gemm_choice){.algo = one.algo};
    return g;
}

static int64_t range_end(int64_t n) {
    static const int64_t ends[] = {1,   2,   4,   8,   16,  24,  32,   48,   64,   96,   128,  160,  192,
                                   224, 256, 320, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192};
    for (size_t i = 0; i < ARRAY_LEN(ends); i++)
        if (n <= ends[i]) return ends[i];
    int64_t end = 8192;
    while (end < n) end *= 2;
    return end;
}

static bool same_product(const struct lt_product *a, const struct lt_product *b) {
    return a->m == b->m && a->n == b->n && a->k == b->k && a->ta == b->ta && a->tb == b->tb && a->out16 == b->out16 &&
           a->accumulate == b->accumulate && a->lda == b->lda && a->ldb == b->ldb && a->ldd == b->ldd && !a->bias &&
           !b->bias;
}

/* Computes a product of training's gradients. There the sum runs over rows or outputs, and no row is compared with
 * another, so the first algorithm that is offered is taken for each size, and a run repeats. Asking for an algorithm
 * takes longer than a small product, so it is kept. */
static bool gradient(const struct cuda_backend *c, const struct lt_product *p) {
    struct lt *l = c->lt;
    struct gemm_shape s;
    cublasLtMatmulHeuristicResult_t one;
    if (!shape_init(l, p, &s)) return false;
    for (int64_t i = 0; i < i64_min(l->n_gradients, GRADIENTS); i++)
        if (same_product(&l->gradient[i].like, p)) return launch_algo(c, &s, p, &l->gradient[i].algo);
    if (candidates(l, &s, false, 1, &one) != 1 || !launch_algo(c, &s, p, &one.algo)) return false;
    l->gradient[l->n_gradients++ % GRADIENTS] = (struct gradient){*p, one.algo};
    return true;
}

/* Returns how a product of so many rows is computed. NULL: this cannot be found out now. */
static const struct gemm_choice *choice_of(struct cuda_backend *c, const char *op, struct gemm_group *g,
                                           const struct lt_product *p) {
    const int64_t end = range_end(p->n);
    int i = 0;
    if (p->m * p->k < SMALL_MATRIX && p->n < MANY_ROWS) return &g->reference;
    while (i < g->n_ranges && g->n[i] != end) i++;
    if (i < g->n_ranges) return &g->choice[i];
    if (c->pass.mode != PASS_RUN) c->pass.abort = true; /* A search cannot be recorded. */
    if (i == RANGES || c->pass.mode != PASS_RUN) return NULL;
    search(c, op, g, p, &g->choice[i]);
    g->n[i] = end;
    return &g->choice[g->n_ranges++];
}

bool lt_run(struct cuda_backend *c, const char *op, const struct lt_product *p, bool *done) {
    *done = false;
    if (!c->lt) return true;
    if (c->be.fast && !c->lt->workspace && cudaMalloc(&c->lt->workspace, WORKSPACE_BYTES) != cudaSuccess)
        cudaGetLastError(); /* There are algorithms that need no workspace. */
    if (!p->exact) {
        *done = gradient(c, p);
        return true;
    }
    struct gemm_group *g = group_of(c, p);
    if (!g || !g->usable) return true;
    const struct gemm_choice *by = choice_of(c, op, g, p);
    struct gemm_shape s;
    if (!by) return true;
    *done = shape_init(c->lt, p, &s) && (launch(c, &s, p, by) || launch(c, &s, p, &g->reference));
    if (!*done) cuda_refuse(c, op, "cuBLASLt refuses a product it had an algorithm for");
    return *done;
}

bool lt_few_swiglu(struct cuda_backend *c, const char *op, const struct lt_product *p) {
    struct gemm_group *g = c->lt && p->exact ? group_of(c, p) : NULL;
    const struct gemm_choice *by = g && g->usable ? choice_of(c, op, g, p) : NULL;
    return by && by->few_swiglu;
}

bool lt_decodes(struct cuda_backend *c, const struct lt_product *p) {
    struct gemm_group *g = c->lt && p->exact ? group_of(c, p) : NULL;
    const int64_t end = range_end(p->n);
    for (int i = 0; g && g->usable && i < g->n_ranges; i++)
        if (g->n[i] == end) return g->choice[i].decodes && decode_takes(c, p);
    return false;
}

const char *lt_text(const struct lt *l, char *buf, size_t size) {
    const size_t v = l ? l->version() : 0;
    snprintf(buf, size, l ? "cuBLASLt %zu.%zu.%zu" : "no " LIBRARY ": own products", v / 10000, v / 100 % 100, v % 100);
    return buf;
}

#else

struct lt *lt_open(void) {
    return NULL;
}
void lt_close(struct lt *l) { (void)l; }
bool lt_run(struct cuda_backend *c, const char *op, const struct lt_product *p, bool *done) {
    (void)c, (void)op, (void)p;
    *done = false;
    return true;
}
bool lt_few_swiglu(struct cuda_backend *c, const char *op, const struct lt_product *p) {
    (void)c, (void)op, (void)p;
    return false;
}
bool lt_decodes(struct cuda_backend *c, const struct lt_product *p) {
    (void)c, (void)p;
    return false;
}
const char *lt_text(const struct lt *l, char *buf, size_t size) {
    (void)l;
    snprintf(buf, size, "own products");
    return buf;
}

#endif
