#include "verify/jail/jail.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "verify/jail/wire.h"

/* ---- seccomp ---- */

/* These are the calls that arithmetic, OpenMP, the allocator and the loader need. Every other call ends the process
 * with SIGSYS: an answer has no business there, and the signal tells the verifier what happened. */
static const int run_allowed[] = {
    SCMP_SYS(read),
    SCMP_SYS(write),
    SCMP_SYS(close),
    SCMP_SYS(fstat),
    SCMP_SYS(newfstatat),
    SCMP_SYS(stat),
    SCMP_SYS(statx),
    SCMP_SYS(lseek),
    SCMP_SYS(pread64),
    SCMP_SYS(access),
    SCMP_SYS(faccessat),
    SCMP_SYS(faccessat2),
    SCMP_SYS(readlink),
    SCMP_SYS(readlinkat),
    SCMP_SYS(getcwd),
    SCMP_SYS(getdents64),
    SCMP_SYS(mmap),
    SCMP_SYS(munmap),
    SCMP_SYS(mprotect),
    SCMP_SYS(mremap),
    SCMP_SYS(brk),
    SCMP_SYS(futex),
    SCMP_SYS(rseq),
    SCMP_SYS(set_robust_list),
    SCMP_SYS(set_tid_address),
    SCMP_SYS(sched_yield),
    SCMP_SYS(sched_getaffinity),
    SCMP_SYS(sched_setaffinity),
    SCMP_SYS(sched_getparam),
    SCMP_SYS(sched_getscheduler),
    SCMP_SYS(getcpu),
    SCMP_SYS(rt_sigaction),
    SCMP_SYS(rt_sigprocmask),
    SCMP_SYS(rt_sigreturn),
    SCMP_SYS(sigaltstack),
    SCMP_SYS(exit),
    SCMP_SYS(exit_group),
    SCMP_SYS(gettid),
    SCMP_SYS(getpid),
    SCMP_SYS(getuid),
    SCMP_SYS(geteuid),
    SCMP_SYS(getgid),
    SCMP_SYS(getegid),
    SCMP_SYS(nanosleep),
    SCMP_SYS(clock_nanosleep),
    SCMP_SYS(clock_gettime),
    SCMP_SYS(clock_getres),
    SCMP_SYS(gettimeofday),
    SCMP_SYS(time),
    SCMP_SYS(getrandom),
    SCMP_SYS(getrlimit),
    SCMP_SYS(getrusage),
    SCMP_SYS(sysinfo),
    SCMP_SYS(uname),
    SCMP_SYS(arch_prctl),
    SCMP_SYS(restart_syscall),
};
static const unsigned advice_allowed = 1u << MADV_NORMAL | 1u << MADV_RANDOM | 1u << MADV_SEQUENTIAL |
                                       1u << MADV_DONTNEED | 1u << MADV_FREE | 1u << MADV_HUGEPAGE |
                                       1u << MADV_NOHUGEPAGE;
/* These are refused with an error: libraries try them and go on. */
static const int run_refused[] = {SCMP_SYS(ioctl),      SCMP_SYS(prctl), SCMP_SYS(prlimit64),
                                  SCMP_SYS(membarrier), SCMP_SYS(fcntl), SCMP_SYS(open)};
/* The compiler may do nothing that reaches beyond its own processes and files. */
static const int compile_denied[] = {
    SCMP_SYS(ptrace),
    SCMP_SYS(mount),
    SCMP_SYS(umount2),
    SCMP_SYS(pivot_root),
    SCMP_SYS(chroot),
    SCMP_SYS(keyctl),
    SCMP_SYS(add_key),
    SCMP_SYS(request_key),
    SCMP_SYS(bpf),
    SCMP_SYS(perf_event_open),
    SCMP_SYS(userfaultfd),
    SCMP_SYS(socket),
    SCMP_SYS(socketpair),
    SCMP_SYS(connect),
    SCMP_SYS(bind),
    SCMP_SYS(unshare),
    SCMP_SYS(setns),
    SCMP_SYS(process_vm_readv),
    SCMP_SYS(process_vm_writev),
    SCMP_SYS(kexec_load),
    SCMP_SYS(init_module),
    SCMP_SYS(finit_module),
    SCMP_SYS(open_by_handle_at),
    SCMP_SYS(io_uring_setup),
    SCMP_SYS(io_uring_enter),
    SCMP_SYS(io_uring_register),
    SCMP_SYS(reboot),
    SCMP_SYS(swapon),
    SCMP_SYS(quotactl),
    SCMP_SYS(acct),
    /* This memory is counted by no limit, and would stay for the jail's next unit. */
    SCMP_SYS(shmget),
    SCMP_SYS(msgget),
    SCMP_SYS(semget),
    SCMP_SYS(mq_open),
};

static int add_rules(scmp_filter_ctx c, uint32_t action, const int *calls, size_t n) {
    for (size_t i = 0; i < n; i++) {
        int r = seccomp_rule_add(c, action, calls[i], 0);
        /* A call that this architecture does not have needs no rule. */
        if (r != 0 && r != -EDOM && r != -EINVAL) return r;
    }
    return 0;
}

/* Refuses new user namespaces, because a process gets rights in its own. The flags of clone3 cannot be seen, so it is
 * refused; glibc falls back to clone. */
static int refuse_namespaces(scmp_filter_ctx c) {
    int r = seccomp_rule_add(c, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
    if (r == 0)
        r = seccomp_rule_add(c, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1,
                             SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_NEWUSER, CLONE_NEWUSER));
    return r;
}

static int build_run_filter(scmp_filter_ctx c) {
    int r = add_rules(c, SCMP_ACT_ALLOW, run_allowed, ARRAY_LEN(run_allowed));
    if (r == 0) r = add_rules(c, SCMP_ACT_ERRNO(EPERM), run_refused, ARRAY_LEN(run_refused));
    /* Threads are allowed, processes are not. glibc falls back to clone when clone3 is missing; clone3's flags cannot
     * be seen. */
    if (r == 0)
        r = seccomp_rule_add(c, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1,
                             SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD | CLONE_FILES, CLONE_THREAD | CLONE_FILES));
    if (r == 0) r = seccomp_rule_add(c, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
    /* Of signals only abort()'s own is allowed. Any other could continue a process that has been stopped. */
    if (r == 0) r = seccomp_rule_add(c, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1, SCMP_A2(SCMP_CMP_EQ, SIGABRT));
    if (r == 0) r = seccomp_rule_add(c, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(tgkill), 1, SCMP_A2(SCMP_CMP_NE, SIGABRT));
    /* Of advice about memory only what allocators give is allowed. The rest may make the kernel work later, in somebody
     * else's turn. */
    for (unsigned advice = 0; r == 0 && advice <= MADV_NOHUGEPAGE; advice++)
        r = seccomp_rule_add(c, 1u << advice & advice_allowed ? SCMP_ACT_ALLOW : SCMP_ACT_ERRNO(EINVAL),
                             SCMP_SYS(madvise), 1, SCMP_A2(SCMP_CMP_EQ, advice));
    if (r == 0)
        r = seccomp_rule_add(c, SCMP_ACT_ERRNO(EINVAL), SCMP_SYS(madvise), 1, SCMP_A2(SCMP_CMP_GT, MADV_NOHUGEPAGE));
    /* Files can only be read. */
    if (r == 0)
        r = seccomp_rule_add(c, SCMP_ACT_ALLOW, SCMP_SYS(openat), 1,
                             SCMP_A2(SCMP_CMP_MASKED_EQ, O_ACCMODE | O_CREAT | O_TRUNC, O_RDONLY));
    if (r == 0)
        r = seccomp_rule_add(c, SCMP_ACT_ERRNO(EACCES), SCMP_SYS(openat), 1,
                             SCMP_A2(SCMP_CMP_MASKED_EQ, O_WRONLY, O_WRONLY));
    if (r == 0)
        r = seccomp_rule_add(c, SCMP_ACT_ERRNO(EACCES), SCMP_SYS(openat), 1,
                             SCMP_A2(SCMP_CMP_MASKED_EQ, O_RDWR, O_RDWR));
    return r;
}

static int build_compile_filter(scmp_filter_ctx c) {
    int r = add_rules(c, SCMP_ACT_ERRNO(EPERM), compile_denied, ARRAY_LEN(compile_denied));
    if (r == 0) r = refuse_namespaces(c);
    return r;
}

/* An answer in Python may make these calls on a CPU: they are what PyTorch, numpy, transformers, threads, the loader
 * and the allocator make. None of them works on for a process that stands still, as timers, watched descriptors,
 * notifications and asynchronous input and output do. And what they take of the kernel's memory has a bound:
 * descriptors and threads have their limits, files have the size and the inodes of /tmp, and mappings have a largest
 * number (65530) and the address space. */
static const int python_allowed[] = {
    /* Files and the channel. */
    SCMP_SYS(read), SCMP_SYS(write), SCMP_SYS(readv), SCMP_SYS(writev), SCMP_SYS(pread64), SCMP_SYS(pwrite64),
    SCMP_SYS(preadv), SCMP_SYS(pwritev), SCMP_SYS(open), SCMP_SYS(openat), SCMP_SYS(creat), SCMP_SYS(close),
    SCMP_SYS(close_range), SCMP_SYS(lseek), SCMP_SYS(dup), SCMP_SYS(dup2), SCMP_SYS(dup3), SCMP_SYS(fstat),
    SCMP_SYS(newfstatat), SCMP_SYS(stat), SCMP_SYS(lstat), SCMP_SYS(statx), SCMP_SYS(statfs), SCMP_SYS(fstatfs),
    SCMP_SYS(access), SCMP_SYS(faccessat), SCMP_SYS(faccessat2), SCMP_SYS(readlink), SCMP_SYS(readlinkat),
    SCMP_SYS(getcwd), SCMP_SYS(chdir), SCMP_SYS(fchdir), SCMP_SYS(getdents64), SCMP_SYS(mkdir), SCMP_SYS(mkdirat),
    SCMP_SYS(rmdir), SCMP_SYS(unlink), SCMP_SYS(unlinkat), SCMP_SYS(rename), SCMP_SYS(renameat), SCMP_SYS(renameat2),
    SCMP_SYS(link), SCMP_SYS(linkat), SCMP_SYS(symlink), SCMP_SYS(symlinkat), SCMP_SYS(umask), SCMP_SYS(chmod),
    SCMP_SYS(fchmod), SCMP_SYS(fchmodat), SCMP_SYS(utimensat), SCMP_SYS(truncate), SCMP_SYS(ftruncate),
    SCMP_SYS(flock), /* A descriptor has one such lock. Of POSIX locks it could have any number. */
    SCMP_SYS(getxattr), SCMP_SYS(lgetxattr), SCMP_SYS(fgetxattr), SCMP_SYS(listxattr), SCMP_SYS(llistxattr),
    SCMP_SYS(flistxattr), SCMP_SYS(poll), SCMP_SYS(ppoll), SCMP_SYS(select), SCMP_SYS(pselect6), SCMP_SYS(recvmsg),
    SCMP_SYS(recvfrom), SCMP_SYS(sendto), SCMP_SYS(getsockopt), SCMP_SYS(getsockname), SCMP_SYS(getpeername),
    /* Memory. */
    SCMP_SYS(mmap), SCMP_SYS(munmap), SCMP_SYS(mprotect), SCMP_SYS(mremap), SCMP_SYS(brk), SCMP_SYS(get_mempolicy),
    /* Threads and signals. */
    SCMP_SYS(rseq), SCMP_SYS(set_robust_list), SCMP_SYS(get_robust_list), SCMP_SYS(set_tid_address),
    SCMP_SYS(sched_yield), SCMP_SYS(sched_getaffinity), SCMP_SYS(sched_getparam), SCMP_SYS(sched_getscheduler),
    SCMP_SYS(sched_get_priority_max), SCMP_SYS(sched_get_priority_min), SCMP_SYS(getpriority), SCMP_SYS(getcpu),
    SCMP_SYS(arch_prctl), SCMP_SYS(rt_sigaction), SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn),
    SCMP_SYS(rt_sigpending), SCMP_SYS(rt_sigtimedwait), SCMP_SYS(rt_sigsuspend), SCMP_SYS(pause), SCMP_SYS(sigaltstack),
    SCMP_SYS(restart_syscall), SCMP_SYS(exit), SCMP_SYS(exit_group), SCMP_SYS(wait4), SCMP_SYS(waitid),
    /* Who and when. */
    SCMP_SYS(gettid), SCMP_SYS(getpid), SCMP_SYS(getppid), SCMP_SYS(getpgrp), SCMP_SYS(getpgid), SCMP_SYS(getsid),
    SCMP_SYS(getuid), SCMP_SYS(geteuid), SCMP_SYS(getgid), SCMP_SYS(getegid), SCMP_SYS(getresuid), SCMP_SYS(getresgid),
    SCMP_SYS(getgroups), SCMP_SYS(capget), SCMP_SYS(nanosleep), SCMP_SYS(clock_nanosleep), SCMP_SYS(clock_gettime),
    SCMP_SYS(clock_getres), SCMP_SYS(gettimeofday), SCMP_SYS(time), SCMP_SYS(times), SCMP_SYS(getrandom),
    SCMP_SYS(getrlimit), SCMP_SYS(getrusage), SCMP_SYS(sysinfo), SCMP_SYS(uname)};

/* Calls that one argument decides about: they are allowed when this argument, of 32 bits, has this value under the
 * mask. */
static const struct {
    int call;
    unsigned int argument;
    uint32_t mask, value;
} python_allowed_with[] = {
    {SCMP_SYS(futex), 1, 0x7f, 0}, /* FUTEX_WAIT, FUTEX_WAKE and their bitset forms, but none that moves waiters. */
    {SCMP_SYS(futex), 1, 0x7f, 1},
    {SCMP_SYS(futex), 1, 0x7f, 9},
    {SCMP_SYS(futex), 1, 0x7f, 10},
    {SCMP_SYS(kill), 1, ~0U, 0},
    {SCMP_SYS(kill), 1, ~0U, SIGABRT},
    {SCMP_SYS(tkill), 1, ~0U, 0},
    {SCMP_SYS(tkill), 1, ~0U, SIGABRT},
    {SCMP_SYS(tgkill), 2, ~0U, 0},
    {SCMP_SYS(tgkill), 2, ~0U, SIGABRT},
    {SCMP_SYS(madvise), 2, ~0U, MADV_NORMAL},
    {SCMP_SYS(madvise), 2, ~0U, MADV_RANDOM},
    {SCMP_SYS(madvise), 2, ~0U, MADV_SEQUENTIAL},
    {SCMP_SYS(madvise), 2, ~0U, MADV_DONTNEED},
    {SCMP_SYS(madvise), 2, ~0U, MADV_FREE},
    {SCMP_SYS(madvise), 2, ~0U, MADV_HUGEPAGE},
    {SCMP_SYS(madvise), 2, ~0U, MADV_NOHUGEPAGE},
    {SCMP_SYS(madvise), 2, ~0U, MADV_DONTDUMP},
    {SCMP_SYS(madvise), 2, ~0U, MADV_DODUMP},
    {SCMP_SYS(mbind), 5, ~0U, 0}, /* Nothing is moved. */
    {SCMP_SYS(fcntl), 1, ~0U, F_DUPFD},
    {SCMP_SYS(fcntl), 1, ~0U, F_DUPFD_CLOEXEC},
    {SCMP_SYS(fcntl), 1, ~0U, F_GETFD},
    {SCMP_SYS(fcntl), 1, ~0U, F_SETFD},
    {SCMP_SYS(fcntl), 1, ~0U, F_GETFL},
    {SCMP_SYS(fcntl), 1, ~0U, F_GET_SEALS},
    {SCMP_SYS(ioctl), 1, ~0U, TCGETS},
    {SCMP_SYS(ioctl), 1, ~0U, 0x802c542a}, /* TCGETS2, which newer C libraries use. */
    {SCMP_SYS(ioctl), 1, ~0U, TIOCGWINSZ},
    {SCMP_SYS(ioctl), 1, ~0U, FIONBIO},
    {SCMP_SYS(ioctl), 1, ~0U, FIONREAD},
    {SCMP_SYS(ioctl), 1, ~0U, FIOCLEX},
    {SCMP_SYS(ioctl), 1, ~0U, FIONCLEX},
    {SCMP_SYS(prctl), 0, ~0U, PR_SET_NAME},
    {SCMP_SYS(prctl), 0, ~0U, PR_GET_NAME},
    {SCMP_SYS(prctl), 0, ~0U, PR_GET_DUMPABLE},
    {SCMP_SYS(prctl), 0, ~0U, PR_CAPBSET_READ},
    {SCMP_SYS(prctl), 0, ~0U, 0x53564d41}, /* PR_SET_VMA: the name of a mapping. */
};

/* These reach for another process. They end the answer's own process. */
static const int python_hostile[] = {SCMP_SYS(ptrace),           SCMP_SYS(process_vm_writev), SCMP_SYS(bpf),
                                     SCMP_SYS(kexec_load),       SCMP_SYS(init_module),       SCMP_SYS(finit_module),
                                     SCMP_SYS(open_by_handle_at)};

static int add_rule_with(scmp_filter_ctx c, uint32_t action, int call, unsigned int argument, uint64_t mask,
                         uint64_t value) {
    return seccomp_rule_add(c, action, call, 1, SCMP_CMP(argument, SCMP_CMP_MASKED_EQ, mask, value));
}

/* Builds the filter for an answer in Python on a CPU (selfjail.py): a list of what is allowed. A call that is not on it
 * is missing, as it is on an older kernel, so that libraries do without it. Processes and a network are refused by
 * name. */
static int build_python_filter(scmp_filter_ctx c) {
    static const int refused[] = {SCMP_SYS(fork),   SCMP_SYS(vfork),      SCMP_SYS(execve),      SCMP_SYS(execveat),
                                  SCMP_SYS(socket), SCMP_SYS(socketpair), SCMP_SYS(connect),     SCMP_SYS(bind),
                                  SCMP_SYS(listen), SCMP_SYS(accept),     SCMP_SYS(memfd_create)};
    /* These calls succeed and do nothing. Files that can be written to are in memory, and advice need not be taken. If
     * these calls did their work, the kernel would write files back or read ahead beside whoever comes next. */
    static const int idle[] = {SCMP_SYS(fsync), SCMP_SYS(fdatasync), SCMP_SYS(msync), SCMP_SYS(fadvise64)};
    /* The limit on descriptors is one of each table, so threads must share theirs. */
    static const uint64_t thread = CLONE_THREAD | CLONE_FILES;
    static const uint64_t no_process = thread | CLONE_VFORK | CLONE_PTRACE | CLONE_PARENT | CLONE_PIDFD;
    int r = add_rules(c, SCMP_ACT_KILL_PROCESS, python_hostile, ARRAY_LEN(python_hostile));
    if (r == 0) r = add_rules(c, SCMP_ACT_ALLOW, python_allowed, ARRAY_LEN(python_allowed));
    if (r == 0) r = add_rules(c, SCMP_ACT_ERRNO(EPERM), refused, ARRAY_LEN(refused));
    if (r == 0) r = add_rules(c, SCMP_ACT_ERRNO(0), idle, ARRAY_LEN(idle));
    for (size_t i = 0; i < ARRAY_LEN(python_allowed_with) && r == 0; i++)
        r = add_rule_with(c, SCMP_ACT_ALLOW, python_allowed_with[i].call, python_allowed_with[i].argument,
                          python_allowed_with[i].mask, python_allowed_with[i].value);
    if (r == 0) r = add_rule_with(c, SCMP_ACT_ERRNO(0), SCMP_SYS(madvise), 2, ~0U, MADV_WILLNEED);
    /* Limits may be read, not set. */
    if (r == 0) r = add_rule_with(c, SCMP_ACT_ALLOW, SCMP_SYS(prlimit64), 2, UINT64_MAX, 0);
    /* Flags may be set, but not a signal for a descriptor that becomes ready. */
    if (r == 0)
        r = seccomp_rule_add(c, SCMP_ACT_ALLOW, SCMP_SYS(fcntl), 2, SCMP_A1(SCMP_CMP_MASKED_EQ, ~0U, F_SETFL),
                             SCMP_A2(SCMP_CMP_MASKED_EQ, O_ASYNC, 0));
    /* Threads are allowed. The flags of clone3 cannot be seen, so it is missing. */
    if (r == 0) r = add_rule_with(c, SCMP_ACT_ALLOW, SCMP_SYS(clone), 0, no_process, thread);
    if (r == 0) r = add_rule_with(c, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 0, CLONE_THREAD, 0);
    return r;
}

/* Builds the filter for an answer in Python on a GPU. A GPU's driver and compilers make too many calls for a list of
 * what is allowed, so this is a list of what is not, on top of the namespaces. No driver needs any of these calls.
 * Timers, watched descriptors and locks remain. An answer that uses them is found out by the reference's times without
 * an answer (torch/clock.c), and by the processor time of a process that stands still. */
static int build_gpu_filter(scmp_filter_ctx c) {
    static const int refused[] = {
        SCMP_SYS(mount), SCMP_SYS(umount2), SCMP_SYS(pivot_root), SCMP_SYS(chroot), SCMP_SYS(keyctl), SCMP_SYS(add_key),
        SCMP_SYS(request_key), SCMP_SYS(perf_event_open), SCMP_SYS(userfaultfd), SCMP_SYS(unshare), SCMP_SYS(setns),
        SCMP_SYS(io_uring_setup), SCMP_SYS(io_uring_enter), SCMP_SYS(io_uring_register), SCMP_SYS(reboot),
        SCMP_SYS(swapon), SCMP_SYS(quotactl), SCMP_SYS(acct),
        /* Memory that no limit counts. */
        SCMP_SYS(shmget), SCMP_SYS(msgget), SCMP_SYS(semget), SCMP_SYS(mq_open),
        /* What works on for a process that stands still. */
        SCMP_SYS(setitimer), SCMP_SYS(alarm), SCMP_SYS(signalfd), SCMP_SYS(signalfd4), SCMP_SYS(inotify_init),
        SCMP_SYS(inotify_init1), SCMP_SYS(fanotify_init), SCMP_SYS(io_setup), SCMP_SYS(vmsplice), SCMP_SYS(tee),
        SCMP_SYS(sync), SCMP_SYS(syncfs),
        /* Signals that carry more than their number. */
        SCMP_SYS(rt_sigqueueinfo), SCMP_SYS(rt_tgsigqueueinfo), SCMP_SYS(pidfd_send_signal)};
    /* F_SETSIG would choose a signal for a descriptor that becomes ready. Without it the signal is SIGIO, which
     * continues nobody. */
    static const int no_fcntl[] = {F_SETSIG, F_SETLEASE, F_NOTIFY};
    int r = add_rules(c, SCMP_ACT_KILL_PROCESS, python_hostile, ARRAY_LEN(python_hostile));
    if (r == 0) r = add_rules(c, SCMP_ACT_ERRNO(EPERM), refused, ARRAY_LEN(refused));
    if (r == 0) r = refuse_namespaces(c);
    for (size_t i = 0; i < ARRAY_LEN(no_fcntl) && r == 0; i++)
        r = add_rule_with(c, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(fcntl), 1, ~0U, (uint64_t)no_fcntl[i]);
    /* Only the verifier continues a process that has been stopped. */
    if (r == 0) r = add_rule_with(c, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(kill), 1, ~0U, SIGCONT);
    if (r == 0) r = add_rule_with(c, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(tkill), 1, ~0U, SIGCONT);
    if (r == 0) r = add_rule_with(c, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(tgkill), 2, ~0U, SIGCONT);
    if (r == 0) r = add_rule_with(c, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(prctl), 0, ~0U, PR_SET_PDEATHSIG);
    return r;
}

/* Turns a filter into its BPF program, in the jail's arena. */
static enum status export_filter(struct arena *a, scmp_filter_ctx c, void **out, size_t *bytes, struct err *e) {
    CLEANUP_FD int fd = process_memfd("filter", NULL, 0);
    if (fd < 0 || seccomp_export_bpf(c, fd) != 0)
        return FAIL(e, ST_SANDBOX, "seccomp: cannot export a filter: %s", strerror(errno));
    off_t n = lseek(fd, 0, SEEK_END);
    *out = arena_alloc(a, (size_t)n);
    *bytes = (size_t)n;
    if (n <= 0 || pread(fd, *out, (size_t)n, 0) != n) return FAIL(e, ST_SANDBOX, "seccomp: cannot read a filter back");
    return ST_OK;
}

static enum status build_filters(struct jail *j, struct err *e) {
    enum status st;
    scmp_filter_ctx run = seccomp_init(SCMP_ACT_KILL_PROCESS), comp = seccomp_init(SCMP_ACT_ALLOW),
                    python = seccomp_init(SCMP_ACT_ERRNO(ENOSYS)), gpu = seccomp_init(SCMP_ACT_ALLOW);
    if (!run || !comp || !python || !gpu ||
        seccomp_attr_set(python, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS) != 0 ||
        /* The program is a tree, because the list is long. */
        seccomp_attr_set(python, SCMP_FLTATR_CTL_OPTIMIZE, 2) != 0 || build_python_filter(python) != 0 ||
        build_gpu_filter(gpu) != 0 || seccomp_attr_set(run, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS) != 0 ||
        build_run_filter(run) != 0 || build_compile_filter(comp) != 0) {
        st = FAIL(e, ST_SANDBOX, "seccomp: cannot build the filters");
        goto done;
    }
    TRY_GOTO(export_filter(&j->arena, run, &j->run_filter, &j->run_filter_bytes, e), done);
    TRY_GOTO(export_filter(&j->arena, comp, &j->compile_filter, &j->compile_filter_bytes, e), done);
    TRY_GOTO(export_filter(&j->arena, python, &j->python_filter, &j->python_filter_bytes, e), done);
    TRY_GOTO(export_filter(&j->arena, gpu, &j->gpu_filter, &j->gpu_filter_bytes, e), done);
done:
    if (run) seccomp_release(run);
    if (comp) seccomp_release(comp);
    if (python) seccomp_release(python);
    if (gpu) seccomp_release(gpu);
    return st;
}

/* ---- bubblewrap ---- */

enum { MAX_WORDS = 160 };
struct words {
    char *v[MAX_WORDS];
    int n;
    const char *reached[PROCESS_MAX_REACHED]; /* Those of the directories in it that the user nobody cannot get to. */
    int n_reached;
};

static void word(struct words *w, const char *s) {
    ASSERT(w->n < MAX_WORDS - 1);
    /* argv is not const for historical reasons only. */
    w->v[w->n++] = (char *)(uintptr_t)s;
}

static void words(struct words *w, ...) __attribute__((sentinel));
static void words(struct words *w, ...) {
    va_list ap;
    va_start(ap, w);
    for (const char *s; (s = va_arg(ap, const char *));) word(w, s);
    va_end(ap);
}

/* Shows /lib and its like: they are symbolic links into /usr on merged systems, and directories on others. */
static void system_dir(struct words *w, const char *path, const char *link_target) {
    struct stat sb;
    if (lstat(path, &sb) != 0) return;
    if (S_ISLNK(sb.st_mode))
        words(w, "--symlink", link_target, path, NULL);
    else
        words(w, "--ro-bind", path, path, NULL);
}

static void jail_words(const struct jail *j, struct words *w) {
    words(w, j->bwrap, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net",
          "--unshare-cgroup-try", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--uid", "65534", "--gid",
          "65534", "--hostname", "jail", NULL);
    words(w, "--ro-bind", "/usr/lib", "/usr/lib", "--ro-bind-try", "/usr/lib64", "/usr/lib64", "--ro-bind-try",
          "/etc/ld.so.cache", "/etc/ld.so.cache", NULL);
    system_dir(w, "/lib", "usr/lib");
    system_dir(w, "/lib64", "usr/lib64");
}

/* Returns whether a directory above it lets only its owner through, as root's home does. */
static bool lies_behind(const char *directory) {
    char path[512];
    struct stat sb;
    for (const char *p = directory; (p = strchr(p + 1, '/'));) {
        snprintf(path, sizeof path, "%.*s", (int)(p - directory), directory);
        if (stat(path, &sb) == 0 && !(sb.st_mode & S_IXOTH)) return true;
    }
    return false;
}

/* Returns whether a directory lies below /tmp, as a virtual environment of Python may. */
static bool below_tmp(const char *directory) { return str_has_prefix(directory, "/tmp/"); }

static void compiler_words(const struct jail *j, struct words *w) {
    jail_words(j, w);
    words(w, "--ro-bind", "/usr/bin", "/usr/bin", "--ro-bind-try", "/usr/libexec", "/usr/libexec", "--ro-bind-try",
          "/usr/include", "/usr/include", "--ro-bind-try", "/etc/alternatives", "/etc/alternatives", "--dev-bind",
          "/dev/null", "/dev/null", NULL);
    system_dir(w, "/bin", "usr/bin");
    for (int i = 0; i < j->n_more; i++)
        if (!below_tmp(j->more[i])) words(w, "--ro-bind", j->more[i], j->more[i], NULL);
    words(w, "--size", j->n_more ? "1073741824" : "268435456", "--tmpfs", "/tmp", NULL);
    /* The jail's own /tmp would hide these directories. They stay when a script has ended, so each script gets a new
     * jail. */
    for (int i = 0; i < j->n_more; i++)
        if (below_tmp(j->more[i])) words(w, "--ro-bind", j->more[i], j->more[i], NULL);
    for (int i = 0; i < j->n_more; i++)
        if (lies_behind(j->more[i])) w->reached[w->n_reached++] = j->more[i];
}

void jail_show(struct jail *j, const char *directory) {
    static const char *const seen[] = {"/usr/bin/", "/usr/lib/", "/usr/lib64/", "/usr/include/", "/usr/libexec/"};
    for (size_t i = 0; i < ARRAY_LEN(seen); i++)
        if (str_has_prefix(directory, seen[i])) return;
    for (int i = 0; i < j->n_more; i++) {
        size_t n = strlen(j->more[i]);
        if (strncmp(directory, j->more[i], n) == 0 && (directory[n] == '/' || directory[n] == 0)) return;
    }
    struct stat sb, tmp;
    if (j->n_more == (int)ARRAY_LEN(j->more) || stat(directory, &sb) != 0 || !S_ISDIR(sb.st_mode)) return;
    /* All of /tmp, by whatever name, would lie on top of the jail's own /tmp, and everybody's files would be seen. */
    if (stat("/tmp", &tmp) == 0 && sb.st_dev == tmp.st_dev && sb.st_ino == tmp.st_ino) return;
    snprintf(j->more[j->n_more++], sizeof j->more[0], "%s", directory);
}

static void compiler_limits(const struct jail *j, struct process_start *s, double timeout_s) {
    /* nvcc's and torch's headers take more memory than C does. */
    s->address_bytes = (j->n_more ? 12ull : 2ull) << 30;
    s->file_bytes = 64u << 20;
    s->cpu_s = (uint64_t)timeout_s + 2;
}

/* Really starts a jail and runs a program in it. */
static bool probe(struct jail *j, char *why, size_t why_size) {
    struct err e = {0};
    CLEANUP_FD int err_fd = process_memfd("probe", NULL, 0);
    int fds[3] = {-1, -1, err_fd};
    char *args[] = {NULL};
    struct process p;
    int status;
    why[0] = 0;
    if (jail_start_compiler(j, "exit 7", args, "/tmp", fds, 10, &p, &e) != ST_OK) {
        snprintf(why, why_size, "%s", e.msg);
        return false;
    }
    if (!process_wait(&p, clock_now_s() + 10, &status)) {
        process_kill(&p);
        snprintf(why, why_size, "no answer within 10 s");
        return false;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 7) return true;
    ssize_t n = pread(err_fd, why, why_size - 1, 0);
    why[n > 0 ? n : 0] = 0;
    why[strcspn(why, "\n")] = 0;
    return false;
}

enum status jail_open(struct jail *j, bool allow_weaker, struct err *e) {
    *j = (struct jail){0};
    char why[300] = "bubblewrap (bwrap) is not installed";
    TRY(build_filters(j, e));
    const char *given = getenv("KERNELRL_BWRAP");
    if (process_find(given && *given ? given : "bwrap", j->bwrap, sizeof j->bwrap)) {
        if (geteuid() == 0) {
            j->drop_root = true;
            if (probe(j, why, sizeof why)) return ST_OK;
            j->drop_root = false;
        }
        if (probe(j, why, sizeof why)) return ST_OK;
    }
    if (!allow_weaker) {
        jail_close(j);
        return FAIL(
            e, ST_SANDBOX,
            "no sandbox: %s. Install it (apt-get install bubblewrap) and allow user namespaces (sysctl "
            "kernel.unprivileged_userns_clone=1; in a container: --security-opt seccomp=unconfined), or accept "
            "seccomp and resource limits alone with --allow-weaker (verify) or sandbox.allow_weaker=true (train, eval)",
            why);
    }
    log_warn("no bubblewrap jail (%s): answers run under seccomp and resource limits only", why);
    j->bwrap[0] = 0;
    j->weak = true;
    j->drop_root = false;
    return ST_OK;
}

void jail_close(struct jail *j) { arena_free(&j->arena); }

enum status jail_start_compiler(const struct jail *j, const char *script, char *const *args, const char *tmp_dir,
                                const int fds[3], double timeout_s, struct process *out, struct err *e) {
    *out = PROCESS_NONE;
    CLEANUP_FD int filter = -1;
    struct words w = {.n = 0};
    struct process_start s = {.fds = {fds[0], fds[1], fds[2]}, .n_fds = 3, .drop_root = j->drop_root};
    char tmp[600];
    snprintf(tmp, sizeof tmp, "TMPDIR=%s", j->weak ? tmp_dir : "/tmp");
    char *envp[] = {(char[]){"PATH=/usr/bin:/bin"}, (char[]){"LC_ALL=C"}, tmp, NULL};
    if (!j->weak) {
        filter = process_memfd("filter", j->compile_filter, j->compile_filter_bytes);
        if (filter < 0) return FAIL(e, ST_SANDBOX, "memfd: %s", strerror(errno));
        compiler_words(j, &w);
        s.fds[s.n_fds++] = filter;
        words(&w, "--remount-ro", "/", "--chdir", "/tmp", "--seccomp", "3", "--", NULL);
    }
    words(&w, "/bin/sh", "-c", script, "sh", NULL);
    for (int i = 0; args[i]; i++) word(&w, args[i]);
    s.path = j->weak ? "/bin/sh" : j->bwrap;
    s.argv = w.v;
    s.envp = envp;
    s.reached = w.reached;
    s.n_reached = w.n_reached;
    compiler_limits(j, &s, timeout_s);
    return process_start(&s, out, e);
}

enum status jail_start_shell(const struct jail *j, const char *runner_path, int socket_fd,
                             const struct jail_file extra[JAIL_EXTRA_FILES], double timeout_s, struct process *out,
                             struct err *e) {
    *out = PROCESS_NONE;
    ASSERT(!j->weak);
    CLEANUP_FD int runner = open(runner_path, O_RDONLY | O_CLOEXEC);
    CLEANUP_FD int filter = process_memfd("filter", j->compile_filter, j->compile_filter_bytes);
    if (runner < 0) return FAIL(e, ST_IO, "%s: %s (run make)", runner_path, strerror(errno));
    if (filter < 0) return FAIL(e, ST_SANDBOX, "memfd: %s", strerror(errno));
    struct words w = {.n = 0};
    char *envp[] = {(char[]){"PATH=/usr/bin:/bin"}, (char[]){"LC_ALL=C"}, (char[]){"TMPDIR=/tmp"}, NULL};
    struct process_start s = {.path = j->bwrap,
                              .envp = envp,
                              .fds = {-1, -1, -1, socket_fd, filter, runner},
                              .n_fds = 6,
                              .drop_root = j->drop_root};
    char number[JAIL_EXTRA_FILES][12], path[JAIL_EXTRA_FILES][64];
    int again[JAIL_EXTRA_FILES];
    compiler_words(j, &w);
    words(&w, "--perms", "0555", "--ro-bind-data", "5", "/runner", "--dir", "/extra", NULL);
    for (int i = 0; i < JAIL_EXTRA_FILES; i++) {
        again[i] = -1;
        if (extra[i].fd < 0) continue;
        /* The file is opened anew, because jails that start at the same time would share the position they read
         * from. */
        snprintf(path[i], sizeof path[i], "/proc/self/fd/%d", extra[i].fd);
        again[i] = open(path[i], O_RDONLY | O_CLOEXEC);
        snprintf(number[i], sizeof number[i], "%d", s.n_fds);
        snprintf(path[i], sizeof path[i], "/extra/%s", extra[i].name);
        words(&w, "--perms", "0444", "--ro-bind-data", number[i], path[i], NULL);
        s.fds[s.n_fds++] = again[i];
    }
    words(&w, "--remount-ro", "/", "--chdir", "/tmp", "--seccomp", "4", "--", "/runner", "--shell", NULL);
    s.argv = w.v;
    s.reached = w.reached;
    s.n_reached = w.n_reached;
    compiler_limits(j, &s, timeout_s);
    enum status st = process_start(&s, out, e);
    for (int i = 0; i < JAIL_EXTRA_FILES; i++)
        if (again[i] >= 0) close(again[i]);
    return st;
}

enum status jail_start_runner(const struct jail *j, const struct jail_runner *r, struct process *out, struct err *e) {
    *out = PROCESS_NONE;
    CLEANUP_FD int runner = -1;
    CLEANUP_FD int filter = process_memfd("filter", j->run_filter, j->run_filter_bytes);
    if (filter < 0) return FAIL(e, ST_SANDBOX, "memfd: %s", strerror(errno));
    struct words w = {.n = 0};
    struct process_start s = {
        .fds = {-1, -1, r->stderr_fd, r->socket_fd, r->read_only_fd, r->read_write_fd, filter, r->answer_fd},
        .n_fds = 8,
        .envp = r->environment,
        .drop_root = j->drop_root,
    };
    if (j->weak) {
        /* Nothing hides the answer's descriptor, but the file is the answer's own code. */
        words(&w, r->runner_path, "/proc/self/fd/7", NULL);
        s.path = r->runner_path;
    } else {
        /* Both programs come as descriptors, so the user nobody need not be able to read their directories. bubblewrap
         * reads each of them to its end and closes it. */
        runner = open(r->runner_path, O_RDONLY | O_CLOEXEC);
        if (runner < 0) return FAIL(e, ST_IO, "%s: %s (run make)", r->runner_path, strerror(errno));
        s.fds[s.n_fds++] = runner;
        jail_words(j, &w);
        words(&w, "--perms", "0555", "--ro-bind-data", "8", "/runner", "--perms", "0444", "--ro-bind-data", "7",
              "/answer.so", "--remount-ro", "/", "--chdir", "/", "--", "/runner", "/answer.so", NULL);
        s.path = j->bwrap;
    }
    s.argv = w.v;
    return process_start(&s, out, e);
}
