/* process: the life of an answer's process: from a spare or a fork to its end. */
#ifndef KERNELRL_VERIFY_TORCH_PROCESS_H
#define KERNELRL_VERIFY_TORCH_PROCESS_H

#include "verify/torch/state.h"

/* A fresh jailed process for r: a spare one where r may take it, else a new one. */
enum status run_fork(struct torch_answer *r, struct err *e) MUST_USE;
/* Ends the answer's process, if it runs. */
void run_end(struct torch_answer *r);
/* The same, but on a GPU the referee first closes what it has opened of the answer's memory. run_finish() frees the
 * rest of r. */
void run_retire(struct torch_answer *r);
/* Ends what is left of the answer; all that is in r but the verdict. */
void run_finish(struct torch_answer *r);

#endif
