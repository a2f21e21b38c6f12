#include "rag/lexical.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/hash.h"

/* A run of n operators has a weight. The weights were chosen by how like the operators of what is found are to those of
 * the query (module_text_ops_similarity): 0.67 for the first three records of the built-in problems among 3,000 of the
 * generator's. Longer runs weigh more by themselves, because they are rarer. With weights 1, 1.5, 2 they drown the
 * operators (0.50), and identifiers of weight 0.5 drown both (0.46). */
enum { NGRAM = 3 };
static const float ngram_weight[NGRAM] = {1.0f, 0.7f, 0.5f};
static const float name_weight = 0.15f;

struct feature {
    uint64_t hash;
    float weight;
};

static int by_hash(const void *a, const void *b) {
    const struct feature *x = a, *y = b;
    return (x->hash > y->hash) - (x->hash < y->hash);
}

/* Collects all features of a module, sorted by hash. A feature that occurs twice is there twice. The caller frees
 * them. */
static struct feature *collect(const struct module_text *m, int *n) {
    struct feature *f = xmalloc((size_t)(NGRAM * m->n_ops + m->n_names + 1) * sizeof *f);
    *n = 0;
    for (int i = 0; i < m->n_ops; i++) {
        uint64_t h = 17;
        for (int k = 0; k < NGRAM && i + k < m->n_ops; k++) {
            h = hash_bytes(m->ops[i + k], strlen(m->ops[i + k]), h + (uint64_t)k + 1);
            f[(*n)++] = (struct feature){h, ngram_weight[k]};
        }
    }
    for (int i = 0; i < m->n_names; i++)
        f[(*n)++] = (struct feature){hash_bytes(m->names[i], strlen(m->names[i]), 99), name_weight};
    qsort(f, (size_t)*n, sizeof *f, by_hash);
    return f;
}

void lexical_count(struct lexical *x, const struct module_text *m) {
    int n;
    CLEANUP_FREE struct feature *f = collect(m, &n);
    for (int i = 0; i < n; i++)
        if (i == 0 || f[i].hash != f[i - 1].hash) x->count[f[i].hash % LEXICAL_BUCKETS]++;
    x->modules++;
}

void lexical_embed(const struct lexical *x, const struct module_text *m, float *out) {
    int n;
    CLEANUP_FREE struct feature *f = collect(m, &n);
    double sum[LEXICAL_DIM] = {0};
    for (int i = 0, end; i < n; i = end) {
        for (end = i; end < n && f[end].hash == f[i].hash;) end++;
        const uint64_t h = f[i].hash;
        const double tf = 1 + log((double)(end - i));
        const double idf = log((1.0 + (double)x->modules) / (1.0 + x->count[h % LEXICAL_BUCKETS])) + 1;
        const uint64_t place = h / LEXICAL_BUCKETS; /* These are bits that the bucket does not use. */
        sum[place % LEXICAL_DIM] += (place / LEXICAL_DIM & 1 ? -1.0 : 1.0) * f[i].weight * tf * idf;
    }
    double norm = 0;
    for (int i = 0; i < LEXICAL_DIM; i++) norm += sum[i] * sum[i];
    for (int i = 0; i < LEXICAL_DIM; i++) out[i] = norm > 0 ? (float)(sum[i] / sqrt(norm)) : 0;
}

enum status lexical_save(const struct lexical *x, const char *path, struct err *e) {
    const size_t bytes = sizeof x->modules + sizeof x->count;
    CLEANUP_FREE char *buf = xmalloc(bytes);
    memcpy(buf, &x->modules, sizeof x->modules);
    memcpy(buf + sizeof x->modules, x->count, sizeof x->count);
    return fs_write_atomic(path, buf, bytes, e);
}

enum status lexical_load(const char *path, struct lexical *out, struct err *e) {
    CLEANUP_FREE char *buf = NULL;
    size_t n;
    TRY(fs_read(path, 1 << 20, &buf, &n, e));
    const size_t want = sizeof out->modules + sizeof out->count;
    if (n != want) return FAIL(e, ST_PARSE, "%s: %zu bytes, expected %zu", path, n, want);
    memcpy(&out->modules, buf, sizeof out->modules);
    memcpy(out->count, buf + sizeof out->modules, sizeof out->count);
    if (out->modules < 0) return FAIL(e, ST_PARSE, "%s: modules: expected a number >= 0", path);
    return ST_OK;
}
