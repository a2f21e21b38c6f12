/* rest: arrays of a backend's memory that nobody needs for a while lie in host memory or in a file, and come back bit
 * for bit. Adapters and trainers use it. The file's format is in docs/formats.md, "Files at rest". */
#ifndef KERNELRL_REST_H
#define KERNELRL_REST_H

#include "model/model.h"

struct backend;

/* Arrays at rest, in memory that the struct owns or in a file, of which it has the path. */
struct resting;
/* Copies the w of n parameters, each of n floats, to host memory (path NULL) or to a file, which must not be there yet.
 * The device's memory stays the caller's. ST_IO names the file; ST_MEMORY; ST_DEVICE. */
enum status rest_store(struct backend *be, const struct param *p, int n, const char *path, struct resting **out,
                       struct err *e) MUST_USE;
/* Moves arrays that rest in host memory to a file. */
enum status rest_to_file(struct resting *r, const char *path, struct err *e) MUST_USE;
/* Copies the arrays to the w of the same parameters in the same order; the w may lie at other addresses than before.
 * The arrays also stay at rest. ST_IO, ST_PARSE, ST_INVALID: the file is not there, or not the one that was written; w
 * is undefined then. */
enum status rest_load(struct backend *be, const struct resting *r, const struct param *p, int n,
                      struct err *e) MUST_USE;
void rest_free(struct resting *r); /* removes the file, too; NULL is fine */

const char *rest_path(const struct resting *r);   /* NULL: in host memory */
int64_t rest_bytes(const struct param *p, int n); /* of host memory, or of the file's tensors, that n parameters take */

#endif
