/* timing: does the verifier's clock tell the truth?
 * Usage: build/bench/timing [--device cpu|cuda:N] [--backend B] [--what null|spin|clock|hidden|all] [--threads N]
 *                           [--calls N] [--interval X] [--budget SECONDS] [--problems N] [--only A,B,...]
 *                           [--method M] [--json FILE] [--verbose]
 * null    the reference itself, handed in as an answer: 20 problems between about 20 us and 20 ms, whose ratios should
 *         all be 1. Prints the ratio, its interval and both times, then geometric mean, smallest and largest.
 * spin    answers that wait for a known part of the time that the reference waits for: ratios 0.5, 2 and 5.
 * clock   answers that work for 0.1, 1 and 5 ms by another clock (a GPU's own in backend cuda): what ours shows.
 * hidden  right answers that leave a millisecond of waiting behind them: on a side stream, in a thread, in a child.
 * Their time has to hold that millisecond, or they are refused. Kernel accounting is off: these answers have no kernels
 * of their own. --calls: timed calls of either side, at least; --interval: go on until the ratio's 95 % interval is
 * that narrow, or --budget is spent; --problems, --only: the first N null problems, those named; --verbose: the
 * requests' times as they were. One JSON line per answer goes to the file named by --json.
 * Exit status 1 when a verdict failed that had to succeed. */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "io/json.h"
#include "verify/verify.h"

static const char usage[] = "usage: build/bench/timing [--device cpu|cuda:N] [--backend B] [--what "
                            "null|spin|clock|hidden|all] [--threads N] [--calls N] [--interval X] [--budget S] "
                            "[--problems N] [--only A,B,...] [--method M] [--json FILE] [--verbose]\n";

/* A problem: what __init__ makes, what forward returns, and the inputs; sizes for a CPU and for a GPU. */
static const struct work {
    const char *name, *init, *forward, *cpu, *gpu;
} problems[] = {
    {"relu_small", "pass", "torch.relu(x)", "torch.rand(64, 1024)", "torch.rand(3072, 3072)"},
    {"scale", "pass", "x * 1.5", "torch.rand(128, 1024)", "torch.rand(4096, 3072)"},
    {"sum_rows", "pass", "x.sum(1)", "torch.rand(256, 512)", "torch.rand(16384, 2048)"},
    {"layernorm", "self.m = nn.LayerNorm(512)", "self.m(x)", "torch.rand(256, 512)", "torch.rand(16384, 512)"},
    {"softmax", "pass", "torch.softmax(x, 1)", "torch.rand(128, 1024)", "torch.rand(8192, 8192)"},
    {"matmul_small", "pass", "x @ x", "torch.rand(128, 128)", "torch.rand(1024, 1024)"},
    {"max_rows", "pass", "x.max(1)[0]", "torch.rand(512, 512)", "torch.rand(32768, 1024)"},
    {"linear", "self.m = nn.Linear(256, 256)", "self.m(x)", "torch.rand(256, 256)", "torch.rand(16384, 256)"},
    {"relu", "pass", "torch.relu(x)", "torch.rand(1024, 1024)", "torch.rand(16384, 16384)"},
    {"batchnorm", "self.m = nn.BatchNorm1d(512)", "self.m(x)", "torch.rand(512, 512)", "torch.rand(65536, 512)"},
    {"gelu", "pass", "F.gelu(x)", "torch.rand(256, 1024)", "torch.rand(16384, 4096)"},
    {"conv", "self.m = nn.Conv2d(8, 8, 3)", "self.m(x)", "torch.rand(4, 8, 32, 32)", "torch.rand(64, 8, 256, 256)"},
    {"cumsum", "pass", "x.cumsum(1)", "torch.rand(512, 512)", "torch.rand(4096, 8192)"},
    {"tanh", "pass", "torch.tanh(x)", "torch.rand(1024, 512)", "torch.rand(32768, 16384)"},
    {"matmul", "pass", "x @ x", "torch.rand(512, 512)", "torch.rand(4096, 4096)"},
    {"linear_gelu", "self.m = nn.Linear(1024, 1024)", "F.gelu(self.m(x))", "torch.rand(256, 1024)",
     "torch.rand(16384, 1024)"},
    {"softmax_large", "pass", "torch.softmax(x, 1)", "torch.rand(2048, 2048)", "torch.rand(16384, 32768)"},
    {"pool", "self.m = nn.MaxPool2d(2)", "self.m(x)", "torch.rand(8, 16, 128, 128)", "torch.rand(64, 64, 256, 256)"},
    {"conv_large", "self.m = nn.Conv2d(16, 32, 3)", "self.m(x)", "torch.rand(8, 16, 64, 64)",
     "torch.rand(64, 16, 512, 512)"},
    {"matmul_large", "pass", "x @ x", "torch.rand(1280, 1280)", "torch.rand(8192, 8192)"},
};

static const char head[] = "import time\nimport threading\nimport os\nimport torch\nimport torch.nn as nn\n"
                           "import torch.nn.functional as F\n\n\n";
static const char module_text[] = "class %s(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
                                  "        %s\n\n    def forward(self, x):\n        %s\n        return %s\n\n\n";
static const char inputs_text[] = "def get_inputs():\n    return [%s]\n\n\ndef get_init_inputs():\n    return []\n";

/* What an answer does beside its work, on a CPU and on a GPU (cycles of the device's clock are about half a
 * nanosecond). Both wait for a time that does not depend on what else the machine does. */
static const char cpu_wait[] = "end = time.perf_counter() + %g\n        while time.perf_counter() < end: pass";
static const char gpu_wait[] = "torch.cuda._sleep(int(%g * 1.755e9))";

static const double wait_s = 4e-3;

struct bench {
    struct verify_options o;
    const char *what, *only;
    bool gpu;
    int limit;
    FILE *json;
    struct verifier *v;
    int failed;
};

static void report(struct bench *b, const char *what, const char *name, double expected, const struct verdict *v) {
    printf("%-8s %-16s %-14s", what, name, outcome_name(v->outcome));
    if (v->speedup > 0)
        printf(" ratio %6.3f [%6.3f, %6.3f]  eager %9.4f ms  answer %9.4f ms  calls %d", v->speedup, v->speedup_low,
               v->speedup_high, v->eager_ms, v->kernel_ms, v->kernel.calls);
    if (expected > 0 && v->speedup > 0) printf("  off %+5.1f %%", 100 * (v->speedup / expected - 1));
    printf("  %.1f s%s%.200s\n", v->time_s, v->message[0] ? "  " : "", v->message);
    fflush(stdout);
    if (!b->json) return;
    CLEANUP_STR struct str s = STR_INIT;
    js_begin(&s, NULL, '{');
    js_put_str(&s, "bench", "timing");
    js_put_str(&s, "what", what);
    js_put_str(&s, "name", name);
    js_put_str(&s, "device", b->o.device);
    js_put_str(&s, "backend", backend_name(b->o.backend));
    js_put_str(&s, "outcome", outcome_name(v->outcome));
    if (expected > 0) js_put_f64(&s, "expected", expected);
    js_put_f64(&s, "ratio", v->speedup);
    js_put_f64(&s, "low", v->speedup_low);
    js_put_f64(&s, "high", v->speedup_high);
    js_put_f64(&s, "eager_ms", v->eager_ms);
    js_put_f64(&s, "kernel_ms", v->kernel_ms);
    js_end(&s, '}');
    fprintf(b->json, "%s\n", str_c(&s));
    fflush(b->json);
}

static enum status judge(struct bench *b, const char *key, const char *code, const char *answer, struct verdict *out,
                         struct err *e) {
    struct problem p = {.key = key, .name = key, .code = code};
    struct verify_item it = {.problem = &p, .source = answer};
    enum status st = verify_batch(b->v, &it, 1, NULL, e);
    *out = it.verdict;
    return st;
}

static enum status null_answers(struct bench *b, struct err *e) {
    double logs = 0, least = INFINITY, most = 0;
    int n = 0;
    for (int i = 0; i < (int)ARRAY_LEN(problems) && i < b->limit; i++) {
        const struct work *w = &problems[i];
        CLEANUP_STR struct str code = STR_INIT, answer = STR_INIT;
        struct verdict v;
        if (b->only && str_index_in(b->only, w->name, ',') < 0) continue;
        str_adds(&code, head);
        str_adds(&answer, head);
        str_addf(&code, module_text, "Model", w->init, "pass", w->forward);
        str_addf(&code, inputs_text, b->gpu ? w->gpu : w->cpu);
        str_addf(&answer, module_text, "ModelNew", w->init, "pass", w->forward);
        TRY(judge(b, w->name, str_c(&code), str_c(&answer), &v, e));
        report(b, "null", w->name, 1, &v);
        if (!(v.speedup > 0)) {
            b->failed++;
            continue;
        }
        logs += log(v.speedup);
        least = fmin(least, v.speedup);
        most = fmax(most, v.speedup);
        n++;
    }
    if (n) printf("null     geometric mean %.4f, from %.3f to %.3f, %d problems\n", exp(logs / n), least, most, n);
    return ST_OK;
}

static void waiting(const struct bench *b, double seconds, struct str *out) {
    str_clear(out);
    str_addf(out, b->gpu ? gpu_wait : cpu_wait, seconds);
}

static void spin_problem(const struct bench *b, double seconds, struct str *code) {
    CLEANUP_STR struct str wait = STR_INIT;
    str_clear(code);
    str_adds(code, head);
    waiting(b, seconds, &wait);
    str_addf(code, module_text, "Model", "pass", seconds > 0 ? str_c(&wait) : "pass", "torch.relu(x)");
    str_addf(code, inputs_text, "torch.rand(64, 64)");
}

static enum status spin_answers(struct bench *b, struct err *e) {
    static const double ratios[] = {0.5, 1, 2, 5};
    for (size_t i = 0; i < ARRAY_LEN(ratios); i++) {
        CLEANUP_STR struct str code = STR_INIT, answer = STR_INIT, wait = STR_INIT;
        struct verdict v;
        char name[40];
        spin_problem(b, wait_s, &code);
        waiting(b, wait_s / ratios[i], &wait);
        str_adds(&answer, head);
        str_addf(&answer, module_text, "ModelNew", "pass", str_c(&wait), "torch.relu(x)");
        snprintf(name, sizeof name, "ratio %g", ratios[i]);
        TRY(judge(b, "spin", str_c(&code), str_c(&answer), &v, e));
        report(b, "spin", name, ratios[i], &v);
        b->failed += !(v.speedup > 0);
    }
    return ST_OK;
}

/* An answer that works for a known time, by the device's own clock on a GPU: what does ours show? */
static const char globaltimer[] =
    "from torch.utils.cpp_extension import load_inline\n\nSPIN = \"\"\"\n#include <torch/extension.h>\n"
    "__global__ void spin(long long ns) {\n    long long from, now;\n"
    "    asm volatile(\"mov.u64 %0, %%globaltimer;\" : \"=l\"(from));\n"
    "    do asm volatile(\"mov.u64 %0, %%globaltimer;\" : \"=l\"(now));\n    while (now - from < ns);\n}\n"
    "torch::Tensor spin_for(torch::Tensor x, int64_t ns) {\n    spin<<<1, 1>>>(ns);\n    return x;\n}\n\"\"\"\n"
    "extension = load_inline(name=\"spin\", cpp_sources=\"torch::Tensor spin_for(torch::Tensor x, int64_t ns);\", "
    "cuda_sources=SPIN, functions=[\"spin_for\"])\n\n\n";

static enum status known_times(struct bench *b, struct err *e) {
    static const double times[] = {1e-4, 1e-3, 5e-3};
    for (size_t i = 0; i < ARRAY_LEN(times); i++) {
        CLEANUP_STR struct str code = STR_INIT, answer = STR_INIT, wait = STR_INIT;
        struct verdict v;
        char name[40];
        spin_problem(b, wait_s, &code);
        str_adds(&answer, head);
        if (b->gpu) {
            str_adds(&answer, globaltimer);
            str_addf(&wait, "extension.spin_for(x, %lld)", (long long)(times[i] * 1e9));
        } else
            waiting(b, times[i], &wait);
        str_addf(&answer, module_text, "ModelNew", "pass", str_c(&wait), "torch.relu(x)");
        snprintf(name, sizeof name, "%g ms", times[i] * 1e3);
        TRY(judge(b, "spin", str_c(&code), str_c(&answer), &v, e));
        report(b, "clock", name, 0, &v);
        if (v.speedup > 0) printf("         off %+.1f %%\n", 100 * (v.kernel_ms * 1e-3 / times[i] - 1));
        b->failed += !(v.speedup > 0);
    }
    return ST_OK;
}

/* Right answers with a millisecond of work that they hide from the clock: beside the call, in front of it, or by
 * working on the harness that they share a process with. What is asked for: the millisecond in their time, or a
 * refusal. */
static const char slow_empty[] = "from kernelrl_worker import harness\n\nreal = harness.Harness.call\n\n\n"
                                 "def call(self, request, rest):\n    if not request[\"slots\"]:\n"
                                 "        time.sleep(0.05)\n    return real(self, request, rest)\n\n\n"
                                 "harness.Harness.call = call\n\n\n";
static const char early[] =
    "from kernelrl_worker import harness\n\nreal = harness.Harness.ready\nKNOWN = {}\n\n\n"
    "def ready(self, request, rest):\n    reply = real(self, request, rest)\n    KNOWN.clear()\n"
    "    for x in self.inputs.values():\n        wait()\n"
    "        KNOWN[x[0].data_ptr()] = torch.relu(x[0])\n    return reply\n\n\n"
    "harness.Harness.ready = ready\n\n\n";
static const char no_sync[] = "from kernelrl_worker import tensors\n\n"
                              "tensors.Cuda.synchronize = lambda self: None\n"
                              "torch.cuda.synchronize = lambda *a: None\n\n\n";
static const struct hidden {
    const char *name, *top, *cpu, *gpu, *result;
} hidden[] = {
    {"side stream", "", NULL, "with torch.cuda.stream(self.side): torch.cuda._sleep(2000000)", "torch.relu(x)"},
    {"thread", "", "threading.Thread(target=wait).start()", "threading.Thread(target=wait).start()", "torch.relu(x)"},
    {"child", "", "os.fork() or (wait(), os._exit(0))", "os.fork() or (wait(), os._exit(0))", "torch.relu(x)"},
    {"slow empty call", slow_empty, "wait()", "wait()", "torch.relu(x)"},
    {"before the call", early, "pass", "pass", "KNOWN[x.data_ptr()]"},
    {"no waiting", no_sync, NULL, "torch.cuda._sleep(2000000)", "torch.relu(x)"},
    {"no waiting, side", no_sync, NULL, "with torch.cuda.stream(self.side): torch.cuda._sleep(2000000)",
     "torch.relu(x)"},
};

static enum status hidden_answers(struct bench *b, struct err *e) {
    for (size_t i = 0; i < ARRAY_LEN(hidden); i++) {
        const char *hide = b->gpu ? hidden[i].gpu : hidden[i].cpu;
        CLEANUP_STR struct str code = STR_INIT, answer = STR_INIT;
        struct verdict v;
        if (!hide) continue;
        spin_problem(b, 0, &code);
        str_adds(&answer, head);
        str_adds(&answer, "def wait():\n    end = time.perf_counter() + 1e-3\n"
                          "    while time.perf_counter() < end: pass\n\n\n");
        str_adds(&answer, hidden[i].top);
        str_addf(&answer, module_text, "ModelNew", b->gpu ? "self.side = torch.cuda.Stream()" : "pass", hide,
                 hidden[i].result);
        TRY(judge(b, "hidden", str_c(&code), str_c(&answer), &v, e));
        report(b, "hidden", hidden[i].name, 0, &v);
        bool charged = v.outcome == OUTCOME_CORRECT && v.kernel_ms >= 0.95;
        printf("         %s\n", charged ? "charged" : v.outcome != OUTCOME_CORRECT ? "refused" : "NOT CHARGED");
        b->failed += !charged && v.outcome == OUTCOME_CORRECT;
    }
    return ST_OK;
}

int main(int argc, char **argv) {
    enum { DEVICE = 256, BACKEND, WHAT, THREADS, CALLS, PROBLEMS, ONLY, JSON, METHOD, INTERVAL, BUDGET, VERBOSE };
    static const struct option options[] = {{"device", required_argument, NULL, DEVICE},
                                            {"backend", required_argument, NULL, BACKEND},
                                            {"what", required_argument, NULL, WHAT},
                                            {"threads", required_argument, NULL, THREADS},
                                            {"calls", required_argument, NULL, CALLS},
                                            {"problems", required_argument, NULL, PROBLEMS},
                                            {"only", required_argument, NULL, ONLY},
                                            {"json", required_argument, NULL, JSON},
                                            {"method", required_argument, NULL, METHOD},
                                            {"interval", required_argument, NULL, INTERVAL},
                                            {"budget", required_argument, NULL, BUDGET},
                                            {"verbose", no_argument, NULL, VERBOSE},
                                            {NULL, 0, NULL, 0}};
    struct bench b = {.o = {.measure = true, .allow_library = true, .device = "cpu", .backend = BACKEND_torch_cpu},
                      .what = "all",
                      .limit = 1000};
    struct err e = {0};
    int64_t n = 0;
    bool good = true;
    for (int c; good && (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case DEVICE: b.o.device = optarg; break;
        case BACKEND: good = backend_from_name(optarg, &b.o.backend); break;
        case WHAT: b.what = optarg; break;
        case THREADS: good = parse_i64(optarg, &n) && n > 0, b.o.threads = (int)n; break;
        case CALLS: good = parse_i64(optarg, &n) && n > 0, b.o.timed_calls = (int)n; break;
        case PROBLEMS: good = parse_i64(optarg, &n) && n > 0, b.limit = (int)n; break;
        case ONLY: b.only = optarg; break;
        case BUDGET: good = parse_f64(optarg, &b.o.timing_budget_s) && b.o.timing_budget_s > 0; break;
        case METHOD: good = timing_method_from_name(optarg, &b.o.timing_method); break;
        case INTERVAL: good = parse_f64(optarg, &b.o.interval) && b.o.interval > 0; break;
        case VERBOSE: log_set_level(LOG_DEBUG); break;
        case JSON: good = (b.json = fopen(optarg, "we")) != NULL; break;
        default: good = false;
        }
    }
    if (!good || optind < argc) {
        fputs(usage, stderr);
        return 2;
    }
    b.gpu = str_has_prefix(b.o.device, "cuda");
    bool all = strcmp(b.what, "all") == 0;
    enum status st = verifier_open(&b.o, &b.v, &e);
    if (st == ST_OK && (all || strcmp(b.what, "null") == 0)) st = null_answers(&b, &e);
    if (st == ST_OK && (all || strcmp(b.what, "spin") == 0)) st = spin_answers(&b, &e);
    if (st == ST_OK && (all || strcmp(b.what, "clock") == 0)) st = known_times(&b, &e);
    if (st == ST_OK && (all || strcmp(b.what, "hidden") == 0)) st = hidden_answers(&b, &e);
    verifier_close(b.v);
    if (b.json) fclose(b.json);
    if (st != ST_OK) fprintf(stderr, "bench/timing: %s\n", e.msg);
    return st != ST_OK || b.failed > 0;
}
