/* added: the tokens that a tokenizer.json adds to its vocabulary, found in a text before it is cut into words. Internal
 * to text. */
#ifndef KERNELRL_ADDED_H
#define KERNELRL_ADDED_H

#include "base/err.h"
#include "base/str.h"

struct added_token {
    const char *p; /* the text that is looked for; of the caller's memory, which outlives the set */
    size_t n;      /* at least 1 */
    int32_t id;
    bool lstrip, rstrip; /* true: white space before it, or behind it, goes with the token */
    bool single_word;    /* true: it counts only where no word character is in front of it or behind it */
};
/* Tokens that are looked for in one pass. Zero: none. */
struct added_set {
    struct added_token *tok; /* [n] */
    size_t n, cap;
    uint64_t first[4];     /* bit b: a token begins with the byte b */
    uint64_t (*two)[4];    /* [256], bit b of row a: a token begins with the bytes a and b, or is a alone */
    struct splitter *word; /* matches a character of a word; NULL unless single_word is asked for */
};
void added_add(struct added_set *s, struct added_token t);
/* Call once all are added, before the first run. */
enum status added_finish(struct added_set *s, struct err *e) MUST_USE;
void added_free(struct added_set *s);
/* Calls fn for each token that is found in text[0..n) and for the text between, in order: id is -1 for text, which is
 * not empty. Of tokens that begin at one place the longest is found. A token may begin in the white space that the one
 * before it took with rstrip: then fn gets these bytes twice. One run at a time. */
typedef void added_fn(void *ctx, const char *p, size_t n, int32_t id);
void added_run(const struct added_set *s, const char *text, size_t n, added_fn *fn, void *ctx);

#endif
