/* module_text: what retrieval looks at in the source of a PyTorch module: the operators of its forward(), in the order
 * in which they are computed, and its tokens. It is a scanner, not a parser: any bytes are accepted, and text that is
 * no Python gives few operators. It is used on problems and on the modules of a corpus alike, so a rough edge cuts both
 * ways. */
#ifndef KERNELRL_MODULE_TEXT_H
#define KERNELRL_MODULE_TEXT_H

#include "base/arena.h"

struct module_text {
    /* Canonical names, "linear", "gelu", in the order of computation. Submodules are expanded. */
    const char **ops;
    int n_ops;
    /* Identifiers in lower case, in the order in which they appear. One that occurs twice is there twice. */
    const char **names;
    int n_names;
    /* Hashes of all runs of four tokens, sorted, without duplicates. Comments, strings, layout and the values of
     * numbers do not count: a module of other sizes is the same module. */
    uint64_t *shingles;
    int n_shingles;
};

/* Reads code[0..n); everything lives in the arena. Time and memory are linear in n; submodules are expanded at most
 * MODULE_OPS_MAX operators far. */
enum { MODULE_OPS_MAX = 512 };
void module_text_read(const char *code, size_t n, struct arena *a, struct module_text *out);

/* The share of shingles that two texts have in common, in [0,1] (Jaccard). 0 when one of them has none. */
double module_text_similarity(const struct module_text *x, const struct module_text *y);
/* The share of operators that two modules have in common in the same order, in [0,1]: twice the longest common
 * subsequence over the sum of the lengths. 1 when both have none, 0 when one has none. */
double module_text_ops_similarity(const struct module_text *x, const struct module_text *y);
/* Returns whether a kernel for x would be one for y, if it were not for its sizes. They have the same operators in the
 * same order, or nearly the same operators and nearly the same text (MODULE_COPY_SIMILARITY of both). The text alone
 * does not tell: modules of one operator differ in a single word. */
#define MODULE_COPY_SIMILARITY 0.8
bool module_text_is_copy(const struct module_text *x, const struct module_text *y);

#endif
