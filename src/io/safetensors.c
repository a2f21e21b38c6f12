#include "io/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors.c copies little-endian values as they are"
#endif

static const struct {
    const char *name;
    size_t bytes;
    bool is_float;
} dtype_table[] = {
#define X(name, bytes, is_float) {#name, bytes, is_float},
    ST_DTYPE_LIST(X)
#undef X
};

const char *st_dtype_name(enum st_dtype d) { return dtype_table[d].name; }
size_t st_dtype_bytes(enum st_dtype d) { return dtype_table[d].bytes; }

/* ---- conversions --------------------------------------------------------------------------------------------------
 */

static uint32_t f32_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float f32_from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

float st_bf16_to_f32(uint16_t x) { return f32_from_bits((uint32_t)x << 16); }

uint16_t st_f32_to_bf16(float x) {
    uint32_t u = f32_bits(x);
    /* A NaN whose payload sits in the lower half would round to infinity. It stays a (quiet) NaN. */
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

float st_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = h >> 10 & 31u, man = h & 0x3ffu;
    if (exp == 31) return f32_from_bits(sign | 0x7f800000u | man << 13);
    if (exp != 0) return f32_from_bits(sign | (exp + 112) << 23 | man << 13);
    /* Zero and subnormals: the product is exact. */
    float x = (float)man * 0x1p-24f;
    return sign ? -x : x;
}

uint16_t st_f32_to_f16(float x) {
    uint32_t u = f32_bits(x), sign = u >> 16 & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);  /* NaN */
    if (u >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above round to infinity. */
    if (u >= 0x38800000u) {                                  /* The result is a normal number. */
        u += 0xfffu + (u >> 13 & 1u);
        return (uint16_t)(sign | ((u >> 13) - (112u << 10)));
    }
    if (u < 0x33000000u) return (uint16_t)sign; /* x is below half of the smallest subnormal. */
    uint32_t shift = 126u - (u >> 23), man = (u & 0x7fffffu) | 0x800000u;
    uint32_t half = 1u << (shift - 1), rest = man & ((1u << shift) - 1), q = man >> shift;
    if (rest > half || (rest == half && (q & 1u))) q++;
    return (uint16_t)(sign | q);
}

/* Returns element i of a float tensor of any alignment. F64 rounds to nearest. */
static float load_f32(const unsigned char *p, enum st_dtype d, size_t i) {
    uint16_t h;
    float f;
    double g;
    switch (d) {
    case ST_DTYPE_F32: memcpy(&f, p + 4 * i, 4); return f;
    case ST_DTYPE_BF16: memcpy(&h, p + 2 * i, 2); return st_bf16_to_f32(h);
    case ST_DTYPE_F16: memcpy(&h, p + 2 * i, 2); return st_f16_to_f32(h);
    default:
        ASSERT(d == ST_DTYPE_F64);
        memcpy(&g, p + 8 * i, 8);
        return (float)g;
    }
}

/* ---- reading ------------------------------------------------------------------------------------------------------
 */

static enum status bad_tensor(struct err *e, enum status code, const struct st_tensor *t, const char *what) {
    return FAIL(e, code, "%s: tensor \"%.200s\": %s", t->file, t->name, what);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

static int by_offset(const void *a, const void *b) {
    const struct st_tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* Fills *t from its header object. data_bytes is what the file has behind its header. */
static enum status parse_tensor(const json_t *o, const unsigned char *data, uint64_t data_bytes, struct st_tensor *t,
                                struct err *e) {
    if (!json_is_object(o)) return bad_tensor(e, ST_PARSE, t, "expected an object {dtype, shape, data_offsets}");
    const char *dtype = json_string_value(json_object_get(o, "dtype"));
    if (!dtype) return bad_tensor(e, ST_PARSE, t, "dtype: expected a string");
    size_t d = 0;
    while (d < ARRAY_LEN(dtype_table) && strcmp(dtype_table[d].name, dtype) != 0) d++;
    if (d == ARRAY_LEN(dtype_table))
        return FAIL(e, ST_UNSUPPORTED, "%s: tensor \"%.200s\": unknown dtype \"%.40s\"", t->file, t->name, dtype);
    t->dtype = (enum st_dtype)d;

    const json_t *shape = json_object_get(o, "shape"), *offs = json_object_get(o, "data_offsets");
    if (!json_is_array(shape)) return bad_tensor(e, ST_PARSE, t, "shape: expected a list of sizes");
    if (json_array_size(shape) > ST_MAX_DIMS)
        return FAIL(e, ST_UNSUPPORTED, "%s: tensor \"%.200s\": shape: %zu dimensions, at most %d are supported",
                    t->file, t->name, json_array_size(shape), ST_MAX_DIMS);
    t->nd = (int)json_array_size(shape);
    t->numel = 1;
    for (int i = 0; i < t->nd; i++) {
        const json_t *v = json_array_get(shape, (size_t)i);
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return bad_tensor(e, ST_PARSE, t, "shape: expected whole numbers >= 0");
        t->dim[i] = json_integer_value(v);
        if (__builtin_mul_overflow(t->numel, t->dim[i], &t->numel))
            return bad_tensor(e, ST_PARSE, t, "shape: the number of elements overflows 64 bits");
    }

    if (!json_is_array(offs) || json_array_size(offs) != 2 || !json_is_integer(json_array_get(offs, 0)) ||
        !json_is_integer(json_array_get(offs, 1)))
        return bad_tensor(e, ST_PARSE, t, "data_offsets: expected [begin, end]");
    json_int_t begin = json_integer_value(json_array_get(offs, 0)), end = json_integer_value(json_array_get(offs, 1));
    if (begin < 0 || end < begin || (uint64_t)end > data_bytes)
        return FAIL(e, ST_PARSE,
                    "%s: tensor \"%.200s\": data_offsets [%" JSON_INTEGER_FORMAT ", %" JSON_INTEGER_FORMAT
                    "] are not within the file's %" PRIu64 " data bytes (truncated file?)",
                    t->file, t->name, begin, end, data_bytes);
    int64_t need;
    if (__builtin_mul_overflow(t->numel, (int64_t)st_dtype_bytes(t->dtype), &need) || need != end - begin)
        return FAIL(e, ST_PARSE,
                    "%s: tensor \"%.200s\": shape and dtype need %" PRId64 " x %zu bytes, data_offsets give "
                    "%" JSON_INTEGER_FORMAT,
                    t->file, t->name, t->numel, st_dtype_bytes(t->dtype), end - begin);
    t->data = data + begin;
    t->bytes = (size_t)(end - begin);
    return ST_OK;
}

/* The tensors must tile [data, data + data_bytes): bytes that are in the file but in no tensor could hide anything. */
static enum status check_tiling(struct st_tensor *t, size_t n, const unsigned char *data, uint64_t data_bytes,
                                const char *path, struct err *e) {
    if (n > 0) qsort(t, n, sizeof *t, by_offset);
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t begin = (uint64_t)(t[i].data - data);
        if (begin != at)
            return FAIL(e, ST_PARSE,
                        "%s: tensor \"%.200s\": begins at data byte %" PRIu64 ", %s (expected %" PRIu64 ")", path,
                        t[i].name, begin, begin < at ? "inside another tensor" : "after a gap", at);
        at = begin + t[i].bytes;
    }
    if (at != data_bytes)
        return FAIL(e, ST_PARSE, "%s: %" PRIu64 " data bytes belong to no tensor", path, data_bytes - at);
    return ST_OK;
}

/* Maps one file and appends its tensors to f, unsorted. */
static enum status add_file(struct st_file *f, const char *path, struct err *e) {
    struct fs_map map;
    TRY(fs_map_open(path, &map, e));
    f->map = xrealloc(f->map, (f->n_maps + 1) * sizeof *f->map);
    f->map[f->n_maps++] = map; /* From here on st_close unmaps it. */
    const char *file = arena_strdup(&f->arena, path);

    uint64_t header_bytes;
    if (map.len < 8)
        return FAIL(e, ST_PARSE, "%s: not a safetensors file: %zu bytes, expected at least 8", path, map.len);
    memcpy(&header_bytes, map.data, 8);
    if (header_bytes > ST_MAX_HEADER_BYTES)
        return FAIL(e, ST_PARSE, "%s: not a safetensors file: header of %" PRIu64 " bytes, the limit is %u", path,
                    header_bytes, ST_MAX_HEADER_BYTES);
    if (header_bytes > map.len - 8)
        return FAIL(e, ST_PARSE, "%s: truncated: header of %" PRIu64 " bytes, the file has %zu", path, header_bytes,
                    map.len - 8);
    const unsigned char *data = map.data + 8 + header_bytes;
    uint64_t data_bytes = map.len - 8 - header_bytes;

    json_error_t je;
    json_t *root = json_loadb((const char *)map.data + 8, (size_t)header_bytes, JSON_REJECT_DUPLICATES, &je);
    if (!root) return FAIL(e, ST_PARSE, "%s: header: byte %d: %s", path, 8 + je.position, je.text);
    enum status st = ST_OK;
    if (!json_is_object(root)) {
        st = FAIL(e, ST_PARSE, "%s: header: expected a JSON object", path);
        goto done;
    }
    size_t first = f->count;
    f->tensor = xrealloc(f->tensor, (first + json_object_size(root) + 1) * sizeof *f->tensor);
    const char *name;
    json_t *o;
    json_object_foreach(root, name, o) {
        if (strcmp(name, "__metadata__") == 0) {
            const char *key;
            json_t *v;
            if (!json_is_object(o)) {
                st = FAIL(e, ST_PARSE, "%s: header: __metadata__: expected an object of strings", path);
                goto done;
            }
            json_object_foreach(o, key, v) {
                if (json_is_string(v)) continue;
                st = FAIL(e, ST_PARSE, "%s: header: __metadata__: %.200s: expected a string", path, key);
                goto done;
            }
            continue;
        }
        struct st_tensor *t = &f->tensor[f->count];
        *t = (struct st_tensor){.name = arena_strdup(&f->arena, name), .file = file};
        TRY_GOTO(parse_tensor(o, data, data_bytes, t, e), done);
        f->count++;
    }
    st = check_tiling(f->tensor + first, f->count - first, data, data_bytes, path, e);
done:
    json_decref(root);
    return st;
}

/* Sorts by name and refuses a name that two shards hold. */
static enum status finish(struct st_file *f, struct err *e) {
    if (f->count > 0) qsort(f->tensor, f->count, sizeof *f->tensor, by_name);
    for (size_t i = 1; i < f->count; i++)
        if (by_name(&f->tensor[i - 1], &f->tensor[i]) == 0)
            return FAIL(e, ST_PARSE, "%s: tensor \"%.200s\": also in %s", f->tensor[i].file, f->tensor[i].name,
                        f->tensor[i - 1].file);
    return ST_OK;
}

enum status st_open(const char *path, struct st_file *f, struct err *e) {
    *f = (struct st_file){0};
    enum status st;
    TRY_GOTO(add_file(f, path, e), fail);
    TRY_GOTO(finish(f, e), fail);
    return ST_OK;
fail:
    st_close(f);
    return st;
}

/* Opens each shard that the weight map names, then checks the map against what the shards hold. */
static enum status open_shards(const char *dir, const char *index, const json_t *weight_map, struct st_file *f,
                               struct err *e) {
    struct arena a = ARENA_INIT;
    enum status st = ST_OK;
    const char *name;
    json_t *v;
    size_t n_shards = 0;
    const char **shard = arena_array(&a, const char *, json_object_size(weight_map) + 1);
    json_object_foreach((json_t *)(uintptr_t)weight_map, name, v) {
        const char *file = json_string_value(v);
        if (!file || !*file || strchr(file, '/') || file[0] == '.') {
            st = FAIL(e, ST_PARSE, "%s: weight_map: %.200s: expected the name of a file beside the index", index, name);
            goto done;
        }
        size_t i = 0;
        while (i < n_shards && strcmp(shard[i], file) != 0) i++;
        if (i < n_shards) continue;
        shard[n_shards++] = file;
        TRY_GOTO(add_file(f, arena_printf(&a, "%s/%s", dir, file), e), done);
    }
    TRY_GOTO(finish(f, e), done);
    json_object_foreach((json_t *)(uintptr_t)weight_map, name, v) {
        const struct st_tensor *t = st_find(f, name);
        const char *file = json_string_value(v), *slash = t ? strrchr(t->file, '/') : NULL;
        if (t && strcmp(slash ? slash + 1 : t->file, file) == 0) continue;
        st = FAIL(e, ST_PARSE, "%s: weight_map: tensor \"%.200s\" is not in %s", index, name, file);
        goto done;
    }
done:
    arena_free(&a);
    return st;
}

enum status st_open_dir(const char *dir, struct st_file *f, struct err *e) {
    *f = (struct st_file){0};
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir) >= (int)sizeof path)
        return FAIL(e, ST_IO, "%s: path too long", dir);
    CLEANUP_STR struct str single = STR_INIT;
    str_addf(&single, "%s/model.safetensors", dir);
    if (fs_is_file(str_c(&single))) return st_open(str_c(&single), f, e);
    if (!fs_is_file(path))
        return FAIL(e, ST_IO, "%s: neither model.safetensors nor model.safetensors.index.json is there", dir);

    CLEANUP_FREE char *text = NULL;
    size_t len = 0;
    TRY(fs_read(path, ST_MAX_HEADER_BYTES, &text, &len, e));
    json_error_t je;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
    if (!root) return FAIL(e, ST_PARSE, "%s:%d:%d: %s", path, je.line, je.column, je.text);
    const json_t *map = json_object_get(root, "weight_map");
    enum status st;
    if (!json_is_object(map) || json_object_size(map) == 0)
        st = FAIL(e, ST_PARSE, "%s: weight_map: expected an object {tensor: file}", path);
    else
        st = open_shards(dir, path, map, f, e);
    json_decref(root);
    if (st != ST_OK) st_close(f);
    return st;
}

void st_close(struct st_file *f) {
    for (size_t i = 0; i < f->n_maps; i++) fs_map_close(&f->map[i]);
    free(f->map);
    free(f->tensor);
    arena_free(&f->arena);
    *f = (struct st_file){0};
}

const struct st_tensor *st_find(const struct st_file *f, const char *name) {
    struct st_tensor key = {.name = name};
    return f->count ? bsearch(&key, f->tensor, f->count, sizeof key, by_name) : NULL;
}

static void add_shape(struct str *s, int nd, const int64_t *dim) {
    str_addc(s, '[');
    for (int i = 0; i < nd; i++) str_addf(s, "%s%" PRId64, i ? ", " : "", dim[i]);
    str_addc(s, ']');
}

enum status st_get(const struct st_file *f, const char *name, int nd, const int64_t *dim, const struct st_tensor **out,
                   struct err *e) {
    const struct st_tensor *t = st_find(f, name);
    if (!t) return FAIL(e, ST_INVALID, "%s: no tensor \"%s\"", f->count ? f->tensor[0].file : "(empty file)", name);
    if (t->nd == nd && (nd == 0 || memcmp(t->dim, dim, (size_t)nd * sizeof *dim) == 0)) {
        *out = t;
        return ST_OK;
    }
    CLEANUP_STR struct str want = STR_INIT, got = STR_INIT;
    add_shape(&want, nd, dim);
    add_shape(&got, t->nd, t->dim);
    return FAIL(e, ST_INVALID, "%s: tensor \"%s\": expected shape %s, got %s", t->file, name, str_c(&want),
                str_c(&got));
}

const char *st_metadata(const struct st_file *f, const char *key) {
    for (size_t i = 0; i < f->n_maps; i++) {
        uint64_t header_bytes;
        memcpy(&header_bytes, f->map[i].data, 8);
        json_t *root = json_loadb((const char *)f->map[i].data + 8, (size_t)header_bytes, 0, NULL);
        const char *v = json_string_value(json_object_get(json_object_get(root, "__metadata__"), key));
        /* The copy lies in the file's arena, and so lives as long as the file. */
        const char *copy = v ? arena_strdup((struct arena *)(uintptr_t)&f->arena, v) : NULL;
        json_decref(root);
        if (copy) return copy;
    }
    return NULL;
}

bool st_is_aligned(const struct st_tensor *t) { return (uintptr_t)t->data % st_dtype_bytes(t->dtype) == 0; }

enum status st_read_f32(const struct st_tensor *t, float *dst, struct err *e) {
    if (!dtype_table[t->dtype].is_float)
        return FAIL(e, ST_INVALID, "%s: tensor \"%.200s\": expected floats, got %s", t->file, t->name,
                    st_dtype_name(t->dtype));
    if (t->dtype == ST_DTYPE_F32) {
        if (t->bytes) memcpy(dst, t->data, t->bytes);
        return ST_OK;
    }
    for (size_t i = 0; i < (size_t)t->numel; i++) dst[i] = load_f32(t->data, t->dtype, i);
    return ST_OK;
}

enum status st_read_bf16(const struct st_tensor *t, uint16_t *dst, struct err *e) {
    if (!dtype_table[t->dtype].is_float)
        return FAIL(e, ST_INVALID, "%s: tensor \"%.200s\": expected floats, got %s", t->file, t->name,
                    st_dtype_name(t->dtype));
    if (t->dtype == ST_DTYPE_BF16) {
        if (t->bytes) memcpy(dst, t->data, t->bytes);
        return ST_OK;
    }
    for (size_t i = 0; i < (size_t)t->numel; i++) dst[i] = st_f32_to_bf16(load_f32(t->data, t->dtype, i));
    return ST_OK;
}

enum status st_read_i64(const struct st_tensor *t, int64_t *dst, struct err *e) {
    size_t n = (size_t)t->numel;
    switch (t->dtype) {
    case ST_DTYPE_I64:
        if (n) memcpy(dst, t->data, t->bytes);
        return ST_OK;
    case ST_DTYPE_I32:
        for (size_t i = 0; i < n; i++) {
            int32_t v;
            memcpy(&v, t->data + 4 * i, 4);
            dst[i] = v;
        }
        return ST_OK;
    case ST_DTYPE_U8:
    case ST_DTYPE_BOOL:
        for (size_t i = 0; i < n; i++) dst[i] = t->data[i];
        return ST_OK;
    default:
        return FAIL(e, ST_INVALID, "%s: tensor \"%.200s\": expected I64, I32, U8 or BOOL, got %s", t->file, t->name,
                    st_dtype_name(t->dtype));
    }
}

enum status st_check_finite(const struct st_tensor *t, struct err *e) {
    if (!dtype_table[t->dtype].is_float) return ST_OK;
    for (size_t i = 0; i < (size_t)t->numel; i++) {
        double v;
        if (t->dtype == ST_DTYPE_F64)
            memcpy(&v, t->data + 8 * i, 8);
        else
            v = (double)load_f32(t->data, t->dtype, i);
        if (!isfinite(v))
            return FAIL(e, ST_INVALID, "%s: tensor \"%.200s\": element %zu is %s", t->file, t->name, i,
                        isnan(v) ? "NaN" : "infinite");
    }
    return ST_OK;
}

/* ---- writing ------------------------------------------------------------------------------------------------------
 */

/* Checks an entry and gives its size in the file. */
static enum status entry_bytes(const char *path, const struct st_entry *x, int64_t *bytes, struct err *e) {
    bool convertible = dtype_table[x->from].is_float && dtype_table[x->dtype].is_float &&
                       st_dtype_bytes(x->from) <= 4 && st_dtype_bytes(x->dtype) <= 4;
    if (x->from != x->dtype && !convertible)
        return FAIL(e, ST_INVALID, "%s: tensor \"%.200s\": cannot write %s as %s", path, x->name,
                    st_dtype_name(x->from), st_dtype_name(x->dtype));
    if (x->nd < 0 || x->nd > ST_MAX_DIMS)
        return FAIL(e, ST_INVALID, "%s: tensor \"%.200s\": %d dimensions, at most %d", path, x->name, x->nd,
                    ST_MAX_DIMS);
    *bytes = (int64_t)st_dtype_bytes(x->dtype);
    for (int i = 0; i < x->nd; i++)
        if (x->dim[i] < 0 || __builtin_mul_overflow(*bytes, x->dim[i], bytes))
            return FAIL(e, ST_INVALID, "%s: tensor \"%.200s\": bad shape", path, x->name);
    return ST_OK;
}

static void add_quoted(struct str *s, const char *text) {
    json_t *j = json_string(text);
    char *q = j ? json_dumps(j, JSON_ENCODE_ANY) : NULL;
    ASSERT(q); /* Names are UTF-8: the caller has checked that. */
    str_adds(s, q);
    free(q);
    json_decref(j);
}

static bool is_utf8(const char *text) {
    json_t *j = json_string(text);
    json_decref(j);
    return j != NULL;
}

enum { CHUNK = 1 << 16 }; /* So many elements are converted at a time. */

static bool write_entry(int fd, const struct st_entry *x, const void *data, int64_t bytes, void *buf) {
    if (x->from == x->dtype) return fs_write_all(fd, data, (size_t)bytes);
    size_t size = st_dtype_bytes(x->dtype), n = (size_t)bytes / size;
    for (size_t at = 0; at < n; at += CHUNK) {
        size_t m = n - at < CHUNK ? n - at : CHUNK;
        for (size_t i = 0; i < m; i++) {
            float v = load_f32(data, x->from, at + i);
            if (x->dtype == ST_DTYPE_F32)
                ((float *)buf)[i] = v;
            else
                ((uint16_t *)buf)[i] = x->dtype == ST_DTYPE_BF16 ? st_f32_to_bf16(v) : st_f32_to_f16(v);
        }
        if (!fs_write_all(fd, buf, m * size)) return false;
    }
    return true;
}

static void add_header_entry(struct str *h, const struct st_entry *x, int64_t begin, int64_t end) {
    str_addc(h, ',');
    add_quoted(h, x->name);
    str_addf(h, ":{\"dtype\":\"%s\",\"shape\":[", st_dtype_name(x->dtype));
    for (int i = 0; i < x->nd; i++) str_addf(h, "%s%" PRId64, i ? "," : "", x->dim[i]);
    str_addf(h, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", begin, end);
}

static int by_string(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static enum status check_names(const char *path, const struct st_entry *entries, size_t n, struct arena *a,
                               struct err *e) {
    const char **names = arena_array(a, const char *, n + 1);
    for (size_t i = 0; i < n; i++) {
        names[i] = entries[i].name;
        if (!is_utf8(names[i]) || strcmp(names[i], "__metadata__") == 0)
            return FAIL(e, ST_INVALID, "%s: \"%.200s\" cannot name a tensor", path, names[i]);
    }
    qsort(names, n, sizeof *names, by_string);
    for (size_t i = 1; i < n; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            return FAIL(e, ST_INVALID, "%s: two tensors are named \"%.200s\"", path, names[i]);
    return ST_OK;
}

/* Where the tensors' bytes come from: the entries, or a callback that is given an entry's index. */
struct tensor_source {
    const struct st_entry *entries;
    st_fetch_fn *fetch; /* NULL: the entries hold their data. */
    void *ctx;
};

static enum status write_temp(int fd, const char *path, const struct st_entry **order, const int64_t *bytes, size_t n,
                              const struct str *header, const struct tensor_source *src, struct err *e) {
    CLEANUP_FREE void *buf = xmalloc(CHUNK * sizeof(float));
    uint64_t header_bytes = header->len;
    bool ok = fs_write_all(fd, &header_bytes, 8) && fs_write_all(fd, header->p, header->len);
    for (size_t i = 0; ok && i < n; i++) {
        const void *data = order[i]->data;
        if (src->fetch) TRY(src->fetch(src->ctx, (size_t)(order[i] - src->entries), &data, e));
        ok = write_entry(fd, order[i], data, bytes[i], buf);
    }
    if (!ok || !fs_force(fd)) return FAIL(e, ST_IO, "%s: cannot write: %s", path, strerror(errno));
    return ST_OK;
}

enum status st_write(const char *path, const struct st_entry *entries, size_t n, const char *const *metadata,
                     struct err *e) {
    return st_write_fetched(path, entries, n, metadata, NULL, NULL, e);
}

enum status st_write_fetched(const char *path, const struct st_entry *entries, size_t n, const char *const *metadata,
                             st_fetch_fn *fetch, void *ctx, struct err *e) {
    struct arena a = ARENA_INIT;
    struct str h = STR_INIT;
    enum status st;
    TRY_GOTO(check_names(path, entries, n, &a, e), done);

    bool has_format = false;
    str_adds(&h, "{\"__metadata__\":{");
    for (size_t i = 0; metadata && metadata[i]; i += 2) {
        if (!metadata[i + 1] || !is_utf8(metadata[i]) || !is_utf8(metadata[i + 1])) {
            st = FAIL(e, ST_INVALID, "%s: metadata \"%.200s\": expected UTF-8 text", path, metadata[i]);
            goto done;
        }
        has_format = has_format || strcmp(metadata[i], "format") == 0;
        add_quoted(&h, metadata[i]);
        str_addc(&h, ':');
        add_quoted(&h, metadata[i + 1]);
        if (metadata[i + 2]) str_addc(&h, ',');
    }
    /* Readers of Hugging Face checkpoints refuse a file without it. */
    if (!has_format) str_addf(&h, "%s\"format\":\"pt\"", metadata && metadata[0] ? "," : "");
    str_addc(&h, '}');

    const struct st_entry **order = arena_array(&a, const struct st_entry *, n + 1);
    int64_t *bytes = arena_array(&a, int64_t, n + 1), at = 0;
    size_t k = 0;
    for (size_t size = 8; size > 0; size /= 2) {
        for (size_t i = 0; i < n; i++) {
            if (st_dtype_bytes(entries[i].dtype) != size) continue;
            int64_t end;
            TRY_GOTO(entry_bytes(path, &entries[i], &bytes[k], e), done);
            if (__builtin_add_overflow(at, bytes[k], &end)) {
                st = FAIL(e, ST_INVALID, "%s: the sum of all tensors overflows 64 bits", path);
                goto done;
            }
            add_header_entry(&h, &entries[i], at, end);
            order[k++] = &entries[i];
            at = end;
        }
    }
    str_addc(&h, '}');
    while (h.len % 8) str_addc(&h, ' ');
    if (h.len > ST_MAX_HEADER_BYTES) {
        st = FAIL(e, ST_INVALID, "%s: header of %zu bytes, the limit is %u", path, h.len, ST_MAX_HEADER_BYTES);
        goto done;
    }

    char *tmp = arena_printf(&a, "%s.tmp.%d", path, (int)getpid());
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        st = FAIL(e, ST_IO, "%s: cannot write: %s", path, strerror(errno));
        goto done;
    }
    const struct tensor_source src = {entries, fetch, ctx};
    st = write_temp(fd, path, order, bytes, n, &h, &src, e);
    if (close(fd) != 0 && st == ST_OK) st = FAIL(e, ST_IO, "%s: cannot write: %s", path, strerror(errno));
    if (st == ST_OK && rename(tmp, path) != 0) st = FAIL(e, ST_IO, "%s: cannot rename: %s", path, strerror(errno));
    if (st != ST_OK) unlink(tmp);
done:
    str_free(&h);
    arena_free(&a);
    return st;
}
