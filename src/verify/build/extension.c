#include "verify/build/extension.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/home.h"
#include "base/str.h"
#include "io/json.h"

enum { MAX_OPTIONS = 60 };
#define HALVES "//==== device half ===="

/* halves NVCC OPTION...: compiles the host's and the device's side of kernel.cu at once, while nvcc does one after the
 * other. It runs what --dryrun prints, in two parts, up to the host's compiler. cudafe++ makes up the module's name,
 * which cicc reads; here both are given the name. A plan of another form is left to nvcc. */
#define TWO_SIDES                                                                                                      \
    "halves() {\n"                                                                                                     \
    "\"$@\" --dryrun --keep >plan 2>&1 && awk '\n"                                                                     \
    "{ sub(/^#\\$ /, \"\") }\n"                                                                                        \
    "/^(PATH|TOP|CICC_PATH|NVVMIR_LIBRARY_DIR)=/ {\n"                                                                  \
    "    i = index($0, \"=\"); print \"export \" substr($0, 1, i) \"\\\"\" substr($0, i + 1) \"\\\"\" >\"set\"; next " \
    "}\n"                                                                                                              \
    "/^[A-Za-z_]+=/ || /^rm / { next }\n"                                                                              \
    "/^cudafe\\+\\+ / && !rest { n += sub(/--gen_module_id_file/, \"\"); print $0 \" || exit 1\" >\"host\"; next }\n"  \
    "/ -E .*cpp4\\.ii\" *$/ && !rest { n++; print $0 \" || exit 1\" >\"host\"; next }\n"                               \
    "/ -E .*cpp1\\.ii\" *$/ && !rest { n++; print $0 \" || exit 1\" >\"device\"; next }\n"                             \
    "/cicc\" / && !rest { n++; print $0 \" || exit 1\" >\"device\"; next }\n"                                          \
    "/^ptxas / && !rest { n++; print $0 \" || exit 1\" >\"device\"; next }\n"                                          \
    "/^fatbinary / && !rest { n++; print $0 \" || exit 1\" >\"device\"; next }\n"                                      \
    "{ rest = 1; print $0 \" || exit 1\" >\"rest\" }\n"                                                                \
    "END { exit n != 6 }' plan && printf _kernelrl >kernel.module_id || { \"$@\"; return; }\n"                         \
    "(. ./set; (. ./device) >device.log 2>&1 & . ./host\n"                                                             \
    "wait $! || { cat device.log; exit 1; }; . ./rest)\n"                                                              \
    "}\n"

/* For g++ as a linker: nobody runs what an answer has put into sections of LTO. */
#define NO_LTO "-fno-use-linker-plugin", "-fno-lto"

/* The stand-in's unit is one file. $1 is the compiler's name, the rest are its options. */
static const char cuda_script[] =
    TWO_SIDES "cd \"$TMPDIR\" && cat >kernel.cu && halves \"$@\" -o answer.so kernel.cu >log 2>&1 || "
              "{ cat log >&2; exit 1; }\ncat answer.so";
static const char cpp_script[] = "cd \"$TMPDIR\" && cat >kernel.cpp && \"$@\" -o answer.so kernel.cpp >log 2>&1 || "
                                 "{ cat log >&2; exit 1; }\ncat answer.so";
/* Compiles with the real headers, both halves at once. $1: nvcc (or empty), $2: options of both, $3: of nvcc, $4: of
 * the linker; the rest are those of the host's compiler. Options are words without blanks. */
static const char full_script[] =
    TWO_SIDES "cd \"$TMPDIR\" && awk 'BEGIN { f = \"main.cpp\" } $0 == \"" HALVES
              "\" { f = \"kernel.cu\"; next } { print > f }'\n"
              "nvcc=$1 both=$2 device=$3 link=$4; shift 4; objects=main.o\n"
              "g++ -c -fPIC -O1 $both \"$@\" main.cpp -o main.o <main.cpp 2>main.log &\n"
              "if test -s kernel.cu; then\n"
              "    objects=\"main.o kernel.o\"\n"
              "    halves \"$nvcc\" -c -O2 -Xcompiler -fPIC --expt-relaxed-constexpr $both $device "
              "kernel.cu -o kernel.o "
              ">kernel.log 2>&1 || { cat kernel.log >&2; exit 1; }\n"
              "fi\n"
              "wait $! || { cat main.log >&2; exit 1; }\n"
              "g++ -shared -fno-use-linker-plugin -fno-lto $objects -o answer.so $link 2>link.log || { cat link.log "
              ">&2; exit 1; }\n"
              "cat answer.so";

/* ---- what there is ---- */

static bool find_nvcc(char *path, size_t size) {
    const char *given = getenv("NVCC");
    if (given && *given) return process_find(given, path, size);
    return process_find("nvcc", path, size) || process_find("/usr/local/cuda/bin/nvcc", path, size);
}

static void parent_of(char *path) {
    char *slash = strrchr(path, '/');
    if (slash && slash != path) *slash = 0;
}

static void add_list(struct jail *jail, const json_t *list, const char *option, char *out, size_t size) {
    size_t n = strlen(out);
    for (size_t i = 0; i < json_array_size(list) && n < size; i++) {
        const char *dir = json_string_value(json_array_get(list, i));
        if (!dir || strpbrk(dir, " \t\n'\"$")) continue;
        jail_show(jail, dir);
        n += (size_t)snprintf(out + n, size - n, "%s%s%s", n ? " " : "", option, dir);
    }
}

enum status extension_open(struct extension_tools *t, struct jail *jail, const json_t *paths, const char *capability,
                           struct err *e) {
    char path[PATH_MAX], real[PATH_MAX];
    *t = (struct extension_tools){.nvcc = ""};
    if (find_nvcc(path, sizeof path) && realpath(path, real) && strlen(real) < sizeof t->nvcc) {
        memcpy(t->nvcc, real, strlen(real) + 1);
        parent_of(real);
        parent_of(real);
        jail_show(jail, real);
    }
    if (capability) {
        /* Hopper and later have instructions of their own, under the letter a. */
        int64_t number = 0;
        const char *a = parse_i64(capability, &number) && number >= 90 ? "a" : "";
        snprintf(t->architecture, sizeof t->architecture, "arch=compute_%.8s%s,code=sm_%.8s%s", capability, a,
                 capability, a);
    }
    const char *standard = json_string_value(json_object_get(paths, "standard"));
    snprintf(t->standard, sizeof t->standard, "%s", standard ? standard : "c++17");
    add_list(jail, json_object_get(paths, "include"), "-I", t->include_options, sizeof t->include_options);
    add_list(jail, json_object_get(paths, "library"), "-L", t->link_options, sizeof t->link_options);
    snprintf(path, sizeof path, "%s/worker/include/standin.h", home_dir());
    return fs_read(path, 1 << 20, &t->standin, NULL, e);
}

void extension_close(struct extension_tools *t) {
    free(t->standin);
    t->standin = NULL;
}

/* ---- sources ---- */

/* Returns whether a line includes a header that the stand-in replaces. */
static bool is_torch_include(const char *line, size_t n) {
    static const char *const roots[] = {"torch/", "ATen/", "c10/", "pybind11/"};
    size_t i = 0;
    while (i < n && isblank((unsigned char)line[i])) i++;
    if (i >= n || line[i++] != '#') return false;
    while (i < n && isblank((unsigned char)line[i])) i++;
    if (n - i < 8 || strncmp(line + i, "include", 7) != 0) return false;
    i += 7;
    while (i < n && isblank((unsigned char)line[i])) i++;
    if (i >= n || (line[i] != '<' && line[i] != '"')) return false;
    i++;
    for (size_t k = 0; k < ARRAY_LEN(roots); k++)
        if (n - i >= strlen(roots[k]) && strncmp(line + i, roots[k], strlen(roots[k])) == 0) return true;
    return false;
}

/* Copies a source with torch's includes as empty lines, so that line numbers stay. */
static void add_source(struct str *out, const char *source, const char *name) {
    str_addf(out, "#line 1 \"%s\"\n", name);
    for (const char *p = source; *p;) {
        size_t n = strcspn(p, "\n");
        if (!is_torch_include(p, n)) str_add(out, p, n);
        str_addc(out, '\n');
        p += n + (p[n] == '\n');
    }
}

static const char *text_of(const json_t *request, const char *key) {
    const char *s = json_string_value(json_object_get(request, key));
    return s ? s : "";
}

static bool is_identifier(const char *s) {
    if (!s || !*s || isdigit((unsigned char)*s)) return false;
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && *s != '_') return false;
    return true;
}

static void standin_unit(const struct extension_tools *t, const json_t *request, bool cuda, struct str *out) {
    const json_t *functions = json_object_get(request, "functions");
    str_adds(out, "#line 1 \"standin.h\"\n");
    str_adds(out, t->standin);
    /* The C++ side comes first: it declares what the CUDA side defines, and binds it. */
    add_source(out, text_of(request, "cpp"), "main.cpp");
    if (cuda) add_source(out, text_of(request, "cuda"), "kernel.cu");
    str_adds(out, "#line 1 \"bindings\"\n");
    for (size_t i = 0; i < json_array_size(functions); i++) {
        const char *name = json_string_value(json_array_get(functions, i));
        if (is_identifier(name)) str_addf(out, "KERNELRL_BIND(%s)\n", name);
    }
}

static void full_unit(const json_t *request, bool cuda, struct str *out) {
    const json_t *functions = json_object_get(request, "functions");
    str_adds(out, "#include <torch/extension.h>\n#line 1 \"main.cpp\"\n");
    str_adds(out, text_of(request, "cpp"));
    if (json_array_size(functions) > 0) {
        str_adds(out, "\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\n");
        for (size_t i = 0; i < json_array_size(functions); i++) {
            const char *name = json_string_value(json_array_get(functions, i));
            if (is_identifier(name)) str_addf(out, "m.def(\"%s\", &%s);\n", name, name);
        }
        str_adds(out, "}\n");
    }
    if (!cuda) return;
    str_adds(out, "\n" HALVES "\n#include <torch/types.h>\n#include <cuda.h>\n#include <cuda_runtime.h>\n"
                  "#line 1 \"kernel.cu\"\n");
    str_adds(out, text_of(request, "cuda"));
    str_addc(out, '\n');
}

/* ---- options ---- */

struct extension_options {
    char *word[MAX_OPTIONS + 1];
    int n;
};

static void option(struct extension_options *o, const char *word) {
    if (o->n < MAX_OPTIONS) o->word[o->n++] = (char *)(uintptr_t)word;
    o->word[o->n] = NULL;
}

/* Returns whether an answer may set this option. It may change how code is compiled, but not where files are, which
 * architecture it is for, or which standard: many ask for one that today's headers refuse. */
static bool allowed(const char *word) {
    static const char *const prefixes[] = {"-O",
                                           "-D",
                                           "-f",
                                           "-m",
                                           "-l",
                                           "--use_fast_math",
                                           "-use_fast_math",
                                           "--expt-",
                                           "-lineinfo",
                                           "--maxrregcount",
                                           "-maxrregcount",
                                           "--fmad",
                                           "-Xptxas",
                                           "--ptxas-options",
                                           "--extra-device-vectorization"};
    static const char *const refused[] = {"-fplugin", "-fdump", "-frandom", "-fprofile", "-save-temps",
                                          "-mllvm",   "-flto",  "-fuse-l",  "-foffload"};
    if (strpbrk(word, " \t\n'\"$`\\;|&<>*?")) return false;
    for (size_t i = 0; i < ARRAY_LEN(refused); i++)
        if (str_has_prefix(word, refused[i])) return false;
    for (size_t i = 0; i < ARRAY_LEN(prefixes); i++)
        if (str_has_prefix(word, prefixes[i])) return true;
    return false;
}

static void add_options(struct extension_options *o, const json_t *request, const char *key) {
    const json_t *list = json_object_get(request, key);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *word = json_string_value(json_array_get(list, i));
        /* An option and its value are two words: both are taken, or neither. */
        if (word && strcmp(word, "-Xptxas") == 0) {
            const char *next = json_string_value(json_array_get(list, ++i));
            if (!next || !allowed("-O") || strpbrk(next, " \t\n'\"$`\\;|&<>*?")) continue;
            option(o, word);
            option(o, next);
        } else if (word && allowed(word))
            option(o, word);
    }
}

static void joined_options(const json_t *request, const char *key, struct str *out) {
    struct extension_options o = {.n = 0};
    add_options(&o, request, key);
    for (int i = 0; i < o.n; i++) str_addf(out, "%s%s", out->len ? " " : "", o.word[i]);
}

/* ---- building ---- */

static void build_standin(const struct extension_tools *t, struct compiler *c, const json_t *request, bool cuda,
                          struct compile_job *job) {
    CLEANUP_STR struct str unit = STR_INIT;
    struct extension_options o = {.n = 0};
    standin_unit(t, request, cuda, &unit);
    if (cuda) {
        static const char *const words[] = {"-O2",
                                            "-std=c++17",
                                            "-shared",
                                            "-w",
                                            "-Xcompiler",
                                            "-fPIC,-w",
                                            "--expt-relaxed-constexpr",
                                            "--expt-extended-lambda",
                                            "-gencode"};
        option(&o, t->nvcc);
        for (size_t i = 0; i < ARRAY_LEN(words); i++) option(&o, words[i]);
        option(&o, t->architecture);
        add_options(&o, request, "cuda_cflags");
    } else {
        static const char *const words[] = {"g++", "-O2", "-std=c++17", "-shared", "-fPIC", "-w", "-fopenmp", NO_LTO};
        for (size_t i = 0; i < ARRAY_LEN(words); i++) option(&o, words[i]);
        add_options(&o, request, "cflags");
    }
    add_options(&o, request, "ldflags");
    job->unit = str_c(&unit);
    job->unit_bytes = unit.len;
    job->script = cuda ? cuda_script : cpp_script;
    job->args = o.word;
    compile_one(c, job);
}

static void build_full(const struct extension_tools *t, struct compiler *c, const json_t *request, bool cuda,
                       struct compile_job *job) {
    CLEANUP_STR struct str unit = STR_INIT, device = STR_INIT, link = STR_INIT, both = STR_INIT;
    struct extension_options o = {.n = 0};
    full_unit(request, cuda, &unit);
    str_addf(&both, "-std=%s -DTORCH_EXTENSION_NAME=kernelrl_extension -DTORCH_API_INCLUDE_EXTENSION_H %s", t->standard,
             t->include_options);
    str_addf(&device, "-gencode %s", t->architecture);
    joined_options(request, "cuda_cflags", &device);
    str_addf(&link, "%s -lc10 -ltorch_cpu -ltorch -ltorch_python%s", t->link_options,
             cuda ? " -lc10_cuda -ltorch_cuda -lcudart" : "");
    joined_options(request, "ldflags", &link);
    option(&o, t->nvcc);
    option(&o, str_c(&both));
    option(&o, cuda ? str_c(&device) : "");
    option(&o, str_c(&link));
    option(&o, "-w");
    add_options(&o, request, "cflags");
    job->unit = str_c(&unit);
    job->unit_bytes = unit.len;
    job->script = full_script;
    job->args = o.word;
    compile_one(c, job);
}

void extension_build(const struct extension_tools *t, struct compiler *c, const json_t *request, double timeout_s,
                     struct compile_job *job, bool *standin) {
    bool cuda = *text_of(request, "cuda") != 0;
    *job = (struct compile_job){.timeout_s = timeout_s, .result = COMPILE_FAILED};
    *standin = true;
    if (cuda && (!t->nvcc[0] || !t->architecture[0])) {
        snprintf(job->message, sizeof job->message, "CUDA sources, but there is %s here",
                 t->nvcc[0] ? "no GPU" : "no nvcc");
        return;
    }
    build_standin(t, c, request, cuda, job);
    if (job->result != COMPILE_FAILED) return;
    /* The stand-in may lack something, or the mistake may be real. The real headers decide, and what is said then
     * counts. */
    char first[sizeof job->message];
    memcpy(first, job->message, sizeof first);
    double spent = job->seconds;
    *job = (struct compile_job){.timeout_s = fmax(1, timeout_s - spent)}; /* Both together have the time of one. */
    *standin = false;
    if (t->include_options[0])
        build_full(t, c, request, cuda, job);
    else {
        job->result = COMPILE_FAILED;
        memcpy(job->message, first, sizeof first);
    }
    job->seconds += spent;
}

/* ---- native answers ---- */

static void native_prototype(const struct spec *spec, bool scratch, struct str *out) {
    str_adds(out, "void kernel(");
    for (int i = 0; i < spec->n_args; i++) {
        spec_render_arg(&spec->args[i], out);
        str_adds(out, ", ");
    }
    str_addf(out, "%scudaStream_t stream);\n", scratch ? "void *scratch, " : "");
}

/* Calls kernel() with an array of pointers, in ABI order, and then scratch. */
static void native_shim(const struct spec *spec, bool scratch, struct str *out) {
    str_adds(out, "\n#line 1 \"kernelrl_shim.cu\"\nextern \"C\" __attribute__((visibility(\"default\"))) void "
                  "kernelrl_native(void **a, void *stream) {\n    kernel(");
    for (int i = 0; i < spec->n_args; i++) {
        const struct arg *a = &spec->args[i];
        if (a->scalar)
            str_addf(out, "*(const %s *)a[%d], ", arg_type_c(a), i);
        else
            str_addf(out, "(%s%s *)a[%d], ", a->role == ARG_OUTPUT || a->mutated ? "" : "const ", arg_type_c(a), i);
    }
    if (scratch) str_addf(out, "a[%d], ", spec->n_args);
    str_addf(out,
             "(cudaStream_t)stream);\n}\nextern \"C\" __attribute__((visibility(\"default\"))) size_t "
             "kernelrl_scratch() { return %s; }\n",
             scratch ? "scratch_bytes()" : "0");
}

/* Returns whether a source may name something from the headers of 16-bit types, which take nvcc as long as all the
 * rest. It does so by a name, or by making names out of parts (pasted, or written over two lines, or with \u). */
static bool names_narrow(const char *source) {
    static const char *const parts[] = {"half", "__h",  "fp16", "bf16", "bfloat", "nv_bf",
                                        "##",   "\\\n", "\\\r", "\\u",  "\\U"};
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        if (strstr(source, parts[i])) return true;
    return false;
}

void extension_native_unit(const struct spec *spec, const char *source, bool cuda, struct str *out) {
    const bool scratch = strstr(source, "scratch_bytes(") != NULL;
    str_adds(out, "#define KERNELRL_ABI 1\n#include <math.h>\n#include <stddef.h>\n#include <stdint.h>\n"
                  "#include <string.h>\n");
    str_adds(out, cuda ? "#include <cuda_runtime.h>\n" : "typedef void *cudaStream_t;\n");
    if (cuda && names_narrow(source)) str_adds(out, "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n");
    str_adds(out, "#define restrict __restrict__\n");
    spec_render_macros(spec, out);
    if (scratch) str_adds(out, "size_t scratch_bytes(void);\n");
    str_adds(out, "#line 1 \"kernelrl.h\"\n");
    native_prototype(spec, scratch, out);
    str_adds(out, "#line 1 \"kernel.cu\"\n");
    str_adds(out, source);
    native_shim(spec, scratch, out);
}

void extension_build_native(const struct extension_tools *t, struct compiler *c, const struct spec *spec,
                            const char *source, double timeout_s, struct compile_job *job) {
    const bool cuda = t->architecture[0] && t->nvcc[0];
    CLEANUP_STR struct str unit = STR_INIT;
    struct extension_options o = {.n = 0};
    extension_native_unit(spec, source, cuda, &unit);
    static const char *const device[] = {"-O3",        "-std=c++17", "-shared",
                                         "-Xcompiler", "-fPIC,-w",   "-w",
                                         "-Xlinker",   "-zdefs",     "--expt-relaxed-constexpr",
                                         "-gencode"};
    static const char *const host[] = {"g++", "-O3",      "-std=c++17", "-shared", "-fPIC",
                                       "-w",  "-fopenmp", "-Wl,-zdefs", NO_LTO};
    if (cuda) option(&o, t->nvcc);
    for (size_t i = 0; i < (cuda ? ARRAY_LEN(device) : ARRAY_LEN(host)); i++) option(&o, cuda ? device[i] : host[i]);
    if (cuda) option(&o, t->architecture);
    *job = (struct compile_job){.unit = str_c(&unit),
                                .unit_bytes = unit.len,
                                .script = cuda ? cuda_script : cpp_script,
                                .args = o.word,
                                .timeout_s = timeout_s};
    compile_one(c, job);
}
