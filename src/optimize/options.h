/* options: the keys of optimize, beside those of train, which say how answers are sampled, judged and learned from. */
#ifndef KERNELRL_OPTIMIZE_OPTIONS_H
#define KERNELRL_OPTIMIZE_OPTIONS_H

#include "rl/options/options.h"

#define STYLE_LIST(X) X(STYLE_AUTO, auto) X(STYLE_BRIEF, brief) X(STYLE_FULL, full)
enum prompt_style { CHOICE_ENUM(STYLE_LIST) };
#define SHARE_LIST(X) X(SHARE_GAIN, gain) X(SHARE_EQUAL, equal)
enum budget_share { CHOICE_ENUM(SHARE_LIST) };

#define TOGGLE_LIST(X) X(TOGGLE_AUTO, auto) X(TOGGLE_ON, on) X(TOGGLE_OFF, off)
enum toggle { CHOICE_ENUM(TOGGLE_LIST) };

/* How the search goes on; each part can be left out, to see what it brings. */
struct search_options {
    int wave_answers, prompt_answers; /* answers of a problem in a wave; of a prompt */
    int wave_problems;                /* problems that a wave works on */
    int islands, migrate_every;
    bool novelty, bandit, plans, racing;
    enum toggle refine, retrieval; /* search_open() decides what is auto */
    enum prompt_style style;
    enum budget_share share;
};
struct proof_options {
    int processes;  /* fresh ones, each with a measurement of winner and runner-up; twice as many where they disagree */
    int finalists;  /* that are measured again before one is chosen */
    double seconds; /* bound of the whole proof; 0: proof_seconds() says it */
    bool compile;   /* torch.compile is measured, where there is one */
};
struct optimize_options {
    struct train_options train;
    struct search_options search;
    struct proof_options proof;
    const char *module, *budget, *output_path, *from;
    int64_t verdicts;
    bool learn;
    /* From what stands above. */
    double budget_s; /* 0: none */
};
const struct config_schema *optimize_schema(void);
/* After all values are set: presets that make sense for a search, where nothing else was given, and the rules between
 * keys. */
enum status optimize_options_finish(struct config *c, struct optimize_options *o, struct err *e) MUST_USE;

#endif
