/* rag: retrieval-augmented in-context learning. Owns the corpora of solved problems (corpora.h), their embeddings
 * (lexical.h, embedder.h), the index over them (flat.h) and the choice of examples for a prompt. May include model,
 * text, tensor and io. Start here, then rag.c.
 *
 * An index is a folder (docs/formats.md, "Retrieval index"): index.faiss, records.jsonl, metadata.json and, for the
 * lexical embedding, lexical.bin. */
#ifndef KERNELRL_RAG_H
#define KERNELRL_RAG_H

#include "base/arena.h"
#include "base/pool.h"
#include "rag/corpora.h"

/* ---- embedders ----------------------------------------------------------------------------------------------------*/

#define RAG_LEXICAL "lexical"
#define RAG_DEFAULT_MODEL "BAAI/bge-code-v1"

/* Turns modules into vectors of length 1. */
struct rag_embedder {
    int dim;
    void *ctx;
    /* Writes the vectors of n modules to out[n][dim]. query: whether they are queries or documents. Equal modules get
     * equal bits, whatever stands beside them. */
    enum status (*embed)(void *ctx, const char *const *codes, int n, bool query, float *out, struct err *e);
    void (*close)(void *ctx);
};

/* ---- building -----------------------------------------------------------------------------------------------------*/

struct rag_builder;
struct rag_build_counts {
    int64_t records, duplicates; /* Equal pairs are kept once. */
    /* Vectors that this process made. The others were there already. */
    int64_t embedded;
};

/* Begins an index in DIR, or goes on with one. identity: everything that decides what the index holds, as text. Work
 * that a build with another identity has left is thrown away. *gathered: all records are there, and rag_builder_add
 * must not be called. An index that is there stays until the new one is complete. */
enum status rag_builder_open(const char *dir, const char *identity, struct rag_builder **out, bool *gathered,
                             struct err *e) MUST_USE;
/* A corpus_fn. ctx is the builder. */
enum status rag_builder_add(void *builder, const struct rag_record *r, struct err *e) MUST_USE;
/* The instruction that belongs in front of what this index is asked about, where it is not the one that the embedder's
 * name is known for; kept in the metadata. text is borrowed until rag_builder_finish. */
void rag_builder_query_prefix(struct rag_builder *b, const char *text);
/* Embeds the records, `batch` at a time, and puts the index in place. model_name is what the embedder is called; NULL
 * embedder: the lexical one. Interrupted (ST_CANCELLED) or killed it goes on where it was; the files it ends with are
 * those of an uninterrupted build, bit for bit. ST_INVALID when there is no record. */
enum status rag_builder_finish(struct rag_builder *b, const char *model_name, struct rag_embedder *embedder, int batch,
                               const volatile bool *cancel, struct rag_build_counts *out, struct err *e) MUST_USE;
void rag_builder_close(struct rag_builder *b); /* NULL is fine */

/* ---- asking -------------------------------------------------------------------------------------------------------*/

/* ST_IO when there is no index in DIR; says nothing about whether it is whole. */
enum status rag_index_there(const char *dir, struct err *e) MUST_USE;
struct rag_index;
/* Opens an index. The pool is borrowed (NULL: one thread). An index of a neural embedder needs rag_index_embedder
 * before the first question. ST_IO, ST_PARSE, ST_INVALID: a file is missing, cut, or does not fit the others. */
enum status rag_index_open(const char *dir, struct pool *pool, struct rag_index **out, struct err *e) MUST_USE;
void rag_index_close(struct rag_index *x); /* closes the embedder, too; NULL is fine */
int64_t rag_index_count(const struct rag_index *x);
int rag_index_dim(const struct rag_index *x);
const char *rag_index_model(const struct rag_index *x); /* "lexical", "BAAI/bge-code-v1" */
/* The instruction the index was built for; NULL: the one its model is known for. */
const char *rag_index_query_prefix(const struct rag_index *x);
/* Hands over the embedder that the index was built with. ST_INVALID when its vectors have another length. */
enum status rag_index_embedder(struct rag_index *x, struct rag_embedder embedder, struct err *e) MUST_USE;

struct rag_query {
    const char *code;    /* the module that is to be solved */
    const char *name;    /* of the problem ("19_ReLU"), or NULL */
    const char *backend; /* only records of this one; NULL: all */
    int k;
    bool keep_copies; /* true: solutions of the problem itself are not left out */
};
struct rag_example {
    struct rag_record r; /* strings in the arena */
    int64_t id;          /* row of the index */
    float score;         /* cosine */
};
/* The k nearest records that are neither solutions of the problem itself (a copy of its module, module_text.h, or one
 * of its name) nor copies of one that is among them already; best first, fewer than k when there are fewer. */
enum status rag_retrieve(struct rag_index *x, const struct rag_query *q, struct arena *a, struct rag_example *out,
                         int *n, struct err *e) MUST_USE;

#endif
