/* Device memory between processes by NCCL, opened at run time. Only copies are declared: what is added over ranks is
 * added by our own kernels, in an order that NCCL's algorithms have no part in. */
#include <dlfcn.h>
#include <glob.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/host/host.h"

/* From nccl.h, whose numbers have been the same since 2.7 (2020). */
typedef struct {
    char internal[PEERS_ID_BYTES];
} nccl_group;
typedef struct ncclComm *nccl_comm;
enum { NCCL_INT8 = 0, NCCL_REMOTE_ERROR = 6, NCCL_IN_PROGRESS = 7, NCCL_OLDEST = 2700 };

struct nccl {
    void *library;
    nccl_comm comm;
    int rank, size, version;
    /* A peer that is gone leaves exchanges waiting on the device, or the host in a call, for good. NCCL says so to who
     * asks, and the watching thread asks. `ended`, under the lock: the error for which the communicator was aborted; 0:
     * it lives. */
    pthread_t watch;
    bool watched, closing; /* closing, under the lock: true: nobody needs the watch any more */
    pthread_mutex_t lock;
    int ended;
    int (*get_version)(int *);
    int (*get_id)(nccl_group *);
    int (*init)(nccl_comm *, int, nccl_group, int);
    int (*destroy)(nccl_comm), (*abort)(nccl_comm), (*async_error)(nccl_comm, int *);
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
           symbol(n->library, "ncclCommAbort", &n->abort) &&
           symbol(n->library, "ncclCommGetAsyncError", &n->async_error) &&
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
    pthread_mutex_init(&n->lock, NULL);
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

/* ---- the end of exchanges, also of those that wait ----------------------------------------------------------------*/

static int ended(struct nccl *n) {
    pthread_mutex_lock(&n->lock);
    const int why = n->ended;
    pthread_mutex_unlock(&n->lock);
    return why;
}

/* Once, for the first reason that there is. Any thread's: NCCL allows it while another one waits in a call. */
static void end(struct nccl *n, int why) {
    pthread_mutex_lock(&n->lock);
    const bool first = !n->ended;
    if (first) n->ended = why;
    pthread_mutex_unlock(&n->lock);
    if (first) n->abort(n->comm);
}

static void *watch(void *ctx) {
    const struct timespec nap = {.tv_nsec = 50000000};
    struct nccl *n = ctx;
    for (bool over = false; !over; nanosleep(&nap, NULL)) {
        int error = 0;
        pthread_mutex_lock(&n->lock);
        over = n->closing || n->ended;
        if (!over && n->async_error(n->comm, &error) != 0) error = 0; /* it cannot say */
        pthread_mutex_unlock(&n->lock);
        if (error != 0 && error != NCCL_IN_PROGRESS) end(n, error);
    }
    return NULL;
}

void nccl_end(struct backend *be) {
    struct nccl *n = ((struct cuda_backend *)be)->nccl;
    if (n && n->watched) end(n, NCCL_REMOTE_ERROR);
}

static void refuse(struct cuda_backend *c, int rc) {
    char why[200];
    snprintf(why, sizeof why, "NCCL: %s", c->nccl->error(rc));
    cuda_refuse(c, "peers_exchange", why);
}

bool nccl_whole(struct cuda_backend *c) {
    const int why = c->nccl ? ended(c->nccl) : 0;
    if (why != 0) refuse(c, why);
    return why == 0;
}

/* ---- exchanges ----------------------------------------------------------------------------------------------------*/

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
    n->watched = pthread_create(&n->watch, NULL, watch, n) == 0;
    if (!n->watched) {
        snprintf(why, why_bytes, "NCCL: no thread can be made");
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
    if (!nccl_whole(c)) return;
    int rc = n->group_start();
    for (int r = 0; r < n->size && rc == 0; r++) {
        if (r == n->rank) continue;
        if (out[r].n > 0) rc = n->send((const char *)from + out[r].at, out[r].n, NCCL_INT8, r, n->comm, c->stream);
        if (in[r].n > 0 && rc == 0) rc = n->recv((char *)to + in[r].at, in[r].n, NCCL_INT8, r, n->comm, c->stream);
    }
    const int last = n->group_end();
    if (rc == 0) rc = last;
    if (rc == 0) return;
    end(n, rc); /* so that the peers do not wait for this rank */
    refuse(c, rc);
}

void nccl_close(struct cuda_backend *c) {
    struct nccl *n = c->nccl;
    if (!n) return;
    if (n->watched) {
        pthread_mutex_lock(&n->lock);
        n->closing = true;
        pthread_mutex_unlock(&n->lock);
        pthread_join(n->watch, NULL);
    }
    if (n->comm && !n->ended) n->destroy(n->comm);
    pthread_mutex_destroy(&n->lock);
    free(n);
    c->nccl = NULL;
}
