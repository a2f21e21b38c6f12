/* Batches sampled ahead: what a checkpoint holds of them, whose weights they are of, and the time a step takes, with a
 * tiny model and a stand-in for the verifier. */
#include "rl/rollout/pipeline.h"

#include <math.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "rl/learn/update.h"
#include "rl/test_util.h"

enum { PROBLEMS = 2, SAMPLES = 3 };
static const struct problem problems[PROBLEMS] = {{.key = "a", .code = "class Model: a"},
                                                  {.key = "b", .code = "class Model: b"}};
static const struct problem *const both[PROBLEMS] = {&problems[0], &problems[1]};

/* Every answer takes `seconds`; two of three are right. */
struct stand_in {
    double seconds;
    int given;
};

static enum status judge_one(void *ctx, struct verify_item *items, size_t n, const volatile bool *cancel,
                             struct err *e) {
    struct stand_in *s = ctx;
    (void)cancel;
    (void)e;
    for (size_t i = 0; i < n; i++, s->given++) {
        nanosleep(&(struct timespec){.tv_nsec = (long)(s->seconds * 1e9)}, NULL); /* below one second */
        items[i].verdict = (struct verdict){.outcome = s->given % 3 ? OUTCOME_CORRECT : OUTCOME_WRONG_OUTPUT,
                                            .speedup = 1 + 0.1 * (s->given % 7)};
    }
    return ST_OK;
}

/* Large enough that sampling and training take time. */
static const char slow_config[] =
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"vocab_size\":272,\"hidden_size\":128,"
    "\"intermediate_size\":512,\"num_hidden_layers\":4,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"head_dim\":32,\"max_position_embeddings\":1024,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,"
    "\"hidden_act\":\"silu\",\"tie_word_embeddings\":true,\"eos_token_id\":257}";

struct scene {
    struct model *model;
    struct engine *engine;
    struct tokenizer *tok;
    struct trainer *trainer;
    struct lease *lease;
    struct actor actor;
    struct stand_in judge;
};

static void open_scene(struct scene *s, bool slow) {
    *s = (struct scene){0};
    if (slow) {
        CHECK(model_init(slow_config, 1, NULL, test_backend(), &s->model, &err));
        CHECK(model_train_prepare(s->model, TRAIN_FULL, &err));
    } else
        s->model = tiny_model(1, false);
    CHECK(trainer_open(test_comm(), s->model, ADAPTER_OWN, 1 << 20, &s->trainer, &err));
    write_byte_tokenizer(in_tmp("tok"));
    CHECK(tokenizer_open(in_tmp("tok"), &s->tok, &err));
    CHECK(engine_open(s->model, &(struct engine_options){.max_batch = 8, .vocab_limit = 256}, &s->engine, &err));
    s->lease = lease_create();
    const struct judge judge = {.batch = judge_one, .ctx = &s->judge};
    s->actor = (struct actor){.model = s->model,
                              .engine = s->engine,
                              .tok = s->tok,
                              .style = CHAT_QWEN3_INSTRUCT,
                              .judging = judging_create(NULL, &judge, true, NULL),
                              .lease = s->lease,
                              .backend = backend_named("triton"),
                              .o = {.prompt_tokens = 900, .history = HISTORY_ALL}};
}

static void close_scene(struct scene *s) {
    judging_free(s->actor.judging);
    engine_close(s->engine);
    tokenizer_close(s->tok);
    trainer_close(s->trainer);
    model_free(s->model);
    lease_free(s->lease);
}

static const struct rollout_params base = {
    .o = {.group_size = SAMPLES, .max_tokens = 12, .temperature = 1, .max_turns = 1, .gamma = 0.4},
    .seed = 7,
    .weights = {.compile = 0.2, .correct = 1, .speed = 1, .speed_cap = 3}};

static void sample(struct scene *s, struct pipeline *p, const struct rollout_params *params, int64_t step,
                   int64_t sampled_in, int64_t opt_step) {
    struct rollout_params q = *params;
    q.step = step;
    q.stream = (uint64_t)(step * PROBLEMS);
    struct batch *b = pipeline_push(p, step, sampled_in, opt_step);
    CHECK(rollout_sample(&s->actor, both, PROBLEMS, &q, &b->r, NULL, &err));
}

static void same_rollout(const struct rollout *a, const struct rollout *b) {
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->n_tasks, b->n_tasks);
    assert_int_equal(a->n_trajectories, b->n_trajectories);
    for (int i = 0; i < a->n; i++) {
        const struct sample_group *g = &a->group[i], *h = &b->group[i];
        assert_true(g->problem == h->problem && g->task == h->task && g->turn == h->turn && g->first == h->first);
        assert_int_equal(g->n, h->n);
        assert_int_equal(g->prompt.len, h->prompt.len);
        assert_memory_equal(g->prompt.p, h->prompt.p, g->prompt.len * sizeof *g->prompt.p);
        for (int j = 0; j < g->n; j++) {
            const struct episode *x = &g->ep[j], *y = &h->ep[j];
            const size_t n = (size_t)x->sample.n;
            assert_int_equal(x->sample.n, y->sample.n);
            assert_int_equal(x->sample.stop, y->sample.stop);
            assert_memory_equal(x->sample.ids, y->sample.ids, n * sizeof *x->sample.ids);
            assert_memory_equal(x->sample.logp, y->sample.logp, n * sizeof *x->sample.logp);
            assert_memory_equal(x->sample.entropy, y->sample.entropy, n * sizeof *x->sample.entropy);
            assert_string_equal(x->text, y->text);
            assert_true(!x->kernel == !y->kernel && (!x->kernel || strcmp(x->kernel, y->kernel) == 0));
            assert_true(x->plan_tokens == y->plan_tokens && x->format_ok == y->format_ok);
        }
    }
    for (int k = 0; k < a->n_trajectories; k++) {
        const struct trajectory *x = &a->trajectory[k], *y = &b->trajectory[k];
        assert_true(x->task == y->task && x->sample == y->sample && x->n_turns == y->n_turns);
        for (int i = 0; i < x->n_turns; i++)
            assert_memory_equal(x->turn[i]->sample.ids, y->turn[i]->sample.ids, (size_t)x->turn[i]->sample.n * 4);
    }
}

/* Two batches of three turns go through a checkpoint and come back as they were; their verdicts are asked for again. A
 * batch of the very step is left out, since its checkpoint's weights sample it again. */
static void what_a_checkpoint_holds(void **state) {
    (void)state;
    struct scene s;
    open_scene(&s, false);
    struct pipeline p = {0}, again = {0}, none = {0};
    struct rollout_params params = base;
    params.o.max_turns = 3;
    CHECK(fs_mkdirs(in_tmp("ckpt"), &err));
    CHECK(pipeline_save(&p, 5, in_tmp("ckpt"), &err));
    assert_int_not_equal(access(in_tmp("ckpt/in_flight.safetensors"), F_OK), 0); /* nothing, no file */
    CHECK(pipeline_load(&again, in_tmp("ckpt"), &s.actor, both, PROBLEMS, &err));
    assert_int_equal(again.n, 0);
    for (int64_t step = 5; step < 8; step++) sample(&s, &p, &params, step, step - 2, 10 + step);
    CHECK(pipeline_save(&p, 5, in_tmp("ckpt"), &err)); /* steps 5 and 6; 7 was sampled in 5 */
    for (int i = 0; i < 3; i++) CHECK(rollout_score(&s.actor, &params, &p.batch[i]->r, 0, NULL, &err));
    const int before = s.judge.given;
    CHECK(pipeline_load(&again, in_tmp("ckpt"), &s.actor, both, PROBLEMS, &err));
    assert_int_equal(again.n, 2);
    for (int i = 0; i < 2; i++) {
        assert_true(again.batch[i]->step == 5 + i && again.batch[i]->sampled_at == 15 + i);
        assert_true(again.batch[i]->sampled_in < 5); /* the next checkpoint holds them again */
        same_rollout(&p.batch[i]->r, &again.batch[i]->r);
        CHECK(rollout_score(&s.actor, &params, &again.batch[i]->r, 0, NULL, &err));
        for (int k = 0; k < again.batch[i]->r.n_trajectories; k++)
            assert_true(again.batch[i]->r.trajectory[k].turn[2]->has_return);
    }
    assert_int_equal(s.judge.given - before, 2 * 3 * PROBLEMS * SAMPLES);
    assert_int_equal(pipeline_age(&again, 18), 3);
    assert_int_equal(again.batch[0]->r.group[1].stale, 3);
    /* Other problems than those of the run; a damaged file. */
    CHECK_FAILS(pipeline_load(&none, in_tmp("ckpt"), &s.actor, both, 1, &err), ST_INVALID, "not among");
    assert_int_equal(none.n, 0);
    CHECK(truncate(in_tmp("ckpt/in_flight.safetensors"), 300) == 0 ? ST_OK : ST_IO);
    CHECK_FAILS(pipeline_load(&none, in_tmp("ckpt"), &s.actor, both, PROBLEMS, &err), ST_PARSE, "in_flight");
    pipeline_free(&p);
    pipeline_free(&again);
    close_scene(&s);
}

static void give_advantages(struct rollout *r) {
    for (int i = 0, k = 0; i < r->n; i++)
        for (int j = 0; j < r->group[i].n; j++, k++) r->group[i].ep[j].advantage = k % 2 ? 1 : -1;
}

static struct train_options options(double rate) {
    struct train_options o;
    struct config c;
    config_init(&c, &train_schema, &o);
    config_free(&c);
    o.update.adam.learning_rate = rate;
    o.update.loss.kind = LOSS_IMPORTANCE_SAMPLING;
    return o;
}

/* A batch one update old: its log-probabilities are those of the weights that sampled it, the trainer's at the start of
 * the update are others, and a correction by their ratio gives another gradient. A fresh batch must agree bit for bit,
 * and an update that takes a stale one for fresh is refused. */
static void stale_samples_are_corrected(void **state) {
    (void)state;
    double norm[2];
    for (int corrected = 0; corrected < 2; corrected++) {
        struct scene s;
        open_scene(&s, false);
        struct pipeline p = {0};
        struct update_stats u;
        int64_t opt_step = 0;
        struct train_options o = options(0.02);
        o.update.loss.correction = corrected ? CORRECT_TRUNCATE : CORRECT_NONE;
        sample(&s, &p, &base, 0, 0, opt_step);
        sample(&s, &p, &base, 1, 0, opt_step); /* while 0 waits for its verdicts */
        for (int step = 0; step < 2; step++) {
            struct rollout *r = &p.batch[0]->r;
            CHECK(rollout_score(&s.actor, &base, r, 0, NULL, &err));
            assert_int_equal(pipeline_age(&p, opt_step), step);
            give_advantages(r);
            CHECK(update_policy(s.trainer, NULL, &o, s.lease, r->group, r->n, &opt_step, &u, &err));
            if (step == 0) {
                assert_true(u.kl_before == 0 && u.loss.k2 == 0); /* on-policy */
                pipeline_pop(&p);
            }
        }
        assert_true(u.loss.k2 > 0 && u.loss.d_max > 1e-4); /* the sampler's weights are gone */
        norm[corrected] = u.grad_norm;
        sample(&s, &p, &base, 2, 2, opt_step);
        pipeline_pop(&p);
        struct rollout *r = &p.batch[0]->r;
        CHECK(rollout_score(&s.actor, &base, r, 0, NULL, &err));
        assert_int_equal(pipeline_age(&p, opt_step), 0);
        give_advantages(r);
        CHECK(update_policy(s.trainer, NULL, &o, s.lease, r->group, r->n, &opt_step, &u, &err));
        assert_true(u.kl_before == 0);
        assert_int_equal(pipeline_age(&p, p.batch[0]->sampled_at), 0); /* as if nothing had happened since */
        CHECK_FAILS(update_policy(s.trainer, NULL, &o, s.lease, r->group, r->n, &opt_step, &u, &err), ST_FAILED,
                    "before any update");
        pipeline_free(&p);
        close_scene(&s);
    }
    assert_true(fabs(norm[0] - norm[1]) > 1e-6 * norm[0]);
}

/* ---- the schedule -------------------------------------------------------------------------------------------------*/

enum { STEPS = 4, ANSWERS = PROBLEMS * SAMPLES };
struct spent {
    double step, sampling, training; /* seconds a step, in the steady state */
};

/* Steps of the loop with max_staleness k: sample ahead, wait, train. */
static struct spent run_steps(int k, double verdict_s) {
    struct scene s;
    open_scene(&s, true);
    s.judge.seconds = verdict_s;
    struct pipeline p = {0};
    struct rollout_params params = base;
    params.o.max_tokens = 48;
    struct train_options o = options(1e-4);
    o.update.loss.correction = k > 0 ? CORRECT_TRUNCATE : CORRECT_NONE;
    struct spent t = {0};
    int64_t opt_step = 0;
    double from = 0;
    for (int64_t step = 0; step < STEPS; step++) {
        if (step == 1) from = clock_now_s(); /* the first one fills the pipeline */
        const double t0 = clock_now_s();
        for (int64_t next = p.n ? p.batch[p.n - 1]->step + 1 : step; next <= step + k; next++)
            sample(&s, &p, &params, next, step, opt_step);
        const double t1 = clock_now_s();
        struct rollout *r = &p.batch[0]->r;
        CHECK(rollout_score(&s.actor, &params, r, 0, NULL, &err));
        assert_int_equal(pipeline_age(&p, opt_step), step < k ? step : k);
        give_advantages(r);
        struct update_stats u;
        const double t2 = clock_now_s();
        CHECK(update_policy(s.trainer, NULL, &o, s.lease, r->group, r->n, &opt_step, &u, &err));
        if (step > 0) {
            t.sampling += (t1 - t0) / (STEPS - 1);
            t.training += (clock_now_s() - t2) / (STEPS - 1);
        }
        pipeline_pop(&p);
    }
    t.step = (clock_now_s() - from) / (STEPS - 1);
    pipeline_free(&p);
    close_scene(&s);
    return t;
}

/* Verdicts of 100 ms each, one after the other, beside a model that samples and trains: a step ahead, the step takes as
 * long as the longer of the two, within 15 %. On-policy it takes nearly as long as both together. */
static void a_step_ahead_is_near_the_ideal(void **state) {
    (void)state;
    const double verdicts = ANSWERS * 0.1;
    double ideal = 0;
    struct spent ahead = {0}, apart = {0};
    for (int attempt = 0; attempt < 4; attempt++) { /* others may use this machine */
        apart = run_steps(0, 0.1);
        ahead = run_steps(1, 0.1);
        ideal = fmax(ahead.sampling + ahead.training, verdicts);
        if (ahead.step < 1.15 * ideal) break;
    }
    print_message("a step of %d verdicts, %.2f s: %.2f s with sampling %.2f s and training %.2f s, ideal %.2f s; "
                  "on-policy %.2f s\n",
                  ANSWERS, verdicts, ahead.step, ahead.sampling, ahead.training, ideal, apart.step);
    if (ahead.step >= 1.15 * ideal) fail_msg("%.3f s, the ideal schedule takes %.3f s", ahead.step, ideal);
    assert_true(apart.step > verdicts + apart.training); /* what overlaps there is sampling alone */
}

/* What comes while others are still sampled is one batch, and nobody waits for more once all is there. */
static void answers_gather(void **state) {
    (void)state;
    struct stand_in s = {0};
    const struct judge judge = {.batch = judge_one, .ctx = &s};
    struct judging *q = judging_create(NULL, &judge, true, NULL);
    struct judging_batch b = {0};
    struct verdict v[4];
    const struct timespec moment = {.tv_nsec = 30000000};
    judging_gather(q, 60);
    const double from = clock_now_s();
    for (int i = 0; i < 3; i++) {
        judging_add(q, &b, &problems[0], "x", &(struct journal_place){.sample = i}, &v[i]);
        nanosleep(&moment, NULL);
    }
    CHECK(judging_wait(q, &b, &err));
    assert_true(clock_now_s() - from < 30);
    assert_int_equal(judging_stats(q).calls, 1);
    judging_gather(q, 0.01); /* and it is not for ever */
    judging_add(q, &b, &problems[0], "x", &(struct journal_place){.sample = 3}, &v[3]);
    for (int i = 0; i < 1000 && judging_stats(q).calls == 0; i++) nanosleep(&moment, NULL);
    assert_int_equal(s.given, 4);
    CHECK(judging_wait(q, &b, &err));
    judging_free(q);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_checkpoint_holds),
        cmocka_unit_test(answers_gather),
        cmocka_unit_test(stale_samples_are_corrected),
        cmocka_unit_test(a_step_ahead_is_near_the_ideal),
    };
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
