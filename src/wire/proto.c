#include "wire/proto.h"

#include <string.h>

#include "io/json.h"

struct proto proto_message(const void *bytes, size_t n, const char *name) {
    static const uint8_t nothing[1];
    const uint8_t *p = n ? bytes : nothing;
    return (struct proto){p, p, p + n, name};
}

static enum status damaged(const struct proto *m, const char *why, struct err *e) {
    return FAIL(e, ST_PARSE, "%s: byte %zu: %s", m->name, (size_t)(m->p - m->begin), why);
}

/* At most ten bytes of seven bits; of the tenth, only the lowest bit counts. */
static enum status read_varint(struct proto *m, uint64_t *out, struct err *e) {
    *out = 0;
    for (int i = 0; i < 10; i++) {
        if (m->p == m->end) return damaged(m, "a number does not end", e);
        const uint8_t b = *m->p++;
        if (i == 9 && b > 1) return damaged(m, "a number has more than 64 bits", e);
        *out |= (uint64_t)(b & 127) << (7 * i);
        if (b < 128) return ST_OK;
    }
    return damaged(m, "a number has more than ten bytes", e);
}

static enum status read_fixed(struct proto *m, size_t n, uint64_t *out, struct err *e) {
    if ((size_t)(m->end - m->p) < n) return damaged(m, "a number does not end", e);
    *out = 0;
    for (size_t i = 0; i < n; i++) *out |= (uint64_t)m->p[i] << (8 * i);
    m->p += n;
    return ST_OK;
}

enum status proto_next(struct proto *m, struct proto_field *f, bool *there, struct err *e) {
    uint64_t key;
    *f = (struct proto_field){0};
    *there = m->p < m->end;
    if (!*there) return ST_OK;
    TRY(read_varint(m, &key, e));
    if (key >> 3 == 0 || key >> 32 != 0) return damaged(m, "a field has a number that there is not", e);
    f->number = (uint32_t)(key >> 3);
    f->wire = (enum proto_wire)(key & 7);
    switch (f->wire) {
    case PROTO_VARINT: return read_varint(m, &f->value, e);
    case PROTO_FIXED64: return read_fixed(m, 8, &f->value, e);
    case PROTO_FIXED32: return read_fixed(m, 4, &f->value, e);
    case PROTO_BYTES: break;
    default: return damaged(m, "a field is a group, or of a type that there is not", e);
    }
    TRY(read_varint(m, &f->value, e));
    if (f->value > (uint64_t)(m->end - m->p)) return damaged(m, "a length leads out of the message", e);
    f->bytes = m->p;
    f->n = (size_t)f->value;
    m->p += f->n;
    return ST_OK;
}

enum status proto_expect(const struct proto *m, const struct proto_field *f, enum proto_wire wire, struct err *e) {
    if (f->wire == wire) return ST_OK;
    return FAIL(e, ST_PARSE, "%s: field %u is of wire type %d, expected %d", m->name, f->number, (int)f->wire,
                (int)wire);
}

enum status proto_submessage(const struct proto *m, const struct proto_field *f, const char *name, struct proto *out,
                             struct err *e) {
    TRY(proto_expect(m, f, PROTO_BYTES, e));
    *out = proto_message(f->bytes, f->n, name);
    return ST_OK;
}

enum status proto_text(const struct proto *m, const struct proto_field *f, struct arena *a, const char **out,
                       struct err *e) {
    TRY(proto_expect(m, f, PROTO_BYTES, e));
    const char *p = (const char *)f->bytes;
    if (js_utf8_prefix(p, f->n) != f->n || memchr(p, 0, f->n))
        return FAIL(e, ST_PARSE, "%s: field %u is not a text of UTF-8", m->name, f->number);
    *out = arena_strndup(a, p, f->n);
    return ST_OK;
}

enum status proto_i32(const struct proto *m, const struct proto_field *f, int32_t *out, struct err *e) {
    TRY(proto_expect(m, f, PROTO_VARINT, e));
    const int64_t v = (int64_t)f->value;
    if (v < INT32_MIN || v > INT32_MAX)
        return FAIL(e, ST_PARSE, "%s: field %u has more than 32 bits", m->name, f->number);
    *out = (int32_t)v;
    return ST_OK;
}

enum status proto_bool(const struct proto *m, const struct proto_field *f, bool *out, struct err *e) {
    TRY(proto_expect(m, f, PROTO_VARINT, e));
    *out = f->value != 0;
    return ST_OK;
}

enum status proto_f64(const struct proto *m, const struct proto_field *f, double *out, struct err *e) {
    TRY(proto_expect(m, f, PROTO_FIXED64, e));
    memcpy(out, &f->value, sizeof *out);
    return ST_OK;
}

enum status proto_i64s(const struct proto *m, const struct proto_field *f, int64_t *out, int most, int *n,
                       struct err *e) {
    struct proto packed;
    uint64_t v = f->value;
    if (f->wire == PROTO_VARINT) {
        if (*n == most) return FAIL(e, ST_PARSE, "%s: field %u has more than %d numbers", m->name, f->number, most);
        out[(*n)++] = (int64_t)v;
        return ST_OK;
    }
    TRY(proto_submessage(m, f, m->name, &packed, e));
    while (packed.p < packed.end) {
        TRY(read_varint(&packed, &v, e));
        if (*n == most) return FAIL(e, ST_PARSE, "%s: field %u has more than %d numbers", m->name, f->number, most);
        out[(*n)++] = (int64_t)v;
    }
    return ST_OK;
}

/* ---- writing ------------------------------------------------------------------------------------------------------*/

static void put_number(struct str *out, uint64_t v) {
    char b[10];
    size_t n = 0;
    for (; v >= 128; v >>= 7) b[n++] = (char)(v | 128);
    b[n++] = (char)v;
    str_add(out, b, n);
}

static void put_key(struct str *out, uint32_t number, enum proto_wire wire) {
    put_number(out, (uint64_t)number << 3 | (uint64_t)wire);
}

void proto_put_varint(struct str *out, uint32_t number, uint64_t value) {
    put_key(out, number, PROTO_VARINT);
    put_number(out, value);
}

void proto_put_f64(struct str *out, uint32_t number, double value) {
    uint64_t bits;
    char b[8];
    memcpy(&bits, &value, sizeof bits);
    for (int i = 0; i < 8; i++) b[i] = (char)(bits >> (8 * i));
    put_key(out, number, PROTO_FIXED64);
    str_add(out, b, sizeof b);
}

void proto_put_bytes(struct str *out, uint32_t number, const void *bytes, size_t n) {
    put_key(out, number, PROTO_BYTES);
    put_number(out, n);
    if (n > 0) str_add(out, bytes, n);
}

void proto_put_text(struct str *out, uint32_t number, const char *text) {
    proto_put_bytes(out, number, text, strlen(text));
}

void proto_put_i64s(struct str *out, uint32_t number, const int64_t *v, int n) {
    CLEANUP_STR struct str packed = STR_INIT;
    for (int i = 0; i < n; i++) put_number(&packed, (uint64_t)v[i]);
    proto_put_bytes(out, number, packed.p, packed.len);
}
