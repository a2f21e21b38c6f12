/* candidate: one answer in one jail, and the clock. Owns the runner's process and the protocol with it (wire.h). */
#ifndef KERNELRL_VERIFY_NATIVE_CANDIDATE_H
#define KERNELRL_VERIFY_NATIVE_CANDIDATE_H

#include "base/err.h"
#include "verify/jail/jail.h"
#include "verify/native/input_sets.h"

struct candidate {
    struct process process; /* bubblewrap, or the runner itself in weak mode */
    pid_t runner;           /* in our numbering; 0: not known yet */
    int runner_pidfd;       /* the runner, to stop and to kill */
    int socket, stderr_fd;
    uint64_t nonce_key, nonce, asked; /* a request's number: of the secret key and how many there were before it */
    int64_t asked_ns;                 /* when the request now answered was sent */
    int64_t cpu_ns;                   /* its processor time when it was last looked at while it stood still */
    int64_t moved_ns;                 /* what it has used since it was last told to stand still */
    bool has_prepare;
    enum wire_fault fault;
};

enum call_result { CALL_DONE, CALL_TIMEOUT, CALL_DIED, CALL_FORGED, CALL_NOT_LOADED };

struct candidate_options {
    const char *runner_path;
    int threads;
    int64_t memory_bytes;
    uint64_t cpu_s;
    int lane; /* of the sets; no other living candidate has it */
};

/* Starts a jail with the object in it and waits until it is loaded. The status is about our own doing (ST_SANDBOX: the
 * jail did not come up; worth a retry); *result is about the answer: CALL_DONE, or why not, with `text` saying what the
 * loader said. After ST_OK always candidate_end(). All its threads are stopped but while a request is under way:
 * nothing of it sees inputs before the clock runs, touches outputs after that, or disturbs somebody else's turn. */
enum status candidate_start(struct candidate *c, const struct jail *jail, const struct sets *sets, const void *object,
                            size_t object_bytes, const struct candidate_options *o, uint64_t nonce_seed,
                            double timeout_s, enum call_result *result, char *text, size_t text_size,
                            struct err *e) MUST_USE;
/* One request: the kernel on slots 0..count-1 (WIRE_CALL), or prepare() (WIRE_PREPARE). *ns is the wall time between
 * request and reply on our clock; it goes on within that time. After CALL_TIMEOUT candidate_wait() may go on waiting
 * for the same reply. */
enum call_result candidate_call(struct candidate *c, enum wire_op op, int count, int param_set, double timeout_s,
                                int64_t *ns);
enum call_result candidate_wait(struct candidate *c, double timeout_s, int64_t *ns);
/* Processor time in seconds that it has used, since this was last asked, while it should have stood still: threads that
 * went on behind a reply, long system calls, whatever lets it go on. */
double candidate_moved_s(struct candidate *c);
/* Kills it with all it started. *signal and *exit_code: how it had ended by itself (0 and -1 when it had to be killed);
 * text: what it wrote to standard error, cut to size. NULL: not wanted. */
void candidate_end(struct candidate *c, int *signal, int *exit_code, char *text, size_t text_size);

#endif
