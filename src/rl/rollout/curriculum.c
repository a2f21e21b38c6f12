#include "rl/rollout/curriculum.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

/* ---- groups -------------------------------------------------------------------------------------------------------*/

static int key_of(const struct train_options *o, const struct problem *p) {
    const int key = o->curriculum.by_difficulty ? p->difficulty : p->level;
    return key < 0 ? 0 : key >= CURRICULUM_GROUPS ? CURRICULUM_GROUPS - 1 : key;
}

void curriculum_init(struct curriculum *c, const struct train_options *o, const struct problem *const *problems,
                     int n) {
    *c = (struct curriculum){.n = n, .share = o->curriculum.start_share};
    c->pool = xcalloc((size_t)n + 1, sizeof *c->pool);
    int at = 0;
    for (int key = 0; key < CURRICULUM_GROUPS; key++) {
        const int first = at;
        for (int i = 0; i < n; i++)
            if (key_of(o, problems[i]) == key) c->pool[at++] = problems[i];
        if (at == first) continue;
        c->key[c->n_groups] = key;
        c->begin[c->n_groups++] = first;
    }
    c->begin[c->n_groups] = at;
}

void curriculum_free(struct curriculum *c) {
    free(c->pool);
    *c = (struct curriculum){0};
}

static bool has_frontier(const struct curriculum *c) { return c->learned + 1 < c->n_groups; }

/* n problems of pool[begin,end), shuffled; again from the start when there are fewer. */
static void draw(const struct curriculum *c, struct rng *r, int begin, int end, int n, const struct problem **out) {
    const int count = end - begin;
    const struct problem **order = xmalloc((size_t)count * sizeof *order);
    for (int i = 0; i < n; i++) {
        if (i % count == 0) {
            memcpy(order, c->pool + begin, (size_t)count * sizeof *order);
            rng_shuffle(r, order, (size_t)count, sizeof *order);
        }
        out[i] = order[i % count];
    }
    free(order);
}

void curriculum_pick(const struct curriculum *c, const struct train_options *o, int64_t step, int batch,
                     const struct problem **out) {
    struct rng r = rng_make((uint64_t)o->seed, UINT64_C(0x6375727200000000) + (uint64_t)step);
    int later = 0;
    if (has_frontier(c)) { /* the share's fraction of a problem comes by chance */
        const double want = c->share * batch;
        later = (int)want + (rng_next_f64(&r) < want - floor(want));
    }
    draw(c, &r, 0, c->begin[c->learned + 1], batch - later, out);
    if (later > 0) draw(c, &r, c->begin[c->learned + 1], c->begin[c->learned + 2], later, out + batch - later);
}

/* ---- progress -----------------------------------------------------------------------------------------------------*/

static void add_rate(struct curriculum_rates *l, int64_t window, double rate) {
    while (l->n >= window) memmove(l->rate, l->rate + 1, (size_t)--l->n * sizeof *l->rate);
    l->rate[l->n++] = rate;
}

static bool meets(const struct curriculum_rates *l, const struct train_options *o) {
    double sum = 0;
    for (int i = 0; i < l->n; i++) sum += l->rate[i];
    return l->n >= o->curriculum.window && sum / l->n >= o->curriculum.trigger;
}

void curriculum_update(struct curriculum *c, const struct train_options *o, const struct rollout *r) {
    int n[2] = {0}, correct[2] = {0};
    for (int i = 0; i < r->n; i++) {
        const int later = key_of(o, r->group[i].problem) > c->key[c->learned];
        for (int j = 0; j < r->group[i].n; j++) {
            if (!r->group[i].ep[j].present) continue;
            n[later]++;
            correct[later] += r->group[i].ep[j].verdict.outcome == OUTCOME_CORRECT;
        }
    }
    if (n[0]) add_rate(&c->known, o->curriculum.window, (double)correct[0] / n[0]);
    if (n[1]) add_rate(&c->frontier, o->curriculum.window, (double)correct[1] / n[1]);
    if (!has_frontier(c)) return;
    if (c->share >= o->curriculum.end_share - 1e-9 && meets(&c->frontier, o)) {
        c->learned++;
        c->share = o->curriculum.start_share;
        c->known.n = c->frontier.n = 0;
    } else if (meets(&c->known, o)) {
        c->share = fmin(o->curriculum.end_share, c->share + o->curriculum.increment);
    }
}

/* ---- checkpoints --------------------------------------------------------------------------------------------------*/

static void put_rates(struct str *out, const char *name, const struct curriculum_rates *l) {
    js_begin(out, name, '[');
    for (int i = 0; i < l->n; i++) js_put_f64(out, NULL, l->rate[i]);
    js_end(out, ']');
}

void curriculum_save(const struct curriculum *c, struct str *out) {
    js_begin(out, "curriculum", '{');
    js_put_i64(out, "learned", c->learned);
    js_put_f64(out, "share", c->share);
    put_rates(out, "known", &c->known);
    put_rates(out, "frontier", &c->frontier);
    js_end(out, '}');
}

static enum status get_rates(const json_t *o, const char *where, const char *name, struct curriculum_rates *l,
                             struct err *e) {
    json_t *list;
    TRY(js_get_array(o, where, name, &list, e));
    if (json_array_size(list) > CURRICULUM_WINDOW) return FAIL(e, ST_PARSE, "%s: %s: too many rates", where, name);
    l->n = (int)json_array_size(list);
    for (int i = 0; i < l->n; i++) l->rate[i] = json_number_value(json_array_get(list, (size_t)i));
    return ST_OK;
}

enum status curriculum_load(struct curriculum *c, const json_t *state, const char *where, struct err *e) {
    const json_t *o = json_object_get(state, "curriculum");
    int64_t learned;
    if (!o) return ST_OK;
    TRY(js_get_i64(o, where, "learned", &learned, e));
    TRY(js_get_f64(o, where, "share", &c->share, e));
    TRY(get_rates(o, where, "known", &c->known, e));
    TRY(get_rates(o, where, "frontier", &c->frontier, e));
    if (learned < 0 || learned >= c->n_groups)
        return FAIL(e, ST_PARSE, "%s: curriculum: learned is %lld, there are %d groups of problems", where,
                    (long long)learned, c->n_groups);
    c->learned = (int)learned;
    return ST_OK;
}

/* ---- schedule -----------------------------------------------------------------------------------------------------*/

/* Returns the share of learning_rate that lr_schedule leaves at this share of the run. */
static double rate_at(const struct train_options *o, double progress) {
    const double x = fmin(1, progress), low = o->min_lr_ratio, pi = 3.14159265358979323846;
    if (o->lr_schedule == LR_LINEAR) return low + (1 - low) * (1 - x);
    if (o->lr_schedule == LR_COSINE) return low + (1 - low) * 0.5 * (1 + cos(pi * x));
    return 1;
}

struct train_options schedule_at(const struct train_options *o, double progress) {
    struct train_options now = *o;
    const double from = o->schedule.speed_from, until = o->schedule.speed_until, pi = 3.14159265358979323846;
    now.update.adam.learning_rate *= rate_at(o, progress);
    if (progress < until) now.reward.speed *= fmax(0, (progress - from) / (until - from));
    if (progress >= o->schedule.partial_until && o->schedule.partial_until < 1) now.reward.partial_correct = false;
    if (!isnan(o->schedule.plan_weight_end))
        now.plan_weight = o->schedule.plan_weight_end +
                          (o->plan_weight - o->schedule.plan_weight_end) * 0.5 * (1 + cos(pi * fmin(1, progress)));
    return now;
}
