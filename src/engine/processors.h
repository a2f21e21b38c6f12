/* processors: what the parameters of a request make of a row of logits before a token is drawn from it. Internal to
 * engine. */
#ifndef KERNELRL_PROCESSORS_H
#define KERNELRL_PROCESSORS_H

#include "engine/engine.h"

struct processors {
    int64_t V;
    float *row;    /* [V] */
    int32_t *seen; /* [V] how often an id was met; all 0 between calls */
};
void processors_init(struct processors *s, int64_t V);
void processors_free(struct processors *s);

/* Whether the token behind n drawn ones comes from other logits than the model's. Once that is so no more it stays so:
 * true may become false as n grows, never the other way round. */
bool processors_wanted(const struct sample_params *p, int n);

/* The row [V] that the token behind the n drawn ones is to come from: `logits` itself, or what the parameters make of
 * it (struct sample_params says how), which is good until the next call. tokens: [n_prompt + n] prompt and drawn ones.
 * Ids that may not be drawn have -INFINITY. A pure function of its arguments. */
const float *processors_row(struct processors *s, const struct sample_params *p, const int32_t *tokens, int n_prompt,
                            int n, const float *logits);

#endif
