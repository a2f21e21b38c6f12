#include "verify/verdict_cache.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 4096 };

/* Direct-mapped: who finds two keys of one slot has each drop the other. */
struct verdict_cache {
    struct {
        struct digest key;
        bool used;
        struct verdict verdict;
    } slot[SLOTS];
};

struct verdict_cache *verdict_cache_create(void) {
    return xcalloc(1, sizeof(struct verdict_cache));
}
void verdict_cache_free(struct verdict_cache *c) { free(c); }

static size_t slot_of(const struct digest *key) { return hash_bytes(key->hex, sizeof key->hex, 1) % SLOTS; }

bool verdict_cache_find(const struct verdict_cache *c, const struct digest *key, struct verdict *out) {
    const size_t i = slot_of(key);
    if (!c->slot[i].used || !digest_equal(&c->slot[i].key, key)) return false;
    *out = c->slot[i].verdict;
    out->cached = true;
    return true;
}

void verdict_cache_add(struct verdict_cache *c, const struct digest *key, const struct verdict *verdict) {
    const enum outcome o = verdict->outcome;
    const size_t i = slot_of(key);
    if (strlen(key->hex) + 1 != sizeof key->hex) return;
    if (verdict->cached || o == OUTCOME_NO_KERNEL || outcome_class(o) == 'I') return;
    c->slot[i].used = true;
    c->slot[i].key = *key;
    c->slot[i].verdict = *verdict;
}
