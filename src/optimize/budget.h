/* budget: how long a search may go on, in seconds, in verdicts, or both. */
#ifndef KERNELRL_OPTIMIZE_BUDGET_H
#define KERNELRL_OPTIMIZE_BUDGET_H

#include "base/err.h"

/* "90", "90s", "30m", "2h", "1h30m": seconds. ST_CONFIG, the message beginning with "budget". */
enum status budget_seconds(const char *text, double *out, struct err *e) MUST_USE;

/* A flag that turns true when *cancel does, or when so many seconds have passed: for who polls a flag. */
struct time_limit;
enum status time_limit_start(const volatile bool *cancel, double seconds, struct time_limit **out,
                             struct err *e) MUST_USE; /* cancel may be NULL */
const volatile bool *time_limit_flag(const struct time_limit *d);
/* Whether the time was what turned the flag. */
bool time_limit_passed(const struct time_limit *d);
void time_limit_end(struct time_limit *d); /* NULL is fine */

#endif
