#include "reward/reward.h"

#include <math.h>

#include "io/json.h"

static double speed_part(const struct reward_weights *w, double ratio) {
    double s = 0;
    if (w->check_excessive && ratio > w->excessive) return 0;
    switch (w->shape) {
    case SPEED_RATIO: s = ratio; break;
    case SPEED_EXCESS: s = ratio > 1 ? ratio - 1 : 0; break;
    case SPEED_LOG: s = log2(1 + ratio); break;
    }
    return s < w->speed_cap ? s : w->speed_cap;
}

/* 1 up to low, then in a line to `end` at high, and on from there. */
static double falling(int64_t x, int64_t low, int64_t high, double end) {
    if (x <= low) return 1;
    if (x >= high) return end;
    return 1 + (end - 1) * (double)(x - low) / (double)(high - low);
}

static double overlong_part(const struct reward_weights *w, const struct reward_input *in) {
    const int64_t free = in->max_tokens - w->overlong_buffer;
    if (w->overlong_buffer <= 0 || in->tokens <= free) return 0;
    return fmax(-1, (double)(free - in->tokens) / (double)w->overlong_buffer);
}

struct reward reward_score(const struct reward_weights *w, const struct reward_input *in) {
    const struct verdict *v = in->verdict;
    struct reward r = {0};
    const char class = outcome_class(v->outcome);
    ASSERT(class != 'I');
    if (class == 'H') {
        r.total = r.code = -w->cheating_penalty;
        return r;
    }
    const bool correct = v->outcome == OUTCOME_CORRECT;
    r.format = in->format_ok;
    r.think = !in->thought_chars ? w->think_none
                                 : falling(in->thought_chars, w->think_soft_max, w->think_hard_max, w->think_floor);
    r.compile = outcome_stage(v->outcome) >= STAGE_COMPILE;
    if (correct) {
        r.correct = 1;
        if (v->speedup > 0) r.speed = speed_part(w, v->speedup);
        r.length = falling(in->kernel_chars, w->length_min, w->length_max, 0);
    } else if (w->partial_correct && v->tests_total > 0 && class == 'W') {
        r.correct = (double)v->tests_passed / v->tests_total;
    }
    r.overlong = overlong_part(w, in);
    if (w->sparse)
        r.total = correct ? 1 + w->speed * r.speed + w->length * r.length + w->think * r.think : 0;
    else
        r.total = w->format * r.format + w->compile * r.compile + w->correct * r.correct + w->speed * r.speed +
                  w->think * r.think + w->length * r.length;
    r.total += w->overlong_penalty * r.overlong - (in->format_ok ? 0 : w->format_penalty);
    r.plan = correct ? w->speed * r.speed : 0;
    r.code = r.total - r.plan;
    return r;
}

/* Refuses an answer of which a part that is paid for is not known. */
static enum status check_known(const struct reward_weights *w, struct reward_known known, char class, const char *where,
                               struct err *e) {
    const bool correct = class == 'C', scores = correct || !w->sparse;
    const struct {
        bool known, paid;
        const char *what, *keys;
    } parts[] = {
        {known.format, w->format_penalty > 0 || (w->format > 0 && !w->sparse), "format_ok",
         "reward_format_weight or format_penalty"},
        {known.thought, w->think > 0 && scores, "thought_chars", "reward_thinking_weight"},
        {known.kernel, w->length > 0 && correct, "kernel_chars", "reward_length_weight"},
        {known.speed, w->speed > 0 && correct, "speedup", "reward_speed_weight"},
        {known.tests, w->partial_correct && w->correct > 0 && !w->sparse && class == 'W', "tests_total",
         "partial_correctness"},
        {known.tokens, w->overlong_penalty > 0 && w->overlong_buffer > 0, "tokens", "overlong_penalty"},
    };
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        if (parts[i].paid && !parts[i].known)
            return FAIL(e, ST_INVALID, "%s: %s is not known, which %s of the configuration asks for", where,
                        parts[i].what, parts[i].keys);
    return ST_OK;
}

enum status reward_score_known(const struct reward_weights *w, const struct reward_input *in, struct reward_known known,
                               const char *where, struct reward *out, struct err *e) {
    const char class = outcome_class(in->verdict->outcome);
    if (class == 'F') known.format = true; /* an answer without a kernel has no whole block */
    if (class != 'H') TRY(check_known(w, known, class, where, e));
    *out = reward_score(w, in);
    if (class == 'H') return ST_OK; /* a cheat has its penalty and no parts */
    if (!known.format) out->format = (double)NAN;
    if (!known.thought) out->think = (double)NAN;
    if (!known.kernel && class == 'C') out->length = (double)NAN;
    if (!known.tokens && w->overlong_buffer > 0) out->overlong = (double)NAN;
    return ST_OK;
}

void reward_returns(const double *score, int n, double gamma, double *out) {
    double later = 0;
    for (int t = n - 1; t >= 0; t--) out[t] = later = score[t] + gamma * later;
}

void reward_to_json(const struct reward *r, bool present, struct str *out) {
    js_begin(out, "reward", '{');
    js_put_f64(out, "total", present ? r->total : (double)NAN);
    js_put_f64(out, "format", r->format);
    js_put_f64(out, "compile", r->compile);
    js_put_f64(out, "correct", r->correct);
    js_put_f64(out, "speed", r->speed);
    js_put_f64(out, "think", r->think);
    js_put_f64(out, "length", r->length);
    js_put_f64(out, "overlong", r->overlong);
    if (r->preference > 0) js_put_f64(out, "preference", r->preference);
    js_end(out, '}');
}
