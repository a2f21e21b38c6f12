/* command: what rank 0 asks of the other ranks. Rank 0 runs the program; the others wait for commands and carry each
 * out together with it. A command is a number and a payload of bytes, written and read by the same build of the program
 * on machines of one kind, so that numbers and structs travel as they lie in memory. */
#ifndef KERNELRL_DIST_COMMAND_H
#define KERNELRL_DIST_COMMAND_H

#include "base/str.h"
#include "dist/comm.h"

enum rank_command {
    RANK_QUIT,
    RANK_SAMPLE,     /* ranks/sample.h */
    RANK_FORWARD,    /* train_forward */
    RANK_ACCUMULATE, /* train_accumulate */
    RANK_STEP,       /* train_optimizer_step */
    RANK_STATE,      /* train_share_state */
    RANK_VALUES,     /* train_gather_values */
    RANK_MOMENTS,    /* adamw_save and adamw_load of parts */
};

/* Rank 0 gives a command; every other rank is waiting for one. In a run of one rank nothing happens. */
enum status command_give(struct comm *c, enum rank_command what, const struct str *payload, struct err *e) MUST_USE;
/* Another rank waits for the next command. The payload replaces what the string held. */
enum status command_await(struct comm *c, enum rank_command *what, struct str *payload, struct err *e) MUST_USE;

/* What a payload is made of. pack() appends the n bytes at p; pack_array() their number in front of them, so that
 * unpack_array() knows it. */
void pack(struct str *s, const void *p, size_t n);
void pack_array(struct str *s, const void *p, int64_t n, size_t element);
#define PACK(s, x) pack((s), &(x), sizeof(x))

/* Reads from a payload. The first call that would read behind its end makes `short_` true and gives zeros, as all after
 * it do: a reader checks once, at the end. */
struct unpack {
    const char *p, *end;
    bool short_;
};
struct unpack unpack_of(const struct str *s);
void unpack(struct unpack *u, void *out, size_t n);
/* A view of the array into the payload, aligned for any number; NULL and *n 0 where it has no elements. */
const void *unpack_array(struct unpack *u, int64_t *n, size_t element);
#define UNPACK(u, x) unpack((u), &(x), sizeof(x))

#endif
