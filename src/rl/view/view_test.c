/* The view of runs: what it reads, and runs that grow, are cut, are replaced or vanish between two calls. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fs.h"
#include "io/json.h"
#include "io/jsonl.h"
#include "rl/run/episodes.h"
#include "rl/test_util.h"
#include "rl/view/internal.h"
#include "rl/view/view.h"

/* A frame of four samples of one step; the text of sample 2 says so. */
static void add_step(const char *run, int step, bool index) {
    CLEANUP_STR struct str lines = STR_INIT, path = STR_INIT;
    struct jsonl_writer *w;
    struct episodes *x;
    for (int i = 0; i < 4; i++)
        str_addf(
            &lines,
            "{\"step\":%d,\"group\":0,\"sample\":%d,\"turn\":0,\"problem\":\"p<%d>\",\"text\":\"step %d \\\"sample\\\" "
            "%d\",\"stop\":\"length\",\"tokens\":%d,\"reward\":{\"total\":%d.5},\"advantage\":%d,\"verdict\":"
            "{\"outcome\":\"%s\",\"speedup\":%d},\"ids\":[1],\"logp\":[0]%s}\n",
            step, i, i % 2, step, i, 10 + i, i, i - 2, i == 2 ? "compile_error" : "correct", step + i,
            i == 0 ? ",\"prompt_text\":\"what was asked\"" : "");
    str_addf(&path, "%s/%s", run, TRACES_FILE);
    CHECK(jsonl_append_open(path.p, &w, NULL, &err));
    CHECK(jsonl_append(w, lines.p, lines.len, &err));
    jsonl_append_close(w);
    if (!index) return;
    CHECK(episodes_open(run, &x, &err));
    episodes_close(x);
}

static void put(const char *run, const char *name, const char *text) {
    CLEANUP_FREE char *path = fs_join(run, name);
    write_file(path, text);
}

static char *new_run(const char *name, int steps, bool index) {
    CLEANUP_STR struct str metrics = STR_INIT;
    char *run = fs_join(in_tmp("runs"), name);
    CHECK(fs_mkdirs(run, &err));
    put(run, "config.yaml", "seed: 1\n");
    for (int i = 0; i < steps; i++) {
        add_step(run, i, index);
        str_addf(&metrics, "{\"step\":%d,\"reward/mean\":%d,\"time/total_s\":%s}\n", i, i * i, i == 1 ? "null" : "2.5");
    }
    put(run, "metrics.jsonl", str_c(&metrics));
    return run;
}

static struct run_view *open_view(void) { return view_open(in_tmp("runs")); }

static json_t *parsed(const struct str *s) {
    json_t *o;
    CHECK(js_parse(s->p, s->len, "view", &o, &err));
    return o;
}

/* The answer to a query; its rows as "step/sample " each are in *rows. */
static int64_t episodes(struct run_view *v, const char *run, struct view_query q, struct str *rows, int64_t *cursor) {
    CLEANUP_STR struct str out = STR_INIT;
    size_t i;
    json_t *row;
    CHECK(view_episodes(v, run, &q, &out, &err));
    CLEANUP_JSON json_t *o = parsed(&out);
    json_array_foreach(json_object_get(o, "rows"), i, row) {
        str_addf(rows, "%lld/%lld ", json_integer_value(json_object_get(row, "step")),
                 json_integer_value(json_object_get(row, "sample")));
    }
    const json_t *next = json_object_get(o, "cursor");
    if (cursor) *cursor = json_is_null(next) ? 0 : json_integer_value(next);
    return json_integer_value(json_object_get(o, "matches"));
}

static void assert_rows(struct run_view *v, const char *run, struct view_query q, const char *expected) {
    CLEANUP_STR struct str rows = STR_INIT;
    (void)episodes(v, run, q, &rows, NULL);
    assert_string_equal(str_c(&rows), expected);
}

static void filters_and_order(void **state) {
    (void)state;
    CLEANUP_FREE char *run = new_run("filters", 3, true);
    struct run_view *v = open_view();
    struct view_query q = view_query_all();
    assert_rows(v, "filters", q, "2/3 2/2 2/1 2/0 1/3 1/2 1/1 1/0 0/3 0/2 0/1 0/0 ");
    q.step_from = q.step_to = 1;
    assert_rows(v, "filters", q, "1/3 1/2 1/1 1/0 ");
    q.problem = "p<1>";
    assert_rows(v, "filters", q, "1/3 1/1 ");
    q.problem = "p<2>";
    assert_rows(v, "filters", q, "");
    q = view_query_all();
    q.outcome = "compile_error";
    assert_rows(v, "filters", q, "2/2 1/2 0/2 ");
    q = view_query_all();
    q.sort = "speedup";
    q.limit = 3;
    assert_rows(v, "filters", q, "2/3 2/2 1/3 ");
    q = view_query_all();
    q.reward_min = 1.5;
    q.reward_max = 2.5;
    q.step_to = 0;
    assert_rows(v, "filters", q, "0/2 0/1 ");
    q = view_query_all();
    q.role = "solver";
    q.stop = "length";
    CLEANUP_STR struct str rows = STR_INIT;
    assert_int_equal(episodes(v, "filters", q, &rows, NULL), 12);
    view_close(v);
}

/* Page by page, with and without a text, the same rows come as at once. */
static void pages_of_rows(void **state) {
    (void)state;
    CLEANUP_FREE char *run = new_run("pages", 5, true);
    struct run_view *v = open_view();
    for (int with_text = 0; with_text < 2; with_text++) {
        CLEANUP_STR struct str at_once = STR_INIT, by_page = STR_INIT;
        struct view_query q = view_query_all();
        if (with_text) q.text = "\"sample\" 2";
        (void)episodes(v, "pages", q, &at_once, NULL);
        q.limit = 3;
        int turns = 0;
        do {
            (void)episodes(v, "pages", q, &by_page, &q.cursor);
        } while (q.cursor > 0 && ++turns < 100);
        assert_string_equal(by_page.p, at_once.p);
        if (with_text) assert_string_equal(at_once.p, "4/2 3/2 2/2 1/2 0/2 ");
    }
    view_close(v);
}

static void one_answer(void **state) {
    (void)state;
    CLEANUP_FREE char *run = new_run("one", 3, true);
    CLEANUP_STR struct str out = STR_INIT, group = STR_INIT, best = STR_INIT;
    struct run_view *v = open_view();
    CHECK(view_episode(v, "one", 1, 0, 2, 0, NULL, &out, &err));
    CLEANUP_JSON json_t *o = parsed(&out);
    assert_string_equal(json_string_value(json_object_get(json_object_get(o, "trace"), "text")), "step 1 \"sample\" 2");
    assert_string_equal(json_string_value(json_object_get(json_object_get(o, "row"), "problem")), "p<0>");
    CHECK_FAILS(view_episode(v, "one", 1, 0, 4, 0, NULL, &out, &err), ST_IO, "no answer 1/0/4/0");
    CHECK_FAILS(view_episode(v, "one", 1, 0, 2, 0, "critic", &out, &err), ST_IO, "no answer");
    CHECK(view_group(v, "one", 2, 0, &group, &err));
    CLEANUP_JSON json_t *g = parsed(&group);
    assert_int_equal(json_array_size(json_object_get(g, "rows")), 4);
    CHECK(view_best(v, "one", &best, &err));
    CLEANUP_JSON json_t *b = parsed(&best);
    assert_int_equal(json_array_size(json_object_get(b, "best")), 2); /* p<0>: 2/0, since 2/2 is wrong; p<1>: 2/3 */
    assert_int_equal(json_integer_value(json_object_get(json_array_get(json_object_get(b, "best"), 0), "sample")), 0);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(json_object_get(b, "best"), 1), "sample")), 3);
    view_close(v);
}

static void series(void **state) {
    (void)state;
    CLEANUP_FREE char *run = new_run("series", 0, true);
    CLEANUP_STR struct str lines = STR_INIT, out = STR_INIT, few = STR_INIT, csv = STR_INIT;
    for (int i = 0; i < 1000; i++)
        str_addf(&lines, "{\"step\":%d,\"a/b\":%d,\"=x\":1}\n", i, i == 377 ? 5000 : i == 611 ? -9 : 1);
    put(run, "metrics.jsonl", lines.p);
    struct run_view *v = open_view();
    CHECK(view_metrics(v, "series", "a/b,none", 2000, &out, &err));
    CLEANUP_JSON json_t *o = parsed(&out);
    assert_int_equal(json_array_size(json_object_get(json_object_get(json_object_get(o, "series"), "a/b"), "value")),
                     1000);
    CHECK(view_metrics(v, "series", "a/b", 20, &few, &err)); /* no spike is lost */
    assert_non_null(strstr(few.p, "5000"));
    assert_non_null(strstr(few.p, "-9"));
    CLEANUP_JSON json_t *f = parsed(&few);
    assert_in_range(json_array_size(json_object_get(json_object_get(json_object_get(f, "series"), "a/b"), "value")), 10,
                    20);
    CHECK(view_csv(v, "series", NULL, &csv, &err));
    assert_true(str_has_prefix(csv.p, "step,\"a/b\",\"'=x\"\n0,1,1\n1,1,1\n"));
    view_close(v);
}

/* A run of a version without an index is read from its traces, and its index is taken when there is one. */
static void without_an_index(void **state) {
    (void)state;
    CLEANUP_FREE char *run = new_run("old", 2, false), *index = fs_join(run, EPISODES_FILE);
    struct run_view *v = open_view();
    assert_rows(v, "old", view_query_all(), "1/3 1/2 1/1 1/0 0/3 0/2 0/1 0/0 ");
    assert_false(fs_is_file(index)); /* nothing is written */
    add_step(run, 2, false);
    struct view_query last = view_query_all();
    last.limit = 1;
    assert_rows(v, "old", last, "2/3 ");
    add_step(run, 3, true);
    assert_rows(v, "old", last, "3/3 ");
    view_close(v);
}

/* A line that is read as a plain one has the members that the general reader finds. */
static void plain_lines(void **state) {
    (void)state;
    static const char *const lines[] = {
        "{\"a\":1}",
        "{\"a\": -0.125e-3, \"b\" : \"text <&> ~\" , \"c\":null,\"d\":true,\"e\":false}",
        "{\"reward\":{\"total\":-2.5,\"speed\":1},\"x\":{\"total\":3},\"n\":999999999999999999,\"z\":0,\"e\":1E+2}",
        "{\"reward\":{\"total\":\"3\"},\"a\":\"\"}",
        "{\"reward\":{\"speed\":3}}",
    };
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        CLEANUP_STR struct str odd = STR_INIT;
        struct line_members plain, general;
        str_add(&odd, lines[i], strlen(lines[i]) - 1);
        str_adds(&odd, ",\"last\":\"\\u0041\"}");
        CHECK(members_read(&plain, lines[i], strlen(lines[i]), "line", &err));
        CHECK(members_read(&general, odd.p, odd.len, "line", &err));
        assert_null(plain.whole);
        assert_non_null(general.whole);
        assert_int_equal(general.n, plain.n + 1);
        for (size_t k = 0; k < plain.n; k++) {
            const struct line_member *x = &plain.m[k], *y = &general.m[k];
            assert_int_equal(x->kind, y->kind);
            assert_int_equal(x->n_key, y->n_key);
            assert_memory_equal(x->key, y->key, x->n_key);
            assert_int_equal(x->n_text, y->n_text);
            if (x->n_text > 0) assert_memory_equal(x->text, y->text, x->n_text);
            if (x->kind == MEMBER_WHOLE) assert_int_equal(x->whole, y->whole);
            assert_true(x->real == y->real);
        }
        members_free(&plain);
        members_free(&general);
    }
    static const char *const wrong[] = {"",           "{",          "[1]",           "{\"a\":1,\"a\":2}", "{\"a\":01}",
                                        "{\"a\":1.}", "{\"a\":+1}", "{\"a\":1e999}", "{\"a\":nul}",       "{\"a\":1}}",
                                        "{\"a\":\"",  "{\"a\" 1}",  "{\"a\":1,}",    "{\"a\":-}"};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        struct line_members m;
        CHECK_FAILS(members_read(&m, wrong[i], strlen(wrong[i]), "line", &err), ST_PARSE, "line");
        members_free(&m);
    }
}

/* Orders and the best of each problem, while rows come in batches, are what a look at all rows says. */
static void orders(void **state) {
    (void)state;
    struct view_rows r = {0};
    uint64_t seed = 7;
    for (int batch = 0, frame = 0; batch < 12; batch++) {
        for (int i = 0; i < batch * batch; i++, frame++) {
            char line[256], speedup[16];
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            const int roll = (int)(seed >> 40), step = frame / 8 - roll % 3;
            snprintf(speedup, sizeof speedup, roll % 5 == 0 ? "null" : "%d.5", roll % 7);
            snprintf(
                line, sizeof line,
                "{\"frame\":%d,\"at\":0,\"bytes\":1,\"step\":%d,\"group\":0,\"problem\":\"p%d\",\"reward\":{\"total\":"
                "%s},\"outcome\":\"%s\",\"speedup\":%s}",
                frame, step < 0 ? 0 : step, roll % 4, speedup, roll % 3 ? "correct" : "wrong_output", speedup);
            CHECK(rows_add(&r, line, strlen(line), &err));
        }
        CLEANUP_STR struct str best_now = STR_INIT;
        js_begin(&best_now, NULL, '[');
        for (uint32_t k = 0; k < r.n_best; k++)
            if (r.best[k]) row_json(&r, &r.row[r.best[k] - 1], NULL, &best_now);
        js_end(&best_now, ']');
        for (int i = 0; i < 2; i++) assert_string_equal(rows_best_json(&r), best_now.p);
        for (int sort = 0; sort < N_SORTS && r.n > 0; sort++) {
            const uint32_t *order = rows_order(&r, sort);
            CLEANUP_FREE bool *seen = xcalloc(r.n, 1);
            for (size_t i = 0; i < r.n; i++) {
                assert_true(order[i] < r.n && !seen[order[i]]);
                seen[order[i]] = true;
                if (i == 0) continue;
                const struct view_row *x = &r.row[order[i - 1]], *y = &r.row[order[i]];
                const double a = sort == SORT_STEP ? (double)x->step : sort == SORT_SPEEDUP ? x->speedup : x->reward;
                const double b = sort == SORT_STEP ? (double)y->step : sort == SORT_SPEEDUP ? y->speedup : y->reward;
                if (sort == SORT_ADVANTAGE || sort == SORT_TOKENS) /* no row has them: the newest first */
                    assert_true(order[i - 1] > order[i]);
                else
                    assert_true(a > b || (isnan(b) && !isnan(a)) ||
                                ((a == b || (isnan(a) && isnan(b))) && order[i - 1] > order[i]));
            }
        }
        size_t n, expected = 0;
        for (size_t i = 0; i < r.n; i++) expected += r.row[i].step == 3;
        const uint32_t *of_step = rows_of_step(&r, 3, &n);
        assert_int_equal(n, expected);
        for (size_t i = 0; i < n; i++) assert_int_equal(r.row[of_step[i]].step, 3);
    }
    for (int p = 0; p < 4; p++) {
        char name[4];
        snprintf(name, sizeof name, "p%d", p);
        const uint32_t k = names_find(&r.names, name, 2);
        const struct view_row *best = &r.row[r.best[k] - 1];
        for (size_t i = 0; i < r.n; i++)
            if (r.row[i].problem == k && r.row[i].outcome == best->outcome)
                assert_true(isnan(r.row[i].speedup) || r.row[i].speedup <= best->speedup);
        assert_int_equal(best->problem, k);
        assert_string_equal(r.names.name[best->outcome], "correct");
    }
    rows_free(&r);
}

static void runs_that_change(void **state) {
    (void)state;
    CLEANUP_FREE char *run = new_run("changes", 3, true), *index = fs_join(run, EPISODES_FILE),
                      *traces = fs_join(run, TRACES_FILE), *elsewhere = fs_join(in_tmp("elsewhere"), "secret");
    CLEANUP_STR struct str out = STR_INIT;
    struct run_view *v = open_view();
    struct view_query last = view_query_all(), any = view_query_all();
    last.limit = 1;
    assert_rows(v, "changes", last, "2/3 ");
    /* a line that is being written is not there yet */
    FILE *f = fopen(index, "a");
    fputs("{\"frame\":99999,\"at\":0,\"by", f);
    fclose(f);
    assert_rows(v, "changes", last, "2/3 ");
    /* resumed from step 1, and gone on with */
    CHECK(fs_remove(index, &err));
    CHECK(fs_remove(traces, &err));
    add_step(run, 0, true);
    assert_rows(v, "changes", view_query_all(), "0/3 0/2 0/1 0/0 ");
    add_step(run, 1, true);
    assert_rows(v, "changes", last, "1/3 ");
    /* the traces are cut below the index */
    assert_int_equal(truncate(traces, 10), 0);
    CHECK_FAILS(view_episode(v, "changes", 1, 0, 2, 0, NULL, &out, &err), ST_IO, "changed");
    last.text = "sample";
    assert_rows(v, "changes", last, "");
    /* an index of rubbish, and one that turns back */
    put(run, EPISODES_FILE, "rubbish\n");
    assert_rows(v, "changes", view_query_all(), "");
    /* links lead nowhere */
    CHECK(fs_mkdirs(in_tmp("elsewhere"), &err));
    write_file(elsewhere, "{\"format\":\"episodes\",\"version\":1}\n");
    CHECK(fs_remove(index, &err));
    CHECK(fs_remove(traces, &err));
    assert_int_equal(symlink(elsewhere, index), 0);
    assert_rows(v, "changes", view_query_all(), "");
    CLEANUP_FREE char *moved = fs_join(in_tmp("elsewhere"), "run");
    assert_int_equal(rename(run, moved), 0);
    assert_int_equal(symlink(moved, run), 0);
    CHECK_FAILS(view_run(v, "changes", &out, &err), ST_IO, "no run");
    assert_int_equal(unlink(run), 0);
    CHECK_FAILS(view_episodes(v, "changes", &any, &out, &err), ST_IO, "no run");
    static const char *const names[] = {"", ".", "..", "../elsewhere/run", "a/b"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) CHECK_FAILS(view_run(v, names[i], &out, &err), ST_IO, "no run");
    view_close(v);
}

/* The metrics that the run's alerts name, with blanks behind each. */
static void assert_alerts(struct run_view *v, const char *run, const char *expected) {
    CLEANUP_STR struct str out = STR_INIT, found = STR_INIT;
    size_t i;
    json_t *alert;
    CHECK(view_run(v, run, &out, &err));
    CLEANUP_JSON json_t *o = parsed(&out);
    json_array_foreach(json_object_get(o, "alerts"), i, alert) {
        str_addf(&found, "%s ", json_string_value(json_object_get(alert, "metric")));
        assert_non_null(json_string_value(json_object_get(alert, "text")));
    }
    assert_string_equal(str_c(&found), expected);
}

/* Each alert, by the least that calls it and the most that does not. */
static void alerts(void **state) {
    (void)state;
    static const struct {
        const char *last, *alerts; /* the metrics of the last step */
    } rows[] = {
        {"\"policy/truncated_rate\":0.3", ""},
        {"\"policy/truncated_rate\":0.31", "policy/truncated_rate "},
        {"\"batch/num_groups\":10,\"batch/constant_groups\":7", ""},
        {"\"batch/num_groups\":10,\"batch/constant_groups\":8", "batch/constant_groups "},
        {"\"missing/share\":0.05", ""},
        {"\"missing/share\":0.06", "missing/share "},
        {"\"kernel/cheat_rate\":0.06", ""},
        {"\"kernel/cheat_rate\":0.08", "kernel/cheat_rate "}, /* 0.02 before */
        {"\"policy/entropy\":0.06", ""},
        {"\"policy/entropy\":0.04", "policy/entropy "}, /* 0.5 at first */
        {"\"train/kl_sampler_trainer\":0", ""},
        {"\"train/kl_sampler_trainer\":-1e-9", "train/kl_sampler_trainer "},
        {"\"train/grad_norm\":19", ""},
        {"\"train/grad_norm\":21", "train/grad_norm "}, /* 2 before */
        {"\"policy/truncated_rate\":null", ""},
        {"\"policy/truncated_rate\":0.9,\"missing/share\":0.9", "policy/truncated_rate missing/share "},
    };
    CLEANUP_FREE char *run = new_run("alerts", 0, true);
    struct run_view *v = open_view();
    assert_alerts(v, "alerts", ""); /* nothing is known yet */
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        CLEANUP_STR struct str lines = STR_INIT;
        for (int k = 0; k < 8; k++)
            str_addf(&lines, "{\"step\":%d,\"kernel/cheat_rate\":0.02,\"policy/entropy\":0.5,\"train/grad_norm\":2}\n",
                     k);
        str_addf(&lines, "{\"step\":8,%s}\n", rows[i].last);
        put(run, "metrics.jsonl", lines.p);
        assert_alerts(v, "alerts", rows[i].alerts);
    }
    view_close(v);
}

/* The page to share: what it shows is text; what does not fit is left out and counted. */
static void report(void **state) {
    (void)state;
    CLEANUP_FREE char *run = new_run("shared", 3, true);
    CLEANUP_STR struct str out = STR_INIT, first = STR_INIT, small = STR_INIT;
    struct run_view *v = open_view();
    CHECK(view_report(v, "shared", NULL, 20000000, &out, &err));
    assert_null(strstr(out.p, "p<1>"));
    assert_non_null(strstr(out.p, "<td>p&#60;1&#62;</td>"));
    assert_non_null(strstr(out.p, "Answers of step 2"));
    assert_non_null(strstr(out.p, "step 2 &#34;sample&#34; 1")); /* of that step */
    assert_null(strstr(out.p, "step 0 &#34;sample&#34; 1"));
    assert_non_null(strstr(out.p, "</svg>"));
    assert_non_null(strstr(out.p, "seed: 1"));
    assert_null(strstr(out.p, "are not in this file"));
    CHECK(view_report(v, "shared", "step_from=0&step_to=0", 20000000, &first, &err));
    assert_non_null(strstr(first.p, "step 0 &#34;sample&#34; 1"));
    CHECK_FAILS(view_report(v, "shared", "step_from=7", 20000000, &small, &err), ST_INVALID,
                "no answers of step_from=7");
    str_clear(&small);
    CHECK(view_report(v, "shared", NULL, 2 << 20, &small, &err));
    assert_non_null(strstr(small.p, "6 answers are not in this file")); /* the best of two problems, four of the step */
    assert_non_null(strstr(small.p, "</html>"));
    assert_true(small.len < out.len);
    view_close(v);
}

/* The sections of a page to share that this filter chooses; caller frees. */
static char *chosen(struct run_view *v, const char *filter) {
    CLEANUP_STR struct str out = STR_INIT;
    CHECK(view_report(v, "chosen", filter, 20000000, &out, &err));
    const char *begin = strstr(out.p, "<h2>Chosen answers");
    assert_non_null(begin);
    return xstrdup(begin);
}

/* Answers are chosen for the page as the page of episodes does it. */
static void report_of_a_filter(void **state) {
    (void)state;
    CLEANUP_FREE char *run = new_run("chosen", 3, true);
    struct run_view *v = open_view();
    CLEANUP_FREE char *wrong = chosen(v, "outcome=compile_error&reward_min=2&text=step%201+%22sam");
    assert_non_null(strstr(wrong, "<td>1/0/2/0</td>"));
    assert_null(strstr(wrong, "<td>1/0/1/0</td>"));
    assert_null(strstr(wrong, "<td>0/0/2/0</td>"));
    CLEANUP_FREE char *fast = chosen(v, "speedup_min=4&sort=speedup&problem=");
    const char *first = strstr(fast, "<td>2/0/3/0</td>"), *second = strstr(fast, "<td>1/0/3/0</td>");
    assert_true(first && second && first < second);
    assert_null(strstr(fast, "<td>0/0/3/0</td>"));
    static const struct {
        const char *filter, *said;
    } wrongs[] = {{"reward", "NAME=VALUE"},       {"reward_min=x", "expected a number"},
                  {"step_to=-1", "whole number"}, {"sort=name", "or tokens"},
                  {"limit=5", "no such filter"},  {"text=%00", "no answers of text=%00"}};
    for (size_t i = 0; i < ARRAY_LEN(wrongs); i++) {
        CLEANUP_STR struct str out = STR_INIT;
        const enum status st = view_report(v, "chosen", wrongs[i].filter, 20000000, &out, &err);
        assert_int_equal(st, i + 1 < ARRAY_LEN(wrongs) ? ST_USAGE : ST_INVALID);
        assert_non_null(strstr(err.msg, wrongs[i].said));
    }
    view_close(v);
}

static json_t *listed(struct run_view *v, const char *name) {
    CLEANUP_STR struct str out = STR_INIT;
    size_t i;
    json_t *run;
    CHECK(view_runs(v, &out, &err));
    CLEANUP_JSON json_t *o = parsed(&out);
    json_array_foreach(json_object_get(o, "runs"), i, run) {
        if (strcmp(json_string_value(json_object_get(run, "name")), name) == 0) return json_incref(run);
    }
    return NULL;
}

static void assert_progress(struct run_view *v, int64_t steps, double fraction, const char *state) {
    CLEANUP_STR struct str out = STR_INIT;
    CHECK(view_run(v, "progress", &out, &err));
    CLEANUP_JSON json_t *one = parsed(&out), *of_list = listed(v, "progress");
    json_t *const both[] = {one, of_list};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(json_integer_value(json_object_get(both[i], "steps")), steps);
        assert_true(json_real_value(json_object_get(both[i], "fraction")) == fraction);
        assert_string_equal(json_string_value(json_object_get(both[i], "state")), state);
    }
}

static void append(const char *run, const char *name, const char *text) {
    CLEANUP_FREE char *path = fs_join(run, name);
    FILE *f = fopen(path, "a");
    fputs(text, f);
    fclose(f);
}

/* Steps and fraction follow the metrics as they grow and are cut; an error that a link leads to is nobody's. */
static void progress(void **state) {
    (void)state;
    CLEANUP_FREE char *run = new_run("progress", 0, true);
    CLEANUP_FREE char *log = fs_join(run, "logs.log"), *elsewhere = fs_join(in_tmp("."), "other.log");
    struct run_view *v = open_view();
    assert_progress(v, 0, 0, "stopped");
    append(run, "metrics.jsonl", "{\"step\":0,\"progress/fraction\":0.25}\n{\"step\":1,\"eval/correct\":1}\n");
    assert_progress(v, 1, 0.25, "stopped");
    append(run, "metrics.jsonl", "{\"step\":1,\"progress/fraction\":0.5}\n{\"step\":2,\"progr");
    assert_progress(v, 2, 0.5, "stopped");
    append(run, "metrics.jsonl", "ess/fraction\":0.75}\n");
    assert_progress(v, 3, 0.75, "stopped");
    put(run, "metrics.jsonl", "{\"step\":0,\"progress/fraction\":0.25}\n");
    assert_progress(v, 1, 0.25, "stopped");
    append(run, "metrics.jsonl", "rubbish\n");
    assert_progress(v, 1, 0.25, "stopped");
    write_file(elsewhere, "12:00 error of another\n");
    assert_int_equal(symlink(elsewhere, log), 0);
    assert_progress(v, 1, 0.25, "stopped");
    assert_int_equal(unlink(log), 0);
    put(run, "logs.log", "12:00 error of its own\n");
    assert_progress(v, 1, 0.25, "failed");
    view_close(v);
}

static void many_runs(void **state) {
    (void)state;
    struct run_view *v = open_view();
    char name[16];
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < 20; i++) { /* more than are held */
            snprintf(name, sizeof name, "many%d", i);
            if (turn == 0) free(new_run(name, 1, true));
            assert_rows(v, name, view_query_all(), "0/3 0/2 0/1 0/0 ");
        }
    CLEANUP_STR struct str list = STR_INIT, one = STR_INIT;
    CHECK(view_runs(v, &list, &err));
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "\"many%d\"", i);
        assert_non_null(strstr(list.p, name));
    }
    CHECK(view_run(v, "many3", &one, &err));
    CLEANUP_JSON json_t *o = parsed(&one);
    assert_int_equal(json_integer_value(json_object_get(o, "episodes")), 4);
    assert_string_equal(json_string_value(json_object_get(o, "config")), "seed: 1\n");
    assert_string_equal(json_string_value(json_object_get(o, "index")), "ok");
    view_close(v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(filters_and_order),
        cmocka_unit_test(pages_of_rows),
        cmocka_unit_test(one_answer),
        cmocka_unit_test(series),
        cmocka_unit_test(without_an_index),
        cmocka_unit_test(runs_that_change),
        cmocka_unit_test(report),
        cmocka_unit_test(report_of_a_filter),
        cmocka_unit_test(alerts),
        cmocka_unit_test(plain_lines),
        cmocka_unit_test(orders),
        cmocka_unit_test(many_runs),
        cmocka_unit_test(progress),
    };
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
