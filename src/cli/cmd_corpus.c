/* kernelrl corpus: verified answers -> supervised rows. */
#include <stdio.h>
#include <string.h>

#include "base/fs.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "cli/cli.h"
#include "io/config.h"
#include "rl/evaluate/corpus.h"
#include "rl/evaluate/evaluate.h"
#include "rl/options/sampler_keys.h"

/* Backends whose answers the generator writes. */
#define WRITTEN_LIST(X) X(WRITTEN_C, c) X(WRITTEN_TRITON, triton) X(WRITTEN_CUDA, cuda_native)
enum written { CHOICE_ENUM(WRITTEN_LIST) };
static const char *const written_names[] = {CHOICE_NAMES(WRITTEN_LIST)};

struct corpus_args {
    struct corpus_options o;
    const char *python;
    enum written backend;
    /* A model's answers in the place of the generator's. */
    struct sampler_options sampler;
    const char *model_name;
    int64_t num_samples, threads;
    int max_tokens;
    double temperature;
    bool measure;
};
#define T struct corpus_args
static const struct config_key keys[] = {
    KEY_STRING_AT(T, "from", o.from, "",
                  "Folder with problems.jsonl and answers.jsonl, from `problems generate --answers --verify`. sampler: "
                  "openai: that, or any source of problems; a server's model answers them."),
    KEY_STRING_AT(T, "output", o.output, "", "Rows to append to, .jsonl or .jsonl.zst."),
    KEY_CHOICE(T, backend, WRITTEN_LIST, "c", "What the answers are written in."),
    KEY_BOOL_AT(T, "unverified", o.unverified, "false",
                "Take answers of `problems generate` without --verify, too: as right ones, wrong variants left out."),
    KEY_FLOAT_AT(
        T, "kernelbench", o.kernelbench, "0", "[0,1]",
        "Share of plain rows whose module is written as KernelBench writes: long docstrings, type hints, inputs "
        "with names."),
    KEY_INT_AT(T, "seed", o.seed, "0", "[0,)", "Seed of the choices."),
    KEY_INT_AT(T, "answers", o.answers, "4", "[0,32]", "Plain answers a problem, of different styles."),
    KEY_FLOAT_AT(T, "think", o.think, "0.1", "[0,1]", "Chance of a think + answer row per problem."),
    KEY_FLOAT_AT(T, "refine", o.refine, "0.25", "[0,32]", "Refinement rows a problem; the fraction comes by chance."),
    KEY_FLOAT_AT(T, "examples", o.examples, "0.1", "[0,1]", "Chance of a row with one to three examples per problem."),
    KEY_STRING_OPT_AT(
        T, "index", o.index, "null",
        "Folder of an index (build-rag-index --model lexical) that rows with retrieved examples take them "
        "from. null: no such rows."),
    KEY_FLOAT_AT(T, "retrieved", o.retrieved, "1", "[0,32]",
                 "index: rows with one to three retrieved examples per problem."),
    KEY_FLOAT_AT(T, "verdicts", o.verdicts, "0", "[0,1]",
                 "Chance per problem of a row of the verifier: what the test found of an answer."),
    KEY_FLOAT_AT(T, "proposals", o.proposals, "0", "[0,1]",
                 "Chance per problem of a row of the proposer: its operators."),
    SAMPLER_KEYS(T, sampler),
    KEY_STRING(T, model_name, "", "sampler: openai: the model whose answers are taken, as the server knows it."),
    KEY_INT(T, num_samples, "8", "[1,1024]", "sampler: openai: answers a problem, which are judged first."),
    KEY_INT(T, max_tokens, "4096", "[1,131072]", "sampler: openai: longest answer in tokens."),
    KEY_FLOAT(T, temperature, "1", "[0,10]", "sampler: openai: sampling temperature."),
    KEY_BOOL(T, measure, "true", "sampler: openai: time correct answers."),
    KEY_INT(T, threads, "0", "[0,256]", "sampler: openai: threads of kernels and PyTorch. 0: all CPUs."),
    KEY_STRING_OPT(T, python, "null", "Python that has torch. null: KERNELRL_PYTHON, ./.venv, PATH."),
};
#undef T
const struct config_schema corpus_schema = {
    .key = keys, .count = ARRAY_LEN(keys), .values_bytes = sizeof(struct corpus_args)};

/* FILE without .jsonl or .jsonl.zst, and another ending. */
static void beside(const char *output, const char *ending, struct str *out) {
    static const char *const endings[] = {".zst", ".jsonl"};
    size_t n = strlen(output);
    for (size_t i = 0; i < ARRAY_LEN(endings); i++) {
        const size_t m = strlen(endings[i]);
        if (n > m && memcmp(output + n - m, endings[i], m) == 0) n -= m;
    }
    str_addf(out, "%.*s%s", (int)n, output, ending);
}

/* Asks the server's model for answers to the problems at `source`, judges them, and writes them to PATH. */
static enum status ask_teacher(const struct corpus_args *a, const char *source, const char *path, struct err *e) {
    CLEANUP_STR struct str output = STR_INIT;
    struct eval_options o;
    struct config c;
    beside(a->o.output, ".json", &output);
    config_init(&c, eval_schema(), &o);
    o.train.sampler = a->sampler;
    o.train.model_name = a->model_name;
    o.train.seed = a->o.seed;
    o.train.threads = a->threads;
    o.train.rollout.max_tokens = a->max_tokens;
    o.train.rollout.temperature = a->temperature;
    o.train.verify.measure = a->measure;
    o.train.verify.python = a->python;
    (void)backend_from_name(written_names[a->backend], &o.train.verify.backend);
    o.train.dataset_builder.source = source;
    o.train.dataset_builder.level = 0;
    o.num_samples = a->num_samples;
    o.split = EVAL_ALL;
    o.output_path = output.p;
    const enum status st = evaluate_answers(&c, &o, interrupt_flag(), path, e);
    config_free(&c);
    return st;
}

static enum status run(const struct corpus_args *a, struct err *e) {
    CLEANUP_STR struct str answers = STR_INIT, problems = STR_INIT;
    const bool is_asked = a->sampler.kind != SAMPLER_ENGINE;
    if (!*a->o.from || !*a->o.output) return FAIL(e, ST_USAGE, "corpus: give from=FOLDER and output=FILE.jsonl");
    if (is_asked) {
        beside(a->o.output, ".answers.jsonl", &answers);
        str_addf(&problems, "%s/problems.jsonl", a->o.from);
        if (!fs_is_file(problems.p)) {
            str_clear(&problems);
            str_adds(&problems, a->o.from);
        }
        TRY(ask_teacher(a, problems.p, answers.p, e));
    }
    struct verify_options vo = {.python = a->python, .allow_weaker = true}; /* only prototypes; nothing is run */
    struct verifier *v = NULL;
    const struct backend_info *backend = backend_named(written_names[a->backend]);
    if (a->backend != WRITTEN_C && (a->o.index || a->o.verdicts > 0))
        return FAIL(e, ST_USAGE, "corpus: index and verdicts: backend c only");
    if (!backend->is_module) TRY(verifier_open(&vo, &v, e));
    struct corpus_options o = a->o;
    o.backend = backend;
    if (is_asked) {
        o.problems = problems.p;
        o.answers_path = answers.p;
    }
    if (o.index && !*o.index) o.index = NULL;
    struct row_counts n = {0};
    enum status st = corpus_build(&o, v, &n, e);
    verifier_close(v);
    if (st == ST_OK && n.verdicts + n.proposals > 0)
        log_info("%s: %lld rows of the verifier, %lld of the proposer", o.output, (long long)n.verdicts,
                 (long long)n.proposals);
    if (st == ST_OK && o.index)
        log_info("%s: %lld rows with %lld retrieved examples, %lld of them of the answer's own plan", o.output,
                 (long long)n.retrieved, (long long)n.shown, (long long)n.shown_same);
    if (st == ST_OK)
        log_info("%s: %lld problems: %lld plain rows, %lld think, %lld refinement, %lld with examples; %lld answers "
                 "left out",
                 o.output, (long long)n.problems, (long long)n.single, (long long)n.think, (long long)n.refine,
                 (long long)n.examples, (long long)n.skipped);
    return st;
}

int cmd_corpus(int argc, char **argv) {
    struct corpus_args a;
    struct config c;
    struct err e = {0};
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        struct str s = STR_INIT;
        if (config_help(&corpus_schema, NULL, &s, &e) == ST_OK)
            printf("usage: kernelrl corpus from=FOLDER output=FILE.jsonl [key=value]...\n\n%s", str_c(&s));
        str_free(&s);
        return 0;
    }
    config_init(&c, &corpus_schema, &a);
    enum status st = config_args(&c, argc - 1, argv + 1, &e);
    if (st == ST_OK) st = sampler_options_finish(&c, &a.sampler, &e);
    if (st == ST_OK) st = run(&a, &e);
    config_free(&c);
    return st == ST_OK ? 0 : args_report(&e);
}
