/* Fuzz target: an entry of the cache that hosts of a farm share, of any bytes, and one that is signed but spoiled at
 * some place. No entry counts that is not signed, and none of another answer; keys and signatures of any form are read
 * safely. The first two bytes say where the signed entry is spoiled, and how. */
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "verify/pool/farm.h"
#include "verify/pool/nkey.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char key[] = "0123456789abcdef-0-2.cpu-x1.0123456789abcdef0123456789abcdef";

/* A right entry, made once. */
static const struct str *right_entry(void) {
    static struct str entry = STR_INIT;
    static struct nkey k;
    CLEANUP_STR struct str text = STR_INIT, verdict = STR_INIT;
    const struct verdict v = {.outcome = OUTCOME_CORRECT, .tests_passed = 5, .tests_total = 5, .speedup = 2};
    char sig[NKEY_SIGNATURE_BYTES];
    struct err e;
    if (entry.len) return &entry;
    verdict_to_json(&v, &verdict);
    farm_signed_text(key, verdict.p, verdict.len, &text);
    ASSERT(nkey_make(&k, &e) == ST_OK && nkey_sign(&k, text.p, text.len, sig, &e) == ST_OK);
    farm_cache_entry(key, verdict.p, k.public_key, sig, &entry);
    return &entry;
}

/* Whether two texts are the same JSON object but for the signature: the last digit of base 64 has bits that nobody
 * reads, so one signature has more than one text. */
static bool same_json(const char *a, size_t n, const struct str *b) {
    CLEANUP_JSON json_t *x = NULL, *y = NULL;
    struct err e;
    if (js_parse(a, n, "a", &x, &e) != ST_OK || js_parse(b->p, b->len, "b", &y, &e) != ST_OK) return false;
    return json_object_del(x, "sig") == 0 && json_object_del(y, "sig") == 0 && json_equal(x, y);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct verdict v;
    char signer[64];
    if (size < 3) return 0;
    char *text = malloc(size + 1);
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = 0;
    ASSERT(!farm_cache_read(text, size, key, &v, signer));
    const struct str *entry = right_entry();
    ASSERT(farm_cache_read(entry->p, entry->len, key, &v, signer) && v.outcome == OUTCOME_CORRECT);
    ASSERT(!farm_cache_read(entry->p, entry->len, "another", &v, signer));
    CLEANUP_STR struct str bad = STR_INIT;
    const size_t at = (data[0] * 256U + data[1]) % entry->len;
    str_add(&bad, entry->p, at);
    str_add(&bad, text + 2, size - 2);
    if (at + 1 < entry->len) str_adds(&bad, entry->p + at + 1);
    if (farm_cache_read(bad.p, bad.len, key, &v, signer)) {
        /* What is signed is as it was; the rest, such as a field that nobody knows, is nobody's concern. */
        CLEANUP_JSON json_t *o = NULL;
        struct err e;
        ASSERT(v.outcome == OUTCOME_CORRECT && v.speedup == 2 && js_parse(bad.p, bad.len, "bad", &o, &e) == ST_OK);
        ASSERT(same_json(bad.p, bad.len, entry) || json_object_size(o) > 4);
    }
    if (nkey_is_public(text)) ASSERT(strlen(text) == NKEY_PUBLIC_BYTES - 1 && text[0] == 'U');
    ASSERT(!nkey_verify(text, "x", 1, text) && !nkey_verify(signer, "x", 1, text));
    free(text);
    return 0;
}
