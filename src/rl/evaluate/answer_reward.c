#include "rl/evaluate/answer_reward.h"

#include <math.h>

#include "rl/learn/session.h"
#include "rl/rollout/curriculum.h"
#include "rl/run/run.h"

struct rollout_params answer_weights(const struct train_options *o, double progress) {
    const struct train_options now = schedule_at(o, progress);
    return session_rollout_params(&now);
}

/* Refuses an answer of which a part that is paid for is not known. */
static enum status check_known(const struct reward_weights *w, struct answer_known known, char class, const char *where,
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

enum status answer_weights_check(const struct reward_weights *w, struct answer_known known, struct err *e) {
    if (known.tokens || w->overlong_penalty <= 0 || w->overlong_buffer <= 0) return ST_OK;
    return FAIL(e, ST_CONFIG,
                "--config: overlong_buffer_tokens asks for the tokens of an answer, which a file does not say");
}

enum status answer_reward(const struct rollout_params *p, struct answer_known known, const char *where,
                          struct episode *ep, struct err *e) {
    const char class = outcome_class(ep->verdict.outcome);
    ep->present = class != 'I';
    if (!ep->present) return ST_OK;
    if (class == 'F') known.format = true; /* an answer without a kernel has no whole block */
    if (class != 'H') TRY(check_known(&p->weights, known, class, where, e));
    ep->reward = rollout_reward(p, ep);
    if (class == 'H') return ST_OK; /* a cheat has its penalty and no parts */
    if (!known.format) ep->reward.format = (double)NAN;
    if (!known.thought) ep->reward.think = (double)NAN;
    if (!known.kernel && class == 'C') ep->reward.length = (double)NAN;
    if (!known.tokens && p->weights.overlong_buffer > 0) ep->reward.overlong = (double)NAN;
    return ST_OK;
}

void answer_put(const struct episode *ep, bool with_reward, struct str *out) {
    js_put_bool(out, "format_ok", ep->format_ok);
    js_put_i64(out, "thought_chars", ep->thought_chars);
    js_put_i64(out, "kernel_chars", ep->kernel_chars);
    if (with_reward) run_put_reward(out, ep);
}
