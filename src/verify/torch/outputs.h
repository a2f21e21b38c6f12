/* outputs: whether the outputs of calls are right. They are read or copied as they were when the calls returned, then
 * compared with what the answer says of them, and judged by the referee. */
#ifndef KERNELRL_VERIFY_TORCH_OUTPUTS_H
#define KERNELRL_VERIFY_TORCH_OUTPUTS_H

#include "verify/torch/state.h"

/* Calls whose outputs are looked at together, at most. */
enum { CHECKED_CALLS = 8 };

/* Looks at the outputs of n of the calls just made. */
bool run_check_calls(struct torch_answer *r, const json_t *reply, const int *calls, int n, const int *slots,
                     int n_slots, const struct modset *sets, const char *where);
/* To be called after run_check_calls() has found something wrong. On a GPU the output may lie in another block by now
 * than in the one that was looked at, because the look went through a mapping of an earlier call (MEMORY_CACHED). True,
 * the first time that this may be so: the output is worth another look (MEMORY_CONFIRM), and the verdict is taken back.
 */
bool run_look_again(struct torch_answer *r);
/* The look that MEMORY_CONFIRM asks for is taken: MEMORY_REOPEN. Does nothing in other states. */
void run_note_confirmed(struct torch_answer *r);

#endif
