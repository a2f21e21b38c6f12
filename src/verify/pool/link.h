/* link: a child process that speaks in lines: a worker, ssh to one, or what stands in front of a queue. Its standard
 * error is read too, and its last line there says why a child that ended did so. A link never blocks. */
#ifndef KERNELRL_VERIFY_POOL_LINK_H
#define KERNELRL_VERIFY_POOL_LINK_H

#include "base/str.h"
#include "verify/jail/process.h"
#include "verify/pool/lines.h"

enum { LINK_ARGS = 24, LINK_SETS = 4, LINK_WHY_BYTES = 400 };

struct line_link {
    const char *label;                    /* stands in front of messages */
    char program[4096], *argv[LINK_ARGS]; /* argv[0] .. NULL; strings are owned */
    char *set[LINK_SETS];                 /* "NAME=value" in its environment instead of what it would inherit; owned */
    struct process process;               /* none: it is not running */
    int to, from, err;                    /* descriptors */
    struct line_reader reader, err_reader;
    struct str out; /* not written yet, from out_at on */
    size_t out_at;
    char why[LINK_WHY_BYTES]; /* last line on its standard error, or how it ended */
};

/* The link has a label and arguments; it is not started. */
void link_init(struct line_link *l, const char *label);
void link_arg(struct line_link *l, const char *fmt, ...) PRINTF_LIKE(2, 3);
void link_env(struct line_link *l, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Starts argv. argv[0] is looked up on PATH unless `program` is set. ST_WORKER. */
enum status link_start(struct line_link *l, struct err *e) MUST_USE;
/* Ends the child at once (grace_s 0), or after that time without an input; `why` then says how it ended. */
void link_stop(struct line_link *l, double grace_s);
void link_free(struct line_link *l);

bool link_is_running(const struct line_link *l);
void link_send(struct line_link *l, const char *bytes, size_t n); /* queues; link_write writes */
/* Writes what can be written now. False: the child does not read any more. */
bool link_write(struct line_link *l);
bool link_has_output(const struct line_link *l);
/* Reads what is there. False: the child has closed its output: it has ended, or will. */
bool link_read(struct line_link *l);
/* The next line of what was read, as line_reader_next(). */
enum line_kind link_line(struct line_link *l, char **line, uint64_t *n);
/* Reads its standard error; lines are logged as warnings of the link, as far as they are few. */
void link_read_err(struct line_link *l);

#endif
