#include "remote/reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"

void remote_reply_free(struct remote_reply *r) {
    free(r->text);
    *r = (struct remote_reply){0};
}

/* At most size - 1 bytes of a text in one line; what is not printable ASCII becomes a blank. */
static void one_line(const char *p, size_t n, char *out, size_t size) {
    size_t m = 0;
    for (size_t i = 0; i < n && m + 1 < size; i++) {
        const char c = p[i] > ' ' && p[i] < 127 ? p[i] : ' ';
        if (c == ' ' && (m == 0 || out[m - 1] == ' ')) continue;
        out[m++] = c;
    }
    while (m > 0 && out[m - 1] == ' ') m--;
    out[m] = 0;
}

/* ---- answers ------------------------------------------------------------------------------------------------------*/

/* Zero bytes, which JSON can hold and a C string cannot, become blanks. */
static void add_text(const json_t *text, struct str *out) {
    const char *p = json_string_value(text);
    for (size_t i = 0; i < json_string_length(text); i++) str_addc(out, p[i] ? p[i] : ' ');
}

/* Appends a message's content: a text, or a list of parts that have texts. */
static void add_content(const json_t *content, struct str *out) {
    size_t i;
    const json_t *part;
    if (json_is_string(content)) add_text(content, out);
    json_array_foreach(content, i, part) {
        const json_t *text = json_object_get(part, "text");
        if (json_is_string(text)) add_text(text, out);
    }
}

static int64_t count_of(const json_t *usage, const char *key) {
    const json_t *v = json_object_get(usage, key);
    return json_is_integer(v) && json_integer_value(v) >= 0 ? (int64_t)json_integer_value(v) : -1;
}

static enum status read_choice(const json_t *choice, struct remote_reply *out, struct err *e) {
    const json_t *message = json_object_get(choice, "message"), *content = json_object_get(message, "content");
    const json_t *finish = json_object_get(choice, "finish_reason");
    if (!json_is_object(message)) return FAIL(e, ST_PARSE, "choices[0] has no message");
    const json_t *thought = json_object_get(message, "reasoning_content");
    if (!json_is_string(thought)) thought = json_object_get(message, "reasoning");
    const bool thinks = json_is_string(thought) && json_string_length(thought) > 0;
    if (!json_is_string(content) && !json_is_array(content) && !thinks && !json_is_string(finish))
        return FAIL(e, ST_PARSE, "choices[0].message has no content");
    struct str text = STR_INIT;
    if (thinks) {
        str_adds(&text, "<think>\n");
        add_text(thought, &text);
        str_adds(&text, "\n</think>\n\n");
    }
    add_content(content, &text);
    out->text = str_steal(&text);
    if (json_is_string(finish)) one_line(json_string_value(finish), json_string_length(finish), out->finish, 24);
    return ST_OK;
}

enum status remote_reply_parse(const char *body, size_t n, struct remote_reply *out, struct err *e) {
    CLEANUP_JSON json_t *o = NULL;
    struct err ignored;
    char head[100];
    *out = (struct remote_reply){.prompt_tokens = -1, .answer_tokens = -1};
    if (n == 0) return FAIL(e, ST_PARSE, "nothing");
    if (js_parse(body, n, "", &o, &ignored) != ST_OK) {
        one_line(body, n < 80 ? n : 80, head, sizeof head);
        return FAIL(e, ST_PARSE, "no JSON; it begins with \"%s\"", head);
    }
    const json_t *choices = json_object_get(o, "choices"), *usage = json_object_get(o, "usage");
    if (!json_is_array(choices)) {
        struct remote_error said;
        remote_error_parse(body, n, &said);
        return FAIL(e, ST_PARSE, "JSON without choices%s%s", *said.message ? ": " : "", said.message);
    }
    if (json_array_size(choices) == 0) return FAIL(e, ST_PARSE, "an empty list of choices");
    TRY(read_choice(json_array_get(choices, 0), out, e));
    out->prompt_tokens = count_of(usage, "prompt_tokens");
    out->answer_tokens = count_of(usage, "completion_tokens");
    return ST_OK;
}

/* ---- errors -------------------------------------------------------------------------------------------------------*/

static void copy_text(const json_t *v, char *out, size_t size) {
    if (json_is_string(v)) one_line(json_string_value(v), json_string_length(v), out, size);
    if (json_is_integer(v)) snprintf(out, size, "%lld", (long long)json_integer_value(v));
}

/* {"error": {"message", "param", "code"}}, {"error": "text"}, {"message": "text"}, {"detail": "text"}; some servers put
 * it into a list. */
static void read_error(const json_t *o, struct remote_error *out) {
    if (json_is_array(o)) o = json_array_get(o, 0);
    const json_t *inner = json_object_get(o, "error");
    static const char *const names[] = {"message", "detail"};
    if (json_is_string(inner)) copy_text(inner, out->message, sizeof out->message);
    if (json_is_object(inner)) o = inner;
    for (size_t i = 0; i < ARRAY_LEN(names) && !*out->message; i++)
        copy_text(json_object_get(o, names[i]), out->message, sizeof out->message);
    copy_text(json_object_get(o, "param"), out->param, sizeof out->param);
    copy_text(json_object_get(o, "code"), out->code, sizeof out->code);
}

void remote_error_parse(const char *body, size_t n, struct remote_error *out) {
    CLEANUP_JSON json_t *o = NULL;
    struct err ignored;
    *out = (struct remote_error){0};
    if (n == 0) return;
    if (js_parse(body, n, "", &o, &ignored) == ST_OK) read_error(o, out);
    if (!*out->message) one_line(body, n < 200 ? n : 200, out->message, sizeof out->message);
}
