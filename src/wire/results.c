/* The two results that are protobuf: what a training call answers, and what sampling answers. */
#include <string.h>

#include "wire/tensor.h"

enum { LOGPROBS_FIELDS = 1 };

/* ---- ForwardBackwardOutput ----------------------------------------------------------------------------------------*/

static int64_t cells_of(const struct wire_output_datum *d) { return d->rows * (d->width > 0 ? d->width : 1); }

/* A BatchedTensor of the log-probabilities of datums [begin, end), all of one width. */
static void put_batched(struct str *out, const struct wire_output_datum *d, int begin, int end) {
    CLEANUP_STR struct str data = STR_INIT, offsets = STR_INIT;
    const int64_t width = d[begin].width;
    int64_t at = 0;
    str_add(&offsets, (const char *)&at, sizeof at);
    for (int i = begin; i < end; i++) {
        const size_t bytes = (size_t)cells_of(&d[i]) * sizeof(float);
        if (bytes > 0) str_add(&data, (const char *)d[i].logp, bytes);
        at += (int64_t)bytes;
        str_add(&offsets, (const char *)&at, sizeof at);
    }
    proto_put_bytes(out, 1, data.p, data.len);
    proto_put_bytes(out, 2, offsets.p, offsets.len);
    proto_put_varint(out, 3, WIRE_F32);
    if (width > 0) proto_put_i64s(out, 4, &width, 1);
}

static void put_record(struct str *out, const struct wire_output *o, int begin, int end) {
    CLEANUP_STR struct str record = STR_INIT, entry = STR_INIT, batched = STR_INIT;
    put_batched(&batched, o->datum, begin, end);
    proto_put_text(&entry, 1, "logprobs");
    proto_put_bytes(&entry, 2, batched.p, batched.len);
    proto_put_text(&record, 1, o->type);
    proto_put_bytes(&record, 2, entry.p, entry.len);
    proto_put_varint(&record, 3, (uint64_t)(end - begin));
    proto_put_bytes(out, 2, record.p, record.len);
}

void wire_put_output(struct str *out, const struct wire_output *o) {
    proto_put_text(out, 1, o->type);
    for (int begin = 0, end; begin < o->n; begin = end) {
        for (end = begin + 1; end < o->n && o->datum[end].width == o->datum[begin].width;) end++;
        put_record(out, o, begin, end);
    }
    for (int i = 0; i < o->n_metrics; i++) {
        CLEANUP_STR struct str entry = STR_INIT;
        proto_put_text(&entry, 1, o->metric[i].name);
        proto_put_f64(&entry, 2, o->metric[i].value);
        proto_put_bytes(out, 3, entry.p, entry.len);
    }
}

/* A BatchedTensor as it is read. */
struct batched {
    struct proto_field data, offsets;
    int32_t dtype;
    int64_t shape[WIRE_MAX_DIMS];
    int nd;
};
static enum status read_batched(struct proto m, struct batched *b, struct err *e) {
    struct proto_field f;
    bool there;
    *b = (struct batched){0};
    for (;;) {
        TRY(proto_next(&m, &f, &there, e));
        if (!there) break;
        if (f.number == 1 || f.number == 2) TRY(proto_expect(&m, &f, PROTO_BYTES, e));
        if (f.number == 1) b->data = f;
        if (f.number == 2) b->offsets = f;
        if (f.number == 3) TRY(proto_i32(&m, &f, &b->dtype, e));
        if (f.number == 4) TRY(proto_i64s(&m, &f, b->shape, WIRE_MAX_DIMS, &b->nd, e));
    }
    if (b->dtype != WIRE_F32) return FAIL(e, ST_PARSE, "%s: dtype %d, expected 1 (float32)", m.name, b->dtype);
    if (b->nd > 1) return FAIL(e, ST_PARSE, "%s: its datums have more than two dimensions", m.name);
    if (b->offsets.n < 8 || b->offsets.n % 8 != 0 || b->data.n % sizeof(float) != 0)
        return FAIL(e, ST_PARSE, "%s: data or offsets are no whole number of cells", m.name);
    if (b->nd == 1 && (b->shape[0] < 1 || b->shape[0] > WIRE_MAX_CELLS))
        return FAIL(e, ST_PARSE, "%s: a dimension is out of range", m.name);
    return ST_OK;
}

struct output_reader {
    struct wire_memory memory;
    struct wire_output_datum *datum;
    struct wire_metric *metric;
    int n, n_metrics, cap;
};

static enum status split(struct output_reader *r, const struct proto *m, const struct batched *b, struct err *e) {
    const int64_t width = b->nd == 1 ? b->shape[0] : 1, count = (int64_t)(b->offsets.n / 8) - 1;
    float *data = arena_alloc(r->memory.arena, b->data.n);
    if (b->data.n > 0) memcpy(data, b->data.bytes, b->data.n);
    if (r->n + count > WIRE_MAX_DATUMS) return FAIL(e, ST_PARSE, "%s: more than %d datums", m->name, WIRE_MAX_DATUMS);
    int64_t from, to;
    memcpy(&from, b->offsets.bytes, sizeof from);
    if (from != 0) return FAIL(e, ST_PARSE, "%s: offsets must begin at 0", m->name);
    for (int64_t i = 0; i < count; i++, from = to) {
        memcpy(&to, b->offsets.bytes + (size_t)(i + 1) * sizeof to, sizeof to);
        if (to < from || to > (int64_t)b->data.n || (to - from) % (width * (int64_t)sizeof(float)) != 0)
            return FAIL(e, ST_PARSE, "%s: offset %lld leads out of the data, or into a row", m->name, (long long)i + 1);
        r->datum[r->n++] = (struct wire_output_datum){data + from / 4, (to - from) / (width * (int64_t)sizeof(float)),
                                                      b->nd == 1 ? width : 0};
    }
    if (from != (int64_t)b->data.n) return FAIL(e, ST_PARSE, "%s: the offsets do not end with the data", m->name);
    return ST_OK;
}

/* The key and the value of a map's entry. */
static enum status read_entry(struct output_reader *r, const struct proto *of, const struct proto_field *f,
                              const char **key, struct proto_field *value, struct err *e) {
    struct proto m;
    struct proto_field g;
    bool there;
    *key = "";
    *value = (struct proto_field){0};
    TRY(proto_submessage(of, f, "map entry", &m, e));
    for (;;) {
        TRY(proto_next(&m, &g, &there, e));
        if (!there) return ST_OK;
        if (g.number == 1) TRY(proto_text(&m, &g, r->memory.arena, key, e));
        if (g.number == 2) *value = g;
    }
}

static enum status read_record(struct output_reader *r, const struct proto *of, const struct proto_field *f,
                               struct err *e) {
    struct proto m, tensor;
    struct proto_field g, value;
    struct batched b;
    const char *key;
    const int before = r->n;
    int64_t said = 0;
    int fields = 0;
    bool there;
    TRY(proto_submessage(of, f, "ArrayRecord", &m, e));
    for (;;) {
        TRY(proto_next(&m, &g, &there, e));
        if (!there) break;
        if (g.number == 1) TRY(proto_expect(&m, &g, PROTO_BYTES, e));
        if (g.number == 3) {
            TRY(proto_expect(&m, &g, PROTO_VARINT, e));
            said = (int64_t)g.value;
        }
        if (g.number != 2) continue;
        TRY(read_entry(r, &m, &g, &key, &value, e));
        if (strcmp(key, "logprobs") != 0 || ++fields > LOGPROBS_FIELDS)
            return FAIL(e, ST_PARSE, "ArrayRecord: the field \"%.100s\", expected \"logprobs\" alone", key);
        TRY(proto_submessage(&m, &value, "BatchedTensor", &tensor, e));
        TRY(read_batched(tensor, &b, e));
        TRY(split(r, &tensor, &b, e));
    }
    if (said != 0 && said != r->n - before)
        return FAIL(e, ST_PARSE, "ArrayRecord: num_datums is not the number of its datums");
    return ST_OK;
}

static enum status read_metric(struct output_reader *r, const struct proto *m, const struct proto_field *f,
                               struct err *e) {
    struct proto_field value;
    if (r->n_metrics == WIRE_MAX_OPTIONS) return FAIL(e, ST_PARSE, "more than %d metrics", WIRE_MAX_OPTIONS);
    struct wire_metric *out = &r->metric[r->n_metrics++];
    TRY(read_entry(r, m, f, &out->name, &value, e));
    return value.number ? proto_f64(m, &value, &out->value, e) : ST_OK;
}

enum status wire_read_output(const void *body, size_t n, struct arena *a, struct wire_output *out, struct err *e) {
    struct output_reader r = {.memory = wire_memory_make(a)};
    struct proto m = proto_message(body, n, "ForwardBackwardOutput");
    struct proto_field f;
    bool there;
    r.datum = arena_array(a, struct wire_output_datum, WIRE_MAX_DATUMS);
    r.metric = arena_array(a, struct wire_metric, WIRE_MAX_OPTIONS);
    *out = (struct wire_output){.type = ""};
    for (;;) {
        TRY(proto_next(&m, &f, &there, e));
        if (!there) break;
        if (f.number == 1) TRY(proto_text(&m, &f, a, &out->type, e));
        if (f.number == 2) TRY(read_record(&r, &m, &f, e));
        if (f.number == 3) TRY(read_metric(&r, &m, &f, e));
    }
    out->datum = r.datum;
    out->n = r.n;
    out->metric = r.metric;
    out->n_metrics = r.n_metrics;
    return ST_OK;
}

/* ---- SampleResponse -----------------------------------------------------------------------------------------------*/

static void put_topk(struct str *out, uint32_t number, const struct wire_topk *t) {
    CLEANUP_STR struct str m = STR_INIT;
    const size_t cells = (size_t)t->k * (size_t)t->length;
    if (t->k == 0) return;
    proto_put_bytes(&m, 1, t->ids, cells * sizeof *t->ids);
    proto_put_bytes(&m, 2, t->logp, cells * sizeof *t->logp);
    proto_put_varint(&m, 3, (uint64_t)t->k);
    proto_put_varint(&m, 4, (uint64_t)t->length);
    proto_put_bytes(out, number, m.p, m.len);
}

void wire_put_sample(struct str *out, const struct wire_sample *s) {
    for (int i = 0; i < s->n; i++) {
        const struct wire_sequence *q = &s->sequence[i];
        CLEANUP_STR struct str m = STR_INIT;
        if (q->by_length) proto_put_varint(&m, 1, 1);
        proto_put_bytes(&m, 2, q->ids, (size_t)q->n * sizeof *q->ids);
        if (q->logp) proto_put_bytes(&m, 3, q->logp, (size_t)q->n * sizeof *q->logp);
        put_topk(&m, 4, &q->top);
        proto_put_bytes(out, 1, m.p, m.len);
    }
    if (s->prompt_logp) proto_put_bytes(out, 2, s->prompt_logp, (size_t)s->n_prompt * sizeof *s->prompt_logp);
    put_topk(out, 3, &s->top);
    if (s->target) wire_tensor_put(out, 5, s->target);
}

static enum status read_topk(struct wire_memory *w, const struct proto *of, const struct proto_field *f,
                             struct wire_topk *out, struct err *e) {
    struct proto m;
    struct proto_field g;
    void *p = NULL;
    int64_t n_ids = 0, n_logp = 0;
    bool there;
    *out = (struct wire_topk){0};
    TRY(proto_submessage(of, f, "TopkLogprobs", &m, e));
    for (;;) {
        TRY(proto_next(&m, &g, &there, e));
        if (!there) break;
        if (g.number == 1) {
            TRY(wire_numbers(w, &m, &g, sizeof *out->ids, &p, &n_ids, e));
            out->ids = p;
        }
        if (g.number == 2) {
            TRY(wire_numbers(w, &m, &g, sizeof *out->logp, &p, &n_logp, e));
            out->logp = p;
        }
        if (g.number == 3) TRY(proto_i32(&m, &g, &out->k, e));
        if (g.number == 4) TRY(proto_i32(&m, &g, &out->length, e));
    }
    const int64_t cells = (int64_t)out->k * out->length;
    if (out->k < 0 || out->length < 0 || n_ids != cells || n_logp != cells)
        return FAIL(e, ST_PARSE, "TopkLogprobs: token_ids and logprobs do not have k times length cells");
    return ST_OK;
}

static enum status read_sequence(struct wire_memory *w, const struct proto *of, const struct proto_field *f,
                                 struct wire_sequence *out, struct err *e) {
    struct proto m;
    struct proto_field g;
    void *p = NULL;
    int64_t n_logp = 0;
    int32_t reason;
    bool there;
    *out = (struct wire_sequence){0};
    TRY(proto_submessage(of, f, "SampledSequence", &m, e));
    for (;;) {
        TRY(proto_next(&m, &g, &there, e));
        if (!there) break;
        if (g.number == 1) {
            TRY(proto_i32(&m, &g, &reason, e));
            if (reason != 0 && reason != 1)
                return FAIL(e, ST_PARSE, "SampledSequence: stop_reason %d, expected 0 (stop) or 1 (length)", reason);
            out->by_length = reason == 1;
        }
        if (g.number == 2) {
            TRY(wire_numbers(w, &m, &g, sizeof *out->ids, &p, &out->n, e));
            out->ids = p;
        }
        if (g.number == 3) {
            TRY(wire_numbers(w, &m, &g, sizeof *out->logp, &p, &n_logp, e));
            out->logp = p;
        }
        if (g.number == 4) TRY(read_topk(w, &m, &g, &out->top, e));
    }
    if (out->logp && n_logp != out->n)
        return FAIL(e, ST_PARSE, "SampledSequence: %lld tokens have %lld logprobs", (long long)out->n,
                    (long long)n_logp);
    return ST_OK;
}

struct sample_reader {
    struct wire_memory memory;
    struct wire_sequence *sequence;
    int cap;
};

static enum status add_sequence(struct sample_reader *r, const struct proto *m, const struct proto_field *f,
                                struct wire_sample *out, struct err *e) {
    if (out->n == WIRE_MAX_DATUMS) return FAIL(e, ST_PARSE, "more than %d sequences", WIRE_MAX_DATUMS);
    if (out->n == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 16;
        struct wire_sequence *more = arena_array(r->memory.arena, struct wire_sequence, r->cap);
        if (out->n > 0) memcpy(more, r->sequence, (size_t)out->n * sizeof *more);
        out->sequence = r->sequence = more;
    }
    return read_sequence(&r->memory, m, f, &r->sequence[out->n++], e);
}

static enum status take_field(struct sample_reader *r, const struct proto *m, const struct proto_field *f,
                              struct wire_sample *out, struct err *e) {
    struct proto tensor;
    void *p = NULL;
    switch (f->number) {
    case 1: return add_sequence(r, m, f, out, e);
    case 2:
        TRY(wire_numbers(&r->memory, m, f, sizeof *out->prompt_logp, &p, &out->n_prompt, e));
        out->prompt_logp = p;
        return ST_OK;
    case 3: return read_topk(&r->memory, m, f, &out->top, e);
    case 4: return proto_expect(m, f, PROTO_VARINT, e);
    case 5: {
        struct wire_tensor *t = arena_new(r->memory.arena, struct wire_tensor);
        TRY(proto_submessage(m, f, "target_prompt_logprobs", &tensor, e));
        TRY(wire_tensor_read(&r->memory, tensor, t, e));
        if (t->dtype != WIRE_F32) return FAIL(e, ST_PARSE, "target_prompt_logprobs: expected float32");
        out->target = t;
        return ST_OK;
    }
    case 6: return proto_expect(m, f, PROTO_BYTES, e);
    default: return ST_OK;
    }
}

enum status wire_read_sample(const void *body, size_t n, struct arena *a, struct wire_sample *out, struct err *e) {
    struct sample_reader r = {.memory = wire_memory_make(a)};
    struct proto m = proto_message(body, n, "SampleResponse");
    struct proto_field f;
    bool there;
    *out = (struct wire_sample){0};
    for (;;) {
        TRY(proto_next(&m, &f, &there, e));
        if (!there) return ST_OK;
        TRY(take_field(&r, &m, &f, out, e));
    }
}
