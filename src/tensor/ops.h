/* ops: what every backend computes, in words; backend.h holds the function table.
 *
 * Determinism classes. E: bits equal to the scalar C reference (src/cpu/naive.c, or KERNELRL_CPU=reference).
 * I: the bits of a row depend on that row's inputs alone, never on the rows around it or on the thread count.
 * T: within a stated error. Every op below is I; on the CPU all instruction sets also agree bit for bit (AMX aside, in
 * products with bf16 weights), because they follow one order of operations:
 *   - a dot product is a chain of f32 fused multiply-adds over ascending index, begun at 0, the bias or the old value;
 *   - a sum over a row is 16 strided partial sums (lane = index mod 16), folded 8+8, 4+4, 2+2, 1+1;
 *   - exp is the polynomial of exp_f32 below; log is libm's double log rounded once.
 * All values are float32, but for weights of DT_BF16. "overwrites" and "accumulates" say what happens to the output's
 * old contents. 0 rows are fine everywhere. Outputs may not alias inputs unless said so.
 *
 * bf16 products. With a weight of DT_BF16 both factors of linear, linear_dx and linear_dw (x and w, dy and w, dy and x)
 * are rounded to bfloat16, to nearest even, subnormals to zero; what is added up, and the result, is float32. Products
 * of two bfloat16 are exact in float32. In every addition below subnormal operands and results count as zero (of their
 * sign); a reduction over an odd number of elements ends with a product of zeros. With a_i b_i the terms by ascending
 * index and s the sum, begun as for float32:
 *   - pairs (avx512bf16, the order of vdpbf16ps: Intel SDM volume 2; avx512, avx2 and reference do the same with fused
 *     multiply-adds): for each pair (2i, 2i+1), the odd one first: s = fma(a_2i+1, b_2i+1, s), then
 *     s = fma(a_2i, b_2i, s);
 *   - tiles (amx, tdpbf16ps): for each 32 terms, with zeros behind the last one, two sums from 0:
 *     even = fma(a_2i, b_2i, even) and odd likewise, for i = 0..15; then s = s + (even + odd).
 * Both orders are E against ref_product_bf16 of src/cpu/naive.c (the bits of a NaN aside), and I; they differ from each
 * other in rounding. A machine uses one of them for all numbers of rows.
 *
 * bf16 activations. A backend whose `act` is DT_BF16 takes and gives, in models with bf16 weights, these in bfloat16,
 * rounded once to nearest even: the outputs of rmsnorm (h), rope (q, k, and v behind them), attention (o), swiglu, and
 * of the gate and up projection; and so are the gradients of attention's output, swiglu's, the gate and up projection
 * and the fused q, k, v projection. The residual stream, the q, k, v projection itself, logits and all other gradients
 * stay float32. Sums are float32 in an order of the device's own: every op is I there, and T against the CPU, within
 * 2^-8 of a row's scale where the result is bfloat16 and 2^-16 where it is float32.
 *
 * linear          y[t,n] = bias[n] + sum_k x[t,k] w[n,k]; accumulate: begins at y[t,n] instead (bias must be NULL).
 *                 y [T,N], x [T,K], w packed from [N,K]. E, I.
 * linear_dx       dx[t,k] = sum_n dy[t,n] w[n,k], n ascending; overwrites or accumulates. E, I.
 * linear_dw       dw[n,k] += sum_t dy[t,n] x[t,k], t ascending. dw [N,K] contiguous rows. E.
 * bias_grad       db[n] += sum_t dy[t,n], t ascending. E.
 * embed           x[t,:] = table[ids[t],:]: its float32 values where it has them, else those of bfloat16. E, I.
 * embed_grad      dtable[ids[t],:] += dx[t,:], t ascending. E.
 * rmsnorm         y[t,:] = x[t,:] * (1/sqrt(mean(x[t,:]^2) + eps)) * gain. (Zhang & Sennrich 2019.) E, I.
 * rmsnorm_grad    dx[t,:] (+)= gradient; dgain += sum over rows, in blocks of ROW_BLOCK rows whose partial sums are
 *                 added in ascending order (so equal for every thread count). dgain may be NULL. E.
 * rope            per head: optional QK-norm over K (gain q_gain/k_gain), then the half-split rotary embedding of
 *                 Hugging Face Qwen2/3 (Su et al. 2021): (a,b) at (j, j+K/2) -> (a cos - b sin, b cos + a sin).
 *                 Query heads are then multiplied by 1/sqrt(K), so attention needs no scale. Reads the fused projection
 *                 [T,(H+2G)K], writes [T,(H+G)K]; an output in bfloat16 has (H+2G)K columns, the values behind the
 *                 keys. E, I.
 * rope_grad       in: gradients with respect to rope's output, in the first (H+G)K columns of dqkv; replaced there by
 *                 gradients with respect to its input. Gain gradients accumulate as in rmsnorm_grad. E.
 * swiglu          y[t,f] = silu(gate[t,f]) * up[t,f]; gate and up are the halves of gu [T,2F]. (Shazeer 2020.) E, I.
 * kv_write        puts own keys and values of each sequence behind its past in the cache (layout below). E.
 * attention       softmax(q k^T) v per query head over the keys of its sequence (struct attn_seq). A score is a dot
 *                 product over d; then the maximum of the row's scores, exp(s - max), their sum l, sum_k p v over
 *                 ascending keys, times 1/l. stats [T,H,2] = (max, 1/l), for the gradient. E, I where v is finite: a
 *                 tile may multiply values that a row does not see by zero.
 * attention_grad: P recomputed from stats; dq overwritten; dk and dv accumulated over the users of a key in order of
 *                 (sequence, query row, head). E where q, k, v and d_o are finite, for the same reason, but
 *                 for the sign of zeros.
 * logprob         row-wise: logp = x[target] - logsumexp(x), entropy = -sum p log p, in nats. The row is taken in
 *                 chunks of LOGIT_CHUNK. With m_c a chunk's maximum (0 in the place of -infinity) and d = x - m_c, its
 *                 sums are s_c of exp(d) and w_c of fma(exp(d), d, .); with m the row's maximum and f = exp(m_c - m),
 *                 s = fma(f, s_c, s) and w = fma(f, fma(s_c, m_c - m, w_c), w) over ascending chunks, from 0. E, I.
 * logprob_grad    x[v] <- g * (onehot(target)[v] - softmax(x)[v]), in place. E, I.
 * gather_rows     y[i,:] = x[rows[i],:]. E, I.   scatter_add_rows: y[rows[i],:] += x[i,:], or with scale
 *                 scale[i] x[i,:], product and sum rounded each, i ascending. E.
 * axpby           y = a*x + b*y elementwise, y may alias x; b = 0 ignores old y, a = b = 0 fills with zero. E, I.
 * adamw           g' = g*scale; w' = w*decay; m += (1-beta1)(g'-m); v = v*beta2 + (1-beta2) g' g';
 *                 w = w' - step_size*m / (sqrt(v)*inv_sqrt_bias2 + eps), each operation rounded once, none fused. E.
 * sum_squares     in double: blocks of SUM_BLOCK elements summed ascending, SUM_BLOCK of their sums at a time summed
 *                 ascending, then those ascending. E. */
#ifndef KERNELRL_OPS_H
#define KERNELRL_OPS_H

#include "tensor/tensor.h"

/* How a token is drawn from a row of logits: with probability proportional to exp(x / temperature) among the ids that
 * are at least min_p times as probable as the most probable one; u in [0,1) decides, by the running sum over ascending
 * ids. Temperature 0 takes the largest, the lower id of equals. */
struct draw {
    float temperature, min_p;
    double u;
};

enum { ROW_BLOCK = 128, KV_BLOCK = 64, SUM_BLOCK = 1024, LOGIT_CHUNK = 4096 };

/* log p(target) of a row of V logits, and the entropy of its distribution (may be NULL), in nats at temperature 1. The
 * bits are those of model_forward's logp for the same logits, so a sampler that calls this records exactly what the
 * trainer computes. */
float logprob_row(const float *logits, int64_t V, int32_t target, float *entropy);
/* logp[i] is logprob_row of ids[i], for n ids of one row. */
void logprob_ids(const float *logits, int64_t V, const int32_t *ids, int n, float *logp);

/* exp(x) within 2 ulp: 0 below -87.3, clamped above 88.3, NaN stays NaN. Same bits on every CPU. x and y may alias. */
void exp_f32(float *y, const float *x, int64_t n);

/* Keys of one sequence as its query rows see them: `past` keys, then its own rows causally. Query row `row + i` sees
 * keys 0 .. past + i. */
struct attn_seq {
    int64_t row, len; /* own rows of q (and of k, v, o) */
    int64_t past;     /* keys in front of the own rows */
    int64_t past_row; /* training: the past keys are rows past_row .. past_row+past-1 */
    /* Sampling: past and own keys lie in the cache; key j is number j % KV_BLOCK of block blocks[j / KV_BLOCK]. A host
     * array with an entry for every begun block. NULL in training. */
    const int32_t *blocks;
};

/* Cache layout. A block holds KV_BLOCK keys of one sequence, in all layers. One layer's part of it: for each kv head
 * the keys, transposed [K][KV_BLOCK]; then for each kv head the values, row-major [KV_BLOCK][Kp], Kp = K rounded up to
 * 16 (padding zero). struct attn_shape says where a layer's part of block 0 begins and how far the blocks are apart. */
static inline int64_t kv_pad_dim(int64_t K) { return (K + 15) & ~(int64_t)15; }
static inline int64_t kv_layer_floats(int64_t G, int64_t K) { return G * KV_BLOCK * (K + kv_pad_dim(K)); }
/* The same in bfloat16, counted in floats, for K a multiple of 16: for each kv head the keys, row-major [KV_BLOCK][K];
 * then for each kv head the values, transposed [K][KV_BLOCK]. */
static inline int64_t kv_layer_floats_of(enum dtype dt, int64_t G, int64_t K) {
    return dt == DT_F32 ? kv_layer_floats(G, K) : G * KV_BLOCK * K;
}
/* Offsets of head g's keys and values in a layer's part of a block. */
static inline int64_t kv_keys_at(int64_t g, int64_t K) { return g * K * KV_BLOCK; }
static inline int64_t kv_values_at(int64_t g, int64_t G, int64_t K) {
    return G * K * KV_BLOCK + g * KV_BLOCK * kv_pad_dim(K);
}

#endif
