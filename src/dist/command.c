#include "dist/command.h"

#include <string.h>

/* Arrays begin at multiples of this in a payload. */
enum { ALIGNMENT = 8 };

enum status command_give(struct comm *c, enum rank_command what, const struct str *payload, struct err *e) {
    int64_t head[2] = {what, payload ? (int64_t)payload->len : 0};
    if (c->size == 1) return ST_OK;
    TRY(c->bcast(c, 0, head, sizeof head, e));
    return head[1] > 0 ? c->bcast(c, 0, payload->p, payload->len, e) : ST_OK;
}

enum status command_await(struct comm *c, enum rank_command *what, struct str *payload, struct err *e) {
    int64_t head[2];
    TRY(c->bcast(c, 0, head, sizeof head, e));
    *what = (enum rank_command)head[0];
    str_clear(payload);
    if (head[1] == 0) return ST_OK;
    str_reserve(payload, (size_t)head[1]);
    payload->len = (size_t)head[1];
    return c->bcast(c, 0, payload->p, payload->len, e);
}

void pack(struct str *s, const void *p, size_t n) {
    if (n > 0) str_add(s, p, n);
}

void pack_array(struct str *s, const void *p, int64_t n, size_t element) {
    static const char zeros[ALIGNMENT];
    PACK(s, n);
    pack(s, zeros, (ALIGNMENT - s->len % ALIGNMENT) % ALIGNMENT);
    pack(s, p, (size_t)n * element);
}

struct unpack unpack_of(const struct str *s) {
    return (struct unpack){s->p, s->p + s->len, false};
}

void unpack(struct unpack *u, void *out, size_t n) {
    u->short_ |= (size_t)(u->end - u->p) < n;
    if (u->short_) {
        memset(out, 0, n);
        return;
    }
    memcpy(out, u->p, n);
    u->p += n;
}

const void *unpack_array(struct unpack *u, int64_t *n, size_t element) {
    UNPACK(u, *n);
    const size_t left = (size_t)(u->end - u->p), padding = (ALIGNMENT - (uintptr_t)u->p % ALIGNMENT) % ALIGNMENT;
    u->short_ |= *n < 0 || left < padding || (uint64_t)*n > (left - padding) / element;
    if (u->short_ || *n == 0) {
        if (!u->short_) u->p += padding;
        *n = 0;
        return NULL;
    }
    const char *at = u->p + padding;
    u->p = at + (size_t)*n * element;
    return at;
}
