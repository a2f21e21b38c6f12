/* nkey: the keys by which NATS knows who speaks, and by which verdicts are signed: Ed25519 keys as texts. A seed
 * ("SU...") is secret and lies in a file; its public half ("U...") names a worker. Format: base 32 of a prefix, the key
 * and a CRC-16, as NATS writes them. */
#ifndef KERNELRL_VERIFY_POOL_NKEY_H
#define KERNELRL_VERIFY_POOL_NKEY_H

#include "base/err.h"

enum { NKEY_PUBLIC_BYTES = 57, NKEY_SEED_BYTES = 59, NKEY_SIGNATURE_BYTES = 89, NKEY_SIGNATURE_RAW = 64 };

struct nkey {
    char public_key[NKEY_PUBLIC_BYTES];
    unsigned char secret[32];
};
/* A new key. */
enum status nkey_make(struct nkey *out, struct err *e) MUST_USE;
/* From a file that holds a seed, and that nobody but its owner may read. ST_IO; ST_INVALID. */
enum status nkey_read(const char *file, struct nkey *out, struct err *e) MUST_USE;
/* Writes the seed into a new file. */
enum status nkey_write(const struct nkey *k, const char *file, struct err *e) MUST_USE;
bool nkey_is_public(const char *text);

/* The signature of n bytes; the second one in base 64. */
enum status nkey_sign_raw(const struct nkey *k, const void *p, size_t n, unsigned char out[NKEY_SIGNATURE_RAW],
                          struct err *e) MUST_USE;
enum status nkey_sign(const struct nkey *k, const void *p, size_t n, char out[NKEY_SIGNATURE_BYTES],
                      struct err *e) MUST_USE;
/* Whether a signature was made with the secret half of that public key. */
bool nkey_verify(const char *public_key, const void *p, size_t n, const char *signature);

#endif
