/* samples: the answers of an evaluation on disk, each with its verdict, so that an interrupted evaluation goes on where
 * it was and reports can be made again without sampling (docs/formats.md, "Evaluation"). */
#ifndef KERNELRL_RL_RUN_SAMPLES_H
#define KERNELRL_RL_RUN_SAMPLES_H

#include "base/arena.h"
#include "problem/problem.h"
#include "verify/verify.h"

struct eval_sample {
    int problem;        /* index into the set's problems */
    int sample;         /* from 0 */
    int turn;           /* from 0, of a conversation */
    const char *kernel; /* NULL: the answer held none */
    const char *text;   /* the answer */
    int tokens;
    bool format_ok, present; /* present: there is a verdict */
    struct verdict verdict;
};
struct eval_samples {
    struct arena arena;
    const struct problem **problems; /* [n_problems], borrowed */
    int n_problems;
    struct eval_sample *items; /* in the order they were made */
    int64_t n, cap;
    struct jsonl_writer *file; /* NULL: not on disk */
    char *path;
};

/* Opens or creates PATH for an evaluation of these problems. settings: everything that decides what is sampled and how
 * it is judged, as text. Samples that are there are read. ST_INVALID when PATH was begun with other settings (the
 * message shows the line that differs) or when a problem in it has changed since; nothing is touched then. A torn last
 * line is removed. */
enum status eval_samples_open(const char *path, const char *settings, const struct problem *const *problems,
                              int n_problems, struct eval_samples *out, struct err *e) MUST_USE;
/* Appends; strings are copied. On the disk when this returns. */
enum status eval_samples_add(struct eval_samples *s, const struct eval_sample *items, int n, struct err *e) MUST_USE;
void eval_samples_close(struct eval_samples *s);

/* How many samples (of turn 0) a problem has. */
int eval_samples_of(const struct eval_samples *s, int problem);

#endif
