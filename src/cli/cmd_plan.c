/* kernelrl plan: what a training run would take of a device's memory. Nothing is loaded. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "cli/cli.h"
#include "policy/find_model.h"
#include "rl/options/memory_plan.h"
#include "rl/options/scale_plan.h"

struct plan_args {
    const char *arch;
    double memory; /* GiB; 0: the device's */
};

static enum status take_memory(void *values, const char *text, struct err *e) {
    double *out = &((struct plan_args *)values)->memory;
    if (parse_f64(text, out) && *out > 0 && *out < 1e6) return ST_OK;
    return FAIL(e, ST_USAGE, "expected GiB, a number over 0, got \"%s\"", text);
}

static const struct args_flag flags[] = {
    FLAG_TEXT(struct plan_args, arch, "arch", "NAME", "the configuration of model_name",
              "The shape of the model: " BENCH_ARCHS "."),
    FLAG_CALL(take_memory, "memory", "GIB", "that of device, or without end where device is cpu",
              "So much memory of the GPU is free."),
};

const struct args_command plan_command = {
    .name = "plan",
    .usage = "[FLAG]... [--config FILE]... [key=value]...",
    .about = "Prints what `train` with these keys would take of a GPU's memory, and what it would choose where they "
             "leave it open, and how many ranks pay; exits 1 when it does not fit. Nothing is loaded. `kernelrl help "
             "train` explains the keys.",
    .flags = flags,
    .n_flags = ARRAY_LEN(flags),
    .max_words = -1,
    .keys = true,
};

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
        if (!text) return FAIL(e, ST_USAGE, "--arch: expected " BENCH_ARCHS ", got \"%s\"", a->arch);
        str_adds(&config, text);
    } else {
        TRY(locate("model_name", HUB_MODEL, o->model_name, o->model_revision, NULL, &dir, e));
        str_addf(&config, "%s/config.json", dir);
    }
    TRY(device_of(o, a, &device, e));
    const enum status st = train_plan(o, config.p, &device, &p, e);
    if (st != ST_OK && st != ST_MEMORY) return st;
    train_plan_table(&p, &table);
    if (st == ST_OK) {
        const struct scale_step step = scale_step_of(o, &p);
        scale_table(&step, &table);
    }
    fputs(table.p, stdout);
    return st;
}

int cmd_plan(int argc, char **argv) {
    struct plan_args a = {0};
    struct args given;
    if (!args_parse(&plan_command, argc, argv, &a, &given)) return given.code;
    struct train_options o;
    struct config c;
    struct err e = {0};
    config_init(&c, &train_schema, &o);
    enum status st = config_args(&c, given.n_words, given.word, &e);
    if (st == ST_OK) st = train_options_finish(&c, &o, &e);
    if (st == ST_OK) st = plan(&o, &a, &e);
    config_free(&c);
    return st == ST_OK ? 0 : args_report(&e);
}
