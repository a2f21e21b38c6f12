/* desk: where requests for verdicts are judged, whoever has made them. A thread of its own opens a judge for each kind
 * of settings that is asked for (a verifier of this process, or a pool of hosts), gives it the answers, asks again for
 * those whose verdict is missing, and scores what comes back as `train` would. */
#ifndef KERNELRL_VERDICTS_DESK_H
#define KERNELRL_VERDICTS_DESK_H

#include <stdatomic.h>

#include "rl/options/options.h"
#include "rl/rollout/rollout.h"
#include "verdicts/ask.h"
#include "verify/pool/pool.h"

/* How answers are judged and what is paid for them, by a name that requests use. Borrowed by the desk. */
struct desk_config {
    const char *name;
    struct verify_options verify;
    const char *source; /* of problems, where a request names none; as problem_set_load takes it */
    struct rollout_params weights;
    const struct train_options *train; /* whose prompts its problems have; who makes none leaves it NULL */
};
struct desk_options {
    const struct desk_config *config; /* [n_configs] the first one counts where a request names none */
    size_t n_configs;
    const char *const *source; /* [n_sources] further sources that requests may name */
    size_t n_sources;
    struct pool_options pool; /* hosts that judge; none: this process does */
    bool any_problem;         /* true: a request may bring the text of a problem, which is run */
    bool any_source;          /* true: a request may name any source, which is read from the disk or the Hub */
    bool jail_problems;       /* true: problems that come as text are hostile, and run jailed, each in a verifier of its
                                 own in this process that ends with its batch */
    int max_factor;           /* of KEY@FACTOR; 0: any */
    /* What this desk has found out before, for a judge that begins; NULL: nothing is known. */
    void (*recall)(void *ctx, const char *settings, const struct judge *judge);
    void *recall_ctx;
};
enum { DESK_ATTEMPTS = 3, DESK_BATCH = 16, DESK_SETTINGS_BYTES = 17 };

/* A request on its way to a verdict. Whoever has made it owns it, but from desk_submit() until done(). */
struct desk_work {
    struct verify_item item; /* the judge's; its problem is the desk's, or `own` */
    struct verdict_ask ask;  /* borrows from `request` */
    json_t *request;
    const struct desk_config *config;
    const char *key; /* of the problem; NULL: it has none */
    struct problem own;
    struct verify_options options;      /* what it is judged by */
    struct episode answer;              /* the kernel; then the verdict, and where there is one the reward */
    struct digest name;                 /* of problem and answer: verify_key() */
    char settings[DESK_SETTINGS_BYTES]; /* 16 hex digits that say what decides the verdict; "": no judge was had yet */
    bool judged;                        /* the verdict is there, or missing for good */
    int attempts;
    atomic_bool withdrawn; /* desk_withdraw() */
    /* The desk's thread: it is going to be judged now, for the so many'th time (attempts); and it is judged, or was
     * withdrawn, or the desk closes. */
    void (*begun)(void *ctx, struct desk_work *w); /* or NULL */
    void (*done)(void *ctx, struct desk_work *w);
    void *ctx;
    struct desk_work *next; /* the desk's own */
    struct desk_judge *judge;
};

struct desk;
/* Loads the problems of the configurations. Judges are opened when they are first needed. */
enum status desk_open(const struct desk_options *o, struct desk **out, struct err *e) MUST_USE;
/* What is being judged is waited for, or withdrawn where the judge can give it back; done() is called for all. NULL is
 * fine. */
void desk_close(struct desk *d);

/* Any thread. Makes a request ready to be judged: finds its problem, its configuration and its kernel. Takes a new
 * reference to `request`. False: it is refused, and *out is NULL. */
bool desk_prepare(struct desk *d, json_t *request, struct desk_work **out, struct verdict_refusal *why) MUST_USE;
void desk_work_free(struct desk_work *w); /* NULL is fine */
/* Any thread. The work gets begun() and done(). */
void desk_submit(struct desk *d, struct desk_work *w);
/* Any thread. Nobody wants the verdict any more: done() follows, soon where the work waits, else when its batch ends.
 */
void desk_withdraw(struct desk *d, struct desk_work *w);
/* Finds a problem by key and source (NULL: the first configuration's), as requests name them. */
bool desk_problem(struct desk *d, const char *source, const char *key, const struct problem **out,
                  struct verdict_refusal *why) MUST_USE;
/* As shelf_find_text(); with the key and that source (NULL: with none) a request finds it. */
const struct problem *desk_problem_of_text(struct desk *d, const char *code, const char **source);
/* The problems of a source that is loaded; NULL: there is no such source. */
const struct problem_set *desk_problems(struct desk *d, const char *source);
/* The configuration of that name (NULL: the first); NULL: there is none. */
const struct desk_config *desk_config_named(const struct desk *d, const char *name);
const struct desk_options *desk_options_of(const struct desk *d);

/* True: there is a verdict; its class is not I. */
bool desk_has_verdict(const struct desk_work *w);
/* Appends the members "verdict" (docs/formats.md, with "settings" and "answer" behind it), "reward" and what it was
 * made of, and "error". Where there is no verdict the first two are null. */
void desk_put_result(const struct desk_work *w, struct str *out);

#endif
