/* kernelrl bench verify: how long verdicts take. On a CPU, distinct native answers a second; on a GPU, single answers
 * cold and with their objects compiled already, and many different ones at once. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/str.h"
#include "bench/bench.h"
#include "io/json.h"
#include "tensor/backend.h"
#include "verify/jail/time_account.h"
#include "verify/verify.h"

static const char problem_text[] = "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n"
                                   "    def forward(self, x):\n        return %s\n\n\n"
                                   "def get_inputs():\n    return [torch.rand(%d, %d)]\n\n\n"
                                   "def get_init_inputs():\n    return []\n";

/* Elementwise problems: PyTorch, CUDA and Triton for element v. */
static const struct {
    const char *torch, *cuda, *triton;
} functions[] = {
    {"torch.relu(x)", "fmaxf(v, 0.0f)", "tl.maximum(v, 0.0)"},
    {"torch.sigmoid(x)", "1.0f / (1.0f + expf(-v))", "tl.sigmoid(v)"},
    {"x * torch.sigmoid(x)", "v / (1.0f + expf(-v))", "v * tl.sigmoid(v)"},
    {"x / (1 + torch.abs(x))", "v / (1.0f + fabsf(v))", "v / (1.0 + tl.abs(v))"},
    {"torch.clamp(x, -1, 1)", "fminf(fmaxf(v, -1.0f), 1.0f)", "tl.minimum(tl.maximum(v, -1.0), 1.0)"},
    {"torch.nn.functional.leaky_relu(x, 0.01)", "v > 0.0f ? v : 0.01f * v", "tl.where(v > 0, v, 0.01 * v)"},
    {"x * x", "v * v", "v * v"},
    {"torch.exp(-torch.abs(x))", "expf(-fabsf(v))", "tl.exp(-tl.abs(v))"},
};
enum { N_FUNCTIONS = 8 };

static const char c_text[] =
    "/* %d */\nvoid kernel(const float *restrict x, float *restrict out) {\n"
    "#pragma omp parallel for\n    for (long i = 0; i < X_N; i++) out[i] = x[i] > 0 ? x[i] : 0;\n}\n";

static const char torch_text[] = "# %d\nimport torch\nimport torch.nn as nn\n\n\nclass ModelNew(nn.Module):\n"
                                 "    def forward(self, x):\n        return torch.clamp_min(x, 0)\n";

static const char cuda_text[] =
    "# %d\nimport torch\nimport torch.nn as nn\nfrom torch.utils.cpp_extension import load_inline\n\nCUDA = \"\"\"\n"
    "// %d\n#include <torch/extension.h>\n#include <cuda_runtime.h>\n\n"
    "__global__ void elementwise_answer(const float4 *x, float4 *out, long n) {\n"
    "    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;\n    if (i >= n) return;\n    float4 a = x[i], b;\n"
    "    { float v = a.x; b.x = %s; }\n    { float v = a.y; b.y = %s; }\n"
    "    { float v = a.z; b.z = %s; }\n    { float v = a.w; b.w = %s; }\n    out[i] = b;\n}\n\n"
    "torch::Tensor forward(torch::Tensor x) {\n    TORCH_CHECK(x.is_cuda(), \"on the GPU\");\n"
    "    auto out = torch::empty_like(x);\n    long n = x.numel() / 4;\n"
    "    elementwise_answer<<<(n + 255) / 256, 256>>>((const float4 *)x.data_ptr<float>(), "
    "(float4 *)out.data_ptr<float>(), n);\n    return out;\n}\n\"\"\"\n"
    "extension = load_inline(name=\"answer\", cpp_sources=\"torch::Tensor forward(torch::Tensor x);\", "
    "cuda_sources=CUDA, functions=[\"forward\"])\n\n\n"
    "class ModelNew(nn.Module):\n    def forward(self, x):\n        return extension.forward(x.contiguous())\n";

static const char triton_text[] =
    "# %d\nimport torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n\n\n@triton.jit\n"
    "def elementwise_answer(x, out, n, BLOCK: tl.constexpr):\n"
    "    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)\n    v = tl.load(x + at, mask=at < n)\n"
    "    tl.store(out + at, %s + 0.0 * %d, mask=at < n)\n\n\n"
    "class ModelNew(nn.Module):\n    def forward(self, x):\n        x = x.contiguous()\n"
    "        out = torch.empty_like(x)\n        n = x.numel()\n"
    "        elementwise_answer[(triton.cdiv(n, 4096),)](x, out, n, BLOCK=4096)\n        return out\n";

static const char native_text[] =
    "// %d\n__global__ void elementwise_answer(const float4 *x, float4 *out, long n) {\n"
    "    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;\n    if (i >= n) return;\n    float4 a = x[i], b;\n"
    "    { float v = a.x; b.x = %s; }\n    { float v = a.y; b.y = %s; }\n"
    "    { float v = a.z; b.z = %s; }\n    { float v = a.w; b.w = %s; }\n    out[i] = b;\n}\n"
    "void kernel(const float *x, float *out, cudaStream_t stream) {\n    long n = X_N / 4;\n"
    "    elementwise_answer<<<(n + 255) / 256, 256, 0, stream>>>((const float4 *)x, (float4 *)out, n);\n}\n";

/* A convolution with something fused behind it: KernelBench's second level in small. %d: images. */
static const char conv_problem_text[] =
    "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def __init__(self):\n"
    "        super().__init__()\n        self.conv = nn.Conv2d(64, 128, 3)\n"
    "        self.bias = nn.Parameter(torch.randn(128, 1, 1))\n\n    def forward(self, x):\n"
    "        return torch.relu(self.conv(x)) + self.bias\n\n\n"
    "def get_inputs():\n    return [torch.rand(%d, 64, 128, 128)]\n\n\ndef get_init_inputs():\n    return []\n";

static const char conv_text[] =
    "# %d\nimport torch\nimport torch.nn as nn\nfrom torch.utils.cpp_extension import load_inline\n\nCUDA = \"\"\"\n"
    "// %d\n#include <torch/extension.h>\n#include <cuda_runtime.h>\n\n"
    "__global__ void fused_answer(float *x, const float *bias, long n, int channels, int inner) {\n"
    "    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;\n    if (i >= n) return;\n"
    "    x[i] = fmaxf(x[i], 0.0f) + bias[i / inner %% channels];\n}\n\n"
    "torch::Tensor forward(torch::Tensor x, torch::Tensor bias) {\n    x = x.contiguous();\n    long n = x.numel();\n"
    "    fused_answer<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), bias.data_ptr<float>(), n, x.size(1), "
    "x.size(2) * x.size(3));\n    return x;\n}\n\"\"\"\n"
    "extension = load_inline(name=\"answer\", cpp_sources=\"torch::Tensor forward(torch::Tensor x, torch::Tensor "
    "bias);\", cuda_sources=CUDA, functions=[\"forward\"])\n\n\n"
    "class ModelNew(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.conv = nn.Conv2d(64, 128, 3)\n        self.bias = nn.Parameter(torch.randn(128, 1, 1))\n\n"
    "    def forward(self, x):\n        return extension.forward(self.conv(x), self.bias)\n";

static void cuda_answer(struct str *out, int f, int outside, int inside) {
    const char *v = functions[f].cuda;
    str_clear(out);
    str_addf(out, cuda_text, outside, inside, v, v, v, v);
}

static void native_answer(struct str *out, int f, int salt) {
    const char *v = functions[f].cuda;
    str_clear(out);
    str_addf(out, native_text, salt, v, v, v, v);
}

static void report(const char *what, const char *device, int answers, int correct, double seconds, int64_t held_bytes,
                   const struct verdict *one) {
    CLEANUP_STR struct str line = STR_INIT;
    js_begin(&line, NULL, '{');
    js_put_str(&line, "bench", "verify");
    js_put_str(&line, "what", what);
    js_put_str(&line, "device", device);
    js_put_i64(&line, "answers", answers);
    js_put_i64(&line, "correct", correct);
    js_put_f64(&line, "seconds", seconds);
    js_put_f64(&line, "verdicts_per_s", answers / seconds);
    if (held_bytes > 0) js_put_i64(&line, "held_bytes", held_bytes);
    if (one) {
        js_put_f64(&line, "compile_s", one->compile_s);
        js_put_f64(&line, "run_s", one->run_s);
        js_put_f64(&line, "time_s", one->time_s);
        js_put_f64(&line, "speedup", one->speedup > 0 ? one->speedup : (double)NAN);
        js_put_f64(&line, "eager_ms", one->eager_ms);
        js_put_f64(&line, "kernel_ms", one->kernel_ms);
        js_put_i64(&line, "calls", one->kernel.calls);
        if (one->outcome != OUTCOME_CORRECT) js_put_str(&line, "message", one->message);
    }
    CLEANUP_STR struct str spent = STR_INIT;
    spent_take(&spent);
    str_addf(&line, ",\"spent_s\":%s", str_c(&spent));
    js_end(&line, '}');
    puts(str_c(&line));
    fflush(stdout);
}

static enum status timed_batch(struct verifier *v, struct verify_item *items, size_t n, const char *what,
                               const char *device, struct err *e) {
    double t0 = clock_now_s();
    int correct = 0;
    TRY(verify_batch(v, items, n, NULL, e));
    double seconds = clock_now_s() - t0;
    for (size_t i = 0; i < n; i++) correct += items[i].verdict.outcome == OUTCOME_CORRECT;
    const struct verdict *shown = n == 1 ? &items[0].verdict : NULL;
    for (size_t i = 0; i < n && !shown; i++)
        if (items[i].verdict.outcome != OUTCOME_CORRECT) shown = &items[i].verdict;
    report(what, device, (int)n, correct, seconds, verifier_held_bytes(v), shown);
    return ST_OK;
}

/* Distinct answers to one problem, timed or not. The problem is loaded by one more answer, which is not counted. */
static enum status bench_batch(struct verify_options o, const char *text, const char *what, int answers,
                               struct err *e) {
    char code[800];
    struct str *sources = xcalloc((size_t)answers + 1, sizeof *sources);
    struct verify_item *items = xcalloc((size_t)answers, sizeof *items);
    snprintf(code, sizeof code, problem_text, "torch.relu(x)", 256, 1024);
    struct problem p = {.key = "relu", .name = "relu", .code = code};
    struct verifier *v = NULL;
    enum status st = verifier_open(&o, &v, e);
    for (int i = 0; i <= answers; i++) {
        str_addf(&sources[i], text, 5000 * o.measure + i);
        if (i < answers) items[i] = (struct verify_item){.problem = &p, .source = str_c(&sources[i])};
    }
    struct verify_item first = {.problem = &p, .source = str_c(&sources[answers])};
    if (st == ST_OK) st = verify_batch(v, &first, 1, NULL, e);
    if (st == ST_OK) st = timed_batch(v, items, (size_t)answers, what, "cpu", e);
    verifier_close(v);
    for (int i = 0; i <= answers; i++) str_free(&sources[i]);
    free(sources);
    free(items);
    return st;
}

enum { CUDA, TRITON, NATIVE, N_VERIFIERS };

/* What a user of the stock evaluation would wait for: one answer whose problem is new as well; the same code in another
 * answer, its objects being compiled; and one that shares nothing but the problem. */
static enum status bench_single(struct verifier *v, int which, int rows, const char *device, struct err *e) {
    static const struct {
        const char *what;
        int verifier, outside, inside;
        bool conv;
    } steps[] = {
        {"relu, cuda, cold, problem new", CUDA, 0, 0, false},
        {"relu, cuda, cached", CUDA, 1, 0, false},
        {"relu, cuda, cold", CUDA, 2, 1, false},
        {"relu, triton, cold, problem new", TRITON, 0, 0, false},
        {"relu, triton, cold", TRITON, 0, 1, false},
        {"relu, native, cold, problem new", NATIVE, 0, 0, false},
        {"relu, native, cold", NATIVE, 0, 1, false},
        {"conv, cuda, cold, problem new", CUDA, 0, 0, true},
        {"conv, cuda, cached", CUDA, 1, 0, true},
        {"conv, cuda, cold", CUDA, 2, 1, true},
    };
    char relu[800], conv[800];
    CLEANUP_STR struct str s = STR_INIT;
    snprintf(relu, sizeof relu, problem_text, functions[0].torch, rows, 393216);
    snprintf(conv, sizeof conv, conv_problem_text, rows >= 32 ? rows / 32 : 1);
    struct problem problems[] = {{.key = "relu", .name = "relu", .code = relu},
                                 {.key = "conv", .name = "conv", .code = conv}};
    int salt = (int)(clock_now_ns() % 1000000007);
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        if (steps[i].verifier != which) continue;
        int outside = steps[i].outside, inside = salt + steps[i].inside;
        str_clear(&s);
        if (steps[i].conv)
            str_addf(&s, conv_text, outside, inside);
        else if (steps[i].verifier == CUDA)
            cuda_answer(&s, 0, outside, inside);
        else if (steps[i].verifier == TRITON)
            str_addf(&s, triton_text, outside, functions[0].triton, inside);
        else
            native_answer(&s, 0, inside);
        struct verify_item it = {.problem = &problems[steps[i].conv], .source = str_c(&s)};
        TRY(timed_batch(v, &it, 1, steps[i].what, device, e));
    }
    return ST_OK;
}

/* An answer of verifier `which` to function f; outside differs between answers that share what is compiled (a native
 * one is compiled as a whole). */
static void make_answer(struct str *out, int which, int f, int outside, int inside) {
    str_clear(out);
    if (which == TRITON)
        str_addf(out, triton_text, outside, functions[f].triton, inside);
    else if (which == CUDA)
        cuda_answer(out, f, outside, inside);
    else
        native_answer(out, f, outside);
}

/* Different answers, cold; *seconds and *correct grow by what they took and how many were right. */
static enum status bench_many(struct verifier *v, const char *what, int which, int answers, const char *device,
                              double *seconds, int *correct, struct err *e) {
    struct str *sources = xcalloc((size_t)answers, sizeof *sources);
    struct verify_item *items = xcalloc((size_t)answers, sizeof *items);
    struct problem problems[N_FUNCTIONS];
    char code[N_FUNCTIONS][800], keys[N_FUNCTIONS][20];
    int salt = (int)(clock_now_ns() % 1000000007), each = (answers + N_FUNCTIONS - 1) / N_FUNCTIONS;
    for (int f = 0; f < N_FUNCTIONS; f++) {
        snprintf(code[f], sizeof code[f], problem_text, functions[f].torch, 4096, 16384);
        snprintf(keys[f], sizeof keys[f], "function%d", f);
        problems[f] = (struct problem){.key = keys[f], .name = keys[f], .code = code[f]};
    }
    for (int i = 0; i < answers; i++) {
        int f = i / each;
        make_answer(&sources[i], which, f, i, salt + i);
        items[i] = (struct verify_item){.problem = &problems[f], .source = str_c(&sources[i])};
    }
    const double begun = clock_now_s();
    enum status st = timed_batch(v, items, (size_t)answers, what, device, e);
    *seconds += clock_now_s() - begun;
    for (int i = 0; i < answers; i++) *correct += items[i].verdict.outcome == OUTCOME_CORRECT;
    /* Some of them alone, twice, their objects being compiled: how far ratios are from those, and those from each
     * other. The problem changes from one to the next, so that each measurement has a reference's process of its own,
     * as in the batch. "each": of the batch the ratio, its interval, both times in ms; of both others the ratio and the
     * times. */
    enum { ALONE = 6 };
    const int alone_n = answers < ALONE ? answers : ALONE;
    struct verdict alone[2][ALONE];
    double off[2] = {0, 0}, worst[2] = {0, 0};
    CLEANUP_STR struct str ratios = STR_INIT;
    int n = 0;
    for (int m = 0; m < 2 * alone_n && st == ST_OK; m++) {
        const int t = m / alone_n, k = m % alone_n, i = k * answers / alone_n, f = i / each;
        make_answer(&sources[i], which, f, salt + answers * (t + 1) + i, salt + i);
        struct verify_item it = {.problem = &problems[f], .source = str_c(&sources[i])};
        st = verify_batch(v, &it, 1, NULL, e);
        alone[t][k] = it.verdict;
    }
    for (int k = 0; k < alone_n && st == ST_OK; k++) {
        const struct verdict *d[3] = {&items[k * answers / alone_n].verdict, &alone[0][k], &alone[1][k]};
        if (d[0]->speedup <= 0 || d[1]->speedup <= 0 || d[2]->speedup <= 0) continue;
        for (int t = 0; t < 2; t++) {
            double o = fabs(d[t]->speedup / d[t + 1]->speedup - 1);
            off[t] += o;
            worst[t] = fmax(worst[t], o);
        }
        str_addf(&ratios, "%s[%.4f,%.4f,%.4f", n++ ? "," : "", d[0]->speedup, d[0]->speedup_low, d[0]->speedup_high);
        for (int t = 0; t < 3; t++) {
            if (t > 0) str_addf(&ratios, ",%.4f", d[t]->speedup);
            str_addf(&ratios, ",%.4f,%.4f", d[t]->eager_ms, d[t]->kernel_ms);
        }
        str_addc(&ratios, ']');
    }
    if (st == ST_OK && n > 0)
        printf("{\"bench\":\"verify\",\"what\":\"%s: ratios\",\"answers\":%d,\"off_from_alone\":%.4f,"
               "\"worst\":%.4f,\"alone_twice\":%.4f,\"worst_of_these\":%.4f,\"each\":[%s]}\n",
               what, n, off[0] / n, worst[0], off[1] / n, worst[1], str_c(&ratios));
    fflush(stdout);
    for (int i = 0; i < answers; i++) str_free(&sources[i]);
    free(sources);
    free(items);
    return st;
}

/* One backend after the other (NULL: all): their referees would fill the GPU's memory together. */
static enum status bench_gpu(struct verify_options o, const char *backends, int answers, int rows, struct err *e) {
    static const struct {
        enum verify_backend backend;
        const char *started, *many;
    } parts[N_VERIFIERS] = {{BACKEND_cuda, "verifier started, cuda", "cuda, different, cold"},
                            {BACKEND_triton, "verifier started, triton", "triton, different, cold"},
                            {BACKEND_cuda_native, "verifier started, native", "native, different, cold"}};
    enum status st = ST_OK;
    double seconds = 0;
    int judged = 0, correct = 0;
    o.measure = true;
    for (int i = 0; i < N_VERIFIERS && st == ST_OK; i++) {
        if (backends && str_index_in(backends, backend_name(parts[i].backend), ',') < 0) continue;
        struct verifier *v = NULL;
        double t0 = clock_now_s();
        o.backend = parts[i].backend;
        st = verifier_open(&o, &v, e);
        if (st == ST_OK) report(parts[i].started, o.device, 0, 0, clock_now_s() - t0, 0, NULL);
        if (st == ST_OK && rows > 0) st = bench_single(v, i, rows, o.device, e);
        if (st == ST_OK && answers >= 2) {
            st = bench_many(v, parts[i].many, i, answers / 2, o.device, &seconds, &correct, e);
            judged += answers / 2;
        }
        verifier_close(v);
    }
    if (st == ST_OK && judged > answers / 2)
        report("all backends, different, cold", o.device, judged, correct, seconds, 0, NULL);
    return st;
}

static enum status bench_cpu(struct verify_options o, const char *backends, int answers, struct err *e) {
    static const struct {
        enum verify_backend backend;
        bool timed;
        const char *text, *what;
    } parts[] = {{BACKEND_c, false, c_text, "c, not timed"},
                 {BACKEND_c, true, c_text, "c, timed"},
                 {BACKEND_torch_cpu, false, torch_text, "torch_cpu, not timed"},
                 {BACKEND_torch_cpu, true, torch_text, "torch_cpu, timed"}};
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        if (backends && str_index_in(backends, backend_name(parts[i].backend), ',') < 0) continue;
        o.backend = parts[i].backend;
        o.measure = parts[i].timed;
        /* A ModelNew answer has a process and a Python of its own, and takes so many times as long. */
        const int n = parts[i].backend == BACKEND_c ? answers : (answers + 7) / 8;
        TRY(bench_batch(o, parts[i].text, parts[i].what, n, e));
    }
    return ST_OK;
}

/* Whether all of a list "a,b" can be judged there. */
static bool are_judged(const char *list, bool on_cpu) {
    const char *p = list;
    for (; *p; p += strcspn(p, ","), p += *p == ',') {
        char name[40];
        enum verify_backend known;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(p, ","), p);
        if (!backend_from_name(name, &known)) return false;
        const bool cpu = known == BACKEND_c || known == BACKEND_torch_cpu;
        if (cpu != on_cpu || (!cpu && known != BACKEND_cuda && known != BACKEND_triton && known != BACKEND_cuda_native))
            return false;
    }
    return p > list;
}

struct bench_verify_args {
    const char *device, *backends;
    int answers, threads, rows;
    bool weaker;
};

#define A struct bench_verify_args
static const struct args_flag flags[] = {
    FLAG_TEXT(A, device, "device", "NAME", "cpu", "Answers are judged there.", .valid = backend_device_valid,
              .expected = "cpu, cuda or cuda:N"),
    FLAG_TEXT(A, backends, "backend", "LIST", "all of them",
              "Answers are of these: of c,torch_cpu with --device cpu, else of cuda,triton,cuda_native."),
    FLAG_INT(A, answers, "answers", "N", 0, 4096, "64",
             "So many different answers are judged at once; 0 on a GPU leaves single ones alone."),
    FLAG_INT(A, rows, "rows", "N", 0, 65536, "4096",
             "Problems for single answers on a GPU have so many rows; 0 leaves single ones out."),
    FLAG_INT(A, threads, "threads", "N", 1, 1024, "all CPUs", "So many threads work."),
    FLAG_BOOL(A, weaker, "allow-weaker", "Answers run without bubblewrap when it is missing."),
};
#undef A

const struct args_command bench_verify_command = {
    .name = "bench verify",
    .usage = "[FLAG]...",
    .about = "Measures verdicts a second, and on a GPU the seconds of single ones, too.",
    .flags = flags,
    .n_flags = ARRAY_LEN(flags),
};

int bench_verify(int argc, char **argv) {
    const struct args_command *c = &bench_verify_command;
    struct bench_verify_args a = {.device = "cpu", .answers = 64, .rows = 4096};
    struct args given;
    struct err e = {0};
    if (!args_parse(c, argc, argv, &a, &given)) return given.code;
    const bool cpu = strcmp(a.device, "cpu") == 0;
    if (cpu && a.answers < 2)
        return args_wrong(c, &given, "--answers: expected at least 2 on a CPU, got %d", a.answers);
    if (a.backends && !are_judged(a.backends, cpu))
        return args_wrong(c, &given, "--backend: expected some of %s, got \"%s\"",
                          cpu ? "c,torch_cpu" : "cuda,triton,cuda_native", a.backends);
    char cache[] = "/tmp/kernelrl-bench-XXXXXX";
    if (!mkdtemp(cache)) return args_report(&(struct err){.code = ST_IO, .msg = "cannot make a directory in /tmp"});
    /* The cache is new: what is called cold is cold. */
    const struct verify_options o = {
        .device = a.device, .threads = a.threads, .allow_weaker = a.weaker, .cache_dir = cache};
    enum status st = cpu ? bench_cpu(o, a.backends, a.answers, &e) : bench_gpu(o, a.backends, a.answers, a.rows, &e);
    struct err ignored;
    if (fs_remove(cache, &ignored) != ST_OK) fprintf(stderr, "%s: %s\n", cache, ignored.msg);
    return st == ST_OK ? 0 : args_report(&e);
}
