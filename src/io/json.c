#include "io/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"

enum status js_parse(const char *text, size_t len, const char *name, json_t **out, struct err *e) {
    json_error_t je;
    *out = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &je);
    if (*out) return ST_OK;
    return FAIL(e, ST_PARSE, "%s:%d:%d: %s", name, je.line, je.column, je.text);
}

enum status js_load(const char *path, size_t max_bytes, json_t **out, struct err *e) {
    CLEANUP_FREE char *text = NULL;
    size_t len = 0;
    *out = NULL;
    TRY(fs_read(path, max_bytes, &text, &len, e));
    return js_parse(text, len, path, out, e);
}

void js_cleanup(json_t **j) { json_decref(*j); }

/* Says in a few words what a value is, for "got ...". */
static void describe(const json_t *v, char *buf, size_t n) {
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT: snprintf(buf, n, "an object"); break;
    case JSON_ARRAY: snprintf(buf, n, "a list"); break;
    case JSON_STRING: snprintf(buf, n, "\"%.60s\"", json_string_value(v)); break;
    case JSON_INTEGER: snprintf(buf, n, "%" JSON_INTEGER_FORMAT, json_integer_value(v)); break;
    case JSON_REAL: snprintf(buf, n, "%g", json_real_value(v)); break;
    case JSON_TRUE: snprintf(buf, n, "true"); break;
    case JSON_FALSE: snprintf(buf, n, "false"); break;
    default: snprintf(buf, n, v ? "null" : "nothing"); break;
    }
}

static enum status wrong_type(const json_t *v, const char *where, const char *key, const char *want, struct err *e) {
    char got[80];
    describe(v, got, sizeof got);
    return FAIL(e, ST_PARSE, "%s: %s: expected %s, got %s", where, key, want, got);
}

enum status js_get_i64(const json_t *o, const char *where, const char *key, int64_t *out, struct err *e) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v)) return wrong_type(v, where, key, "a whole number", e);
    *out = json_integer_value(v);
    return ST_OK;
}

enum status js_get_f64(const json_t *o, const char *where, const char *key, double *out, struct err *e) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_number(v)) return wrong_type(v, where, key, "a number", e);
    *out = json_number_value(v);
    return ST_OK;
}

enum status js_get_bool(const json_t *o, const char *where, const char *key, bool *out, struct err *e) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_boolean(v)) return wrong_type(v, where, key, "true or false", e);
    *out = json_is_true(v);
    return ST_OK;
}

enum status js_get_str(const json_t *o, const char *where, const char *key, const char **out, struct err *e) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_string(v)) return wrong_type(v, where, key, "a string", e);
    *out = json_string_value(v);
    return ST_OK;
}

enum status js_get_array(const json_t *o, const char *where, const char *key, json_t **out, struct err *e) {
    json_t *v = json_object_get(o, key);
    if (!json_is_array(v)) return wrong_type(v, where, key, "a list", e);
    *out = v;
    return ST_OK;
}

enum status js_get_object(const json_t *o, const char *where, const char *key, json_t **out, struct err *e) {
    json_t *v = json_object_get(o, key);
    if (!json_is_object(v)) return wrong_type(v, where, key, "an object", e);
    *out = v;
    return ST_OK;
}

static bool is_set(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return v && !json_is_null(v);
}

enum status js_opt_i64(const json_t *o, const char *where, const char *key, int64_t *out, struct err *e) {
    return is_set(o, key) ? js_get_i64(o, where, key, out, e) : ST_OK;
}

enum status js_opt_f64(const json_t *o, const char *where, const char *key, double *out, struct err *e) {
    return is_set(o, key) ? js_get_f64(o, where, key, out, e) : ST_OK;
}

enum status js_opt_bool(const json_t *o, const char *where, const char *key, bool *out, struct err *e) {
    return is_set(o, key) ? js_get_bool(o, where, key, out, e) : ST_OK;
}

enum status js_opt_str(const json_t *o, const char *where, const char *key, const char **out, struct err *e) {
    return is_set(o, key) ? js_get_str(o, where, key, out, e) : ST_OK;
}

/* ---- appender -----------------------------------------------------------------------------------------------------
 */

/* Returns the length of the well-formed UTF-8 sequence at p (RFC 3629: no overlong forms, no surrogates), 0 if there is
 * none. */
static size_t utf8_len(const unsigned char *p, size_t n) {
    if (p[0] < 0x80) return 1;
    size_t len = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || len > n) return 0;
    for (size_t i = 1; i < len; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if (p[0] == 0xe0 && p[1] < 0xa0) return 0;
    if (p[0] == 0xed && p[1] > 0x9f) return 0;
    if (p[0] == 0xf0 && p[1] < 0x90) return 0;
    if (p[0] == 0xf4 && p[1] > 0x8f) return 0;
    return len;
}

size_t js_utf8_prefix(const char *p, size_t n) {
    size_t i = 0;
    for (size_t len; i < n; i += len) {
        len = utf8_len((const unsigned char *)p + i, n - i);
        if (len == 0) break;
    }
    return i;
}

void js_add_quoted(struct str *s, const char *v, size_t n) {
    static const char escapes[] = "\b\t\n\f\r\"\\", letters[] = "btnfr\"\\";
    const unsigned char *p = (const unsigned char *)v;
    str_addc(s, '"');
    for (size_t i = 0; i < n;) {
        const char *esc = p[i] ? strchr(escapes, p[i]) : NULL;
        size_t len = utf8_len(p + i, n - i);
        if (esc) {
            str_addc(s, '\\');
            str_addc(s, letters[esc - escapes]);
        } else if (p[i] < 0x20 || p[i] == 0x7f) {
            str_addf(s, "\\u%04x", p[i]);
        } else {
            str_add(s, len ? v + i : "\xef\xbf\xbd", len ? len : 3);
        }
        i += len ? len : 1;
    }
    str_addc(s, '"');
}

void js_add_number(struct str *s, double v) {
    char buf[40];
    int digits = 6, most = 17; /* where some digits are enough, more of them are, too */
    snprintf(buf, sizeof buf, "%.6g", v);
    if (strtod(buf, NULL) != v) {
        for (digits = 7; digits < most;) {
            const int middle = (digits + most) / 2;
            snprintf(buf, sizeof buf, "%.*g", middle, v);
            if (strtod(buf, NULL) == v)
                most = middle;
            else
                digits = middle + 1;
        }
        snprintf(buf, sizeof buf, "%.*g", digits, v);
    }
    str_adds(s, buf);
}

void js_add_f32(struct str *s, float v) {
    char buf[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(buf, sizeof buf, "%.*g", digits, (double)v);
        if (strtof(buf, NULL) == v) break;
    }
    str_adds(s, buf);
    if (!strpbrk(buf, ".e")) str_adds(s, ".0");
}

static void separate(struct str *s, const char *key) {
    char last = s->len ? s->p[s->len - 1] : '\n';
    if (!strchr("{[,:\n", last)) str_addc(s, ',');
    if (!key) return;
    js_add_quoted(s, key, strlen(key));
    str_addc(s, ':');
}

void js_begin(struct str *s, const char *key, char open) {
    ASSERT(open == '{' || open == '[');
    separate(s, key);
    str_addc(s, open);
}

void js_end(struct str *s, char close) {
    ASSERT(close == '}' || close == ']');
    str_addc(s, close);
}

void js_put_i64(struct str *s, const char *key, int64_t v) {
    separate(s, key);
    str_addf(s, "%" PRId64, v);
}

void js_put_f64(struct str *s, const char *key, double v) {
    if (!isfinite(v)) {
        js_put_null(s, key);
        return;
    }
    separate(s, key);
    js_add_number(s, v);
}

void js_put_bool(struct str *s, const char *key, bool v) {
    separate(s, key);
    str_adds(s, v ? "true" : "false");
}

void js_put_null(struct str *s, const char *key) {
    separate(s, key);
    str_adds(s, "null");
}

void js_put_strn(struct str *s, const char *key, const char *v, size_t n) {
    separate(s, key);
    js_add_quoted(s, v, n);
}

void js_put_str(struct str *s, const char *key, const char *v) {
    if (v)
        js_put_strn(s, key, v, strlen(v));
    else
        js_put_null(s, key);
}

static int dump_to_str(const char *buf, size_t n, void *s) {
    str_add(s, buf, n);
    return 0;
}

void js_put_json(struct str *s, const char *key, const json_t *v) {
    separate(s, key);
    int rc = json_dump_callback(v, dump_to_str, s, JSON_COMPACT | JSON_ENCODE_ANY);
    /* This fails only for circular values. */
    ASSERT(rc == 0);
}
