/* The index: its files, how it is built, and questions to it. */
#include "rag/rag.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/hash.h"
#include "base/log.h"
#include "io/json.h"
#include "io/jsonl.h"
#include "rag/flat.h"
#include "rag/lexical.h"

enum { FORMAT_VERSION = 1, MAX_METADATA_BYTES = 1 << 20 };

static const char index_file[] = "index.faiss", records_file[] = "records.jsonl", metadata_file[] = "metadata.json",
                  lexical_file[] = "lexical.bin";

/* ---- records ------------------------------------------------------------------------------------------------------*/

/* The backend comes first, so that it can be read without parsing the line. */
static void record_to_json(const struct rag_record *r, struct str *s) {
    js_begin(s, NULL, '{');
    js_put_str(s, "backend", r->backend);
    js_put_str(s, "source", r->source);
    js_put_str(s, "name", r->name);
    js_put_f64(s, "speedup", r->speedup);
    js_put_bool(s, "correct", r->correct);
    js_put_str(s, "pytorch_code", r->pytorch_code);
    js_put_str(s, "kernel_code", r->kernel_code);
    js_end(s, '}');
}

/* The lines of a records file, mapped. */
struct records {
    char *path;
    struct fs_map map;
    size_t *begin; /* [n + 1] */
    int64_t n;
};

static enum status records_open(const char *path, struct records *r, struct err *e) {
    *r = (struct records){.path = xstrdup(path)};
    TRY(fs_map_open(path, &r->map, e));
    size_t cap = 0;
    for (size_t at = 0; at < r->map.len;) {
        const unsigned char *nl = memchr(r->map.data + at, '\n', r->map.len - at);
        if (!nl) return FAIL(e, ST_PARSE, "%s: the last line has no end: it was cut", path);
        if ((size_t)r->n + 1 >= cap) r->begin = xrealloc(r->begin, (cap = cap ? 2 * cap : 1024) * sizeof *r->begin);
        r->begin[r->n++] = at;
        at = (size_t)(nl - r->map.data) + 1;
    }
    if (r->n) r->begin[r->n] = r->map.len;
    return ST_OK;
}

static void records_close(struct records *r) {
    fs_map_close(&r->map);
    free(r->begin);
    free(r->path);
    *r = (struct records){0};
}

/* Reads record i. Its strings are copied to the arena. */
static enum status records_get(const struct records *r, int64_t i, struct arena *a, struct rag_record *out,
                               struct err *e) {
    CLEANUP_JSON json_t *row = NULL;
    char where[4200];
    snprintf(where, sizeof where, "%s:%lld", r->path, (long long)i + 1);
    TRY(js_parse((const char *)r->map.data + r->begin[i], r->begin[i + 1] - r->begin[i] - 1, where, &row, e));
    *out = (struct rag_record){.speedup = NAN};
    TRY(js_get_str(row, where, "pytorch_code", &out->pytorch_code, e));
    TRY(js_get_str(row, where, "kernel_code", &out->kernel_code, e));
    TRY(js_get_str(row, where, "backend", &out->backend, e));
    TRY(js_get_str(row, where, "source", &out->source, e));
    TRY(js_get_str(row, where, "name", &out->name, e));
    TRY(js_opt_f64(row, where, "speedup", &out->speedup, e));
    TRY(js_get_bool(row, where, "correct", &out->correct, e));
    const char **const texts[] = {&out->pytorch_code, &out->kernel_code, &out->backend, &out->source, &out->name};
    for (size_t k = 0; k < ARRAY_LEN(texts); k++) *texts[k] = arena_strdup(a, *texts[k]);
    return ST_OK;
}

/* ---- the lexical embedder -----------------------------------------------------------------------------------------*/

static enum status lexical_embed_all(void *ctx, const char *const *codes, int n, bool query, float *out,
                                     struct err *e) {
    (void)query;
    (void)e;
    struct arena a = ARENA_INIT;
    for (int i = 0; i < n; i++) {
        struct module_text m;
        module_text_read(codes[i], strlen(codes[i]), &a, &m);
        lexical_embed(ctx, &m, out + (size_t)i * LEXICAL_DIM);
        arena_reset(&a);
    }
    arena_free(&a);
    return ST_OK;
}

static struct rag_embedder lexical_embedder(struct lexical *owned) {
    return (struct rag_embedder){LEXICAL_DIM, owned, lexical_embed_all, free};
}

/* ---- building -----------------------------------------------------------------------------------------------------*/

/* Work in progress lies in DIR/building: identity, records.jsonl.tmp while gathering and records.jsonl after it,
 * vectors, lexical.bin. The files move to DIR when all are there, metadata.json last. */
struct rag_builder {
    char *dir, *work;
    struct str pending; /* Lines that are not yet written. */
    int fd;             /* The descriptor of records.jsonl.tmp. -1: everything is gathered. */
    uint64_t *seen;     /* A hash set of the pairs that were written. 0 is free. */
    size_t seen_cap;
    struct rag_build_counts n;
    const char *query_prefix; /* NULL: the one that is known for the model. */
};

void rag_builder_query_prefix(struct rag_builder *b, const char *text) { b->query_prefix = text; }

static enum status fail_io(const char *path, struct err *e) { return FAIL(e, ST_IO, "%s: %s", path, strerror(errno)); }

static enum status start_over(struct rag_builder *b, const char *identity, struct err *e) {
    CLEANUP_FREE char *id = fs_join(b->work, "identity"), *tmp = fs_join(b->work, "records.jsonl.tmp");
    TRY(fs_remove(b->work, e));
    TRY(fs_mkdirs(b->work, e));
    TRY(fs_write_atomic(id, identity, strlen(identity), e));
    b->fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    return b->fd >= 0 ? ST_OK : fail_io(tmp, e);
}

enum status rag_builder_open(const char *dir, const char *identity, struct rag_builder **out, bool *gathered,
                             struct err *e) {
    struct rag_builder *b = xcalloc(1, sizeof *b);
    b->dir = xstrdup(dir);
    b->work = fs_join(dir, "building");
    b->fd = -1;
    CLEANUP_FREE char *id = fs_join(b->work, "identity"), *records = fs_join(b->work, records_file), *text = NULL;
    size_t n;
    struct err ignored;
    const bool same =
        fs_is_file(id) && fs_read(id, 1 << 20, &text, &n, &ignored) == ST_OK && strcmp(text, identity) == 0;
    *gathered = same && fs_is_file(records);
    enum status st = *gathered ? ST_OK : start_over(b, identity, e);
    if (st != ST_OK) {
        rag_builder_close(b);
        return st;
    }
    *out = b;
    return ST_OK;
}

void rag_builder_close(struct rag_builder *b) {
    if (!b) return;
    if (b->fd >= 0) close(b->fd);
    str_free(&b->pending);
    free(b->seen);
    free(b->dir);
    free(b->work);
    free(b);
}

/* Returns whether h was there already. */
static bool remember(struct rag_builder *b, uint64_t h) {
    if ((size_t)b->n.records * 2 >= b->seen_cap) {
        const size_t cap = b->seen_cap ? 2 * b->seen_cap : 4096;
        uint64_t *more = xcalloc(cap, sizeof *more);
        for (size_t i = 0; i < b->seen_cap; i++) {
            if (!b->seen[i]) continue;
            size_t at = b->seen[i] % cap;
            while (more[at]) at = (at + 1) % cap;
            more[at] = b->seen[i];
        }
        free(b->seen);
        b->seen = more;
        b->seen_cap = cap;
    }
    h += h == 0;
    size_t at = h % b->seen_cap;
    for (; b->seen[at]; at = (at + 1) % b->seen_cap)
        if (b->seen[at] == h) return true;
    b->seen[at] = h;
    return false;
}

static enum status write_pending(struct rag_builder *b, struct err *e) {
    if (!fs_write_all(b->fd, str_c(&b->pending), b->pending.len)) return fail_io(b->work, e);
    str_clear(&b->pending);
    return ST_OK;
}

enum status rag_builder_add(void *builder, const struct rag_record *r, struct err *e) {
    struct rag_builder *b = builder;
    ASSERT(b->fd >= 0);
    /* If two records have one value, the later one is missing from the index, and that is all. */
    const uint64_t h = hash_bytes(r->kernel_code, strlen(r->kernel_code), hash_str(r->pytorch_code));
    if (remember(b, h)) {
        b->n.duplicates++;
        return ST_OK;
    }
    record_to_json(r, &b->pending);
    str_addc(&b->pending, '\n');
    b->n.records++;
    return b->pending.len < 1 << 20 ? ST_OK : write_pending(b, e);
}

static enum status end_gathering(struct rag_builder *b, struct err *e) {
    if (b->fd < 0) return ST_OK;
    CLEANUP_FREE char *tmp = fs_join(b->work, "records.jsonl.tmp"), *to = fs_join(b->work, records_file);
    TRY(write_pending(b, e));
    if (fsync(b->fd) != 0) return fail_io(tmp, e);
    close(b->fd);
    b->fd = -1;
    return rename(tmp, to) == 0 ? ST_OK : fail_io(to, e);
}

/* Counts the features of all records: the first of the two passes that the lexical embedding takes. */
static enum status count_features(const struct records *r, const volatile bool *cancel, struct lexical *out,
                                  struct err *e) {
    struct arena a = ARENA_INIT;
    enum status st = ST_OK;
    for (int64_t i = 0; i < r->n && st == ST_OK; i++) {
        struct rag_record record;
        struct module_text m;
        if ((st = records_get(r, i, &a, &record, e)) != ST_OK) break;
        module_text_read(record.pytorch_code, strlen(record.pytorch_code), &a, &m);
        lexical_count(out, &m);
        arena_reset(&a);
        if (cancel && *cancel) st = FAIL(e, ST_CANCELLED, "interrupted");
    }
    arena_free(&a);
    return st;
}

/* Appends the vectors of the records that have none yet to the file `vectors`. */
static enum status embed_records(struct rag_builder *b, const struct records *r, struct rag_embedder *em, int batch,
                                 const char *vectors, const volatile bool *cancel, struct err *e) {
    const size_t row_bytes = (size_t)em->dim * sizeof(float);
    struct stat sb;
    CLEANUP_FD int fd = open(vectors, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 || fstat(fd, &sb) != 0) return fail_io(vectors, e);
    /* A killed build may leave half a vector. */
    int64_t done = i64_min(r->n, sb.st_size / (int64_t)row_bytes);
    if (ftruncate(fd, done * (int64_t)row_bytes) != 0 || lseek(fd, 0, SEEK_END) < 0) return fail_io(vectors, e);
    if (done > 0) log_info("%s: going on behind %lld of %lld records", b->dir, (long long)done, (long long)r->n);
    CLEANUP_FREE float *out = xmalloc((size_t)batch * row_bytes);
    CLEANUP_FREE const char **codes = xcalloc((size_t)batch, sizeof *codes);
    struct arena a = ARENA_INIT;
    enum status st = ST_OK;
    while (done < r->n && st == ST_OK) {
        const int n = (int)i64_min(batch, r->n - done);
        for (int i = 0; i < n && st == ST_OK; i++) {
            struct rag_record record;
            st = records_get(r, done + i, &a, &record, e);
            codes[i] = record.pytorch_code;
        }
        if (st == ST_OK) st = em->embed(em->ctx, codes, n, false, out, e);
        for (size_t k = 0; st == ST_OK && k < (size_t)n * (size_t)em->dim; k++)
            if (!isfinite(out[k]))
                st = FAIL(e, ST_FAILED, "record %lld: its embedding is not finite",
                          (long long)(done + (int64_t)k / em->dim));
        if (st == ST_OK && !fs_write_all(fd, out, (size_t)n * row_bytes)) st = fail_io(vectors, e);
        arena_reset(&a);
        if (st != ST_OK) break;
        done += n;
        b->n.embedded += n;
        log_progress("  embedding: %lld of %lld records", (long long)done, (long long)r->n);
        if (cancel && *cancel && done < r->n)
            st = FAIL(e, ST_CANCELLED, "interrupted after %lld of %lld records; the same command goes on from there",
                      (long long)done, (long long)r->n);
    }
    log_progress_end();
    arena_free(&a);
    if (st == ST_OK && fsync(fd) != 0) st = fail_io(vectors, e);
    return st;
}

static enum status move(const struct rag_builder *b, const char *name, struct err *e) {
    CLEANUP_FREE char *from = fs_join(b->work, name), *to = fs_join(b->dir, name);
    return rename(from, to) == 0 ? ST_OK : fail_io(to, e);
}

/* While the files of the new index take the places of the old ones, there is no metadata.json, so nobody opens half an
 * index. */
static enum status put_in_place(const struct rag_builder *b, const char *model_name, int dim, bool lexical,
                                struct err *e) {
    CLEANUP_FREE char *metadata = fs_join(b->dir, metadata_file), *old = fs_join(b->dir, lexical_file);
    CLEANUP_STR struct str s = STR_INIT;
    js_begin(&s, NULL, '{');
    js_put_i64(&s, "version", FORMAT_VERSION);
    js_put_str(&s, "model_name", model_name);
    js_put_i64(&s, "num_examples", b->n.records);
    js_put_i64(&s, "dim", dim);
    if (b->query_prefix) js_put_str(&s, "query_prefix", b->query_prefix);
    js_end(&s, '}');
    str_addc(&s, '\n');
    TRY(fs_remove(metadata, e));
    TRY(fs_remove(old, e));
    TRY(move(b, index_file, e));
    if (lexical) TRY(move(b, lexical_file, e));
    TRY(move(b, records_file, e));
    TRY(fs_write_atomic(metadata, s.p, s.len, e));
    return fs_remove(b->work, e);
}

static enum status build(struct rag_builder *b, const struct records *r, const char *model_name,
                         struct rag_embedder *embedder, int batch, const volatile bool *cancel, struct err *e) {
    CLEANUP_FREE char *vectors = fs_join(b->work, "vectors"), *index = fs_join(b->work, index_file),
                      *counts = fs_join(b->work, lexical_file);
    CLEANUP_FREE struct lexical *lexical = NULL;
    struct rag_embedder mine;
    if (!embedder) {
        lexical = xcalloc(1, sizeof *lexical);
        TRY(count_features(r, cancel, lexical, e));
        TRY(lexical_save(lexical, counts, e));
        mine = lexical_embedder(lexical);
        embedder = &mine;
    }
    TRY(embed_records(b, r, embedder, batch, vectors, cancel, e));
    TRY(flat_write(index, vectors, r->n, embedder->dim, e));
    return put_in_place(b, model_name, embedder->dim, lexical != NULL, e);
}

enum status rag_builder_finish(struct rag_builder *b, const char *model_name, struct rag_embedder *embedder, int batch,
                               const volatile bool *cancel, struct rag_build_counts *out, struct err *e) {
    CLEANUP_FREE char *path = fs_join(b->work, records_file);
    struct records r = {0};
    enum status st = end_gathering(b, e);
    if (st == ST_OK) st = records_open(path, &r, e);
    b->n.records = r.n;
    if (st == ST_OK && r.n == 0) st = FAIL(e, ST_INVALID, "%s: no record to build an index of", b->dir);
    if (st == ST_OK) st = build(b, &r, model_name, embedder, batch, cancel, e);
    records_close(&r);
    *out = b->n;
    return st;
}

/* ---- asking -------------------------------------------------------------------------------------------------------*/

struct rag_index {
    char *dir, *model, *query_prefix; /* The last one may be NULL. */
    struct flat *flat;
    struct records records;
    struct rag_embedder embedder; /* embed is NULL while it is not there yet. */
    uint8_t *allowed;             /* [n], for the backend that was asked for last. */
    char *allowed_for;            /* NULL: it has not been computed. */
};

enum status rag_index_there(const char *dir, struct err *e) {
    CLEANUP_FREE char *path = fs_join(dir, metadata_file);
    if (fs_is_file(path)) return ST_OK;
    return FAIL(e, ST_IO, "%s: no index here (%s is missing); build-rag-index makes one", dir, metadata_file);
}

static enum status read_metadata(struct rag_index *x, int64_t *n, int64_t *dim, struct err *e) {
    CLEANUP_FREE char *path = fs_join(x->dir, metadata_file);
    CLEANUP_JSON json_t *j = NULL;
    const char *model, *prefix = NULL;
    int64_t version;
    TRY(rag_index_there(x->dir, e));
    TRY(js_load(path, MAX_METADATA_BYTES, &j, e));
    if (!json_object_get(j, "version"))
        return FAIL(e, ST_UNSUPPORTED, "%s: an index of another program; build it anew with build-rag-index", path);
    TRY(js_get_i64(j, path, "version", &version, e));
    if (version != FORMAT_VERSION)
        return FAIL(e, ST_UNSUPPORTED, "%s: version %lld, expected %d", path, (long long)version, FORMAT_VERSION);
    TRY(js_get_str(j, path, "model_name", &model, e));
    TRY(js_get_i64(j, path, "num_examples", n, e));
    TRY(js_get_i64(j, path, "dim", dim, e));
    TRY(js_opt_str(j, path, "query_prefix", &prefix, e));
    x->model = xstrdup(model);
    x->query_prefix = prefix ? xstrdup(prefix) : NULL;
    return ST_OK;
}

static enum status open_files(struct rag_index *x, struct pool *pool, struct err *e) {
    CLEANUP_FREE char *index = fs_join(x->dir, index_file), *records = fs_join(x->dir, records_file),
                      *counts = fs_join(x->dir, lexical_file);
    int64_t n, dim;
    TRY(read_metadata(x, &n, &dim, e));
    TRY(flat_open(index, pool, &x->flat, e));
    if (flat_count(x->flat) != n || flat_dim(x->flat) != dim)
        return FAIL(e, ST_INVALID, "%s: %lld vectors of %d numbers, metadata.json says %lld of %lld", index,
                    (long long)flat_count(x->flat), flat_dim(x->flat), (long long)n, (long long)dim);
    TRY(records_open(records, &x->records, e));
    if (x->records.n != n)
        return FAIL(e, ST_INVALID, "%s: %lld records, metadata.json says %lld", records, (long long)x->records.n,
                    (long long)n);
    if (strcmp(x->model, RAG_LEXICAL) != 0) return ST_OK;
    struct lexical *lexical = xcalloc(1, sizeof *lexical);
    const enum status st = lexical_load(counts, lexical, e);
    if (st != ST_OK) {
        free(lexical);
        return st;
    }
    return rag_index_embedder(x, lexical_embedder(lexical), e);
}

enum status rag_index_open(const char *dir, struct pool *pool, struct rag_index **out, struct err *e) {
    struct rag_index *x = xcalloc(1, sizeof *x);
    x->dir = xstrdup(dir);
    const enum status st = open_files(x, pool, e);
    if (st == ST_OK)
        *out = x;
    else
        rag_index_close(x);
    return st;
}

void rag_index_close(struct rag_index *x) {
    if (!x) return;
    if (x->embedder.close) x->embedder.close(x->embedder.ctx);
    flat_close(x->flat);
    records_close(&x->records);
    free(x->allowed);
    free(x->allowed_for);
    free(x->dir);
    free(x->model);
    free(x->query_prefix);
    free(x);
}

int64_t rag_index_count(const struct rag_index *x) { return x->records.n; }
int rag_index_dim(const struct rag_index *x) { return flat_dim(x->flat); }
const char *rag_index_model(const struct rag_index *x) { return x->model; }
const char *rag_index_query_prefix(const struct rag_index *x) { return x->query_prefix; }

enum status rag_index_embedder(struct rag_index *x, struct rag_embedder embedder, struct err *e) {
    x->embedder = embedder;
    if (embedder.dim == flat_dim(x->flat)) return ST_OK;
    return FAIL(e, ST_INVALID,
                "%s: its vectors have %d numbers, those of the embedder %d: it was built with another one", x->dir,
                flat_dim(x->flat), embedder.dim);
}

/* Finds out which rows are of the backend. */
static enum status allow(struct rag_index *x, const char *backend, struct err *e) {
    if (!backend || (x->allowed_for && strcmp(x->allowed_for, backend) == 0)) return ST_OK;
    CLEANUP_STR struct str first = STR_INIT;
    if (!x->allowed) x->allowed = xcalloc((size_t)x->records.n, 1);
    js_begin(&first, NULL, '{');
    js_put_str(&first, "backend", backend);
    for (int64_t i = 0; i < x->records.n; i++) {
        const char *line = (const char *)x->records.map.data + x->records.begin[i];
        const size_t n = x->records.begin[i + 1] - x->records.begin[i];
        if (n < 13 || memcmp(line, "{\"backend\":\"", 12) != 0)
            return FAIL(e, ST_PARSE, "%s:%lld: expected a line that begins with {\"backend\":", x->records.path,
                        (long long)i + 1);
        x->allowed[i] = n > first.len && memcmp(line, first.p, first.len) == 0;
    }
    free(x->allowed_for);
    x->allowed_for = xstrdup(backend);
    return ST_OK;
}

static bool same_name(const char *x, const char *y) { return x && y && *x && strcmp(x, y) == 0; }

/* Takes from the hits, the best first, what may stand in a prompt together. */
static enum status choose(struct rag_index *x, const struct rag_query *q, const struct flat_hit *hits, int n_hits,
                          struct arena *a, struct rag_example *out, int *n, struct err *e) {
    struct module_text problem, *taken = arena_array(a, struct module_text, q->k);
    module_text_read(q->code, strlen(q->code), a, &problem);
    *n = 0;
    for (int i = 0; i < n_hits && *n < q->k; i++) {
        struct rag_example *ex = &out[*n];
        TRY(records_get(&x->records, hits[i].id, a, &ex->r, e));
        module_text_read(ex->r.pytorch_code, strlen(ex->r.pytorch_code), a, &taken[*n]);
        bool copy = !q->keep_copies && (same_name(q->name, ex->r.name) || module_text_is_copy(&problem, &taken[*n]));
        for (int k = 0; k < *n && !copy; k++) copy = module_text_is_copy(&taken[k], &taken[*n]);
        if (copy) continue;
        ex->id = hits[i].id;
        ex->score = hits[i].score;
        ++*n;
    }
    return ST_OK;
}

enum status rag_retrieve(struct rag_index *x, const struct rag_query *q, struct arena *a, struct rag_example *out,
                         int *n, struct err *e) {
    *n = 0;
    if (q->k < 1) return ST_OK;
    if (!x->embedder.embed) return FAIL(e, ST_INVALID, "%s: was built with %s, which is not open", x->dir, x->model);
    TRY(allow(x, q->backend, e));
    CLEANUP_FREE float *v = xmalloc((size_t)flat_dim(x->flat) * sizeof *v);
    TRY(x->embedder.embed(x->embedder.ctx, &q->code, 1, true, v, e));
    /* Copies stand close together, so more hits are asked for until k are left or there are no more. */
    for (int64_t want = 8 + 4 * (int64_t)q->k;; want *= 8) {
        const int most = (int)i64_min(want, x->records.n);
        CLEANUP_FREE struct flat_hit *hits = xmalloc((size_t)most * sizeof *hits);
        const int found = flat_search(x->flat, v, most, q->backend ? x->allowed : NULL, hits);
        TRY(choose(x, q, hits, found, a, out, n, e));
        if (*n == q->k || found < most || most == x->records.n) return ST_OK;
    }
}
