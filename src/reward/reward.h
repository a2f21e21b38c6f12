/* reward: verdict -> score of one turn, a weighted sum of parts. Format and compile credit are paid to answers that do
 * not work yet; speed and length only to correct ones; a cheat gets minus its penalty and nothing else. An
 * infrastructure failure has no score: the caller asks again and then drops the sample. */
#ifndef KERNELRL_REWARD_REWARD_H
#define KERNELRL_REWARD_REWARD_H

#include "base/choice.h"
#include "base/str.h"
#include "verify/verify.h"

#define SPEED_LIST(X)                                                       \
    X(SPEED_RATIO, ratio)   /* T_eager / T_kernel, as Kevin (2507.11948) */ \
    X(SPEED_EXCESS, excess) /* max(0, ratio - 1) */                         \
    X(SPEED_LOG, log)       /* log2(1 + ratio) */
enum speed_shape { CHOICE_ENUM(SPEED_LIST) };
struct reward_weights {
    double format, compile, correct, speed, think, length;
    enum speed_shape shape;
    double speed_cap;     /* upper limit of the speed part */
    bool check_excessive; /* true: faster than `excessive` times eager is not believed and has no speed part */
    double excessive;
    bool partial_correct;                    /* passed / total instead of all or nothing */
    bool sparse;                             /* only correct answers score: 1 + weighted speed, length and think */
    double cheating_penalty, format_penalty; /* taken off for a cheat; for an answer without a <KERNEL> block */
    int64_t length_min, length_max;          /* characters of the kernel: full length part up to, none from */
    double think_none, think_floor;          /* part without a think block; of a very long one */
    int64_t think_soft_max, think_hard_max;  /* characters of the thought: full part up to, floor from */
    int64_t overlong_buffer;                 /* tokens below the longest answer over which the penalty grows (DAPO) */
    double overlong_penalty;
};
/* What is scored. */
struct reward_input {
    const struct verdict *verdict;
    bool format_ok;
    int64_t thought_chars, kernel_chars; /* UTF-8 characters; 0: none */
    int64_t tokens, max_tokens;          /* of the answer; longest allowed */
};
struct reward {
    double format, compile, correct, speed, think, length; /* parts before weighting */
    double overlong;                                       /* in [-1,0], before its penalty weight */
    double preference;                                     /* comparisons won, of those it was in (roles.h) */
    double total;
    double plan, code; /* total split by who earned it: the speed part the plan, everything else the code */
};
/* The verdict must not be of class I. */
struct reward reward_score(const struct reward_weights *w, const struct reward_input *in);

/* What is known of an answer that somebody else has sampled; each is true when the input has it. */
struct reward_known {
    bool format, thought, kernel, tokens; /* format_ok, thought_chars, kernel_chars, tokens */
    bool speed, tests; /* of the verdict: speedup, also where it is none; tests_passed and tests_total */
};
/* The same score for such an answer. Parts that nothing is known of are NaN where their weight is 0. ST_INVALID, the
 * message beginning with `where`, when a part with a weight needs what is not known. */
enum status reward_score_known(const struct reward_weights *w, const struct reward_input *in, struct reward_known known,
                               const char *where, struct reward *out, struct err *e) MUST_USE;

/* Appends a reward as the member "reward" of a JSON object: the total and its parts before weighting
 * (docs/formats.md). present: false where the verdict is missing; the total is null then. */
void reward_to_json(const struct reward *r, bool present, struct str *out);

/* Discounted returns of a trajectory of n turns, each counting itself and what followed:
 * out[t] = score[t] + gamma * out[t+1]. out may be score. */
void reward_returns(const double *score, int n, double gamma, double *out);

#endif
