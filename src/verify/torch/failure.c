#include "verify/torch/failure.h"

#include <signal.h>
#include <string.h>

#include "base/rng.h"
#include "verify/torch/process.h"

bool run_reject(struct torch_answer *r, const char *where, enum outcome o, const char *what) {
    r->out->outcome = o;
    VERDICT_SAY(r->out, "%s: %s", where, what);
    return false;
}

bool run_trouble(struct torch_answer *r, const char *what) {
    run_end(r);
    r->out->outcome = OUTCOME_INFRASTRUCTURE;
    VERDICT_SAY(r->out, "%s", what);
    return false;
}

static void one_line(char *text) {
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 32) *p = ' ';
}

void run_lost(struct torch_answer *r, enum modrun_result result, const char *where, double waited_s) {
    int sig = 0, code = -1;
    char said[300] = "";
    struct verdict *v = r->out;
    if (result == MODRUN_DEAD)
        modrun_end(&r->process.run, &sig, &code, said, sizeof said);
    else
        modrun_end(&r->process.run, NULL, NULL, NULL, 0);
    r->process.up = false;
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

/* Sends a request that has no arguments and no result. True: the process reports that it has done what was asked. */
static bool obeys(struct modrun *m, const char *text, double timeout_s) {
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *reply = NULL;
    str_adds(&q, text); /* The object is open: the call closes it. */
    return modrun_call(m, &q, -1, timeout_s, &reply, NULL) == MODRUN_OK;
}

/* true: a process that runs no answer can list the kernels that it launches. run_failed() asks when an answer's
 * process, which has been ended, reported that it could not. One success counts for the judge's whole life; after a
 * failure the next call tries again. */
static bool lists_kernels(struct torch_answer *r) {
    struct module_judge *j = r->j;
    if (atomic_load(&j->lists_kernels)) return true;
    static const char *const requests[] = {"{\"op\":\"warm\",\"triton\":false", "{\"op\":\"record\",\"on\":true",
                                           "{\"op\":\"record\",\"on\":false"};
    struct torch_answer control = {.j = j, .process.never_spare = true, .random = rng_u64(r->random, 12, 0)};
    struct err e = {0};
    bool good = run_fork(&control, &e) == ST_OK;
    for (size_t i = 0; i < ARRAY_LEN(requests) && good; i++)
        good = obeys(&control.process.run, requests[i], j->o->run_timeout_s);
    run_end(&control);
    if (good) atomic_store(&j->lists_kernels, true);
    return good;
}

void run_failed(struct torch_answer *r, const json_t *reply, const char *where) {
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
    /* An answer can forge this reply. It is our trouble only if a process without an answer has the same trouble. */
    run_end(r);
    v->outcome = lists_kernels(r) ? OUTCOME_NO_KERNEL_RAN : OUTCOME_INFRASTRUCTURE;
}

bool run_conclude(struct torch_answer *r, enum modrun_result result, double timeout_s, const char *where,
                  json_t **reply) {
    if (result == MODRUN_OK) return true;
    if (result == MODRUN_FAILED) {
        run_failed(r, *reply, where);
        json_decref(*reply);
        *reply = NULL;
        return false;
    }
    run_lost(r, result, where, timeout_s);
    return false;
}
