/* Opening a backend by the name a user gives. The CPU's is part of the program; the CUDA one is a plugin, so that the
 * program builds and runs where there is no CUDA at all. */
#include "tensor/backend.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/home.h"
#include "base/str.h"

#define PLUGIN "libkernelrl_cuda.so"
#define PLUGIN_OPEN "kernelrl_cuda_open"

_Static_assert(sizeof(void *) != 8 || sizeof(struct backend) == 528, "the table changed: bump BACKEND_ABI, then this");

enum { DEVICE_MAX = 1023 };

/* The number of a CUDA device ("cuda" is the first), -1 for "cpu", -2 for anything else. */
static int device_number(const char *device) {
    if (strcmp(device, "cpu") == 0) return -1;
    if (strcmp(device, "cuda") == 0) return 0;
    int64_t n;
    if (!str_has_prefix(device, "cuda:") || device[5] < '0' || device[5] > '9') return -2;
    return parse_i64(device + 5, &n) && n <= DEVICE_MAX ? (int)n : -2;
}

bool backend_device_valid(const char *device) { return device_number(device) >= -1; }

static enum status plugin_path(const char *device, char *path, size_t size, struct err *e) {
    const char *named = getenv("KERNELRL_CUDA_PLUGIN");
    if (named && *named) {
        if (access(named, R_OK) != 0)
            return FAIL(e, ST_DEVICE, "device %s: KERNELRL_CUDA_PLUGIN=%s: no such file", device, named);
        /* A name without a slash would be looked for in the system's library path. */
        snprintf(path, size, "%s%s", strchr(named, '/') ? "" : "./", named);
        return ST_OK;
    }
    if (home_beside_program(PLUGIN, path, size)) return ST_OK;
    return FAIL(e, ST_DEVICE,
                "device %s: this program was built without CUDA: run `make cuda` where nvcc is installed (" PLUGIN
                " belongs beside the program)",
                device);
}

enum status backend_open(const char *device, struct pool *pool, struct backend **out, struct err *e) {
    *out = NULL;
    const int number = device_number(device);
    if (number == -2)
        return FAIL(e, ST_CONFIG, "device: expected cpu, cuda or cuda:N (N from 0 to %d), got \"%s\"", DEVICE_MAX,
                    device);
    if (number == -1) return cpu_backend_open(pool, out, e);

    char path[PATH_MAX + 64];
    TRY(plugin_path(device, path, sizeof path, e));
    /* Never unloaded: the CUDA runtime in it registers handlers that run when the process ends. */
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!plugin)
        return FAIL(e, ST_DEVICE, "device %s: cannot load %s: %s; is the NVIDIA driver installed?", device, path,
                    dlerror());
    void *symbol = dlsym(plugin, PLUGIN_OPEN);
    if (!symbol) return FAIL(e, ST_DEVICE, "device %s: %s: not a plugin of kernelrl, no " PLUGIN_OPEN, device, path);
    backend_plugin_open_fn *open_plugin;
    memcpy(&open_plugin, &symbol, sizeof open_plugin); /* C has no conversion between the two kinds of pointer */
    char why[512] = "";
    if (open_plugin(BACKEND_ABI, number, pool, out, why, sizeof why) == 0 && *out) return ST_OK;
    *out = NULL;
    return FAIL(e, ST_DEVICE, "device %s: %s: %s", device, path, *why ? why : "the device could not be opened");
}
