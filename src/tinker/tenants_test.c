/* Two keys at one server: what is one's is not there for the other, each has limits of its own, and one's large batches
 * do not keep the other waiting. */
#include "tinker/test_util.h"

/* ---- isolation ----------------------------------------------------------------------------------------------------*/

/* What Ann has. */
struct things {
    const char *session, *model, *sampler, *promise, *path;
};

static struct things make_things(void) {
    struct things a = {.session = new_session()};
    const struct asked_batch b = {.loss = "cross_entropy", .seed = 1, .n = 1};
    a.model = new_model(a.session, 0, ALL_PARTS);
    const struct answer p = train(a.model, 1, &b);
    (void)result_of(&p);
    a.promise = member(&p, "request_id");
    EXPECT(save(a.model, 2, "first"), 200, "weights/first");
    a.path = arena_printf(&memory, "tinker://%s/weights/first", a.model);
    const struct answer s = post("create_sampling_session",
                                 arena_printf(&memory,
                                              "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,\"base_model\":"
                                              "\"%s\"}",
                                              a.session, tokenizer));
    a.sampler = member(&s, "sampling_session_id");
    assert_non_null(a.sampler);
    return a;
}

/* A call by one who does not see the thing has the reply of a thing that is not there, but for the name. */
static void assert_hidden(const char *method, const char *path, const char *body, const char *name) {
    const char *at = strstr(path, name), *in = body ? strstr(body, name) : NULL;
    assert_true(at || in);
    const char *none = arena_printf(&memory, "no%.*s", (int)strlen(name) - 2,
                                    "-such-thing-----------------------------"
                                    "---------------------------------------"
                                    "---------------------------------------");
    const char *other_path =
        at ? arena_printf(&memory, "%.*s%s%s", (int)(at - path), path, none, at + strlen(name)) : path;
    const char *other_body =
        in ? arena_printf(&memory, "%.*s%s%s", (int)(in - body), body, none, in + strlen(name)) : body;
    const struct answer a = call(method, path, body), b = call(method, other_path, other_body);
    CLEANUP_STR struct str want = STR_INIT;
    assert_int_equal(a.status, b.status);
    assert_true(a.status >= 400);
    for (const char *p = b.body; *p;)
        if (strncmp(p, none, strlen(none)) == 0) {
            str_adds(&want, name);
            p += strlen(none);
        } else {
            str_add(&want, p++, 1);
        }
    assert_string_equal(a.body, want.p);
}

static void assert_all_hidden(const struct things *a) {
    const char *of_session = TEXT("{\"session_id\":\"%s\",\"model_seq_id\":5,\"sampling_session_seq_id\":5,"
                                  "\"base_model\":\"%s\",\"path\":\"x\"}",
                                  a->session, tokenizer);
    static const char *const by_session[] = {"session_heartbeat", "create_model", "load_weights",
                                             "create_sampling_session"};
    static const char *const by_model[] = {
        "get_info", "optim_step", "save_weights", "save_weights_for_sampler", "save_weights_external", "load_weights"};
    for (size_t i = 0; i < ARRAY_LEN(by_session); i++) assert_hidden("POST", by_session[i], of_session, a->session);
    for (size_t i = 0; i < ARRAY_LEN(by_model); i++)
        assert_hidden("POST", by_model[i], TEXT("{\"model_id\":\"%s\",\"seq_id\":3,\"path\":\"second\"}", a->model),
                      a->model);
    assert_hidden("POST", TEXT("sessions/%s/finish", a->session), "{\"reason\":{\"type\":\"success\"}}", a->session);
    assert_hidden("GET", TEXT("sessions/%s", a->session), NULL, a->session);
    assert_hidden("GET", TEXT("samplers/%s", a->sampler), NULL, a->sampler);
    assert_hidden("GET", TEXT("training_runs/%s", a->model), NULL, a->model);
    assert_hidden("POST", "retrieve_future", TEXT("{\"request_id\":\"%s\"}", a->promise), a->promise);
    assert_hidden("POST", "weights_info", TEXT("{\"tinker_path\":\"%s\"}", a->path), "first");
    const char *at = TEXT("training_runs/%s/checkpoints/weights/first", a->model);
    assert_hidden("DELETE", at, NULL, "first");
    assert_hidden("POST", TEXT("%s/publish", at), NULL, "first");
    assert_hidden("PUT", TEXT("%s/ttl", at), "{\"ttl_seconds\":null}", "first");
    assert_hidden("PUT", TEXT("sessions/%s/project", a->session), "{\"project_id\":\"mine\"}", a->session);
    assert_hidden("POST", "copy_weights", TEXT("{\"source_path\":\"%s\",\"destination_project_id\":\"p\"}", a->path),
                  "first");
    assert_hidden("POST", "join_sampling_session", TEXT("{\"sampling_session_id\":\"%s\"}", a->sampler), a->sampler);
    assert_hidden("POST", "retrieve_futures", TEXT("{\"target\":{\"sampling_session_id\":\"%s\"}}", a->sampler),
                  a->sampler);
    EXPECT(post("sessions/search", "{}"), 200, "\"sessions\":[]");
    EXPECT(call("GET", "billing/usage/checkpoints/current", NULL), 200, "\"data\":[]");
    assert_hidden("POST", "asample",
                  TEXT("{\"sampling_session_id\":\"%s\",\"seq_id\":1,\"prompt\":{\"chunks\":[{\"type\":\"encoded_"
                       "text\",\"tokens\":[5]}]},\"sampling_params\":{\"max_tokens\":1}}",
                       a->sampler),
                  a->sampler);
    EXPECT(call("GET", TEXT("training_runs/%s/checkpoints", a->model), NULL), 200, "\"total_count\":0");
    EXPECT(call("GET", "training_runs", NULL), 200, "\"total_count\":0");
    EXPECT(call("GET", "checkpoints", NULL), 200, "\"total_count\":0");
    EXPECT(call("GET", "sessions", NULL), 200, "\"sessions\":[]");
}

static void test_others_see_nothing(void **state) {
    (void)state;
    open_with_keys();
    const struct things a = make_things();
    my_key = bob;
    assert_all_hidden(&a);
    my_key = ann;
    EXPECT(call("GET", "training_runs", NULL), 200, a.model);
    EXPECT(post("weights_info", TEXT("{\"tinker_path\":\"%s\"}", a.path)), 200, "lora_rank");
    EXPECT(post("retrieve_future", TEXT("{\"request_id\":\"%s\"}", a.promise)), 200, "loss:sum");
    EXPECT(save(a.model, 3, "third"), 200, "third"); /* number 3 was not used up by the other's calls */
    /* and the next server knows whose they are */
    struct things kept = {strdup(a.session), strdup(a.model), strdup(a.sampler), strdup(a.promise), strdup(a.path)};
    close_all();
    my_key = bob;
    open_all(4);
    EXPECT(done(make_model(new_session(), 0, ALL_PARTS)), 200, "model_id"); /* the store has been read */
    assert_hidden("GET", TEXT("sessions/%s", kept.session), NULL, kept.session);
    assert_hidden("POST", "weights_info", TEXT("{\"tinker_path\":\"%s\"}", kept.path), "first");
    my_key = ann;
    EXPECT(call("GET", TEXT("sessions/%s", kept.session), NULL), 200, kept.model);
    my_key = "tml-eve";
    EXPECT(call("GET", "sessions", NULL), 401, "");
    close_with_keys();
    for (size_t i = 0; i < sizeof kept / sizeof(char *); i++) free(((char **)&kept)[i]);
}

/* A public checkpoint can be read by others and changed by its owner alone. */
static void test_publishing(void **state) {
    (void)state;
    open_with_keys();
    const struct things a = make_things();
    const char *publish = TEXT("training_runs/%s/checkpoints/weights/first/publish", a.model);
    const char *info = TEXT("{\"tinker_path\":\"%s\"}", a.path);
    EXPECT(post(publish, NULL), 200, "{}");
    my_key = bob;
    EXPECT(post("weights_info", info), 200, "lora_rank");
    EXPECT(call("GET", TEXT("training_runs/%s/checkpoints", a.model), NULL), 200, "\"public\":true");
    EXPECT(call("GET", "checkpoints", NULL), 200, "\"total_count\":0");
    EXPECT(call("DELETE", publish, NULL), 404, "there is no checkpoint");
    EXPECT(call("DELETE", TEXT("training_runs/%s/checkpoints/weights/first", a.model), NULL), 404, "");
    EXPECT(done(post("load_weights", TEXT("{\"session_id\":\"%s\",\"model_seq_id\":0,\"path\":\"%s\",\"optimizer\":"
                                          "true}",
                                          new_session(), a.path))),
           200, "load_weights");
    my_key = ann;
    EXPECT(call("DELETE", publish, NULL), 200, "{}");
    my_key = bob;
    EXPECT(post("weights_info", info), 404, "there is no checkpoint");
    close_with_keys();
}

/* ---- quotas -------------------------------------------------------------------------------------------------------*/

static void test_quotas(void **state) {
    (void)state;
    open_with_keys();
    const char *s = new_session();
    const struct asked_batch b = {.loss = "cross_entropy", .seed = 1, .n = 30};
    tinker_options.key_models = 1;
    const char *m = new_model(s, 0, ALL_PARTS);
    EXPECT(done(make_model(s, 1, ALL_PARTS)), 200, "as many as it may have");
    EXPECT(save(m, 1, "first"), 200, "first");
    tinker_options.key_bytes = 1;
    EXPECT(save(m, 2, "second"), 200, "delete some of them");
    EXPECT(call("DELETE", TEXT("training_runs/%s/checkpoints/weights/first", m), NULL), 200, "");
    EXPECT(save(m, 3, "second"), 200, "weights/second");
    /* calls behind the next one wait at the client; the next one is taken on, whatever waits */
    tinker_options.key_tokens = 100;
    EXPECT(train(m, 5, &b), 200, "request_id");
    EXPECT(train(m, 6, &b), 429, "tokens of this key wait");
    const struct answer p = train(m, 4, &b);
    my_key = bob;
    const char *t = new_session(), *n = new_model(t, 0, ALL_PARTS); /* nothing of this is the other key's */
    EXPECT(save(n, 1, "first"), 200, "first");
    EXPECT(train(n, 3, &b), 200, "request_id");
    my_key = ann;
    EXPECT(result_of(&p), 200, "loss:sum");
    /* all places of the server are taken */
    tinker_options.max_models = 2;
    my_key = bob;
    tinker_options.key_models = 16;
    EXPECT(make_model(t, 1, ALL_PARTS), 429, "as many models as it may have");
    tinker_options.max_models = 64;
    tinker_options.key_models = 1;
    EXPECT(done(make_model(t, 2, ALL_PARTS)), 200, "bob.b has 1 models");
    tinker_options.max_models = 2;
    tinker_options.key_models = 16;
    const struct answer m1 = call("GET", "/metrics", NULL);
    EXPECT(m1, 200, "kernelrl_tinker_models{key=\"bob.b\"} 1\n");
    assert_non_null(strstr(m1.body, TEXT("kernelrl_tinker_models{key=\"%.8s\"} 1\n", digest_of(ann, strlen(ann)).hex)));
    assert_null(strstr(m1.body, ann));
    assert_null(strstr(m1.body, bob));
    my_key = ann;
    EXPECT(post(TEXT("sessions/%s/finish", s), "{\"reason\":{\"type\":\"success\"}}"), 200, "{}");
    my_key = bob;
    struct answer later = make_model(t, 1, ALL_PARTS);
    for (const double until = clock_now_s() + 60; later.status == 429 && clock_now_s() < until;) {
        usleep(10000); /* the place becomes free once the model's thread has given it up */
        later = make_model(t, 1, ALL_PARTS);
    }
    EXPECT(result_of(&later), 200, "model_id");
    close_with_keys();
}

/* ---- turns --------------------------------------------------------------------------------------------------------*/

static bool waits(const struct answer *promise) {
    const struct future *f = future_find(tinker, member(promise, "request_id"));
    return f->state == FUTURE_WAITS;
}

/* Ann's four models have as many pieces each as Bob's one, and came first. Keys take turns, and not models: Bob's call
 * waits for one of her pieces in front of each of its own. */
static void test_training_takes_turns(void **state) {
    (void)state;
    open_with_keys();
    const struct asked_batch large = {.loss = "cross_entropy", .seed = 1, .n = 100},
                             his = {.loss = "cross_entropy", .seed = 2, .n = 100};
    const char *s = new_session();
    struct answer p[4];
    const char *m[4];
    for (int i = 0; i < 4; i++) m[i] = new_model(s, i, ALL_PARTS);
    my_key = bob;
    const char *own = new_model(new_session(), 0, ALL_PARTS);
    my_key = ann;
    for (int i = 0; i < 4; i++) p[i] = train(m[i], 1, &large);
    my_key = bob;
    EXPECT(done(train(own, 1, &his)), 200, "loss:sum");
    for (int i = 0; i < 4; i++) assert_true(waits(&p[i]));
    my_key = ann;
    for (int i = 0; i < 4; i++) EXPECT(result_of(&p[i]), 200, "loss:sum");
    close_with_keys();
}

static struct answer ask(const char *sampler, int seq, int samples, int tokens) {
    return post("asample",
                TEXT("{\"sampling_session_id\":\"%s\",\"seq_id\":%d,\"num_samples\":%d,\"prompt\":{\"chunks\":"
                     "[{\"type\":\"encoded_text\",\"tokens\":[5,6,7]}]},\"sampling_params\":{\"max_tokens\":"
                     "%d,\"seed\":3,\"stop\":[]}}",
                     sampler, seq, samples, tokens));
}

/* Ann has asked for some hundred samples, one request of them being larger than a batch. Bob's sample finds a place. */
static void test_sampling_takes_turns(void **state) {
    (void)state;
    open_with_keys();
    struct answer s = post(
        "create_sampling_session",
        TEXT("{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,\"base_model\":\"%s\"}", new_session(), tokenizer));
    const char *hers = member(&s, "sampling_session_id");
    my_key = bob;
    s = post(
        "create_sampling_session",
        TEXT("{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,\"base_model\":\"%s\"}", new_session(), tokenizer));
    const char *his = member(&s, "sampling_session_id");
    my_key = ann;
    struct answer p[20];
    for (int i = 0; i < 20; i++) p[i] = ask(hers, i, i == 0 ? 21 : 5, 200);
    my_key = bob;
    EXPECT(done(ask(his, 0, 1, 3)), 200, "");
    for (int i = 0; i < 20; i++) assert_true(waits(&p[i]));
    my_key = ann;
    /* parts of a request give what it gives in one piece */
    const struct answer a = result_of(&p[0]);
    struct wire_sample parts, whole;
    struct err e = {0};
    assert_int_equal(wire_read_sample(a.body, a.n, &memory, &parts, &e), ST_OK);
    assert_int_equal(parts.n, 21);
    for (int i = 1; i < 20; i++)
        EXPECT(post("cancel_future", TEXT("{\"request_id\":\"%s\"}", member(&p[i], "request_id"))), 200, "");
    tinker_options.n_keys = 1;
    const struct answer b = done(ask(hers, 100, 21, 200));
    assert_int_equal(wire_read_sample(b.body, b.n, &memory, &whole, &e), ST_OK);
    for (int i = 0; i < 21; i++) {
        assert_int_equal(parts.sequence[i].n, 200);
        assert_memory_equal(parts.sequence[i].ids, whole.sequence[i].ids, 200 * sizeof(int32_t));
        assert_memory_equal(parts.sequence[i].logp, whole.sequence[i].logp, 200 * sizeof(float));
    }
    assert_int_equal(tinker->inside, 0);
    for (const struct tinker_tenant *t = tinker->tenants; t; t = t->next) assert_int_equal(t->tokens + t->sequences, 0);
    close_with_keys();
}

/* The same with the other API: a request waits for a place, and not for what the other one asked for before. */
static void test_apis_take_turns(void **state) {
    (void)state;
    enum { MANY = 30 };
    const char *completion =
        TEXT("{\"model\":\"%s\",\"prompt\":[5,6,7],\"max_tokens\":%%d,\"n\":8,\"ignore_eos\":true}", tokenizer);
    open_all(4); /* without keys: one tenant, who may have all places */
    const struct answer s = post(
        "create_sampling_session",
        TEXT("{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,\"base_model\":\"%s\"}", new_session(), tokenizer));
    const char *sampler = member(&s, "sampling_session_id");
    struct answer p[MANY];
    for (int i = 0; i < MANY; i++) p[i] = ask(sampler, i, 8, 60);
    EXPECT(post("/v1/completions", TEXT(completion, 3)), 200, "choices");
    for (int i = MANY / 2; i < MANY; i++) assert_true(waits(&p[i]));
    for (int i = 0; i < MANY; i++)
        EXPECT(post("cancel_future", TEXT("{\"request_id\":\"%s\"}", member(&p[i], "request_id"))), 200, "");
    int fd[MANY];
    const char *long_one = TEXT(completion, 60);
    for (int i = 0; i < MANY; i++) {
        fd[i] = join();
        send_all(fd[i], "POST", "/v1/completions", JSON_HEADER, long_one, strlen(long_one));
    }
    EXPECT(done(ask(sampler, MANY, 1, 3)), 200, "");
    char byte;
    for (int i = MANY / 2; i < MANY; i++) assert_int_equal(recv(fd[i], &byte, 1, MSG_PEEK), -1); /* none is answered */
    for (int i = 0; i < MANY; i++) close(fd[i]);
    close_all();
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        TEST(test_others_see_nothing),   TEST(test_publishing),           TEST(test_quotas),
        TEST(test_training_takes_turns), TEST(test_sampling_takes_turns), TEST(test_apis_take_turns),
    };
    begin_tests(argc, argv);
    return end_tests(cmocka_run_group_tests(tests, NULL, NULL));
}
