/* gpu: what is checked of answers on a GPU alone: that the device rests before their turn, and whose kernels run. */
#ifndef KERNELRL_VERIFY_TORCH_GPU_H
#define KERNELRL_VERIFY_TORCH_GPU_H

#include "verify/torch/state.h"

/* Before a timed call: an answer that stands still has not worked on inputs that it is only now told to look at,
 * neither by the device's own queues nor through processes of its own. */
bool run_has_waited(struct torch_answer *r);
/* Records what the calls between record(on) and record(off) run: one request. *reply of the latter (NULL for the
 * former), which the caller json_decref's: "kernels": [[name, how often, ns], ...], "elsewhere": whether any work was
 * on another stream than the current one. */
bool run_record(struct torch_answer *r, bool on, json_t **reply);
/* Looks at what share of the device time of such a request was spent in kernels from the answer's own source. None, or
 * next to none, means that the answer has handed its work to somebody else, and false is returned. If there was work on
 * other streams, each call of the answer is waited for from now on. */
bool run_account(struct torch_answer *r, const json_t *recorded);

#endif
