/* cli: the command line. One file a command (cmd_NAME.c). May include everything; nothing includes it. */
#ifndef KERNELRL_CLI_H
#define KERNELRL_CLI_H

#include "base/args.h"

struct config_schema;

/* X(function, name, one-line help). A command gets argv without the program name (argv[0] is the command) and returns
 * the exit code: 0 success, 1 failure, 2 usage. */
#define COMMAND_LIST(X)                                                                              \
    X(cmd_demo, "demo", "train the embedded model and show it learning")                             \
    X(cmd_train, "train", "reinforcement learning")                                                  \
    X(cmd_runs, "runs", "list, watch, stop, resume and compare runs")                                \
    X(cmd_sft, "sft", "supervised fine-tuning")                                                      \
    X(cmd_eval, "eval", "how good a model is on held-out problems")                                  \
    X(cmd_generate, "generate", "kernels for problems, in KernelBench's layout")                     \
    X(cmd_optimize, "optimize", "a faster version of a module, found by search and proven")          \
    X(cmd_corpus, "corpus", "verified answers to supervised rows")                                   \
    X(cmd_selfcheck, "selfcheck", "check sampler against trainer, and both against golden ones")     \
    X(cmd_sample, "sample", "sample answers to a prompt")                                            \
    X(cmd_serve, "serve", "models for clients of the OpenAI API")                                    \
    X(cmd_problems, "problems", "list, show and generate problems")                                  \
    X(cmd_tokenize, "tokenize", "text to token ids and back")                                        \
    X(cmd_build_rag_index, "build-rag-index", "index solved problems, for examples in prompts")      \
    X(cmd_query_rag_index, "query-rag-index", "what an index finds for a problem")                   \
    X(cmd_verify, "verify", "judge one kernel against its PyTorch problem")                          \
    X(cmd_verify_worker, "verify-worker", "judge answers for others: the other end of verify_hosts") \
    X(cmd_verifiers, "verifiers", "hosts that judge behind a queue")                                 \
    X(cmd_score, "score", "the reward that a configuration gives to verdicts")                       \
    X(cmd_plan, "plan", "what training would take of a GPU's memory")                                \
    X(cmd_bench, "bench", "speed of the engine, beside what the machine could do")                   \
    X(cmd_doctor, "doctor", "what this machine can do, and what is missing")                         \
    X(cmd_help, "help", "a command's options, or what a key means")                                  \
    X(cmd_man, "man", "the manual page")                                                             \
    X(cmd_completion, "completion", "completion for bash")                                           \
    X(cmd_version, "version", "version, commit, processor, CUDA")

extern const struct config_schema corpus_schema; /* the keys of corpus */

#define X(fn, name, help) int fn(int argc, char **argv);
COMMAND_LIST(X)
#undef X

/* X(command, table): commands whose flags stand in a table. Help, the manual page and the completion read it. */
#define COMMAND_TABLES(X)                         \
    X("runs", runs_command)                       \
    X("selfcheck", selfcheck_command)             \
    X("sample", sample_command)                   \
    X("serve", serve_command)                     \
    X("problems", problems_command)               \
    X("tokenize", tokenize_command)               \
    X("build-rag-index", build_rag_index_command) \
    X("query-rag-index", query_rag_index_command) \
    X("verify", verify_command)                   \
    X("verifiers", verifiers_command)             \
    X("verify-worker", verify_worker_command)     \
    X("score", score_command)                     \
    X("plan", plan_command)                       \
    X("bench", bench_command)                     \
    X("doctor", doctor_command)

#define X(name, table) extern const struct args_command table;
COMMAND_TABLES(X)
#undef X

struct worker_judge;
/* `verify-worker` with another judge than the verifier: for programs of the tests, which are no part of this one. */
int verify_worker_with(int argc, char **argv, const struct worker_judge *judge);

/* Prints the usage line to stderr and returns 2. */
int cli_usage(const char *usage);
/* Whether the command's only argument is --help or -h. */
bool cli_wants_help(int argc, char **argv);
/* Prints the usage and what the keys mean; returns the exit code. */
int cli_key_help(const char *usage, const struct config_schema *schema);

#endif
