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
struct adamw {
    struct backend *be; /* borrowed */
    float *slab;        /* all moments, in the backend's memory */
    float **m, **v;     /* first and second moments, one array per parameter: views into slab */
    int *order;         /* numbers of the parameters as their addresses ascend */
    int n_params;
    int64_t step; /* updates done */
};
/* Moments at zero for the parameters of model_params(), which lie in the memory of be. ST_MEMORY when the moments do
 * not fit beside them. */
enum status adamw_create(struct backend *be, const struct param *p, int n_params, struct adamw **out,
                         struct err *e) MUST_USE;
void adamw_free(struct adamw *a); /* NULL is fine */

/* One update with the gradients p[i].g * grad_scale (clipping is a scale < 1). Parameters of one dimension (norms,
 * biases) are not decayed unless decay_all. Queued: device errors surface at the next sync. The caller calls
 * model_params_changed. */
void adamw_step(struct adamw *a, const struct param *p, int n_params, const struct adamw_config *c, double grad_scale,
                bool decay_all);

/* State as safetensors: tensors "m.NAME", "v.NAME" and metadata "step". Loading checks names and sizes. */
enum status adamw_save(const struct adamw *a, const struct param *p, const char *path, struct err *e) MUST_USE;
enum status adamw_load(struct adamw *a, const struct param *p, int n_params, const char *path, struct err *e) MUST_USE;

#endif
