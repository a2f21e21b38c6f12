/* process: starting, waiting for and killing children. Uses vfork, because the program that starts them may have
 * gigabytes of weights mapped and fork would copy its page tables. */
#ifndef KERNELRL_VERIFY_JAIL_PROCESS_H
#define KERNELRL_VERIFY_JAIL_PROCESS_H

#include <sys/types.h>

#include "base/err.h"

enum { PROCESS_MAX_FDS = 12, PROCESS_MAX_REACHED = 8 };

struct process_start {
    const char *path; /* absolute */
    char *const *argv, *const *envp;
    int fds[PROCESS_MAX_FDS]; /* descriptor i of the child; -1: /dev/null. All others are closed. */
    int n_fds;
    bool drop_root;             /* when root: become a user without rights first */
    const char *const *reached; /* directories that this user gets to, even below root's home; all it sees there */
    int n_reached;
    uint64_t address_bytes;     /* limits; 0: as they are */
    uint64_t file_bytes, cpu_s; /* cpu_s rounds nothing: whole seconds */
};

struct process {
    pid_t pid; /* 0: none */
    int pidfd; /* -1: none */
};
#define PROCESS_NONE ((struct process){0, -1})

/* The child leads a process group of its own, so a terminal's Ctrl-C reaches the program alone. */
enum status process_start(const struct process_start *s, struct process *out, struct err *e) MUST_USE;
/* Waits until the absolute deadline (clock_now_s). True: it ended, *status as of waitpid, and *p is cleared. */
bool process_wait(struct process *p, double deadline_s, int *status);
/* Kills the child with its process group and reaps it. Nothing happens for PROCESS_NONE. */
void process_kill(struct process *p);
/* To each thread of a process that has been sent SIGSTOP, the first one apart, the same: a signal to a process waits
 * for its first thread to be given a processor, which may take milliseconds while others spin. A thread that is told so
 * itself stops at once, and all the others with it. Nothing happens where there is no such process. */
void process_stop_threads(pid_t pid);
/* Processor time in nanoseconds of all threads of a process, those that have ended too; 0: there is no such process. */
int64_t process_cpu_ns(pid_t pid);

/* Absolute path of a program: searched in PATH, then /usr/bin and /bin. False when there is none. */
bool process_find(const char *name, char *path, size_t size);
/* Memory to be shared, of a size that nobody can change: cut short by one side it would end the other. -1 on failure.
 * Caller closes. */
int process_shared(const char *name, int64_t bytes);
/* An anonymous file with n bytes of data, read position 0; -1 on failure. Caller closes. */
int process_memfd(const char *name, const void *data, size_t n);

#endif
