/* answer: where a sampled answer ends, and its text. */
#ifndef KERNELRL_POLICY_ANSWER_H
#define KERNELRL_POLICY_ANSWER_H

#include "engine/engine.h"
#include "text/chat.h"

/* The ids that end an answer; for sample_params, which borrow them. */
struct stop_set {
    int32_t ids[10]; /* as many as a model has, and two */
    int n;
};
/* A turn of a chat ends with the template's end-of-turn token or with one of the model's own end tokens. end_of_text:
 * also with "<|endoftext|>", as a text does that is no chat. */
struct stop_set answer_stops(const struct tokenizer *t, enum chat_style style, const struct model_config *c,
                             bool end_of_text);

/* Appends the text of a sample. The token or the stop string that ended it, and what the last token has behind that
 * string, are no part of it. p: what was sampled with; NULL: without stop strings. skip_special: special tokens in the
 * sample have no text. */
void answer_text(const struct tokenizer *t, const struct sample *s, const struct sample_params *p, bool skip_special,
                 struct str *out);

#endif
