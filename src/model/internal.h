/* What the files of model/ share. Not for other modules. */
#ifndef KERNELRL_MODEL_INTERNAL_H
#define KERNELRL_MODEL_INTERNAL_H

#include <jansson.h>

#include "base/arena.h"
#include "base/str.h"
#include "io/safetensors.h"
#include "model/arch.h"
#include "model/model.h"
#include "model/rest.h"
#include "tensor/experts.h"
#include "tensor/fused.h"

/* A site is a module that LoRA can act on: a value of enum arch_module below LORA_SITES. */
enum { LORA_SITES = N_LORA_SITES };

/* LoRA at a site: y += scale * (x A^T) B^T, A [R,in], B [out,R]. What x is, and the sites that read it: */
enum lora_input {
    LORA_OF_H1,  /* q, k, v */
    LORA_OF_O,   /* o */
    LORA_OF_H2,  /* gate, up */
    LORA_OF_ACT, /* down */
    LORA_OF_HN,  /* head */
    LORA_INPUTS
};
/* Sites that read the same rows x and have one rank and one scale. Their A lie one under the other, as one matrix: x is
 * read once for all of them. In a mixture of experts each expert has such matrices, all of the same shape. */
struct lora_group {
    struct weight *a; /* [R * sites, in], one for each expert, or one */
    int rank;
    float scale;
    unsigned sites; /* bit s: site s */
};
struct lora {
    /* An input has groups[input] groups, from group[lora_first[input]] on: mostly one, or none. */
    struct lora_group group[LORA_SITES];
    int groups[LORA_INPUTS];
    struct weight *b[LORA_SITES]; /* [out,R], one for each expert, or one; NULL: absent */
    int layer;                    /* the index of this struct in adapter.layer */
};
/* The sites of an input: [lora_first[i], lora_first[i+1]). */
extern const int lora_first[LORA_INPUTS + 1];

struct lora_site {
    int rank;
    float alpha;
};
struct adapter {
    struct lora *layer; /* [L + 1]; the last one has the head's part, and nothing else; NULL at rest */
    float *w, *g;       /* slabs of n_w floats: the weights, NULL at rest; the gradients, NULL unless it is prepared */
    int64_t n_w;
    struct resting *resting; /* NULL: it is awake */
    int rank;                /* the usual rank and alpha; `at` has those of each site */
    float alpha;
    struct lora_site *at;  /* [(L + 1) * LORA_SITES], by layer and site */
    int widest;            /* the largest rank of a site, times top_k in a mixture of experts */
    struct weight *weight; /* [n_weights]: all matrices, of which struct lora has views; NULL at rest */
    int64_t n_weights;
    bool rslora;          /* true: the scale is alpha / sqrt(rank); false: alpha / rank */
    bool use[LORA_SITES]; /* true: the adapter acts on the site */
    bool fused;           /* true: its file had one pair of tensors for all experts of a layer */
    int32_t stamp;        /* > 0: a number of these weights, which no other weights of this model have or had */
    int64_t used, bytes, rest_bytes; /* as in struct adapter_info */
    json_t *peft;                    /* adapter_config.json as loaded, or NULL */
    struct param *param;             /* [n_param]; NULL at rest. The names are the model's */
    int n_param;
};
/* Rows [row, row + n) go through this adapter. */
struct lora_rows {
    const struct adapter *adapter;
    int64_t row, n;
};
/* Runs of rows in ascending order. Rows in no run go through the base alone. */
struct lora_runs {
    struct lora_rows *run;
    int n;
};

/* The weights of a layer, by kind of block (layer.h). Fused matrices: q, k, v rows one under the other; gate over up. A
 * Hugging Face tensor is a run of rows of one. */
struct attention_weights {
    struct weight wqkv, wo;
    float *ln, *bqkv, *qn, *kn; /* [D]; [(H+2G)K], or NULL; [K] each, or NULL */
};
struct ffn_weights {
    struct weight wgu, wd;
    float *ln; /* [D] */
};
struct moe_weights {
    struct weight router;    /* [E,D], float32 always */
    struct weight *wgu, *wd; /* [E] each; the experts' float32 values lie one behind the other, carve_size apart */
    float *ln;               /* [D] */
};
struct layer {
    struct attention_weights attention;
    struct ffn_weights ffn; /* where the layer is no mixture of experts */
    struct moe_weights moe; /* where it is */
};
/* So many blocks make a layer. */
enum { LAYER_BLOCKS = 2 };

/* Buffers of one pass over T rows. In training the first group exists per layer and is kept for backward. */
struct layer_acts {
    float *x[LAYER_BLOCKS]; /* what each block reads, [T,D] */
    float *qkv, *stats;     /* attention's, with o; stats NULL: no backward pass will follow */
    void *o, *gu;           /* of type model.act, as h, qk and a below; gu is the feed-forward part's */
    float *router;          /* a mixture's logits, [T,E] */
    void *routing, *moe_gu; /* what the logits chose, routing_words(); gu of each pair of row and expert, by expert */
    void *xa[LORA_OF_HN];   /* scale * x A^T as lora_xa says, of activations' type; NULL: not kept */
};
struct pass {
    int64_t T;
    const int32_t *pos;
    const struct attn_seq *seq;
    int n_seq;
    float *kv; /* of this layer, as in struct attn_shape; NULL in training */
    int64_t kv_stride;
    void *h, *qk, *a;
    float *moe_x;                /* a mixture's rows by expert, [T top_k, D]: what experts read, then what they give */
    void *moe_a;                 /* as a, of those rows */
    struct expert_places places; /* of an adapter's rows */
    int32_t *experts;            /* as model_experts says; NULL in sampling */
    bool given;                  /* as model_experts says */
    void *xa;                    /* scratch for any input of LoRA, xa_room() elements of activations' type */
    struct lora_runs lora;       /* of the T rows; it has room for one run for each sequence */
    struct lora_runs head;       /* of the rows whose logits are made, as far as their adapters act on the head */
};

struct train_space {
    float *mem;
    int64_t cap_floats;
    struct layer_acts *layer; /* [L] */
    float *x_last;            /* [T,D] */
    void *hn, *hc;            /* [T,D], and an LM-head chunk of it; of type model.act */
    float *dhc, *logits;      /* LM-head chunks */
    /* Wanted rows are the N rows of train_batch.rows. dhn: d logp[i] / d hn[rows[i]], [N,D]; NULL where the head is
     * trained and there is no dl. dl, in bfloat16 (head_in_16): d logp / d logits of a run of wanted rows. hs: as many
     * rows of hn, scaled. */
    float *dhn;
    void *dl, *hs;
    /* Where an adapter's head is trained, of activations' type: scale * hn A^T and, with dl, the gradient at hn A^T,
     * [N,R]; and a run's rows of the former, scaled. */
    void *head_xa, *head_dt, *head_xs;
    float *ones;    /* [chunk], host */
    int32_t *count; /* [chunk] 0, 1, 2 and so on, host */
    /* Host: of each chunk of the wanted rows, these without repetitions [N], and where each stands among them [chunk].
     */
    int32_t *apart, *first;
    const struct adapter *of; /* the adapter that a batch goes through which is trained on; NULL: none */
    bool backward;            /* true: the last batch is trained on */
    bool full;                /* true: it is, and the gradients are the base's; false: they are the adapter's */
    bool forward_only;        /* true: the last batch was forward_only */
    /* keep_logits true: dl, or logits where there is no dl, has those of all N rows for a backward pass to come. */
    bool keep_logits;
    bool logits_kept; /* true: keep_logits was true when the last batch went forward (model_memory) */
    float *dx, *dh;
    void *d_o, *da, *dgu, *dqkv; /* of type model.act */
    /* A mixture's gradients, with rows by expert: at the experts' outputs and later at their inputs; at the weights of
     * the chosen experts; at the router's logits, with rows as they come; at a and gu. */
    float *moe_dy, *d_weight, *d_router;
    void *moe_da, *moe_dgu;
    struct pass p;
    int64_t chunk; /* rows of an LM-head chunk */
    int64_t cap_chunk, cap_N;
    /* The first n_shared layers keep only their inputs, and share the room of their other activations, which at present
     * holds those of layer `held`. */
    int n_shared, held;
    int32_t *pos;
    struct attn_seq *seq;
    struct lora_rows *cut; /* [cap_head]: the runs of a chunk of wanted rows */
    int64_t cap_T, cap_head;
    int cap_seq;
    int64_t T, N; /* of the last forward; T = -1: none */
};

struct step_space {
    float *mem;
    int64_t cap_floats;
    struct layer_acts acts;
    float *rows, *logits;
    struct pass p;
    int32_t *pos, *ids, *last_row;
    int32_t *last_seq; /* the sequence of that row; -1: none */
    struct attn_seq *seq;
    struct draw *draw;
    /* What model_step_begin gives to the step: what is wanted of each sequence, and 1 token for each. */
    struct step_want *want;
    int *one;
    /* What becomes of the logits of a step: drawn tokens (model_step_draw). drawing[now] is for the next step; n_begun
     * of them are of steps that are open (model_step_begin). */
    struct step_drawing {
        struct kv_cache *kv;
        int count;
        int *seq;                  /* [count] */
        uint64_t *epoch;           /* [count] of the sequences */
        int32_t *ids, *row;        /* [count]: the tokens as model_step_begin got them; the rows that are drawn from */
        int32_t *drawn;            /* [rows] */
        float *logp, *entropy;     /* [rows] */
        struct step_drawn *result; /* [count], once it has ended */
    } drawing[STEPS_AHEAD];
    int now, n_begun;
};

/* Where a tensor of the base lives: rows [row, row + dim[0]) of a matrix, or numbers [row, row + n) of a vector. */
struct param_place {
    struct weight *in; /* NULL: it is of a vector */
    float **vector;
    int64_t row;
    enum arch_module at; /* the tensor's module, layer and expert */
    int layer;
    int64_t expert;
};
/* A matrix or a vector of the base, as declare.h lists them. */
struct stored {
    struct weight *matrix; /* NULL: it is a vector */
    float **vector;
    int64_t n;       /* elements */
    bool multiplied; /* true: products read the matrix, so it is packed */
    bool of_layer;   /* true: it is a matrix of a layer, of which codes may be made */
    bool exact;      /* true: it is held in float32 whatever the model's dtype is */
};

/* Floats of a lent base that passes read in float32: where they lie, and where the gradients of as many lie. */
struct kept_values {
    int64_t at, of_g, n;
};

struct model {
    struct model_config cfg;
    char *name;         /* for adapters saved from it, or NULL */
    json_t *config;     /* the whole config.json */
    struct backend *be; /* borrowed; every float * below is its memory */
    struct arena names;
    float *w, *g; /* all base parameters and their gradients, one slab each; g NULL until full training, w if lent */
    int64_t n_w;
    float *keep;              /* of a lent base, what it keeps; NULL: it is not lent */
    struct kept_values *kept; /* [n_kept], in the order of both memories */
    int n_kept;
    bool values_there;                  /* of a lent base: true: its values lie in the slab g, false: gradients do */
    enum dtype dt;                      /* of the products with base matrices */
    enum dtype act;                     /* of activations, where tensor/ops.h leaves a choice */
    bool empty;                         /* as in model_options */
    enum weight_format plain;           /* of matrices of the base that are not in codes */
    enum weight_format in_file;         /* codes that config.json speaks of; FORMAT_F32: none */
    enum weight_format codes;           /* the format of those in codes: FORMAT_FP8 and the like; FORMAT_F32: none is */
    int64_t activation_memory;          /* as in model_options */
    const char *table_name, *head_name; /* of their tensors; a tied model has no tensor of its head */
    float *final_norm;
    struct weight embed, head; /* [V,D]; embed is unused when tied: see model_table */
    struct layer *layer;
    bool base_packed;      /* true: the base has packed copies for products */
    struct stored *stored; /* [n_stored], in the order of the slab */
    int n_stored;
    struct param *param;
    struct param_place *place; /* [n_param] */
    int n_param;

    const char **lora_name;   /* of all matrices that adapters can have (adapter.c), or NULL */
    struct adapter **adapter; /* [n_adapters] by index; NULL: there is none */
    int n_adapters, cap_adapters;
    int widest, n_heads; /* of the adapters: the largest struct adapter.widest; how many act on the head */
    int n_prepared;      /* so many have gradients */
    enum expert_files expert_files;
    int32_t stamps; /* the last stamp that was given */
    int64_t passes; /* how many batches and steps there were, for adapter_info.used */

    bool full;                   /* true: the base is trained */
    uint64_t version;            /* counts changes of the base: a cache of older weights is worth nothing */
    float *rope, *cos_t, *sin_t; /* one slab; [n_pos][K/2] each */
    int64_t n_pos, rope_floats;
    struct train_space ts;
    struct step_space ss;
};

/* config.c */
enum status config_parse(json_t *j, const char *where, struct model_config *c, struct err *e) MUST_USE;
/* forward.c */
/* Makes sure that ts.layer[i] holds the activations of layer i of the last batch: where layers share their room and it
 * holds those of another one, they are recomputed from the layer's input. */
void model_layer_recall(struct model *m, int i);
/* The logits lg of the rows hn, which the adapters of `l` act on; xa as in lora_forward. */
void model_head_forward(struct model *m, const struct lora_runs *l, struct tensor lg, struct tensor hn, void *xa);
/* The logits lg of as many wanted rows of the last batch, from wanted row i on. A row that neighbours want is computed
 * once and copied to each. Overwrites ts.hc. */
void model_wanted_logits(struct model *m, const struct train_batch *b, int64_t i, struct tensor lg);
/* Where scale * hn A^T of the head, and the gradient at hn A^T, lie from wanted row i on: in memory that is kept until
 * the backward pass, or in scratch. */
void *model_head_xa(const struct model *m, int64_t i);
void *model_head_dt(const struct model *m, int64_t i);
/* Extends the rotary tables to n positions. */
enum status model_rope_tables(struct model *m, int64_t n, struct err *e) MUST_USE;
/* Grows a slab of device floats, contents lost. ST_MEMORY when the device cannot hold it. */
enum status space_grow(struct model *m, float **mem, int64_t *cap, int64_t want, const char *what,
                       struct err *e) MUST_USE;
void train_space_free(struct model *m);
void step_space_free(struct model *m);
/* model.c: the n parameters p by name, through a host buffer of the largest. */
enum status params_read(struct model *m, const struct param *p, int n, const struct st_file *f, struct err *e) MUST_USE;
enum status params_write(const struct model *m, const struct param *p, int n, enum st_dtype dtype,
                         const char *const *metadata, const char *path, struct err *e) MUST_USE;
/* The name that f has for the model's tensor `name`: some files leave out the outermost module. */
const char *name_in(const struct model *m, const struct st_file *f, const char *name);
/* As model_param_get, of rows [row, row + rows) of a matrix; a vector is one row. */
void param_get_rows(const struct model *m, const struct param *p, int64_t row, int64_t rows, float *host);
/* lora.c. `layer` is a place in adapter.layer, and x, y and what is beside them the rows that the runs count. */
void lora_site_dims(const struct model_config *c, int layer, int site, int64_t *in, int64_t *out);
/* How many matrices each site of an input has: one for each expert in a mixture, else 1. */
int64_t lora_copies(const struct model_config *c, int layer, enum lora_input input);
/* Rows of what an input of a layer reads, when the pass has T. */
int64_t lora_rows_at(const struct model_config *c, int layer, enum lora_input input, int64_t T);
/* What ts.of has in this layer; NULL: it has nothing at this input, or is NULL. It need not be what is trained: the
 * base under it may be. */
const struct lora *lora_in_pass(const struct model *m, int layer, enum lora_input input);
/* Rows [row, row + n), behind those added before, go through this adapter (NULL: the base). */
void runs_add(struct lora_runs *l, const struct adapter *ad, int64_t row, int64_t n);
/* The runs of l within rows [row, row + n), with rows counted from `row` on. They lie in room, which has space for as
 * many runs as l has. */
struct lora_runs runs_within(const struct lora_runs *l, int64_t row, int64_t n, struct lora_rows *room);
/* y += scale (x A^T) B^T for the sites of an input, each row through its adapter; y is what the sites write, side by
 * side. xa gets scale (x A^T); where there are several adapters, it ends with that of the last one. Nothing happens at
 * a site without LoRA. Call lora_begin in front of the base's product and lora_forward behind it, with the same
 * arguments (y aside): lora_begin may already compute the first half, xa. */
void lora_begin(struct model *m, const struct lora_runs *l, int layer, enum lora_input input, struct tensor x,
                void *xa);
void lora_forward(struct model *m, const struct lora_runs *l, int layer, enum lora_input input, struct tensor y,
                  struct tensor x, void *xa);
/* True: one adapter serves all T rows, has one group at this input, and lora_begin has computed its xa. */
bool lora_alone(const struct model *m, const struct lora_runs *l, int64_t T, int layer, enum lora_input input);
/* True: no adapter of these runs acts at this input. */
bool lora_none(const struct lora_runs *l, int layer, enum lora_input input);
/* The groups of an input; *n is their number. */
const struct lora_group *lora_groups(const struct lora *l, enum lora_input input, int *n);
/* The sites of a group, whose outputs are among the columns of y; returns their number. */
int lora_sites(struct model *m, const struct lora *l, const struct lora_group *g, enum lora_input input,
               struct tensor y, struct lora_site_args site[LORA_SITES_MAX]);
/* The part of xa, an array of all groups of an input, that belongs to group g: [rows, rows of g's A]. */
struct tensor lora_xa(const struct model *m, const struct lora *l, const struct lora_group *g, enum lora_input input,
                      void *xa, int64_t rows);
/* How many elements xa has, for all groups of an input. */
int64_t lora_xa_elements(const struct lora *l, enum lora_input input, int64_t rows);
/* The gradients of a batch that is trained on. Each function does nothing where the batch's adapter has no LoRA at the
 * input, and gives no gradient of weights that are not trained.
 * lora_backward adds the gradient of B, given dy, the gradient at what the sites wrote side by side, and xa, which is
 * scale x A^T (NULL: B gets none). It writes dt = scale dy B, the gradient at x A^T, laid out as xa (NULL: it does
 * not). */
void lora_backward(struct model *m, int layer, enum lora_input input, struct tensor dy, void *xa, void *dt);
/* Adds the gradient of A, given dt. */
void lora_a_grad(struct model *m, int layer, enum lora_input input, struct tensor x, void *dt);
/* dx = dy W + dt A, W being the base's matrix. */
void lora_dx(struct model *m, int layer, enum lora_input input, struct tensor dx, struct tensor dy,
             const struct weight *w, void *dt);
/* lora_experts.c: the same in a mixture of experts. The rows of y, x, dy and dx lie by expert, as r says; `at` is
 * scratch. lora_experts_linear: y = x W^T of the base's matrices, and what LoRA adds. */
void lora_experts_linear(struct model *m, const struct lora_runs *l, int layer, enum lora_input input,
                         const struct routing *r, struct expert_places at, struct tensor y, struct tensor x,
                         const struct weight *w, void *xa);
void lora_experts_backward(struct model *m, int layer, enum lora_input input, const struct routing *r, struct tensor dy,
                           void *xa, void *dt);
void lora_experts_a_grad(struct model *m, int layer, enum lora_input input, const struct routing *r, struct tensor x,
                         void *dt);
void lora_experts_dx(struct model *m, int layer, enum lora_input input, const struct routing *r, struct tensor dx,
                     struct tensor dy, const struct weight *w, void *dt);
/* adapter.c */
struct adapter_spec {
    int rank;
    float alpha;
    const struct lora_site *at; /* as in struct adapter; NULL: every site has this rank and alpha */
    bool rslora, use[LORA_SITES];
};
/* Makes an adapter of zeros. It is not yet in the model's table; the caller owns it until adapter_add. */
enum status adapter_new(struct model *m, const struct adapter_spec *s, struct adapter **out, struct err *e) MUST_USE;
void adapter_free(struct model *m, struct adapter *ad);    /* NULL is fine */
void adapter_pack(struct model *m, struct adapter *ad);    /* and gives it a stamp */
int adapter_add(struct model *m, struct adapter *ad);      /* returns its index */
void adapter_put_own(struct model *m, struct adapter *ad); /* in the place of the one that is there; NULL: none */
void adapters_free(struct model *m);
/* The module that a site of a layer is; in a mixture of experts it is one that each of them has. */
enum arch_module adapter_module(const struct model_config *c, int site, int layer);
/* PEFT's name of a matrix of a site: what is "lora_A.weight" or "lora_B.weight". expert counts where there are any. */
void adapter_tensor(const struct model_config *c, int site, int layer, int64_t expert, const char *what,
                    struct str *out);
/* A tensor's name without the prefix that PEFT gives all names; NULL: it has not that prefix. */
const char *adapter_base_name(const char *tensor);
void adapter_outer_name(struct str *out); /* appends that prefix */
/* The rank of the first site in a mixture of experts; 0: it has none. */
int adapter_expert_rank(const struct model *m, const struct adapter *ad);
/* peft.c: what rank_pattern and alpha_pattern say of a module, into *s. */
enum status peft_site(const json_t *j, const char *module, struct lora_site *s, struct err *e) MUST_USE;
/* peft_experts.c: files in which a pair of tensors acts on all experts of a layer. */
/* True: f is such a file. */
bool fused_experts_in(const struct model *m, const struct st_file *f);
bool fused_experts_named(const struct model *m, const char *name); /* True: the tensor is one of such a pair. */
/* Adds the sites that the pairs act on to use, and their ranks and alphas to at; j is adapter_config.json, and `usual`
 * has its r and lora_alpha. */
enum status fused_experts_sites(const struct model *m, const struct st_file *f, const json_t *j, bool rslora,
                                const struct lora_site *usual, bool *use, struct lora_site *at, struct err *e) MUST_USE;
/* Reads all weights of an adapter whose sites these are. */
enum status fused_experts_read(struct model *m, const struct st_file *f, const struct adapter *ad,
                               struct err *e) MUST_USE;
/* True: such a file can hold this adapter to the last bit. */
bool fused_experts_fit(const struct model *m, const struct adapter *ad);
enum status fused_experts_write(const struct model *m, const struct adapter *ad, const char *const *metadata,
                                const char *path, struct err *e) MUST_USE;
/* Puts the ranks and alphas of experts into adapter_config.json where they are not those of all modules, under their
 * own names and under those of the pairs, which PEFT looks for where transformers holds all experts of a layer
 * together. */
void fused_experts_patterns(const struct model *m, const struct adapter *ad, bool fused, json_t *j);
void fused_experts_targets(const struct model *m, const struct adapter *ad, bool fused,
                           json_t *j); /* target_parameters */
/* The adapter of an index; NULL: there is none, and rows go through the base. */
struct adapter *adapter_of(const struct model *m, int index);
/* The same. ST_INVALID: there is no adapter of this index, or it is at rest. */
enum status adapter_awake(const struct model *m, int index, struct adapter **out, struct err *e) MUST_USE;
/* Notes that the pass that begins goes through an adapter. ST_INVALID: there is none of this index, or it is at rest.
 */
enum status adapter_use(const struct model *m, int index, struct err *e) MUST_USE;
/* 0 for the base. */
int32_t adapter_stamp(const struct model *m, int index);
/* Groups begin at multiples of so many elements. */
enum { LORA_ALIGN = 32 };
/* Elements for an xa of any input of any adapter. */
static inline int64_t xa_room(const struct model *m, int64_t rows) {
    return m->widest > 0 ? 3 * ((int64_t)m->widest * rows + LORA_ALIGN) : 0;
}
static inline bool has_head(const struct adapter *ad) { return ad && ad->use[MODULE_HEAD]; }

/* The rank of an adapter's part of the head; 0: it has none. */
static inline int64_t head_rank(const struct model *m, const struct adapter *ad) {
    return has_head(ad) ? ad->at[m->cfg.L * LORA_SITES + MODULE_HEAD].rank : 0;
}

/* Where the gradient of a weight of a lent base lies. */
float *lent_grad(const struct model *m, const float *w);
/* Where the gradient of a weight lies, of the base or of LoRA; NULL: the last batch does not train it. */
static inline float *grad_of(const struct model *m, const float *w) {
    if (!m->ts.full || !w) return NULL;
    return m->keep ? lent_grad(m, w) : m->g + (w - m->w);
}
static inline float *lora_grad_of(const struct model *m, const float *w) {
    const struct train_space *t = &m->ts;
    return t->backward && !t->full ? t->of->g + (w - t->of->w) : NULL;
}
/* True: the last batch trains the head, or an adapter's part of it. */
static inline bool head_trained(const struct model *m) { return m->ts.full || (m->ts.backward && has_head(m->ts.of)); }
/* Where the chunk of logits from wanted row i on goes. */
static inline float *logits_of(const struct train_space *w, int64_t i, int64_t V) {
    return w->logits + (w->keep_logits && !w->dl ? i * V : 0);
}
/* The embedding table: the head's matrix when tied. */
static inline const struct weight *model_table(const struct model *m) { return m->cfg.tied ? &m->head : &m->embed; }
static inline int64_t qkv_cols(const struct model_config *c) { return (int64_t)(c->H + 2 * c->G) * c->K; }

/* Hands out pieces of a slab, 64-byte aligned; with base NULL it only counts. */
struct carve {
    float *base;
    int64_t used;
};
static inline int64_t carve_size(int64_t n) { return (n + 15) & ~(int64_t)15; } /* what a piece of n floats takes */
static inline float *carve(struct carve *c, int64_t n) {
    float *p = c->base ? c->base + c->used : NULL;
    c->used += carve_size(n);
    return p;
}

/* n elements of the model's activation type. */
static inline void *carve_act(const struct model *m, struct carve *c, int64_t n) {
    return carve(c, m->act == DT_F32 ? n : (n + 1) / 2);
}
static inline struct tensor act_full(const struct model *m, void *p, int64_t rows, int64_t cols) {
    return tensor_of(p, m->act, rows, cols);
}

/* True: the gradient of the logits is made in bfloat16, in forward and without its factor g (train_space.dl). */
static inline bool head_in_16(const struct model *m) { return fused_logits_grad_type(m->be, m->act) == DT_BF16; }
/* The number of wanted rows in a run: rows that have their part of dl at the same time. A run of a base's head that is
 * trained has several chunks, because each run reads and writes the whole gradient of the head. */
static inline int64_t head_run(const struct model *m) { return m->ts.chunk * (m->ts.full && head_in_16(m) ? 4 : 1); }
/* dl of n wanted rows from row i on; they lie in one run. */
static inline struct tensor dl_of(const struct model *m, int64_t i, int64_t n) {
    const int64_t at = head_trained(m) && m->ts.keep_logits ? i : i % head_run(m);
    return act_full(m, (uint16_t *)m->ts.dl + at * m->cfg.V, n, m->cfg.V);
}

/* Columns of what rope writes: with bfloat16 the values, too. */
static inline int64_t qk_cols(const struct model *m) {
    const struct model_config *c = &m->cfg;
    return (int64_t)(c->H + (m->act == DT_F32 ? 1 : 2) * c->G) * c->K;
}

#endif
