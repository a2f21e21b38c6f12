/* The distillations of DeepSeek-R1: the system message, the last one that there is, stands in front; then <｜User｜> or
 * <｜Assistant｜> and the content, and an end of sentence behind the assistant's. Of the assistant's contents what
 * follows the last </think> is left. A new turn of the assistant begins within a thought. The template tells results of
 * tools, but no calls. */
#include <string.h>

#include "text/chat_out.h"

/* What the template keeps in mind from turn to turn. */
struct deepseek_state {
    bool told;   /* results of tools were told last */
    bool output; /* there was a result, ever */
};

static struct span without_thought(const char *content) {
    const struct span all = {content, strlen(content)};
    const char *end = span_find_last(all, "</think>");
    return end ? (struct span){end + 8, all.n - (size_t)(end + 8 - all.p)} : all;
}

static void add_assistant(struct chat_out *o, struct deepseek_state *s, const struct chat_message *m, bool open) {
    if (s->told) {
        chat_marker(o, "<｜tool▁outputs▁end｜>");
        str_adds(o->text, m->content);
    } else {
        chat_marker(o, "<｜Assistant｜>");
        span_add(o->text, without_thought(m->content));
    }
    s->told = false;
    if (!open) chat_marker(o, "<｜end▁of▁sentence｜>");
}

static void add_output(struct chat_out *o, struct deepseek_state *s, const struct chat_message *m, bool open) {
    if (s->output)
        str_addc(o->text, '\n');
    else
        chat_marker(o, "<｜tool▁outputs▁begin｜>");
    chat_marker(o, "<｜tool▁output▁begin｜>");
    str_adds(o->text, m->content);
    if (!open) chat_marker(o, "<｜tool▁output▁end｜>");
    s->told = s->output = true;
}

static void add_turn(struct chat_out *o, struct deepseek_state *s, const struct chat_message *m, bool open) {
    if (strcmp(m->role, "user") == 0) {
        s->told = false;
        chat_marker(o, "<｜User｜>");
        str_adds(o->text, m->content);
    } else if (strcmp(m->role, "tool") == 0) {
        add_output(o, s, m, open);
    } else if (strcmp(m->role, "assistant") == 0) {
        add_assistant(o, s, m, open);
    }
}

void chat_deepseek_walk(struct chat_out *o, const struct chat_template *t, const struct chat_message *m, size_t n,
                        enum chat_end end) {
    const char *system = "";
    struct deepseek_state s = {0};
    (void)t;
    for (size_t i = 0; i < n; i++)
        if (strcmp(m[i].role, "system") == 0) system = m[i].content;
    chat_marker(o, "<｜begin▁of▁sentence｜>");
    str_adds(o->text, system);
    for (size_t i = 0; i < n; i++) add_turn(o, &s, &m[i], i + 1 == n && end == CHAT_CONTINUE);
    if (s.told && end != CHAT_CONTINUE) chat_marker(o, "<｜tool▁outputs▁end｜>");
    if (end != CHAT_GENERATE || s.told) return;
    chat_marker(o, "<｜Assistant｜>");
    chat_marker(o, "<think>");
    str_addc(o->text, '\n');
}
