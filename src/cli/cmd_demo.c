/* kernelrl demo: the main job on the embedded model. Evaluates on the held-out problems, trains by reinforcement
 * learning, evaluates again with the same seeds, and prints both side by side. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/interrupt.h"
#include "rl/eval.h"
#include "rl/loop.h"
#include "rl/session.h"

struct both { /* the same problems sampled and greedy */
    struct eval_result sampled, greedy;
};

static enum status evaluate(const struct train_options *o, const char *checkpoint, const volatile bool *cancel,
                            struct session *s, const struct problem ***test, struct both *out, struct err *e) {
    struct train_options mine = *o;
    mine.load_checkpoint_path = checkpoint;
    const struct problem **train = NULL;
    int n_train, n;
    enum status st = session_open(&mine, cancel, s, e);
    if (st == ST_OK) st = session_problems(&mine, s, &train, &n_train, test, &n, e);
    free(train);
    if (st == ST_OK)
        st = eval_run(&s->actor, *test, n, (int)o->eval_samples, 1, (int)o->max_tokens, (uint64_t)o->seed + 77,
                      &out->sampled, e);
    if (st == ST_OK) st = eval_run(&s->actor, *test, n, 1, 0, (int)o->max_tokens, 0, &out->greedy, e);
    return st;
}

static void row(const char *name, struct interval a, struct interval b) {
    printf("  %-9s %5.1f%% [%5.1f,%5.1f]   %5.1f%% [%5.1f,%5.1f]   %+6.1f\n", name, 100 * a.mean, 100 * a.low,
           100 * a.high, 100 * b.mean, 100 * b.low, 100 * b.high, 100 * (b.mean - a.mean));
}

static void table(const char *title, const struct eval_result *a, const struct eval_result *b) {
    printf("%s\n", title);
    row("parse", a->parsed, b->parsed);
    row("compile", a->compiled, b->compiled);
    row("correct", a->correct, b->correct);
    row("fast_1", a->fast, b->fast);
    printf("  %-9s %5.2fx [%5.2f,%5.2f]   %5.2fx [%5.2f,%5.2f]   x%5.2f\n", "speed-up", a->speedup.mean, a->speedup.low,
           a->speedup.high, b->speedup.mean, b->speedup.low, b->speedup.high, b->speedup.mean / a->speedup.mean);
}

static void print_tables(const struct both *before, const struct both *after) {
    char title[128];
    int n, n_greedy;
    printf("\n%-21s before                  after            change\n", "");
    snprintf(title, sizeof title, "temperature 1 (%d held-out problems x %d answers)", before->sampled.n_problems,
             before->sampled.n_samples);
    table(title, &before->sampled, &after->sampled);
    table("greedy (1 answer each)", &before->greedy, &after->greedy);
    struct interval p = eval_paired_speed(&before->sampled, &after->sampled, &n);
    struct interval g = eval_paired_speed(&before->greedy, &after->greedy, &n_greedy);
    printf("speed after / before on problems solved both times: %.2f [%.2f, %.2f] over %d problems", p.mean, p.low,
           p.high, n);
    printf(" (greedy %.2f over %d)\n", g.mean, n_greedy);
    printf("intervals: 95%% bootstrap over problems; fast_1: correct and faster than PyTorch eager;\n"
           "speed-up: geometric mean over correct kernels\n\n");
}

/* demo.json in the run directory: the four evaluations, problem by problem. */
static enum status write_json(const struct train_options *o, const struct both *before, const struct both *after,
                              double seconds, struct err *e) {
    struct rusage self, children;
    getrusage(RUSAGE_SELF, &self);
    getrusage(RUSAGE_CHILDREN, &children);
    struct str s = STR_INIT, path = STR_INIT;
    str_addf(&s, "{\"seed\": %lld, \"seconds\": %.1f, \"peak_rss_mib\": %ld, \"peak_child_rss_mib\": %ld, \"before\": ",
             (long long)o->seed, seconds, self.ru_maxrss / 1024, children.ru_maxrss / 1024);
    eval_to_json(&before->sampled, &s);
    str_adds(&s, ", \"before_greedy\": ");
    eval_to_json(&before->greedy, &s);
    str_adds(&s, ", \"after\": ");
    eval_to_json(&after->sampled, &s);
    str_adds(&s, ", \"after_greedy\": ");
    eval_to_json(&after->greedy, &s);
    str_adds(&s, "}\n");
    str_addf(&path, "%s/demo.json", o->log_path);
    enum status st = fs_write_atomic(path.p, s.p, s.len, e);
    str_free(&s);
    str_free(&path);
    return st;
}

static enum status demo(const struct train_options *o, const char *yaml, struct err *e) {
    const volatile bool *cancel = cli_interruptible();
    struct session first = {0}, last = {0};
    const struct problem **test_first = NULL, **test_last = NULL;
    struct both before = {0}, after = {0};
    struct str final = STR_INIT;
    str_addf(&final, "%s/checkpoints/final", o->log_path);
    double start = clock_now_s();
    enum status st;
    TRY_GOTO(fs_mkdirs(o->log_path, e), out); /* what would fail after the evaluation should fail now */
    if (access(o->log_path, W_OK) != 0) {
        st = FAIL(e, ST_IO, "%s: cannot write to the run directory: %s", o->log_path, strerror(errno));
        goto out;
    }
    log_info("demo 1/3: how good is %s on problems it never saw?", o->model_name);
    TRY_GOTO(evaluate(o, o->load_checkpoint_path, cancel, &first, &test_first, &before, e), out);
    log_info("  correct %.1f%%, faster than PyTorch %.1f%% (%.0f s)", 100 * before.sampled.correct.mean,
             100 * before.sampled.fast.mean, clock_now_s() - start);
    log_info("demo 2/3: reinforcement learning on training problems");
    TRY_GOTO(train_run(o, yaml, cancel, e), out);
    log_info("demo 3/3: the same held-out problems again");
    TRY_GOTO(evaluate(o, final.p, cancel, &last, &test_last, &after, e), out);
    double seconds = clock_now_s() - start;
    print_tables(&before, &after);
    TRY_GOTO(write_json(o, &before, &after, seconds, e), out);
    printf("took %.0f s; run directory: %s\ncurves: tensorboard --logdir %s/tensorboard   (pip install tensorboard)\n"
           "numbers: %s/metrics.jsonl, every answer: %s/traces.jsonl.zst\n",
           seconds, o->log_path, o->log_path, o->log_path, o->log_path);
out:
    eval_free(&before.sampled);
    eval_free(&before.greedy);
    eval_free(&after.sampled);
    eval_free(&after.greedy);
    free(test_first);
    free(test_last);
    session_close(&first);
    session_close(&last);
    str_free(&final);
    return st;
}

int cmd_demo(int argc, char **argv) {
    struct train_options o;
    struct config c;
    struct err e = {0};
    struct str yaml = STR_INIT, path = STR_INIT;
    if (cli_wants_help(argc, argv)) {
        printf("usage: kernelrl demo [key=value of train]...\n\n"
               "Evaluates the embedded model on the held-out problems, trains it as configs/quickstart.yaml says, and\n"
               "evaluates it again: a few minutes on two cores. log_path/demo.json holds both evaluations.\n");
        return 0;
    }
    str_addf(&path, "%s/configs/quickstart.yaml", fs_home());
    config_init(&c, &train_schema, &o);
    enum status st = config_load(&c, path.p, &e);
    if (st == ST_OK) st = config_args(&c, argc - 1, argv + 1, &e);
    if (st == ST_OK) st = train_options_finish(&c, &o, &e);
    if (st == ST_OK) {
        config_dump(&c, &yaml);
        st = demo(&o, str_c(&yaml), &e);
    }
    str_free(&yaml);
    str_free(&path);
    config_free(&c);
    if (st == ST_CANCELLED && strcmp(e.msg, "interrupted") == 0) /* in an evaluation */
        FAIL(&e, st, "interrupted; the same command goes on from there");
    return st == ST_OK ? 0 : cli_report(&e);
}
