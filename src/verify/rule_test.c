/* The rule for outputs is written twice: in compare.c for backend c, and in worker/kernelrl_worker/compare.py for the
 * others. Both judge the same tensors of many shapes, types, scales and errors here, and have to agree. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/home.h"
#include "base/rng.h"
#include "verify/compare.h"
#include "verify/jail/process.h"
#include "verify/jail/ref_worker.h"

enum { CASES = 600, MAX_N = 8192 };

static uint64_t drawn;
static uint64_t word(void) { return rng_u64(20261123, 1, drawn++); }
static uint64_t below(uint64_t n) { return word() % n; }
static double uniform(void) { return (double)(word() >> 11) * 0x1p-53; }

/* What one case is, as rule_test's script reads it. */
struct header {
    int64_t type, nd, dim[4], count, compatible;
    double noise, floor, typical;
};

static uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)(bits >> 16);
}

static void put(enum arg_type type, void *x, int64_t i, double value) {
    switch (type) {
    case TYPE_F32: ((float *)x)[i] = (float)value; return;
    case TYPE_F16: {
        _Float16 h = (_Float16)value;
        memcpy((uint16_t *)x + i, &h, 2);
        return;
    }
    case TYPE_BF16: ((uint16_t *)x)[i] = to_bf16((float)value); return;
    case TYPE_I64: ((int64_t *)x)[i] = (int64_t)(isfinite(value) ? value : 0); return;
    case TYPE_BOOL: ((uint8_t *)x)[i] = value > 0; return;
    }
}

static void draw(struct header *h, void *want, void *got) {
    static const enum arg_type types[] = {TYPE_F32, TYPE_F32, TYPE_F32, TYPE_F16, TYPE_BF16, TYPE_I64, TYPE_BOOL};
    static const int64_t sizes[] = {1, 1, 2, 3, 5, 8, 10, 17, 64, 65, 90, 128};
    static const double floors[] = {1e-2, 1e-1, 1, 1e30};
    const enum arg_type type = types[below(ARRAY_LEN(types))];
    *h = (struct header){.type = type, .count = 1, .floor = floors[below(4)], .compatible = (int64_t)below(2)};
    h->nd = (int64_t)below(5);
    for (int64_t d = 0; d < h->nd; d++) {
        h->dim[d] = sizes[below(ARRAY_LEN(sizes))];
        if (h->count * h->dim[d] > MAX_N) h->dim[d] = 1;
        h->count *= h->dim[d];
    }
    h->noise = below(3) ? 0 : pow(10, -6 + 3 * uniform());
    struct arg a = {.nd = (int)h->nd, .count = h->count};
    memcpy(a.dim, h->dim, sizeof h->dim);
    const int64_t row = compare_row(&a);
    const double overall = type == TYPE_F32 ? pow(10, -36 + 60 * uniform()) : pow(10, -3 + 4 * uniform());
    if (h->count < 64 && below(2)) h->typical = overall * pow(10, -1 + 2 * uniform());
    const double spread = below(2) ? 0 : 8, wrong = below(3) ? 0 : 0.02, odd = below(4) ? 0 : 0.01;
    const bool empty = below(20) == 0;
    double size = 1;
    for (int64_t i = 0; i < h->count; i++) {
        if (i % row == 0) size = overall * pow(10, spread * (uniform() - 0.5)) * (below(8) != 0);
        put(type, want, i, empty ? 0 : uniform() < 1e-3 ? 1e5 * size : size * (2 * uniform() - 1));
    }
    /* Errors on either side of what is allowed, none so near that rounding decides. */
    const struct compare_limit limit = {h->noise, h->floor, h->typical};
    static double scales[MAX_N];
    compare_scales(type, want, h->count, row, &limit, scales);
    for (int64_t i = 0; i < h->count; i++) {
        static const double shares[] = {0, 0.3, 0.9, 0.9, 1.15, 30};
        const double w = compare_element(type, want, i);
        const double share = shares[uniform() < wrong ? 4 + below(2) : below(4)];
        const double error = share * fmax(compare_tolerance(type, &limit), 1e-4) * (scales[i / row] + fabs(w));
        put(type, got, i, w + (below(2) ? error : -error));
    }
    for (int64_t i = 0; i < h->count && type <= TYPE_BF16; i++) {
        if (uniform() >= odd) continue;
        const double values[] = {INFINITY, -INFINITY, NAN, 1, 0};
        if (below(2)) put(type, want, i, values[below(3)]);
        if (below(2)) put(type, got, i, values[below(5)]);
    }
}

static const char script[] =
    "import struct, sys\n"
    "sys.path.insert(0, sys.argv[2] + '/worker')\n"
    "import torch\n"
    "from kernelrl_worker import compare\n"
    "types = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool]\n"
    "data = bytearray(open(sys.argv[1], 'rb').read())\n"
    "at = 0\n"
    "while at < len(data):\n"
    "    head = struct.unpack_from('<8q3d', data, at)\n"
    "    at += struct.calcsize('<8q3d')\n"
    "    dtype, shape, count, compatible = types[head[0]], head[2 : 2 + head[1]], head[6], head[7]\n"
    "    tensors = []\n"
    "    for _ in range(2):\n"
    "        tensors.append(torch.frombuffer(data, dtype=dtype, count=count, offset=at).clone().view(shape))\n"
    "        at += tensors[0].element_size() * count\n"
    "    limit = compare.Limit(dtype, *head[8:])\n"
    "    base = compare.TOLERANCE.get(dtype, 0.0)\n"
    "    floating = dtype.is_floating_point\n"
    "    r = compare.compare(*tensors, limit.tolerance(dtype) if floating else 0.0, base if compatible else None,\n"
    "                        compare.Scales(tensors[0], limit))\n"
    "    print(r['different'], r['not_finite'], r['first'], r['max_error'], compare.row_length(shape))\n";

static void test_two_comparers(void **state) {
    (void)state;
    static unsigned char want[8 * MAX_N], got[8 * MAX_N];
    static double scales[MAX_N];
    static struct compare_result mine[CASES];
    static int64_t rows[CASES];
    struct refworker w;
    struct err e = {0};
    char python[512], folder[] = "/tmp/rule_test.XXXXXX", path[80];
    if (refworker_open(&w, NULL, 1, WORKER_REFERENCE, NULL, &e) != ST_OK) {
        printf("skipped: %s\n", e.msg);
        skip();
    }
    memcpy(python, w.python, sizeof python);
    refworker_close(&w);
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/cases", folder);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    int refused = 0;
    for (int i = 0; i < CASES; i++) {
        struct header h;
        draw(&h, want, got);
        const enum arg_type type = (enum arg_type)h.type;
        const size_t bytes = (size_t)h.count * (type == TYPE_F32    ? 4
                                                : type == TYPE_I64  ? 8
                                                : type == TYPE_BOOL ? 1
                                                                    : 2);
        const struct compare_limit limit = {h.noise, h.floor, h.typical};
        struct arg a = {.nd = (int)h.nd, .count = h.count};
        memcpy(a.dim, h.dim, sizeof h.dim);
        rows[i] = compare_row(&a);
        compare_scales(type, want, h.count, rows[i], &limit, scales);
        const struct compare_rule rule = {.scales = scales,
                                          .row = rows[i],
                                          .tolerance = compare_tolerance(type, &limit),
                                          .compatible = h.compatible,
                                          .poison = 0x7fffdead};
        compare_tensor(type, want, got, h.count, &rule, &mine[i]);
        refused += mine[i].different > 0;
        assert_int_equal(fwrite(&h, sizeof h, 1, f), 1);
        assert_int_equal(fwrite(want, 1, bytes, f), bytes);
        assert_int_equal(fwrite(got, 1, bytes, f), bytes);
    }
    assert_int_equal(fclose(f), 0);
    char script_path[80];
    snprintf(script_path, sizeof script_path, "%s/script.py", folder);
    f = fopen(script_path, "wb");
    assert_non_null(f);
    assert_true(fputs(script, f) >= 0);
    assert_int_equal(fclose(f), 0);
    /* Its words go to a file. */
    char *const argv[] = {python, (char *)(uintptr_t) "-B", script_path, path, (char *)(uintptr_t)home_dir(), NULL};
    const int said = process_memfd("said", NULL, 0);
    struct process child = PROCESS_NONE;
    int status = -1;
    assert_true(said >= 0);
    const struct process_start start = {
        .path = python, .argv = argv, .envp = environ, .fds = {-1, said, 2}, .n_fds = 3};
    if (process_start(&start, &child, &e) != ST_OK) fail_msg("%s", e.msg);
    assert_true(process_wait(&child, clock_now_s() + 120, &status));
    assert_int_equal(status, 0);
    assert_int_equal(lseek(said, 0, SEEK_SET), 0);
    f = fdopen(said, "rb");
    assert_non_null(f);
    int wrong = 0;
    for (int i = 0; i < CASES; i++) {
        long long different, not_finite, first, row;
        double error;
        assert_int_equal(fscanf(f, "%lld %lld %lld %lf %lld", &different, &not_finite, &first, &error, &row), 5);
        const struct compare_result *m = &mine[i];
        const bool same = different == m->different && not_finite == m->not_finite && first == m->first &&
                          row == rows[i] && fabs(error - m->max_error) <= 2e-6 * fabs(error) + 1e-12;
        if (same) continue;
        wrong++;
        printf("case %d: C %lld, %lld, %lld, %.9g, %lld; Python %lld, %lld, %lld, %.9g, %lld\n", i,
               (long long)m->different, (long long)m->not_finite, (long long)m->first, m->max_error, (long long)rows[i],
               different, not_finite, first, error, row);
    }
    assert_int_equal(fclose(f), 0);
    assert_int_equal(remove(path), 0);
    assert_int_equal(remove(script_path), 0);
    assert_int_equal(remove(folder), 0);
    printf("%d cases, %d of them refused, %d judged in two ways\n", CASES, refused, wrong);
    assert_int_equal(wrong, 0);
    assert_true(refused > CASES / 10 && refused < CASES * 9 / 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_two_comparers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
