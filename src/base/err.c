#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int exit_code;
} status_table[] = {
#define X(name, text, code) {text, code},
    STATUS_LIST(X)
#undef X
};

const char *status_name(enum status s) { return status_table[s].name; }

int status_exit_code(enum status s) { return status_table[s].exit_code; }

enum status err_fail(struct err *e, enum status code, const char *file, int line, const char *fmt, ...) {
    ASSERT(code != ST_OK);
    if (!e) return code;
    e->code = code;
    e->file = file;
    e->line = line;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    return code;
}

enum status err_note(struct err *e, const char *fmt, ...) {
    if (!e) return ST_FAILED;
    char head[sizeof e->msg], old[sizeof e->msg];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(head, sizeof head, fmt, ap);
    va_end(ap);
    memcpy(old, e->msg, sizeof old);
    size_t room = sizeof e->msg - 1, n = strlen(head);
    if (n > room) n = room;
    memcpy(e->msg, head, n);
    snprintf(e->msg + n, sizeof e->msg - n, ": %s", old);
    return e->code;
}
