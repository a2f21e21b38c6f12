/* Fuzz target: lines of an index of answers, and of metrics, of any bytes. The first byte picks. What is taken can be
 * shown as JSON. A line that is read as a plain one has the members that the general reader finds. */
#include <string.h>

#include "io/json.h"
#include "io/jsonl.h"
#include "rl/view/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_plain(const char *line, size_t n) {
    struct line_members m;
    struct err e = {0};
    CLEANUP_JSON json_t *o = NULL;
    const enum status st = members_read(&m, line, n, "line", &e), general = js_parse(line, n, "line", &o, &e);
    ASSERT(st == general || (general == ST_OK && !json_is_object(o)));
    if (st == ST_OK && !m.whole) {
        size_t k = 0;
        const char *key;
        json_t *v;
        ASSERT(json_object_size(o) == m.n);
        json_object_foreach(o, key, v) {
            const struct line_member *x = &m.m[k++];
            ASSERT(x->n_key == strlen(key) && memcmp(x->key, key, x->n_key) == 0);
            if (json_is_object(v) && strcmp(key, "reward") == 0) v = json_object_get(v, "total");
            ASSERT((x->kind == MEMBER_WHOLE) == json_is_integer(v) && (x->kind == MEMBER_REAL) == json_is_real(v));
            if (x->kind == MEMBER_TEXT) ASSERT(strlen(json_string_value(v)) == x->n_text);
            if (x->kind == MEMBER_TEXT) ASSERT(memcmp(json_string_value(v), x->text, x->n_text) == 0);
            if (x->kind == MEMBER_WHOLE) ASSERT(x->whole == json_integer_value(v));
            if (json_is_number(v)) ASSERT(x->real == json_number_value(v));
        }
    }
    members_free(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    struct jsonl_reader *r = jsonl_open_memory("fuzz", data + 1, size - 1, false, 1 << 16);
    struct view_rows rows = {0};
    struct columns columns = {0};
    struct err e = {0};
    const char *line;
    size_t len;
    while (jsonl_next(r, &line, &len, &e) == ST_OK && line) {
        const size_t before = rows.n, lines = columns.n_lines;
        struct err why = {0};
        check_plain(line, len);
        const enum status st = data[0] & 1 ? rows_add(&rows, line, len, &why) : columns_add(&columns, line, len, &why);
        ASSERT(rows.n + columns.n_lines == before + lines + (st == ST_OK)); /* all of a line or nothing */
        ASSERT(st == ST_OK || (st == ST_PARSE && why.msg[0]));
    }
    for (size_t i = 0; i < rows.n; i++) {
        CLEANUP_STR struct str s = STR_INIT;
        CLEANUP_JSON json_t *o = NULL;
        ASSERT(i == 0 || rows.row[i].frame >= rows.row[i - 1].frame);
        row_json(&rows, &rows.row[i], NULL, &s);
        ASSERT(js_parse(s.p, s.len, "row", &o, &e) == ST_OK);
    }
    for (uint32_t k = 1; k < columns.names.n; k++) {
        ASSERT(names_find(&columns.names, columns.names.name[k], strlen(columns.names.name[k])) == k);
        for (size_t i = 0; i < columns.column[k].n; i++) ASSERT(columns.column[k].line[i] < (int64_t)columns.n_lines);
    }
    rows_free(&rows);
    columns_free(&columns);
    jsonl_close(r);
    return 0;
}
