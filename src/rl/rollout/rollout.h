/* rollout: problems -> prompts -> groups of samples -> kernels -> verdicts -> scores and returns. One turn, or several
 * with the verdicts of the earlier ones in the prompt (Kevin, 2507.11948). Training and evaluation share it. */
#ifndef KERNELRL_RL_ROLLOUT_ROLLOUT_H
#define KERNELRL_RL_ROLLOUT_ROLLOUT_H

#include "engine/engine.h"
#include "policy/answer.h"
#include "policy/parse.h"
#include "policy/prompt.h"
#include "reward/reward.h"
#include "rl/options/options.h"
#include "rl/rollout/judging.h"
#include "text/chat.h"
#include "verify/quiet_lease.h"
#include "verify/verify.h"

struct raicl;

/* A stand-in for the engine: engine_run's arguments, less the engine. */
struct actor_policy {
    enum status (*fn)(void *ctx, const struct request *req, int n_req, struct sample *out, engine_progress_fn *progress,
                      void *progress_ctx, struct err *e);
    void *ctx;
};

/* A model that answers in text, behind a server: it has no tokens, no log-probabilities and no weights of ours. */
struct text_request {
    const char *system, *user;
    double temperature, min_p;
    int64_t max_tokens;
    uint64_t seed; /* equal requests with equal seeds have one answer */
};
struct text_answer {
    char *text;     /* NULL: not there yet. The caller's */
    int64_t tokens; /* as the server counts them */
    enum stop_reason stop;
};
/* As engine_run: an answer is in out[] from when it has come, and progress is called behind each. After an error out[]
 * is empty. */
struct actor_texts {
    enum status (*fn)(void *ctx, const struct text_request *req, int n, struct text_answer *out,
                      engine_progress_fn *progress, void *progress_ctx, struct err *e);
    void *ctx;
};

/* The policy, its prompts and its judge; borrowed, nothing here is owned. */
struct actor {
    struct actor_texts texts; /* fn NULL: the model below samples; else it, its engine and its tokenizer are NULL */
    struct model *model;
    struct engine *engine;
    struct actor_policy policy; /* fn NULL: the engine samples */
    struct tokenizer *tok;
    struct verifier *verifier; /* knows the prototypes; NULL for backends without */
    enum chat_style style;
    bool think;
    struct actor_options o;      /* of all prompts and all sampling */
    struct judging *judging;     /* gives verdicts; NULL: nobody does */
    struct lease *lease;         /* shared with who measures times; NULL: nobody does */
    const volatile bool *cancel; /* polled; NULL: never */
    /* Prompts. */
    const struct backend_info *backend; /* NULL: c */
    const char *precision, *hardware;   /* NULL: not mentioned */
    struct raicl *raicl;                /* where the examples come from; NULL: the next two */
    const struct prompt_example *examples;
    int n_examples;
};

struct episode {          /* one turn of one sample */
    struct sample sample; /* of an actor that answers in text: empty */
    int64_t tokens;       /* of the answer, as who sampled it counts */
    char *text;           /* decoded completion without its stop token */
    char *kernel;         /* NULL: none found */
    char *summary;        /* the model's own words on it, for a later turn; NULL: none */
    bool format_ok;
    int64_t thought_chars, kernel_chars; /* UTF-8 characters; 0: none */
    int plan_tokens;                     /* leading tokens that reason; the rest is the answer */
    struct verdict verdict;
    bool present; /* false: the verifier failed or was cancelled; the sample has no score */
    struct reward reward;
    /* What training rewards: the score and what came of it in later turns; of the plan and the code apart as well. */
    double ret, plan_ret, code_ret;
    bool has_return; /* false: this verdict, or that of a later turn, is missing */
    double advantage;
    bool kept; /* trained on although its advantage is 0: there is a KL or entropy term, or constant groups stay */
    /* With a KL penalty, stale samples or an advantage of its own for the plan; NULL otherwise. [sample.n] */
    float *ref_logp, *old_logp; /* under the reference model; at the start of the update */
    float *token_advantage;     /* instead of advantage */
};
struct sample_group { /* samples of one prompt: all first turns of a task, or one later turn of one of its samples */
    const struct problem *problem;
    struct ids prompt;
    char *message[2];   /* of an actor that answers in text: system and user; else NULL */
    char *begun;        /* how its answers begin: the end of the prompt. NULL: they begin with their samples */
    struct episode *ep; /* [n] */
    int n;
    int task;         /* number of its problem in the rollout */
    int turn;         /* from 0 */
    int first;        /* number of ep[0] among the task's samples */
    int stale;        /* updates of the model since the samples were drawn */
    const char *role; /* who sampled them; NULL: the solver, else roles.h */
    bool judged;      /* of a role: its answers have verdicts */
    double balance;   /* of the verifier: factor on its advantages (roles.c) */
    int about[2];     /* of a role: samples of the task that its prompt shows; -1: none */
};
enum { TURNS_MAX = PROMPT_ATTEMPTS_MAX + 1 };
struct trajectory { /* the turns of one sample of a task */
    int task, sample, n_turns;
    struct episode *turn[TURNS_MAX];
    bool done; /* no further turn */
};
/* Everything one step samples: tasks, each a problem with as many trajectories as a group has. Zero at first. */
struct rollout {
    struct sample_group
        *group; /* first turns of all tasks in front of their second turns, rollout_run by rollout_run */
    int n, cap;
    struct trajectory *trajectory; /* task by task */
    int n_trajectories, n_tasks;
    struct judging_batch verdicts;
    struct judging *judging; /* who gives them */
};
/* Does not wait for verdicts that are still asked for. */
void rollout_free(struct rollout *r);

struct rollout_params {
    int64_t step; /* place in the journal */
    bool eval;
    int first_task; /* number of the first problem in the journal */
    int at_once;    /* problems of an evaluation that are sampled and judged together; 0: as many as fit (rates.c) */
    struct rollout_options o;
    uint64_t seed, stream; /* the random stream of task i, sample j is (seed, stream + i, j); later turns have others */
    struct reward_weights weights;
};
struct rollout_times {
    double generate_s, verify_s; /* sampling; waiting for verdicts */
    int64_t tokens;              /* generated */
};

/* Samples group_size trajectories for each of n problems and appends them as new tasks. The verdicts of the last turn
 * are asked for, but not waited for. r is the caller's to free, also after an error. ST_CANCELLED when *cancel became
 * true. */
enum status rollout_sample(const struct actor *a, const struct problem *const *problems, int n,
                           const struct rollout_params *p, struct rollout *r, struct rollout_times *times,
                           struct err *e) MUST_USE;
/* Waits for the verdicts of tasks from first_task on and scores them. */
enum status rollout_score(const struct actor *a, const struct rollout_params *p, struct rollout *r, int first_task,
                          struct rollout_times *times, struct err *e) MUST_USE;
/* Both. */
enum status rollout_run(const struct actor *a, const struct problem *const *problems, int n,
                        const struct rollout_params *p, struct rollout *r, struct rollout_times *times,
                        struct err *e) MUST_USE;
/* Samples the groups from `begin` on, which the caller has added with their prompts (rollout_add_group, and message or
 * begun where they have any), as first turns of the tasks p->first_task, p->first_task + 1, ...: group i has stream
 * p->stream + task - p->first_task. Their verdicts are asked for, if the actor has a judge, and not waited for. */
enum status rollout_play(const struct actor *a, const struct rollout_params *p, struct rollout *r, int begin,
                         struct err *e) MUST_USE;
/* A rollout of one call of rollout_sample (its first_task 0) as it was, from its groups alone: their problems, prompts
 * and samples are there, everything else is made again and the verdicts are asked for, in the places that they had in
 * the step. ST_PARSE: the groups do not make up trajectories; where: what to name then. */
enum status rollout_restore(const struct actor *a, int64_t step, struct rollout *r, const char *where,
                            struct err *e) MUST_USE;
/* A group of n samples, all still empty. The prompt becomes its own. Valid until the next one is added. */
struct sample_group *rollout_add_group(struct rollout *r, const struct problem *p, struct ids *prompt, int task,
                                       int turn, int first, int n);
void groups_free(struct sample_group *groups, int n); /* what they own, not the array */

/* Samples as engine_run does, by the policy, while the lease is held; weights that are not finite are named. */
enum status actor_run(const struct actor *a, const struct request *req, int n_req, struct sample *out,
                      engine_progress_fn *progress, void *ctx, struct err *e) MUST_USE;
/* n answers to a problem's first prompt, as rollout_sample draws them with p for a first task, and that prompt; nothing
 * is judged. out[]: texts, the caller's to free; prompt may be NULL. */
enum status rollout_answers(const struct actor *a, const struct problem *problem, const struct rollout_params *p, int n,
                            char **out, struct str *prompt, struct err *e) MUST_USE;
/* What the sample says: text, kernel, thought. The actor's backend decides which fences count. */
void rollout_decode(const struct actor *a, struct episode *ep);
/* How many tokens the messages have, into `out` where the actor has a tokenizer; else a guess. */
int64_t rollout_encode(const struct actor *a, const struct chat_message messages[2], struct ids *out);
/* What a text of n bytes says, into an episode that is zero: format_ok, thought_chars, and the kernel (the caller's to
 * free) with its length. Views of the result point into the text. */
struct parsed rollout_read(const struct backend_info *backend, const char *text, size_t n, struct episode *ep);
/* The same of a file that is the kernel alone: nothing was thought, and its format is right. */
void rollout_read_file(const char *source, struct episode *ep);
/* The prompt of a turn behind the one attempt `failed`. ST_INVALID when it does not fit beside max_tokens. */
enum status rollout_refine_prompt(const struct actor *a, const struct problem *p, struct episode *failed,
                                  int max_tokens, struct ids *out, struct err *e) MUST_USE;
/* What a turn's score is made of, and the score; the verdict is not missing. */
struct reward_input rollout_reward_input(const struct rollout_params *p, const struct episode *ep);
struct reward rollout_reward(const struct rollout_params *p, const struct episode *ep);

/* Token ids of a problem's prompt. */
enum status rollout_prompt(const struct actor *a, const struct problem *p, struct ids *out, struct err *e) MUST_USE;
/* A problem's first prompt as messages, beside an answer of max_tokens: system and user, with their text in the arena,
 * which is reset. An actor with a tokenizer and a model's configuration also gives the ids, and cuts the prompt where
 * training would; one without them shows it whole and leaves `out` empty. */
enum status rollout_messages(const struct actor *a, const struct problem *p, int max_tokens, struct arena *arena,
                             struct chat_message messages[2], struct ids *out, struct err *e) MUST_USE;

/* Appends the messages as JSON: a list of {"role", "content"}. */
void rollout_put_messages(struct str *out, const char *key, const struct chat_message messages[2]);

/* How an answer of at most max_tokens is sampled. Borrows the stops. */
struct sample_params rollout_sampling(const struct actor *a, const struct rollout_params *p, int max_tokens,
                                      const struct stop_set *stops);

#endif
