/* state: what the files of this room work on. struct module_judge is what all answers share, and struct torch_answer is
 * one answer on its way to its verdict. A function whose name begins with run_ works on one struct torch_answer; where
 * it returns bool, false means that the verdict is there (in r->out) or that the answer's process has gone.
 *
 * The files of the room, from the top down. Each of them calls only files that stand in lines below its own:
 *   open        starts and closes what judging stands on
 *   batch       many answers
 *   judge       one answer: trials, whose kernels run, times
 *   clock       times of answer and reference          rest       what happens behind a batch
 *   outputs     whether outputs are right              reference  the process of the reference
 *   calls       calls in an answer's process           load       from source to a module in that process
 *   gpu         what is checked on a GPU alone
 *   request     one request to an answer's process
 *   failure     what went wrong with it, as a verdict
 *   process     its start and its end
 *   spares      processes that wait for answers
 *   state       this file
 *   answer      one jailed Python                      case       a problem, through the referee */
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

/* With this many processors, each of those that take part in a GPU's timing has one: this process, which waits without
 * sleeping, the referee, and what is timed. */
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

/* How the referee sees the memory of an answer on a GPU. It opens a block when it looks at it for the first time, and
 * may see later calls through the same mapping. Such a mapping can be one of memory that the answer has given back
 * since. */
enum memory_state {
    MEMORY_NEW,     /* No outputs have been looked at, or the last ones through new mappings only. */
    MEMORY_CACHED,  /* Some of the last outputs were looked at through mappings of earlier calls. */
    MEMORY_CONFIRM, /* An output that was looked at so was wrong, and has to be wrong once more before that counts. */
    MEMORY_REOPEN   /* The second look has been taken. As in MEMORY_CONFIRM, no mapping of an earlier call is used. */
};

/* The answer's process, and what is known about it. When the answer is started again in another process, what is known
 * stays. */
struct torch_process {
    struct modrun run;        /* The process. It is valid while `up`. */
    bool up;                  /* true: the process runs, and can be sent requests. */
    bool never_spare;         /* true: the process is always a new one. Spare processes are for references, and for
                               * answers that nothing is loaded in front of. */
    uint64_t started;         /* How many times a process was asked for. The nonces of each depend on this number. */
    json_t *segments;         /* GPU: blocks of the answer's memory, and how another process opens them, as the last
                               * reply to "ready" has them. NULL: there was no such reply. */
    enum memory_state memory; /* GPU: how the referee looks at the memory of the answer. */
    bool own_streams;         /* GPU, true: the answer has worked on streams of its own. The judge then synchronises
                               * the device after each of its calls. */
};

/* How far an answer has come. The process of a reference stays in PHASE_TRIALS. */
enum answer_phase {
    PHASE_TRIALS,  /* The answer is loaded and tested for correctness. */
    PHASE_WARM_UP, /* The trials are over, and the answer is timed. It may still ask for objects to be compiled. */
    PHASE_TURNS    /* The answer is timed, and nothing more is compiled for it. */
};

/* What the clock has noticed about an answer. */
struct clock_notes {
    enum answer_phase phase;
    bool one_at_a_time; /* true: each request has one call, and nothing is taken off for what a request costs. Either
                         * calls of one request write to the same memory, so that only the output of the last one can be
                         * seen, or calls have been found to overlap (GPU). */
    int busy_turns;     /* GPU: timed turns in front of which the device was not at rest. */
    int unlooked;       /* Requests since outputs were last looked at, where outputs are large. */
    int unseen;         /* GPU: looks, since the measurement began, at outputs in memory that nobody knew of before the
                         * call. */
    uint64_t next_set;  /* How many timed sets of inputs have been used. */
};

struct torch_answer {
    struct module_judge *j;
    struct modcase *c;    /* The problem. NULL: it is not known yet. */
    struct verdict *out;  /* The verdict. Its owner is the caller of module_verify(). */
    const char *source;   /* The answer's source. Its owner is the caller of module_verify(). */
    bool control;         /* true: this is the problem's own reference in the place of an answer. */
    bool last_try;        /* true: earlier tries have ended in our own trouble, and there will be no further try. */
    bool certain;         /* true: a fault that was found in the problem is one, because no answer had a part in it. */
    json_t *interface;    /* What the answer is compiled against. NULL: nothing, or it is not known yet. */
    double deadline_s;    /* When the trials have to be over, on the clock of clock_now_s(). */
    uint64_t random;      /* Secret. What is checked, and when, is drawn from this. No two runs have the same. */
    uint64_t random_step; /* How many numbers have been drawn. */
    struct kernel_names kernels; /* The kernels in the answer's sources. */
    struct torch_process process;
    struct clock_notes clock;
};

/* true: the trials are over, and the answer is timed. */
static inline bool is_timed(const struct torch_answer *r) { return r->clock.phase != PHASE_TRIALS; }
static inline bool is_hardened(const struct module_judge *j) { return j->o->scoring == SCORING_HARDENED; }
static inline bool on_gpu(const struct module_judge *j) { return strncmp(j->o->device, "cuda", 4) == 0; }

/* How many processors this process and those that it starts may use. */
int module_cpus(const struct module_judge *j);
/* Leaves the processor of what is timed to it: this thread and what it starts, the referee, and processes to be forked
 * keep to the others. place_free() ends that for this thread. */
void module_keep_clear(struct module_judge *j);
/* The device and the limits of a process for answers to problem c. c may be NULL on a GPU. */
struct modrun_options module_process_options(const struct module_judge *j, const struct modcase *c);

#endif
