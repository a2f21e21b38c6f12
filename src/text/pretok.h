/* pretok: the pre-tokenizer of a tokenizer.json: the steps that cut text into the words within which tokens are merged.
 * Internal to text. */
#ifndef KERNELRL_PRETOK_H
#define KERNELRL_PRETOK_H

#include <jansson.h>

#include "base/err.h"

struct pretok;
/* From the value of "pre_tokenizer": Sequence, Split, Digits, Punctuation and, as the last one, ByteLevel, which must
 * be there. ST_UNSUPPORTED names another type, or what is not done. */
enum status pretok_load(const json_t *j, struct pretok **out, struct err *e) MUST_USE;
/* One step: every match of the pattern is a word, and so is what lies between two matches. */
enum status pretok_pattern(const char *pattern, struct pretok **out, struct err *e) MUST_USE;
void pretok_free(struct pretok *p); /* NULL is fine */
/* Calls fn for each word of the well-formed text[0..n), in order. Together the words are the text, but for spaces that
 * ByteLevel's add_prefix_space puts in front, and for what a Split with the behavior Removed leaves out. A word is
 * valid during its call. One run at a time. */
typedef void pretok_fn(void *ctx, const char *word, size_t n);
void pretok_run(struct pretok *p, const char *text, size_t n, pretok_fn *fn, void *ctx);

#endif
