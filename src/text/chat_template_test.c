/* Chat templates are recognised by their text, in either of its two files, and refused by name when they are not known.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/fs.h"
#include "base/home.h"
#include "io/json.h"
#include "text/chat_template.h"

static struct err err;
static char dir[] = "/tmp/chat_template_test.XXXXXX";
static char *tiny; /* the template of models/tiny */

static void put(const char *name, const char *text) {
    CLEANUP_FREE char *path = fs_join(dir, name);
    if (!text) {
        assert_int_equal(fs_remove(path, &err), ST_OK);
        return;
    }
    assert_int_equal(fs_write_atomic(path, text, strlen(text), &err), ST_OK);
}

/* tokenizer_config.json with this template, a JSON value; NULL: none. */
static void configure(json_t *template) {
    CLEANUP_JSON json_t *config = json_object();
    if (template) json_object_set_new(config, "chat_template", template);
    CLEANUP_FREE char *text = json_dumps(config, 0);
    put("tokenizer_config.json", text);
}

static int setup(void **state) {
    (void)state;
    CLEANUP_STR struct str path = STR_INIT;
    CLEANUP_JSON json_t *config = NULL;
    str_addf(&path, "%s/models/tiny/tokenizer_config.json", home_dir());
    if (!mkdtemp(dir) || js_load(path.p, 1 << 20, &config, &err) != ST_OK) return 1;
    tiny = xstrdup(json_string_value(json_object_get(config, "chat_template")));
    return 0;
}

static int teardown(void **state) {
    (void)state;
    free(tiny);
    return fs_remove(dir, &err) == ST_OK ? 0 : 1;
}

static void family_is(const char *want) {
    const char *family = "none";
    if (chat_template_family(dir, &family, &err) != ST_OK) fail_msg("%s", err.msg);
    if (want)
        assert_string_equal(family, want);
    else
        assert_null(family);
}

static void refused(const char *says) {
    const char *family = NULL;
    assert_int_equal(chat_template_family(dir, &family, &err), ST_UNSUPPORTED);
    assert_null(family);
    if (!strstr(err.msg, says)) fail_msg("\"%s\" lacks \"%s\"", err.msg, says);
}

static void where_it_stands(void **state) {
    (void)state;
    family_is(NULL); /* no file */
    configure(NULL);
    family_is(NULL);
    configure(json_null());
    family_is(NULL);
    configure(json_string(tiny));
    family_is("qwen3");
    configure(
        json_pack("[{s:s,s:s},{s:s,s:s}]", "name", "tool_use", "template", "x", "name", "default", "template", tiny));
    family_is("qwen3");
    configure(json_pack("[{s:s,s:s}]", "name", "tool_use", "template", tiny));
    refused("chat_template: expected a text, or a list");
    configure(json_integer(3));
    refused("chat_template: expected a text");
    configure(json_string("another"));
    refused("tokenizer_config.json");
    put("chat_template.jinja", tiny); /* this file counts */
    family_is("qwen3");
    put("chat_template.jinja", NULL);
    put("tokenizer_config.json", "{");
    const char *family;
    assert_int_equal(chat_template_family(dir, &family, &err), ST_PARSE);
    put("tokenizer_config.json", NULL);
}

/* As Jinja reads it: one line end at the end is nothing, and those of other systems are those of Unix. */
static void the_text_that_counts(void **state) {
    (void)state;
    CLEANUP_STR struct str text = STR_INIT;
    str_addf(&text, "%s\n", tiny);
    put("chat_template.jinja", text.p);
    family_is("qwen3");
    str_clear(&text);
    str_addf(&text, "%s\r\n", tiny);
    put("chat_template.jinja", text.p);
    family_is("qwen3");
    str_addc(&text, '\n');
    put("chat_template.jinja", text.p);
    refused("is not known (its SHA-256 is ");
    put("chat_template.jinja", "");
    refused("name the style of prompts, qwen2.5, ");
    refused("renderer_name, --renderer");
    put("chat_template.jinja", NULL);
}

static void styles(void **state) {
    (void)state;
    enum chat_style s = N_CHAT_STYLES;
    put("chat_template.jinja", tiny);
    assert_int_equal(chat_template_style(dir, NULL, NULL, true, &s, &err), ST_OK);
    assert_int_equal(s, CHAT_QWEN3);
    assert_int_equal(chat_template_style(dir, "", "llama3", false, &s, &err), ST_OK); /* it has one of its own */
    assert_int_equal(s, CHAT_QWEN3_NOTHINK);
    put("chat_template.jinja", "another");
    assert_int_equal(chat_template_style(dir, "llama3.1", NULL, false, &s, &err), ST_OK); /* what is asked for */
    assert_int_equal(s, CHAT_LLAMA31);
    assert_int_equal(chat_template_style(dir, "llama9", NULL, false, &s, &err), ST_CONFIG);
    assert_int_equal(chat_template_style(dir, NULL, "llama3", false, &s, &err), ST_UNSUPPORTED);
    put("chat_template.jinja", NULL);
    assert_int_equal(chat_template_style(dir, NULL, "llama3", false, &s, &err), ST_OK);
    assert_int_equal(s, CHAT_LLAMA3);
    assert_int_equal(chat_template_style(dir, NULL, NULL, false, &s, &err), ST_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "there is no chat template"));
    assert_non_null(strstr(err.msg, dir));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(where_it_stands), cmocka_unit_test(the_text_that_counts),
                                       cmocka_unit_test(styles)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
