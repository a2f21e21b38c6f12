#include "cli/serve_verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "io/config.h"
#include "rl/evaluate/answer_reward.h"
#include "rl/learn/session.h"
#include "verify/backends.h"
#include "verify/quiet_lease.h"

/* How one configuration judges and pays; it owns what the desk borrows. */
struct serve_verify_config {
    struct config c;
    struct train_options o;
    char name[100];
};

struct serve_verify {
    struct serve_verify_config *config;
    struct desk_config *of_desk;
    size_t n;
    struct lease *lease; /* NULL: the model stands aside for nobody */
    struct verdicts_options o;
    struct verdicts *service;
};

/* "runs/fast/pay.yaml" is called "pay". */
static void name_of(const char *path, char *out, size_t size) {
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    const char *dot = strrchr(base, '.');
    snprintf(out, size, "%.*s", dot && dot != base ? (int)(dot - base) : (int)strlen(base), base);
}

/* file NULL: the defaults of `train`. */
static enum status read_config(const struct serve_verify_options *o, const char *file, struct serve_verify_config *c,
                               struct desk_config *out, struct err *e) {
    snprintf(c->name, sizeof c->name, "default");
    if (file) {
        name_of(file, c->name, sizeof c->name);
        TRY(config_load(&c->c, file, e));
    } else if (o->backend) {
        CLEANUP_STR struct str assignment = STR_INIT;
        str_addf(&assignment, "backend=%s", o->backend);
        TRY(config_set(&c->c, assignment.p, e));
    }
    TRY(train_options_finish(&c->c, &c->o, e));
    out->name = c->name;
    out->verify = session_verify_options(&c->o, NULL);
    out->verify.progress = NULL;
    out->weights = answer_weights(&c->o, 1);
    out->train = &c->o;
    return session_source(&c->o, &out->source, e);
}

static enum status read_configs(struct serve_verify *s, const struct serve_verify_options *o, struct err *e) {
    s->n = o->n_configs > 0 ? o->n_configs : 1;
    s->config = xcalloc(s->n, sizeof *s->config);
    s->of_desk = xcalloc(s->n, sizeof *s->of_desk);
    for (size_t i = 0; i < s->n; i++) config_init(&s->config[i].c, &train_schema, &s->config[i].o);
    for (size_t i = 0; i < s->n; i++) {
        TRY(read_config(o, o->n_configs > 0 ? o->config[i] : NULL, &s->config[i], &s->of_desk[i], e));
        for (size_t k = 0; k < i; k++)
            if (strcmp(s->config[k].name, s->config[i].name) == 0)
                return FAIL(e, ST_CONFIG, "--verify-config: two configurations are called \"%s\"", s->config[i].name);
    }
    return ST_OK;
}

/* Whether answers of these options run where the model does. */
static bool shares_device(const struct verify_options *v, const char *model_device) {
    const char *mine = v->device ? v->device : backend_info(v->backend)->on_cpu ? "cpu" : "cuda:0";
    return strcmp(mine, strcmp(model_device, "cuda") == 0 ? "cuda:0" : model_device) == 0;
}

static enum status share(struct serve_verify *s, const struct serve_verify_options *o, const char *model_device,
                         struct err *e) {
    bool any = false;
    for (size_t i = 0; i < s->n && model_device; i++) any |= shares_device(&s->of_desk[i].verify, model_device);
    if (!any) return ST_OK;
    if (o->pool.hosts)
        TRY(lease_create_on_host(&s->lease, e));
    else
        s->lease = lease_create();
    for (size_t i = 0; i < s->n; i++) {
        if (!shares_device(&s->of_desk[i].verify, model_device)) continue;
        s->of_desk[i].verify.quiet = lease_quiet;
        s->of_desk[i].verify.quiet_ctx = s->lease;
    }
    return ST_OK;
}

static bool is_loopback_name(const char *host) {
    return str_has_prefix(host, "127.") || strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0;
}

enum status serve_verify_open(const struct serve_verify_options *o, const char *host, const char *model_device,
                              struct serve_verify **out, struct err *e) {
    struct serve_verify *s = xcalloc(1, sizeof *s);
    *out = NULL;
    enum status st = read_configs(s, o, e);
    if (st == ST_OK) st = share(s, o, model_device, e);
    s->o = (struct verdicts_options){
        .desk = {.config = s->of_desk,
                 .n_configs = s->n,
                 .source = o->source,
                 .n_sources = o->n_sources,
                 .pool = o->pool,
                 .any_problem = o->problems == SERVE_PROBLEMS_ANY ||
                                (o->problems == SERVE_PROBLEMS_AUTO && is_loopback_name(host)),
                 .jail_problems = true,
                 .max_factor = 64},
        .jobs = o->jobs,
        .max_jobs = o->max_jobs,
    };
    if (st == ST_OK) st = verdicts_open(&s->o, &s->service, e);
    if (st != ST_OK) {
        serve_verify_close(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

struct verdicts *serve_verify_service(struct serve_verify *s) {
    return s->service;
}

static void aside_begin(void *ctx) { lease_begin(ctx); }
static void aside_yield(void *ctx) { lease_yield(ctx); }
static void aside_end(void *ctx) { lease_end(ctx); }
static double aside_seconds(void *ctx) { return lease_quiet_s(ctx); }

struct serve_aside serve_verify_aside(struct serve_verify *s) {
    if (!s->lease) return (struct serve_aside){0};
    return (struct serve_aside){aside_begin, aside_yield, aside_end, aside_seconds, s->lease};
}

void serve_verify_close(struct serve_verify *s) {
    if (!s) return;
    verdicts_close(s->service);
    lease_free(s->lease);
    for (size_t i = 0; i < s->n; i++) config_free(&s->config[i].c);
    free(s->config);
    free(s->of_desk);
    free(s);
}
