/* episodes: the index of a run's traces, `episodes.jsonl`: a short row an answer that says where in traces.jsonl.zst
 * the answer stands and what is asked of it most (docs/formats.md, "Run directory"). Who lists a hundred thousand
 * answers reads rows, and decodes one frame to show one answer.
 *
 * The index is a function of the traces: a row is made of nothing but a line and its place. So it can be made again at
 * any time, and a run that was killed between two writes makes the missing rows when it is opened. */
#ifndef KERNELRL_RL_RUN_EPISODES_H
#define KERNELRL_RL_RUN_EPISODES_H

#include "base/err.h"
#include "base/str.h"

#define TRACES_FILE "traces.jsonl.zst"
#define EPISODES_FILE "episodes.jsonl"
enum { EPISODES_VERSION = 1, TRACE_LINE_MAX_BYTES = 16 << 20 };

struct episodes;
/* Opens or creates DIR's index for appending and brings it level with DIR's traces: the rows of the last frame that it
 * knows, and of all behind, are made anew. An index of another version, or of other traces, is made anew from the
 * start. No writer may append to the traces meanwhile. ST_PARSE: the traces cannot be read. */
enum status episodes_open(const char *dir, struct episodes **out, struct err *e) MUST_USE;
/* Adds the rows of the lines that were appended to the traces as one frame, which begins at this byte of the file. */
enum status episodes_add(struct episodes *x, int64_t frame, const char *lines, size_t n, struct err *e) MUST_USE;
void episodes_close(struct episodes *x); /* NULL is fine */
/* Removes DIR's index; episodes_open makes it again. */
enum status episodes_remove(const char *dir, struct err *e) MUST_USE;

/* Appends the row of a line of traces, with its newline. frame: where the line's frame begins in the file; at: where
 * the line begins in the frame's text. ST_PARSE names `where`. */
enum status episode_row(const char *line, size_t n, int64_t frame, int64_t at, const char *where, struct str *out,
                        struct err *e) MUST_USE;

#endif
