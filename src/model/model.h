/* model: decoders, dense or with a mixture of experts (arch.h lists them), in Hugging Face layout. Owns configuration,
 * weight binding, the forward and backward passes, LoRA and the KV cache. May include tensor and io. Start here, then
 * layer.h. Sampling and training compute the same ops in the same order on the same weights.
 * A row is one token of a batch or step: a line of the matrices that the ops work on. */
#ifndef KERNELRL_MODEL_H
#define KERNELRL_MODEL_H

#include "base/err.h"
#include "model/adapter.h"
#include "model/rope.h"
#include "tensor/ops.h"

struct backend; /* tensor/backend.h */
struct arch;    /* model/arch.h */

enum { MODEL_LAYERS_MAX = 512 };

/* Dimension letters as in tensor.h. */
struct model_config {
    const struct arch *arch;     /* its row of the table, never NULL */
    bool tied;                   /* true: the head is the embedding table */
    int32_t V, D, F, L, H, G, K; /* vocabulary, hidden, ffn, layers, query heads, kv heads, head dim */
    /* A mixture of experts; E is 0 without one. In the layers that `sparse` names each row goes through top_k of E
     * experts, of moe_F columns each; in the others, through a dense feed-forward part of F columns. */
    int32_t E, top_k, moe_F;
    bool norm_topk;                /* true: the weights of the chosen experts add up to 1 */
    bool sparse[MODEL_LAYERS_MAX]; /* [L] true: the layer is a mixture */
    int32_t max_positions;
    float rms_eps;
    struct rope_config rope;
    int32_t eos[8];
    int n_eos;
};

/* Reads a config.json, named by its path: the shape of a model, without its weights. */
enum status model_config_read(const char *path, struct model_config *out, struct err *e) MUST_USE;

/* How many columns of feed-forward weights a batch of n rows reads in a layer, on average over the layers: a column
 * that several rows need is counted once. Rows are taken to choose experts at random. A dense model has F for any n. */
double model_ffn_columns(const struct model_config *c, double n);

struct model; /* weights, packed for the products, LoRA, gradients: all in the backend's memory */

/* How the base model is held. LoRA weights are always float32, and so are gradients. */
struct model_options {
    /* Type of the products with the base matrices (tensor/ops.h): "f32", "bf16", or "auto" (NULL too): bf16 from
     * MODEL_AUTO_BF16 parameters on where the backend has it, else f32. */
    const char *dtype;
    /* True: the base will not be trained. A bf16 model is then held in bf16 alone, two bytes a parameter, rounded from
     * what the file holds. False: its float32 values stay beside the packed ones. */
    bool frozen;
    /* How matrices of the layers are held when the base is frozen (BASE_DTYPE_LIST in tensor/formats.h). "auto" (NULL
     * too): as in the checkpoint. "bf16": in bf16; codes of a checkpoint are decoded. A format in codes, that is,
     * quantised: in its codes, which are made from the checkpoint's matrices where it has none. Every result has the
     * bits that the matrix in bf16 which the codes decode to would give. ST_INVALID: the checkpoint has codes of
     * another format, or the base is to be trained. */
    const char *base_dtype;
    /* Most bytes model_forward and model_backward take for activations. What does not fit is recomputed in the backward
     * pass, layer by layer, with the same bits. 0: as many bytes as the weights take and 1 GB, at least 2 GB; less when
     * the device has less. */
    int64_t activation_memory;
    /* True: model_init fills every matrix with the same few random numbers over and over. For benchmarks: drawing a
     * billion numbers takes longer than what is to be measured. */
    bool repeat_random;
    /* True: model_init and model_lora_init take memory and put nothing into it, for a backend that only counts memory
     * (tensor/counting.h). */
    bool empty;
};
enum { MODEL_AUTO_BF16 = 100 * 1000 * 1000 };

/* Loads config.json and model.safetensors (or its shards). opt may be NULL: all defaults. ST_UNSUPPORTED when the
 * backend has no bf16 and it was asked for. The backend is borrowed: whoever opened it closes it, after model_free. */
enum status model_load(const char *dir, const struct model_options *opt, struct backend *be, struct model **out,
                       struct err *e) MUST_USE;
/* Random initialisation (normal 0.02, norms 1, biases 0) from a config.json: its path, or its text (starts with '{').
 */
enum status model_init(const char *config_json, uint64_t seed, const struct model_options *opt, struct backend *be,
                       struct model **out, struct err *e) MUST_USE;
void model_free(struct model *m); /* NULL is fine */
/* What the model is called (a name or path, copied): saved adapters carry it as base_model_name_or_path. Without a call
 * they keep what they were loaded with. */
void model_set_name(struct model *m, const char *name);
struct backend *model_backend(const struct model *m);
const struct model_config *model_cfg(const struct model *m);
const char *model_dtype(const struct model *m); /* "f32" or "bf16": what the products compute in */
/* The format of the codes that the base is held in, by its name in tensor/formats.h; NULL: it is in none. */
const char *model_base_codes(const struct model *m);
/* What a model holds, in bytes. */
struct model_memory {
    int64_t weight_bytes;     /* parameters of the base, as they are stored: two or four bytes each, or codes */
    int64_t activation_bytes; /* of training passes: the most so far */
    int recomputed_layers;    /* in the backward pass of the last batch */
    bool logits_kept; /* true: the last batch kept its logits for a head that is trained, which needs them twice */
};
struct model_memory model_memory(const struct model *m);
/* Bytes of activations that a batch of T rows and N targets takes when `shared` layers have room for the activations of
 * one of them, so that the others are computed again in the backward pass (0: every layer has room of its own). Forgets
 * the last forward. */
int64_t model_activation_bytes(struct model *m, int64_t T, int64_t N, int shared);
/* Writes config.json and model.safetensors (dtype "bf16" or "f32"); a loaded config.json keeps its other keys. */
enum status model_save(const struct model *m, const char *dir, const char *dtype, struct err *e) MUST_USE;

enum train_what { TRAIN_NOTHING, TRAIN_LORA, TRAIN_FULL, TRAIN_FULL_LENT };
/* Allocates gradients (and nothing else) for the own adapter or for the base, and gives up those of the other one;
 * other adapters are prepared one by one (model_adapter_prepare). ST_INVALID: there is no own
 * adapter, or the base was opened frozen and holds no float32 values to train.
 * TRAIN_FULL_LENT is for who keeps the float32 values elsewhere, such as a slice of them on each rank. It takes no
 * memory for gradients: these overwrite the values. What passes read of the values (vectors, the table of embeddings, a
 * router) moves aside, and products read their packed copies. So w of any other parameter holds its value only until
 * the next backward pass, and model_params_changed may be called only while it does. A model stays lent. */
enum status model_train_prepare(struct model *m, enum train_what what, struct err *e) MUST_USE;
/* Another activation_memory (model_options) from the next forward on. */
void model_limit_activations(struct model *m, int64_t bytes);

/* Named parameters: the optimizer, checkpoints and selfcheck walk such lists. Arrays live with the model, in the
 * backend's memory: w and g are for its ops alone and may not be read here (on the CPU backend they can). */
struct param {
    const char *name; /* Hugging Face or PEFT name */
    float *w, *g;     /* device addresses; g NULL where nothing is trained, w NULL for a matrix held in bf16 or codes */
    int64_t n;
    int nd;
    int64_t dim[2];
};
/* The parameters of the own adapter when it is prepared, else those of the base. */
const struct param *model_params(struct model *m, int *count);
/* Copies a parameter, or its gradient, to and from n floats of host memory. model_param_put rounds them for a matrix
 * held in bf16, and quantises them for one in codes. Device errors surface at the next call that returns a status.
 * After putting weights call model_params_changed. */
void model_param_get(const struct model *m, const struct param *p, float *w_host);
void model_param_put(struct model *m, const struct param *p, const float *w_host);
void model_grad_get(const struct model *m, const struct param *p, float *g_host);
void model_grad_put(struct model *m, const struct param *p, const float *g_host);
/* Reads the parameters of model_params() by name from a safetensors file, which may hold more. ST_INVALID names a
 * tensor that is missing, of another shape or not finite; some parameters may have been replaced then. */
enum status model_params_load(struct model *m, const char *path, struct err *e) MUST_USE;
/* Must be called after parameters of the base or of the own adapter changed, so that packed copies follow. */
void model_params_changed(struct model *m);
/* Of a lent base: the values that moved aside are copied to the slab of gradients, which has all values then, if it had
 * the others; or back from it. */
void model_values_out(struct model *m);
void model_values_in(struct model *m);

/* ---- training pass: packed segments -------------------------------------------------------------------------------
 * A batch is a list of segments laid end to end over T rows. A segment continues the segment `prefix` (-1: none): its
 * tokens attend to the whole prefix, then causally to themselves. A prompt is one segment; each of its answers is
 * a segment that continues it (train/step.h), so the prompt is forwarded and back-propagated once. Prefixes come before
 * their users and have no prefix themselves.
 * A batch is trained on when anything is prepared for training and the batch is not forward_only. Then all its segments
 * must be of one adapter. The gradients are those of that adapter if it is prepared, else those of the base under it
 * (model_train_set). ST_INVALID: the segments are of several adapters, or neither is prepared. */
struct segment {
    int64_t start, len; /* rows */
    int prefix;         /* segment index or -1; of the same adapter */
    int adapter;        /* ADAPTER_OWN (0), ADAPTER_BASE or another index */
};
struct train_batch {
    const int32_t *ids; /* [T] input token */
    int64_t T;
    const struct segment *seg;
    int n_seg;
    /* Rows whose next-token distribution is wanted: row rows[i] predicts targets[i]. The same row may occur often
     * (the last prompt row predicts the first token of every sample). */
    const int32_t *rows, *targets; /* [N] */
    int64_t N;
    bool forward_only; /* true: no model_backward will follow, and nothing is kept for one */
};
/* Forward over the batch: logp[i] = log p(targets[i]), entropy[i] (may be NULL), in nats at temperature 1. Keeps what
 * backward needs until the next forward. hidden (may be NULL): the output of the final norm, [T,D]. Where targets is
 * NULL and N is not 0, logp is not written, and hidden, which may not be NULL then, is that of the N rows alone, [N,D].
 * All host memory. */
enum status model_forward(struct model *m, const struct train_batch *b, float *logp, float *entropy, float *hidden,
                          struct err *e) MUST_USE;
/* Which experts rows go through, in a mixture of experts, from the next model_forward or model_logits on. experts:
 * [L][T][top_k] in host memory that the caller keeps. given false: the passes write the experts of each row into it, by
 * ascending id, and leave the part of a layer that is no mixture as it is. given true: the passes read it, and rows go
 * through these experts instead of the router's choice, with the weights that the router gives them. NULL ends both.
 * For checks and metrics: sampling never looks. */
void model_experts(struct model *m, int32_t *experts, bool given);
/* Logits of every row, [T,V] in host memory: for checks and small batches; training never holds them all. Forgets the
 * last forward. */
enum status model_logits(struct model *m, const struct train_batch *b, float *logits, struct err *e) MUST_USE;
/* Adds to the gradients d(sum_i g[i] * logp[i]). Every loss is a per-token scalar g (see train/loss.h); to minimise
 * a loss, g = dloss/dlogp. */
enum status model_backward(struct model *m, const struct train_batch *b, const float *g, struct err *e) MUST_USE;
/* The gradients of the parameters that model_params lists. They lie in one slab of n floats of the backend's memory,
 * with zeros in its gaps. model_grad_norm is their L2 norm, summed in double by the op sum_squares; 0: nothing is
 * prepared. */
void model_zero_grad(struct model *m);
float *model_grad_slab(struct model *m, int64_t *n);
double model_grad_norm(const struct model *m);

/* Looks for a NaN or an infinity among what the bits of `what` name, in their order. True: buf says where the first one
 * is ("gradient of model.layers.3.mlp.up_proj.weight: element 7 of 8192 is NaN"). False: all is finite. Copies
 * everything to the host: for messages, not for every step. */
enum {
    FIND_WEIGHTS = 1,     /* of the base and of the adapter */
    FIND_ACTIVATIONS = 2, /* that the last model_forward kept: none after model_params_changed */
    FIND_GRADIENTS = 4,   /* of model_train_set(m, adapter) */
};
bool model_find_nonfinite(struct model *m, int adapter, int what, char *buf, size_t bytes);

/* ---- sampling pass: KV cache --------------------------------------------------------------------------------------*/
/* A cache is a pool of blocks of KV_BLOCK tokens (tensor/ops.h). Sequences share the blocks of a common prefix; one
 * that appends to a begun block that others hold, too, copies it first. Full blocks are remembered under their tokens
 * until their memory is needed. None of this changes a bit of any result. */
struct kv_cache;
int64_t kv_block_bytes(const struct model *m);
/* Room for n_seqs sequences of up to max_len tokens that share n_blocks blocks (0: enough for all of them at their
 * longest); fails when over the memory it may take. The model is borrowed. */
enum status kv_create(const struct model *m, int n_seqs, int64_t max_len, int64_t n_blocks, struct kv_cache **out,
                      struct err *e) MUST_USE;
void kv_free(struct kv_cache *kv);
void kv_reset(struct kv_cache *kv, int seq); /* forgets the sequence and gives up its blocks; ADAPTER_OWN again */
/* Which adapter the tokens of an empty sequence will go through. Two adapters never share a block. */
void kv_set_adapter(struct kv_cache *kv, int seq, int adapter);
/* dst_seq, whatever it was, goes on from the tokens of src_seq, with its adapter. Copies nothing. */
void kv_share(struct kv_cache *kv, int dst_seq, int src_seq);
int64_t kv_len(const struct kv_cache *kv, int seq);
int64_t kv_available(const struct kv_cache *kv); /* blocks that no sequence holds */
/* Makes sure that n more tokens of seq find room. False, and nothing changed, when there are too few blocks. */
bool kv_reserve(struct kv_cache *kv, int seq, int64_t n);
/* Extends a sequence that ends at a block's end by as many of the n tokens ids as the cache remembers behind it, in
 * whole blocks; returns their number. Blocks that older weights filled are not found. */
int64_t kv_match(struct kv_cache *kv, int seq, const int32_t *ids, int64_t n);
/* Appends n[i] tokens to sequence seq[i] for i < count (prefill and decode in one call; ids laid end to end) and
 * writes the logits of each sequence's last token: logits [count, V], host memory. Same bits as model_forward.
 * ST_MEMORY when there are too few blocks: the cache is then as it was. */
enum status model_step(struct model *m, struct kv_cache *kv, int count, const int *seq, const int *n,
                       const int32_t *ids, float *logits, struct err *e) MUST_USE;

/* Appends n tokens to one sequence, and calls on_logits with the logits of each in turn, [V] in host memory, which are
 * valid until on_logits returns; `row` counts the tokens from 0. logits, [room,V], is scratch in host memory. The bits
 * are those of model_step, and of model_forward. */
typedef void model_logits_fn(void *ctx, int64_t row, const float *logits);
enum status model_step_rows(struct model *m, struct kv_cache *kv, int seq, int n, const int32_t *ids, float *logits,
                            int room, model_logits_fn *on_logits, void *ctx, struct err *e) MUST_USE;

/* A model_step on a device that can itself draw tokens, so that logits need not travel to the host. want[i] says what
 * becomes of the last token of sequence seq[i]: nothing; its logits in logits[i,:], as with model_step; or in drawn[i]
 * a token below `limit`, drawn as `draw` says, with its log-probability at temperature 1 over all V ids and the entropy
 * (id -1: the logits are not finite). */
enum step_what { STEP_NOTHING, STEP_LOGITS, STEP_DRAW };
struct step_want {
    enum step_what what;
    struct draw draw;
};
struct step_drawn {
    int32_t id;
    float logp, entropy;
};
bool model_can_draw(const struct model *m); /* True: model_step_draw may be called. */
enum status model_step_draw(struct model *m, struct kv_cache *kv, int count, const int *seq, const int *n,
                            const int32_t *ids, const struct step_want *want, int32_t limit, struct step_drawn *drawn,
                            float *logits, struct err *e) MUST_USE;

/* Steps that are begun before the results of the last one are there, so that a device does not wait for the host.
 * model_step_begin asks for a step of one token for each of count sequences, whose next tokens are drawn as `draw`
 * says. model_step_end waits for the oldest step that is open (begun and not ended), appends its tokens to their
 * sequences, and writes what it drew into drawn [count]. The tokens and bits are those of model_step_draw.
 *
 * ids[i] >= 0 is a token; ids[i] = -1 - k is the token that place k of the step begun before this one draws. kv_len
 * counts the steps that have ended. Nothing is appended to a sequence that was reset since the step began. At most
 * STEPS_AHEAD steps may be open. While one is open, these may not be called: any other step or draw on the model's
 * backend, kv_share and kv_match of its sequences, kv_free, and model_free. After an error no step is open. */
enum { STEPS_AHEAD = 2 };
bool model_can_begin(const struct model *m, int count); /* True: steps of count sequences can be begun. */
enum status model_step_begin(struct model *m, struct kv_cache *kv, int count, const int *seq, const int32_t *ids,
                             const struct draw *draw, int32_t limit, struct err *e) MUST_USE;
enum status model_step_end(struct model *m, struct step_drawn *drawn, struct err *e) MUST_USE;
int model_steps_begun(const struct model *m); /* how many steps are open */

#endif
