/* module: judges ModelNew answers (backends torch_cpu, cuda, triton, ...) and cuda_native ones. The same trials for
 * all: an answer and the reference each run in a jailed Python (torch/answer.h), the referee (torch/case.h) makes
 * inputs and compares outputs, and this process holds seeds, clock and verdict. */
#ifndef KERNELRL_VERIFY_TORCH_JUDGE_H
#define KERNELRL_VERIFY_TORCH_JUDGE_H

#include <stdatomic.h>

#include "verify/build/compile.h"
#include "verify/build/extension.h"
#include "verify/jail/cpu_pin.h"
#include "verify/torch/answer.h"
#include "verify/torch/case.h"

enum { MODULE_SPARES = 2 };

/* A jailed Python that waits for an answer: on a GPU it has its context already, and Triton has compiled something. */
struct module_spare {
    struct modrun r; /* outer 0: none */
    int due;         /* replies: after each it is warmer */
};

struct module_judge {
    const struct verify_options *o;
    struct compiler *compiler;
    struct extension_tools tools;
    struct zygote zygote;
    struct modcases cases;
    struct modrun reference; /* runs eager calls of `current` */
    struct modcase *current;
    struct module_spare spares[MODULE_SPARES]; /* GPU; under the lock */
    pthread_mutex_t spares_lock;
    pthread_t spares_thread; /* starts new ones */
    bool renewing;           /* it has not been joined */
    pthread_t preparing;     /* Triton on a GPU: what rehearsals need */
    bool is_preparing;       /* it has not been joined */
    struct cpu_pin place;    /* GPU: where answer and reference run while they are timed */
    uint64_t seed, runs;     /* secret; answers begun, those begun again included */
    bool referee_open;
    struct refworker referee;
    /* Found to hold, of a process that has run nothing of an answer's: the backend can be used; kernels can be listed.
     */
    atomic_bool available, lists_kernels;
    /* the GPU */
    char gpu_name[128], capability[16];
    int64_t l2_bytes;
    struct torch_answer *last; /* GPU: the answer whose process is ended by resting; NULL: none */
    pthread_t resting;
    bool is_resting;    /* it has not been joined */
    int64_t held_bytes; /* of its memory, by the referee's PyTorch, after the last batch */
};

/* Starts the warm Python and the referee. o, jail and compiler must outlive it. */
enum status module_open(struct module_judge *j, const struct verify_options *o, struct jail *jail,
                        struct compiler *compiler, struct err *e) MUST_USE;
void module_close(struct module_judge *j);

struct module_item {
    const struct problem *problem;
    const char *source;
    struct verdict *verdict; /* out */
    void (*done)(void *of);  /* called once the verdict is there, in the caller's thread; NULL: nobody waits for it */
    void *of;
};
/* Judges answers in order. Their own failures are verdicts; so is our trouble (INFRASTRUCTURE). ST_CANCELLED when
 * *cancel became true in between. */
enum status module_verify(struct module_judge *j, struct module_item *items, size_t n, const volatile bool *cancel,
                          struct err *e) MUST_USE;
/* On a GPU a batch's last process ends, and memory goes back, behind the last verdict: waits for that. Everything above
 * does so by itself; for who reads held_bytes. */
void module_rested(struct module_judge *j);

#endif
