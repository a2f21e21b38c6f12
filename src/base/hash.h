/* hash: three hashes, for three purposes.
 *   digest_of (SHA-256) names content: nobody can make two texts of one digest, so it is the key of caches and files.
 *   hash_bytes and hash_str (XXH3, 64 bits) are quick, but two texts of one value are easily made. They are for tables
 *       that compare the whole key, for checksums, and for streams of random numbers that need not be secret.
 *   hmac_u64 makes numbers that are secret from all who do not hold the key. */
#ifndef KERNELRL_HASH_H
#define KERNELRL_HASH_H

#include "base/base.h"

uint64_t hash_bytes(const void *p, size_t n, uint64_t seed);
uint64_t hash_str(const char *s);

/* A SHA-256, as 64 lower-case hex digits. Parts that are joined in one text must be told apart. */
struct digest {
    char hex[65];
};
struct digest digest_of(const void *p, size_t n);
bool digest_equal(const struct digest *a, const struct digest *b);
/* Returns whether hex, as a file has it, names these bytes: by their digest or, in files that versions before SHA-256
 * began, by the 32 digits of their XXH3-128. The latter does not prove who wrote the bytes. It is only for going on
 * with such a file, never for a cache. */
bool digest_matches(const char *hex, const void *p, size_t n);
/* Returns whether hex is written as one of these two. */
bool digest_readable(const char *hex);

/* Returns the first 64 bits of HMAC-SHA-256 of purpose, number and n bytes under the key. Whoever sees some of these
 * numbers learns nothing about the key and the other numbers. It takes some 2 us. */
uint64_t hmac_u64(uint64_t key, const char *purpose, uint64_t number, const void *p, size_t n);

#endif
