/* plans: which of the choices that answers name in their first line pays. A plan is a list with commas between, such as
 * "fused, parallel, simd"; the choices of one place exclude each other. Answers whose plan has another number of places
 * are passed over: the model has no fixed form then, and whole plans are all there is to choose from. */
#ifndef KERNELRL_OPTIMIZE_PLANS_H
#define KERNELRL_OPTIMIZE_PLANS_H

#include "base/str.h"
#include "optimize/bandit.h"

enum { PLAN_PLACES = 8, PLAN_CHOICES = 12 };
struct plan_choice {
    char *text;
    struct bandit_arm arm, others; /* what it has paid here, and for other problems */
};
struct plans { /* zero at first */
    struct {
        struct plan_choice choice[PLAN_CHOICES];
        int n;
    } place[PLAN_PLACES];
    int n_places; /* 0: no plan was seen */
    int seen;     /* plans of that form */
};
void plans_free(struct plans *p);
/* An answer with this plan has paid: here, or for another problem. */
void plans_note(struct plans *p, const char *plan, double pay_off, bool here);
/* Appends a plan that may be the best: for each place the choice with the best draw (Thompson). False: fewer than two
 * plans were seen, so that there is nothing to choose. */
bool plans_draw(const struct plans *p, struct rng *r, struct str *out);
/* Appends the plan with one place, drawn at random, changed for another choice that was seen there. False: no place has
 * another. */
bool plans_change(const struct plans *p, const char *plan, struct rng *r, struct str *out);

#endif
