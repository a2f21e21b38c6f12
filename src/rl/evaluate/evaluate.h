/* evaluate: `kernelrl eval` and `kernelrl generate`: a model, a checkpoint of a run or an adapter on a choice of
 * problems. Prompts, sampling and verdicts are those of training; a run's own configuration is where the keys start. */
#ifndef KERNELRL_RL_EVALUATE_EVALUATE_H
#define KERNELRL_RL_EVALUATE_EVALUATE_H

#include "rl/evaluate/report.h"
#include "rl/options/options.h"

#define SPLIT_LIST(X) X(EVAL_AUTO, auto) X(EVAL_TEST, test) X(EVAL_TRAIN, train) X(EVAL_ALL, all)
enum eval_split { CHOICE_ENUM(SPLIT_LIST) };
#define SUBSET_LIST(X) X(SUBSET_ALL, all) X(SUBSET_REPRESENTATIVE, representative)
enum eval_subset { CHOICE_ENUM(SUBSET_LIST) };

struct eval_options {
    struct train_options train; /* every key of train, too */
    const char *checkpoint_path;
    int64_t num_samples;
    int split, subset;
    const char *output_path, *tensorboard_log_dir; /* of eval alone */
    int64_t tensorboard_step;
    const char *run_name, *runs_dir; /* of generate alone */
    bool log_prompt;
};
/* The keys of eval and of generate, each with those of train. */
const struct config_schema *eval_schema(void);
const struct config_schema *generate_schema(void);

/* Defaults, then the configuration of the run that checkpoint_path belongs to (if it is one), then the arguments
 * (argv[0] not among them). Afterwards train.temperature is what is sampled at: as given, else 0 for one sample and 1
 * for more. On failure, too, the caller must config_free. */
enum status eval_configure(struct config *c, const struct config_schema *schema, struct eval_options *o, int argc,
                           char **argv, struct err *e) MUST_USE;

/* Samples what is missing in the samples file beside output_path, writes output_path and, beside it, a report (.md) and
 * its picture (.svg), pushes to TensorBoard when asked to, and leaves the result in *out (summary_free). *text is the
 * JSON (str_free). ST_CANCELLED leaves a file that the same command goes on from. */
enum status evaluate_run(const struct config *c, const struct eval_options *o, const volatile bool *cancel,
                         struct summary *out, struct str *text, struct err *e) MUST_USE;

/* Samples as evaluate_run does, and writes a line for each answer with a verdict to PATH, in the form of `problems
 * generate --answers --verify` (docs/formats.md): what `corpus` makes rows of. */
enum status evaluate_answers(const struct config *c, const struct eval_options *o, const volatile bool *cancel,
                             const char *path, struct err *e) MUST_USE;

/* Kernels for the problems in KernelBench's layout: runs_dir/run_name/level_L_problem_P_sample_S_kernel.c (.py in its
 * own backends, .cu of cuda_native) and generation_config.yaml. Problems whose files are there are passed over. Nothing
 * is judged. *written: new kernels. */
enum status generate_run(const struct config *c, const struct eval_options *o, const volatile bool *cancel,
                         int *written, struct err *e) MUST_USE;

#endif
