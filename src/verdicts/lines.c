#include "verdicts/lines.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct lines {
    struct desk *desk;
    FILE *out;
    pthread_mutex_t lock; /* of what follows, and of `out` */
    pthread_cond_t changed;
    int pending;
    bool broken; /* true: what was written was not taken */
    int write_errno;
    struct lines_counts counts;
};

/* What is known of a request beside the work: its place among the lines. */
struct line_place {
    struct lines *l;
    int64_t line;
};

/* The lock is held. */
static void write_line(struct lines *l, const struct str *line) {
    if (l->broken) return;
    l->broken = fwrite(line->p, 1, line->len, l->out) != line->len || fflush(l->out) != 0;
    if (l->broken) l->write_errno = errno;
}

static void put_head(struct str *out, const char *id, int64_t line, const char *status) {
    js_begin(out, NULL, '{');
    js_put_str(out, "id", id);
    js_put_str(out, "object", "verify.job");
    js_put_i64(out, "line", line);
    js_put_str(out, "status", status);
}

static void on_done(void *ctx, struct desk_work *w) {
    struct line_place *p = ctx;
    struct lines *l = p->l;
    CLEANUP_STR struct str line = STR_INIT;
    const bool good = desk_has_verdict(w);
    put_head(&line, w->ask.id, p->line, good ? "succeeded" : "failed");
    js_put_i64(&line, "attempts", w->attempts);
    js_put_bool(&line, "cached", w->item.verdict.cached);
    js_put_str(&line, "config", w->config->name);
    js_put_str(&line, "problem", w->key);
    desk_put_result(w, &line);
    if (w->ask.metadata) js_put_json(&line, "metadata", w->ask.metadata);
    js_end(&line, '}');
    str_addc(&line, '\n');
    pthread_mutex_lock(&l->lock);
    write_line(l, &line);
    *(good ? &l->counts.verdicts : &l->counts.missing) += 1;
    l->pending--;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->lock);
    desk_work_free(w);
    free(p);
}

static void refuse(struct lines *l, const char *id, int64_t number, const struct verdict_refusal *why) {
    CLEANUP_STR struct str line = STR_INIT;
    put_head(&line, id, number, "refused");
    js_put_null(&line, "verdict");
    js_put_null(&line, "reward");
    verdict_refusal_json(why, "error", &line);
    js_end(&line, '}');
    str_addc(&line, '\n');
    pthread_mutex_lock(&l->lock);
    write_line(l, &line);
    l->counts.refused++;
    pthread_mutex_unlock(&l->lock);
}

static void take_line(struct lines *l, const char *text, size_t n, int64_t number) {
    CLEANUP_JSON json_t *request = NULL;
    struct verdict_refusal why;
    struct desk_work *w;
    struct err e;
    char name[40];
    snprintf(name, sizeof name, "line %lld", (long long)number);
    if (js_parse(text, n, name, &request, &e) != ST_OK) {
        (void)verdict_refuse(&why, 400, NULL, NULL, "%.500s", e.msg);
        refuse(l, NULL, number, &why);
        return;
    }
    if (!desk_prepare(l->desk, request, &w, &why)) {
        const json_t *id = json_object_get(request, "id");
        refuse(l, json_is_string(id) ? json_string_value(id) : NULL, number, &why);
        return;
    }
    struct line_place *p = xmalloc(sizeof *p);
    *p = (struct line_place){l, number};
    w->done = on_done;
    w->ctx = p;
    pthread_mutex_lock(&l->lock);
    while (l->pending >= LINES_AHEAD) pthread_cond_wait(&l->changed, &l->lock);
    l->pending++;
    pthread_mutex_unlock(&l->lock);
    json_decref(request); /* what the work keeps of it is the desk's alone from here on */
    request = NULL;
    desk_submit(l->desk, w);
}

static bool is_blank(const char *p, size_t n) {
    while (n > 0 && strchr(" \t\r\n", *p)) p++, n--;
    return n == 0;
}

static bool is_broken(struct lines *l) {
    pthread_mutex_lock(&l->lock);
    const bool broken = l->broken;
    pthread_mutex_unlock(&l->lock);
    return broken;
}

enum status lines_run(struct desk *d, FILE *in, FILE *out, struct lines_counts *counts, struct err *e) {
    struct lines l = {.desk = d, .out = out};
    CLEANUP_FREE char *text = NULL;
    size_t cap = 0;
    ssize_t n;
    pthread_mutex_init(&l.lock, NULL);
    pthread_cond_init(&l.changed, NULL);
    for (int64_t number = 1; !is_broken(&l) && (n = getline(&text, &cap, in)) >= 0; number++)
        if (!is_blank(text, (size_t)n)) take_line(&l, text, (size_t)n, number);
    const int read_errno = ferror(in) ? errno : 0;
    pthread_mutex_lock(&l.lock);
    while (l.pending > 0) pthread_cond_wait(&l.changed, &l.lock);
    pthread_mutex_unlock(&l.lock);
    pthread_cond_destroy(&l.changed);
    pthread_mutex_destroy(&l.lock);
    *counts = l.counts;
    if (l.broken) return FAIL(e, ST_IO, "standard output: %s", strerror(l.write_errno));
    if (read_errno) return FAIL(e, ST_IO, "standard input: %s", strerror(read_errno));
    return ST_OK;
}
