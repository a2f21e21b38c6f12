/* runner: hosts a native answer inside the jail. It is a small program of its own. It maps the regions that the
 * verifier made, puts itself under the seccomp filter and the limits, loads the answer, and calls it on request. It
 * knows no seed, no expected value and no clock. Nothing that it says is trusted (wire.h), because the answer runs in
 * the same process.
 *
 * usage: kernelrl-runner ANSWER.so, with the descriptors of wire.h open.
 *        kernelrl-runner --shell, with a socket as descriptor 3: runs the compiler's scripts.
 * The first is started by candidate.c only, the second by jail_shell.c only. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "verify/jail/wire.h"

static struct {
    struct wire_setup setup;
    struct wire_arg args[WIRE_MAX_ARGS];
} config;
static unsigned char *read_only, *read_write;
static volatile int *out_of_memory;
static void (*call_kernel)(void **);
static void (*call_prepare)(void **);
static void *prepared[2];
static void *scratch;
static struct sock_filter filter[4096];
static char fault_stack[16384];

static void reply(uint32_t op, uint32_t value, uint64_t nonce, const char *text) {
    struct wire_reply r = {.op = op, .value = value, .nonce = nonce};
    size_t n = text ? strlen(text) : 0;
    if (n >= sizeof r.text) n = sizeof r.text - 1;
    if (n) memcpy(r.text, text, n);
    while (write(WIRE_FD_SOCKET, &r, sizeof r) < 0 && errno == EINTR) {}
}

/* Says what kind of crash it was. Then the process dies of the same signal: the handler is gone, and what failed is
 * tried once more. This runs in a process that is broken already, so it makes only system calls, on a stack of its
 * own. */
static void on_fault(int signal_number, siginfo_t *info, void *context) {
    uint32_t kind = WIRE_FAULT_OTHER;
    const unsigned char *at = info->si_addr;
    (void)context;
    if (out_of_memory && *out_of_memory)
        kind = WIRE_FAULT_MEMORY;
    else if (signal_number == SIGSEGV && read_only && at >= read_only && at < read_only + config.setup.read_only_bytes)
        kind = WIRE_FAULT_READ_ONLY;
    else if (signal_number == SIGSEGV && environ) {
        /* The environment lies at the top of the main stack. An overflow faults somewhere below the stack's limit under
         * it. */
        struct rlimit stack;
        uintptr_t top = (uintptr_t)environ, address = (uintptr_t)at;
        if (getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur != RLIM_INFINITY && address < top &&
            top - address > stack.rlim_cur - 65536 && top - address < stack.rlim_cur + ((uint64_t)1 << 30))
            kind = WIRE_FAULT_STACK;
    }
    reply(WIRE_FAULT, kind, 0, NULL);
}

static void catch_faults(void) {
    stack_t stack = {.ss_sp = fault_stack, .ss_size = sizeof fault_stack};
    sigaltstack(&stack, NULL);
    struct sigaction sa = {.sa_sigaction = on_fault,
                           .sa_flags = (int)(SA_SIGINFO | SA_ONSTACK | SA_RESETHAND | SA_NODEFER)};
    sigaction(SIGSEGV, &sa, NULL);
    sigaction(SIGBUS, &sa, NULL);
    sigaction(SIGILL, &sa, NULL);
    sigaction(SIGFPE, &sa, NULL);
    sigaction(SIGABRT, &sa, NULL);
}

static bool read_setup(void) {
    ssize_t n;
    while ((n = read(WIRE_FD_SOCKET, &config, sizeof config)) < 0 && errno == EINTR) {}
    const struct wire_setup *s = &config.setup;
    if (n < (ssize_t)sizeof *s || s->magic != WIRE_MAGIC || s->n_args > WIRE_MAX_ARGS || s->param_sets > 2)
        return false;
    return (size_t)n == sizeof *s + s->n_args * sizeof config.args[0];
}

static bool map_regions(void) {
    const struct wire_setup *s = &config.setup;
    /* The pages are populated now, so that page faults belong to neither the answer's time nor its memory limit. */
    void *ro = mmap(NULL, s->read_only_bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, WIRE_FD_READ_ONLY, 0);
    void *rw =
        mmap(NULL, s->read_write_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, WIRE_FD_READ_WRITE, 0);
    close(WIRE_FD_READ_ONLY);
    close(WIRE_FD_READ_WRITE);
    if (ro == MAP_FAILED || rw == MAP_FAILED) return false;
    read_only = ro;
    read_write = rw;
    return true;
}

static void set_limit(int which, uint64_t value) {
    struct rlimit r = {value, value};
    setrlimit((__rlimit_resource_t)which, &r);
}

/* Loads all libraries that the linker gives answers. They come before the answer, so that their own constructors run in
 * a process that is still trusted, and none has to be opened for the answer. */
static void load_libraries(void) {
    static const char *const names[] = {"libm.so.6", "libmvec.so.1", "libgcc_s.so.1"};
    dlopen("libgomp.so.1", RTLD_NOW | RTLD_GLOBAL);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
}

/* Restricts files with Landlock: of all files only the answer can be opened. Which pages of a file are in memory is
 * something that one answer can bring about and another one, or its own next process, can see. Without bubblewrap this
 * is also what hides the rest. Nothing is restricted on a kernel without Landlock. */
static void hide_files(const char *answer) {
    const uint64_t reading = LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE;
    /* The seccomp filter refuses writing already. Here it is refused a second time. */
    struct landlock_ruleset_attr all = {.handled_access_fs =
                                            reading | LANDLOCK_ACCESS_FS_READ_DIR | LANDLOCK_ACCESS_FS_WRITE_FILE |
                                            LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_REG};
    int rules = (int)syscall(SYS_landlock_create_ruleset, &all, sizeof all, 0);
    if (rules < 0) return;
    const int fd = open(answer, O_PATH | O_CLOEXEC);
    if (fd >= 0) {
        struct landlock_path_beneath_attr one = {.allowed_access = reading, .parent_fd = fd};
        syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &one, 0);
        close(fd);
    }
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    syscall(SYS_landlock_restrict_self, rules, 0);
    close(rules);
}

static bool enter_limits(void) {
    const struct wire_setup *s = &config.setup;
    /* Libraries, stacks of threads and the allocator's arenas get 512 MiB of address space beside the limit. */
    if (s->memory_bytes)
        set_limit(RLIMIT_AS, s->read_only_bytes + s->read_write_bytes + s->memory_bytes + (512u << 20));
    set_limit(RLIMIT_CORE, 0);
    set_limit(RLIMIT_FSIZE, 65536); /* This is for standard error only. */
    set_limit(RLIMIT_NOFILE, 32);
    set_limit(RLIMIT_MEMLOCK, 0);
    if (s->max_processes) set_limit(RLIMIT_NPROC, s->max_processes);
    if (s->cpu_s) set_limit(RLIMIT_CPU, s->cpu_s);
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    size_t n = 0;
    for (;;) {
        ssize_t r = read(WIRE_FD_FILTER, (char *)filter + n, sizeof filter - n);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) return false;
        if (r == 0) break;
        n += (size_t)r;
    }
    close(WIRE_FD_FILTER);
    if (n == 0 || n % sizeof filter[0] != 0) return false;
    struct sock_fprog program = {(unsigned short)(n / sizeof filter[0]), filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void *anonymous(size_t n) {
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static bool load_answer(const char *path) {
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        const char *why = dlerror();
        reply(WIRE_FAILED, 0, 0, why ? why : "dlopen failed");
        return false;
    }
    /* POSIX returns object pointers from dlsym. A union makes the conversion to function pointers plain. */
    union {
        void *p;
        size_t (*bytes)(void);
        void (*call)(void **);
    } call = {dlsym(so, "kernelrl_call")}, prep = {dlsym(so, "kernelrl_prepare")},
      n_scratch = {dlsym(so, "kernelrl_scratch_bytes")}, n_prepared = {dlsym(so, "kernelrl_prepared_bytes")};
    out_of_memory = dlsym(so, "kernelrl_out_of_memory");
    if (!call.p || !prep.p || !n_scratch.p || !n_prepared.p) {
        reply(WIRE_FAILED, 0, 0, "the call shim is missing");
        return false;
    }
    call_kernel = call.call;
    call_prepare = prep.call;
    size_t scratch_bytes = n_scratch.bytes(), prepared_bytes = n_prepared.bytes();
    if (scratch_bytes && !(scratch = anonymous(scratch_bytes))) {
        reply(WIRE_FAILED, WIRE_FAULT_MEMORY, 0, "scratch_bytes() is more than the memory limit");
        return false;
    }
    for (uint32_t p = 0; prepared_bytes && p < config.setup.param_sets; p++)
        if (!(prepared[p] = anonymous(prepared_bytes))) {
            reply(WIRE_FAILED, WIRE_FAULT_MEMORY, 0, "prepared_bytes() is more than the memory limit");
            return false;
        }
    reply(WIRE_READY, prepared_bytes ? 1 : 0, 0, NULL);
    return true;
}

static void gather(void **a, uint32_t slot, uint32_t param_set, bool for_prepare) {
    const struct wire_setup *s = &config.setup;
    for (uint32_t i = 0; i < s->n_args; i++) {
        const struct wire_arg *w = &config.args[i];
        unsigned char *params = read_only + param_set * s->param_stride;
        if (for_prepare && w->is_buffer_of_params)
            a[i] = params + w->param_offset;
        else if (w->region == WIRE_PARAM)
            a[i] = params + w->offset;
        else if (w->region == WIRE_INPUT)
            a[i] = read_only + s->input_base + slot * s->input_stride + w->offset;
        else
            a[i] = read_write + slot * s->output_stride + w->offset;
    }
    a[s->n_args] = prepared[param_set];
    a[s->n_args + 1] = scratch;
}

/* ---- the runner as a shell ---- */

enum { MOST_SCRIPT_PROCESSES = 1024 };
/* A script may leave so many entries behind; compilers leave a handful. Folders may lie in each other only so deep. */
enum { MOST_LEFT = 20000, DEEPEST_LEFT = 64 };

/* Removes what lies in a folder, and follows no links. It takes over the folder's descriptor. Folders can be opened
 * whatever their modes are, because they belong to this user. False: something stays. */
static bool empty_folder(int fd, int depth, int *left) {
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    bool empty = d != NULL;
    if (!d && fd >= 0) close(fd);
    for (const struct dirent *f; empty && (f = readdir(d));) {
        if (strcmp(f->d_name, ".") == 0 || strcmp(f->d_name, "..") == 0) continue;
        if (--*left < 0)
            empty = false;
        else if (unlinkat(dirfd(d), f->d_name, 0) != 0) {
            /* This is for folders: a link has just been removed. */
            fchmodat(dirfd(d), f->d_name, 0700, 0);
            empty = depth < DEEPEST_LEFT &&
                    empty_folder(openat(dirfd(d), f->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC),
                                 depth + 1, left) &&
                    unlinkat(dirfd(d), f->d_name, AT_REMOVEDIR) == 0;
        }
    }
    if (d) closedir(d);
    return empty;
}

/* Empties /tmp. False: something stays there, or may. */
static bool empty_tmp(void) {
    int left = MOST_LEFT;
    return chmod("/tmp", 0755) == 0 && empty_folder(open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC), 0, &left);
}

/* Receives the next script, split into argv behind "sh -c", and its descriptors. False: the verifier has gone. */
static bool next_script(char *text, char **argv, int fds[3]) {
    union {
        char bytes[CMSG_SPACE(3 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {text, WIRE_SHELL_BYTES - 1};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t n;
    while ((n = recvmsg(WIRE_FD_SOCKET, &m, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {}
    const struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(3 * sizeof(int))) return false;
    memcpy(fds, CMSG_DATA(c), 3 * sizeof(int));
    text[n] = 0;
    int words = 0;
    argv[words++] = (char[]){"sh"};
    argv[words++] = (char[]){"-c"};
    for (char *w = text; w < text + n && words < WIRE_SHELL_ARGS + 4; w += strlen(w) + 1) {
        argv[words++] = w;
        if (w == text) argv[words++] = argv[0]; /* This is $0. */
    }
    argv[words] = NULL;
    return true;
}

static int serve_scripts(void) {
    static char text[WIRE_SHELL_BYTES];
    char *argv[WIRE_SHELL_ARGS + 5];
    int fds[3], up = WIRE_SHELL_UP;
    /* Everything is killed after each script. That must be the jail's processes and nobody else's. */
    if (getppid() != 1 || getpid() > 9) return 125;
    /* What a script leaves behind is waited for here. */
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return 125;
    /* No script can take a descriptor of this process. */
    if (prctl(PR_SET_DUMPABLE, 0) != 0) return 125;
    /* A compiler that an answer has led astray takes no more of the machine's process numbers. */
    set_limit(RLIMIT_NPROC, MOST_SCRIPT_PROCESSES);
    set_limit(RLIMIT_CORE, 0);
    if (send(WIRE_FD_SOCKET, &up, sizeof up, MSG_NOSIGNAL) != (ssize_t)sizeof up) return 125;
    for (bool clean = true; clean && next_script(text, argv, fds);) {
        int status = 0;
        pid_t pid = fork();
        if (pid == 0) {
            for (int i = 0; i < 3; i++)
                if (dup2(fds[i], i) < 0) _exit(126);
            close(WIRE_FD_SOCKET);
            execve("/bin/sh", argv, environ);
            _exit(127);
        }
        if (pid < 0) _exit(126);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
        kill(-1, SIGKILL);
        while (waitpid(-1, NULL, 0) > 0 || errno == EINTR) {}
        for (int i = 0; i < 3; i++) close(fds[i]);
        clean = empty_tmp(); /* If this fails, the next script gets a new jail. */
        if (send(WIRE_FD_SOCKET, &status, sizeof status, MSG_NOSIGNAL) != (ssize_t)sizeof status) break;
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--shell") == 0) return serve_scripts();
    if (argc != 2 || !read_setup() || !map_regions()) _exit(120);
    load_libraries();
    catch_faults();
    hide_files(argv[1]);
    if (!enter_limits()) _exit(121);
    reply(WIRE_HELLO, 0, 0, NULL);
    if (!load_answer(argv[1])) _exit(122);
    static void *a[WIRE_MAX_ARGS + 2];
    for (;;) {
        struct wire_request q;
        ssize_t n = read(WIRE_FD_SOCKET, &q, sizeof q);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) _exit(0);
        if (n != (ssize_t)sizeof q || q.count > config.setup.slots || q.param_set >= config.setup.param_sets)
            _exit(123);
        if (q.op == WIRE_PREPARE) {
            gather(a, 0, q.param_set, true);
            call_prepare(a);
        }
        for (uint32_t k = 0; q.op == WIRE_CALL && k < q.count; k++) {
            gather(a, k, q.param_set, false);
            call_kernel(a);
        }
        uint32_t kind = out_of_memory && *out_of_memory ? WIRE_FAULT_MEMORY : WIRE_FAULT_OTHER;
        reply(WIRE_DONE, kind, q.nonce, NULL);
    }
}
