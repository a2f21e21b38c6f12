/* Errors. An operating error (a bad file, a bad key, a full disk) returns a status and fills a struct err, which the
 * caller owns. A programmer's error asserts. fail() records the first cause; callers may add context with note() while
 * they return:
 *     train: configs/x.yaml:12:7: learning_rate: expected a number > 0, got "fast" */
#ifndef KERNELRL_ERR_H
#define KERNELRL_ERR_H

#include "base/base.h"

/* One list gives the enum, the name and the exit code. */
#define STATUS_LIST(X)                 \
    X(OK, "ok", 0)                     \
    X(USAGE, "usage", 2)               \
    X(CONFIG, "configuration", 2)      \
    X(IO, "i/o", 1)                    \
    X(PARSE, "malformed input", 1)     \
    X(INVALID, "invalid value", 1)     \
    X(UNSUPPORTED, "not supported", 1) \
    X(MEMORY, "out of memory", 1)      \
    X(DEVICE, "device error", 3)       \
    X(TIMEOUT, "timed out", 1)         \
    X(SANDBOX, "sandbox", 1)           \
    X(WORKER, "worker lost", 1)        \
    X(CANCELLED, "cancelled", 130)     \
    X(FAILED, "failed", 1)             \
    X(LOST, "rank lost", 75)

enum status {
#define X(name, text, code) ST_##name,
    STATUS_LIST(X)
#undef X
};

struct err {
    enum status code;
    const char *file; /* The place in the source of the first cause, for logs. */
    int line;
    char msg[1000];
};

const char *status_name(enum status s);
int status_exit_code(enum status s);

/* Records the first cause and returns its code, so that a failing function ends in `return FAIL(e, ST_IO, ...)`. e may
 * be NULL; the code is returned all the same. */
enum status err_fail(struct err *e, enum status code, const char *file, int line, const char *fmt, ...)
    PRINTF_LIKE(5, 6);
#define FAIL(e, code, ...) err_fail((e), (code), __FILE__, __LINE__, __VA_ARGS__)

/* Puts context in front of the message: note(e, "model %s", dir) gives "model DIR: <message>". Returns e->code. */
enum status err_note(struct err *e, const char *fmt, ...) PRINTF_LIKE(2, 3);

#define TRY(x)                                        \
    do {                                              \
        enum status try_status_ = (x);                \
        if (try_status_ != ST_OK) return try_status_; \
    } while (0)
#define TRY_GOTO(x, label)           \
    do {                             \
        st = (x);                    \
        if (st != ST_OK) goto label; \
    } while (0)

#endif
