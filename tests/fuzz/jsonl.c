/* Fuzz target: lines of a plain or zstd-compressed JSONL stream of any bytes; each line that is JSON survives writing
 * and reading again. The first byte picks the form. */
#include <string.h>

#include "io/json.h"
#include "io/jsonl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* JSON values are equal; jansson's own comparison, which tells 1 from 1.0, as our writer does not. */
static void check_line(const char *line, size_t len) {
    struct err e = {0};
    CLEANUP_JSON json_t *a = NULL, *b = NULL;
    if (js_parse(line, len, "line", &a, &e) != ST_OK) {
        ASSERT(e.code == ST_PARSE && strncmp(e.msg, "line:", 5) == 0);
        return;
    }
    CLEANUP_STR struct str s = STR_INIT, quoted = STR_INIT;
    js_put_json(&s, NULL, a);
    ASSERT(js_parse(s.p, s.len, "again", &b, &e) == ST_OK && json_equal(a, b));
    ASSERT(!memchr(s.p, '\n', s.len)); /* one value, one line */

    /* Any bytes can be written as a string, and strings that are UTF-8 come back as they were. */
    json_t *c = NULL;
    js_put_strn(&quoted, NULL, line, len);
    ASSERT(js_parse(quoted.p, quoted.len, "quoted", &c, &e) == ST_OK && json_is_string(c));
    ASSERT(json_string_length(c) == len && memcmp(json_string_value(c), line, len) == 0);
    json_decref(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    struct jsonl_reader *r = jsonl_open_memory("fuzz", data + 1, size - 1, data[0] & 1, 1 << 16);
    struct err e = {0};
    const char *line;
    size_t len;
    int64_t before = 0;
    enum status st;
    while ((st = jsonl_next(r, &line, &len, &e)) == ST_OK && line) {
        ASSERT(line[len] == 0 && jsonl_line(r) > before && len <= 1 << 16);
        before = jsonl_line(r);
        check_line(line, len);
    }
    ASSERT(st == ST_OK || (st == ST_PARSE && e.msg[0]));
    jsonl_close(r);

    CLEANUP_STR struct str quoted = STR_INIT;
    CLEANUP_JSON json_t *any = NULL;
    js_put_strn(&quoted, NULL, (const char *)data, size);
    ASSERT(js_parse(quoted.p, quoted.len, "any", &any, &e) == ST_OK && json_is_string(any));
    return 0;
}
