/* optimize: `kernelrl optimize`, from a module to a faster one with its proof. */
#ifndef KERNELRL_OPTIMIZE_OPTIMIZE_H
#define KERNELRL_OPTIMIZE_OPTIMIZE_H

#include "optimize/options.h"

struct optimized {
    int problems, solved, faster;
    char last_line[600]; /* what was found, in one line */
};
/* Works on the file FILE (a module), or on the problems that the configuration names where FILE is NULL, and writes
 * o->output_path. ST_CANCELLED leaves what the same call goes on from. */
enum status optimize_run(const struct config *c, struct optimize_options *o, const char *file,
                         const volatile bool *cancel, struct optimized *out, struct err *e) MUST_USE;

#endif
