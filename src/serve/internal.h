/* What the files of serve share. All of it belongs to the server's thread. */
#ifndef KERNELRL_SERVE_INTERNAL_H
#define KERNELRL_SERVE_INTERNAL_H

#include "http/http.h"
#include "http/metrics.h"
#include "serve/ask.h"
#include "serve/models.h"
#include "serve/serve.h"
#include "text/detokenize.h"

enum { MAX_UNKNOWN_FIELDS = 256, N_PAUSE_MODES = 3 };

struct serve_metrics {
    struct histogram first_token, between_tokens, whole, queued, prefill, decode, inference, prompt_tokens,
        generated_tokens;
    int64_t prompt, generated;                     /* tokens */
    int64_t stopped, too_long, aborted, failed;    /* samples by how they ended */
    int64_t left_waiting, left_running;            /* requests whose client left */
    int64_t refused_queue, refused_wait;
};

enum pausing { PAUSE_NONE, PAUSE_WAITING /* until what runs has ended */, PAUSED };

struct serve {
    const struct serve_options *o;
    struct http_server *http;
    struct model_thread *thread;
    struct models models;
    struct ask_limits limits;
    int max_len; /* of a prompt and its answer, tokens */
    struct stop_set *stops;
    bool identifying;
    enum pausing pausing;
    struct generation *generations;
    struct exchange **waiting; /* for an adapter, or for a pause to be reached */
    int n_waiting, cap_waiting;
    char *unknown[MAX_UNKNOWN_FIELDS];
    int n_unknown;
    struct serve_metrics metrics;
    struct embed_state *embed;
};

/* ---- serve.c ---- */
void reply_ask_error(struct exchange *x, const struct ask_error *e);
/* Whether the model can be asked at all; else x has its reply. */
bool serve_is_up(struct serve *s, struct exchange *x);
/* The model of a name; NULL: x has its reply. */
struct served_model *serve_model(struct serve *s, struct exchange *x, const char *name);
/* Calls event(x) when an adapter has been loaded, a pause has been reached or the like. */
void serve_wait(struct serve *s, struct exchange *x);
void serve_stop_waiting(struct serve *s, const struct exchange *x);
void serve_note_unknown(struct serve *s, const struct ask *a);

#endif
