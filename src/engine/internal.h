/* What the files of engine share: requests that were submitted (tickets), sequences in flight, and the engine. */
#ifndef KERNELRL_ENGINE_INTERNAL_H
#define KERNELRL_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/str.h"
#include "engine/engine.h"
#include "engine/processors.h"
#include "engine/sampler.h"
#include "tensor/backend.h"

/* A request from its submission until its result is taken. It lies in one list at a time: waiting, running, ended. */
struct ticket {
    struct ticket *next;
    int64_t number;     /* from 1 */
    struct request req; /* its pointers lead to `copies`, or to the caller's memory during engine_run() */
    void *copies;
    int64_t label;          /* what messages call the request */
    struct sample *samples; /* [n_samples]; during engine_run() a part of the caller's */
    int n_ended;            /* samples that have ended */
    struct sample prompt;   /* with prompt_logprobs */
    int to_score;           /* so many of the prompt's tokens, its last ones, have no log-probability there yet */
    atomic_bool cancelled;  /* by any thread; the stepping thread looks between steps */
    enum status status;     /* why it failed, or ST_OK */
    int64_t begun_ns;
    bool ending; /* true: the sweep at hand takes it out; the stepping thread's */
    struct err err;
};
struct ticket_list {
    struct ticket *first, *last;
};

struct flight { /* a sequence in flight */
    struct ticket *t;
    int sample; /* this one; of a prompt, the next to start */
    int left;   /* samples to start from this prompt; 0: a sample */
    int seq;    /* of the cache; -1: preempted */
    int limit;  /* tokens to draw */
    int n;      /* tokens drawn */
    int feed;   /* tokens the step at hand feeds */
    int score;  /* tokens it feeds before those, for the log-probabilities of a prompt */
    int row;    /* of the last step's logits, or -1 */
    int next;   /* its row in the next step, if that one has been launched already; else -1 */
    bool drawn; /* the device drew from it: en->drawn[row] */
    uint64_t stream;
    const int32_t *tokens; /* the prompt, or own_tokens */
    int32_t *own_tokens;   /* [token_cap] prompt and drawn tokens */
    float *logp, *entropy; /* [limit_cap] */
    struct str tail;       /* last bytes, for stop strings */
};

struct engine {
    struct model *m;
    struct engine_options opt;
    struct model_config cfg;
    struct sampler sampler;
    struct processors processors;
    float *distribution; /* [V] logits of the distribution that a token was drawn from, where a request asks for it */
    struct kv_cache *kv;
    int64_t n_blocks, budget; /* of kv; bytes it may take */
    struct engine_stats stats;

    /* Sequences in flight: the stepping thread's alone. The arrays grow when nothing is in flight. */
    int cap;                               /* sequences in flight at most */
    struct flight *slot, **order, **spare; /* [cap]; order: oldest first */
    int *free_seq, *step_seq, *step_n;
    int n_order, n_spare, n_free;
    int token_cap, limit_cap;
    int32_t *token_slab;
    float *logp_slab;
    int32_t *step_ids;
    float *logits, *kept_logits; /* [cap, V], [V] */
    struct step_want *want;      /* [cap], where the device draws */
    struct step_drawn *drawn;
    struct draw *draw;             /* [cap], of a step that is not waited for */
    struct flight **at_row;        /* [cap] */
    const struct flight *kept_by;  /* the prompt that waits with its logits in kept_logits, or NULL */
    int under_way;                 /* sequences of the step that has begun and not ended; 0: there is none */
    bool made_room;                /* true: since waiting sequences were last let in, something has changed for them */
    bool failing;                  /* true: a request in flight has failed since the last sweep */
    int64_t tokens, samples_ended; /* drawn, and ended, since the engine was opened */
    int64_t n_ended, n_failed;     /* requests */
    int32_t top_ids[MAX_LOGPROBS]; /* of the token at hand */
    float top_logp[MAX_LOGPROBS], id_logp[MAX_LOGPROBS];

    /* The queue: any thread's, under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct ticket_list waiting, running, ended;
    int n_waiting, n_running;
    int64_t last_ticket;
    int64_t begun, last_turn[ENGINE_QUEUES]; /* requests that have begun; how many had when a queue's last one did */
    int paused;                              /* engine_pause() calls without their engine_resume() */
    bool stop_waiting;                       /* true: engine_wait() is to return */
    bool stepping;                           /* true: a step is running */
    bool under_way_too;                      /* true: the last step has begun another one, which the next one ends */
    atomic_int n_cancelled;                  /* tickets that were cancelled since the last sweep */
    int *dropped, n_dropped;                 /* adapters to give up when no request has them */
    struct engine_load load;                 /* as the last step left it */
};

/* ---- requests.c ---- */

/* Whether a request is one that can be run; the adapter is not looked at. label: for messages. */
enum status request_check(const struct engine *en, const struct request *r, int64_t label, struct err *e) MUST_USE;
int request_limit(const struct engine *en, const struct request *r);         /* tokens that a sample may draw */
int64_t request_positions(const struct engine *en, const struct request *r); /* of its longest sample */

/* A ticket with the request as it is; `samples` (borrowed) receive what it gives. */
struct ticket *ticket_new(const struct engine *en, const struct request *r, int64_t label, struct sample *samples);
void ticket_free(struct ticket *t);
/* Room for the further log-probabilities of n tokens. */
void sample_logprobs_make(struct sample *s, const struct request *r, int n);
/* The stepping thread: moves a ticket of the list `from` to those that have ended. Samples that have not ended stay as
 * they are, as cancelled; of a failed request none is left. */
void ticket_end(struct engine *en, struct ticket *t, struct ticket_list *from);

void queue_init(struct engine *en);
void queue_free(struct engine *en);
bool queue_busy(struct engine *en); /* requests wait or run */
bool queue_paused(struct engine *en);
void queue_put(struct engine *en, struct ticket *t);   /* at the end; gives it its number */
void queue_start(struct engine *en, struct ticket *t); /* from waiting to running */
void queue_cancel_all(struct engine *en);
/* Takes a ticket out of those that have ended; NULL: it is not there. 0: the oldest. */
struct ticket *queue_take(struct engine *en, int64_t number);
struct ticket *queue_next(struct engine *en); /* the one that waits and whose turn it is, or NULL */
/* Marks as ending the requests that have failed or were cancelled until now; queue_ending() is the first of a list. */
void queue_mark_ending(struct engine *en);
struct ticket *queue_ending(struct engine *en, const struct ticket_list *l);
void queue_step_begins(struct engine *en);
void queue_step_ends(struct engine *en);
/* Whether a request that runs, or with `waiting` also one that waits, has the adapter. */
bool queue_has(struct engine *en, int adapter, bool waiting);

/* ---- adapters.c: the stepping thread, with no step under way ---- */

/* Gives up those that were dropped and that no request has any more. */
void adapters_drop(struct engine *en);
/* Under the queue's lock: whether one was dropped. */
bool adapter_is_dropped(const struct engine *en, int adapter);
/* Sees to it that the adapter of a ticket that is to begin is awake, or fails the ticket. False: there is no room for
 * it until a request that runs has ended. */
bool adapter_ready(struct engine *en, struct ticket *t);

/* ---- logprobs.c ---- */

/* What a request asks for beside the token, from a row of logits, into en->top_* and en->id_logp. SAMPLER_LEFT_OUT in
 * the row gives -INFINITY. */
void logprobs_of_row(struct engine *en, const struct request *r, const float *logits);
/* Makes room in t->prompt for the log-probabilities of a prompt; none of them is there but the first token's. */
void logprobs_begin_prompt(struct ticket *t);
/* Feeds the next n tokens of a prompt, which are not its last, and writes the log-probabilities of those behind them.
 */
enum status logprobs_feed_prompt(struct engine *en, struct flight *f, int n, struct err *e) MUST_USE;

/* ---- engine.c ---- */

int64_t kv_blocks_of(int64_t tokens);

#endif
