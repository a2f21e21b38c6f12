/* This kernel computes SwiGLU over many rows and adds LoRA's part to the gates on the fly. The updated gates are stored
 * only when the backward pass needs them. */
#include "cuda/shared/async.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS, BLOCK_N = 32 * WARPS, STAGES = 2 };

/* A warp has 32 columns, of gates and of what they gate, of 16 TILES rows; column p of its i-th group of eight is
 * really column p / 2 * 8 + 2 i + p % 2, as in lora.cu. The factors B wait in shared memory as fragments, each
 * thread's own; so do the rows of gu, STAGES - 1 tiles ahead. */
template <int PIECES, int TILES>
static __global__ void __launch_bounds__(THREADS, 6) lora_gates_kernel(const struct cu_lora_gates g) {
    DYNAMIC_SHARED(shared);
    uint4(*const factor)[PIECES][4][32] =
        reinterpret_cast<uint4(*)[PIECES][4][32]>(shared) + threadIdx.x / 32 * 2; /* [2] of this warp */
    uint4(*const rows)[2][2][THREADS] =
        reinterpret_cast<uint4(*)[2][2][THREADS]>(shared + WARPS * 2 * PIECES * 4 * 32 * 4); /* [STAGES] */
    const int64_t F = g.y.cols, T = g.y.rows, R = g.R, per_row = ceil_div(F, BLOCK_N);
    const int64_t m0 = blockIdx.x / per_row * (16 * TILES);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, r = lane / 4, c = lane % 4;
    const int64_t n0 = blockIdx.x % per_row * BLOCK_N + warp * 32, n = n0 + c * 8;
    if (n0 >= F) return;
    const auto ask = [&](int tile) {
        if (tile < TILES) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int64_t row = m0 + tile * 16 + r + 8 * half;
                const bool in = row < T && n < F;
                const uint16_t *const u = in ? g.gu.p + row * g.gu.ld + n : g.gu.p;
                uint4(*const to)[2][THREADS] = rows[tile % STAGES];
                async_copy16(reinterpret_cast<uint16_t *>(&to[0][half][threadIdx.x]), u, in);
                async_copy16(reinterpret_cast<uint16_t *>(&to[1][half][threadIdx.x]), in ? u + F : u, in);
            }
        }
        async_group(); /* empty at the end, so that their number stays the same */
    };
    for (int tile = 0; tile < STAGES - 1; tile++) ask(tile);
#pragma unroll
    for (int p = 0; p < PIECES; p++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int64_t col = n0 + r / 2 * 8 + i * 2 + r % 2, k = p * 32 + c * 8;
            const bool in = col < F && k < R;
            factor[0][p][i][lane] = in ? load16(g.b[0] + col * R + k) : zero4();
            factor[1][p][i][lane] = in ? load16(g.b[1] + col * R + k) : zero4();
        }
    for (int tile = 0; tile < TILES; tile++) {
        const int64_t m = m0 + tile * 16 + r;
        if (m0 + tile * 16 >= T) return;
        ask(tile + STAGES - 1);
        async_wait<STAGES - 1>(); /* a thread reads what it has asked for itself: there is nobody to wait for */
        const uint4(*const in)[2][THREADS] = rows[tile % STAGES];
        uint32_t sum[2][2][4];
#pragma unroll
        for (int s = 0; s < 2; s++) {
            const uint16_t *const t = g.t + s * R;
            float acc[4][4];
#pragma unroll
            for (int i = 0; i < 4; i++) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;
#pragma unroll
            for (int p = 0; p < PIECES; p++) {
                const int64_t k = p * 32 + c * 8;
                const uint4 u = m < T && k < R ? load16(t + m * 2 * R + k) : zero4(),
                            v = m + 8 < T && k < R ? load16(t + (m + 8) * 2 * R + k) : zero4();
#pragma unroll
                for (int i = 0; i < 4; i++) mma_piece(acc[i], u, v, factor[s][p][i][lane]);
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint4 old = in[s][half][threadIdx.x];
                const uint32_t was[4] = {old.x, old.y, old.z, old.w};
#pragma unroll
                for (int i = 0; i < 4; i++)
                    sum[s][half][i] =
                        bf16_pair(acc[i][2 * half] + low_float(was[i]), acc[i][2 * half + 1] + high_float(was[i]));
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t row = m + 8 * half;
            if (row >= T || n >= F) continue;
            const uint32_t *const a = sum[0][half], *const b = sum[1][half];
            uint32_t y[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                y[i] = bf16_pair(gate16(low_float(a[i]), low_float(b[i])), gate16(high_float(a[i]), high_float(b[i])));
            *reinterpret_cast<uint4 *>(g.y.p + row * g.y.ld + n) = make_uint4(y[0], y[1], y[2], y[3]);
            if (!g.keep) continue;
            uint16_t *const to = g.gu.p + row * g.gu.ld + n;
            *reinterpret_cast<uint4 *>(to) = make_uint4(a[0], a[1], a[2], a[3]);
            *reinterpret_cast<uint4 *>(to + F) = make_uint4(b[0], b[1], b[2], b[3]);
        }
    }
}

template <int PIECES> static int gates(const struct cu_dev *d, const struct cu_lora_gates *g) {
    enum { TILES = 8, SHARED = (WARPS * 2 * PIECES * 4 * 32 + STAGES * 2 * 2 * THREADS) * 16 };
    const int64_t blocks = ceil_div(g->y.rows, 16 * TILES) * ceil_div(g->y.cols, BLOCK_N);
    auto *kernel = lora_gates_kernel<PIECES, TILES>;
    const int rc = (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
    return rc || blocks == 0 ? rc : LAUNCH(kernel, blocks, THREADS, SHARED, d->stream, *g);
}

extern "C" int cu_lora_takes_many(const struct cu_lora *l, struct cu_mat16 y) {
    const struct cu_lora_site *s = l->site;
    return cu_lora_takes_swiglu(l, y) && l->T >= CUDA_LORA_MANY && static_cast<uint16_t *>(s[0].y) + y.cols == s[1].y &&
           s[0].ldy == s[1].ldy && s[0].b.row == l->R && s[1].b.row == l->R;
}

extern "C" int cu_lora_swiglu_many(const struct cu_dev *d, const struct cu_lora *l, struct cu_mat16 y, int keep) {
    const struct cu_lora_site *s = l->site;
    const struct cu_lora_gates g = {
        y, {static_cast<uint16_t *>(s[0].y), l->T, 2 * y.cols, s[0].ldy}, l->t, {s[0].b.p, s[1].b.p}, l->R, keep};
    return l->R <= 32 ? gates<1>(d, &g) : gates<2>(d, &g);
}
