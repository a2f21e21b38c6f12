/* The table of chat templates. One walk over a conversation yields markers and text; rendering writes both, encoding
 * turns markers into their ids and encodes the text between two markers in one go, so the ids are those of the rendered
 * string. */
#include <limits.h>
#include <string.h>

#include "text/chat_out.h"

static const struct chat_template templates[N_CHAT_STYLES] = {
#define X(id, ...) [id] = {__VA_ARGS__},
    CHAT_STYLE_LIST(X)
#undef X
};

static const struct {
    const char *end_of_turn;
    void (*walk)(struct chat_out *o, const struct chat_template *t, const struct chat_message *m, size_t n,
                 enum chat_end end);
} kinds[] = {
    [CHAT_CHATML] = {"<|im_end|>", chatml_walk},
    [CHAT_LLAMA_HEADERS] = {"<|eot_id|>", chat_llama_walk},
    [CHAT_DEEPSEEK] = {"<｜end▁of▁sentence｜>", chat_deepseek_walk},
};

const char *chat_style_name(enum chat_style style) { return style < N_CHAT_STYLES ? templates[style].name : "none"; }

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
    for (int i = 0; family && i < N_CHAT_STYLES; i++) {
        if (strcmp(templates[i].family, family) != 0) continue;
        if (first < 0) first = i;
        if ((templates[i].thoughts == CHAT_THOUGHTS) != thinking) continue;
        *out = (enum chat_style)i;
        return ST_OK;
    }
    if (first < 0)
        return FAIL(e, ST_CONFIG,
                    "no chat template of this architecture is known: expected one of the styles " CHAT_STYLE_EXPECTED
                    " to be asked for");
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

bool chat_opens_thought(enum chat_style style) {
    return style < N_CHAT_STYLES && templates[style].thoughts == CHAT_OPEN_THOUGHT;
}

int32_t chat_end_of_turn(enum chat_style style, const struct tokenizer *t) {
    return tokenizer_id(t, kinds[style < N_CHAT_STYLES ? templates[style].kind : CHAT_CHATML].end_of_turn);
}

/* Calls of tools that a turn may have. */
static int most_calls(enum chat_style style) {
    if (style == CHAT_LLAMA31) return 1;
    return templates[style].kind == CHAT_CHATML ? INT_MAX : 0;
}

enum status chat_check(enum chat_style style, const struct chat_message *m, size_t n, struct err *e) {
    ASSERT(style < N_CHAT_STYLES);
    const int most = most_calls(style);
    for (size_t i = 0; i < n; i++)
        if (m[i].n_calls > most)
            return FAIL(e, ST_UNSUPPORTED,
                        "messages[%zu]: %d calls of tools: the chat template \"%s\" renders at most %d", i,
                        m[i].n_calls, templates[style].name, most);
    return ST_OK;
}

const char *span_find_last(struct span s, const char *needle) {
    const char *hit = NULL;
    size_t m = strlen(needle);
    for (const char *p = s.p, *end = s.p + s.n; (p = mem_find(p, (size_t)(end - p), needle, m)) != NULL; p++) hit = p;
    return hit;
}

static void flush(struct chat_out *o) {
    if (!o->t || o->text->len == 0) return;
    tokenizer_encode(o->t, o->text->p, o->text->len, false, o->ids);
    str_clear(o->text);
}

void chat_marker(struct chat_out *o, const char *s) {
    int32_t id = o->t ? tokenizer_id(o->t, s) : -1;
    if (id < 0) {
        str_adds(o->text, s);
        return;
    }
    flush(o);
    ids_add(o->ids, id);
}

void chat_render(enum chat_style style, const struct chat_message *m, size_t n, enum chat_end end, struct str *out) {
    ASSERT(style < N_CHAT_STYLES);
    const struct chat_template *t = &templates[style];
    kinds[t->kind].walk(&(struct chat_out){NULL, out, NULL}, t, m, n, end);
}

void chat_encode(struct tokenizer *t, enum chat_style style, const struct chat_message *m, size_t n, enum chat_end end,
                 struct ids *out) {
    ASSERT(style < N_CHAT_STYLES);
    CLEANUP_STR struct str held = STR_INIT;
    struct chat_out o = {t, &held, out};
    kinds[templates[style].kind].walk(&o, &templates[style], m, n, end);
    flush(&o);
}
