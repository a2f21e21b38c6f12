#include "verdicts/ask.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool verdict_refuse(struct verdict_refusal *r, int status, const char *code, const char *param, const char *fmt, ...) {
    va_list ap;
    *r = (struct verdict_refusal){.status = status, .code = code};
    snprintf(r->param, sizeof r->param, "%s", param ? param : "");
    va_start(ap, fmt);
    vsnprintf(r->message, sizeof r->message, fmt, ap);
    va_end(ap);
    return false;
}

void verdict_refusal_place(struct verdict_refusal *why, const char *where, size_t i) {
    struct verdict_refusal was = *why;
    snprintf(why->param, sizeof why->param, "%s[%zu]%s%.40s", where, i, *was.param ? "." : "", was.param);
    snprintf(why->message, sizeof why->message, "%s[%zu]: %.500s", where, i, was.message);
}

void verdict_refusal_json(const struct verdict_refusal *r, const char *key, struct str *out) {
    js_begin(out, key, '{');
    js_put_str(out, "message", r->message);
    js_put_str(out, "type", "invalid_request_error");
    js_put_str(out, "param", *r->param ? r->param : NULL);
    js_put_str(out, "code", r->code);
    js_end(out, '}');
}

/* ---- values -------------------------------------------------------------------------------------------------------*/

static const char *type_of(const json_t *v) {
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "a whole number";
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    default: return "null";
    }
}

bool verdict_read_text(const json_t *v, const char *name, size_t most, const char **out, struct verdict_refusal *why) {
    if (!json_is_string(v))
        return verdict_refuse(why, 400, NULL, name, "%s: expected a string, got %s", name, type_of(v));
    const size_t n = json_string_length(v);
    *out = json_string_value(v);
    if (strlen(*out) != n) return verdict_refuse(why, 400, NULL, name, "%s: U+0000 cannot stand in it", name);
    if (n > most) return verdict_refuse(why, 400, NULL, name, "%s: expected at most %zu bytes, got %zu", name, most, n);
    return true;
}

static bool read_name(const json_t *v, const char *name, const char **out, struct verdict_refusal *why) {
    if (!verdict_read_text(v, name, VERDICT_NAME_BYTES, out, why)) return false;
    return **out || verdict_refuse(why, 400, NULL, name, "%s: expected a name, got an empty string", name);
}

bool verdict_read_bool(const json_t *v, const char *name, int *out, struct verdict_refusal *why) {
    if (!json_is_boolean(v))
        return verdict_refuse(why, 400, NULL, name, "%s: expected true or false, got %s", name, type_of(v));
    *out = json_is_true(v);
    return true;
}

bool verdict_read_int(const json_t *v, const char *name, int64_t low, int64_t high, int64_t *out,
                      struct verdict_refusal *why) {
    const bool whole = json_is_integer(v);
    *out = whole ? json_integer_value(v) : 0;
    if (whole && *out >= low && *out <= high) return true;
    return verdict_refuse(why, 400, NULL, name, "%s: expected a whole number from %lld to %lld", name, (long long)low,
                          (long long)high);
}

static bool read_choice(const json_t *v, const char *name, const char *choices, int *out, struct verdict_refusal *why) {
    CLEANUP_STR struct str list = STR_INIT;
    const char *text;
    if (!read_name(v, name, &text, why)) return false;
    *out = str_index_in(choices, text, '|');
    if (*out >= 0) return true;
    for (const char *p = choices; *p; p++) str_adds(&list, *p == '|' ? ", " : (char[]){*p, 0});
    return verdict_refuse(why, 400, NULL, name, "%s: expected one of %s, got \"%.60s\"", name, str_c(&list), text);
}

static bool unknown(const char *name, struct verdict_refusal *why) {
    return verdict_refuse(why, 400, "unsupported_parameter", name, "%.60s: there is no such field", name);
}

/* ---- fields -------------------------------------------------------------------------------------------------------*/

static bool read_options(const json_t *o, struct verdict_ask *out, struct verdict_refusal *why) {
    const char *name;
    json_t *v;
    int64_t n = 0;
    if (!json_is_object(o))
        return verdict_refuse(why, 400, NULL, "options", "options: expected an object, got %s", type_of(o));
    json_object_foreach((json_t *)o, name, v) {
        bool ok;
        if (json_is_null(v)) continue;
        if (strcmp(name, "trials") == 0) {
            ok = verdict_read_int(v, "options.trials", 1, 100, &n, why);
            out->trials = (int)n;
        } else if (strcmp(name, "timed_calls") == 0) {
            ok = verdict_read_int(v, "options.timed_calls", 1, 10000, &n, why);
            out->timed_calls = (int)n;
        } else if (strcmp(name, "measure") == 0)
            ok = verdict_read_bool(v, "options.measure", &out->measure, why);
        else if (strcmp(name, "single_input") == 0)
            ok = verdict_read_bool(v, "options.single_input", &out->single_input, why);
        else if (strcmp(name, "staged") == 0)
            ok = read_choice(v, "options.staged", CHOICE_TEXT(STAGING_LIST), &out->staged, why);
        else if (strcmp(name, "timing_method") == 0)
            ok = read_choice(v, "options.timing_method", CHOICE_TEXT(TIMING_LIST), &out->timing_method, why);
        else
            ok = unknown(name, why);
        if (!ok) return false;
    }
    return true;
}

static bool read_problem(const json_t *o, struct verdict_ask *out, struct verdict_refusal *why) {
    const char *name, *entry = "Model";
    json_t *v;
    if (json_is_string(o)) return read_name(o, "problem", &out->key, why);
    if (!json_is_object(o))
        return verdict_refuse(why, 400, NULL, "problem", "problem: expected {\"key\"} or {\"code\"}, got %s",
                              type_of(o));
    json_object_foreach((json_t *)o, name, v) {
        bool ok;
        if (json_is_null(v)) continue;
        if (strcmp(name, "key") == 0)
            ok = read_name(v, "problem.key", &out->key, why);
        else if (strcmp(name, "source") == 0)
            ok = read_name(v, "problem.source", &out->source, why);
        else if (strcmp(name, "code") == 0)
            ok = verdict_read_text(v, "problem.code", VERDICT_PROBLEM_BYTES, &out->code, why);
        else if (strcmp(name, "entry") == 0)
            ok = read_name(v, "problem.entry", &entry, why);
        else
            ok = unknown(name, why);
        if (!ok) return false;
    }
    if (strcmp(entry, "Model") != 0)
        return verdict_refuse(why, 400, "unsupported_parameter", "problem.entry",
                              "problem.entry: the module's class is Model, got \"%.60s\"", entry);
    if (!out->key == !out->code)
        return verdict_refuse(why, 400, NULL, "problem", "problem: expected either a key or code");
    if (out->code && out->source)
        return verdict_refuse(why, 400, NULL, "problem.source", "problem.source: code comes from no source");
    return true;
}

static bool read_field(const char *name, const json_t *v, struct verdict_ask *out, struct verdict_refusal *why) {
    int64_t n = 0;
    int flag = 0;
    bool ok;
    if (strcmp(name, "id") == 0) return verdict_read_text(v, "id", VERDICT_NAME_BYTES, &out->id, why);
    if (strcmp(name, "problem") == 0) return read_problem(v, out, why);
    if (strcmp(name, "solution") == 0)
        return verdict_read_text(v, "solution", VERDICT_SOLUTION_BYTES, &out->solution, why);
    if (strcmp(name, "config") == 0) return read_name(v, "config", &out->config, why);
    if (strcmp(name, "backend") == 0) return read_choice(v, "backend", CHOICE_TEXT(BACKEND_LIST), &out->backend, why);
    if (strcmp(name, "options") == 0) return read_options(v, out, why);
    if (strcmp(name, "extract") == 0) {
        ok = verdict_read_bool(v, "extract", &flag, why);
        out->extract = flag;
        return ok;
    }
    if (strcmp(name, "force") == 0) {
        ok = verdict_read_bool(v, "force", &flag, why);
        out->force = flag;
        return ok;
    }
    if (strcmp(name, "priority") == 0) {
        ok = verdict_read_int(v, "priority", 0, VERDICT_PRIORITIES - 1, &n, why);
        out->priority = (int)n;
        return ok;
    }
    if (strcmp(name, "tokens") == 0) return verdict_read_int(v, "tokens", 0, INT32_MAX, &out->tokens, why);
    if (strcmp(name, "metadata") == 0) {
        out->metadata = v;
        return true;
    }
    return unknown(name, why);
}

bool verdict_ask_read(const json_t *request, struct verdict_ask *out, struct verdict_refusal *why) {
    const char *name;
    json_t *v;
    *out = (struct verdict_ask){.backend = -1,
                                .tokens = -1,
                                .trials = -1,
                                .timed_calls = -1,
                                .measure = -1,
                                .single_input = -1,
                                .staged = -1,
                                .timing_method = -1};
    if (!json_is_object(request))
        return verdict_refuse(why, 400, NULL, NULL, "expected a JSON object, got %s", type_of(request));
    json_object_foreach((json_t *)request, name, v) {
        if (!json_is_null(v) && !read_field(name, v, out, why)) return false;
    }
    if (!out->key && !out->code) return verdict_refuse(why, 400, NULL, "problem", "problem: it is needed");
    if (!out->solution) return verdict_refuse(why, 400, NULL, "solution", "solution: it is needed");
    return true;
}
