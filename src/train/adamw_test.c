/* AdamW against the paper's formulas in double; the state's round trip; files that do not belong. */
#include "train/adamw.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/fs.h"
#include "base/rng.h"
#include "tensor/backend.h"

enum { ROWS = 170, COLS = 131, GAIN = 33, STEPS = 25 };

static struct err err;
static struct pool *pool;
static struct backend *one, *three; /* the CPU with one thread and with three: its memory is this one */
static char dir[] = "/tmp/kernelrl_adamw_XXXXXX";
static float w0[ROWS * COLS], g0[ROWS * COLS], w1[GAIN], g1[GAIN];
static struct param params[] = {
    {.name = "layer.weight", .w = w0, .g = g0, .n = ROWS * COLS, .nd = 2, .dim = {ROWS, COLS}},
    {.name = "norm.weight", .w = w1, .g = g1, .n = GAIN, .nd = 1, .dim = {GAIN}},
};
static const struct adamw_config config = {3e-3, 0.9, 0.95, 1e-8, 0.2};

static void fill(uint64_t stream, bool weights) {
    for (uint64_t i = 0; i < 2; i++) {
        struct rng r = rng_make(stream, i);
        for (int64_t k = 0; k < params[i].n; k++) {
            float x = (float)rng_normal(&r);
            if (weights)
                params[i].w[k] = x;
            else
                params[i].g[k] = k % 7 ? x : 0; /* some parameters rarely see a gradient */
        }
    }
}

static int make_dir(void **state) {
    (void)state;
    pool = pool_create(3);
    if (cpu_backend_open(NULL, &one, &err) != ST_OK || cpu_backend_open(pool, &three, &err) != ST_OK) return 1;
    return mkdtemp(dir) ? 0 : 1;
}

static int remove_dir(void **state) {
    (void)state;
    one->close(one);
    three->close(three);
    pool_destroy(pool);
    return fs_remove(dir, &err) == ST_OK ? 0 : 1;
}

static struct adamw *create(struct backend *be, const struct param *p, int n) {
    struct adamw *a;
    if (adamw_create(be, p, n, &a, &err) != ST_OK) fail_msg("%s", err.msg);
    return a;
}

static const char *in_dir(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

/* Loshchilov and Hutter, algorithm 2, with the decay scaled by the learning rate as PyTorch has it. */
static void matches_double_reference(void **state) {
    (void)state;
    for (int decay_all = 0; decay_all < 2; decay_all++) {
        fill(1, true);
        struct adamw *a = create(one, params, 2);
        double *w[2], *m[2], *v[2], scale = 0.37, worst = 0;
        for (int i = 0; i < 2; i++) {
            size_t n = (size_t)params[i].n;
            w[i] = calloc(n, sizeof **w);
            m[i] = calloc(n, sizeof **m);
            v[i] = calloc(n, sizeof **v);
            for (size_t k = 0; k < n; k++) w[i][k] = (double)params[i].w[k];
        }
        for (int t = 1; t <= STEPS; t++) {
            fill(100 + (uint64_t)t, false);
            adamw_step(a, params, 2, &config, scale, decay_all);
            assert_int_equal(a->step, t);
            for (int i = 0; i < 2; i++)
                for (int64_t k = 0; k < params[i].n; k++) {
                    double g = scale * (double)params[i].g[k], *x = &w[i][k];
                    if (i == 0 || decay_all) *x -= config.learning_rate * config.weight_decay * *x;
                    m[i][k] = config.beta1 * m[i][k] + (1 - config.beta1) * g;
                    v[i][k] = config.beta2 * v[i][k] + (1 - config.beta2) * g * g;
                    double mh = m[i][k] / (1 - pow(config.beta1, t)), vh = v[i][k] / (1 - pow(config.beta2, t));
                    *x -= config.learning_rate * mh / (sqrt(vh) + config.eps);
                    worst = fmax(worst, fabs(*x - (double)params[i].w[k]));
                }
        }
        if (worst > 5e-6) fail_msg("off by %g after %d steps", worst, STEPS);
        for (int i = 0; i < 2; i++) {
            free(w[i]);
            free(m[i]);
            free(v[i]);
        }
        adamw_free(a);
    }
    adamw_free(NULL);
}

/* Parameters side by side in one slab are updated in runs of one decay, with the bits of updates one by one, and the
 * gaps between them stay zero. */
static int adamw_calls;
static void (*real_adamw)(struct backend *be, float *w, float *m, float *v, const float *g, int64_t n,
                          const struct adamw_args *a);
static void counted_adamw(struct backend *be, float *w, float *m, float *v, const float *g, int64_t n,
                          const struct adamw_args *a) {
    adamw_calls++;
    real_adamw(be, w, m, v, g, n, a);
}
static void runs_in_a_slab(void **state) {
    (void)state;
    enum { N = 4, SLAB = 272 };
    static const int64_t size[N] = {37, 64, 5, 100}, at[N] = {0, 48, 112, 128};
    static const int nd[N] = {1, 2, 2, 2};
    static float w[SLAB], g[SLAB], alone_w[N][100], alone_g[N][100];
    struct param slab[N], alone[N];
    struct backend be = *one;
    real_adamw = be.adamw;
    be.adamw = counted_adamw;
    for (int way = 0; way < 3; way++) { /* one run; two; one of parameters that are listed in another order */
        const int decay = way == 1;
        struct adamw_config c = config;
        if (!decay) c.weight_decay = 0;
        memset(w, 0, sizeof w);
        memset(g, 0, sizeof g);
        for (int i = 0; i < N; i++) {
            struct rng r = rng_make(7, (uint64_t)i);
            for (int64_t k = 0; k < size[i]; k++) {
                w[at[i] + k] = alone_w[i][k] = (float)rng_normal(&r);
                g[at[i] + k] = alone_g[i][k] = (float)rng_normal(&r);
            }
            slab[i] = (struct param){.name = "p", .w = w + at[i], .g = g + at[i], .n = size[i], .nd = nd[i]};
            alone[i] = (struct param){.name = "p", .w = alone_w[i], .g = alone_g[i], .n = size[i], .nd = nd[i]};
        }
        if (way == 2)
            for (int i = 0; i < N; i += 2) {
                const struct param p = slab[i], q = alone[i];
                slab[i] = slab[i + 1], slab[i + 1] = p;
                alone[i] = alone[i + 1], alone[i + 1] = q;
            }
        struct adamw *a = create(&be, slab, N), *b = create(one, alone, N);
        for (int t = 0; t < 3; t++) {
            adamw_calls = 0;
            adamw_step(a, slab, N, &c, 0.5, false);
            assert_int_equal(adamw_calls, decay ? 2 : 1);
            adamw_step(b, alone, N, &c, 0.5, false);
        }
        for (int i = 0; i < N; i++) {
            const size_t bytes = (size_t)slab[i].n * sizeof(float);
            assert_memory_equal(slab[i].w, alone[i].w, bytes);
            assert_memory_equal(a->m[i], b->m[i], bytes);
            assert_memory_equal(a->v[i], b->v[i], bytes);
            for (int64_t k = at[i] + size[i]; k < (i + 1 < N ? at[i + 1] : SLAB); k++) assert_true(w[k] == 0);
        }
        adamw_free(a);
        adamw_free(b);
    }
}

/* A first step is the sign of the gradient times the learning rate, whatever the gradient's size. */
static void first_step_by_hand(void **state) {
    (void)state;
    struct adamw_config c = config;
    c.weight_decay = 0;
    fill(1, true);
    fill(2, false);
    float before[GAIN];
    memcpy(before, w1, sizeof w1);
    struct adamw *a = create(one, params, 2);
    adamw_step(a, params, 2, &c, 1, false);
    for (int k = 0; k < GAIN; k++) {
        double sign = (g1[k] > 0) - (g1[k] < 0);
        assert_true(fabs((double)(before[k] - w1[k]) - sign * c.learning_rate) < 1e-6);
    }
    adamw_free(a);
}

static void threads_do_not_matter(void **state) {
    (void)state;
    static float alone[ROWS * COLS];
    for (int i = 0; i < 2; i++) {
        struct adamw *a = create(i ? three : one, params, 2);
        fill(1, true);
        for (uint64_t t = 0; t < 5; t++) {
            fill(100 + t, false);
            adamw_step(a, params, 2, &config, 1, false);
        }
        if (i == 0) memcpy(alone, w0, sizeof w0);
        adamw_free(a);
    }
    assert_memory_equal(alone, w0, sizeof w0);
}

/* Moments that do not fit are an error, not an abort. */
static void too_large_is_refused(void **state) {
    (void)state;
    struct param huge = {.name = "huge", .n = INT64_C(1) << 50, .nd = 1, .dim = {INT64_C(1) << 50}};
    struct adamw *a;
    assert_int_equal(adamw_create(one, &huge, 1, &a, &err), ST_MEMORY);
    assert_null(a);
    assert_non_null(strstr(err.msg, "moments"));
}

/* Saved in the middle and loaded into a fresh state, the run goes on with the same bits. */
static void save_and_load(void **state) {
    (void)state;
    static float straight[ROWS * COLS], middle[ROWS * COLS], middle1[GAIN];
    struct adamw *a = create(one, params, 2), *b = create(one, params, 2);
    fill(1, true);
    for (uint64_t t = 0; t < 10; t++) {
        if (t == 6) {
            memcpy(middle, w0, sizeof w0);
            memcpy(middle1, w1, sizeof w1);
            assert_int_equal(adamw_save(a, params, in_dir("state.safetensors"), &err), ST_OK);
        }
        fill(100 + t, false);
        adamw_step(a, params, 2, &config, 1, false);
    }
    memcpy(straight, w0, sizeof w0);
    memcpy(w0, middle, sizeof w0);
    memcpy(w1, middle1, sizeof w1);
    if (adamw_load(b, params, 2, in_dir("state.safetensors"), &err) != ST_OK) fail_msg("%s", err.msg);
    assert_int_equal(b->step, 6);
    for (uint64_t t = 6; t < 10; t++) {
        fill(100 + t, false);
        adamw_step(b, params, 2, &config, 1, false);
    }
    assert_memory_equal(straight, w0, sizeof w0);
    assert_memory_equal(a->m[1], b->m[1], sizeof w1);
    assert_memory_equal(a->v[0], b->v[0], sizeof w0);
    adamw_free(a);
    adamw_free(b);
}

static void refused(struct param *p, int n, const char *name, const char *want) {
    struct adamw *a = create(one, p, n);
    err = (struct err){0};
    assert_int_not_equal(adamw_load(a, p, n, in_dir(name), &err), ST_OK);
    if (!strstr(err.msg, want) || !strstr(err.msg, name)) fail_msg("expected \"%s\" in: %s", want, err.msg);
    adamw_free(a);
}

static void wrong_files_are_refused(void **state) {
    (void)state;
    struct adamw *a = create(one, params, 2);
    assert_int_equal(adamw_save(a, params, in_dir("good.safetensors"), &err), ST_OK);
    struct param other[2] = {params[0], params[1]};
    other[1].name = "other.weight";
    refused(other, 2, "good.safetensors", "other.weight");
    other[1] = params[1];
    other[0].dim[0] = COLS; /* the same size in another shape */
    other[0].dim[1] = ROWS;
    refused(other, 2, "good.safetensors", "layer.weight");
    refused(params, 2, "absent.safetensors", "absent");
    a->v[1][3] = NAN;
    assert_int_equal(adamw_save(a, params, in_dir("nan.safetensors"), &err), ST_OK);
    refused(params, 2, "nan.safetensors", "v.norm.weight");
    a->v[1][3] = 0;
    a->step = -1;
    assert_int_equal(adamw_save(a, params, in_dir("step.safetensors"), &err), ST_OK);
    refused(params, 2, "step.safetensors", "step");
    adamw_free(a);

    char *data;
    size_t n;
    assert_int_equal(fs_read(in_dir("good.safetensors"), 1 << 20, &data, &n, &err), ST_OK);
    assert_int_equal(fs_write_atomic(in_dir("short.safetensors"), data, n - 4, &err), ST_OK);
    free(data);
    refused(params, 2, "short.safetensors", "short.safetensors");
    assert_int_not_equal(adamw_save(a = create(one, params, 2), params, in_dir("no/where"), &err), ST_OK);
    adamw_free(a);
}

/* Three parts, whose borders lie inside of parameters and in a gap, beside the whole: weights after some steps, the
 * file, and what another cut reads of it. */
enum { PARTS = 3, SLAB = ROWS * COLS + 10 + GAIN + 3 };
static float slab_w[SLAB], slab_g[SLAB];
static struct param in_slab[] = {
    {.name = "layer.weight", .w = slab_w, .g = slab_g, .n = ROWS * COLS, .nd = 2, .dim = {ROWS, COLS}},
    {.name = "norm.weight",
     .w = slab_w + ROWS * COLS + 10,
     .g = slab_g + ROWS * COLS + 10,
     .n = GAIN,
     .nd = 1,
     .dim = {GAIN}},
};
static struct adamw *part[PARTS];
static int begun, asked; /* begins without an end; arrays so far */

static enum status parts_begin(void *ctx, bool reading, struct err *e) {
    (void)ctx, (void)reading, (void)e;
    begun++;
    asked = 0;
    return ST_OK;
}
static enum status parts_move(int i, int kind, float *host, bool put) {
    assert_int_equal(asked++, 2 * i + kind);
    for (int k = 0; k < PARTS; k++) {
        int64_t from, n;
        float *const x = adamw_part(part[k], &in_slab[i], kind, &from, &n);
        if (n > 0) memcpy(put ? x : host + from, put ? host + from : x, (size_t)n * sizeof *x);
    }
    return ST_OK;
}
static enum status parts_get(void *ctx, int i, int kind, float *host, struct err *e) {
    (void)ctx, (void)e;
    return parts_move(i, kind, host, false);
}
static enum status parts_put(void *ctx, int i, int kind, float *host, struct err *e) {
    (void)ctx, (void)e;
    return parts_move(i, kind, host, true);
}
static enum status parts_close(void *ctx, struct err *e) {
    (void)ctx, (void)e;
    begun--;
    return ST_OK;
}

static void cut(const int64_t *border) {
    const struct adamw_parts parts = {NULL, parts_begin, parts_get, parts_put, parts_close};
    for (int k = 0; k < PARTS; k++) {
        const int64_t at = border[k], n = border[k + 1] - at;
        if (adamw_create_part(one, 2, slab_g, at, n, &parts, &part[k], &err) != ST_OK) fail_msg("%s", err.msg);
        memcpy(part[k]->part_w, slab_w + at, (size_t)n * sizeof *slab_w);
    }
}

static void same_weights(void) {
    for (int k = 0; k < PARTS; k++)
        assert_memory_equal(part[k]->part_w, slab_w + part[k]->part_at, (size_t)part[k]->part_n * sizeof *slab_w);
}

static void steps(struct adamw *whole, int from, int to) {
    for (int t = from; t < to; t++) {
        fill(300 + (uint64_t)t, false);
        for (int i = 0; i < 2; i++) memcpy(in_slab[i].g, params[i].g, (size_t)params[i].n * sizeof(float));
        for (int k = 0; k < PARTS; k++) adamw_step(part[k], in_slab, 2, &config, 0.7, false);
        adamw_step(whole, in_slab, 2, &config, 0.7, false);
        same_weights();
    }
}

static void parts_make_the_whole(void **state) {
    (void)state;
    static const int64_t first[] = {0, 1024, ROWS * COLS + 4, SLAB}, second[] = {0, 0, ROWS * COLS + 20, SLAB};
    fill(7, true);
    for (int i = 0; i < 2; i++) memcpy(in_slab[i].w, params[i].w, (size_t)params[i].n * sizeof(float));
    struct adamw *whole = create(one, in_slab, 2);
    cut(first);
    steps(whole, 0, 4);
    assert_int_equal(adamw_save(whole, in_slab, in_dir("whole.safetensors"), &err), ST_OK);
    assert_int_equal(adamw_save(part[0], in_slab, in_dir("parts.safetensors"), &err), ST_OK);
    char *a, *b;
    size_t n, m;
    assert_int_equal(fs_read(in_dir("whole.safetensors"), 1 << 20, &a, &n, &err), ST_OK);
    assert_int_equal(fs_read(in_dir("parts.safetensors"), 1 << 20, &b, &m, &err), ST_OK);
    assert_true(n == m && memcmp(a, b, n) == 0);
    free(a);
    free(b);
    for (int k = 0; k < PARTS; k++) adamw_free(part[k]);
    cut(second);
    assert_int_equal(adamw_load(part[0], in_slab, 2, in_dir("parts.safetensors"), &err), ST_OK);
    for (int k = 1; k < PARTS; k++) part[k]->step = part[0]->step;
    steps(whole, 4, 7);
    assert_int_not_equal(adamw_load(part[0], in_slab, 2, in_dir("absent"), &err), ST_OK);
    assert_int_not_equal(adamw_save(part[0], in_slab, in_dir("no/where"), &err), ST_OK);
    assert_int_equal(begun, 0);
    for (int k = 0; k < PARTS; k++) adamw_free(part[k]);
    adamw_free(whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_double_reference), cmocka_unit_test(runs_in_a_slab),
        cmocka_unit_test(first_step_by_hand),       cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(too_large_is_refused),     cmocka_unit_test(save_and_load),
        cmocka_unit_test(wrong_files_are_refused),  cmocka_unit_test(parts_make_the_whole),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
