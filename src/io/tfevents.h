/* tfevents: files that TensorBoard reads. A file is a sequence of records (u64 length, masked CRC32C of the length,
 * data, masked CRC32C of the data; tensorflow/core/lib/io/record_writer.h), each an Event protobuf (event.proto,
 * summary.proto). The few messages needed are encoded by hand. Steps are the run's steps; wall time is the clock's.
 *
 * Each open starts a new file in the directory, as TensorBoard expects of a resumed run. */
#ifndef KERNELRL_TFEVENTS_H
#define KERNELRL_TFEVENTS_H

#include "base/err.h"

struct tfevents;

/* Creates dir when needed and a new events file in it. ST_IO. */
enum status tfevents_open(const char *dir, struct tfevents **out, struct err *e) MUST_USE;
const char *tfevents_path(const struct tfevents *t);

/* Adders buffer; data reaches the file at tfevents_flush, at close, and by itself every 30 s or 64 KiB. A failed write
 * is kept and returned by the next flush or close, so that a full disk does not stop a run in mid-step. */
void tfevents_scalar(struct tfevents *t, int64_t step, const char *tag, double value);
/* Histogram of n values in 30 equal buckets from the smallest to the largest; NaN and infinities are left out, and
 * nothing is written when no value is left. */
void tfevents_histogram(struct tfevents *t, int64_t step, const char *tag, const double *values, size_t n);
/* Text (Markdown) for the text plugin. */
void tfevents_text(struct tfevents *t, int64_t step, const char *tag, const char *text);

/* Charts that show several scalars in one, for the custom scalars plugin: a category of them. A chart's tags are
 * regular expressions of tags, up to the first NULL. To be written once a run. */
struct tfevents_chart {
    const char *title, *tag[5];
};
void tfevents_layout(struct tfevents *t, int64_t step, const char *title, const struct tfevents_chart *charts,
                     size_t n);

enum status tfevents_flush(struct tfevents *t, struct err *e) MUST_USE;
enum status tfevents_close(struct tfevents *t,
                           struct err *e) MUST_USE; /* flushes, then frees also on error; NULL is fine */

/* Drops the events of steps >= step, and what an interrupted write left, from all event files in dir: each is cut at
 * the first such record, since steps only grow within a file. Records without a step stay. ST_IO. */
enum status tfevents_truncate(const char *dir, int64_t step, struct err *e) MUST_USE;

/* CRC-32C (Castagnoli, reflected 0x82f63b78), as of RFC 3720 appendix B.4. */
uint32_t tfevents_crc32c(const void *p, size_t n);

#endif
