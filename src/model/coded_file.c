#include "model/coded_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"

#define SCALE_INV "_scale_inv"
#define STATE ".quant_state.bitsandbytes__"

/* ---- config.json ------------------------------------------------------------------------------------------------- */

static enum status config_fp8(const json_t *q, const char *in, enum weight_format *out, struct err *e) {
    const char *fmt = "e4m3", *scheme = "dynamic";
    TRY(js_opt_str(q, in, "fmt", &fmt, e));
    TRY(js_opt_str(q, in, "activation_scheme", &scheme, e));
    if (strcmp(fmt, "e4m3") != 0)
        return FAIL(e, ST_UNSUPPORTED, "%s: fmt: \"%.100s\" is not supported, expected e4m3", in, fmt);
    if (strcmp(scheme, "dynamic") != 0)
        return FAIL(e, ST_UNSUPPORTED, "%s: activation_scheme: \"%.100s\" is not supported, expected dynamic", in,
                    scheme);
    const json_t *block = json_object_get(q, "weight_block_size");
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = json_array_get(block, i);
        if (json_array_size(block) != 2 || !json_is_integer(v) || json_integer_value(v) != FP8_BLOCK)
            return FAIL(e, ST_UNSUPPORTED, "%s: weight_block_size: expected [%d, %d]", in, FP8_BLOCK, FP8_BLOCK);
    }
    *out = FORMAT_FP8;
    return ST_OK;
}

static enum status config_bitsandbytes(const json_t *q, const char *in, enum weight_format *out, struct err *e) {
    bool in4 = false, in8 = false;
    const char *type = "fp4";
    TRY(js_opt_bool(q, in, "load_in_4bit", &in4, e));
    TRY(js_opt_bool(q, in, "load_in_8bit", &in8, e));
    TRY(js_opt_str(q, in, "bnb_4bit_quant_type", &type, e));
    if (in8 || !in4)
        return FAIL(e, ST_UNSUPPORTED, "%s: %s is not supported, expected load_in_4bit: true", in,
                    in8 ? "load_in_8bit: true" : "load_in_4bit: false");
    if (strcmp(type, "nf4") != 0)
        return FAIL(e, ST_UNSUPPORTED, "%s: bnb_4bit_quant_type: \"%.100s\" is not supported, expected nf4", in, type);
    *out = FORMAT_NF4;
    return ST_OK;
}

enum status coded_config(const json_t *config, const char *where, enum weight_format *out, struct err *e) {
    const json_t *q = json_object_get(config, "quantization_config");
    const char *method = "";
    CLEANUP_STR struct str in = STR_INIT;
    *out = FORMAT_F32;
    if (!q || json_is_null(q)) return ST_OK;
    str_addf(&in, "%s: quantization_config", where);
    if (!json_is_object(q)) return FAIL(e, ST_PARSE, "%s: expected an object or null", in.p);
    TRY(js_opt_str(q, in.p, "quant_method", &method, e));
    if (strcmp(method, "fp8") == 0) return config_fp8(q, in.p, out, e);
    if (strcmp(method, "bitsandbytes") == 0) return config_bitsandbytes(q, in.p, out, e);
    return FAIL(e, ST_UNSUPPORTED, "%s: quant_method: \"%.100s\" is not supported, expected fp8 or bitsandbytes", in.p,
                method);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

bool coded_in_file(const struct st_file *f, const char *name, enum weight_format format) {
    const struct st_tensor *t = format == FORMAT_F32 ? NULL : st_find(f, name);
    return t && t->dtype == (format == FORMAT_FP8 ? ST_DTYPE_F8_E4M3 : ST_DTYPE_U8);
}

size_t coded_beside(const char *tensor) {
    static const char *const ends[] = {SCALE_INV,        ".absmax",           ".quant_map",
                                       ".nested_absmax", ".nested_quant_map", STATE "nf4"};
    for (size_t i = 0; i < ARRAY_LEN(ends); i++)
        if (str_has_suffix(tensor, ends[i])) return strlen(tensor) - strlen(ends[i]);
    return 0;
}

/* The tensor `name` with `end` behind it, of this shape. */
static enum status beside(const struct st_file *f, const char *name, const char *end, int nd, const int64_t *dim,
                          const struct st_tensor **out, struct err *e) {
    CLEANUP_STR struct str full = STR_INIT;
    str_addf(&full, "%s%s", name, end);
    return st_get(f, full.p, nd, dim, out, e);
}

/* n numbers, each finite and at most `most` in magnitude. */
static enum status floats(const struct st_tensor *t, float most, float *out, struct err *e) {
    TRY(st_read_f32(t, out, e));
    for (int64_t i = 0; i < t->numel; i++)
        if (!(fabsf(out[i]) <= most))
            return FAIL(e, ST_INVALID, "%s: tensor \"%s\": element %lld is %g, expected a magnitude of at most %g",
                        t->file, t->name, (long long)i, (double)out[i], (double)most);
    return ST_OK;
}

static enum status vector_beside(const struct st_file *f, const char *name, const char *end, int64_t n, float most,
                                 float *out, struct err *e) {
    const struct st_tensor *t;
    TRY(beside(f, name, end, 1, &n, &t, e));
    return floats(t, most, out, e);
}

/* ---- FP8 --------------------------------------------------------------------------------------------------------- */

static enum status read_fp8(const struct st_file *f, const char *name, int64_t rows, int64_t K, struct coded_matrix *m,
                            struct err *e) {
    const int64_t dim[2] = {rows, K}, blocks[2] = {format_blocks(rows, FP8_BLOCK), format_blocks(K, FP8_BLOCK)};
    const struct st_tensor *t, *s;
    TRY(st_get(f, name, 2, dim, &t, e));
    if (t->dtype != ST_DTYPE_F8_E4M3)
        return FAIL(e, ST_INVALID, "%s: tensor \"%s\": expected F8_E4M3, got %s", t->file, name,
                    st_dtype_name(t->dtype));
    TRY(beside(f, name, SCALE_INV, 2, blocks, &s, e));
    float *const scale = xmalloc((size_t)(blocks[0] * blocks[1]) * sizeof *scale + 1);
    *m = (struct coded_matrix){
        .format = FORMAT_FP8, .rows = rows, .K = K, .codes = t->data, .scale = scale, .own = scale};
    TRY(floats(s, CODED_LARGEST_SCALE, scale, e));
    for (int64_t i = 0; i < blocks[0] * blocks[1]; i++)
        if (scale[i] < 0 || (scale[i] > 0 && scale[i] < CODED_SMALLEST_SCALE))
            return FAIL(e, ST_INVALID, "%s: tensor \"%s\": element %lld is %g, expected 0 or a number from %g on",
                        s->file, s->name, (long long)i, (double)scale[i], (double)CODED_SMALLEST_SCALE);
    for (int64_t i = 0; i < rows * K; i++)
        if ((t->data[i] & 0x7f) == 0x7f)
            return FAIL(e, ST_INVALID, "%s: tensor \"%s\": element %lld of %lld is NaN", t->file, name, (long long)i,
                        (long long)(rows * K));
    return ST_OK;
}

/* ---- NF4 --------------------------------------------------------------------------------------------------------- */

static enum status expect_number(const json_t *j, const char *in, const char *key, int64_t want, struct err *e) {
    int64_t v = 0;
    TRY(js_get_i64(j, in, key, &v, e));
    if (v == want) return ST_OK;
    return FAIL(e, ST_UNSUPPORTED, "%s: %s: %lld is not supported, expected %lld", in, key, (long long)v,
                (long long)want);
}

static enum status expect_word(const json_t *j, const char *in, const char *key, const char *want, struct err *e) {
    const char *s = "";
    TRY(js_get_str(j, in, key, &s, e));
    if (strcmp(s, want) == 0) return ST_OK;
    return FAIL(e, ST_UNSUPPORTED, "%s: %s: \"%.100s\" is not supported, expected %s", in, key, s, want);
}

/* bitsandbytes' description of a tensor; nested: its scales are in codes, too. */
static enum status read_state(const struct st_file *f, const char *name, int64_t rows, int64_t K, bool nested,
                              float *offset, struct err *e) {
    CLEANUP_STR struct str full = STR_INIT;
    CLEANUP_STR struct str in = STR_INIT;
    CLEANUP_JSON json_t *j = NULL;
    str_addf(&full, "%s" STATE "nf4", name);
    const struct st_tensor *t = st_find(f, full.p);
    if (!t) return FAIL(e, ST_INVALID, "tensor \"%s\" has bytes, but there is no tensor \"%s\"", name, full.p);
    str_addf(&in, "%s: tensor \"%s\"", t->file, full.p);
    if (t->dtype != ST_DTYPE_U8) return FAIL(e, ST_INVALID, "%s: expected U8, got %s", in.p, st_dtype_name(t->dtype));
    TRY(js_parse((const char *)t->data, t->bytes, in.p, &j, e));
    TRY(expect_word(j, in.p, "quant_type", "nf4", e));
    TRY(expect_number(j, in.p, "blocksize", NF4_BLOCK, e));
    const json_t *shape = json_object_get(j, "shape");
    if (json_array_size(shape) != 2 || json_integer_value(json_array_get(shape, 0)) != rows ||
        json_integer_value(json_array_get(shape, 1)) != K)
        return FAIL(e, ST_INVALID, "%s: shape: expected [%lld, %lld]", in.p, (long long)rows, (long long)K);
    if (!nested) return ST_OK;
    double mean = 0;
    TRY(expect_number(j, in.p, "nested_blocksize", NF4_NESTED, e));
    TRY(expect_word(j, in.p, "nested_dtype", "float32", e));
    TRY(js_get_f64(j, in.p, "nested_offset", &mean, e));
    if (!(fabs(mean) <= (double)CODED_LARGEST_SCALE))
        return FAIL(e, ST_INVALID, "%s: nested_offset: %g, expected a magnitude of at most %g", in.p, mean,
                    (double)CODED_LARGEST_SCALE);
    *offset = (float)mean;
    return ST_OK;
}

/* Room for all that stands beside the codes, in one piece of memory. */
static void nf4_room(struct coded_matrix *m, int64_t blocks, bool nested, float **map, float **scale, float **tables) {
    const int64_t groups = format_blocks(blocks, NF4_NESTED), scales = nested ? groups + NF4_SCALES : blocks;
    *map = xmalloc((size_t)(NF4_CODES + scales) * sizeof(float));
    *scale = *map + NF4_CODES;
    *tables = *scale + groups;
    m->own = *map;
    m->map = *map;
    m->scale = nested ? NULL : *scale;
    m->nested = nested ? *scale : NULL;
    m->nested_map = nested ? *tables : NULL;
}

static enum status check_scales(const struct coded_matrix *m, int64_t blocks, const char *name, struct err *e) {
    for (int64_t b = 0; b < blocks; b++) {
        const float s = fabsf(nf4_scale(m, b));
        if (s == 0 || (s >= CODED_SMALLEST_SCALE && s <= CODED_LARGEST_SCALE)) continue;
        return FAIL(e, ST_INVALID, "tensor \"%s.absmax\": the scale of block %lld is %g, expected 0 or %g to %g", name,
                    (long long)b, (double)nf4_scale(m, b), (double)CODED_SMALLEST_SCALE, (double)CODED_LARGEST_SCALE);
    }
    return ST_OK;
}

static enum status check_map(const struct coded_matrix *m, const char *name, struct err *e) {
    for (int i = 0; i < NF4_CODES; i++)
        if (m->map[i] != 0 && fabsf(m->map[i]) < CODED_SMALLEST_MAP)
            return FAIL(e, ST_INVALID,
                        "tensor \"%s.quant_map\": element %d is %g, expected 0 or a magnitude from %g on", name, i,
                        (double)m->map[i], (double)CODED_SMALLEST_MAP);
    return ST_OK;
}

static enum status read_nf4(const struct st_file *f, const char *name, int64_t rows, int64_t K, struct coded_matrix *m,
                            struct err *e) {
    const int64_t bytes = (rows * K + 1) / 2, dim[2] = {bytes, 1}, blocks = nf4_blocks(rows, K);
    const struct st_tensor *t, *absmax;
    float *map, *scale, *tables;
    TRY(st_get(f, name, 2, dim, &t, e));
    TRY(beside(f, name, ".absmax", 1, &blocks, &absmax, e));
    const bool nested = absmax->dtype == ST_DTYPE_U8;
    *m = (struct coded_matrix){
        .format = FORMAT_NF4, .rows = rows, .K = K, .codes = t->data, .absmax = nested ? absmax->data : NULL};
    TRY(read_state(f, name, rows, K, nested, &m->offset, e));
    nf4_room(m, blocks, nested, &map, &scale, &tables);
    TRY(vector_beside(f, name, ".quant_map", NF4_CODES, 1, map, e));
    TRY(check_map(m, name, e));
    if (nested) {
        const int64_t groups = format_blocks(blocks, NF4_NESTED);
        TRY(vector_beside(f, name, ".nested_absmax", groups, CODED_LARGEST_SCALE, scale, e));
        TRY(vector_beside(f, name, ".nested_quant_map", NF4_SCALES, 1, tables, e));
    } else {
        TRY(floats(absmax, CODED_LARGEST_SCALE, scale, e));
    }
    return check_scales(m, blocks, name, e);
}

enum status coded_read(const struct st_file *f, const char *name, enum weight_format format, int64_t rows, int64_t K,
                       struct coded_matrix *out, struct err *e) {
    *out = (struct coded_matrix){0};
    const enum status st =
        format == FORMAT_FP8 ? read_fp8(f, name, rows, K, out, e) : read_nf4(f, name, rows, K, out, e);
    if (st != ST_OK) coded_release(out);
    return st;
}
