/* chat: ChatML rendering for Qwen2.5 and Qwen3 (rl-free: roles in, token ids out). Only the template's own markers
 * become special tokens; message contents never do. Follows the checkpoints' chat_template without its tool section.
 * Qwen3's history loses the think blocks of the assistant's turns before the last user message that is no mere
 * <tool_response>; later turns keep theirs, and a final assistant turn gets one even when it is empty. */
#ifndef KERNELRL_CHAT_H
#define KERNELRL_CHAT_H

#include "text/tokenizer.h"

enum chat_style {
    CHAT_QWEN25,         /* inserts Qwen2.5's default system message when there is none */
    CHAT_QWEN3,          /* thinking: generation prompt ends after "assistant\n" */
    CHAT_QWEN3_NOTHINK,  /* an empty think block is prefilled */
    CHAT_QWEN3_INSTRUCT, /* Qwen3-2507-Instruct: no thinking, nothing prefilled */
};
struct chat_message {
    const char *role;    /* system, user, assistant */
    const char *content; /* UTF-8 */
};
/* Names: qwen2.5, qwen3, qwen3_disable_thinking, qwen3_instruct (the names of the Tinker cookbook's renderers). */
enum status chat_style_parse(const char *name, enum chat_style *out, struct err *e) MUST_USE;
/* Appends the text of the whole conversation; with generation_prompt it ends where the assistant is to go on. */
void chat_render(enum chat_style style, const struct chat_message *m, size_t n, bool generation_prompt,
                 struct str *out);
/* Appends the same as token ids: those of the rendered text, except that markers inside contents stay text. */
void chat_encode(struct tokenizer *t, enum chat_style style, const struct chat_message *m, size_t n,
                 bool generation_prompt, struct ids *out);

#endif
