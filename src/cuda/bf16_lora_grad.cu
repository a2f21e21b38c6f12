/* The gradient of SwiGLU where LoRA is part of what it reads: the forward pass has written neither the gates with LoRA
 * in them nor SwiGLU's gradient what LoRA adds to it; both are added here, on the way from memory. */
#include "cuda/bf16.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS, BLOCK_N = 32 * WARPS };

/* A warp has 32 columns, of gates and of what they gate, of 16 TILES rows; column p of its i-th group of eight is really
 * column p / 2 * 8 + 2 i + p % 2, as in bf16_lora.cu. The thin factors B of gates and of what they gate, and A, wait in
 * shared memory as fragments, each thread's own. */
enum { GATES, UPS, DOWN, FACTORS };
template <int PIECES, int TILES>
static __global__ void __launch_bounds__(THREADS, 4) lora_swiglu_both_kernel(const struct cu_lora_gates g) {
    __shared__ uint4 factor[WARPS][FACTORS][PIECES][4][32];
    const int64_t F = g.y.cols, T = g.y.rows, R = g.R, per_row = ceil_div(F, BLOCK_N);
    const int64_t m0 = blockIdx.x / per_row * (16 * TILES);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, r = lane / 4, c = lane % 4;
    const int64_t n0 = blockIdx.x % per_row * BLOCK_N + warp * 32, n = n0 + c * 8;
    if (n0 >= F) return;
#pragma unroll
    for (int p = 0; p < PIECES; p++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int64_t col = n0 + r / 2 * 8 + i * 2 + r % 2, k = p * 32 + c * 8;
            const bool in = col < F && k < R;
            factor[warp][GATES][p][i][lane] = in ? load16(g.b[0] + col * R + k) : zero4();
            factor[warp][UPS][p][i][lane] = in ? load16(g.b[1] + col * R + k) : zero4();
            if (!g.dt) continue;
            uint32_t v[4] = {0, 0, 0, 0};
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (in) v[e / 2] |= (uint32_t)g.a[(k + e) * F + col] << (16 * (e % 2));
            factor[warp][DOWN][p][i][lane] = make_uint4(v[0], v[1], v[2], v[3]);
        }
    for (int tile = 0; tile < TILES; tile++) {
        const int64_t m = m0 + tile * 16 + r;
        if (m0 + tile * 16 >= T) return;
        uint4 d[2], in[2][2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t row = m + 8 * half;
            const bool there = row < T && n < F;
            d[half] = there ? load16(g.dy.p + row * g.dy.ld + n) : zero4();
            in[GATES][half] = there ? load16(g.gu.p + row * g.gu.ld + n) : zero4();
            in[UPS][half] = there ? load16(g.gu.p + row * g.gu.ld + F + n) : zero4();
        }
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
                for (int i = 0; i < 4; i++) mma_piece(acc[i], u, v, factor[warp][which][p][i][lane]);
            }
        };
        uint32_t sum[2][2][4];
#pragma unroll
        for (int s = 0; s < 2; s++) {
            thin(s, g.t + s * R, 2 * R);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t was[4] = {in[s][half].x, in[s][half].y, in[s][half].z, in[s][half].w};
#pragma unroll
                for (int i = 0; i < 4; i++)
                    sum[s][half][i] = bf16_pair(acc[i][2 * half] + low_float(was[i]),
                                                acc[i][2 * half + 1] + high_float(was[i]));
            }
        }
        if (g.dt)
            thin(DOWN, g.dt, R);
        else
#pragma unroll
            for (int i = 0; i < 4; i++) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t row = m + 8 * half;
            if (row >= T || n >= F) continue;
            const uint32_t was[4] = {d[half].x, d[half].y, d[half].z, d[half].w};
            uint32_t y[4], gate[4], up[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t a = sum[GATES][half][i], b = sum[UPS][half][i];
                const struct gate_grad low =
                    grad_of_gate(acc[i][2 * half] + low_float(was[i]), low_float(a), low_float(b));
                const struct gate_grad high =
                    grad_of_gate(acc[i][2 * half + 1] + high_float(was[i]), high_float(a), high_float(b));
                y[i] = bf16_pair(gate16(low_float(a), low_float(b)), gate16(high_float(a), high_float(b)));
                gate[i] = bf16_pair(low.gate, high.gate);
                up[i] = bf16_pair(low.up, high.up);
            }
            *reinterpret_cast<uint4 *>(g.y.p + row * g.y.ld + n) = make_uint4(y[0], y[1], y[2], y[3]);
            *reinterpret_cast<uint4 *>(g.dgu.p + row * g.dgu.ld + n) = make_uint4(gate[0], gate[1], gate[2], gate[3]);
            *reinterpret_cast<uint4 *>(g.dgu.p + row * g.dgu.ld + F + n) = make_uint4(up[0], up[1], up[2], up[3]);
        }
    }
}

extern "C" int cu_lora_swiglu_both(const struct cu_dev *d, const struct cu_lora_gates *g) {
    enum { TILES = 8 };
    const int64_t blocks = ceil_div(g->y.rows, 16 * TILES) * ceil_div(g->y.cols, BLOCK_N);
    if (blocks == 0) return 0;
    if (g->R <= 32) return LAUNCH((lora_swiglu_both_kernel<1, TILES>), blocks, THREADS, 0, d->stream, *g);
    return LAUNCH((lora_swiglu_both_kernel<2, TILES>), blocks, THREADS, 0, d->stream, *g);
}
