/* embedder: vectors from a language model. The embedding of a text is the last token's hidden state behind the final
 * norm, scaled to length 1 (last-token pooling), as BAAI/bge-code-v1, nomic-ai/nomic-embed-code and Qwen3-Embedding
 * have it. What is asked about gets the model's instruction in front, what is asked for does not. */
#ifndef KERNELRL_EMBEDDER_H
#define KERNELRL_EMBEDDER_H

#include "rag/rag.h"

struct embedder_options {
    const char *dir;    /* config.json, weights, tokenizer; names with or without "model.", with or without a head */
    const char *name;   /* "BAAI/bge-code-v1": says which instruction belongs to it */
    const char *prefix; /* that instruction; NULL: the known one of the name, else none */
    const char *device, *dtype; /* "cpu", "cuda:0"; "auto", "f32", "bf16" */
    int max_tokens;             /* of a text, which is cut there; 0: EMBEDDER_MAX_TOKENS */
    struct pool *pool;          /* borrowed */
};
enum { EMBEDDER_MAX_TOKENS = 2048, EMBEDDER_MAX_CHARS = 8000 };
/* out->close frees model and device. Errors as model_load, tokenizer_open and backend_open. */
enum status embedder_open(const struct embedder_options *o, struct rag_embedder *out, struct err *e) MUST_USE;

#endif
