/* SwiGLU over many rows, and its gradient, where LoRA is part of what they read: neither the gates with LoRA in them
 * nor the gradient with what LoRA adds to it are in memory; both are added here, on the way. */
#include "cuda/async.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS, BLOCK_N = 32 * WARPS };

/* A warp has 32 columns, of gates and of what they gate, of 16 TILES rows; column p of its i-th group of eight is
 * really column p / 2 * 8 + 2 i + p % 2, as in bf16_lora.cu. The thin factors B of gates and of what they gate, and A,
 * wait in shared memory as fragments, each thread's own; so do the rows of dy and gu, STAGES - 1 tiles ahead. */
enum { GATES, UPS, DOWN, FACTORS, STAGES = 2 };
template <int PIECES, int TILES, bool GRAD>
static __global__ void __launch_bounds__(THREADS, GRAD ? 4 : 6) lora_gates_kernel(const struct cu_lora_gates g) {
    enum { USED = GRAD ? FACTORS : DOWN };
    DYNAMIC_SHARED(shared);
    uint4(*const factor)[PIECES][4][32] =
        reinterpret_cast<uint4(*)[PIECES][4][32]>(shared) + threadIdx.x / 32 * USED; /* [USED] of this warp */
    uint4(*const rows)[USED][2][THREADS] =
        reinterpret_cast<uint4(*)[USED][2][THREADS]>(shared + WARPS * USED * PIECES * 4 * 32 * 4); /* [STAGES] */
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
                async_copy16(reinterpret_cast<uint16_t *>(&to[GATES][half][threadIdx.x]), u, in);
                async_copy16(reinterpret_cast<uint16_t *>(&to[UPS][half][threadIdx.x]), in ? u + F : u, in);
                if (GRAD)
                    async_copy16(reinterpret_cast<uint16_t *>(&to[USED - 1][half][threadIdx.x]),
                                 in ? g.dy.p + row * g.dy.ld + n : g.dy.p, in);
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
            factor[GATES][p][i][lane] = in ? load16(g.b[0] + col * R + k) : zero4();
            factor[UPS][p][i][lane] = in ? load16(g.b[1] + col * R + k) : zero4();
            if (!GRAD || !g.dt) continue;
            uint32_t v[4] = {0, 0, 0, 0};
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (in) v[e / 2] |= (uint32_t)g.a[(k + e) * F + col] << (16 * (e % 2));
            factor[USED - 1][p][i][lane] = make_uint4(v[0], v[1], v[2], v[3]);
        }
    for (int tile = 0; tile < TILES; tile++) {
        const int64_t m = m0 + tile * 16 + r;
        if (m0 + tile * 16 >= T) return;
        ask(tile + STAGES - 1);
        async_wait<STAGES - 1>(); /* a thread reads what it has asked for itself: there is nobody to wait for */
        const uint4(*const in)[2][THREADS] = rows[tile % STAGES];
        float acc[4][4];
        const auto thin = [&](int which, const uint16_t *t, int64_t ld) {
#pragma unroll
            for (int i = 0; i < 4; i++) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;
#pragma unroll
            for (int p = 0; p < PIECES; p++) {
                const int64_t k = p * 32 + c * 8;
                const uint4 u = m < T && k < R ? load16(t + m * ld + k) : zero4(),
                            v = m + 8 < T && k < R ? load16(t + (m + 8) * ld + k) : zero4();
#pragma unroll
                for (int i = 0; i < 4; i++) mma_piece(acc[i], u, v, factor[which][p][i][lane]);
            }
        };
        uint32_t sum[2][2][4];
#pragma unroll
        for (int s = 0; s < 2; s++) {
            thin(s, g.t + s * R, 2 * R);
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
        if (GRAD && g.dt)
            thin(USED - 1, g.dt, R);
        else
#pragma unroll
            for (int i = 0; i < 4; i++) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t row = m + 8 * half;
            if (row >= T || n >= F) continue;
            const uint4 old = in[USED - 1][half][threadIdx.x]; /* dy */
            const uint32_t was[4] = {old.x, old.y, old.z, old.w};
            uint32_t y[4], gate[4], up[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t a = sum[GATES][half][i], b = sum[UPS][half][i];
                y[i] = bf16_pair(gate16(low_float(a), low_float(b)), gate16(high_float(a), high_float(b)));
                if (!GRAD) continue;
                const struct gate_grad low =
                    grad_of_gate(acc[i][2 * half] + low_float(was[i]), low_float(a), low_float(b));
                const struct gate_grad high =
                    grad_of_gate(acc[i][2 * half + 1] + high_float(was[i]), high_float(a), high_float(b));
                gate[i] = bf16_pair(low.gate, high.gate);
                up[i] = bf16_pair(low.up, high.up);
            }
            *reinterpret_cast<uint4 *>(g.y.p + row * g.y.ld + n) = make_uint4(y[0], y[1], y[2], y[3]);
            if (!GRAD) continue;
            *reinterpret_cast<uint4 *>(g.dgu.p + row * g.dgu.ld + n) = make_uint4(gate[0], gate[1], gate[2], gate[3]);
            *reinterpret_cast<uint4 *>(g.dgu.p + row * g.dgu.ld + F + n) = make_uint4(up[0], up[1], up[2], up[3]);
        }
    }
}

template <int PIECES, bool GRAD> static int gates(const struct cu_dev *d, const struct cu_lora_gates *g) {
    enum { TILES = 8, USED = GRAD ? FACTORS : DOWN };
    enum { SHARED = (WARPS * USED * PIECES * 4 * 32 + STAGES * USED * 2 * THREADS) * 16 };
    const int64_t blocks = ceil_div(g->y.rows, 16 * TILES) * ceil_div(g->y.cols, BLOCK_N);
    auto *kernel = lora_gates_kernel<PIECES, TILES, GRAD>;
    const int rc = (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
    return rc || blocks == 0 ? rc : LAUNCH(kernel, blocks, THREADS, SHARED, d->stream, *g);
}

extern "C" int cu_lora_swiglu_both(const struct cu_dev *d, const struct cu_lora_gates *g) {
    return g->R <= 32 ? gates<1, true>(d, g) : gates<2, true>(d, g);
}

extern "C" int cu_lora_swiglu_many(const struct cu_dev *d, const struct cu_lora *l, struct cu_mat16 y) {
    const struct cu_lora_site *s = l->site;
    uint16_t *const gu = static_cast<uint16_t *>(s[0].y);
    const struct cu_lora_gates g = {
        {}, y, {}, {gu, l->T, 2 * y.cols, s[0].ldy}, l->t, nullptr, nullptr, {s[0].b.p, s[1].b.p}, l->R};
    return l->R <= 32 ? gates<1, false>(d, &g) : gates<2, false>(d, &g);
}
