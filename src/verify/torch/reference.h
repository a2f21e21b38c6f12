/* reference: the process that runs eager calls of the problem's own module, for comparison of times. */
#ifndef KERNELRL_VERIFY_TORCH_REFERENCE_H
#define KERNELRL_VERIFY_TORCH_REFERENCE_H

#include "verify/torch/state.h"

/* Brings the reference of the answer's problem up in *ref, or takes the one that runs. The answer stands still
 * meanwhile. False: *st and *e say why not. */
bool reference_up(struct torch_answer *answer, struct torch_answer *ref, struct err *e, enum status *st);
/* Ends the process that runs the reference. */
void reference_drop(struct module_judge *j);

#endif
