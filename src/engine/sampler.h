/* sampler: one token from one row of logits. Internal to engine. */
#ifndef KERNELRL_SAMPLER_H
#define KERNELRL_SAMPLER_H

#include "engine/engine.h"

struct sampler_item;
struct sampler {
    int64_t V;
    int32_t limit;              /* ids at or above are never drawn */
    float *p;                   /* [limit] weights exp((x - max) / temperature) */
    double *block;              /* sums of runs of p */
    struct sampler_item *order; /* [limit] heap of (logit, id) for top-k and top-p */
};
void sampler_init(struct sampler *s, int64_t V, int32_t limit);
void sampler_free(struct sampler *s);
/* Draws an id below limit from logits [V]: temperature, then top-k, then top-p over what top-k left, then min-p
 * relative to the most probable id (the order of Hugging Face's warpers), u in [0,1) decides. Ties in a cut go to the
 * lower id; temperature 0 takes the largest logit. A pure function of its arguments. Returns -1 when a logit is NaN or
 * the largest is infinite (greedy may overlook a NaN; its log-probability shows it). */
int32_t sampler_draw(struct sampler *s, const float *logits, const struct sample_params *p, double u);

/* The logit of an id that is not drawn, in the place of -infinity: its probability is 0, and sums over the row stay
 * finite. */
#define SAMPLER_LEFT_OUT (-1e30f)
/* Writes the logits [V] at temperature 1 of the distribution that sampler_draw draws from, SAMPLER_LEFT_OUT for ids
 * that it leaves out or that come with -infinity. Temperature 0: of the logits as they are. Ids at or above the limit
 * stay where nothing is filtered. sampler_draw must give an id for these logits. */
void sampler_distribution(struct sampler *s, const float *logits, const struct sample_params *p, float *out);

#endif
