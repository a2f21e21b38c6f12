/* candidate: an answer of the search with all that is known of it, and its line on disk (docs/formats.md, "Search"). */
#ifndef KERNELRL_OPTIMIZE_CANDIDATE_H
#define KERNELRL_OPTIMIZE_CANDIDATE_H

#include "base/choice.h"
#include "base/hash.h"
#include "io/json.h"
#include "optimize/estimate.h"
#include "verify/verify.h"

/* What a prompt is made of. X(value, name, what it says in a report) */
#define ARM_LIST(X)                                                      \
    X(ARM_PLAIN, plain, "the problem alone")                             \
    X(ARM_EXAMPLES, examples, "the problem, with solved ones in front")  \
    X(ARM_PLAN, plan, "the problem, and the plan the answer is to have") \
    X(ARM_REFINE, refine, "a good answer, to be made better")            \
    X(ARM_REPAIR, repair, "an answer that failed, to be mended")         \
    X(ARM_CROSS, cross, "two good answers, to be made one")
enum arm { CHOICE_ENUM(ARM_LIST) N_ARMS };
const char *arm_name(enum arm a);
const char *arm_text(enum arm a);

enum { PARENTS_MAX = 2, SHAPES_MAX = 16 };

struct search_candidate {
    int id;                  /* in its task, from 0: its place in the population */
    int wave, group, sample; /* the group of its wave that it is of, and its place there */
    enum arm arm;
    int island, n_parents, parent[PARENTS_MAX];
    char *kernel, *plan;  /* NULL: none; both its own */
    struct digest normal; /* of its source (source_text.h); "" without one */
    int same_as;          /* an earlier one with the same normal form, whose verdicts it has; -1 */
    bool format_ok;
    int64_t tokens;
    struct verdict *verdict; /* of the shapes in their order, up to the first that is not correct; its own */
    int n_verdicts;
    bool correct;             /* on all shapes, each time it was judged */
    int judged;               /* how often all shapes, or those up to the first failure, were judged */
    struct estimate estimate; /* of its ratio: the shapes' weighted geometric mean; n 0: not timed */
    double reward;            /* what it scores when the model learns */
    int64_t spent;            /* verdicts of its task up to this one, itself included */
    double at_s;              /* seconds of the search when its wave had ended */
};
void candidate_free(struct search_candidate *c);

/* The next shape's verdict. */
void candidate_add_verdict(struct search_candidate *c, const struct verdict *v);
/* All shapes have verdicts, or one has failed: sets correct, and takes the measurement. */
void candidate_judged(struct search_candidate *c, const double *weights, int n_shapes);
/* It was judged again on all shapes. Who fails then is not correct any more, and v's failure is its first verdict;
 * missing verdicts change nothing. */
void candidate_judged_again(struct search_candidate *c, const struct verdict *v, const double *weights, int n_shapes);
/* The verdict that says most: the first that failed, else that of the first shape. NULL: there is none. */
const struct verdict *candidate_verdict(const struct search_candidate *c);
/* Takes a measurement of all shapes, weights[] adding up to 1, into the estimate. Nothing happens unless all are
 * correct and timed. */
void candidate_measure(struct search_candidate *c, const struct verdict *v, const double *weights, int n_shapes);

/* Appends one JSON object and a newline. task: the key of its problem. */
void candidate_put(const struct search_candidate *c, const char *task, struct str *out);
/* Reads it back; what follows from its verdicts (correct, estimate) is made again. The candidate is the caller's to
 * free after an error, too. ST_PARSE, the message beginning with where. */
enum status candidate_get(const json_t *row, const char *where, const double *weights, int n_shapes,
                          struct search_candidate *out, struct err *e) MUST_USE;

#endif
