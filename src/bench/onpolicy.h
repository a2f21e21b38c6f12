/* onpolicy: kernelrl selfcheck onpolicy, and the comparison it is made of. */
#ifndef KERNELRL_BENCH_ONPOLICY_H
#define KERNELRL_BENCH_ONPOLICY_H

#include "base/args.h"
#include "model/model.h"

/* Numbers compared as bit patterns. */
struct bits_tally {
    int64_t n, differ;
    double max_diff; /* largest |a - b| of those that differ; infinite where one is no number */
};
void bits_compare(struct bits_tally *t, const float *a, const float *b, int64_t n);

/* Makes the model's own adapter, of these parts (enum adapter_part), and prepares it for training. B is random as well
 * as A: with a B of zeros the adapter would do nothing, and half of its gradients would be zeros. */
enum status random_adapter(struct model *m, int rank, unsigned parts, uint64_t seed, struct err *e) MUST_USE;

/* argv[0] is "onpolicy". Exit code: 0 only when nothing differs. */
extern const struct args_command onpolicy_command;
int selfcheck_onpolicy(int argc, char **argv);

#endif
