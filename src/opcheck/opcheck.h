/* opcheck: what every op of a backend must do, checked. Owns one table of ops with the shapes to try (cases.h), and
 * four questions asked of each: are the values right (check.c), are gradients those of the forward (grad.c), do a row's
 * bits depend on its batch or on the threads (invariance.c), how near is the time to the machine's limit (perf.c).
 * `kernelrl selfcheck ops`, the unit test and the test of the CUDA plugin are this module. May include tensor and base.
 * Start at cases.h. */
#ifndef KERNELRL_OPCHECK_H
#define KERNELRL_OPCHECK_H

#include <stdio.h>

#include "tensor/backend.h"

enum opcheck_mode { OPCHECK_CHECK = 1, OPCHECK_GRAD = 2, OPCHECK_INVARIANCE = 4, OPCHECK_PERF = 8 };

struct opcheck_options {
    const char *device; /* cpu, cuda, cuda:N */
    const char *op;     /* a name of the table, or NULL: all */
    unsigned modes;     /* of enum opcheck_mode */
    int threads;        /* of the pool; 0: one per CPU */
    bool quick;         /* fewer and smaller cases: seconds, for unit tests */
    bool json;          /* a JSON object a line instead of a table */
    FILE *out;
};
struct opcheck_tally {
    int passed, failed, skipped; /* (op, mode) pairs */
};

/* Opens the device and what it is compared with, and runs the modes asked for; adds to *t. A failed check is counted,
 * not an error; errors are an unknown op (the message lists the names), a device that cannot be opened, or one that
 * failed while it worked. */
enum status opcheck_run(const struct opcheck_options *o, struct opcheck_tally *t, struct err *e) MUST_USE;

/* The same for one mode on backends that are open. `reference` is compared with bit by bit in OPCHECK_CHECK; `others`
 * are the same device with other numbers of threads, for OPCHECK_INVARIANCE. */
struct opcheck_env {
    struct backend *target, *reference;
    struct backend *others[4];
    int n_others;
    bool host; /* the target's memory is this program's */
};
enum status opcheck_mode(const struct opcheck_env *env, enum opcheck_mode mode, const struct opcheck_options *o,
                         struct opcheck_tally *t, struct err *e) MUST_USE;

/* Whether the table has an op of this name; fills e with the names when it has not. */
enum status opcheck_known(const char *op, struct err *e);

#endif
