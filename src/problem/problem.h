/* problem: what the model is asked to make faster. Owns KernelBench-format problems (files, folder trees, JSONL), the
 * built-in set, the generator, difficulty labels and splits. May include base and io. Start here, then source.c. */
#ifndef KERNELRL_PROBLEM_H
#define KERNELRL_PROBLEM_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

enum split { SPLIT_TRAIN, SPLIT_TEST };

struct problem {
    const char *key;       /* unique within its source: "level1/19_ReLU" */
    const char *name;      /* "19_ReLU" */
    const char *code;      /* the PyTorch module, UTF-8 */
    int level, problem_id; /* 1-based; 0 when unknown */
    enum split split;
    int difficulty;  /* 1 single operator, 2 fusion, 3 block; 0 unlabelled */
    const char *ops; /* operator sequence, blank-separated ("linear gelu softmax"), or NULL when unknown */
};

/* A set owns its problems through one arena. */
struct problem_set {
    struct arena arena;
    struct problem *items;
    size_t count;
};

/* SOURCE is "builtin", a .py file, a folder (KernelBench checkout, its KernelBench/ folder, or any folder tree with
 * levelN/ID_Name.py, else with rows in .jsonl or .parquet files), a .jsonl or .parquet file with the columns of the
 * Hugging Face data set (code, level, name, problem_id) or of our generator, or the name of a data set on the Hub
 * ("ScalingIntelligence/KernelBench", "ORG/NAME@REVISION"; see io/hub.h). NULL or "": KERNELBENCH_ROOT if set, else
 * builtin. Errors name the file and line. */
enum status problem_set_load(const char *source, struct problem_set *out, struct err *e) MUST_USE;
void problem_set_free(struct problem_set *s);
/* By key, name ("19_ReLU"), or "LEVEL/ID"; NULL when absent. */
const struct problem *problem_find(const struct problem_set *s, const char *key);

/* Gives the problems `factor` times their batch: the number that a line "batch_size = N" (batch, num_rows) of the
 * module assigns, a first dimension of inputs and none of parameters in the built-in and generated problems. Their keys
 * end in "@FACTOR" then. Problems without such a line, or whose product is above 2^31, stay as they are. Returns how
 * many were changed. */
size_t problem_set_enlarge(struct problem_set *s, int64_t factor);

/* What is known to be wrong with a problem of KernelBench, as names with blanks between (docs/formats.md, "Problems");
 * nothing is added for problems without known defects, and for those of other sources. */
void problem_flags(const struct problem *p, struct str *out);

#endif
