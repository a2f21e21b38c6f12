/* The oracle of the CPU tests: naive scalar loops that share no code with the kernels. Products follow the contract's
 * order with fmaf, so the kernels must have their bits. The rest is computed in double, and the kernels must come
 * within a stated error. */
#ifndef KERNELRL_CPU_NAIVE_H
#define KERNELRL_CPU_NAIVE_H

#include "tensor/ops.h"

void ref_linear(float *y, int64_t ldy, const float *x, int64_t ldx, const float *w, const float *bias, bool accumulate,
                int64_t M, int64_t N, int64_t K);
void ref_linear_dx(float *dx, int64_t lddx, const float *dy, int64_t lddy, const float *w, bool accumulate, int64_t M,
                   int64_t N, int64_t K);
void ref_linear_dw(float *dw, const float *dy, int64_t lddy, const float *x, int64_t ldx, int64_t M, int64_t N,
                   int64_t K);
/* c[m,n] = init + sum_k a[m*a_m + k*a_k] b[n*b_n + k*b_k] with bf16 operands. init is bias[n] (NULL: 0) or the old c.
 * tiles: in the order of AMX, else in that of pairs; tensor/ops.h has both. */
void ref_product_bf16(float *c, int64_t ldc, const float *a, int64_t a_m, int64_t a_k, const float *b, int64_t b_n,
                      int64_t b_k, const float *bias, bool accumulate, int64_t M, int64_t N, int64_t K, bool tiles);
float ref_bf16(float x); /* Rounds to bf16. The result is a float. */
void ref_rmsnorm(double *y, const float *x, const float *gain, double eps, int64_t n);
/* Computes dx (overwritten) and dgain (accumulated) of one row. */
void ref_rmsnorm_grad(double *dx, double *dgain, const float *dy, const float *x, const float *gain, double eps,
                      int64_t n);
/* Computes one query against n keys of dimension K: p [n] = softmax, and o [K]. */
void ref_attention_row(double *o, double *p, const float *q, const float *const *k, const float *const *v, int64_t n,
                       int64_t K);
void ref_logprob(double *logp, double *entropy, const float *x, int64_t V, int32_t target);

#endif
