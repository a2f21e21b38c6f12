/* A stand-in for libnccl.so.2 between processes of one machine, for the emulated device: what src/cuda/host/nccl.c
 * calls, over a socket for each pair of ranks. Sends and receives of a group are done at its end, all at once, as NCCL
 * does. Two ends that do not name the same lengths hang, as with NCCL.
 *
 * NCCL_STAND_IN_GONE has rank 1 leave in its second group. "error": the calls of its peers fail. "later": they wait as
 * a device does, and ncclCommGetAsyncError alone says why. "silent": the process stops, and nobody says anything. Each
 * ncclCommAbort is told on stderr. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
typedef struct {
    char internal[128];
} ncclUniqueId;
enum { OK = 0, SYSTEM = 2, REMOTE = 6, RANKS = 16, CALLS = 256 };
struct call {
    char *at;
    size_t left;
    int peer, out;
};
struct ncclComm {
    int rank, size, socket[RANKS];
    struct call call[CALLS];
    int n, groups;
    atomic_int error, aborted; /* error: what ncclCommGetAsyncError says */
};
static struct ncclComm *grouped; /* the communicator of the open group */
static int depth;

API int ncclGetVersion(int *v) {
    *v = 22600;
    return OK;
}
API int ncclGetUniqueId(ncclUniqueId *id) {
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/tmp/nccl-stand-in-%d", (int)getpid());
    return OK;
}
API const char *ncclGetErrorString(int rc) {
    return rc == REMOTE ? "remote process exited or there was a network error"
           : rc         ? "unhandled system error"
                        : "no error";
}

static struct sockaddr_un address(const ncclUniqueId *id, int rank) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%.90s.%d", id->internal, rank);
    return a;
}

/* A rank listens for those above it and calls those below it. */
API int ncclCommInitRank(struct ncclComm **out, int size, ncclUniqueId id, int rank) {
    struct ncclComm *c = *out = calloc(1, sizeof *c);
    struct sockaddr_un mine = address(&id, rank);
    const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    c->rank = rank;
    c->size = size;
    unlink(mine.sun_path);
    if (size > RANKS || bind(listener, (struct sockaddr *)&mine, sizeof mine) || listen(listener, RANKS)) return SYSTEM;
    for (int r = 0; r < rank; r++) {
        struct sockaddr_un other = address(&id, r);
        int tries = 0;
        c->socket[r] = socket(AF_UNIX, SOCK_STREAM, 0);
        while (connect(c->socket[r], (struct sockaddr *)&other, sizeof other) && tries++ < 1000) usleep(10000);
        if (write(c->socket[r], &rank, sizeof rank) != sizeof rank) return SYSTEM;
    }
    for (int i = rank + 1; i < size; i++) {
        int who;
        const int s = accept(listener, NULL, NULL);
        if (read(s, &who, sizeof who) != sizeof who || who <= rank || who >= size) return SYSTEM;
        c->socket[who] = s;
    }
    close(listener);
    unlink(mine.sun_path);
    return OK;
}
API int ncclCommDestroy(struct ncclComm *c) {
    if (c->aborted) abort();
    for (int r = 0; r < c->size; r++)
        if (r != c->rank) close(c->socket[r]);
    free(c);
    return OK;
}

static void hang_up(const struct ncclComm *c) {
    for (int r = 0; r < c->size; r++)
        if (r != c->rank) shutdown(c->socket[r], SHUT_RDWR);
}

/* Ends calls that wait, from another thread. The communicator is not freed, so that a call behind it is seen. */
API int ncclCommAbort(struct ncclComm *c) {
    fprintf(stderr, "ncclCommAbort of rank %d\n", c->rank);
    c->aborted = 1;
    hang_up(c);
    return OK;
}
API int ncclCommGetAsyncError(struct ncclComm *c, int *error) {
    if (c->aborted) abort();
    *error = c->error;
    return OK;
}

static int gone(const char *how) {
    const char *wanted = getenv("NCCL_STAND_IN_GONE");
    return wanted && (!how || strcmp(wanted, how) == 0);
}
static void leave(const struct ncclComm *c) {
    if (gone("silent")) raise(SIGSTOP);
    hang_up(c);
    for (;;) pause();
}

/* As many bytes of a call as go now. False: the other side is gone. */
static int move(const struct ncclComm *c, struct call *x) {
    const ssize_t n = x->out ? send(c->socket[x->peer], x->at, x->left, MSG_DONTWAIT | MSG_NOSIGNAL)
                             : recv(c->socket[x->peer], x->at, x->left, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return 0;
    if (n > 0) x->at += n, x->left -= (size_t)n;
    return 1;
}

/* Calls of one direction and peer keep their order. */
static int run(struct ncclComm *c) {
    if (gone(NULL) && c->rank == 1 && ++c->groups == 2) leave(c);
    for (int left = 1; left && !c->aborted;) {
        struct pollfd fd[CALLS];
        int n = 0;
        left = 0;
        for (int i = 0; i < c->n; i++) {
            int first = 1;
            if (!c->call[i].left) continue;
            left = 1;
            for (int k = 0; k < i; k++)
                first &= !c->call[k].left || c->call[k].peer != c->call[i].peer || c->call[k].out != c->call[i].out;
            if (!first) continue;
            if (!move(c, &c->call[i])) {
                if (!gone("later") && !gone("silent")) return SYSTEM;
                if (gone("later")) c->error = REMOTE;
                usleep(10000);
            }
            fd[n++] = (struct pollfd){c->socket[c->call[i].peer], c->call[i].out ? POLLOUT : POLLIN, 0};
        }
        if (left) poll(fd, (nfds_t)n, 100);
    }
    c->n = 0;
    return OK;
}
static int add(struct ncclComm *c, void *p, size_t n, int type, int peer, int out) {
    if (c->aborted) abort();
    if (type != 0 || c->n == CALLS || peer < 0 || peer >= c->size || peer == c->rank) return SYSTEM;
    c->call[c->n++] = (struct call){p, n, peer, out};
    grouped = c;
    return depth > 0 ? OK : run(c);
}
API int ncclGroupStart(void) {
    depth++;
    return OK;
}
API int ncclGroupEnd(void) {
    struct ncclComm *c = grouped;
    if (--depth > 0 || !c) return OK;
    grouped = NULL;
    return run(c);
}
API int ncclSend(const void *p, size_t n, int type, int peer, struct ncclComm *c, void *stream) {
    (void)stream;
    return add(c, (void *)(unsigned long)p, n, type, peer, 1);
}
API int ncclRecv(void *p, size_t n, int type, int peer, struct ncclComm *c, void *stream) {
    (void)stream;
    return add(c, p, n, type, peer, 0);
}
