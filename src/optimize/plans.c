#include "optimize/plans.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct plan_part { /* of a plan, trimmed */
    const char *p;
    size_t n;
};

/* Splits at commas; returns the number of parts, or 0 when they are too many or one is empty. */
static int split(const char *plan, struct plan_part out[PLAN_PLACES]) {
    int n = 0;
    for (const char *p = plan;; p++) {
        const char *end = p + strcspn(p, ",");
        const char *a = p, *b = end;
        while (a < b && isspace((unsigned char)*a)) a++;
        while (b > a && isspace((unsigned char)b[-1])) b--;
        if (a == b || n == PLAN_PLACES) return 0;
        out[n++] = (struct plan_part){a, (size_t)(b - a)};
        if (!*end) return n;
        p = end;
    }
}

void plans_free(struct plans *p) {
    for (int i = 0; i < PLAN_PLACES; i++)
        for (int k = 0; k < p->place[i].n; k++) free(p->place[i].choice[k].text);
    *p = (struct plans){0};
}

static struct plan_choice *choice_of(struct plans *p, int place, const struct plan_part *part) {
    int n = p->place[place].n;
    struct plan_choice *c = p->place[place].choice;
    for (int k = 0; k < n; k++)
        if (strlen(c[k].text) == part->n && memcmp(c[k].text, part->p, part->n) == 0) return &c[k];
    if (n == PLAN_CHOICES) return NULL;
    c[n].text = xstrndup(part->p, part->n);
    p->place[place].n = n + 1;
    return &c[n];
}

void plans_note(struct plans *p, const char *plan, double pay_off, bool here) {
    struct plan_part part[PLAN_PLACES];
    const int n = plan ? split(plan, part) : 0;
    if (n == 0 || (p->n_places > 0 && n != p->n_places)) return;
    p->n_places = n;
    p->seen++;
    for (int i = 0; i < n; i++) {
        struct plan_choice *c = choice_of(p, i, &part[i]);
        if (c) bandit_pay(here ? &c->arm : &c->others, pay_off);
    }
}

bool plans_draw(const struct plans *p, struct rng *r, struct str *out) {
    if (p->seen < 2) return false;
    for (int i = 0; i < p->n_places; i++) {
        const char *best = NULL;
        double most = -1;
        for (int k = 0; k < p->place[i].n; k++) {
            const struct plan_choice *c = &p->place[i].choice[k];
            const double draw = bandit_draw_with(&c->arm, &c->others, r);
            if (draw <= most) continue;
            most = draw;
            best = c->text;
        }
        str_addf(out, "%s%s", i ? ", " : "", best);
    }
    return true;
}

bool plans_change(const struct plans *p, const char *plan, struct rng *r, struct str *out) {
    struct plan_part part[PLAN_PLACES];
    int others = 0;
    if (split(plan, part) != p->n_places || p->n_places == 0) return false;
    for (int i = 0; i < p->n_places; i++) others += p->place[i].n - 1;
    if (others <= 0) return false;
    int64_t pick = (int64_t)rng_below(r, (uint64_t)others);
    for (int i = 0; i < p->n_places; i++) {
        str_adds(out, i ? ", " : "");
        bool changed = false;
        for (int k = 0; k < p->place[i].n; k++) {
            const char *text = p->place[i].choice[k].text;
            if (strlen(text) == part[i].n && memcmp(text, part[i].p, part[i].n) == 0) continue;
            if (pick-- != 0) continue;
            str_adds(out, text);
            changed = true;
        }
        if (!changed) str_add(out, part[i].p, part[i].n);
    }
    return true;
}
