/* bench: what the parts of `kernelrl bench` share: the options, the limits of the machine, series of times, and how a
 * measurement is written. cmd_bench.c is the command, limits.c measures the machine, model.c the model,
 * rl_step.c a step of reinforcement learning.
 *
 * The limit of a step is the time no program can beat here: the sum over its operations of the larger of bytes over the
 * memory's bandwidth and floating point operations over the rate of the best matrix product, both measured in the same
 * run. Bytes are those that must come from memory: weights once a step, and cached keys and values. Operations are the
 * products with weights and those of attention, two for a multiplication and addition. */
#ifndef KERNELRL_BENCH_BENCH_H
#define KERNELRL_BENCH_BENCH_H

#include "base/args.h"
#include "model/model.h"
#include "rl/options/memory_plan.h"
#include "tensor/backend.h"

enum { BENCH_LIST = 16 }; /* values an option takes at most */
enum bench_what {
    BENCH_DECODE = 1,
    BENCH_PREFILL = 2,
    BENCH_TRAIN_LORA = 4,
    BENCH_TRAIN_FULL = 8,
    BENCH_MATMUL = 16,
    BENCH_RL = 32
};

struct bench_options {
    int what;                                /* bits of enum bench_what */
    const char *arch;                        /* shape by name, or NULL */
    const char *model;                       /* folder, or NULL */
    bool random;                             /* of that folder only the shape */
    const char *device, *dtype, *base_dtype; /* base_dtype: of what is not trained */
    int batch[BENCH_LIST], n_batch; /* sequences at a time, or rows of a product; 0 of them: each measurement's own */
    int64_t context_begin, context_end;       /* keys in front of the first and behind the last decode step */
    int64_t tokens;                           /* of a sequence in prefill and training */
    int64_t repeat;                           /* 0: each measurement's own */
    int threads, lora_rank, lora_expert_rank; /* of a mixture, as the key of that name */
    int answers;                              /* to a prompt, of new_tokens each */
    int64_t new_tokens;
    bool full, planned;   /* rlstep: trains all parameters; in the memory that `train` would plan */
    bool sample_lora;     /* decode and prefill with an adapter of lora_rank */
    int adapters;         /* that many of them, which the sequences share evenly; 0: one */
    bool fast;            /* numerics: fast, see tensor/backend.h */
    int64_t train_tokens; /* rows of a micro-batch, at least a sequence; 0: not said */
    int64_t activation_memory;
};

/* The fastest seen while one line was measured; zeros at first. */
struct bench_limits {
    double bytes_s, flop_s;
};

struct bench {
    const struct bench_options *o;
    struct pool *pool;
    struct backend *be;
    struct bench_limits limits;
    double wall_s, cpu_s;   /* clocks when the measurement began */
    const char *name;       /* of the model */
    struct train_plan plan; /* where o->planned */
};

/* ---- limits.c ---- */

/* Measures bandwidth and the products of a model (forward, 2048 rows, in type dt) and raises b->limits where they were
 * faster than it says. About a second. */
enum status bench_limits_raise(struct bench *b, const struct model_config *c, enum dtype dt, struct err *e) MUST_USE;
/* n random floats between -0.5 and 0.5 in device memory, never zeros; released by be->mem_free. */
enum status bench_random(struct backend *be, int64_t n, uint64_t stream, float **out, struct err *e) MUST_USE;
/* A random weight [N,K] of type dt, ready for products; *master (its float32 values, or NULL) is to be released by
 * be->mem_free after be->weight_free. */
enum status bench_weight(struct backend *be, int64_t N, int64_t K, enum dtype dt, struct weight *w, float **master,
                         struct err *e) MUST_USE;
/* The limits of one operation, in seconds. */
static inline double bench_limit_s(const struct bench_limits *l, double bytes, double flop) {
    const double memory = bytes / l->bytes_s, compute = flop / l->flop_s;
    return memory > compute ? memory : compute;
}

/* Seconds of equal steps. */
struct bench_times {
    double median, low, high; /* and the fastest and slowest */
    double spread;            /* distance of the quartiles over the median */
};
struct bench_times bench_times(double *t, int n); /* n >= 1; sorts t */

/* The products of a model one by one, gradients from 64 rows on. Writes its lines with bench_line. */
enum status bench_matmul(struct bench *b, const struct model_config *c, enum dtype dt, struct err *e) MUST_USE;

/* ---- model.c: each writes its lines with bench_line ---- */

enum status bench_decode(struct bench *b, struct model *m, struct err *e) MUST_USE;
enum status bench_prefill(struct bench *b, struct model *m, struct err *e) MUST_USE;
/* m's own adapter anew, of o->lora_rank and o->lora_expert_rank. ST_INVALID: that is not 0 without experts. */
enum status bench_lora(const struct bench *b, struct model *m, struct err *e) MUST_USE;
/* Gives m o->adapters adapters of o->lora_rank with random numbers in A and B, the last of them its own. */
enum status bench_adapter(struct bench *b, struct model *m, struct err *e) MUST_USE;
/* Prepares m for training (LoRA of o->lora_rank is made) and leaves it changed. */
enum status bench_train(struct bench *b, struct model *m, enum train_what what, struct err *e) MUST_USE;

/* One sampling step's limit: `rows` rows of n_seq sequences whose queries and keys make `pairs` pairs, over `cached`
 * keys in memory. The head runs for one row a sequence. */
double bench_step_limit_s(const struct bench *b, const struct model *m, double rows, double n_seq, double pairs,
                          double cached);
/* Floating point operations of a step of training on `rows` rows, `predict` of which predict, with `pairs` pairs of a
 * query and a key. Nothing for what is computed again, nor for adapters, norms and the optimizer's arithmetic. */
double bench_train_flop(const struct model_config *c, bool full, double rows, double predict, double pairs);

/* ---- rl_step.c: a step of reinforcement learning without verdicts; gives m an adapter and leaves it changed ---- */

/* What `train` would take of the device for such a step (b->plan); before the model is there. config: as of model_init.
 * ST_MEMORY with the numbers when it does not fit. */
enum status bench_rl_plan(struct bench *b, const char *config, struct err *e) MUST_USE;
enum status bench_rl_step(struct bench *b, struct model *m, struct err *e) MUST_USE;

/* ---- verify.c: `bench verify`, a command of its own; argv[0] is "verify". Returns the exit code. ---- */

extern const struct args_command bench_verify_command;
int bench_verify(int argc, char **argv);

/* ---- serve.c: `bench serve`, in the same way ---- */

extern const struct args_command bench_serve_command;
int bench_serve(int argc, char **argv);

/* ---- cmd_bench.c ---- */

/* The config.json of a model that --arch names; NULL: the name is none of these. */
#define BENCH_ARCHS "qwen2.5-0.5b, qwen2.5-1.5b, qwen2.5-7b, qwen2.5-14b, llama3.1-8b, qwen3-30b-a3b or tiny"
const char *bench_arch(const char *name);
/* Before a line is measured: forgets the limits and looks at the clocks. */
void bench_begin(struct bench *b);
/* Begins a line: {"bench":WHAT and what all lines have. */
void bench_line(const struct bench *b, const char *what, const char *dtype, struct str *s);
/* Ends it with the times, the limit and what the machine can do, and prints it; `label` stands in the table. per_s is
 * the rate in `unit` a second, limit_s the limit of a step: its share of the median is reported, and that of the
 * fastest step, which says more on a machine that does something else besides. */
void bench_line_end(const struct bench *b, struct str *s, const char *label, const struct bench_times *t, double per_s,
                    const char *unit, double limit_s);

#endif
