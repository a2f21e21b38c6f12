/* population: the answers to one problem, and who of them is shown to the model next. An elite is the best correct
 * answer of its plan; what has the same normal form as an earlier one is passed over. All of it is a function of the
 * candidates and the random numbers, so a search that is read back from disk goes on as it would have. */
#ifndef KERNELRL_OPTIMIZE_POPULATION_H
#define KERNELRL_OPTIMIZE_POPULATION_H

#include "base/rng.h"
#include "optimize/candidate.h"

struct population { /* zero at first */
    struct search_candidate *c;
    int n, cap;
    bool novelty; /* true: equal normal forms count as equal answers; else equal sources do */
};
void population_free(struct population *p);
/* Takes the candidate over, whose id becomes its place. */
struct search_candidate *population_add(struct population *p, const struct search_candidate *c);
/* The first of those in front of `before` that counts as the same answer; -1: none does. */
int population_same(const struct population *p, const struct search_candidate *c, int before);

/* The mean of the ratio; 0 for a candidate that is not correct, 1e-9 for a correct one that was not timed. */
double candidate_speed(const struct search_candidate *c);
/* The fastest correct candidate, the first of equals; -1: none is correct. */
int population_best(const struct population *p);

enum { ANY_ISLAND = -1 };
/* Elites of an island, the fastest first; returns their number, `most` at most. */
int population_elites(const struct population *p, int island, int *out, int most);
/* One of them: each is half as likely as the one in front of it. -1: there is none. `not_this`: passed over; -1: none
 * is. */
int population_draw_elite(const struct population *p, int island, int not_this, struct rng *r);
/* A failed answer that is worth mending: one of those that came furthest, as likely by rank as above. -1: none failed.
 */
int population_draw_failed(const struct population *p, int island, struct rng *r);

#endif
