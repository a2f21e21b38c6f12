/* step: from token ids to a gradient, and from gradients to new weights. A datum is one text with what is to be learned
 * from it. Datums are laid into micro-batches, forwarded and back-propagated. The gradient of each micro-batch is a
 * leaf; leaves add up in their order (dist/fold.h) until the next optimizer step. Start here, then loss.h. */
#ifndef KERNELRL_TRAIN_STEP_H
#define KERNELRL_TRAIN_STEP_H

#include "base/arena.h"
#include "dist/fold.h"
#include "model/rest.h"
#include "train/adamw.h"
#include "train/loss.h"
#include "train/summed.h"

/* One text. Row t of it is the distribution behind ids[0..t]. Rows [begin, end) predict; R = end - begin. Each of them
 * has K targets: targets[r * K + k] is the k-th one of row begin + r. The arrays are the caller's. */
struct datum {
    const int32_t *ids; /* [n] */
    int64_t n;
    /* The first so many tokens, at least one, are the prompt. Neighbours in a call whose prompts are equal share its
     * rows: they are computed once, and no log-probability has other bits for it. */
    int64_t prompt;
    int64_t begin, end;
    int K;                  /* 0: 1. More than 1 (soft targets) is for likelihood losses without further terms */
    const int32_t *targets; /* [R,K] */
    const float *weights;   /* [R,K]: the advantage of each token; of soft targets, and for likelihoods, its weight */
    /* [R] log-probabilities of the targets while sampling, at the start of the update (NULL: sampled), and under the
     * reference of a KL term; NULL where the loss does not ask for them. */
    const float *sampled, *old, *ref;
    const float *mask; /* [R] of a summed gspo (train/summed.h); NULL: all tokens */
    double scale;      /* factor on its loss: one over the normaliser; a summed loss has none */
    bool stale;        /* true: older weights sampled it, so that it is not held to `sampled` */
    /* true: its loss is - weight x logp, whatever the call's, and it is left out of the statistics. For a prompt's own
     * tokens. */
    bool likelihood;
    float *logp; /* [R,K] out: log-probabilities of the targets; NULL: not wanted */
};

struct train_stats { /* sums over the datums of calls; zero at first */
    struct loss_stats loss;
    double entropy;
    double kl_before; /* largest |logp - sampled| of datums that are not stale, of calls that are on-policy */
    int64_t rows;     /* rows forwarded; shared prompts count once a micro-batch */
};

struct train_call {
    struct loss_params loss;
    /* The loss is this one instead, and only its sum is among the statistics. Its datums have targets, weights and
     * sampled (but for cross_entropy, which alone takes several targets a row), no old, ref and likelihood. Of one rank
     * alone. NULL: it is `loss`. */
    const struct summed_loss *summed;
    int64_t step;   /* number of the optimizer step, for messages */
    bool on_policy; /* true: the weights are those that sampled, but for datums that are stale */
    bool exact;     /* true: on_policy, a log-probability other than the sampler's is an error */
};

/* What trains one set of parameters of a model: an adapter's, or all of the base's. It owns the optimizer's moments,
 * the sum of the gradients, and memory on the host that grows to what the largest call needs and then no more. A model
 * may have a trainer for each of its adapters: they share the memory of activations, and their calls may come in any
 * order, one at a time. */
struct trainer {
    struct comm *comm; /* borrowed, as the model is */
    struct model *model;
    int adapter;       /* which set: as in model_train_set */
    bool base;         /* true: the set is all of the base */
    struct adamw *opt; /* for checkpoints: adamw_save and adamw_load; NULL at rest */
    struct fold *sum;  /* of the leaves since the last step; NULL at rest */
    int64_t *leaves;   /* [ranks] leaves that each rank has computed; who reads them may begin anew at 0 */
    /* [ranks] seconds that each rank was at work on leaves of its own, as of the last optimizer step; likewise. busy:
     * of this rank, since then. */
    double *busy_s, busy;
    int width;    /* leaves that a rank may have in a round */
    float *spare; /* device memory for all but one of them; NULL: width is 1 */
    /* Of several ranks: rounds of leaves so far, each of as many as there are ranks; in the first and each
     * audit_every-th one after it the leaves are computed by a second rank and compared (0: never); leaves that were,
     * who reads them may begin anew at 0. */
    int64_t rounds, audit_every, audited;
    struct resting *rest; /* NULL: it is awake */
    int64_t rest_step;    /* opt->step */
    bool rest_sum;        /* true: a sum of gradients is among what rests */
    int64_t train_tokens; /* rows of a micro-batch at most, where a single datum allows; may be set between calls */
    /* Called before every micro-batch, when the device has done what is queued; NULL: nobody asks. */
    void (*border)(void *ctx);
    void *border_ctx;
    /* Called when this rank has computed a leaf of n floats of device memory, before anybody reads it; NULL: nobody
     * wants it. For tests, which spoil one. */
    void (*leaf_done)(void *ctx, float *leaf, int64_t n);
    void *leaf_done_ctx;
    /* A number of all that was trained so far: trainers that began alike and have the same number have the same
     * weights. Whoever loads other weights sets it to the number that belongs to them. */
    uint64_t history;
    bool begun;                /* true: gradients have been added since the last step */
    int moments;               /* arrays of moments that have travelled, while a file is written or read (follow.c) */
    bool reading;              /* true: it is read */
    struct arena datums;       /* for the caller's datums; the trainer does not touch it */
    struct arena parts, micro; /* of a call, of a micro-batch */
};
/* The set is prepared (model_train_prepare, model_adapter_prepare), else ST_INVALID. Takes memory for the moments and
 * the sum of the gradients, three times that of what is trained; of a lent base this rank's part of these and of the
 * float32 weights, which is undefined until train_share_state. ST_MEMORY: it does not fit. */
enum status trainer_open(struct comm *c, struct model *m, int adapter, int64_t train_tokens, struct trainer **out,
                         struct err *e) MUST_USE;
void trainer_close(struct trainer *t); /* NULL is fine */
/* model_train_prepare for a trainer of these ranks, of the own adapter or of all parameters. These are lent
 * (TRAIN_FULL_LENT) where their products are in bfloat16 and there are several ranks, each of which has a part. */
enum status trainer_prepare(const struct comm *c, struct model *m, bool lora, struct err *e) MUST_USE;

/* Adds the gradient of the datums' losses to those of the calls since the last step, and to the stats. The datums are
 * cut into micro-batches in their order: neighbours with one prompt stay together where train_tokens allows, and a
 * datum is never cut. ST_INVALID: the message names the datum and what is wrong with it, and nothing has been done.
 * ST_FAILED: a log-probability is not finite, or not the sampler's where it must be. ST_DEVICE: a rank computes wrong
 * bits; the message names it. After an error that came later call train_forget. */
enum status train_accumulate(struct trainer *t, const struct train_call *c, const struct datum *d, int n,
                             struct train_stats *stats, struct err *e) MUST_USE;
/* How a call with so many train_tokens cuts n > 0 datums: leaf i ends in front of datum end[i]; end has room for n.
 * Returns the number of leaves. A call for each of them alone makes the same leaves. */
int train_leaves(const struct datum *d, int n, int64_t train_tokens, int *end);
/* Log-probabilities alone, into datum.logp, under a model of the same shape (the trained one or a reference), through
 * one of its adapters. Weights and the like are not looked at. Gradients stay what they are. */
enum status train_forward(struct trainer *t, struct model *m, int adapter, const struct datum *d, int n,
                          struct err *e) MUST_USE;
/* Forgets the gradients since the last step. */
void train_forget(struct trainer *t);
/* The gradients since the last step, to come back to when calls that follow fail: a copy on the host, where there are
 * any. Of one rank and an awake trainer. */
struct train_mark {
    bool begun;
    uint64_t history;
    float *sum; /* NULL: not begun */
};
enum status train_mark_take(struct trainer *t, struct train_mark *out, struct err *e) MUST_USE;
/* Makes the gradients those of the mark again. */
enum status train_mark_restore(struct trainer *t, const struct train_mark *k, struct err *e) MUST_USE;
void train_mark_free(struct train_mark *k); /* zero is fine */
/* One step of AdamW with the gradients, which begin at zero again behind it. *grad_norm: their L2 norm; where
 * max_grad_norm > 0 and less than that, they are scaled to it. ST_FAILED, and nothing has changed: the norm is not
 * finite. step: for that message. */
enum status train_optimizer_step(struct trainer *t, const struct adamw_config *c, double max_grad_norm, int64_t step,
                                 double *grad_norm, struct err *e) MUST_USE;

/* Moves what it has on the device, the moments and the sum of the gradients if there is one, to host memory (path NULL)
 * or to a file (docs/formats.md, "Files at rest"), from host memory also to a file, and gives up the adapter's
 * gradients, which hold nothing between calls. Its weights stay where they are: requests may go through them, and
 * model_adapter_rest takes them now. ST_INVALID: the set is the base, it rests in a file already, or there are several
 * ranks. After an error it is as it was. */
enum status trainer_rest(struct trainer *t, const char *path, struct err *e) MUST_USE;
/* Brings all of it back, with the adapter's weights where these are at rest, bit for bit: also the gradients of calls
 * since the last step. Fine where it is awake. After an error the trainer is at rest as it was. */
enum status trainer_wake(struct trainer *t, struct err *e) MUST_USE;

#endif
