/* bpe: byte-pair encoding over bytes: the token table, the merges, and the merging of one word. Internal to text and
 * to the tokenizer trainer. Byte-level files spell each byte as a printable character (GPT-2's alphabet); everything
 * here works on plain bytes, and the spelling is undone while loading. */
#ifndef KERNELRL_BPE_H
#define KERNELRL_BPE_H

#include "base/arena.h"
#include "base/err.h"
#include "text/tokenizer.h"

/* GPT-2's alphabet: the printable character of each byte, a code point below U+0180. */
uint32_t bytelevel_char(unsigned char byte);
/* Appends the spelling of bytes p[0..n). */
void bytelevel_spell(const char *p, size_t n, struct str *out);
/* Undoes the spelling of s[0..n) into out (at least n bytes) and returns the length; text that holds a character
 * outside the alphabet stands for itself. */
size_t bytelevel_unspell(const char *s, size_t n, char *out);

struct bpe_token {
    const char *p; /* bytes; NULL: no such id */
    uint32_t n;
    bool word; /* true: a word of these bytes is the token, where words are taken whole */
    bool special;
};
struct bpe_merge {
    int32_t left, right, merged;
};
struct bpe_slot; /* of the hash tables in bpe.c */
struct bpe_cached;
struct bpe {
    struct arena mem;
    struct bpe_token *tok; /* [n_tok] by id */
    int32_t n_tok, cap_tok;
    int32_t *by_bytes; /* hash table of ids, -1 free */
    size_t by_bytes_cap, by_bytes_len;
    struct bpe_merge *merge; /* [n_merge] by rank */
    uint32_t n_merge, cap_merge;
    struct bpe_slot *by_pair; /* hash table (left, right) -> rank */
    size_t by_pair_cap, by_pair_len;
    int32_t byte_id[256];
    bool whole_words; /* true: a word that is a token is taken as it is (Llama 3's ignore_merges) */
    struct bpe_cached *cache;
    struct bpe_node *node; /* scratch of bpe_word */
    struct bpe_queued *heap;
    size_t node_cap, heap_cap;
};
void bpe_init(struct bpe *b);
void bpe_free(struct bpe *b);
/* Where a token comes from: the vocabulary, in which it is spelled in the byte-level alphabet or, like text that holds
 * other characters, not; or the list of added tokens. */
enum bpe_source { BPE_WORD, BPE_RAW, BPE_ADDED };
/* Adds token p[0..n) (copied) under id. An added token may repeat an ordinary one with the same id. Errors: id out of
 * range or taken by other bytes. */
enum status bpe_add_token(struct bpe *b, const char *p, size_t n, int32_t id, enum bpe_source source, bool special,
                          struct err *e) MUST_USE;
/* Adds the next merge, in order of rank. Both parts and their concatenation must be tokens. */
enum status bpe_add_merge(struct bpe *b, const char *left, size_t n_left, const char *right, size_t n_right,
                          struct err *e) MUST_USE;
/* Call once all is added: checks that every byte is a token, so that any text can be encoded. */
enum status bpe_finish(struct bpe *b, struct err *e) MUST_USE;
/* Id of the token with exactly these bytes, or -1. */
int32_t bpe_find(const struct bpe *b, const char *p, size_t n);
/* Appends the ids of one word: merges lowest rank first, leftmost on ties. O(n log n), any n below 2^31. */
void bpe_word(struct bpe *b, const char *p, size_t n, struct ids *out);

#endif
