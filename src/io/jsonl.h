/* jsonl: files of one JSON value a line, plain or compressed by zstd (the name ends in .zst).
 *
 * The appender survives a crash at any moment. It writes whole lines with O_APPEND, and when it opens a file again, it
 * cuts what a crash has left of a last line. In a compressed file each append is a zstd frame of its own (RFC 8878
 * allows any number), and an incomplete or damaged last frame is cut. The file is locked while it is open for
 * appending. These functions move lines; json.h parses them. */
#ifndef KERNELRL_JSONL_H
#define KERNELRL_JSONL_H

#include "base/err.h"
#include "base/str.h"

struct jsonl_reader;
/* max_line_bytes bounds memory. A longer line is an error. */
enum status jsonl_open(const char *path, size_t max_line_bytes, struct jsonl_reader **out, struct err *e) MUST_USE;
/* Reads from a file that is open at its start; the descriptor becomes the reader's. `name` stands in messages. */
struct jsonl_reader *jsonl_open_fd(int fd, const char *name, bool zstd, size_t max_line_bytes);
/* Reads from memory instead. `data` is borrowed until jsonl_close. `name` stands in messages. */
struct jsonl_reader *jsonl_open_memory(const char *name, const void *data, size_t n, bool zstd, size_t max_line_bytes);
/* Gives the next line, without its newline (and without \r before it). Blank lines are skipped. *line is NULL at the
 * end of the file; else it ends with a NUL and is valid until the next call. Errors: ST_IO, ST_PARSE (a line is too
 * long, zstd data are damaged). */
enum status jsonl_next(struct jsonl_reader *r, const char **line, size_t *len, struct err *e) MUST_USE;
/* The number of the line that was returned last, from 1. */
int64_t jsonl_line(const struct jsonl_reader *r);
/* How many bytes of (decoded) text stand in front of the line that was returned last: its place in a plain file. */
int64_t jsonl_offset(const struct jsonl_reader *r);
/* Of a compressed file: where in the file the frame begins that holds the line that was returned last, and where in
 * that frame's decoded text the line begins. Every append of a writer is a frame, and no line lies in two. */
void jsonl_frame(const struct jsonl_reader *r, int64_t *frame, int64_t *at);
/* Before the first line: reads from this byte of the file on. In a compressed file a frame must begin there. ST_IO. */
enum status jsonl_start_at(struct jsonl_reader *r, int64_t bytes, struct err *e) MUST_USE;
/* After the end, true: the last line had no newline, or the last zstd frame was incomplete, because a writer was
 * interrupted. */
bool jsonl_is_torn(const struct jsonl_reader *r);
void jsonl_close(struct jsonl_reader *r); /* r may be NULL. */

struct jsonl_writer;
/* Opens or creates a file for appending. *cut_bytes (which may be NULL) says how much of an interrupted write was
 * removed. ST_IO when another process has the file open for appending. */
enum status jsonl_append_open(const char *path, struct jsonl_writer **out, int64_t *cut_bytes, struct err *e) MUST_USE;
/* Appends one or more lines. A missing last newline is added. All of it is in the file or, after an error, none. When
 * it returns, the kernel has the lines: they survive a crash of the process, and after jsonl_sync also one of the
 * machine. */
enum status jsonl_append(struct jsonl_writer *w, const char *lines, size_t n, struct err *e) MUST_USE;
/* How many bytes the file has: where the next append begins. */
int64_t jsonl_append_size(const struct jsonl_writer *w);
/* Drops what lies behind the first `bytes` of a plain file. A line must end there. */
enum status jsonl_append_cut(struct jsonl_writer *w, int64_t bytes, struct err *e) MUST_USE;
enum status jsonl_sync(struct jsonl_writer *w, struct err *e) MUST_USE; /* fsync */
/* Closes the file. w may be NULL. */
void jsonl_append_close(struct jsonl_writer *w);

#endif
