/* detokenize: the text of token ids as they come, one by one. What is given out is final and well-formed UTF-8: a
 * character that is not complete is held back, and so is whatever may become a stop string. The parts together are the
 * text of all ids at once, however they are cut. */
#ifndef KERNELRL_DETOKENIZE_H
#define KERNELRL_DETOKENIZE_H

#include "text/tokenizer.h"
#include "text/unicode.h"

struct detokenize_options { /* what it points to is borrowed */
    const struct tokenizer *tokenizer;
    /* The text ends before the first of these that is complete in the bytes of the drawn tokens, special ones included:
     * the one that ends first, of several the longest. Not empty, at most 65535 bytes. The engine stops with the token
     * in which that end lies. */
    const char *const *stop_strings;
    int n_stop_strings;
    int min_tokens;    /* a string that is complete with so many drawn tokens is none (struct sample_params) */
    bool include_stop; /* true: the string or token that ends the text is a part of it */
    bool skip_special; /* true: special tokens that are drawn have no text */
};

enum detokenize_kind {
    DETOKENIZE_PROMPT, /* comes before all drawn ones; special tokens have their text, and no stop string is looked for
                        */
    DETOKENIZE_DRAWN,
    DETOKENIZE_STOP, /* a drawn token that ends the sample by its id */
};

struct detokenize_matcher;
struct detokenizer {
    int stop; /* which stop string has ended the text, or -1 */
    /* Of the last token: the number of the character in which its text begins, from 0. Without text, the number of the
     * character that is not complete, or else of the next one. It never goes back. */
    int64_t offset;
    int64_t n_drawn; /* tokens */

    struct detokenize_options opt;
    struct detokenize_matcher *match; /* [n_stop_strings] */
    struct str held, shown;           /* bytes that may become a stop string; whether each is text */
    struct utf8_repair out, place;    /* of the text given out; of all text there is, for offsets */
    int64_t begun;                    /* characters that have begun */
};
void detokenize_begin(struct detokenizer *d, const struct detokenize_options *o);
void detokenize_free(struct detokenizer *d);
/* Appends the text that has become final with this token. True: a stop string has ended the text; what is added from
 * then on has none. */
bool detokenize_add(struct detokenizer *d, int32_t id, enum detokenize_kind kind, struct str *out);
/* No token follows: appends what was held back. */
void detokenize_end(struct detokenizer *d, struct str *out);

/* Appends bytes p[0..n) as UTF-8, U+FFFD for what is ill-formed: the text of a single token. */
void detokenize_bytes(const char *p, size_t n, struct str *out);

#endif
