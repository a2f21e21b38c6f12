/* grad: compares gradients with central differences of the forward in double precision, from its definition. In small
 * cases every element is compared. In larger ones the derivative along random directions is, which takes two
 * evaluations of the forward. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "opcheck/cases.h"

/* The errors of the difference itself, about STEP^2 and 1e-16 / STEP of the values, are far below the bounds. */
#define STEP 1e-4
enum { DIRECTIONS = 3 };

/* The derivative of the loss when operand wrt moves along direction, which is laid out like its buffer. */
static double derivative(const struct op_case *c, double *const v[], int wrt, const double *direction) {
    double loss[2];
    double *x = v[wrt], *before = xaligned((size_t)c->a[wrt].n * sizeof *before);
    memcpy(before, x, (size_t)c->a[wrt].n * sizeof *x);
    for (int sign = 0; sign < 2; sign++) {
        for (int64_t j = 0; j < c->a[wrt].n; j++) x[j] = before[j] + (sign ? STEP : -STEP) * direction[j];
        loss[sign] = c->op->f->loss(c, v);
    }
    memcpy(x, before, (size_t)c->a[wrt].n * sizeof *x);
    free(before);
    return (loss[1] - loss[0]) / (2 * STEP);
}

/* Element (r,j) of the gradient, without what it was added to. */
static double element(const struct op_case *c, float *const got[], struct op_pair p, int64_t r, int64_t j) {
    const struct operand *a = &c->a[p.grad];
    const double old = a->role == INOUT && !p.replaces ? (double)a->init[at(c, p.grad, r, j)] : 0;
    return (double)got[p.grad][at(c, p.grad, r, j)] - old;
}

/* Largest element and largest norm among the case's gradients: what errors are relative to. One operand's gradient can
 * be next to nothing (one key: no query changes its softmax) where the terms it is the difference of are not. */
struct scales {
    double element, norm;
};
static bool is_last(const struct op_pair *p) { return p->wrt == p->grad && !p->replaces; }
static bool in_case(const struct op_case *c, const struct op_pair *p) {
    return c->a[p->wrt].name && c->a[p->grad].name;
}

static struct scales scales_of(const struct op_case *c, float *const got[]) {
    struct scales s = {0, 0};
    for (const struct op_pair *p = c->op->f->pair; !is_last(p); p++) {
        if (!in_case(c, p)) continue;
        double square = 0;
        for (int64_t r = 0; r < c->a[p->wrt].rows; r++)
            for (int64_t j = 0; j < c->a[p->wrt].cols; j++) {
                const double g = element(c, got, *p, r, j);
                s.element = fmax(s.element, fabs(g));
                square += g * g;
            }
        s.norm = fmax(s.norm, sqrt(square));
    }
    return s;
}

static void compare(struct op_findings *f, const struct op_case *c, double got, double want, double scale,
                    const char *where) {
    double error = got == want ? 0 : fabs(got - want) / scale;
    if (isnan(error)) error = INFINITY;
    f->values++;
    f->max_error = fmax(f->max_error, error);
    if (error > c->op->grad_error) finding(f, c, "%s: %.9g, finite difference: %.9g", where, got, want);
}

static void every_element(struct op_findings *f, const struct op_case *c, double *const v[], float *const got[],
                          struct op_pair p, struct scales scale) {
    const struct operand *a = &c->a[p.wrt];
    double *direction = xaligned((size_t)a->n * sizeof *direction);
    char where[80];
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t j = 0; j < a->cols; j++) {
            snprintf(where, sizeof where, "%s[%lld,%lld]", c->a[p.grad].name, (long long)r, (long long)j);
            direction[at(c, p.wrt, r, j)] = 1;
            compare(f, c, element(c, got, p, r, j), derivative(c, v, p.wrt, direction), scale.element, where);
            direction[at(c, p.wrt, r, j)] = 0;
        }
    free(direction);
}

static void along_directions(struct op_findings *f, const struct op_case *c, double *const v[], float *const got[],
                             struct op_pair p, struct scales scale) {
    const struct operand *a = &c->a[p.wrt];
    double *direction = xaligned((size_t)a->n * sizeof *direction);
    char where[80];
    snprintf(where, sizeof where, "%s along a direction", c->a[p.grad].name);
    for (int d = 0; d < DIRECTIONS; d++) {
        struct rng r = rng_make(c->seed, 300 + (uint64_t)d);
        double dot = 0;
        for (int64_t i = 0; i < a->rows; i++)
            for (int64_t j = 0; j < a->cols; j++) {
                const double x = rng_normal(&r);
                direction[at(c, p.wrt, i, j)] = x;
                dot += element(c, got, p, i, j) * x;
            }
        compare(f, c, dot, derivative(c, v, p.wrt, direction), scale.norm, where);
    }
    free(direction);
}

static enum status grad_case(const struct opcheck_env *env, struct op_findings *f, const struct op_case *c, bool small,
                             struct err *e) {
    struct side side;
    float *got[OPERANDS_MAX];
    double *v[OPERANDS_MAX];
    TRY(side_open(&side, c, env->target, e));
    c->op->f->call(c, &side);
    enum status st = side_fetch(&side, c, got, e);
    side_close(&side, c);
    TRY(st);
    doubles_of(c, v);
    const struct scales scale = scales_of(c, got);
    for (const struct op_pair *p = c->op->f->pair; !is_last(p); p++)
        if (in_case(c, p)) (small ? every_element : along_directions)(f, c, v, got, *p, scale);
    doubles_free(v);
    fetched_free(got);
    f->cases++;
    return ST_OK;
}

enum status grad_op(const struct opcheck_env *env, const struct checked_op *op, const struct opcheck_options *o,
                    struct opcheck_tally *t, struct err *e) {
    if (!op->f->loss) return ST_OK; /* It is no gradient. */
    struct op_findings f = {0};
    for (int large = 0; large < 2; large++)
        for (int i = 0; i < (large ? op->shapes->n : op->f->n_small); i++)
            for (int variant = 0; variant < op->variants; variant++) {
                if (large && o->quick && i % 3 != variant % 3) continue;
                struct op_case c;
                case_build(&c, op, large ? op->shapes->s[i] : op->f->small[i], variant, (i + variant) % VIEWS, 0);
                enum status st = ST_OK;
                /* The forward runs 2 * DIRECTIONS times, on one core. */
                if (case_work(&c) > fmin(work_limit(env, o), 2e7))
                    f.left_out++;
                else if (c.rows > 0 || !large)
                    st = grad_case(env, &f, &c, !large, e);
                case_free(&c);
                TRY(st);
            }
    findings_report(o, t, op, "grad", &f, op->grad_error, f.cases > 0 && f.max_error <= op->grad_error);
    return ST_OK;
}
