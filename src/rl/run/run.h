/* run: the directory of one training run, and what is written there (docs/formats.md):
 *   config.yaml  logs.log  metrics.jsonl  traces.jsonl.zst  episodes.jsonl  checkpoints.jsonl
 *   checkpoints/<step>/  tensorboard/
 * and verdicts.jsonl, which journal.h writes. A second writer is refused by a lock; lines that a killed one left
 * unfinished are removed on opening. */
#ifndef KERNELRL_RL_RUN_RUN_H
#define KERNELRL_RL_RUN_RUN_H

#include "base/err.h"
#include "model/model.h"
#include "rl/rollout/rollout.h"
#include "train/adamw.h"

/* Takes the lock of a directory that is trained in and writes this process's id into it; it holds until *fd is closed.
 * ST_IO when another process has it; *fd is -1 then. */
enum status run_lock(const char *dir, int *fd, struct err *e) MUST_USE;

struct run_dir;
/* Creates or re-opens DIR, takes its lock, opens its log and stores the resolved configuration. */
enum status run_open(const char *dir, const char *resolved_yaml, bool tensorboard, struct run_dir **out,
                     struct err *e) MUST_USE;
void run_close(struct run_dir *r); /* NULL is fine */
const char *run_dir(const struct run_dir *r);

struct run_checkpoint {
    bool found;
    char path[4096];
    int64_t next_step;
};
/* The checkpoint with the largest position among those recorded in checkpoints.jsonl whose files are all there. Broken
 * ones are passed over; found is false when none is left. */
enum status run_last_checkpoint(const struct run_dir *r, struct run_checkpoint *out, struct err *e) MUST_USE;
/* The recorded one whose position is step. ST_CONFIG when there is none. */
enum status run_find_checkpoint(const struct run_dir *r, int64_t step, struct run_checkpoint *out,
                                struct err *e) MUST_USE;
enum status run_load_checkpoint(const struct run_checkpoint *c, struct model *m, bool lora, struct adamw *opt,
                                int64_t *opt_step, struct err *e) MUST_USE;
/* Drops metrics, traces and TensorBoard's events of steps >= step: they will be made again. Takes memory for one line.
 */
enum status run_truncate(struct run_dir *r, int64_t step, struct err *e) MUST_USE;

/* What a checkpoint holds beside weights, optimizer and position. */
struct checkpoint_extra {
    const char *state;                                               /* members of state.json: "\"baseline\": 0.5" */
    enum status (*write)(void *ctx, const char *dir, struct err *e); /* files of its own, into dir; may be NULL */
    void *ctx;
};
/* Saves weights (an adapter when LoRA is trained), the optimizer and the position; NAME is the step or "final".
 * more: may be NULL. tokenizer_dir: its tokenizer files are copied beside full weights. m and opt NULL: a server has
 * weights and optimizer, and `more` says where. When the call returns, the files are written, and weights and optimizer
 * may change. A thread then forces the files onto the disk, which can take longer than writing them; the directory
 * appears, complete, and of the numbered ones the `keep` newest stay (0: all). Waits for the checkpoint before it. */
enum status run_save_checkpoint(struct run_dir *r, const char *name, int64_t next_step, int64_t opt_step,
                                const struct checkpoint_extra *more, const struct model *m, bool lora,
                                const struct adamw *opt, const char *tokenizer_dir, int64_t keep,
                                struct err *e) MUST_USE;
/* Waits until what run_save_checkpoint has begun is done, if it has begun anything, and returns why it failed. */
enum status run_checkpoint_saved(struct run_dir *r, struct err *e) MUST_USE;
/* The parts run_save_checkpoint is made of, for programs without a run (sft). */
enum status checkpoint_write(const char *dir, int64_t next_step, int64_t opt_step, const struct checkpoint_extra *more,
                             const struct model *m, bool lora, const char *dtype, const struct adamw *opt,
                             const char *tokenizer_dir, struct err *e) MUST_USE;
/* The same in place of what DIR holds: a complete checkpoint, old or new, exists at any moment, in DIR or DIR.old. */
enum status checkpoint_replace(const char *dir, int64_t next_step, int64_t opt_step,
                               const struct checkpoint_extra *more, const struct model *m, bool lora, const char *dtype,
                               const struct adamw *opt, const char *tokenizer_dir, struct err *e) MUST_USE;
/* ST_IO when the disk of DIR has no room for one checkpoint of these parameters: at least two bytes of weights and
 * eight of the optimizer's for each. Asked before hours of training, not behind them. */
enum status checkpoint_room(const char *dir, const struct param *p, int n_params, struct err *e) MUST_USE;
/* Cleans up after a checkpoint_replace that was interrupted; call before looking for a checkpoint in DIR. */
enum status checkpoint_recover(const char *dir, struct err *e) MUST_USE;
enum status checkpoint_read(const char *dir, int64_t *next_step, int64_t *opt_step, struct model *m, bool lora,
                            struct adamw *opt, struct err *e) MUST_USE;

/* One line of metrics: names and values; goes to metrics.jsonl and, where the name maps, to TensorBoard. */
struct metric {
    const char *name; /* "reward/mean" */
    double value;     /* NaN is written as null */
};
enum status run_metrics(struct run_dir *r, int64_t step, const struct metric *m, int n, struct err *e) MUST_USE;
/* TensorBoard alone; nothing without it. run_metrics flushes, too. */
void run_scalar(struct run_dir *r, int64_t step, const char *tag, double value);
void run_histogram(struct run_dir *r, int64_t step, const char *tag, const double *values, size_t n);
void run_text(struct run_dir *r, int64_t step, const char *tag, const char *text);
/* Tells TensorBoard of charts of several scalars each: rewards, rates, times, evaluations. Once a run. */
void run_charts(struct run_dir *r, int64_t step);
enum status run_flush(struct run_dir *r, struct err *e) MUST_USE;
/* Whether the metrics hold an evaluation (names in "eval/") of the step. */
enum status run_is_evaluated(const struct run_dir *r, int64_t step, bool *out, struct err *e) MUST_USE;
/* One line per turn of every sample, the whole step in one compressed frame, and their rows in the index
 * (docs/formats.md). The tokenizer gives prompts their text; NULL where the actor has none, whose prompts are texts. */
enum status run_traces(struct run_dir *r, int64_t step, const struct tokenizer *t, const struct rollout *x,
                       struct err *e) MUST_USE;

#endif
