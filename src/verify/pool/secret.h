/* secret: from which a run's inputs are drawn. It is made anew for each run, so that nobody can prepare for the inputs
 * of the next one, and all workers of a run have the same, so that they test the same. A pool on pipes draws it and
 * tells it to its workers. Where jobs go through a queue, the queue must not see it: then trainer and workers hold the
 * same file, and the secret of a run is an HMAC of the run's name under what the file holds. */
#ifndef KERNELRL_VERIFY_POOL_SECRET_H
#define KERNELRL_VERIFY_POOL_SECRET_H

#include "base/err.h"

enum { RUN_NAME_BYTES = 17 };

/* A name for a run: 16 hex digits, from the system's random numbers. ST_IO. */
enum status secret_run_name(char out[RUN_NAME_BYTES], struct err *e) MUST_USE;
/* A secret seed from there; never 0. */
enum status secret_draw(uint64_t *seed, struct err *e) MUST_USE;
/* The seed of a run by the file, which holds 64 hex digits and which nobody but its owner may read. ST_IO; ST_INVALID
 * for another file. No message quotes what the file holds. */
enum status secret_of_run(const char *file, const char *run, uint64_t *seed, struct err *e) MUST_USE;
/* Writes such a file. It must not exist yet. */
enum status secret_make_file(const char *file, struct err *e) MUST_USE;

#endif
