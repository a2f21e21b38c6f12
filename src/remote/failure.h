/* failure: what a call that brought no answer means, and whether to try again. Private to remote.c. */
#ifndef KERNELRL_REMOTE_FAILURE_H
#define KERNELRL_REMOTE_FAILURE_H

#include "remote/call.h"
#include "remote/remote.h"

enum failure_kind {
    FAILURE_NONE,     /* there is an answer */
    FAILURE_BUSY,     /* the server has too much to do: hold all requests */
    FAILURE_PASSING,  /* a lost connection, a server that is in trouble */
    FAILURE_UNHEARD,  /* nobody is there, or no answer came in time */
    FAILURE_NONSENSE, /* an answer that is none */
    FAILURE_FIELD,    /* the server does not know a field that can be left out; which one is in `drop` */
    FAILURE_FINAL,    /* trying again is of no use */
};
/* Fields that a request can do without. */
enum failure_drop { DROP_NOTHING, DROP_SEED, DROP_MAX_TOKENS /* max_completion_tokens instead */, DROP_MIN_P };

struct remote_failure {
    enum failure_kind kind;
    enum failure_drop drop;
    struct err err; /* what to say if it stays so */
};
/* Reads what came of an ended call. FAILURE_NONE: the answer is in *out. */
struct remote_failure failure_of(const struct remote_options *o, const struct call *c, struct remote_reply *out);

#endif
