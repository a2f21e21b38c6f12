/* Requests to a scripted stand-in (tests/remote/server.py): what is asked for, what is tried again and how often, what
 * stays on disk, where the key goes, and every message. */
#include "remote/remote.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/home.h"
#include "base/log.h"
#include "io/json.h"
#include "remote/replies.h"

#define KEY "sk-of-the-tests-1234"
enum { SEVERAL = 12 };

static char root[64];
static struct arena scratch;
static struct err e;
static pid_t server;
static int server_stdin = -1;
static const char *url, *log_path;

#define CHECK(x)                                 \
    do {                                         \
        if ((x) != ST_OK) fail_msg("%s", e.msg); \
    } while (0)

static int start(void **state) {
    (void)state;
    int in[2], out[2], port;
    snprintf(root, sizeof root, "/tmp/kernelrl_remote_XXXXXX");
    if (!mkdtemp(root)) return 1;
    log_set_level(LOG_ERROR);
    log_path = arena_printf(&scratch, "%s/log", root);
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC)) return 1;
    const char *script = arena_printf(&scratch, "%s/tests/remote/server.py", home_dir());
    server = fork();
    if (server == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        execlp("python3", "python3", script, "--log", log_path, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    server_stdin = in[1];
    FILE *f = fdopen(out[0], "r");
    if (!f || fscanf(f, "%d", &port) != 1) return 1;
    fclose(f);
    url = arena_printf(&scratch, "http://127.0.0.1:%d/v1", port);
    setenv("http_proxy", "http://127.0.0.1:9", 1); /* it must not stand between us and this machine */
    return 0;
}

static int stop(void **state) {
    (void)state;
    close(server_stdin);
    waitpid(server, NULL, 0);
    arena_free(&scratch);
    return fs_remove(root, &e) == ST_OK ? 0 : 1;
}

static int fresh(void **state) {
    (void)state;
    (void)truncate(log_path, 0);
    e = (struct err){0};
    return 0;
}

/* ---- asking -------------------------------------------------------------------------------------------------------*/

static struct remote_options options(const char *model) {
    return (struct remote_options){
        .base_url = url, .model = model, .in_flight = 4, .tries = 6, .timeout_s = 20, .backoff_s = 0.02};
}

/* n requests with different messages, or the same with different seeds. */
static enum status ask_with(const struct remote_options *o, int n, bool alike, struct remote_reply *out,
                            struct remote_usage *usage) {
    struct remote *r = NULL;
    struct remote_message m[SEVERAL][2];
    struct remote_request q[SEVERAL];
    TRY(remote_open(o, &r, &e));
    for (int i = 0; i < n; i++) {
        m[i][0] = (struct remote_message){"system", "be brief"};
        m[i][1] = (struct remote_message){"user", arena_printf(&scratch, "question %d", alike ? 0 : i)};
        q[i] = (struct remote_request){m[i], 2, 0.5, 0, 77, 1000 + (uint64_t)i};
    }
    const enum status st = remote_run(r, q, n, out, NULL, NULL, &e);
    *usage = remote_usage(r);
    remote_close(r);
    return st;
}

/* One request; its text lies in the arena. */
static const char *ask(const char *model, struct remote_usage *usage) {
    struct remote_reply reply;
    const struct remote_options o = options(model);
    if (ask_with(&o, 1, false, &reply, usage) != ST_OK) return NULL;
    const char *text = arena_strdup(&scratch, reply.text);
    remote_reply_free(&reply);
    return text;
}

static void answers(const char *model, const char *text, int64_t retries) {
    struct remote_usage u;
    const char *got = ask(model, &u);
    if (!got) fail_msg("%s: %s", model, e.msg);
    assert_string_equal(got, text);
    assert_int_equal(u.retries, retries);
    assert_int_equal(u.answers, 1);
}

static void fails(const char *model, enum status status, const char *words, int64_t retries) {
    struct remote_usage u;
    e = (struct err){0};
    if (ask(model, &u)) fail_msg("%s: an answer", model);
    assert_int_equal(e.code, status);
    if (!strstr(e.msg, words)) fail_msg("%s: expected \"%s\" in: %s", model, words, e.msg);
    assert_true(str_has_prefix(e.msg, "base_url: "));
    assert_int_equal(u.retries, retries);
}

/* Row `i` of the server's log; the caller's. */
static json_t *logged(size_t i, size_t *n) {
    char *text;
    size_t len;
    json_t *row = NULL;
    CHECK(fs_read(log_path, 1 << 24, &text, &len, &e));
    *n = 0;
    for (const char *p = text; p < text + len; (*n)++) {
        const size_t m = strcspn(p, "\n");
        if (*n == i) CHECK(js_parse(p, m, "log", &row, &e));
        p += m + 1;
    }
    free(text);
    return row;
}

/* ---- tests --------------------------------------------------------------------------------------------------------*/

static void what_is_asked(void **state) {
    (void)state;
    answers("ok", "question 0", 0);
    size_t n;
    CLEANUP_JSON json_t *row = logged(0, &n);
    assert_int_equal(n, 1);
    const json_t *body = json_object_get(row, "body"), *messages = json_object_get(body, "messages");
    CLEANUP_STR struct str text = STR_INIT;
    js_put_json(&text, NULL, body);
    assert_string_equal(text.p,
                        "{\"model\":\"ok\",\"messages\":[{\"role\":\"system\",\"content\":\"be brief\"},{\"role\":"
                        "\"user\",\"content\":\"question 0\"}],\"temperature\":0.5,\"max_tokens\":77,\"seed\":1000}");
    assert_int_equal(json_array_size(messages), 2);
    assert_null(json_object_get(json_object_get(row, "headers"), "Authorization"));
    assert_string_equal(json_string_value(json_object_get(row, "path")), "/v1/chat/completions");
}

static void shapes_of_answers(void **state) {
    (void)state;
    answers("parts", "question 0", 0);
    answers("thinks", "<think>\na thought\n</think>\n\nquestion 0", 0);
    answers("null", "", 0);
    struct remote_reply reply;
    struct remote_usage u;
    const struct remote_options o = options("long");
    CHECK(ask_with(&o, 1, false, &reply, &u));
    assert_string_equal(reply.finish, "length");
    assert_int_equal(reply.answer_tokens, 3);
    assert_int_equal(u.prompt_tokens, 4);
    assert_int_equal(u.answer_tokens, 3);
    remote_reply_free(&reply);
}

static void what_passes(void **state) {
    (void)state;
    answers("500,502,503,ok", "question 0", 3);
    answers("gone,cut,ok", "question 0", 2);
    answers("html,array,ok", "question 0", 2);
    answers("empty,broken,ok", "question 0", 2);
    answers("text:502,408,ok", "question 0", 2);
}

/* The server's own wait counts, and all requests are held meanwhile. */
static void waits(void **state) {
    (void)state;
    static const char *const models[] = {"429:1,ok", "429date:2,ok", "429ms:600,ok", "503:1,ok"};
    static const double least[] = {1, 0.9, 0.6, 1};
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        const double from = clock_now_s();
        answers(models[i], "question 0", 1);
        if (clock_now_s() - from < least[i]) fail_msg("%s: asked again too early", models[i]);
    }
    struct remote_usage u;
    assert_null(ask("429:9999,ok", &u));
    assert_non_null(strstr(e.msg, "it asks to wait 9999 s"));
}

static void what_does_not_pass(void **state) {
    (void)state;
    fails("401", ST_CONFIG, "answered 401: scripted; key is not set", 0);
    fails("404", ST_CONFIG, "check model_name (\"404\"", 0);
    fails("400", ST_CONFIG, "refused the request (400): scripted", 0);
    fails("detail:400", ST_CONFIG, "refused the request (400): scripted detail", 0);
    fails("moved", ST_CONFIG, "answered 301: it has moved", 0);
    fails("500", ST_IO, "answered 500: scripted", 5);
    fails("429", ST_IO, "is busy (429): scripted", 5);
    fails("text:502", ST_IO, "answered 502: scripted text", 5);
    fails("gone", ST_IO, "", 5);
    /* Nonsense is not worth six tries. */
    fails("html", ST_IO, "no JSON; it begins with \"<!DOCTYPE html> <html>", 2);
    fails("empty", ST_IO, "an empty list of choices", 2);
    fails("nochoices", ST_IO, "JSON without choices: scripted trouble", 2);
    fails("nomessage", ST_IO, "choices[0] has no message", 2);
    fails("array", ST_IO, "JSON without choices", 2);
}

static void late(void **state) {
    (void)state;
    struct remote_options o = options("slow:5");
    struct remote_reply reply;
    struct remote_usage u;
    o.timeout_s = 0.3;
    assert_int_equal(ask_with(&o, 1, false, &reply, &u), ST_IO);
    assert_non_null(strstr(e.msg, "gave no whole answer within 0.3 s"));
    o = options("slow:0.4,slow:5"); /* the second of these is never asked for */
    o.timeout_s = 3;
    CHECK(ask_with(&o, 1, false, &reply, &u));
    remote_reply_free(&reply);
}

static void nobody(void **state) {
    (void)state;
    struct remote_options o = options("ok");
    struct remote_reply reply[2];
    struct remote_usage u;
    o.base_url = "http://127.0.0.1:9/v1";
    const double from = clock_now_s();
    assert_int_equal(ask_with(&o, 2, false, reply, &u), ST_IO);
    assert_non_null(strstr(e.msg, "base_url: nobody answers at http://127.0.0.1:9/v1"));
    assert_true(clock_now_s() - from < 5);
    assert_null(reply[0].text);
    static const char *const bad[] = {"", "localhost:8000", "ftp://x/v1", "file:///etc/passwd", "http://u:p@h/v1"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        o.base_url = bad[i];
        assert_int_equal(ask_with(&o, 1, false, reply, &u), ST_CONFIG);
        assert_true(str_has_prefix(e.msg, "base_url: expected") && !strstr(e.msg, "u:p"));
    }
    assert_true(remote_is_here("http://localhost:1/v1") && remote_is_here("http://127.0.0.1/v1"));
    assert_true(remote_is_here("http://[::1]:8/v1") && !remote_is_here("https://example.com/v1"));
}

static void fields_that_are_refused(void **state) {
    (void)state;
    answers("noseed", "question 0", 0);
    answers("notokens", "question 0", 0);
    size_t n;
    CLEANUP_JSON json_t *row = logged(3, &n);
    const json_t *body = json_object_get(row, "body");
    assert_int_equal(n, 4);
    assert_null(json_object_get(body, "max_tokens"));
    assert_int_equal(json_integer_value(json_object_get(body, "max_completion_tokens")), 77);
}

static void the_key(void **state) {
    (void)state;
    struct remote_options o = options("ok");
    struct remote_reply reply;
    struct remote_usage u;
    o.key = KEY;
    o.key_from = "A_KEY";
    o.replies = arena_printf(&scratch, "%s/with_key.jsonl", root);
    CHECK(ask_with(&o, 1, false, &reply, &u));
    remote_reply_free(&reply);
    size_t n;
    CLEANUP_JSON json_t *row = logged(0, &n);
    const json_t *headers = json_object_get(row, "headers");
    assert_string_equal(json_string_value(json_object_get(headers, "Authorization")), "Bearer " KEY);
    char *text;
    CHECK(fs_read(o.replies, 1 << 20, &text, NULL, &e));
    assert_null(strstr(text, KEY));
    free(text);
    o.model = "echokey";
    o.replies = NULL;
    assert_int_equal(ask_with(&o, 1, false, &reply, &u), ST_CONFIG);
    assert_null(strstr(e.msg, KEY));
    assert_non_null(strstr(e.msg, "A_KEY does not give access"));
}

/* Several at once, but no more than may be; an answer that was had is not asked for again. */
static void many_and_again(void **state) {
    (void)state;
    struct remote_options o = options("slow:0.1");
    struct remote_reply reply[SEVERAL];
    struct remote_usage u;
    o.replies = arena_printf(&scratch, "%s/replies.jsonl", root);
    const double from = clock_now_s();
    CHECK(ask_with(&o, 5, true, reply, &u));
    for (int i = 0; i < 5; i++) remote_reply_free(&reply[i]);
    assert_int_equal(u.answers, 5);
    CHECK(ask_with(&o, SEVERAL, true, reply, &u));
    assert_int_equal(u.answers, SEVERAL - 5);
    assert_int_equal(u.replayed, 5);
    for (int i = 0; i < SEVERAL; i++) {
        assert_string_equal(reply[i].text, "question 0");
        remote_reply_free(&reply[i]);
    }
    assert_true(clock_now_s() - from < 10);
    int64_t most = 0;
    size_t n = SEVERAL;
    for (size_t i = 0; i < n; i++) {
        CLEANUP_JSON json_t *row = logged(i, &n);
        most = i64_max(most, json_integer_value(json_object_get(row, "flying")));
    }
    assert_int_equal(n, SEVERAL);
    if (most < 2 || most > 4) fail_msg("%lld at once", (long long)most);
    /* A torn line is what an interrupted write left. */
    FILE *f = fopen(o.replies, "a");
    fputs("{\"request\":\"ab", f);
    fclose(f);
    CHECK(ask_with(&o, SEVERAL, true, reply, &u));
    assert_int_equal(u.replayed, SEVERAL);
    for (int i = 0; i < SEVERAL; i++) remote_reply_free(&reply[i]);
    f = fopen(o.replies, "a");
    fputs("{\"request\":\"ab\",\"text\":\"\"}\n", f);
    fclose(f);
    assert_int_equal(ask_with(&o, 1, true, reply, &u), ST_PARSE);
    assert_non_null(strstr(e.msg, "replies.jsonl:13: request: expected 64"));
}

static bool until_two(void *ctx, int done) {
    *(int *)ctx = done;
    return done < 2;
}

static void cancelled(void **state) {
    (void)state;
    struct remote_options o = options("ok,ok,slow:5");
    struct remote_reply reply[4];
    struct remote *r;
    int done = 0;
    o.in_flight = 2;
    o.replies = arena_printf(&scratch, "%s/cancelled.jsonl", root);
    const struct remote_message m = {"user", "cancelled"};
    struct remote_request q[4];
    for (int i = 0; i < 4; i++) q[i] = (struct remote_request){&m, 1, 1, 0, 5, (uint64_t)i};
    CHECK(remote_open(&o, &r, &e));
    const double from = clock_now_s();
    assert_int_equal(remote_run(r, q, 4, reply, until_two, &done, &e), ST_CANCELLED);
    assert_true(clock_now_s() - from < 4);
    for (int i = 0; i < 4; i++) assert_null(reply[i].text);
    remote_close(r);
    struct replies *kept;
    CHECK(replies_open(o.replies, &kept, &e));
    replies_close(kept);
    char *text;
    CHECK(fs_read(o.replies, 1 << 20, &text, NULL, &e));
    assert_non_null(strstr(text, "\"text\":\"cancelled\""));
    free(text);
}

int main(void) {
#define ROW(f) cmocka_unit_test_setup(f, fresh)
    const struct CMUnitTest tests[] = {ROW(what_is_asked),
                                       ROW(shapes_of_answers),
                                       ROW(what_passes),
                                       ROW(waits),
                                       ROW(what_does_not_pass),
                                       ROW(late),
                                       ROW(nobody),
                                       ROW(fields_that_are_refused),
                                       ROW(the_key),
                                       ROW(many_and_again),
                                       ROW(cancelled)};
    return cmocka_run_group_tests(tests, start, stop);
}
