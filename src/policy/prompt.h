/* rl: reinforcement learning with verifiable rewards. Owns prompts, parsing, feedback, rewards, advantages, episodes,
 * supervised fine-tuning, evaluation, metrics and the run directory. May include engine, train, verify, problem and
 * text. Read loop.c first: one episode from problem to gradient in one file.
 *
 * prompt: problem -> chat messages, format version 1 (docs/formats.md). */
#ifndef KERNELRL_POLICY_PROMPT_H
#define KERNELRL_POLICY_PROMPT_H

#include "base/arena.h"
#include "policy/parse.h"
#include "problem/problem.h"
#include "problem/spec.h"
#include "text/chat.h"
#include "verify/backends.h"

enum { PROMPT_VERSION = 1, PROMPT_EXAMPLES_MAX = 3, PROMPT_ATTEMPTS_MAX = 15 };

struct prompt_example { /* a pair, retrieved or built in */
    const char *code, *kernel;
};
struct prompt_attempt {   /* an earlier turn */
    const char *kernel;   /* NULL: the answer held none */
    const char *summary;  /* the model's own words, or NULL */
    const char *feedback; /* feedback_render() */
};
struct prompt_input {
    const struct problem *problem;
    const struct spec *spec;            /* of backends with a prototype */
    const struct backend_info *backend; /* NULL: c */
    bool think;
    const char *precision; /* "FP32 (32-bit floating point)"; NULL: nothing is said */
    const char *hardware;  /* prompt_hardware(); NULL: nothing is said */
    const struct prompt_example *examples;
    int n_examples;
    const struct prompt_attempt *attempts;
    int n_attempts;
};

/* The language of a backend's answers, for parse_completion(). NULL: c. */
enum answer_language prompt_language(const struct backend_info *backend);

/* Fills messages[0] (system) and messages[1] (user); text from the arena. */
void prompt_build(const struct prompt_input *in, struct arena *a, struct chat_message messages[2]);

/* A kernel as the assistant writes it: <KERNEL>, fence, code, fence, </KERNEL>. backend NULL: c. */
void prompt_answer(const struct backend_info *backend, const char *kernel, struct str *out);

/* The built-in examples of a backend, `most` at most; returns their number. */
int prompt_examples(const char *backend, int most, const struct prompt_example **out);

/* What a GPU is ("H200", "A100-80GB", ...), or this machine's processor ("cpu"), in a few lines. ST_CONFIG for a name
 * that is not known; the message lists those that are. */
enum status prompt_hardware(const char *name, struct str *out, struct err *e) MUST_USE;

#endif
