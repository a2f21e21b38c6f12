/* jail: where untrusted code lives. bubblewrap gives namespaces (no network, no processes, no files but the system's
 * libraries, read-only), seccomp takes away system calls, rlimits bound memory, time and processes. When the program
 * runs as root, the jail's processes first become nobody. */
#ifndef KERNELRL_VERIFY_JAIL_JAIL_H
#define KERNELRL_VERIFY_JAIL_JAIL_H

#include "base/arena.h"
#include "base/err.h"
#include "verify/jail/process.h"

struct jail {
    char bwrap[512]; /* empty in weak mode */
    bool weak;       /* no bubblewrap: seccomp, rlimits and, where the kernel has it, Landlock */
    bool drop_root;
    /* More that compilers see, read-only: a CUDA toolkit, PyTorch's headers; set before the first compiler starts. */
    char more[PROCESS_MAX_REACHED][512];
    int n_more;
    struct arena arena;
    void *run_filter, *compile_filter, *python_filter, *gpu_filter; /* BPF programs */
    size_t run_filter_bytes, compile_filter_bytes, python_filter_bytes, gpu_filter_bytes;
};

/* Finds bubblewrap (KERNELRL_BWRAP, else bwrap in PATH) and really starts a jail with it. Without one: ST_SANDBOX with
 * what to do, or, with allow_weaker, weak mode and one warning. */
enum status jail_open(struct jail *j, bool allow_weaker, struct err *e) MUST_USE;
void jail_close(struct jail *j);
/* Shows compilers a directory too, wherever it lies but for /tmp itself; one below what they see already is passed
 * over. */
void jail_show(struct jail *j, const char *directory);

/* Starts /bin/sh -c SCRIPT sh ARGS... with the compiler's directories visible and TMPDIR the only writable place. In
 * weak mode tmp_dir (made by the caller) is TMPDIR. fds become 0, 1 and 2. */
enum status jail_start_compiler(const struct jail *j, const char *script, char *const *args, const char *tmp_dir,
                                const int fds[3], double timeout_s, struct process *out, struct err *e) MUST_USE;
/* Starts the runner (runner_path) as a shell (shell.h) in one such jail: it runs scripts that come over the socket
 * until that is closed. extra: files that appear in the jail's /extra, read-only. Not in weak mode. The jail dies with
 * the thread that started it. */
enum { JAIL_EXTRA_FILES = 5 };
struct jail_file {
    int fd; /* read from its beginning to its end; -1: none */
    const char *name;
};
enum status jail_start_shell(const struct jail *j, const char *runner_path, int socket_fd,
                             const struct jail_file extra[JAIL_EXTRA_FILES], double timeout_s, struct process *out,
                             struct err *e) MUST_USE;
/* Starts the runner (runner_path) on the shared object behind answer_fd. The socket, the two regions and standard error
 * are given to it as wire.h says; it installs the seccomp filter itself. environment: NULL-terminated, nothing else is
 * inherited. */
struct jail_runner {
    const char *runner_path;
    int answer_fd, socket_fd, read_only_fd, read_write_fd, stderr_fd;
    char *const *environment;
};
enum status jail_start_runner(const struct jail *j, const struct jail_runner *r, struct process *out,
                              struct err *e) MUST_USE;

#endif
