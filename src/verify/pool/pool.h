/* pool: verdicts from many processes and hosts. A pool is a judge (verify/judge.h): it gives each answer to a worker
 * that is free, on this machine, on another one through ssh, or behind a queue, and takes the first verdict that comes
 * back. What a worker loses is given to another one; an answer that takes three workers with it is missing, never zero.
 * Nothing but time is lost when a worker, a host or a queue ends at any moment. docs/farm.md says how to use it. */
#ifndef KERNELRL_VERIFY_POOL_POOL_H
#define KERNELRL_VERIFY_POOL_POOL_H

#include "verify/judge.h"
#include "verify/pool/hosts.h"

enum { POOL_CLASSES_MAX = 8, POOL_LOSSES = 3 };

struct pool_options {
    const char *hosts; /* as hosts.h reads them; NULL or "": there is no pool */
    const char
        *classes;      /* kinds of machine that may judge, with commas; NULL: the one that is there first. With several
                          every problem belongs to one of them, so that no group of answers has times of two kinds */
    double lease_s;    /* a worker that is silent for so long has lost its jobs; 0: 30 */
    double deadline_s; /* a job may be judged for so long; 0: 300 */
    double audit;      /* share of jobs that are judged again on another host and compared */
    const char *store; /* folder of verdicts that runs share (store.h); NULL: none */
    const char *run;   /* 16 hex digits; NULL: a new name. A run that goes on keeps its name */
    const char *kept;  /* folder for answers that took three workers with them; NULL: they are not kept */
    const char *credentials; /* folder with what a queue asks for (docs/farm.md); NULL: KERNELRL_FARM */
    /* For tests. */
    const char *program; /* of local workers; NULL: this one */
    double beat_s;       /* 0: 2 */
    double hedge_s;      /* no job is given to a second host before; 0: 5 */
};

struct verify_pool;
/* Starts workers that judge as a verifier with these options would, and waits for the first that is ready. ST_CONFIG
 * for hosts and classes that cannot be read or do not fit together; ST_WORKER when no worker can be had: the message
 * names each host with its reason. ST_CANCELLED. */
enum status verify_pool_open(const struct pool_options *p, const struct verify_options *o, const volatile bool *cancel,
                             struct verify_pool **out, struct err *e) MUST_USE;
/* The texts of the options need not outlive the call, those of the verifier's options the pool. */
void verify_pool_close(struct verify_pool *p); /* ends its workers; NULL is fine */
/* One client at a time collects from it. */
struct judge judge_by_pool(struct verify_pool *p);

struct pool_host_stats {
    char name[200];
    int slots;
    double busy; /* share of the time since the last call in which its slots judged; of a queue NaN */
    bool ready;
};
struct pool_stats {                     /* counts since the last call, but for what is so at this time */
    int queue, in_flight, slots, hosts; /* now */
    int64_t verdicts, redeliveries, duplicates, lost, refused, hedged, missing, cache_hits;
    int64_t audited, disagreements;
    struct pool_host_stats *host; /* [n_hosts]; the caller frees it */
    int n_hosts;
};
struct pool_stats verify_pool_stats(struct verify_pool *p);

/* Who gives verdicts, by options: a pool where hosts are named, else a verifier in this process. */
struct judge_owner {
    struct verifier *verifier;
    struct verify_pool *pool;
    struct judge judge;
};
enum status judge_open(const struct pool_options *p, const struct verify_options *o, const volatile bool *cancel,
                       struct judge_owner *out, struct err *e) MUST_USE;
void judge_close(struct judge_owner *o);

#endif
