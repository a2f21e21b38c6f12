#include "rag/flat.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/fs.h"

enum { PAD = 32, QUERY_MAX = 2047 /* 12 bits: sums of 8192 products with 7 bits stay below 2^31 */ };

/* Of one row: v = scale * q + rounding, with the L2 norms of both parts. */
struct row {
    float scale, norm, error;
};
struct flat {
    struct fs_map map;
    const unsigned char *vectors; /* in the map, not aligned */
    int64_t n;
    int dim, stride; /* bytes of a row of q: dim, padded with zeros */
    int8_t *q;       /* [n, stride] */
    struct row *row; /* [n] */
    float *approx;   /* [n], of the search at hand */
    struct pool *pool;
    int64_t rescored;
};

/* ---- the 8-bit copy -----------------------------------------------------------------------------------------------*/

static void quantise(void *ctx, int64_t begin, int64_t end, int thread) {
    struct flat *f = ctx;
    CLEANUP_FREE float *v = xmalloc((size_t)f->dim * sizeof *v);
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        memcpy(v, f->vectors + (size_t)i * (size_t)f->dim * sizeof *v, (size_t)f->dim * sizeof *v);
        int8_t *q = f->q + (size_t)i * (size_t)f->stride;
        float most = 0;
        for (int k = 0; k < f->dim; k++) most = fmaxf(most, fabsf(v[k]));
        const float scale = most / 127;
        double norm = 0, error = 0;
        for (int k = 0; k < f->dim; k++) {
            const float x = scale > 0 ? rintf(v[k] / scale) : 0;
            q[k] = (int8_t)x;
            const double back = (double)scale * (double)x, rest = (double)v[k] - back;
            norm += back * back;
            error += rest * rest;
        }
        f->row[i] = (struct row){scale, (float)sqrt(norm), (float)sqrt(error)};
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static int32_t dot_avx2(const int8_t *q, const int16_t *u, int n) {
    __m256i sum0 = _mm256_setzero_si256(), sum1 = sum0;
    for (int k = 0; k < n; k += 32) {
        const __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(q + k));
        const __m256i lo = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(a));
        const __m256i hi = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(a, 1));
        sum0 =
            _mm256_add_epi32(sum0, _mm256_madd_epi16(lo, _mm256_loadu_si256((const __m256i *)(const void *)(u + k))));
        sum1 = _mm256_add_epi32(sum1,
                                _mm256_madd_epi16(hi, _mm256_loadu_si256((const __m256i *)(const void *)(u + k + 16))));
    }
    int32_t part[8], total = 0;
    _mm256_storeu_si256((__m256i *)(void *)part, _mm256_add_epi32(sum0, sum1));
    for (int k = 0; k < 8; k++) total += part[k];
    return total;
}
#endif

static int32_t dot_plain(const int8_t *q, const int16_t *u, int n) {
    int32_t total = 0;
    for (int k = 0; k < n; k++) total += q[k] * u[k];
    return total;
}

struct search {
    struct flat *f;
    const int16_t *u;
    float scale; /* of the query */
    const uint8_t *allowed;
};

static void approximate(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct search *s = ctx;
    const struct flat *f = s->f;
    int32_t (*dot)(const int8_t *, const int16_t *, int) = dot_plain;
    (void)thread;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) dot = dot_avx2;
#endif
    for (int64_t i = begin; i < end; i++)
        f->approx[i] =
            s->allowed && !s->allowed[i]
                ? -INFINITY
                : s->scale * f->row[i].scale * (float)dot(f->q + (size_t)i * (size_t)f->stride, s->u, f->stride);
}

/* ---- search -------------------------------------------------------------------------------------------------------*/

static double exact(const struct flat *f, int64_t i, const float *query) {
    const unsigned char *p = f->vectors + (size_t)i * (size_t)f->dim * sizeof(float);
    double sum = 0;
    for (int k = 0; k < f->dim; k++) {
        float v;
        memcpy(&v, p + (size_t)k * sizeof v, sizeof v);
        sum += (double)v * (double)query[k];
    }
    return sum;
}

/* The k largest values seen, as a heap whose first is the smallest of them. */
struct best {
    struct flat_hit *hit;
    int n, k;
};

static bool is_worse(struct flat_hit x, struct flat_hit y) {
    return x.score < y.score || (x.score == y.score && x.id > y.id);
}

static void offer(struct best *b, struct flat_hit h) {
    int i;
    if (b->n < b->k) {
        for (i = b->n++; i > 0 && is_worse(h, b->hit[(i - 1) / 2]); i = (i - 1) / 2) b->hit[i] = b->hit[(i - 1) / 2];
    } else {
        if (!is_worse(b->hit[0], h)) return;
        for (i = 0;;) {
            int child = 2 * i + 1;
            if (child >= b->n) break;
            if (child + 1 < b->n && is_worse(b->hit[child + 1], b->hit[child])) child++;
            if (!is_worse(b->hit[child], h)) break;
            b->hit[i] = b->hit[child];
            i = child;
        }
    }
    b->hit[i] = h;
}

static int best_first(const void *a, const void *b) {
    const struct flat_hit *x = a, *y = b;
    return is_worse(*x, *y) ? 1 : is_worse(*y, *x) ? -1 : 0;
}

/* 12-bit query: scale, the norm of what rounding takes away, and the numbers themselves in u. */
static float round_query(const struct flat *f, const float *query, int16_t *u, double *norm, double *error) {
    float most = 0;
    for (int k = 0; k < f->dim; k++) most = fmaxf(most, fabsf(query[k]));
    const float scale = most / QUERY_MAX;
    *norm = *error = 0;
    for (int k = 0; k < f->dim; k++) {
        u[k] = (int16_t)(scale > 0 ? rintf(query[k] / scale) : 0);
        const double rest = (double)query[k] - (double)scale * u[k];
        *norm += (double)query[k] * (double)query[k];
        *error += rest * rest;
    }
    *norm = sqrt(*norm);
    *error = sqrt(*error);
    return scale;
}

/* How far a product may lie from its approximation: |v u - v' u'| <= |v - v'| |u| + |v'| |u - u'|, and what float32
 * adds.
 */
static double doubt(const struct row *r, double norm, double error) {
    return (double)r->error * norm + (double)r->norm * (error + 1e-6 * norm);
}

int flat_search(struct flat *f, const float *query, int k, const uint8_t *allowed, struct flat_hit *hits) {
    ASSERT(k > 0);
    CLEANUP_FREE int16_t *u = xcalloc((size_t)f->stride, sizeof *u);
    double norm, error;
    struct search s = {.f = f, .u = u, .allowed = allowed};
    s.scale = round_query(f, query, u, &norm, &error);
    pool_for(f->pool, f->n, 64, approximate, &s);

    /* The k-th best lower bound; no row whose upper bound is below it can be among the k best. */
    struct best b = {.hit = hits, .k = k};
    for (int64_t i = 0; i < f->n; i++) {
        if (f->approx[i] == -INFINITY) continue;
        const float low = (float)((double)f->approx[i] - doubt(&f->row[i], norm, error));
        if (b.n < k || low > b.hit[0].score) offer(&b, (struct flat_hit){i, low});
    }
    double bar = b.n == k ? (double)b.hit[0].score : -INFINITY;
    bar -= 1e-6 * fabs(bar);
    b.n = 0;
    f->rescored = 0;
    for (int64_t i = 0; i < f->n; i++) {
        if (f->approx[i] == -INFINITY || (double)f->approx[i] + doubt(&f->row[i], norm, error) < bar) continue;
        offer(&b, (struct flat_hit){i, (float)exact(f, i, query)});
        f->rescored++;
    }
    qsort(hits, (size_t)b.n, sizeof *hits, best_first);
    return b.n;
}

int64_t flat_rescored(const struct flat *f) { return f->rescored; }
int64_t flat_count(const struct flat *f) { return f->n; }
int flat_dim(const struct flat *f) { return f->dim; }

/* ---- file ---------------------------------------------------------------------------------------------------------*/

static void put(unsigned char **at, const void *p, size_t n) {
    memcpy(*at, p, n);
    *at += n;
}
static void get(const unsigned char **at, void *p, size_t n) {
    memcpy(p, *at, n);
    *at += n;
}

static enum status read_header(const char *path, struct flat *f, struct err *e) {
    const unsigned char *p = f->map.data;
    int32_t dim, metric;
    int64_t n;
    uint64_t floats;
    if (f->map.len < FLAT_HEADER_BYTES) return FAIL(e, ST_PARSE, "%s: %zu bytes are no FAISS index", path, f->map.len);
    if (memcmp(p, "IxFI", 4) != 0)
        return FAIL(e, memcmp(p, "Ix", 2) == 0 ? ST_UNSUPPORTED : ST_PARSE,
                    "%s: expected a flat inner-product index of FAISS (IxFI), got \"%.4s\"", path, (const char *)p);
    p += 4;
    get(&p, &dim, 4);
    get(&p, &n, 8);
    p += 17;
    get(&p, &metric, 4);
    get(&p, &floats, 8);
    if (metric != 0) return FAIL(e, ST_UNSUPPORTED, "%s: metric %d, expected 0 (inner product)", path, metric);
    if (dim < 1 || dim > FLAT_DIM_MAX || n < 0 || n > INT64_MAX / 4 / FLAT_DIM_MAX ||
        floats != (uint64_t)n * (uint64_t)dim)
        return FAIL(e, ST_PARSE, "%s: %lld vectors of %d numbers, %llu in all: expected 1 to %d numbers each", path,
                    (long long)n, dim, (unsigned long long)floats, FLAT_DIM_MAX);
    if (f->map.len != FLAT_HEADER_BYTES + floats * sizeof(float))
        return FAIL(e, ST_PARSE, "%s: %zu bytes, expected %llu for %lld vectors of %d numbers: it was cut", path,
                    f->map.len, (unsigned long long)(FLAT_HEADER_BYTES + floats * sizeof(float)), (long long)n, dim);
    f->n = n;
    f->dim = dim;
    f->vectors = p;
    return ST_OK;
}

enum status flat_open(const char *path, struct pool *pool, struct flat **out, struct err *e) {
    struct flat *f = xcalloc(1, sizeof *f);
    f->pool = pool;
    enum status st = fs_map_open(path, &f->map, e);
    if (st == ST_OK) st = read_header(path, f, e);
    if (st != ST_OK) {
        flat_close(f);
        return st;
    }
    f->stride = (f->dim + PAD - 1) / PAD * PAD;
    f->q = xaligned((size_t)f->n * (size_t)f->stride + 1);
    f->row = xcalloc((size_t)f->n + 1, sizeof *f->row);
    f->approx = xcalloc((size_t)f->n + 1, sizeof *f->approx);
    pool_for(pool, f->n, 64, quantise, f);
    *out = f;
    return ST_OK;
}

void flat_close(struct flat *f) {
    if (!f) return;
    fs_map_close(&f->map);
    free(f->q);
    free(f->row);
    free(f->approx);
    free(f);
}

enum status flat_write(const char *path, const char *rows_path, int64_t n, int dim, struct err *e) {
    struct fs_map rows;
    unsigned char header[FLAT_HEADER_BYTES], *at = header;
    const int32_t d = dim, metric = 0;
    const int64_t filler = 1 << 20;
    const uint64_t floats = (uint64_t)n * (uint64_t)dim;
    put(&at, "IxFI", 4);
    put(&at, &d, 4);
    put(&at, &n, 8);
    put(&at, &filler, 8);
    put(&at, &filler, 8);
    put(&at, "\1", 1);
    put(&at, &metric, 4);
    put(&at, &floats, 8);
    TRY(fs_map_open(rows_path, &rows, e));
    enum status st = ST_OK;
    char tmp[4200];
    if (rows.len != floats * sizeof(float)) {
        st = FAIL(e, ST_INVALID, "%s: %zu bytes, expected %llu", rows_path, rows.len,
                  (unsigned long long)(floats * sizeof(float)));
        goto out;
    }
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    const int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    const bool written =
        fd >= 0 && fs_write_all(fd, header, sizeof header) && fs_write_all(fd, rows.data, rows.len) && fsync(fd) == 0;
    if (!written) st = FAIL(e, ST_IO, "%s: %s", tmp, strerror(errno));
    if (fd >= 0) close(fd);
    if (st == ST_OK && rename(tmp, path) != 0) st = FAIL(e, ST_IO, "%s: %s", path, strerror(errno));
    if (st != ST_OK) unlink(tmp);
out:
    fs_map_close(&rows);
    return st;
}
