#include "base/hash.h"

#include <stdio.h>
#include <string.h>
#define XXH_INLINE_ALL
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#include <xxhash.h>
#pragma GCC diagnostic pop

uint64_t hash_bytes(const void *p, size_t n, uint64_t seed) { return XXH3_64bits_withSeed(p, n, seed); }

uint64_t hash_str(const char *s) { return hash_bytes(s, strlen(s), 0); }

struct hash128 hash_hex(const void *p, size_t n) {
    XXH128_hash_t h = XXH3_128bits(p, n);
    struct hash128 out;
    snprintf(out.hex, sizeof out.hex, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
    return out;
}
