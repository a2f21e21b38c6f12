/* opcheck: checks what every op of a backend must do. It owns one table of ops with the shapes to try (cases.h), and
 * asks four questions of each: are the values right (check.c), are gradients those of the forward (grad.c), do a row's
 * bits depend on its batch or on the threads (invariance.c), how near is the time to the machine's limit (perf.c).
 * `kernelrl selfcheck ops`, the unit test and the test of the CUDA plugin use this module. It may include tensor and
 * base. Start at cases.h. */
#ifndef KERNELRL_OPCHECK_H
#define KERNELRL_OPCHECK_H

#include <stdio.h>

#include "tensor/backend.h"

enum opcheck_mode { OPCHECK_CHECK = 1, OPCHECK_GRAD = 2, OPCHECK_INVARIANCE = 4, OPCHECK_PERF = 8 };

struct opcheck_options {
    const char *device; /* cpu, cuda, or cuda:N. */
    const char *op;     /* A name of the table. NULL: all of them. */
    unsigned modes;     /* A set of enum opcheck_mode. */
    int threads;        /* Threads of the pool. 0: one for each CPU. */
    bool quick;         /* true: fewer and smaller cases, which take seconds, for unit tests. */
    bool json;          /* true: prints a JSON object a line instead of a table. */
    FILE *out;
};
struct opcheck_tally {
    int passed, failed, skipped; /* They count (op, mode) pairs. */
};

/* Opens the device and what it is compared with, runs the modes that are asked for, and adds to *t. A failed check is
 * counted, and is no error. Errors are an unknown op (the message lists the names), a device that cannot be opened, or
 * a device that failed while it worked. */
enum status opcheck_run(const struct opcheck_options *o, struct opcheck_tally *t, struct err *e) MUST_USE;

/* The same for one mode, on backends that are open. `reference` is compared with bit by bit in OPCHECK_CHECK. `others`
 * are the same device with other numbers of threads, for OPCHECK_INVARIANCE. */
struct opcheck_env {
    struct backend *target, *reference;
    struct backend *others[4];
    int n_others;
    bool host; /* true: the target's memory is this program's. */
};
enum status opcheck_mode(const struct opcheck_env *env, enum opcheck_mode mode, const struct opcheck_options *o,
                         struct opcheck_tally *t, struct err *e) MUST_USE;

/* Returns whether the table has an op of this name. If not, fills e with the names. */
enum status opcheck_known(const char *op, struct err *e);

#endif
