/* answer_reward: what a run would pay for an answer that it has not sampled itself. The formula is that of training
 * (reward_score_known); what it needs beside the verdict must be known, or the answer is refused. */
#ifndef KERNELRL_RL_EVALUATE_ANSWER_REWARD_H
#define KERNELRL_RL_EVALUATE_ANSWER_REWARD_H

#include "rl/options/options.h"
#include "rl/rollout/rollout.h"

/* The weights of a run at a share of it (0 to 1; the keys of `schedule` change them). */
struct rollout_params answer_weights(const struct train_options *o, double progress);

/* A file of a kernel: all but how many tokens the answer had. */
static const struct reward_known answer_of_file = {
    .format = true, .thought = true, .kernel = true, .speed = true, .tests = true};
/* ST_CONFIG when answers of which so much is known can have no reward: a weight asks for their tokens. */
enum status answer_weights_check(const struct reward_weights *w, struct reward_known known, struct err *e) MUST_USE;
/* Scores the episode's verdict: sets present (false where the verdict is missing) and reward, as reward_score_known. */
enum status answer_reward(const struct rollout_params *p, struct reward_known known, const char *where,
                          struct episode *ep, struct err *e) MUST_USE;
/* Appends what a score needs beside a verdict as members of a JSON object: format_ok, thought_chars, kernel_chars, and
 * with_reward: the reward and its parts. */
void answer_put(const struct episode *ep, bool with_reward, struct str *out);

#endif
