#include "verify/pool/farm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verify/pool/nkey.h"

void farm_signed_text(const char *subject, const char *line, size_t n, struct str *out) {
    str_adds(out, subject);
    str_addc(out, '\n');
    str_add(out, line, n);
}

void farm_cache_key(const char *settings_hash, const char *class, const struct digest *answer, char *out, size_t size) {
    char version[24];
    hardware_slug(KERNELRL_VERSION, version, sizeof version);
    snprintf(out, size, "%s-%s.%s.%s", settings_hash, version, class, answer->hex);
}

void farm_cache_entry(const char *key, const char *verdict, const char *public_key, const char *signature,
                      struct str *out) {
    js_begin(out, NULL, '{');
    js_put_str(out, "answer", key);
    js_put_str(out, "verdict", verdict);
    js_put_str(out, "key", public_key);
    js_put_str(out, "sig", signature);
    js_end(out, '}');
}

bool farm_cache_read(const char *text, size_t n, const char *key, struct verdict *out, char signer[64]) {
    CLEANUP_JSON json_t *o = NULL, *verdict = NULL;
    CLEANUP_STR struct str signed_text = STR_INIT;
    struct err ignored;
    const char *of, *said, *by, *sig;
    if (js_parse(text, n, "cache", &o, &ignored) != ST_OK || js_get_str(o, "cache", "answer", &of, &ignored) != ST_OK ||
        js_get_str(o, "cache", "verdict", &said, &ignored) != ST_OK ||
        js_get_str(o, "cache", "key", &by, &ignored) != ST_OK || js_get_str(o, "cache", "sig", &sig, &ignored) != ST_OK)
        return false;
    if (strcmp(of, key) != 0 || strlen(by) >= 64) return false;
    farm_signed_text(key, said, strlen(said), &signed_text);
    if (!nkey_verify(by, signed_text.p, signed_text.len, sig)) return false;
    snprintf(signer, 64, "%s", by);
    return js_parse(said, strlen(said), "cache", &verdict, &ignored) == ST_OK &&
           verdict_from_json(verdict, "cache", out, &ignored) == ST_OK;
}
