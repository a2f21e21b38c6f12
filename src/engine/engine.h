/* engine: sampling. Owns the queue of requests, KV blocks, batching, the sampler and stopping. May include model. Never
 * sees text: stop strings go through a token-to-bytes callback. A sample is a function of (weights, prompt, seed,
 * request id, parameters) and never of the batch around it, of the memory there is, of what was sampled before or of
 * when it was submitted. engine_run() samples a batch; the queue below it takes single requests while others run. Start
 * here, then engine.c. */
#ifndef KERNELRL_ENGINE_H
#define KERNELRL_ENGINE_H

#include "base/err.h"
#include "model/model.h"

enum {
    MAX_STOP_STRINGS = 64,
    MAX_STOP_STRING_BYTES = 1024,
    MAX_LOGIT_BIAS = 1024,
    MAX_BAD_WORDS = 1024,
    MAX_BAD_WORD_TOKENS = 1024,
};

struct logit_bias {
    int32_t id;
    float value; /* -INFINITY: never drawn */
};
struct token_run {
    const int32_t *ids;
    int n;
};

/* How a sample is drawn. What makes no difference costs nothing: 0 but for top_p, which is 1 then. */
struct sample_params {
    float temperature; /* 0: greedy */
    int top_k;         /* 0: off */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off; ids less than min_p times as probable as the most probable one are left out */
    int max_tokens;    /* new tokens at most */
    /* Before min_tokens tokens are drawn no stop id is, and no stop string that is complete by then ends the sample.
     * The same in vLLM, and for ids Hugging Face's min_new_tokens. */
    int min_tokens;
    const int32_t *stop_ids; /* to ignore the end of text (ignore_eos), leave the model's own ids out */
    int n_stop_ids;
    const char *const *stop_strings; /* at most MAX_STOP_STRINGS of at most MAX_STOP_STRING_BYTES */
    int n_stop_strings;
    uint64_t seed;

    /* Before temperature and filters a row of logits x becomes, in this order, which is vLLM's:
     *   allowed_ids, bad_words, min_tokens: -infinity for what may not be drawn;
     *   logit_bias: x[id] += value;
     *   repetition_penalty r (Keskar et al. 2019, Hugging Face): x = x > 0 ? x / r : x * r for each id that stands in
     *       the prompt or among the tokens drawn;
     *   frequency_penalty f, presence_penalty q (OpenAI): x = (x - f c) - q for each id that was drawn c > 0 times.
     * Each operation is rounded to float32. */
    float repetition_penalty;                  /* > 0; 1 and 0: off */
    float frequency_penalty, presence_penalty; /* -2..2; 0: off */
    const struct logit_bias *logit_bias;       /* at most MAX_LOGIT_BIAS */
    int n_logit_bias;
    const int32_t *allowed_ids; /* allowed_token_ids; none: all ids */
    int n_allowed_ids;
    /* The last token of such a run is left out where the tokens drawn end with those before it (vLLM's bad_words). */
    const struct token_run *bad_words; /* at most MAX_BAD_WORDS of at most MAX_BAD_WORD_TOKENS */
    int n_bad_words;
};

enum stop_reason { STOP_TOKEN, STOP_STRING, STOP_LENGTH, STOP_CANCELLED };
const char *stop_reason_name(enum stop_reason r);

enum { MAX_LOGPROBS = 128 };

/* What came of a token: given to a sink, whose pointers are good until it returns. */
struct engine_token {
    int64_t ticket;
    int sample; /* of the request */
    int at;     /* how many tokens the sample had before */
    int32_t id;
    float logp, entropy;    /* as in struct sample */
    const int32_t *top_ids; /* [top_logprobs] */
    const float *top_logp;  /* [top_logprobs] */
    const float *id_logp;   /* [n_logprob_ids] */
    bool last;
    enum stop_reason stop; /* of the last one */
};
/* Called by the stepping thread for every token of a request. It must only append: it may not call the engine, use the
 * model, write or wait. */
typedef void engine_sink_fn(void *ctx, const struct engine_token *t);

enum { ENGINE_QUEUES = 2 };
struct request {
    const int32_t *prompt;
    int n_prompt;
    int n_samples; /* share one prefill */
    /* Keys the random streams: sample i uses stream (id, first + i), so that an id of 0 makes it one of seed and number
     * alone. first: the samples are a part of a larger request's, from this one on. */
    uint64_t id;
    int first;
    int adapter; /* as in struct segment (model.h): 0 the model's own */
    /* Requests wait in ENGINE_QUEUES queues that take turns: when there is room, the oldest request begins of the queue
     * that had its last turn longest ago. So no request waits for all that another queue has. */
    int queue; /* below ENGINE_QUEUES */
    struct sample_params params;
    /* Log-probabilities beside those of the tokens drawn: at temperature 1 over the full vocabulary, too. */
    int top_logprobs; /* of so many most probable ids at each place, 0..MAX_LOGPROBS; ties: smaller id first */
    const int32_t *logprob_ids; /* [n_logprob_ids] of these ids at each place */
    int n_logprob_ids;          /* 0..MAX_LOGPROBS */
    bool prompt_logprobs;       /* and all of this for the prompt's tokens; params.max_tokens may be 0 then */
    bool prompt_ranks;          /* true: and the rank of each token of the prompt among all ids */
    /* True: logp, entropy, top_* and id_logp of the tokens drawn are of the distribution that they are drawn from,
     * after penalties and bias, temperature and filters (vLLM's logprobs_mode "processed_logprobs"); what is left out
     * has -INFINITY. With temperature 0, of the logits after penalties and bias. Those of a prompt stay as they are.
     * Where the temperature is 1 and nothing else changes the distribution, it makes no difference. */
    bool processed_logprobs;
    /* True: logp, entropy, top_* and id_logp of the tokens drawn are of the distribution at the request's temperature,
     * over the full vocabulary, after penalties and bias and before top-k, top-p and min-p. With temperature 0 and 1
     * nothing is divided. Not together with processed_logprobs. */
    bool tempered_logprobs;
    engine_sink_fn *sink; /* NULL: none */
    void *sink_ctx;
};

struct sample {     /* arrays owned by the caller through sample_free */
    int32_t *ids;   /* generated tokens, the stop token included */
    float *logp;    /* log-probability of each at temperature 1 over the full vocabulary, before penalties and bias */
    float *entropy; /* of each distribution, nats */
    int n;
    enum stop_reason stop;
    /* What the request asked for; else NULL. */
    int32_t *top_ids; /* [n, top_logprobs] most probable first */
    float *top_logp;  /* [n, top_logprobs] */
    float *id_logp;   /* [n, n_logprob_ids] */
    int32_t *rank;    /* [n] of a prompt: 1 is the most probable id; ties: smaller id first. 0 for the first token */
};
void sample_free(struct sample *s);

/* What an engine takes unless its options say otherwise: samples decoded together, more of them on a GPU; prompt tokens
 * a step takes on beside the decoding, fewer of them on a CPU where somebody waits for each token. */
enum { ENGINE_BATCH_CPU = 64, ENGINE_BATCH_GPU = 256, ENGINE_PREFILL = 512, ENGINE_PREFILL_SERVED_CPU = 384 };
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
    /* Prompt tokens a step takes on beside the decoding, at most; 0: ENGINE_PREFILL. It takes on fewer of those that
     * lie far behind the beginning of their prompt or are scored, so that each step takes about equally long. */
    int prefill_tokens;
    bool no_prefix_cache; /* compute every prompt anew */
    /* Adapters that are not trained and not used may leave the device's memory, see engine_adapter_rest. */
    int64_t adapter_bytes;      /* of that memory, which they take at most; 0: no limit */
    const char *adapter_dir;    /* a folder for files of those at rest, which nobody else uses; NULL: no files */
    int64_t adapter_host_bytes; /* with a folder: of host memory, which those at rest take at most */
};
struct engine;
enum status engine_open(struct model *m, const struct engine_options *o, struct engine **out, struct err *e) MUST_USE;
void engine_close(struct engine *en); /* NULL is fine */

/* Runs all requests; out[] receives n_samples samples per request, in request order. progress (may be NULL) is called
 * after each step with tokens so far and sequences finished, and must not use the model; returning false cancels:
 * unfinished samples come back with STOP_CANCELLED. ST_INVALID: a request that cannot be run, or whose parameters leave
 * no token to draw, or requests that were submitted and are not polled yet; ST_MEMORY: one whose longest sample alone
 * is over the budget; ST_FAILED: logits that are not finite. The message names the request, by its place in req and its
 * id. After an error out[] holds nothing. What prompts give (prompt_logprobs) is only had from engine_poll(). */
typedef bool engine_progress_fn(void *ctx, int64_t tokens, int done, int total);
enum status engine_run(struct engine *en, const struct request *req, int n_req, struct sample *out,
                       engine_progress_fn *progress, void *ctx, struct err *e) MUST_USE;

/* ---- the queue ----------------------------------------------------------------------------------------------------
 * One thread, the stepping one, calls engine_step(), engine_run(), engine_adapter_*() and whatever uses the model.
 * engine_submit(), engine_cancel(), engine_poll(), engine_pause(), engine_resume(), engine_stop_waiting() and
 * engine_load() may be called by any thread at any time. Requests begin in the order in which they were submitted. The
 * first step of a queue makes a cache of the whole budget, or of what all slots can fill. */

/* Checks and copies a request, all that it points to, and puts it at the end of the queue. *ticket is its number, from
 * 1. ST_INVALID: it cannot be run, and the message names the parameter. */
enum status engine_submit(struct engine *en, const struct request *r, int64_t *ticket, struct err *e) MUST_USE;
/* Ends a request before the next step: its samples come back with what they have and STOP_CANCELLED. Nothing happens
 * when it has ended. */
void engine_cancel(struct engine *en, int64_t ticket);

/* What has become of a request. */
struct engine_result {
    int64_t ticket;
    enum status status;     /* ST_OK, or why it failed; other requests go on */
    struct err err;         /* its message then */
    struct sample *samples; /* [n_samples]; none when it failed */
    int n_samples;
    struct sample prompt; /* with prompt_logprobs: n prompt tokens; the first has no log-probability, which is NaN */
    int64_t begun_ns;     /* by CLOCK_MONOTONIC: when it left the queue; 0: it never did */
};
/* Takes a result that is there, of `ticket` or, 0, the oldest. False: there is none yet. The caller gives it to
 * engine_result_free. */
bool engine_poll(struct engine *en, int64_t ticket, struct engine_result *out);
void engine_result_free(struct engine_result *r);

/* Runs one step of the model for all that is in flight, letting in what waits. *working is false when there was nothing
 * to do, so that there is no new result either. An error is the model's own (a device that failed): every request in
 * flight fails with it, those that wait stay. What concerns one request alone fails that one. */
enum status engine_step(struct engine *en, bool *working, struct err *e) MUST_USE;
/* Waits until there is something for engine_step to do, or timeout_s have passed, or engine_stop_waiting() was called.
 * True: there is something. */
bool engine_wait(struct engine *en, double timeout_s);
void engine_stop_waiting(struct engine *en);

/* After engine_pause() returns and the step that runs has ended, no step touches the model until engine_resume(): what
 * is in flight stays. Calls add up. Weights may be changed meanwhile; what is in flight then goes on over its old keys
 * and values, unless engine_forget() makes it compute them anew. */
void engine_pause(struct engine *en);
void engine_resume(struct engine *en);
bool engine_paused(struct engine *en); /* and no step is under way */
/* Takes the blocks of all that is in flight, between steps. What comes next is computed from the first token on. */
enum status engine_forget(struct engine *en, struct err *e) MUST_USE;

/* Adapters, between steps. A request keeps the adapter that it was submitted with: one that is dropped is refused to
 * new requests at once, and given up when the last request with it has ended. To replace one, load the new one, drop
 * the old one, and submit with the new index. */
enum status engine_adapter_load(struct engine *en, const char *peft_dir, int *index, struct err *e) MUST_USE;
enum status engine_adapter_drop(struct engine *en, int index, struct err *e) MUST_USE;
/* Which adapters are on the device is the engine's to decide, except for those that are prepared for training: their
 * trainer decides. An adapter at rest wakes when a request with it begins. Where the adapters' bytes would exceed
 * adapter_bytes, or the device has no room, those that were used longest ago are put to rest first; one that a running
 * request has stays, and a request that finds no room waits until there is some, with all behind it. A request fails
 * when its adapter alone is too large, or cannot be put where it must go or read back: the message names the file.
 * Those at rest lie in host memory; with adapter_dir, those that were used longest ago lie there, beyond
 * adapter_host_bytes. engine_adapter_rest puts one to rest now. ST_INVALID: it is in use or prepared for training, or a
 * step is under way.
 */
enum status engine_adapter_rest(struct engine *en, int index, struct err *e) MUST_USE;

struct engine_load {      /* of this moment */
    int waiting, running; /* requests */
    int samples;          /* sequences in flight */
    int64_t blocks, blocks_free;
};
struct engine_load engine_load(struct engine *en);

struct engine_stats { /* since the last engine_run began, or since the engine was opened */
    int64_t steps;
    int64_t decoded_tokens;   /* fed one by one; on a device also those behind a stop, which nobody reads */
    int64_t prefilled_tokens; /* fed in chunks: prompts, and what preempted samples had already */
    int64_t cached_tokens;    /* not fed, because the cache remembered them */
    int64_t preemptions;      /* sequences that gave up their blocks */
    int64_t kv_bytes;         /* size of the cache */
    int64_t adapters_rested, adapters_woken;
};
struct engine_stats engine_stats(const struct engine *en);

#endif
