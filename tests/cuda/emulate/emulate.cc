/* The scheduler of the emulated device. A block's threads are coroutines; one runs until it waits at a barrier, and a
 * barrier opens when every live thread of the block (or warp) waits at it. Threads that wait at different barriers for
 * ever are a bug in the kernel, and end the program. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include "cuda_runtime.h"

emulated_index threadIdx, blockIdx, blockDim, gridDim;

namespace {
enum state { RUNNING, AT_WARP, AT_BLOCK, DONE };
enum { MAX_THREADS = 1024, STACK = 256 << 10 };
ucontext_t scheduler, thread[MAX_THREADS];
char *stack[MAX_THREADS];
state where[MAX_THREADS];
float slot[MAX_THREADS];
unsigned current;
void (*entry)(void *);
void *entry_ctx;
void *shared_memory;

void thread_main() {
    entry(entry_ctx);
    where[current] = DONE;
    swapcontext(&thread[current], &scheduler);
}

/* Whether all live threads of [begin, end) wait at a barrier of this kind. */
bool all_at(state s, unsigned begin, unsigned end) {
    for (unsigned i = begin; i < end; i++)
        if (where[i] != s && where[i] != DONE) return false;
    return true;
}

void run_block() {
    for (unsigned i = 0; i < blockDim.x; i++) {
        if (!stack[i]) stack[i] = static_cast<char *>(malloc(STACK));
        getcontext(&thread[i]);
        thread[i].uc_stack.ss_sp = stack[i];
        thread[i].uc_stack.ss_size = STACK;
        thread[i].uc_link = &scheduler;
        makecontext(&thread[i], thread_main, 0);
        where[i] = RUNNING;
    }
    for (;;) {
        bool ran = false, live = false;
        for (unsigned i = 0; i < blockDim.x; i++) {
            if (where[i] == RUNNING) {
                current = i;
                threadIdx.x = i;
                swapcontext(&scheduler, &thread[i]);
                ran = true;
            }
            live |= where[i] != DONE;
        }
        if (!live) return;
        for (unsigned w = 0; w < blockDim.x; w += 32) {
            const unsigned end = w + 32 < blockDim.x ? w + 32 : blockDim.x;
            if (all_at(AT_WARP, w, end))
                for (unsigned i = w; i < end; i++)
                    if (where[i] == AT_WARP) where[i] = RUNNING, ran = true;
        }
        if (all_at(AT_BLOCK, 0, blockDim.x))
            for (unsigned i = 0; i < blockDim.x; i++)
                if (where[i] == AT_BLOCK) where[i] = RUNNING, ran = true;
        if (!ran) {
            fprintf(stderr, "emulated device: threads of block %u wait at different barriers\n", blockIdx.x);
            abort();
        }
    }
}
} // namespace

void emulate_barrier(bool warp) {
    const unsigned self = current;
    where[self] = warp ? AT_WARP : AT_BLOCK;
    swapcontext(&thread[self], &scheduler);
}

float emulate_exchange(float mine, int from_lane) {
    const unsigned self = current;
    slot[self] = mine;
    emulate_barrier(true);
    const float got = slot[self / 32 * 32 + (unsigned)from_lane];
    emulate_barrier(true);
    return got;
}

void *emulate_shared() { return shared_memory; }

void emulate_launch(int64_t grid, int block, int64_t shared, void (*body)(void *), void *ctx) {
    if (grid <= 0 || grid > INT32_MAX || block <= 0 || block > MAX_THREADS || shared > 232448) {
        fprintf(stderr, "emulated device: launch of %lld blocks of %d threads\n", (long long)grid, block);
        abort();
    }
    /* Its own allocation, so that a sanitizer sees accesses behind it; filled with NaN. */
    shared_memory = aligned_alloc(16, (size_t)(shared + 16) & ~(size_t)15);
    entry = body;
    entry_ctx = ctx;
    gridDim.x = (unsigned)grid;
    blockDim.x = (unsigned)block;
    for (int64_t b = 0; b < grid; b++) {
        memset(shared_memory, 0xff, (size_t)shared);
        blockIdx.x = (unsigned)b;
        run_block();
    }
    free(shared_memory);
}
