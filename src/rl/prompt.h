/* rl: reinforcement learning with verifiable rewards. Owns prompts, parsing, feedback, rewards, advantages, episodes,
 * supervised fine-tuning, evaluation, metrics and the run directory. May include engine, train, verify, problem and
 * text. Read loop.c first: one episode from problem to gradient in one file.
 *
 * prompt: problem -> chat messages, format version 1 (docs/formats.md). */
#ifndef KERNELRL_PROMPT_H
#define KERNELRL_PROMPT_H

#include "base/arena.h"
#include "problem/problem.h"
#include "problem/spec.h"
#include "text/chat.h"

enum { PROMPT_VERSION = 1, PROMPT_EXAMPLES_MAX = 3, PROMPT_ATTEMPTS_MAX = 8 };

struct prompt_example { /* a retrieved pair */
    const char *code, *kernel;
};
struct prompt_attempt {   /* an earlier turn */
    const char *kernel;   /* NULL: the answer held none */
    const char *summary;  /* the model's own words, or NULL */
    const char *feedback; /* feedback_render() */
};
struct prompt_input {
    const struct problem *problem;
    const struct spec *spec;
    bool think;
    const struct prompt_example *examples;
    int n_examples;
    const struct prompt_attempt *attempts;
    int n_attempts;
};

/* Fills messages[0] (system) and messages[1] (user); text from the arena. */
void prompt_build(const struct prompt_input *in, struct arena *a, struct chat_message messages[2]);

/* A kernel as the assistant writes it: <KERNEL>, fence, code, fence, </KERNEL>. */
void prompt_answer(const char *kernel, struct str *out);

#endif
