/* pool_internal: what the files of the pool share. pool.c: opens, closes, the thread, what its client calls; jobs.c:
 * which job goes where, and what becomes of a verdict; links.c: processes and lines. All of it runs under `lock`. */
#ifndef KERNELRL_VERIFY_POOL_POOL_INTERNAL_H
#define KERNELRL_VERIFY_POOL_POOL_INTERNAL_H

#include <pthread.h>

#include "verify/pool/hardware.h"
#include "verify/pool/link.h"
#include "verify/pool/pool.h"
#include "verify/pool/protocol.h"
#include "verify/pool/secret.h"
#include "verify/pool/store.h"
#include "verify/verdict_cache.h"

enum { JOB_TABLE = 1 << 14, EARLY_MAX = 1 << 14, JOB_EXCLUDED = PROTOCOL_HOSTS, DURATIONS = 64 };

enum link_state {
    LINK_DOWN,     /* no process; it is started at retry_at */
    LINK_STARTING, /* its hello is awaited */
    LINK_OPENING,  /* its verifier is being opened */
    LINK_READY,
    LINK_DRAINING, /* it wants no more jobs and will end */
    LINK_REFUSED   /* it cannot be used, or only later */
};

/* A job at a link. */
struct pool_attempt {
    char j[33];
    int number;
    struct pool_job *job; /* NULL: nobody waits for it any more */
    bool begun, recalled; /* recalled: asked back, to go to a link that is idle */
    double begun_s;
    struct pool_attempt *next;
};

struct pool_link {
    struct line_link line;
    struct pool_host h;
    char label[220], host[HOST_NAME_BYTES];
    enum link_state state;
    double retry_at, pause_s, heard_s;
    int slots, ahead, failures;
    int cpus_of_slot;                  /* which GPU of the host's list, for local ones; else 0 */
    unsigned classes;                  /* bit c: it judges for class c of the pool */
    char reason[LINK_WHY_BYTES + 200]; /* why it is down or refused */
    struct pool_attempt *held;
    int n_held, n_begun, queue;
    bool alone; /* what it holds must have nothing beside it */
    double probe;
    int strikes; /* audits that found it wrong */
    char last_problem[65];
    double busy_s, busy_from;
};

struct pool_item { /* at_judge of a client's item */
    struct verify_item *item;
    struct pool_job *job; /* NULL: its verdict needed no job */
    bool done, collected;
    struct pool_item *next_done;
};

struct pool_job {
    char j[33];
    struct digest key;
    const struct problem *problem;
    const char *source;
    char *place;
    struct problem own_problem; /* of an audit, with its texts */
    char *own_source;
    int class;
    struct pool_item **items; /* who waits for it, the first one first */
    int n_items, n_settled;
    int attempts, live, losses, troubles; /* live: attempts that have not ended */
    bool queued, over, is_new;
    bool is_audit;
    struct verdict verdict; /* once it is over; of an audit what was said first */
    char judged_on[HOST_NAME_BYTES], asked_on[JOB_EXCLUDED][HOST_NAME_BYTES];
    struct pool_link *audited; /* an audit: who gave the first verdict */
    int n_excluded;
    char said[LINK_WHY_BYTES];  /* why the last attempt was lost */
    struct pool_link *answered; /* who gave the verdict */
    struct pool_job *next;      /* in the table */
    struct pool_job *next_same; /* in the table by answers */
    struct pool_job *next_queued;
};

struct pool_early {
    char j[33];
    struct verdict verdict;
    struct pool_link *from;
    struct pool_early *next;
};

struct pool_class {
    char name[CLASS_BYTES];
};

struct verify_pool {
    struct pool_options o; /* its texts are not kept beyond opening, but for those below */
    char *kept, *credentials;
    struct verify_options settings;
    struct pool_terms terms;
    char run[RUN_NAME_BYTES], settings_hash[17], seed_tag[17];
    uint64_t seed;
    struct pool_class class[POOL_CLASSES_MAX];
    int n_classes; /* 0: the first worker decides */
    char classes_text[POOL_CLASSES_MAX * CLASS_BYTES], hardware[160];
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a verdict, or a link */
    int wake_fd;
    bool started, closing, woken;
    struct pool_link *link;
    int n_links;
    struct pollfd *fds;
    struct pool_job *table[JOB_TABLE], *by_answer[JOB_TABLE]; /* by_answer: no audits, and none that is over */
    struct pool_early *early; /* verdicts of an earlier process of the run, for jobs that are not asked for yet */
    int n_early;
    uint64_t *settled; /* beginnings of the names of jobs that had their verdict: a set */
    size_t n_settled, settled_cap;
    uint64_t audit_key;
    struct pool_job *queue, **queue_end;
    int n_queue, n_out; /* jobs that wait, and that are at links */
    struct pool_item *done, **done_end;
    struct verdict_cache *cache;
    struct verdict_store *store;
    uint64_t serial;
    double duration[DURATIONS]; /* of the latest judgements, s */
    int n_durations;
    double looked_s, stats_s;
    struct pool_stats count; /* since the last call */
};

/* ---- jobs.c ---- */
void job_submit(struct verify_pool *p, struct verify_item *item);
bool job_withdraw(struct verify_pool *p, struct pool_item *x);
void job_settle(struct verify_pool *p, struct pool_item *x, bool kept);
void jobs_dispatch(struct verify_pool *p, double now);
void jobs_free(struct verify_pool *p);
/* A line of a link about a job. */
void job_begun(struct verify_pool *p, struct pool_link *l, const struct pool_message *m);
void job_verdict(struct verify_pool *p, struct pool_link *l, const struct pool_message *m);
void job_came_back(struct verify_pool *p, struct pool_link *l, const struct pool_message *m);
/* The link has lost all that it holds. */
void jobs_lost(struct verify_pool *p, struct pool_link *l, const char *why);

/* ---- links.c ---- */
enum status links_make(struct verify_pool *p, const struct pool_hosts *hosts, struct err *e) MUST_USE;
void links_look(struct verify_pool *p, double now);
int links_fds(struct verify_pool *p);    /* fills p->fds */
void links_serve(struct verify_pool *p); /* after poll() */
void link_send_line(struct pool_link *l, const struct str *line);
void link_give_up(struct verify_pool *p, struct pool_link *l, enum link_state state, double retry_s, const char *why);
void link_busy(struct pool_link *l, int change); /* begun jobs */

#endif
