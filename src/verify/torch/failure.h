/* failure: what went wrong with an answer's process, as a verdict. */
#ifndef KERNELRL_VERIFY_TORCH_FAILURE_H
#define KERNELRL_VERIFY_TORCH_FAILURE_H

#include "verify/torch/state.h"

/* Sets the verdict to outcome o, with "WHERE: WHAT" as its message. Always false. */
bool run_reject(struct torch_answer *r, const char *where, enum outcome o, const char *what);
/* Our own trouble, as this process has seen it. Ends the answer's process and sets the verdict. Always false. */
bool run_trouble(struct torch_answer *r, const char *what);
/* The answer's process has gone, or is taken away here: turns the result of the request into a verdict. waited_s: how
 * long its reply was waited for. */
void run_lost(struct torch_answer *r, enum modrun_result result, const char *where, double waited_s);
/* The answer's process replies that it has failed: turns the reply into a verdict. Such a process has run an answer's
 * code and may say anything, so a reply alone never makes a failure our trouble. */
void run_failed(struct torch_answer *r, const json_t *reply, const char *where);
/* What came of a request. Returns true where the process has done it, else false with the verdict set, and *reply freed
 * and NULL. */
bool run_conclude(struct torch_answer *r, enum modrun_result result, double timeout_s, const char *where,
                  json_t **reply);

#endif
