/* state: what the files of this room work on. struct module_judge is what all answers share, and struct torch_answer is
 * one answer on its way to its verdict. A function whose name begins with run_ works on one struct torch_answer; where
 * it returns bool, false means that the verdict is there (in r->out) or that the answer's process has gone. */
#ifndef KERNELRL_VERIFY_TORCH_STATE_H
#define KERNELRL_VERIFY_TORCH_STATE_H

#include <stdatomic.h>
#include <string.h>

#include "verify/build/compile.h"
#include "verify/build/extension.h"
#include "verify/build/kernel_names.h"
#include "verify/jail/cpu_pin.h"
#include "verify/torch/answer.h"
#include "verify/torch/case.h"
#include "verify/torch/rest.h"
#include "verify/torch/spares.h"

/* Processors from which on those that take part in a GPU's timing (this process, which waits without sleeping, the
 * referee, what is timed) have one each. */
enum { GPU_CPUS = 4 };

struct module_judge {
    const struct verify_options *o;
    struct compiler *compiler;
    struct extension_tools tools;
    struct zygote zygote;
    struct modcases cases;
    struct modrun reference;     /* The process that runs eager calls of `current`. outer is 0 where there is none. */
    struct modcase *current;     /* The problem whose reference runs. NULL: none. */
    struct module_spares spares; /* GPU: processes that wait for answers. */
    pthread_t preparing;         /* Triton on a GPU: this thread prepares the warm Python for rehearsals. */
    bool is_preparing;           /* true: that thread has been started, and nobody has joined it yet. */
    struct cpu_pin place;        /* GPU: the processor on which answer and reference run while they are timed. */
    uint64_t seed;               /* Secret. */
    uint64_t runs;               /* Answers that have been begun. One that is begun again counts again. */
    bool referee_open;           /* true: `referee` has been started and must be closed. */
    struct refworker referee;
    /* Both of these have been seen in a process that had run nothing of an answer's. */
    atomic_bool available;     /* true: this machine has what the backend needs. */
    atomic_bool lists_kernels; /* true: a process can list the kernels that run in it. */
    char gpu_name[128];        /* GPU: its name. */
    char capability[16];       /* GPU: its compute capability. */
    int64_t l2_bytes;          /* GPU: the size of its cache. */
    struct module_rest rest;
};

struct torch_answer {
    struct module_judge *j;
    struct modcase *c;
    struct verdict *out;
    const char *source;
    struct modrun r;
    bool up;
    /* It takes no process that waits: those are for references, and answers that nothing is loaded in front of. */
    bool own;
    bool last;                   /* our own trouble has ended earlier tries, and there will be no other */
    bool control;                /* it is the problem's own reference, in an answer's place */
    bool certain;                /* a fault found in the problem is one: nothing of an answer's had a part in it */
    json_t *interface;           /* cuda_native: its problem's "spec" and "structure"; else NULL */
    struct kernel_names kernels; /* of its sources */
    json_t *segments;            /* GPU: blocks of its memory, and how another process opens them; NULL: not asked */
    bool timed;                  /* the trials are over */
    bool complete;               /* nothing more is compiled for it */
    bool apart;                  /* GPU: each of its calls is waited for: it works on streams of its own */
    bool kept;                   /* GPU: its memory was looked at through what had been opened for an earlier call */
    bool fresh;                  /* GPU: not any more, because that showed something wrong */
    bool again;                  /* and what it was has to be seen once more */
    int busy;                    /* turns in front of which the device was not at rest */
    int unlooked;                /* requests since outputs were looked at, where they are large */
    int unseen;                  /* timed calls whose outputs were in memory that nobody knew of */
    double deadline_s;           /* of the correctness trials */
    bool one_at_a_time;          /* its calls write to the same memory: only the last one's output can be seen */
    uint64_t next_set;           /* timed sets used so far */
    uint64_t random;             /* secret, for what is checked; no two runs have the same */
    uint64_t random_step;
    uint64_t processes; /* started for it: each has nonces of its own */
};

static inline bool is_hardened(const struct module_judge *j) { return j->o->scoring == SCORING_HARDENED; }
static inline bool on_gpu(const struct module_judge *j) { return strncmp(j->o->device, "cuda", 4) == 0; }

/* How many processors this process and those that it starts may use. */
int module_cpus(const struct module_judge *j);
/* Leaves the processor of what is timed to it: this thread and what it starts, the referee, and processes to be forked
 * keep to the others. place_free() ends that for this thread. */
void module_keep_clear(struct module_judge *j);
/* Limits of a process for answers to problem c. c may be NULL on a GPU. */
struct modrun_options module_process_options(const struct module_judge *j, const struct modcase *c);

#endif
