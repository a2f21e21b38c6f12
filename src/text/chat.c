/* ChatML as the chat templates of the table render it. One walk over the conversation
 * yields markers and text; rendering writes both, encoding turns markers into their ids and encodes the text between
 * two markers in one go, so the ids are those of the rendered string. */
#include "text/chat.h"

#include <string.h>

static const struct chat_template {
    const char *name, *family;
    enum chat_thoughts thoughts;
    const char *system;
} templates[N_CHAT_STYLES] = {
#define X(id, ...) [id] = {__VA_ARGS__},
    CHAT_STYLE_LIST(X)
#undef X
};

const char *chat_style_name(enum chat_style style) { return templates[style].name; }

enum status chat_style_parse(const char *name, enum chat_style *out, struct err *e) {
    for (int i = 0; i < N_CHAT_STYLES; i++) {
        if (strcmp(name, templates[i].name) != 0) continue;
        *out = (enum chat_style)i;
        return ST_OK;
    }
    return FAIL(e, ST_CONFIG, "chat style \"%s\": expected " CHAT_STYLE_EXPECTED, name);
}

enum status chat_style_choose(const char *renderer, const char *family, bool thinking, enum chat_style *out,
                              struct err *e) {
    if (renderer && *renderer) return chat_style_parse(renderer, out, e);
    int first = -1;
    for (int i = 0; i < N_CHAT_STYLES; i++) {
        if (strcmp(templates[i].family, family) != 0) continue;
        if (first < 0) first = i;
        if ((templates[i].thoughts == CHAT_THOUGHTS) != thinking) continue;
        *out = (enum chat_style)i;
        return ST_OK;
    }
    ASSERT(first >= 0);
    *out = (enum chat_style)first;
    return ST_OK;
}

enum chat_style chat_style_thinking(enum chat_style style, bool thinking) {
    const struct chat_template *t = &templates[style];
    if (t->thoughts == CHAT_NO_THOUGHTS) return style;
    for (int i = 0; i < N_CHAT_STYLES; i++)
        if (strcmp(templates[i].family, t->family) == 0 &&
            templates[i].thoughts == (thinking ? CHAT_THOUGHTS : CHAT_EMPTY_THOUGHT))
            return (enum chat_style)i;
    return style;
}

static const char end_of_turn[] = "<|im_end|>";

int32_t chat_end_of_turn(const struct tokenizer *t) { return tokenizer_id(t, end_of_turn); }

/* A sink that holds text back until a marker or the end comes. */
struct chat_out {
    struct tokenizer *t; /* NULL: render */
    struct str *text;    /* rendered text, or text held back */
    struct ids *ids;
};

static void flush(struct chat_out *o) {
    if (!o->t || o->text->len == 0) return;
    tokenizer_encode(o->t, o->text->p, o->text->len, false, o->ids);
    str_clear(o->text);
}

/* A marker is the template's own token; a tokenizer that lacks it spells it out. */
static void marker(struct chat_out *o, const char *s) {
    int32_t id = o->t ? tokenizer_id(o->t, s) : -1;
    if (id < 0) {
        str_adds(o->text, s);
        return;
    }
    flush(o);
    ids_add(o->ids, id);
}

static void open_turn(struct chat_out *o, const char *role) {
    marker(o, "<|im_start|>");
    str_adds(o->text, role);
    str_addc(o->text, '\n');
}

static void close_turn(struct chat_out *o) {
    marker(o, end_of_turn);
    str_addc(o->text, '\n');
}

/* ---- thoughts in history ------------------------------------------------------------------------------------------*/

struct span {
    const char *p;
    size_t n;
};

static struct span trim_newlines(struct span s, bool left, bool right) {
    while (left && s.n && *s.p == '\n') s.p++, s.n--;
    while (right && s.n && s.p[s.n - 1] == '\n') s.n--;
    return s;
}

/* Last occurrence of needle in s, or NULL. */
static const char *find_last(struct span s, const char *needle) {
    const char *hit = NULL;
    size_t m = strlen(needle);
    for (const char *p = s.p, *end = s.p + s.n; (p = mem_find(p, (size_t)(end - p), needle, m)) != NULL; p++) hit = p;
    return hit;
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
    const char *begin = find_last(head, "<think>");
    if (begin) head = (struct span){begin + 7, head.n - (size_t)(begin + 7 - head.p)};
    *thought = trim_newlines(head, true, true);
    const char *rest = find_last(all, "</think>") + 8;
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
        marker(o, "<tool_call>");
        str_addf(o->text, "\n{\"name\": \"%s\", \"arguments\": %s}\n", m->calls[i].name, m->calls[i].arguments);
        marker(o, "</tool_call>");
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
        marker(o, "<think>");
        str_addc(o->text, '\n');
        str_add(o->text, thought.p, thought.n);
        str_addc(o->text, '\n');
        marker(o, "</think>");
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
        marker(o, "<|im_start|>");
        str_adds(o->text, "user");
    }
    str_addc(o->text, '\n');
    marker(o, "<tool_response>");
    str_addf(o->text, "\n%s", m[i].content);
    if (open) return;
    str_addc(o->text, '\n');
    marker(o, "</tool_response>");
    if (!is_tool(m, n, i + 1)) close_turn(o);
}

/* ---- the walk -----------------------------------------------------------------------------------------------------*/

static size_t find_last_query(const struct chat_message *m, size_t n) {
    for (size_t i = n; i-- > 0;)
        if (is_query(&m[i])) return i;
    return n ? n - 1 : 0;
}

/* What a model is told of its tools, behind the system's message. */
static void add_tools(struct chat_out *o, struct chat_tools tools) {
    str_adds(o->text, "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
                      "You are provided with function signatures within <tools></tools> XML tags:\n<tools>");
    for (size_t i = 0; i < tools.n; i++) str_addf(o->text, "\n%s", tools.text[i]);
    str_adds(o->text, "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
                      "within ");
    marker(o, "<tool_call>");
    marker(o, "</tool_call>");
    str_adds(o->text, " XML tags:\n");
    marker(o, "<tool_call>");
    str_adds(o->text, "\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n");
    marker(o, "</tool_call>");
}

/* The system's turn, where there is one: the first message's, the template's own, or one for the tools. */
static void system_turn(struct chat_out *o, const struct chat_template *t, struct chat_tools tools, const char *content,
                        bool open) {
    if (!content) content = t->system;
    if (!content && tools.n == 0) return;
    open_turn(o, "system");
    if (content) str_adds(o->text, content);
    if (open) return;
    if (tools.n > 0) {
        if (content) str_adds(o->text, "\n\n");
        add_tools(o, tools);
    }
    close_turn(o);
}

static void walk(struct chat_out *o, enum chat_style style, struct chat_tools tools, const struct chat_message *m,
                 size_t n, enum chat_end end) {
    const struct chat_template *t = &templates[style];
    const bool own = n > 0 && strcmp(m[0].role, "system") == 0;
    system_turn(o, t, tools, own ? m[0].content : NULL, own && n == 1 && end == CHAT_CONTINUE);
    const size_t last_query = find_last_query(m, n);
    for (size_t i = own; i < n; i++) {
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
    if (t->thoughts == CHAT_EMPTY_THOUGHT) {
        marker(o, "<think>");
        str_adds(o->text, "\n\n");
        marker(o, "</think>");
        str_adds(o->text, "\n\n");
    }
}

void chat_render_tools(enum chat_style style, struct chat_tools tools, const struct chat_message *m, size_t n,
                       enum chat_end end, struct str *out) {
    walk(&(struct chat_out){NULL, out, NULL}, style, tools, m, n, end);
}

void chat_render(enum chat_style style, const struct chat_message *m, size_t n, enum chat_end end, struct str *out) {
    chat_render_tools(style, (struct chat_tools){NULL, 0}, m, n, end, out);
}

void chat_encode_tools(struct tokenizer *t, enum chat_style style, struct chat_tools tools,
                       const struct chat_message *m, size_t n, enum chat_end end, struct ids *out) {
    CLEANUP_STR struct str held = STR_INIT;
    struct chat_out o = {t, &held, out};
    walk(&o, style, tools, m, n, end);
    flush(&o);
}

void chat_encode(struct tokenizer *t, enum chat_style style, const struct chat_message *m, size_t n, enum chat_end end,
                 struct ids *out) {
    chat_encode_tools(t, style, (struct chat_tools){NULL, 0}, m, n, end, out);
}
