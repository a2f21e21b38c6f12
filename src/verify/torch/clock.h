/* clock: times a correct answer against the reference, in turns, on our clock. */
#ifndef KERNELRL_VERIFY_TORCH_CLOCK_H
#define KERNELRL_VERIFY_TORCH_CLOCK_H

#include "verify/torch/state.h"

/* Times a correct answer against the reference, with the machine to itself. The ratio, or another outcome, goes into
 * the verdict. A ratio that is hard to believe is measured again in a fresh process before it counts. */
void module_measure(struct torch_answer *r);

#endif
