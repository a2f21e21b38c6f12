/* report: an evaluation as JSON, as Markdown and as pictures, and the difference of two (docs/formats.md,
 * "Evaluation"). */
#ifndef KERNELRL_RL_EVALUATE_REPORT_H
#define KERNELRL_RL_EVALUATE_REPORT_H

#include "rl/run/summary.h"

/* What was evaluated, as it stands under "config" of the JSON and on top of the Markdown. */
struct report_config {
    const char *checkpoint_path;                 /* "" for the base model */
    const char *model_name, *backend, *problems; /* problems: "builtin, test split" */
    int level;                                   /* 0: all */
    int num_samples, turns;
    double temperature;
    const char *device; /* what timed the kernels: this machine's processor */
};

/* One object, indented by 4; layout of the earlier evaluators (config, metrics, results) with more in it. */
void report_json(const struct report_config *c, const struct eval_samples *s, const struct summary *m, struct str *out);
/* The summary that report_json wrote: items, counts, and everything that follows from them. Strings in the arena. */
enum status report_load(const char *path, struct arena *a, struct summary *out, struct err *e) MUST_USE;
/* figure: file name of the picture beside it, or NULL. */
void report_markdown(const struct report_config *c, const struct summary *m, const char *figure, struct str *out);
/* The two panels of a report: the share of samples that are correct and faster than p, with 95 % bands, of one or two
 * evaluations; the best speed-up of every problem, in falling order. names and sums: [n], n is 1 or 2. */
void report_svg(const char *const *names, const struct summary *const *sums, int n, struct str *out);
/* The lines for a terminal. */
void report_text(const struct summary *m, struct str *out);
/* Comparisons: for a terminal, and as a Markdown table. */
void report_comparison(const struct comparison *c, const char *name_a, const char *name_b, bool markdown,
                       struct str *out);
void report_comparison_json(const struct comparison *c, struct str *out);

#endif
