/* judge: one answer that compiled, from its first call to its times. Runs it in a jail (candidate.h) on the reference's
 * sets and decides. Single-threaded: one answer at a time uses the reference worker and the sets. */
#ifndef KERNELRL_VERIFY_NATIVE_JUDGE_H
#define KERNELRL_VERIFY_NATIVE_JUDGE_H

#include "verify/build/compile.h"
#include "verify/native/reference.h"
#include "verify/verify.h"

struct native_judge {
    const struct verify_options *o; /* with all defaults filled in */
    const struct jail *jail;
    const char *runner; /* path */
    struct references *references;
    uint64_t serial; /* of started candidates: their nonces differ */
};

/* Runs the correctness trials in a process of its own and writes the verdict. Compilers of `beside` may run at the same
 * time; the time during which they do does not count against the answer's time limit. When they do not, a correct
 * answer is timed at once in the same process; when they do, true comes back: correct so far, judge_timing() is due
 * once the processors are free, with the *fastest_ns of the trials. Times are taken between o->quiet's calls. */
bool judge_tests(struct native_judge *j, struct reference *ref, const struct compile_job *job,
                 struct compile_batch *beside, struct verdict *out, int64_t *fastest_ns) MUST_USE;
/* Times n correct answers to one problem, each in a new process, and adds to their verdicts; time_s is the share of
 * each. A ratio above 10, one whose times differ widely, one beside which the reference was slow, and one whose
 * measurement failed on our side, is measured a second time; the slower one counts. Nothing else of the verifier may
 * run. */
struct judge_timed {
    const struct compile_job *job;
    int64_t fastest_ns; /* from judge_tests() */
    struct verdict *out;
    /* out */
    bool erratic; /* its times differ widely in turns in which the reference's do not */
    bool slowed;  /* the reference took longer in its turns than with no answer alive; what it took then counts */
};
void judge_timing(struct native_judge *j, struct reference *ref, struct judge_timed *timed, int n);

#endif
