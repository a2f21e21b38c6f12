#include "verify/pool/protocol.h"

#include <limits.h>
#include <math.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

static const char *const names[] = {
#define X(id, name) [id] = #name,
    MESSAGE_LIST(X)
#undef X
};

const char *message_name(enum message_type t) { return t < MESSAGE_UNKNOWN ? names[t] : "unknown"; }

/* ---- settings -----------------------------------------------------------------------------------------------------*/

static const char *const scoring_names[] = {CHOICE_NAMES(SCORING_LIST)};
static const char *const staging_names[] = {CHOICE_NAMES(STAGING_LIST)};

bool pool_settings_on_gpu(const struct verify_options *o) {
    return o->device ? strncmp(o->device, "cuda", 4) == 0 : !backend_info(o->backend)->on_cpu;
}

static struct verify_options normal(const struct verify_options *o) {
    struct verify_options n = *o;
    n.device = pool_settings_on_gpu(o) ? "cuda" : "cpu";
    return n;
}

#define PUT_BACKEND(k, v) js_put_str(out, k, backend_name(v))
#define PUT_SCORING(k, v) js_put_str(out, k, scoring_names[v])
#define PUT_STAGING(k, v) js_put_str(out, k, staging_names[v])
#define PUT_TIMING(k, v) js_put_str(out, k, timing_method_name(v))
#define PUT_TEXT(k, v) js_put_str(out, k, v)
#define PUT_BOOL(k, v) js_put_bool(out, k, v)
#define PUT_INT(k, v) js_put_i64(out, k, v)
#define PUT_I64(k, v) js_put_i64(out, k, v)
#define PUT_U64(k, v) js_put_i64(out, k, (int64_t)(v))
#define PUT_F64(k, v) js_put_f64(out, k, v)

void pool_settings_put(const struct verify_options *o, const char *key, struct str *out) {
    const struct verify_options n = normal(o);
    js_begin(out, key, '{');
#define X(type, field, decides) \
    if (decides) PUT_##type(#field, n.field);
    VERIFY_OPTION_LIST(X)
#undef X
    js_end(out, '}');
}

void pool_settings_hash(const struct verify_options *o, char out[17]) {
    const struct verify_options n = normal(o);
    snprintf(out, 17, "%016llx", (unsigned long long)verify_identity_hash(&n).now);
}

void pool_seed_tag(uint64_t seed, char out[17]) {
    snprintf(out, 17, "%016llx", (unsigned long long)hmac_u64(seed, "pool seed tag", 0, NULL, 0));
}

static enum status choice(const json_t *o, const char *where, const char *key, const char *const *known, int n,
                          int *out, struct err *e) {
    const char *text;
    TRY(js_get_str(o, where, key, &text, e));
    for (*out = 0; *out < n; ++*out)
        if (strcmp(known[*out], text) == 0) return ST_OK;
    return FAIL(e, ST_PARSE, "%s: %s: an unknown name", where, key);
}

static enum status get_int(const json_t *o, const char *where, const char *key, int64_t low, int64_t high, int *out,
                           struct err *e) {
    int64_t v;
    TRY(js_get_i64(o, where, key, &v, e));
    if (v < low || v > high)
        return FAIL(e, ST_PARSE, "%s: %s: expected %lld to %lld", where, key, (long long)low, (long long)high);
    *out = (int)v;
    return ST_OK;
}

static enum status get_backend(const json_t *o, const char *where, const char *key, enum verify_backend *out,
                               struct err *e) {
    const char *text;
    TRY(js_get_str(o, where, key, &text, e));
    return backend_from_name(text, out) ? ST_OK : FAIL(e, ST_PARSE, "%s: %s: an unknown name", where, key);
}

static enum status get_timing(const json_t *o, const char *where, const char *key, enum timing_method *out,
                              struct err *e) {
    const char *text;
    TRY(js_get_str(o, where, key, &text, e));
    return timing_method_from_name(text, out) ? ST_OK : FAIL(e, ST_PARSE, "%s: %s: an unknown name", where, key);
}

static enum status get_scoring(const json_t *o, const char *where, const char *key, enum scoring *out, struct err *e) {
    int i;
    TRY(choice(o, where, key, scoring_names, ARRAY_LEN(scoring_names), &i, e));
    *out = (enum scoring)i;
    return ST_OK;
}

static enum status get_staging(const json_t *o, const char *where, const char *key, enum staging *out, struct err *e) {
    int i;
    TRY(choice(o, where, key, staging_names, ARRAY_LEN(staging_names), &i, e));
    *out = (enum staging)i;
    return ST_OK;
}

#define GET_BACKEND(k, p) TRY(get_backend(o, where, k, p, e))
#define GET_SCORING(k, p) TRY(get_scoring(o, where, k, p, e))
#define GET_STAGING(k, p) TRY(get_staging(o, where, k, p, e))
#define GET_TIMING(k, p) TRY(get_timing(o, where, k, p, e))
#define GET_TEXT(k, p) TRY(js_opt_str(o, where, k, p, e))
#define GET_BOOL(k, p) TRY(js_get_bool(o, where, k, p, e))
#define GET_INT(k, p) TRY(get_int(o, where, k, 0, INT_MAX, p, e))
#define GET_I64(k, p) TRY(js_get_i64(o, where, k, p, e))
#define GET_U64(k, p) (void)(p) /* the seed, which decides nothing and never stands here */
#define GET_F64(k, p) TRY(js_get_f64(o, where, k, p, e))

static enum status read_settings(const json_t *o, const char *where, struct verify_options *out, struct err *e) {
    *out = (struct verify_options){0};
#define X(type, field, decides) \
    if (decides) GET_##type(#field, &out->field);
    VERIFY_OPTION_LIST(X)
#undef X
    if (!out->device || (strcmp(out->device, "cpu") != 0 && strcmp(out->device, "cuda") != 0))
        return FAIL(e, ST_PARSE, "%s: device: expected cpu or cuda", where);
    return ST_OK;
}

/* ---- texts that may be no UTF-8 -----------------------------------------------------------------------------------*/

/* As `key`, or in base 64 as `key`_base64 where it is no UTF-8. */
static void put_source(struct str *out, const char *text) {
    const size_t n = strlen(text);
    if (js_utf8_prefix(text, n) == n) {
        js_put_strn(out, "source", text, n);
        return;
    }
    CLEANUP_FREE char *code = xmalloc(4 * ((n + 2) / 3) + 1);
    EVP_EncodeBlock((unsigned char *)code, (const unsigned char *)text, (int)n);
    js_put_str(out, "source_base64", code);
}

/* The text lives in a new member of o. */
static enum status read_source(json_t *o, const char *where, const char **out, struct err *e) {
    const char *code = NULL;
    TRY(js_opt_str(o, where, "source", out, e));
    if (*out) return ST_OK;
    TRY(js_get_str(o, where, "source_base64", &code, e));
    const size_t n = strlen(code);
    CLEANUP_FREE char *text = xmalloc(n + 1);
    const int got = EVP_DecodeBlock((unsigned char *)text, (const unsigned char *)code, (int)n);
    if (got < 0) return FAIL(e, ST_PARSE, "%s: source_base64: not base 64", where);
    const int pad = n >= 2 && code[n - 1] == '=' ? 1 + (code[n - 2] == '=') : 0;
    text[got - pad] = 0;
    json_t *plain = json_stringn_nocheck(text, strlen(text));
    json_object_set_new(o, "\nsource", plain); /* a name that no line has */
    *out = json_string_value(plain);
    return ST_OK;
}

/* ---- reading ------------------------------------------------------------------------------------------------------*/

static bool is_hex(const char *text, size_t n) { return strlen(text) == n && strspn(text, "0123456789abcdef") == n; }

static enum status read_id(const json_t *o, const char *where, bool needed, struct pool_message *m, struct err *e) {
    m->attempt = 1;
    TRY(js_opt_str(o, where, "j", &m->j, e));
    if (!m->j) return needed ? FAIL(e, ST_PARSE, "%s: j: missing", where) : ST_OK;
    if (!is_hex(m->j, 32)) return FAIL(e, ST_PARSE, "%s: j: expected 32 hex digits", where);
    return json_object_get(o, "attempt") ? get_int(o, where, "attempt", 1, 1000000, &m->attempt, e) : ST_OK;
}

static enum status read_list(const json_t *o, const char *where, const char *key, int max, const char **out, int *n,
                             struct err *e) {
    json_t *list;
    TRY(js_get_array(o, where, key, &list, e));
    *n = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        if (!text || *n == max) return FAIL(e, ST_PARSE, "%s: %s: expected at most %d texts", where, key, max);
        out[(*n)++] = text;
    }
    return ST_OK;
}

static enum status read_hello(const json_t *o, const char *where, struct pool_message *m, struct err *e) {
    TRY(get_int(o, where, "protocol", 0, INT_MAX, &m->protocol, e));
    TRY(js_get_str(o, where, "program", &m->program, e));
    TRY(js_get_str(o, where, "host", &m->host, e));
    TRY(get_int(o, where, "slots", 0, 1 << 20, &m->slots, e));
    TRY(get_int(o, where, "ahead", 0, 1024, &m->ahead, e));
    TRY(js_get_f64(o, where, "beat_s", &m->beat_s, e));
    return read_list(o, where, "classes", PROTOCOL_CLASSES, m->class, &m->n_classes, e);
}

static enum status read_problem(const json_t *o, const char *where, struct problem *p, struct err *e) {
    TRY(js_get_str(o, where, "key", &p->key, e));
    TRY(js_get_str(o, where, "name", &p->name, e));
    TRY(js_get_str(o, where, "code", &p->code, e));
    TRY(get_int(o, where, "level", 0, INT_MAX, &p->level, e));
    return get_int(o, where, "problem_id", 0, INT_MAX, &p->problem_id, e);
}

static enum status read_terms(const json_t *o, const char *where, struct pool_terms *t, struct err *e) {
    json_t *settings;
    TRY(js_get_str(o, where, "run", &t->run, e));
    TRY(js_get_str(o, where, "settings_hash", &t->settings_hash, e));
    TRY(js_get_str(o, where, "program", &t->program, e));
    TRY(js_get_str(o, where, "seed_tag", &t->seed_tag, e));
    TRY(js_get_object(o, where, "settings", &settings, e));
    if (!is_hex(t->run, 16)) return FAIL(e, ST_PARSE, "%s: run: expected 16 hex digits", where);
    return read_settings(settings, where, &t->settings, e);
}

static enum status read_job(json_t *o, const char *where, struct pool_message *m, struct err *e) {
    struct pool_job_text *job = &m->job;
    json_t *problem;
    job->j = m->j;
    job->attempt = m->attempt;
    TRY(get_int(o, where, "v", 0, INT_MAX, &m->protocol, e));
    TRY(read_terms(o, where, &job->terms, e));
    TRY(js_get_str(o, where, "class", &job->terms.class, e));
    TRY(js_opt_str(o, where, "place", &job->place, e));
    TRY(js_get_f64(o, where, "budget_s", &job->budget_s, e));
    TRY(js_get_object(o, where, "problem", &problem, e));
    TRY(js_opt_bool(o, where, "alone", &job->alone, e));
    TRY(js_opt_bool(o, where, "suspect", &job->suspect, e));
    if (json_object_get(o, "not_on"))
        TRY(read_list(o, where, "not_on", PROTOCOL_HOSTS, job->not_on, &job->n_not_on, e));
    TRY(read_problem(problem, where, &job->problem, e));
    return read_source(o, where, &job->source, e);
}

static enum status read_verdict(const json_t *o, const char *where, struct pool_message *m, struct err *e) {
    json_t *verdict;
    struct pool_witness *w = &m->witness;
    *w = (struct pool_witness){.sm_mhz = (double)NAN, .probe = (double)NAN};
    TRY(js_get_object(o, where, "verdict", &verdict, e));
    TRY(js_get_str(o, where, "worker", &w->worker, e));
    TRY(js_get_str(o, where, "class", &w->class, e));
    TRY(js_opt_str(o, where, "gpu", &w->gpu, e));
    TRY(js_opt_f64(o, where, "sm_mhz", &w->sm_mhz, e));
    TRY(js_opt_f64(o, where, "probe", &w->probe, e));
    TRY(js_get_f64(o, where, "spent_s", &w->spent_s, e));
    TRY(js_opt_bool(o, where, "cached", &m->cached, e));
    TRY(js_opt_bool(o, where, "replayed", &m->replayed, e));
    return verdict_from_json(verdict, where, &m->verdict, e);
}

static enum status read_open(const json_t *o, const char *where, struct pool_message *m, struct err *e) {
    const char *seed = NULL;
    TRY(read_terms(o, where, &m->terms, e));
    TRY(js_opt_str(o, where, "class", &m->terms.class, e));
    TRY(js_opt_str(o, where, "seed", &seed, e));
    if (seed && !is_hex(seed, 16)) return FAIL(e, ST_PARSE, "%s: seed: expected 16 hex digits", where);
    m->seed = seed ? strtoull(seed, NULL, 16) : 0;
    return ST_OK;
}

static enum status read_rest(const json_t *o, const char *where, struct pool_message *m, struct err *e) {
    m->losses = 1;
    m->probe = (double)NAN;
    TRY(js_opt_str(o, where, "reason", &m->reason, e));
    TRY(js_opt_str(o, where, "what", &m->what, e));
    TRY(js_opt_str(o, where, "here", &m->here, e));
    TRY(js_opt_str(o, where, "there", &m->there, e));
    TRY(js_opt_str(o, where, "run", &m->run, e));
    TRY(js_opt_str(o, where, "hardware", &m->hardware, e));
    TRY(js_opt_bool(o, where, "waiting", &m->waiting, e));
    TRY(js_opt_f64(o, where, "probe", &m->probe, e));
    TRY(js_opt_i64(o, where, "queue", &m->queue, e));
    TRY(js_opt_i64(o, where, "redelivered", &m->redelivered, e));
    if (json_object_get(o, "losses")) TRY(get_int(o, where, "losses", 0, 1000, &m->losses, e));
    if (json_object_get(o, "slots")) TRY(get_int(o, where, "slots", 0, 1 << 20, &m->slots, e));
    if (json_object_get(o, "hosts")) TRY(get_int(o, where, "hosts", 0, 1 << 20, &m->hosts, e));
    return ST_OK;
}

static enum status read_members(struct pool_message *m, const char *where, struct err *e) {
    json_t *o = m->root;
    switch (m->type) {
    case MESSAGE_HELLO: return read_hello(o, where, m, e);
    case MESSAGE_JOB: TRY(read_id(o, where, true, m, e)); return read_job(o, where, m, e);
    case MESSAGE_VERDICT: TRY(read_id(o, where, true, m, e)); return read_verdict(o, where, m, e);
    case MESSAGE_OPEN: return read_open(o, where, m, e);
    case MESSAGE_BEGUN:
    case MESSAGE_LOST:
    case MESSAGE_RETURNED:
    case MESSAGE_ACK: TRY(read_id(o, where, true, m, e)); return read_rest(o, where, m, e);
    case MESSAGE_REFUSED:
    case MESSAGE_CANCEL: TRY(read_id(o, where, false, m, e)); return read_rest(o, where, m, e);
    case MESSAGE_READY:
    case MESSAGE_SLOTS:
    case MESSAGE_BEAT:
    case MESSAGE_DRAINING:
    case MESSAGE_DRAIN:
    case MESSAGE_UNKNOWN: return read_rest(o, where, m, e);
    }
    return ST_OK;
}

enum status pool_message_read(const char *line, size_t n, const char *from, struct pool_message *out, struct err *e) {
    const char *type;
    struct err ignored;
    *out = (struct pool_message){.type = MESSAGE_UNKNOWN};
    /* jansson's own text would quote the line, which may hold a secret. */
    if (js_parse(line, n, from, &out->root, &ignored) != ST_OK || !json_is_object(out->root))
        return FAIL(e, ST_PARSE, "%s: a line of %zu bytes that is no JSON object", from, n);
    TRY(js_get_str(out->root, from, "type", &type, e));
    for (int t = 0; t < MESSAGE_UNKNOWN; t++)
        if (strcmp(names[t], type) == 0) out->type = (enum message_type)t;
    return read_members(out, from, e);
}

void pool_message_free(struct pool_message *m) {
    json_decref(m->root);
    *m = (struct pool_message){.type = MESSAGE_UNKNOWN};
}

/* ---- writing ------------------------------------------------------------------------------------------------------*/

static void begin(struct str *out, enum message_type t) {
    js_begin(out, NULL, '{');
    js_put_str(out, "type", names[t]);
}

static void end(struct str *out) {
    js_end(out, '}');
    str_addc(out, '\n');
}

static void put_id(struct str *out, const char *j, int attempt) {
    js_put_str(out, "j", j);
    js_put_i64(out, "attempt", attempt);
}

static void put_list(struct str *out, const char *key, const char *const *item, int n) {
    js_begin(out, key, '[');
    for (int i = 0; i < n; i++) js_put_str(out, NULL, item[i]);
    js_end(out, ']');
}

void pool_put_hello(const struct pool_message *m, struct str *out) {
    begin(out, MESSAGE_HELLO);
    js_put_i64(out, "protocol", m->protocol);
    js_put_str(out, "program", m->program);
    js_put_str(out, "host", m->host);
    js_put_i64(out, "slots", m->slots);
    js_put_i64(out, "ahead", m->ahead);
    js_put_f64(out, "beat_s", m->beat_s);
    put_list(out, "classes", m->class, m->n_classes);
    end(out);
}

void pool_put_beat(int jobs, double probe, struct str *out) {
    begin(out, MESSAGE_BEAT);
    js_put_i64(out, "jobs", jobs);
    js_put_f64(out, "probe", probe);
    end(out);
}

void pool_put_slots(int slots, int hosts, int64_t queue, int64_t redelivered, const char *reason, struct str *out) {
    begin(out, MESSAGE_SLOTS);
    js_put_i64(out, "slots", slots);
    js_put_i64(out, "hosts", hosts);
    js_put_i64(out, "queue", queue);
    js_put_i64(out, "redelivered", redelivered);
    if (reason) js_put_str(out, "reason", reason);
    end(out);
}

static void put_terms(const struct pool_terms *t, struct str *out) {
    js_put_str(out, "run", t->run);
    if (t->class) js_put_str(out, "class", t->class);
    js_put_str(out, "program", t->program);
    js_put_str(out, "settings_hash", t->settings_hash);
    js_put_str(out, "seed_tag", t->seed_tag);
    pool_settings_put(&t->settings, "settings", out);
}

void pool_put_open(const struct pool_terms *t, uint64_t seed, struct str *out) {
    char hex[17];
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)seed);
    begin(out, MESSAGE_OPEN);
    put_terms(t, out);
    if (seed) js_put_str(out, "seed", hex);
    end(out);
}

void pool_put_ready(const char *hardware, struct str *out) {
    begin(out, MESSAGE_READY);
    js_put_str(out, "hardware", hardware);
    end(out);
}

void pool_put_job(const struct pool_job_text *job, struct str *out) {
    begin(out, MESSAGE_JOB);
    js_put_i64(out, "v", PROTOCOL_VERSION);
    put_id(out, job->j, job->attempt);
    put_terms(&job->terms, out);
    js_put_str(out, "place", job->place);
    js_put_f64(out, "budget_s", job->budget_s);
    if (job->alone) js_put_bool(out, "alone", true);
    if (job->suspect) js_put_bool(out, "suspect", true);
    if (job->n_not_on > 0) put_list(out, "not_on", job->not_on, job->n_not_on);
    js_begin(out, "problem", '{');
    js_put_str(out, "key", job->problem.key ? job->problem.key : "");
    js_put_str(out, "name", job->problem.name ? job->problem.name : "");
    js_put_i64(out, "level", job->problem.level);
    js_put_i64(out, "problem_id", job->problem.problem_id);
    js_put_str(out, "code", job->problem.code);
    js_end(out, '}');
    put_source(out, job->source);
    end(out);
}

void pool_put_verdict(const char *j, int attempt, const struct verdict *v, const struct pool_witness *w, bool cached,
                      bool replayed, struct str *out) {
    begin(out, MESSAGE_VERDICT);
    js_put_i64(out, "v", PROTOCOL_VERSION);
    put_id(out, j, attempt);
    js_put_str(out, "worker", w->worker);
    js_put_str(out, "class", w->class);
    if (w->gpu) js_put_str(out, "gpu", w->gpu);
    if (isfinite(w->sm_mhz)) js_put_f64(out, "sm_mhz", w->sm_mhz);
    js_put_f64(out, "probe", w->probe);
    js_put_f64(out, "spent_s", w->spent_s);
    if (cached) js_put_bool(out, "cached", true);
    if (replayed) js_put_bool(out, "replayed", true);
    CLEANUP_STR struct str verdict = STR_INIT;
    verdict_to_json(v, &verdict);
    str_adds(out, ",\"verdict\":");
    str_add(out, verdict.p, verdict.len);
    end(out);
}

void pool_put_about(enum message_type t, const char *j, int attempt, int losses, const char *reason, struct str *out) {
    begin(out, t);
    put_id(out, j, attempt);
    if (t == MESSAGE_LOST) js_put_i64(out, "losses", losses);
    if (reason) js_put_str(out, "reason", reason);
    end(out);
}

void pool_put_recall(const char *j, int attempt, struct str *out) {
    begin(out, MESSAGE_CANCEL);
    put_id(out, j, attempt);
    js_put_bool(out, "waiting", true);
    end(out);
}

void pool_put_refused(const char *j, int attempt, const char *what, const char *here, const char *there,
                      const char *reason, struct str *out) {
    begin(out, MESSAGE_REFUSED);
    if (j) put_id(out, j, attempt);
    js_put_str(out, "what", what);
    if (here) js_put_str(out, "here", here);
    if (there) js_put_str(out, "there", there);
    js_put_str(out, "reason", reason);
    end(out);
}

void pool_put_draining(const char *reason, struct str *out) {
    begin(out, MESSAGE_DRAINING);
    js_put_str(out, "reason", reason);
    end(out);
}

void pool_put_drain(struct str *out) {
    begin(out, MESSAGE_DRAIN);
    end(out);
}

void pool_put_cancel_run(const char *run, struct str *out) {
    begin(out, MESSAGE_CANCEL);
    js_put_str(out, "run", run);
    end(out);
}
