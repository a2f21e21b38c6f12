/* search_prompt: from a choice to messages: the problem, answers that were found with their times and what bounds them,
 * solved problems, a plan. */
#ifndef KERNELRL_OPTIMIZE_SEARCH_PROMPT_H
#define KERNELRL_OPTIMIZE_SEARCH_PROMPT_H

#include "optimize/arms.h"
#include "rl/rollout/rollout.h"

struct prompt_made {
    struct chat_message messages[2]; /* texts in the arena */
    const char *begun;               /* how the answer begins, in the arena; NULL: with itself */
};
/* full: the messages say what is known of time, limits, loops and failures, and ask for a plan; else they have the
 * formats of version 1, which models were trained on. max_tokens: of the answer; what does not fit is left out. The
 * choice is changed to ARM_PLAIN where what it shows does not fit. ST_INVALID: the problem alone does not fit. */
enum status search_prompt_make(const struct actor *a, const struct search_task *t, struct arm_choice *c, bool full,
                               int max_tokens, struct arena *arena, struct prompt_made *out, struct err *e) MUST_USE;

#endif
