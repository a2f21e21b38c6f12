#include "policy/prompt.h"

#include <stdio.h>
#include <string.h>

#include "base/pool.h"

static const char *const c_text =
    "You write fast and correct C kernels. Given a PyTorch module, write one C function `kernel` with the given "
    "prototype that computes what forward() computes. Sizes are macros. Use OpenMP and loops that vectorise. "
    "Put the complete C code in one ```c block between <KERNEL> and </KERNEL>.";
static const char *const cuda_native_text =
    "You write fast and correct CUDA kernels. Given a PyTorch module, write one CUDA translation unit whose host "
    "function `kernel` has the given prototype, launches on the given stream and computes what forward() computes. "
    "Pointers are device memory, sizes are macros. "
    "Put the complete CUDA code in one ```cuda block between <KERNEL> and </KERNEL>.";
static const char *const module_text =
    "You write fast and correct %s. Given a PyTorch module `Model`, write a Python module with a class `ModelNew` that "
    "has the same constructor and forward() and computes the same faster, with %s in place of PyTorch operators where "
    "that pays. Operators may be fused and algorithms changed. "
    "Put the complete Python code in one ```python block between <KERNEL> and </KERNEL>.";
static const char think_text[] = " First plan between <think> and </think> in at most five short points.";

static const char *system_text(const struct backend_info *b, struct arena *a) {
    if (strcmp(b->name, "c") == 0) return c_text;
    if (!b->is_module) return cuda_native_text;
    return arena_printf(a, module_text, b->title, b->title);
}

static void add_fenced(struct str *s, const char *lang, const char *code) {
    size_t n = strlen(code);
    while (n > 0 && (code[n - 1] == '\n' || code[n - 1] == ' ')) n--;
    str_addf(s, "```%s\n", lang);
    str_add(s, code, n);
    str_adds(s, "\n```\n");
}

enum answer_language prompt_language(const struct backend_info *backend) {
    return backend && backend->is_module ? ANSWER_PYTHON : ANSWER_C;
}

void prompt_answer(const struct backend_info *backend, const char *kernel, struct str *out) {
    str_adds(out, "<KERNEL>\n");
    add_fenced(out, backend ? backend->fence : "c", kernel);
    str_adds(out, "</KERNEL>");
}

static void add_prototype(const struct spec *spec, struct str *u) {
    CLEANUP_STR struct str proto = STR_INIT;
    spec_render_c(spec, &proto);
    str_adds(u, "\nPrototype:\n");
    add_fenced(u, "c", str_c(&proto));
}

void prompt_build(const struct prompt_input *in, struct arena *a, struct chat_message messages[2]) {
    ASSERT(in->n_examples <= PROMPT_EXAMPLES_MAX && in->n_attempts <= PROMPT_ATTEMPTS_MAX);
    const struct backend_info *backend = in->backend ? in->backend : backend_info(BACKEND_c);
    struct str u = STR_INIT;
    for (int i = 0; i < in->n_examples; i++) {
        str_addf(&u, "Example %d:\n", i + 1);
        add_fenced(&u, "python", in->examples[i].code);
        prompt_answer(backend, in->examples[i].kernel, &u);
        str_adds(&u, "\n\n");
    }
    if (in->hardware) str_addf(&u, "Hardware:\n%s\n", in->hardware);
    str_adds(&u, "Module:\n");
    add_fenced(&u, "python", in->problem->code);
    if (in->precision) str_addf(&u, "\nPrecision: %s\n", in->precision);
    if (!backend->is_module) add_prototype(in->spec, &u);
    for (int i = 0; i < in->n_attempts; i++) {
        const struct prompt_attempt *t = &in->attempts[i];
        str_addf(&u, "\nAttempt %d:\n", i + 1);
        if (t->summary && *t->summary) str_addf(&u, "%s\n", t->summary);
        if (t->kernel)
            prompt_answer(backend, t->kernel, &u);
        else
            str_adds(&u, "No kernel.");
        str_addf(&u, "\nResult: %s\n", t->feedback);
    }
    if (in->n_attempts > 0) str_adds(&u, "\nWrite a better kernel.\n");
    while (u.len > 0 && u.p[u.len - 1] == '\n') u.p[--u.len] = 0;
    const char *system = system_text(backend, a);
    messages[0] = (struct chat_message){.role = "system",
                                        .content = in->think ? arena_printf(a, "%s%s", system, think_text) : system};
    messages[1] = (struct chat_message){.role = "user", .content = arena_strndup(a, str_c(&u), u.len)};
    str_free(&u);
}

/* ---- hardware -----------------------------------------------------------------------------------------------------*/

/* Vendors' figures, dense; TFLOPS, kilobytes of shared memory a multiprocessor and a block. */
static const struct gpu {
    const char *name, *architecture;
    int memory_gb, bandwidth_gb_s;
    double fp32, tf32, half;
    int blocks_per_sm, shared_sm_kb, shared_block_kb;
} gpus[] = {
    {"T4", "Turing", 16, 320, 8.1, 0, 65, 16, 64, 64},
    {"A10G", "Ampere", 24, 600, 31, 35, 70, 16, 100, 99},
    {"A100", "Ampere", 40, 1555, 19.5, 156, 312, 32, 164, 163},
    {"A100-80GB", "Ampere", 80, 2039, 19.5, 156, 312, 32, 164, 163},
    {"L4", "Ada", 24, 300, 30, 60, 121, 24, 100, 99},
    {"L40S", "Ada", 48, 864, 91.6, 183, 362, 24, 100, 99},
    {"H100", "Hopper", 80, 3350, 67, 494, 989, 32, 228, 227},
    {"H200", "Hopper", 141, 4800, 67, 494, 989, 32, 228, 227},
    {"B200", "Blackwell", 180, 8000, 75, 1100, 2250, 32, 228, 227},
};

static void describe_cpu(struct str *out) {
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[8192], model[256] = "unknown processor", vector[64] = "";
    while (f && fgets(line, sizeof line, f)) {
        char *value = strchr(line, ':');
        if (!value) continue;
        value += 1 + (value[1] == ' ');
        value[strcspn(value, "\n")] = 0;
        if (str_has_prefix(line, "model name")) snprintf(model, sizeof model, "%.250s", value);
        if (!str_has_prefix(line, "flags")) continue;
        const char *best = strstr(value, " avx512f") ? "AVX-512" : strstr(value, " avx2") ? "AVX2" : "";
        snprintf(vector, sizeof vector, "%s%s", best, strstr(value, " amx_bf16") ? " and AMX" : "");
    }
    if (f) fclose(f);
    str_addf(out, "%s, %d threads%s%s\n", model, pool_cpu_count(), *vector ? ", " : "", vector);
}

enum status prompt_hardware(const char *name, struct str *out, struct err *e) {
    if (strcmp(name, "cpu") == 0) {
        describe_cpu(out);
        return ST_OK;
    }
    for (size_t i = 0; i < ARRAY_LEN(gpus); i++) {
        const struct gpu *g = &gpus[i];
        if (strcmp(g->name, name) != 0) continue;
        str_addf(out, "NVIDIA %s (%s)\n- %d GB of memory at %d GB/s\n- FP32 %g TFLOPS", g->name, g->architecture,
                 g->memory_gb, g->bandwidth_gb_s, g->fp32);
        if (g->tf32 > 0) str_addf(out, ", TF32 %g", g->tf32);
        str_addf(out, ", %s %g\n", g->tf32 > 0 ? "FP16 and BF16" : "FP16", g->half);
        str_addf(out,
                 "- 64K registers a multiprocessor, 255 a thread; %d blocks and %d KB of shared memory a "
                 "multiprocessor, %d KB a block\n",
                 g->blocks_per_sm, g->shared_sm_kb, g->shared_block_kb);
        return ST_OK;
    }
    CLEANUP_STR struct str known = STR_INIT;
    for (size_t i = 0; i < ARRAY_LEN(gpus); i++) str_addf(&known, ", %s", gpus[i].name);
    return FAIL(e, ST_CONFIG, "dataset_builder.prompt_gpu_name: expected cpu%s, got \"%s\"", str_c(&known), name);
}
