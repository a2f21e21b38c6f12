/* ask: what a client asks for, from JSON to C. Knows fields, types and ranges of the OpenAI API and of vLLM's additions
 * to it; never sees a tokenizer or a model. A parameter is honoured, or refused when it would change the result and
 * cannot be honoured; one that nobody knows is ignored, and named. */
#ifndef KERNELRL_SERVE_ASK_H
#define KERNELRL_SERVE_ASK_H

#include "base/arena.h"
#include "engine/engine.h"
#include "text/chat.h"

enum ask_api { ASK_COMPLETIONS = 1, ASK_CHAT = 2, ASK_GENERATE = 4 };
enum { ASK_THINK_DEFAULT = -1, ASK_THINK_NOT = 0, ASK_THINK = 1 };

/* What is wrong with a request: a status of HTTP, a code and a field of the error's JSON. */
struct ask_error {
    int status;
    const char *code; /* or NULL */
    char param[80];   /* or "" */
    char message[1000];
};
bool ask_fail(struct ask_error *e, const char *code, const char *param, const char *fmt, ...) PRINTF_LIKE(4, 5);

struct ask_limits {
    int vocab;
    int max_n, max_prompts, max_samples, max_messages, max_logprobs;
};

struct ask_text {
    const char *p;
    size_t n;
};
struct ask_prompt {
    bool is_text, is_end; /* is_end: the model's end-of-text token alone */
    struct ask_text text;
    const int32_t *ids;
    int n_ids;
};
struct ask_ids {
    const int32_t *p;
    int n;
};
struct ask_texts {
    const char *const *p;
    int n;
};

struct ask { /* owns what it points to */
    struct arena mem;
    enum ask_api api;
    const char *model, *request_id; /* or NULL */
    struct ask_prompt *prompt;
    int n_prompts;

    /* chat */
    struct chat_message *message;
    int n_messages;
    enum chat_end end;
    bool special_tokens; /* true: what the tokenizer puts around a text, such as beginning-of-text, is put there */
    int thinking;        /* ASK_THINK_... */

    int n, max_tokens; /* max_tokens -1: not given */
    struct ask_texts stop, bad_words;
    struct ask_ids stop_ids, allowed_ids;
    struct logit_bias *bias;
    int n_bias;
    double temperature, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty;
    int top_k, min_tokens, truncate; /* truncate: the prompt's last so many tokens; 0: all, -1: as many as fit */
    bool has_seed, ignore_eos, include_stop, keep_special; /* keep_special: special tokens have their text */
    int64_t seed;

    /* of the reply */
    int logprobs, prompt_logprobs; /* so many most probable beside the token's own; -1: none */
    bool truncate_right;           /* true: what is too long loses its end, not its beginning */
    bool echo, return_ids, tokens_as_ids, stream, usage, usage_always, no_reasoning;

    const char **unknown; /* names of fields that nobody knows */
    int n_unknown;

    bool chat_logprobs, top_logprobs_null; /* the parser's own */
    bool generation_prompt, continue_final, generation_given;
    int best_of;
    bool stream_options, has_tools, wants_tools;
};

/* Parses a body. False: e says what is wrong with it. ask_free in any case. */
bool ask_parse(enum ask_api api, const char *text, size_t bytes, const struct ask_limits *l, struct ask *a,
               struct ask_error *e) MUST_USE;
void ask_free(struct ask *a);

/* The parts of it that other requests share. `v` is the value of the field `name`. */
struct json_t;
bool ask_object(const char *text, size_t bytes, struct json_t **out, struct ask_error *e) MUST_USE;
bool ask_int(const struct json_t *v, const char *name, int64_t low, int64_t high, int64_t *out,
             struct ask_error *e) MUST_USE;
bool ask_bool(const struct json_t *v, const char *name, bool *out, struct ask_error *e) MUST_USE;
bool ask_string(const struct json_t *v, const char *name, struct ask_text *out, struct ask_error *e) MUST_USE;
/* A text, texts, ids or lists of ids. */
bool ask_prompts(struct arena *mem, const struct json_t *v, const char *name, const struct ask_limits *l,
                 struct ask_prompt **out, int *n, struct ask_error *e) MUST_USE;
bool ask_id_list(struct arena *mem, const struct json_t *v, const char *name, int vocab, struct ask_ids *out,
                 struct ask_error *e) MUST_USE;
bool ask_messages(struct arena *mem, const struct json_t *v, const struct ask_limits *l, struct chat_message **out,
                  int *n, struct ask_error *e) MUST_USE;

#endif
