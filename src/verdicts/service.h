/* service: verdicts over HTTP (docs/verdict-service.md): a front end whose requests become jobs in a file (jobs.h),
 * which a desk judges (desk.h). Nothing but time is lost when the process ends at any moment. */
#ifndef KERNELRL_VERDICTS_SERVICE_H
#define KERNELRL_VERDICTS_SERVICE_H

#include "http/http.h"
#include "verdicts/desk.h"

struct verdicts_options {
    struct desk_options desk; /* its `recall` is the service's own */
    const char *jobs;         /* the file of jobs, made where there is none */
    int max_jobs;             /* so many may wait; further requests get 429 */
};

struct verdicts;
/* Opens the file and the desk; jobs of an earlier process are taken up. Options are borrowed until verdicts_close().
 * Errors as jobs_open and desk_open. */
enum status verdicts_open(const struct verdicts_options *o, struct verdicts **out, struct err *e) MUST_USE;
/* The front end. It is to be given to http_server_open(), and the server then to verdicts_attach(). */
struct http_front verdicts_front(struct verdicts *v);
/* The same service as a resources server of NeMo-Gym and as a server of KernelGYM: a front end beside the first. */
struct http_front verdicts_gyms_front(struct verdicts *v);
enum status verdicts_attach(struct verdicts *v, struct http_server *http, struct err *e) MUST_USE;
/* After http_server_close(). What is being judged is waited for, what waits is left for the next process. NULL is
 * fine. */
void verdicts_close(struct verdicts *v);

#endif
