/* AdamW (1711.05101) in PyTorch's form: decoupled weight decay, bias correction, epsilon outside the square root. The
 * arithmetic is the backend's op adamw; this file owns the moments, the schedule of bias correction and the state's
 * file. */
#ifndef KERNELRL_ADAMW_H
#define KERNELRL_ADAMW_H

#include "base/err.h"
#include "model/model.h"

struct adamw_config {
    double learning_rate, beta1, beta2, eps, weight_decay;
};
/* How the moments of all parts meet in one file. Kind 0: first moments, 1: second ones. */
struct adamw_parts {
    void *ctx;
    /* In front of the first get or put. These come for each parameter in order, kind 0 in front of kind 1. end: behind
     * the last of them, also where an error has cut them short. */
    enum status (*begin)(void *ctx, bool reading, struct err *e);
    /* The whole array of parameter i becomes that of all parts; or all parts get theirs of it. host: its n floats. */
    enum status (*get)(void *ctx, int i, int kind, float *host, struct err *e);
    enum status (*put)(void *ctx, int i, int kind, float *host, struct err *e);
    enum status (*end)(void *ctx, struct err *e);
};
struct adamw {
    struct backend *be; /* borrowed */
    float *slab;        /* all moments, in the backend's memory */
    float **m, **v;     /* first and second moments, one array per parameter: views into slab; NULL for a part */
    int *order;         /* numbers of the parameters as their addresses ascend */
    int n_params;
    int64_t step; /* updates done */
    /* Of a part (adamw_create_part): its float32 weights, and moments, [part_n] each: views into slab. */
    float *part_w, *part_m, *part_v;
    int64_t part_at, part_n;
    const float *part_g; /* the slab of gradients, in which it begins at part_at */
    struct adamw_parts parts;
};
/* Moments at zero for the parameters of model_params(), which lie in the memory of be. ST_MEMORY when the moments do
 * not fit beside them. */
enum status adamw_create(struct backend *be, const struct param *p, int n_params, struct adamw **out,
                         struct err *e) MUST_USE;
/* The same for a part of the parameters: those elements whose gradients are floats [at, at + n) of the slab g. It also
 * has float32 weights of its own, which its steps change in the place of the parameters' w; zeros at first,
 * and always in gaps between parameters. parts: how the parts meet, for adamw_save and adamw_load. */
enum status adamw_create_part(struct backend *be, int n_params, const float *g, int64_t at, int64_t n,
                              const struct adamw_parts *parts, struct adamw **out, struct err *e) MUST_USE;
void adamw_free(struct adamw *a); /* NULL is fine */
/* How many elements of a parameter have their gradients in floats [at, at + n) of the slab g: those from *from on. */
int64_t adamw_overlap(const struct param *p, const float *g, int64_t at, int64_t n, int64_t *from);
/* What of a parameter a part has: elements [*from, *from + *n) of it, whose moments of this kind lie there. */
float *adamw_part(const struct adamw *a, const struct param *p, int kind, int64_t *from, int64_t *n);

/* One update with the gradients p[i].g * grad_scale (clipping is a scale < 1). Parameters of one dimension (norms,
 * biases) are not decayed unless decay_all. Queued: device errors surface at the next sync. The caller calls
 * model_params_changed. */
void adamw_step(struct adamw *a, const struct param *p, int n_params, const struct adamw_config *c, double grad_scale,
                bool decay_all);

/* State as safetensors: tensors "m.NAME", "v.NAME" and metadata "step". Loading checks names and sizes. */
enum status adamw_save(const struct adamw *a, const struct param *p, const char *path, struct err *e) MUST_USE;
enum status adamw_load(struct adamw *a, const struct param *p, int n_params, const char *path, struct err *e) MUST_USE;

#endif
