/* Presets, names of other programs, and the rules between keys of train. */
#include "rl/options/options.h"

#include <string.h>

#include "tensor/backend.h"

#define T struct train_options

/* ---- algorithms: advantage x loss x normaliser --------------------------------------------------------------------*/

/* Papers: advantage.h and train/loss.h; figures: each paper's own. */
static const char *const reinforce[] = {"advantage=none", "loss_fn=reinforce", "loss_norm=samples", NULL};
static const char *const rloo[] = {"advantage=leave_one_out", "loss_fn=importance_sampling", "loss_norm=samples", NULL};
static const char *const grpo[] = {"advantage=std", "loss_fn=ppo", "loss_norm=sequences", NULL};
static const char *const dr_grpo[] = {"advantage=center", "loss_fn=ppo", "loss_norm=constant", NULL};
static const char *const dapo[] = {"advantage=std",
                                   "loss_fn=ppo",
                                   "loss_norm=tokens",
                                   "clip_high=0.28",
                                   "refill_rounds=3",
                                   "dataset_builder.overlong_buffer_tokens=512",
                                   NULL};
static const char *const gspo[] = {"advantage=std", "loss_fn=gspo",   "loss_norm=sequences",
                                   "clip_low=3e-4", "clip_high=4e-4", NULL};
static const char *const cispo[] = {"advantage=std", "loss_fn=cispo", "loss_norm=tokens", "clip_high=4", NULL};
static const char *const ppo[] = {"advantage=batch_std", "loss_fn=ppo", "loss_norm=tokens", "clip_dual=3", NULL};
static const char *const importance_sampling[] = {"advantage=center", "loss_fn=importance_sampling", "loss_norm=sum",
                                                  NULL};
static const char *const best_of_n[] = {
    "advantage=best",     "loss_fn=cross_entropy", "loss_norm=tokens", "keep_best=3",
    "keep_threshold=0.5", "update_epochs=2",       "temperature=0.8",  NULL};
static const char *const reward_weighted[] = {"advantage=none", "loss_fn=cross_entropy", "loss_norm=tokens", NULL};
static const char *const rejection_sampling[] = {"advantage=best", "loss_fn=cross_entropy", "loss_norm=tokens",
                                                 "keep_best=1024", "keep_threshold=0.5",    NULL};

const char *const *algorithm_preset(int index) {
    static const char *const *const all[] = {
#define X(id, name) [id] = name,
        ALGORITHM_LIST(X)
#undef X
    };
    return index >= 0 && index < (int)ARRAY_LEN(all) ? all[index] : NULL;
}

/* ---- rewards ------------------------------------------------------------------------------------------------------*/

#define WEIGHTS(format, compile, correct, speed)                                                      \
    "dataset_builder.reward_format_weight=" format, "dataset_builder.reward_compile_weight=" compile, \
        "dataset_builder.reward_correctness_weight=" correct, "dataset_builder.reward_speed_weight=" speed
static const char *const stage1[] = {WEIGHTS("0.3", "0.5", "0.2", "0"), "dataset_builder.partial_correctness=true",
                                     NULL};
static const char *const stage2[] = {WEIGHTS("0.1", "0.2", "0.7", "0"), "dataset_builder.partial_correctness=true",
                                     NULL};
static const char *const stage3[] = {WEIGHTS("0.05", "0.1", "0.5", "0.35"), NULL};
static const char *const sparse[] = {WEIGHTS("0", "0", "1", "0.5"), "dataset_builder.sparse_rewards=true", NULL};
static const char *const default_weights[] = {WEIGHTS("0", "0", "0.3", "1"), NULL};

const char *const *reward_preset(int index) {
    static const char *const *const all[] = {[PRESET_STAGE1] = stage1,
                                             [PRESET_STAGE2] = stage2,
                                             [PRESET_STAGE3] = stage3,
                                             [PRESET_SPARSE] = sparse,
                                             [PRESET_DEFAULT] = default_weights};
    return index >= 0 && index < (int)ARRAY_LEN(all) ? all[index] : NULL;
}

static enum status apply(struct config *c, const char *source, const char *const *assignments, struct err *e) {
    for (; assignments && *assignments; assignments++) TRY(config_preset(c, source, *assignments, e));
    return ST_OK;
}

enum status sampler_options_finish(struct config *c, struct sampler_options *s, struct err *e) {
    static const char *const served[] = {"sampler=openai", NULL};
    if (s->server_type >= 0) TRY(apply(c, "server_type", served, e));
    const bool has_url = s->base_url && *s->base_url;
    if (s->kind == SAMPLER_ENGINE && has_url)
        return config_reject(c, "base_url", e,
                             "is the address of a server that answers in the place of our model: add sampler=openai to "
                             "ask it (eval, generate, corpus, optimize), or leave base_url out");
    if (s->kind == SAMPLER_ENGINE) return ST_OK;
    if (s->kind == SAMPLER_TINKER && s->server_type >= 0)
        return config_reject(c, "server_type", e,
                             "names servers of the OpenAI API: expected null with sampler: tinker");
    if (s->kind == SAMPLER_TINKER) return ST_OK;
    if (!has_url && s->server_type < 0)
        return config_reject(c, "sampler", e,
                             "openai needs base_url, the address of the server (or server_type, its name)");
    if (strcmp(config_source(c, "model_name"), "default") == 0)
        return config_reject(c, "model_name", e,
                             "sampler: openai needs the model's name as the server knows it (GET base_url/models lists "
                             "them)");
    return ST_OK;
}

enum status train_options_finish(struct config *c, T *o, struct err *e) {
    TRY(apply(c, "algorithm", algorithm_preset(o->algorithm), e));
    TRY(apply(c, "dataset_builder.reward_preset", reward_preset(o->dataset_builder.reward_preset), e));
    static const char *const corrected[] = {"ratio_correction=truncate", NULL};
    if (o->max_staleness > 0) TRY(apply(c, "max_staleness", corrected, e));
    static const char *const of_server[] = {"sampler=tinker", NULL};
    if (o->trainer == TRAINER_TINKER) TRY(apply(c, "trainer", of_server, e));
    TRY(sampler_options_finish(c, &o->sampler, e));
    return train_options_check(c, o, e);
}

/* ---- names of other programs --------------------------------------------------------------------------------------*/

#define OWN_LOG "there is no hosted logger; TensorBoard files and metrics.jsonl are written to log_path."
#define OWN_JAIL "answers are judged here, in a sandbox of this machine (sandbox.*)."
#define SHARED(name) \
    { "multiturn_dataset_builder." name, "dataset_builder." name, false, "One of the two is given." }

const struct config_alias train_aliases[] = {
    {"dataset_builder.format_reward_weight", "dataset_builder.reward_format_weight", false, ""},
    {"dataset_builder.compile_reward_weight", "dataset_builder.reward_compile_weight", false, ""},
    {"dataset_builder.correctness_reward_weight", "dataset_builder.reward_correctness_weight", false, ""},
    {"dataset_builder.speed_reward_weight", "dataset_builder.reward_speed_weight", false, ""},
    {"dataset_builder.length_reward_weight", "dataset_builder.reward_length_weight", false, ""},
    {"dataset_builder.thinking_reward_weight", "dataset_builder.reward_thinking_weight", false, ""},
    {"dataset_builder.renderer_name", "renderer_name", false, ""},
    {"dataset_builder.modal_timeout", "sandbox.run_timeout_s", false, "The deadline of a kernel's run, in seconds."},
    {"dataset_builder.use_modal", NULL, false, OWN_JAIL},
    {"dataset_builder.modal_gpu_type", NULL, false, OWN_JAIL},
    {"wandb_project", NULL, true, OWN_LOG},
    {"wandb_name", NULL, true, OWN_LOG},
    {"multiturn_dataset_builder.max_turns", "max_turns", false, ""},
    {"multiturn_dataset_builder.early_stop_on_correct", "early_stop_on_correct", false, ""},
    {"multiturn_dataset_builder.speedup_threshold", "speedup_threshold", false, ""},
    {"multiturn_dataset_builder.renderer_name", "renderer_name", false, ""},
    {"multiturn_dataset_builder.modal_timeout", "sandbox.run_timeout_s", false, ""},
    {"multiturn_dataset_builder.use_modal", NULL, false, OWN_JAIL},
    {"multiturn_dataset_builder.modal_gpu_type", NULL, false, OWN_JAIL},
    SHARED("level"),
    SHARED("start_problem"),
    SHARED("end_problem"),
    SHARED("backend"),
    SHARED("dataset_src"),
    SHARED("batch_size"),
    SHARED("group_size"),
    SHARED("num_epochs"),
    SHARED("shuffle"),
    SHARED("num_correct_trials"),
    SHARED("measure_performance"),
    SHARED("reward_format_weight"),
    SHARED("reward_compile_weight"),
    SHARED("reward_correctness_weight"),
    SHARED("reward_speed_weight"),
    SHARED("reward_length_weight"),
    SHARED("reward_thinking_weight"),
    SHARED("test_fraction"),
    SHARED("prompt_option"),
    SHARED("rag_index_path"),
    SHARED("raicl_k"),
    SHARED("precision"),
    SHARED("num_perf_trials"),
    {"enable_adaptive_curriculum", "curriculum.enabled", false, ""},
    {"curriculum_start_p", "curriculum.start_share", false, ""},
    {"curriculum_end_p", "curriculum.end_share", false, ""},
    {"enable_multi_input", "dataset_builder.multi_input", false, ""},
    {"multi_input_num_tests", "dataset_builder.num_correct_trials", false, ""},
    {"timing_num_warmup", "dataset_builder.timing_warmup", false, ""},
    {"timing_num_trials", "dataset_builder.num_perf_trials", false, ""},
    {"timing_trim_percent", "dataset_builder.timing_trim", false, "A share, not per cent."},
    {"curriculum_trigger_threshold", "curriculum.trigger", false, ""},
};
_Static_assert(ARRAY_LEN(train_aliases) == TRAIN_ALIASES, "options.h says how many there are");

/* ---- rules between keys -------------------------------------------------------------------------------------------*/

static enum status check_speed(const struct config *c, const T *o, struct err *e) {
    if (o->reward.speed > 0 && !o->verify.measure)
        return config_reject(c, "dataset_builder.reward_speed_weight", e, "needs measure_performance: true");
    if (o->mode == MODE_MULTI_TURN && o->rollout.early_stop && o->rollout.speedup_threshold > 0 && !o->verify.measure)
        return config_reject(c, "speedup_threshold", e, "needs measure_performance: true");
    return ST_OK;
}

static enum status check_ranges(const struct config *c, const T *o, struct err *e) {
    const struct loss_params *loss = &o->update.loss;
    if (o->dataset_builder.end_problem && o->dataset_builder.end_problem < o->dataset_builder.start_problem)
        return config_reject(c, "dataset_builder.end_problem", e, "expected at least start_problem (%lld)",
                             (long long)o->dataset_builder.start_problem);
    if (o->reward.length_max <= o->reward.length_min)
        return config_reject(c, "dataset_builder.length_max", e, "expected more than length_min (%lld)",
                             (long long)o->reward.length_min);
    if (o->reward.think_hard_max <= o->reward.think_soft_max)
        return config_reject(c, "dataset_builder.thinking_hard_max", e, "expected more than thinking_soft_max (%lld)",
                             (long long)o->reward.think_soft_max);
    if (o->curriculum.end_share < o->curriculum.start_share)
        return config_reject(c, "curriculum.end_share", e, "expected at least start_share (%g)",
                             o->curriculum.start_share);
    if (o->schedule.speed_until < o->schedule.speed_from)
        return config_reject(c, "schedule.speed_until", e, "expected at least speed_from (%g)", o->schedule.speed_from);
    if (loss->correction == CORRECT_SEQUENCE_MASK && loss->correction_low >= loss->correction_high)
        return config_reject(c, "ratio_high", e, "expected more than ratio_low (%g)", loss->correction_low);
    return ST_OK;
}

/* Batches that are sampled ahead. */
static enum status check_staleness(const struct config *c, const T *o, struct err *e) {
    if (o->max_staleness == 0 && o->update.loss.correction != CORRECT_NONE)
        return config_reject(c, "ratio_correction", e,
                             "needs max_staleness above 0: without it no sample is older than the weights");
    if (o->max_staleness > 0 && o->overlap == OVERLAP_OFF)
        return config_reject(c, "overlap", e, "max_staleness samples ahead of verdicts: expected auto or on");
    if (o->max_staleness > 0 && o->refill_rounds > 0)
        return config_reject(c, "refill_rounds", e,
                             "whom to refill is known from the verdicts, which max_staleness does not wait for: "
                             "expected 0");
    if (o->max_staleness > 0 && o->roles.proposals > 0)
        return config_reject(c, "roles.proposals", e, "a proposed problem lives for its step: max_staleness 0");
    return ST_OK;
}

static enum status check_roles(const struct config *c, const T *o, struct err *e) {
    if (o->roles.proposals > o->dataset_builder.batch_size)
        return config_reject(c, "roles.proposals", e, "expected at most batch_size (%lld)",
                             (long long)o->dataset_builder.batch_size);
    if (o->roles.judge_reward > 0 && o->rollout.group_size < 2)
        return config_reject(c, "roles.judge_reward", e, "needs two answers to compare: group_size of at least 2");
    return ST_OK;
}

/* What a server of the Tinker protocol cannot do, or does not say. */
static enum status check_tinker(const struct config *c, const T *o, struct err *e) {
    const char *start = o->load_checkpoint_path;
    if (o->sampler.kind != SAMPLER_TINKER && o->trainer != TRAINER_TINKER) return ST_OK;
    if (o->sampler.kind != SAMPLER_TINKER)
        return config_reject(c, "sampler", e, "trainer: tinker has the server sample, too: expected tinker");
    if (o->actor.min_p > 0) return config_reject(c, "min_p", e, "the Tinker protocol has none: expected 0");
    if (start && *start && !str_has_prefix(start, "tinker://"))
        return config_reject(
            c, "load_checkpoint_path", e,
            "the server's model begins with a checkpoint of the server: expected tinker://RUN/KIND/NAME");
    if (o->trainer != TRAINER_TINKER) return ST_OK;
    if (o->lora_rank == 0) return config_reject(c, "lora_rank", e, "the server trains adapters: expected 1 or more");
    if (o->lora_alpha != 32) return config_reject(c, "lora_alpha", e, "adapters of the server have 32");
    if (o->lora_expert_rank != 0) return config_reject(c, "lora_expert_rank", e, "the server chooses it: expected 0");
    if (o->update.loss.entropy_coef != 0)
        return config_reject(c, "entropy_coef", e, "the server tells no entropies: expected 0");
    if (o->rollout.temperature != 1)
        return config_reject(c, "temperature", e,
                             "the server's log-probabilities of samples are of the tempered distribution, and the "
                             "trainer's are not: expected 1");
    return o->gpus > 1 ? config_reject(c, "gpus", e, "the server computes: expected 0") : ST_OK;
}

enum status train_options_check(const struct config *c, const T *o, struct err *e) {
    TRY(base_dtype_check(c, o->base_dtype, o->lora_rank, e));
    TRY(expert_keys_check(c, o->lora_rank, o->lora_expert_rank, o->lora_expert_files, e));
    if (!backend_device_valid(o->device))
        return config_reject(c, "device", e, "expected cpu, cuda or cuda:N, got \"%s\"", o->device);
    const char *index = o->examples.index_path;
    if (o->dataset_builder.prompt_option == PROMPT_RAICL && (!index || !*index))
        return config_reject(c, "dataset_builder.rag_index_path", e,
                             "prompt_option: raicl needs the folder of an index (kernelrl build-rag-index)");
    const struct backend_info *backend = backend_info(o->verify.backend);
    if (!backend->is_module && o->dataset_builder.precision != PRECISION_FP32)
        return config_reject(c, "dataset_builder.precision", e, "backend %s takes the types of the problem: fp32",
                             backend->name);
    if (!backend->is_module && o->verify.scoring != SCORING_HARDENED)
        return config_reject(c, "dataset_builder.scoring", e, "backend %s is always judged hardened", backend->name);
    TRY(check_ranges(c, o, e));
    TRY(check_staleness(c, o, e));
    TRY(check_roles(c, o, e));
    TRY(check_tinker(c, o, e));
    return check_speed(c, o, e);
}
