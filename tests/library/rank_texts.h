/* What tests of several ranks train on. */
#ifndef KERNELRL_TESTS_RANK_TEXTS_H
#define KERNELRL_TESTS_RANK_TEXTS_H

#include "base/rng.h"
#include "train/step.h"

/* n texts of so many random tokens below V, at most 8 of 64, of which each token after the first is learned. An equal
 * seed gives equal texts. They are lent until the next call. */
static const struct datum *rank_texts(uint64_t seed, int n, int tokens, int32_t V) {
    static int32_t ids[8][65];
    static float weights[64];
    static struct datum d[8];
    for (int k = 0; k < tokens; k++) weights[k] = 1;
    for (int i = 0; i < n; i++) {
        struct rng r = rng_make(seed, (uint64_t)i);
        for (int k = 0; k <= tokens; k++) ids[i][k] = (int32_t)rng_below(&r, (uint64_t)V);
        d[i] = (struct datum){.ids = ids[i],
                              .n = tokens,
                              .prompt = 1,
                              .end = tokens,
                              .targets = ids[i] + 1,
                              .weights = weights,
                              .scale = 1.0 / (n * tokens)};
    }
    return d;
}

#endif
