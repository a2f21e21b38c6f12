/* chat: ChatML rendering (rl-free: roles in, token ids out). Only the template's own markers become special tokens;
 * message contents never do. Each style follows the chat_template of its checkpoints, tools included. Qwen3's history
 * loses the think blocks of the assistant's turns before the last user message that is no mere <tool_response>; later
 * turns keep theirs, and a final assistant turn gets one even when it is empty. */
#ifndef KERNELRL_CHAT_H
#define KERNELRL_CHAT_H

#include "base/choice.h"
#include "text/tokenizer.h"

/* What a template does about the thoughts of the assistant. */
enum chat_thoughts {
    CHAT_NO_THOUGHTS,   /* nothing: its turns stand in the history as they are */
    CHAT_THOUGHTS,      /* a history loses old thoughts; the model begins its own after "assistant\n" */
    CHAT_EMPTY_THOUGHT, /* a history loses old thoughts; a new turn begins with an empty think block */
};

/* The templates. X(value, name, family, thoughts, system message of a conversation that has none, or NULL). The names
 * are those of the Tinker cookbook's renderers. A family is the templates of one kind of model: chat_style_choose()
 * takes the first row that fits, so the usual ones come first. FIRST, NEXT and LAST are X with what separates a row
 * from the one before it. */
/* clang-format off */
#define CHAT_STYLE_ROWS(FIRST, NEXT, LAST) \
    FIRST(CHAT_QWEN25, "qwen2.5", "qwen2.5", CHAT_NO_THOUGHTS, \
          "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.") \
    NEXT(CHAT_QWEN3, "qwen3", "qwen3", CHAT_THOUGHTS, NULL) \
    NEXT(CHAT_QWEN3_NOTHINK, "qwen3_disable_thinking", "qwen3", CHAT_EMPTY_THOUGHT, NULL) \
    LAST(CHAT_QWEN3_INSTRUCT, "qwen3_instruct", "qwen3", CHAT_NO_THOUGHTS, NULL) /* Qwen3-2507-Instruct */
/* clang-format on */
#define CHAT_STYLE_LIST(X) CHAT_STYLE_ROWS(X, X, X)
enum chat_style { CHOICE_ENUM(CHAT_STYLE_LIST) N_CHAT_STYLES };

/* The names as a string constant: "a, b, c", and "a, b or c". */
#define CHAT_STYLE_NAMES CHAT_STYLE_ROWS(CHAT_NAME_, CHAT_COMMA_NAME_, CHAT_COMMA_NAME_)
#define CHAT_STYLE_EXPECTED CHAT_STYLE_ROWS(CHAT_NAME_, CHAT_COMMA_NAME_, CHAT_OR_NAME_)
#define CHAT_NAME_(id, name, ...) name
#define CHAT_COMMA_NAME_(id, name, ...) ", " name
#define CHAT_OR_NAME_(id, name, ...) " or " name

struct chat_call {                /* of a tool, in a turn of the assistant */
    const char *name, *arguments; /* arguments: JSON text, which stands in the prompt as it is */
};
struct chat_message {
    const char *role;    /* system, user, assistant, tool */
    const char *content; /* UTF-8 */
    /* Of the assistant: */
    const char *reasoning; /* its thought, where content does not hold it ("reasoning_content"); NULL: none */
    const struct chat_call *calls;
    int n_calls;
};
enum chat_end {
    CHAT_CLOSED,   /* the last turn has ended */
    CHAT_GENERATE, /* the assistant's turn has begun ("add_generation_prompt") */
    CHAT_CONTINUE, /* the last message's turn goes on behind its content ("continue_final_message"); its calls are left
                      out */
};
const char *chat_style_name(enum chat_style style);
enum status chat_style_parse(const char *name, enum chat_style *out, struct err *e) MUST_USE;
/* The style that renderer names; ST_CONFIG when there is none of that name. Where renderer is NULL or "", the first
 * style of the family in which the model thinks, or in which it does not. Where the family has none of these, its first
 * style. The table must have the family. */
enum status chat_style_choose(const char *renderer, const char *family, bool thinking, enum chat_style *out,
                              struct err *e) MUST_USE;
/* The style of the same templates in which the model thinks, or does not ("enable_thinking"); the style itself where
 * its template has no such switch. */
enum chat_style chat_style_thinking(enum chat_style style, bool thinking);
/* Id of the token that ends a turn, or -1 where the tokenizer lacks it. */
int32_t chat_end_of_turn(const struct tokenizer *t);
/* The tools that the assistant may call: a JSON text each, as js_add_python() of io/json.h writes it. */
struct chat_tools {
    const char *const *text;
    size_t n;
};
/* Appends the text of the whole conversation. */
void chat_render(enum chat_style style, const struct chat_message *m, size_t n, enum chat_end end, struct str *out);
/* Appends the same as token ids: those of the rendered text, except that markers inside contents stay text. */
void chat_encode(struct tokenizer *t, enum chat_style style, const struct chat_message *m, size_t n, enum chat_end end,
                 struct ids *out);
/* The same with tools, which stand in the system's turn. */
void chat_render_tools(enum chat_style style, struct chat_tools tools, const struct chat_message *m, size_t n,
                       enum chat_end end, struct str *out);
void chat_encode_tools(struct tokenizer *t, enum chat_style style, struct chat_tools tools,
                       const struct chat_message *m, size_t n, enum chat_end end, struct ids *out);

#endif
