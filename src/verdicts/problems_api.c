/* What clients ask of problems, so that a trainer elsewhere needs no files. */
#include <string.h>

#include "io/json.h"
#include "verdicts/internal.h"

static void put_problem(const struct problem *p, bool with_code, struct str *out) {
    CLEANUP_STR struct str flags = STR_INIT;
    problem_flags(p, &flags);
    js_begin(out, NULL, '{');
    js_put_str(out, "key", p->key);
    js_put_str(out, "object", "problem");
    js_put_str(out, "name", p->name);
    js_put_i64(out, "level", p->level);
    js_put_i64(out, "problem_id", p->problem_id);
    js_put_i64(out, "difficulty", p->difficulty);
    js_put_str(out, "split", p->split == SPLIT_TEST ? "test" : "train");
    js_put_str(out, "ops", p->ops);
    js_put_str(out, "flags", str_c(&flags));
    if (with_code) js_put_str(out, "code", p->code);
    js_end(out, '}');
}

void problems_list_begin(void *verdicts, struct http_exchange *x) {
    const struct verdicts *v = verdicts;
    const char *source = http_query(x, "source");
    const struct problem_set *set = desk_problems(v->desk, source);
    struct str out = STR_INIT;
    if (!set) {
        http_reply_error(x, 404, "source_not_found", "source", "source: there is no source \"%.100s\" here", source);
        return;
    }
    js_begin(&out, NULL, '{');
    js_put_str(&out, "object", "list");
    js_begin(&out, "data", '[');
    for (size_t i = 0; i < set->count; i++) put_problem(&set->items[i], false, &out);
    js_end(&out, ']');
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}

void problem_show_begin(void *verdicts, struct http_exchange *x) {
    struct verdicts *v = verdicts;
    const struct problem *p;
    struct verdict_refusal why;
    struct str out = STR_INIT;
    if (!desk_problem(v->desk, http_query(x, "source"), http_tail(x), &p, &why)) {
        verdicts_reply_refusal(x, &why);
        return;
    }
    put_problem(p, true, &out);
    http_reply_json(x, 200, &out);
}
