#include "optimize/candidate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {CHOICE_NAMES(ARM_LIST)};
static const char *const texts[] = {
#define X(value, name, text) text,
    ARM_LIST(X)
#undef X
};

const char *arm_name(enum arm a) { return names[a]; }
const char *arm_text(enum arm a) { return texts[a]; }

void candidate_free(struct search_candidate *c) {
    free(c->kernel);
    free(c->plan);
    free(c->verdict);
    *c = (struct search_candidate){0};
}

void candidate_add_verdict(struct search_candidate *c, const struct verdict *v) {
    c->verdict = xrealloc(c->verdict, (size_t)(c->n_verdicts + 1) * sizeof *c->verdict);
    c->verdict[c->n_verdicts++] = *v;
}

void candidate_judged(struct search_candidate *c, const double *weights, int n_shapes) {
    c->correct = c->n_verdicts == n_shapes && c->verdict[n_shapes - 1].outcome == OUTCOME_CORRECT;
    c->judged = 1;
    if (c->correct) candidate_measure(c, c->verdict, weights, n_shapes);
}

void candidate_judged_again(struct search_candidate *c, const struct verdict *v, const double *weights, int n_shapes) {
    c->judged++;
    for (int s = 0; s < n_shapes; s++) {
        if (v[s].outcome == OUTCOME_CORRECT || outcome_class(v[s].outcome) == 'I') continue;
        c->correct = false;
        c->verdict[0] = v[s];
        c->n_verdicts = 1;
        return;
    }
    candidate_measure(c, v, weights, n_shapes);
}

const struct verdict *candidate_verdict(const struct search_candidate *c) {
    if (c->n_verdicts == 0) return NULL;
    const struct verdict *last = &c->verdict[c->n_verdicts - 1];
    return last->outcome != OUTCOME_CORRECT ? last : &c->verdict[0];
}

void candidate_measure(struct search_candidate *c, const struct verdict *v, const double *weights, int n_shapes) {
    double sum = 0, half = 0;
    for (int s = 0; s < n_shapes; s++) {
        if (v[s].outcome != OUTCOME_CORRECT || !(v[s].speedup > 0)) return;
        const bool known = v[s].speedup_low > 0 && v[s].speedup_high >= v[s].speedup_low;
        const double its_half = known ? log(v[s].speedup_high / v[s].speedup_low) / 2 : 0;
        sum += weights[s] * log(v[s].speedup);
        half += weights[s] * weights[s] * its_half * its_half;
    }
    estimate_add(&c->estimate, exp(sum), exp(sum - sqrt(half)), exp(sum + sqrt(half)));
}

/* ---- on disk ------------------------------------------------------------------------------------------------------*/

void candidate_put(const struct search_candidate *c, const char *task, struct str *out) {
    const struct bounds b = estimate_bounds(&c->estimate);
    js_begin(out, NULL, '{');
    js_put_str(out, "task", task);
    js_put_i64(out, "id", c->id);
    js_put_i64(out, "wave", c->wave);
    js_put_i64(out, "group", c->group);
    js_put_i64(out, "sample", c->sample);
    js_put_str(out, "arm", arm_name(c->arm));
    js_put_i64(out, "island", c->island);
    js_begin(out, "parents", '[');
    for (int i = 0; i < c->n_parents; i++) js_put_i64(out, NULL, c->parent[i]);
    js_end(out, ']');
    js_put_str(out, "plan", c->plan);
    js_put_str(out, "normal", *c->normal.hex ? c->normal.hex : NULL);
    if (c->same_as >= 0)
        js_put_i64(out, "same_as", c->same_as);
    else
        js_put_null(out, "same_as");
    js_put_bool(out, "format_ok", c->format_ok);
    js_put_i64(out, "tokens", c->tokens);
    js_put_bool(out, "correct", c->correct);
    js_put_f64(out, "speedup", b.ratio);
    js_put_f64(out, "speedup_low", b.low);
    js_put_f64(out, "speedup_high", b.high);
    js_put_f64(out, "reward", c->reward);
    js_put_i64(out, "spent", c->spent);
    js_put_f64(out, "at_s", c->at_s);
    js_begin(out, "verdicts", '[');
    for (int i = 0; i < c->n_verdicts; i++) verdict_to_json(&c->verdict[i], out);
    js_end(out, ']');
    js_put_str(out, "kernel", c->kernel);
    js_end(out, '}');
    str_addc(out, '\n');
}

static enum status get_int(const json_t *row, const char *where, const char *key, int *out, struct err *e) {
    int64_t v;
    TRY(js_get_i64(row, where, key, &v, e));
    if (v < 0 || v > INT32_MAX) return FAIL(e, ST_PARSE, "%s: %s: out of range", where, key);
    *out = (int)v;
    return ST_OK;
}

static enum status get_places(const json_t *row, const char *where, struct search_candidate *c, struct err *e) {
    json_t *parents;
    const char *arm;
    TRY(get_int(row, where, "id", &c->id, e));
    TRY(get_int(row, where, "wave", &c->wave, e));
    TRY(get_int(row, where, "group", &c->group, e));
    TRY(get_int(row, where, "sample", &c->sample, e));
    TRY(get_int(row, where, "island", &c->island, e));
    TRY(js_get_str(row, where, "arm", &arm, e));
    TRY(js_get_array(row, where, "parents", &parents, e));
    int a = 0;
    while (a < N_ARMS && strcmp(names[a], arm) != 0) a++;
    if (a == N_ARMS) return FAIL(e, ST_PARSE, "%s: arm: there is no \"%s\"", where, arm);
    c->arm = (enum arm)a;
    if (json_array_size(parents) > PARENTS_MAX) return FAIL(e, ST_PARSE, "%s: parents: too many", where);
    for (size_t i = 0; i < json_array_size(parents); i++) {
        const json_int_t p = json_integer_value(json_array_get(parents, i));
        if (p < 0 || p >= c->id) return FAIL(e, ST_PARSE, "%s: parents: expected earlier candidates", where);
        c->parent[c->n_parents++] = (int)p;
    }
    int64_t same = -1;
    TRY(js_opt_i64(row, where, "same_as", &same, e));
    if (same < -1 || same >= c->id) return FAIL(e, ST_PARSE, "%s: same_as: expected an earlier candidate", where);
    c->same_as = (int)same;
    return ST_OK;
}

static enum status get_verdicts(const json_t *row, const char *where, struct search_candidate *c, struct err *e) {
    json_t *all;
    TRY(js_get_array(row, where, "verdicts", &all, e));
    if (json_array_size(all) > SHAPES_MAX) return FAIL(e, ST_PARSE, "%s: verdicts: too many", where);
    for (size_t i = 0; i < json_array_size(all); i++) {
        struct verdict v;
        TRY(verdict_from_json(json_array_get(all, i), where, &v, e));
        candidate_add_verdict(c, &v);
    }
    return ST_OK;
}

enum status candidate_get(const json_t *row, const char *where, const double *weights, int n_shapes,
                          struct search_candidate *c, struct err *e) {
    const char *kernel = NULL, *plan = NULL, *normal = NULL;
    *c = (struct search_candidate){.same_as = -1};
    TRY(get_places(row, where, c, e));
    TRY(get_verdicts(row, where, c, e));
    TRY(js_get_bool(row, where, "format_ok", &c->format_ok, e));
    TRY(js_get_i64(row, where, "tokens", &c->tokens, e));
    TRY(js_get_i64(row, where, "spent", &c->spent, e));
    TRY(js_get_f64(row, where, "at_s", &c->at_s, e));
    TRY(js_opt_f64(row, where, "reward", &c->reward, e));
    TRY(js_opt_str(row, where, "kernel", &kernel, e));
    TRY(js_opt_str(row, where, "plan", &plan, e));
    TRY(js_opt_str(row, where, "normal", &normal, e));
    if (normal && strlen(normal) + 1 == sizeof c->normal.hex) memcpy(c->normal.hex, normal, sizeof c->normal.hex);
    c->kernel = kernel ? xstrdup(kernel) : NULL;
    c->plan = plan ? xstrdup(plan) : NULL;
    candidate_judged(c, weights, n_shapes);
    return ST_OK;
}
