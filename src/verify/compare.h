/* compare: an answer's output against the reference's, and the poison that tells unwritten elements apart. */
#ifndef KERNELRL_COMPARE_H
#define KERNELRL_COMPARE_H

#include "problem/spec.h"

/* Two rules. The compatible rule is allclose: |got - want| <= t + t |want|, with t = 1e-4 for float32 and 1e-2 for half
 * types; it holds on inputs as shipped. The normalised rule holds on all inputs: with
 *     error = |got - want| / (scale + |want|)
 * no element's error may exceed compare_tolerance(type, limit), which is t unless float32 itself is worse than that on
 * these inputs. The scale is that of the element's row (compare_row):
 *     scale = min(rms of all, max(rms of the row, floor x the rows' median rms))
 * rms being over finite elements, the median over rows that are not zero. It has no absolute floor: outputs of 1e-10
 * are held to as many digits as outputs of 1. Exceptions, and why none is worth anything to an answer:
 *   - results below the type's smallest normal number may be flushed to zero (float16: one step of its denormals);
 *   - an output that is zero everywhere has the scale 1e-3: who writes zeros is right without it;
 *   - an output of fewer than 64 elements may be small by luck (a mean of numbers of both signs): its scale is at least
 *     what is usual over several draws of such inputs.
 * Rows that are much smaller than the others consist of what is left of them by rounding: `floor` is 1e-2 of their
 * median and more where the reference's own error asks for it. float32 arithmetic in another order stays near 1e-6 of
 * the scale. Where the reference is not finite the output must be the same infinity or any NaN. Integers and bools must
 * be equal. ModelNew backends have the same rule in compare.py. */
struct compare_result {
    int64_t different;  /* elements that break a rule */
    int64_t unwritten;  /* of those: still poison */
    int64_t not_finite; /* of those: not finite where the reference is */
    int64_t first;      /* index of the first that is different; -1 */
    double got, want;   /* its values */
    double max_error;   /* largest normalised error of finite elements; integers: 0 or 1 */
};

/* How the outputs of one kind of inputs are judged, as the reference worker measures it (compare.py). */
struct compare_limit {
    double noise;   /* normalised error of the float32 reference against float64; 0: none to speak of */
    double floor;   /* share of the rows' median that each row's scale has at least */
    double typical; /* scale that is usual; 0: the output speaks for itself */
};
/* Without a measurement: no noise. */
struct compare_limit compare_no_limit(enum arg_type type);
double compare_tolerance(enum arg_type type, const struct compare_limit *limit);

struct compare_rule {
    const double *scales; /* compare_scales() of want, one a row */
    int64_t row;          /* compare_row(): elements a row */
    double tolerance;     /* of the normalised error */
    bool compatible;      /* apply the compatible rule too */
    uint64_t poison;      /* what filled the buffer before */
};
/* want and got hold count elements, a multiple of rule->row. */
void compare_tensor(enum arg_type type, const void *want, const void *got, int64_t count,
                    const struct compare_rule *rule, struct compare_result *out);
/* Elements of a row: the last dimension (behind it only ones), with a part of those before it where it has fewer than
 * 64. Divides the number of elements; 1 of a tensor without any. */
int64_t compare_row(const struct arg *a);
/* The scales of the count / row rows of want. Integers and bools, which are compared exactly, have none: all 0. */
void compare_scales(enum arg_type type, const void *want, int64_t count, int64_t row, const struct compare_limit *limit,
                    double *scales);

/* Turns a random word into the poison of a type: a quiet NaN with random payload bits, or a value that is no bool or
 * hardly an index. compare_fill writes it over count elements. */
uint64_t compare_poison(enum arg_type type, uint64_t random);
void compare_fill(enum arg_type type, void *x, int64_t count, uint64_t poison);

/* Element as a number, for messages. */
double compare_element(enum arg_type type, const void *x, int64_t index);

#endif
