/* log: lines for people. They go to stderr and, once log_open_file was called, to the run's logs.log with a time stamp.
 * Metrics are not logs (see rl/run/metrics.h). */
#ifndef KERNELRL_LOG_H
#define KERNELRL_LOG_H

#include "base/err.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };
/* The process is one of several that work together: lines on stderr begin with `who` (copied), and only warnings and
 * errors reach it. */
void log_set_process(const char *who);
void log_set_level(enum log_level min); /* Sets the lowest level that reaches stderr. The file gets everything. */
enum status log_open_file(const char *path, struct err *e) MUST_USE; /* Appends to the file. */
void log_close_file(void);
void log_line(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);
void log_file_line(enum log_level level, const char *msg); /* Writes to the file only. */
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_warn(...) log_line(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)

/* Shows a progress line. A terminal's line is rewritten in place; a pipe gets at most one plain line every few
 * seconds. */
void log_progress(const char *fmt, ...) PRINTF_LIKE(1, 2);
void log_progress_end(void);

#endif
