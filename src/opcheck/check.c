/* check: compares every op with the reference backend, bit by bit, and with the oracle, within the bound of the table.
 * There are guards around every operand. All shapes, variants, views and special values of the table are tried. */
#include <math.h>
#include <string.h>

#include "opcheck/cases.h"

static bool same_bits(float a, float b) { return memcmp(&a, &b, sizeof a) == 0; }

/* Inputs and guards must be as they were, and outputs written. */
static void check_places(struct op_findings *f, const struct op_case *c, float *const got[]) {
    uint32_t u;
    for (int i = 0; i < OPERANDS_MAX; i++) {
        const struct operand *a = &c->a[i];
        if (!got[i]) continue;
        /* The place of float k. It is counted, because dividing would take longer than all else here. */
        int64_t r = -1, j = 0;
        for (int64_t k = 0; k < a->n; k++) {
            if (a->ld > 0 && k >= a->off && (r < 0 || ++j == a->ld)) r++, j = 0;
            const bool inside = r >= 0 && r < a->rows && j < a->cols;
            memcpy(&u, &got[i][k], sizeof u);
            const bool bad = inside && a->role == OUT     ? u == POISON
                             : inside && a->role == INOUT ? false
                                                          : !same_bits(got[i][k], a->init[k]);
            if (!bad) continue;
            f->misplaced++;
            finding(f, c, "%s: float %lld (row %lld, column %lld of [%lld,%lld]) %s", a->name, (long long)k,
                    (long long)r, (long long)j, (long long)a->rows, (long long)a->cols,
                    !inside          ? "is a guard and was written"
                    : a->role == OUT ? "was not written"
                                     : "is input and changed");
        }
    }
}

/* A device adds the terms of a bf16 product in an order of its own: class T, within this of the oracle. */
#define DEVICE_BF16_ERROR 1e-4
static bool order_of_its_own(const struct opcheck_env *env, const struct checked_op *op) {
    return !env->host && op->flags & BF16 && strncmp(op->name, "linear", 6) == 0;
}
static double bound_of(const struct opcheck_env *env, const struct op_case *c) {
    if (order_of_its_own(env, c->op)) return DEVICE_BF16_ERROR;
    return c->op->f->error ? c->op->f->error(c) : c->op->error;
}

/* Measures how far values are from what the oracle expects, relative to each value, or to the root mean square of
 * all. */
static void check_expected(struct op_findings *f, const struct op_case *c, double bound, float *const got[],
                           double *const want[]) {
    for (int i = 0; i < OPERANDS_MAX; i++) {
        const struct operand *a = &c->a[i];
        if (!got[i] || a->role == IN) continue;
        double square = 0;
        for (int64_t r = 0; r < a->rows; r++)
            for (int64_t j = 0; j < a->cols; j++) {
                const double w = want[i][at(c, i, r, j)];
                if (isfinite(w)) square += w * w; /* What a cache holds beside the keys is not finite. */
            }
        const double rms = sqrt(square / (double)i64_max(a->rows * a->cols, 1));
        for (int64_t r = 0; r < a->rows; r++)
            for (int64_t j = 0; j < a->cols; j++) {
                const double w = want[i][at(c, i, r, j)], g = (double)got[i][at(c, i, r, j)];
                if (same_float((float)w, (float)g)) continue;
                double error = INFINITY;
                if (bound > 0) error = fabs(g - w) / fmax(fabs(w), rms);
                if (isnan(error)) error = INFINITY;
                f->differ += bound == 0;
                if (error > 0 && !(error * f->bound <= f->max_error * bound)) f->max_error = error, f->bound = bound;
                if (error > bound)
                    finding(f, c, "%s[%lld,%lld] = %a, the oracle expects %a", a->name, (long long)r, (long long)j, g,
                            w);
            }
    }
}

static enum status check_case(const struct opcheck_env *env, struct op_findings *f, const struct op_case *c,
                              struct err *e) {
    struct side target, reference;
    float *got[OPERANDS_MAX] = {NULL}, *ref[OPERANDS_MAX] = {NULL};
    double *want[OPERANDS_MAX] = {NULL};
    /* The two orders of bf16 products differ in their rounding. */
    const double bound = bound_of(env, c);
    const bool comparable = !order_of_its_own(env, c->op) && (c->dt != DT_BF16 || (env->reference->bf16 && !c->tiles));
    TRY(side_open(&target, c, env->target, e));
    c->op->f->call(c, &target);
    enum status st = side_fetch(&target, c, got, e);
    side_close(&target, c);
    TRY(st);
    f->cases++;
    check_places(f, c, got);
    if (comparable && env->reference != env->target) {
        st = side_open(&reference, c, env->reference, e);
        if (st == ST_OK) {
            c->op->f->call(c, &reference);
            st = side_fetch(&reference, c, ref, e);
            side_close(&reference, c);
        }
        if (st == ST_OK) compare_bits(f, c, ref, got, env->host ? 0 : c->op->ulp, env->reference->name);
    }
    /* Approximations are not compared where values were chosen to break them. There the reference decides. */
    if (st == ST_OK && c->op->f->expect && (bound == 0 || !c->special)) {
        doubles_of(c, want);
        c->op->f->expect(c, want);
        check_expected(f, c, bound, got, want);
        doubles_free(want);
    }
    fetched_free(got);
    fetched_free(ref);
    return st;
}

/* A device's large tiles need few such cases, and the references would take minutes over all of them. */
#define LARGE_WORK 6e6

enum status check_op(const struct opcheck_env *env, const struct checked_op *op, const struct opcheck_options *o,
                     struct opcheck_tally *t, struct err *e) {
    struct op_findings f = {.bound = order_of_its_own(env, op) ? DEVICE_BF16_ERROR : op->error};
    for (int i = 0; i < op->shapes->n; i++)
        for (int variant = 0; variant < op->variants; variant++) {
            double work = 0; /* The work of this shape, once it is known. */
            for (int view = 0; view < VIEWS; view++)
                for (int special = 0; special < SPECIALS; special++) {
                    /* Special values are tried in one view of a shape. Quick: each shape and variant is tried once, and
                     * the rest in turn. Large: it is tried once, without special values. */
                    const bool plain = view == (i + variant) % VIEWS && special == 0;
                    if (special && view != (i + variant + special) % VIEWS) continue;
                    if (o->quick && (view != (i + variant) % VIEWS || special != (i + variant) / VIEWS % SPECIALS))
                        continue;
                    if (work > LARGE_WORK && !plain) continue;
                    struct op_case c;
                    case_build(&c, op, op->shapes->s[i], variant, view, special);
                    c.tiles = strcmp(env->target->name, "amx") == 0;
                    enum status st = ST_OK;
                    work = case_work(&c);
                    if (work > work_limit(env, o))
                        f.left_out++;
                    else if (plain || work <= LARGE_WORK)
                        st = check_case(env, &f, &c, e);
                    case_free(&c);
                    TRY(st);
                }
        }
    const bool ok = f.cases > 0 && f.misplaced == 0 && f.max_error <= f.bound && f.max_ulp <= (env->host ? 0 : op->ulp);
    findings_report(o, t, op, "check", &f, op->f->expect ? f.bound : -1, ok);
    return ST_OK;
}
