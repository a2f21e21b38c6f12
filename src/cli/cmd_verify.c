/* kernelrl verify: one answer, one verdict. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/choice.h"
#include "base/fs.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/verify_hosts.h"
#include "generate/find.h"
#include "rl/evaluate/answer_reward.h"
#include "rl/evaluate/judge_files.h"
#include "rl/learn/session.h"
#include "verdicts/lines.h"
#include "verify/verify.h"

enum { MAX_ANSWER_BYTES = 4 << 20, MAX_CONFIGS = 8 };

struct verify_args {
    const char *problem, *solution, *source;
    const char *config[MAX_CONFIGS];
    int n_configs;
    bool json, jsonl, is_baseline, all_levels;
    struct verify_run run;
    struct verify_options o;
    struct pool_options pool;
};

static bool is_device(const char *text) {
    int64_t n;
    return strcmp(text, "cpu") == 0 || (str_has_prefix(text, "cuda:") && parse_i64(text + 5, &n) && n >= 0 && n < 1024);
}

static enum status take_pass_k(void *values, const char *text, struct err *e) {
    struct verify_run *r = &((struct verify_args *)values)->run;
    CLEANUP_FREE char *copy = xstrdup(text);
    char *rest = copy;
    r->n_pass_k = 0;
    for (char *one; (one = strsep(&rest, ","));) {
        int64_t k;
        if (!parse_i64(one, &k) || k < 1 || k > 10000 || r->n_pass_k == (int)ARRAY_LEN(r->pass_k))
            return FAIL(e, ST_USAGE, "expected up to 8 numbers of at least 1, got \"%s\"", text);
        r->pass_k[r->n_pass_k++] = (int)k;
    }
    return ST_OK;
}

/* Reads "1", "level1" or "level_1", as KernelBench's folders and data set are called. */
static bool read_level(const char *text, int *out) {
    int64_t n;
    if (str_has_prefix(text, "level")) text += text[5] == '_' ? 6 : 5;
    if (!parse_i64(text, &n) || n < 1 || n > VERIFY_LEVELS) return false;
    *out = (int)n;
    return true;
}

static enum status take_levels(void *values, const char *text, struct err *e) {
    struct verify_args *a = values;
    CLEANUP_FREE char *copy = xstrdup(text);
    char *rest = copy;
    a->run.n_levels = 0;
    a->all_levels = strcmp(text, "all") == 0;
    for (char *one; !a->all_levels && (one = strsep(&rest, ","));) {
        int level;
        if (!read_level(one, &level))
            return FAIL(e, ST_USAGE, "expected all, or levels from 1 to %d such as 1,2 or level1, got \"%s\"",
                        VERIFY_LEVELS, text);
        for (int i = 0; i < a->run.n_levels; i++)
            if (a->run.level[i] == level) return FAIL(e, ST_USAGE, "level %d is named twice in \"%s\"", level, text);
        a->run.level[a->run.n_levels++] = level;
    }
    return ST_OK;
}

static enum status take_config(void *values, const char *text, struct err *e) {
    struct verify_args *a = values;
    if (a->n_configs == MAX_CONFIGS) return FAIL(e, ST_USAGE, "expected at most %d files", MAX_CONFIGS);
    a->config[a->n_configs++] = text;
    return ST_OK;
}

#define A struct verify_args
#define COMPILE_MODES "default|reduce-overhead|max-autotune|max-autotune-no-cudagraphs"
static const struct args_flag flags[] = {
    FLAG_SECTION("The answer"),
    FLAG_TEXT(A, problem, "problem", "P", NULL,
              "A KernelBench .py file, or the key of a problem, says what is to be done: one of the source (19_ReLU, "
              "1/19), or "
              "generated/SEED_INDEX, as runs call problems of the generator."),
    FLAG_TEXT(A, solution, "solution", "S", NULL,
              "The answer: a .c, .cu or .py file, or a text that has it between <KERNEL> tags or in a code fence."),
    FLAG_CHOICE(A, o.backend, "backend", "B", CHOICE_TEXT(BACKEND_LIST), "c",
                "What the answer is: c is one C translation unit with kernel() (docs/formats.md, \"Native ABI\"), "
                "cuda_native a CUDA C++ unit with kernel(), and the others are KernelBench files with class ModelNew."),
    FLAG_TEXT(A, source, "source", "SRC", "KERNELBENCH_ROOT, else builtin",
              "Problems come from there: builtin, a KernelBench folder or a .jsonl file."),
    FLAG_CALL(take_config, "config", "FILE", NULL,
              "Answers are judged as a run with this configuration judges them (config.yaml of a run, too), unless "
              "other flags say otherwise, and their rewards are printed.",
              .repeats = true),
    FLAG_SECTION("Correctness"),
    FLAG_INT(A, o.trials, "trials", "N", 1, 100, "5", "That many correctness trials are made over all input families."),
    FLAG_CHOICE(A, o.precision, "precision", "P", "fp32|fp16|bf16", "fp32", "Floating-point tensors are cast to it."),
    FLAG_CHOICE(A, o.scoring, "scoring", "S", CHOICE_TEXT(SCORING_LIST), "hardened",
                "The rule: compat is KernelBench's, with its seeds and trials."),
    FLAG_CHOICE(A, o.compat_cpu_inputs, "compat-inputs", "W", "device|cpu", "device",
                "Inputs are drawn there: on the CPU they are exactly KernelBench's numbers even for a GPU."),
    FLAG_CHOICE(A, o.staged, "staged", "S", CHOICE_TEXT(STAGING_LIST), "auto",
                "With on the first failed trial ends the trials, with off all are made, and auto is off with backend c "
                "and on with others."),
    FLAG_BOOL(A, o.single_input, "single-input",
              "All trials are on inputs as the problem makes them, instead of several families."),
    FLAG_INT(A, o.seed, "seed", "N", 1, INT64_MAX, NULL, "A fixed secret seed makes the inputs repeatable."),
    FLAG_CHOICE(A, o.lint_strict, "lint", "L", "advisory|strict", "advisory",
                "With strict an answer is rejected for what the static rules forbid."),
    FLAG_BOOL(A, o.allow_library, "allow-library", "A GPU answer is not asked for kernels of its own."),
    FLAG_SECTION("Timing"),
    FLAG_NOT(A, o.measure, "no-measure", "A correct answer is not timed."),
    FLAG_CHOICE(A, o.timing_method, "timing", "M", CHOICE_TEXT(TIMING_LIST), "interleaved",
                "The method of timing (docs/formats.md)."),
    FLAG_INT(A, o.timed_calls, "timed-calls", "N", 1, 10000, "100", "So many calls of a ModelNew answer are timed."),
    FLAG_INT(A, o.warm_calls, "warmup", "N", 1, 10000, "the method's", "So many calls, at least, precede timed ones."),
    FLAG_FLOAT(A, o.trim, "trim", "X", 0.001, 0.5, "the method's",
               "That share of the times is left out at either end; 0.5 leaves the median."),
    FLAG_FLOAT(A, o.interval, "interval", "W", 0.001, 1, "the method's",
               "Timing goes on until the 95 % interval is W of the ratio wide, such as 0.02."),
    FLAG_FLOAT(A, o.timing_budget_s, "budget", "S", 0.1, 3600, "20", "Timing one answer may take so many seconds."),
    FLAG_SECTION("Where and how it runs"),
    FLAG_TEXT(A, o.device, "device", "D", "what the backend needs", "The device: cpu, or cuda:N.", .valid = is_device,
              .expected = "cpu or cuda:N"),
    FLAG_INT(A, o.threads, "threads", "N", 1, 1024, "all CPUs", "The reference and the answer have so many threads."),
    FLAG_FLOAT(A, o.run_timeout_s, "timeout", "S", 0.01, 3600, "10",
               "All correctness trials together may take so many seconds."),
    FLAG_TEXT(A, o.cache_dir, "cache", "DIR", NULL,
              "Compiled objects are kept there; any number of runs may share it."),
    FLAG_BOOL(A, o.allow_weaker, "allow-weaker",
              "Without bubblewrap it goes on with seccomp and resource limits only."),
    FLAG_BOOL(
        A, o.jail_problem, "jail-problem",
        "The problem is not trusted: its code runs jailed, too, in a process of its own. With --jsonl that holds for "
        "problems that come as text."),
    VERIFY_HOSTS_FLAGS(A, pool),
    FLAG_BOOL(A, json, "json",
              "The verdict is printed as one JSON object; with --run-dir all verdicts and the tables are."),
    FLAG_BOOL(
        A, jsonl, "jsonl",
        "Requests are read from standard input, a JSON object a line, and their verdicts are printed as they come "
        "(docs/verdict-service.md)."),
    FLAG_SECTION("Folders and baselines"),
    FLAG_TEXT(A, run.run_dir, "run-dir", "DIR", NULL, "This folder of KernelBench generations is judged."),
    FLAG_CALL(take_levels, "level", "L,L,...", NULL,
              "These KernelBench levels of the folder or baseline are taken, such as 1,2 or level1, or all that there "
              "are: all."),
    FLAG_TEXT(A, run.baseline, "baseline", "FILE", NULL,
              "Ratios are taken to the times in this file, instead of to eager times beside each answer."),
    FLAG_CALL(take_pass_k, "pass-k", "K,K,...", "1", "pass@k is computed for these k, such as 1,5."),
    FLAG_TEXT(A, run.out, "out", "FILE", NULL, "`baseline` writes there."),
    FLAG_CHOICE(A, run.compile, "compile", "MODE", COMPILE_MODES, NULL,
                "`baseline` times the references under torch.compile in this mode."),
};

const struct args_command verify_command = {
    .name = "verify",
    .usage = "--problem P --solution S [FLAG]...\n--jsonl [FLAG]...\n--run-dir DIR --level L,L,... [FLAG]...\n"
             "baseline --level L,L,... --out FILE [FLAG]...",
    .about =
        "Compiles the answer S, runs it in a sandbox against the PyTorch problem P on secret inputs, and times "
        "it.\n"
        "With --jsonl: judges what it is sent, line by line, until standard input ends.\n"
        "With --run-dir: judges a folder of KernelBench generations, level_L_problem_P_sample_S_kernel.py (.c with "
        "backend c, else .cu, too), into DIR/eval_results.json (KernelBench's layout; of several levels "
        "eval_results_level_L.json) and DIR/verdicts.jsonl, and goes on where it was stopped.\n"
        "With the word baseline: times the references of levels in KernelBench's layout.",
    .flags = flags,
    .n_flags = ARRAY_LEN(flags),
    .max_words = 1,
    .notes =
        "Exit status: 0 correct, 1 not correct or failed, 2 usage. With --jsonl: 0 when each request has a verdict, "
        "good or bad.",
};

/* The four ways to call it. */
enum verify_way { WAY_ONE = 1, WAY_FOLDER = 2, WAY_BASELINE = 4, WAY_LINES = 8 };

/* Refuses a flag that means nothing to the way it is called. Returns 0, or the exit code. */
static int check_flags(const struct args *given, enum verify_way way) {
    static const char *const names[] = {
        [WAY_ONE] = "--problem", [WAY_FOLDER] = "--run-dir", [WAY_BASELINE] = "baseline", [WAY_LINES] = "--jsonl"};
    static const struct {
        const char *flag;
        unsigned ways;
    } of[] = {{"problem", WAY_ONE},
              {"solution", WAY_ONE},
              {"level", WAY_FOLDER | WAY_BASELINE},
              {"pass-k", WAY_FOLDER},
              {"baseline", WAY_FOLDER},
              {"jsonl", WAY_LINES},
              {"run-dir", WAY_FOLDER},
              {"out", WAY_BASELINE},
              {"compile", WAY_BASELINE},
              {"jail-problem", WAY_ONE | WAY_LINES},
              {"json", WAY_ONE | WAY_FOLDER},
              {"no-measure", WAY_ONE | WAY_FOLDER | WAY_LINES},
              {"trials", WAY_ONE | WAY_FOLDER | WAY_LINES},
              {"scoring", WAY_ONE | WAY_FOLDER | WAY_LINES},
              {"allow-library", WAY_ONE | WAY_FOLDER | WAY_LINES}};
    for (size_t i = 0; i < ARRAY_LEN(of); i++)
        if (!(of[i].ways & (unsigned)way) && args_has(&verify_command, given, of[i].flag))
            return args_wrong(&verify_command, given, "--%s means nothing with %s", of[i].flag, names[way]);
    return 0;
}

/* Checks what the table cannot say: which of the three ways to call it this is. Returns 0, or the exit code. */
static int check_args(const struct args *given, struct verify_args *a) {
    if (given->n_words && strcmp(given->word[0], "baseline") != 0)
        return args_wrong(&verify_command, given, "unexpected argument \"%s\"", given->word[0]);
    a->is_baseline = given->n_words > 0;
    const enum verify_way way = a->is_baseline   ? WAY_BASELINE
                                : a->run.run_dir ? WAY_FOLDER
                                : a->jsonl       ? WAY_LINES
                                                 : WAY_ONE;
    const int wrong = check_flags(given, way);
    if (wrong) return wrong;
    if ((way & (WAY_FOLDER | WAY_BASELINE)) && a->run.n_levels == 0 && !a->all_levels)
        return args_wrong(&verify_command, given, "--level is needed");
    if (a->is_baseline && !a->run.out) return args_wrong(&verify_command, given, "baseline: --out is needed");
    if (way == WAY_ONE && a->o.jail_problem && a->pool.hosts)
        return args_wrong(&verify_command, given, "--jail-problem: such a problem is judged by this process alone");
    if (way == WAY_ONE && (!a->problem || !a->solution))
        return args_wrong(&verify_command, given, "--problem and --solution are needed");
    a->run.o = a->o;
    a->run.pool = a->pool;
    a->run.source = a->source;
    if (a->run.n_pass_k == 0) a->run.pass_k[a->run.n_pass_k++] = 1;
    return 0;
}

/* The answer in the solution file, into an episode that is zero; its kernel is NULL where it holds none. */
static enum status read_solution(const char *path, enum verify_backend backend, struct episode *ep, struct err *e) {
    CLEANUP_FREE char *text = NULL;
    size_t n;
    TRY(fs_read(path, MAX_ANSWER_BYTES, &text, &n, e));
    if (str_has_suffix(path, ".c") || str_has_suffix(path, ".py") || str_has_suffix(path, ".cu"))
        rollout_read_file(text, ep);
    else
        (void)rollout_read(backend_info(backend), text, n, ep);
    return ST_OK;
}

/* Prints the message with its further lines indented, so that none can be taken for a line of ours. */
static void print_message(const char *text) {
    printf("message    ");
    for (; *text; text++) {
        putchar(*text);
        if (*text == '\n' && text[1]) printf("%11s", "");
    }
    putchar('\n');
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
    if (v->message[0]) print_message(v->message);
}

static void print_reward(const struct episode *ep) {
    const struct reward *r = &ep->reward;
    if (ep->present)
        printf("reward     %.4f (format %g, compile %g, correct %g, speed %.4g, think %g, length %.4g)\n", r->total,
               r->format, r->compile, r->correct, r->speed, r->think, r->length);
    else
        printf("reward     none, since the verdict is missing\n");
}

static void print_json(const struct episode *ep, bool with_reward) {
    CLEANUP_STR struct str s = STR_INIT;
    verdict_to_json(&ep->verdict, &s);
    s.len--; /* the object goes on */
    answer_put(ep, with_reward, &s);
    js_end(&s, '}');
    puts(str_c(&s));
}

static enum status verify_one(const struct verify_args *a, bool *correct, struct err *e) {
    struct problem_set set = {0};
    struct judge_owner v = {0};
    struct verify_item item = {0};
    struct episode ep = {0};
    const struct rollout_params *w = a->run.weights;
    enum status st;
    if (w) TRY_GOTO(answer_weights_check(&w->weights, answer_of_file, e), done);
    TRY_GOTO(read_solution(a->solution, a->o.backend, &ep, e), done);
    st = problem_named(&set, a->source, a->problem, &item.problem, e);
    if (st != ST_OK) {
        err_note(e, "--problem");
        goto done;
    }
    TRY_GOTO(judge_open(&a->pool, &a->o, NULL, &v, e), done);
    item.source = ep.kernel;
    TRY_GOTO(v.judge.batch(v.judge.ctx, &item, 1, NULL, e), done);
    *correct = item.verdict.outcome == OUTCOME_CORRECT;
    ep.verdict = item.verdict;
    if (w) TRY_GOTO(answer_reward(w, answer_of_file, a->solution, &ep, e), done);
    if (a->json)
        print_json(&ep, w != NULL);
    else {
        print_verdict(item.problem, a->solution, &item.verdict);
        if (w) print_reward(&ep);
    }
done:
    judge_close(&v);
    problem_set_free(&set);
    free(ep.kernel);
    return st;
}

/* Requests come through standard input. */
static enum status verify_lines(const struct verify_args *a, bool *correct, struct err *e) {
    struct desk_config config = {.name = "default", .verify = a->o, .source = a->source, .weights = *a->run.weights};
    config.verify.jail_problem = false; /* problems with a key are trusted */
    const struct desk_options o = {.config = &config,
                                   .n_configs = 1,
                                   .pool = a->pool,
                                   .any_problem = true,
                                   .any_source = true,
                                   .jail_problems = a->o.jail_problem};
    struct lines_counts n = {0};
    struct desk *d;
    TRY(desk_open(&o, &d, e));
    const enum status st = lines_run(d, stdin, stdout, &n, e);
    desk_close(d);
    log_info("%lld verdicts, %lld without one, %lld requests refused", (long long)n.verdicts, (long long)n.missing,
             (long long)n.refused);
    *correct = n.missing == 0 && n.refused == 0;
    return st;
}

static enum status verify_folder(const struct verify_args *a, struct err *e) {
    CLEANUP_STR struct str text = STR_INIT;
    struct verify_run r = a->run;
    if (a->is_baseline) return verify_baseline(&r, e);
    if (a->json) r.json = &text;
    TRY(verify_run_dir(&r, e));
    if (a->json) puts(str_c(&text));
    return ST_OK;
}

/* What a run with the configuration judges by, where no flag says otherwise. The texts live as long as c. */
static enum status from_config(const struct verify_args *named, struct config *c, struct train_options *o,
                               struct verify_args *out, struct err *e) {
    for (int i = 0; i < named->n_configs; i++) TRY(config_load(c, named->config[i], e));
    TRY(train_options_finish(c, o, e));
    out->o = session_verify_options(o, NULL);
    out->o.progress = NULL;
    out->pool = o->pool;
    return session_source(o, &out->source, e);
}

static enum status verify(struct verify_args *a, bool *correct, struct err *e) {
    if (a->jsonl) return verify_lines(a, correct, e);
    if (!a->is_baseline && !a->run.run_dir) return verify_one(a, correct, e);
    *correct = true; /* a folder has answers of all kinds */
    return verify_folder(a, e);
}

int cmd_verify(int argc, char **argv) {
    struct verify_args a = {.o = {.measure = true}}, configured = {0};
    struct train_options o;
    struct config c;
    struct args given;
    struct err e = {0};
    bool correct = false;
    CLEANUP_FREE char **again = xcalloc((size_t)argc + 1, sizeof *again); /* the parser moves the words */
    memcpy(again, argv, (size_t)argc * sizeof *again);
    if (!args_parse(&verify_command, argc, argv, &a, &given)) return given.code;
    config_init(&c, &train_schema, &o);
    enum status st = ST_OK;
    struct rollout_params weights;
    if (a.n_configs > 0) {
        st = from_config(&a, &c, &o, &configured, &e);
        if (st == ST_OK && args_parse(&verify_command, argc, again, &configured, &given)) a = configured;
    } else if (a.jsonl)
        st = train_options_finish(&c, &o, &e);
    if (st == ST_OK && (a.n_configs > 0 || a.jsonl)) { /* without a file --jsonl pays as `train` does unless told */
        weights = answer_weights(&o, 1);
        a.run.weights = &weights;
    }
    const int wrong = st == ST_OK ? check_args(&given, &a) : 0;
    if (st == ST_OK && !wrong) st = verify(&a, &correct, &e);
    config_free(&c);
    return wrong ? wrong : st != ST_OK ? args_report(&e) : correct ? 0 : 1;
}
