/* The Tinker front end in one process, over socket pairs, with a small model of random weights; and a client. */
#ifndef KERNELRL_TINKER_TEST_UTIL_H
#define KERNELRL_TINKER_TEST_UTIL_H

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
#include "base/hash.h"
#include "base/home.h"
#include "base/log.h"
#include "io/json.h"
#include "tinker/internal.h"
#include "wire/proto.h"
#include "wire/wire.h"

static const char config[] = "{\"architectures\":[\"Qwen3ForCausalLM\"],\"hidden_size\":32,\"num_hidden_layers\":2,"
                             "\"intermediate_size\":64,\"vocab_size\":2048,\"num_attention_heads\":2,"
                             "\"num_key_value_heads\":1,\"head_dim\":16,\"tie_word_embeddings\":true,"
                             "\"eos_token_id\":2045,\"max_position_embeddings\":512}";

static char folder[64], tokenizer[4096], config_path[128], state_dir[128];
static struct serve_options options;
static struct tinker_options tinker_options;
static struct http_front front[3]; /* the last one is a test's, or empty */
static struct serve *serve;
static struct tinker *tinker;
static struct http_server *server;
static struct arena memory;
static int keep_s;
static int64_t max_results; /* 0: as many as usual, for as long */
static const char *keys[3]; /* that the server has */
static size_t n_keys;
static const char *my_key; /* that the client shows; NULL: none */

/* ---- the server ---------------------------------------------------------------------------------------------------*/

static inline void turn(int n) {
    struct err e;
    for (int i = 0; i < n; i++) assert_int_equal(http_step(server, 2, &e), ST_OK);
}

static inline void open_all(int max_awake) {
    struct err e = {0};
    options = serve_defaults;
    options.policy = (struct policy_options){.model = {"model", tokenizer, NULL, HUB_TOKENIZER},
                                             .random = {.config = config_path, .seed = 3},
                                             .device = "cpu",
                                             .weights = {.frozen = true},
                                             .engine = {.max_batch = 8}};
    tinker_options = tinker_defaults;
    tinker_options.dir = state_dir;
    tinker_options.max_awake = max_awake;
    tinker_options.keep_s = keep_s;
    if (max_results > 0) {
        tinker_options.max_results = max_results;
        tinker_options.reread_s = 0;
    }
    tinker_options.n_keys = (int)n_keys;
    tinker_options.train_tokens = 24; /* so that most calls have several pieces */
    if (serve_open(&options, &serve, &e) != ST_OK) fail_msg("%s", e.msg);
    if (tinker_open(&tinker_options, serve, &tinker, &e) != ST_OK) fail_msg("%s", e.msg);
    front[0] = serve_front(serve);
    front[1] = tinker_front(tinker);
    const struct http_options h = {.port = -1,
                                   .log_fd = -1,
                                   .admin = true,
                                   .keys = keys,
                                   .n_keys = n_keys,
                                   .front = front,
                                   .n_fronts = front[2].name ? 3 : 2,
                                   .drain_s = 100};
    if (http_server_open(&h, &server, &e) != ST_OK) fail_msg("%s", e.msg);
    if (serve_attach(serve, server, &e) != ST_OK) fail_msg("%s", e.msg);
    const double from = clock_now_s();
    while (!serve_ready(serve) && clock_now_s() - from < 60) turn(1);
    assert_true(serve_ready(serve));
}

static inline void close_all(void) {
    http_server_close(server);
    tinker_close(tinker);
    serve_close(serve);
    server = NULL;
    serve = NULL;
    tinker = NULL;
    arena_reset(&memory);
}

/* ---- a client -----------------------------------------------------------------------------------------------------*/

struct answer {
    int status;
    const char *body; /* [n], in the arena, with a zero behind */
    size_t n;
};

static inline int join(void) {
    int fd[2];
    struct err e;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
    assert_int_equal(http_adopt(server, fd[1], &e), ST_OK);
    return fd[0];
}

/* path: below /api/v1/, or from the root on. */
static inline void send_all(int fd, const char *method, const char *path, const char *headers, const void *body,
                            size_t n) {
    CLEANUP_STR struct str s = STR_INIT;
    str_addf(&s, "%s %s%s HTTP/1.1\r\nHost: localhost\r\n%s", method, *path == '/' ? "" : "/api/v1/", path, headers);
    if (my_key) str_addf(&s, "X-API-Key: %s\r\n", my_key);
    str_addf(&s, "Content-Length: %zu\r\n\r\n", n);
    if (n > 0) str_add(&s, body, n);
    for (size_t at = 0; at < s.len;) {
        const ssize_t sent = send(fd, s.p + at, s.len - at, MSG_NOSIGNAL);
        if (sent > 0) at += (size_t)sent;
        turn(1);
        if (sent < 0 && errno != EAGAIN) return;
    }
}

static inline struct answer take_all(int fd) {
    CLEANUP_STR struct str s = STR_INIT;
    const double from = clock_now_s();
    struct answer a = {0};
    while (clock_now_s() - from < 60) {
        char buf[65536];
        const ssize_t n = recv(fd, buf, sizeof buf, 0);
        if (n > 0) str_add(&s, buf, (size_t)n);
        const char *head = s.p ? mem_find(s.p, s.len, "\r\n\r\n", 4) : NULL;
        const char *length = head ? mem_find(s.p, (size_t)(head - s.p), "Content-Length: ", 16) : NULL;
        if (length) a.n = (size_t)strtol(length + 16, NULL, 10);
        if (head && s.len >= (size_t)(head - s.p) + 4 + a.n) {
            a.status = (int)strtol(s.p + 9, NULL, 10);
            a.body = arena_strndup(&memory, head + 4, a.n);
            break;
        }
        turn(1);
    }
    close(fd);
    turn(1);
    assert_non_null(a.body);
    return a;
}

#define JSON_HEADER "Content-Type: application/json\r\n"
static inline struct answer call(const char *method, const char *path, const char *body) {
    const int fd = join();
    send_all(fd, method, path, body ? JSON_HEADER : "", body, body ? strlen(body) : 0);
    return take_all(fd);
}
static inline struct answer post(const char *path, const char *body) { return call("POST", path, body); }

/* A member of a JSON answer, as text in the arena. */
static inline const char *member(const struct answer *a, const char *key) {
    CLEANUP_JSON json_t *j = json_loadb(a->body, a->n, 0, NULL);
    const char *v = json_string_value(json_object_get(j, key));
    return v ? arena_strdup(&memory, v) : NULL;
}

#define EXPECT(a, want, words)                                                                                \
    do {                                                                                                      \
        const struct answer expect_ = (a);                                                                    \
        if (expect_.status != (want) || !mem_find(expect_.body, expect_.n, (words), strlen(words)))           \
            fail_msg("expected %d and \"%s\", got %d %.600s", (want), (words), expect_.status, expect_.body); \
    } while (0)

/* The result of a promise. */
static inline struct answer result_of(const struct answer *promise) {
    const char *id = member(promise, "request_id");
    if (!id) fail_msg("no promise: %d %s", promise->status, promise->body);
    const char *body = arena_printf(&memory, "{\"request_id\":\"%s\",\"allow_metadata_only\":true}", id);
    for (int i = 0; i < 10; i++) {
        const struct answer a = post("retrieve_future", body);
        if (a.status != 408) return a;
    }
    fail_msg("%s is never done", id);
    return *promise;
}
static inline struct answer done(struct answer promise) { return result_of(&promise); }

/* ---- what clients ask for -----------------------------------------------------------------------------------------*/

enum { N = 9, SIDE = 6 };

static inline const char *new_session(void) {
    const struct answer a = post("create_session", "{\"tags\":[],\"user_metadata\":{\"k\":\"v\"},\"sdk_version\":"
                                                   "\"0.38.0\",\"type\":\"create_session\",\"later\":1}");
    assert_int_equal(a.status, 200);
    return member(&a, "session_id");
}

static inline struct answer make_model(const char *session, int number, const char *lora) {
    return post("create_model", arena_printf(&memory,
                                             "{\"session_id\":\"%s\",\"model_seq_id\":%d,\"base_model\":\"%s\","
                                             "\"lora_config\":%s,\"optimizer_config\":{\"type\":\"adamw\"}}",
                                             session, number, tokenizer, lora));
}
#define ALL_PARTS "{\"rank\":4,\"seed\":7}"

static inline const char *new_model(const char *session, int number, const char *lora) {
    const struct answer a = done(make_model(session, number, lora));
    if (!member(&a, "model_id")) fail_msg("%s", a.body);
    return member(&a, "model_id");
}

static inline void put_tensor(struct str *datum, const char *name, int dtype, const void *data, size_t bytes,
                              int64_t columns, int64_t rows) {
    CLEANUP_STR struct str tensor = STR_INIT, entry = STR_INIT;
    const int64_t shape[] = {rows, columns};
    proto_put_bytes(&tensor, 1, data, bytes);
    proto_put_varint(&tensor, 3, (uint64_t)dtype);
    proto_put_i64s(&tensor, 4, shape, columns > 0 ? 2 : 1);
    proto_put_text(&entry, 1, name);
    proto_put_bytes(&entry, 2, tensor.p, tensor.len);
    proto_put_bytes(datum, 2, entry.p, entry.len);
}

/* What a batch is made of: text i of a seed, with weights or advantages of its own. */
struct asked_batch {
    const char *loss;
    int seed, n, soft; /* soft: targets a row, 0: one */
    bool forward, spoiled /* a log-probability that makes the loss infinite */;
    float shift; /* of the recorded log-probabilities */
};

static inline int32_t token(int seed, int text, int at) {
    return 10 + (int32_t)(hash_bytes(&(int[]){seed, at < 4 ? 0 : text, at}, 3 * sizeof(int), 1) % 2000);
}

static inline void put_datum(struct str *out, const struct asked_batch *b, int text) {
    CLEANUP_STR struct str datum = STR_INIT, chunk = STR_INIT, encoded = STR_INIT;
    const bool likelihood = strcmp(b->loss, "cross_entropy") == 0;
    const int K = b->soft > 0 ? b->soft : 1;
    int32_t ids[N + 1];
    CLEANUP_FREE int64_t *targets = xmalloc((size_t)(N * K) * sizeof *targets);
    CLEANUP_FREE float *weights = xmalloc((size_t)(N * K) * sizeof *weights);
    float logp[N], mask[N];
    for (int i = 0; i <= N; i++) ids[i] = token(b->seed, text, i);
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < K; k++) {
            targets[i * K + k] = k == 0 ? ids[i + 1] : (ids[i + 1] + k) % 2000;
            weights[i * K + k] = i < 3 ? 0 : 0.3f + 0.1f * (float)((i * 7 + text * 3 + k) % 5) - (k == 1 ? 0.9f : 0);
        }
        logp[i] = i < 3 ? 0 : -7.6f + b->shift * (float)((i + text) % 3);
        mask[i] = i >= 3;
    }
    if (b->spoiled && text == b->n - 1) logp[N - 1] = -1e30f;
    proto_put_bytes(&encoded, 1, ids, N * sizeof *ids);
    proto_put_bytes(&chunk, 1, encoded.p, encoded.len);
    proto_put_bytes(&datum, 1, chunk.p, chunk.len);
    put_tensor(&datum, "target_tokens", 2, targets, (size_t)(N * K) * 8, b->soft, N);
    put_tensor(&datum, likelihood ? "weights" : "advantages", 1, weights, (size_t)(N * K) * 4, b->soft, N);
    if (!likelihood) put_tensor(&datum, "logprobs", 1, logp, sizeof logp, 0, N);
    if (strcmp(b->loss, "gspo") == 0) put_tensor(&datum, "sequence_ratio_mask", 1, mask, sizeof mask, 0, N);
    proto_put_bytes(out, 3, datum.p, datum.len);
}

static inline struct str training_body(const char *model, int seq, const struct asked_batch *b) {
    struct str s = STR_INIT;
    proto_put_text(&s, 1, model);
    proto_put_varint(&s, 2, (uint64_t)seq);
    for (int i = 0; i < b->n; i++) put_datum(&s, b, i);
    proto_put_text(&s, 4, b->loss);
    if (b->forward) proto_put_varint(&s, 6, 1);
    return s;
}

#define PROTO_HEADER "Content-Type: application/x-protobuf\r\n"
static inline struct answer train(const char *model, int seq, const struct asked_batch *b) {
    CLEANUP_STR struct str s = training_body(model, seq, b);
    const int fd = join();
    send_all(fd, "POST", "forward_backward", PROTO_HEADER, s.p, s.len);
    return take_all(fd);
}

static inline struct answer optim(const char *model, int seq, const char *numbers) {
    return post("optim_step",
                arena_printf(&memory,
                             "{\"model_id\":\"%s\",\"seq_id\":%d,\"adam_params\":{%s},\"type\":\"optim_step\"}", model,
                             seq, numbers));
}
#define USUAL "\"learning_rate\":0.01,\"beta1\":0.9,\"beta2\":0.95,\"eps\":1e-12"

static inline struct wire_output read_output(struct answer a) {
    struct wire_output o = {0};
    struct err e = {0};
    if (a.status != 200 || wire_read_output(a.body, a.n, &memory, &o, &e) != ST_OK)
        fail_msg("%d %.300s %s", a.status, a.body, e.msg);
    return o;
}

static inline double loss_in(const struct wire_output *o) {
    for (int i = 0; i < o->n_metrics; i++)
        if (strcmp(o->metric[i].name, "loss:sum") == 0) return o->metric[i].value;
    fail_msg("no loss:sum");
    return 0;
}

/* Log-probabilities of a batch as the model is now: a number of all its weights. */
static inline struct wire_output look(const char *model, int seq) {
    const struct asked_batch b = {"cross_entropy", 1, 3, .forward = true};
    return read_output(done(train(model, seq, &b)));
}

static inline void assert_same(const struct wire_output *a, const struct wire_output *b) {
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        const int64_t cells = a->datum[i].rows * (a->datum[i].width ? a->datum[i].width : 1);
        assert_memory_equal(a->datum[i].logp, b->datum[i].logp, (size_t)cells * sizeof(float));
    }
}

static inline struct wire_sample sample(const char *sampler, int seq, const char *more) {
    CLEANUP_STR struct str ids = STR_INIT;
    struct wire_sample w = {0};
    struct err e = {0};
    for (int i = 0; i < SIDE; i++) str_addf(&ids, "%s%d", i ? "," : "", token(1, 0, i));
    const struct answer a =
        done(post("asample", arena_printf(&memory,
                                          "{\"sampling_session_id\":\"%s\",\"seq_id\":%d,\"prompt\":{\"chunks\":[{"
                                          "\"type\":\"encoded_text\",\"tokens\":[%s]}]},%s}",
                                          sampler, seq, ids.p, more)));
    if (a.status != 200 || wire_read_sample(a.body, a.n, &memory, &w, &e) != ST_OK)
        fail_msg("%d %.400s %s", a.status, a.body, e.msg);
    return w;
}

#define TEXT(...) arena_printf(&memory, __VA_ARGS__)
static inline struct answer save(const char *model, int seq, const char *name) {
    return done(post("save_weights", TEXT("{\"model_id\":\"%s\",\"seq_id\":%d,\"path\":\"%s\"}", model, seq, name)));
}

/* Two keys: ann's, whom the client is at first, and bob's, which has a name. */
static const char ann[] = "tml-ann", bob[] = "tml-bob";

static inline void open_with_keys(void) {
    keys[0] = ann;
    keys[1] = "bob.b tml-bob";
    n_keys = 2;
    my_key = ann;
    open_all(4);
}

static inline void close_with_keys(void) {
    close_all();
    n_keys = 0;
    my_key = NULL;
}

/* ---- begin and end ------------------------------------------------------------------------------------------------*/

static inline void write_text(const char *path, const char *text) {
    struct err e;
    if (fs_write_atomic(path, text, strlen(text), &e) != ST_OK) fail_msg("%s", e.msg);
}

/* A test begins with an empty folder. */
static inline int forget(void **state) {
    struct err e;
    (void)state;
    return fs_remove(state_dir, &e) == ST_OK ? 0 : -1;
}
#define TEST(f) cmocka_unit_test_setup(f, forget)

/* Makes the folder of the tests; argv[1] is the name of the one to run, if it is there. */
static inline void begin_tests(int argc, char **argv) {
    keep_s = 300;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    log_set_level(LOG_WARN);
    snprintf(folder, sizeof folder, "/tmp/tinker_test.%d", (int)getpid());
    snprintf(tokenizer, sizeof tokenizer, "%s/models/tiny", home_dir());
    snprintf(config_path, sizeof config_path, "%s/shape.json", folder);
    snprintf(state_dir, sizeof state_dir, "%s/state", folder);
    mkdir(folder, 0755);
    write_text(config_path, config);
}

static inline int end_tests(int failed) {
    struct err e;
    arena_free(&memory);
    if (fs_remove(folder, &e) != ST_OK) fprintf(stderr, "%s\n", e.msg);
    return failed;
}

#endif
