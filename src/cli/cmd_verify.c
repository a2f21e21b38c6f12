/* kernelrl verify: one answer, one verdict. */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "cli/cli.h"
#include "policy/parse.h"
#include "problem/problem.h"
#include "rl/evaluate/judge_files.h"
#include "verify/verify.h"

enum { MAX_ANSWER_BYTES = 4 << 20 };

static const char usage[] = "verify --problem P --solution S [--backend B] [--precision P] [--scoring S] [--device D]\n"
                            "                [--source SRC] [--json] [--trials N] [--timed-calls N] [--threads N] "
                            "[--timeout SECONDS] [--no-measure] [--allow-weaker]";
static const char help[] =
    "\n"
    "Compiles the answer S, runs it in a sandbox against the PyTorch problem P on secret inputs, and times it.\n"
    "\n"
    "  --problem P      a KernelBench .py file, or the key of a problem of the source (19_ReLU, 1/19)\n"
    "  --solution S     a .c file, or a text with the answer between <KERNEL> tags or in a code fence\n"
    "  --backend B      c: one C translation unit with kernel() (docs/formats.md, \"Native ABI\"); torch_cpu, triton,\n"
    "                   cuda: a KernelBench file with class ModelNew; cuda_native: a CUDA C++ unit with kernel() (c)\n"
    "  --precision P    fp32, fp16 or bf16; what floating-point tensors are cast to (fp32)\n"
    "  --scoring S      hardened, or compat: KernelBench's rule, seeds and trials (hardened)\n"
    "  --device D       cpu, or cuda:N (what the backend needs)\n"
    "  --compat-inputs  cpu: draw inputs on the CPU even for a GPU, exactly KernelBench's numbers\n"
    "  --timed-calls N  ModelNew backends (100)\n"
    "  --timing M       interleaved, calibrated, cuda_event, do_bench, do_bench_impl, host_time or nsight_python_time\n"
    "                   (interleaved; docs/formats.md)\n"
    "  --warmup N       calls in front of timed ones, at least (the method's)\n"
    "  --trim X         share of the times left out at either end; 0.5: the median (the method's)\n"
    "  --interval W     go on timing until the 95 % interval is W of the ratio wide, such as 0.02\n"
    "  --budget S       seconds that timing one answer may take (20)\n"
    "  --cache DIR      keep compiled objects there; any number of runs may share it\n"
    "  --lint L         advisory, or strict: reject what the static rules forbid (advisory)\n"
    "  --allow-library  do not ask a GPU answer for kernels of its own\n"
    "  --source SRC     builtin, a KernelBench folder or a .jsonl file; default: KERNELBENCH_ROOT, else builtin\n"
    "  --staged S       on: the first failed trial ends the trials; off: all are made (off with backend c, else on)\n"
    "  --single-input   all trials on inputs as the problem makes them, instead of several families\n"
    "  --trials N       correctness trials over all input families (5)\n"
    "  --threads N      threads for the reference and the answer (all CPUs)\n"
    "  --timeout S      seconds that all correctness trials may take (10)\n"
    "  --seed N         fixed secret seed, for repeatable inputs\n"
    "  --no-measure     do not time a correct answer\n"
    "  --allow-weaker   go on without bubblewrap, with seccomp and resource limits only\n"
    "  --json           the verdict as one JSON object\n"
    "\n"
    "verify --run-dir DIR --level L [--baseline FILE] [--pass-k 1,5]\n"
    "  Judges a folder of KernelBench generations, level_L_problem_P_sample_S_kernel.py (.c with backend c, else .cu,\n"
    "  too), into DIR/eval_results.json (KernelBench's layout) and DIR/verdicts.jsonl; goes on where it was stopped.\n"
    "verify baseline --level L --out FILE [--compile MODE]\n"
    "  Times the references of a level (with torch.compile: MODE default, max-autotune, ...) in KernelBench's layout.\n"
    "\n"
    "Exit status: 0 correct, 1 not correct or failed, 2 usage.\n";

struct verify_args {
    const char *problem, *solution, *source;
    bool json, is_baseline;
    struct verify_run run;
    struct verify_options o;
};

static enum status parse_number(const char *name, const char *text, double low, double high, double *out,
                                struct err *e) {
    if (parse_f64(text, out) && *out >= low && *out <= high) return ST_OK;
    return FAIL(e, ST_USAGE, "--%s: expected a number in [%g, %g], got \"%s\"", name, low, high, text);
}

static const char *const precisions[] = {"fp32", "fp16", "bf16", NULL},
                         *const scorings[] = {"hardened", "compat", NULL}, *const inputs[] = {"cpu", "device", NULL},
                         *const lints[] = {"advisory", "strict", NULL}, *const switches[] = {"on", "off", NULL};

/* *out: the entry of the list (NULL at its end) that the text equals. */
static enum status one_of(const char *name, const char *text, const char *const *list, const char **out,
                          struct err *e) {
    CLEANUP_STR struct str all = STR_INIT;
    for (; *list; list++) {
        *out = *list;
        if (strcmp(*list, text) == 0) return ST_OK;
        str_addf(&all, "%s%s", all.len ? ", " : "", *list);
    }
    return FAIL(e, ST_USAGE, "--%s: expected one of %s, got \"%s\"", name, str_c(&all), text);
}

static bool is_cuda_device(const char *text) {
    int64_t n;
    return str_has_prefix(text, "cuda:") && parse_i64(text + 5, &n) && n >= 0 && n < 1024;
}

static const char *const compile_modes[] = {"default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs",
                                            NULL};

static enum status parse_pass_k(const char *text, struct verify_run *r, struct err *e) {
    CLEANUP_FREE char *copy = xstrdup(text);
    char *rest = copy;
    r->n_pass_k = 0;
    for (char *one; (one = strsep(&rest, ","));) {
        int64_t k;
        if (!parse_i64(one, &k) || k < 1 || k > 10000 || r->n_pass_k == (int)ARRAY_LEN(r->pass_k))
            return FAIL(e, ST_USAGE, "--pass-k: expected up to 8 numbers of at least 1, got \"%s\"", text);
        r->pass_k[r->n_pass_k++] = (int)k;
    }
    return ST_OK;
}

/* ST_CANCELLED: help was asked for and given. */
static enum status parse_args(int argc, char **argv, struct verify_args *a, struct err *e) {
    enum {
        PROBLEM = 256,
        SOLUTION,
        BACKEND,
        PRECISION,
        SCORING,
        DEVICE,
        INPUTS,
        CALLS,
        INTERVAL,
        TIMING,
        WARMUP,
        TRIM,
        STAGED,
        SINGLE_INPUT,
        BUDGET,
        LIBRARY,
        CACHE,
        LINT,
        RUN_DIR,
        LEVEL,
        BASELINE,
        OUT,
        COMPILE,
        PASS_K,
        SOURCE,
        JSON,
        TRIALS,
        THREADS,
        TIMEOUT,
        SEED,
        NO_MEASURE,
        WEAKER,
        HELP
    };
    static const struct option options[] = {
        {"problem", required_argument, NULL, PROBLEM},
        {"solution", required_argument, NULL, SOLUTION},
        {"backend", required_argument, NULL, BACKEND},
        {"precision", required_argument, NULL, PRECISION},
        {"scoring", required_argument, NULL, SCORING},
        {"device", required_argument, NULL, DEVICE},
        {"compat-inputs", required_argument, NULL, INPUTS},
        {"timed-calls", required_argument, NULL, CALLS},
        {"interval", required_argument, NULL, INTERVAL},
        {"timing", required_argument, NULL, TIMING},
        {"warmup", required_argument, NULL, WARMUP},
        {"trim", required_argument, NULL, TRIM},
        {"staged", required_argument, NULL, STAGED},
        {"single-input", no_argument, NULL, SINGLE_INPUT},
        {"budget", required_argument, NULL, BUDGET},
        {"allow-library", no_argument, NULL, LIBRARY},
        {"lint", required_argument, NULL, LINT},
        {"cache", required_argument, NULL, CACHE},
        {"run-dir", required_argument, NULL, RUN_DIR},
        {"level", required_argument, NULL, LEVEL},
        {"baseline", required_argument, NULL, BASELINE},
        {"out", required_argument, NULL, OUT},
        {"compile", required_argument, NULL, COMPILE},
        {"pass-k", required_argument, NULL, PASS_K},
        {"source", required_argument, NULL, SOURCE},
        {"json", no_argument, NULL, JSON},
        {"trials", required_argument, NULL, TRIALS},
        {"threads", required_argument, NULL, THREADS},
        {"timeout", required_argument, NULL, TIMEOUT},
        {"seed", required_argument, NULL, SEED},
        {"no-measure", no_argument, NULL, NO_MEASURE},
        {"allow-weaker", no_argument, NULL, WEAKER},
        {"help", no_argument, NULL, HELP},
        {NULL, 0, NULL, 0},
    };
    double x;
    int64_t n;
    opterr = 0;
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case PROBLEM: a->problem = optarg; break;
        case SOLUTION: a->solution = optarg; break;
        case BACKEND:
            if (!backend_from_name(optarg, &a->o.backend))
                return FAIL(e, ST_USAGE,
                            "--backend: expected c, torch_cpu, cuda, triton, cuda_native, tilelang, cute, hip or "
                            "thunderkittens, got \"%s\"",
                            optarg);
            break;
        case PRECISION: TRY(one_of("precision", optarg, precisions, &a->o.precision, e)); break;
        case SCORING: {
            const char *scoring;
            TRY(one_of("scoring", optarg, scorings, &scoring, e));
            a->o.scoring = strcmp(scoring, "compat") == 0 ? SCORING_COMPAT : SCORING_HARDENED;
            break;
        }
        case DEVICE:
            if (strcmp(optarg, "cpu") != 0 && !is_cuda_device(optarg))
                return FAIL(e, ST_USAGE, "--device: expected cpu or cuda:N, got \"%s\"", optarg);
            a->o.device = optarg;
            break;
        case INPUTS: {
            const char *where;
            TRY(one_of("compat-inputs", optarg, inputs, &where, e));
            a->o.compat_cpu_inputs = strcmp(where, "cpu") == 0;
            break;
        }
        case CALLS:
            TRY(parse_number("timed-calls", optarg, 1, 10000, &x, e));
            a->o.timed_calls = (int)x;
            break;
        case TIMING:
            if (!timing_method_from_name(optarg, &a->o.timing_method))
                return FAIL(
                    e, ST_USAGE,
                    "--timing: expected interleaved, calibrated, cuda_event, do_bench, do_bench_impl, host_time "
                    "or nsight_python_time, got \"%s\"",
                    optarg);
            break;
        case WARMUP:
            TRY(parse_number("warmup", optarg, 1, 10000, &x, e));
            a->o.warm_calls = (int)x;
            break;
        case TRIM: TRY(parse_number("trim", optarg, 0.001, 0.5, &a->o.trim, e)); break;
        case STAGED: {
            const char *how;
            TRY(one_of("staged", optarg, switches, &how, e));
            a->o.staged = strcmp(how, "on") == 0 ? STAGED_ON : STAGED_OFF;
            break;
        }
        case SINGLE_INPUT: a->o.single_input = true; break;
        case INTERVAL: TRY(parse_number("interval", optarg, 0.001, 1, &a->o.interval, e)); break;
        case BUDGET: TRY(parse_number("budget", optarg, 0.1, 3600, &a->o.timing_budget_s, e)); break;
        case LIBRARY: a->o.allow_library = true; break;
        case LINT: {
            const char *how;
            TRY(one_of("lint", optarg, lints, &how, e));
            a->o.lint_strict = strcmp(how, "strict") == 0;
            break;
        }
        case CACHE: a->o.cache_dir = optarg; break;
        case RUN_DIR: a->run.run_dir = optarg; break;
        case LEVEL:
            TRY(parse_number("level", optarg, 1, 9, &x, e));
            a->run.level = (int)x;
            break;
        case BASELINE: a->run.baseline = optarg; break;
        case OUT: a->run.out = optarg; break;
        case COMPILE: TRY(one_of("compile", optarg, compile_modes, &a->run.compile, e)); break;
        case PASS_K: TRY(parse_pass_k(optarg, &a->run, e)); break;
        case SOURCE: a->source = optarg; break;
        case JSON: a->json = true; break;
        case TRIALS:
            TRY(parse_number("trials", optarg, 1, 100, &x, e));
            a->o.trials = (int)x;
            break;
        case THREADS:
            TRY(parse_number("threads", optarg, 1, 1024, &x, e));
            a->o.threads = (int)x;
            break;
        case TIMEOUT: TRY(parse_number("timeout", optarg, 0.01, 3600, &a->o.run_timeout_s, e)); break;
        case SEED:
            if (!parse_i64(optarg, &n) || n < 1)
                return FAIL(e, ST_USAGE, "--seed: expected a whole number of at least 1, got \"%s\"", optarg);
            a->o.seed = (uint64_t)n;
            break;
        case NO_MEASURE: a->o.measure = false; break;
        case WEAKER: a->o.allow_weaker = true; break;
        case HELP: printf("usage: kernelrl %s\n%s", usage, help); return ST_CANCELLED;
        default: return FAIL(e, ST_USAGE, "verify: bad option or missing value: %s", argv[optind - 1]);
        }
    }
    if (optind < argc && strcmp(argv[optind], "baseline") == 0) {
        a->is_baseline = true;
        optind++;
    }
    if (optind < argc) return FAIL(e, ST_USAGE, "verify: unexpected argument \"%s\"", argv[optind]);
    if (a->is_baseline || a->run.run_dir) {
        if (a->run.level == 0) return FAIL(e, ST_USAGE, "verify: --level is needed");
        if (a->is_baseline && !a->run.out) return FAIL(e, ST_USAGE, "verify baseline: --out is needed");
        return ST_OK;
    }
    if (!a->problem || !a->solution) return FAIL(e, ST_USAGE, "verify: --problem and --solution are needed");
    return ST_OK;
}

static enum status find_problem(const struct verify_args *a, struct problem_set *set, const struct problem **out,
                                struct err *e) {
    bool file = fs_is_file(a->problem);
    TRY(problem_set_load(file ? a->problem : a->source, set, e));
    *out = file && set->count == 1 ? &set->items[0] : problem_find(set, a->problem);
    if (*out) return ST_OK;
    if (file) return FAIL(e, ST_INVALID, "%s: expected one problem in a .py file, found %zu", a->problem, set->count);
    return FAIL(e, ST_INVALID, "--problem %s: no such file, and no such problem in %s", a->problem,
                a->source ? a->source : "the default source");
}

/* The C source in the solution file; NULL when it holds no kernel. Caller frees. */
static enum status read_solution(const char *path, char **out, struct err *e) {
    char *text;
    size_t n;
    TRY(fs_read(path, MAX_ANSWER_BYTES, &text, &n, e));
    *out = text;
    if (str_has_suffix(path, ".c") || str_has_suffix(path, ".py") || str_has_suffix(path, ".cu")) return ST_OK;
    struct parsed p;
    parse_completion(text, n, ANSWER_C, &p);
    *out = p.kernel.p ? xstrndup(p.kernel.p, p.kernel.n) : NULL;
    free(text);
    return ST_OK;
}

static void print_verdict(const struct problem *p, const char *path, const struct verdict *v) {
    printf("problem    %s\nsolution   %s\n", p->key ? p->key : p->name, path);
    printf("outcome    %s: %s\n", outcome_name(v->outcome), outcome_text(v->outcome));
    if (v->tests_total) printf("tests      %d of %d passed\n", v->tests_passed, v->tests_total);
    if (!isnan(v->max_error)) printf("max error  %.3g of the output's scale\n", v->max_error);
    if (v->speedup > 0) {
        printf("eager      %.4f ms\nkernel     %.4f ms\n", v->eager_ms, v->kernel_ms);
        printf("speed-up   %.2fx (95 %%: %.2f to %.2f)\n", v->speedup, v->speedup_low, v->speedup_high);
    }
    if (v->remeasured) printf("           measured again in a fresh process; the slower measurement\n");
    if (v->prepare_ms > 0) printf("prepare    %.4f ms, once per parameter set\n", v->prepare_ms);
    printf("took       compile %.0f ms, run %.0f ms, timing %.0f ms\n", v->compile_s * 1e3, v->run_s * 1e3,
           v->time_s * 1e3);
    if (v->problem_flags[0]) printf("problem is %s (docs/formats.md, Problems)\n", v->problem_flags);
    if (v->lint[0]) printf("lint       %s\n", v->lint);
    if (v->message[0]) printf("message    %s\n", v->message);
}

static enum status verify_one(const struct verify_args *a, bool *correct, struct err *e) {
    struct problem_set set = {0};
    struct verifier *v = NULL;
    struct verify_item item = {0};
    char *source = NULL;
    enum status st;
    TRY_GOTO(read_solution(a->solution, &source, e), done);
    TRY_GOTO(find_problem(a, &set, &item.problem, e), done);
    TRY_GOTO(verifier_open(&a->o, &v, e), done);
    item.source = source;
    TRY_GOTO(verify_batch(v, &item, 1, NULL, e), done);
    *correct = item.verdict.outcome == OUTCOME_CORRECT;
    if (a->json) {
        struct str s = STR_INIT;
        verdict_to_json(&item.verdict, &s);
        puts(str_c(&s));
        str_free(&s);
    } else
        print_verdict(item.problem, a->solution, &item.verdict);
done:
    verifier_close(v);
    problem_set_free(&set);
    free(source);
    return st;
}

int cmd_verify(int argc, char **argv) {
    struct verify_args a = {.o = {.measure = true}};
    struct err e = {0};
    bool correct = false;
    enum status st = parse_args(argc, argv, &a, &e);
    if (st == ST_CANCELLED) return 0;
    if (st == ST_USAGE) {
        cli_report(&e);
        return cli_usage(usage);
    }
    a.run.o = a.o;
    a.run.source = a.source;
    if (a.run.n_pass_k == 0) a.run.pass_k[a.run.n_pass_k++] = 1;
    if (a.is_baseline || a.run.run_dir) {
        st = a.is_baseline ? verify_baseline(&a.run, &e) : verify_run_dir(&a.run, &e);
        return st == ST_OK ? 0 : cli_report(&e);
    }
    st = verify_one(&a, &correct, &e);
    if (st != ST_OK) return cli_report(&e);
    return correct ? 0 : 1;
}
