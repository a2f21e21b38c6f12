#include "verify/torch/spares.h"

#include "base/clock.h"
#include "base/log.h"
#include "verify/jail/time_account.h"
#include "verify/torch/state.h"

void spares_prepare(struct module_judge *j) {
    static const char request[] = "{\"op\":\"warm\",\"triton\":%s}";
    if (!on_gpu(j)) return;
    /* The first request is for the context, the second one for the compiler. */
    const int requests = backend_info(j->o->backend)->in_python ? 2 : 1;
    pthread_mutex_lock(&j->spares.lock);
    for (int i = 0; i < MODULE_SPARES; i++) {
        struct module_spare *s = &j->spares.of[i];
        if (s->r.outer > 0) continue;
        struct err e = {0};
        struct modrun_options mo = module_process_options(j, NULL);
        s->due = 0;
        if (modrun_start(&s->r, &j->zygote, &mo, 0, &e) != ST_OK) {
            /* The answer that would have taken this spare starts a process itself, and says why that fails. */
            log_debug("%s", e.msg);
            continue;
        }
        while (s->r.outer > 0 && s->due < requests) {
            CLEANUP_STR struct str q = STR_INIT;
            str_addf(&q, request, s->due++ > 0 ? "true" : "false");
            if (!modrun_send(&s->r, &q, -1)) modrun_end(&s->r, NULL, NULL, NULL, 0);
        }
    }
    pthread_mutex_unlock(&j->spares.lock);
}

static void *spares_main(void *v) {
    spares_prepare(v);
    return NULL;
}

static void join_spares(struct module_judge *j) {
    if (j->spares.renewing) pthread_join(j->spares.thread, NULL);
    j->spares.renewing = false;
}

void spares_renew(struct module_judge *j) {
    join_spares(j);
    j->spares.renewing = on_gpu(j) && pthread_create(&j->spares.thread, NULL, spares_main, j) == 0;
}

void spares_open(struct module_judge *j) { pthread_mutex_init(&j->spares.lock, NULL); }

void spares_close(struct module_judge *j) {
    join_spares(j);
    for (int i = 0; i < MODULE_SPARES; i++)
        if (j->spares.of[i].r.outer > 0) modrun_end(&j->spares.of[i].r, NULL, NULL, NULL, 0);
    pthread_mutex_destroy(&j->spares.lock);
}

/* Reads the replies to "warm" that are due. A process that does not reply, or has failed, is ended. The caller holds
 * the lock. */
static void settle(struct module_spare *s) {
    while (s->r.outer > 0 && s->due > 0) {
        json_t *reply = NULL;
        s->due--;
        if (modrun_receive(&s->r, 60, &reply) != MODRUN_OK) modrun_end(&s->r, NULL, NULL, NULL, 0);
        json_decref(reply);
    }
}

/* With MANY_CPUS processors or more, spares may go on starting up during measurements. A process that gets its context
 * and compiles then disturbs neither the device nor the process that gives the device its work. Answers that are loaded
 * ahead do as much at such times. */
void spares_settle(struct module_judge *j) {
    enum { MANY_CPUS = 8 };
    const double t0 = clock_now_s();
    if (module_cpus(j) >= MANY_CPUS) return;
    join_spares(j);
    pthread_mutex_lock(&j->spares.lock);
    for (int i = 0; i < MODULE_SPARES; i++) settle(&j->spares.of[i]);
    pthread_mutex_unlock(&j->spares.lock);
    spent_add("spare", "settle", clock_now_s() - t0);
}

bool spares_take(struct module_judge *j, struct modrun *out, uint64_t nonce_seed) {
    bool found = false;
    const double t0 = clock_now_s();
    pthread_mutex_lock(&j->spares.lock);
    /* The first round looks for a spare that is warm. The second round takes the first spare that gets warm. */
    for (int i = 0; i < 2 * MODULE_SPARES && !found; i++) {
        struct module_spare *s = &j->spares.of[i % MODULE_SPARES];
        if (i < MODULE_SPARES && s->due > 0) continue;
        settle(s);
        found = s->r.outer > 0;
        if (!found) continue;
        *out = s->r;
        out->nonce_key = nonce_seed;
        s->r.outer = 0;
    }
    pthread_mutex_unlock(&j->spares.lock);
    spent_add("spare", "take", clock_now_s() - t0);
    return found;
}
