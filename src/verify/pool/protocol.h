/* protocol: what a pool and its workers say to each other, version 1 (docs/formats.md, "Verifier workers"): one JSON
 * object a line, over the standard input and output of `kernelrl verify-worker`. A message is rendered into a struct
 * str, and read from a line into a struct pool_message, whose texts live as long as the message. */
#ifndef KERNELRL_VERIFY_POOL_PROTOCOL_H
#define KERNELRL_VERIFY_POOL_PROTOCOL_H

#include "io/json.h"
#include "verify/verify.h"

enum { PROTOCOL_VERSION = 1, PROTOCOL_LINE_BYTES = 4 << 20, PROTOCOL_CLASSES = 8, PROTOCOL_HOSTS = 8 };

/* X(name in the program, name in a line) */
#define MESSAGE_LIST(X)                                                                                          \
    X(MESSAGE_HELLO, hello)       /* worker: who I am; first of all */                                           \
    X(MESSAGE_SLOTS, slots)       /* worker: how many slots there are has changed */                             \
    X(MESSAGE_BEAT, beat)         /* worker: I am alive */                                                       \
    X(MESSAGE_BEGUN, begun)       /* worker: this job is being judged */                                         \
    X(MESSAGE_VERDICT, verdict)   /* worker */                                                                   \
    X(MESSAGE_LOST, lost)         /* worker: what judged this job has died */                                    \
    X(MESSAGE_RETURNED, returned) /* worker: this job was not begun, and will not be */                          \
    X(MESSAGE_REFUSED, refused)   /* either: this job, or this worker, cannot be used, and why */                \
    X(MESSAGE_DRAINING, draining) /* worker: no more jobs, and why */                                            \
    X(MESSAGE_READY, ready)       /* worker: what was asked for with `open` can be judged here */                \
    X(MESSAGE_OPEN, open)         /* pool: settings of a run, and the secret from which inputs are drawn */      \
    X(MESSAGE_JOB, job)           /* pool */                                                                     \
    X(MESSAGE_CANCEL, cancel)     /* pool: nobody wants this job any more; without a job: any job of the run */  \
    X(MESSAGE_ACK, ack)           /* pool: the verdict is kept; only a relay to a queue makes something of it */ \
    X(MESSAGE_DRAIN, drain)       /* pool: finish what is begun, return the rest, and end */
enum message_type {
#define X(id, name) id,
    MESSAGE_LIST(X)
#undef X
        MESSAGE_UNKNOWN /* of a later version: passed over */
};
const char *message_name(enum message_type t);

/* How a run wants its answers judged: in `open` and in each job, so that a job means the same to everybody. */
struct pool_terms {
    const char *run, *class;        /* class: NULL where any of the worker's will do */
    struct verify_options settings; /* what decides verdicts; device is "cpu" or "cuda" */
    const char *settings_hash, *seed_tag;
    const char *program; /* version of the program that asks */
};

/* A job: an answer to be judged. */
struct pool_job_text {
    const char *j; /* 32 hex digits: which verdict is asked for */
    int attempt;   /* from 1; the same verdict may be asked for again, also of others */
    struct pool_terms terms;
    const char *place;
    struct problem problem;
    const char *source;
    double budget_s;                    /* how long judging may take, in all */
    bool alone;                         /* true: nothing else may be judged beside it */
    bool suspect;                       /* true: it may take its worker with it, as it did twice */
    const char *not_on[PROTOCOL_HOSTS]; /* hosts that are not to judge it */
    int n_not_on;
};

/* How a worker was when it gave a verdict. */
struct pool_witness {
    const char *worker, *class; /* host, and class of the slot */
    const char *gpu;            /* UUID; NULL: none */
    double sm_mhz, probe;       /* NaN: unknown */
    double spent_s;
};

struct pool_message {
    enum message_type type;
    json_t *root;  /* owns the texts */
    const char *j; /* NULL: of no job */
    int attempt;
    struct pool_job_text job;
    struct verdict verdict;
    struct pool_witness witness;
    bool cached;             /* a verdict that workers have confirmed for each other */
    bool replayed;           /* a verdict of an earlier process of the run */
    struct pool_terms terms; /* open */
    uint64_t seed;           /* open; 0: to be found out from the run's name */
    const char *hardware;    /* ready: what answers run on, as people call it */
    /* hello, slots, beat */
    int protocol, slots, ahead, hosts;
    const char *program, *host;
    const char *class[PROTOCOL_CLASSES];
    int n_classes;
    double probe, beat_s;
    int64_t queue, redelivered;
    /* the rest */
    const char *reason, *what, *here, *there, *run;
    int losses;
    bool waiting; /* cancel: only where the job has not been begun */
};
/* ST_PARSE: the line is no message; the text says where and why, and quotes nothing of the line but a type's name. */
enum status pool_message_read(const char *line, size_t n, const char *from, struct pool_message *out,
                              struct err *e) MUST_USE;
void pool_message_free(struct pool_message *m);

/* The options that decide verdicts, as one JSON object, and a short name of them: 16 hex digits. The device becomes
 * "cpu" or "cuda": which GPU of its kind is the worker's business. */
void pool_settings_put(const struct verify_options *o, const char *key, struct str *out);
void pool_settings_hash(const struct verify_options *o, char out[17]);
/* Whether answers run on a GPU under these options. */
bool pool_settings_on_gpu(const struct verify_options *o);
/* Tells two secrets apart, and says nothing about either. */
void pool_seed_tag(uint64_t seed, char out[17]);

/* Each appends one line with its newline. */
void pool_put_hello(const struct pool_message *m, struct str *out);
void pool_put_beat(int jobs, double probe, struct str *out);
/* reason: why there are none; NULL: there are some, or nobody knows. */
void pool_put_slots(int slots, int hosts, int64_t queue, int64_t redelivered, const char *reason, struct str *out);
/* seed 0: it does not travel. */
void pool_put_open(const struct pool_terms *t, uint64_t seed, struct str *out);
void pool_put_ready(const char *hardware, struct str *out);
void pool_put_job(const struct pool_job_text *job, struct str *out);
void pool_put_verdict(const char *j, int attempt, const struct verdict *v, const struct pool_witness *w, bool cached,
                      bool replayed, struct str *out);
/* begun, returned, lost (of `losses` leases), cancel, ack: about one job. reason may be NULL. */
void pool_put_about(enum message_type t, const char *j, int attempt, int losses, const char *reason, struct str *out);
/* cancel, of a job that has not been begun: somebody else is idle. */
void pool_put_recall(const char *j, int attempt, struct str *out);
/* what: "protocol", "program", "class", "settings", "secret", "verifier", "size", "line", "signature" ...; j NULL: the
 * worker as a whole. */
void pool_put_refused(const char *j, int attempt, const char *what, const char *here, const char *there,
                      const char *reason, struct str *out);
void pool_put_draining(const char *reason, struct str *out);
void pool_put_drain(struct str *out);
void pool_put_cancel_run(const char *run, struct str *out);

#endif
