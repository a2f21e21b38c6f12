#include "dist/comm.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/home.h"
#include "base/str.h"

/* ---- one rank -----------------------------------------------------------------------------------------------------*/

static enum status self_bcast(struct comm *c, int root, void *p, size_t n, struct err *e) {
    (void)p, (void)n;
    return root == c->rank ? ST_OK : FAIL(e, ST_INVALID, "there is no rank %d in a run of one", root);
}

static enum status self_allgather(struct comm *c, const void *mine, size_t n, void *all, struct err *e) {
    (void)c, (void)e;
    memcpy(all, mine, n);
    return ST_OK;
}

static enum status self_exchange(struct comm *c, const void *from, const struct byte_span *out, void *to,
                                 const struct byte_span *in, struct err *e) {
    (void)c, (void)e;
    ASSERT(out->n == in->n);
    if (out->n > 0) memmove((char *)to + in->at, (const char *)from + out->at, out->n);
    return ST_OK;
}

static enum status self_max_i64(struct comm *c, int64_t *v, int n, struct err *e) {
    (void)c, (void)v, (void)n, (void)e;
    return ST_OK; /* the largest of one */
}

static enum status self_send(struct comm *c, int to, const void *p, size_t n, struct err *e) {
    (void)c, (void)p, (void)n;
    return FAIL(e, ST_INVALID, "send: there is no other rank %d in a run of one", to);
}

static enum status self_recv(struct comm *c, int from, void *p, size_t n, struct err *e) {
    (void)c, (void)p, (void)n;
    return FAIL(e, ST_INVALID, "recv: there is no other rank %d in a run of one", from);
}

static enum status self_probe(struct comm *c, bool *there, int *from, size_t *n, struct err *e) {
    (void)c, (void)from, (void)n, (void)e;
    *there = false;
    return ST_OK;
}

static void self_abort(struct comm *c, int exit_status) {
    (void)c;
    _exit(exit_status);
}

static void self_close(struct comm *c) { free(c); }

static struct comm *self_open(void) {
    struct comm *c = xcalloc(1, sizeof *c);
    *c = (struct comm){.size = 1,
                       .library = "self",
                       .bcast = self_bcast,
                       .allgather = self_allgather,
                       .exchange = self_exchange,
                       .max_i64 = self_max_i64,
                       .send = self_send,
                       .recv = self_recv,
                       .probe = self_probe,
                       .abort = self_abort,
                       .close = self_close};
    return c;
}

/* ---- what started us ----------------------------------------------------------------------------------------------*/

static int number_of(const char *variable, int otherwise) {
    const char *text = variable ? getenv(variable) : NULL;
    int64_t n;
    return text && parse_i64(text, &n) && n >= 0 && n <= INT_MAX ? (int)n : otherwise;
}

/* Processes that srun has started on this machine: SLURM_STEP_TASKS_PER_NODE is "4(x2),1" where two machines have 4 and
 * the third has one. */
static int srun_locals(int otherwise) {
    const char *p = getenv("SLURM_STEP_TASKS_PER_NODE");
    char *end;
    for (long machine = number_of("SLURM_NODEID", 0); p && *p; p = *end == ',' ? end + 1 : NULL) {
        const long n = strtol(p, &end, 10);
        const long machines = strncmp(end, "(x", 2) == 0 ? strtol(end + 2, &end, 10) : 1;
        if (n < 1 || n > INT_MAX) break;
        if (machine < machines) return (int)n;
        machine -= machines;
        if (*end == ')') end++;
    }
    return otherwise;
}

struct comm_launch comm_launched(void) {
    /* A launcher's variables: rank, size and rank on the machine, and the ABI of the programs that it starts. Open
     * MPI's mpirun also sets PMIX_RANK, which srun --mpi=pmix sets alone; MPICH's (hydra) and srun --mpi=pmi2 set
     * PMI_*. */
    static const struct {
        const char *rank, *size, *local, *locals, *mpi;
    } known[] = {
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
         "openmpi"},
        {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "mpich"},
        {"PMIX_RANK", "SLURM_NTASKS", "SLURM_LOCALID", NULL, "openmpi"},
    };
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        const int size = number_of(known[i].size, 0), rank = number_of(known[i].rank, -1);
        if (size < 1 || rank < 0 || rank >= size) continue;
        return (struct comm_launch){rank, size, number_of(known[i].local, number_of("SLURM_LOCALID", 0)),
                                    number_of(known[i].locals, srun_locals(size)), known[i].mpi};
    }
    return (struct comm_launch){.size = 1, .local_size = 1};
}

/* ---- several ranks ------------------------------------------------------------------------------------------------*/

/* KERNELRL_MPI names the ABI ("openmpi", "mpich") or the plugin's path. Otherwise it is the launcher's, and where there
 * is none ("mpi" of a single process) the first that is installed. */
static enum status plugin_path(const char *mpi, char *path, size_t size, struct err *e) {
    static const char *const abis[] = {"openmpi", "mpich"};
    const char *named = getenv("KERNELRL_MPI");
    char file[64];
    if (named && strchr(named, '/')) {
        snprintf(path, size, "%s", named);
        return ST_OK;
    }
    if (named && *named) mpi = named;
    for (size_t i = 0; i < ARRAY_LEN(abis); i++) {
        if (mpi && strcmp(mpi, abis[i]) != 0) continue;
        snprintf(file, sizeof file, "libkernelrl_%s.so", abis[i]);
        if (home_beside_program(file, path, size)) return ST_OK;
    }
    return FAIL(
        e, ST_DEVICE,
        "ranks: there is no libkernelrl_%s.so beside the program: run `tools/setup ranks` and `make` where that "
        "MPI's mpicc is, or set KERNELRL_MPI to openmpi, mpich or the plugin's path",
        mpi ? mpi : "openmpi");
}

static enum status plugin_open(const char *mpi, const struct comm_options *o, struct comm **out, struct err *e) {
    char path[PATH_MAX + 64], why[512] = "";
    TRY(plugin_path(mpi, path, sizeof path, e));
    /* The MPI library has plugins of its own, which look for its symbols among those of the whole process. It is never
     * unloaded. */
    void *plugin = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!plugin) return FAIL(e, ST_DEVICE, "ranks: cannot load %s: %s", path, dlerror());
    void *symbol = dlsym(plugin, COMM_PLUGIN_OPEN);
    if (!symbol) return FAIL(e, ST_DEVICE, "ranks: %s: not a plugin of kernelrl, no " COMM_PLUGIN_OPEN, path);
    comm_plugin_open_fn *open_plugin;
    memcpy(&open_plugin, &symbol, sizeof open_plugin); /* C has no conversion between the two kinds of pointer */
    if (open_plugin(COMM_PLUGIN_ABI, o, out, why, sizeof why) == 0 && *out) return ST_OK;
    *out = NULL;
    return FAIL(e, ST_DEVICE, "ranks: %s: %s", path, *why ? why : "MPI did not start");
}

enum status comm_open(const char *how, const struct comm_options *o, struct comm **out, struct err *e) {
    static const struct comm_options none;
    struct comm_options with = o ? *o : none;
    *out = NULL;
    if (strcmp(how, "self") != 0 && strcmp(how, "auto") != 0 && strcmp(how, "mpi") != 0)
        return FAIL(e, ST_UNSUPPORTED, "ranks \"%s\": expected auto, self or mpi", how);
    const struct comm_launch launch = comm_launched();
    const int tasks = number_of("SLURM_STEP_NUM_TASKS", 1);
    if (strcmp(how, "auto") == 0 && !launch.mpi && tasks > 1)
        return FAIL(e, ST_CONFIG,
                    "ranks: srun has started %d processes that do not know each other: give it --mpi=pmix for Open MPI "
                    "or --mpi=pmi2 for MPICH, or the program ranks=self",
                    tasks);
    if (strcmp(how, "mpi") == 0 || (strcmp(how, "auto") == 0 && launch.size > 1)) {
        if (with.peer_timeout_s <= 0) with.peer_timeout_s = 60;
        return plugin_open(launch.mpi, &with, out, e);
    }
    *out = self_open();
    return ST_OK;
}

void comm_close(struct comm *c) {
    if (c) c->close(c);
}

enum status comm_agree(struct comm *c, enum status mine, struct err *e) {
    /* The lowest rank that failed: the largest of what is less, the lower the rank. */
    int64_t first = mine == ST_OK ? -1 : c->size - c->rank;
    struct {
        int64_t status;
        char msg[sizeof e->msg], host[64];
    } said = {.status = mine};
    struct err of_call;
    enum status st = c->max_i64(c, &first, 1, &of_call);
    if (st == ST_OK && first < 0) return mine;
    if (st == ST_OK && c->size > 1) {
        const int root = c->size - (int)first;
        if (c->rank == root) snprintf(said.msg, sizeof said.msg, "%s", e->msg);
        if (c->rank == root) gethostname(said.host, sizeof said.host - 1);
        st = c->bcast(c, root, &said, sizeof said, &of_call);
        said.msg[sizeof said.msg - 1] = said.host[sizeof said.host - 1] = '\0';
        if (st == ST_OK && mine == ST_OK)
            return FAIL(e, (enum status)said.status, "rank %d on %s: %.900s", root, said.host, said.msg);
    }
    if (mine != ST_OK) return mine;
    *e = of_call;
    return st;
}
