/* serve_verify: the verdict service behind `serve --verify`: its configurations, and the lease by which the model
 * stands aside while answers are timed on its device. */
#ifndef KERNELRL_CLI_SERVE_VERIFY_H
#define KERNELRL_CLI_SERVE_VERIFY_H

#include "serve/serve.h"
#include "verdicts/service.h"

enum { SERVE_VERIFY_CONFIGS = 16, SERVE_VERIFY_SOURCES = 32 };

enum serve_problems { SERVE_PROBLEMS_KNOWN, SERVE_PROBLEMS_ANY, SERVE_PROBLEMS_AUTO /* any on loopback */ };

struct serve_verify_options { /* as the flags have them */
    bool on, only;
    const char *jobs, *backend;
    int max_jobs;
    int problems; /* enum serve_problems */
    const char *config[SERVE_VERIFY_CONFIGS], *source[SERVE_VERIFY_SOURCES];
    size_t n_configs, n_sources;
    struct pool_options pool;
};

struct serve_verify;
/* Reads the configurations, and opens the service. model_device: of the model beside it; NULL: there is none. Options
 * are borrowed. */
enum status serve_verify_open(const struct serve_verify_options *o, const char *host, const char *model_device,
                              struct serve_verify **out, struct err *e) MUST_USE;
struct verdicts *serve_verify_service(struct serve_verify *s);
/* For serve_options.aside; zero where the model and the clock share no device. */
struct serve_aside serve_verify_aside(struct serve_verify *s);
/* The model goes first: it must not wait for the lease any more. NULL is fine. */
void serve_verify_close(struct serve_verify *s);

#endif
