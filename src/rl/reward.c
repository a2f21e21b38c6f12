#include "rl/reward.h"

#include <math.h>

static double speed_part(const struct reward_weights *w, double ratio) {
    double s = 0;
    switch (w->shape) {
    case SPEED_RATIO: s = ratio; break;
    case SPEED_EXCESS: s = ratio > 1 ? ratio - 1 : 0; break;
    case SPEED_LOG: s = log2(1 + ratio); break;
    }
    return s < w->speed_cap ? s : w->speed_cap;
}

struct reward reward_score(const struct reward_weights *w, const struct verdict *v, bool format_ok, bool has_thought) {
    struct reward r = {0};
    char class = outcome_class(v->outcome);
    ASSERT(class != 'I');
    if (class == 'H') return r;
    r.format = format_ok;
    r.think = has_thought;
    r.compile = outcome_stage(v->outcome) >= STAGE_COMPILE;
    if (v->outcome == OUTCOME_CORRECT) {
        r.correct = 1;
        if (v->speedup > 0) r.speed = speed_part(w, v->speedup);
    } else if (w->partial_correct && v->tests_total > 0 && class == 'W') {
        r.correct = (double)v->tests_passed / v->tests_total;
    }
    r.total = w->format * r.format + w->compile * r.compile + w->correct * r.correct + w->speed * r.speed +
              w->think * r.think;
    return r;
}
