/* Fuzz target: replies of an OpenAI-compatible server. Any bytes are read, what comes of them is a C string that a
 * second reading repeats, and an error's texts are printable and in one line. */
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "remote/reply.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_line(const char *text, size_t size) {
    ASSERT(strlen(text) < size);
    for (const char *p = text; *p; p++) ASSERT(*p >= ' ' && *p < 127);
}

/* The text of an answer, asked for again, is the text. */
static void check_again(const char *text) {
    CLEANUP_STR struct str body = STR_INIT;
    struct remote_reply r;
    struct err e;
    str_adds(&body, "{\"choices\":[{\"message\":{\"content\":");
    js_add_quoted(&body, text, strlen(text));
    str_adds(&body, "}}]}");
    ASSERT(remote_reply_parse(body.p, body.len, &r, &e) == ST_OK && strcmp(r.text, text) == 0);
    ASSERT(!*r.finish && r.prompt_tokens == -1 && r.answer_tokens == -1);
    remote_reply_free(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *body = xmalloc(size ? size : 1); /* of exactly this size, so that reading past its end is seen */
    if (size) memcpy(body, data, size);
    struct remote_reply r;
    struct remote_error said;
    struct err e = {0};
    if (remote_reply_parse(body, size, &r, &e) == ST_OK) {
        ASSERT(r.text && r.prompt_tokens >= -1 && r.answer_tokens >= -1);
        check_line(r.finish, sizeof r.finish);
        check_again(r.text);
        remote_reply_free(&r);
    } else {
        ASSERT(!r.text && e.code == ST_PARSE);
        check_line(e.msg, sizeof e.msg);
    }
    remote_error_parse(body, size, &said);
    check_line(said.message, sizeof said.message);
    check_line(said.param, sizeof said.param);
    check_line(said.code, sizeof said.code);
    free(body);
    return 0;
}
