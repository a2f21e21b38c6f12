/* chat_out: what the kinds of chat templates share. Internal to text. */
#ifndef KERNELRL_CHAT_OUT_H
#define KERNELRL_CHAT_OUT_H

#include "text/chat.h"

/* A sink that holds text back until a marker or the end comes. */
struct chat_out {
    struct tokenizer *t; /* NULL: render */
    struct str *text;    /* rendered text, or text held back */
    struct ids *ids;
};
/* Appends a token of the template itself; a tokenizer that lacks it spells it out. */
void chat_marker(struct chat_out *o, const char *s);

struct span {
    const char *p;
    size_t n;
};
/* Last occurrence of needle in s, or NULL. */
const char *span_find_last(struct span s, const char *needle);
static inline void span_add(struct str *out, struct span s) { str_add(out, s.p, s.n); }

/* A row of the table. */
struct chat_template {
    const char *name, *family;
    enum chat_kind kind;
    enum chat_thoughts thoughts;
    const char *system;
};
void chatml_walk(struct chat_out *o, const struct chat_template *t, const struct chat_message *m, size_t n,
                 enum chat_end end);
void chat_llama_walk(struct chat_out *o, const struct chat_template *t, const struct chat_message *m, size_t n,
                     enum chat_end end);
void chat_deepseek_walk(struct chat_out *o, const struct chat_template *t, const struct chat_message *m, size_t n,
                        enum chat_end end);

#endif
