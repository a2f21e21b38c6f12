#include "verdicts/jobs.h"

#include <errno.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/log.h"

enum { MAX_OWNERS = 1024 };

/* Who has jobs that wait, and when it was their turn. */
struct job_owner {
    int64_t id;
    int64_t waiting, turn;
};

struct jobs {
    char *path;
    pthread_mutex_t lock; /* of all below, the connection included */
    sqlite3 *db;
    struct job_owner owner[MAX_OWNERS];
    int n_owners;
    int64_t turn, ended;
    int64_t open[JOB_RUNNING + 1];
};

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS batches(id INTEGER PRIMARY KEY, name TEXT UNIQUE, created REAL);"
    "CREATE TABLE IF NOT EXISTS jobs(id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, owner INTEGER, "
    "batch INTEGER, place INTEGER, status INTEGER, priority INTEGER, attempts INTEGER DEFAULT 0, cached INTEGER "
    "DEFAULT 0, created REAL, started REAL, finished REAL, ended INTEGER, settings TEXT, request TEXT, metadata TEXT, "
    "result TEXT);"
    "CREATE TABLE IF NOT EXISTS keys(owner INTEGER, key TEXT, body TEXT, name TEXT, created REAL, "
    "PRIMARY KEY(owner, key)) WITHOUT ROWID;"
    "CREATE INDEX IF NOT EXISTS jobs_waiting ON jobs(owner, priority DESC, id) WHERE status = 0;"
    "CREATE INDEX IF NOT EXISTS jobs_ended ON jobs(batch, ended) WHERE ended IS NOT NULL;"
    "CREATE INDEX IF NOT EXISTS jobs_batch ON jobs(batch) WHERE batch IS NOT NULL;"
    "CREATE INDEX IF NOT EXISTS jobs_settings ON jobs(settings, ended) WHERE settings IS NOT NULL;";

const char *job_status_name(enum job_status s) {
    static const char *const names[] = {"queued", "queued", "running", "succeeded", "failed", "cancelled"};
    return names[s];
}

static double unix_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void job_row_free(struct job_row *r) {
    free(r->request);
    free(r->metadata);
    free(r->result);
    r->request = r->metadata = r->result = NULL;
}

enum status job_result_parse(const char *result, json_t **out, struct err *e) {
    CLEANUP_STR struct str text = STR_INIT;
    str_addf(&text, "{%s}", *result == ',' ? result + 1 : result);
    return js_parse(text.p, text.len, "a kept result", out, e);
}

/* ---- SQLite -------------------------------------------------------------------------------------------------------*/

static enum status sql_fail(struct jobs *j, struct err *e) {
    return FAIL(e, ST_IO, "%s: %s", j->path, sqlite3_errmsg(j->db));
}

static enum status run(struct jobs *j, const char *sql, struct err *e) {
    return sqlite3_exec(j->db, sql, NULL, NULL, NULL) == SQLITE_OK ? ST_OK : sql_fail(j, e);
}

static enum status prepare(struct jobs *j, const char *sql, sqlite3_stmt **out, struct err *e) {
    return sqlite3_prepare_v2(j->db, sql, -1, out, NULL) == SQLITE_OK ? ST_OK : sql_fail(j, e);
}

/* Runs a statement to its end and gives it up. */
static enum status finish(struct jobs *j, sqlite3_stmt *s, struct err *e) {
    int code;
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {}
    const enum status st = code == SQLITE_DONE ? ST_OK : sql_fail(j, e);
    sqlite3_finalize(s);
    return st;
}

static void bind_text(sqlite3_stmt *s, int at, const char *text) {
    if (text)
        sqlite3_bind_text(s, at, text, -1, SQLITE_STATIC);
    else
        sqlite3_bind_null(s, at);
}

/* A statement with one number, to its end. */
static enum status run_with(struct jobs *j, const char *sql, int64_t value, struct err *e) {
    sqlite3_stmt *s;
    TRY(prepare(j, sql, &s, e));
    sqlite3_bind_int64(s, 1, value);
    return finish(j, s, e);
}

/* Begins, and ends a transaction by how the work in it went. */
static enum status begin(struct jobs *j, struct err *e) { return run(j, "BEGIN IMMEDIATE", e); }
static enum status commit(struct jobs *j, enum status st, struct err *e) {
    struct err ignored;
    if (st == ST_OK) st = run(j, "COMMIT", e);
    if (st != ST_OK) (void)run(j, "ROLLBACK", &ignored);
    return st;
}

static char *column_text(sqlite3_stmt *s, int at) {
    const char *text = (const char *)sqlite3_column_text(s, at);
    return text ? xstrdup(text) : NULL;
}

#define ROW_COLUMNS "id, name, batch, place, status, attempts, cached, created, started, finished, ended"
#define TEXT_COLUMNS ", request, metadata, result"
enum { FIRST_TEXT = 11 };

static void read_row(sqlite3_stmt *s, bool with_texts, struct job_row *r) {
    const char *name = (const char *)sqlite3_column_text(s, 1);
    *r = (struct job_row){.id = sqlite3_column_int64(s, 0),
                          .batch = sqlite3_column_int64(s, 2),
                          .place = sqlite3_column_int64(s, 3),
                          .status = (enum job_status)sqlite3_column_int(s, 4),
                          .attempts = sqlite3_column_int(s, 5),
                          .cached = sqlite3_column_int(s, 6) != 0,
                          .created = sqlite3_column_double(s, 7),
                          .started = sqlite3_column_double(s, 8),
                          .finished = sqlite3_column_double(s, 9),
                          .ended = sqlite3_column_int64(s, 10)};
    snprintf(r->name, sizeof r->name, "%s", name ? name : "");
    if (!with_texts) return;
    r->request = column_text(s, FIRST_TEXT);
    r->metadata = column_text(s, FIRST_TEXT + 1);
    r->result = column_text(s, FIRST_TEXT + 2);
}

/* ---- who waits ----------------------------------------------------------------------------------------------------*/

/* The place of an owner; when there are too many of them, the last ones share a place. */
static struct job_owner *owner_of(struct jobs *j, int64_t id) {
    struct job_owner *idle = NULL;
    for (int i = 0; i < j->n_owners; i++) {
        if (j->owner[i].id == id) return &j->owner[i];
        if (j->owner[i].waiting == 0) idle = &j->owner[i];
    }
    if (j->n_owners < MAX_OWNERS) idle = &j->owner[j->n_owners++];
    if (!idle) return NULL;
    *idle = (struct job_owner){.id = id, .turn = j->turn};
    return idle;
}

static void count_waiting(struct jobs *j, int64_t owner, int64_t n) {
    struct job_owner *o = owner_of(j, owner);
    if (o) o->waiting += n;
    j->open[JOB_QUEUED] += n;
}

static enum status count_all(struct jobs *j, struct err *e) {
    sqlite3_stmt *s;
    TRY(prepare(j, "SELECT owner, count(*) FROM jobs WHERE status = 0 GROUP BY owner", &s, e));
    int code;
    while ((code = sqlite3_step(s)) == SQLITE_ROW)
        count_waiting(j, sqlite3_column_int64(s, 0), sqlite3_column_int64(s, 1));
    sqlite3_finalize(s);
    if (code != SQLITE_DONE) return sql_fail(j, e);
    TRY(prepare(j, "SELECT max(ended) FROM jobs", &s, e));
    if (sqlite3_step(s) == SQLITE_ROW) j->ended = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    return ST_OK;
}

/* ---- begin and end ------------------------------------------------------------------------------------------------*/

/* What an earlier process was judging is judged again, unless it has taken processes with it too often. */
static enum status take_up(struct jobs *j, struct err *e) {
    CLEANUP_STR struct str sql = STR_INIT;
    str_addf(
        &sql,
        "UPDATE jobs SET status = %d, finished = %.3f, ended = (SELECT coalesce(max(ended), 0) FROM jobs) + id, "
        "result = ',\"verdict\":null,\"reward\":null,\"error\":{\"message\":\"the server ended %d times while this "
        "answer was judged\",\"type\":\"no_verdict\",\"param\":null,\"code\":\"lost\"}' "
        "WHERE status = %d AND attempts >= %d;"
        "UPDATE jobs SET status = %d WHERE status IN (%d, %d);",
        JOB_FAILED, unix_now(), JOBS_LOSSES, JOB_RUNNING, JOBS_LOSSES, JOB_QUEUED, JOB_TAKEN, JOB_RUNNING);
    return run(j, sql.p, e);
}

static enum status set_up(struct jobs *j, struct err *e) {
    TRY(run(j,
            "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; "
            "PRAGMA cache_size = -4096; PRAGMA journal_size_limit = 16777216",
            e));
    TRY(begin(j, e));
    enum status st = run(j, schema, e);
    if (st == ST_OK) st = take_up(j, e);
    TRY(commit(j, st, e));
    TRY(jobs_forget_old(j, e));
    return count_all(j, e);
}

enum status jobs_open(const char *path, struct jobs **out, struct err *e) {
    struct jobs *j = xcalloc(1, sizeof *j);
    *out = NULL;
    j->path = xstrdup(path);
    pthread_mutex_init(&j->lock, NULL);
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    enum status st = sqlite3_open_v2(path, &j->db, flags, NULL) == SQLITE_OK ? set_up(j, e) : sql_fail(j, e);
    if (st != ST_OK && j->db && sqlite3_errcode(j->db) == SQLITE_BUSY)
        st = FAIL(e, ST_IO, "%s: another server has this file of jobs", path);
    if (st != ST_OK) {
        jobs_close(j);
        return st;
    }
    *out = j;
    return ST_OK;
}

void jobs_close(struct jobs *j) {
    if (!j) return;
    sqlite3_close(j->db);
    pthread_mutex_destroy(&j->lock);
    free(j->path);
    free(j);
}

enum status jobs_forget_old(struct jobs *j, struct err *e) {
    const double before = unix_now() - JOBS_KEPT_S;
    CLEANUP_STR struct str sql = STR_INIT;
    str_addf(&sql,
             "DELETE FROM jobs WHERE finished < %.3f; DELETE FROM keys WHERE created < %.3f;"
             "DELETE FROM batches WHERE created < %.3f AND NOT EXISTS (SELECT 1 FROM jobs WHERE batch = batches.id);",
             before, before, before);
    pthread_mutex_lock(&j->lock);
    const enum status st = run(j, sql.p, e);
    pthread_mutex_unlock(&j->lock);
    return st;
}

/* ---- names --------------------------------------------------------------------------------------------------------*/

/* Nobody can guess a name: it is all that is asked of who reads a job. It says when it was made. */
static enum status new_name(const char *kind, char out[JOBS_NAME_BYTES], struct err *e) {
    uint64_t number;
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
        return FAIL(e, ST_IO, "getrandom: %s", strerror(errno));
    snprintf(out, JOBS_NAME_BYTES, "%s-%08x%016llx", kind, (unsigned)unix_now(), (unsigned long long)number);
    return ST_OK;
}

bool jobs_name_is_old(const char *name) {
    char digits[9];
    if ((!str_has_prefix(name, "vj-") && !str_has_prefix(name, "vb-")) || strlen(name) != 3 + 8 + 16) return false;
    snprintf(digits, sizeof digits, "%.8s", name + 3);
    return (double)strtoul(digits, NULL, 16) < unix_now() - JOBS_KEPT_S;
}

/* ---- adding -------------------------------------------------------------------------------------------------------*/

enum status jobs_look_up(struct jobs *j, uint64_t owner, const char *key, const struct digest *body,
                         enum jobs_replay *found, char name[JOBS_NAME_BYTES], struct err *e) {
    sqlite3_stmt *s;
    *found = JOBS_NEW;
    pthread_mutex_lock(&j->lock);
    enum status st = prepare(j, "SELECT body, name FROM keys WHERE owner = ? AND key = ?", &s, e);
    if (st == ST_OK) {
        sqlite3_bind_int64(s, 1, (int64_t)owner);
        bind_text(s, 2, key);
        if (sqlite3_step(s) == SQLITE_ROW) {
            const char *had = (const char *)sqlite3_column_text(s, 0);
            *found = !body || (had && strcmp(had, body->hex) == 0) ? JOBS_SAME : JOBS_OTHER;
            snprintf(name, JOBS_NAME_BYTES, "%s", (const char *)sqlite3_column_text(s, 1));
        }
        st = finish(j, s, e);
    }
    pthread_mutex_unlock(&j->lock);
    return st;
}

static enum status add_key(struct jobs *j, uint64_t owner, const char *key, const struct digest *body, const char *name,
                           struct err *e) {
    sqlite3_stmt *s;
    TRY(prepare(j, "INSERT OR REPLACE INTO keys(owner, key, body, name, created) VALUES(?,?,?,?,?)", &s, e));
    sqlite3_bind_int64(s, 1, (int64_t)owner);
    bind_text(s, 2, key);
    bind_text(s, 3, body->hex);
    bind_text(s, 4, name);
    sqlite3_bind_double(s, 5, unix_now());
    return finish(j, s, e);
}

static enum status add_batch(struct jobs *j, const char *name, int64_t *id, struct err *e) {
    sqlite3_stmt *s;
    TRY(prepare(j, "INSERT INTO batches(name, created) VALUES(?,?)", &s, e));
    bind_text(s, 1, name);
    sqlite3_bind_double(s, 2, unix_now());
    TRY(finish(j, s, e));
    *id = sqlite3_last_insert_rowid(j->db);
    return ST_OK;
}

static enum status add_jobs(struct jobs *j, uint64_t owner, int64_t batch, const struct job_new *jobs, size_t n,
                            char name[JOBS_NAME_BYTES], struct err *e) {
    sqlite3_stmt *s;
    enum status st = ST_OK;
    TRY(prepare(j,
                "INSERT INTO jobs(name, owner, batch, place, status, priority, created, request, metadata) "
                "VALUES(?,?,?,?,0,?,?,?,?)",
                &s, e));
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        st = new_name("vj", name, e);
        bind_text(s, 1, name);
        sqlite3_bind_int64(s, 2, (int64_t)owner);
        if (batch)
            sqlite3_bind_int64(s, 3, batch);
        else
            sqlite3_bind_null(s, 3);
        sqlite3_bind_int64(s, 4, (int64_t)i);
        sqlite3_bind_int(s, 5, jobs[i].priority);
        sqlite3_bind_double(s, 6, unix_now());
        bind_text(s, 7, jobs[i].request);
        bind_text(s, 8, jobs[i].metadata);
        if (st == ST_OK && sqlite3_step(s) != SQLITE_DONE) st = sql_fail(j, e);
        sqlite3_reset(s);
        const struct digest body = digest_of(jobs[i].request, strlen(jobs[i].request));
        if (st == ST_OK && jobs[i].key) st = add_key(j, owner, jobs[i].key, &body, name, e);
    }
    sqlite3_finalize(s);
    return st;
}

enum status jobs_add(struct jobs *j, uint64_t owner, const char *key, const struct digest *body,
                     const struct job_new *jobs, size_t n, bool batch, char name[JOBS_NAME_BYTES], struct err *e) {
    char job[JOBS_NAME_BYTES];
    int64_t id = 0;
    pthread_mutex_lock(&j->lock);
    enum status st = begin(j, e);
    if (st == ST_OK) {
        if (batch) st = new_name("vb", name, e);
        if (batch && st == ST_OK) st = add_batch(j, name, &id, e);
        if (st == ST_OK) st = add_jobs(j, owner, id, jobs, n, batch ? job : name, e);
        if (st == ST_OK && key) st = add_key(j, owner, key, body, name, e);
        st = commit(j, st, e);
    }
    if (st == ST_OK) count_waiting(j, (int64_t)owner, (int64_t)n);
    pthread_mutex_unlock(&j->lock);
    return st;
}

/* ---- reading ------------------------------------------------------------------------------------------------------*/

enum status jobs_find(struct jobs *j, const char *name, bool with_texts, struct job_row *out, bool *found,
                      struct err *e) {
    sqlite3_stmt *s;
    *found = false;
    *out = (struct job_row){0};
    pthread_mutex_lock(&j->lock);
    enum status st = prepare(j,
                             with_texts ? "SELECT " ROW_COLUMNS TEXT_COLUMNS " FROM jobs WHERE name = ?"
                                        : "SELECT " ROW_COLUMNS " FROM jobs WHERE name = ?",
                             &s, e);
    if (st == ST_OK) {
        bind_text(s, 1, name);
        *found = sqlite3_step(s) == SQLITE_ROW;
        if (*found) read_row(s, with_texts, out);
        st = finish(j, s, e);
    }
    pthread_mutex_unlock(&j->lock);
    return st;
}

static enum status read_counts(struct jobs *j, int64_t batch, struct jobs_counts *out, struct err *e) {
    sqlite3_stmt *s;
    TRY(prepare(j, "SELECT status, count(*) FROM jobs WHERE batch = ? GROUP BY status", &s, e));
    sqlite3_bind_int64(s, 1, batch);
    int code;
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        const int status = sqlite3_column_int(s, 0);
        const int64_t n = sqlite3_column_int64(s, 1);
        if (status >= 0 && status <= JOB_CANCELLED) out->by[status] = n;
        out->total += n;
    }
    sqlite3_finalize(s);
    return code == SQLITE_DONE ? ST_OK : sql_fail(j, e);
}

enum status jobs_batch(struct jobs *j, const char *name, struct batch_row *out, bool *found, struct err *e) {
    sqlite3_stmt *s;
    *found = false;
    *out = (struct batch_row){0};
    pthread_mutex_lock(&j->lock);
    enum status st = prepare(j, "SELECT id, created FROM batches WHERE name = ?", &s, e);
    if (st == ST_OK) {
        bind_text(s, 1, name);
        *found = sqlite3_step(s) == SQLITE_ROW;
        if (*found) {
            out->id = sqlite3_column_int64(s, 0);
            out->created = sqlite3_column_double(s, 1);
        }
        st = finish(j, s, e);
        if (st == ST_OK && *found) st = read_counts(j, out->id, &out->counts, e);
    }
    pthread_mutex_unlock(&j->lock);
    return st;
}

enum status jobs_results(struct jobs *j, int64_t batch, int64_t after, struct job_row *out, size_t max, size_t *n,
                         struct err *e) {
    sqlite3_stmt *s;
    *n = 0;
    pthread_mutex_lock(&j->lock);
    enum status st = prepare(j,
                             "SELECT " ROW_COLUMNS TEXT_COLUMNS " FROM jobs WHERE batch = ? AND ended > ? "
                             "ORDER BY ended LIMIT ?",
                             &s, e);
    if (st == ST_OK) {
        sqlite3_bind_int64(s, 1, batch);
        sqlite3_bind_int64(s, 2, after);
        sqlite3_bind_int64(s, 3, (int64_t)max);
        while (sqlite3_step(s) == SQLITE_ROW) read_row(s, true, &out[(*n)++]);
        st = finish(j, s, e);
    }
    pthread_mutex_unlock(&j->lock);
    return st;
}

struct jobs_counts jobs_open_ones(struct jobs *j) {
    struct jobs_counts c = {0};
    pthread_mutex_lock(&j->lock);
    for (int i = 0; i <= JOB_RUNNING; i++) {
        c.by[i] = j->open[i];
        c.total += j->open[i];
    }
    pthread_mutex_unlock(&j->lock);
    return c;
}

enum status jobs_position(struct jobs *j, int64_t id, int64_t *position, struct err *e) {
    sqlite3_stmt *s;
    *position = 0;
    pthread_mutex_lock(&j->lock);
    enum status st = prepare(j,
                             "SELECT count(*) FROM jobs AS a, jobs AS b WHERE b.id = ? AND b.status = 0 AND "
                             "a.status = 0 AND a.owner = b.owner AND (a.priority > b.priority OR "
                             "(a.priority = b.priority AND a.id <= b.id))",
                             &s, e);
    if (st == ST_OK) {
        sqlite3_bind_int64(s, 1, id);
        if (sqlite3_step(s) == SQLITE_ROW) *position = sqlite3_column_int64(s, 0);
        st = finish(j, s, e);
    }
    pthread_mutex_unlock(&j->lock);
    return st;
}

enum status jobs_open_in(struct jobs *j, int64_t batch, int64_t *id, size_t max, size_t *n, struct err *e) {
    sqlite3_stmt *s;
    *n = 0;
    pthread_mutex_lock(&j->lock);
    enum status st = prepare(j, "SELECT id FROM jobs WHERE batch = ? AND status < 3 LIMIT ?", &s, e);
    if (st == ST_OK) {
        sqlite3_bind_int64(s, 1, batch);
        sqlite3_bind_int64(s, 2, (int64_t)max);
        while (*n < max && sqlite3_step(s) == SQLITE_ROW) id[(*n)++] = sqlite3_column_int64(s, 0);
        st = finish(j, s, e);
    }
    pthread_mutex_unlock(&j->lock);
    return st;
}

int64_t jobs_owners(struct jobs *j) {
    int64_t n = 0;
    pthread_mutex_lock(&j->lock);
    for (int i = 0; i < j->n_owners; i++) n += j->owner[i].waiting > 0;
    pthread_mutex_unlock(&j->lock);
    return n;
}

enum status jobs_recall(struct jobs *j, const char *settings, int max, void (*fn)(void *ctx, const char *result),
                        void *ctx, struct err *e) {
    sqlite3_stmt *s;
    pthread_mutex_lock(&j->lock);
    enum status st = prepare(j,
                             "SELECT result FROM jobs WHERE settings = ? AND status = 3 AND cached = 0 "
                             "ORDER BY ended DESC LIMIT ?",
                             &s, e);
    if (st == ST_OK) {
        bind_text(s, 1, settings);
        sqlite3_bind_int(s, 2, max);
        while (sqlite3_step(s) == SQLITE_ROW) {
            const char *result = (const char *)sqlite3_column_text(s, 0);
            if (result) fn(ctx, result);
        }
        st = finish(j, s, e);
    }
    pthread_mutex_unlock(&j->lock);
    return st;
}

/* ---- judging ------------------------------------------------------------------------------------------------------*/

/* Whose turn it is. With more owners than places the rest comes when nobody else waits: `any`. */
static struct job_owner *next_owner(struct jobs *j, bool *any) {
    struct job_owner *next = NULL;
    int64_t known = 0;
    for (int i = 0; i < j->n_owners; i++) {
        struct job_owner *o = &j->owner[i];
        known += o->waiting;
        if (o->waiting > 0 && (!next || o->turn < next->turn)) next = o;
    }
    *any = !next && j->open[JOB_QUEUED] > known;
    return next;
}

static enum status take(struct jobs *j, struct job_owner *o, struct job_row *out, bool *found, struct err *e) {
    sqlite3_stmt *s;
    TRY(prepare(j,
                o ? "SELECT " ROW_COLUMNS TEXT_COLUMNS " FROM jobs WHERE status = 0 AND owner = ? "
                    "ORDER BY priority DESC, id LIMIT 1"
                  : "SELECT " ROW_COLUMNS TEXT_COLUMNS " FROM jobs WHERE status = 0 ORDER BY id LIMIT 1",
                &s, e));
    if (o) sqlite3_bind_int64(s, 1, o->id);
    *found = sqlite3_step(s) == SQLITE_ROW;
    if (*found) read_row(s, true, out);
    TRY(finish(j, s, e));
    if (!*found) { /* counts and file differ: somebody else has written to it */
        if (o) o->waiting = 0;
        return ST_OK;
    }
    TRY(run_with(j, "UPDATE jobs SET status = 1 WHERE id = ?", out->id, e));
    if (o) o->waiting--;
    if (o) o->turn = ++j->turn;
    j->open[JOB_QUEUED]--;
    j->open[JOB_TAKEN]++;
    return ST_OK;
}

enum status jobs_take(struct jobs *j, struct job_row *out, bool *found, struct err *e) {
    enum status st = ST_OK;
    bool any;
    *found = false;
    *out = (struct job_row){0};
    pthread_mutex_lock(&j->lock);
    struct job_owner *o = next_owner(j, &any);
    if (o || any) st = take(j, o, out, found, e);
    pthread_mutex_unlock(&j->lock);
    if (st != ST_OK) job_row_free(out);
    return st;
}

/* The status of a job that is not over; false where it is. */
static enum status open_status(struct jobs *j, int64_t id, enum job_status *was, int64_t *owner, bool *open,
                               struct err *e) {
    sqlite3_stmt *s;
    TRY(prepare(j, "SELECT status, owner FROM jobs WHERE id = ?", &s, e));
    sqlite3_bind_int64(s, 1, id);
    *open = sqlite3_step(s) == SQLITE_ROW;
    if (*open) {
        *was = (enum job_status)sqlite3_column_int(s, 0);
        *owner = sqlite3_column_int64(s, 1);
        *open = !job_is_over(*was);
    }
    return finish(j, s, e);
}

static void leave(struct jobs *j, enum job_status was, int64_t owner) {
    if (was == JOB_QUEUED)
        count_waiting(j, owner, -1);
    else
        j->open[was]--;
}

enum status jobs_begin(struct jobs *j, int64_t id, struct err *e) {
    enum job_status was;
    int64_t owner;
    bool open;
    sqlite3_stmt *s;
    pthread_mutex_lock(&j->lock);
    enum status st = open_status(j, id, &was, &owner, &open, e);
    if (st == ST_OK && open)
        st = prepare(j,
                     "UPDATE jobs SET status = 2, attempts = attempts + 1, started = coalesce(started, ?) WHERE id = ?",
                     &s, e);
    if (st == ST_OK && open) {
        sqlite3_bind_double(s, 1, unix_now());
        sqlite3_bind_int64(s, 2, id);
        st = finish(j, s, e);
    }
    if (st == ST_OK && open) {
        leave(j, was, owner);
        j->open[JOB_RUNNING]++;
    }
    pthread_mutex_unlock(&j->lock);
    return st;
}

enum status jobs_end(struct jobs *j, int64_t id, enum job_status status, const char *result, const char *settings,
                     bool cached, struct err *e) {
    enum job_status was;
    int64_t owner;
    bool open;
    sqlite3_stmt *s;
    pthread_mutex_lock(&j->lock);
    enum status st = open_status(j, id, &was, &owner, &open, e);
    if (st == ST_OK && open)
        st = prepare(j,
                     "UPDATE jobs SET status = ?, finished = ?, ended = ?, result = ?, settings = ?, cached = ? "
                     "WHERE id = ?",
                     &s, e);
    if (st == ST_OK && open) {
        sqlite3_bind_int(s, 1, (int)status);
        sqlite3_bind_double(s, 2, unix_now());
        sqlite3_bind_int64(s, 3, j->ended + 1);
        bind_text(s, 4, result);
        bind_text(s, 5, settings && *settings ? settings : NULL);
        sqlite3_bind_int(s, 6, cached);
        sqlite3_bind_int64(s, 7, id);
        st = finish(j, s, e);
    }
    if (st == ST_OK && open) {
        leave(j, was, owner);
        j->ended++;
    }
    pthread_mutex_unlock(&j->lock);
    return st;
}

enum status jobs_put_back(struct jobs *j, int64_t id, struct err *e) {
    enum job_status was;
    int64_t owner;
    bool open;
    pthread_mutex_lock(&j->lock);
    enum status st = open_status(j, id, &was, &owner, &open, e);
    if (st == ST_OK && open && was != JOB_QUEUED) {
        st = run_with(j, "UPDATE jobs SET status = 0 WHERE id = ?", id, e);
        if (st == ST_OK) {
            leave(j, was, owner);
            count_waiting(j, owner, 1);
        }
    }
    pthread_mutex_unlock(&j->lock);
    return st;
}
