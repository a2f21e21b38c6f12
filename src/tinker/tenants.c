/* Tenants: whoever has one key. What one of them made is nobody else's, and no one of them takes all there is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tinker/internal.h"

struct tinker_tenant *tenant_by_id(struct tinker *t, const char *id) {
    struct tinker_tenant *b = t->tenants;
    while (b && strcmp(b->id, id) != 0) b = b->next;
    if (b) return b;
    b = xcalloc(1, sizeof *b);
    snprintf(b->id, sizeof b->id, "%s", id);
    b->queued_end = &b->queued;
    b->next = t->tenants;
    return t->tenants = b;
}

struct tinker_tenant *tenant_of(struct tinker *t, const struct http_exchange *x) {
    struct digest key;
    char id[sizeof t->tenants->id] = "";
    if (http_key(x, &key)) snprintf(id, sizeof id, "%.32s", key.hex);
    return tenant_by_id(t, id);
}

/* What was made while the server had no keys is everybody's; and who needs no key sees all. */
bool tenant_sees(const struct tinker_tenant *by, const char *owner) {
    return !by || !*by->id || !*owner || strcmp(by->id, owner) == 0;
}

/* ---- quotas -------------------------------------------------------------------------------------------------------*/

bool tenant_has_enough(const struct tinker *t, const struct tinker_tenant *b, struct http_exchange *x, int64_t tokens) {
    if (!*b->id || b->tokens == 0 || b->tokens + tokens <= t->o->key_tokens) return false;
    reply_detail(x, 429, "%lld tokens of this key wait, and it may have %lld: try again later", (long long)b->tokens,
                 (long long)t->o->key_tokens);
    return true;
}

enum status tenant_may_add_model(const struct tinker *t, const struct tinker_tenant *b, struct err *e) {
    int n = 0;
    for (const struct tinker_run *r = t->runs; r; r = r->next) n += r->session->tenant == b && !r->gone && !r->corrupt;
    if (!*b->id || n < t->o->key_models) return ST_OK;
    return FAIL(e, ST_INVALID, "this key has %d models, as many as it may have at a time: end one of its sessions", n);
}

enum status tenant_may_save(const struct tinker *t, const struct tinker_tenant *b, struct err *e) {
    int64_t bytes = 0;
    for (const struct tinker_checkpoint *c = t->checkpoints; c; c = c->next)
        if (strcmp(c->owner, b->id) == 0) bytes += c->bytes;
    if (!*b->id || bytes < t->o->key_bytes) return ST_OK;
    return FAIL(e, ST_INVALID, "the checkpoints of this key take %lld bytes, and may take %lld: delete some of them",
                (long long)bytes, (long long)t->o->key_bytes);
}

void tenants_free(struct tinker *t) {
    for (struct tinker_tenant *b = t->tenants, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    t->tenants = NULL;
}
