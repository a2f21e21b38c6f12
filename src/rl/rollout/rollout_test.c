/* Turns, scores and the order of work, with a tiny model and a stand-in for the verifier. */
#include "rl/rollout/rollout.h"

#include <math.h>
#include <time.h>

#include "base/clock.h"
#include "rl/test_util.h"

enum { PROBLEMS = 2, SAMPLES = 3 };
static const struct problem problems[PROBLEMS] = {{.key = "a", .code = "class Model: a"},
                                                  {.key = "b", .code = "class Model: b"}};
static const struct problem *const both[PROBLEMS] = {&problems[0], &problems[1]};

/* Verdicts by the number of the call for the answer: turn t of every sample gets script[t]; the first sample of all
 * gets odd[t] where that is not OUTCOME_NO_KERNEL. */
struct script {
    struct verdict by_turn[4];
    enum outcome odd[4];
    int given;      /* answers judged */
    int per_turn;   /* answers of a full turn */
    double seconds; /* each takes this long */
};

static void sleep_s(double s) {
    nanosleep(&(struct timespec){.tv_sec = (time_t)s, .tv_nsec = (long)((s - floor(s)) * 1e9)}, NULL);
}

static enum status stand_in(void *ctx, struct verify_item *items, size_t n, const volatile bool *cancel,
                            struct err *e) {
    struct script *s = ctx;
    (void)cancel;
    (void)e;
    for (size_t i = 0; i < n; i++, s->given++) {
        const int turn = s->per_turn ? s->given / s->per_turn : 0;
        if (s->seconds > 0) sleep_s(s->seconds);
        items[i].verdict = s->by_turn[turn < 4 ? turn : 3];
        if (s->per_turn && s->given % s->per_turn == 0 && s->odd[turn] != OUTCOME_NO_KERNEL)
            items[i].verdict = (struct verdict){.outcome = s->odd[turn]};
    }
    return ST_OK;
}

struct scene {
    struct model *model;
    struct engine *engine;
    struct tokenizer *tok;
    struct actor actor;
};

/* Large enough that sampling takes time. */
static const char slow_config[] =
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"vocab_size\":272,\"hidden_size\":256,"
    "\"intermediate_size\":1024,\"num_hidden_layers\":6,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"head_dim\":64,\"max_position_embeddings\":1024,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,"
    "\"hidden_act\":\"silu\",\"tie_word_embeddings\":true,\"eos_token_id\":257}";

static void open_scene(struct scene *s, struct script *script, bool background, int max_batch) {
    *s = (struct scene){0};
    if (max_batch > 1)
        s->model = tiny_model(1, false);
    else
        CHECK(model_init(slow_config, 1, NULL, test_backend(), &s->model, &err));
    write_byte_tokenizer(in_tmp("tok"));
    CHECK(tokenizer_open(in_tmp("tok"), &s->tok, &err));
    CHECK(
        engine_open(s->model, &(struct engine_options){.max_batch = max_batch, .vocab_limit = 256}, &s->engine, &err));
    const struct judge judge = {.batch = stand_in, .ctx = script};
    s->actor = (struct actor){.model = s->model,
                              .engine = s->engine,
                              .tok = s->tok,
                              .style = CHAT_QWEN3_INSTRUCT,
                              .judging = judging_create(NULL, &judge, background, NULL),
                              .backend = backend_named("triton")};
}

static void close_scene(struct scene *s) {
    judging_free(s->actor.judging);
    engine_close(s->engine);
    tokenizer_close(s->tok);
    model_free(s->model);
}

static char *prompt_text(const struct scene *s, const struct sample_group *g) {
    struct str t = STR_INIT;
    tokenizer_decode(s->tok, g->prompt.p, g->prompt.len, false, &t);
    return str_steal(&t);
}

static const struct rollout_params base = {
    .o = {.group_size = SAMPLES, .max_tokens = 12, .temperature = 1, .max_turns = 3, .gamma = 0.4},
    .seed = 7,
    .weights = {.compile = 0.2, .correct = 1, .speed = 1, .speed_cap = 3}};

/* Wrong, then right and slow, then right and fast. */
static struct script three_turns(void) {
    return (struct script){.by_turn = {{.outcome = OUTCOME_COMPILE_ERROR, .message = "kernel.c:1: error: what"},
                                       {.outcome = OUTCOME_CORRECT, .speedup = 0.5},
                                       {.outcome = OUTCOME_CORRECT, .speedup = 2}},
                           .odd = {OUTCOME_NO_KERNEL, OUTCOME_NO_KERNEL, OUTCOME_NO_KERNEL, OUTCOME_NO_KERNEL},
                           .per_turn = PROBLEMS * SAMPLES};
}

static void turns_and_returns(void **state) {
    (void)state;
    struct script script = three_turns();
    struct scene s;
    open_scene(&s, &script, false, 4);
    s.actor.o.history = HISTORY_ALL;
    s.actor.o.prompt_tokens = 1000;
    struct rollout r = {0};
    CHECK(rollout_run(&s.actor, both, PROBLEMS, &base, &r, NULL, &err));
    assert_int_equal(r.n,
                     PROBLEMS + 2 * PROBLEMS * SAMPLES); /* first turns share a prompt, later ones have their own */
    assert_int_equal(r.n_tasks, PROBLEMS);
    assert_int_equal(r.n_trajectories, PROBLEMS * SAMPLES);
    for (int k = 0; k < r.n_trajectories; k++) {
        const struct trajectory *t = &r.trajectory[k];
        assert_true(t->task == k / SAMPLES && t->sample == k % SAMPLES && t->n_turns == 3);
        const double score[] = {0, 0.2 + 1 + 0.5, 0.2 + 1 + 2};
        const double want[] = {0.4 * (score[1] + 0.4 * score[2]), score[1] + 0.4 * score[2], score[2]};
        for (int i = 0; i < 3; i++) {
            assert_true(t->turn[i]->has_return && fabs(t->turn[i]->ret - want[i]) < 1e-12);
            assert_true(fabs(t->turn[i]->reward.total - score[i]) < 1e-12);
        }
    }
    /* What the turns say; samples differ, and so do the turns of one. */
    CLEANUP_FREE char *first = prompt_text(&s, &r.group[0]), *second = prompt_text(&s, &r.group[PROBLEMS]),
                      *third = prompt_text(&s, &r.group[PROBLEMS + PROBLEMS * SAMPLES]);
    assert_null(strstr(first, "Attempt"));
    assert_non_null(strstr(second, "\nAttempt 1:\nNo kernel.\nResult: does not compile\nkernel.c:1: error: what"));
    assert_non_null(strstr(second, "Write a better kernel."));
    assert_non_null(strstr(third, "\nAttempt 2:\nNo kernel.\nResult: correct, 0.50x"));
    const struct episode *a = r.trajectory[0].turn[1], *b = r.trajectory[1].turn[1];
    assert_true(a->sample.n != b->sample.n || memcmp(a->sample.ids, b->sample.ids, (size_t)a->sample.n * 4) != 0);
    for (int i = 0; i < r.n; i++) /* token in, token out */
        for (int j = 0; j < r.group[i].n; j++) assert_non_null(r.group[i].ep[j].sample.logp);
    rollout_free(&r);
    close_scene(&s);
}

/* Only the latest attempt, or what fits. */
static void history_and_budget(void **state) {
    (void)state;
    for (int latest = 0; latest < 2; latest++) {
        struct script script = three_turns();
        script.per_turn = SAMPLES;
        struct scene s;
        open_scene(&s, &script, false, 4);
        struct rollout whole = {0}, r = {0};
        s.actor.o.history = HISTORY_ALL;
        CHECK(rollout_run(&s.actor, both, 1, &base, &whole, NULL, &err));
        const int last = 1 + SAMPLES; /* the first third turn */
        s.actor.o.history = latest ? HISTORY_LATEST : HISTORY_ALL;
        s.actor.o.prompt_tokens = latest ? 0 : (int64_t)whole.group[last].prompt.len - 1;
        script.given = 0;
        CHECK(rollout_run(&s.actor, both, 1, &base, &r, NULL, &err));
        CLEANUP_FREE char *text = prompt_text(&s, &r.group[last]);
        assert_non_null(strstr(text, "Attempt 1:"));
        assert_null(strstr(text, "Attempt 2:"));
        assert_non_null(strstr(text, "correct, 0.50x")); /* the newest one stayed */
        assert_true(r.group[last].prompt.len < whole.group[last].prompt.len);
        /* Not even the problem fits. */
        struct rollout none = {0};
        s.actor.o.prompt_tokens = 10;
        CHECK_FAILS(rollout_run(&s.actor, both, 1, &base, &none, NULL, &err), ST_INVALID, "10 are allowed");
        assert_non_null(strstr(err.msg, "problem a"));
        rollout_free(&none);
        rollout_free(&whole);
        rollout_free(&r);
        close_scene(&s);
    }
}

static void ends_early(void **state) {
    (void)state;
    struct rollout_params p = base;
    p.o.early_stop = true;
    for (int threshold = 0; threshold < 2; threshold++) {
        struct script script = three_turns();
        struct scene s;
        open_scene(&s, &script, false, 4);
        struct rollout r = {0};
        p.o.speedup_threshold = threshold ? 1 : 0;
        CHECK(rollout_run(&s.actor, both, PROBLEMS, &p, &r, NULL, &err));
        for (int k = 0; k < r.n_trajectories; k++) assert_int_equal(r.trajectory[k].n_turns, threshold ? 3 : 2);
        rollout_free(&r);
        close_scene(&s);
    }
}

/* A verdict that is missing ends its trajectory; what led there has no return, and nobody scores zero for it. */
static void missing_verdicts(void **state) {
    (void)state;
    struct script script = three_turns();
    script.odd[1] = OUTCOME_PROBLEM_ERROR;
    struct scene s;
    open_scene(&s, &script, false, 4);
    struct rollout r = {0};
    CHECK(rollout_run(&s.actor, both, PROBLEMS, &base, &r, NULL, &err));
    const struct trajectory *t = &r.trajectory[0];
    assert_int_equal(t->n_turns, 2);
    assert_true(t->turn[0]->present && !t->turn[0]->has_return && !t->turn[1]->present && !t->turn[1]->has_return);
    assert_int_equal(r.trajectory[1].n_turns, 3);
    assert_true(r.trajectory[1].turn[0]->has_return);
    rollout_free(&r);
    close_scene(&s);
}

/* The same samples and scores with verdicts in the background, and with tasks added in two goes. */
static void background_changes_nothing(void **state) {
    (void)state;
    struct rollout r[2] = {0};
    struct scene s[2];
    struct script script[2] = {{.by_turn = {{.outcome = OUTCOME_CORRECT, .speedup = 1}}},
                               {.by_turn = {{.outcome = OUTCOME_CORRECT, .speedup = 1}}}};
    struct rollout_params p = base;
    p.o.max_turns = 1;
    for (int i = 0; i < 2; i++) {
        open_scene(&s[i], &script[i], i == 1, 4);
        if (i == 1) s[i].actor.lease = lease_create();
        CHECK(rollout_run(&s[i].actor, both, 1, &p, &r[i], NULL, &err));
        p.stream = 1;
        p.first_task = 1;
        CHECK(rollout_run(&s[i].actor, both + 1, 1, &p, &r[i], NULL, &err));
        p.stream = 0;
        p.first_task = 0;
    }
    assert_int_equal(r[1].n_tasks, 2);
    for (int i = 0; i < r[0].n; i++)
        for (int j = 0; j < SAMPLES; j++) {
            const struct episode *a = &r[0].group[i].ep[j], *b = &r[1].group[i].ep[j];
            assert_int_equal(a->sample.n, b->sample.n);
            assert_memory_equal(a->sample.ids, b->sample.ids, (size_t)a->sample.n * sizeof(int32_t));
            assert_true(a->ret == b->ret && a->ret == 0.2 + 1 + 1);
        }
    for (int i = 0; i < 2; i++) {
        rollout_free(&r[i]);
        struct lease *lease = s[i].actor.lease;
        close_scene(&s[i]);
        lease_free(lease);
    }
}

/* ---- the schedule -------------------------------------------------------------------------------------------------*/

enum { ANSWERS = 10 };

/* Seconds that a step of ten answers takes, sampled one after the other, and those of them that sampling waited. */
static double step_s(double verdict_s, bool background, double *wait_s) {
    struct script script = {.by_turn = {{.outcome = OUTCOME_CORRECT, .speedup = 1}}, .seconds = verdict_s};
    struct scene s;
    open_scene(&s, &script, background, 1);
    struct rollout_params p = base;
    p.o.max_turns = 1;
    p.o.group_size = ANSWERS;
    p.o.max_tokens = 100;
    struct rollout r = {0};
    const double from = clock_now_s();
    CHECK(rollout_run(&s.actor, both, 1, &p, &r, NULL, &err));
    const double seconds = clock_now_s() - from;
    assert_int_equal(script.given, ANSWERS);
    *wait_s = judging_stats(s.actor.judging).wait_s;
    rollout_free(&r);
    close_scene(&s);
    return seconds;
}

/* Verdicts of 100 ms each start when their sample is done: the step takes as long as sampling and verdicts that follow
 * each other at once would, within 15 %. Where sampling is the longer part, only the last verdict shows. */
static void overlap_is_near_the_ideal(void **state) {
    (void)state;
    const double verdict = 0.1;
    double got = 0, ideal = 0, apart = 0, wait = 0, none;
    bool near = false;
    for (int attempt = 0; attempt < 4 && !near; attempt++) { /* others may use this machine */
        const double sampling = step_s(0, false, &none), each = sampling / ANSWERS;
        ideal = 0;
        for (int i = 0; i < ANSWERS; i++) ideal = fmax(ideal, (i + 1) * each) + verdict;
        apart = sampling + ANSWERS * verdict;
        got = step_s(verdict, true, &wait);
        near = got < 1.15 * ideal && wait < ideal - sampling + 0.3;
    }
    print_message("a step of %d answers: %.2f s, %.2f s of them waiting; ideal %.2f s, one after the other %.2f s\n",
                  ANSWERS, got, wait, ideal, apart);
    assert_true(near);
    assert_true(ideal < apart);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_and_returns),
        cmocka_unit_test(history_and_budget),
        cmocka_unit_test(ends_early),
        cmocka_unit_test(missing_verdicts),
        cmocka_unit_test(background_changes_nothing),
        cmocka_unit_test(overlap_is_near_the_ideal),
    };
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
