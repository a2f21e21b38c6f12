/* The catalogue of cheats (tests/cheats) and the answers that must pass (tests/honest), judged for real: no cheat may
 * be accepted, no honest answer refused. Each row of expected.tsv: file, problem, outcomes (any of them; correct<R asks
 * for a ratio below R as well), what it shows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/str.h"
#include "problem/problem.h"
#include "verify/verify.h"

enum { MAX_ROWS = 200 };

static struct row {
    char file[80], problem[40], outcomes[160];
    char *source;
    struct problem_set set;
} rows[MAX_ROWS];
static struct verify_item items[MAX_ROWS];

/* "a|b|correct<1.5" holds for this verdict. */
static bool expected(const char *outcomes, const struct verdict *v) {
    char copy[160];
    snprintf(copy, sizeof copy, "%s", outcomes);
    char *rest = copy;
    for (char *one; (one = strsep(&rest, "|"));) {
        char *below = strchr(one, '<');
        double limit = 0;
        if (below) {
            *below = 0;
            if (!parse_f64(below + 1, &limit)) return false;
        }
        if (strcmp(one, outcome_name(v->outcome)) == 0 && (!below || v->speedup < limit)) return true;
    }
    return false;
}

/* A ratio or a deadline may be others' doing on a busy machine, but not each time that it is looked at. */
static bool time_decides(const char *outcomes, const struct verdict *v) {
    return v->outcome == OUTCOME_TIMEOUT || (v->outcome == OUTCOME_CORRECT && strstr(outcomes, "correct<"));
}

static size_t read_rows(const char *dir, const char *suffix) {
    char path[600], *text;
    struct err e = {0};
    size_t n = 0, len;
    snprintf(path, sizeof path, "%s/tests/%s/expected.tsv", fs_home(), dir);
    if (fs_read(path, 1 << 20, &text, &len, &e) != ST_OK) fail_msg("%s", e.msg);
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n"));) {
        struct row *r = &rows[n];
        if (*line == '#' || !*line) continue;
        assert_int_equal(sscanf(line, "%79[^\t]\t%39[^\t]\t%159[^\t]", r->file, r->problem, r->outcomes), 3);
        if (!str_has_suffix(r->file, suffix)) continue;
        assert_true(n < MAX_ROWS - 1);
        snprintf(path, sizeof path, "%s/tests/%s/%s", fs_home(), dir, r->file);
        if (fs_read(path, 1 << 20, &r->source, &len, &e) != ST_OK) fail_msg("%s", e.msg);
        snprintf(path, sizeof path, "%s/tests/cheats/problems/%s.py", fs_home(), r->problem);
        if (problem_set_load(path, &r->set, &e) != ST_OK) fail_msg("%s", e.msg);
        items[n] = (struct verify_item){.problem = &r->set.items[0], .source = r->source};
        n++;
    }
    free(text);
    return n;
}

static void judge_folder(const char *dir, enum verify_backend backend) {
    struct verify_options o = {.backend = backend,
                               .threads = 2,
                               .measure = true,
                               .allow_weaker = false,
                               .seed = 20261120,
                               .run_timeout_s = 3,
                               .timed_calls = 10,
                               .timing_budget_s = 0.3,
                               .memory_bytes = 512 << 20};
    if (backend == BACKEND_triton || backend == BACKEND_cuda_native) o.run_timeout_s = 20; /* first calls compile */
    struct verifier *v = NULL;
    struct err e = {0};
    if (verifier_open(&o, &v, &e) != ST_OK) {
        printf("skipped: %s\n", e.msg);
        skip();
    }
    size_t n = read_rows(dir, backend == BACKEND_c ? ".c" : backend == BACKEND_cuda_native ? ".cu" : ".py"), wrong = 0;
    double t0 = clock_now_s();
    /* A few at a time, told as they are judged: a GPU is not always lent for long enough. */
    const size_t step = backend == BACKEND_triton || backend == BACKEND_cuda_native ? 6 : n;
    for (size_t i = 0; i < n; i++) {
        const struct verdict *d = &items[i].verdict;
        if (i % step == 0) {
            if (verify_batch(v, items + i, n - i < step ? n - i : step, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
            if (step < n) printf("%zu of %zu after %.1f s\n", i + step < n ? i + step : n, n, clock_now_s() - t0);
            fflush(stdout);
        }
        for (int k = 0; k < 2 && !expected(rows[i].outcomes, d) && time_decides(rows[i].outcomes, d); k++) {
            printf("%s: %s, ratio %.2f: once more\n", rows[i].file, outcome_name(d->outcome), d->speedup);
            /* One more empty line: equal answers are judged once. */
            size_t len = strlen(rows[i].source);
            rows[i].source = xrealloc(rows[i].source, len + 2);
            memcpy(rows[i].source + len, "\n", 2);
            items[i].source = rows[i].source;
            if (verify_batch(v, items + i, 1, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
        }
        if (!expected(rows[i].outcomes, d)) {
            printf("%s (%s): %s, expected %s; ratio %.2f; %s\n", rows[i].file, rows[i].problem,
                   outcome_name(d->outcome), rows[i].outcomes, d->speedup, d->message);
            wrong++;
        } else if (step < n)
            printf("%s (%s): %s, ratio %.2f\n", rows[i].file, rows[i].problem, outcome_name(d->outcome), d->speedup);
        free(rows[i].source);
        problem_set_free(&rows[i].set);
    }
    printf("%s, %s: %zu answers, %zu judged otherwise, %.1f s\n", dir, backend_name(backend), n, wrong,
           clock_now_s() - t0);
    verifier_close(v);
    assert_int_equal(wrong, 0);
    assert_true(n > 0);
}

static void cheats_torch_cpu(void **state) {
    (void)state;
    judge_folder("cheats", BACKEND_torch_cpu);
}

static void cheats_c(void **state) {
    (void)state;
    judge_folder("cheats/c", BACKEND_c);
}

static void honest_torch_cpu(void **state) {
    (void)state;
    judge_folder("honest", BACKEND_torch_cpu);
}

/* Needs a GPU, which the machines that run all tests have not: asked for by KERNELRL_TEST_GPU. */
static void on_gpu(const char *dir, enum verify_backend backend) {
    const char *wanted = getenv("KERNELRL_TEST_GPU");
    if (!wanted || !*wanted) {
        printf("skipped: KERNELRL_TEST_GPU is not set\n");
        skip();
    }
    judge_folder(dir, backend);
}

static void cheats_triton(void **state) {
    (void)state;
    on_gpu("cheats/gpu", BACKEND_triton);
}

static void honest_triton(void **state) {
    (void)state;
    on_gpu("honest/gpu", BACKEND_triton);
}

static void cheats_native(void **state) {
    (void)state;
    on_gpu("cheats/native", BACKEND_cuda_native);
}

static void honest_native(void **state) {
    (void)state;
    on_gpu("honest/native", BACKEND_cuda_native);
}

/* An argument: only the tests whose names match it (a pattern with * and ?). */
int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cheats_torch_cpu), cmocka_unit_test(cheats_c),      cmocka_unit_test(honest_torch_cpu),
        cmocka_unit_test(cheats_triton),    cmocka_unit_test(honest_triton), cmocka_unit_test(cheats_native),
        cmocka_unit_test(honest_native),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
