#include "serve/ask.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "io/json.h"

enum { MAX_STOPS = MAX_STOP_STRINGS, SHOWN = 60 };

bool ask_fail(struct ask_error *e, const char *code, const char *param, const char *fmt, ...) {
    va_list ap;
    *e = (struct ask_error){.status = 400, .code = code};
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    return false;
}

/* ---- values -------------------------------------------------------------------------------------------------------*/

/* A few words on a value, for "got ...". */
static const char *describe(const json_t *v, char *buf, size_t n) {
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_STRING: snprintf(buf, n, "the string \"%.*s\"", SHOWN, json_string_value(v)); return buf;
    case JSON_INTEGER: snprintf(buf, n, "%" JSON_INTEGER_FORMAT, json_integer_value(v)); return buf;
    case JSON_REAL: snprintf(buf, n, "%g", json_real_value(v)); return buf;
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    default: return v ? "null" : "nothing";
    }
}

static bool wrong_type(const json_t *v, const char *name, const char *want, struct ask_error *e) {
    char buf[SHOWN * 4 + 32];
    return ask_fail(e, NULL, name, "%s: expected %s, got %s", name, want, describe(v, buf, sizeof buf));
}

bool ask_object(const char *text, size_t bytes, json_t **out, struct ask_error *e) {
    struct err je;
    if (js_parse(text, bytes, "body", out, &je) != ST_OK) return ask_fail(e, NULL, NULL, "%s", je.msg);
    char buf[SHOWN * 4 + 32];
    return json_is_object(*out) ||
           ask_fail(e, NULL, NULL, "body: expected a JSON object, got %s", describe(*out, buf, sizeof buf));
}

/* Whole numbers may be written 16.0. */
bool ask_int(const json_t *v, const char *name, int64_t low, int64_t high, int64_t *out, struct ask_error *e) {
    char want[100];
    if (high == INT64_MAX && low == INT64_MIN)
        snprintf(want, sizeof want, "a whole number");
    else if (high == INT64_MAX)
        snprintf(want, sizeof want, "a whole number of at least %lld", (long long)low);
    else
        snprintf(want, sizeof want, "a whole number from %lld to %lld", (long long)low, (long long)high);
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
    } else if (json_is_real(v) && json_real_value(v) == floor(json_real_value(v)) && fabs(json_real_value(v)) < 9e15) {
        *out = (int64_t)json_real_value(v);
    } else {
        return wrong_type(v, name, want, e);
    }
    return (*out >= low && *out <= high) || wrong_type(v, name, want, e);
}

bool ask_bool(const json_t *v, const char *name, bool *out, struct ask_error *e) {
    if (!json_is_boolean(v)) return wrong_type(v, name, "true or false", e);
    *out = json_is_true(v);
    return true;
}

bool ask_string(const json_t *v, const char *name, struct ask_text *out, struct ask_error *e) {
    if (!json_is_string(v)) return wrong_type(v, name, "a string", e);
    *out = (struct ask_text){json_string_value(v), json_string_length(v)};
    return true;
}

/* A string without U+0000, copied. */
static bool take_cstr(struct arena *mem, const json_t *v, const char *name, const char **out, struct ask_error *e) {
    struct ask_text t = {0};
    if (!ask_string(v, name, &t, e)) return false;
    if (strlen(t.p) != t.n) return ask_fail(e, NULL, name, "%s: U+0000 cannot stand in it", name);
    *out = arena_strndup(mem, t.p, t.n);
    return true;
}

bool ask_id_list(struct arena *mem, const json_t *v, const char *name, int vocab, struct ask_ids *out,
                 struct ask_error *e) {
    if (!json_is_array(v)) return wrong_type(v, name, "a list of token ids", e);
    const size_t n = json_array_size(v);
    int32_t *ids = arena_array(mem, int32_t, n + 1);
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        if (!ask_int(json_array_get(v, i), name, INT64_MIN, INT64_MAX, &id, e)) return false;
        if (id < 0 || id >= vocab)
            return ask_fail(e, NULL, name, "%s: token id %lld is out of vocabulary: expected 0 to %d", name,
                            (long long)id, vocab - 1);
        ids[i] = (int32_t)id;
    }
    *out = (struct ask_ids){ids, (int)n};
    return true;
}

/* ---- prompts ------------------------------------------------------------------------------------------------------*/

static bool take_prompt(struct arena *mem, const json_t *v, const char *name, const struct ask_limits *l,
                        struct ask_prompt *out, struct ask_error *e) {
    struct ask_ids ids;
    if (json_is_string(v)) {
        const size_t n = json_string_length(v);
        *out = (struct ask_prompt){.is_text = true, .text = {arena_strndup(mem, json_string_value(v), n), n}};
        return n > 0 || ask_fail(e, NULL, name, "%s: expected at least one token, got an empty string", name);
    }
    if (!json_is_array(v)) return wrong_type(v, name, "a string or a list of token ids", e);
    if (!ask_id_list(mem, v, name, l->vocab, &ids, e)) return false;
    *out = (struct ask_prompt){.ids = ids.p, .n_ids = ids.n};
    return ids.n > 0 || ask_fail(e, NULL, name, "%s: expected at least one token, got an empty list", name);
}

bool ask_prompts(struct arena *mem, const json_t *v, const char *name, const struct ask_limits *l,
                 struct ask_prompt **out, int *n, struct ask_error *e) {
    const bool list = json_is_array(v) && !json_is_number(json_array_get(v, 0));
    const size_t count = list ? json_array_size(v) : 1;
    if (!json_is_string(v) && !json_is_array(v))
        return wrong_type(v, name, "a string, a list of strings, a list of token ids or a list of such lists", e);
    if (json_is_array(v) && json_array_size(v) == 0)
        return ask_fail(e, NULL, name, "%s: expected at least one prompt, got an empty list", name);
    if (count > (size_t)l->max_prompts)
        return ask_fail(e, NULL, name, "%s: expected at most %d prompts, got %zu", name, l->max_prompts, count);
    *out = arena_array(mem, struct ask_prompt, count);
    *n = (int)count;
    for (size_t i = 0; i < count; i++)
        if (!take_prompt(mem, list ? json_array_get(v, i) : v, name, l, &(*out)[i], e)) return false;
    return true;
}

/* ---- messages -----------------------------------------------------------------------------------------------------*/

/* Parts of type text, joined with a newline. */
static bool take_parts(struct arena *mem, const json_t *v, const char *name, struct ask_text *out,
                       struct ask_error *e) {
    CLEANUP_STR struct str s = STR_INIT;
    size_t i;
    json_t *part;
    json_array_foreach(v, i, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *text = json_object_get(part, "text");
        if (!type || strcmp(type, "text") != 0 || !json_is_string(text))
            return ask_fail(e, type && strcmp(type, "text") != 0 ? "unsupported_parameter" : NULL, name,
                            "%s: part %zu: expected {\"type\": \"text\", \"text\": ...}: this model reads text alone",
                            name, i);
        if (i > 0) str_addc(&s, '\n');
        str_add(&s, json_string_value(text), json_string_length(text));
    }
    *out = (struct ask_text){arena_strndup(mem, str_c(&s), s.len), s.len};
    return true;
}

static const char *role_of(const json_t *m) {
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    const char *role = json_string_value(json_object_get(m, "role"));
    if (role && strcmp(role, "developer") == 0) return "system";
    for (size_t i = 0; role && i < ARRAY_LEN(roles); i++)
        if (strcmp(role, roles[i]) == 0) return roles[i];
    return NULL;
}

/* The thought of an assistant's turn, where it is given by itself. */
static bool take_reasoning(struct arena *mem, const json_t *m, const char *name, struct chat_message *out,
                           struct ask_error *e) {
    const json_t *v = json_object_get(m, "reasoning_content");
    if (!v || json_is_null(v)) v = json_object_get(m, "reasoning");
    if (!v || json_is_null(v)) return true;
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
        return ask_fail(e, NULL, "messages", "%s: reasoning_content: expected a string without U+0000", name);
    out->reasoning = arena_strdup(mem, json_string_value(v));
    return true;
}

/* Arguments stand in a prompt as Python's json.dumps writes what they say. */
static bool take_call(struct arena *mem, const json_t *call, const char *name, struct chat_call *out,
                      struct ask_error *e) {
    const json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments");
    const char *called = json_string_value(json_object_get(function, "name")), *text = json_string_value(arguments);
    CLEANUP_JSON json_t *said = text && *text ? json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL) : NULL;
    if (!called || (arguments && !text) || (text && *text && !said))
        return ask_fail(e, NULL, "messages",
                        "%s: tool_calls: expected {\"function\": {\"name\": ..., \"arguments\": JSON text}}", name);
    char *dump = said ? json_dumps(said, JSON_ENCODE_ANY) : NULL;
    *out = (struct chat_call){arena_strdup(mem, called), arena_strdup(mem, dump ? dump : "{}")};
    free(dump);
    return true;
}

static bool take_calls(struct arena *mem, const json_t *m, const char *name, struct chat_message *out,
                       struct ask_error *e) {
    const json_t *v = json_object_get(m, "tool_calls");
    if (!v || json_is_null(v)) return true;
    if (!json_is_array(v)) return ask_fail(e, NULL, "messages", "%s: tool_calls: expected a list", name);
    struct chat_call *calls = arena_array(mem, struct chat_call, json_array_size(v) + 1);
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!take_call(mem, json_array_get(v, i), name, &calls[i], e)) return false;
    out->calls = calls;
    out->n_calls = (int)json_array_size(v);
    return true;
}

static bool take_message(struct arena *mem, const json_t *m, size_t at, struct chat_message *out, struct ask_error *e) {
    char name[48];
    struct ask_text text = {"", 0};
    const json_t *content = json_object_get(m, "content");
    snprintf(name, sizeof name, "messages[%zu]", at);
    if (!json_is_object(m)) return wrong_type(m, name, "an object with role and content", e);
    const char *role = role_of(m);
    if (!role)
        return ask_fail(e, NULL, "messages", "%s: role: expected system, developer, user, assistant or tool", name);
    if (json_is_string(content)) {
        text.n = json_string_length(content);
        text.p = arena_strndup(mem, json_string_value(content), text.n);
    } else if (json_is_array(content)) {
        if (!take_parts(mem, content, name, &text, e)) return false;
    } else if ((content && !json_is_null(content)) || strcmp(role, "assistant") != 0) {
        return ask_fail(e, NULL, "messages", "%s: content: expected a string or a list of parts", name);
    }
    if (strlen(text.p) != text.n)
        return ask_fail(e, NULL, "messages", "%s: content: U+0000 cannot stand in a message", name);
    *out = (struct chat_message){.role = role, .content = text.p};
    if (strcmp(role, "assistant") != 0) return true;
    return take_reasoning(mem, m, name, out, e) && take_calls(mem, m, name, out, e);
}

bool ask_messages(struct arena *mem, const json_t *v, const struct ask_limits *l, struct chat_message **out, int *n,
                  struct ask_error *e) {
    if (!json_is_array(v)) return wrong_type(v, "messages", "a list of messages", e);
    const size_t count = json_array_size(v);
    if (count == 0) return ask_fail(e, NULL, "messages", "messages: expected at least one, got an empty list");
    if (count > (size_t)l->max_messages)
        return ask_fail(e, NULL, "messages", "messages: expected at most %d, got %zu", l->max_messages, count);
    *out = arena_array(mem, struct chat_message, count);
    *n = (int)count;
    for (size_t i = 0; i < count; i++)
        if (!take_message(mem, json_array_get(v, i), i, &(*out)[i], e)) return false;
    return true;
}

/* ---- fields -------------------------------------------------------------------------------------------------------*/

typedef bool field_fn(struct ask *a, const json_t *v, const char *name, const struct ask_limits *l,
                      struct ask_error *e);
enum field_type {
    FIELD_INT,
    FIELD_FLOAT,
    FIELD_BOOL,
    FIELD_NOT, /* a bool whose opposite is kept */
    FIELD_CALL,
    FIELD_NEUTRAL, /* only the values of the list `neutral` leave the result as it is */
    FIELD_IGNORED, /* makes no difference to a result */
};
struct field {
    const char *name;
    unsigned apis;
    enum field_type type;
    size_t offset;
    double low, high;
    field_fn *call;
    const char *neutral, *instead; /* instead: what can be done about a value that is refused */
};

static bool take_text_field(const struct ask *a, const json_t *v, const char *name, const char **out,
                            struct ask_error *e) {
    return take_cstr((struct arena *)(uintptr_t)&a->mem, v, name, out, e);
}

static bool take_model(struct ask *a, const json_t *v, const char *name, const struct ask_limits *l,
                       struct ask_error *e) {
    (void)l;
    return take_text_field(a, v, name, &a->model, e);
}

static bool take_request_id(struct ask *a, const json_t *v, const char *name, const struct ask_limits *l,
                            struct ask_error *e) {
    (void)l;
    return take_text_field(a, v, name, &a->request_id, e);
}

static bool take_prompts(struct ask *a, const json_t *v, const char *name, const struct ask_limits *l,
                         struct ask_error *e) {
    return ask_prompts(&a->mem, v, name, l, &a->prompt, &a->n_prompts, e);
}

static bool take_token_ids(struct ask *a, const json_t *v, const char *name, const struct ask_limits *l,
                           struct ask_error *e) {
    a->prompt = arena_new(&a->mem, struct ask_prompt);
    a->n_prompts = 1;
    return take_prompt(&a->mem, v, name, l, a->prompt, e);
}

static bool take_messages(struct ask *a, const json_t *v, const char *name, const struct ask_limits *l,
                          struct ask_error *e) {
    (void)name;
    return ask_messages(&a->mem, v, l, &a->message, &a->n_messages, e);
}

/* A string or a list of them. */
static bool take_texts(struct ask *a, const json_t *v, const char *name, int most, size_t most_bytes,
                       struct ask_texts *out, struct ask_error *e) {
    const bool list = json_is_array(v);
    const size_t n = list ? json_array_size(v) : 1;
    if (!list && !json_is_string(v)) return wrong_type(v, name, "a string or a list of strings", e);
    if (n > (size_t)most) return ask_fail(e, NULL, name, "%s: expected at most %d strings, got %zu", name, most, n);
    const char **texts = arena_array(&a->mem, const char *, n + 1);
    for (size_t i = 0; i < n; i++) {
        if (!take_cstr(&a->mem, list ? json_array_get(v, i) : v, name, &texts[i], e)) return false;
        const size_t bytes = strlen(texts[i]);
        if (bytes < 1 || bytes > most_bytes)
            return ask_fail(e, NULL, name, "%s: expected strings of 1 to %zu bytes, got one of %zu", name, most_bytes,
                            bytes);
    }
    *out = (struct ask_texts){texts, (int)n};
    return true;
}

static bool take_stop(struct ask *a, const json_t *v, const char *name, const struct ask_limits *l,
                      struct ask_error *e) {
    (void)l;
    return take_texts(a, v, name, MAX_STOPS, MAX_STOP_STRING_BYTES, &a->stop, e);
}

static bool take_bad_words(struct ask *a, const json_t *v, const char *name, const struct ask_limits *l,
                           struct ask_error *e) {
    (void)l;
    return take_texts(a, v, name, MAX_BAD_WORDS / 2, MAX_STOP_STRING_BYTES, &a->bad_words, e);
}

static bool take_stop_ids(struct ask *a, const json_t *v, const char *name, const struct ask_limits *l,
                          struct ask_error *e) {
    return ask_id_list(&a->mem, v, name, l->vocab, &a->stop_ids, e);
}

static bool take_allowed(struct ask *a, const json_t *v, const char *name, const struct ask_limits *l,
                         struct ask_error *e) {
    if (!ask_id_list(&a->mem, v, name, l->vocab, &a->allowed_ids, e)) return false;
    return a->allowed_ids.n > 0 || ask_fail(e, NULL, name, "%s: expected at least one id", name);
}

static bool take_bias(struct ask *a, const json_t *v, const char *name, const struct ask_limits *l,
                      struct ask_error *e) {
    const char *key;
    json_t *value;
    if (!json_is_object(v)) return wrong_type(v, name, "an object of token ids and numbers", e);
    const size_t n = json_object_size(v);
    if (n > MAX_LOGIT_BIAS)
        return ask_fail(e, NULL, name, "%s: expected at most %d entries, got %zu", name, MAX_LOGIT_BIAS, n);
    a->bias = arena_array(&a->mem, struct logit_bias, n + 1);
    json_object_foreach((json_t *)(uintptr_t)v, key, value) {
        int64_t id;
        const double x = json_number_value(value);
        if (!parse_i64(key, &id) || id < 0 || id >= l->vocab)
            return ask_fail(e, NULL, name, "%s: \"%.*s\": expected a token id from 0 to %d", name, SHOWN, key,
                            l->vocab - 1);
        if (!json_is_number(value) || !(x >= -100 && x <= 100))
            return ask_fail(e, NULL, name, "%s: %lld: expected a number from -100 to 100", name, (long long)id);
        a->bias[a->n_bias++] = (struct logit_bias){(int32_t)id, x <= -100 ? -INFINITY : (float)x};
    }
    return true;
}

static bool take_seed(struct ask *a, const json_t *v, const char *name, const struct ask_limits *l,
                      struct ask_error *e) {
    (void)l;
    a->has_seed = true;
    return ask_int(v, name, INT64_MIN, INT64_MAX, &a->seed, e);
}

static bool take_int(const json_t *v, const char *name, int64_t low, int64_t high, int *out, struct ask_error *e) {
    int64_t x;
    if (!ask_int(v, name, low, high, &x, e)) return false;
    *out = (int)x;
    return true;
}

static bool take_logprobs(struct ask *a, const json_t *v, const char *name, const struct ask_limits *l,
                          struct ask_error *e) {
    if (a->api == ASK_CHAT) return ask_bool(v, name, &a->chat_logprobs, e);
    return take_int(v, name, 0, l->max_logprobs, &a->logprobs, e);
}

static bool take_top_logprobs(struct ask *a, const json_t *v, const char *name, const struct ask_limits *l,
                              struct ask_error *e) {
    return take_int(v, name, 0, l->max_logprobs, &a->logprobs, e);
}

static bool take_prompt_logprobs(struct ask *a, const json_t *v, const char *name, const struct ask_limits *l,
                                 struct ask_error *e) {
    return take_int(v, name, 0, l->max_logprobs, &a->prompt_logprobs, e);
}

static bool take_n(struct ask *a, const json_t *v, const char *name, const struct ask_limits *l, struct ask_error *e) {
    return take_int(v, name, 1, l->max_n, &a->n, e);
}

static bool take_top_k(struct ask *a, const json_t *v, const char *name, const struct ask_limits *l,
                       struct ask_error *e) {
    (void)l;
    if (!take_int(v, name, -1, INT32_MAX, &a->top_k, e)) return false;
    if (a->top_k < 0) a->top_k = 0;
    return true;
}

static bool take_stream_options(struct ask *a, const json_t *v, const char *name, const struct ask_limits *l,
                                struct ask_error *e) {
    (void)l;
    const json_t *usage = json_object_get(v, "include_usage"), *always = json_object_get(v, "continuous_usage_stats");
    if (!json_is_object(v)) return wrong_type(v, name, "an object", e);
    a->stream_options = true;
    if (usage && !json_is_null(usage) && !ask_bool(usage, "stream_options.include_usage", &a->usage, e)) return false;
    return !always || json_is_null(always) ||
           ask_bool(always, "stream_options.continuous_usage_stats", &a->usage_always, e);
}

/* Which end of a prompt that is too long is left out. */
static bool take_side(struct ask *a, const json_t *v, const char *name, const struct ask_limits *l,
                      struct ask_error *e) {
    (void)l;
    const char *s = json_string_value(v);
    a->truncate_right = s && strcmp(s, "right") == 0;
    return a->truncate_right || (s && strcmp(s, "left") == 0) || wrong_type(v, name, "left or right", e);
}

static bool take_effort(struct ask *a, const json_t *v, const char *name, const struct ask_limits *l,
                        struct ask_error *e) {
    (void)l;
    const char *s = json_string_value(v);
    const int at = s ? str_index_in("none|minimal|low|medium|high|xhigh|max", s, '|') : -1;
    if (at < 0) return wrong_type(v, name, "none, minimal, low, medium, high, xhigh or max", e);
    if (a->thinking == ASK_THINK_DEFAULT && at == 0) a->thinking = ASK_THINK_NOT;
    return true;
}

static bool take_template_kwargs(struct ask *a, const json_t *v, const char *name, const struct ask_limits *l,
                                 struct ask_error *e) {
    (void)l;
    bool on = false;
    const json_t *thinking = json_object_get(v, "enable_thinking");
    if (!json_is_object(v)) return wrong_type(v, name, "an object", e);
    const char *date = json_string_value(json_object_get(v, "date_string"));
    if (date && !strstr(CHAT_LLAMA_DATES, date))
        return ask_fail(e, "unsupported_parameter", name,
                        "chat_template_kwargs.date_string: the date in a prompt does not change here: leave it out, or "
                        "put yours into the system message");
    if (!thinking || json_is_null(thinking)) return true;
    if (!ask_bool(thinking, "chat_template_kwargs.enable_thinking", &on, e)) return false;
    a->thinking = on ? ASK_THINK : ASK_THINK_NOT;
    return true;
}

static bool take_generation_prompt(struct ask *a, const json_t *v, const char *name, const struct ask_limits *l,
                                   struct ask_error *e) {
    (void)l;
    a->generation_given = true;
    return ask_bool(v, name, &a->generation_prompt, e);
}

static bool take_tools(struct ask *a, const json_t *v, const char *name, const struct ask_limits *l,
                       struct ask_error *e) {
    (void)l;
    if (!json_is_array(v)) return wrong_type(v, name, "a list", e);
    a->has_tools = true;
    return json_array_size(v) > 0 || ask_fail(e, NULL, name, "tools: expected at least one tool, got an empty list");
}

static bool take_tool_choice(struct ask *a, const json_t *v, const char *name, const struct ask_limits *l,
                             struct ask_error *e) {
    (void)l, (void)name, (void)e;
    const char *s = json_string_value(v);
    a->wants_tools = !s || strcmp(s, "none") != 0;
    if (s && strcmp(s, "none") == 0) a->has_tools = false;
    return true;
}

#define BOTH (ASK_COMPLETIONS | ASK_CHAT)
#define ALL (ASK_COMPLETIONS | ASK_CHAT | ASK_GENERATE)
#define INT(f, apis, low, high) \
    { #f, apis, FIELD_INT, offsetof(struct ask, f), low, high, NULL, NULL, NULL }
#define INT_AT(name, f, apis, low, high) \
    { name, apis, FIELD_INT, offsetof(struct ask, f), low, high, NULL, NULL, NULL }
#define FLOAT(f, apis, low, high) \
    { #f, apis, FIELD_FLOAT, offsetof(struct ask, f), low, high, NULL, NULL, NULL }
#define BOOL_AT(name, f, apis) \
    { name, apis, FIELD_BOOL, offsetof(struct ask, f), 0, 0, NULL, NULL, NULL }
#define NOT_AT(name, f, apis) \
    { name, apis, FIELD_NOT, offsetof(struct ask, f), 0, 0, NULL, NULL, NULL }
#define CALL(name, apis, fn) \
    { name, apis, FIELD_CALL, 0, 0, 0, fn, NULL, NULL }
#define NEUTRAL(name, apis, values, instead) \
    { name, apis, FIELD_NEUTRAL, 0, 0, 0, NULL, values, instead }
#define IGNORED(name, apis) \
    { name, apis, FIELD_IGNORED, 0, 0, 0, NULL, NULL, NULL }

static const char no_grammar[] = "there is no constrained decoding: ask for the format in the prompt",
                  no_tools[] = "tools are not supported by this model", no_media[] = "this model reads and writes text";

/* The fields of a request; of ASK_GENERATE those of sampling_params, too. */
static const struct field fields[] = {
    CALL("model", ALL, take_model),
    CALL("request_id", ALL, take_request_id),
    CALL("prompt", ASK_COMPLETIONS, take_prompts),
    CALL("token_ids", ASK_GENERATE, take_token_ids),
    CALL("messages", ASK_CHAT, take_messages),
    CALL("add_generation_prompt", ASK_CHAT, take_generation_prompt),
    BOOL_AT("continue_final_message", continue_final, ASK_CHAT),
    BOOL_AT("add_special_tokens", special_tokens, ASK_COMPLETIONS),
    CALL("reasoning_effort", ASK_CHAT, take_effort),
    CALL("chat_template_kwargs", ASK_CHAT, take_template_kwargs),
    CALL("n", ALL, take_n),
    INT(best_of, ASK_COMPLETIONS, 1, INT32_MAX),
    INT(max_tokens, ALL, 0, INT32_MAX),
    INT_AT("max_completion_tokens", max_tokens, ASK_CHAT, 0, INT32_MAX), /* behind max_tokens: it wins */
    INT(min_tokens, ALL, 0, INT32_MAX),
    FLOAT(temperature, ALL, 0, 2),
    FLOAT(top_p, ALL, 1e-9, 1),
    CALL("top_k", ALL, take_top_k),
    FLOAT(min_p, ALL, 0, 1),
    FLOAT(repetition_penalty, ALL, 1e-6, 1e6),
    FLOAT(frequency_penalty, ALL, -2, 2),
    FLOAT(presence_penalty, ALL, -2, 2),
    CALL("logit_bias", ALL, take_bias),
    CALL("stop", ALL, take_stop),
    CALL("stop_token_ids", ALL, take_stop_ids),
    CALL("allowed_token_ids", ALL, take_allowed),
    CALL("bad_words", ALL, take_bad_words),
    BOOL_AT("include_stop_str_in_output", include_stop, ALL),
    BOOL_AT("ignore_eos", ignore_eos, ALL),
    NOT_AT("skip_special_tokens", keep_special, ALL),
    CALL("seed", ALL, take_seed),
    INT_AT("truncate_prompt_tokens", truncate, ALL, -1, INT32_MAX),
    CALL("truncation_side", ALL, take_side),
    CALL("logprobs", ALL, take_logprobs),
    CALL("top_logprobs", ASK_CHAT, take_top_logprobs),
    CALL("prompt_logprobs", ALL, take_prompt_logprobs),
    BOOL_AT("echo", echo, ASK_COMPLETIONS),
    BOOL_AT("return_token_ids", return_ids, BOTH),
    BOOL_AT("return_tokens_as_token_ids", tokens_as_ids, BOTH),
    BOOL_AT("stream", stream, BOTH),
    CALL("stream_options", BOTH, take_stream_options),
    NOT_AT("include_reasoning", no_reasoning, ASK_CHAT),
    CALL("tools", ASK_CHAT, take_tools),
    CALL("tool_choice", ASK_CHAT, take_tool_choice), /* behind tools */

    NEUTRAL("stream", ASK_GENERATE, "[false]", "ask without stream, or use /v1/completions"),
    NEUTRAL("suffix", ASK_COMPLETIONS, "[\"\"]", "this model does not fill in the middle"),
    NEUTRAL("echo", ASK_CHAT, "[false]", "use /v1/completions"),
    NEUTRAL("return_prompt_text", BOTH, "[false]", "use echo of /v1/completions, or return_token_ids"),
    NEUTRAL("repetition_detection", ALL, "[]", "use repetition_penalty"),
    NEUTRAL("use_beam_search", ALL, "[false]", "sample with n instead"),
    NEUTRAL("length_penalty", ALL, "[1]", "it is for beam search"),
    NEUTRAL("early_stopping", ALL, "[false]", "it is for beam search"),
    NEUTRAL("response_format", BOTH, "[{\"type\": \"text\"}]", no_grammar),
    NEUTRAL("structured_outputs", ALL, "[{}]", no_grammar),
    NEUTRAL("guided_json", BOTH, "[]", no_grammar),
    NEUTRAL("guided_regex", BOTH, "[]", no_grammar),
    NEUTRAL("guided_choice", BOTH, "[]", no_grammar),
    NEUTRAL("guided_grammar", BOTH, "[]", no_grammar),
    NEUTRAL("guided_decoding_backend", BOTH, "[]", no_grammar),
    NEUTRAL("grammar", BOTH, "[\"\"]", no_grammar),
    NEUTRAL("json_schema", BOTH, "[]", no_grammar),
    NEUTRAL("logits_processors", ALL, "[[]]", "use logit_bias"),
    NEUTRAL("logprob_token_ids", ALL, "[[]]", "ask for prompt_logprobs with echo"),
    NEUTRAL("thinking_token_budget", ALL, "[]", "use max_tokens"),
    NEUTRAL("prompt_embeds", BOTH, "[[]]", no_media),
    NEUTRAL("functions", ASK_CHAT, "[[]]", no_tools),
    NEUTRAL("function_call", ASK_CHAT, "[\"none\", \"auto\"]", no_tools),
    NEUTRAL("audio", ASK_CHAT, "[]", no_media),
    NEUTRAL("modalities", ASK_CHAT, "[[\"text\"]]", no_media),
    NEUTRAL("features", ASK_GENERATE, "[[], {}]", no_media),
    NEUTRAL("content_parts", ASK_GENERATE, "[[]]", no_media),
    NEUTRAL("prediction", ASK_CHAT, "[]", "leave it out"),
    NEUTRAL("web_search_options", ASK_CHAT, "[]", no_tools),
    NEUTRAL("documents", ASK_CHAT, "[[]]", "put them into a message"),
    NEUTRAL("chat_template", ASK_CHAT, "[]", "templates are those of the server: see --renderer"),
    NEUTRAL("required_prefix_token_ids", BOTH, "[[]]", "use /inference/v1/generate"),

    IGNORED("add_special_tokens", ASK_CHAT | ASK_GENERATE), /* a chat template has its own, ids are given */
    IGNORED("spaces_between_special_tokens", ALL),
    IGNORED("detokenize", ASK_GENERATE),
    IGNORED("output_kind", ASK_GENERATE),
    IGNORED("parallel_tool_calls", ASK_CHAT),
    IGNORED("user", ALL),
    IGNORED("metadata", ALL),
    IGNORED("store", ALL),
    IGNORED("service_tier", ALL),
    IGNORED("session_id", ALL),
    IGNORED("cache_salt", ALL), /* a cache changes no bit of a result */
    IGNORED("cache_prompt", ALL),
    IGNORED("priority", ALL),
    IGNORED("verbosity", ALL),
    IGNORED("moderation", ALL),
    IGNORED("safety_identifier", ALL),
    IGNORED("prompt_cache_key", ALL),
    IGNORED("prompt_cache_retention", ALL),
    IGNORED("prompt_cache_options", ALL),
    IGNORED("include_prompt_token_ids", ALL),
};

static bool is_neutral(const json_t *v, const char *neutral) {
    CLEANUP_JSON json_t *values = json_loads(neutral, 0, NULL);
    size_t i;
    json_t *n;
    ASSERT(values);
    json_array_foreach(values, i, n) {
        const bool numbers = json_is_number(v) && json_is_number(n);
        if (numbers ? json_number_value(v) == json_number_value(n) : json_equal(v, n)) return true;
    }
    return false;
}

static bool take_float(const struct field *f, const json_t *v, double *out, struct ask_error *e) {
    char want[100];
    const double x = json_number_value(v);
    snprintf(want, sizeof want, f->low > 0 ? "a number above 0, up to %g" : "a number from %g to %g",
             f->low > 0 ? f->high : f->low, f->high);
    if (!json_is_number(v) || !(x >= f->low && x <= f->high)) return wrong_type(v, f->name, want, e);
    *out = x;
    return true;
}

static bool take_field(struct ask *a, const struct field *f, const json_t *v, const struct ask_limits *l,
                       struct ask_error *e) {
    void *at = (char *)a + f->offset;
    if (f->type == FIELD_IGNORED) return true;
    if (json_is_null(v)) {
        /* A chat that says null here wants no log-probabilities at all. */
        if (a->api == ASK_CHAT && strcmp(f->name, "top_logprobs") == 0) a->top_logprobs_null = true;
        return true;
    }
    switch (f->type) {
    case FIELD_INT: return take_int(v, f->name, (int64_t)f->low, (int64_t)f->high, at, e);
    case FIELD_FLOAT: return take_float(f, v, at, e);
    case FIELD_BOOL: return ask_bool(v, f->name, at, e);
    case FIELD_NOT:
        if (!ask_bool(v, f->name, at, e)) return false;
        *(bool *)at = !*(bool *)at;
        return true;
    case FIELD_CALL: return f->call(a, v, f->name, l, e);
    case FIELD_NEUTRAL:
        return is_neutral(v, f->neutral) ||
               ask_fail(e, "unsupported_parameter", f->name, "%s is not supported: %s", f->name, f->instead);
    case FIELD_IGNORED: break;
    }
    return true;
}

static const struct field *find_field(enum ask_api api, const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        if ((fields[i].apis & api) && strcmp(fields[i].name, name) == 0) return &fields[i];
    return NULL;
}

/* Fields in the order of the table, so that what comes later wins; then those that nobody knows. */
static bool take_object(struct ask *a, const json_t *o, const struct ask_limits *l, struct ask_error *e) {
    const char *key;
    json_t *v;
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        const json_t *given = fields[i].apis & a->api ? json_object_get(o, fields[i].name) : NULL;
        if (given && !take_field(a, &fields[i], given, l, e)) return false;
    }
    json_object_foreach((json_t *)(uintptr_t)o, key, v) {
        if (find_field(a->api, key) || (a->api == ASK_GENERATE && strcmp(key, "sampling_params") == 0)) continue;
        if (a->n_unknown == 16) break;
        if (!a->unknown) a->unknown = arena_array(&a->mem, const char *, 16);
        a->unknown[a->n_unknown++] = arena_strndup(&a->mem, key, strnlen(key, SHOWN));
    }
    return true;
}

/* ---- rules across fields ------------------------------------------------------------------------------------------*/

static bool check_chat(struct ask *a, struct ask_error *e) {
    if (a->n_messages == 0) return ask_fail(e, NULL, "messages", "messages: expected a list of messages, got nothing");
    if (a->logprobs >= 0 && !a->chat_logprobs)
        return ask_fail(e, NULL, "top_logprobs", "top_logprobs needs logprobs to be true");
    if (a->chat_logprobs && a->logprobs < 0 && !a->top_logprobs_null) a->logprobs = 0;
    if (a->continue_final && strcmp(a->message[a->n_messages - 1].role, "assistant") != 0)
        return ask_fail(e, NULL, "continue_final_message",
                        "continue_final_message: the last message is none of the assistant");
    if (a->continue_final && a->generation_given && a->generation_prompt)
        return ask_fail(e, NULL, "continue_final_message",
                        "continue_final_message and add_generation_prompt cannot both be true");
    a->end = a->continue_final ? CHAT_CONTINUE : a->generation_prompt ? CHAT_GENERATE : CHAT_CLOSED;
    if (a->has_tools) return ask_fail(e, "unsupported_parameter", "tools", "%s: give tool_choice \"none\"", no_tools);
    return true;
}

static bool check(struct ask *a, const struct ask_limits *l, struct ask_error *e) {
    if (a->api == ASK_CHAT && !check_chat(a, e)) return false;
    if (a->api == ASK_COMPLETIONS && a->n_prompts == 0) {
        a->prompt = arena_new(&a->mem, struct ask_prompt);
        a->prompt->is_end = true;
        a->n_prompts = 1;
    }
    if (a->api == ASK_GENERATE && a->n_prompts == 0)
        return ask_fail(e, NULL, "token_ids", "token_ids: expected a list of token ids, got nothing");
    if (a->best_of != 0 && a->best_of != a->n)
        return ask_fail(e, "unsupported_parameter", "best_of", "best_of: expected n, which is %d, got %d", a->n,
                        a->best_of);
    if (a->max_tokens == 0 && !a->echo && a->prompt_logprobs < 0)
        return ask_fail(e, NULL, "max_tokens", "max_tokens: expected at least 1, or echo or prompt_logprobs with 0");
    if (a->max_tokens >= 0 && a->min_tokens > a->max_tokens)
        return ask_fail(e, NULL, "min_tokens", "min_tokens: expected at most max_tokens, which is %d, got %d",
                        a->max_tokens, a->min_tokens);
    if (a->stream_options && !a->stream)
        return ask_fail(e, NULL, "stream_options", "stream_options needs stream to be true");
    if (!a->usage) a->usage_always = false;
    if (a->stream && a->prompt_logprobs >= 0)
        return ask_fail(e, NULL, "prompt_logprobs", "prompt_logprobs cannot be streamed");
    const int64_t samples = (int64_t)a->n * (a->api == ASK_CHAT ? 1 : a->n_prompts);
    if (samples > l->max_samples)
        return ask_fail(e, NULL, "n", "%lld sequences (prompts times n), the limit is %d", (long long)samples,
                        l->max_samples);
    return true;
}

bool ask_parse(enum ask_api api, const char *text, size_t bytes, const struct ask_limits *l, struct ask *a,
               struct ask_error *e) {
    CLEANUP_JSON json_t *o = NULL;
    *a = (struct ask){.api = api,
                      .generation_prompt = true,
                      .special_tokens = true,
                      .thinking = ASK_THINK_DEFAULT,
                      .n = 1,
                      .max_tokens = -1,
                      .temperature = 1,
                      .top_p = 1,
                      .repetition_penalty = 1,
                      .logprobs = -1,
                      .prompt_logprobs = -1};
    if (!ask_object(text, bytes, &o, e) || !take_object(a, o, l, e)) return false;
    const json_t *sampling = api == ASK_GENERATE ? json_object_get(o, "sampling_params") : NULL;
    if (sampling && !json_is_null(sampling)) {
        if (!json_is_object(sampling)) return wrong_type(sampling, "sampling_params", "an object", e);
        if (!take_object(a, sampling, l, e)) return false;
    }
    return check(a, l, e);
}

void ask_free(struct ask *a) { arena_free(&a->mem); }
