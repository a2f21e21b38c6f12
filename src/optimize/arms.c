#include "optimize/arms.h"

#include <math.h>
#include <stdlib.h>

/* A plan is changed in one place this often, else it is drawn place by place. */
#define CHANGE_SHARE 0.3

void arms_free(struct arms *a) { plans_free(&a->plans); }

double arm_pay_off(const struct search_candidate *c, double best_speed) {
    const struct verdict *v = candidate_verdict(c);
    if (c->correct) {
        const double share = best_speed > 0 ? candidate_speed(c) / best_speed : 1;
        return 0.25 + 0.75 * fmin(1, share * share);
    }
    if (!v || outcome_class(v->outcome) == 'H' || outcome_class(v->outcome) == 'I') return 0;
    const double tests = v->tests_total > 0 ? (double)v->tests_passed / v->tests_total : 0;
    return (outcome_stage(v->outcome) >= STAGE_COMPILE ? 0.02 : 0) + 0.08 * tests;
}

static void count_task(const struct search_task *t, bool here, struct arms *out) {
    const struct population *p = &t->found;
    const int best = population_best(p);
    const double speed = best >= 0 ? candidate_speed(&p->c[best]) : 0;
    for (int i = 0; i < p->n; i++) {
        const struct search_candidate *c = &p->c[i];
        /* An answer that was there already brings nothing new. */
        const double pays = c->same_as >= 0 ? 0 : arm_pay_off(c, speed);
        bandit_pay(here ? &out->arm[c->arm] : &out->others[c->arm], pays);
        if (c->same_as < 0 && c->plan) plans_note(&out->plans, c->plan, pays, here);
        out->known++;
    }
}

void arms_count(const struct tasks *t, int task, struct arms *out) {
    *out = (struct arms){0};
    for (int i = 0; i < t->n; i++) count_task(&t->items[i], i == task, out);
}

/* ---- choosing -----------------------------------------------------------------------------------------------------*/

static bool draw_plan(const struct arms *a, const struct search_task *t, int island, struct arm_choice *out,
                      struct rng *r) {
    struct str plan = STR_INIT;
    const int elite = population_draw_elite(&t->found, island, -1, r);
    const bool changes = rng_next_f64(r) < CHANGE_SHARE;
    bool made = false;
    if (changes && elite >= 0 && t->found.c[elite].plan) {
        made = plans_change(&a->plans, t->found.c[elite].plan, r, &plan);
        if (made) out->parent[out->n_parents++] = elite;
    }
    if (!made) {
        str_clear(&plan);
        made = plans_draw(&a->plans, r, &plan);
    }
    if (made) out->plan = str_steal(&plan);
    str_free(&plan);
    return made;
}

/* Fills in what the arm shows; false: there is nothing that it could show. */
static bool fill_in(const struct arms *a, const struct search_task *t, bool has_examples, struct arm_choice *out,
                    struct rng *r) {
    const int island = out->island;
    switch (out->arm) {
    case ARM_PLAIN: return true;
    case ARM_EXAMPLES: return has_examples;
    case ARM_PLAN: return draw_plan(a, t, island, out, r);
    case ARM_REFINE: out->parent[0] = population_draw_elite(&t->found, island, -1, r); break;
    case ARM_REPAIR: out->parent[0] = population_draw_failed(&t->found, island, r); break;
    case ARM_CROSS:
        out->parent[0] = population_draw_elite(&t->found, island, -1, r);
        out->parent[1] = out->parent[0] < 0 ? -1 : population_draw_elite(&t->found, ANY_ISLAND, out->parent[0], r);
        out->n_parents = 2;
        return out->parent[1] >= 0;
    default: return false;
    }
    out->n_parents = 1;
    return out->parent[0] >= 0;
}

static bool is_wanted(enum arm arm, const struct search_options *o) {
    switch (arm) {
    case ARM_PLAIN: return true;
    case ARM_EXAMPLES: return o->retrieval == TOGGLE_ON;
    case ARM_PLAN: return o->plans;
    default: return o->refine == TOGGLE_ON;
    }
}

struct arm_choice arms_choose(const struct arms *a, const struct search_task *t, const struct search_options *o,
                              bool has_examples, struct rng *r) {
    bool tried[N_ARMS] = {false};
    /* Of several islands one has its turn; now and then its parents come from all of them. */
    const bool migrates = o->islands < 2 || (o->migrate_every > 0 && (t->waves + 1) % o->migrate_every == 0);
    const int island = o->islands > 1 ? (int)rng_below(r, (uint64_t)o->islands) : 0;
    for (;;) {
        struct arm_choice best = {.arm = ARM_PLAIN};
        double most = -1;
        for (int k = 0; k < N_ARMS; k++) {
            if (tried[k] || !is_wanted((enum arm)k, o)) continue;
            const double draw = o->bandit ? bandit_draw_with(&a->arm[k], &a->others[k], r) : rng_next_f64(r);
            if (draw <= most) continue;
            most = draw;
            best.arm = (enum arm)k;
        }
        tried[best.arm] = true;
        best.island = migrates ? ANY_ISLAND : island;
        if (fill_in(a, t, has_examples, &best, r)) {
            best.island = island;
            return best;
        }
        free(best.plan);
    }
}
