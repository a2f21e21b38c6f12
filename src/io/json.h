/* json: thin helpers over jansson. They load files with errors that name file, line and column, get members with errors
 * that name the key and what was expected, and append compact JSON straight to a struct str, for the lines of a log.
 *
 * `where` in the getters stands in front of the message. It is mostly the file ("config.json: hidden_size: ..."). */
#ifndef KERNELRL_JSON_H
#define KERNELRL_JSON_H

#include <jansson.h>

#include "base/err.h"
#include "base/str.h"

/* Parses len bytes. Duplicate keys are errors. ST_PARSE: "name:line:column: message". The caller json_decref's *out. */
enum status js_parse(const char *text, size_t len, const char *name, json_t **out, struct err *e) MUST_USE;
/* Parses a file of at most max_bytes. ST_IO or ST_PARSE. */
enum status js_load(const char *path, size_t max_bytes, json_t **out, struct err *e) MUST_USE;
#define CLEANUP_JSON __attribute__((cleanup(js_cleanup)))
void js_cleanup(json_t **j); /* CLEANUP_JSON json_t *j = NULL; */

/* Required members of object o. ST_PARSE when one is absent or of another type. Strings and containers are borrowed
 * from o. */
enum status js_get_i64(const json_t *o, const char *where, const char *key, int64_t *out, struct err *e) MUST_USE;
enum status js_get_f64(const json_t *o, const char *where, const char *key, double *out, struct err *e) MUST_USE;
enum status js_get_bool(const json_t *o, const char *where, const char *key, bool *out, struct err *e) MUST_USE;
enum status js_get_str(const json_t *o, const char *where, const char *key, const char **out, struct err *e) MUST_USE;
enum status js_get_array(const json_t *o, const char *where, const char *key, json_t **out, struct err *e) MUST_USE;
enum status js_get_object(const json_t *o, const char *where, const char *key, json_t **out, struct err *e) MUST_USE;
/* Optional members. *out stays as it is where one is absent or null. Another type is an error all the same. */
enum status js_opt_i64(const json_t *o, const char *where, const char *key, int64_t *out, struct err *e) MUST_USE;
enum status js_opt_f64(const json_t *o, const char *where, const char *key, double *out, struct err *e) MUST_USE;
enum status js_opt_bool(const json_t *o, const char *where, const char *key, bool *out, struct err *e) MUST_USE;
enum status js_opt_str(const json_t *o, const char *where, const char *key, const char **out, struct err *e) MUST_USE;

/* Appender. Commas come by themselves: one is put in front of a value unless the text ends in { [ , : or is empty (or
 * at the start of a line). key is NULL inside arrays and for the outermost value.
 *     js_begin(&s, NULL, '{'); js_put_i64(&s, "step", 3); js_begin(&s, "ids", '['); js_put_i64(&s, NULL, 7);
 *     js_end(&s, ']'); js_end(&s, '}');       gives {"step":3,"ids":[7]} */
void js_begin(struct str *s, const char *key, char open);
void js_end(struct str *s, char close);
void js_put_i64(struct str *s, const char *key, int64_t v);
/* Writes the shortest text that reads back equal; null for NaN and infinity. */
void js_put_f64(struct str *s, const char *key, double v);
void js_put_bool(struct str *s, const char *key, bool v);
void js_put_null(struct str *s, const char *key);
/* Writes a text of any origin. Bytes that are not UTF-8 become U+FFFD. NULL writes null. */
void js_put_str(struct str *s, const char *key, const char *v);
void js_put_strn(struct str *s, const char *key, const char *v, size_t n);
void js_put_json(struct str *s, const char *key, const json_t *v); /* In compact form. */

/* Building blocks: a quoted string, and a finite number in its shortest exact form. */
void js_add_quoted(struct str *s, const char *v, size_t n);
void js_add_number(struct str *s, double v);
/* A finite number as the shortest decimal that is this float32 again, so that a value has one text wherever it stands;
 * a whole number has ".0". */
void js_add_f32(struct str *s, float v);
/* How many bytes at the start of the text are well-formed UTF-8; n when all are. */
size_t js_utf8_prefix(const char *p, size_t n);

#endif
