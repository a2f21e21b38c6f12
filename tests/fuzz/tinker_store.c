/* Fuzz target: files of records, which a server of the Tinker protocol reads of the one before it. The first byte says
 * how: as they are, or records made of the input, one of whose bytes is then changed and whose end is cut off: what
 * stood before is read as it was. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "tinker/records.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reads to the end; returns the number of records. */
static int read_all(const void *data, size_t len) {
    struct record r;
    const char *body;
    volatile int sum = 0;
    int n = 0;
    for (size_t at = 0, before = 0; record_next(data, len, &at, &r, &body); before = at, n++) {
        ASSERT(at <= len && at - before == sizeof r + r.n);
        for (size_t i = 0; i < r.n; i++) sum += body[i];
    }
    return n;
}

static void break_records(const uint8_t *data, size_t size) {
    CLEANUP_STR struct str file = STR_INIT;
    size_t end[8], n = 0;
    if (size < 3) return;
    const size_t changed = data[0] * 7U + data[1], cut = data[2];
    for (size_t at = 3; at < size && n < 8; n++) {
        const size_t length = i64_min(data[at], (int64_t)(size - at - 1));
        record_put(&file, data[at] % 70, (int64_t)n, NULL, data + at + 1, length);
        end[n] = file.len;
        at += 1 + length;
    }
    ASSERT(read_all(file.p, file.len) == (int)n);
    if (n == 0) return;
    const size_t len = file.len - cut % file.len, place = changed % len;
    char *copy = malloc(len); /* exactly as long, so that a read behind it is seen */
    memcpy(copy, file.p, len);
    copy[place] = (char)(copy[place] ^ 1);
    size_t whole = 0; /* records in front of the change and of the cut */
    while (whole < n && end[whole] <= place) whole++;
    const size_t begin = whole > 0 ? end[whole - 1] : 0;
    /* A change of number or content is not seen: those are not hashed. All others are. */
    const bool unseen = place - begin >= offsetof(struct record, seq) && place - begin < offsetof(struct record, n);
    const bool named = place - begin >= offsetof(struct record, content) && place - begin < sizeof(struct record);
    const int got = read_all(copy, len);
    free(copy);
    ASSERT(got >= (int)whole && (unseen || named || got == (int)whole));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    if (data[0] % 2)
        (void)read_all(data + 1, size - 1);
    else
        break_records(data + 1, size - 1);
    return 0;
}
