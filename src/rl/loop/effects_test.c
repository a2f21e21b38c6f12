/* Every key of train does something: each is set off its default, alone or with the keys it needs, and what the parts
 * of the program make of the options must change. What a part needs a whole run for is named with the test that shows
 * it. */
#include <math.h>
#include <unistd.h>

#include "base/home.h"
#include "rl/learn/session.h"
#include "rl/learn/update.h"
#include "rl/rollout/curriculum.h"
#include "rl/test_util.h"

#define ADD(...) str_addf(out, __VA_ARGS__)

/* Rewards, turns, sampling. */
static void of_rollouts(const struct train_options *o, struct str *out) {
    for (int i = 0; i <= 4; i++) {
        const struct train_options now = schedule_at(o, 0.25 * i);
        const struct rollout_params p = session_rollout_params(&now);
        ADD("%d %d %a %llu %d %a %d %a %a\n", p.o.group_size, p.o.max_tokens, p.o.temperature,
            (unsigned long long)p.seed, p.o.max_turns, p.o.gamma, p.o.early_stop, p.o.speedup_threshold,
            now.plan_weight);
        static const struct {
            enum outcome outcome;
            int passed;
            double speedup;
            bool format;
            int64_t thought, kernel, tokens;
        } answers[] = {
            {OUTCOME_CORRECT, 5, 0.5, true, 0, 300, 10},       {OUTCOME_CORRECT, 5, 8, true, 2500, 4000, 4090},
            {OUTCOME_WRONG_OUTPUT, 2, 0, true, 100, 9000, 50}, {OUTCOME_COMPILE_ERROR, 0, 0, false, 9000, 100, 4096},
            {OUTCOME_SANDBOX_VIOLATION, 0, 0, true, 0, 10, 5}, {OUTCOME_CORRECT, 5, 50, true, 3000, 700, 10},
        };
        for (size_t k = 0; k < ARRAY_LEN(answers); k++) {
            const struct verdict v = {.outcome = answers[k].outcome,
                                      .tests_passed = answers[k].passed,
                                      .tests_total = 5,
                                      .speedup = answers[k].speedup};
            const struct reward r =
                reward_score(&p.weights, &(struct reward_input){&v, answers[k].format, answers[k].thought,
                                                                answers[k].kernel, answers[k].tokens, p.o.max_tokens});
            ADD("%a %a\n", r.total, r.plan);
        }
    }
}

static void of_verifier(const struct train_options *o, struct str *out) {
    const struct verify_options v = session_verify_options(o, NULL);
    ADD("%d %d %s %s %d %s %s %d %d %a %a %lld %d %d\n", v.backend, v.scoring, v.precision, v.device ? v.device : "",
        v.timed_calls, v.python ? v.python : "", v.cache_dir ? v.cache_dir : "", v.threads, v.trials,
        v.compile_timeout_s, v.run_timeout_s, (long long)v.memory_bytes, v.measure, v.allow_weaker);
    ADD("%d %d %a %a %a %d %d\n", v.timing_method, v.warm_calls, v.trim, v.interval, v.timing_budget_s, v.staged,
        v.single_input);
}

static void of_advantages(const struct train_options *o, struct str *out) {
    struct advantage_sample s[] = {{0, true, 0.1, 0, 0, 0}, {0, true, 0.7, 0, 0, 0}, {0, true, 0.9, 0, 0, 0},
                                   {0, true, 1.4, 0, 0, 0}, {0, true, 2.0, 0, 0, 0}, {1, true, 1.0, 0, 0, 0},
                                   {1, true, 1.0, 0, 0, 0}};
    double baseline = 0.3;
    (void)advantage_batch(&o->advantage, s, ARRAY_LEN(s), 2, &baseline);
    for (size_t i = 0; i < ARRAY_LEN(s); i++) ADD("%a %d ", s[i].advantage, s[i].takes_part);
    ADD("%a\n", baseline);
}

/* Two updates of a tiny model, the second one off policy, and against a reference. */
static void of_updates(const struct train_options *o, struct str *out) {
    struct model *m = tiny_model(1, false), *reference = o->update.loss.kl_coef > 0 ? tiny_model(2, false) : NULL;
    int count;
    const struct param *p = model_params(m, &count);
    struct trainer *trainer;
    CHECK(trainer_open(test_comm(), m, ADAPTER_OWN, 1 << 20, &trainer, &err));
    int64_t opt_step = 0;
    struct update_stats u;
    for (int round = 0; round < 2; round++) {
        struct sample_group g[3] = {0};
        struct rng r = rng_make(5, 1);
        for (int i = 0; i < 3; i++) {
            for (int k = 0; k < 6 + i; k++) ids_add(&g[i].prompt, (int32_t)rng_below(&r, 256));
            g[i].n = 2;
            g[i].stale = 1; /* their log-probabilities are made up */
            g[i].ep = xcalloc(2, sizeof *g[i].ep);
            for (int j = 0; j < 2; j++) {
                struct episode *ep = &g[i].ep[j];
                ep->present = true;
                ep->advantage = j ? -1.5 : 1 + i;
                ep->sample = (struct sample){.n = 5 + 2 * j + i, .stop = j ? STOP_LENGTH : STOP_TOKEN};
                ep->sample.ids = xcalloc(16, sizeof(int32_t));
                ep->sample.logp = xcalloc(16, sizeof(float));
                for (int t = 0; t < ep->sample.n; t++) {
                    ep->sample.ids[t] = (int32_t)rng_below(&r, 256);
                    ep->sample.logp[t] = -9 * (float)rng_next_f64(&r);
                }
            }
        }
        struct train_options now = schedule_at(o, 0.5);
        CHECK(update_policy(trainer, &(struct kl_reference){reference, ADAPTER_OWN}, &now, NULL, g, 3, &opt_step, &u,
                            &err));
        ADD("%a %a %lld %a %d\n", u.loss.loss, u.learning_rate, (long long)u.rows, u.grad_norm, u.optimizer_steps);
        groups_free(g, 3);
    }
    double sum = 0;
    for (int i = 0; i < count; i++)
        for (int64_t k = 0; k < p[i].n; k++) sum += (double)p[i].w[k] * (double)(1 + k % 7);
    ADD("%a\n", sum);
    trainer_close(trainer);
    model_free(m);
    model_free(reference);
}

static void of_prompts(const struct train_options *o, struct str *out) {
    struct session s = {0};
    struct arena a = ARENA_INIT;
    struct chat_message m[2];
    static const struct problem p = {.key = "k", .code = "class Model: pass\n"};
    static const struct spec spec = {0};
    enum chat_style style;
    CHECK(session_prompts(o, &s, &err));
    prompt_build(&(struct prompt_input){.problem = &p,
                                        .spec = &spec,
                                        .backend = s.actor.backend,
                                        .think = o->thinking,
                                        .precision = s.actor.precision,
                                        .hardware = s.actor.hardware,
                                        .examples = s.actor.examples,
                                        .n_examples = s.actor.n_examples},
                 &a, m);
    ADD("%s\n%s\n", m[0].content, m[1].content);
    CHECK(chat_style_choose(o->renderer_name, "qwen3", o->thinking, &style, &err));
    ADD("%d %d %d %lld %a\n", style, s.actor.o.history, s.actor.o.full_feedback, (long long)s.actor.o.prompt_tokens,
        s.actor.o.min_p);
    str_free(&s.hardware);
    arena_free(&a);
}

static void of_problems(const struct train_options *o, struct str *out) {
    struct session s = {0};
    const struct problem **train = NULL, **test = NULL;
    int n_train = 0, n_test = 0;
    const enum status st = session_problems(o, &s, &train, &n_train, &test, &n_test, &err);
    ADD("%d %d %d\n", st, n_train, n_test);
    if (st != ST_OK) ADD("%s\n", err.msg);
    for (int i = 0; st == ST_OK && i < n_train; i++) ADD("%s ", train[i]->key);
    if (st == ST_OK && o->curriculum.enabled) {
        struct curriculum c;
        curriculum_init(&c, o, train, n_train);
        for (int64_t step = 0; step < 12; step++) {
            const struct problem *batch[16];
            curriculum_pick(&c, o, step, 16, batch);
            for (int i = 0; i < 16; i++) ADD("%s ", batch[i]->key);
            struct episode ep[2] = {{.present = true}, {.present = true}};
            for (int k = 0; k < 2; k++) ep[k].verdict.outcome = step % 3 ? OUTCOME_CORRECT : OUTCOME_CRASH;
            struct sample_group g[2] = {{.problem = batch[0], .ep = ep, .n = 1},
                                        {.problem = batch[15], .ep = ep + 1, .n = 1}};
            curriculum_update(&c, o, &(struct rollout){.group = g, .n = 2});
        }
        curriculum_free(&c);
    }
    free(train);
    free(test);
    problem_set_free(&s.problems);
    problem_set_free(&s.generated);
}

/* Keys that only a whole run shows, and where it is shown. */
static const struct {
    const char *key, *shown_by;
} elsewhere[] = {
    {"model_name", "tests/e2e/train.sh"},
    {"model_revision", "tests/e2e/hub.sh"},
    {"trainer", "tests/e2e/tinker.sh"},
    {"server_model", "tests/e2e/tinker.sh"},
    {"sampler", "tests/e2e/remote.sh"},
    {"base_url", "tests/e2e/remote.sh"},
    {"server_type", "tests/e2e/remote.sh"},
    {"api_key_env", "tests/e2e/remote.sh"},
    {"reasoning_effort", "tests/e2e/remote.sh"},
    {"sampler_concurrency", "tests/e2e/remote.sh"},
    {"sampler_timeout_s", "tests/e2e/remote.sh"},
    {"sampler_tries", "tests/e2e/remote.sh"},
    {"load_checkpoint_path", "tests/e2e/train.sh"},
    {"log_path", "tests/e2e/train.sh"},
    {"device", "src/rl/loop/device_test.c"},
    {"dtype", "src/model/bf16_test.c"},
    {"base_dtype", "src/model/coded_test.c"},
    {"numerics", "src/rl/learn/update_test.c"},
    {"lora_rank", "tests/e2e/train.sh"},
    {"lora_expert_rank", "tests/e2e/moe.sh"},
    {"lora_expert_files", "tests/e2e/moe.sh"},
    {"lora_alpha", "src/model/model_test.c"},
    {"train_tokens", "src/rl/learn/update_test.c"},
    {"curriculum.by_difficulty", "src/rl/rollout/curriculum_test.c"},
    {"activation_memory", "src/model/recompute_test.c"},
    {"verify_hosts", "src/verify/pool/pool_test.c"},
    {"verify_class", "src/verify/pool/pool_test.c"},
    {"verify_lease", "src/verify/pool/pool_test.c"},
    {"verify_deadline", "src/verify/pool/pool_test.c"},
    {"verify_audit", "src/verify/pool/pool_test.c"},
    {"verify_cache", "src/verify/pool/pool_test.c"},
    {"ranks", "tests/e2e/ranks.sh"},
    {"gpus", "tests/e2e/ranks.sh"},
    {"peer_timeout", "tests/e2e/ranks.sh"},
    {"kv_memory", "src/engine/engine_test.c"},
    {"roles.verifier_samples", "src/rl/loop/roles_test.c"},
    {"roles.verifier_answers", "src/rl/loop/roles_test.c"},
    {"roles.verifier_weight", "src/rl/loop/roles_test.c"},
    {"roles.corrector_samples", "src/rl/loop/roles_test.c"},
    {"roles.corrector_answers", "src/rl/loop/roles_test.c"},
    {"roles.corrector_weight", "src/rl/loop/roles_test.c"},
    {"roles.judge_reward", "src/rl/loop/roles_test.c"},
    {"roles.judge_samples", "src/rl/loop/roles_test.c"},
    {"roles.judge_weight", "src/rl/loop/roles_test.c"},
    {"roles.proposals", "src/rl/loop/roles_test.c"},
    {"roles.proposer_weight", "src/rl/loop/roles_test.c"},
    {"roles.proposer_trigger", "src/rl/loop/roles_test.c"},
    {"roles.proposer_window", "src/rl/loop/roles_test.c"},
    {"roles.answer_tokens", "src/rl/loop/roles_test.c"},
    {"advantage_group", "tests/faults/killed_run.sh"},
    {"hierarchical_rewards", "tests/faults/killed_run.sh"},
    {"refill_rounds", "tests/faults/killed_run.sh"},
    {"overlap", "src/rl/rollout/rollout_test.c"},
    {"max_staleness", "tests/faults/killed_run.sh"},
    {"max_steps", "tests/e2e/train.sh"},
    {"start_batch", "tests/e2e/keys.sh"},
    {"resume_from_batch", "tests/e2e/keys.sh"},
    {"save_every", "tests/e2e/resume.sh"},
    {"keep_checkpoints", "tests/e2e/keys.sh"},
    {"download_checkpoints", "tests/e2e/tinker.sh"},
    {"eval_every", "tests/e2e/resume.sh"},
    {"eval_samples", "tests/e2e/keys.sh"},
    {"tensorboard_enabled", "tests/e2e/keys.sh"},
    {"tensorboard_log_histograms_every", "tests/e2e/keys.sh"},
    {"tensorboard_log_per_level", "tests/e2e/keys.sh"},
    {"dataset_builder.batch_size", "tests/e2e/train.sh"},
    {"dataset_builder.num_epochs", "tests/e2e/keys.sh"},
    {"dataset_builder.shuffle", "tests/e2e/keys.sh"},
    {"dataset_builder.rag_index_path", "src/rl/rollout/raicl_test.c"},
    {"dataset_builder.raicl_k", "src/rl/rollout/raicl_test.c"},
    {"dataset_builder.raicl_max_tokens", "src/rl/rollout/raicl_test.c"},
};

/* What a key needs beside it, and a value where the usual ones do not do. */
static const struct {
    const char *key, *with, *value;
} needs[] = {
    {"clip_low", "loss_fn=ppo update_epochs=3 learning_rate=0.02", "0"},
    {"clip_high", "loss_fn=ppo update_epochs=3 learning_rate=0.02", "0"},
    {"clip_dual", "loss_fn=ppo update_epochs=3 learning_rate=0.02", "1.1"},
    {"dro_beta", "loss_fn=dro update_epochs=2 learning_rate=0.01", "0.5"},
    {"ratio_correction", "max_staleness=1", "mask"},
    {"ratio_low", "max_staleness=1 ratio_correction=mask", "1"},
    {"ratio_high", "max_staleness=1 ratio_correction=truncate", "1"},
    {"kl_penalty_in", "kl_penalty_coef=0.5", "reward"},
    {"kl_estimator", "kl_penalty_coef=0.5", "k2"},
    {"kl_discount_factor", "kl_penalty_coef=0.5 kl_penalty_in=reward", "0.5"},
    {"baseline_decay", "advantage=ema", "0.5"},
    {"reward_temperature", "advantage=exponential", "2"},
    {"entropic_beta", "advantage=entropic", "2"},
    {"advantage_k", "advantage=max_k", "2"},
    {"keep_best", "advantage=best", "1"},
    {"keep_threshold", "advantage=best", "1.5"},
    {"min_lr_ratio", "lr_schedule=linear", "0.5"},
    {"max_turns", "mode=multi_turn", "2"},
    {"remove_constant_reward_groups", "advantage=batch_mean", "false"},
    {"max_grad_norm", NULL, "0.001"},
    {"schedule.partial_until", "partial_correctness=true", "0.5"},
    {"schedule.speed_from", "reward_speed_weight=1 schedule.speed_until=0.9", "0.5"},
    {"schedule.speed_until", "reward_speed_weight=1", "0.9"},
    {"dataset_builder.end_problem", NULL, "3"},
    {"dataset_builder.start_problem", NULL, "3"},
    {"dataset_builder.speed_reward", "reward_speed_weight=1", "log"},
    {"dataset_builder.speed_max_reward", "reward_speed_weight=1", "2"},
    {"dataset_builder.check_for_excessive_speedup", "reward_speed_weight=1", "true"},
    {"dataset_builder.excessive_speedup_threshold", "reward_speed_weight=1 check_for_excessive_speedup=true", "5"},
    {"dataset_builder.length_min", "reward_length_weight=1", "200"},
    {"dataset_builder.length_max", "reward_length_weight=1", "5000"},
    {"dataset_builder.thinking_no_think", "reward_thinking_weight=1", "0"},
    {"dataset_builder.thinking_soft_max", "reward_thinking_weight=1", "1000"},
    {"dataset_builder.thinking_hard_max", "reward_thinking_weight=1", "9999"},
    {"dataset_builder.thinking_floor", "reward_thinking_weight=1", "0.1"},
    {"dataset_builder.overlong_penalty", "overlong_buffer_tokens=512", "2"},
    {"dataset_builder.precision", "backend=triton", "fp16"},
    {"dataset_builder.scoring", "backend=triton", "compat"},
    {"dataset_builder.timing_trim", NULL, "0.1"},
    {"dataset_builder.timing_method", "backend=triton", "calibrated"},
    {"dataset_builder.prompt_gpu_name", "prompt_include_hardware=true", "H200"},
    {"dataset_builder.prompt_option", NULL, "few_shot"},
    {"dataset_builder.test_fraction", "dataset_builder.source=set", "0.5"},
    {"dataset_builder.source", NULL, "/nonexistent.jsonl"},
    {"dataset_builder.dataset_src", "dataset_builder.source=builtin", "huggingface"},
    {"dataset_builder.level", NULL, "2"},
    {"dataset_builder.measure_performance", NULL, "false"},
    {"dataset_builder.generated_problems", NULL, "3"},
    {"dataset_builder.difficulty", NULL, "2"},
    {"dataset_builder.batch_factor", "dataset_builder.source=builtin", "2"},
    {"curriculum.start_share", "curriculum.enabled=true", "0.4"},
    {"curriculum.end_share", "curriculum.enabled=true curriculum.window=1 curriculum.increment=1", "0.2"},
    {"curriculum.increment", "curriculum.enabled=true curriculum.window=1", "0.4"},
    {"curriculum.trigger", "curriculum.enabled=true curriculum.window=2 curriculum.increment=0.4", "1"},
    {"curriculum.window", "curriculum.enabled=true curriculum.increment=0.4", "1"},
    {"renderer_name", NULL, "qwen2.5"},
    {"learning_rate", NULL, "0.01"},
    {"warmup_steps", NULL, "3"},
    {"weight_decay", NULL, "1"},
    {"sandbox.device", NULL, "cuda:3"},
    {"max_tokens", NULL, "100"},
};

static void fingerprint(const char *with, const char *assignment, struct str *out) {
    struct train_options o;
    struct config c;
    config_init(&c, &train_schema, &o);
    for (const char *p = with; p && *p; p += strcspn(p, " "), p += *p == ' ') {
        CLEANUP_FREE char *one = xstrndup(p, strcspn(p, " "));
        CHECK(config_set(&c, one, &err));
    }
    if (assignment) CHECK(config_set(&c, assignment, &err));
    CHECK(train_options_finish(&c, &o, &err));
    of_rollouts(&o, out);
    of_verifier(&o, out);
    of_advantages(&o, out);
    of_prompts(&o, out);
    of_problems(&o, out);
    of_updates(&o, out);
    config_free(&c);
}

/* The value to set: the table's, or another one of its type. */
static const char *another(const struct config_key *k) {
    for (size_t i = 0; i < ARRAY_LEN(needs); i++)
        if (strcmp(needs[i].key, k->name) == 0) return needs[i].value;
    if (k->type == CONFIG_BOOL) return strcmp(k->def, "true") == 0 ? "false" : "true";
    if (k->type == CONFIG_STRING) return "other";
    if (k->type != CONFIG_ENUM) return strcmp(k->def, "0.5") == 0 ? "1" : strcmp(k->def, "0") == 0 ? "1" : NULL;
    static char last[64];
    snprintf(last, sizeof last, "%s", strrchr(k->allowed, '|') + 1);
    return last;
}

static void every_key_has_an_effect(void **state) {
    (void)state;
    CHECK(fs_mkdirs(in_tmp("set/level1"), &err));
    for (int i = 1; i <= 6; i++) {
        char name[64];
        snprintf(name, sizeof name, "set/level1/%d_x%d.py", i, i);
        write_file(in_tmp(name), "class Model: pass\ndef get_inputs(): return []\ndef get_init_inputs(): return []\n");
    }
    assert_int_equal(chdir(tmp_dir), 0);
    CLEANUP_STR struct str plain = STR_INIT;
    fingerprint(NULL, NULL, &plain);
    int checked = 0, idle = 0;
    for (size_t i = 0; i < train_schema.count; i++) {
        const struct config_key *k = &train_schema.key[i];
        const char *with = NULL, *value = another(k);
        bool run_needed = false;
        for (size_t j = 0; j < ARRAY_LEN(elsewhere); j++) run_needed |= strcmp(elsewhere[j].key, k->name) == 0;
        if (run_needed) continue;
        for (size_t j = 0; j < ARRAY_LEN(needs); j++)
            if (strcmp(needs[j].key, k->name) == 0) with = needs[j].with;
        CLEANUP_STR struct str set = STR_INIT, base = STR_INIT, changed = STR_INIT;
        static const char *const numbers[] = {"0.25", "2", "7", "3000"};
        for (size_t v = 0; !value && v < ARRAY_LEN(numbers); v++) { /* the first that is allowed */
            struct train_options o;
            struct config c;
            str_clear(&set);
            str_addf(&set, "%s=%s", k->name, numbers[v]);
            config_init(&c, &train_schema, &o);
            if (config_set(&c, set.p, &err) == ST_OK) value = numbers[v];
            config_free(&c);
        }
        assert_non_null(value);
        str_clear(&set);
        str_addf(&set, "%s=%s", k->name, value);
        if (with) fingerprint(with, NULL, &base);
        fingerprint(with, set.p, &changed);
        if (strcmp(with ? str_c(&base) : str_c(&plain), str_c(&changed)) == 0) {
            print_error("%s%s%s changes nothing\n", set.p, with ? " with " : "", with ? with : "");
            idle++;
        }
        checked++;
    }
    print_message("%d keys, %zu more by tests of whole runs\n", checked, ARRAY_LEN(elsewhere));
    assert_int_equal(idle, 0);
}

/* The list of keys that other tests show names tests that are there, and keys that are. */
static void elsewhere_is_there(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(elsewhere); i++) {
        char path[4200];
        snprintf(path, sizeof path, "%s/%s", home_dir(), elsewhere[i].shown_by);
        CLEANUP_FREE char *text = read_file(path);
        const char *leaf = strrchr(elsewhere[i].key, '.');
        leaf = leaf ? leaf + 1 : elsewhere[i].key;
        if (str_has_suffix(path, ".sh") && !strstr(text, leaf)) fail_msg("%s does not speak of %s", path, leaf);
        struct str help = STR_INIT;
        CHECK(config_help(&train_schema, elsewhere[i].key, &help, &err));
        str_free(&help);
    }
}

/* docs/configuration.md speaks of every key and every other name. */
static void documented(void **state) {
    (void)state;
    char path[4200];
    snprintf(path, sizeof path, "%s/docs/configuration.md", home_dir());
    CLEANUP_FREE char *text = read_file(path);
    for (size_t i = 0; i < train_schema.count + train_schema.alias_count; i++) {
        const char *name =
            i < train_schema.count ? train_schema.key[i].name : train_schema.alias[i - train_schema.count].name;
        CLEANUP_STR struct str row = STR_INIT;
        str_addf(&row, "\n| `%s` |", name);
        if (!strstr(text, row.p)) fail_msg("docs/configuration.md has no row for %s", name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documented),
        cmocka_unit_test(elsewhere_is_there),
        cmocka_unit_test(every_key_has_an_effect),
    };
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
