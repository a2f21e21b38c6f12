#include "text/template.h"

#include "base/fs.h"
#include "io/json.h"

enum { TOKENIZER_MAX_BYTES = 64 << 20 };

enum status template_read(const char *dir, const struct tokenizer *t, struct ids *before, struct ids *after,
                          struct err *e) {
    CLEANUP_STR struct str path = STR_INIT;
    CLEANUP_JSON json_t *file = NULL;
    str_addf(&path, "%s/tokenizer.json", dir);
    if (!fs_is_file(path.p)) return ST_OK; /* vocab.json and merges.txt have none */
    TRY(js_load(path.p, TOKENIZER_MAX_BYTES, &file, e));
    const json_t *post = json_object_get(file, "post_processor"), *all = json_object_get(post, "processors");
    const size_t n = json_is_array(all) ? json_array_size(all) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *single = json_object_get(json_is_array(all) ? json_array_get(all, i) : post, "single"), *part;
        struct ids *to = before;
        size_t k;
        json_array_foreach(single, k, part) {
            if (json_object_get(part, "Sequence")) to = after;
            const char *special = json_string_value(json_object_get(json_object_get(part, "SpecialToken"), "id"));
            const int32_t id = special ? tokenizer_id(t, special) : 0;
            if (id < 0) return FAIL(e, ST_PARSE, "%s: post_processor: \"%s\" is no token", path.p, special);
            if (special) ids_add(to, id);
        }
    }
    return ST_OK;
}
