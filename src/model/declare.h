/* declare: the weights of the base, listed once. Blocks declare their matrices and vectors, and the tensors of a
 * checkpoint that are parts of them. All else walks the list: how many elements there are, where they lie in the slab,
 * what is packed, freed, read and written. Not for other rooms. */
#ifndef KERNELRL_MODEL_DECLARE_H
#define KERNELRL_MODEL_DECLARE_H

#include "model/internal.h"

/* A list under way. */
struct declared {
    struct model *m;
    int cap_stored, cap_param;
    bool in_layer; /* true: what is declared now belongs to a layer */
};

/* A matrix [N,K] or a vector of n numbers. Memory is laid out in the order of these calls, and the place is filled by
 * declared_lay_out; it must not move. A matrix that no product reads (multiplied false) is not packed. */
void declare_matrix(struct declared *d, struct weight *w, int64_t N, int64_t K, bool multiplied);
/* A matrix whose products are float32's in every model, and which is always held in float32: a router. */
void declare_exact(struct declared *d, struct weight *w, int64_t N, int64_t K);
void declare_vector(struct declared *d, float **v, int64_t n);
/* A tensor of a checkpoint: the weight of a module of a layer is the rows [row, row + rows) of w; or the tensor `what`
 * ("weight", "bias") is the numbers [first, first + n) of v. Checkpoints are written in the order of these calls. */
void declare_rows(struct declared *d, enum arch_module at, int layer, struct weight *w, int64_t row, int64_t rows);
/* The same for one of the modules that each expert has. */
void declare_expert_rows(struct declared *d, enum arch_module at, int layer, int64_t expert, struct weight *w,
                         int64_t row, int64_t rows);
void declare_part(struct declared *d, enum arch_module at, int layer, const char *what, float **v, int64_t first,
                  int64_t n);
/* The name of a module's weight, which lives with the model. */
const char *declared_name(struct model *m, enum arch_module at);

/* Elements of all matrices; and bytes of those that are not in the slab, once their formats are chosen. */
int64_t declared_matrix_elements(const struct model *m);
int64_t declared_held_bytes(const struct model *m);
/* Chooses the formats of all matrices: codes for those that f has in codes, or, where m->codes says so, for all of the
 * layers; else m->plain. Without f no matrix is in codes yet. decoded true: none
 * becomes so. ST_UNSUPPORTED names a tensor. */
enum status declared_choose(struct model *m, const struct st_file *f, bool decoded, struct err *e) MUST_USE;
/* Takes the slab, once the formats of the matrices are chosen, and fills in all places. */
enum status declared_lay_out(struct model *m, struct err *e) MUST_USE;
/* Lends the base out (TRAIN_FULL_LENT). ST_MEMORY: what is kept does not fit beside it. */
enum status declared_lend(struct model *m, struct err *e) MUST_USE;
/* Makes the packed copies that products read, of the matrices that have float32 values. */
void declared_pack(struct model *m);
void declared_free(struct model *m);

#endif
