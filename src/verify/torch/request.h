/* request: one request to an answer's process and its reply. What the process wants compiled in between is compiled by
 * us. */
#ifndef KERNELRL_VERIFY_TORCH_REQUEST_H
#define KERNELRL_VERIFY_TORCH_REQUEST_H

#include "verify/torch/state.h"

/* Objects that are compiled for an answer within one request, at most. */
enum { MOST_BUILDS = 32 };

/* Begins a request of this name in q and leaves its object open: whatever sends it closes it. */
void run_open_request(struct str *q, const char *op);
/* Sends a request, with a descriptor where fd >= 0, and waits for its reply (caller json_decref's *reply). ns, when not
 * NULL: the request is timed, in nanoseconds. What the answer has compiled in __init__() or in its first calls takes no
 * time of theirs. */
bool run_request(struct torch_answer *r, struct str *q, int fd, double timeout_s, const char *where, json_t **reply,
                 int64_t *ns);
/* Sends a request whose reply says nothing more. */
bool run_simple(struct torch_answer *r, struct str *q, int fd, double timeout_s, const char *where);
/* Does the same for what a process has to do before its answer is called. A busy machine may be late with it. So
 * lateness is our trouble, except in the last try. */
bool run_starting(struct torch_answer *r, struct str *q, int fd);
/* Compiles what an answer asks for (`wanted`, its message) within timeout_s, and hands it the object. False: the answer
 * has gone. Where our own trouble is the reason, the answer does not hear of it, the verdict is there, and the process
 * has been ended. */
bool run_serve_build(struct torch_answer *r, const json_t *wanted, double timeout_s);

#endif
