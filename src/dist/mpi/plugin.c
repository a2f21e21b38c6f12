/* The ranks of a run over MPI: a plugin, built once for each MPI whose mpicc there is, because their ABIs differ. It
 * moves bytes and adds nothing but integers.
 *
 * Every call begins an operation that does not block and waits for it by asking again and again, at first without a
 * pause and then with naps: a rank that waits leaves its processor to those that work, and MPIs that would spin on the
 * processor do not.
 *
 * One thread listens to the others: each rank says to rank 0 once a second that it is alive, and rank 0 to each of
 * them. Who is not heard of for peer_timeout_s is lost, and the job ends with COMM_LOST_EXIT. Launchers end a job when
 * one of its processes dies; what they do not see is a machine that is cut off. */
#include <limits.h>
#include <math.h>
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "dist/comm.h"

enum {
    TAG_MESSAGE = 1,
    TAG_ALIVE = 2,
    TAG_EXCHANGE = 3,
    PIECE = 1 << 30, /* bytes of one operation: MPI counts in int */
    SPINS = 2000,    /* questions without a pause: some 100 us */
};

struct mpi_comm {
    struct comm c;
    MPI_Comm world, pulse; /* of the calls; of the signs of life */
    char library[64];
    char host[64];
    double timeout_s;
    pthread_t listener;
    bool listening;
    atomic_bool closing;
    char (*hosts)[64]; /* [size] */
};

static struct mpi_comm *of(struct comm *c) { return (struct mpi_comm *)c; }

static enum status lost(const struct comm *c, const char *what, int code, struct err *e) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int n;
    if (MPI_Error_string(code, text, &n) != MPI_SUCCESS) text[0] = '\0';
    return FAIL(e, ST_LOST, "rank %d: %s: %s", c->rank, what, *text ? text : "MPI failed");
}

/* Waits for n operations. */
static enum status wait_for(struct comm *c, const char *what, MPI_Request *r, int n, struct err *e) {
    for (int spins = 0;; spins++) {
        int done;
        const int code = MPI_Testall(n, r, &done, MPI_STATUSES_IGNORE);
        if (code != MPI_SUCCESS) return lost(c, what, code, e);
        if (done) return ST_OK;
        if (spins >= SPINS) clock_nap(spins < 2 * SPINS ? 20000 : 200000);
    }
}

/* What begins an operation failed, or it is waited for. */
static enum status begun(struct comm *c, const char *what, int code, MPI_Request *r, struct err *e) {
    return code == MPI_SUCCESS ? wait_for(c, what, r, 1, e) : lost(c, what, code, e);
}

static int piece_of(size_t left) { return left < PIECE ? (int)left : PIECE; }

static enum status mpi_bcast(struct comm *c, int root, void *p, size_t n, struct err *e) {
    if (root < 0 || root >= c->size) return FAIL(e, ST_INVALID, "bcast: there is no rank %d of %d", root, c->size);
    for (size_t at = 0; at < n;) {
        MPI_Request r;
        const int piece = piece_of(n - at);
        TRY(begun(c, "bcast", MPI_Ibcast((char *)p + at, piece, MPI_BYTE, root, of(c)->world, &r), &r, e));
        at += (size_t)piece;
    }
    return ST_OK;
}

/* Whatever its length, as a broadcast of each rank's part; short ones in one operation. */
static enum status mpi_allgather(struct comm *c, const void *mine, size_t n, void *all, struct err *e) {
    MPI_Request r;
    if (n <= PIECE / (size_t)c->size) {
        const int code = MPI_Iallgather(mine, (int)n, MPI_BYTE, all, (int)n, MPI_BYTE, of(c)->world, &r);
        return begun(c, "allgather", code, &r, e);
    }
    memmove((char *)all + (size_t)c->rank * n, mine, n);
    for (int i = 0; i < c->size; i++) TRY(mpi_bcast(c, i, (char *)all + (size_t)i * n, n, e));
    return ST_OK;
}

static size_t pieces_of(const struct byte_span *p) { return (p->n + PIECE - 1) / PIECE; }

static enum status mpi_exchange(struct comm *c, const void *from, const struct byte_span *out, void *to,
                                const struct byte_span *in, struct err *e) {
    size_t most = 0;
    int n = 0, code = MPI_SUCCESS;
    if (in[c->rank].n > 0) memmove((char *)to + in[c->rank].at, (const char *)from + out[c->rank].at, in[c->rank].n);
    for (int r = 0; r < c->size; r++) most += r == c->rank ? 0 : pieces_of(&in[r]) + pieces_of(&out[r]);
    if (most > INT_MAX) return FAIL(e, ST_INVALID, "exchange: %zu pieces are too many", most);
    MPI_Request *r = xcalloc(most + 1, sizeof *r);
    for (int step = 1; step < c->size && code == MPI_SUCCESS; step++) {
        const int source = (c->rank - step + c->size) % c->size;
        for (size_t at = 0; at < in[source].n && code == MPI_SUCCESS; at += PIECE)
            code = MPI_Irecv((char *)to + in[source].at + at, piece_of(in[source].n - at), MPI_BYTE, source,
                             TAG_EXCHANGE, of(c)->world, &r[n++]);
    }
    for (int step = 1; step < c->size && code == MPI_SUCCESS; step++) {
        const int target = (c->rank + step) % c->size;
        for (size_t at = 0; at < out[target].n && code == MPI_SUCCESS; at += PIECE)
            code = MPI_Isend((const char *)from + out[target].at + at, piece_of(out[target].n - at), MPI_BYTE, target,
                             TAG_EXCHANGE, of(c)->world, &r[n++]);
    }
    const enum status st = code == MPI_SUCCESS ? wait_for(c, "exchange", r, n, e) : lost(c, "exchange", code, e);
    free(r);
    return st;
}

static enum status mpi_max_i64(struct comm *c, int64_t *v, int n, struct err *e) {
    MPI_Request r;
    const int code = MPI_Iallreduce(MPI_IN_PLACE, v, n, MPI_INT64_T, MPI_MAX, of(c)->world, &r);
    return begun(c, "max", code, &r, e);
}

static enum status check_peer(const struct comm *c, const char *what, int peer, struct err *e) {
    if (peer >= 0 && peer < c->size && peer != c->rank) return ST_OK;
    return FAIL(e, ST_INVALID, "%s: there is no other rank %d of %d", what, peer, c->size);
}

static enum status mpi_send(struct comm *c, int to, const void *p, size_t n, struct err *e) {
    TRY(check_peer(c, "send", to, e));
    size_t at = 0;
    do { /* a message of no bytes is one, too */
        MPI_Request r;
        const int piece = piece_of(n - at);
        const int code = MPI_Isend((const char *)p + at, piece, MPI_BYTE, to, TAG_MESSAGE, of(c)->world, &r);
        TRY(begun(c, "send", code, &r, e));
        at += (size_t)piece;
    } while (at < n);
    return ST_OK;
}

static enum status mpi_recv(struct comm *c, int from, void *p, size_t n, struct err *e) {
    TRY(check_peer(c, "recv", from, e));
    size_t at = 0;
    do {
        MPI_Request r;
        const int piece = piece_of(n - at);
        const int code = MPI_Irecv((char *)p + at, piece, MPI_BYTE, from, TAG_MESSAGE, of(c)->world, &r);
        TRY(begun(c, "recv", code, &r, e));
        at += (size_t)piece;
    } while (at < n);
    return ST_OK;
}

static enum status mpi_probe(struct comm *c, bool *there, int *from, size_t *n, struct err *e) {
    int flag, bytes;
    MPI_Status s;
    const int code = MPI_Iprobe(MPI_ANY_SOURCE, TAG_MESSAGE, of(c)->world, &flag, &s);
    if (code != MPI_SUCCESS) return lost(c, "probe", code, e);
    *there = flag;
    if (!flag) return ST_OK;
    MPI_Get_count(&s, MPI_BYTE, &bytes);
    *from = s.MPI_SOURCE;
    *n = (size_t)bytes;
    return ST_OK;
}

static void *end_anyway(void *exit_status) {
    sleep(5);
    _exit((int)(intptr_t)exit_status);
}

/* True: the launcher ends all ranks when it sees a process go, and keeps that process's exit status. So does MPICH's
 * mpirun, but for one time in a hundred, when it shows 1 (4.0.2: two of 261); told by MPI_Abort, it may kill the
 * process before the process can leave a status, and then shows 9. */
static bool launcher_ends_all(void) {
#ifdef MPICH_NUMVERSION
    return getenv("HYDI_CONTROL_FD") != NULL;
#else
    return false;
#endif
}

/* Ends this process, with a word to the launcher where it shall end all ranks. Both that word and what stops waiting
 * may wait for a rank that is gone, so that the process does not count on their return. */
static void end_process(struct comm *c, int exit_status, bool all) {
    pthread_t thread;
    fflush(NULL);
    if (pthread_create(&thread, NULL, end_anyway, (void *)(intptr_t)exit_status) == 0) {
        void (*const stop)(void *) = c->stop_waiting;
        if (stop) stop(c->stop_waiting_ctx);
        if (all && !launcher_ends_all()) MPI_Abort(of(c)->world, exit_status);
    }
    _exit(exit_status);
}

static void mpi_abort(struct comm *c, int exit_status) { end_process(c, exit_status, true); }

/* ---- who is alive -------------------------------------------------------------------------------------------------*/

/* What a rank says to another one: it is alive; this was its last word; or, from SIGN_LOST on, which rank is lost. */
enum { SIGN_LAST, SIGN_ALIVE, SIGN_LOST };

static enum status say(struct mpi_comm *m, int to, const int32_t *sign, MPI_Request *r) {
    const int code = MPI_Isend(sign, 1, MPI_INT32_T, to, TAG_ALIVE, m->pulse, r);
    return code == MPI_SUCCESS ? ST_OK : ST_LOST;
}

/* Ends the job. Rank 0 tells those that are left, and gives them a moment to hear it. */
static void end_for(struct mpi_comm *m, int rank, double silent_s) {
    static int32_t sign;
    MPI_Request r;
    fprintf(
        stderr,
        "rank %d on %s: rank %d on %s is lost: not heard of for %.0f s (peer_timeout). The job ends with exit status "
        "%d; the same command goes on from the last checkpoint\n",
        m->c.rank, m->host, rank, m->hosts[rank], silent_s, COMM_LOST_EXIT);
    sign = SIGN_LOST + rank;
    for (int i = 1; m->c.rank == 0 && i < m->c.size; i++)
        if (i != rank) (void)say(m, i, &sign, &r);
    for (int i = 0; m->c.rank == 0 && m->c.size > 2 && i < 20; i++) { /* MPI moves bytes while it is asked for some */
        int flag;
        MPI_Iprobe(MPI_ANY_SOURCE, TAG_ALIVE, m->pulse, &flag, MPI_STATUS_IGNORE);
        clock_nap(10000000);
    }
    mpi_abort(&m->c, COMM_LOST_EXIT);
}

/* Takes in what has come since the last time: heard[r] becomes now, or infinity with the last sign. False: MPI failed.
 */
static bool hear(struct mpi_comm *m, double *heard) {
    for (;;) {
        int flag;
        MPI_Status s;
        int32_t sign;
        if (MPI_Iprobe(MPI_ANY_SOURCE, TAG_ALIVE, m->pulse, &flag, &s) != MPI_SUCCESS) return false;
        if (!flag) return true;
        if (MPI_Recv(&sign, 1, MPI_INT32_T, s.MPI_SOURCE, TAG_ALIVE, m->pulse, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            return false;
        if (sign >= SIGN_LOST) end_process(&m->c, COMM_LOST_EXIT, false); /* rank 0 has said why */
        heard[s.MPI_SOURCE] = sign == SIGN_LAST ? (double)INFINITY : clock_now_s();
    }
}

/* One sign of life to a rank; while the one before has not left, the rank is not written to again. */
static bool show(struct mpi_comm *m, int to, MPI_Request *r) {
    static const int32_t alive = SIGN_ALIVE;
    int sent = 1;
    if (*r != MPI_REQUEST_NULL && MPI_Test(r, &sent, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
    return !sent || say(m, to, &alive, r) == ST_OK;
}

/* Both sides take what was sent to them up to the last sign, so that nothing is left over when MPI ends. parted: true
 * when the peer's last sign has come already. */
static void part_from(struct mpi_comm *m, int peer, bool parted, MPI_Request *r) {
    static const int32_t last = SIGN_LAST;
    int32_t sign = parted ? SIGN_LAST : SIGN_ALIVE;
    MPI_Request end;
    if (*r != MPI_REQUEST_NULL && MPI_Wait(r, MPI_STATUS_IGNORE) != MPI_SUCCESS) return;
    if (say(m, peer, &last, &end) != ST_OK) return;
    while (sign != SIGN_LAST && MPI_Recv(&sign, 1, MPI_INT32_T, peer, TAG_ALIVE, m->pulse, MPI_STATUS_IGNORE) == 0) {}
    MPI_Wait(&end, MPI_STATUS_IGNORE);
}

/* Rank 0 speaks with all, the others with rank 0. */
static void *listen(void *ctx) {
    struct mpi_comm *m = ctx;
    const int first = m->c.rank == 0 ? 1 : 0, end = m->c.rank == 0 ? m->c.size : 1;
    double *heard = xcalloc((size_t)m->c.size, sizeof *heard), shown = 0;
    MPI_Request *r = xcalloc((size_t)m->c.size, sizeof *r);
    bool works = true;
    for (int i = 0; i < m->c.size; i++) {
        r[i] = MPI_REQUEST_NULL;
        heard[i] = clock_now_s();
    }
    while (works && !atomic_load(&m->closing)) {
        const double now = clock_now_s();
        for (int i = first; i < end && now - shown >= 1 && works; i++) works = show(m, i, &r[i]);
        if (now - shown >= 1) shown = now;
        works = works && hear(m, heard);
        for (int i = first; i < end && works; i++)
            if (now - heard[i] > m->timeout_s) end_for(m, i, now - heard[i]);
        clock_nap(100000000);
    }
    for (int i = first; i < end && works; i++) part_from(m, i, isinf(heard[i]), &r[i]);
    free(heard);
    free(r);
    return NULL;
}

/* ---- opening and closing ------------------------------------------------------------------------------------------*/

static void mpi_close(struct comm *c) {
    struct mpi_comm *m = of(c);
    struct err ignored;
    int64_t all = 0;
    (void)mpi_max_i64(c, &all, 1, &ignored); /* nobody stops to listen before everybody is here */
    atomic_store(&m->closing, true);
    if (m->listening) pthread_join(m->listener, NULL);
    MPI_Finalize();
    free(m->hosts);
    free(m);
}

/* The number of this rank among those of its machine. */
static int local_rank(MPI_Comm world) {
    MPI_Comm here;
    int rank = 0;
    if (MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here) != MPI_SUCCESS) return 0;
    MPI_Comm_rank(here, &rank);
    MPI_Comm_free(&here);
    return rank;
}

/* "Open MPI v4.1.4, package: ..." and the like: the first words, up to a comma or the end of a line. */
static void name_library(struct mpi_comm *m) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "MPI";
    int n;
    MPI_Get_library_version(text, &n);
    text[strcspn(text, ",\n")] = '\0';
    for (char *p = text; *p; p++)
        if (*p == '\t') *p = ' ';
    snprintf(m->library, sizeof m->library, "%.60s", text);
}

static const char *start(struct mpi_comm *m) {
    int given, rank, size;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &given) != MPI_SUCCESS) return "MPI_Init_thread failed";
    if (given < MPI_THREAD_MULTIPLE) return "this MPI was built without MPI_THREAD_MULTIPLE";
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (MPI_Comm_dup(MPI_COMM_WORLD, &m->world) != MPI_SUCCESS || MPI_Comm_dup(m->world, &m->pulse) != MPI_SUCCESS)
        return "MPI_Comm_dup failed";
    MPI_Comm_rank(m->world, &rank);
    MPI_Comm_size(m->world, &size);
    m->c.rank = rank;
    m->c.size = size;
    m->c.local_rank = local_rank(m->world);
    name_library(m);
    gethostname(m->host, sizeof m->host - 1);
    m->hosts = xcalloc((size_t)size, sizeof *m->hosts);
    struct err e;
    if (mpi_allgather(&m->c, m->host, sizeof m->host, m->hosts, &e) != ST_OK)
        return "the ranks do not reach each other";
    if (size > 1) m->listening = pthread_create(&m->listener, NULL, listen, m) == 0;
    return size > 1 && !m->listening ? "no thread can be made" : NULL;
}

__attribute__((visibility("default"))) int kernelrl_mpi_open(int abi, const struct comm_options *o, struct comm **out,
                                                             char *why, size_t why_bytes) {
    if (abi != COMM_PLUGIN_ABI) {
        snprintf(why, why_bytes, "the plugin is of version %d and the program of %d: build both from one source",
                 COMM_PLUGIN_ABI, abi);
        return 1;
    }
    struct mpi_comm *m = xcalloc(1, sizeof *m);
    m->timeout_s = o->peer_timeout_s;
    m->c = (struct comm){.library = m->library,
                         .bcast = mpi_bcast,
                         .allgather = mpi_allgather,
                         .exchange = mpi_exchange,
                         .max_i64 = mpi_max_i64,
                         .send = mpi_send,
                         .recv = mpi_recv,
                         .probe = mpi_probe,
                         .abort = mpi_abort,
                         .close = mpi_close};
    const char *failed = start(m);
    if (failed) {
        snprintf(why, why_bytes, "%s", failed);
        return 1;
    }
    *out = &m->c;
    return 0;
}
