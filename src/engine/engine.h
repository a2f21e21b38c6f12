/* engine: sampling. Owns KV blocks, batching, the sampler and stopping. May include model. Never sees text: stop
 * strings go through a token-to-bytes callback. A sample is a function of (weights, prompt, seed, request id,
 * parameters) and never of the batch around it, of the memory there is or of what was sampled before. Start here, then
 * engine.c. */
#ifndef KERNELRL_ENGINE_H
#define KERNELRL_ENGINE_H

#include "base/err.h"
#include "model/model.h"

enum { MAX_STOP_STRINGS = 64, MAX_STOP_STRING_BYTES = 1024 };

struct sample_params {
    float temperature; /* 0: greedy */
    int top_k;         /* 0: off */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off; ids less than min_p times as probable as the most probable one are left out */
    int max_tokens;    /* new tokens at most */
    const int32_t *stop_ids;
    int n_stop_ids;
    const char *const *stop_strings; /* at most MAX_STOP_STRINGS of at most MAX_STOP_STRING_BYTES */
    int n_stop_strings;
    uint64_t seed;
};

enum stop_reason { STOP_TOKEN, STOP_STRING, STOP_LENGTH, STOP_CANCELLED };
const char *stop_reason_name(enum stop_reason r);

struct request {
    const int32_t *prompt;
    int n_prompt;
    int n_samples; /* share one prefill */
    uint64_t id;   /* keys the random stream; sample i uses stream (id, i) */
    int adapter;   /* as in struct segment (model.h): 0 the model's own */
    struct sample_params params;
};

struct sample {     /* arrays owned by the caller through sample_free */
    int32_t *ids;   /* generated tokens, the stop token included */
    float *logp;    /* log-probability of each at temperature 1 over the full vocabulary */
    float *entropy; /* of each distribution, nats */
    int n;
    enum stop_reason stop;
};
void sample_free(struct sample *s);

/* What an engine takes unless its options say otherwise: samples decoded together, more of them on a GPU; prompt tokens
 * a step takes on beside the decoding. */
enum { ENGINE_BATCH_CPU = 64, ENGINE_BATCH_GPU = 256, ENGINE_PREFILL = 512 };
/* The batch that training asks for on a device ("cpu", "cuda:0"). */
int engine_batch_on(const char *device);

/* Blocks that a run wants its KV cache to have: so many slots at their longest, of that many positions, and the blocks
 * of all prompts beside them for those that meet them again. */
int64_t engine_kv_blocks(int64_t slots, int64_t positions, int64_t prompt_blocks);

struct engine_options {
    int64_t memory_bytes; /* KV budget on the device, never exceeded; 0: a quarter of the device's free memory */
    int max_batch;        /* samples decoded together at most; 0: ENGINE_BATCH_CPU */
    int32_t vocab_limit;  /* ids at or above are never sampled (rows beyond the tokenizer); 0: V */
    const char *(*token_bytes)(void *ctx, int32_t id, size_t *n); /* for stop strings */
    void *token_ctx;
    int prefill_tokens;   /* prompt tokens a step takes on beside the decoding; 0: ENGINE_PREFILL */
    bool no_prefix_cache; /* compute every prompt anew */
};
struct engine;
enum status engine_open(struct model *m, const struct engine_options *o, struct engine **out, struct err *e) MUST_USE;
void engine_close(struct engine *en); /* NULL is fine */

/* Runs all requests; out[] receives n_samples samples per request, in request order. progress (may be NULL) is called
 * after each step with tokens so far and sequences finished, and must not use the model; returning false cancels:
 * unfinished samples come back with STOP_CANCELLED. ST_INVALID: a request that cannot be run; ST_MEMORY: one whose
 * longest sample alone is over the budget; ST_FAILED: logits that are not finite. The message names the request, by its
 * place in req and its id. After an error out[] holds nothing. */
typedef bool engine_progress_fn(void *ctx, int64_t tokens, int done, int total);
enum status engine_run(struct engine *en, const struct request *req, int n_req, struct sample *out,
                       engine_progress_fn *progress, void *ctx, struct err *e) MUST_USE;

struct engine_stats { /* of the last run */
    int64_t steps;
    int64_t decoded_tokens;   /* fed one by one; on a device also those behind a stop, which nobody reads */
    int64_t prefilled_tokens; /* fed in chunks: prompts, and what preempted samples had already */
    int64_t cached_tokens;    /* not fed, because the cache remembered them */
    int64_t preemptions;      /* sequences that gave up their blocks */
    int64_t kv_bytes;         /* size of the cache */
};
struct engine_stats engine_stats(const struct engine *en);

#endif
