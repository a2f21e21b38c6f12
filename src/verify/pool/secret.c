#include "verify/pool/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"

enum { SECRET_BYTES = 32 };

static enum status draw(void *out, size_t n, struct err *e) {
    if (getrandom(out, n, 0) == (ssize_t)n) return ST_OK;
    return FAIL(e, ST_IO, "getrandom: %s", strerror(errno));
}

enum status secret_run_name(char out[RUN_NAME_BYTES], struct err *e) {
    uint64_t name;
    TRY(draw(&name, sizeof name, e));
    snprintf(out, RUN_NAME_BYTES, "%016llx", (unsigned long long)name);
    return ST_OK;
}

enum status secret_draw(uint64_t *seed, struct err *e) {
    TRY(draw(seed, sizeof *seed, e));
    *seed |= 1; /* 0 means that there is none */
    return ST_OK;
}

static enum status read_file(const char *file, unsigned char out[SECRET_BYTES], struct err *e) {
    CLEANUP_FREE char *text = NULL;
    size_t n;
    struct stat sb;
    if (stat(file, &sb) != 0) return FAIL(e, ST_IO, "%s: %s", file, strerror(errno));
    if (sb.st_mode & (S_IRWXG | S_IRWXO))
        return FAIL(e, ST_INVALID, "%s: others may read it; chmod 600 mends that", file);
    TRY(fs_read(file, 1000, &text, &n, e));
    n = strspn(text, "0123456789abcdef");
    if (n != (size_t)2 * SECRET_BYTES || strspn(text + n, " \n") != strlen(text + n))
        return FAIL(e, ST_INVALID, "%s: expected %d hex digits", file, 2 * SECRET_BYTES);
    for (int i = 0; i < SECRET_BYTES; i++) {
        unsigned byte = 0;
        (void)sscanf(text + 2 * i, "%2x", &byte);
        out[i] = (unsigned char)byte;
    }
    explicit_bzero(text, n);
    return ST_OK;
}

enum status secret_of_run(const char *file, const char *run, uint64_t *seed, struct err *e) {
    unsigned char key[SECRET_BYTES], sum[EVP_MAX_MD_SIZE];
    char text[60];
    unsigned n = 0;
    TRY(read_file(file, key, e));
    snprintf(text, sizeof text, "kernelrl verifier inputs %s", run);
    const bool made =
        HMAC(EVP_sha256(), key, SECRET_BYTES, (const unsigned char *)text, strlen(text), sum, &n) && n >= sizeof *seed;
    explicit_bzero(key, sizeof key);
    if (!made) return FAIL(e, ST_FAILED, "%s: no HMAC could be computed", file);
    memcpy(seed, sum, sizeof *seed);
    *seed |= 1;
    return ST_OK;
}

enum status secret_make_file(const char *file, struct err *e) {
    unsigned char key[SECRET_BYTES];
    char text[2 * SECRET_BYTES + 2];
    TRY(draw(key, sizeof key, e));
    for (int i = 0; i < SECRET_BYTES; i++) snprintf(text + 2 * i, 3, "%02x", key[i]);
    text[sizeof text - 2] = '\n';
    CLEANUP_FD int fd = open(file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || !fs_write_all(fd, text, sizeof text - 1)) return FAIL(e, ST_IO, "%s: %s", file, strerror(errno));
    explicit_bzero(key, sizeof key);
    explicit_bzero(text, sizeof text);
    return ST_OK;
}
