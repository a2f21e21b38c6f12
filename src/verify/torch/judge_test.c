/* ModelNew answers: want of a GPU's memory is nobody's fault, and what is kept for speed is given back; references that
 * draw numbers; native answers of a batch, compiled ahead; a start that is late; models of the Hub's cache; the memory
 * of inputs. test_rest and test_hog need a GPU (KERNELRL_TEST_GPU=1), all need PyTorch and a sandbox. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fs.h"
#include "verify/jail/time_account.h"
#include "verify/verify.h"

static struct verifier *open_verifier(struct verify_options o) {
    struct verifier *v = NULL;
    struct err e = {0};
    o.threads = 1;
    o.seed = 9;
    enum status st = verifier_open(&o, &v, &e);
    if (st == ST_WORKER || st == ST_SANDBOX) {
        printf("skipped: %s\n", e.msg);
        skip();
    } else if (st != ST_OK)
        fail_msg("%s", e.msg);
    return v;
}

static struct verdict judge(struct verifier *v, const char *code, const char *source) {
    struct problem p = {.key = "p", .name = "p", .code = code};
    struct verify_item it = {.problem = &p, .source = source};
    struct err e = {0};
    if (verify_batch(v, &it, 1, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
    return it.verdict;
}

/* A problem that is refused memory the first %d times that it wants some. */
static const char greedy[] =
    "import sys\nimport torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n"
    "        return torch.relu(x)\n\n\ndef get_inputs():\n    sys.asked_%d = getattr(sys, 'asked_%d', 0) + 1\n"
    "    if sys.asked_%d <= %d:\n        raise RuntimeError('CUDA out of memory. Tried to allocate 1.00 GiB')\n"
    "    return [torch.rand(64, 64)]\n\n\ndef get_init_inputs():\n    return []\n";

static void test_no_room(void **state) {
    (void)state;
    static const char answer[] = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n"
                                 "        return torch.clamp(x, min=0)\n";
    struct verifier *v = open_verifier((struct verify_options){.backend = BACKEND_torch_cpu});
    char code[1000];
    /* Room is made, and it is tried again: by the referee, then with the answer from the start, twice. */
    for (int refusals = 1; refusals <= 5; refusals += 2) {
        snprintf(code, sizeof code, greedy, refusals, refusals, refusals, refusals);
        struct verdict got = judge(v, code, answer);
        if (got.outcome != OUTCOME_CORRECT) fail_msg("%s: %s", outcome_name(got.outcome), got.message);
    }
    /* Room for the reference in the answer's place, and none in any of the answer's tries: the answer is at fault. That
     * it is not here, nobody can tell. */
    snprintf(code, sizeof code, greedy, 6, 6, 6, 6);
    struct verdict got = judge(v, code, answer);
    assert_string_equal(outcome_name(got.outcome), "crash");
    assert_non_null(strstr(got.message, "the reference in its place can"));
    assert_non_null(strstr(got.message, "out of memory"));
    /* Never enough, for the reference in the answer's place either: neither the answer's fault nor the problem's, which
     * may be asked for again. */
    snprintf(code, sizeof code, greedy, 8, 8, 8, 8);
    got = judge(v, code, answer);
    assert_string_equal(outcome_name(got.outcome), "infrastructure");
    assert_non_null(strstr(got.message, "out of memory"));
    got = judge(v, code, answer);
    assert_string_equal(outcome_name(got.outcome), "correct");
    verifier_close(v);
}

/* Numbers that forward() draws show only where inputs are large. An answer that draws the same ones is right, as the
 * seeds it is given make them the reference's. */
static void test_draws(void **state) {
    (void)state;
    static const char form[] =
        "import torch\nimport torch.nn as nn\n\n\nclass %s(nn.Module):\n    def forward(self, x):\n"
        "        drawn = torch.randn(x.shape, device=x.device)\n"
        "        return torch.where(x > 2, x * drawn, x)\n\n\ndef get_inputs():\n"
        "    return [torch.rand(64, 64)]\n\n\ndef get_init_inputs():\n    return []\n";
    struct verifier *v =
        open_verifier((struct verify_options){.backend = BACKEND_torch_cpu, .measure = true, .timed_calls = 20});
    char code[1000], source[1000];
    snprintf(code, sizeof code, form, "Model");
    snprintf(source, sizeof source, form, "ModelNew");
    struct verdict got = judge(v, code, source);
    if (got.outcome != OUTCOME_CORRECT) fail_msg("%s: %s", outcome_name(got.outcome), got.message);
    verifier_close(v);
}

/* What a process said last, before it ended by itself, is what its verdict tells: of a Python the error. */
static void test_last_words(void **state) {
    (void)state;
    static const char code[] =
        "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n"
        "        return x * 2\n\n\ndef get_inputs():\n    return [torch.rand(8, 8)]\n\n\n"
        "def get_init_inputs():\n    return []\n";
    static const char source[] =
        "import torch.nn as nn\nfrom kernelrl_worker.channel import Channel\n\n\ndef receive(self):\n"
        "    raise ValueError('said at last')\n\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n"
        "        print('much', 'more ' * 200, flush=True, file=__import__('sys').stderr)\n"
        "        Channel.receive = receive\n        return x * 2\n";
    struct verifier *v = open_verifier((struct verify_options){.backend = BACKEND_torch_cpu});
    const struct verdict got = judge(v, code, source);
    verifier_close(v);
    assert_string_equal(outcome_name(got.outcome), "crash");
    if (!strstr(got.message, "ValueError: said at last")) fail_msg("%s", got.message);
}

/* An item's verdict is there: the outcome as it is now, which stays. */
static void note_judged(void *ctx, struct verify_item *item) {
    const char **said = ctx;
    assert_null(*said); /* once */
    *said = outcome_name(item->verdict.outcome);
}

/* Answers to several problems in turns, one of which cannot be loaded: whatever is compiled before its turn comes out
 * as if it had been alone. */
static void test_native_batch(void **state) {
    (void)state;
    static const char form[] = "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n"
                               "    def forward(self, x):\n        return %s\n\n\ndef get_inputs():\n"
                               "    return [torch.rand(%d, 16)]\n\n\ndef get_init_inputs():\n    return []\n";
    static const char *const forwards[] = {"torch.relu(x)", "x * 2", "x.no_such_method()", "x - 1"};
    static const struct {
        int problem;
        const char *element, *outcome;
    } rows[] = {
        {0, "x[i] > 0 ? x[i] : 0", "correct"}, {1, "x[i] + x[i]", "correct"},
        {0, "x[i]", "wrong_output"},           {2, "x[i]", "problem_error"},
        {1, "y[i]", "compile_error"},          {3, "x[i] - 1", "correct"},
        {2, "x[i] + 1", "problem_error"},      {0, "x[i] > 0 ? x[i] : 0 * x[i]", "correct"},
        {3, "x[i]", "wrong_output"},
    };
    enum { ROWS = ARRAY_LEN(rows), PROBLEMS = ARRAY_LEN(forwards) };
    char code[PROBLEMS][500], sources[ROWS][300];
    struct problem problems[PROBLEMS];
    struct verify_item items[ROWS];
    const char *said[ROWS] = {0};
    struct err e = {0};
    struct verifier *v = open_verifier((struct verify_options){.backend = BACKEND_cuda_native, .device = "cpu"});
    for (int i = 0; i < PROBLEMS; i++) {
        snprintf(code[i], sizeof code[i], form, forwards[i], 8 + i); /* sizes are the interface: X_N */
        problems[i] = (struct problem){.key = forwards[i], .name = forwards[i], .code = code[i]};
    }
    for (int i = 0; i < ROWS; i++) {
        snprintf(sources[i], sizeof sources[i],
                 "static_assert(X_N == %d, \"another problem's\");\n"
                 "void kernel(const float *x, float *out, cudaStream_t stream) {\n"
                 "    for (long i = 0; i < X_N; i++) out[i] = %s;\n}\n",
                 16 * (8 + rows[i].problem), rows[i].element);
        items[i] = (struct verify_item){
            .problem = &problems[rows[i].problem], .source = sources[i], .judged = note_judged, .judged_ctx = &said[i]};
    }
    if (verify_batch(v, items, ROWS, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
    for (int i = 0; i < ROWS; i++)
        if (strcmp(outcome_name(items[i].verdict.outcome), rows[i].outcome) != 0)
            fail_msg("%d: %s, expected %s; %s", i, outcome_name(items[i].verdict.outcome), rows[i].outcome,
                     items[i].verdict.message);
    for (int i = 0; i < ROWS; i++) assert_string_equal(said[i], rows[i].outcome);
    verifier_close(v);
}

/* Answers loaded since the last call. */
static int loads(void) {
    CLEANUP_STR struct str spent = STR_INIT;
    spent_take(&spent);
    const char *of = strstr(str_c(&spent), "\"process load\":[");
    return of ? (int)strtol(strchr(of, ',') + 1, NULL, 10) : 0;
}

static void wait_for_loads(void *total, struct verify_item *it) {
    int *n = total;
    (void)it;
    for (int i = 0; i < 6000; i++) {
        *n += loads();
        if (*n >= 5) return; /* as many as one compiler's thread is ahead */
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
}

/* An answer for which there is no memory is judged once more without those that have been loaded ahead of their turn,
 * one of which may have it; they are loaded again, and come out as if nothing had been. The first one's turn ends when
 * they are loaded. */
static void test_dropped(void **state) {
    (void)state;
    static const char code[] = "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n"
                               "    def forward(self, x):\n        return torch.relu(x)\n\n\ndef get_inputs():\n"
                               "    return [torch.rand(8, 16)]\n\n\ndef get_init_inputs():\n    return []\n";
    enum { ROWS = 6, HUNGRY = 1, WRONG = 3 };
    struct problem p = {.key = "p", .name = "p", .code = code};
    char sources[ROWS][300];
    struct verify_item items[ROWS];
    struct err e = {0};
    int loaded = 0;
    struct verifier *v = open_verifier((struct verify_options){.backend = BACKEND_cuda_native, .device = "cpu"});
    for (int i = 0; i < ROWS; i++) {
        snprintf(sources[i], sizeof sources[i],
                 "%svoid kernel(const float *x, float *out, %scudaStream_t stream) {\n"
                 "    for (long i = 0; i < X_N; i++) out[i] = %s; // %d\n}\n",
                 i == HUNGRY ? "size_t scratch_bytes(void) { return (size_t)1 << 46; }\n" : "",
                 i == HUNGRY ? "void *scratch, " : "", i == WRONG ? "x[i]" : "x[i] > 0 ? x[i] : 0", i);
        items[i] = (struct verify_item){.problem = &p, .source = sources[i]};
    }
    items[0].judged = wait_for_loads;
    items[0].judged_ctx = &loaded;
    loads();
    if (verify_batch(v, items, ROWS, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
    loaded += loads();
    for (int i = 0; i < ROWS; i++) {
        const char *wanted = i == HUNGRY ? "memory_limit" : i == WRONG ? "wrong_output" : "correct";
        if (strcmp(outcome_name(items[i].verdict.outcome), wanted) != 0)
            fail_msg("%d: %s, expected %s; %s", i, outcome_name(items[i].verdict.outcome), wanted,
                     items[i].verdict.message);
    }
    /* It, and at least one behind it that was loaded, twice. */
    if (loaded < ROWS + 2) fail_msg("%d answers were loaded", loaded);
    verifier_close(v);
}

/* Answers that are each of another problem: no problem is loaded twice, though all are known before their turn. */
static void test_loaded_once(void **state) {
    (void)state;
    enum { N = 5 };
    char code[N][400], keys[N][8];
    struct problem problems[N];
    struct verify_item items[N];
    struct err e = {0};
    CLEANUP_STR struct str spent = STR_INIT;
    struct verifier *v = open_verifier((struct verify_options){.backend = BACKEND_cuda_native, .device = "cpu"});
    for (int i = 0; i < N; i++) {
        snprintf(keys[i], sizeof keys[i], "p%d", i);
        snprintf(code[i], sizeof code[i],
                 "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n"
                 "        return x + %d\n\n\ndef get_inputs():\n    return [torch.rand(4, 8)]\n\n\n"
                 "def get_init_inputs():\n    return []\n",
                 i);
        problems[i] = (struct problem){.key = keys[i], .name = keys[i], .code = code[i]};
        items[i] = (struct verify_item){.problem = &problems[i],
                                        .source = "void kernel(const float *x, float *out, cudaStream_t stream) {\n"
                                                  "    for (long i = 0; i < X_N; i++) out[i] = x[i];\n}\n"};
    }
    spent_take(&spent);
    str_clear(&spent);
    if (verify_batch(v, items, N, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
    spent_take(&spent);
    for (int i = 0; i < N; i++)
        assert_int_equal(items[i].verdict.outcome, i == 0 ? OUTCOME_CORRECT : OUTCOME_WRONG_OUTPUT);
    const char *loads = strstr(str_c(&spent), "\"reference worker module_load\":[");
    assert_non_null(loads);
    assert_int_equal(strtol(strchr(loads, ',') + 1, NULL, 10), N);
    verifier_close(v);
}

/* What an answer writes to the memory in which it finds inputs and parameters does not reach the next one. */
static void test_lane_of_its_own(void **state) {
    (void)state;
    static const char code[] = "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n"
                               "    def __init__(self):\n        super().__init__()\n"
                               "        self.linear = nn.Linear(8, 8)\n\n"
                               "    def forward(self, x):\n        return self.linear(x)\n\n\ndef get_inputs():\n"
                               "    return [torch.rand(16, 8)]\n\n\ndef get_init_inputs():\n    return []\n";
    static const char source[] = "import torch\nimport torch.nn as nn\n\n\nclass ModelNew(nn.Module):\n"
                                 "    def __init__(self):\n        super().__init__()\n"
                                 "        self.linear = nn.Linear(8, 8)\n\n"
                                 "    def forward(self, x):\n        shared = x.as_strided((256,), (1,), 0)\n"
                                 "        seen = float(shared[255])\n        shared.fill_(7)%s\n"
                                 "        return torch.nn.functional.linear(x, self.linear.weight, self.linear.bias)\n";
    /* Two sets of parameters of 512 bytes each come first. The last of the answers tells what it finds there. */
    static const char *const tails[] = {"", "  #",
                                        "\n        if not STATE:\n            STATE.append(seen)\n"
                                        "            assert seen != 7\n"};
    enum { ROWS = ARRAY_LEN(tails) };
    struct problem p = {.key = "p", .name = "p", .code = code};
    char sources[ROWS][800];
    struct verify_item items[ROWS];
    struct err e = {0};
    struct verifier *v = open_verifier((struct verify_options){.backend = BACKEND_torch_cpu});
    for (int i = 0; i < ROWS; i++) {
        const int n = snprintf(sources[i], sizeof sources[i], source, tails[i]);
        snprintf(sources[i] + n, sizeof sources[i] - (size_t)n, "\n\nSTATE = []\n");
        items[i] = (struct verify_item){.problem = &p, .source = sources[i]};
    }
    if (verify_batch(v, items, ROWS, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
    for (int i = 0; i < ROWS; i++)
        if (items[i].verdict.outcome != OUTCOME_CORRECT)
            fail_msg("%d: %s; %s", i, outcome_name(items[i].verdict.outcome), items[i].verdict.message);
    verifier_close(v);
}

/* A process that is late before its answer has been called is our trouble twice, and the answer's when it happens
 * again.
 */
static void test_late_start(void **state) {
    (void)state;
    static const char code[] = "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n"
                               "    def forward(self, x):\n        return x + 1\n\n\ndef get_inputs():\n"
                               "    return [torch.rand(8, 8)]\n\n\ndef get_init_inputs():\n    return []\n";
    static const char source[] = "import time\nimport torch\nfrom kernelrl_worker import harness\n\n"
                                 "harness.Harness.attach = lambda self, request, channel: time.sleep(60)\n\n\n"
                                 "class ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x + 1\n";
    struct verifier *v = open_verifier((struct verify_options){.backend = BACKEND_torch_cpu, .run_timeout_s = 0.5});
    const double from = clock_now_s();
    struct verdict got = judge(v, code, source);
    assert_string_equal(outcome_name(got.outcome), "timeout");
    assert_non_null(strstr(got.message, "when it was started"));
    assert_true(clock_now_s() - from >= 3 * 0.5);
    verifier_close(v);
}

/* An answer reads the models that its problem reads, and nothing else of what the Hub's library keeps. */
static void test_models(void **state) {
    (void)state;
    static const char code[] =
        "import os\nimport torch\nimport torch.nn as nn\n\nNAME = 'org/tiny'\n"
        "HOME = os.environ['HF_HUB_CACHE']\nwith open(HOME + '/models--org--tiny/weights') as f:\n"
        "    WEIGHT = float(f.read())\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n"
        "        return x * WEIGHT\n\n\ndef get_inputs():\n    return [torch.rand(8, 8)]\n\n\n"
        "def get_init_inputs():\n    return []\n";
    static const char source[] =
        "import os\nimport torch\n\nHOME = os.environ['HF_HUB_CACHE']\n"
        "with open(HOME + '/models--org--tiny/weights') as f:\n    WEIGHT = float(f.read())\n"
        "assert os.environ['HF_HUB_OFFLINE'] == '1'\nassert os.listdir(HOME) == ['models--org--tiny']\n"
        "assert not os.path.exists(HOME + '/../token')\ntry:\n    open(HOME + '/models--org--tiny/more', 'w')\n"
        "    raise AssertionError('written')\nexcept OSError:\n    pass\n\n\n"
        "class ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x * WEIGHT\n";
    static const char *const files[] = {"hub/models--org--tiny/weights", "hub/datasets--org--secret/rows", "token"};
    char home[] = "/tmp/kernelrl-hub-XXXXXX", path[200];
    struct err e = {0};
    assert_non_null(mkdtemp(home));
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        snprintf(path, sizeof path, "%s/%s", home, files[i]);
        *strrchr(path, '/') = 0;
        assert_int_equal(fs_mkdirs(path, &e), ST_OK);
        path[strlen(path)] = '/';
        assert_int_equal(fs_write_atomic(path, "1.5", 3, &e), ST_OK);
    }
    snprintf(path, sizeof path, "%s/hub", home);
    setenv("HF_HUB_CACHE", path, 1);
    chmod(home, 0755);
    struct verifier *v = open_verifier((struct verify_options){.backend = BACKEND_torch_cpu});
    struct verdict got = judge(v, code, source);
    verifier_close(v);
    if (got.outcome != OUTCOME_CORRECT) fail_msg("%s: %s", outcome_name(got.outcome), got.message);
    /* A file that nobody may read but its owner, who an answer is unless root has started it: not the answer's fault.
     */
    snprintf(path, sizeof path, "%s/%s", home, files[0]);
    assert_int_equal(chmod(path, 0600), 0);
    v = open_verifier((struct verify_options){.backend = BACKEND_torch_cpu});
    got = judge(v, code, source);
    verifier_close(v);
    unsetenv("HF_HUB_CACHE");
    assert_int_equal(fs_remove(home, &e), ST_OK);
    if (geteuid() == 0 && got.outcome == OUTCOME_PROBLEM_ERROR)
        assert_non_null(strstr(got.message, "models--org--tiny/weights: chmod"));
    else if (got.outcome != OUTCOME_CORRECT)
        fail_msg("%s: %s", outcome_name(got.outcome), got.message);
}

struct lone_batch { /* what a thread has judged by a verifier of its own */
    struct verifier *v;
    struct verify_item items[4];
    size_t n;
    struct err e;
    enum status st;
};

static void *judge_batch(void *of) {
    struct lone_batch *b = of;
    b->st = verify_batch(b->v, b->items, b->n, NULL, &b->e);
    return NULL;
}

/* Where there is no jail, answers that run at once have files of their own: each is judged by its own text, and nothing
 * is left behind. */
static void test_without_a_jail(void **state) {
    (void)state;
    static const char code[] = "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n"
                               "    def forward(self, x):\n        return x * 3\n\n\ndef get_inputs():\n"
                               "    return [torch.rand(64, 64)]\n\n\ndef get_init_inputs():\n    return []\n";
    enum { VERIFIERS = 2, EACH = 4 };
    char sources[VERIFIERS][EACH][500], home[] = "/tmp/kernelrl-weak-XXXXXX";
    struct problem p = {.key = "p", .name = "p", .code = code};
    struct lone_batch batch[VERIFIERS] = {0};
    pthread_t thread[VERIFIERS];
    assert_non_null(mkdtemp(home));
    setenv("KERNELRL_BWRAP", "/nowhere/bwrap", 1);
    setenv("TMPDIR", home, 1);
    for (int k = 0; k < VERIFIERS; k++) {
        batch[k].n = EACH;
        batch[k].v = open_verifier((struct verify_options){.backend = BACKEND_torch_cpu, .allow_weaker = true});
        for (int i = 0; i < EACH; i++) {
            snprintf(sources[k][i], sizeof sources[k][i],
                     "# %d %d\nimport time\nimport torch\n\n\nclass ModelNew(torch.nn.Module):\n"
                     "    def forward(self, x):\n        time.sleep(0.05)\n        with open(__file__) as f:\n"
                     "            assert f.readline() == '# %d %d\\n'\n        return x * %d\n",
                     k, i, k, i, 2 + i % 2);
            batch[k].items[i] = (struct verify_item){.problem = &p, .source = sources[k][i]};
        }
    }
    for (int k = 0; k < VERIFIERS; k++) assert_int_equal(pthread_create(&thread[k], NULL, judge_batch, &batch[k]), 0);
    for (int k = 0; k < VERIFIERS; k++) {
        pthread_join(thread[k], NULL);
        verifier_close(batch[k].v);
    }
    unsetenv("TMPDIR");
    unsetenv("KERNELRL_BWRAP");
    for (int k = 0; k < VERIFIERS; k++) {
        if (batch[k].st != ST_OK) fail_msg("%s", batch[k].e.msg);
        for (int i = 0; i < EACH; i++) {
            const struct verdict *got = &batch[k].items[i].verdict;
            if (got->outcome != (i % 2 ? OUTCOME_CORRECT : OUTCOME_WRONG_OUTPUT))
                fail_msg("%d, %d: %s: %s", k, i, outcome_name(got->outcome), got->message);
        }
    }
    assert_int_equal(rmdir(home), 0); /* it is empty */
}

static void need_gpu(void) {
    const char *wanted = getenv("KERNELRL_TEST_GPU");
    if (wanted && *wanted) return;
    printf("skipped: KERNELRL_TEST_GPU is not set\n");
    skip();
}

/* An answer that takes a GPU's memory while it is loaded, ahead of its turn, does so at nobody else's cost. */
static void test_hog(void **state) {
    (void)state;
    need_gpu();
    static const char code[] = "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n"
                               "    def forward(self, x):\n        return torch.relu(x)\n\n\ndef get_inputs():\n"
                               "    return [torch.rand(8192, 8192)]\n\n\ndef get_init_inputs():\n    return []\n";
    static const char hog[] = "free = torch.cuda.mem_get_info()[0]\n"
                              "HELD = torch.empty(free - (256 << 20), dtype=torch.uint8, device='cuda')\n";
    static const char table[] = "TABLE = torch.ones(64 << 20, device='cuda')\n";
    enum { ROWS = 6, HOG = 2 };
    struct problem p = {.key = "p", .name = "p", .code = code};
    char sources[ROWS][500];
    struct verify_item items[ROWS];
    struct err e = {0};
    struct verifier *v = open_verifier(
        (struct verify_options){.backend = BACKEND_cuda, .device = "cuda:0", .measure = true, .allow_library = true});
    for (int i = 0; i < ROWS; i++) {
        snprintf(sources[i], sizeof sources[i],
                 "# %d\nimport torch\n%s\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n"
                 "        return torch.clamp(x, min=0)\n",
                 i,
                 i == HOG  ? hog
                 : i > HOG ? table
                           : "");
        items[i] = (struct verify_item){.problem = &p, .source = sources[i]};
    }
    if (verify_batch(v, items, ROWS, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
    for (int i = 0; i < ROWS; i++)
        printf("%d: %s, ratio %.3f %s\n", i, outcome_name(items[i].verdict.outcome), items[i].verdict.speedup,
               items[i].verdict.message);
    for (int i = 0; i < ROWS; i++)
        if (i != HOG) assert_string_equal(outcome_name(items[i].verdict.outcome), "correct");
    verifier_close(v);
}

static void test_rest(void **state) {
    (void)state;
    need_gpu();
    /* Inputs and outputs of 2 GiB each, of which the referee has several while it works. */
    static const char code[] = "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n"
                               "    def forward(self, x):\n        return torch.relu(x)\n\n\ndef get_inputs():\n"
                               "    return [torch.rand(8192, 65536)]\n\n\ndef get_init_inputs():\n    return []\n";
    static const char source[] =
        "__global__ void relu_kernel(const float *x, float *out, long n) {\n"
        "    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;\n    if (i < n) out[i] = fmaxf(x[i], 0.0f);\n}\n"
        "void kernel(const float *x, float *out, cudaStream_t stream) {\n"
        "    relu_kernel<<<(X_N + 255) / 256, 256, 0, stream>>>(x, out, X_N);\n}\n";
    struct verifier *v =
        open_verifier((struct verify_options){.backend = BACKEND_cuda_native, .device = "cuda:0", .measure = true});
    struct verdict got = judge(v, code, source);
    if (got.outcome != OUTCOME_CORRECT) fail_msg("%s: %s", outcome_name(got.outcome), got.message);
    printf("%.2f GB kept\n", (double)verifier_held_bytes(v) * 1e-9);
    assert_true(verifier_held_bytes(v) <= (int64_t)1 << 30);
    verifier_close(v);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_room),      cmocka_unit_test(test_draws),   cmocka_unit_test(test_last_words),
        cmocka_unit_test(test_native_batch), cmocka_unit_test(test_dropped), cmocka_unit_test(test_loaded_once),
        cmocka_unit_test(test_late_start),   cmocka_unit_test(test_models),  cmocka_unit_test(test_without_a_jail),
        cmocka_unit_test(test_hog),          cmocka_unit_test(test_rest),    cmocka_unit_test(test_lane_of_its_own),
    };
    return cmocka_run_group_tests_name("module", tests, NULL, NULL);
}
