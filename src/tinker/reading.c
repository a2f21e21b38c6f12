/* Bodies that may be large, of forward_backward and asample: parsing, unpacking and checking one of some MB takes far
 * longer than anything else that the server's thread does, and all polls and streams would wait for it. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "tinker/internal.h"

enum { MAX_UNPACKED = 64 << 20 };

static void prepare(struct call_reading *r, struct tinker *t, void (*read)(struct call_reading *r),
                    void (*take)(struct call_reading *r)) {
    const struct model_config *c = model_cfg(model_thread_policy(t->thread)->model);
    r->t = t;
    r->vocab = c->V;
    r->max_tokens = c->max_positions;
    r->read = read;
    r->take = take;
}

static void look(struct call_reading *r) {
    r->read(r);
    if (!r->refused) r->content = digest_of(r->in.body, r->in.n);
}

static void take(struct call_reading *r) {
    if (r->refused)
        reply_detail(r->in.x, r->refused, "%s", r->err.msg);
    else
        r->take(r);
}

static void free_read(struct call_reading *r) {
    str_free(&r->body);
    arena_free(&r->mem);
}

void reading_now(struct tinker *t, const struct incoming *in, void (*read)(struct call_reading *r),
                 void (*take_on)(struct call_reading *r)) {
    struct call_reading r = {.in = *in};
    prepare(&r, t, read, take_on);
    look(&r);
    take(&r);
    free_read(&r);
}

static struct call_reading *of_work(struct work *w) {
    return (struct call_reading *)(void *)((char *)w - offsetof(struct call_reading, work));
}

/* Any thread. */
static void run_work(struct work *w, struct tokenizer *tok) {
    struct call_reading *r = of_work(w);
    (void)tok;
    if (!r->packed) {
        r->body = w->body;
        w->body = STR_INIT;
    } else if ((r->status = wire_unzstd(w->body.p, w->body.len, MAX_UNPACKED, &r->body, &r->err)) != ST_OK) {
        r->refused = r->status == ST_INVALID ? 413 : 400;
        return;
    }
    r->in.body = str_c(&r->body);
    r->in.n = r->body.len;
    look(r);
}

static void work_done(struct work *w) {
    struct call_reading *r = of_work(w);
    if (w->x) {
        take(r);
    } else { /* its client has left; the server may have gone, too */
        free_read(r);
        free(r);
    }
}

void reading_begin(struct tinker *t, struct http_exchange *x, enum call_kind kind, void (*read)(struct call_reading *r),
                   void (*take_on)(struct call_reading *r)) {
    const char *encoding = http_header(x, "content-encoding");
    const bool packed = encoding && strcmp(encoding, "identity") != 0;
    if (packed && strcmp(encoding, "zstd") != 0) {
        reply_detail(x, 415, "content-encoding: only zstd is supported here");
        return;
    }
    struct call_reading *r = xcalloc(1, sizeof *r);
    r->work = (struct work){.run = run_work, .done = work_done, .aside = packed};
    r->in = (struct incoming){.x = x, .kind = kind};
    r->packed = packed;
    prepare(r, t, read, take_on);
    http_set_state(x, r);
    work_begin(&r->work, t->serve, x);
}

void reading_event(void *tinker, struct http_exchange *x, enum http_event e) {
    (void)tinker;
    if (e == HTTP_CUT) reply_detail(x, 503, "the server is ending");
}

void reading_end(void *tinker, struct http_exchange *x) {
    struct call_reading *r = http_state(x);
    (void)tinker;
    if (!r || !work_end(&r->work)) return;
    free_read(r);
    free(r);
}
