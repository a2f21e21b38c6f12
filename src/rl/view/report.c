/* A run as one file of HTML that opens from disk: what the other functions of view.h give, in the parts of page.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "page/page.h"
#include "rl/view/view.h"

enum {
    TEXT_MAX_BYTES = 200000,
    POINTS = 500,
    CHOSEN_MAX = 1000,
    RESERVED_BYTES = 2 << 20 /* for what stands around the answers */
};

struct shared_report {
    struct run_view *view;
    const char *run;
    struct str *out;
    size_t max_bytes;
    int64_t left_out; /* answers for which there was no room */
};

static const char *text_of(const json_t *o, const char *key) {
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

static double number_of(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

static int64_t whole_of(const json_t *o, const char *key) { return json_integer_value(json_object_get(o, key)); }

static enum status parse(const struct str *s, json_t **out, struct err *e) {
    return js_parse(str_c(s), s->len, "view", out, e);
}

/* ---- charts -------------------------------------------------------------------------------------------------------*/

static double *numbers_of(const json_t *list) {
    double *v = xmalloc((json_array_size(list) + 1) * sizeof *v);
    size_t i;
    const json_t *x;
    json_array_foreach(list, i, x) v[i] = json_is_number(x) ? json_number_value(x) : (double)NAN;
    return v;
}

static enum status put_charts(const struct shared_report *r, struct err *e) {
    static const char names[] = "reward/mean,kernel/correct_rate,kernel/fast_1_rate,kernel/geomean_speedup,"
                                "policy/entropy,policy/truncated_rate";
    CLEANUP_STR struct str text = STR_INIT;
    CLEANUP_JSON json_t *o = NULL;
    const char *name;
    json_t *series;
    TRY(view_metrics(r->view, r->run, names, POINTS, &text, e));
    TRY(parse(&text, &o, e));
    str_adds(r->out, "<h2>Curves</h2>\n<div class=\"charts\">\n");
    json_object_foreach(json_object_get(o, "series"), name, series) {
        CLEANUP_FREE double *x = numbers_of(json_object_get(series, "step"));
        CLEANUP_FREE double *y = numbers_of(json_object_get(series, "value"));
        const struct page_series one = {name, x, y, (int)json_array_size(json_object_get(series, "step"))};
        page_draw(r->out, &(struct page_chart){name, "step", name, &one, 1, (double)NAN, false});
    }
    str_adds(r->out, "</div>\n");
    return ST_OK;
}

/* ---- answers ------------------------------------------------------------------------------------------------------*/

static void put_code(struct str *out, const char *label, const char *text, size_t n) {
    CLEANUP_STR struct str shown = STR_INIT;
    if (n == 0) return;
    str_add(&shown, text, n < TEXT_MAX_BYTES ? n : TEXT_MAX_BYTES);
    if (n > TEXT_MAX_BYTES) str_addf(&shown, "\n(%zu more bytes)", n - TEXT_MAX_BYTES);
    page_code(out, label, shown.p);
}

/* What stands between the first fences; without fences all of it. */
static const char *kernel_of(const char *text, size_t *n) {
    const char *fence = strstr(text, "```"), *begin = fence ? strchr(fence, '\n') : NULL;
    const char *end = begin ? strstr(begin, "```") : NULL;
    *n = end ? (size_t)(end - begin - 1) : strlen(text);
    return end ? begin + 1 : text;
}

static void put_row(struct str *out, const json_t *row) {
    const double speedup = number_of(row, "speedup"), reward = number_of(row, "reward");
    const char *outcome = text_of(row, "outcome");
    page_row_begin(out, strcmp(outcome, "correct") == 0 ? "good" : "bad");
    page_cellf(out, "%lld/%lld/%lld/%lld", (long long)whole_of(row, "step"), (long long)whole_of(row, "group"),
               (long long)whole_of(row, "sample"), (long long)whole_of(row, "turn"));
    page_cell(out, text_of(row, "problem"));
    page_cell(out, *text_of(row, "role") ? text_of(row, "role") : "solver");
    page_cell(out, outcome);
    page_cell(out, text_of(row, "passed_stage"));
    page_cellf(out, isnan(reward) ? "" : "%.3f", reward);
    page_cellf(out, isnan(speedup) ? "" : "%.2fx\u00a0[%.2f,\u00a0%.2f]", speedup, number_of(row, "speedup_low"),
               number_of(row, "speedup_high"));
}

/* The row of an answer, with its code, its message and its text, which can be folded out. One that has no room, or that
 * vanished meanwhile, is counted. */
static enum status put_answer(struct shared_report *r, const json_t *row, struct err *e) {
    CLEANUP_STR struct str text = STR_INIT, html = STR_INIT;
    CLEANUP_JSON json_t *o = NULL;
    struct err gone = {0};
    const char *role = json_string_value(json_object_get(row, "role"));
    if (view_episode(r->view, r->run, whole_of(row, "step"), whole_of(row, "group"), whole_of(row, "sample"),
                     whole_of(row, "turn"), role, &text, &gone) != ST_OK) {
        r->left_out++;
        return ST_OK;
    }
    TRY(parse(&text, &o, e));
    const json_t *trace = json_object_get(o, "trace");
    const char *answer = text_of(trace, "text"), *message = text_of(json_object_get(trace, "verdict"), "message");
    size_t n;
    const char *kernel = kernel_of(answer, &n);
    put_row(&html, row);
    str_adds(&html, "<td>");
    put_code(&html, "code", kernel, n);
    put_code(&html, "message", message, strlen(message));
    if (n < strlen(answer)) put_code(&html, "the whole answer", answer, strlen(answer));
    str_adds(&html, "</td>");
    page_row_end(&html);
    if (r->out->len + html.len + RESERVED_BYTES > r->max_bytes)
        r->left_out++;
    else
        str_add(r->out, html.p, html.len);
    return ST_OK;
}

static void begin_answers(struct str *out) {
    static const char *const columns[] = {"answer", "problem", "role",     "outcome",
                                          "stage",  "reward",  "speed-up", "texts"};
    page_table_begin(out, columns, ARRAY_LEN(columns));
}

static enum status put_answers(struct shared_report *r, const json_t *rows, size_t most, struct err *e) {
    enum status st = ST_OK;
    size_t i;
    const json_t *row;
    json_array_foreach(rows, i, row) {
        if (i >= most)
            r->left_out++;
        else if (st == ST_OK)
            st = put_answer(r, row, e);
    }
    return st;
}

static enum status put_best(struct shared_report *r, struct err *e) {
    CLEANUP_STR struct str text = STR_INIT;
    CLEANUP_JSON json_t *o = NULL;
    TRY(view_best(r->view, r->run, &text, e));
    TRY(parse(&text, &o, e));
    str_adds(r->out, "<h2>The fastest correct answer to each problem</h2>\n");
    begin_answers(r->out);
    const enum status st = put_answers(r, json_object_get(o, "best"), SIZE_MAX, e);
    page_table_end(r->out);
    return st;
}

/* The number of the last step with answers; -1: there is none. */
static enum status last_step(const struct shared_report *r, int64_t *step, struct err *e) {
    CLEANUP_STR struct str text = STR_INIT;
    CLEANUP_JSON json_t *o = NULL;
    struct view_query q = view_query_all();
    q.limit = 1;
    TRY(view_episodes(r->view, r->run, &q, &text, e));
    TRY(parse(&text, &o, e));
    const json_t *newest = json_array_get(json_object_get(o, "rows"), 0);
    *step = newest ? whole_of(newest, "step") : -1;
    return ST_OK;
}

/* The answers of a query, page by page: a search for a text comes in many. *n: how many they are. */
static enum status put_chosen(struct shared_report *r, struct view_query *q, size_t *n, struct err *e) {
    enum status st = ST_OK;
    *n = 0;
    q->limit = CHOSEN_MAX;
    do {
        CLEANUP_STR struct str text = STR_INIT;
        CLEANUP_JSON json_t *o = NULL;
        st = view_episodes(r->view, r->run, q, &text, e);
        if (st == ST_OK) st = parse(&text, &o, e);
        const json_t *rows = json_object_get(o, "rows");
        if (st == ST_OK) st = put_answers(r, rows, *n < CHOSEN_MAX ? CHOSEN_MAX - *n : 0, e);
        *n += json_array_size(rows);
        q->cursor = whole_of(o, "cursor"); /* 0 where it is null */
    } while (st == ST_OK && q->cursor > 0);
    return st;
}

static enum status put_choice(struct shared_report *r, const char *filter, struct err *e) {
    CLEANUP_FREE char *text = xstrdup(filter ? filter : "");
    struct view_query q = view_query_all();
    size_t n;
    TRY(view_query_read(&q, text, e));
    if (!filter) {
        TRY(last_step(r, &q.step_from, e));
        if (q.step_from < 0) return ST_OK;
        q.step_to = q.step_from;
    }
    str_adds(r->out, "<h2>");
    if (q.step_from == q.step_to)
        page_textf(r->out, "Answers of step %lld", (long long)q.step_from);
    else
        page_text(r->out, "Chosen answers");
    str_adds(r->out, "</h2>\n");
    if (filter) {
        str_adds(r->out, "<p>Chosen by ");
        page_text(r->out, filter);
        str_adds(r->out, "</p>\n");
    }
    begin_answers(r->out);
    TRY(put_chosen(r, &q, &n, e));
    page_table_end(r->out);
    return n > 0 ? ST_OK : FAIL(e, ST_INVALID, "%.255s has no answers of %s", r->run, filter ? filter : "this step");
}

/* ---- the report ---------------------------------------------------------------------------------------------------*/

static void put_overview(const struct shared_report *r, const json_t *run) {
    size_t i;
    const json_t *alert;
    str_adds(r->out, "<p class=\"lead\">");
    page_textf(r->out, "%s, %lld steps, %lld answers. kernelrl " KERNELRL_VERSION ".", text_of(run, "state"),
               (long long)whole_of(run, "steps"), (long long)whole_of(run, "episodes"));
    str_adds(r->out, "</p>\n");
    json_array_foreach(json_object_get(run, "alerts"), i, alert) {
        str_adds(r->out, "<p><strong>");
        page_text(r->out, text_of(alert, "text"));
        str_adds(r->out, "</strong></p>\n");
    }
}

enum status view_report(struct run_view *v, const char *run, const char *filter, size_t max_bytes, struct str *out,
                        struct err *e) {
    CLEANUP_STR struct str text = STR_INIT, title = STR_INIT;
    CLEANUP_JSON json_t *o = NULL;
    struct shared_report r = {v, run, out, max_bytes, 0};
    TRY(view_run(v, run, &text, e));
    TRY(parse(&text, &o, e));
    str_addf(&title, "The run %s", run);
    page_begin(out, title.p);
    put_overview(&r, o);
    TRY(put_charts(&r, e));
    TRY(put_best(&r, e));
    TRY(put_choice(&r, filter, e));
    str_adds(out, "<h2>Configuration</h2>\n");
    put_code(out, "config.yaml", text_of(o, "config"), strlen(text_of(o, "config")));
    if (r.left_out > 0) {
        str_adds(out, "<p>");
        page_textf(out, "%lld answers are not in this file.", (long long)r.left_out);
        str_adds(out, "</p>\n");
    }
    page_end(out);
    return ST_OK;
}
