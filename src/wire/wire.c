#include "wire/wire.h"

#include <string.h>
#include <zstd.h>

#include "wire/tensor.h"

/* ---- request: a datum ---------------------------------------------------------------------------------------------*/

/* The tokens of a Chunk; fill false: they are only counted. */
static enum status read_chunk(const struct proto *datum, const struct proto_field *f, bool fill, struct wire_datum *d,
                              struct err *e) {
    struct proto chunk, text;
    struct proto_field g, last = {0}, tokens = {0};
    bool there;
    TRY(proto_submessage(datum, f, "Chunk", &chunk, e));
    for (;;) {
        TRY(proto_next(&chunk, &g, &there, e));
        if (!there) break;
        if (g.number > 3) continue;
        TRY(proto_expect(&chunk, &g, PROTO_BYTES, e));
        last = g;
    }
    if (last.number == 0) return FAIL(e, ST_PARSE, "Chunk: it has neither tokens nor anything else");
    if (last.number > 1) {
        d->other = last.number == 2 ? WIRE_IMAGE : WIRE_DMEL;
        return ST_OK;
    }
    TRY(proto_submessage(&chunk, &last, "EncodedTextChunk", &text, e));
    for (;;) {
        TRY(proto_next(&text, &g, &there, e));
        if (!there) break;
        if (g.number != 1) continue;
        TRY(proto_expect(&text, &g, PROTO_BYTES, e));
        tokens = g;
    }
    if (tokens.n % sizeof(int32_t) != 0)
        return FAIL(e, ST_PARSE, "EncodedTextChunk: tokens have %zu bytes, expected a multiple of 4", tokens.n);
    if (fill && tokens.n > 0) memcpy(d->ids + d->n, tokens.bytes, tokens.n);
    d->n += (int64_t)(tokens.n / sizeof(int32_t));
    return ST_OK;
}

/* Key and value of an entry of a map. */
struct wire_entry {
    const char *key;
    struct proto_field value; /* number 0: it is missing */
};
static enum status read_entry(const struct proto *of, const struct proto_field *f, struct arena *a,
                              struct wire_entry *out, struct err *e) {
    struct proto m;
    struct proto_field g;
    bool there;
    *out = (struct wire_entry){.key = ""};
    TRY(proto_submessage(of, f, "map entry", &m, e));
    for (;;) {
        TRY(proto_next(&m, &g, &there, e));
        if (!there) return ST_OK;
        if (g.number == 1) TRY(proto_text(&m, &g, a, &out->key, e));
        if (g.number == 2) out->value = g;
    }
}

static enum status read_input(struct wire_memory *w, const struct proto *datum, const struct proto_field *f,
                              struct wire_datum *d, struct err *e) {
    struct wire_entry entry;
    struct proto m;
    TRY(read_entry(datum, f, w->arena, &entry, e));
    for (int i = 0; i < d->n_tensors; i++)
        if (strcmp(d->tensor[i].name, entry.key) == 0)
            return FAIL(e, ST_PARSE, "loss_fn_inputs has \"%.100s\" twice", entry.key);
    if (d->n_tensors == WIRE_MAX_TENSORS)
        return FAIL(e, ST_PARSE, "loss_fn_inputs has more than %d tensors", WIRE_MAX_TENSORS);
    struct wire_tensor *t = &d->tensor[d->n_tensors++];
    *t = (struct wire_tensor){.name = entry.key};
    if (entry.value.number == 0) entry.value = (struct proto_field){.wire = PROTO_BYTES};
    TRY(proto_submessage(datum, &entry.value, arena_printf(w->arena, "loss_fn_inputs.%.100s", entry.key), &m, e));
    return wire_tensor_read(w, m, t, e);
}

/* Looks over a datum: counts tokens and tensors. */
static enum status measure_datum(struct proto m, struct wire_datum *d, struct err *e) {
    struct proto_field f;
    bool there;
    *d = (struct wire_datum){0};
    for (;;) {
        TRY(proto_next(&m, &f, &there, e));
        if (!there) return ST_OK;
        if (f.number == 1) TRY(read_chunk(&m, &f, false, d, e));
        if (f.number >= 2 && f.number <= 4) TRY(proto_expect(&m, &f, PROTO_BYTES, e));
        d->n_tensors += f.number == 2;
        d->provenance |= f.number == 3 || f.number == 4;
    }
}

static enum status read_datum(struct wire_memory *w, const struct proto *request, const struct proto_field *f,
                              struct wire_datum *d, struct err *e) {
    struct proto m;
    struct proto_field g;
    bool there;
    TRY(proto_submessage(request, f, "Datum", &m, e));
    TRY(measure_datum(m, d, e));
    d->ids = arena_array(w->arena, int32_t, d->n);
    d->tensor = arena_array(w->arena, struct wire_tensor, i64_min(d->n_tensors, WIRE_MAX_TENSORS));
    d->n = d->n_tensors = 0;
    for (;;) {
        TRY(proto_next(&m, &g, &there, e));
        if (!there) return ST_OK;
        if (g.number == 1) TRY(read_chunk(&m, &g, true, d, e));
        if (g.number == 2) TRY(read_input(w, &m, &g, d, e));
    }
}

/* ---- request: options ---------------------------------------------------------------------------------------------*/

/* A LossConfigValue. */
static enum status read_value(const struct proto *of, const struct wire_entry *entry, struct arena *a,
                              struct wire_option *out, struct err *e) {
    struct proto m;
    struct proto_field g, value = entry->value;
    bool there;
    if (value.number == 0) return ST_OK;
    TRY(proto_submessage(of, &value, "LossConfigValue", &m, e));
    for (;;) {
        TRY(proto_next(&m, &g, &there, e));
        if (!there) return ST_OK;
        if (g.number == 1) {
            TRY(proto_f64(&m, &g, &out->number, e));
            out->text = NULL;
        }
        if (g.number == 2) TRY(proto_text(&m, &g, a, &out->text, e));
    }
}

struct options {
    struct wire_option *option;
    int n;
};

static enum status read_option(const struct proto *of, const struct proto_field *f, bool plain, struct arena *a,
                               struct options *o, struct err *e) {
    struct wire_entry entry;
    TRY(read_entry(of, f, a, &entry, e));
    for (int i = 0; i < o->n; i++)
        if (strcmp(o->option[i].name, entry.key) == 0)
            return FAIL(e, ST_PARSE, "loss_fn_config has \"%.100s\" twice", entry.key);
    if (o->n == WIRE_MAX_OPTIONS) return FAIL(e, ST_PARSE, "loss_fn_config has more than %d options", WIRE_MAX_OPTIONS);
    if (!o->option) o->option = arena_array(a, struct wire_option, WIRE_MAX_OPTIONS);
    struct wire_option *out = &o->option[o->n++];
    *out = (struct wire_option){.name = entry.key};
    if (!plain) return read_value(of, &entry, a, out, e);
    return entry.value.number ? proto_f64(of, &entry.value, &out->number, e) : ST_OK;
}

/* ---- request ------------------------------------------------------------------------------------------------------*/

struct request_reader {
    struct wire_memory memory;
    struct options old, new;
    int cap;
};

static enum status add_datum(struct request_reader *r, const struct proto *m, const struct proto_field *f,
                             struct wire_training *out, struct err *e) {
    if (out->n == WIRE_MAX_DATUMS)
        return FAIL(e, ST_PARSE, "the request has more than %d datums: send fewer at once", WIRE_MAX_DATUMS);
    if (out->n == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 16;
        struct wire_datum *more = arena_array(r->memory.arena, struct wire_datum, r->cap);
        if (out->n > 0) memcpy(more, out->datum, (size_t)out->n * sizeof *more);
        out->datum = more;
    }
    return read_datum(&r->memory, m, f, &out->datum[out->n++], e);
}

static enum status take_field(struct request_reader *r, const struct proto *m, const struct proto_field *f,
                              struct wire_training *out, struct err *e) {
    struct arena *a = r->memory.arena;
    switch (f->number) {
    case 1: return proto_text(m, f, a, &out->model_id, e);
    case 2: return proto_i32(m, f, &out->seq_id, e);
    case 3: return add_datum(r, m, f, out, e);
    case 4: return proto_text(m, f, a, &out->loss_fn, e);
    case 5: return read_option(m, f, true, a, &r->old, e);
    case 6: return proto_bool(m, f, &out->forward_only, e);
    case 7: return read_option(m, f, false, a, &r->new, e);
    default: return ST_OK;
    }
}

enum status wire_read_training(const void *body, size_t n, struct arena *a, struct wire_training *out, struct err *e) {
    struct request_reader r = {.memory = wire_memory_make(a)};
    struct proto m = proto_message(body, n, "ForwardBackwardRequest");
    struct proto_field f;
    bool there;
    *out = (struct wire_training){.model_id = "", .loss_fn = ""};
    for (;;) {
        TRY(proto_next(&m, &f, &there, e));
        if (!there) break;
        TRY(take_field(&r, &m, &f, out, e));
    }
    const struct options *o = r.new.n > 0 ? &r.new : &r.old;
    out->option = o->option;
    out->n_options = o->n;
    return ST_OK;
}

static void put_datum(struct str *out, const struct wire_datum *d) {
    CLEANUP_STR struct str datum = STR_INIT, chunk = STR_INIT, text = STR_INIT;
    proto_put_bytes(&text, 1, d->ids, (size_t)d->n * sizeof *d->ids);
    proto_put_bytes(&chunk, 1, text.p, text.len);
    proto_put_bytes(&datum, 1, chunk.p, chunk.len);
    for (int i = 0; i < d->n_tensors; i++) {
        CLEANUP_STR struct str entry = STR_INIT;
        proto_put_text(&entry, 1, d->tensor[i].name);
        wire_tensor_put(&entry, 2, &d->tensor[i]);
        proto_put_bytes(&datum, 2, entry.p, entry.len);
    }
    proto_put_bytes(out, 3, datum.p, datum.len);
}

/* form: 5, the old one, which has numbers alone, or 7. */
static void put_option(struct str *out, uint32_t form, const struct wire_option *o) {
    CLEANUP_STR struct str entry = STR_INIT, value = STR_INIT;
    proto_put_text(&entry, 1, o->name);
    if (form == 5) proto_put_f64(&entry, 2, o->number);
    if (form == 7 && o->text) proto_put_text(&value, 2, o->text);
    if (form == 7 && !o->text) proto_put_f64(&value, 1, o->number);
    if (form == 7) proto_put_bytes(&entry, 2, value.p, value.len);
    proto_put_bytes(out, form, entry.p, entry.len);
}

void wire_put_training(struct str *out, const struct wire_training *r) {
    proto_put_text(out, 1, r->model_id);
    proto_put_varint(out, 2, (uint64_t)r->seq_id);
    for (int i = 0; i < r->n; i++) put_datum(out, &r->datum[i]);
    proto_put_text(out, 4, r->loss_fn);
    for (int i = 0; i < r->n_options; i++)
        if (!r->option[i].text) put_option(out, 5, &r->option[i]);
    if (r->forward_only) proto_put_varint(out, 6, 1);
    for (int i = 0; i < r->n_options; i++) put_option(out, 7, &r->option[i]);
}

/* ---- zstd ---------------------------------------------------------------------------------------------------------*/

enum status wire_unzstd(const void *body, size_t n, size_t most_bytes, struct str *out, struct err *e) {
    ZSTD_DStream *z = ZSTD_createDStream();
    if (!z) return FAIL(e, ST_MEMORY, "zstd: no memory");
    ZSTD_inBuffer in = {body, n, 0};
    enum status st = ST_OK;
    size_t left = 1; /* 0: a frame has ended */
    bool full = false;
    while (st == ST_OK && (in.pos < in.size || (full && left != 0))) {
        str_reserve(out, ZSTD_DStreamOutSize());
        ZSTD_outBuffer o = {out->p + out->len, ZSTD_DStreamOutSize(), 0};
        left = ZSTD_decompressStream(z, &o, &in);
        out->len += o.pos;
        full = o.pos == o.size;
        if (ZSTD_isError(left))
            st = FAIL(e, ST_PARSE, "zstd: the body is damaged: %s", ZSTD_getErrorName(left));
        else if (out->len > most_bytes)
            st = FAIL(e, ST_INVALID, "zstd: the body has more than %zu bytes unpacked", most_bytes);
    }
    if (st == ST_OK && left != 0) st = FAIL(e, ST_PARSE, "zstd: the body does not end");
    ZSTD_freeDStream(z);
    if (out->p) out->p[out->len] = 0;
    return st;
}
