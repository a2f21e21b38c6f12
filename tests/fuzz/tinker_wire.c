/* Fuzz target: the three protobuf messages and zstd bodies of the Tinker protocol. The first byte says which. What was
 * read is the same when it is written and read again; a request has only tensors that are whole. */
#include <string.h>

#include "wire/wire.h"

enum { MOST = 1 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_datum(const struct wire_datum *d) {
    volatile int64_t sum = 0;
    for (int64_t i = 0; i < d->n; i++) sum += d->ids[i];
    for (int k = 0; k < d->n_tensors; k++) {
        const struct wire_tensor *t = &d->tensor[k];
        int64_t n = 1;
        for (int i = 0; i < t->nd; i++) n *= t->dim[i];
        ASSERT(t->nd >= 1 && n == t->n && n <= WIRE_MAX_CELLS && !t->f == (t->dtype == WIRE_I64) && t->name);
        for (int64_t i = 0; i < n; i++) sum += t->f ? t->f[i] > 0 : t->i[i];
    }
}

/* What was read, written and read again: written once more it has the same bytes. */
static void rewrite(const struct wire_training *r, struct arena *a) {
    CLEANUP_STR struct str first = STR_INIT, second = STR_INIT;
    struct wire_training again;
    struct err e = {0};
    wire_put_training(&first, r);
    ASSERT(wire_read_training(first.p, first.len, a, &again, &e) == ST_OK && again.n == r->n);
    wire_put_training(&second, &again);
    ASSERT(first.len == second.len && memcmp(first.p, second.p, first.len) == 0);
}

static void request(const uint8_t *data, size_t size, struct arena *a) {
    struct wire_training r;
    struct err e = {0};
    if (wire_read_training(data, size, a, &r, &e) != ST_OK) {
        ASSERT(e.code == ST_PARSE);
        return;
    }
    rewrite(&r, a);
    for (int i = 0; i < r.n; i++) check_datum(&r.datum[i]);
    for (int i = 0; i < r.n_options; i++) ASSERT(r.option[i].name);
    ASSERT(strlen(r.model_id) <= size && strlen(r.loss_fn) <= size);
}

/* The bytes of a result as they are written, which reading and writing again leaves alone. */
static void result(bool sample, const uint8_t *data, size_t size, struct arena *a) {
    CLEANUP_STR struct str first = STR_INIT, second = STR_INIT;
    struct err e = {0};
    const void *from = data;
    size_t n = size;
    for (struct str *to = &first; to; to = to == &first ? &second : NULL) {
        struct wire_output o;
        struct wire_sample s;
        const enum status st = sample ? wire_read_sample(from, n, a, &s, &e) : wire_read_output(from, n, a, &o, &e);
        if (st != ST_OK) {
            ASSERT(st == ST_PARSE && to == &first);
            return;
        }
        if (sample)
            wire_put_sample(to, &s);
        else
            wire_put_output(to, &o);
        from = to->p;
        n = to->len;
    }
    ASSERT(first.len == second.len && (first.len == 0 || memcmp(first.p, second.p, first.len) == 0));
}

static void unzstd(const uint8_t *data, size_t size) {
    CLEANUP_STR struct str out = STR_INIT;
    struct err e = {0};
    const enum status st = wire_unzstd(data, size, MOST, &out, &e);
    ASSERT(st == ST_OK || st == ST_PARSE || st == ST_INVALID);
    ASSERT(st != ST_OK || out.len <= MOST);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct arena a = ARENA_INIT;
    if (size < 1) return 0;
    switch (data[0] & 3) {
    case 0: request(data + 1, size - 1, &a); break;
    case 1: result(false, data + 1, size - 1, &a); break;
    case 2: result(true, data + 1, size - 1, &a); break;
    default: unzstd(data + 1, size - 1); break;
    }
    arena_free(&a);
    return 0;
}
