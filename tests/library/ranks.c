/* Ranks under a launcher: `mpirun -n N ranks [MODE]`. Without a mode every call of dist/comm.h is checked, and rank 0
 * prints how many bytes and with what. "fail R": rank R fails, all say so. "stop R SECONDS": rank R stops, the others
 * must end within the time-out. "die R": rank R is killed. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dist/comm.h"

static struct err e;

static void must(bool x, const char *what, int line) {
    if (x) return;
    fprintf(stderr, "tests/library/ranks.c:%d: %s (%s)\n", line, what, e.msg);
    exit(1);
}
#define MUST(x) must((x), #x, __LINE__)

/* The byte at place i of what `from` sends to `to`. */
static unsigned char byte(int from, int to, size_t i) { return (unsigned char)(from * 31 + to * 7 + (int)(i % 251)); }

static void exchange_all(struct comm *c, size_t unit) {
    struct byte_span out[64], in[64];
    size_t n_out = 0, n_in = 0;
    for (int r = 0; r < c->size; r++) { /* uneven, some empty */
        const size_t a = unit * (size_t)((c->rank + 2 * r) % 3), b = unit * (size_t)((r + 2 * c->rank) % 3);
        out[r] = (struct byte_span){n_out, a};
        in[r] = (struct byte_span){n_in, b};
        n_out += a;
        n_in += b;
    }
    unsigned char *from = malloc(n_out + 1), *to = malloc(n_in + 1);
    for (int r = 0; r < c->size; r++)
        for (size_t i = 0; i < out[r].n; i++) from[out[r].at + i] = byte(c->rank, r, i);
    MUST(c->exchange(c, from, out, to, in, &e) == ST_OK);
    for (int r = 0; r < c->size; r++)
        for (size_t i = 0; i < in[r].n; i++) MUST(to[in[r].at + i] == byte(r, c->rank, i));
    free(from);
    free(to);
}

static void collectives(struct comm *c) {
    const size_t n = 100003;
    unsigned char *all = malloc(n * (size_t)c->size), *mine = malloc(n);
    for (size_t i = 0; i < n; i++) mine[i] = byte(c->rank, 0, i);
    MUST(c->allgather(c, mine, n, all, &e) == ST_OK);
    for (int r = 0; r < c->size; r++)
        for (size_t i = 0; i < n; i++) MUST(all[(size_t)r * n + i] == byte(r, 0, i));
    const int root = c->size - 1;
    MUST(c->bcast(c, root, mine, n, &e) == ST_OK);
    for (size_t i = 0; i < n; i++) MUST(mine[i] == byte(root, 0, i));
    MUST(c->bcast(c, c->size, mine, n, &e) == ST_INVALID);
    int64_t v[2] = {c->rank, -c->rank};
    MUST(c->max_i64(c, v, 2, &e) == ST_OK);
    MUST(v[0] == c->size - 1 && v[1] == 0);
    free(all);
    free(mine);
}

/* Every rank sends three messages to rank 0, which takes them as they come: one of no bytes, a short one, a long one.
 */
static void messages(struct comm *c) {
    const size_t length[] = {0, 5, 300000};
    unsigned char *p = malloc(300000);
    if (c->rank > 0) {
        for (int k = 0; k < 3; k++) {
            for (size_t i = 0; i < length[k]; i++) p[i] = byte(c->rank, k, i);
            MUST(c->send(c, 0, p, length[k], &e) == ST_OK);
        }
        MUST(c->recv(c, 0, p, 4, &e) == ST_OK);
        MUST(memcmp(p, "done", 4) == 0);
    }
    int seen[64] = {0};
    for (int left = c->rank == 0 ? 3 * (c->size - 1) : 0; left > 0;) {
        bool there;
        int from;
        size_t n;
        MUST(c->probe(c, &there, &from, &n, &e) == ST_OK);
        if (!there) continue;
        MUST(n == length[seen[from]]);
        MUST(c->recv(c, from, p, n, &e) == ST_OK);
        for (size_t i = 0; i < n; i++) MUST(p[i] == byte(from, seen[from], i));
        seen[from]++;
        left--;
    }
    for (int r = 1; c->rank == 0 && r < c->size; r++) MUST(c->send(c, r, "done", 4, &e) == ST_OK);
    MUST(c->send(c, c->rank, p, 1, &e) == ST_INVALID);
    free(p);
}

static void agree(struct comm *c) {
    MUST(comm_agree(c, ST_OK, &e) == ST_OK);
    for (int bad = 0; bad < c->size; bad++) {
        const bool mine = c->rank >= bad && c->rank % 2 == bad % 2; /* several fail: the lowest one is heard */
        const enum status st = comm_agree(c, mine ? FAIL(&e, ST_MEMORY, "no room on %d", c->rank) : ST_OK, &e);
        char first[64], last[64];
        snprintf(first, sizeof first, "rank %d on ", bad);
        snprintf(last, sizeof last, "no room on %d", mine ? c->rank : bad);
        MUST(st == ST_MEMORY && strlen(e.msg) >= strlen(last));
        MUST(mine || strncmp(e.msg, first, strlen(first)) == 0);
        MUST(strcmp(e.msg + strlen(e.msg) - strlen(last), last) == 0);
    }
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    const int who = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 0;
    const struct comm_options o = {.peer_timeout_s = argc > 3 ? strtod(argv[3], NULL) : 0};
    const struct comm_launch launch = comm_launched();
    struct comm *c;
    if (comm_open("auto", &o, &c, &e) != ST_OK) {
        fprintf(stderr, "%s\n", e.msg);
        return status_exit_code(e.code);
    }
    MUST(launch.rank == c->rank && launch.size == c->size && launch.local_rank == c->local_rank);
    if (strcmp(mode, "stop") == 0 && c->rank == who) raise(SIGSTOP);
    if (strcmp(mode, "die") == 0 && c->rank == who) raise(SIGKILL);
    if (strcmp(mode, "fail") == 0) {
        const enum status st = comm_agree(c, c->rank == who ? FAIL(&e, ST_IO, "%s", "the disk is full") : ST_OK, &e);
        fprintf(stderr, "%s\n", e.msg);
        comm_close(c);
        return status_exit_code(st);
    }
    collectives(c);
    exchange_all(c, 1000);
    exchange_all(c, 1 << 20);
    messages(c);
    agree(c);
    if (c->rank == 0) printf("%d ranks over %s\n", c->size, c->library);
    comm_close(c);
    return 0;
}
