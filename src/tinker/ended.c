/* What has ended: it is remembered for a while, so that a client that comes late is told so, and then forgotten. */
#include <stdlib.h>
#include <unistd.h>

#include "tinker/internal.h"

void ended_session_free(struct tinker_session *s) {
    if (s->samples >= 0) close(s->samples);
    free(s->name);
    free(s->metadata);
    free(s->project);
    free(s);
}

void ended_run_free(struct tinker_run *r) {
    store_close_run(r);
    free(r->id);
    free(r->metadata);
    free(r->base);
    free(r);
}

void ended_sampler_free(struct tinker_sampler *m) {
    completions_free(m);
    free(m->id);
    free(m->path);
    free(m->base);
    free(m);
}

static bool may_go(const struct tinker *t, const struct tinker_sampler *m, double before) {
    if (!m->gone || m->went > before || m->completed.n_polls > 0 || sampler_is_used(t, m)) return false;
    for (const struct task *w = t->tasks; w; w = w->next)
        if (w->sampler == m) return false;
    return true;
}

static bool has_work(const struct tinker *t, const struct tinker_session *s) {
    for (const struct task *w = t->tasks; w; w = w->next)
        if (w->run && w->run->session == s) return true;
    for (const struct tinker_sampler *m = t->samplers; m; m = m->next)
        if (m->session == s) return true;
    for (const struct tinker_run *r = t->runs; r; r = r->next)
        if (r->session == s && !r->gone) return true;
    return false;
}

static void forget_runs(struct tinker *t, const struct tinker_session *s) {
    for (struct tinker_run **at = &t->runs, *r; (r = *at);) {
        if (r->session != s) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        ended_run_free(r);
    }
}

void ended_forget(struct tinker *t, double now) {
    const double before = now - t->o->forget_s;
    int ended = 0;
    for (struct tinker_sampler **at = &t->samplers, *m; (m = *at);) {
        if (!may_go(t, m, before)) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        ended_sampler_free(m);
    }
    for (struct tinker_session **at = &t->sessions, *s; (s = *at);) { /* the newest first */
        ended += s->finished;
        if (!s->finished || (s->ended > before && ended <= ENDED) || has_work(t, s)) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        forget_runs(t, s);
        ended_session_free(s);
    }
}
