#include "rl/options/options.h"

#include <string.h>

#include "rl/options/sampler_keys.h"
#include "tensor/backend.h"
#include "tensor/formats.h"
#include "text/chat.h"

#define ADAM_KEYS(S)                                                                                     \
    KEY_FLOAT_AT(S, "adam.beta1", update.adam.beta1, "0.9", "[0,1)", "AdamW's first decay rate."),       \
        KEY_FLOAT_AT(S, "adam.beta2", update.adam.beta2, "0.95", "[0,1)", "AdamW's second decay rate."), \
        KEY_FLOAT_AT(S, "adam.eps", update.adam.eps, "1e-8", "(0,)", "AdamW's epsilon, outside the square root.")

#define DEVICE_KEY(S)            \
    KEY_STRING(S, device, "cpu", \
               "Where the model runs: cpu, cuda, or cuda:N for the N-th GPU, counted from 0 (needs `make cuda`).")

#define ACTIVATION_KEY(S)                                                                                            \
    KEY_INT(                                                                                                         \
        S, activation_memory, "0", "[0,)",                                                                           \
        "Bytes of device memory for a micro-batch's activations, never exceeded; what does not fit is computed "     \
        "again in the backward pass, with the same result. 0: as many as the weights take and 1 GB, at least 2 GB; " \
        "`train` on a GPU: what its plan leaves (docs/memory.md).")

#define RANK_KEYS(S)                                                                                                  \
    KEY_STRING(S, ranks, "auto",                                                                                      \
               "Processes that train together, one a device (docs/clusters.md). auto: those that mpirun or srun has " \
               "started; self: this one alone, whatever has started it; mpi: MPI's, also for one."),                  \
        KEY_INT(S, gpus, "0", "[0,1024]",                                                                             \
                "The command starts itself so many times by mpirun, a process a GPU. 0: it runs as it was started."), \
        KEY_FLOAT(S, peer_timeout, "60", "[1,)",                                                                      \
                  "Seconds without a sign of life from another rank after which the job ends, with exit status 75.")
#define REVISION_KEY(S) KEY_STRING(S, model_revision, "main", "Branch, tag or commit of a model_name on the Hub.")

const char *const dtype_names[] = {CHOICE_NAMES(DTYPE_LIST)};
const char *const base_dtype_names[] = {CHOICE_NAMES(BASE_DTYPE_LIST)};
const char *const precision_names[] = {CHOICE_NAMES(PRECISION_LIST)};
#define DTYPE_KEY(S)                                                                                              \
    KEY_CHOICE(                                                                                                   \
        S, dtype, DTYPE_LIST, "auto",                                                                             \
        "Type the products with the model's matrices compute in; sums and LoRA are f32 in both. auto: f32 below " \
        "100 million parameters, bf16 from there on where the device has it. With LoRA a bf16 model takes two "   \
        "bytes a parameter.")

#define BASE_DTYPE_KEY(S)                                                                                              \
    KEY_CHOICE(S, base_dtype, BASE_DTYPE_LIST, "auto",                                                                 \
               "How the frozen matrices of the layers are held where LoRA is trained: fp8 (a byte a weight) or nf4 "   \
               "(half a byte), made as the model is loaded, or as a checkpoint has them; every result is that of the " \
               "bf16 matrices they decode to. auto: as the checkpoint has them. bf16: a checkpoint in codes is "       \
               "decoded.")

#define EXPERT_KEYS(S)                                                                                                \
    KEY_INT(S, lora_expert_rank, "0", "[-1,1024]",                                                                    \
            "Rank of the LoRA adapter on each expert of a mixture. 0: lora_rank / num_experts_per_tok, at least 1. "  \
            "-1: only attention is adapted. Another model than a mixture takes 0 alone."),                            \
        KEY_CHOICE(S, lora_expert_files, EXPERT_FILES_LIST, "auto",                                                   \
                   "How adapters on experts are written. each: tensors of each expert. fused: one pair of tensors "   \
                   "for all experts of a layer, PEFT's target_parameters. auto: as the adapter that the run goes on " \
                   "from has it, else each. Both are read. Another model than a mixture takes auto alone.")

enum status expert_keys_check(const struct config *c, int64_t lora_rank, int64_t expert_rank, int expert_files,
                              struct err *e) {
    static const char why[] = "all parameters are trained: expected";
    if (lora_rank == 0 && expert_rank != 0)
        return config_reject(c, "lora_expert_rank", e, "%s 0, or lora_rank above 0", why);
    if (lora_rank == 0 && expert_files != FILES_AUTO)
        return config_reject(c, "lora_expert_files", e, "%s auto, or lora_rank above 0", why);
    return ST_OK;
}

enum status base_dtype_check(const struct config *c, int base_dtype, int64_t lora_rank, struct err *e) {
    if (lora_rank > 0 || base_dtype == BASE_AUTO || base_dtype == BASE_BF16) return ST_OK;
    return config_reject(c, "base_dtype", e, "%s is of a base that is not trained: expected lora_rank above 0",
                         base_dtype_names[base_dtype]);
}

static enum status check_device(const struct config *c, const char *device, struct err *e) {
    return backend_device_valid(device)
               ? ST_OK
               : config_reject(c, "device", e, "expected cpu, cuda or cuda:N, got \"%s\"", device);
}

#define T struct train_options
static const struct config_key train_keys[] = {
    KEY_CHOICE_OPT(T, algorithm, ALGORITHM_LIST, "null",
                   "A method by its name: sets advantage, loss_fn, loss_norm and what belongs to them where the "
                   "configuration does not (docs/configuration.md). null: nothing."),
    KEY_STRING(T, model_name, "Qwen/Qwen2.5-Coder-7B-Instruct",
               "Folder of the model, in Hugging Face layout, looked up in the working directory, then in the "
               "installation; or its name on the Hub, such as Qwen/Qwen2.5-Coder-0.5B (docs/models.md)."),
    REVISION_KEY(T),
    KEY_CHOICE(T, trainer, TRAINER_LIST, "engine",
               "train: who holds and trains the model. tinker: a server of the Tinker protocol, which samples, too "
               "(docs/tinker.md); of model_name only the tokenizer and the configuration are read here. engine: this "
               "program."),
    SAMPLER_KEYS(T, sampler),
    KEY_STRING_OPT(T, load_checkpoint_path, "null",
                   "Weights to start from instead: a PEFT adapter or a full model, a folder or a name on the Hub. "
                   "The optimizer starts fresh."),
    KEY_STRING_OPT(T, renderer_name, "null", "Chat template: " CHAT_STYLE_NAMES ". null takes the model's own."),
    KEY_STRING(T, log_path, "runs/kernel_rl", "Run directory. An existing one is resumed."),
    KEY_INT(T, seed, "0", "[0,)", "Seed of data order, sampling and LoRA initialisation."),
    DEVICE_KEY(T),
    DTYPE_KEY(T),
    BASE_DTYPE_KEY(T),
    KEY_CHOICE(
        T, numerics, NUMERICS_LIST, "exact",
        "exact: a token's log-probability has the same bits in sampling and in training, whatever the batch; a run "
        "whose bits differ before an update stops. fast: a device may take any algorithm for its products; ratios "
        "then are those to what the sampler recorded, and ratio_correction may bound them."),
    KEY_INT(T, threads, "0", "[0,256]", "Threads of the engine, and of kernels and PyTorch alike. 0: all CPUs."),
    KEY_INT(T, lora_rank, "32", "[0,1024]", "Rank of the LoRA adapter; 0 trains all parameters."),
    EXPERT_KEYS(T),
    KEY_FLOAT(T, lora_alpha, "32", "(0,)", "LoRA scale numerator; updates are scaled by alpha / rank."),
    KEY_FLOAT_AT(T, "learning_rate", update.adam.learning_rate, "1e-4", "(0,1]", "AdamW step size after warm-up."),
    KEY_INT(T, warmup_steps, "0", "[0,)", "Optimizer steps over which the learning rate rises from 0."),
    KEY_CHOICE(T, lr_schedule, LR_LIST, "constant",
               "How the learning rate falls from learning_rate to min_lr_ratio of it over the run."),
    KEY_FLOAT(T, min_lr_ratio, "0", "[0,1]", "lr_schedule: share of learning_rate that is left at the end."),
    KEY_FLOAT_AT(T, "weight_decay", update.adam.weight_decay, "0", "[0,1]", "Decoupled weight decay of matrices."),
    KEY_FLOAT_AT(T, "max_grad_norm", update.max_grad_norm, "1", "[0,)",
                 "Gradients of a larger global L2 norm are scaled down to it. 0: never."),
    ADAM_KEYS(T),
    KEY_CHOICE_AT(
        T, "loss_fn", update.loss.kind, LOSS_LIST, "importance_sampling",
        "Loss of a token: -A log p (reinforce, cross_entropy), minus ratio times A (importance_sampling), that "
        "clipped (ppo), with one ratio a sequence (gspo), with the clipped ratio as a weight (cispo), or with a "
        "quadratic bound (dro)."),
    KEY_FLOAT_AT(T, "clip_low", update.loss.clip_low, "0.2", "[0,1]",
                 "ppo, gspo: the ratio is clipped below 1 - clip_low."),
    KEY_FLOAT_AT(T, "clip_high", update.loss.clip_high, "0.2", "[0,)",
                 "ppo, gspo, cispo: the ratio is clipped above 1 + clip_high."),
    KEY_FLOAT_AT(
        T, "clip_dual", update.loss.clip_dual, "0", "[0,)",
        "ppo, gspo: bad answers weigh at most this ratio, such as 3. 0: they weigh as much as their ratio says."),
    KEY_FLOAT_AT(T, "dro_beta", update.loss.dro_beta, "0.05", "[0,)", "dro: strength of the bound."),
    KEY_CHOICE_AT(
        T, "ratio_correction", update.loss.correction, CORRECTION_LIST, "none",
        "For samples that are older than the weights (max_staleness): weigh a token by how much likelier it has "
        "become, at most ratio_high (truncate, TIS); the same, and 0 outside "
        "ratio_low to ratio_high (mask, IcePop); or leave whole answers out whose geometric mean is outside "
        "(sequence_mask)."),
    KEY_FLOAT_AT(T, "ratio_low", update.loss.correction_low, "0.5", "[0,1]", "Lower bound of ratio_correction."),
    KEY_FLOAT_AT(T, "ratio_high", update.loss.correction_high, "2", "[1,)", "Upper bound of ratio_correction."),
    KEY_FLOAT_AT(
        T, "kl_penalty_coef", update.loss.kl_coef, "0", "[0,)",
        "Weight of the divergence from the model the run began with, which is then held beside the trained one. "
        "0: none."),
    KEY_CHOICE_AT(
        T, "kl_penalty_in", update.kl_penalty_in, KL_PLACE_LIST, "loss",
        "loss: the estimate is a term of the loss. reward: minus coefficient times log p / p_start of each token, "
        "less the batch's mean, is added to its advantage."),
    KEY_CHOICE_AT(
        T, "kl_estimator", update.loss.kl, KL_LIST, "k3",
        "kl_penalty_in: loss: d, d^2/2 or exp(-d) + d - 1 with d = log p - log p_start. The expected gradient of "
        "k1 is 0, that of k2 the divergence's."),
    KEY_FLOAT_AT(
        T, "kl_discount_factor", update.kl_discount_factor, "0", "[0,1]",
        "kl_penalty_in: reward: a token also pays for the tokens behind it, discounted by this. 0: for itself."),
    KEY_FLOAT_AT(T, "entropy_coef", update.loss.entropy_coef, "0", "[0,)", "Weight of the entropy bonus."),
    KEY_CHOICE_AT(
        T, "advantage", advantage.kind, ADVANTAGE_LIST, "center",
        "Advantage: score minus the group's mean, that over the standard deviation (GRPO), minus the mean of the "
        "others (RLOO), the score itself (none), minus the batch's mean, that over its deviation (REINFORCE++), minus "
        "a running mean (ema), over the group's mean (maxrl); for who wants one good answer: weights that grow "
        "exponentially with the score (entropic), what an answer adds to the best of advantage_k (max_k); or a weight "
        "for likelihood training: exp((score - mean) "
        "/ reward_temperature), or 1 for the keep_best best over keep_threshold (best)."),
    KEY_FLOAT_AT(T, "negative_advantage_scale", advantage.negative_scale, "1", "[0,1]",
                 "Factor on advantages below zero. 1: policy gradient; 0: learns from a group's better answers alone."),
    KEY_FLOAT_AT(T, "baseline_decay", advantage.baseline_decay, "0.9", "[0,1)",
                 "advantage: ema: how much of the running mean a step keeps."),
    KEY_FLOAT_AT(T, "reward_temperature", advantage.temperature, "1", "(0,)",
                 "advantage: exponential: the score difference that weighs e times."),
    KEY_FLOAT_AT(
        T, "entropic_beta", advantage.entropic_beta, "0", "[0,)",
        "advantage: entropic: the score difference that weighs e times is 1 over this. 0: for each group so that its "
        "weights are ln 2 from equal ones."),
    KEY_INT_AT(T, "advantage_k", advantage.max_k, "4", "[2,1024]", "advantage: max_k: of how many the best counts."),
    KEY_INT_AT(T, "keep_best", advantage.keep, "3", "[1,1024]",
               "advantage: best: answers of a group that are trained on, at most."),
    KEY_FLOAT_AT(T, "keep_threshold", advantage.threshold, "0.5", "(,)", "advantage: best: scores must be over this."),
    KEY_BOOL_AT(
        T, "remove_constant_reward_groups", advantage.drop_constant, "true",
        "Leave groups whose answers all scored the same out of the update. false: they count in the normaliser, "
        "in the KL and entropy terms and in advantages that look beyond the group."),
    KEY_CHOICE_AT(T, "loss_norm", update.loss_norm, NORM_LIST, "tokens",
                  "What the summed loss is divided by: trained tokens, answers times their length, answers times "
                  "max_tokens (Dr. GRPO), answers, or nothing."),
    KEY_INT_AT(T, "num_substeps", update.num_substeps, "1", "[1,64]",
               "Optimizer steps a batch is divided into: equal shares of its groups, shuffled."),
    KEY_INT_AT(T, "update_epochs", update.update_epochs, "1", "[1,64]",
               "Passes over a batch, num_substeps optimizer steps each."),
    KEY_BOOL_AT(T, "mask_truncated", update.mask_truncated, "false",
                "Leave answers that hit max_tokens out of the loss."),
    KEY_INT_AT(T, "train_tokens", update.train_tokens, "16384", "[256,)",
               "Rows of a training micro-batch (at least one prompt and answer); memory grows with it."),
    ACTIVATION_KEY(T),
    KEY_INT_AT(T, "max_tokens", rollout.max_tokens, "4096", "[1,131072]", "Longest answer in tokens."),
    KEY_FLOAT_AT(T, "temperature", rollout.temperature, "1", "[0,10]", "Sampling temperature."),
    KEY_FLOAT_AT(T, "min_p", actor.min_p, "0", "[0,1]",
                 "Tokens less than min_p times as probable as the most probable one are not sampled. 0: off."),
    KEY_INT(T, kv_memory, "0", "[0,)",
            "Bytes of device memory for the keys and values of sampling, never exceeded; with less, fewer answers are "
            "sampled at a time, with the same result. 0: a quarter of what is free; `train` on a GPU: what its plan "
            "gives (docs/memory.md)."),
    RANK_KEYS(T),
    KEY_BOOL(T, thinking, "false", "Ask for a think block in front of the answer."),
    KEY_INT_AT(
        T, "prompt_max_tokens", actor.prompt_tokens, "0", "[0,)",
        "Longest prompt. What does not fit loses its oldest attempts, then examples, then the model's own words, "
        "then the details of the feedback. 0: what max_tokens leaves of the model's positions."),
    KEY_CHOICE(T, mode, MODE_LIST, "single_turn",
               "multi_turn: each answer's verdict goes into the next turn's prompt, max_turns times (Kevin)."),
    KEY_INT_AT(T, "max_turns", rollout.max_turns, "4", "[1,16]", "multi_turn: turns of a trajectory."),
    KEY_FLOAT_AT(T, "gamma", rollout.gamma, "0.4", "[0,1]",
                 "multi_turn: a turn's return is its score plus gamma times the next turn's return."),
    KEY_BOOL_AT(T, "early_stop_on_correct", rollout.early_stop, "false",
                "multi_turn: a correct answer ends its trajectory."),
    KEY_FLOAT_AT(T, "speedup_threshold", rollout.speedup_threshold, "0", "[0,)",
                 "early_stop_on_correct: only when it is at least this many times as fast as eager. 0: always."),
    KEY_CHOICE_AT(T, "history", actor.history, HISTORY_LIST, "all", "multi_turn: earlier attempts a prompt shows."),
    KEY_BOOL_AT(
        T, "full_feedback", actor.full_feedback, "false",
        "multi_turn: show status, tests passed, cleaned details and advice (feedback format version 2) instead of "
        "the short form."),
    KEY_CHOICE(
        T, advantage_group, GROUP_LIST, "task",
        "multi_turn: compare a turn's return with all turns of the problem's trajectories, or with the same turn "
        "of the others."),
    KEY_BOOL(T, hierarchical_rewards, "false",
             "Reasoning tokens get the advantage of the speed part, the answer's tokens that of everything else."),
    KEY_FLOAT(T, plan_weight, "1", "[0,)", "hierarchical_rewards: factor on the reasoning tokens' advantage."),
    KEY_INT(T, refill_rounds, "0", "[0,16]",
            "Times a step samples other problems in the place of groups whose answers all scored the same (DAPO)."),
    KEY_CHOICE(
        T, overlap, OVERLAP_LIST, "auto",
        "Judge finished answers while others are sampled; times are measured while the model stands aside. auto: "
        "on where the model runs on a device of its own, and with max_staleness."),
    KEY_INT(
        T, max_staleness, "0", "[0,16]",
        "Steps a batch is sampled ahead of the one that trains on it: its verdicts come while the model samples and "
        "trains, and its answers are that many updates old, which ratio_correction (truncate, unless given) "
        "corrects. 0: on-policy."),
    KEY_INT(T, max_steps, "0", "[0,)", "Steps of the run. 0: num_epochs over the problems."),
    KEY_INT(T, start_batch, "0", "[0,)", "A new run begins with this step instead of 0."),
    KEY_INT_OPT(T, resume_from_batch, "null", "[0,)",
                "Resume from the checkpoint in front of this step, dropping what came after. null: from the last."),
    KEY_INT(T, save_every, "10", "(,)", "Steps between checkpoints. 0 or less: only the final one."),
    KEY_INT(T, keep_checkpoints, "0", "[0,)", "Numbered checkpoints that are kept, the newest ones. 0: all."),
    KEY_BOOL(T, download_checkpoints, "false",
             "trainer: tinker: the adapter of each checkpoint is downloaded from the server into the run directory. "
             "false: that of the last one alone."),
    KEY_INT(T, eval_every, "0", "[0,)", "Steps between evaluations on the held-out problems. 0: never."),
    KEY_INT(T, eval_samples, "4", "[1,1024]", "Answers a problem in those evaluations."),
    KEY_BOOL(T, tensorboard_enabled, "true", "Write TensorBoard event files."),
    KEY_INT(T, tensorboard_log_histograms_every, "5", "[1,)", "Steps between histograms of rewards and speed-ups."),
    KEY_BOOL(T, tensorboard_log_per_level, "true", "Rates and rewards of each level beside those of all."),
    KEY_STRING_OPT_AT(T, "verify_hosts", pool.hosts, "null",
                      "Where answers are judged instead of in this process: local:N, local:cuda:1-7, ssh:HOST:SLOTS, "
                      "ssh:HOST:cuda, with commas in between, or nats:URL (docs/farm.md). null: here."),
    KEY_STRING_OPT_AT(
        T, "verify_class", pool.classes, "null",
        "verify_hosts: kinds of machine that may judge, such as cuda-nvidia-h200, with commas in between; "
        "each problem belongs to one of them. null: the kind that is there first."),
    KEY_FLOAT_AT(T, "verify_lease", pool.lease_s, "30", "[0.5,3600]",
                 "verify_hosts: seconds of silence after which a verifier has lost its jobs."),
    KEY_FLOAT_AT(T, "verify_deadline", pool.deadline_s, "300", "[1,86400]",
                 "verify_hosts: seconds that one answer may take a verifier in all."),
    KEY_FLOAT_AT(T, "verify_audit", pool.audit, "0.01", "[0,1]",
                 "verify_hosts: share of answers that are judged a second time on another host, to find hosts that are "
                 "broken or lie."),
    KEY_STRING_OPT_AT(T, "verify_cache", pool.store, "null",
                      "verify_hosts: folder of verdicts that runs share; a verdict counts there once two judgements "
                      "agree. null: none."),
    KEY_STRING_OPT(T, dataset_builder.source, "null",
                   "Problems: builtin, a KernelBench checkout or folder, a .jsonl, .parquet or .py file, or a data set "
                   "on the Hub (ORG/NAME or ORG/NAME@REVISION). null: KERNELBENCH_ROOT when set, else builtin."),
    KEY_CHOICE(
        T, dataset_builder.dataset_src, SRC_LIST, "any",
        "huggingface: source is a data set on the Hub, null ScalingIntelligence/KernelBench. local: it never is. "
        "any: it is when there is no file or folder of that name."),
    KEY_INT(T, dataset_builder.generated_problems, "0", "[0,1000000]",
            "Problems of the generator to add to the training set."),
    KEY_INT(
        T, dataset_builder.batch_factor, "1", "[1,4096]",
        "Built-in and generated problems get so many times their batch: at their own sizes (2 MB) a GPU's time is that "
        "of launches. Other sources stay as they are."),
    KEY_INT_OPT(T, dataset_builder.level, "null", "[0,4]",
                "Only problems of this level. 0: all. null: 1 of KernelBench, all of other sources."),
    KEY_INT_OPT(T, dataset_builder.difficulty, "null", "[1,3]",
                "Only problems of this label: 1 single operator, 2 fusion, 3 block. null: all."),
    KEY_CHOICE_AT(T, "dataset_builder.backend", verify.backend, BACKEND_LIST, "c",
                  "What answers are written in: a C function (c) or a CUDA one (cuda_native), or a Python module with "
                  "ModelNew."),
    KEY_CHOICE(T, dataset_builder.precision, PRECISION_LIST, "fp32",
               "ModelNew backends: type of the problem's floating point inputs and parameters."),
    KEY_CHOICE_AT(T, "dataset_builder.scoring", verify.scoring, SCORING_LIST, "hardened",
                  "ModelNew backends: how answers are judged; compat is KernelBench's rule (docs/formats.md)."),
    KEY_CHOICE(
        T, dataset_builder.prompt_option, PROMPT_LIST, "zero_shot",
        "Solved problems in front of the problem: none, one or up to three built-in ones, or raicl_k that the index "
        "at rag_index_path finds for it (raicl)."),
    KEY_STRING_OPT_AT(T, "dataset_builder.rag_index_path", examples.index_path, "null",
                      "Folder of the index (kernelrl build-rag-index) for prompt_option: raicl."),
    KEY_INT_AT(T, "dataset_builder.raicl_k", examples.k, "3", "[1,3]", "Examples in a prompt of prompt_option: raicl."),
    KEY_INT_AT(T, "dataset_builder.raicl_max_tokens", examples.max_tokens, "4096", "[0,)",
               "Tokens all examples of a prompt may have together; longer ones are left out. 0: any number."),
    KEY_CHOICE_OPT(T, dataset_builder.prompt_precision, PRECISION_LIST, "null",
                   "The prompt names this precision. null: dataset_builder.precision unless that is fp32."),
    KEY_BOOL(T, dataset_builder.prompt_include_hardware, "false", "The prompt describes the hardware."),
    KEY_STRING_OPT(T, dataset_builder.prompt_gpu_name, "null",
                   "prompt_include_hardware: a GPU (T4, A10G, A100, A100-80GB, L4, L40S, H100, H200, B200), or cpu: "
                   "this machine's processor. null: cpu."),
    KEY_INT(T, dataset_builder.start_problem, "0", "[0,)", "First problem id. 0: no bound."),
    KEY_INT(T, dataset_builder.end_problem, "0", "[0,)", "Last problem id. 0: no bound."),
    KEY_INT(T, dataset_builder.batch_size, "4", "[1,4096]", "Problems a step."),
    KEY_INT_AT(T, "dataset_builder.group_size", rollout.group_size, "4", "[1,1024]", "Answers a problem."),
    KEY_INT(T, dataset_builder.num_epochs, "1", "[1,1000000]", "Passes over the problems."),
    KEY_BOOL(T, dataset_builder.shuffle, "true", "Shuffle the problems of each epoch."),
    KEY_FLOAT(T, dataset_builder.test_fraction, "0.1", "[0,1)",
              "Share of the problems, the last ones, held out when the source has no split of its own."),
    KEY_INT_AT(T, "dataset_builder.num_correct_trials", verify.trials, "5", "[1,100]",
               "Correctness trials over all input families."),
    KEY_INT_AT(T, "dataset_builder.num_perf_trials", verify.timed_calls, "100", "[1,100000]",
               "ModelNew backends: timed calls of an answer."),
    KEY_BOOL(T, dataset_builder.multi_input, "true",
             "Trials on several input families (docs/formats.md). false: all on inputs as the problem makes them."),
    KEY_CHOICE_AT(
        T, "dataset_builder.staged", verify.staged, STAGING_LIST, "auto",
        "on: an answer's first failed trial is its last stage. off: all trials are made, for partial credit. auto: "
        "off with backend c or partial_correctness, else on."),
    KEY_CHOICE_AT(T, "dataset_builder.timing_method", verify.timing_method, TIMING_LIST, "interleaved",
                  "ModelNew backends: how correct answers are timed (docs/formats.md)."),
    KEY_INT_AT(T, "dataset_builder.timing_warmup", verify.warm_calls, "0", "[0,10000]",
               "ModelNew backends: calls in front of timed ones, at least. 0: the method's."),
    KEY_FLOAT_AT(T, "dataset_builder.timing_trim", verify.trim, "0", "[0,0.5]",
                 "ModelNew backends: share of the times left out at either end; 0.5 is the median. 0: the method's."),
    KEY_FLOAT_AT(
        T, "dataset_builder.timing_interval", verify.interval, "0", "[0,1]",
        "ModelNew backends: timing goes on until the 95 % interval is this share of the ratio. 0: the method's."),
    KEY_FLOAT_AT(T, "dataset_builder.timing_budget_s", verify.timing_budget_s, "20", "(0,3600]",
                 "ModelNew backends: seconds that timing one answer may take."),
    KEY_BOOL_AT(T, "dataset_builder.measure_performance", verify.measure, "true",
                "Time correct kernels against PyTorch."),
    KEY_CHOICE_OPT(T, dataset_builder.reward_preset, PRESET_LIST, "null",
                   "Weights by name, where the configuration sets none (docs/configuration.md). null: nothing."),
    KEY_FLOAT_AT(T, "dataset_builder.reward_format_weight", reward.format, "0.1", "[0,)",
                 "Credit for the right answer format."),
    KEY_FLOAT_AT(T, "dataset_builder.reward_compile_weight", reward.compile, "0.2", "[0,)", "Credit for compiling."),
    KEY_FLOAT_AT(T, "dataset_builder.reward_correctness_weight", reward.correct, "1", "[0,)",
                 "Credit for correct results."),
    KEY_FLOAT_AT(T, "dataset_builder.reward_speed_weight", reward.speed, "0", "[0,)",
                 "Weight of the speed reward of correct kernels."),
    KEY_FLOAT_AT(T, "dataset_builder.reward_length_weight", reward.length, "0", "[0,)",
                 "Credit for short kernels that are correct: 1 up to length_min characters, 0 from length_max."),
    KEY_FLOAT_AT(
        T, "dataset_builder.reward_thinking_weight", reward.think, "0", "[0,)",
        "Credit for a think block: 1 up to thinking_soft_max characters, thinking_floor from thinking_hard_max, "
        "thinking_no_think without one."),
    KEY_INT_AT(T, "dataset_builder.length_min", reward.length_min, "500", "[0,)",
               "Characters of a kernel up to which it is short."),
    KEY_INT_AT(T, "dataset_builder.length_max", reward.length_max, "8000", "[1,)", "Characters from which it is long."),
    KEY_FLOAT_AT(T, "dataset_builder.thinking_no_think", reward.think_none, "0.5", "[0,1]",
                 "Think part of an answer without a think block."),
    KEY_INT_AT(T, "dataset_builder.thinking_soft_max", reward.think_soft_max, "2000", "[0,)",
               "Characters of a thought that are not too many."),
    KEY_INT_AT(T, "dataset_builder.thinking_hard_max", reward.think_hard_max, "4000", "[1,)",
               "Characters from which thinking_floor is paid."),
    KEY_FLOAT_AT(T, "dataset_builder.thinking_floor", reward.think_floor, "0.7", "[0,1]",
                 "Think part of a very long thought."),
    KEY_CHOICE_AT(T, "dataset_builder.speed_reward", reward.shape, SPEED_LIST, "ratio",
                  "Speed reward: eager time over kernel time, that minus 1 (at least 0), or log2(1 + ratio)."),
    KEY_FLOAT_AT(T, "dataset_builder.speed_max_reward", reward.speed_cap, "3", "(0,)",
                 "Upper limit of the speed reward."),
    KEY_BOOL_AT(T, "dataset_builder.check_for_excessive_speedup", reward.check_excessive, "false",
                "A correct kernel faster than excessive_speedup_threshold gets no speed reward, and is counted."),
    KEY_FLOAT_AT(T, "dataset_builder.excessive_speedup_threshold", reward.excessive, "10", "(0,)",
                 "Speed-up that is not believed."),
    KEY_BOOL_AT(T, "dataset_builder.partial_correctness", reward.partial_correct, "false",
                "Credit for the share of trials passed."),
    KEY_BOOL_AT(T, "dataset_builder.sparse_rewards", reward.sparse, "false",
                "Only correct answers score: 1 plus their weighted speed, length and think parts."),
    KEY_FLOAT_AT(T, "dataset_builder.cheating_penalty", reward.cheating_penalty, "0", "[0,)",
                 "Score of a cheat, below zero by this."),
    KEY_FLOAT_AT(T, "dataset_builder.format_penalty", reward.format_penalty, "0", "[0,)",
                 "Taken off an answer without a complete <KERNEL> block."),
    KEY_INT_AT(T, "dataset_builder.overlong_buffer_tokens", reward.overlong_buffer, "0", "[0,)",
               "Tokens below max_tokens over which a penalty grows from 0 to overlong_penalty (DAPO). 0: none."),
    KEY_FLOAT_AT(T, "dataset_builder.overlong_penalty", reward.overlong_penalty, "1", "[0,)",
                 "Penalty of an answer of max_tokens."),
    KEY_STRING_OPT_AT(T, "sandbox.python", verify.python, "null",
                      "Python that has torch. null: KERNELRL_PYTHON, ./.venv, PATH."),
    KEY_STRING_OPT_AT(T, "sandbox.device", verify.device, "null",
                      "Where answers run: cpu or cuda:N. null: what the backend needs."),
    KEY_STRING_OPT_AT(T, "sandbox.cache_dir", verify.cache_dir, "null",
                      "Keeps compiled kernels between runs. null: no."),
    KEY_FLOAT_AT(T, "sandbox.compile_timeout_s", verify.compile_timeout_s, "20", "(0,3600]",
                 "Deadline of a compilation."),
    KEY_FLOAT_AT(T, "sandbox.run_timeout_s", verify.run_timeout_s, "10", "(0,3600]", "Deadline of a kernel's run."),
    KEY_INT(T, sandbox.memory_mib, "2048", "[64,1048576]", "Memory a kernel may use over its arguments."),
    KEY_BOOL_AT(T, "sandbox.allow_weaker", verify.allow_weaker, "false",
                "Go on without bubblewrap when it does not work here. Unsafe."),
    KEY_BOOL(T, curriculum.enabled, "false",
             "Begin with the lowest level and mix in the next one as the success rate rises (docs/configuration.md)."),
    KEY_BOOL(T, curriculum.by_difficulty, "false", "Go by difficulty labels instead of levels."),
    KEY_FLOAT(T, curriculum.start_share, "0.1", "[0,1]", "Share of a batch that the next level begins with."),
    KEY_FLOAT(T, curriculum.end_share, "0.5", "[0,1]", "Share at which it may become one of the learned levels."),
    KEY_FLOAT(T, curriculum.increment, "0.05", "(0,1]", "What a step adds to the share while the trigger is met."),
    KEY_FLOAT(T, curriculum.trigger, "0.4", "[0,1]", "Mean correct rate over the window that it takes."),
    KEY_INT(T, curriculum.window, "5", "[1,64]", "Steps whose correct rates are looked at."),
    KEY_INT(
        T, roles.verifier_samples, "0", "[0,64]",
        "Predictions of its verdict that the model makes of an answer, and learns from (docs/training.md). 0: none."),
    KEY_INT(T, roles.verifier_answers, "2", "[1,1024]",
            "Answers of a problem that verdicts are predicted of, working and failing ones by turns."),
    KEY_FLOAT(T, roles.verifier_weight, "1", "[0,)", "Factor on the predictions' advantages."),
    KEY_INT(T, roles.corrector_samples, "0", "[0,64]",
            "Repairs of a failed answer that the model writes, and learns from by what they gain. 0: none."),
    KEY_INT(T, roles.corrector_answers, "1", "[1,1024]", "Failed answers of a problem that are repaired."),
    KEY_FLOAT(T, roles.corrector_weight, "1", "[0,)", "Factor on the repairs' advantages."),
    KEY_FLOAT(T, roles.judge_reward, "0", "[0,)",
              "Weight, in an answer's score, of the comparisons it wins against its neighbours, the model itself being "
              "the judge; right answers meet right ones, wrong meet wrong. 0: nobody compares."),
    KEY_INT(T, roles.judge_samples, "1", "[1,64]", "Comparisons of two answers, in each order."),
    KEY_FLOAT(
        T, roles.judge_weight, "0", "[0,)",
        "Factor on the advantages of the judge's comparisons, which earn 1 where they name the answer that scored "
        "more. 0: the judge does not learn."),
    KEY_INT(
        T, roles.proposals, "0", "[0,64]",
        "Problems that the model proposes in a step, of the generator's operators; those that are problems take the "
        "place of as many of the batch (self-play). 0: none."),
    KEY_FLOAT(T, roles.proposer_weight, "1", "[0,)", "Factor on the proposals' advantages."),
    KEY_FLOAT(T, roles.proposer_trigger, "0.5", "[0,1]",
              "Proposals get one operator longer when this share of the answers to them was right, on average ..."),
    KEY_INT(T, roles.proposer_window, "4", "[1,64]", "... over so many steps of that length."),
    KEY_INT(T, roles.answer_tokens, "64", "[1,131072]",
            "Longest prediction, comparison and proposal in tokens, a think block included."),
    KEY_FLOAT(T, schedule.speed_from, "0", "[0,1]",
              "Share of the run in which speed is not rewarded; from there reward_speed_weight grows ..."),
    KEY_FLOAT(T, schedule.speed_until, "0", "[0,1]", "... to its full value at this share."),
    KEY_FLOAT(T, schedule.partial_until, "1", "[0,1]",
              "partial_correctness: only up to this share of the run; from there all or nothing."),
    KEY_FLOAT_OPT(T, schedule.plan_weight_end, "null", "[0,)",
                  "hierarchical_rewards: plan_weight falls to this along half a cosine. null: it stays."),
};

/* What help shows together: the first keys of each run of rows above. */
static const struct config_topic train_topics[] = {
    {"algorithm", "Method"},
    {"model_name", "Model"},
    {"trainer", "Another server"},
    {"load_checkpoint_path", "Model"},
    {"log_path", "Run directory, length and evaluation"},
    {"device", "Device and memory"},
    {"lora_rank", "Model"},
    {"learning_rate", "Optimizer"},
    {"loss_fn", "Loss"},
    {"advantage", "Advantage"},
    {"loss_norm", "Loss"},
    {"num_substeps", "Optimizer"},
    {"mask_truncated", "Loss"},
    {"train_tokens", "Device and memory"},
    {"max_tokens", "Sampling"},
    {"kv_memory", "Device and memory"},
    {"thinking", "Prompts"},
    {"mode", "Turns"},
    {"hierarchical_rewards", "Advantage"},
    {"refill_rounds", "Sampling"},
    {"max_steps", "Run directory, length and evaluation"},
    {"verify_hosts", "Verdicts from other hosts"},
    {"dataset_builder.source", "Problems"},
    {"dataset_builder.backend", "Answers"},
    {"dataset_builder.prompt_option", "Prompts"},
    {"dataset_builder.start_problem", "Problems"},
    {"dataset_builder.batch_size", "Batches"},
    {"dataset_builder.num_correct_trials", "Verdicts and timing"},
    {"dataset_builder.reward_preset", "Rewards"},
};
const struct config_schema train_schema = {.key = train_keys,
                                           .count = ARRAY_LEN(train_keys),
                                           .values_bytes = sizeof(T),
                                           .alias = train_aliases,
                                           .alias_count = TRAIN_ALIASES,
                                           .topic = train_topics,
                                           .topic_count = ARRAY_LEN(train_topics)};

void train_schema_with(const struct config_key *keys, size_t n, size_t offset, size_t values_bytes,
                       struct config_key *all, size_t most, struct config_schema *out) {
    ASSERT(n + train_schema.count <= most);
    memcpy(all, keys, n * sizeof *all);
    memcpy(all + n, train_keys, train_schema.count * sizeof *all);
    for (size_t i = n; i < n + train_schema.count; i++) all[i].offset += offset;
    *out = train_schema;
    out->key = all;
    out->count = n + train_schema.count;
    out->values_bytes = values_bytes;
}

int train_options_turns(const T *o) { return o->mode == MODE_MULTI_TURN ? o->rollout.max_turns : 1; }
#undef T

#define T struct sft_options
static const struct config_key sft_keys[] = {
    KEY_STRING_OPT(T, model_name, "null",
                   "Folder of the model to train, or its name on the Hub; null starts from init_config."),
    REVISION_KEY(T),
    KEY_STRING_OPT(T, init_config, "null", "config.json of a model to initialise at random."),
    KEY_STRING_OPT(T, tokenizer, "null", "Folder with tokenizer files, or a name on the Hub, for init_config."),
    KEY_STRING(T, data, "", "Rows {prompt, completion}, .jsonl or .jsonl.zst (docs/formats.md)."),
    KEY_STRING_OPT(T, valid, "null", "Rows to report the loss on."),
    KEY_STRING(T, output, "runs/sft", "Where the model (or adapter) is written. An existing one is resumed."),
    KEY_CHOICE(T, save_dtype, SAVED_LIST, "bf16", "Type of the final weights; while training they are kept in f32."),
    KEY_STRING_OPT(T, renderer_name, "null", "Chat template of rows without one. null: the model's own."),
    KEY_INT(T, lora_rank, "0", "[0,1024]", "Rank of the LoRA adapter; 0 trains all parameters."),
    EXPERT_KEYS(T),
    KEY_FLOAT(T, lora_alpha, "32", "(0,)", "LoRA scale numerator."),
    KEY_FLOAT_AT(T, "learning_rate", update.adam.learning_rate, "1e-4", "(0,1]", "AdamW step size after warm-up."),
    KEY_FLOAT(T, min_lr_ratio, "0.1", "[0,1]", "The cosine schedule ends at this share of learning_rate."),
    KEY_INT(T, warmup_steps, "20", "[0,)", "Steps over which the learning rate rises from 0."),
    KEY_FLOAT_AT(T, "weight_decay", update.adam.weight_decay, "0.01", "[0,1]", "Decoupled weight decay of matrices."),
    KEY_FLOAT_AT(T, "max_grad_norm", update.max_grad_norm, "1", "[0,)", "Global gradient norm limit. 0: none."),
    ADAM_KEYS(T),
    KEY_FLOAT(T, prompt_loss_weight, "0", "[0,1]",
              "Weight of the prompt's own tokens in the loss. 0 masks the prompt."),
    KEY_INT(T, batch_tokens, "16384", "[64,1073741824]", "Rows of a step, prompts included (shared ones once)."),
    KEY_INT_AT(T, "train_tokens", update.train_tokens, "16384", "[64,)",
               "Rows of a micro-batch; memory grows with it."),
    ACTIVATION_KEY(T),
    KEY_INT(T, max_length, "4096", "[16,)",
            "Longer rows, and those past the model's positions, are left out (and counted)."),
    KEY_INT(T, num_epochs, "1", "[1,1000000]", "Passes over the rows."),
    KEY_INT(T, max_steps, "0", "[0,)", "Steps; 0: num_epochs."),
    KEY_FLOAT(T, stop_after_minutes, "0", "[0,)", "Save and stop after this time, to be resumed. 0: never."),
    KEY_INT(T, save_every, "200", "[1,)", "Steps between checkpoints."),
    KEY_INT(T, log_every, "10", "[1,)", "Steps between progress lines."),
    KEY_INT(T, seed, "0", "[0,)", "Seed of initialisation and data order."),
    DEVICE_KEY(T),
    DTYPE_KEY(T),
    BASE_DTYPE_KEY(T),
    KEY_INT(T, threads, "0", "[0,256]", "Threads. 0: all CPUs."),
    RANK_KEYS(T),
};
const struct config_schema sft_schema = {.key = sft_keys, .count = ARRAY_LEN(sft_keys), .values_bytes = sizeof(T)};

enum status sft_options_check(const struct config *c, const T *o, struct err *e) {
    TRY(base_dtype_check(c, o->base_dtype, o->lora_rank, e));
    TRY(expert_keys_check(c, o->lora_rank, o->lora_expert_rank, o->lora_expert_files, e));
    return check_device(c, o->device, e);
}
#undef T
