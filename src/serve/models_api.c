/* GET /v1/models and /v1/models/NAME. */
#include <string.h>

#include "io/json.h"
#include "serve/internal.h"

static void put_model(const struct serve *s, struct str *out, const struct served_model *listed) {
    const struct served_model *m = models_find(&s->models, listed->name);
    if (!m) return;
    js_begin(out, NULL, '{');
    js_put_str(out, "id", listed->name);
    js_put_str(out, "object", "model");
    js_put_i64(out, "created", listed->created);
    js_put_str(out, "owned_by", "kernelrl");
    js_put_str(out, "root", m->dir ? m->dir : m->name);
    js_put_str(out, "parent", listed->alias_of ? m->name : m->parent);
    js_put_i64(out, "max_model_len", s->max_len);
    js_put_bool(out, "loaded", m->loaded);
    js_put_str(out, "pooling",
               s->pooling == SERVE_POOLING_MEAN   ? "mean"
               : s->pooling == SERVE_POOLING_LAST ? "last"
                                                  : NULL);
    js_begin(out, "permission", '[');
    js_end(out, ']');
    js_end(out, '}');
}

void models_list_begin(void *serve, struct http_exchange *x) {
    struct serve *s = serve;
    struct str out = STR_INIT;
    if (!serve_is_up(s, x)) return;
    js_begin(&out, NULL, '{');
    js_put_str(&out, "object", "list");
    js_begin(&out, "data", '[');
    for (const struct served_model *m = s->models.first; m; m = m->next) put_model(s, &out, m);
    js_end(&out, ']');
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}

void model_show_begin(void *serve, struct http_exchange *x) {
    struct serve *s = serve;
    struct str out = STR_INIT;
    const struct served_model *m = s->models.first;
    if (!serve_is_up(s, x)) return;
    while (m && strcmp(m->name, http_tail(x)) != 0) m = m->next;
    if (!m) {
        http_reply_error(x, 404, "model_not_found", "model", "the model \"%.200s\" does not exist: see /v1/models",
                         http_tail(x));
        return;
    }
    put_model(s, &out, m);
    http_reply_json(x, 200, &out);
}
