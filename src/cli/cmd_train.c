/* kernelrl train, kernelrl sft: configuration in, exit code out. */
#include <stdio.h>
#include <string.h>

#include "base/fs.h"
#include "base/interrupt.h"
#include "base/str.h"
#include "cli/cli.h"
#include "cli/detach.h"
#include "cli/supervise.h"
#include "rl/loop/follow.h"
#include "rl/loop/loop.h"
#include "rl/loop/sft.h"

/* In the background: the parent says where to look, the child goes on. */
static enum status detach(const struct train_options *o, bool *is_parent, struct err *e) {
    struct str path = STR_INIT;
    pid_t child;
    TRY(fs_mkdirs(o->log_path, e));
    str_addf(&path, "%s/console.log", o->log_path);
    enum status st = cli_detach(path.p, 2, &child, e);
    if (st != ST_OK) err_note(e, "%s", o->log_path);
    *is_parent = st == ST_OK && child > 0;
    if (*is_parent)
        printf("%s: training in the background, process %d\n"
               "  kernelrl runs watch %s    what it does\n"
               "  kernelrl runs logs %s     what it says; all of it is in %s\n"
               "  kernelrl runs stop %s     stops it behind the step it is in; resume goes on from there\n",
               o->log_path, (int)child, o->log_path, o->log_path, path.p, o->log_path);
    str_free(&path);
    return st;
}

/* Takes what is no key out of the arguments, and puts NULL behind them. background NULL: --detach is left there. */
static enum status take_flags(int *argc, char **argv, bool *background, int64_t *restarts, struct err *e) {
    int kept = 1;
    for (int i = 1; i < *argc; i++) {
        if (background && strcmp(argv[i], "--detach") == 0) {
            *background = true;
        } else if (strcmp(argv[i], "--restarts") == 0) {
            const char *n = i + 1 < *argc ? argv[++i] : "";
            if (!parse_i64(n, restarts) || *restarts < 0 || *restarts > 1000000)
                return FAIL(e, ST_USAGE, "--restarts: expected a number from 0 on, got \"%s\"", n);
        } else {
            argv[kept++] = argv[i];
        }
    }
    argv[ *argc = kept] = NULL;
    return ST_OK;
}

int cmd_train(int argc, char **argv) {
    static const char usage[] = "train [--detach] [--restarts N] [--config FILE]... [key=value]...";
    if (cli_wants_help(argc, argv)) return cli_key_help(usage, &train_schema);
    struct train_options o;
    struct config c;
    struct err e = {0};
    struct str yaml = STR_INIT;
    bool background = false, is_parent = false;
    int64_t restarts = 0;
    int code = 0;
    enum status st = take_flags(&argc, argv, &background, &restarts, &e);
    config_init(&c, &train_schema, &o);
    if (st == ST_OK) st = config_args(&c, argc - 1, argv + 1, &e);
    if (st == ST_OK) st = train_options_finish(&c, &o, &e);
    if (st == ST_OK && o.sampler.kind != SAMPLER_ENGINE && o.trainer != TRAINER_TINKER)
        st = config_reject(&c, "sampler", &e,
                           "train learns from the log-probabilities of the model that it trains: expected engine, or "
                           "trainer: tinker (a server's model answers in eval, generate, corpus and optimize)");
    if (st == ST_OK && background) st = detach(&o, &is_parent, &e);
    const bool supervised = comm_launched().size == 1 && (o.gpus > 1 || restarts > 0);
    if (st == ST_OK && !is_parent && supervised) {
        st = cli_supervise(argv, (int)o.gpus, restarts, &code, &e);
    } else if (st == ST_OK && !is_parent) {
        config_dump(&c, &yaml);
        const bool leads = ranks_place(o.ranks, &o.device, &o.threads);
        st = leads ? train_run(&o, str_c(&yaml), interrupt_flag(), &e) : follow_run(&o, str_c(&yaml), &e);
    }
    str_free(&yaml);
    config_free(&c);
    return st == ST_OK ? code : args_report(&e);
}

int cmd_sft(int argc, char **argv) {
    static const char usage[] = "sft [--restarts N] [--config FILE]... data=ROWS.jsonl output=DIR [key=value]...";
    if (cli_wants_help(argc, argv)) return cli_key_help(usage, &sft_schema);
    struct sft_options o;
    struct config c;
    struct err e = {0};
    struct str yaml = STR_INIT;
    int64_t restarts = 0;
    int code = 0;
    enum status st = take_flags(&argc, argv, NULL, &restarts, &e);
    config_init(&c, &sft_schema, &o);
    if (st == ST_OK) st = config_args(&c, argc - 1, argv + 1, &e);
    if (st == ST_OK) st = sft_options_check(&c, &o, &e);
    if (st == ST_OK && comm_launched().size == 1 && (o.gpus > 1 || restarts > 0)) {
        st = cli_supervise(argv, (int)o.gpus, restarts, &code, &e);
    } else if (st == ST_OK) {
        config_dump(&c, &yaml);
        const bool leads = ranks_place(o.ranks, &o.device, &o.threads);
        st = leads ? sft_run(&o, str_c(&yaml), interrupt_flag(), &e) : sft_follow(&o, str_c(&yaml), &e);
    }
    str_free(&yaml);
    config_free(&c);
    return st == ST_OK ? code : args_report(&e);
}
