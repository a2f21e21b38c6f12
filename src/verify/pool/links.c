/* The processes of a pool: they are started, listened to, and started again. */
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "verify/pool/places.h"
#include "verify/pool/pool_internal.h"

enum { FDS_A_LINK = 3 };

/* Pauses before a process is started again; what a refused or drained one waits; how long a first word may take. */
static const double first_pause_s = 0.2, longest_pause_s = 30, refused_s = 60, drained_s = 600, hello_s = 60;

/* ---- making -------------------------------------------------------------------------------------------------------*/

static struct pool_link *add_link(struct verify_pool *p, const struct pool_host *h) {
    p->link = xrealloc(p->link, (size_t)(p->n_links + 1) * sizeof *p->link);
    struct pool_link *l = &p->link[p->n_links++];
    *l = (struct pool_link){.h = *h, .pause_s = first_pause_s, .probe = (double)NAN};
    return l;
}

static enum status make_local(struct verify_pool *p, const struct pool_host *h, struct err *e) {
    struct worker_place *place;
    char beat[32], python[4200] = "", cache[4200] = "";
    const char *extra[8] = {beat};
    int n, n_extra = 1;
    TRY(worker_places(h->slots, h->gpu, h->n_gpus, &place, &n, e));
    snprintf(beat, sizeof beat, "--beat=%g", p->o.beat_s);
    if (p->settings.python) snprintf(python, sizeof python, "--python=%s", p->settings.python);
    if (p->settings.cache_dir) snprintf(cache, sizeof cache, "--cache=%s", p->settings.cache_dir);
    if (python[0]) extra[n_extra++] = python;
    if (cache[0]) extra[n_extra++] = cache;
    if (p->settings.allow_weaker) extra[n_extra++] = "--allow-weaker";
    for (int i = 0; i < n; i++) {
        struct pool_link *l = add_link(p, h);
        link_init(&l->line, NULL);
        if (place[i].gpu.uuid[0])
            snprintf(l->label, sizeof l->label, "local:cuda:%d", place[i].gpu.index);
        else
            snprintf(l->label, sizeof l->label, "local:%d", i);
        worker_command(&l->line, &place[i], p->o.program, NULL, extra);
    }
    free(place);
    return ST_OK;
}

/* ssh HOST kernelrl verify-worker ...: the remote shell gets words without blanks. */
static void make_ssh(struct verify_pool *p, const struct pool_host *h) {
    struct pool_link *l = add_link(p, h);
    const char *ssh = getenv("KERNELRL_SSH"), *remote = getenv("KERNELRL_REMOTE");
    struct str gpus = STR_INIT;
    link_init(&l->line, NULL);
    snprintf(l->label, sizeof l->label, "ssh:%s", h->name);
    link_arg(&l->line, "%s", ssh && *ssh ? ssh : "ssh");
    link_arg(&l->line, "-T");
    link_arg(&l->line, "-oBatchMode=yes");
    link_arg(&l->line, "-oServerAliveInterval=5");
    link_arg(&l->line, "-oServerAliveCountMax=3");
    link_arg(&l->line, "%s", h->name);
    link_arg(&l->line, "%s", remote && *remote ? remote : "kernelrl");
    link_arg(&l->line, "verify-worker");
    link_arg(&l->line, "--beat=%g", p->o.beat_s);
    for (int i = 0; i < h->n_gpus; i++) str_addf(&gpus, "%s%d", i ? "+" : "", h->gpu[i]);
    if (h->slots > 0)
        link_arg(&l->line, "--slots=%d", h->slots);
    else
        link_arg(&l->line, "--gpus=%s", h->n_gpus ? gpus.p : "all");
    str_free(&gpus);
}

/* The queue is served by a process of its own, so that this one has no code that talks to a network. */
static void make_nats(struct verify_pool *p, const struct pool_host *h) {
    struct pool_link *l = add_link(p, h);
    link_init(&l->line, NULL);
    snprintf(l->label, sizeof l->label, "nats:%s", h->name);
    snprintf(l->line.program, sizeof l->line.program, "%s", p->o.program ? p->o.program : "/proc/self/exe");
    link_arg(&l->line, "kernelrl");
    link_arg(&l->line, "verifiers");
    link_arg(&l->line, "relay");
    link_arg(&l->line, "--nats=%s", h->name);
    link_arg(&l->line, "--beat=%g", p->o.beat_s);
    link_arg(&l->line, "--lease=%g", p->o.lease_s);
    if (p->o.credentials) link_arg(&l->line, "--credentials=%s", p->o.credentials);
    if (p->n_classes == 0) link_arg(&l->line, "--family=%s", pool_settings_on_gpu(&p->settings) ? "cuda" : "cpu");
}

enum status links_make(struct verify_pool *p, const struct pool_hosts *hosts, struct err *e) {
    for (int i = 0; i < hosts->n; i++) {
        const struct pool_host *h = &hosts->item[i];
        if (h->kind == POOL_LOCAL)
            TRY(make_local(p, h, e));
        else if (h->kind == POOL_SSH)
            make_ssh(p, h);
        else
            make_nats(p, h);
    }
    for (int i = 0; i < p->n_links; i++) p->link[i].line.label = p->link[i].label;
    p->fds = xcalloc((size_t)p->n_links * FDS_A_LINK + 1, sizeof *p->fds);
    return ST_OK;
}

/* ---- words --------------------------------------------------------------------------------------------------------*/

void link_send_line(struct pool_link *l, const struct str *line) { link_send(&l->line, line->p, line->len); }

void link_busy(struct pool_link *l, int change) {
    const double now = clock_now_s();
    const int most = l->slots > 0 ? l->slots : 1;
    const int judging = l->n_begun < most ? l->n_begun : most;
    l->busy_s += (now - l->busy_from) * judging;
    l->busy_from = now;
    l->n_begun += change;
}

/* Ends the process of a link; what it held is lost. */
void link_give_up(struct verify_pool *p, struct pool_link *l, enum link_state state, double retry_s, const char *why) {
    snprintf(l->reason, sizeof l->reason, "%s", why);
    link_stop(&l->line, 0);
    link_busy(l, 0);
    jobs_lost(p, l, l->reason);
    l->n_begun = 0;
    l->state = state;
    l->retry_at = clock_now_s() + retry_s;
    l->failures++;
    pthread_cond_broadcast(&p->changed);
}

static void link_ended(struct verify_pool *p, struct pool_link *l) {
    char why[LINK_WHY_BYTES + 40];
    const enum link_state was = l->state;
    link_stop(&l->line, 1);
    snprintf(why, sizeof why, "%s", l->line.why);
    if (was == LINK_DRAINING) {
        snprintf(why, sizeof why, "%.*s", (int)sizeof why - 1, l->reason);
        link_give_up(p, l, LINK_DOWN, drained_s, why);
        return;
    }
    log_warn("%s: %s", l->label, why);
    link_give_up(p, l, LINK_DOWN, l->pause_s, why);
    l->pause_s = fmin(2 * l->pause_s, longest_pause_s);
}

/* Whether the link judges what this pool wants judged. The first one to come decides where nobody else has. */
static bool match_classes(struct verify_pool *p, struct pool_link *l, const struct pool_message *m) {
    const char *family = pool_settings_on_gpu(&p->settings) ? "cuda-" : "cpu-";
    l->classes = 0;
    for (int i = 0; i < m->n_classes && p->n_classes == 0; i++)
        if (str_has_prefix(m->class[i], family)) {
            snprintf(p->class[p->n_classes++].name, CLASS_BYTES, "%s", m->class[i]);
            snprintf(p->classes_text, sizeof p->classes_text, "%s", m->class[i]);
        }
    for (int c = 0; c < p->n_classes; c++)
        for (int i = 0; i < m->n_classes; i++)
            if (strcmp(p->class[c].name, m->class[i]) == 0) l->classes |= 1U << c;
    if (l->h.kind == POOL_NATS) l->classes = (1U << p->n_classes) - 1; /* hosts of the others may come */
    return l->classes != 0;
}

static void refuse_link(struct verify_pool *p, struct pool_link *l, const char *why) {
    log_warn("%s: %s", l->label, why);
    link_give_up(p, l, LINK_REFUSED, refused_s, why);
}

static void link_hello(struct verify_pool *p, struct pool_link *l, const struct pool_message *m) {
    char why[600], theirs[300] = "";
    size_t at = 0;
    for (int i = 0; i < m->n_classes && at < sizeof theirs; i++)
        at += (size_t)snprintf(theirs + at, sizeof theirs - at, "%s%s", i ? ", " : "", m->class[i]);
    if (m->protocol != PROTOCOL_VERSION)
        snprintf(why, sizeof why, "it speaks version %d of the protocol, this program version %d", m->protocol,
                 PROTOCOL_VERSION);
    else if (strcmp(m->program, KERNELRL_VERSION) != 0)
        snprintf(why, sizeof why, "it is kernelrl %.40s, this program is %s", m->program, KERNELRL_VERSION);
    else if (!match_classes(p, l, m))
        snprintf(why, sizeof why, "its machine is %s, verdicts are wanted of %s (verify_class)",
                 theirs[0] ? theirs : "of no kind", p->classes_text[0] ? p->classes_text : "another kind");
    else {
        CLEANUP_STR struct str open = STR_INIT;
        struct pool_terms terms = p->terms;
        const char *first = NULL;
        for (int c = 0; c < p->n_classes; c++)
            if (l->classes & 1U << c && !first) first = p->class[c].name;
        terms.class = l->h.kind == POOL_NATS ? p->classes_text : first;
        snprintf(l->host, sizeof l->host, "%s", m->host);
        l->slots = m->slots;
        l->ahead = m->ahead;
        l->state = LINK_OPENING;
        l->busy_from = clock_now_s();
        pool_put_open(&terms, l->h.kind == POOL_NATS ? 0 : p->seed, &open);
        link_send_line(l, &open);
        return;
    }
    refuse_link(p, l, why);
}

static void link_ready(struct verify_pool *p, struct pool_link *l, const struct pool_message *m) {
    if (l->state != LINK_OPENING) return;
    if (m->hardware && !p->hardware[0]) snprintf(p->hardware, sizeof p->hardware, "%s", m->hardware);
    l->state = LINK_READY;
    l->failures = 0;
    l->reason[0] = 0;
    pthread_cond_broadcast(&p->changed);
}

/* Says what was refused, with both values. */
static void refusal(const struct pool_message *m, char *out, size_t size) {
    snprintf(out, size, "refused (%.40s): %.300s%s%.80s%s%.80s", m->what ? m->what : "?", m->reason ? m->reason : "",
             m->here ? "; there: " : "", m->here ? m->here : "", m->there ? ", asked for: " : "",
             m->there ? m->there : "");
}

static void link_refused(struct verify_pool *p, struct pool_link *l, const struct pool_message *m) {
    static const char *const lasting[] = {"protocol", "program", "class", "settings", "secret", "verifier", "slots"};
    char why[700];
    bool lasts = false;
    refusal(m, why, sizeof why);
    p->count.refused++;
    for (size_t i = 0; i < ARRAY_LEN(lasting); i++) lasts |= m->what && strcmp(m->what, lasting[i]) == 0;
    if (m->j) job_came_back(p, l, m);
    if (lasts && (l->h.kind != POOL_NATS || !m->j))
        refuse_link(p, l, why);
    else
        log_warn("%s: %s", l->label, why);
}

static void link_message(struct verify_pool *p, struct pool_link *l, const struct pool_message *m) {
    switch (m->type) {
    case MESSAGE_HELLO: link_hello(p, l, m); break;
    case MESSAGE_READY: link_ready(p, l, m); break;
    case MESSAGE_BEAT: l->probe = isnan(m->probe) ? l->probe : m->probe; break;
    case MESSAGE_SLOTS:
        l->slots = m->slots;
        l->queue = (int)m->queue;
        snprintf(l->reason, sizeof l->reason, "%s", m->reason ? m->reason : "");
        p->count.redeliveries += m->redelivered;
        break;
    case MESSAGE_BEGUN: job_begun(p, l, m); break;
    case MESSAGE_VERDICT: job_verdict(p, l, m); break;
    case MESSAGE_LOST:
    case MESSAGE_RETURNED: job_came_back(p, l, m); break;
    case MESSAGE_REFUSED: link_refused(p, l, m); break;
    case MESSAGE_DRAINING:
        snprintf(l->reason, sizeof l->reason, "it drains: %s", m->reason ? m->reason : "");
        log_warn("%s: %s", l->label, l->reason);
        l->state = LINK_DRAINING;
        break;
    default: break; /* of a later version, or nothing for a pool */
    }
}

static void read_link(struct verify_pool *p, struct pool_link *l) {
    char *line;
    uint64_t n;
    struct err e;
    const bool open = link_read(&l->line);
    l->heard_s = clock_now_s();
    for (enum line_kind k; link_is_running(&l->line) && (k = link_line(&l->line, &line, &n)) != LINE_NONE;) {
        struct pool_message m;
        if (k == LINE_TOO_LONG) {
            log_warn("%s: a line of %llu bytes, at most %d are read", l->label, (unsigned long long)n,
                     PROTOCOL_LINE_BYTES);
            p->count.refused++;
            continue;
        }
        if (pool_message_read(line, (size_t)n, l->label, &m, &e) == ST_OK)
            link_message(p, l, &m);
        else {
            log_warn("%s", e.msg);
            p->count.refused++;
        }
        pool_message_free(&m);
    }
    if (!open && link_is_running(&l->line)) link_ended(p, l);
}

/* ---- time ---------------------------------------------------------------------------------------------------------*/

static void start_link(struct verify_pool *p, struct pool_link *l, double now) {
    struct err e;
    l->heard_s = now;
    l->slots = 0;
    if (link_start(&l->line, &e) == ST_OK) {
        l->state = LINK_STARTING;
        return;
    }
    link_give_up(p, l, LINK_DOWN, l->pause_s, e.msg);
    l->pause_s = fmin(2 * l->pause_s, longest_pause_s);
}

static void look_at(struct verify_pool *p, struct pool_link *l, double now) {
    char why[120];
    if (!link_is_running(&l->line)) {
        if (now >= l->retry_at) start_link(p, l, now);
        return;
    }
    const double most = l->state == LINK_STARTING ? fmax(hello_s, p->o.lease_s) : p->o.lease_s;
    if (now - l->heard_s > most) {
        snprintf(why, sizeof why, "silent for %.0f s", now - l->heard_s);
        log_warn("%s: %s", l->label, why);
        link_give_up(p, l, LINK_DOWN, l->pause_s, why);
        l->pause_s = fmin(2 * l->pause_s, longest_pause_s);
        return;
    }
    for (const struct pool_attempt *a = l->held; a && l->h.kind != POOL_NATS; a = a->next) {
        /* A host of several slots ends the one that is late itself. */
        if (!a->begun || now - a->begun_s < p->o.deadline_s * (l->h.kind == POOL_LOCAL ? 1 : 1.2)) continue;
        snprintf(why, sizeof why, "a job took more than %.0f s (verify_deadline)", p->o.deadline_s);
        log_warn("%s: %s", l->label, why);
        link_give_up(p, l, LINK_DOWN, l->pause_s, why);
        return;
    }
}

void links_look(struct verify_pool *p, double now) {
    /* What nobody could hear, because this process stood still itself, is no silence. */
    const double late = p->looked_s > 0 ? now - p->looked_s - 1 : 0;
    p->looked_s = now;
    for (int i = 0; i < p->n_links; i++) {
        if (late > 0) p->link[i].heard_s += late;
        look_at(p, &p->link[i], now);
    }
}

int links_fds(struct verify_pool *p) {
    for (int i = 0; i < p->n_links; i++) {
        struct pool_link *l = &p->link[i];
        struct pollfd *f = p->fds + (ptrdiff_t)i * FDS_A_LINK;
        const bool up = link_is_running(&l->line);
        if (up) (void)link_write(&l->line);
        f[0] = (struct pollfd){.fd = up ? l->line.from : -1, .events = POLLIN};
        f[1] = (struct pollfd){.fd = up ? l->line.err : -1, .events = POLLIN};
        f[2] = (struct pollfd){.fd = up && link_has_output(&l->line) ? l->line.to : -1, .events = POLLOUT};
    }
    p->fds[p->n_links * FDS_A_LINK] = (struct pollfd){.fd = p->wake_fd, .events = POLLIN};
    return p->n_links * FDS_A_LINK + 1;
}

void links_serve(struct verify_pool *p) {
    for (int i = 0; i < p->n_links; i++) {
        struct pool_link *l = &p->link[i];
        const struct pollfd *f = p->fds + (ptrdiff_t)i * FDS_A_LINK;
        if (f[1].fd >= 0 && f[1].revents && link_is_running(&l->line)) link_read_err(&l->line);
        if (f[2].fd >= 0 && f[2].revents && link_is_running(&l->line)) (void)link_write(&l->line);
        if (f[0].fd >= 0 && f[0].revents && link_is_running(&l->line)) read_link(p, l);
    }
}
