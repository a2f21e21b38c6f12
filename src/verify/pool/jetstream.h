/* jetstream: streams, leases and keys of a NATS server with JetStream, over a connection of the plugin, in one thread
 * and without waiting: what is asked for comes to a function of the caller's, from js_step(). Subjects and bodies are
 * those of JetStream's JSON interface. */
#ifndef KERNELRL_VERIFY_POOL_JETSTREAM_H
#define KERNELRL_VERIFY_POOL_JETSTREAM_H

#include "base/str.h"
#include "io/json.h"
#include "verify/pool/nats_api.h"

struct js;

/* An answer. The json is borrowed. */
struct js_reply {
    bool good; /* false: `error` says why; no answer within the time is an error, too */
    const char *error;
    int code;           /* JetStream's error code; 0: none */
    const json_t *json; /* NULL: the answer is no JSON */
    const char *data;   /* as it came; NULL: none did */
    size_t n;
};
typedef void js_reply_fn(void *ctx, const struct js_reply *r);

/* A message of a consumer or of a subscription. Its texts live until the function returns. */
struct js_message {
    const char *subject;
    const char *ack;  /* where it is acknowledged; NULL: nowhere */
    const char *data; /* unpacked */
    size_t n;
    int64_t delivered;               /* how often, with this time; 0: of no consumer */
    int64_t seq, left;               /* in its stream; messages of the consumer that wait behind it */
    const struct nats_received *raw; /* for js_header */
};
typedef void js_message_fn(void *ctx, const struct js_message *m);

struct js_options {
    const char *url, *name;
    const char *folder; /* of credentials: nkey, ca.pem, cert.pem, key.pem, those that are there; NULL: none */
    double ping_s;
};
enum status js_open(const struct js_options *o, struct js **out, struct err *e) MUST_USE;
/* The same with another library than the plugin's, for tests. */
enum status js_open_with(const struct nats_api *api, const struct js_options *o, struct js **out,
                         struct err *e) MUST_USE;
void js_close(struct js *c); /* NULL is fine */
int js_fd(const struct js *c);
bool js_connected(struct js *c);
bool js_closed(struct js *c);  /* for good: the library does not try any more */
bool js_refused(struct js *c); /* closed, because the server does not let in who has this key */
/* Who waits for an answer is told that none will come. For a connection that is closed. */
void js_give_up(struct js *c);
void js_why(struct js *c, char *out, size_t size); /* what the connection said last */
/* Takes what has come, and gives up what has waited too long. */
void js_step(struct js *c);

/* Asks; fn may be NULL. */
void js_request(struct js *c, const char *subject, const char *body, double seconds, js_reply_fn *fn, void *ctx);
/* Keeps a message in its stream. Of messages with one id a stream keeps the first. Above 16 KiB it is packed. headers
 * may be NULL. fn NULL: nobody asks whether it was kept. */
void js_publish(struct js *c, const char *subject, const char *id, const struct nats_header *headers, const void *data,
                size_t n, double seconds, js_reply_fn *fn, void *ctx);
/* Tells all who listen at this time. */
void js_tell(struct js *c, const char *subject, const char *text);

/* Messages that come to a subject. ST_IO. */
enum status js_listen(struct js *c, const char *subject, js_message_fn *fn, void *ctx, struct err *e) MUST_USE;

/* Asks a consumer for up to n messages, for so many seconds. They go to fn; `ended` is called when no more will come.
 */
struct js_pull;
struct js_pull *js_pull_make(struct js *c, const char *stream, const char *consumer, js_message_fn *fn, void *ctx);
void js_pull_ask(struct js_pull *p, int n, double seconds);
int js_pull_open(const struct js_pull *p);    /* messages that may come yet */
bool js_pull_failed(const struct js_pull *p); /* the consumer is not there */

/* Acknowledges: it is done. sure: asks whether that was heard, and fn is told. */
void js_ack(struct js *c, const char *ack, js_reply_fn *fn, void *ctx);
void js_nak(struct js *c, const char *ack, double delay_s); /* give it to somebody again, not before that */
void js_progress(struct js *c, const char *ack);            /* it is being worked on */
void js_term(struct js *c, const char *ack);                /* give it to nobody any more */
const char *js_header(struct js *c, const struct js_message *m, const char *name);

/* The public key of the connection's NKey; "" without one. And a signature with it. */
const char *js_public_key(const struct js *c);
bool js_sign(const struct js *c, const void *p, size_t n, char out[90]);

#endif
