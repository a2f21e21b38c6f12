/* The three protobuf messages: bytes that the official client's encoder wrote, and bytes that nobody may write. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include <cmocka.h>

#include "wire/proto.h"
#include "wire/wire.h"

static struct arena memory;
static struct err e;

static int teardown(void **state) {
    (void)state;
    arena_free(&memory);
    return 0;
}

/* Bytes of hexadecimal digits. */
static struct str bytes_of(const char *hex) {
    struct str s = STR_INIT;
    for (size_t i = 0; hex[i]; i += 2) {
        const char pair[3] = {hex[i], hex[i + 1], 0};
        str_addc(&s, (char)strtoul(pair, NULL, 16));
    }
    return s;
}

#define REQUEST                                                                                                        \
    "0a09733a747261696e3a3010011a540a0c0a0a0a08050000000600000012280a0d7461726765745f746f6b656e7312170a10060000000000" \
    "000007000000000000001802220102121a0a0777656967687473120f0a080000803f0000003f1801220102220d63726f73735f656e74726f" \
    "7079"
#define OPTIONS                                                                                                        \
    "0a016d10ac02220370706f2a1d0a12636c69705f6c6f775f7468726573686f6c64119a9999999999e93f3a1f0a12636c69705f6c6f775f74" \
    "68726573686f6c641209099a9999999999e93f"
#define CSR                                                                       \
    "122e0a080700000000000000121800000000000000000100000000000000010000000000000" \
    "01a080200000000000000180222020203"
#define OUTPUT                                                                                                         \
    "0a015812310a0158122a0a086c6f6770726f6273121e0a08000080bf000000c0121000000000000000000800000000000000180118011a13" \
    "0a086c6f73733a73756d110000000000000040"
#define SAMPLE "0a160801120805000000060000001a08000080bf000000c012080000c07f000000bf"

static enum status read_request(const struct str *s, struct wire_training *out) {
    e = (struct err){0};
    arena_reset(&memory);
    return wire_read_training(s->p, s->len, &memory, out, &e);
}

static void test_request_of_the_client(void **state) {
    (void)state;
    CLEANUP_STR struct str s = bytes_of(REQUEST);
    struct wire_training r;
    assert_int_equal(s.len, 114);
    assert_int_equal(read_request(&s, &r), ST_OK);
    assert_string_equal(r.model_id, "s:train:0");
    assert_string_equal(r.loss_fn, "cross_entropy");
    assert_true(r.seq_id == 1 && !r.forward_only && r.n == 1 && r.n_options == 0);
    const struct wire_datum *d = &r.datum[0];
    assert_true(d->n == 2 && d->ids[0] == 5 && d->ids[1] == 6 && d->other == WIRE_NOTHING && !d->provenance);
    assert_int_equal(d->n_tensors, 2);
    const struct wire_tensor *t = &d->tensor[0], *w = &d->tensor[1];
    assert_string_equal(t->name, "target_tokens");
    assert_true(t->dtype == WIRE_I64 && t->nd == 1 && t->dim[0] == 2 && t->n == 2 && t->i[0] == 6 && t->i[1] == 7);
    assert_string_equal(w->name, "weights");
    assert_true(w->dtype == WIRE_F32 && w->n == 2 && w->f[0] == 1 && w->f[1] == 0.5F);
    CLEANUP_STR struct str forward = bytes_of(REQUEST "3001");
    assert_int_equal(read_request(&forward, &r), ST_OK);
    assert_true(r.forward_only);
}

static void test_options_of_the_client(void **state) {
    (void)state;
    CLEANUP_STR struct str s = bytes_of(OPTIONS);
    struct wire_training r;
    assert_int_equal(s.len, 75);
    assert_int_equal(read_request(&s, &r), ST_OK);
    assert_true(r.seq_id == 300 && r.n == 0 && r.n_options == 1 && !r.option[0].text);
    assert_string_equal(r.option[0].name, "clip_low_threshold");
    assert_true(r.option[0].number == 0.8);
    CLEANUP_STR struct str old = bytes_of("2a0c0a01781100000000000000c0"); /* field 5 alone: x = -2 */
    assert_int_equal(read_request(&old, &r), ST_OK);
    assert_true(r.n_options == 1 && r.option[0].number == -2);
    CLEANUP_STR struct str text = bytes_of("3a0b0a076c6f73735f69641200"
                                           "3a080a01791203120161");
    assert_int_equal(read_request(&text, &r), ST_OK);
    assert_true(r.n_options == 2 && !r.option[0].text && r.option[0].number == 0);
    assert_string_equal(r.option[1].text, "a");
}

/* The client's bytes come out of what was read of them. */
static void test_requests_are_written_as_the_client_does(void **state) {
    static const char *const all[] = {REQUEST, REQUEST "3001", OPTIONS};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        CLEANUP_STR struct str s = bytes_of(all[i]), again = STR_INIT;
        struct wire_training r;
        assert_int_equal(read_request(&s, &r), ST_OK);
        wire_put_training(&again, &r);
        assert_int_equal(again.len, s.len);
        assert_memory_equal(again.p, s.p, s.len);
    }
}

static void test_a_request_comes_back(void **state) {
    (void)state;
    CLEANUP_STR struct str s = STR_INIT;
    int32_t ids[3] = {7, 0, INT32_MAX};
    int64_t targets[3] = {0, -1, INT64_MAX};
    float weights[3] = {-0.0F, 0, 1e-40F};
    struct wire_tensor t[2] = {{.name = "target_tokens", .dtype = WIRE_I64, .nd = 1, .dim = {3}, .n = 3, .i = targets},
                               {.name = "weights", .dtype = WIRE_F32, .nd = 2, .dim = {1, 3}, .n = 3, .f = weights}};
    struct wire_datum d[2] = {{.ids = ids, .n = 3, .tensor = t, .n_tensors = 2}, {.ids = ids, .n = 1}};
    struct wire_option o[2] = {{"beta", NULL, -0.5}, {"loss_id", "abc", 0}};
    struct wire_training r, w = {.model_id = "m",
                                 .loss_fn = "dro",
                                 .seq_id = INT32_MAX,
                                 .forward_only = true,
                                 .datum = d,
                                 .n = 2,
                                 .option = o,
                                 .n_options = 2};
    wire_put_training(&s, &w);
    assert_int_equal(read_request(&s, &r), ST_OK);
    assert_true(r.seq_id == INT32_MAX && r.forward_only && r.n == 2 && r.n_options == 2);
    assert_string_equal(r.model_id, "m");
    assert_string_equal(r.loss_fn, "dro");
    assert_true(r.option[0].number == -0.5 && !r.option[0].text);
    assert_string_equal(r.option[1].text, "abc");
    assert_true(r.datum[0].n == 3 && r.datum[1].n == 1 && r.datum[1].n_tensors == 0);
    assert_memory_equal(r.datum[0].ids, ids, sizeof ids);
    assert_memory_equal(r.datum[0].tensor[0].i, targets, sizeof targets);
    assert_memory_equal(r.datum[0].tensor[1].f, weights, sizeof weights);
    assert_true(r.datum[0].tensor[1].nd == 2 && r.datum[0].tensor[1].dim[1] == 3);
}

/* A request of one datum with the tensor "t" of these bytes. */
static struct str request_of_tensor(const char *hex) {
    CLEANUP_STR struct str tensor = bytes_of(hex), entry = STR_INIT, datum = STR_INIT;
    struct str request = STR_INIT;
    proto_put_text(&entry, 1, "t");
    proto_put_bytes(&entry, 2, tensor.p, tensor.len);
    proto_put_bytes(&datum, 2, entry.p, entry.len);
    proto_put_bytes(&request, 3, datum.p, datum.len);
    return request;
}

static void test_csr_of_the_client(void **state) {
    (void)state;
    CLEANUP_STR struct str s = request_of_tensor(CSR);
    struct wire_training r;
    assert_int_equal(read_request(&s, &r), ST_OK);
    const struct wire_tensor *t = &r.datum[0].tensor[0];
    const int64_t want[6] = {0, 0, 7};
    assert_true(t->nd == 2 && t->dim[0] == 2 && t->dim[1] == 3 && t->n == 6);
    assert_memory_equal(t->i, want, sizeof want);
}

static void refuses_tensor(const char *hex, const char *words) {
    CLEANUP_STR struct str s = request_of_tensor(hex);
    struct wire_training r;
    if (read_request(&s, &r) != ST_PARSE) fail_msg("%s was taken", hex);
    if (!strstr(e.msg, words)) fail_msg("%s: \"%s\", expected \"%s\"", hex, e.msg, words);
}

static void test_tensors_that_are_refused(void **state) {
    (void)state;
    refuses_tensor("0a0400000000", "dtype 0");
    refuses_tensor("0a0400000000"
                   "1804",
                   "dtype 4");
    refuses_tensor("0a03000000"
                   "1801",
                   "no whole number of cells");
    refuses_tensor("0a0400000000"
                   "1801"
                   "220102",
                   "its shape has 2 cells, its data 1");
    refuses_tensor("0a0400000000"
                   "1801"
                   "220affffffffffffffffff01",
                   "negative");
    refuses_tensor("1801"
                   "2212"
                   "ffffffffffffffff7f"
                   "ffffffffffffffff7f",
                   "more cells than can be counted");
    refuses_tensor("1801"
                   "22050101010101",
                   "more than 4 numbers");
    /* CSR of 1 x 2^40 cells with nothing in it, of no shape, and with indices that lead astray */
    refuses_tensor("1212"
                   "1210"
                   "00000000000000000000000000000000"
                   "1801"
                   "2207"
                   "01"
                   "808080808020",
                   "more than");
    refuses_tensor("1212"
                   "1210"
                   "00000000000000000000000000000000"
                   "1801",
                   "two dimensions");
    refuses_tensor("1208"
                   "1206000000000000"
                   "1801"
                   "22020102",
                   "crow_indices has 6 bytes");
#define CSR_1X2(crow, column)        \
    "1222"                           \
    "0a040000803f"                   \
    "1210" crow "1a08" column "1801" \
    "22020102"
    refuses_tensor(CSR_1X2("00000000000000000100000000000000", "0200000000000000"), "must rise and lie below 2");
    refuses_tensor(CSR_1X2("00000000000000000100000000000000", "ffffffffffffffff"), "must rise and lie below 2");
    refuses_tensor(CSR_1X2("01000000000000000100000000000000", "0000000000000000"), "must begin at 0");
    refuses_tensor(CSR_1X2("00000000000000000200000000000000", "0000000000000000"), "end at the number");
    refuses_tensor("121c"
                   "0a080000803f0000803f"
                   "1210"
                   "00000000000000000200000000000000"
                   "1801"
                   "22020102",
                   "same number");
    refuses_tensor("1232"
                   "0a040000803f"
                   "1220"
                   "0000000000000000"
                   "0500000000000000"
                   "fbffffffffffffff"
                   "0100000000000000"
                   "1a080000000000000000"
                   "1801"
                   "22020302",
                   "lead out");
}

static void refuses(const char *hex, const char *words) {
    CLEANUP_STR struct str s = bytes_of(hex);
    struct wire_training r;
    if (read_request(&s, &r) != ST_PARSE) fail_msg("%s was taken", hex);
    if (!strstr(e.msg, words)) fail_msg("%s: \"%s\", expected \"%s\"", hex, e.msg, words);
}

static void test_requests_that_are_refused(void **state) {
    (void)state;
    refuses("0a", "does not end");
    refuses("0a0561", "leads out");
    refuses("0aff", "does not end");
    refuses("00", "number that there is not");
    refuses("0b", "group");
    refuses("0801", "wire type 0, expected 2");
    refuses("1201", "leads out");
    refuses("120161", "wire type 2, expected 0");
    refuses("10ffffffff0f", "more than 32 bits");
    refuses("10ffffffffffffffffff02", "more than 64 bits");
    refuses("0a01ff", "UTF-8");
    refuses("0a0100", "UTF-8");
    refuses("1a020a00", "neither tokens");
    refuses("1a070a050a030a0101", "a multiple of 4");
    refuses("2a030a01782a030a0178", "twice");
    refuses("1a0512030a0161", "dtype"); /* an entry without a value is a tensor without a type */
    refuses("1a12"
            "1207"
            "0a0161"
            "12021801"
            "1207"
            "0a0161"
            "12021801",
            "twice");
}

/* Each cut and each single wrong byte of a request is read or refused, and nothing is read beyond its end. */
static void test_damage(void **state) {
    (void)state;
    CLEANUP_STR struct str s = bytes_of(REQUEST);
    struct wire_training r;
    int fine = 0;
    for (size_t n = 0; n < s.len; n++) {
        char *part = malloc(n ? n : 1);
        memcpy(part, s.p, n);
        arena_reset(&memory);
        fine += wire_read_training(part, n, &memory, &r, &e) == ST_OK;
        free(part);
    }
    assert_int_equal(fine, 4); /* nothing; behind model_id, seq_id and the datum */
    for (size_t i = 0; i < s.len; i++)
        for (int b = 0; b < 8; b++) {
            s.p[i] = (char)(s.p[i] ^ (1 << b));
            if (read_request(&s, &r) == ST_OK) assert_true(r.n <= 2);
            s.p[i] = (char)(s.p[i] ^ (1 << b));
        }
}

static void test_unknown_fields_are_skipped(void **state) {
    (void)state;
    CLEANUP_STR struct str s = bytes_of("7801"
                                        "7a0161"
                                        "7d00000000"
                                        "790000000000000000" REQUEST "f20702abcd");
    struct wire_training r;
    assert_int_equal(read_request(&s, &r), ST_OK);
    assert_true(r.n == 1 && r.seq_id == 1);
    /* a shape that is not packed, provenance spans, an image among the chunks, two texts */
    CLEANUP_STR struct str t = bytes_of("1a2b"
                                        "0a08"
                                        "0a060a0401000000"
                                        "0a04"
                                        "12020a00"
                                        "0a08"
                                        "0a060a0402000000"
                                        "1205"
                                        "0a03"
                                        "616263"
                                        "1a00"
                                        "2200"
                                        "1200");
    assert_int_equal(read_request(&t, &r), ST_PARSE); /* a tensor without a type */
    CLEANUP_STR struct str u = bytes_of("1a1e"
                                        "0a08"
                                        "0a060a0401000000"
                                        "0a04"
                                        "12020a00"
                                        "0a08"
                                        "0a060a0402000000"
                                        "1a00"
                                        "2200");
    assert_int_equal(read_request(&u, &r), ST_OK);
    assert_true(r.datum[0].n == 2 && r.datum[0].ids[0] == 1 && r.datum[0].ids[1] == 2);
    assert_true(r.datum[0].other == WIRE_IMAGE && r.datum[0].provenance);
    CLEANUP_STR struct str v = request_of_tensor("0a080000803f00000040"
                                                 "1801"
                                                 "2001"
                                                 "2002");
    assert_int_equal(read_request(&v, &r), ST_OK);
    assert_true(r.datum[0].tensor[0].nd == 2 && r.datum[0].tensor[0].f[1] == 2);
}

/* ---- results ------------------------------------------------------------------------------------------------------*/

static void test_output(void **state) {
    (void)state;
    CLEANUP_STR struct str want = bytes_of(OUTPUT), got = STR_INIT, more = STR_INIT;
    const float logp[] = {-1, -2, -3, -4, -5, -6};
    const struct wire_output_datum one = {logp, 2, 0};
    const struct wire_metric metric = {"loss:sum", 2};
    wire_put_output(&got, &(struct wire_output){"X", &one, 1, &metric, 1});
    assert_int_equal(got.len, want.len);
    assert_memory_equal(got.p, want.p, want.len);
    struct wire_output o;
    arena_reset(&memory);
    assert_int_equal(wire_read_output(want.p, want.len, &memory, &o, &e), ST_OK);
    assert_string_equal(o.type, "X");
    assert_true(o.n == 1 && o.datum[0].rows == 2 && o.datum[0].width == 0 && o.datum[0].logp[1] == -2);
    assert_true(o.n_metrics == 1 && o.metric[0].value == 2);
    assert_string_equal(o.metric[0].name, "loss:sum");
    /* another width begins a record of its own */
    const struct wire_output_datum mixed[] = {{logp, 1, 0}, {logp + 1, 1, 0}, {logp + 2, 2, 2}, {logp, 1, 1}};
    wire_put_output(&more, &(struct wire_output){"", mixed, 4, NULL, 0});
    assert_int_equal(wire_read_output(more.p, more.len, &memory, &o, &e), ST_OK);
    assert_true(o.n == 4 && o.n_metrics == 0 && o.datum[1].logp[0] == -2 && o.datum[1].width == 0);
    assert_true(o.datum[2].rows == 2 && o.datum[2].width == 2 && o.datum[2].logp[3] == -6 && o.datum[3].width == 1);
}

static void refuses_output(const char *batched, const char *words) {
    CLEANUP_STR struct str tensor = bytes_of(batched), entry = STR_INIT, record = STR_INIT, s = STR_INIT;
    struct wire_output o;
    proto_put_text(&entry, 1, "logprobs");
    proto_put_bytes(&entry, 2, tensor.p, tensor.len);
    proto_put_bytes(&record, 2, entry.p, entry.len);
    proto_put_bytes(&s, 2, record.p, record.len);
    arena_reset(&memory);
    e = (struct err){0};
    if (wire_read_output(s.p, s.len, &memory, &o, &e) != ST_PARSE) fail_msg("%s was taken", batched);
    if (!strstr(e.msg, words)) fail_msg("%s: \"%s\", expected \"%s\"", batched, e.msg, words);
}

static void test_outputs_that_are_refused(void **state) {
    (void)state;
    refuses_output("0a0400000000"
                   "1210"
                   "00000000000000000400000000000000",
                   "dtype 0");
    refuses_output("0a0400000000"
                   "1801",
                   "no whole number");
    refuses_output("0a0400000000"
                   "1210"
                   "00000000000000000800000000000000"
                   "1801",
                   "leads out");
    refuses_output("0a0400000000"
                   "1210"
                   "00000000000000000200000000000000"
                   "1801",
                   "into a row");
    refuses_output("0a0400000000"
                   "1210"
                   "01000000000000000400000000000000"
                   "1801",
                   "must begin at 0");
    refuses_output("0a0400000000"
                   "1210"
                   "00000000000000000000000000000000"
                   "1801",
                   "do not end");
    refuses_output("0a0400000000"
                   "1210"
                   "00000000000000000400000000000000"
                   "1801"
                   "220100",
                   "out of range");
    refuses_output("0a0400000000"
                   "1210"
                   "00000000000000000400000000000000"
                   "1801"
                   "22020101",
                   "two dimensions");
}

static void test_sample(void **state) {
    (void)state;
    CLEANUP_STR struct str want = bytes_of(SAMPLE), got = STR_INIT, more = STR_INIT;
    const int32_t ids[] = {5, 6, 7, 8};
    const uint32_t quiet = 0x7fc00000; /* the NaN that the vector has */
    float logp[] = {-1, -2, 0, -0.5F};
    memcpy(&logp[2], &quiet, sizeof quiet);
    const struct wire_sequence q = {.by_length = true, .ids = ids, .logp = logp, .n = 2};
    wire_put_sample(&got, &(struct wire_sample){.sequence = &q, .n = 1, .prompt_logp = logp + 2, .n_prompt = 2});
    assert_int_equal(got.len, want.len);
    assert_memory_equal(got.p, want.p, want.len);
    struct wire_sample s;
    arena_reset(&memory);
    assert_int_equal(wire_read_sample(want.p, want.len, &memory, &s, &e), ST_OK);
    assert_true(s.n == 1 && s.sequence[0].by_length && s.sequence[0].n == 2 && s.sequence[0].ids[1] == 6);
    assert_true(s.sequence[0].logp[1] == -2 && s.n_prompt == 2 && isnan(s.prompt_logp[0]));
    assert_true(s.prompt_logp[1] == -0.5F && s.top.k == 0 && !s.target);
    /* all that there may be */
    const struct wire_topk top = {ids, logp, 2, 2};
    const struct wire_tensor target = {.dtype = WIRE_F32, .nd = 2, .dim = {2, 2}, .n = 4, .f = logp};
    const struct wire_sequence two[] = {{.ids = ids, .n = 1, .top = {ids, logp, 1, 1}}, q};
    wire_put_sample(&more, &(struct wire_sample){.sequence = two, .n = 2, .top = top, .target = &target});
    assert_int_equal(wire_read_sample(more.p, more.len, &memory, &s, &e), ST_OK);
    assert_true(s.n == 2 && !s.sequence[0].by_length && !s.sequence[0].logp && s.sequence[0].top.k == 1);
    assert_true(s.top.k == 2 && s.top.length == 2 && s.top.ids[3] == 8 && s.target->dim[1] == 2);
    assert_true(s.target->f[3] == -0.5F && !s.prompt_logp);
}

static void test_samples_that_are_refused(void **state) {
    (void)state;
    static const char *const wrong[] = {
        "0a020802",                   /* a reason to stop that there is not */
        "0a0b1204050000001a03000080", /* half a number */
        "0a0e120405000000"
        "1a08000080bf000000c0", /* more log-probabilities than tokens; too short, too */
        "1a0618ffffffff0f",     /* a negative k, or too large */
        "1a0418022001",         /* cells that are missing */
        "2a00",                 /* a tensor without a type */
    };
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        CLEANUP_STR struct str s = bytes_of(wrong[i]);
        struct wire_sample out;
        arena_reset(&memory);
        if (wire_read_sample(s.p, s.len, &memory, &out, &e) != ST_PARSE) fail_msg("%s was taken", wrong[i]);
    }
}

/* ---- zstd ---------------------------------------------------------------------------------------------------------*/

static void test_zstd(void **state) {
    (void)state;
    enum { N = 300000, ROOM = N + 4096 };
    char *plain = malloc(N), *packed = malloc(2 * ROOM);
    for (int i = 0; i < N; i++) plain[i] = (char)((unsigned)i * (unsigned)i >> 3);
    size_t n = ZSTD_compress(packed, ROOM, plain, N, 3);
    struct str out = STR_INIT;
    assert_int_equal(wire_unzstd(packed, n, N, &out, &e), ST_OK);
    assert_int_equal(out.len, N);
    assert_memory_equal(out.p, plain, N);
    memcpy(packed + n, packed, n); /* two frames */
    str_clear(&out);
    assert_int_equal(wire_unzstd(packed, 2 * n, 2 * N, &out, &e), ST_OK);
    assert_int_equal(out.len, 2 * N);
    str_clear(&out);
    assert_int_equal(wire_unzstd(packed, n, N - 1, &out, &e), ST_INVALID);
    str_clear(&out);
    assert_int_equal(wire_unzstd(packed, n - 1, N, &out, &e), ST_PARSE);
    str_clear(&out);
    assert_int_equal(wire_unzstd(plain, 100, N, &out, &e), ST_PARSE);
    str_clear(&out);
    assert_int_equal(wire_unzstd("", 0, N, &out, &e), ST_PARSE);
    for (size_t at = 0; at < n; at += 97) { /* a wrong bit is an error, or another text of at most N bytes */
        packed[at] = (char)(packed[at] ^ 4);
        str_clear(&out);
        if (wire_unzstd(packed, n, N, &out, &e) == ST_OK) assert_true(out.len <= N);
        packed[at] = (char)(packed[at] ^ 4);
    }
    str_free(&out);
    free(plain);
    free(packed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_request_of_the_client),
        cmocka_unit_test(test_options_of_the_client),
        cmocka_unit_test(test_requests_are_written_as_the_client_does),
        cmocka_unit_test(test_a_request_comes_back),
        cmocka_unit_test(test_csr_of_the_client),
        cmocka_unit_test(test_tensors_that_are_refused),
        cmocka_unit_test(test_requests_that_are_refused),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_unknown_fields_are_skipped),
        cmocka_unit_test(test_output),
        cmocka_unit_test(test_outputs_that_are_refused),
        cmocka_unit_test(test_sample),
        cmocka_unit_test(test_samples_that_are_refused),
        cmocka_unit_test(test_zstd),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
