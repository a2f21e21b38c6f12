/* session: everything a policy needs to act and be judged, opened from options and closed together. */
#ifndef KERNELRL_RL_LEARN_SESSION_H
#define KERNELRL_RL_LEARN_SESSION_H

#include "policy/policy.h"
#include "rl/learn/texts.h"
#include "rl/learn/update.h"
#include "rl/options/options.h"
#include "rl/rollout/rollout.h"
#include "verify/host_lease.h"
#include "verify/pool/pool.h"

struct session {
    struct pool *pool;
    struct texts *texts;           /* a server's model answers in text; NULL: the next ones do */
    struct hosted *hosted;         /* a server's model samples, and may be trained there; NULL: the next one does */
    struct policy policy;          /* with a server's model, only tokenizer and shape */
    struct kl_reference reference; /* what the run began with, for the KL penalty; its model may be the one above */
    struct judge_owner verdicts;
    struct host_lease own_gpu; /* the model's GPU, which is no place to measure */
    struct judge judge;        /* that of `verdicts` */
    struct verifier *verifier; /* knows the prototypes of problems: that of `verdicts`, or one that can judge nothing */
    struct verify_identity verify_identity; /* of its verdicts, for the journal */
    struct problem_set problems, generated;
    struct lease *lease;   /* NULL: verdicts are not given while the model works */
    bool background;       /* they are */
    double gather_s;       /* of judging_gather() */
    int64_t planned_bytes; /* of the device's memory, plan_asked(); 0: nothing was planned */
    struct str hardware;   /* of prompts */
    struct actor actor;
};
/* Opens the device, loads the model (and load_checkpoint_path over it), opens tokenizer, engine and verifier; with
 * sampler: openai no model, but who asks the server. On failure everything is closed again by session_close, which the
 * caller must call in every case. */
enum status session_open(const struct train_options *o, const volatile bool *cancel, struct session *s,
                         struct err *e) MUST_USE;
/* The same for a run that trains: on a GPU its memory is planned first (memory_plan.h). What the options leave to the
 * program is chosen so that all fits; where it cannot, nothing is loaded. ST_MEMORY with the numbers. */
enum status session_open_training(const struct train_options *o, const volatile bool *cancel, struct session *s,
                                  struct err *e) MUST_USE;
/* With sampler: tinker: the server's model, beginning with `path` (NULL: as load_checkpoint_path says), moments of the
 * optimizer included. session_open has done so for who only samples; who trains a model there does it, once the
 * position of the run is known. */
enum status session_host(const struct train_options *o, bool trains, const char *path, const volatile bool *cancel,
                         struct session *s, struct err *e) MUST_USE;
/* Of a training session the policy and the reference alone, for a rank that samples and trains and does nothing else.
 */
enum status session_open_policy(const struct train_options *o, struct session *s, struct err *e) MUST_USE;
/* A session that makes prompts and nothing else (rollout_messages): no weights are loaded, and no answer can be run.
 * The model's tokenizer and configuration are opened where `rendered` asks for them, and where the keys count tokens
 * (prompt_option: raicl, prompt_max_tokens). */
enum status session_open_prompts(const struct train_options *o, bool rendered, const volatile bool *cancel,
                                 struct session *s, struct err *e) MUST_USE;
/* Begins anew with who is asked for prototypes, and who keeps what it has been asked: between thousands of problems. */
enum status session_prototypes(const struct train_options *o, struct session *s, struct err *e) MUST_USE;
void session_close(struct session *s);

/* How answers are judged; threads, timeouts and the rest. lease: who stands aside for measurements; may be NULL. */
struct verify_options session_verify_options(const struct train_options *o, struct lease *lease);

/* Verdicts go to this journal (NULL: none) from here on; what was being judged is forgotten. session_open begins with
 * none. */
void session_judging(struct session *s, struct journal *journal, const volatile bool *cancel);
void session_judging_close(struct session *s); /* before the journal is closed */

/* What problem_set_load takes, from source and dataset_src; NULL: its default. */
enum status session_source(const struct train_options *o, const char **out, struct err *e) MUST_USE;
/* Problems chosen by source, level, ids and split; pointers into s, arrays owned by the caller. */
enum status session_problems(const struct train_options *o, struct session *s, const struct problem ***train,
                             int *n_train, const struct problem ***test, int *n_test, struct err *e) MUST_USE;

/* How a step samples and scores; which step, and where in the journal, is for the caller to say. */
struct rollout_params session_rollout_params(const struct train_options *o);
/* What prompts show and how answers are sampled: those fields of s->actor. */
enum status session_prompts(const struct train_options *o, struct session *s, struct err *e) MUST_USE;

#endif
