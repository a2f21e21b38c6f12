#include "opcheck/cases.h"
enum status perf_ops(const struct opcheck_env *env, const struct opcheck_options *o, struct opcheck_tally *t,
                     struct err *e) {
    (void)env;
    (void)o;
    (void)t;
    return FAIL(e, ST_UNSUPPORTED, "perf");
}
