/* test_util: what the tests of this room share: backends of each instruction set, numbers, copies. */
#ifndef KERNELRL_CPU_TEST_UTIL_H
#define KERNELRL_CPU_TEST_UTIL_H

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "cpu/cpu.h"
#include "tensor/backend.h"

/* The first three compute in float32; the others have bf16 products of their own. */
static const char *const isa[] = {"reference", "avx2", "avx512", "avx512bf16", "amx"};

static struct pool *two;
static struct backend *be[2 * ARRAY_LEN(isa)]; /* of each with one and with two threads; NULL when the CPU lacks it */

/* Opens backends of the first n instruction sets. Returns 0, as cmocka has it; 1 when one does not open. */
static int open_backends(int n) {
    two = pool_create(2);
    unsetenv("KERNELRL_CPU");
    for (int i = 0; i < 2 * n; i++) {
        struct err e;
        if (cpu_isa_force(isa[i / 2]) && cpu_backend_open(i % 2 ? two : NULL, &be[i], &e) != ST_OK) return 1;
        if (!be[i] && i % 2 == 0) print_message("skipped: this CPU has no %s\n", isa[i / 2]);
    }
    return 0;
}

static int teardown(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(be); i++)
        if (be[i]) be[i]->close(be[i]);
    pool_destroy(two);
    return 0;
}

/* Both are the caller's to free. */
static float *randoms(int64_t n, uint64_t stream, float scale) {
    float *p = xaligned((size_t)n * sizeof(float));
    struct rng r = rng_make(7, stream);
    for (int64_t i = 0; i < n; i++) p[i] = scale * (float)rng_normal(&r);
    return p;
}

static float *copy_of(const float *p, int64_t n) {
    float *q = xaligned((size_t)n * sizeof(float));
    memcpy(q, p, (size_t)n * sizeof(float));
    return q;
}

#endif
