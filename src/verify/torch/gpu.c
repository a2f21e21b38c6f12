#include "verify/torch/gpu.h"

#include <math.h>
#include <string.h>

#include "verify/torch/failure.h"
#include "verify/torch/process.h"
#include "verify/torch/request.h"

/* The device may have been busy in front of this many turns. A cheat that gains in so few turns gains nothing. */
static const int most_busy = 4;

/* The device has worked for somebody in front of one turn after another. This ends the answer's process: when the
 * device comes to rest with that, it has worked for the answer. Always false. */
static bool who_is_busy(struct torch_answer *r, const char *where) {
    struct err e = {0};
    bool busy = true;
    run_end(r);
    enum status st = modcase_at_rest(&r->j->cases, r->c, &busy, &e);
    if (st != ST_OK) {
        verdict_of_trouble(r->out, ST_WORKER, &e);
        return false;
    }
    if (busy) return run_reject(r, where, OUTCOME_INFRASTRUCTURE, "somebody else keeps the GPU busy");
    return run_reject(r, where, OUTCOME_HIDDEN_WORK, "the device does not come to rest");
}

bool run_has_waited(struct torch_answer *r) {
    static const char where[] = "before a timed call";
    struct err e = {0};
    bool changed = false;
    double ignored;
    if (modrun_children(&r->process.run) > 0)
        return run_reject(r, where, OUTCOME_HIDDEN_WORK, "processes of the answer's own are running");
    if (r->c->busy && ++r->clock.busy_turns > most_busy) return who_is_busy(r, where);
    if (!r->c->watching) return true;
    enum status st = modcase_watched(&r->j->cases, r->c, &changed, &e);
    /* Draining empties the cache of the memory that was read. */
    if (st == ST_OK) st = modcase_drain(&r->j->cases, r->c, &ignored, &e);
    if (st != ST_OK) verdict_of_trouble(r->out, st == ST_INVALID ? ST_WORKER : st, &e);
    if (st != ST_OK) return false;
    return !changed || run_reject(r, where, OUTCOME_HIDDEN_WORK, "memory changed while the answer stood still");
}

bool run_record(struct torch_answer *r, bool on, json_t **reply) {
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *said = NULL;
    run_open_request(&q, "record");
    js_put_bool(&q, "on", on);
    if (!run_request(r, &q, -1, r->j->o->run_timeout_s, "when its kernels were listed", &said, NULL)) return false;
    if (reply) *reply = json_incref(said);
    return true;
}

bool run_account(struct torch_answer *r, const json_t *recorded) {
    static const double least_share = 0.01;
    const json_t *kernels = json_object_get(recorded, "kernels");
    /* A kernel that the reference launches, too, does not count as the answer's own. */
    const json_t *theirs = json_object_get(r->c->loaded, "kernels");
    double all = 0, mine = 0, times = 0;
    r->process.own_streams |= json_is_true(json_object_get(recorded, "elsewhere"));
    for (size_t i = 0; i < json_array_size(kernels); i++) {
        const json_t *k = json_array_get(kernels, i);
        const char *name = json_string_value(json_array_get(k, 0));
        const double ns = (double)json_integer_value(json_array_get(k, 2));
        times += (double)json_integer_value(json_array_get(k, 1));
        all += ns;
        bool own = name && kernel_is_own(&r->kernels, name) && !kernel_is_library(name);
        for (size_t t = 0; t < json_array_size(theirs) && own; t++)
            own = strcmp(name, json_string_value(json_array_get(theirs, t))) != 0;
        if (own) mine += ns;
    }
    const double share = all > 0 ? mine / all : 0;
    r->out->own_share = is_timed(r) ? fmin(r->out->own_share, share) : share;
    if (r->j->o->allow_library || r->control || mine > least_share * all) return true;
    r->out->outcome = OUTCOME_NO_KERNEL_RAN;
    VERDICT_SAY(r->out, "%s%.0f kernels ran, %.2f %% of the device time in kernels of the answer's own",
                is_timed(r) ? "in a timed call: " : "", times, 100 * share);
    return false;
}
