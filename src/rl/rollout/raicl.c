#include "rl/rollout/raicl.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "policy/find_model.h"
#include "rag/embedder.h"
#include "rag/rag.h"
#include "tensor/backend.h"

struct raicl_choice { /* of one problem */
    struct digest key;
    struct prompt_example example[PROMPT_EXAMPLES_MAX];
    int n;
};
struct raicl {
    struct raicl_options o;
    struct rag_index *index;
    struct arena arena;           /* texts of the examples */
    struct raicl_choice **choice; /* [n] in order of first use */
    size_t n, cap;
};

/* RAG_DEVICE speaks the language of other programs, too. */
static enum status choose_device(const char *given, const char **out, struct err *e) {
    const char *env = getenv("RAG_DEVICE");
    *out = env && *env ? env : given && *given ? given : "cpu";
    if (backend_device_valid(*out)) return ST_OK;
    return FAIL(e, ST_CONFIG, "%s: expected cpu, cuda or cuda:N, got \"%s\"", env && *env ? "RAG_DEVICE" : "device",
                *out);
}

enum status raicl_embedder(const char *model, const char *prefix, const char *device, struct pool *pool,
                           const volatile bool *cancel, struct rag_embedder *out, struct err *e) {
    CLEANUP_FREE char *dir = NULL;
    const char *where;
    TRY(choose_device(device, &where, e));
    if (locate("model", HUB_MODEL, model, NULL, cancel, &dir, e) != ST_OK) {
        const struct err first = *e;
        return FAIL(e, first.code, "%s. An index of --model lexical needs no embedding model", first.msg);
    }
    const struct embedder_options o = {.dir = dir, .name = model, .prefix = prefix, .device = where, .pool = pool};
    return embedder_open(&o, out, e);
}

static const char index_key[] = "dataset_builder.rag_index_path";

enum status raicl_index_there(const char *index_path, struct err *e) {
    if (!index_path || !*index_path)
        return FAIL(e, ST_CONFIG, "%s: expected the folder of an index (kernelrl build-rag-index makes one)",
                    index_key);
    return rag_index_there(index_path, e) == ST_OK ? ST_OK : err_note(e, "%s", index_key);
}

enum status raicl_open(const struct raicl_options *o, struct raicl **out, struct err *e) {
    struct raicl *r = xcalloc(1, sizeof *r);
    r->o = *o;
    enum status st;
    TRY_GOTO(raicl_index_there(o->examples.index_path, e), out);
    if ((st = rag_index_open(o->examples.index_path, o->pool, &r->index, e)) != ST_OK) {
        err_note(e, "%s", index_key);
        goto out;
    }
    if (strcmp(rag_index_model(r->index), RAG_LEXICAL) != 0) {
        struct rag_embedder em;
        TRY_GOTO(raicl_embedder(rag_index_model(r->index), rag_index_query_prefix(r->index), o->device, o->pool,
                                o->cancel, &em, e),
                 out);
        TRY_GOTO(rag_index_embedder(r->index, em, e), out);
    }
    log_info("%s: %lld records, embedded by %s", o->examples.index_path, (long long)rag_index_count(r->index),
             rag_index_model(r->index));
out:
    if (st == ST_OK)
        *out = r;
    else
        raicl_close(r);
    return st;
}

void raicl_close(struct raicl *r) {
    if (!r) return;
    rag_index_close(r->index);
    for (size_t i = 0; i < r->n; i++) free(r->choice[i]);
    free(r->choice);
    arena_free(&r->arena);
    free(r);
}

/* Tokens of an example as the prompt shows it, but for the few around it; without a tokenizer a guess. */
static int64_t tokens_of(const struct raicl *r, const struct prompt_example *x) {
    struct ids ids = {0};
    if (!r->o.tok) return (int64_t)(strlen(x->code) + strlen(x->kernel)) / 4;
    tokenizer_encode(r->o.tok, x->code, strlen(x->code), false, &ids);
    tokenizer_encode(r->o.tok, x->kernel, strlen(x->kernel), false, &ids);
    const int64_t n = (int64_t)ids.len;
    ids_free(&ids);
    return n;
}

static enum status look_up(struct raicl *r, const struct problem *p, struct raicl_choice *c, struct err *e) {
    /* As many more as there are places: some may be too long. */
    struct rag_example found[2 * PROMPT_EXAMPLES_MAX];
    const struct rag_query q = {.code = p->code, .name = p->name, .backend = r->o.backend, .k = 2 * r->o.examples.k};
    struct arena a = ARENA_INIT;
    int n = 0;
    int64_t used = 0;
    const enum status st = rag_retrieve(r->index, &q, &a, found, &n, e);
    for (int i = 0; st == ST_OK && i < n && c->n < r->o.examples.k; i++) {
        struct prompt_example x = {found[i].r.pytorch_code, found[i].r.kernel_code};
        const int64_t tokens = tokens_of(r, &x);
        if (r->o.examples.max_tokens > 0 && used + tokens > r->o.examples.max_tokens) continue;
        used += tokens;
        c->example[c->n++] =
            (struct prompt_example){arena_strdup(&r->arena, x.code), arena_strdup(&r->arena, x.kernel)};
    }
    arena_free(&a);
    return st;
}

enum status raicl_examples(struct raicl *r, const struct problem *p, const struct prompt_example **out, int *n,
                           struct err *e) {
    const struct digest key = digest_of(p->code, strlen(p->code));
    struct raicl_choice *c = NULL;
    for (size_t i = 0; i < r->n && !c; i++)
        if (digest_equal(&r->choice[i]->key, &key)) c = r->choice[i];
    if (!c) {
        c = xcalloc(1, sizeof *c);
        c->key = key;
        const enum status st = look_up(r, p, c, e);
        if (st != ST_OK) {
            free(c);
            return st;
        }
        if (r->n == r->cap)
            r->choice = xrealloc(r->choice, (r->cap = r->cap ? 2 * r->cap : 64) * sizeof(struct raicl_choice *));
        r->choice[r->n++] = c;
    }
    *out = c->example;
    *n = c->n;
    return ST_OK;
}
