#include "optimize/dropin.h"

#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/home.h"
#include "io/json.h"

enum { TEMPLATE_MAX = 1 << 20 };

const char *dropin_answer_name(const struct backend_info *b) {
    return strcmp(b->ending, "c") == 0 ? "best.c" : strcmp(b->ending, "cu") == 0 ? "best.cu" : "best_answer.py";
}

/* Appends a Python string: JSON's form is one. */
static void put_text(struct str *out, const char *text) { js_add_quoted(out, text, strlen(text)); }

static enum status add_template(const char *name, struct str *out, struct err *e) {
    CLEANUP_STR struct str path = STR_INIT;
    CLEANUP_FREE char *text = NULL;
    size_t n;
    str_addf(&path, "%s/worker/dropin/%s", home_dir(), name);
    TRY(fs_read(path.p, TEMPLATE_MAX, &text, &n, e));
    str_addc(out, '\n');
    str_add(out, text, n);
    return ST_OK;
}

static void put_args(const struct spec *s, bool on_cpu, struct str *out) {
    static const char *const roles[] = {
        [ARG_INPUT] = "input", [ARG_PARAM] = "param", [ARG_BUFFER] = "buffer", [ARG_OUTPUT] = "output"};
    static const char *const types[] = {
        [TYPE_F32] = "f32", [TYPE_F16] = "f16", [TYPE_BF16] = "bf16", [TYPE_I64] = "i64", [TYPE_BOOL] = "bool"};
    str_adds(out, "    [");
    for (int i = 0; i < s->n_args; i++) {
        const struct arg *a = &s->args[i];
        /* A kernel on a GPU gets no buffers that are not floating-point. */
        if (!on_cpu && a->role == ARG_BUFFER && (a->type == TYPE_I64 || a->type == TYPE_BOOL)) continue;
        str_addf(out, "\n        {\"role\": \"%s\", \"type\": \"%s\", \"shape\": (", roles[a->role], types[a->type]);
        for (int d = 0; d < a->nd; d++) str_addf(out, "%lld, ", (long long)a->dim[d]);
        str_addf(out, ")%s%s},", a->scalar ? ", \"scalar\": True" : "", a->mutated ? ", \"mutated\": True" : "");
    }
    str_adds(out, "\n    ],\n");
}

/* Units and arguments of all shapes, and how a unit is compiled. */
static enum status put_native(const struct search_task *t, const struct search_candidate *best, bool on_cpu,
                              struct verifier *v, struct str *out, struct err *e) {
    str_adds(out, "UNITS = [\n");
    for (int k = 0; k < t->n_shapes; k++) {
        CLEANUP_STR struct str unit = STR_INIT;
        TRY(verifier_unit(v, &t->shape[k], best->kernel, &unit, e));
        str_adds(out, "    ");
        put_text(out, unit.p);
        str_adds(out, ",\n");
    }
    str_adds(out, "]\nARGUMENTS = [\n");
    for (int k = 0; k < t->n_shapes; k++) {
        const struct spec *spec;
        TRY(verifier_spec(v, &t->shape[k], &spec, e));
        put_args(spec, on_cpu, out);
    }
    str_adds(out, "]\n");
    if (on_cpu)
        str_addf(out,
                 "ENDING = \".c\"\nCOMPILE = [\"gcc\", \"-std=gnu11\", \"-O3\", \"-march=native\", \"-fopenmp\", "
                 "\"-fno-math-errno\", \"-fPIC\", \"-fvisibility=hidden\", \"-shared\"]\nLINK = [\"%s\", \"-lm\"]\n",
                 verifier_link_options);
    else
        str_adds(out, "ENDING = \".cu\"\nCOMPILE = [\"nvcc\", \"-O3\", \"-std=c++17\", \"-arch=native\", \"-shared\", "
                      "\"-Xcompiler\", \"-fPIC\", \"--expt-relaxed-constexpr\"]\nLINK = []\n");
    return ST_OK;
}

enum status dropin_write(const char *dir, const struct search_task *t, const struct search_candidate *best,
                         const struct backend_info *backend, const char *device, struct verifier *v,
                         const char *summary, struct err *e) {
    CLEANUP_STR struct str py = STR_INIT;
    CLEANUP_FREE char *answer = fs_join(dir, dropin_answer_name(backend)), *dropin = fs_join(dir, "best.py");
    const bool on_cpu = strcmp(device, "cpu") == 0;
    TRY(fs_write_atomic(answer, best->kernel, strlen(best->kernel), e));
    str_addf(&py, "\"\"\"%s\n\n    import best\n    best.patch(model)\n\nWritten by kernelrl optimize.\"\"\"\n\n",
             summary);
    if (backend->is_module) {
        str_adds(&py, best->kernel);
        str_adds(&py, "\n\nimport torch  # noqa: E402\n");
    }
    str_addf(&py, "\nMODULE = \"%s\"\n_DEVICE = \"%s\"\nPROBLEMS = [\n", t->module, on_cpu ? "cpu" : "cuda");
    for (int k = 0; k < t->n_shapes; k++) {
        str_adds(&py, "    ");
        put_text(&py, t->shape[k].code);
        str_adds(&py, ",\n");
    }
    str_adds(&py, "]\n");
    if (!backend->is_module) TRY(put_native(t, best, on_cpu, v, &py, e));
    TRY(add_template(backend->is_module ? "module.py" : "native.py", &py, e));
    TRY(add_template("patch.py", &py, e));
    return fs_write_atomic(dropin, py.p, py.len, e);
}
