/* split: cuts text by a regular expression, as Hugging Face's Split does. Internal to text. */
#ifndef KERNELRL_SPLIT_H
#define KERNELRL_SPLIT_H

#include "base/err.h"

/* The patterns of Qwen2, Qwen2.5 and Qwen3, and of GPT-2 (ByteLevel with use_regex). */
extern const char SPLIT_QWEN2[], SPLIT_GPT2[];

struct splitter;
/* Compiles a pattern of tokenizer.json (pattern.h) with PCRE2: UTF, UCP, JIT where the system allows it. ST_PARSE: it
 * is no regular expression; the message has the place. ST_UNSUPPORTED: the engine of the other tokenizers reads it in a
 * way that PCRE2 does not. */
enum status splitter_create(const char *pattern, struct splitter **out, struct err *e) MUST_USE;
void splitter_free(struct splitter *s); /* NULL is fine */
/* Calls fn for each piece of text[0..n), in order; together the pieces are the text. A piece is a match, or what lies
 * between two matches (match false); none is empty, but an empty match parts the text where it is. The text must be
 * well-formed UTF-8. One run at a time per splitter. */
typedef void split_fn(void *ctx, const char *piece, size_t n, bool match);
void splitter_run(struct splitter *s, const char *text, size_t n, split_fn *fn, void *ctx);

#endif
