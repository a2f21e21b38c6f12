/* tfevents: files that TensorBoard reads. A file is a sequence of records (u64 length, masked CRC32C of the length,
 * data, masked CRC32C of the data; tensorflow/core/lib/io/record_writer.h). Each is an Event protobuf (event.proto,
 * summary.proto). The few messages that are needed are encoded by hand. Steps are the run's steps; wall time is the
 * clock's.
 *
 * Each open starts a new file in the directory, as TensorBoard expects of a resumed run. */
#ifndef KERNELRL_TFEVENTS_H
#define KERNELRL_TFEVENTS_H

#include "base/err.h"

struct tfevents;

/* Creates dir when needed, and a new events file in it. ST_IO. */
enum status tfevents_open(const char *dir, struct tfevents **out, struct err *e) MUST_USE;
const char *tfevents_path(const struct tfevents *t);

/* Adders buffer. Data reach the file at tfevents_flush, at close, and by themselves every 30 s or 64 KiB. A failed
 * write is kept, and returned by the next flush or close, so that a full disk does not stop a run in the middle of a
 * step. */
void tfevents_scalar(struct tfevents *t, int64_t step, const char *tag, double value);
/* Adds a histogram of n values, in 30 equal buckets from the smallest to the largest. NaN and infinities are left out.
 * Nothing is written when no value is left. */
void tfevents_histogram(struct tfevents *t, int64_t step, const char *tag, const double *values, size_t n);
/* Adds text (Markdown) for the text plugin. */
void tfevents_text(struct tfevents *t, int64_t step, const char *tag, const char *text);

/* Charts that show several scalars in one, for the custom scalars plugin: a category of them. A chart's tags are
 * regular expressions, up to the first NULL. They are written once a run. */
struct tfevents_chart {
    const char *title, *tag[5];
};
void tfevents_layout(struct tfevents *t, int64_t step, const char *title, const struct tfevents_chart *charts,
                     size_t n);

enum status tfevents_flush(struct tfevents *t, struct err *e) MUST_USE;
enum status tfevents_close(struct tfevents *t,
                           struct err *e) MUST_USE; /* Flushes, then frees, also after an error. t may be NULL. */

/* Drops the events of steps >= step, and what an interrupted write has left, from all event files in dir. Each file is
 * cut at the first such record, since steps only grow within a file. Records without a step stay. ST_IO. */
enum status tfevents_truncate(const char *dir, int64_t step, struct err *e) MUST_USE;

/* CRC-32C (Castagnoli, reflected 0x82f63b78), as in RFC 3720, appendix B.4. */
uint32_t tfevents_crc32c(const void *p, size_t n);

#endif
