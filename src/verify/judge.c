#include "verify/judge.h"

static enum status batch(void *ctx, struct verify_item *items, size_t n, const volatile bool *cancel, struct err *e) {
    return verify_batch(ctx, items, n, cancel, e);
}

static void recall(void *ctx, const struct digest *key, const struct verdict *verdict) {
    verifier_recall(ctx, key, verdict);
}

static void hardware(void *ctx, char *name, size_t name_size, char *device, size_t device_size) {
    verifier_hardware(ctx, name, name_size, device, device_size);
}

struct judge judge_by(struct verifier *v) {
    return (struct judge){.ctx = v, .batch = batch, .recall = recall, .hardware = hardware};
}

void judge_identity(const struct judge *j, const struct verify_options *o, struct str *out) {
    verify_identity(o, out);
    if (j->classes) str_addf(out, " classes=%s", j->classes);
}

struct verify_identity judge_identity_hash(const struct judge *j, const struct verify_options *o) {
    CLEANUP_STR struct str text = STR_INIT;
    if (!j->classes) return verify_identity_hash(o);
    judge_identity(j, o, &text);
    return (struct verify_identity){.now = hash_str(text.p)};
}

enum status judge_stream_batch(const struct judge_stream *s, void *ctx, struct verify_item *items, size_t n,
                               const volatile bool *cancel, struct err *e) {
    enum { AT_ONCE = 64 };
    struct verify_item *done[AT_ONCE];
    size_t left = n;
    for (size_t i = 0; i < n; i++) s->submit(ctx, &items[i]);
    while (left > 0 && !(cancel && *cancel)) {
        const size_t m = s->collect(ctx, done, AT_ONCE, 0.2);
        for (size_t k = 0; k < m; k++) {
            if (done[k]->judged) done[k]->judged(done[k]->judged_ctx, done[k]);
            s->settle(ctx, done[k], true);
        }
        left -= m;
    }
    if (left == 0) return ST_OK;
    for (size_t i = 0; i < n; i++)
        (void)s->withdraw(ctx, &items[i]); /* those that were settled are not there any more */
    return FAIL(e, ST_CANCELLED, "cancelled");
}
