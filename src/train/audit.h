/* audit: leaves that two ranks have computed, compared. A device that computes wrong bits now and then spoils a run and
 * is seen by nobody else: on one rank nothing could be compared. So in one round of AUDIT_EVERY each leaf is computed
 * once more, by another rank than the one whose it is. That costs one part in AUDIT_EVERY of the time of training, and
 * the sum of the gradients does not see it. Internal to train. */
#ifndef KERNELRL_TRAIN_AUDIT_H
#define KERNELRL_TRAIN_AUDIT_H

#include "dist/comm.h"

struct backend; /* tensor/backend.h */

enum { AUDIT_EVERY = 64 };

/* The rank that computes a leaf again that is rank `owner`'s, in the audit of this number (from 0). Over the audits
 * each rank checks each other one. 0 <= owner < size, size > 1. */
int audit_other(int owner, int size, int64_t number);

/* One number for n floats of the backend's memory and m floats of the host's: other bits give another number. Waits for
 * what is queued. */
enum status audit_hash(struct backend *be, const float *g, int64_t n, const float *host, int64_t m, uint64_t *hash,
                       struct err *e) MUST_USE;

/* What the ranks know of one leaf that was not computed alike. */
struct audit_dispute {
    int owner, other;
    uint64_t first_owner, first_other; /* numbers of what they computed at first */
    const uint64_t *again;             /* [size] what each rank computed when all were asked */
};
/* The number that more of the n ranks gave than any other; false: there is none. n > 0. */
bool audit_most(const uint64_t *x, int n, uint64_t *out);
/* The rank that computed wrong bits: what it gave, at first or when it was asked again, is not what most ranks gave
 * when all were asked. -1: nobody can tell. */
int audit_wrong(const struct audit_dispute *d, int size);

#endif
