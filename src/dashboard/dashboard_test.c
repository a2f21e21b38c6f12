/* The page's front end over socket pairs: what is asked and answered, clients that leave, and ends in the middle. */
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "dashboard/dashboard.h"
#include "rl/test_util.h"

static struct dashboard *dashboard;
static struct http_server *server;
static struct http_front front; /* the server borrows it */

static void open_server(const char *key) {
    const char *const keys[] = {key};
    CHECK(dashboard_open(in_tmp("runs"), &dashboard, &err));
    front = dashboard_front(dashboard);
    const struct http_options o = {
        .port = -1, .log_fd = -1, .front = &front, .n_fronts = 1, .keys = keys, .n_keys = key ? 1 : 0};
    CHECK(http_server_open(&o, &server, &err));
    CHECK(dashboard_attach(dashboard, server, &err));
}

static void close_server(void) {
    http_server_close(server);
    dashboard_close(dashboard);
}

static int ask(const char *target, const char *headers) {
    CLEANUP_STR struct str request = STR_INIT;
    int fd[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
    CHECK(http_adopt(server, fd[1], &err));
    str_addf(&request, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s\r\n", target, headers);
    assert_int_equal(send(fd[0], request.p, request.len, MSG_NOSIGNAL), (ssize_t)request.len);
    return fd[0];
}

/* Takes the reply until the server closes, or until it holds the text; half a minute is never reached. */
static void hear(int fd, const char *text, struct str *out) {
    const double until = clock_now_s() + 30;
    char buf[4096];
    str_clear(out);
    for (;;) {
        const ssize_t n = recv(fd, buf, sizeof buf, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN)) break;
        if (n > 0) str_add(out, buf, (size_t)n);
        if (text && strstr(str_c(out), text)) break;
        assert_true(clock_now_s() < until);
        if (n < 0) CHECK(http_step(server, 5, &err));
    }
}

static int get_with(const char *target, const char *headers, struct str *out) {
    const int fd = ask(target, headers);
    hear(fd, NULL, out);
    close(fd);
    assert_true(out->len > 12);
    return (int)strtol(out->p + 9, NULL, 10);
}
static int get(const char *target, struct str *out) { return get_with(target, "", out); }
static bool has(const struct str *s, const char *text) {
    return strstr(str_c((struct str *)(uintptr_t)s), text) != NULL;
}

static void new_run(const char *name) {
    CLEANUP_FREE char *dir = fs_join(in_tmp("runs"), name), *config = fs_join(dir, "config.yaml"),
                      *metrics = fs_join(dir, "metrics.jsonl");
    CHECK(fs_mkdirs(dir, &err));
    write_file(config, "seed: 1\n");
    write_file(metrics, "{\"step\":0,\"a/b\":1}\n{\"step\":1,\"a/b\":7}\n");
}

static void routes_and_codes(void **state) {
    (void)state;
    CLEANUP_STR struct str out = STR_INIT;
    new_run("one");
    open_server(NULL);
    static const struct {
        const char *target, *text;
        int code;
    } cases[] = {
        {"/", "ocation: /dashboard", 302},
        {"/dashboard", "default-src 'none'; script-src 'self'", 200},
        {"/dashboard/app.js", "text/javascript", 200},
        {"/dashboard/none.js", "no such file", 404},
        {"/dashboard/../../etc/passwd", "the request line is malformed", 400},
        {"/api/runs", "\"name\":\"one\",\"state\":\"stopped\",\"error\":null,\"steps\":2", 200},
        {"/api/runs/one", "\"metrics\":{\"a/b\":7}", 200},
        {"/api/runs/one/metrics?names=a/b", "\"value\":[1,7]", 200},
        {"/api/runs/one/metrics.csv", "step,\"a/b\"\n0,1\n1,7\n", 200},
        {"/api/runs/one/episodes", "\"total\":0", 200},
        {"/api/runs/one/episodes?step_from=x", "step_from: expected a whole number", 400},
        {"/api/runs/one/episodes?limit=-1", "limit: expected a whole number", 400},
        {"/api/runs/one/episodes?reward_min=nan", "reward_min: expected a number", 400},
        {"/api/runs/one/episodes?sort=none", "sort: expected step", 400},
        {"/api/runs/one/group/0/0", "has no group 0", 404},
        {"/api/runs/one/group/0", "nothing of that name", 404},
        {"/api/runs/one/group/-1/0", "nothing of that name", 404},
        {"/api/runs/one/episode/0/0/0/0", "no answer", 404},
        {"/api/runs/one/best", "\"best\":[]", 200},
        {"/api/runs/one/problem?problem=generated/1_2", "class Model", 200},
        {"/api/runs/one/problem?problem=/etc/passwd", "not known here", 404},
        {"/api/runs/one/problem", "not known here", 404},
        {"/api/runs/two/events", "no run", 404},
        {"/api/runs/one/nothing", "nothing of that name", 404},
        {"/api/runs/two", "no run", 404},
        {"/api/runs/..%2Fone", "malformed", 400},
        {"/api/runs/.one", "no run", 404},
        {"/api/runs/a/b/c/d/e/f/g/h/i/j/k", "", 404},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const int code = get(cases[i].target, &out);
        if (code != cases[i].code || !has(&out, cases[i].text))
            fail_msg("%s: %d, expected %d and \"%s\" in: %s", cases[i].target, code, cases[i].code, cases[i].text,
                     str_c(&out));
    }
    close_server();
}

/* With a key the page's files are there for everybody, and data for those who have it. */
static void keys(void **state) {
    (void)state;
    CLEANUP_STR struct str out = STR_INIT;
    open_server("sesame");
    assert_int_equal(get("/dashboard", &out), 200);
    assert_int_equal(get("/api/runs", &out), 401);
    assert_int_equal(get("/api/runs/one", &out), 401);
    assert_int_equal(get_with("/api/runs", "Authorization: Bearer sesame\r\n", &out), 200);
    close_server();
}

/* Clients leave before their reply is there, and others get theirs; the server ends with requests in every state. */
static void clients_that_leave(void **state) {
    (void)state;
    CLEANUP_STR struct str out = STR_INIT;
    int fd[60];
    new_run("one");
    open_server(NULL);
    for (int turn = 0; turn < 20; turn++) {
        for (int i = 0; i < 60; i++) fd[i] = ask(i % 2 ? "/api/runs/one" : "/api/runs", "");
        for (int i = 0; i < turn; i++) CHECK(http_step(server, 0, &err));
        for (int i = 0; i < 60; i++)
            if (i % 3) close(fd[i]);
        for (int i = 0; i < 60; i += 3) {
            hear(fd[i], NULL, &out);
            assert_true(has(&out, " 200 "));
            close(fd[i]);
        }
    }
    for (int i = 0; i < 60; i++) fd[i] = ask("/api/runs/one", "");
    for (int i = 0; i < 3; i++) CHECK(http_step(server, 0, &err));
    close_server();
    for (int i = 0; i < 60; i++) close(fd[i]);
}

/* What the client has is not sent again, and what has changed is. */
static void tags(void **state) {
    (void)state;
    CLEANUP_STR struct str out = STR_INIT, header = STR_INIT;
    new_run("one");
    open_server(NULL);
    assert_int_equal(get("/api/runs/one/metrics?names=a/b", &out), 200);
    const char *tag = strstr(out.p, "etag: ");
    assert_non_null(tag);
    str_addf(&header, "If-None-Match: %.*s\r\n", (int)strcspn(tag + 6, "\r"), tag + 6);
    assert_int_equal(get_with("/api/runs/one/metrics?names=a/b", header.p, &out), 304);
    assert_false(has(&out, "series"));
    CLEANUP_FREE char *metrics = fs_join(in_tmp("runs"), "one/metrics.jsonl");
    write_file(metrics, "{\"step\":0,\"a/b\":1}\n{\"step\":1,\"a/b\":8}\n");
    assert_int_equal(get_with("/api/runs/one/metrics?names=a/b", header.p, &out), 200);
    close_server();
}

/* A stream tells what is so, what changes, and that the run is gone; streams end with the server. */
static void events(void **state) {
    (void)state;
    CLEANUP_STR struct str out = STR_INIT;
    CLEANUP_FREE char *run = fs_join(in_tmp("runs"), "live"), *metrics = fs_join(run, "metrics.jsonl");
    new_run("live");
    open_server(NULL);
    const int fd = ask("/api/runs/live/events", ""), other = ask("/api/runs/live/events", "");
    hear(fd, "\"steps\":2", &out);
    assert_true(has(&out, "event: state\ndata: {"));
    close(other);
    write_file(metrics, "{\"step\":0}\n{\"step\":1}\n{\"step\":2}\n");
    hear(fd, "\"steps\":3", &out);
    assert_true(has(&out, "event: state"));
    CHECK(fs_remove(run, &err));
    hear(fd, NULL, &out);
    assert_true(has(&out, "event: gone"));
    close(fd);
    new_run("live");
    const int last = ask("/api/runs/live/events", "");
    hear(last, "\"steps\":2", &out);
    http_drain(server);
    hear(last, NULL, &out); /* the server ends it long before the drain is cut */
    close(last);
    close_server();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routes_and_codes),
        cmocka_unit_test(keys),
        cmocka_unit_test(clients_that_leave),
        cmocka_unit_test(tags),
        cmocka_unit_test(events),
    };
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
