#include "verify/torch/request.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "verify/torch/failure.h"

/* Bytes that the names of an answer's own kernels may take, and bytes of a source in which such names are looked for,
 * at most. */
enum { MOST_NAMES_BYTES = 64 << 10, MOST_SOURCE_BYTES = 1 << 20 };

void run_open_request(struct str *q, const char *op) {
    js_begin(q, NULL, '{');
    js_put_str(q, "op", op);
}

bool run_serve_build(struct torch_answer *r, const json_t *wanted, double timeout_s) {
    struct compile_job job;
    bool standin;
    static const char *const sources[] = {"cpp", "cuda"};
    CLEANUP_STR struct str q = STR_INIT;
    for (size_t i = 0; i < ARRAY_LEN(sources); i++) {
        const char *text = json_string_value(json_object_get(wanted, sources[i]));
        /* The names are limited, because each kernel that ran is looked for in all of them. */
        if (text && r->kernels.list.len < MOST_NAMES_BYTES && strlen(text) < MOST_SOURCE_BYTES)
            kernel_names_note(&r->kernels, text);
    }
    extension_build(&r->j->tools, r->j->compiler, wanted, timeout_s, &job, &standin);
    CLEANUP_FD int fd = job.result == COMPILE_OK ? process_memfd("extension", job.object, job.object_bytes) : -1;
    free(job.object);
    if (job.result == COMPILE_BROKEN) return run_trouble(r, job.message);
    if (job.result == COMPILE_OK && fd < 0) return run_trouble(r, "no memory for an object");
    js_begin(&q, NULL, '{');
    js_put_bool(&q, "ok", fd >= 0);
    js_put_bool(&q, "standin", standin);
    if (fd < 0) js_put_str(&q, "error", job.message);
    js_end(&q, '}');
    return modrun_send(&r->process.run, &q, fd);
}

bool run_request(struct torch_answer *r, struct str *q, int fd, double timeout_s, const char *where, json_t **reply,
                 int64_t *ns) {
    enum modrun_result result = modrun_call(&r->process.run, q, fd, timeout_s, reply, ns);
    for (int builds = 0; result == MODRUN_OK && modrun_asks(*reply); builds++) {
        const double begun = clock_now_s(), left = r->j->o->compile_timeout_s - r->out->compile_s;
        const bool may = r->clock.phase != PHASE_TURNS && builds < MOST_BUILDS && left > 0;
        const bool served = may && run_serve_build(r, *reply, left);
        json_decref(*reply);
        *reply = NULL;
        if (!may)
            return run_reject(r, where, left > 0 ? OUTCOME_SANDBOX_VIOLATION : OUTCOME_COMPILE_TIMEOUT,
                              "asked for one more object to be compiled");
        r->deadline_s += clock_now_s() - begun;
        r->out->compile_s += clock_now_s() - begun;
        if (!r->process.up) return false; /* The verdict is there. */
        result = served ? modrun_go_on(&r->process.run, timeout_s, reply, ns) : MODRUN_DEAD;
    }
    return run_conclude(r, result, timeout_s, where, reply);
}

bool run_simple(struct torch_answer *r, struct str *q, int fd, double timeout_s, const char *where) {
    json_t *reply = NULL;
    bool good = run_request(r, q, fd, timeout_s, where, &reply, NULL);
    json_decref(reply);
    return good;
}

bool run_starting(struct torch_answer *r, struct str *q, int fd) {
    static const char where[] = "when it was started";
    if (run_simple(r, q, fd, r->j->o->run_timeout_s, where)) return true;
    if (r->out->outcome == OUTCOME_TIMEOUT && !r->last_try) r->out->outcome = OUTCOME_INFRASTRUCTURE;
    return false;
}
