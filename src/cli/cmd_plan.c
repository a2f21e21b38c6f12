/* kernelrl plan: what a training run would take of a device's memory. Nothing is loaded. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "cli/cli.h"
#include "rl/options/find_model.h"
#include "rl/options/memory_plan.h"

static const char usage_text[] =
    "plan [--arch NAME] [--memory GIB] [--config FILE]... [key=value]...\n"
    "Prints what `train` with these keys would take of a GPU's memory, and what it would choose where they leave it\n"
    "open; exits 1 when it does not fit. Nothing is loaded.\n"
    "  --arch NAME    instead of the configuration of model_name: qwen2.5-0.5b, qwen2.5-1.5b, qwen2.5-7b, tiny\n"
    "  --memory GIB   free memory of the GPU; otherwise that of device, or without end where device is cpu";

struct plan_args {
    const char *arch;
    double memory; /* GiB; 0: the device's */
};

/* Takes what is its own out of argv; returns what is left, -1 after a message. */
static int own_args(int argc, char **argv, struct plan_args *a) {
    int kept = 1;
    for (int i = 1; i < argc; i++) {
        const bool arch = strcmp(argv[i], "--arch") == 0, memory = strcmp(argv[i], "--memory") == 0;
        if (!arch && !memory) {
            argv[kept++] = argv[i];
            continue;
        }
        if (++i == argc) return cli_usage(usage_text), -1;
        if (arch) {
            a->arch = argv[i];
            continue;
        }
        char *end;
        a->memory = strtod(argv[i], &end);
        if (*end || !(a->memory > 0 && a->memory < 1e6)) {
            fprintf(stderr, "kernelrl: --memory: expected GiB, a number over 0, got \"%s\"\n", argv[i]);
            return -1;
        }
    }
    return kept;
}

static enum status device_of(struct train_options *o, const struct plan_args *a, struct paper *out, struct err *e) {
    *out = paper_cuda((int64_t)(a->memory * (1 << 30)));
    if (strcmp(o->device, "cpu") == 0)
        o->device = "cuda";
    else if (a->memory == 0) {
        struct pool *pool = pool_create(1);
        struct backend *be;
        const enum status st = backend_open(o->device, pool, &be, e);
        if (st == ST_OK) {
            *out = paper_of(be);
            be->close(be);
        }
        pool_destroy(pool);
        return st;
    }
    return ST_OK;
}

static enum status plan(struct train_options *o, const struct plan_args *a, struct err *e) {
    CLEANUP_STR struct str config = STR_INIT, table = STR_INIT;
    CLEANUP_FREE char *dir = NULL;
    struct paper device;
    struct train_plan p;
    if (a->arch) {
        const char *text = bench_arch(a->arch);
        if (!text)
            return FAIL(e, ST_USAGE, "--arch: expected qwen2.5-0.5b, qwen2.5-1.5b, qwen2.5-7b or tiny, got \"%s\"",
                        a->arch);
        str_adds(&config, text);
    } else {
        TRY(locate("model_name", HUB_MODEL, o->model_name, o->model_revision, NULL, &dir, e));
        str_addf(&config, "%s/config.json", dir);
    }
    TRY(device_of(o, a, &device, e));
    const enum status st = train_plan(o, config.p, &device, &p, e);
    if (st != ST_OK && st != ST_MEMORY) return st;
    train_plan_table(&p, &table);
    fputs(table.p, stdout);
    return st;
}

int cmd_plan(int argc, char **argv) {
    if (cli_wants_help(argc, argv)) {
        printf("usage: kernelrl %s\n", usage_text);
        return 0;
    }
    struct plan_args a = {0};
    const int kept = own_args(argc, argv, &a);
    if (kept < 0) return 2;
    struct train_options o;
    struct config c;
    struct err e = {0};
    config_init(&c, &train_schema, &o);
    enum status st = config_args(&c, kept - 1, argv + 1, &e);
    if (st == ST_OK) st = train_options_finish(&c, &o, &e);
    if (st == ST_OK) st = plan(&o, &a, &e);
    config_free(&c);
    return st == ST_OK ? 0 : args_report(&e);
}
