/* reference: a problem as the verifier knows it: its interface, its memory (input_sets.h), and the secret inputs that
 * the reference worker has put there. It is made once for a problem and kept for the verifier's life. All answers to a
 * problem are judged on the same sets, so the reference runs once and not once for each answer. */
#ifndef KERNELRL_VERIFY_NATIVE_REFERENCE_H
#define KERNELRL_VERIFY_NATIVE_REFERENCE_H

#include "base/hash.h"
#include "verify/jail/ref_worker.h"
#include "verify/native/input_sets.h"

enum { REFERENCE_ALONE = 15 };

struct reference {
    struct digest key; /* The key of the problem's code. */
    char *code;        /* The code, to load it again after the worker was lost. */
    int id;            /* Its number in the worker. */
    /* The lives of the worker in which it was loaded and attached. 0: it was not. */
    int loaded_generation, attached_generation;
    uint64_t seed; /* Secret. */
    struct arena arena;
    struct spec spec;
    /* true: the problem itself is at fault, in a new worker as well. error says why. */
    bool broken;
    char error[1000];

    bool has_sets;
    struct sets sets;
    /* How many sets have been filled. Tests are 0..n_tests-1; timed sets follow behind max_tests. */
    int n_tests, n_timed;
    /* true: inputs as shipped hardly change the outputs, and scaled ones do, by a factor of the problem's own. */
    bool blind;
    struct family_seen {              /* What is known about a family, on parameters as initialised. */
        bool usable;                  /* true: timed sets may be of it, too. */
        struct compare_limit *limits; /* For each compared argument: the widest limit of the tests. */
    } shipped, is_signed, touched, spikes, scaled;
    double eager_s;                /* Seconds of one eager call, as last measured. 0: unknown. */
    double alone[REFERENCE_ALONE]; /* The same while no answer lived, the last so many times. */
    int n_alone;
    uint64_t used; /* When it was used last, for eviction. */
};

struct references {
    struct refworker *worker;
    struct reference **items;
    size_t count, cap;
    int max_tests;
    bool single_input; /* true: only shipped inputs are used. */
    /* Limits on what is kept, and on the timed sets in it. A problem that is being judged may need more by itself. */
    size_t most_kept_bytes, most_timed_bytes;
    uint64_t seed, clock;
};

void references_init(struct references *r, struct refworker *worker, int max_tests, uint64_t seed);
void references_free(struct references *r);

/* Finds the problem with this code. The worker loads it when it is new. ST_INVALID: the problem is at fault; this is
 * kept, and told again next time. ST_WORKER: the worker could not be kept alive. */
enum status reference_get(struct references *r, const char *code, struct reference **out, struct err *e) MUST_USE;
/* Makes the correctness sets. Their families are shipped, signed, touched, scaled, spikes, and so on; of a blind
 * problem they are shipped, scaled, signed, touched, scaled, and so on. Shipped and touched sets, spikes, and the first
 * scaled ones of a blind problem, run on the parameters as initialised, the others on disturbed ones. Where the
 * reference itself is not finite or badly conditioned on spikes, the set is made as signed instead, and where it is so
 * on another family, as shipped. */
enum status reference_make_tests(struct references *r, struct reference *p, struct err *e) MUST_USE;
/* Makes sure that at least n timed sets are there; n is at most reference_timed_capacity(). All are on the parameters
 * as initialised. Some of them are spikes, signed and scaled (of a blind problem scaled alone) or touched, unless
 * single_input is set; an answer cannot know which. */
enum status reference_make_timed(struct references *r, struct reference *p, int n, struct err *e) MUST_USE;
int reference_timed_capacity(const struct references *r, const struct reference *p);
/* The set index of timed set i. */
int reference_timed_set(const struct references *r, int i);
/* Measures the seconds that eager PyTorch takes for `count` forward calls on timed sets first, first+1, ... (modulo
 * `modulo`). Round 0 makes one more call before, which is not measured. */
enum status reference_time(struct references *r, struct reference *p, int first, int count, int modulo, int round,
                           double *seconds, struct err *e) MUST_USE;

#endif
