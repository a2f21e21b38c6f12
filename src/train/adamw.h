/* AdamW (1711.05101) in PyTorch's form: decoupled weight decay, bias correction, epsilon outside the square root. */
#ifndef KERNELRL_ADAMW_H
#define KERNELRL_ADAMW_H

#include "base/err.h"
#include "model/model.h"

struct adamw_config {
    double learning_rate, beta1, beta2, eps, weight_decay;
};
struct adamw {
    float **m, **v; /* first and second moments, one array per parameter */
    int n_params;
    int64_t step; /* updates done */
};
/* Moments at zero for the parameters of model_params(). */
struct adamw *adamw_create(const struct param *p, int n_params);
void adamw_free(struct adamw *a); /* NULL is fine */

/* L2 norm of all gradients; sums in double in a fixed order. */
double adamw_grad_norm(const struct param *p, int n_params);
/* One update with the gradients p[i].g * grad_scale (clipping is a scale < 1). Parameters of one dimension (norms,
 * biases) are not decayed unless decay_all. The caller calls model_params_changed. pool may be NULL. */
void adamw_step(struct adamw *a, const struct param *p, int n_params, const struct adamw_config *c, double grad_scale,
                bool decay_all, struct pool *pool);

/* State as safetensors: tensors "m.NAME", "v.NAME" and metadata "step". Loading checks names and sizes. */
enum status adamw_save(const struct adamw *a, const struct param *p, const char *path, struct err *e) MUST_USE;
enum status adamw_load(struct adamw *a, const struct param *p, int n_params, const char *path, struct err *e) MUST_USE;

#endif
