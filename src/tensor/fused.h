/* fused: blocks of ops that some backends do at once. The model calls the block and never asks: where a backend has the
 * op for the operands' type it is used, else the generic form, which is written here once from the core ops. Both give
 * the bits that ops.h says. The optional ops of struct backend that have a block here are called here alone. */
#ifndef KERNELRL_TENSOR_FUSED_H
#define KERNELRL_TENSOR_FUSED_H

#include "tensor/experts.h"

/* y = z + x W^T; y may be z. */
void fused_linear_add(struct backend *be, struct tensor y, struct tensor x, const struct weight *w, struct tensor z);
/* y = swiglu(x W^T); gu, which has room for the product, is undefined afterwards. */
void fused_linear_swiglu(struct backend *be, struct tensor y, struct tensor gu, struct tensor x,
                         const struct weight *w);
/* y = swiglu(gather(x) W^T) of experts (tensor/experts.h); xp and gu, which have room for the gathered rows and for the
 * product, are undefined afterwards. */
void fused_expert_gates(struct backend *be, struct tensor y, struct tensor gu, struct tensor xp, struct tensor x,
                        const struct weight *w, const struct routing *r);
/* linear_lora of tensor/experts.h. */
void fused_expert_lora(struct backend *be, struct tensor y, struct tensor x, const struct weight *w,
                       const struct routing *r, struct tensor t, const struct lora_site_args *site, int n, bool back);
/* rope into qk, then kv_write of k and v, which are columns of qk or qkv. What of qk holds keys and values is undefined
 * afterwards. */
void fused_rope_kv(struct backend *be, struct tensor qk, struct tensor qkv, struct tensor k, struct tensor v,
                   const struct rope_args *a, const struct attn_seq *seq, int n_seq, struct attn_shape s);
/* y = swiglu(gu), and dgu is the gradient at gu for dy at y. y is neither dy nor a part of dgu. */
void fused_swiglu_both(struct backend *be, struct tensor dgu, struct tensor y, struct tensor dy, struct tensor gu);
/* y = rmsnorm(x); dx += the norm's gradient and dgain (may be NULL) += the gain's, for dy, which has the type that
 * fused_norm_dy gives. act is the type of activations. */
enum dtype fused_norm_dy(const struct backend *be, enum dtype act);
void fused_norm_back(struct backend *be, struct tensor dx, struct tensor y, struct tensor dy, struct tensor x,
                     const float *gain, float eps, float *dgain);

/* d logp / d logits times g, which is made where the logits are and in their type, or in an array beside them: dl is
 * that array where fused_logits_grad_type is bfloat16, and `logits` elsewhere. Logits are undefined afterwards. act is
 * the type of activations. */
enum dtype fused_logits_grad_type(const struct backend *be, enum dtype act);
void fused_logits_grad(struct backend *be, struct tensor dl, struct tensor logits, const int32_t *targets,
                       const float *g);

/* LoRA of sites that read the same x: t = scale x A^T, [T, n*R]; then each site's y += t_i B_i^T, t_i being columns
 * [i*R, (i+1)*R). fused_lora_splits: true where the first half may run beside the base's product with x. It is asked
 * for in front of that product then. */
bool fused_lora_splits(const struct backend *be, enum dtype act);
void fused_lora_down(struct backend *be, struct tensor t, struct tensor x, const struct weight *a, float scale);
void fused_lora_up(struct backend *be, struct tensor t, const struct lora_site_args *site, int n);
/* fused_lora_up of sites that lie in gu, then y = swiglu(gu). keep false: gu is undefined afterwards. */
void fused_lora_swiglu(struct backend *be, struct tensor y, struct tensor gu, struct tensor t,
                       const struct lora_site_args *site, int n, bool keep);
/* dt = scale dy B, the gradient at x A^T of a site. */
void fused_lora_dt(struct backend *be, struct tensor dt, struct tensor dy, const struct weight *b, float scale);

/* weight_pack of n weights of one type. */
void fused_weights_pack(struct backend *be, struct weight *const *w, int n);

#endif
