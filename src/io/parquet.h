/* parquet: rows of an Apache Parquet file as JSON lines. A Python that has pyarrow reads the format. It runs as a child
 * (worker/kernelrl_worker/parquet.py; pychild.h says which Python). */
#ifndef KERNELRL_PARQUET_H
#define KERNELRL_PARQUET_H

#include "base/err.h"
#include "base/str.h"

/* Appends one JSON object for each row, with columns as keys: those of the comma-separated names in `columns` that the
 * file has, or all of them for NULL. ST_WORKER when no Python has pyarrow (the message says what was tried and what to
 * install), ST_PARSE when pyarrow cannot read the file, ST_INVALID when the rows are over max_bytes. */
enum status parquet_to_jsonl(const char *path, const char *columns, size_t max_bytes, struct str *out,
                             struct err *e) MUST_USE;

#endif
