/* refworker: the reference worker's process and its protocol (docs/formats.md, "Worker protocol"). It is trusted, but
 * treated as something that can die, hang or send nonsense. */
#ifndef KERNELRL_VERIFY_JAIL_REF_WORKER_H
#define KERNELRL_VERIFY_JAIL_REF_WORKER_H

#include <jansson.h>

#include "base/err.h"
#include "base/str.h"
#include "verify/jail/jail.h"

/* What the process is for: running references, or being the warm Python that answers are forked from
 * (worker/kernelrl_worker/zygote.py). An interpreting one has Triton's interpreter in the place of its compiler; Triton
 * asks which of them it is when it is imported. */
enum worker_role { WORKER_REFERENCE, WORKER_ZYGOTE, WORKER_INTERPRETING_ZYGOTE };

struct refworker {
    struct process process;
    int socket, stderr_fd;
    int threads;
    enum worker_role role;
    const struct jail *jail; /* The worker's own jail; NULL: it has none. */
    const char *name;        /* For messages. */
    int generation;          /* Grows with every start: what was loaded into an older one is gone. */
    char python[512], torch[64], python_version[32];
};

/* Starts the worker with the first Python that imports torch: `python` or KERNELRL_PYTHON when given (then no other),
 * else ./.venv/bin/python, python3 in PATH, /usr/bin/python3. ST_WORKER says what to install. A zygote gets an
 * environment without anything that could be secret. jail, which is borrowed: the worker runs references that are
 * hostile. It has the jail of answers in Python around itself before it sees any of them, and the environment of a
 * zygote; ST_SANDBOX where the jail is weak. NULL: references are trusted. */
enum status refworker_open(struct refworker *w, const char *python, int threads, enum worker_role role,
                           const struct jail *jail, struct err *e) MUST_USE;
/* Kills it and starts it again with the same Python; one that ends while it starts is started up to three times. */
enum status refworker_restart(struct refworker *w, struct err *e) MUST_USE;
void refworker_close(struct refworker *w);

/* Makes one request and waits for its reply. fd (or -1) travels along. *reply is the reply's object; the caller
 * json_decref's it. ST_INVALID: the problem is at fault, as the worker's message says. ST_MEMORY: a GPU that others
 * use, too, has no room for it. ST_WORKER: the worker is lost, late, or sends nonsense; restart it. */
enum status refworker_call(struct refworker *w, const struct str *request, int fd, double timeout_s, json_t **reply,
                           struct err *e) MUST_USE;
/* The same with several descriptors, at most MAX_MESSAGE_FDS. */
enum status refworker_call_fds(struct refworker *w, const struct str *request, const int *fds, int n_fds,
                               double timeout_s, json_t **reply, struct err *e) MUST_USE;
/* Parses a reply's JSON: ST_OK with *reply, or the error that the reply carries. It is a function of its own for the
 * fuzz target. */
enum status refworker_parse_reply(const char *text, size_t n, json_t **reply, struct err *e) MUST_USE;

#endif
