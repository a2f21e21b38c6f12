/* The whole loop, top to bottom: train_run opens everything, train_steps walks the steps, one_step is one step. */
#include "rl/loop.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/rng.h"
#include "rl/eval.h"
#include "rl/journal.h"
#include "rl/run.h"
#include "rl/session.h"
#include "rl/update.h"

struct trainer {
    const struct train_options *o;
    struct session s;
    struct run *run;
    struct journal *journal;
    struct adamw *opt;
    struct update_space space;
    const struct problem **train, **test;
    int n_train, n_test;
    int64_t step, steps, opt_step;
    double baseline; /* running mean of the rewards; NaN before the first batch */
    int64_t saved_step; /* of the last checkpoint; 0: none */
    bool finished;      /* nothing is left to do */
    double started_s;
    int64_t first_step;
};

/* The i-th problem of the endless sequence of shuffled epochs: a pure function of the seed, so a resumed run sees the
 * problems that the uninterrupted one would have seen. */
static void pick_problems(const struct trainer *t, int64_t step, const struct problem **out) {
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

/* Advantages of all samples of a batch; counts the groups that teach nothing. */
static int assign_advantages(struct trainer *t, struct group *groups, int n) {
    const struct train_options *o = t->o;
    const struct advantage_params p = {.kind = (enum advantage_kind)o->advantage,
                                       .negative_scale = o->negative_advantage_scale,
                                       .drop_constant = o->remove_constant_reward_groups,
                                       .keep = (int)o->keep_best,
                                       .threshold = o->keep_threshold,
                                       .temperature = o->reward_temperature,
                                       .baseline_decay = o->baseline_decay};
    const bool idle_tokens_count = o->kl_penalty_coef > 0 || o->entropy_coef > 0 || !o->remove_constant_reward_groups;
    int count = 0;
    for (int i = 0; i < n; i++) count += groups[i].n;
    struct advantage_sample *s = xcalloc((size_t)count, sizeof *s);
    for (int i = 0, k = 0; i < n; i++)
        for (int j = 0; j < groups[i].n; j++) {
            const struct episode *ep = &groups[i].ep[j];
            s[k++] = (struct advantage_sample){.group = i, .present = ep->present, .score = ep->reward.total};
        }
    const int constant = advantage_batch(&p, s, count, n, &t->baseline);
    for (int i = 0, k = 0; i < n; i++)
        for (int j = 0; j < groups[i].n; j++, k++) {
            groups[i].ep[j].advantage = s[k].advantage;
            groups[i].ep[j].kept = s[k].takes_part && idle_tokens_count;
        }
    free(s);
    return constant;
}

struct tally {
    int n, missing, format, compiled, correct, fast, cheats, truncated;
    double reward, reward_sq, log_speed, entropy;
    int timed;
    int64_t tokens;
};

static struct tally count(const struct group *groups, int n) {
    struct tally c = {0};
    for (int i = 0; i < n; i++)
        for (int j = 0; j < groups[i].n; j++) {
            const struct episode *ep = &groups[i].ep[j];
            c.tokens += ep->sample.n;
            c.truncated += ep->sample.stop == STOP_LENGTH;
            for (int k = 0; k < ep->sample.n; k++) c.entropy += ep->sample.entropy[k];
            if (!ep->present) {
                c.missing++;
                continue;
            }
            c.n++;
            c.format += ep->format_ok;
            c.compiled += outcome_stage(ep->verdict.outcome) >= STAGE_COMPILE;
            c.cheats += outcome_class(ep->verdict.outcome) == 'H';
            c.reward += ep->reward.total;
            c.reward_sq += ep->reward.total * ep->reward.total;
            if (ep->verdict.outcome != OUTCOME_CORRECT) continue;
            c.correct++;
            if (ep->verdict.speedup > 0) {
                c.timed++;
                c.fast += ep->verdict.speedup > 1;
                c.log_speed += log(ep->verdict.speedup);
            }
        }
    return c;
}

static enum status log_step(struct trainer *t, const struct tally *c, const struct update_stats *u, int constant,
                            const struct rollout_times *times, double train_s, double total_s, struct err *e) {
    const struct train_options *o = t->o;
    double n = c->n ? (double)c->n : (double)NAN, tok = u->loss.n ? (double)u->loss.n : (double)NAN,
           mean = c->reward / n;
    double speed = c->timed ? exp(c->log_speed / c->timed) : (double)NAN;
    const struct metric m[] = {
        {"reward/mean", mean},
        {"reward/std", sqrt(fmax(0, c->reward_sq / n - mean * mean))},
        {"kernel/format_rate", c->format / n},
        {"kernel/compile_rate", c->compiled / n},
        {"kernel/correct_rate", c->correct / n},
        {"kernel/fast_1_rate", c->fast / n},
        {"kernel/cheat_rate", c->cheats / n},
        {"kernel/geomean_speedup", speed},
        {"kernel/missing", c->missing},
        {"batch/samples", c->n + c->missing},
        {"batch/constant_groups", constant},
        {"batch/groups_trained", u->groups_trained},
        {"batch/truncated", c->truncated},
        {"policy/entropy", c->tokens ? c->entropy / (double)c->tokens : (double)NAN},
        {"policy/answer_tokens", (double)c->tokens / (double)i64_max(1, c->n + c->missing)},
        {"train/loss", u->loss.loss / tok},
        {"train/kl_sampler_trainer", u->kl_before},
        {"train/kl_k1", u->loss.k1 / tok},
        {"train/kl_k2", u->loss.k2 / tok},
        {"train/kl_k3", u->loss.k3 / tok},
        {"train/kl_reference", o->kl_penalty_coef > 0 && o->kl_penalty_in == KL_IN_LOSS ? u->loss.ref_kl / tok
                                                                                          : (double)NAN},
        {"train/ratio_mean", u->loss.ratio / tok},
        {"train/ratio_max", u->loss.ratio_max},
        {"train/clip_fraction", u->loss.clipped / tok},
        {"train/masked_fraction", u->loss.masked / tok},
        {"train/grad_norm", u->groups_trained ? u->grad_norm : (double)NAN},
        {"train/learning_rate", u->learning_rate},
        {"train/tokens", (double)u->loss.n},
        {"time/generate_s", times->generate_s},
        {"time/verify_s", times->verify_s},
        {"time/train_s", train_s},
        {"time/total_s", total_s},
        {"progress/fraction", (double)(t->step + 1) / (double)t->steps},
    };
    double elapsed = clock_now_s() - t->started_s;
    double left = elapsed / (double)(t->step + 1 - t->first_step) * (double)(t->steps - t->step - 1);
    log_info("step %lld/%lld  reward %.3f  correct %3.0f%%  faster %3.0f%%  speed-up %.2fx  entropy %.2f  %.1f s  "
             "(%.0f s left)",
             (long long)t->step + 1, (long long)t->steps, mean, 100.0 * c->correct / n, 100.0 * c->fast / n,
             c->timed ? speed : 0, c->tokens ? c->entropy / (double)c->tokens : 0, total_s, left);
    return run_metrics(t->run, t->step, m, ARRAY_LEN(m), e);
}

static enum status save(struct trainer *t, const char *name, struct err *e) {
    char step[32];
    snprintf(step, sizeof step, "%06lld", (long long)t->step);
    TRY(run_save_checkpoint(t->run, name ? name : step, t->step, t->opt_step, t->s.model, t->o->lora_rank > 0, t->opt,
                            t->s.tokenizer_dir, e));
    t->saved_step = t->step;
    return ST_OK;
}

/* An update failed. When it has changed nothing yet, the state before it is saved, so that no step is lost. */
static void keep_state(struct trainer *t, int64_t opt_step_before) {
    char where[400];
    struct err e;
    if (t->opt_step != opt_step_before || t->step <= t->saved_step) return;
    if (model_find_nonfinite(t->s.model, FIND_WEIGHTS, where, sizeof where)) return; /* nothing to go on from */
    if (save(t, NULL, &e) == ST_OK)
        log_info("the state before step %lld is saved", (long long)t->step + 1);
    else
        log_warn("the state before step %lld could not be saved: %s", (long long)t->step + 1, e.msg);
}

/* One step: prompt -> group of samples -> verdicts -> scores -> advantages -> gradient -> new weights. */
static enum status one_step(struct trainer *t, struct err *e) {
    const struct train_options *o = t->o;
    int n = (int)o->dataset_builder.batch_size;
    double t0 = clock_now_s();
    const struct problem **problems = xcalloc((size_t)n, sizeof *problems);
    struct group *groups = xcalloc((size_t)n, sizeof *groups);
    pick_problems(t, t->step, problems);
    struct rollout_params p = session_rollout_params(o);
    p.stream = (uint64_t)(t->step * n);
    struct rollout_times times = {0};
    struct update_stats u = {0};
    enum status st;
    journal_at(t->journal, t->step, false);
    TRY_GOTO(rollout_run(&t->s.actor, problems, n, &p, groups, &times, e), out);
    int constant = assign_advantages(t, groups, n);
    double t1 = clock_now_s();
    const int64_t opt_step = t->opt_step;
    struct train_options now = *o;
    now.progress = (double)t->step / (double)t->steps;
    st = update_policy(t->s.model, t->opt, t->s.reference, &now, &t->space, groups, n, &t->opt_step, &u, e);
    if (st != ST_OK) {
        keep_state(t, opt_step);
        goto out;
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < groups[i].n; j++)
            TRY_GOTO(run_trace(t->run, t->step, i, j, groups[i].problem, &groups[i].ep[j], e), out);
    struct tally c = count(groups, n);
    st = log_step(t, &c, &u, constant, &times, clock_now_s() - t1, clock_now_s() - t0, e);
out:
    groups_free(groups, n);
    free(groups);
    free(problems);
    return st;
}

static enum status evaluate(struct trainer *t, struct err *e) {
    const struct train_options *o = t->o;
    struct eval_result r;
    journal_at(t->journal, t->step, true);
    TRY(eval_run(&t->s.actor, t->test, t->n_test, (int)o->eval_samples, o->temperature, (int)o->max_tokens,
                 (uint64_t)o->seed, &r, e));
    const struct metric m[] = {
        {"eval/compile_rate", r.compiled.mean},
        {"eval/correct_rate", r.correct.mean},
        {"eval/fast_1_rate", r.fast.mean},
        {"eval/geomean_speedup", r.speedup.mean},
        {"eval/missing", r.missing},
    };
    log_info("eval on %d held-out problems: correct %.1f%%  faster %.1f%%  speed-up %.2fx", t->n_test,
             100 * r.correct.mean, 100 * r.fast.mean, isnan(r.speedup.mean) ? 0 : r.speedup.mean);
    eval_free(&r);
    return run_metrics(t->run, t->step, m, ARRAY_LEN(m), e);
}

/* Weights and optimizer stand at the border before t->step: nothing of what came before is lost. */
static enum status interrupted(struct trainer *t, struct err *e) {
    if (t->step > t->saved_step) TRY(save(t, NULL, e));
    return FAIL(e, ST_CANCELLED, "interrupted before step %lld of %lld; the same command goes on from there",
                (long long)t->step + 1, (long long)t->steps);
}

static bool eval_is_due(const struct trainer *t) {
    return t->o->eval_every > 0 && (t->step + 1) % t->o->eval_every == 0 && t->n_test > 0;
}

/* A run interrupted in the evaluation after its last step makes it now, with the same weights. */
static enum status make_up_evaluation(struct trainer *t, struct err *e) {
    bool done = true;
    enum status st = ST_OK;
    if (t->step == 0) return ST_OK;
    t->step--;
    if (eval_is_due(t)) st = run_is_evaluated(t->run, t->step, &done, e);
    if (st == ST_OK && !done) st = evaluate(t, e);
    t->step++;
    return st;
}

static enum status train_steps(struct trainer *t, const volatile bool *cancel, struct err *e) {
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
        if (eval_is_due(t)) st = evaluate(t, e);
        if (st != ST_OK && st != ST_CANCELLED) return st;
        t->step++;
        if (st == ST_CANCELLED) return interrupted(t, e);
        if (o->save_every > 0 && t->step % o->save_every == 0 && t->step < t->steps) TRY(save(t, NULL, e));
    }
    return save(t, "final", e);
}

/* Weights, optimizer and position of the last checkpoint, when there is one. What was written about later steps is
 * dropped, but for their verdicts: those steps are made again with the same ones. */
static enum status resume(struct trainer *t, struct err *e) {
    struct run_checkpoint c;
    TRY(run_last_checkpoint(t->run, &c, e));
    if (c.found) {
        TRY(run_load_checkpoint(&c, t->s.model, t->o->lora_rank > 0, t->opt, &t->opt_step, e));
        t->step = t->saved_step = c.next_step;
        t->finished = t->step >= t->steps && str_has_suffix(c.path, "/final");
        log_info("resuming %s from step %lld", run_dir(t->run), (long long)t->step);
    }
    TRY(run_truncate(t->run, t->step, e));
    CLEANUP_STR struct str path = STR_INIT;
    str_addf(&path, "%s/verdicts.jsonl", run_dir(t->run));
    TRY(journal_open(path.p, t->s.verify_settings, t->step, t->s.verifier, &t->journal, e));
    t->s.actor.journal = t->journal;
    return ST_OK;
}

enum status train_run(const struct train_options *o, const char *resolved_yaml, const volatile bool *cancel,
                      struct err *e) {
    struct trainer t = {.o = o, .baseline = (double)NAN};
    enum status st;
    TRY_GOTO(run_open(o->log_path, resolved_yaml, o->tensorboard_enabled, &t.run, e), out);
    TRY_GOTO(session_open(o, cancel, &t.s, e), out);
    TRY_GOTO(session_problems(o, &t.s, &t.train, &t.n_train, &t.test, &t.n_test, e), out);
    TRY_GOTO(model_train_prepare(t.s.model, o->lora_rank > 0 ? TRAIN_LORA : TRAIN_FULL, e), out);
    int n_params;
    const struct param *params = model_params(t.s.model, &n_params);
    TRY_GOTO(adamw_create(t.s.be, params, n_params, &t.opt, e), out);
    t.steps =
        (t.n_train * o->dataset_builder.num_epochs + o->dataset_builder.batch_size - 1) / o->dataset_builder.batch_size;
    if (o->max_steps > 0) t.steps = o->max_steps;
    TRY_GOTO(resume(&t, e), out);
    log_info("%s: %d training problems, %d held out; %lld x %lld answers a step, %lld steps", o->log_path, t.n_train,
             t.n_test, (long long)o->dataset_builder.batch_size, (long long)o->dataset_builder.group_size,
             (long long)t.steps);
    st = t.finished ? ST_OK : train_steps(&t, cancel, e);
    if (st == ST_OK) log_info("%s: done", o->log_path);
out:
    journal_close(t.journal);
    adamw_free(t.opt);
    update_space_free(&t.space);
    free(t.train);
    free(t.test);
    session_close(&t.s);
    run_close(t.run);
    return st;
}
