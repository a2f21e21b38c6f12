/* hash: three hashes, for three purposes. digest_of (SHA-256) names content: nobody can make two texts of one digest,
 * so it keys caches and files. hash_bytes and hash_str (XXH3, 64 bits) are quick, and who wants two texts of one value
 * has them at once: for tables that compare the whole key, checksums, and streams of random numbers that need not be
 * secret. hmac_u64 makes numbers that are secret from all who do not hold the key. */
#ifndef KERNELRL_HASH_H
#define KERNELRL_HASH_H

#include "base/base.h"

uint64_t hash_bytes(const void *p, size_t n, uint64_t seed);
uint64_t hash_str(const char *s);

/* SHA-256, as 64 lower-case hex digits. Parts that are joined in one must be told apart. */
struct digest {
    char hex[65];
};
struct digest digest_of(const void *p, size_t n);
bool digest_equal(const struct digest *a, const struct digest *b);
/* True when hex, as a file has it, names these bytes: their digest or, in files that versions before SHA-256 began, the
 * 32 digits of their XXH3-128. The latter is no proof of who wrote the bytes: for going on with such a file only, never
 * for a cache. */
bool digest_matches(const char *hex, const void *p, size_t n);
/* True when hex is written as one of these two. */
bool digest_readable(const char *hex);

/* The first 64 bits of HMAC-SHA-256 of purpose, number and n bytes under the key. Who sees any of its numbers learns
 * nothing about the key and the other numbers. Some 2 us. */
uint64_t hmac_u64(uint64_t key, const char *purpose, uint64_t number, const void *p, size_t n);

#endif
