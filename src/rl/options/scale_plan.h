/* scale_plan: how many ranks pay. A step's micro-batches, their rounds, the fold behind each, and, where the model's
 * rates were measured, the seconds of a step. Pure arithmetic; docs/scale.md has the formulas and what they leave out.
 */
#ifndef KERNELRL_RL_OPTIONS_SCALE_PLAN_H
#define KERNELRL_RL_OPTIONS_SCALE_PLAN_H

#include "rl/options/memory_plan.h"

/* What a step is made of. All answers are taken to have the most tokens that they may have. */
struct scale_step {
    int64_t groups, answers;         /* prompts of a step; answers to each */
    int64_t prompt, max_tokens;      /* tokens of a prompt and of an answer */
    int64_t train_tokens;            /* rows of a micro-batch at most */
    int64_t trained;                 /* parameters that are trained */
    const struct scale_rates *rates; /* NULL: nobody has measured this model */
};

/* Tokens a second while so many rows decode, and rows a second of a training step. */
struct scale_rates {
    const char *of;
    double decode[4]; /* with 1, 16, 64 and 256 rows */
    double train;
};
/* The measured rates of the model that a plan is of; NULL where there are none. */
const struct scale_rates *scale_rates_of(const struct train_plan *p, bool lora);

struct scale_point {
    int64_t leaves, rounds;
    double idle;              /* share of the leaves' places in all rounds that have none */
    int64_t fold_bytes;       /* that a rank sends in a step: slices of its leaves, then its slice of the sum */
    double sample_s, train_s; /* NaN without rates; no verdicts, no host */
};
/* A step on so many ranks. */
struct scale_point scale_point_of(const struct scale_step *s, int ranks);

/* For 1, 2, 4 and 8 ranks: rounds, fold, and a step of the same batch and of one that grows with the ranks. */
void scale_table(const struct scale_step *s, struct str *out);

/* The step of these options, whose memory is planned. */
struct scale_step scale_step_of(const struct train_options *o, const struct train_plan *p);

#endif
