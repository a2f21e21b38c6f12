#include "verify/torch/judge.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "verify/torch/calls.h"
#include "verify/torch/clock.h"
#include "verify/torch/gpu.h"
#include "verify/torch/load.h"
#include "verify/torch/outputs.h"
#include "verify/torch/spares.h"

static bool run_trial(struct torch_answer *r, int t) {
    struct modset set = r->c->trials[t];
    /* The second look is at other inputs. So an output that comes one call late is wrong the second time, too. */
    if (r->process.memory == MEMORY_CONFIRM) set.seed = hmac_u64(r->random, "again", ++r->random_step, NULL, 0) >> 11;
    run_note_confirmed(r);
    char where[48];
    struct err e = {0};
    int slot = t % r->c->slots;
    int64_t ns = 0;
    CLEANUP_JSON json_t *reply = NULL;
    snprintf(where, sizeof where, "test %d of %d", t + 1, r->c->n_trials);
    /* The inputs are written last, while the process stands still, as in front of a timed call. So the answer cannot
     * tell a trial from a timed call by this. */
    if (!run_poison(r, 1 + (int)(hmac_u64(r->random, "poison", ++r->random_step, NULL, 0) % 254)) ||
        !run_ready(r, &slot, 1, where))
        return false;
    modrun_pause(&r->process.run);
    enum status st = modcase_stage(&r->j->cases, r->c, false, false, &set, &slot, 1, &e);
    if (st != ST_OK) {
        verdict_of_trouble(r->out, st, &e);
        return false;
    }
    double left = r->deadline_s - clock_now_s();
    if (left < 0.05) left = 0.05;
    if (!run_call(r, &slot, 1, &set, left, where, &reply, &ns)) return false;
    if (!run_check_calls(r, reply, &(int){0}, 1, &slot, 1, &set, where))
        return run_look_again(r) && run_poison(r, 0) && run_trial(r, t);
    if (!run_poison(r, 0)) return false;
    r->out->tests_passed++;
    return true;
}

/* GPU: makes one more call like the trials', and looks whose kernels run in it. The clock does so again among the timed
 * calls. */
static bool account_kernels(struct torch_answer *r) {
    struct modset set = r->c->trials[0];
    int slot = 0;
    int64_t ns = 0;
    struct err e = {0};
    CLEANUP_JSON json_t *reply = NULL, *recorded = NULL;
    if (!run_record(r, true, NULL) || !run_ready(r, &slot, 1, "between calls")) return false;
    modrun_pause(&r->process.run);
    enum status st = modcase_stage(&r->j->cases, r->c, false, false, &set, &slot, 1, &e);
    if (st != ST_OK) {
        verdict_of_trouble(r->out, st, &e);
        return false;
    }
    return run_call(r, &slot, 1, &set, r->j->o->run_timeout_s, "when its kernels were listed", &reply, &ns) &&
           run_record(r, false, &recorded) && run_account(r, recorded);
}

/* Runs the trials, up to the first that fails. With `staged` off it runs all trials that the answer's process lives to
 * see, and the verdict tells of the first failure. */
static bool run_trials(struct torch_answer *r) {
    struct verdict first = {.outcome = OUTCOME_CORRECT};
    for (int t = 0; t < r->c->n_trials; t++) {
        if (run_trial(r, t)) continue;
        char class = outcome_class(r->out->outcome);
        if (first.outcome == OUTCOME_CORRECT) first = *r->out;
        if (r->j->o->staged != STAGED_OFF || !r->process.up || class == 'I') return false;
        r->out->outcome = OUTCOME_CORRECT;
    }
    if (first.outcome == OUTCOME_CORRECT) return true;
    r->out->outcome = first.outcome;
    memcpy(r->out->message, first.message, sizeof first.message);
    return false;
}

static bool run_tests(struct torch_answer *r) {
    bool good = run_attach(r, LANE_ANSWER) && run_build(r, 0);
    bool both = false;
    for (int t = 0; t < r->c->n_trials; t++) both |= r->c->trials[t].param_set == 1;
    if (good && both) good = run_build(r, 1);
    if (good) good = run_trials(r);
    if (good && is_hardened(r->j) && on_gpu(r->j)) good = account_kernels(r);
    return good;
}

void run_judge(struct torch_answer *r) {
    struct module_judge *j = r->j;
    struct verdict *out = r->out;
    double t0 = clock_now_s();
    out->tests_total = r->c->n_trials;
    r->deadline_s = t0 + j->o->run_timeout_s;
    bool good = run_tests(r);
    double t1 = clock_now_s();
    out->run_s = t1 - t0;
    if (good && j->o->measure) {
        module_measure(r);
        out->time_s = clock_now_s() - t1;
    }
    spares_renew(j);
}
