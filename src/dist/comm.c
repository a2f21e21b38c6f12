#include "dist/comm.h"

#include <stdlib.h>
#include <string.h>

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

static int64_t self_take(struct comm *c) { return c->counter++; }
static void self_close(struct comm *c) { free(c); }

/* ---- any number of ranks ------------------------------------------------------------------------------------------*/

enum status comm_open(const char *how, struct comm **out, struct err *e) {
    *out = NULL;
    if (strcmp(how, "self") != 0 && strcmp(how, "auto") != 0)
        return FAIL(e, ST_UNSUPPORTED, "ranks \"%s\": expected auto or self", how);
    *out = xcalloc(1, sizeof **out);
    **out = (struct comm){.size = 1,
                          .bcast = self_bcast,
                          .allgather = self_allgather,
                          .max_i64 = self_max_i64,
                          .send = self_send,
                          .recv = self_recv,
                          .take = self_take,
                          .close = self_close};
    return ST_OK;
}

void comm_close(struct comm *c) {
    if (c) c->close(c);
}

enum status comm_agree(struct comm *c, enum status mine, struct err *e) {
    int64_t worst = mine;
    struct err of_call;
    const enum status st = c->max_i64(c, &worst, 1, &of_call);
    if (mine != ST_OK) return mine;
    if (st != ST_OK) {
        *e = of_call;
        return st;
    }
    if (worst == ST_OK) return ST_OK;
    return FAIL(e, (enum status)worst, "another rank failed");
}
