/* The catalogue of cheats (tests/cheats) and the answers that must pass (tests/honest), judged for real: no cheat may
 * be accepted, no honest answer refused. Each row of expected.tsv: file, problem, outcomes (any of them; correct<R asks
 * for a ratio below R as well), what it shows. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/home.h"
#include "base/str.h"
#include "problem/problem.h"
#include "verify/verify.h"

enum { MAX_ROWS = 300, MAX_TALLIES = 600, MAX_BUSY = 64 };

static struct row {
    char file[80], problem[40], outcomes[160];
    char *source;
    struct problem_set set;
} rows[MAX_ROWS];
static struct verify_item items[MAX_ROWS];
/* Of a folder's rows, this part of so many. */
static int64_t part = 1, parts = 1;
/* How often each folder is judged, with other secret inputs each time; beside so many processes that are busy. */
static int64_t repeats = 1, busy = 0, repeat;

/* What became of a row in all repetitions. */
static struct tally {
    char file[80], problem[40];
    int judged, unexpected, outcome[OUTCOME_INFRASTRUCTURE + 1];
    double fastest; /* ratio of those that were found correct */
} tallies[MAX_TALLIES];
static size_t n_tallies;

static void note(const struct row *r, const struct verdict *v, bool good) {
    size_t i = 0;
    while (i < n_tallies && (strcmp(tallies[i].file, r->file) != 0 || strcmp(tallies[i].problem, r->problem) != 0)) i++;
    struct tally *t = &tallies[i];
    assert_true(i < MAX_TALLIES);
    if (i == n_tallies) {
        memcpy(t->file, r->file, sizeof t->file);
        memcpy(t->problem, r->problem, sizeof t->problem);
        n_tallies++;
    }
    t->judged++;
    t->unexpected += !good;
    t->outcome[v->outcome]++;
    if (v->outcome == OUTCOME_CORRECT && v->speedup > t->fastest) t->fastest = v->speedup;
}

/* The table of `make test-cheats`. */
static void print_tallies(void) {
    for (size_t i = 0; i < n_tallies && repeats > 1; i++) {
        const struct tally *t = &tallies[i];
        printf("%-32s %-14s %3d judged, %d unexpected:", t->file, t->problem, t->judged, t->unexpected);
        for (int o = 0; o <= OUTCOME_INFRASTRUCTURE; o++)
            if (t->outcome[o]) printf(" %s %d", outcome_name((enum outcome)o), t->outcome[o]);
        if (t->fastest > 0) printf(", ratio at most %.2f", t->fastest);
        printf("\n");
    }
    n_tallies = 0;
    memset(tallies, 0, sizeof tallies);
}

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

/* A deadline that was missed may be others' doing on a busy machine. So may times that lie far apart, and a ratio. */
static bool is_late(const struct verdict *v) { return v->outcome == OUTCOME_TIMEOUT || v->outcome == OUTCOME_UNSTABLE; }
static bool too_fast(const char *outcomes, const struct verdict *v) {
    return v->outcome == OUTCOME_CORRECT && strstr(outcomes, "correct<");
}

/* One more look at an answer. The caller frees r->source, as before. */
static void look_again(struct verifier *v, struct row *r, struct verify_item *it) {
    struct err e = {0};
    size_t len = strlen(r->source);
    printf("%s: %s, ratio %.2f: once more\n", r->file, outcome_name(it->verdict.outcome), it->verdict.speedup);
    /* One more empty line: equal answers are judged once. */
    r->source = xrealloc(r->source, len + 2);
    memcpy(r->source + len, "\n", 2);
    it->source = r->source;
    if (verify_batch(v, it, 1, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
}

/* What is judged, row by row: a GPU is not always lent until the last one. */
struct told {
    size_t n, of;
    double begun_s;
};

static void tell(void *ctx, struct verify_item *it) {
    struct told *t = ctx;
    const struct row *r = &rows[it - items];
    const struct verdict *v = &it->verdict;
    printf("%3zu of %zu, %5.1f s  %-28s %-12s %-18s ratio %4.2f  %s  compile %.1f, tests %.1f, timing %.1f s\n", ++t->n,
           t->of, clock_now_s() - t->begun_s, r->file, r->problem, outcome_name(v->outcome), v->speedup,
           expected(r->outcomes, v) ? "as expected" : "NOT EXPECTED", v->compile_s, v->run_s, v->time_s);
    fflush(stdout);
}

/* Whether an answer may show only in some of the clock's calls, few of whose outputs are looked at. */
static bool shows_late(const struct row *r) { return strstr(r->outcomes, "unstable") != NULL; }

/* All rows, or those alone that show late, or not. */
enum which { ALL, SOON, LATE };
static size_t read_rows(const char *dir, const char *suffix, enum which which) {
    char path[600], *text;
    struct err e = {0};
    size_t n = 0, len, seen = 0;
    snprintf(path, sizeof path, "%s/tests/%s/expected.tsv", home_dir(), dir);
    if (fs_read(path, 1 << 20, &text, &len, &e) != ST_OK) fail_msg("%s", e.msg);
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n"));) {
        struct row *r = &rows[n];
        if (*line == '#' || !*line) continue;
        assert_int_equal(sscanf(line, "%79[^\t]\t%39[^\t]\t%159[^\t]", r->file, r->problem, r->outcomes), 3);
        if (!str_has_suffix(r->file, suffix) || (which != ALL && shows_late(r) != (which == LATE))) continue;
        if ((int64_t)seen++ % parts != part - 1) continue;
        assert_true(n < MAX_ROWS - 1);
        snprintf(path, sizeof path, "%s/tests/%s/%s", home_dir(), dir, r->file);
        if (fs_read(path, 1 << 20, &r->source, &len, &e) != ST_OK) fail_msg("%s", e.msg);
        snprintf(path, sizeof path, "%s/tests/cheats/problems/%s.py", home_dir(), r->problem);
        if (problem_set_load(path, &r->set, &e) != ST_OK) fail_msg("%s", e.msg);
        items[n] = (struct verify_item){.problem = &r->set.items[0], .source = r->source};
        n++;
    }
    free(text);
    return n;
}

static void judge_rows(const char *dir, enum verify_backend backend, enum which which) {
    /* One thread: of two, on a machine with other work, the scheduler may put one side's on one processor and the
     * other's on two, for as long as both live; that reads as 0.6 or 1.7. */
    const bool on_cpu = backend == BACKEND_torch_cpu || backend == BACKEND_c;
    struct verify_options o = {.backend = backend,
                               .threads = on_cpu ? 1 : 2,
                               .measure = true,
                               .allow_weaker = false,
                               .seed = 20261120 + (uint64_t)repeat,
                               .run_timeout_s = 3,
                               .timed_calls = which == LATE ? 60 : 10,
                               .timing_budget_s = which == LATE ? 3 : 0.3,
                               .memory_bytes = 512 << 20};
    if (backend == BACKEND_triton || backend == BACKEND_cuda_native) o.run_timeout_s = 20; /* first calls compile */
    struct verifier *v = NULL;
    struct err e = {0};
    size_t n = read_rows(dir, backend == BACKEND_c ? ".c" : backend == BACKEND_cuda_native ? ".cu" : ".py", which);
    size_t wrong = 0, fast_once = 0, late_once = 0; /* judged otherwise; needed more than a look, and why */
    if (n == 0 && which == LATE) return;
    if (verifier_open(&o, &v, &e) != ST_OK) {
        printf("skipped: %s\n", e.msg);
        skip();
    }
    double t0 = clock_now_s();
    struct told told = {.of = n, .begun_s = t0};
    for (size_t i = 0; i < n && backend != BACKEND_torch_cpu; i++) {
        items[i].judged = tell;
        items[i].judged_ctx = &told;
    }
    if (verify_batch(v, items, n, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
    for (size_t i = 0; i < n; i++) {
        const struct verdict *d = &items[i].verdict;
        items[i].judged = NULL;
        /* One verdict that time has decided wrongly is made up for by two right ones in a row, no less: a cheat that is
         * accepted every other time is accepted. */
        const bool ratio = too_fast(rows[i].outcomes, d), late = is_late(d);
        if (!expected(rows[i].outcomes, d) && (ratio || late)) {
            fast_once += ratio;
            late_once += late;
            look_again(v, &rows[i], &items[i]);
            if (expected(rows[i].outcomes, d)) look_again(v, &rows[i], &items[i]);
        }
        if (!expected(rows[i].outcomes, d)) {
            printf("%s (%s): %s, expected %s; ratio %.2f; %s\n", rows[i].file, rows[i].problem,
                   outcome_name(d->outcome), rows[i].outcomes, d->speedup, d->message);
            wrong++;
        }
        note(&rows[i], d, expected(rows[i].outcomes, d));
        free(rows[i].source);
        problem_set_free(&rows[i].set);
    }
    printf("%s, %s: %zu answers, %zu judged otherwise; at first %zu too fast, %zu late or unstable; %.1f s\n", dir,
           backend_name(backend), n, wrong, fast_once, late_once, clock_now_s() - t0);
    verifier_close(v);
    if (repeats == 1) assert_true(fast_once <= 1); /* of a folder: more are no accident */
    assert_true(n > 0);
}

static void judge_once(const char *dir, enum verify_backend backend) {
    if (backend != BACKEND_torch_cpu && backend != BACKEND_c) {
        judge_rows(dir, backend, ALL);
        return;
    }
    judge_rows(dir, backend, SOON);
    judge_rows(dir, backend, LATE);
}

static void judge_folder(const char *dir, enum verify_backend backend) {
    pid_t others[MAX_BUSY];
    for (int64_t i = 0; i < busy; i++) {
        others[i] = fork();
        if (others[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (volatile unsigned n = 0;; n++) {}
        }
    }
    size_t unexpected = 0;
    for (repeat = 0; repeat < repeats; repeat++) judge_once(dir, backend);
    for (int64_t i = 0; i < busy; i++) {
        kill(others[i], SIGKILL);
        waitpid(others[i], NULL, 0);
    }
    for (size_t i = 0; i < n_tallies; i++) unexpected += (size_t)tallies[i].unexpected;
    print_tallies();
    assert_int_equal(unexpected, 0);
}

static void cheats_torch_cpu(void **state) {
    (void)state;
    judge_folder("cheats", BACKEND_torch_cpu);
}

static void cheats_c(void **state) {
    (void)state;
    judge_folder("cheats/c", BACKEND_c);
}

static void honest_c(void **state) {
    (void)state;
    judge_folder("honest/c", BACKEND_c);
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

static bool read_part(char *text) {
    char *of = strchr(text, '/');
    if (of) *of++ = 0;
    return of && parse_i64(text, &part) && parse_i64(of, &parts) && part >= 1 && part <= parts;
}

/* cheats_test [PATTERN] [part=1/2] [repeat=N] [busy=N]: the tests whose names match the pattern (with * and ?); the
 * first of two parts of the rows; each folder so often, with a table behind it; beside so many processes that are busy.
 */
int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        bool good = true;
        if (str_has_prefix(argv[i], "part="))
            good = read_part(argv[i] + 5);
        else if (str_has_prefix(argv[i], "repeat="))
            good = parse_i64(argv[i] + 7, &repeats) && repeats >= 1;
        else if (str_has_prefix(argv[i], "busy="))
            good = parse_i64(argv[i] + 5, &busy) && busy >= 0 && busy <= MAX_BUSY;
        else
            cmocka_set_test_filter(argv[i]);
        if (!good) {
            fprintf(stderr, "cheats_test: %s: see the end of src/verify/cheats_test.c\n", argv[i]);
            return 2;
        }
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cheats_torch_cpu), cmocka_unit_test(cheats_c),      cmocka_unit_test(honest_torch_cpu),
        cmocka_unit_test(cheats_triton),    cmocka_unit_test(honest_triton), cmocka_unit_test(cheats_native),
        cmocka_unit_test(honest_native),    cmocka_unit_test(honest_c),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
