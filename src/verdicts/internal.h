/* What the parts of the service share: service.c has the jobs' way to the desk and back, routes.c and problems_api.c
 * what clients ask. All functions are the server's thread's, unless they say otherwise. */
#ifndef KERNELRL_VERDICTS_INTERNAL_H
#define KERNELRL_VERDICTS_INTERNAL_H

#include <pthread.h>

#include "verdicts/first_prompts.h"
#include "verdicts/jobs.h"
#include "verdicts/service.h"

enum {
    VERDICTS_AHEAD = 64, /* jobs at the desk */
    VERDICTS_BATCH = 1000,
    VERDICTS_BATCH_BYTES = 64 << 20,
    VERDICTS_PAGE = 1000, /* results in one reply */
};

/* A job at the desk. */
struct verdicts_flight {
    struct verdicts *v;
    struct desk_work *work;
    int64_t id, batch;
    struct verdicts_flight *next;
};
/* A job that is over, on its way to those who wait for it. */
struct verdicts_note {
    int64_t id, batch;
};
/* An exchange that waits for a job or for all of a batch, or streams a batch. */
struct verdicts_waiter {
    struct verdicts *v;
    struct http_exchange *x;
    int64_t job, batch; /* one of them is 0 */
    char name[JOBS_NAME_BYTES];
    bool replayed;
    int64_t cursor; /* of a stream: the last job that was sent */
    struct verdicts_waiter *next, **at;
};

struct verdicts {
    const struct verdicts_options *o;
    struct desk_options desk_options;
    struct jobs *jobs;
    struct desk *desk;
    struct first_prompts *prompts;
    struct http_server *http;
    int fd; /* eventfd: there are notes */
    bool draining;
    struct verdicts_waiter *waiters;
    double forgot; /* when old jobs were last forgotten */
    double pace_s; /* seconds from one verdict to the next while there is work; 0: unknown */

    pthread_mutex_t lock; /* of what follows; the desk's thread uses it, too */
    struct verdicts_flight *flights;
    int n_flights;
    struct verdicts_note *note;
    size_t n_notes, cap_notes;
    double last_end;
    int64_t of_class[128]; /* verdicts by class */
    int64_t cached;
    struct problem_prompt *made; /* prompts that are made, on their way to who asked */
};

/* Any thread: something is to be collected. */
void verdicts_signal(const struct verdicts *v);
/* Gives the desk as many jobs as it should have. */
void verdicts_feed(struct verdicts *v);
/* A job is not wanted any more. */
enum status verdicts_cancel(struct verdicts *v, int64_t id, struct err *e) MUST_USE;
/* Waits, at most so many seconds; http_set_state() has the waiter from here on. */
struct verdicts_waiter *verdicts_wait(struct verdicts *v, struct http_exchange *x, double seconds);
void verdicts_stop_waiting(struct verdicts_waiter *w); /* and frees it */
/* Replies a failure of the file of jobs. */
void verdicts_reply_trouble(struct http_exchange *x, const struct err *e);
void verdicts_reply_refusal(struct http_exchange *x, const struct verdict_refusal *why);
/* Who asks: requests of equal owners take turns with those of others. */
uint64_t verdicts_owner(const struct http_exchange *x);

/* Finds what is named. False: replied. The caller frees the row of a job. */
bool verdicts_find_job(struct verdicts *v, struct http_exchange *x, const char *name, struct job_row *r) MUST_USE;
bool verdicts_find_batch(struct verdicts *v, struct http_exchange *x, const char *name, struct batch_row *b) MUST_USE;
bool verdicts_batch_is_over(const struct batch_row *b);

/* Requests on their way into the file. */
struct verdicts_arriving {
    struct job_new *job;
    size_t n, cap;
};
/* Checks a request and takes it on; its metadata leaves it. False: it is refused. */
bool verdicts_arrive(struct verdicts *v, struct verdicts_arriving *a, json_t *request,
                     struct verdict_refusal *why) MUST_USE;
void verdicts_arriving_free(struct verdicts_arriving *a);
/* Whether n more jobs may wait. False: replied. */
bool verdicts_has_room(struct verdicts *v, struct http_exchange *x, size_t n) MUST_USE;

/* routes.c */
extern const struct http_route verdicts_routes[];
extern const size_t verdicts_n_routes;
void verdicts_put_metrics(void *verdicts, struct str *out);

/* gyms.c */
extern const struct http_route gyms_routes[];
extern const size_t gyms_n_routes;

/* problems_api.c */
void problems_list_begin(void *verdicts, struct http_exchange *x);
/* A problem, or its prompt. */
void problem_show_begin(void *verdicts, struct http_exchange *x);
void problem_show_event(void *verdicts, struct http_exchange *x, enum http_event event);
void problem_show_end(void *verdicts, struct http_exchange *x);
/* Wakes those whose prompts are made. */
void problem_prompts_collect(struct verdicts *v);

#endif
