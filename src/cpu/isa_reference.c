/* The kernels in plain C, one lane at a time. They run on any machine, and have the bits that the others must
 * reproduce. */
#define KERNELS cpu_kernels_reference
#define BF16_PAIRS cpu_pairs_reference
#define KERNELS_NAME "reference"
#include "cpu/kernels_body.h"
