/* raicl: the examples of retrieval-augmented prompts. Each problem's are looked up once, when its prompt is first
 * built, and are a function of the index, the problem and the options alone. */
#ifndef KERNELRL_RL_ROLLOUT_RAICL_H
#define KERNELRL_RL_ROLLOUT_RAICL_H

#include "policy/prompt.h"
#include "problem/problem.h"
#include "rl/options/options.h"

struct raicl_options {
    struct example_options examples;
    const char *backend;   /* of the answers that are trained: "c", "triton", ... */
    const char *device;    /* of a neural embedder; RAG_DEVICE overrules it */
    struct pool *pool;     /* borrowed */
    struct tokenizer *tok; /* borrowed: counts the tokens; NULL: four bytes count as one */
    const volatile bool *cancel;
};
struct raicl;
/* Whether there is an index, without opening it: asked before a large model is loaded. Errors as raicl_open's. */
enum status raicl_index_there(const char *index_path, struct err *e) MUST_USE;
/* Opens the index, and the model it was built with (from the Hub when need be). ST_CONFIG or ST_IO, the message
 * beginning with the key, when there is no index or one without records of the backend. */
enum status raicl_open(const struct raicl_options *o, struct raicl **out, struct err *e) MUST_USE;
void raicl_close(struct raicl *r); /* NULL is fine */
/* The examples for a problem, best first; *n may be less than k, and 0. They live as long as r. An example that would
 * take the prompt over max_tokens is left out, a shorter one behind it may take its place. */
enum status raicl_examples(struct raicl *r, const struct problem *p, const struct prompt_example **out, int *n,
                           struct err *e) MUST_USE;
/* Opens the embedder of a model name for building an index and asking it: a folder or a name on the Hub. device may be
 * NULL (cpu). Not for "lexical". */
struct rag_embedder;
enum status raicl_embedder(const char *model, const char *prefix, const char *device, struct pool *pool,
                           const volatile bool *cancel, struct rag_embedder *out, struct err *e) MUST_USE;

#endif
