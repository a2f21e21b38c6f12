/* Under which rules a verdict was given, as text. */
#include <stdio.h>

#include "base/hash.h"
#include "verify/verify.h"

static const char *const scoring_names[] = {CHOICE_NAMES(SCORING_LIST)};
static const char *const staging_names[] = {CHOICE_NAMES(STAGING_LIST)};

#define PUT_BACKEND(v) str_adds(out, backend_name(v))
#define PUT_SCORING(v) str_adds(out, scoring_names[v])
#define PUT_STAGING(v) str_adds(out, staging_names[v])
#define PUT_TIMING(v) str_adds(out, timing_method_name(v))
#define PUT_TEXT(v) str_adds(out, (v) ? (v) : "")
#define PUT_BOOL(v) str_adds(out, (v) ? "true" : "false")
#define PUT_INT(v) str_addf(out, "%d", (v))
#define PUT_I64(v) str_addf(out, "%lld", (long long)(v))
#define PUT_U64(v) str_addf(out, "%llu", (unsigned long long)(v))
#define PUT_F64(v) str_addf(out, "%.17g", (v))

void verify_identity(const struct verify_options *o, struct str *out) {
#define X(type, field, decides)                              \
    if (decides) {                                           \
        str_addf(out, "%s%s=", out->len ? " " : "", #field); \
        PUT_##type(o->field);                                \
    }
    VERIFY_OPTION_LIST(X)
#undef X
}

struct verify_identity verify_identity_hash(const struct verify_options *o) {
    CLEANUP_STR struct str now = STR_INIT, text = STR_INIT;
    verify_identity(o, &now);
    str_addf(&text, "%d %d %a %a %lld %d %s %d %s %s %d", o->threads, o->trials, o->compile_timeout_s, o->run_timeout_s,
             (long long)o->memory_bytes, o->measure, backend_name(o->backend), (int)o->scoring,
             o->precision ? o->precision : "fp32", o->device ? o->device : "", o->timed_calls);
    str_addf(&text, " %s %d %a %a %a %d %d", timing_method_name(o->timing_method), o->warm_calls, o->trim, o->interval,
             o->timing_budget_s, (int)o->staged, o->single_input);
    return (struct verify_identity){.now = hash_str(now.p), .before = hash_str(text.p)};
}

void verify_identity_of_files_01(const struct verify_options *o, struct str *out) {
    str_addf(out,
             "%s %s %s %s trials=%d timed=%d inputs=%s library=%d measure=%d timing=%s warmup=%d trim=%g interval=%g "
             "staged=%d single=%d",
             backend_name(o->backend), o->precision ? o->precision : "fp32", scoring_names[o->scoring],
             o->device ? o->device : "default", o->trials, o->timed_calls, o->compat_cpu_inputs ? "cpu" : "device",
             o->allow_library, o->measure, timing_method_name(o->timing_method), o->warm_calls, o->trim, o->interval,
             (int)o->staged, o->single_input);
    const struct {
        const char *name;
        double value;
    } given[] = {{"timeout", o->run_timeout_s}, {"compile", o->compile_timeout_s},   {"budget", o->timing_budget_s},
                 {"strict", o->lint_strict},    {"memory", (double)o->memory_bytes}, {"threads", o->threads}};
    for (size_t i = 0; i < ARRAY_LEN(given); i++)
        if (given[i].value != 0) str_addf(out, " %s=%g", given[i].name, given[i].value);
}
