#include "verify/build/c_source.h"

static const char prologue[] = "#define KERNELRL_ABI 1\n" UNIT_HEADERS;

static const char epilogue[] = "\n#line 1 \"kernelrl_shim.c\"\n"
                               "#define KERNELRL_EXPORT __attribute__((visibility(\"default\")))\n"
                               "KERNELRL_EXPORT volatile int kernelrl_out_of_memory;\n"
                               /* Without this attribute a small kernel is compiled twice: once more where the shim
                                * calls it. */
                               "__typeof__(kernel) kernel __attribute__((noinline));\n";

/* The allocator wrappers tell an answer that asked for more memory than allowed from any other crash on a null pointer.
 * Few answers allocate, and compiling the wrappers takes as long as compiling a small answer, so only those that may
 * allocate get them. */
static const char wrappers[] = "void *__real_malloc(size_t);\n"
                               "void *__real_calloc(size_t, size_t);\n"
                               "void *__real_realloc(void *, size_t);\n"
                               "void *__real_aligned_alloc(size_t, size_t);\n"
                               "int __real_posix_memalign(void **, size_t, size_t);\n"
                               "void *__wrap_malloc(size_t n) {\n"
                               "    void *p = __real_malloc(n);\n"
                               "    if (!p && n) kernelrl_out_of_memory = 1;\n"
                               "    return p;\n"
                               "}\n"
                               "void *__wrap_calloc(size_t a, size_t b) {\n"
                               "    void *p = __real_calloc(a, b);\n"
                               "    if (!p && a && b) kernelrl_out_of_memory = 1;\n"
                               "    return p;\n"
                               "}\n"
                               "void *__wrap_realloc(void *old, size_t n) {\n"
                               "    void *p = __real_realloc(old, n);\n"
                               "    if (!p && n) kernelrl_out_of_memory = 1;\n"
                               "    return p;\n"
                               "}\n"
                               "void *__wrap_aligned_alloc(size_t a, size_t n) {\n"
                               "    void *p = __real_aligned_alloc(a, n);\n"
                               "    if (!p && n) kernelrl_out_of_memory = 1;\n"
                               "    return p;\n"
                               "}\n"
                               "int __wrap_posix_memalign(void **p, size_t a, size_t n) {\n"
                               "    int r = __real_posix_memalign(p, a, n);\n"
                               "    if (r == 12) kernelrl_out_of_memory = 1;\n"
                               "    return r;\n"
                               "}\n";

static void render_prepare_prototype(const struct spec *s, struct str *out) {
    str_adds(out, "size_t prepared_bytes(void);\nvoid prepare(");
    for (int i = 0; i < s->n_args; i++) {
        const struct arg *a = &s->args[i];
        if (a->role != ARG_PARAM && a->role != ARG_BUFFER) continue;
        /* A buffer that forward() changes has no fixed value to prepare from, so it is read-only here. */
        str_addf(out, "const %s *restrict %s, ", arg_type_c(a), a->name);
    }
    str_adds(out, "void *prepared);\n");
}

static void render_argument(const struct arg *a, int index, bool constant, struct str *out) {
    if (a->scalar)
        str_addf(out, "*(const %s *)kernelrl_a[%d]", arg_type_c(a), index);
    else
        str_addf(out, "(%s%s *)kernelrl_a[%d]", constant ? "const " : "", arg_type_c(a), index);
}

static void render_shim(const struct spec *s, const struct lint_facts *f, struct str *out) {
    str_adds(out, epilogue);
    if (f->may_allocate) str_adds(out, wrappers);
    str_addf(out, "KERNELRL_EXPORT size_t kernelrl_scratch_bytes(void) { return %s; }\n",
             f->has_scratch ? "scratch_bytes()" : "0");
    str_addf(out, "KERNELRL_EXPORT size_t kernelrl_prepared_bytes(void) { return %s; }\n",
             f->has_prepared ? "prepared_bytes()" : "0");
    str_adds(out, "KERNELRL_EXPORT void kernelrl_prepare(void **kernelrl_a) {\n    (void)kernelrl_a;\n");
    if (f->has_prepared) {
        str_adds(out, "    prepare(");
        for (int i = 0; i < s->n_args; i++) {
            if (s->args[i].role != ARG_PARAM && s->args[i].role != ARG_BUFFER) continue;
            render_argument(&s->args[i], i, true, out);
            str_adds(out, ", ");
        }
        str_addf(out, "kernelrl_a[%d]);\n", s->n_args);
    }
    str_adds(out, "}\nKERNELRL_EXPORT void kernelrl_call(void **kernelrl_a) {\n    kernel(");
    for (int i = 0; i < s->n_args; i++) {
        const struct arg *a = &s->args[i];
        if (i) str_adds(out, ", ");
        render_argument(a, i, a->role != ARG_OUTPUT && !a->mutated, out);
    }
    if (f->has_prepared) str_addf(out, ", (const void *)kernelrl_a[%d]", s->n_args);
    if (f->has_scratch) str_addf(out, ", kernelrl_a[%d]", s->n_args + 1);
    str_adds(out, ");\n}\n");
}

void unit_render(const struct spec *spec, const struct lint_facts *facts, const char *source, struct str *out) {
    str_adds(out, prologue);
    spec_render_macros(spec, out);
    if (facts->has_scratch) str_adds(out, "size_t scratch_bytes(void);\n");
    if (facts->has_prepared) render_prepare_prototype(spec, out);
    /* A wrong signature is reported against this line. */
    str_adds(out, "#line 1 \"kernelrl.h\"\n");
    spec_render_prototype(spec, facts->has_prepared, facts->has_scratch, out);
    str_adds(out, "#line 1 \"kernel.c\"\n");
    str_adds(out, source);
    render_shim(spec, facts, out);
}
