/* jail: where untrusted code lives. bubblewrap gives namespaces: no network, no other processes, no files but the
 * system's libraries, read-only. seccomp takes system calls away, and rlimits bound memory, time and processes. When
 * the program runs as root, the jail's processes first become the user nobody. */
#ifndef KERNELRL_VERIFY_JAIL_JAIL_H
#define KERNELRL_VERIFY_JAIL_JAIL_H

#include "base/arena.h"
#include "base/err.h"
#include "verify/jail/process.h"

struct jail {
    char bwrap[512]; /* Empty in weak mode. */
    bool weak;       /* true: there is no bubblewrap, only seccomp, rlimits and, where the kernel has it, Landlock. */
    bool drop_root;
    /* Further directories that compilers see, read-only: a CUDA toolkit, PyTorch's headers. They are set before the
     * first compiler starts. */
    char more[PROCESS_MAX_REACHED][512];
    int n_more;
    struct arena arena;
    void *run_filter, *compile_filter, *python_filter, *gpu_filter; /* BPF programs. */
    size_t run_filter_bytes, compile_filter_bytes, python_filter_bytes, gpu_filter_bytes;
};

/* Finds bubblewrap (KERNELRL_BWRAP, else bwrap in PATH) and really starts a jail with it. Where there is none:
 * ST_SANDBOX, which says what to do, or, with allow_weaker, weak mode and one warning. */
enum status jail_open(struct jail *j, bool allow_weaker, struct err *e) MUST_USE;
void jail_close(struct jail *j);
/* Shows compilers one more directory, wherever it lies, but not /tmp itself. A directory below one that they see
 * already is passed over. */
void jail_show(struct jail *j, const char *directory);

/* Starts /bin/sh -c SCRIPT sh ARGS... with the compiler's directories visible. TMPDIR is the only place that can be
 * written to; in weak mode it is tmp_dir, which the caller has made. fds become 0, 1 and 2. */
enum status jail_start_compiler(const struct jail *j, const char *script, char *const *args, const char *tmp_dir,
                                const int fds[3], double timeout_s, struct process *out, struct err *e) MUST_USE;
/* Starts the runner (runner_path) as a shell (jail_shell.h) in one such jail. It runs the scripts that come over the
 * socket until that is closed. extra: files that appear in the jail's /extra, read-only. This does not exist in weak
 * mode. The jail dies with the thread that started it. */
enum { JAIL_EXTRA_FILES = 5 };
struct jail_file {
    int fd; /* The file is read from its beginning to its end. -1: there is none. */
    const char *name;
};
enum status jail_start_shell(const struct jail *j, const char *runner_path, int socket_fd,
                             const struct jail_file extra[JAIL_EXTRA_FILES], double timeout_s, struct process *out,
                             struct err *e) MUST_USE;
/* Starts the runner (runner_path) on the shared object behind answer_fd. It is given the socket, the two regions and
 * standard error as wire.h says, and installs the seccomp filter itself. environment is ended by NULL; nothing else is
 * inherited. */
struct jail_runner {
    const char *runner_path;
    int answer_fd, socket_fd, read_only_fd, read_write_fd, stderr_fd;
    char *const *environment;
};
enum status jail_start_runner(const struct jail *j, const struct jail_runner *r, struct process *out,
                              struct err *e) MUST_USE;

#endif
