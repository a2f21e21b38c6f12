/* link: calls of the Tinker protocol on their way, many at once, and the futures that most of them are answered with.
 * What may pass is tried again with the same bytes: a connection that is refused or cut, a server that is busy (429) or
 * in trouble (5xx). So a server may be killed and started again. Private to hosted.c. */
#ifndef KERNELRL_HOSTED_LINK_H
#define KERNELRL_HOSTED_LINK_H

#include <stdio.h>

#include "base/err.h"
#include "base/str.h"

struct link_options {
    const char *base_url, *key; /* key NULL: none */
    int in_flight;              /* calls at once, >= 1 */
    double patience_s; /* so long may the server be out of reach, or busy with a call that it refuses to take */
    const volatile bool *cancel; /* true there ends calls to a server that is out of reach, no others; NULL: never */
};
struct link;
/* Checks the address; asks nothing. ST_CONFIG. */
enum status link_open(const struct link_options *o, struct link **out, struct err *e) MUST_USE;
void link_close(struct link *l); /* NULL is fine */

struct link_call {
    const char *path;   /* "optim_step" */
    const char *method; /* "GET" or "DELETE", without a body; NULL: POST */
    const char *url;    /* of a file elsewhere, which is asked for without the key; NULL: that of the path */
    FILE *to;           /* takes the result instead, whatever its length; NULL: none. Of direct calls */
    struct str body;    /* the call's, link_call_free frees it */
    bool proto_body;    /* true: the body is protobuf */
    bool direct;        /* true: the answer is the result; else it is a promise of one */
    bool proto;         /* true: the result is protobuf */
    /* Makes another body, where the server has lost the promise and the call may be made anew; NULL: it may not. */
    void (*renew)(void *ctx, struct link_call *c);
    void *ctx;
    bool done;         /* true: `result` is there */
    struct str result; /* JSON, or protobuf */
};
void link_call_free(struct link_call *c);

/* Makes n calls, begun in their order. progress (NULL: nobody asks) is called behind each one that is done and ten
 * times a second besides; it returns false to cancel. ST_CANCELLED; ST_CONFIG: the server refuses the key or the call,
 * or says that the user has to change something; ST_IO: it is out of reach, or fails, or its answer makes no sense. */
typedef bool link_progress_fn(void *ctx, int done);
enum status link_run(struct link *l, struct link_call *calls, int n, link_progress_fn *progress, void *ctx,
                     struct err *e) MUST_USE;

/* Posts {"session_id": ...} as session_heartbeat each ten seconds from a thread of its own, until it is closed. */
struct heartbeat;
struct heartbeat *heartbeat_begin(const struct link *l, const char *session_id);
void heartbeat_end(struct heartbeat *h); /* NULL is fine */

#endif
