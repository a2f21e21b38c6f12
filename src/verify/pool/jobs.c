/* Jobs of a pool: where each goes, and what becomes of what comes back. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "verify/pool/pool_internal.h"

/* ---- the table ----------------------------------------------------------------------------------------------------*/

static size_t bucket(const char *j) {
    char head[9];
    snprintf(head, sizeof head, "%.8s", j);
    return strtoul(head, NULL, 16) % JOB_TABLE;
}

static struct pool_job *find_job(struct verify_pool *p, const char *j) {
    struct pool_job *job = p->table[bucket(j)];
    while (job && strcmp(job->j, j) != 0) job = job->next;
    return job;
}

static void link_job(struct verify_pool *p, struct pool_job *job) {
    struct pool_job **at = &p->table[bucket(job->j)], **same = &p->by_answer[bucket(job->key.hex)];
    job->next = *at;
    *at = job;
    if (job->is_audit) return;
    job->next_same = *same;
    *same = job;
}

/* Equal answers do not find the job any more. */
static void forget_answer(struct verify_pool *p, const struct pool_job *job) {
    struct pool_job **at = &p->by_answer[bucket(job->key.hex)];
    while (*at && *at != job) at = &(*at)->next_same;
    if (*at) *at = job->next_same;
}

static void unlink_job(struct verify_pool *p, struct pool_job *job) {
    struct pool_job **at = &p->table[bucket(job->j)];
    while (*at != job) at = &(*at)->next;
    *at = job->next;
    forget_answer(p, job);
}

/* ---- jobs that had their verdict ----------------------------------------------------------------------------------*/

static uint64_t settled_name(const char *j) {
    char head[17];
    snprintf(head, sizeof head, "%.16s", j);
    return strtoull(head, NULL, 16) | 1; /* 0 is an empty place */
}

static void put_settled(uint64_t *set, size_t cap, uint64_t name) {
    size_t i = name % cap;
    while (set[i] && set[i] != name) i = (i + 1) % cap;
    set[i] = name;
}

static void note_settled(struct verify_pool *p, const char *j) {
    if (2 * (p->n_settled + 1) > p->settled_cap) {
        const size_t cap = p->settled_cap ? 2 * p->settled_cap : 1024;
        uint64_t *set = xcalloc(cap, sizeof *set);
        for (size_t i = 0; i < p->settled_cap; i++)
            if (p->settled[i]) put_settled(set, cap, p->settled[i]);
        free(p->settled);
        p->settled = set;
        p->settled_cap = cap;
    }
    put_settled(p->settled, p->settled_cap, settled_name(j));
    p->n_settled++;
}

static bool was_settled(const struct verify_pool *p, const char *j) {
    const uint64_t name = settled_name(j);
    if (p->settled_cap == 0) return false;
    for (size_t i = name % p->settled_cap; p->settled[i]; i = (i + 1) % p->settled_cap)
        if (p->settled[i] == name) return true;
    return false;
}

static void free_job(struct pool_job *job) {
    for (int i = 0; i < job->n_items; i++) free(job->items[i]);
    free(job->items);
    free(job->place);
    free(job->own_source);
    free((char *)(uintptr_t)job->own_problem.key);
    free((char *)(uintptr_t)job->own_problem.name);
    free((char *)(uintptr_t)job->own_problem.code);
    free(job);
}

static void push_queue(struct verify_pool *p, struct pool_job *job, bool in_front) {
    job->queued = true;
    p->n_queue++;
    if (in_front) {
        job->next_queued = p->queue;
        if (!p->queue) p->queue_end = &job->next_queued;
        p->queue = job;
        return;
    }
    job->next_queued = NULL;
    *p->queue_end = job;
    p->queue_end = &job->next_queued;
}

/* Takes the job out that *at leads to. */
static void take_queued(struct verify_pool *p, struct pool_job **at) {
    struct pool_job *job = *at;
    *at = job->next_queued;
    if (p->queue_end == &job->next_queued) p->queue_end = at;
    job->queued = false;
    p->n_queue--;
}

static void unqueue(struct verify_pool *p, struct pool_job *job) {
    if (!job->queued) return;
    struct pool_job **at = &p->queue;
    while (*at != job) at = &(*at)->next_queued;
    take_queued(p, at);
}

/* The job has nobody left who waits for it, and no queue and no table knows it any more. */
static void end_job(struct verify_pool *p, struct pool_job *job) {
    unqueue(p, job);
    unlink_job(p, job);
    free_job(job);
}

/* ---- what links hold ----------------------------------------------------------------------------------------------*/

static struct pool_attempt **held_at(struct pool_link *l, const char *j, int number) {
    struct pool_attempt **at = &l->held;
    while (*at && (strcmp((*at)->j, j) != 0 || (*at)->number != number)) at = &(*at)->next;
    return at;
}

/* The link holds it no more. */
static void drop_attempt(struct verify_pool *p, struct pool_link *l, struct pool_attempt **at) {
    struct pool_attempt *a = *at;
    *at = a->next;
    l->n_held--;
    p->n_out--;
    if (a->begun) link_busy(l, -1);
    if (l->n_held == 0) l->alone = false;
    if (a->job) a->job->live--;
    free(a);
}

/* Nobody waits for the job any more: links that have it are told. */
static void orphan(struct verify_pool *p, struct pool_job *job) {
    CLEANUP_STR struct str line = STR_INIT;
    pool_put_about(MESSAGE_CANCEL, job->j, job->attempts > 0 ? job->attempts : 1, 0, NULL, &line);
    for (int i = 0; i < p->n_links; i++) {
        bool told = false;
        for (struct pool_attempt *a = p->link[i].held; a; a = a->next) {
            if (a->job != job) continue;
            a->job = NULL;
            if (!told) link_send_line(&p->link[i], &line);
            told = true;
        }
    }
    job->live = 0;
}

/* ---- verdicts to the client ---------------------------------------------------------------------------------------*/

static void push_done(struct verify_pool *p, struct pool_item *x) {
    x->done = true;
    x->next_done = NULL;
    *p->done_end = x;
    p->done_end = &x->next_done;
    pthread_cond_broadcast(&p->changed);
}

/* The job has its verdict: the first that came, or that it is missing. */
static void finish(struct verify_pool *p, struct pool_job *job, const struct verdict *v) {
    job->over = true;
    forget_answer(p, job);
    job->verdict = *v;
    unqueue(p, job);
    orphan(p, job);
    for (int i = 0; i < job->n_items; i++) {
        struct pool_item *x = job->items[i];
        x->item->verdict = *v;
        if (i > 0 && outcome_class(v->outcome) != 'I') x->item->verdict.cached = true;
        verdict_flag_problem(&x->item->verdict, x->item->problem);
        push_done(p, x);
    }
    p->count.missing += outcome_class(v->outcome) == 'I';
    verdict_cache_add(p->cache, &job->key, v);
}

/* An answer that took its workers with it is kept for a human. */
static void keep_poison(const struct verify_pool *p, const struct pool_job *job) {
    CLEANUP_STR struct str path = STR_INIT, text = STR_INIT;
    struct err e;
    if (!p->o.kept || !*p->o.kept) return;
    str_addf(&path, "%s/%s.json", p->o.kept, job->j);
    js_begin(&text, NULL, '{');
    js_put_str(&text, "place", job->place);
    js_put_str(&text, "problem", job->problem->key);
    js_put_str(&text, "reason", job->said);
    js_put_str(&text, "code", job->problem->code);
    js_put_str(&text, "source", job->source);
    js_end(&text, '}');
    str_addc(&text, '\n');
    enum status st = fs_mkdirs(p->o.kept, &e);
    if (st == ST_OK) st = fs_write_atomic(path.p, text.p, text.len, &e);
    if (st == ST_OK)
        log_warn("an answer to %s took %d workers with it: %s", job->problem->key, job->losses, path.p);
    else
        log_warn("an answer to %s took %d workers with it, and is not kept: %s", job->problem->key, job->losses, e.msg);
}

static void finish_missing(struct verify_pool *p, struct pool_job *job, const char *fmt, ...) PRINTF_LIKE(3, 4);
static void finish_missing(struct verify_pool *p, struct pool_job *job, const char *fmt, ...) {
    struct verdict v = {.outcome = OUTCOME_INFRASTRUCTURE, .max_error = (double)NAN};
    va_list a;
    va_start(a, fmt);
    vsnprintf(v.message, sizeof v.message, fmt, a);
    va_end(a);
    finish(p, job, &v);
}

/* ---- submitting ---------------------------------------------------------------------------------------------------*/

/* Which class judges a problem: always the same one, whatever hosts there are. */
static int class_of(const struct verify_pool *p, const struct problem *problem) {
    if (p->n_classes < 2) return 0;
    return (int)(hash_bytes(problem->code, strlen(problem->code), 7) % (uint64_t)p->n_classes);
}

static void name_job(struct verify_pool *p, const struct verify_item *item, struct pool_job *job) {
    CLEANUP_STR struct str text = STR_INIT;
    if (item->place)
        str_addf(&text, "job\n%s\n%s\n%s", p->run, item->place, job->key.hex);
    else
        str_addf(&text, "job\n%s\n#%llu\n%s", p->run, (unsigned long long)++p->serial, job->key.hex);
    snprintf(job->j, sizeof job->j, "%s", digest_of(text.p, text.len).hex);
}

static struct pool_item *add_item(struct pool_job *job, struct verify_item *item) {
    struct pool_item *x = xcalloc(1, sizeof *x);
    *x = (struct pool_item){.item = item, .job = job};
    item->at_judge = x;
    if (!job) return x;
    job->items = xrealloc(job->items, (size_t)(job->n_items + 1) * sizeof *job->items);
    job->items[job->n_items++] = x;
    return x;
}

/* A job that waits for the verdict of an equal answer. */
static struct pool_job *same_as(struct verify_pool *p, const struct digest *key) {
    struct pool_job *job = p->by_answer[bucket(key->hex)];
    while (job && !digest_equal(&job->key, key)) job = job->next_same;
    return job;
}

/* A verdict that needs nobody: no kernel, an equal answer's, or one that other runs have agreed on. */
static bool known_verdict(struct verify_pool *p, struct verify_item *item, const struct digest *key) {
    struct verdict *v = &item->verdict;
    if (!item->source || !*item->source) {
        verdict_of_nothing(v);
        return true;
    }
    if (verdict_cache_find(p->cache, key, v)) return true;
    if (!p->store || p->n_classes == 0) return false;
    const struct digest name = verdict_store_name(p->settings_hash, p->class[class_of(p, item->problem)].name, key);
    if (!verdict_store_find(p->store, &name, v)) return false;
    p->count.cache_hits++;
    return true;
}

/* Verdicts that an earlier process of the run had asked for, and not kept yet. */
static bool take_early(struct verify_pool *p, struct pool_job *job) {
    struct pool_early **at = &p->early, *x;
    while (*at && strcmp((*at)->j, job->j) != 0) at = &(*at)->next;
    if (!(x = *at)) return false;
    *at = x->next;
    p->n_early--;
    job->answered = x->from;
    p->count.verdicts++;
    finish(p, job, &x->verdict);
    free(x);
    return true;
}

void job_submit(struct verify_pool *p, struct verify_item *item) {
    const struct digest key = verify_key(item->problem, item->source);
    if (known_verdict(p, item, &key)) {
        verdict_flag_problem(&item->verdict, item->problem);
        push_done(p, add_item(NULL, item));
        return;
    }
    struct pool_job *job = same_as(p, &key);
    if (job) {
        (void)add_item(job, item);
        return;
    }
    job = xcalloc(1, sizeof *job);
    job->key = key;
    job->problem = item->problem;
    job->source = item->source;
    job->place = item->place ? xstrdup(item->place) : NULL;
    name_job(p, item, job);
    while (find_job(p, job->j)) { /* an earlier answer in that place has its verdict, and is not settled yet */
        struct verify_item nowhere = {.problem = item->problem, .source = item->source};
        name_job(p, &nowhere, job);
    }
    (void)add_item(job, item);
    link_job(p, job);
    if (take_early(p, job)) return;
    const size_t bytes = strlen(item->problem->code) + strlen(item->source);
    if (bytes > PROTOCOL_LINE_BYTES / 2)
        finish_missing(p, job, "an answer and its problem of %zu bytes: a job may have %d", bytes,
                       PROTOCOL_LINE_BYTES / 2);
    else
        push_queue(p, job, false);
}

bool job_withdraw(struct verify_pool *p, struct pool_item *x) {
    struct pool_job *job = x->job;
    if (x->collected) return false;
    x->item->at_judge = NULL;
    if (x->done) {
        struct pool_item **at = &p->done;
        while (*at != x) at = &(*at)->next_done;
        *at = x->next_done;
        if (p->done_end == &x->next_done) p->done_end = at;
    }
    if (!job) {
        free(x);
        return true;
    }
    int i = 0;
    while (job->items[i] != x) i++;
    free(x);
    job->items[i] = job->items[--job->n_items];
    if (job->over ? job->n_settled >= job->n_items : job->n_items == 0) {
        if (!job->over) orphan(p, job);
        end_job(p, job);
    } else if (job->n_items > 0) { /* its texts are those of an item that is still wanted */
        job->problem = job->items[0]->item->problem;
        job->source = job->items[0]->item->source;
    }
    return true;
}

void job_settle(struct verify_pool *p, struct pool_item *x, bool kept) {
    struct pool_job *job = x->job;
    x->item->at_judge = NULL;
    if (!job) {
        free(x);
        return;
    }
    if (++job->n_settled < job->n_items) return;
    note_settled(p, job->j);
    if (kept && job->answered && job->answered->h.kind == POOL_NATS) {
        CLEANUP_STR struct str line = STR_INIT;
        pool_put_about(MESSAGE_ACK, job->j, 1, 0, NULL, &line);
        link_send_line(job->answered, &line);
    }
    end_job(p, job);
}

void jobs_free(struct verify_pool *p) {
    for (struct pool_item *x = p->done, *next; x; x = next) { /* those without a job; the others lie at theirs */
        next = x->next_done;
        if (!x->job) free(x);
    }
    for (struct pool_early *x = p->early, *next; x; x = next) {
        next = x->next;
        free(x);
    }
    free(p->settled);
    for (int i = 0; i < p->n_links; i++)
        while (p->link[i].held) drop_attempt(p, &p->link[i], &p->link[i].held);
    for (size_t b = 0; b < JOB_TABLE; b++)
        while (p->table[b]) {
            struct pool_job *job = p->table[b];
            p->table[b] = job->next;
            free_job(job);
        }
}

/* ---- choosing a link ----------------------------------------------------------------------------------------------*/

static bool is_excluded(const struct pool_job *job, const char *host) {
    for (int i = 0; i < job->n_excluded; i++)
        if (strcmp(job->asked_on[i], host) == 0) return true;
    return false;
}

static void exclude(struct pool_job *job, const char *host) {
    if (job->n_excluded < JOB_EXCLUDED && !is_excluded(job, host))
        snprintf(job->asked_on[job->n_excluded++], HOST_NAME_BYTES, "%s", host);
}

/* Whether a link may have the job at all. */
static bool may_have(const struct pool_link *l, const struct pool_job *job) {
    if (l->state != LINK_READY || !(l->classes & 1U << job->class)) return false;
    if (l->h.kind != POOL_NATS && is_excluded(job, l->host)) return false;
    for (const struct pool_attempt *a = l->held; a; a = a->next)
        if (strcmp(a->j, job->j) == 0) return false;
    return true;
}

static bool anybody_may(const struct verify_pool *p, const struct pool_job *job) {
    for (int i = 0; i < p->n_links; i++)
        if (may_have(&p->link[i], job)) return true;
    return false;
}

static bool wants_alone(const struct pool_job *job) { return job->losses > 0; }
static bool is_suspect(const struct pool_job *job) { return job->losses >= POOL_LOSSES - 1; }

/* The link with the least to do for each slot; of equal ones that which knows the problem. */
static struct pool_link *link_for(struct verify_pool *p, const struct pool_job *job) {
    struct pool_link *best = NULL;
    double least = INFINITY;
    for (int i = 0; i < p->n_links; i++) {
        struct pool_link *l = &p->link[i];
        if (l->slots == 0 || l->n_held >= l->slots * (1 + l->ahead) || l->alone || !may_have(l, job)) continue;
        /* On a host of several slots, a slot of its own is the host's business. */
        if (wants_alone(job) && l->n_held >= l->slots) continue;
        const bool known = strcmp(l->last_problem, job->problem->key ? job->problem->key : "") == 0;
        const double load = (double)l->n_held / l->slots - (known ? 1e-3 : 0);
        if (load >= least) continue;
        best = l;
        least = load;
    }
    return best;
}

static void send_job(struct verify_pool *p, struct pool_link *l, struct pool_job *job) {
    CLEANUP_STR struct str line = STR_INIT;
    struct pool_job_text text = {.j = job->j,
                                 .attempt = ++job->attempts,
                                 .terms = p->terms,
                                 .place = job->place,
                                 .problem = *job->problem,
                                 .source = job->source,
                                 .budget_s = p->o.deadline_s,
                                 .alone = wants_alone(job),
                                 .suspect = is_suspect(job)};
    text.terms.class = p->class[job->class].name;
    for (int i = 0; i < job->n_excluded; i++) text.not_on[text.n_not_on++] = job->asked_on[i];
    pool_put_job(&text, &line);
    if (line.len > PROTOCOL_LINE_BYTES) {
        finish_missing(p, job, "a job of %zu bytes, at most %d may be sent", line.len, PROTOCOL_LINE_BYTES);
        return;
    }
    struct pool_attempt *a = xcalloc(1, sizeof *a), **at = &l->held;
    memcpy(a->j, job->j, sizeof a->j);
    a->number = job->attempts;
    a->job = job;
    while (*at) at = &(*at)->next;
    *at = a;
    l->n_held++;
    l->alone = wants_alone(job) && l->slots == 1;
    p->n_out++;
    job->live++;
    if (job->attempts > 1 && l->h.kind != POOL_NATS) p->count.redeliveries++;
    snprintf(l->last_problem, sizeof l->last_problem, "%s", job->problem->key ? job->problem->key : "");
    link_send_line(l, &line);
}

/* ---- what comes back ----------------------------------------------------------------------------------------------*/

/* The job goes on: to another link, or it is given up. */
static void again(struct verify_pool *p, struct pool_job *job) {
    if (job->is_audit && (job->losses > 0 || job->troubles > 0)) { /* an audit is no place for trouble */
        end_job(p, job);
        return;
    }
    if (job->losses >= POOL_LOSSES) {
        keep_poison(p, job);
        finish_missing(p, job, "%d workers were lost while they judged it; the last: %.300s", job->losses, job->said);
        return;
    }
    if (!job->queued && job->live == 0) push_queue(p, job, true);
}

void job_begun(struct verify_pool *p, struct pool_link *l, const struct pool_message *m) {
    struct pool_attempt *a = *held_at(l, m->j, m->attempt);
    (void)p;
    if (!a || a->begun) return;
    a->begun = true;
    a->begun_s = clock_now_s();
    link_busy(l, 1);
}

static void note_duration(struct verify_pool *p, double seconds) {
    p->duration[p->n_durations++ % DURATIONS] = seconds;
}

static double median_duration(const struct verify_pool *p) {
    double sorted[DURATIONS];
    const int n = p->n_durations < DURATIONS ? p->n_durations : DURATIONS;
    if (n == 0) return INFINITY;
    memcpy(sorted, p->duration, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, ascending_f64);
    return sorted[n / 2];
}

/* A second judgement of a job on another host, of copies of its texts. */
static void begin_audit(struct verify_pool *p, const struct pool_job *of, struct pool_link *l) {
    const double drawn = (double)(hmac_u64(p->audit_key, "audit", 0, of->j, 32) >> 11) * 0x1p-53;
    bool other = false;
    if (of->is_audit || drawn >= p->o.audit || outcome_class(of->verdict.outcome) == 'I') return;
    for (int i = 0; i < p->n_links; i++)
        other |= &p->link[i] != l && p->link[i].state == LINK_READY && strcmp(p->link[i].host, of->judged_on) != 0;
    if (!other && l->h.kind != POOL_NATS) return;
    struct pool_job *job = xcalloc(1, sizeof *job);
    CLEANUP_STR struct str text = STR_INIT;
    str_addf(&text, "audit\n%s", of->j);
    snprintf(job->j, sizeof job->j, "%s", digest_of(text.p, text.len).hex);
    job->is_audit = true;
    job->key = of->key;
    job->own_problem = *of->problem;
    job->own_problem.key = xstrdup(of->problem->key ? of->problem->key : "");
    job->own_problem.name = xstrdup(of->problem->name ? of->problem->name : "");
    job->own_problem.code = xstrdup(of->problem->code);
    job->problem = &job->own_problem;
    job->source = job->own_source = xstrdup(of->source);
    job->class = of->class;
    job->verdict = of->verdict;
    job->audited = l;
    snprintf(job->judged_on, sizeof job->judged_on, "%s", of->judged_on);
    exclude(job, of->judged_on);
    link_job(p, job);
    push_queue(p, job, false);
}

static void end_audit(struct verify_pool *p, struct pool_job *job, const struct pool_message *m) {
    const struct verdict *a = &job->verdict, *b = &m->verdict;
    p->count.audited++;
    if (!verdicts_agree(a, b)) {
        p->count.disagreements++;
        log_warn("an answer to %s was judged twice: %s (%.2fx) on %s, %s (%.2fx) on %s", job->problem->key,
                 outcome_name(a->outcome), a->speedup, job->judged_on, outcome_name(b->outcome), b->speedup,
                 m->witness.worker);
    }
    orphan(p, job);
    end_job(p, job);
}

/* A verdict that says that something here is in trouble: others are asked, as long as there are any. True: the job goes
 * on. */
static bool is_trouble_here(struct verify_pool *p, struct pool_link *l, struct pool_job *job,
                            const struct pool_message *m) {
    const enum outcome o = m->verdict.outcome;
    if (o != OUTCOME_INFRASTRUCTURE && o != OUTCOME_BACKEND_UNAVAILABLE) return false;
    snprintf(job->said, sizeof job->said, "%s: %.300s", m->witness.worker, m->verdict.message);
    if (++job->troubles >= POOL_LOSSES) return false;
    const int before = job->n_excluded;
    exclude(job, m->witness.worker);
    const bool others = l->h.kind == POOL_NATS ? l->slots > 1 : anybody_may(p, job);
    if (!others) job->n_excluded = before; /* nobody else: the same one once more, unless it lacks the backend */
    if (!others && o == OUTCOME_BACKEND_UNAVAILABLE) return false;
    again(p, job);
    return true;
}

/* A verdict that nobody waits for any more. A queue need not keep it. */
static void pass_over(struct verify_pool *p, struct pool_link *l, const struct pool_message *m) {
    CLEANUP_STR struct str line = STR_INIT;
    p->count.duplicates++;
    if (l->h.kind != POOL_NATS) return;
    pool_put_about(MESSAGE_ACK, m->j, m->attempt, 0, NULL, &line);
    link_send_line(l, &line);
}

/* A verdict of an earlier process of the run: what it belongs to may be asked for yet. */
static void keep_early(struct verify_pool *p, struct pool_link *l, const struct pool_message *m) {
    if (p->n_early == EARLY_MAX || p->n_classes == 0) {
        pass_over(p, l, m);
        return;
    }
    bool known = false;
    for (int c = 0; c < p->n_classes; c++) known |= strcmp(p->class[c].name, m->witness.class) == 0;
    for (const struct pool_early *x = p->early; x; x = x->next) known &= strcmp(x->j, m->j) != 0;
    if (!known || outcome_class(m->verdict.outcome) == 'I') {
        pass_over(p, l, m);
        return;
    }
    struct pool_early *x = xcalloc(1, sizeof *x);
    snprintf(x->j, sizeof x->j, "%s", m->j);
    x->verdict = m->verdict;
    x->from = l;
    x->next = p->early;
    p->early = x;
    p->n_early++;
}

void job_verdict(struct verify_pool *p, struct pool_link *l, const struct pool_message *m) {
    struct pool_attempt **at = held_at(l, m->j, m->attempt), *a = *at;
    struct pool_job *job = a ? a->job : l->h.kind == POOL_NATS ? find_job(p, m->j) : NULL;
    const bool begun = a && a->begun;
    const double seconds = begun ? clock_now_s() - a->begun_s : 0;
    if (a) drop_attempt(p, l, at);
    l->pause_s = 0.2;
    if (!job || job->over) {
        if (l->h.kind == POOL_NATS && !job && !was_settled(p, m->j))
            keep_early(p, l, m);
        else
            pass_over(p, l, m);
        return;
    }
    if (strcmp(m->witness.class, p->class[job->class].name) != 0) {
        log_warn("%s: a verdict of class %.80s, asked for: %s; it does not count", l->label, m->witness.class,
                 p->class[job->class].name);
        p->count.refused++;
        again(p, job);
        return;
    }
    if (begun) note_duration(p, seconds);
    snprintf(job->judged_on, sizeof job->judged_on, "%s", m->witness.worker);
    if (job->is_audit) {
        end_audit(p, job, m);
        return;
    }
    if (is_trouble_here(p, l, job, m)) return;
    p->count.verdicts++;
    p->count.cache_hits += m->cached;
    job->answered = l;
    if (p->store) {
        const struct digest name = verdict_store_name(p->settings_hash, p->class[job->class].name, &job->key);
        verdict_store_add(p->store, &name, m->witness.worker, &m->verdict);
    }
    finish(p, job, &m->verdict);
    begin_audit(p, job, l);
}

void job_came_back(struct verify_pool *p, struct pool_link *l, const struct pool_message *m) {
    struct pool_attempt **at = held_at(l, m->j, m->attempt), *a = *at;
    struct pool_job *job = a ? a->job : NULL;
    if (!a) return;
    drop_attempt(p, l, at);
    if (!job) return;
    snprintf(job->said, sizeof job->said, "%s: %.300s", l->label, m->reason ? m->reason : "");
    if (m->type == MESSAGE_LOST) {
        job->losses += m->losses;
        p->count.lost++;
        log_debug("%s: lost (%d): %s", job->place ? job->place : job->j, job->losses, job->said);
    } else if (m->type == MESSAGE_REFUSED) {
        exclude(job, l->host);
    }
    again(p, job);
}

void jobs_lost(struct verify_pool *p, struct pool_link *l, const char *why) {
    struct pool_attempt *all = l->held;
    l->held = NULL;
    l->n_held = 0;
    l->alone = false;
    for (struct pool_attempt *a = all, *next; a; a = next) {
        struct pool_job *job = a->job;
        next = a->next;
        p->n_out--;
        if (job) {
            job->live--;
            snprintf(job->said, sizeof job->said, "%s: %.300s", l->label, why);
            /* The relay of a queue is no judge: what it had sent is still in the queue, and comes to nobody's harm. */
            if (a->begun && l->h.kind != POOL_NATS) {
                job->losses++;
                p->count.lost++;
            }
            again(p, job);
        }
        free(a);
    }
}

/* ---- dispatching --------------------------------------------------------------------------------------------------*/

static bool suspect_is_out(const struct verify_pool *p) {
    for (int i = 0; i < p->n_links; i++)
        for (const struct pool_attempt *a = p->link[i].held; a; a = a->next)
            if (a->job && is_suspect(a->job)) return true;
    return false;
}

static int room(const struct verify_pool *p) {
    int n = 0;
    for (int i = 0; i < p->n_links; i++) {
        const struct pool_link *l = &p->link[i];
        const int left = l->slots * (1 + l->ahead) - l->n_held;
        if (l->state == LINK_READY && !l->alone && left > 0) n += left;
    }
    return n;
}

/* A slot that is idle takes over what waits behind another job elsewhere. */
static void steal(struct verify_pool *p) {
    struct pool_link *idle = NULL, *from = NULL;
    int most = 0;
    for (int i = 0; i < p->n_links; i++) {
        struct pool_link *l = &p->link[i];
        if (l->h.kind == POOL_NATS || l->state != LINK_READY) continue;
        int waiting = 0, recalled = 0;
        for (const struct pool_attempt *a = l->held; a; a = a->next) {
            waiting += a->job && !a->begun && !a->recalled;
            recalled += a->recalled && !a->begun;
        }
        if (recalled > 0) return; /* one at a time */
        if (l->n_held < l->slots && !idle) idle = l;
        if (waiting > most && l->n_held > l->slots) {
            most = waiting;
            from = l;
        }
    }
    if (!idle || !from) return;
    struct pool_attempt *last = NULL;
    for (struct pool_attempt *a = from->held; a; a = a->next)
        if (a->job && !a->begun && may_have(idle, a->job)) last = a;
    if (!last) return;
    CLEANUP_STR struct str line = STR_INIT;
    last->recalled = true;
    pool_put_recall(last->j, last->number, &line);
    link_send_line(from, &line);
}

/* A job that takes far longer than others is given to a second host, too. */
static void hedge(struct verify_pool *p, double now) {
    const double patience = fmax(p->o.hedge_s, 3 * median_duration(p));
    for (int i = 0; i < p->n_links; i++)
        for (struct pool_attempt *a = p->link[i].held; a; a = a->next) {
            if (!a->job || !a->begun || a->job->is_audit || a->job->live > 1 || now - a->begun_s < patience) continue;
            if (p->link[i].h.kind == POOL_NATS) continue;
            struct pool_link *l = link_for(p, a->job);
            if (!l || l->n_held >= l->slots || strcmp(l->host, p->link[i].host) == 0) continue;
            send_job(p, l, a->job);
            p->count.hedged++;
            p->count.redeliveries--; /* nothing was lost */
            return;
        }
}

void jobs_dispatch(struct verify_pool *p, double now) {
    int left = p->queue ? room(p) : 0;
    bool suspect = left > 0 && suspect_is_out(p);
    for (struct pool_job **at = &p->queue; *at && left > 0;) {
        struct pool_job *job = *at;
        job->class = class_of(p, job->problem);
        struct pool_link *l = is_suspect(job) && suspect ? NULL : link_for(p, job);
        if (!l) {
            at = &job->next_queued;
            continue;
        }
        suspect |= is_suspect(job);
        take_queued(p, at);
        send_job(p, l, job);
        left--;
    }
    if (p->queue) return;
    steal(p);
    hedge(p, now);
}
