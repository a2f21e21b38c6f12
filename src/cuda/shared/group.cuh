/* Products of the rows of many experts in one launch. The host does not know how many rows each expert has. So it
 * launches as many blocks as any choice of experts can need, and each block finds out which tile is its own. */
#ifndef KERNELRL_CUDA_SHARED_GROUP_CUH
#define KERNELRL_CUDA_SHARED_GROUP_CUH

#include "cuda/shared/device.cuh"

struct group_tile {
    int expert;       /* its index in cu_group; -1: this block has nothing to do */
    int64_t lo, rows; /* the expert's first row, and how many it has */
    int64_t tile;     /* the number of the block's tile among the expert's */
};

/* Each expert's rows are cut into tiles of `high` rows, and the tiles of all experts are numbered in their order. Gives
 * tile number `at`. All threads of a block must call it, and get the same. */
static __device__ __forceinline__ struct group_tile group_find(const struct cu_group &g, int64_t at, int high) {
    __shared__ int found[2];
    if (threadIdx.x == 0) found[0] = -1;
    __syncthreads();
    if (threadIdx.x < 32) {
        const int lane = threadIdx.x;
        float own[CU_GROUP_MOST / 32]; /* tiles of 32 experts at a time, all asked for before the first is needed */
#pragma unroll
        for (int j = 0; j < CU_GROUP_MOST / 32; j++) {
            const int i = j * 32 + lane, rows = i < g.n ? g.hi[i] - g.lo[i] : 0;
            own[j] = rows > 0 ? (float)ceil_div(rows, high) : 0.0f;
        }
        float before = 0; /* tiles of experts in front, exact up to 2^24 */
#pragma unroll
        for (int j = 0; j < CU_GROUP_MOST / 32; j++) {
            if (j * 32 >= g.n || before > (float)at) break;
            float sum = own[j];
            for (int by = 1; by < 32; by *= 2) {
                const float left = __shfl_sync(FULL_WARP, sum, lane >= by ? lane - by : lane, 32);
                if (lane >= by) sum = sum + left;
            }
            const float first = before + sum - own[j];
            if (first <= (float)at && (float)at < first + own[j]) {
                found[0] = j * 32 + lane;
                found[1] = (int)((float)at - first);
            }
            before = before + __shfl_sync(FULL_WARP, sum, 31, 32);
        }
    }
    __syncthreads();
    struct group_tile t = {found[0], 0, 0, found[1]};
    if (t.expert < 0) return t;
    t.lo = g.lo[t.expert];
    t.rows = g.hi[t.expert] - t.lo;
    return t;
}

/* The largest number of tiles that any choice of experts for so many rows can make. */
static inline int64_t group_tiles(const struct cu_group &g, int64_t rows, int high) {
    return rows / high + (g.n < rows ? g.n : rows);
}

#endif
