#include "cpu/naive.h"

#include <math.h>

void ref_linear(float *y, int64_t ldy, const float *x, int64_t ldx, const float *w, const float *bias, bool accumulate,
                int64_t M, int64_t N, int64_t K) {
    for (int64_t m = 0; m < M; m++)
        for (int64_t n = 0; n < N; n++) {
            float s = accumulate ? y[m * ldy + n] : bias ? bias[n] : 0.0f;
            for (int64_t k = 0; k < K; k++) s = fmaf(x[m * ldx + k], w[n * K + k], s);
            y[m * ldy + n] = s;
        }
}

void ref_linear_dx(float *dx, int64_t lddx, const float *dy, int64_t lddy, const float *w, bool accumulate, int64_t M,
                   int64_t N, int64_t K) {
    for (int64_t m = 0; m < M; m++)
        for (int64_t k = 0; k < K; k++) {
            float s = accumulate ? dx[m * lddx + k] : 0.0f;
            for (int64_t n = 0; n < N; n++) s = fmaf(dy[m * lddy + n], w[n * K + k], s);
            dx[m * lddx + k] = s;
        }
}

void ref_linear_dw(float *dw, const float *dy, int64_t lddy, const float *x, int64_t ldx, int64_t M, int64_t N,
                   int64_t K) {
    for (int64_t n = 0; n < N; n++)
        for (int64_t k = 0; k < K; k++)
            for (int64_t m = 0; m < M; m++) dw[n * K + k] = fmaf(dy[m * lddy + n], x[m * ldx + k], dw[n * K + k]);
}

static float flushed(float x) { return fpclassify(x) == FP_SUBNORMAL ? copysignf(0.0f, x) : x; }

float ref_bf16(float x) {
    if (isnan(x) || isinf(x) || x == 0) return x;
    int e;
    /* x = f 2^e with 1/2 <= |f| < 1. Eight bits of f stay. */
    const double f = frexp((double)x, &e);
    if (e <= -126) return copysignf(0.0f, x);
    return (float)ldexp(nearbyint(ldexp(f, 8)), e - 8);
}

static float fma_flushed(float a, float b, float c) { return flushed(fmaf(ref_bf16(a), ref_bf16(b), flushed(c))); }

void ref_product_bf16(float *c, int64_t ldc, const float *a, int64_t a_m, int64_t a_k, const float *b, int64_t b_n,
                      int64_t b_k, const float *bias, bool accumulate, int64_t M, int64_t N, int64_t K, bool tiles) {
    for (int64_t m = 0; m < M; m++)
        for (int64_t n = 0; n < N; n++) {
            float s = accumulate ? c[m * ldc + n] : bias ? bias[n] : 0.0f;
            const int64_t step = tiles ? 32 : 2;
            for (int64_t k0 = 0; k0 < K; k0 += step) {
                float x[32] = {0}, w[32] = {0}; /* They are zeros where the reduction has ended. */
                for (int64_t k = k0; k < K && k < k0 + step; k++) {
                    x[k - k0] = a[m * a_m + k * a_k];
                    w[k - k0] = b[n * b_n + k * b_k];
                }
                if (tiles) {
                    float even = 0, odd = 0;
                    for (int i = 0; i < 32; i += 2) {
                        even = fma_flushed(x[i], w[i], even);
                        odd = fma_flushed(x[i + 1], w[i + 1], odd);
                    }
                    s = flushed(flushed(s) + flushed(even + odd));
                } else {
                    s = fma_flushed(x[0], w[0], fma_flushed(x[1], w[1], s));
                }
            }
            c[m * ldc + n] = s;
        }
}

static double rstd(const float *x, double eps, int64_t n) {
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += (double)x[i] * (double)x[i];
    return 1.0 / sqrt(s / (double)n + eps);
}

void ref_rmsnorm(double *y, const float *x, const float *gain, double eps, int64_t n) {
    const double r = rstd(x, eps, n);
    for (int64_t i = 0; i < n; i++) y[i] = (double)x[i] * r * (double)gain[i];
}

/* From the definition: dy_i/dx_j = gain_i (r delta_ij - x_i x_j r^3 / n). */
void ref_rmsnorm_grad(double *dx, double *dgain, const float *dy, const float *x, const float *gain, double eps,
                      int64_t n) {
    const double r = rstd(x, eps, n);
    for (int64_t j = 0; j < n; j++) {
        dx[j] = 0;
        for (int64_t i = 0; i < n; i++)
            dx[j] += (double)dy[i] * (double)gain[i] *
                     ((i == j ? r : 0.0) - (double)x[i] * (double)x[j] * r * r * r / (double)n);
        dgain[j] += (double)dy[j] * (double)x[j] * r;
    }
}

void ref_attention_row(double *o, double *p, const float *q, const float *const *k, const float *const *v, int64_t n,
                       int64_t K) {
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++) {
        p[j] = 0;
        for (int64_t d = 0; d < K; d++) p[j] += (double)q[d] * (double)k[j][d];
        max = fmax(max, p[j]);
    }
    for (int64_t j = 0; j < n; j++) sum += p[j] = exp(p[j] - max);
    for (int64_t d = 0; d < K; d++) o[d] = 0;
    for (int64_t j = 0; j < n; j++) {
        p[j] /= sum;
        for (int64_t d = 0; d < K; d++) o[d] += p[j] * (double)v[j][d];
    }
}

void ref_logprob(double *logp, double *entropy, const float *x, int64_t V, int32_t target) {
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < V; i++) max = fmax(max, (double)x[i]);
    for (int64_t i = 0; i < V; i++) sum += exp((double)x[i] - max);
    *logp = (double)x[target] - max - log(sum);
    *entropy = 0;
    for (int64_t i = 0; i < V; i++) {
        const double lp = (double)x[i] - max - log(sum);
        if (lp > -700) *entropy -= exp(lp) * lp;
    }
}
