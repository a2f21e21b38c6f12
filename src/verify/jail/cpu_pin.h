/* place: a processor of its own for what is timed on a GPU. Two processes that take turns at short calls are as fast as
 * the processors that they happen to run on. They are up to 30 % apart when each has another processor, and 2 % when
 * they share one. */
#ifndef KERNELRL_VERIFY_JAIL_CPU_PIN_H
#define KERNELRL_VERIFY_JAIL_CPU_PIN_H

#include <sched.h>
#include <stdbool.h>
#include <sys/types.h>

struct cpu_pin {
    cpu_set_t all;    /* The processors that this process may use. */
    cpu_set_t others; /* All of these except `cpu` and, on larger machines, those that may share a core with it. */
    int cpu;          /* -1: there is none. */
    int lock;         /* While this descriptor is open, no other verifier on this machine takes this processor. */
};

/* Takes one processor: the last one that is free. Takes none where there are fewer than `least`, or where all are
 * taken. */
void place_open(struct cpu_pin *p, int least);
void place_close(struct cpu_pin *p);
/* Binds all threads of a process (0: only the calling thread) to that processor, or to the others. Threads and
 * processes that they start inherit this. False where this is not allowed, or where there is no such processor. Nothing
 * is lost then but evenness. */
bool place_on(const struct cpu_pin *p, pid_t pid);
bool place_beside(const struct cpu_pin *p, pid_t pid);
/* Lets the calling thread use all processors again. */
void place_free(const struct cpu_pin *p);

#endif
