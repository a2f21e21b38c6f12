/* kernelrl problems: list and show problems of any source, and generate new ones with right and wrong answers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/str.h"
#include "cli/cli.h"
#include "cli/problems.h"
#include "cli/verify_hosts.h"
#include "generate/find.h"
#include "generate/generator.h"
#include "io/json.h"
#include "io/jsonl.h"
#include "verify/verify.h"

enum { BATCH_PROBLEMS = 16, STYLES_MAX = GEN_STYLES > (int)GEN_TRITON_STYLES ? GEN_STYLES : GEN_TRITON_STYLES };

struct problems_args {
    const char *source, *out, *recipe;
    const char *device, *written_in;
    bool json, answers, broken, verify, weaker, untimed;
    enum verify_backend backend;
    int64_t count, seed, first, per_problem, threads;
    const char *ops; /* filters; level and difficulty 0, split -1: any */
    int64_t level, difficulty;
    int split;
    enum label_method by;
    double timeout_s;
    struct pool_options pool;
};

#define A struct problems_args
#define OF_FILTERS "list check label"
#define COUNT_MAX (INT32_MAX - 1)
static const struct args_flag problems_flags[] = {
    FLAG_SECTION("Which problems"),
    FLAG_TEXT(A, source, "source", "SRC", "KERNELBENCH_ROOT, else builtin",
              "Problems come from there: builtin, a KernelBench folder, a .py or .jsonl file.",
              .of = "list show check label"),
    FLAG_INT(A, level, "level", "N", 0, COUNT_MAX, "0, any", "Only problems of that level are taken.",
             .of = OF_FILTERS),
    FLAG_CHOICE(A, split, "split", "S", "train|test", NULL, "Only problems of that split are taken.", .of = OF_FILTERS),
    FLAG_INT(A, difficulty, "difficulty", "N", 0, COUNT_MAX, "0, any", "Only problems of that difficulty are taken.",
             .of = OF_FILTERS),
    FLAG_TEXT(A, ops, "ops", "WORD", NULL, "Only problems with that operator are taken.", .of = OF_FILTERS),
    FLAG_SECTION("Looking at them"),
    FLAG_BOOL(A, json, "json", "Each problem is printed as one JSON object a line.", .of = "list check"),
    FLAG_CHOICE(A, by, "by", "HOW", "text|operators|cost", "text", "Labels rest on that.", .of = "label"),
    FLAG_FLOAT(A, timeout_s, "timeout", "S", 0.001, 1e6, "60", "One problem may take so many seconds.",
               .of = "check label"),
    FLAG_SECTION("Generating"),
    FLAG_INT(A, count, "count", "N", 0, COUNT_MAX, NULL, "So many problems are generated.", .of = "generate"),
    FLAG_TEXT(A, recipe, "recipe", "R", NULL,
              "One problem is generated, with these sizes and operators, e.g. \"rows 64x512 linear:256 gelu softmax\".",
              .of = "generate"),
    FLAG_INT(A, seed, "seed", "S", 0, COUNT_MAX, "0", "The stream has that seed.", .of = "generate"),
    FLAG_INT(A, first, "first", "I", 0, COUNT_MAX, "0", "The first problem has that index in the stream.",
             .of = "generate"),
    FLAG_TEXT(A, out, "out", "PATH", "standard output",
              "`label` writes this file; `generate` writes into this folder, which is made if it is missing, and "
              "replaces files of an earlier run there.",
              .alias = "output", .of = "label generate"),
    FLAG_SECTION("Answers to generated problems"),
    FLAG_BOOL(A, answers, "answers", "Correct answers are written too, one a style; --out is needed.",
              .of = "generate"),
    FLAG_CHOICE(A, written_in, "backend", "B", "c|triton|cuda_native", "c",
                "Answers are written in it; problems whose operators have no such kernels have no answers then.",
                .of = "generate"),
    FLAG_INT(A, per_problem, "per-problem", "N", 0, COUNT_MAX, "0, all",
             "So many answers a problem are drawn by how common a style is.", .of = "generate"),
    FLAG_BOOL(A, broken, "broken", "A wrong variant of one is written too; that needs --answers and backend c.",
              .of = "generate"),
    FLAG_BOOL(A, verify, "verify",
              "All answers are judged; right ones that fail are left out and reported, wrong ones keep their verdict "
              "(with --answers).",
              .of = "generate"),
    FLAG_BOOL(A, untimed, "untimed", "They are judged without timing, so that there are no speed-ups.",
              .of = "generate"),
    FLAG_TEXT(A, device, "device", "D", "cuda:0",
              "Those for a GPU are judged there: on cuda or cuda:N, and Triton's also on cpu (its interpreter).",
              .of = "generate"),
    FLAG_INT(A, threads, "threads", "N", 0, COUNT_MAX, "0, all CPUs",
             "The reference and answers have so many threads while they are judged.", .of = "generate"),
    FLAG_BOOL(A, weaker, "allow-weaker", "They are judged without bubblewrap when it is missing.", .of = "generate"),
    VERIFY_HOSTS_FLAGS(A, pool, .of = "generate"),
};

static const struct args_sub subs[] = {
    {.name = "list",
     .help = "Prints key, level, split, difficulty and operators of every problem, and its known defects."},
    {.name = "show",
     .words = "KEY",
     .min = 1,
     .max = 1,
     .help = "Prints the PyTorch module of one problem: a key of the source, or a generated one by the key that runs "
             "call it by, generated/SEED_INDEX."},
    {.name = "prompt",
     .words = "KEY [key=value]...",
     .max = -1,
     .help = "Prints the prompt of one problem as training shows it; its flags stand below.",
     .rest = true},
    {.name = "export",
     .words = "[key=value]...",
     .max = -1,
     .help = "Writes problems with their prompts for another program; its flags stand below.",
     .rest = true},
    {.name = "check",
     .words = "[KEY]...",
     .max = -1,
     .help = "Runs the references and names problems that reward the wrong thing: random, constant, blind to their "
             "inputs, below the tolerance, not finite, or broken. Exit status 1 when there is one."},
    {.name = "label",
     .words = "[KEY]...",
     .max = -1,
     .help = "Prints the difficulty of every problem, 1 to 3, as JSON lines: by the text (layers and lines), by the "
             "operators of forward(), or by the measured cost (thirds of eager time)."},
    {.name = "generate",
     .help = "Makes new problems, a pure function of the seed: as JSON lines on standard output, or into DIR as "
             "problems.jsonl, difficulty_labels.jsonl and answers.jsonl."},
};

static const struct args_command *const more[] = {&problems_prompt_command, &problems_export_command, NULL};

const struct args_command problems_command = {
    .name = "problems",
    .usage = "list [FILTER]... [--json]\nshow KEY [--source SRC]\nprompt KEY [key=value]...\n"
             "export [--output FILE] [key=value]...\ncheck [KEY]... [FLAG]...\n"
             "label [KEY]... [--by HOW] [FLAG]...\ngenerate --count N | --recipe R [--out DIR] [FLAG]...",
    .flags = problems_flags,
    .n_flags = ARRAY_LEN(problems_flags),
    .subs = subs,
    .n_subs = ARRAY_LEN(subs),
    .more = more,
};

static bool passes(const struct problems_args *a, const struct problem *p) {
    return (a->level == 0 || p->level == a->level) && (a->difficulty == 0 || p->difficulty == a->difficulty) &&
           (a->split < 0 || (int)p->split == a->split) &&
           (!a->ops || (p->ops && str_index_in(p->ops, a->ops, ' ') >= 0));
}

void problems_put_columns(struct str *s, const struct problem *p, bool code) {
    js_put_str(s, "key", p->key);
    js_put_i64(s, "level", p->level);
    js_put_i64(s, "problem_id", p->problem_id);
    js_put_str(s, "name", p->name);
    js_put_str(s, "split", p->split == SPLIT_TEST ? "test" : "train");
    js_put_i64(s, "difficulty", p->difficulty);
    js_put_str(s, "ops", p->ops);
    CLEANUP_STR struct str flags = STR_INIT;
    problem_flags(p, &flags);
    if (flags.len) js_put_str(s, "flags", str_c(&flags));
    if (code) js_put_str(s, "code", p->code);
}

static void put_problem(struct str *s, const struct problem *p, bool code) {
    js_begin(s, NULL, '{');
    problems_put_columns(s, p, code);
    js_end(s, '}');
    str_addc(s, '\n');
}

static enum status list(const struct problems_args *a, struct err *e) {
    struct problem_set set;
    TRY(problem_set_load(a->source, &set, e));
    struct str s = STR_INIT;
    size_t tests = 0, shown = 0;
    for (size_t i = 0; i < set.count; i++) {
        const struct problem *p = &set.items[i];
        if (!passes(a, p)) continue;
        shown++;
        tests += p->split == SPLIT_TEST;
        if (a->json)
            put_problem(&s, p, false);
        else {
            CLEANUP_STR struct str flags = STR_INIT;
            problem_flags(p, &flags);
            str_addf(&s, "%-44s level %d  %-5s  difficulty %d  %s%s%s%s\n", p->key, p->level,
                     p->split == SPLIT_TEST ? "test" : "train", p->difficulty, p->ops ? p->ops : "-",
                     flags.len ? "  [" : "", str_c(&flags), flags.len ? "]" : "");
        }
    }
    if (!a->json) str_addf(&s, "%zu problems, %zu of them for testing\n", shown, tests);
    fputs(str_c(&s), stdout);
    str_free(&s);
    problem_set_free(&set);
    return ST_OK;
}

static enum status show(const struct problems_args *a, const char *key, struct err *e) {
    struct problem_set set = {0};
    const struct problem *p;
    const enum status st = problem_named(&set, a->source, key, &p, e);
    if (st == ST_OK) fputs(p->code, stdout);
    problem_set_free(&set);
    return st;
}

/* check and label: the problems named, or all that pass the filters. */
static enum status look_at(const struct problems_args *a, bool label, char **keys, int n_keys, bool *bad,
                           struct err *e) {
    struct problem_set set;
    TRY(problem_set_load(a->source, &set, e));
    const struct problem **chosen = xcalloc(set.count + (size_t)n_keys + 1, sizeof *chosen);
    size_t n = 0;
    int findings = 0;
    enum status st = ST_OK;
    for (int i = 0; i < n_keys && st == ST_OK; i++) st = problem_named(&set, a->source, keys[i], &chosen[n++], e);
    for (size_t i = 0; i < set.count && n_keys == 0; i++)
        if (passes(a, &set.items[i])) chosen[n++] = &set.items[i];
    if (st == ST_OK && n == 0) st = FAIL(e, ST_INVALID, "no problem passes the filters");
    if (st == ST_OK && label) st = problems_label(chosen, n, a->by, a->timeout_s, a->out, e);
    if (st == ST_OK && !label) st = problems_check(chosen, n, a->timeout_s, a->json, &findings, e);
    *bad = findings > 0;
    free(chosen);
    problem_set_free(&set);
    return st;
}

/* ---- generate --------------------------------------------------------------------------------------------------- */

struct problems_answer {
    const struct problem *problem;
    int style;  /* enum gen_style, gen_triton_style or gen_cuda_style */
    int broken; /* enum gen_break, or -1 */
    const char *source;
};

static int style_count(const struct problems_args *a) {
    return a->backend == BACKEND_triton        ? (int)GEN_TRITON_STYLES
           : a->backend == BACKEND_cuda_native ? (int)GEN_CUDA_STYLES
                                               : (int)GEN_STYLES;
}
static const char *style_name(const struct problems_args *a, int s) {
    return a->backend == BACKEND_triton        ? gen_triton_style_name((enum gen_triton_style)s)
           : a->backend == BACKEND_cuda_native ? gen_cuda_style_name((enum gen_cuda_style)s)
                                               : gen_style_name((enum gen_style)s);
}
static int style_share(const struct problems_args *a, int s) {
    return a->backend == BACKEND_triton        ? gen_triton_style_share((enum gen_triton_style)s)
           : a->backend == BACKEND_cuda_native ? gen_cuda_style_share((enum gen_cuda_style)s)
                                               : gen_style_share((enum gen_style)s);
}
static const char *answer_of(const struct problems_args *a, const struct gen_item *it, int s) {
    return a->backend == BACKEND_triton        ? it->triton[s]
           : a->backend == BACKEND_cuda_native ? it->cuda[s]
                                               : it->answers[s];
}

struct files {
    struct jsonl_writer *problems, *labels, *answers;
};

struct problems_tally {
    int64_t problems, right, wrong, failed, survived; /* survived: broken answers that are correct all the same */
    int64_t style_failed[STYLES_MAX];
    double started_s;
    const volatile bool *cancel;
};

static enum status open_file(const char *dir, const char *name, struct jsonl_writer **out, struct err *e) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return FAIL(e, ST_INVALID, "%s: path too long", dir);
    TRY(fs_remove(path, e));
    return jsonl_append_open(path, out, NULL, e);
}

/* The text after the plan line: two styles may lead to the same code. */
static const char *code_of(const char *answer) {
    const char *nl = strchr(answer, '\n');
    return nl ? nl + 1 : answer;
}

/* Up to `per_problem` right answers (0: all different ones), drawn by their styles' shares, and a wrong variant of one.
 */
static size_t collect(const struct problems_args *a, const struct gen_item *it, uint64_t index, struct arena *ar,
                      struct problems_answer *out) {
    size_t n = 0, drawn = 0;
    int share[STYLES_MAX], left = 0;
    for (int s = style_count(a) - 1; s >= 0; s--) { /* from the best style down, so that its plan is the one kept */
        const char *source = answer_of(a, it, s);
        size_t k = 0;
        if (!source) continue;
        while (k < n && strcmp(code_of(out[k].source), code_of(source)) != 0) k++;
        if (k == n) {
            share[n] = 0;
            out[n++] = (struct problems_answer){&it->problem, s, -1, source};
        }
        const int part = style_share(a, s);
        share[k] += part;
        left += part;
    }
    struct rng r = rng_make((uint64_t)a->seed ^ UINT64_C(0x64726177), index); /* apart from the generator's */
    for (; a->per_problem && drawn < n && drawn < (size_t)a->per_problem; drawn++) {
        int64_t at = (int64_t)rng_below(&r, (uint64_t)left);
        size_t k = drawn;
        while (at >= share[k]) at -= share[k++];
        left -= share[k];
        const struct problems_answer chosen = out[k];
        out[k] = out[drawn];
        share[k] = share[drawn];
        out[drawn] = chosen;
    }
    const size_t right = a->per_problem ? drawn : n;
    n = right;
    for (uint64_t k = 0; a->broken && n == right && k < 3; k++) {
        enum gen_break kind = (enum gen_break)((index + k) % GEN_BREAKS);
        const struct problems_answer *from = &out[rng_below(&r, right)];
        char *text = generator_break(from->source, kind, (uint64_t)a->seed + index + k, ar);
        if (text) out[n++] = (struct problems_answer){&it->problem, from->style, (int)kind, text};
    }
    return n;
}

static void put_answer(const struct problems_args *a, struct str *s, const struct problems_answer *w,
                       const struct verdict *v) {
    js_begin(s, NULL, '{');
    js_put_str(s, "key", w->problem->key);
    js_put_i64(s, "problem_id", w->problem->problem_id);
    js_put_str(s, "style", style_name(a, w->style));
    js_put_str(s, "broken", w->broken < 0 ? NULL : gen_break_name((enum gen_break)w->broken));
    js_put_str(s, "source", w->source);
    if (v) {
        js_put_str(s, "outcome", outcome_name(v->outcome));
        js_put_str(s, "message", v->message);
        js_put_f64(s, "speedup", v->speedup);
    }
    js_end(s, '}');
    str_addc(s, '\n');
}

/* Judges (when asked) and writes one batch of answers. */
static enum status write_answers(const struct problems_args *a, const struct judge *v, const struct problems_answer *w,
                                 size_t n, struct files *f, struct problems_tally *t, struct err *e) {
    struct verify_item *items = xcalloc(n ? n : 1, sizeof *items);
    struct str s = STR_INIT;
    enum status st = ST_OK;
    for (size_t i = 0; i < n; i++) items[i] = (struct verify_item){.problem = w[i].problem, .source = w[i].source};
    if (v) TRY_GOTO(v->batch(v->ctx, items, n, t->cancel, e), done);
    if (t->cancel && *t->cancel) goto done; /* some were not judged: the batch is dropped */
    for (size_t i = 0; i < n; i++) {
        const struct verdict *d = &items[i].verdict;
        if (v && outcome_class(d->outcome) == 'I') {
            log_warn("%s, %s: not judged: %s", w[i].problem->key, style_name(a, w[i].style), d->message);
            continue;
        }
        bool correct = v && d->outcome == OUTCOME_CORRECT;
        if (v && w[i].broken < 0 && !correct) {
            t->failed++;
            t->style_failed[w[i].style]++;
            log_warn("%s (%s), %s: %s: %s", w[i].problem->key, w[i].problem->ops, style_name(a, w[i].style),
                     outcome_name(d->outcome), d->message);
            continue;
        }
        if (correct && w[i].broken >= 0) { /* the edit did no harm: it teaches nothing */
            t->survived++;
            continue;
        }
        if (w[i].broken < 0)
            t->right++;
        else
            t->wrong++;
        put_answer(a, &s, &w[i], v ? d : NULL);
    }
    if (s.len) st = jsonl_append(f->answers, s.p, s.len, e);
done:
    str_free(&s);
    free(items);
    return st;
}

static enum status write_batch(const struct problems_args *a, const struct generator *g, const struct judge *v,
                               int64_t first, int64_t n, struct files *f, struct problems_tally *t, struct err *e) {
    struct arena ar = ARENA_INIT;
    struct str lines = STR_INIT, labels = STR_INIT;
    struct gen_item items[BATCH_PROBLEMS];
    struct problems_answer w[BATCH_PROBLEMS * (STYLES_MAX + 1)];
    size_t n_w = 0;
    enum status st = ST_OK;
    for (int64_t i = 0; i < n; i++) {
        uint64_t index = (uint64_t)(first + i);
        if (a->recipe)
            TRY_GOTO(generator_from_recipe(a->recipe, (uint64_t)a->seed, &ar, &items[i], e), done);
        else
            generator_make(g, (uint64_t)a->seed, index, &ar, &items[i]);
        put_problem(&lines, &items[i].problem, true);
        js_begin(&labels, NULL, '{');
        js_put_str(&labels, "key", items[i].problem.key);
        js_put_i64(&labels, "problem_id", items[i].problem.problem_id);
        js_put_i64(&labels, "difficulty", items[i].problem.difficulty);
        js_end(&labels, '}');
        str_addc(&labels, '\n');
        if (a->answers) n_w += collect(a, &items[i], index, &ar, w + n_w);
    }
    t->problems += n;
    if (!a->out) {
        fputs(str_c(&lines), stdout);
    } else {
        TRY_GOTO(jsonl_append(f->problems, lines.p, lines.len, e), done);
        TRY_GOTO(jsonl_append(f->labels, labels.p, labels.len, e), done);
        if (a->answers) TRY_GOTO(write_answers(a, v, w, n_w, f, t, e), done);
    }
done:
    str_free(&lines);
    str_free(&labels);
    arena_free(&ar);
    return st;
}

/* Says which flags need which others. */
static enum status check_generate(const struct problems_args *a, struct err *e) {
    if (a->recipe && a->count) return FAIL(e, ST_USAGE, "--recipe makes one problem: leave --count out");
    if (!a->recipe && a->count < 1) return FAIL(e, ST_USAGE, "--count: expected a number >= 1");
    if (a->answers && !a->out) return FAIL(e, ST_USAGE, "--answers: give --out DIR, too");
    if ((a->broken || a->verify || a->per_problem) && !a->answers)
        return FAIL(e, ST_USAGE, "--%s: give --answers, too",
                    a->broken   ? "broken"
                    : a->verify ? "verify"
                                : "per-problem");
    const bool on_gpu = a->backend != BACKEND_c;
    if (on_gpu && !a->answers) return FAIL(e, ST_USAGE, "--backend: give --answers, too");
    if (on_gpu && a->broken) return FAIL(e, ST_USAGE, "--broken: wrong variants are of C answers");
    if (a->untimed && !a->verify) return FAIL(e, ST_USAGE, "--untimed: give --verify, too");
    if (a->pool.hosts && !a->verify) return FAIL(e, ST_USAGE, "--verify-hosts: give --verify, too");
    if (a->device && !(on_gpu && a->verify))
        return FAIL(e, ST_USAGE, "--device: give --backend triton (or cuda_native) and --verify, too");
    return ST_OK;
}

static enum status generate(const struct problems_args *a, struct err *e) {
    struct generator *g = NULL;
    struct judge_owner v = {0};
    struct files f = {0};
    struct problems_tally t = {.started_s = clock_now_s()};
    enum status st = ST_OK;
    const int64_t count = a->recipe ? 1 : a->count;
    TRY(check_generate(a, e));
    TRY(generator_open(NULL, &g, e));
    if (a->out) {
        TRY_GOTO(fs_mkdirs(a->out, e), done);
        TRY_GOTO(open_file(a->out, "problems.jsonl", &f.problems, e), done);
        TRY_GOTO(open_file(a->out, "difficulty_labels.jsonl", &f.labels, e), done);
        if (a->answers) TRY_GOTO(open_file(a->out, "answers.jsonl", &f.answers, e), done);
    }
    if (a->verify) {
        struct verify_options vo = {.threads = (int)a->threads, .measure = !a->untimed, .allow_weaker = a->weaker};
        if (a->backend != BACKEND_c) {
            vo.backend = a->backend;
            vo.device = a->device ? a->device : "cuda:0";
        }
        t.cancel = interrupt_flag();
        TRY_GOTO(judge_open(&a->pool, &vo, t.cancel, &v, e), done);
    }
    for (int64_t at = 0; at < count; at += BATCH_PROBLEMS) {
        TRY_GOTO(write_batch(a, g, a->verify ? &v.judge : NULL, a->first + at, i64_min(BATCH_PROBLEMS, count - at), &f,
                             &t, e),
                 done);
        if (t.cancel && *t.cancel) {
            st = FAIL(e, ST_CANCELLED, "interrupted after %lld problems", (long long)t.problems);
            goto done;
        }
        if (a->out)
            log_progress("%lld of %lld problems, %lld right answers, %lld wrong, %lld failed, %.1f problems/s",
                         (long long)t.problems, (long long)count, (long long)t.right, (long long)t.wrong,
                         (long long)t.failed, (double)t.problems / (clock_now_s() - t.started_s));
    }
    if (a->out) {
        log_progress_end();
        log_info("%s: %lld problems, %lld right answers, %lld wrong ones; left out: %lld right answers that failed, "
                 "%lld wrong ones that pass",
                 a->out, (long long)t.problems, (long long)t.right, (long long)t.wrong, (long long)t.failed,
                 (long long)t.survived);
        for (int s = 0; s < style_count(a); s++)
            if (t.style_failed[s]) log_warn("style %s: %lld failed", style_name(a, s), (long long)t.style_failed[s]);
    }
done:
    jsonl_append_close(f.problems);
    jsonl_append_close(f.labels);
    jsonl_append_close(f.answers);
    judge_close(&v);
    generator_close(g);
    return st;
}

int cmd_problems(int argc, char **argv) {
    struct problems_args a = {.split = -1, .timeout_s = 60, .written_in = "c"};
    struct args given;
    struct err e = {0};
    bool bad = false;
    if (argc > 1 && strcmp(argv[1], "prompt") == 0) return problems_prompt(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "export") == 0) return problems_export(argc - 1, argv + 1);
    if (!args_parse(&problems_command, argc, argv, &a, &given)) return given.code;
    const char *what = given.sub->name;
    if (given.sub->rest) return args_wrong(&problems_command, &given, "this word comes in front of its flags");
    const bool filtering = a.level || a.difficulty || a.split >= 0 || a.ops;
    if (given.n_words && filtering) return args_wrong(&problems_command, &given, "KEYs and filters exclude each other");
    (void)backend_from_name(a.written_in, &a.backend); /* the table has names of backends only */
    enum status st;
    if (strcmp(what, "generate") == 0)
        st = generate(&a, &e);
    else if (strcmp(what, "list") == 0)
        st = list(&a, &e);
    else if (strcmp(what, "show") == 0)
        st = show(&a, given.word[0], &e);
    else
        st = look_at(&a, strcmp(what, "label") == 0, given.word, given.n_words, &bad, &e);
    if (bad) return 1;
    return st == ST_OK ? 0 : args_report(&e);
}
