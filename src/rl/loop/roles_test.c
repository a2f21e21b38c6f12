/* The roles beside the solver, with a policy and a verifier whose answers are known. */
#include "rl/loop/roles.h"

#include <math.h>

#include "generate/generator.h"
#include "rl/test_util.h"

/* ---- texts --------------------------------------------------------------------------------------------------------*/

static enum prediction predicted(const char *text) {
    CLEANUP_STR struct str s = STR_INIT;
    return role_answer(ROLE_VERIFIER, text, strlen(text), &s) ? role_prediction(str_c(&s)) : PREDICT_NONE;
}
static int chosen(const char *text) {
    CLEANUP_STR struct str s = STR_INIT;
    return role_answer(ROLE_JUDGE, text, strlen(text), &s) ? role_choice(str_c(&s)) : -1;
}

static void answers_are_read(void **state) {
    (void)state;
    assert_int_equal(predicted("<VERDICT>correct</VERDICT>"), PREDICT_CORRECT);
    assert_int_equal(predicted("I think <VERDICT>wrong</VERDICT>, no: <VERDICT>\n Crash </VERDICT>."), PREDICT_CRASH);
    assert_int_equal(predicted("<VERDICT>cheat</VERDICT> <VERDICT>comp"), PREDICT_CHEAT); /* cut off */
    assert_int_equal(predicted("<VERDICT>wrong <VERDICT>compile</VERDICT>"), PREDICT_COMPILE);
    assert_int_equal(predicted("<think>it is <VERDICT>wrong</VERDICT></think>"), PREDICT_NONE);
    assert_int_equal(predicted("<think>wrong?</think>\n<VERDICT>correct</VERDICT>"), PREDICT_CORRECT);
    assert_int_equal(predicted("correct"), PREDICT_NONE);
    assert_int_equal(predicted("<VERDICT></VERDICT>"), PREDICT_NONE);
    assert_int_equal(predicted("<VERDICT>probably correct</VERDICT>"), PREDICT_NONE);
    assert_int_equal(chosen("<CHOICE>B</CHOICE>"), 1);
    assert_int_equal(chosen("<CHOICE> A </CHOICE>"), 0);
    assert_int_equal(chosen("<CHOICE>AB</CHOICE>"), -1);
    CLEANUP_STR struct str s = STR_INIT;
    const char *p = "<PROBLEM>\nrows   linear\n gelu\n</PROBLEM>";
    assert_true(role_answer(ROLE_PROPOSER, p, strlen(p), &s));
    assert_string_equal(s.p, "rows linear gelu");
    CLEANUP_STR struct str big = STR_INIT;
    str_adds(&big, "<PROBLEM>");
    for (int i = 0; i < 100; i++) str_adds(&big, "linear ");
    str_adds(&big, "</PROBLEM>");
    assert_false(role_answer(ROLE_PROPOSER, big.p, big.len, &s));
    const struct verdict v[] = {{.outcome = OUTCOME_CORRECT},  {.outcome = OUTCOME_UNWRITTEN},
                                {.outcome = OUTCOME_TIMEOUT},  {.outcome = OUTCOME_LINT},
                                {.outcome = OUTCOME_TOO_FAST}, {.outcome = OUTCOME_COMPILE_ERROR}};
    const enum prediction want[] = {PREDICT_CORRECT, PREDICT_WRONG, PREDICT_CRASH,
                                    PREDICT_COMPILE, PREDICT_CHEAT, PREDICT_COMPILE};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) assert_int_equal(prediction_of(&v[i]), want[i]);
}

/* ---- a scene ------------------------------------------------------------------------------------------------------*/

/* What each role says to the k-th request that it gets in a step, sample by sample; the last ones again when there are
 * no more. A kernel's text decides its verdict: "good", "fast", "bad", "broken", "stolen", "lost". */
enum { SAID_MAX = 24 };
struct script {
    const char *solver[SAID_MAX], *verifier[SAID_MAX], *corrector[SAID_MAX], *judge[SAID_MAX], *proposer[SAID_MAX];
    int asked[ROLES + 1];
    bool prefers_fast;          /* the judge names the kernel with "fast" in it, and else A */
    bool broken_judge;          /* verdicts fail */
    char seen[ROLES + 1][8192]; /* the latest prompt of each role */
    struct tokenizer *tok;
};

static const char *pick(const char *const *list, int k) {
    while (k > 0 && !list[k]) k--;
    return list[k] ? list[k] : "";
}

static void say(struct sample *out, const char *text) {
    const int n = (int)strlen(text);
    *out = (struct sample){.n = n + 1, .stop = STOP_TOKEN};
    out->ids = xcalloc((size_t)n + 1, sizeof *out->ids);
    out->logp = xcalloc((size_t)n + 1, sizeof *out->logp);
    for (int i = 0; i < n; i++) out->ids[i] = (unsigned char)text[i];
    out->ids[n] = IM_END;
}

static enum status speak(void *ctx, const struct request *req, int n_req, struct sample *out,
                         engine_progress_fn *progress, void *progress_ctx, struct err *e) {
    struct script *s = ctx;
    (void)e;
    for (int i = 0; i < n_req; i++) {
        struct str prompt = STR_INIT;
        tokenizer_decode(s->tok, req[i].prompt, (size_t)req[i].n_prompt, false, &prompt);
        const int role = strstr(prompt.p, "You judge")     ? ROLE_VERIFIER
                         : strstr(prompt.p, "You compare") ? ROLE_JUDGE
                         : strstr(prompt.p, "You compose") ? ROLE_PROPOSER
                         : strstr(prompt.p, "Attempt 1")   ? ROLE_CORRECTOR
                                                           : ROLES;
        const char *const *said[] = {s->verifier, s->corrector, s->judge, s->proposer, s->solver};
        snprintf(s->seen[role], sizeof s->seen[role], "%s", prompt.p);
        const char *b = strstr(prompt.p, "Kernel B:"), *fast = strstr(prompt.p, "fast */");
        for (int j = 0; j < req[i].n_samples; j++, out++) {
            const char *text = pick(said[role], s->asked[role]++);
            if (role == ROLE_JUDGE && s->prefers_fast)
                text = fast && fast > b ? "<CHOICE>B</CHOICE>" : "<CHOICE>A</CHOICE>";
            say(out, text);
        }
        str_free(&prompt);
    }
    return progress(progress_ctx, 1, 1, 1) ? ST_OK : ST_OK;
}

static enum status judged(void *ctx, struct verify_item *items, size_t n, const volatile bool *cancel, struct err *e) {
    const struct script *s = ctx;
    (void)cancel;
    if (s->broken_judge) return FAIL(e, ST_FAILED, "the verifier is gone");
    for (size_t i = 0; i < n; i++) {
        const char *k = items[i].source ? items[i].source : "";
        struct verdict *v = &items[i].verdict;
        *v = (struct verdict){.outcome = !*k                   ? OUTCOME_NO_KERNEL
                                         : strstr(k, "bad")    ? OUTCOME_WRONG_OUTPUT
                                         : strstr(k, "broken") ? OUTCOME_COMPILE_ERROR
                                         : strstr(k, "stolen") ? OUTCOME_TOO_FAST
                                         : strstr(k, "lost")   ? OUTCOME_PROBLEM_ERROR
                                                               : OUTCOME_CORRECT};
        if (v->outcome == OUTCOME_CORRECT) v->speedup = strstr(k, "fast") ? 2 : 1;
    }
    return ST_OK;
}

static const char wide_config[] =
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"vocab_size\":272,\"hidden_size\":32,"
    "\"intermediate_size\":48,\"num_hidden_layers\":1,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"head_dim\":8,\"max_position_embeddings\":8192,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,"
    "\"hidden_act\":\"silu\",\"tie_word_embeddings\":true,\"eos_token_id\":257}";

struct scene {
    struct model *model;
    struct tokenizer *tok;
    struct actor actor;
    struct train_options o;
    struct rollout_params p;
    struct roles x;
    struct rollout r;
};

static void open_scene(struct scene *s, struct script *script, const char *const *settings) {
    *s = (struct scene){0};
    struct config c;
    config_init(&c, &train_schema, &s->o);
    for (; *settings; settings++) CHECK(config_set(&c, *settings, &err));
    CHECK(train_options_finish(&c, &s->o, &err));
    config_free(&c);
    CHECK(model_init(wide_config, 1, NULL, test_backend(), &s->model, &err));
    write_byte_tokenizer(in_tmp("tok"));
    CHECK(tokenizer_open(in_tmp("tok"), &s->tok, &err));
    script->tok = s->tok;
    const struct judge judge = {.batch = judged, .ctx = script};
    s->actor = (struct actor){.model = s->model,
                              .policy = {speak, script},
                              .tok = s->tok,
                              .style = CHAT_QWEN3_INSTRUCT,
                              .judging = judging_create(NULL, &judge, false, NULL),
                              .backend = backend_named("triton")};
    s->p = session_rollout_params(&s->o);
    CHECK(roles_open(&s->x, &s->o, &err));
    assert_true(s->x.on);
}

static void close_scene(struct scene *s) {
    rollout_free(&s->r);
    roles_close(&s->x);
    judging_free(s->actor.judging);
    tokenizer_close(s->tok);
    model_free(s->model);
}

static const struct problem problems[2] = {{.key = "a", .code = "class Model: a"},
                                           {.key = "b", .code = "class Model: b"}};
static const struct problem *const both[2] = {&problems[0], &problems[1]};

#define KERNEL(word) "<KERNEL>\n```python\nx = 1 # /* " word " */\n```\n</KERNEL>"

static void play(struct scene *s, int n_problems) {
    CHECK(rollout_run(&s->actor, both, n_problems, &s->p, &s->r, NULL, &err));
    CHECK(roles_play(&s->x, &s->actor, &s->o, &s->p, &s->r, NULL, &err));
}

static double metric(const struct scene *s, const char *name) {
    struct metrics m = {0};
    double value = -1e9;
    roles_metrics(&s->x, &s->o, &m);
    for (int i = 0; i < m.n; i++)
        if (strcmp(m.m[i].name, name) == 0) value = m.m[i].value;
    metrics_free(&m);
    if (value == -1e9) fail_msg("no metric %s", name);
    return value;
}

#define NEAR(x, y) assert_true(fabs((x) - (y)) < 1e-12)

/* ---- the roles ----------------------------------------------------------------------------------------------------*/

static const char *const of_verifier[] = {"roles.verifier_samples=3", "roles.verifier_answers=2", "group_size=4",
                                          "advantage=center", NULL};

static void predictions(void **state) {
    (void)state;
    struct script script = {.solver = {KERNEL("bad"), KERNEL("bad"), KERNEL("good"), "no kernel"},
                            .verifier = {"<VERDICT>correct</VERDICT>", "<VERDICT>wrong</VERDICT>", "?",
                                         "<VERDICT>wrong</VERDICT>", "<VERDICT>crash</VERDICT>",
                                         "<VERDICT>correct</VERDICT>"}};
    struct scene s;
    open_scene(&s, &script, of_verifier);
    play(&s, 1);
    /* A working answer first, then a failing one. */
    const struct role_groups *q = &s.x.of[ROLE_VERIFIER];
    assert_int_equal(q->n, 2);
    assert_true(q->group[0].about[0] == 2 && q->group[1].about[0] == 0 && q->group[0].about[1] == -1);
    const double want[2][3] = {{1, 0, 0}, {1, 0.5, 0}}; /* exact, wrong, unreadable; exact, fails too, not at all */
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++) {
            assert_true(q->group[i].ep[j].present);
            NEAR(q->group[i].ep[j].reward.total, want[i][j]);
        }
    assert_non_null(strstr(script.seen[ROLE_VERIFIER], "class Model: a"));
    assert_non_null(strstr(script.seen[ROLE_VERIFIER], "# /* bad */"));
    NEAR(metric(&s, "roles/verifier_accuracy"), 2.0 / 6);
    NEAR(metric(&s, "roles/verifier_works_accuracy"), 3.0 / 6);
    NEAR(metric(&s, "roles/verifier_majority"), 3.0 / 6);
    NEAR(metric(&s, "roles/verifier_unreadable"), 1.0 / 6);
    NEAR(metric(&s, "roles/verifier_balanced_accuracy"), 0.5 * (1.0 / 3 + 2.0 / 3));
    NEAR(metric(&s, "roles/verifier_reward"), 2.5 / 6);
    /* Advantages within the predictions of one answer. */
    roles_advantages(&s.x, &s.o, false);
    for (int i = 0; i < 2; i++) {
        double sum = 0;
        for (int j = 0; j < 3; j++) sum += q->group[i].ep[j].advantage;
        assert_true(fabs(sum) < 1e-12);
        NEAR(q->group[i].ep[0].advantage, i == 0 ? 2.0 / 3 : 0.5);
    }
    int n;
    struct sample_group *all = roles_join(&s.x, &s.r, &n);
    assert_true(n == s.r.n + 2 && all[0].role == NULL && strcmp(all[s.r.n].role, "verifier") == 0);
    assert_ptr_equal(all[s.r.n].ep, q->group[0].ep);
    free(all);
    /* Without a weight nothing of it is trained on. */
    s.o.roles.verifier_weight = 0;
    roles_advantages(&s.x, &s.o, true);
    for (int j = 0; j < 3; j++) assert_true(q->group[0].ep[j].advantage == 0 && !q->group[0].ep[j].kept);
    close_scene(&s);
}

/* One working answer among four: what is said of it weighs as much as what is said of the three others together. */
static const char *const of_balance[] = {"roles.verifier_samples=2", "roles.verifier_answers=4",  "group_size=4",
                                         "advantage=center",         "roles.verifier_weight=0.5", NULL};

static void both_classes_weigh_the_same(void **state) {
    (void)state;
    struct script script = {.solver = {KERNEL("bad"), KERNEL("good"), KERNEL("bad"), KERNEL("bad"), /* one problem */
                                       KERNEL("bad")},                                              /* the other */
                            .verifier = {"<VERDICT>correct</VERDICT>", "<VERDICT>crash</VERDICT>",
                                         "<VERDICT>wrong</VERDICT>", "<VERDICT>correct</VERDICT>",
                                         "<VERDICT>wrong</VERDICT>", "<VERDICT>correct</VERDICT>",
                                         "<VERDICT>wrong</VERDICT>", "<VERDICT>correct</VERDICT>"}};
    struct scene s;
    open_scene(&s, &script, of_balance);
    play(&s, 1);
    roles_advantages(&s.x, &s.o, false);
    const struct role_groups *q = &s.x.of[ROLE_VERIFIER];
    assert_int_equal(q->n, 4);
    double sum[2] = {0};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 2; j++) sum[q->group[i].about[0] == 1] += fabs(q->group[i].ep[j].advantage);
    NEAR(sum[0], sum[1]);
    NEAR(q->group[0].ep[0].advantage, 0.5 * 0.5 * 8 / (2.0 * 2)); /* weight, advantage, 8 predictions, 2 of its class */
    /* Failing answers alone say nothing about telling them from working ones. */
    rollout_free(&s.r);
    roles_end(&s.x, &s.o, true);
    CHECK(rollout_run(&s.actor, both + 1, 1, &s.p, &s.r, NULL, &err));
    CHECK(roles_play(&s.x, &s.actor, &s.o, &s.p, &s.r, NULL, &err));
    roles_advantages(&s.x, &s.o, true);
    assert_true(s.x.counts.predictions == 8 && isnan(metric(&s, "roles/verifier_balanced_accuracy")));
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 2; j++) assert_true(q->group[i].ep[j].advantage == 0 && !q->group[i].ep[j].kept);
    close_scene(&s);
}

static const char *const of_corrector[] = {
    "roles.corrector_samples=2", "roles.corrector_answers=2", "group_size=4", "mode=multi_turn", "max_turns=1", NULL};

static void repairs(void **state) {
    (void)state;
    struct script script = {.solver = {KERNEL("good"), KERNEL("broken"), KERNEL("stolen"), KERNEL("bad")},
                            .corrector = {KERNEL("good"), KERNEL("bad"), KERNEL("lost"), "nothing"}};
    struct scene s;
    open_scene(&s, &script, of_corrector);
    play(&s, 1);
    const struct role_groups *q = &s.x.of[ROLE_CORRECTOR];
    assert_int_equal(q->n, 2); /* of the one that does not build and of the wrong one, not of the cheat */
    assert_true(q->group[0].about[0] == 1 && q->group[1].about[0] == 3);
    /* format 0.1, compile 0.2, correct 1 */
    NEAR(q->group[0].ep[0].reward.total, 1.3 - 0.1);
    NEAR(q->group[0].ep[1].reward.total, 0.3 - 0.1);
    assert_false(q->group[1].ep[0].present); /* its verdict is missing */
    NEAR(q->group[1].ep[1].reward.total, 0 - 0.3);
    NEAR(metric(&s, "roles/corrector_repairs"), 3);
    NEAR(metric(&s, "roles/corrector_correct_rate"), 1.0 / 3);
    NEAR(metric(&s, "roles/corrector_gain"), (1.2 + 0.2 - 0.3) / 3);
    assert_non_null(strstr(script.seen[ROLE_CORRECTOR], "Result: wrong output"));
    roles_end(&s.x, &s.o, true);
    script.broken_judge = true;
    CHECK_FAILS(roles_play(&s.x, &s.actor, &s.o, &s.p, &s.r, NULL, &err), ST_FAILED, "the verifier is gone");
    close_scene(&s);
}

static const char *const of_judge[] = {
    "roles.judge_reward=0.2", "roles.judge_samples=1", "roles.judge_weight=2",  "group_size=6",     "gamma=0.5",
    "mode=multi_turn",        "max_turns=2",           "reward_speed_weight=1", "advantage=center", NULL};

static void preferences(void **state) {
    (void)state;
    /* The second turns are those that are compared; all repeat "good" first. Three right, two wrong, a cheat. */
    struct script script = {.solver = {KERNEL("good")},
                            .corrector = {KERNEL("good one"), KERNEL("fast"), KERNEL("good two"), KERNEL("bad"),
                                          KERNEL("bad, too"), KERNEL("stolen")},
                            .prefers_fast = true};
    struct scene s;
    open_scene(&s, &script, of_judge);
    CHECK(rollout_run(&s.actor, both, 1, &s.p, &s.r, NULL, &err));
    double before[6][2], total[6];
    for (int k = 0; k < 6; k++) {
        before[k][0] = s.r.trajectory[k].turn[0]->ret;
        before[k][1] = s.r.trajectory[k].turn[1]->ret;
        total[k] = s.r.trajectory[k].turn[1]->reward.total;
    }
    CHECK(roles_play(&s.x, &s.actor, &s.o, &s.p, &s.r, NULL, &err));
    /* A ring of the right ones, a pair of the wrong ones, in both orders. */
    assert_int_equal(s.x.of[ROLE_JUDGE].n, 2 * (3 + 1));
    /* Sample 1 is fast and wins all four; 0 and 2 lose theirs to it and get one of two from each other (A wins). The
     * wrong ones win one of two each. */
    const double share[6] = {0.25, 1, 0.25, 0.5, 0.5, 0};
    for (int k = 0; k < 6; k++) {
        const struct trajectory *t = &s.r.trajectory[k];
        NEAR(t->turn[1]->reward.total, total[k] + 0.2 * share[k]);
        NEAR(t->turn[1]->ret, before[k][1] + 0.2 * share[k]);
        NEAR(t->turn[0]->ret, before[k][0] + 0.5 * 0.2 * share[k]);
    }
    NEAR(metric(&s, "roles/judge_comparisons"), 8);
    NEAR(metric(&s, "roles/judge_decided"), 1);
    NEAR(metric(&s, "roles/judge_accuracy"), 1); /* of the four that a score tells apart */
    NEAR(metric(&s, "roles/judge_consistency"), 2.0 / 4);
    int rated = 0;
    for (int i = 0; i < 8; i++) rated += s.x.of[ROLE_JUDGE].group[i].ep[0].present;
    assert_int_equal(rated, 4);
    close_scene(&s);
}

static const char *const of_proposer[] = {"roles.proposals=6",
                                          "roles.proposer_window=2",
                                          "roles.proposer_trigger=0.5",
                                          "batch_size=6",
                                          "group_size=4",
                                          "advantage=center",
                                          NULL};

static void proposals(void **state) {
    (void)state;
    struct script script = {.solver = {KERNEL("good"), KERNEL("bad"), KERNEL("good"), KERNEL("bad"), /* half: 1 */
                                       KERNEL("good")},                                              /* always: 0 */
                            .proposer = {"<PROBLEM>rows silu</PROBLEM>", "<PROBLEM>rows relu gelu</PROBLEM>", "?",
                                         "<PROBLEM>image silu</PROBLEM>", "<PROBLEM>rows nonsense</PROBLEM>",
                                         "<PROBLEM>rows softmax</PROBLEM>"}};
    struct scene s;
    open_scene(&s, &script, of_proposer);
    const struct problem *batch[3] = {&problems[0], &problems[1], &problems[0]};
    CHECK(roles_propose(&s.x, &s.actor, &s.o, &s.p, batch, 3, &err));
    assert_int_equal(s.x.n_proposed, 2); /* not the one of two operators, nor one that there is already */
    assert_string_equal(batch[0]->ops, "silu");
    assert_string_equal(batch[1]->ops, "softmax");
    assert_true(batch[2] == &problems[0] && strstr(batch[0]->code, "class Model"));
    assert_non_null(strstr(script.seen[ROLE_PROPOSER], "a problem of 1 operator."));
    CHECK(rollout_run(&s.actor, batch, 3, &s.p, &s.r, NULL, &err));
    CHECK(roles_play(&s.x, &s.actor, &s.o, &s.p, &s.r, NULL, &err));
    const struct sample_group *g = &s.x.of[ROLE_PROPOSER].group[0];
    const double want[] = {1, 0, 0, 0, 0, 0.2};
    for (int j = 0; j < 6; j++) {
        assert_true(g->ep[j].present);
        NEAR(g->ep[j].reward.total, want[j]);
    }
    NEAR(metric(&s, "roles/proposer_valid_rate"), 2.0 / 6);
    NEAR(metric(&s, "roles/proposer_solved_rate"), 0.75);
    /* A step that did not count leaves no trace; two that did make the next proposals longer. */
    rollout_free(&s.r);
    roles_end(&s.x, &s.o, false);
    assert_true(s.x.n_rates == 0 && s.x.length == 1 && s.x.n_proposed == 0);
    for (int step = 0; step < 2; step++) {
        memset(script.asked, 0, sizeof script.asked);
        batch[0] = &problems[0];
        batch[1] = &problems[1];
        CHECK(roles_propose(&s.x, &s.actor, &s.o, &s.p, batch, 3, &err));
        CHECK(rollout_run(&s.actor, batch, 3, &s.p, &s.r, NULL, &err));
        CHECK(roles_play(&s.x, &s.actor, &s.o, &s.p, &s.r, NULL, &err));
        rollout_free(&s.r);
        roles_end(&s.x, &s.o, true);
        if (step > 0) continue;
        /* A checkpoint between them. */
        CLEANUP_STR struct str text = STR_INIT;
        str_addc(&text, '{');
        roles_save(&s.x, &text);
        str_addc(&text, '}');
        CLEANUP_JSON json_t *saved = NULL;
        CHECK(js_parse(text.p, text.len, "state", &saved, &err));
        struct roles other = {.length = 5};
        CHECK(roles_load(&other, saved, "state", &err));
        assert_true(other.length == 1 && other.n_rates == 1 && other.rate[0] == 0.75);
    }
    assert_true(s.x.length == 2 && s.x.n_rates == 0);
    CLEANUP_JSON json_t *damaged = NULL;
    const char *text = "{\"self_play\":{\"length\":99,\"rates\":[]}}";
    CHECK(js_parse(text, strlen(text), "state", &damaged, &err));
    CHECK_FAILS(roles_load(&s.x, damaged, "state", &err), ST_PARSE, "length 99");
    close_scene(&s);
}

/* Proposals never are the held-out test problems' sequences, and what the model proposes is a function of the step. */
static void proposals_leave_the_test_out(void **state) {
    (void)state;
    struct generator *g;
    CHECK(generator_open(NULL, &g, &err));
    struct arena a = ARENA_INIT;
    struct gen_item x, y;
    assert_true(generator_excludes(g, "linear gelu"));
    CHECK_FAILS(generator_compose(g, "rows linear gelu", 1, &a, &x, &err), ST_INVALID, "test problem");
    CHECK(generator_compose(g, "rows linear sigmoid scale", 1, &a, &x, &err));
    CHECK(generator_compose(g, " rows  linear sigmoid scale ", 1, &a, &y, &err));
    assert_string_equal(x.problem.ops, "linear sigmoid scale");
    assert_string_equal(y.problem.ops, x.problem.ops);
    arena_free(&a);
    generator_close(g);
}

static void keys_that_do_not_fit(void **state) {
    (void)state;
    static const char *const bad[][3] = {{"roles.proposals=5", "batch_size=4", "at most batch_size (4)"},
                                         {"roles.judge_reward=0.1", "group_size=1", "two answers"},
                                         {"roles.judge_reward=-1", "group_size=4", "roles.judge_reward"}};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct train_options o;
        struct config c;
        config_init(&c, &train_schema, &o);
        enum status st = config_set(&c, bad[i][0], &err);
        if (st == ST_OK) st = config_set(&c, bad[i][1], &err);
        if (st == ST_OK) st = train_options_finish(&c, &o, &err);
        assert_int_not_equal(st, ST_OK);
        if (!strstr(err.msg, bad[i][2])) fail_msg("%s", err.msg);
        config_free(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_read),
        cmocka_unit_test(predictions),
        cmocka_unit_test(both_classes_weigh_the_same),
        cmocka_unit_test(repairs),
        cmocka_unit_test(preferences),
        cmocka_unit_test(proposals),
        cmocka_unit_test(proposals_leave_the_test_out),
        cmocka_unit_test(keys_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
