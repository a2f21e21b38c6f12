/* model_thread: the thread that owns the model. It opens the policy, steps its engine and, between steps, runs what
 * else needs the model (adapters, embeddings). All functions here are for one other thread, the server's; what happened
 * meanwhile is handed to it by model_thread_collect(), which is to be called when model_thread_fd() can be read. */
#ifndef KERNELRL_SERVE_MODEL_THREAD_H
#define KERNELRL_SERVE_MODEL_THREAD_H

#include "policy/policy.h"

struct model_thread;

/* How the model stands aside for others who need its device for themselves for a while. All functions are called by the
 * model's thread, and get ctx. */
struct serve_aside {
    void (*begin)(void *ctx);     /* there is work: waits until nobody else has the device. NULL: nobody ever has */
    void (*yield)(void *ctx);     /* between two steps: stands aside where somebody wants it */
    void (*end)(void *ctx);       /* there is no work any more */
    double (*seconds)(void *ctx); /* any thread: how long it has stood aside */
    void *ctx;
};

enum model_state { MODEL_LOADING, MODEL_READY, MODEL_FAILED };

/* Begins to open a policy; the options are borrowed until model_thread_stop(). */
enum status model_thread_start(const struct policy_options *o, const struct serve_aside *aside,
                               struct model_thread **out, struct err *e) MUST_USE;
/* Ends what runs and gives up the policy. NULL is fine. */
void model_thread_stop(struct model_thread *t);

int model_thread_fd(const struct model_thread *t);
void model_thread_collect(struct model_thread *t);
/* As of the last model_thread_collect(). After MODEL_FAILED *e says why. */
enum model_state model_thread_state(const struct model_thread *t, struct err *e);
/* Of a model that is ready: tokenizer, model and engine. Whoever is not the model's thread only reads what does not
 * change, and calls the engine's functions that any thread may call. */
const struct policy *model_thread_policy(const struct model_thread *t);
/* Seconds since the thread has last come round, while there is work; 0 when there is none. */
double model_thread_silent_s(const struct model_thread *t);

/* ---- what runs between steps --------------------------------------------------------------------------------------*/

/* Whose calls alternate with those of others. The thread's own, and zero at first. */
struct model_turn {
    int64_t served; /* number of the last call that was run; 0: none */
};
/* run() is called by the model's thread with the engine at rest: no step is under way. Where it returns false there is
 * more to do, and it is called again behind the next step. done() is called by model_thread_collect(), or by
 * model_thread_stop(), then also of a call that never ran. Of the calls that wait, the one is run next whose turn was
 * served longest ago; those of one turn go round. */
struct model_call {
    bool (*run)(struct model_call *c, struct policy *p);
    void (*done)(struct model_call *c);
    bool finished;           /* true: run() has returned true */
    struct model_turn *turn; /* lives as long as the call; NULL: the call goes before those that have one */
    struct model_call *next; /* the thread's own */
};
void model_thread_call(struct model_thread *t, struct model_call *c);

/* ---- requests -----------------------------------------------------------------------------------------------------*/

/* A sample as far as it is. The model's thread appends; job_read() and, once `ended`, anybody reads. */
struct job_sample {
    int32_t *ids, *top_ids; /* [n], [n, top] */
    float *logp, *top_logp;
    int n, cap;
    bool ended;
    enum stop_reason stop; /* then */
};
/* One prompt with its samples: a request of the engine. The server's thread has it, but for the samples. */
struct job_part {
    struct job *job;
    int64_t ticket; /* 0: not submitted */
    int first;      /* of its samples */
    bool done;      /* true: the engine has ended it */
    enum status status;
    struct err err;
    struct sample prompt; /* its log-probabilities, once done */
    int64_t begun;        /* ns; when it left the engine's queue; 0: it never did */
};
struct job {
    struct job_part *part;
    struct job_sample *sample; /* part-major */
    int n_parts, n_samples, n_done, top;
    /* There are new tokens, or parts that are done. Called by model_thread_collect(). */
    void (*news)(struct job *j);
    void *ctx;
    /* times, ns; 0: not yet */
    int64_t submitted, first_token, last_token;
    int waiting; /* samples without a token */
    struct job_private *own;
};
/* n_parts prompts with n samples each, which report `top` log-probabilities beside their own. */
struct job *job_new(struct model_thread *t, int n_parts, int n, int top);
/* Submits one part; r has no sink, and what it points to is copied. Errors as engine_submit. */
enum status model_job_submit(struct job *j, int part, const struct request *r, struct err *e) MUST_USE;
/* Nobody waits for it any more: what runs of it is cancelled, and news() is never called again. */
void job_drop(struct job *j);
/* Cancels what runs; news() tells when it has ended. */
void job_cancel(struct job *j);
/* Copies up to `most` tokens of a sample from `from` on into ids, logp and, where there are any, top_*. Returns their
 * number; *left is set when there are more, or the sample has not ended. */
int job_read(struct job *j, int sample, int from, int most, int32_t *ids, float *logp, int32_t *top_ids,
             float *top_logp, bool *left);
/* What the engine has done so far. */
struct engine_stats model_thread_stats(const struct model_thread *t);
/* Samples of all jobs that have no token yet. */
int64_t model_thread_waiting(const struct model_thread *t);
/* Sequences that are decoded together. */
int model_thread_batch(const struct model_thread *t);

#endif
