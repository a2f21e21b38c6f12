/* split: the pre-tokenizer. Cuts text into words by a regular expression, exactly as a Hugging Face Split step with
 * behaviour "Isolated" does: every match is a word, and so is the text between two matches. Internal to text. */
#ifndef KERNELRL_SPLIT_H
#define KERNELRL_SPLIT_H

#include "base/err.h"

/* The patterns of Qwen2, Qwen2.5 and Qwen3, and of GPT-2 (ByteLevel with use_regex). */
extern const char SPLIT_QWEN2[], SPLIT_GPT2[];

struct splitter;
/* Compiles a pattern (PCRE2, UTF and UCP, JIT where the system allows it). `\s` means Unicode White_Space as in the
 * regex engines of the other tokenizers; PCRE2's own also takes U+180E. Errors: ST_PARSE with the place. */
enum status splitter_create(const char *pattern, struct splitter **out, struct err *e) MUST_USE;
void splitter_free(struct splitter *s); /* NULL is fine */
/* Calls fn for each word of text[0..n), in order; together the words are the text. The text must be well-formed UTF-8.
 * One run at a time per splitter. */
typedef void split_fn(void *ctx, const char *word, size_t n);
void splitter_run(struct splitter *s, const char *text, size_t n, split_fn *fn, void *ctx);

#endif
