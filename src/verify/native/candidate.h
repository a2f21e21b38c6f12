/* candidate: one answer in one jail, and the clock. It owns the runner's process and speaks its protocol (wire.h). */
#ifndef KERNELRL_VERIFY_NATIVE_CANDIDATE_H
#define KERNELRL_VERIFY_NATIVE_CANDIDATE_H

#include "base/err.h"
#include "verify/jail/jail.h"
#include "verify/native/input_sets.h"

struct candidate {
    struct process process; /* bubblewrap, or the runner itself in weak mode. */
    pid_t runner;           /* The runner's process in our numbering. 0: it is not known yet. */
    int runner_pidfd;       /* The runner's descriptor, by which it is stopped and killed. */
    int socket, stderr_fd;
    uint64_t nonce_key, nonce, asked; /* The number of a request (nonce) is made of the secret nonce_key and of asked,
                                         which counts the requests. */
    int64_t asked_ns;                 /* When the request that is being answered was sent. */
    int64_t cpu_ns;   /* The process's processor time when it was last looked at while it stood still. */
    int64_t moved_ns; /* Processor time that it has used since it was last told to stand still. */
    bool has_prepare;
    enum wire_fault fault;
};

enum call_result { CALL_DONE, CALL_TIMEOUT, CALL_DIED, CALL_FORGED, CALL_NOT_LOADED };

struct candidate_options {
    const char *runner_path;
    int threads;
    int64_t memory_bytes;
    uint64_t cpu_s;
    int lane; /* The lane of the sets that it writes to. No other living candidate has the same lane. */
};

/* Starts a jail with the object in it, and waits until the object is loaded. The status is about our own doing:
 * ST_SANDBOX means that the jail did not come up, which is worth a retry. *result is about the answer: CALL_DONE, or
 * why it was not loaded, and `text` has what the loader said. After ST_OK, candidate_end() must be called.
 *
 * All threads of the process are stopped except while a request is under way. So nothing of it sees inputs before the
 * clock runs, touches outputs after that, or disturbs somebody else's turn. */
enum status candidate_start(struct candidate *c, const struct jail *jail, const struct sets *sets, const void *object,
                            size_t object_bytes, const struct candidate_options *o, uint64_t nonce_seed,
                            double timeout_s, enum call_result *result, char *text, size_t text_size,
                            struct err *e) MUST_USE;
/* Makes one request: to run the kernel on slots 0..count-1 (WIRE_CALL), or to run prepare() (WIRE_PREPARE). *ns is the
 * wall time between request and reply on our clock. The process is let go on within that time. After CALL_TIMEOUT,
 * candidate_wait() may go on waiting for the same reply. */
enum call_result candidate_call(struct candidate *c, enum wire_op op, int count, int param_set, double timeout_s,
                                int64_t *ns);
enum call_result candidate_wait(struct candidate *c, double timeout_s, int64_t *ns);
/* Processor time in seconds, since this was last asked, that the process has used while it should have stood still: by
 * threads that went on behind a reply, by long system calls, or by whatever else resumed it. */
double candidate_moved_s(struct candidate *c);
/* Kills the process and all that it started. *signal and *exit_code: how it had ended by itself (0 and -1 when it had
 * to be killed). text: what it wrote to standard error, cut to size. Each of them may be NULL. */
void candidate_end(struct candidate *c, int *signal, int *exit_code, char *text, size_t text_size);

#endif
