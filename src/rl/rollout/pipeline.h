/* pipeline: batches that are sampled before the step that trains on them. With max_staleness k a step samples the batch
 * of k steps later, then waits for the verdicts of its own, which were asked for k steps ago, then trains: the verifier
 * works while the model samples and trains, and a batch is at most k updates old when its turn comes. Model and sampler
 * never run at the same time, so there is one set of weights, and what is sampled depends on nothing but the step. With
 * k = 0 a step samples its own batch and waits for it: on-policy. */
#ifndef KERNELRL_RL_ROLLOUT_PIPELINE_H
#define KERNELRL_RL_ROLLOUT_PIPELINE_H

#include "rl/rollout/rollout.h"

struct batch { /* what a step trains on */
    int64_t step;
    int64_t sampled_in; /* the step in which it was sampled; -1: in a process before this one */
    int64_t sampled_at; /* optimizer steps that had been made then */
    struct rollout r;
};
struct pipeline { /* the oldest first, of steps that follow one another; zero at first */
    struct batch **batch;
    int n, cap;
};
/* A new, empty batch at the end. */
struct batch *pipeline_push(struct pipeline *p, int64_t step, int64_t sampled_in, int64_t sampled_at);
void pipeline_pop(struct pipeline *p);       /* frees the oldest */
void pipeline_drop_last(struct pipeline *p); /* frees the newest */
void pipeline_free(struct pipeline *p);      /* all of them; before the judge goes */

/* Tells the groups of the oldest batch how many updates they are behind; returns that number. */
int64_t pipeline_age(struct pipeline *p, int64_t opt_step);

/* DIR/in_flight.safetensors (docs/formats.md): prompts, tokens and log-probabilities of the batches that were sampled
 * in steps before this one; no file without any. What was sampled in this step comes again from the state that a
 * checkpoint in front of the step holds. Verdicts are not in it: the journal has those that were given. */
enum status pipeline_save(const struct pipeline *p, int64_t step, const char *dir, struct err *e) MUST_USE;
/* What pipeline_save wrote, if anything, into an empty pipeline. The verdicts are asked for. problems: those the groups
 * may be about. ST_PARSE, ST_INVALID: not what a run writes, or about other problems. */
enum status pipeline_load(struct pipeline *p, const char *dir, const struct actor *a,
                          const struct problem *const *problems, int n, struct err *e) MUST_USE;

#endif
