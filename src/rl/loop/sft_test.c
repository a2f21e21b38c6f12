/* Supervised fine-tuning of a tiny model: encoding, learning, resuming bit for bit, what is refused. */
#include "rl/loop/sft.h"

#include <pthread.h>
#include <unistd.h>

#include "base/log.h"
#include "rl/run/run.h"
#include "rl/test_util.h"
#include "train/adamw.h"

static const char row_prompt[] = "add x";
static const char row_completion[] = "<think>a</think>x + y;";

static int set_up(void **state) {
    if (make_tmp_dir(state) != 0) return 1;
    log_set_level(LOG_WARN);
    write_byte_tokenizer(in_tmp("tokenizer"));
    write_file(in_tmp("config.json"), tiny_config);
    struct str s = STR_INIT;
    for (int i = 0; i < 12; i++) /* rows that share a prompt, and rows with a system message */
        str_addf(&s, "{\"prompt\": \"%s\", \"completion\": \"%s\"}\n", row_prompt, row_completion);
    for (int i = 0; i < 12; i++)
        str_addf(
            &s,
            "{\"prompt\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"p%d\"}], "
            "\"completion\": \"y%d\", \"renderer\": \"qwen3\"}\n",
            i, i);
    write_file(in_tmp("rows.jsonl"), s.p);
    str_free(&s);
    return 0;
}

static struct tokenizer *open_tokenizer(void) {
    struct tokenizer *t;
    CHECK(tokenizer_open(in_tmp("tokenizer"), &t, &err));
    return t;
}

static void check_completion(struct tokenizer *t, const char *text, const int32_t *want, size_t n) {
    struct ids got = {0};
    sft_encode_completion(t, CHAT_QWEN3, text, strlen(text), &got);
    assert_int_equal(got.len, n);
    assert_memory_equal(got.p, want, n * sizeof *want);
    ids_free(&got);
}
#define COMPLETION(t, text, ...) \
    check_completion(t, text, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4)

static void completion_ids(void **state) {
    (void)state;
    struct tokenizer *t = open_tokenizer();
    COMPLETION(t, "", IM_END);
    COMPLETION(t, "ab", 'a', 'b', IM_END);
    COMPLETION(t, "<think>a</think>b", THINK, 'a', END_THINK, 'b', IM_END);
    COMPLETION(t, "<think></think>", THINK, END_THINK, IM_END);
    COMPLETION(t, "<<think>", '<', THINK, IM_END);
    COMPLETION(t, "a<think", 'a', '<', 't', 'h', 'i', 'n', 'k', IM_END);
    /* Only the think marks: a completion cannot end a turn or start one. */
    COMPLETION(t, "<|im_end|>", '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>', IM_END);
    struct ids got = {0};
    sft_encode_completion(t, CHAT_QWEN3, "a\0<think>", 9, &got); /* any bytes */
    assert_int_equal(got.len, 4);
    assert_true(got.p[1] == 0 && got.p[2] == THINK);
    ids_free(&got);
    tokenizer_close(t);
}

static struct sft_options options(const char *output) {
    return (struct sft_options){
        .init_config = in_tmp("config.json"),
        .tokenizer = in_tmp("tokenizer"),
        .data = in_tmp("rows.jsonl"),
        .output = output,
        .device = "cpu",
        .ranks = "self",
        .save_dtype = 1,
        .batch_tokens = 150,
        .max_length = 200,
        .max_steps = 20,
        .num_epochs = 1,
        .warmup_steps = 3,
        .seed = 5,
        .threads = 1,
        .save_every = 7,
        .log_every = 1000,
        .lora_alpha = 8,
        .min_lr_ratio = 0.1,
        .update = {.train_tokens = 100,
                   .max_grad_norm = 1,
                   .adam = {.learning_rate = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.01}}};
}

/* Mean negative log-likelihood of the first row's completion, written out by hand. */
static double row_loss(struct model *m) {
    struct tokenizer *t = open_tokenizer();
    struct ids ids = {0};
    static const char rendered[] = "<|im_start|>user\nadd x<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    tokenizer_encode(t, rendered, strlen(rendered), true, &ids);
    int n = (int)ids.len;
    static const int32_t completion[] = {THINK, 'a', END_THINK, 'x', ' ', '+', ' ', 'y', ';', IM_END};
    enum { N = ARRAY_LEN(completion) };
    int32_t rows[N];
    float logp[N];
    for (int i = 0; i < N; i++) {
        rows[i] = n - 1 + i;
        ids_add(&ids, completion[i]);
    }
    struct segment seg = {0, (int64_t)ids.len, -1, 0};
    CHECK(model_forward(m, &(struct train_batch){ids.p, (int64_t)ids.len, &seg, 1, rows, completion, N, false}, logp,
                        NULL, NULL, &err));
    double sum = 0;
    for (int i = 0; i < N; i++) sum -= (double)logp[i];
    ids_free(&ids);
    tokenizer_close(t);
    return sum / N;
}

static double loss_of(const char *dir) {
    struct model *m;
    CHECK(model_load(dir, NULL, test_backend(), &m, &err));
    double loss = row_loss(m);
    model_free(m);
    return loss;
}

static void twenty_steps_lower_the_loss(void **state) {
    (void)state;
    CLEANUP_FREE char *out = xstrdup(in_tmp("learn"));
    struct sft_options o = options(out);
    o.valid = in_tmp("rows.jsonl");
    struct model *fresh;
    CHECK(model_init(tiny_config, 5, NULL, test_backend(), &fresh, &err));
    double before = row_loss(fresh);
    model_free(fresh);
    CHECK(sft_run(&o, "", NULL, &err));
    double after = loss_of(out);
    if (!(after < 0.65 * before)) fail_msg("loss %g before, %g after 20 steps", before, after);
    assert_true(fs_is_file(in_tmp("learn/tokenizer.json")) && fs_is_file(in_tmp("learn/config.json")));
    assert_false(fs_is_dir(in_tmp("learn/state")));

    /* A finished output is left alone, whatever the learning rate now. */
    CLEANUP_FREE char *weights = xstrdup(in_tmp("learn/model.safetensors"));
    char *was, *is;
    size_t n, m;
    CHECK(fs_read(weights, 1 << 24, &was, &n, &err));
    o.update.adam.learning_rate = 1e-3;
    CHECK(sft_run(&o, "", NULL, &err));
    CHECK(fs_read(weights, 1 << 24, &is, &m, &err));
    assert_int_equal(n, m);
    assert_memory_equal(was, is, n);
    free(was);
    free(is);
}

static void assert_same_file(const char *a, const char *b) {
    char *p, *q;
    size_t n, m;
    CHECK(fs_read(a, 1 << 24, &p, &n, &err));
    CHECK(fs_read(b, 1 << 24, &q, &m, &err));
    assert_int_equal(n, m);
    assert_memory_equal(p, q, n);
    free(p);
    free(q);
}

/* Interrupted after every step (a microsecond is over when the first step is), and after a step with another number of
 * threads. */
static void resuming_changes_nothing(void **state) {
    (void)state;
    for (int lora = 0; lora < 2; lora++) {
        CLEANUP_FREE char *straight = xstrdup(in_tmp(lora ? "straight_lora" : "straight")),
                          *pieces = xstrdup(in_tmp(lora ? "pieces_lora" : "pieces")),
                          *base = xstrdup(in_tmp("straight"));
        struct sft_options o = options(straight);
        if (lora) {
            o.lora_rank = 2;
            o.init_config = o.tokenizer = NULL;
            o.model_name = base;
        }
        CHECK(sft_run(&o, "", NULL, &err));
        o.output = pieces;
        o.stop_after_minutes = 1e-6 / 60;
        CLEANUP_STR struct str probe = STR_INIT;
        str_addf(&probe, "%s/state/state.json", pieces);
        int calls = 0;
        do {
            o.threads = 1 + calls % 2;
            CHECK(sft_run(&o, "", NULL, &err));
            calls++;
            assert_true(calls <= 1000);
        } while (fs_is_file(probe.p));
        assert_true(calls > 1);
        CLEANUP_STR struct str a = STR_INIT, b = STR_INIT;
        str_addf(&a, "%s/%s", straight, lora ? "adapter_model.safetensors" : "model.safetensors");
        str_addf(&b, "%s/%s", pieces, lora ? "adapter_model.safetensors" : "model.safetensors");
        assert_same_file(a.p, b.p);
    }
}

/* Sets *flag once the first checkpoint is there. */
struct watcher {
    char *path;
    volatile bool flag, stop;
};
static void *watch(void *ctx) {
    struct watcher *w = ctx;
    while (!w->stop && !fs_is_file(w->path)) usleep(100);
    w->flag = true;
    return NULL;
}

static void cancelled_runs_can_go_on(void **state) {
    (void)state;
    struct sft_options o = options(in_tmp("cancelled"));
    volatile bool cancel = true;
    CHECK_FAILS(sft_run(&o, "", &cancel, &err), ST_CANCELLED, "interrupted at step 0 of 20");
    assert_false(fs_is_file(in_tmp("cancelled/model.safetensors")));

    /* In the middle: what was done is saved, and nothing is done twice. */
    o.max_steps = 100000;
    struct watcher w = {.path = xstrdup(in_tmp("cancelled/state/state.json"))};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, watch, &w), 0);
    enum status st = sft_run(&o, "", &w.flag, &err);
    w.stop = true;
    pthread_join(thread, NULL);
    assert_int_equal(st, ST_CANCELLED);
    CLEANUP_FREE char *text = read_file(w.path);
    long long next = -1, at = -2;
    assert_int_equal(sscanf(text, "{\"next_step\": %lld", &next), 1);
    assert_int_equal(sscanf(err.msg, "interrupted at step %lld", &at), 1);
    assert_true(next == at && next >= 7);
    free(w.path);
}

static void bad_rows(const char *rows, const char *want) {
    CLEANUP_FREE char *path = xstrdup(in_tmp("bad.jsonl")), *out = xstrdup(in_tmp("bad"));
    struct sft_options o = options(out);
    write_file(path, rows);
    o.data = path;
    err = (struct err){0};
    assert_int_not_equal(sft_run(&o, "", NULL, &err), ST_OK);
    if (!strstr(err.msg, want) || !strstr(err.msg, "bad.jsonl")) fail_msg("expected \"%s\" in: %s", want, err.msg);
}

static void what_is_refused(void **state) {
    (void)state;
    bad_rows("{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \"a\"}\n", ":2: completion");
    bad_rows("{\"completion\": \"b\"}\n", "prompt");
    bad_rows("{\"prompt\": 3, \"completion\": \"b\"}\n", "prompt");
    bad_rows("{\"prompt\": [{\"role\": \"user\"}], \"completion\": \"b\"}\n", "content");
    bad_rows("{\"prompt\": \"a\", \"completion\": \"b\", \"renderer\": \"llama\"}\n", "llama");
    bad_rows("nonsense\n", ":1");
    bad_rows("", "no row fits");
    struct sft_options o = options(in_tmp("bad"));
    o.max_length = 16; /* shorter than any prompt here */
    CHECK_FAILS(sft_run(&o, "", NULL, &err), ST_INVALID, "no row fits max_length 16");
    o = options(in_tmp("bad"));
    o.data = "";
    CHECK_FAILS(sft_run(&o, "", NULL, &err), ST_CONFIG, "data");
    o = options(in_tmp("bad"));
    o.tokenizer = NULL;
    CHECK_FAILS(sft_run(&o, "", NULL, &err), ST_CONFIG, "init_config and tokenizer");
}

static void second_writer_is_refused(void **state) {
    (void)state;
    CLEANUP_FREE char *out = xstrdup(in_tmp("locked"));
    struct sft_options o = options(out);
    o.max_steps = 2;
    int fd;
    CHECK(fs_mkdirs(out, &err));
    CHECK(run_lock(out, &fd, &err));
    CHECK_FAILS(sft_run(&o, "", NULL, &err), ST_IO, "another process is training");
    assert_non_null(strstr(err.msg, out));
    assert_false(fs_is_file(in_tmp("locked/model.safetensors")));
    close(fd);
    CHECK(sft_run(&o, "", NULL, &err)); /* and it has let go of the lock */
    CHECK(run_lock(out, &fd, &err));
    close(fd);
}

static void adapter_says_its_base(void **state) {
    (void)state;
    CLEANUP_FREE char *base = xstrdup(in_tmp("locked")), *out = xstrdup(in_tmp("adapter"));
    struct sft_options o = options(out);
    o.init_config = o.tokenizer = NULL;
    o.model_name = base;
    o.lora_rank = 2;
    o.max_steps = 2;
    CHECK(sft_run(&o, "", NULL, &err));
    CLEANUP_FREE char *config = read_file(in_tmp("adapter/adapter_config.json"));
    CLEANUP_STR struct str want = STR_INIT;
    str_addf(&want, "\"base_model_name_or_path\": \"%s\"", base);
    if (!strstr(config, want.p)) fail_msg("expected %s in %s", want.p, config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(completion_ids),           cmocka_unit_test(twenty_steps_lower_the_loss),
        cmocka_unit_test(resuming_changes_nothing), cmocka_unit_test(cancelled_runs_can_go_on),
        cmocka_unit_test(what_is_refused),          cmocka_unit_test(second_writer_is_refused),
        cmocka_unit_test(adapter_says_its_base),
    };
    return cmocka_run_group_tests(tests, set_up, remove_tmp_dir);
}
