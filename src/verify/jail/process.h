/* process: starts children, waits for them, and kills them. It uses vfork, because the program that starts them may
 * have gigabytes of weights mapped, and fork would copy its page tables. */
#ifndef KERNELRL_VERIFY_JAIL_PROCESS_H
#define KERNELRL_VERIFY_JAIL_PROCESS_H

#include <sys/types.h>

#include "base/err.h"

enum { PROCESS_MAX_FDS = 12, PROCESS_MAX_REACHED = 8 };

struct process_start {
    const char *path; /* An absolute path. */
    char *const *argv, *const *envp;
    int fds[PROCESS_MAX_FDS]; /* [i]: descriptor i of the child; -1: /dev/null. All others are closed. */
    int n_fds;
    bool drop_root; /* true: when this process is root, the child first becomes a user without rights. */
    /* Directories that this user can reach, even below root's home. It sees nothing else there. */
    const char *const *reached;
    int n_reached;
    uint64_t address_bytes;     /* Limits. 0: they stay as they are. */
    uint64_t file_bytes, cpu_s; /* cpu_s is a number of whole seconds. */
};

struct process {
    pid_t pid; /* 0: there is none. */
    int pidfd; /* -1: there is none. */
};
#define PROCESS_NONE ((struct process){0, -1})

/* Starts a child. It leads a process group of its own, so a terminal's Ctrl-C reaches only the program. */
enum status process_start(const struct process_start *s, struct process *out, struct err *e) MUST_USE;
/* Waits until the deadline, a time of clock_now_s. True: the child has ended, *status is as of waitpid, and *p is
 * cleared. */
bool process_wait(struct process *p, double deadline_s, int *status);
/* Kills the child with its process group and reaps it. Nothing happens for PROCESS_NONE. */
void process_kill(struct process *p);
/* Sends SIGSTOP to each thread of a process that has been sent SIGSTOP, except to the first. A signal to a process
 * waits until its first thread is given a processor, which may take milliseconds while others spin. A thread that is
 * signalled itself stops at once, and all others with it. Nothing happens where there is no such process. */
void process_stop_threads(pid_t pid);
/* Processor time in nanoseconds of all threads of a process, with those that have ended. 0: there is no such
 * process. */
int64_t process_cpu_ns(pid_t pid);

/* Finds the absolute path of a program: in PATH, then in /usr/bin and /bin. False when there is none. */
bool process_find(const char *name, char *path, size_t size);
/* Makes memory to be shared, of a size that nobody can change: if one side could cut it short, the other would end. -1
 * on failure. The caller closes it. */
int process_shared(const char *name, int64_t bytes);
/* Makes an anonymous file with n bytes of data, to be read from its beginning. -1 on failure. The caller closes it. */
int process_memfd(const char *name, const void *data, size_t n);

#endif
