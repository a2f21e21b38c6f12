/* proof: who has won, by how much, and how sure that is. The finalists of the search are measured again in a fresh
 * process, which chooses the winner; then winner and runner-up are measured side by side in further fresh processes, on
 * more trials and all shapes, and only these measurements are reported: nobody was chosen by them. A process is one
 * observation (estimate.h). Where the processes disagree on whether the winner is faster than PyTorch, as many again
 * are measured; where those do not show it either, it is not shown. */
#ifndef KERNELRL_OPTIMIZE_PROOF_H
#define KERNELRL_OPTIMIZE_PROOF_H

#include "optimize/options.h"
#include "optimize/task.h"

enum { PROOF_MODES = 2 };
struct compiled_proof { /* torch.compile in the answer's place */
    const char *mode;   /* "default", "max-autotune" */
    bool measured;
    int processes;        /* that its intervals rest on */
    struct bounds ratio;  /* of eager's time over its own */
    struct bounds winner; /* of its time over the winner's */
    char why[200];        /* not measured: the reason */
};
struct proof {
    int winner, runner_up; /* candidates; -1: none */
    bool timed;            /* false: it is correct, and times were not measured */
    bool enough;           /* false: too few processes for an interval that shows anything */
    bool faster;           /* true: the whole interval lies above 1, and there were enough processes */
    struct bounds ratio;   /* of eager's time over the winner's, over all shapes */
    struct bounds shape[SHAPES_MAX];
    struct bounds over_runner_up; /* of the runner-up's time over the winner's */
    double eager_ms, kernel_ms;   /* of the first shape, medians over processes */
    int processes, trials;        /* that the report rests on; trials of each */
    int refused;                  /* finalists that failed when they were judged again */
    struct compiled_proof compile[PROOF_MODES];
};
struct proof_environment {
    char hardware[160], device[40], torch[64];
};

/* Proves all tasks, a process for all of them after the other; out[] has a row for each. What was measured is in
 * DIR/proof.jsonl, and the same call goes on from there. waves: the search that it is of. It ends within the options'
 * bound as well as a measurement that has begun allows; with fewer than eight processes nothing is shown. ST_CANCELLED.
 */
enum status proof_run(const struct optimize_options *o, const struct tasks *t, int waves, const char *dir,
                      const volatile bool *cancel, struct proof *out, struct proof_environment *where,
                      struct err *e) MUST_USE;

/* The part that decides, without measuring: the seconds that a proof may take. */
double proof_seconds(const struct optimize_options *o);

#endif
