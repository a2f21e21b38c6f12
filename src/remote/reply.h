/* remote: a model behind an OpenAI-compatible server, asked over libcurl. Owns requests, their repetition and what they
 * cost. Knows neither problems nor rewards, and has no tokens: messages go in, text comes out. May include base and io.
 * Start at remote.h.
 *
 * reply: what a server answers to POST /chat/completions, and what it says of an error. */
#ifndef KERNELRL_REMOTE_REPLY_H
#define KERNELRL_REMOTE_REPLY_H

#include "base/err.h"
#include "base/str.h"

struct remote_reply {
    char *text;      /* the caller's. Reasoning that a server splits off stands in front, in a think block */
    char finish[24]; /* "stop", "length", "content_filter", ...; "": the server does not say */
    int64_t prompt_tokens, answer_tokens; /* as the server counts them; -1: it does not say */
};
void remote_reply_free(struct remote_reply *r); /* zero is fine */

/* Reads a chat completion of n bytes: its first choice. ST_PARSE when it is none; the message says what is there
 * instead. */
enum status remote_reply_parse(const char *body, size_t n, struct remote_reply *out, struct err *e) MUST_USE;

/* What the body of an error says. The texts are empty where there is nothing. */
struct remote_error {
    char message[400]; /* printable, one line */
    char param[64];    /* the field that is refused */
    char code[64];     /* "insufficient_quota" */
};
void remote_error_parse(const char *body, size_t n, struct remote_error *out);

#endif
