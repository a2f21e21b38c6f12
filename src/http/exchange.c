/* One request and its reply, from the request line to the end of the connection's turn. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/hash.h"
#include "http/internal.h"

struct http_exchange *exchange_new(struct conn *c, const char *target) {
    struct http_server *s = c->s;
    struct http_exchange *x = xcalloc(1, sizeof *x);
    x->s = s;
    x->c = c;
    x->front = -1;
    x->target = xstrdup(target);
    x->announced = -1;
    x->began = clock_now_ns();
    const uint64_t key[2] = {s->id_key, s->id_count++};
    snprintf(x->id, sizeof x->id, "req-%016llx%08llx", (unsigned long long)hash_bytes(key, sizeof key, 1),
             (unsigned long long)(hash_bytes(key, sizeof key, 2) >> 32));
    return x;
}

void exchange_give_body_back(struct http_exchange *x) {
    x->s->bodies -= x->body_bytes;
    x->body_bytes = 0;
}

static void free_headers(struct http_exchange *x) {
    for (struct header *h = x->headers, *next; h; h = next) {
        next = h->next;
        free(h->name);
        free(h->value);
        free(h);
    }
    x->headers = NULL;
}

static void count(const struct http_exchange *x) {
    struct http_counts *n = &x->s->counts;
    const int class = x->gone || x->status < 100 || x->status > 599 ? 0 : x->status / 100;
    if (x->front < 0 || !x->route)
        n->no_route[class]++;
    else
        n->routes[x->front][x->route - x->s->front[x->front]->route][class]++;
}

void exchange_end(struct http_exchange *x) {
    struct conn *c = x->c;
    const struct http_front *f = x->front < 0 ? NULL : x->s->front[x->front];
    if (x->begun && x->route->end) x->route->end(f->ctx, x);
    count(x);
    if (x->counted) access_log_add(x->s, x);
    exchange_give_body_back(x);
    if (x->response) MHD_destroy_response(x->response);
    free_headers(x);
    free(x->target);
    free(x->path);
    str_free(&x->body);
    str_free(&x->out);
    str_free(&x->log);
    x->s->n_exchanges -= x->counted;
    c->x = NULL;
    c->idle = true;
    c->head_deadline = clock_now_ns() + (int64_t)(x->s->o.idle_s * 1e9);
    free(x);
}

void exchange_suspend(struct http_exchange *x) {
    x->suspended = true;
    MHD_suspend_connection(x->c->mhd);
}

void exchange_resume(struct http_exchange *x) {
    if (!x->suspended) return;
    x->suspended = false;
    MHD_resume_connection(x->c->mhd);
}

void exchange_lose(struct http_exchange *x) {
    if (x->gone) return;
    x->gone = true;
    shutdown(x->c->fd, SHUT_RDWR);
    exchange_resume(x);
}

void exchange_begin(struct http_exchange *x) {
    const struct http_front *f = x->s->front[x->front];
    x->phase = PHASE_WAITING;
    x->begun = true;
    x->route->begin(f->ctx, x);
}

void exchange_event(struct http_exchange *x, enum http_event e) {
    const struct http_front *f = x->s->front[x->front];
    if (!x->begun || x->gone) return;
    const bool said_all = http_replied(x) && !x->more; /* true: a whole reply is being sent */
    if (x->route->event && !said_all) x->route->event(f->ctx, x, e);
    if (e != HTTP_CUT || x->gone) return;
    x->cut = true;
    if (!http_replied(x)) http_reply_error(x, 503, "draining", NULL, "the server is ending");
    exchange_resume(x); /* a stream writes its last bytes */
}

void http_wake(struct http_exchange *x) {
    if (x->gone) return;
    if (x->phase == PHASE_WAITING && !http_replied(x))
        exchange_event(x, HTTP_WOKEN);
    else if (x->more)
        exchange_resume(x);
}

void http_wake_after(struct http_exchange *x, double seconds) {
    x->wake_at = clock_now_ns() + (int64_t)(seconds * 1e9);
}

/* ---- what the route asks ------------------------------------------------------------------------------------------*/

const char *http_method(const struct http_exchange *x) { return x->method; }
const char *http_path(const struct http_exchange *x) { return x->path; }
const char *http_tail(const struct http_exchange *x) { return x->tail ? x->tail : ""; }
const char *http_request_id(const struct http_exchange *x) { return x->id; }
struct http_server *http_server_of(const struct http_exchange *x) {
    return x->s;
}
void *http_state(const struct http_exchange *x) { return x->state; }
void http_set_state(struct http_exchange *x, void *state) { x->state = state; }
bool http_replied(const struct http_exchange *x) { return x->response != NULL || x->phase == PHASE_REPLY; }

const char *http_query(const struct http_exchange *x, const char *name) {
    return MHD_lookup_connection_value(x->c->mhd, MHD_GET_ARGUMENT_KIND, name);
}

const char *http_header(const struct http_exchange *x, const char *name) {
    return MHD_lookup_connection_value(x->c->mhd, MHD_HEADER_KIND, name);
}

bool http_key(const struct http_exchange *x, struct digest *out) {
    return guard_known_key(&x->s->guard, http_header(x, "Authorization"), http_header(x, "X-Api-Key"), out);
}

const char *http_key_name(const struct http_exchange *x) {
    struct digest key;
    return http_key(x, &key) ? guard_key_name(&x->s->guard, &key) : NULL;
}

const char *http_body(const struct http_exchange *x, size_t *bytes) {
    *bytes = x->body.len;
    return str_c(&x->body);
}

void http_take_body(struct http_exchange *x, struct str *out) {
    *out = x->body;
    x->body = STR_INIT;
}

void http_log_number(struct http_exchange *x, const char *name, int64_t value) {
    str_addf(&x->log, ",\"%s\":%lld", name, (long long)value);
}
