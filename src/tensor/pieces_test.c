/* Pieces on a device that holds nothing: what they take of it, that they do not overlap, that all comes back, and what
 * a device that is full does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "base/rng.h"
#include "tensor/pieces.h"

#define MIB ((int64_t)1 << 20)

/* Addresses are never used again, and nothing may be read or written there. */
enum { BLOCKS = 20000 };
static struct device {
    struct backend be; /* first: allocations cast back */
    struct {
        char *p;
        int64_t bytes;
    } block[BLOCKS];
    int n;
    char *next;
    int64_t taken, limit; /* rounded up; 0: no limit */
} device;
static struct pieces pieces;

static void *device_alloc(struct backend *be, size_t bytes) {
    struct device *d = (struct device *)be;
    bytes = (bytes + 255) / 256 * 256; /* as CUDA does first */
    const int64_t rounded = pieces_rounded(i64_max((int64_t)bytes, 256));
    if (d->limit > 0 && d->taken + rounded > d->limit) return NULL;
    assert_true(d->n < BLOCKS);
    d->block[d->n].p = d->next;
    d->block[d->n++].bytes = (int64_t)bytes;
    d->taken += rounded;
    d->next += (bytes + 255) / 256 * 256;
    return d->block[d->n - 1].p;
}
static void device_free(struct backend *be, void *p) {
    struct device *d = (struct device *)be;
    int i = 0;
    if (!p) return;
    while (i < d->n && d->block[i].p != p) i++;
    assert_true(i < d->n);
    d->taken -= pieces_rounded(i64_max(d->block[i].bytes, 256));
    d->block[i] = d->block[--d->n];
}
static void open_device(int64_t limit) {
    device = (struct device){.be = {.mem_alloc = device_alloc, .mem_free = device_free},
                             .next = (char *)(uintptr_t)(4096 * MIB),
                             .limit = limit};
    pieces = (struct pieces){0};
}
static void *take(int64_t bytes) { return pieces_take(&pieces, &device.be, bytes); }
static void give(void *p) { pieces_give(&pieces, &device.be, p); }
static void close_device(void) { /* when all is given back */
    assert_int_equal(device.taken, 0);
    assert_int_equal(pieces.n, 0);
    assert_int_equal(pieces.bytes, 0);
    pieces_close(&pieces);
}

/* The figures were measured on an H200. There were 400 of each size, so that the last page was not full. */
static void test_rounding(void **state) {
    (void)state;
    static const int64_t measured[][2] = {{100000, 104857},   {530000, 702545},   {700000, 1048576},
                                          {812600, 1048576},  {1598000, 2097152}, {3145728, 4194304},
                                          {6291456, 6291456}, {6400000, 8388608}};
    for (size_t i = 0; i < ARRAY_LEN(measured); i++) {
        const int64_t bytes = pieces_rounded(measured[i][0]);
        assert_in_range(bytes, measured[i][1] - measured[i][1] / 100, measured[i][1]);
    }
}

/* Matrices of experts in NF4, of attention beside them, and some that fill whole pages: a sixteenth more than they have
 * themselves, where each alone takes 1.3 times as much. */
static void test_mixture(void **state) {
    (void)state;
    static const int64_t attention[] = {4330000, 541300, 541300, 4330000, 6 * MIB};
    enum { LAYERS = 48, PARTS = 128 * 3, ALL = LAYERS * (PARTS + (int)ARRAY_LEN(attention)) };
    void **p = xmalloc(ALL * sizeof *p);
    int64_t asked = 0, alone = 0, n = 0;
    open_device(0);
    for (int layer = 0; layer < LAYERS; layer++)
        for (int i = 0; i < PARTS + (int)ARRAY_LEN(attention); i++) {
            const int64_t bytes = i < PARTS ? 812600 : attention[i - PARTS];
            asked += bytes;
            alone += pieces_rounded(bytes);
            assert_non_null(p[n++] = take(bytes));
        }
    assert_true(alone > asked + asked / 4);
    assert_true(device.taken <= asked + asked / 100);
    assert_in_range(pieces.n, 1, 499);
    for (int64_t i = 0; i < n; i++) give(p[i]);
    close_device();
    free(p);
}

/* Few pieces of any size take a sixteenth more than they have, and a chunk. */
static void test_few(void **state) {
    (void)state;
    enum { MOST = 200 };
    void *p[MOST];
    for (int64_t bytes = 256; bytes < 40 * MIB; bytes += bytes / 3 + 1000) {
        open_device(0);
        for (int64_t n = 0; n < MOST; n++) {
            assert_non_null(p[n] = take(bytes));
            const int64_t asked = (n + 1) * ((bytes + 255) & ~(int64_t)255);
            const int64_t chunk = i64_max(32 * MIB + bytes, asked / 16);
            assert_true(pieces.bytes <= asked + asked / 16 + chunk);
            assert_true(device.taken <= asked + asked / 16 + chunk);
        }
        for (int i = MOST - 1; i >= 0; i--) give(p[i]);
        close_device();
    }
}

/* Taken and given back in any order: within what the device has handed out, apart from each other, aligned. */
static void test_any_order(void **state) {
    (void)state;
    enum { LIVE = 150, TURNS = 4000 };
    struct {
        char *p;
        int64_t bytes;
    } live[LIVE];
    int n = 0;
    struct rng r = rng_make(28, 1);
    open_device(0);
    for (int turn = 0; turn < TURNS; turn++) {
        if (n == LIVE || (n > 0 && rng_below(&r, 5) < 2)) {
            const int i = (int)rng_below(&r, (uint64_t)n);
            give(live[i].p);
            live[i] = live[--n];
            continue;
        }
        const int64_t bytes = 1 + (int64_t)rng_below(&r, (uint64_t)1 << (8 + rng_below(&r, 17)));
        char *const p = take(bytes);
        int at = 0;
        while (at < device.n && !(p >= device.block[at].p && p + bytes <= device.block[at].p + device.block[at].bytes))
            at++;
        assert_true(at < device.n);
        assert_int_equal((uintptr_t)p % 256, 0);
        for (int i = 0; i < n; i++) assert_true(p + bytes <= live[i].p || p >= live[i].p + live[i].bytes);
        live[n].p = p;
        live[n++].bytes = bytes;
    }
    while (n > 0) give(live[--n].p);
    close_device();
}

/* The gaps that pieces leave are filled, first ones first. */
static void test_gaps(void **state) {
    (void)state;
    enum { N = 200 };
    char *p[N];
    open_device(0);
    for (int i = 0; i < N; i++) p[i] = take(700000);
    const int64_t taken = device.taken;
    for (int i = 0; i < N; i += 2) give(p[i]);
    for (int i = 0; i < N; i += 2) {
        char *const again = take(700000);
        assert_ptr_equal(again, p[i]);
    }
    assert_int_equal(device.taken, taken);
    give(NULL);
    for (int i = 0; i < N; i++) give(p[i]);
    close_device();
}

/* The chunks of a device that is nearly full are smaller, down to a piece; then there are none, and nothing breaks. */
static void test_full(void **state) {
    (void)state;
    enum { MOST = 2000 };
    void *p[MOST];
    int n = 0;
    open_device(1000 * MIB);
    while (n < MOST && (p[n] = take(1598000))) n++;
    assert_true(n < MOST && n * (int64_t)1598000 > 940 * MIB);
    assert_true(device.taken > 998 * MIB);
    assert_null(take(1598000));
    give(p[--n]);
    assert_non_null(p[n++] = take(1598000));
    while (n > 0) give(p[--n]);
    close_device();
    open_device(700000); /* a third of a page: what is asked for is the piece, for CUDA rounds it up once */
    assert_non_null(p[0] = take(530000));
    assert_in_range(device.taken, 699000, 700000);
    give(p[0]);
    close_device();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rounding), cmocka_unit_test(test_mixture),
                                       cmocka_unit_test(test_few),      cmocka_unit_test(test_any_order),
                                       cmocka_unit_test(test_gaps),     cmocka_unit_test(test_full)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
