/* shell: a compiler's jail that stays up and runs one script after the other, because starting a jail takes as long as
 * compiling a small unit. Every script gets an empty /tmp. When it ends, all its processes end. Where /tmp cannot be
 * emptied, the jail ends as well, and the next script gets a new one. */
#ifndef KERNELRL_VERIFY_JAIL_JAIL_SHELL_H
#define KERNELRL_VERIFY_JAIL_JAIL_SHELL_H

#include "verify/jail/jail.h"

struct shell {
    const struct jail *jail;
    const char *runner;            /* The path of the runner. NULL: every script gets a jail of its own. */
    const struct jail_file *extra; /* See jail_start_shell(). */
    double timeout_s;
    struct process process;
    int socket;
};

/* Only notes its arguments, which must outlive the shell. The jail starts with the first script, and again after a
 * script that had to be killed. */
void shell_init(struct shell *s, const struct jail *jail, const char *runner, const struct jail_file *extra,
                double timeout_s);
/* Ends the jail. Must be called by the thread that ran scripts. */
void shell_close(struct shell *s);

enum shell_result { SHELL_ENDED, SHELL_SLOW, SHELL_DIED, SHELL_BROKEN };
/* Runs `sh -c SCRIPT sh ARGS...` with the standard descriptors fds. SHELL_ENDED: *status is as of waitpid. SHELL_SLOW:
 * the script has not ended within timeout_s, and was killed. SHELL_DIED: two jails that had come up ended under this
 * script. SHELL_BROKEN: no jail came up, nothing of the script has run, and *e says why. Without a runner, a jail that
 * did not come up is SHELL_ENDED, too. tmp_dir: TMPDIR in weak mode. */
enum shell_result shell_run(struct shell *s, const char *script, char *const *args, const char *tmp_dir,
                            const int fds[3], int *status, struct err *e) MUST_USE;

#endif
