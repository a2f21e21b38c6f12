/* The scheduler of the emulated device. A block's threads are coroutines; one runs until it waits at a barrier, and a
 * barrier opens when every live thread of the block (or warp) waits at it. Threads that wait at different barriers for
 * ever are a bug in the kernel, and end the program. */
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <map>
#include <vector>

#include "cuda_runtime.h"

emulated_index threadIdx, blockIdx, blockDim, gridDim;

/* Goes on with the stack `to` and leaves in *from where this one is left. swapcontext() does the same and asks the
 * kernel for the signal mask each time, which took half of the time of the emulated device. */
extern "C" void emulate_switch(void **from, void *to);
asm(".text\n"
    ".type emulate_switch, @function\n"
    "emulate_switch:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    ret\n"
    ".size emulate_switch, . - emulate_switch\n");

namespace {
enum state { RUNNING, AT_WARP, AT_GROUP, AT_BLOCK, DONE };
enum { MAX_THREADS = 1024, STACK = 256 << 10 };
void *scheduler, *thread[MAX_THREADS]; /* where each stack ends while another one runs */
char *stack[MAX_THREADS];
state where[MAX_THREADS];
float slot[2][MAX_THREADS];
unsigned current;
const std::function<void()> *entry;
void *shared_memory;
uint32_t fragment[MAX_THREADS][4];
struct alignas(32) warp_product {
    float a[16][16], b[16][8], c[16][8];
    unsigned done; /* how many products of the block's this warp has computed */
} product[MAX_THREADS / 32];
struct group_tile {
    float b[16][256];
    unsigned done; /* how many products of the block's this warpgroup's tile was unpacked for */
} tile[MAX_THREADS / 128];
unsigned products_of[MAX_THREADS], exchanges_of[MAX_THREADS]; /* how many a thread has begun */
const uint16_t *matrix_row[MAX_THREADS];
std::vector<std::function<void()>> *captured; /* NULL: work runs at once */
std::map<const void *, size_t> held;          /* device memory */
size_t held_bytes, held_peak, held_before;    /* before: at the last emulate_device_peak() */
size_t taken_bytes;                           /* for what is held */

void thread_main() {
    (*entry)();
    where[current] = DONE;
    emulate_switch(&thread[current], scheduler);
    abort(); /* nobody goes on with a thread that is done */
}

/* The stack of a thread that has not begun: the first switch to it returns into thread_main. The registers that the
 * switch restores lie below that address; above it is the place of a return address, so that the stack is aligned as
 * behind a call. */
void *begin_stack(char *memory) {
    void **top = reinterpret_cast<void **>(memory + STACK) - 2;
    top[0] = reinterpret_cast<void *>(thread_main);
    top[1] = nullptr;
    return top - 6;
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
        thread[i] = begin_stack(stack[i]);
        where[i] = RUNNING;
        products_of[i] = exchanges_of[i] = 0;
        product[i / 32].done = tile[i / 128].done = 0;
    }
    for (;;) {
        bool ran = false, live = false;
        for (unsigned i = 0; i < blockDim.x; i++) {
            if (where[i] == RUNNING) {
                current = i;
                threadIdx.x = i;
                emulate_switch(&scheduler, thread[i]);
                ran = true;
            }
            live |= where[i] != DONE;
        }
        if (!live) return;
        for (const state s : {AT_WARP, AT_GROUP}) {
            const unsigned size = s == AT_WARP ? 32 : 128;
            for (unsigned w = 0; w < blockDim.x; w += size) {
                const unsigned end = w + size < blockDim.x ? w + size : blockDim.x;
                if (all_at(s, w, end))
                    for (unsigned i = w; i < end; i++)
                        if (where[i] == s) where[i] = RUNNING, ran = true;
            }
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

/* Goes on with the next thread that may run; behind the last one with the scheduler. */
static void wait_at(state s) {
    const unsigned self = current;
    unsigned next = self + 1;
    where[self] = s;
    while (next < blockDim.x && where[next] != RUNNING) next++;
    if (next < blockDim.x) current = threadIdx.x = next;
    emulate_switch(&thread[self], next < blockDim.x ? thread[next] : scheduler);
}

void emulate_barrier(bool warp) { wait_at(warp ? AT_WARP : AT_BLOCK); }

void emulate_group_barrier() { wait_at(AT_GROUP); }

float emulate_exchange(float mine, int from_lane) {
    const unsigned self = current, turn = exchanges_of[self]++ % 2;
    slot[turn][self] = mine;
    emulate_barrier(true); /* whoever writes this slot again is behind the next exchange's barrier */
    return slot[turn][self / 32 * 32 + (unsigned)from_lane];
}

void *emulate_shared() { return shared_memory; }

static float bf16(uint32_t pair, int high) {
    const uint32_t u = high ? pair & 0xffff0000u : pair << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Thread (g, c) = (lane / 4, lane % 4) has of a: rows g, g+8, g, g+8 at k 2c, 2c, 2c+8, 2c+8; of b: column g at the
 * same two k; of c: rows g, g, g+8, g+8, columns 2c, 2c+1, twice. The first thread behind the barrier computes the
 * warp's product, eight columns at once; each element's sum goes over k in its order. Nobody needs a and b after that,
 * and so nobody waits for the others again. */
void emulate_mma(float (&c)[4], const uint32_t mine[6]) {
    const unsigned self = current, g = self % 32 / 4, at = self % 4 * 2;
    warp_product &w = product[self / 32];
#pragma GCC unroll 2
    for (unsigned high = 0; high < 2; high++) {
#pragma GCC unroll 4
        for (unsigned r = 0; r < 4; r++) w.a[g + r % 2 * 8][r / 2 * 8 + at + high] = bf16(mine[r], (int)high);
#pragma GCC unroll 2
        for (unsigned r = 0; r < 2; r++) w.b[r * 8 + at + high][g] = bf16(mine[4 + r], (int)high);
    }
#pragma GCC unroll 4
    for (unsigned e = 0; e < 4; e++) w.c[g + e / 2 * 8][at + e % 2] = c[e];
    const unsigned turn = ++products_of[self];
    emulate_barrier(true);
    if (w.done != turn) {
        for (unsigned row = 0; row < 16; row++) {
            __m256 sum = _mm256_load_ps(w.c[row]);
#pragma GCC unroll 16
            for (unsigned k = 0; k < 16; k++)
                sum = _mm256_fmadd_ps(_mm256_set1_ps(w.a[row][k]), _mm256_load_ps(w.b[k]), sum);
            _mm256_store_ps(w.c[row], sum);
        }
        w.done = turn;
    }
#pragma GCC unroll 4
    for (unsigned e = 0; e < 4; e++) c[e] = w.c[g + e / 2 * 8][at + e % 2];
}

void emulate_load_matrices(uint32_t (&r)[4], const uint16_t *row, bool transposed) {
    const unsigned self = current, base = self / 32 * 32, g = self % 32 / 4, c = self % 4;
    if (reinterpret_cast<uintptr_t>(row) % 16 != 0) {
        fprintf(stderr, "emulated device: a matrix row that is not aligned to 16 bytes\n");
        abort();
    }
    matrix_row[self] = row;
    emulate_barrier(true);
    for (unsigned i = 0; i < 4; i++) {
        const uint16_t *const *rows = &matrix_row[base + i * 8];
        const uint32_t low = transposed ? rows[2 * c][g] : rows[g][2 * c];
        const uint32_t high = transposed ? rows[2 * c + 1][g] : rows[g][2 * c + 1];
        r[i] = low | high << 16;
    }
    emulate_barrier(true);
}

/* The element `bytes` behind a tile's beginning, before the swizzle: bits 4 to 6 of an address are changed by 7 to 9.
 */
static float swizzled(const uint16_t *tile, unsigned bytes) {
    uintptr_t at = reinterpret_cast<uintptr_t>(tile) + bytes;
    at ^= (at >> 7 & 7) << 4;
    return bf16(*reinterpret_cast<const uint16_t *>(at), 0);
}

/* Warp w of the warpgroup has rows 16 w.. of a and of the result, as mma has them. */
void emulate_wgmma(float *c, int n, const uint32_t *a, const uint16_t *a_tile, const uint16_t *b_tile, bool summed,
                   int panel, bool add) {
    const unsigned self = current, base = self / 32 * 32, g = self % 32 / 4, at = self % 4, row0 = self % 128 / 32 * 16;
    group_tile &t = tile[self / 128];
    if (a) memcpy(fragment[self], a, 4 * sizeof *a);
    const unsigned turn = ++products_of[self];
    emulate_group_barrier();
    if (t.done != turn) { /* the first thread behind the barrier unpacks what all read */
        for (unsigned k = 0; k < 16; k++)
            for (unsigned col = 0; col < (unsigned)n; col++)
                t.b[k][col] = swizzled(
                    b_tile, summed ? col / 64 * (unsigned)panel + k / 8 * 1024 + k % 8 * 128 + col % 64 * 2
                                   : col / 8 * 1024 + col % 8 * 128 + k * 2);
        t.done = turn;
    }
    for (unsigned half = 0; half < 2; half++) {
        float x[16];
        const unsigned row = g + half * 8, m = row0 + row;
        for (unsigned k = 0; k < 16; k++)
            x[k] = a ? bf16(fragment[base + g * 4 + k % 8 / 2][k / 8 * 2 + half], (int)k % 2)
                     : swizzled(a_tile, m / 8 * 1024 + m % 8 * 128 + k * 2);
        for (unsigned i = 0; i < (unsigned)n / 8; i++)
            for (unsigned odd = 0; odd < 2; odd++) {
                const unsigned col = i * 8 + at * 2 + odd;
                float *const to = &c[i * 4 + half * 2 + odd];
                float sum = add ? *to : 0;
#pragma GCC unroll 16
                for (unsigned k = 0; k < 16; k++) sum = fmaf(x[k], t.b[k][col], sum);
                *to = sum;
            }
    }
    emulate_group_barrier();
}

/* Work that is put off. A copy to the device reads pinned host memory when it is done, other host memory when it is
 * asked for. */
static std::vector<std::function<void()>> late;
static bool put_off() {
    static const char *on = getenv("KERNELRL_EMULATE_LATE");
    return on && *on == '1';
}
static bool broken;
static cudaError_t last_error;
extern "C" cudaError_t emulate_state(void) { return broken ? cudaErrorIllegalAddress : cudaSuccess; }
extern "C" cudaError_t emulate_end(cudaError_t rc) {
    if (rc) last_error = rc;
    return rc;
}
extern "C" cudaError_t cudaGetLastError(void) {
    const cudaError_t rc = broken ? cudaErrorIllegalAddress : last_error;
    last_error = cudaSuccess;
    return rc;
}
static void queue_work(const std::function<void()> &w) {
    if (broken) return;
    if (captured)
        captured->push_back(w);
    else if (put_off())
        late.push_back(w);
    else
        w();
}
static std::map<const char *, size_t> &pinned() {
    static std::map<const char *, size_t> pieces;
    return pieces;
}
static bool is_pinned(const void *src) {
    const char *p = static_cast<const char *>(src);
    auto x = pinned().upper_bound(p);
    return x != pinned().begin() && p < (--x)->first + x->second;
}

struct emulated_graph {
    std::vector<std::function<void()>> work;
};
struct CUgraphExec_st {
    std::vector<std::function<void()>> work;
};

extern "C" {
cudaError_t cudaStreamBeginCapture(cudaStream_t, int) {
    if (captured) return emulate_end(cudaErrorInvalidValue);
    captured = new std::vector<std::function<void()>>;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *g) {
    if (!captured) return emulate_end(cudaErrorInvalidValue);
    *g = new emulated_graph{*captured};
    delete captured;
    captured = nullptr;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *e, cudaGraph_t g, unsigned long long) {
    return *e = new CUgraphExec_st{g->work}, cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t) {
    for (const auto &w : e->work) queue_work(w);
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g) { return delete g, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e) { return delete e, cudaSuccess; }
cudaError_t emulate_copy(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                         int kind) {
    const auto copy = [=](const char *from, size_t pitch) {
        for (size_t i = 0; i < height; i++) memcpy(static_cast<char *>(dst) + i * dpitch, from + i * pitch, width);
    };
    const char *from = static_cast<const char *>(src);
    if (kind == cudaMemcpyHostToDevice && put_off() && !is_pinned(src)) {
        std::vector<char> now(width * height);
        for (size_t i = 0; i < height; i++) memcpy(now.data() + i * width, from + i * spitch, width);
        queue_work([=] { copy(now.data(), width); });
    } else {
        queue_work([=] { copy(from, spitch); });
    }
    return emulate_end(emulate_state());
}
cudaError_t cudaMemsetAsync(void *dst, int v, size_t n, cudaStream_t) {
    queue_work([=] { memset(dst, v, n); });
    return cudaSuccess;
}
void emulate_pinned(const void *p, size_t n) {
    if (n > 0)
        pinned()[static_cast<const char *>(p)] = n;
    else
        pinned().erase(static_cast<const char *>(p));
}
void emulate_held(const void *p, size_t n) {
    held_bytes += n - held[p];
    taken_bytes += emulate_rounded(n) - emulate_rounded(held[p]);
    if (n > 0)
        held[p] = n;
    else
        held.erase(p);
    if (held_bytes > held_peak) held_peak = held_bytes;
}
size_t emulate_device_peak(void) {
    const size_t peak = held_peak - held_before;
    held_peak = held_before = held_bytes;
    return peak;
}
size_t emulate_device_taken(void) { return taken_bytes; }
void emulate_wait(void) {
    std::vector<std::function<void()>> work;
    work.swap(late);
    for (const auto &w : work) w();
}
}

static void run_grid(int64_t grid, int block, int64_t shared, const std::function<void()> &body);

void emulate_launch(int64_t grid, int block, int64_t shared, const std::function<void()> &body) {
    static const char *const file = getenv("KERNELRL_EMULATE_FAULT_FILE");
    broken |= emulate_fault("launch") && (!file || access(file, F_OK) == 0);
    queue_work([=] { run_grid(grid, block, shared, body); });
}

static void run_grid(int64_t grid, int block, int64_t shared, const std::function<void()> &body) {
    if (grid <= 0 || grid > INT32_MAX || block <= 0 || block > MAX_THREADS || shared > 232448) {
        fprintf(stderr, "emulated device: launch of %lld blocks of %d threads\n", (long long)grid, block);
        abort();
    }
    /* Its own allocation, so that a sanitizer sees accesses behind it; filled with NaN. */
    shared_memory = aligned_alloc(16, (size_t)(shared + 16) & ~(size_t)15);
    entry = &body;
    gridDim.x = (unsigned)grid;
    blockDim.x = (unsigned)block;
    for (int64_t b = 0; b < grid; b++) {
        memset(shared_memory, 0xff, (size_t)shared);
        blockIdx.x = (unsigned)b;
        run_block();
    }
    free(shared_memory);
}
