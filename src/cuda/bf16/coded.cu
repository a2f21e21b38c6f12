/* Expands a matrix in codes to the bfloat16 matrix that it means, in scratch, for products of any kind. */
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
        const float s = nf4_scale_of(m, first / NF4_BLOCK, first / NF4_BLOCK);
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

static __global__ void __launch_bounds__(THREADS)
    expand_kernel(const struct cu_coded m, void *out, int wide, int lined_up) {
    __shared__ float map[NF4_CODES];
    const int64_t n = m.rows * m.K;
    if (m.format == FORMAT_NF4 && threadIdx.x < NF4_CODES) map[threadIdx.x] = m.map[threadIdx.x];
    __syncthreads();
    for (int64_t i = (blockIdx.x * (int64_t)THREADS + threadIdx.x) * EIGHT; i < n;
         i += (int64_t)gridDim.x * THREADS * EIGHT) {
        if (lined_up && i + EIGHT <= n)
            put_eight(m, map, out, wide, i);
        else
            put_weights(m, out, wide, i, n);
    }
}

/* ---- fragments ----------------------------------------------------------------------------------------------------
 */

enum { TILE = 64, TILE_THREADS = 128 };

/* A tile a block. */
template <int FORMAT>
static __global__ void __launch_bounds__(TILE_THREADS)
    order_kernel(const struct cu_coded m, const uint8_t *codes, uint8_t *fragments) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t tile = blockIdx.x, across = m.K / TILE;
    const int64_t row = tile / across * TILE + warp * 16 + lane / 4, col = tile % across * TILE + lane % 4 * 2;
    struct cu_coded file = m;
    file.codes = codes;
    uint8_t *const to =
        fragments + tile * fragment<FORMAT>::TILE_BYTES + warp * fragment<FORMAT>::WARP_BYTES + lane * 16;
    for (int s = 0; s < 4; s++)
        for (int i = 0; i < 4; i++) {
            const int64_t at = (row + i % 2 * 8) * m.K + col + 16 * s + i / 2 * 8;
            if (FORMAT == FORMAT_FP8) {
                uint8_t *const pair = to + s / 2 * 512 + s % 2 * 8 + i * 2;
                pair[0] = codes[at], pair[1] = codes[at + 1];
            } else {
                to[4 * s + i] = (uint8_t)(nf4_code_of(file, at) | nf4_code_of(file, at + 1) << 4);
            }
        }
}

extern "C" int cu_coded_order(const struct cu_dev *d, const struct cu_coded *m, const uint8_t *codes,
                              uint8_t *fragments) {
    const int64_t tiles = m->rows / TILE * (m->K / TILE);
    if (m->format == FORMAT_FP8)
        return LAUNCH(order_kernel<FORMAT_FP8>, tiles, TILE_THREADS, 0, d->stream, *m, codes, fragments);
    return LAUNCH(order_kernel<FORMAT_NF4>, tiles, TILE_THREADS, 0, d->stream, *m, codes, fragments);
}

template <int FORMAT>
static __global__ void __launch_bounds__(TILE_THREADS)
    expand_tiles_kernel(const struct cu_coded m, void *out, int wide) {
    __shared__ float map[NF4_CODES][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t tile = blockIdx.x, across = m.K / TILE, k = tile % across * TILE + lane % 4 * 2;
    const int64_t row = tile / across * TILE + warp * 16 + lane / 4;
    float low, high;
    if (FORMAT == FORMAT_NF4) {
        for (int i = threadIdx.x; i < NF4_CODES * 32; i += TILE_THREADS) map[i / 32][i % 32] = m.map[i / 32];
        const int64_t panel = tile % across, at = cu_fragment_scale(row, panel, across), block = row * across + panel;
        low = nf4_scale_of(m, block, at), high = nf4_scale_of(m, block + 8 * across, at + 1);
    } else {
        low = high = m.scale[row / FP8_BLOCK * ceil_div(m.K, FP8_BLOCK) + k / FP8_BLOCK] * FP8_UP;
    }
    __syncthreads();
    struct fragment<FORMAT> f;
    fragment_load(f, m.codes, tile, warp, lane);
#pragma unroll
    for (int s = 0; s < 4; s++) {
        uint32_t a[4];
        fragment_decode<FORMAT>(a, f, s, low, high, map, lane);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int64_t at = (row + i % 2 * 8) * m.K + k + 16 * s + i / 2 * 8;
            if (wide)
                *reinterpret_cast<float2 *>(static_cast<float *>(out) + at) =
                    make_float2(low_float(a[i]), high_float(a[i]));
            else
                *reinterpret_cast<uint32_t *>(static_cast<uint16_t *>(out) + at) = a[i];
        }
    }
}

extern "C" int cu_expand(const struct cu_dev *d, const struct cu_coded *m, void *out, int wide) {
    const int64_t n = m->rows * m->K;
    if (n <= 0) return 0;
    if (m->fragments && m->format == FORMAT_FP8)
        return LAUNCH(expand_tiles_kernel<FORMAT_FP8>, n / (TILE * TILE), TILE_THREADS, 0, d->stream, *m, out, wide);
    if (m->fragments)
        return LAUNCH(expand_tiles_kernel<FORMAT_NF4>, n / (TILE * TILE), TILE_THREADS, 0, d->stream, *m, out, wide);
    const int lined_up = (m->format == FORMAT_NF4 || m->K % EIGHT == 0) && ((uintptr_t)out & 15) == 0;
    return LAUNCH(expand_kernel, grid_for(d, n, THREADS * EIGHT), THREADS, 0, d->stream, *m, out, wide, lined_up);
}
