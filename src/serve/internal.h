/* What the files of serve share. All of it belongs to the server's thread. */
#ifndef KERNELRL_SERVE_INTERNAL_H
#define KERNELRL_SERVE_INTERNAL_H

#include "http/http.h"
#include "http/metrics.h"
#include "policy/answer.h"
#include "serve/ask.h"
#include "serve/models.h"
#include "serve/serve.h"
#include "serve/work.h"
#include "text/detokenize.h"

enum { MAX_UNKNOWN_FIELDS = 256 };

struct serve_metrics {
    struct histogram first_token, between_tokens, whole, queued, prefill, decode, inference, prompt_tokens,
        generated_tokens;
    int64_t prompt, generated;                  /* tokens */
    int64_t stopped, too_long, aborted, failed; /* samples by how they ended */
    int64_t left_waiting, left_running;         /* requests whose client left */
    int64_t refused_queue, refused_wait;
};

enum pausing { PAUSE_NONE, PAUSE_WAITING /* until what runs has ended */, PAUSED };

struct serve {
    const struct serve_options *o;
    struct http_server *http;
    struct model_thread *thread;
    struct work_thread *worker;
    struct models models;
    struct ask_limits limits;
    int max_len; /* of a prompt and its answer, tokens */
    struct stop_set stops;
    bool identifying;
    enum pausing pausing;
    struct generation *generations;
    struct http_exchange **waiting;     /* for an adapter, or for a pause to be reached */
    int n_waiting, cap_waiting, n_held; /* n_held: sequences of generations among them */
    char *unknown[MAX_UNKNOWN_FIELDS];
    int n_unknown;
    struct serve_metrics metrics;
    int n_embeddings; /* requests whose vectors are not there yet */
    enum serve_pooling pooling;
};

/* ---- serve.c ---- */
void reply_ask_error(struct http_exchange *x, const struct ask_error *e);
/* Whether the model can be asked at all; else x has its reply. */
bool serve_is_up(struct serve *s, struct http_exchange *x);
/* The model of a name; NULL: x has its reply. */
struct served_model *serve_model(struct serve *s, struct http_exchange *x, const char *name);
/* Calls event(x) when an adapter has been loaded, a pause has been reached or the like. */
void serve_wait(struct serve *s, struct http_exchange *x);
void serve_stop_waiting(struct serve *s, const struct http_exchange *x);
void serve_wake_waiting(struct serve *s);
void serve_note_unknown(struct serve *s, const struct ask *a);

/* ---- models_api.c ---- */
void models_list_begin(void *serve, struct http_exchange *x);
void model_show_begin(void *serve, struct http_exchange *x);

/* ---- tokens.c ---- */
void tokenize_begin(void *serve, struct http_exchange *x);
void detokenize_request_begin(void *serve, struct http_exchange *x);
void tokens_event(void *serve, struct http_exchange *x, enum http_event e);
void tokens_end(void *serve, struct http_exchange *x);
void tokenizer_info_begin(void *serve, struct http_exchange *x);

/* ---- admin.c ---- */
void adapter_load_begin(void *serve, struct http_exchange *x);
void adapter_load_json_begin(void *serve, struct http_exchange *x);
void adapter_unload_begin(void *serve, struct http_exchange *x);
void admin_event(void *serve, struct http_exchange *x, enum http_event e);
void admin_end(void *serve, struct http_exchange *x);
void pause_begin(void *serve, struct http_exchange *x);
void resume_begin(void *serve, struct http_exchange *x);
void is_paused_begin(void *serve, struct http_exchange *x);
void reset_cache_begin(void *serve, struct http_exchange *x);
void abort_requests_begin(void *serve, struct http_exchange *x);
void world_size_begin(void *serve, struct http_exchange *x);
void server_info_begin(void *serve, struct http_exchange *x);
void version_begin(void *serve, struct http_exchange *x);
/* Looks whether a pause that was asked for has been reached. */
void pause_look(struct serve *s);

/* ---- embeddings.c ---- */
/* How the model in a folder is made to embed texts. */
enum serve_pooling embeddings_pooling(const char *folder);
void embeddings_begin(void *serve, struct http_exchange *x);
void embeddings_event(void *serve, struct http_exchange *x, enum http_event e);
void embeddings_end(void *serve, struct http_exchange *x);

/* ---- metrics.c ---- */
void serve_metrics_begin(struct serve_metrics *m);
void serve_put_metrics(void *serve, struct str *out);

#endif
