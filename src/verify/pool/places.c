#include "verify/pool/places.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verify/pool/protocol.h"

/* With fewer processors than this a GPU's worker could not keep its clock and its compilers apart. */
enum { LEAST_CPUS = 2 };

/* The i-th of n shares of the processors that this process may use; nothing where shares would be too small. */
static void share_of_cpus(int i, int n, char *out, size_t size) {
    cpu_set_t all;
    size_t len = 0;
    out[0] = 0;
    if (sched_getaffinity(0, sizeof all, &all) != 0) return;
    const int total = CPU_COUNT(&all), from = i * total / n, to = (i + 1) * total / n;
    if (total / n < LEAST_CPUS) return;
    for (int cpu = 0, k = 0; cpu < CPU_SETSIZE && k < to; cpu++) {
        if (!CPU_ISSET((size_t)cpu, &all) || k++ < from) continue;
        int last = cpu;
        while (k < to && last + 1 < CPU_SETSIZE && CPU_ISSET((size_t)(last + 1), &all)) {
            last++;
            k++;
        }
        if (len + 12 < size)
            len += (size_t)snprintf(out + len, size - len, last > cpu ? "%s%d-%d" : "%s%d", len ? "," : "", cpu, last);
        cpu = last;
    }
}

bool worker_pin(const char *cpus) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const char *p = cpus; *p;) {
        char *end;
        const long from = strtol(p, &end, 10);
        long to = from;
        if (end == p) return false;
        if (*end == '-') {
            p = end + 1;
            to = strtol(p, &end, 10);
            if (end == p) return false;
        }
        if (from < 0 || to < from || to >= CPU_SETSIZE) return false;
        for (long cpu = from; cpu <= to; cpu++) CPU_SET((size_t)cpu, &set);
        if (*end && *end != ',') return false;
        p = end + (*end == ',');
    }
    return sched_setaffinity(0, sizeof set, &set) == 0;
}

static enum status gpu_places(const int *gpu, int n_gpus, struct worker_place **out, int *n, struct err *e) {
    struct gpu_device there[GPUS_MAX];
    const int found = hardware_gpus(there);
    *n = n_gpus > 0 ? n_gpus : found;
    if (found == 0)
        return FAIL(e, ST_DEVICE, "no GPU: the driver's library (libnvidia-ml.so.1) shows none to this process");
    *out = xcalloc((size_t)*n, sizeof **out);
    for (int i = 0; i < *n; i++) {
        const struct gpu_device *g = n_gpus > 0 ? NULL : &there[i];
        for (int k = 0; k < found && !g; k++)
            if (there[k].index == gpu[i]) g = &there[k];
        if (!g) {
            free(*out);
            return FAIL(e, ST_DEVICE, "no GPU %d: this process sees %d", gpu[i], found);
        }
        (*out)[i].gpu = *g;
        share_of_cpus(i, *n, (*out)[i].cpus, sizeof(*out)[i].cpus);
    }
    return ST_OK;
}

enum status worker_places(int slots, const int *gpu, int n_gpus, struct worker_place **out, int *n, struct err *e) {
    if (slots == 0) return gpu_places(gpu, n_gpus, out, n, e);
    *out = xcalloc((size_t)slots, sizeof **out);
    *n = slots;
    return ST_OK;
}

void worker_command(struct line_link *l, const struct worker_place *p, const char *program, const char *name,
                    const char *const *extra) {
    snprintf(l->program, sizeof l->program, "%s", program ? program : "/proc/self/exe");
    link_arg(l, "kernelrl");
    link_arg(l, "verify-worker");
    if (name) link_arg(l, "--name=%s", name);
    if (p->gpu.uuid[0]) {
        link_arg(l, "--gpu=%d", p->gpu.index);
        link_env(l, "CUDA_VISIBLE_DEVICES=%s", p->gpu.uuid);
    } else {
        link_arg(l, "--slots=1");
    }
    if (p->cpus[0]) link_arg(l, "--cpus=%s", p->cpus);
    for (int i = 0; extra && extra[i]; i++) link_arg(l, "%s", extra[i]);
}
