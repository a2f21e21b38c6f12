#include "verify/jail/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

/* Limits on processes count those of a user, whatever jail they are in. So each child gets a user number of its own, or
 * is nobody where a container has no such numbers. */
enum { NOBODY = 65534, FIRST_OWN_ID = 1000000, HIGH_FD = 100 };

static void child_limit(__rlimit_resource_t which, uint64_t value) {
    struct rlimit r = {value, value};
    if (value) setrlimit(which, &r);
}

/* Makes these directories reachable for a user for whom something above them is closed, before root becomes that user.
 * In a view of the file system that only this process has, an open, empty place is laid over the closed one, and these
 * directories are the only things in it. Where that is not permitted, nothing changes. This runs in the child, as
 * below. */
static void reach(const struct process_start *s) {
    int fds[PROCESS_MAX_REACHED];
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return;
    for (int i = 0; i < s->n_reached; i++) fds[i] = open(s->reached[i], O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; i < s->n_reached; i++) {
        const char *directory = s->reached[i];
        char path[600], from[40];
        struct stat sb;
        const size_t n = strlen(directory);
        if (fds[i] < 0 || n >= sizeof path) continue;
        for (size_t at = 1; at < n; at++) {
            if (directory[at] != '/') continue;
            memcpy(path, directory, at);
            path[at] = 0;
            if (stat(path, &sb) != 0) {
                /* The mode does not depend on the umask. */
                if (mkdir(path, 0755) == 0) chmod(path, 0755);
            } else if (!(sb.st_mode & S_IXOTH))
                mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755");
        }
        if (stat(directory, &sb) == 0) continue;
        snprintf(from, sizeof from, "/proc/self/fd/%d", fds[i]);
        if (mkdir(directory, 0755) == 0) mount(from, directory, NULL, MS_BIND | MS_REC, NULL);
    }
}

/* The child between vfork and exec. It shares the parent's memory, so nothing here may allocate or return. */
static void __attribute__((noreturn)) child_run(const struct process_start *s, int null_fd) {
    int high[PROCESS_MAX_FDS];
    /* First descriptors move out of the way, then into place: the sources may themselves be low numbers. */
    for (int i = 0; i < s->n_fds; i++) {
        high[i] = fcntl(s->fds[i] >= 0 ? s->fds[i] : null_fd, F_DUPFD_CLOEXEC, HIGH_FD);
        if (high[i] < 0) _exit(126);
    }
    for (int i = 0; i < s->n_fds; i++)
        if (dup2(high[i], i) < 0) _exit(126);
    syscall(SYS_close_range, (unsigned)s->n_fds, ~0U, 0);
    setpgid(0, 0);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    child_limit(RLIMIT_AS, s->address_bytes);
    child_limit(RLIMIT_FSIZE, s->file_bytes);
    child_limit(RLIMIT_CPU, s->cpu_s);
    if (s->drop_root && geteuid() == 0) {
        if (s->n_reached > 0) reach(s);
        /* These are plain system calls, because glibc's wrappers would signal the other threads of the parent. */
        const long own = FIRST_OWN_ID + syscall(SYS_getpid);
        if (syscall(SYS_setgroups, 0, NULL) != 0 || syscall(SYS_setgid, NOBODY) != 0 ||
            (syscall(SYS_setuid, own) != 0 && syscall(SYS_setuid, NOBODY) != 0))
            _exit(126);
    }
    execve(s->path, s->argv, s->envp);
    _exit(127);
}

enum status process_start(const struct process_start *s, struct process *out, struct err *e) {
    ASSERT(s->n_fds <= PROCESS_MAX_FDS && s->n_reached <= PROCESS_MAX_REACHED);
    *out = PROCESS_NONE;
    CLEANUP_FD int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null_fd < 0) return FAIL(e, ST_IO, "/dev/null: %s", strerror(errno));
    pid_t pid = vfork();
    if (pid == 0) child_run(s, null_fd);
    if (pid < 0) return FAIL(e, ST_SANDBOX, "%s: cannot start a process: %s", s->path, strerror(errno));
    setpgid(pid, pid); /* This fails harmlessly once the child has executed: the child did it itself. */
    out->pid = pid;
    out->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (out->pidfd < 0) {
        int why = errno;
        process_kill(out);
        return FAIL(e, ST_SANDBOX, "pidfd_open: %s (Linux 5.3 or newer is needed)", strerror(why));
    }
    return ST_OK;
}

static void forget(struct process *p) {
    if (p->pidfd >= 0) close(p->pidfd);
    *p = PROCESS_NONE;
}

bool process_wait(struct process *p, double deadline_s, int *status) {
    *status = 0;
    if (p->pid <= 0) return true;
    for (;;) {
        double left = deadline_s - clock_now_s();
        struct pollfd pf = {.fd = p->pidfd, .events = POLLIN};
        int r = poll(&pf, 1, left <= 0 ? 0 : left > 1e6 ? 1000000000 : (int)(left * 1000) + 1);
        if (r < 0 && errno == EINTR) continue;
        if (r <= 0 && left > 0) continue;
        if (r <= 0) return false;
        break;
    }
    while (waitpid(p->pid, status, 0) < 0 && errno == EINTR) {}
    forget(p);
    return true;
}

void process_kill(struct process *p) {
    if (p->pid <= 0) return;
    kill(-p->pid, SIGKILL);
    kill(p->pid, SIGKILL);
    int status;
    while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR) {}
    forget(p);
}

static bool executable(const char *path) { return access(path, X_OK) == 0; }

bool process_find(const char *name, char *path, size_t size) {
    if (strchr(name, '/')) return snprintf(path, size, "%s", name) < (int)size && executable(path);
    const char *dirs = getenv("PATH");
    for (const char *p = dirs ? dirs : ""; *p;) {
        size_t n = strcspn(p, ":");
        if (n > 0 && *p == '/' && snprintf(path, size, "%.*s/%s", (int)n, p, name) < (int)size && executable(path))
            return true;
        p += n + (p[n] == ':');
    }
    static const char *const usual[] = {"/usr/bin", "/bin"};
    for (size_t i = 0; i < ARRAY_LEN(usual); i++)
        if (snprintf(path, size, "%s/%s", usual[i], name) < (int)size && executable(path)) return true;
    return false;
}

void process_stop_threads(pid_t pid) {
    char path[80];
    if (pid <= 0) return;
    snprintf(path, sizeof path, "/proc/%ld/task", (long)pid);
    DIR *threads = opendir(path);
    for (const struct dirent *one; threads && (one = readdir(threads));) {
        const long thread = strtol(one->d_name, NULL, 10);
        if (thread > 0 && thread != (long)pid) syscall(SYS_tgkill, pid, thread, SIGSTOP);
    }
    if (threads) closedir(threads);
}

int64_t process_cpu_ns(pid_t pid) {
    clockid_t id;
    struct timespec t;
    if (pid <= 0 || clock_getcpuclockid(pid, &id) != 0 || clock_gettime(id, &t) != 0) return 0;
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int process_shared(const char *name, int64_t bytes) {
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    if (ftruncate(fd, bytes) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) return fd;
    close(fd);
    return -1;
}

int process_memfd(const char *name, const void *data, size_t n) {
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0) return -1;
    for (size_t done = 0; done < n;) {
        ssize_t w = pwrite(fd, (const char *)data + done, n - done, (off_t)done);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) {
            close(fd);
            return -1;
        }
        done += (size_t)w;
    }
    return fd;
}
