#include "io/safetensors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/str.h"

static char dir[] = "/tmp/kernelrl_st_XXXXXX";
static char path[80];
static struct err e;

/* Writes a file from a header text and some data bytes. */
static void put_file(const char *file, const char *header, uint64_t header_bytes, const void *data, size_t n) {
    CLEANUP_STR struct str s = STR_INIT;
    str_add(&s, (const char *)&header_bytes, 8);
    str_adds(&s, header);
    str_add(&s, data, n);
    assert_int_equal(fs_write_atomic(file, s.p, s.len, &e), ST_OK);
}

static void writes_and_reads(void **state) {
    (void)state;
    static const float f[6] = {0, 1, -2.5f, 3.14159274f, 1e30f, -0.0f};
    static const int64_t i64[2] = {-5, INT64_C(1) << 40};
    static const uint8_t u8[3] = {1, 2, 255};
    static const int32_t i32[2] = {7, -7};
    const struct st_entry entries[] = {
        {"u8", ST_DTYPE_U8, ST_DTYPE_U8, 1, {3}, u8}, /* odd size first: the layout must still align the others */
        {"f32", ST_DTYPE_F32, ST_DTYPE_F32, 2, {2, 3}, f},
        {"bf16", ST_DTYPE_BF16, ST_DTYPE_F32, 2, {3, 2}, f},
        {"f16", ST_DTYPE_F16, ST_DTYPE_F32, 1, {4}, f},
        {"i64", ST_DTYPE_I64, ST_DTYPE_I64, 1, {2}, i64},
        {"i32", ST_DTYPE_I32, ST_DTYPE_I32, 1, {2}, i32},
        {"scalar \"q\" \xc3\xa9", ST_DTYPE_F32, ST_DTYPE_F32, 0, {0}, f + 3},
        {"empty", ST_DTYPE_F32, ST_DTYPE_F32, 2, {0, 5}, f},
    };
    const char *metadata[] = {"step", "12", NULL};
    assert_int_equal(st_write(path, entries, ARRAY_LEN(entries), metadata, &e), ST_OK);
    struct st_file file;
    assert_int_equal(st_open(path, &file, &e), ST_OK);
    assert_int_equal(file.count, ARRAY_LEN(entries));
    for (size_t i = 0; i < file.count; i++) {
        assert_true(st_is_aligned(&file.tensor[i]));
        assert_ptr_equal(st_find(&file, file.tensor[i].name), &file.tensor[i]);
    }
    assert_string_equal(st_metadata(&file, "format"), "pt");
    assert_string_equal(st_metadata(&file, "step"), "12");
    assert_null(st_metadata(&file, "nothing"));

    float out[6];
    const struct st_tensor *t = NULL;
    assert_int_equal(st_get(&file, "f32", 2, (int64_t[]){2, 3}, &t, &e), ST_OK);
    assert_int_equal(st_read_f32(t, out, &e), ST_OK);
    assert_memory_equal(out, f, sizeof f);
    t = st_find(&file, "bf16");
    assert_int_equal(st_read_f32(t, out, &e), ST_OK);
    for (int i = 0; i < 6; i++) assert_true(out[i] == st_bf16_to_f32(st_f32_to_bf16(f[i])));
    assert_true(out[3] == 3.140625f);
    uint16_t bits[6];
    assert_int_equal(st_read_bf16(st_find(&file, "f32"), bits, &e), ST_OK);
    assert_memory_equal(bits, t->data, sizeof bits);
    assert_int_equal(st_read_f32(st_find(&file, "f16"), out, &e), ST_OK);
    assert_true(out[2] == -2.5f && out[3] == 3.140625f);
    int64_t ints[3];
    assert_int_equal(st_read_i64(st_find(&file, "i64"), ints, &e), ST_OK);
    assert_memory_equal(ints, i64, sizeof i64);
    assert_int_equal(st_read_i64(st_find(&file, "i32"), ints, &e), ST_OK);
    assert_true(ints[1] == -7);
    assert_int_equal(st_read_i64(st_find(&file, "u8"), ints, &e), ST_OK);
    assert_true(ints[2] == 255);
    t = st_find(&file, "scalar \"q\" \xc3\xa9");
    assert_non_null(t);
    assert_true(t->nd == 0 && t->numel == 1);
    assert_int_equal(st_find(&file, "empty")->bytes, 0);

    assert_int_equal(st_get(&file, "f32", 2, (int64_t[]){3, 2}, &t, &e), ST_INVALID);
    assert_non_null(strstr(e.msg, "tensor \"f32\": expected shape [3, 2], got [2, 3]"));
    assert_int_equal(st_get(&file, "nope", 1, (int64_t[]){1}, &t, &e), ST_INVALID);
    assert_non_null(strstr(e.msg, "no tensor \"nope\""));
    assert_int_equal(st_read_f32(st_find(&file, "u8"), out, &e), ST_INVALID);
    assert_int_equal(st_read_i64(st_find(&file, "f32"), ints, &e), ST_INVALID);
    st_close(&file);
    st_close(&file);

    /* Equal input, equal bytes. */
    char *a, *b;
    size_t na, nb;
    assert_int_equal(fs_read(path, 1 << 20, &a, &na, &e), ST_OK);
    assert_int_equal(st_write(path, entries, ARRAY_LEN(entries), metadata, &e), ST_OK);
    assert_int_equal(fs_read(path, 1 << 20, &b, &nb, &e), ST_OK);
    assert_int_equal(na, nb);
    assert_memory_equal(a, b, na);
    free(a);
    free(b);
}

struct fetched {
    float value[4];
    int calls, fail_at;
};

static enum status fetch(void *ctx, size_t i, const void **data, struct err *err) {
    struct fetched *x = ctx;
    if (x->calls++ == x->fail_at) return FAIL(err, ST_DEVICE, "the device is gone");
    for (int k = 0; k < 4; k++) x->value[k] = (float)(10 * i) + (float)k;
    *data = x->value;
    return ST_OK;
}

/* Tensors that are fetched one by one into the same buffer give the file that tensors in memory give. */
static void write_fetched(void **state) {
    (void)state;
    static const float f[3][4] = {{0, 1, 2, 3}, {10, 11, 12, 13}, {20, 21, 22, 23}};
    struct st_entry x[3] = {{"b", ST_DTYPE_BF16, ST_DTYPE_F32, 1, {4}, f[0]}, /* comes last: the smallest elements */
                            {"a", ST_DTYPE_F32, ST_DTYPE_F32, 2, {2, 2}, f[1]},
                            {"c", ST_DTYPE_F32, ST_DTYPE_F32, 1, {4}, f[2]}};
    char *want, *got;
    size_t n, m;
    assert_int_equal(st_write(path, x, 3, NULL, &e), ST_OK);
    assert_int_equal(fs_read(path, 1 << 20, &want, &n, &e), ST_OK);
    for (int i = 0; i < 3; i++) x[i].data = NULL;
    struct fetched src = {.fail_at = -1};
    assert_int_equal(st_write_fetched(path, x, 3, NULL, fetch, &src, &e), ST_OK);
    assert_int_equal(src.calls, 3);
    assert_int_equal(fs_read(path, 1 << 20, &got, &m, &e), ST_OK);
    assert_int_equal(n, m);
    assert_memory_equal(want, got, n);
    free(got);
    /* A failure ends the writing and leaves the old file. */
    src = (struct fetched){.fail_at = 1};
    assert_int_equal(st_write_fetched(path, x, 3, NULL, fetch, &src, &e), ST_DEVICE);
    assert_string_equal(e.msg, "the device is gone");
    assert_int_equal(fs_read(path, 1 << 20, &got, &m, &e), ST_OK);
    assert_int_equal(n, m);
    assert_memory_equal(want, got, n);
    free(want);
    free(got);
}

static void write_errors(void **state) {
    (void)state;
    float f[4] = {0};
    struct st_entry x[2] = {{"a", ST_DTYPE_F32, ST_DTYPE_F32, 1, {4}, f}, {"a", ST_DTYPE_F32, ST_DTYPE_F32, 1, {4}, f}};
    assert_int_equal(fs_remove(path, &e), ST_OK);
    assert_int_equal(st_write(path, x, 2, NULL, &e), ST_INVALID);
    x[0].from = ST_DTYPE_I32;
    assert_int_equal(st_write(path, x, 1, NULL, &e), ST_INVALID);
    x[0] = (struct st_entry){"a", ST_DTYPE_F32, ST_DTYPE_F32, 2, {INT64_C(1) << 40, INT64_C(1) << 40}, f};
    assert_int_equal(st_write(path, x, 1, NULL, &e), ST_INVALID);
    x[0] = (struct st_entry){"\xff", ST_DTYPE_F32, ST_DTYPE_F32, 1, {4}, f};
    assert_int_equal(st_write(path, x, 1, NULL, &e), ST_INVALID);
    x[0] = (struct st_entry){"__metadata__", ST_DTYPE_F32, ST_DTYPE_F32, 1, {4}, f};
    assert_int_equal(st_write(path, x, 1, NULL, &e), ST_INVALID);
    assert_false(fs_is_file(path));
    x[0].name = "a";
    assert_int_equal(st_write("/nonexistent/dir/x", x, 1, NULL, &e), ST_IO);
    /* Nothing stays behind of the failed ones. */
    char **names;
    size_t n;
    assert_int_equal(fs_list(dir, &names, &n, &e), ST_OK);
    for (size_t i = 0; i < n; i++) {
        assert_null(strstr(names[i], ".tmp"));
        free(names[i]);
    }
    free(names);
}

/* Each header with 8 data bytes behind it; the message must name the file and hold the text. */
static void hostile_files(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t data_bytes;
        enum status code;
        const char *message;
    } cases[] = {
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, ST_PARSE, "\"a\": data_offsets [0, 8]"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, ST_PARSE, "1 data bytes belong to no"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, ST_PARSE,
         "\"a\": shape and dtype need 3 x 4 bytes, data_offsets give 8"},
        {"{\"a\":{\"dtype\":\"F99\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, ST_UNSUPPORTED, "\"a\": unknown dtype"},
        {"{\"a\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, ST_PARSE, "\"a\": dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8, ST_PARSE, "\"a\": shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, ST_PARSE, "\"a\": shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8, ST_PARSE, "\"a\": shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,4],\"data_offsets\":[0,8]}}", 8, ST_PARSE,
         "\"a\": shape: the number of elements overflows"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387906],\"data_offsets\":[0,8]}}", 8, ST_PARSE,
         "\"a\": shape and dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", 8, ST_UNSUPPORTED,
         "9 dimensions"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, ST_PARSE, "\"a\": data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, ST_PARSE, "\"a\": data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, ST_PARSE,
         "\"a\": data_offsets: expected"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, ST_PARSE, "\"a\": data_offsets: expected"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[3,8]}}",
         8, ST_PARSE, "\"b\": begins at data byte 3, inside another tensor"},
        {"{\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[5,8]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
         8, ST_PARSE, "\"b\": begins at data byte 5, after a gap"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[8,8]}}",
         8, ST_PARSE, "duplicate"},
        {"{\"a\":[]}", 0, ST_PARSE, "\"a\": expected an object"},
        {"[]", 0, ST_PARSE, "expected a JSON object"},
        {"{\"__metadata__\":{\"a\":1}}", 0, ST_PARSE, "__metadata__: a: expected a string"},
        {"{\"__metadata__\":7}", 0, ST_PARSE, "__metadata__"},
        {"{\"a\"", 0, ST_PARSE, "header: byte"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,8]}}", 8, ST_PARSE, "header"},
        {"", 0, ST_PARSE, "header"},
    };
    static const char zeros[16];
    struct st_file f;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        put_file(path, cases[i].header, strlen(cases[i].header), zeros, cases[i].data_bytes);
        enum status st = st_open(path, &f, &e);
        if (st != cases[i].code || !strstr(e.msg, cases[i].message) || !strstr(e.msg, path))
            fail_msg("case %zu: %s: %s", i, status_name(st), e.msg);
        assert_null(f.tensor);
    }
    /* The same header, whole, is fine: the cases above fail for the reason they name. */
    static const char good[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
    put_file(path, good, strlen(good), zeros, 8);
    assert_int_equal(st_open(path, &f, &e), ST_OK);
    st_close(&f);
    put_file(path, "{}", UINT64_MAX, NULL, 0);
    assert_int_equal(st_open(path, &f, &e), ST_PARSE);
    assert_non_null(strstr(e.msg, "the limit is 100000000"));
    put_file(path, "{}", 3, NULL, 0);
    assert_int_equal(st_open(path, &f, &e), ST_PARSE);
    assert_non_null(strstr(e.msg, "truncated"));
    assert_int_equal(fs_write_atomic(path, "1234567", 7, &e), ST_OK);
    assert_int_equal(st_open(path, &f, &e), ST_PARSE);
    assert_int_equal(fs_write_atomic(path, "", 0, &e), ST_OK);
    assert_int_equal(st_open(path, &f, &e), ST_PARSE);
    assert_int_equal(st_open(dir, &f, &e), ST_IO);
}

/* A file cut at any byte is refused. */
static void truncation_is_noticed(void **state) {
    (void)state;
    float v[3] = {1, 2, 3};
    struct st_entry x = {"w", ST_DTYPE_F32, ST_DTYPE_F32, 1, {3}, v};
    assert_int_equal(st_write(path, &x, 1, NULL, &e), ST_OK);
    char *whole;
    size_t len;
    assert_int_equal(fs_read(path, 1 << 20, &whole, &len, &e), ST_OK);
    struct st_file f;
    for (size_t n = 0; n < len; n++) {
        assert_int_equal(fs_write_atomic(path, whole, n, &e), ST_OK);
        assert_int_equal(st_open(path, &f, &e), ST_PARSE);
    }
    free(whole);
}

/* Tensors at odd addresses, as a foreign writer may place them. */
static void unaligned_data(void **state) {
    (void)state;
    unsigned char data[9] = {0};
    float one[2] = {1.5f, -2};
    memcpy(data + 1, one, sizeof one);
    static const char h[] = "{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                            "\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[1,9]}}";
    put_file(path, h, strlen(h), data, sizeof data);
    struct st_file f;
    assert_int_equal(st_open(path, &f, &e), ST_OK);
    const struct st_tensor *t = st_find(&f, "w");
    float out[2];
    uint16_t bits[2];
    assert_int_equal(st_read_f32(t, out, &e), ST_OK);
    assert_memory_equal(out, one, sizeof one);
    assert_int_equal(st_read_bf16(t, bits, &e), ST_OK);
    assert_int_equal(bits[0], 0x3fc0);
    assert_int_equal(st_check_finite(t, &e), ST_OK);
    st_close(&f);
}

static void finds_values_that_are_not_finite(void **state) {
    (void)state;
    float v[3] = {1, 2, NAN};
    struct st_entry x[2] = {{"n", ST_DTYPE_BF16, ST_DTYPE_F32, 1, {3}, v},
                            {"i", ST_DTYPE_F32, ST_DTYPE_F32, 1, {2}, v}};
    assert_int_equal(st_write(path, x, 2, NULL, &e), ST_OK);
    struct st_file f;
    assert_int_equal(st_open(path, &f, &e), ST_OK); /* a NaN is no fault of the file */
    assert_int_equal(st_check_finite(st_find(&f, "n"), &e), ST_INVALID);
    assert_non_null(strstr(e.msg, "tensor \"n\": element 2 is NaN"));
    assert_int_equal(st_check_finite(st_find(&f, "i"), &e), ST_OK);
    st_close(&f);
}

/* All 65536 values of both 16-bit formats survive, and rounding is to nearest even. */
static void conversions(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        float b = st_bf16_to_f32(h), f = st_f16_to_f32(h);
        if (isnan(b))
            assert_true(isnan(st_bf16_to_f32(st_f32_to_bf16(b))));
        else
            assert_int_equal(st_f32_to_bf16(b), h);
        if (isnan(f))
            assert_true(isnan(st_f16_to_f32(st_f32_to_f16(f))));
        else
            assert_int_equal(st_f32_to_f16(f), h);
        /* The midpoint to the next value goes to the even one; a hair beside it to the nearer one. */
        if ((i & 0x7fff) < 0x7c00) {
            float next = (i & 0x7fff) == 0x7bff ? copysignf(65536, f) : st_f16_to_f32((uint16_t)(i + 1));
            float mid = (f + next) / 2;
            assert_int_equal(st_f32_to_f16(mid), (i & 1) ? i + 1 : i);
            assert_int_equal(st_f32_to_f16(nextafterf(mid, f)), i);
            assert_int_equal(st_f32_to_f16(nextafterf(mid, next)), i + 1);
        }
    }
    assert_int_equal(st_f32_to_bf16(1.00390625f), 0x3f80); /* 1 + 2^-8: halfway, even below */
    assert_int_equal(st_f32_to_bf16(1.01171875f), 0x3f82); /* 1 + 3 * 2^-8: halfway, even above */
    assert_int_equal(st_f32_to_bf16(3.4e38f), 0x7f80);     /* rounds to infinity */
    uint32_t snan = 0x7f800001u;
    float x;
    memcpy(&x, &snan, 4);
    assert_true(isnan(st_bf16_to_f32(st_f32_to_bf16(x))));
    assert_int_equal(st_f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(st_f32_to_f16(65520), 0x7c00);
}

static void shards(void **state) {
    (void)state;
    char model[80], file[128], index[128];
    snprintf(model, sizeof model, "%s/model", dir);
    snprintf(index, sizeof index, "%s/model.safetensors.index.json", model);
    assert_int_equal(fs_mkdirs(model, &e), ST_OK);
    struct st_file f;
    assert_int_equal(st_open_dir(model, &f, &e), ST_IO);
    assert_non_null(strstr(e.msg, "neither model.safetensors nor"));

    float v[4] = {1, 2, 3, 4};
    struct st_entry a = {"a", ST_DTYPE_F32, ST_DTYPE_F32, 1, {2}, v},
                    b = {"b", ST_DTYPE_F32, ST_DTYPE_F32, 1, {2}, v + 2};
    snprintf(file, sizeof file, "%s/s1.safetensors", model);
    assert_int_equal(st_write(file, &a, 1, NULL, &e), ST_OK);
    snprintf(file, sizeof file, "%s/s2.safetensors", model);
    assert_int_equal(st_write(file, &b, 1, NULL, &e), ST_OK);

    static const struct {
        const char *json;
        enum status code;
        const char *message;
    } cases[] = {
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"}}", ST_OK, ""},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s1.safetensors\"}}", ST_PARSE, "\"b\" is not in s1"},
        {"{\"weight_map\":{\"a\":\"s2.safetensors\",\"b\":\"s1.safetensors\"}}", ST_PARSE, "is not in"},
        {"{\"weight_map\":{\"a\":\"../s1.safetensors\"}}", ST_PARSE, "expected the name of a file"},
        {"{\"weight_map\":{\"a\":3}}", ST_PARSE, "expected the name of a file"},
        {"{\"weight_map\":{\"a\":\"s3.safetensors\"}}", ST_IO, "s3.safetensors"},
        {"{\"weight_map\":{}}", ST_PARSE, "weight_map: expected"},
        {"{}", ST_PARSE, "weight_map: expected"},
        {"{\"weight_map\":", ST_PARSE, "index.json:1:"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(fs_write_atomic(index, cases[i].json, strlen(cases[i].json), &e), ST_OK);
        enum status st = st_open_dir(model, &f, &e);
        if (st != cases[i].code || (st != ST_OK && !strstr(e.msg, cases[i].message)))
            fail_msg("case %zu: %s: %s", i, status_name(st), e.msg);
        if (st != ST_OK) continue;
        float out[2];
        assert_int_equal(f.count, 2);
        assert_int_equal(st_read_f32(st_find(&f, "b"), out, &e), ST_OK);
        assert_true(out[1] == 4);
        st_close(&f);
    }
    /* The same tensor in two shards. */
    struct st_entry both[2] = {b, a};
    assert_int_equal(st_write(file, both, 2, NULL, &e), ST_OK);
    assert_int_equal(fs_write_atomic(index, cases[0].json, strlen(cases[0].json), &e), ST_OK);
    assert_int_equal(st_open_dir(model, &f, &e), ST_PARSE);
    assert_non_null(strstr(e.msg, "tensor \"a\": also in"));
    /* A single file wins over an index. */
    snprintf(file, sizeof file, "%s/model.safetensors", model);
    assert_int_equal(st_write(file, &a, 1, NULL, &e), ST_OK);
    assert_int_equal(st_open_dir(model, &f, &e), ST_OK);
    assert_int_equal(f.count, 1);
    st_close(&f);
}

/* Files that another writer made. */
static void reads_foreign_files(void **state) {
    (void)state;
    const char *data = getenv("KERNELRL_TESTDATA");
    if (!data || !*data) {
        print_message("skipped: KERNELRL_TESTDATA is not set\n");
        skip();
    }
    static const char *const models[] = {"qwen2_tied", "qwen3"};
    for (size_t m = 0; m < ARRAY_LEN(models); m++) {
        char model[512];
        snprintf(model, sizeof model, "%s/golden/%s", data, models[m]);
        struct st_file f;
        if (st_open_dir(model, &f, &e) != ST_OK) fail_msg("%s", e.msg);
        assert_true(f.count > 10);
        assert_non_null(st_find(&f, "model.embed_tokens.weight"));
        for (size_t i = 0; i < f.count; i++) {
            CLEANUP_FREE float *v = xmalloc((size_t)f.tensor[i].numel * sizeof *v + 1);
            assert_int_equal(st_read_f32(&f.tensor[i], v, &e), ST_OK);
            assert_int_equal(st_check_finite(&f.tensor[i], &e), ST_OK);
        }
        st_close(&f);
    }
}

static int make_dir(void **state) {
    (void)state;
    if (!mkdtemp(dir)) return -1;
    snprintf(path, sizeof path, "%s/t.safetensors", dir);
    return 0;
}

static int remove_dir(void **state) {
    (void)state;
    return fs_remove(dir, &e) == ST_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_and_reads),
        cmocka_unit_test(write_fetched),
        cmocka_unit_test(write_errors),
        cmocka_unit_test(hostile_files),
        cmocka_unit_test(truncation_is_noticed),
        cmocka_unit_test(unaligned_data),
        cmocka_unit_test(finds_values_that_are_not_finite),
        cmocka_unit_test(conversions),
        cmocka_unit_test(shards),
        cmocka_unit_test(reads_foreign_files),
    };
    return cmocka_run_group_tests_name("safetensors", tests, make_dir, remove_dir);
}
