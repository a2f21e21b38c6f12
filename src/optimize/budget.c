#include "optimize/budget.h"

#include <ctype.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

enum status budget_seconds(const char *text, double *out, struct err *e) {
    double total = 0;
    const char *p = text;
    bool fine = *p != 0;
    while (fine && *p) {
        char *end;
        fine = isdigit((unsigned char)*p) || *p == '.';
        if (!fine) break;
        const double n = strtod(p, &end);
        fine = end > p && isfinite(n);
        const char unit = *end;
        const double seconds = unit == 'h' ? 3600 : unit == 'm' ? 60 : 1;
        fine = fine && (unit == 0 || unit == 'h' || unit == 'm' || unit == 's');
        total += n * seconds;
        p = end + (unit != 0);
    }
    if (!fine || !(total > 0))
        return FAIL(e, ST_CONFIG, "budget: expected a time such as 90s, 30m or 1h30m, got \"%s\"", text);
    *out = total;
    return ST_OK;
}

/* ---- deadlines ----------------------------------------------------------------------------------------------------*/

struct time_limit {
    const volatile bool *cancel;
    double until_s;
    volatile bool flag, ending, passed;
    pthread_t thread;
};

static void *watch(void *ctx) {
    struct time_limit *d = ctx;
    while (!d->ending && !d->flag) {
        d->passed = clock_now_s() >= d->until_s;
        if ((d->cancel && *d->cancel) || d->passed) d->flag = true;
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
    return NULL;
}

enum status time_limit_start(const volatile bool *cancel, double seconds, struct time_limit **out, struct err *e) {
    struct time_limit *d = xcalloc(1, sizeof *d);
    d->cancel = cancel;
    d->until_s = clock_now_s() + seconds;
    const int failed = pthread_create(&d->thread, NULL, watch, d);
    if (failed == 0) {
        *out = d;
        return ST_OK;
    }
    free(d);
    return FAIL(e, ST_FAILED, "a thread for the clock: %s", strerror(failed));
}

const volatile bool *time_limit_flag(const struct time_limit *d) { return &d->flag; }

bool time_limit_passed(const struct time_limit *d) { return d->passed; }

void time_limit_end(struct time_limit *d) {
    if (!d) return;
    d->ending = true;
    pthread_join(d->thread, NULL);
    free(d);
}
