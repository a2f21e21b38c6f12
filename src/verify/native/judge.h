/* judge: takes one answer that has been compiled from its first call to its times. It runs the answer in a jail
 * (candidate.h) on the reference's sets, and decides. Single-threaded: one answer at a time uses the reference worker
 * and the sets. */
#ifndef KERNELRL_VERIFY_NATIVE_JUDGE_H
#define KERNELRL_VERIFY_NATIVE_JUDGE_H

#include "verify/build/compile.h"
#include "verify/native/reference.h"
#include "verify/verify.h"

struct native_judge {
    const struct verify_options *o; /* All defaults are filled in. */
    const struct jail *jail;
    const char *runner; /* The path of the runner. */
    struct references *references;
    uint64_t serial; /* Counts the candidates that were started, so that their nonces differ. */
};

/* Runs the correctness trials in a process of its own, and writes the verdict. Compilers of `beside` may run at the
 * same time; while they do, the time does not count against the answer's limit.
 *
 * When no compiler runs any more, a correct answer is timed at once in the same process. When some do, true is
 * returned: the answer is correct so far, and judge_timing() is due once the processors are free, with the *fastest_ns
 * of the trials. Times are taken between the calls of o->quiet. */
bool judge_tests(struct native_judge *j, struct reference *ref, const struct compile_job *job,
                 struct compile_batch *beside, struct verdict *out, int64_t *fastest_ns) MUST_USE;
/* Times n correct answers to one problem, each in a new process, and adds the times to their verdicts. time_s is the
 * share of each. These are measured a second time: a ratio above 10, an answer whose times differ widely, one beside
 * which the reference was slow, and one whose measurement failed on our side. The slower measurement counts. Nothing
 * else of the verifier may run meanwhile. */
struct judge_timed {
    const struct compile_job *job;
    int64_t fastest_ns; /* As judge_tests() returned it. */
    struct verdict *out;
    /* These are results. */
    bool erratic; /* true: its times differ widely, in turns in which the reference's do not. */
    /* true: the reference took longer in its turns than while no answer lives. What it took then counts. */
    bool slowed;
};
void judge_timing(struct native_judge *j, struct reference *ref, struct judge_timed *timed, int n);

#endif
