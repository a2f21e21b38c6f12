/* rollout: problem -> prompt -> group of samples -> kernels -> verdicts -> scores. Training and evaluation share it. */
#ifndef KERNELRL_ROLLOUT_H
#define KERNELRL_ROLLOUT_H

#include "engine/engine.h"
#include "rl/parse.h"
#include "rl/reward.h"
#include "text/chat.h"
#include "verify/verify.h"

struct journal;
struct raicl;

/* The policy and its judge; borrowed, nothing here is owned. */
struct actor {
    struct model *model;
    struct engine *engine;
    struct tokenizer *tok;
    struct verifier *verifier;
    enum chat_style style;
    bool think;
    double min_p;                /* of all sampling; 0: off */
    struct raicl *raicl;         /* where the examples of prompts come from; NULL: there are none */
    struct journal *journal;     /* where verdicts are kept and found again (journal.h); NULL: nowhere */
    const volatile bool *cancel; /* polled; NULL: never */
};

struct episode { /* one sample of one problem */
    struct sample sample;
    char *text;   /* decoded completion without its stop token */
    char *kernel; /* NULL: none found */
    bool format_ok, thought;
    struct verdict verdict;
    bool present; /* false: the verifier failed or was cancelled; the sample has no score */
    struct reward reward;
    double advantage;
};
struct group {
    const struct problem *problem;
    struct ids prompt;
    struct episode *ep; /* [n] */
    int n;
    bool continued; /* update.c's views: a later part of a cut group, whose prompt's loss is counted already */
};
struct rollout_params {
    int group_size, max_tokens;
    int first_group; /* number of groups[0] in the journal */
    double temperature;
    uint64_t seed, stream; /* the random stream of group i, sample j is (seed, stream + i, j) */
    struct reward_weights weights;
};
struct rollout_times {
    double generate_s, verify_s;
    int64_t tokens; /* generated */
};

/* Samples and judges group_size answers for each of n problems. groups[] is filled in order and owned by the caller
 * through groups_free, also after an error. Fails with ST_CANCELLED when *cancel became true. */
enum status rollout_run(const struct actor *a, const struct problem *const *problems, int n,
                        const struct rollout_params *p, struct group *groups, struct rollout_times *times,
                        struct err *e) MUST_USE;
void groups_free(struct group *groups, int n);

/* Token ids of a problem's prompt. */
enum status rollout_prompt(const struct actor *a, const struct problem *p, struct ids *out, struct err *e) MUST_USE;

/* What stops an answer: the end-of-turn token and the model's own end tokens. */
struct stop_set {
    int32_t ids[10];
    int n;
};
struct stop_set rollout_stops(const struct actor *a);

#endif
