/* jsonl: files of one JSON value a line, plain or zstd-compressed (the name ends in .zst).
 *
 * The appender survives a crash at any moment: it writes whole lines with O_APPEND, and on reopening a file it cuts
 * what a crash left of a last line. In a compressed file each append is a zstd frame of its own (RFC 8878 allows any
 * number), so the same holds: an incomplete or damaged last frame is cut. The file is locked while it is open for
 * appending. The functions move lines; parsing them is json.h's part. */
#ifndef KERNELRL_JSONL_H
#define KERNELRL_JSONL_H

#include "base/err.h"
#include "base/str.h"

struct jsonl_reader;
/* max_line_bytes bounds memory; a longer line is an error. */
enum status jsonl_open(const char *path, size_t max_line_bytes, struct jsonl_reader **out, struct err *e) MUST_USE;
/* Reads from memory instead; `data` is borrowed until jsonl_close. `name` stands in messages. */
struct jsonl_reader *jsonl_open_memory(const char *name, const void *data, size_t n, bool zstd, size_t max_line_bytes);
/* Next line, without its newline (and without \r before it); blank lines are skipped. *line is NULL at the end of the
 * file, else NUL-terminated and valid until the next call. Errors: ST_IO, ST_PARSE (line too long, damaged zstd data).
 */
enum status jsonl_next(struct jsonl_reader *r, const char **line, size_t *len, struct err *e) MUST_USE;
int64_t jsonl_line(const struct jsonl_reader *r); /* number of the line last returned, from 1 */
/* Bytes of (decoded) text in front of the line last returned: its place in a plain file. */
int64_t jsonl_offset(const struct jsonl_reader *r);
/* After the end: the last line had no newline, or the last zstd frame was incomplete (a writer was interrupted). */
bool jsonl_is_torn(const struct jsonl_reader *r);
void jsonl_close(struct jsonl_reader *r); /* NULL is fine */

struct jsonl_writer;
/* Opens or creates a file for appending. *cut_bytes (may be NULL) says how much of an interrupted write was removed.
 * ST_IO when another process has it open for appending. */
enum status jsonl_append_open(const char *path, struct jsonl_writer **out, int64_t *cut_bytes, struct err *e) MUST_USE;
/* Appends one or more lines; a missing last newline is added. Either all of it is in the file or, on error, none. In
 * the hands of the kernel on return: survives a crash of the process, but of the machine only after jsonl_sync. */
enum status jsonl_append(struct jsonl_writer *w, const char *lines, size_t n, struct err *e) MUST_USE;
/* Drops what lies behind the first `bytes` of a plain file, which must end a line there. */
enum status jsonl_append_cut(struct jsonl_writer *w, int64_t bytes, struct err *e) MUST_USE;
enum status jsonl_sync(struct jsonl_writer *w, struct err *e) MUST_USE; /* fsync */
/* Closes; NULL is fine. */
void jsonl_append_close(struct jsonl_writer *w);

#endif
