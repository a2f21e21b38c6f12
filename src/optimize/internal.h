/* What the files of the search share: search.c, wave.c, verdicts.c, record.c, learn.c. */
#ifndef KERNELRL_OPTIMIZE_INTERNAL_H
#define KERNELRL_OPTIMIZE_INTERNAL_H

#include "io/jsonl.h"
#include "optimize/arms.h"
#include "optimize/search.h"
#include "optimize/share.h"
#include "rl/learn/session.h"

struct learner;
struct answer_search {
    const struct optimize_options *o;
    struct train_options train;   /* what the session was opened with */
    struct search_options search; /* o's, with what `auto` stands for */
    struct tasks *tasks;
    const char *dir;
    struct session session;
    struct journal *journal;
    struct jsonl_writer *candidates, *waves;
    struct learner *learner;     /* NULL: the model stays as it is */
    const volatile bool *cancel; /* the caller's */
    const volatile bool *stop;   /* that, or the end of the time */
    bool full_prompts;
    struct search_state state; /* as on record */
    double since_s;            /* clock when the record was last written, or the search opened */
};

/* An answer of a wave, and where it is sampled. */
struct wave_answer {
    struct search_candidate c;
    int task;
    const struct sample_group *group;
    struct episode *ep;
    bool dropped; /* there was no verdict left for it */
};
struct wave {
    struct share share[64];
    int n_shares;
    struct rollout r;
    struct wave_answer *answer;
    int n, cap;
    double before[64]; /* speed of the best answer of a share's task */
};
enum { WAVE_SHARES = 64 };

/* ---- wave.c: sampling ---- */
enum status wave_sample(struct answer_search *s, struct wave *w, struct err *e) MUST_USE;
void wave_free(struct wave *w);

/* ---- verdicts.c: judging and racing ---- */
enum status wave_judge(struct answer_search *s, struct wave *w, struct err *e) MUST_USE;
/* Takes the answers into the tasks' populations. */
void wave_take(struct answer_search *s, struct wave *w);
/* Measures again who may win; a line for each measurement is appended to `lines`. */
enum status wave_race(struct answer_search *s, const struct wave *w, struct str *lines, struct err *e) MUST_USE;

/* ---- record.c: on disk ---- */
/* Reads what is there, but no wave from `most` on, which is removed: it will happen again. */
enum status record_open(struct answer_search *s, int most, struct err *e) MUST_USE;
/* The wave's lines and, behind them, that it has happened. */
enum status record_wave(struct answer_search *s, const struct str *lines, struct err *e) MUST_USE;
void record_put_again(const struct search_task *t, const struct search_candidate *c, int wave, const struct verdict *v,
                      struct str *out);

/* ---- learn.c: between waves ---- */
/* Begins with the weights in DIR/policy, if there are any. *waves: how many waves these have learned from. */
enum status learner_open(struct answer_search *s, struct learner **out, int *waves, struct err *e) MUST_USE;
void learner_close(struct learner *l); /* NULL is fine */
/* One update from the answers of a wave. */
enum status learner_wave(struct answer_search *s, struct learner *l, struct wave *w, struct err *e) MUST_USE;
/* Writes the weights, which have learned from all waves on record. */
enum status learner_save(struct answer_search *s, struct learner *l, struct err *e) MUST_USE;

#endif
