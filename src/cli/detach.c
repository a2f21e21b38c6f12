#include "cli/detach.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"

/* What the child has written since the file had `from` bytes; its last part when there is much. */
static void last_words(const char *path, size_t from, char *out, size_t size) {
    struct err ignored;
    CLEANUP_FREE char *text = NULL;
    size_t n;
    *out = 0;
    if (fs_read(path, (size_t)64 << 20, &text, &n, &ignored) != ST_OK || n <= from) return;
    const char *p = text + from;
    if (n - from >= size) p = text + n - size + 1;
    memcpy(out, p, strlen(p) + 1);
    for (size_t len = strlen(out); len > 0 && out[len - 1] == '\n';) out[--len] = 0;
}

enum status cli_detach(const char *log_path, double wait_s, pid_t *child, struct err *e) {
    CLEANUP_FD int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    CLEANUP_FD int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct stat sb;
    if (log < 0 || null < 0 || fstat(log, &sb) != 0) return FAIL(e, ST_IO, "%s: %s", log_path, strerror(errno));
    const pid_t pid = fork();
    if (pid < 0) return FAIL(e, ST_FAILED, "cannot start a process: %s", strerror(errno));
    if (pid == 0) {
        setsid();
        signal(SIGHUP, SIG_IGN);
        dup2(null, STDIN_FILENO);
        dup2(log, STDOUT_FILENO);
        dup2(log, STDERR_FILENO);
        *child = 0;
        return ST_OK;
    }
    *child = pid;
    for (const double end = clock_now_s() + wait_s; clock_now_s() < end;) {
        int status;
        if (waitpid(pid, &status, WNOHANG) == pid) {
            if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return ST_OK; /* quickly done */
            char words[700];
            last_words(log_path, (size_t)sb.st_size, words, sizeof words);
            return FAIL(e, ST_FAILED, "it ended at once: %s", *words ? words : "without a word");
        }
        const struct timespec pause = {0, 50 * 1000 * 1000};
        nanosleep(&pause, NULL);
    }
    return ST_OK;
}
