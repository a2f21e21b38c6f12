#include "verify/torch/judge.h"

#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/home.h"
#include "base/log.h"
#include "base/pool.h"
#include "base/rng.h"
#include "verify/jail/time_account.h"
#include "verify/torch/internal.h"

enum { SHAPE_RANK = 12, MOST_BUILDS = 32 };
/* Of the kernels of an answer's own, and of a source that they are looked for in. */
enum { MOST_NAMES_BYTES = 64 << 10, MOST_SOURCE_BYTES = 1 << 20 };
/* Processors from which on those that take part in a GPU's timing (this process, which waits without sleeping, the
 * referee, what is timed) have one each. */
enum { GPU_CPUS = 4 };
/* Turns in front of which the device may have been busy: a cheat that gains in so few gains nothing. */
static const int most_busy = 4;

/* ---- opening ---- */

/* Which GPU it is, from the referee. */
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

/* Where compilers look for what extensions include. The caller json_decref's *paths. */
static enum status ask_paths(struct module_judge *j, json_t **paths, struct err *e) {
    CLEANUP_STR struct str q = STR_INIT;
    str_addf(&q, "{\"op\":\"paths\",\"gpu\":%s}", on_gpu(j) ? "true" : "false");
    return refworker_call(&j->zygote.worker, &q, -1, 60, paths, e);
}

/* ---- processes that wait for answers ---- */

/* Triton without a GPU. */
static bool interprets(const struct module_judge *j) { return backend_info(j->o->backend)->in_python && !on_gpu(j); }

static struct modrun_options run_options(const struct module_judge *j, const struct modcase *c) {
    const struct verify_options *o = j->o;
    return (struct modrun_options){
        .device = o->device,
        .threads = o->threads,
        .memory_bytes = on_gpu(j) ? 0 : o->memory_bytes + c->lane_bytes,
        .cpu_s = (uint64_t)((o->run_timeout_s + o->timing_budget_s + o->compile_timeout_s + 10) * o->threads),

    };
}

/* Starts those that are missing, on a GPU; they go on warming up by themselves. */
static void prepare_spares(struct module_judge *j) {
    static const char request[] = "{\"op\":\"warm\",\"triton\":%s}";
    if (!on_gpu(j)) return;
    const int requests = backend_info(j->o->backend)->in_python ? 2 : 1; /* the context, then the compiler */
    pthread_mutex_lock(&j->spares_lock);
    for (int i = 0; i < MODULE_SPARES; i++) {
        struct module_spare *s = &j->spares[i];
        if (s->r.outer > 0) continue;
        struct err e = {0};
        struct modrun_options mo = run_options(j, NULL);
        s->due = 0;
        if (modrun_start(&s->r, &j->zygote, &mo, 0, &e) != ST_OK) {
            log_debug("%s", e.msg); /* the answer that would have had it starts one and says why */
            continue;
        }
        while (s->r.outer > 0 && s->due < requests) {
            CLEANUP_STR struct str q = STR_INIT;
            str_addf(&q, request, s->due++ > 0 ? "true" : "false");
            if (!modrun_send(&s->r, &q, -1)) modrun_end(&s->r, NULL, NULL, NULL, 0);
        }
    }
    pthread_mutex_unlock(&j->spares_lock);
}

static int cpus_of(const struct module_judge *j) {
    return j->place.cpu >= 0 ? CPU_COUNT(&j->place.all) : pool_cpu_count();
}

void module_keep_clear(struct module_judge *j) {
    place_beside(&j->place, 0);
    place_beside(&j->place, j->zygote.worker.process.pid);
    place_beside(&j->place, j->referee.process.pid);
}

static void *spares_main(void *v) {
    prepare_spares(v);
    return NULL;
}

static void join_spares(struct module_judge *j) {
    if (j->renewing) pthread_join(j->spares_thread, NULL);
    j->renewing = false;
}

void module_renew_spares(struct module_judge *j) {
    join_spares(j);
    j->renewing = on_gpu(j) && pthread_create(&j->spares_thread, NULL, spares_main, j) == 0;
}

/* With the lock held: the replies to `warm`. One that fails is ended. */
static void settle(struct module_spare *s) {
    while (s->r.outer > 0 && s->due > 0) {
        json_t *reply = NULL;
        s->due--;
        if (modrun_receive(&s->r, 60, &reply) != MODRUN_OK) modrun_end(&s->r, NULL, NULL, NULL, 0);
        json_decref(reply);
    }
}

/* Where there are many processors, a process that gets its context and compiles disturbs neither the device nor the
 * one that gives it its work; answers that are loaded ahead do no less. */
void module_settle_spares(struct module_judge *j) {
    enum { MANY_CPUS = 8 };
    const double t0 = clock_now_s();
    if (cpus_of(j) >= MANY_CPUS) return;
    join_spares(j);
    pthread_mutex_lock(&j->spares_lock);
    for (int i = 0; i < MODULE_SPARES; i++) settle(&j->spares[i]);
    pthread_mutex_unlock(&j->spares_lock);
    spent_add("spare", "settle", clock_now_s() - t0);
}

static bool take_spare(struct module_judge *j, struct modrun *out, uint64_t nonce_seed) {
    bool found = false;
    const double t0 = clock_now_s();
    pthread_mutex_lock(&j->spares_lock);
    /* One that is warm, else the first that gets so. */
    for (int i = 0; i < 2 * MODULE_SPARES && !found; i++) {
        struct module_spare *s = &j->spares[i % MODULE_SPARES];
        if (i < MODULE_SPARES && s->due > 0) continue;
        settle(s);
        found = s->r.outer > 0;
        if (!found) continue;
        *out = s->r;
        out->nonce_key = nonce_seed;
        s->r.outer = 0;
    }
    pthread_mutex_unlock(&j->spares_lock);
    spent_add("spare", "take", clock_now_s() - t0);
    return found;
}

/* The referee, started beside the warm Python: importing PyTorch takes seconds. */
struct opening {
    struct refworker *referee;
    const struct verify_options *o;
    enum status st;
    struct err e;
};

static void *open_referee(void *v) {
    struct opening *o = v;
    o->st = refworker_open(o->referee, o->o->python, o->o->threads, WORKER_REFERENCE, &o->e);
    return NULL;
}

static void *prepare_main(void *v) {
    static const struct timespec pause = {.tv_nsec = 50000000}; /* for who wants to fork */
    struct module_judge *j = v;
    struct err e = {0};
    for (int step = 0; step < 2; step++) {
        if (zygote_prepare(&j->zygote, step, &e) != ST_OK) log_debug("%s", e.msg);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

/* Both, and as soon as it can be the processes that wait for answers: a GPU's context takes a second. The caller
 * json_decref's *paths (ask_paths). */
static enum status open_both(struct module_judge *j, struct jail *jail, json_t **paths, struct err *e) {
    struct opening other = {.referee = &j->referee, .o = j->o};
    pthread_t thread;
    const bool beside = pthread_create(&thread, NULL, open_referee, &other) == 0;
    enum status st = zygote_open(&j->zygote, jail, j->o->python, j->o->threads, interprets(j), e);
    if (st == ST_OK) st = ask_paths(j, paths, e);
    if (st == ST_OK) {
        place_beside(&j->place, j->zygote.worker.process.pid);
        prepare_spares(j);
        if (on_gpu(j) && backend_info(j->o->backend)->in_python)
            j->is_preparing = pthread_create(&j->preparing, NULL, prepare_main, j) == 0;
    }
    if (beside)
        pthread_join(thread, NULL);
    else
        open_referee(&other);
    j->referee_open = other.st == ST_OK;
    if (st != ST_OK) return st;
    /* The same Python: a module built by one version and adopted by another would be a false rejection. */
    if (!j->referee_open || strcmp(j->referee.python, j->zygote.worker.python) != 0) {
        if (j->referee_open) refworker_close(&j->referee);
        st = refworker_open(&j->referee, j->zygote.worker.python, j->o->threads, WORKER_REFERENCE, e);
        j->referee_open = st == ST_OK;
    }
    return st;
}

enum status module_open(struct module_judge *j, const struct verify_options *o, struct jail *jail,
                        struct compiler *compiler, struct err *e) {
    *j = (struct module_judge){.o = o, .compiler = compiler, .seed = rng_u64(o->seed, 11, 0)};
    place_open(&j->place, on_gpu(j) ? GPU_CPUS : INT_MAX);
    pthread_mutex_init(&j->spares_lock, NULL);
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

void module_drop_reference(struct module_judge *j) {
    if (j->reference.outer > 0) modrun_end(&j->reference, NULL, NULL, NULL, 0);
    if (j->current) modcase_close_lane(&j->cases, j->current, LANE_REFERENCE);
    j->current = NULL;
}

/* A lane above this does not outlive the batch that it was made for. */
static const int64_t most_lane_bytes = (int64_t)8 << 30;

void module_rest(struct module_judge *j) {
    CLEANUP_JSON json_t *reply = NULL;
    struct err e = {0};
    if (!on_gpu(j)) return;
    if (j->reference.outer > 0 && j->current && j->current->lane_bytes > most_lane_bytes) module_drop_reference(j);
    if (j->reference.outer > 0) {
        CLEANUP_STR struct str q = STR_INIT;
        run_open_request(&q, "rest");
        if (modrun_call(&j->reference, &q, -1, 60, &reply, NULL) != MODRUN_OK) module_drop_reference(j);
        json_decref(reply);
        reply = NULL;
    }
    if (modcases_rest(&j->cases, &j->held_bytes, &e) != ST_OK) log_debug("%s", e.msg);
}

void module_close(struct module_judge *j) {
    if (!j->o) return;
    module_rested(j);
    join_spares(j);
    if (j->is_preparing) pthread_join(j->preparing, NULL);
    for (int i = 0; i < MODULE_SPARES; i++)
        if (j->spares[i].r.outer > 0) modrun_end(&j->spares[i].r, NULL, NULL, NULL, 0);
    pthread_mutex_destroy(&j->spares_lock);
    if (j->reference.outer > 0) modrun_end(&j->reference, NULL, NULL, NULL, 0);
    modcases_free(&j->cases);
    if (j->referee_open) refworker_close(&j->referee);
    zygote_close(&j->zygote);
    extension_close(&j->tools);
    place_close(&j->place);
    j->o = NULL;
}

/* ---- what went wrong ---- */

static void one_line(char *text) {
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 32) *p = ' ';
}

/* The answer's process has gone, or is taken away: how, as a verdict. */
static void judge_loss(struct torch_answer *r, enum modrun_result result, const char *where, double waited_s) {
    int sig = 0, code = -1;
    char said[300] = "";
    struct verdict *v = r->out;
    if (result == MODRUN_DEAD)
        modrun_end(&r->r, &sig, &code, said, sizeof said);
    else
        modrun_end(&r->r, NULL, NULL, NULL, 0);
    r->up = false;
    one_line(said);
    if (result == MODRUN_LATE) {
        v->outcome = OUTCOME_TIMEOUT;
        VERDICT_SAY(v, "%s: no result after %.1f s", where, waited_s);
    } else if (result == MODRUN_FORGED || sig == SIGSYS) {
        v->outcome = OUTCOME_SANDBOX_VIOLATION;
        VERDICT_SAY(v,
                    result == MODRUN_FORGED ? "%s: wrote to the verifier's channel"
                                            : "%s: made a system call that the sandbox forbids",
                    where);
    } else if (sig == SIGXCPU || sig == SIGKILL) {
        v->outcome = sig == SIGXCPU ? OUTCOME_TIMEOUT : OUTCOME_CRASH;
        VERDICT_SAY(v, "%s: %s", where, sig == SIGXCPU ? "used up its processor time" : "was killed");
    } else if (sig > 0) {
        v->outcome = OUTCOME_CRASH;
        VERDICT_SAY(v, "%s: crashed with signal %d (%s)%s%s", where, sig, strsignal(sig), said[0] ? ": " : "", said);
    } else {
        v->outcome = OUTCOME_CRASH;
        VERDICT_SAY(v, "%s: the process ended by itself (exit status %d)%s%s", where, code, said[0] ? ": " : "", said);
    }
}

/* A request without content, whose reply says nothing. */
static bool obeys(struct modrun *m, const char *text, double timeout_s) {
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *reply = NULL;
    str_adds(&q, text); /* an open object: the call closes it */
    return modrun_call(m, &q, -1, timeout_s, &reply, NULL) == MODRUN_OK;
}

/* The control of an answer whose kernels cannot be listed, as it says: whether those of a process can that has run
 * nothing of an answer's. The answer's own has ended. */
static bool lists_kernels(struct torch_answer *r) {
    struct module_judge *j = r->j;
    if (atomic_load(&j->lists_kernels)) return true;
    static const char *const requests[] = {"{\"op\":\"warm\",\"triton\":false", "{\"op\":\"record\",\"on\":true",
                                           "{\"op\":\"record\",\"on\":false"};
    struct torch_answer control = {.j = j, .own = true, .random = rng_u64(r->random, 12, 0)};
    struct err e = {0};
    bool good = run_fork(&control, &e) == ST_OK;
    for (size_t i = 0; i < ARRAY_LEN(requests) && good; i++) good = obeys(&control.r, requests[i], j->o->run_timeout_s);
    if (control.up) modrun_end(&control.r, NULL, NULL, NULL, 0);
    if (good) atomic_store(&j->lists_kernels, true);
    return good;
}

/* What a process says of its failure that has run an answer's code, and may say anything: nothing here makes it our
 * trouble but what a process without an answer says as well. */
static void judge_failure(struct torch_answer *r, const json_t *reply, const char *where) {
    const char *kind = json_string_value(json_object_get(reply, "kind"));
    const char *error = json_string_value(json_object_get(reply, "error"));
    struct verdict *v = r->out;
    v->outcome = !kind                          ? OUTCOME_SANDBOX_VIOLATION
                 : strcmp(kind, "compile") == 0 ? OUTCOME_COMPILE_ERROR
                 : strcmp(kind, "slow") == 0    ? OUTCOME_COMPILE_TIMEOUT
                 : strcmp(kind, "memory") == 0  ? OUTCOME_MEMORY_LIMIT
                                                : OUTCOME_EXCEPTION;
    VERDICT_SAY(v, "%s%s%s", where, *where ? ": " : "", error ? error : "no message");
    if (!kind || strcmp(kind, "trouble") != 0 || !on_gpu(r->j)) return;
    modrun_end(&r->r, NULL, NULL, NULL, 0);
    r->up = false;
    v->outcome = lists_kernels(r) ? OUTCOME_NO_KERNEL_RAN : OUTCOME_INFRASTRUCTURE;
}

/* Our own trouble, as this process has seen it: the answer's is ended. Always false. */
static bool our_trouble(struct torch_answer *r, const char *what) {
    if (r->up) modrun_end(&r->r, NULL, NULL, NULL, 0);
    r->up = false;
    r->out->outcome = OUTCOME_INFRASTRUCTURE;
    VERDICT_SAY(r->out, "%s", what);
    return false;
}

/* What came of a request; false: a verdict is there. */
static bool conclude(struct torch_answer *r, enum modrun_result result, double timeout_s, const char *where,
                     json_t **reply) {
    if (result == MODRUN_OK) return true;
    if (result == MODRUN_FAILED) {
        judge_failure(r, *reply, where);
        json_decref(*reply);
        *reply = NULL;
        return false;
    }
    judge_loss(r, result, where, timeout_s);
    return false;
}

static bool serve_build(struct torch_answer *r, const json_t *wanted, double timeout_s);

/* One request to the answer; false: a verdict is there. What it compiles in __init__() or in its first calls takes no
 * time of theirs. */
static bool request(struct torch_answer *r, struct str *q, int fd, double timeout_s, const char *where, json_t **reply,
                    int64_t *ns) {
    enum modrun_result result = modrun_call(&r->r, q, fd, timeout_s, reply, ns);
    for (int builds = 0; result == MODRUN_OK && modrun_asks(*reply); builds++) {
        const double begun = clock_now_s(), left = r->j->o->compile_timeout_s - r->out->compile_s;
        const bool may = !r->complete && builds < MOST_BUILDS && left > 0;
        const bool served = may && serve_build(r, *reply, left);
        json_decref(*reply);
        *reply = NULL;
        if (!may)
            return run_reject(r, where, left > 0 ? OUTCOME_SANDBOX_VIOLATION : OUTCOME_COMPILE_TIMEOUT,
                              "asked for one more object to be compiled");
        r->deadline_s += clock_now_s() - begun;
        r->out->compile_s += clock_now_s() - begun;
        if (!r->up) return false; /* a verdict is there */
        result = served ? modrun_go_on(&r->r, timeout_s, reply, ns) : MODRUN_DEAD;
    }
    return conclude(r, result, timeout_s, where, reply);
}

bool run_simple(struct torch_answer *r, struct str *q, int fd, double timeout_s, const char *where) {
    json_t *reply = NULL;
    bool good = request(r, q, fd, timeout_s, where, &reply, NULL);
    json_decref(reply);
    return good;
}

bool run_starting(struct torch_answer *r, struct str *q, int fd) {
    static const char where[] = "when it was started";
    if (run_simple(r, q, fd, r->j->o->run_timeout_s, where)) return true;
    if (r->out->outcome == OUTCOME_TIMEOUT && !r->last) r->out->outcome = OUTCOME_INFRASTRUCTURE;
    return false;
}

void run_open_request(struct str *q, const char *op) {
    js_begin(q, NULL, '{');
    js_put_str(q, "op", op);
}

/* ---- bringing a process up ---- */

static const char *entry_of(bool is_answer) { return is_answer ? "ModelNew" : "Model"; }

static void put_load(struct str *q, const struct module_judge *j, const char *code, bool is_answer) {
    run_open_request(q, "load");
    js_put_str(q, "code", code);
    js_put_str(q, "entry", entry_of(is_answer));
    js_put_str(q, "backend", is_answer ? backend_name(j->o->backend) : "torch_cpu");
    js_put_str(q, "precision", j->o->precision);
    js_put_i64(q, "seed", 42);
}

/* Whether there is what the backend needs: asked of this process before it runs anything of an answer's, until one has
 * said yes. False: a verdict is there. */
static bool is_available(struct torch_answer *r) {
    struct module_judge *j = r->j;
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *reply = NULL;
    if (atomic_load(&j->available)) return true;
    run_open_request(&q, "available");
    js_put_str(&q, "backend", backend_name(j->o->backend));
    if (modrun_call(&r->r, &q, -1, j->o->compile_timeout_s, &reply, NULL) != MODRUN_OK)
        return our_trouble(r, "a process without an answer does not say whether the backend is there");
    const char *lacking = json_string_value(json_object_get(reply, "lacking"));
    if (lacking && !*lacking) {
        atomic_store(&j->available, true);
        return true;
    }
    r->out->outcome = OUTCOME_BACKEND_UNAVAILABLE;
    VERDICT_SAY(r->out, "backend %s: %s", backend_name(j->o->backend), lacking ? lacking : "?");
    return false;
}

/* Compiles what an answer asks for, and hands it the object. False: the answer has gone; where that is for our own
 * trouble, which it does not get to hear of, the verdict is there and r->up is false. */
static bool serve_build(struct torch_answer *r, const json_t *wanted, double timeout_s) {
    struct compile_job job;
    bool standin;
    static const char *const sources[] = {"cpp", "cuda"};
    CLEANUP_STR struct str q = STR_INIT;
    for (size_t i = 0; i < ARRAY_LEN(sources); i++) {
        const char *text = json_string_value(json_object_get(wanted, sources[i]));
        /* Each kernel that ran is looked for in all of them. */
        if (text && r->kernels.list.len < MOST_NAMES_BYTES && strlen(text) < MOST_SOURCE_BYTES)
            kernel_names_note(&r->kernels, text);
    }
    extension_build(&r->j->tools, r->j->compiler, wanted, timeout_s, &job, &standin);
    CLEANUP_FD int fd = job.result == COMPILE_OK ? process_memfd("extension", job.object, job.object_bytes) : -1;
    free(job.object);
    if (job.result == COMPILE_BROKEN) return our_trouble(r, job.message);
    if (job.result == COMPILE_OK && fd < 0) return our_trouble(r, "no memory for an object");
    js_begin(&q, NULL, '{');
    js_put_bool(&q, "ok", fd >= 0);
    js_put_bool(&q, "standin", standin);
    if (fd < 0) js_put_str(&q, "error", job.message);
    js_end(&q, '}');
    return modrun_send(&r->r, &q, fd);
}

/* A native answer's object, and what the harness has to know about it. False: a verdict is there. */
static bool compile_native(struct torch_answer *r, const char *source, int *fd, struct str *q) {
    static const enum outcome outcomes[] = {[COMPILE_FAILED] = OUTCOME_COMPILE_ERROR,
                                            [COMPILE_SLOW] = OUTCOME_COMPILE_TIMEOUT,
                                            [COMPILE_BROKEN] = OUTCOME_INFRASTRUCTURE};
    struct compile_job job;
    if (r->c->spec.n_args == 0) {
        r->out->outcome = OUTCOME_PROBLEM_ERROR;
        r->certain = true;
        VERDICT_SAY(r->out, "the native ABI has no place for this problem's arguments");
        return false;
    }
    extension_build_native(&r->j->tools, r->j->compiler, &r->c->spec, source, r->j->o->compile_timeout_s, &job);
    r->out->compile_s = job.seconds;
    if (job.result == COMPILE_OK) *fd = process_memfd("native", job.object, job.object_bytes);
    free(job.object);
    if (job.result != COMPILE_OK || *fd < 0) {
        r->out->outcome = job.result == COMPILE_OK ? OUTCOME_INFRASTRUCTURE : outcomes[job.result];
        VERDICT_SAY(r->out, "%s", job.message);
        return false;
    }
    js_put_json(q, "spec", json_object_get(r->interface, "spec"));
    js_put_json(q, "structure", json_object_get(r->interface, "structure"));
    return true;
}

/* The answer's module in memory: its code has run, and compilers have done their part. */
bool run_load(struct torch_answer *r, const char *code, bool is_answer) {
    CLEANUP_STR struct str q = STR_INIT;
    json_t *reply = NULL;
    double t0 = clock_now_s(), timeout_s = r->j->o->compile_timeout_s;
    kernel_names_free(&r->kernels);
    if (is_answer) kernel_names_note(&r->kernels, code);
    put_load(&q, r->j, code, is_answer);
    CLEANUP_FD int object = -1;
    const bool native = r->j->o->backend == BACKEND_cuda_native;
    if (is_answer && native && !compile_native(r, code, &object, &q)) return false;
    if (is_answer && !native && !is_available(r)) return false;
    enum modrun_result result = modrun_call(&r->r, &q, object, timeout_s, &reply, NULL);
    for (int builds = 0; result == MODRUN_OK; builds++) {
        double left = t0 + timeout_s - clock_now_s();
        if (!modrun_asks(reply)) break;
        bool sent = builds < MOST_BUILDS && left > 0 && serve_build(r, reply, left);
        json_decref(reply);
        reply = NULL;
        if (!r->up) return false; /* a verdict is there */
        left = t0 + timeout_s - clock_now_s();
        result = !sent ? MODRUN_LATE : modrun_receive(&r->r, left > 0.1 ? left : 0.1, &reply);
    }
    r->out->compile_s = clock_now_s() - t0;
    if (result == MODRUN_FAILED) judge_failure(r, reply, "");
    json_decref(reply);
    if (result == MODRUN_OK) return true;
    if (result == MODRUN_FAILED) return false;
    judge_loss(r, result, "while it was loaded", timeout_s);
    if (r->out->outcome == OUTCOME_TIMEOUT) {
        r->out->outcome = OUTCOME_COMPILE_TIMEOUT;
        VERDICT_SAY(r->out, "compiling and loading took more than %.0f s", timeout_s);
    }
    return false;
}

bool run_attach(struct torch_answer *r, enum modcase_lane lane) {
    const struct modcase *c = r->c;
    CLEANUP_STR struct str q = STR_INIT;
    run_open_request(&q, "attach");
    js_put_i64(&q, "bytes", c->lane_bytes);
    if (c->handle[lane]) {
        CLEANUP_JSON json_t *h = json_loads(c->handle[lane], 0, NULL);
        js_put_json(&q, "handle", json_object_get(h, "handle"));
        js_put_json(&q, "offset", json_object_get(h, "offset"));
    }
    js_put_json(&q, "values", json_object_get(c->loaded, "values"));
    js_begin(&q, "layout", '{');
    js_put_json(&q, "inputs", json_object_get(c->loaded, "inputs"));
    js_put_json(&q, "params", json_object_get(c->loaded, "params"));
    js_put_i64(&q, "param_base", 0);
    js_put_i64(&q, "param_stride", c->param_bytes);
    js_put_i64(&q, "slot_base", 2 * c->param_bytes);
    js_put_i64(&q, "slot_stride", c->input_bytes);
    js_end(&q, '}');
    return run_starting(r, &q, c->lane_fd[lane]);
}

bool run_build(struct torch_answer *r, int param_set) {
    const struct modcase *c = r->c;
    CLEANUP_STR struct str q = STR_INIT;
    run_open_request(&q, "build");
    js_put_i64(&q, "param_set", param_set);
    js_put_i64(&q, "seed", (int64_t)c->init_seeds[param_set]);
    js_put_bool(&q, "disturbed", param_set > 0);
    js_put_bool(&q, "adopt", is_hardened(r->j));
    js_put_json(&q, "init", json_object_get(c->loaded, "init"));
    return run_simple(r, &q, -1, r->j->o->run_timeout_s, "in __init__()");
}

static uint64_t nonce_key(struct torch_answer *r) { return hmac_u64(r->random, "nonces", ++r->processes, NULL, 0); }

/* An answer that sends requests to compile and reads no reply fills its socket: what it is then sent fails after so
 * long, instead of waiting until it reads. */
static void stop_waiting_for_room(const struct modrun *m, double seconds) {
    const struct timeval most = {.tv_sec = (time_t)ceil(seconds)};
    if (setsockopt(m->socket, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most) != 0) log_debug("SO_SNDTIMEO is refused");
}

enum status run_fork(struct torch_answer *r, struct err *e) {
    struct modrun_options mo = run_options(r->j, on_gpu(r->j) ? NULL : r->c);
    enum status st = ST_OK;
    if (r->own || !take_spare(r->j, &r->r, nonce_key(r))) {
        st = modrun_start(&r->r, &r->j->zygote, &mo, nonce_key(r), e);
        if (st == ST_SANDBOX || st == ST_WORKER) st = modrun_start(&r->r, &r->j->zygote, &mo, nonce_key(r), e);
    }
    r->up = st == ST_OK;
    if (r->up) stop_waiting_for_room(&r->r, r->j->o->run_timeout_s);
    /* Where there are processors enough that neither the answer nor the system misses this one. */
    r->r.spin = cpus_of(r->j) >= (on_gpu(r->j) ? GPU_CPUS : r->j->o->threads + 3);
    return st;
}

/* ---- calls ---- */

static bool ask_ready(struct torch_answer *r, const int *slots, int n) {
    CLEANUP_STR struct str q = STR_INIT;
    run_open_request(&q, "ready");
    js_begin(&q, "slots", '[');
    for (int i = 0; i < n; i++) js_put_i64(&q, NULL, slots[i]);
    js_end(&q, ']');
    return modrun_ask(&r->r, &q, -1);
}

static bool is_ready(struct torch_answer *r, bool asked, const char *where) {
    const double timeout_s = r->j->o->run_timeout_s;
    json_t *reply = NULL;
    enum modrun_result result = asked ? modrun_receive(&r->r, timeout_s, &reply) : MODRUN_DEAD;
    bool good = conclude(r, result, timeout_s, where, &reply);
    json_decref(r->segments);
    r->segments = json_incref(json_object_get(reply, "segments"));
    json_decref(reply);
    /* Now and then, and nobody knows when: it costs a pass over the answer's memory. */
    if (good && r->timed && r->segments && is_hardened(r->j) && rng_u64(r->random, 9, ++r->random_step) % 8 == 0)
        modcase_watch(r->c, r->segments);
    return good;
}

bool run_ready(struct torch_answer *r, const int *slots, int n, const char *where) {
    return is_ready(r, ask_ready(r, slots, n), where);
}

bool run_ready_both(struct torch_answer *a, struct torch_answer *b, const int *slots, int n, const char *where) {
    const double t0 = clock_now_s();
    const bool asked_a = ask_ready(a, slots, n), asked_b = ask_ready(b, slots, n);
    const bool ready_a = is_ready(a, asked_a, where), ready_b = is_ready(b, asked_b, where);
    spent_add("process", "ready, two", clock_now_s() - t0);
    return ready_a && ready_b;
}

/* The device worked for somebody in front of one turn after another. When it comes to rest with the answer's end, it
 * was the answer. Always false. */
static bool who_is_busy(struct torch_answer *r, const char *where) {
    struct err e = {0};
    bool busy = true;
    modrun_end(&r->r, NULL, NULL, NULL, 0);
    r->up = false;
    enum status st = modcase_at_rest(&r->j->cases, r->c, &busy, &e);
    if (st != ST_OK) {
        verdict_of_trouble(r->out, ST_WORKER, &e);
        return false;
    }
    if (busy) return run_reject(r, where, OUTCOME_INFRASTRUCTURE, "somebody else keeps the GPU busy");
    return run_reject(r, where, OUTCOME_HIDDEN_WORK, "the device does not come to rest");
}

/* GPU: what stands still has not worked, by the device's own queues or through processes of its own, on inputs that it
 * is only now told to look at. */
static bool has_waited(struct torch_answer *r) {
    static const char where[] = "before a timed call";
    struct err e = {0};
    bool changed = false;
    double ignored;
    if (modrun_children(&r->r) > 0)
        return run_reject(r, where, OUTCOME_HIDDEN_WORK, "processes of the answer's own are running");
    if (r->c->busy && ++r->busy > most_busy) return who_is_busy(r, where);
    if (!r->c->watching) return true;
    enum status st = modcase_watched(&r->j->cases, r->c, &changed, &e);
    if (st == ST_OK) st = modcase_drain(&r->j->cases, r->c, &ignored, &e); /* what was read leaves the cache */
    if (st != ST_OK) verdict_of_trouble(r->out, st == ST_INVALID ? ST_WORKER : st, &e);
    if (st != ST_OK) return false;
    return !changed || run_reject(r, where, OUTCOME_HIDDEN_WORK, "memory changed while the answer stood still");
}

static bool poison(struct torch_answer *r, int byte) {
    CLEANUP_STR struct str q = STR_INIT;
    run_open_request(&q, "poison");
    js_put_i64(&q, "byte", byte);
    js_begin(&q, "sizes", '[');
    for (int i = 0; i < r->c->n_outputs; i++) js_put_i64(&q, NULL, r->c->output_bytes[i]);
    js_end(&q, ']');
    return run_simple(r, &q, -1, r->j->o->run_timeout_s, "between calls");
}

/* Calls on slots, whose sets these are. The reply lists output addresses per call (caller json_decref's *reply). */
bool run_call(struct torch_answer *r, const int *slots, int n, const struct modset *sets, double timeout_s,
              const char *where, json_t **reply, int64_t *ns) {
    CLEANUP_STR struct str q = STR_INIT;
    if (r->timed && n > 0 && on_gpu(r->j) && is_hardened(r->j) && !has_waited(r)) return false;
    run_open_request(&q, "call");
    js_put_i64(&q, "param_set", sets[0].param_set);
    js_put_bool(&q, "apart", r->apart);
    js_begin(&q, "slots", '[');
    for (int i = 0; i < n; i++) js_put_i64(&q, NULL, slots[i]);
    js_end(&q, ']');
    if (r->c->random) {
        js_begin(&q, "seeds", '[');
        for (int i = 0; i < n; i++) js_put_i64(&q, NULL, (int64_t)modcase_forward_seed(r->c, &sets[i]));
        js_end(&q, ']');
    }
    return request(r, &q, -1, timeout_s, where, reply, ns);
}

static const json_t *place_of(const json_t *reply, int i, int k) {
    const json_t *calls = json_object_get(reply, "pointers");
    return json_array_get(json_array_get(calls, (size_t)i), (size_t)k);
}

/* Address of output k of call i; 0 when it is no plain tensor. */
uint64_t run_pointer(const json_t *reply, int i, int k) {
    return (uint64_t)json_integer_value(json_array_get(place_of(reply, i, k), 0));
}

/* What is read of an output beside twice its size, at most: pages that an answer has never touched cost it nothing, and
 * the verifier memory. */
static const int64_t most_spread_bytes = 64 << 20;

/* Bytes from the first to behind the last of its elements, when it is spread over more than it needs; that many more
 * than its size are read, and no more. 0: it is spread too far. */
static int64_t bytes_of(const struct modcase *c, const json_t *reply, int i, int k) {
    const json_t *shape = json_object_get(json_array_get(json_object_get(c->loaded, "outputs"), (size_t)k), "shape");
    int64_t span = json_integer_value(json_array_get(place_of(reply, i, k), 1)), elements = 1,
            bytes = c->output_bytes[k];
    for (size_t d = 0; d < json_array_size(shape); d++) elements *= json_integer_value(json_array_get(shape, d));
    if (elements == 0 || span <= 0 || span == elements) return bytes;
    if (span < elements) return span * (bytes / elements); /* elements share memory: check_output() says so */
    if (span > 8 * elements + 16384) return 0;
    const int64_t spread = span * (bytes / elements);
    return spread > 2 * bytes + most_spread_bytes ? 0 : spread;
}

static const char shares_input[] = "an output shares its memory with an input";

/* An output as it was when its call returned: where its bytes lie in the result memory (on a GPU: which of the
 * referee's copies it is). bytes 0: spread too far. */
struct seen {
    int64_t at, bytes;
    bool read;
};

/* Puts the block of a GPU's memory that an address is in, and its place there. False: not known before the call. */
static bool put_place(struct str *q, const json_t *segments, uint64_t p, int64_t bytes, bool dense) {
    for (size_t i = 0; i < json_array_size(segments); i++) {
        const json_t *s = json_array_get(segments, i);
        uint64_t base = (uint64_t)json_integer_value(json_array_get(s, 0)),
                 size = (uint64_t)json_integer_value(json_array_get(s, 1));
        const char *handle = json_string_value(json_array_get(s, 2));
        if (!handle || p < base || p - base >= size) continue;
        js_begin(q, NULL, '{');
        js_put_str(q, "handle", handle);
        js_put_i64(q, "offset", (int64_t)(p - base));
        js_put_i64(q, "bytes", bytes);
        js_put_bool(q, "dense", dense);
        js_end(q, '}');
        return true;
    }
    return false;
}

/* On a GPU the referee copies what is there, from blocks that were known before the call: whoever works only when he is
 * asked what his outputs are is too late. Memory that nobody knew of is opened later, as the answer says; not for long
 * in timed calls. */
static bool snapshot_gpu(struct torch_answer *r, const json_t *reply, const int *calls, int n, uint64_t seed,
                         struct seen *out) {
    const struct modcase *c = r->c;
    CLEANUP_STR struct str q = STR_INIT;
    struct err e = {0};
    int64_t known = 0;
    bool unseen = false;
    modrun_pause(&r->r);
    js_begin(&q, NULL, '[');
    for (int i = 0; i < n * c->n_outputs; i++) {
        int call = calls[i / c->n_outputs], k = i % c->n_outputs;
        out[i] = (struct seen){.bytes = bytes_of(c, reply, call, k)};
        const bool dense = json_integer_value(json_array_get(place_of(reply, call, k), 1)) == 0;
        out[i].read = out[i].bytes > 0 && put_place(&q, r->segments, run_pointer(reply, call, k), out[i].bytes, dense);
        if (out[i].read) out[i].at = known++;
        unseen |= !out[i].read && out[i].bytes > 0;
    }
    js_end(&q, ']');
    if (unseen && r->timed && ++r->unseen > 3)
        return run_reject(r, "in a timed call", OUTCOME_HIDDEN_WORK,
                          "an output is in memory that was not there before the call, again and again");
    enum status st = modcase_copy(&r->j->cases, c, str_c(&q), seed, r->fresh, &r->kept, &e);
    if (st != ST_OK) verdict_of_trouble(r->out, st == ST_INVALID ? ST_WORKER : st, &e);
    return st == ST_OK;
}

/* Copies the outputs of some calls, out[i * n_outputs + k], into the result memory while the process stands still: what
 * is not there when a call returns does not count. */
static bool snapshot(struct torch_answer *r, const json_t *reply, const int *calls, int n, uint64_t seed,
                     const char *where, struct seen *out) {
    const struct modcase *c = r->c;
    struct err e = {0};
    int64_t at = 0;
    struct modrun_block blocks[CHECKED_CALLS * MODCASE_MAX_OUTPUTS];
    if (on_gpu(r->j)) return snapshot_gpu(r, reply, calls, n, seed, out);
    modrun_pause(&r->r);
    /* Whatever the answer says about it, and wherever it has mapped its inputs. On a GPU what is shared cannot be shown
     * to others again. */
    for (int i = 0; i < n * c->n_outputs; i++) {
        const int call = calls[i / c->n_outputs], k = i % c->n_outputs;
        out[i] = (struct seen){.at = at, .bytes = bytes_of(c, reply, call, k)};
        blocks[i] = (struct modrun_block){run_pointer(reply, call, k), (uint64_t)out[i].bytes};
        at += (out[i].bytes + 255) / 256 * 256;
    }
    if (is_hardened(r->j) && !c->aliases && modrun_maps(&r->r, c->lane_fd[LANE_ANSWER], blocks, n * c->n_outputs))
        return run_reject(r, where, OUTCOME_ALIASED_INPUT, shares_input);
    enum status st = modcase_result_room(&r->j->cases, at + 4096, &e);
    for (int i = 0; i < n * c->n_outputs && st == ST_OK; i++) {
        uint64_t p = run_pointer(reply, calls[i / c->n_outputs], i % c->n_outputs);
        out[i].read = c->output_bytes[i % c->n_outputs] == 0 ||
                      (p != 0 && modrun_read(&r->r, p, r->j->cases.result + out[i].at, (size_t)out[i].bytes));
    }
    if (st != ST_OK) verdict_of_trouble(r->out, ST_MEMORY, &e);
    return st == ST_OK;
}

static void shape_text(const json_t *shape, char *text, size_t size) {
    size_t n = (size_t)snprintf(text, size, "(");
    for (size_t d = 0; d < json_array_size(shape) && n < size; d++)
        n += (size_t)snprintf(text + n, size - n, "%s%lld", d ? ", " : "",
                              (long long)json_integer_value(json_array_get(shape, d)));
    if (n < size) snprintf(text + n, size - n, ")");
}

bool run_reject(struct torch_answer *r, const char *where, enum outcome o, const char *what) {
    r->out->outcome = o;
    VERDICT_SAY(r->out, "%s: %s", where, what);
    return false;
}

static int64_t integer(const json_t *o, const char *key) { return json_integer_value(json_object_get(o, key)); }

/* Sizes and strides that fit in memory: the list may say anything. */
static bool sane(const json_t *shape, const json_t *stride) {
    double span = 1;
    if (!json_is_array(shape) || !json_is_array(stride) || json_array_size(shape) != json_array_size(stride) ||
        json_array_size(shape) > SHAPE_RANK)
        return false;
    for (size_t d = 0; d < json_array_size(shape); d++) {
        int64_t n = json_integer_value(json_array_get(shape, d)), s = json_integer_value(json_array_get(stride, d));
        if (n < 0 || s < 0 || !json_is_integer(json_array_get(stride, d))) return false;
        if (n > 1) span += (double)(n - 1) * (double)s;
    }
    return span < 1e12;
}

static int64_t span_of(const json_t *shape, const json_t *stride) {
    int64_t span = 1;
    for (size_t d = 0; d < json_array_size(shape); d++) {
        int64_t n = json_integer_value(json_array_get(shape, d));
        if (n == 0) return 0;
        span += (n - 1) * json_integer_value(json_array_get(stride, d));
    }
    return span;
}

/* Checks what the answer says about one output against what is expected, and puts it in the form the referee wants.
 * seen: its bytes (CPU). */
static bool check_output(struct torch_answer *r, const json_t *said, int k, const struct seen *seen, json_t *judged,
                         const char *where) {
    const struct modcase *c = r->c;
    const json_t *want = json_array_get(json_object_get(c->loaded, "outputs"), (size_t)k);
    const json_t *shape = json_object_get(said, "shape"), *stride = json_object_get(said, "stride");
    const char *dtype = json_string_value(json_object_get(said, "dtype")),
               *wanted = json_string_value(json_object_get(want, "dtype")),
               *device = json_string_value(json_object_get(said, "device"));
    char text[600], a[160], b[160];
    if (!json_is_true(json_object_get(said, "plain"))) {
        const char *type = json_string_value(json_object_get(said, "type"));
        snprintf(text, sizeof text, "output %d is a %.60s, not a plain tensor", k, type ? type : "?");
        return run_reject(r, where, OUTCOME_WRONG_SHAPE, text);
    }
    if (!sane(shape, stride)) return run_reject(r, where, OUTCOME_SANDBOX_VIOLATION, "impossible strides");
    if (!json_equal(shape, json_object_get(want, "shape"))) {
        shape_text(shape, a, sizeof a);
        shape_text(json_object_get(want, "shape"), b, sizeof b);
        snprintf(text, sizeof text, "output %d has shape %s, expected %s", k, a, b);
        return run_reject(r, where, OUTCOME_WRONG_SHAPE, text);
    }
    if (!dtype || strcmp(dtype, wanted) != 0) {
        snprintf(text, sizeof text, "output %d has type %.40s, expected %s", k, dtype ? dtype : "?", wanted);
        return run_reject(r, where, OUTCOME_WRONG_SHAPE, text);
    }
    if (!device || strncmp(r->j->o->device, device, strlen(device)) != 0) {
        snprintf(text, sizeof text, "output %d is on %.40s, expected %s", k, device ? device : "?", r->j->o->device);
        return run_reject(r, where, OUTCOME_WRONG_SHAPE, text);
    }
    if (json_is_true(json_object_get(said, "conjugate")))
        return run_reject(r, where, OUTCOME_WRONG_SHAPE, "an output is a lazily conjugated or negated view");
    if (is_hardened(r->j) && !c->aliases && json_is_true(json_object_get(said, "aliases_input")))
        return run_reject(r, where, OUTCOME_ALIASED_INPUT, shares_input);
    json_t *one = json_object();
    json_object_set(one, "shape", (json_t *)(uintptr_t)shape);
    json_object_set(one, "stride", (json_t *)(uintptr_t)stride);
    json_object_set_new(one, "dtype", json_string(dtype));
    json_array_append_new(judged, one);
    if (seen->bytes == 0 && c->output_bytes[k] > 0)
        return run_reject(r, where, OUTCOME_WRONG_SHAPE, "an output is spread over too much memory");
    if (!seen->read && !on_gpu(r->j))
        return run_reject(r, where, OUTCOME_SANDBOX_VIOLATION, "an output is not where the answer says");
    int64_t elements = 1;
    for (size_t d = 0; d < json_array_size(shape); d++) elements *= json_integer_value(json_array_get(shape, d));
    if (!json_is_true(json_object_get(want, "overlapping")) && span_of(shape, stride) < elements)
        return run_reject(r, where, OUTCOME_WRONG_SHAPE, "elements of an output share memory (a stride of 0)");
    if (elements > 0 && span_of(shape, stride) * (c->output_bytes[k] / elements) > seen->bytes)
        return run_reject(r, where, OUTCOME_SANDBOX_VIOLATION, "an output's strides are not those of its call");
    if (seen->read)
        json_object_set_new(one, on_gpu(r->j) ? "copy" : "at", json_integer(seen->at));
    else {
        json_object_set(one, "handle", json_object_get(said, "handle"));
        json_object_set(one, "offset", json_object_get(said, "offset"));
    }
    return true;
}

static const char *family_text(const char *family) {
    static const char *const texts[][2] = {
        {FAMILY_SHIPPED, "inputs as the problem makes them"},
        {FAMILY_SIGNED, "inputs of both signs"},
        {FAMILY_SCALED, "large inputs of both signs"},
        {FAMILY_SMALL, "small inputs of both signs"},
        {FAMILY_NEGATED, "inputs times -1"},
        {FAMILY_OFFSET, "inputs with an offset"},
        {FAMILY_UNIT, "inputs near 1 and -1"},
        {FAMILY_SPIKES, "inputs with a few large elements"},
        {FAMILY_PROBE, "one input element changed"},
        {FAMILY_TOUCHED, "one input element changed"},
    };
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        if (strcmp(texts[i][0], family) == 0) return texts[i][1];
    return family;
}

static double number(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    if (json_is_string(v)) return strtod(json_string_value(v), NULL); /* "nan", "inf" */
    return json_number_value(v);
}

/* The referee's word on one call, as a verdict. True: equal. */
static bool note_judgement(struct torch_answer *r, const json_t *v, const struct modset *set, const char *where) {
    const char *word = json_string_value(json_object_get(v, "verdict"));
    struct verdict *out = r->out;
    double worst = number(v, "max_error");
    if (!(worst <= out->max_error)) out->max_error = worst;
    if (word && strcmp(word, WORD_EQUAL) == 0) return true;
    if (word && strcmp(word, WORD_UNREACHABLE) == 0)
        return run_reject(r, where, OUTCOME_SANDBOX_VIOLATION, "an output is not where the answer says");
    if (word && strcmp(word, WORD_INPUTS_CHANGED) == 0) {
        out->outcome = OUTCOME_OUT_OF_BOUNDS;
        VERDICT_SAY(out, "%s: changed its inputs, which the reference leaves as they are", where);
        return false;
    }
    char place[160];
    shape_text(json_object_get(v, "place"), place, sizeof place);
    out->outcome = word && strcmp(word, WORD_NOT_FINITE) == 0 ? OUTCOME_NOT_FINITE : OUTCOME_WRONG_OUTPUT;
    VERDICT_SAY(
        out,
        "%s (%s%s): %lld of %lld elements of output %lld are wrong; the first is at %s: %.6g, expected %.6g; the "
        "largest "
        "error is %.3g of the output's scale",
        where, family_text(set->family), set->param_set ? ", parameters randomised" : "",
        (long long)integer(v, "different"), (long long)integer(v, "elements"), (long long)integer(v, "output"), place,
        number(v, "got"), number(v, "want"), worst);
    return false;
}

/* Looks at the outputs of some of the calls just made. */
bool run_check_calls(struct torch_answer *r, const json_t *reply, const int *calls, int n, const int *slots,
                     int n_slots, const struct modset *sets, const char *where) {
    struct modcase *c = r->c;
    struct seen seen[CHECKED_CALLS * MODCASE_MAX_OUTPUTS] = {{0}};
    struct err e = {0};
    enum status st;
    /* Of what is large a part is looked at in timed calls, which part is decided only now. */
    const bool in_part = r->timed && is_hardened(r->j);
    const uint64_t seed = in_part ? (rng_u64(r->random, 10, ++r->random_step) >> 11) | 1 : 0;
    if (!snapshot(r, reply, calls, n, seed, where, seen)) return false;
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *said = NULL;
    run_open_request(&q, "describe");
    js_begin(&q, "calls", '[');
    for (int i = 0; i < n; i++) js_put_i64(&q, NULL, calls[i]);
    js_end(&q, ']');
    js_begin(&q, "slots", '[');
    for (int i = 0; i < n_slots; i++) js_put_i64(&q, NULL, slots[i]);
    js_end(&q, ']');
    if (!request(r, &q, -1, r->j->o->run_timeout_s, where, &said, NULL)) return false;
    for (int i = 0; i < n; i++) {
        const json_t *one = json_array_get(json_object_get(said, "calls"), (size_t)i);
        const json_t *outputs = json_object_get(one, "outputs");
        CLEANUP_JSON json_t *judged = json_array(), *verdict = NULL;
        if (!json_equal(json_object_get(one, "structure"), json_object_get(c->loaded, "structure")) ||
            (int)json_array_size(outputs) != c->n_outputs) {
            char text[300];
            const char *got = json_string_value(json_object_get(one, "structure"));
            snprintf(text, sizeof text, "returns %.100s, expected %.100s (T is a tensor)", got ? got : "?",
                     json_string_value(json_object_get(c->loaded, "structure")));
            return run_reject(r, where, OUTCOME_WRONG_SHAPE, text);
        }
        for (int k = 0; k < c->n_outputs; k++)
            if (!check_output(r, json_array_get(outputs, (size_t)k), k, &seen[i * c->n_outputs + k], judged, where))
                return false;
        st = modcase_judge(&r->j->cases, c, LANE_ANSWER, &sets[calls[i]], slots[calls[i]], judged, seed, &verdict, &e);
        if (st != ST_OK) {
            verdict_of_trouble(r->out, st == ST_INVALID ? ST_WORKER : st, &e);
            return false;
        }
        if (!note_judgement(r, verdict, &sets[calls[i]], where)) return false;
    }
    return true;
}

bool run_look_again(struct torch_answer *r) {
    const enum outcome o = r->out->outcome;
    if (!r->kept || r->fresh || !r->up || (o != OUTCOME_WRONG_OUTPUT && o != OUTCOME_NOT_FINITE)) return false;
    r->fresh = r->again = true;
    r->out->outcome = OUTCOME_CORRECT;
    r->out->message[0] = 0;
    r->out->max_error = 0;
    return true;
}

/* ---- correctness ---- */

static bool run_trial(struct torch_answer *r, int t) {
    struct modset set = r->c->trials[t];
    /* Another look is one at other inputs: an output that comes a call late is no more right the second time. */
    if (r->again) set.seed = hmac_u64(r->random, "again", ++r->random_step, NULL, 0) >> 11;
    r->again = false;
    char where[48];
    struct err e = {0};
    int slot = t % r->c->slots;
    int64_t ns = 0;
    CLEANUP_JSON json_t *reply = NULL;
    snprintf(where, sizeof where, "test %d of %d", t + 1, r->c->n_trials);
    /* The inputs come last, with the process standing still: a trial is no easier to tell from a timed call. */
    if (!poison(r, 1 + (int)(hmac_u64(r->random, "poison", ++r->random_step, NULL, 0) % 254)) ||
        !run_ready(r, &slot, 1, where))
        return false;
    modrun_pause(&r->r);
    enum status st = modcase_stage(&r->j->cases, r->c, false, false, &set, &slot, 1, &e);
    if (st != ST_OK) {
        verdict_of_trouble(r->out, st, &e);
        return false;
    }
    double left = r->deadline_s - clock_now_s();
    if (left < 0.05) left = 0.05;
    if (!run_call(r, &slot, 1, &set, left, where, &reply, &ns)) return false;
    if (!run_check_calls(r, reply, &(int){0}, 1, &slot, 1, &set, where))
        return run_look_again(r) && poison(r, 0) && run_trial(r, t);
    if (!poison(r, 0)) return false;
    r->out->tests_passed++;
    return true;
}

/* ---- whose kernels ---- */

bool run_record(struct torch_answer *r, bool on, json_t **reply) {
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *said = NULL;
    run_open_request(&q, "record");
    js_put_bool(&q, "on", on);
    if (!request(r, &q, -1, r->j->o->run_timeout_s, "when its kernels were listed", &said, NULL)) return false;
    if (reply) *reply = json_incref(said);
    return true;
}

bool run_account(struct torch_answer *r, const json_t *recorded) {
    static const double least_share = 0.01;
    const json_t *kernels = json_object_get(recorded, "kernels"),
                 *theirs =
                     json_object_get(r->c->loaded, "kernels"); /* what the reference launches is no answer's own */
    double all = 0, mine = 0, times = 0;
    r->apart |= json_is_true(json_object_get(recorded, "elsewhere"));
    for (size_t i = 0; i < json_array_size(kernels); i++) {
        const json_t *k = json_array_get(kernels, i);
        const char *name = json_string_value(json_array_get(k, 0));
        const double ns = (double)json_integer_value(json_array_get(k, 2));
        times += (double)json_integer_value(json_array_get(k, 1));
        all += ns;
        bool own = name && kernel_is_own(&r->kernels, name) && !kernel_is_library(name);
        for (size_t t = 0; t < json_array_size(theirs) && own; t++)
            own = strcmp(name, json_string_value(json_array_get(theirs, t))) != 0;
        if (own) mine += ns;
    }
    const double share = all > 0 ? mine / all : 0;
    r->out->own_share = r->timed ? fmin(r->out->own_share, share) : share;
    if (r->j->o->allow_library || r->control || mine > least_share * all) return true;
    r->out->outcome = OUTCOME_NO_KERNEL_RAN;
    VERDICT_SAY(r->out, "%s%.0f kernels ran, %.2f %% of the device time in kernels of the answer's own",
                r->timed ? "in a timed call: " : "", times, 100 * share);
    return false;
}

/* GPU backends: whose kernels run in a call like those before it. Again among the timed ones (torch/clock.c). */
static bool account_kernels(struct torch_answer *r) {
    struct modset set = r->c->trials[0];
    int slot = 0;
    int64_t ns = 0;
    struct err e = {0};
    CLEANUP_JSON json_t *reply = NULL, *recorded = NULL;
    if (!run_record(r, true, NULL) || !run_ready(r, &slot, 1, "between calls")) return false;
    modrun_pause(&r->r);
    enum status st = modcase_stage(&r->j->cases, r->c, false, false, &set, &slot, 1, &e);
    if (st != ST_OK) {
        verdict_of_trouble(r->out, st, &e);
        return false;
    }
    return run_call(r, &slot, 1, &set, r->j->o->run_timeout_s, "when its kernels were listed", &reply, &ns) &&
           run_record(r, false, &recorded) && run_account(r, recorded);
}

/* ---- one answer ---- */

/* All trials, up to the first that fails; with `staged` off all of those that the answer's process lives to see, and
 * the first failure is told. */
static bool run_trials(struct torch_answer *r) {
    struct verdict first = {.outcome = OUTCOME_CORRECT};
    for (int t = 0; t < r->c->n_trials; t++) {
        if (run_trial(r, t)) continue;
        char class = outcome_class(r->out->outcome);
        if (first.outcome == OUTCOME_CORRECT) first = *r->out;
        if (r->j->o->staged != STAGED_OFF || !r->up || class == 'I') return false;
        r->out->outcome = OUTCOME_CORRECT;
    }
    if (first.outcome == OUTCOME_CORRECT) return true;
    r->out->outcome = first.outcome;
    memcpy(r->out->message, first.message, sizeof first.message);
    return false;
}

static bool run_tests(struct torch_answer *r) {
    bool good = run_attach(r, LANE_ANSWER) && run_build(r, 0);
    bool both = false;
    for (int t = 0; t < r->c->n_trials; t++) both |= r->c->trials[t].param_set == 1;
    if (good && both) good = run_build(r, 1);
    if (good) good = run_trials(r);
    if (good && is_hardened(r->j) && on_gpu(r->j)) good = account_kernels(r);
    return good;
}

/* Trials, timing, end. */
void run_judge(struct torch_answer *r) {
    struct module_judge *j = r->j;
    struct verdict *out = r->out;
    double t0 = clock_now_s();
    out->tests_total = r->c->n_trials;
    r->deadline_s = t0 + j->o->run_timeout_s;
    bool good = run_tests(r);
    double t1 = clock_now_s();
    out->run_s = t1 - t0;
    if (good && j->o->measure) {
        module_measure(r);
        out->time_s = clock_now_s() - t1;
    }
    module_renew_spares(j);
}

void run_finish(struct torch_answer *r) {
    if (r->up && on_gpu(r->j)) modcase_let_go(&r->j->cases);
    if (r->up) modrun_end(&r->r, NULL, NULL, NULL, 0);
    r->up = false;
    kernel_names_free(&r->kernels);
    json_decref(r->segments);
    json_decref(r->interface);
    r->segments = r->interface = NULL;
    /* Its memory goes with it: an answer can write there, parameters and what it wants to tell the next one. */
    if (r->c) modcase_close_lane(&r->j->cases, r->c, LANE_ANSWER);
}
