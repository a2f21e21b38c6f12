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
/* The number of a text of n bytes without a NUL; names_find: 0 when it is not there. */
uint32_t names_put(struct names *s, const char *text, size_t n);
uint32_t names_find(const struct names *s, const char *text, size_t n);
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

/* The members of a JSON object, in their order. One named "reward" that is an object stands for its total. Keys and
 * texts lie in the line, or in `whole`; they need not end with a NUL. */
struct line_member {
    const char *key, *text;
    size_t n_key, n_text;
    enum { MEMBER_WHOLE, MEMBER_REAL, MEMBER_TEXT, MEMBER_OTHER } kind;
    int64_t whole;
    double real; /* of both kinds of numbers */
};
struct line_members {
    struct line_member *m; /* [n] */
    size_t n, cap;
    struct json_t *whole; /* NULL: the line was plain */
};
/* Reads a line that ends with a NUL behind its n bytes, which lives as long as the members. ST_PARSE names `where`. To
 * be freed in any case. */
enum status members_read(struct line_members *s, const char *line, size_t n, const char *where, struct err *e) MUST_USE;
const struct line_member *members_find(const struct line_members *s, const char *key); /* NULL: none */
void members_free(struct line_members *s);

struct view_row {
    int64_t frame, at, bytes, step;
    int32_t group, sample, turn, tokens;
    uint32_t problem, role, stop, outcome, class, stage; /* of names */
    double reward, ret, advantage, speedup, low, high;   /* NaN: none */
};
enum { ROWS_MAX = 4 << 20 };
enum view_sort { SORT_STEP, SORT_REWARD, SORT_ADVANTAGE, SORT_SPEEDUP, SORT_TOKENS, N_SORTS };
struct view_order {
    uint32_t *row; /* [n]; rows behind n are not in it yet */
    size_t n;
};
struct view_rows {
    struct view_row *row;
    size_t n, cap;
    struct names names;
    struct view_order order[N_SORTS];
    uint32_t *best; /* [n_best], by the problem's number: its fastest correct row plus one; 0: it has none */
    uint32_t n_best;
    struct str best_json; /* of the first best_of rows */
    size_t best_of;
};
/* Adds the row of a line of the index. ST_PARSE: it is none. The first line, which names the format, is not one. */
enum status rows_add(struct view_rows *r, const char *line, size_t n, struct err *e) MUST_USE;
void rows_free(struct view_rows *r);
/* All rows: the greatest first, of equal ones the newest; those without the number last. An order is kept: only what
 * was added since is sorted, and merged with it. Valid until a row is added. */
const uint32_t *rows_order(struct view_rows *r, enum view_sort sort);
/* The *n rows of a step, the newest first. */
const uint32_t *rows_of_step(struct view_rows *r, int64_t step, size_t *n);
/* The fastest correct row of each problem as a JSON array. It is kept until a row is added: many viewers ask for it. */
const char *rows_best_json(struct view_rows *r);
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
