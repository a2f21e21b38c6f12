/* Fuzz target: what a NATS server says: messages with any subject, reply, header and data, packed or not. A job comes
 * from its own consumer only, a line is no longer than one may be, and each question has at most one answer. The input
 * is a row of messages: kind, length, bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "verify/pool/jetstream.h"
#include "verify/pool/protocol.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct nats_connection {
    const uint8_t *p, *end;
    char subject[300], reply[300], header[2][40], text[1 << 16];
    char inbox[200]; /* the subject of the last question's answer */
    bool open;
};
static struct nats_connection fake;

/* Up to a byte that says so, or the end. */
static void part(char *out, size_t size) {
    size_t n = 0;
    while (fake.p < fake.end && *fake.p != 0xff) {
        if (n + 1 < size) out[n++] = (char)*fake.p;
        fake.p++;
    }
    if (fake.p < fake.end) fake.p++;
    out[n] = 0;
}

static enum status open_fake(const struct nats_connect *how, struct nats_connection **out, struct err *e) {
    (void)how, (void)e;
    *out = &fake;
    return ST_OK;
}
static void close_fake(struct nats_connection *c) { c->open = false; }
static bool yes(struct nats_connection *c) { return c != NULL; }
static bool no(struct nats_connection *c) { return c == NULL; }
static void no_error(struct nats_connection *c, char *out, size_t size) { (void)c, snprintf(out, size, "%s", ""); }
static int no_fd(struct nats_connection *c) { return c ? -1 : -2; }
static enum status subscribe(struct nats_connection *c, const char *subject, struct err *e) {
    (void)c, (void)subject, (void)e;
    return ST_OK;
}
static enum status publish(struct nats_connection *c, const char *subject, const char *reply,
                           const struct nats_header *headers, const void *data, size_t n, struct err *e) {
    (void)subject, (void)headers, (void)data, (void)n, (void)e;
    if (reply) snprintf(c->inbox, sizeof c->inbox, "%s", reply);
    return ST_OK;
}

/* kind: bit 0: to the subject of the last question; bit 1: of the right consumer; bits 2, 3: which header. */
static bool take(struct nats_connection *c, struct nats_received *out) {
    if (c->p >= c->end) return false;
    const int kind = *c->p++;
    part(c->subject, sizeof c->subject);
    part(c->reply, sizeof c->reply);
    part(c->header[1], sizeof c->header[1]);
    snprintf(c->header[0], sizeof c->header[0], "%s", kind & 4 ? "Status" : kind & 8 ? "enc" : "Other");
    if (kind & 1) snprintf(c->subject, sizeof c->subject, "%s", c->inbox);
    if (kind & 2) snprintf(c->reply, sizeof c->reply, "$JS.ACK.S.w-c.1.7.7.1700000000.%d", kind);
    size_t n = 0;
    while (c->p < c->end && *c->p != 0xfe && n < sizeof c->text) c->text[n++] = (char)*c->p++;
    if (c->p < c->end) c->p++;
    *out =
        (struct nats_received){.subject = c->subject, .reply = c->reply[0] ? c->reply : NULL, .data = c->text, .n = n};
    return true;
}
static const char *header(const struct nats_received *m, const char *name) {
    (void)m;
    return strcmp(name, fake.header[0]) == 0 ? fake.header[1] : NULL;
}
static void release(struct nats_received *m) { *m = (struct nats_received){0}; }
static void flush(struct nats_connection *c, double seconds) { (void)c, (void)seconds; }

static const struct nats_api api = {.abi = NATS_API_ABI,
                                    .open = open_fake,
                                    .close = close_fake,
                                    .is_connected = yes,
                                    .is_closed = no,
                                    .is_refused = no,
                                    .last_error = no_error,
                                    .fd = no_fd,
                                    .subscribe = subscribe,
                                    .publish = publish,
                                    .take = take,
                                    .header = header,
                                    .release = release,
                                    .flush = flush};

static int answers;
static void on_reply(void *ctx, const struct js_reply *r) {
    ASSERT(ctx == &answers && (r->good || r->error));
    answers++;
}
static void on_message(void *ctx, const struct js_message *m) {
    struct pool_message job;
    struct err e;
    ASSERT(ctx == &fake && m->n <= PROTOCOL_LINE_BYTES && m->subject);
    if (m->ack) ASSERT(strncmp(m->ack, "$JS.ACK.", 8) == 0);
    const enum status st = pool_message_read(m->data, m->n, "queue", &job, &e);
    ASSERT(st == ST_OK || st == ST_PARSE);
    pool_message_free(&job);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const struct js_options o = {.url = "nats://fuzz", .name = "fuzz", .ping_s = 5};
    struct js *c;
    struct err e;
    log_set_level(LOG_ERROR);
    fake = (struct nats_connection){.p = data, .end = data};
    if (js_open_with(&api, &o, &c, &e) != ST_OK) return 0;
    ASSERT(js_listen(c, "krl.cancel.*", on_message, &fake, &e) == ST_OK);
    struct js_pull *pull = js_pull_make(c, "S", "w-c", on_message, &fake);
    js_pull_ask(pull, 4, 60);
    answers = 0;
    js_request(c, "$JS.API.INFO", "", 60, on_reply, &answers);
    fake.p = data;
    fake.end = data + size;
    js_step(c);
    ASSERT(answers <= 1 && js_pull_open(pull) >= 0 && js_pull_open(pull) <= 4);
    js_give_up(c);
    ASSERT(answers == 1);
    js_close(c);
    return 0;
}
