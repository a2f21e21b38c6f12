#include "optimize/racing.h"

/* Whether a candidate was timed, and its interval reaches that of the leader. */
static bool may_win(const struct search_candidate *c, const struct bounds *lead) {
    return c->same_as < 0 && c->correct && c->estimate.n > 0 && estimate_bounds(&c->estimate).high >= lead->low;
}

int race_next(const struct population *p, int *out) {
    const int best = population_best(p);
    if (best < 0 || p->c[best].estimate.n == 0) return 0;
    const struct bounds lead = estimate_bounds(&p->c[best].estimate);
    CLEANUP_FREE bool *taken = xcalloc((size_t)p->n, sizeof *taken);
    int n = 0, m = 0;
    for (int i = 0; i < p->n; i++) n += may_win(&p->c[i], &lead);
    if (n < 2) return 0;
    for (int k = 0; k < (n + 1) / 2 && k < RACE_MOST; k++) { /* the better half, the best first */
        int next = -1;
        for (int i = 0; i < p->n; i++) {
            const struct search_candidate *c = &p->c[i];
            if (taken[i] || !may_win(c, &lead)) continue;
            if (next < 0 || candidate_speed(c) > candidate_speed(&p->c[next])) next = i;
        }
        taken[next] = true;
        if (p->c[next].judged < RACE_MEASUREMENTS) out[m++] = next;
    }
    return m;
}
