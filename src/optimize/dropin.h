/* dropin: the best answer as files: best.c, .cu or .py, as it was judged, and best.py, a Python module whose
 * patch(model) lets it compute a model's modules (worker/dropin). */
#ifndef KERNELRL_OPTIMIZE_DROPIN_H
#define KERNELRL_OPTIMIZE_DROPIN_H

#include "optimize/task.h"

/* Writes the files of a task into DIR. device: what it was timed on. v: who knows the prototypes; may be NULL with a
 * backend of modules. summary: a line on top of best.py. */
enum status dropin_write(const char *dir, const struct search_task *t, const struct search_candidate *best,
                         const struct backend_info *backend, const char *device, struct verifier *v,
                         const char *summary, struct err *e) MUST_USE;
/* The name of the file with the answer as it was judged: "best.c". Of a backend of modules that is "best_answer.py". */
const char *dropin_answer_name(const struct backend_info *backend);

#endif
