#include "verify/pool/worker_main.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "verify/pool/farm_worker.h"
#include "verify/pool/places.h"
#include "verify/pool/supervise.h"

enum { AHEAD_ON_CPU = 15, AHEAD_ON_GPU = 7 };

/* The lines get descriptors of their own; whatever else is printed in this process goes to standard error. */
static bool take_streams(int *in, int *out) {
    *in = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 10);
    *out = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 10);
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return *in >= 0 && *out >= 0 && nothing >= 0 && dup2(nothing, STDIN_FILENO) >= 0 &&
           dup2(STDERR_FILENO, STDOUT_FILENO) >= 0;
}

/* One slot. */
static int run_slot(const struct worker_args *a, const struct worker_judge *with, int in, int out) {
    struct gpu_device gpus[GPUS_MAX];
    const bool on_gpu = a->gpu >= 0;
    struct worker_options o = {.in = in,
                               .out = out,
                               .name = a->name,
                               .python = a->python,
                               .cache_dir = a->cache_dir,
                               .secret_file = a->secret,
                               .allow_weaker = a->allow_weaker,
                               .ahead = a->ahead >= 0 ? a->ahead
                                        : on_gpu      ? AHEAD_ON_GPU
                                                      : AHEAD_ON_CPU,
                               .beat_s = a->beat_s,
                               .probe_s = a->probe_s,
                               .linger_s = on_gpu ? 0.2 : 0.01};
    if (a->cpus && !worker_pin(a->cpus)) log_warn("--cpus %s: these processors cannot be had", a->cpus);
    if (on_gpu && hardware_gpus(gpus) == 0) {
        log_error("--gpu %d: the driver's library (libnvidia-ml.so.1) shows no GPU to this process", a->gpu);
        return 1;
    }
    if (on_gpu) {
        o.gpu = gpus[0].uuid;
        o.gpu_model = gpus[0].model;
    }
    const struct worker_judge verifier = worker_verifier(&o);
    return worker_run(&o, with ? with : &verifier);
}

/* Several, or those of a farm: what concerns a slot is passed on to its process. */
static int run_crew(const struct worker_args *a, const int *gpu, int n_gpus, int in, int out) {
    char ahead[32], python[4200], cache[4200], probe[40], beat[40], secret[4200];
    const char *folder = a->credentials ? a->credentials : getenv("KERNELRL_FARM");
    struct crew_options o = {
        .name = a->name, .slots = a->gpus ? 0 : a->slots, .gpu = gpu, .n_gpus = n_gpus, .lease_s = a->lease_s};
    int n = 0;
    snprintf(beat, sizeof beat, "--beat=%g", a->beat_s);
    snprintf(probe, sizeof probe, "--probe=%g", a->probe_s);
    o.args[n++] = beat;
    o.args[n++] = probe;
    if (a->ahead >= 0) {
        snprintf(ahead, sizeof ahead, "--ahead=%d", a->ahead);
        o.args[n++] = ahead;
    }
    if (a->python) {
        snprintf(python, sizeof python, "--python=%s", a->python);
        o.args[n++] = python;
    }
    if (a->cache_dir) {
        snprintf(cache, sizeof cache, "--cache=%s", a->cache_dir);
        o.args[n++] = cache;
    }
    if (a->allow_weaker) o.args[n++] = "--allow-weaker";
    if (!a->nats) return supervise_run(&o, in, out, a->beat_s);
    if (!folder || !*folder) {
        log_error("--nats: KERNELRL_FARM or --credentials has to name a folder with credentials (docs/farm.md)");
        return 2;
    }
    snprintf(secret, sizeof secret, "--secret=%s/secret", folder);
    o.args[n++] = secret;
    const struct farm_worker_options farm = {.url = a->nats, .folder = folder, .crew = o, .cache = !a->no_cache};
    return farm_worker_run(&farm);
}

int worker_main(const struct worker_args *a, const struct worker_judge *with) {
    int gpu[POOL_GPUS_MAX], n_gpus = 0, in, out;
    log_set_level(a->nats ? LOG_INFO : LOG_WARN); /* a farm's worker has nobody above it who would say these */
    if (a->gpus && strcmp(a->gpus, "all") != 0 && !pool_gpu_list(a->gpus, gpu, &n_gpus)) {
        log_error("--gpus: expected all, or numbers such as 0-3+6, got \"%s\"", a->gpus);
        return 2;
    }
    if (a->nats) return run_crew(a, gpu, n_gpus, -1, -1);
    if (!take_streams(&in, &out)) {
        log_error("standard input and output: %s", strerror(errno));
        return 1;
    }
    if (a->gpus || a->slots > 1) return run_crew(a, gpu, n_gpus, in, out);
    return run_slot(a, with, in, out);
}
