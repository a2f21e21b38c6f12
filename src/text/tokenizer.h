/* text: from bytes to token ids and back. Owns the byte-level BPE tokenizer (any tokenizer.json of that kind, with the
 * pattern that it has) and chat templates (chat.h). May include base and io. */
#ifndef KERNELRL_TOKENIZER_H
#define KERNELRL_TOKENIZER_H

#include "base/err.h"
#include "base/str.h"

struct tokenizer;
struct ids { /* growing array of token ids; the caller owns it */
    int32_t *p;
    size_t len, cap;
};
void ids_add(struct ids *v, int32_t id);
void ids_free(struct ids *v);

/* DIR holds tokenizer.json, or vocab.json + merges.txt (+ tokenizer_config.json for added tokens). Files that ask for
 * what is not done here (another normalizer, pre-tokenizer, model) are refused: ST_UNSUPPORTED, the message names the
 * file and the key. */
enum status tokenizer_open(const char *dir, struct tokenizer **out, struct err *e) MUST_USE;
void tokenizer_close(struct tokenizer *t);
int32_t tokenizer_vocab(const struct tokenizer *t); /* one more than the largest id */
/* Appends the ids of text[0..n). With specials, added tokens are recognised in the text; without, their characters are
 * encoded as ordinary text (use this for anything a person, a model or a problem wrote). Any bytes are accepted: what
 * is no UTF-8 becomes byte tokens that decode to the same bytes; well-formed text decodes to its NFC. O(n log n) in the
 * worst case. Uses caches inside t: one thread at a time. */
void tokenizer_encode(struct tokenizer *t, const char *text, size_t n, bool specials, struct ids *out);
/* The same with what the file's post-processor puts around a text, such as beginning-of-text: for a text that stands by
 * itself. A chat template has its own, so a chat needs this not. */
void tokenizer_encode_whole(struct tokenizer *t, const char *text, size_t n, bool specials, struct ids *out);
const struct ids *tokenizer_before(const struct tokenizer *t); /* what that is */
const struct ids *tokenizer_after(const struct tokenizer *t);
/* Appends the bytes of the ids. Added tokens marked special are left out when skip_special. */
void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special, struct str *out);
/* Bytes of one token; valid while the tokenizer is open. Unknown ids give length 0. */
const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *n);
/* True: the id is of an added token that is marked special. Text without special tokens leaves it out. */
bool tokenizer_special(const struct tokenizer *t, int32_t id);
/* Id of an added or ordinary token by its exact text (bytes, not the printable spelling of the files), or -1. */
int32_t tokenizer_id(const struct tokenizer *t, const char *token);

#endif
