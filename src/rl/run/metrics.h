/* metrics: what a step was like, in numbers: names and values of its line in metrics.jsonl and of its charts. The names
 * are listed in docs/formats.md. */
#ifndef KERNELRL_RL_RUN_METRICS_H
#define KERNELRL_RL_RUN_METRICS_H

#include "rl/learn/update.h"
#include "rl/options/options.h"
#include "rl/rollout/rollout.h"
#include "rl/run/rates.h"
#include "rl/run/run.h"
#include "verify/pool/pool.h"

struct metrics { /* a growing list; names are copied. Zero at first */
    struct metric *m;
    int n, cap;
};
void metrics_add(struct metrics *l, double value, const char *name, ...) PRINTF_LIKE(3, 4);
void metrics_free(struct metrics *l);

/* What the loop measured beside the answers themselves. */
struct step_times {
    struct rollout_times rollout;
    struct judging_stats judging;
    double assemble_s, train_s, save_s, quiet_s, total_s;
    int64_t staleness; /* updates made since the batch was sampled */
    bool has_pool;     /* true: hosts judged, and these are their figures (verify_pool_stats) */
    struct pool_stats pool;
    /* Of a device's memory: planned, and the most that was really held so far; 0: nobody plans or counts. */
    int64_t planned_bytes, peak_bytes;
};
/* One step's line. constant: groups of equal scores. */
void metrics_of_step(struct metrics *l, const struct train_options *o, int64_t step, int64_t steps,
                     const struct rollout *r, int constant, const struct update_stats *u, const struct step_times *t);
/* An evaluation's line: over all problems and, where there are several, by level. */
void metrics_of_eval(struct metrics *l, const struct eval_result *r);
/* The line for people. */
void metrics_log(const struct train_options *o, int64_t step, int64_t steps, const struct rollout *r,
                 const struct step_times *t, double left_s);
/* Histograms and counts for TensorBoard, of every tensorboard_log_histograms_every-th step. */
enum status metrics_histograms(struct run_dir *run, const struct train_options *o, int64_t step,
                               const struct rollout *r, struct err *e) MUST_USE;

#endif
