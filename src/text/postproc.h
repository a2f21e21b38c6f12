/* postproc: the post-processor of a tokenizer.json: the tokens that stand around a text, such as beginning-of-text.
 * Internal to text. */
#ifndef KERNELRL_POSTPROC_H
#define KERNELRL_POSTPROC_H

#include <jansson.h>

#include "text/tokenizer.h"

/* The ids in front of one text and behind it, from the value of "post_processor": TemplateProcessing (its template
 * "single"), RobertaProcessing, BertProcessing, ByteLevel, which adds nothing, and a Sequence of these. ST_UNSUPPORTED
 * names another type. */
enum status postproc_load(const json_t *j, struct ids *before, struct ids *after, struct err *e) MUST_USE;

#endif
