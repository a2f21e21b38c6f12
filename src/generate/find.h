/* find: a problem by the name that users, run directories and files have for it. */
#ifndef KERNELRL_GENERATE_FIND_H
#define KERNELRL_GENERATE_FIND_H

#include "problem/problem.h"

/* Finds the one problem that NAME means:
 *   - a file (only while the set is zero): the problem that is alone in it;
 *   - a problem of SOURCE (problem_set_load), as problem_find takes it: its key, its name, or LEVEL/ID;
 *   - "generated/SEED_INDEX": problem INDEX of the generator's stream SEED, made again;
 *   - either of these with "@FACTOR" behind it, of the built-in set and the generator: with FACTOR times its batch, as
 *     a run with dataset_builder.batch_factor calls it.
 * A name that stands in SOURCE word for word means that problem. `set` is zero at first and may serve several calls
 * with the same source, which is loaded into it when a name needs it. *out lives as long as the set. ST_INVALID where
 * there is no such problem; the message begins with NAME and says which key is near. */
enum status problem_named(struct problem_set *set, const char *source, const char *name, const struct problem **out,
                          struct err *e) MUST_USE;

#endif
