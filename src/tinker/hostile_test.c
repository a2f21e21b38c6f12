/* Clients that mean harm, and calls that come at a bad moment: what one of them can take is bounded, names are what
 * they seem, and what is not one's any more cannot be fetched. */
#include <math.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/resource.h>

#include "tinker/test_util.h"

static struct answer begin_save(const char *model, int seq, const char *name, const char *more) {
    return post("save_weights", TEXT("{\"model_id\":\"%s\",\"seq_id\":%d,\"path\":\"%s\"%s}", model, seq, name, more));
}

static const char *repeated(char c, int n) {
    char *text = arena_array(&memory, char, n + 1);
    memset(text, c, (size_t)n);
    text[n] = 0;
    return text;
}

static void restart(void) {
    close_all();
    open_all(4);
}

/* A session with a sampler of the base, SESSION:sample:0. */
static const char *session_that_samples(void) {
    const char *s = new_session();
    EXPECT(post("create_sampling_session",
                TEXT("{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,\"base_model\":\"%s\"}", s, tokenizer)),
           200, ":sample:0");
    return s;
}

/* ---- names and what is told of things -----------------------------------------------------------------------------*/

static void test_names(void **state) {
    (void)state;
    open_all(4);
    const char *s = new_session(), *m = new_model(s, 0, ALL_PARTS);
    /* a NUL does not end a name */
    EXPECT(post("session_heartbeat", TEXT("{\"session_id\":\"%s\\u0000x\"}", s)), 400, "\\\\u0000");
    EXPECT(begin_save(m, 1, "good\\u0000/../../evil", ""), 400, "\\\\u0000");
    int seq = 1;
    const char *const bad[] = {"", ".", "..", "../up", "a/b", "a\\\\b", "a b", "\xc3\xa9", repeated('n', 129), "a\\nb"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        EXPECT(done(begin_save(m, seq++, bad[i], "")), 200, "a checkpoint's name has 1 to 128");
    EXPECT(done(begin_save(m, seq++, repeated('n', 128), "")), 200, "/weights/nnn");
    const char *const paths[] = {"tinker://../weights/x", "tinker:///weights/x", "tinker://a/weights/..",
                                 "tinker://a/weights/x/../../y", "tinker://a/other/x"};
    for (size_t i = 0; i < ARRAY_LEN(paths); i++)
        EXPECT(post("weights_info", TEXT("{\"tinker_path\":\"%s\"}", paths[i])), 404, "detail");
    const char *const urls[] = {"files//adapter_config.json", "files/%2Fadapter_config.json",
                                "files/../adapter_config.json", "files/%2E%2E/adapter_config.json",
                                "training_runs/a/checkpoints/external_weights/%2E%2E/external_weights_urls"};
    for (size_t i = 0; i < ARRAY_LEN(urls); i++) {
        const int status = call("GET", urls[i], NULL).status;
        assert_true(status == 400 || status == 404);
    }
    close_all();
}

/* What is kept is as long as the next server reads, and no longer. */
static void test_long_texts(void **state) {
    char session[64];
    (void)state;
    open_all(4);
    const char *most = repeated('\x7f', CALL_MAX_METADATA - 8), *label = repeated('"', CALL_MAX_LABEL);
    CLEANUP_STR struct str quoted = STR_INIT;
    js_add_quoted(&quoted, label, CALL_MAX_LABEL);
#define SESSION "{\"display_name\":%s,\"project_id\":%s,\"user_metadata\":{\"k\":\"%s\"}}"
    const struct answer a = post("create_session", TEXT(SESSION, quoted.p, quoted.p, most));
    snprintf(session, sizeof session, "%s", member(&a, "session_id"));
    EXPECT(post("create_session", TEXT(SESSION, "\"a\"", "\"b\"", TEXT("%sx", most))), 422, "user_metadata");
    EXPECT(post("create_session", TEXT(SESSION, TEXT("\"a%s", quoted.p + 1), "\"b\"", "c")), 422, "display_name");
    EXPECT(post("create_session", TEXT(SESSION, "\"a\"", TEXT("\"b%s", quoted.p + 1), "c")), 422, "project_id");
    const char *project = TEXT("sessions/%s/project", session);
    EXPECT(call("PUT", project, TEXT("{\"project_id\":\"b%s}", quoted.p + 1)), 422, "project_id");
    EXPECT(call("PUT", project, TEXT("{\"project_id\":%s}", quoted.p)), 200, "{}");
    const char *m = new_model(session, 0, ALL_PARTS);
    EXPECT(done(begin_save(m, 1, "a", TEXT(",\"user_metadata\":{\"k\":\"%s\"}", most))), 200, "weights/a");
    EXPECT(done(begin_save(m, 2, "b", TEXT(",\"user_metadata\":{\"k\":\"%sx\"}", most))), 200, "user_metadata");
    restart();
    EXPECT(call("GET", TEXT("sessions/%s", session), NULL), 200, "\"training_run_ids\":[\"");
    EXPECT(call("GET", "checkpoints", NULL), 200, "\"total_count\":1");
    CLEANUP_STR struct str time = STR_INIT;
    put_time(&time, NULL, INT64_MAX); /* a file may say so */
    assert_string_equal(time.p, "\"1970-01-01T00:00:00Z\"");
    close_all();
}

static void test_many_sessions(void **state) {
    (void)state;
    open_all(4);
    const char *s = new_session();
    for (int i = 1; i < SESSIONS; i++) {
        struct tinker_session *more = xcalloc(1, sizeof *more);
        *more = *tinker->sessions;
        snprintf(more->id, sizeof more->id, "more-%d", i);
        more->name = more->metadata = more->project = NULL;
        more->next = tinker->sessions;
        tinker->sessions = more;
    }
    EXPECT(post("create_session", "{}"), 429, "as many as there may be");
    EXPECT(post(TEXT("sessions/%s/finish", s), "{}"), 200, "{}");
    EXPECT(post("create_session", "{}"), 200, "session_id");
    close_all();
}

/* ---- checkpoints --------------------------------------------------------------------------------------------------*/

static const char *urls_of(const char *model) {
    const struct answer a =
        call("GET", TEXT("training_runs/%s/checkpoints/external_weights/x/external_weights_urls", model), NULL);
    const char *url = strstr(a.body, "/api/v1/files/");
    if (!url) fail_msg("%d %s", a.status, a.body);
    return arena_strndup(&memory, url + 8, strcspn(url + 8, "\""));
}

/* Addresses of files end, with their time and when the checkpoint is not public any more. */
static void test_links_end(void **state) {
    (void)state;
    open_with_keys();
    const char *m = new_model(new_session(), 0, ALL_PARTS);
    EXPECT(done(post("save_weights_external", TEXT("{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"x\"}", m))), 200,
           "size_bytes");
    const char *at = TEXT("training_runs/%s/checkpoints/external_weights/x", m);
    EXPECT(post(TEXT("%s/publish", at), NULL), 200, "{}");
    my_key = bob;
    const char *lent = urls_of(m);
    EXPECT(call("GET", lent, NULL), 200, "lora_alpha");
    EXPECT(call("GET", TEXT("files/%s/adapter_config.json", tinker->checkpoints->folder), NULL), 404, "");
    my_key = ann;
    EXPECT(call("DELETE", TEXT("%s/publish", at), NULL), 200, "{}");
    EXPECT(call("GET", lent, NULL), 404, "no such file");
    const char *own = urls_of(m);
    assert_string_not_equal(own, lent);
    assert_string_equal(own, urls_of(m));
    EXPECT(call("GET", own, NULL), 200, "lora_alpha");
    tinker->checkpoints->link_ends = tinker_now_s() - 1;
    EXPECT(call("GET", own, NULL), 404, "no such file");
    assert_string_not_equal(own, urls_of(m));
    close_with_keys();
}

/* Calls that are sent one behind the other, without waiting: a name that a call before takes is taken; what is told of
 * a checkpoint is told of the weights that it has; and no save begins when those before it have taken all bytes. */
static void test_saves_that_wait(void **state) {
    (void)state;
    open_with_keys();
    const char *s = new_session(), *m = new_model(s, 0, ALL_PARTS), *wide = new_model(s, 1, "{\"rank\":8}");
    EXPECT(save(wide, 1, "wide"), 200, "weights/wide");
    const struct asked_batch b = {.loss = "cross_entropy", .seed = 1, .n = 20};
    EXPECT(train(m, 1, &b), 200, "request_id");
    const struct answer first = begin_save(m, 2, "name", ""), second = begin_save(m, 3, "name", ""),
                        third = begin_save(m, 4, "name", ",\"overwrite\":true");
    EXPECT(
        post("load_weights", TEXT("{\"model_id\":\"%s\",\"seq_id\":5,\"path\":\"tinker://%s/weights/wide\"}", m, wide)),
        200, "request_id");
    const struct answer loaded = begin_save(m, 6, "loaded", "");
    EXPECT(result_of(&first), 200, "weights/name");
    EXPECT(result_of(&second), 200, "already");
    EXPECT(result_of(&third), 200, "weights/name");
    EXPECT(result_of(&loaded), 200, "weights/loaded");
    EXPECT(post("weights_info", TEXT("{\"tinker_path\":\"tinker://%s/weights/loaded\"}", m)), 200, "\"lora_rank\":8");
    EXPECT(post("weights_info", TEXT("{\"tinker_path\":\"tinker://%s/weights/name\"}", m)), 200, "\"lora_rank\":4");
    int64_t bytes = 0;
    for (const struct tinker_checkpoint *c = tinker->checkpoints; c; c = c->next) bytes += c->bytes;
    tinker_options.key_bytes = bytes + 1;
    const struct answer fits = begin_save(m, 7, "fits", ""), over = begin_save(m, 8, "over", "");
    EXPECT(result_of(&fits), 200, "weights/fits");
    EXPECT(result_of(&over), 200, "delete some of them");
    close_with_keys();
}

/* The clock may be put back: the checkpoint that was written last is the one of its name. */
static void test_clock_put_back(void **state) {
    (void)state;
    open_all(4);
    const char *m = new_model(new_session(), 0, ALL_PARTS);
    EXPECT(save(m, 1, "a"), 200, "weights/a");
    tinker->checkpoints->made += 1000;
    CLEANUP_FREE char *before = xstrdup(tinker->checkpoints->folder);
    EXPECT(done(begin_save(m, 2, "a", ",\"overwrite\":true")), 200, "weights/a");
    assert_null(tinker->checkpoints->next);
    assert_string_not_equal(tinker->checkpoints->folder, before);
    close_all();
}

/* A run is listed once, however many checkpoints are left of it. */
static void test_runs_are_listed_once(void **state) {
    (void)state;
    open_all(4);
    const char *s = new_session(), *m = new_model(s, 0, ALL_PARTS), *n = new_model(s, 1, ALL_PARTS);
    EXPECT(save(m, 1, "a"), 200, "");
    EXPECT(save(m, 2, "b"), 200, "");
    EXPECT(save(n, 1, "a"), 200, "");
    EXPECT(call("GET", "training_runs", NULL), 200, "\"total_count\":2");
    EXPECT(post(TEXT("sessions/%s/finish", s), "{}"), 200, "{}");
    restart();
    EXPECT(call("GET", "training_runs", NULL), 200, "\"total_count\":2");
    EXPECT(call("GET", "billing/usage/checkpoints/current", NULL), 200, "\"checkpoint_count\":3");
    close_all();
}

/* ---- what a client can take ---------------------------------------------------------------------------------------*/

/* A model that could not be made has a place, too, until its session ends. */
static void test_models_that_fail(void **state) {
    (void)state;
    open_with_keys();
    const char *s = new_session(), *m = new_model(s, 0, ALL_PARTS);
    EXPECT(save(m, 1, "a"), 200, "weights/a");
    CLEANUP_FREE char *dir = checkpoint_dir(tinker, tinker->checkpoints);
    write_text(TEXT("%s/adapter_model.safetensors", dir), "damaged");
    tinker_options.key_models = 2;
#define LOAD TEXT("{\"session_id\":\"%s\",\"model_seq_id\":%d,\"path\":\"tinker://%s/weights/a\"}", s, ++number, m)
    int number = 0;
    EXPECT(done(post("load_weights", LOAD)), 200, "error");
    EXPECT(done(post("load_weights", LOAD)), 200, "as many as it may have");
    close_with_keys();
}

/* Nobody fetches: the call whose turn it is, and a model that is to be made, wait, too. */
static void test_results_that_nobody_fetches(void **state) {
    (void)state;
    open_all(4);
    const char *s = new_session(), *m = new_model(s, 0, ALL_PARTS);
    const struct asked_batch b = {.loss = "cross_entropy", .seed = 1, .n = 3, .forward = true};
    const struct answer p = train(m, 1, &b);
    for (const double until = clock_now_s() + 60; tinker->tenants->kept.unread == 0 && clock_now_s() < until;) turn(1);
    tinker_options.max_results = 10;
    EXPECT(train(m, 2, &b), 429, "wait to be fetched");
    EXPECT(make_model(s, 1, "{\"rank\":0}"), 429, "wait to be fetched");
    EXPECT(result_of(&p), 200, "loss:sum");
    EXPECT(train(m, 2, &b), 200, "request_id");
    close_all();
}

/* Bytes of calls: the one whose turn it is waits while another call of its tenant is computed. Requests to sample count
 * as well. */
static void test_bytes_that_wait(void **state) {
    (void)state;
    open_all(4);
    const char *s = new_session(), *m = new_model(s, 0, ALL_PARTS), *n = new_model(s, 1, ALL_PARTS);
    const struct asked_batch b = {.loss = "cross_entropy", .seed = 1, .n = 60};
    tinker_options.max_held = 1;
    const struct answer p = train(m, 1, &b);
    EXPECT(train(n, 1, &b), 429, "bytes of calls");
    EXPECT(result_of(&p), 200, "loss:sum");
    EXPECT(done(train(n, 1, &b)), 200, "loss:sum");
    EXPECT(post("create_sampling_session",
                TEXT("{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,\"base_model\":\"%s\"}", s, tokenizer)),
           200, ":sample:0");
#define ASK(seq)                                                                                                       \
    post("asample", TEXT("{\"sampling_session_id\":\"%s:sample:0\",\"seq_id\":%d,\"prompt\":{\"chunks\":[{\"tokens\":" \
                         "[5,6]}]},\"sampling_params\":{\"max_tokens\":400,\"stop\":[]}}",                             \
                         s, seq))
    const struct answer long_one = ASK(0);
    EXPECT(ASK(1), 429, "bytes of calls");
    EXPECT(result_of(&long_one), 200, "");
    EXPECT(ASK(1), 200, "request_id");
    assert_true(tinker->tenants->held_bytes > 0);
    EXPECT(done(ASK(1)), 200, "");
    assert_int_equal(tinker->tenants->held_bytes, 0);
    close_all();
}

/* A few ids in a shape of sixteen million cells take the memory of a few ids, and get their log-probabilities. */
static void test_targets_of_a_large_shape(void **state) {
    (void)state;
    enum { COLUMNS = WIRE_MAX_CELLS / 3 };
    static const char format[] =
        "\"num_samples\":1,\"sampling_params\":{\"max_tokens\":1},"
        "\"prompt_logprobs\":true,\"target_prompt_logprobs\":{\"data\":[%s],\"shape\":[%d,%d]%s}";
    struct call_sample c;
    struct arena a = ARENA_INIT;
    struct err e = {0};
    const char *sparse =
        TEXT(format, "7,9,7,-1", 3, COLUMNS,
             TEXT(",\"sparse_crow_indices\":[0,2,2,4],\"sparse_col_indices\":[0,%d,1,2]", COLUMNS - 1));
    const char *body =
        TEXT("{\"sampling_session_id\":\"x\",\"seq_id\":0,\"prompt\":{\"chunks\":[{\"tokens\":[5,6,7,8]}]}"
             ",%s}",
             sparse);
    CLEANUP_JSON json_t *j = json_loads(body, 0, NULL);
    assert_int_equal(call_read_sample(j, &a, &c, &e), ST_OK);
    assert_true(c.n_listed == 4 && c.n_targets == COLUMNS && arena_bytes(&a) < 100000);
    arena_free(&a);
    /* through the wire, with few columns: reading puts the zeros in */
    open_all(4);
    const char *s = session_that_samples();
    const char *m = TEXT("%s:sample:0", s);
    const struct wire_sample dense = sample(m, 0, TEXT(format, "7,9,-1,-1,9,7,7,-1,-1,-1", 5, 2, ""));
    const struct wire_sample few = sample(
        m, 1,
        TEXT(format, "7,9,9,7,7", 5, 2, ",\"sparse_crow_indices\":[0,2,2,4,5,5],\"sparse_col_indices\":[0,1,0,1,0]"));
    assert_true(dense.target && few.target && dense.target->n == 10 && few.target->n == 10);
    for (int i = 0; i < 10; i++) {
        const float want = dense.target->f[i], got = few.target->f[i];
        assert_true(isnan(want) ? got == 0 : want < 0 && got == want);
    }
    close_all();
}

static struct str one_token_body(const char *model, int seq, int K) {
    CLEANUP_STR struct str datum = STR_INIT, chunk = STR_INIT, encoded = STR_INIT;
    CLEANUP_FREE int64_t *targets = xmalloc((size_t)K * sizeof *targets);
    CLEANUP_FREE float *weights = xmalloc((size_t)K * sizeof *weights);
    struct str s = STR_INIT;
    for (int k = 0; k < K; k++) {
        targets[k] = k % 2000;
        weights[k] = 1e-3f;
    }
    proto_put_bytes(&encoded, 1, &(int32_t){7}, sizeof(int32_t));
    proto_put_bytes(&chunk, 1, encoded.p, encoded.len);
    proto_put_bytes(&datum, 1, chunk.p, chunk.len);
    put_tensor(&datum, "target_tokens", 2, targets, (size_t)K * 8, K, 1);
    put_tensor(&datum, "weights", 1, weights, (size_t)K * 4, K, 1);
    proto_put_text(&s, 1, model);
    proto_put_varint(&s, 2, (uint64_t)seq);
    proto_put_bytes(&s, 3, datum.p, datum.len);
    proto_put_text(&s, 4, "cross_entropy");
    return s;
}

static struct wire_output train_one_token(const char *model, int seq, int K) {
    CLEANUP_STR struct str s = one_token_body(model, seq, K);
    const int fd = join();
    send_all(fd, "POST", "forward_backward", PROTO_HEADER, s.p, s.len);
    return read_output(done(take_all(fd)));
}

/* A text of one token with very many targets takes the memory of so many as longer texts have at a time. */
static void test_many_targets_of_one_token(void **state) {
    enum { MOST = 24 * DATUM_MAX_TARGETS, K = 8 * MOST + 5, VOCAB = 2048 };
    (void)state;
    open_all(4);
    assert_int_equal(tinker_options.train_tokens, 24);
    const char *m = new_model(new_session(), 0, ALL_PARTS);
    const struct wire_output many = train_one_token(m, 1, K), few = train_one_token(m, 2, 2000);
    assert_true(many.datum[0].rows == 1 && many.datum[0].width == K);
    for (int k = 0; k < K; k++)
        assert_memory_equal(&many.datum[0].logp[k], &few.datum[0].logp[k % 2000], sizeof(float));
    assert_true(fabs(loss_in(&many) / K - loss_in(&few) / 2000) < 1e-4);
    /* logits of MOST rows, and what else there is of a row, which is little */
    const int64_t bytes = model_memory(model_thread_policy(tinker->thread)->model).activation_bytes;
    assert_in_range(bytes, 1, MOST * (VOCAB + 256) * (int64_t)sizeof(float));
    close_all();
}

/* What is told of requests that have ended goes with their results. */
static void test_told_requests_go(void **state) {
    (void)state;
    open_all(4);
    const char *s = session_that_samples();
    for (int i = 0; i < 20; i++) (void)sample(TEXT("%s:sample:0", s), i, "\"sampling_params\":{\"max_tokens\":1}");
    struct completions *c = &tinker->samplers->completed;
    assert_int_equal(c->n, 20);
    completions_age(tinker, tinker_now_s());
    assert_int_equal(c->n, 20);
    tinker_options.max_results = 1;
    tinker_options.reread_s = 0;
    futures_trim(tinker, tinker_now_s());
    assert_int_equal(tinker->tenants->kept.bytes, 0);
    completions_age(tinker, tinker_now_s());
    assert_int_equal(c->n, 0);
    close_all();
}

/* A request whose result nobody has fetched within its hour is not kept for the next server either. */
static void test_forgotten_requests(void **state) {
    struct stat file;
    (void)state;
    open_all(4);
    const char *s = session_that_samples();
    const struct answer a = ASK(0);
    const char *path = TEXT("%s/sessions/%s/asample", state_dir, s);
    for (const double until = clock_now_s() + 60; tinker->tenants->kept.unread == 0 && clock_now_s() < until;) turn(1);
    assert_int_equal(stat(path, &file), 0);
    assert_true(file.st_size > 0);
    futures_age(tinker, tinker_now_s() + RESULT_S + 1);
    EXPECT(result_of(&a), 410, "no result");
    assert_int_equal(stat(path, &file), 0);
    assert_int_equal(file.st_size, 0);
    close_all();
}

/* Samplers of a model that could not be made go, too, beyond the last ones. */
static void test_failed_samplers_go(void **state) {
    (void)state;
    open_all(4);
    const char *s = new_session();
    (void)new_model(s, 0, ALL_PARTS);
    for (int i = 0; i < SNAPSHOTS + 3; i++) {
        struct tinker_sampler *m = sampler_add(tinker, tinker->sessions, TEXT("%s:sample:%d", s, i), tokenizer);
        m->run = tinker->runs;
        m->failed = true;
    }
    samplers_trim(tinker, tinker->runs);
    int gone = 0;
    for (const struct tinker_sampler *m = tinker->samplers; m; m = m->next) gone += m->gone;
    assert_int_equal(gone, 3);
    close_all();
}

/* ---- large bodies -------------------------------------------------------------------------------------------------*/

static sem_t may_read;

static void read_slowly(struct call_reading *r) {
    (void)r;
    while (sem_wait(&may_read) != 0) {}
}

static void say_read(struct call_reading *r) { reply_empty(r->in.x); }

static void slow_begin(void *t, struct http_exchange *x) {
    (void)t;
    reading_begin(tinker, x, CALL_TRAIN, read_slowly, say_read);
}

/* Sends the body of a call, and does not wait for the reply. */
static int send_training(const char *model, int seq, const struct asked_batch *b) {
    CLEANUP_STR struct str s = training_body(model, seq, b);
    const int fd = join();
    assert_true(s.len > WORK_AT_ONCE_BYTES);
    send_all(fd, "POST", "forward_backward", PROTO_HEADER, s.p, s.len);
    return fd;
}

/* While a large body is read others have their answers; so has a client that sent one twice, one that sent it again
 * after it had left, and one whose call was overtaken by the next one. */
static void test_large_bodies(void **state) {
    static const struct http_route slow = {.method = "POST",
                                           .path = "/slow",
                                           .access = HTTP_KEY,
                                           .body = HTTP_ANY_BODY,
                                           .begin = slow_begin,
                                           .event = reading_event,
                                           .end = reading_end};
    (void)state;
    char byte;
    front[2] = (struct http_front){.name = "slow", .route = &slow, .n_routes = 1};
    assert_int_equal(sem_init(&may_read, 0, 0), 0);
    open_all(4);
    const char *m = new_model(new_session(), 0, ALL_PARTS), *large = repeated('x', WORK_AT_ONCE_BYTES + 1);
    const struct asked_batch b = {.loss = "cross_entropy", .seed = 1, .n = 200};
    const int held = join();
    send_all(held, "POST", "/slow", "", large, strlen(large));
    const int one = send_training(m, 1, &b), two = send_training(m, 1, &b);
    close(send_training(m, 1, &b));
    turn(20);
    const struct answer step = optim(m, 2, USUAL);
    EXPECT(step, 200, "request_id");
    EXPECT(call("GET", "healthz", NULL), 200, "ok");
    assert_true(recv(held, &byte, 1, 0) < 0 && recv(one, &byte, 1, 0) < 0 && recv(two, &byte, 1, 0) < 0);
    sem_post(&may_read);
    EXPECT(take_all(held), 200, "{}");
    const struct answer first = take_all(one), second = take_all(two);
    assert_string_equal(first.body, second.body);
    EXPECT(result_of(&first), 200, "loss:sum");
    EXPECT(result_of(&step), 200, "\"step\":1");
    EXPECT(take_all(send_training(m, 1, &b)), 200, member(&first, "request_id"));
    /* the server ends while bodies are read, and wait to be */
    const int last = join();
    send_all(last, "POST", "/slow", "", large, strlen(large));
    const int behind = send_training(m, 3, &b);
    http_server_close(server);
    server = NULL;
    tinker_close(tinker);
    sem_post(&may_read);
    serve_close(serve);
    serve = NULL;
    tinker = NULL;
    arena_reset(&memory);
    close(last);
    close(behind);
    front[2] = (struct http_front){0};
    sem_destroy(&may_read);
}

/* JSON that the server's thread reads is not long. */
static void test_long_json(void **state) {
    (void)state;
    open_all(4);
    const char *name = repeated('n', 600 << 10);
    EXPECT(post("create_session", TEXT("{\"later\":\"%s\"}", name + (100 << 10))), 200, "session_id");
    EXPECT(post("create_session", TEXT("{\"later\":\"%s\"}", name)), 413, "limit");
    EXPECT(post("telemetry", TEXT("{\"events\":\"%s\"}", name)), 200, "accepted");
    close_all();
}

/* ---- what the server keeps to itself ------------------------------------------------------------------------------*/

static void test_messages_without_paths(void **state) {
    static const char *const tests[][2] = {
        {"/srv/state/a/b: No such file or directory", "[path]: No such file or directory"},
        {"save: /srv/my state/a.new: No space left", "save: [path]: No space left"},
        {"cannot create directory \"/srv/my: state\": File exists", "cannot create directory \"[path]\": File exists"},
        {"config '/a/b', /c/d; in (/e/f) and =/g", "config '[path]', [path]; in ([path]) and =[path]"},
        {"//srv/x", "[path]"},
        {"/srv/a is no file of /srv/b", "[path]"},
        {"\"/srv/cut", "\"[path]"},
        {"a (the adapter was made for \"/srv/base\")", "a (the adapter was made for \"[path]\")"},
        {"there is no checkpoint tinker://a:train:0/weights/x here", NULL},
        {"expected RUN/checkpoints/KIND/NAME, and 1 / 2", NULL},
        {"", NULL},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(tests); i++) {
        CLEANUP_STR struct str told = STR_INIT;
        http_tell_without_paths(&told, tests[i][0]);
        assert_string_equal(str_c(&told), tests[i][1] ? tests[i][1] : tests[i][0]);
    }
}

/* Lines of the log about failures that were told to clients, and name the folder of the tests. */
static int logged(const char *log) {
    char *text;
    size_t n;
    struct err e;
    int lines = 0;
    if (fs_read(log, 1 << 20, &text, &n, &e) != ST_OK) fail_msg("%s", e.msg);
    for (char *rest, *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        lines += strstr(line, "a client was told") && strstr(line, folder);
    free(text);
    return lines;
}

static void make_folder(const char *path) {
    struct err e;
    if (fs_remove(path, &e) != ST_OK || fs_mkdirs(path, &e) != ST_OK) fail_msg("%s", e.msg);
}

static void make_file(const char *path) {
    struct err e;
    if (fs_remove(path, &e) != ST_OK) fail_msg("%s", e.msg);
    write_text(path, "damaged");
}

/* From here on no file gets longer than so many bytes. */
static void limit_files(rlim_t bytes) {
    struct rlimit now;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &now), 0);
    now.rlim_cur = bytes < now.rlim_max ? bytes : now.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &now), 0);
}

/* Files are damaged, gone or cannot be written. Clients are told what is wrong, and not where; the log says where. */
static void test_failures_keep_paths(void **state) {
    (void)state;
    struct err e;
    int number = 1, seq = 1, failures = 0;
    open_all(4);
    const char *log = TEXT("%s/log", folder);
    assert_int_equal(log_open_file(log, &e), ST_OK);
    const char *s = new_session(), *m = new_model(s, 0, ALL_PARTS);
    EXPECT(save(m, seq++, "a"), 200, "weights/a");
    EXPECT(done(post("save_weights_external", TEXT("{\"model_id\":\"%s\",\"seq_id\":%d,\"path\":\"x\"}", m, seq++))),
           200, "size_bytes");
    const struct checkpoint_path name = {TEXT("%s", m), "a", CHECKPOINT_WEIGHTS};
    CLEANUP_FREE char *dir = checkpoint_dir(tinker, checkpoint_find(tinker, &name));
#define HIDDEN(asked, want, words)                                                                            \
    do {                                                                                                      \
        const struct answer hidden_ = (asked);                                                                \
        EXPECT(hidden_, want, words);                                                                         \
        const char *const never[] = {folder, home_dir(), dir, " /", "\"/", "\\\"/", "(/"};                    \
        for (size_t i_ = 0; i_ < ARRAY_LEN(never); i_++)                                                      \
            if (strcmp(never[i_], ".") != 0 && strstr(hidden_.body, never[i_])) fail_msg("%s", hidden_.body); \
        if (logged(log) != ++failures) fail_msg("the log does not say where: %s", hidden_.body);              \
    } while (0)
#define OPEN_AS(optimizer)                                                                                          \
    done(post("load_weights", TEXT("{\"session_id\":\"%s\",\"model_seq_id\":%d,\"path\":\"tinker://%s/weights/a\"," \
                                   "\"optimizer\":%s}",                                                             \
                                   s, number++, m, optimizer)))
    /* a checkpoint whose files are damaged, and then gone */
    make_file(TEXT("%s/optimizer.safetensors", dir));
    HIDDEN(OPEN_AS("true"), 200, "[path]: ");
    make_file(TEXT("%s/adapter_model.safetensors", dir));
    HIDDEN(OPEN_AS("false"), 200, "[path]: ");
    make_file(TEXT("%s/adapter_config.json", dir));
    HIDDEN(OPEN_AS("false"), 200, "[path]: ");
    assert_int_equal(fs_remove(dir, &e), ST_OK);
    HIDDEN(OPEN_AS("false"), 200, "[path]: ");
    EXPECT(post("create_sampling_session",
                TEXT("{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,\"model_path\":\"tinker://%s/weights/a\"}",
                     s, m)),
           200, ":sample:0");
    HIDDEN(done(ASK(0)), 200, "[path]: ");
    HIDDEN(
        post("copy_weights", TEXT("{\"source_path\":\"tinker://%s/weights/a\",\"destination_project_id\":\"p\"}", m)),
        500, "[path]: ");
    HIDDEN(post(TEXT("training_runs/%s/checkpoints/weights/a/publish", m), NULL), 500, "[path]: ");
    HIDDEN(call("PUT", TEXT("training_runs/%s/checkpoints/weights/a/ttl", m), "{\"ttl_seconds\":9999}"), 500,
           "[path]: ");
    /* a disk that takes no more, and a folder that is none */
    signal(SIGXFSZ, SIG_IGN);
    limit_files(1 << 15);
    HIDDEN(save(m, seq++, "b"), 200, "[path]: ");
    limit_files(RLIM_INFINITY);
    make_file(tinker->folder);
    HIDDEN(save(m, seq++, "c"), 200, "[path]");
    /* files of a session */
    s = session_that_samples();
    const char *there = TEXT("%s/sessions/%s", state_dir, s);
    make_folder(TEXT("%s/samplers", there));
    HIDDEN(post("create_sampling_session",
                TEXT("{\"session_id\":\"%s\",\"sampling_session_seq_id\":1,\"base_model\":\"%s\"}", s, tokenizer)),
           503, "[path]: ");
    make_folder(TEXT("%s/asample", there));
    HIDDEN(ASK(1), 503, "[path]: ");
    make_folder(TEXT("%s/session.json", there));
    HIDDEN(call("PUT", TEXT("sessions/%s/project", s), "{\"project_id\":\"p\"}"), 503, "[path]: ");
    make_file(there);
    HIDDEN(done(make_model(s, number++, ALL_PARTS)), 200, "[path]");
    make_file(tinker->session_folder);
    HIDDEN(post("create_session", "{}"), 503, "[path]");
    log_close_file();
    close_all();
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        TEST(test_names),
        TEST(test_long_texts),
        TEST(test_many_sessions),
        TEST(test_links_end),
        TEST(test_saves_that_wait),
        TEST(test_clock_put_back),
        TEST(test_runs_are_listed_once),
        TEST(test_models_that_fail),
        TEST(test_results_that_nobody_fetches),
        TEST(test_bytes_that_wait),
        TEST(test_targets_of_a_large_shape),
        TEST(test_many_targets_of_one_token),
        TEST(test_told_requests_go),
        TEST(test_forgotten_requests),
        TEST(test_failed_samplers_go),
        TEST(test_large_bodies),
        TEST(test_long_json),
        TEST(test_messages_without_paths),
        TEST(test_failures_keep_paths),
    };
    begin_tests(argc, argv);
    return end_tests(cmocka_run_group_tests(tests, NULL, NULL));
}
