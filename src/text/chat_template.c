#include "text/chat_template.h"

#include <string.h>

#include "base/fs.h"
#include "base/hash.h"
#include "io/json.h"

enum { MAX_BYTES = 16 << 20 };

/* Of the text as Jinja reads it: with the line ends of Unix, and without the last one. */
static const struct {
    const char *sha256, *family;
} known[] = {
    {"55b2f4a26ac9ee719330a61a0c39d9e538b0e9322212f048326318cff4f8674a", "qwen2.5"},
    {"4039eed0f28b7aaa337e70c76cfedba3271ee32505835a095a8c92e536b3c355", "qwen2.5_base"},
    {"2976f7de3b9489e3237dc5ad2734060f756d026da00f24464c59c2e3bb40ee37", "qwen2.5_math"},
    {"a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8", "qwen3"},
    {"87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5", "qwen3"}, /* as it was first published */
    {"64f85b198065d0fba2a81f37e10ed68161ce2c19a754c7100e67e0ca2ee9c326", "qwen3_instruct"},
    {"3802169b2a02b81e6adb7ab4f64f91ff02db753c8c3a64a01c35192d3a61d8d7", "qwen3_thinking"},
    {"ba03a121d097859c7b5b9cd03af99aafe95275210d2876f642ad9929a150f122", "llama3"},
    {"93c0e9aa3629bbd77e68dbc0f5621f6e6b23aa8d74b932595cdb8d64684526d7", "llama3.1"}, /* 3.1, 3.3 */
    {"d82792f95932f1c9cef5c4bd992f171225e3bf8c7b609b4557c9e1ec96be819f", "llama3.1"}, /* 3.2 */
    {"56a1447ad31926fdc21fb07e56e5642bd9c850c4f52d8c8af7bbe5f079a84f5f", "deepseek_r1"},
    {"d557e1e002e465cac414350e0f40c05886286a372ed090c0dc907f82f1756981", "qwen3"}, /* models/tiny */
};

static void as_jinja_reads(const char *text, size_t n, struct str *out) {
    for (size_t i = 0; i < n; i++)
        if (text[i] != '\r')
            str_addc(out, text[i]);
        else if (i + 1 == n || text[i + 1] != '\n')
            str_addc(out, '\n');
    if (out->len > 0 && out->p[out->len - 1] == '\n') out->len--;
}

static enum status recognise(const char *path, const char *text, size_t n, const char **family, struct err *e) {
    CLEANUP_STR struct str read = STR_INIT;
    as_jinja_reads(text, n, &read);
    const struct digest d = digest_of(str_c(&read), read.len);
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (strcmp(d.hex, known[i].sha256) != 0) continue;
        *family = known[i].family;
        return ST_OK;
    }
    return FAIL(
        e, ST_UNSUPPORTED,
        "%s: this chat template is not known (its SHA-256 is %s): name the style of prompts, " CHAT_STYLE_EXPECTED
        " (renderer_name, --renderer; docs/models.md)",
        path, d.hex);
}

/* "chat_template" is a text, or a list of texts with names, of which the default one counts. */
static const json_t *default_of(const json_t *template) {
    size_t i;
    const json_t *v;
    if (!json_is_array(template)) return template;
    json_array_foreach(template, i, v) {
        const char *name = json_string_value(json_object_get(v, "name"));
        if (name && strcmp(name, "default") == 0) return json_object_get(v, "template");
    }
    return NULL;
}

enum status chat_template_family(const char *dir, const char **family, struct err *e) {
    CLEANUP_FREE char *jinja = fs_join(dir, "chat_template.jinja"), *path = fs_join(dir, "tokenizer_config.json");
    *family = NULL;
    if (fs_is_file(jinja)) {
        CLEANUP_FREE char *text = NULL;
        size_t n;
        TRY(fs_read(jinja, MAX_BYTES, &text, &n, e));
        return recognise(jinja, text, n, family, e);
    }
    if (!fs_is_file(path)) return ST_OK;
    CLEANUP_JSON json_t *config = NULL;
    TRY(js_load(path, MAX_BYTES, &config, e));
    const json_t *template = json_object_get(config, "chat_template");
    if (!template || json_is_null(template)) return ST_OK;
    template = default_of(template);
    if (!json_is_string(template))
        return FAIL(e, ST_UNSUPPORTED,
                    "%s: chat_template: expected a text, or a list of {name, template} with one named default", path);
    return recognise(path, json_string_value(template), json_string_length(template), family, e);
}

enum status chat_template_style(const char *dir, const char *renderer, const char *otherwise, bool thinking,
                                enum chat_style *out, struct err *e) {
    const char *family = NULL;
    if (!renderer || !*renderer) TRY(chat_template_family(dir, &family, e));
    if ((renderer && *renderer) || family || otherwise)
        return chat_style_choose(renderer, family ? family : otherwise, thinking, out, e);
    return FAIL(e, ST_UNSUPPORTED,
                "%s: there is no chat template: name the style of prompts, " CHAT_STYLE_EXPECTED
                " (renderer_name, --renderer)",
                dir);
}
