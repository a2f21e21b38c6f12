/* Fuzz target: what verify_hosts, --gpus and the names of hosts and classes may hold. What is accepted can be started:
 * ssh takes no host for an option, numbers of GPUs are in their range and differ. */
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "verify/pool/hardware.h"
#include "verify/pool/hosts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_gpus(const int *gpu, int n) {
    ASSERT(n >= 0 && n <= POOL_GPUS_MAX);
    for (int i = 0; i < n; i++) {
        ASSERT(gpu[i] >= 0 && gpu[i] < 1024);
        for (int k = 0; k < i; k++) ASSERT(gpu[k] != gpu[i]);
    }
}

static void check_host(const struct pool_host *h) {
    check_gpus(h->gpu, h->n_gpus);
    ASSERT(h->slots >= 0 && h->slots <= POOL_SLOTS_MAX);
    ASSERT(h->kind == POOL_NATS || h->slots > 0 || h->all_gpus || h->n_gpus > 0);
    if (h->kind == POOL_SSH) ASSERT(h->name[0] && h->name[0] != '-' && !strpbrk(h->name, " \t'\"`$;&|<>\\,"));
    if (h->kind == POOL_NATS) ASSERT(strstr(h->name, "://") && !strchr(h->name, '@'));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1), slug[HOST_NAME_BYTES], again[HOST_NAME_BYTES];
    struct pool_hosts hosts;
    struct err e = {0};
    int gpu[POOL_GPUS_MAX], n;
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = 0;
    if (pool_hosts_read(text, &hosts, &e) == ST_OK) {
        ASSERT(hosts.n > 0 && hosts.n <= POOL_HOSTS_MAX);
        for (int i = 0; i < hosts.n; i++) check_host(&hosts.item[i]);
        pool_hosts_free(&hosts);
    } else {
        ASSERT(e.code == ST_CONFIG && strncmp(e.msg, "verify_hosts:", 13) == 0 && hosts.n == 0);
    }
    if (pool_gpu_list(text, gpu, &n)) {
        ASSERT(n > 0);
        check_gpus(gpu, n);
    }
    hardware_slug(text, slug, sizeof slug);
    ASSERT(strspn(slug, "abcdefghijklmnopqrstuvwxyz0123456789-") == strlen(slug) && !strstr(slug, "--"));
    hardware_slug(slug, again, sizeof again);
    ASSERT(strcmp(slug, again) == 0);
    free(text);
    return 0;
}
