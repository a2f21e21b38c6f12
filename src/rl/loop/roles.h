/* roles: what else the policy does in a step beside solving: it predicts verdicts (verifier), repairs failed answers
 * (corrector), says which of two answers is better (judge) and composes problems (proposer). One model plays all of
 * them; each has a prompt, a reward and an advantage within groups of its own, and its samples go into the step's
 * update with the solver's. Prompts and answer formats: roles_text.h and docs/formats.md. Keys: roles.* (options.c).
 *
 * In a step (loop.c): roles_propose, the rollout, roles_play, advantages of the solver and roles_advantages, the update
 * over roles_join's groups, roles_metrics and roles_traces, roles_end. */
#ifndef KERNELRL_RL_LOOP_ROLES_H
#define KERNELRL_RL_LOOP_ROLES_H

#include "policy/roles_text.h"
#include "rl/learn/session.h"
#include "rl/run/metrics.h"

struct generator;

/* What one role sampled in a step. Group i's prompt is about up to two answers of the rollout; an episode's
 * reward.total is its reward, and it is present where there is one. */
struct role_groups {
    struct sample_group *group;
    int n, cap;
};
struct roles_counts {                                       /* of a step */
    int predictions, exact, works, unreadable, most_common; /* of the verifier's predictions; the largest class's */
    int about[2], works_about[2];            /* of failing and of working answers; those right about it */
    int repairs, repaired;                   /* judged repairs; correct ones */
    double repair_gain;                      /* sum of score minus the failed answer's */
    int comparisons, decided, rated, agreed; /* of the judge; rated: of answers whose scores differ */
    int pairs, consistent;                   /* compared in both orders; the same winner */
    int proposals, valid, played;
    double solved; /* sum over played proposals of their rate of correct answers */
    int too_long;  /* prompts that left no room */
    double reward[ROLES];
    int rewarded[ROLES];
};
enum { ROLES_WINDOW = 64, ROLES_LENGTH_MAX = 12 };
struct roles {
    bool on;                      /* any role plays */
    struct generator *generator;  /* with a proposer */
    struct role_groups of[ROLES]; /* of the step that is made */
    struct roles_counts counts;
    struct judging_batch verdicts;
    struct judging *judging;
    struct arena arena; /* the step's problems */
    struct {            /* problems the proposer made */
        struct problem problem;
        int sample; /* who did */
    } * proposed;
    int n_proposed;
    /* Self-play, kept in checkpoints: how many operators a proposal must have, and how often the latest ones of that
     * length were solved. */
    int length, n_rates;
    double rate[ROLES_WINDOW];
};

/* ST_IO, ST_PARSE: the index of the built-in test problems, which proposals must not repeat, cannot be read. */
enum status roles_open(struct roles *x, const struct train_options *o, struct err *e) MUST_USE;
void roles_close(struct roles *x); /* a zeroed one is fine */

/* Samples proposals and puts those that are problems in the place of the first of problems[n]. The problems live until
 * roles_end. p: the step's. */
enum status roles_propose(struct roles *x, const struct actor *a, const struct train_options *o,
                          const struct rollout_params *p, const struct problem **problems, int n,
                          struct err *e) MUST_USE;
/* Predictions, comparisons and repairs of the step's answers, scored. The judge's preferences are added to the answers'
 * scores and returns. ST_CANCELLED when *a->cancel became true. */
enum status roles_play(struct roles *x, const struct actor *a, const struct train_options *o,
                       const struct rollout_params *p, struct rollout *r, struct rollout_times *times,
                       struct err *e) MUST_USE;
/* Advantages of the roles' samples, by the run's kind, each role for itself, times its weight. idle_tokens_count: as
 * for the solver, samples without an advantage are trained on, too. */
void roles_advantages(struct roles *x, const struct train_options *o, bool idle_tokens_count);
/* The solver's groups and the roles' behind them, as views; caller frees the array. */
struct sample_group *roles_join(const struct roles *x, const struct rollout *r, int *n);
void roles_metrics(const struct roles *x, const struct train_options *o, struct metrics *m);
/* As run_traces. */
enum status roles_traces(const struct roles *x, struct run_dir *run, int64_t step, const struct tokenizer *t,
                         struct err *e) MUST_USE;
/* Learns from the step how long the next proposals shall be (when the step counts), and frees what belongs to it. */
void roles_end(struct roles *x, const struct train_options *o, bool counts);

/* Members of a checkpoint's state. Loading one without them leaves x as it is; ST_PARSE for damaged ones. */
void roles_save(const struct roles *x, struct str *out);
enum status roles_load(struct roles *x, const json_t *state, const char *where, struct err *e) MUST_USE;

#endif
