#include "rl/rollout/sample_journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/hash.h"
#include "base/log.h"

#define MAGIC UINT64_C(0x31504d53204c524b) /* "KRL SMP1" in the file's order of bytes */

struct file_head {
    uint64_t magic, identity;
};

/* Which sample it is. */
struct sample_key {
    char request[64]; /* SHA-256 of what the request says */
    uint64_t weights;
    int64_t number; /* among the request's samples */
};

/* A record: this, n ids, n log-probabilities, n entropies. */
struct record_head {
    uint64_t checksum; /* of what follows it */
    struct sample_key key;
    int32_t n, stop;
};

struct sample_entry {
    struct sample_key key;
    int64_t at; /* of the record in `data` */
};

struct sample_journal {
    char *path;
    int fd; /* -1: a write has failed, and nothing is written any more; `data` is still read */
    struct actor_policy inner;
    const uint64_t *weights;
    char *
        data; /* what the file held when it was opened: only these samples are found; later ones are for the next run */
    struct sample_entry *entry;
    size_t n;   /* sorted by key */
    off_t mark; /* the file's length at sample_journal_mark(); 0: there is no mark */
    int64_t replayed;
};

static int by_key(const void *a, const void *b) {
    return memcmp(&((const struct sample_entry *)a)->key, &((const struct sample_entry *)b)->key,
                  sizeof(struct sample_key));
}

static size_t record_bytes(int32_t n) { return sizeof(struct record_head) + (size_t)n * 3 * sizeof(float); }

static uint64_t checksum(const char *record, size_t bytes) {
    return hash_bytes(record + sizeof(uint64_t), bytes - sizeof(uint64_t), 0);
}

/* ---- the file -----------------------------------------------------------------------------------------------------*/

/* Lists the records in `data` up to the first that is torn or wrong, sorted. Returns where the last good one ends. */
static size_t read_records(struct sample_journal *j, size_t len) {
    size_t at = sizeof(struct file_head), cap = 0;
    struct record_head h;
    while (len - at >= sizeof h) {
        memcpy(&h, j->data + at, sizeof h);
        if (h.n < 0 || (size_t)h.n > (len - at) / (3 * sizeof(float))) break;
        const size_t bytes = record_bytes(h.n);
        if (bytes > len - at || h.checksum != checksum(j->data + at, bytes)) break;
        if (j->n == cap) {
            cap = cap ? 2 * cap : 256;
            j->entry = xrealloc(j->entry, cap * sizeof *j->entry);
        }
        j->entry[j->n++] = (struct sample_entry){h.key, (int64_t)at};
        at += bytes;
    }
    if (j->n > 0) qsort(j->entry, j->n, sizeof *j->entry, by_key);
    return at;
}

static enum status read_file(struct sample_journal *j, uint64_t identity, struct err *e) {
    const struct file_head head = {MAGIC, identity};
    struct stat s;
    size_t len = 0, good = 0;
    if (fstat(j->fd, &s) != 0) return FAIL(e, ST_IO, "%s: cannot be read: %s", j->path, strerror(errno));
    if ((size_t)s.st_size > sizeof head) TRY(fs_read(j->path, (size_t)s.st_size, &j->data, &len, e));
    if (len > sizeof head && memcmp(j->data, &head, sizeof head) == 0) good = read_records(j, len);
    if (good == len && len > 0) return ST_OK;
    if (ftruncate(j->fd, (off_t)good) != 0)
        return FAIL(e, ST_IO, "%s: cannot be shortened: %s", j->path, strerror(errno));
    if (good == 0 && !fs_write_all(j->fd, &head, sizeof head))
        return FAIL(e, ST_IO, "%s: cannot be written: %s", j->path, strerror(errno));
    return ST_OK;
}

enum status sample_journal_open(const char *path, uint64_t identity, struct actor_policy inner, const uint64_t *weights,
                                struct sample_journal **out, struct err *e) {
    struct sample_journal *j = *out = xcalloc(1, sizeof *j);
    *j = (struct sample_journal){.path = xstrdup(path), .inner = inner, .weights = weights};
    j->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    const enum status st =
        j->fd < 0 ? FAIL(e, ST_IO, "%s: cannot be opened: %s", path, strerror(errno)) : read_file(j, identity, e);
    if (st == ST_OK) return ST_OK;
    sample_journal_close(j);
    *out = NULL;
    return st;
}

void sample_journal_close(struct sample_journal *j) {
    if (!j) return;
    if (j->fd >= 0) close(j->fd);
    free(j->entry);
    free(j->data);
    free(j->path);
    free(j);
}

static void give_up(struct sample_journal *j) {
    log_warn("%s: %s; samples are not written down any more, and a killed run draws them again", j->path,
             strerror(errno));
    close(j->fd);
    j->fd = -1;
}

void sample_journal_mark(struct sample_journal *j) {
    j->n = 0; /* what was drawn before the file was opened is in front of the mark */
    free(j->data);
    j->data = NULL;
    if (j->fd >= 0) j->mark = lseek(j->fd, 0, SEEK_END);
}

/* What stands behind the mark moves to the front. A process that is killed on the way has lost samples. */
void sample_journal_forget(struct sample_journal *j) {
    const off_t mark = j->mark;
    struct stat s;
    j->mark = 0;
    if (j->fd < 0 || mark <= (off_t)sizeof(struct file_head)) return;
    if (fstat(j->fd, &s) != 0 || s.st_size < mark) return give_up(j);
    const size_t n = (size_t)(s.st_size - mark);
    CLEANUP_FREE char *rest = xmalloc(n + 1);
    if (pread(j->fd, rest, n, mark) != (ssize_t)n || ftruncate(j->fd, sizeof(struct file_head)) != 0 ||
        !fs_write_all(j->fd, rest, n))
        give_up(j);
}

int64_t sample_journal_replayed(const struct sample_journal *j) { return j->replayed; }

/* Writes a sample down, unless it was cancelled: that depends on the caller, and another run may let it end. */
static void append(struct sample_journal *j, const struct sample_key *key, const struct sample *s) {
    struct record_head h = {.key = *key, .n = s->n, .stop = (int32_t)s->stop};
    CLEANUP_STR struct str r = STR_INIT;
    if (j->fd < 0 || !s->ids || s->stop == STOP_CANCELLED) return;
    str_add(&r, (const char *)&h, sizeof h);
    str_add(&r, (const char *)s->ids, (size_t)s->n * sizeof *s->ids);
    str_add(&r, (const char *)s->logp, (size_t)s->n * sizeof *s->logp);
    str_add(&r, (const char *)s->entropy, (size_t)s->n * sizeof *s->entropy);
    h.checksum = checksum(r.p, r.len);
    memcpy(r.p, &h.checksum, sizeof h.checksum);
    if (!fs_write_all(j->fd, r.p, r.len)) give_up(j);
}

static void *copy_of(const char *p, int32_t n) {
    void *copy = xmalloc((size_t)n * sizeof(float) + 1);
    memcpy(copy, p, (size_t)n * sizeof(float));
    return copy;
}

static bool find(struct sample_journal *j, const struct sample_key *key, struct sample *out) {
    const struct sample_entry wanted = {.key = *key};
    const struct sample_entry *x = j->n ? bsearch(&wanted, j->entry, j->n, sizeof *j->entry, by_key) : NULL;
    struct record_head h;
    if (!x) return false;
    memcpy(&h, j->data + x->at, sizeof h);
    const char *ids = j->data + x->at + sizeof h;
    const size_t bytes = (size_t)h.n * sizeof(float);
    *out = (struct sample){.ids = copy_of(ids, h.n),
                           .logp = copy_of(ids + bytes, h.n),
                           .entropy = copy_of(ids + 2 * bytes, h.n),
                           .n = h.n,
                           .stop = (enum stop_reason)h.stop};
    j->replayed++;
    return true;
}

/* ---- requests -----------------------------------------------------------------------------------------------------*/

/* true: key_of() covers all that the request says, and a record can hold all that it asks for. */
static bool is_plain(const struct request *r) {
    const struct sample_params *p = &r->params;
    return !r->sink && !r->top_logprobs && !r->n_logprob_ids && !r->prompt_logprobs && !r->prompt_ranks &&
           !r->tempered_logprobs && r->adapter == ADAPTER_OWN && !p->n_logit_bias && !p->n_allowed_ids &&
           !p->n_bad_words;
}

static void add_array(struct str *s, const void *p, size_t n, size_t element) {
    str_addf(s, "%zu:", n);
    str_add(s, p ? p : "", p ? n * element : 0);
}

/* The key of a plain request's samples, but for `number`. It covers everything in the request that decides a sample's
 * bits; which samples are asked for, and how many at once, decides none. Lengths stand in front of arrays, so that no
 * two requests give the same text. */
static struct sample_key key_of(const struct request *r, uint64_t weights) {
    const struct sample_params *p = &r->params;
    CLEANUP_STR struct str s = STR_INIT;
    str_addf(&s, "%a %d %a %a %d %d %llu %a %a %a %llu %d ", (double)p->temperature, p->top_k, (double)p->top_p,
             (double)p->min_p, p->max_tokens, p->min_tokens, (unsigned long long)p->seed, (double)p->repetition_penalty,
             (double)p->frequency_penalty, (double)p->presence_penalty, (unsigned long long)r->id,
             r->processed_logprobs);
    add_array(&s, r->prompt, (size_t)r->n_prompt, sizeof *r->prompt);
    add_array(&s, p->stop_ids, (size_t)p->n_stop_ids, sizeof *p->stop_ids);
    for (int i = 0; i < p->n_stop_strings; i++) add_array(&s, p->stop_strings[i], strlen(p->stop_strings[i]), 1);
    const struct digest d = digest_of(s.p, s.len);
    struct sample_key k = {.weights = weights};
    memcpy(k.request, d.hex, sizeof k.request);
    return k;
}

/* A call of sample_journal_run(). Samples on record are in `out` at once; the others are asked of inner, and move to
 * their places in `out` one by one as they are finished, so that a killed run loses only unfinished ones. */
struct sample_call {
    struct sample_journal *j;
    struct sample *out;     /* the caller's */
    struct request *req;    /* runs of samples that are not on record */
    struct sample *drawn;   /* [n] of them */
    struct sample_key *key; /* [n] */
    int64_t *place;         /* [n] in out */
    bool *moved;            /* [n] */
    int n_req, n, done;     /* done: of n that have been moved */
    int replayed;           /* samples on record, and their tokens */
    int64_t replayed_tokens;
    engine_progress_fn *progress;
    void *ctx;
};

/* Takes the samples that are on record, and makes requests of the others: a request for each run of consecutive
 * numbers, because inner draws a sample by its number, whichever request asks for it. */
static void divide(struct sample_call *c, const struct request *req, int n_req) {
    int64_t at = 0;
    for (int i = 0; i < n_req; i++) {
        struct sample_key key = key_of(&req[i], *c->j->weights);
        bool open = false; /* true: the sample before this one is the last of c->req */
        for (int k = 0; k < req[i].n_samples; k++, at++) {
            key.number = req[i].first + k;
            if (find(c->j, &key, &c->out[at])) {
                c->replayed++;
                c->replayed_tokens += c->out[at].n;
                open = false;
                continue;
            }
            if (!open) {
                c->req[c->n_req] = req[i];
                c->req[c->n_req].first = req[i].first + k;
                c->req[c->n_req++].n_samples = 0;
            }
            open = true;
            c->req[c->n_req - 1].n_samples++;
            c->key[c->n] = key;
            c->place[c->n++] = at;
        }
    }
}

/* Finished samples go to the caller, and are written down. Inner sets a sample's ids when the sample is finished. */
static void move(struct sample_call *c) {
    for (int i = 0; i < c->n; i++) {
        if (c->moved[i] || !c->drawn[i].ids) continue;
        append(c->j, &c->key[i], &c->drawn[i]);
        c->out[c->place[i]] = c->drawn[i];
        c->drawn[i] = (struct sample){0};
        c->moved[i] = true;
        c->done++;
    }
}

static bool on_progress(void *ctx, int64_t tokens, int done, int total) {
    struct sample_call *c = ctx;
    if (done > c->done) move(c);
    return !c->progress || c->progress(c->ctx, tokens + c->replayed_tokens, c->done + c->replayed, total + c->replayed);
}

/* Ends a call. After ST_OK the caller gets the remaining samples, too; after a failure, when inner has none left, it
 * gets none: those that it had are freed. */
static void finish(struct sample_call *c, enum status st, int64_t total) {
    if (st == ST_OK) move(c);
    for (int i = 0; i < c->n && st == ST_OK; i++)
        if (!c->moved[i]) c->out[c->place[i]] = c->drawn[i]; /* cancelled before its first token */
    for (int64_t i = 0; i < total && st != ST_OK; i++) {
        sample_free(&c->out[i]);
        c->out[i] = (struct sample){0};
    }
    free(c->req);
    free(c->drawn);
    free(c->key);
    free(c->place);
    free(c->moved);
}

enum status sample_journal_run(void *ctx, const struct request *req, int n_req, struct sample *out,
                               engine_progress_fn *progress, void *progress_ctx, struct err *e) {
    struct sample_journal *j = ctx;
    size_t total = 0;
    bool plain = true;
    for (int i = 0; i < n_req; i++) {
        total += (size_t)req[i].n_samples;
        plain &= is_plain(&req[i]);
    }
    if (!plain) return j->inner.fn(j->inner.ctx, req, n_req, out, progress, progress_ctx, e);
    memset(out, 0, total * sizeof *out);
    struct sample_call c = {.j = j,
                            .out = out,
                            .req = xcalloc(total + 1, sizeof *c.req),
                            .drawn = xcalloc(total + 1, sizeof *c.drawn),
                            .key = xcalloc(total + 1, sizeof *c.key),
                            .place = xcalloc(total + 1, sizeof *c.place),
                            .moved = xcalloc(total + 1, sizeof *c.moved),
                            .progress = progress,
                            .ctx = progress_ctx};
    divide(&c, req, n_req);
    bool go_on = true;
    if (c.replayed > 0 && progress) go_on = progress(progress_ctx, c.replayed_tokens, c.replayed, (int)total);
    enum status st = ST_OK;
    if (c.n > 0 && go_on) st = j->inner.fn(j->inner.ctx, c.req, c.n_req, c.drawn, on_progress, &c, e);
    for (int i = 0; i < c.n && !go_on; i++) c.drawn[i].stop = STOP_CANCELLED;
    finish(&c, st, (int64_t)total);
    return st;
}
