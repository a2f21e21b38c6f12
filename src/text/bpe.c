#include "text/bpe.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

/* ---- GPT-2's byte alphabet ----------------------------------------------------------------------------------------*/

static bool prints_as_itself(unsigned b) {
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}

uint32_t bytelevel_char(unsigned char byte) {
    if (prints_as_itself(byte)) return byte;
    uint32_t before = 0; /* the others get U+0100, U+0101, ... in byte order */
    for (unsigned b = 0; b < byte; b++) before += !prints_as_itself(b);
    return 0x100 + before;
}

void bytelevel_spell(const char *p, size_t n, struct str *out) {
    for (size_t i = 0; i < n; i++) {
        uint32_t c = bytelevel_char((unsigned char)p[i]);
        if (c < 0x80) {
            str_addc(out, (char)c);
        } else {
            str_addc(out, (char)(0xC0 | c >> 6));
            str_addc(out, (char)(0x80 | (c & 0x3F)));
        }
    }
}

/* Byte of each code point below U+0180, -1 where there is none. */
static int16_t byte_of_char_table[0x180];
static void fill_byte_of_char(void) {
    memset(byte_of_char_table, 0xFF, sizeof byte_of_char_table);
    for (unsigned b = 0; b < 256; b++) byte_of_char_table[bytelevel_char((unsigned char)b)] = (int16_t)b;
}
static const int16_t *byte_of_char(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_byte_of_char);
    return byte_of_char_table;
}

size_t bytelevel_unspell(const char *s, size_t n, char *out) {
    const int16_t *table = byte_of_char();
    size_t len = 0;
    for (size_t i = 0; i < n;) {
        unsigned c = (unsigned char)s[i++];
        if (c >= 0x80) {
            if (c < 0xC2 || c > 0xC5 || i == n) goto itself;
            c = (c & 0x1F) << 6 | ((unsigned char)s[i++] & 0x3F);
        }
        if (table[c] < 0) goto itself;
        out[len++] = (char)table[c];
    }
    return len;
itself:
    memcpy(out, s, n);
    return n;
}

/* ---- tables -------------------------------------------------------------------------------------------------------*/

struct bpe_slot {
    uint64_t pair; /* left << 32 | right */
    uint32_t rank; /* UINT32_MAX: free */
};

/* Short words repeat: a direct-mapped cache of them saves most merging. Bounded, so it can stay for the process. */
enum { CACHE_SLOTS = 1 << 15, CACHE_KEY = 30, CACHE_IDS = 8, MAX_ID = 1 << 24 };
struct bpe_cached {
    uint8_t n_key, n_ids; /* n_ids 0: free */
    char key[CACHE_KEY];
    int32_t ids[CACHE_IDS];
};

void bpe_init(struct bpe *b) {
    *b = (struct bpe){0};
    b->cache = xcalloc(CACHE_SLOTS, sizeof *b->cache);
}

void bpe_free(struct bpe *b) {
    arena_free(&b->mem);
    free(b->tok);
    free(b->by_bytes);
    free(b->merge);
    free(b->by_pair);
    free(b->cache);
    free(b->node);
    free(b->heap);
    *b = (struct bpe){0};
}

/* Slot that holds the bytes, or the free one where they belong. */
static size_t bytes_slot(const struct bpe *b, const char *p, size_t n) {
    size_t mask = b->by_bytes_cap - 1, i = hash_bytes(p, n, 0) & mask;
    for (;; i = (i + 1) & mask) {
        int32_t id = b->by_bytes[i];
        if (id < 0 || (b->tok[id].n == n && memcmp(b->tok[id].p, p, n) == 0)) return i;
    }
}

static void bytes_grow(struct bpe *b) {
    size_t old_cap = b->by_bytes_cap;
    int32_t *old = b->by_bytes;
    b->by_bytes_cap = old_cap ? old_cap * 2 : 1024;
    b->by_bytes = xmalloc(b->by_bytes_cap * sizeof *b->by_bytes);
    memset(b->by_bytes, 0xFF, b->by_bytes_cap * sizeof *b->by_bytes);
    for (size_t i = 0; i < old_cap; i++)
        if (old[i] >= 0) b->by_bytes[bytes_slot(b, b->tok[old[i]].p, b->tok[old[i]].n)] = old[i];
    free(old);
}

int32_t bpe_find(const struct bpe *b, const char *p, size_t n) {
    return b->by_bytes_cap ? b->by_bytes[bytes_slot(b, p, n)] : -1;
}

enum status bpe_add_token(struct bpe *b, const char *p, size_t n, int32_t id, enum bpe_source source, bool special,
                          struct err *e) {
    if (id < 0 || id >= MAX_ID)
        return FAIL(e, ST_INVALID, "token \"%.*s\": id %d is not in 0..%d", (int)(n < 60 ? n : 60), p, id, MAX_ID - 1);
    if (n == 0) return FAIL(e, ST_INVALID, "token %d is empty", id);
    if (id >= b->cap_tok) {
        int32_t cap = b->cap_tok ? b->cap_tok : 1024;
        while (cap <= id) cap *= 2;
        b->tok = xrealloc(b->tok, (size_t)cap * sizeof *b->tok);
        memset(b->tok + b->cap_tok, 0, (size_t)(cap - b->cap_tok) * sizeof *b->tok);
        b->cap_tok = cap;
    }
    struct bpe_token *t = &b->tok[id];
    if (t->p) {
        if (t->n != n || memcmp(t->p, p, n) != 0)
            return FAIL(e, ST_INVALID, "id %d is given to \"%.*s\" and to \"%.*s\"", id, (int)(t->n < 60 ? t->n : 60),
                        t->p, (int)(n < 60 ? n : 60), p);
        t->word = t->word || source == BPE_WORD;
        t->special = t->special || special;
        return ST_OK;
    }
    *t = (struct bpe_token){arena_strndup(&b->mem, p, n), (uint32_t)n, source == BPE_WORD, special};
    if (id >= b->n_tok) b->n_tok = id + 1;
    if (b->by_bytes_len * 2 >= b->by_bytes_cap) bytes_grow(b);
    size_t slot = bytes_slot(b, p, n);
    b->by_bytes_len += b->by_bytes[slot] < 0;
    b->by_bytes[slot] = id; /* an added token with an ordinary token's text takes its place */
    return ST_OK;
}

static size_t pair_slot(const struct bpe *b, uint64_t pair) {
    size_t mask = b->by_pair_cap - 1;
    uint64_t h = pair * 0x9E3779B97F4A7C15u;
    size_t i = (size_t)(h ^ h >> 32) & mask;
    while (b->by_pair[i].rank != UINT32_MAX && b->by_pair[i].pair != pair) i = (i + 1) & mask;
    return i;
}

static uint64_t pair_key(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }

/* Rank of the merge of a pair, UINT32_MAX when it has none. */
static uint32_t pair_rank(const struct bpe *b, int32_t left, int32_t right) {
    return b->by_pair_cap ? b->by_pair[pair_slot(b, pair_key(left, right))].rank : UINT32_MAX;
}

static void pair_grow(struct bpe *b) {
    size_t old_cap = b->by_pair_cap;
    struct bpe_slot *old = b->by_pair;
    b->by_pair_cap = old_cap ? old_cap * 2 : 1024;
    b->by_pair = xmalloc(b->by_pair_cap * sizeof *b->by_pair);
    for (size_t i = 0; i < b->by_pair_cap; i++) b->by_pair[i] = (struct bpe_slot){0, UINT32_MAX};
    for (size_t i = 0; i < old_cap; i++)
        if (old[i].rank != UINT32_MAX) b->by_pair[pair_slot(b, old[i].pair)] = old[i];
    free(old);
}

enum status bpe_add_merge(struct bpe *b, const char *left, size_t n_left, const char *right, size_t n_right,
                          struct err *e) {
    CLEANUP_STR struct str both = STR_INIT;
    str_add(&both, left, n_left);
    str_add(&both, right, n_right);
    struct bpe_merge m = {bpe_find(b, left, n_left), bpe_find(b, right, n_right), bpe_find(b, both.p, both.len)};
    if (m.left < 0 || m.right < 0 || m.merged < 0)
        return FAIL(e, ST_INVALID, "merge %u (\"%.*s\" + \"%.*s\") uses or makes a token that is not in the vocabulary",
                    b->n_merge, (int)(n_left < 60 ? n_left : 60), left, (int)(n_right < 60 ? n_right : 60), right);
    if (b->n_merge == b->cap_merge) {
        b->cap_merge = b->cap_merge ? b->cap_merge * 2 : 1024;
        b->merge = xrealloc(b->merge, b->cap_merge * sizeof *b->merge);
    }
    if (b->by_pair_len * 2 >= b->by_pair_cap) pair_grow(b);
    uint64_t key = pair_key(m.left, m.right);
    size_t slot = pair_slot(b, key);
    b->by_pair_len += b->by_pair[slot].rank == UINT32_MAX;
    b->by_pair[slot] = (struct bpe_slot){key, b->n_merge}; /* a repeated pair keeps its last rank */
    b->merge[b->n_merge++] = m;
    return ST_OK;
}

enum status bpe_finish(struct bpe *b, struct err *e) {
    for (unsigned i = 0; i < 256; i++) {
        char c = (char)i;
        b->byte_id[i] = bpe_find(b, &c, 1);
        if (b->byte_id[i] < 0)
            return FAIL(e, ST_INVALID, "vocabulary: no token for byte 0x%02x; a byte-level vocabulary has all 256", i);
    }
    return ST_OK;
}

/* ---- merging ------------------------------------------------------------------------------------------------------*/

/* A word is a linked list of symbols in an array; a symbol that was merged into its left neighbour has id -1. The heap
 * holds candidate merges by (rank, position); entries that no longer hold when they come up are skipped. */
struct bpe_node {
    int32_t id, prev, next; /* -1: none */
};
struct bpe_queued {
    uint32_t rank;
    int32_t at; /* index of the left symbol */
};

static bool queued_before(struct bpe_queued a, struct bpe_queued b) {
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void heap_push(struct bpe_queued *h, size_t *len, struct bpe_queued x) {
    size_t i = (*len)++;
    for (size_t up; i > 0 && queued_before(x, h[up = (i - 1) / 2]); i = up) h[i] = h[up];
    h[i] = x;
}

static struct bpe_queued heap_pop(struct bpe_queued *h, size_t *len) {
    struct bpe_queued top = h[0], x = h[--*len];
    size_t i = 0, n = *len;
    for (size_t kid; (kid = 2 * i + 1) < n; i = kid) {
        if (kid + 1 < n && queued_before(h[kid + 1], h[kid])) kid++;
        if (!queued_before(h[kid], x)) break;
        h[i] = h[kid];
    }
    if (n) h[i] = x;
    return top;
}

static void merge_word(struct bpe *b, const char *p, size_t n, struct ids *out) {
    if (b->node_cap < n) {
        b->node_cap = n * 2;
        b->node = xrealloc(b->node, b->node_cap * sizeof *b->node);
    }
    /* Every merge removes a symbol and queues at most two candidates: 3n entries ever, so the heap never grows. */
    if (b->heap_cap < 3 * n) {
        b->heap_cap = 6 * n;
        b->heap = xrealloc(b->heap, b->heap_cap * sizeof *b->heap);
    }
    struct bpe_node *node = b->node;
    size_t queued = 0;
    for (size_t i = 0; i < n; i++)
        node[i] = (struct bpe_node){b->byte_id[(unsigned char)p[i]], (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1};
    for (size_t i = 0; i + 1 < n; i++) {
        uint32_t rank = pair_rank(b, node[i].id, node[i + 1].id);
        if (rank != UINT32_MAX) heap_push(b->heap, &queued, (struct bpe_queued){rank, (int32_t)i});
    }
    while (queued) {
        struct bpe_queued q = heap_pop(b->heap, &queued);
        const struct bpe_merge *m = &b->merge[q.rank];
        struct bpe_node *l = &node[q.at];
        if (l->id != m->left || l->next < 0 || node[l->next].id != m->right) continue; /* overtaken */
        struct bpe_node *r = &node[l->next];
        l->id = m->merged;
        r->id = -1;
        l->next = r->next;
        if (l->next >= 0) {
            node[l->next].prev = q.at;
            uint32_t rank = pair_rank(b, l->id, node[l->next].id);
            if (rank != UINT32_MAX) heap_push(b->heap, &queued, (struct bpe_queued){rank, q.at});
        }
        if (l->prev >= 0) {
            uint32_t rank = pair_rank(b, node[l->prev].id, l->id);
            if (rank != UINT32_MAX) heap_push(b->heap, &queued, (struct bpe_queued){rank, l->prev});
        }
    }
    for (int32_t i = 0; i >= 0; i = node[i].next) ids_add(out, node[i].id);
}

void bpe_word(struct bpe *b, const char *p, size_t n, struct ids *out) {
    ASSERT(n < INT32_MAX / 8);
    if (n == 0) return;
    if (n == 1) {
        ids_add(out, b->byte_id[(unsigned char)p[0]]);
        return;
    }
    struct bpe_cached *c = NULL;
    if (n <= CACHE_KEY) {
        c = &b->cache[hash_bytes(p, n, 0) % CACHE_SLOTS];
        if (c->n_ids && c->n_key == n && memcmp(c->key, p, n) == 0) {
            for (int i = 0; i < c->n_ids; i++) ids_add(out, c->ids[i]);
            return;
        }
    }
    size_t from = out->len;
    int32_t whole = b->whole_words ? bpe_find(b, p, n) : -1;
    if (whole >= 0 && b->tok[whole].word)
        ids_add(out, whole);
    else
        merge_word(b, p, n, out);
    if (c && out->len - from <= CACHE_IDS) {
        c->n_key = (uint8_t)n;
        c->n_ids = (uint8_t)(out->len - from);
        memcpy(c->key, p, n);
        memcpy(c->ids, out->p + from, c->n_ids * sizeof *c->ids);
    }
}
