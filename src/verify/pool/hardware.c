#include "verify/pool/hardware.h"

#include <ctype.h>
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/pool.h"
#include "base/str.h"

void hardware_slug(const char *text, char *out, size_t size) {
    size_t n = 0;
    for (const char *p = text; *p && n + 1 < size; p++) {
        const unsigned char c = (unsigned char)*p;
        if (c < 128 && isalnum(c))
            out[n++] = (char)tolower(c);
        else if (n > 0 && out[n - 1] != '-')
            out[n++] = '-';
    }
    while (n > 0 && out[n - 1] == '-') n--;
    out[n] = 0;
}

/* "(R)", "(TM)" and what follows an at sign, as in "Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz", name nothing. */
static void plain_model(char *text) {
    static const char *const noise[] = {"(R)", "(TM)", "(r)", "(tm)", " CPU", " Processor"};
    text[strcspn(text, "@")] = 0;
    for (size_t i = 0; i < ARRAY_LEN(noise); i++)
        for (char *at; (at = strstr(text, noise[i]));)
            memmove(at, at + strlen(noise[i]), strlen(at + strlen(noise[i])) + 1);
}

void hardware_cpu_class(char out[CLASS_BYTES]) {
    CLEANUP_FREE char *text = NULL;
    struct err ignored;
    char model[120] = "unknown", slug[CLASS_BYTES - 16];
    if (fs_read("/proc/cpuinfo", 1 << 26, &text, NULL, &ignored) == ST_OK) {
        const char *line = strstr(text, "model name");
        const char *colon = line ? strchr(line, ':') : NULL;
        if (colon) snprintf(model, sizeof model, "%.*s", (int)strcspn(colon + 1, "\n"), colon + 1);
    }
    plain_model(model);
    hardware_slug(model, slug, sizeof slug);
    snprintf(out, CLASS_BYTES, "cpu-%s-x%d", slug, pool_cpu_count());
}

void hardware_gpu_class(const char *model, char out[CLASS_BYTES]) {
    char slug[CLASS_BYTES - 8];
    hardware_slug(model, slug, sizeof slug);
    snprintf(out, CLASS_BYTES, "cuda-%s", slug);
}

void hardware_host(char out[HOST_NAME_BYTES]) {
    char name[256] = "";
    if (gethostname(name, sizeof name - 1) != 0) name[0] = 0;
    hardware_slug(name, out, HOST_NAME_BYTES);
    if (!out[0]) snprintf(out, HOST_NAME_BYTES, "host");
}

/* ---- the driver's management library ------------------------------------------------------------------------------*/

/* What is used of its interface, which NVIDIA keeps stable: handles are pointers, 0 is success. */
static struct {
    bool open;
    int (*count)(unsigned *);
    int (*by_index)(unsigned, void **);
    int (*by_uuid)(const char *, void **);
    int (*name)(void *, char *, unsigned);
    int (*uuid)(void *, char *, unsigned);
    int (*clock)(void *, int, unsigned *);
} nvml;
static pthread_once_t nvml_once = PTHREAD_ONCE_INIT;
enum { NVML_CLOCK_SM = 1 };

static void nvml_open(void) {
    void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!lib) return;
    int (*init)(void) = NULL;
    const struct {
        const char *name;
        void *to;
    } wanted[] = {{"nvmlInit_v2", &init},
                  {"nvmlDeviceGetCount_v2", &nvml.count},
                  {"nvmlDeviceGetHandleByIndex_v2", &nvml.by_index},
                  {"nvmlDeviceGetHandleByUUID", &nvml.by_uuid},
                  {"nvmlDeviceGetName", &nvml.name},
                  {"nvmlDeviceGetUUID", &nvml.uuid},
                  {"nvmlDeviceGetClockInfo", &nvml.clock}};
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        void *found = dlsym(lib, wanted[i].name);
        if (!found) return;
        memcpy(wanted[i].to, &found, sizeof found);
    }
    nvml.open = init() == 0;
}

/* Whether CUDA_VISIBLE_DEVICES leaves a GPU to this process. */
static bool is_visible(const struct gpu_device *g) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (!list) return true;
    for (const char *p = list; *p;) {
        const size_t n = strcspn(p, ",");
        char one[GPU_ID_BYTES + 8];
        int64_t index;
        snprintf(one, sizeof one, "%.*s", (int)n, p);
        if (parse_i64(one, &index) ? index == g->index : n > 4 && strncmp(g->uuid, one, strlen(one)) == 0) return true;
        p += n + (p[n] == ',');
    }
    return false;
}

int hardware_gpus(struct gpu_device out[GPUS_MAX]) {
    unsigned count = 0;
    int n = 0;
    pthread_once(&nvml_once, nvml_open);
    if (!nvml.open || nvml.count(&count) != 0) return 0;
    for (unsigned i = 0; i < count && n < GPUS_MAX; i++) {
        struct gpu_device *g = &out[n];
        void *handle;
        *g = (struct gpu_device){.index = (int)i};
        if (nvml.by_index(i, &handle) != 0 || nvml.name(handle, g->model, sizeof g->model) != 0 ||
            nvml.uuid(handle, g->uuid, sizeof g->uuid) != 0)
            continue;
        n += is_visible(g);
    }
    return n;
}

double hardware_sm_mhz(const char *uuid) {
    void *handle;
    unsigned mhz;
    pthread_once(&nvml_once, nvml_open);
    if (!nvml.open || !uuid || nvml.by_uuid(uuid, &handle) != 0 || nvml.clock(handle, NVML_CLOCK_SM, &mhz) != 0)
        return (double)NAN;
    return mhz;
}
