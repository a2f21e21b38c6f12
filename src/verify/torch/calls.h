/* calls: calls of the module in the answer's process. */
#ifndef KERNELRL_VERIFY_TORCH_CALLS_H
#define KERNELRL_VERIFY_TORCH_CALLS_H

#include "verify/torch/state.h"

/* Calls of one request, at most. */
enum { MAX_CALLS = 128 };

/* Has tensor objects made for n slots: on one side, or on both at the same time. */
bool run_ready(struct torch_answer *r, const int *slots, int n, const char *where);
bool run_ready_both(struct torch_answer *a, struct torch_answer *b, const int *slots, int n, const char *where);
/* Fills the memory that the allocator will hand out next with this byte, so that memory that nobody has written does
 * not pass for an output. */
bool run_poison(struct torch_answer *r, int byte);
/* Calls the module on n slots, which hold these sets. The reply lists output addresses per call (caller json_decref's
 * *reply). The process stands still afterwards. */
bool run_call(struct torch_answer *r, const int *slots, int n, const struct modset *sets, double timeout_s,
              const char *where, json_t **reply, int64_t *ns);
/* What the reply to calls says of output k of call i: [address, elements from its first to behind its last one]. The
 * second number is 0 where the output is dense. */
const json_t *run_place(const json_t *reply, int i, int k);
/* Address of output k of call i; 0 when it is no plain tensor. */
uint64_t run_pointer(const json_t *reply, int i, int k);

#endif
