/* racing: which answers are timed again. A first measurement is short, and the best of many short ones is mostly luck;
 * a second one is spent where it may change who is best. Successive halving (Karnin et al. 2013) on intervals: of those
 * whose interval reaches that of the leader, the better half is measured again, until the leader stands alone or all of
 * them have been measured as often as is useful. */
#ifndef KERNELRL_OPTIMIZE_RACING_H
#define KERNELRL_OPTIMIZE_RACING_H

#include "optimize/population.h"

enum { RACE_MEASUREMENTS = 4, RACE_MOST = 8 };
/* Whom to measure next, the best first: indices into p->c; returns their number, RACE_MOST at most, 0 when the race is
 * decided. */
int race_next(const struct population *p, int *out);

#endif
