/* Every key of train and sft can be set from the command line and survives config.yaml; rules between keys. */
#include "rl/options/options.h"

#include "base/fs.h"
#include "base/home.h"
#include "rl/learn/update.h"
#include "rl/test_util.h"

/* Sets a value that is allowed and differs from the default; returns false when none of the usual ones does. */
static bool set_another(struct config *c, const struct config_key *k) {
    static const char *const numbers[] = {"0.125", "0.5", "1", "2", "3", "64", "300", "5000"};
    CLEANUP_STR struct str s = STR_INIT;
    if (k->type == CONFIG_BOOL) {
        str_addf(&s, "%s=%s", k->name, strcmp(k->def, "true") == 0 ? "false" : "true");
    } else if (k->type == CONFIG_STRING) {
        str_addf(&s, "%s=some/path", k->name);
    } else if (k->type == CONFIG_ENUM) {
        const char *last = strrchr(k->allowed, '|') + 1; /* the last name, or the first when that is the default */
        str_addf(&s, "%s=", k->name);
        if (strcmp(last, k->def) == 0)
            str_add(&s, k->allowed, strcspn(k->allowed, "|"));
        else
            str_adds(&s, last);
    } else {
        for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
            struct err e = {0};
            double def = -1; /* of a default null */
            assert_true(k->optional || parse_f64(k->def, &def));
            double v;
            assert_true(parse_f64(numbers[i], &v));
            str_clear(&s);
            str_addf(&s, "%s=%s", k->name, numbers[i]);
            if (v != def && config_set(c, s.p, &e) == ST_OK) return true;
        }
        return false;
    }
    CHECK(config_set(c, s.p, &err));
    return true;
}

static void every_key(const struct config_schema *schema, void *values, void *defaults, void *reloaded) {
    struct config c, d, r;
    CLEANUP_STR struct str yaml = STR_INIT, again = STR_INIT, help = STR_INIT;
    config_init(&d, schema, defaults);
    config_init(&c, schema, values);
    for (size_t i = 0; i < schema->count; i++) {
        const struct config_key *k = &schema->key[i];
        assert_string_equal(config_source(&c, k->name), "default");
        if (!set_another(&c, k)) fail_msg("%s: no other value was accepted", k->name);
        if (memcmp((char *)values + k->offset, (char *)defaults + k->offset, k->bytes) == 0)
            fail_msg("%s: the value did not change", k->name);
        assert_string_equal(config_source(&c, k->name), "command line");
        if (!k->doc || k->doc[strlen(k->doc) - 1] != '.') fail_msg("%s: documentation is no sentence", k->name);
        CHECK(config_help(schema, k->name, &help, &err));
    }
    config_dump(&c, &yaml);
    config_init(&r, schema, reloaded);
    CHECK(config_load_text(&r, "config.yaml", yaml.p, yaml.len, &err));
    config_dump(&r, &again);
    assert_string_equal(yaml.p, again.p);
    config_free(&c);
    config_free(&d);
    config_free(&r);
}

static void every_train_key_can_be_set(void **state) {
    (void)state;
    struct train_options a, b, c;
    every_key(&train_schema, &a, &b, &c);
}

static void every_sft_key_can_be_set(void **state) {
    (void)state;
    struct sft_options a, b, c;
    every_key(&sft_schema, &a, &b, &c);
}

/* The names in the tables stand in the order of the C enums. */
static void names_mean_what_they_say(void **state) {
    (void)state;
    struct train_options o;
    struct config c;
    config_init(&c, &train_schema, &o);
#define EXPECT(assignment, field, value)                \
    do {                                                \
        CHECK(config_set(&c, assignment, &err));        \
        assert_int_equal((int)(o.field), (int)(value)); \
    } while (0)
    EXPECT("loss_fn=reinforce", update.loss.kind, LOSS_REINFORCE);
    EXPECT("loss_fn=importance_sampling", update.loss.kind, LOSS_IMPORTANCE_SAMPLING);
    EXPECT("loss_fn=ppo", update.loss.kind, LOSS_PPO);
    EXPECT("loss_fn=cispo", update.loss.kind, LOSS_CISPO);
    EXPECT("advantage=center", advantage.kind, ADVANTAGE_CENTER);
    EXPECT("advantage=std", advantage.kind, ADVANTAGE_STD);
    EXPECT("advantage=leave_one_out", advantage.kind, ADVANTAGE_LEAVE_ONE);
    EXPECT("negative_advantage_scale=0.5", advantage.negative_scale, 0.5);
    EXPECT("loss_norm=tokens", update.loss_norm, NORM_TOKENS);
    EXPECT("loss_norm=sequences", update.loss_norm, NORM_SEQUENCES);
    EXPECT("loss_norm=constant", update.loss_norm, NORM_CONSTANT);
    EXPECT("speed_reward=ratio", reward.shape, SPEED_RATIO); /* the short name */
    EXPECT("speed_reward=excess", reward.shape, SPEED_EXCESS);
    EXPECT("dataset_builder.speed_reward=log", reward.shape, SPEED_LOG);
    EXPECT("level=2", dataset_builder.level, 2);
#undef EXPECT
    config_free(&c);
}

static void check_rule(const char *const *assignments, int n, const char *want) {
    struct train_options o;
    struct config c;
    config_init(&c, &train_schema, &o);
    for (int i = 0; i < n; i++) CHECK(config_set(&c, assignments[i], &err));
    if (want)
        CHECK_FAILS(train_options_check(&c, &o, &err), ST_CONFIG, want);
    else
        CHECK(train_options_check(&c, &o, &err));
    config_free(&c);
}
#define RULE(want, ...) \
    check_rule((const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *), want)

static void rules(void **state) {
    (void)state;
    RULE(NULL, "seed=0");
    RULE(NULL, "start_problem=3", "end_problem=3");
    RULE(NULL, "start_problem=3");
    RULE("end_problem", "start_problem=4", "end_problem=3");
    RULE("measure_performance", "reward_speed_weight=0.5", "measure_performance=false");
    RULE(NULL, "reward_speed_weight=0.5");
    RULE(NULL, "measure_performance=false");
    RULE(NULL, "device=cuda");
    RULE(NULL, "device=cuda:3");
    RULE("device: expected cpu, cuda or cuda:N, got \"gpu\"", "device=gpu");
    RULE("device: expected", "device=cuda:");
    RULE(NULL, "trainer=tinker", "sampler=tinker");
    RULE(NULL, "sampler=tinker", "temperature=0.5", "lora_rank=0", "lora_alpha=1");
    RULE("sampler", "trainer=tinker", "sampler=openai");
    RULE("temperature", "trainer=tinker", "sampler=tinker", "temperature=0.5");
    RULE("min_p", "sampler=tinker", "min_p=0.1");
    RULE("lora_rank", "trainer=tinker", "sampler=tinker", "lora_rank=0");
    RULE("lora_alpha", "trainer=tinker", "sampler=tinker", "lora_alpha=16");
    RULE("lora_expert_rank", "trainer=tinker", "sampler=tinker", "lora_expert_rank=2");
    RULE("entropy_coef", "trainer=tinker", "sampler=tinker", "entropy_coef=0.1");
    RULE("gpus", "trainer=tinker", "sampler=tinker", "gpus=2");
    RULE("load_checkpoint_path", "sampler=tinker", "load_checkpoint_path=runs/a");
    RULE(NULL, "sampler=tinker", "load_checkpoint_path=tinker://a/weights/b");

    struct sft_options o;
    struct config c;
    config_init(&c, &sft_schema, &o);
    assert_string_equal(o.device, "cpu");
    CHECK(sft_options_check(&c, &o, &err));
    CHECK(config_set(&c, "device=cuda:1", &err));
    CHECK(sft_options_check(&c, &o, &err));
    CHECK(config_set(&c, "device=tpu", &err));
    CHECK_FAILS(sft_options_check(&c, &o, &err), ST_CONFIG, "got \"tpu\"");
    config_free(&c);
}

static void out_of_range(void **state) {
    (void)state;
    static const char *const bad[] = {"learning_rate=0",    "lora_rank=-1",   "level=5",        "group_size=0",
                                      "test_fraction=1",    "num_substeps=0", "temperature=-1", "loss_fn=sft",
                                      "speed_max_reward=0", "seed=-1",        "train_tokens=1", "tensorboard_enabled=2",
                                      "min_p=1.1",          "min_p=-0.1",     "kv_memory=-1"};
    struct train_options o;
    struct config c;
    config_init(&c, &train_schema, &o);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        CLEANUP_FREE char *key = xstrndup(bad[i], strcspn(bad[i], "="));
        CHECK_FAILS(config_set(&c, bad[i], &err), ST_CONFIG, key);
    }
    config_free(&c);
}

/* A file of the systems that this one succeeds, every key of theirs, loads as it is. */
static void files_of_earlier_systems(void **state) {
    (void)state;
    static const char yaml[] =
        "model_name: \"Qwen/Qwen3-30B-A3B\"\nlora_rank: 64\nlearning_rate: 2.0e-6\nmax_tokens: 16384\n"
        "temperature: 1.0\nmode: \"multi_turn\"\ngamma: 0.3\nmax_turns: 6\nnum_substeps: 2\n"
        "loss_fn: \"importance_sampling\"\nkl_penalty_coef: 0.0\nkl_discount_factor: 0.0\n"
        "log_path: \"./runs/kernel_rl\"\nsave_every: 1\neval_every: 10\n"
        "remove_constant_reward_groups: true\nwandb_project: null\nwandb_name: null\n"
        "tensorboard_enabled: true\ntensorboard_log_histograms_every: 5\n"
        "tensorboard_log_per_level: true\nbase_url: null\nload_checkpoint_path: null\n"
        "resume_from_batch: null\nstart_batch: 0\n"
        "dataset_builder:\n  level: 2\n  start_problem: null\n  end_problem: null\n  backend: \"triton\"\n"
        "  dataset_src: \"huggingface\"\n  batch_size: 8\n  group_size: 16\n  num_epochs: 22\n"
        "  shuffle: true\n  num_correct_trials: 5\n  measure_performance: true\n"
        "  format_reward_weight: 0.25\n  compile_reward_weight: 0.5\n"
        "  correctness_reward_weight: 0.3\n  reward_speed_weight: 2.0\n  reward_length_weight: 0.0\n"
        "  reward_thinking_weight: 0.0\n  renderer_name: \"qwen3\"\n  test_fraction: 0.2\n"
        "  prompt_option: \"raicl\"\n  rag_index_path: \"./kernel_rag_index\"\n  raicl_k: 3\n"
        "  use_modal: true\n  modal_gpu_type: \"A100\"\n  modal_timeout: 60.0\n"
        "  num_perf_trials: 100\n  timing_method: cuda_event\n  precision: fp32\n"
        "  check_for_excessive_speedup: true\n  excessive_speedup_threshold: 10.0\n"
        "  reward_preset: null\n  prompt_precision: null\n  prompt_include_hardware: false\n"
        "  prompt_gpu_name: null\n"
        "multiturn_dataset_builder: null\n";
    struct train_options o;
    struct config c;
    config_init(&c, &train_schema, &o);
    CHECK(config_load_text(&c, "k.yaml", yaml, strlen(yaml), &err));
    CHECK(train_options_finish(&c, &o, &err));
    assert_string_equal(o.model_name, "Qwen/Qwen3-30B-A3B");
    assert_string_equal(o.renderer_name, "qwen3");
    assert_int_equal(o.lora_rank, 64);
    assert_int_equal(o.rollout.max_turns, 6);
    assert_float_equal(o.rollout.gamma, 0.3, 1e-12);
    assert_float_equal(o.update.adam.learning_rate, 2e-6, 1e-12);
    assert_int_equal(o.dataset_builder.level, 2);
    assert_int_equal(o.dataset_builder.start_problem, 0); /* null: the default */
    assert_int_equal(o.dataset_builder.num_epochs, 22);
    assert_float_equal(o.reward.format, 0.25, 1e-12);
    assert_float_equal(o.reward.compile, 0.5, 1e-12);
    assert_float_equal(o.reward.correct, 0.3, 1e-12);
    assert_float_equal(o.reward.speed, 2, 1e-12);
    assert_float_equal(o.verify.run_timeout_s, 60, 1e-12);
    assert_true(o.reward.check_excessive);
    config_free(&c);

    static const char turns[] =
        "mode: multi_turn\nmultiturn_dataset_builder:\n  max_turns: 3\n  early_stop_on_correct: true\n"
        "  speedup_threshold: null\n  batch_size: 7\n";
    config_init(&c, &train_schema, &o);
    CHECK(config_load_text(&c, "k.yaml", turns, strlen(turns), &err));
    assert_int_equal(o.rollout.max_turns, 3);
    assert_true(o.rollout.early_stop);
    assert_int_equal(o.dataset_builder.batch_size, 7);
    config_free(&c);

    static const char *const hosted[][2] = {{"wandb_project=x", "no hosted logger"},
                                            {"wandb_name=x", "no hosted logger"}};
    config_init(&c, &train_schema, &o);
    for (size_t i = 0; i < ARRAY_LEN(hosted); i++)
        CHECK_FAILS(config_set(&c, hosted[i][0], &err), ST_CONFIG, hosted[i][1]);
    config_free(&c);
}

/* Assignments that go together, and the end of the message when they do not. */
static void sampler_rules(void **state) {
    (void)state;
    static const char *const rows[][4] = {
        {"base_url=https://service", "seed=1", "model_name=x", "add sampler=openai to ask it"},
        {"sampler=openai", "seed=1", "model_name=x", "openai needs base_url"},
        {"sampler=openai", "base_url=http://x/v1", "seed=1", "needs the model's name as the server knows it"},
        {"sampler=openai", "base_url=http://x/v1", "model_name=x", NULL},
        {"server_type=deepseek", "seed=1", "model_name=x", NULL},
        {"server_type=local", "base_url=http://x/v1", "model_name=default", NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct config c;
        struct train_options o;
        config_init(&c, &train_schema, &o);
        for (int k = 0; k < 3; k++) CHECK(config_set(&c, rows[i][k], &err));
        if (rows[i][3]) {
            CHECK_FAILS(train_options_finish(&c, &o, &err), ST_CONFIG, rows[i][3]);
        } else {
            CHECK(train_options_finish(&c, &o, &err));
            assert_int_equal(o.sampler.kind, SAMPLER_OPENAI);
        }
        config_free(&c);
    }
}

/* The files of configs/: every key is one, every value is allowed, and the rules between them hold. */
static void shipped_files(void **state) {
    (void)state;
    CLEANUP_STR struct str path = STR_INIT;
    char **names;
    size_t count, n = 0;
    str_addf(&path, "%s/configs", home_dir());
    CLEANUP_FREE char *dir = xstrndup(path.p, path.len);
    CHECK(fs_list(dir, &names, &count, &err));
    for (size_t i = 0; i < count; i++) {
        const char *dot = strrchr(names[i], '.');
        if (dot && strcmp(dot, ".yaml") == 0) {
            struct config c;
            struct train_options t;
            struct sft_options s;
            const bool sft = strcmp(names[i], "sft.yaml") == 0;
            config_init(&c, sft ? &sft_schema : &train_schema, sft ? (void *)&s : (void *)&t);
            str_clear(&path);
            str_addf(&path, "%s/%s", dir, names[i]);
            CHECK(config_load(&c, path.p, &err));
            if (sft)
                CHECK(sft_options_check(&c, &s, &err));
            else
                CHECK(train_options_finish(&c, &t, &err));
            if (strcmp(names[i], "best_of_n.yaml") == 0) {
                assert_int_equal(t.rollout.group_size, 10);
                assert_int_equal(t.advantage.keep, 3);
                assert_float_equal(t.advantage.threshold, 0.5, 1e-12);
            }
            config_free(&c);
            n++;
        }
        free(names[i]);
    }
    free(names);
    assert_true(n >= 12);
}

/* Each topic of help begins with a key, and each key of the two large sections is of a topic. */
static void keys_have_topics(void **state) {
    (void)state;
    const struct config_schema *s = &train_schema;
    const char *top = NULL, *data = NULL;
    size_t used = 0;
    for (size_t i = 0; i < s->count; i++) {
        const char *name = s->key[i].name;
        const bool of_data = str_has_prefix(name, "dataset_builder."), of_top = !strchr(name, '.');
        for (size_t t = 0; t < s->topic_count; t++) {
            if (strcmp(s->topic[t].from, name) != 0) continue;
            *(of_data ? &data : &top) = s->topic[t].heading;
            assert_true(of_data || of_top);
            used++;
        }
        if ((of_top && !top) || (of_data && !data)) fail_msg("%s has no topic", name);
    }
    assert_int_equal(used, s->topic_count);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_have_topics),
        cmocka_unit_test(every_train_key_can_be_set),
        cmocka_unit_test(every_sft_key_can_be_set),
        cmocka_unit_test(names_mean_what_they_say),
        cmocka_unit_test(rules),
        cmocka_unit_test(out_of_range),
        cmocka_unit_test(files_of_earlier_systems),
        cmocka_unit_test(sampler_rules),
        cmocka_unit_test(shipped_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
