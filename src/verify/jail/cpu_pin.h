/* place: a processor of its own for what is timed on a GPU. Two processes that take turns at short calls are as fast as
 * the processors they happen to be on: up to 30 % apart when each has another, 2 % on the same. */
#ifndef KERNELRL_VERIFY_JAIL_CPU_PIN_H
#define KERNELRL_VERIFY_JAIL_CPU_PIN_H

#include <sched.h>
#include <stdbool.h>
#include <sys/types.h>

struct cpu_pin {
    cpu_set_t all;    /* that this process may use */
    cpu_set_t others; /* without this one and, where there are many, those that may share a core with it */
    int cpu;          /* -1: none */
    int lock;         /* while it is open no other verifier on this machine takes this processor */
};

/* Takes one processor, the last that is free. None where there are fewer than `least`, or all are taken. */
void place_open(struct cpu_pin *p, int least);
void place_close(struct cpu_pin *p);
/* Binds all threads of a process (0: the calling thread alone) to that processor, or to the others: threads and
 * processes that they start inherit it. False where that is not allowed, or there is no place; nothing is lost but
 * evenness. */
bool place_on(const struct cpu_pin *p, pid_t pid);
bool place_beside(const struct cpu_pin *p, pid_t pid);
/* The calling thread may use all of them again. */
void place_free(const struct cpu_pin *p);

#endif
