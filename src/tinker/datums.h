/* datums: from a ForwardBackwardRequest to what the trainer takes: names of losses, their options and inputs, shapes.
 * What is not asked for in a form that is known is refused by name, never passed over. */
#ifndef KERNELRL_TINKER_DATUMS_H
#define KERNELRL_TINKER_DATUMS_H

#include "train/step.h"
#include "wire/wire.h"

/* Targets of a token at a time, since each takes a row of the head's memory. A datum with more is several that have its
 * text, with so many of its columns each: its loss and its gradient are their sums. */
enum { DATUM_MAX_TARGETS = 128 };
struct datums {
    struct datum *asked; /* [n_asked]: those of the request */
    int n_asked;
    struct datum *d; /* [n]: what is trained on, each with room for its log-probabilities */
    int n;
    int *of;  /* [n]: which one of the request; those of one lie together, by their columns */
    int *end; /* of groups, by datums_cut() */
    struct summed_loss loss;
    bool forward_only;
    int64_t tokens; /* of all of the request */
    int64_t work;   /* the same with each token as often as it is computed: once a part */
};
/* Makes datums of a request, in its arena. ids at or above `vocab` and texts above max_tokens are refused. ST_INVALID
 * or ST_UNSUPPORTED, with a message for the user. */
enum status datums_make(const struct wire_training *r, int32_t vocab, int64_t max_tokens, struct arena *a,
                        struct datums *out, struct err *e) MUST_USE;
/* Cuts them into groups of at most train_tokens rows, and of at most DATUM_MAX_TARGETS times as many targets, where one
 * datum allows: the leaves of the trainer (train/step.h), but for those with too many targets. */
void datums_cut(struct datums *x, int64_t train_tokens, struct arena *a);
/* The end of the group that begins at `at`, below n. */
int datums_group_end(const struct datums *x, int at);
/* Adds the losses of datums [begin, end) from their log-probabilities, as a forward pass alone has them. ST_INVALID:
 * one is not finite. */
enum status datums_loss(const struct datums *x, int begin, int end, double *loss, struct err *e) MUST_USE;
/* The ForwardBackwardOutput, when all have their log-probabilities. */
void datums_put_output(const struct datums *x, double loss, struct arena *a, struct str *out);

#endif
