/* judge: one loaded answer's way to its verdict: trials of correctness, whose kernels run, times. */
#ifndef KERNELRL_VERIFY_TORCH_JUDGE_H
#define KERNELRL_VERIFY_TORCH_JUDGE_H

#include "verify/torch/state.h"

/* With a loaded answer: trials and timing. The verdict is there afterwards. */
void run_judge(struct torch_answer *r);

#endif
