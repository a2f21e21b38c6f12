/* kernelrl selfcheck ranks, started by mpirun or srun as a run would be: compares what must be alike on all ranks, then
 * has each of them compute the same leaf (the gradient of one micro-batch) and compares the bits. Rank 0 prints a line
 * for each rank. On one rank it shows the leaf's number, to be compared with another machine's by eye. */
#include "cli/selfcheck_ranks.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/interrupt.h"
#include "base/pool.h"
#include "bench/onpolicy.h"
#include "policy/find_model.h"
#include "ranks/check.h"
#include "ranks/ranks.h"
#include "tensor/backend.h"

enum { SEED = 20260101 };

struct ranks_args {
    const char *model, *device, *dtype;
    int lora_rank;
    int64_t rows, threads;
};

struct checked {
    struct pool *pool;
    struct backend *be;
    struct comm *comm;
    struct model *model;
    struct rank_leaf *leaf; /* [ranks] */
};

static enum status open_model(const struct ranks_args *a, struct checked *x, struct err *e) {
    const struct model_options mo = {.dtype = a->dtype, .frozen = true};
    CLEANUP_FREE char *dir = NULL;
    TRY(locate("--model", HUB_MODEL, a->model, NULL, interrupt_flag(), &dir, e));
    TRY(model_load(dir, &mo, x->be, &x->model, e));
    return random_adapter(x->model, a->lora_rank, ADAPTER_LAYERS, SEED, e);
}

static enum status run(const struct ranks_args *a, struct checked *x, struct err *e) {
    CLEANUP_STR struct str mine = STR_INIT, how = STR_INIT;
    x->pool = pool_create((int)a->threads);
    const enum status opened = backend_open(a->device, x->pool, &x->be, e);
    TRY(comm_open("auto", NULL, &x->comm, e));
    TRY(comm_agree(x->comm, opened, e));
    ranks_fingerprint(x->be, &mine);
    TRY(ranks_compare(x->comm, &mine, e));
    TRY(ranks_join_devices(x->comm, x->be, &how, e));
    TRY(comm_agree(x->comm, open_model(a, x, e), e));
    x->leaf = xcalloc((size_t)x->comm->size, sizeof *x->leaf);
    TRY(ranks_check(x->comm, x->model, a->rows, SEED, x->leaf, e));
    if (x->comm->rank == 0)
        printf("%d rank%s over %s; gradients by %s\n%s", x->comm->size, x->comm->size > 1 ? "s" : "", x->comm->library,
               how.len ? how.p : "this rank alone", str_c(&mine));
    return ST_OK;
}

/* Returns the exit code. */
static int report(const struct checked *x) {
    const int size = x->comm->size;
    bool alike;
    const int odd = ranks_odd_one(x->leaf, size, &alike);
    if (x->comm->rank != 0) return alike ? 0 : 1;
    printf("%-5s %-24s %-40s %9s  %s\n", "rank", "host", "device", "seconds", "leaf");
    for (int r = 0; r < size; r++)
        printf("%-5d %-24s %-40s %9.3f  %016llx%s\n", r, x->leaf[r].host, x->leaf[r].device, x->leaf[r].seconds,
               (unsigned long long)x->leaf[r].hash, r == odd ? "  differs" : "");
    if (alike)
        printf("selfcheck: ok\n");
    else if (odd >= 0)
        printf("selfcheck: FAILED, rank %d on %s computes other bits than most\n", odd, x->leaf[odd].host);
    else
        printf("selfcheck: FAILED, the ranks compute different bits\n");
    return alike ? 0 : 1;
}

#define A struct ranks_args
static const struct args_flag flags[] = {
    FLAG_TEXT(A, model, "model", "MODEL", NULL, "The model: a folder, or a name on the Hub."),
    FLAG_TEXT(A, device, "device", "NAME", "cpu", "The device: cpu, cuda (that of the rank's number) or cuda:N.",
              .valid = backend_device_valid, .expected = "cpu, cuda or cuda:N"),
    FLAG_CHOICE(A, dtype, "dtype", "TYPE", "auto|f32|bf16", "auto", "Matrices are held and multiplied in it."),
    FLAG_INT(A, lora_rank, "lora-rank", "R", 1, 4096, "32", "The random adapter whose gradient it is has this rank."),
    FLAG_INT(A, rows, "rows", "N", 2, 1 << 20, "1024", "The leaf has so many rows, or what the model takes."),
    FLAG_INT(A, threads, "threads", "N", 0, 1024, "0, an even share", "So many threads work in each rank."),
};

const struct args_command ranks_command = {
    .name = "selfcheck ranks",
    .usage = "--model MODEL [FLAG]...",
    .about = "Started by mpirun or srun: checks that all ranks are alike and compute the same bits.",
    .flags = flags,
    .n_flags = ARRAY_LEN(flags),
};

int selfcheck_ranks(int argc, char **argv) {
    struct ranks_args a = {.device = "cpu", .dtype = "auto", .lora_rank = 32, .rows = 1024};
    struct args given;
    struct checked x = {0};
    struct err e = {0};
    if (!args_parse(&ranks_command, argc, argv, &a, &given)) return given.code;
    if (!a.model) return args_wrong(&ranks_command, &given, "--model is needed");
    (void)ranks_place("auto", &a.device, &a.threads);
    const enum status st = run(&a, &x, &e);
    int code = st == ST_OK ? report(&x) : args_report(&e);
    if (st == ST_LOST && x.comm) x.comm->abort(x.comm, COMM_LOST_EXIT);
    free(x.leaf);
    model_free(x.model);
    comm_close(x.comm);
    if (x.be) x.be->close(x.be);
    pool_destroy(x.pool);
    return code;
}
