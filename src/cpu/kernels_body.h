/* All kernels of one instruction set. Each isa_*.c includes this file once. Before, it defines KERNELS (the table's
 * name), KERNELS_NAME and BF16_PAIRS (the table for bf16 operands), and sets the compiler's target. */
#include <math.h>
#include <string.h>

#include "cpu/coded.h"
#include "cpu/experts.h"
#include "cpu/vec16.h"

#include "cpu/coded_body.h"

#include "cpu/gemm_body.h"

#include "cpu/bf16_pairs_body.h"

#include "cpu/rows_body.h"

#include "cpu/attention_body.h"

#include "cpu/experts_body.h"

const struct cpu_kernels KERNELS = {
    .name = KERNELS_NAME,
    .gemm = gemm_items,
    .pack = pack_panels,
    .rmsnorm = rmsnorm_rows,
    .rmsnorm_grad = rmsnorm_grad_blocks,
    .rope = rope_rows,
    .rope_grad = rope_grad_blocks,
    .swiglu = swiglu_rows,
    .swiglu_grad = swiglu_grad_rows,
    .attention = attention_bins,
    .attention_grad = attention_grad_bins,
    .logprob = logprob_rows,
    .logprob_grad = logprob_grad_rows,
    .logprob_row = logprob_row_isa,
    .logprob_ids = logprob_ids_isa,
    .exp_f32 = exp_f32_isa,
    .combine = combine_rows,
    .dot = dot_rows,
    .softmax_row = softmax_row,
};
