/* The whole verifier on the table of hostile, broken and good answers in tests/verify. One batch: each gets its own
 * outcome and none disturbs the next. Needs PyTorch and bubblewrap; says so and skips where they are missing. */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/home.h"
#include "base/str.h"
#include "verify/jail/time_account.h"
#include "verify/native/reference.h"
#include "verify/timing.h"
#include "verify/verify.h"

static struct verifier *verifier;
static char skip_reason[600];

static char *read_fixture(const char *name) {
    char path[700], *text;
    struct err e = {0};
    snprintf(path, sizeof path, "%s/tests/verify/%s", home_dir(), name);
    if (fs_read(path, 1 << 20, &text, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
    return text;
}

static int open_verifier(void **state) {
    (void)state;
    struct err e = {0};
    struct verify_options o = {
        .run_timeout_s = 2, .compile_timeout_s = 8, .threads = 2, .seed = 42, .measure = true, .memory_bytes = 1 << 30};
    enum status st = verifier_open(&o, &verifier, &e);
    if (st == ST_WORKER || st == ST_SANDBOX)
        snprintf(skip_reason, sizeof skip_reason, "%.590s", e.msg);
    else if (st != ST_OK)
        fail_msg("%s", e.msg);
    return 0;
}

static int close_verifier(void **state) {
    (void)state;
    verifier_close(verifier);
    return 0;
}

static void need_verifier(void) {
    if (verifier) return;
    printf("skipped: %s\n", skip_reason);
    skip();
}

static struct verdict judge(const struct problem *p, const char *source) {
    struct err e = {0};
    struct verify_item it = {.problem = p, .source = source};
    if (verify_batch(verifier, &it, 1, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
    return it.verdict;
}

enum { MAX_ANSWERS = 100 };

/* Whether the list "a|b" has the word. */
static bool among(const char *list, const char *word) {
    const size_t n = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += n)
        if ((at == list || at[-1] == '|') && (at[n] == 0 || at[n] == '|')) return true;
    return false;
}

static void test_table(void **state) {
    (void)state;
    need_verifier();
    char *table = read_fixture("expected.tsv"), *code = read_fixture("relu.py");
    struct problem problem = {.key = "relu", .name = "relu", .code = code};
    static struct verify_item items[MAX_ANSWERS];
    static char names[MAX_ANSWERS][64], expected[MAX_ANSWERS][64];
    size_t n = 0;
    for (char *line = table; *line;) {
        char *end = line + strcspn(line, "\n"), answer[100];
        if (*line != '#' && sscanf(line, "%63s %63s", names[n], expected[n]) == 2) {
            assert_true(n < MAX_ANSWERS);
            snprintf(answer, sizeof answer, "answers/%.63s.c", names[n]);
            items[n] = (struct verify_item){.problem = &problem, .source = read_fixture(answer)};
            n++;
        }
        line = end + (*end == '\n');
    }
    assert_true(n > 40);
    struct err e = {0};
    if (verify_batch(verifier, items, n, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
    int wrong = 0;
    for (size_t i = 0; i < n; i++) {
        const struct verdict *v = &items[i].verdict;
        if (!among(expected[i], outcome_name(v->outcome))) {
            wrong++;
            printf("%s: expected %s, got %s: %s\n", names[i], expected[i], outcome_name(v->outcome), v->message);
        }
        if (v->outcome != OUTCOME_CORRECT)
            assert_true(v->message[0] != 0);
        else
            assert_true(v->speedup > 0 && v->speedup_low <= v->speedup && v->speedup <= v->speedup_high);
        assert_true(v->outcome == OUTCOME_CORRECT || v->outcome == OUTCOME_UNSTABLE || v->tests_passed < 5);
        free((void *)(uintptr_t)items[i].source);
    }
    free(table);
    free(code);
    assert_int_equal(wrong, 0);
}

/* The tests that were passed before a crash count. */
static void test_partial_credit(void **state) {
    (void)state;
    need_verifier();
    char *code = read_fixture("relu.py");
    const struct problem p = {.key = "relu", .name = "relu", .code = code};
    const struct verdict v = judge(&p, "void kernel(const float *restrict x, float *restrict out) {\n"
                                       "    static int calls;\n"
                                       "    if (++calls == 3) *(volatile int *)8 = 0;\n"
                                       "    for (int i = 0; i < 256 * 1024; i++) {\n"
                                       "        float y = x[i] - 0.5f;\n"
                                       "        out[i] = y > 0 ? y : 0;\n"
                                       "    }\n"
                                       "}\n");
    assert_int_equal(v.outcome, OUTCOME_CRASH);
    assert_true(v.tests_passed >= 1 && v.tests_passed < v.tests_total);
    free(code);
}

static void test_parameters_and_buffers(void **state) {
    (void)state;
    need_verifier();
    char *code = read_fixture("batchnorm.py"), *good = read_fixture("batchnorm_good.c"),
         *frozen = read_fixture("batchnorm_frozen.c"), *plain = read_fixture("batchnorm_plain.c");
    struct problem p = {.key = "batchnorm", .name = "batchnorm", .code = code};
    const struct spec *spec;
    struct err e = {0};
    if (verifier_spec(verifier, &p, &spec, &e) != ST_OK) fail_msg("%s", e.msg);
    struct str s = STR_INIT;
    spec_render_prototype(spec, false, false, &s);
    assert_string_equal(s.p,
                        "void kernel(const float *restrict x, const float *restrict bn_weight, const float *restrict "
                        "bn_bias, float *restrict bn_running_mean, float *restrict bn_running_var, int64_t *restrict "
                        "bn_num_batches_tracked, float *restrict out);\n");
    str_free(&s);
    struct verdict v = judge(&p, good);
    if (v.outcome != OUTCOME_CORRECT) fail_msg("%s: %s", outcome_name(v.outcome), v.message);
    /* Forgets the running statistics: the outputs are right, the buffers are not. */
    v = judge(&p, frozen);
    assert_int_equal(v.outcome, OUTCOME_WRONG_OUTPUT);
    assert_non_null(strstr(v.message, "bn_running_mean"));
    /* Right only while all of scale is 1 and of shift 0, which is so in no test. */
    v = judge(&p, plain);
    assert_int_equal(v.outcome, OUTCOME_WRONG_OUTPUT);
    assert_int_equal(v.tests_passed, 0);
    free(code);
    free(good);
    free(frozen);
    free(plain);
}

static void test_prepare_scalars_and_tuples(void **state) {
    (void)state;
    need_verifier();
    char *code = read_fixture("scaled_linear.py"), *good = read_fixture("scaled_linear_prepared.c");
    struct problem p = {.key = "scaled_linear", .name = "scaled_linear", .code = code};
    struct verdict v = judge(&p, good);
    if (v.outcome != OUTCOME_CORRECT) fail_msg("%s: %s", outcome_name(v.outcome), v.message);
    assert_true(v.prepare_ms > 0);
    free(code);
    free(good);
}

static void test_broken_problems(void **state) {
    (void)state;
    need_verifier();
    static const struct {
        const char *code, *message;
    } broken[] = {
        {"import torch\nclass Model(torch.nn.Module):\n  def forward(self, x):\n    return nope(x)\n"
         "def get_inputs(): return [torch.rand(3)]\ndef get_init_inputs(): return []\n",
         "line 4"},
        {"import torch\nclass Model(torch.nn.Module):\n  def forward(self, x):\n    return torch.dropout(x, 0.5, "
         "True)\n"
         "def get_inputs(): return [torch.rand(300)]\n",
         "random"},
        {"import torch\nclass Model(torch.nn.Module):\n  def forward(self, x):\n    return x\n"
         "def get_inputs(): return ['text']\n",
         "input of type str"},
        {"def get_inputs(): return []\n", "defines no Model"},
        {"this is no python\n", "SyntaxError"},
    };
    for (size_t i = 0; i < ARRAY_LEN(broken); i++) {
        struct problem p = {.key = "broken", .name = "broken", .code = broken[i].code};
        struct verdict v = judge(&p, "void kernel(const float *restrict x, float *restrict out) {}");
        assert_int_equal(v.outcome, OUTCOME_PROBLEM_ERROR);
        if (!strstr(v.message, broken[i].message)) fail_msg("%s lacks %s", v.message, broken[i].message);
        const struct spec *spec;
        struct err e = {0};
        assert_int_equal(verifier_spec(verifier, &p, &spec, &e), ST_INVALID);
    }
}

static void test_dedup_cache_and_cancel(void **state) {
    (void)state;
    need_verifier();
    char *code = read_fixture("relu.py");
    struct problem p = {.key = "relu", .name = "relu", .code = code};
    const char *source = "void kernel(const float *restrict x, float *restrict out) { out[0] = 1; /* dedup */ }";
    struct verify_item items[3] = {
        {.problem = &p, .source = source}, {.problem = &p, .source = NULL}, {.problem = &p, .source = source}};
    struct err e = {0};
    volatile bool cancel = true;
    assert_int_equal(verify_batch(verifier, items, 3, &cancel, &e), ST_CANCELLED);
    assert_int_equal(verify_batch(verifier, items, 3, NULL, &e), ST_OK);
    assert_int_equal(items[0].verdict.outcome, OUTCOME_UNWRITTEN);
    assert_false(items[0].verdict.cached);
    assert_int_equal(items[1].verdict.outcome, OUTCOME_NO_KERNEL);
    assert_int_equal(items[2].verdict.outcome, OUTCOME_UNWRITTEN);
    assert_true(items[2].verdict.cached);
    CLEANUP_STR struct str before = STR_INIT, spent = STR_INIT;
    spent_take(&before);
    const clock_t from = clock();
    assert_true(judge(&p, source).cached);
    assert_true((double)(clock() - from) / CLOCKS_PER_SEC < 0.05);
    spent_take(&spent);
    assert_string_equal(str_c(&spent), "{}"); /* nobody was asked, no process was started */
    free(code);
}

/* A right answer and a wrong one of the same XXH3-128, which was the key of the caches: the verdict of one is not the
 * other's, nor is its object. Two comments hold the upper halves of secret numbers, which makes the products of XXH3 0;
 * only sums are left of what stands in front of them: '0' and 'b' are as much as '1' and 'a'. */
static void test_colliding_answers(void **state) {
    (void)state;
    need_verifier();
    static const char begin[] = "/*", behind[] = "*/\nenum { WRONG = ", open_a[] = "0/*.",
                      secret_a[] = "\x23\xa4\x4b\xbe", middle[] = "*/ }; /*", open_b[] = "b...",
                      secret_b[] = "\xf7\x21\xad\x1c";
    char *code = read_fixture("relu.py");
    struct problem p = {.key = "relu", .name = "relu", .code = code};
    char dir[] = "/tmp/kernelrl_verify_XXXXXX";
    assert_non_null(mkdtemp(dir));
    struct err e = {0};
    struct verifier *v;
    const struct verify_options o = {.run_timeout_s = 5, .threads = 2, .seed = 42, .cache_dir = dir};
    assert_int_equal(verifier_open(&o, &v, &e), ST_OK);
    struct digest key[2];
    for (int wrong = 0; wrong < 2; wrong++) {
        CLEANUP_STR struct str s = STR_INIT;
        const size_t before = strlen(code) + 1; /* of what the key is made, in front of the source */
        str_adds(&s, begin);
        while ((before + s.len + strlen(behind)) % 1024 != 0) str_addc(&s, '.');
        str_adds(&s, behind);
        str_adds(&s, open_a);
        str_adds(&s, secret_a);
        s.p[s.len - 8] = wrong ? '1' : '0';
        str_adds(&s, middle);
        while ((before + s.len) % 1024 != 64) str_addc(&s, '.');
        str_adds(&s, open_b);
        str_adds(&s, secret_b);
        s.p[s.len - 8] = wrong ? 'a' : 'b';
        str_adds(&s, "*/\nvoid kernel(const float *restrict x, float *restrict out) {\n"
                     "    for (long i = 0; i < X_N; i++) out[i] = (x[i] > 0.5f ? x[i] - 0.5f : 0.0f) + WRONG;\n}\n");
        for (int i = 0; i < 20; i++) str_adds(&s, "/* long enough that the above is not the end */\n");
        key[wrong] = verify_key(&p, str_c(&s));
        /* The XXH3-128 of both, with relu.py as it is. */
        assert_true(verify_key_matches("0fa14e02fc54b26f0e8ac9e0a0a009e3", &p, str_c(&s)));
        struct verify_item it = {.problem = &p, .source = str_c(&s)};
        for (int again = 0; again < 2; again++) {
            assert_int_equal(verify_batch(v, &it, 1, NULL, &e), ST_OK);
            assert_int_equal(it.verdict.outcome, wrong ? OUTCOME_WRONG_OUTPUT : OUTCOME_CORRECT);
            assert_int_equal(it.verdict.cached, again);
        }
    }
    assert_false(digest_equal(&key[0], &key[1]));
    verifier_close(v);
    assert_int_equal(fs_remove(dir, &e), ST_OK);
    free(code);
}

/* The clock: an answer that waits a millisecond takes a millisecond. */
static void test_clock(void **state) {
    (void)state;
    need_verifier();
    char *code = read_fixture("relu.py");
    struct problem p = {.key = "relu", .name = "relu", .code = code};
    struct verdict v = judge(&p, "struct t { long s, n; };\nint nanosleep(const struct t *, struct t *);\n"
                                 "void kernel(const float *restrict x, float *restrict out) {\n"
                                 "  struct t d = {0, 5000000};\n  nanosleep(&d, 0);\n"
                                 "  for (long i = 0; i < X_N; i++) out[i] = x[i] > 0.5f ? x[i] - 0.5f : 0.0f;\n}\n");
    if (v.outcome != OUTCOME_CORRECT) fail_msg("%s: %s", outcome_name(v.outcome), v.message);
    assert_true(v.kernel_ms >= 5 && v.kernel_ms < 20);
    free(code);
}

/* A batch of answers to one problem, timed in turns: each keeps its own time, and one that goes wrong in its second
 * process takes nobody along. */
static void test_turns(void **state) {
    (void)state;
    need_verifier();
    static const char body[] = "for (long i = 0; i < X_N; i++) out[i] = x[i] > 0.5f ? x[i] - 0.5f : 0.0f;\n}\n";
    static const char head[] = "struct t { long s, n; };\nint nanosleep(const struct t *, struct t *);\n"
                               "void kernel(const float *restrict x, float *restrict out) {\n";
    static const char *const extra[] = {"",
                                        "struct t d = {0, 1000000}; nanosleep(&d, 0);\n",
                                        "long k = 0;\n",
                                        "struct t d = {0, 3000000}; nanosleep(&d, 0);\n",
                                        "struct t d = {0, 20000000}; nanosleep(&d, 0);\n",
                                        "static int n; if (++n == 6) out[7] = 1; if (n == 6) return;\n"};
    static const double at_least_ms[] = {0, 1, 0, 3, 20, 0}, slowest_ms = 20;
    enum { N = ARRAY_LEN(extra) };
    char *code = read_fixture("relu.py");
    struct problem p = {.key = "relu", .name = "relu", .code = code};
    struct verify_item items[N];
    struct str sources[N];
    for (int i = 0; i < N; i++) {
        sources[i] = STR_INIT;
        str_addf(&sources[i], "%s%s%s", head, extra[i], body);
        items[i] = (struct verify_item){.problem = &p, .source = sources[i].p};
    }
    struct err e = {0};
    if (verify_batch(verifier, items, N, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
    for (int i = 0; i < N; i++) {
        const struct verdict *v = &items[i].verdict;
        if (i == N - 1) {
            /* five tests, and wrong in the sixth call */
            if (v->outcome != OUTCOME_UNSTABLE) fail_msg("%s: %s", outcome_name(v->outcome), v->message);
        } else {
            if (v->outcome != OUTCOME_CORRECT) fail_msg("%d: %s: %s", i, outcome_name(v->outcome), v->message);
            /* a busy machine makes any of them slower, but none takes the time of the one that sleeps longest */
            if (v->kernel_ms < at_least_ms[i] || (at_least_ms[i] < slowest_ms && v->kernel_ms >= slowest_ms))
                fail_msg("%d: %g ms", i, v->kernel_ms);
        }
        str_free(&sources[i]);
    }
    free(code);
}

/* ---- a reference that is slowed while an answer lives ---- */

/* Name and parent of a process. False: there is none. */
static bool look_at(long pid, char name[32], long *parent) {
    char path[64], text[400];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    const char *begin = strchr(text, '('), *end = strrchr(text, ')');
    if (!begin || !end || sscanf(end + 1, " %*c %ld", parent) != 1) return false;
    snprintf(name, 32, "%.*s", (int)(end - begin - 1), begin + 1);
    return true;
}

/* Whether an answer lives: a process called "runner" that this one has started, or one that it has started has, and so
 * on. */
static bool answer_lives(void) {
    bool lives = false;
    long up;
    char name[32];
    DIR *all = opendir("/proc");
    for (const struct dirent *one; all && !lives && (one = readdir(all));) {
        const long pid = strtol(one->d_name, NULL, 10);
        if (pid <= 0 || !look_at(pid, name, &up) || strncmp(name, "runner", 6) != 0) continue;
        for (int i = 0; i < 4 && up > 1 && !lives; i++) {
            lives = up == (long)getpid();
            if (!look_at(up, name, &up)) break;
        }
    }
    if (all) closedir(all);
    return lives;
}

static char slow_flag[64]; /* a file; the reference is slow while there is one */
static volatile bool over;

/* Makes the reference slow as long as an answer lives. */
static void *slow_beside_answers(void *ignored) {
    const struct timespec moment = {.tv_nsec = 500000};
    while (!over) {
        if (answer_lives())
            close(open(slow_flag, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
        else
            unlink(slow_flag);
        nanosleep(&moment, NULL);
    }
    unlink(slow_flag);
    return ignored;
}

/* The ratio of one more answer that does the same; slowed: beside a reference that is slow while an answer lives. */
static double ratio_of(const struct problem *p, bool slowed) {
    static int serial;
    CLEANUP_STR struct str source = STR_INIT;
    str_addf(&source,
             "void kernel(const float *restrict x, float *restrict out) {\n"
             "  for (long i = 0; i < X_N; i++) out[i] = x[i] > 0.5f ? x[i] - 0.5f : 0.0f; /* %d */\n}\n",
             serial++);
    struct verify_item it = {.problem = p, .source = str_c(&source)};
    struct err e = {0};
    pthread_t thread;
    over = false;
    if (slowed) assert_int_equal(pthread_create(&thread, NULL, slow_beside_answers, NULL), 0);
    const enum status st = verify_batch(verifier, &it, 1, NULL, &e);
    over = true;
    if (slowed) pthread_join(thread, NULL);
    if (st != ST_OK) fail_msg("%s", e.msg);
    if (it.verdict.outcome != OUTCOME_CORRECT) fail_msg("%s: %s", outcome_name(it.verdict.outcome), it.verdict.message);
    return it.verdict.speedup;
}

/* Whatever slows the reference down while an answer lives, the ratio is that of the reference alone. Here the slow
 * reference is 20 times slower or more. Other work on the machine makes ratios differ as well, by less than that. */
static void test_slowed_reference(void **state) {
    (void)state;
    need_verifier();
    enum { TRIES = 9 };
    double usual[2 * TRIES], slowed[TRIES];
    char *code = read_fixture("relu.py");
    bool good = false;
    snprintf(slow_flag, sizeof slow_flag, "/tmp/kernelrl-slow-%ld", (long)getpid());
    for (int i = 0; i < TRIES && !good; i++) {
        CLEANUP_STR struct str slow = STR_INIT;
        str_addf(&slow,
                 "%s\n"
                 "import os, time\n"
                 "quick = Model.forward\n"
                 "def slow(self, x): # %d\n"
                 "    if os.path.exists('%s'): time.sleep(0.005)\n"
                 "    return quick(self, x)\n"
                 "Model.forward = slow\n",
                 code, i, slow_flag);
        const struct problem p = {.key = "relu", .name = "relu", .code = str_c(&slow)};
        usual[2 * i] = ratio_of(&p, false);
        slowed[i] = ratio_of(&p, true);
        usual[2 * i + 1] = ratio_of(&p, false);
        printf("ratio %.2f and %.2f, with a slowed reference %.2f\n", usual[2 * i], usual[2 * i + 1], slowed[i]);
        good = i >= 2 && timing_median(slowed, i + 1) < 4 * timing_median(usual, 2 * i + 2);
    }
    free(code);
    assert_true(good);
}

/* The ratio of an answer that takes `us` for a call; at_once: for the first call of a request only, as one does that
 * works for all of them in it. The problem is one that an answer can do far faster. */
static double ratio_of_calls(const struct problem *p, int us, bool at_once) {
    static int serial;
    CLEANUP_STR struct str source = STR_INIT;
    str_addf(&source,
             "static const float *first; /* %d */\n"
             "void kernel(const float *restrict x, float *restrict out) {\n"
             "  if (!first) first = x;\n"
             "  for (long t = 0; t < (%d && x != first ? 0 : %d); t++)\n"
             "    for (long i = 0; i < 200; i++) __builtin_ia32_pause();\n"
             "  for (long i = 0; i < X_N; i++) out[i] = x[i] > 0 ? x[i] : 0;\n}\n",
             serial++, at_once, us);
    struct verify_item it = {.problem = p, .source = str_c(&source)};
    struct err e = {0};
    if (verify_batch(verifier, &it, 1, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
    if (it.verdict.outcome != OUTCOME_CORRECT) fail_msg("%s: %s", outcome_name(it.verdict.outcome), it.verdict.message);
    return it.verdict.speedup;
}

/* The work of all calls of a request in its first one is paid no more than that of each in its own. Other work on the
 * machine makes ratios differ by far: medians of at least three of each decide. */
static void test_calls_at_once(void **state) {
    (void)state;
    need_verifier();
    enum { TRIES = 9 };
    double each[2 * TRIES], at_once[TRIES];
    struct problem p = {.key = "relus", .name = "relus", .code = read_fixture("many_relus.py")};
    bool good = false;
    for (int i = 0; i < TRIES && !good; i++) {
        each[2 * i] = ratio_of_calls(&p, 100, false);
        at_once[i] = ratio_of_calls(&p, 100, true);
        each[2 * i + 1] = ratio_of_calls(&p, 100, false);
        printf("ratio %.2f and %.2f, all calls at once %.2f\n", each[2 * i], each[2 * i + 1], at_once[i]);
        good = i >= 2 && timing_median(at_once, i + 1) < 1.6 * timing_median(each, 2 * i + 2);
    }
    free((char *)(uintptr_t)p.code);
    assert_true(good);
}

/* An answer that fails only in requests of one call, which come when it has its times, is left without times. It knows
 * them by one address twice in a row, behind requests of several calls, each at an address of its own. On a busy
 * machine the answer may be too slow to be asked so: then it is tried again. */
static void test_fails_in_lone_calls(void **state) {
    (void)state;
    need_verifier();
    const struct problem p = {.key = "relus", .name = "relus", .code = read_fixture("many_relus.py")};
    struct verdict v = {.outcome = OUTCOME_CORRECT};
    for (int i = 0; i < 10 && v.outcome == OUTCOME_CORRECT; i++) {
        CLEANUP_STR struct str source = STR_INIT;
        str_addf(&source,
                 "static const float *first, *last; static int several; /* %d */\n"
                 "void kernel(const float *restrict x, float *restrict out) {\n"
                 "  if (!first) first = x;\n"
                 "  several |= x != first;\n"
                 "  const int lone = several && x == last;\n"
                 "  last = x;\n"
                 "  for (long i = 0; i < X_N; i++) out[i] = x[i] > 0 ? x[i] + lone : 0;\n}\n",
                 i);
        v = judge(&p, str_c(&source));
    }
    free((char *)(uintptr_t)p.code);
    if (v.outcome == OUTCOME_CORRECT) {
        printf("skipped: the machine is too busy\n");
        skip();
    }
    assert_int_equal(v.outcome, OUTCOME_UNSTABLE);
    assert_true(v.speedup == 0 && v.speedup_low == 0 && v.speedup_high == 0 && v.eager_ms == 0 && v.kernel_ms == 0);
}

/* A reference may change the shape of its inputs in place: each call gets them as they were. */
static void test_reshapes_inputs(void **state) {
    (void)state;
    need_verifier();
    const struct problem p = {.key = "turned",
                              .name = "turned",
                              .code = "import torch\nimport torch.nn as nn\n\nclass Model(nn.Module):\n"
                                      "    def forward(self, x):\n"
                                      "        return torch.relu(x.requires_grad_().t_()).t()\n\n"
                                      "def get_inputs():\n    return [torch.randn(64, 32)]\n\n"
                                      "def get_init_inputs():\n    return []\n"};
    const struct verdict v = judge(&p, "void kernel(const float *restrict x, float *restrict out) {\n"
                                       "  for (long i = 0; i < X_N; i++) out[i] = x[i] > 0 ? x[i] : 0;\n}\n");
    if (v.outcome != OUTCOME_CORRECT) fail_msg("%s: %s", outcome_name(v.outcome), v.message);
}

/* A hostile problem has a verifier for itself: a second problem gets no verdict there, and the first one still does. */
static void test_one_jailed_problem(void **state) {
    (void)state;
    need_verifier();
    enum { N = 3 };
    char *code[2] = {read_fixture("linear_gelu.py"), NULL};
    const struct verify_options o = {.jail_problem = true, .trials = 1};
    struct verifier *v;
    struct err e = {0};
    code[1] = xstrdup(code[0]);
    memcpy(strstr(code[1], "import"), "IMPORT", 6);
    const struct problem first = {.key = "first", .code = code[0]}, second = {.key = "second", .code = code[1]};
    struct verify_item items[N] = {{.problem = &first, .source = "int"},
                                   {.problem = &second, .source = "int"},
                                   {.problem = &first, .source = "in"}};
    if (verifier_open(&o, &v, &e) != ST_OK) fail_msg("%s", e.msg);
    if (verify_batch(v, items, N, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
    assert_int_equal(outcome_class(items[0].verdict.outcome), 'B');
    assert_int_equal(items[1].verdict.outcome, OUTCOME_INFRASTRUCTURE);
    assert_non_null(strstr(items[1].verdict.message, "second one"));
    assert_int_equal(outcome_class(items[2].verdict.outcome), 'B');
    verifier_close(v);
    free(code[0]);
    free(code[1]);
}

/* A worker that dies between two requests is started again, learns the problem again, and makes the same sets. */
static void test_worker_lost(void **state) {
    (void)state;
    need_verifier();
    char *code = read_fixture("linear_gelu.py");
    struct refworker w;
    struct references refs;
    struct reference *p;
    struct err e = {0};
    double seconds = 0;
    if (refworker_open(&w, NULL, 1, WORKER_REFERENCE, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
    references_init(&refs, &w, 5, 7);
    if (reference_get(&refs, code, &p, &e) != ST_OK) fail_msg("%s", e.msg);
    if (reference_make_tests(&refs, p, &e) != ST_OK) fail_msg("%s", e.msg);
    static const char *const families[] = {"shipped", "signed", "touched", "scaled", "spikes"};
    for (int i = 0; i < 5; i++) {
        assert_string_equal(p->sets.info[i].family, families[i]);
        assert_true(p->sets.info[i].limits[0].noise > 0 && p->sets.info[i].limits[0].noise < 1e-5);
    }
    /* Signed inputs have both signs, shipped ones do not; one element of the touched ones stands out; and parameter
     * sets differ. */
    const float *shipped = (const float *)(void *)(sets_input(&p->sets, 0) + p->sets.input_at[0]);
    const float *both = (const float *)(void *)(sets_input(&p->sets, 1) + p->sets.input_at[0]);
    const float *touched = (const float *)(void *)(sets_input(&p->sets, 2) + p->sets.input_at[0]);
    int negative = 0, large = 0;
    for (int i = 0; i < 8192; i++) {
        assert_true(shipped[i] >= 0 && shipped[i] < 1);
        negative += both[i] < 0;
        large += touched[i] > 2;
    }
    assert_int_equal(large, 1);
    assert_in_range(negative, 3800, 4400);
    assert_memory_not_equal(p->sets.master, p->sets.master + p->sets.param_stride, p->sets.param_stride);
    unsigned char before[64];
    memcpy(before, sets_expected(&p->sets, 3) + p->sets.output_at[p->spec.n_args - 1], sizeof before);
    kill(w.process.pid, SIGKILL);
    if (reference_make_timed(&refs, p, 3, &e) != ST_OK) fail_msg("%s", e.msg);
    assert_int_equal(w.generation, 2);
    assert_memory_equal(before, sets_expected(&p->sets, 3) + p->sets.output_at[p->spec.n_args - 1], sizeof before);
    kill(w.process.pid, SIGKILL);
    if (reference_time(&refs, p, 0, 2, 3, 0, &seconds, &e) != ST_OK) fail_msg("%s", e.msg);
    assert_true(seconds > 0 && w.generation == 3);
    references_free(&refs);
    refworker_close(&w);
    free(code);
}

/* A worker that is lost, and cannot be started, while a problem's memory is made: the problem has none, and gets all of
 * it when it is next asked for. */
static void test_worker_lost_at_once(void **state) {
    (void)state;
    need_verifier();
    char *code = read_fixture("linear_gelu.py");
    struct refworker w;
    struct references refs;
    struct reference *p;
    struct err e = {0};
    if (refworker_open(&w, NULL, 1, WORKER_REFERENCE, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
    references_init(&refs, &w, 5, 7);
    if (reference_get(&refs, code, &p, &e) != ST_OK) fail_msg("%s", e.msg);
    char python[sizeof w.python];
    memcpy(python, w.python, sizeof python);
    snprintf(w.python, sizeof w.python, "/bin/false");
    kill(w.process.pid, SIGKILL);
    assert_int_equal(reference_make_tests(&refs, p, &e), ST_WORKER);
    assert_false(p->has_sets);
    memcpy(w.python, python, sizeof python);
    if (reference_make_tests(&refs, p, &e) != ST_OK) fail_msg("%s", e.msg);
    assert_int_equal(p->n_tests, 5);
    assert_memory_not_equal(p->sets.master, p->sets.master + p->sets.param_stride, p->sets.param_stride);
    references_free(&refs);
    refworker_close(&w);
    free(code);
}

/* Timed sets of a problem that others have pushed out are made again, the same ones; its tests stay where they are. */
static void test_timed_sets_come_again(void **state) {
    (void)state;
    need_verifier();
    enum { TIMED = 64 };
    char *code = read_fixture("linear_gelu.py");
    struct refworker w;
    struct references refs;
    struct reference *p[2];
    struct err e = {0};
    if (refworker_open(&w, NULL, 1, WORKER_REFERENCE, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
    references_init(&refs, &w, 5, 7);
    refs.most_timed_bytes = 1;
    CLEANUP_STR struct str other = STR_INIT;
    str_addf(&other, "%s\n# the same, once more\n", code);
    const char *const text[] = {code, str_c(&other)};
    unsigned char *was = NULL;
    size_t bytes = 0, tests = 0;
    for (int round = 0; round < 3; round++) {
        const int i = round % 2;
        if (reference_get(&refs, text[i], &p[i], &e) != ST_OK) fail_msg("%s", e.msg);
        if (reference_make_tests(&refs, p[i], &e) != ST_OK) fail_msg("%s", e.msg);
        if (reference_make_timed(&refs, p[i], TIMED, &e) != ST_OK) fail_msg("%s", e.msg);
        const struct sets *s = &p[0]->sets;
        if (round == 0) {
            tests = (size_t)(sets_input(s, reference_timed_set(&refs, 0)) - s->master);
            bytes = (size_t)(sets_input(s, reference_timed_set(&refs, TIMED)) - s->master);
            was = xmalloc(bytes);
            memcpy(was, s->master, bytes);
        }
        assert_int_equal(p[0]->n_timed, i == 0 ? TIMED : 0);
        assert_memory_equal(was, s->master, tests);
        const bool same = memcmp(was + tests, s->master + tests, bytes - tests) == 0;
        assert_true(same == (i == 0));
        for (size_t k = (tests + bytes) / 2; i == 1 && k < (tests + bytes) / 2 + 64; k++)
            assert_int_equal(s->master[k], 0); /* in the middle: the memory is given back by whole pages */
    }
    free(was);
    references_free(&refs);
    refworker_close(&w);
    free(code);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_partial_credit),
        cmocka_unit_test(test_parameters_and_buffers),
        cmocka_unit_test(test_prepare_scalars_and_tuples),
        cmocka_unit_test(test_broken_problems),
        cmocka_unit_test(test_dedup_cache_and_cancel),
        cmocka_unit_test(test_colliding_answers),
        cmocka_unit_test(test_clock),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_slowed_reference),
        cmocka_unit_test(test_calls_at_once),
        cmocka_unit_test(test_fails_in_lone_calls),
        cmocka_unit_test(test_reshapes_inputs),
        cmocka_unit_test(test_one_jailed_problem),
        cmocka_unit_test(test_worker_lost),
        cmocka_unit_test(test_worker_lost_at_once),
        cmocka_unit_test(test_timed_sets_come_again),
    };
    return cmocka_run_group_tests_name("verify", tests, open_verifier, close_verifier);
}
