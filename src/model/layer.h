/* layer: what a layer is made of. A layer is a list of blocks. Each block reads the residual stream and adds to it:
 * attention, then the feed-forward part. A block is a row of functions, and the rest of model/ asks the row: which
 * weights it has, what it keeps of a forward pass, how it computes, and which sites of LoRA it has.
 * A new kind of block, as a mixture of experts, is a file layer_X.c with such a row, its weights in struct layer, its
 * buffers in struct layer_acts, struct pass and struct train_space, and a place in layer_blocks. Not for other rooms.
 */
#ifndef KERNELRL_MODEL_LAYER_H
#define KERNELRL_MODEL_LAYER_H

#include "model/internal.h"

struct declared; /* declare.h */

/* An array of activations that backward reads, for messages about numbers that are not finite. */
struct kept_array {
    const void *x;
    enum dtype dt;
    int64_t cols;     /* of T rows */
    const char *name; /* "queries, keys and values" */
};
enum { KEPT_MAX = 4 };

struct layer_block {
    /* Declares the weights of layer i, in the order in which checkpoints name them. */
    void (*declare)(struct declared *d, int i);
    /* Takes out of s what backward needs of T rows of a layer, its input aside. This, with an s that only counts, is
     * how many bytes the block's activations are. trained: a backward pass will follow. */
    void (*keep)(const struct model *m, struct carve *s, int64_t T, bool trained, struct layer_acts *a);
    /* Take out of s the scratch of a forward pass over T rows, and of a backward pass. All layers use the same. */
    void (*scratch)(const struct model *m, struct carve *s, int64_t T, struct pass *p);
    void (*scratch_back)(const struct model *m, struct carve *s, int64_t T, struct train_space *w);
    /* out = x + block(x) in layer i. In sampling out is x itself. out NULL: only what `keep` took is computed, which is
     * all that backward asks for. */
    void (*forward)(struct model *m, int i, struct pass *p, const struct layer_acts *a, float *x, float *out);
    /* dx, the gradient of out, becomes that of x, and gradients are added to those of the weights that are trained. x
     * and a are what forward had and left, over the T rows of m->ts. */
    void (*backward)(struct model *m, int i, const struct layer_acts *a, const float *x, struct tensor dx);
    /* Lists what forward left in a, in the order in which it was made; returns how many there are. */
    int (*kept)(const struct model *m, const struct layer_acts *a, struct kept_array list[KEPT_MAX]);
    /* Its sites of LoRA are [first_site, end_site). site_dims: the columns that a site reads, and writes. */
    enum arch_module first_site, end_site;
    void (*site_dims)(const struct model_config *c, enum arch_module site, int64_t *in, int64_t *out);
};

extern const struct layer_block attention_block, ffn_block, moe_block;

/* The blocks of layer i, LAYER_BLOCKS of them, in the order in which they act. */
const struct layer_block *const *layer_blocks(const struct model_config *c, int i);
/* The kinds of blocks that any layer has, each once; *n is their number. */
const struct layer_block *const *layer_kinds(const struct model_config *c, int *n);

enum { LAYER_ANY = -1, LAYER_KINDS_MAX = 3 };

/* ---- a whole layer ------------------------------------------------------------------------------------------------*/

void layer_declare(struct declared *d, int i);
/* Calls keep for all blocks of layer i; with LAYER_ANY, takes room that serves any layer. x NULL (training): each
 * block behind the first gets an array of its own for what it reads. Else (sampling) all blocks read x, the residual
 * stream, and add to it in place. */
void layer_keep(const struct model *m, struct carve *s, int i, int64_t T, float *x, struct layer_acts *a);
/* Call scratch and scratch_back of every kind of block. */
void layer_scratch(const struct model *m, struct carve *s, int64_t T, struct pass *p);
void layer_scratch_back(const struct model *m, struct carve *s, int64_t T, struct train_space *w);
/* out NULL: only what backward needs is computed. */
void layer_forward(struct model *m, int i, struct pass *p, const struct layer_acts *a, float *out);
void layer_backward(struct model *m, int i, const struct layer_acts *a, struct tensor dx);

/* ---- what blocks share ------------------------------------------------------------------------------------------- */

/* Where a pass puts scale * x A^T of an input of LoRA: into memory that is kept with the layer, or into scratch. */
static inline void *xa_of(const struct pass *p, const struct layer_acts *a, enum lora_input input) {
    return a->xa[input] ? a->xa[input] : p->xa;
}
/* y = z + x W^T with LoRA of the input; in sampling y is z. */
void layer_add_product(struct model *m, int i, struct pass *p, const struct layer_acts *a, enum lora_input input,
                       struct tensor y, struct tensor x, const struct weight *w, struct tensor z);
/* The gradient at what a block's norm gives, in the type that layer_norm_backward takes. */
struct tensor layer_dh(const struct model *m);
/* h = norm(x) once more, for the gradients of what read it; dx += the norm's gradient, dh being that of h. */
void layer_norm_backward(struct model *m, struct tensor dx, struct tensor h, struct tensor dh, struct tensor x,
                         const float *gain);
/* dW += dy^T x where the base is trained. */
void layer_dw(struct model *m, const struct weight *w, struct tensor dy, struct tensor x);

#endif
