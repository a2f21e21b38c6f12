/* embedder: vectors from a language model. The embedding of a text is the last token's hidden state behind the final
 * norm, scaled to length 1 (last-token pooling), as with BAAI/bge-code-v1, nomic-ai/nomic-embed-code and
 * Qwen3-Embedding. A query gets the model's instruction in front. A document does not. */
#ifndef KERNELRL_EMBEDDER_H
#define KERNELRL_EMBEDDER_H

#include "rag/rag.h"

struct embedder_options {
    /* config.json, weights and tokenizer. Tensors' names may begin with "model." or not; there may be a head or not. */
    const char *dir;
    /* "BAAI/bge-code-v1". It says which instruction belongs to the model. */
    const char *name;
    /* That instruction. NULL: the one that is known for the name, else none. */
    const char *prefix;
    const char *device, *dtype; /* "cpu", "cuda:0"; "auto", "f32", "bf16" */
    int max_tokens;             /* A longer text is cut. 0: EMBEDDER_MAX_TOKENS. */
    struct pool *pool;          /* Borrowed. */
};
enum { EMBEDDER_MAX_TOKENS = 2048, EMBEDDER_MAX_CHARS = 8000 };
/* out->close frees model and device. Errors are those of model_load, tokenizer_open and backend_open. */
enum status embedder_open(const struct embedder_options *o, struct rag_embedder *out, struct err *e) MUST_USE;

#endif
