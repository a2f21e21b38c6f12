/* store: verdicts that runs share, in a folder, a file for each answer. What decides a verdict is in a file's name: the
 * settings, the kind of machine, the version of the program, problem and answer. A verdict counts for others once two
 * judgements agree; until then who meets it judges the answer again. Any number of processes may use a folder at once.
 */
#ifndef KERNELRL_VERIFY_POOL_STORE_H
#define KERNELRL_VERIFY_POOL_STORE_H

#include "verify/verify.h"

struct verdict_store;
/* NULL for a folder of NULL. ST_IO. */
enum status verdict_store_open(const char *folder, struct verdict_store **out, struct err *e) MUST_USE;
void verdict_store_close(struct verdict_store *s);

/* The name of an answer in any store: SHA-256 of all that decides. key: verify_key(). */
struct digest verdict_store_name(const char *settings_hash, const char *class, const struct digest *key);
/* True: two judgements of that answer agree, and *out is the first of them, marked as cached. A file that cannot be
 * read counts as none. */
bool verdict_store_find(const struct verdict_store *s, const struct digest *name, struct verdict *out);
/* Keeps a verdict that a worker has given just now. Missing and cached ones are passed over. What cannot be written is
 * said in a warning, once. */
void verdict_store_add(struct verdict_store *s, const struct digest *name, const char *worker,
                       const struct verdict *verdict);

/* Whether two judgements of one answer agree: both right, or neither, and ratios within a tenth of each other. */
bool verdicts_agree(const struct verdict *a, const struct verdict *b);

#endif
