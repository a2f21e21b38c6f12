/* The Tinker front end in one process, over socket pairs, with a small model of random weights: the contract of
 * ordering and exactly-once, bits that training and sampling share, gradients as the wire shows them, failures, and
 * sessions that end. The official client speaks to it in tests/clients/tinker.sh. */
#include "tinker/test_util.h"

#include <math.h>
#include <zstd.h>

#include "io/safetensors.h"

/* ---- tests --------------------------------------------------------------------------------------------------------*/

static void test_start_up(void **state) {
    (void)state;
    open_all(4);
    EXPECT(post("client/config", "{\"sdk_version\":\"0.38.0\"}"), 200, "\"proto_write_fwdbwd\":true");
    EXPECT(post("client/dynamic_config", "{\"sdk_version\":\"0.38.0\"}"), 200, "\"sample_cancel_enabled\":true");
    EXPECT(call("GET", "healthz", NULL), 200, "ok");
    EXPECT(call("GET", "get_server_capabilities", NULL), 200, "\"max_context_length\":512,\"trainable\":true");
    EXPECT(post("telemetry", "{\"events\":[]}"), 200, "accepted");
    EXPECT(post("nonsense", "{}"), 404, "does not have this call");
    EXPECT(call("GET", "nonsense", NULL), 404, "does not have this call");
    EXPECT(post("create_session", "[]"), 422, "object");
    EXPECT(post("create_session", "{"), 400, "body");
    const char *s = new_session();
    EXPECT(post("session_heartbeat", arena_printf(&memory, "{\"session_id\":\"%s\"}", s)), 200, "session_heartbeat");
    EXPECT(post("session_heartbeat", "{\"session_id\":\"x\"}"), 403, "no session");
    EXPECT(post("retrieve_future", "{\"request_id\":\"x\"}"), 410, "no result");
    EXPECT(done(make_model(s, 0, ALL_PARTS)), 200, arena_printf(&memory, "%s:train:0", s));
    EXPECT(post("get_info", arena_printf(&memory, "{\"model_id\":\"%s:train:0\"}", s)), 200, "\"lora_rank\":4");
    EXPECT(post("get_info", "{\"model_id\":\"x\"}"), 404, "no model");
    EXPECT(call("GET", arena_printf(&memory, "sessions/%s", s), NULL), 200, ":train:0");
    EXPECT(call("GET", "sessions?limit=5", NULL), 200, s);
    /* a resent call is the same one; another one may not have its number */
    const struct answer a = make_model(s, 0, ALL_PARTS);
    EXPECT(result_of(&a), 200, "create_model");
    EXPECT(make_model(s, 0, "{\"rank\":8}"), 400, "used for another call");
    EXPECT(done(make_model(s, 1, "{\"rank\":0}")), 200, "\"category\":\"user\"");
    EXPECT(done(make_model(s, 2, "{\"train_mlp\":false,\"train_attn\":false,\"train_unembed\":false}")), 200, "train_");
    EXPECT(done(post("create_model",
                     arena_printf(&memory, "{\"session_id\":\"%s\",\"model_seq_id\":3,\"base_model\":\"a/b\"}", s))),
           200, "another base model");
    EXPECT(done(post("create_model", arena_printf(&memory,
                                                  "{\"session_id\":\"%s\",\"model_seq_id\":4,\"base_model\":\"%s\","
                                                  "\"optimizer_config\":{\"type\":\"dimuon\",\"version\":1}}",
                                                  s, tokenizer))),
           200, "dimuon");
    close_all();
}

/* A reference run of calls in order, and the same calls sent as networks do. */
static void order_of_calls(const char *model, int variant) {
    const struct asked_batch one = {.loss = "cross_entropy", .seed = 1, .n = 3},
                             two = {"importance_sampling", 2, 4, .shift = 0.2f};
    struct answer p[6];
    switch (variant) {
    case 0: /* one after the other */
        EXPECT(done(train(model, 1, &one)), 200, "loss:sum");
        EXPECT(done(train(model, 2, &two)), 200, "loss:sum");
        EXPECT(done(optim(model, 3, USUAL)), 200, "grad_norm");
        EXPECT(done(train(model, 4, &two)), 200, "loss:sum");
        EXPECT(done(optim(model, 5, USUAL)), 200, "\"step\":2");
        return;
    case 1: /* the last first */
        p[5] = optim(model, 5, USUAL);
        p[4] = train(model, 4, &two);
        p[3] = optim(model, 3, USUAL);
        p[2] = train(model, 2, &two);
        p[1] = train(model, 1, &one);
        break;
    default: /* each several times, also when it is over */
        for (int round = 0; round < 3; round++) {
            p[2] = train(model, 2, &two);
            p[1] = train(model, 1, &one);
            if (round > 0) EXPECT(result_of(&p[2]), 200, "loss:sum");
            p[3] = optim(model, 3, USUAL);
            p[5] = optim(model, 5, USUAL);
            p[4] = train(model, 4, &two);
        }
        EXPECT(optim(model, 3, "\"learning_rate\":0.5"), 400, "used for another call");
        break;
    }
    for (int i = 1; i <= 5; i++) EXPECT(result_of(&p[i]), 200, i == 3 || i == 5 ? "grad_norm" : "loss:sum");
}

static void test_order_and_once(void **state) {
    (void)state;
    open_all(2); /* and so one of the models rests when another one is trained */
    const char *s = new_session();
    struct wire_output want = {0};
    for (int i = 0; i < 3; i++) {
        const char *m = new_model(s, i, ALL_PARTS);
        order_of_calls(m, i);
        const struct wire_output got = look(m, 6);
        if (i == 0)
            want = got;
        else
            assert_same(&want, &got);
    }
    /* no call may be far ahead, or have no number */
    const char *m = new_model(s, 3, ALL_PARTS);
    EXPECT(optim(m, 5000, USUAL), 400, "seq_id 5000");
    EXPECT(optim(m, 0, USUAL), 400, "seq_id");
    EXPECT(optim("x:train:0", 1, USUAL), 404, "no model");
    EXPECT(post("optim_step", "{\"seq_id\":1}"), 400, "model_id");
    close_all();
}

/* A call that fails uses its number up and leaves the gradients as they were. */
static void test_failures_leave_gradients(void **state) {
    (void)state;
    open_all(4);
    const char *s = new_session();
    const struct asked_batch fine = {"importance_sampling", 2, 4, .shift = 0.2f},
                             bad = {"importance_sampling", 5, 5, .shift = 0.1f, .spoiled = true},
                             unknown = {.loss = "nope", .seed = 2, .n = 1},
                             stable = {.loss = "stable_reinforce", .seed = 2, .n = 1},
                             custom = {.loss = "custom", .seed = 2, .n = 1};
    struct wire_output want = {0};
    for (int i = 0; i < 2; i++) {
        const char *m = new_model(s, i, ALL_PARTS);
        int seq = 1;
        if (i == 1) EXPECT(done(train(m, seq++, &bad)), 200, "not finite");
        EXPECT(done(train(m, seq++, &fine)), 200, "loss:sum");
        if (i == 1) {
            EXPECT(done(train(m, seq++, &bad)), 200, "\"category\":\"user\"");
            EXPECT(done(train(m, seq++, &unknown)), 200, "unknown loss function 'nope'");
            EXPECT(done(train(m, seq++, &stable)), 200, "importance_sampling");
            EXPECT(done(train(m, seq++, &custom)), 200, "forward_backward_custom");
            EXPECT(done(optim(m, seq++, "\"beta1\":1.5")), 200, "beta1");
            /* a body that ends too early, but for model and number */
            CLEANUP_STR struct str cut = training_body(m, seq++, &fine);
            const int fd = join();
            send_all(fd, "POST", "forward_backward", PROTO_HEADER, cut.p, cut.len - 3);
            EXPECT(done(take_all(fd)), 200, "leads out of the message");
        }
        EXPECT(done(optim(m, seq++, USUAL)), 200, "\"step\":1");
        const struct wire_output got = look(m, seq);
        if (i == 0)
            want = got;
        else
            assert_same(&want, &got);
    }
    const int fd = join();
    send_all(fd, "POST", "forward_backward", PROTO_HEADER, "\x12\x01", 2);
    EXPECT(take_all(fd), 400, "leads out");
    const int packed = join();
    send_all(packed, "POST", "forward_backward", PROTO_HEADER "Content-Encoding: gzip\r\n", "x", 1);
    EXPECT(take_all(packed), 415, "zstd");
    close_all();
}

/* forward changes nothing; packed bodies are the same calls. */
static void test_forward_and_zstd(void **state) {
    (void)state;
    open_all(4);
    const char *s = new_session();
    const char *a = new_model(s, 0, ALL_PARTS), *b = new_model(s, 1, ALL_PARTS);
    const struct asked_batch soft = {"cross_entropy", 3, 2, .soft = 3},
                             soft_forward = {"cross_entropy", 3, 2, .soft = 3, .forward = true};
    const struct wire_output trained = read_output(done(train(a, 1, &soft)));
    assert_true(trained.n == 2 && trained.datum[0].width == 3 && trained.datum[0].rows == N);
    const struct wire_output seen = read_output(done(train(b, 1, &soft_forward)));
    assert_same(&trained, &seen);
    assert_true(fabs(loss_in(&trained) - loss_in(&seen)) < 1e-9);
    CLEANUP_STR struct str body = training_body(b, 2, &soft);
    char packed[4096];
    const size_t n = ZSTD_compress(packed, sizeof packed, body.p, body.len, 3);
    const int fd = join();
    send_all(fd, "POST", "forward_backward", PROTO_HEADER "Content-Encoding: zstd\r\n", packed, n);
    const struct wire_output again = read_output(done(take_all(fd)));
    assert_same(&trained, &again);
    EXPECT(done(optim(a, 2, USUAL)), 200, "grad_norm");
    EXPECT(done(optim(b, 3, USUAL)), 200, "grad_norm");
    const struct wire_output after_a = look(a, 3), after_b = look(b, 4);
    assert_same(&after_a, &after_b);
    close_all();
}

/* A step with an eps far above any gradient is one along the gradient: learning_rate / eps times it. So the loss must
 * fall by that times the square of the gradient's norm, which optim_step says. */
static void test_gradients_through_the_wire(void **state) {
    (void)state;
    static const char *const losses[] = {"cross_entropy", "importance_sampling", "ppo", "cispo", "dro"};
    static const char *const parts[] = {ALL_PARTS,
                                        "{\"rank\":4,\"seed\":7,\"train_mlp\":false,\"train_unembed\":false}",
                                        "{\"rank\":4,\"seed\":7,\"train_attn\":false,\"train_unembed\":false}",
                                        "{\"rank\":4,\"seed\":7,\"train_mlp\":false,\"train_attn\":false}"};
    /* targets a row, with each part; the last ones are more than are computed at a time */
    static const int soft[ARRAY_LEN(parts)] = {0, 2, 3 * DATUM_MAX_TARGETS + 7, DATUM_MAX_TARGETS + 1};
    open_all(4);
    const char *s = new_session();
    int number = 0;
    for (size_t k = 0; k < ARRAY_LEN(losses); k++)
        for (size_t p = 0; p < (k == 0 ? ARRAY_LEN(parts) : 1); p++) {
            const char *m = new_model(s, number++, parts[p]);
            /* ratios inside of ppo's clip; cispo's carry no gradient, so its value is compared near one point */
            const struct asked_batch b = {losses[k], 4, 3, .soft = k == 0 ? soft[p] : 0, .shift = 0.01f};
            const struct wire_output before = read_output(done(train(m, 1, &b)));
            CLEANUP_JSON json_t *j = NULL;
            const struct answer a = done(optim(m, 2, "\"learning_rate\":1e4,\"beta1\":0,\"beta2\":0,\"eps\":1e8"));
            j = json_loadb(a.body, a.n, 0, NULL);
            const double norm = json_number_value(json_object_get(json_object_get(j, "metrics"), "grad_norm"));
            assert_true(norm > 0.01);
            const struct wire_output after = read_output(done(train(m, 3, &b)));
            const double fall = loss_in(&before) - loss_in(&after), want = 1e-4 * norm * norm;
            if (strcmp(losses[k], "cispo") != 0 && fabs(fall - want) > 0.05 * want + 2e-6)
                fail_msg("%s, %s: the loss fell by %g, expected %g", losses[k], parts[p], fall, want);
        }
    close_all();
}

/* Names of the tensors of a saved checkpoint, in one text; *moved: how many B are not zero. */
static const char *saved_tensors(int *moved) {
    CLEANUP_STR struct str names = STR_INIT;
    CLEANUP_FREE char *dir = fs_join(state_dir, "checkpoints");
    char **list;
    size_t n;
    struct err e;
    *moved = 0;
    assert_int_equal(fs_list(dir, &list, &n, &e), ST_OK);
    assert_int_equal(n, 1);
    CLEANUP_FREE char *one = fs_join(dir, list[0]), *file = fs_join(one, "adapter_model.safetensors");
    struct st_file f;
    if (st_open(file, &f, &e) != ST_OK) fail_msg("%s", e.msg);
    for (size_t i = 0; i < f.count; i++) {
        int64_t cells = 1;
        for (int d = 0; d < f.tensor[i].nd; d++) cells *= f.tensor[i].dim[d];
        CLEANUP_FREE float *w = xmalloc((size_t)cells * sizeof *w);
        assert_int_equal(st_read_f32(&f.tensor[i], w, &e), ST_OK);
        bool zero = true;
        for (int64_t k = 0; k < cells; k++) zero &= w[k] == 0;
        str_addf(&names, "%s%s ", zero ? "zero:" : "", f.tensor[i].name);
        *moved += !zero && strstr(f.tensor[i].name, "lora_B") != NULL;
    }
    st_close(&f);
    free(list[0]);
    free(list);
    return arena_strdup(&memory, str_c(&names));
}

static void test_parts_that_are_trained(void **state) {
    (void)state;
    static const struct {
        const char *lora, *there, *absent[2];
        int moved;
    } cases[] = {
        {"{\"rank\":2,\"train_mlp\":false,\"train_unembed\":false}", "self_attn.o_proj", {"mlp", "lm_head"}, 8},
        {"{\"rank\":2,\"train_attn\":false,\"train_unembed\":false}", "mlp.down_proj", {"self_attn", "lm_head"}, 6},
        {"{\"rank\":2,\"train_attn\":false,\"train_mlp\":false}", "lm_head", {"self_attn", "mlp"}, 1},
        {"{\"rank\":2}", "lm_head", {"norm", "embed"}, 15},
    };
    open_all(4);
    const char *s = new_session();
    for (int i = 0; i < (int)ARRAY_LEN(cases); i++) {
        const struct asked_batch b = {.loss = "cross_entropy", .seed = 1, .n = 3};
        const char *m = new_model(s, i, cases[i].lora);
        int moved;
        EXPECT(done(train(m, 1, &b)), 200, "loss:sum");
        EXPECT(done(optim(m, 2, USUAL)), 200, "grad_norm");
        EXPECT(done(post("save_weights_for_sampler",
                         arena_printf(&memory, "{\"model_id\":\"%s\",\"seq_id\":3,\"path\":\"x\"}", m))),
               200, "/sampler_weights/x");
        const char *names = saved_tensors(&moved);
        assert_non_null(strstr(names, cases[i].there));
        for (int k = 0; k < 2; k++)
            if (strstr(names, cases[i].absent[k])) fail_msg("%s: %s", cases[i].lora, names);
        if (moved != cases[i].moved) fail_msg("%s: %d moved of %s", cases[i].lora, moved, names);
        EXPECT(call("DELETE", arena_printf(&memory, "training_runs/%s/checkpoints/sampler_weights/x", m), NULL), 200,
               "");
    }
    close_all();
}

/* Log-probabilities of a text by forward, of its tokens behind the first. */
static const float *forward_of(const char *model, int seq, const int32_t *ids, int n) {
    CLEANUP_STR struct str s = STR_INIT, datum = STR_INIT, chunk = STR_INIT, encoded = STR_INIT;
    int64_t targets[64];
    float weights[64];
    for (int i = 0; i + 1 < n; i++) {
        targets[i] = ids[i + 1];
        weights[i] = 1;
    }
    proto_put_bytes(&encoded, 1, ids, (size_t)(n - 1) * sizeof *ids);
    proto_put_bytes(&chunk, 1, encoded.p, encoded.len);
    proto_put_bytes(&datum, 1, chunk.p, chunk.len);
    put_tensor(&datum, "target_tokens", 2, targets, (size_t)(n - 1) * 8, 0, n - 1);
    put_tensor(&datum, "weights", 1, weights, (size_t)(n - 1) * 4, 0, n - 1);
    proto_put_text(&s, 1, model);
    proto_put_varint(&s, 2, (uint64_t)seq);
    proto_put_bytes(&s, 3, datum.p, datum.len);
    proto_put_text(&s, 4, "cross_entropy");
    proto_put_varint(&s, 6, 1);
    const int fd = join();
    send_all(fd, "POST", "forward_backward", PROTO_HEADER, s.p, s.len);
    return read_output(done(take_all(fd))).datum[0].logp;
}

static void test_sampler_and_trainer_agree(void **state) {
    (void)state;
    open_all(4);
    const char *s = new_session(), *m = new_model(s, 0, ALL_PARTS);
    const struct asked_batch b = {.loss = "cross_entropy", .seed = 1, .n = 3};
    int seq = 1;
    for (int round = 0; round < 3; round++) {
        EXPECT(done(train(m, seq++, &b)), 200, "loss:sum");
        EXPECT(done(optim(m, seq++, USUAL)), 200, "grad_norm");
        const struct answer saved =
            done(post("save_weights_for_sampler",
                      arena_printf(&memory, "{\"model_id\":\"%s\",\"seq_id\":%d,\"sampling_session_seq_id\":%d}", m,
                                   seq++, round)));
        const char *sampler = member(&saved, "sampling_session_id");
        assert_non_null(sampler);
        /* the model goes on; its sampler is a snapshot */
        int32_t ids[64];
        for (int i = 0; i < SIDE; i++) ids[i] = token(1, 0, i);
        const struct wire_sample w =
            sample(sampler, 0, "\"num_samples\":3,\"sampling_params\":{\"max_tokens\":12,\"seed\":5,\"stop\":[]}");
        assert_int_equal(w.n, 3);
        assert_true(memcmp(w.sequence[0].ids, w.sequence[1].ids, 12 * sizeof(int32_t)) != 0);
        for (int k = 0; k < 3; k++) {
            const struct wire_sequence *q = &w.sequence[k];
            assert_true(q->n == 12 && q->by_length);
            memcpy(ids + SIDE, q->ids, 12 * sizeof *ids);
            const float *f = forward_of(m, seq++, ids, SIDE + 12);
            assert_memory_equal(f + SIDE - 1, q->logp, 12 * sizeof *f);
            if (k > 0) continue;
            const struct wire_sample p =
                sample(sampler, 1,
                       "\"sampling_params\":{\"max_tokens\":1},\"prompt_logprobs\":true,\"topk_prompt_logprobs\":2,"
                       "\"target_prompt_logprobs\":{\"data\":[1,-1,2,-1,7],\"dtype\":\"int64\",\"shape\":[5,1]}");
            assert_true(p.n_prompt == SIDE && isnan(p.prompt_logp[0]));
            assert_memory_equal(f, p.prompt_logp + 1, (SIDE - 1) * sizeof *f);
            assert_true(p.top.k == 2 && p.top.length == SIDE && p.top.logp[0] == WIRE_NO_LOGP && p.top.ids[0] == 0);
            assert_true(p.top.logp[2] >= p.top.logp[3] && p.target->dim[0] == 5 && isnan(p.target->f[1]));
            assert_true(p.target->f[0] < 0 && p.target->f[4] < 0);
        }
        /* another temperature: of the tempered distribution */
        const struct wire_sample hot = sample(
            sampler, 2, "\"sampling_params\":{\"max_tokens\":4,\"seed\":5,\"temperature\":3,\"top_k\":5,\"stop\":[]}");
        memcpy(ids + SIDE, hot.sequence[0].ids, 4 * sizeof *ids);
        const float *cold = forward_of(m, seq++, ids, SIDE + 4);
        for (int i = 0; i < 4; i++) assert_true(cold[SIDE - 1 + i] != hot.sequence[0].logp[i]);
    }
    close_all();
}

static void test_sampling_answers(void **state) {
    (void)state;
    open_all(4);
    const char *s = new_session();
    const char *body = arena_printf(
        &memory, "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,\"base_model\":\"%s\"}", s, tokenizer);
    EXPECT(post("create_sampling_session", body), 200, ":sample:0");
    EXPECT(post("create_sampling_session", body), 200, ":sample:0");
    EXPECT(post("create_sampling_session",
                arena_printf(&memory, "{\"session_id\":\"%s\",\"sampling_session_seq_id\":1,\"base_model\":\"x\"}", s)),
           404, "x");
    EXPECT(
        post("create_sampling_session",
             arena_printf(&memory,
                          "{\"session_id\":\"%s\",\"sampling_session_seq_id\":1,\"model_path\":\"tinker://x/y\"}", s)),
        404, "tinker://");
    const char *m = arena_printf(&memory, "%s:sample:0", s);
    EXPECT(call("GET", arena_printf(&memory, "samplers/%s", m), NULL), 200, "base_model");
    EXPECT(call("GET", "samplers/x", NULL), 404, "no sampler");
    /* the same call is the same promise, and has one result */
    const struct wire_sample a = sample(m, 7, "\"sampling_params\":{\"max_tokens\":5}"),
                             b = sample(m, 7, "\"sampling_params\":{\"max_tokens\":5}");
    assert_memory_equal(a.sequence[0].ids, b.sequence[0].ids, (size_t)a.sequence[0].n * sizeof(int32_t));
    /* a stop token is part of the answer; without one, and without the end of text, length ends it */
    const struct wire_sample all = sample(m, 8, "\"sampling_params\":{\"max_tokens\":20,\"seed\":1,\"stop\":[]}");
    assert_true(all.sequence[0].n == 20 && all.sequence[0].by_length);
    const struct wire_sample stopped =
        sample(m, 9,
               arena_printf(&memory, "\"sampling_params\":{\"max_tokens\":20,\"seed\":1,\"stop\":[%d]}",
                            all.sequence[0].ids[4]));
    assert_true(!stopped.sequence[0].by_length && stopped.sequence[0].n <= 5);
    assert_int_equal(stopped.sequence[0].ids[stopped.sequence[0].n - 1], all.sequence[0].ids[4]);
#define ASK(seq, more)                                                                                          \
    post("asample", arena_printf(&memory,                                                                       \
                                 "{\"sampling_session_id\":\"%s\",\"seq_id\":" seq ",\"prompt\":{\"chunks\":[{" \
                                 "\"tokens\":[5,6]}]},%s}",                                                     \
                                 m, more))
    /* what is cancelled fails; what is over, or was never there, stays as it is */
    const struct answer long_one =
        ASK("30", "\"num_samples\":1000,\"sampling_params\":{\"max_tokens\":400,\"stop\":[]}");
    const char *cancel = arena_printf(&memory, "{\"request_id\":\"%s\"}", member(&long_one, "request_id"));
    EXPECT(post("cancel_future", cancel), 200, "{}");
    EXPECT(result_of(&long_one), 200, "cancelled");
    EXPECT(post("cancel_future", cancel), 200, "{}");
    EXPECT(post("cancel_future", "{\"request_id\":\"x\"}"), 200, "{}");
    EXPECT(post("cancel_future", "{}"), 422, "request_id");
    EXPECT(done(ASK("20", "\"sampling_params\":{\"max_tokens\":600}")), 200, "context window");
    EXPECT(done(ASK("21", "\"prompt_alt_tokens_k\":2")), 200, "prompt_alt_tokens_k is not supported");
    EXPECT(ASK("22", "\"num_samples\":0"), 422, "num_samples");
    EXPECT(ASK("23", "\"sampling_params\":{\"temperature\":-1}"), 422, "temperature");
    EXPECT(ASK("24", "\"sampling_params\":{\"stop\":[1.5]}"), 422, "stop");
    EXPECT(ASK("7", "\"num_samples\":2"), 400, "used for another call");
    EXPECT(post("asample", "{\"sampling_session_id\":\"x\",\"seq_id\":0,\"prompt\":{\"chunks\":[{\"tokens\":[5]}]}}"),
           404, "no sampling session");
    EXPECT(post("asample", "{\"seq_id\":0,\"base_model\":\"x\"}"), 422, "old clients");
    close_all();
}

/* A checkpoint restores training: a model that goes on from it has the bits of one that was never interrupted. */
/* Beyond their bound, results go that were fetched, the oldest first; while too many wait to be fetched, no call is
 * taken on. */
static void test_results_are_bounded(void **state) {
    (void)state;
    max_results = 2500;
    open_all(4);
    const char *s = new_session();
    EXPECT(post("create_sampling_session",
                arena_printf(&memory, "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,\"base_model\":\"%s\"}", s,
                             tokenizer)),
           200, ":sample:0");
    const char *m = arena_printf(&memory, "%s:sample:0", s);
    struct answer promise[4];
    int taken = 0;
    for (int i = 0; i < 4; i++) { /* some 1,600 bytes each */
        const double from = clock_now_s();
        promise[i] =
            post("asample",
                 arena_printf(&memory,
                              "{\"sampling_session_id\":\"%s\",\"seq_id\":%d,\"num_samples\":4,\"prompt\":{"
                              "\"chunks\":[{\"tokens\":[5,6]}]},\"sampling_params\":{\"max_tokens\":50,\"seed\":1,"
                              "\"stop\":[]}}",
                              m, i));
        taken += promise[i].status == 200;
        if (i < 2) assert_int_equal(promise[i].status, 200);
        while (i < 2 && tinker->tenants->kept.unread < 1600 * (i + 1) && clock_now_s() - from < 60) turn(1);
    }
    assert_int_equal(taken, 2);
    EXPECT(promise[2], 429, "wait to be fetched");
    EXPECT(promise[3], 429, "wait to be fetched");
    const struct answer first = result_of(&promise[0]);
    EXPECT(result_of(&promise[1]), 200, "");
    EXPECT(result_of(&promise[0]), 200, "");
    assert_memory_equal(result_of(&promise[0]).body, first.body, first.n);
    futures_trim(tinker, tinker_now_s());
    EXPECT(result_of(&promise[1]), 410,
           "no result"); /* that one was fetched longest ago, and one alone is few enough */
    EXPECT(result_of(&promise[0]), 200, "");
    close_all();
    max_results = 0;
}

static void test_checkpoints(void **state) {
    (void)state;
    open_all(4);
    const char *s = new_session(), *m = new_model(s, 0, ALL_PARTS);
    const struct asked_batch b = {.loss = "cross_entropy", .seed = 1, .n = 3}, c = {"ppo", 6, 2, .shift = 0.1f};
    EXPECT(done(train(m, 1, &b)), 200, "loss:sum");
    EXPECT(done(optim(m, 2, USUAL)), 200, "grad_norm");
    const char *save =
        arena_printf(&memory, "{\"model_id\":\"%s\",\"seq_id\":3,\"path\":\"s1\",\"ttl_seconds\":3600}", m);
    EXPECT(done(post("save_weights", save)), 200, "/weights/s1");
    EXPECT(done(post("save_weights", arena_printf(&memory, "{\"model_id\":\"%s\",\"seq_id\":4,\"path\":\"s1\"}", m))),
           200, "already");
    EXPECT(
        done(post("save_weights", arena_printf(&memory, "{\"model_id\":\"%s\",\"seq_id\":5,\"path\":\"../s1\"}", m))),
        200, "name");
    EXPECT(done(train(m, 6, &c)), 200, "loss:sum");
    EXPECT(done(optim(m, 7, USUAL)), 200, "\"step\":2");
    const struct wire_output before = look(m, 8);
    float want[3][N];
    for (int i = 0; i < 3; i++) memcpy(want[i], before.datum[i].logp, sizeof want[i]);
    EXPECT(call("GET", "checkpoints", NULL), 200, "\"total_count\":1");
    EXPECT(call("GET", arena_printf(&memory, "training_runs/%s/checkpoints", m), NULL), 200, "weights/s1");
    EXPECT(call("GET", arena_printf(&memory, "training_runs/%s", m), NULL), 200, "expires_at");
    EXPECT(post("weights_info", arena_printf(&memory, "{\"tinker_path\":\"tinker://%s/weights/s1\"}", m)), 200,
           "\"lora_rank\":4");
    EXPECT(
        call("PUT", arena_printf(&memory, "training_runs/%s/checkpoints/weights/s1/ttl", m), "{\"ttl_seconds\":null}"),
        200, "");
    /* the server ends; a new one knows the checkpoint and nothing else */
    const char *path = strdup(m);
    close_all();
    open_all(4);
    s = new_session();
    const char *load = arena_printf(&memory,
                                    "{\"session_id\":\"%s\",\"model_seq_id\":0,\"path\":\"tinker://%s/weights/s1\","
                                    "\"optimizer\":true}",
                                    s, path);
    const struct answer loaded = done(post("load_weights", load));
    EXPECT(loaded, 200, ":train:0");
    m = member(&loaded, "model_id");
    EXPECT(done(train(m, 1, &c)), 200, "loss:sum");
    EXPECT(done(optim(m, 2, USUAL)), 200, "\"step\":2");
    const struct wire_output got = look(m, 3);
    for (int i = 0; i < 3; i++) assert_memory_equal(want[i], got.datum[i].logp, sizeof want[i]);
    /* what there is not; a sampler of a checkpoint is asked while it is read */
    EXPECT(post("load_weights", "{\"session_id\":\"x\",\"model_seq_id\":0,\"path\":\"tinker://a/weights/b\"}"), 403,
           "x");
    EXPECT(done(post("load_weights", arena_printf(&memory,
                                                  "{\"session_id\":\"%s\",\"model_seq_id\":1,\"path\":\"tinker://%s/"
                                                  "weights/no\",\"optimizer\":true}",
                                                  s, path))),
           200, "there is no checkpoint");
    EXPECT(post("create_sampling_session", arena_printf(&memory,
                                                        "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,"
                                                        "\"model_path\":\"tinker://%s/weights/s1\"}",
                                                        s, path)),
           200, ":sample:0");
    assert_int_equal(sample(arena_printf(&memory, "%s:sample:0", s), 0,
                            "\"num_samples\":2,\"sampling_params\":{"
                            "\"max_tokens\":2,\"stop\":[]}")
                         .n,
                     2);
    /* into a model that is there */
    EXPECT(
        done(post("load_weights", arena_printf(&memory,
                                               "{\"model_id\":\"%s\",\"seq_id\":4,\"path\":\"tinker://%s/weights/s1\","
                                               "\"optimizer\":true}",
                                               m, path))),
        200, "load_weights");
    EXPECT(done(train(m, 5, &c)), 200, "loss:sum");
    EXPECT(done(optim(m, 6, USUAL)), 200, "\"step\":2");
    const struct wire_output third = look(m, 7);
    assert_same(&got, &third);
    /* files for other programs */
    const struct answer external = done(
        post("save_weights_external", arena_printf(&memory, "{\"model_id\":\"%s\",\"seq_id\":8,\"path\":\"x\"}", m)));
    EXPECT(external, 200, "size_bytes");
    const struct answer urls = call(
        "GET", arena_printf(&memory, "training_runs/%s/checkpoints/external_weights/x/external_weights_urls", m), NULL);
    const char *url = strstr(urls.body, "/api/v1/files/");
    assert_non_null(url);
    EXPECT(call("GET", arena_strndup(&memory, url + 8, strcspn(url + 8, "\"")), NULL), 200, "lora_alpha");
    EXPECT(call("GET", "files/x/adapter_config.json", NULL), 404, "no such file");
    EXPECT(
        done(post("save_weights_external",
                  arena_printf(
                      &memory,
                      "{\"model_id\":\"%s\",\"seq_id\":9,\"path\":\"y\",\"age_encryption_recipients\":[\"a\"]}", m))),
        200, "age");
    for (int i = 0; i < 2; i++)
        EXPECT(call("DELETE", arena_printf(&memory, "training_runs/%s/checkpoints/weights/s1", path), NULL),
               i ? 404 : 200, "");
    EXPECT(call("DELETE", arena_printf(&memory, "training_runs/%s/checkpoints/external_weights/x", m), NULL), 200, "");
    free((char *)(uintptr_t)path);
    close_all();
}

/* Sessions that end, in the middle of everything, and a server that does. */
static void test_ends(void **state) {
    (void)state;
    open_all(1);
    const char *s = new_session(), *other = new_session();
    const char *m = new_model(s, 0, ALL_PARTS), *kept = new_model(other, 0, ALL_PARTS);
    const struct asked_batch b = {.loss = "cross_entropy", .seed = 1, .n = 20};
    const struct answer p = train(m, 1, &b), late = optim(m, 3, USUAL); /* call 2 never comes */
    const char *poll = arena_printf(&memory, "{\"request_id\":\"%s\"}", member(&late, "request_id"));
    const int fd = join();
    send_all(fd, "POST", "retrieve_future", JSON_HEADER, poll, strlen(poll));
    EXPECT(post(arena_printf(&memory, "sessions/%s/finish", s), "{\"reason\":{\"type\":\"success\"},\"detail\":null}"),
           200, "{}");
    EXPECT(take_all(fd), 200, "the session has ended");
    EXPECT(post(arena_printf(&memory, "sessions/%s/finish", s), "{\"reason\":{\"type\":\"errored\"}}"), 200, "{}");
    EXPECT(post("session_heartbeat", arena_printf(&memory, "{\"session_id\":\"%s\"}", s)), 410, "ended");
    EXPECT(train(m, 2, &b), 410, "ended");
    EXPECT(make_model(s, 1, ALL_PARTS), 410, "ended");
    const char *first = member(&p, "request_id"); /* its call ends before what the session has goes */
    for (const double until = clock_now_s() + 60; future_find(tinker, first) && clock_now_s() < until;) turn(1);
    EXPECT(post("retrieve_future", arena_printf(&memory, "{\"request_id\":\"%s\"}", first)), 410, "");
    EXPECT(call("GET", arena_printf(&memory, "training_runs/%s", m), NULL), 200, m);
    EXPECT(done(train(kept, 1, &b)), 200, "loss:sum");
    /* and now all of it ends with calls in every state */
    (void)train(kept, 2, &b);
    (void)optim(kept, 3, USUAL);
    (void)optim(kept, 9, USUAL);
    (void)make_model(other, 1, ALL_PARTS);
    const int last = join();
    send_all(last, "POST", "retrieve_future", JSON_HEADER, "{\"request_id\":\"x\"}", 18);
    close_all();
    close(last);
}

/* ---- servers that end, and the next one ---------------------------------------------------------------------------*/

static void restart(void) {
    close_all();
    open_all(4);
}

static struct answer snapshot(const char *model, int seq, int number) {
    return post("save_weights_for_sampler",
                arena_printf(&memory, "{\"model_id\":\"%s\",\"seq_id\":%d,\"sampling_session_seq_id\":%d}", model, seq,
                             number));
}

/* Half a record, as a server leaves it that is killed while it writes. */
static void spoil_calls(const char *session, int number) {
    CLEANUP_STR struct str path = STR_INIT;
    str_addf(&path, "%s/sessions/%s/train-%d/calls", state_dir, session, number);
    FILE *f = fopen(path.p, "a");
    assert_non_null(f);
    fputs("ktrk and not more", f);
    assert_int_equal(fclose(f), 0);
}

#define SEEDED "\"num_samples\":2,\"sampling_params\":{\"max_tokens\":6,\"seed\":4,\"stop\":[]}"
struct seen { /* of a model: losses, samples, log-probabilities in the end */
    double loss[2];
    int32_t ids[6];
    float logp[3][N];
};

static void see_end(const char *session, const char *model, int sampler, struct seen *out) {
    const struct wire_sample q = sample(arena_printf(&memory, "%s:sample:%d", session, sampler), 0, SEEDED);
    memcpy(out->ids, q.sequence[1].ids, sizeof out->ids);
    const struct wire_output o = look(model, 6);
    for (int i = 0; i < 3; i++) memcpy(out->logp[i], o.datum[i].logp, sizeof out->logp[i]);
}

/* Calls of a model whose server is another one behind each of them, and of one that nothing disturbs: equal bits, the
 * same promises for calls that are sent again, and no step is made twice. */
static void restart_often(int keep) {
    char s[64], m[80], id[100];
    const struct asked_batch b = {.loss = "cross_entropy", .seed = 1, .n = 5}, c = {"ppo", 6, 3, .shift = 0.1f};
    struct wire_output o;
    struct seen want = {0}, got = {0};
    keep_s = keep;
    open_all(4);
    snprintf(s, sizeof s, "%s", new_session());
    snprintf(m, sizeof m, "%s", new_model(s, 0, ALL_PARTS));
    o = read_output(done(train(m, 1, &b)));
    want.loss[0] = loss_in(&o);
    EXPECT(done(optim(m, 2, USUAL)), 200, "\"step\":1");
    o = read_output(done(train(m, 3, &c)));
    want.loss[1] = loss_in(&o);
    EXPECT(done(snapshot(m, 4, 0)), 200, ":sample:0");
    EXPECT(done(optim(m, 5, USUAL)), 200, "\"step\":2");
    see_end(s, m, 0, &want);

    snprintf(m, sizeof m, "%s:train:1", s);
    struct answer p = make_model(s, 1, ALL_PARTS);
    restart();
    EXPECT(done(make_model(s, 1, ALL_PARTS)), 200, m);
    p = train(m, 1, &b);
    snprintf(id, sizeof id, "%s", member(&p, "request_id"));
    restart();
    p = train(m, 1, &b);
    assert_string_equal(id, member(&p, "request_id"));
    o = read_output(result_of(&p));
    got.loss[0] = loss_in(&o);
    EXPECT(done(optim(m, 2, USUAL)), 200, "\"step\":1");
    restart();
    EXPECT(done(optim(m, 2, USUAL)), 200, "\"step\":1");
    EXPECT(optim(m, 2, "\"learning_rate\":1"), 400, "another call");
    o = read_output(done(train(m, 1, &b))); /* its result is still there, or there again */
    assert_true(loss_in(&o) == want.loss[0]);
    (void)optim(m, 5, USUAL);
    (void)train(m, 3, &c);
    spoil_calls(s, 1);
    restart();
    (void)snapshot(m, 4, 1);
    restart();
    o = read_output(done(train(m, 3, &c)));
    got.loss[1] = loss_in(&o);
    EXPECT(done(optim(m, 5, USUAL)), 200, "\"step\":2");
    restart();
    EXPECT(done(snapshot(m, 4, 1)), 200, ":sample:1");
    see_end(s, m, 1, &got);
    assert_memory_equal(&want, &got, sizeof want);

    EXPECT(post(arena_printf(&memory, "sessions/%s/finish", s), "{\"reason\":{\"type\":\"success\"}}"), 200, "{}");
    restart();
    EXPECT(post("session_heartbeat", arena_printf(&memory, "{\"session_id\":\"%s\"}", s)), 403, "no session");
    CLEANUP_STR struct str path = STR_INIT;
    str_addf(&path, "%s/sessions/%s", state_dir, s);
    assert_false(fs_is_dir(path.p));
    close_all();
}

/* ---- requests to sample -------------------------------------------------------------------------------------------*/

static struct answer ask(const char *sampler, int64_t seq, int tokens) {
    return post("asample", arena_printf(&memory,
                                        "{\"sampling_session_id\":\"%s\",\"seq_id\":%lld,\"num_samples\":2,\"prompt\":{"
                                        "\"chunks\":[{\"tokens\":[5,6]}]},\"sampling_params\":{\"max_tokens\":%d,"
                                        "\"stop\":[]}}",
                                        sampler, (long long)seq, tokens));
}

static struct answer poll_many(const char *sampler, int clone, int64_t cursor, const char *more) {
    return post("retrieve_futures", arena_printf(&memory,
                                                 "{\"target\":{\"type\":\"sampling_session\",\"sampling_session_id\":"
                                                 "\"%s\",\"cloned_sampler_id\":%d},\"prev_cursor\":%lld%s}",
                                                 sampler, clone, (long long)cursor, more));
}

/* How many requests an answer names as ended, and its cursor. */
static int read_many(struct answer a, int64_t *cursor) {
    CLEANUP_JSON json_t *j = json_loadb(a.body, a.n, 0, NULL);
    if (a.status != 200) fail_msg("%d %s", a.status, a.body);
    *cursor = json_integer_value(json_object_get(j, "cursor"));
    return (int)json_array_size(json_object_get(j, "completions"));
}

static const char *base_sampler(const char *session, int number) {
    const struct answer a =
        post("create_sampling_session",
             arena_printf(&memory, "{\"session_id\":\"%s\",\"sampling_session_seq_id\":%d,\"base_model\":\"%s\"}",
                          session, number, tokenizer));
    return member(&a, "sampling_session_id");
}

/* One poll tells of all requests of a sampler, each once; those of a clone are told to the clone. */
static void test_many_futures(void **state) {
    (void)state;
    open_all(4);
    const char *s = new_session(), *m = base_sampler(s, 0);
    int64_t cursor, end, clones;
    EXPECT(post("join_sampling_session", arena_printf(&memory, "{\"sampling_session_id\":\"%s\"}", m)), 200,
           "\"client_counter\":1");
    EXPECT(post("join_sampling_session", arena_printf(&memory, "{\"sampling_session_id\":\"%s\"}", m)), 200,
           "\"client_counter\":2");
    assert_int_equal(read_many(poll_many(m, 0, 0, ",\"timeout\":0"), &cursor), 0);
    struct answer p[3];
    for (int i = 0; i < 3; i++) p[i] = ask(m, i, 5);
    int told = 0;
    while (told < 3)
        told = read_many(poll_many(m, 0, 0, ""), &cursor); /* all again, until the client says what it saw */
    assert_int_equal(told, 3);
    assert_int_equal(read_many(poll_many(m, 0, cursor + 1000000, ",\"timeout\":0"), &end), 3); /* no number of ours */
    const struct completions *kept = &sampler_find(tinker, m)->completed;
    assert_int_equal(kept->n, 3);
    EXPECT(ask(m, 2000000000, 600), 200, "request_id"); /* it does not fit, and fails */
    EXPECT(poll_many(m, 2, cursor, ""), 200, "\"state\":\"failed\"");
    assert_int_equal(read_many(poll_many(m, 0, cursor, ",\"timeout\":0"), &end), 0);
    assert_int_equal(kept->n, 1); /* those that the client says it has seen are gone, and the clone's is there */
    assert_int_equal(read_many(poll_many(m, 2, 0, ",\"timeout\":0"), &clones), 1);
    assert_true(end == clones && end > cursor);
    for (int i = 0; i < 3; i++) (void)result_of(&p[i]);
    EXPECT(poll_many("nobody", 0, 0, ""), 404, "no sampling session");
    EXPECT(post("retrieve_futures", "{\"target\":{}}"), 422, "sampling_session_id");
    EXPECT(post(arena_printf(&memory, "sessions/%s/finish", s), "{\"reason\":{\"type\":\"success\"}}"), 200, "{}");
    EXPECT(poll_many(m, 0, end, ""), 410, "has ended");
    close_all();
}

/* A model has its last samplers without a name; an older one is gone, and says so. */
static void test_old_samplers_go(void **state) {
    (void)state;
    open_all(4);
    const char *s = new_session(), *m = new_model(s, 0, ALL_PARTS);
    struct answer last = {0};
    for (int i = 0; i <= SNAPSHOTS; i++) last = snapshot(m, i + 1, i);
    EXPECT(result_of(&last), 200, "sampling_session_id");
    EXPECT(ask(arena_printf(&memory, "%s:sample:0", s), 0, 5), 410, "has the last 64");
    EXPECT(done(ask(arena_printf(&memory, "%s:sample:1", s), 0, 5)), 200, "");
    EXPECT(done(ask(arena_printf(&memory, "%s:sample:%d", s, SNAPSHOTS), 0, 5)), 200, "");
    close_all();
}

/* What ended is told apart from what never was, and after a while forgotten: nothing of it takes memory any more. */
static void test_what_ended_is_forgotten(void **state) {
    (void)state;
    open_all(4);
    const char *s = new_session(), *m = new_model(s, 0, ALL_PARTS), *other = new_session();
    const struct answer made = snapshot(m, 1, 0);
    EXPECT(result_of(&made), 200, "sampling_session_id");
    EXPECT(done(ask(arena_printf(&memory, "%s:sample:0", s), 0, 5)), 200, "");
    session_finish(tinker, tinker->sessions->next, "success");
    for (int i = 0; i < 100 && tinker->n_tasks > 0; i++) turn(1);
    ended_forget(tinker, tinker_now_s());
    EXPECT(ask(arena_printf(&memory, "%s:sample:0", s), 1, 5), 410, "has ended");
    ended_forget(tinker, tinker_now_s() + tinker_options.forget_s + 1);
    assert_null(tinker->samplers);
    assert_null(tinker->runs);
    assert_null(tinker->tasks);
    assert_ptr_equal(session_seen(tinker, NULL, other), tinker->sessions);
    assert_null(tinker->sessions->next);
    EXPECT(ask(arena_printf(&memory, "%s:sample:0", s), 1, 5), 404, "no sampling session");
    EXPECT(make_model(s, 1, ALL_PARTS), 403, "no session");
    EXPECT(done(make_model(other, 0, ALL_PARTS)), 200, "model_id");
    close_all();
}

/* A server that ends with requests in every state: the next one has the samples that this one would have had, tells of
 * them, and knows which have been fetched. */
static void test_samples_survive(void **state) {
    char s[64], m[80], promise[3][120];
    struct wire_sample first;
    struct err e;
    int64_t cursor;
    (void)state;
    open_all(4);
    snprintf(s, sizeof s, "%s", new_session());
    snprintf(m, sizeof m, "%s", base_sampler(s, 0));
    struct answer p = ask(m, 0, 5);
    const struct answer fetched = result_of(&p);
    assert_int_equal(wire_read_sample(fetched.body, fetched.n, &memory, &first, &e), ST_OK);
    p = ask(m, 1, 5);
    snprintf(promise[1], sizeof promise[1], "%s", member(&p, "request_id"));
    for (int ended = read_many(poll_many(m, 0, 0, ""), &cursor); ended < 2;) /* the second may take a while */
        ended += read_many(poll_many(m, 0, cursor, ""), &cursor);
    p = ask(m, 2, 400);
    snprintf(promise[2], sizeof promise[2], "%s", member(&p, "request_id"));
    restart();
    int told = 0;
    while (told < 2) told += read_many(poll_many(m, 0, cursor, ""), &cursor);
    assert_int_equal(told, 2);
    struct wire_sample got[3];
    for (int i = 1; i < 3; i++) {
        const struct answer a = post("retrieve_future", arena_printf(&memory, "{\"request_id\":\"%s\"}", promise[i]));
        assert_int_equal(a.status, 200);
        assert_int_equal(wire_read_sample(a.body, a.n, &memory, &got[i], &e), ST_OK);
        assert_int_equal(got[i].sequence[1].n, i == 1 ? 5 : 400);
    }
    EXPECT(post("retrieve_future", arena_printf(&memory, "{\"request_id\":\"%s#0\"}", m)), 410, "");
    CLEANUP_STR struct str path = STR_INIT;
    struct stat st;
    str_addf(&path, "%s/sessions/%s/asample", state_dir, s);
    assert_int_equal(stat(path.p, &st), 0);
    assert_int_equal(st.st_size, 0); /* all were fetched */
    int32_t ids[400];
    memcpy(ids, got[2].sequence[1].ids, sizeof ids);
    p = ask(m, 3, 400);
    restart();
    restart();
    p = ask(m, 3, 400); /* sent again, since its reply was lost: the promise is the one from before */
    const struct answer again = result_of(&p);
    assert_int_equal(wire_read_sample(again.body, again.n, &memory, &first, &e), ST_OK);
    assert_memory_not_equal(ids, first.sequence[1].ids, sizeof ids);
    close_all();
}

static void test_restarts_without_states(void **state) {
    (void)state;
    restart_often(300);
}

static void test_restarts_with_states(void **state) {
    (void)state;
    restart_often(0);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        TEST(test_start_up),
        TEST(test_order_and_once),
        TEST(test_failures_leave_gradients),
        TEST(test_forward_and_zstd),
        TEST(test_gradients_through_the_wire),
        TEST(test_parts_that_are_trained),
        TEST(test_sampler_and_trainer_agree),
        TEST(test_sampling_answers),
        TEST(test_results_are_bounded),
        TEST(test_checkpoints),
        TEST(test_ends),
        TEST(test_many_futures),
        TEST(test_old_samplers_go),
        TEST(test_what_ended_is_forgotten),
        TEST(test_samples_survive),
        TEST(test_restarts_without_states),
        TEST(test_restarts_with_states),
    };
    begin_tests(argc, argv);
    return end_tests(cmocka_run_group_tests(tests, NULL, NULL));
}
