/* serve: models for other people's clients. Owns the OpenAI-compatible front end with vLLM's additions to it, the names
 * that models go by, and the thread that owns the model. May include http, policy and what these stand on; knows
 * nothing of training. Start here, then generation.c. */
#ifndef KERNELRL_SERVE_SERVE_H
#define KERNELRL_SERVE_SERVE_H

#include "http/http.h"
#include "policy/policy.h"
#include "serve/model_thread.h"

struct serve;
struct model_thread;

enum serve_pooling {
    SERVE_POOLING_AUTO /* as the model's folder says */,
    SERVE_POOLING_OFF,
    SERVE_POOLING_MEAN,
    SERVE_POOLING_LAST
};

struct serve_name { /* of an adapter in a folder, or an alias of a name */
    const char *name, *value;
};

struct serve_options {
    struct policy_options policy; /* policy.model.name is what the base model is called */
    struct serve_aside aside;     /* zero: the model has its device for itself */
    const struct serve_name *adapters, *aliases;
    size_t n_adapters, n_aliases;
    const char *preferred;   /* the name that is the default model; NULL: the base */
    const char *adapter_dir; /* adapters that clients name lie in it; NULL: clients name none */
    int max_adapters;        /* held at a time */
    int max_queue;           /* sequences that wait */
    double max_wait_s;       /* a request waits so long for its first token */
    int max_len;             /* tokens of a prompt and its answer; 0: what the model can */
    int max_logprobs, max_n, max_samples, max_prompts, max_messages;
    bool strict_length;            /* a request whose max_tokens does not fit is refused, not shortened */
    bool processed_logprobs;       /* log-probabilities are those of the distribution that is drawn from */
    bool inline_reasoning;         /* what stands in <think> stays in a message's content */
    enum serve_pooling embeddings; /* how a text's vector comes from those of its tokens */
};
/* What these are unless something else is said. */
extern const struct serve_options serve_defaults;

/* Begins to open the model; the options are borrowed until serve_close(). */
enum status serve_open(const struct serve_options *o, struct serve **out, struct err *e) MUST_USE;
/* The front end. It is to be given to http_server_open(), and the server then to serve_attach(). */
struct http_front serve_front(struct serve *s);
enum status serve_attach(struct serve *s, struct http_server *http, struct err *e) MUST_USE;
/* Whether the model could not be opened; *e says why. */
bool serve_failed(const struct serve *s, struct err *e);
bool serve_ready(const struct serve *s);
/* The thread that owns the model, for other front ends (model_thread.h). */
struct model_thread *serve_thread(const struct serve *s);
/* What the base model is called: its own name, then aliases of it; NULL behind the last. */
const char *serve_base_name(const struct serve *s, int i);
bool serve_is_base(const struct serve *s, const char *name);
/* After http_server_close(). NULL is fine. */
void serve_close(struct serve *s);

#endif
