/* problem: what the model is asked to make faster. This room owns problems in KernelBench's format (files, folder
 * trees, JSON lines), the built-in set, specs and known defects. It may include base and io. Start here, then read
 * source.c. */
#ifndef KERNELRL_PROBLEM_H
#define KERNELRL_PROBLEM_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

enum split { SPLIT_TRAIN, SPLIT_TEST };

struct problem {
    const char *key;       /* Unique within its source: "level1/19_ReLU". */
    const char *name;      /* "19_ReLU" */
    const char *code;      /* The PyTorch module, in UTF-8. */
    int level, problem_id; /* They begin with 1. 0: unknown. */
    enum split split;
    int difficulty;  /* 1: single operator, 2: fusion, 3: block, 0: it has no label. */
    const char *ops; /* The operators in order, separated by blanks ("linear gelu softmax"). NULL: unknown. */
};

/* A set owns its problems through one arena. */
struct problem_set {
    struct arena arena;
    struct problem *items;
    size_t count;
};

/* Loads the problems of SOURCE, which is one of these:
 *   - "builtin";
 *   - a .py file;
 *   - a folder: a KernelBench checkout, its KernelBench/ folder, or any folder tree with levelN/ID_Name.py, else
 *     with rows in .jsonl or .parquet files;
 *   - a .jsonl or .parquet file with the columns of the Hugging Face data set (code, level, name, problem_id) or of
 *     our generator;
 *   - the name of a data set on the Hub ("ScalingIntelligence/KernelBench", "ORG/NAME@REVISION"; see io/hub.h).
 * NULL or "" means KERNELBENCH_ROOT if set, else builtin. Errors name the file and line. */
enum status problem_set_load(const char *source, struct problem_set *out, struct err *e) MUST_USE;
void problem_set_free(struct problem_set *s);
/* Finds a problem by its key, its name ("19_ReLU"), or "LEVEL/ID". NULL when there is none. */
const struct problem *problem_find(const struct problem_set *s, const char *key);

/* Gives the problems `factor` times their batch. The batch is the number that a line "batch_size = N" (batch, num_rows)
 * of the module assigns. In the built-in and generated problems it is a first dimension of inputs, and none of
 * parameters. The keys of the problems end in "@FACTOR" then. Problems without such a line, or whose product is above
 * 2^31, stay as they are. Returns how many were changed. */
size_t problem_set_enlarge(struct problem_set *s, int64_t factor);

/* Appends what is known to be wrong with a problem of KernelBench, as names with blanks between (docs/formats.md,
 * "Problems"). Nothing is added for problems without known defects, and for those of other sources. */
void problem_flags(const struct problem *p, struct str *out);

#endif
