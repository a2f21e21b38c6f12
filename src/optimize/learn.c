/* Learning while searching: an update of the weights from each wave's answers, with an advantage that favours the best
 * of them, and a penalty on leaving the model that the search began with. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/log.h"
#include "dist/comm.h"
#include "optimize/internal.h"
#include "rl/learn/update.h"
#include "rl/run/run.h"

struct learner {
    struct comm *comm;
    struct trainer *trainer;
    int64_t opt_step;
    double baseline; /* running mean of the rewards; NaN before the first wave */
};

static bool is_adapter(const struct answer_search *s) { return s->train.lora_rank > 0; }

/* The weights of the waves before, if they were saved. */
static enum status load(struct answer_search *s, struct learner *l, int *waves, struct err *e) {
    CLEANUP_FREE char *dir = fs_join(s->dir, "policy"), *state = fs_join(dir, "state.json");
    int64_t step = 0;
    *waves = 0;
    TRY(checkpoint_recover(dir, e));
    if (!fs_is_file(state)) return ST_OK;
    TRY(checkpoint_read(dir, &step, &l->opt_step, s->session.policy.model, is_adapter(s), l->trainer->opt, e));
    *waves = (int)step;
    return ST_OK;
}

enum status learner_open(struct answer_search *s, struct learner **out, int *waves, struct err *e) {
    struct learner *l = xcalloc(1, sizeof *l);
    struct model *m = s->session.policy.model;
    enum status st;
    int n_params;
    l->baseline = (double)NAN;
    TRY_GOTO(model_train_prepare(m, is_adapter(s) ? TRAIN_LORA : TRAIN_FULL, e), out);
    TRY_GOTO(comm_open("self", NULL, &l->comm, e), out);
    TRY_GOTO(trainer_open(l->comm, m, ADAPTER_OWN, s->train.update.train_tokens, &l->trainer, e), out);
    TRY_GOTO(load(s, l, waves, e), out);
    const struct param *params = model_params(m, &n_params);
    st = checkpoint_room(s->dir, params, n_params, e);
out:
    if (st == ST_OK)
        *out = l;
    else
        learner_close(l);
    return st;
}

void learner_close(struct learner *l) {
    if (!l) return;
    trainer_close(l->trainer);
    comm_close(l->comm);
    free(l);
}

/* Advantages of a wave's answers, each against those to the same problem, whatever its prompt was. */
static void assign_advantages(struct answer_search *s, struct learner *l, struct wave *w) {
    const struct train_options *o = &s->train;
    const bool idle_tokens_count = o->update.loss.kl_coef > 0 || o->update.loss.entropy_coef > 0;
    struct advantage_sample *all = xcalloc((size_t)w->n + 1, sizeof *all);
    for (int i = 0; i < w->n; i++) {
        const struct episode *ep = w->answer[i].ep;
        all[i] = (struct advantage_sample){.group = w->answer[i].task, .present = ep->has_return, .score = ep->ret};
    }
    (void)advantage_batch(&o->advantage, all, w->n, s->tasks->n, &l->baseline);
    for (int i = 0; i < w->n; i++) {
        struct episode *ep = w->answer[i].ep;
        ep->advantage = all[i].advantage;
        ep->kept = all[i].takes_part && idle_tokens_count;
    }
    free(all);
}

enum status learner_wave(struct answer_search *s, struct learner *l, struct wave *w, struct err *e) {
    struct update_stats u = {0};
    assign_advantages(s, l, w);
    TRY(update_policy(l->trainer, &s->session.reference, &s->train, NULL, w->r.group, w->r.n, &l->opt_step, &u, e));
    log_debug("wave %d: %d prompts trained, gradient %.3g", s->state.waves, u.groups_trained, u.grad_norm);
    return ST_OK;
}

enum status learner_save(struct answer_search *s, struct learner *l, struct err *e) {
    CLEANUP_FREE char *dir = fs_join(s->dir, "policy");
    return checkpoint_replace(dir, s->state.waves, l->opt_step, NULL, s->session.policy.model, is_adapter(s), "f32",
                              l->trainer->opt, s->session.policy.folder, e);
}
