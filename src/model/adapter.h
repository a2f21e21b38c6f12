/* adapter: LoRA adapters over the base weights of one model. An adapter has a rank, a scale and parts of its own, and
 * gradients of its own where it is trained. One batch mixes adapters freely: segments (struct segment in model.h) and
 * sequences of a KV cache (kv_set_adapter) say which one their rows go through, and a row has the bits that it would
 * have in a model that held that adapter alone. Keep the rows of one adapter together: each run of them is a product of
 * its own. model.h includes this file. */
#ifndef KERNELRL_ADAPTER_H
#define KERNELRL_ADAPTER_H

#include "base/err.h"

struct model;
struct param;

/* An adapter is known by its index. The model's own one, which need not be there, has index 0; without it, rows that
 * ask for it go through the base. The others have indices from 1 on, which are never given twice. */
enum { ADAPTER_BASE = -1 /* none */, ADAPTER_OWN = 0 };

/* What an adapter acts on. The head's part acts on the logits alone, also where the head is the embedding table. */
enum adapter_part {
    ADAPTER_ATTENTION = 1,                            /* q, k, v, o */
    ADAPTER_MLP = 2,                                  /* gate, up, down */
    ADAPTER_HEAD = 4,                                 /* the product that makes logits */
    ADAPTER_LAYERS = ADAPTER_ATTENTION | ADAPTER_MLP, /* what is usual */
};
/* y += alpha / rank * (x A^T) B^T, A [rank,in], B [out,rank], all float32. */
struct adapter_shape {
    int rank; /* 1..4096 */
    float alpha;
    unsigned parts; /* of enum adapter_part; 0: ADAPTER_LAYERS */
    /* The rank of each expert of a mixture; alpha / rank is as for the others. 0: rank divided by the experts of a
     * token, at least 1. -1: the MLP has no LoRA, in any layer. ST_INVALID: not 0 in a model without experts. */
    int expert_rank;
};

/* ---- coming and going ---------------------------------------------------------------------------------------------
 * Where a function fails, nothing has changed, unless it says otherwise. *index is new. */

/* A new adapter: A uniform Kaiming, B zero, so that it changes nothing at first. The numbers of a matrix depend on the
 * seed, its layer and its module alone: equal seeds give equal matrices, whatever other parts there are. */
enum status model_adapter_create(struct model *m, const struct adapter_shape *s, uint64_t seed, int *index,
                                 struct err *e) MUST_USE;
/* Reads a PEFT folder. ST_INVALID: it was made for another base. ST_UNSUPPORTED: it holds what is not computed here. */
enum status model_adapter_load(struct model *m, const char *peft_dir, int *index, struct err *e) MUST_USE;
/* A snapshot: the weights of an adapter that is awake, without gradients. */
enum status model_adapter_copy(struct model *m, int from, int *index, struct err *e) MUST_USE;
/* Writes a PEFT folder of an adapter that is awake. */
enum status model_adapter_save(const struct model *m, int index, const char *peft_dir, struct err *e) MUST_USE;
/* How files of adapters hold a mixture's experts: with tensors for each matrix of each expert; with a pair of tensors
 * for all experts of a layer, as PEFT's target_parameters make it; auto: as the adapter was loaded, else the first.
 * Reading takes both. ST_INVALID: the model has no experts. ST_UNSUPPORTED: the own adapter cannot be written so; as
 * for others, model_adapter_save says it then. */
enum expert_files { EXPERT_FILES_AUTO, EXPERT_FILES_EACH, EXPERT_FILES_FUSED };
enum status model_expert_files(struct model *m, enum expert_files how, struct err *e) MUST_USE;
/* Gives up the adapter's memory, and its file at rest. Sequences of a KV cache that went through it cannot go on. */
void model_adapter_drop(struct model *m, int index);
bool model_adapter_there(const struct model *m, int index); /* true: rows may go through it, once it is awake */
int model_adapter_count(const struct model *m);             /* every index lies below this number */

/* The same for the own adapter. Init and load take the place of the one that is there, which is gone also where they
 * fail. */
enum status model_lora_create(struct model *m, const struct adapter_shape *s, uint64_t seed, struct err *e) MUST_USE;
enum status model_lora_init(struct model *m, int rank, float alpha, uint64_t seed,
                            struct err *e) MUST_USE; /* of ADAPTER_LAYERS */
enum status model_lora_load(struct model *m, const char *peft_dir, struct err *e) MUST_USE;
enum status model_lora_save(const struct model *m, const char *peft_dir, struct err *e) MUST_USE;
/* Makes the own adapter, as it is, one of the others, without gradients, and returns its index; the model has none of
 * its own then. */
int model_adapter_keep(struct model *m);

/* ---- training -----------------------------------------------------------------------------------------------------*/

/* Takes memory for the gradients of an adapter that is awake, or sets them to zero. Any number of adapters may be
 * prepared; a batch that is trained on is of one of them. model_train_prepare (model.h) does this for the own one. */
enum status model_adapter_prepare(struct model *m, int index, struct err *e) MUST_USE;
void model_adapter_release(struct model *m, int index); /* gives the gradients up; fine where there are none */

/* A set of parameters that is trained together: those of an adapter that is prepared; else those of the base. Addresses
 * are good until the adapter rests or is dropped, or model_train_prepare is called. */
struct train_set {
    const struct param *param; /* [n] */
    int n;
    bool base;   /* true: it is all of the base */
    bool lent;   /* true: at times its values lie in g, at others its gradients (TRAIN_FULL_LENT) */
    float *g;    /* all gradients in one slab, with zeros in its gaps; NULL: the set is not prepared */
    int64_t n_g; /* floats of the slab */
};
struct train_set model_train_set(const struct model *m, int adapter);
/* Must be called after weights of the adapter (base: of the base) changed, so that packed copies follow. Blocks of KV
 * caches that other adapters filled stay good. */
void model_adapter_changed(struct model *m, int adapter);

/* ---- at rest ------------------------------------------------------------------------------------------------------
 * An adapter that nobody needs for a while may leave the device's memory, and comes back bit for bit. A batch or step
 * that asks for one at rest is refused. It keeps its index, and what KV caches remember of it stays good. */

enum adapter_place { ADAPTER_AWAKE, ADAPTER_IN_MEMORY, ADAPTER_IN_FILE };
/* Moves its weights to host memory (path NULL) or to a file (docs/formats.md, "Files at rest"); from host memory
 * also to a file. ST_INVALID: it is not there, in a file already, or prepared for training (model_adapter_release, or
 * trainer_rest in train/step.h). ST_IO, with the file's name; ST_MEMORY. */
enum status model_adapter_rest(struct model *m, int index, const char *path, struct err *e) MUST_USE;
/* Brings them back; the file is removed. Fine where it is awake. ST_MEMORY: they do not fit the device. ST_IO,
 * ST_PARSE and ST_INVALID: the file is not the one that was written, and the adapter stays at rest. */
enum status model_adapter_wake(struct model *m, int index, struct err *e) MUST_USE;

struct adapter_info {
    struct adapter_shape shape;
    enum adapter_place place;
    bool prepared;      /* true: it has gradients */
    int64_t bytes;      /* of device memory that its weights take while it is awake, about */
    int64_t rest_bytes; /* of host memory or of a file that they take at rest */
    int64_t used;       /* a number that every batch and step through it raises above those of all others */
};
/* False: there is no such adapter. */
bool model_adapter_info(const struct model *m, int index, struct adapter_info *out);

#endif
