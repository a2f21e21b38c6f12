/* template: the tokens that a tokenizer's files put around a text. tokenizer_encode() leaves them out: a chat template
 * says itself what stands in front of a prompt. Models that embed texts were trained with them. */
#ifndef KERNELRL_TEXT_TEMPLATE_H
#define KERNELRL_TEXT_TEMPLATE_H

#include "text/tokenizer.h"

/* Appends the special tokens that the post_processor of DIR/tokenizer.json puts in front of one text and behind it:
 * {"type": "TemplateProcessing", "single": [{"Sequence": ...}, {"SpecialToken": {"id": "<|endoftext|>"}}]}, alone or in
 * a "Sequence" of processors. None without that file. ST_PARSE: one that is no token. */
enum status template_read(const char *dir, const struct tokenizer *t, struct ids *before, struct ids *after,
                          struct err *e) MUST_USE;

#endif
