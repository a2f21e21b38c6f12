/* modcase: a problem as ModelNew answers meet it, through the reference worker's referee (worker/kernelrl_worker/
 * referee.py): its inputs by (family, seed, parameter set), the memory they are handed over in, and judgement. */
#ifndef KERNELRL_VERIFY_TORCH_CASE_H
#define KERNELRL_VERIFY_TORCH_CASE_H

#include <jansson.h>

#include "base/hash.h"
#include "verify/jail/ref_worker.h"
#include "verify/verify.h"
#include "verify/worker_constants.h"

enum { MODCASE_MAX_OUTPUTS = 16, MODCASE_MAX_TRIALS = 32 };
/* Lanes: memory that the referee shares with one process. The same set has the same contents in both. */
enum modcase_lane { LANE_REFERENCE = REFERENCE_LANE, LANE_ANSWER, N_LANES };

/* What the reference takes when no answer's process is alive, by one process of the reference's. */
struct modcontrol {
    long process;   /* its number; 0: nothing is known */
    double first_s; /* the least that a request's first call has been found to cost more than others; 0: unknown */
    struct {
        int calls; /* a request; 0: unused */
        double call_s;
    } of[8];
    int next; /* the entry to be replaced */
};

struct modset {
    const char *family; /* a string constant */
    uint64_t seed;
    int param_set; /* 0 as initialised, 1 randomised */
};

struct modcase {
    struct digest key;
    char *code;
    int id, generation; /* its number in the worker, and the worker's life it was loaded in; 0: not loaded */
    uint64_t seed;      /* secret */
    bool broken;
    bool certain; /* and was so when nothing of an answer's lived */
    char error[1000];

    json_t *loaded; /* the referee's description: init, values, inputs, params, outputs, structure */
    int64_t input_bytes, param_bytes;
    int64_t output_bytes[MODCASE_MAX_OUTPUTS];
    int n_outputs;
    bool random, mutates, aliases;
    bool ahead; /* loaded before its turn, and kept until then */
    struct arena arena;
    struct spec spec; /* of a native answer; no arguments where there is none */

    struct modset trials[MODCASE_MAX_TRIALS];
    int n_trials;
    const char *timed_family; /* of some timed sets; NULL: of none */
    bool touched;             /* some have one element that stands out */
    int slots;                /* of each lane */
    int64_t lane_bytes;
    int lane_fd[N_LANES];  /* CPU; -1: none */
    char *handle[N_LANES]; /* GPU, JSON text */
    json_t *watch;         /* GPU: what modcase_watch() was given for the next staging; NULL: nothing */
    bool watching;         /* it has been staged since */
    bool busy;             /* the device did not come to rest around the last staging for timed calls */
    struct modcontrol control;
    uint64_t init_seeds[2];
};

struct modcases {
    struct refworker *worker;
    const struct verify_options *o;
    struct modcase **items;
    size_t count;
    uint64_t seed;
    int result_fd; /* memory that the referee reads a CPU answer's outputs from */
    unsigned char *result;
    int64_t result_bytes;
    int result_generation;
};

void modcases_init(struct modcases *m, struct refworker *worker, const struct verify_options *o, uint64_t seed);
void modcases_free(struct modcases *m);

/* The problem, loaded and surveyed: trials are decided. ST_INVALID: the problem is at fault. */
enum status modcase_get(struct modcases *m, const char *code, struct modcase **out, struct err *e) MUST_USE;
/* Makes sure that a lane's memory is there, holding both parameter sets. */
enum status modcase_open_lane(struct modcases *m, struct modcase *c, enum modcase_lane lane, struct err *e) MUST_USE;
/* Gives a lane's memory back; on a GPU, closes what was opened of an answer's memory. */
void modcase_close_lane(struct modcases *m, struct modcase *c, enum modcase_lane lane);
/* Drops what the referee keeps of all problems but this one (may be NULL) and those loaded ahead of their turn. */
void modcase_drop_others(struct modcases *m, const struct modcase *keep);
/* Bytes of a GPU's memory that nobody uses, and all of them; the referee drops what it can do without. */
enum status modcases_room(struct modcases *m, int64_t *free_bytes, int64_t *total_bytes, struct err *e) MUST_USE;
/* Between batches, on a GPU: the referee gives back what it keeps only to be quick. *held_bytes: what it still has. */
enum status modcases_rest(struct modcases *m, int64_t *held_bytes, struct err *e) MUST_USE;
/* Timed set i: as get_inputs draws it, on the parameters as initialised. Some sets, nobody knows which, are of another
 * family (hardened scoring, several inputs). */
struct modset modcase_timed_set(const struct modcase *c, uint64_t i);
/* Seed of what forward() itself may draw on a set. The answer is told, so it is not the seed of the inputs. */
uint64_t modcase_forward_seed(const struct modcase *c, const struct modset *s);
/* Writes sets into slots of the answer's lane, and of the reference's too (both); each set is drawn once. timed: in
 * front of timed calls, while everybody stands still; on a GPU its cache is empty afterwards (modcase_drain()). */
enum status modcase_stage(struct modcases *m, struct modcase *c, bool timed, bool both, const struct modset *sets,
                          const int *slots, int n, struct err *e) MUST_USE;
/* GPU: whether the device goes on working for others for as long as a second. */
enum status modcase_at_rest(struct modcases *m, struct modcase *c, bool *busy, struct err *e) MUST_USE;
/* GPU: blocks of an answer's memory, [[base, size, handle], ...], in which nothing may change between the next staging
 * and modcase_watched(), which says whether something has; without a staging in between it says no. */
void modcase_watch(struct modcase *c, json_t *blocks);
enum status modcase_watched(struct modcases *m, struct modcase *c, bool *changed, struct err *e) MUST_USE;
/* GPU: a small piece of the referee's own work behind whatever the device still does, and a write over its cache.
 * *seconds: how long that took. */
enum status modcase_drain(struct modcases *m, struct modcase *c, double *seconds, struct err *e) MUST_USE;
/* GPU: copies pieces of an answer's memory, places: a JSON array of {handle, offset, bytes, dense: contiguous}; kept
 * until the next time, for modcase_judge(). seed (53 bits): of what is large and dense a part, chosen by it; 0: all.
 * fresh: no block is looked at through what was opened for an earlier call; *kept: whether one was. */
enum status modcase_copy(struct modcases *m, const struct modcase *c, const char *places, uint64_t seed, bool fresh,
                         bool *kept, struct err *e) MUST_USE;
/* GPU: closes what was opened of an answer's memory; the answer is about to end. */
void modcase_let_go(struct modcases *m);
/* Makes room for n bytes that the referee can read too, at m->result. */
enum status modcase_result_room(struct modcases *m, int64_t n, struct err *e) MUST_USE;

/* One call to be judged: outputs is an array of {"shape", "stride", "dtype"} with "at" (bytes into m->result) or
 * "handle", "offset", "block". seed (53 bits): of large inputs it sees to it in part that they are as they were; 0: in
 * full. *verdict: {"verdict": ...} of referee.py; the caller json_decref's it. */
enum status modcase_judge(struct modcases *m, struct modcase *c, enum modcase_lane lane, const struct modset *set,
                          int slot, const json_t *outputs, uint64_t seed, json_t **verdict, struct err *e) MUST_USE;

#endif
