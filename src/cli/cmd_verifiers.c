/* kernelrl verifiers: hosts that judge behind a queue. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/cli.h"
#include "verify/pool/farm_setup.h"
#include "verify/pool/registry.h"
#include "verify/pool/relay.h"

struct verifiers_args {
    const char *nats, *credentials, *server, *family;
    const char *worker[FARM_WORKERS_MAX];
    int n_workers, port;
    bool json;
    double beat_s, lease_s;
};

static enum status take_worker(void *values, const char *text, struct err *e) {
    struct verifiers_args *a = values;
    if (a->n_workers == FARM_WORKERS_MAX) return FAIL(e, ST_USAGE, "at most %d at a time", FARM_WORKERS_MAX);
    a->worker[a->n_workers++] = text;
    return ST_OK;
}

#define A struct verifiers_args
static const struct args_flag flags[] = {
    FLAG_TEXT(A, nats, "nats", "URL", NULL, "The NATS server: nats://HOST:4222 or tls://HOST:4222.",
              .of = "show relay"),
    FLAG_TEXT(A, credentials, "credentials", "DIR", "KERNELRL_FARM", "The trainer's folder of the farm.",
              .of = "show relay"),
    FLAG_BOOL(A, json, "json", "One JSON object is printed.", .of = "show"),
    FLAG_TEXT(A, server, "server", "HOST", NULL, "The server is reached under this name or address.", .of = "setup"),
    FLAG_INT(A, port, "port", "N", 1, 65535, "4222", "It listens there.", .of = "setup"),
    FLAG_CALL(take_worker, "worker", "NAME=CLASS", NULL,
              "A host that judges gets a key of its own; `kernelrl doctor` there names its classes.", .of = "setup",
              .repeats = true),
    FLAG_TEXT(A, family, "family", "F", NULL, "The first host of that kind decides the class: cpu or cuda.",
              .of = "relay"),
    FLAG_FLOAT(A, beat_s, "beat", "S", 0.05, 60, "2", "It says so often that it is alive.", .of = "relay"),
    FLAG_FLOAT(A, lease_s, "lease", "S", 0.5, 3600, "30", "A job is given to another host after so long a silence.",
               .of = "relay"),
};

static const struct args_sub subs[] = {
    {.name = "show", .help = "Shows the hosts of a farm, and what waits in its queue."},
    {.name = "setup",
     .words = "DIR",
     .min = 1,
     .max = 1,
     .expected = "the folder DIR",
     .help = "Makes what a farm needs: the server's configuration, certificates and keys; or adds hosts."},
    {.name = "relay", .help = "Stands between a run and the queue; the run starts it."},
};

const struct args_command verifiers_command = {
    .name = "verifiers",
    .usage = "show --nats URL [--json]\nsetup DIR --server HOST --worker NAME=CLASS...",
    .about = "Hosts that judge answers for other machines, behind a queue (docs/farm.md).",
    .flags = flags,
    .n_flags = ARRAY_LEN(flags),
    .subs = subs,
    .n_subs = ARRAY_LEN(subs),
};

static enum status show(const struct verifiers_args *a, struct err *e) {
    CLEANUP_STR struct str text = STR_INIT;
    TRY(registry_show(a->nats, a->credentials, a->json, &text, e));
    fputs(str_c(&text), stdout);
    return ST_OK;
}

static enum status setup(const struct verifiers_args *a, const char *folder, struct err *e) {
    CLEANUP_STR struct str next = STR_INIT;
    const struct farm_setup s = {
        .folder = folder, .server = a->server, .port = a->port, .worker = a->worker, .n_workers = a->n_workers};
    TRY(farm_setup(&s, &next, e));
    fputs(str_c(&next), stdout);
    return ST_OK;
}

int cmd_verifiers(int argc, char **argv) {
    struct verifiers_args a = {.port = 4222, .beat_s = 2, .lease_s = 30};
    struct args given;
    struct err e;
    const char *farm = getenv("KERNELRL_FARM");
    if (!args_parse(&verifiers_command, argc, argv, &a, &given)) return given.code;
    const char *what = given.sub->name;
    if (!a.credentials && farm && *farm) a.credentials = farm;
    if (strcmp(what, "setup") == 0) {
        if (!a.server) return args_wrong(&verifiers_command, &given, "--server is needed");
        return setup(&a, given.word[0], &e) == ST_OK ? 0 : args_report(&e);
    }
    if (!a.nats) return args_wrong(&verifiers_command, &given, "--nats is needed");
    if (strcmp(what, "show") == 0) return show(&a, &e) == ST_OK ? 0 : args_report(&e);
    log_set_level(LOG_WARN);
    const struct relay_options o = {.url = a.nats,
                                    .folder = a.credentials,
                                    .family = a.family,
                                    .lease_s = a.lease_s,
                                    .beat_s = a.beat_s,
                                    .in = STDIN_FILENO,
                                    .out = STDOUT_FILENO};
    return relay_run(&o);
}
