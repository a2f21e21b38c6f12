#include "optimize/options.h"

#include <string.h>

#include "optimize/budget.h"

#define T struct optimize_options
static const struct config_key keys[] = {
    KEY_STRING_OPT(T, budget, "null",
                   "Time of the search, such as 90s, 30m or 1h30m. The proof has a bound of its own "
                   "(proof_budget_s). null: no bound."),
    KEY_INT(T, verdicts, "0", "[0,1000000000]",
            "Answers that are judged, over all problems; a measurement again counts as one. 0: no bound."),
    KEY_STRING(T, output_path, "runs/optimize",
               "Folder of all that comes out. A search that is there is gone on with."),
    KEY_STRING_OPT(T, module, "null", "The class of FILE that is made faster. null: Model, else the last nn.Module."),
    KEY_STRING_OPT(
        T, from, "null",
        "Weights to begin with: the folder of an earlier search with train=true, a run, an adapter or a model."),
    KEY_BOOL_AT(T, "train", learn, "false",
                "Learn from each wave's answers (our own model only): an update of the weights between waves."),
    KEY_INT_AT(T, "search.wave_answers", search.wave_answers, "8", "[1,4096]", "Answers to a problem in a wave."),
    KEY_INT_AT(T, "search.prompt_answers", search.prompt_answers, "2", "[1,4096]", "Answers to a prompt."),
    KEY_INT_AT(T, "search.wave_problems", search.wave_problems, "4", "[1,64]", "Problems that a wave works on."),
    KEY_CHOICE_AT(T, "search.share", search.share, SHARE_LIST, "gain",
                  "How problems share the budget: by what the next wave may bring, or equally."),
    KEY_BOOL_AT(
        T, "search.novelty", search.novelty, "true",
        "An answer that differs from an earlier one in names, blanks and comments alone is not judged again, and "
        "costs nothing."),
    KEY_BOOL_AT(T, "search.bandit", search.bandit, "true",
                "Prompts are chosen by what such prompts have paid (Thompson sampling); else all are as likely."),
    KEY_BOOL_AT(
        T, "search.plans", search.plans, "true",
        "Prompts with the plan that the answer is to have: choices of earlier answers' first lines, by what they "
        "have paid."),
    KEY_CHOICE_AT(
        T, "search.refine", search.refine, TOGGLE_LIST, "auto",
        "Prompts that show earlier answers with what became of them: to be made better, mended or crossed. auto: "
        "on with full prompts."),
    KEY_CHOICE_AT(
        T, "search.retrieval", search.retrieval, TOGGLE_LIST, "auto",
        "Prompts with solved problems: those of prompt_option: raicl, else a built-in one. auto: on with full "
        "prompts, and with raicl."),
    KEY_BOOL_AT(T, "search.racing", search.racing, "true",
                "Answers that may be the best are measured again, and those that cannot are not."),
    KEY_INT_AT(T, "search.islands", search.islands, "1", "[1,64]",
               "Populations that develop apart; their best ones meet every migrate_every waves."),
    KEY_INT_AT(T, "search.migrate_every", search.migrate_every, "3", "[1,1000]", "search.islands: waves between that."),
    KEY_CHOICE_AT(T, "search.style", search.style, STYLE_LIST, "auto",
                  "full: prompts say what bounds the time, what the compiler says, how many failed and why. brief: in "
                  "the formats that our models were trained on. auto: full with sampler: openai."),
    KEY_INT_AT(
        T, "proof_processes", proof.processes, "10", "[1,100]",
        "Fresh processes in which winner and runner-up are measured; where they disagree on whether the winner is "
        "faster, as many again. Fewer than 4 cannot show it."),
    KEY_INT_AT(T, "proof_finalists", proof.finalists, "4", "[1,16]",
               "Answers that are measured again before the winner is chosen."),
    KEY_FLOAT_AT(
        T, "proof_budget_s", proof.seconds, "0", "[0,)",
        "Seconds that the proof may take. 0: a tenth of the budget, at least 300 (without proof_compile 120)."),
    KEY_BOOL_AT(T, "proof_compile", proof.compile, "true", "Measure torch.compile, too, where PyTorch is 2 or newer."),
};
#undef T

const struct config_schema *optimize_schema(void) {
    enum { KEYS_MAX = 400 };
    static struct config_key all[KEYS_MAX];
    static struct config_schema schema;
    if (!schema.count)
        train_schema_with(keys, ARRAY_LEN(keys), offsetof(struct optimize_options, train),
                          sizeof(struct optimize_options), all, KEYS_MAX, &schema);
    return &schema;
}

/* What a search wants of the keys of train, unless it is told otherwise: a score that speed is a part of, and an
 * objective for the best answer. */
static const char *const presets[] = {"speed_reward=log",
                                      "speed_max_reward=10",
                                      "reward_compile_weight=0.1",
                                      "reward_format_weight=0",
                                      "advantage=entropic",
                                      "kl_penalty_coef=0.01",
                                      NULL};

enum status optimize_options_finish(struct config *c, struct optimize_options *o, struct err *e) {
    for (int i = 0; presets[i]; i++) TRY(config_preset(c, "optimize", presets[i], e));
    /* A first measurement is short; who may win is measured again. */
    if (o->search.racing) TRY(config_preset(c, "search.racing", "num_perf_trials=30", e));
    if (o->train.verify.measure) TRY(config_preset(c, "optimize", "reward_speed_weight=0.5", e));
    if (o->train.sampler.kind == SAMPLER_ENGINE && o->train.sampler.server_type < 0 && o->learn)
        TRY(config_preset(c, "train", "mask_truncated=true", e));
    TRY(train_options_finish(c, &o->train, e));
    if (o->train.trainer == TRAINER_TINKER)
        return config_reject(c, "trainer", e,
                             "optimize does not train on a server: expected engine (sampler: tinker asks "
                             "a server's model)");
    o->budget_s = 0;
    if (o->budget && *o->budget && budget_seconds(o->budget, &o->budget_s, e) != ST_OK) {
        const struct err why = *e;
        return config_reject(c, "budget", e, "%s", why.msg + strlen("budget: "));
    }
    if (o->budget_s == 0 && o->verdicts == 0)
        return FAIL(e, ST_CONFIG, "optimize: no budget: give budget=TIME (30m), verdicts=N, or both");
    if (o->learn && o->train.sampler.kind != SAMPLER_ENGINE)
        return config_reject(c, "train", e, "a server's model cannot be trained here: expected sampler: engine");
    if (o->from && *o->from && o->train.sampler.kind != SAMPLER_ENGINE)
        return config_reject(c, "from", e, "a server's model has its own weights: expected sampler: engine");
    return ST_OK;
}
