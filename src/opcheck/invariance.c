/* invariance: an op must give the same bits for a row alone, in batches of several sizes, and on several numbers of
 * threads. A batch of N rows is cut into batches of each size, so that a row stands at every place of one. */
#include <stdlib.h>
#include <string.h>

#include "opcheck/cases.h"

static const int64_t batches[] = {1, 2, 3, 7, 8, 16, 17, 64, 129, 1024};

/* Runs the case cut into batches of `batch` rows (sequences). */
static enum status run_cut(struct side *s, const struct op_case *c, int64_t batch, float *out[OPERANDS_MAX],
                           struct err *e) {
    side_reset(s, c);
    const int64_t units = case_units(c);
    for (int64_t from = 0; from < units; from += batch) {
        const struct op_case part = case_cut(c, from, i64_min(batch, units - from));
        c->op->f->call(&part, s);
    }
    return side_fetch(s, c, out, e);
}

/* Compares everything that the case gives on one backend with `want`, or puts it there when `want` is empty. */
static enum status run_backend(struct op_findings *f, const struct op_case *c, struct backend *be,
                               float *want[OPERANDS_MAX], bool *have, struct err *e) {
    struct side s;
    TRY(side_open(&s, c, be, e));
    enum status st = ST_OK;
    const bool rows = (c->op->flags & ROWS) != 0;
    for (size_t i = 0; i < (rows ? ARRAY_LEN(batches) : 1) && st == ST_OK; i++) {
        const int64_t batch = rows ? batches[i] : i64_max(case_units(c), 1);
        /* This would be the same as before. */
        if (rows && batch > case_units(c) && i > 0 && batches[i - 1] >= case_units(c)) break;
        float *got[OPERANDS_MAX] = {NULL};
        if (rows) {
            st = run_cut(&s, c, batch, got, e);
        } else {
            side_reset(&s, c);
            c->op->f->call(c, &s);
            st = side_fetch(&s, c, got, e);
        }
        if (st != ST_OK) break;
        char what[96];
        snprintf(what, sizeof what, "%s, the first time", rows ? "alone" : "at once");
        f->cases++;
        if (*have) {
            compare_bits(f, c, want, got, 0, what);
            fetched_free(got);
        } else {
            memcpy(want, got, sizeof got);
            *have = true;
        }
    }
    side_close(&s, c);
    return st;
}

/* Attention: compares the rows of a packed training batch with the same rows, each alone, out of a cache. */
static enum status cached_as_in_training(const struct opcheck_env *env, struct op_findings *f,
                                         const struct op_case *cached, float *const want[OPERANDS_MAX], struct err *e) {
    const struct checked_op *op = opcheck_ops;
    while (strcmp(op->name, "attention") != 0) op++;
    struct op_case c;
    struct side s;
    float *got[OPERANDS_MAX] = {NULL};
    case_build(&c, op, cached->s, 1, cached->view, 0);
    for (int i = 0; i < OPERANDS_MAX; i++) /* They are the same numbers as there. */
        if (c.a[i].name && c.a[i].role == IN) memcpy(c.a[i].init, cached->a[i].init, (size_t)c.a[i].n * sizeof(float));
    enum status st = side_open(&s, &c, env->target, e);
    if (st == ST_OK) {
        op->f->call(&c, &s);
        st = side_fetch(&s, &c, got, e);
        side_close(&s, &c);
    }
    if (st == ST_OK) {
        f->cases++;
        compare_bits(f, &c, want, got, 0, "out of the cache, a row at a time");
    }
    fetched_free(got);
    case_free(&c);
    return st;
}

enum status invariance_op(const struct opcheck_env *env, const struct checked_op *op, const struct opcheck_options *o,
                          struct opcheck_tally *t, struct err *e) {
    struct op_findings f = {0};
    const bool attention = op->shapes == &shapes_attention;
    for (int variant = 0; variant < op->variants; variant++) {
        int64_t s[SHAPE];
        memcpy(s, op->f->batch, sizeof s);
        const bool few = o->quick || strstr(env->target->name, "emulated");
        if (attention)
            s[3] = few ? 2 : 5;
        else if (op->shapes != &shapes_length)
            s[0] = few ? 140 : 1040;
        struct op_case c;
        case_build(&c, op, s, variant, variant % VIEWS, 0);
        if (attention && (op->flags & ROWS)) attention_split_rows(&c);
        float *want[OPERANDS_MAX] = {NULL};
        bool have = false;
        enum status st = ST_OK;
        for (int i = 0; i < env->n_others && st == ST_OK; i++) st = run_backend(&f, &c, env->others[i], want, &have, e);
        /* A device has one number of threads. It must give the same twice. */
        for (int i = 0; i < (env->n_others ? 1 : 2) && st == ST_OK; i++)
            st = run_backend(&f, &c, env->target, want, &have, e);
        if (st == ST_OK && attention && (op->flags & ROWS)) st = cached_as_in_training(env, &f, &c, want, e);
        fetched_free(want);
        case_free(&c);
        TRY(st);
    }
    findings_report(o, t, op, "invariance", &f, -1, f.cases > 1 && f.differ == 0);
    return ST_OK;
}
