/* spent: where the seconds of verdicts go, by who was asked and for what. There is one account for the whole program.
 * Any thread may write to it. */
#ifndef KERNELRL_VERIFY_JAIL_TIME_ACCOUNT_H
#define KERNELRL_VERIFY_JAIL_TIME_ACCOUNT_H

#include "base/str.h"

/* Adds seconds to the account of `who` and of the "op" that a request names. The request is JSON text that begins with
 * its "op". */
void spent_note(const char *who, const char *request, double seconds);
/* Adds seconds for something that is no request. */
void spent_add(const char *who, const char *what, double seconds);
/* Appends a JSON object {"who what": [seconds, times], ...}, the largest first, and begins anew. */
void spent_take(struct str *out);

#endif
