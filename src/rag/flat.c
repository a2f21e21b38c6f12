#include "rag/flat.h"

#include "base/clock.h"
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

/* Codes of 8 bits are kept in planes: first their upper 4 bits, then 1, 1 and 2 bits. Rows of codes are padded to
 * BLOCK: 64 bytes of 1 bit each. */
enum { PLANES = 4, AHEAD = 8, BLOCK = 512 };
static const int plane_bits[PLANES] = {4, 1, 1, 2};
static const int plane_weight[PLANES] = {16, 8, 4, 1};
/* What is added to the upper bits of a code to make the number that they stand for: the middle of the codes that begin
 * with these bits. */
static const double plane_middle[PLANES] = {7.5 - 128, 3.5 - 128, 1.5 - 128, -128};

/* The sum of the products of the numbers in `bytes` bytes of a plane with u, where |u| <= 127. */
typedef int32_t dot_fn(const uint8_t *plane, const int8_t *u, size_t bytes);

/* What is known about a row v. The code c of a number stands for scale * (c - 128). */
struct flat_row {
    float scale, norm; /* norm: the L2 norm of v. */
    /* [i]: the L2 norm of the difference between v and what planes 0..i say, rounded up. */
    float error[PLANES];
};
struct flat {
    struct fs_map map;
    const unsigned char *vectors; /* In the map, not aligned. */
    int64_t n;
    int dim, padded;
    uint8_t *plane[PLANES]; /* [n, padded * bits / 8] */
    struct flat_row *row;   /* [n] */
    dot_fn *const *dot;     /* [bits] */
    /* These belong to the search at hand. */
    double *estimate; /* [n] The product, from the planes that were read. */
    /* [n] The product is not greater than this. For a row that was read in full it is the score. */
    float *most;
    bool *known;     /* [n] true: the row was read in full. */
    int64_t *row_of; /* [n] The rows that may be among the best. */
    struct pool *pool;
    int64_t rescored;
};

/* ---- the planes ---------------------------------------------------------------------------------------------------*/

static size_t plane_bytes(const struct flat *f, int p) { return (size_t)f->padded * (size_t)plane_bits[p] / 8; }

static float round_up(double x) { return nextafterf((float)x, INFINITY); }

/* Returns the nearest whole number from -127 to 127; -127 for what is no number. */
static int nearest(float x) { return (int)lrintf(x > 127 ? 127 : x > -127 ? x : -127); }

/* Returns the largest magnitude. */
static float most_of(const float *v, int n) {
    float most = 0;
    for (int k = 0; k < n; k++) most = fabsf(v[k]) > most ? fabsf(v[k]) : most;
    return most;
}

/* Byte j of a block of 64 holds the bits of numbers j, 64 + j, ..., the lowest first. So a shift and a mask of 64 bytes
 * give 64 neighbours. */
static void pack(const uint8_t *code, int n, int shift, int bits, uint8_t *out) {
    const uint64_t mask = UINT64_C(0x0101010101010101) * ((1u << bits) - 1);
    for (int at = 0; at < n; at += 512 / bits, out += 64)
        for (int j = 0; j < 64; j += 8) { /* Eight bytes at once: the mask keeps them apart. */
            uint64_t bytes = 0;
            for (int k = 0; k < 8 / bits; k++) {
                uint64_t c;
                memcpy(&c, code + at + 64 * k + j, sizeof c);
                bytes |= (c >> shift & mask) << (bits * k);
            }
            memcpy(out + j, &bytes, sizeof bytes);
        }
}

static void make_planes(void *ctx, int64_t begin, int64_t end, int thread) {
    struct flat *f = ctx;
    CLEANUP_FREE float *v = xmalloc((size_t)f->dim * sizeof *v);
    CLEANUP_FREE uint8_t *code = xcalloc((size_t)f->padded, 1);
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        memcpy(v, f->vectors + (size_t)i * (size_t)f->dim * sizeof *v, (size_t)f->dim * sizeof *v);
        const float scale = most_of(v, f->dim) / 127;
        double norm = 0, error[PLANES] = {0};
        for (int k = 0; k < f->dim; k++) {
            const int c = 128 + (scale > 0 ? nearest(v[k] / scale) : 0);
            code[k] = (uint8_t)c;
            norm += (double)v[k] * (double)v[k];
            for (int p = 0; p < PLANES; p++) {
                const double rest = (double)v[k] - (double)scale * ((c & -plane_weight[p]) + plane_middle[p]);
                error[p] += rest * rest;
            }
        }
        f->row[i] = (struct flat_row){.scale = scale, .norm = round_up(sqrt(norm))};
        for (int p = 0, shift = 8; p < PLANES; p++) {
            shift -= plane_bits[p];
            f->row[i].error[p] = round_up(sqrt(error[p]));
            pack(code, f->padded, shift, plane_bits[p], f->plane[p] + (size_t)i * plane_bytes(f, p));
        }
    }
}

#define INLINE static inline __attribute__((always_inline))
#define DOT(isa, attributes)                                                            \
    attributes static int32_t dot1_##isa(const uint8_t *c, const int8_t *u, size_t n) { \
        return dot_##isa(c, u, n, 1);                                                   \
    }                                                                                   \
    attributes static int32_t dot2_##isa(const uint8_t *c, const int8_t *u, size_t n) { \
        return dot_##isa(c, u, n, 2);                                                   \
    }                                                                                   \
    attributes static int32_t dot4_##isa(const uint8_t *c, const int8_t *u, size_t n) { \
        return dot_##isa(c, u, n, 4);                                                   \
    }                                                                                   \
    static dot_fn *const isa[] = {NULL, dot1_##isa, dot2_##isa, NULL, dot4_##isa}

INLINE int32_t dot_plain(const uint8_t *plane, const int8_t *u, size_t bytes, int bits) {
    int32_t total = 0;
    for (size_t at = 0; at < bytes; at += 64)
        for (int k = 0; k < 8; k += bits, u += 64)
            for (int j = 0; j < 64; j++) total += (plane[at + (size_t)j] >> k & ((1 << bits) - 1)) * u[j];
    return total;
}
DOT(plain, );

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2")))
INLINE AVX2 int32_t dot_avx2(const uint8_t *plane, const int8_t *u, size_t bytes, int bits) {
    const __m256i mask = _mm256_set1_epi8((char)((1 << bits) - 1)), ones = _mm256_set1_epi16(1);
    __m256i sum = _mm256_setzero_si256();
    for (size_t at = 0; at < bytes; at += 64, u += 512 / bits)
        for (int half = 0; half < 64; half += 32) {
            const __m256i c = _mm256_loadu_si256((const void *)(plane + at + half));
            /* At most 2 * 2 * 15 * 127 each, so no sum saturates. */
            __m256i pairs = _mm256_setzero_si256();
            for (int k = 0; k < 8; k += bits)
                pairs = _mm256_add_epi16(
                    pairs, _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(c, k), mask),
                                                _mm256_loadu_si256((const void *)(u + 64 / bits * k + half))));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
        }
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
DOT(avx2, AVX2);

#define VNNI __attribute__((target("avx512bw,avx512vnni")))
INLINE VNNI int32_t dot_vnni(const uint8_t *plane, const int8_t *u, size_t bytes, int bits) {
    const __m512i mask = _mm512_set1_epi8((char)((1 << bits) - 1));
    __m512i sum = _mm512_setzero_si512();
    for (size_t at = 0; at < bytes; at += 64) {
        const __m512i c = _mm512_loadu_si512(plane + at);
        for (int k = 0; k < 8; k += bits, u += 64)
            sum = _mm512_dpbusd_epi32(sum, _mm512_and_si512(_mm512_srli_epi16(c, k), mask), _mm512_loadu_si512(u));
    }
    return _mm512_reduce_add_epi32(sum);
}
DOT(vnni, VNNI);
#endif

/* Returns the best functions that this machine has, or those that KERNELRL_CPU allows. */
static dot_fn *const *dot_functions(void) {
    const char *forced = getenv("KERNELRL_CPU");
    if (forced && strcmp(forced, "reference") == 0) return plain;
#if defined(__x86_64__)
    const bool wide = !forced || strcmp(forced, "avx2") != 0;
    if (wide && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni")) return vnni;
    if (__builtin_cpu_supports("avx2")) return avx2;
#endif
    return plain;
}

/* ---- search -------------------------------------------------------------------------------------------------------*/

struct search {
    struct flat *f;
    const float *query;
    int8_t *u; /* [padded] The query without its rounding, in units of scale. */
    /* norm: the L2 norm of scale * u. error: that of the rounding. */
    double scale, norm, error;
    int64_t sum;        /* The sum of u. */
    int plane;          /* The plane to read. */
    const int64_t *row; /* The rows to read. */
};

static void round_query(struct search *s) {
    const int dim = s->f->dim;
    const float scale = most_of(s->query, dim) / 127;
    for (int k = 0; k < dim; k++) {
        s->u[k] = (int8_t)(scale > 0 ? nearest(s->query[k] / scale) : 0);
        const double back = (double)scale * s->u[k], rest = (double)s->query[k] - back;
        s->sum += s->u[k];
        s->norm += back * back;
        s->error += rest * rest;
    }
    s->scale = (double)scale;
    s->norm = sqrt(s->norm);
    s->error = sqrt(s->error);
}

/* Reads a plane. The product is at most the estimate and v u - v' u' = (v - v') u' + v (u - u'), each of which is at
 * most the product of the norms. What arithmetic adds, and the roundings to float32 (of the scores, too), come on
 * top. */
static void read_plane(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct search *s = ctx;
    const struct flat *f = s->f;
    const int p = s->plane;
    const size_t bytes = plane_bytes(f, p);
    dot_fn *dot = f->dot[plane_bits[p]];
    const double shift = (plane_middle[p] - (p > 0 ? plane_middle[p - 1] : 0)) * (double)s->sum;
    const double doubt = s->error + 1e-6 * (s->norm + s->error), tiny = 4e-45;
    (void)thread;
    for (int64_t j = begin; j < end; j++) {
        const int64_t i = s->row[j];
        const struct flat_row *r = &f->row[i];
        if (f->known[i]) continue;
        if (j + AHEAD < end) /* The processor does not foresee rows with gaps between them. */
            for (size_t at = 0; at < bytes; at += 64)
                __builtin_prefetch(f->plane[p] + (size_t)s->row[j + AHEAD] * bytes + at);
        const int32_t sum = dot(f->plane[p] + (size_t)i * bytes, s->u, bytes);
        f->estimate[i] += s->scale * (double)r->scale * ((double)plane_weight[p] * sum + shift);
        f->most[i] = (float)(f->estimate[i] + (double)r->error[p] * s->norm + (double)r->norm * doubt + tiny);
    }
}

/* Reads four rows at once, because their sums do not wait for each other. */
static void read_in_full(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct search *s = ctx;
    const struct flat *f = s->f;
    const size_t bytes = (size_t)f->dim * sizeof(float);
    (void)thread;
    for (int64_t j = begin; j < end; j += 4) {
        const unsigned char *p[4];
        double sum[4] = {0};
        for (int r = 0; r < 4; r++) p[r] = f->vectors + (size_t)s->row[i64_min(j + r, end - 1)] * bytes;
        for (int k = 0; k < f->dim; k++)
            for (int r = 0; r < 4; r++) {
                float v;
                memcpy(&v, p[r] + (size_t)k * sizeof v, sizeof v);
                sum[r] += (double)v * (double)s->query[k];
            }
        for (int r = 0; r < 4 && j + r < end; r++) {
            f->estimate[s->row[j + r]] = (double)(f->most[s->row[j + r]] = (float)sum[r]);
            f->known[s->row[j + r]] = true;
        }
    }
}

/* Threads are woken only for work that takes longer than waking them. */
static void over_rows(struct search *s, pool_fn *fn, const int64_t *row, int64_t n, size_t bytes) {
    s->row = row;
    pool_for((size_t)n * bytes < 1 << 19 ? NULL : s->f->pool, n, 4, fn, s);
}

/* The k largest values that were seen, as a heap whose first entry is the smallest of them. */
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

int flat_search(struct flat *f, const float *query, int k, const uint8_t *allowed, struct flat_hit *hits) {
    ASSERT(k > 0);
    CLEANUP_FREE int8_t *u = xcalloc((size_t)f->padded, sizeof *u);
    CLEANUP_FREE int64_t *pick = xmalloc(((size_t)i64_min(k, f->n) + 1) * sizeof *pick);
    struct search s = {.f = f, .query = query, .u = u};
    struct best b;
    int64_t n = 0;
    const size_t full = (size_t)f->dim * sizeof(float);
    round_query(&s);
    memset(f->known, 0, (size_t)f->n * sizeof *f->known);
    for (int64_t i = 0; i < f->n; i++) {
        f->estimate[i] = 0;
        if (!allowed || allowed[i]) f->row_of[n++] = i;
    }
    f->rescored = 0;
    for (s.plane = 0; s.plane < PLANES && n > k; s.plane++) {
        over_rows(&s, read_plane, f->row_of, n, plane_bytes(f, s.plane));
        /* The scores of the rows that look best by now say what the k-th best has to reach at least. */
        b = (struct best){.hit = hits, .k = k};
        for (int64_t j = 0; j < n; j++) {
            const float x = (float)f->estimate[f->row_of[j]];
            if (b.n < k || x > hits[0].score) offer(&b, (struct flat_hit){f->row_of[j], x});
        }
        int64_t picks = 0;
        for (int i = 0; i < b.n; i++)
            if (!f->known[hits[i].id]) pick[picks++] = hits[i].id;
        over_rows(&s, read_in_full, pick, picks, full);
        f->rescored += picks;
        float low = INFINITY;
        for (int i = 0; i < b.n; i++) low = fminf(low, f->most[hits[i].id]);
        int64_t left = 0;
        for (int64_t j = 0; j < n; j++)
            if (!(f->most[f->row_of[j]] < low)) f->row_of[left++] = f->row_of[j];
        n = left;
    }
    int64_t unknown = 0;
    b = (struct best){.hit = hits, .k = k};
    for (int64_t j = 0; j < n; j++) {
        const int64_t i = f->row_of[j];
        if (f->known[i])
            offer(&b, (struct flat_hit){i, f->most[i]});
        else
            f->row_of[unknown++] = i;
    }
    over_rows(&s, read_in_full, f->row_of, unknown, full);
    f->rescored += unknown;
    for (int64_t j = 0; j < unknown; j++) offer(&b, (struct flat_hit){f->row_of[j], f->most[f->row_of[j]]});
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
    f->dot = dot_functions();
    f->padded = (f->dim + BLOCK - 1) / BLOCK * BLOCK;
    for (int p = 0; p < PLANES; p++) f->plane[p] = xaligned((size_t)f->n * plane_bytes(f, p));
    f->row = xcalloc((size_t)f->n + 1, sizeof *f->row);
    f->estimate = xcalloc((size_t)f->n + 1, sizeof *f->estimate);
    f->most = xcalloc((size_t)f->n + 1, sizeof *f->most);
    f->known = xcalloc((size_t)f->n + 1, sizeof *f->known);
    f->row_of = xcalloc((size_t)f->n + 1, sizeof *f->row_of);
    pool_for(pool, f->n, 64, make_planes, f);
    *out = f;
    return ST_OK;
}

void flat_close(struct flat *f) {
    if (!f) return;
    fs_map_close(&f->map);
    for (int p = 0; p < PLANES; p++) free(f->plane[p]);
    free(f->row);
    free(f->estimate);
    free(f->most);
    free(f->known);
    free(f->row_of);
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
