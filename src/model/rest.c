#include "model/rest.h"

#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/hash.h"
#include "base/log.h"
#include "io/safetensors.h"
#include "tensor/backend.h"

struct resting {
    char *host; /* all arrays end to end, or NULL */
    char *path; /* of the file, or NULL */
    int64_t bytes;
    uint64_t sum; /* of all arrays in their order: a file with another one is not the one that was written */
    int n;
    struct st_entry *entry; /* [n + 1]; the last one is the checksum. NULL where they lie in a file */
    struct arena names;     /* of the entries */
};

static const char checksum_name[] = "checksum", format_name[] = "kernelrl_rest", format_version[] = "1";

static size_t bytes_of(const struct st_entry *t) {
    size_t n = sizeof(float);
    for (int d = 0; d < t->nd; d++) n *= (size_t)t->dim[d];
    return n;
}

static struct resting *resting_new(const struct param *p, int n) {
    struct resting *r = xcalloc(1, sizeof *r);
    r->n = n;
    r->entry = xcalloc((size_t)n + 1, sizeof *r->entry);
    for (int i = 0; i < n; i++) {
        struct st_entry *t = &r->entry[i];
        *t = (struct st_entry){.name = arena_strdup(&r->names, p[i].name),
                               .dtype = ST_DTYPE_F32,
                               .from = ST_DTYPE_F32,
                               .nd = p[i].nd,
                               .dim = {p[i].dim[0], p[i].dim[1]}};
        ASSERT((int64_t)bytes_of(t) == p[i].n * (int64_t)sizeof(float));
    }
    r->bytes = rest_bytes(p, n);
    r->entry[n] = (struct st_entry){
        .name = checksum_name, .dtype = ST_DTYPE_U8, .from = ST_DTYPE_U8, .nd = 1, .dim = {sizeof r->sum}};
    return r;
}

static void forget_entries(struct resting *r) {
    free(r->entry);
    r->entry = NULL;
    arena_free(&r->names);
}

void rest_free(struct resting *r) {
    struct err e;
    if (!r) return;
    if (r->path && fs_remove(r->path, &e) != ST_OK) log_warn("%s", e.msg);
    free(r->host);
    free(r->path);
    forget_entries(r);
    free(r);
}

const char *rest_path(const struct resting *r) { return r->path; }

int64_t rest_bytes(const struct param *p, int n) {
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += p[i].n * (int64_t)sizeof(float);
    return sum;
}

/* ---- to a file ----------------------------------------------------------------------------------------------------*/

/* Gives st_write the arrays, out of host memory or the device's, and behind them their checksum. */
struct rest_fetch {
    struct resting *r;
    struct backend *be;
    const struct param *p;
    float *room; /* of the largest array; with a device */
    size_t at;   /* bytes of host memory that have been given */
};

static enum status fetch(void *ctx, size_t i, const void **data, struct err *e) {
    struct rest_fetch *x = ctx;
    struct resting *r = x->r;
    if (i == (size_t)r->n) {
        *data = &r->sum;
        return ST_OK;
    }
    const size_t bytes = bytes_of(&r->entry[i]);
    *data = x->be ? (char *)x->room : r->host + x->at;
    if (x->be) x->be->mem_get(x->be, x->room, x->p[i].w, bytes);
    if (x->be) TRY(x->be->sync(x->be, e)); /* a file must not hold what a failed transfer left */
    x->at += bytes;
    r->sum = hash_bytes(*data, bytes, r->sum);
    return ST_OK;
}

static enum status write_file(struct rest_fetch *x, const char *path, struct err *e) {
    struct resting *r = x->r;
    const char *metadata[] = {format_name, format_version, NULL};
    if (fs_is_file(path))
        return FAIL(e, ST_INVALID, "%s: cannot put anything to rest there: it is a file already", path);
    r->sum = 0;
    TRY(st_write_fetched(path, r->entry, (size_t)r->n + 1, metadata, fetch, x, e));
    r->path = xstrdup(path);
    forget_entries(r);
    return ST_OK;
}

enum status rest_to_file(struct resting *r, const char *path, struct err *e) {
    ASSERT(r->host && !r->path);
    TRY(write_file(&(struct rest_fetch){.r = r}, path, e));
    free(r->host);
    r->host = NULL;
    return ST_OK;
}

static enum status device_to_file(struct backend *be, struct resting *r, const struct param *p, const char *path,
                                  struct err *e) {
    int64_t most = 1;
    for (int i = 0; i < r->n; i++) most = i64_max(most, p[i].n);
    CLEANUP_FREE float *room = xmalloc((size_t)most * sizeof *room);
    return write_file(&(struct rest_fetch){.r = r, .be = be, .p = p, .room = room}, path, e);
}

/* ---- to host memory -----------------------------------------------------------------------------------------------*/

static enum status device_to_host(struct backend *be, struct resting *r, const struct param *p, struct err *e) {
    r->host = malloc((size_t)r->bytes + 1);
    if (!r->host)
        return FAIL(e, ST_MEMORY, "no %.2f GB of host memory are left for what is to rest there",
                    (double)r->bytes * 1e-9);
    size_t at = 0;
    for (int i = 0; i < r->n; at += bytes_of(&r->entry[i++]))
        be->mem_get(be, r->host + at, p[i].w, bytes_of(&r->entry[i]));
    return be->sync(be, e);
}

enum status rest_store(struct backend *be, const struct param *p, int n, const char *path, struct resting **out,
                       struct err *e) {
    struct resting *r = resting_new(p, n);
    const enum status st = path ? device_to_file(be, r, p, path, e) : device_to_host(be, r, p, e);
    if (st == ST_OK)
        *out = r;
    else
        rest_free(r);
    return st;
}

/* ---- back ---------------------------------------------------------------------------------------------------------*/

static enum status file_to_device(struct backend *be, const struct resting *r, const struct st_file *f,
                                  const struct param *p, struct err *e) {
    const int64_t sum_bytes = sizeof r->sum;
    const struct st_tensor *t;
    uint64_t sum = 0, written;
    const char *version = st_metadata(f, format_name);
    if (!version || strcmp(version, format_version) != 0)
        return FAIL(e, ST_INVALID, "%s: %s is \"%s\", expected \"%s\"", r->path, format_name, version ? version : "",
                    format_version);
    for (int i = 0; i < r->n; i++) {
        TRY(st_get(f, p[i].name, p[i].nd, p[i].dim, &t, e));
        if (t->dtype != ST_DTYPE_F32)
            return FAIL(e, ST_INVALID, "%s: tensor \"%s\" is %s, expected F32", r->path, t->name,
                        st_dtype_name(t->dtype));
        be->mem_put(be, p[i].w, t->data, t->bytes);
        sum = hash_bytes(t->data, t->bytes, sum);
    }
    TRY(st_get(f, checksum_name, 1, &sum_bytes, &t, e));
    memcpy(&written, t->data, sizeof written);
    if (sum != written || sum != r->sum)
        return FAIL(e, ST_INVALID,
                    "%s: the checksum is not that of what was written: the file is damaged, or another one", r->path);
    return be->sync(be, e);
}

enum status rest_load(struct backend *be, const struct resting *r, const struct param *p, int n, struct err *e) {
    ASSERT(n == r->n);
    if (r->path) {
        struct st_file f;
        TRY(st_open(r->path, &f, e));
        const enum status st = file_to_device(be, r, &f, p, e);
        st_close(&f);
        return st;
    }
    size_t at = 0;
    for (int i = 0; i < n; at += bytes_of(&r->entry[i++]))
        be->mem_put(be, p[i].w, r->host + at, bytes_of(&r->entry[i]));
    return be->sync(be, e);
}
