/* kernelrl runs: what is trained here, what came of it, and an end to it. */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/str.h"
#include "cli/cli.h"
#include "cli/runs_dashboard.h"
#include "io/json.h"
#include "rl/run/watch.h"
#include "rl/run/watch_runs.h"
#include "rl/view/view.h"
#include "verify/verify.h"

enum { NAMES_MAX = 64, LOG_MAX_BYTES = 1 << 30, REPORT_MAX_BYTES = 20 * 1000 * 1000 };

struct runs_args {
    const char *runs_dir;
    char **name;
    int n_names;
    int64_t count; /* -n; 0: the command's own */
    double timeout_s, interval_s;
    bool all, json, follow, once, yes;
    const volatile bool *cancel;
    int port;
    const char *html, *csv; /* files of export; NULL: not asked for */
    const char *filter;     /* of export; NULL: all answers of the step */
    int64_t step;           /* -1: none is named */
};

static double percent(double rate) { return 100 * rate; }

static void age_text(int64_t seconds, char out[16]) {
    static const struct {
        int64_t s;
        const char *unit;
    } units[] = {{86400, "d"}, {3600, "h"}, {60, "min"}, {1, "s"}};
    size_t i = 0;
    if (seconds < 0) seconds = 0;
    while (i + 1 < ARRAY_LEN(units) && seconds < units[i].s) i++;
    snprintf(out, 16, "%lld %s", (long long)(seconds / units[i].s), units[i].unit);
}

static void bytes_text(int64_t bytes, char out[16]) {
    const char *const unit[] = {"B", "kB", "MB", "GB", "TB"};
    double v = (double)bytes;
    size_t i = 0;
    for (; v >= 1000 && i + 1 < ARRAY_LEN(unit); i++) v /= 1000;
    snprintf(out, 16, i ? "%.1f %s" : "%.0f %s", v, unit[i]);
}

/* ---- list, status -------------------------------------------------------------------------------------------------*/

static const char *const figures[] = {"reward/mean", "kernel/correct_rate", "kernel/geomean_speedup", "time/total_s"};

static enum status print_run(const struct run_info *r, bool json, struct err *e) {
    struct run_series s;
    char age[16];
    TRY(run_series_read(r->dir, figures, (int)ARRAY_LEN(figures), false, &s, e));
    age_text((int64_t)time(NULL) - r->changed_s, age);
    if (json) {
        struct str out = STR_INIT;
        js_begin(&out, NULL, '{');
        js_put_str(&out, "name", r->name);
        js_put_str(&out, "dir", r->dir);
        js_put_str(&out, "state", run_state_name(r->state));
        js_put_i64(&out, "pid", r->pid);
        js_put_i64(&out, "steps", r->steps);
        js_put_f64(&out, "fraction", r->fraction);
        js_put_f64(&out, "reward", series_last(&s, 0));
        js_put_f64(&out, "correct_rate", series_last(&s, 1));
        js_put_f64(&out, "geomean_speedup", series_last(&s, 2));
        js_put_i64(&out, "changed", r->changed_s);
        js_end(&out, '}');
        puts(str_c(&out));
        str_free(&out);
    } else {
        printf("%-28s %-9s %6lld", r->name, run_state_name(r->state), (long long)r->steps);
        if (isnan(r->fraction))
            printf("   -  ");
        else
            printf(" %3.0f %%", percent(r->fraction));
        if (isnan(series_last(&s, 0)))
            printf("  %7s %8s %8s", "-", "-", "-");
        else
            printf("  %7.3f %6.1f %%", series_last(&s, 0), percent(series_last(&s, 1)));
        if (!isnan(series_last(&s, 2)))
            printf(" %6.2fx", series_last(&s, 2));
        else if (!isnan(series_last(&s, 0)))
            printf(" %7s", "-");
        printf("  %8s", age);
        if (r->pid > 0) printf("  process %d", (int)r->pid);
        putchar('\n');
    }
    run_series_free(&s);
    return ST_OK;
}

static void print_header(void) {
    printf("%-28s %-9s %6s %5s  %7s %8s %7s  %8s\n", "run", "state", "steps", "done", "reward", "correct", "speed",
           "changed");
}

static enum status list(const struct runs_args *a, bool running_only, struct err *e) {
    struct run_info *all;
    int n, shown = 0;
    const int64_t most = a->count ? a->count : 20;
    TRY(runs_list(a->runs_dir, &all, &n, e));
    enum status st = ST_OK;
    for (int i = 0; i < n; i++) {
        const bool wanted = running_only ? all[i].state == RUN_RUNNING : shown < most;
        if (st == ST_OK && wanted) {
            if (shown++ == 0 && !a->json) print_header();
            st = print_run(&all[i], a->json, e);
        }
        run_info_free(&all[i]);
    }
    if (shown == 0 && !a->json) printf(running_only ? "nothing is running in %s\n" : "no runs in %s\n", a->runs_dir);
    if (shown < n && !running_only && !a->json) printf("(%d of %d runs)\n", shown, n);
    free(all);
    return st;
}

static enum status list_all(const struct runs_args *a, struct err *e) { return list(a, false, e); }
static enum status list_running(const struct runs_args *a, struct err *e) { return list(a, true, e); }

/* Calls fn for each run named on the command line. */
typedef enum status run_fn(const struct runs_args *a, struct run_info *r, struct err *e);
static enum status each(const struct runs_args *a, run_fn *fn, struct err *e) {
    for (int i = 0; i < a->n_names; i++) {
        CLEANUP_FREE char *dir = NULL;
        struct run_info r;
        TRY(runs_find(a->runs_dir, a->name[i], &dir, e));
        TRY(run_info_read(dir, &r, e));
        const enum status st = fn(a, &r, e);
        run_info_free(&r);
        TRY(st);
    }
    return ST_OK;
}

static enum status status_of(const struct runs_args *a, struct run_info *r, struct err *e) {
    TRY(print_run(r, a->json, e));
    if (r->error && !a->json) printf("  %s\n", r->error);
    return ST_OK;
}

/* ---- stop ---------------------------------------------------------------------------------------------------------*/

/* Asks the process that holds the lock, and waits until the lock is free. */
static enum status stop(const struct runs_args *a, struct run_info *r, struct err *e) {
    if (r->state != RUN_RUNNING) return FAIL(e, ST_INVALID, "%s: is not running", r->dir);
    if (r->pid == 0)
        return FAIL(e, ST_INVALID, "%s: runs, but its lock does not say as which process; end it by hand", r->dir);
    if (kill(r->pid, SIGINT) != 0)
        return FAIL(e, ST_FAILED, "%s: process %d: %s", r->dir, (int)r->pid, strerror(errno));
    const double end = clock_now_s() + a->timeout_s;
    for (;;) {
        struct run_info now;
        TRY(run_info_read(r->dir, &now, e));
        const bool ended = now.state != RUN_RUNNING || now.pid != r->pid;
        const int64_t steps = now.steps;
        run_info_free(&now);
        if (ended) {
            log_progress_end();
            printf("%s: stopped after %lld steps\n", r->dir, (long long)steps);
            return ST_OK;
        }
        if (clock_now_s() > end)
            return FAIL(e, ST_TIMEOUT, "%s: asked to stop, but it still works on its step after %.0f s (--timeout)",
                        r->dir, a->timeout_s);
        if (a->cancel && *a->cancel) return FAIL(e, ST_CANCELLED, "%s: asked to stop; not waiting for it", r->dir);
        log_progress("%s: waiting for it to stop", r->dir);
        poll(NULL, 0, 200);
    }
}

static enum status stop_all(const struct runs_args *a, struct err *e) {
    struct run_info *all;
    int n, stopped = 0;
    TRY(runs_list(a->runs_dir, &all, &n, e));
    enum status st = ST_OK;
    for (int i = 0; i < n; i++) {
        if (st == ST_OK && all[i].state == RUN_RUNNING) {
            stopped++;
            st = stop(a, &all[i], e);
        }
        run_info_free(&all[i]);
    }
    free(all);
    if (stopped == 0) printf("nothing is running in %s\n", a->runs_dir);
    return st;
}

/* ---- logs, metrics ------------------------------------------------------------------------------------------------*/

static enum status logs(const struct runs_args *a, struct run_info *r, struct err *e) {
    struct str path = STR_INIT;
    str_addf(&path, "%s/logs.log", r->dir);
    CLEANUP_FREE char *file = str_steal(&path), *text = NULL;
    size_t n, at;
    TRY(fs_read(file, LOG_MAX_BYTES, &text, &n, e));
    int64_t lines = a->count ? a->count : 50;
    for (at = n; at > 0; at--)
        if (text[at - 1] == '\n' && at < n && --lines == 0) break;
    fwrite(text + at, 1, n - at, stdout);
    for (bool last = false; a->follow && !last && !*a->cancel;) {
        fflush(stdout);
        struct run_info now;
        TRY(run_info_read(r->dir, &now, e));
        last = now.state != RUN_RUNNING; /* looked at in front of the file: nothing said before the end is missed */
        run_info_free(&now);
        free(text);
        text = NULL;
        size_t m;
        TRY(fs_read(file, LOG_MAX_BYTES, &text, &m, e));
        if (m > n) fwrite(text + n, 1, m - n, stdout);
        n = m;
        if (!last) poll(NULL, 0, 300);
    }
    return ST_OK;
}

/* Answers without a verdict, where there were any: of all, and of which problems. */
static enum status missing(const struct run_info *r, struct err *e) {
    enum { MOST = 5 };
    static const char *const names[] = {"kernel/missing", "batch/samples", "missing/groups_dropped"};
    struct run_series s;
    struct run_last of;
    TRY(run_series_read(r->dir, names, (int)ARRAY_LEN(names), false, &s, e));
    const double without = series_sum(&s, 0), all = series_sum(&s, 1), dropped = series_sum(&s, 2);
    run_series_free(&s);
    if (!(without > 0)) return ST_OK;
    TRY(run_last_read(r->dir, "missing/problem/", &of, e));
    printf("no verdict: %.0f of %.0f answers; not learned from: %.0f groups\n", without, all,
           isnan(dropped) ? 0 : dropped);
    for (int i = 0; i < of.n && i < MOST; i++) printf("%9.1f %%  %s\n", percent(of.item[i].value), of.item[i].name);
    run_last_free(&of);
    return ST_OK;
}

/* Single and several turns alike. */
static enum status metrics(const struct runs_args *a, struct run_info *r, struct err *e) {
    static const char *const names[] = {"reward/mean",         "reward/std",         "kernel/compile_rate",
                                        "kernel/correct_rate", "kernel/fast_1_rate", "kernel/geomean_speedup",
                                        "policy/entropy",      "time/total_s"};
    struct run_series s;
    TRY(run_series_read(r->dir, names, (int)ARRAY_LEN(names), false, &s, e));
    printf("%s: %lld steps\n%6s  %-17s %8s %8s %8s %8s %8s %8s\n", r->dir, (long long)s.n, "step", "reward", "compile",
           "correct", "faster", "speed", "entropy", "time");
    const int64_t from = a->count && s.n > a->count ? s.n - a->count : 0;
    for (int64_t i = from; i < s.n; i++) {
        printf("%6lld  %7.3f +- %5.3f %6.1f %% %6.1f %% %6.1f %%", (long long)s.step[i], s.value[0][i], s.value[1][i],
               percent(s.value[2][i]), percent(s.value[3][i]), percent(s.value[4][i]));
        if (isnan(s.value[5][i]))
            printf(" %8s", "-"); /* nothing was timed */
        else
            printf(" %7.2fx", s.value[5][i]);
        printf(" %8.3f %6.1f s\n", s.value[6][i], s.value[7][i]);
    }
    run_series_free(&s);
    return missing(r, e);
}

static enum status uniform(const struct runs_args *a, struct run_info *r, struct err *e) {
    static const char *const names[] = {"batch/constant_groups", "batch/num_groups"};
    struct run_series s;
    int64_t wasted = 0;
    (void)a;
    TRY(run_series_read(r->dir, names, 2, false, &s, e));
    for (int64_t i = 0; i < s.n; i++) wasted += s.value[1][i] > 0 && s.value[0][i] >= s.value[1][i];
    const double constant = series_sum(&s, 0), all = series_sum(&s, 1);
    printf("%s: %.0f of %.0f groups had equal scores%s; all of them in %lld of %lld steps\n", r->dir,
           isnan(constant) ? 0 : constant, isnan(all) ? 0 : all, all > 0 ? "" : " (none yet)", (long long)wasted,
           (long long)s.n);
    run_series_free(&s);
    return ST_OK;
}

/* ---- summary, compare, disk ---------------------------------------------------------------------------------------*/

struct account {
    double hours, tokens, samples, verdicts, correct;
};

static enum status add_account(const struct run_info *r, struct account *sum, struct err *e) {
    enum { HOURS, TOKENS, SAMPLES, VERDICTS, CORRECT, GENERATE, VERIFY, TRAIN, N };
    static const char *const names[N] = {"time/device_hours", "policy/answer_tokens", "batch/samples", "outcome/*",
                                         "outcome/correct",   "time/generate_s",      "time/verify_s", "time/train_s"};
    struct run_series s;
    TRY(run_series_read(r->dir, names, N, false, &s, e));
    double tokens = 0, v[N];
    for (int64_t i = 0; i < s.n; i++)
        if (isfinite(s.value[TOKENS][i] * s.value[SAMPLES][i])) tokens += s.value[TOKENS][i] * s.value[SAMPLES][i];
    for (int k = 0; k < N; k++) v[k] = isnan(series_sum(&s, k)) ? 0 : series_sum(&s, k);
    const double parts = fmax(1e-9, v[GENERATE] + v[VERIFY] + v[TRAIN]);
    printf("%-28s %-9s %6lld %9.3f h %10.0f %12.0f %10.0f %10.0f  %3.0f/%3.0f/%3.0f\n", r->name,
           run_state_name(r->state), (long long)s.n, v[HOURS], v[SAMPLES], tokens, v[VERDICTS], v[CORRECT],
           percent(v[GENERATE] / parts), percent(v[VERIFY] / parts), percent(v[TRAIN] / parts));
    sum->hours += v[HOURS];
    sum->samples += v[SAMPLES];
    sum->tokens += tokens;
    sum->verdicts += v[VERDICTS];
    sum->correct += v[CORRECT];
    run_series_free(&s);
    return ST_OK;
}

static enum status summary(const struct runs_args *a, struct err *e) {
    struct account sum = {0};
    struct run_info *all = NULL;
    int n = a->n_names;
    enum status st = ST_OK;
    if (n == 0)
        TRY(runs_list(a->runs_dir, &all, &n, e));
    else
        all = xcalloc((size_t)n, sizeof *all);
    for (int i = 0; i < a->n_names && st == ST_OK; i++) {
        CLEANUP_FREE char *dir = NULL;
        st = runs_find(a->runs_dir, a->name[i], &dir, e);
        if (st == ST_OK) st = run_info_read(dir, &all[i], e);
    }
    printf("%-28s %-9s %6s %11s %10s %12s %10s %10s  %s\n", "run", "state", "steps", "device", "answers", "tokens",
           "verdicts", "correct", "sampling/verdicts/training, %");
    for (int i = 0; i < n; i++) {
        if (st == ST_OK) st = add_account(&all[i], &sum, e);
        run_info_free(&all[i]);
    }
    free(all);
    if (st == ST_OK && n != 1)
        printf("%-28s %-9s %6s %9.3f h %10.0f %12.0f %10.0f %10.0f\n", "all", "", "", sum.hours, sum.samples,
               sum.tokens, sum.verdicts, sum.correct);
    return st;
}

static enum status compare(const struct runs_args *a, struct err *e) {
    static const char *const names[] = {"reward/mean",        "kernel/compile_rate",  "kernel/correct_rate",
                                        "kernel/fast_1_rate", "kernel/cheat_rate",    "kernel/geomean_speedup",
                                        "policy/entropy",     "policy/answer_tokens", "train/grad_norm",
                                        "time/total_s"};
    static const char *const evals[] = {"eval/correct_rate", "eval/fast_1_rate", "eval/geomean_speedup"};
    enum { N = ARRAY_LEN(names), M = ARRAY_LEN(evals) };
    struct run_series s[NAMES_MAX] = {0}, ev[NAMES_MAX] = {0};
    struct run_info r[NAMES_MAX] = {0};
    enum status st = ST_OK;
    for (int i = 0; i < a->n_names && st == ST_OK; i++) {
        CLEANUP_FREE char *dir = NULL;
        st = runs_find(a->runs_dir, a->name[i], &dir, e);
        if (st == ST_OK) st = run_info_read(dir, &r[i], e);
        if (st == ST_OK) st = run_series_read(dir, names, N, false, &s[i], e);
        if (st == ST_OK) st = run_series_read(dir, evals, M, true, &ev[i], e);
    }
    if (st == ST_OK) {
        printf("%-24s", "mean of last 10 steps");
        for (int i = 0; i < a->n_names; i++) printf(" %16.16s", r[i].name);
        printf("\n%-24s", "steps");
        for (int i = 0; i < a->n_names; i++) printf(" %16lld", (long long)s[i].n);
        for (int k = 0; k < (int)N + (int)M; k++) {
            printf("\n%-24s", k < (int)N ? names[k] : evals[k - (int)N]);
            for (int i = 0; i < a->n_names; i++) {
                const double v = k < (int)N ? series_mean(&s[i], k, 10) : series_last(&ev[i], k - (int)N);
                if (isnan(v))
                    printf(" %16s", "-");
                else
                    printf(" %16.4g", v);
            }
        }
        putchar('\n');
    }
    for (int i = 0; i < a->n_names; i++) {
        run_series_free(&s[i]);
        run_series_free(&ev[i]);
        run_info_free(&r[i]);
    }
    return st;
}

static int largest_first(const void *a, const void *b) {
    const int64_t x = ((const struct run_info *)a)->changed_s, y = ((const struct run_info *)b)->changed_s;
    return (x < y) - (x > y);
}

static enum status disk(const struct runs_args *a, struct err *e) {
    struct run_info *all;
    int n;
    int64_t total = 0;
    char text[16];
    TRY(runs_list(a->runs_dir, &all, &n, e));
    for (int i = 0; i < n; i++) {
        all[i].changed_s = tree_bytes(all[i].dir); /* what to sort by here */
        total += all[i].changed_s;
    }
    qsort(all, (size_t)n, sizeof *all, largest_first);
    for (int i = 0; i < n; i++) {
        bytes_text(all[i].changed_s, text);
        printf("%10s  %s\n", text, all[i].dir);
        run_info_free(&all[i]);
    }
    bytes_text(total, text);
    printf("%10s  in %d runs\n", text, n);
    free(all);
    return ST_OK;
}

/* ---- clean, resume ------------------------------------------------------------------------------------------------*/

static enum status clean(const struct runs_args *a, struct run_info *r, struct err *e) {
    char size[16], answer[16] = "";
    if (r->state == RUN_RUNNING) return FAIL(e, ST_INVALID, "%s: is running; stop it first", r->dir);
    bytes_text(tree_bytes(r->dir), size);
    if (!a->yes) {
        printf("delete %s (%lld steps, %s)? [y/N] ", r->dir, (long long)r->steps, size);
        fflush(stdout);
        if (!fgets(answer, sizeof answer, stdin) || (answer[0] != 'y' && answer[0] != 'Y')) {
            printf("%s: kept\n", r->dir);
            return ST_OK;
        }
    }
    TRY(fs_remove(r->dir, e));
    printf("%s: deleted (%s)\n", r->dir, size);
    return ST_OK;
}

/* `train` with the run's own configuration, in its own directory, wherever that is now. */
static int resume(const char *runs_dir, int argc, char **argv) {
    struct err e;
    CLEANUP_FREE char *dir = NULL;
    struct run_info r;
    if (runs_find(runs_dir, argv[0], &dir, &e) != ST_OK || run_info_read(dir, &r, &e) != ST_OK) return args_report(&e);
    const bool running = r.state == RUN_RUNNING;
    run_info_free(&r);
    if (running) {
        (void)FAIL(&e, ST_INVALID, "%s: is running already", dir);
        return args_report(&e);
    }
    struct arena a = ARENA_INIT;
    char **args = arena_array(&a, char *, argc + 5);
    int n = 0;
    args[n++] = arena_strdup(&a, "train");
    args[n++] = arena_printf(&a, "--config=%s/config.yaml", dir);
    args[n++] = arena_printf(&a, "log_path=%s", dir);
    for (int i = 1; i < argc; i++) args[n++] = argv[i];
    const int code = cmd_train(n, args);
    arena_free(&a);
    return code;
}

/* ---- dashboard, export --------------------------------------------------------------------------------------------*/

static enum status write_html(struct run_view *v, const struct runs_args *a, struct err *e) {
    CLEANUP_STR struct str out = STR_INIT, filter = STR_INIT;
    if (a->filter) str_adds(&filter, a->filter);
    if (a->step >= 0) {
        const long long step = (long long)a->step;
        str_addf(&filter, "%sstep_from=%lld&step_to=%lld", filter.len > 0 ? "&" : "", step, step);
    }
    TRY(view_report(v, a->name[0], filter.p, REPORT_MAX_BYTES, &out, e));
    TRY(fs_write_atomic(a->html, out.p, out.len, e));
    printf("%s\n", a->html);
    return ST_OK;
}

static enum status write_csv(struct run_view *v, const struct runs_args *a, struct err *e) {
    CLEANUP_STR struct str out = STR_INIT;
    TRY(view_csv(v, a->name[0], NULL, &out, e));
    TRY(fs_write_atomic(a->csv, out.p, out.len, e));
    printf("%s\n", a->csv);
    return ST_OK;
}

static enum status export_run(const struct runs_args *a, struct err *e) {
    struct run_view *v = view_open(a->runs_dir);
    enum status st = a->html ? write_html(v, a, e) : ST_OK;
    if (st == ST_OK && a->csv) st = write_csv(v, a, e);
    view_close(v);
    return st;
}

static enum status dashboard(const struct runs_args *a, struct err *e) {
    return runs_dashboard(a->runs_dir, a->port, e);
}

/* ---- the command --------------------------------------------------------------------------------------------------*/

#define A struct runs_args
static const struct args_flag flags[] = {
    FLAG_TEXT(A, runs_dir, "runs-dir", "DIR", "runs", "Runs are in this folder."),
    FLAG_INT(A, count, NULL, "N", 1, 999999999, "20 runs, 50 lines, all steps", "So many are shown, the newest.",
             .letter = 'n', .of = "list logs metrics"),
    FLAG_BOOL(A, json, "json", "Each run is one JSON object a line.", .of = "list status"),
    FLAG_BOOL(A, all, "all", "All runs are stopped.", .of = "stop"),
    FLAG_FLOAT(A, timeout_s, "timeout", "S", 0, 999999999, "900", "It is waited so many seconds for the end.",
               .of = "stop"),
    FLAG_BOOL(A, follow, NULL, "What follows is printed, too.", .letter = 'f', .of = "logs"),
    FLAG_FLOAT(A, interval_s, "interval", "S", 0.1, 999999999, "5", "Curves are drawn anew after so many seconds.",
               .of = "watch"),
    FLAG_BOOL(A, once, "once", "Curves are drawn once.", .of = "watch"),
    FLAG_INT(A, port, "port", "N", 0, 65535, "8765",
             "The page is served there, to this machine alone; 0 takes a free port.", .of = "dashboard"),
    FLAG_TEXT(A, html, "html", "FILE", NULL,
              "Curves, the best kernels and answers of a step become one page that needs no server.", .of = "export"),
    FLAG_TEXT(A, csv, "csv", "FILE", NULL, "All metrics become a table, a line a step.", .of = "export"),
    FLAG_INT(A, step, "step", "N", 0, 999999999, "the last one, or with --filter all",
             "The page has the answers of this step.", .of = "export"),
    FLAG_TEXT(A, filter, "filter", "FILTER", NULL,
              "The page has the answers that this chooses, such as outcome=correct&reward_min=0.5: what the address of "
              "the dashboard's page of episodes has behind its question mark.",
              .of = "export"),
    FLAG_BOOL(A, yes, "yes", "It is not asked.", .of = "clean"),
};
#undef A

#define ONE .min = 1, .max = 1, .expected = "the NAME of one run"
static const struct args_sub subs[] = {
    {.name = "list", .help = "Prints runs, the newest first."},
    {.name = "status",
     .words = "[NAME]...",
     .max = NAMES_MAX,
     .help = "Prints what is running, or how the named ones "
             "stand."},
    {.name = "stop",
     .words = "NAME...|--all",
     .max = NAMES_MAX,
     .help = "Ends a run behind the step it is in; its state is saved."},
    {.name = "resume",
     .words = "NAME [--detach] [key=value]...",
     .min = 1,
     .max = -1,
     .expected = "the NAME of a run",
     .help = "Goes on where it was.",
     .rest = true},
    {.name = "logs", .words = "NAME", ONE, .help = "Prints the last lines of its log."},
    {.name = "metrics", .words = "NAME", ONE, .help = "Prints a line a step."},
    {.name = "watch", .words = "NAME", ONE, .help = "Draws curves in the terminal, until it ends."},
    {.name = "summary",
     .words = "[NAME]...",
     .max = NAMES_MAX,
     .help = "Prints device-hours, tokens and verdicts; of all runs without a name."},
    {.name = "compare",
     .words = "NAME NAME...",
     .min = 2,
     .max = NAMES_MAX,
     .expected = "the NAMEs of two runs",
     .help = "Prints their last figures side by side."},
    {.name = "uniform",
     .words = "NAME",
     ONE,
     .help = "Counts groups whose answers all scored the same: they teach nothing."},
    {.name = "dashboard", .help = "Serves a page that shows runs and their answers, until Ctrl-C."},
    {.name = "export", .words = "NAME", ONE, .help = "Writes a run as a page to share, or its metrics as a table."},
    {.name = "disk", .help = "Prints what they take."},
    {.name = "clean",
     .words = "NAME...",
     .min = 1,
     .max = NAMES_MAX,
     .expected = "the NAME of a run",
     .help = "Deletes runs, after a question."},
};

const struct args_command runs_command = {
    .name = "runs",
    .usage = "COMMAND [NAME]... [FLAG]...",
    .flags = flags,
    .n_flags = ARRAY_LEN(flags),
    .subs = subs,
    .n_subs = ARRAY_LEN(subs),
};

static enum status watch(const struct runs_args *a, struct run_info *r, struct err *e) {
    return watch_run(r->dir, a->interval_s, a->once, a->cancel, e);
}

int cmd_runs(int argc, char **argv) {
    static const struct {
        const char *name;
        run_fn *each;                                               /* of every run that is named */
        enum status (*all)(const struct runs_args *, struct err *); /* where that is NULL, or none is named */
    } commands[] = {{"list", NULL, list_all},    {"status", status_of, list_running},
                    {"stop", stop, stop_all},    {"logs", logs, NULL},
                    {"metrics", metrics, NULL},  {"watch", watch, NULL},
                    {"summary", NULL, summary},  {"compare", NULL, compare},
                    {"uniform", uniform, NULL},  {"disk", NULL, disk},
                    {"clean", clean, NULL},      {"dashboard", NULL, dashboard},
                    {"export", NULL, export_run}};
    struct runs_args a = {.runs_dir = "runs", .timeout_s = 900, .interval_s = 5, .port = 8765, .step = -1};
    struct args given;
    struct err e = {0};
    if (!args_parse(&runs_command, argc, argv, &a, &given)) return given.code;
    const char *command = given.sub->name;
    a.name = given.word;
    a.n_names = given.n_words;
    if (strcmp(command, "resume") == 0) return resume(a.runs_dir, given.n_words, given.word);
    if (strcmp(command, "stop") == 0 && a.all == (a.n_names > 0))
        return args_wrong(&runs_command, &given, "expected the NAME of a run, or --all");
    if (strcmp(command, "export") == 0 && !a.html && !a.csv)
        return args_wrong(&runs_command, &given, "expected --html FILE or --csv FILE");
    if (!a.html && (a.filter || a.step >= 0))
        return args_wrong(&runs_command, &given, "--filter and --step choose answers for --html FILE");
    size_t c = 0;
    while (strcmp(commands[c].name, command) != 0) c++;
    if (a.follow || commands[c].each == stop || commands[c].each == watch) a.cancel = interrupt_flag();
    const enum status st = commands[c].each && (a.n_names > 0 || !commands[c].all) ? each(&a, commands[c].each, &e)
                                                                                   : commands[c].all(&a, &e);
    return st == ST_OK ? 0 : args_report(&e);
}
