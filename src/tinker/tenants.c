/* Tenants: whoever has one key. What one of them made is nobody else's, and no one of them takes all there is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http/metrics.h"
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
    struct tinker_tenant *b = tenant_by_id(t, id);
    const char *name = http_key_name(x);
    if (name && !b->name) b->name = xstrdup(name);
    return b;
}

const char *tenant_name(const struct tinker_tenant *b) { return b->name ? b->name : "this key"; }

/* A key without a name goes by the first digits of its digest. */
static char *label_of(const struct tinker_tenant *b) {
    CLEANUP_STR struct str label = STR_INIT, digits = STR_INIT;
    str_addf(&digits, "%.8s", b->id);
    metrics_label(&label, "key", b->name ? b->name : str_c(&digits));
    return str_steal(&label);
}

static int models_of(const struct tinker *t, const struct tinker_tenant *b) {
    int n = 0;
    for (const struct tinker_run *r = t->runs; r; r = r->next) n += r->session->tenant == b && !r->gone;
    return n;
}

enum tenant_value { TENANT_MODELS, TENANT_TOKENS, TENANT_SEQUENCES, TENANT_RESULT_BYTES, TENANT_VALUES };
static const struct {
    const char *name, *help;
} tenant_value[TENANT_VALUES] = {
    [TENANT_MODELS] = {"kernelrl_tinker_models", "Models that are trained"},
    [TENANT_TOKENS] = {"kernelrl_tinker_tokens_waiting", "Tokens of calls and requests that have not ended"},
    [TENANT_SEQUENCES] = {"kernelrl_tinker_sequences", "Sequences that are sampled or wait for it"},
    [TENANT_RESULT_BYTES] = {"kernelrl_tinker_result_bytes", "Bytes of results that are kept"},
};

void tenants_metrics(void *tinker, struct str *out) {
    const struct tinker *t = tinker;
    for (int k = 0; k < TENANT_VALUES; k++) {
        metrics_family(out, tenant_value[k].name, "gauge", tenant_value[k].help);
        for (const struct tinker_tenant *b = t->tenants; b; b = b->next) {
            const double value[TENANT_VALUES] = {models_of(t, b), (double)b->tokens, (double)b->sequences,
                                                 (double)b->kept.bytes};
            CLEANUP_FREE char *label = label_of(b);
            metrics_value(out, tenant_value[k].name, label, value[k]);
        }
    }
}

/* What was made while the server had no keys is everybody's; and who needs no key sees all. */
bool tenant_sees(const struct tinker_tenant *by, const char *owner) {
    return !by || !*by->id || !*owner || strcmp(by->id, owner) == 0;
}

/* ---- quotas -------------------------------------------------------------------------------------------------------*/

bool tenant_has_enough(const struct tinker *t, const struct tinker_tenant *b, struct http_exchange *x, int64_t tokens) {
    if (!*b->id || b->tokens == 0 || b->tokens + tokens <= t->o->key_tokens) return false;
    reply_detail(x, 429, "%lld tokens of %s wait, and it may have %lld: try again later", (long long)b->tokens,
                 tenant_name(b), (long long)t->o->key_tokens);
    return true;
}

enum status tenant_may_add_model(const struct tinker *t, const struct tinker_tenant *b, struct err *e) {
    const int n = models_of(t, b);
    if (!*b->id || n < t->o->key_models) return ST_OK;
    return FAIL(e, ST_INVALID, "%s has %d models, as many as it may have at a time: end one of its sessions",
                tenant_name(b), n);
}

enum status tenant_may_save(const struct tinker *t, const struct tinker_tenant *b, struct err *e) {
    int64_t bytes = 0;
    for (const struct tinker_checkpoint *c = t->checkpoints; c; c = c->next)
        if (strcmp(c->owner, b->id) == 0) bytes += c->bytes;
    if (!*b->id || bytes < t->o->key_bytes) return ST_OK;
    return FAIL(e, ST_INVALID, "the checkpoints of %s take %lld bytes, and may take %lld: delete some of them",
                tenant_name(b), (long long)bytes, (long long)t->o->key_bytes);
}

void tenants_free(struct tinker *t) {
    for (struct tinker_tenant *b = t->tenants, *next; b; b = next) {
        next = b->next;
        free(b->name);
        free(b);
    }
    t->tenants = NULL;
}
