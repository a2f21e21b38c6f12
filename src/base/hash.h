/* hash: XXH3 (xxHash) of bytes. hash_hex writes 128 bits as 32 hex digits: the key of content-addressed caches. */
#ifndef KERNELRL_HASH_H
#define KERNELRL_HASH_H

#include "base/base.h"

uint64_t hash_bytes(const void *p, size_t n, uint64_t seed);
uint64_t hash_str(const char *s);
struct hash128 {
    char hex[33];
};
struct hash128 hash_hex(const void *p, size_t n);

#endif
