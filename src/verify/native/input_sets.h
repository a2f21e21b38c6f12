/* sets: the memory of one problem. There are two kinds, which are never mixed:
 *   master  shared by verifier and reference worker: parameter sets, input sets, expected outputs. No answer sees it.
 *   stage   shared by verifier and runner: parameters and the inputs of the calls to come, which the runner can only
 *           read, and the outputs, which it can write. Inputs are copied in just before a call, so an answer cannot
 *           work ahead. Several answers to a problem may be alive in turn: each writes to a lane of its own, so that
 *           none sees what another has computed.
 * An argument has the same offset within a stride in both. */
#ifndef KERNELRL_VERIFY_NATIVE_INPUT_SETS_H
#define KERNELRL_VERIFY_NATIVE_INPUT_SETS_H

#include "base/arena.h"
#include "problem/spec.h"
#include "verify/compare.h"
#include "verify/jail/wire.h"

enum { SETS_PARAM_SETS = 2, SETS_GUARD_BYTES = 256, SETS_LANES = 4 };

struct set_info {
    bool filled;
    const char *family; /* One of FAMILY_SHIPPED and its like (worker_constants.h). */
    int param_set;
    struct compare_limit *limits; /* The limits of each compared argument. */
    double **scales;              /* The scales of its rows in the expected output. */
};

struct sets {
    const struct spec *spec;
    struct arena arena;
    /* For each argument: its offset within the strides, or -1 where it has no place. A buffer that forward() changes
     * has two places: one for its first value among the parameters, one among the outputs. */
    int64_t *input_at, *param_at, *output_at;
    size_t input_stride, param_stride, output_stride;
    int n_compared; /* How many outputs and changed buffers there are. */
    int *compared;  /* Their argument indices. */
    int64_t *row;   /* For each of them: how many elements a row has (compare_row). */

    int master_fd;
    unsigned char *master;
    size_t master_bytes;
    int n_sets;
    struct set_info *info;

    int read_only_fd;
    unsigned char *read_only;
    size_t read_only_bytes;
    struct sets_lane {
        int fd;
        unsigned char *read_write;
    } lanes[SETS_LANES]; /* The first lane is always there. The others are made once they are wanted. */
    int n_lanes;
    size_t read_write_bytes; /* The bytes of a lane. */
    int slots;               /* How many calls fit in one request. */

    uint64_t *poison; /* For each argument. */
    uint64_t guard;   /* What fills the gaps between outputs. */
};

/* Lays the memory out and maps it. There are n_tests sets for correctness. For timing there are, for each lane, as many
 * sets as fit in 128 MiB (at least 8, at most 640); where 8 sets are larger than that, fewer lanes have them. Sets that
 * are not filled occupy no memory. random: a secret word for poison and guards. ST_INVALID when one set needs more than
 * 256 MiB. */
enum status sets_open(struct sets *s, const struct spec *spec, int n_tests, uint64_t random, struct err *e) MUST_USE;
void sets_close(struct sets *s);
/* How many bytes the whole may come to occupy. */
size_t sets_bytes(const struct sets *s);

unsigned char *sets_input(const struct sets *s, int set); /* The inputs of a set in the master. */
/* The expected outputs of a set in the master, at output offsets. */
unsigned char *sets_expected(const struct sets *s, int set);
/* Gives back the memory of sets [first, first + n), for this process and the worker. They have to be filled again. */
void sets_forget(struct sets *s, int first, int n);
/* Copies the parameters to the stage, after the worker has filled them. */
void sets_stage_params(struct sets *s);
/* Notes what the worker has put into a set, and computes its scales. family is a string constant. limits has one entry
 * for each compared argument, and is copied. */
void sets_note(struct sets *s, int set, const char *family, int param_set, const struct compare_limit *limits);

/* Makes sure that lanes 0 .. n-1 are there. n is at most SETS_LANES. */
enum status sets_open_lanes(struct sets *s, int n, struct err *e) MUST_USE;

/* Copies a set's inputs into a call slot. In the lane, poisons the outputs, gives changed buffers their first value,
 * and renews the guards. */
void sets_stage(struct sets *s, int lane, int slot, int set);
/* Clears the inputs of all slots, poisons a lane, and clears what is behind its slots. So nothing is left that an
 * earlier answer wrote. */
void sets_wipe(struct sets *s, int lane);
/* Returns whether the gaps around a slot's outputs still hold the guard. If not, *arg is the argument next to the
 * damage. */
bool sets_guards_hold(const struct sets *s, int lane, int slot, int *arg);
/* Compares a slot's outputs with a set's. *arg is the first compared argument that differs, or -1. The result is that
 * argument's, with the largest error of all arguments. */
void sets_compare(const struct sets *s, int lane, int slot, int set, int *arg, struct compare_result *out);

#endif
