#include "optimize/optimize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/log.h"
#include "optimize/dropin.h"
#include "optimize/report.h"
#include "rl/learn/session.h"
#include "rl/run/run.h"

/* ---- what to work on ----------------------------------------------------------------------------------------------*/

/* Held-out problems where the source has a split, unless the configuration chooses some of them. */
static enum status choose_problems(const struct optimize_options *o, struct tasks *out, struct err *e) {
    struct session s = {0}; /* holds problems alone */
    const struct problem **train = NULL, **test = NULL;
    int n_train = 0, n_test = 0;
    const bool chosen = o->train.dataset_builder.start_problem || o->train.dataset_builder.end_problem;
    struct train_options mine = o->train;
    mine.dataset_builder.test_fraction = 0;
    const enum status st = session_problems(&mine, &s, &train, &n_train, &test, &n_test, e);
    if (st == ST_OK) {
        const struct problem **all = xcalloc((size_t)(n_train + n_test) + 1, sizeof *all);
        int n = 0;
        for (int i = 0; i < n_test; i++) all[n++] = test[i];
        for (int i = 0; i < n_train && (n_test == 0 || chosen); i++) all[n++] = train[i];
        tasks_of_problems(all, n, out);
        free(all);
    }
    free(train);
    free(test);
    session_close(&s);
    return st;
}

/* The folder that `from` names: of an earlier search, of a run, or weights themselves. malloc'ed. */
static char *weights_of(const char *from) {
    static const char *const places[] = {"policy", "checkpoints/final", "final"};
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        char *path = fs_join(from, places[i]);
        if (fs_is_dir(path)) return path;
        free(path);
    }
    return xstrdup(from);
}

/* ---- writing ------------------------------------------------------------------------------------------------------*/

static enum status write_text(const char *dir, const char *name, const char *text, struct err *e) {
    CLEANUP_FREE char *path = fs_join(dir, name);
    return fs_write_atomic(path, text, strlen(text), e);
}

/* The problem as it was judged, shape by shape. */
static enum status write_problem(const struct search_task *t, const char *dir, struct err *e) {
    TRY(write_text(dir, "problem.py", t->shape[0].code, e));
    for (int k = 1; k < t->n_shapes; k++) {
        char name[40];
        snprintf(name, sizeof name, "problem_%d.py", k + 1);
        TRY(write_text(dir, name, t->shape[k].code, e));
    }
    return ST_OK;
}

/* Prototypes are asked for, and nothing is run. */
static enum status open_prototypes(const struct optimize_options *o, struct verifier **v, struct err *e) {
    struct verify_options vo = session_verify_options(&o->train, NULL);
    vo.measure = false;
    vo.allow_weaker = true;
    return backend_info(vo.backend)->is_module ? ST_OK : verifier_open(&vo, v, e);
}

static enum status write_all(const struct report *r, struct optimized *out, struct err *e) {
    const struct backend_info *backend = backend_info(r->o->train.verify.backend);
    struct verifier *v = NULL;
    bool any = false;
    for (int i = 0; i < r->tasks->n; i++) any |= r->proof[i].winner >= 0;
    enum status st = any ? open_prototypes(r->o, &v, e) : ST_OK;
    for (int i = 0; st == ST_OK && i < r->tasks->n; i++) {
        const struct search_task *t = &r->tasks->items[i];
        CLEANUP_STR struct str dir = STR_INIT, line = STR_INIT;
        report_folder(r, i, &dir);
        report_line(r, i, &line);
        out->solved += r->proof[i].winner >= 0;
        out->faster += r->proof[i].faster;
        snprintf(out->last_line, sizeof out->last_line, "%s", line.p);
        if ((st = fs_mkdirs(dir.p, e)) != ST_OK || (st = write_problem(t, dir.p, e)) != ST_OK) break;
        if (r->proof[i].winner >= 0)
            st = dropin_write(dir.p, t, &t->found.c[r->proof[i].winner], backend, r->where->device, v, line.p, e);
        if (st == ST_OK) st = report_task(r, i, e);
    }
    verifier_close(v);
    if (st == ST_OK && (r->tasks->n > 1 || *r->tasks->items[0].folder)) st = report_all(r, e);
    if (r->tasks->n != 1)
        snprintf(out->last_line, sizeof out->last_line, "%d of %d problems solved, %d shown to be faster than PyTorch",
                 out->solved, r->tasks->n, out->faster);
    out->problems = r->tasks->n;
    return st;
}

/* ---- all of it ----------------------------------------------------------------------------------------------------*/

static void say_what_is_ahead(const struct optimize_options *o, const struct tasks *t) {
    CLEANUP_STR struct str budget = STR_INIT;
    if (o->verdicts > 0) str_addf(&budget, "%lld verdicts", (long long)o->verdicts);
    if (o->budget_s > 0) str_addf(&budget, "%s%.0f s", budget.len ? ", at most " : "", o->budget_s);
    log_info("%s: %d problem%s, %d shape%s of the first; search: %s; proof: at most %.0f s more", o->output_path, t->n,
             t->n == 1 ? "" : "s", t->items[0].n_shapes, t->items[0].n_shapes == 1 ? "" : "s", budget.p,
             proof_seconds(o));
}

static enum status search_and_prove(const struct optimize_options *o, struct tasks *t, const char *source,
                                    const volatile bool *cancel, struct optimized *out, struct err *e) {
    struct answer_search *s = NULL;
    struct proof *proofs = xcalloc((size_t)t->n + 1, sizeof *proofs);
    struct proof_environment where;
    enum status st = search_open(o, t, o->output_path, cancel, &s, e);
    if (st == ST_OK) st = search_run(s, e);
    const struct search_state state = s ? search_state(s) : (struct search_state){0};
    search_close(s); /* its processes are not there while the proof measures */
    if (st == ST_OK) st = proof_run(o, t, state.waves, o->output_path, cancel, proofs, &where, e);
    const struct report r = {
        .o = o, .tasks = t, .proof = proofs, .where = &where, .state = &state, .source = source, .dir = o->output_path};
    if (st == ST_OK) st = write_all(&r, out, e);
    free(proofs);
    return st;
}

enum status optimize_run(const struct config *c, struct optimize_options *o, const char *file,
                         const volatile bool *cancel, struct optimized *out, struct err *e) {
    struct tasks t = {0};
    CLEANUP_STR struct str yaml = STR_INIT;
    CLEANUP_FREE char *from = o->from && *o->from ? weights_of(o->from) : NULL;
    int lock = -1;
    *out = (struct optimized){0};
    if (from) o->train.load_checkpoint_path = from;
    enum status st = file ? task_of_file(file, o->module, &t, e) : choose_problems(o, &t, e);
    config_dump(c, &yaml);
    if (st == ST_OK) st = fs_mkdirs(o->output_path, e);
    if (st == ST_OK) st = run_lock(o->output_path, &lock, e);
    if (st == ST_OK) st = write_text(o->output_path, "config.yaml", str_c(&yaml), e);
    if (st == ST_OK) {
        CLEANUP_FREE char *log = fs_join(o->output_path, "logs.log");
        st = log_open_file(log, e);
    }
    if (st == ST_OK) say_what_is_ahead(o, &t);
    const char *given = o->train.dataset_builder.source;
    if (st == ST_OK) st = search_and_prove(o, &t, file ? file : given && *given ? given : "builtin", cancel, out, e);
    if (st != ST_OK && lock >= 0) log_file_line(st == ST_CANCELLED ? LOG_INFO : LOG_ERROR, e->msg);
    log_close_file();
    if (lock >= 0) close(lock);
    tasks_free(&t);
    return st;
}
