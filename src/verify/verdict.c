/* Names of outcomes and the JSON form of a verdict. */
#include <ctype.h>
#include <math.h>
#include <pthread.h>

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
    js_put_bool(out, "cached", v->cached);
    js_put_str(out, "message", v->message);
    js_end(out, '}');
}
