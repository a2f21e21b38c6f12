#include "verify/pool/nkey.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"

enum { PREFIX_SEED = 18 << 3, PREFIX_USER = 20 << 3, KEY_BYTES = 32, RAW_PUBLIC = 35, RAW_SEED = 36 };

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/* Base 32 without padding (RFC 4648). */
static void encode(const unsigned char *raw, size_t n, char *out) {
    uint32_t bits = 0;
    int have = 0;
    for (size_t i = 0; i < n; i++) {
        bits = bits << 8 | raw[i];
        for (have += 8; have >= 5; have -= 5) *out++ = alphabet[bits >> (have - 5) & 31];
    }
    if (have > 0) *out++ = alphabet[bits << (5 - have) & 31];
    *out = 0;
}

static bool decode(const char *text, unsigned char *raw, size_t n) {
    uint32_t bits = 0;
    int have = 0;
    size_t got = 0;
    for (; *text; text++) {
        const char *at = strchr(alphabet, *text);
        if (!at) return false;
        bits = bits << 5 | (uint32_t)(at - alphabet);
        have += 5;
        if (have < 8) continue;
        if (got == n) return false;
        raw[got++] = (unsigned char)(bits >> (have - 8));
        have -= 8;
    }
    return got == n;
}

/* CRC-16/XMODEM. */
static unsigned crc16(const unsigned char *p, size_t n) {
    unsigned crc = 0;
    for (size_t i = 0; i < n; i++) {
        crc ^= (unsigned)p[i] << 8;
        for (int bit = 0; bit < 8; bit++) crc = (crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1) & 0xffff;
    }
    return crc;
}

static void seal(unsigned char *raw, size_t n) {
    const unsigned crc = crc16(raw, n - 2);
    raw[n - 2] = (unsigned char)(crc & 0xff);
    raw[n - 1] = (unsigned char)(crc >> 8);
}

static bool is_sealed(const unsigned char *raw, size_t n) {
    const unsigned crc = crc16(raw, n - 2);
    return raw[n - 2] == (crc & 0xff) && raw[n - 1] == crc >> 8;
}

static EVP_PKEY *private_of(const struct nkey *k) {
    return EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, k->secret, KEY_BYTES);
}

static enum status fill_public(struct nkey *k, struct err *e) {
    unsigned char raw[RAW_PUBLIC] = {PREFIX_USER};
    size_t n = KEY_BYTES;
    EVP_PKEY *key = private_of(k);
    const bool got = key && EVP_PKEY_get_raw_public_key(key, raw + 1, &n) == 1 && n == KEY_BYTES;
    EVP_PKEY_free(key);
    if (!got) return FAIL(e, ST_FAILED, "Ed25519: the cryptographic library has none");
    seal(raw, sizeof raw);
    encode(raw, sizeof raw, k->public_key);
    return ST_OK;
}

enum status nkey_make(struct nkey *out, struct err *e) {
    *out = (struct nkey){0};
    if (getrandom(out->secret, KEY_BYTES, 0) != KEY_BYTES) return FAIL(e, ST_IO, "getrandom: %s", strerror(errno));
    return fill_public(out, e);
}

enum status nkey_read(const char *file, struct nkey *out, struct err *e) {
    unsigned char raw[RAW_SEED];
    CLEANUP_FREE char *text = NULL;
    size_t n;
    struct stat sb;
    *out = (struct nkey){0};
    if (stat(file, &sb) != 0) return FAIL(e, ST_IO, "%s: %s", file, strerror(errno));
    if (sb.st_mode & (S_IRWXG | S_IRWXO))
        return FAIL(e, ST_INVALID, "%s: others may read it; chmod 600 mends that", file);
    TRY(fs_read(file, 1000, &text, &n, e));
    text[strcspn(text, " \r\n")] = 0;
    const bool good = decode(text, raw, sizeof raw) && is_sealed(raw, sizeof raw) &&
                      raw[0] == (PREFIX_SEED | PREFIX_USER >> 5) && raw[1] == (PREFIX_USER & 31) << 3;
    explicit_bzero(text, n);
    if (!good) return FAIL(e, ST_INVALID, "%s: expected the seed of a user's NKey (SU...)", file);
    memcpy(out->secret, raw + 2, KEY_BYTES);
    explicit_bzero(raw, sizeof raw);
    return fill_public(out, e);
}

enum status nkey_write(const struct nkey *k, const char *file, struct err *e) {
    unsigned char raw[RAW_SEED] = {PREFIX_SEED | PREFIX_USER >> 5, (PREFIX_USER & 31) << 3};
    char text[NKEY_SEED_BYTES + 1];
    memcpy(raw + 2, k->secret, KEY_BYTES);
    seal(raw, sizeof raw);
    encode(raw, sizeof raw, text);
    const size_t n = strlen(text);
    text[n] = '\n';
    CLEANUP_FD int fd = open(file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || !fs_write_all(fd, text, n + 1)) return FAIL(e, ST_IO, "%s: %s", file, strerror(errno));
    explicit_bzero(text, sizeof text);
    explicit_bzero(raw, sizeof raw);
    return ST_OK;
}

static bool read_public(const char *text, unsigned char raw[RAW_PUBLIC]) {
    return decode(text, raw, RAW_PUBLIC) && is_sealed(raw, RAW_PUBLIC) && raw[0] == PREFIX_USER;
}

bool nkey_is_public(const char *text) {
    unsigned char raw[RAW_PUBLIC];
    return read_public(text, raw);
}

enum status nkey_sign_raw(const struct nkey *k, const void *p, size_t n, unsigned char out[NKEY_SIGNATURE_RAW],
                          struct err *e) {
    size_t n_sum = NKEY_SIGNATURE_RAW;
    EVP_PKEY *key = private_of(k);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    const bool made = key && ctx && EVP_DigestSignInit(ctx, NULL, NULL, NULL, key) == 1 &&
                      EVP_DigestSign(ctx, out, &n_sum, p, n) == 1 && n_sum == NKEY_SIGNATURE_RAW;
    EVP_MD_CTX_free(ctx);
    EVP_PKEY_free(key);
    return made ? ST_OK : FAIL(e, ST_FAILED, "Ed25519: nothing could be signed");
}

enum status nkey_sign(const struct nkey *k, const void *p, size_t n, char out[NKEY_SIGNATURE_BYTES], struct err *e) {
    unsigned char sum[NKEY_SIGNATURE_RAW];
    TRY(nkey_sign_raw(k, p, n, sum, e));
    EVP_EncodeBlock((unsigned char *)out, sum, sizeof sum);
    return ST_OK;
}

bool nkey_verify(const char *public_key, const void *p, size_t n, const char *signature) {
    unsigned char raw[RAW_PUBLIC], sum[72];
    if (strlen(signature) != NKEY_SIGNATURE_BYTES - 1 || !read_public(public_key, raw)) return false;
    if (EVP_DecodeBlock(sum, (const unsigned char *)signature, NKEY_SIGNATURE_BYTES - 1) != 66) return false;
    EVP_PKEY *key = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, raw + 1, KEY_BYTES);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    const bool good = key && ctx && EVP_DigestVerifyInit(ctx, NULL, NULL, NULL, key) == 1 &&
                      EVP_DigestVerify(ctx, sum, 64, p, n) == 1;
    EVP_MD_CTX_free(ctx);
    EVP_PKEY_free(key);
    return good;
}
