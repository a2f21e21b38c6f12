/* onpolicy: kernelrl selfcheck onpolicy, and the comparison it is made of. */
#ifndef KERNELRL_BENCH_ONPOLICY_H
#define KERNELRL_BENCH_ONPOLICY_H

#include "base/args.h"

/* Numbers compared as bit patterns. */
struct bits_tally {
    int64_t n, differ;
    double max_diff; /* largest |a - b| of those that differ; infinite where one is no number */
};
void bits_compare(struct bits_tally *t, const float *a, const float *b, int64_t n);

/* argv[0] is "onpolicy". Exit code: 0 only when nothing differs. */
extern const struct args_command onpolicy_command;
int selfcheck_onpolicy(int argc, char **argv);

#endif
