/* corpus: verified answers of the generator -> supervised rows {prompt, completion, renderer} in the formats that
 * reinforcement learning uses: single answers, think + answer, refinement after each kind of failure and after slow
 * answers, and prompts with one to three examples. */
#ifndef KERNELRL_CORPUS_H
#define KERNELRL_CORPUS_H

#include "verify/verify.h"

struct corpus_options {
    const char *from;   /* folder with problems.jsonl and answers.jsonl of `problems generate --answers --verify` */
    const char *output; /* rows, .jsonl or .jsonl.zst */
    uint64_t seed;
    int answers;                    /* single-turn answers a problem, of different styles */
    double think, refine, examples; /* shares: chance per problem of rows of that kind */
};
struct corpus_counts {
    int64_t problems, single, think, refine, examples, skipped;
};
/* The verifier gives each problem's prototype. */
enum status corpus_build(const struct corpus_options *o, struct verifier *v, struct corpus_counts *out,
                         struct err *e) MUST_USE;

#endif
