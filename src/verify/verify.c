/* The verifier: takes a batch of answers through lint, compiler, correctness and timing, and decides. Only this process
 * knows the seeds, reads the clock and writes verdicts. */
#include "verify/verify.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/home.h"
#include "base/pool.h"
#include "verify/build/c_source.h"
#include "verify/build/extension.h"
#include "verify/build/lint.h"
#include "verify/build/object_check.h"
#include "verify/native/judge.h"
#include "verify/static_check.h"
#include "verify/torch/batch.h"
#include "verify/torch/open.h"
#include "verify/verdict_cache.h"

struct verifier {
    struct verify_options o;
    struct jail jail;
    struct compiler compiler;
    struct refworker worker;
    struct references references;
    struct native_judge judge;
    struct module_judge module; /* ModelNew backends; then worker is not running */
    struct verdict_cache *cache;
    char runner[PATH_MAX];
    struct digest only; /* with jail_problem: of the code of the problem that it judges; empty: none yet */
};

/* ---- opening ---- */

/* The compiler, and Python with PyTorch where answers are in C. Says all that is missing at once. */
static enum status open_tools(struct verifier *v, struct err *e) {
    const enum status st =
        compiler_open(&v->compiler, &v->jail, v->runner, v->o.cache_dir, v->o.compile_timeout_s, v->o.compile_jobs, e);
    if (v->o.backend != BACKEND_c) return st;
    struct err too = {0};
    const enum status also = refworker_open(&v->worker, v->o.python, v->o.threads, WORKER_REFERENCE,
                                            v->o.jail_problem ? &v->jail : NULL, &too);
    if (st == ST_OK && also != ST_OK) *e = too;
    if (st == ST_OK || also == ST_OK) return st == ST_OK ? also : st;
    const struct err first = *e;
    return FAIL(e, st, "%s. Missing, too: %s", first.msg, too.msg);
}

enum status verifier_open(const struct verify_options *o, struct verifier **out, struct err *e) {
    struct verifier *v = xcalloc(1, sizeof *v);
    enum status st = ST_OK;
    *out = NULL;
    v->o = *o;
    v->worker = (struct refworker){.process = PROCESS_NONE, .socket = -1, .stderr_fd = -1};
    if (v->o.threads <= 0) v->o.threads = pool_cpu_count();
    if (!v->o.device) v->o.device = backend_info(v->o.backend)->on_cpu ? "cpu" : "cuda:0";
    if (!v->o.precision) v->o.precision = "fp32";
    if (v->o.timed_calls <= 0) v->o.timed_calls = 100;
    if (v->o.timing_budget_s <= 0) v->o.timing_budget_s = 20;
    /* Triton without a GPU is an interpreter: right or wrong can be told, fast cannot. */
    if (backend_info(v->o.backend)->in_python && strcmp(v->o.device, "cpu") == 0) v->o.measure = false;
    if (v->o.trials <= 0) v->o.trials = 5;
    /* On a GPU loading may compile torch's headers, and the first calls compile Triton's kernels. */
    bool gpu = strncmp(v->o.device, "cuda", 4) == 0;
    if (v->o.compile_timeout_s <= 0) v->o.compile_timeout_s = gpu ? 180 : 20;
    if (v->o.run_timeout_s <= 0) v->o.run_timeout_s = gpu ? 90 : 10;
    if (v->o.memory_bytes <= 0) v->o.memory_bytes = (int64_t)2 << 30;
    if (v->o.seed == 0 && getrandom(&v->o.seed, sizeof v->o.seed, 0) != (ssize_t)sizeof v->o.seed) {
        st = FAIL(e, ST_IO, "getrandom: %s", strerror(errno));
        goto fail;
    }
    if (v->o.jail_problem && gpu) {
        st = FAIL(e, ST_CONFIG, "a problem that is not trusted runs on a CPU only, and answers run on %s", v->o.device);
        goto fail;
    }
    if (v->o.timing_method == TIMING_nsight_python_time && v->o.measure && !gpu) {
        st = FAIL(e, ST_CONFIG, "timing_method nsight_python_time: it times a GPU's kernels, answers run on %s",
                  v->o.device);
        goto fail;
    }
    if (!home_beside_program("kernelrl-runner", v->runner, sizeof v->runner)) {
        st = FAIL(e, ST_IO, "kernelrl-runner: not found beside the program (run make)");
        goto fail;
    }
    TRY_GOTO(jail_open(&v->jail, v->o.allow_weaker, e), fail);
    TRY_GOTO(open_tools(v, e), fail);
    if (v->o.backend != BACKEND_c) TRY_GOTO(module_open(&v->module, &v->o, &v->jail, &v->compiler, e), fail);
    references_init(&v->references, &v->worker, v->o.trials, v->o.seed);
    v->references.single_input = v->o.single_input;
    v->judge = (struct native_judge){.o = &v->o, .jail = &v->jail, .runner = v->runner, .references = &v->references};
    v->cache = verdict_cache_create();
    *out = v;
    return ST_OK;
fail:
    verifier_close(v);
    return st;
}

void verifier_close(struct verifier *v) {
    if (!v) return;
    module_close(&v->module);
    references_free(&v->references);
    refworker_close(&v->worker);
    compiler_close(&v->compiler);
    jail_close(&v->jail);
    verdict_cache_free(v->cache);
    free(v);
}

enum status verifier_spec(struct verifier *v, const struct problem *p, const struct spec **out, struct err *e) {
    struct reference *ref;
    enum status st = reference_get(&v->references, p->code, &ref, e);
    if (st != ST_OK) {
        err_note(e, "problem %s", p->key ? p->key : p->name ? p->name : "");
        return st;
    }
    *out = &ref->spec;
    return ST_OK;
}

const char *const verifier_link_options = UNIT_LINK_OPTIONS;

enum status verifier_unit(struct verifier *v, const struct problem *p, const char *source, struct str *out,
                          struct err *e) {
    const struct spec *spec;
    struct lint_facts facts;
    struct verdict said;
    TRY(verifier_spec(v, p, &spec, e));
    if (v->o.backend != BACKEND_c) {
        extension_native_unit(spec, source, true, out);
        return ST_OK;
    }
    if (!lint_source(source, &facts, said.message, sizeof said.message)) return FAIL(e, ST_INVALID, "%s", said.message);
    unit_render(spec, &facts, source, out);
    return ST_OK;
}

enum status verifier_notes(struct verifier *v, const struct problem *p, const char *source, struct str *out,
                           struct err *e) {
    enum { NOTES_MAX = 12 };
    const struct spec *spec;
    struct lint_facts facts;
    struct verdict ignored;
    CLEANUP_STR struct str unit = STR_INIT;
    if (v->o.backend != BACKEND_c) return ST_OK;
    TRY(verifier_spec(v, p, &spec, e));
    if (!lint_source(source, &facts, ignored.message, sizeof ignored.message)) return ST_OK;
    unit_render(spec, &facts, source, &unit);
    compile_notes(&v->compiler, unit.p, unit.len, NOTES_MAX, out);
    return ST_OK;
}

void verifier_hardware(const struct verifier *v, char *hardware, size_t hardware_size, char *device,
                       size_t device_size) {
    snprintf(device, device_size, "%s", v->o.device);
    snprintf(hardware, hardware_size, "%s", v->module.gpu_name[0] ? v->module.gpu_name : "CPU");
}

const char *verifier_torch(const struct verifier *v) {
    return v->o.backend == BACKEND_c ? v->worker.torch : v->module.referee.torch;
}

int64_t verifier_held_bytes(struct verifier *v) {
    module_rested(&v->module);
    return v->module.rest.held_bytes;
}

/* ---- a batch ---- */

struct verify_work {
    struct verifier *v;
    struct verify_item *item;
    struct digest key;
    struct reference *ref;
    struct compile_job job;
    struct str unit;
    bool decided;
    bool is_module; /* a ModelNew answer */
    bool untimed;   /* correct, but not timed yet */
    bool settled;   /* all that belongs to the verdict is in it */
    int64_t fastest_ns;
    int same_as; /* an earlier item with the same problem and source; -1 */
};

static void key_text(const struct problem *p, const char *source, struct str *s) {
    str_adds(s, p->code);
    str_addc(s, 0); /* neither part can hold one */
    str_adds(s, source ? source : "");
}

struct digest verify_key(const struct problem *p, const char *source) {
    CLEANUP_STR struct str s = STR_INIT;
    key_text(p, source, &s);
    return digest_of(s.p, s.len);
}

bool verify_key_matches(const char *hex, const struct problem *p, const char *source) {
    CLEANUP_STR struct str s = STR_INIT;
    key_text(p, source, &s);
    return digest_matches(hex, s.p, s.len);
}

/* Static advice into the verdict. False: it is the verdict. */
static bool look_at_text(const struct verifier *v, const char *source, struct verdict *out) {
    struct static_findings f;
    CLEANUP_STR struct str text = STR_INIT;
    static_check(v->o.backend, v->o.precision, source, &f);
    findings_text(&f, &text);
    snprintf(out->lint, sizeof out->lint, "%s", str_c(&text));
    const struct finding *worst = findings_strict(&f);
    if (!v->o.lint_strict || !worst) return true;
    out->outcome = OUTCOME_LINT;
    VERDICT_SAY(out, "line %d: %s (lint is strict)", worst->line, worst->rule);
    return false;
}

/* A hostile problem has a verifier for itself. False: this is another problem. */
static bool is_own_problem(struct verifier *v, const struct problem *p) {
    const struct digest code = digest_of(p->code, strlen(p->code));
    if (!v->o.jail_problem) return true;
    if (!v->only.hex[0]) v->only = code;
    return digest_equal(&v->only, &code);
}

/* Everything before the compiler. */
static void prepare_work(struct verifier *v, struct verify_work *all, size_t i) {
    struct verify_work *w = &all[i];
    struct verify_item *it = w->item;
    struct verdict *out = &it->verdict;
    *out = (struct verdict){.outcome = OUTCOME_INFRASTRUCTURE, .max_error = (double)NAN};
    w->same_as = -1;
    w->decided = true;
    if (!it->source || !*it->source) {
        verdict_of_nothing(out);
        return;
    }
    if (!is_own_problem(v, it->problem)) {
        VERDICT_SAY(out, "a verifier that jails its problem judges answers to one problem, and this is a second one");
        return;
    }
    w->key = verify_key(it->problem, it->source);
    for (size_t k = 0; k < i && !it->again; k++)
        if (all[k].same_as < 0 && all[k].key.hex[0] && digest_equal(&all[k].key, &w->key)) {
            w->same_as = (int)k;
            return;
        }
    if (!it->again && verdict_cache_find(v->cache, &w->key, out)) return;
    if (!look_at_text(v, it->source, out)) return;
    if (v->o.backend != BACKEND_c) {
        w->is_module = true;
        w->decided = false;
        return;
    }
    struct err e = {0};
    enum status st = reference_get(&v->references, it->problem->code, &w->ref, &e);
    if (st != ST_OK) {
        verdict_of_trouble(out, st, &e);
        return;
    }
    struct lint_facts facts;
    if (!lint_source(it->source, &facts, out->message, sizeof out->message)) {
        out->outcome = OUTCOME_LINT;
        return;
    }
    unit_render(&w->ref->spec, &facts, it->source, &w->unit);
    w->job = (struct compile_job){.unit = w->unit.p, .unit_bytes = w->unit.len};
    w->decided = false;
}

/* What the look at the source could not see. */
static void check_load(struct verify_work *w) {
    struct verdict *out = &w->item->verdict;
    const char *tag;
    const enum load_finding found = load_check(w->job.object, w->job.object_bytes, &tag);
    if (found == LOAD_CLEAN) return;
    out->outcome = OUTCOME_LINT;
    if (found == LOAD_RUNS)
        VERDICT_SAY(out, "code may only run inside kernel() and prepare(): the object has %s", tag);
    else
        VERDICT_SAY(out, "the compiled object is not a shared object as the linker makes them");
    w->decided = true;
}

static void after_compiler(struct verify_work *w) {
    struct verdict *out = &w->item->verdict;
    out->compile_s = w->job.seconds;
    if (w->job.result == COMPILE_OK) {
        check_load(w);
        return;
    }
    static const enum outcome outcomes[] = {[COMPILE_FAILED] = OUTCOME_COMPILE_ERROR,
                                            [COMPILE_SLOW] = OUTCOME_COMPILE_TIMEOUT,
                                            [COMPILE_BROKEN] = OUTCOME_INFRASTRUCTURE};
    out->outcome = outcomes[w->job.result];
    VERDICT_SAY(out, "%s", w->job.message);
    w->decided = true;
}

void verifier_recall(struct verifier *v, const struct digest *key, const struct verdict *verdict) {
    verdict_cache_add(v->cache, key, verdict);
}

/* Compiles in the background and tests what is ready beside it; then, with the processors to itself, times what was
 * found correct meanwhile. The rest is tested and timed one by one. */
static enum status judge_all(struct verifier *v, struct verify_work *all, size_t n, struct compile_job *const *jobs,
                             size_t n_jobs, const volatile bool *cancel, struct err *e) {
    struct compile_batch *compiling = compile_start(&v->compiler, jobs, n_jobs, cancel);
    enum status st = ST_OK;
    size_t job = 0;
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        struct verify_work *w = &all[i];
        if (w->decided) continue;
        if (!compile_wait(compiling, job++) || (cancel && *cancel)) {
            st = FAIL(e, ST_CANCELLED, "cancelled");
            break;
        }
        after_compiler(w);
        if (!w->decided)
            w->untimed = judge_tests(&v->judge, w->ref, &w->job, compiling, &w->item->verdict, &w->fastest_ns);
        if (v->o.progress) v->o.progress(job, n_jobs);
    }
    compile_finish(compiling);
    struct judge_timed *timed = xcalloc(n + 1, sizeof *timed);
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        int m = 0;
        if (!all[i].untimed) continue;
        for (size_t k = i; k < n; k++) {
            if (!all[k].untimed || all[k].ref != all[i].ref) continue;
            timed[m++] =
                (struct judge_timed){.job = &all[k].job, .fastest_ns = all[k].fastest_ns, .out = &all[k].item->verdict};
            all[k].untimed = false;
        }
        if (cancel && *cancel)
            st = FAIL(e, ST_CANCELLED, "cancelled");
        else {
            if (v->o.quiet) v->o.quiet(v->o.quiet_ctx, true);
            judge_timing(&v->judge, all[i].ref, timed, m);
            if (v->o.quiet) v->o.quiet(v->o.quiet_ctx, false);
        }
    }
    free(timed);
    return st;
}

/* What a verdict gets behind the judgement. */
static void settle(struct verify_work *w) {
    verdict_clean(&w->item->verdict);
    verdict_flag_problem(&w->item->verdict, w->item->problem);
    w->settled = true;
}

static void module_done(void *of) {
    struct verify_work *w = of;
    verifier_recall(w->v, &w->key, &w->item->verdict);
    settle(w);
    if (w->item->judged) w->item->judged(w->item->judged_ctx, w->item);
}

static enum status judge_modules(struct verifier *v, struct verify_work *all, size_t n, const volatile bool *cancel,
                                 struct err *e) {
    struct module_item *items = xcalloc(n + 1, sizeof *items);
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        if (all[i].is_module && !all[i].decided)
            items[m++] = (struct module_item){all[i].item->problem, all[i].item->source, &all[i].item->verdict,
                                              module_done, &all[i]};
    enum status st = module_verify(&v->module, items, m, cancel, e);
    free(items);
    return st;
}

enum status verify_batch(struct verifier *v, struct verify_item *items, size_t n, const volatile bool *cancel,
                         struct err *e) {
    struct verify_work *all = xcalloc(n + 1, sizeof *all);
    struct compile_job **jobs = xcalloc(n + 1, sizeof *jobs);
    size_t n_jobs = 0;
    enum status st = ST_OK;
    for (size_t i = 0; i < n; i++) {
        all[i].item = &items[i];
        all[i].v = v;
        prepare_work(v, all, i);
        if (!all[i].decided && !all[i].is_module) jobs[n_jobs++] = &all[i].job;
    }
    if (v->o.backend != BACKEND_c) st = judge_modules(v, all, n, cancel, e);
    if (st == ST_OK && cancel && *cancel) st = FAIL(e, ST_CANCELLED, "cancelled");
    if (st == ST_OK && n_jobs > 0) st = judge_all(v, all, n, jobs, n_jobs, cancel, e);
    for (size_t i = 0; i < n; i++) {
        if (all[i].same_as >= 0)
            items[i].verdict = items[all[i].same_as].verdict;
        else if (st == ST_OK && !all[i].settled)
            verifier_recall(v, &all[i].key, &items[i].verdict);
        if (all[i].same_as >= 0 && outcome_class(items[i].verdict.outcome) != 'I') items[i].verdict.cached = true;
        if (!all[i].settled) settle(&all[i]);
        free(all[i].job.object);
        str_free(&all[i].unit);
    }
    free(jobs);
    free(all);
    return st;
}
