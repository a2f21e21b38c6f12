#include "rl/run/run.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/log.h"
#include "io/json.h"
#include "io/jsonl.h"
#include "io/tfevents.h"
#include "rl/run/episodes.h"

enum { LINE_MAX_BYTES = 16 << 20 };

/* A checkpoint whose files are written, on its way onto the disk and into its place. */
struct saving {
    bool on;      /* true: neither waited for nor given up */
    bool started; /* true: a thread does it */
    pthread_t thread;
    char *dir;
    struct str line; /* of checkpoints.jsonl */
    int64_t keep;
    enum status st;
    struct err err;
};

struct run_dir {
    struct saving saving;
    char *dir;
    int lock_fd;
    bool logging; /* this run opened the log; a refused one must not close another's */
    struct jsonl_writer *metrics, *traces, *checkpoints;
    struct episodes *episodes;
    struct tfevents *events;
};

enum status run_lock(const char *dir, int *fd, struct err *e) {
    CLEANUP_FREE char *path = fs_join(dir, ".lock");
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (*fd < 0) return FAIL(e, ST_IO, "%s: cannot write to the run directory: %s", dir, strerror(errno));
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0) {
        char pid[32]; /* whoever holds the lock is this process: `kernelrl runs stop` asks the file, and no process list
                       */
        const int n = snprintf(pid, sizeof pid, "%d\n", (int)getpid());
        if (ftruncate(*fd, 0) == 0 && pwrite(*fd, pid, (size_t)n, 0) == n) return ST_OK;
        const int failed = errno;
        close(*fd);
        *fd = -1;
        return FAIL(e, ST_IO, "%s: cannot write to the run directory: %s", dir, strerror(failed));
    }
    close(*fd);
    *fd = -1;
    return FAIL(e, ST_IO, "%s: another process is training in this run directory", dir);
}

static enum status open_writers(struct run_dir *r, struct err *e) {
    static const char *const names[] = {"metrics.jsonl", TRACES_FILE, "checkpoints.jsonl"};
    struct jsonl_writer **const writers[] = {&r->metrics, &r->traces, &r->checkpoints};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        CLEANUP_FREE char *path = fs_join(r->dir, names[i]);
        TRY(jsonl_append_open(path, writers[i], NULL, e));
    }
    return episodes_open(r->dir, &r->episodes, e);
}

enum status run_open(const char *dir, const char *resolved_yaml, bool tensorboard, struct run_dir **out,
                     struct err *e) {
    TRY(fs_mkdirs(dir, e));
    struct run_dir *r = xcalloc(1, sizeof *r);
    r->dir = xstrdup(dir);
    r->lock_fd = -1;
    CLEANUP_FREE char *log = fs_join(dir, "logs.log"), *config = fs_join(dir, "config.yaml"),
                      *tb = fs_join(dir, "tensorboard");
    enum status st = run_lock(dir, &r->lock_fd, e);
    if (st == ST_OK) st = fs_write_atomic(config, resolved_yaml, strlen(resolved_yaml), e);
    if (st == ST_OK) st = log_open_file(log, e);
    r->logging = st == ST_OK;
    if (st == ST_OK) st = open_writers(r, e);
    if (st == ST_OK && tensorboard) {
        st = fs_mkdirs(tb, e);
        if (st == ST_OK) st = tfevents_open(tb, &r->events, e);
    }
    if (st != ST_OK) {
        run_close(r);
        return st;
    }
    *out = r;
    return ST_OK;
}

void run_close(struct run_dir *r) {
    if (!r) return;
    struct err e;
    if (run_checkpoint_saved(r, &e) != ST_OK) log_warn("%s", e.msg);
    jsonl_append_close(r->metrics);
    jsonl_append_close(r->traces);
    episodes_close(r->episodes);
    jsonl_append_close(r->checkpoints);
    if (tfevents_close(r->events, &e) != ST_OK) log_warn("%s", e.msg);
    if (r->logging) log_close_file();
    if (r->lock_fd >= 0) close(r->lock_fd);
    free(r->dir);
    free(r);
}

const char *run_dir(const struct run_dir *r) { return r->dir; }

/* ---- checkpoints --------------------------------------------------------------------------------------------------*/

static enum status copy_file(const char *from_dir, const char *to_dir, const char *name, struct err *e) {
    CLEANUP_FREE char *from = fs_join(from_dir, name), *to = fs_join(to_dir, name), *text = NULL;
    size_t n;
    if (!fs_is_file(from)) return ST_OK;
    TRY(fs_read(from, (size_t)256 << 20, &text, &n, e));
    return fs_write_atomic(to, text, n, e);
}

enum status checkpoint_write(const char *dir, int64_t next_step, int64_t opt_step, const struct checkpoint_extra *more,
                             const struct model *m, bool lora, const char *dtype, const struct adamw *opt,
                             const char *tokenizer_dir, struct err *e) {
    TRY(fs_mkdirs(dir, e));
    if (m && lora) TRY(model_lora_save(m, dir, e));
    if (m && !lora) TRY(model_save(m, dir, dtype, e));
    static const char *const tokenizer_files[] = {"tokenizer.json", "tokenizer_config.json", "vocab.json",
                                                  "merges.txt",     "chat_template.jinja",   "generation_config.json"};
    for (size_t i = 0; m && !lora && tokenizer_dir && i < ARRAY_LEN(tokenizer_files); i++)
        TRY(copy_file(tokenizer_dir, dir, tokenizer_files[i], e));
    CLEANUP_FREE char *opt_path = fs_join(dir, "optimizer.safetensors"), *state_path = fs_join(dir, "state.json");
    int n;
    if (opt) TRY(adamw_save(opt, model_params((struct model *)(uintptr_t)m, &n), opt_path, e));
    CLEANUP_STR struct str s = STR_INIT;
    str_addf(&s, "{\"next_step\": %lld, \"optimizer_step\": %lld%s%s}\n", (long long)next_step, (long long)opt_step,
             more && *more->state ? ", " : "", more ? more->state : "");
    if (more && more->write) TRY(more->write(more->ctx, dir, e));
    return fs_write_atomic(state_path, s.p, s.len, e); /* written last: its presence says the rest is complete */
}

enum status checkpoint_room(const char *dir, const struct param *p, int n_params, struct err *e) {
    double need = 0;
    struct statvfs disk;
    for (int i = 0; i < n_params; i++)
        if (p[i].g) need += 10.0 * (double)p[i].n;
    if (statvfs(dir, &disk) != 0) return FAIL(e, ST_IO, "%s: %s", dir, strerror(errno));
    const double free_bytes = (double)disk.f_bavail * (double)disk.f_frsize;
    if (free_bytes >= need || disk.f_blocks == 0) return ST_OK; /* no blocks: a file system that does not say */
    return FAIL(e, ST_IO, "%s: %.1f MB are free, and a checkpoint takes %.1f MB or more; make room, or write elsewhere",
                dir, free_bytes / 1e6, need / 1e6);
}

enum status checkpoint_read(const char *dir, int64_t *next_step, int64_t *opt_step, struct model *m, bool lora,
                            struct adamw *opt, struct err *e) {
    CLEANUP_FREE char *weights = fs_join(dir, lora ? "adapter_model.safetensors" : "model.safetensors");
    CLEANUP_FREE char *opt_path = fs_join(dir, "optimizer.safetensors"), *state_path = fs_join(dir, "state.json");
    CLEANUP_JSON json_t *state = NULL;
    TRY(js_load(state_path, 1 << 16, &state, e));
    TRY(js_get_i64(state, state_path, "next_step", next_step, e));
    TRY(js_get_i64(state, state_path, "optimizer_step", opt_step, e));
    int n;
    const struct param *p = model_params(m, &n);
    TRY(model_params_load(m, weights, e));
    return opt ? adamw_load(opt, p, n, opt_path, e) : ST_OK;
}

/* The directory is written beside its place and moved there. Between the two renames of a replacement only DIR.old
 * exists; checkpoint_recover puts it back. */
static enum status write_beside(const char *dir, int64_t next_step, int64_t opt_step,
                                const struct checkpoint_extra *more, const struct model *m, bool lora,
                                const char *dtype, const struct adamw *opt, const char *tokenizer_dir, struct err *e) {
    CLEANUP_STR struct str tmp = STR_INIT;
    struct err ignored;
    str_addf(&tmp, "%s.tmp", dir);
    TRY(checkpoint_recover(dir, e));
    TRY(fs_remove(tmp.p, e));
    fs_force_later(true);
    const enum status st = checkpoint_write(tmp.p, next_step, opt_step, more, m, lora, dtype, opt, tokenizer_dir, e);
    fs_force_later(false);
    if (st != ST_OK && fs_remove(tmp.p, &ignored) != ST_OK) log_warn("%s", ignored.msg);
    return st;
}

static enum status put_in_place(const char *dir, struct err *e) {
    CLEANUP_STR struct str tmp = STR_INIT, old = STR_INIT;
    struct err ignored;
    str_addf(&tmp, "%s.tmp", dir);
    str_addf(&old, "%s.old", dir);
    enum status st = fs_force_tree(tmp.p, e);
    if (st == ST_OK && fs_is_dir(dir) && rename(dir, old.p) != 0)
        st = FAIL(e, ST_IO, "%s: cannot rename: %s", dir, strerror(errno));
    if (st == ST_OK && rename(tmp.p, dir) != 0) st = FAIL(e, ST_IO, "%s: cannot rename: %s", tmp.p, strerror(errno));
    if (st == ST_OK) return fs_remove(old.p, e);
    if (checkpoint_recover(dir, &ignored) != ST_OK) log_warn("%s", ignored.msg);
    if (fs_remove(tmp.p, &ignored) != ST_OK) log_warn("%s", ignored.msg);
    return st;
}

enum status checkpoint_replace(const char *dir, int64_t next_step, int64_t opt_step,
                               const struct checkpoint_extra *more, const struct model *m, bool lora, const char *dtype,
                               const struct adamw *opt, const char *tokenizer_dir, struct err *e) {
    TRY(write_beside(dir, next_step, opt_step, more, m, lora, dtype, opt, tokenizer_dir, e));
    return put_in_place(dir, e);
}

enum status checkpoint_recover(const char *dir, struct err *e) {
    CLEANUP_STR struct str old = STR_INIT;
    str_addf(&old, "%s.old", dir);
    if (!fs_is_dir(old.p)) return ST_OK;
    if (fs_is_dir(dir)) return fs_remove(old.p, e);
    if (rename(old.p, dir) != 0) return FAIL(e, ST_IO, "%s: cannot rename: %s", old.p, strerror(errno));
    return ST_OK;
}

/* Of names that are numbers: largest first. */
static int by_number_descending(const void *a, const void *b) {
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    const size_t n = strlen(x), m = strlen(y);
    return n != m ? (n < m ? 1 : -1) : strcmp(y, x);
}

/* Removes numbered checkpoints but the `keep` newest ones; 0 keeps all. */
static enum status prune_checkpoints(const struct run_dir *r, int64_t keep, struct err *e) {
    CLEANUP_FREE char *dir = fs_join(r->dir, "checkpoints");
    if (keep <= 0 || !fs_is_dir(dir)) return ST_OK;
    char **names;
    size_t n;
    TRY(fs_list(dir, &names, &n, e));
    qsort(names, n, sizeof *names, by_number_descending);
    enum status st = ST_OK;
    int64_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        int64_t step;
        if (parse_i64(names[i], &step) && ++kept > keep && st == ST_OK) {
            CLEANUP_FREE char *path = fs_join(dir, names[i]);
            st = fs_remove(path, e);
        }
        free(names[i]);
    }
    free(names);
    return st;
}

static enum status finish_saving(struct run_dir *r, struct err *e) {
    const struct saving *s = &r->saving;
    TRY(put_in_place(s->dir, e));
    TRY(jsonl_append(r->checkpoints, s->line.p, s->line.len, e));
    TRY(jsonl_sync(r->checkpoints, e));
    return prune_checkpoints(r, s->keep, e);
}

static void *saving_main(void *run) {
    struct run_dir *r = run;
    r->saving.st = finish_saving(r, &r->saving.err);
    return NULL;
}

enum status run_save_checkpoint(struct run_dir *r, const char *name, int64_t next_step, int64_t opt_step,
                                const struct checkpoint_extra *more, const struct model *m, bool lora,
                                const struct adamw *opt, const char *tokenizer_dir, int64_t keep, struct err *e) {
    CLEANUP_STR struct str dir = STR_INIT;
    struct saving *s = &r->saving;
    TRY(run_checkpoint_saved(r, e));
    str_addf(&dir, "%s/checkpoints/%s", r->dir, name);
    TRY(write_beside(dir.p, next_step, opt_step, more, m, lora, "f32", opt, tokenizer_dir, e));
    *s = (struct saving){.on = true, .dir = xstrdup(dir.p), .keep = keep};
    js_begin(&s->line, NULL, '{');
    js_put_str(&s->line, "name", name);
    js_put_i64(&s->line, "next_step", next_step);
    js_put_str(&s->line, "kind", !m ? "hosted" : lora ? "adapter" : "full");
    js_put_i64(&s->line, "time", (int64_t)time(NULL));
    js_end(&s->line, '}');
    s->started = pthread_create(&s->thread, NULL, saving_main, r) == 0;
    return s->started ? ST_OK : run_checkpoint_saved(r, e);
}

enum status run_checkpoint_saved(struct run_dir *r, struct err *e) {
    if (!r->saving.on) return ST_OK;
    if (r->saving.started)
        pthread_join(r->saving.thread, NULL);
    else
        saving_main(r);
    struct saving s = r->saving;
    r->saving = (struct saving){0};
    free(s.dir);
    str_free(&s.line);
    if (s.st != ST_OK) *e = s.err;
    return s.st;
}

/* Whether DIR holds all files of a checkpoint; its position is the one that its state.json says, since the directory
 * may be newer than the line about it (a run that was killed between the two). */
static bool is_complete(const char *dir, const char *kind, int64_t *next_step) {
    static const char *const full[] = {"model.safetensors", "config.json", "optimizer.safetensors"};
    static const char *const lora[] = {"adapter_model.safetensors", "adapter_config.json", "optimizer.safetensors"};
    const bool adapter = strcmp(kind, "adapter") == 0, hosted = strcmp(kind, "hosted") == 0;
    for (size_t i = 0; !hosted && i < ARRAY_LEN(full); i++) {
        CLEANUP_FREE char *path = fs_join(dir, adapter ? lora[i] : full[i]);
        if (!fs_is_file(path)) return false;
    }
    CLEANUP_FREE char *path = fs_join(dir, "state.json");
    CLEANUP_JSON json_t *state = NULL;
    struct err ignored;
    return js_load(path, 1 << 16, &state, &ignored) == ST_OK &&
           js_get_i64(state, path, "next_step", next_step, &ignored) == ST_OK;
}

/* The newest complete one; with `at` >= 0 the newest whose position is that. */
static enum status find_checkpoint(const struct run_dir *r, int64_t at, struct run_checkpoint *out, struct err *e) {
    *out = (struct run_checkpoint){0};
    CLEANUP_FREE char *path = fs_join(r->dir, "checkpoints.jsonl");
    if (!fs_is_file(path)) return ST_OK;
    struct jsonl_reader *reader;
    TRY(jsonl_open(path, LINE_MAX_BYTES, &reader, e));
    enum status st;
    for (;;) {
        const char *line, *name, *kind;
        size_t n;
        if ((st = jsonl_next(reader, &line, &n, e)) != ST_OK || !line) break;
        CLEANUP_JSON json_t *row = NULL;
        if ((st = js_parse(line, n, path, &row, e)) != ST_OK) break;
        if ((st = js_get_str(row, path, "name", &name, e)) != ST_OK) break;
        if ((st = js_get_str(row, path, "kind", &kind, e)) != ST_OK) break;
        char dir[sizeof out->path];
        int64_t next;
        snprintf(dir, sizeof dir, "%s/checkpoints/%s", r->dir, name);
        if (strchr(name, '/')) continue;
        if ((st = checkpoint_recover(dir, e)) != ST_OK) break;
        if (!is_complete(dir, kind, &next) || next < out->next_step) continue;
        if (at >= 0 && next != at) continue;
        out->found = true;
        out->next_step = next;
        memcpy(out->path, dir, sizeof dir);
    }
    jsonl_close(reader);
    return st;
}

enum status run_last_checkpoint(const struct run_dir *r, struct run_checkpoint *out, struct err *e) {
    return find_checkpoint(r, -1, out, e);
}

enum status run_find_checkpoint(const struct run_dir *r, int64_t step, struct run_checkpoint *out, struct err *e) {
    TRY(find_checkpoint(r, step, out, e));
    if (out->found) return ST_OK;
    return FAIL(e, ST_CONFIG, "resume_from_batch: %s/checkpoints.jsonl has no complete checkpoint of step %lld", r->dir,
                (long long)step);
}

enum status run_load_checkpoint(const struct run_checkpoint *c, struct model *m, bool lora, struct adamw *opt,
                                int64_t *opt_step, struct err *e) {
    int64_t next;
    TRY(checkpoint_read(c->path, &next, opt_step, m, lora, opt, e));
    if (next != c->next_step)
        return FAIL(e, ST_PARSE, "%s/state.json: next_step is %lld, expected %lld", c->path, (long long)next,
                    (long long)c->next_step);
    return ST_OK;
}

/* ---- metrics and traces -------------------------------------------------------------------------------------------*/

/* The "step" a line begins with, as all that are written here do; it is not worth parsing whole answers for it. */
static enum status step_of_line(const char *line, size_t n, const char *where, int64_t *out, struct err *e) {
    static const char first[] = "{\"step\":";
    if (str_has_prefix(line, first)) {
        char *end;
        errno = 0;
        *out = strtoll(line + sizeof first - 1, &end, 10);
        if (errno == 0 && end > line + sizeof first - 1 && (*end == ',' || *end == '}')) return ST_OK;
    }
    CLEANUP_JSON json_t *row = NULL;
    TRY(js_parse(line, n, where, &row, e));
    return js_get_i64(row, where, "step", out, e);
}

/* Cuts NAME at its first line of a step >= step: lines are written in the order of their steps. */
static enum status truncate_lines(struct run_dir *r, struct jsonl_writer *w, const char *name, int64_t step,
                                  struct err *e) {
    CLEANUP_FREE char *path = fs_join(r->dir, name);
    struct jsonl_reader *reader;
    TRY(jsonl_open(path, LINE_MAX_BYTES, &reader, e));
    int64_t cut = -1;
    enum status st;
    while (cut < 0) {
        const char *line;
        size_t n;
        int64_t at;
        char where[4200];
        if ((st = jsonl_next(reader, &line, &n, e)) != ST_OK || !line) break;
        snprintf(where, sizeof where, "%s:%lld", path, (long long)jsonl_line(reader));
        if ((st = step_of_line(line, n, where, &at, e)) != ST_OK) break;
        if (at >= step) cut = jsonl_offset(reader);
    }
    jsonl_close(reader);
    return st == ST_OK && cut >= 0 ? jsonl_append_cut(w, cut, e) : st;
}

/* A compressed file cannot be cut at a line: what is kept is written anew. */
static enum status truncate_traces(struct run_dir *r, int64_t step, struct err *e) {
    CLEANUP_FREE char *path = fs_join(r->dir, TRACES_FILE), *tmp = fs_join(r->dir, "traces.tmp.jsonl.zst");
    CLEANUP_STR struct str kept = STR_INIT; /* of one step */
    struct jsonl_reader *reader;
    struct jsonl_writer *writer = NULL;
    int64_t at = -1, last = -1;
    bool cut = false;
    TRY(fs_remove(tmp, e));
    TRY(jsonl_open(path, LINE_MAX_BYTES, &reader, e));
    enum status st = jsonl_append_open(tmp, &writer, NULL, e);
    while (st == ST_OK && !cut) {
        const char *line;
        size_t n;
        char where[4200];
        if ((st = jsonl_next(reader, &line, &n, e)) != ST_OK || !line) break;
        snprintf(where, sizeof where, "%s:%lld", path, (long long)jsonl_line(reader));
        if ((st = step_of_line(line, n, where, &at, e)) != ST_OK) break;
        cut = at >= step;
        if (kept.len > 0 && (cut || at != last)) {
            st = jsonl_append(writer, kept.p, kept.len, e);
            str_clear(&kept);
        }
        last = at;
        if (cut) break;
        str_add(&kept, line, n);
        str_addc(&kept, '\n');
    }
    if (st == ST_OK && kept.len > 0) st = jsonl_append(writer, kept.p, kept.len, e);
    if (st == ST_OK) st = jsonl_sync(writer, e);
    jsonl_close(reader);
    jsonl_append_close(writer);
    if (st != ST_OK || !cut) {
        struct err ignored;
        if (fs_remove(tmp, &ignored) != ST_OK) log_warn("%s", ignored.msg);
        return st;
    }
    jsonl_append_close(r->traces);
    r->traces = NULL;
    /* The index goes first: one that describes the old file must never stand beside the new one. */
    episodes_close(r->episodes);
    r->episodes = NULL;
    TRY(episodes_remove(r->dir, e));
    if (rename(tmp, path) != 0) return FAIL(e, ST_IO, "%s: cannot rename: %s", tmp, strerror(errno));
    TRY(jsonl_append_open(path, &r->traces, NULL, e));
    return episodes_open(r->dir, &r->episodes, e);
}

enum status run_truncate(struct run_dir *r, int64_t step, struct err *e) {
    TRY(truncate_lines(r, r->metrics, "metrics.jsonl", step, e));
    TRY(truncate_traces(r, step, e));
    CLEANUP_FREE char *tb = fs_join(r->dir, "tensorboard");
    return fs_is_dir(tb) ? tfevents_truncate(tb, step, e) : ST_OK;
}

enum status run_is_evaluated(const struct run_dir *r, int64_t step, bool *out, struct err *e) {
    CLEANUP_FREE char *path = fs_join(r->dir, "metrics.jsonl");
    struct jsonl_reader *reader;
    TRY(jsonl_open(path, LINE_MAX_BYTES, &reader, e));
    *out = false;
    enum status st;
    for (;;) {
        const char *line;
        size_t n;
        int64_t at;
        if ((st = jsonl_next(reader, &line, &n, e)) != ST_OK || !line) break;
        if ((st = step_of_line(line, n, path, &at, e)) != ST_OK) break;
        *out |= at == step && mem_find(line, n, ",\"eval/", 7) != NULL;
    }
    jsonl_close(reader);
    return st;
}

/* TensorBoard groups charts by the part before the slash: kernel/correct_rate is Kernel/CorrectRate there. Some charts
 * have names of their own, which other programs know. */
static void tensorboard_tag(const char *name, char *out, size_t cap) {
    static const char *const own[][2] = {
        {"reward/std", "Reward/StdDev"},
        {"progress/done_frac", "Progress/CompletionFraction"},
        {"optim/lr", "Optimizer/LearningRate"},
        {"time/rollout", "Timing/Rollout"},
        {"time/train", "Timing/Train"},
        {"time/total", "Timing/Total"},
        {"time/assemble_data", "Timing/Assemble_Data"},
        {"time/save_checkpoint", "Timing/Save_Checkpoint"},
        {"eval/pass@1", "Eval/Pass@1"},
        {"eval/pass@5", "Eval/Pass@5"},
        {"eval/fast_1_rate", "Eval/Fast1x"},
        {"eval/fast_2_rate", "Eval/Fast2x"},
    };
    for (size_t i = 0; i < ARRAY_LEN(own); i++)
        if (strcmp(name, own[i][0]) == 0) {
            snprintf(out, cap, "%s", own[i][1]);
            return;
        }
    bool up = true;
    size_t n = 0;
    for (; *name && n + 1 < cap; name++) {
        if (*name == '_') {
            up = true;
            continue;
        }
        out[n++] = up && *name >= 'a' && *name <= 'z' ? (char)(*name - 32) : *name;
        up = *name == '/';
    }
    out[n] = 0;
}

enum status run_metrics(struct run_dir *r, int64_t step, const struct metric *m, int n, struct err *e) {
    CLEANUP_STR struct str line = STR_INIT;
    js_begin(&line, NULL, '{');
    js_put_i64(&line, "step", step);
    for (int i = 0; i < n; i++) js_put_f64(&line, m[i].name, m[i].value);
    js_end(&line, '}');
    TRY(jsonl_append(r->metrics, line.p, line.len, e));
    for (int i = 0; r->events && i < n; i++) {
        char tag[128];
        tensorboard_tag(m[i].name, tag, sizeof tag);
        if (isfinite(m[i].value)) tfevents_scalar(r->events, step, tag, m[i].value);
    }
    return r->events ? tfevents_flush(r->events, e) : ST_OK;
}

void run_scalar(struct run_dir *r, int64_t step, const char *tag, double value) {
    if (r->events && isfinite(value)) tfevents_scalar(r->events, step, tag, value);
}

void run_histogram(struct run_dir *r, int64_t step, const char *tag, const double *values, size_t n) {
    if (r->events) tfevents_histogram(r->events, step, tag, values, n);
}

void run_text(struct run_dir *r, int64_t step, const char *tag, const char *text) {
    if (r->events) tfevents_text(r->events, step, tag, text);
}

void run_charts(struct run_dir *r, int64_t step) {
    static const struct tfevents_chart charts[] = {
        {"Reward/Summary", {"^Reward/Mean$", "^Reward/Min$", "^Reward/Max$"}},
        {"Kernel/QualityRates", {"^Kernel/FormatRate$", "^Kernel/CompileRate$", "^Kernel/CorrectRate$"}},
        {"Timing/Breakdown",
         {"^Timing/Rollout$", "^Timing/Assemble_Data$", "^Timing/Train$", "^Timing/Save_Checkpoint$"}},
        {"Eval/QualityOverview", {"^Eval/CompileRate$", "^Eval/CorrectRate$", "^Eval/Pass@1$"}},
    };
    if (r->events) tfevents_layout(r->events, step, "Overview", charts, ARRAY_LEN(charts));
}

enum status run_flush(struct run_dir *r, struct err *e) { return r->events ? tfevents_flush(r->events, e) : ST_OK; }

static void put_numbers(struct str *line, const char *name, const float *x, int n) {
    js_begin(line, name, '[');
    for (int i = 0; i < n; i++) str_addf(line, i ? ",%.9g" : "%.9g", (double)x[i]);
    js_end(line, ']');
}

static void put_ids(struct str *line, const char *name, const int32_t *ids, size_t n) {
    js_begin(line, name, '[');
    for (size_t i = 0; i < n; i++) js_put_i64(line, NULL, ids[i]);
    js_end(line, ']');
}

/* A sample of a role: its reward is one number, and only repairs have a verdict. */
static void put_role(struct str *line, const struct sample_group *g) {
    js_put_str(line, "role", g->role);
    js_begin(line, "about", '[');
    for (int i = 0; i < 2; i++)
        if (g->about[i] >= 0) js_put_i64(line, NULL, g->about[i]);
    js_end(line, ']');
}

/* What was asked. It stands last in the line: a search of answers ends in front of their tokens. */
static void put_prompt(struct str *line, const struct tokenizer *t, const struct sample_group *g) {
    CLEANUP_STR struct str text = STR_INIT;
    if (g->message[0])
        str_addf(&text, "%s\n\n%s", g->message[0], g->message[1]);
    else if (t)
        tokenizer_decode(t, g->prompt.p, g->prompt.len, false, &text);
    if (text.len > 0) js_put_strn(line, "prompt_text", text.p, text.len);
}

static void put_trace(struct str *line, int64_t step, const struct tokenizer *t, const struct sample_group *g,
                      int index) {
    CLEANUP_STR struct str verdict = STR_INIT;
    const struct episode *ep = &g->ep[index];
    js_begin(line, NULL, '{');
    js_put_i64(line, "step", step);
    js_put_i64(line, "group", g->task);
    js_put_i64(line, "sample", g->first + index);
    js_put_i64(line, "turn", g->turn);
    if (g->role) put_role(line, g);
    js_put_str(line, "problem", g->problem ? g->problem->key : "");
    js_put_str(line, "text", ep->text);
    js_put_str(line, "stop", stop_reason_name(ep->sample.stop));
    js_put_i64(line, "tokens", ep->sample.n);
    js_put_bool(line, "format_ok", ep->format_ok);
    js_put_i64(line, "plan_tokens", ep->plan_tokens);
    if (g->role)
        js_put_f64(line, "reward", ep->present ? ep->reward.total : (double)NAN);
    else
        reward_to_json(&ep->reward, ep->present, line);
    if (!g->role) js_put_f64(line, "return", ep->has_return ? ep->ret : (double)NAN);
    js_put_f64(line, "advantage", ep->advantage);
    if (!g->role || g->judged) {
        verdict_to_json(&ep->verdict, &verdict);
        str_adds(line, ",\"verdict\":");
        str_add(line, str_c(&verdict), verdict.len);
    }
    if (index == 0) put_ids(line, "prompt_ids", g->prompt.p, g->prompt.len);
    put_ids(line, "ids", ep->sample.ids, (size_t)ep->sample.n);
    if (ep->sample.logp) put_numbers(line, "logp", ep->sample.logp, ep->sample.n);
    if (index == 0) put_prompt(line, t, g);
    js_end(line, '}');
    str_addc(line, '\n');
}

enum status run_traces(struct run_dir *r, int64_t step, const struct tokenizer *t, const struct rollout *x,
                       struct err *e) {
    CLEANUP_STR struct str lines = STR_INIT;
    for (int i = 0; i < x->n; i++)
        for (int j = 0; j < x->group[i].n; j++) put_trace(&lines, step, t, &x->group[i], j);
    if (lines.len == 0) return ST_OK;
    const int64_t frame = jsonl_append_size(r->traces);
    TRY(jsonl_append(r->traces, lines.p, lines.len, e));
    return episodes_add(r->episodes, frame, lines.p, lines.len, e);
}
