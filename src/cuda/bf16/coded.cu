/* Expands a matrix in codes to the bfloat16 matrix that it means, in scratch, for products of any kind. The kernels
 * take one matrix, or those of the experts of a group that have rows: a block of `per` blocks a matrix has one of them.
 */
#include "cuda/shared/codes.cuh"

enum { THREADS = 256, EIGHT = 8 /* weights of a thread */ };

/* Weights [first, first + n) of the list, those behind `end` left out, to a bf16 or float32 matrix. */
static __device__ __forceinline__ void put_weights(const struct cu_coded &m, void *out, int wide, int64_t first,
                                                   int64_t end) {
    for (int64_t i = first; i < first + EIGHT && i < end; i++) {
        const uint16_t w = bf16_of(coded_value(m, i));
        if (wide)
            static_cast<float *>(out)[i] = bf16_float(w);
        else
            static_cast<uint16_t *>(out)[i] = w;
    }
}

/* The same for eight weights whose scale is one and whose codes lie end to end in a word or two. */
static __device__ __forceinline__ void put_eight(const struct cu_coded &m, const float *map, void *out, int wide,
                                                 int64_t first) {
    float x[EIGHT];
    if (m.format == FORMAT_NF4) {
        const float s = nf4_scale_of(m, first / NF4_BLOCK);
        const uint32_t codes = *reinterpret_cast<const uint32_t *>(m.codes + first / 2);
#pragma unroll
        for (int i = 0; i < EIGHT; i++) x[i] = map[codes >> (8 * (i / 2) + 4 * (1 - i % 2)) & 15u] * s;
    } else {
        const int64_t row = first / m.K, k = first % m.K;
        const float s = m.scale[row / FP8_BLOCK * ceil_div(m.K, FP8_BLOCK) + k / FP8_BLOCK] * FP8_UP;
        const uint2 codes = *reinterpret_cast<const uint2 *>(m.codes + first);
#pragma unroll
        for (int i = 0; i < EIGHT; i++) x[i] = fp8_small(i < 4 ? codes.x : codes.y, i % 4) * s;
    }
    uint4 w;
    w.x = bf16_pair(x[0], x[1]), w.y = bf16_pair(x[2], x[3]), w.z = bf16_pair(x[4], x[5]), w.w = bf16_pair(x[6], x[7]);
    if (!wide) {
        *reinterpret_cast<uint4 *>(static_cast<uint16_t *>(out) + first) = w;
        return;
    }
    float4 *const to = reinterpret_cast<float4 *>(static_cast<float *>(out) + first);
    to[0] = make_float4(low_float(w.x), high_float(w.x), low_float(w.y), high_float(w.y));
    to[1] = make_float4(low_float(w.z), high_float(w.z), low_float(w.w), high_float(w.w));
}

/* Where a matrix of a group comes from and goes to. */
struct of_group {
    struct cu_group e; /* w: parts of matrices, each a struct cu_coded */
    char *out;
    int64_t stride; /* bytes */
    int64_t per;    /* blocks of a matrix */
};
/* False: the expert of this block has no rows, so nobody reads its matrix. */
static __device__ __forceinline__ bool expert_of_block(const struct of_group &g, struct cu_coded &m, void *&out) {
    const int64_t i = blockIdx.x / g.per;
    if (g.e.hi[i] <= g.e.lo[i]) return false;
    m = *static_cast<const struct cu_coded *>(g.e.w[i]);
    out = g.out + i * g.stride;
    return true;
}

static __device__ __forceinline__ void expand_list(const struct cu_coded &m, void *out, int wide, int lined_up,
                                                   int64_t block, int64_t blocks) {
    __shared__ float map[NF4_CODES];
    const int64_t n = m.rows * m.K;
    if (m.format == FORMAT_NF4 && threadIdx.x < NF4_CODES) map[threadIdx.x] = m.map[threadIdx.x];
    __syncthreads();
    for (int64_t i = (block * THREADS + threadIdx.x) * EIGHT; i < n; i += blocks * THREADS * EIGHT) {
        if (lined_up && i + EIGHT <= n)
            put_eight(m, map, out, wide, i);
        else
            put_weights(m, out, wide, i, n);
    }
}
static __global__ void __launch_bounds__(THREADS)
    expand_kernel(const struct cu_coded m, void *out, int wide, int lined_up) {
    expand_list(m, out, wide, lined_up, blockIdx.x, gridDim.x);
}
static __global__ void __launch_bounds__(THREADS) expand_group_kernel(const struct of_group g, int wide, int lined_up) {
    struct cu_coded m;
    void *out;
    if (expert_of_block(g, m, out)) expand_list(m, out, wide, lined_up, blockIdx.x % g.per, g.per);
}

/* ---- units ------------------------------------------------------------------------------------------------------- */

enum { PANEL = 64, UNITS = 4 /* of a block, one below the other */, UNIT_THREADS = UNITS * 32 };

/* A warp's unit: its panel, and its first row. */
struct unit_place {
    int64_t row, panel;
};
static __device__ __forceinline__ struct unit_place place_of_unit(const struct cu_coded &m, int64_t tile) {
    const int64_t across = m.K / PANEL;
    return {(tile / across * UNITS + threadIdx.x / 32) * CU_STRIP, tile % across};
}

template <int FORMAT>
static __global__ void __launch_bounds__(UNIT_THREADS)
    order_kernel(const struct cu_coded file, int unit, uint8_t *units) {
    const int lane = threadIdx.x % 32;
    const struct unit_place at = place_of_unit(file, blockIdx.x);
    const int64_t row = at.row + lane / 4, col = at.panel * PANEL + lane % 4 * 2, across = file.K / PANEL;
    struct cu_coded ordered = file;
    ordered.unit = unit;
    uint8_t *const to = units + unit_at(ordered, at.row, at.panel), *const codes = to + lane * 16;
    for (int s = 0; s < 4; s++)
        for (int i = 0; i < 4; i++) {
            const int64_t n = (row + i % 2 * 8) * file.K + col + 16 * s + i / 2 * 8;
            if (FORMAT == FORMAT_FP8) {
                uint8_t *const pair = codes + s / 2 * 512 + s % 2 * 8 + i * 2;
                pair[0] = file.codes[n], pair[1] = file.codes[n + 1];
            } else {
                codes[4 * s + i] = (uint8_t)(nf4_code_of(file, n) | nf4_code_of(file, n + 1) << 4);
            }
        }
    if (FORMAT == FORMAT_NF4 && lane < CU_STRIP) { /* lane 2 g + i has row g + 8 i */
        const int64_t block = (at.row + lane / 2 + lane % 2 * 8) * across + at.panel;
        uint8_t *const scales = to + unit_codes<FORMAT>::BYTES;
        if (file.absmax)
            scales[lane] = file.absmax[block];
        else
            reinterpret_cast<float *>(scales)[lane] = file.scale[block];
    }
}

extern "C" int cu_coded_order(const struct cu_dev *d, const struct cu_coded *file, int unit, uint8_t *units) {
    const int64_t blocks = file->rows / (UNITS * CU_STRIP) * (file->K / PANEL);
    if (file->format == FORMAT_FP8)
        return LAUNCH(order_kernel<FORMAT_FP8>, blocks, UNIT_THREADS, 0, d->stream, *file, unit, units);
    return LAUNCH(order_kernel<FORMAT_NF4>, blocks, UNIT_THREADS, 0, d->stream, *file, unit, units);
}

template <int FORMAT>
static __device__ __forceinline__ void expand_units(const struct cu_coded &m, void *out, int wide, int64_t block) {
    __shared__ float map[NF4_CODES][32];
    const int lane = threadIdx.x % 32;
    const struct unit_place at = place_of_unit(m, block);
    const int64_t row = at.row + lane / 4, k = at.panel * PANEL + lane % 4 * 2;
    const uint8_t *const unit = m.codes + unit_at(m, at.row, at.panel);
    float2 scale;
    if (FORMAT == FORMAT_NF4) {
        for (int i = threadIdx.x; i < NF4_CODES * 32; i += UNIT_THREADS) map[i / 32][i % 32] = m.map[i / 32];
        scale = unit_scales(m, unit, lane, unit_nested(m, at.row, at.panel, lane), m.nested_map);
    } else {
        scale.x = scale.y = *fp8_scale_at(m, at.row, at.panel);
    }
    __syncthreads();
    const auto nf4 = [&](uint32_t word, int i) {
        return make_float2(map[word >> (8 * i) & 15u][lane], map[word >> (8 * i + 4) & 15u][lane]);
    };
    struct unit_codes<FORMAT> u;
    unit_load(u, unit, lane);
#pragma unroll
    for (int s = 0; s < 4; s++) {
        uint32_t a[4];
        unit_decode<FORMAT>(a, u, s, scale, nf4);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int64_t n = (row + i % 2 * 8) * m.K + k + 16 * s + i / 2 * 8;
            if (wide)
                *reinterpret_cast<float2 *>(static_cast<float *>(out) + n) =
                    make_float2(low_float(a[i]), high_float(a[i]));
            else
                *reinterpret_cast<uint32_t *>(static_cast<uint16_t *>(out) + n) = a[i];
        }
    }
}

template <int FORMAT>
static __global__ void __launch_bounds__(UNIT_THREADS)
    expand_units_kernel(const struct cu_coded m, void *out, int wide) {
    expand_units<FORMAT>(m, out, wide, blockIdx.x);
}
template <int FORMAT>
static __global__ void __launch_bounds__(UNIT_THREADS) expand_units_group_kernel(const struct of_group g, int wide) {
    struct cu_coded m;
    void *out;
    if (expert_of_block(g, m, out)) expand_units<FORMAT>(m, out, wide, blockIdx.x % g.per);
}

static int64_t unit_blocks(const struct cu_coded *m) { return m->rows * m->K / (UNITS * CU_STRIP * PANEL); }
static int lines_up(const struct cu_coded *m, const void *out) {
    return (m->format == FORMAT_NF4 || m->K % EIGHT == 0) && ((uintptr_t)out & 15) == 0;
}

extern "C" int cu_expand(const struct cu_dev *d, const struct cu_coded *m, void *out, int wide) {
    const int64_t n = m->rows * m->K;
    if (n <= 0) return 0;
    if (m->unit && m->format == FORMAT_FP8)
        return LAUNCH(expand_units_kernel<FORMAT_FP8>, unit_blocks(m), UNIT_THREADS, 0, d->stream, *m, out, wide);
    if (m->unit)
        return LAUNCH(expand_units_kernel<FORMAT_NF4>, unit_blocks(m), UNIT_THREADS, 0, d->stream, *m, out, wide);
    return LAUNCH(expand_kernel, grid_for(d, n, THREADS * EIGHT), THREADS, 0, d->stream, *m, out, wide,
                  lines_up(m, out));
}

extern "C" int cu_expand_group(const struct cu_dev *d, const struct cu_coded *like, const struct cu_group *e, void *out,
                               int64_t stride, int wide) {
    const int64_t n = like->rows * like->K;
    if (n <= 0 || e->n <= 0) return 0;
    struct of_group g = {*e, static_cast<char *>(out), stride, unit_blocks(like)};
    if (like->unit && like->format == FORMAT_FP8)
        return LAUNCH(expand_units_group_kernel<FORMAT_FP8>, e->n * g.per, UNIT_THREADS, 0, d->stream, g, wide);
    if (like->unit)
        return LAUNCH(expand_units_group_kernel<FORMAT_NF4>, e->n * g.per, UNIT_THREADS, 0, d->stream, g, wide);
    g.per = ceil_div(n, THREADS * EIGHT);
    const int lined_up = lines_up(like, out) && stride % 16 == 0;
    return LAUNCH(expand_group_kernel, e->n * g.per, THREADS, 0, d->stream, g, wide, lined_up);
}
