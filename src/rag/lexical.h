/* lexical: an embedding of PyTorch modules that needs no weights. Features are runs of one to three operators of
 * forward(), and the identifiers of the source. Each feature is weighted by how often it occurs here and how rarely in
 * the corpus (TF-IDF). It is hashed with a sign onto LEXICAL_DIM numbers (feature hashing, Weinberger et al. 2009). So
 * the inner product of two vectors estimates the cosine of their feature vectors. */
#ifndef KERNELRL_LEXICAL_H
#define KERNELRL_LEXICAL_H

#include "base/err.h"
#include "rag/module_text.h"

enum { LEXICAL_DIM = 1024, LEXICAL_BUCKETS = 1 << 16 };

/* Counts over a corpus. A feature belongs to bucket hash % LEXICAL_BUCKETS; count says how many modules have it, added
 * up over the features of a bucket. */
struct lexical {
    int64_t modules;
    uint32_t count[LEXICAL_BUCKETS];
};

void lexical_count(struct lexical *x, const struct module_text *m);
/* out[LEXICAL_DIM], L2 norm 1; all zero for a module without any feature. */
void lexical_embed(const struct lexical *x, const struct module_text *m, float *out);

/* The counts as a file of little-endian numbers: u64 modules, u32 count[LEXICAL_BUCKETS]. */
enum status lexical_save(const struct lexical *x, const char *path, struct err *e) MUST_USE;
/* ST_IO or ST_PARSE. */
enum status lexical_load(const char *path, struct lexical *out, struct err *e) MUST_USE;

#endif
