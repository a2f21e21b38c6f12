/* view: what a page shows of runs: lists, series of metrics, episodes and single answers, each as JSON. It reads run
 * directories while others write, cut, replace or remove them, and never writes. May include rl/run, generate, problem,
 * page and io.
 *
 * A run is named as its folder in the folder of runs; links are not followed, neither to a run nor to a file of one.
 * What was read is kept, and what was appended since is read on the next call: a row of memory an answer, a number a
 * metric and step. A file that was cut or replaced is read anew. One thread at a time may use a view. */
#ifndef KERNELRL_RL_VIEW_VIEW_H
#define KERNELRL_RL_VIEW_VIEW_H

#include "base/err.h"
#include "base/str.h"

struct run_view;
/* The runs in this folder; it need not be there yet. */
struct run_view *view_open(const char *runs_dir);
void view_close(struct run_view *v); /* NULL is fine */

/* Of all functions that name a run: ST_IO when there is none of that name, or what is asked for is not there (any
 * more). Each appends one JSON value to out. */

/* {"runs": [{name, state, error, steps, fraction, changed_s}]}, the newest first. */
enum status view_runs(struct run_view *v, struct str *out, struct err *e) MUST_USE;
/* {name, state, error, steps, ..., episodes, index, metrics: {name: last value}, alerts: [{text, metric}], checkpoints,
 * config}. index: "ok", or why rows are missing. */
enum status view_run(struct run_view *v, const char *run, struct str *out, struct err *e) MUST_USE;
/* {name, state, error, steps, fraction, changed_s, episodes}: what a page asks for again and again. */
enum status view_state(struct run_view *v, const char *run, struct str *out, struct err *e) MUST_USE;
/* {key, code}: the module of a problem that is built in or of the generator. ST_IO: it is neither. */
enum status view_problem(const char *key, struct str *out, struct err *e) MUST_USE;
/* {"series": {name: {"step": [], "seconds": [], "value": []}}}, seconds since the run began, steps alone, of names with
 * commas between them. A series of more than `points` values keeps the least and the greatest of each of points / 2
 * intervals, so that no spike is lost. Values and seconds have six digits. */
enum status view_metrics(struct run_view *v, const char *run, const char *names, int64_t points, struct str *out,
                         struct err *e) MUST_USE;
/* All values of these metrics as CSV, a line a step that has one of them; NULL: all metrics. */
enum status view_csv(struct run_view *v, const char *run, const char *names, struct str *out, struct err *e) MUST_USE;

struct view_query {
    int64_t step_from, step_to;                              /* both included */
    const char *problem, *outcome, *class, *stop, *role;     /* NULL: any; role "solver": those without a role */
    double reward_min, reward_max, speedup_min, speedup_max; /* NaN: no bound */
    const char *text; /* the answer or its verdict holds it, letter by letter; NULL: any */
    const char *sort; /* step, reward, advantage, speedup or tokens, the greatest first; NULL: step */
    int64_t cursor;   /* of the answer before; 0: from the start */
    int64_t limit;
};
/* All rows, the newest first, up to 100. */
struct view_query view_query_all(void);
/* Sets what chooses or sorts answers, by the name that the API has for it. A text is borrowed. ST_USAGE: there is no
 * such name, or the value is not of its kind. */
enum status view_query_set(struct view_query *q, const char *key, const char *value, struct err *e) MUST_USE;
/* Sets the parts of a text such as "outcome=correct&reward_min=0.5", as addresses of the page have it behind their "?".
 * It is decoded where it lies, and the query borrows from it. Errors as view_query_set. */
enum status view_query_read(struct view_query *q, char *text, struct err *e) MUST_USE;
/* {"rows": [...], "matches", "total", "cursor"}: cursor is null when no more is there. matches: how many rows match but
 * for the text. With a text the rows come newest first, and one call looks at answers for about a tenth of a second:
 * the cursor says where the next one goes on, rows or no rows. */
enum status view_episodes(struct run_view *v, const char *run, const struct view_query *q, struct str *out,
                          struct err *e) MUST_USE;
/* {"rows": [...]} of all samples and turns of a group. */
enum status view_group(struct run_view *v, const char *run, int64_t step, int64_t group, struct str *out,
                       struct err *e) MUST_USE;
/* {"row": {...}, "trace": the line of the traces}. role: NULL for the solver's. */
enum status view_episode(struct run_view *v, const char *run, int64_t step, int64_t group, int64_t sample, int64_t turn,
                         const char *role, struct str *out, struct err *e) MUST_USE;
/* {"best": [rows]}: of each problem the correct answer of the greatest speed-up, in the order of problems. */
enum status view_best(struct run_view *v, const char *run, struct str *out, struct err *e) MUST_USE;

/* A page of HTML that needs no server: curves, the fastest correct answer to each problem, the answers that the filter
 * chooses (as view_query_read takes it; NULL: those of the last step; up to 1,000), the configuration. Answers that do
 * not fit into max_bytes are left out, and the page says how many. ST_USAGE: the filter is none; ST_INVALID: it chooses
 * no answer. */
enum status view_report(struct run_view *v, const char *run, const char *filter, size_t max_bytes, struct str *out,
                        struct err *e) MUST_USE;

#endif
