/* The whole loop, top to bottom: train_run opens everything, train_steps walks the steps, one_step is one step:
 * sample_ahead (pick_problems, rollout.c), judge, assign_advantages (advantage.c), update_policy (update.c). */
#include "rl/loop/loop.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/rng.h"
#include "io/json.h"
#include "rl/learn/session.h"
#include "rl/learn/update.h"
#include "rl/loop/follow.h"
#include "rl/loop/roles.h"
#include "rl/rollout/curriculum.h"
#include "rl/rollout/journal.h"
#include "rl/rollout/pipeline.h"
#include "rl/rollout/sample_journal.h"
#include "rl/run/metrics.h"
#include "rl/run/missing_verdicts.h"
#include "rl/run/rates.h"
#include "rl/run/run.h"
#include "tensor/backend.h"
#include "train/follow.h"

struct training {
    const struct train_options *o;
    struct train_options now; /* of the step: o with what its schedule says */
    struct session s;
    struct run_dir *run;
    struct journal *journal;
    struct comm *comm;
    struct rank_sampler sampler;
    struct sample_journal *samples; /* NULL: samples are not kept */
    int64_t replayed_before;        /* of them, before this step */
    bool leads;                     /* true: the other ranks wait for commands */
    struct trainer *trainer;        /* NULL: a server trains the model (s.hosted) */
    struct arena datums;            /* of its datums */
    const struct problem **train, **test;
    int n_train, n_test;
    struct curriculum curriculum;
    struct missing missing;
    struct pipeline ahead; /* this step's batch and those sampled for later steps */
    struct roles roles;
    int64_t step, steps, opt_step;
    double baseline;    /* running mean of the rewards; NaN before the first batch */
    int64_t saved_step; /* of the last checkpoint; 0: none */
    double save_s;      /* that the last checkpoint took */
    bool finished;      /* nothing is left to train */
    bool downloaded; /* true: the checkpoint that it goes on from has the weights, not their name on a server alone */
    double started_s;
    int64_t first_step;
};

/* ---- problems -----------------------------------------------------------------------------------------------------*/

/* The i-th problem of the endless sequence of shuffled epochs: a pure function of the seed, so a resumed run sees the
 * problems that the uninterrupted one would have seen. */
static void pick_problems(const struct training *t, int64_t step, const struct problem **out) {
    int64_t n = t->n_train, batch = t->o->dataset_builder.batch_size, epoch = -1;
    int32_t *order = xmalloc((size_t)n * sizeof *order);
    for (int64_t i = 0; i < batch; i++) {
        int64_t at = step * batch + i;
        if (at / n != epoch) {
            epoch = at / n;
            for (int32_t k = 0; k < n; k++) order[k] = k;
            struct rng r = rng_make((uint64_t)t->o->seed, UINT64_C(0x65706f6368) + (uint64_t)epoch);
            if (t->o->dataset_builder.shuffle) rng_shuffle(&r, order, (size_t)n, sizeof *order);
        }
        out[i] = t->train[order[at % n]];
    }
    free(order);
}

/* Problems in the place of those whose answers all scored the same: drawn anew for the step and the round. */
static void pick_others(const struct training *t, int64_t step, int round, int n, const struct problem **out) {
    struct rng r = rng_make((uint64_t)t->o->seed, UINT64_C(0x726566696c6c0000) + (uint64_t)step * 16 + (uint64_t)round);
    for (int i = 0; i < n; i++) out[i] = t->train[rng_below(&r, (uint64_t)t->n_train)];
}

/* ---- advantages ---------------------------------------------------------------------------------------------------*/

static int count_episodes(const struct rollout *r) {
    int n = 0;
    for (int i = 0; i < r->n; i++) n += r->group[i].n;
    return n;
}

enum what { OF_RETURN, OF_PLAN, OF_CODE };

/* Advantages of all turns by their returns, or by one part of them, in the order of the groups. A turn's peers are all
 * turns of all samples of its problem, or the same turn's. Returns the number of constant groups. */
static int advantages_of(struct training *t, const struct rollout *r, enum what what, struct advantage_sample *s) {
    const struct train_options *o = t->o;
    const int turns = o->mode == MODE_MULTI_TURN && o->advantage_group == GROUP_TURN ? TURNS_MAX : 1;
    int n = 0;
    for (int i = 0; i < r->n; i++)
        for (int j = 0; j < r->group[i].n; j++) {
            const struct sample_group *g = &r->group[i];
            const struct episode *ep = &g->ep[j];
            s[n++] = (struct advantage_sample){.group = turns * g->task + (turns > 1 ? g->turn : 0),
                                               .present = ep->has_return,
                                               .score = what == OF_PLAN   ? ep->plan_ret
                                                        : what == OF_CODE ? ep->code_ret
                                                                          : ep->ret};
        }
    double unused = t->baseline;
    return advantage_batch(&o->advantage, s, n, turns * r->n_tasks, what == OF_RETURN ? &t->baseline : &unused);
}

/* Reasoning tokens earn what the plan is worth, the answer's tokens what the code is. */
static void split_advantage(const struct train_options *o, struct episode *ep, double plan, double code) {
    if (ep->plan_tokens == 0 || ep->sample.n == 0) return;
    ep->token_advantage = xmalloc((size_t)ep->sample.n * sizeof *ep->token_advantage);
    for (int k = 0; k < ep->sample.n; k++)
        ep->token_advantage[k] = (float)(k < ep->plan_tokens ? o->plan_weight * plan : code);
    ep->advantage = code;
    ep->kept |= plan != 0;
}

/* Returns the number of groups that teach nothing. */
static int assign_advantages(struct training *t, struct rollout *r) {
    const struct train_options *o = &t->now;
    const struct loss_params *loss = &o->update.loss;
    const bool idle_tokens_count = loss->kl_coef > 0 || loss->entropy_coef > 0 || !o->advantage.drop_constant;
    const int n = count_episodes(r);
    struct advantage_sample *all = xcalloc((size_t)n + 1, sizeof *all), *plan = NULL, *code = NULL;
    const int constant = advantages_of(t, r, OF_RETURN, all);
    if (o->hierarchical_rewards) {
        plan = xcalloc((size_t)n + 1, sizeof *plan);
        code = xcalloc((size_t)n + 1, sizeof *code);
        (void)advantages_of(t, r, OF_PLAN, plan);
        (void)advantages_of(t, r, OF_CODE, code);
    }
    for (int i = 0, k = 0; i < r->n; i++)
        for (int j = 0; j < r->group[i].n; j++, k++) {
            struct episode *ep = &r->group[i].ep[j];
            ep->advantage = all[k].advantage;
            ep->kept = all[k].takes_part && idle_tokens_count;
            if (plan) split_advantage(o, ep, plan[k].advantage, code[k].advantage);
        }
    roles_advantages(&t->roles, o, idle_tokens_count);
    free(all);
    free(plan);
    free(code);
    return constant;
}

/* Tasks whose answers' returns are all equal. */
static int constant_tasks(struct training *t, const struct rollout *r) {
    struct advantage_sample *s = xcalloc((size_t)count_episodes(r) + 1, sizeof *s);
    const double baseline = t->baseline;
    (void)advantages_of(t, r, OF_RETURN, s);
    t->baseline = baseline;
    bool *differs = xcalloc((size_t)r->n_tasks + 1, sizeof *differs);
    for (int i = 0, k = 0; i < r->n; i++)
        for (int j = 0; j < r->group[i].n; j++, k++) differs[r->group[i].task] |= !s[k].constant;
    int constant = 0;
    for (int i = 0; i < r->n_tasks; i++) constant += !differs[i];
    free(differs);
    free(s);
    return constant;
}

/* ---- checkpoints --------------------------------------------------------------------------------------------------*/

/* A number of all that was trained: trainer.history, or the server's. */
static uint64_t *history_of(const struct training *t) {
    return t->trainer ? &t->trainer->history : hosted_history(t->s.hosted);
}

static enum status save_ahead(void *ctx, const char *dir, struct err *e) {
    const struct training *t = ctx;
    TRY(missing_save(&t->missing, dir, e));
    return pipeline_save(&t->ahead, t->step, dir, e);
}

/* The server saves weights and moments first; the checkpoint says under which path. */
static enum status save_hosted(struct training *t, const char *name, struct str *state, struct err *e) {
    CLEANUP_FREE char *path = NULL;
    TRY(hosted_save(t->s.hosted, name, &path, e));
    js_put_str(state, "tinker_path", path);
    return ST_OK;
}

/* The server's adapter, beside what a checkpoint says of it. A server that gives no files is no reason to fail a run
 * that is done. */
static enum status download(const struct training *t, const char *name, struct err *e) {
    CLEANUP_STR struct str dir = STR_INIT;
    str_addf(&dir, "%s/checkpoints/%s", run_dir(t->run), name);
    const enum status st = hosted_download(t->s.hosted, dir.p, e);
    if (st == ST_OK) log_info("%s has the adapter", dir.p);
    if (st != ST_CONFIG || t->step < t->steps) return st;
    log_warn("%s has no adapter, which the server keeps (state.json, tinker_path): %s", dir.p, e->msg);
    return ST_OK;
}

/* Waits for the checkpoint that is on its way onto the disk, if there is one. The samples before it are not needed any
 * more. */
static enum status saved(struct training *t, struct err *e) {
    TRY(run_checkpoint_saved(t->run, e));
    if (t->samples) sample_journal_forget(t->samples);
    return ST_OK;
}

/* Begins a checkpoint (NAME, or the step). It goes onto the disk while the next batch is sampled. */
static enum status save(struct training *t, const char *name, struct err *e) {
    char step[32];
    CLEANUP_STR struct str more = STR_INIT;
    const double from = clock_now_s();
    TRY(saved(t, e));
    snprintf(step, sizeof step, "%06lld", (long long)t->step);
    char history[20];
    snprintf(history, sizeof history, "%016llx", (unsigned long long)*history_of(t));
    js_put_str(&more, "history", history);
    if (isfinite(t->baseline)) js_put_f64(&more, "baseline", t->baseline);
    if (t->o->curriculum.enabled) curriculum_save(&t->curriculum, &more);
    if (t->o->roles.proposals > 0) roles_save(&t->roles, &more);
    if (!t->trainer) TRY(save_hosted(t, name ? name : step, &more, e));
    const struct checkpoint_extra extra = {.state = str_c(&more), .write = save_ahead, .ctx = t};
    if (t->trainer) TRY(train_gather_values(t->trainer, e));
    TRY(run_save_checkpoint(t->run, name ? name : step, t->step, t->opt_step, &extra,
                            t->trainer ? t->s.policy.model : NULL, t->o->lora_rank > 0,
                            t->trainer ? t->trainer->opt : NULL, t->s.policy.folder, name ? 0 : t->o->keep_checkpoints,
                            e));
    t->saved_step = t->step;
    if (t->samples) sample_journal_mark(t->samples);
    if (!t->trainer) TRY(saved(t, e)); /* download() needs the directory */
    if (!t->trainer && (name || t->o->download_checkpoints)) TRY(download(t, name ? name : step, e));
    t->save_s = clock_now_s() - from;
    return ST_OK;
}

static enum status save_now(struct training *t, const char *name, struct err *e) {
    TRY(save(t, name, e));
    return saved(t, e);
}

/* An update failed. When it has changed nothing yet, the state before it is saved, so that no step is lost. */
static void keep_state(struct training *t, int64_t opt_step_before, double baseline_before) {
    char where[400];
    struct err e;
    if (t->opt_step != opt_step_before || t->step <= t->saved_step) return;
    enum status st = t->trainer ? train_gather_values(t->trainer, &e) : ST_OK;
    if (st == ST_OK && t->trainer &&
        model_find_nonfinite(t->s.policy.model, ADAPTER_OWN, FIND_WEIGHTS, where, sizeof where))
        return; /* nothing to go on from */
    t->baseline = baseline_before;
    missing_count_back(&t->missing, &t->ahead.batch[0]->r);
    if (st == ST_OK) st = save_now(t, NULL, &e);
    if (st == ST_OK)
        log_info("the state before step %lld is saved", (long long)t->step + 1);
    else
        log_warn("the state before step %lld could not be saved: %s", (long long)t->step + 1, e.msg);
}

/* ---- one step -----------------------------------------------------------------------------------------------------*/

static struct rollout_params params_of(const struct training *t, int64_t step) {
    const struct train_options now = schedule_at(t->o, (double)step / (double)t->steps);
    struct rollout_params p = session_rollout_params(&now);
    p.step = step;
    p.stream = (uint64_t)(step * t->o->dataset_builder.batch_size);
    return p;
}

/* The batch of a step, with the weights as they are; its verdicts are asked for. */
static enum status sample_batch(struct training *t, int64_t step, struct rollout_times *times, struct err *e) {
    const int batch = (int)t->o->dataset_builder.batch_size;
    const struct problem **problems = xcalloc((size_t)batch, sizeof *problems);
    const struct rollout_params p = params_of(t, step);
    if (t->o->curriculum.enabled)
        curriculum_pick(&t->curriculum, t->o, step, batch, problems);
    else
        pick_problems(t, step, problems);
    enum status st = roles_propose(&t->roles, &t->s.actor, &t->now, &p, problems, batch, e);
    struct batch *b = pipeline_push(&t->ahead, step, t->step, t->opt_step);
    if (st == ST_OK) st = rollout_sample(&t->s.actor, problems, batch, &p, &b->r, times, e);
    if (st != ST_OK) pipeline_drop_last(&t->ahead);
    free(problems);
    return st;
}

/* This step's batch, if it is not there yet, and those of the next max_staleness steps. */
static enum status sample_ahead(struct training *t, struct rollout_times *times, struct err *e) {
    const int64_t last = i64_min(t->step + t->o->max_staleness, t->steps - 1);
    for (;;) {
        const int64_t next = t->ahead.n ? t->ahead.batch[t->ahead.n - 1]->step + 1 : t->step;
        if (next > last) return ST_OK;
        TRY(sample_batch(t, next, times, e));
    }
}

/* Waits for the step's verdicts; then samples other problems in the place of those that teach nothing, as often as
 * refill_rounds says, and lets the other roles play. */
static enum status judge(struct training *t, struct rollout *r, struct rollout_times *times, struct err *e) {
    const struct train_options *o = t->o;
    const int batch = (int)o->dataset_builder.batch_size;
    struct rollout_params p = params_of(t, t->step);
    const struct problem **problems = xcalloc((size_t)batch, sizeof *problems);
    enum status st = rollout_score(&t->s.actor, &p, r, 0, times, e);
    for (int round = 1; st == ST_OK && round <= o->refill_rounds; round++) {
        const int lacking = batch - (r->n_tasks - constant_tasks(t, r));
        if (lacking <= 0) break;
        if (o->curriculum.enabled)
            curriculum_pick(&t->curriculum, o, t->step + ((int64_t)round << 32), lacking, problems);
        else
            pick_others(t, t->step, round, lacking, problems);
        p.first_task = r->n_tasks;
        p.stream = (UINT64_C(1) << 50) + ((uint64_t)t->step << 20) + (uint64_t)r->n_tasks;
        st = rollout_run(&t->s.actor, problems, lacking, &p, r, times, e);
    }
    free(problems);
    p = params_of(t, t->step);
    return st == ST_OK ? roles_play(&t->roles, &t->s.actor, &t->now, &p, r, times, e) : st;
}

/* Samples drawn and leaves computed in the step, in all and by each of several ranks. */
static void rank_metrics(struct training *t, struct metrics *m) {
    int64_t samples = 0, leaves = 0;
    if (!t->trainer) return;
    metrics_add(m, t->comm->size, "ranks/size");
    for (int r = 0; r < t->comm->size; r++) {
        samples += t->sampler.drawn[r];
        leaves += t->trainer->leaves[r];
        if (t->comm->size == 1) continue;
        metrics_add(m, (double)t->sampler.drawn[r], "ranks/samples_%d", r);
        metrics_add(m, (double)t->trainer->leaves[r], "ranks/leaves_%d", r);
        metrics_add(m, t->sampler.busy_s[r], "time/sample_rank_%d", r);
        metrics_add(m, t->trainer->busy_s[r], "time/train_rank_%d", r);
    }
    if (t->samples) samples += sample_journal_replayed(t->samples) - t->replayed_before;
    metrics_add(m, (double)samples, "ranks/samples");
    metrics_add(m, (double)leaves, "ranks/leaves");
    if (t->comm->size > 1) metrics_add(m, (double)t->trainer->audited, "ranks/audited");
}

static enum status write_step(struct training *t, const struct rollout *r, int constant, const struct update_stats *u,
                              const struct step_times *times, struct err *e) {
    TRY(run_traces(t->run, t->step, t->s.actor.tok, r, e));
    TRY(roles_traces(&t->roles, t->run, t->step, t->s.actor.tok, e));
    struct metrics m = {0};
    const double elapsed = clock_now_s() - t->started_s;
    if (t->o->curriculum.enabled) {
        metrics_add(&m, t->curriculum.key[t->curriculum.learned], "curriculum/learned_level");
        metrics_add(&m, t->curriculum.share, "curriculum/next_level_share");
    }
    metrics_add(&m, t->now.reward.speed, "curriculum/speed_weight");
    if (t->roles.on) roles_metrics(&t->roles, t->o, &m);
    missing_metrics(&t->missing, r, &m);
    rank_metrics(t, &m);
    metrics_of_step(&m, t->o, t->step, t->steps, r, constant, u, times);
    metrics_log(t->o, t->step, t->steps, r, times,
                elapsed / (double)(t->step + 1 - t->first_step) * (double)(t->steps - t->step - 1));
    enum status st = metrics_histograms(t->run, t->o, t->step, r, e);
    if (st == ST_OK) st = run_metrics(t->run, t->step, m.m, m.n, e);
    metrics_free(&m);
    return st;
}

static void begin_counts(struct training *t) {
    if (!t->trainer) return;
    for (int r = 0; r < t->comm->size; r++) {
        t->sampler.drawn[r] = t->trainer->leaves[r] = 0;
        t->sampler.busy_s[r] = t->trainer->busy_s[r] = 0;
    }
    t->trainer->audited = 0;
}

static struct pupil pupil_of(struct training *t) {
    return t->trainer ? pupil_here(t->trainer, &t->s.reference)
                      : (struct pupil){.hosted = t->s.hosted, .datums = &t->datums};
}

/* One step: prompt -> group of samples -> verdicts -> scores -> advantages -> gradient -> new weights. The batch stays
 * in the pipeline until all of that is done, so that a checkpoint made on the way holds it. */
static enum status one_step(struct training *t, struct err *e) {
    t->now = schedule_at(t->o, (double)t->step / (double)t->steps);
    struct step_times times = {.save_s = t->save_s, .quiet_s = -lease_quiet_s(t->s.lease)};
    struct update_stats u = {0};
    const double t0 = clock_now_s(), baseline = t->baseline;
    enum status st;
    begin_counts(t);
    t->replayed_before = t->samples ? sample_journal_replayed(t->samples) : 0;
    TRY_GOTO(sample_ahead(t, &times.rollout, e), out);
    struct rollout *r = &t->ahead.batch[0]->r;
    TRY_GOTO(judge(t, r, &times.rollout, e), out);
    times.staleness = pipeline_age(&t->ahead, t->opt_step);
    missing_count(&t->missing, r);
    const double t1 = clock_now_s();
    const int constant = assign_advantages(t, r);
    const double t2 = clock_now_s();
    const int64_t opt_step = t->opt_step;
    int n_groups;
    struct sample_group *groups = roles_join(&t->roles, r, &n_groups);
    const struct pupil pupil = pupil_of(t);
    st = update_policy_by(&pupil, &t->now, t->s.lease, groups, n_groups, &t->opt_step, &u, e);
    free(groups);
    if (st != ST_OK) {
        if (st != ST_LOST) keep_state(t, opt_step, baseline);
        goto out;
    }
    times.assemble_s = t2 - t1;
    times.train_s = clock_now_s() - t2;
    times.total_s = clock_now_s() - t0;
    times.judging = judging_stats(t->s.actor.judging);
    times.has_pool = t->s.verdicts.pool != NULL;
    if (times.has_pool) times.pool = verify_pool_stats(t->s.verdicts.pool);
    times.quiet_s += lease_quiet_s(t->s.lease);
    times.planned_bytes = t->s.planned_bytes;
    times.peak_bytes = t->s.policy.be->mem_peak ? t->s.policy.be->mem_peak(t->s.policy.be) : 0;
    t->save_s = 0;
    if (t->now.curriculum.enabled) curriculum_update(&t->curriculum, &t->now, r);
    st = write_step(t, r, constant, &u, &times, e);
    if (st == ST_OK) pipeline_pop(&t->ahead);
out:
    free(times.pool.host);
    /* What a step that failed has sampled comes again, should the run go on from in front of it. */
    while (st != ST_OK && t->ahead.n > 0 && t->ahead.batch[t->ahead.n - 1]->sampled_in == t->step)
        pipeline_drop_last(&t->ahead);
    roles_end(&t->roles, t->o, st == ST_OK);
    return st;
}

/* ---- evaluation ---------------------------------------------------------------------------------------------------*/

/* Exactly what training samples, judges and shows in prompts, on the held-out problems. */
static enum status evaluate(struct training *t, struct err *e) {
    const struct train_options *o = t->o;
    struct eval_result r;
    struct rollout_params p = session_rollout_params(o);
    p.step = t->step;
    p.o.group_size = o->rollout.temperature > 0 ? (int)o->eval_samples : 1;
    TRY(eval_rollouts(&t->s.actor, t->test, t->n_test, &p, &r, e));
    struct metrics m = {0};
    metrics_of_eval(&m, &r);
    log_info("eval on %d held-out problems: correct %.1f%%  faster %.1f%%  speed-up %.2fx", t->n_test,
             100 * r.correct.mean, 100 * r.fast.mean, isnan(r.speedup.mean) ? 0 : r.speedup.mean);
    eval_free(&r);
    const enum status st = run_metrics(t->run, t->step, m.m, m.n, e);
    metrics_free(&m);
    return st;
}

/* Weights and optimizer stand at the border before t->step: nothing of what came before is lost. */
static enum status interrupted(struct training *t, struct err *e) {
    TRY(t->step > t->saved_step ? save_now(t, NULL, e) : saved(t, e));
    return FAIL(e, ST_CANCELLED, "interrupted before step %lld of %lld; the same command goes on from there",
                (long long)t->step + 1, (long long)t->steps);
}

static bool eval_is_due(const struct training *t) {
    return t->o->eval_every > 0 && (t->step + 1) % t->o->eval_every == 0 && t->n_test > 0;
}

/* A run interrupted in the evaluation after its last step makes it now, with the same weights. */
static enum status make_up_evaluation(struct training *t, struct err *e) {
    bool done = true;
    enum status st = ST_OK;
    if (t->step == t->o->start_batch) return ST_OK;
    t->step--;
    if (eval_is_due(t)) st = run_is_evaluated(t->run, t->step, &done, e);
    if (st == ST_OK && !done) st = evaluate(t, e);
    t->step++;
    return st;
}

/* ---- the run ------------------------------------------------------------------------------------------------------*/

static enum status train_steps(struct training *t, const volatile bool *cancel, struct err *e) {
    const struct train_options *o = t->o;
    t->started_s = clock_now_s();
    t->first_step = t->step;
    enum status made_up = make_up_evaluation(t, e);
    if (made_up == ST_CANCELLED) return interrupted(t, e);
    TRY(made_up);
    for (; t->step < t->steps;) {
        enum status st = cancel && *cancel ? ST_CANCELLED : one_step(t, e);
        if (st == ST_CANCELLED) return interrupted(t, e); /* only sampling and verifying are cut short */
        TRY(st);
        TRY(saved(t, e)); /* the one that was begun before this step */
        if (eval_is_due(t)) st = evaluate(t, e);
        if (st != ST_OK && st != ST_CANCELLED) return st;
        t->step++;
        if (st == ST_CANCELLED) return interrupted(t, e);
        if (o->save_every > 0 && t->step % o->save_every == 0 && t->step < t->steps) TRY(save(t, NULL, e));
    }
    return save_now(t, "final", e);
}

/* The server's model, with weights and moments of a checkpoint's path. */
static enum status load_hosted(struct training *t, const json_t *state, const char *where, struct err *e) {
    const char *path;
    TRY(js_get_i64(state, where, "optimizer_step", &t->opt_step, e));
    TRY(js_get_str(state, where, "tinker_path", &path, e));
    if (session_host(t->o, true, path, t->s.actor.cancel, &t->s, e) == ST_OK) return ST_OK;
    return err_note(e, "%s", where);
}

static bool has_adapter(const char *dir) {
    CLEANUP_FREE char *path = fs_join(dir, "adapter_config.json");
    return fs_is_file(path);
}

static enum status load_state(struct training *t, const struct run_checkpoint *c, struct err *e) {
    CLEANUP_STR struct str path = STR_INIT;
    CLEANUP_JSON json_t *state = NULL;
    str_addf(&path, "%s/state.json", c->path);
    TRY(js_load(path.p, 1 << 16, &state, e));
    t->finished = c->next_step >= t->steps && str_has_suffix(c->path, "/final");
    t->downloaded = t->trainer || has_adapter(c->path);
    if (t->trainer)
        TRY(run_load_checkpoint(c, t->s.policy.model, t->o->lora_rank > 0, t->trainer->opt, &t->opt_step, e));
    else if (!t->finished || !t->downloaded)
        TRY(load_hosted(t, state, path.p, e));
    TRY(js_opt_f64(state, path.p, "baseline", &t->baseline, e));
    const char *history = NULL; /* older versions have none */
    TRY(js_opt_str(state, path.p, "history", &history, e));
    if (t->trainer || t->s.hosted)
        *history_of(t) = history ? strtoull(history, NULL, 16) : hash_bytes(&t->opt_step, sizeof t->opt_step, 0);
    if (t->o->curriculum.enabled) TRY(curriculum_load(&t->curriculum, state, path.p, e));
    if (t->o->roles.proposals > 0) TRY(roles_load(&t->roles, state, path.p, e));
    TRY(missing_load(&t->missing, c->path, e));
    t->step = t->saved_step = c->next_step;
    log_info("resuming %s from step %lld", run_dir(t->run), (long long)t->step);
    return ST_OK;
}

/* The batches that were sampled before the checkpoint for steps after it. */
static enum status load_ahead(struct training *t, const char *dir, struct err *e) {
    TRY(pipeline_load(&t->ahead, dir, &t->s.actor, t->train, t->n_train, e));
    for (int i = 0; i < t->ahead.n; i++)
        if (t->ahead.batch[i]->step != t->step + i || t->ahead.batch[i]->sampled_at > t->opt_step)
            return FAIL(e, ST_PARSE, "%s: the batches in flight do not follow on step %lld", dir, (long long)t->step);
    return ST_OK;
}

/* Weights, optimizer and position of the last checkpoint, or of the one that is asked for. What was written about later
 * steps is dropped, but for their verdicts: those steps are made again with the same ones. */
static enum status resume(struct training *t, struct err *e) {
    struct run_checkpoint c;
    t->step = t->o->start_batch;
    if (t->o->resume_from_batch != CONFIG_UNSET_INT)
        TRY(run_find_checkpoint(t->run, t->o->resume_from_batch, &c, e));
    else
        TRY(run_last_checkpoint(t->run, &c, e));
    if (c.found) TRY(load_state(t, &c, e));
    if (!t->trainer && !c.found) TRY(session_host(t->o, true, NULL, t->s.actor.cancel, &t->s, e));
    TRY(run_truncate(t->run, t->step, e));
    CLEANUP_STR struct str path = STR_INIT;
    str_addf(&path, "%s/verdicts.jsonl", run_dir(t->run));
    TRY(journal_open(path.p, t->s.verify_identity, t->step, &t->s.judge, &t->journal, e));
    session_judging(&t->s, t->journal, t->s.actor.cancel);
    return c.found ? load_ahead(t, c.path, e) : ST_OK;
}

/* The ranks, and the trainer with them. Sampling is theirs, too. */
static enum status open_trainer(struct training *t, const char *resolved_yaml, struct err *e) {
    struct policy *p = &t->s.policy;
    TRY(follow_open(t->o->ranks, t->o->peer_timeout, resolved_yaml, p->be, &t->comm, e));
    enum status st = trainer_prepare(t->comm, p->model, t->o->lora_rank > 0, e);
    if (st == ST_OK) st = trainer_open(t->comm, p->model, ADAPTER_OWN, t->o->update.train_tokens, &t->trainer, e);
    TRY(comm_agree(t->comm, st, e));
    t->leads = true;
    t->sampler = (struct rank_sampler){.comm = t->comm,
                                       .engine = p->engine,
                                       .max_batch = engine_batch_on(t->o->device),
                                       .drawn = xcalloc((size_t)t->comm->size, sizeof *t->sampler.drawn),
                                       .busy_s = xcalloc((size_t)t->comm->size, sizeof *t->sampler.busy_s)};
    t->s.actor.policy = (struct actor_policy){rank_sample, &t->sampler};
    return ST_OK;
}

/* What decides the bits of samples beside their requests and the weights. Keys that say where and how quickly things
 * are done decide none. */
static uint64_t samples_identity(const struct training *t, const char *resolved_yaml) {
    static const char *const elsewhere[] = {"ranks:",
                                            "gpus:",
                                            "peer_timeout:",
                                            "threads:",
                                            "verify_",
                                            "kv_memory:",
                                            "activation_memory:",
                                            "log_path:",
                                            "max_steps:",
                                            "save_every:",
                                            "keep_checkpoints:",
                                            "resume_from_batch:",
                                            "download_checkpoints:"};
    CLEANUP_STR struct str s = STR_INIT;
    if (t->trainer)
        ranks_fingerprint(t->s.policy.be, &s);
    else
        str_adds(&s, hosted_address(t->o->sampler.base_url));
    for (const char *line = resolved_yaml; *line;) {
        const size_t n = strcspn(line, "\n") + (line[strcspn(line, "\n")] == '\n');
        bool counts = true;
        for (size_t i = 0; i < ARRAY_LEN(elsewhere); i++)
            counts &= strncmp(line, elsewhere[i], strlen(elsewhere[i])) != 0;
        if (counts) str_add(&s, line, n);
        line += n;
    }
    return hash_bytes(s.p, s.len, 0);
}

/* Samples are kept, and those that a killed run had drawn are taken, where they would come out the same again. */
static enum status open_samples(struct training *t, const char *resolved_yaml, struct err *e) {
    CLEANUP_STR struct str path = STR_INIT;
    if (t->o->numerics != NUMERICS_EXACT || t->finished) return ST_OK;
    str_addf(&path, "%s/samples.bin", run_dir(t->run));
    TRY(sample_journal_open(path.p, samples_identity(t, resolved_yaml), t->s.actor.policy, history_of(t), &t->samples,
                            e));
    t->s.actor.policy = (struct actor_policy){sample_journal_run, t->samples};
    return ST_OK;
}

/* A run that is done needs them no more. */
static void close_samples(struct training *t, bool done) {
    CLEANUP_STR struct str path = STR_INIT;
    struct err ignored;
    if (!t->samples) return;
    const int64_t n = sample_journal_replayed(t->samples);
    if (n > 0) log_info("%lld answers had been drawn before and were not drawn again", (long long)n);
    sample_journal_close(t->samples);
    str_addf(&path, "%s/samples.bin", run_dir(t->run));
    if (done && fs_remove(path.p, &ignored) != ST_OK) log_warn("%s", ignored.msg);
}

static enum status room_for_checkpoints(const struct training *t, struct err *e) {
    int n;
    const struct param *params = model_params(t->s.policy.model, &n);
    return checkpoint_room(run_dir(t->run), params, n, e);
}

enum status train_run(const struct train_options *o, const char *resolved_yaml, const volatile bool *cancel,
                      struct err *e) {
    struct training t = {.o = o, .baseline = (double)NAN};
    enum status st;
    TRY_GOTO(run_open(o->log_path, resolved_yaml, o->tensorboard_enabled, &t.run, e), out);
    TRY_GOTO(session_open_training(o, cancel, &t.s, e), out);
    TRY_GOTO(session_problems(o, &t.s, &t.train, &t.n_train, &t.test, &t.n_test, e), out);
    if (o->trainer == TRAINER_ENGINE) TRY_GOTO(open_trainer(&t, resolved_yaml, e), out);
    curriculum_init(&t.curriculum, o, t.train, t.n_train);
    TRY_GOTO(roles_open(&t.roles, o, e), out);
    t.steps =
        (t.n_train * o->dataset_builder.num_epochs + o->dataset_builder.batch_size - 1) / o->dataset_builder.batch_size;
    if (o->max_steps > 0) t.steps = o->max_steps;
    TRY_GOTO(resume(&t, e), out);
    if (t.trainer) TRY_GOTO(train_share_state(t.trainer, e), out);
    TRY_GOTO(open_samples(&t, resolved_yaml, e), out);
    if (t.step == o->start_batch) {
        run_text(t.run, t.step, "Configuration", resolved_yaml);
        run_charts(t.run, t.step);
    }
    if (t.trainer && !t.finished) TRY_GOTO(room_for_checkpoints(&t, e), out);
    log_info("%s: %d training problems, %d held out; %lld x %d answers a step, %lld steps", o->log_path, t.n_train,
             t.n_test, (long long)o->dataset_builder.batch_size, o->rollout.group_size, (long long)t.steps);
    st = !t.finished ? train_steps(&t, cancel, e) : t.downloaded ? ST_OK : download(&t, "final", e);
    if (st == ST_OK) missing_log(&t.missing);
    if (st == ST_OK) log_info("%s: done", o->log_path);
out:
    /* For who looks at the run afterwards: a process in the background has no one to tell. */
    if (st != ST_OK && t.run) log_file_line(st == ST_CANCELLED ? LOG_INFO : LOG_ERROR, e->msg);
    if (t.leads || st == ST_LOST) follow_dismiss(t.comm, st);
    close_samples(&t, st == ST_OK);
    pipeline_free(&t.ahead);
    roles_close(&t.roles);
    session_judging_close(&t.s);
    journal_close(t.journal);
    trainer_close(t.trainer);
    comm_close(t.comm);
    free(t.sampler.drawn);
    free(t.sampler.busy_s);
    arena_free(&t.datums);
    curriculum_free(&t.curriculum);
    missing_free(&t.missing);
    free(t.train);
    free(t.test);
    session_close(&t.s);
    run_close(t.run);
    return st;
}
