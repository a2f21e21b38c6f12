/* sets: the memory of one problem. Two kinds, never mixed:
 *   master  shared by verifier and reference worker: parameter sets, input sets, expected outputs. No answer sees it.
 *   stage   shared by verifier and runner: parameters and the inputs of the calls to come, which the runner can only
 *           read, and the outputs, which it can write. Inputs are copied in just before a call, so an answer cannot
 *           work ahead. Several answers to a problem may be alive in turn: each writes to a lane of its own, so that
 *           none sees what another has computed.
 * Offsets of arguments within a stride are the same in both. */
#ifndef KERNELRL_VERIFY_NATIVE_INPUT_SETS_H
#define KERNELRL_VERIFY_NATIVE_INPUT_SETS_H

#include "base/arena.h"
#include "problem/spec.h"
#include "verify/compare.h"
#include "verify/jail/wire.h"

enum { SETS_PARAM_SETS = 2, SETS_GUARD_BYTES = 256, SETS_LANES = 4 };

struct set_info {
    bool filled;
    const char *family; /* FAMILY_SHIPPED and its like (worker_constants.h) */
    int param_set;
    struct compare_limit *limits; /* of each compared argument */
    double **scales;              /* of its rows in the expected output */
};

struct sets {
    const struct spec *spec;
    struct arena arena;
    /* Per argument: offsets within the strides; -1 where it has no place. Buffers that forward changes have two: their
     * first value in the parameters, and their place among the outputs. */
    int64_t *input_at, *param_at, *output_at;
    size_t input_stride, param_stride, output_stride;
    int n_compared; /* outputs and changed buffers */
    int *compared;  /* their argument indices */
    int64_t *row;   /* of each of them: elements a row (compare_row) */

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
    } lanes[SETS_LANES]; /* the first is always there, the others once they are wanted */
    int n_lanes;
    size_t read_write_bytes; /* of a lane */
    int slots;               /* calls that fit in one request */

    uint64_t *poison; /* per argument */
    uint64_t guard;   /* what fills the gaps between outputs */
};

/* Lays out and maps. n_tests sets for correctness and for timing, for each lane, as many as fit in 128 MiB (at least 8,
 * at most 640); for fewer lanes where 8 are larger than that. What is not filled occupies nothing.
 * random: secret word for poison and guards. ST_INVALID when one set needs more than 256 MiB. */
enum status sets_open(struct sets *s, const struct spec *spec, int n_tests, uint64_t random, struct err *e) MUST_USE;
void sets_close(struct sets *s);
/* Bytes that the whole may come to occupy. */
size_t sets_bytes(const struct sets *s);

unsigned char *sets_input(const struct sets *s, int set);    /* in the master */
unsigned char *sets_expected(const struct sets *s, int set); /* in the master, output offsets */
/* Gives back the memory of sets [first, first + n), which have to be filled again, for this process and the worker. */
void sets_forget(struct sets *s, int first, int n);
/* After the worker has filled the parameters: copies them to the stage. */
void sets_stage_params(struct sets *s);
/* Notes what the worker put into a set, and its scales. family is a string constant; limits: one of each compared
 * argument, copied. */
void sets_note(struct sets *s, int set, const char *family, int param_set, const struct compare_limit *limits);

/* Makes sure that lanes 0 .. n-1 are there, n at most SETS_LANES. */
enum status sets_open_lanes(struct sets *s, int n, struct err *e) MUST_USE;

/* Copies a set's inputs into a call slot, and in the lane poisons the outputs, gives changed buffers their first value
 * and renews the guards. */
void sets_stage(struct sets *s, int lane, int slot, int set);
/* Clears the inputs of all slots, poisons a lane and clears what is behind its slots, so that nothing that an earlier
 * answer wrote is left. */
void sets_wipe(struct sets *s, int lane);
/* True when the gaps around a slot's outputs still hold the guard; else *arg is the argument next to the damage. */
bool sets_guards_hold(const struct sets *s, int lane, int slot, int *arg);
/* Compares a slot's outputs with a set's. *arg is the first compared argument that differs, or -1; the result is that
 * argument's, with the largest error of all. */
void sets_compare(const struct sets *s, int lane, int slot, int set, int *arg, struct compare_result *out);

#endif
