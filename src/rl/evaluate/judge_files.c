#include "rl/evaluate/judge_files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/hash.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "io/json.h"
#include "io/jsonl.h"
#include "problem/problem.h"
#include "rl/evaluate/answer_reward.h"
#include "rl/evaluate/score.h"

/* Answers that are given to the judge at once: a verifier gets few, so that little is lost when it is stopped. */
enum { VERIFIER_CHUNK = 16, CHUNK = 1024 };
enum { MAX_KERNEL_BYTES = 4 << 20, MAX_OUTCOMES = 64, PATH_BYTES = 1200, NAME_BYTES = 80 };

struct judged_sample {
    int level, problem_id, sample_id;
    const struct problem *problem;
    char name[80];
    char *source;
    struct digest key;
    bool judged;
    struct verdict verdict;
    struct reward reward; /* with weights, and where the verdict is not missing */
};

struct folder {
    struct problem_set set;
    struct judged_sample *items; /* by level, problem and sample */
    size_t n;
    size_t passed_over; /* files of other levels or endings; one of them: */
    char other[80];
    size_t other_ending; /* files of a level that is wanted */
};

/* The samples of one level, or of all. */
struct part {
    const struct judged_sample *items;
    size_t n;
    int level; /* 0: all */
};

static void folder_free(struct folder *f) {
    for (size_t i = 0; i < f->n; i++) free(f->items[i].source);
    free(f->items);
    problem_set_free(&f->set);
}

static int by_ids(const void *a, const void *b) {
    const struct judged_sample *x = a, *y = b;
    if (x->level != y->level) return x->level < y->level ? -1 : 1;
    if (x->problem_id != y->problem_id) return x->problem_id < y->problem_id ? -1 : 1;
    return x->sample_id < y->sample_id ? -1 : x->sample_id > y->sample_id;
}

static const struct problem *by_id(const struct problem_set *s, int level, int id) {
    char key[40];
    snprintf(key, sizeof key, "%d/%d", level, id);
    return problem_find(s, key);
}

/* What a file of an answer may end with: KernelBench's .py, that of the backend, .cu where Python calls CUDA. Versions
 * before 0.2 called files of cuda_native .c, too. */
enum { ENDINGS = 3 };
static int endings_of(enum verify_backend b, const char *out[ENDINGS]) {
    const struct backend_info *info = backend_info(b);
    int n = 0;
    out[n++] = "py";
    out[n++] = info->is_module ? backend_info(BACKEND_cuda_native)->ending : info->ending;
    if (b == BACKEND_cuda_native) out[n++] = backend_info(BACKEND_c)->ending;
    return n;
}

static bool is_source(const char *ending, enum verify_backend b) {
    const char *known[ENDINGS];
    const int n = endings_of(b, known);
    for (int i = 0; i < n; i++)
        if (strcmp(ending, known[i]) == 0) return true;
    return false;
}

static bool is_wanted(const struct verify_run *r, int level) {
    for (int i = 0; i < r->n_levels; i++)
        if (r->level[i] == level) return true;
    return r->n_levels == 0;
}

/* Takes one file of the folder, if it is an answer's. */
static enum status folder_add(const struct verify_run *r, const char *name, struct folder *f, struct err *e) {
    int level, problem, sample, end = 0;
    char path[PATH_BYTES];
    if (sscanf(name, "level_%d_problem_%d_sample_%d_kernel.%n", &level, &problem, &sample, &end) != 3 || end == 0)
        return ST_OK;
    if (!is_wanted(r, level) || !is_source(name + end, r->o.backend)) {
        const bool ending = is_wanted(r, level);
        f->passed_over++;
        f->other_ending += ending;
        if (ending || f->other_ending == 0) snprintf(f->other, sizeof f->other, "%s", name);
        return ST_OK;
    }
    struct judged_sample *s = &f->items[f->n];
    s->level = level;
    s->problem_id = problem;
    s->sample_id = sample;
    snprintf(s->name, sizeof s->name, "%s", name);
    snprintf(path, sizeof path, "%s/%s", r->run_dir, name);
    s->problem = by_id(&f->set, level, problem);
    if (!s->problem) return FAIL(e, ST_INVALID, "%s: no problem %d/%d in the source of problems", path, level, problem);
    TRY(fs_read(path, MAX_KERNEL_BYTES, &s->source, NULL, e));
    s->key = verify_key(s->problem, s->source);
    f->n++;
    return ST_OK;
}

/* Refuses two files of one sample: each would count as a sample of its own. */
static enum status check_twice(const struct verify_run *r, const struct folder *f, struct err *e) {
    for (size_t i = 1; i < f->n; i++)
        if (by_ids(&f->items[i - 1], &f->items[i]) == 0)
            return FAIL(e, ST_INVALID, "%s: %s and %s are the same sample", r->run_dir, f->items[i - 1].name,
                        f->items[i].name);
    return ST_OK;
}

/* Says which files there are none of, and what there is instead. */
static enum status no_files(const struct verify_run *r, const struct folder *f, int level, struct err *e) {
    CLEANUP_STR struct str text = STR_INIT;
    const char *known[ENDINGS];
    const int n = endings_of(r->o.backend, known);
    str_adds(&text, "no files level_");
    if (level > 0)
        str_addf(&text, "%d", level);
    else
        str_addc(&text, 'L');
    str_adds(&text, "_problem_P_sample_S_kernel");
    for (int i = 0; i < n; i++) str_addf(&text, "%s.%s", i ? " or " : "", known[i]);
    if (f->passed_over > 0)
        str_addf(&text, "; %zu files have another level or ending (--level, --backend), such as %s", f->passed_over,
                 f->other);
    return FAIL(e, ST_INVALID, "%s: %s", r->run_dir, text.p);
}

static enum status check_levels(const struct verify_run *r, const struct folder *f, struct err *e) {
    for (int i = 0; i < r->n_levels; i++) {
        bool any = false;
        for (size_t k = 0; k < f->n && !any; k++) any = f->items[k].level == r->level[i];
        if (!any) return no_files(r, f, r->level[i], e);
    }
    return f->n > 0 ? ST_OK : no_files(r, f, 0, e);
}

static enum status folder_read(const struct verify_run *r, struct folder *f, struct err *e) {
    char **names;
    size_t n;
    TRY(problem_set_load(r->source, &f->set, e));
    TRY(fs_list(r->run_dir, &names, &n, e));
    f->items = xcalloc(n + 1, sizeof *f->items);
    enum status st = ST_OK;
    for (size_t i = 0; i < n; i++) {
        if (st == ST_OK) st = folder_add(r, names[i], f, e);
        free(names[i]);
    }
    free(names);
    qsort(f->items, f->n, sizeof *f->items, by_ids);
    if (st == ST_OK) st = check_levels(r, f, e);
    if (st == ST_OK) st = check_twice(r, f, e);
    if (st == ST_OK && f->other_ending > 0)
        log_warn("%s: %zu files have an ending that is none of backend %s, such as %s: not judged", r->run_dir,
                 f->other_ending, backend_name(r->o.backend), f->other);
    return st;
}

/* The samples from `begin` on that are of one level. */
static struct part part_at(const struct folder *f, size_t begin) {
    struct part x = {.items = f->items + begin, .level = f->items[begin].level};
    while (begin + x.n < f->n && x.items[x.n].level == x.level) x.n++;
    return x;
}

static bool has_levels(const struct folder *f) { return f->n > 0 && f->items[0].level != f->items[f->n - 1].level; }

/* NAME.json, or NAME_level_L.json where there are several levels. */
static void result_name(const struct folder *f, const char *name, int level, char out[80]) {
    if (has_levels(f))
        snprintf(out, 80, "%s_level_%d.json", name, level);
    else
        snprintf(out, 80, "%s.json", name);
}

/* ---- verdicts.jsonl ---- */

static enum status read_known(const struct verify_run *r, struct folder *f, const char *path, const char *settings,
                              struct err *e) {
    struct jsonl_reader *reader;
    CLEANUP_STR struct str before = STR_INIT;
    if (!fs_is_file(path)) return ST_OK;
    verify_identity_of_files_01(&r->o, &before);
    TRY(jsonl_open(path, 1 << 20, &reader, e));
    enum status st = ST_OK;
    const char *line;
    size_t len;
    while ((st = jsonl_next(reader, &line, &len, e)) == ST_OK && line) {
        CLEANUP_JSON json_t *o = json_loadb(line, len, 0, NULL);
        const char *answer = json_string_value(json_object_get(o, "answer")),
                   *name = json_string_value(json_object_get(o, "file")),
                   *how = json_string_value(json_object_get(o, "settings"));
        struct verdict v;
        struct err ignored;
        if (!answer || !name || !how || (strcmp(how, settings) != 0 && strcmp(how, str_c(&before)) != 0) ||
            verdict_from_json(json_object_get(o, "verdict"), path, &v, &ignored) != ST_OK)
            continue;
        for (size_t i = 0; i < f->n; i++)
            if (strcmp(f->items[i].name, name) == 0 &&
                verify_key_matches(answer, f->items[i].problem, f->items[i].source)) {
                f->items[i].verdict = v;
                f->items[i].judged = true;
            }
    }
    jsonl_close(reader);
    return st;
}

static enum status append_verdict(struct jsonl_writer *w, const struct judged_sample *s, const char *settings,
                                  struct err *e) {
    CLEANUP_STR struct str line = STR_INIT, verdict = STR_INIT;
    verdict_to_json(&s->verdict, &verdict);
    js_begin(&line, NULL, '{');
    js_put_str(&line, "file", s->name);
    js_put_str(&line, "problem", s->problem->key);
    js_put_i64(&line, "problem_id", s->problem_id);
    js_put_i64(&line, "sample_id", s->sample_id);
    js_put_str(&line, "answer", s->key.hex);
    js_put_str(&line, "settings", settings);
    str_adds(&line, ",\"verdict\":");
    str_adds(&line, str_c(&verdict));
    js_end(&line, '}');
    return jsonl_append(w, line.p, line.len, e);
}

/* ---- eval_results.json ---- */

/* Three significant digits, as KernelBench rounds. */
static double rounded(double x) {
    char text[40];
    double y = 0;
    snprintf(text, sizeof text, "%.3g", x);
    return parse_f64(text, &y) ? y : x;
}

static json_t *stats_json(const struct run_stats *s, const char *hardware, const char *device) {
    json_t *o = json_object();
    json_object_set_new(o, "mean", json_real(rounded(s->mean_ms)));
    json_object_set_new(o, "std", json_real(rounded(s->std_ms)));
    json_object_set_new(o, "min", json_real(rounded(s->min_ms)));
    json_object_set_new(o, "max", json_real(rounded(s->max_ms)));
    json_object_set_new(o, "num_trials", json_integer(s->calls));
    json_object_set_new(o, "hardware", json_string(hardware));
    json_object_set_new(o, "device", json_string(device));
    return o;
}

static json_t *entry_json(const struct judged_sample *s, const char *hardware, const char *device) {
    const struct verdict *v = &s->verdict;
    char class = outcome_class(v->outcome), trials[40];
    json_t *o = json_object(), *metadata = json_object();
    bool compiled = class != 'B' && class != 'F', timed = v->kernel.calls > 0;
    json_object_set_new(metadata, "hardware", json_string(hardware));
    json_object_set_new(metadata, "device", json_string(device));
    if (v->tests_total > 0) {
        snprintf(trials, sizeof trials, "(%d / %d)", v->tests_passed, v->tests_total);
        json_object_set_new(metadata, "correctness_trials", json_string(trials));
    }
    if (v->problem_flags[0]) json_object_set_new(metadata, "problem_flags", json_string(v->problem_flags));
    if (v->speedup > 10) json_object_set_new(metadata, "excessive_speedup", json_true());
    if (v->outcome != OUTCOME_CORRECT) {
        /* The outcome's name stands where KernelBench has the exception's. */
        const char *key = !compiled ? "compilation_error" : class == 'W' ? "correctness_issue" : "runtime_error";
        char name[60];
        snprintf(name, sizeof name, "%s_name", key);
        json_t *message = json_string(v->message);
        json_object_set_new(metadata, name, json_string(outcome_name(v->outcome)));
        json_object_set_new(metadata, key, message ? message : json_string(outcome_text(v->outcome)));
    }
    json_object_set_new(o, "sample_id", json_integer(s->sample_id));
    json_object_set_new(o, "compiled", json_boolean(compiled));
    json_object_set_new(o, "correctness", json_boolean(v->outcome == OUTCOME_CORRECT));
    json_object_set_new(o, "metadata", metadata);
    json_object_set_new(o, "runtime", json_real(timed ? rounded(v->kernel.mean_ms) : -1.0));
    json_object_set_new(o, "runtime_stats", timed ? stats_json(&v->kernel, hardware, device) : json_object());
    return o;
}

static enum status write_json(const char *dir, const char *name, const json_t *o, size_t indent, struct err *e) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    char *text = json_dumps(o, JSON_INDENT(indent) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));
    if (!text) return FAIL(e, ST_FAILED, "%s: cannot write as JSON", path);
    enum status st = fs_write_atomic(path, text, strlen(text), e);
    free(text);
    return st;
}

static enum status write_level(const struct verify_run *r, const struct folder *f, const struct part *x,
                               const char *hardware, const char *device, struct err *e) {
    CLEANUP_JSON json_t *all = json_object();
    char name[80];
    for (size_t i = 0; i < x->n; i++) {
        const struct judged_sample *s = &x->items[i];
        char id[20];
        if (!s->judged || outcome_class(s->verdict.outcome) == 'I') continue;
        snprintf(id, sizeof id, "%d", s->problem_id);
        json_t *list = json_object_get(all, id);
        if (!list) {
            list = json_array();
            json_object_set_new(all, id, list);
        }
        json_array_append_new(list, entry_json(s, hardware, device));
    }
    result_name(f, "eval_results", x->level, name);
    return write_json(r->run_dir, name, all, 4, e);
}

static enum status write_results(const struct verify_run *r, const struct folder *f, const char *hardware,
                                 const char *device, struct err *e) {
    for (size_t i = 0; i < f->n;) {
        const struct part x = part_at(f, i);
        TRY(write_level(r, f, &x, hardware, device, e));
        i += x.n;
    }
    return ST_OK;
}

static enum status write_pass_at_k(const struct verify_run *r, const struct folder *whole, const struct part *f,
                                   struct err *e) {
    CLEANUP_JSON json_t *all = json_object();
    char name[80];
    json_t *averages = json_object(), *metadata = json_object(), *problems = json_object();
    json_object_set_new(all, "averages", averages);
    json_object_set_new(all, "metadata", metadata);
    json_object_set_new(all, "problems", problems);
    double sums[ARRAY_LEN(r->pass_k)] = {0};
    int counts[ARRAY_LEN(r->pass_k)] = {0}, samples = 0, correct = 0, n_problems = 0;
    size_t most = 0;
    for (size_t i = 0; i < f->n;) {
        size_t k = i, n = 0, c = 0;
        for (; k < f->n && f->items[k].problem_id == f->items[i].problem_id; k++) {
            if (!f->items[k].judged || outcome_class(f->items[k].verdict.outcome) == 'I') continue;
            n++;
            c += f->items[k].verdict.outcome == OUTCOME_CORRECT;
        }
        char id[20], key[40];
        snprintf(id, sizeof id, "%d", f->items[i].problem_id);
        json_t *one = json_object();
        json_object_set_new(one, "total_samples", json_integer((json_int_t)n));
        json_object_set_new(one, "correct_samples", json_integer((json_int_t)c));
        for (int p = 0; p < r->n_pass_k; p++) {
            if (n < (size_t)r->pass_k[p]) continue;
            double value = score_pass_at_k(n, c, (size_t)r->pass_k[p]);
            snprintf(key, sizeof key, "pass@%d", r->pass_k[p]);
            json_object_set_new(one, key, json_real(value));
            sums[p] += value;
            counts[p]++;
        }
        json_object_set_new(problems, id, one);
        samples += (int)n;
        correct += (int)c;
        n_problems++;
        if (n > most) most = n;
        i = k;
    }
    for (int p = 0; p < r->n_pass_k; p++) {
        char key[40];
        snprintf(key, sizeof key, "avg_pass@%d", r->pass_k[p]);
        if (counts[p]) json_object_set_new(averages, key, json_real(sums[p] / counts[p]));
        snprintf(key, sizeof key, "pass@%d_count", r->pass_k[p]);
        json_object_set_new(metadata, key, json_integer(counts[p]));
    }
    json_object_set_new(metadata, "total_problems", json_integer(n_problems));
    json_object_set_new(metadata, "problems_with_samples", json_integer(n_problems));
    json_object_set_new(metadata, "total_evaluated_samples", json_integer(samples));
    json_object_set_new(metadata, "total_correct_samples", json_integer(correct));
    result_name(whole, "pass_at_k_results", f->level, name);
    return most > 1 ? write_json(r->run_dir, name, all, 2, e) : ST_OK;
}

/* ---- summary ---- */

static const double fast_ps[] = {0, 0.5, 0.8, 1, 1.5, 2};

/* Reads a baseline file: an object of levels, each of which is one of problems. */
static enum status read_times(const char *path, json_t **out, struct err *e) {
    const char *key;
    json_t *level;
    TRY(js_load(path, 64 << 20, out, e));
    if (!json_is_object(*out)) return FAIL(e, ST_PARSE, "%s: expected an object of levels", path);
    json_object_foreach(*out, key, level) {
        if (!json_is_object(level)) return FAIL(e, ST_PARSE, "%s: %s: expected an object of problems", path, key);
    }
    return ST_OK;
}

/* What the baseline has of a problem; NULL: nothing. Names in such files end in .py. */
static const json_t *baseline_of(const json_t *baseline, int level, const struct problem *p) {
    char key[220]; /* as in time_reference */
    snprintf(key, sizeof key, "level%d", level);
    const json_t *one = json_object_get(baseline, key);
    snprintf(key, sizeof key, "%s%s", p->name, str_has_suffix(p->name, ".py") ? "" : ".py");
    return json_object_get(one, key);
}

/* Every problem with an answer needs its line: without one a ratio would be 0, and its answer slow. Null stands where
 * the reference did not run. */
static enum status check_baseline(const struct verify_run *r, const struct folder *f, const json_t *baseline,
                                  struct err *e) {
    for (size_t i = 0; i < f->n; i++) {
        const struct judged_sample *s = &f->items[i];
        const json_t *one = baseline_of(baseline, s->level, s->problem);
        if (json_is_null(one)) {
            if (i == 0 || f->items[i - 1].problem != s->problem)
                log_warn("%s: level%d, %s has no time: its answers have ratio 0", r->baseline, s->level,
                         s->problem->name);
        } else if (!(json_number_value(json_object_get(one, "mean")) > 0)) {
            return FAIL(e, ST_INVALID, "%s: no time of level%d, %s", r->baseline, s->level, s->problem->name);
        }
    }
    return ST_OK;
}

/* The numbers of a score table. */
struct score_table {
    size_t n, missing, compiled, correct, outcomes[MAX_OUTCOMES];
    double fast_p[ARRAY_LEN(fast_ps)], geomean, reward; /* geomean NaN: nothing was timed; reward: the mean */
};

/* Ratios are taken to the baseline, if there is one. */
static struct score_table table_of(const struct part *x, const json_t *baseline) {
    struct score_table t = {0};
    CLEANUP_FREE struct scored *s = xcalloc(x->n + 1, sizeof *s);
    for (size_t i = 0; i < x->n; i++) {
        const struct judged_sample *one = &x->items[i];
        const struct verdict *v = &one->verdict;
        const char class = outcome_class(v->outcome);
        if (one->judged) t.outcomes[v->outcome]++;
        if (!one->judged || class == 'I') {
            t.missing++;
            continue;
        }
        t.compiled += class != 'B' && class != 'F';
        s[t.n].correct = v->outcome == OUTCOME_CORRECT;
        t.correct += s[t.n].correct;
        s[t.n].speedup = v->speedup;
        if (baseline && v->kernel.calls > 0)
            s[t.n].speedup =
                json_number_value(json_object_get(baseline_of(baseline, one->level, one->problem), "mean")) /
                v->kernel.mean_ms;
        t.reward += one->reward.total;
        t.n++;
    }
    t.geomean = score_geomean(s, t.n);
    for (size_t i = 0; i < ARRAY_LEN(fast_ps); i++)
        t.fast_p[i] = isnan(t.geomean) ? (double)NAN : score_fast_p(s, t.n, fast_ps[i]);
    if (t.n > 0) t.reward /= (double)t.n;
    return t;
}

static double share(size_t n, size_t of) { return of ? (double)n / (double)of : 0; }

static void print_table(const struct verify_run *r, const struct score_table *t) {
    printf("answers    %zu judged, %zu without a verdict\n", t->n, t->missing);
    printf("compiled   %zu (%.1f %%)\ncorrect    %zu (%.1f %%)\n", t->compiled, 100 * share(t->compiled, t->n),
           t->correct, 100 * share(t->correct, t->n));
    if (isnan(t->geomean)) {
        printf("speed      no correct answer was timed\n");
    } else {
        printf("fast_p    ");
        for (size_t i = 0; i < ARRAY_LEN(fast_ps); i++) printf(" %g: %.3f", fast_ps[i], t->fast_p[i]);
        printf("\ngeomean    %.3f of the %s, over correct answers\n", t->geomean,
               r->baseline ? "baseline file" : "eager times measured beside them");
    }
    if (r->weights && t->n > 0) printf("reward     %.4f on average\n", t->reward);
    for (size_t o = 0; o < ARRAY_LEN(t->outcomes); o++)
        if (t->outcomes[o]) printf("  %-20s %zu\n", outcome_name((enum outcome)o), t->outcomes[o]);
}

static void put_table(const struct verify_run *r, const char *key, int level, const struct score_table *t,
                      struct str *out) {
    js_begin(out, key, '{');
    if (level >= 0) js_put_i64(out, "level", level);
    js_put_i64(out, "answers", (int64_t)t->n);
    js_put_i64(out, "missing", (int64_t)t->missing);
    js_put_i64(out, "compiled", (int64_t)t->compiled);
    js_put_i64(out, "correct", (int64_t)t->correct);
    js_put_f64(out, "compile_rate", t->n ? share(t->compiled, t->n) : (double)NAN);
    js_put_f64(out, "correct_rate", t->n ? share(t->correct, t->n) : (double)NAN);
    js_begin(out, "fast_p", '{');
    for (size_t i = 0; i < ARRAY_LEN(fast_ps); i++) {
        char p[20];
        snprintf(p, sizeof p, "%g", fast_ps[i]);
        js_put_f64(out, p, t->fast_p[i]);
    }
    js_end(out, '}');
    js_put_f64(out, "geomean_speedup", t->geomean);
    if (r->weights) js_put_f64(out, "mean_reward", t->n ? t->reward : (double)NAN);
    js_begin(out, "outcomes", '{');
    for (size_t o = 0; o < ARRAY_LEN(t->outcomes); o++)
        if (t->outcomes[o]) js_put_i64(out, outcome_name((enum outcome)o), (int64_t)t->outcomes[o]);
    js_end(out, '}');
    js_end(out, '}');
}

/* An answer as `verify --json` prints one, with the names of its file and problem in front. */
static void put_sample(const struct verify_run *r, const struct judged_sample *s, struct str *out) {
    CLEANUP_STR struct str verdict = STR_INIT;
    struct episode ep = {.verdict = s->verdict, .reward = s->reward};
    ep.present = outcome_class(s->verdict.outcome) != 'I';
    js_begin(out, NULL, '{');
    js_put_str(out, "file", s->name);
    js_put_str(out, "problem", s->problem->key);
    js_put_i64(out, "level", s->level);
    js_put_i64(out, "problem_id", s->problem_id);
    js_put_i64(out, "sample_id", s->sample_id);
    verdict_to_json(&s->verdict, &verdict);
    str_addc(out, ',');
    str_add(out, verdict.p + 1, verdict.len - 2); /* its members */
    rollout_read_file(s->source, &ep);
    answer_put(&ep, r->weights != NULL, out);
    free(ep.kernel);
    js_end(out, '}');
}

/* The tables: of each level where there are several, then of all. */
static void summarise(const struct verify_run *r, const struct folder *f, const json_t *baseline) {
    if (r->json) {
        js_begin(r->json, NULL, '{');
        js_begin(r->json, "answers", '[');
        for (size_t i = 0; i < f->n; i++) put_sample(r, &f->items[i], r->json);
        js_end(r->json, ']');
        js_begin(r->json, "levels", '[');
    }
    for (size_t i = 0; i < f->n;) {
        const struct part x = part_at(f, i);
        const struct score_table t = table_of(&x, baseline);
        i += x.n;
        if (r->json) put_table(r, NULL, x.level, &t, r->json);
        if (r->json || !has_levels(f)) continue;
        printf("\nlevel %d\n", x.level);
        print_table(r, &t);
    }
    const struct part all = {.items = f->items, .n = f->n};
    const struct score_table t = table_of(&all, baseline);
    if (r->json) {
        js_end(r->json, ']');
        put_table(r, "overall", -1, &t, r->json);
        js_end(r->json, '}');
        return;
    }
    if (has_levels(f)) printf("\nall levels\n");
    print_table(r, &t);
}

/* ---- the two commands ---- */

/* Refuses, before anything is judged, weights of what a file does not say: how many tokens the answer had. */
static enum status check_weights(const struct verify_run *r, struct err *e) {
    return r->weights ? answer_weights_check(&r->weights->weights, answer_of_file, e) : ST_OK;
}

/* What a run would pay for a sample that has a verdict. */
static enum status give_reward(const struct verify_run *r, struct judged_sample *s, struct err *e) {
    if (!r->weights || !s->judged) return ST_OK;
    struct episode ep = {.verdict = s->verdict};
    rollout_read_file(s->source, &ep);
    const enum status st = answer_reward(r->weights, answer_of_file, s->name, &ep, e);
    s->reward = ep.reward;
    free(ep.kernel);
    return st;
}

static void print_judged(const struct verify_run *r, const struct judged_sample *s) {
    const struct verdict *v = &s->verdict;
    const bool missing = outcome_class(v->outcome) == 'I';
    CLEANUP_STR struct str line = STR_INIT;
    str_addf(&line, "%-48s %-20s", s->name, outcome_name(v->outcome));
    if (v->speedup > 0) str_addf(&line, " %6.2fx %10.4f ms", v->speedup, v->kernel_ms);
    if (r->weights && !missing) str_addf(&line, " reward %.4f", s->reward.total);
    if (missing) str_addf(&line, " %.300s", v->message);
    fprintf(r->json ? stderr : stdout, "%s\n", line.p);
}

/* Where verdicts of a folder go. */
struct folder_judging {
    const struct verify_run *r;
    struct folder *f;
    struct jsonl_writer *w;
    const char *settings;
    struct judged_sample *which[CHUNK]; /* beside the items of a chunk */
    struct verify_item items[CHUNK];
    enum status st; /* of keeping verdicts of a stream */
    struct err err;
};

/* Keeps, scores and prints one verdict. */
static enum status take_verdict(struct folder_judging *x, struct judged_sample *s, const struct verdict *v,
                                struct err *e) {
    s->verdict = *v;
    s->judged = true;
    if (outcome_class(v->outcome) != 'I') TRY(append_verdict(x->w, s, x->settings, e));
    TRY(give_reward(x->r, s, e));
    print_judged(x->r, s);
    return ST_OK;
}

/* A verdict of a stream, in the order in which they come. */
static void take_from_stream(void *ctx, struct verify_item *item) {
    struct folder_judging *x = ctx;
    if (x->st == ST_OK) x->st = take_verdict(x, x->which[item - x->items], &item->verdict, &x->err);
    fflush(stdout);
}

static enum status judge_chunk(struct folder_judging *x, const struct judge *judge, size_t m, struct err *e) {
    TRY(judge->batch(judge->ctx, x->items, m, interrupt_flag(), e));
    if (x->st != ST_OK) {
        *e = x->err;
        return x->st;
    }
    for (size_t k = 0; k < m && !judge->stream; k++) TRY(take_verdict(x, x->which[k], &x->items[k].verdict, e));
    fflush(stdout);
    return jsonl_sync(x->w, e);
}

static enum status judge_folder(struct folder_judging *x, const struct judge *judge, struct err *e) {
    struct folder *f = x->f;
    char hardware[160], device[40];
    const size_t chunk = judge->stream ? CHUNK : VERIFIER_CHUNK;
    for (size_t i = 0; i < f->n;) {
        size_t m = 0;
        while (i < f->n && m < chunk) {
            struct judged_sample *s = &f->items[i++];
            if (s->judged) continue;
            x->which[m] = s;
            x->items[m] = (struct verify_item){.problem = s->problem, .source = s->source};
            if (judge->stream) {
                x->items[m].judged = take_from_stream;
                x->items[m].judged_ctx = x;
            }
            m++;
        }
        if (m == 0) continue;
        TRY(judge_chunk(x, judge, m, e));
        judge->hardware(judge->ctx, hardware, sizeof hardware, device, sizeof device);
        TRY(write_results(x->r, f, hardware, device, e));
    }
    judge->hardware(judge->ctx, hardware, sizeof hardware, device, sizeof device);
    return write_results(x->r, f, hardware, device, e);
}

enum status verify_run_dir(const struct verify_run *r, struct err *e) {
    struct folder f = {0};
    struct judge_owner v = {0};
    struct jsonl_writer *w = NULL;
    struct folder_judging *judging = NULL;
    CLEANUP_JSON json_t *baseline = NULL;
    CLEANUP_STR struct str identity = STR_INIT;
    char path[PATH_BYTES];
    enum status st;
    if (strlen(r->run_dir) + 1 + NAME_BYTES > PATH_BYTES)
        return FAIL(e, ST_USAGE, "--run-dir: expected a path of at most %d bytes", PATH_BYTES - NAME_BYTES - 1);
    TRY(check_weights(r, e));
    snprintf(path, sizeof path, "%s/verdicts.jsonl", r->run_dir);
    TRY_GOTO(folder_read(r, &f, e), done);
    if (r->baseline) {
        TRY_GOTO(read_times(r->baseline, &baseline, e), done);
        TRY_GOTO(check_baseline(r, &f, baseline, e), done);
    }
    TRY_GOTO(judge_open(&r->pool, &r->o, interrupt_flag(), &v, e), done);
    judge_identity(&v.judge, &r->o, &identity);
    TRY_GOTO(read_known(r, &f, path, str_c(&identity), e), done);
    for (size_t i = 0; i < f.n; i++) TRY_GOTO(give_reward(r, &f.items[i], e), done);
    TRY_GOTO(jsonl_append_open(path, &w, NULL, e), done);
    judging = xcalloc(1, sizeof *judging);
    *judging = (struct folder_judging){.r = r, .f = &f, .w = w, .settings = str_c(&identity)};
    TRY_GOTO(judge_folder(judging, &v.judge, e), done);
    for (size_t i = 0; i < f.n;) {
        const struct part x = part_at(&f, i);
        TRY_GOTO(write_pass_at_k(r, &f, &x, e), done);
        i += x.n;
    }
    summarise(r, &f, baseline);
done:
    judge_close(&v);
    free(judging);
    jsonl_append_close(w);
    folder_free(&f);
    return st;
}

/* The reference as an answer: what it takes there is the baseline. */
static char *reference_answer(const struct problem *p, const char *mode) {
    struct str s = STR_INIT;
    str_adds(&s, p->code);
    if (!mode)
        str_adds(&s, "\nModelNew = Model\n");
    else
        str_addf(&s,
                 "\nclass ModelNew(torch.nn.Module):\n"
                 "    def __init__(self, *a, **k):\n"
                 "        super().__init__()\n"
                 "        self.model = Model(*a, **k)\n"
                 "        self.run = torch.compile(self.model%s%s%s)\n\n"
                 "    def forward(self, *a):\n"
                 "        return self.run(*a)\n",
                 strcmp(mode, "default") ? ", mode=\"" : "", strcmp(mode, "default") ? mode : "",
                 strcmp(mode, "default") ? "\"" : "");
    return str_steal(&s);
}

/* The times of a level in a baseline file; they are there from here on. */
static json_t *times_of(json_t *all, int level) {
    char key[20];
    snprintf(key, sizeof key, "level%d", level);
    json_t *mine = json_object_get(all, key);
    if (mine) return mine;
    mine = json_object();
    json_object_set_new(all, key, mine);
    return mine;
}

static enum status check_sources_levels(const struct verify_run *r, const struct problem_set *set, struct err *e) {
    for (int i = 0; i < r->n_levels; i++) {
        bool any = false;
        for (size_t k = 0; k < set->count && !any; k++) any = set->items[k].level == r->level[i];
        if (!any)
            return FAIL(e, ST_INVALID, "--level: no problem of level %d in %s", r->level[i],
                        r->source ? r->source : "the default source");
    }
    return ST_OK;
}

/* Times one reference and writes the file. */
static enum status time_reference(const struct verify_run *r, const struct judge *v, const struct problem *p,
                                  json_t *all, struct err *e) {
    char name[220], hardware[160], device[40];
    json_t *mine = times_of(all, p->level);
    snprintf(name, sizeof name, "%s%s", p->name, str_has_suffix(p->name, ".py") ? "" : ".py");
    if (json_object_get(json_object_get(mine, name), "mean")) return ST_OK; /* of an interrupted run */
    v->hardware(v->ctx, hardware, sizeof hardware, device, sizeof device);
    CLEANUP_FREE char *source = reference_answer(p, r->compile);
    struct verify_item it = {.problem = p, .source = source};
    TRY(v->batch(v->ctx, &it, 1, interrupt_flag(), e));
    /* Null where the reference does not run, as KernelBench has it. */
    const bool timed = it.verdict.kernel.calls > 0;
    json_object_set_new(mine, name, timed ? stats_json(&it.verdict.kernel, hardware, device) : json_null());
    printf("%-60s %s", name, timed ? "" : outcome_name(it.verdict.outcome));
    if (timed) printf("%10.4f ms", it.verdict.kernel.mean_ms);
    printf("%s%.200s\n", timed ? "" : ": ", timed ? "" : it.verdict.message);
    fflush(stdout);
    CLEANUP_FREE char *text = json_dumps(all, JSON_INDENT(4) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));
    return fs_write_atomic(r->out, text, strlen(text), e);
}

enum status verify_baseline(const struct verify_run *r, struct err *e) {
    struct problem_set set = {0};
    struct judge_owner v = {0};
    CLEANUP_JSON json_t *all = NULL;
    struct verify_options o = r->o;
    enum status st;
    if (!backend_info(o.backend)->is_module)
        return FAIL(e, ST_USAGE, "--backend: expected one whose answers are modules, such as torch_cpu, got %s",
                    backend_name(o.backend));
    o.measure = true;
    o.allow_library = true;
    o.scoring = SCORING_COMPAT;
    o.trials = 1;
    TRY_GOTO(problem_set_load(r->source, &set, e), done);
    TRY_GOTO(check_sources_levels(r, &set, e), done);
    if (fs_is_file(r->out))
        TRY_GOTO(read_times(r->out, &all, e), done);
    else
        all = json_object();
    TRY_GOTO(judge_open(&r->pool, &o, interrupt_flag(), &v, e), done);
    for (size_t i = 0; i < set.count; i++)
        if (is_wanted(r, set.items[i].level)) TRY_GOTO(time_reference(r, &v.judge, &set.items[i], all, e), done);
done:
    judge_close(&v);
    problem_set_free(&set);
    return st;
}
