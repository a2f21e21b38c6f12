#include "verify/pool/pool.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "verify/pool/pool_internal.h"

static const double close_s = 2.5, look_s = 0.1;

/* ---- the thread ---------------------------------------------------------------------------------------------------*/

static void wake_thread(struct verify_pool *p) {
    const uint64_t one = 1;
    const ssize_t n = write(p->wake_fd, &one, sizeof one); /* it fails only when the thread is to wake already */
    (void)n;
}

static void *serve(void *ctx) {
    struct verify_pool *p = ctx;
    uint64_t told;
    pthread_mutex_lock(&p->lock);
    while (!p->closing) {
        const double now = clock_now_s();
        links_look(p, now);
        jobs_dispatch(p, now);
        const int n = links_fds(p);
        pthread_mutex_unlock(&p->lock);
        (void)poll(p->fds, (nfds_t)n, (int)(look_s * 1000));
        while (read(p->wake_fd, &told, sizeof told) > 0) {}
        pthread_mutex_lock(&p->lock);
        links_serve(p);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- opening ------------------------------------------------------------------------------------------------------*/

static enum status read_classes(struct verify_pool *p, const char *text, struct err *e) {
    CLEANUP_FREE char *copy = xstrdup(text);
    char *rest = copy;
    for (char *one; (one = strsep(&rest, ","));) {
        char slug[CLASS_BYTES];
        hardware_slug(one, slug, sizeof slug);
        const char *family = pool_settings_on_gpu(&p->settings) ? "cuda-" : "cpu-";
        if (strcmp(slug, one) != 0 || !str_has_prefix(one, family) || p->n_classes == POOL_CLASSES_MAX)
            return FAIL(e, ST_CONFIG,
                        "verify_class: expected at most %d names such as %s (`kernelrl doctor` says this machine's) "
                        "with commas in between, got \"%.100s\"",
                        POOL_CLASSES_MAX, family[1] == 'u' ? "cuda-nvidia-h200" : "cpu-intel-xeon-x8", one);
        snprintf(p->class[p->n_classes++].name, CLASS_BYTES, "%s", one);
    }
    snprintf(p->classes_text, sizeof p->classes_text, "%s", text);
    return ST_OK;
}

/* True: none of the hosts is there, and each has said why or tried often enough. */
static bool all_failed(const struct verify_pool *p) {
    enum { TRIES = 3 };
    for (int i = 0; i < p->n_links; i++) {
        const struct pool_link *l = &p->link[i];
        if (l->state != LINK_REFUSED && !(l->state == LINK_DOWN && l->failures >= TRIES)) return false;
    }
    return true;
}

static void say_reasons(const struct verify_pool *p, struct str *out) {
    for (int i = 0; i < p->n_links; i++) {
        const struct pool_link *l = &p->link[i];
        if ((l->state == LINK_READY && l->slots > 0) || !l->reason[0]) continue;
        str_addf(out, "%s%s: %s", out->len ? "; " : "", l->label, l->reason);
    }
}

static bool any_ready(const struct verify_pool *p) {
    for (int i = 0; i < p->n_links; i++)
        if (p->link[i].state == LINK_READY) return true;
    return false;
}

static void wait_some(struct verify_pool *p, double seconds) {
    const double until = clock_now_s() + seconds;
    const struct timespec at = {.tv_sec = (time_t)until, .tv_nsec = (long)((until - floor(until)) * 1e9)};
    pthread_cond_timedwait(&p->changed, &p->lock, &at);
}

/* Until the first host is ready. */
static enum status wait_for_host(struct verify_pool *p, const volatile bool *cancel, struct err *e) {
    enum status st = ST_OK;
    double said = clock_now_s();
    pthread_mutex_lock(&p->lock);
    while (!any_ready(p) && st == ST_OK) {
        if (cancel && *cancel) st = FAIL(e, ST_CANCELLED, "interrupted");
        if (all_failed(p)) {
            CLEANUP_STR struct str why = STR_INIT;
            say_reasons(p, &why);
            st = FAIL(e, ST_WORKER, "no verifier can be had: %.800s", str_c(&why));
        }
        if (clock_now_s() - said > 30) {
            CLEANUP_STR struct str why = STR_INIT;
            said = clock_now_s();
            say_reasons(p, &why);
            log_info("waiting for the first verifier%s%s", why.len ? ": " : "", str_c(&why));
        }
        if (st == ST_OK) wait_some(p, 0.2);
    }
    pthread_mutex_unlock(&p->lock);
    return st;
}

static void take_options(struct verify_pool *p, const struct pool_options *o, const struct verify_options *v) {
    p->o = *o;
    if (p->o.lease_s <= 0) p->o.lease_s = 30;
    if (p->o.deadline_s <= 0) p->o.deadline_s = 300;
    if (p->o.beat_s <= 0) p->o.beat_s = fmin(2, p->o.lease_s / 4);
    if (p->o.hedge_s <= 0) p->o.hedge_s = 5;
    const char *farm = o->credentials ? o->credentials : getenv("KERNELRL_FARM");
    if (o->kept) p->o.kept = p->kept = xstrdup(o->kept);
    if (farm && *farm) p->o.credentials = p->credentials = xstrdup(farm);
    p->settings = *v;
    p->settings.quiet = NULL;
    p->settings.progress = NULL;
    p->done_end = &p->done;
    p->queue_end = &p->queue;
}

static enum status make_terms(struct verify_pool *p, bool through_queue, struct err *e) {
    p->seed = p->settings.seed;
    if (p->o.run)
        snprintf(p->run, sizeof p->run, "%s", p->o.run);
    else
        TRY(secret_run_name(p->run, e));
    if (through_queue && p->seed)
        return FAIL(e, ST_CONFIG, "a fixed seed cannot be used with a queue, which would see it");
    if (through_queue) {
        CLEANUP_STR struct str file = STR_INIT;
        if (!p->o.credentials)
            return FAIL(e, ST_CONFIG,
                        "verify_hosts=nats: KERNELRL_FARM has to name a folder with credentials (docs/farm.md)");
        str_addf(&file, "%s/secret", p->o.credentials);
        TRY(secret_of_run(file.p, p->run, &p->seed, e));
    }
    if (!p->seed) TRY(secret_draw(&p->seed, e));
    TRY(secret_draw(&p->audit_key, e));
    pool_settings_hash(&p->settings, p->settings_hash);
    pool_seed_tag(p->seed, p->seed_tag);
    p->terms = (struct pool_terms){.run = p->run,
                                   .settings = p->settings,
                                   .program = KERNELRL_VERSION,
                                   .settings_hash = p->settings_hash,
                                   .seed_tag = p->seed_tag};
    return ST_OK;
}

enum status verify_pool_open(const struct pool_options *o, const struct verify_options *v, const volatile bool *cancel,
                             struct verify_pool **out, struct err *e) {
    struct verify_pool *p = xcalloc(1, sizeof *p);
    struct pool_hosts hosts = {0};
    pthread_condattr_t monotonic;
    enum status st;
    *out = NULL;
    p->wake_fd = -1;
    take_options(p, o, v);
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&p->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    p->cache = verdict_cache_create();
    p->stats_s = clock_now_s();
    TRY_GOTO(pool_hosts_read(o->hosts, &hosts, e), fail);
    TRY_GOTO(make_terms(p, hosts.item[0].kind == POOL_NATS, e), fail);
    if (o->classes && *o->classes) TRY_GOTO(read_classes(p, o->classes, e), fail);
    TRY_GOTO(verdict_store_open(o->store, &p->store, e), fail);
    TRY_GOTO(links_make(p, &hosts, e), fail);
    st = ST_OK;
    p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->wake_fd < 0 || pthread_create(&p->thread, NULL, serve, p) != 0)
        st = FAIL(e, ST_WORKER, "no thread for verifiers: %s", strerror(errno));
    p->started = st == ST_OK;
    if (st == ST_OK) st = wait_for_host(p, cancel, e);
fail:
    pool_hosts_free(&hosts);
    if (st != ST_OK) {
        verify_pool_close(p);
        return st;
    }
    *out = p;
    return ST_OK;
}

/* All workers lose their input at once, and have the same time to end. */
static void close_links(struct verify_pool *p) {
    const double until = clock_now_s() + close_s;
    CLEANUP_STR struct str drain = STR_INIT;
    pool_put_drain(&drain); /* to the relay of a queue it says that this is no crash: nobody will ask for the rest */
    for (int i = 0; i < p->n_links; i++) {
        if (p->link[i].h.kind != POOL_NATS || !link_is_running(&p->link[i].line)) continue;
        link_send_line(&p->link[i], &drain);
        (void)link_write(&p->link[i].line);
    }
    for (int i = 0; i < p->n_links; i++)
        if (p->link[i].line.to >= 0) {
            close(p->link[i].line.to);
            p->link[i].line.to = -1;
        }
    for (int i = 0; i < p->n_links; i++) {
        link_stop(&p->link[i].line, fmax(0, until - clock_now_s()));
        link_free(&p->link[i].line);
    }
}

void verify_pool_close(struct verify_pool *p) {
    if (!p) return;
    if (p->started) {
        pthread_mutex_lock(&p->lock);
        p->closing = true;
        pthread_mutex_unlock(&p->lock);
        wake_thread(p);
        pthread_join(p->thread, NULL);
    }
    close_links(p);
    jobs_free(p);
    verdict_cache_free(p->cache);
    verdict_store_close(p->store);
    if (p->wake_fd >= 0) close(p->wake_fd);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p->link);
    free(p->fds);
    free(p->kept);
    free(p->credentials);
    free(p);
}

/* ---- the judge ----------------------------------------------------------------------------------------------------*/

static void submit(void *ctx, struct verify_item *item) {
    struct verify_pool *p = ctx;
    pthread_mutex_lock(&p->lock);
    job_submit(p, item);
    pthread_mutex_unlock(&p->lock);
    wake_thread(p);
}

static size_t collect(void *ctx, struct verify_item **done, size_t max, double seconds) {
    struct verify_pool *p = ctx;
    const double until = clock_now_s() + seconds;
    size_t n = 0;
    pthread_mutex_lock(&p->lock);
    while (!p->done && !p->woken && clock_now_s() < until) wait_some(p, until - clock_now_s());
    p->woken = false;
    while (p->done && n < max) {
        struct pool_item *x = p->done;
        p->done = x->next_done;
        if (!p->done) p->done_end = &p->done;
        x->collected = true;
        done[n++] = x->item;
    }
    pthread_mutex_unlock(&p->lock);
    return n;
}

static void settle(void *ctx, struct verify_item *item, bool kept) {
    struct verify_pool *p = ctx;
    pthread_mutex_lock(&p->lock);
    job_settle(p, item->at_judge, kept);
    pthread_mutex_unlock(&p->lock);
}

static bool withdraw(void *ctx, struct verify_item *item) {
    struct verify_pool *p = ctx;
    pthread_mutex_lock(&p->lock);
    const bool taken = item->at_judge && job_withdraw(p, item->at_judge);
    pthread_mutex_unlock(&p->lock);
    wake_thread(p);
    return taken;
}

static void wake(void *ctx) {
    struct verify_pool *p = ctx;
    pthread_mutex_lock(&p->lock);
    p->woken = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static void describe(void *ctx, struct str *out) {
    struct verify_pool *p = ctx;
    int ready = 0;
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < p->n_links; i++) ready += p->link[i].state == LINK_READY;
    str_addf(out, "%d wait for a slot, %d are at verifiers, %d of %d verifiers are ready", p->n_queue, p->n_out, ready,
             p->n_links);
    CLEANUP_STR struct str why = STR_INIT;
    say_reasons(p, &why);
    if (why.len) str_addf(out, "; %.600s", why.p);
    pthread_mutex_unlock(&p->lock);
}

static int width(void *ctx) {
    struct verify_pool *p = ctx;
    int n = 0;
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < p->n_links; i++)
        if (p->link[i].state == LINK_READY) n += p->link[i].slots;
    pthread_mutex_unlock(&p->lock);
    return n;
}

static const struct judge_stream stream = {.submit = submit,
                                           .collect = collect,
                                           .settle = settle,
                                           .withdraw = withdraw,
                                           .wake = wake,
                                           .describe = describe,
                                           .width = width};

static enum status batch(void *ctx, struct verify_item *items, size_t n, const volatile bool *cancel, struct err *e) {
    return judge_stream_batch(&stream, ctx, items, n, cancel, e);
}

static void recall(void *ctx, const struct digest *key, const struct verdict *verdict) {
    struct verify_pool *p = ctx;
    pthread_mutex_lock(&p->lock);
    verdict_cache_add(p->cache, key, verdict);
    pthread_mutex_unlock(&p->lock);
}

static void hardware(void *ctx, char *name, size_t name_size, char *device, size_t device_size) {
    struct verify_pool *p = ctx;
    pthread_mutex_lock(&p->lock);
    snprintf(name, name_size, "%s", p->hardware);
    pthread_mutex_unlock(&p->lock);
    snprintf(device, device_size, "%s", pool_settings_on_gpu(&p->settings) ? "cuda:0" : "cpu");
}

struct judge judge_by_pool(struct verify_pool *p) {
    return (struct judge){.ctx = p,
                          .classes = p->classes_text,
                          .batch = batch,
                          .recall = recall,
                          .hardware = hardware,
                          .stream = &stream};
}

/* ---- statistics ---------------------------------------------------------------------------------------------------*/

struct pool_stats verify_pool_stats(struct verify_pool *p) {
    pthread_mutex_lock(&p->lock);
    struct pool_stats s = p->count;
    const double now = clock_now_s(), elapsed = now - p->stats_s;
    s.queue = p->n_queue;
    s.in_flight = p->n_out;
    s.host = xcalloc((size_t)p->n_links + 1, sizeof *s.host);
    for (int i = 0; i < p->n_links; i++) {
        struct pool_link *l = &p->link[i];
        struct pool_host_stats *h = &s.host[s.n_hosts++];
        link_busy(l, 0);
        *h = (struct pool_host_stats){.slots = l->slots, .ready = l->state == LINK_READY};
        snprintf(h->name, sizeof h->name, "%s", l->label);
        h->busy =
            l->h.kind == POOL_NATS || elapsed <= 0 ? (double)NAN : l->busy_s / elapsed / (l->slots > 0 ? l->slots : 1);
        l->busy_s = 0;
        s.hosts += h->ready;
        s.slots += h->ready ? l->slots : 0;
    }
    p->count = (struct pool_stats){0};
    p->stats_s = now;
    pthread_mutex_unlock(&p->lock);
    return s;
}

/* ---- either -------------------------------------------------------------------------------------------------------*/

enum status judge_open(const struct pool_options *p, const struct verify_options *o, const volatile bool *cancel,
                       struct judge_owner *out, struct err *e) {
    *out = (struct judge_owner){0};
    if (p && p->hosts && *p->hosts) {
        TRY(verify_pool_open(p, o, cancel, &out->pool, e));
        out->judge = judge_by_pool(out->pool);
        return ST_OK;
    }
    TRY(verifier_open(o, &out->verifier, e));
    out->judge = judge_by(out->verifier);
    return ST_OK;
}

void judge_close(struct judge_owner *o) {
    verifier_close(o->verifier);
    verify_pool_close(o->pool);
    *o = (struct judge_owner){0};
}
