/* compare: an answer's output against the reference's, and the poison that tells unwritten elements apart. */
#ifndef KERNELRL_COMPARE_H
#define KERNELRL_COMPARE_H

#include "problem/spec.h"

/* Two rules. The compatible rule is allclose: |got - want| <= t + t |want|, with t = 1e-4 for float32 and 1e-2 for half
 * types; it holds on inputs as shipped. The normalised rule holds on all inputs: with
 *     error = |got - want| / (max(rms(want), 1e-3) + |want|)
 * no element's error may exceed `tolerance`, which is t unless float32 itself is worse than that on these inputs
 * (reference.h). The scale in the denominator makes an output of small numbers (a softmax over many
 * classes) as strict as one of large ones, and |want| beside it grants rounding to outliers. float32 arithmetic in
 * another order stays near 1e-6. Where the reference is not finite the output must be the same infinity or any NaN.
 * Integers and bools must be equal. */
struct compare_result {
    int64_t different;  /* elements that break a rule */
    int64_t unwritten;  /* of those: still poison */
    int64_t not_finite; /* of those: not finite where the reference is */
    int64_t first;      /* index of the first that is different; -1 */
    double got, want;   /* its values */
    double max_error;   /* largest normalised error of finite elements; integers: 0 or 1 */
};

struct compare_rule {
    double rms;       /* compare_rms() of want */
    double tolerance; /* of the normalised error, at least compare_tolerance(type) */
    bool compatible;  /* apply the compatible rule too */
    uint64_t poison;  /* what filled the buffer before */
};
void compare_tensor(enum arg_type type, const void *want, const void *got, int64_t count,
                    const struct compare_rule *rule, struct compare_result *out);
/* Root mean square of the finite elements; 0 when there are none, and for integers and bools. */
double compare_rms(enum arg_type type, const void *x, int64_t count);
double compare_tolerance(enum arg_type type);

/* Turns a random word into the poison of a type: a quiet NaN with random payload bits, or a value that is no bool or
 * hardly an index. compare_fill writes it over count elements. */
uint64_t compare_poison(enum arg_type type, uint64_t random);
void compare_fill(enum arg_type type, void *x, int64_t count, uint64_t poison);

/* Element as a number, for messages. */
double compare_element(enum arg_type type, const void *x, int64_t index);

#endif
