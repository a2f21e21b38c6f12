#include "rl/view/view.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "generate/find.h"
#include "io/json.h"
#include "io/jsonl.h"
#include "rl/run/episodes.h"
#include "rl/run/watch_runs.h"
#include "rl/view/internal.h"

enum {
    ROW_MAX_BYTES = 1 << 20,
    METRICS_MAX_BYTES = 16 << 20,
    FRAME_MAX_BYTES = 256 << 20,
    CONFIG_MAX_BYTES = 1 << 20,
    HELD_RUNS = 8, /* whose rows and columns are in memory; a ninth takes the place of the one used least lately */
    SERIES_MAX = 64,
    LIMIT_MAX = 1000,
    COLUMNS_SHOWN = 4096, /* of CSV */
    SEEN_MAX = 65536,     /* names of runs whose progress is in memory */
};
static const double search_s = 0.1; /* of one call */

struct view_held {
    char *name; /* NULL: free */
    int64_t used;
    dev_t dev;
    ino_t ino; /* of the run's directory */
    struct tail rows_tail, columns_tail;
    struct view_rows rows;
    struct columns columns;
    char *index_wrong, *metrics_wrong; /* why lines are missing; NULL: none are */
    bool own_index;                    /* true: rows were made from the traces, of this size and time */
    struct stat traces;
};
struct view_progress { /* of one run */
    struct tail tail;
    int64_t steps;
    double fraction;
    bool has_fraction;
};
struct run_view {
    char *runs_dir;
    struct names seen;              /* runs that were asked for */
    struct view_progress *progress; /* [n_progress], by their numbers in seen */
    uint32_t n_progress;
    int64_t clock; /* counts calls */
    struct view_held held[HELD_RUNS];
};

struct run_view *view_open(const char *runs_dir) {
    struct run_view *v = xcalloc(1, sizeof *v);
    v->runs_dir = xstrdup(runs_dir);
    return v;
}

static void forget_rows(struct view_held *h) {
    rows_free(&h->rows);
    h->rows_tail = (struct tail){0};
    h->own_index = false;
    free(h->index_wrong);
    h->index_wrong = NULL;
}

static void forget_columns(struct view_held *h) {
    columns_free(&h->columns);
    h->columns_tail = (struct tail){0};
    free(h->metrics_wrong);
    h->metrics_wrong = NULL;
}

static void forget(struct view_held *h) {
    forget_rows(h);
    forget_columns(h);
    free(h->name);
    *h = (struct view_held){0};
}

static void forget_progress(struct run_view *v) {
    names_free(&v->seen);
    free(v->progress);
    v->progress = NULL;
    v->n_progress = 0;
}

void view_close(struct run_view *v) {
    if (!v) return;
    forget_progress(v);
    for (int i = 0; i < HELD_RUNS; i++) forget(&v->held[i]);
    free(v->runs_dir);
    free(v);
}

/* ---- a run --------------------------------------------------------------------------------------------------------*/

static bool is_name(const char *run) { return *run && *run != '.' && !strchr(run, '/') && strlen(run) <= 255; }

/* The run's directory, itself and not a link to one. -1: there is none. */
static int open_run(const struct run_view *v, const char *run) {
    if (!is_name(run)) return -1;
    CLEANUP_FREE char *dir = fs_join(v->runs_dir, run);
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    if (fd < 0) return -1;
    const int config = open_plain(fd, "config.yaml", &st);
    if (config < 0) {
        close(fd);
        return -1;
    }
    close(config);
    return fd;
}

static enum status find_run(const struct run_view *v, const char *run, int *dir, struct err *e) {
    *dir = open_run(v, run);
    return *dir >= 0 ? ST_OK : FAIL(e, ST_IO, "there is no run \"%.255s\"", run);
}

static struct view_held *held_run(struct run_view *v, const char *run, int dir) {
    struct view_held *h = NULL;
    struct stat st = {0};
    v->clock++;
    for (int i = 0; i < HELD_RUNS; i++)
        if (v->held[i].name && strcmp(v->held[i].name, run) == 0) h = &v->held[i];
    for (int i = 0; i < HELD_RUNS && !h; i++)
        if (!v->held[i].name) h = &v->held[i];
    for (int i = 0; i < HELD_RUNS && (!h || (h->name && strcmp(h->name, run) != 0)); i++)
        if (!h || v->held[i].used < h->used) h = &v->held[i];
    if (fstat(dir, &st) != 0) st.st_ino = 0;
    if (!h->name || strcmp(h->name, run) != 0 || h->dev != st.st_dev || h->ino != st.st_ino) {
        forget(h);
        h->name = xstrdup(run);
        h->dev = st.st_dev;
        h->ino = st.st_ino;
    }
    h->used = v->clock;
    return h;
}

/* ---- rows ---------------------------------------------------------------------------------------------------------*/

/* take_line_fn */
static enum status take_row(void *ctx, const char *line, size_t n, struct err *e) {
    struct view_held *h = ctx;
    char head[80];
    if (h->rows_tail.at > 0) return rows_add(&h->rows, line, n, e);
    const int len = snprintf(head, sizeof head, "{\"format\":\"episodes\",\"version\":%d}", EPISODES_VERSION);
    if ((size_t)len == n && memcmp(head, line, n) == 0) return ST_OK;
    return FAIL(e, ST_PARSE, "%s is not of version %d", EPISODES_FILE, EPISODES_VERSION);
}

static void note(char **where, enum status st, const struct err *e) {
    free(*where);
    *where = st == ST_OK ? NULL : xstrdup(e->msg);
}

/* A run without an index, from before there was one: rows from its traces. They are made anew when the traces change.
 */
static void rows_of_traces(struct view_held *h, int dir) {
    struct stat st;
    struct err e = {0};
    const int fd = open_plain(dir, TRACES_FILE, &st);
    if (fd < 0) {
        forget_rows(h);
        return;
    }
    if (h->own_index && h->traces.st_ino == st.st_ino && h->traces.st_size == st.st_size &&
        h->traces.st_mtim.tv_sec == st.st_mtim.tv_sec && h->traces.st_mtim.tv_nsec == st.st_mtim.tv_nsec) {
        close(fd);
        return;
    }
    forget_rows(h);
    h->own_index = true;
    h->traces = st;
    struct jsonl_reader *r = jsonl_open_fd(fd, TRACES_FILE, true, TRACE_LINE_MAX_BYTES);
    CLEANUP_STR struct str row = STR_INIT;
    enum status s;
    const char *line;
    size_t n;
    while ((s = jsonl_next(r, &line, &n, &e)) == ST_OK && line) {
        int64_t frame, at;
        jsonl_frame(r, &frame, &at);
        str_clear(&row);
        if ((s = episode_row(line, n, frame, at, TRACES_FILE, &row, &e)) != ST_OK) break;
        if ((s = rows_add(&h->rows, row.p, row.len - 1, &e)) != ST_OK) break;
    }
    note(&h->index_wrong, s, &e);
    jsonl_close(r);
}

static void read_rows(struct view_held *h, int dir) {
    struct stat st;
    struct err e = {0};
    bool again = true;
    const int fd = open_plain(dir, EPISODES_FILE, &st);
    if (fd < 0) {
        rows_of_traces(h, dir);
        return;
    }
    if (h->own_index) forget_rows(h);
    enum status s = ST_OK;
    for (int i = 0; i < 3 && again && s == ST_OK; i++) {
        s = tail_read(&h->rows_tail, fd, &st, ROW_MAX_BYTES, take_row, h, &again, &e);
        if (again) forget_rows(h);
    }
    note(&h->index_wrong, s, &e);
    close(fd);
}

/* ---- columns ------------------------------------------------------------------------------------------------------*/

/* take_line_fn */
static enum status take_metrics(void *ctx, const char *line, size_t n, struct err *e) {
    return columns_add(&((struct view_held *)ctx)->columns, line, n, e);
}

static void read_columns(struct view_held *h, int dir) {
    struct stat st;
    struct err e = {0};
    bool again = true;
    const int fd = open_plain(dir, "metrics.jsonl", &st);
    if (fd < 0) {
        forget_columns(h);
        return;
    }
    enum status s = ST_OK;
    for (int i = 0; i < 3 && again && s == ST_OK; i++) {
        s = tail_read(&h->columns_tail, fd, &st, METRICS_MAX_BYTES, take_metrics, h, &again, &e);
        if (again) forget_columns(h);
    }
    note(&h->metrics_wrong, s, &e);
    close(fd);
}

static const struct column *column_of(const struct columns *c, const char *name) {
    const uint32_t k = names_find(&c->names, name, strlen(name));
    return k ? &c->column[k] : NULL;
}

static double last_of(const struct columns *c, const char *name) {
    const struct column *col = column_of(c, name);
    return col && col->n > 0 ? col->value[col->n - 1] : (double)NAN;
}

/* ---- runs ---------------------------------------------------------------------------------------------------------*/

static void put_info(const struct run_info *r, const char *name, struct str *out) {
    js_put_str(out, "name", name);
    js_put_str(out, "state", run_state_name(r->state));
    js_put_str(out, "error", r->error);
    js_put_i64(out, "steps", r->steps);
    js_put_f64(out, "fraction", r->fraction);
    js_put_i64(out, "changed_s", r->changed_s);
}

/* As run_is_evaluation says it of a parsed line. */
static bool is_evaluation(const struct line_members *line) {
    for (size_t i = 0; i < line->n; i++) {
        const struct line_member *m = &line->m[i];
        if (m->n_key >= 5 && memcmp(m->key, "eval/", 5) == 0) return true;
        if (memchr(m->key, '/', m->n_key)) return false;
    }
    return false;
}

/* take_line_fn */
static enum status take_progress(void *ctx, const char *text, size_t n, struct err *e) {
    struct view_progress *p = ctx;
    struct line_members line;
    const enum status st = members_read(&line, text, n, "metrics", e);
    if (st == ST_OK && !is_evaluation(&line)) {
        const struct line_member *fraction = members_find(&line, "progress/fraction");
        p->steps++;
        p->has_fraction = fraction && (fraction->kind == MEMBER_WHOLE || fraction->kind == MEMBER_REAL);
        p->fraction = p->has_fraction ? fraction->real : 0;
    }
    members_free(&line);
    return st;
}

/* The run's progress as its metrics say it; what was appended since the last call is read. */
static struct view_progress *read_progress(struct run_view *v, const char *run, int dir) {
    if (v->seen.n > SEEN_MAX) forget_progress(v);
    const uint32_t k = names_put(&v->seen, run, strlen(run));
    if (k >= v->n_progress) {
        v->progress = xrealloc(v->progress, (k + 64) * sizeof *v->progress);
        memset(v->progress + v->n_progress, 0, (k + 64 - v->n_progress) * sizeof *v->progress);
        v->n_progress = k + 64;
    }
    struct view_progress *p = &v->progress[k];
    struct stat st;
    struct err ignored = {0};
    bool again = true;
    const int fd = open_plain(dir, "metrics.jsonl", &st);
    if (fd < 0) *p = (struct view_progress){0};
    enum status s = ST_OK;
    for (int i = 0; i < 3 && again && s == ST_OK && fd >= 0; i++) {
        s = tail_read(&p->tail, fd, &st, METRICS_MAX_BYTES, take_progress, p, &again, &ignored);
        if (again) *p = (struct view_progress){0};
    }
    if (fd >= 0) close(fd);
    return p;
}

/* What is known of the run from outside, through the open directory: the name may be another's by now. */
static bool info_of(struct run_view *v, const char *run, int dir, struct run_info *out) {
    if (!run_state_at(dir, out)) return false;
    const struct view_progress *p = read_progress(v, run, dir);
    out->steps = p->steps;
    if (p->has_fraction) out->fraction = p->fraction;
    return true;
}

struct listed {
    struct run_info info;
    char *name;
};

static int newest_first(const void *a, const void *b) {
    const struct listed *x = a, *y = b;
    if (x->info.changed_s != y->info.changed_s) return x->info.changed_s < y->info.changed_s ? 1 : -1;
    return strcmp(x->name, y->name);
}

enum status view_runs(struct run_view *v, struct str *out, struct err *e) {
    char **names = NULL;
    size_t count = 0, n = 0;
    if (fs_is_dir(v->runs_dir)) TRY(fs_list(v->runs_dir, &names, &count, e));
    struct listed *all = xcalloc(count + 1, sizeof *all);
    for (size_t i = 0; i < count; i++) {
        const int dir = open_run(v, names[i]);
        if (dir >= 0 && info_of(v, names[i], dir, &all[n].info))
            all[n++].name = names[i];
        else
            free(names[i]);
        if (dir >= 0) close(dir);
    }
    free(names);
    qsort(all, n, sizeof *all, newest_first);
    js_begin(out, NULL, '{');
    js_begin(out, "runs", '[');
    for (size_t i = 0; i < n; i++) {
        js_begin(out, NULL, '{');
        put_info(&all[i].info, all[i].name, out);
        js_end(out, '}');
        run_info_free(&all[i].info);
        free(all[i].name);
    }
    js_end(out, ']');
    js_end(out, '}');
    free(all);
    return ST_OK;
}

static void alert(struct str *out, bool is_on, const char *metric, const char *text) {
    if (!is_on) return;
    js_begin(out, NULL, '{');
    js_put_str(out, "metric", metric);
    js_put_str(out, "text", text);
    js_end(out, '}');
}

static int rising(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The median of up to 100 values in front of the last one; NaN: there are fewer than five. */
static double median_before(const struct columns *c, const char *name) {
    const struct column *col = column_of(c, name);
    double v[100];
    size_t n = 0;
    for (size_t i = col && col->n > 101 ? col->n - 101 : 0; col && i + 1 < col->n; i++) v[n++] = col->value[i];
    qsort(v, n, sizeof *v, rising);
    return n < 5 ? (double)NAN : v[n / 2];
}

static double first_of(const struct columns *c, const char *name) {
    const struct column *col = column_of(c, name);
    return col && col->n > 0 ? col->value[0] : (double)NAN;
}

static bool is_nearly_full(int dir) {
    struct statvfs fs;
    return fstatvfs(dir, &fs) == 0 && (double)fs.f_bavail < 0.02 * (double)fs.f_blocks;
}

/* Of the last step. Comparisons with NaN are false: what is not known alerts nobody. */
static void put_alerts(const struct columns *c, const struct run_info *info, int dir, struct str *out) {
    const double groups = last_of(c, "batch/num_groups"), constant = last_of(c, "batch/constant_groups");
    const double cheats = last_of(c, "kernel/cheat_rate"), quiet_s = (double)(time(NULL) - info->changed_s);
    js_begin(out, "alerts", '[');
    alert(out, constant > 0.7 * groups, "batch/constant_groups",
          "More than 70 % of the last step's groups had equal scores: they teach nothing.");
    alert(out, last_of(c, "policy/truncated_rate") > 0.3, "policy/truncated_rate",
          "More than 30 % of the last step's answers were cut off.");
    alert(out, last_of(c, "missing/share") > 0.05, "missing/share",
          "More than 5 % of the last step's answers have no verdict.");
    alert(out, cheats > 0.1 || cheats > median_before(c, "kernel/cheat_rate") + 0.05, "kernel/cheat_rate",
          "The last step's answers cheat: more than 10 % of them, or 5 % more than before.");
    alert(out, last_of(c, "policy/entropy") < 0.1 * first_of(c, "policy/entropy"), "policy/entropy",
          "The entropy has fallen below a tenth of what it was at first: the answers have become alike.");
    alert(out, fabs(last_of(c, "train/kl_sampler_trainer")) > 0, "train/kl_sampler_trainer",
          "The trainer's probabilities differ from the sampler's.");
    alert(out, last_of(c, "train/grad_norm") > 10 * median_before(c, "train/grad_norm"), "train/grad_norm",
          "The last gradient is more than ten times as long as usual.");
    alert(out, info->state == RUN_RUNNING && quiet_s > 60 && quiet_s > 5 * median_before(c, "time/total_s"),
          "time/total_s", "No step has ended for five times as long as a step takes.");
    alert(out, info->state == RUN_RUNNING && is_nearly_full(dir), "disk", "The disk of the run is nearly full.");
    js_end(out, ']');
}

static void put_file(int dir, const char *name, const char *key, struct str *out) {
    struct stat st;
    const int fd = open_plain(dir, name, &st);
    char *bytes = xmalloc(CONFIG_MAX_BYTES);
    const ssize_t n = fd >= 0 ? pread(fd, bytes, CONFIG_MAX_BYTES, 0) : -1;
    if (n < 0)
        js_put_null(out, key);
    else
        js_put_strn(out, key, bytes, (size_t)n);
    if (fd >= 0) close(fd);
    free(bytes);
}

enum status view_run(struct run_view *v, const char *run, struct str *out, struct err *e) {
    int dir;
    struct run_info info;
    TRY(find_run(v, run, &dir, e));
    if (!info_of(v, run, dir, &info)) {
        close(dir);
        return FAIL(e, ST_IO, "%.255s: its files cannot be read", run);
    }
    struct view_held *h = held_run(v, run, dir);
    read_rows(h, dir);
    read_columns(h, dir);
    js_begin(out, NULL, '{');
    put_info(&info, run, out);
    js_put_i64(out, "episodes", (int64_t)h->rows.n);
    js_put_str(out, "index", h->index_wrong ? h->index_wrong : "ok");
    js_put_str(out, "metrics_file", h->metrics_wrong ? h->metrics_wrong : "ok");
    js_begin(out, "metrics", '{');
    for (uint32_t k = 1; k < h->columns.names.n; k++)
        js_put_f64(out, h->columns.names.name[k], h->columns.column[k].value[h->columns.column[k].n - 1]);
    js_end(out, '}');
    put_alerts(&h->columns, &info, dir, out);
    put_file(dir, "checkpoints.jsonl", "checkpoints", out);
    put_file(dir, "config.yaml", "config", out);
    js_end(out, '}');
    run_info_free(&info);
    close(dir);
    return ST_OK;
}

enum status view_state(struct run_view *v, const char *run, struct str *out, struct err *e) {
    int dir;
    struct run_info info;
    TRY(find_run(v, run, &dir, e));
    if (!info_of(v, run, dir, &info)) {
        close(dir);
        return FAIL(e, ST_IO, "%.255s: its files cannot be read", run);
    }
    struct view_held *h = held_run(v, run, dir);
    read_rows(h, dir);
    close(dir);
    js_begin(out, NULL, '{');
    put_info(&info, run, out);
    js_put_i64(out, "episodes", (int64_t)h->rows.n);
    js_end(out, '}');
    run_info_free(&info);
    return ST_OK;
}

/* Files are named by nobody here: problem_named looks for none where the set is loaded. */
enum status view_problem(const char *key, struct str *out, struct err *e) {
    struct problem_set set = {0};
    const struct problem *p = NULL;
    enum status st = problem_set_load("builtin", &set, e);
    if (st == ST_OK) st = problem_named(&set, "builtin", key, &p, e);
    if (st == ST_INVALID) st = FAIL(e, ST_IO, "%.255s: its module is not known here", key);
    if (st == ST_OK) {
        js_begin(out, NULL, '{');
        js_put_str(out, "key", p->key);
        js_put_str(out, "code", p->code);
        js_end(out, '}');
    }
    problem_set_free(&set);
    return st;
}

/* ---- metrics ------------------------------------------------------------------------------------------------------*/

/* Which values are shown: all, or the least and the greatest of each interval, in order. Returns how many. */
static size_t decimate(const struct column *c, size_t points, size_t *at) {
    if (c->n <= points) {
        for (size_t i = 0; i < c->n; i++) at[i] = i;
        return c->n;
    }
    const size_t intervals = points / 2;
    size_t n = 0;
    for (size_t k = 0; k < intervals; k++) {
        const size_t from = k * c->n / intervals, to = (k + 1) * c->n / intervals;
        size_t least = from, most = from;
        for (size_t i = from + 1; i < to; i++) {
            if (c->value[i] < c->value[least]) least = i;
            if (c->value[i] > c->value[most]) most = i;
        }
        at[n++] = least < most ? least : most;
        if (least != most) at[n++] = least < most ? most : least;
    }
    return n;
}

/* [n_lines + 1]: how many seconds the steps up to each line took together. malloc'ed. */
static double *seconds_of(const struct columns *c) {
    const struct column *took = column_of(c, "time/total_s");
    double *s = xcalloc(c->n_lines + 1, sizeof *s);
    for (size_t i = 0, k = 0; i < c->n_lines; i++) {
        s[i] = i > 0 ? s[i - 1] : 0;
        if (took && k < took->n && took->line[k] == (int64_t)i) s[i] += took->value[k++];
    }
    return s;
}

/* Numbers of a chart: six digits, or null. */
static void put_short(struct str *out, size_t i, double v) {
    if (isfinite(v))
        str_addf(out, "%s%.6g", i > 0 ? "," : "", v);
    else
        str_adds(out, i > 0 ? ",null" : "null");
}

static void put_series(const struct columns *c, const double *seconds, const char *name, size_t points,
                       struct str *out) {
    const struct column *col = column_of(c, name);
    if (!col) return;
    size_t *at = xmalloc((points + col->n) * sizeof *at);
    const size_t n = decimate(col, points, at);
    js_begin(out, name, '{');
    js_begin(out, "step", '[');
    for (size_t i = 0; i < n; i++) js_put_i64(out, NULL, c->step[col->line[at[i]]]);
    js_end(out, ']');
    js_begin(out, "seconds", '[');
    for (size_t i = 0; i < n; i++) put_short(out, i, seconds[col->line[at[i]]]);
    js_end(out, ']');
    js_begin(out, "value", '[');
    for (size_t i = 0; i < n; i++) put_short(out, i, col->value[at[i]]);
    js_end(out, ']');
    js_end(out, '}');
    free(at);
}

/* The next name of a list with commas; false: no more. */
static bool next_name(const char **list, char *name, size_t size) {
    while (**list == ',') ++*list;
    const size_t n = strcspn(*list, ",");
    snprintf(name, size, "%.*s", (int)(n < size ? n : size - 1), *list);
    *list += n;
    return n > 0;
}

enum status view_metrics(struct run_view *v, const char *run, const char *names, int64_t points, struct str *out,
                         struct err *e) {
    int dir;
    char name[256];
    TRY(find_run(v, run, &dir, e));
    struct view_held *h = held_run(v, run, dir);
    read_columns(h, dir);
    close(dir);
    double *seconds = seconds_of(&h->columns);
    js_begin(out, NULL, '{');
    js_begin(out, "series", '{');
    for (int i = 0; i < SERIES_MAX && next_name(&names, name, sizeof name); i++)
        put_series(&h->columns, seconds, name, (size_t)i64_max(2, i64_min(points, 100000)), out);
    js_end(out, '}');
    free(seconds);
    js_end(out, '}');
    return ST_OK;
}

/* A field of CSV: quoted, so that no name ends it; a spreadsheet takes none for a formula. */
static void put_field(struct str *out, const char *text) {
    str_adds(out, strchr("=+-@\t\r", *text) && *text ? ",\"'" : ",\"");
    for (; *text; text++) {
        if (*text == '"') str_addc(out, '"');
        str_addc(out, *text);
    }
    str_addc(out, '"');
}

enum status view_csv(struct run_view *v, const char *run, const char *names, struct str *out, struct err *e) {
    int dir;
    char name[256];
    const struct column *shown[COLUMNS_SHOWN];
    size_t n = 0;
    TRY(find_run(v, run, &dir, e));
    struct view_held *h = held_run(v, run, dir);
    const struct columns *c = &h->columns;
    read_columns(h, dir);
    close(dir);
    str_adds(out, "step");
    for (uint32_t k = 1; !names && k < c->names.n && n < COLUMNS_SHOWN; k++) {
        put_field(out, c->names.name[k]);
        shown[n++] = &c->column[k];
    }
    while (names && n < COLUMNS_SHOWN && next_name(&names, name, sizeof name)) {
        const struct column *col = column_of(c, name);
        if (!col) continue;
        put_field(out, name);
        shown[n++] = col;
    }
    str_addc(out, '\n');
    size_t *next = xcalloc(n + 1, sizeof *next);
    for (int64_t line = 0; line < (int64_t)c->n_lines; line++) {
        const size_t before = out->len;
        bool any = false;
        str_addf(out, "%lld", (long long)c->step[line]);
        for (size_t k = 0; k < n; k++) {
            str_addc(out, ',');
            if (next[k] == shown[k]->n || shown[k]->line[next[k]] != line) continue;
            js_add_number(out, shown[k]->value[next[k]++]);
            any = true;
        }
        str_addc(out, '\n');
        if (!any) {
            out->len = before;
            out->p[before] = 0;
        }
    }
    free(next);
    return ST_OK;
}

/* ---- episodes -----------------------------------------------------------------------------------------------------*/

struct view_wanted { /* a query whose texts are numbers */
    const struct view_query *q;
    uint32_t problem, outcome, class, stop, role;
    bool none; /* true: a text is asked for that no row has */
    bool solver;
};

static uint32_t number_of(const struct view_rows *r, const char *text, bool *none) {
    const uint32_t k = text ? names_find(&r->names, text, strlen(text)) : 0;
    *none |= text && k == 0;
    return k;
}

static struct view_wanted want(const struct view_rows *r, const struct view_query *q) {
    struct view_wanted w = {.q = q, .solver = q->role && strcmp(q->role, "solver") == 0};
    w.problem = number_of(r, q->problem, &w.none);
    w.outcome = number_of(r, q->outcome, &w.none);
    w.class = number_of(r, q->class, &w.none);
    w.stop = number_of(r, q->stop, &w.none);
    w.role = number_of(r, w.solver ? NULL : q->role, &w.none);
    return w;
}

/* A row without the number lies within no bound. */
static bool within(double v, double least, double most) {
    return (isnan(least) || v >= least) && (isnan(most) || v <= most);
}

static bool matches(const struct view_wanted *w, const struct view_row *x) {
    const struct view_query *q = w->q;
    if (w->none || x->step < q->step_from || x->step > q->step_to) return false;
    if (w->problem && x->problem != w->problem) return false;
    if (w->outcome && x->outcome != w->outcome) return false;
    if (w->class && x->class != w->class) return false;
    if (w->stop && x->stop != w->stop) return false;
    if (w->role ? x->role != w->role : w->solver && x->role) return false;
    return within(x->reward, q->reward_min, q->reward_max) && within(x->speedup, q->speedup_min, q->speedup_max);
}

static enum view_sort sort_named(const char *name) {
    static const char *const names[N_SORTS] = {[SORT_STEP] = "step",
                                               [SORT_REWARD] = "reward",
                                               [SORT_ADVANTAGE] = "advantage",
                                               [SORT_SPEEDUP] = "speedup",
                                               [SORT_TOKENS] = "tokens"};
    for (int i = 0; i < N_SORTS && name; i++)
        if (strcmp(names[i], name) == 0) return i;
    return SORT_STEP;
}

/* The decoded lines of one frame, which begins there. They are read at once: the file may be cut at any moment. */
static enum status read_frame(int dir, const struct view_rows *r, int64_t frame, struct jsonl_reader **out,
                              char **bytes, struct err *e) {
    struct stat st;
    *out = NULL;
    *bytes = NULL;
    const int fd = open_plain(dir, TRACES_FILE, &st);
    if (fd < 0) return FAIL(e, ST_IO, "the run has no traces any more");
    int64_t end = st.st_size;
    for (size_t lo = 0, hi = r->n; lo < hi;) { /* the first row of the next frame */
        const size_t mid = lo + (hi - lo) / 2;
        if (r->row[mid].frame > frame) {
            end = i64_min(st.st_size, r->row[mid].frame);
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    enum status s = ST_OK;
    ssize_t n = -1;
    if (end <= frame || end - frame > FRAME_MAX_BYTES) {
        s = FAIL(e, ST_IO, "the traces have changed");
    } else {
        *bytes = xmalloc((size_t)(end - frame));
        n = pread(fd, *bytes, (size_t)(end - frame), (off_t)frame);
        if (n <= 0) s = FAIL(e, ST_IO, "the traces have changed");
    }
    close(fd);
    if (s == ST_OK) *out = jsonl_open_memory(TRACES_FILE, *bytes, (size_t)n, true, TRACE_LINE_MAX_BYTES);
    return s;
}

/* The text as it stands within a line of JSON. */
static void quoted(const char *text, struct str *out) {
    CLEANUP_STR struct str q = STR_INIT;
    js_add_quoted(&q, text, strlen(text));
    str_add(out, q.p + 1, q.len - 2);
}

/* Which of the rows begin..end, all of one frame, hold the text. */
static void search_frame(int dir, const struct view_rows *r, size_t begin, size_t end, const struct str *needle,
                         bool *holds) {
    struct jsonl_reader *lines;
    char *bytes;
    struct err ignored = {0};
    const char *line;
    size_t n, k = begin;
    memset(holds, 0, end - begin);
    if (read_frame(dir, r, r->row[begin].frame, &lines, &bytes, &ignored) == ST_OK) {
        while (k < end && jsonl_next(lines, &line, &n, &ignored) == ST_OK && line) {
            while (k < end && r->row[k].at < jsonl_offset(lines)) k++;
            if (k == end || r->row[k].at != jsonl_offset(lines)) continue;
            const char *tokens = mem_find(line, n, ",\"ids\":[", 8);
            holds[k++ - begin] = mem_find(line, tokens ? (size_t)(tokens - line) : n, needle->p, needle->len) != NULL;
        }
        jsonl_close(lines);
    }
    free(bytes);
}

/* Newest first, frame by frame. Returns where the next call goes on: the number of rows in front; 0: nowhere. */
static int64_t put_found(int dir, const struct view_rows *r, const struct view_wanted *w, struct str *out) {
    const double until = clock_now_s() + search_s;
    CLEANUP_STR struct str needle = STR_INIT;
    size_t end = w->q->cursor > 0 && (size_t)w->q->cursor < r->n ? (size_t)w->q->cursor : r->n;
    int64_t left = w->q->limit;
    quoted(w->q->text, &needle);
    while (end > 0 && left > 0 && clock_now_s() < until) {
        size_t begin = end; /* of the frame's rows in front of `end` */
        bool any = false;
        while (begin > 0 && r->row[begin - 1].frame == r->row[end - 1].frame) any |= matches(w, &r->row[--begin]);
        if (any) {
            bool *holds = xcalloc(end - begin, sizeof *holds);
            search_frame(dir, r, begin, end, &needle, holds);
            while (end > begin && left > 0) {
                end--;
                if (!holds[end - begin] || !matches(w, &r->row[end])) continue;
                row_json(r, &r->row[end], NULL, out);
                left--;
            }
            free(holds);
        } else {
            end = begin;
        }
    }
    return (int64_t)end;
}

static bool wants_all(const struct view_query *q) {
    return q->step_from <= 0 && q->step_to == INT64_MAX && !q->problem && !q->outcome && !q->class && !q->stop &&
           !q->role && isnan(q->reward_min) && isnan(q->reward_max) && isnan(q->speedup_min) && isnan(q->speedup_max);
}

/* The matching rows behind the cursor, as many as fit. Returns how many stand in front of the next one; 0: no more
 * is there. */
static int64_t put_page(struct view_rows *r, const struct view_wanted *w, int64_t n_matching, struct str *out) {
    const uint32_t *order = rows_order(r, sort_named(w->q->sort));
    const bool all = n_matching == (int64_t)r->n;
    const int64_t skip = i64_max(0, i64_min(w->q->cursor, n_matching)), end = i64_min(n_matching, skip + w->q->limit);
    int64_t seen = all ? skip : 0;
    for (size_t i = (size_t)seen; seen < end; i++) {
        const struct view_row *x = &r->row[order[i]];
        if (!all && !matches(w, x)) continue;
        if (seen++ >= skip) row_json(r, x, NULL, out);
    }
    return end < n_matching ? end : 0;
}

enum status view_episodes(struct run_view *v, const char *run, const struct view_query *q, struct str *out,
                          struct err *e) {
    int dir;
    TRY(find_run(v, run, &dir, e));
    struct view_held *h = held_run(v, run, dir);
    read_rows(h, dir);
    struct view_rows *r = &h->rows;
    struct view_query bounded = *q;
    bounded.limit = i64_max(1, i64_min(q->limit, LIMIT_MAX));
    const struct view_wanted w = want(r, &bounded);
    int64_t n = wants_all(q) ? (int64_t)r->n : 0, next = 0;
    for (size_t i = 0; i < r->n && !wants_all(q); i++) n += matches(&w, &r->row[i]);
    js_begin(out, NULL, '{');
    js_put_i64(out, "total", (int64_t)r->n);
    js_put_i64(out, "matches", n);
    js_begin(out, "rows", '[');
    if (n > 0) next = q->text && *q->text ? put_found(dir, r, &w, out) : put_page(r, &w, n, out);
    js_end(out, ']');
    if (next > 0)
        js_put_i64(out, "cursor", next);
    else
        js_put_null(out, "cursor");
    js_end(out, '}');
    close(dir);
    return ST_OK;
}

enum status view_group(struct run_view *v, const char *run, int64_t step, int64_t group, struct str *out,
                       struct err *e) {
    int dir, n = 0;
    size_t n_step;
    TRY(find_run(v, run, &dir, e));
    struct view_held *h = held_run(v, run, dir);
    read_rows(h, dir);
    close(dir);
    const uint32_t *of_step = rows_of_step(&h->rows, step, &n_step);
    js_begin(out, NULL, '{');
    js_begin(out, "rows", '[');
    for (size_t i = n_step; i-- > 0;) { /* in the order in which they were written */
        const struct view_row *x = &h->rows.row[of_step[i]];
        if (x->group != group) continue;
        row_json(&h->rows, x, NULL, out);
        n++;
    }
    js_end(out, ']');
    js_end(out, '}');
    return n > 0 ? ST_OK
                 : FAIL(e, ST_IO, "%.255s has no group %lld in step %lld", run, (long long)group, (long long)step);
}

static enum status put_trace(int dir, const struct view_rows *r, const struct view_row *x, struct str *out,
                             struct err *e) {
    struct jsonl_reader *lines;
    CLEANUP_JSON json_t *trace = NULL;
    char *bytes;
    const char *line = "";
    size_t n;
    enum status s = read_frame(dir, r, x->frame, &lines, &bytes, e);
    if (s == ST_OK) {
        while ((s = jsonl_next(lines, &line, &n, e)) == ST_OK && line && jsonl_offset(lines) < x->at) {}
        if (s == ST_OK && (!line || jsonl_offset(lines) != x->at)) s = FAIL(e, ST_IO, "the traces have changed");
        if (s == ST_OK) s = js_parse(line, n, "trace", &trace, e);
        jsonl_close(lines);
    }
    free(bytes);
    TRY(s);
    js_begin(out, NULL, '{');
    row_json(r, x, "row", out);
    js_put_json(out, "trace", trace);
    js_end(out, '}');
    return ST_OK;
}

static bool is_role(const struct view_rows *r, const struct view_row *x, const char *role) {
    return role && *role ? x->role && strcmp(r->names.name[x->role], role) == 0 : x->role == 0;
}

enum status view_episode(struct run_view *v, const char *run, int64_t step, int64_t group, int64_t sample, int64_t turn,
                         const char *role, struct str *out, struct err *e) {
    int dir;
    TRY(find_run(v, run, &dir, e));
    struct view_held *h = held_run(v, run, dir);
    read_rows(h, dir);
    enum status st = FAIL(e, ST_IO, "%.255s has no answer %lld/%lld/%lld/%lld", run, (long long)step, (long long)group,
                          (long long)sample, (long long)turn);
    size_t n_step;
    const uint32_t *of_step = rows_of_step(&h->rows, step, &n_step);
    for (size_t i = n_step; i-- > 0;) {
        const struct view_row *x = &h->rows.row[of_step[i]];
        if (x->group != group || x->sample != sample || x->turn != turn) continue;
        if (!is_role(&h->rows, x, role)) continue;
        *e = (struct err){0};
        st = put_trace(dir, &h->rows, x, out, e);
        break;
    }
    close(dir);
    return st;
}

enum status view_best(struct run_view *v, const char *run, struct str *out, struct err *e) {
    int dir;
    TRY(find_run(v, run, &dir, e));
    struct view_held *h = held_run(v, run, dir);
    read_rows(h, dir);
    close(dir);
    str_adds(out, "{\"best\":");
    str_adds(out, rows_best_json(&h->rows));
    str_addc(out, '}');
    return ST_OK;
}
