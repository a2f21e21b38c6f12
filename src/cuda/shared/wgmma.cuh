/* Products of a warpgroup, with operands in shared memory (PTX ISA, "Asynchronous Warpgroup Level Matrix
 * Instructions"). A warpgroup is four warps, the first of which has a number divisible by four. Only compute capability
 * 9.0 has these products. They run beside the threads that ask for them, until wgmma_wait.
 *
 * A tile is 64 rows of DP elements, DP 64 or 128, in DP / 64 panels of 64 columns. A panel is 8 KB and lies at a
 * multiple of 1024 bytes. Chunk c of 8 elements of its row r lies at place c ^ (r % 8), which PTX calls a swizzle of
 * 128 bytes. A tile can be read along its columns ("K-major": the sum runs over its columns) or along its rows. */
#ifndef KERNELRL_CUDA_SHARED_WGMMA_CUH
#define KERNELRL_CUDA_SHARED_WGMMA_CUH

#include "cuda/shared/async.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WGMMA_DEVICE 1 /* true: compiled for a device that has these products. */
#endif

enum { WG_THREADS = 128, WG_ROWS = 64, WG_PANEL = 64 * WG_ROWS, WG_ALIGN = 1024 };

/* Where chunk `chunk` (of DP / 8) of row `row` of a tile lies, in elements. */
static __device__ __forceinline__ int wg_at(int row, int chunk) {
    return chunk / 8 * WG_PANEL + row * 64 + (chunk % 8 ^ (row & 7)) * 8;
}

/* Shared memory from a multiple of WG_ALIGN on. */
static __device__ __forceinline__ uint16_t *aligned_tiles(float *shared) {
#ifdef __CUDA_ARCH__
    const unsigned at = (unsigned)__cvta_generic_to_shared(shared);
    return reinterpret_cast<uint16_t *>(reinterpret_cast<char *>(shared) + (-at & (WG_ALIGN - 1)));
#else
    return reinterpret_cast<uint16_t *>(((uintptr_t)shared + WG_ALIGN - 1) & ~(uintptr_t)(WG_ALIGN - 1));
#endif
}

/* Waits for the 128 threads of the caller's warpgroup, which is number 0 or 1 of the block. */
static __device__ __forceinline__ void wg_barrier(int group) {
#ifdef __CUDA_ARCH__
    /* The numbers are constants, so that compute-sanitizer can follow them. */
    if (group == 0)
        asm volatile("bar.sync 1, 128;" ::: "memory");
    else
        asm volatile("bar.sync 2, 128;" ::: "memory");
#elif !defined(__CUDACC__)
    (void)group;
    emulate_group_barrier();
#endif
}

/* Products that are asked for behind the next barrier see what this thread has written to shared memory. */
static __device__ __forceinline__ void wg_publish(void) {
#ifdef WGMMA_DEVICE
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Must stand before the first product, and before a product whose registers have been touched since. */
static __device__ __forceinline__ void wgmma_fence(void) {
#ifdef WGMMA_DEVICE
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
static __device__ __forceinline__ void wgmma_commit(void) {
#ifdef WGMMA_DEVICE
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
/* Waits until all but the last N committed groups are done. */
template <int N> static __device__ __forceinline__ void wgmma_wait(void) {
#ifdef WGMMA_DEVICE
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}

#ifdef WGMMA_DEVICE
/* A matrix descriptor: the address, 1024 bytes from eight rows to the next eight, `panel` bytes from a panel to the
 * next. */
static __device__ __forceinline__ uint64_t wg_descriptor(const uint16_t *p, unsigned panel_bytes) {
    const uint64_t at = (unsigned)__cvta_generic_to_shared(p);
    return (at & 0x3ffff) >> 4 | (uint64_t)(panel_bytes >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}
#endif

/* clang-format off */
#define WG_FOUR(c, i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define WG_32(c) WG_FOUR(c, 0), WG_FOUR(c, 1), WG_FOUR(c, 2), WG_FOUR(c, 3), \
                 WG_FOUR(c, 4), WG_FOUR(c, 5), WG_FOUR(c, 6), WG_FOUR(c, 7)
#define WG_64(c) WG_32(c), WG_FOUR(c, 8), WG_FOUR(c, 9), WG_FOUR(c, 10), WG_FOUR(c, 11), \
                 WG_FOUR(c, 12), WG_FOUR(c, 13), WG_FOUR(c, 14), WG_FOUR(c, 15)
#define WG_NAMES_32                                                                            \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"   \
    "%24,%25,%26,%27,%28,%29,%30,%31"
#define WG_NAMES_64                                                                            \
    WG_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,"    \
    "%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
/* clang-format on */

/* c (+)= a b^T over 16 columns of two tiles, from column 16 k on. c [64 rows of a][64 rows of b] is in fragments as mma
 * has them: warp w of the warpgroup has rows 16 w.. of it. */
static __device__ __forceinline__ void wgmma_rows(float (&c)[8][4], const uint16_t *a, const uint16_t *b, int k,
                                                  bool add) {
    [[maybe_unused]] const int at = k / 4 * WG_PANEL + k % 4 * 16;
#if defined(WGMMA_DEVICE)
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WG_NAMES_32 "}, %32, %33, p, 1, 1, 0, 0; }"
                 : WG_32(c)
                 : "l"(wg_descriptor(a + at, 16)), "l"(wg_descriptor(b + at, 16)), "r"((int)add));
#elif !defined(__CUDACC__)
    emulate_wgmma(&c[0][0], 64, NULL, a + at, b + at, false, 0, add);
#endif
}

/* c += a b. a [64][16] is in registers, with a warp's 16 rows as mma has them. b is the rows 16 k.. of a tile. */
static __device__ __forceinline__ void wgmma_columns(float (&c)[16][4], const uint32_t (&a)[4], const uint16_t *b,
                                                     int k) {
#if defined(WGMMA_DEVICE)
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" WG_NAMES_64
                 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
                 : WG_64(c)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(wg_descriptor(b + k * 16 * 64, 2 * WG_PANEL)));
#elif !defined(__CUDACC__)
    emulate_wgmma(&c[0][0], 128, a, NULL, b + k * 16 * 64, true, 2 * WG_PANEL, true);
#endif
}
static __device__ __forceinline__ void wgmma_columns(float (&c)[8][4], const uint32_t (&a)[4], const uint16_t *b,
                                                     int k) {
#if defined(WGMMA_DEVICE)
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WG_NAMES_32
                 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
                 : WG_32(c)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(wg_descriptor(b + k * 16 * 64, 16)));
#elif !defined(__CUDACC__)
    emulate_wgmma(&c[0][0], 64, a, NULL, b + k * 16 * 64, true, 16, true);
#endif
}

/* c (+)= a b^T over the 16 columns from 16 k on of two tiles of 64 columns. b has 8 NT rows. */
#ifdef WGMMA_DEVICE
/* clang-format off */
#define WG_LIST_1(c) WG_FOUR(c, 0)
#define WG_NAMES_OF_1 "%0,%1,%2,%3"
#define WG_LIST_2(c) WG_LIST_1(c), WG_FOUR(c, 1)
#define WG_NAMES_OF_2 WG_NAMES_OF_1 ",%4,%5,%6,%7"
#define WG_LIST_3(c) WG_LIST_2(c), WG_FOUR(c, 2)
#define WG_NAMES_OF_3 WG_NAMES_OF_2 ",%8,%9,%10,%11"
#define WG_LIST_4(c) WG_LIST_3(c), WG_FOUR(c, 3)
#define WG_NAMES_OF_4 WG_NAMES_OF_3 ",%12,%13,%14,%15"
#define WG_LIST_5(c) WG_LIST_4(c), WG_FOUR(c, 4)
#define WG_NAMES_OF_5 WG_NAMES_OF_4 ",%16,%17,%18,%19"
#define WG_LIST_6(c) WG_LIST_5(c), WG_FOUR(c, 5)
#define WG_NAMES_OF_6 WG_NAMES_OF_5 ",%20,%21,%22,%23"
#define WG_LIST_9(c) WG_32(c), WG_FOUR(c, 8)
#define WG_NAMES_OF_9 WG_NAMES_32 ",%32,%33,%34,%35"
#define WG_LIST_12(c) WG_LIST_9(c), WG_FOUR(c, 9), WG_FOUR(c, 10), WG_FOUR(c, 11)
#define WG_NAMES_OF_12 WG_NAMES_OF_9 ",%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define WG_LIST_18(c) WG_64(c), WG_FOUR(c, 16), WG_FOUR(c, 17)
#define WG_NAMES_OF_18 WG_NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define WG_NARROW(NT, N, a_name, b_name, add_name)                                                                    \
    static __device__ __forceinline__ void wgmma_narrow(float (&c)[NT][4], const uint16_t *a, const uint16_t *b, int k, \
                                                        bool add) {                                                    \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " add_name ", 0;\n"                                               \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" WG_NAMES_OF_##NT "}, " a_name ", "   \
                     b_name ", p, 1, 1, 0, 0; }"                                                                       \
                     : WG_LIST_##NT(c)                                                                                 \
                     : "l"(wg_descriptor(a + k * 16, 16)), "l"(wg_descriptor(b + k * 16, 16)), "r"((int)add));         \
    }
/* clang-format on */
/* The same with a [64][16] in registers, a warp's 16 rows as mma has them. */
/* clang-format off */
#define WG_FROM_REGISTERS(NT, N, a_names, b_name, add_name)                                                           \
    static __device__ __forceinline__ void wgmma_narrow(float (&c)[NT][4], const uint32_t (&a)[4], const uint16_t *b,  \
                                                        int k, bool add) {                                             \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " add_name ", 0;\n"                                               \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" WG_NAMES_OF_##NT "}, {" a_names      \
                     "}, " b_name ", p, 1, 1, 0; }"                                                                    \
                     : WG_LIST_##NT(c)                                                                                 \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(wg_descriptor(b + k * 16, 16)), "r"((int)add)); \
    }
#define WG_LIST_8(c) WG_32(c)
#define WG_NAMES_OF_8 WG_NAMES_32
/* clang-format on */
WG_FROM_REGISTERS(1, 8, "%4,%5,%6,%7", "%8", "%9")
WG_FROM_REGISTERS(2, 16, "%8,%9,%10,%11", "%12", "%13")
WG_FROM_REGISTERS(4, 32, "%16,%17,%18,%19", "%20", "%21")
WG_FROM_REGISTERS(8, 64, "%32,%33,%34,%35", "%36", "%37")
WG_NARROW(1, 8, "%4", "%5", "%6")
WG_NARROW(2, 16, "%8", "%9", "%10")
WG_NARROW(3, 24, "%12", "%13", "%14")
WG_NARROW(4, 32, "%16", "%17", "%18")
WG_NARROW(5, 40, "%20", "%21", "%22")
WG_NARROW(6, 48, "%24", "%25", "%26")
WG_NARROW(9, 72, "%36", "%37", "%38")
WG_NARROW(12, 96, "%48", "%49", "%50")
WG_NARROW(18, 144, "%72", "%73", "%74")
#elif !defined(__CUDACC__)
template <int NT>
static inline void wgmma_narrow(float (&c)[NT][4], const uint16_t *a, const uint16_t *b, int k, bool add) {
    emulate_wgmma(&c[0][0], 8 * NT, NULL, a + k * 16, b + k * 16, false, 0, add);
}
template <int NT>
static inline void wgmma_narrow(float (&c)[NT][4], const uint32_t (&a)[4], const uint16_t *b, int k, bool add) {
    emulate_wgmma(&c[0][0], 8 * NT, a, NULL, b + k * 16, false, 0, add);
}
#endif

#endif
