/* What a plugin owes beside its ops, which `kernelrl selfcheck ops --device cuda` checks: versions and devices it must
 * refuse, memory, and the ring its index transfers go through. cuda_plugin PLUGIN.so; with tests/cuda/emulate built as
 * the plugin it runs without a GPU. Ends with "N passed, N failed". */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "tensor/backend.h"

static int passed, failed;

static void report(const char *name, bool ok) {
    ok ? passed++ : failed++;
    printf("%s %s\n", ok ? "PASS" : "FAIL", name);
    fflush(stdout);
}

static void test_opening(backend_plugin_open_fn *open_plugin) {
    char msg[512] = "";
    struct backend *none = NULL;
    report("a plugin of another version is refused",
           open_plugin(BACKEND_ABI + 1, 0, NULL, &none, msg, sizeof msg) && msg[0]);
    msg[0] = 0;
    report("a device that is not there is refused",
           open_plugin(BACKEND_ABI, 999, NULL, &none, msg, sizeof msg) && msg[0]);
}

static void test_memory(struct backend *gpu) {
    struct err e;
    void *huge = gpu->mem_alloc(gpu, (size_t)1 << 46);
    report("too much memory gives NULL and harms nothing", !huge && gpu->sync(gpu, &e) == ST_OK);
    report("memory available", gpu->mem_available(gpu) > 0);
    float host[100], back[100];
    for (int i = 0; i < 100; i++) host[i] = (float)i + 0.5f;
    float *a = gpu->mem_alloc(gpu, sizeof host), *b = gpu->mem_alloc(gpu, sizeof host);
    gpu->mem_put(gpu, a, host, sizeof host);
    gpu->mem_copy(gpu, b, a, sizeof host);
    gpu->mem_zero(gpu, a, 40);
    gpu->mem_get(gpu, back, b, sizeof back);
    bool ok = gpu->sync(gpu, &e) == ST_OK && memcmp(host, back, sizeof host) == 0;
    gpu->mem_get(gpu, back, a, sizeof back);
    for (int i = 0; i < 100; i++) ok &= back[i] == (i < 10 ? 0 : host[i]);
    report("put, copy, zero, get", ok && gpu->sync(gpu, &e) == ST_OK);
    gpu->mem_free(gpu, a);
    gpu->mem_free(gpu, b);
    gpu->mem_free(gpu, NULL);
}

/* sum[i] += table[ids[i]], `rounds` times with other ids, which are overwritten as soon as the op has returned. */
static bool gathers_right(struct backend *gpu, int64_t n, int64_t rounds) {
    enum { R = 777 };
    struct err e;
    struct rng r = rng_make(11, (uint64_t)n);
    float table[R], *want = xcalloc((size_t)n, sizeof *want), *got = xcalloc((size_t)n, sizeof *got);
    int32_t *ids = xcalloc((size_t)n, sizeof *ids);
    const size_t bytes = (size_t)n * sizeof(float);
    float *t = gpu->mem_alloc(gpu, sizeof table), *y = gpu->mem_alloc(gpu, bytes), *sum = gpu->mem_alloc(gpu, bytes);
    for (int i = 0; i < R; i++) table[i] = (float)rng_below(&r, 1000); /* their sums are exact */
    gpu->mem_put(gpu, t, table, sizeof table);
    gpu->mem_zero(gpu, sum, bytes);
    for (int64_t k = 0; k < rounds; k++) {
        for (int64_t i = 0; i < n; i++) {
            ids[i] = (int32_t)rng_below(&r, R);
            want[i] += table[ids[i]];
        }
        gpu->gather_rows(gpu, tensor_full(y, n, 1), tensor_full(t, R, 1), ids);
        gpu->axpby(gpu, tensor_full(sum, n, 1), 1, tensor_full(y, n, 1), 1);
        memset(ids, 0, (size_t)n * sizeof *ids);
    }
    gpu->mem_get(gpu, got, sum, bytes);
    const bool ok = gpu->sync(gpu, &e) == ST_OK && memcmp(got, want, bytes) == 0;
    gpu->mem_free(gpu, t);
    gpu->mem_free(gpu, y);
    gpu->mem_free(gpu, sum);
    free(want), free(got), free(ids);
    return ok;
}

int main(int argc, char **argv) {
    if (argc != 2) return fprintf(stderr, "usage: cuda_plugin PLUGIN.so\n"), 2;
    void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    void *symbol = plugin ? dlsym(plugin, "kernelrl_cuda_open") : NULL;
    if (!symbol) return fprintf(stderr, "%s: %s\n", argv[1], dlerror()), 2;
    backend_plugin_open_fn *open_plugin;
    memcpy(&open_plugin, &symbol, sizeof open_plugin);
    char msg[512] = "";
    struct backend *gpu = NULL;
    if (open_plugin(BACKEND_ABI, 0, NULL, &gpu, msg, sizeof msg) != 0)
        return fprintf(stderr, "%s: %s\n", argv[1], msg), 2;
    printf("%s\n", gpu->name);
    test_opening(open_plugin);
    test_memory(gpu);
    report("more indices than the ring holds, without a sync between", gathers_right(gpu, 16384, 250));
    report("a transfer larger than the ring", gathers_right(gpu, strstr(gpu->name, "emulated") ? 400000 : 3000000, 1));
    gpu->close(gpu);
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
