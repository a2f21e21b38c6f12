/* The parts of a view: names, files that grow, rows and columns. */
#ifndef KERNELRL_RL_VIEW_INTERNAL_H
#define KERNELRL_RL_VIEW_INTERNAL_H

#include <stdint.h>
#include <sys/stat.h>

#include "base/err.h"
#include "base/str.h"

/* Texts that stand in many rows: each is held once. Number 0 is "no text". */
struct names {
    char **name; /* [n]; name[0] is NULL */
    uint32_t n, cap;
    uint32_t *slot, n_slots; /* open addressing; 0: empty */
};
uint32_t names_put(struct names *s, const char *text);
uint32_t names_find(const struct names *s, const char *text); /* 0: not there */
void names_free(struct names *s);

/* How far a file of lines was read. The last line is kept to notice a file that was cut and has grown again. */
struct tail {
    dev_t dev;
    ino_t ino;
    int64_t at;
    char last[512];
    size_t n_last;
};
/* Opens the plain file NAME in the directory for reading; links and pipes are no files. -1: not there. */
int open_plain(int dir, const char *name, struct stat *st);
/* Calls take() with each line that was appended since, whole ones only. *again is true, and nothing is read, when the
 * file is another one or was cut: the caller forgets all and calls again. ST_PARSE: a line that take() refuses; the
 * tail stays in front of it. */
typedef enum status take_line_fn(void *ctx, const char *line, size_t n, struct err *e);
enum status tail_read(struct tail *t, int fd, const struct stat *st, size_t max_line, take_line_fn *take, void *ctx,
                      bool *again, struct err *e);

struct view_row {
    int64_t frame, at, bytes, step;
    int32_t group, sample, turn, tokens;
    uint32_t problem, role, stop, outcome, class, stage; /* of names */
    double reward, ret, advantage, speedup, low, high;   /* NaN: none */
};
enum { ROWS_MAX = 4 << 20 };
struct view_rows {
    struct view_row *row;
    size_t n, cap;
    struct names names;
};
/* Adds the row of a line of the index. ST_PARSE: it is none. The first line, which names the format, is not one. */
enum status rows_add(struct view_rows *r, const char *line, size_t n, struct err *e) MUST_USE;
void rows_free(struct view_rows *r);
void row_json(const struct view_rows *r, const struct view_row *x, const char *key, struct str *out);

/* metrics.jsonl as columns. */
struct column {
    int64_t *line; /* [n]: which line of the file, for the step and for CSV */
    double *value;
    size_t n, cap;
};
struct columns {
    struct names names;
    struct column *column; /* [names.n] */
    uint32_t n_columns;
    int64_t *step; /* [n_lines] */
    size_t n_lines, cap;
};
enum status columns_add(struct columns *c, const char *line, size_t n, struct err *e) MUST_USE;
void columns_free(struct columns *c);

#endif
