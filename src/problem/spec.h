/* spec: the interface a native answer must implement, as the reference worker reports it for a problem
 * (docs/formats.md, "Native ABI"). Parsed from the worker's JSON; rendered to the C prototype shown in prompts and
 * compiled in front of every answer. */
#ifndef KERNELRL_SPEC_H
#define KERNELRL_SPEC_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

enum arg_role { ARG_INPUT, ARG_PARAM, ARG_BUFFER, ARG_OUTPUT };
enum arg_type { TYPE_F32, TYPE_F16, TYPE_BF16, TYPE_I64, TYPE_BOOL };

struct arg {
    const char *name; /* C identifier */
    enum arg_role role;
    enum arg_type type;
    bool scalar;   /* passed by value */
    bool mutated;  /* a buffer that forward() changes: passed mutable and compared */
    int nd;
    int64_t dim[8];
    int64_t count; /* elements */
};

struct spec {
    struct arg *args;
    int n_args;
};

/* Arguments in ABI order: inputs, parameters, buffers, outputs. Memory from the arena. */
enum status spec_parse(struct arena *a, const char *json, size_t len, struct spec *out, struct err *e) MUST_USE;
/* Appends the dimension macros and the prototype of kernel(). */
void spec_render_c(const struct spec *s, struct str *out);

#endif
