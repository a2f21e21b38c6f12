/* options: every key of `train` (and `eval`) and of `sft`, with default, range and meaning in one table each
 * (options.c). Field paths are the keys. */
#ifndef KERNELRL_OPTIONS_H
#define KERNELRL_OPTIONS_H

#include "io/config.h"
#include "rl/advantage.h"
#include "rl/reward.h"
#include "train/loss.h"

enum dataset_src { SRC_ANY, SRC_HUGGINGFACE, SRC_LOCAL };
enum prompt_option { PROMPT_ZERO_SHOT, PROMPT_RAICL };
enum loss_norm { NORM_TOKENS, NORM_SEQUENCES, NORM_CONSTANT };

struct adam_options {
    double beta1, beta2, eps;
};

struct train_options {
    const char *model_name, *model_revision, *load_checkpoint_path, *renderer_name, *log_path, *device;
    int64_t lora_rank, max_tokens, num_substeps, warmup_steps, max_steps, save_every, eval_every, eval_samples, seed,
        threads, train_tokens, activation_memory, kv_memory;
    double lora_alpha, learning_rate, weight_decay, max_grad_norm, clip_low, clip_high, temperature, min_p;
    double prompt_loss_weight; /* no key of train: sft sets it */
    struct adam_options adam;
    int dtype;     /* index into dtype_names */
    int loss_fn;   /* enum loss_kind, without cross_entropy */
    int advantage; /* enum advantage_kind */
    double negative_advantage_scale;
    int loss_norm;
    bool mask_truncated, tensorboard_enabled, thinking;
    struct {
        const char *source, *rag_index_path;
        int64_t raicl_k, raicl_max_tokens, generated_problems, level, start_problem, end_problem, batch_size,
            group_size, num_epochs, num_correct_trials;
        double test_fraction, reward_format_weight, reward_compile_weight, reward_correctness_weight,
            reward_speed_weight, reward_thinking_weight, speed_max_reward;
        int speed_reward;  /* enum speed_shape */
        int dataset_src;   /* enum dataset_src */
        int prompt_option; /* enum prompt_option */
        bool shuffle, measure_performance, partial_correctness;
    } dataset_builder;
    struct {
        const char *python, *cache_dir;
        double compile_timeout_s, run_timeout_s;
        int64_t memory_mib;
        bool allow_weaker;
    } sandbox;
};
/* By the value of the key dtype: what model_options calls it. */
extern const char *const dtype_names[];
extern const struct config_schema train_schema;
/* Rules between keys, after all values are set. */
enum status train_options_check(const struct config *c, const struct train_options *o, struct err *e) MUST_USE;

struct sft_options {
    const char *model_name, *model_revision, *init_config, *tokenizer, *data, *valid, *output, *renderer_name, *device;
    int save_dtype; /* 0 bf16, 1 f32 */
    int dtype;      /* index into dtype_names */
    int64_t lora_rank, batch_tokens, train_tokens, max_length, max_steps, num_epochs, warmup_steps, seed, threads,
        save_every, log_every, activation_memory;
    double lora_alpha, learning_rate, min_lr_ratio, weight_decay, max_grad_norm, stop_after_minutes, prompt_loss_weight;
    struct adam_options adam;
};
extern const struct config_schema sft_schema;
enum status sft_options_check(const struct config *c, const struct sft_options *o, struct err *e) MUST_USE;

#endif
