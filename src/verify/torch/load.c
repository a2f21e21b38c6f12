#include "verify/torch/load.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "verify/torch/failure.h"
#include "verify/torch/process.h"
#include "verify/torch/request.h"

static const char *entry_of(bool is_answer) { return is_answer ? "ModelNew" : "Model"; }

static void put_load(struct str *q, const struct module_judge *j, const char *code, bool is_answer) {
    run_open_request(q, "load");
    js_put_str(q, "code", code);
    js_put_str(q, "entry", entry_of(is_answer));
    js_put_str(q, "backend", is_answer ? backend_name(j->o->backend) : "torch_cpu");
    js_put_str(q, "precision", j->o->precision);
    js_put_i64(q, "seed", 42);
}

/* Whether this machine has what the backend needs. A process is asked before it runs anything of an answer's, until one
 * process has said yes. False: the verdict is there. */
static bool is_available(struct torch_answer *r) {
    struct module_judge *j = r->j;
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *reply = NULL;
    if (atomic_load(&j->available)) return true;
    run_open_request(&q, "available");
    js_put_str(&q, "backend", backend_name(j->o->backend));
    if (modrun_call(&r->process.run, &q, -1, j->o->compile_timeout_s, &reply, NULL) != MODRUN_OK)
        return run_trouble(r, "a process without an answer does not say whether the backend is there");
    const char *lacking = json_string_value(json_object_get(reply, "lacking"));
    if (lacking && !*lacking) {
        atomic_store(&j->available, true);
        return true;
    }
    r->out->outcome = OUTCOME_BACKEND_UNAVAILABLE;
    VERDICT_SAY(r->out, "backend %s: %s", backend_name(j->o->backend), lacking ? lacking : "?");
    return false;
}

/* Compiles a native answer into the object *fd, and adds to the request what the harness has to know about that object.
 * False: the verdict is there. */
static bool compile_native(struct torch_answer *r, const char *source, struct str *q, int *fd) {
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

/* An answer in Python goes into the request as it is. */
static bool prepare_python(struct torch_answer *r, const char *code, struct str *q, int *fd) {
    (void)code, (void)q, (void)fd;
    return is_available(r);
}

static const char *const of_native[] = {"spec", "structure", NULL};
static const char *const of_triton[] = {"inputs", "values", "init", NULL};
/* The three loaders: a module in Python, a module whose kernels Triton compiles on a GPU, and native CUDA. */
static const struct answer_loader python_loader = {.prepare = prepare_python};
static const struct answer_loader triton_loader = {
    .prepare = prepare_python, .interface = of_triton, .rehearsed = true};
static const struct answer_loader native_loader = {.prepare = compile_native, .interface = of_native, .compiled = true};

const struct answer_loader *loader_of(const struct module_judge *j) {
    if (j->o->backend == BACKEND_cuda_native) return &native_loader;
    return backend_info(j->o->backend)->in_python && on_gpu(j) ? &triton_loader : &python_loader;
}

bool run_load(struct torch_answer *r, const char *code, bool is_answer) {
    CLEANUP_STR struct str q = STR_INIT;
    json_t *reply = NULL;
    double t0 = clock_now_s(), timeout_s = r->j->o->compile_timeout_s;
    kernel_names_free(&r->kernels);
    if (is_answer) kernel_names_note(&r->kernels, code);
    put_load(&q, r->j, code, is_answer);
    CLEANUP_FD int object = -1;
    if (is_answer && !loader_of(r->j)->prepare(r, code, &q, &object)) return false;
    enum modrun_result result = modrun_call(&r->process.run, &q, object, timeout_s, &reply, NULL);
    for (int builds = 0; result == MODRUN_OK; builds++) {
        double left = t0 + timeout_s - clock_now_s();
        if (!modrun_asks(reply)) break;
        bool sent = builds < MOST_BUILDS && left > 0 && run_serve_build(r, reply, left);
        json_decref(reply);
        reply = NULL;
        if (!r->process.up) return false; /* The verdict is there. */
        left = t0 + timeout_s - clock_now_s();
        result = !sent ? MODRUN_LATE : modrun_receive(&r->process.run, left > 0.1 ? left : 0.1, &reply);
    }
    r->out->compile_s = clock_now_s() - t0;
    if (result == MODRUN_FAILED) run_failed(r, reply, "");
    json_decref(reply);
    if (result == MODRUN_OK) return true;
    if (result == MODRUN_FAILED) return false;
    run_lost(r, result, "while it was loaded", timeout_s);
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
    js_put_str(&q, "constants", modcase_constants(r->j->o, param_set));
    js_put_bool(&q, "adopt", is_hardened(r->j));
    js_put_json(&q, "init", json_object_get(c->loaded, "init"));
    return run_simple(r, &q, -1, r->j->o->run_timeout_s, "in __init__()");
}

/* ---- ahead of its turn ---- */

void run_note_interface(struct torch_answer *r) {
    const char *const *key = loader_of(r->j)->interface;
    if (r->interface || !key) return;
    r->interface = json_object();
    for (; *key; key++) json_object_set_new(r->interface, *key, json_deep_copy(json_object_get(r->c->loaded, *key)));
}

void run_fork_and_load(struct torch_answer *r, const char *source) {
    struct err e = {0};
    enum status st = run_fork(r, &e);
    if (st != ST_OK) verdict_of_trouble(r->out, st, &e);
    if (st == ST_OK && !run_load(r, source, !r->control)) run_end(r);
}

void run_warm(struct torch_answer *r) {
    CLEANUP_STR struct str q = STR_INIT;
    run_open_request(&q, "warm");
    js_put_bool(&q, "triton", backend_info(r->j->o->backend)->in_python);
    if (!run_starting(r, &q, -1)) run_end(r);
}

void run_rehearse(struct torch_answer *r, const char *source) {
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *reply = NULL;
    const char *key;
    json_t *value;
    run_open_request(&q, "rehearse");
    json_object_foreach(r->interface, key, value) js_put_json(&q, key, value);
    const enum modrun_result result = modrun_call(&r->process.run, &q, -1, r->j->o->compile_timeout_s, &reply, NULL);
    if (result == MODRUN_OK || result == MODRUN_FAILED) return;
    run_end(r);
    run_fork_and_load(r, source);
}
