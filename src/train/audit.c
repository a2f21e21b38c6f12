#include "train/audit.h"

#include <stdlib.h>

#include "base/hash.h"
#include "tensor/backend.h"

/* Floats that come from the device at a time. */
enum { PIECE = 1 << 22 };

int audit_other(int owner, int size, int64_t number) { return (int)((owner + 1 + number % (size - 1)) % size); }

enum status audit_hash(struct backend *be, const float *g, int64_t n, const float *host, int64_t m, uint64_t *hash,
                       struct err *e) {
    CLEANUP_FREE float *piece = xmalloc((size_t)i64_min(n, PIECE) * sizeof *piece + 1);
    *hash = hash_bytes(host, (size_t)m * sizeof *host, 0);
    for (int64_t at = 0; at < n; at += PIECE) {
        const size_t bytes = (size_t)i64_min(PIECE, n - at) * sizeof *piece;
        be->mem_get(be, piece, g + at, bytes);
        TRY(be->sync(be, e));
        *hash = hash_bytes(piece, bytes, *hash);
    }
    return ST_OK;
}

bool audit_most(const uint64_t *x, int n, uint64_t *out) {
    int best = 0;
    bool alone = false;
    for (int i = 0; i < n; i++) {
        int same = 0;
        for (int k = 0; k < n; k++) same += x[k] == x[i];
        if (same == best && x[i] != *out) alone = false;
        if (same <= best) continue;
        best = same;
        *out = x[i];
        alone = true;
    }
    return alone;
}

int audit_wrong(const struct audit_dispute *d, int size) {
    uint64_t right = 0;
    if (!audit_most(d->again, size, &right)) return -1;
    if (d->first_owner != right || d->again[d->owner] != right) return d->owner;
    if (d->first_other != right || d->again[d->other] != right) return d->other;
    return -1;
}
