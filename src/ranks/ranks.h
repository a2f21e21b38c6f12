/* ranks: what the ranks of a training run have in common. Rank 0 runs the program as if it were alone; what it samples
 * and trains the other ranks share in, by commands (dist/command.h). No number of ranks changes a bit of what comes
 * out. May include dist, train, engine and what lies below. Start here, then sample.h. */
#ifndef KERNELRL_RANKS_RANKS_H
#define KERNELRL_RANKS_RANKS_H

#include "ranks/sample.h"
#include "train/step.h"

/* Gives this process its share of the machine, where a launcher has started several and `ranks` (as comm_open takes it)
 * is not "self": *device "cuda" becomes the device of its number on the machine, or the only one that Slurm shows it, 0
 * *threads an even share of the processors. Log lines of ranks other than 0 name their rank. Returns whether this is
 * rank 0. */
bool ranks_place(const char *ranks, const char **device, int64_t *threads);

/* What must be equal on all ranks, so that a leaf has the same bits wherever it is computed: of each rank its program
 * and its device, and whatever else the caller adds as "name: text" lines. The lines lie in *out. */
void ranks_fingerprint(struct backend *be, struct str *out);
/* Compares everybody's fingerprints, which are lines of "name: text". ST_CONFIG on all ranks: the message names the
 * first rank that differs from rank 0, its machine, and what differs. */
enum status ranks_compare(struct comm *c, const struct str *fingerprint, struct err *e) MUST_USE;

/* Lets the devices reach each other without the host's memory, where they can: all ranks or none. The backend stays
 * open as long as the comm. *how says what carries gradients ("NCCL", "host memory: libnccl.so.2 is not installed
 * ..."). */
enum status ranks_join_devices(struct comm *c, struct backend *be, struct str *how, struct err *e) MUST_USE;

/* A rank other than 0 carries out commands until RANK_QUIT. Errors that rank 0 has, too, end nothing here: rank 0 says
 * how to go on. ST_LOST: rank 0, or the way to it, is lost. */
enum status ranks_follow(struct rank_sampler *s, struct trainer *t, struct model *reference, struct err *e) MUST_USE;

#endif
