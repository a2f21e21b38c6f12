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

extern "C" int cu_expand(const struct cu_dev *d, const struct cu_coded *m, void *out, int wide) {
    const int64_t n = m->rows * m->K;
    if (n <= 0) return 0;
    const int lined_up = (m->format == FORMAT_NF4 || m->K % EIGHT == 0) && ((uintptr_t)out & 15) == 0;
    return LAUNCH(expand_kernel, grid_for(d, n, THREADS * EIGHT), THREADS, 0, d->stream, *m, out, wide, lined_up);
}
