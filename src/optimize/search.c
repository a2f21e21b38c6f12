/* The whole search: opens everything, walks the waves. One wave is sampled (wave.c), judged and raced (verdicts.c),
 * learned from (learn.c) and written down (record.c), in this order. */
#include "optimize/search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "optimize/budget.h"
#include "optimize/internal.h"
#include "rl/rollout/journal.h"

/* ---- opening ------------------------------------------------------------------------------------------------------*/

/* The problems themselves: who fails has no answer, and nobody works on it. One alone is the user's, and an error. */
static enum status check_problems(struct answer_search *s, struct err *e) {
    if (s->session.actor.backend->is_module) return ST_OK; /* they are known when the first answers are judged */
    for (int i = 0; i < s->tasks->n; i++)
        for (int k = 0; k < s->tasks->items[i].n_shapes; k++) {
            const struct spec *spec;
            struct err why = {0};
            const enum status st = verifier_spec(s->session.verifier, &s->tasks->items[i].shape[k], &spec, &why);
            if (st == ST_OK) continue;
            *e = why;
            if ((st != ST_INVALID && st != ST_PARSE) || s->tasks->n == 1) return st;
            log_warn("%s", why.msg);
            task_trouble(s->tasks, i, why.msg);
            break;
        }
    return ST_OK;
}

/* What bounds the problems, where prompts are to say so, and for the reports of a few problems: it takes seconds for
 * each. A problem that it cannot be found for has a prompt and a report without. */
enum { FEW_PROBLEMS = 4 };
static void find_limits(struct answer_search *s) {
    char hardware[160], device[40];
    search_hardware(s, hardware, sizeof hardware, device, sizeof device);
    for (int i = 0; i < s->tasks->n && (s->full_prompts || s->tasks->n <= FEW_PROBLEMS); i++) {
        struct search_task *t = &s->tasks->items[i];
        struct err why;
        if (t->trouble) continue;
        if (limits_find(t->shape[0].code, device, &t->limits, &why) != ST_OK)
            log_warn("%s: nothing will say what bounds its time: %s", t->key, why.msg);
    }
}

static enum status open_records(struct answer_search *s, struct err *e) {
    CLEANUP_FREE char *journal = fs_join(s->dir, "verdicts.jsonl");
    int learned = INT32_MAX;
    if (s->o->learn) TRY(learner_open(s, &s->learner, &learned, e));
    TRY(record_open(s, learned, e));
    if (s->state.waves < learned && s->o->learn)
        return FAIL(e, ST_INVALID, "%s/policy has learned from %d waves, %d are on record; remove %s to begin again",
                    s->dir, learned, s->state.waves, s->dir);
    return journal_open(journal, s->session.verify_identity, s->state.waves, &s->session.judge, &s->journal, e);
}

static bool begins_with_adapter(const struct optimize_options *o) {
    CLEANUP_STR struct str path = STR_INIT;
    if (!o->train.load_checkpoint_path || !*o->train.load_checkpoint_path) return false;
    str_addf(&path, "%s/adapter_config.json", o->train.load_checkpoint_path);
    return fs_is_file(path.p);
}

enum status search_open(const struct optimize_options *o, struct tasks *t, const char *dir, const volatile bool *cancel,
                        struct answer_search **out, struct err *e) {
    CLEANUP_FREE char *replies = fs_join(dir, "replies.jsonl");
    struct answer_search *s = xcalloc(1, sizeof *s);
    enum status st;
    *s = (struct answer_search){
        .o = o, .train = o->train, .search = o->search, .tasks = t, .dir = dir, .cancel = cancel, .stop = cancel};
    s->since_s = clock_now_s();
    s->train.overlap = OVERLAP_OFF; /* a wave is sampled, then judged */
    s->train.sampler.replies = replies;
    if (!o->learn) { /* a new adapter would change nothing and cost time */
        s->train.lora_rank = begins_with_adapter(o);
        s->train.update.loss.kl_coef = 0;
    }
    for (int i = 0; i < t->n; i++) t->items[i].found.novelty = o->search.novelty;
    st = (o->learn ? session_open_training : session_open)(&s->train, cancel, &s->session, e);
    s->train.sampler.replies = NULL;
    if (st == ST_OK) session_judging_close(&s->session); /* waves are judged by themselves */
    s->full_prompts = o->search.style == STYLE_FULL || (o->search.style == STYLE_AUTO && s->session.texts);
    const bool raicl = o->train.dataset_builder.prompt_option == PROMPT_RAICL;
    if (s->search.refine == TOGGLE_AUTO) s->search.refine = s->full_prompts ? TOGGLE_ON : TOGGLE_OFF;
    if (s->search.retrieval == TOGGLE_AUTO) s->search.retrieval = s->full_prompts || raicl ? TOGGLE_ON : TOGGLE_OFF;
    if (st == ST_OK) st = check_problems(s, e);
    if (st == ST_OK) find_limits(s);
    if (st == ST_OK) st = open_records(s, e);
    if (st == ST_OK)
        *out = s;
    else
        search_close(s);
    return st;
}

void search_close(struct answer_search *s) {
    if (!s) return;
    learner_close(s->learner);
    journal_close(s->journal);
    jsonl_append_close(s->candidates);
    jsonl_append_close(s->waves);
    session_close(&s->session);
    free(s);
}

struct search_state search_state(const struct answer_search *s) {
    struct search_state x = s->state;
    if (s->session.texts) x.usage = texts_usage(s->session.texts);
    return x;
}

void search_hardware(const struct answer_search *s, char *hardware, size_t hardware_size, char *device,
                     size_t device_size) {
    const struct judge *j = &s->session.judge;
    snprintf(hardware, hardware_size, "unknown");
    snprintf(device, device_size, "%s", backend_info(s->train.verify.backend)->on_cpu ? "cpu" : "cuda:0");
    if (j->hardware) j->hardware(j->ctx, hardware, hardware_size, device, device_size);
}

/* ---- waves --------------------------------------------------------------------------------------------------------*/

static void say_wave(const struct answer_search *s, const struct wave *w) {
    CLEANUP_STR struct str line = STR_INIT;
    const struct search_state *x = &s->state;
    str_addf(&line, "wave %d: %lld verdicts of %lld answers, %.0f s", x->waves, (long long)x->spent,
             (long long)x->sampled, x->elapsed_s);
    for (int i = 0; i < w->n_shares; i++) {
        const struct search_task *t = &s->tasks->items[w->share[i].task];
        const int best = population_best(&t->found);
        str_addf(&line, "%s%s ", i ? ", " : "; ", t->key);
        if (best < 0)
            str_adds(&line, "not solved");
        else if (t->found.c[best].estimate.n == 0)
            str_adds(&line, "solved");
        else
            str_addf(&line, "%.2fx", candidate_speed(&t->found.c[best]));
        if (best >= 0 && w->before[i] < candidate_speed(&t->found.c[best])) str_addc(&line, '*');
    }
    log_info("%s", line.p);
}

static enum status one_wave(struct answer_search *s, struct wave *w, struct err *e) {
    CLEANUP_STR struct str races = STR_INIT, lines = STR_INIT;
    CLEANUP_FREE int *first = xcalloc((size_t)s->tasks->n + 1, sizeof *first);
    for (int i = 0; i < s->tasks->n; i++) first[i] = s->tasks->items[i].found.n;
    TRY(wave_sample(s, w, e));
    TRY(wave_judge(s, w, e));
    if (s->learner) TRY(learner_wave(s, s->learner, w, e));
    wave_take(s, w);
    const enum status raced = wave_race(s, w, &races, e);
    /* A race that the time has cut off is over; one that the user has, goes on with the wave. */
    if (raced != ST_CANCELLED || (s->cancel && *s->cancel)) TRY(raced);
    const double at_s = s->state.elapsed_s + clock_now_s() - s->since_s;
    for (int i = 0; i < s->tasks->n; i++)
        for (int k = first[i]; k < s->tasks->items[i].found.n; k++) {
            s->tasks->items[i].found.c[k].at_s = at_s;
            candidate_put(&s->tasks->items[i].found.c[k], s->tasks->items[i].key, &lines);
        }
    str_add(&lines, str_c(&races), races.len);
    TRY(record_wave(s, &lines, e));
    if (s->learner) TRY(learner_save(s, s->learner, e));
    say_wave(s, w);
    return ST_OK;
}

static enum status waves(struct answer_search *s, struct err *e) {
    for (;;) {
        struct wave w = {0};
        const struct search_state *x = &s->state;
        const struct share_state have = {.spent = x->spent, .sampled = x->sampled, .elapsed_s = x->elapsed_s};
        if (s->stop && *s->stop) return FAIL(e, ST_CANCELLED, "interrupted");
        w.n_shares = share_wave(s->o, s->tasks, &have, w.share);
        if (w.n_shares == 0) return ST_OK;
        const enum status st = one_wave(s, &w, e);
        wave_free(&w);
        TRY(st);
    }
}

enum status search_run(struct answer_search *s, struct err *e) {
    struct time_limit *d = NULL;
    if (s->o->budget_s > 0) {
        const double used_s = s->state.elapsed_s + clock_now_s() - s->since_s; /* opening counts, too */
        TRY(time_limit_start(s->cancel, fmax(0, s->o->budget_s - used_s), &d, e));
        s->stop = time_limit_flag(d);
    }
    s->session.actor.cancel = s->stop;
    enum status st = waves(s, e);
    const bool by_user = s->cancel && *s->cancel;
    /* A wave that the time has cut off has not happened. */
    if (st == ST_CANCELLED && !by_user) st = ST_OK;
    if (st == ST_CANCELLED)
        (void)FAIL(e, ST_CANCELLED, "interrupted behind %lld verdicts; the same command goes on from there",
                   (long long)s->state.spent);
    s->session.actor.cancel = s->stop = s->cancel;
    time_limit_end(d);
    return st;
}
