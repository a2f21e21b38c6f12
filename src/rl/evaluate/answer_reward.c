#include "rl/evaluate/answer_reward.h"

#include "io/json.h"
#include "rl/learn/session.h"
#include "rl/rollout/curriculum.h"

struct rollout_params answer_weights(const struct train_options *o, double progress) {
    const struct train_options now = schedule_at(o, progress);
    return session_rollout_params(&now);
}

enum status answer_weights_check(const struct reward_weights *w, struct reward_known known, struct err *e) {
    if (known.tokens || w->overlong_penalty <= 0 || w->overlong_buffer <= 0) return ST_OK;
    return FAIL(e, ST_CONFIG,
                "--config: overlong_buffer_tokens asks for the tokens of an answer, which a file does not say");
}

enum status answer_reward(const struct rollout_params *p, struct reward_known known, const char *where,
                          struct episode *ep, struct err *e) {
    const struct reward_input in = rollout_reward_input(p, ep);
    ep->present = outcome_class(ep->verdict.outcome) != 'I';
    return ep->present ? reward_score_known(&p->weights, &in, known, where, &ep->reward, e) : ST_OK;
}

void answer_put(const struct episode *ep, bool with_reward, struct str *out) {
    js_put_bool(out, "format_ok", ep->format_ok);
    js_put_i64(out, "thought_chars", ep->thought_chars);
    js_put_i64(out, "kernel_chars", ep->kernel_chars);
    if (with_reward) reward_to_json(&ep->reward, ep->present, out);
}
