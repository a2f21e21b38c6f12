/* The plugin libkernelrl_nats.so: NATS's client library behind verify/pool/nats_api.h. The library's threads put what
 * comes into a queue, and one thread of the program takes it from there. */
#include <nats/nats.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/base.h"
#include "verify/pool/nats_api.h"

enum { SUBSCRIPTIONS_MAX = 64, RECONNECT_MS = 250, BUFFER_BYTES = 1 << 22 };

struct queued {
    natsMsg *msg;
    struct queued *next;
};

struct nats_connection {
    natsOptions *options;
    nats_sign_fn *sign;
    void *ctx;
    natsConnection *nc;
    natsSubscription *sub[SUBSCRIPTIONS_MAX];
    int n_subs, event;
    pthread_mutex_t lock;
    struct queued *first, **end;
};

static void set_event(struct nats_connection *c) {
    const uint64_t one = 1;
    const ssize_t n = write(c->event, &one, sizeof one); /* fails only when it is set */
    (void)n;
}

static void on_message(natsConnection *nc, natsSubscription *sub, natsMsg *msg, void *ctx) {
    struct nats_connection *c = ctx;
    struct queued *q = malloc(sizeof *q);
    (void)nc;
    (void)sub;
    if (!q) {
        natsMsg_Destroy(msg);
        return;
    }
    *q = (struct queued){.msg = msg};
    pthread_mutex_lock(&c->lock);
    *c->end = q;
    c->end = &q->next;
    pthread_mutex_unlock(&c->lock);
    set_event(c);
}

static void on_change(natsConnection *nc, void *ctx) {
    (void)nc;
    set_event(ctx);
}

/* A slow consumer or a refused subject: said in last_error. */
static void on_error(natsConnection *nc, natsSubscription *sub, natsStatus s, void *ctx) {
    (void)nc;
    (void)sub;
    (void)s;
    set_event(ctx);
}

/* The library (3.4.1) sends an empty text in place of a signature whose first byte is 0, one in 256, and the server
 * then refuses the connection for good. So there is no such signature: the library's next try has another nonce. */
static natsStatus sign(char **why, unsigned char **signature, int *length, const char *nonce, void *ctx) {
    const struct nats_connection *c = ctx;
    unsigned char *p = malloc(64); /* the library frees it */
    (void)why;
    if (!p || !c->sign(c->ctx, nonce, p) || p[0] == 0) {
        free(p);
        return NATS_ERR;
    }
    *signature = p;
    *length = 64;
    return NATS_OK;
}

static enum status failed(struct err *e, enum status st, const char *what, natsStatus s) {
    const char *more = nats_GetLastError(NULL);
    return FAIL(e, st, "%s: %s%s%s", what, natsStatus_GetText(s), more ? ": " : "", more ? more : "");
}

static enum status set_options(struct nats_connection *c, const struct nats_connect *how, struct err *e) {
    natsStatus s = natsOptions_Create(&c->options);
    natsOptions *o = c->options;
    if (s == NATS_OK) s = natsOptions_SetURL(o, how->url);
    if (s != NATS_OK) return failed(e, ST_CONFIG, how->url, s);
    if (s == NATS_OK) s = natsOptions_SetName(o, how->name);
    if (s == NATS_OK) s = natsOptions_SetCustomInboxPrefix(o, how->inbox);
    if (s == NATS_OK) s = natsOptions_SetMaxReconnect(o, -1);
    if (s == NATS_OK) s = natsOptions_SetReconnectWait(o, RECONNECT_MS);
    if (s == NATS_OK) s = natsOptions_SetReconnectBufSize(o, BUFFER_BYTES);
    if (s == NATS_OK) s = natsOptions_SetPingInterval(o, (int64_t)(how->ping_s * 1000));
    if (s == NATS_OK) s = natsOptions_SetMaxPingsOut(o, 2);
    if (s == NATS_OK) s = natsOptions_SetTimeout(o, 3000);
    if (s == NATS_OK) s = natsOptions_SetDisconnectedCB(o, on_change, c);
    if (s == NATS_OK) s = natsOptions_SetReconnectedCB(o, on_change, c);
    if (s == NATS_OK) s = natsOptions_SetClosedCB(o, on_change, c);
    if (s == NATS_OK) s = natsOptions_SetErrorHandler(o, on_error, c);
    if (s == NATS_OK) s = natsOptions_SetSendAsap(o, true);
    if (s != NATS_OK) return failed(e, ST_UNSUPPORTED, "libnats", s);
    if (strncmp(how->url, "tls:", 4) == 0 && (s = natsOptions_SetSecure(o, true)) != NATS_OK)
        return failed(e, ST_UNSUPPORTED, "TLS", s);
    c->sign = how->sign;
    c->ctx = how->ctx;
    if (how->public_key && (s = natsOptions_SetNKey(o, how->public_key, sign, c)) != NATS_OK)
        return failed(e, ST_CONFIG, how->public_key, s);
    if (how->ca_file && (s = natsOptions_LoadCATrustedCertificates(o, how->ca_file)) != NATS_OK)
        return failed(e, ST_CONFIG, how->ca_file, s);
    if (how->cert_file && (s = natsOptions_LoadCertificatesChain(o, how->cert_file, how->key_file)) != NATS_OK)
        return failed(e, ST_CONFIG, how->cert_file, s);
    return ST_OK;
}

/* Whether trying again is of no use: the key, or what the server can do, would have to change. */
static bool never(natsStatus s) {
    return s == NATS_CONNECTION_AUTH_FAILED || s == NATS_NOT_PERMITTED || s == NATS_NO_SERVER_SUPPORT ||
           s == NATS_INVALID_ARG;
}

static void close_connection(struct nats_connection *c) {
    if (!c) return;
    for (int i = 0; i < c->n_subs; i++) natsSubscription_Destroy(c->sub[i]);
    natsConnection_Destroy(c->nc);
    natsOptions_Destroy(c->options);
    nats_Sleep(10); /* the library's threads leave the callbacks */
    while (c->first) {
        struct queued *q = c->first;
        c->first = q->next;
        natsMsg_Destroy(q->msg);
        free(q);
    }
    if (c->event >= 0) close(c->event);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static enum status open_connection(const struct nats_connect *how, struct nats_connection **out, struct err *e) {
    struct nats_connection *c = calloc(1, sizeof *c);
    if (!c) return FAIL(e, ST_MEMORY, "out of memory");
    c->end = &c->first;
    pthread_mutex_init(&c->lock, NULL);
    c->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    enum status st = c->event < 0 ? FAIL(e, ST_IO, "eventfd: %s", strerror(errno)) : set_options(c, how, e);
    if (st == ST_OK) {
        /* Once, to learn what the server says: behind tries in the background the library has forgotten it. */
        natsStatus s = natsConnection_Connect(&c->nc, c->options);
        if (s != NATS_OK && !never(s)) {
            s = natsOptions_SetRetryOnFailedConnect(c->options, true, on_change, c);
            if (s == NATS_OK) s = natsConnection_Connect(&c->nc, c->options);
        }
        if (s != NATS_OK && s != NATS_NOT_YET_CONNECTED) st = failed(e, never(s) ? ST_CONFIG : ST_IO, how->url, s);
    }
    if (st != ST_OK) {
        close_connection(c);
        return st;
    }
    *out = c;
    return ST_OK;
}

static bool is_connected(struct nats_connection *c) {
    return natsConnection_Status(c->nc) == NATS_CONN_STATUS_CONNECTED;
}

static bool is_closed(struct nats_connection *c) { return natsConnection_Status(c->nc) == NATS_CONN_STATUS_CLOSED; }

static bool is_refused(struct nats_connection *c) {
    const char *text = NULL;
    return never(natsConnection_GetLastError(c->nc, &text));
}

static void last_error(struct nats_connection *c, char *out, size_t size) {
    const char *text = NULL;
    const natsStatus s = natsConnection_GetLastError(c->nc, &text);
    snprintf(out, size, "%s", text && *text ? text : s == NATS_OK ? "" : natsStatus_GetText(s));
}

static int event_fd(struct nats_connection *c) { return c->event; }

static enum status subscribe(struct nats_connection *c, const char *subject, struct err *e) {
    if (c->n_subs == SUBSCRIPTIONS_MAX) return FAIL(e, ST_INVALID, "%s: too many subscriptions", subject);
    const natsStatus s = natsConnection_Subscribe(&c->sub[c->n_subs], c->nc, subject, on_message, c);
    if (s != NATS_OK) return failed(e, ST_IO, subject, s);
    natsSubscription_SetPendingLimits(c->sub[c->n_subs], -1, -1);
    c->n_subs++;
    return ST_OK;
}

static enum status publish(struct nats_connection *c, const char *subject, const char *reply,
                           const struct nats_header *headers, const void *data, size_t n, struct err *e) {
    natsMsg *msg = NULL;
    natsStatus s = natsMsg_Create(&msg, subject, reply, data, (int)n);
    for (; s == NATS_OK && headers && headers->name; headers++)
        s = natsMsgHeader_Set(msg, headers->name, headers->value);
    if (s == NATS_OK) s = natsConnection_PublishMsg(c->nc, msg);
    natsMsg_Destroy(msg);
    return s == NATS_OK ? ST_OK : failed(e, ST_IO, subject, s);
}

static bool take(struct nats_connection *c, struct nats_received *out) {
    uint64_t seen;
    pthread_mutex_lock(&c->lock);
    struct queued *q = c->first;
    if (q) {
        c->first = q->next;
        if (!c->first) c->end = &c->first;
    } else {
        while (read(c->event, &seen, sizeof seen) > 0) {}
    }
    pthread_mutex_unlock(&c->lock);
    if (!q) return false;
    *out = (struct nats_received){.subject = natsMsg_GetSubject(q->msg),
                                  .reply = natsMsg_GetReply(q->msg),
                                  .data = natsMsg_GetData(q->msg),
                                  .n = (size_t)natsMsg_GetDataLength(q->msg),
                                  .handle = q->msg};
    free(q);
    return true;
}

static const char *header(const struct nats_received *m, const char *name) {
    const char *value = NULL;
    return natsMsgHeader_Get(m->handle, name, &value) == NATS_OK ? value : NULL;
}

static void release(struct nats_received *m) {
    natsMsg_Destroy(m->handle);
    *m = (struct nats_received){0};
}

static void flush(struct nats_connection *c, double seconds) {
    const natsStatus s = natsConnection_FlushTimeout(c->nc, (int64_t)(seconds * 1000));
    (void)s; /* who needs to know asks for an answer */
}

__attribute__((visibility("default"))) const struct nats_api kernelrl_nats_api = {.abi = NATS_API_ABI,
                                                                                  .open = open_connection,
                                                                                  .close = close_connection,
                                                                                  .is_connected = is_connected,
                                                                                  .is_closed = is_closed,
                                                                                  .is_refused = is_refused,
                                                                                  .last_error = last_error,
                                                                                  .fd = event_fd,
                                                                                  .subscribe = subscribe,
                                                                                  .publish = publish,
                                                                                  .take = take,
                                                                                  .header = header,
                                                                                  .release = release,
                                                                                  .flush = flush};
