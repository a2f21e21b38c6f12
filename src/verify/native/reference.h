/* reference: a problem as the verifier knows it: its interface, its memory (input_sets.h) and the secret inputs that
 * the reference worker has put there. Made once per problem and kept for the verifier's life: all answers to a problem
 * are judged on the same sets, so the reference runs once and not once per answer. */
#ifndef KERNELRL_VERIFY_NATIVE_REFERENCE_H
#define KERNELRL_VERIFY_NATIVE_REFERENCE_H

#include "base/hash.h"
#include "verify/jail/ref_worker.h"
#include "verify/native/input_sets.h"

enum { REFERENCE_ALONE = 15 };

struct reference {
    struct digest key;                          /* of the problem's code */
    char *code;                                 /* to load it again after the worker was lost */
    int id;                                     /* its number in the worker */
    int loaded_generation, attached_generation; /* of the worker; 0: not */
    uint64_t seed;                              /* secret */
    struct arena arena;
    struct spec spec;
    bool broken; /* the problem itself is at fault, in a new worker as well; error says why */
    char error[1000];

    bool has_sets;
    struct sets sets;
    int n_tests, n_timed; /* sets filled so far: tests are 0..n_tests-1, timed ones follow max_tests */
    bool blind; /* inputs as shipped hardly change the outputs: scaled ones do, by a factor of the problem's own */
    struct family_seen {              /* of a family, on parameters as initialised */
        bool usable;                  /* by timed sets too */
        struct compare_limit *limits; /* of each compared argument: the widest of the tests' */
    } shipped, is_signed, touched, scaled;
    double eager_s;                /* seconds of one eager call, as last measured; 0 unknown */
    double alone[REFERENCE_ALONE]; /* the same with no answer alive, the last so many times */
    int n_alone;
    uint64_t used; /* for eviction */
};

struct references {
    struct refworker *worker;
    struct reference **items;
    size_t count, cap;
    int max_tests;
    bool single_input; /* shipped inputs only */
    /* Of what is kept, and of timed sets in it; a problem that is being judged may need more by itself. */
    size_t most_kept_bytes, most_timed_bytes;
    uint64_t seed, clock;
};

void references_init(struct references *r, struct refworker *worker, int max_tests, uint64_t seed);
void references_free(struct references *r);

/* The problem with this code, loaded by the worker when it is new. ST_INVALID: the problem is at fault (kept, and told
 * again next time). ST_WORKER: the worker could not be kept alive. */
enum status reference_get(struct references *r, const char *code, struct reference **out, struct err *e) MUST_USE;
/* Makes the correctness sets: families shipped, signed, touched, scaled, signed, and so on, of a blind problem shipped,
 * scaled, signed, touched, scaled; shipped and touched ones, and the first scaled ones of a blind problem, run on the
 * parameters as initialised, the others on disturbed ones. Where the reference itself is not finite or badly
 * conditioned on a family, the set is made as shipped instead. */
enum status reference_make_tests(struct references *r, struct reference *p, struct err *e) MUST_USE;
/* Makes sure that at least n timed sets are there; n is at most reference_timed_capacity(). All are on the parameters
 * as initialised; some, nobody knows which, are signed (of a blind problem scaled) or touched, unless single_input is
 * set. */
enum status reference_make_timed(struct references *r, struct reference *p, int n, struct err *e) MUST_USE;
int reference_timed_capacity(const struct references *r, const struct reference *p);
/* Set index of timed set i. */
int reference_timed_set(const struct references *r, int i);
/* Seconds that eager PyTorch takes for `count` forward calls on timed sets first, first+1, ... (modulo `modulo`).
 * round 0 runs one call more, unmeasured, before. */
enum status reference_time(struct references *r, struct reference *p, int first, int count, int modulo, int round,
                           double *seconds, struct err *e) MUST_USE;

#endif
