/* spent: where the seconds of verdicts go, by who was asked and for what. One account for the whole program; any thread
 * may write to it. */
#ifndef KERNELRL_VERIFY_JAIL_TIME_ACCOUNT_H
#define KERNELRL_VERIFY_JAIL_TIME_ACCOUNT_H

#include "base/str.h"

/* Adds seconds to the account of `who` and the "op" that a request (JSON text that begins with it) names. */
void spent_note(const char *who, const char *request, double seconds);
/* The same, for something that is no request. */
void spent_add(const char *who, const char *what, double seconds);
/* Appends a JSON object {"who what": [seconds, times], ...}, the largest first, and begins anew. */
void spent_take(struct str *out);

#endif
