/* options: every key of `train` (and `eval`) and of `sft`, with default, range and meaning in one table each
 * (options.c). A key sets its field in the struct of whoever uses the value: verifier, rewards, losses, optimizer. They
 * get that struct as it stands here. A key that several parts of the program read is a field under its own name. */
#ifndef KERNELRL_RL_OPTIONS_OPTIONS_H
#define KERNELRL_RL_OPTIONS_OPTIONS_H

#include "io/config.h"
#include "remote/servers.h"
#include "reward/advantage.h"
#include "reward/reward.h"
#include "train/adamw.h"
#include "train/loss.h"
#include "verify/pool/pool.h"
#include "verify/verify.h"

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
/* The first two of BASE_DTYPE_LIST (tensor/formats.h); the others are formats in codes. */
enum base_dtype_choice { BASE_AUTO, BASE_BF16 };
#define EXPERT_FILES_LIST(X) X(FILES_AUTO, auto) X(FILES_EACH, each) X(FILES_FUSED, fused)
enum expert_files_choice { CHOICE_ENUM(EXPERT_FILES_LIST) }; /* the values of enum expert_files in model.h */
#define SAVED_LIST(X) X(SAVED_BF16, bf16) X(SAVED_F32, f32)
enum saved_dtype { CHOICE_ENUM(SAVED_LIST) };
#define SAMPLER_LIST(X) X(SAMPLER_ENGINE, engine) X(SAMPLER_OPENAI, openai) X(SAMPLER_TINKER, tinker)
#define TRAINER_LIST(X) X(TRAINER_ENGINE, engine) X(TRAINER_TINKER, tinker)
enum trainer_kind { CHOICE_ENUM(TRAINER_LIST) };
enum sampler_kind { CHOICE_ENUM(SAMPLER_LIST) };
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

/* What an update of the weights does with a batch (rl/learn/update.h). */
struct update_options {
    struct loss_params loss; /* kl_coef holds kl_penalty_coef, also where the penalty is paid in the reward */
    enum kl_place kl_penalty_in;
    double kl_discount_factor;
    enum loss_norm loss_norm;
    bool mask_truncated;
    int64_t num_substeps, update_epochs, train_tokens;
    double max_grad_norm;
    struct adamw_config adam; /* learning_rate: behind the warm-up; in the options of a step (schedule_at) what
                                 lr_schedule leaves of it */
};

/* How the answers to a problem are sampled (rl/rollout/rollout.h). */
struct rollout_options {
    int group_size;     /* answers a problem */
    int max_tokens;     /* of an answer */
    double temperature; /* 0: greedy */
    int max_turns;      /* 0: 1 */
    double gamma;
    bool early_stop;          /* true: a correct answer ends a trajectory ... */
    double speedup_threshold; /* ... when it is as fast as that; 0: any */
};

/* What all prompts and all sampling have in common (struct actor in rl/rollout/rollout.h). */
struct actor_options {
    double min_p;          /* 0: off */
    int64_t prompt_tokens; /* longest prompt; 0: what the model's positions leave */
    enum history history;  /* earlier attempts that a prompt shows */
    bool full_feedback;    /* true: feedback version 2 */
};

/* Retrieved examples in prompts (rl/rollout/raicl.h). */
struct example_options {
    const char *index_path; /* folder of build-rag-index */
    int k;                  /* examples a problem, at most PROMPT_EXAMPLES_MAX */
    int64_t max_tokens;     /* of the examples of a prompt together; 0: no limit */
};

/* Who samples, where that is not the model that is loaded here (rl/learn/texts.h). */
struct sampler_options {
    enum sampler_kind kind;
    int server_type; /* enum server_type, or unset */
    const char *base_url, *api_key_env, *reasoning_effort, *server_model;
    int in_flight, tries;
    double timeout_s;
    const char *replies; /* no key: the file of answers that a command keeps; NULL: none */
};

struct train_options {
    struct sampler_options sampler;
    int trainer;   /* enum trainer_kind */
    int algorithm; /* enum algorithm, or unset: a preset */
    const char *model_name, *model_revision, *load_checkpoint_path, *renderer_name, *log_path, *device;
    int dtype;             /* enum dtype_choice */
    int base_dtype;        /* enum base_dtype_choice */
    int lora_expert_files; /* enum expert_files_choice */
    int numerics;          /* enum numerics */
    int64_t lora_rank, lora_expert_rank, seed, threads, activation_memory, kv_memory;
    const char *ranks; /* as comm_open takes it */
    double peer_timeout;
    int64_t gpus; /* ranks that `train` starts by mpirun; 0 or 1: none */
    double lora_alpha;
    struct verify_options verify; /* session_verify_options() adds what follows from other keys */
    struct pool_options pool;     /* session_open() adds which run it is */
    struct reward_weights reward;
    struct advantage_params advantage;
    struct update_options update;
    struct rollout_options rollout;
    struct actor_options actor;
    struct example_options examples;
    bool thinking;   /* true: prompts ask for a think block; also decides the chat template */
    int lr_schedule; /* enum lr_schedule */
    double min_lr_ratio;
    int64_t warmup_steps;
    /* Turns. */
    int mode, advantage_group; /* enums above */
    bool hierarchical_rewards;
    double plan_weight;
    /* The run. */
    int overlap; /* enum overlap */
    int64_t max_staleness, refill_rounds, max_steps, save_every, eval_every, eval_samples;
    /* The run directory. */
    int64_t start_batch, resume_from_batch, keep_checkpoints, tensorboard_log_histograms_every;
    bool download_checkpoints, tensorboard_enabled, tensorboard_log_per_level;
    struct {
        /* Problems. */
        const char *source;
        int dataset_src; /* enum dataset_src */
        int64_t level, difficulty, start_problem, end_problem, generated_problems, batch_factor;
        double test_fraction;
        int64_t batch_size, num_epochs;
        bool shuffle;
        /* Prompts and judging. */
        int prompt_option, prompt_precision; /* enums above; precision may be unset */
        const char *prompt_gpu_name;
        bool prompt_include_hardware, multi_input;
        int precision;     /* enum precision */
        int reward_preset; /* enum reward_preset, or unset */
    } dataset_builder;
    struct {
        int64_t memory_mib;
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
/* By the value of the keys dtype and base_dtype: what model_options calls it. */
extern const char *const dtype_names[];
extern const char *const base_dtype_names[];
/* A rule of both tables: a base in codes has an adapter that is trained. */
enum status base_dtype_check(const struct config *c, int base_dtype, int64_t lora_rank, struct err *e) MUST_USE;
/* Likewise, of an adapter's rank on experts. */
enum status expert_keys_check(const struct config *c, int64_t lora_rank, int64_t expert_rank, int expert_files,
                              struct err *e) MUST_USE;
extern const struct config_schema train_schema;
extern const char *const precision_names[];

/* A schema of n keys and, behind them, those of train, whose values are a member of theirs at `offset`. all[most] holds
 * the rows. */
void train_schema_with(const struct config_key *keys, size_t n, size_t offset, size_t values_bytes,
                       struct config_key *all, size_t most, struct config_schema *out);

/* After all values are set: presets give values to keys that have none (algorithm, dataset_builder.reward_preset), then
 * rules between keys are checked. */
enum status train_options_finish(struct config *c, struct train_options *o, struct err *e) MUST_USE;
/* The same for the keys of sampler_keys.h and model_name, in whatever schema. */
enum status sampler_options_finish(struct config *c, struct sampler_options *s, struct err *e) MUST_USE;
/* Names of other programs' files, and what they mean here; part of train_schema. */
enum { TRAIN_ALIASES = 51 };
extern const struct config_alias train_aliases[];
/* The presets: what `algorithm` and `reward_preset` set, "key=value" each, ended by NULL. NULL for an unknown index. */
const char *const *algorithm_preset(int index);
const char *const *reward_preset(int index);

/* Turns of a trajectory at most. */
int train_options_turns(const struct train_options *o);

/* Rules between keys. */
enum status train_options_check(const struct config *c, const struct train_options *o, struct err *e) MUST_USE;

struct sft_options {
    const char *model_name, *model_revision, *init_config, *tokenizer, *data, *valid, *output, *renderer_name, *device;
    int save_dtype;        /* enum saved_dtype */
    int dtype;             /* enum dtype_choice */
    int base_dtype;        /* enum base_dtype_choice */
    int lora_expert_files; /* enum expert_files_choice */
    int64_t lora_rank, lora_expert_rank, batch_tokens, max_length, max_steps, num_epochs, warmup_steps, seed, threads,
        save_every, log_every, activation_memory;
    double lora_alpha, min_lr_ratio, stop_after_minutes, prompt_loss_weight;
    const char *ranks; /* these three as in train_options */
    double peer_timeout;
    int64_t gpus;
    struct update_options update; /* of these the optimizer and train_tokens */
};
extern const struct config_schema sft_schema;
enum status sft_options_check(const struct config *c, const struct sft_options *o, struct err *e) MUST_USE;

#endif
