/* spec: the interface that a native answer must implement, as the reference worker reports it for a problem
 * (docs/formats.md, "Native ABI"). It is parsed from the worker's JSON, and rendered to the C prototype that is shown
 * in prompts and compiled in front of every answer. */
#ifndef KERNELRL_SPEC_H
#define KERNELRL_SPEC_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

enum arg_role { ARG_INPUT, ARG_PARAM, ARG_BUFFER, ARG_OUTPUT };
enum arg_type { TYPE_F32, TYPE_F16, TYPE_BF16, TYPE_I64, TYPE_BOOL };

struct arg {
    const char *name; /* A C identifier. */
    enum arg_role role;
    enum arg_type type;
    bool scalar; /* true: it is passed by value. */
    /* true: it is a buffer that forward() changes. It is passed so that it can be written to, and compared. */
    bool mutated;
    int nd;
    int64_t dim[8];
    int64_t count; /* How many elements it has. 1 for a scalar. */
};

struct spec {
    struct arg *args;
    int n_args;
};

enum { SPEC_MAX_ARGS = 1024 };

/* Parses arguments in ABI order: inputs, parameters, buffers, outputs. Any other order is an error. The JSON is
 * {"args": [{"name", "role", "type", "shape", "scalar", "mutated"}, ...]} (docs/formats.md, "Spec"). Names arrive as
 * Python has them, and become C identifiers that clash with nothing. Memory comes from the arena. */
enum status spec_parse(struct arena *a, const char *json, size_t len, struct spec *out, struct err *e) MUST_USE;
/* Appends the dimension macros and the prototype of kernel(). */
void spec_render_c(const struct spec *s, struct str *out);
/* The two halves of spec_render_c. An answer that defines prepared_bytes() or scratch_bytes() has a longer kernel(). */
void spec_render_macros(const struct spec *s, struct str *out);
void spec_render_prototype(const struct spec *s, bool prepared, bool scratch, struct str *out);
/* Appends "const float *restrict x" for one argument. */
void spec_render_arg(const struct arg *a, struct str *out);

const char *arg_type_c(const struct arg *a); /* "float"; for a scalar "double", "int64_t" or "uint8_t". */
size_t arg_bytes(const struct arg *a);       /* The bytes of the whole tensor; 8 for a scalar. */

#endif
