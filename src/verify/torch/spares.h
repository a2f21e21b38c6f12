/* spares: jailed Pythons that wait for answers (GPU). Starting one takes seconds, which an answer that takes a spare
 * does not have to wait for. */
#ifndef KERNELRL_VERIFY_TORCH_SPARES_H
#define KERNELRL_VERIFY_TORCH_SPARES_H

#include "verify/torch/answer.h"

struct module_judge;

enum { MODULE_SPARES = 2 };

/* A jailed Python that waits for an answer. When it is warm, it has its context on the GPU, and Triton has compiled
 * something in it. */
struct module_spare {
    struct modrun r; /* The process. r.outer is 0 where there is none. */
    int due;         /* How many replies to "warm" have not been read yet. After each of them the process is warmer. */
};

struct module_spares {
    struct module_spare of[MODULE_SPARES]; /* The lock protects them. */
    pthread_mutex_t lock;
    pthread_t thread; /* The thread starts the spares that are missing. */
    bool renewing;    /* true: the thread has been started, and nobody has joined it yet. */
};

/* Initialises an empty set. */
void spares_open(struct module_judge *j);
/* Waits for the thread and ends all spares. */
void spares_close(struct module_judge *j);
/* GPU: starts the spares that are missing, in the caller's thread. They go on warming up by themselves. */
void spares_prepare(struct module_judge *j);
/* GPU: the same in a thread of its own. */
void spares_renew(struct module_judge *j);
/* Waits until the spares have stopped working, because what is timed wants no company. Returns at once where the
 * machine has many processors. */
void spares_settle(struct module_judge *j);
/* Moves a spare into *out and gives it this secret for its nonces. A warm spare is preferred, else the first that gets
 * warm is taken. False: there is none. */
bool spares_take(struct module_judge *j, struct modrun *out, uint64_t nonce_seed);

#endif
