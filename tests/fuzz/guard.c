/* Fuzz target: headers and targets of any bytes. Whatever a target is taken for, its path has no control characters and
 * no segments that lead upwards, and no guess is a key. */
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "http/guard.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_target(const char *target) {
    if (!guard_target(target)) return;
    char *path = guard_path(target);
    ASSERT(path[0] == '/');
    for (const char *p = path; *p; p++) ASSERT((unsigned char)*p >= ' ' && *p != 127);
    const size_t n = strlen(path);
    ASSERT(!strstr(path, "/../") && !strstr(path, "/./"));
    ASSERT(!(n >= 3 && strcmp(path + n - 3, "/..") == 0) && !(n >= 2 && strcmp(path + n - 2, "/.") == 0));
    free(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct digest key;
    char *names[] = {(char *)"box"}, *pages[] = {(char *)"http://page"};
    if (!key.hex[0]) key = digest_of("a key that nobody guesses", 25);
    const struct guard g = {
        .keys = &key, .n_keys = 1, .check_host = true, .hosts = names, .n_hosts = 1, .origins = pages, .n_origins = 1};
    char *text = xstrndup((const char *)data, size), *second = text + strlen(text) / 2;
    check_target(text);
    CLEANUP_STR struct str with = STR_INIT;
    str_addf(&with, "/%s", text);
    check_target(with.p);
    ASSERT(guard_key(&g, text, second, size % 2) != GUARD_YES);
    if (guard_host(&g, text)) {
        ASSERT(strspn(text, "LOCALHOSTlocalhost127.0:[]BOXbox3456789") == strlen(text));
    }
    if (guard_origin_listed(&g, text)) ASSERT(strlen(text) == 11);
    (void)guard_origin(&g, text, second);
    if (guard_request_id(text)) ASSERT(strlen(text) <= 128 && !strpbrk(text, "\r\n\" "));
    free(text);
    return 0;
}
