/* worker: the other end of a pool. A worker reads jobs as lines, judges them, a few at a time, and writes verdicts as
 * lines. It holds the secret of a run and the verifier, and nothing that talks to a network. Its parent is a pool, ssh,
 * or a process that feeds it from a queue; when the parent goes, so does the worker. */
#ifndef KERNELRL_VERIFY_POOL_WORKER_H
#define KERNELRL_VERIFY_POOL_WORKER_H

#include "verify/judge.h"
#include "verify/pool/hardware.h"
#include "verify/pool/protocol.h"

/* What a worker judges with: the verifier (worker_verifier), or a stand-in of the tests. */
struct worker_judge {
    void *ctx;
    const char *version; /* of the program, as hello says it; NULL: this one's */
    /* Judges under these options from here on; what was opened before is closed. */
    enum status (*open)(void *ctx, const struct verify_options *o, struct judge *out, struct err *e);
    void (*close)(void *ctx);
    /* Seconds of the reference over seconds of the same as an answer. */
    enum status (*probe)(void *ctx, const struct verify_options *o, double *ratio, struct err *e);
    /* Whether times of the batch at hand may be wrong, because the machine was not this process's alone. */
    bool (*disturbed)(void *ctx);
};

struct worker_options {
    int in, out;             /* descriptors of the lines */
    const char *name;        /* of the host; NULL: this machine's */
    const char *gpu;         /* UUID of the slot's GPU; NULL: it has none */
    const char *gpu_model;   /* of it */
    const char *secret_file; /* from which secrets of runs are made where `open` brings none; NULL: there is none */
    const char *python, *cache_dir; /* of verify_options */
    bool allow_weaker;
    int compile_jobs;
    int ahead;       /* jobs that may be at hand beside the one that is judged; they are judged together */
    double beat_s;   /* between two signs of life */
    double probe_s;  /* between two null probes; 0: none are made */
    double linger_s; /* so long a first job waits for others */
};
/* Judges until its input ends or it is told to drain. Returns the exit status: 0 behind a drain. */
int worker_run(const struct worker_options *o, const struct worker_judge *w);

/* The verifier of this process, with the lease of its machine or GPU. Only one at a time. */
struct worker_judge worker_verifier(const struct worker_options *o);

/* What a null probe has to lie in. */
#define WORKER_PROBE_LOW 0.97
#define WORKER_PROBE_HIGH 1.03

#endif
