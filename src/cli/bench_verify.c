/* kernelrl bench verify: how long verdicts take. On a CPU, distinct native answers a second; on a GPU, single answers
 * cold and with their objects compiled already, and many different ones at once. */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/str.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "io/json.h"
#include "verify/verify.h"

static const char usage[] =
    "bench verify [--device cpu|cuda:N] [--answers N] [--threads N] [--rows N] [--allow-weaker]";

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

static void cuda_answer(struct str *out, int f, int outside, int inside) {
    const char *v = functions[f].cuda;
    str_clear(out);
    str_addf(out, cuda_text, outside, inside, v, v, v, v);
}

static void report(const char *what, const char *device, int answers, int correct, double seconds,
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
    if (one) {
        js_put_f64(&line, "compile_s", one->compile_s);
        js_put_f64(&line, "run_s", one->run_s);
        js_put_f64(&line, "time_s", one->time_s);
        js_put_f64(&line, "speedup", one->speedup > 0 ? one->speedup : (double)NAN);
        js_put_f64(&line, "eager_ms", one->eager_ms);
        js_put_f64(&line, "kernel_ms", one->kernel_ms);
        if (one->outcome != OUTCOME_CORRECT) js_put_str(&line, "message", one->message);
    }
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
    report(what, device, (int)n, correct, seconds, shown);
    return ST_OK;
}

static enum status bench_cpu(struct verify_options o, int answers, struct err *e) {
    char code[800];
    struct str *sources = xcalloc((size_t)answers + 1, sizeof *sources);
    struct verify_item *items = xcalloc((size_t)answers, sizeof *items);
    snprintf(code, sizeof code, problem_text, "torch.relu(x)", 256, 1024);
    struct problem p = {.key = "relu", .name = "relu", .code = code};
    enum status st = ST_OK;
    for (int timed = 0; timed < 2 && st == ST_OK; timed++) {
        struct verifier *v = NULL;
        o.measure = timed;
        st = verifier_open(&o, &v, e);
        /* The problem is loaded by one more answer, which is not counted. */
        for (int i = 0; i <= answers; i++) {
            str_clear(&sources[i]);
            str_addf(&sources[i], c_text, 1000 * timed + i);
            if (i < answers) items[i] = (struct verify_item){.problem = &p, .source = str_c(&sources[i])};
        }
        struct verify_item first = {.problem = &p, .source = str_c(&sources[answers])};
        if (st == ST_OK) st = verify_batch(v, &first, 1, NULL, e);
        if (st == ST_OK) st = timed_batch(v, items, (size_t)answers, timed ? "c, timed" : "c, not timed", "cpu", e);
        verifier_close(v);
    }
    for (int i = 0; i <= answers; i++) str_free(&sources[i]);
    free(sources);
    free(items);
    return st;
}

/* What a user of the stock evaluation would wait for: one answer, cold; again, its objects being compiled; in Triton.
 */
static enum status bench_single(struct verifier *v, struct verifier *triton, int rows, const char *device,
                                struct err *e) {
    char code[800];
    CLEANUP_STR struct str s = STR_INIT, t = STR_INIT;
    snprintf(code, sizeof code, problem_text, functions[0].torch, rows, 393216);
    struct problem p = {.key = "relu", .name = "relu", .code = code};
    int salt = (int)(clock_now_ns() % 1000000007);
    for (int i = 0; i < 3; i++) {
        cuda_answer(&s, 0, i, salt + (i == 2));
        struct verify_item it = {.problem = &p, .source = str_c(&s)};
        TRY(timed_batch(v, &it, 1,
                        i == 0   ? "cuda, cold, problem new"
                        : i == 1 ? "cuda, cached"
                                 : "cuda, cold",
                        device, e));
    }
    for (int i = 0; i < 2; i++) {
        str_clear(&t);
        str_addf(&t, triton_text, i, functions[0].triton, salt + i);
        struct verify_item it = {.problem = &p, .source = str_c(&t)};
        TRY(timed_batch(triton, &it, 1, i == 0 ? "triton, cold, problem new" : "triton, cold", device, e));
    }
    return ST_OK;
}

static enum status bench_many(struct verifier *v, const char *what, bool is_triton, int answers, const char *device,
                              struct err *e) {
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
        if (is_triton)
            str_addf(&sources[i], triton_text, i, functions[f].triton, salt + i);
        else
            cuda_answer(&sources[i], f, i, salt + i);
        items[i] = (struct verify_item){.problem = &problems[f], .source = str_c(&sources[i])};
    }
    enum status st = timed_batch(v, items, (size_t)answers, what, device, e);
    for (int i = 0; i < answers; i++) str_free(&sources[i]);
    free(sources);
    free(items);
    return st;
}

static enum status bench_gpu(struct verify_options o, int answers, int rows, struct err *e) {
    struct verifier *cuda = NULL, *triton = NULL;
    enum status st;
    double t0 = clock_now_s();
    o.measure = true;
    o.backend = BACKEND_cuda;
    TRY_GOTO(verifier_open(&o, &cuda, e), done);
    o.backend = BACKEND_triton;
    TRY_GOTO(verifier_open(&o, &triton, e), done);
    report("two verifiers started", o.device, 0, 0, clock_now_s() - t0, NULL);
    TRY_GOTO(bench_single(cuda, triton, rows, o.device, e), done);
    TRY_GOTO(bench_many(cuda, "cuda, different, cold", false, answers / 2, o.device, e), done);
    st = bench_many(triton, "triton, different, cold", true, answers / 2, o.device, e);
done:
    verifier_close(cuda);
    verifier_close(triton);
    return st;
}

int bench_verify(int argc, char **argv) {
    enum { DEVICE = 256, ANSWERS, THREADS, ROWS, WEAKER };
    static const struct option options[] = {
        {"device", required_argument, NULL, DEVICE},   {"answers", required_argument, NULL, ANSWERS},
        {"threads", required_argument, NULL, THREADS}, {"rows", required_argument, NULL, ROWS},
        {"allow-weaker", no_argument, NULL, WEAKER},   {NULL, 0, NULL, 0}};
    struct verify_options o = {.device = "cpu"};
    struct err e = {0};
    int64_t answers = 64, threads = 0, rows = 4096;
    opterr = 0;
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        bool good = true;
        switch (c) {
        case DEVICE: o.device = optarg; break;
        case ANSWERS: good = parse_i64(optarg, &answers) && answers >= 2 && answers <= 4096; break;
        case THREADS: good = parse_i64(optarg, &threads) && threads >= 1 && threads <= 1024; break;
        case ROWS: good = parse_i64(optarg, &rows) && rows >= 1 && rows <= 65536; break;
        case WEAKER: o.allow_weaker = true; break;
        default: good = false;
        }
        if (!good) return cli_usage(usage);
    }
    if (optind < argc) return cli_usage(usage);
    o.threads = (int)threads;
    char cache[] = "/tmp/kernelrl-bench-XXXXXX";
    if (!mkdtemp(cache)) return cli_report(&(struct err){.code = ST_IO, .msg = "cannot make a directory in /tmp"});
    o.cache_dir = cache; /* new: what is called cold is cold */
    bool cpu = strcmp(o.device, "cpu") == 0;
    enum status st = cpu ? bench_cpu(o, (int)answers, &e) : bench_gpu(o, (int)answers, (int)rows, &e);
    struct err ignored;
    if (fs_remove(cache, &ignored) != ST_OK) fprintf(stderr, "%s: %s\n", cache, ignored.msg);
    return st == ST_OK ? 0 : cli_report(&e);
}
