#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

static enum log_level log_min = LOG_INFO;
static char log_who[80]; /* in front of lines on stderr; "" */
static FILE *log_file;
static bool progress_open;
static int64_t progress_last_ns;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static const char *const level_name[] = {"debug", "info", "warning", "error"};

void log_set_level(enum log_level min) { log_min = min; }

void log_set_process(const char *who) {
    snprintf(log_who, sizeof log_who, "%s: ", who);
    log_min = LOG_WARN;
}

enum status log_open_file(const char *path, struct err *e) {
    FILE *f = fopen(path, "a+e");
    if (!f) return FAIL(e, ST_IO, "%s: cannot open the log: %s", path, strerror(errno));
    /* A line that a killed process has left unfinished gets its end. */
    if (fseek(f, -1, SEEK_END) == 0 && fgetc(f) != '\n' && fseek(f, 0, SEEK_END) == 0) fputc('\n', f);
    log_close_file();
    log_file = f;
    return ST_OK;
}

void log_close_file(void) {
    if (log_file) fclose(log_file);
    log_file = NULL;
}

static void file_line(const char *level, const char *msg) {
    if (!log_file) return;
    char when[32];
    time_t t = time(NULL);
    struct tm tm;
    gmtime_r(&t, &tm);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
    fprintf(log_file, "%s %s %s\n", when, level, msg);
    fflush(log_file);
}

void log_line(enum log_level level, const char *fmt, ...) {
    char msg[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&log_lock);
    if (level >= log_min) {
        if (progress_open) fputs("\r\033[K", stderr);
        progress_open = false;
        if (level == LOG_INFO)
            fprintf(stderr, "%s%s\n", log_who, msg);
        else
            fprintf(stderr, "%s%s: %s\n", log_who, level_name[level], msg);
    }
    file_line(level_name[level], msg);
    pthread_mutex_unlock(&log_lock);
}

void log_file_line(enum log_level level, const char *msg) {
    pthread_mutex_lock(&log_lock);
    file_line(level_name[level], msg);
    pthread_mutex_unlock(&log_lock);
}

void log_progress(const char *fmt, ...) {
    if (log_min > LOG_INFO) return;
    char msg[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&log_lock);
    if (isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r\033[K%s", msg);
        fflush(stderr);
        progress_open = true;
    } else if (clock_now_ns() - progress_last_ns > 10000000000LL) {
        fprintf(stderr, "%s\n", msg);
        progress_last_ns = clock_now_ns();
    }
    pthread_mutex_unlock(&log_lock);
}

void log_progress_end(void) {
    pthread_mutex_lock(&log_lock);
    if (progress_open) fputs("\r\033[K", stderr);
    progress_open = false;
    pthread_mutex_unlock(&log_lock);
}
