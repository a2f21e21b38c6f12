#include "tinker/records.h"

#include <string.h>

#include "base/hash.h"

static const uint32_t magic = 0x6b72746bU;

void record_put(struct str *out, uint32_t kind, int64_t seq, const char *content, const void *body, size_t n) {
    struct record r = {.magic = magic, .kind = kind, .seq = seq, .n = n, .hash = hash_bytes(body, n, kind)};
    if (content) memcpy(r.content, content, sizeof r.content);
    str_add(out, (const char *)&r, sizeof r);
    str_add(out, body, n);
}

bool record_next(const void *data, size_t len, size_t *at, struct record *r, const char **body) {
    if (len - *at < sizeof *r) return false;
    memcpy(r, (const char *)data + *at, sizeof *r);
    if (r->magic != magic || r->n > len - *at - sizeof *r) return false;
    *body = (const char *)data + *at + sizeof *r;
    if (r->hash != hash_bytes(*body, r->n, r->kind)) return false;
    *at += sizeof *r + r->n;
    return true;
}
