/* The whole server in one process, over socket pairs, with a small model of random weights: every endpoint, requests
 * that come and go at random, adapters that change meanwhile, and ends in the middle of it all. What the replies say is
 * tests/e2e/serve.sh's affair; here no byte may be lost, leaked or raced for. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/home.h"
#include "base/log.h"
#include "base/rng.h"
#include "io/json.h"
#include "serve/serve.h"

static const char config[] = "{\"architectures\":[\"Qwen3ForCausalLM\"],\"hidden_size\":32,\"num_hidden_layers\":2,"
                             "\"intermediate_size\":64,\"vocab_size\":2048,\"num_attention_heads\":2,"
                             "\"num_key_value_heads\":1,\"head_dim\":16,\"tie_word_embeddings\":true,"
                             "\"eos_token_id\":2045,\"max_position_embeddings\":512}";

static char folder[64], tokenizer[4096], config_path[128], adapter_path[2][128];
static const struct serve_name adapters[] = {{"gone", "/nowhere/my adapter"}};
static struct serve_options options;
static struct http_front front;
static struct serve *serve;
static struct http_server *server;

/* ---- the server ---------------------------------------------------------------------------------------------------*/

static void turn(int n) {
    struct err e;
    for (int i = 0; i < n; i++) assert_int_equal(http_step(server, 2, &e), ST_OK);
}

static void open_all(int max_batch) {
    struct err e = {0};
    options = serve_defaults;
    options.policy = (struct policy_options){.model = {"model", tokenizer, NULL, HUB_TOKENIZER},
                                             .random = {.config = config_path, .seed = 3},
                                             .device = "cpu",
                                             .weights = {.frozen = true},
                                             .engine = {.max_batch = max_batch}};
    options.adapters = adapters;
    options.n_adapters = 1;
    options.adapter_dir = folder;
    options.embeddings = SERVE_POOLING_MEAN;
    options.max_queue = 100;
    options.max_adapters = 2;
    if (serve_open(&options, &serve, &e) != ST_OK) fail_msg("%s", e.msg);
    front = serve_front(serve);
    const struct http_options h = {
        .port = -1, .log_fd = -1, .admin = true, .front = &front, .n_fronts = 1, .drain_s = 100};
    if (http_server_open(&h, &server, &e) != ST_OK) fail_msg("%s", e.msg);
    if (serve_attach(serve, server, &e) != ST_OK) fail_msg("%s", e.msg);
}

static void wait_ready(void) {
    const double from = clock_now_s();
    while (!serve_ready(serve) && clock_now_s() - from < 60) turn(1);
    assert_true(serve_ready(serve));
}

static void close_all(void) {
    http_server_close(server);
    serve_close(serve);
    server = NULL;
    serve = NULL;
}

/* ---- clients ------------------------------------------------------------------------------------------------------*/

static int join(void) {
    int fd[2];
    struct err e;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
    assert_int_equal(http_adopt(server, fd[1], &e), ST_OK);
    return fd[0];
}

static void send_request(int fd, const char *method, const char *path, const char *body) {
    CLEANUP_STR struct str s = STR_INIT;
    str_addf(&s, "%s %s HTTP/1.1\r\nHost: localhost\r\n", method, path);
    if (body)
        str_addf(&s, "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    else
        str_adds(&s, "\r\n");
    for (size_t at = 0; at < s.len;) {
        const ssize_t n = send(fd, s.p + at, s.len - at, MSG_NOSIGNAL);
        if (n > 0) at += (size_t)n;
        turn(1);
        if (n < 0 && errno != EAGAIN) return;
    }
}

static bool is_whole(const struct str *s) {
    const char *head = mem_find(str_c(s), s->len, "\r\n\r\n", 4);
    if (!head) return false;
    const char *length = mem_find(s->p, (size_t)(head - s->p), "Content-Length: ", 16);
    if (length) return s->len >= (size_t)(head - s->p) + 4 + (size_t)strtol(length + 16, NULL, 10);
    return s->len > 5 && memcmp(s->p + s->len - 5, "0\r\n\r\n", 5) == 0;
}

/* Takes what is there. True: the reply is whole, or the connection has ended. */
static bool take(int fd, struct str *out) {
    char buf[65536];
    const ssize_t n = recv(fd, buf, sizeof buf, 0);
    if (n > 0) str_add(out, buf, (size_t)n);
    return n == 0 || (n < 0 && errno != EAGAIN) || is_whole(out);
}

/* One request, of which the status and what stands in the reply are looked at. */
static void ask(const char *method, const char *path, const char *body, int status, const char *words) {
    CLEANUP_STR struct str out = STR_INIT;
    const int fd = join();
    const double from = clock_now_s();
    send_request(fd, method, path, body);
    while (!take(fd, &out) && clock_now_s() - from < 60) turn(1);
    close(fd);
    turn(2);
    if (out.len < 12 || strtol(out.p + 9, NULL, 10) != status || !strstr(out.p, words))
        fail_msg("%s %s %s: expected %d and \"%s\", got %.600s", method, path, body ? body : "", status, words,
                 str_c(&out));
}
#define POST(path, body, words) ask("POST", path, body, 200, words)
#define GET(path, words) ask("GET", path, NULL, 200, words)

/* ---- adapters -----------------------------------------------------------------------------------------------------*/

static void write_text(const char *path, const char *text) {
    struct err e;
    if (fs_write_atomic(path, text, strlen(text), &e) != ST_OK) fail_msg("%s", e.msg);
}

/* A PEFT adapter of rank 2 on one projection of each layer. */
static void write_adapter(const char *dir, uint64_t seed) {
    CLEANUP_STR struct str header = STR_INIT, file = STR_INIT;
    CLEANUP_FREE char *weights = fs_join(dir, "adapter_model.safetensors"), *json = fs_join(dir, "adapter_config.json");
    struct rng r = rng_make(seed, 0);
    struct err e;
    float data[2 * 2 * 64];
    mkdir(dir, 0755);
    for (size_t i = 0; i < ARRAY_LEN(data); i++) data[i] = (float)rng_below(&r, 1000) * 1e-3f - 0.5f;
    str_adds(&header, "{");
    for (int layer = 0; layer < 2; layer++)
        for (int part = 0; part < 2; part++)
            str_addf(&header,
                     "%s\"base_model.model.model.layers.%d.self_attn.q_proj.lora_%c.weight\":{\"dtype\":\"F32\","
                     "\"shape\":[%d,%d],\"data_offsets\":[%d,%d]}",
                     layer + part ? "," : "", layer, part ? 'B' : 'A', part ? 32 : 2, part ? 2 : 32,
                     (layer * 2 + part) * 256, (layer * 2 + part + 1) * 256);
    str_adds(&header, "}");
    while (header.len % 8) str_addc(&header, ' ');
    const uint64_t n = header.len;
    str_add(&file, (const char *)&n, 8);
    str_add(&file, header.p, header.len);
    str_add(&file, (const char *)data, 4 * 256);
    if (fs_write_atomic(weights, file.p, file.len, &e) != ST_OK) fail_msg("%s", e.msg);
    write_text(json, "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":4,\"target_modules\":[\"q_proj\"],"
                     "\"base_model_name_or_path\":\"x\",\"bias\":\"none\",\"task_type\":\"CAUSAL_LM\"}");
}

/* ---- tests --------------------------------------------------------------------------------------------------------*/

static void test_endpoints(void **state) {
    (void)state;
    open_all(4);
    ask("GET", "/health", NULL, serve_ready(serve) ? 200 : 503, "");
    ask("POST", "/v1/completions", "{}", serve_ready(serve) ? 200 : 503, "");
    wait_ready();
    GET("/health", "ok");
    GET("/v1/models", "\"max_model_len\":512");
    POST("/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":3,\"logprobs\":2,\"echo\":true,\"n\":2}", "text_offset");
    POST("/v1/completions",
         "{\"prompt\":[1,2,3,4],\"max_tokens\":2,\"return_token_ids\":true,\"truncate_prompt_tokens\":2,"
         "\"truncation_side\":\"right\"}",
         "\"prompt_token_ids\":[1,2]");
    POST("/v1/completions", "{\"prompt\":\"a\",\"stream\":true,\"logprobs\":1,\"stop\":[\"q\",\"qq\"]}", "[DONE]");
    POST("/v1/completions", "{\"prompt\":[[1,2],[3]],\"max_tokens\":2,\"prompt_logprobs\":1,\"bad_words\":[\"a b\"]}",
         "rank");
    POST("/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":4,\"logprobs\":true,\"top_logprobs\":1}",
         "chat.completion");
    POST("/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":4,\"stream\":true,\"n\":2}", "[DONE]");
    POST("/inference/v1/generate", "{\"token_ids\":[5],\"sampling_params\":{\"max_tokens\":2,\"logprobs\":0}}",
         "token_id:");
    POST("/v1/embeddings", "{\"input\":[\"a\",\"b c\"],\"encoding_format\":\"base64\"}", "embedding");
    POST("/tokenize", "{\"prompt\":\"hello\",\"return_token_strs\":true}", "token_strs");
    POST("/detokenize", "{\"tokens\":[70,71]}", "prompt");
    GET("/tokenizer_info", "tokenizer_class");
    GET("/metrics", "vllm:num_requests_running");
    GET("/server_info", "logprobs_mode");
    GET("/version", KERNELRL_VERSION);
    ask("POST", "/v1/completions", "{\"prompt\":[5", 400, "invalid_request_error");
    ask("POST", "/v1/completions", "{\"model\":\"x\"}", 404, "model_not_found");
    ask("POST", "/v1/embeddings", "{\"input\":[\"\"]}", 400, "input");
    close_all();
}

/* A body that another thread works on: its reply, its errors, and a client that leaves meanwhile. */
static void test_long_bodies(void **state) {
    (void)state;
    CLEANUP_STR struct str long_text = STR_INIT, body = STR_INIT;
    open_all(4);
    wait_ready();
    for (int i = 0; i < 20000; i++) str_adds(&long_text, "kernel ");
    str_addf(&body, "{\"prompt\":\"%s\",\"max_tokens\":2}", long_text.p);
    ask("POST", "/v1/completions", body.p, 400, "context_length_exceeded");
    POST("/tokenize", body.p, "tokens");
    str_clear(&body);
    str_addf(&body, "{\"prompt\":\"%s\",\"max_tokens\":2,\"truncate_prompt_tokens\":8}", long_text.p);
    POST("/v1/completions", body.p, "\"prompt_tokens\":8");
    str_clear(&body);
    str_addf(&body, "{\"input\":\"%s\"}", long_text.p);
    ask("POST", "/v1/embeddings", body.p, 400, "context_length_exceeded");
    static const char *const paths[] = {"/v1/completions", "/tokenize", "/detokenize", "/v1/embeddings"};
    for (int i = 0; i < 12; i++) {
        const int fd = join();
        send_request(fd, "POST", paths[i % 4], body.p);
        close(fd);
        turn(i % 3);
    }
    str_clear(&body);
    str_addf(&body, "{\"prompt\":\"%s\"}", long_text.p);
    POST("/tokenize", body.p, "tokens"); /* behind all of them */
    close_all();
}

static void test_adapters(void **state) {
    (void)state;
    CLEANUP_STR struct str body = STR_INIT;
    open_all(4);
    wait_ready();
    for (int i = 0; i < 6; i++) {
        str_clear(&body);
        str_addf(&body, "{\"lora_name\":\"n%d\",\"lora_path\":\"%s\",\"load_inplace\":true}", i % 3,
                 adapter_path[i % 2]);
        POST("/v1/load_lora_adapter", body.p, "Success");
        str_clear(&body);
        str_addf(&body, "{\"model\":\"n%d\",\"prompt\":\"a\",\"max_tokens\":2}", i % 3);
        POST("/v1/completions", body.p, "choices");
    }
    POST("/v1/completions", "{\"model\":\"n0\",\"prompt\":\"a\",\"max_tokens\":2}", "choices"); /* loaded once more */
    POST("/v1/embeddings", "{\"model\":\"n1\",\"input\":\"a\"}", "embedding");
    POST("/v1/unload_lora_adapter", "{\"lora_name\":\"n0\"}", "Success");
    ask("POST", "/v1/completions", "{\"model\":\"n0\"}", 404, "model_not_found");
    ask("POST", "/v1/load_lora_adapter", "{\"lora_name\":\"y\",\"lora_path\":\"/etc\"}", 404, "adapter-dir");
    ask("POST", "/v1/load_lora_adapter", "{\"lora_name\":\"y\",\"lora_path\":\".\"}", 400, "adapter_config");
    close_all();
}

/* The folder of an adapter is not there any more: clients are told what is wrong, and the log says where. */
static void test_failures_without_paths(void **state) {
    (void)state;
    static const char told[] = "\"message\":\"[path]: No such file or directory\"";
    CLEANUP_FREE char *log = fs_join(folder, "log");
    char *text;
    size_t n;
    struct err e;
    assert_int_equal(log_open_file(log, &e), ST_OK);
    open_all(4);
    wait_ready();
    ask("POST", "/v1/completions", "{\"model\":\"gone\",\"prompt\":\"a\",\"max_tokens\":2}", 500, told);
    ask("POST", "/v1/completions", "{\"model\":\"gone\",\"prompt\":\"a\",\"stream\":true}", 500, told);
    ask("POST", "/v1/embeddings", "{\"model\":\"gone\",\"input\":\"a\"}", 400, told);
    close_all();
    log_close_file();
    assert_int_equal(fs_read(log, 1 << 16, &text, &n, &e), ST_OK);
    assert_non_null(
        strstr(text, "a client was told, without paths: \"/nowhere/my adapter/adapter_config.json: No such"));
    free(text);
}

struct visitor {
    int fd; /* -1: none */
    struct str out;
    double until; /* when it leaves; 0: it stays */
};

/* Requests of all kinds that come at random, of which some leave at random, beside pauses and adapters that change. */
static void storm(uint64_t seed, double seconds) {
    static const char *const bodies[] = {
        "{\"prompt\":\"abc\",\"max_tokens\":40,\"ignore_eos\":true}",
        "{\"prompt\":\"abc\",\"max_tokens\":40,\"ignore_eos\":true,\"stream\":true,\"logprobs\":2}",
        "{\"prompt\":[[1,2,3],[4]],\"n\":3,\"max_tokens\":9,\"stream\":true,\"return_token_ids\":true}",
        "{\"prompt\":\"abc\",\"echo\":true,\"logprobs\":1,\"max_tokens\":0}",
        "{\"prompt\":\"abc\",\"model\":\"n0\",\"max_tokens\":20,\"stop\":[\"e\",\"}\"]}",
        "{\"prompt\":\"abc\",\"model\":\"n1\",\"max_tokens\":200,\"stream\":true}",
    };
    struct rng r = rng_make(seed, 1);
    struct visitor v[24];
    int whole = 0;
    memset(v, 0, sizeof v);
    for (size_t i = 0; i < ARRAY_LEN(v); i++) v[i].fd = -1;
    const double from = clock_now_s();
    for (double now = from; now - from < seconds; now = clock_now_s()) {
        struct visitor *w = &v[rng_below(&r, ARRAY_LEN(v))];
        if (w->fd < 0) {
            const uint64_t what = rng_below(&r, 12);
            w->fd = join();
            w->until = rng_below(&r, 3) == 0 ? now + (double)rng_below(&r, 50) * 1e-3 : 0;
            str_clear(&w->out);
            if (what < 6) send_request(w->fd, "POST", "/v1/completions", bodies[what]);
            if (what == 6) send_request(w->fd, "POST", "/v1/embeddings", "{\"input\":[\"a\",\"b\",\"c\"]}");
            if (what == 7) send_request(w->fd, "POST", "/pause?mode=keep", NULL);
            if (what == 8) send_request(w->fd, "POST", "/pause?mode=wait", NULL);
            if (what >= 9 && what < 11) send_request(w->fd, "POST", "/resume", NULL);
            if (what == 11)
                send_request(w->fd, "POST", "/v1/load_lora_adapter",
                             rng_below(&r, 2) ? "{\"lora_name\":\"n0\",\"lora_path\":\"a0\",\"load_inplace\":true}"
                                              : "{\"lora_name\":\"n1\",\"lora_path\":\"a1\",\"load_inplace\":true}");
        } else {
            const bool done = take(w->fd, &w->out), leaves = w->until != 0 && now > w->until;
            whole += done && is_whole(&w->out);
            if (done || leaves) {
                if (leaves && rng_below(&r, 2)) shutdown(w->fd, SHUT_WR);
                close(w->fd);
                w->fd = -1;
            }
        }
        turn(1);
    }
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        if (v[i].fd >= 0) close(v[i].fd);
        str_free(&v[i].out);
    }
    assert_true(whole > 0);
}

static void test_storm(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 2; seed++) {
        open_all(seed ? 16 : 3);
        wait_ready();
        POST("/v1/load_lora_adapter", "{\"lora_name\":\"n0\",\"lora_path\":\"a0\"}", "Success");
        POST("/v1/load_lora_adapter", "{\"lora_name\":\"n1\",\"lora_path\":\"a1\"}", "Success");
        storm(seed, 1.5);
        /* What was left behind gives its place back. */
        ask("POST", "/resume", NULL, 200, "ok");
        POST("/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":2}", "choices");
        GET("/metrics", "kernelrl_sequences_waiting 0\n");
        GET("/metrics", "kernelrl_sequences_running 0\n");
        GET("/metrics", "kernelrl_http_exchanges 1\n");
        close_all();
    }
}

/* The server ends while the model is loaded, and with requests in every state. */
static void test_ends(void **state) {
    (void)state;
    open_all(2);
    close_all();
    open_all(2);
    wait_ready();
    int fd[12];
    for (int i = 0; i < 12; i++) {
        fd[i] = join();
        send_request(fd[i], "POST", i == 11 ? "/v1/embeddings" : "/v1/completions",
                     i == 11 ? "{\"input\":[\"a\",\"b\"]}"
                     : i % 2 ? "{\"prompt\":\"a\",\"max_tokens\":400,\"ignore_eos\":true,\"stream\":true}"
                             : "{\"prompt\":\"a\",\"max_tokens\":400,\"ignore_eos\":true}");
    }
    close_all();
    for (int i = 0; i < 12; i++) close(fd[i]);
    open_all(2); /* a drain that lets what is admitted end */
    wait_ready();
    CLEANUP_STR struct str out = STR_INIT;
    fd[0] = join();
    send_request(fd[0], "POST", "/v1/completions",
                 "{\"prompt\":\"a\",\"max_tokens\":100,\"ignore_eos\":true,\"stream\":true}");
    turn(3);
    http_drain(server);
    const double from = clock_now_s();
    while (!http_drained(server) && clock_now_s() - from < 60) {
        take(fd[0], &out);
        turn(1);
    }
    take(fd[0], &out);
    assert_true(http_drained(server) && strstr(out.p, "[DONE]"));
    close(fd[0]);
    close_all();
}

static void test_no_model(void **state) {
    (void)state;
    struct err e = {0};
    options = serve_defaults;
    options.policy = (struct policy_options){.model = {"--model", folder, NULL, HUB_MODEL}, .device = "cpu"};
    assert_int_equal(serve_open(&options, &serve, &e), ST_OK);
    front = serve_front(serve);
    const struct http_options h = {.port = -1, .log_fd = -1, .front = &front, .n_fronts = 1};
    assert_int_equal(http_server_open(&h, &server, &e), ST_OK);
    assert_int_equal(serve_attach(serve, server, &e), ST_OK);
    const double from = clock_now_s();
    while (!http_drained(server) && clock_now_s() - from < 60) turn(1);
    assert_true(serve_failed(serve, &e) && e.msg[0]);
    close_all();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_endpoints), cmocka_unit_test(test_long_bodies),
        cmocka_unit_test(test_adapters),  cmocka_unit_test(test_failures_without_paths),
        cmocka_unit_test(test_storm),     cmocka_unit_test(test_ends),
        cmocka_unit_test(test_no_model),
    };
    struct err e;
    log_set_level(LOG_ERROR);
    snprintf(folder, sizeof folder, "/tmp/serve_test.%d", (int)getpid());
    snprintf(tokenizer, sizeof tokenizer, "%s/models/tiny", home_dir());
    snprintf(config_path, sizeof config_path, "%s/shape.json", folder);
    mkdir(folder, 0755);
    write_text(config_path, config);
    for (int i = 0; i < 2; i++) {
        snprintf(adapter_path[i], sizeof adapter_path[i], "%s/a%d", folder, i);
        write_adapter(adapter_path[i], (uint64_t)i);
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (fs_remove(folder, &e) != ST_OK) fprintf(stderr, "%s\n", e.msg);
    return failed;
}
