/* records: what the store's files are made of. A record has a header and bytes, with a hash of them, so that one that
 * was being written when a server was killed is known. */
#ifndef KERNELRL_TINKER_RECORDS_H
#define KERNELRL_TINKER_RECORDS_H

#include <stdbool.h>

#include "base/str.h"

struct record { /* as it stands in a file; n bytes follow */
    uint32_t magic, kind;
    int64_t seq;
    uint64_t n, hash;
    char content[64]; /* a digest's digits, or zeros */
};
/* content: 64 digits, or NULL. */
void record_put(struct str *out, uint32_t kind, int64_t seq, const char *content, const void *body, size_t n);
/* The record at *at <= len of a file's bytes. *at moves behind it, and *body points to its n bytes. False: no whole
 * record stands there, and *at stays. */
bool record_next(const void *data, size_t len, size_t *at, struct record *r, const char **body);

#endif
