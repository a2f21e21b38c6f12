/* verify: decides what a kernel is worth. Owns extraction checks, compilation and its cache, the jail, the reference
 * worker, correctness and timing, and the verdict. May include base, io, problem. The answer never shares a process
 * with the reference, the clock or the verdict. Start here, then verify.c. */
#ifndef KERNELRL_VERIFY_H
#define KERNELRL_VERIFY_H

#include "base/err.h"
#include "base/hash.h"
#include "base/str.h"
#include "io/json.h"
#include "problem/problem.h"
#include "problem/spec.h"
#include "verify/backends.h"

/* How far an answer got. */
enum stage { STAGE_NONE, STAGE_EXTRACT, STAGE_LINT, STAGE_COMPILE, STAGE_RUN, STAGE_CORRECT, STAGE_TIMED };

/* One list of outcomes serves status, feedback category, verdict class and metrics.
 * X(name, text, stage passed, class): class C correct, W wrong, F format, B build, R runtime, H cheat (hostile),
 * I infrastructure (missing, never zero: the caller retries or drops the sample). */
#define OUTCOME_LIST(X)                                                                      \
    X(CORRECT, "correct", STAGE_TIMED, 'C')                                                  \
    X(NO_KERNEL, "no kernel found in the answer", STAGE_NONE, 'F')                           \
    X(LINT, "uses something that is not allowed", STAGE_EXTRACT, 'B')                        \
    X(COMPILE_ERROR, "does not compile", STAGE_LINT, 'B')                                    \
    X(COMPILE_TIMEOUT, "compiling took too long", STAGE_LINT, 'B')                           \
    X(CRASH, "crashed", STAGE_COMPILE, 'R')                                                  \
    X(TIMEOUT, "ran too long", STAGE_COMPILE, 'R')                                           \
    X(MEMORY_LIMIT, "used too much memory", STAGE_COMPILE, 'R')                              \
    X(SANDBOX_VIOLATION, "tried something the sandbox forbids", STAGE_COMPILE, 'H')          \
    X(WRONG_OUTPUT, "wrong output", STAGE_RUN, 'W')                                          \
    X(NOT_FINITE, "output has NaN or infinity where the reference has none", STAGE_RUN, 'W') \
    X(UNWRITTEN, "part of the output was never written", STAGE_RUN, 'W')                     \
    X(OUT_OF_BOUNDS, "wrote outside its buffers or into its inputs", STAGE_RUN, 'W')         \
    X(EXCEPTION, "raised an exception", STAGE_COMPILE, 'R')                                  \
    X(WRONG_SHAPE, "output of another shape, type or kind", STAGE_RUN, 'W')                  \
    X(ALIASED_INPUT, "output shares memory with an input", STAGE_RUN, 'H')                   \
    X(NO_KERNEL_RAN, "no kernel of its own did the work", STAGE_RUN, 'H')                    \
    X(HIDDEN_WORK, "left work to processes of its own", STAGE_CORRECT, 'H')                  \
    X(TOO_FAST, "faster than the memory allows", STAGE_CORRECT, 'H')                         \
    X(BACKEND_UNAVAILABLE, "the backend is not installed here", STAGE_NONE, 'I')             \
    X(UNSTABLE, "right at first, wrong in the timed calls", STAGE_CORRECT, 'H')              \
    X(PROBLEM_ERROR, "the problem itself fails", STAGE_NONE, 'I')                            \
    X(INFRASTRUCTURE, "the verifier failed", STAGE_NONE, 'I')

enum outcome {
#define X(name, text, stage, class) OUTCOME_##name,
    OUTCOME_LIST(X)
#undef X
};
const char *outcome_name(enum outcome o); /* "wrong_output" */
const char *outcome_text(enum outcome o);
char outcome_class(enum outcome o);
enum stage outcome_stage(enum outcome o);

/* Times of single calls as KernelBench reports them. */
struct run_stats {
    double mean_ms, std_ms, min_ms, max_ms;
    int calls; /* timed; 0: none were */
};

struct verdict {
    enum outcome outcome;
    int tests_passed, tests_total;    /* (family, trial) pairs */
    double speedup;                   /* eager time over candidate time; 0 unless correct and timed */
    double speedup_low, speedup_high; /* 95 % interval */
    double eager_ms, kernel_ms;       /* medians */
    double prepare_ms;                /* the answer's optional prepare(), once per parameter set; 0 without one */
    double max_error;                 /* largest error normalised by output scale; NaN when not compared */
    double compile_s, run_s, time_s;  /* wall time of each stage */
    double own_share;                 /* GPU: device time in kernels of the answer's own; 0 when not looked at */
    struct run_stats kernel, eager;   /* ModelNew backends only; per round of calls */
    bool remeasured;                  /* hard to believe, and measured again in a fresh process before it counted */
    bool cached;                      /* taken from the verdict cache */
    char problem_flags[80];           /* known defects of the problem (problem.h), which say how to read this */
    char lint[300];                   /* what static_check.h found, as text; advice */
    char message[2000];               /* compiler text, or what differs; for feedback */
};

#define SCORING_LIST(X) X(SCORING_HARDENED, hardened) X(SCORING_COMPAT, compat)
enum scoring { CHOICE_ENUM(SCORING_LIST) };
/* Does an answer go on to the next trial after one that it fails? ON: no, that was its last stage. OFF: yes, all are
 * made and counted. AUTO: OFF with backend c, whose trials cost next to nothing, else ON. */
#define STAGING_LIST(X) X(STAGED_AUTO, auto) X(STAGED_ON, on) X(STAGED_OFF, off)
enum staging { CHOICE_ENUM(STAGING_LIST) };

/* How ModelNew answers are timed (timing.h): our own methods, then those that KernelBench knows by these names. */
#define TIMING_LIST(X)                     \
    X(TIMING_interleaved, interleaved)     \
    X(TIMING_calibrated, calibrated)       \
    X(TIMING_cuda_event, cuda_event)       \
    X(TIMING_do_bench, do_bench)           \
    X(TIMING_do_bench_impl, do_bench_impl) \
    X(TIMING_host_time, host_time)         \
    X(TIMING_nsight_python_time, nsight_python_time)
enum timing_method { CHOICE_ENUM(TIMING_LIST) };
const char *timing_method_name(enum timing_method m);
/* False when there is no such method. */
bool timing_method_from_name(const char *name, enum timing_method *out);

/* X(type, field, whether it decides verdicts: then it is part of verify_identity()). */
/* clang-format off */
#define VERIFY_OPTION_LIST(X) \
    X(BACKEND, backend, true) \
    X(SCORING, scoring, true)         /* ModelNew backends; c is always hardened */ \
    X(TEXT, device, true)             /* "cpu", "cuda:0"; NULL: what the backend needs */ \
    X(TEXT, precision, true)          /* "fp32", "fp16", "bf16"; NULL: fp32 */ \
    X(BOOL, compat_cpu_inputs, true)  /* draw inputs on the CPU even for a GPU: exactly KernelBench's numbers */ \
    X(BOOL, lint_strict, true)        /* reject what static_check.h finds strict; else it is advice */ \
    X(STAGING, staged, true) \
    X(BOOL, single_input, true)       /* all trials on inputs as the problem makes them, no other families */ \
    X(BOOL, allow_library, true)      /* do not ask for kernels of the answer's own (GPU backends) */ \
    /* ModelNew backends */ \
    X(TIMING, timing_method, true) \
    X(INT, timed_calls, true)         /* 0: 100 */ \
    X(INT, warm_calls, true)          /* before them; 0: the method's */ \
    X(F64, trim, true)                /* share of the times dropped at either end; 0: the method's; 0.5: the median */ \
    X(F64, timing_budget_s, true)     /* stop timing after this long; 0: 20 */ \
    X(F64, interval, true)            /* until the 95 % interval is this narrow, as a share of the ratio; 0: the method's */ \
    /* all backends */ \
    X(TEXT, python, false)            /* NULL: KERNELRL_PYTHON, ./.venv, PATH, /usr/bin/python3: first that imports torch */ \
    X(TEXT, cache_dir, false)         /* compiled objects, at most 512 MiB; NULL: no cache on disk */ \
    X(INT, threads, true)             /* threads for eager and candidate alike; 0: all CPUs */ \
    X(INT, compile_jobs, false)       /* 0: all CPUs */ \
    X(INT, trials, true)              /* correctness trials over all families; 0: 5 */ \
    X(F64, compile_timeout_s, true)   /* 0: 20, on a GPU 180 */ \
    X(F64, run_timeout_s, true)       /* 0: 10, on a GPU 90 */ \
    X(I64, memory_bytes, true)        /* limit of the candidate over its arguments; 0: 2 GiB */ \
    X(U64, seed, false)               /* secret; 0: from the system */ \
    X(BOOL, measure, true)            /* time correct kernels */ \
    X(BOOL, allow_weaker, false)      /* run without bubblewrap when it is missing */
/* clang-format on */
#define VERIFY_OPTION_BACKEND enum verify_backend
#define VERIFY_OPTION_SCORING enum scoring
#define VERIFY_OPTION_STAGING enum staging
#define VERIFY_OPTION_TIMING enum timing_method
#define VERIFY_OPTION_TEXT const char *
#define VERIFY_OPTION_BOOL bool
#define VERIFY_OPTION_INT int
#define VERIFY_OPTION_I64 int64_t
#define VERIFY_OPTION_U64 uint64_t
#define VERIFY_OPTION_F64 double
struct verify_options {
#define X(type, field, decides) VERIFY_OPTION_##type field;
    VERIFY_OPTION_LIST(X)
#undef X
    /* true: the problem is hostile. Its code runs in the jail of answers in Python, not as you, and in no process that
     * has anything of another problem: such a verifier judges answers to one problem alone, the first it is given. CPU
     * only (ST_CONFIG). Verdicts are the same as without, so it is no part of verify_identity(). */
    bool jail_problem;
    /* true: ModelNew answers on a CPU may start compilers while they run, as answers on a GPU may. It is for
     * torch.compile's code of a problem, and for no answer: the filter of system calls then is the one for a GPU, which
     * lists what is refused, where the other one lists what is allowed. */
    bool trusted_compilers;
    /* Called with true in front of measurements, which have the machine to themselves, and with false behind them.
     * NULL: nobody else works while verdicts are given. */
    void (*quiet)(void *ctx, bool on);
    void *quiet_ctx;
    /* Told after each answer how many of the batch's n that had to be run have been. NULL: nobody asks. */
    void (*progress)(size_t done, size_t n);
};
/* Appends what decides verdicts, "field=value" each: verdicts that are kept (journals, verdicts.jsonl) say under which
 * identity they were given. Equal for options that give equal verdicts of equal answers, but for noise. */
void verify_identity(const struct verify_options *o, struct str *out);
/* Its hash, for journals: 64 bits do, since who runs this has written the text. before: what versions before 0.2 wrote
 * instead, which is accepted; 0: nothing. */
struct verify_identity {
    uint64_t now, before;
};
struct verify_identity verify_identity_hash(const struct verify_options *o);
/* What versions before 0.2 wrote into verdicts.jsonl instead. */
void verify_identity_of_files_01(const struct verify_options *o, struct str *out);

struct verifier;
/* Starts the reference worker and probes the jail. Errors say what to install. */
enum status verifier_open(const struct verify_options *o, struct verifier **out, struct err *e) MUST_USE;
void verifier_close(struct verifier *v); /* NULL is fine; kills all children */

/* The interface of a problem, from the reference worker; cached by the code's hash for the verifier's life.
 * The spec lives as long as the verifier. */
enum status verifier_spec(struct verifier *v, const struct problem *p, const struct spec **out, struct err *e) MUST_USE;

/* What answers run on, as KernelBench's files call it: the GPU's name and "cuda:0", or the processor's and "cpu". */
void verifier_hardware(const struct verifier *v, char *hardware, size_t hardware_size, char *device,
                       size_t device_size);

/* The version of the PyTorch that answers are compared with: "2.11.0+cu130". Lives as long as the verifier. */
const char *verifier_torch(const struct verifier *v);

/* Bytes of a GPU's memory that the referee has kept after the last batch, beside what its context takes. */
int64_t verifier_held_bytes(struct verifier *v);

/* Appends the translation unit that a native answer is compiled as (c_source.h, extension.h), for who wants it outside
 * of a verifier. ST_INVALID: the source is refused. Only for backends whose answers are functions. */
enum status verifier_unit(struct verifier *v, const struct problem *p, const char *source, struct str *out,
                          struct err *e) MUST_USE;
/* What the linker of such a unit of backend c must be told. */
extern const char *const verifier_link_options;

/* Appends what the compiler says of the loops of an answer that compiles, at most 12 lines (compile.h). Backends other
 * than c have nothing to say. */
enum status verifier_notes(struct verifier *v, const struct problem *p, const char *source, struct str *out,
                           struct err *e) MUST_USE;

struct verify_item {
    const struct problem *problem;
    const char *source;     /* the C translation unit; NULL: NO_KERNEL */
    bool again;             /* true: it is judged although an equal answer has a verdict, as for a second measurement */
    struct verdict verdict; /* out */
    /* The verifier calls this in the caller's thread as soon as the item's verdict is known. Backends that judge a
     * batch as a whole (C answers) never call it; ModelNew answers are judged one by one. NULL: no callback. */
    void (*judged)(void *ctx, struct verify_item *item);
    void *judged_ctx;
    const char *place; /* where the answer stands in a run, as text that is like no other's; NULL: nowhere */
    void *at_judge;    /* of the judge that has the item (judge.h) */
};
/* Judges a batch: compiles on all cores and meanwhile tests what is ready, one answer at a time; then times the correct
 * ones with the cores to itself, those of one problem (at most four at once) in turn with eager and with each other.
 * Equal (problem, source) pairs are judged once and share the verdict; all answers to a problem meet the same secret
 * inputs, which the reference has run on once. A hostile or broken item never fails the batch; ST_OK unless the
 * verifier itself is beyond repair. cancel, when not NULL, is polled between compilations and between items. */
enum status verify_batch(struct verifier *v, struct verify_item *items, size_t n, const volatile bool *cancel,
                         struct err *e) MUST_USE;

/* Identity of an answer to a problem: SHA-256 of the problem's code, a zero byte and the source (NULL counts as empty).
 * Equal keys get equal verdicts from one verifier. */
struct digest verify_key(const struct problem *p, const char *source);
/* True when hex, as a file has it, is this answer's key, or the one that versions before SHA-256 gave it. */
bool verify_key_matches(const char *hex, const struct problem *p, const char *source);
/* Takes a verdict of an earlier process into the cache of equal answers, as if this verifier had just given it. Missing
 * and cached verdicts are passed over, as they are when they are given, and so are keys that are not verify_key()'s: an
 * older one fits more than one answer. */
void verifier_recall(struct verifier *v, const struct digest *key, const struct verdict *verdict);

/* Makes the verdict one of trouble on our side: OUTCOME_PROBLEM_ERROR where the status says that the problem is at
 * fault (ST_INVALID, ST_PARSE), else OUTCOME_INFRASTRUCTURE. */
void verdict_of_trouble(struct verdict *v, enum status st, const struct err *e);
/* The verdict on an answer that holds no kernel: a source that is NULL or empty. */
void verdict_of_nothing(struct verdict *v);
/* Makes question marks of a message's control characters, but for tabs and line feeds. An answer chooses much of it,
 * and a terminal would obey. */
void verdict_clean(struct verdict *v);
/* What is known to be wrong with the problem, into the verdict. */
void verdict_flag_problem(struct verdict *v, const struct problem *p);
/* Writes the verdict's message, as printf does. */
#define VERDICT_SAY(v, ...) snprintf((v)->message, sizeof(v)->message, __VA_ARGS__)

/* Verdict as one JSON object (docs/formats.md), and back. There and back once, bytes of a message that are not UTF-8
 * become U+FFFD and infinities are gone; a second time changes nothing. ST_PARSE, the message beginning with where (a
 * file and its line), when a key is missing or wrong. */
void verdict_to_json(const struct verdict *v, struct str *out);
enum status verdict_from_json(const json_t *o, const char *where, struct verdict *out, struct err *e) MUST_USE;

#endif
