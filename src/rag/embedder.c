#include "rag/embedder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "policy/policy.h"
#include "tensor/backend.h"

enum { ROWS_MAX = 8192 /* tokens of one pass; memory grows with it */ };

struct embedder {
    struct policy policy; /* It has no engine. */
    char *prefix;
    int max_tokens;
};

/* The instructions that the models were trained with. The task is ours. */
static const char *known_prefix(const char *name) {
    if (strstr(name, "bge-code"))
        return "<instruct>Given a PyTorch module, retrieve modules that compute similar things.\n<query>";
    if (strstr(name, "Qwen3-Embedding"))
        return "Instruct: Given a PyTorch module, retrieve modules that compute similar things.\nQuery:";
    if (strstr(name, "nomic-embed-code")) return "Represent this query for searching relevant code: ";
    return "";
}

/* Appends the ids of one text: at most max_tokens of them, with those that belong around it. */
static void encode(struct embedder *em, const char *code, bool query, struct ids *out) {
    CLEANUP_STR struct str s = STR_INIT;
    const size_t first = out->len;
    if (query) str_adds(&s, em->prefix);
    size_t n = strnlen(code, EMBEDDER_MAX_CHARS);
    while (n > 0 && code[n] && ((unsigned char)code[n] & 0xc0) == 0x80) n--; /* A character is not cut. */
    str_add(&s, code, n);
    tokenizer_encode_whole(em->policy.tok, str_c(&s), s.len, false, out);
    /* Qwen3-Embedding pools the token that ends a text: one that is too long keeps it. */
    const struct ids *after = tokenizer_after(em->policy.tok);
    if (out->len - first > (size_t)em->max_tokens) {
        out->len = first + (size_t)em->max_tokens - after->len;
        for (size_t i = 0; i < after->len; i++) ids_add(out, after->p[i]);
    }
    if (out->len == first) ids_add(out, 0); /* an empty text must have a vector, too */
}

/* Makes one pass over texts that are laid end to end. The last row of each is its embedding. */
static enum status pass(struct embedder *em, const struct ids *ids, const struct segment *seg, int n, float *out,
                        struct err *e) {
    const int64_t D = model_cfg(em->policy.model)->D;
    CLEANUP_FREE float *hidden = xmalloc((size_t)n * (size_t)D * sizeof *hidden);
    CLEANUP_FREE int32_t *last = xmalloc((size_t)n * sizeof *last);
    for (int i = 0; i < n; i++) last[i] = (int32_t)(seg[i].start + seg[i].len - 1);
    const struct train_batch b = {
        .ids = ids->p, .T = (int64_t)ids->len, .seg = seg, .n_seg = n, .rows = last, .N = n, .forward_only = true};
    TRY(model_forward(em->policy.model, &b, NULL, NULL, hidden, e));
    for (int i = 0; i < n; i++) {
        const float *h = hidden + i * D;
        double norm = 0;
        for (int64_t k = 0; k < D; k++) norm += (double)h[k] * (double)h[k];
        norm = norm > 0 ? sqrt(norm) : 1;
        for (int64_t k = 0; k < D; k++) out[i * D + k] = (float)((double)h[k] / norm);
    }
    return ST_OK;
}

static enum status embed(void *ctx, const char *const *codes, int n, bool query, float *out, struct err *e) {
    struct embedder *em = ctx;
    const int64_t D = model_cfg(em->policy.model)->D;
    CLEANUP_FREE struct segment *seg = xcalloc((size_t)n + 1, sizeof *seg);
    struct ids ids = {0};
    enum status st = ST_OK;
    int first = 0, n_seg = 0;
    for (int i = 0; i < n && st == ST_OK; i++) {
        const size_t start = ids.len;
        encode(em, codes[i], query, &ids);
        seg[n_seg++] = (struct segment){(int64_t)start, (int64_t)(ids.len - start), -1, 0};
        if (i + 1 < n && ids.len + (size_t)em->max_tokens <= ROWS_MAX) continue;
        st = pass(em, &ids, seg, n_seg, out + first * D, e);
        first = i + 1;
        n_seg = 0;
        ids.len = 0;
    }
    ids_free(&ids);
    return st;
}

static void close_embedder(void *ctx) {
    struct embedder *em = ctx;
    policy_close(&em->policy);
    free(em->prefix);
    free(em);
}

static enum status open_parts(const struct embedder_options *o, struct embedder *em, struct err *e) {
    const struct policy_options po = {.model = {"model", o->dir, NULL, HUB_MODEL},
                                      .device = o->device,
                                      .pool = o->pool,
                                      .no_chat = true,
                                      .weights = {.dtype = o->dtype, .frozen = true}};
    TRY(policy_begin(&po, NULL, &em->policy, e));
    TRY(policy_load(&po, &em->policy, e));
    const struct model_config *c = model_cfg(em->policy.model);
    if (em->max_tokens > c->max_positions) em->max_tokens = c->max_positions;
    return ST_OK;
}

enum status embedder_open(const struct embedder_options *o, struct rag_embedder *out, struct err *e) {
    struct embedder *em = xcalloc(1, sizeof *em);
    em->prefix = xstrdup(o->prefix ? o->prefix : known_prefix(o->name));
    em->max_tokens = o->max_tokens > 0 ? o->max_tokens : EMBEDDER_MAX_TOKENS;
    const enum status st = open_parts(o, em, e);
    if (st != ST_OK) {
        close_embedder(em);
        return st;
    }
    *out = (struct rag_embedder){model_cfg(em->policy.model)->D, em, embed, close_embedder};
    return ST_OK;
}
