#include "problem/spec.h"

#include <ctype.h>
#include <jansson.h>
#include <string.h>
#include <strings.h>

/* Names that an argument may not have: keywords of C11 and gnu11, names of the ABI, and macros that the allowed headers
 * or the compiler define. A name that clashes gets an underscore at its end. */
static const char *const reserved[] = {
    "asm",      "auto",   "bool",     "break",  "case",   "char",     "complex",  "const",    "continue",
    "default",  "do",     "double",   "else",   "enum",   "extern",   "false",    "float",    "for",
    "goto",     "if",     "inline",   "int",    "long",   "register", "restrict", "return",   "short",
    "signed",   "sizeof", "static",   "struct", "switch", "true",     "typedef",  "typeof",   "union",
    "unsigned", "void",   "volatile", "while",  "kernel", "prepare",  "prepared", "scratch",  "scratch_bytes",
    "errno",    "linux",  "unix",     "i386",   "size_t", "int64_t",  "uint8_t",  "uint16_t", "prepared_bytes",
};

static const struct {
    const char *name, *c;
    size_t bytes;
} types[] = {
    [TYPE_F32] = {"f32", "float", 4},   [TYPE_F16] = {"f16", "uint16_t", 2},  [TYPE_BF16] = {"bf16", "uint16_t", 2},
    [TYPE_I64] = {"i64", "int64_t", 8}, [TYPE_BOOL] = {"bool", "uint8_t", 1},
};
static const char *const roles[] = {
    [ARG_INPUT] = "input", [ARG_PARAM] = "param", [ARG_BUFFER] = "buffer", [ARG_OUTPUT] = "output"};

/* 2^40 elements are far more than any memory holds, and far fewer than would overflow the sizes that are computed from
 * them. */
static const int64_t max_elements = (int64_t)1 << 40;

const char *arg_type_c(const struct arg *a) {
    if (a->scalar && a->type == TYPE_F32) return "double";
    return types[a->type].c;
}

size_t arg_bytes(const struct arg *a) { return a->scalar ? 8 : types[a->type].bytes * (size_t)a->count; }

/* Returns whether an argument has this name already. Upper and lower case are the same here, unlike in C, because the
 * macros of an argument are in upper case. */
static bool name_taken(const struct spec *s, const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(reserved); i++)
        if (strcmp(reserved[i], name) == 0) return true;
    for (int i = 0; i < s->n_args; i++)
        if (strcasecmp(s->args[i].name, name) == 0) return true;
    return false;
}

static const char *c_name(struct arena *a, const struct spec *s, const char *python_name) {
    CLEANUP_STR struct str n = STR_INIT;
    if (!isalpha((unsigned char)python_name[0]) && python_name[0] != '_') str_addc(&n, '_');
    for (const char *p = python_name; *p; p++) {
        unsigned char c = (unsigned char)*p;
        str_addc(&n, c < 128 && isalnum(c) ? *p : '_');
    }
    while (name_taken(s, str_c(&n))) str_addc(&n, '_');
    return arena_strndup(a, n.p, n.len);
}

static int find_name(const char *const *names, size_t n, const char *name) {
    for (size_t i = 0; name && i < n; i++)
        if (names[i] && strcmp(names[i], name) == 0) return (int)i;
    return -1;
}

static enum status parse_shape(const json_t *shape, int index, struct arg *out, struct err *e) {
    size_t nd = json_array_size(shape);
    if (!json_is_array(shape) || nd > ARRAY_LEN(out->dim))
        return FAIL(e, ST_PARSE, "args[%d].shape: expected an array of at most %zu sizes", index, ARRAY_LEN(out->dim));
    out->nd = (int)nd;
    out->count = 1;
    for (size_t d = 0; d < nd; d++) {
        const json_t *size = json_array_get(shape, d);
        int64_t n = json_is_integer(size) ? json_integer_value(size) : -1;
        if (n < 0 || n > max_elements || (n > 0 && out->count > max_elements / n))
            return FAIL(e, ST_PARSE, "args[%d].shape[%zu]: expected a size that leaves at most 2^40 elements", index,
                        d);
        out->dim[d] = n;
        out->count *= n;
    }
    return ST_OK;
}

static enum status parse_arg(struct arena *a, const json_t *j, struct spec *s, struct err *e) {
    static const char *const type_names[] = {
        [TYPE_F32] = "f32", [TYPE_F16] = "f16", [TYPE_BF16] = "bf16", [TYPE_I64] = "i64", [TYPE_BOOL] = "bool"};
    int i = s->n_args;
    struct arg *out = &s->args[i];
    const char *name = json_string_value(json_object_get(j, "name"));
    if (!name || !*name || strlen(name) > 200)
        return FAIL(e, ST_PARSE, "args[%d].name: expected a string of 1 to 200 bytes", i);
    int role = find_name(roles, ARRAY_LEN(roles), json_string_value(json_object_get(j, "role")));
    if (role < 0) return FAIL(e, ST_PARSE, "args[%d].role: expected input, param, buffer or output", i);
    if (i > 0 && role < (int)s->args[i - 1].role)
        return FAIL(e, ST_PARSE, "args[%d].role: %s after %s; expected inputs, params, buffers, outputs", i,
                    roles[role], roles[s->args[i - 1].role]);
    int type = find_name(type_names, ARRAY_LEN(type_names), json_string_value(json_object_get(j, "type")));
    if (type < 0) return FAIL(e, ST_PARSE, "args[%d].type: expected f32, f16, bf16, i64 or bool", i);
    TRY(parse_shape(json_object_get(j, "shape"), i, out, e));
    out->role = (enum arg_role)role;
    out->type = (enum arg_type)type;
    out->scalar = json_is_true(json_object_get(j, "scalar"));
    out->mutated = json_is_true(json_object_get(j, "mutated"));
    if (out->scalar && (role != ARG_INPUT || out->nd != 0 || type == TYPE_F16 || type == TYPE_BF16))
        return FAIL(e, ST_PARSE, "args[%d].scalar: only an input without dimensions of f32, i64 or bool can be one", i);
    if (out->mutated && role != ARG_BUFFER) return FAIL(e, ST_PARSE, "args[%d].mutated: only a buffer can be", i);
    /* This comes last, because name_taken() looks at the arguments before this one. */
    out->name = c_name(a, s, name);
    s->n_args++;
    return ST_OK;
}

enum status spec_parse(struct arena *a, const char *json, size_t len, struct spec *out, struct err *e) {
    *out = (struct spec){0};
    json_error_t je;
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES, &je);
    if (!root) return FAIL(e, ST_PARSE, "spec: line %d: %s", je.line, je.text);
    enum status st = ST_OK;
    const json_t *args = json_object_get(root, "args");
    size_t n = json_array_size(args);
    if (!json_is_array(args) || n < 1 || n > SPEC_MAX_ARGS) {
        st = FAIL(e, ST_PARSE, "spec: args: expected an array of 1 to %d arguments", SPEC_MAX_ARGS);
        goto done;
    }
    out->args = arena_array(a, struct arg, n);
    for (size_t i = 0; i < n; i++) {
        st = parse_arg(a, json_array_get(args, i), out, e);
        if (st != ST_OK) {
            err_note(e, "spec");
            goto done;
        }
    }
    if (out->args[n - 1].role != ARG_OUTPUT) st = FAIL(e, ST_PARSE, "spec: args: expected at least one output");
done:
    json_decref(root);
    return st;
}

void spec_render_arg(const struct arg *a, struct str *out) {
    if (a->scalar) {
        str_addf(out, "%s %s", arg_type_c(a), a->name);
        return;
    }
    bool written = a->role == ARG_OUTPUT || a->mutated;
    str_addf(out, "%s%s *restrict %s", written ? "" : "const ", arg_type_c(a), a->name);
}

void spec_render_macros(const struct spec *s, struct str *out) {
    for (int i = 0; i < s->n_args; i++) {
        const struct arg *a = &s->args[i];
        if (a->scalar) continue;
        char upper[256];
        size_t n = 0;
        for (; a->name[n] && n + 1 < sizeof upper; n++) upper[n] = (char)toupper((unsigned char)a->name[n]);
        upper[n] = 0;
        for (int d = 0; d < a->nd; d++) str_addf(out, "#define %s_D%d %lld\n", upper, d, (long long)a->dim[d]);
        str_addf(out, "#define %s_N %lld\n", upper, (long long)a->count);
    }
}

void spec_render_prototype(const struct spec *s, bool prepared, bool scratch, struct str *out) {
    str_adds(out, "void kernel(");
    for (int i = 0; i < s->n_args; i++) {
        if (i) str_adds(out, ", ");
        spec_render_arg(&s->args[i], out);
    }
    if (prepared) str_adds(out, ", const void *prepared");
    if (scratch) str_adds(out, ", void *scratch");
    str_adds(out, ");\n");
}

void spec_render_c(const struct spec *s, struct str *out) {
    spec_render_macros(s, out);
    spec_render_prototype(s, false, false, out);
}
