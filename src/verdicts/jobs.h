/* jobs: requests for verdicts and their results, in one SQLite file, so that they outlive the process. A job is written
 * before its client hears of it. When a process was killed, the next one goes on: what was finished is there, what was
 * being judged is judged again, and each time is counted. Any thread may call. One process has the file at a time. */
#ifndef KERNELRL_VERDICTS_JOBS_H
#define KERNELRL_VERDICTS_JOBS_H

#include "base/err.h"
#include "base/hash.h"
#include "base/str.h"
#include "io/json.h"

enum job_status { JOB_QUEUED, JOB_TAKEN, JOB_RUNNING, JOB_SUCCEEDED, JOB_FAILED, JOB_CANCELLED };
/* "queued" of JOB_QUEUED and JOB_TAKEN, "running", ... */
const char *job_status_name(enum job_status s);
static inline bool job_is_over(enum job_status s) { return s >= JOB_SUCCEEDED; }

enum {
    JOBS_NAME_BYTES = 32, /* of a job or a batch */
    JOBS_KEPT_S = 604800, /* finished ones are kept so long */
    JOBS_KEY_BYTES = 255, /* of an idempotency key */
    JOBS_LOSSES = 3,      /* a job that was being judged when so many processes ended is not tried again */
};

/* A job as it is in the file. Texts are the row's own. */
struct job_row {
    int64_t id, batch; /* batch 0: none */
    char name[JOBS_NAME_BYTES];
    enum job_status status;
    int64_t place;                     /* in its batch, from 0 */
    int64_t ended;                     /* the how many'th to end, from 1; 0: it has not */
    int attempts;                      /* how often judging it has begun */
    bool cached;                       /* the verdict is that of an equal answer */
    double created, started, finished; /* Unix time; 0: not yet */
    char *request, *metadata, *result; /* JSON; the result as members, `,"verdict":...`; NULL: none */
};
void job_row_free(struct job_row *r);
/* A result as an object. The caller json_decref's *out. */
enum status job_result_parse(const char *result, json_t **out, struct err *e) MUST_USE;

struct job_new {
    const char *request, *metadata; /* JSON; metadata may be NULL */
    int priority;
    const char *key; /* the owner's name for this job alone, or NULL; a job that had it before loses it */
};

struct jobs;
/* Opens or makes the file, and takes up what an earlier process has left. ST_IO: also where another process has it. */
enum status jobs_open(const char *path, struct jobs **out, struct err *e) MUST_USE;
void jobs_close(struct jobs *j); /* NULL is fine */

/* What is known of a request by its owner's idempotency key. A body of NULL is equal to any. The body of a job's own
 * key is its request. */
enum jobs_replay { JOBS_NEW, JOBS_SAME, JOBS_OTHER /* the key came with another body before */ };
/* name: of the job or the batch that JOBS_SAME finds. */
enum status jobs_look_up(struct jobs *j, uint64_t owner, const char *key, const struct digest *body,
                         enum jobs_replay *found, char name[JOBS_NAME_BYTES], struct err *e) MUST_USE;
/* Writes n jobs, all or none, and with `batch` a batch of them. key may be NULL. name: of the job, or of the batch. */
enum status jobs_add(struct jobs *j, uint64_t owner, const char *key, const struct digest *body,
                     const struct job_new *jobs, size_t n, bool batch, char name[JOBS_NAME_BYTES],
                     struct err *e) MUST_USE;
/* found: whether there is such a job. Its texts are read where with_texts. */
enum status jobs_find(struct jobs *j, const char *name, bool with_texts, struct job_row *out, bool *found,
                      struct err *e) MUST_USE;

/* Takes the next job to be judged: those who ask take turns, and of each the oldest of the highest priority is next.
 * found: false when none is queued. */
enum status jobs_take(struct jobs *j, struct job_row *out, bool *found, struct err *e) MUST_USE;
/* A job that was taken is going to be judged: one attempt more. */
enum status jobs_begin(struct jobs *j, int64_t id, struct err *e) MUST_USE;
/* It is over. */
enum status jobs_end(struct jobs *j, int64_t id, enum job_status status, const char *result, const char *settings,
                     bool cached, struct err *e) MUST_USE;
/* It was taken, and is not judged after all. */
enum status jobs_put_back(struct jobs *j, int64_t id, struct err *e) MUST_USE;

struct jobs_counts {
    int64_t by[JOB_CANCELLED + 1], total;
};
struct batch_row {
    int64_t id;
    double created;
    struct jobs_counts counts;
};
enum status jobs_batch(struct jobs *j, const char *name, struct batch_row *out, bool *found, struct err *e) MUST_USE;
/* Reads up to `max` jobs of a batch that ended behind `after` (job_row.ended), in the order in which they ended. The
 * caller frees each of the rows. */
enum status jobs_results(struct jobs *j, int64_t batch, int64_t after, struct job_row *out, size_t max, size_t *n,
                         struct err *e) MUST_USE;

/* How many jobs wait or are judged, now. */
struct jobs_counts jobs_open_ones(struct jobs *j);
/* The place of a job among those of its owner that wait, from 1; 0: it does not wait. */
enum status jobs_position(struct jobs *j, int64_t id, int64_t *position, struct err *e) MUST_USE;
/* Reads up to `max` jobs of a batch that are not over. */
enum status jobs_open_in(struct jobs *j, int64_t batch, int64_t *id, size_t max, size_t *n, struct err *e) MUST_USE;
int64_t jobs_owners(struct jobs *j); /* who have some that wait */
/* Calls fn with the results that were given under these settings, at most `max`, the newest first. */
enum status jobs_recall(struct jobs *j, const char *settings, int max, void (*fn)(void *ctx, const char *result),
                        void *ctx, struct err *e) MUST_USE;
/* Forgets what ended more than JOBS_KEPT_S ago. */
enum status jobs_forget_old(struct jobs *j, struct err *e) MUST_USE;
/* Whether a job of that name would have been forgotten by now. */
bool jobs_name_is_old(const char *name);

#endif
