#include "wire/tensor.h"

#include <string.h>

struct wire_memory wire_memory_make(struct arena *a) {
    return (struct wire_memory){a, WIRE_MAX_CELLS};
}

/* Takes n cells; ST_PARSE: there are not so many. */
static enum status take_cells(struct wire_memory *w, const struct proto *m, int64_t n, struct err *e) {
    if (n > w->cells_left)
        return FAIL(e, ST_PARSE, "%s: all tensors together have more than %d cells: send fewer datums at once", m->name,
                    WIRE_MAX_CELLS);
    w->cells_left -= n;
    return ST_OK;
}

enum status wire_numbers(struct wire_memory *w, const struct proto *m, const struct proto_field *f, size_t size,
                         void **out, int64_t *n, struct err *e) {
    TRY(proto_expect(m, f, PROTO_BYTES, e));
    if (f->n % size != 0)
        return FAIL(e, ST_PARSE, "%s: field %u has %zu bytes, expected a multiple of %zu", m->name, f->number, f->n,
                    size);
    *n = (int64_t)(f->n / size);
    TRY(take_cells(w, m, *n, e));
    *out = arena_alloc(w->arena, f->n);
    if (f->n > 0) memcpy(*out, f->bytes, f->n);
    return ST_OK;
}

/* The fields of a SparseCsr. */
struct csr {
    struct proto_field values, rows, columns;
};

static enum status read_csr(const struct proto *tensor, const struct proto_field *f, struct csr *out, struct err *e) {
    struct proto m;
    struct proto_field g;
    bool there;
    *out = (struct csr){0};
    TRY(proto_submessage(tensor, f, "SparseCsr", &m, e));
    for (;;) {
        TRY(proto_next(&m, &g, &there, e));
        if (!there) return ST_OK;
        if (g.number > 3) continue;
        TRY(proto_expect(&m, &g, PROTO_BYTES, e));
        *(g.number == 1 ? &out->values : g.number == 2 ? &out->rows : &out->columns) = g;
    }
}

static size_t size_of(enum wire_dtype t) { return t == WIRE_F32 ? sizeof(float) : sizeof(int64_t); }

/* Room for the cells of a tensor whose n is known, at zero. Returns where they lie. */
static uint8_t *make_cells(struct wire_memory *w, struct wire_tensor *t) {
    if (t->dtype == WIRE_F32)
        t->f = arena_array(w->arena, float, t->n);
    else
        t->i = arena_array(w->arena, int64_t, t->n);
    return t->dtype == WIRE_F32 ? (uint8_t *)t->f : (uint8_t *)t->i;
}

/* n becomes the product of the dimensions; ST_PARSE: it is more than there may be. */
static enum status multiply(struct wire_tensor *t, const struct proto *m, struct err *e) {
    t->n = 1;
    for (int i = 0; i < t->nd; i++) {
        if (t->dim[i] < 0) return FAIL(e, ST_PARSE, "%s: a dimension is negative", m->name);
        if (__builtin_mul_overflow(t->n, t->dim[i], &t->n))
            return FAIL(e, ST_PARSE, "%s: its shape has more cells than can be counted", m->name);
    }
    return ST_OK;
}

static enum status fill_dense(struct wire_memory *w, const struct proto *m, const struct proto_field *f,
                              struct wire_tensor *t, struct err *e) {
    const size_t size = size_of(t->dtype);
    if (f->n % size != 0)
        return FAIL(e, ST_PARSE, "%s: %zu bytes are no whole number of cells of %zu bytes", m->name, f->n, size);
    const int64_t n = (int64_t)(f->n / size);
    if (t->nd == 0) t->dim[t->nd++] = n;
    TRY(multiply(t, m, e));
    if (t->n != n)
        return FAIL(e, ST_PARSE, "%s: its shape has %lld cells, its data %lld", m->name, (long long)t->n, (long long)n);
    TRY(take_cells(w, m, n, e));
    uint8_t *cells = make_cells(w, t);
    if (f->n > 0) memcpy(cells, f->bytes, f->n);
    return ST_OK;
}

static int64_t index_at(const struct proto_field *f, int64_t i) {
    int64_t v;
    memcpy(&v, f->bytes + (size_t)i * sizeof v, sizeof v);
    return v;
}

static enum status fill_csr(struct wire_memory *w, const struct proto *m, const struct csr *c, struct wire_tensor *t,
                            struct err *e) {
    const size_t size = size_of(t->dtype), wide = sizeof(int64_t);
    if (t->nd != 2) return FAIL(e, ST_PARSE, "%s: CSR needs a shape of two dimensions, it has %d", m->name, t->nd);
    TRY(multiply(t, m, e));
    const int64_t rows = t->dim[0], columns = t->dim[1];
    /* Rows are bounded by the indices that are there, before anything is made of them. */
    if (c->rows.n % wide != 0 || (int64_t)(c->rows.n / wide) - 1 != rows)
        return FAIL(e, ST_PARSE, "%s: crow_indices has %zu bytes, expected 8 times (%lld rows + 1)", m->name, c->rows.n,
                    (long long)rows);
    if (c->columns.n % wide != 0 || c->values.n % size != 0 || c->columns.n / wide != c->values.n / size)
        return FAIL(e, ST_PARSE, "%s: values and col_indices have not the same number of cells", m->name);
    const int64_t listed = (int64_t)(c->columns.n / wide);
    TRY(take_cells(w, m, t->n, e));
    uint8_t *cells = make_cells(w, t);
    if (index_at(&c->rows, 0) != 0 || index_at(&c->rows, rows) != listed)
        return FAIL(e, ST_PARSE, "%s: crow_indices must begin at 0 and end at the number of values", m->name);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t from = index_at(&c->rows, r), to = index_at(&c->rows, r + 1);
        if (from > to || to > listed || from < 0)
            return FAIL(e, ST_PARSE, "%s: crow_indices of row %lld lead out of the values", m->name, (long long)r);
        int64_t before = -1;
        for (int64_t k = from; k < to; k++) {
            const int64_t column = index_at(&c->columns, k);
            if (column <= before || column >= columns)
                return FAIL(e, ST_PARSE, "%s: col_indices of row %lld must rise and lie below %lld", m->name,
                            (long long)r, (long long)columns);
            before = column;
            memcpy(cells + (size_t)(r * columns + column) * size, c->values.bytes + (size_t)k * size, size);
        }
    }
    return ST_OK;
}

enum status wire_tensor_read(struct wire_memory *w, struct proto m, struct wire_tensor *out, struct err *e) {
    const char *name = out->name;
    struct proto_field f, dense = {0};
    struct csr csr = {0};
    bool there, sparse = false;
    int32_t dtype = 0;
    *out = (struct wire_tensor){.name = name};
    for (;;) {
        TRY(proto_next(&m, &f, &there, e));
        if (!there) break;
        switch (f.number) {
        case 1:
            TRY(proto_expect(&m, &f, PROTO_BYTES, e));
            dense = f;
            sparse = false;
            break;
        case 2:
            TRY(read_csr(&m, &f, &csr, e));
            sparse = true;
            break;
        case 3: TRY(proto_i32(&m, &f, &dtype, e)); break;
        case 4: TRY(proto_i64s(&m, &f, out->dim, WIRE_MAX_DIMS, &out->nd, e)); break;
        default: break;
        }
    }
    if (dtype != WIRE_F32 && dtype != WIRE_I64)
        return FAIL(e, ST_PARSE, "%s: dtype %d, expected 1 (float32) or 2 (int64)", m.name, dtype);
    out->dtype = (enum wire_dtype)dtype;
    return sparse ? fill_csr(w, &m, &csr, out, e) : fill_dense(w, &m, &dense, out, e);
}

/* The cells that are listed, as a SparseCsr. */
static void put_csr(struct str *out, const struct wire_tensor *t) {
    CLEANUP_STR struct str m = STR_INIT;
    const int64_t rows = t->dim[0], n = t->crow[rows];
    const void *cells = t->dtype == WIRE_F32 ? (const void *)t->f : (const void *)t->i;
    proto_put_bytes(&m, 1, cells, (size_t)n * size_of(t->dtype));
    proto_put_bytes(&m, 2, t->crow, (size_t)(rows + 1) * sizeof *t->crow);
    proto_put_bytes(&m, 3, t->col, (size_t)n * sizeof *t->col);
    proto_put_bytes(out, 2, m.p, m.len);
}

void wire_tensor_put(struct str *out, uint32_t number, const struct wire_tensor *t) {
    CLEANUP_STR struct str m = STR_INIT;
    if (t->crow)
        put_csr(&m, t);
    else
        proto_put_bytes(&m, 1, t->dtype == WIRE_F32 ? (const void *)t->f : (const void *)t->i,
                        (size_t)t->n * size_of(t->dtype));
    proto_put_varint(&m, 3, (uint64_t)t->dtype);
    proto_put_i64s(&m, 4, t->dim, t->nd);
    proto_put_bytes(out, number, m.p, m.len);
}
