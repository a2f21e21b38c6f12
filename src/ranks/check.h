/* check: whether all ranks compute the same bits, before a run is begun (kernelrl selfcheck ranks). */
#ifndef KERNELRL_RANKS_CHECK_H
#define KERNELRL_RANKS_CHECK_H

#include "dist/comm.h"
#include "model/model.h"

/* What a rank computed. */
struct rank_leaf {
    char host[64], device[80];
    uint64_t hash;  /* of a leaf and its log-probabilities: other bits give another number */
    double seconds; /* that it took */
};

/* Every rank computes one leaf, of two texts of random tokens with `rows` rows in all, of a model that is equal on all
 * ranks and has an adapter of its own; the seed says which texts. all [size] is what each of them found, on each of
 * them. The model is prepared for training the adapter. */
enum status ranks_check(struct comm *c, struct model *m, int64_t rows, uint64_t seed, struct rank_leaf *all,
                        struct err *e) MUST_USE;
/* The first rank whose hash is not that of most ranks; -1: all are alike, or (*alike false) no hash has a majority. */
int ranks_odd_one(const struct rank_leaf *all, int size, bool *alike);

#endif
