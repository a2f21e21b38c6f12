/* open: starts and closes what judging stands on: the warm Python, the referee, spare processes, compilers. */
#ifndef KERNELRL_VERIFY_TORCH_OPEN_H
#define KERNELRL_VERIFY_TORCH_OPEN_H

#include "verify/torch/state.h"

/* Starts the warm Python and the referee. o, jail and compiler must outlive it. */
enum status module_open(struct module_judge *j, const struct verify_options *o, struct jail *jail,
                        struct compiler *compiler, struct err *e) MUST_USE;
void module_close(struct module_judge *j);

#endif
