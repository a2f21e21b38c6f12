/* modrun: one jailed Python that runs a ModelNew answer, or the reference for comparison (worker/kernelrl_worker/
 * harness.py). Forked from a warm one. What it says is never believed: times are taken here, and a CPU answer's outputs
 * are read from its memory while it is stopped. */
#ifndef KERNELRL_VERIFY_TORCH_ANSWER_H
#define KERNELRL_VERIFY_TORCH_ANSWER_H

#include <pthread.h>

#include "verify/jail/jail.h"
#include "verify/jail/ref_worker.h"

/* The warm Python; several threads may fork from it. */
struct zygote {
    struct refworker worker;
    pthread_mutex_t lock;
    const struct jail *jail;
    int generation; /* of the worker that has the filters */
};
/* interpret: Triton's kernels are interpreted, not compiled. */
enum status zygote_open(struct zygote *z, const struct jail *jail, const char *python, int threads, bool interpret,
                        struct err *e) MUST_USE;
void zygote_close(struct zygote *z);
/* What rehearsals of Triton answers need beyond what all answers do, in two steps (0, 1) of some seconds each, in which
 * nothing can be forked. */
enum status zygote_prepare(struct zygote *z, int step, struct err *e) MUST_USE;

struct modrun {
    pid_t outer;     /* outermost process of the jail; 0: none */
    int outer_pidfd; /* to kill all of it */
    pid_t pid;       /* the answer's process, in our numbering */
    int pidfd;
    int socket, stderr_fd;
    uint64_t nonce_key, nonce, asked; /* a request's number: of the secret key and how many there were before it */
    int64_t asked_ns;                 /* when the last one was sent */
    int64_t cpu_ns;                   /* processor time of all its threads when it last stood still */
    int64_t settled_ns;               /* what it has used between being told to stand still and doing so */
    int64_t moved_ns;                 /* what it has used since while it should have stood still */
    double waited_s;                  /* how long it has let this process wait for replies, in all */
    /* how the last request went, for messages */
    bool dead, late;
    bool settles; /* modrun_pause() waits until it stands still: on a CPU, where what it does meanwhile is in the way */
    bool spin;    /* wait for timed replies without sleeping: waking up takes its time */
    bool stopped; /* by modrun_pause(); the next request lets it go on */
    struct zygote *zygote;
};

struct modrun_options {
    const char *device; /* "cpu" or "cuda:0" */
    int threads;
    int64_t memory_bytes; /* of address space, CPU only; 0: no limit */
    uint64_t cpu_s;
};

/* Forks, and waits until the jail is up. ST_SANDBOX or ST_WORKER: our own trouble, worth one retry. */
enum status modrun_start(struct modrun *r, struct zygote *z, const struct modrun_options *o, uint64_t nonce_seed,
                         struct err *e) MUST_USE;

enum modrun_result { MODRUN_OK, MODRUN_FAILED, MODRUN_LATE, MODRUN_DEAD, MODRUN_FORGED };
/* One request (an open JSON object that the call closes after adding a nonce) and its reply. MODRUN_OK, and
 * MODRUN_FAILED where the reply says "ok": false: *reply is its object, the caller json_decref's it. ns, when not NULL:
 * the request is timed. *ns is the wall time between request and reply on our clock; a process that was stopped goes on
 * within that time, and is stopped again as soon as its reply is there. */
enum modrun_result modrun_call(struct modrun *r, struct str *request, int fd, double timeout_s, json_t **reply,
                               int64_t *ns);
/* Whether what came is no reply yet: the answer asks for an object to be compiled. */
bool modrun_asks(const json_t *reply);
/* Lets it go on behind such a question, which has been answered (modrun_send), until the next message: as
 * modrun_call(); *ns, when not NULL, counts from the request on. */
enum modrun_result modrun_go_on(struct modrun *r, double timeout_s, json_t **reply, int64_t *ns);
/* The first half of an untimed call: modrun_receive() is the other. False: the process has gone. */
bool modrun_ask(struct modrun *r, struct str *request, int fd);
/* Sends a message outside of request and reply, and receives the next one: for what comes in between (builds). */
bool modrun_send(struct modrun *r, const struct str *message, int fd);
enum modrun_result modrun_receive(struct modrun *r, double timeout_s, json_t **reply);

/* Stops and continues all its threads. One that settles has stopped when modrun_pause() returns, unless a system call
 * takes longer than a quarter of a second. */
void modrun_pause(struct modrun *r);
void modrun_resume(struct modrun *r);
/* Processor time in seconds that it has used, since this was last asked, while it should have stood still: whatever it
 * is that lets it go on (a timer that continues it, a long system call) is seen when it is next let go. */
double modrun_moved_s(struct modrun *r);
/* The same, of what a process that settles has used before it stood still. */
double modrun_settled_s(struct modrun *r);
/* Copies n bytes at `address` of its memory. False when they are not there. */
bool modrun_read(const struct modrun *r, uint64_t address, void *to, size_t n);
/* Whether some byte of one of n blocks of its memory lies in a mapping of the same file as fd, wherever that is mapped.
 * False too where its mappings cannot be read. */
struct modrun_block {
    uint64_t address, bytes;
};
bool modrun_maps(const struct modrun *r, int fd, const struct modrun_block *blocks, int n);
/* Processes in the jail beside the answer's own two, whichever of its threads has started them. */
int modrun_children(const struct modrun *r);

/* Kills everything in the jail. *signal, *exit_code: how it had ended by itself (0 and -1 when it had to be killed);
 * text: what it wrote to standard error, cut to size. NULL: not wanted. */
void modrun_end(struct modrun *r, int *signal, int *exit_code, char *text, size_t text_size);

#endif
