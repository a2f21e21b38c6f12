/* internal: one ModelNew answer on its way, as torch/judge.c (trials), torch/clock.c (times) and torch/batch.c (many)
 * share it. Inner to these. */
#ifndef KERNELRL_VERIFY_TORCH_INTERNAL_H
#define KERNELRL_VERIFY_TORCH_INTERNAL_H

#include <stdio.h>
#include <string.h>

#include "verify/build/kernel_names.h"
#include "verify/torch/judge.h"

enum { MAX_CALLS = 128, CHECKED_CALLS = 8 };

struct torch_answer {
    struct module_judge *j;
    struct modcase *c;
    struct verdict *out;
    const char *source;
    struct modrun r;
    bool up;
    /* It takes no process that waits: those are for references, and answers that nothing is loaded in front of. */
    bool own;
    bool last;                   /* our own trouble has ended earlier tries, and there will be no other */
    bool control;                /* it is the problem's own reference, in an answer's place */
    bool certain;                /* a fault found in the problem is one: nothing of an answer's had a part in it */
    json_t *interface;           /* cuda_native: its problem's "spec" and "structure"; else NULL */
    struct kernel_names kernels; /* of its sources */
    json_t *segments;            /* GPU: blocks of its memory, and how another process opens them; NULL: not asked */
    bool timed;                  /* the trials are over */
    bool complete;               /* nothing more is compiled for it */
    bool apart;                  /* GPU: each of its calls is waited for: it works on streams of its own */
    bool kept;                   /* GPU: its memory was looked at through what had been opened for an earlier call */
    bool fresh;                  /* GPU: not any more, because that showed something wrong */
    bool again;                  /* and what it was has to be seen once more */
    int busy;                    /* turns in front of which the device was not at rest */
    int unlooked;                /* requests since outputs were looked at, where they are large */
    int unseen;                  /* timed calls whose outputs were in memory that nobody knew of */
    double deadline_s;           /* of the correctness trials */
    bool one_at_a_time;          /* its calls write to the same memory: only the last one's output can be seen */
    uint64_t next_set;           /* timed sets used so far */
    uint64_t random;             /* secret, for what is checked; no two runs have the same */
    uint64_t random_step;
    uint64_t processes; /* started for it: each has nonces of its own */
};

static inline bool is_hardened(const struct module_judge *j) { return j->o->scoring == SCORING_HARDENED; }
static inline bool on_gpu(const struct module_judge *j) { return strncmp(j->o->device, "cuda", 4) == 0; }

/* All of these: false when a verdict is there (in r->out), or the answer's process is gone. */

/* A fresh jailed process for r. */
enum status run_fork(struct torch_answer *r, struct err *e) MUST_USE;
/* Executes `code` in it; compilers do their part. is_answer: class ModelNew, else the problem's Model. */
bool run_load(struct torch_answer *r, const char *code, bool is_answer);
bool run_attach(struct torch_answer *r, enum modcase_lane lane);
/* The module with parameter set 0 or 1. */
bool run_build(struct torch_answer *r, int param_set);
/* An open request of this name, and one whose reply says nothing more. */
void run_open_request(struct str *q, const char *op);
bool run_simple(struct torch_answer *r, struct str *q, int fd, double timeout_s, const char *where);
/* The same for what a process does before its answer is called: a busy machine may be late with it, so that but for the
 * last try it is our trouble. */
bool run_starting(struct torch_answer *r, struct str *q, int fd);
/* Tensor objects for n slots, on one side or, at once, on both. */
bool run_ready(struct torch_answer *r, const int *slots, int n, const char *where);
bool run_ready_both(struct torch_answer *a, struct torch_answer *b, const int *slots, int n, const char *where);
/* Calls on slots, which hold these sets. The reply lists output addresses per call (caller json_decref's *reply). The
 * process stands still afterwards. */
bool run_call(struct torch_answer *r, const int *slots, int n, const struct modset *sets, double timeout_s,
              const char *where, json_t **reply, int64_t *ns);
/* Address of output k of call i; 0 when it is no plain tensor. */
uint64_t run_pointer(const json_t *reply, int i, int k);
/* GPU: records what the calls between record(on) and record(off) run: one request. *reply of the latter (NULL for the
 * former), which the caller json_decref's: "kernels": [[name, how often, ns], ...], "elsewhere": whether any work was
 * on another stream than the current one. */
bool run_record(struct torch_answer *r, bool on, json_t **reply);
/* What share of the device time of such a request was in kernels from the answer's own source. None, or next to none,
 * means that it has handed its work to somebody else. Work elsewhere: its calls are waited for one by one from now on.
 */
bool run_account(struct torch_answer *r, const json_t *recorded);
/* Looks at the outputs of n of the calls just made. */
bool run_check_calls(struct torch_answer *r, const json_t *reply, const int *calls, int n, const int *slots,
                     int n_slots, const struct modset *sets, const char *where);
/* An output was wrong, but may be in another block by now than the one that was looked at: whether that is worth
 * another look, the first time that it happens. The verdict is taken back. */
bool run_look_again(struct torch_answer *r);
/* Sets the verdict; always false. */
bool run_reject(struct torch_answer *r, const char *where, enum outcome o, const char *what);

/* With a loaded answer: trials and timing; the verdict is there afterwards. */
void run_judge(struct torch_answer *r);
/* Ends what is left of the answer; all that is in r but the verdict. */
void run_finish(struct torch_answer *r);

/* Leaves the processor of what is timed to it: this thread and what it starts, the referee, and processes to be forked
 * keep to the others. place_free() ends that for this thread. */
void module_keep_clear(struct module_judge *j);
/* Between batches: memory of a GPU that is kept only to be quick goes back. */
void module_rest(struct module_judge *j);
/* Waits until the processes that wait for answers have stopped working: what is timed wants no company. */
void module_settle_spares(struct module_judge *j);
/* Starts processes that wait where some are missing, in a thread of its own. */
void module_renew_spares(struct module_judge *j);
/* Ends the process that runs the reference. */
void module_drop_reference(struct module_judge *j);

/* torch/clock.c: times a correct answer against the reference, with the machine to itself. The ratio, or another
 * outcome, goes into the verdict. A ratio that is hard to believe is measured again in a fresh process before it
 * counts. */
void module_measure(struct torch_answer *r);

#endif
