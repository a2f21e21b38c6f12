/* kernelrl demo: the main job on the embedded model. Evaluates on the held-out problems, trains by reinforcement
 * learning, evaluates again with the same seeds, and prints both side by side. On a GPU twenty easy problems of
 * KernelBench are evaluated, too, where KERNELBENCH_ROOT says where they are. Interrupted, the same command goes on:
 * the verdicts of evaluations are on disk like those of training. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/home.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "cli/cli.h"
#include "rl/learn/session.h"
#include "rl/loop/loop.h"
#include "rl/rollout/journal.h"
#include "rl/run/rates.h"

struct demo_results { /* of the same problems; n_problems 0: not made */
    struct eval_result sampled, greedy, kernelbench;
};
static void free_results(struct demo_results *r) {
    eval_free(&r->sampled);
    eval_free(&r->greedy);
    eval_free(&r->kernelbench);
}

struct demo_evaluation {
    struct session s;
    struct journal *journal;
    const struct problem **test;
    struct problem_set problems, generated; /* the session's, from evaluation_leave() on: results point into them */
};
/* Closes the session, so that training has the device and the verifier's processes for itself. The problems stay, until
 * evaluation_free(). */
static void evaluation_leave(struct demo_evaluation *x) {
    x->problems = x->s.problems;
    x->generated = x->s.generated;
    x->s.problems = x->s.generated = (struct problem_set){.arena = ARENA_INIT};
    session_judging_close(&x->s);
    journal_close(x->journal);
    session_close(&x->s);
}
static void evaluation_free(struct demo_evaluation *x) {
    problem_set_free(&x->problems);
    problem_set_free(&x->generated);
    free(x->test);
}

static bool on_gpu(const struct train_options *o) { return strcmp(o->device, "cpu") != 0; }

/* ---- KernelBench --------------------------------------------------------------------------------------------------*/

/* Single element-wise operators, norms and losses of its first level; of the second what a small kernel can take part
 * in. */
static bool is_easy(const struct problem *p) {
    static const short level1[] = {19, 20, 22, 23, 25, 26, 28, 29, 31, 32, 40, 88, 94},
                       level2[] = {29, 53, 59, 70, 76, 86, 95};
    const short *ids = p->level == 1 ? level1 : level2;
    const size_t n = p->level == 1 ? ARRAY_LEN(level1) : p->level == 2 ? ARRAY_LEN(level2) : 0;
    for (size_t i = 0; i < n; i++)
        if (ids[i] == p->problem_id) return true;
    return false;
}

struct kernelbench {
    struct problem_set set;
    const struct problem **easy;
    int n;
};
static void kernelbench_close(struct kernelbench *k) {
    free(k->easy);
    problem_set_free(&k->set);
}

/* Loads KernelBench's easy problems. n stays 0 on a CPU and, with a line in the log that says why, where
 * KERNELBENCH_ROOT has none of them. */
static enum status kernelbench_open(const struct train_options *o, struct kernelbench *k, struct err *e) {
    const char *root = getenv("KERNELBENCH_ROOT");
    *k = (struct kernelbench){.set = {.arena = ARENA_INIT}};
    if (!on_gpu(o)) return ST_OK;
    if (!root || !*root) {
        log_info("KernelBench's problems are left out: KERNELBENCH_ROOT does not say where they are");
        return ST_OK;
    }
    TRY(problem_set_load(root, &k->set, e));
    k->easy = xcalloc(k->set.count + 1, sizeof(struct problem *));
    for (size_t i = 0; i < k->set.count; i++)
        if (is_easy(&k->set.items[i])) k->easy[k->n++] = &k->set.items[i];
    if (k->n == 0)
        log_info("KernelBench's problems are left out: KERNELBENCH_ROOT (%s) has none of the easy ones", root);
    return ST_OK;
}

/* ---- evaluations --------------------------------------------------------------------------------------------------*/

/* Draws and judges n_samples answers to each problem: at temperature 1, or greedily when n_samples is 1. On a GPU
 * greedy answers to all problems are drawn at once, so that some compile while others are judged. */
static enum status evaluate_on(const struct train_options *o, const struct demo_evaluation *x,
                               const struct problem *const *problems, int n, int n_samples, struct eval_result *out,
                               struct err *e) {
    const struct rollout_params p = {
        .o = {.group_size = n_samples, .max_tokens = o->rollout.max_tokens, .temperature = n_samples > 1 ? 1 : 0},
        .seed = n_samples > 1 ? (uint64_t)o->seed + 77 : 0,
        .at_once = on_gpu(o) && n_samples == 1 ? n : 0};
    return eval_rollouts(&x->s.actor, problems, n, &p, out, e);
}

/* Greedy answers to the held-out problems and to KernelBench's. */
static enum status evaluate_greedy(const struct train_options *o, const struct demo_evaluation *x, int n,
                                   const struct kernelbench *k, double start, struct demo_results *out, struct err *e) {
    CLEANUP_FREE const struct problem **all = xcalloc((size_t)(n + k->n) + 1, sizeof *all);
    struct eval_result both;
    memcpy(all, x->test, (size_t)n * sizeof *all);
    if (k->n > 0) memcpy(all + n, k->easy, (size_t)k->n * sizeof *all);
    TRY(evaluate_on(o, x, all, n + k->n, 1, &both, e));
    eval_part(&both, 0, n, &out->greedy);
    if (k->n > 0) eval_part(&both, n, k->n, &out->kernelbench);
    eval_free(&both);
    log_info("  %d held-out problems, greedy: correct %.1f%%, faster than PyTorch %.1f%% (%.0f s)", n,
             100 * out->greedy.correct.mean, 100 * out->greedy.fast.mean, clock_now_s() - start);
    if (k->n > 0)
        log_info("  %d problems of KernelBench, greedy: correct %.1f%%, faster than PyTorch %.1f%%", k->n,
                 100 * out->kernelbench.correct.mean, 100 * out->kernelbench.fast.mean);
    return ST_OK;
}

/* Takes the verdicts of another evaluation of this run into the verifier's cache. An answer that is the same before and
 * after training has the same verdict then, with the same measured speed. */
static enum status recall(const struct train_options *o, const char *name, struct session *s, struct err *e) {
    CLEANUP_STR struct str path = STR_INIT;
    struct journal *j = NULL;
    str_addf(&path, "%s/%s.verdicts.jsonl", o->log_path, name);
    if (!fs_is_file(path.p)) return ST_OK;
    TRY(journal_open(path.p, s->verify_identity, 1, &s->judge, &j, e)); /* evaluations are of step 0 */
    journal_close(j);
    return ST_OK;
}

static enum status evaluate_all(const struct train_options *o, const char *name, const char *checkpoint,
                                const struct kernelbench *k, const volatile bool *cancel, struct demo_evaluation *x,
                                struct demo_results *out, struct err *e) {
    struct train_options mine = *o;
    mine.load_checkpoint_path = checkpoint;
    CLEANUP_FREE const struct problem **train = NULL;
    CLEANUP_STR struct str path = STR_INIT;
    const double start = clock_now_s();
    int n_train, n;
    str_addf(&path, "%s/%s.verdicts.jsonl", o->log_path, name);
    TRY(session_open(&mine, cancel, &x->s, e));
    TRY(session_problems(&mine, &x->s, &train, &n_train, &x->test, &n, e));
    if (checkpoint != o->load_checkpoint_path) TRY(recall(o, "before", &x->s, e));
    TRY(journal_open(path.p, x->s.verify_identity, 0, &x->s.judge, &x->journal, e));
    session_judging(&x->s, x->journal, cancel);
    if (o->eval_samples > 1) {
        TRY(evaluate_on(o, x, x->test, n, (int)o->eval_samples, &out->sampled, e));
        log_info("  %d held-out problems x %lld answers: correct %.1f%%, faster than PyTorch %.1f%% (%.0f s)", n,
                 (long long)o->eval_samples, 100 * out->sampled.correct.mean, 100 * out->sampled.fast.mean,
                 clock_now_s() - start);
    }
    return evaluate_greedy(o, x, n, k, start, out, e);
}

/* name: "before" or "after", of the file of its verdicts. */
static enum status evaluate(const struct train_options *o, const char *name, const char *checkpoint,
                            const struct kernelbench *k, const volatile bool *cancel, struct demo_evaluation *x,
                            struct demo_results *out, struct err *e) {
    CLEANUP_STR struct str path = STR_INIT;
    str_addf(&path, "%s/logs.log", o->log_path);
    TRY(log_open_file(path.p, e)); /* training has opened and closed it in between */
    const enum status st = evaluate_all(o, name, checkpoint, k, cancel, x, out, e);
    evaluation_leave(x);
    log_close_file();
    return st;
}

/* ---- the report ---------------------------------------------------------------------------------------------------*/

static void row(const char *name, struct rate_interval a, struct rate_interval b) {
    printf("  %-9s %5.1f%% [%5.1f,%5.1f]   %5.1f%% [%5.1f,%5.1f]   %+6.1f\n", name, 100 * a.mean, 100 * a.low,
           100 * a.high, 100 * b.mean, 100 * b.low, 100 * b.high, 100 * (b.mean - a.mean));
}

static void table(const char *title, const struct eval_result *a, const struct eval_result *b) {
    printf("%s\n", title);
    row("parse", a->parsed, b->parsed);
    row("compile", a->compiled, b->compiled);
    row("correct", a->correct, b->correct);
    row("fast_1", a->fast, b->fast);
    if (isnan(a->speedup.mean) || isnan(b->speedup.mean)) return; /* not timed, or nothing correct */
    printf("  %-9s %5.2fx [%5.2f,%5.2f]   %5.2fx [%5.2f,%5.2f]   x%5.2f\n", "speed-up", a->speedup.mean, a->speedup.low,
           a->speedup.high, b->speedup.mean, b->speedup.low, b->speedup.high, b->speedup.mean / a->speedup.mean);
}

static void print_tables(const struct demo_results *before, const struct demo_results *after) {
    char title[128];
    int n = 0, n_greedy;
    struct rate_interval p = {0}, g = eval_paired_speed(&before->greedy, &after->greedy, &n_greedy);
    printf("\n%-21s before                  after            change\n", "");
    if (before->sampled.n_problems > 0) {
        snprintf(title, sizeof title, "temperature 1 (%d held-out problems x %d answers)", before->sampled.n_problems,
                 before->sampled.n_samples);
        table(title, &before->sampled, &after->sampled);
        p = eval_paired_speed(&before->sampled, &after->sampled, &n);
    }
    snprintf(title, sizeof title, "greedy (%d held-out problems, 1 answer each)", before->greedy.n_problems);
    table(title, &before->greedy, &after->greedy);
    if (before->kernelbench.n_problems > 0) {
        snprintf(title, sizeof title, "greedy (%d problems of KernelBench)", before->kernelbench.n_problems);
        table(title, &before->kernelbench, &after->kernelbench);
    }
    if (n + n_greedy > 0) printf("speed after / before on held-out problems solved both times:");
    if (n > 0) printf(" %.2f [%.2f, %.2f] over %d;", p.mean, p.low, p.high, n);
    if (n_greedy > 0) printf(" greedy %.2f [%.2f, %.2f] over %d", g.mean, g.low, g.high, n_greedy);
    if (n + n_greedy > 0) printf("\n");
    printf("intervals: 95%% bootstrap over problems; fast_1: correct and faster than PyTorch eager;\n"
           "speed-up: geometric mean over correct kernels\n\n");
}

static void put_result(struct str *s, const char *name, const struct eval_result *r) {
    str_addf(s, ", \"%s\": ", name);
    if (r->n_problems > 0)
        eval_to_json(r, s);
    else
        str_adds(s, "null");
}

/* demo.json in the run directory: the evaluations, problem by problem; null: not made. */
static enum status write_json(const struct train_options *o, const struct demo_results *before,
                              const struct demo_results *after, double seconds, struct err *e) {
    struct rusage self, children;
    getrusage(RUSAGE_SELF, &self);
    getrusage(RUSAGE_CHILDREN, &children);
    CLEANUP_STR struct str s = STR_INIT, path = STR_INIT;
    str_addf(&s, "{\"seed\": %lld, \"seconds\": %.1f, \"peak_rss_mib\": %ld, \"peak_child_rss_mib\": %ld",
             (long long)o->seed, seconds, self.ru_maxrss / 1024, children.ru_maxrss / 1024);
    put_result(&s, "before", &before->sampled);
    put_result(&s, "before_greedy", &before->greedy);
    put_result(&s, "before_kernelbench", &before->kernelbench);
    put_result(&s, "after", &after->sampled);
    put_result(&s, "after_greedy", &after->greedy);
    put_result(&s, "after_kernelbench", &after->kernelbench);
    str_adds(&s, "}\n");
    str_addf(&path, "%s/demo.json", o->log_path);
    return fs_write_atomic(path.p, s.p, s.len, e);
}

static enum status demo(const struct train_options *o, const char *yaml, struct err *e) {
    const volatile bool *cancel = interrupt_flag();
    struct demo_evaluation first = {0}, last = {0};
    struct demo_results before = {0}, after = {0};
    struct kernelbench k = {0};
    CLEANUP_STR struct str final = STR_INIT;
    str_addf(&final, "%s/checkpoints/final", o->log_path);
    double start = clock_now_s();
    enum status st;
    TRY_GOTO(fs_mkdirs(o->log_path, e), out); /* what would fail after the evaluation should fail now */
    if (access(o->log_path, W_OK) != 0) {
        st = FAIL(e, ST_IO, "%s: cannot write to the run directory: %s", o->log_path, strerror(errno));
        goto out;
    }
    TRY_GOTO(kernelbench_open(o, &k, e), out);
    log_info("demo 1/3: how good is %s on problems it never saw?", o->model_name);
    TRY_GOTO(evaluate(o, "before", o->load_checkpoint_path, &k, cancel, &first, &before, e), out);
    log_info("demo 2/3: reinforcement learning on training problems");
    TRY_GOTO(train_run(o, yaml, cancel, e), out);
    log_info("demo 3/3: the same held-out problems again");
    TRY_GOTO(evaluate(o, "after", final.p, &k, cancel, &last, &after, e), out);
    double seconds = clock_now_s() - start;
    print_tables(&before, &after);
    TRY_GOTO(write_json(o, &before, &after, seconds, e), out);
    printf("took %.0f s; run directory: %s\ncurves: tensorboard --logdir %s/tensorboard   (pip install tensorboard)\n"
           "numbers: %s/metrics.jsonl, every answer: %s/traces.jsonl.zst\n",
           seconds, o->log_path, o->log_path, o->log_path, o->log_path);
out:
    free_results(&before);
    free_results(&after);
    evaluation_free(&first);
    evaluation_free(&last);
    kernelbench_close(&k);
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
    str_addf(&path, "%s/configs/quickstart.yaml", home_dir());
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
    return st == ST_OK ? 0 : args_report(&e);
}
