/* Fuzz target: a configuration of any bytes is refused with a message, or loads to values whose dump loads again to
 * equal values. The same bytes are also tried as a key=value argument. */
#include <stdlib.h>
#include <string.h>

#include "io/config.h"

#define LETTERS(X) X(LETTER_A, a) X(LETTER_B, b)

struct values {
    double f;
    int64_t i;
    int e;
    bool b;
    const char *s;
    struct config_strings l;
    struct {
        int64_t level;
    } dataset_builder;
};

static const struct config_key keys[] = {
    KEY_FLOAT_OPT(struct values, f, "1", "(0,)", "A float."),
    KEY_INT(struct values, i, "1", "[0,9]", "An int."),
    KEY_CHOICE(struct values, e, LETTERS, "a", "A choice."),
    KEY_BOOL(struct values, b, "true", "A bool."),
    KEY_STRING_OPT(struct values, s, "null", "A string."),
    KEY_STRINGS(struct values, l, "", "A list."),
    KEY_INT(struct values, dataset_builder.level, "1", "[1,4]", "A nested int."),
};
static const struct config_schema schema = {
    .key = keys, .count = ARRAY_LEN(keys), .values_bytes = sizeof(struct values)};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_dump(const struct config *c) {
    CLEANUP_STR struct str first = STR_INIT, second = STR_INIT;
    struct values v;
    struct config again;
    struct err e = {0};
    config_dump(c, &first);
    config_init(&again, &schema, &v);
    ASSERT(config_load_text(&again, "dump", first.p, first.len, &e) == ST_OK);
    config_dump(&again, &second);
    ASSERT(strcmp(first.p, second.p) == 0);
    config_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct values v;
    struct config c;
    struct err e = {0};
    config_init(&c, &schema, &v);
    if (config_load_text(&c, "fuzz", (const char *)data, size, &e) == ST_OK)
        check_dump(&c);
    else
        ASSERT(strncmp(e.msg, "fuzz:", 5) == 0);

    char *text = xstrndup((const char *)data, size);
    if (config_set(&c, text, &e) != ST_OK) ASSERT(strncmp(e.msg, "command line: ", 14) == 0);
    ASSERT(v.i >= 0 && v.i <= 9 && (v.e == 0 || v.e == 1) && (isnan(v.f) || v.f > 0));
    ASSERT(v.dataset_builder.level >= 1 && v.dataset_builder.level <= 4);
    free(text);
    config_free(&c);
    return 0;
}
