/* ChatML as Qwen's templates have it: <|im_start|>ROLE, a line's end, the content, <|im_end|>. Qwen3's history loses
 * the think blocks of the assistant's turns before the last user message that is no mere <tool_response>; later turns
 * keep theirs, and a final assistant turn gets one even when it is empty. */
#include <string.h>

#include "text/chat_out.h"

static void open_turn(struct chat_out *o, const char *role) {
    chat_marker(o, "<|im_start|>");
    str_adds(o->text, role);
    str_addc(o->text, '\n');
}

static void close_turn(struct chat_out *o) {
    chat_marker(o, "<|im_end|>");
    str_addc(o->text, '\n');
}

/* ---- thoughts in history ------------------------------------------------------------------------------------------*/

static struct span trim_newlines(struct span s, bool left, bool right) {
    while (left && s.n && *s.p == '\n') s.p++, s.n--;
    while (right && s.n && s.p[s.n - 1] == '\n') s.n--;
    return s;
}

/* Splits an assistant's message into thought and answer. Where the thought is not given by itself, it is what lies
 * between the last <think> before the first </think> and it, and the answer what follows the last </think>. Without one
 * there is no thought. */
static void split_thought(const struct chat_message *m, struct span *thought, struct span *answer) {
    struct span all = {m->content, strlen(m->content)};
    *thought = (struct span){m->content, 0};
    *answer = all;
    if (m->reasoning) {
        *thought = trim_newlines((struct span){m->reasoning, strlen(m->reasoning)}, true, true);
        return;
    }
    const char *end = mem_find(all.p, all.n, "</think>", 8);
    if (!end) return;
    struct span head = trim_newlines((struct span){all.p, (size_t)(end - all.p)}, false, true);
    const char *begin = span_find_last(head, "<think>");
    if (begin) head = (struct span){begin + 7, head.n - (size_t)(begin + 7 - head.p)};
    *thought = trim_newlines(head, true, true);
    const char *rest = span_find_last(all, "</think>") + 8;
    *answer = trim_newlines((struct span){rest, all.n - (size_t)(rest - all.p)}, true, false);
}

/* A user message that only carries tool results is no query. */
static bool is_query(const struct chat_message *m) {
    return strcmp(m->role, "user") == 0 &&
           !(str_has_prefix(m->content, "<tool_response>") && str_has_suffix(m->content, "</tool_response>"));
}

/* True: the template writes a thought's block although the thought is empty. */
static bool has_thought(const struct chat_message *m, struct span thought) {
    return thought.n > 0 || (m->reasoning && *m->reasoning);
}

static void add_calls(struct chat_out *o, const struct chat_message *m, bool after_text) {
    for (int i = 0; i < m->n_calls; i++) {
        if (i > 0 || after_text) str_addc(o->text, '\n');
        chat_marker(o, "<tool_call>");
        str_addf(o->text, "\n{\"name\": \"%s\", \"arguments\": %s}\n", m->calls[i].name, m->calls[i].arguments);
        chat_marker(o, "</tool_call>");
    }
}

/* A turn of the assistant in Qwen2.5: its thoughts are text like any other. */
static void assistant_plain(struct chat_out *o, const struct chat_message *m, bool open) {
    open_turn(o, "assistant");
    str_adds(o->text, m->content);
    if (open) return;
    add_calls(o, m, *m->content);
    close_turn(o);
}

/* after_query: no user's question follows. last: nor does anything else. */
static void assistant_turn(struct chat_out *o, const struct chat_message *m, bool after_query, bool last, bool open) {
    struct span thought, answer;
    split_thought(m, &thought, &answer);
    const bool any = answer.n > 0; /* the template asks before it trims */
    open_turn(o, "assistant");
    if (after_query && (last || has_thought(m, thought))) {
        chat_marker(o, "<think>");
        str_addc(o->text, '\n');
        str_add(o->text, thought.p, thought.n);
        str_addc(o->text, '\n');
        chat_marker(o, "</think>");
        str_adds(o->text, "\n\n");
        answer = trim_newlines(answer, true, false);
    }
    str_add(o->text, answer.p, answer.n);
    if (open) return;
    add_calls(o, m, any);
    close_turn(o);
}

static bool is_tool(const struct chat_message *m, size_t n, size_t i) {
    return i < n && strcmp(m[i].role, "tool") == 0;
}

/* Results of tools are told by the user; those that follow each other share a turn. */
static void tool_turn(struct chat_out *o, const struct chat_message *m, size_t n, size_t i, bool open) {
    if (i == 0 || !is_tool(m, n, i - 1)) {
        chat_marker(o, "<|im_start|>");
        str_adds(o->text, "user");
    }
    str_addc(o->text, '\n');
    chat_marker(o, "<tool_response>");
    str_addf(o->text, "\n%s", m[i].content);
    if (open) return;
    str_addc(o->text, '\n');
    chat_marker(o, "</tool_response>");
    if (!is_tool(m, n, i + 1)) close_turn(o);
}

/* ---- the walk -----------------------------------------------------------------------------------------------------*/

static size_t find_last_query(const struct chat_message *m, size_t n) {
    for (size_t i = n; i-- > 0;)
        if (is_query(&m[i])) return i;
    return n ? n - 1 : 0;
}

void chatml_walk(struct chat_out *o, const struct chat_template *t, const struct chat_message *m, size_t n,
                 enum chat_end end) {
    if (t->system && (n == 0 || strcmp(m[0].role, "system") != 0)) {
        open_turn(o, "system");
        str_adds(o->text, t->system);
        close_turn(o);
    }
    const size_t last_query = find_last_query(m, n);
    for (size_t i = 0; i < n; i++) {
        const bool last = i + 1 == n, open = last && end == CHAT_CONTINUE;
        if (strcmp(m[i].role, "assistant") == 0 && t->thoughts != CHAT_NO_THOUGHTS) {
            assistant_turn(o, &m[i], i > last_query, last, open);
        } else if (strcmp(m[i].role, "assistant") == 0) {
            assistant_plain(o, &m[i], open);
        } else if (is_tool(m, n, i)) {
            tool_turn(o, m, n, i, open);
        } else {
            open_turn(o, m[i].role);
            str_adds(o->text, m[i].content);
            if (!open) close_turn(o);
        }
    }
    if (end != CHAT_GENERATE) return;
    open_turn(o, "assistant");
    if (t->thoughts == CHAT_EMPTY_THOUGHT || t->thoughts == CHAT_OPEN_THOUGHT) {
        chat_marker(o, "<think>");
        str_addc(o->text, '\n');
    }
    if (t->thoughts == CHAT_EMPTY_THOUGHT) {
        str_addc(o->text, '\n');
        chat_marker(o, "</think>");
        str_adds(o->text, "\n\n");
    }
}
