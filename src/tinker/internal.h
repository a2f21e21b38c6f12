/* What the files of tinker share. All of it belongs to the server's thread, but for what struct tinker_run says. */
#ifndef KERNELRL_TINKER_INTERNAL_H
#define KERNELRL_TINKER_INTERNAL_H

#include <stdatomic.h>

#include "base/hash.h"
#include "policy/answer.h"
#include "serve/model_thread.h"
#include "serve/work.h"
#include "tinker/calls.h"
#include "tinker/datums.h"
#include "tinker/tinker.h"

enum {
    POLL_S = 25,          /* a poll is held so long; clients give up after 45 s */
    RESULT_S = 3600,      /* a result stays so long */
    SESSION_S = 900,      /* a session without any sign of life ends */
    GAP_S = 600,          /* a call waits so long for one before it */
    FUTURE_SLOTS = 16384, /* of the table */
    LORA_ALPHA = 32,
    KEPT_SNAPSHOTS = 4, /* samplers without a name, of a model, that a restart finds again */
    SNAPSHOTS = 64,     /* that there are at a time; older ones go, once nobody samples from them */
    SESSIONS = 4096,    /* of a tenant, that have not ended */
    SAMPLERS = 4096,    /* of a tenant, that have not gone */
    ENDED = 1024,       /* sessions that have ended and are remembered */
};

/* ---- tenants ------------------------------------------------------------------------------------------------------*/

/* Bytes of the results that are kept; unread: of those that nobody has fetched. */
struct kept_results {
    int64_t bytes, unread;
};
/* Whoever has one key. Nobody else sees what is a tenant's, and each has limits of its own. Without keys all clients
 * are one tenant. */
struct tinker_tenant {
    struct tinker_tenant *next;
    char id[33]; /* digits of the key's digest; "": the server has no keys */
    char *name;  /* the key's; NULL: it has none, or has not asked for anything yet */
    struct kept_results kept;
    struct model_turn turn;
    int64_t held_bytes;                    /* of calls and requests that have not ended */
    int64_t tokens;                        /* of calls and requests that have not ended */
    int64_t sequences;                     /* of requests that have not ended */
    int64_t inside;                        /* of these, the engine's */
    struct sampling *queued, **queued_end; /* requests that have a part which the engine has not */
};

/* ---- futures ------------------------------------------------------------------------------------------------------*/

enum future_state { FUTURE_WAITS, FUTURE_DONE, FUTURE_FAILED };
/* What a call is answered with: a promise, and what became of it. */
struct future {
    struct future *next;          /* in its slot */
    char *id;                     /* made of who and which call it is, so that a resent call finds it */
    struct tinker_session *owner; /* with whose end it goes */
    struct digest content;        /* of the call */
    enum future_state state;
    bool proto;   /* the result is protobuf */
    bool sampled; /* true: the store has the request, and is to be told when the result was fetched */
    struct str result;
    double since; /* when it was made or, then, done */
    double read;  /* when its result was fetched last; 0: never */
    struct http_exchange **poll;
    int n_polls, cap_polls;
};

/* ---- calls --------------------------------------------------------------------------------------------------------*/

/* The numbers stand in files. */
enum call_kind {
    CALL_CREATE = 1,
    CALL_LOAD = 2,
    CALL_TRAIN = 3,
    CALL_STEP = 4,
    CALL_SAVE_WEIGHTS = 5,
    CALL_SAVE_SAMPLER = 6,
    CALL_SAVE_EXTERNAL = 7,
    CALL_SAMPLER = 8,
    CALL_SAMPLE = 9,
};
/* A call with its body, unpacked. */
struct incoming {
    struct http_exchange *x; /* NULL: a server before this one took it on, and nobody waits for a reply */
    enum call_kind kind;
    const char *body; /* [n] */
    size_t n;
};

/* A call whose body may be large. It is read aside (serve/work.h), so that nobody waits for it but its client, and then
 * taken on by the server's thread. Calls of one model may overtake each other so: their numbers say the order. */
struct call_reading {
    struct work work;
    struct tinker *t;
    struct incoming in; /* the body is in `body`, or the caller's */
    bool packed;        /* true: the body that comes is packed with zstd */
    int32_t vocab;      /* of the model */
    int64_t max_tokens;
    void (*read)(struct call_reading *r); /* any thread: reads r->in, and uses nothing of r->t */
    void (*take)(struct call_reading *r); /* the server's thread, where `refused` is 0 */
    /* What was read. */
    struct str body; /* unpacked */
    int refused;     /* 0, or the HTTP status of a body that says nothing of a call; `err` says why */
    enum status status;
    struct err err;
    struct digest content;
    struct arena mem;
    struct wire_training training; /* of CALL_TRAIN */
    struct datums datums;
    struct call_sample sample; /* of CALL_SAMPLE */
};

/* ---- sessions, models, samplers -----------------------------------------------------------------------------------*/

struct tinker_session {
    struct tinker_session *next;
    struct tinker_tenant *tenant;
    char id[40];
    char *name, *metadata, *project; /* or NULL; metadata: JSON; project: a label */
    int64_t made;                    /* Unix seconds */
    double heard;                    /* when its last sign of life came */
    bool finished;
    double ended;       /* then: when */
    const char *reason; /* then: "success", "errored" or "interrupted", as its client said first */
    /* The file of its requests to sample (store.c). */
    int samples;                         /* -1: none yet */
    int unfetched;                       /* requests in it whose results were not fetched */
    int64_t samples_bytes, samples_trim; /* its bytes, and how many there are when it is trimmed next */
};

/* Requests of a sampler that have ended, for polls that wait for all of a sampler's (completions.c). */
struct completions {
    struct completion {
        int64_t number; /* grows; also from one server to the next */
        int64_t clone;  /* of the sampler: whose requests are told together */
        char *id;       /* of the request */
        double since;
        bool failed;
        int64_t bytes; /* of the result */
    } * item;
    int n, cap;
    struct http_exchange **poll;
    int n_polls, cap_polls;
};

/* A call that waits for those before it. */
struct tinker_held {
    struct tinker_held *next;
    int64_t seq;
    struct task *task;
    double since;
};

/* A model that a client trains: a training run. */
struct tinker_run {
    struct tinker_run *next;
    struct tinker_session *session;
    char *id, *metadata;
    char *base;     /* what its client calls the base model */
    int64_t number; /* model_seq_id */
    struct adapter_shape shape;
    int64_t next_seq; /* the call that is executed next */
    int64_t calls;    /* that were accepted */
    struct tinker_held *held;
    bool busy;              /* true: the model's thread has a call of this run */
    bool gone;              /* true: the session has ended, and the run's weights are given up */
    bool corrupt;           /* true: the model could not be made */
    char *dir;              /* what is kept of it on disk (store.c) */
    int log;                /* the file of its calls; -1: none */
    atomic_bool log_broken; /* true: it could not be written to, and takes nothing more */
    int64_t last_used;      /* Unix seconds */
    /* The model's thread, while `busy`, and whoever gives the run up. */
    int adapter; /* 0: none */
    struct trainer *trainer;
    int64_t used;                   /* number of the last use */
    bool half_done;                 /* true: a call has trained on some of its datums; the model must not rest */
    double kept_at;                 /* when its state was kept */
    char *snapshot[KEPT_SNAPSHOTS]; /* folders of its last samplers without a name, the newest first */
};

struct tinker_sampler {
    struct tinker_sampler *next;
    struct tinker_session *session;
    const struct tinker_run *run; /* of one without a name: whose weights it has; else NULL */
    char *id, *path;              /* path: of the checkpoint, or NULL */
    char *base;                   /* what the base model is called */
    struct digest content;
    int adapter; /* as in struct request */
    bool ready;
    bool gone;      /* true: its weights are given up */
    double went;    /* then: when */
    struct err err; /* where it could not be made */
    bool failed;
    struct sampling *waiting; /* requests that came before it was ready */
    struct completions completed;
    int64_t joined; /* clients that it has given a number of their own */
};

struct tinker_checkpoint {
    struct tinker_checkpoint *next;
    char *run, *name, *base, *folder; /* base: as in a run; folder: below the checkpoints' */
    char owner[33];                   /* the tenant's id; "": whoever uses the server */
    enum checkpoint_kind kind;
    struct adapter_shape shape;
    bool moments, public;         /* moments: it holds the optimizer's; public: every tenant may read it */
    int64_t bytes, made, expires; /* Unix seconds; expires 0: never */
    char *metadata;               /* JSON, or NULL */
    char *call;                   /* the future of the call that made it; NULL: not known */
    char *project;                /* of the session, when it was made; or NULL */
    char link[40];                /* the name of its files' addresses; "": nobody has asked for them yet */
    double link_ends;             /* then: when they end, on the clock of tinker_now_s() */
};

/* ---- work for the model's thread ----------------------------------------------------------------------------------*/

enum task_kind {
    TASK_CREATE,
    TASK_LOAD,
    TASK_TRAIN,
    TASK_STEP,
    TASK_SAVE,
    TASK_SNAPSHOT,     /* copies a run's adapter for a sampler without a name */
    TASK_OPEN_SAMPLER, /* loads a checkpoint's adapter for a sampler */
    TASK_DROP,         /* gives up the weights of a run or of a sampler */
    TASK_CLOSE,        /* gives up the weights of all runs */
};
struct task {
    struct model_call call;
    struct tinker *t;
    struct task *next, **link; /* in t->tasks */
    enum task_kind kind;
    struct tinker_run *run;         /* or NULL */
    struct tinker_sampler *sampler; /* or NULL */
    struct future *future;          /* or NULL */
    struct arena mem;
    int64_t bytes;  /* that count as held */
    int64_t tokens; /* that count as waiting */
    int64_t seq;    /* 0: it is no numbered call */
    /* what is asked for */
    struct datums datums;
    struct call_optim optim;
    uint64_t seed;
    char *folder;                         /* to read, or to write */
    bool optimizer;                       /* of a load: with the moments */
    bool creates;                         /* the run begins with it */
    struct tinker_checkpoint *checkpoint; /* of a save: what is added where it goes well */
    char *path;                           /* of the result */
    /* how it goes: the model's thread */
    int at; /* the next datum */
    double loss;
    struct train_mark mark;
    enum status status;
    struct err err;
    struct str result;
    bool proto;
    bool resumed;               /* true: it reads the state that a server before this one kept */
    bool kept;                  /* the run's state was kept behind it */
    struct adapter_shape shape; /* of what a load has read */
    int adapter;                /* of a snapshot or an opened sampler; of a drop: to be dropped */
};

/* A request to sample. The engine gets it in parts of `part` samples, so that tenants take turns. */
struct sampling {
    struct sampling *next, *next_queued;
    struct tinker *t;
    struct tinker_sampler *sampler;
    struct future *future;
    struct job *job;
    struct request request;     /* as a whole; lies in the arena */
    int part, n_parts, n_given; /* n_given: parts that the engine has got */
    int64_t inside;             /* samples of parts that the engine has got and not ended */
    int64_t tokens, bytes;      /* that count as waiting; tokens 0: the request does not count */
    struct arena mem;
    struct call_sample call;
};

struct tinker {
    const struct tinker_options *o;
    struct serve *serve;
    struct model_thread *thread;
    struct comm *comm;
    struct future *future[FUTURE_SLOTS];
    struct tinker_tenant *tenants;
    int64_t inside;      /* samples of all tenants that the engine has */
    int64_t completions; /* number of the last one */
    struct tinker_session *sessions;
    struct tinker_run *runs;
    struct tinker_sampler *samplers;
    struct tinker_checkpoint *checkpoints;
    struct sampling *samplings; /* those that have a job */
    struct task *tasks;         /* all that have not ended */
    char *folder;               /* of checkpoints */
    char *session_folder;       /* of sessions that have not ended */
    bool restored;              /* what a server before this one left goes on */
    double ticked;
    /* the model's thread */
    int64_t uses;
    struct trained { /* models that have a trainer */
        struct tinker_run **run;
        int n, cap;
    } trained;
    int *sampled; /* adapters of samplers, the oldest first */
    int n_sampled, cap_sampled;
    int n_tasks; /* that the model's thread has */
    atomic_bool closing;
};

/* ---- tinker.c ---- */
double tinker_now_s(void);
/* A name that nobody can guess. False: the system gives no random numbers. */
bool random_name(char out[40]);
/* Replies with {"detail": ...}, without paths (http_tell_without_paths). */
void reply_detail(struct http_exchange *x, int status, const char *fmt, ...) PRINTF_LIKE(3, 4);
void reply_empty(struct http_exchange *x);
/* The body as a JSON object, which the caller gives up. NULL: it is none, and x has its reply. */
json_t *body_json(struct http_exchange *x);
/* The body as above, *j, and its member that names something, which lies in it. NULL: x has its reply. */
const char *body_name(struct http_exchange *x, const char *member, json_t **j);
/* Does the same as body_json() for a call, where x may be NULL: then nobody is told. */
json_t *incoming_json(const struct incoming *in);
/* A body as a JSON object, which the caller gives up. ST_PARSE: it is no JSON; ST_INVALID: no object. Any thread. */
enum status read_json(const struct incoming *in, json_t **out, struct err *e) MUST_USE;
struct digest body_digest(const struct http_exchange *x);
/* True: the model is ready. False: x has its reply. */
bool model_is_up(struct tinker *t, struct http_exchange *x);
/* Where clients may go on: false, and x has its reply, when there is no such session or it has ended. */
struct tinker_session *session_of(struct tinker *t, struct http_exchange *x, const char *id);
struct tinker_run *run_find(const struct tinker *t, const char *id);
struct tinker_sampler *sampler_find(const struct tinker *t, const char *id);
/* The same for a client: NULL also where it is another tenant's. x NULL: the store's, who sees all. */
struct tinker_session *session_seen(struct tinker *t, const struct http_exchange *x, const char *id);
struct tinker_run *run_seen(struct tinker *t, const struct http_exchange *x, const char *id);
struct tinker_sampler *sampler_seen(struct tinker *t, const struct http_exchange *x, const char *id);
/* reason: as in the session, or NULL for one that its client did not tell. */
void session_finish(struct tinker *t, struct tinker_session *s, const char *reason);
/* Gives up what a session that has ended holds, once nothing of it is under way. */
void session_settle(struct tinker *t, struct tinker_session *s);

/* ---- ended.c ---- */
/* What ended long ago is forgotten: samplers that are gone, and sessions with their models. */
void ended_forget(struct tinker *t, double now);
/* What has no part in anything any more. */
void ended_session_free(struct tinker_session *s);
void ended_run_free(struct tinker_run *r);
void ended_sampler_free(struct tinker_sampler *m);

/* ---- tenants.c ---- */
/* The tenant with this id, which is made where there is none yet. */
struct tinker_tenant *tenant_by_id(struct tinker *t, const char *id);
/* The client's. */
struct tinker_tenant *tenant_of(struct tinker *t, const struct http_exchange *x);
/* For messages. */
const char *tenant_name(const struct tinker_tenant *b);
/* What each tenant has and waits for. */
void tenants_metrics(void *tinker, struct str *out);
/* Whether a tenant sees what has this owner. `by` NULL: the store, who sees all. */
bool tenant_sees(const struct tinker_tenant *by, const char *owner);
/* The quotas of keys. True: x has its reply, 429, because so many tokens more would wait than a key may have. */
bool tenant_has_enough(const struct tinker *t, const struct tinker_tenant *b, struct http_exchange *x, int64_t tokens);
/* Whether a further model may be made: ST_INVALID, it is one more than a key may have. */
enum status tenant_may_add_model(const struct tinker *t, const struct tinker_tenant *b, struct err *e) MUST_USE;
/* Whether a further checkpoint may be written: ST_INVALID, the key's take as many bytes as they may. */
enum status tenant_may_save(const struct tinker *t, const struct tinker_tenant *b, struct err *e) MUST_USE;
void tenants_free(struct tinker *t);

/* ---- futures.c ---- */
struct future *future_find(const struct tinker *t, const char *id);
struct future *future_make(struct tinker *t, const char *id, struct tinker_session *owner,
                           const struct digest *content);
/* The same for a client: NULL also where it is another tenant's. */
struct future *future_seen(struct tinker *t, const struct http_exchange *x, const char *id);
/* Its result, which is there, has been fetched. */
void future_read(const struct tinker *t, struct future *f);
/* Takes the bytes of result. */
void future_done(struct future *f, struct str *result, bool proto);
/* category: "user", "server" or "unknown". The client gets the message without paths. */
void future_fail(struct future *f, const char *category, const char *message);
void future_end(struct future *f, enum status st, const struct err *e);
/* Replies to the call that made it. */
void future_promise(struct http_exchange *x, const struct future *f, const char *model_id);
/* A call that came before with the same content gets the same promise; with another one, it is refused. True: x has its
 * reply. */
bool future_repeated(struct tinker *t, struct http_exchange *x, const char *id, const struct digest *content,
                     const char *model_id);
void futures_drop(struct tinker *t, const struct tinker_session *owner);
/* While more than max_results bytes of a tenant are kept, those go that were fetched longest ago, and not within
 * reread_s. */
void futures_trim(struct tinker *t, double now);
/* Whether so many bytes of a tenant wait to be fetched that no further call of it is taken on; x has its reply, 429,
 * then. */
bool futures_full(const struct tinker *t, const struct tinker_tenant *b, struct http_exchange *x);
void futures_age(struct tinker *t, double now);
void retrieve_begin(void *tinker, struct http_exchange *x);
void retrieve_event(void *tinker, struct http_exchange *x, enum http_event e);
void retrieve_end(void *tinker, struct http_exchange *x);

/* ---- completions.c ---- */
/* A request of the sampler has ended. */
void completion_add(struct tinker *t, struct tinker_sampler *m, const struct future *f, int64_t seq);
/* Everybody who waits for them looks again. */
void completions_wake(const struct tinker_sampler *m);
/* Those go that are too old to be asked for, or whose results are gone. */
void completions_age(struct tinker *t, double now);
void completions_free(struct tinker_sampler *m);
void retrieve_many_begin(void *tinker, struct http_exchange *x);
void retrieve_many_event(void *tinker, struct http_exchange *x, enum http_event e);
void retrieve_many_end(void *tinker, struct http_exchange *x);

/* ---- store.c: what a server that is killed leaves to the next one ---- */
enum status store_open(struct tinker *t, struct err *e) MUST_USE;
/* Once the model is there: sessions, models and samplers of the server before are made again, and their calls go on. */
void store_go_on(struct tinker *t);
enum status store_session(const struct tinker *t, const struct tinker_session *s, struct err *e) MUST_USE;
/* Its end: the next server does not go on with it. With `all` its files go. */
void store_end_session(const struct tinker *t, const struct tinker_session *s, bool all);
/* A new model's folder, with the call that makes it. */
enum status store_run(const struct tinker *t, struct tinker_run *r, const struct incoming *in,
                      const struct digest *content, struct err *e) MUST_USE;
/* The work that makes a run of the server before reads the state that was kept, where there is one. */
void store_resume(struct tinker_run *r, struct task *w);
/* Before a call is answered. */
enum status store_call(struct tinker_run *r, const struct incoming *in, int64_t seq, const struct digest *content,
                       struct err *e) MUST_USE;
void store_result(struct tinker_run *r, int64_t seq, const struct future *f);
/* The model's thread, behind a step or a load: keeps weights and moments where it is time, and says so in w->kept. */
void store_state(struct task *w, struct policy *p);
/* The run's state was kept behind this call: what the next server does not need of the calls up to it goes. */
void store_trim(struct tinker *t, struct tinker_run *r, int64_t seq);
/* The model's thread: keeps the weights of a sampler without a name in w->folder. */
void store_snapshot(struct task *w, struct policy *p);
char *store_sampler_folder(const struct tinker *t, const struct tinker_session *s, int64_t number); /* malloc'ed */
enum status store_sampler(const struct tinker *t, const struct tinker_session *s, const struct incoming *in,
                          const struct digest *content, struct err *e) MUST_USE;
void store_close_run(struct tinker_run *r);
/* A request to sample, before it is answered; and that its result was fetched. */
enum status store_sample(const struct tinker *t, struct tinker_session *s, const struct incoming *in,
                         const struct digest *content, struct err *e) MUST_USE;
void store_sample_over(const struct tinker *t, const struct future *f);

/* ---- reading.c ---- */
/* Reads the body of x and takes it on, at once or later. The route has reading_event and reading_end. */
void reading_begin(struct tinker *t, struct http_exchange *x, enum call_kind kind, void (*read)(struct call_reading *r),
                   void (*take)(struct call_reading *r));
void reading_event(void *tinker, struct http_exchange *x, enum http_event e);
void reading_end(void *tinker, struct http_exchange *x);
/* Does the same at once for a call of the store. */
void reading_now(struct tinker *t, const struct incoming *in, void (*read)(struct call_reading *r),
                 void (*take)(struct call_reading *r));

/* ---- runs.c ---- */
void run_take(struct tinker *t, const struct incoming *in);
/* A call of the server before, whose future has its result. */
void run_over(struct tinker *t, struct tinker_run *r, int64_t seq);
void create_model_begin(void *tinker, struct http_exchange *x);
void load_weights_begin(void *tinker, struct http_exchange *x);
void forward_backward_begin(void *tinker, struct http_exchange *x);
void optim_step_begin(void *tinker, struct http_exchange *x);
void save_weights_begin(void *tinker, struct http_exchange *x);
void save_sampler_begin(void *tinker, struct http_exchange *x);
void save_external_begin(void *tinker, struct http_exchange *x);
/* Begins the next call of a run, where there is one. */
void run_go_on(struct tinker *t, struct tinker_run *r);
/* Fails what waits. */
void run_fail_held(struct tinker *t, struct tinker_run *r, const char *why);
void runs_mind_gaps(struct tinker *t, double now);

/* ---- tasks.c ---- */
struct task *task_make(struct tinker *t, enum task_kind kind);
void task_free(struct task *w);
void task_begin(struct task *w);

/* ---- sampling.c ---- */
void create_sampler_begin(void *tinker, struct http_exchange *x);
void sample_begin(void *tinker, struct http_exchange *x);
void cancel_begin(void *tinker, struct http_exchange *x);
void sampler_take(struct tinker *t, const struct incoming *in);
void sample_take(struct tinker *t, const struct incoming *in);
void join_sampler_begin(void *tinker, struct http_exchange *x);
/* Reads a sampler's weights, and takes the name of the folder; requests that come before that is done wait. */
void sampler_open_folder(struct tinker *t, struct tinker_sampler *m, char *folder);
struct tinker_sampler *sampler_add(struct tinker *t, struct tinker_session *s, const char *id, const char *base);
/* Gives up the samplers without a name of a run that are more than there may be, the oldest ones. */
void samplers_trim(struct tinker *t, const struct tinker_run *r);
/* Begins what waited for a sampler. */
void sampler_is_ready(struct tinker *t, struct tinker_sampler *m);
/* Whether a request waits for this sampler, or is under way. */
bool sampler_is_used(const struct tinker *t, const struct tinker_sampler *m);
/* Ends what a session samples. */
void samplings_end(struct tinker *t, const struct tinker_session *s);

/* ---- files.c ---- */
/* What session.json says, written, and read into a zeroed *s, which gets copies of its texts; after an error it has
 * none. owner: the tenant's id; read, it lies in j. ST_PARSE; ST_UNSUPPORTED: a version that is not known. */
void session_put(struct str *out, const struct tinker_session *s, const char *owner);
enum status session_parse(const json_t *j, const char *where, struct tinker_session *s, const char **owner,
                          struct err *e) MUST_USE;
/* The same for checkpoint.json. */
void checkpoint_put(struct str *out, const struct tinker_checkpoint *c);
enum status checkpoint_parse(const json_t *j, const char *where, struct tinker_checkpoint *c, struct err *e) MUST_USE;
void checkpoint_free(struct tinker_checkpoint *c);

/* ---- checkpoints.c ---- */
enum status checkpoints_open(struct tinker *t, struct err *e) MUST_USE;
void checkpoints_close(struct tinker *t);
struct tinker_checkpoint *checkpoint_find(const struct tinker *t, const struct checkpoint_path *p);
/* The checkpoint of a tinker:// path, if this tenant may read it (NULL: the store may all). ST_INVALID: there is none,
 * and the message says what to do. */
enum status checkpoint_at(const struct tinker *t, const struct tinker_tenant *by, const char *path,
                          struct tinker_checkpoint **out, struct err *e) MUST_USE;
/* Whether the tenant may read it. */
bool checkpoint_seen(const struct tinker_checkpoint *c, const struct tinker_tenant *by);
struct tinker_checkpoint *checkpoint_make(const struct tinker_run *r, enum checkpoint_kind kind,
                                          const struct call_save *c, const char *call);
char *checkpoint_dir(const struct tinker *t, const struct tinker_checkpoint *c); /* malloc'ed */
/* What a copy of a checkpoint has of its own; expires as in a checkpoint. */
struct checkpoint_copy {
    const char *run, *owner, *call, *project; /* project: or NULL */
    int64_t expires;
};
/* Makes one whose files are those of `from`, and adds it to the table. */
enum status checkpoint_copy(struct tinker *t, const struct tinker_checkpoint *from, const struct checkpoint_copy *c,
                            struct err *e) MUST_USE;
/* The checkpoint of a tenant that this call made, or NULL. */
struct tinker_checkpoint *checkpoint_of_call(const struct tinker *t, const struct tinker_tenant *by, const char *call);
/* Writes down what it is, into its folder. Any thread. */
enum status checkpoint_describe(const struct tinker_checkpoint *c, const char *dir, struct err *e) MUST_USE;
/* Puts it into the table, in the place of the one of its name, which goes with its files. */
void checkpoint_add(struct tinker *t, struct tinker_checkpoint *c);
void checkpoint_remove(struct tinker *t, struct tinker_checkpoint *c);
void checkpoints_age(struct tinker *t, int64_t now);
void put_checkpoint(struct str *out, const char *key, const struct tinker_checkpoint *c);
void put_time(struct str *out, const char *key, int64_t unix_s);

/* ---- listing.c ---- */
void get_info_begin(void *tinker, struct http_exchange *x);
void capabilities_begin(void *tinker, struct http_exchange *x);
void runs_list_begin(void *tinker, struct http_exchange *x);
void run_get_begin(void *tinker, struct http_exchange *x);
void run_delete_begin(void *tinker, struct http_exchange *x);
void run_put_begin(void *tinker, struct http_exchange *x);
void run_post_begin(void *tinker, struct http_exchange *x);
void checkpoints_list_begin(void *tinker, struct http_exchange *x);
void weights_info_begin(void *tinker, struct http_exchange *x);
void sampler_get_begin(void *tinker, struct http_exchange *x);
void sessions_list_begin(void *tinker, struct http_exchange *x);
void session_get_begin(void *tinker, struct http_exchange *x);
/* ---- manage.c ---- */
void copy_weights_begin(void *tinker, struct http_exchange *x);
void session_project_begin(void *tinker, struct http_exchange *x);
void sessions_search_begin(void *tinker, struct http_exchange *x);
void storage_usage_begin(void *tinker, struct http_exchange *x);

/* ---- listing.c, too ---- */
/* Files of external checkpoints, without a key: their addresses cannot be guessed, and end after a while. */
void file_get_begin(void *tinker, struct http_exchange *x);

#endif
