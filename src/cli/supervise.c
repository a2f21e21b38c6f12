#include "cli/supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "dist/comm.h"

/* Open MPI's mpirun ends with 128 and the signal's number, MPICH's with the number itself. */
static bool was_lost(int status) {
    if (WIFSIGNALED(status)) return true;
    const int code = WEXITSTATUS(status);
    return code == COMM_LOST_EXIT || code == SIGKILL || code == SIGTERM || code == 128 + SIGKILL ||
           code == 128 + SIGTERM || code == 128 + SIGSEGV || code == 128 + SIGBUS || code == 128 + SIGABRT;
}

static enum status run_once(char **argv, int *status, struct err *e) {
    int failed = 0, pipe_[2];
    if (pipe2(pipe_, O_CLOEXEC) != 0) return FAIL(e, ST_FAILED, "cannot start a process: %s", strerror(errno));
    const pid_t child = fork();
    if (child == 0) {
        execvp(argv[0], argv);
        failed = errno;
        if (write(pipe_[1], &failed, sizeof failed) < 0) _exit(126);
        _exit(127);
    }
    close(pipe_[1]);
    if (child < 0 || read(pipe_[0], &failed, sizeof failed) != sizeof failed) failed = child < 0 ? errno : 0;
    close(pipe_[0]);
    while (child > 0 && waitpid(child, status, 0) < 0 && errno == EINTR) {}
    if (failed == ENOENT)
        return FAIL(e, ST_USAGE, "%s: no such program; several ranks need an MPI (tools/setup ranks)", argv[0]);
    if (failed) return FAIL(e, ST_FAILED, "%s: %s", argv[0], strerror(failed));
    return ST_OK;
}

enum status cli_supervise(char **argv, int ranks, int64_t restarts, int *exit_status, struct err *e) {
    char program[PATH_MAX] = "", number[16];
    int n = 0, at = 0, status = 0;
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0)
        return FAIL(e, ST_FAILED, "/proc/self/exe: %s", strerror(errno));
    snprintf(number, sizeof number, "%d", ranks);
    while (argv[n]) n++;
    char **all = xcalloc((size_t)n + 8, sizeof *all);
    /* MPIs would give each rank one processor. */
    char *const launcher[] = {(char[]){"mpirun"}, (char[]){"-n"}, number, (char[]){"-bind-to"}, (char[]){"none"}};
    for (size_t i = 0; ranks > 1 && i < ARRAY_LEN(launcher); i++) all[at++] = launcher[i];
    all[at++] = program;
    for (int i = 0; i < n; i++) all[at++] = argv[i];
    signal(SIGINT, SIG_IGN); /* the terminal sends it to the command, too, which saves and ends */
    enum status st;
    for (int64_t left = restarts;; left--) {
        st = run_once(all, &status, e);
        if (st != ST_OK || !was_lost(status) || left <= 0) break;
        log_warn("a process was lost (%s %d); %lld restart%s left", WIFSIGNALED(status) ? "signal" : "exit status",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), (long long)left - 1,
                 left - 1 == 1 ? "" : "s");
    }
    *exit_status = was_lost(status) ? COMM_LOST_EXIT : WEXITSTATUS(status);
    free(all);
    return st;
}
