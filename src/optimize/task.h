/* task: one problem of the search with its shapes and what was found so far; and where tasks come from: a Python file
 * with a module (docs/optimize.md), or a source of problems. */
#ifndef KERNELRL_OPTIMIZE_TASK_H
#define KERNELRL_OPTIMIZE_TASK_H

#include "optimize/limits.h"
#include "optimize/population.h"
#include "problem/problem.h"

struct search_task {
    const char *key;                  /* unique: the problem's */
    const char *folder;               /* of its output, below the search's own; "": that one */
    const char *module;               /* the class in the user's file that is made faster: "Model", "Block" */
    struct problem shape[SHAPES_MAX]; /* the same module with the inputs of each shape */
    const char *label[SHAPES_MAX];    /* "batch=16"; "": there is one shape */
    double weight[SHAPES_MAX];        /* adding up to 1 */
    int n_shapes;
    struct limits limits; /* of the first shape; not known where the prompts do not show it */
    struct population found;
    int64_t spent;   /* verdicts */
    int64_t sampled; /* answers, those that count as known ones among them */
    int waves;
    double gain;         /* of log speed, what the next wave may bring (share.h) */
    const char *trouble; /* the problem itself fails: nobody works on it. NULL: none */
};

struct tasks {
    struct arena arena; /* texts */
    struct problem_set set;
    struct search_task *items;
    int n;
};
void tasks_free(struct tasks *t);

/* The problem of a task fails by itself: why, for reports. */
void task_trouble(struct tasks *t, int task, const char *why);
/* One task from a Python file. module: the class that is meant; NULL or "": the convention's. ST_PARSE, ST_WORKER: one
 * line that says what is wrong with the file, and where. */
enum status task_of_file(const char *path, const char *module, struct tasks *out, struct err *e) MUST_USE;
/* A task for each of n problems of a source, whose code must be KernelBench's; they are copied. */
void tasks_of_problems(const struct problem *const *problems, int n, struct tasks *out);

#endif
