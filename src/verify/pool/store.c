#include "verify/pool/store.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/log.h"

enum { FILE_BYTES = 1 << 17, JUDGEMENTS = 2 };

struct verdict_store {
    char *folder;
    bool warned;
};

struct judgement {
    struct verdict verdict;
    char worker[100];
};
struct entry {
    struct judgement by[JUDGEMENTS];
    int n;
};

bool verdicts_agree(const struct verdict *a, const struct verdict *b) {
    if ((a->outcome == OUTCOME_CORRECT) != (b->outcome == OUTCOME_CORRECT)) return false;
    if (!(a->speedup > 0) || !(b->speedup > 0)) return true;
    return fabs(log(a->speedup / b->speedup)) <= log(1.1);
}

enum status verdict_store_open(const char *folder, struct verdict_store **out, struct err *e) {
    *out = NULL;
    if (!folder || !*folder) return ST_OK;
    TRY(fs_mkdirs(folder, e));
    *out = xcalloc(1, sizeof **out);
    (*out)->folder = xstrdup(folder);
    return ST_OK;
}

void verdict_store_close(struct verdict_store *s) {
    if (s) free(s->folder);
    free(s);
}

struct digest verdict_store_name(const char *settings_hash, const char *class, const struct digest *key) {
    CLEANUP_STR struct str text = STR_INIT;
    str_addf(&text, "verdict 1\n%s\n%s\n%s\n%s\n", KERNELRL_VERSION, settings_hash, class, key->hex);
    return digest_of(text.p, text.len);
}

static void path_of(const struct verdict_store *s, const struct digest *name, struct str *out) {
    str_addf(out, "%s/%.2s/%s.json", s->folder, name->hex, name->hex);
}

static bool read_entry(const struct verdict_store *s, const struct digest *name, struct entry *out) {
    CLEANUP_STR struct str path = STR_INIT;
    CLEANUP_JSON json_t *o = NULL;
    struct err ignored;
    json_t *list;
    *out = (struct entry){0};
    path_of(s, name, &path);
    if (!fs_is_file(path.p) || js_load(path.p, FILE_BYTES, &o, &ignored) != ST_OK ||
        js_get_array(o, path.p, "judgements", &list, &ignored) != ST_OK)
        return false;
    for (size_t i = 0; i < json_array_size(list) && out->n < JUDGEMENTS; i++) {
        const json_t *one = json_array_get(list, i);
        json_t *verdict;
        const char *worker;
        struct judgement *j = &out->by[out->n];
        if (js_get_str(one, path.p, "worker", &worker, &ignored) != ST_OK ||
            js_get_object(one, path.p, "verdict", &verdict, &ignored) != ST_OK ||
            verdict_from_json(verdict, path.p, &j->verdict, &ignored) != ST_OK)
            return false;
        snprintf(j->worker, sizeof j->worker, "%s", worker);
        out->n++;
    }
    return true;
}

bool verdict_store_find(const struct verdict_store *s, const struct digest *name, struct verdict *out) {
    struct entry x;
    if (!s || !read_entry(s, name, &x) || x.n < JUDGEMENTS) return false;
    if (!verdicts_agree(&x.by[0].verdict, &x.by[1].verdict)) return false;
    *out = x.by[0].verdict;
    out->cached = true;
    return true;
}

static enum status write_entry(const struct verdict_store *s, const struct digest *name, const struct entry *x,
                               struct err *e) {
    CLEANUP_STR struct str path = STR_INIT, text = STR_INIT, folder = STR_INIT;
    path_of(s, name, &path);
    str_addf(&folder, "%s/%.2s", s->folder, name->hex);
    TRY(fs_mkdirs(folder.p, e));
    js_begin(&text, NULL, '{');
    js_put_i64(&text, "version", 1);
    js_begin(&text, "judgements", '[');
    for (int i = 0; i < x->n; i++) {
        CLEANUP_STR struct str verdict = STR_INIT;
        js_begin(&text, NULL, '{');
        js_put_str(&text, "worker", x->by[i].worker);
        verdict_to_json(&x->by[i].verdict, &verdict);
        str_adds(&text, ",\"verdict\":");
        str_add(&text, verdict.p, verdict.len);
        js_end(&text, '}');
    }
    js_end(&text, ']');
    js_end(&text, '}');
    str_addc(&text, '\n');
    return fs_write_atomic(path.p, text.p, text.len, e);
}

void verdict_store_add(struct verdict_store *s, const struct digest *name, const char *worker,
                       const struct verdict *verdict) {
    struct entry x;
    struct err e;
    const enum outcome o = verdict->outcome;
    if (!s || verdict->cached || o == OUTCOME_NO_KERNEL || outcome_class(o) == 'I') return;
    (void)read_entry(s, name, &x);
    if (x.n == JUDGEMENTS && verdicts_agree(&x.by[0].verdict, &x.by[1].verdict)) return;
    if (x.n > 0 && !verdicts_agree(&x.by[x.n - 1].verdict, verdict)) x.n = 0; /* one of them is wrong: begin anew */
    if (x.n == JUDGEMENTS) x.n = 0;
    x.by[x.n].verdict = *verdict;
    snprintf(x.by[x.n].worker, sizeof x.by[x.n].worker, "%s", worker);
    x.n++;
    if (write_entry(s, name, &x, &e) == ST_OK || s->warned) return;
    s->warned = true;
    log_warn("%s; verdicts are not shared", e.msg);
}
