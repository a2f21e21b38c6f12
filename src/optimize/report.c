#include "optimize/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "io/json.h"
#include "optimize/arms.h"
#include "optimize/dropin.h"
#include "page/page.h"
#include "rl/evaluate/score.h"

enum { ROWS_MAX = 600 };

void report_folder(const struct report *r, int task, struct str *out) {
    const char *folder = r->tasks->items[task].folder;
    str_addf(out, "%s%s%s", r->dir, *folder ? "/" : "", folder);
}

static const struct backend_info *backend_of(const struct report *r) {
    return backend_info(r->o->train.verify.backend);
}

/* "2.10x [2.05, 2.15]"; of one process "2.10x". */
static void add_bounds(struct str *out, const struct bounds *b, int digits) {
    str_addf(out, "%.*fx", digits, b->ratio);
    if (!isnan(b->low)) str_addf(out, " [%.*f, %.*f]", digits, b->low, digits, b->high);
}

void report_line(const struct report *r, int task, struct str *out) {
    const struct search_task *t = &r->tasks->items[task];
    const struct proof *p = &r->proof[task];
    str_addf(out, "%s: ", t->key);
    if (t->trouble)
        str_addf(out, "the problem itself fails: %.200s", t->trouble);
    else if (p->winner < 0)
        str_addf(out, "no correct answer in %lld verdicts", (long long)t->spent);
    else if (!p->timed)
        str_addf(out, "answer %d is correct; it was not timed", p->winner);
    else {
        str_addf(out, "answer %d takes %.4g ms where PyTorch takes %.4g: ", p->winner, p->kernel_ms, p->eager_ms);
        add_bounds(out, &p->ratio, 2);
        str_adds(out, p->faster           ? ""
                      : !p->enough        ? ", not shown to be faster: too few processes measured it"
                      : p->ratio.high < 1 ? ", slower than PyTorch: the best correct answer all the same"
                                          : ", not shown to be faster");
    }
}

/* The command that judges the answer once more. */
static void reproduce(const struct report *r, int task, struct str *out) {
    CLEANUP_STR struct str folder = STR_INIT;
    report_folder(r, task, &folder);
    str_addf(out, "kernelrl verify --problem %s/problem.py --solution %s/%s --backend %s", folder.p, folder.p,
             dropin_answer_name(backend_of(r)), backend_of(r)->name);
}

/* ---- JSON ---------------------------------------------------------------------------------------------------------*/

static void put_bounds(struct str *out, const char *key, const struct bounds *b) {
    js_begin(out, key, '{');
    js_put_f64(out, "ratio", b->ratio);
    js_put_f64(out, "low", b->low);
    js_put_f64(out, "high", b->high);
    js_end(out, '}');
}

static void put_shapes(const struct search_task *t, const struct proof *p, struct str *out) {
    js_begin(out, "shapes", '[');
    for (int k = 0; k < t->n_shapes; k++) {
        js_begin(out, NULL, '{');
        js_put_str(out, "shape", t->label[k]);
        js_put_f64(out, "weight", t->weight[k]);
        if (p->timed) put_bounds(out, "speedup", &p->shape[k]);
        js_end(out, '}');
    }
    js_end(out, ']');
}

static void put_compiled(const struct proof *p, struct str *out) {
    js_begin(out, "torch_compile", '[');
    for (int m = 0; m < PROOF_MODES; m++) {
        const struct compiled_proof *c = &p->compile[m];
        js_begin(out, NULL, '{');
        js_put_str(out, "mode", c->mode);
        js_put_bool(out, "measured", c->measured);
        if (c->measured) {
            js_put_i64(out, "processes", c->processes);
            put_bounds(out, "speedup", &c->ratio);
            put_bounds(out, "winner_over_it", &c->winner);
        } else {
            js_put_str(out, "why", c->why);
        }
        js_end(out, '}');
    }
    js_end(out, ']');
}

static void put_environment(const struct report *r, struct str *out) {
    js_begin(out, "environment", '{');
    js_put_str(out, "hardware", r->where->hardware);
    js_put_str(out, "device", r->where->device);
    js_put_str(out, "torch", r->where->torch);
    js_put_str(out, "kernelrl", KERNELRL_VERSION);
    js_put_i64(out, "threads", r->o->train.threads);
    js_end(out, '}');
}

static void put_task(const struct report *r, int task, struct str *out) {
    const struct search_task *t = &r->tasks->items[task];
    const struct proof *p = &r->proof[task];
    CLEANUP_STR struct str command = STR_INIT;
    js_put_str(out, "task", t->key);
    js_put_str(out, "module", t->module);
    js_put_str(out, "backend", backend_of(r)->name);
    js_put_bool(out, "correct", p->winner >= 0);
    if (t->trouble) js_put_str(out, "trouble", t->trouble);
    js_put_bool(out, "faster", p->faster); /* shown to be */
    js_put_i64(out, "verdicts", t->spent);
    js_put_i64(out, "answers", t->sampled);
    if (p->winner < 0) return;
    js_put_i64(out, "winner", p->winner);
    if (p->timed) {
        put_bounds(out, "speedup", &p->ratio);
        js_put_f64(out, "eager_ms", p->eager_ms);
        js_put_f64(out, "kernel_ms", p->kernel_ms);
        js_put_i64(out, "processes", p->processes);
        if (p->runner_up >= 0) {
            js_put_i64(out, "runner_up", p->runner_up);
            put_bounds(out, "over_runner_up", &p->over_runner_up);
        }
        if (t->limits.known) js_put_f64(out, "roofline_share", limits_share(&t->limits, p->kernel_ms));
        put_compiled(p, out);
    }
    js_put_i64(out, "trials", p->trials);
    js_put_i64(out, "refused_finalists", p->refused);
    put_shapes(t, p, out);
    reproduce(r, task, &command);
    js_put_str(out, "reproduce", command.p);
}

/* ---- Markdown -----------------------------------------------------------------------------------------------------*/

static void md_bounds(struct str *md, const char *what, const struct bounds *b) {
    str_addf(md, "| %s | ", what);
    add_bounds(md, b, 3);
    str_adds(md, " |\n");
}

static void md_compiled(const struct proof *p, struct str *md) {
    for (int m = 0; m < PROOF_MODES; m++) {
        const struct compiled_proof *c = &p->compile[m];
        if (c->measured) {
            char what[80];
            snprintf(what, sizeof what, "torch.compile (%s) over the winner, %d process%s", c->mode, c->processes,
                     c->processes == 1 ? "" : "es");
            md_bounds(md, what, &c->winner);
        } else {
            str_addf(md, "| torch.compile (%s) | not measured: %s |\n", c->mode, c->why);
        }
    }
}

static void md_proof(const struct report *r, int task, struct str *md) {
    const struct search_task *t = &r->tasks->items[task];
    const struct proof *p = &r->proof[task];
    char what[200];
    if (p->winner < 0 || !p->timed) return;
    str_addf(md,
             "\n## Proof\n\nMeasured behind the search in %d fresh processes, with %d trials on inputs of several "
             "families each; the winner was chosen by other measurements. Intervals: 95 %%, with a process as one "
             "observation.%s\n\n| | |\n|---|---|\n",
             p->processes, p->trials, p->enough ? "" : " So few processes show nothing.");
    md_bounds(md, "PyTorch eager over the winner", &p->ratio);
    for (int k = 0; k < t->n_shapes && t->n_shapes > 1; k++) {
        snprintf(what, sizeof what, "with %.150s", t->label[k]);
        md_bounds(md, what, &p->shape[k]);
    }
    if (p->runner_up >= 0) {
        snprintf(what, sizeof what, "the runner-up (answer %d) over the winner", p->runner_up);
        md_bounds(md, what, &p->over_runner_up);
    }
    md_compiled(p, md);
    str_addf(md, "| time | %.4g ms, PyTorch %.4g ms |\n", p->kernel_ms, p->eager_ms);
    if (t->limits.known)
        str_addf(md, "| share of what the machine allows | %.0f %% |\n", 100 * limits_share(&t->limits, p->kernel_ms));
    str_addf(md, "| finalists that failed when they were judged again | %d |\n", p->refused);
}

static void md_lineage(const struct report *r, int task, struct str *md) {
    const struct population *p = &r->tasks->items[task].found;
    int id = r->proof[task].winner;
    if (id < 0) return;
    str_adds(
        md,
        "\n## Where the winner comes from\n\n| answer | came from | prompt | speed when found | verdicts by then |\n"
        "|---:|---|---|---:|---:|\n");
    for (int steps = 0; id >= 0 && steps < 50; steps++) {
        const struct search_candidate *c = &p->c[id];
        str_addf(md, "| %d | ", id);
        for (int i = 0; i < c->n_parents; i++) str_addf(md, "%s%d", i ? ", " : "", c->parent[i]);
        str_addf(md, "%s | %s | ", c->n_parents ? "" : "nobody", arm_text(c->arm));
        if (c->estimate.n > 0) str_addf(md, "%.2fx", candidate_speed(c));
        str_addf(md, " | %lld |\n", (long long)c->spent);
        id = c->n_parents > 0 ? c->parent[0] : -1;
    }
    str_adds(md, "\nAll answers are in [lineage.html](lineage.html).\n");
}

static void md_task(const struct report *r, int task, struct str *md) {
    const struct search_task *t = &r->tasks->items[task];
    CLEANUP_STR struct str line = STR_INIT, command = STR_INIT;
    report_line(r, task, &line);
    str_addf(md, "# %s\n\n%s.\n\n%lld verdicts of %lld answers; the whole search: %lld verdicts in %.0f s.\n", t->key,
             line.p, (long long)t->spent, (long long)t->sampled, (long long)r->state->spent, r->state->elapsed_s);
    str_addf(md, "%s, %s, PyTorch %s, kernelrl " KERNELRL_VERSION ".\n", r->where->hardware, r->where->device,
             r->where->torch);
    md_proof(r, task, md);
    md_lineage(r, task, md);
    if (r->proof[task].winner < 0) return;
    reproduce(r, task, &command);
    str_addf(
        md,
        "\n## To use it\n\n```python\nimport best\nbest.patch(model)\n```\n\n`best.py` is in this folder, with the "
        "answer as it was judged beside it (`%s`). To judge it again:\n\n```sh\n%s\n```\n",
        dropin_answer_name(backend_of(r)), command.p);
}

/* ---- HTML ---------------------------------------------------------------------------------------------------------*/

/* Best so far against verdicts and against seconds; what was not timed is left out. */
static void html_charts(const struct search_task *t, struct str *out) {
    const struct population *p = &t->found;
    double *x = xcalloc((size_t)p->n + 1, sizeof *x), *s = xcalloc((size_t)p->n + 1, sizeof *s),
           *y = xcalloc((size_t)p->n + 1, sizeof *y);
    int n = 0;
    double best = 0;
    for (int i = 0; i < p->n; i++) {
        if (p->c[i].estimate.n == 0 || p->c[i].same_as >= 0 || candidate_speed(&p->c[i]) <= best) continue;
        best = candidate_speed(&p->c[i]);
        x[n] = (double)p->c[i].spent;
        s[n] = p->c[i].at_s;
        y[n++] = best;
    }
    const struct page_series by_verdicts = {"best", x, y, n}, by_seconds = {"best", s, y, n};
    if (n > 0) {
        str_adds(out, "<h2>Best so far</h2>\n");
        page_draw(out, &(struct page_chart){"best speed against verdicts", "verdicts", "times PyTorch's speed",
                                            &by_verdicts, 1, 1, true});
        page_draw(out, &(struct page_chart){"best speed against seconds", "seconds of the search",
                                            "times PyTorch's speed", &by_seconds, 1, 1, true});
    }
    free(x);
    free(s);
    free(y);
}

static void html_arms(const struct report *r, int task, struct str *out) {
    static const char *const columns[] = {"prompt", "answers", "new", "correct", "best", "mean pay-off"};
    const struct search_task *t = &r->tasks->items[task];
    struct arms arms;
    arms_count(r->tasks, task, &arms);
    str_adds(out, "<h2>Prompts</h2>\n");
    page_table_begin(out, columns, ARRAY_LEN(columns));
    for (int k = 0; k < N_ARMS; k++) {
        int n = 0, fresh = 0, correct = 0;
        double best = 0;
        for (int i = 0; i < t->found.n; i++) {
            const struct search_candidate *c = &t->found.c[i];
            if ((int)c->arm != k) continue;
            n++;
            fresh += c->same_as < 0;
            correct += c->correct && c->same_as < 0;
            if (c->estimate.n > 0) best = fmax(best, candidate_speed(c));
        }
        if (n == 0) continue;
        page_row_begin(out, NULL);
        page_cell(out, arm_text((enum arm)k));
        page_cellf(out, "%d", n);
        page_cellf(out, "%d", fresh);
        page_cellf(out, "%d", correct);
        page_cellf(out, best > 0 ? "%.2fx" : "", best);
        page_cellf(out, "%.3f", arms.arm[k].paid / (arms.arm[k].paid + arms.arm[k].missed));
        page_row_end(out);
    }
    page_table_end(out);
    arms_free(&arms);
}

static void html_row(const struct search_candidate *c, bool is_winner, struct str *out) {
    const struct verdict *v = candidate_verdict(c);
    CLEANUP_STR struct str parents = STR_INIT;
    for (int i = 0; i < c->n_parents; i++) str_addf(&parents, "%s%d", i ? ", " : "", c->parent[i]);
    page_row_begin(out, is_winner ? "best" : c->correct ? "good" : "bad");
    str_addf(out, "<td id=\"a%d\">%d</td>", c->id, c->id);
    page_cell(out, str_c(&parents));
    page_cell(out, arm_name(c->arm));
    page_cell(out, c->plan ? c->plan : "");
    page_cell(out, v ? outcome_name(v->outcome) : "");
    if (c->estimate.n > 0) {
        const struct bounds b = estimate_bounds(&c->estimate);
        page_cellf(out, "%.2fx [%.2f, %.2f] (%d)", b.ratio, b.low, b.high, c->estimate.n);
    } else {
        page_cell(out, "");
    }
    page_cellf(out, "%.3f", c->reward);
    page_cellf(out, "%lld", (long long)c->spent);
    page_cellf(out, "%.0f", c->at_s);
    str_adds(out, "<td>");
    if (c->kernel) page_code(out, "code", c->kernel);
    if (v && !c->correct && *v->message) page_code(out, "message", v->message);
    str_adds(out, "</td>");
    page_row_end(out);
}

/* All different answers; of very many the latest. */
static void html_answers(const struct report *r, int task, struct str *out) {
    static const char *const columns[] = {"answer", "from",     "prompt",  "plan", "outcome", "speed (measurements)",
                                          "reward", "verdicts", "seconds", ""};
    const struct population *p = &r->tasks->items[task].found;
    const int winner = r->proof[task].winner;
    int different = 0, shown = 0;
    for (int i = 0; i < p->n; i++) different += p->c[i].same_as < 0;
    str_adds(out, "<h2>Answers</h2>\n<p>");
    page_textf(out,
               "%d answers, %d of them different%s. In brackets: 95 %% intervals of the search's own measurements.",
               p->n, different, different > ROWS_MAX ? "; the latest and the winner are shown" : "");
    str_adds(out, "</p>\n");
    page_table_begin(out, columns, ARRAY_LEN(columns));
    for (int i = 0; i < p->n; i++) {
        if (p->c[i].same_as >= 0) continue;
        shown++;
        if (different - shown < ROWS_MAX || i == winner) html_row(&p->c[i], i == winner, out);
    }
    page_table_end(out);
}

static void html_task(const struct report *r, int task, struct str *out) {
    const struct search_task *t = &r->tasks->items[task];
    CLEANUP_STR struct str line = STR_INIT, title = STR_INIT, limits = STR_INIT;
    str_addf(&title, "kernelrl optimize: %s", t->key);
    page_begin(out, title.p);
    report_line(r, task, &line);
    str_adds(out, "<p class=\"lead\">");
    page_text(out, line.p);
    str_adds(out, "</p>\n<p>");
    page_textf(out, "%s, %s, PyTorch %s, kernelrl " KERNELRL_VERSION ". ", r->where->hardware, r->where->device,
               r->where->torch);
    limits_text(&t->limits, r->proof[task].kernel_ms, &limits);
    page_text(out, str_c(&limits));
    str_adds(out, "</p>\n");
    html_charts(t, out);
    html_arms(r, task, out);
    html_answers(r, task, out);
    page_code(out, "the problem", t->shape[0].code);
    page_end(out);
}

/* ---- files --------------------------------------------------------------------------------------------------------*/

static enum status write_in(const char *dir, const char *name, const struct str *text, struct err *e) {
    CLEANUP_FREE char *path = fs_join(dir, name);
    return fs_write_atomic(path, str_c(text), text->len, e);
}

enum status report_task(const struct report *r, int task, struct err *e) {
    CLEANUP_STR struct str dir = STR_INIT, json = STR_INIT, md = STR_INIT, html = STR_INIT;
    report_folder(r, task, &dir);
    js_begin(&json, NULL, '{');
    put_task(r, task, &json);
    put_environment(r, &json);
    js_end(&json, '}');
    str_addc(&json, '\n');
    md_task(r, task, &md);
    html_task(r, task, &html);
    TRY(write_in(dir.p, "verdict.json", &json, e));
    TRY(write_in(dir.p, "report.md", &md, e));
    return write_in(dir.p, "lineage.html", &html, e);
}

/* ---- several tasks ------------------------------------------------------------------------------------------------*/

static const double ps[] = {0, 0.5, 0.8, 1, 1.5, 2};

struct totals {
    struct scored *all; /* a row for each task that is none's fault */
    size_t n;
    int solved, faster, timed;
    double log_sum;      /* of the best correct ratio, 1 where there is none */
    double log_or_eager; /* of the larger of that and 1: who gets no faster answer keeps what there is */
};

static struct totals total(const struct report *r) {
    struct totals x = {.all = xcalloc((size_t)r->tasks->n + 1, sizeof *x.all)};
    for (int i = 0; i < r->tasks->n; i++) {
        const struct proof *p = &r->proof[i];
        if (r->tasks->items[i].trouble) continue;
        const double ratio = p->timed ? p->ratio.ratio : 0;
        x.all[x.n++] = (struct scored){p->winner >= 0, ratio};
        x.solved += p->winner >= 0;
        x.faster += p->faster;
        x.timed += p->timed;
        if (p->timed) x.log_sum += log(ratio);
        if (p->timed) x.log_or_eager += log(fmax(1, ratio));
    }
    return x;
}

/* fast_0 is the share of correct answers, timed or not. */
static double fast_p(const struct totals *x, double p) {
    return p > 0 ? score_fast_p(x->all, x->n, p) : x->n ? (double)x->solved / (double)x->n : 0;
}

static void md_all(const struct report *r, const struct totals *x, struct str *md) {
    const double n = x->n ? (double)x->n : 1;
    str_addf(
        md,
        "# %s\n\n%zu problems, %lld verdicts of %lld answers, %.0f s.\n%s, %s, PyTorch %s, kernelrl " KERNELRL_VERSION
        ".\n\n",
        r->source, x->n, (long long)r->state->spent, (long long)r->state->sampled, r->state->elapsed_s,
        r->where->hardware, r->where->device, r->where->torch);
    str_addf(
        md,
        "| | |\n|---|---:|\n| solved | %d (%.1f %%) |\n| shown to be faster than PyTorch (95 %%) | %d (%.1f %%) |\n",
        x->solved, 100 * x->solved / n, x->faster, 100 * x->faster / n);
    for (size_t i = 0; i < ARRAY_LEN(ps) && x->timed > 0; i++)
        str_addf(md, "| fast_%g | %.1f %% |\n", ps[i], 100 * fast_p(x, ps[i]));
    if (x->timed == 0) str_adds(md, "| nothing was timed | |\n\n");
    if (x->timed > 0)
        str_addf(md,
                 "| geometric mean of correct answers | %.3fx |\n| of all problems, 1 where none is correct | %.3fx |\n"
                 "| of all problems, 1 where none is faster | %.3fx |\n\n",
                 score_geomean(x->all, x->n), exp(x->log_sum / n), exp(x->log_or_eager / n));
    str_adds(md, "| problem | verdicts | speed | interval | |\n|---|---:|---:|---|---|\n");
    for (int i = 0; i < r->tasks->n; i++) {
        const struct search_task *t = &r->tasks->items[i];
        const struct proof *p = &r->proof[i];
        str_addf(md, "| %s | %lld | ", t->key, (long long)t->spent);
        if (p->timed && isnan(p->ratio.low))
            str_addf(md, "%.2fx | one process", p->ratio.ratio);
        else if (p->timed)
            str_addf(md, "%.2fx | [%.2f, %.2f]", p->ratio.ratio, p->ratio.low, p->ratio.high);
        else
            str_addf(md, "%s | ", p->winner >= 0 ? "correct" : t->trouble ? "fails itself" : "");
        str_addf(md, " | %s%s%s |\n", p->winner >= 0 ? "[report](" : "", p->winner >= 0 ? t->folder : "",
                 p->winner >= 0 ? "/report.md)" : "");
    }
}

static void html_all(const struct report *r, const struct totals *x, struct str *out) {
    static const char *const columns[] = {"problem", "verdicts", "found", ""};
    page_begin(out, "kernelrl optimize");
    str_adds(out, "<p class=\"lead\">");
    page_textf(out, "%s: %d of %zu problems solved, %d shown to be faster than PyTorch.", r->source, x->solved, x->n,
               x->faster);
    str_adds(out, "</p>\n");
    page_table_begin(out, columns, ARRAY_LEN(columns));
    for (int i = 0; i < r->tasks->n; i++) {
        const struct search_task *t = &r->tasks->items[i];
        CLEANUP_STR struct str line = STR_INIT;
        report_line(r, i, &line);
        page_row_begin(out, r->proof[i].faster ? "best" : r->proof[i].winner >= 0 ? "good" : "bad");
        page_cell(out, t->key);
        page_cellf(out, "%lld", (long long)t->spent);
        page_cell(out, line.p + strlen(t->key) + 2);
        str_adds(out, "<td><a href=\"");
        page_text(out, t->folder);
        str_adds(out, "/lineage.html\">answers</a></td>");
        page_row_end(out);
    }
    page_table_end(out);
    page_end(out);
}

enum status report_all(const struct report *r, struct err *e) {
    CLEANUP_STR struct str json = STR_INIT, md = STR_INIT, html = STR_INIT;
    struct totals x = total(r);
    const double n = x.n ? (double)x.n : 1;
    js_begin(&json, NULL, '{');
    js_put_str(&json, "source", r->source);
    js_put_i64(&json, "problems", (int64_t)x.n);
    js_put_i64(&json, "solved", x.solved);
    js_put_i64(&json, "faster", x.faster);
    js_put_f64(&json, "geomean", exp(x.log_sum / n));
    js_put_f64(&json, "geomean_or_eager", exp(x.log_or_eager / n));
    js_begin(&json, "fast_p", '{');
    for (size_t i = 0; i < ARRAY_LEN(ps); i++) {
        char key[16];
        snprintf(key, sizeof key, "%g", ps[i]);
        js_put_f64(&json, key, fast_p(&x, ps[i]));
    }
    js_end(&json, '}');
    js_put_i64(&json, "verdicts", r->state->spent);
    js_put_i64(&json, "answers", r->state->sampled);
    js_put_i64(&json, "measured_again", r->state->measured);
    js_put_i64(&json, "tokens", r->state->tokens);
    js_put_f64(&json, "seconds", r->state->elapsed_s);
    put_environment(r, &json);
    js_begin(&json, "tasks", '[');
    for (int i = 0; i < r->tasks->n; i++) {
        js_begin(&json, NULL, '{');
        put_task(r, i, &json);
        js_end(&json, '}');
    }
    js_end(&json, ']');
    js_end(&json, '}');
    str_addc(&json, '\n');
    md_all(r, &x, &md);
    html_all(r, &x, &html);
    free(x.all);
    TRY(write_in(r->dir, "results.json", &json, e));
    TRY(write_in(r->dir, "report.md", &md, e));
    return write_in(r->dir, "report.html", &html, e);
}
