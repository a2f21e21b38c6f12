/* options: every key of `train` (and `eval`) and of `sft`, with default, range and meaning in one table each
 * (options.c). Field paths are the keys. */
#ifndef KERNELRL_RL_OPTIONS_OPTIONS_H
#define KERNELRL_RL_OPTIONS_OPTIONS_H

#include "io/config.h"
#include "reward/advantage.h"
#include "reward/reward.h"
#include "train/loss.h"

/* Choices of keys: X(value, name in a configuration). */
#define SRC_LIST(X) X(SRC_ANY, any) X(SRC_HUGGINGFACE, huggingface) X(SRC_LOCAL, local)
enum dataset_src { CHOICE_ENUM(SRC_LIST) };
/* What a batch's summed loss is divided by. */
#define NORM_LIST(X)                                                                \
    X(NORM_TOKENS, tokens)       /* trained tokens */                               \
    X(NORM_SEQUENCES, sequences) /* samples, and each sample's sum by its length */ \
    X(NORM_CONSTANT, constant)   /* samples times max_tokens */                     \
    X(NORM_SAMPLES, samples)     /* samples */                                      \
    X(NORM_SUM, sum)             /* nothing */
enum loss_norm { CHOICE_ENUM(NORM_LIST) };
#define KL_PLACE_LIST(X) X(KL_IN_LOSS, loss) X(KL_IN_REWARD, reward)
enum kl_place { CHOICE_ENUM(KL_PLACE_LIST) };
#define LR_LIST(X) X(LR_CONSTANT, constant) X(LR_LINEAR, linear) X(LR_COSINE, cosine)
enum lr_schedule { CHOICE_ENUM(LR_LIST) };
#define OVERLAP_LIST(X) X(OVERLAP_AUTO, auto) X(OVERLAP_ON, on) X(OVERLAP_OFF, off)
enum overlap { CHOICE_ENUM(OVERLAP_LIST) };
#define MODE_LIST(X) X(MODE_SINGLE_TURN, single_turn) X(MODE_MULTI_TURN, multi_turn)
enum train_mode { CHOICE_ENUM(MODE_LIST) };
#define HISTORY_LIST(X) X(HISTORY_ALL, all) X(HISTORY_LATEST, latest)
enum history { CHOICE_ENUM(HISTORY_LIST) };
#define GROUP_LIST(X) X(GROUP_TASK, task) X(GROUP_TURN, turn)
enum advantage_group { CHOICE_ENUM(GROUP_LIST) };
#define PROMPT_LIST(X) \
    X(PROMPT_ZERO_SHOT, zero_shot) X(PROMPT_ONE_SHOT, one_shot) X(PROMPT_FEW_SHOT, few_shot) X(PROMPT_RAICL, raicl)
enum prompt_option { CHOICE_ENUM(PROMPT_LIST) };
#define PRECISION_LIST(X) X(PRECISION_FP32, fp32) X(PRECISION_FP16, fp16) X(PRECISION_BF16, bf16)
enum precision { CHOICE_ENUM(PRECISION_LIST) };
#define NUMERICS_LIST(X) X(NUMERICS_EXACT, exact) X(NUMERICS_FAST, fast)
enum numerics { CHOICE_ENUM(NUMERICS_LIST) };
#define DTYPE_LIST(X) X(DTYPE_AUTO, auto) X(DTYPE_OF_F32, f32) X(DTYPE_OF_BF16, bf16)
enum dtype_choice { CHOICE_ENUM(DTYPE_LIST) };
#define SAVED_LIST(X) X(SAVED_BF16, bf16) X(SAVED_F32, f32)
enum saved_dtype { CHOICE_ENUM(SAVED_LIST) };
/* Methods by their names, and rewards (presets.c). */
#define ALGORITHM_LIST(X)                                 \
    X(ALGORITHM_REINFORCE, reinforce)                     \
    X(ALGORITHM_RLOO, rloo)                               \
    X(ALGORITHM_GRPO, grpo)                               \
    X(ALGORITHM_DR_GRPO, dr_grpo)                         \
    X(ALGORITHM_DAPO, dapo)                               \
    X(ALGORITHM_GSPO, gspo)                               \
    X(ALGORITHM_CISPO, cispo)                             \
    X(ALGORITHM_PPO, ppo)                                 \
    X(ALGORITHM_IMPORTANCE_SAMPLING, importance_sampling) \
    X(ALGORITHM_BEST_OF_N, best_of_n)                     \
    X(ALGORITHM_REWARD_WEIGHTED, reward_weighted)         \
    X(ALGORITHM_REJECTION_SAMPLING, rejection_sampling)
enum algorithm { CHOICE_ENUM(ALGORITHM_LIST) };
#define PRESET_LIST(X)       \
    X(PRESET_STAGE1, stage1) \
    X(PRESET_STAGE2, stage2) \
    X(PRESET_STAGE3, stage3) \
    X(PRESET_SPARSE, sparse) \
    X(PRESET_DEFAULT, default)
enum reward_preset { CHOICE_ENUM(PRESET_LIST) };

struct adam_options {
    double beta1, beta2, eps;
};

struct train_options {
    int algorithm; /* enum algorithm, or unset: a preset */
    const char *model_name, *model_revision, *load_checkpoint_path, *renderer_name, *log_path, *device;
    int64_t lora_rank, max_tokens, num_substeps, warmup_steps, max_steps, save_every, eval_every, eval_samples, seed,
        threads, train_tokens, activation_memory, max_staleness, kv_memory, update_epochs, keep_best;
    double lora_alpha, learning_rate, weight_decay, max_grad_norm, clip_low, clip_high, temperature, min_p;
    double clip_dual, dro_beta, ratio_low, ratio_high, kl_penalty_coef, kl_discount_factor, entropy_coef,
        keep_threshold, reward_temperature, baseline_decay, min_lr_ratio;
    double prompt_loss_weight; /* no key of train: sft sets it */
    double progress;           /* no key: share of the run that is done, for lr_schedule */
    struct adam_options adam;
    int dtype;                                                      /* enum dtype_choice */
    int numerics;                                                   /* enum numerics */
    int loss_fn;                                                    /* enum loss_kind */
    int advantage;                                                  /* enum advantage_kind */
    int ratio_correction, kl_estimator, kl_penalty_in, lr_schedule; /* enums of loss.h and above */
    double negative_advantage_scale;
    int loss_norm;
    bool mask_truncated, tensorboard_enabled, thinking, remove_constant_reward_groups;
    /* Turns. */
    int mode, history, advantage_group, overlap; /* enums above */
    int64_t max_turns, refill_rounds, prompt_max_tokens;
    double gamma, speedup_threshold, plan_weight;
    bool early_stop_on_correct, full_feedback, hierarchical_rewards;
    /* The run directory. */
    int64_t start_batch, resume_from_batch, keep_checkpoints, tensorboard_log_histograms_every;
    bool tensorboard_log_per_level;
    struct {
        const char *source, *prompt_gpu_name, *rag_index_path;
        int64_t raicl_k, raicl_max_tokens, generated_problems, batch_factor, level, difficulty, start_problem,
            end_problem, batch_size, group_size, num_epochs, num_correct_trials, num_perf_trials;
        double test_fraction, reward_format_weight, reward_compile_weight, reward_correctness_weight,
            reward_speed_weight, reward_thinking_weight, reward_length_weight, speed_max_reward, cheating_penalty,
            format_penalty, overlong_penalty, excessive_speedup_threshold;
        int64_t length_min, length_max, thinking_soft_max, thinking_hard_max, overlong_buffer_tokens;
        double thinking_no_think, thinking_floor;
        int reward_preset;               /* enum reward_preset, or unset */
        int speed_reward;                /* enum speed_shape */
        int dataset_src;                 /* enum dataset_src */
        int backend, scoring, precision; /* enums of verify.h; enum precision */
        int timing_method, staged;       /* enums of verify.h */
        int64_t timing_warmup;
        double timing_trim, timing_interval, timing_budget_s;
        int prompt_option, prompt_precision; /* enums above; precision may be unset */
        bool shuffle, measure_performance, partial_correctness, sparse_rewards, check_for_excessive_speedup,
            prompt_include_hardware, multi_input;
    } dataset_builder;
    struct {
        const char *python, *cache_dir, *device;
        double compile_timeout_s, run_timeout_s;
        int64_t memory_mib;
        bool allow_weaker;
    } sandbox;
    struct { /* curriculum.h */
        bool enabled, by_difficulty;
        double start_share, end_share, increment, trigger;
        int64_t window;
    } curriculum;
    struct { /* roles.h */
        int64_t verifier_samples, verifier_answers, corrector_samples, corrector_answers, judge_samples, proposals,
            proposer_window, answer_tokens;
        double verifier_weight, corrector_weight, judge_reward, judge_weight, proposer_weight, proposer_trigger;
    } roles;
    struct { /* what changes over the run; shares of it */
        double speed_from, speed_until, partial_until, plan_weight_end;
    } schedule;
};
/* By the value of the key dtype: what model_options calls it. */
extern const char *const dtype_names[];
extern const struct config_schema train_schema;
extern const char *const precision_names[];

/* After all values are set: presets give values to keys that have none (algorithm, dataset_builder.reward_preset), then
 * rules between keys are checked. */
enum status train_options_finish(struct config *c, struct train_options *o, struct err *e) MUST_USE;
/* Names of other programs' files, and what they mean here; part of train_schema. */
enum { TRAIN_ALIASES = 52 };
extern const struct config_alias train_aliases[];
/* The presets: what `algorithm` and `reward_preset` set, "key=value" each, ended by NULL. NULL for an unknown index. */
const char *const *algorithm_preset(int index);
const char *const *reward_preset(int index);

/* Rules between keys. */
enum status train_options_check(const struct config *c, const struct train_options *o, struct err *e) MUST_USE;

struct sft_options {
    const char *model_name, *model_revision, *init_config, *tokenizer, *data, *valid, *output, *renderer_name, *device;
    int save_dtype; /* enum saved_dtype */
    int dtype;      /* enum dtype_choice */
    int64_t lora_rank, batch_tokens, train_tokens, max_length, max_steps, num_epochs, warmup_steps, seed, threads,
        save_every, log_every, activation_memory;
    double lora_alpha, learning_rate, min_lr_ratio, weight_decay, max_grad_norm, stop_after_minutes, prompt_loss_weight;
    struct adam_options adam;
};
extern const struct config_schema sft_schema;
enum status sft_options_check(const struct config *c, const struct sft_options *o, struct err *e) MUST_USE;

#endif
