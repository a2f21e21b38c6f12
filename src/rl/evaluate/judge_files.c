#include "rl/evaluate/judge_files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/hash.h"
#include "base/interrupt.h"
#include "io/json.h"
#include "io/jsonl.h"
#include "problem/problem.h"
#include "rl/evaluate/score.h"

enum { CHUNK = 16, MAX_KERNEL_BYTES = 4 << 20 };

struct judged_sample {
    int problem_id, sample_id;
    const struct problem *problem;
    char name[80];
    char *source;
    struct digest key;
    bool judged;
    struct verdict verdict;
};

struct folder {
    struct problem_set set;
    struct judged_sample *items;
    size_t n;
};

static void folder_free(struct folder *f) {
    for (size_t i = 0; i < f->n; i++) free(f->items[i].source);
    free(f->items);
    problem_set_free(&f->set);
}

static int by_ids(const void *a, const void *b) {
    const struct judged_sample *x = a, *y = b;
    if (x->problem_id != y->problem_id) return x->problem_id < y->problem_id ? -1 : 1;
    return x->sample_id < y->sample_id ? -1 : x->sample_id > y->sample_id;
}

static const struct problem *by_id(const struct problem_set *s, int level, int id) {
    char key[40];
    snprintf(key, sizeof key, "%d/%d", level, id);
    return problem_find(s, key);
}

/* Of a backend's answers that are no modules; of others' CUDA. */
static const char *native_ending(enum verify_backend b) {
    return backend_info(b)->is_module ? backend_info(BACKEND_cuda_native)->ending : backend_info(b)->ending;
}

/* What an answer's file may end with: KernelBench's .py, and what its language calls for. */
static bool is_source(const char *ending, enum verify_backend backend) {
    return strcmp(ending, "py") == 0 || strcmp(ending, native_ending(backend)) == 0;
}

static enum status folder_read(const struct verify_run *r, struct folder *f, struct err *e) {
    char **names, path[1200];
    size_t n;
    TRY(problem_set_load(r->source, &f->set, e));
    TRY(fs_list(r->run_dir, &names, &n, e));
    f->items = xcalloc(n + 1, sizeof *f->items);
    enum status st = ST_OK;
    for (size_t i = 0; i < n; i++) {
        int level, problem, sample, end = 0;
        if (st == ST_OK &&
            sscanf(names[i], "level_%d_problem_%d_sample_%d_kernel.%n", &level, &problem, &sample, &end) == 3 &&
            end > 0 && level == r->level && is_source(names[i] + end, r->o.backend)) {
            struct judged_sample *s = &f->items[f->n];
            s->problem_id = problem;
            s->sample_id = sample;
            snprintf(s->name, sizeof s->name, "%s", names[i]);
            snprintf(path, sizeof path, "%s/%s", r->run_dir, names[i]);
            s->problem = by_id(&f->set, level, problem);
            if (!s->problem)
                st = FAIL(e, ST_INVALID, "%s: no problem %d/%d in the source of problems", path, level, problem);
            else if ((st = fs_read(path, MAX_KERNEL_BYTES, &s->source, NULL, e)) == ST_OK) {
                s->key = verify_key(s->problem, s->source);
                f->n++;
            }
        }
        free(names[i]);
    }
    free(names);
    if (st == ST_OK && f->n == 0)
        st = FAIL(e, ST_INVALID, "%s: no files level_%d_problem_P_sample_S_kernel.py (or .%s)", r->run_dir, r->level,
                  native_ending(r->o.backend));
    qsort(f->items, f->n, sizeof *f->items, by_ids);
    return st;
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
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    char *text = json_dumps(o, JSON_INDENT(indent) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));
    if (!text) return FAIL(e, ST_FAILED, "%s: cannot write as JSON", path);
    enum status st = fs_write_atomic(path, text, strlen(text), e);
    free(text);
    return st;
}

static enum status write_results(const struct verify_run *r, const struct folder *f, const char *hardware,
                                 const char *device, struct err *e) {
    CLEANUP_JSON json_t *all = json_object();
    for (size_t i = 0; i < f->n; i++) {
        const struct judged_sample *s = &f->items[i];
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
    return write_json(r->run_dir, "eval_results.json", all, 4, e);
}

static enum status write_pass_at_k(const struct verify_run *r, const struct folder *f, struct err *e) {
    CLEANUP_JSON json_t *all = json_object();
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
    return most > 1 ? write_json(r->run_dir, "pass_at_k_results.json", all, 2, e) : ST_OK;
}

/* ---- summary ---- */

/* The baseline's mean for a problem in ms; 0: unknown. Names in such files end in .py. */
static double baseline_ms(const json_t *baseline, int level, const struct problem *p) {
    char key[200];
    snprintf(key, sizeof key, "level%d", level);
    const json_t *one = json_object_get(baseline, key);
    snprintf(key, sizeof key, "%s%s", p->name, str_has_suffix(p->name, ".py") ? "" : ".py");
    return json_number_value(json_object_get(json_object_get(one, key), "mean"));
}

static enum status summarise(const struct verify_run *r, const struct folder *f, struct err *e) {
    static const double ps[] = {0, 0.5, 0.8, 1, 1.5, 2};
    CLEANUP_JSON json_t *baseline = NULL;
    if (r->baseline) TRY(js_load(r->baseline, 64 << 20, &baseline, e));
    CLEANUP_FREE struct scored *s = xcalloc(f->n + 1, sizeof *s);
    size_t n = 0, compiled = 0, correct = 0, missing = 0, outcomes[64] = {0};
    for (size_t i = 0; i < f->n; i++) {
        const struct verdict *v = &f->items[i].verdict;
        char class = outcome_class(v->outcome);
        if (f->items[i].judged) outcomes[v->outcome]++;
        if (!f->items[i].judged || class == 'I') {
            missing++;
            continue;
        }
        compiled += class != 'B' && class != 'F';
        s[n].correct = v->outcome == OUTCOME_CORRECT;
        correct += s[n].correct;
        s[n].speedup = v->speedup;
        if (baseline && v->kernel.calls > 0)
            s[n].speedup = baseline_ms(baseline, r->level, f->items[i].problem) / v->kernel.mean_ms;
        n++;
    }
    printf("answers    %zu judged, %zu without a verdict\n", n, missing);
    printf("compiled   %zu (%.1f %%)\ncorrect    %zu (%.1f %%)\n", compiled,
           n ? 100. * (double)compiled / (double)n : 0, correct, n ? 100. * (double)correct / (double)n : 0);
    const double geomean = score_geomean(s, n);
    if (isnan(geomean)) {
        printf("speed      no correct answer was timed\n");
    } else {
        printf("fast_p    ");
        for (size_t i = 0; i < ARRAY_LEN(ps); i++) printf(" %g: %.3f", ps[i], score_fast_p(s, n, ps[i]));
        printf("\ngeomean    %.3f of the %s, over correct answers\n", geomean,
               baseline ? "baseline file" : "eager times measured beside them");
    }
    for (size_t o = 0; o < ARRAY_LEN(outcomes); o++)
        if (outcomes[o]) printf("  %-20s %zu\n", outcome_name((enum outcome)o), outcomes[o]);
    return ST_OK;
}

/* ---- the two commands ---- */

static enum status judge_folder(const struct verify_run *r, struct folder *f, struct verifier *v,
                                struct jsonl_writer *w, const char *settings, struct err *e) {
    struct verify_item items[CHUNK];
    struct judged_sample *which[CHUNK];
    char hardware[160], device[40];
    verifier_hardware(v, hardware, sizeof hardware, device, sizeof device);
    for (size_t i = 0; i < f->n;) {
        size_t m = 0;
        while (i < f->n && m < CHUNK) {
            struct judged_sample *s = &f->items[i++];
            if (s->judged) continue;
            which[m] = s;
            items[m++] = (struct verify_item){.problem = s->problem, .source = s->source};
        }
        if (m == 0) continue;
        TRY(verify_batch(v, items, m, interrupt_flag(), e));
        for (size_t k = 0; k < m; k++) {
            which[k]->verdict = items[k].verdict;
            which[k]->judged = true;
            printf("%-48s %-20s", which[k]->name, outcome_name(items[k].verdict.outcome));
            if (items[k].verdict.speedup > 0)
                printf(" %6.2fx %10.4f ms", items[k].verdict.speedup, items[k].verdict.kernel_ms);
            if (outcome_class(items[k].verdict.outcome) == 'I') printf(" %.300s", items[k].verdict.message);
            printf("\n");
            if (outcome_class(items[k].verdict.outcome) != 'I') TRY(append_verdict(w, which[k], settings, e));
        }
        fflush(stdout);
        TRY(jsonl_sync(w, e));
        TRY(write_results(r, f, hardware, device, e));
    }
    return write_results(r, f, hardware, device, e);
}

enum status verify_run_dir(const struct verify_run *r, struct err *e) {
    struct folder f = {0};
    struct verifier *v = NULL;
    struct jsonl_writer *w = NULL;
    CLEANUP_STR struct str identity = STR_INIT;
    char path[1200];
    enum status st;
    verify_identity(&r->o, &identity);
    snprintf(path, sizeof path, "%s/verdicts.jsonl", r->run_dir);
    TRY_GOTO(folder_read(r, &f, e), done);
    TRY_GOTO(read_known(r, &f, path, str_c(&identity), e), done);
    TRY_GOTO(jsonl_append_open(path, &w, NULL, e), done);
    TRY_GOTO(verifier_open(&r->o, &v, e), done);
    TRY_GOTO(judge_folder(r, &f, v, w, str_c(&identity), e), done);
    TRY_GOTO(write_pass_at_k(r, &f, e), done);
    st = summarise(r, &f, e);
done:
    verifier_close(v);
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

enum status verify_baseline(const struct verify_run *r, struct err *e) {
    struct problem_set set = {0};
    struct verifier *v = NULL;
    CLEANUP_JSON json_t *all = NULL;
    char hardware[160], device[40], level[20];
    struct verify_options o = r->o;
    enum status st;
    o.allow_library = true;
    o.scoring = SCORING_COMPAT;
    o.trials = 1;
    TRY_GOTO(problem_set_load(r->source, &set, e), done);
    if (fs_is_file(r->out))
        TRY_GOTO(js_load(r->out, 64 << 20, &all, e), done);
    else
        all = json_object();
    snprintf(level, sizeof level, "level%d", r->level);
    json_t *mine = json_object_get(all, level);
    if (!mine) {
        mine = json_object();
        json_object_set_new(all, level, mine);
    }
    TRY_GOTO(verifier_open(&o, &v, e), done);
    verifier_hardware(v, hardware, sizeof hardware, device, sizeof device);
    for (size_t i = 0; i < set.count; i++) {
        const struct problem *p = &set.items[i];
        char name[220];
        if (p->level != r->level) continue;
        snprintf(name, sizeof name, "%s%s", p->name, str_has_suffix(p->name, ".py") ? "" : ".py");
        if (json_object_get(json_object_get(mine, name), "mean")) continue; /* of an interrupted run */
        CLEANUP_FREE char *source = reference_answer(p, r->compile);
        struct verify_item it = {.problem = p, .source = source};
        TRY_GOTO(verify_batch(v, &it, 1, interrupt_flag(), e), done);
        /* Null where the reference does not run, as KernelBench has it. */
        bool timed = it.verdict.kernel.calls > 0;
        json_object_set_new(mine, name, timed ? stats_json(&it.verdict.kernel, hardware, device) : json_null());
        printf("%-60s %s", name, timed ? "" : outcome_name(it.verdict.outcome));
        if (timed) printf("%10.4f ms", it.verdict.kernel.mean_ms);
        printf("%s%.200s\n", timed ? "" : ": ", timed ? "" : it.verdict.message);
        fflush(stdout);
        char *text = json_dumps(all, JSON_INDENT(4) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));
        st = fs_write_atomic(r->out, text, strlen(text), e);
        free(text);
        if (st != ST_OK) goto done;
    }
done:
    verifier_close(v);
    problem_set_free(&set);
    return st;
}
