#include "verify/quiet_lease.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "verify/host_lease.h"

struct lease {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool working;      /* the model is between borders */
    int wanted;        /* who waits for quiet or has it */
    double stood_by_s; /* of the model */
    bool on_host;      /* true: it is shared with other processes, through `host` */
    struct host_lease host;
};

struct lease *lease_create(void) {
    struct lease *l = xcalloc(1, sizeof *l);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    return l;
}

enum status lease_create_on_host(struct lease **out, struct err *e) {
    struct host_lease host;
    TRY(host_lease_open("cpu", &host, e));
    *out = lease_create();
    (*out)->on_host = true;
    (*out)->host = host;
    return ST_OK;
}

void lease_free(struct lease *l) {
    if (!l) return;
    if (l->on_host) host_lease_close(&l->host);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static void stand_aside(struct lease *l) {
    l->working = false;
    pthread_cond_broadcast(&l->changed);
    const double from = clock_now_s();
    while (l->wanted > 0) pthread_cond_wait(&l->changed, &l->lock);
    if (l->on_host && !host_lease_share(&l->host, -1))
        l->on_host = false; /* no such file any more: nobody is waited for */
    l->stood_by_s += clock_now_s() - from;
    l->working = true;
}

void lease_begin(struct lease *l) {
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    ASSERT(!l->working);
    stand_aside(l);
    pthread_mutex_unlock(&l->lock);
}

void lease_yield(struct lease *l) {
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    if (l->working && (l->wanted > 0 || (l->on_host && host_lease_wanted(&l->host)))) stand_aside(l);
    pthread_mutex_unlock(&l->lock);
}

void lease_end(struct lease *l) {
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    l->working = false;
    if (l->on_host) host_lease_release(&l->host);
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

void lease_quiet(void *ctx, bool on) {
    struct lease *l = ctx;
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    l->wanted += on ? 1 : -1;
    ASSERT(l->wanted >= 0);
    while (on && l->working) pthread_cond_wait(&l->changed, &l->lock);
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

double lease_quiet_s(struct lease *l) {
    if (!l) return 0;
    pthread_mutex_lock(&l->lock);
    const double s = l->stood_by_s;
    pthread_mutex_unlock(&l->lock);
    return s;
}
