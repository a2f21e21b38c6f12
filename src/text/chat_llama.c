/* Llama 3 and its later versions: <|start_header_id|>ROLE<|end_header_id|>, an empty line, the content without the
 * white space around it, <|eot_id|>. From 3.1 on every conversation begins with a system message of dates. A call of a
 * tool takes the place of a turn's content, and results of tools are told by "ipython", as JSON. */
#include <string.h>

#include "io/json.h"
#include "text/chat_out.h"
#include "text/unicode.h"

static void open_turn(struct chat_out *o, const char *role) {
    chat_marker(o, "<|start_header_id|>");
    str_adds(o->text, role);
    chat_marker(o, "<|end_header_id|>");
    str_adds(o->text, "\n\n");
}

/* White space as Python's str.strip() has it. */
static bool is_blank(const char *p, size_t n) { return (n == 1 && *p >= 0x1c && *p <= 0x1f) || unicode_is_space(p, n); }

static struct span stripped(const char *text) {
    const char *p = text, *end = text + strlen(text);
    for (size_t k; (k = utf8_char_len(p, (size_t)(end - p))) > 0 && is_blank(p, k); p += k) continue;
    const char *last = p; /* the end of what is no white space */
    for (const char *q = p; q < end;) {
        const size_t k = utf8_char_len(q, (size_t)(end - q)), step = k > 0 ? k : 1;
        q += step;
        if (k == 0 || !is_blank(q - step, step)) last = q;
    }
    return (struct span){p, (size_t)(last - p)};
}

/* As Python's json.dumps(), which lets U+007F stand. */
static void add_quoted(struct str *out, const char *text) {
    const size_t from = out->len;
    js_add_quoted(out, text, strlen(text));
    size_t to = from;
    for (size_t i = from; i < out->len; i++) {
        const bool is_escape = out->p[i] == '\\', deleted = is_escape && strncmp(out->p + i, "\\u007f", 6) == 0;
        if (is_escape && !deleted) out->p[to++] = out->p[i++]; /* and what it escapes */
        out->p[to++] = deleted ? '\x7f' : out->p[i];
        if (deleted) i += 5;
    }
    out->len = to;
    out->p[to] = 0;
}

/* tools: the template knows of them. */
static void add_turn(struct chat_out *o, const struct chat_message *m, bool tools, bool open) {
    const bool tool = tools && strcmp(m->role, "tool") == 0;
    open_turn(o, tool ? "ipython" : m->role);
    if (tool)
        add_quoted(o->text, m->content);
    else if (tools && m->n_calls > 0)
        str_addf(o->text, "{\"name\": \"%s\", \"parameters\": %s}", m->calls[0].name, m->calls[0].arguments);
    else
        span_add(o->text, stripped(m->content));
    if (!open) chat_marker(o, "<|eot_id|>");
}

void chat_llama_walk(struct chat_out *o, const struct chat_template *t, const struct chat_message *m, size_t n,
                     enum chat_end end) {
    size_t i = 0;
    chat_marker(o, "<|begin_of_text|>");
    if (t->system) {
        open_turn(o, "system");
        str_adds(o->text, t->system);
        if (n > 0 && strcmp(m[0].role, "system") == 0) span_add(o->text, stripped(m[i++].content));
        if (i < n || end != CHAT_CONTINUE) chat_marker(o, "<|eot_id|>");
    }
    for (; i < n; i++) add_turn(o, &m[i], t->system != NULL, i + 1 == n && end == CHAT_CONTINUE);
    if (end == CHAT_GENERATE) open_turn(o, "assistant");
}
