#include "rl/options.h"

#include "tensor/backend.h"

#define ADAM_KEYS(S)                                                             \
    KEY_FLOAT(S, adam.beta1, "0.9", "[0,1)", "AdamW's first decay rate."),       \
        KEY_FLOAT(S, adam.beta2, "0.95", "[0,1)", "AdamW's second decay rate."), \
        KEY_FLOAT(S, adam.eps, "1e-8", "(0,)", "AdamW's epsilon, outside the square root.")

#define DEVICE_KEY(S)            \
    KEY_STRING(S, device, "cpu", \
               "Where the model runs: cpu, cuda, or cuda:N for the N-th GPU, counted from 0 (needs `make cuda`).")

#define ACTIVATION_KEY(S)                                                                                        \
    KEY_INT(                                                                                                     \
        S, activation_memory, "0", "[0,)",                                                                       \
        "Bytes of device memory for a micro-batch's activations, never exceeded; what does not fit is computed " \
        "again in the backward pass, with the same result. 0: as many as the weights take and 1 GB, at least 2 GB.")

#define REVISION_KEY(S) KEY_STRING(S, model_revision, "main", "Branch, tag or commit of a model_name on the Hub.")

const char *const dtype_names[] = {"auto", "f32", "bf16"};
#define DTYPE_KEY(S)                                                                                                   \
    KEY_ENUM(S, dtype, "auto", "auto|f32|bf16",                                                                        \
             "Type the products with the model's matrices compute in; sums and LoRA are f32 in both. auto: f32 below " \
             "100 million parameters, bf16 from there on where the device has it. With LoRA a bf16 model takes two "   \
             "bytes a parameter.")

static enum status check_device(const struct config *c, const char *device, struct err *e) {
    return backend_device_valid(device)
               ? ST_OK
               : config_reject(c, "device", e, "expected cpu, cuda or cuda:N, got \"%s\"", device);
}

#define T struct train_options
static const struct config_key train_keys[] = {
    KEY_STRING(T, model_name, "models/tiny",
               "Folder of the model, in Hugging Face layout, looked up in the working directory, then in the "
               "installation; or its name on the Hub, such as Qwen/Qwen2.5-Coder-0.5B (docs/models.md)."),
    REVISION_KEY(T),
    KEY_STRING_OPT(T, load_checkpoint_path, "null",
                   "Weights to start from instead: a PEFT adapter or a full model, a folder or a name on the Hub. "
                   "The optimizer starts fresh."),
    KEY_STRING_OPT(T, renderer_name, "null",
                   "Chat template: qwen2.5, qwen3, qwen3_disable_thinking, qwen3_instruct. "
                   "null takes the model's own."),
    KEY_STRING(T, log_path, "runs/kernel_rl", "Run directory. An existing one is resumed."),
    KEY_INT(T, seed, "0", "[0,)", "Seed of data order, sampling and LoRA initialisation."),
    DEVICE_KEY(T),
    DTYPE_KEY(T),
    KEY_INT(T, threads, "0", "[0,256]", "Threads of the engine, and of kernels and PyTorch alike. 0: all CPUs."),
    KEY_INT(T, lora_rank, "32", "[0,1024]", "Rank of the LoRA adapter; 0 trains all parameters."),
    KEY_FLOAT(T, lora_alpha, "32", "(0,)", "LoRA scale numerator; updates are scaled by alpha / rank."),
    KEY_FLOAT(T, learning_rate, "1e-4", "(0,1]", "AdamW step size after warm-up."),
    KEY_INT(T, warmup_steps, "0", "[0,)", "Optimizer steps over which the learning rate rises from 0."),
    KEY_FLOAT(T, weight_decay, "0", "[0,1]", "Decoupled weight decay of matrices."),
    KEY_FLOAT(T, max_grad_norm, "1", "[0,)", "Gradients of a larger global L2 norm are scaled down to it. 0: never."),
    ADAM_KEYS(T),
    KEY_ENUM(T, loss_fn, "importance_sampling", "reinforce|importance_sampling|ppo|cispo", "Policy-gradient loss."),
    KEY_FLOAT(T, clip_low, "0.2", "[0,1]", "ppo: the ratio is clipped below 1 - clip_low."),
    KEY_FLOAT(T, clip_high, "0.2", "[0,)", "ppo, cispo: the ratio is clipped above 1 + clip_high."),
    KEY_ENUM(
        T, advantage, "center", "center|std|leave_one_out",
        "Advantage within a group: score minus mean, that over the standard deviation (GRPO), or minus the mean of "
        "the others (RLOO)."),
    KEY_FLOAT(T, negative_advantage_scale, "1", "[0,1]",
              "Factor on advantages below zero. 1: policy gradient; 0: learns from a group's better answers alone."),
    KEY_ENUM(T, loss_norm, "tokens", "tokens|sequences|constant",
             "What the summed loss is divided by: trained tokens, sequences times their length, or sequences times "
             "max_tokens (Dr. GRPO)."),
    KEY_INT(T, num_substeps, "1", "[1,64]", "Optimizer steps a batch is divided into."),
    KEY_BOOL(T, mask_truncated, "false", "Leave answers that hit max_tokens out of the loss."),
    KEY_INT(T, train_tokens, "16384", "[256,)",
            "Rows of a training micro-batch (at least one prompt and answer); memory grows with it."),
    ACTIVATION_KEY(T),
    KEY_INT(T, max_tokens, "4096", "[1,131072]", "Longest answer in tokens."),
    KEY_FLOAT(T, temperature, "1", "[0,10]", "Sampling temperature."),
    KEY_FLOAT(T, min_p, "0", "[0,1]",
              "Tokens less than min_p times as probable as the most probable one are not sampled. 0: off."),
    KEY_INT(T, kv_memory, "0", "[0,)",
            "Bytes of device memory for the keys and values of sampling, never exceeded; with less, fewer answers are "
            "sampled at a time, with the same result. 0: a quarter of what is free."),
    KEY_BOOL(T, thinking, "false", "Ask for a think block in front of the answer."),
    KEY_INT(T, max_steps, "0", "[0,)", "Steps of the run. 0: num_epochs over the problems."),
    KEY_INT(T, save_every, "10", "[0,)", "Steps between checkpoints. 0: only the final one."),
    KEY_INT(T, eval_every, "0", "[0,)", "Steps between evaluations on the held-out problems. 0: never."),
    KEY_INT(T, eval_samples, "4", "[1,1024]", "Answers a problem in those evaluations."),
    KEY_BOOL(T, tensorboard_enabled, "true", "Write TensorBoard event files."),
    KEY_STRING_OPT(T, dataset_builder.source, "null",
                   "Problems: builtin, a KernelBench checkout or folder, a .jsonl, .parquet or .py file, or a data set "
                   "on the Hub (ORG/NAME or ORG/NAME@REVISION). null: KERNELBENCH_ROOT when set, else builtin."),
    KEY_ENUM(T, dataset_builder.dataset_src, "any", "any|huggingface|local",
             "huggingface: source is a data set on the Hub, null ScalingIntelligence/KernelBench. local: it never is. "
             "any: it is when there is no file or folder of that name."),
    KEY_INT(T, dataset_builder.generated_problems, "0", "[0,1000000]",
            "Problems of the generator to add to the training set."),
    KEY_INT(T, dataset_builder.level, "0", "[0,4]", "Only problems of this level. 0: all."),
    KEY_INT(T, dataset_builder.start_problem, "0", "[0,)", "First problem id. 0: no bound."),
    KEY_INT(T, dataset_builder.end_problem, "0", "[0,)", "Last problem id. 0: no bound."),
    KEY_INT(T, dataset_builder.batch_size, "4", "[1,4096]", "Problems a step."),
    KEY_INT(T, dataset_builder.group_size, "4", "[1,1024]", "Answers a problem."),
    KEY_INT(T, dataset_builder.num_epochs, "1", "[1,1000000]", "Passes over the problems."),
    KEY_BOOL(T, dataset_builder.shuffle, "true", "Shuffle the problems of each epoch."),
    KEY_FLOAT(T, dataset_builder.test_fraction, "0.1", "[0,1)",
              "Share of the problems, the last ones, held out when the source has no split of its own."),
    KEY_INT(T, dataset_builder.num_correct_trials, "5", "[1,100]", "Correctness trials over all input families."),
    KEY_BOOL(T, dataset_builder.measure_performance, "true", "Time correct kernels against PyTorch."),
    KEY_FLOAT(T, dataset_builder.reward_format_weight, "0.1", "[0,)", "Credit for the right answer format."),
    KEY_FLOAT(T, dataset_builder.reward_compile_weight, "0.2", "[0,)", "Credit for compiling."),
    KEY_FLOAT(T, dataset_builder.reward_correctness_weight, "1", "[0,)", "Credit for correct results."),
    KEY_FLOAT(T, dataset_builder.reward_speed_weight, "0", "[0,)", "Weight of the speed reward of correct kernels."),
    KEY_FLOAT(T, dataset_builder.reward_thinking_weight, "0", "[0,)", "Credit for a think block."),
    KEY_ENUM(T, dataset_builder.speed_reward, "ratio", "ratio|excess|log",
             "Speed reward: eager time over kernel time, that minus 1 (at least 0), or log2(1 + ratio)."),
    KEY_FLOAT(T, dataset_builder.speed_max_reward, "3", "(0,)", "Upper limit of the speed reward."),
    KEY_BOOL(T, dataset_builder.partial_correctness, "false", "Credit for the share of trials passed."),
    KEY_ENUM(T, dataset_builder.prompt_option, "zero_shot", "zero_shot|raicl",
             "zero_shot: the prompt holds the problem alone. raicl: in front of it stand raicl_k solved problems that "
             "the index at rag_index_path finds for it."),
    KEY_STRING_OPT(T, dataset_builder.rag_index_path, "null",
                   "Folder of the index (kernelrl build-rag-index) for prompt_option: raicl."),
    KEY_INT(T, dataset_builder.raicl_k, "3", "[1,3]", "Examples in a prompt of prompt_option: raicl."),
    KEY_INT(T, dataset_builder.raicl_max_tokens, "4096", "[0,)",
            "Tokens all examples of a prompt may have together; longer ones are left out. 0: any number."),
    KEY_STRING_OPT(T, sandbox.python, "null", "Python that has torch. null: KERNELRL_PYTHON, ./.venv, PATH."),
    KEY_STRING_OPT(T, sandbox.cache_dir, "null", "Keeps compiled kernels between runs. null: no."),
    KEY_FLOAT(T, sandbox.compile_timeout_s, "20", "(0,3600]", "Deadline of a compilation."),
    KEY_FLOAT(T, sandbox.run_timeout_s, "10", "(0,3600]", "Deadline of a kernel's run."),
    KEY_INT(T, sandbox.memory_mib, "2048", "[64,1048576]", "Memory a kernel may use over its arguments."),
    KEY_BOOL(T, sandbox.allow_weaker, "false", "Go on without bubblewrap when it does not work here. Unsafe."),
};
const struct config_schema train_schema = {train_keys, ARRAY_LEN(train_keys), sizeof(T)};

enum status train_options_check(const struct config *c, const T *o, struct err *e) {
    TRY(check_device(c, o->device, e));
    if (o->dataset_builder.end_problem && o->dataset_builder.end_problem < o->dataset_builder.start_problem) {
        (void)config_reject(c, "dataset_builder.end_problem", e, "expected at least start_problem (%lld)",
                            (long long)o->dataset_builder.start_problem);
        return e->code;
    }
    if (o->dataset_builder.reward_speed_weight > 0 && !o->dataset_builder.measure_performance) {
        (void)config_reject(c, "dataset_builder.reward_speed_weight", e, "needs measure_performance: true");
        return e->code;
    }
    const char *index = o->dataset_builder.rag_index_path;
    if (o->dataset_builder.prompt_option == PROMPT_RAICL && (!index || !*index))
        return config_reject(c, "dataset_builder.rag_index_path", e,
                             "prompt_option: raicl needs the folder of an index (kernelrl build-rag-index)");
    return ST_OK;
}
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
    KEY_ENUM(T, save_dtype, "bf16", "bf16|f32", "Type of the final weights; while training they are kept in f32."),
    KEY_STRING_OPT(T, renderer_name, "null", "Chat template of rows without one. null: the model's own."),
    KEY_INT(T, lora_rank, "0", "[0,1024]", "Rank of the LoRA adapter; 0 trains all parameters."),
    KEY_FLOAT(T, lora_alpha, "32", "(0,)", "LoRA scale numerator."),
    KEY_FLOAT(T, learning_rate, "1e-4", "(0,1]", "AdamW step size after warm-up."),
    KEY_FLOAT(T, min_lr_ratio, "0.1", "[0,1]", "The cosine schedule ends at this share of learning_rate."),
    KEY_INT(T, warmup_steps, "20", "[0,)", "Steps over which the learning rate rises from 0."),
    KEY_FLOAT(T, weight_decay, "0.01", "[0,1]", "Decoupled weight decay of matrices."),
    KEY_FLOAT(T, max_grad_norm, "1", "[0,)", "Global gradient norm limit. 0: none."),
    ADAM_KEYS(T),
    KEY_FLOAT(T, prompt_loss_weight, "0", "[0,1]",
              "Weight of the prompt's own tokens in the loss. 0 masks the prompt."),
    KEY_INT(T, batch_tokens, "16384", "[64,1073741824]", "Rows of a step, prompts included (shared ones once)."),
    KEY_INT(T, train_tokens, "16384", "[64,)", "Rows of a micro-batch; memory grows with it."),
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
    KEY_INT(T, threads, "0", "[0,256]", "Threads. 0: all CPUs."),
};
const struct config_schema sft_schema = {sft_keys, ARRAY_LEN(sft_keys), sizeof(T)};

enum status sft_options_check(const struct config *c, const T *o, struct err *e) {
    return check_device(c, o->device, e);
}
#undef T
