/* Retrieval: how long an exact search among 48,000 vectors of 1,536 numbers takes, beside the time it takes to read
 * them once from memory, which is what a search without the 8-bit copy would have to do. bench/rag [VECTORS DIM] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/rng.h"
#include "base/str.h"
#include "rag/flat.h"

enum { QUERIES = 40, CLUSTERS = 600 };

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Vectors as embedders give them: in clusters, whose centres share a direction. */
static void make_rows(float *v, int64_t n, int dim) {
    CLEANUP_FREE float *centre = xmalloc((size_t)CLUSTERS * (size_t)dim * sizeof *centre);
    for (int64_t c = 0; c < CLUSTERS; c++) {
        struct rng r = rng_make(1, (uint64_t)c);
        for (int k = 0; k < dim; k++) centre[c * dim + k] = (float)(rng_normal(&r) + 0.7);
    }
    for (int64_t i = 0; i < n; i++) {
        struct rng r = rng_make(2, (uint64_t)i);
        double norm = 0;
        for (int k = 0; k < dim; k++) { /* a sum of uniforms is near enough to normal, and cheap */
            const uint64_t bits = rng_next(&r);
            const double noise =
                (double)(bits & 0xffff) + (double)(bits >> 16 & 0xffff) + (double)(bits >> 32 & 0xffff);
            v[i * dim + k] = centre[i % CLUSTERS * dim + k] + (float)((noise / 65536 - 1.5) * 1.2);
            norm += (double)v[i * dim + k] * (double)v[i * dim + k];
        }
        for (int k = 0; k < dim; k++) v[i * dim + k] = (float)((double)v[i * dim + k] / sqrt(norm));
    }
}

static void sum_range(void *ctx, int64_t begin, int64_t end, int thread) {
    const uint64_t *p = ctx;
    static volatile UNUSED uint64_t sink[256];
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (int64_t i = begin; i + 4 <= end; i += 4) {
        a += p[i];
        b += p[i + 1];
        c += p[i + 2];
        d += p[i + 3];
    }
    sink[thread & 255] = a + b + c + d;
}

int main(int argc, char **argv) {
    int64_t n = 48000, dim = 1536;
    if (argc == 3 && (!parse_i64(argv[1], &n) || !parse_i64(argv[2], &dim) || n < 1 || dim < 1 || dim > FLAT_DIM_MAX)) {
        fprintf(stderr, "usage: bench/rag [VECTORS DIM]\n");
        return 2;
    }
    struct err e;
    struct flat *f;
    struct pool *pool = pool_create(0);
    char dir[] = "/tmp/kernelrl_bench_XXXXXX", rows[64], index[64];
    if (!mkdtemp(dir)) return 1;
    snprintf(rows, sizeof rows, "%s/rows", dir);
    snprintf(index, sizeof index, "%s/index.faiss", dir);
    const size_t bytes = (size_t)n * (size_t)dim * sizeof(float);
    float *v = xaligned(bytes);
    make_rows(v, n, (int)dim);
    if (fs_write_atomic(rows, v, bytes, &e) != ST_OK || flat_write(index, rows, n, (int)dim, &e) != ST_OK) goto failed;
    double t0 = clock_now_s();
    if (flat_open(index, pool, &f, &e) != ST_OK) goto failed;
    printf("open %lld x %lld, %d threads: %.0f ms\n", (long long)n, (long long)dim, pool_threads(pool),
           1e3 * (clock_now_s() - t0));
    double search[QUERIES], read[QUERIES], rescored = 0;
    struct flat_hit hits[24];
    for (int q = 0; q < QUERIES; q++) {
        const float *query = v + (int64_t)(q * 7919) % n * dim;
        t0 = clock_now_s();
        flat_search(f, query, (int)ARRAY_LEN(hits), NULL, hits);
        search[q] = clock_now_s() - t0;
        rescored += (double)flat_rescored(f) / QUERIES;
        t0 = clock_now_s();
        pool_for(pool, (int64_t)(bytes / 8), 4096, sum_range, v);
        read[q] = clock_now_s() - t0;
        if (query != v + hits[0].id * dim) printf("query %d: not its own nearest\n", q);
    }
    qsort(search, QUERIES, sizeof *search, by_value);
    qsort(read, QUERIES, sizeof *read, by_value);
    printf("query, best 24: median %.2f ms (%.2f to %.2f), %.0f vectors read in full\n", 1e3 * search[QUERIES / 2],
           1e3 * search[0], 1e3 * search[QUERIES - 1], rescored);
    printf("reading all vectors once: median %.2f ms\n", 1e3 * read[QUERIES / 2]);
    flat_close(f);
    free(v);
    pool_destroy(pool);
    return fs_remove(dir, &e) == ST_OK ? 0 : 1;
failed:
    fprintf(stderr, "%s\n", e.msg);
    return 1;
}
