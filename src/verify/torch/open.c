#include "verify/torch/open.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/rng.h"
#include "verify/torch/rest.h"
#include "verify/torch/spares.h"

/* Asks the referee which GPU this is. */
static enum status ask_device(struct module_judge *j, struct err *e) {
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *reply = NULL;
    const char *name, *capability;
    str_addf(&q, "{\"op\":\"module_device\",\"device\":\"%s\"}", j->o->device);
    if (refworker_call(&j->referee, &q, -1, 120, &reply, e) != ST_OK)
        return err_note(e, "%s: this backend needs a GPU that PyTorch sees", j->o->device);
    TRY(js_get_str(reply, "referee", "name", &name, e));
    TRY(js_get_str(reply, "referee", "capability", &capability, e));
    TRY(js_get_i64(reply, "referee", "l2_bytes", &j->l2_bytes, e));
    snprintf(j->gpu_name, sizeof j->gpu_name, "%s", name);
    snprintf(j->capability, sizeof j->capability, "%s", capability);
    return ST_OK;
}

/* Asks the warm Python where compilers look for what extensions include. The caller json_decref's *paths. */
static enum status ask_paths(struct module_judge *j, json_t **paths, struct err *e) {
    CLEANUP_STR struct str q = STR_INIT;
    str_addf(&q, "{\"op\":\"paths\",\"gpu\":%s}", on_gpu(j) ? "true" : "false");
    return refworker_call(&j->zygote.worker, &q, -1, 60, paths, e);
}

/* true: Triton's kernels are interpreted, because there is no GPU. */
static bool interprets(const struct module_judge *j) { return backend_info(j->o->backend)->in_python && !on_gpu(j); }

/* What a thread needs to start the referee beside the warm Python. Both import PyTorch, which takes seconds. */
struct opening {
    struct refworker *referee;
    const struct verify_options *o;
    const struct jail *jail; /* of the problem; NULL: it is trusted */
    enum status st;
    struct err e;
};

static void *open_referee(void *v) {
    struct opening *o = v;
    o->st = refworker_open(o->referee, o->o->python, o->o->threads, WORKER_REFERENCE, o->jail, &o->e);
    return NULL;
}

static void *prepare_main(void *v) {
    static const struct timespec pause = {.tv_nsec = 50000000}; /* In the pause, others can fork. */
    struct module_judge *j = v;
    struct err e = {0};
    for (int step = 0; step < 2; step++) {
        if (zygote_prepare(&j->zygote, step, &e) != ST_OK) log_debug("%s", e.msg);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

/* Starts the warm Python and the referee, and as soon as possible the processes that wait for answers, because a GPU's
 * context takes a second. The caller json_decref's *paths (ask_paths). */
static enum status open_both(struct module_judge *j, struct jail *jail, json_t **paths, struct err *e) {
    struct opening other = {.referee = &j->referee, .o = j->o, .jail = j->o->jail_problem ? jail : NULL};
    pthread_t thread;
    const bool beside = pthread_create(&thread, NULL, open_referee, &other) == 0;
    enum status st = zygote_open(&j->zygote, jail, j->o->python, j->o->threads, interprets(j), e);
    if (st == ST_OK) st = ask_paths(j, paths, e);
    if (st == ST_OK) {
        place_beside(&j->place, j->zygote.worker.process.pid);
        spares_prepare(j);
        if (on_gpu(j) && backend_info(j->o->backend)->in_python)
            j->is_preparing = pthread_create(&j->preparing, NULL, prepare_main, j) == 0;
    }
    if (beside)
        pthread_join(thread, NULL);
    else
        open_referee(&other);
    j->referee_open = other.st == ST_OK;
    if (st != ST_OK) return st;
    /* Both must be the same Python. If one version built a module and another one adopted it, right answers would be
     * refused. */
    if (!j->referee_open || strcmp(j->referee.python, j->zygote.worker.python) != 0) {
        if (j->referee_open) refworker_close(&j->referee);
        st = refworker_open(&j->referee, j->zygote.worker.python, j->o->threads, WORKER_REFERENCE, other.jail, e);
        j->referee_open = st == ST_OK;
    }
    return st;
}

enum status module_open(struct module_judge *j, const struct verify_options *o, struct jail *jail,
                        struct compiler *compiler, struct err *e) {
    *j = (struct module_judge){.o = o, .compiler = compiler, .seed = rng_u64(o->seed, 11, 0)};
    place_open(&j->place, on_gpu(j) ? GPU_CPUS : INT_MAX);
    spares_open(j);
    j->reference = (struct modrun){.outer_pidfd = -1, .pidfd = -1, .socket = -1, .stderr_fd = -1};
    modcases_init(&j->cases, &j->referee, o, j->seed);
    CLEANUP_JSON json_t *paths = NULL;
    enum status st = open_both(j, jail, &paths, e);
    if (st == ST_OK && on_gpu(j)) st = ask_device(j, e);
    if (st == ST_OK) st = extension_open(&j->tools, jail, paths, on_gpu(j) ? j->capability : NULL, e);
    module_keep_clear(j);
    place_free(&j->place);
    if (st != ST_OK) module_close(j);
    return st;
}

void module_close(struct module_judge *j) {
    if (!j->o) return;
    module_rested(j);
    if (j->is_preparing) pthread_join(j->preparing, NULL);
    spares_close(j);
    if (j->reference.outer > 0) modrun_end(&j->reference, NULL, NULL, NULL, 0);
    modcases_free(&j->cases);
    if (j->referee_open) refworker_close(&j->referee);
    zygote_close(&j->zygote);
    extension_close(&j->tools);
    place_close(&j->place);
    j->o = NULL;
}
