#include "optimize/proof.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "io/json.h"
#include "io/jsonl.h"
#include "optimize/budget.h"
#include "rl/learn/session.h"

/* An answer is loaded and measured REPEATS times in a process, the others between: what disturbs one measurement is
 * over in the next. The middle one counts, as one observation. torch.compile takes minutes to load, and is measured
 * once. */
enum { LINE_MAX_BYTES = 16 << 20, FINALISTS_MAX = 16, LEAST_TRIALS = 10, REPEATS = 3 };
static const char *const modes[PROOF_MODES] = {"default", "max-autotune"};
enum { COMPILED_PROCESSES = 5 }; /* torch.compile is measured in so many at most, since it compiles anew in each. */

double proof_seconds(const struct optimize_options *o) {
    return o->proof.seconds > 0 ? o->proof.seconds : fmax(o->proof.compile ? 300 : 120, 0.1 * o->budget_s);
}

/* A measurement of one answer to one shape in one process. */
struct proof_row {
    int process;         /* 0: the one that chooses; from 1 on: those that are reported */
    int task, id, shape; /* id: the candidate, or -1 - mode of torch.compile */
    struct verdict verdict;
};
struct proving {
    const struct optimize_options *o;
    const struct tasks *tasks;
    int waves;
    struct proof_row *row; /* all measurements so far, of this process and of earlier ones */
    int n, cap;
    struct jsonl_writer *file;
    const volatile bool *stop;
    struct proof_environment *where;
    /* Of a task: finalists, the best first; which of them are out. */
    int (*finalist)[FINALISTS_MAX], *n_finalists;
    int *winner, *runner_up;
};

/* ---- on disk ------------------------------------------------------------------------------------------------------*/

static void push(struct proving *x, const struct proof_row *r) {
    if (x->n == x->cap) x->row = xrealloc(x->row, (size_t)(x->cap = x->cap ? 2 * x->cap : 64) * sizeof *x->row);
    x->row[x->n++] = *r;
}

static void put_row(const struct proving *x, const struct proof_row *r, struct str *out) {
    js_begin(out, NULL, '{');
    js_put_i64(out, "waves", x->waves);
    js_put_i64(out, "process", r->process);
    js_put_str(out, "task", x->tasks->items[r->task].key);
    js_put_i64(out, "id", r->id);
    js_put_i64(out, "shape", r->shape);
    js_begin(out, "verdict", '[');
    verdict_to_json(&r->verdict, out);
    js_end(out, ']');
    js_end(out, '}');
    str_addc(out, '\n');
}

/* What answers ran on; the latest line counts. */
static void put_environment(const struct proving *x, struct str *out) {
    js_begin(out, NULL, '{');
    js_put_i64(out, "waves", x->waves);
    js_begin(out, "environment", '{');
    js_put_str(out, "hardware", x->where->hardware);
    js_put_str(out, "device", x->where->device);
    js_put_str(out, "torch", x->where->torch);
    js_end(out, '}');
    js_end(out, '}');
    str_addc(out, '\n');
}

static enum status read_environment(struct proving *x, const json_t *o, const char *where, struct err *e) {
    const char *hardware, *device, *torch;
    TRY(js_get_str(o, where, "hardware", &hardware, e));
    TRY(js_get_str(o, where, "device", &device, e));
    TRY(js_get_str(o, where, "torch", &torch, e));
    snprintf(x->where->hardware, sizeof x->where->hardware, "%s", hardware);
    snprintf(x->where->device, sizeof x->where->device, "%s", device);
    snprintf(x->where->torch, sizeof x->where->torch, "%s", torch);
    return ST_OK;
}

static enum status read_row(struct proving *x, const json_t *o, const char *where, struct err *e) {
    int64_t waves, process, id, shape;
    const char *key;
    json_t *verdict;
    struct proof_row r = {.task = -1};
    const json_t *environment = json_object_get(o, "environment");
    if (environment) return read_environment(x, environment, where, e);
    TRY(js_get_i64(o, where, "waves", &waves, e));
    TRY(js_get_i64(o, where, "process", &process, e));
    TRY(js_get_i64(o, where, "id", &id, e));
    TRY(js_get_i64(o, where, "shape", &shape, e));
    TRY(js_get_str(o, where, "task", &key, e));
    TRY(js_get_array(o, where, "verdict", &verdict, e));
    TRY(verdict_from_json(json_array_get(verdict, 0), where, &r.verdict, e));
    for (int i = 0; i < x->tasks->n; i++)
        if (strcmp(x->tasks->items[i].key, key) == 0) r.task = i;
    if (waves != x->waves) return ST_OK; /* of a search that has gone on since */
    if (r.task < 0 || id >= x->tasks->items[r.task].found.n || shape < 0 || shape >= SHAPES_MAX || process < 0)
        return FAIL(e, ST_PARSE, "%s: of no candidate of this search", where);
    r.process = (int)process;
    r.id = (int)id;
    r.shape = (int)shape;
    push(x, &r);
    return ST_OK;
}

static enum status open_rows(struct proving *x, const char *dir, struct err *e) {
    CLEANUP_FREE char *path = fs_join(dir, "proof.jsonl");
    struct jsonl_reader *in = NULL;
    TRY(jsonl_append_open(path, &x->file, NULL, e));
    TRY(jsonl_open(path, LINE_MAX_BYTES, &in, e));
    enum status st = ST_OK;
    while (st == ST_OK) {
        const char *line;
        size_t n;
        char where[4200];
        CLEANUP_JSON json_t *o = NULL;
        if ((st = jsonl_next(in, &line, &n, e)) != ST_OK || !line) break;
        snprintf(where, sizeof where, "%s:%lld", path, (long long)jsonl_line(in));
        st = js_parse(line, n, where, &o, e);
        if (st == ST_OK) st = read_row(x, o, where, e);
    }
    jsonl_close(in);
    return st;
}

static int repeats(const struct proving *x, int id) { return id < 0 || !x->o->train.verify.measure ? 1 : REPEATS; }

static int by_speed(const void *a, const void *b) {
    const struct verdict *const *x = a, *const *y = b;
    return ((*x)->speedup > (*y)->speedup) - ((*x)->speedup < (*y)->speedup);
}

/* What a process has found of an answer to a shape: a failure if there was one, else the middle one of its
 * measurements. NULL: not all of them are made. */
static const struct verdict *find(const struct proving *x, int process, int task, int id, int shape) {
    const struct verdict *of[REPEATS];
    const int wanted = repeats(x, id);
    int n = 0;
    for (int i = 0; i < x->n && n < wanted; i++) {
        const struct proof_row *r = &x->row[i];
        if (r->process != process || r->task != task || r->id != id || r->shape != shape) continue;
        if (r->verdict.outcome != OUTCOME_CORRECT) return &r->verdict;
        of[n++] = &r->verdict;
    }
    if (n < wanted) return NULL;
    qsort(of, (size_t)n, sizeof *of, by_speed);
    return of[n / 2];
}

/* ---- measuring ----------------------------------------------------------------------------------------------------*/

/* How answers are judged here: with fresh secrets, and on more trials than in the search. */
static struct verify_options judged_so(const struct optimize_options *o) {
    struct verify_options v = session_verify_options(&o->train, NULL);
    const int trials = v.trials > 0 ? v.trials : 5;
    v.trials = 2 * trials > LEAST_TRIALS ? 2 * trials : LEAST_TRIALS;
    v.timed_calls = v.timed_calls > 100 ? v.timed_calls : 100;
    v.progress = NULL;
    v.seed = 0;
    return v;
}

struct proof_wanted { /* what a process is to measure; arrays as long as n */
    struct verify_item *item;
    struct proof_row *row;
    size_t n, cap;
    struct arena arena; /* of sources */
};
static void want_one(struct proof_wanted *w, struct proof_row row, const struct problem *p, const char *source) {
    if (w->n == w->cap) {
        w->cap = w->cap ? 2 * w->cap : 64;
        w->item = xrealloc(w->item, w->cap * sizeof *w->item);
        w->row = xrealloc(w->row, w->cap * sizeof *w->row);
    }
    w->item[w->n] = (struct verify_item){.problem = p, .source = source, .again = true};
    w->row[w->n++] = row;
}

/* Candidates of a task on all shapes, by turns; those below 0 are left out. */
static void want(struct proof_wanted *w, const struct proving *x, int process, int task, const int *ids, int n_ids) {
    const struct search_task *t = &x->tasks->items[task];
    for (int repeat = 0; repeat < repeats(x, 0); repeat++)
        for (int i = 0; i < n_ids; i++)
            for (int k = 0; ids[i] >= 0 && k < t->n_shapes; k++)
                if (!find(x, process, task, ids[i], k))
                    want_one(w, (struct proof_row){.process = process, .task = task, .id = ids[i], .shape = k},
                             &t->shape[k], t->found.c[ids[i]].kernel);
}

static enum status keep(struct proving *x, struct proof_wanted *w, size_t from, size_t to, struct err *e) {
    CLEANUP_STR struct str lines = STR_INIT;
    for (size_t i = from; i < to; i++) {
        w->row[i].verdict = w->item[i].verdict;
        push(x, &w->row[i]);
        put_row(x, &w->row[i], &lines);
    }
    TRY(jsonl_append(x->file, str_c(&lines), lines.len, e));
    return jsonl_sync(x->file, e);
}

/* Measures what is wanted in a fresh verifier, the answers to one problem together. Frees w. */
static enum status measure(struct proving *x, struct proof_wanted *w, const struct verify_options *vo, struct err *e) {
    struct verifier *v = NULL;
    enum status st = w->n > 0 ? verifier_open(vo, &v, e) : ST_OK;
    if (v) {
        verifier_hardware(v, x->where->hardware, sizeof x->where->hardware, x->where->device, sizeof x->where->device);
        snprintf(x->where->torch, sizeof x->where->torch, "%s", verifier_torch(v));
        CLEANUP_STR struct str line = STR_INIT;
        put_environment(x, &line);
        st = jsonl_append(x->file, line.p, line.len, e);
    }
    for (size_t from = 0, to; st == ST_OK && from < w->n; from = to) {
        for (to = from + 1; to < w->n && w->row[to].task == w->row[from].task;) to++;
        if (*x->stop) {
            st = FAIL(e, ST_CANCELLED, "interrupted; the same command goes on from there");
            break;
        }
        log_progress("  proof: %s", x->tasks->items[w->row[from].task].key);
        st = verify_batch(v, w->item + from, to - from, x->stop, e);
        if (st == ST_OK) st = keep(x, w, from, to, e);
    }
    log_progress_end();
    verifier_close(v);
    free(w->item);
    free(w->row);
    arena_free(&w->arena);
    return st;
}

/* ---- who has won --------------------------------------------------------------------------------------------------*/

/* The measurement of a candidate in a process, over all shapes, into an estimate. False: it was not judged there, it
 * failed, or it was not timed; *failed: it is wrong. */
static bool take(const struct proving *x, int process, int task, int id, struct estimate *out, bool *failed) {
    const struct search_task *t = &x->tasks->items[task];
    struct search_candidate c = {.correct = true};
    struct verdict v[SHAPES_MAX];
    for (int k = 0; k < t->n_shapes; k++) {
        const struct verdict *found = find(x, process, task, id, k);
        if (!found) return false;
        const char class = outcome_class(found->outcome);
        *failed |= class != 'C' && class != 'I';
        if (class != 'C') return false;
        v[k] = *found;
    }
    candidate_measure(&c, v, t->weight, t->n_shapes);
    if (c.estimate.n == 0) return false;
    out->n++;
    out->sum += c.estimate.sum;
    out->sum_sq += c.estimate.sum_sq;
    out->within += c.estimate.within;
    return true;
}

/* Processes that a report may rest on: those of the first look, and as many again. Without times one has to agree that
 * the winner is right, and that is all. */
static int first_look(const struct proving *x) { return x->o->train.verify.measure ? x->o->proof.processes : 1; }
static int second_look(const struct proving *x) {
    const int first = first_look(x);
    return x->o->train.verify.measure && process_ratios_rank(2 * first, first) > 0 ? 2 * first : first;
}

/* One ratio a process, over all shapes, of the reporting processes up to `most`. */
static void over_processes(const struct proving *x, int task, int id, int most, struct process_ratios *out) {
    *out = (struct process_ratios){0};
    for (int p = 1; p <= most; p++) {
        struct estimate one = {0};
        bool failed = false;
        if (take(x, p, task, id, &one, &failed)) process_ratios_add(out, exp(one.sum));
    }
}

/* Whether the processes of the first look agree on who is faster, the winner or PyTorch: then there is no second one.
 */
static bool settled(const struct proving *x, int task) {
    const int first = first_look(x);
    struct process_ratios all;
    if (x->winner[task] < 0) return true;
    over_processes(x, task, x->winner[task], first, &all);
    const struct bounds b = process_ratios_bounds(&all, first);
    return all.n >= first && process_ratios_rank(all.n, first) > 0 && (b.low > 1 || b.high < 1);
}
static int looked_at(const struct proving *x, int task) { return settled(x, task) ? first_look(x) : second_look(x); }

static bool has_failed(const struct proving *x, int task, int id) {
    struct estimate unused = {0};
    bool failed = false;
    for (int p = 0; p <= second_look(x); p++) (void)take(x, p, task, id, &unused, &failed);
    return failed;
}

/* The candidates that may be the best, by what the search has measured. */
static void find_finalists(struct proving *x, int task) {
    const struct population *p = &x->tasks->items[task].found;
    const int most = x->o->proof.finalists < FINALISTS_MAX ? x->o->proof.finalists : FINALISTS_MAX;
    CLEANUP_FREE bool *taken = xcalloc((size_t)p->n + 1, sizeof *taken);
    int n = 0;
    while (n < most) {
        int next = -1;
        double best = 0;
        for (int i = 0; i < p->n; i++) {
            const struct search_candidate *c = &p->c[i];
            if (taken[i] || !c->correct || c->same_as >= 0) continue;
            /* The lower end: who was measured once had luck. */
            const double value = c->estimate.n > 0 ? estimate_bounds(&c->estimate).low : 1e-9;
            if (value > best) {
                best = value;
                next = i;
            }
        }
        if (next < 0) break;
        taken[next] = true;
        x->finalist[task][n++] = next;
    }
    x->n_finalists[task] = n;
}

/* Winner and runner-up by search and choosing measurement together; those that failed since are out. */
static void choose(struct proving *x, int task) {
    double first = -1, second = -1;
    x->winner[task] = x->runner_up[task] = -1;
    for (int i = 0; i < x->n_finalists[task]; i++) {
        const int id = x->finalist[task][i];
        struct estimate all = x->tasks->items[task].found.c[id].estimate;
        bool failed = false;
        (void)take(x, 0, task, id, &all, &failed);
        if (has_failed(x, task, id)) continue;
        const double speed = all.n > 0 ? exp(all.sum / all.n) : 0;
        if (speed > first) {
            second = first;
            x->runner_up[task] = x->winner[task];
            first = speed;
            x->winner[task] = id;
        } else if (speed > second) {
            second = speed;
            x->runner_up[task] = id;
        }
    }
}

static enum status choosing_process(struct proving *x, struct err *e) {
    const struct verify_options vo = judged_so(x->o);
    struct proof_wanted w = {0};
    for (int t = 0; t < x->tasks->n; t++) want(&w, x, 0, t, x->finalist[t], x->n_finalists[t]);
    return measure(x, &w, &vo, e);
}

static enum status reporting_process(struct proving *x, int process, struct err *e) {
    const struct verify_options vo = judged_so(x->o);
    struct proof_wanted w = {0};
    for (int t = 0; t < x->tasks->n; t++) {
        const int ids[] = {x->winner[t], x->runner_up[t]};
        if (process <= looked_at(x, t)) want(&w, x, process, t, ids, 2);
    }
    return measure(x, &w, &vo, e);
}

/* ---- torch.compile ------------------------------------------------------------------------------------------------*/

static char *compiled_answer(struct arena *a, const struct problem *p, const char *mode) {
    return arena_printf(a,
                        "%s\n\nimport torch\n\n\nclass ModelNew(torch.nn.Module):\n"
                        "    def __init__(self, *a, **k):\n"
                        "        super().__init__()\n"
                        "        self.model = Model(*a, **k)\n"
                        "        self.run = torch.compile(self.model, mode=\"%s\")\n\n"
                        "    def forward(self, *a):\n"
                        "        return self.run(*a)\n",
                        p->code, mode);
}

/* torch.compile's code as answers, in a process of its own for all tasks and both modes. */
static enum status compile_process(struct proving *x, int process, struct err *e) {
    struct verify_options vo = judged_so(x->o);
    struct proof_wanted w = {0};
    if (!backend_info(vo.backend)->is_module) vo.backend = vo.backend == BACKEND_c ? BACKEND_torch_cpu : BACKEND_cuda;
    vo.allow_library = vo.trusted_compilers = true;
    vo.lint_strict = false;
    vo.compile_timeout_s = fmax(vo.compile_timeout_s, 120);
    vo.run_timeout_s = fmax(vo.run_timeout_s, 120);
    for (int t = 0; t < x->tasks->n; t++)
        for (int m = 0; m < PROOF_MODES && x->winner[t] >= 0 && process <= looked_at(x, t); m++)
            for (int k = 0; k < x->tasks->items[t].n_shapes; k++) {
                const struct problem *p = &x->tasks->items[t].shape[k];
                if (find(x, process, t, -1 - m, k)) continue;
                want_one(&w, (struct proof_row){.process = process, .task = t, .id = -1 - m, .shape = k}, p,
                         compiled_answer(&w.arena, p, modes[m]));
            }
    return measure(x, &w, &vo, e);
}

/* The winner against torch.compile, process by process: each has one of the winner and, apart, one of torch.compile. */
static void read_compiled(const struct proving *x, int task, struct proof *out) {
    const bool has_compile = x->where->torch[0] >= '2' && x->where->torch[0] <= '9';
    const int first = first_look(x), most = looked_at(x, task);
    for (int m = 0; m < PROOF_MODES; m++) {
        struct compiled_proof *c = &out->compile[m];
        struct process_ratios its, winners, over = {0};
        c->mode = modes[m];
        over_processes(x, task, -1 - m, most, &its);
        over_processes(x, task, out->winner, most, &winners);
        for (int i = 0; i < its.n && i < winners.n; i++)
            process_ratios_add(&over, exp(winners.log_ratio[i] - its.log_ratio[i]));
        if (over.n > 0) {
            c->measured = true;
            c->processes = over.n;
            c->ratio = process_ratios_bounds(&its, first);
            c->winner = process_ratios_bounds(&over, first);
            continue;
        }
        const struct verdict *v = find(x, 1, task, -1 - m, 0);
        if (!has_compile)
            snprintf(c->why, sizeof c->why, "PyTorch %s has no torch.compile", x->where->torch);
        else if (v)
            snprintf(c->why, sizeof c->why, "%s: %.150s", outcome_text(v->outcome), v->message);
        else
            snprintf(c->why, sizeof c->why, "%s", x->o->proof.compile ? "there was no time for it" : "not asked for");
    }
}

/* ---- the report ---------------------------------------------------------------------------------------------------*/

static double middle(double *v, int n) {
    if (n == 0) return 0;
    qsort(v, (size_t)n, sizeof *v, ascending_f64);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* Ratios shape by shape, and against the runner-up where both were measured in one process. */
static void read_details(const struct proving *x, int task, struct proof *out) {
    const struct search_task *t = &x->tasks->items[task];
    const int first = first_look(x), most = looked_at(x, task);
    CLEANUP_FREE double *eager = xcalloc((size_t)most + 1, sizeof *eager),
                        *kernel = xcalloc((size_t)most + 1, sizeof *kernel);
    struct process_ratios *shape = xcalloc(SHAPES_MAX, sizeof *shape), over = {0};
    int n = 0;
    for (int p = 1; p <= most; p++) {
        double log_over = 0;
        bool both = out->runner_up >= 0;
        for (int k = 0; k < t->n_shapes; k++) {
            const struct verdict *v = find(x, p, task, out->winner, k),
                                 *r = both ? find(x, p, task, out->runner_up, k) : NULL;
            const bool fine = v && v->outcome == OUTCOME_CORRECT && v->speedup > 0;
            if (fine) process_ratios_add(&shape[k], v->speedup);
            if (fine && k == 0) {
                eager[n] = v->eager_ms;
                kernel[n++] = v->kernel_ms;
            }
            both &= fine && r && r->outcome == OUTCOME_CORRECT && r->speedup > 0;
            if (both) log_over += t->weight[k] * log(v->speedup / r->speedup);
        }
        if (both) process_ratios_add(&over, exp(log_over));
    }
    for (int k = 0; k < t->n_shapes; k++) out->shape[k] = process_ratios_bounds(&shape[k], first);
    free(shape);
    out->over_runner_up = process_ratios_bounds(&over, first);
    out->eager_ms = middle(eager, n);
    out->kernel_ms = middle(kernel, n);
}

static void read_task(const struct proving *x, int task, struct proof *out) {
    struct process_ratios all;
    *out = (struct proof){.winner = x->winner[task], .runner_up = x->runner_up[task]};
    out->trials = judged_so(x->o).trials;
    for (int i = 0; i < x->n_finalists[task]; i++) out->refused += has_failed(x, task, x->finalist[task][i]);
    for (int m = 0; m < PROOF_MODES; m++) out->compile[m].mode = modes[m];
    if (out->winner < 0) return;
    over_processes(x, task, out->winner, looked_at(x, task), &all);
    out->timed = all.n > 0;
    out->processes = all.n;
    if (!out->timed) return;
    out->ratio = process_ratios_bounds(&all, first_look(x));
    out->enough = process_ratios_rank(all.n, first_look(x)) > 0;
    out->faster = out->enough && out->ratio.low > 1;
    read_details(x, task, out);
    read_compiled(x, task, out);
}

/* All measurements, as far as the time allows. A winner that fails in a reporting process is out, and the next one's
 * measurements begin. */
static enum status prove(struct proving *x, struct err *e) {
    const int n = x->tasks->n;
    for (int t = 0; t < n; t++) find_finalists(x, t);
    TRY(choosing_process(x, e));
    for (bool again = true; again;) {
        CLEANUP_FREE int *before = xcalloc((size_t)n + 1, sizeof *before);
        for (int t = 0; t < n; t++) choose(x, t);
        for (int t = 0; t < n; t++) before[t] = x->winner[t];
        for (int p = 1; p <= second_look(x); p++) TRY(reporting_process(x, p, e));
        again = false;
        for (int t = 0; t < n; t++) {
            choose(x, t);
            again |= x->winner[t] != before[t];
        }
    }
    const bool has_compile = x->where->torch[0] >= '2' && x->where->torch[0] <= '9';
    if (!x->o->proof.compile || !has_compile || !x->o->train.verify.measure) return ST_OK;
    for (int p = 1; p <= second_look(x) && p <= COMPILED_PROCESSES; p++) TRY(compile_process(x, p, e));
    return ST_OK;
}

enum status proof_run(const struct optimize_options *o, const struct tasks *t, int waves, const char *dir,
                      const volatile bool *cancel, struct proof *out, struct proof_environment *where, struct err *e) {
    struct time_limit *d = NULL;
    *where = (struct proof_environment){0};
    TRY(time_limit_start(cancel, proof_seconds(o), &d, e));
    struct proving x = {.o = o, .tasks = t, .waves = waves, .stop = time_limit_flag(d), .where = where};
    const size_t n = (size_t)t->n + 1;
    x.finalist = xcalloc(n, sizeof *x.finalist);
    x.n_finalists = xcalloc(n, sizeof *x.n_finalists);
    x.winner = xcalloc(n, sizeof *x.winner);
    x.runner_up = xcalloc(n, sizeof *x.runner_up);
    enum status st = open_rows(&x, dir, e);
    if (st == ST_OK) st = prove(&x, e);
    if (st == ST_CANCELLED && !(cancel && *cancel)) {
        log_warn("the proof has used up its time (proof_budget_s): intervals rest on what was measured by then");
        for (int i = 0; i < t->n; i++) choose(&x, i);
        st = ST_OK;
    }
    for (int i = 0; st == ST_OK && i < t->n; i++) read_task(&x, i, &out[i]);
    jsonl_append_close(x.file);
    time_limit_end(d);
    free(x.row);
    free(x.finalist);
    free(x.n_finalists);
    free(x.winner);
    free(x.runner_up);
    return st;
}
