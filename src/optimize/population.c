#include "optimize/population.h"

#include <stdlib.h>
#include <string.h>

enum { DRAWN_FROM = 16 };

void population_free(struct population *p) {
    for (int i = 0; i < p->n; i++) candidate_free(&p->c[i]);
    free(p->c);
    *p = (struct population){0};
}

struct search_candidate *population_add(struct population *p, const struct search_candidate *c) {
    if (p->n == p->cap) p->c = xrealloc(p->c, (size_t)(p->cap = p->cap ? 2 * p->cap : 64) * sizeof *p->c);
    p->c[p->n] = *c;
    p->c[p->n].id = p->n;
    return &p->c[p->n++];
}

int population_same(const struct population *p, const struct search_candidate *c, int before) {
    for (int i = 0; c->kernel && i < before; i++) {
        const struct search_candidate *other = &p->c[i];
        if (!other->kernel || other->same_as >= 0) continue;
        if (p->novelty ? digest_equal(&other->normal, &c->normal) : strcmp(other->kernel, c->kernel) == 0) return i;
    }
    return -1;
}

double candidate_speed(const struct search_candidate *c) {
    if (!c->correct) return 0;
    return c->estimate.n > 0 ? estimate_bounds(&c->estimate).ratio : 1e-9;
}

int population_best(const struct population *p) {
    int best = -1;
    double most = 0;
    for (int i = 0; i < p->n; i++) {
        const double speed = p->c[i].same_as < 0 ? candidate_speed(&p->c[i]) : 0;
        if (speed <= most) continue;
        most = speed;
        best = i;
    }
    return best;
}

static bool is_of(const struct search_candidate *c, int island) {
    return c->same_as < 0 && (island == ANY_ISLAND || c->island == island);
}

static bool same_plan(const struct search_candidate *a, const struct search_candidate *b) {
    return a->plan && b->plan ? strcmp(a->plan, b->plan) == 0 : a->plan == b->plan;
}

/* Puts candidate i into a list that falls by value; the first of equals stays in front. */
static int insert(int *list, double *value, int n, int most, int i, double v) {
    int at = n;
    while (at > 0 && value[at - 1] < v) at--;
    if (at == most) return n;
    if (n == most) n--;
    memmove(list + at + 1, list + at, (size_t)(n - at) * sizeof *list);
    memmove(value + at + 1, value + at, (size_t)(n - at) * sizeof *value);
    list[at] = i;
    value[at] = v;
    return n + 1;
}

int population_elites(const struct population *p, int island, int *out, int most) {
    CLEANUP_FREE double *value = xcalloc((size_t)most + 1, sizeof *value);
    int n = 0;
    for (int i = 0; i < p->n; i++) {
        const struct search_candidate *c = &p->c[i];
        bool is_elite = is_of(c, island) && c->correct;
        const double speed = candidate_speed(c);
        for (int k = 0; k < p->n && is_elite; k++) {
            const struct search_candidate *o = &p->c[k];
            if (k == i || !o->correct || !is_of(o, island) || !same_plan(o, c)) continue;
            const double its = candidate_speed(o);
            is_elite = its < speed || (its == speed && k > i);
        }
        if (is_elite) n = insert(out, value, n, most, i, speed);
    }
    return n;
}

/* Of a list in which each is half as likely as the one in front of it. */
static int draw(const int *list, int n, struct rng *r) {
    for (int i = 0; i + 1 < n; i++)
        if (rng_next_f64(r) < 0.5) return list[i];
    return n > 0 ? list[n - 1] : -1;
}

int population_draw_elite(const struct population *p, int island, int not_this, struct rng *r) {
    int list[DRAWN_FROM];
    const int n = population_elites(p, island, list, DRAWN_FROM);
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (list[i] != not_this) list[kept++] = list[i];
    return draw(list, kept, r);
}

/* How far a failed answer came: stages, and the share of the tests. What tried to cheat is not shown to anybody. */
static double came_so_far(const struct search_candidate *c) {
    const struct verdict *v = candidate_verdict(c);
    if (!v || c->correct || !c->kernel) return -1;
    const char class = outcome_class(v->outcome);
    if (class == 'H' || class == 'I') return -1;
    return outcome_stage(v->outcome) + (v->tests_total > 0 ? (double)v->tests_passed / v->tests_total : 0);
}

int population_draw_failed(const struct population *p, int island, struct rng *r) {
    int list[DRAWN_FROM];
    double value[DRAWN_FROM + 1];
    int n = 0;
    for (int i = p->n - 1; i >= 0; i--) { /* the newest first among equals */
        const double far = is_of(&p->c[i], island) ? came_so_far(&p->c[i]) : -1;
        if (far > 0) n = insert(list, value, n, DRAWN_FROM, i, far);
    }
    return draw(list, n, r);
}
