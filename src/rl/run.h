/* run: the directory of one training run, and what is written there (docs/formats.md):
 *   config.yaml  logs.log  metrics.jsonl  traces.jsonl  checkpoints.jsonl  checkpoints/<step>/  tensorboard/
 * A second writer is refused by a lock. Re-opening cuts metrics and traces back to the last checkpoint. */
#ifndef KERNELRL_RUN_H
#define KERNELRL_RUN_H

#include "base/err.h"
#include "model/model.h"
#include "rl/rollout.h"
#include "train/adamw.h"

struct run;
/* Creates or re-opens DIR and takes its lock. */
enum status run_open(const char *dir, bool tensorboard, struct run **out, struct err *e) MUST_USE;
void run_close(struct run *r);
const char *run_dir(const struct run *r);

/* The last complete checkpoint: path and the step after it; *found false when there is none. */
enum status run_last_checkpoint(const struct run *r, char **path, int64_t *next_step, bool *found,
                                struct err *e) MUST_USE;
/* Drops metrics and traces of steps >= step: they will be made again. */
enum status run_truncate(struct run *r, int64_t step, struct err *e) MUST_USE;

/* Saves weights (an adapter when LoRA is trained), the optimizer and the step; NAME is the step or "final". */
enum status run_save_checkpoint(struct run *r, const char *name, int64_t next_step, struct model *m, bool lora,
                                const struct adamw *opt, struct err *e) MUST_USE;

/* One line of metrics: names and values; goes to metrics.jsonl and, where the name maps, to TensorBoard. */
struct metric {
    const char *name; /* "reward/mean" */
    double value;     /* NaN is written as null */
};
enum status run_metrics(struct run *r, int64_t step, const struct metric *m, int n, struct err *e) MUST_USE;
/* One line per episode. */
enum status run_trace(struct run *r, int64_t step, int group, int index, const struct problem *p,
                      const struct episode *ep, struct err *e) MUST_USE;

#endif
