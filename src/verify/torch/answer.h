/* modrun: one jailed Python that runs a ModelNew answer, or the reference for comparison (worker/kernelrl_worker/
 * harness.py). It is forked from a warm one. What it says is never believed: times are taken here, and a CPU answer's
 * outputs are read from its memory while it is stopped. */
#ifndef KERNELRL_VERIFY_TORCH_ANSWER_H
#define KERNELRL_VERIFY_TORCH_ANSWER_H

#include <pthread.h>

#include "verify/jail/jail.h"
#include "verify/jail/ref_worker.h"

/* The warm Python. Several threads may fork from it. */
struct zygote {
    struct refworker worker;
    pthread_mutex_t lock;
    const struct jail *jail;
    int generation; /* Which life of the worker has the filters. */
};
/* interpret: true where Triton's kernels are interpreted, not compiled. */
enum status zygote_open(struct zygote *z, const struct jail *jail, const char *python, int threads, bool interpret,
                        struct err *e) MUST_USE;
void zygote_close(struct zygote *z);
/* Prepares what rehearsals of Triton answers need beyond what all answers do, in two steps (0, 1) of some seconds each.
 * During a step nothing can be forked. */
enum status zygote_prepare(struct zygote *z, int step, struct err *e) MUST_USE;

struct modrun {
    pid_t outer;        /* The outermost process of the jail. 0: there is none. */
    int outer_pidfd;    /* Its descriptor, by which all of the jail is killed. */
    pid_t pid;          /* The answer's process, in our numbering. */
    int pidfd;          /* Its descriptor. */
    int socket;         /* Requests and replies pass through this socket. */
    int stderr_fd;      /* A file in memory that takes what the process writes to standard error. */
    uint64_t nonce_key; /* The secret from which the numbers of requests (nonces) are made. */
    uint64_t nonce;     /* The number of the last request. It depends on nonce_key and asked. */
    uint64_t asked;     /* How many requests there have been. */
    int64_t asked_ns;   /* When the last request was sent, on the clock of clock_now_ns(). */
    int64_t cpu_ns;     /* Processor time of all its threads when it last stood still. */
    int64_t settled_ns; /* Processor time that it has used between being told to stand still and doing so. */
    int64_t moved_ns;   /* Processor time that it has used while it should have stood still. */
    double waited_s;    /* How long it has let us wait for replies, in all. */
    bool dead;          /* true: it has gone, as a request has shown. For messages. */
    bool late;          /* true: it has not replied in time. For messages. */
    bool settles; /* true: modrun_pause() waits until it stands still. It is so on a CPU, where what the process does
                   * meanwhile is in the way. */
    bool spin;    /* true: its timed replies are waited for without sleeping, because waking up takes time. */
    bool stopped; /* true: modrun_pause() has stopped it. The next request lets it go on. */
    struct zygote *zygote;
};

struct modrun_options {
    const char *device; /* "cpu" or "cuda:0". */
    int threads;
    int64_t memory_bytes; /* A limit of its address space, on a CPU only. 0: there is none. */
    uint64_t cpu_s;
    bool compilers; /* true: it may start programs on a CPU, too (verify.h, trusted_compilers). */
};

/* Forks, and waits until the jail is up. ST_SANDBOX and ST_WORKER are our own trouble, and worth one retry. */
enum status modrun_start(struct modrun *r, struct zygote *z, const struct modrun_options *o, uint64_t nonce_seed,
                         struct err *e) MUST_USE;

enum modrun_result { MODRUN_OK, MODRUN_FAILED, MODRUN_LATE, MODRUN_DEAD, MODRUN_FORGED };
/* Sends one request (an open JSON object that the call closes after adding a nonce) and waits for its reply. After
 * MODRUN_OK, and after MODRUN_FAILED, which means that the reply says "ok": false, *reply is the reply's object; the
 * caller json_decref's it. ns, when not NULL: the request is timed. *ns is then the wall time between request and reply
 * on our clock. A process that was stopped goes on within that time, and is stopped again as soon as its reply is
 * there. */
enum modrun_result modrun_call(struct modrun *r, struct str *request, int fd, double timeout_s, json_t **reply,
                               int64_t *ns);
/* true: what came is no reply yet, but a question: the answer asks for an object to be compiled. */
bool modrun_asks(const json_t *reply);
/* After such a question has been answered (modrun_send): lets the process go on until its next message, as
 * modrun_call() does. *ns, when not NULL, counts from the request on. */
enum modrun_result modrun_go_on(struct modrun *r, double timeout_s, json_t **reply, int64_t *ns);
/* The first half of an untimed call. modrun_receive() is the other half. False: the process has gone. */
bool modrun_ask(struct modrun *r, struct str *request, int fd);
/* Send a message outside of request and reply, and receive the next one: for what comes between a request and its reply
 * (builds). */
bool modrun_send(struct modrun *r, const struct str *message, int fd);
enum modrun_result modrun_receive(struct modrun *r, double timeout_s, json_t **reply);

/* Stop and continue all threads of the process. A process that settles has stopped when modrun_pause() returns, unless
 * a system call takes longer than a quarter of a second. */
void modrun_pause(struct modrun *r);
void modrun_resume(struct modrun *r);
/* Processor time in seconds that the process has used, since this was last asked, while it should have stood still.
 * More than coming to rest takes means that something has let it go on behind our back, such as a timer or a long
 * system call. Such time is seen when the process is next let go. */
double modrun_moved_s(struct modrun *r);
/* Processor time in seconds, since this was last asked, that a process that settles has used before it stood still. */
double modrun_settled_s(struct modrun *r);
/* Copies n bytes at `address` of the memory of the process. False when they are not there. */
bool modrun_read(const struct modrun *r, uint64_t address, void *to, size_t n);
/* Whether some byte of one of n blocks of the memory of the process lies in a mapping of the same file as fd, wherever
 * that file is mapped. It is false, too, where the mappings cannot be read. */
struct modrun_block {
    uint64_t address, bytes;
};
bool modrun_maps(const struct modrun *r, int fd, const struct modrun_block *blocks, int n);
/* How many processes there are in the jail beside the answer's own two, whichever of its threads has started them. */
int modrun_children(const struct modrun *r);

/* Kills everything in the jail. *signal and *exit_code say how the process had ended by itself (0 and -1 when it had to
 * be killed). text gets the end of what it wrote to standard error, as much as it holds. Each
 * of them may be NULL. */
void modrun_end(struct modrun *r, int *signal, int *exit_code, char *text, size_t text_size);

#endif
