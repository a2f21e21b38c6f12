/* Names of outcomes and the JSON form of a verdict. */
#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "io/json.h"
#include "verify/verify.h"

static const struct {
    const char *name, *text;
    enum stage stage;
    char class;
} outcomes[] = {
#define X(name, text, stage, class) {#name, text, stage, class},
    OUTCOME_LIST(X)
#undef X
};
static const char *const method_names[] = {CHOICE_NAMES(TIMING_LIST)};

const char *timing_method_name(enum timing_method m) { return method_names[m]; }

bool timing_method_from_name(const char *name, enum timing_method *out) {
    for (size_t m = 0; m < ARRAY_LEN(method_names); m++)
        if (strcmp(method_names[m], name) == 0) {
            *out = (enum timing_method)m;
            return true;
        }
    return false;
}

static const char *const stage_names[] = {"none", "extract", "lint", "compile", "run", "correct", "timed"};

static char lower_name[ARRAY_LEN(outcomes)][24];
static pthread_once_t lower_once = PTHREAD_ONCE_INIT;

static void lower_all(void) {
    for (size_t o = 0; o < ARRAY_LEN(outcomes); o++)
        for (size_t i = 0; outcomes[o].name[i] && i + 1 < sizeof lower_name[o]; i++)
            lower_name[o][i] = (char)tolower((unsigned char)outcomes[o].name[i]);
}

const char *outcome_name(enum outcome o) {
    pthread_once(&lower_once, lower_all);
    return lower_name[o];
}

const char *outcome_text(enum outcome o) { return outcomes[o].text; }
char outcome_class(enum outcome o) { return outcomes[o].class; }
enum stage outcome_stage(enum outcome o) { return outcomes[o].stage; }

static void put_stats(struct str *out, const char *key, const struct run_stats *s) {
    if (s->calls == 0) return;
    js_begin(out, key, '{');
    js_put_f64(out, "mean", s->mean_ms);
    js_put_f64(out, "std", s->std_ms);
    js_put_f64(out, "min", s->min_ms);
    js_put_f64(out, "max", s->max_ms);
    js_put_i64(out, "num_trials", s->calls);
    js_end(out, '}');
}

static enum status read_stats(const json_t *o, const char *where, const char *key, struct run_stats *out,
                              struct err *e) {
    const json_t *s = json_object_get(o, key);
    int64_t calls;
    if (!s) return ST_OK;
    TRY(js_get_f64(s, where, "mean", &out->mean_ms, e));
    TRY(js_get_f64(s, where, "std", &out->std_ms, e));
    TRY(js_get_f64(s, where, "min", &out->min_ms, e));
    TRY(js_get_f64(s, where, "max", &out->max_ms, e));
    TRY(js_get_i64(s, where, "num_trials", &calls, e));
    if (calls < 0 || calls > INT_MAX) return FAIL(e, ST_PARSE, "%s: %s: num_trials: expected a count", where, key);
    out->calls = (int)calls;
    return ST_OK;
}

void verdict_of_trouble(struct verdict *v, enum status st, const struct err *e) {
    v->outcome = st == ST_INVALID || st == ST_PARSE ? OUTCOME_PROBLEM_ERROR : OUTCOME_INFRASTRUCTURE;
    VERDICT_SAY(v, "%s", e->msg);
}

void verdict_of_nothing(struct verdict *v) {
    *v = (struct verdict){.outcome = OUTCOME_NO_KERNEL, .max_error = (double)NAN};
    VERDICT_SAY(v, "%s", outcome_text(OUTCOME_NO_KERNEL));
}

void verdict_clean(struct verdict *v) {
    for (unsigned char *p = (unsigned char *)v->message; *p; p++) {
        const bool wide = p[0] == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0; /* U+0080 to U+009F */
        if ((*p < 32 && *p != '\n' && *p != '\t') || *p == 127 || wide) *p = '?';
        if (wide) *++p = '?';
    }
}

void verdict_flag_problem(struct verdict *v, const struct problem *p) {
    CLEANUP_STR struct str flags = STR_INIT;
    problem_flags(p, &flags);
    snprintf(v->problem_flags, sizeof v->problem_flags, "%s", str_c(&flags));
}

void verdict_to_json(const struct verdict *v, struct str *out) {
    bool timed = v->speedup > 0;
    char class[2] = {outcome_class(v->outcome), 0};
    js_begin(out, NULL, '{');
    js_put_str(out, "outcome", outcome_name(v->outcome));
    js_put_str(out, "class", class);
    js_put_str(out, "passed_stage",
               v->outcome == OUTCOME_CORRECT && !timed ? "correct" : stage_names[outcome_stage(v->outcome)]);
    js_put_bool(out, "correct", v->outcome == OUTCOME_CORRECT);
    js_put_i64(out, "tests_passed", v->tests_passed);
    js_put_i64(out, "tests_total", v->tests_total);
    js_put_f64(out, "max_error", v->max_error); /* NaN, not compared: null */
    js_put_f64(out, "speedup", timed ? v->speedup : (double)NAN);
    js_put_f64(out, "speedup_low", timed ? v->speedup_low : (double)NAN);
    js_put_f64(out, "speedup_high", timed ? v->speedup_high : (double)NAN);
    js_put_f64(out, "eager_ms", timed ? v->eager_ms : (double)NAN);
    js_put_f64(out, "kernel_ms", timed ? v->kernel_ms : (double)NAN);
    js_put_f64(out, "prepare_ms", v->prepare_ms);
    js_put_f64(out, "compile_s", v->compile_s);
    js_put_f64(out, "run_s", v->run_s);
    js_put_f64(out, "time_s", v->time_s);
    if (v->own_share > 0) js_put_f64(out, "own_share", v->own_share);
    if (v->problem_flags[0]) js_put_str(out, "problem_flags", v->problem_flags);
    if (v->lint[0]) js_put_str(out, "lint", v->lint);
    put_stats(out, "kernel_stats", &v->kernel);
    put_stats(out, "eager_stats", &v->eager);
    if (v->remeasured) js_put_bool(out, "remeasured", true);
    js_put_bool(out, "cached", v->cached);
    js_put_str(out, "message", v->message);
    js_end(out, '}');
}

static enum status read_outcome(const json_t *o, const char *where, enum outcome *out, struct err *e) {
    const char *name;
    TRY(js_get_str(o, where, "outcome", &name, e));
    for (size_t i = 0; i < ARRAY_LEN(outcomes); i++) {
        *out = (enum outcome)i;
        if (strcmp(outcome_name(*out), name) == 0) return ST_OK;
    }
    return FAIL(e, ST_PARSE, "%s: outcome: expected one of docs/formats.md, got \"%.60s\"", where, name);
}

static enum status read_count(const json_t *o, const char *where, const char *key, int *out, struct err *e) {
    int64_t n;
    TRY(js_get_i64(o, where, key, &n, e));
    if (n < 0 || n > INT_MAX) return FAIL(e, ST_PARSE, "%s: %s: expected a count, got %lld", where, key, (long long)n);
    *out = (int)n;
    return ST_OK;
}

enum status verdict_from_json(const json_t *o, const char *where, struct verdict *out, struct err *e) {
    *out = (struct verdict){.max_error = (double)NAN};
    const char *message;
    TRY(read_outcome(o, where, &out->outcome, e));
    TRY(read_count(o, where, "tests_passed", &out->tests_passed, e));
    TRY(read_count(o, where, "tests_total", &out->tests_total, e));
    TRY(js_opt_f64(o, where, "max_error", &out->max_error, e));
    TRY(js_opt_f64(o, where, "speedup", &out->speedup, e));
    TRY(js_opt_f64(o, where, "speedup_low", &out->speedup_low, e));
    TRY(js_opt_f64(o, where, "speedup_high", &out->speedup_high, e));
    TRY(js_opt_f64(o, where, "eager_ms", &out->eager_ms, e));
    TRY(js_opt_f64(o, where, "kernel_ms", &out->kernel_ms, e));
    TRY(js_get_f64(o, where, "prepare_ms", &out->prepare_ms, e));
    TRY(js_get_f64(o, where, "compile_s", &out->compile_s, e));
    TRY(js_get_f64(o, where, "run_s", &out->run_s, e));
    TRY(js_get_f64(o, where, "time_s", &out->time_s, e));
    TRY(js_opt_f64(o, where, "own_share", &out->own_share, e));
    const char *lint = "", *flags = "";
    TRY(js_opt_str(o, where, "problem_flags", &flags, e));
    snprintf(out->problem_flags, sizeof out->problem_flags, "%s", flags);
    TRY(js_opt_str(o, where, "lint", &lint, e));
    snprintf(out->lint, sizeof out->lint, "%s", lint);
    TRY(read_stats(o, where, "kernel_stats", &out->kernel, e));
    TRY(read_stats(o, where, "eager_stats", &out->eager, e));
    out->remeasured = json_is_true(json_object_get(o, "remeasured"));
    TRY(js_get_bool(o, where, "cached", &out->cached, e));
    TRY(js_get_str(o, where, "message", &message, e));
    /* U+FFFD takes more room than the byte it stands for: cut between characters, so that the next way back is equal.
     */
    size_t len = strlen(message);
    if (len >= sizeof out->message) len = js_utf8_prefix(message, sizeof out->message - 1);
    memcpy(out->message, message, len);
    out->message[len] = 0;
    return ST_OK;
}
