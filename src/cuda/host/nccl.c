/* Device memory between processes by NCCL, opened at run time. Only copies are declared: what is added over ranks is
 * added by our own kernels, in an order that NCCL's algorithms have no part in. */
#include <dlfcn.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/host/host.h"

/* From nccl.h, whose numbers have been the same since 2.7 (2020). */
typedef struct {
    char internal[PEERS_ID_BYTES];
} nccl_group;
typedef struct ncclComm *nccl_comm;
enum { NCCL_INT8 = 0, NCCL_OLDEST = 2700 };

struct nccl {
    void *library;
    nccl_comm comm;
    int rank, size, version;
    int (*get_version)(int *);
    int (*get_id)(nccl_group *);
    int (*init)(nccl_comm *, int, nccl_group, int);
    int (*destroy)(nccl_comm);
    int (*group_start)(void), (*group_end)(void);
    int (*send)(const void *, size_t, int, int, nccl_comm, struct CUstream_st *);
    int (*recv)(void *, size_t, int, int, nccl_comm, struct CUstream_st *);
    const char *(*error)(int);
};

static bool symbol(void *library, const char *name, void *to) {
    void *p = dlsym(library, name);
    memcpy(to, &p, sizeof p); /* C has no conversion between the two kinds of pointer */
    return p != NULL;
}

static bool symbols(struct nccl *n) {
    return symbol(n->library, "ncclGetVersion", &n->get_version) && symbol(n->library, "ncclGetUniqueId", &n->get_id) &&
           symbol(n->library, "ncclCommInitRank", &n->init) && symbol(n->library, "ncclCommDestroy", &n->destroy) &&
           symbol(n->library, "ncclGroupStart", &n->group_start) && symbol(n->library, "ncclGroupEnd", &n->group_end) &&
           symbol(n->library, "ncclSend", &n->send) && symbol(n->library, "ncclRecv", &n->recv) &&
           symbol(n->library, "ncclGetErrorString", &n->error);
}

/* KERNELRL_NCCL names the library ("none": do without). Otherwise it is the loader's, or the one that a Python package
 * brought. */
static void *open_library(void) {
    static const char *const patterns[] = {"/usr/local/lib/python3*/*-packages/nvidia/nccl/lib/libnccl.so.2",
                                           "/usr/lib/python3*/*-packages/nvidia/nccl/lib/libnccl.so.2",
                                           "/opt/*/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2"};
    const char *named = getenv("KERNELRL_NCCL"), *venv = getenv("VIRTUAL_ENV");
    char in_venv[512];
    if (named && *named) return dlopen(named, RTLD_NOW | RTLD_LOCAL);
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    snprintf(in_venv, sizeof in_venv, "%s/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2", venv ? venv : "");
    for (size_t i = 0; i <= ARRAY_LEN(patterns) && !library; i++) {
        const char *pattern = i > 0 ? patterns[i - 1] : venv ? in_venv : NULL;
        glob_t found;
        if (!pattern || glob(pattern, 0, NULL, &found) != 0) continue;
        for (size_t k = 0; k < found.gl_pathc && !library; k++)
            library = dlopen(found.gl_pathv[k], RTLD_NOW | RTLD_LOCAL);
        globfree(&found);
    }
    return library;
}

/* The library, with its functions; NULL, with the reason. */
static struct nccl *nccl_of(struct cuda_backend *c, char *why, size_t why_bytes) {
    if (c->nccl) return c->nccl;
    struct nccl *n = xcalloc(1, sizeof *n);
    n->library = open_library();
    if (!n->library)
        snprintf(why, why_bytes, "libnccl.so.2 is not installed (KERNELRL_NCCL may name it)");
    else if (!symbols(n) || n->get_version(&n->version) != 0 || n->version < NCCL_OLDEST)
        snprintf(why, why_bytes, "libnccl.so.2 is older than 2.7");
    else
        return c->nccl = n;
    free(n); /* a library with threads of its own is not unloaded */
    return NULL;
}

bool nccl_id(struct backend *be, void *id, char *why, size_t why_bytes) {
    struct cuda_backend *c = (struct cuda_backend *)be;
    struct nccl *n = nccl_of(c, why, why_bytes);
    if (!n) return false;
    const int rc = n->get_id(id);
    if (rc != 0) snprintf(why, why_bytes, "NCCL: %s", n->error(rc));
    return rc == 0;
}

bool nccl_join(struct backend *be, const void *id, int rank, int size, char *why, size_t why_bytes) {
    struct cuda_backend *c = (struct cuda_backend *)be;
    nccl_group group;
    struct nccl *n = nccl_of(c, why, why_bytes);
    if (!n) return false;
    memcpy(&group, id, sizeof group);
    const int rc = n->init(&n->comm, size, group, rank);
    if (rc != 0) {
        snprintf(why, why_bytes, "NCCL %d: rank %d of %d: %s", n->version, rank, size, n->error(rc));
        return false;
    }
    n->rank = rank;
    n->size = size;
    be->peers = size;
    return true;
}

void nccl_exchange(struct backend *be, const void *from, const struct byte_span *out, void *to,
                   const struct byte_span *in) {
    struct cuda_backend *c = cuda_begin(be, "peers_exchange");
    if (!c) return;
    struct nccl *n = c->nccl;
    int rc = n->group_start();
    for (int r = 0; r < n->size && rc == 0; r++) {
        if (r == n->rank) continue;
        if (out[r].n > 0) rc = n->send((const char *)from + out[r].at, out[r].n, NCCL_INT8, r, n->comm, c->stream);
        if (in[r].n > 0 && rc == 0) rc = n->recv((char *)to + in[r].at, in[r].n, NCCL_INT8, r, n->comm, c->stream);
    }
    const int end = n->group_end();
    if (rc == 0) rc = end;
    if (rc != 0) cuda_refuse(c, "peers_exchange", n->error(rc));
}

void nccl_close(struct cuda_backend *c) {
    if (!c->nccl) return;
    if (c->nccl->comm) c->nccl->destroy(c->nccl->comm);
    free(c->nccl);
    c->nccl = NULL;
}
