#include "rag/lexical.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/hash.h"

/* ngram_weight[n - 1] is the weight of a run of n operators, name_weight that of an identifier. They were chosen by a
 * search of 3,000 generated records for each built-in problem: with these weights the operators of the first three
 * records that are found have a similarity of 0.67 to the problem's (module_text_ops_similarity). Longer runs need no
 * larger weight: they are rarer, so their idf is larger. With weights 1, 1.5 and 2 the longer runs outweigh the single
 * operators (0.50); with identifiers of weight 0.5, these outweigh both (0.46). */
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
        /* Features that share a bucket share its count, so idf may be too small. */
        const double tf = 1 + log((double)(end - i)); /* grows with how often the module has the feature */
        const double idf = log((1.0 + (double)x->modules) / (1.0 + x->count[h % LEXICAL_BUCKETS])) + 1;
        const uint64_t place = h / LEXICAL_BUCKETS; /* the bits of h that do not choose the bucket */
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
