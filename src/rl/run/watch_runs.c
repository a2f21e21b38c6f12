#include "rl/run/watch_runs.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/fs.h"
#include "io/json.h"
#include "io/jsonl.h"

enum { LINE_MAX_BYTES = 16 << 20, LOOK = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK };

const char *run_state_name(enum run_state s) {
    static const char *const names[] = {"running", "finished", "stopped", "failed"};
    return names[s];
}

/* ---- one run ------------------------------------------------------------------------------------------------------*/

/* The lock is tried, shared and for a moment; who holds it wrote its id there. A run that starts in this very moment
 * may find it taken, as it may by another run: it says so and can be started again. */
static bool is_running(int dir, pid_t *pid) {
    *pid = 0;
    CLEANUP_FD int fd = openat(dir, ".lock", LOOK);
    if (fd < 0) return false;
    if (flock(fd, LOCK_SH | LOCK_NB) == 0) return false;
    char text[32] = "";
    int64_t id;
    const ssize_t n = pread(fd, text, sizeof text - 1, 0);
    if (n > 0 && text[n - 1] == '\n') text[n - 1] = 0;
    if (parse_i64(text, &id) && id > 1 && id < INT32_MAX) *pid = (pid_t)id;
    return true;
}

static bool is_plain(int dir, const char *name, int64_t *changed_s) {
    struct stat sb;
    if (fstatat(dir, name, &sb, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(sb.st_mode)) return false;
    *changed_s = i64_max(*changed_s, (int64_t)sb.st_mtime);
    return true;
}

static enum status read_progress(struct run_info *r, struct err *e) {
    static const char *const names[] = {"progress/fraction"};
    struct run_series s;
    TRY(run_series_read(r->dir, names, 1, false, &s, e));
    r->steps = s.n;
    r->fraction = series_last(&s, 0);
    run_series_free(&s);
    return ST_OK;
}

/* What the log ends with, if that is an error: "TIME error MESSAGE". malloc'ed, or NULL. */
static char *last_error(int dir) {
    CLEANUP_FD int fd = openat(dir, "logs.log", LOOK);
    char tail[8192];
    struct stat sb;
    if (fd < 0 || fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode)) return NULL;
    const int64_t most = sizeof tail - 1;
    ssize_t n = pread(fd, tail, (size_t)most, (off_t)i64_max(0, (int64_t)sb.st_size - most));
    while (n > 0 && tail[n - 1] == '\n') n--;
    tail[n > 0 ? n : 0] = 0;
    const char *line = strrchr(tail, '\n'), *level;
    line = line ? line + 1 : tail;
    level = strchr(line, ' ');
    return level && str_has_prefix(level, " error ") ? xstrdup(level + strlen(" error ")) : NULL;
}

bool run_state_at(int dir, struct run_info *out) {
    int64_t ignored = 0;
    *out = (struct run_info){.fraction = NAN};
    if (!is_plain(dir, "config.yaml", &out->changed_s)) return false;
    (void)is_plain(dir, "metrics.jsonl", &out->changed_s);
    const bool is_finished = is_plain(dir, "checkpoints/final/state.json", &ignored);
    out->state = is_running(dir, &out->pid) ? RUN_RUNNING : is_finished ? RUN_FINISHED : RUN_STOPPED;
    if (out->state == RUN_STOPPED && (out->error = last_error(dir))) out->state = RUN_FAILED;
    return true;
}

enum status run_info_read(const char *dir, struct run_info *out, struct err *e) {
    CLEANUP_FREE char *metrics = fs_join(dir, "metrics.jsonl");
    CLEANUP_FD int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || !run_state_at(fd, out)) return FAIL(e, ST_IO, "%s: no run there (no config.yaml)", dir);
    size_t len = strlen(dir);
    while (len > 1 && dir[len - 1] == '/') len--;
    out->dir = xstrndup(dir, len);
    const char *slash = strrchr(out->dir, '/');
    out->name = xstrdup(slash ? slash + 1 : out->dir);
    const enum status st = fs_is_file(metrics) ? read_progress(out, e) : ST_OK;
    if (st != ST_OK) run_info_free(out);
    return st;
}

void run_info_free(struct run_info *r) {
    free(r->name);
    free(r->dir);
    free(r->error);
    *r = (struct run_info){0};
}

static int newest_first(const void *a, const void *b) {
    const struct run_info *x = a, *y = b;
    if (x->changed_s != y->changed_s) return x->changed_s < y->changed_s ? 1 : -1;
    return strcmp(x->name, y->name);
}

enum status runs_list(const char *runs_dir, struct run_info **out, int *n, struct err *e) {
    char **names = NULL;
    size_t count = 0;
    *out = NULL;
    *n = 0;
    if (!fs_is_dir(runs_dir)) return ST_OK;
    TRY(fs_list(runs_dir, &names, &count, e));
    struct run_info *all = xcalloc(count + 1, sizeof *all);
    enum status st = ST_OK;
    for (size_t i = 0; i < count; i++) {
        CLEANUP_FREE char *dir = fs_join(runs_dir, names[i]), *config = fs_join(dir, "config.yaml");
        if (st == ST_OK && fs_is_file(config) && (st = run_info_read(dir, &all[*n], e)) == ST_OK) ++*n;
        free(names[i]);
    }
    free(names);
    if (st != ST_OK) {
        while (*n > 0) run_info_free(&all[--*n]);
        free(all);
        return st;
    }
    qsort(all, (size_t)*n, sizeof *all, newest_first);
    *out = all;
    return ST_OK;
}

enum status runs_find(const char *runs_dir, const char *name, char **out, struct err *e) {
    CLEANUP_FREE char *inside = fs_join(runs_dir, name), *config = fs_join(inside, "config.yaml"),
                      *own = fs_join(name, "config.yaml");
    if (*name && fs_is_file(config))
        *out = xstrdup(inside);
    else if (*name && fs_is_file(own))
        *out = xstrdup(name);
    else
        return FAIL(e, ST_IO, "%s: no such run in %s; kernelrl runs list names those that are there", name, runs_dir);
    return ST_OK;
}

/* ---- metrics ------------------------------------------------------------------------------------------------------*/

static double value_of(const json_t *row, const char *name) {
    const size_t n = strlen(name);
    if (name[n - 1] != '*') {
        const json_t *v = json_object_get(row, name);
        return json_is_number(v) ? json_number_value(v) : (double)NAN;
    }
    double sum = NAN;
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)row, key, v) {
        if (strncmp(key, name, n - 1) != 0 || !json_is_number(v)) continue;
        sum = (isnan(sum) ? 0 : sum) + json_number_value(v);
    }
    return sum;
}

bool run_is_evaluation(const json_t *row) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)row, key, v) {
        if (str_has_prefix(key, "eval/")) return true;
        if (strchr(key, '/')) return false;
    }
    return false;
}

static void push(struct run_series *s, int64_t step, const json_t *row, const char *const *names) {
    if ((s->n & (s->n - 1)) == 0) { /* at 0, 1, 2, 4, 8 ... */
        const size_t cap = s->n ? 2 * (size_t)s->n : 1;
        s->step = xrealloc(s->step, cap * sizeof *s->step);
        for (int k = 0; k < s->n_names; k++) s->value[k] = xrealloc(s->value[k], cap * sizeof(double));
    }
    s->step[s->n] = step;
    for (int k = 0; k < s->n_names; k++) s->value[k][s->n] = value_of(row, names[k]);
    s->n++;
}

/* Told of each line of a run's metrics, but for one that is being written just now. */
typedef void line_fn(void *ctx, int64_t step, const json_t *row);
static enum status each_line(const char *dir, line_fn *told, void *ctx, struct err *e) {
    CLEANUP_FREE char *path = fs_join(dir, "metrics.jsonl");
    struct jsonl_reader *r;
    if (!fs_is_file(path)) return ST_OK;
    TRY(jsonl_open(path, LINE_MAX_BYTES, &r, e));
    enum status st;
    for (;;) {
        const char *line;
        size_t n;
        int64_t step;
        if ((st = jsonl_next(r, &line, &n, e)) != ST_OK || !line) break;
        CLEANUP_JSON json_t *row = NULL;
        if ((st = js_parse(line, n, path, &row, e)) != ST_OK) {
            const char *next;
            struct err ignored;
            if (jsonl_next(r, &next, &n, &ignored) == ST_OK && !next) st = ST_OK; /* it is being written just now */
            break;
        }
        if ((st = js_get_i64(row, path, "step", &step, e)) != ST_OK) break;
        told(ctx, step, row);
    }
    jsonl_close(r);
    return st;
}

struct runs_columns {
    struct run_series *s;
    const char *const *names;
    bool evals;
};

static void push_line(void *ctx, int64_t step, const json_t *row) {
    const struct runs_columns *c = ctx;
    if (run_is_evaluation(row) == c->evals) push(c->s, step, row, c->names);
}

enum status run_series_read(const char *dir, const char *const *names, int n_names, bool evals, struct run_series *out,
                            struct err *e) {
    struct runs_columns c = {out, names, evals};
    *out = (struct run_series){.value = xcalloc((size_t)n_names + 1, sizeof(double *)), .n_names = n_names};
    const enum status st = each_line(dir, push_line, &c, e);
    if (st != ST_OK) run_series_free(out);
    return st;
}

struct last_of {
    struct run_last *l;
    const char *prefix;
};

static void note_last(void *ctx, int64_t step, const json_t *row) {
    const struct last_of *o = ctx;
    struct run_last *l = o->l;
    const size_t skip = strlen(o->prefix);
    const char *key;
    json_t *v;
    (void)step;
    json_object_foreach((json_t *)(uintptr_t)row, key, v) {
        if (!str_has_prefix(key, o->prefix) || !json_is_number(v)) continue;
        int i = 0;
        while (i < l->n && strcmp(l->item[i].name, key + skip) != 0) i++;
        if (i == l->n) {
            l->item = xrealloc(l->item, (size_t)(l->n + 1) * sizeof *l->item);
            l->item[l->n++].name = xstrdup(key + skip);
        }
        l->item[i].value = json_number_value(v);
    }
}

static int largest_first(const void *pa, const void *pb) {
    const struct run_last_value *a = pa, *b = pb;
    if (a->value != b->value) return a->value < b->value ? 1 : -1;
    return strcmp(a->name, b->name);
}

enum status run_last_read(const char *dir, const char *prefix, struct run_last *out, struct err *e) {
    struct last_of o = {out, prefix};
    *out = (struct run_last){0};
    const enum status st = each_line(dir, note_last, &o, e);
    if (st != ST_OK)
        run_last_free(out);
    else if (out->n > 1)
        qsort(out->item, (size_t)out->n, sizeof *out->item, largest_first);
    return st;
}

void run_last_free(struct run_last *l) {
    for (int i = 0; i < l->n; i++) free(l->item[i].name);
    free(l->item);
    *l = (struct run_last){0};
}

void run_series_free(struct run_series *s) {
    for (int k = 0; k < s->n_names; k++) free(s->value[k]);
    free(s->value);
    free(s->step);
    *s = (struct run_series){0};
}

double series_last(const struct run_series *s, int k) {
    for (int64_t i = s->n - 1; i >= 0; i--)
        if (!isnan(s->value[k][i])) return s->value[k][i];
    return NAN;
}

double series_sum(const struct run_series *s, int k) {
    double sum = NAN;
    for (int64_t i = 0; i < s->n; i++)
        if (!isnan(s->value[k][i])) sum = (isnan(sum) ? 0 : sum) + s->value[k][i];
    return sum;
}

double series_mean(const struct run_series *s, int k, int64_t last) {
    double sum = 0;
    int64_t n = 0;
    for (int64_t i = s->n - 1; i >= 0 && n < last; i--)
        if (!isnan(s->value[k][i])) {
            sum += s->value[k][i];
            n++;
        }
    return n ? sum / (double)n : (double)NAN;
}

void sparkline(const double *v, int64_t n, int width, struct str *out) {
    static const char *const bar[] = {"\u2581", "\u2582", "\u2583", "\u2584", "\u2585", "\u2586", "\u2587", "\u2588"};
    const int64_t bars = i64_min(n, width);
    double low = INFINITY, high = -INFINITY;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(v[i])) {
            low = fmin(low, v[i]);
            high = fmax(high, v[i]);
        }
    for (int64_t b = 0; b < bars; b++) {
        double sum = 0;
        int used = 0;
        for (int64_t i = b * n / bars; i < (b + 1) * n / bars; i++)
            if (isfinite(v[i])) {
                sum += v[i];
                used++;
            }
        if (used == 0)
            str_addc(out, ' ');
        else if (high > low)
            str_adds(out, bar[(int)fmin(7, (sum / used - low) / (high - low) * 8)]);
        else
            str_adds(out, bar[3]);
    }
}

/* nftw has no argument for its callback. */
static __thread int64_t walked_bytes;
static int add_bytes(const char *path, const struct stat *sb, int kind, struct FTW *at) {
    (void)path;
    (void)at;
    if (kind == FTW_F) walked_bytes += (int64_t)sb->st_size;
    return 0;
}

int64_t tree_bytes(const char *path) {
    walked_bytes = 0;
    if (nftw(path, add_bytes, 16, FTW_PHYS) != 0) return 0;
    return walked_bytes;
}
