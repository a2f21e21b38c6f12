#include "verify/pool/farm_worker.h"

#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "verify/pool/farm.h"
#include "verify/pool/jetstream.h"
#include "verify/pool/link.h"
#include "verify/pool/store.h"

enum { CONSUMERS = 2 * PROTOCOL_CLASSES, SIGNERS = 2 };
static const double pull_s = 5, again_s = 1, leave_s = 30, publish_s = 5, most_pause_s = 30;

enum held_state {
    HELD_LOOKED_UP, /* has another host judged it? */
    HELD_WAITS,     /* a suspect job, until nothing else is at hand */
    HELD_AT_CREW,
    HELD_TOLD /* its verdict is on its way */
};

struct held { /* a job of the queue's that this host has */
    struct farm_worker *w;
    char j[33], run[17];
    int attempt;
    int64_t delivered;
    char ack[FARM_SUBJECT_BYTES], cache_key[FARM_SUBJECT_BYTES];
    enum held_state state;
    bool suspect, cancelled, confirmed;
    bool unnamed; /* its verdict is told without a name: the server has lost it, and remembers the name */
    double progress_at, retry_at; /* retry_at: of telling; 0: an answer is awaited */
    struct pool_message m;        /* the job */
    char *line, *verdict;
    size_t n, n_verdict;
    bool is_missing;      /* the verdict is of class I */
    char *entry[SIGNERS]; /* of the cache */
    char signer[SIGNERS][64];
    struct verdict known[SIGNERS];
    int looked_up;
    struct held *next;
};

struct consumer {
    char class[CLASS_BYTES], name[CLASS_BYTES + 20];
    bool suspect;
    struct js_pull *pull;
    double try_at;
    int64_t left; /* jobs that waited behind the last one */
};

struct farm_worker {
    const struct farm_worker_options *o;
    struct js *js;
    struct crew *crew;
    struct consumer consumer[CONSUMERS];
    int n_consumers;
    struct held *held;
    int n_held;
    double ack_wait_s, asked_wait_at, beat_at, paused_until, ending_since;
    bool ends, was_connected, is_known; /* is_known: its entry is in the registry */
    bool refused;                       /* the server has said that it never lets this host in */
    double connect_at, pause_s;         /* of the next try behind a connection that ended for good; 0: none is due */
    char why[LINK_WHY_BYTES];
};

static volatile sig_atomic_t told_to_end;
static void on_term(int sig) {
    (void)sig;
    told_to_end = 1;
}

/* ---- jobs at hand -------------------------------------------------------------------------------------------------*/

static struct held *find_held(struct farm_worker *w, const char *j) {
    struct held *h = w->held;
    while (h && strcmp(h->j, j) != 0) h = h->next;
    return h;
}

static void drop(struct farm_worker *w, struct held *h) {
    struct held **at = &w->held;
    while (*at != h) at = &(*at)->next;
    *at = h->next;
    w->n_held--;
    pool_message_free(&h->m);
    for (int i = 0; i < SIGNERS; i++) free(h->entry[i]);
    free(h->line);
    free(h->verdict);
    free(h);
}

/* A signed line to the trainer of a run. id NULL: each is kept. */
static void post(struct farm_worker *w, const char *run, const char *id, const char *line, size_t n, js_reply_fn *fn,
                 void *ctx) {
    CLEANUP_STR struct str text = STR_INIT;
    char subject[60], signature[90] = "";
    snprintf(subject, sizeof subject, "krl.verdict.%s", run);
    farm_signed_text(subject, line, n, &text);
    const bool is_signed = js_sign(w->js, text.p, text.len, signature);
    const struct nats_header headers[] = {{"Krl-Key", js_public_key(w->js)}, {"Krl-Sig", signature}, {NULL, NULL}};
    js_publish(w->js, subject, id, is_signed ? headers : NULL, line, n, publish_s, fn, ctx);
}

/* Says what became of a job that gets no verdict here, so that the trainer can tell it from a lost one. */
static void note(struct farm_worker *w, const struct held *h, enum message_type t, int losses, const char *reason) {
    CLEANUP_STR struct str line = STR_INIT;
    pool_put_about(t, h->j, h->attempt, losses, reason, &line);
    post(w, h->run, NULL, line.p, line.len - 1, NULL, NULL);
}

static void give_back(struct farm_worker *w, struct held *h, const char *reason) {
    if (h->cancelled)
        js_term(w->js, h->ack);
    else {
        note(w, h, MESSAGE_RETURNED, 0, reason);
        js_nak(w->js, h->ack, again_s);
    }
    drop(w, h);
}

/* ---- verdicts -----------------------------------------------------------------------------------------------------*/

/* Answers come when the job may have gone: they find it by its name. */
struct question {
    struct farm_worker *w;
    char j[33];
    int which;
};

static struct question *ask_about(const struct held *h, int which) {
    struct question *q = xcalloc(1, sizeof *q);
    q->w = h->w;
    q->which = which;
    snprintf(q->j, sizeof q->j, "%s", h->j);
    return q;
}

static void on_done(void *ctx, const struct js_reply *r) {
    struct question *q = ctx;
    struct held *h = find_held(q->w, q->j);
    (void)r; /* not heard: it is given to somebody again, whose verdict is the second */
    if (h && h->state == HELD_TOLD) drop(q->w, h);
    free(q);
}

static void on_told(void *ctx, const struct js_reply *r) {
    struct question *q = ctx;
    struct held *h = find_held(q->w, q->j);
    if (h && h->state == HELD_TOLD) {
        const bool lost = r->good && json_is_true(json_object_get(r->json, "duplicate")) &&
                          json_integer_value(json_object_get(r->json, "seq")) <= 0;
        h->unnamed |= lost;
        if (r->good && !lost)
            js_ack(q->w->js, h->ack, on_done, ask_about(h, 0));
        else {
            log_debug("%s: its verdict was not taken: %s", h->j, lost ? "the server has lost it" : r->error);
            h->retry_at = clock_now_s() + again_s;
        }
    }
    free(q);
}

/* The first verdict of a job is kept, whoever gives it; what is missing may be asked for again. */
static void tell(struct farm_worker *w, struct held *h) {
    CLEANUP_STR struct str text = STR_INIT;
    char id[80], subject[60], signature[90] = "";
    h->retry_at = 0;
    snprintf(subject, sizeof subject, "krl.verdict.%s", h->run);
    snprintf(id, sizeof id, "%s.%d", h->j, h->attempt);
    farm_signed_text(subject, h->verdict, h->n_verdict, &text);
    const bool is_signed = js_sign(w->js, text.p, text.len, signature);
    struct nats_header headers[5] = {{"Krl-Key", js_public_key(w->js)}, {"Krl-Sig", signature}, {NULL, NULL}};
    if (h->confirmed) {
        headers[2] = (struct nats_header){"Krl-Cache-1", h->entry[0]};
        headers[3] = (struct nats_header){"Krl-Cache-2", h->entry[1]};
    }
    js_publish(w->js, subject, h->is_missing || h->unnamed ? NULL : id, is_signed ? headers : NULL, h->verdict,
               h->n_verdict, publish_s, on_told, ask_about(h, 0));
}

static void have_verdict(struct farm_worker *w, struct held *h, const char *line, size_t n, bool is_missing) {
    h->state = HELD_TOLD;
    h->verdict = xstrndup(line, n);
    h->n_verdict = n;
    h->is_missing = is_missing;
    tell(w, h);
}

/* ---- the cache of hosts -------------------------------------------------------------------------------------------*/

/* The own judgement, for others: as the first, or as the second where another host has given the first. */
static void keep_in_cache(struct farm_worker *w, const struct held *h, const struct verdict *v) {
    CLEANUP_STR struct str verdict = STR_INIT, text = STR_INIT, entry = STR_INIT, subject = STR_INIT;
    const struct nats_header headers[] = {{"Nats-Expected-Last-Subject-Sequence", "0"}, {NULL, NULL}};
    char signature[90];
    const bool first = !h->entry[0], second = h->entry[0] && !h->entry[1];
    if (!w->o->cache || outcome_class(v->outcome) == 'I' || v->cached || !(first || second)) return;
    if (second && strcmp(h->signer[0], js_public_key(w->js)) == 0) return; /* nobody confirms himself */
    verdict_to_json(v, &verdict);
    farm_signed_text(h->cache_key, verdict.p, verdict.len, &text);
    if (!js_sign(w->js, text.p, text.len, signature)) return;
    farm_cache_entry(h->cache_key, verdict.p, js_public_key(w->js), signature, &entry);
    str_addf(&subject, FARM_CACHE_SUBJECT ".%s%s", h->cache_key, second ? ".2" : "");
    js_publish(w->js, subject.p, NULL, headers, entry.p, entry.len, publish_s, NULL, NULL);
}

static void to_crew(struct farm_worker *w, struct held *h) {
    if (h->suspect && w->n_held > 1) {
        h->state = HELD_WAITS;
        return;
    }
    h->state = HELD_AT_CREW;
    crew_job(w->crew, &h->m, h->line, h->n);
}

/* Two hosts with keys of their own have judged it, and agree: that is the verdict. */
static void answer_from_cache(struct farm_worker *w, struct held *h) {
    CLEANUP_STR struct str line = STR_INIT;
    struct verdict v = h->known[0];
    const struct pool_witness witness = {.worker = crew_hello(w->crew)->host,
                                         .class = h->m.job.terms.class,
                                         .sm_mhz = (double)NAN,
                                         .probe = (double)NAN};
    v.cached = true;
    h->confirmed = true;
    pool_put_verdict(h->j, h->attempt, &v, &witness, true, false, &line);
    have_verdict(w, h, line.p, line.len - 1, false);
}

static void on_looked_up(void *ctx, const struct js_reply *r) {
    struct question *q = ctx;
    struct farm_worker *w = q->w;
    struct held *h = find_held(w, q->j);
    const int k = q->which;
    free(q);
    if (!h || h->state != HELD_LOOKED_UP) return;
    if (r->good && r->n > 0 && farm_cache_read(r->data, r->n, h->cache_key, &h->known[k], h->signer[k]))
        h->entry[k] = xstrndup(r->data, r->n);
    if (++h->looked_up < SIGNERS) return;
    if (h->entry[0] && h->entry[1] && strcmp(h->signer[0], h->signer[1]) != 0 &&
        verdicts_agree(&h->known[0], &h->known[1]))
        answer_from_cache(w, h);
    else
        to_crew(w, h);
}

static void look_up(struct farm_worker *w, struct held *h) {
    const struct pool_job_text *job = &h->m.job;
    const struct digest answer = verify_key(&job->problem, job->source);
    farm_cache_key(job->terms.settings_hash, job->terms.class, &answer, h->cache_key, sizeof h->cache_key);
    h->state = HELD_LOOKED_UP;
    for (int k = 0; k < SIGNERS; k++) {
        char subject[2 * FARM_SUBJECT_BYTES];
        snprintf(subject, sizeof subject, "$JS.API.DIRECT.GET." FARM_CACHE "." FARM_CACHE_SUBJECT ".%s%s", h->cache_key,
                 k ? ".2" : "");
        js_request(w->js, subject, "", 2, on_looked_up, ask_about(h, k));
    }
}

/* ---- jobs in ------------------------------------------------------------------------------------------------------*/

static struct held *new_held(struct farm_worker *w, const struct js_message *m, struct pool_message *job) {
    struct held *h = xcalloc(1, sizeof *h);
    h->w = w;
    snprintf(h->j, sizeof h->j, "%s", job->j);
    snprintf(h->run, sizeof h->run, "%s", job->job.terms.run);
    snprintf(h->ack, sizeof h->ack, "%s", m->ack);
    h->attempt = job->attempt;
    h->delivered = m->delivered;
    h->suspect = job->job.suspect;
    h->progress_at = clock_now_s() + 0.27 * w->ack_wait_s;
    h->line = xstrndup(m->data, m->n);
    h->n = m->n;
    h->m = *job;
    *job = (struct pool_message){.type = MESSAGE_UNKNOWN};
    h->next = w->held;
    w->held = h;
    w->n_held++;
    return h;
}

static void on_job(void *ctx, const struct js_message *m) {
    struct farm_worker *w = ctx;
    struct pool_message job;
    struct err e;
    for (int i = 0; i < w->n_consumers; i++)
        if (strstr(m->subject, w->consumer[i].class)) w->consumer[i].left = m->left;
    if (pool_message_read(m->data, m->n, m->subject, &job, &e) != ST_OK || job.type != MESSAGE_JOB) {
        log_warn("%s: it is no job, and goes to nobody", m->subject);
        pool_message_free(&job);
        js_term(w->js, m->ack);
        return;
    }
    if (w->ends || find_held(w, job.j)) { /* another attempt at a job that is at hand is somebody else's */
        js_nak(w->js, m->ack, again_s);
        pool_message_free(&job);
        return;
    }
    struct held *h = new_held(w, m, &job);
    if (!h->suspect && m->delivered > 2) { /* it took two workers with it: the trainer sends it on its own */
        note(w, h, MESSAGE_LOST, (int)m->delivered - 1, "the leases of two workers ended while they had it");
        js_term(w->js, h->ack);
        drop(w, h);
    } else if (w->o->cache) {
        look_up(w, h);
    } else {
        to_crew(w, h);
    }
}

static void cancel_at_crew(struct farm_worker *w, const struct held *h) {
    CLEANUP_STR struct str line = STR_INIT;
    struct pool_message m;
    struct err e;
    pool_put_about(MESSAGE_CANCEL, h->j, h->attempt, 0, NULL, &line);
    if (pool_message_read(line.p, line.len - 1, "cancel", &m, &e) == ST_OK)
        crew_cancel(w->crew, &m, line.p, line.len - 1);
    pool_message_free(&m);
}

/* "Nobody wants it any more." */
static void on_cancel(void *ctx, const struct js_message *m) {
    struct farm_worker *w = ctx;
    struct pool_message c;
    struct err e;
    if (pool_message_read(m->data, m->n, m->subject, &c, &e) == ST_OK && c.type == MESSAGE_CANCEL)
        for (struct held *h = w->held, *next; h; h = next) {
            next = h->next;
            if (c.j ? strcmp(h->j, c.j) != 0 : !c.run || strcmp(h->run, c.run) != 0) continue;
            h->cancelled = true;
            if (h->state == HELD_AT_CREW)
                cancel_at_crew(w, h);
            else if (h->state != HELD_TOLD)
                give_back(w, h, "nobody wants it any more");
        }
    pool_message_free(&c);
}

/* ---- the crew -----------------------------------------------------------------------------------------------------*/

static void refused(struct farm_worker *w, struct held *h, const struct pool_message *m, const char *line, size_t n) {
    static const char *const lasting[] = {"protocol", "program", "settings", "class", "secret", "verifier"};
    bool lasts = false;
    for (size_t i = 0; i < ARRAY_LEN(lasting); i++) lasts |= m->what && strcmp(m->what, lasting[i]) == 0;
    log_warn("%s", m->reason ? m->reason : "refused");
    /* What cannot be judged here would come back at once: somebody else is to have it. */
    if (lasts) w->paused_until = clock_now_s() + leave_s;
    if (!h) return;
    post(w, h->run, NULL, line, n, NULL, NULL);
    js_nak(w->js, h->ack, 2 * again_s);
    drop(w, h);
}

static void on_crew(void *ctx, const struct pool_message *m, const char *line, size_t n) {
    struct farm_worker *w = ctx;
    struct held *h = m->j ? find_held(w, m->j) : NULL;
    switch (m->type) {
    case MESSAGE_VERDICT:
        if (!h || h->state != HELD_AT_CREW) break;
        keep_in_cache(w, h, &m->verdict);
        have_verdict(w, h, line, n, outcome_class(m->verdict.outcome) == 'I');
        break;
    case MESSAGE_LOST:
        if (!h) break;
        js_nak(w->js, h->ack, again_s);
        drop(w, h);
        break;
    case MESSAGE_RETURNED:
        if (h) give_back(w, h, m->reason);
        break;
    case MESSAGE_REFUSED: refused(w, h, m, line, n); break;
    case MESSAGE_DRAINING:
        snprintf(w->why, sizeof w->why, "%s", m->reason ? m->reason : "");
        log_warn("it drains: %s", w->why);
        w->ends = true;
        w->ending_since = clock_now_s();
        break;
    default: break;
    }
}

/* ---- the queue ----------------------------------------------------------------------------------------------------*/

static struct js_pull *pull_of(struct farm_worker *w, const struct consumer *x) {
    return js_pull_make(w->js, FARM_JOBS, x->name, on_job, w);
}

static void add_consumer(struct farm_worker *w, const char *class, bool suspect) {
    struct consumer *x = &w->consumer[w->n_consumers++];
    *x = (struct consumer){.suspect = suspect};
    snprintf(x->class, sizeof x->class, "%s", class);
    snprintf(x->name, sizeof x->name, "%s-%s", suspect ? "s" : "w", class);
    x->pull = pull_of(w, x);
}

static void find_consumers(struct farm_worker *w) {
    const struct pool_message *hello = crew_hello(w->crew);
    if (w->n_consumers > 0 || !hello) return;
    for (int i = 0; i < hello->n_classes; i++) {
        add_consumer(w, hello->class[i], false);
        add_consumer(w, hello->class[i], true);
    }
}

/* How many jobs to ask for: one for each slot that is free; where many wait, as many as are judged together. */
static int wanted(const struct farm_worker *w, const struct consumer *x) {
    const int slots = crew_slots(w->crew), free_slots = crew_free(w->crew);
    int coming = 0;
    bool suspect = false;
    for (const struct held *h = w->held; h; h = h->next) {
        coming += h->state == HELD_LOOKED_UP;
        suspect |= h->suspect;
    }
    if (suspect) return 0; /* nothing beside it */
    if (x->suspect) return w->n_held == 0 && free_slots > 0;
    const int most = slots * (1 + crew_ahead(w->crew)) - w->n_held;
    const int n = x->left > 4 * slots ? most : free_slots - coming;
    return n < 0 ? 0 : n < most ? n : most;
}

static void ask_for_jobs(struct farm_worker *w, double now) {
    if (w->ends || now < w->paused_until || !js_connected(w->js)) return;
    for (int i = 0; i < w->n_consumers; i++) {
        struct consumer *x = &w->consumer[i];
        if (js_pull_failed(x->pull) && now < x->try_at) continue;
        if (js_pull_open(x->pull) > 0) {
            x->try_at = now + again_s;
            continue;
        }
        const int n = wanted(w, x);
        if (n > 0) js_pull_ask(x->pull, n, pull_s);
    }
}

static void on_consumer(void *ctx, const struct js_reply *r) {
    struct farm_worker *w = ctx;
    const json_t *config = r->good ? json_object_get(r->json, "config") : NULL;
    const double s = (double)json_integer_value(json_object_get(config, "ack_wait")) * 1e-9;
    if (s <= 0) { /* no trainer has made it yet, and nobody keeps the registry either */
        w->asked_wait_at = clock_now_s() + again_s;
        w->is_known = false;
        return;
    }
    w->ack_wait_s = s;
    if (!w->is_known) w->beat_at = 0;
    w->is_known = true;
}

/* Leases are renewed while somebody works on their jobs. */
static void renew(struct farm_worker *w, double now) {
    for (struct held *h = w->held; h; h = h->next) {
        if (now < h->progress_at) continue;
        if (h->state == HELD_AT_CREW && !crew_cares(w->crew, h->j)) continue;
        js_progress(w->js, h->ack);
        h->progress_at = now + 0.27 * w->ack_wait_s;
    }
    for (struct held *h = w->held; h; h = h->next)
        if (h->state == HELD_TOLD && h->retry_at > 0 && now >= h->retry_at) tell(w, h);
    for (struct held *h = w->held; h; h = h->next)
        if (h->state == HELD_WAITS && w->n_held == 1) to_crew(w, h);
    if (now < w->asked_wait_at || w->n_consumers == 0 || !js_connected(w->js)) return;
    char subject[FARM_SUBJECT_BYTES];
    w->asked_wait_at = now + 30;
    snprintf(subject, sizeof subject, "$JS.API.CONSUMER.INFO." FARM_JOBS ".%s", w->consumer[0].name);
    js_request(w->js, subject, "", 5, on_consumer, w);
}

/* The entry of this host in the registry. */
static void beat(struct farm_worker *w, double now) {
    const struct pool_message *hello = crew_hello(w->crew);
    CLEANUP_STR struct str text = STR_INIT;
    char subject[FARM_SUBJECT_BYTES];
    if (now < w->beat_at || !hello || !js_connected(w->js)) return;
    w->beat_at = now + farm_beat_s;
    snprintf(subject, sizeof subject, FARM_WORKERS_SUBJECT ".%s", hello->host);
    js_begin(&text, NULL, '{');
    js_put_i64(&text, "v", PROTOCOL_VERSION);
    js_put_str(&text, "host", hello->host);
    js_put_str(&text, "program", hello->program);
    js_put_i64(&text, "slots", crew_slots(w->crew));
    js_put_i64(&text, "jobs", w->n_held);
    js_put_f64(&text, "probe", crew_probe(w->crew));
    js_put_bool(&text, "draining", w->ends);
    if (w->why[0]) js_put_str(&text, "reason", w->why);
    js_put_str(&text, "key", js_public_key(w->js));
    js_begin(&text, "classes", '[');
    for (int i = 0; i < hello->n_classes; i++) js_put_str(&text, NULL, hello->class[i]);
    js_end(&text, ']');
    js_end(&text, '}');
    js_tell(w->js, subject, text.p);
}

static void leave_registry(struct farm_worker *w) {
    const struct pool_message *hello = crew_hello(w->crew);
    const struct nats_header headers[] = {{"KV-Operation", "DEL"}, {NULL, NULL}};
    char subject[FARM_SUBJECT_BYTES];
    if (!hello) return;
    snprintf(subject, sizeof subject, FARM_WORKERS_SUBJECT ".%s", hello->host);
    js_publish(w->js, subject, NULL, headers, "", 0, 1, NULL, NULL);
}

/* ---- the process --------------------------------------------------------------------------------------------------*/

static void watch_connection(struct farm_worker *w) {
    const bool up = js_connected(w->js);
    char why[200];
    if (up) w->pause_s = 0;
    if (up == w->was_connected) return;
    js_why(w->js, why, sizeof why);
    if (up)
        log_info("connected to %s", w->o->url);
    else
        log_warn("%s: the connection has ended%s%s; trying again", w->o->url, why[0] ? ": " : "", why);
    w->was_connected = up;
    w->beat_at = 0;
}

static enum status open_connection(struct farm_worker *w, struct js **out, struct err *e) {
    const struct js_options connection = {
        .url = w->o->url, .name = "kernelrl verify-worker", .folder = w->o->folder, .ping_s = 5};
    TRY(js_open(&connection, out, e));
    const enum status st = js_listen(*out, "krl.cancel.*", on_cancel, w, e);
    if (st != ST_OK) js_close(*out);
    return st;
}

/* When the next try is due: each waits longer than the one before. Only the first says so. */
static void try_later(struct farm_worker *w, const char *why) {
    if (w->pause_s == 0)
        log_warn("%s: the server takes no connection%s%s; trying again until it does", w->o->url, why[0] ? ": " : "",
                 why);
    w->pause_s = w->pause_s == 0 ? again_s : fmin(2 * w->pause_s, most_pause_s);
    w->connect_at = clock_now_s() + w->pause_s;
}

/* A connection that has ended for good is opened anew, unless this host was refused. Jobs at hand stay: who asked about
 * them and got no answer is told so, and asks again. */
static void again(struct farm_worker *w, double now) {
    struct js *fresh, *old = w->js;
    struct err e;
    char why[200];
    if (!js_closed(old)) return;
    if (js_refused(old)) {
        js_why(old, why, sizeof why);
        log_error("%s: the server does not let this host in%s%s", w->o->url, why[0] ? ": " : "", why);
        w->refused = true;
        return;
    }
    if (w->connect_at == 0) {
        js_why(old, why, sizeof why);
        try_later(w, why);
    }
    if (now < w->connect_at) return;
    const enum status st = open_connection(w, &fresh, &e);
    if (st != ST_OK) {
        w->refused = st != ST_IO;
        if (w->refused)
            log_error("%s", e.msg);
        else
            try_later(w, e.msg);
        return;
    }
    w->js = fresh;
    w->connect_at = 0;
    for (int i = 0; i < w->n_consumers; i++) w->consumer[i].pull = pull_of(w, &w->consumer[i]);
    js_give_up(old);
    js_close(old);
}

static bool is_done(struct farm_worker *w, double now) {
    if (!w->ends) return false;
    if (now - w->ending_since > leave_s) return true;
    return crew_has_ended(w->crew) && w->n_held == 0;
}

static void begin_end(struct farm_worker *w) {
    if (!told_to_end || w->ends) return;
    w->ends = true;
    w->ending_since = clock_now_s();
    w->beat_at = 0;
    snprintf(w->why, sizeof w->why, "it was asked to end (SIGTERM)");
    crew_drain(w->crew, w->why);
}

/* The first connection. True: there is one. */
static bool connect_first(struct farm_worker *w) {
    struct err e;
    for (enum status st; (st = open_connection(w, &w->js, &e)) != ST_OK;) {
        if (st != ST_IO) {
            log_error("%s", e.msg);
            w->refused = true;
            return false;
        }
        try_later(w, e.msg);
        while (!told_to_end && clock_now_s() < w->connect_at) (void)poll(NULL, 0, 100);
        if (told_to_end) return false;
    }
    w->connect_at = 0;
    return true;
}

static void run_once(struct farm_worker *w) {
    struct pollfd p = {.fd = js_fd(w->js), .events = POLLIN};
    crew_step(w->crew, &p, 1, 0.2);
    js_step(w->js);
    const double now = clock_now_s();
    find_consumers(w);
    watch_connection(w);
    begin_end(w);
    renew(w, now);
    ask_for_jobs(w, now);
    beat(w, now);
    again(w, now);
}

int farm_worker_run(const struct farm_worker_options *o) {
    struct farm_worker w = {.o = o, .ack_wait_s = o->crew.lease_s};
    struct sigaction sa = {.sa_handler = on_term};
    struct err e;
    sigaction(SIGTERM, &sa, NULL);
    sigaction(SIGINT, &sa, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (!connect_first(&w)) return w.refused;
    const enum status st = crew_start(&o->crew, on_crew, &w, &w.crew, &e);
    if (st != ST_OK) log_error("%s", e.msg);
    while (st == ST_OK && !w.refused && !is_done(&w, clock_now_s())) run_once(&w);
    while (w.held) { /* what did not come to its end in time */
        js_nak(w.js, w.held->ack, 0);
        drop(&w, w.held);
    }
    if (st == ST_OK && !w.refused) leave_registry(&w);
    crew_close(w.crew);
    js_close(w.js);
    return st != ST_OK || w.refused;
}
