#include "rl/evaluate/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"

enum { SHOWN_KERNEL_CHARS = 500, MAX_REPORT_BYTES = 1 << 30 };

/* ---- JSON ---------------------------------------------------------------------------------------------------------*/

static void put_interval(struct str *s, const char *name, struct rate_interval v) {
    if (isnan(v.mean)) {
        js_put_null(s, name);
        return;
    }
    js_begin(s, name, '{');
    js_put_f64(s, "mean", v.mean);
    js_put_f64(s, "low", v.low);
    js_put_f64(s, "high", v.high);
    js_end(s, '}');
}

static void put_config(const struct report_config *c, struct str *s) {
    js_begin(s, "config", '{');
    js_put_str(s, "checkpoint_path", c->checkpoint_path);
    js_put_str(s, "model_name", c->model_name);
    js_put_i64(s, "level", c->level);
    js_put_str(s, "backend", c->backend);
    js_put_i64(s, "num_samples", c->num_samples);
    js_put_i64(s, "turns", c->turns);
    js_put_f64(s, "temperature", c->temperature);
    js_put_str(s, "problems", c->problems);
    js_put_str(s, "device", c->device);
    js_end(s, '}');
}

/* The first seven are what earlier evaluators called so: of the best sample of each problem. */
static void put_metrics(const struct summary *m, struct str *s) {
    int correct = 0, compiled = 0, timed = 0, judged = 0;
    double speed = 0;
    for (int i = 0; i < m->n_problems; i++) {
        const struct problem_summary *p = &m->items[i];
        judged += p->n > 0;
        correct += p->correct > 0;
        compiled += p->compiled > 0;
        timed += p->best > 0;
        speed += p->best;
    }
    js_begin(s, "metrics", '{');
    js_put_i64(s, "num_problems", m->n_problems);
    js_put_i64(s, "num_correct", correct);
    js_put_i64(s, "num_compiled", compiled);
    js_put_f64(s, "correct_rate", judged ? (double)correct / judged : (double)NAN);
    js_put_f64(s, "compile_rate", judged ? (double)compiled / judged : (double)NAN);
    js_put_f64(s, "mean_speedup", timed ? speed / timed : (double)NAN);
    js_put_i64(s, "num_with_speedup", timed);
    js_put_i64(s, "num_samples", m->samples);
    js_put_i64(s, "missing", m->missing);
    js_put_f64(s, "mean_tokens", m->samples ? (double)m->tokens / (double)m->samples : (double)NAN);
    js_end(s, '}');
    js_begin(s, "intervals", '{');
    put_interval(s, "sample_parse_rate", m->parsed);
    put_interval(s, "sample_compile_rate", m->compiled);
    put_interval(s, "sample_correct_rate", m->correct);
    put_interval(s, "sample_cheat_rate", m->cheats);
    put_interval(s, "solved_rate", m->solved);
    char name[40];
    for (int k = 0; k < PASS_K; k++) {
        snprintf(name, sizeof name, "pass@%d", pass_k[k]);
        put_interval(s, name, m->pass[k]);
    }
    for (int k = 0; k < FAST_P; k++) {
        snprintf(name, sizeof name, "fast_%g", fast_p[k]);
        put_interval(s, name, m->fast[k]);
        snprintf(name, sizeof name, "best_fast_%g", fast_p[k]);
        put_interval(s, name, m->best_fast[k]);
    }
    put_interval(s, "geomean_speedup", m->geomean);
    put_interval(s, "best_geomean_speedup", m->best_geomean);
    put_interval(s, "best_mean_speedup", m->best_mean);
    put_interval(s, "best_median_speedup", m->best_median);
    js_end(s, '}');
}

static void put_sample(const struct eval_sample *x, struct str *s) {
    const struct verdict *v = &x->verdict;
    CLEANUP_STR struct str code = STR_INIT;
    const size_t n = x->kernel ? strlen(x->kernel) : 0;
    str_add(&code, x->kernel ? x->kernel : "", n < SHOWN_KERNEL_CHARS ? n : SHOWN_KERNEL_CHARS);
    if (n > SHOWN_KERNEL_CHARS) str_adds(&code, "...");
    js_begin(s, NULL, '{');
    js_put_i64(s, "sample_id", x->sample);
    js_put_i64(s, "turn", x->turn);
    js_put_str(s, "kernel_code", str_c(&code));
    js_put_bool(s, "format_ok", x->format_ok);
    js_put_str(s, "outcome", x->present ? outcome_name(v->outcome) : NULL);
    js_put_bool(s, "compiled", x->present && outcome_stage(v->outcome) >= STAGE_COMPILE);
    js_put_bool(s, "correct", x->present && v->outcome == OUTCOME_CORRECT);
    js_put_i64(s, "tests_passed", v->tests_passed);
    js_put_i64(s, "tests_total", v->tests_total);
    js_put_f64(s, "speedup", v->speedup > 0 ? v->speedup : (double)NAN);
    js_put_f64(s, "runtime_ms", v->kernel_ms > 0 ? v->kernel_ms : (double)NAN);
    js_put_f64(s, "reference_ms", v->eager_ms > 0 ? v->eager_ms : (double)NAN);
    js_put_str(s, "message", v->message);
    js_end(s, '}');
}

static void put_result(const struct eval_samples *samples, int i, const struct problem_summary *p, struct str *s) {
    js_begin(s, NULL, '{');
    js_put_i64(s, "level", p->level);
    js_put_i64(s, "problem_id", p->problem_id);
    js_put_str(s, "problem", p->key);
    js_begin(s, "counts", '{');
    js_put_i64(s, "n", p->n);
    js_put_i64(s, "parsed", p->parsed);
    js_put_i64(s, "compiled", p->compiled);
    js_put_i64(s, "correct", p->correct);
    js_put_i64(s, "cheats", p->cheats);
    js_begin(s, "faster", '[');
    for (int k = 0; k < FAST_P; k++) js_put_i64(s, NULL, p->faster[k]);
    js_end(s, ']');
    js_put_i64(s, "timed", p->timed);
    js_put_f64(s, "log_speedup", p->log_speedup);
    js_end(s, '}');
    js_begin(s, "samples", '[');
    for (int64_t k = 0; k < samples->n; k++)
        if (samples->items[k].problem == i) put_sample(&samples->items[k], s);
    js_end(s, ']');
    js_put_i64(s, "best_sample", p->best_sample);
    js_put_bool(s, "best_correct", p->correct > 0);
    js_put_bool(s, "best_compiled", p->compiled > 0);
    js_put_f64(s, "best_speedup", p->best > 0 ? p->best : (double)NAN);
    js_end(s, '}');
}

void report_json(const struct report_config *c, const struct eval_samples *samples, const struct summary *m,
                 struct str *out) {
    CLEANUP_STR struct str s = STR_INIT;
    struct err e;
    json_t *j = NULL;
    js_begin(&s, NULL, '{');
    put_config(c, &s);
    put_metrics(m, &s);
    js_begin(&s, "results", '[');
    for (int i = 0; i < m->n_problems; i++) put_result(samples, i, &m->items[i], &s);
    js_end(&s, ']');
    js_end(&s, '}');
    const enum status st = js_parse(s.p, s.len, "report", &j, &e);
    ASSERT(st == ST_OK); /* this file wrote it */
    CLEANUP_FREE char *text = json_dumps(j, JSON_INDENT(4));
    str_adds(out, text);
    str_addc(out, '\n');
    json_decref(j);
}

static enum status load_result(const json_t *row, const char *where, struct arena *a, struct problem_summary *p,
                               struct err *e) {
    json_t *counts, *faster;
    const char *key;
    int64_t level, id, n[6];
    static const char *const names[] = {"n", "parsed", "compiled", "correct", "cheats", "timed"};
    TRY(js_get_str(row, where, "problem", &key, e));
    TRY(js_get_i64(row, where, "level", &level, e));
    TRY(js_get_i64(row, where, "problem_id", &id, e));
    TRY(js_get_object(row, where, "counts", &counts, e));
    for (size_t k = 0; k < ARRAY_LEN(names); k++) {
        TRY(js_get_i64(counts, where, names[k], &n[k], e));
        if (n[k] < 0 || n[k] > n[0])
            return FAIL(e, ST_PARSE, "%s: %s: %s: %lld of %lld samples", where, key, names[k], (long long)n[k],
                        (long long)n[0]);
    }
    *p = (struct problem_summary){.key = arena_strdup(a, key),
                                  .name = "",
                                  .level = (int)level,
                                  .problem_id = (int)id,
                                  .n = (int)n[0],
                                  .parsed = (int)n[1],
                                  .compiled = (int)n[2],
                                  .correct = (int)n[3],
                                  .cheats = (int)n[4],
                                  .timed = (int)n[5]};
    TRY(js_get_f64(counts, where, "log_speedup", &p->log_speedup, e));
    TRY(js_opt_f64(row, where, "best_speedup", &p->best, e));
    TRY(js_get_array(counts, where, "faster", &faster, e));
    if (json_array_size(faster) != FAST_P)
        return FAIL(e, ST_PARSE, "%s: %s: faster: expected %d numbers", where, key, FAST_P);
    for (int k = 0; k < FAST_P; k++) p->faster[k] = (int)json_integer_value(json_array_get(faster, (size_t)k));
    return ST_OK;
}

enum status report_load(const char *path, struct arena *a, struct summary *out, struct err *e) {
    CLEANUP_JSON json_t *j = NULL;
    json_t *results, *metrics;
    int64_t samples, missing;
    *out = (struct summary){0};
    TRY(js_load(path, MAX_REPORT_BYTES, &j, e));
    TRY(js_get_array(j, path, "results", &results, e));
    TRY(js_get_object(j, path, "metrics", &metrics, e));
    if (!json_object_get(metrics, "num_samples"))
        return FAIL(e, ST_PARSE, "%s: metrics.num_samples is missing: not a report of kernelrl eval", path);
    TRY(js_get_i64(metrics, path, "num_samples", &samples, e));
    TRY(js_get_i64(metrics, path, "missing", &missing, e));
    const size_t n = json_array_size(results);
    struct problem_summary *items = xcalloc(n + 1, sizeof *items);
    for (size_t i = 0; i < n; i++) {
        const enum status st = load_result(json_array_get(results, i), path, a, &items[i], e);
        if (st == ST_OK) continue;
        free(items);
        return st;
    }
    summary_of(items, (int)n, out);
    out->samples = samples;
    out->missing = (int)missing;
    return ST_OK;
}

/* ---- text ---------------------------------------------------------------------------------------------------------*/

static void rate_line(struct str *s, const char *name, struct rate_interval v) {
    if (isnan(v.mean)) return;
    str_addf(s, "  %-18s %5.1f%%  [%5.1f, %5.1f]\n", name, 100 * v.mean, 100 * v.low, 100 * v.high);
}
static void speed_line(struct str *s, const char *name, struct rate_interval v) {
    if (isnan(v.mean)) return;
    str_addf(s, "  %-18s %5.2fx  [%5.2f, %5.2f]\n", name, v.mean, v.low, v.high);
}

void report_text(const struct summary *m, struct str *s) {
    char name[40];
    str_addf(s, "%d problems, %lld samples (%.0f tokens each, %d without a verdict)\n", m->n_problems,
             (long long)m->samples, m->samples ? (double)m->tokens / (double)m->samples : 0.0, m->missing);
    rate_line(s, "parse", m->parsed);
    rate_line(s, "compile", m->compiled);
    rate_line(s, "correct", m->correct);
    rate_line(s, "cheat", m->cheats);
    for (int k = 1; k < FAST_P; k++) {
        snprintf(name, sizeof name, "fast_%g", fast_p[k]);
        rate_line(s, name, m->fast[k]);
    }
    for (int k = 0; k < PASS_K; k++) {
        snprintf(name, sizeof name, "pass@%d", pass_k[k]);
        rate_line(s, name, m->pass[k]);
    }
    speed_line(s, "speed-up", m->geomean);
    if (isnan(m->geomean.mean)) str_adds(s, "  speed-up           no correct answer was timed\n");
    if (m->samples > m->n_problems) {
        rate_line(s, "best: fast_1", m->best_fast[3]);
        speed_line(s, "best: speed-up", m->best_geomean);
        speed_line(s, "best: median", m->best_median);
    }
}

static void rate_row(struct str *s, const char *name, struct rate_interval v) {
    if (!isnan(v.mean))
        str_addf(s, "| %s | %.1f %% | %.1f to %.1f %% |\n", name, 100 * v.mean, 100 * v.low, 100 * v.high);
}
static void speed_row(struct str *s, const char *name, struct rate_interval v) {
    if (!isnan(v.mean)) str_addf(s, "| %s | %.2fx | %.2f to %.2fx |\n", name, v.mean, v.low, v.high);
}

static int by_level_and_id(const void *a, const void *b) {
    const struct problem_summary *x = *(struct problem_summary *const *)a, *y = *(struct problem_summary *const *)b;
    const int by_level = (x->level > y->level) - (x->level < y->level),
              by_id = (x->problem_id > y->problem_id) - (x->problem_id < y->problem_id);
    return by_level ? by_level : by_id ? by_id : strcmp(x->key, y->key);
}

void report_markdown(const struct report_config *c, const struct summary *m, const char *figure, struct str *s) {
    char name[60];
    str_addf(s, "# Evaluation of %s\n\n", *c->checkpoint_path ? c->checkpoint_path : c->model_name);
    str_addf(s, "Model %s, backend %s, problems: %s", c->model_name, c->backend, c->problems);
    if (c->level > 0) str_addf(s, ", level %d", c->level);
    str_addf(s, ". %d problems, %d samples each at temperature %g", m->n_problems, c->num_samples, c->temperature);
    if (c->turns > 1) str_addf(s, ", up to %d turns, of which the best counts", c->turns);
    if (isnan(m->geomean.mean))
        str_addf(s, ". Judged on: %s; no correct answer was timed.\n\n", c->device);
    else
        str_addf(s, ". Timed on: %s.\n\n", c->device);
    if (m->missing) str_addf(s, "%d samples have no verdict and do not count.\n\n", m->missing);
    str_adds(s, "Means over problems, with 95 % bootstrap intervals over problems.\n\n"
                "| | | 95 % interval |\n|---|---|---|\n");
    rate_row(s, "parse", m->parsed);
    rate_row(s, "compile", m->compiled);
    rate_row(s, "correct", m->correct);
    rate_row(s, "cheat", m->cheats);
    for (int k = 0; k < FAST_P; k++) {
        snprintf(name, sizeof name, "fast_%g (correct, and over %gx of PyTorch)", fast_p[k], fast_p[k]);
        rate_row(s, name, m->fast[k]);
    }
    for (int k = 0; k < PASS_K; k++) {
        snprintf(name, sizeof name, "pass@%d", pass_k[k]);
        rate_row(s, name, m->pass[k]);
    }
    rate_row(s, "problems solved by a sample", m->solved);
    rate_row(s, "best sample of a problem faster than PyTorch", m->best_fast[3]);
    speed_row(s, "speed-up, geometric mean over correct samples", m->geomean);
    speed_row(s, "best sample, geometric mean", m->best_geomean);
    speed_row(s, "best sample, mean", m->best_mean);
    speed_row(s, "best sample, median", m->best_median);
    if (figure) str_addf(s, "\n![fast_p and best speed-ups](%s)\n", figure);
    str_adds(s, "\n| problem | samples | compile | correct | faster | best speed-up |\n|---|---|---|---|---|---|\n");
    CLEANUP_FREE const struct problem_summary **row = xmalloc(((size_t)m->n_problems + 1) * sizeof *row);
    for (int i = 0; i < m->n_problems; i++) row[i] = &m->items[i];
    qsort(row, (size_t)m->n_problems, sizeof *row, by_level_and_id);
    for (int i = 0; i < m->n_problems; i++) {
        const struct problem_summary *p = row[i];
        str_addf(s, "| %s | %d | %d | %d | %d | ", p->key, p->n, p->compiled, p->correct, p->faster[3]);
        if (p->best > 0)
            str_addf(s, "%.2fx |\n", p->best);
        else
            str_adds(s, "- |\n");
    }
}

static void comparison_row(const struct difference *d, bool markdown, struct str *s) {
    const bool ratio = strcmp(d->name, "speed-up") == 0;
    const double f = ratio ? 1 : 100;
    const double v[5] = {f * d->a.mean, f * d->b.mean, f * d->change.mean, f * d->change.low, f * d->change.high};
    if (markdown && ratio)
        str_addf(s, "| %s where both solve | %.2fx | %.2fx | x %.2f | %.2f to %.2f | %.3g | %d |\n", d->name, v[0],
                 v[1], v[2], v[3], v[4], d->p, d->n);
    else if (markdown)
        str_addf(s, "| %s | %.1f %% | %.1f %% | %+.1f | %+.1f to %+.1f | %.3g | %d |\n", d->name, v[0], v[1], v[2],
                 v[3], v[4], d->p, d->n);
    else if (ratio)
        str_addf(s, "%-10s %7.2fx %7.2fx  x %6.2f  [%6.2f, %6.2f]   %7.3g  (%d problems)\n", d->name, v[0], v[1], v[2],
                 v[3], v[4], d->p, d->n);
    else
        str_addf(s, "%-10s %7.1f%% %7.1f%%  %+8.1f  [%+6.1f, %+6.1f]   %7.3g  (%d problems)\n", d->name, v[0], v[1],
                 v[2], v[3], v[4], d->p, d->n);
}

void report_comparison(const struct comparison *c, const char *a, const char *b, bool markdown, struct str *s) {
    if (markdown)
        str_addf(s, "| | %s | %s | change | 95 %% interval | p | problems |\n|---|---|---|---|---|---|---|\n", a, b);
    else
        str_addf(s,
                 "A: %s\nB: %s\n%d problems in common (%d only in A, %d only in B)\n"
                 "%-10s %8s %8s  %8s  %-16s   %7s\n",
                 a, b, c->n_common, c->only_a, c->only_b, "", "A", "B", "change", "95 % interval", "p");
    for (int i = 0; i < DIFFERENCES; i++)
        if (!isnan(c->item[i].change.mean)) comparison_row(&c->item[i], markdown, s);
}

void report_comparison_json(const struct comparison *c, struct str *s) {
    js_begin(s, NULL, '{');
    js_put_i64(s, "common", c->n_common);
    js_put_i64(s, "only_a", c->only_a);
    js_put_i64(s, "only_b", c->only_b);
    js_begin(s, "differences", '{');
    for (int i = 0; i < DIFFERENCES; i++) {
        const struct difference *d = &c->item[i];
        js_begin(s, d->name, '{');
        put_interval(s, "a", d->a);
        put_interval(s, "b", d->b);
        put_interval(s, "change", d->change);
        js_put_f64(s, "p", d->p);
        js_put_i64(s, "problems", d->n);
        js_end(s, '}');
    }
    js_end(s, '}');
    js_end(s, '}');
}

/* ---- pictures -----------------------------------------------------------------------------------------------------*/

enum { PANEL_W = 380, PANEL_H = 240, MARGIN = 46, GAP = 70 };
static const char *const colors[2] = {"#1f6fb4", "#d1662b"};

struct panel {
    double x, y;           /* of its lower left corner */
    double x0, x1, y0, y1; /* values at its edges */
    bool log_y;
};
static double px(const struct panel *p, double v) { return p->x + (v - p->x0) / (p->x1 - p->x0) * PANEL_W; }
static double py(const struct panel *p, double v) {
    const double at = p->log_y ? (log(v) - log(p->y0)) / (log(p->y1) - log(p->y0)) : (v - p->y0) / (p->y1 - p->y0);
    return p->y - fmin(1, fmax(0, at)) * PANEL_H;
}

static void draw_text(struct str *s, double x, double y, const char *anchor, const char *text) {
    str_addf(s, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    for (; *text; text++)
        if (*text == '<')
            str_adds(s, "&lt;");
        else if (*text == '&')
            str_adds(s, "&amp;");
        else
            str_addc(s, *text);
    str_adds(s, "</text>\n");
}
static void draw_frame(struct str *s, const struct panel *p, const char *title) {
    str_addf(s, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#999\"/>\n", p->x,
             p->y - PANEL_H, PANEL_W, PANEL_H);
    draw_text(s, p->x, p->y - PANEL_H - 10, "start", title);
}
static void draw_y_tick(struct str *s, const struct panel *p, double v, const char *label) {
    str_addf(s, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", p->x, py(p, v),
             p->x + PANEL_W, py(p, v));
    draw_text(s, p->x - 6, py(p, v) + 4, "end", label);
}

static void draw_fast_p(struct str *s, const struct panel *p, const struct summary *const *sums, int n) {
    char label[20];
    draw_frame(s, p, "share of samples correct and faster than p (fast_p)");
    for (int k = 0; k <= 100; k += 25) {
        snprintf(label, sizeof label, "%d %%", k);
        draw_y_tick(s, p, k / 100.0, label);
    }
    for (int k = 0; k < FAST_P; k++) {
        snprintf(label, sizeof label, "%g", fast_p[k]);
        draw_text(s, px(p, fast_p[k]), p->y + 16, "middle", label);
    }
    for (int i = 0; i < n; i++) {
        const struct summary *m = sums[i];
        if (isnan(m->fast[0].mean)) continue;
        if (isnan(m->fast[FAST_P - 1].mean)) {
            str_addf(s, "<g fill=\"%s\">", colors[i]);
            draw_text(s, p->x + PANEL_W / 2.0, p->y - PANEL_H / 2.0 + 16 * i, "middle", "no correct answer was timed");
            str_adds(s, "</g>\n");
            continue;
        }
        str_addf(s, "<polygon fill=\"%s\" fill-opacity=\"0.15\" points=\"", colors[i]);
        for (int k = 0; k < FAST_P; k++) str_addf(s, "%.1f,%.1f ", px(p, fast_p[k]), py(p, m->fast[k].high));
        for (int k = FAST_P - 1; k >= 0; k--) str_addf(s, "%.1f,%.1f ", px(p, fast_p[k]), py(p, m->fast[k].low));
        str_addf(s, "\"/>\n<polyline class=\"fast_p\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"",
                 colors[i]);
        for (int k = 0; k < FAST_P; k++) str_addf(s, "%.1f,%.1f ", px(p, fast_p[k]), py(p, m->fast[k].mean));
        str_adds(s, "\"/>\n");
    }
}

static int falling(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

static void draw_best(struct str *s, struct panel *p, const struct summary *const *sums, int n) {
    char label[20];
    int most = 1;
    double high = 2, low = 0.5;
    for (int i = 0; i < n; i++) {
        most = sums[i]->n_problems > most ? sums[i]->n_problems : most;
        for (int k = 0; k < sums[i]->n_problems; k++) {
            const double v = sums[i]->items[k].best;
            if (v > 0) {
                high = fmax(high, v);
                low = fmin(low, v);
            }
        }
    }
    *p = (struct panel){p->x, p->y, 0, most, pow(2, floor(log2(low))), pow(2, ceil(log2(high))), true};
    draw_frame(s, p, "best speed-up of each problem over PyTorch, in falling order");
    const double step = pow(2, ceil(log2(p->y1 / p->y0) / 6));
    for (double v = p->y0; v <= p->y1 * 1.001; v *= step) {
        snprintf(label, sizeof label, "%gx", v);
        draw_y_tick(s, p, v, label);
    }
    str_addf(s, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#555\" stroke-dasharray=\"4 3\"/>\n",
             p->x, py(p, 1), p->x + PANEL_W, py(p, 1));
    snprintf(label, sizeof label, "%d", most);
    draw_text(s, p->x, p->y + 16, "middle", "0");
    draw_text(s, p->x + PANEL_W, p->y + 16, "middle", label);
    draw_text(s, p->x + PANEL_W / 2.0, p->y + 16, "middle", "problems");
    for (int i = 0; i < n; i++) {
        CLEANUP_FREE double *v = xmalloc(((size_t)sums[i]->n_problems + 1) * sizeof *v);
        int used = 0;
        for (int k = 0; k < sums[i]->n_problems; k++)
            if (sums[i]->items[k].best > 0) v[used++] = sums[i]->items[k].best;
        qsort(v, (size_t)used, sizeof *v, falling);
        str_addf(s, "<polyline class=\"best\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", colors[i]);
        for (int k = 0; k < used; k++)
            str_addf(s, "%.1f,%.1f %.1f,%.1f ", px(p, k), py(p, v[k]), px(p, k + 1), py(p, v[k]));
        str_adds(s, "\"/>\n");
    }
}

void report_svg(const char *const *names, const struct summary *const *sums, int n, struct str *s) {
    const int width = 2 * PANEL_W + 2 * MARGIN + GAP, height = PANEL_H + 100;
    struct panel left = {MARGIN, PANEL_H + 36, 0, 2, 0, 1, false},
                 right = {MARGIN + PANEL_W + GAP, PANEL_H + 36, 0, 1, 0, 1, true};
    ASSERT(n == 1 || n == 2);
    str_addf(s,
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
             "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n",
             width, height, width, height, width, height);
    draw_fast_p(s, &left, sums, n);
    draw_best(s, &right, sums, n);
    for (int i = 0; i < n; i++) {
        const double y = PANEL_H + 72 + 16.0 * i;
        str_addf(s, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"3\"/>\n", MARGIN,
                 y - 4, MARGIN + 24, y - 4, colors[i]);
        draw_text(s, MARGIN + 32, y, "start", names[i]);
    }
    str_adds(s, "</svg>\n");
}
