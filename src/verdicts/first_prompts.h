/* first_prompts: what a run shows a model first, made for clients. A prompt may need a problem's prototype, which a
 * Python process finds out, so a thread of its own makes them, one after the other. */
#ifndef KERNELRL_VERDICTS_FIRST_PROMPTS_H
#define KERNELRL_VERDICTS_FIRST_PROMPTS_H

#include "rl/options/options.h"

/* One prompt that somebody wants. The first four are the caller's to say; options and problem are borrowed until
 * done(). */
struct prompt_ask {
    const struct train_options *options;
    enum verify_backend backend; /* instead of that of the options */
    const struct problem *problem;
    void (*done)(void *ctx,
                 struct prompt_ask *a); /* the thread's; or that of first_prompts_close(), with ST_CANCELLED */
    void *ctx;
    struct str messages; /* with ST_OK: a member "messages", with a comma in front */
    enum status status;
    struct err err;
    struct prompt_ask *next; /* the thread's own */
};

struct first_prompts;
struct first_prompts *first_prompts_open(void);
/* Any thread. done() follows. */
void first_prompts_submit(struct first_prompts *p, struct prompt_ask *a);
/* Asks that wait are cancelled; the one that is being made is waited for. NULL is fine. */
void first_prompts_close(struct first_prompts *p);

#endif
