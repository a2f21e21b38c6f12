/* tinker: a front end that speaks the Tinker protocol (/api/v1/...), so that its official Python client trains and
 * samples here. Owns sessions, the models that clients train, their calls and futures, samplers and checkpoints. It
 * shares the model's thread with serve, which owns the base model: calls of training run between the steps of sampling.
 * May include serve, http, train and what these stand on. Start here, then internal.h. */
#ifndef KERNELRL_TINKER_TINKER_H
#define KERNELRL_TINKER_TINKER_H

#include "http/http.h"
#include "serve/serve.h"

struct tinker;

struct tinker_options {
    const char *dir;       /* checkpoints lie in it; it is made. From the root on: see http_tell_without_paths */
    const char *tokenizer; /* what clients are told to load; NULL: the model's folder */
    int64_t train_tokens;  /* rows of a micro-batch at most, where a single datum allows */
    int max_awake;         /* models that are trained and on the device; the others rest in host memory */
    int max_models;        /* of all sessions that have not ended */
    int64_t rest_bytes;    /* of host memory for adapters at rest; more of them lie in files below dir */
    int keep_s;            /* weights and moments of a model are kept so often */
    /* Of each key; without keys, of all clients. */
    int max_queue;       /* sequences that are sampled or wait for it; further ones get 429 */
    int64_t max_held;    /* bytes of calls that wait for their turn; further ones get 429 */
    int64_t max_results; /* bytes of results; beyond them those go that were fetched, and what nobody fetches has 429 */
    int reread_s;        /* but a result that was fetched stays so long */
    int forget_s;        /* samplers and sessions that have ended are remembered so long */
    /* Of each key, where there are keys. */
    int key_models;     /* models at a time */
    int64_t key_tokens; /* tokens of calls and requests that have not ended; further ones get 429 */
    int64_t key_bytes;  /* bytes of checkpoints: beyond them none is saved */
    int n_keys;         /* of the server: with several, none of them takes all places in a batch */
};
extern const struct tinker_options tinker_defaults; /* dir is missing */

/* The options and the server are borrowed until tinker_close(). ST_IO: the folder cannot be used. */
enum status tinker_open(const struct tinker_options *o, struct serve *s, struct tinker **out, struct err *e) MUST_USE;
/* The front end, to be given to http_server_open() beside that of serve. */
struct http_front tinker_front(struct tinker *t);
/* Ends sessions that nobody has heard of for long, gaps that do not close, and results that are old. To be called now
 * and then by the server's thread. */
void tinker_tick(struct tinker *t);
/* Gives the models up. After http_server_close() and before serve_close(). NULL is fine. */
void tinker_close(struct tinker *t);

#endif
