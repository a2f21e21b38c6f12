#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/home.h"
#include "verify/pool/nats_api.h"

enum status nats_api_load(const struct nats_api **out, struct err *e) {
    static const struct nats_api *loaded;
    const char *given = getenv("KERNELRL_NATS_PLUGIN");
    char path[4096];
    *out = loaded;
    if (loaded) return ST_OK;
    if (given && *given)
        snprintf(path, sizeof path, "%s", given);
    else if (!home_beside_program("libkernelrl_nats.so", path, sizeof path))
        return FAIL(e, ST_UNSUPPORTED,
                    "libkernelrl_nats.so: not found beside the program; install libnats-dev (tools/setup nats) and run "
                    "make");
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib) return FAIL(e, ST_UNSUPPORTED, "%s: %s (tools/setup nats installs libnats)", path, dlerror());
    const struct nats_api *api = dlsym(lib, NATS_API_SYMBOL);
    if (!api || api->abi != NATS_API_ABI)
        return FAIL(e, ST_UNSUPPORTED, "%s: it is of another version of this program; run make", path);
    *out = loaded = api;
    return ST_OK;
}
