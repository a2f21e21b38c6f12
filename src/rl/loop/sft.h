/* sft: supervised fine-tuning on {prompt, completion} rows. The prompt is masked, rows are packed, and rows that share
 * a prompt are forwarded with it once, just as the samples of a group are in reinforcement learning. */
#ifndef KERNELRL_RL_LOOP_SFT_H
#define KERNELRL_RL_LOOP_SFT_H

#include "rl/options/options.h"
#include "text/chat.h"

/* Trains until max_steps or num_epochs are done, *cancel is set or stop_after_minutes have passed; saves, and resumes
 * when called again. Ends with the model (or adapter) in o->output, ready to load; a finished output is left alone.
 * resolved_yaml: the configuration, which all ranks must share. With several ranks this is rank 0's. */
enum status sft_run(const struct sft_options *o, const char *resolved_yaml, const volatile bool *cancel,
                    struct err *e) MUST_USE;
/* The whole run of another rank, which holds the model and trains with rank 0, and does not see the rows' files. */
enum status sft_follow(const struct sft_options *o, const char *resolved_yaml, struct err *e) MUST_USE;

/* Ids of a completion: <think> and </think> become their tokens where the tokenizer has them, everything else is
 * ordinary text; the style's end-of-turn token follows. */
void sft_encode_completion(struct tokenizer *t, enum chat_style style, const char *text, size_t n, struct ids *out);

#endif
