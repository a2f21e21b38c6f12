/* remote: asks a model behind an OpenAI-compatible server, many requests at once. What may pass is tried again: a
 * connection that is refused or cut, a server that is busy (429) or failing (5xx), an answer that is late or makes no
 * sense. Waits double, begin anew with what the server says (Retry-After), and hold all requests where the server is
 * busy; the number of requests in flight falls then, and rises again. The rest ends the whole call, with a message that
 * says what to do. An answer is on disk before anybody gets it, and the same request, asked again, is read from there.
 *
 * The key is sent to the server, and written nowhere: neither to messages nor to files. */
#ifndef KERNELRL_REMOTE_REMOTE_H
#define KERNELRL_REMOTE_REMOTE_H

#include "remote/reply.h"

struct remote_options {
    const char *base_url;         /* "http://127.0.0.1:8000/v1" */
    const char *model;            /* as the server calls it */
    const char *key, *key_from;   /* NULL: none; the name of the variable that it came from, for messages */
    const char *reasoning_effort; /* NULL: nothing is said */
    const char *replies;          /* file of answers (replies.h); NULL: none */
    int in_flight;                /* requests at once, >= 1 */
    int tries;                    /* of a request, >= 1 */
    double timeout_s;             /* of one try */
    double backoff_s;             /* in front of the second try; it doubles, up to 60 s. 0: 1 */
    const volatile bool *cancel;  /* NULL: never */
};

struct remote_message {
    const char *role, *content;
};
struct remote_request {
    const struct remote_message *messages;
    int n_messages;
    double temperature, min_p; /* min_p 0: off */
    int64_t max_tokens;
    uint64_t seed; /* equal requests with equal seeds are one request */
};

/* What was used since remote_open(). Tokens of the server's count; answers from disk count in `replayed` alone. */
struct remote_usage {
    int64_t answers, replayed, retries, prompt_tokens, answer_tokens;
};

struct remote;
/* Checks the address and opens the file of answers; asks nothing. ST_CONFIG, the message beginning with the key. */
enum status remote_open(const struct remote_options *o, struct remote **out, struct err *e) MUST_USE;
void remote_close(struct remote *r); /* NULL is fine */
struct remote_usage remote_usage(const struct remote *r);

/* Whether an address is on this machine: then the server's work disturbs what is timed here. */
bool remote_is_here(const char *base_url);

/* Asks n requests. A reply is in out[i] (its text not NULL, the caller's) from when it has come; progress, which may be
 * NULL, is called behind each and ten times a second besides, with how many have come; it returns false to cancel.
 * After an error what has come is on disk, and out[] is empty. ST_CANCELLED; ST_CONFIG: the server refuses the request,
 * the key or the model's name; ST_IO: it does not answer, or not as it should. */
typedef bool remote_progress_fn(void *ctx, int done);
enum status remote_run(struct remote *r, const struct remote_request *req, int n, struct remote_reply *out,
                       remote_progress_fn *progress, void *ctx, struct err *e) MUST_USE;

#endif
