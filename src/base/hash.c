#include "base/hash.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#include <xxhash.h>
#pragma GCC diagnostic pop

enum { SHA256_BYTES = 32, OLD_DIGITS = 32 };

uint64_t hash_bytes(const void *p, size_t n, uint64_t seed) { return XXH3_64bits_withSeed(p, n, seed); }

uint64_t hash_str(const char *s) { return hash_bytes(s, strlen(s), 0); }

struct digest digest_of(const void *p, size_t n) {
    static const char digits[] = "0123456789abcdef";
    unsigned char raw[SHA256_BYTES];
    struct digest out;
    const int made = EVP_Digest(n ? p : "", n, raw, NULL, EVP_sha256(), NULL);
    ASSERT(made == 1);
    for (int i = 0; i < SHA256_BYTES; i++) {
        out.hex[2 * i] = digits[raw[i] >> 4];
        out.hex[2 * i + 1] = digits[raw[i] & 15];
    }
    out.hex[2 * SHA256_BYTES] = 0;
    return out;
}

bool digest_equal(const struct digest *a, const struct digest *b) { return memcmp(a->hex, b->hex, sizeof a->hex) == 0; }

bool digest_readable(const char *hex) {
    const size_t n = strspn(hex, "0123456789abcdef");
    return !hex[n] && (n == 2 * SHA256_BYTES || n == OLD_DIGITS);
}

bool digest_matches(const char *hex, const void *p, size_t n) {
    if (strlen(hex) != OLD_DIGITS) return strcmp(digest_of(p, n).hex, hex) == 0;
    const XXH128_hash_t h = XXH3_128bits(p, n);
    char old[OLD_DIGITS + 1];
    snprintf(old, sizeof old, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
    return strcmp(old, hex) == 0;
}

uint64_t hmac_u64(uint64_t key, const char *purpose, uint64_t number, const void *p, size_t n) {
    /* The purpose ends with its zero byte and the number has eight: what follows is the rest. */
    const size_t name = strlen(purpose) + 1, head = name + sizeof number;
    unsigned char small[256], raw[SHA256_BYTES];
    unsigned char *text = head + n <= sizeof small ? small : xmalloc(head + n);
    memcpy(text, purpose, name);
    memcpy(text + name, &number, sizeof number);
    if (n) memcpy(text + head, p, n);
    const bool made = HMAC(EVP_sha256(), &key, sizeof key, text, head + n, raw, NULL) != NULL;
    ASSERT(made);
    if (text != small) free(text);
    uint64_t out;
    memcpy(&out, raw, sizeof out);
    return out;
}
