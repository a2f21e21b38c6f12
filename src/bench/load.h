/* load: requests to an OpenAI-compatible server at the times at which they are due, and what came of each: the times of
 * its first and later pieces. One thread, libcurl's multi interface. stats.c makes numbers of it. */
#ifndef KERNELRL_BENCH_LOAD_H
#define KERNELRL_BENCH_LOAD_H

#include <jansson.h>

#include "base/err.h"
#include "base/str.h"

enum load_api { LOAD_COMPLETIONS, LOAD_CHAT }; /* how a reply holds its text */

struct load_options {
    const char *url; /* of the endpoint */
    const char *key; /* "Authorization: Bearer KEY"; NULL or "": none */
    const char *const *headers;
    int n_headers;
    enum load_api api;
    int max_concurrency; /* requests that are sent and not answered, at most; 0: as many as are due */
    bool keep_text;      /* replies have their text */
};

struct load_request {
    double due_s;     /* after the beginning */
    const char *body; /* JSON; "stream": true in it says how the reply comes */
    bool stream;
    int64_t input_tokens; /* about; what the reply says of it wins */
};

struct load_reply {
    bool ok;
    double start_s, queued_s; /* when it was sent; how long it had been due by then */
    double ttft_s;            /* from start_s to the first piece with text; not streamed: as latency_s */
    double latency_s;         /* from start_s to the last piece */
    double *itl_s;            /* [n_itl] between one piece and the next */
    int n_itl, cap_itl;
    int64_t input_tokens, output_tokens; /* as its usage says; without one the pieces are counted */
    struct str text;
    char error[240]; /* of one that has failed */
};
void load_reply_free(struct load_reply *r);

/* Sends all n requests and waits for all replies; *duration_s is the time from the first to the last. Calls `progress`
 * (may be NULL) whenever a reply has ended. ST_IO: libcurl cannot be started; a request that fails is its reply's
 * affair. */
enum status load_run(const struct load_options *o, const struct load_request *request, int n, struct load_reply *reply,
                     void (*progress)(int done, int total), double *duration_s, struct err *e) MUST_USE;

/* One request whose reply is JSON. body NULL: GET. ST_IO: no answer, or a status other than 200. */
enum status load_json(const struct load_options *o, const char *url, const char *body, json_t **out,
                      struct err *e) MUST_USE;

/* Server-sent events (WHATWG HTML, 9.2): bytes in, data of whole events out. Begins as {0}. */
struct load_events {
    struct str line, data;
    bool has_data, after_cr;
};
typedef void load_event_fn(void *ctx, const char *data, size_t n);
void load_events_add(struct load_events *s, const char *p, size_t n, load_event_fn *event, void *ctx);
void load_events_free(struct load_events *s);

#endif
