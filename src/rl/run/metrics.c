#include "rl/run/metrics.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

enum { LEVELS = 8 };

void metrics_add(struct metrics *l, double value, const char *name, ...) {
    char text[96];
    va_list ap;
    va_start(ap, name);
    vsnprintf(text, sizeof text, name, ap);
    va_end(ap);
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 128;
        l->m = xrealloc(l->m, (size_t)l->cap * sizeof *l->m);
    }
    l->m[l->n++] = (struct metric){xstrdup(text), value};
}

void metrics_free(struct metrics *l) {
    for (int i = 0; i < l->n; i++) free((void *)(uintptr_t)l->m[i].name);
    free(l->m);
    *l = (struct metrics){0};
}

/* ---- counting -----------------------------------------------------------------------------------------------------*/

struct spread { /* of a list of numbers; NaN where it is empty */
    int n;
    double sum, sq, low, high;
};

static void spread_add(struct spread *s, double x) {
    s->low = s->n ? fmin(s->low, x) : x;
    s->high = s->n ? fmax(s->high, x) : x;
    s->sum += x;
    s->sq += x * x;
    s->n++;
}
static double or_nan(int n, double x) { return n ? x : (double)NAN; }
static double mean_of(const struct spread *s) { return s->sum / or_nan(s->n, s->n); }
static double std_of(const struct spread *s) {
    return sqrt(fmax(0, s->sq / or_nan(s->n, s->n) - mean_of(s) * mean_of(s)));
}
static double low_of(const struct spread *s) { return or_nan(s->n, s->low); }
static double high_of(const struct spread *s) { return or_nan(s->n, s->high); }

/* Answers: all turns, one turn's, or one level's. */
struct tally {
    int n, missing, format, compiled, correct, fast, cheats, truncated, timed, excessive, cached, thought;
    double log_speed, speed, entropy;
    int64_t tokens;
    int outcome[OUTCOME_INFRASTRUCTURE + 1], stop[STOP_CANCELLED + 1];
    struct spread reward, advantage, length, turn_time;
    struct spread part[8]; /* format, compile, correct, speed, think, length, overlong */
};

static void count(struct tally *c, const struct train_options *o, const struct episode *ep) {
    const struct verdict *v = &ep->verdict;
    c->tokens += ep->sample.n;
    c->truncated += ep->sample.stop == STOP_LENGTH;
    c->stop[ep->sample.stop]++;
    c->outcome[v->outcome]++;
    spread_add(&c->length, ep->sample.n);
    for (int k = 0; k < ep->sample.n; k++) c->entropy += ep->sample.entropy ? ep->sample.entropy[k] : 0;
    if (!ep->present) {
        c->missing++;
        return;
    }
    const double parts[] = {ep->reward.format, ep->reward.compile, ep->reward.correct, ep->reward.speed,
                            ep->reward.think,  ep->reward.length,  ep->reward.overlong};
    for (size_t k = 0; k < ARRAY_LEN(parts); k++) spread_add(&c->part[k], parts[k]);
    c->n++;
    c->format += ep->format_ok;
    c->thought += ep->thought_chars > 0;
    c->compiled += outcome_stage(v->outcome) >= STAGE_COMPILE;
    c->cheats += outcome_class(v->outcome) == 'H';
    c->cached += v->cached;
    spread_add(&c->reward, ep->reward.total);
    spread_add(&c->advantage, ep->advantage);
    spread_add(&c->turn_time, v->compile_s + v->run_s + v->time_s);
    if (v->outcome != OUTCOME_CORRECT) return;
    c->correct++;
    if (v->speedup <= 0) return;
    c->timed++;
    c->fast += v->speedup > 1;
    c->excessive += o->reward.check_excessive && v->speedup > o->reward.excessive;
    c->log_speed += log(v->speedup);
    c->speed += v->speedup;
}

static double share(const struct tally *c, int n) { return n / or_nan(c->n, c->n); }

/* ---- parts of the line --------------------------------------------------------------------------------------------*/

static void add_spread(struct metrics *l, const char *name, const struct spread *s) {
    metrics_add(l, mean_of(s), "%s/mean", name);
    metrics_add(l, std_of(s), "%s/std", name);
    metrics_add(l, low_of(s), "%s/min", name);
    metrics_add(l, high_of(s), "%s/max", name);
}

static void add_kernel(struct metrics *l, const struct tally *c) {
    static const char *const parts[] = {"format", "compile", "correct", "speed", "think", "length", "overlong"};
    add_spread(l, "reward", &c->reward);
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        metrics_add(l, mean_of(&c->part[i]), "reward_components/%s", parts[i]);
    metrics_add(l, share(c, c->format), "kernel/format_rate");
    metrics_add(l, share(c, c->compiled), "kernel/compile_rate");
    metrics_add(l, share(c, c->correct), "kernel/correct_rate");
    metrics_add(l, share(c, c->fast), "kernel/fast_1_rate");
    metrics_add(l, share(c, c->cheats), "kernel/cheat_rate");
    metrics_add(l, share(c, c->excessive), "kernel/excessive_speedup_rate");
    metrics_add(l, share(c, c->thought), "kernel/thought_rate");
    metrics_add(l, exp(c->log_speed / or_nan(c->timed, c->timed)), "kernel/geomean_speedup");
    metrics_add(l, c->speed / or_nan(c->timed, c->timed), "kernel/mean_speedup");
    metrics_add(l, c->missing, "kernel/missing");
    for (int i = 0; i <= OUTCOME_INFRASTRUCTURE; i++)
        if (c->outcome[i]) metrics_add(l, c->outcome[i], "outcome/%s", outcome_name((enum outcome)i));
    add_spread(l, "advantage", &c->advantage);
    metrics_add(l, c->entropy / or_nan(c->tokens > 0, (double)c->tokens), "policy/entropy");
    metrics_add(l, mean_of(&c->length), "policy/answer_tokens");
    metrics_add(l, high_of(&c->length), "policy/answer_tokens_max");
    metrics_add(l, share(c, c->truncated), "policy/truncated_rate");
    for (int i = 0; i <= STOP_CANCELLED; i++)
        if (c->stop[i]) metrics_add(l, c->stop[i], "stop/%s", stop_reason_name((enum stop_reason)i));
}

/* Tasks by how many of their answers work: none, some, all. */
static void add_groups(struct metrics *l, const struct rollout *r, int constant, const struct update_stats *u) {
    int *n = xcalloc((size_t)r->n_tasks + 1, sizeof *n), *correct = xcalloc((size_t)r->n_tasks + 1, sizeof *correct);
    int turns = 0, all = 0, none = 0, mixed = 0;
    for (int i = 0; i < r->n; i++)
        for (int j = 0; j < r->group[i].n; j++) {
            const struct episode *ep = &r->group[i].ep[j];
            turns++;
            if (!ep->present) continue;
            n[r->group[i].task]++;
            correct[r->group[i].task] += ep->verdict.outcome == OUTCOME_CORRECT;
        }
    for (int t = 0; t < r->n_tasks; t++) {
        if (!n[t]) continue;
        all += correct[t] == n[t];
        none += correct[t] == 0;
        mixed += correct[t] > 0 && correct[t] < n[t];
    }
    const double tasks = or_nan(all + none + mixed, all + none + mixed);
    metrics_add(l, r->n_tasks, "batch/num_groups");
    metrics_add(l, r->n_trajectories, "batch/num_trajectories");
    metrics_add(l, turns, "batch/total_steps");
    metrics_add(l, turns, "batch/samples");
    metrics_add(l, constant, "batch/constant_groups");
    metrics_add(l, u->groups_trained, "batch/groups_trained");
    metrics_add(l, u->optimizer_steps, "batch/optimizer_steps");
    metrics_add(l, all / tasks, "batch/all_pass_share");
    metrics_add(l, none / tasks, "batch/all_fail_share");
    metrics_add(l, mixed / tasks, "batch/mixed_share");
    free(n);
    free(correct);
}

/* Trajectories: a run of single turns has one of each. avg_turns is turns to the first correct answer. */
static void add_multiturn(struct metrics *l, const struct train_options *o, const struct rollout *r,
                          const struct tally *all) {
    struct tally turn[TURNS_MAX] = {0};
    struct spread solved_at = {0}, best = {0};
    int solved = 0, judged = 0, by[TURNS_MAX] = {0}, most = 0, last = 0;
    for (int k = 0; k < r->n_trajectories; k++) {
        const struct trajectory *t = &r->trajectory[k];
        int first = -1, correct = 0;
        double speed = 0;
        for (int i = 0; i < t->n_turns; i++) {
            const struct episode *ep = t->turn[i];
            count(&turn[i], o, ep);
            if (i > last) last = i;
            if (ep->verdict.outcome != OUTCOME_CORRECT) continue;
            if (first < 0) first = i;
            correct++;
            speed = fmax(speed, ep->verdict.speedup);
        }
        if (!t->turn[0]->present) continue;
        judged++;
        if (correct > most) most = correct;
        if (first < 0) continue;
        solved++;
        spread_add(&solved_at, first + 1);
        if (speed > 0) spread_add(&best, speed);
        for (int i = first; i < TURNS_MAX; i++) by[i]++;
    }
    metrics_add(l, share(all, all->format), "multiturn/format_rate");
    metrics_add(l, share(all, all->compiled), "multiturn/compile_rate");
    metrics_add(l, share(all, all->correct), "multiturn/correct_rate");
    metrics_add(l, mean_of(&all->reward), "multiturn/step_score_mean");
    metrics_add(l, std_of(&all->reward), "multiturn/step_score_std");
    metrics_add(l, most, "multiturn/max_correct_per_trajectory");
    metrics_add(l, solved / or_nan(judged, judged), "multiturn/success_rate");
    metrics_add(l, mean_of(&solved_at), "multiturn/avg_turns");
    metrics_add(l, mean_of(&best), "multiturn/best_speedup_mean");
    metrics_add(l, high_of(&best), "multiturn/best_speedup_max");
    for (int i = 0; i <= last; i++) {
        metrics_add(l, share(&turn[i], turn[i].compiled), "multiturn/turn_%d/compile_rate", i);
        metrics_add(l, share(&turn[i], turn[i].correct), "multiturn/turn_%d/correct_rate", i);
        metrics_add(l, mean_of(&turn[i].reward), "multiturn/turn_%d/step_score_mean", i);
        metrics_add(l, turn[i].speed / or_nan(turn[i].timed, turn[i].timed), "multiturn/turn_%d/speedup_mean", i);
        metrics_add(l, by[i] / or_nan(judged, judged), "multiturn/turn_%d/solved_rate", i);
    }
}

static void add_levels(struct metrics *l, const struct train_options *o, const struct rollout *r) {
    struct tally level[LEVELS] = {0};
    for (int i = 0; i < r->n; i++)
        for (int j = 0; j < r->group[i].n; j++)
            if (r->group[i].problem->level >= 0 && r->group[i].problem->level < LEVELS)
                count(&level[r->group[i].problem->level], o, &r->group[i].ep[j]);
    for (int i = 0; i < LEVELS; i++) {
        if (level[i].n + level[i].missing == 0) continue;
        metrics_add(l, mean_of(&level[i].reward), "per_level/level%d/reward_mean", i);
        metrics_add(l, share(&level[i], level[i].correct), "per_level/level%d/correct_rate", i);
        metrics_add(l, share(&level[i], level[i].compiled), "per_level/level%d/compile_rate", i);
    }
}

static void add_update(struct metrics *l, const struct train_options *o, const struct update_stats *u) {
    const double tok = u->loss.n ? (double)u->loss.n : (double)NAN;
    const bool kl = o->update.loss.kl_coef > 0 && o->update.kl_penalty_in == KL_IN_LOSS;
    metrics_add(l, u->loss.loss / tok, "train/loss");
    metrics_add(l, u->kl_before, "train/kl_sampler_trainer");
    metrics_add(l, u->loss.k1 / tok, "train/kl_k1");
    metrics_add(l, u->loss.k2 / tok, "train/kl_k2");
    metrics_add(l, u->loss.k3 / tok, "train/kl_k3");
    metrics_add(l, kl ? u->loss.ref_kl / tok : (double)NAN, "train/kl_reference");
    metrics_add(l, u->loss.ratio / tok, "train/ratio_mean");
    metrics_add(l, u->loss.n ? u->loss.ratio_max : (double)NAN, "train/ratio_max");
    metrics_add(l, u->loss.clipped / tok, "train/clip_fraction");
    metrics_add(l, u->loss.masked / tok, "train/masked_fraction");
    metrics_add(l, u->entropy / tok, "train/entropy");
    if (!isnan(u->expert_shift)) metrics_add(l, u->expert_shift, "train/expert_shift");
    metrics_add(l, u->groups_trained ? u->grad_norm : (double)NAN, "train/grad_norm");
    metrics_add(l, u->groups_trained ? u->learning_rate : (double)NAN, "train/learning_rate");
    metrics_add(l, u->groups_trained ? u->learning_rate : (double)NAN, "optim/lr");
    metrics_add(l, (double)u->loss.n, "train/tokens");
}

/* All names here begin with time/, speed/ or load/: they are what a repetition of the run need not repeat. */
static void add_times(struct metrics *l, const struct tally *c, const struct update_stats *u,
                      const struct step_times *t) {
    metrics_add(l, t->rollout.generate_s, "time/generate_s");
    metrics_add(l, t->rollout.verify_s, "time/verify_s");
    metrics_add(l, t->train_s, "time/train_s");
    metrics_add(l, t->total_s, "time/total_s");
    metrics_add(l, t->rollout.generate_s + t->rollout.verify_s, "time/rollout");
    metrics_add(l, t->assemble_s, "time/assemble_data");
    metrics_add(l, t->assemble_s, "time/discount_returns");
    metrics_add(l, t->train_s, "time/train");
    metrics_add(l, t->save_s, "time/save_checkpoint");
    metrics_add(l, t->total_s, "time/total");
    metrics_add(l, t->judging.busy_s, "time/verifier_busy_s");
    metrics_add(l, t->quiet_s, "time/model_stood_aside_s");
    metrics_add(l, mean_of(&c->turn_time), "time/eval_mean");
    metrics_add(l, high_of(&c->turn_time), "time/eval_max");
    metrics_add(l, t->total_s / 3600, "time/device_hours");
    metrics_add(l, (double)t->rollout.tokens / fmax(1e-9, t->rollout.generate_s), "time/sampled_tokens_per_s");
    metrics_add(l, t->train_s > 0 ? (double)u->rows / t->train_s : (double)NAN, "time/trained_tokens_per_s");
    metrics_add(l, t->judging.longest, "time/verifier_queue_max");
    metrics_add(l, t->judging.calls, "time/verifier_calls");
    if (t->peak_bytes > 0) metrics_add(l, (double)t->peak_bytes, "load/device_peak_bytes");
    if (t->planned_bytes > 0) metrics_add(l, (double)t->planned_bytes, "load/device_planned_bytes");
}

/* Of hosts that judge: names begin with verify/, and a repetition of the run need not repeat these either. */
static void add_pool(struct metrics *l, const struct step_times *t) {
    const struct pool_stats *p = &t->pool;
    const struct {
        const char *name;
        double value;
    } all[] = {{"queue", p->queue},
               {"in_flight", p->in_flight},
               {"slots", p->slots},
               {"hosts", p->hosts},
               {"verdicts", (double)p->verdicts},
               {"redeliveries", (double)p->redeliveries},
               {"duplicates", (double)p->duplicates},
               {"lost", (double)p->lost},
               {"refused", (double)p->refused},
               {"hedged", (double)p->hedged},
               {"missing", (double)p->missing},
               {"cache_hits", (double)p->cache_hits},
               {"audited", (double)p->audited},
               {"disagreements", (double)p->disagreements}};
    if (!t->has_pool) return;
    for (size_t i = 0; i < ARRAY_LEN(all); i++) metrics_add(l, all[i].value, "verify/%s", all[i].name);
    double busy = 0, slots = 0;
    for (int i = 0; i < p->n_hosts; i++) {
        const struct pool_host_stats *h = &p->host[i];
        metrics_add(l, h->busy, "verify/busy/%s", h->name);
        if (isnan(h->busy)) continue;
        busy += h->busy * h->slots;
        slots += h->slots;
    }
    metrics_add(l, slots > 0 ? busy / slots : (double)NAN, "verify/busy_share");
}

static struct tally count_all(const struct train_options *o, const struct rollout *r) {
    struct tally c = {0};
    for (int i = 0; i < r->n; i++)
        for (int j = 0; j < r->group[i].n; j++) count(&c, o, &r->group[i].ep[j]);
    return c;
}

void metrics_of_step(struct metrics *l, const struct train_options *o, int64_t step, int64_t steps,
                     const struct rollout *r, int constant, const struct update_stats *u, const struct step_times *t) {
    const struct tally c = count_all(o, r);
    add_kernel(l, &c);
    add_groups(l, r, constant, u);
    metrics_add(l, c.truncated, "batch/truncated");
    metrics_add(l, share(&c, c.cached), "batch/cache_hit_rate");
    add_multiturn(l, o, r, &c);
    if (o->tensorboard_log_per_level) add_levels(l, o, r);
    metrics_add(l, (double)t->staleness, "train/staleness");
    add_update(l, o, u);
    metrics_add(l, o->mode == MODE_MULTI_TURN, "mode");
    metrics_add(l, (double)step, "progress/batch");
    metrics_add(l, (double)(step + 1) / (double)steps, "progress/fraction");
    metrics_add(l, (double)(step + 1) / (double)steps, "progress/done_frac");
    add_times(l, &c, u, t);
    add_pool(l, t);
}

void metrics_log(const struct train_options *o, int64_t step, int64_t steps, const struct rollout *r,
                 const struct step_times *t, double left_s) {
    const struct tally c = count_all(o, r);
    const double n = or_nan(c.n, c.n);
    log_info("step %lld/%lld  reward %.3f  correct %3.0f%%  faster %3.0f%%  speed-up %.2fx  entropy %.2f  %.1f s: "
             "sampling %.1f, verdicts %.1f, training %.1f  (%.0f s left)",
             (long long)step + 1, (long long)steps, mean_of(&c.reward), 100.0 * c.correct / n, 100.0 * c.fast / n,
             c.timed ? exp(c.log_speed / c.timed) : 0, c.tokens ? c.entropy / (double)c.tokens : 0, t->total_s,
             t->rollout.generate_s, t->rollout.verify_s, t->train_s, left_s);
    if (o->mode != MODE_MULTI_TURN) return;
    int solved = 0;
    double turns = 0;
    for (int k = 0; k < r->n_trajectories; k++)
        for (int i = 0; i < r->trajectory[k].n_turns; i++)
            if (r->trajectory[k].turn[i]->verdict.outcome == OUTCOME_CORRECT) {
                solved++;
                turns += i + 1;
                break;
            }
    log_info("    %d of %d trajectories solved, after %.2f turns", solved, r->n_trajectories,
             solved ? turns / solved : 0);
}

/* Mean over the problems of the unbiased estimate of passing with one of k answers (2107.03374); NaN when a problem has
 * fewer than k. */
static double pass_at(const struct eval_result *r, int level, int k) {
    double sum = 0;
    int count = 0;
    for (int i = 0; i < r->n_problems; i++) {
        const struct eval_problem *p = &r->items[i];
        if (p->n == 0 || (level >= 0 && p->problem->level != level)) continue;
        if (p->n < k) return (double)NAN;
        const int correct = (int)lround(p->correct * p->n);
        double none = 1;
        for (int j = p->n - correct + 1; j <= p->n; j++) none *= 1 - (double)k / j;
        sum += p->n - correct < k ? 1 : 1 - none;
        count++;
    }
    return sum / or_nan(count, count);
}

/* level -1: all. fast_p: problems with a correct answer at least p times as fast as eager. */
static void add_eval(struct metrics *l, const char *prefix, const struct eval_result *r, int level) {
    struct spread compiled = {0}, correct = {0}, fast1 = {0}, fast2 = {0}, best = {0}, log_best = {0};
    for (int i = 0; i < r->n_problems; i++) {
        const struct eval_problem *p = &r->items[i];
        if (p->n == 0 || (level >= 0 && p->problem->level != level)) continue;
        spread_add(&compiled, p->compiled);
        spread_add(&correct, p->correct);
        spread_add(&fast1, p->best_speedup >= 1);
        spread_add(&fast2, p->best_speedup >= 2);
        if (p->best_speedup <= 0) continue;
        spread_add(&best, p->best_speedup);
        spread_add(&log_best, log(p->best_speedup));
    }
    metrics_add(l, pass_at(r, level, 1), "%s/pass@1", prefix);
    metrics_add(l, pass_at(r, level, 5), "%s/pass@5", prefix);
    metrics_add(l, mean_of(&compiled), "%s/compile_rate", prefix);
    metrics_add(l, mean_of(&correct), "%s/correct_rate", prefix);
    metrics_add(l, mean_of(&fast1), "%s/fast_1_rate", prefix);
    metrics_add(l, mean_of(&fast2), "%s/fast_2_rate", prefix);
    metrics_add(l, mean_of(&best), "%s/mean_speedup", prefix);
    metrics_add(l, exp(mean_of(&log_best)), "%s/geometric_mean_speedup", prefix);
}

void metrics_of_eval(struct metrics *l, const struct eval_result *r) {
    add_eval(l, "eval", r, -1);
    metrics_add(l, r->missing, "eval/missing");
    int seen[LEVELS] = {0}, levels = 0;
    for (int i = 0; i < r->n_problems; i++) {
        const int level = r->items[i].problem ? r->items[i].problem->level : -1;
        if (level >= 0 && level < LEVELS && !seen[level]++) levels++;
    }
    for (int level = 0; levels > 1 && level < LEVELS; level++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "eval/level%d", level);
        if (seen[level]) add_eval(l, prefix, r, level);
    }
}

enum status metrics_histograms(struct run_dir *run, const struct train_options *o, int64_t step,
                               const struct rollout *r, struct err *e) {
    int total = 0, n = 0, timed = 0, teaching = 0, format = 0, compiled = 0, correct = 0;
    for (int i = 0; i < r->n; i++) total += r->group[i].n;
    double *rewards = xmalloc((size_t)(total + 1) * sizeof *rewards),
           *speeds = xmalloc((size_t)(total + 1) * sizeof *speeds),
           *advantages = xmalloc((size_t)(total + 1) * sizeof *advantages);
    for (int i = 0; i < r->n; i++)
        for (int j = 0; j < r->group[i].n; j++) {
            const struct episode *ep = &r->group[i].ep[j];
            if (!ep->present) continue;
            rewards[n++] = ep->reward.total;
            advantages[teaching++] = ep->advantage;
            if (ep->verdict.speedup > 0) speeds[timed++] = ep->verdict.speedup;
            format += ep->format_ok;
            compiled += outcome_stage(ep->verdict.outcome) >= STAGE_COMPILE;
            correct += ep->verdict.outcome == OUTCOME_CORRECT;
        }
    run_histogram(run, step, "Distributions/Advantages", advantages, (size_t)teaching);
    if (step % o->tensorboard_log_histograms_every == 0) {
        run_histogram(run, step, "Distributions/Rewards", rewards, (size_t)n);
        run_histogram(run, step, "Distributions/Speedups", speeds, (size_t)timed);
        run_scalar(run, step, "Counts/format_ok", format);
        run_scalar(run, step, "Counts/compiled", compiled);
        run_scalar(run, step, "Counts/correct", correct);
    }
    free(rewards);
    free(speeds);
    free(advantages);
    return run_flush(run, e);
}
