/* Products of bf16 pairs for CPUs with AMX tiles (Sapphire Rapids and later). The order of tdpbf16ps is not that of
 * vdpbf16ps; tensor/ops.h has it. Callers have asked the kernel for the tile registers (cpu_amx_permitted). */
#if defined(__x86_64__)
#pragma GCC target("amx-tile,amx-bf16,avx512f,avx512bw,avx512bf16,avx2,fma,prefer-vector-width=512")
#define V16_AVX512
#define V16_BF16
#define PAIRS_NO_GEMM
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cpu/coded.h"
#include "cpu/vec16.h"

#include "cpu/coded_body.h"

#include "cpu/bf16_pairs_body.h"

bool cpu_amx_permitted(void) {
    /* From Linux, Documentation/arch/x86/xstate.rst. */
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

/* Every tile is 16 rows of 64 bytes: 16 floats of c, 32 elements of a row of a, or 16 pairs of b. */
enum { TILE = 16, AMX_KC = 1024 }; /* AMX_KC pairs of a panel stay in the second-level cache. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_shape = {.palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

/* The compiler does not know that a tile load reads memory. */
#define MEMORY_BARRIER() __asm__ volatile("" ::: "memory")

/* c [16][PAIR_PANEL] += a [16 rows] b [panel], over `steps` tiles. streamed: true when b comes from memory, so
 * that what lies behind is fetched. */
ALWAYS_INLINE void amx_16(int64_t steps, const uint16_t *a, int64_t lda, const uint16_t *b, float *c, int64_t ldc,
                          bool streamed) {
    const int64_t cs = ldc * 4, as = lda * 2, bs = PAIR_PANEL * 4;
    MEMORY_BARRIER();
    _tile_loadd(0, c, cs);
    _tile_loadd(1, c + TILE, cs);
    for (int64_t k = 0; k < steps; k++) {
        for (int j = 0; streamed && j < 2 * TILE; j++) __builtin_prefetch(b + 8 * 2 * TILE * PAIR_PANEL + 32 * j, 0, 2);
        _tile_loadd(4, a, as);
        _tile_loadd(5, b, bs);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, b + 2 * TILE, bs);
        _tile_dpbf16ps(1, 4, 6);
        a += 2 * TILE;
        b += 2 * TILE * PAIR_PANEL;
    }
    _tile_stored(0, c, cs);
    _tile_stored(1, c + TILE, cs);
}

/* The same for 32 rows, with four products for four loads. */
static void amx_32(int64_t steps, const uint16_t *a, int64_t lda, const uint16_t *b, float *c, int64_t ldc) {
    const int64_t cs = ldc * 4, as = lda * 2, bs = PAIR_PANEL * 4;
    float *lower = c + TILE * ldc;
    MEMORY_BARRIER();
    _tile_loadd(0, c, cs);
    _tile_loadd(1, c + TILE, cs);
    _tile_loadd(2, lower, cs);
    _tile_loadd(3, lower + TILE, cs);
    for (int64_t k = 0; k < steps; k++) {
        _tile_loadd(4, a, as);
        _tile_loadd(6, b, bs);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + 2 * TILE, bs);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + TILE * lda, as);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        a += 2 * TILE;
        b += 2 * TILE * PAIR_PANEL;
    }
    _tile_stored(0, c, cs);
    _tile_stored(1, c + TILE, cs);
    _tile_stored(2, lower, cs);
    _tile_stored(3, lower + TILE, cs);
}

static void amx_rows(int64_t m, int64_t steps, const uint16_t *a, int64_t lda, const uint16_t *b, float *c, int64_t ldc,
                     bool streamed) {
    if (m > TILE)
        amx_32(steps, a, lda, b, c, ldc);
    else if (streamed)
        amx_16(steps, a, lda, b, c, ldc, true);
    else
        amx_16(steps, a, lda, b, c, ldc, false);
}

/* Computes the same items as pair_gemm_items. Tiles accumulate onto c, so c is begun first. Where there are no 16 or 32
 * whole rows, or no whole panel, the product is made in a buffer. Rows of a can be read up to a multiple of 16. */
static void amx_gemm_items(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct gemm16 *g = ctx;
    uint16_t *scratch = g->b_rows || g->coded ? g->scratch + (int64_t)thread * PAIR_SCRATCH : NULL;
    const int64_t all = (g->K + 1) / 2, kc = g->b_rows ? PAIR_KC : g->coded ? CODED_KC : AMX_KC;
    float t[2 * TILE * PAIR_PANEL] __attribute__((aligned(64)));
    memset(t, 0, sizeof t);
    _tile_loadconfig(&tile_shape);
    for (int64_t item = begin; item < end; item++) {
        int64_t panel, r0;
        gemm16_item(g, item, &panel, &r0);
        const int64_t n0 = panel * PAIR_PANEL, nc = i64_min(PAIR_PANEL, g->N - n0), m = i64_min(g->chunk, g->M - r0);
        float *c = g->c + r0 * g->ldc + n0;
        for (int64_t r = 0; r < m && !g->accumulate; r++) {
            if (g->bias)
                memcpy(c + r * g->ldc, g->bias + n0, (size_t)nc * sizeof *c);
            else
                memset(c + r * g->ldc, 0, (size_t)nc * sizeof *c);
        }
        for (int64_t p0 = 0; p0 < all; p0 += kc) {
            const int64_t pairs = (i64_min(kc, all - p0) + TILE - 1) & ~(int64_t)(TILE - 1), steps = pairs / TILE;
            const uint16_t *b = scratch, *a = g->a + r0 * g->lda + 2 * p0;
            if (g->b_rows)
                pairs_of_rows(scratch, g, 2 * p0, pairs, n0);
            else if (g->coded)
                coded_block(g->coded, panel, p0, pairs, scratch);
            else
                b = pair_panel(g->b, panel, g->b_pad) + p0 * PAIR_PANEL * 2;
            for (int64_t i = 0; i < m; i += 2 * TILE) {
                const int64_t mr = i64_min(2 * TILE, m - i);
                float *ci = c + i * g->ldc;
                if (nc == PAIR_PANEL && mr % TILE == 0) {
                    amx_rows(mr, steps, a + i * g->lda, g->lda, b, ci, g->ldc, b != scratch);
                    continue;
                }
                for (int64_t r = 0; r < mr; r++) memcpy(t + r * PAIR_PANEL, ci + r * g->ldc, (size_t)nc * sizeof *t);
                amx_rows(mr, steps, a + i * g->lda, g->lda, b, t, PAIR_PANEL, b != scratch);
                for (int64_t r = 0; r < mr; r++) memcpy(ci + r * g->ldc, t + r * PAIR_PANEL, (size_t)nc * sizeof *t);
            }
        }
    }
    _tile_release();
}

const struct cpu_pair_kernels cpu_pairs_amx = {amx_gemm_items, pair_round_rows, pair_round_transposed,
                                               pair_pack_transposed};
#else
typedef int isa_amx_unused;
#endif
