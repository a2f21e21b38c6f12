/* modcase: a problem as ModelNew answers meet it. The reference worker's referee (worker/kernelrl_worker/referee.py)
 * makes its inputs by (family, seed, parameter set), shares the memory they are handed over in, and judges outputs. */
#ifndef KERNELRL_VERIFY_TORCH_CASE_H
#define KERNELRL_VERIFY_TORCH_CASE_H

#include <jansson.h>

#include "base/hash.h"
#include "verify/jail/ref_worker.h"
#include "verify/verify.h"
#include "verify/worker_constants.h"

enum { MODCASE_MAX_OUTPUTS = 16, MODCASE_MAX_TRIALS = 32 };
/* A lane is memory that the referee shares with one process. The same set has the same contents in both lanes. */
enum modcase_lane { LANE_REFERENCE = REFERENCE_LANE, LANE_ANSWER, N_LANES };

/* What one process of the reference takes while no answer's process is alive. */
struct modcontrol {
    long process;   /* The number of that process. 0: nothing is known. */
    double first_s; /* The least that the first call of a request has been found to cost beyond others. 0: unknown. */
    struct {
        int calls;     /* How many calls the requests had. 0: this entry is unused. */
        double call_s; /* Seconds of one of these calls. */
    } of[8];
    int next; /* The entry that is replaced next. */
};

struct modset {
    const char *family; /* A string constant. */
    uint64_t seed;
    int param_set; /* 0: parameters as initialised, 1: randomised. */
};

enum { MODCASE_TIMED_FAMILIES = 3 };
struct modcase {
    struct digest key; /* Of its code. */
    char *code;
    int id;           /* Its number in the worker. */
    int generation;   /* The life of the worker in which it was loaded. 0: it is not loaded. */
    uint64_t seed;    /* Secret. */
    bool broken;      /* true: loading it has shown that the problem is at fault. */
    bool certain;     /* true: it was so while no process of an answer lived. */
    char error[1000]; /* Why it is broken. */

    json_t *loaded; /* The referee's description: init, values, inputs, params, outputs, structure. NULL: not loaded. */
    int64_t input_bytes, param_bytes;
    int64_t output_bytes[MODCASE_MAX_OUTPUTS];
    int n_outputs;
    bool random;  /* true: its forward() draws numbers. */
    bool mutates; /* true: its forward() changes its inputs. */
    bool aliases; /* true: an output of its forward() shares memory with an input. */
    bool ahead;   /* true: it was loaded before its turn, and is kept until then. */
    struct arena arena;
    /* What a native answer is called with. It has no arguments where the native ABI cannot take them. */
    struct spec spec;

    struct modset trials[MODCASE_MAX_TRIALS];
    int n_trials;
    const char *timed_family[MODCASE_TIMED_FAMILIES]; /* [n_timed_families]: those of timed sets that are neither
                                                       * shipped nor touched, by turns. */
    int n_timed_families;
    bool touched; /* true: some timed sets have one element that stands out. */
    int slots;    /* Of each lane. */
    int64_t lane_bytes;
    int lane_fd[N_LANES];  /* CPU. -1: there is no such lane. */
    char *handle[N_LANES]; /* GPU, JSON text. NULL: there is no such lane. */
    json_t *watch;         /* GPU: what modcase_watch() was given for the next staging. NULL: nothing. */
    bool watching; /* GPU, true: a staging has begun to watch, and modcase_watched() has not been asked since. */
    bool busy;     /* GPU, true: the device did not come to rest around the last staging for timed calls. */
    struct modcontrol control;
    uint64_t init_seeds[2];
};

struct modcases {
    struct refworker *worker;
    const struct verify_options *o;
    struct modcase **items;
    size_t count;
    uint64_t seed;
    int result_fd; /* Memory from which the referee reads a CPU answer's outputs. -1: none. */
    unsigned char *result;
    int64_t result_bytes;
    int result_generation; /* The life of the worker that has that memory. */
};

void modcases_init(struct modcases *m, struct refworker *worker, const struct verify_options *o, uint64_t seed);
void modcases_free(struct modcases *m);

/* Finds the problem, or loads and surveys it, which decides its trials. *out is set in each case; its owner is m.
 * ST_INVALID: the problem is at fault. */
enum status modcase_get(struct modcases *m, const char *code, struct modcase **out, struct err *e) MUST_USE;
/* Makes sure that a lane's memory is there, and that it holds both parameter sets. */
enum status modcase_open_lane(struct modcases *m, struct modcase *c, enum modcase_lane lane, struct err *e) MUST_USE;
/* Gives a lane's memory back. On a GPU this also closes what was opened of an answer's memory. */
void modcase_close_lane(struct modcases *m, struct modcase *c, enum modcase_lane lane);
/* Drops what the referee keeps of all problems but `keep`, which may be NULL, and those that were loaded ahead of their
 * turn. */
void modcase_drop_others(struct modcases *m, const struct modcase *keep);
/* GPU: bytes of its memory that nobody uses, and bytes that it has. The referee first drops what it can do without. */
enum status modcases_room(struct modcases *m, int64_t *free_bytes, int64_t *total_bytes, struct err *e) MUST_USE;
/* GPU, between batches: the referee gives back what it keeps only to be quick. *held_bytes: how many bytes it still
 * has. */
enum status modcases_rest(struct modcases *m, int64_t *held_bytes, struct err *e) MUST_USE;
/* Timed set i. It is as get_inputs() draws it, on the parameters as initialised. In hardened scoring with several
 * inputs some sets are of another family, and nobody can know which. */
struct modset modcase_timed_set(const struct modcase *c, uint64_t i);
/* What initialisers make of constants in a parameter set (worker, tensors.py): "plain", in the first set of hardened
 * scoring "touched", in the second "random". */
const char *modcase_constants(const struct verify_options *o, int param_set);
/* The seed of what forward() itself may draw on a set. The answer is told this seed, so it is not the seed of the
 * inputs. */
uint64_t modcase_forward_seed(const struct modcase *c, const struct modset *s);
/* Writes sets into slots of the answer's lane, and with `both` into those of the reference's, too. Each set is drawn
 * once. timed: true in front of timed calls, while everybody stands still. On a GPU its cache is then empty afterwards,
 * as after modcase_drain(). */
enum status modcase_stage(struct modcases *m, struct modcase *c, bool timed, bool both, const struct modset *sets,
                          const int *slots, int n, struct err *e) MUST_USE;
/* GPU. *busy becomes true where the device goes on working for others for as long as a second. */
enum status modcase_at_rest(struct modcases *m, struct modcase *c, bool *busy, struct err *e) MUST_USE;
/* GPU: watches blocks of an answer's memory, [[base, size, handle], ...]. Nothing may change in them between the next
 * staging and modcase_watched(), which says whether something has. Without a staging in between it says no. */
void modcase_watch(struct modcase *c, json_t *blocks);
enum status modcase_watched(struct modcases *m, struct modcase *c, bool *changed, struct err *e) MUST_USE;
/* GPU: the referee gives the device a small piece of work, behind whatever the device still does, and writes over its
 * cache. *seconds: how long that took. */
enum status modcase_drain(struct modcases *m, struct modcase *c, double *seconds, struct err *e) MUST_USE;
/* GPU: copies pieces of an answer's memory. places is a JSON array of {handle, offset, bytes, dense: contiguous}. The
 * copies are kept until the next time, for modcase_judge(). seed (53 bits): of what is large and dense only a part is
 * copied, which the seed chooses. 0: all is copied. fresh: true where no block may be looked at through what was opened
 * for an earlier call. *kept becomes true where some block was looked at so. */
enum status modcase_copy(struct modcases *m, const struct modcase *c, const char *places, uint64_t seed, bool fresh,
                         bool *kept, struct err *e) MUST_USE;
/* GPU: closes what was opened of an answer's memory, because the answer is about to end. */
void modcase_let_go(struct modcases *m);
/* Makes room for n bytes at m->result, which the referee can read, too. */
enum status modcase_result_room(struct modcases *m, int64_t n, struct err *e) MUST_USE;

/* Has one call judged. outputs is an array of {"shape", "stride", "dtype"} with "at" (bytes into m->result), "copy"
 * (which copy of modcase_copy()), or "handle" and "offset". seed (53 bits): only a part of large inputs, which the seed
 * chooses, is checked to be as it was. 0: all of them are. *verdict: {"verdict": ...} of referee.py; the caller
 * json_decref's it. */
enum status modcase_judge(struct modcases *m, struct modcase *c, enum modcase_lane lane, const struct modset *set,
                          int slot, const json_t *outputs, uint64_t seed, json_t **verdict, struct err *e) MUST_USE;

#endif
