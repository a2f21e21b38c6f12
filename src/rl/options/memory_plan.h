/* plan: what a training run takes of a device's memory, known before anything is loaded. The model, its adapter, the
 * optimizer, a step of sampling and a micro-batch are gone through on paper (tensor/counting.h), by the code that takes
 * the memory later. */
#ifndef KERNELRL_RL_OPTIONS_MEMORY_PLAN_H
#define KERNELRL_RL_OPTIONS_MEMORY_PLAN_H

#include "rl/options/options.h"
#include "tensor/counting.h"

/* All but the counts in bytes. */
struct train_plan {
    int64_t available;              /* what the device has free */
    int64_t rows, context, answers; /* of a micro-batch; longest prompt and answer, in tokens; sampled at a time */
    int64_t prompts;                /* tokens that all prompts of a step have at most */
    int64_t weights, reference;     /* the base model; the one that a KL penalty compares with */
    int64_t trained, moments;       /* an adapter or nothing, and gradients; a trainer's (train/step.h) */
    int64_t sampling, scratch;      /* a sampling step's activations; what ops take for themselves */
    int64_t library;                /* PLAN_LIBRARY, on a GPU */
    int64_t verifier;               /* PLAN_VERIFIER where answers run on the same device */
    /* Keys and values: what the engine will take; of one answer; of all sampled at a time, whose groups share prompts;
     * what the engine takes where it may, which counts on no sharing. */
    int64_t kv, kv_least, kv_most, kv_wanted;
    int64_t activations, activations_least, activations_most; /* the choice; all layers but one computed again; none */
    /* What each may grow to: what nobody needs by the plan is shared out, since prompts may be longer than it assumes.
     */
    int64_t kv_budget, activation_budget;
    int layers, recomputed; /* by the choice */
};
/* Code that the driver loads with the first products; tensors of a problem and its answers, PyTorch's context. */
#define PLAN_LIBRARY ((int64_t)700 * 1000 * 1000)
#define PLAN_VERIFIER ((int64_t)4 * 1000 * 1000 * 1000)

int64_t plan_total(const struct train_plan *p); /* of all that was chosen */
/* The part of it that the backend is asked for (backend.h, mem_peak): all but the libraries and the verifier. */
int64_t plan_asked(const struct train_plan *p);

/* config_json: a config.json's path or text, as of model_init. kv_memory and activation_memory of the options are most
 * that may be chosen. ST_MEMORY, with the numbers, when the least does not fit; out is filled in then, too. */
enum status train_plan(const struct train_options *o, const char *config_json, const struct paper *device,
                       struct train_plan *out, struct err *e) MUST_USE;

/* A table, a line each; and one line of it all. */
void train_plan_table(const struct train_plan *p, struct str *out);
void train_plan_line(const struct train_plan *p, struct str *out);

#endif
