/* runs: looking at run directories from outside, while they are trained in or afterwards. Nothing here writes. Whether
 * a run is running is asked of its lock, who runs it of the lock's contents; never of a list of processes. */
#ifndef KERNELRL_RL_RUN_WATCH_RUNS_H
#define KERNELRL_RL_RUN_WATCH_RUNS_H

#include <sys/types.h>

#include "base/err.h"
#include "base/str.h"

enum run_state {
    RUN_RUNNING,
    RUN_FINISHED, /* its final checkpoint is there */
    RUN_STOPPED,  /* it can be resumed */
    RUN_FAILED,   /* so can it, when the error that it ended with is gone */
};
const char *run_state_name(enum run_state s);

struct run_info {
    char *name, *dir;
    enum run_state state;
    char *error;       /* of a failed one, else NULL */
    pid_t pid;         /* of a running one; 0: not known */
    int64_t steps;     /* lines of metrics, evaluations left out */
    double fraction;   /* of its steps that are done; NaN: none yet */
    int64_t changed_s; /* Unix time of the last change of its metrics, or else of its configuration */
};
/* ST_IO when DIR is no run (has no config.yaml). */
enum status run_info_read(const char *dir, struct run_info *out, struct err *e) MUST_USE;
void run_info_free(struct run_info *r);
/* What is known without a look at the metrics, of an open directory: state, error, pid and changed_s; the rest is
 * empty. No link in the directory is followed. false: it is no run, and *out needs no freeing. */
bool run_state_at(int dir, struct run_info *out);
struct json_t;
/* true: the line of metrics, an object, is that of an evaluation, not of a step. */
bool run_is_evaluation(const struct json_t *row);
/* All runs in a folder, the newest first. A folder that is not there holds none. */
enum status runs_list(const char *runs_dir, struct run_info **out, int *n, struct err *e) MUST_USE;
/* From what the user types to a run's directory: NAME in runs_dir, or a path. malloc'ed. ST_IO when there is none. */
enum status runs_find(const char *runs_dir, const char *name, char **out, struct err *e) MUST_USE;

/* Columns of metrics.jsonl: value[k][i] is names[k] in the i-th step's line (or, with evals, the i-th evaluation's),
 * NaN where it has none. A name that ends in '*' adds up all that begin so. */
struct run_series {
    int64_t n;
    int64_t *step;  /* [n] */
    double **value; /* [n_names] of [n] */
    int n_names;
};
enum status run_series_read(const char *dir, const char *const *names, int n_names, bool evals, struct run_series *out,
                            struct err *e) MUST_USE;
void run_series_free(struct run_series *s);
/* All names of steps' lines that begin with `prefix`, as text behind it, with their last values, the largest first. */
struct run_last {
    struct run_last_value {
        char *name;
        double value;
    } * item;
    int n;
};
enum status run_last_read(const char *dir, const char *prefix, struct run_last *out, struct err *e) MUST_USE;
void run_last_free(struct run_last *l);
/* Of what is there: the last value, the sum, the mean of the last `last` values; NaN when there is none. */
double series_last(const struct run_series *s, int k);
double series_sum(const struct run_series *s, int k);
double series_mean(const struct run_series *s, int k, int64_t last);

/* Appends a line of at most `width` bars of eighths of a character, the latest values at its end; several values share
 * a bar when there are more than fit. */
void sparkline(const double *v, int64_t n, int width, struct str *out);

/* Bytes of files below a path, links not followed. */
int64_t tree_bytes(const char *path);

#endif
