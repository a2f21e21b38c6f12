#include "verify/pool/jetstream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "verify/pool/nkey.h"
#include "verify/pool/protocol.h"
#include "verify/pool/secret.h"

enum { WAITING = 1 << 14, LISTENERS = 16, PULLS = 32, PACK_FROM = 16 << 10, INBOX_BYTES = 100 };

struct waiting { /* for an answer */
    uint64_t number;
    double until;
    js_reply_fn *fn;
    void *ctx;
};

struct listener {
    char subject[160];
    js_message_fn *fn;
    void *ctx;
};

struct js_pull {
    struct js *c;
    char subject[200], inbox[INBOX_BYTES];
    js_message_fn *fn;
    void *ctx;
    int open;
    double until;
    bool failed;
};

struct js {
    const struct nats_api *api;
    struct nats_connection *nc;
    struct nkey key;
    bool has_key;
    char inbox[INBOX_BYTES];
    struct waiting *waiting; /* [WAITING], by number */
    uint64_t number, oldest;
    struct listener listener[LISTENERS];
    int n_listeners;
    struct js_pull *pull[PULLS];
    int n_pulls;
    char *unpacked;
};

/* ---- opening ------------------------------------------------------------------------------------------------------*/

struct credential_files {
    char path[4][4200];
    const char *seed, *ca, *cert, *key;
};

static const char *there(const char *folder, const char *name, char out[4200]) {
    snprintf(out, 4200, "%s/%s", folder, name);
    return fs_is_file(out) ? out : NULL;
}

static void find_files(const char *folder, struct credential_files *f) {
    *f = (struct credential_files){.seed = NULL};
    if (!folder) return;
    f->seed = there(folder, "nkey", f->path[0]);
    f->ca = there(folder, "ca.pem", f->path[1]);
    f->cert = there(folder, "cert.pem", f->path[2]);
    f->key = there(folder, "key.pem", f->path[3]);
    if (!f->cert || !f->key) f->cert = f->key = NULL;
}

static bool sign_nonce(void *ctx, const char *nonce, unsigned char signature[64]) {
    const struct js *c = ctx;
    struct err ignored;
    return nkey_sign_raw(&c->key, nonce, strlen(nonce), signature, &ignored) == ST_OK;
}

static enum status connect(struct js *c, const struct js_options *o, struct err *e) {
    struct credential_files f;
    char run[RUN_NAME_BYTES], all[INBOX_BYTES + 4];
    find_files(o->folder, &f);
    if (f.seed) TRY(nkey_read(f.seed, &c->key, e));
    c->has_key = f.seed != NULL;
    TRY(secret_run_name(run, e)); /* a name that no other connection has */
    snprintf(c->inbox, sizeof c->inbox, "_INBOX_%s", c->has_key ? c->key.public_key : "krl");
    const struct nats_connect how = {.url = o->url,
                                     .name = o->name,
                                     .public_key = c->has_key ? c->key.public_key : NULL,
                                     .sign = sign_nonce,
                                     .ctx = c,
                                     .ca_file = f.ca,
                                     .cert_file = f.cert,
                                     .key_file = f.key,
                                     .inbox = c->inbox,
                                     .ping_s = o->ping_s};
    TRY(c->api->open(&how, &c->nc, e));
    snprintf(c->inbox + strlen(c->inbox), sizeof c->inbox - strlen(c->inbox), ".%s", run);
    snprintf(all, sizeof all, "%s.>", c->inbox);
    return c->api->subscribe(c->nc, all, e);
}

enum status js_open_with(const struct nats_api *api, const struct js_options *o, struct js **out, struct err *e) {
    struct js *c = xcalloc(1, sizeof *c);
    c->api = api;
    c->waiting = xcalloc(WAITING, sizeof *c->waiting);
    c->number = c->oldest = 1;
    const enum status st = connect(c, o, e);
    if (st != ST_OK) {
        js_close(c);
        return st;
    }
    *out = c;
    return ST_OK;
}

enum status js_open(const struct js_options *o, struct js **out, struct err *e) {
    const struct nats_api *api;
    TRY(nats_api_load(&api, e));
    return js_open_with(api, o, out, e);
}

void js_close(struct js *c) {
    if (!c) return;
    if (c->nc) c->api->close(c->nc);
    for (int i = 0; i < c->n_pulls; i++) free(c->pull[i]);
    free(c->unpacked);
    free(c->waiting);
    explicit_bzero(&c->key, sizeof c->key);
    free(c);
}

int js_fd(const struct js *c) { return c->api->fd(c->nc); }
bool js_connected(struct js *c) { return c->api->is_connected(c->nc); }
bool js_closed(struct js *c) { return c->api->is_closed(c->nc); }
bool js_refused(struct js *c) { return c->api->is_closed(c->nc) && c->api->is_refused(c->nc); }
void js_why(struct js *c, char *out, size_t size) { c->api->last_error(c->nc, out, size); }
const char *js_public_key(const struct js *c) { return c->has_key ? c->key.public_key : ""; }

bool js_sign(const struct js *c, const void *p, size_t n, char out[90]) {
    struct err ignored;
    return c->has_key && nkey_sign(&c->key, p, n, out, &ignored) == ST_OK;
}

/* ---- answers ------------------------------------------------------------------------------------------------------*/

static void answer(struct waiting *w, const struct js_reply *r) {
    const struct waiting mine = *w;
    w->number = 0;
    if (mine.fn) mine.fn(mine.ctx, r);
}

/* The place of a new question; its number goes into the subject of the reply. */
static uint64_t expect(struct js *c, double seconds, js_reply_fn *fn, void *ctx) {
    const uint64_t number = c->number++;
    struct waiting *w = &c->waiting[number % WAITING];
    if (w->number) answer(w, &(struct js_reply){.error = "too many questions at once"});
    *w = (struct waiting){.number = number, .until = clock_now_s() + seconds, .fn = fn, .ctx = ctx};
    return number;
}

static void give_up_old(struct js *c) {
    const double now = clock_now_s();
    while (c->oldest < c->number) {
        struct waiting *w = &c->waiting[c->oldest % WAITING];
        /* Questions wait for different times: the oldest ones first, and those that are answered are passed over. */
        if (w->number == c->oldest && now < w->until) break;
        if (w->number == c->oldest) answer(w, &(struct js_reply){.error = "no answer"});
        c->oldest++;
    }
    for (int i = 0; i < c->n_pulls; i++)
        if (c->pull[i]->open > 0 && now > c->pull[i]->until) c->pull[i]->open = 0;
}

void js_give_up(struct js *c) {
    for (; c->oldest < c->number; c->oldest++) {
        struct waiting *w = &c->waiting[c->oldest % WAITING];
        if (w->number == c->oldest) answer(w, &(struct js_reply){.error = "the connection has ended"});
    }
}

static void take_answer(struct js *c, const struct nats_received *m, uint64_t number) {
    struct waiting *w = &c->waiting[number % WAITING];
    struct js_reply r = {.good = true, .data = m->data, .n = m->n};
    struct err e;
    char text[300];
    CLEANUP_JSON json_t *o = NULL;
    if (w->number != number) return; /* it was given up */
    const char *status = c->api->header(m, "Status");
    if (status && strcmp(status, "503") == 0) {
        answer(w, &(struct js_reply){.error = "nobody serves this: JetStream is off, or the rights are missing"});
        return;
    }
    if (status && strcmp(status, "404") == 0) {
        answer(w, &(struct js_reply){.error = "not found", .code = 404});
        return;
    }
    if (m->n > 0 && m->data[0] == '{' && js_parse(m->data, m->n, "reply", &o, &e) == ST_OK) {
        const json_t *error = json_object_get(o, "error");
        r.json = o;
        if (error) {
            const char *why = json_string_value(json_object_get(error, "description"));
            snprintf(text, sizeof text, "%s", why ? why : "refused");
            r.good = false;
            r.error = text;
            r.code = (int)json_integer_value(json_object_get(error, "err_code"));
        }
    }
    answer(w, &r);
}

/* ---- messages -----------------------------------------------------------------------------------------------------*/

/* $JS.ACK.STREAM.CONSUMER.DELIVERED.SEQ.CONSUMER_SEQ.TIME.LEFT; with a domain and an account there are more fields.
 * Returns where STREAM begins; NULL: it is none. */
static const char *read_ack(const char *reply, struct js_message *m) {
    const char *field[16] = {NULL};
    int n = 0;
    for (const char *p = reply; p && n < 16; p = strchr(p, '.') ? strchr(p, '.') + 1 : NULL) field[n++] = p;
    const int at = n >= 11 ? 4 : n == 9 ? 2 : -1;
    if (at < 0) return NULL;
    m->delivered = strtoll(field[at + 2], NULL, 10);
    m->seq = strtoll(field[at + 3], NULL, 10);
    m->left = strtoll(field[at + 6], NULL, 10);
    return field[at];
}

/* The data of a message, unpacked where it is packed. False: it is no such thing, or longer than a line may be. */
static bool unpack(struct js *c, const struct nats_received *raw, struct js_message *m) {
    const char *how = c->api->header(raw, "enc");
    m->data = raw->data;
    m->n = raw->n;
    if (!how) return raw->n <= PROTOCOL_LINE_BYTES;
    if (strcmp(how, "zstd") != 0) return false;
    const unsigned long long n = ZSTD_getFrameContentSize(raw->data, raw->n);
    if (n > PROTOCOL_LINE_BYTES) return false; /* of unknown size, too */
    if (!c->unpacked) c->unpacked = xmalloc(PROTOCOL_LINE_BYTES + 1);
    const size_t got = ZSTD_decompress(c->unpacked, PROTOCOL_LINE_BYTES, raw->data, raw->n);
    if (ZSTD_isError(got)) return false;
    m->data = c->unpacked;
    m->n = got;
    return true;
}

/* What a server says of a request: 404, 408: nothing came in time; 409: the consumer has gone, or the server wants
 * less; 503: there is none; 100: a heartbeat. */
static void take_status(struct js_pull *p, const char *status) {
    if (strcmp(status, "100") == 0) return;
    p->open = 0;
    p->failed = strcmp(status, "503") == 0 || strcmp(status, "409") == 0;
}

/* A message of a consumer: it has its own subject, and says in that of its acknowledgement whose it is. */
static void take_pulled(struct js *c, const struct nats_received *raw) {
    struct js_message m = {.subject = raw->subject, .ack = raw->reply, .raw = raw};
    const char *of = read_ack(raw->reply, &m);
    struct js_pull *p = NULL;
    for (int i = 0; of && i < c->n_pulls && !p; i++) {
        const char *mine = c->pull[i]->subject + strlen("$JS.API.CONSUMER.MSG.NEXT.");
        const size_t n = strlen(mine);
        if (strncmp(of, mine, n) == 0 && of[n] == '.') p = c->pull[i];
    }
    if (!p) return;
    if (p->open > 0) p->open--;
    p->failed = false;
    if (!unpack(c, raw, &m)) {
        log_warn("%s: a message of %zu bytes that cannot be read; it goes to nobody", raw->subject, raw->n);
        js_term(c, raw->reply);
        return;
    }
    p->fn(p->ctx, &m);
}

static void take_heard(struct js *c, const struct nats_received *raw) {
    struct js_message m = {.subject = raw->subject, .raw = raw};
    for (int i = 0; i < c->n_listeners; i++) {
        const char *s = c->listener[i].subject;
        const size_t n = strcspn(s, "*>");
        if (strncmp(raw->subject, s, n) != 0 || (!s[n] && raw->subject[n])) continue;
        if (unpack(c, raw, &m)) c->listener[i].fn(c->listener[i].ctx, &m);
        return;
    }
}

void js_step(struct js *c) {
    struct nats_received m;
    const size_t n = strlen(c->inbox);
    while (c->api->take(c->nc, &m)) {
        const char *status = c->api->header(&m, "Status");
        if (m.reply && str_has_prefix(m.reply, "$JS.ACK."))
            take_pulled(c, &m);
        else if (strncmp(m.subject, c->inbox, n) != 0 || m.subject[n] != '.')
            take_heard(c, &m);
        else if (m.subject[n + 1] == 'p') {
            const size_t k = strtoul(m.subject + n + 2, NULL, 10);
            if (k < (size_t)c->n_pulls && status) take_status(c->pull[k], status);
        } else
            take_answer(c, &m, strtoull(m.subject + n + 1, NULL, 10));
        c->api->release(&m);
    }
    give_up_old(c);
}

const char *js_header(struct js *c, const struct js_message *m, const char *name) {
    return c->api->header(m->raw, name);
}

/* ---- asking -------------------------------------------------------------------------------------------------------*/

static void send(struct js *c, const char *subject, const char *reply, const struct nats_header *headers,
                 const void *data, size_t n) {
    struct err e;
    if (c->api->publish(c->nc, subject, reply, headers, data, n, &e) != ST_OK) log_debug("%s", e.msg);
}

void js_request(struct js *c, const char *subject, const char *body, double seconds, js_reply_fn *fn, void *ctx) {
    char reply[INBOX_BYTES + 30];
    snprintf(reply, sizeof reply, "%s.%llu", c->inbox, (unsigned long long)expect(c, seconds, fn, ctx));
    send(c, subject, reply, NULL, body, strlen(body));
}

void js_publish(struct js *c, const char *subject, const char *id, const struct nats_header *headers, const void *data,
                size_t n, double seconds, js_reply_fn *fn, void *ctx) {
    enum { HEADERS = 12 };
    struct nats_header all[HEADERS] = {{NULL, NULL}};
    char reply[INBOX_BYTES + 30];
    CLEANUP_FREE char *packed = NULL;
    int k = 0;
    for (; headers && headers->name && k < HEADERS - 3; headers++) all[k++] = *headers;
    if (id) all[k++] = (struct nats_header){"Nats-Msg-Id", id};
    if (n > PACK_FROM) {
        const size_t bound = ZSTD_compressBound(n);
        packed = xmalloc(bound);
        const size_t m = ZSTD_compress(packed, bound, data, n, 3);
        if (!ZSTD_isError(m) && m < n) {
            all[k++] = (struct nats_header){"enc", "zstd"};
            data = packed;
            n = m;
        }
    }
    all[k] = (struct nats_header){NULL, NULL};
    if (fn) snprintf(reply, sizeof reply, "%s.%llu", c->inbox, (unsigned long long)expect(c, seconds, fn, ctx));
    send(c, subject, fn ? reply : NULL, all, data, n);
}

void js_tell(struct js *c, const char *subject, const char *text) { send(c, subject, NULL, NULL, text, strlen(text)); }

enum status js_listen(struct js *c, const char *subject, js_message_fn *fn, void *ctx, struct err *e) {
    ASSERT(c->n_listeners < LISTENERS);
    struct listener *l = &c->listener[c->n_listeners++];
    snprintf(l->subject, sizeof l->subject, "%s", subject);
    l->fn = fn;
    l->ctx = ctx;
    return c->api->subscribe(c->nc, subject, e);
}

struct js_pull *js_pull_make(struct js *c, const char *stream, const char *consumer, js_message_fn *fn, void *ctx) {
    ASSERT(c->n_pulls < PULLS);
    struct js_pull *p = c->pull[c->n_pulls] = xcalloc(1, sizeof *p);
    *p = (struct js_pull){.c = c, .fn = fn, .ctx = ctx};
    snprintf(p->subject, sizeof p->subject, "$JS.API.CONSUMER.MSG.NEXT.%s.%s", stream, consumer);
    snprintf(p->inbox, sizeof p->inbox, "%s.p%d", c->inbox, c->n_pulls);
    c->n_pulls++;
    return p;
}

void js_pull_ask(struct js_pull *p, int n, double seconds) {
    char body[120];
    snprintf(body, sizeof body, "{\"batch\":%d,\"expires\":%lld}", n, (long long)(seconds * 1e9));
    p->open = n;
    p->until = clock_now_s() + seconds + 1;
    p->failed = false;
    send(p->c, p->subject, p->inbox, NULL, body, strlen(body));
}

int js_pull_open(const struct js_pull *p) { return p->open; }
bool js_pull_failed(const struct js_pull *p) { return p->failed; }

void js_ack(struct js *c, const char *ack, js_reply_fn *fn, void *ctx) {
    char reply[INBOX_BYTES + 30];
    if (fn) snprintf(reply, sizeof reply, "%s.%llu", c->inbox, (unsigned long long)expect(c, 5, fn, ctx));
    send(c, ack, fn ? reply : NULL, NULL, "+ACK", 4);
}

void js_nak(struct js *c, const char *ack, double delay_s) {
    char body[60];
    snprintf(body, sizeof body, "-NAK {\"delay\":%lld}", (long long)(delay_s * 1e9));
    send(c, ack, NULL, NULL, body, strlen(body));
}

void js_progress(struct js *c, const char *ack) { send(c, ack, NULL, NULL, "+WPI", 4); }
void js_term(struct js *c, const char *ack) { send(c, ack, NULL, NULL, "+TERM", 5); }
