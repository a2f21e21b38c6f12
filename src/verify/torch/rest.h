/* rest: what happens behind the last verdict of a batch. The last process ends, and memory of a GPU that was kept only
 * to be quick goes back, in a thread that nobody waits for. */
#ifndef KERNELRL_VERIFY_TORCH_REST_H
#define KERNELRL_VERIFY_TORCH_REST_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct module_judge;
struct torch_answer;

struct module_rest {
    struct torch_answer *last; /* GPU: the answer whose process the thread ends. NULL: there is none. Owned. */
    pthread_t thread;
    bool is_running;    /* true: the thread has been started, and nobody has joined it yet. */
    int64_t held_bytes; /* How much of the GPU's memory the referee's PyTorch still held after the last batch. */
};

/* Behind a batch: ends rest.last, and gives memory back. On a GPU this happens in a thread. */
void module_begin_rest(struct module_judge *j);
/* Waits until the rest that has begun is over. All functions of batch.h and open.h do so by themselves. Others call
 * this before they read rest.held_bytes. */
void module_rested(struct module_judge *j);

#endif
