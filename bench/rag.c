/* Retrieval: how long an exact search among 48,000 vectors of 1,536 numbers takes, beside the time it takes to read
 * them once from memory, which is what a search without the copies in few bits would have to do. Two sets: vectors in
 * clusters, asked for by one of them, and random ones, asked for by another random one: all but orthogonal to all of
 * them, it has no near neighbours, which is the hardest case. bench/rag [VECTORS DIM] */
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

static void draw(struct rng *r, float *v, int dim, const float *centre, double spread) {
    double norm = 0;
    for (int k = 0; k < dim; k++) { /* a sum of uniforms is near enough to normal, and cheap */
        const uint64_t bits = rng_next(r);
        const double noise = (double)(bits & 0xffff) + (double)(bits >> 16 & 0xffff) + (double)(bits >> 32 & 0xffff);
        v[k] = (centre ? centre[k] : 0) + (float)((noise / 65536 - 1.5) * spread);
        norm += (double)v[k] * (double)v[k];
    }
    for (int k = 0; k < dim; k++) v[k] = (float)((double)v[k] / sqrt(norm));
}

/* Vectors as embedders give them: in clusters, whose centres share a direction; or random ones. */
static void make_rows(float *v, int64_t n, int dim, bool clustered) {
    CLEANUP_FREE float *centre = xmalloc((size_t)CLUSTERS * (size_t)dim * sizeof *centre);
    for (int64_t c = 0; c < CLUSTERS; c++) {
        struct rng r = rng_make(1, (uint64_t)c);
        for (int k = 0; k < dim; k++) centre[c * dim + k] = (float)(rng_normal(&r) + 0.7);
    }
    for (int64_t i = 0; i < n; i++) {
        struct rng r = rng_make(2, (uint64_t)i);
        draw(&r, v + i * dim, dim, clustered ? centre + i % CLUSTERS * dim : NULL, 1.2);
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

/* One set of vectors, in an index at `index`. */
static enum status measure(const char *dir, float *v, int64_t n, int dim, bool clustered, struct pool *pool,
                           struct err *e) {
    struct flat *f;
    char rows[64], index[64];
    snprintf(rows, sizeof rows, "%s/rows", dir);
    snprintf(index, sizeof index, "%s/index.faiss", dir);
    const size_t bytes = (size_t)n * (size_t)dim * sizeof(float);
    make_rows(v, n, dim, clustered);
    TRY(fs_write_atomic(rows, v, bytes, e));
    TRY(flat_write(index, rows, n, dim, e));
    double t0 = clock_now_s();
    TRY(flat_open(index, pool, &f, e));
    printf("%s: open %lld x %d, %d threads: %.0f ms\n", clustered ? "clusters" : "random", (long long)n, dim,
           pool_threads(pool), 1e3 * (clock_now_s() - t0));
    double search[QUERIES], read[QUERIES], ratio[QUERIES], rescored = 0;
    struct flat_hit hits[24];
    CLEANUP_FREE float *asked = xmalloc((size_t)dim * sizeof *asked);
    for (int q = 0; q < QUERIES; q++) {
        struct rng r = rng_make(3, (uint64_t)q);
        const int64_t one = (int64_t)q * 7919 % n;
        if (clustered)
            memcpy(asked, v + one * dim, (size_t)dim * sizeof *asked);
        else
            draw(&r, asked, dim, NULL, 1);
        t0 = clock_now_s();
        flat_search(f, asked, (int)ARRAY_LEN(hits), NULL, hits);
        search[q] = clock_now_s() - t0;
        rescored += (double)flat_rescored(f) / QUERIES;
        t0 = clock_now_s();
        pool_for(pool, (int64_t)(bytes / 8), 4096, sum_range, v);
        read[q] = clock_now_s() - t0;
        ratio[q] = search[q] / read[q];
        if (clustered && hits[0].id != one) printf("query %d: not its own nearest\n", q);
    }
    qsort(search, QUERIES, sizeof *search, ascending_f64);
    qsort(read, QUERIES, sizeof *read, ascending_f64);
    qsort(ratio, QUERIES, sizeof *ratio, ascending_f64);
    printf("  query, best 24: median %.2f ms (%.2f to %.2f), %.0f vectors read in full\n", 1e3 * search[QUERIES / 2],
           1e3 * search[0], 1e3 * search[QUERIES - 1], rescored);
    printf("  reading all vectors once: median %.2f ms; a query takes %.3f of it\n", 1e3 * read[QUERIES / 2],
           ratio[QUERIES / 2]);
    flat_close(f);
    return ST_OK;
}

int main(int argc, char **argv) {
    int64_t n = 48000, dim = 1536;
    if (argc == 3 && (!parse_i64(argv[1], &n) || !parse_i64(argv[2], &dim) || n < 1 || dim < 1 || dim > FLAT_DIM_MAX)) {
        fprintf(stderr, "usage: bench/rag [VECTORS DIM]\n");
        return 2;
    }
    struct err e;
    struct pool *pool = pool_create(0);
    char dir[] = "/tmp/kernelrl_bench_XXXXXX";
    if (!mkdtemp(dir)) return 1;
    float *v = xaligned((size_t)n * (size_t)dim * sizeof *v);
    enum status st = measure(dir, v, n, (int)dim, true, pool, &e);
    if (st == ST_OK) st = measure(dir, v, n, (int)dim, false, pool, &e);
    if (st == ST_OK) st = fs_remove(dir, &e);
    if (st != ST_OK) fprintf(stderr, "%s\n", e.msg);
    free(v);
    pool_destroy(pool);
    return st == ST_OK ? 0 : 1;
}
