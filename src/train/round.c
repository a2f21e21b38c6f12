#include "train/round.h"

#include <stdlib.h>

#include "base/base.h"

void round_assign(const int64_t *rows, int n, int ranks, int width, int *owner) {
    ASSERT(n <= ranks * width);
    for (int i = 0; i < n; i++) owner[i] = width == 1 ? i : -1;
    if (width == 1) return;
    CLEANUP_FREE int64_t *sum = xcalloc((size_t)ranks, sizeof *sum);
    CLEANUP_FREE int *has = xcalloc((size_t)ranks, sizeof *has);
    for (int k = 0; k < n; k++) {
        int largest = -1, to = -1;
        for (int i = 0; i < n; i++)
            if (owner[i] < 0 && (largest < 0 || rows[i] > rows[largest])) largest = i;
        for (int r = 0; r < ranks; r++)
            if (has[r] < width && (to < 0 || sum[r] < sum[to])) to = r;
        owner[largest] = to;
        sum[to] += rows[largest];
        has[to]++;
    }
}
