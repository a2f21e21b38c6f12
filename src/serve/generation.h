/* generation: a request for tokens, from its body to its reply: completions, chat and /inference/v1/generate. */
#ifndef KERNELRL_SERVE_GENERATION_H
#define KERNELRL_SERVE_GENERATION_H

#include "serve/internal.h"

/* Which part of a message a sample is in; samples of other requests are always in the last. */
enum message_part { PART_BEGIN, PART_REASONING, PART_REASONING_ENDED, PART_CONTENT };

struct gen_sample {
    struct detokenizer text;
    int at;     /* tokens that have been rendered */
    bool begun; /* of a stream: its first chunk has been made */
    bool ended; /* its last one has */
    enum message_part part;
};

struct generation {
    struct generation *next, *before;
    struct serve *s;
    struct http_exchange *x;
    struct ask a;
    struct work work; /* its body, until it is parsed and tokenised */
    struct ask_error error;
    bool fine;          /* true: there is no error */
    struct ids *prompt; /* [n_prompts] */
    struct ids bad_ids; /* of bad_words, end to end */
    struct token_run *bad_words;
    int n_bad_words;
    uint64_t *seed;           /* [n_prompts] */
    int n_prompts, n_samples; /* prompt-major: sample i is of prompt i / a.n */
    int top;                  /* log-probabilities that the engine gives beside the token's own */
    int32_t think, think_end; /* ids; -1: reasoning is not split off */
    char id[160];
    int64_t created;
    char *model, *called; /* the served model's name; what the client calls it */
    char fingerprint[FINGERPRINT_CHARS + 1];
    struct job *job; /* NULL: not admitted yet */
    struct gen_sample *sample;
    bool held, failed; /* failed: no token can come in time, or the server ends */
    int failed_status;
    const char *failed_code, *failed_why;
    /* rendering */
    struct str head; /* of each chunk: what all have in common */
    int next_sample; /* whose turn it is */
    bool usage_sent, done;
    int64_t completion_tokens;
};

/* ---- generation.c ---- */
void completions_begin(void *serve, struct http_exchange *x);
void chat_begin(void *serve, struct http_exchange *x);
void generate_begin(void *serve, struct http_exchange *x);
void generation_event(void *serve, struct http_exchange *x, enum http_event e);
void generation_end(void *serve, struct http_exchange *x);

/* ---- prompts.c ---- */
/* Makes the token ids of all prompts, and of bad_words. False: e says what is wrong. */
bool prompts_make(struct generation *g, struct tokenizer *t, struct ask_error *e) MUST_USE;
/* Token ids of messages, as a chat would have them. */
bool prompts_of_messages(const struct serve *s, struct tokenizer *t, const struct ask *a, struct ids *out,
                         struct ask_error *e);
/* Submits prompt k. What the request points to is borrowed for the call. */
enum status prompts_submit(struct generation *g, int k, int adapter, struct err *e) MUST_USE;

/* ---- render.c ---- */
/* What some tokens of one sample add to a reply. */
struct piece {
    struct str text, reasoning, ids;          /* ids: "1,2,3" */
    struct str tokens, values, tops, offsets; /* of completions: members of four lists */
    struct str content;                       /* of chat: members of one */
    int n;                                    /* tokens */
};
void piece_clear(struct piece *p);
void piece_free(struct piece *p);
/* Adds the prompt of a sample, for echo. */
void piece_add_prompt(struct generation *g, int sample, struct piece *p);
/* Adds tokens of the sample that are there and not rendered yet, at most `most`. True: these are its last ones. */
bool piece_add_drawn(struct generation *g, int sample, struct piece *p, int most);

/* Members of a choice: its log-probabilities, and why it ended. */
void put_logprobs(const struct generation *g, struct str *out, const struct piece *p);
void put_finish(const struct generation *g, struct str *out, int sample);
void put_prompt_logprobs(const struct generation *g, struct str *out, const char *key, int prompt);
void put_ids(struct str *out, const char *key, const int32_t *ids, size_t n);
void put_usage(const struct generation *g, struct str *out);
void put_f32(struct str *out, const char *key, float v);
/* What all objects of a reply begin with: id, object, created, model, fingerprint, seed. */
void put_head(const struct generation *g, struct str *out, bool chunk);

/* ---- reply.c ---- */
/* Replies with all that is there. */
void generation_reply(struct generation *g);

/* ---- stream.c ---- */
void generation_stream(struct generation *g);

#endif
