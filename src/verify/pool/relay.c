#include "verify/pool/relay.h"

#include <errno.h>
#include <math.h>
#include <openssl/evp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "verify/pool/farm.h"
#include "verify/pool/jetstream.h"
#include "verify/pool/lines.h"
#include "verify/pool/link.h"
#include "verify/pool/nkey.h"
#include "verify/pool/store.h"

enum { HOSTS_MAX = 4096, KEYS_MAX = 4096, TABLE = 4096, PULL = 256, DURATIONS = 64, ERR_STREAM_MISSING = 10059 };
/* So many jobs wait for each slot: hosts take several at once, and judge them together. */
enum { AHEAD = 7 };
static const double first_connect_s = 15, check_s = 2, refused_pause_s = 2, publish_s = 5, hedge_s = 5;
/* So long the server waits before it gives a verdict to another process of the run, and so long a process waits for one
 * that was found out before it began. */
static const double verdict_wait_s = 5, duplicate_s = 8;
/* A job that the server says it has, while it gives it to nobody, for so long, has consumers that are made anew; then
 * it is sent under another name. */
static const double stranded_s = 10;

struct relay_job { /* in the queue, or at a host */
    char j[33], class[CLASS_BYTES], cache_key[FARM_SUBJECT_BYTES];
    int attempt, returns; /* returns: hosts that gave it back without having lost it */
    bool suspect, hedged;
    char *line;
    size_t n;
    int64_t seq, hedge_seq; /* in its stream; 0: not known to be there. hedge_seq: of a second message about it */
    double sent_s, budget_s;
    struct relay_job *next;
};

struct relay_verdict { /* that the pool has not kept yet */
    char j[33];
    char ack[FARM_SUBJECT_BYTES];
    double renew_at;
    struct relay_verdict *next;
};

struct farm_host {
    char name[HOST_NAME_BYTES], class[PROTOCOL_CLASSES][CLASS_BYTES];
    int n_classes, slots;
    bool draining;
    double heard_s;
};

struct lane { /* ordinary jobs of a class, as the server counts them */
    int64_t waiting, redelivered;
    double idle_since; /* since then it has had none that wait or are at a host; 0: it has some, or nobody knows */
};

struct relay {
    const struct relay_options *o;
    struct js *js;
    bool gone, drained, greeted, opened, streams_made, verdicts_bound, was_connected;
    double duration[DURATIONS]; /* of the latest jobs, from sending to the verdict */
    int n_durations;
    char run[17], class[PROTOCOL_CLASSES][CLASS_BYTES];
    int n_classes, consumers_made;
    struct relay_job *table[TABLE];
    struct relay_verdict *verdicts;
    struct farm_host host[HOSTS_MAX];
    int n_hosts;
    char key[KEYS_MAX][64]; /* whose verdicts count; none: whoever the server lets post them */
    int n_keys;
    bool has_keys;
    struct js_pull *pull;
    char created[64]; /* when the stream of jobs was made: another time means that the server has lost it */
    double check_at, beat_at, pull_at, refused_until;
    double forgot_at; /* consumers were made anew; 0: never */
    int told_slots, told_hosts;
    int64_t queue, redelivered, told_redelivered;
    struct lane lane[PROTOCOL_CLASSES];
    char refusal[200];
};

/* ---- to the pool --------------------------------------------------------------------------------------------------*/

static void say(struct relay *r, const char *line, size_t n) { r->gone |= !fs_write_all(r->o->out, line, n); }

static void say_about(struct relay *r, enum message_type t, const char *j, int attempt, int losses,
                      const char *reason) {
    CLEANUP_STR struct str line = STR_INIT;
    pool_put_about(t, j, attempt, losses, reason, &line);
    say(r, line.p, line.len);
}

/* ---- jobs ---------------------------------------------------------------------------------------------------------*/

static struct relay_job **place_of(struct relay *r, const char *j) {
    char head[9];
    snprintf(head, sizeof head, "%.8s", j);
    struct relay_job **at = &r->table[strtoul(head, NULL, 16) % TABLE];
    while (*at && strcmp((*at)->j, j) != 0) at = &(*at)->next;
    return at;
}

static void drop_job(struct relay_job **at) {
    struct relay_job *job = *at;
    *at = job->next;
    free(job->line);
    free(job);
}

static void on_published(void *ctx, const struct js_reply *reply);
static void end_hedge(struct relay *r, const struct relay_job *job);

struct relay_question {
    struct relay *r;
    char j[33];
    int attempt;
};

static struct relay_question *ask_about(struct relay *r, const struct relay_job *job) {
    struct relay_question *q = xcalloc(1, sizeof *q);
    q->r = r;
    q->attempt = job->attempt;
    snprintf(q->j, sizeof q->j, "%s", job->j);
    return q;
}

static void publish(struct relay *r, struct relay_job *job) {
    char subject[FARM_SUBJECT_BYTES], id[60];
    snprintf(subject, sizeof subject, "krl.job.%s.%s", job->class, job->suspect ? FARM_LANE_SUSPECT : FARM_LANE);
    snprintf(id, sizeof id, "%s.%d", job->j, job->attempt);
    job->sent_s = clock_now_s();
    job->seq = 0;
    js_publish(r->js, subject, id, NULL, job->line, job->n, publish_s, on_published, ask_about(r, job));
}

/* The server refuses it, as when its disk is full: the pool keeps it, and sends nothing for a while. */
static void on_published(void *ctx, const struct js_reply *reply) {
    struct relay_question *q = ctx;
    struct relay *r = q->r;
    struct relay_job **at = place_of(r, q->j), *job = *at;
    if (job && job->attempt == q->attempt) {
        const bool known = json_is_true(json_object_get(reply->json, "duplicate"));
        const int64_t seq = json_integer_value(json_object_get(reply->json, "seq"));
        if (reply->good && known && seq <= 0) {
            /* It remembers the name of a message that it could not keep, as when its disk was full. */
            say_about(r, MESSAGE_RETURNED, job->j, job->attempt, 0, "the server has lost it, and kept its name");
            drop_job(at);
        } else if (reply->good) {
            job->seq = seq;
            /* An earlier process has asked for it. Its verdict is on its way, or it is there no more: see soon. */
            if (known) job->sent_s -= job->budget_s - duplicate_s;
        } else if (reply->code == ERR_STREAM_MISSING || !reply->json) {
            r->check_at = 0; /* nobody answered: it is sent again when the stream is there */
        } else {
            r->refused_until = clock_now_s() + refused_pause_s;
            snprintf(r->refusal, sizeof r->refusal, "the server takes no job: %s", reply->error);
            log_warn("%s", r->refusal);
            say_about(r, MESSAGE_RETURNED, job->j, job->attempt, 0, r->refusal);
            drop_job(at);
        }
    }
    free(q);
}

static void take_job(struct relay *r, const struct pool_message *m, const char *line, size_t n) {
    struct relay_job **at = place_of(r, m->j), *job;
    if (*at) drop_job(at); /* a later attempt takes its place */
    job = xcalloc(1, sizeof *job);
    snprintf(job->j, sizeof job->j, "%s", m->j);
    snprintf(job->class, sizeof job->class, "%s", m->job.terms.class);
    job->attempt = m->attempt;
    job->suspect = m->job.suspect;
    job->budget_s = m->job.budget_s;
    job->line = xstrndup(line, n);
    job->n = n;
    const struct digest answer = verify_key(&m->job.problem, m->job.source);
    farm_cache_key(m->job.terms.settings_hash, m->job.terms.class, &answer, job->cache_key, sizeof job->cache_key);
    at = place_of(r, m->j);
    *at = job;
    if (r->streams_made && r->consumers_made >= r->n_classes) publish(r, job);
}

/* Takes a job out of the queue, if it is there. */
static void delete_message(struct relay *r, int64_t seq) {
    char body[80];
    if (seq <= 0) return;
    snprintf(body, sizeof body, "{\"seq\":%lld,\"no_erase\":true}", (long long)seq);
    js_request(r->js, "$JS.API.STREAM.MSG.DELETE." FARM_JOBS, body, 5, NULL, NULL);
}

static void cancel_job(struct relay *r, const struct pool_message *m, const char *line, size_t n) {
    CLEANUP_STR struct str text = STR_INIT;
    char subject[60];
    struct relay_job **at = m->j ? place_of(r, m->j) : NULL;
    if (m->waiting) return; /* there is nothing to be recalled from a queue: who is idle takes the next one */
    snprintf(subject, sizeof subject, "krl.cancel.%s", r->run);
    str_add(&text, line, n);
    js_tell(r->js, subject, text.p);
    if (!at || !*at) return;
    delete_message(r, (*at)->seq);
    say_about(r, MESSAGE_RETURNED, (*at)->j, (*at)->attempt, 0, "nobody wants it any more");
    drop_job(at);
}

static void ack_verdict(struct relay *r, const char *j) {
    for (struct relay_verdict **at = &r->verdicts, *v; (v = *at);) {
        if (strcmp(v->j, j) != 0) {
            at = &v->next;
            continue;
        }
        js_ack(r->js, v->ack, NULL, NULL);
        *at = v->next;
        free(v);
    }
}

/* ---- verdicts -----------------------------------------------------------------------------------------------------*/

/* Public keys of workers, a line each; the file may change while a run goes on. */
static void read_keys(struct relay *r) {
    char path[4200];
    CLEANUP_FREE char *text = NULL;
    struct err e;
    if (!r->o->folder) return;
    snprintf(path, sizeof path, "%s/workers", r->o->folder);
    if (!fs_is_file(path)) return;
    r->has_keys = true;
    if (fs_read(path, 1 << 20, &text, NULL, &e) != ST_OK) {
        log_warn("%s", e.msg);
        return;
    }
    r->n_keys = 0;
    char *rest = text;
    for (char *one; (one = strsep(&rest, "\n")) && r->n_keys < KEYS_MAX;) {
        one[strcspn(one, " \t\r#")] = 0;
        if (nkey_is_public(one)) snprintf(r->key[r->n_keys++], sizeof r->key[0], "%s", one);
    }
}

static bool is_known(const struct relay *r, const char *key) {
    for (int i = 0; i < r->n_keys; i++)
        if (strcmp(r->key[i], key) == 0) return true;
    return false;
}

/* Who may say it. What is wrong is written to why. */
static bool is_genuine(struct relay *r, const struct js_message *m, char *why, size_t size) {
    CLEANUP_STR struct str text = STR_INIT;
    const char *key = js_header(r->js, m, "Krl-Key"), *sig = js_header(r->js, m, "Krl-Sig");
    if (!r->has_keys) return true;
    if (!key || !sig) {
        snprintf(why, size, "it is not signed");
        return false;
    }
    farm_signed_text(m->subject, m->data, m->n, &text);
    if (!is_known(r, key))
        snprintf(why, size, "it is signed with the key %.60s, which is none of the farm's workers", key);
    else if (!nkey_verify(key, text.p, text.len, sig))
        snprintf(why, size, "its signature is not that of the key %.60s", key);
    else
        return true;
    return false;
}

/* A verdict that two other hosts have given: both have signed it, and it is that of this answer. */
static bool is_confirmed(struct relay *r, const struct js_message *m, const struct relay_job *job, char *why,
                         size_t size) {
    static const char *const names[] = {"Krl-Cache-1", "Krl-Cache-2"};
    struct verdict v[2];
    char signer[2][64];
    if (!job) {
        snprintf(why, size, "it is of the cache, and of a job that nobody has asked for");
        return false;
    }
    for (int i = 0; i < 2; i++) {
        const char *entry = js_header(r->js, m, names[i]);
        if (entry && farm_cache_read(entry, strlen(entry), job->cache_key, &v[i], signer[i]) &&
            (!r->has_keys || is_known(r, signer[i])))
            continue;
        snprintf(why, size, "it is of the cache, and not confirmed by two workers");
        return false;
    }
    if (strcmp(signer[0], signer[1]) != 0 && verdicts_agree(&v[0], &v[1])) return true;
    snprintf(why, size, "it is of the cache, and only one worker has confirmed it");
    return false;
}

static void refuse(struct relay *r, const struct js_message *m, const char *why) {
    CLEANUP_STR struct str line = STR_INIT;
    pool_put_refused(NULL, 0, "signature", NULL, NULL, why, &line);

    say(r, line.p, line.len);
    js_ack(r->js, m->ack, NULL, NULL); /* it counts no more */
}

/* Hosts say what became of a lease: the pool counts what was lost. */
static void take_note(struct relay *r, const struct pool_message *m, const char *line, size_t n) {
    struct relay_job **at = place_of(r, m->j), *job = *at;
    if (!job || job->attempt != m->attempt) return;
    if (m->type == MESSAGE_RETURNED) {
        job->returns++;
    } else if (m->type == MESSAGE_REFUSED) {
        job->returns++;
        CLEANUP_STR struct str text = STR_INIT;
        pool_put_refused(NULL, 0, "host", m->here, m->there, m->reason ? m->reason : "", &text);
        say(r, text.p, text.len);
    } else if (m->type == MESSAGE_LOST) {
        const int losses = m->losses - job->returns;
        say_about(r, losses > 0 ? MESSAGE_LOST : MESSAGE_RETURNED, m->j, m->attempt, losses > 0 ? losses : 0,
                  m->reason);
        drop_job(at);
    }
    (void)line;
    (void)n;
}

/* The pool knows the attempt that it has asked for last: a verdict of an earlier one is a verdict, too. */
static void pass_on(struct relay *r, const struct js_message *m, const struct pool_message *v, struct relay_job **at) {
    CLEANUP_STR struct str line = STR_INIT;
    struct relay_verdict *kept = r->verdicts;
    while (kept && strcmp(kept->j, v->j) != 0) kept = kept->next;
    if (kept && !*at) { /* the pool has it, and has not kept it yet: it is given once */
        snprintf(kept->ack, sizeof kept->ack, "%s", m->ack);
        return;
    }
    kept = xcalloc(1, sizeof *kept);
    snprintf(kept->j, sizeof kept->j, "%s", v->j);
    snprintf(kept->ack, sizeof kept->ack, "%s", m->ack);
    kept->renew_at = clock_now_s() + 0.3 * verdict_wait_s;
    kept->next = r->verdicts;
    r->verdicts = kept;
    pool_put_verdict(v->j, *at ? (*at)->attempt : v->attempt, &v->verdict, &v->witness, v->cached, !*at, &line);
    if (*at) {
        end_hedge(r, *at);
        drop_job(at);
    }
    say(r, line.p, line.len);
}

static void on_verdict(void *ctx, const struct js_message *m) {
    struct relay *r = ctx;
    struct pool_message v;
    struct err e;
    char why[300] = "";
    if (pool_message_read(m->data, m->n, "verdict", &v, &e) != ST_OK || !v.j) {
        refuse(r, m, "a line that is no verdict");
        pool_message_free(&v);
        return;
    }
    struct relay_job **at = place_of(r, v.j);
    if (!is_genuine(r, m, why, sizeof why) ||
        (v.type == MESSAGE_VERDICT && v.cached && !is_confirmed(r, m, *at, why, sizeof why))) {
        CLEANUP_STR struct str text = STR_INIT;
        str_addf(&text, "a %s of %.100s: %s", message_name(v.type), v.witness.worker ? v.witness.worker : "somebody",
                 why);
        refuse(r, m, text.p);
        if (*at && v.attempt == (*at)->attempt && v.type == MESSAGE_VERDICT) {
            /* The server may have dropped the true one as the second of its name: another attempt has another name. */
            say_about(r, MESSAGE_RETURNED, v.j, v.attempt, 0, "a verdict on it was refused");
            drop_job(at);
        }
    } else if (v.type == MESSAGE_VERDICT) {
        pass_on(r, m, &v, at);
    } else {
        take_note(r, &v, m->data, m->n);
        js_ack(r->js, m->ack, NULL, NULL);
    }
    pool_message_free(&v);
}

/* The server gives a job to nobody any more: it was given out as often as it may be. */
static void on_advisory(void *ctx, const struct js_message *m) {
    struct relay *r = ctx;
    CLEANUP_JSON json_t *o = NULL;
    struct err e;
    int64_t seq, deliveries;
    if (js_parse(m->data, m->n, "advisory", &o, &e) != ST_OK ||
        js_get_i64(o, "advisory", "stream_seq", &seq, &e) != ST_OK ||
        js_get_i64(o, "advisory", "deliveries", &deliveries, &e) != ST_OK)
        return;
    for (size_t b = 0; b < TABLE; b++)
        for (struct relay_job **at = &r->table[b], *job; (job = *at); at = &job->next) {
            if (job->seq != seq) continue;
            const int losses = (int)deliveries - job->returns;
            delete_message(r, seq);
            say_about(r, losses > 0 ? MESSAGE_LOST : MESSAGE_RETURNED, job->j, job->attempt, losses > 0 ? losses : 0,
                      "the server gave it out as often as it may, and nobody gave a verdict");
            drop_job(at);
            return;
        }
}

/* ---- hosts --------------------------------------------------------------------------------------------------------*/

static void on_host(void *ctx, const struct js_message *m) {
    struct relay *r = ctx;
    const char *name = m->subject + strlen(FARM_WORKERS_SUBJECT) + 1;
    CLEANUP_JSON json_t *o = NULL;
    struct err e;
    int64_t slots = 0;
    bool draining = false;
    int i = 0;
    while (i < r->n_hosts && strcmp(r->host[i].name, name) != 0) i++;
    if (i == r->n_hosts && (r->n_hosts == HOSTS_MAX || strlen(name) >= HOST_NAME_BYTES)) return;
    struct farm_host *h = &r->host[i];
    if (i == r->n_hosts) r->n_hosts++;
    *h = (struct farm_host){.heard_s = clock_now_s()};
    snprintf(h->name, sizeof h->name, "%s", name);
    if (m->n == 0 || js_parse(m->data, m->n, name, &o, &e) != ST_OK ||
        js_get_i64(o, name, "slots", &slots, &e) != ST_OK || js_opt_bool(o, name, "draining", &draining, &e) != ST_OK)
        return; /* it has left: no slots */
    const json_t *list = json_object_get(o, "classes");
    for (size_t k = 0; k < json_array_size(list) && h->n_classes < PROTOCOL_CLASSES; k++) {
        const char *class = json_string_value(json_array_get(list, k));
        if (class) snprintf(h->class[h->n_classes++], CLASS_BYTES, "%s", class);
    }
    h->slots = draining || slots < 0 || slots > 100000 ? 0 : (int)slots;
}

/* Entries that were there before this process listened. */
static void on_entry(void *ctx, const struct js_reply *reply) {
    const json_t *message = reply->good ? json_object_get(reply->json, "message") : NULL;
    const char *subject = json_string_value(json_object_get(message, "subject")),
               *data = json_string_value(json_object_get(message, "data"));
    if (!subject || !data || !str_has_prefix(subject, FARM_WORKERS_SUBJECT ".")) return;
    const size_t n = strlen(data);
    CLEANUP_FREE char *text = xmalloc(n + 1);
    const int got = EVP_DecodeBlock((unsigned char *)text, (const unsigned char *)data, (int)n);
    if (got < 0) return;
    const int pad = n >= 2 && data[n - 1] == '=' ? 1 + (data[n - 2] == '=') : 0;
    on_host(ctx, &(struct js_message){.subject = subject, .data = text, .n = (size_t)(got - pad)});
}

static void on_entries(void *ctx, const struct js_reply *reply) {
    struct relay *r = ctx;
    const json_t *subjects = reply->good ? json_object_get(json_object_get(reply->json, "state"), "subjects") : NULL;
    const char *subject;
    json_t *unused;
    json_object_foreach((json_t *)(uintptr_t)subjects, subject, unused) {
        CLEANUP_STR struct str body = STR_INIT;
        js_begin(&body, NULL, '{');
        js_put_str(&body, "last_by_subj", subject);
        js_end(&body, '}');
        js_request(r->js, "$JS.API.STREAM.MSG.GET." FARM_WORKERS, body.p, 5, on_entry, r);
    }
}

static bool serves(const struct relay *r, const struct farm_host *h) {
    for (int i = 0; i < h->n_classes; i++)
        for (int c = 0; c < r->n_classes; c++)
            if (strcmp(h->class[i], r -> class[c]) == 0) return true;
    return false;
}

/* How many slots there are, as far as the pool does not know; none while the server takes nothing. */
static void tell_slots(struct relay *r, double now) {
    CLEANUP_STR struct str line = STR_INIT;
    int slots = 0, hosts = 0;
    for (int i = 0; i < r->n_hosts; i++) {
        const struct farm_host *h = &r->host[i];
        if (now - h->heard_s > farm_gone_s || h->slots == 0 || !serves(r, h)) continue;
        slots += h->slots;
        hosts++;
    }
    if (now < r->refused_until || !js_connected(r->js)) slots = 0;
    if (!r->opened || (slots == r->told_slots && hosts == r->told_hosts && r->redelivered == r->told_redelivered))
        return;
    char why[200] = "";
    if (!js_connected(r->js)) js_why(r->js, why, sizeof why);
    const char *reason = slots > 0                ? NULL
                         : !js_connected(r->js)   ? (why[0] ? why : "no connection to the server")
                         : now < r->refused_until ? r->refusal
                                                  : "no host of this kind is registered";
    pool_put_slots(slots, hosts, r->queue, r->redelivered - r->told_redelivered, reason, &line);
    r->told_slots = slots;
    r->told_hosts = hosts;
    r->told_redelivered = r->redelivered;
    say(r, line.p, line.len);
}

/* ---- streams ------------------------------------------------------------------------------------------------------*/

static void make_stream(struct relay *r, const char *name, const char *subjects, const char *more, js_reply_fn *fn) {
    CLEANUP_STR struct str body = STR_INIT;
    char subject[100];
    snprintf(subject, sizeof subject, "$JS.API.STREAM.CREATE.%s", name);
    str_addf(&body, "{\"name\":\"%s\",\"subjects\":[\"%s\"],\"storage\":\"file\",\"num_replicas\":1,%s}", name,
             subjects, more);
    js_request(r->js, subject, body.p, 10, fn, r);
}

static void on_stream(void *ctx, const struct js_reply *reply) {
    /* 10058: it is there, made by somebody else with other settings (replicas, size), which are the site's to choose.
     */
    if (!reply->good && reply->code != 10058) log_warn("a stream cannot be made: %s", reply->error);
    (void)ctx;
}

static void on_jobs_made(void *ctx, const struct js_reply *reply) {
    struct relay *r = ctx;
    on_stream(ctx, reply);
    r->streams_made = reply->good || reply->code == 10058;
    r->check_at = 0;
}

static void make_streams(struct relay *r) {
    const long long s = 1000000000LL;
    char jobs[400], verdicts[400], cache[400], workers[400];
    snprintf(jobs, sizeof jobs,
             "\"retention\":\"workqueue\",\"discard\":\"new\",\"max_age\":%lld,\"max_bytes\":4294967296,"
             "\"duplicate_window\":%lld",
             7200 * s, 600 * s);
    snprintf(verdicts, sizeof verdicts,
             "\"retention\":\"limits\",\"discard\":\"old\",\"max_age\":%lld,\"max_bytes\":4294967296,"
             "\"duplicate_window\":%lld",
             86400 * s, 7200 * s);
    static const char kv[] = "\"retention\":\"limits\",\"discard\":\"new\",\"max_age\":%lld,\"max_msgs_per_subject\":1,"
                             "\"allow_rollup_hdrs\":true,\"deny_delete\":true,\"allow_direct\":true,"
                             "\"duplicate_window\":%lld%s";
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(cache, sizeof cache, kv, 30 * 86400 * s, 120 * s, ",\"max_bytes\":1073741824");
    snprintf(workers, sizeof workers, kv, (long long)farm_gone_s * s, (long long)farm_gone_s * s, "");
#pragma GCC diagnostic pop
    make_stream(r, FARM_VERDICTS, "krl.verdict.>", verdicts, on_stream);
    make_stream(r, FARM_CACHE, FARM_CACHE_SUBJECT ".>", cache, on_stream);
    make_stream(r, FARM_WORKERS, FARM_WORKERS_SUBJECT ".>", workers, on_stream);
    make_stream(r, FARM_JOBS, "krl.job.>", jobs, on_jobs_made);
}

static void on_consumer_made(void *ctx, const struct js_reply *reply) {
    struct relay *r = ctx;
    if (reply->good)
        r->consumers_made++;
    else
        log_warn("a consumer cannot be made: %s", reply->error);
}

static void on_verdicts_bound(void *ctx, const struct js_reply *reply) {
    struct relay *r = ctx;
    r->verdicts_bound = reply->good;
    if (!reply->good) log_warn("the consumer of verdicts cannot be made: %s", reply->error);
}

static void make_consumer(struct relay *r, const char *stream, const char *name, const char *filter, double ack_wait_s,
                          int most, int pending, js_reply_fn *fn) {
    CLEANUP_STR struct str body = STR_INIT;
    char subject[FARM_SUBJECT_BYTES];
    snprintf(subject, sizeof subject, "$JS.API.CONSUMER.DURABLE.CREATE.%s.%s", stream, name);
    str_addf(&body,
             "{\"stream_name\":\"%s\",\"config\":{\"durable_name\":\"%s\",\"ack_policy\":\"explicit\","
             "\"deliver_policy\":\"all\",\"filter_subject\":\"%s\",\"ack_wait\":%lld,\"max_deliver\":%d,"
             "\"max_ack_pending\":%d}}",
             stream, name, filter, (long long)(ack_wait_s * 1e9), most, pending);
    js_request(r->js, subject, body.p, 10, fn, r);
}

static void make_consumers(struct relay *r) {
    char name[CLASS_BYTES + 8], filter[FARM_SUBJECT_BYTES];
    r->consumers_made = 0;
    for (int c = 0; c < r->n_classes; c++) {
        snprintf(name, sizeof name, "w-%s", r->class[c]);
        snprintf(filter, sizeof filter, "krl.job.%s." FARM_LANE, r->class[c]);
        make_consumer(r, FARM_JOBS, name, filter, r->o->lease_s, 4, 20000, on_consumer_made);
        snprintf(name, sizeof name, "s-%s", r->class[c]);
        snprintf(filter, sizeof filter, "krl.job.%s." FARM_LANE_SUSPECT, r->class[c]);
        make_consumer(r, FARM_JOBS, name, filter, r->o->lease_s, 1, 1, on_stream);
    }
    snprintf(name, sizeof name, "t-%s", r->run);
    snprintf(filter, sizeof filter, "krl.verdict.%s", r->run);
    make_consumer(r, FARM_VERDICTS, name, filter, verdict_wait_s, -1, 20000, on_verdicts_bound);
}

/* All that the server may have lost. */
static void publish_all(struct relay *r) {
    for (size_t b = 0; b < TABLE; b++)
        for (struct relay_job *job = r->table[b]; job; job = job->next) publish(r, job);
}

static void on_jobs_info(void *ctx, const struct js_reply *reply) {
    struct relay *r = ctx;
    const char *created = json_string_value(json_object_get(reply->json, "created"));
    if (!reply->good && reply->code == ERR_STREAM_MISSING) {
        log_warn("the server has no stream of jobs; it is made, and what has no verdict is sent again");
        r->streams_made = r->verdicts_bound = false;
        r->created[0] = 0;
        make_streams(r);
        return;
    }
    if (!reply->good || !created) return;
    if (strcmp(created, r->created) != 0) {
        snprintf(r->created, sizeof r->created, "%s", created);
        if (r->opened) {
            make_consumers(r);
            publish_all(r);
        }
    } else if (r->opened && !r->verdicts_bound) {
        make_consumers(r);
    }
}

static void on_lane_info(void *ctx, const struct js_reply *reply) {
    struct relay_question *q = ctx;
    struct relay *r = q->r;
    struct lane *lane = &r->lane[q->attempt];
    free(q);
    if (!reply->good) {
        lane->idle_since = 0;
        return;
    }
    lane->waiting = json_integer_value(json_object_get(reply->json, "num_pending"));
    lane->redelivered = json_integer_value(json_object_get(reply->json, "num_redelivered"));
    const bool idle = lane->waiting == 0 && json_integer_value(json_object_get(reply->json, "num_ack_pending")) == 0;
    lane->idle_since = !idle ? 0 : lane->idle_since > 0 ? lane->idle_since : clock_now_s();
    int64_t again = r->queue = 0;
    for (int c = 0; c < r->n_classes; c++) {
        r->queue += r->lane[c].waiting;
        again += r->lane[c].redelivered;
    }
    if (again > r->redelivered) r->redelivered = again;
}

/* A server whose disk was full, or which had lost the end of a stream, may keep a message that it takes for delivered:
 * nobody ever gets it. Its lane is idle, and the job has no verdict. */
static bool is_stranded(const struct relay *r, const struct relay_job *job, double now) {
    int c = 0;
    while (c < r->n_classes && strcmp(r->class[c], job -> class) != 0) c++;
    const double idle_since = c < r->n_classes ? r->lane[c].idle_since : 0;
    return !job->suspect && idle_since > 0 && now - fmax(idle_since, job->sent_s) > stranded_s;
}

/* A stream that lost its end counts from an earlier number again, and its consumers pass over what is below the number
 * that they have seen. Consumers that are made anew begin at the stream's first message. Nothing is at a host at this
 * time; verdicts that come twice are known. They are made by the next check(). */
static void forget_consumers(struct relay *r, double now) {
    char subject[FARM_SUBJECT_BYTES];
    log_warn("the server keeps jobs and gives them to nobody; its consumers are made anew");
    for (int c = 0; c < r->n_classes; c++) {
        snprintf(subject, sizeof subject, "$JS.API.CONSUMER.DELETE." FARM_JOBS ".w-%s", r->class[c]);
        js_request(r->js, subject, "", 5, NULL, NULL);
        r->lane[c].idle_since = 0;
    }
    snprintf(subject, sizeof subject, "$JS.API.CONSUMER.DELETE." FARM_VERDICTS ".t-%s", r->run);
    js_request(r->js, subject, "", 5, NULL, NULL);
    r->verdicts_bound = false;
    r->forgot_at = now;
}

static void unstrand(struct relay *r, double now) {
    for (size_t b = 0; b < TABLE; b++)
        for (struct relay_job **at = &r->table[b], *job; (job = *at);) {
            if (job->seq == 0 || !is_stranded(r, job, now)) {
                at = &job->next;
                continue;
            }
            if (r->forgot_at == 0 || now - r->forgot_at > 6 * stranded_s) {
                forget_consumers(r, now);
                return;
            }
            delete_message(r, job->seq);
            say_about(r, MESSAGE_RETURNED, job->j, job->attempt, 0, "the server has it, and gives it to nobody");
            drop_job(at);
        }
}

/* A job that is nowhere any more, without a verdict: what a server had not written when its machine lost its power. */
static void on_job_info(void *ctx, const struct js_reply *reply) {
    struct relay_question *q = ctx;
    struct relay_job **at = place_of(q->r, q->j), *job = *at;
    if (job && job->attempt == q->attempt && !reply->good && reply->code == 10037) {
        say_about(q->r, MESSAGE_RETURNED, job->j, job->attempt, 0, "the server has lost it");
        drop_job(at);
    } else if (job) {
        job->sent_s = clock_now_s();
    }
    free(q);
}

static void look_for_lost(struct relay *r, double now) {
    char body[60];
    for (size_t b = 0; b < TABLE; b++)
        for (struct relay_job *job = r->table[b]; job; job = job->next) {
            if (now - job->sent_s < job->budget_s || job->seq == 0) continue;
            job->sent_s = now;
            snprintf(body, sizeof body, "{\"seq\":%lld}", (long long)job->seq);
            js_request(r->js, "$JS.API.STREAM.MSG.GET." FARM_JOBS, body, 5, on_job_info, ask_about(r, job));
        }
}

static void check(struct relay *r, double now) {
    char subject[FARM_SUBJECT_BYTES];
    if (now < r->check_at || !js_connected(r->js)) return;
    r->check_at = now + check_s;
    js_request(r->js, "$JS.API.STREAM.INFO." FARM_JOBS, "", 5, on_jobs_info, r);
    if (!r->opened || r->created[0] == 0) return;
    for (int c = 0; c < r->n_classes; c++) {
        struct relay_question *q = xcalloc(1, sizeof *q);
        q->r = r;
        q->attempt = c;
        snprintf(subject, sizeof subject, "$JS.API.CONSUMER.INFO." FARM_JOBS ".w-%s", r->class[c]);
        js_request(r->js, subject, "", 5, on_lane_info, q);
    }
    look_for_lost(r, now);
    unstrand(r, now);
    read_keys(r);
    /* Published when the stream was missing, or when nobody answered. */
    for (size_t b = 0; b < TABLE; b++)
        for (struct relay_job *job = r->table[b]; job; job = job->next)
            if (job->seq == 0 && now - job->sent_s > publish_s + 1) publish(r, job);
}

/* ---- from the pool ------------------------------------------------------------------------------------------------*/

static void greet(struct relay *r, double now) {
    struct pool_message m = {.protocol = PROTOCOL_VERSION, .program = KERNELRL_VERSION, .host = "farm", .ahead = AHEAD};
    CLEANUP_STR struct str line = STR_INIT;
    bool enough = !r->o->family;
    char family[16] = "";
    if (r->greeted || !js_connected(r->js) || r->created[0] == 0) return;
    if (r->o->family) snprintf(family, sizeof family, "%s-", r->o->family);
    for (int i = 0; i < r->n_hosts; i++)
        for (int k = 0; k < r->host[i].n_classes && m.n_classes < PROTOCOL_CLASSES; k++) {
            if (now - r->host[i].heard_s > farm_gone_s || r->host[i].slots == 0) continue;
            m.class[m.n_classes++] = r->host[i].class[k];
            enough |= r->o->family && str_has_prefix(r->host[i].class[k], family);
        }
    if (!enough) return;
    m.beat_s = r->o->beat_s;
    r->greeted = true;
    pool_put_hello(&m, &line);
    say(r, line.p, line.len);
}

static void open_run(struct relay *r, const struct pool_message *m) {
    CLEANUP_STR struct str line = STR_INIT;
    CLEANUP_FREE char *classes = xstrdup(m->terms.class ? m->terms.class : "");
    char *rest = classes;
    for (char *one; (one = strsep(&rest, ",")) && r->n_classes < PROTOCOL_CLASSES;)
        if (*one) snprintf(r->class[r->n_classes++], CLASS_BYTES, "%s", one);
    snprintf(r->run, sizeof r->run, "%s", m->terms.run);
    char consumer[40];
    snprintf(consumer, sizeof consumer, "t-%s", r->run);
    r->pull = js_pull_make(r->js, FARM_VERDICTS, consumer, on_verdict, r);
    r->opened = true;
    r->told_slots = -1;
    make_consumers(r);
    pool_put_ready("", &line);
    say(r, line.p, line.len);
}

/* A job that takes far longer than others, while nothing waits: another host gets it, too. */
static void on_hedged(void *ctx, const struct js_reply *reply) {
    struct relay_question *q = ctx;
    struct relay_job *job = *place_of(q->r, q->j);
    const int64_t seq = reply->good ? json_integer_value(json_object_get(reply->json, "seq")) : 0;
    if (job && job->attempt == q->attempt)
        job->hedge_seq = seq;
    else
        delete_message(q->r, seq); /* its verdict came meanwhile */
    free(q);
}

static void hedge(struct relay *r, double now) {
    double sorted[DURATIONS];
    const int n = r->n_durations < DURATIONS ? r->n_durations : DURATIONS;
    if (n < 8 || r->queue > 0 || !js_connected(r->js)) return;
    memcpy(sorted, r->duration, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, ascending_f64);
    const double patience = fmax(hedge_s, 3 * sorted[n / 2]);
    for (size_t b = 0; b < TABLE; b++)
        for (struct relay_job *job = r->table[b]; job; job = job->next) {
            char subject[FARM_SUBJECT_BYTES], id[60];
            if (job->hedged || job->suspect || job->seq == 0 || now - job->sent_s < patience) continue;
            job->hedged = true;
            snprintf(subject, sizeof subject, "krl.job.%s." FARM_LANE, job->class);
            snprintf(id, sizeof id, "%s.%d.hedge", job->j, job->attempt);
            js_publish(r->js, subject, id, NULL, job->line, job->n, publish_s, on_hedged, ask_about(r, job));
            return;
        }
}

/* The verdict is there: a second host need not go on. */
static void end_hedge(struct relay *r, const struct relay_job *job) {
    CLEANUP_STR struct str line = STR_INIT;
    char subject[60];
    r->duration[r->n_durations++ % DURATIONS] = clock_now_s() - job->sent_s;
    if (!job->hedged) return;
    delete_message(r, job->hedge_seq);
    delete_message(r, job->seq);
    snprintf(subject, sizeof subject, "krl.cancel.%s", r->run);
    pool_put_about(MESSAGE_CANCEL, job->j, job->attempt, 0, NULL, &line);
    js_tell(r->js, subject, line.p);
}

static void take_line(struct relay *r, const char *line, size_t n) {
    struct pool_message m;
    struct err e;
    if (pool_message_read(line, n, "relay: standard input", &m, &e) != ST_OK)
        log_warn("%s", e.msg);
    else if (m.type == MESSAGE_OPEN && !r->opened)
        open_run(r, &m);
    else if (m.type == MESSAGE_JOB && r->opened)
        take_job(r, &m, line, n);
    else if (m.type == MESSAGE_CANCEL)
        cancel_job(r, &m, line, n);
    else if (m.type == MESSAGE_ACK)
        ack_verdict(r, m.j);
    else if (m.type == MESSAGE_DRAIN)
        r->drained = true;
    pool_message_free(&m);
}

static void read_lines(struct relay *r, struct line_reader *reader) {
    char bytes[1 << 16], *line;
    uint64_t n;
    const ssize_t got = read(r->o->in, bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) return;
    if (got <= 0) {
        r->gone = true;
        return;
    }
    line_reader_feed(reader, bytes, (size_t)got);
    for (enum line_kind k; (k = line_reader_next(reader, &line, &n)) != LINE_NONE;)
        if (k == LINE_WHOLE) take_line(r, line, (size_t)n);
}

/* ---- the process --------------------------------------------------------------------------------------------------*/

static void on_connection(struct relay *r) {
    const bool up = js_connected(r->js);
    char why[200];
    if (up == r->was_connected) return;
    r->was_connected = up;
    js_why(r->js, why, sizeof why);
    if (up) make_streams(r);
    if (!up) {
        log_warn("%s: the connection has ended%s%s; trying again", r->o->url, why[0] ? ": " : "", why);
        return;
    }
    r->check_at = r->pull_at = 0;
    js_request(r->js, "$JS.API.STREAM.INFO." FARM_WORKERS, "{\"subjects_filter\":\">\"}", 5, on_entries, r);
}

static void pull(struct relay *r, double now) {
    if (!r->pull || !r->verdicts_bound || !js_connected(r->js)) return;
    if (js_pull_failed(r->pull) && now < r->pull_at) return;
    if (js_pull_open(r->pull) > PULL / 4) return;
    r->pull_at = now + 1;
    js_pull_ask(r->pull, PULL, 5);
}

/* Verdicts that the pool has not kept yet are this process's. */
static void renew(struct relay *r, double now) {
    for (struct relay_verdict *v = r->verdicts; v; v = v->next) {
        if (now < v->renew_at) continue;
        js_progress(r->js, v->ack);
        v->renew_at = now + 0.3 * verdict_wait_s;
    }
}

static void beat(struct relay *r, double now) {
    CLEANUP_STR struct str line = STR_INIT;
    if (now < r->beat_at || !r->greeted) return;
    r->beat_at = now + r->o->beat_s;
    pool_put_beat(0, (double)NAN, &line);
    say(r, line.p, line.len);
}

static enum status open_relay(struct relay *r, struct err *e) {
    const struct js_options connection = {
        .url = r->o->url, .name = "kernelrl trainer", .folder = r->o->folder, .ping_s = fmin(5, r->o->lease_s / 2)};
    TRY(js_open(&connection, &r->js, e));
    TRY(js_listen(r->js, FARM_WORKERS_SUBJECT ".*", on_host, r, e));
    return js_listen(r->js, "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES." FARM_JOBS ".*", on_advisory, r, e);
}

static void tell_runs_end(struct relay *r) {
    CLEANUP_STR struct str line = STR_INIT;
    char subject[60];
    for (size_t b = 0; b < TABLE; b++)
        while (r->table[b]) {
            delete_message(r, r->table[b]->seq);
            drop_job(&r->table[b]);
        }
    if (!r->opened) return;
    snprintf(subject, sizeof subject, "krl.cancel.%s", r->run);
    pool_put_cancel_run(r->run, &line);
    js_tell(r->js, subject, line.p);
}

int relay_run(const struct relay_options *o) {
    static struct relay r;
    struct err e;
    struct line_reader reader = line_reader_make(PROTOCOL_LINE_BYTES);
    const double began = clock_now_s();
    signal(SIGPIPE, SIG_IGN);
    r.o = o;
    if (open_relay(&r, &e) != ST_OK) {
        log_error("%s", e.msg);
        return 1;
    }
    read_keys(&r);
    while (!r.gone) {
        struct pollfd p[2] = {{.fd = o->in, .events = POLLIN}, {.fd = js_fd(r.js), .events = POLLIN}};
        (void)poll(p, 2, 100);
        if (p[0].revents) read_lines(&r, &reader);
        js_step(r.js);
        const double now = clock_now_s();
        on_connection(&r);
        check(&r, now);
        greet(&r, now);
        tell_slots(&r, now);
        pull(&r, now);
        hedge(&r, now);
        renew(&r, now);
        beat(&r, now);
        if (js_closed(r.js) || (!r.greeted && !js_connected(r.js) && now - began > first_connect_s)) {
            char why[200];
            js_why(r.js, why, sizeof why);
            log_error("%s: no connection%s%s", o->url, why[0] ? ": " : "", why);
            return 1;
        }
    }
    /* A trainer that died comes back, and finds what its workers have found out meanwhile. */
    if (r.drained) tell_runs_end(&r);
    js_close(r.js);
    line_reader_free(&reader);
    return 0;
}
