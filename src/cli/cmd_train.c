/* kernelrl train, kernelrl sft, kernelrl eval: configuration in, exit code out. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/interrupt.h"
#include "rl/eval.h"
#include "rl/locate.h"
#include "rl/loop.h"
#include "rl/session.h"
#include "rl/sft.h"

static bool wants_help(int argc, char **argv) {
    return argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
}

static int print_help(const char *usage, const struct config_schema *schema) {
    struct str s = STR_INIT;
    struct err e;
    if (config_help(schema, NULL, &s, &e) != ST_OK) return cli_report(&e);
    printf("usage: kernelrl %s\n\n%s", usage, str_c(&s));
    str_free(&s);
    return 0;
}

int cmd_train(int argc, char **argv) {
    static const char usage[] = "train [--config FILE]... [key=value]...";
    if (wants_help(argc, argv)) return print_help(usage, &train_schema);
    struct train_options o;
    struct config c;
    struct err e = {0};
    struct str yaml = STR_INIT;
    config_init(&c, &train_schema, &o);
    enum status st = config_args(&c, argc - 1, argv + 1, &e);
    if (st == ST_OK) st = train_options_finish(&c, &o, &e);
    if (st == ST_OK) {
        config_dump(&c, &yaml);
        st = train_run(&o, str_c(&yaml), cli_interruptible(), &e);
    }
    str_free(&yaml);
    config_free(&c);
    return st == ST_OK ? 0 : cli_report(&e);
}

int cmd_sft(int argc, char **argv) {
    static const char usage[] = "sft [--config FILE]... data=ROWS.jsonl output=DIR [key=value]...";
    if (wants_help(argc, argv)) return print_help(usage, &sft_schema);
    struct sft_options o;
    struct config c;
    struct err e = {0};
    config_init(&c, &sft_schema, &o);
    enum status st = config_args(&c, argc - 1, argv + 1, &e);
    if (st == ST_OK) st = sft_options_check(&c, &o, &e);
    if (st == ST_OK) st = sft_run(&o, cli_interruptible(), &e);
    config_free(&c);
    return st == ST_OK ? 0 : cli_report(&e);
}

/* ---- eval ---------------------------------------------------------------------------------------------------------*/

static void print_rate(const char *name, struct interval v) {
    printf("  %-10s %5.1f%%  [%5.1f, %5.1f]\n", name, 100 * v.mean, 100 * v.low, 100 * v.high);
}

static void print_result(const struct eval_result *r) {
    printf("%d problems x %d answers at temperature %g (%.0f tokens each, %d without a verdict)\n", r->n_problems,
           r->n_samples, r->temperature, r->mean_tokens, r->missing);
    print_rate("parse", r->parsed);
    print_rate("compile", r->compiled);
    print_rate("correct", r->correct);
    print_rate("fast_1", r->fast);
    if (isnan(r->speedup.mean))
        printf("  speed-up   no correct answer\n");
    else
        printf("  speed-up   %5.2fx  [%5.2f, %5.2f]\n", r->speedup.mean, r->speedup.low, r->speedup.high);
}

/* What eval takes besides the keys of train. */
struct eval_args {
    const char *output;
    int64_t samples;
    bool json, all;
};

static int parse_eval_args(int *argc, char **argv, struct eval_args *a) {
    int kept = 0;
    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            a->json = true;
        else if (strcmp(argv[i], "--all") == 0)
            a->all = true;
        else if (str_has_prefix(argv[i], "samples=") && parse_i64(argv[i] + 8, &a->samples) && a->samples > 0)
            continue;
        else if (str_has_prefix(argv[i], "output="))
            a->output = argv[i] + 7;
        else if (str_has_prefix(argv[i], "samples="))
            return cli_report(&(struct err){ST_USAGE, NULL, 0, "eval: samples: expected a whole number of at least 1"});
        else
            argv[1 + kept++] = argv[i];
    }
    *argc = 1 + kept;
    return 0;
}

static enum status evaluate(const struct train_options *o, const struct eval_args *a, const volatile bool *cancel,
                            struct err *e) {
    struct session s;
    const struct problem **train = NULL, **test = NULL;
    int n_train, n_test;
    struct eval_result r;
    /* A fresh adapter would change nothing and cost time; a checkpoint's own is loaded whatever lora_rank says. */
    struct train_options mine = *o;
    CLEANUP_STR struct str adapter = STR_INIT;
    CLEANUP_FREE char *checkpoint = NULL;
    if (o->load_checkpoint_path && *o->load_checkpoint_path) {
        TRY(locate("load_checkpoint_path", HUB_CHECKPOINT, o->load_checkpoint_path, NULL, cancel, &checkpoint, e));
        mine.load_checkpoint_path = checkpoint;
        str_addf(&adapter, "%s/adapter_config.json", checkpoint);
    }
    mine.lora_rank = adapter.len > 0 && fs_is_file(adapter.p);
    enum status st = session_open(&mine, cancel, &s, e);
    if (st == ST_OK) st = session_problems(o, &s, &train, &n_train, &test, &n_test, e);
    if (st == ST_OK && a->all) { /* the training problems too */
        test = xrealloc(test, (size_t)(n_test + n_train) * sizeof *test);
        memcpy(test + n_test, train, (size_t)n_train * sizeof *test);
        n_test += n_train;
    }
    if (st == ST_OK && n_test == 0) st = FAIL(e, ST_CONFIG, "eval: no held-out problem; --all takes the others too");
    if (st == ST_OK)
        st = eval_run(&s.actor, test, n_test, o->temperature > 0 ? (int)a->samples : 1, o->temperature,
                      (int)o->max_tokens, (uint64_t)o->seed, &r, e);
    if (st == ST_OK) {
        struct str json = STR_INIT;
        eval_to_json(&r, &json);
        str_addc(&json, '\n');
        if (a->json)
            fputs(str_c(&json), stdout);
        else
            print_result(&r);
        if (a->output) st = fs_write_atomic(a->output, str_c(&json), json.len, e);
        str_free(&json);
        eval_free(&r);
    }
    free(train);
    free(test);
    session_close(&s);
    return st;
}

int cmd_eval(int argc, char **argv) {
    static const char usage[] =
        "eval [--config FILE]... [samples=N] [output=FILE.json] [--json] [--all] [key=value of train]...";
    if (wants_help(argc, argv)) return print_help(usage, &train_schema);
    struct eval_args a = {.samples = 8};
    int code = parse_eval_args(&argc, argv, &a);
    if (code) return code;
    struct train_options o;
    struct config c;
    struct err e = {0};
    config_init(&c, &train_schema, &o);
    enum status st = config_args(&c, argc - 1, argv + 1, &e);
    if (st == ST_OK) st = train_options_finish(&c, &o, &e);
    if (st == ST_OK) st = evaluate(&o, &a, cli_interruptible(), &e);
    config_free(&c);
    return st == ST_OK ? 0 : cli_report(&e);
}
