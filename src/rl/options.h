/* options: every key of `train`, `eval` and `sft`, with its default, range and meaning in one table each. */
#ifndef KERNELRL_OPTIONS_H
#define KERNELRL_OPTIONS_H

#include "base/err.h"
#include "io/config.h"
#include "rl/advantage.h"
#include "rl/reward.h"
#include "train/loss.h"

struct train_options {
    /* model */
    char *model_name, *load_checkpoint_path, *renderer_name;
    int64_t lora_rank;
    double lora_alpha;
    /* optimisation */
    double learning_rate, weight_decay, max_grad_norm, adam_beta1, adam_beta2, adam_eps;
    int64_t warmup_steps, num_substeps, max_steps;
    int64_t loss_fn, advantage, loss_norm;
    double clip_low, clip_high;
    bool remove_constant_reward_groups, mask_truncated;
    /* sampling */
    int64_t max_tokens, seed;
    double temperature;
    /* run */
    char *log_path;
    int64_t save_every, eval_every, eval_samples, threads, train_tokens;
    bool tensorboard_enabled;
    /* problems */
    char *source;
    int64_t generated_problems, level, start_problem, end_problem, batch_size, group_size, num_epochs;
    bool shuffle;
    double test_fraction;
    /* verification */
    char *python, *cache_dir;
    int64_t num_correct_trials, memory_mib;
    double compile_timeout, run_timeout;
    bool measure_performance, allow_weaker;
    /* reward */
    double w_format, w_compile, w_correct, w_speed, w_think, speed_cap;
    int64_t speed_shape;
    bool partial_correct, thinking;
};

enum loss_norm { NORM_TOKENS, NORM_SEQUENCES, NORM_CONSTANT };

extern const struct config_key train_keys[];
extern const int n_train_keys;

struct sft_options {
    char *model_name, *init_config, *tokenizer, *data, *valid, *output, *renderer_name, *save_dtype;
    int64_t lora_rank, batch_tokens, micro_tokens, max_length, max_steps, num_epochs, warmup_steps, seed, threads;
    int64_t save_every, log_every;
    double lora_alpha, learning_rate, min_lr_ratio, weight_decay, max_grad_norm, adam_beta1, adam_beta2, adam_eps;
    double stop_after_minutes;
};
extern const struct config_key sft_keys[];
extern const int n_sft_keys;

#endif
