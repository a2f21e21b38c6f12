#include "rl/run/missing_verdicts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/log.h"
#include "io/json.h"

const double missing_share = 0.05;

static struct missing_problem *find(const struct missing *m, const char *key) {
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->problem[i].key, key) == 0) return &m->problem[i];
    return NULL;
}

static struct missing_problem *add(struct missing *m, const char *key) {
    if (m->n == m->cap) {
        m->cap = m->cap ? 2 * m->cap : 16;
        m->problem = xrealloc(m->problem, (size_t)m->cap * sizeof *m->problem);
    }
    m->problem[m->n] = (struct missing_problem){.key = xstrdup(key)};
    return &m->problem[m->n++];
}

static double share_of(const struct missing_problem *p) {
    return p->answers ? (double)p->missing / (double)p->answers : 0;
}

static bool is_suspect(const struct missing_problem *p) {
    return p->groups >= MISSING_GROUPS && share_of(p) > missing_share;
}

struct task_count {
    const struct problem *problem;
    int answers, without;
};

static bool is_mixed(const struct task_count *t) { return t->without > 0 && t->without < t->answers; }

/* The caller frees. */
static struct task_count *count_tasks(const struct rollout *r) {
    struct task_count *t = xcalloc((size_t)r->n_tasks + 1, sizeof *t);
    for (int i = 0; i < r->n; i++) {
        const struct sample_group *g = &r->group[i];
        t[g->task].problem = g->problem;
        t[g->task].answers += g->n;
        for (int j = 0; j < g->n; j++) t[g->task].without += !g->ep[j].present;
    }
    return t;
}

static void drop(struct rollout *r, int task) {
    for (int i = 0; i < r->n; i++)
        for (int j = 0; r->group[i].task == task && j < r->group[i].n; j++) r->group[i].ep[j].has_return = false;
}

void missing_count(struct missing *m, struct rollout *r) {
    CLEANUP_FREE struct task_count *t = count_tasks(r);
    m->answers = m->without = m->dropped = 0;
    for (int i = 0; i < r->n_tasks; i++) {
        m->answers += t[i].answers;
        m->without += t[i].without;
        if (!t[i].problem) continue;
        struct missing_problem *p = find(m, t[i].problem->key);
        if (!p && t[i].without > 0) p = add(m, t[i].problem->key);
        if (!p) continue;
        const bool before = is_suspect(p), mixed = is_mixed(&t[i]);
        p->answers += t[i].answers;
        p->missing += mixed ? t[i].without : 0; /* where all are, the machine is at fault or the problem */
        p->groups += mixed;
        if (!mixed || !is_suspect(p)) continue;
        drop(r, i);
        m->dropped++;
        if (!before)
            log_warn("%s: %lld of %lld answers have no verdict, beside others of their groups that have theirs; such "
                     "groups of it are not learned from",
                     p->key, (long long)p->missing, (long long)p->answers);
    }
}

void missing_count_back(struct missing *m, const struct rollout *r) {
    CLEANUP_FREE struct task_count *t = count_tasks(r);
    for (int i = 0; i < r->n_tasks; i++) {
        struct missing_problem *p = t[i].problem ? find(m, t[i].problem->key) : NULL;
        const bool mixed = is_mixed(&t[i]);
        if (!p) continue;
        p->answers -= t[i].answers;
        p->missing -= mixed ? t[i].without : 0;
        p->groups -= mixed;
    }
}

void missing_metrics(const struct missing *m, const struct rollout *r, struct metrics *l) {
    metrics_add(l, m->answers ? (double)m->without / (double)m->answers : (double)NAN, "missing/share");
    metrics_add(l, (double)m->dropped, "missing/groups_dropped");
    CLEANUP_FREE bool *told = xcalloc((size_t)m->n + 1, sizeof *told);
    for (int i = 0; i < r->n; i++) {
        const struct missing_problem *p = find(m, r->group[i].problem->key);
        if (!p || told[p - m->problem]) continue;
        told[p - m->problem] = true;
        metrics_add(l, share_of(p), "missing/problem/%s", p->key);
    }
}

static int largest_first(const void *pa, const void *pb) {
    const struct missing_problem *a = pa, *b = pb;
    if (share_of(a) != share_of(b)) return share_of(a) < share_of(b) ? 1 : -1;
    return strcmp(a->key, b->key);
}

void missing_log(const struct missing *m) {
    enum { MOST = 5 };
    if (m->n == 0) return;
    CLEANUP_FREE struct missing_problem *p = xmalloc((size_t)m->n * sizeof *p);
    memcpy(p, m->problem, (size_t)m->n * sizeof *p);
    qsort(p, (size_t)m->n, sizeof *p, largest_first);
    for (int i = 0; i < m->n && i < MOST; i++)
        log_info("without a verdict: %.1f%% of the answers to %s (%lld of %lld, in %lld groups)", 100 * share_of(&p[i]),
                 p[i].key, (long long)p[i].missing, (long long)p[i].answers, (long long)p[i].groups);
}

/* ---- checkpoints --------------------------------------------------------------------------------------------------*/

enum status missing_save(const struct missing *m, const char *dir, struct err *e) {
    CLEANUP_FREE char *path = fs_join(dir, "missing.json");
    CLEANUP_STR struct str s = STR_INIT;
    if (m->n == 0) return ST_OK;
    js_begin(&s, NULL, '{');
    for (int i = 0; i < m->n; i++) {
        js_begin(&s, m->problem[i].key, '{');
        js_put_i64(&s, "answers", m->problem[i].answers);
        js_put_i64(&s, "missing", m->problem[i].missing);
        js_put_i64(&s, "groups", m->problem[i].groups);
        js_end(&s, '}');
    }
    js_end(&s, '}');
    return fs_write_atomic(path, s.p, s.len, e);
}

enum status missing_load(struct missing *m, const char *dir, struct err *e) {
    CLEANUP_FREE char *path = fs_join(dir, "missing.json");
    CLEANUP_JSON json_t *o = NULL;
    const char *key;
    json_t *v;
    if (!fs_is_file(path)) return ST_OK;
    TRY(js_load(path, 64 << 20, &o, e));
    json_object_foreach(o, key, v) {
        struct missing_problem *p = add(m, key);
        TRY(js_get_i64(v, path, "answers", &p->answers, e));
        TRY(js_get_i64(v, path, "missing", &p->missing, e));
        TRY(js_get_i64(v, path, "groups", &p->groups, e));
        if (p->missing < 0 || p->groups < 0 || p->answers < p->missing)
            return FAIL(e, ST_PARSE, "%s: %s: counts that no run has", path, key);
    }
    return ST_OK;
}

void missing_free(struct missing *m) {
    for (int i = 0; i < m->n; i++) free(m->problem[i].key);
    free(m->problem);
    *m = (struct missing){0};
}
