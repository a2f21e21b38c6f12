#include "text/postproc.h"

#include <string.h>

static enum status add_id(const json_t *v, struct ids *out, struct err *e) {
    const json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
    if (id < 0 || id > INT32_MAX) return FAIL(e, ST_PARSE, "post_processor: expected ids of tokens, integers >= 0");
    ids_add(out, (int32_t)id);
    return ST_OK;
}

/* What one step adds goes around what those before it have added. */
static void wrap(struct ids *before, struct ids *after, struct ids *left, const struct ids *right) {
    for (size_t i = 0; i < before->len; i++) ids_add(left, before->p[i]);
    ids_free(before);
    *before = *left;
    *left = (struct ids){0};
    for (size_t i = 0; i < right->len; i++) ids_add(after, right->p[i]);
}

static enum status add_special(const json_t *j, const json_t *part, struct ids *out, struct err *e) {
    const char *name = json_string_value(json_object_get(part, "id"));
    const json_t *ids =
        name ? json_object_get(json_object_get(json_object_get(j, "special_tokens"), name), "ids") : NULL;
    if (!json_is_array(ids))
        return FAIL(e, ST_PARSE, "post_processor TemplateProcessing.special_tokens: no ids of \"%s\"",
                    name ? name : "");
    size_t i;
    const json_t *id;
    json_array_foreach(ids, i, id) TRY(add_id(id, out, e));
    return ST_OK;
}

static enum status load_template(const json_t *j, struct ids *left, struct ids *right, struct err *e) {
    const json_t *single = json_object_get(j, "single"), *part;
    int texts = 0;
    size_t i;
    json_array_foreach(single, i, part) {
        const json_t *special = json_object_get(part, "SpecialToken"), *text = json_object_get(part, "Sequence");
        if (special) TRY(add_special(j, special, texts ? right : left, e));
        if (text) texts++;
        if (!special == !text || (text && strcmp(json_string_value(json_object_get(text, "id")) ?: "", "A") != 0))
            return FAIL(e, ST_UNSUPPORTED,
                        "post_processor TemplateProcessing.single[%zu]: expected a SpecialToken or "
                        "the Sequence A",
                        i);
    }
    if (texts == 1) return ST_OK;
    return FAIL(e, ST_UNSUPPORTED, "post_processor TemplateProcessing.single: expected the Sequence A once, got %d",
                texts);
}

static enum status load_step(const json_t *j, int depth, struct ids *before, struct ids *after, struct err *e) {
    const char *type = json_string_value(json_object_get(j, "type"));
    if (!type) type = "(no type)";
    if (strcmp(type, "ByteLevel") == 0) return ST_OK;
    if (strcmp(type, "Sequence") == 0 && depth < 8) {
        size_t i;
        const json_t *step;
        json_array_foreach(json_object_get(j, "processors"), i, step) TRY(load_step(step, depth + 1, before, after, e));
        return ST_OK;
    }
    struct ids left = {0}, right = {0};
    enum status st;
    if (strcmp(type, "TemplateProcessing") == 0) {
        st = load_template(j, &left, &right, e);
    } else if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0) {
        st = add_id(json_array_get(json_object_get(j, "cls"), 1), &left, e);
        if (st == ST_OK) st = add_id(json_array_get(json_object_get(j, "sep"), 1), &right, e);
    } else {
        st = FAIL(e, ST_UNSUPPORTED,
                  "post_processor.type: \"%s\" is not supported; expected TemplateProcessing, RobertaProcessing, "
                  "BertProcessing, ByteLevel or a Sequence of these",
                  type);
    }
    if (st == ST_OK) wrap(before, after, &left, &right);
    ids_free(&left);
    ids_free(&right);
    return st;
}

enum status postproc_load(const json_t *j, struct ids *before, struct ids *after, struct err *e) {
    return !j || json_is_null(j) ? ST_OK : load_step(j, 0, before, after, e);
}
