/* replies: answers of a server on disk, one a line (docs/formats.md, "Replies of a server"). An answer is paid for
 * once: who is interrupted, and asks the same again, finds it here. */
#ifndef KERNELRL_REMOTE_REPLIES_H
#define KERNELRL_REMOTE_REPLIES_H

#include "base/hash.h"
#include "remote/reply.h"

struct replies;
/* Opens or creates PATH; a torn last line is removed. ST_IO; ST_PARSE for a damaged line. */
enum status replies_open(const char *path, struct replies **out, struct err *e) MUST_USE;
void replies_close(struct replies *r); /* NULL is fine */
/* The answer to a request, copied into *out. False: there is none. */
bool replies_find(const struct replies *r, const struct digest *request, struct remote_reply *out);
/* Appends; on the disk when this returns. */
enum status replies_add(struct replies *r, const struct digest *request, const struct remote_reply *reply,
                        struct err *e) MUST_USE;

#endif
