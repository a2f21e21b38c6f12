/* chat: conversations as the chat templates of models render them: roles in, token ids out. Only the template's own
 * markers become special tokens; message contents never do. Each style follows the chat_template of its checkpoints,
 * without definitions of tools; their calls and results in a history are rendered. chatml.c, chat_llama.c and
 * chat_deepseek.c say what each kind does. Which style a checkpoint's template is, chat_template.h knows. */
#ifndef KERNELRL_CHAT_H
#define KERNELRL_CHAT_H

#include "base/choice.h"
#include "text/tokenizer.h"

/* What a template does about the thoughts of the assistant. */
enum chat_thoughts {
    CHAT_NO_THOUGHTS,   /* nothing: its turns stand in the history as they are */
    CHAT_THOUGHTS,      /* a history loses old thoughts; the model begins its own after "assistant\n" */
    CHAT_EMPTY_THOUGHT, /* a history loses old thoughts; a new turn begins with an empty think block */
    CHAT_OPEN_THOUGHT,  /* a history loses old thoughts; a new turn begins within a thought */
};
enum chat_kind { CHAT_CHATML, CHAT_LLAMA_HEADERS, CHAT_DEEPSEEK }; /* of markers around turns */

/* The templates. X(value, name, family, kind, thoughts, system message of a conversation that has none, or NULL). Names
 * are those of the Tinker cookbook's renderers where it has them. A family is the templates that one text of a
 * checkpoint stands for: chat_style_choose() takes the first row that fits. FIRST, NEXT and LAST are X with what
 * separates a row from the one before it. */
/* clang-format off */
#define CHAT_STYLE_ROWS(FIRST, NEXT, LAST) \
    FIRST(CHAT_QWEN25, "qwen2.5", "qwen2.5", CHAT_CHATML, CHAT_NO_THOUGHTS, \
          "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.") \
    NEXT(CHAT_QWEN25_BASE, "qwen2.5_base", "qwen2.5_base", CHAT_CHATML, CHAT_NO_THOUGHTS, \
         "You are a helpful assistant.") /* Qwen2.5's base models */ \
    NEXT(CHAT_QWEN25_MATH, "qwen2.5_math", "qwen2.5_math", CHAT_CHATML, CHAT_NO_THOUGHTS, \
         "Please reason step by step, and put your final answer within \\boxed{}.") \
    NEXT(CHAT_QWEN3, "qwen3", "qwen3", CHAT_CHATML, CHAT_THOUGHTS, NULL) \
    NEXT(CHAT_QWEN3_NOTHINK, "qwen3_disable_thinking", "qwen3", CHAT_CHATML, CHAT_EMPTY_THOUGHT, NULL) \
    NEXT(CHAT_QWEN3_INSTRUCT, "qwen3_instruct", "qwen3_instruct", CHAT_CHATML, CHAT_NO_THOUGHTS, NULL) /* 2507 */ \
    NEXT(CHAT_QWEN3_THINKING, "qwen3_thinking", "qwen3_thinking", CHAT_CHATML, CHAT_OPEN_THOUGHT, NULL) /* 2507 */ \
    NEXT(CHAT_LLAMA3, "llama3", "llama3", CHAT_LLAMA_HEADERS, CHAT_NO_THOUGHTS, NULL) \
    NEXT(CHAT_LLAMA31, "llama3.1", "llama3.1", CHAT_LLAMA_HEADERS, CHAT_NO_THOUGHTS, CHAT_LLAMA_DATES) /* 3.2, 3.3 */ \
    LAST(CHAT_DEEPSEEK_R1, "deepseek_r1", "deepseek_r1", CHAT_DEEPSEEK, CHAT_OPEN_THOUGHT, NULL) /* its distillations */
/* clang-format on */
/* What stands in front of every system message of Llama 3.1, also of none. The second date is that of the template
 * where it is not told another; Llama 3.2's takes today's. Here it is the same each day, so that a prompt is always the
 * same. */
#define CHAT_LLAMA_DATES "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
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
const char *chat_style_name(enum chat_style style); /* N_CHAT_STYLES: "none" */
enum status chat_style_parse(const char *name, enum chat_style *out, struct err *e) MUST_USE;
/* The style that renderer names; ST_CONFIG when there is none of that name. Where renderer is NULL or "", the first
 * style of the family in which the model thinks, or in which it does not. Where the family has none of these, its first
 * style; where the table has no such family (NULL, too), ST_CONFIG. */
enum status chat_style_choose(const char *renderer, const char *family, bool thinking, enum chat_style *out,
                              struct err *e) MUST_USE;
/* The style of the same templates in which the model thinks, or does not ("enable_thinking"); the style itself where
 * its template has no such switch. */
enum chat_style chat_style_thinking(enum chat_style style, bool thinking);
/* True: a turn that CHAT_GENERATE begins is within a thought, so the model's first words belong to the thought. */
bool chat_opens_thought(enum chat_style style);
/* Id of the token that ends a turn, or -1 where the tokenizer lacks it; without a style (N_CHAT_STYLES) that of ChatML.
 */
int32_t chat_end_of_turn(enum chat_style style, const struct tokenizer *t);
/* ST_UNSUPPORTED: the template does not render such a conversation; the message says which turn it is. */
enum status chat_check(enum chat_style style, const struct chat_message *m, size_t n, struct err *e) MUST_USE;
/* Appends the text of the whole conversation. */
void chat_render(enum chat_style style, const struct chat_message *m, size_t n, enum chat_end end, struct str *out);
/* Appends the same as token ids: those of the rendered text, except that markers inside contents stay text. */
void chat_encode(struct tokenizer *t, enum chat_style style, const struct chat_message *m, size_t n, enum chat_end end,
                 struct ids *out);

#endif
