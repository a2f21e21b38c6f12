/* Opens what is compared, and runs the modes over the table. */
#include "opcheck/opcheck.h"

#include <string.h>

#include "base/str.h"
#include "opcheck/cases.h"

double work_limit(const struct opcheck_env *env, const struct opcheck_options *o) {
    /* Each thread of an emulated device is a coroutine. */
    if (strstr(env->target->name, "emulated")) return o->quick ? 3e5 : 3e6;
    if (o->quick) return 1e6;
    /* The reference computes on one core. Behind a device it is the whole CPU. */
    return env->host ? 6e6 : 3e9;
}

enum status opcheck_known(const char *op, struct err *e) {
    CLEANUP_STR struct str names = STR_INIT;
    for (int i = 0; i < opcheck_n_ops; i++) {
        if (strcmp(op, opcheck_ops[i].name) == 0) return ST_OK;
        str_addf(&names, "%s%s", i ? ", " : "", opcheck_ops[i].name);
    }
    return FAIL(e, ST_USAGE, "op: expected one of %s; got \"%s\"", str_c(&names), op);
}

enum status opcheck_mode(const struct opcheck_env *env, enum opcheck_mode mode, const struct opcheck_options *o,
                         struct opcheck_tally *t, struct err *e) {
    if (o->op) TRY(opcheck_known(o->op, e));
    if (mode == OPCHECK_PERF) return perf_ops(env, o, t, e);
    const char *name = mode == OPCHECK_CHECK ? "check" : mode == OPCHECK_GRAD ? "grad" : "invariance";
    for (int i = 0; i < opcheck_n_ops; i++) {
        const struct checked_op *op = &opcheck_ops[i];
        if (o->op && strcmp(o->op, op->name) != 0) continue;
        if (mode == OPCHECK_GRAD && !op->f->loss) continue;
        if ((op->flags & BF16) && !env->target->bf16) {
            report_skip(o, t, op, name, "this backend takes no bf16 weights");
            continue;
        }
        if (mode == OPCHECK_CHECK) TRY(check_op(env, op, o, t, e));
        if (mode == OPCHECK_GRAD) TRY(grad_op(env, op, o, t, e));
        if (mode == OPCHECK_INVARIANCE) TRY(invariance_op(env, op, o, t, e));
    }
    return ST_OK;
}

/* Opens the scalar kernels, whatever this process uses otherwise. */
static enum status reference_open(struct pool *pool, struct backend **out, struct err *e) {
    const char *mine = cpu_isa_name();
    ASSERT(cpu_isa_force("reference"));
    const enum status st = cpu_backend_open(pool, out, e);
    ASSERT(cpu_isa_force(mine));
    return st;
}

enum status opcheck_run(const struct opcheck_options *o, struct opcheck_tally *t, struct err *e) {
    if (o->op) TRY(opcheck_known(o->op, e));
    struct opcheck_env env = {.host = strcmp(o->device, "cpu") == 0};
    struct pool *pool = pool_create(o->threads), *two = pool_create(2);
    enum status st = backend_open(o->device, pool, &env.target, e);
    if (st == ST_OK)
        st = env.host ? reference_open(NULL, &env.reference, e) : cpu_backend_open(pool, &env.reference, e);
    /* A device has one number of threads: its own. */
    for (int i = 0; i < 2 && env.host && st == ST_OK; i++, env.n_others += st == ST_OK)
        st = cpu_backend_open(i ? two : NULL, &env.others[i], e);
    if (st == ST_OK && !o->json)
        fprintf(o->out, "%s, %d threads; compared with %s%s\n", env.target->name, pool_threads(pool),
                env.host ? "" : "cpu ", env.reference->name);
    for (unsigned mode = OPCHECK_CHECK; mode <= OPCHECK_PERF && st == ST_OK; mode *= 2)
        if (o->modes & mode) st = opcheck_mode(&env, (enum opcheck_mode)mode, o, t, e);
    for (int i = 0; i < env.n_others; i++) env.others[i]->close(env.others[i]);
    if (env.reference) env.reference->close(env.reference);
    if (env.target) env.target->close(env.target);
    pool_destroy(pool);
    pool_destroy(two);
    return st;
}
