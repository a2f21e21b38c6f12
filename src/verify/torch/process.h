/* process: the life of an answer's process: from a spare or a fork to its end. */
#ifndef KERNELRL_VERIFY_TORCH_PROCESS_H
#define KERNELRL_VERIFY_TORCH_PROCESS_H

#include "verify/torch/state.h"

/* Gives r a jailed process that has run nothing of an answer's: a spare one where r may take it and there is one, else
 * a new one. */
enum status run_fork(struct torch_answer *r, struct err *e) MUST_USE;
/* Ends the answer's process, if it runs. */
void run_end(struct torch_answer *r);
/* The same, but on a GPU the referee first closes what it has opened of the answer's memory. run_finish() frees the
 * rest of r. */
void run_retire(struct torch_answer *r);
/* Ends the answer's process, and frees all that is in r but the verdict. */
void run_finish(struct torch_answer *r);

#endif
