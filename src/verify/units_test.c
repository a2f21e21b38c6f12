/* The verifier's parts that need no process: lint, spec, compile unit, comparison, memory layout, timing, replies; and
 * what a Python that fails at its start says. */
#include <elf.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fs.h"
#include "base/rng.h"
#include "io/json.h"
#include "verify/build/c_source.h"
#include "verify/build/lint.h"
#include "verify/build/object_check.h"
#include "verify/compare.h"
#include "verify/jail/ref_worker.h"
#include "verify/jail/time_account.h"
#include "verify/native/input_sets.h"
#include "verify/timing.h"
#include "verify/verify.h"

/* ---- what runs when it is loaded ---- */

/* A shared object in little: two segments, the second with the dynamic section. */
struct object {
    Elf64_Ehdr header;
    Elf64_Phdr segment[3];
    unsigned char code[256];
    _Alignas(4096) Elf64_Dyn dynamic[4];
};

static struct object small_object(void) {
    struct object o = {.header = {.e_type = ET_DYN,
                                  .e_machine = EM_X86_64,
                                  .e_phoff = offsetof(struct object, segment),
                                  .e_phentsize = sizeof(Elf64_Phdr),
                                  .e_phnum = 3}};
    memcpy(o.header.e_ident, ELFMAG, SELFMAG);
    o.header.e_ident[EI_CLASS] = ELFCLASS64;
    o.header.e_ident[EI_DATA] = ELFDATA2LSB;
    const size_t at = offsetof(struct object, dynamic), size = sizeof o.dynamic;
    o.segment[0] = (Elf64_Phdr){.p_type = PT_LOAD, .p_filesz = 512, .p_memsz = 512};
    o.segment[1] =
        (Elf64_Phdr){.p_type = PT_LOAD, .p_offset = at, .p_vaddr = at + 0x10000, .p_filesz = size, .p_memsz = size};
    /* The loader looks at the address, not at the offset. */
    o.segment[2] = (Elf64_Phdr){.p_type = PT_DYNAMIC, .p_offset = 0, .p_vaddr = at + 0x10000, .p_memsz = 1};
    for (int i = 0; i < 4; i++) o.dynamic[i].d_tag = i < 3 ? DT_STRTAB : DT_NULL;
    return o;
}

static enum load_finding check_object(const struct object *o) {
    const char *tag = "";
    const enum load_finding found = load_check(o, sizeof *o, &tag);
    assert_true((tag != NULL) == (found == LOAD_RUNS));
    return found;
}

static void test_load_finds_what_runs(void **state) {
    (void)state;
    static const struct {
        Elf64_Sxword tag;
        const char *name;
    } runs[] = {{DT_INIT, "DT_INIT"},
                {DT_FINI, "DT_FINI"},
                {DT_INIT_ARRAY, "DT_INIT_ARRAY"},
                {DT_FINI_ARRAY, "DT_FINI_ARRAY"},
                {DT_PREINIT_ARRAY, "DT_PREINIT_ARRAY"},
                {DT_AUDIT, "DT_AUDIT"},
                {DT_DEPAUDIT, "DT_DEPAUDIT"},
                {DT_AUXILIARY, "DT_AUXILIARY"},
                {DT_FILTER, "DT_FILTER"}};
    struct object o = small_object();
    assert_int_equal(check_object(&o), LOAD_CLEAN);
    for (size_t i = 0; i < ARRAY_LEN(runs); i++)
        for (int at = 0; at < 3; at++) {
            const char *tag = NULL;
            o = small_object();
            o.dynamic[at].d_tag = runs[i].tag;
            assert_int_equal(load_check(&o, sizeof o, &tag), LOAD_RUNS);
            assert_string_equal(tag, runs[i].name);
        }
    o.dynamic[0].d_tag = DT_NULL; /* what follows the end is not read by anybody */
    assert_int_equal(check_object(&o), LOAD_CLEAN);
}

static void test_load_refuses_what_it_cannot_read(void **state) {
    (void)state;
    const struct object good = small_object();
    struct object o;
#define WITH(what) (o = good, (what), assert_int_equal(check_object(&o), LOAD_UNREADABLE))
    WITH(o.header.e_ident[0] = 0);
    WITH(o.header.e_ident[EI_CLASS] = ELFCLASS32);
    WITH(o.header.e_ident[EI_DATA] = ELFDATA2MSB);
    WITH(o.header.e_type = ET_EXEC);
    WITH(o.header.e_phentsize = 32);
    WITH(o.header.e_phnum = 0);
    WITH(o.header.e_phnum = 65);
    WITH(o.header.e_phoff = sizeof o - 2 * sizeof(Elf64_Phdr));
    WITH(o.header.e_phoff = UINT64_MAX - 8);
    WITH(o.segment[0].p_filesz = sizeof o + 1);
    WITH(o.segment[0].p_filesz = o.segment[0].p_memsz = 0);
    WITH(o.segment[0].p_memsz = 511); /* more in the file than in memory */
    WITH(o.segment[0].p_offset = 8);  /* not mapped in pages */
    WITH(o.segment[1].p_offset = UINT64_MAX & ~4095ul);
    WITH(o.segment[1].p_memsz = UINT64_MAX);
    WITH(o.segment[1].p_vaddr = UINT64_MAX & ~4095ul);
    WITH(o.segment[0].p_memsz = 0x11000 + 1);            /* two segments at one address */
    WITH(o.segment[0].p_vaddr = 0x20000);                /* out of order */
    WITH(o.segment[1].p_filesz = 3 * sizeof(Elf64_Dyn)); /* no end */
    WITH(o.segment[2].p_type = PT_NULL);
    WITH(o.segment[0].p_type = PT_DYNAMIC);
    WITH(o.segment[2].p_vaddr = 0x100000);
    WITH(o.segment[2].p_vaddr += sizeof o.dynamic);
#undef WITH
    for (size_t n = 0; n < offsetof(struct object, dynamic) + sizeof good.dynamic; n++) {
        const char *tag;
        unsigned char *cut = malloc(n + 1); /* so that a sanitizer sees what is read behind it */
        memcpy(cut, &good, n);
        assert_int_equal(load_check(cut, n, &tag), LOAD_UNREADABLE);
        free(cut);
        if (n > 600 && n < offsetof(struct object, dynamic)) n += 255;
    }
}

/* ---- lint ---- */

static void test_lint_accepts(void **state) {
    (void)state;
    static const char *const fine[] = {
        "void kernel(void) {}",
        "#include <math.h>\n#  include\t\"omp.h\" // why\nvoid kernel(void) {}",
        "/* asm */ // __asm__\nstatic const char *s = \"asm \\\" #include <x.h>\"; void kernel(void) {}",
        "#include <immin\\\ntrin.h>\nvoid kernel(void) {}",
        "void kernel(void) { char c = '\"'; /* \" */ }",
        "int a = 1 # 2; void kernel(void) {}", /* not a directive: the compiler will say so */
        /* What only looks like a raw string. */
        "/* R\"( */ // LR\"(\nstatic const char *s = \"R\\\"(\"; void kernel(void) {}",
        "#define R \"x\"\nstatic const char *s = R \"(\", *t = u8\"a\" L\"b\"; void kernel(void) {}",
        "#define FOUR \"4\"\nint VAR, xR, R8; const char *s = xuR\"(\"; void kernel(void) {}",
        "char c = R'\"'; void kernel(void) {}",
        /* Comments behind directives. */
        "#include <math.h> /* expf,\n logf -> fast */\n#if 1 < 2 /* one\n two */\n#endif\nvoid kernel(void) {}",
        "#if 3 > 2 /* > 1 */ && 1 // a -> b\n#endif\n#define S \"a\" /* one\n two */\nvoid kernel(void) {}",
        "#if 0\nit's /* not\n#endif\n#error don't /* '\nvoid kernel(void) {}",
        "int a; // one\r\nint b; /* asm\r\n */\r\nvoid kernel(void) {}\r\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(fine); i++) {
        struct lint_facts f;
        char message[400] = "";
        if (!lint_source(fine[i], &f, message, sizeof message)) fail_msg("%zu: %s", i, message);
        assert_true(f.has_kernel);
    }
}

static void test_lint_refuses(void **state) {
    (void)state;
    static const struct {
        const char *source, *message;
    } bad[] = {
        {"", "empty"},
        {"void f(void) {}", "no function called kernel"},
        {"// kernel\n\"kernel\"", "no function called kernel"},
        {"#include <stdio.h>\nvoid kernel(void) {}", "line 1: #include <stdio.h>"},
        {"\n\n  %: include \"/etc/passwd\"\nvoid kernel(void) {}", "line 3: #include \"/etc/passwd\""},
        {"#inc\\\nlude <stdio.h>\nvoid kernel(void) {}", "#include <stdio.h>"},
        {"#inc\\  \nlude <stdio.h>\nvoid kernel(void) {}", "#include <stdio.h>"},
        {"/**/ # /* x */ include <stdio.h>\nvoid kernel(void) {}", "line 1: #include <stdio.h>"},
        {"#define H <math.h>\n#include H\nvoid kernel(void) {}", "line 2: #include H"},
        {"#include <math.h\nvoid kernel(void) {}", "#include <math.h"},
        {"#include_next <math.h>\nvoid kernel(void) {}", "#include_next"},
        {"#import <math.h>\nvoid kernel(void) {}", "#import"},
        {"void kernel(void) {\n  __asm__(\"\");\n}", "line 2: __asm__"},
        {"/* \n\n */ asm(\"\"); void kernel(void) {}", "line 3: asm"},
        {"'\n asm(\"\"); void kernel(void) {}", "line 2: asm"}, /* an open quote ends with its line */
        {"__attribute__((constructor)) void kernel(void) {}", "line 1: constructor"},
        /* Raw strings, by all their names, and however they are written. */
        {"const char *s = R\"(\" /* )\"; void kernel(void) {}", "line 1: raw strings"},
        {"\nL\\\nR\"x(/*)x\"; void kernel(void) {}", "line 3: raw strings"},
        {"f(uR\"()\"); void kernel(void) {}", "raw strings"},
        {"f(\"a\"UR\"()\"); void kernel(void) {}", "raw strings"},
        {"f(/**/u8R\"()\"); void kernel(void) {}", "raw strings"},
        {"#if 0\n#error R\"( it's\n#endif\nvoid kernel(void) {}", "line 2: raw strings"},
        /* Lines end, and go on, where gcc says so. */
        {"// x\rasm(\"\"); void kernel(void) {}", "line 2: asm"},
        {"int a;\r#include <stdio.h>\r\nvoid kernel(void) {}", "line 2: #include <stdio.h>"},
        {"as\\ \f\v\t\nm(\"\"); void kernel(void) {}", "line 1: asm"},
        {"as\\\rm(\"\"); void kernel(void) {}", "line 1: asm"},
        {"%\\\n:\\\r\ninclude <stdio.h>\nvoid kernel(void) {}", "include <stdio.h>"},
        {"/\\\n* \" */ asm(\"\"); void kernel(void) {}", "asm"},
        /* A comment for us, part of a header's name for gcc. */
        {"#if __has_include(<a/*b>) || 1\n#endif\nasm(\"\");\n/**/ void kernel(void) {}", "line 1: a comment"},
        {"#define P (\n#define H __has_##include\n#if H P <a/*b>) || 1\n#endif\nasm(\"\");\n/**/void kernel(void) {}",
         "line 3: a comment"},
        {"#if 0\n#elif __has_include(<a\"b>) + '\" /*'\n1;\n/*'*/\n#endif\nvoid kernel(void) {}", "line 2: a comment"},
        {"#pragma GCC dependency \"x\\\" \" /*\nasm(\"\");\n/**/ void kernel(void) {}", "line 1: a comment"},
        {"#include <math.h> <a/*b>\nasm(\"\");\n/**/ void kernel(void) {}", "line 1: a comment"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct lint_facts f;
        char message[400] = "";
        assert_false(lint_source(bad[i].source, &f, message, sizeof message));
        if (!strstr(message, bad[i].message)) fail_msg("%zu: \"%s\" lacks \"%s\"", i, message, bad[i].message);
    }
    char *big = malloc(300000);
    memset(big, ' ', 299999);
    big[299999] = 0;
    struct lint_facts f;
    char message[400];
    assert_false(lint_source(big, &f, message, sizeof message));
    free(big);
}

/* ---- spec and unit ---- */

static const char spec_json[] =
    "{\"args\":[{\"name\":\"x\",\"role\":\"input\",\"type\":\"f32\",\"shape\":[2,3]},"
    "{\"name\":\"int\",\"role\":\"input\",\"type\":\"i64\",\"shape\":[],\"scalar\":true},"
    "{\"name\":\"alpha\",\"role\":\"input\",\"type\":\"f32\",\"shape\":[],\"scalar\":true},"
    "{\"name\":\"fc.weight\",\"role\":\"param\",\"type\":\"bf16\",\"shape\":[4,3]},"
    "{\"name\":\"X\",\"role\":\"buffer\",\"type\":\"bool\",\"shape\":[5]},"
    "{\"name\":\"0.mean\",\"role\":\"buffer\",\"type\":\"f32\",\"shape\":[4],\"mutated\":true},"
    "{\"name\":\"out\",\"role\":\"output\",\"type\":\"f32\",\"shape\":[]}]}";

static void test_spec(void **state) {
    (void)state;
    struct arena a = ARENA_INIT;
    struct spec s;
    struct err e = {0};
    struct str c = STR_INIT;
    if (spec_parse(&a, spec_json, sizeof spec_json - 1, &s, &e) != ST_OK) fail_msg("%s", e.msg);
    spec_render_c(&s, &c);
    assert_string_equal(c.p,
                        "#define X_D0 2\n#define X_D1 3\n#define X_N 6\n"
                        "#define FC_WEIGHT_D0 4\n#define FC_WEIGHT_D1 3\n#define FC_WEIGHT_N 12\n"
                        "#define X__D0 5\n#define X__N 5\n"
                        "#define _0_MEAN_D0 4\n#define _0_MEAN_N 4\n#define OUT_N 1\n"
                        "void kernel(const float *restrict x, int64_t int_, double alpha, const uint16_t *restrict "
                        "fc_weight, const uint8_t *restrict X_, float *restrict _0_mean, float *restrict out);\n");
    assert_int_equal(arg_bytes(&s.args[3]), 24);
    assert_int_equal(arg_bytes(&s.args[2]), 8);
    str_clear(&c);
    struct lint_facts f = {.has_kernel = true, .has_prepared = true, .has_scratch = true};
    unit_render(&s, &f, "ANSWER", &c);
    assert_non_null(strstr(c.p, "#line 1 \"kernel.c\"\nANSWER\n#line 1 \"kernelrl_shim.c\"\n"));
    assert_non_null(strstr(c.p,
                           "void prepare(const uint16_t *restrict fc_weight, const uint8_t *restrict X_, const float "
                           "*restrict _0_mean, void *prepared);"));
    assert_non_null(strstr(c.p, "float *restrict out, const void *prepared, void *scratch);"));
    assert_non_null(strstr(c.p,
                           "kernel((const float *)kernelrl_a[0], *(const int64_t *)kernelrl_a[1], *(const double "
                           "*)kernelrl_a[2], (const uint16_t *)kernelrl_a[3], (const uint8_t *)kernelrl_a[4], (float "
                           "*)kernelrl_a[5], (float *)kernelrl_a[6], (const void *)kernelrl_a[7], kernelrl_a[8]);"));
    assert_null(strstr(c.p, "__wrap_malloc"));
    str_clear(&c);
    f.may_allocate = true;
    unit_render(&s, &f, "ANSWER", &c);
    assert_non_null(strstr(c.p, "__wrap_malloc"));
    str_free(&c);
    arena_free(&a);
}

/* Whatever could name an allocator brings the wrappers along. */
static void test_allocators_are_seen(void **state) {
    (void)state;
    static const struct {
        const char *source;
        bool may_allocate;
    } cases[] = {
        {"void kernel(void) {} // malloc", false},
        {"void kernel(void) { malloc(3); }", true},
        {"void kernel(void) { mal\\\nloc(3); }", true},
        {"void kernel(void) { __builtin_calloc(3, 4); }", true},
        {"void kernel(void) { posix_memalign(0, 0, 0); }", true},
        {"#define J(a, b) a##b\nvoid kernel(void) { J(mal, loc)(3); }", true},
        {"#define J(a, b) a%:%:b\nvoid kernel(void) { J(mal, loc)(3); }", true},
        {"#define J(a, b) a#\\\n#b\nvoid kernel(void) { J(mal, loc)(3); }", true},
        {"void kernel(void) { float a[4]; }", false},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct lint_facts f;
        char message[400] = "";
        assert_true(lint_source(cases[i].source, &f, message, sizeof message));
        if (f.may_allocate != cases[i].may_allocate) fail_msg("%zu: %s", i, cases[i].source);
    }
}

static void test_spec_refuses(void **state) {
    (void)state;
    static const struct {
        const char *json, *message;
    } bad[] = {
        {"", "line 1"},
        {"[]", "args"},
        {"{\"args\":[]}", "1 to"},
        {"{\"args\":[{\"role\":\"input\"}]}", "args[0].name"},
        {"{\"args\":[{\"name\":\"x\",\"role\":\"inout\"}]}", "args[0].role"},
        {"{\"args\":[{\"name\":\"x\",\"role\":\"output\",\"type\":\"f64\"}]}", "args[0].type"},
        {"{\"args\":[{\"name\":\"x\",\"role\":\"output\",\"type\":\"f32\",\"shape\":[-1]}]}", "shape[0]"},
        {"{\"args\":[{\"name\":\"x\",\"role\":\"output\",\"type\":\"f32\",\"shape\":[1099511627776,1099511627776]}]}",
         "shape[1]"},
        {"{\"args\":[{\"name\":\"x\",\"role\":\"output\",\"type\":\"f32\",\"shape\":[1,1,1,1,1,1,1,1,1]}]}",
         "at most 8"},
        {"{\"args\":[{\"name\":\"x\",\"role\":\"input\",\"type\":\"f32\",\"shape\":[1]}]}", "at least one output"},
        {"{\"args\":[{\"name\":\"x\",\"role\":\"output\",\"type\":\"f32\",\"shape\":[1]},"
         "{\"name\":\"y\",\"role\":\"input\",\"type\":\"f32\",\"shape\":[1]}]}",
         "input after output"},
        {"{\"args\":[{\"name\":\"x\",\"role\":\"output\",\"type\":\"f32\",\"shape\":[],\"scalar\":true}]}", "scalar"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct arena a = ARENA_INIT;
        struct spec s;
        struct err e = {0};
        assert_int_equal(spec_parse(&a, bad[i].json, strlen(bad[i].json), &s, &e), ST_PARSE);
        if (!strstr(e.msg, bad[i].message)) fail_msg("%zu: \"%s\" lacks \"%s\"", i, e.msg, bad[i].message);
        arena_free(&a);
    }
}

/* ---- comparison ---- */

/* Of a tensor of that many rows. */
static struct compare_result compare_rows(const float *want, const float *got, int64_t n, int64_t row,
                                          const struct compare_limit *limit, bool compatible, uint64_t poison) {
    double scales[4096];
    assert_true(n / row <= (int64_t)ARRAY_LEN(scales));
    compare_scales(TYPE_F32, want, n, row, limit, scales);
    struct compare_rule rule = {.scales = scales,
                                .row = row,
                                .tolerance = compare_tolerance(TYPE_F32, limit),
                                .compatible = compatible,
                                .poison = poison};
    struct compare_result r;
    compare_tensor(TYPE_F32, want, got, n, &rule, &r);
    return r;
}

static struct compare_result compare(const float *want, const float *got, int64_t n, bool compatible, uint64_t poison) {
    const struct compare_limit limit = compare_no_limit(TYPE_F32);
    return compare_rows(want, got, n, n, &limit, compatible, poison);
}

static void test_compare_floats(void **state) {
    (void)state;
    enum { N = 37 }; /* whole vectors and a tail */
    uint64_t poison = compare_poison(TYPE_F32, 12345);
    float want[N], got[N];
    for (int i = 0; i < N; i++) want[i] = got[i] = (float)i - 10;
    assert_int_equal(compare(want, got, N, true, poison).different, 0);
    /* The error reported is the same whichever path computed it. */
    got[3] += 1e-5f;
    struct compare_result fast = compare(want, got, N, true, poison);
    double rms = 0;
    for (int i = 0; i < N; i++) rms += (double)(want[i] * want[i]);
    rms = sqrt(rms / N);
    assert_int_equal(fast.different, 0);
    assert_true(fabs(fast.max_error - (double)fabsf(got[3] - want[3]) / (rms + 7)) < 1e-9);
    /* One wrong element anywhere is found, in body and tail, and named. */
    for (int i = 0; i < N; i++) {
        memcpy(got, want, sizeof got);
        got[i] += 0.1f;
        struct compare_result r = compare(want, got, N, false, poison);
        assert_int_equal(r.different, 1);
        assert_int_equal(r.first, i);
        assert_true(r.want == (double)want[i] && r.got == (double)got[i]);
    }
    memcpy(got, want, sizeof got);
    got[5] = (float)NAN;
    got[6] = (float)INFINITY;
    memcpy(&got[36], &poison, 4);
    struct compare_result r = compare(want, got, N, false, poison);
    assert_int_equal(r.different, 3);
    assert_int_equal(r.not_finite, 2);
    assert_int_equal(r.unwritten, 1);
    /* Infinities must agree in sign; a NaN of the reference takes any NaN but poison. */
    want[0] = got[0] = (float)INFINITY;
    want[1] = -(float)INFINITY, got[1] = (float)INFINITY;
    want[5] = (float)NAN;
    want[36] = (float)NAN;
    want[6] = got[6];
    r = compare(want, got, N, false, poison);
    assert_int_equal(r.different, 2);
    assert_int_equal(r.first, 1);
    assert_int_equal(r.unwritten, 1);
}

static void test_compare_scale(void **state) {
    (void)state;
    /* All of it is below the absolute tolerance of allclose: zeros would pass that rule alone. */
    float want[64], zeros[64] = {0};
    for (int i = 0; i < 64; i++) want[i] = 1.5e-5f * (float)(1 + i % 3);
    assert_int_equal(compare(want, zeros, 64, true, 1).different, 64);
    /* An outlier's rounding is not an error; the same absolute error elsewhere is. */
    for (int i = 0; i < 64; i++) want[i] = 1;
    want[7] = 1e6f;
    float got[64];
    memcpy(got, want, sizeof got);
    got[7] += 1;
    assert_int_equal(compare(want, got, 64, true, 1).different, 0);
    memcpy(got, want, sizeof got);
    got[8] += 0.01f;
    assert_int_equal(compare(want, got, 64, true, 1).different, 1);  /* allclose sees it */
    assert_int_equal(compare(want, got, 64, false, 1).different, 0); /* 1e-7 of the scale */
}

static void test_compare_rows(void **state) {
    (void)state;
    enum { ROW = 70, ROWS = 5, N = ROW * ROWS };
    struct compare_limit limit = compare_no_limit(TYPE_F32);
    float want[N], got[N];
    for (int i = 0; i < N; i++) want[i] = 1e-10f * (float)(1 + i % 3);
    want[3] = 1e6f; /* hides nothing in other rows */
    memcpy(got, want, sizeof got);
    assert_int_equal(compare_rows(want, got, N, ROW, &limit, false, 1).different, 0);
    for (int i = ROW; i < N; i++) got[i] *= 1.2f;
    assert_int_equal(compare_rows(want, got, N, ROW, &limit, false, 1).different, N - ROW);
    assert_int_equal(compare_rows(want, got, N, N, &limit, false, 1).different, 0); /* in one row it hides all */
    /* In the last, overlapping vector of a row an error is found as well, and counted once. */
    memcpy(got, want, sizeof got);
    got[2 * ROW - 1] = 0;
    struct compare_result r = compare_rows(want, got, N, ROW, &limit, false, 1);
    assert_true(r.different == 1 && r.first == 2 * ROW - 1);
    /* A row of nothing but rounding is held to the others' median. */
    for (int i = 0; i < N; i++) want[i] = i < ROW ? 0 : 1;
    memcpy(got, want, sizeof got);
    got[5] = 0.9e-6f;
    assert_int_equal(compare_rows(want, got, N, ROW, &limit, true, 1).different, 0);
    got[5] = 1.1e-6f;
    assert_int_equal(compare_rows(want, got, N, ROW, &limit, true, 1).different, 1);
    limit.floor = 1; /* where the reference itself is no better */
    assert_int_equal(compare_rows(want, got, N, ROW, &limit, true, 1).different, 0);
    /* Results that are flushed to zero; zeros everywhere; a small number by luck. */
    limit = compare_no_limit(TYPE_F32);
    for (int i = 0; i < N; i++) want[i] = 1e-38f, got[i] = 0;
    assert_int_equal(compare_rows(want, got, N, ROW, &limit, true, 1).different, 0);
    for (int i = 0; i < N; i++) want[i] = 3e-38f;
    assert_int_equal(compare_rows(want, got, N, ROW, &limit, true, 1).different, N);
    for (int i = 0; i < N; i++) want[i] = 0, got[i] = 0.9e-7f;
    assert_int_equal(compare_rows(want, got, N, ROW, &limit, true, 1).different, 0);
    got[1] = 1.1e-7f;
    assert_int_equal(compare_rows(want, got, N, ROW, &limit, true, 1).different, 1);
    want[0] = 1e-7f, got[0] = 1.001e-7f;
    assert_int_equal(compare_rows(want, got, 1, 1, &limit, true, 1).different, 1);
    limit.typical = 1e-3;
    assert_int_equal(compare_rows(want, got, 1, 1, &limit, true, 1).different, 0);
    /* Rows of shapes: never a part of the last dimension, 64 elements where there are so many, and a divisor. */
    static const struct {
        int nd;
        int64_t dim[4], row;
    } shapes[] = {{0, {0}, 1},
                  {1, {5}, 5},
                  {1, {4096}, 4096},
                  {2, {3, 100}, 100},
                  {2, {128, 10}, 80},
                  {2, {100, 1}, 100},
                  {2, {7, 9}, 63},
                  {3, {5, 13, 6}, 78},
                  {4, {2, 8, 30, 30}, 90},
                  {4, {4, 256, 1, 1}, 256},
                  {3, {2, 67, 5}, 335},
                  {4, {16, 3, 2, 2}, 96},
                  {2, {4, 0}, 1}};
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        struct arg a = {.nd = shapes[i].nd};
        memcpy(a.dim, shapes[i].dim, sizeof shapes[i].dim);
        if (compare_row(&a) != shapes[i].row) fail_msg("%zu: %lld", i, (long long)compare_row(&a));
    }
}

static void test_compare_types(void **state) {
    (void)state;
    double ones[] = {1, 1, 1, 1};
    struct compare_rule rule = {.scales = ones, .row = 1, .tolerance = 1e-2, .compatible = true};
    struct compare_result r;
    uint16_t half_want[] = {0x3c00, 0x0001, 0x7c00, 0xfc00}, half_got[] = {0x3c05, 0x8001, 0x7c00, 0x7c00};
    compare_tensor(TYPE_F16, half_want, half_got, 4, &rule, &r); /* 1 and 1.0049, 2^-24 and -2^-24, infinities */
    assert_int_equal(r.different, 1);
    assert_int_equal(r.first, 3);
    uint16_t b_want[] = {0x3f80, 0x4000}, b_got[] = {0x3f80, 0x4020};
    compare_tensor(TYPE_BF16, b_want, b_got, 2, &rule, &r); /* 2 and 2.5 */
    assert_true(r.different == 1 && r.want == 2 && r.got == 2.5);
    int64_t i_want[] = {1, -5}, i_got[] = {1, -6};
    compare_tensor(TYPE_I64, i_want, i_got, 2, &rule, &r);
    assert_true(r.different == 1 && r.first == 1 && r.max_error == 1);
    uint8_t t_want[] = {1, 0}, t_got[] = {2, 0};
    rule.poison = 2;
    compare_tensor(TYPE_BOOL, t_want, t_got, 2, &rule, &r);
    assert_true(r.different == 1 && r.unwritten == 1);
    for (int i = 0; i < 300; i++) {
        uint64_t random = rng_u64(1, 2, (uint64_t)i);
        uint32_t f = (uint32_t)compare_poison(TYPE_F32, random);
        float value;
        memcpy(&value, &f, 4);
        assert_true(isnan(value));
        assert_true(isnan(compare_element(TYPE_F16, &(uint16_t){(uint16_t)compare_poison(TYPE_F16, random)}, 0)));
        assert_true(isnan(compare_element(TYPE_BF16, &(uint16_t){(uint16_t)compare_poison(TYPE_BF16, random)}, 0)));
        assert_in_range(compare_poison(TYPE_BOOL, random), 2, 255);
    }
    unsigned char filled[13 * 8];
    compare_fill(TYPE_I64, filled, 13, 0x0123456789abcdefull);
    for (int i = 0; i < 13; i++) assert_memory_equal(filled + 8 * i, &(uint64_t){0x0123456789abcdefull}, 8);
}

/* ---- memory ---- */

static void test_sets(void **state) {
    (void)state;
    struct arena a = ARENA_INIT;
    struct spec spec;
    struct sets s;
    struct err e = {0};
    int arg;
    struct compare_result r;
    assert_int_equal(spec_parse(&a, spec_json, sizeof spec_json - 1, &spec, &e), ST_OK);
    if (sets_open(&s, &spec, 5, 99, &e) != ST_OK) fail_msg("%s", e.msg);
    assert_int_equal(s.n_compared, 2);
    assert_true(s.slots >= 1 && s.n_sets > 5);
    assert_true((s.n_sets - 5) % SETS_LANES == 0 && s.n_sets - 5 >= SETS_LANES * 8); /* for each that is alive */
    /* The worker's part: a buffer's first value, an input, and what is expected. */
    float first[4] = {1, 2, 3, 4}, after[4] = {5, 6, 7, 8}, x[6] = {1, 2, 3, 4, 5, 6}, out = 9;
    memcpy(s.master + s.param_at[5], first, sizeof first);
    sets_stage_params(&s);
    memcpy(sets_input(&s, 2) + s.input_at[0], x, sizeof x);
    memcpy(sets_expected(&s, 2) + s.output_at[5], after, sizeof after);
    memcpy(sets_expected(&s, 2) + s.output_at[6], &out, sizeof out);
    const struct compare_limit limits[] = {compare_no_limit(TYPE_F32), compare_no_limit(TYPE_F32)};
    sets_note(&s, 2, "shipped", 0, limits);
    sets_wipe(&s, 0);
    /* What one lane has written is neither in another nor, once that was wiped, left for the next answer in its own. */
    if (sets_open_lanes(&s, 2, &e) != ST_OK) fail_msg("%s", e.msg);
    assert_int_equal(s.n_lanes, 2);
    assert_int_not_equal(s.lanes[0].fd, s.lanes[1].fd);
    sets_wipe(&s, 1);
    assert_memory_equal(s.lanes[0].read_write, s.lanes[1].read_write, s.read_write_bytes);
    s.lanes[1].read_write[s.output_at[6]] ^= 1;
    assert_memory_not_equal(s.lanes[0].read_write, s.lanes[1].read_write, s.read_write_bytes);
    sets_wipe(&s, 1);
    assert_memory_equal(s.lanes[0].read_write, s.lanes[1].read_write, s.read_write_bytes);
    int slot = s.slots - 1;
    sets_stage(&s, 0, slot, 2);
    unsigned char *outputs = s.lanes[0].read_write + (size_t)slot * s.output_stride;
    assert_memory_equal(s.read_only + 2 * s.param_stride + (size_t)slot * s.input_stride + s.input_at[0], x, sizeof x);
    assert_memory_equal(outputs + s.output_at[5], first, sizeof first);
    assert_true(sets_guards_hold(&s, 0, slot, &arg));
    float halves[2];
    memcpy(halves, &s.guard, sizeof halves);
    assert_true(halves[0] >= 2 && halves[0] < 3 && halves[1] <= -2 && halves[1] > -3);
    sets_compare(&s, 0, slot, 2, &arg, &r); /* nothing was done: the buffer is as it was, the output unwritten */
    assert_int_equal(arg, 5);
    memcpy(outputs + s.output_at[5], after, sizeof after);
    sets_compare(&s, 0, slot, 2, &arg, &r);
    assert_true(arg == 6 && r.unwritten == 1);
    memcpy(outputs + s.output_at[6], &out, sizeof out);
    sets_compare(&s, 0, slot, 2, &arg, &r);
    assert_true(arg == -1 && r.max_error == 0);
    assert_true(sets_guards_hold(&s, 0, slot, &arg));
    /* Any byte beside a buffer counts, up to the last of the gap. */
    unsigned char *const hits[] = {outputs,
                                   outputs + s.output_at[5] - 1,
                                   outputs + s.output_at[5] + sizeof first,
                                   outputs + s.output_at[6] - 1,
                                   outputs + s.output_at[6] + sizeof out,
                                   outputs + s.output_stride - 1};
    const int owner[] = {5, 5, 5, 6, 6, 6};
    for (size_t i = 0; i < ARRAY_LEN(hits); i++) {
        *hits[i] ^= 1;
        assert_false(sets_guards_hold(&s, 0, slot, &arg));
        assert_int_equal(arg, owner[i]);
        *hits[i] ^= 1;
    }
    assert_true(sets_guards_hold(&s, 0, slot, &arg));
    sets_close(&s);
    spec.args[0].count = (int64_t)1 << 30;
    assert_int_equal(sets_open(&s, &spec, 5, 99, &e), ST_INVALID);
    arena_free(&a);
}

/* An answer can write to whole pages: nothing that it wrote behind the last slot is left for the next one. */
static void test_sets_behind_the_slots(void **state) {
    (void)state;
    bool any = false; /* slots that end within a page */
    for (int n = 20000; n < 20400; n += 100) {
        struct arena a = ARENA_INIT;
        struct spec spec;
        struct sets s;
        struct err e = {0};
        char text[300];
        snprintf(text, sizeof text,
                 "{\"args\":[{\"name\":\"x\",\"role\":\"input\",\"type\":\"f32\",\"shape\":[3]},"
                 "{\"name\":\"out\",\"role\":\"output\",\"type\":\"f32\",\"shape\":[%d]}]}",
                 n);
        assert_int_equal(spec_parse(&a, text, strlen(text), &spec, &e), ST_OK);
        if (sets_open(&s, &spec, 5, 99, &e) != ST_OK) fail_msg("%s", e.msg);
        assert_int_equal(s.read_write_bytes % (size_t)sysconf(_SC_PAGESIZE), 0);
        unsigned char *const last = s.lanes[0].read_write + s.read_write_bytes - 1;
        any |= (size_t)s.slots * s.output_stride < s.read_write_bytes;
        sets_wipe(&s, 0);
        const unsigned char was = *last;
        *last ^= 1;
        sets_wipe(&s, 0);
        assert_int_equal(*last, was);
        sets_close(&s);
        arena_free(&a);
    }
    assert_true(any);
}

/* ---- timing, verdicts, replies ---- */

static void test_timing(void **state) {
    (void)state;
    double odd[] = {5, 1, 3}, even[] = {4, 1, 3, 2};
    assert_true(timing_median(odd, 3) == 3 && timing_median(even, 4) == 2.5);
    double eager[] = {2, 2, 2, 2, 2, 2, 2}, mine[] = {1, 1, 1, 1, 1, 1, 1};
    struct timing_ratio r = timing_compare(eager, mine, 7, 0.5);
    assert_true(fabs(r.ratio - 2) < 1e-12 && fabs(r.low - 2) < 1e-12 && fabs(r.high - 2) < 1e-12);
    double noisy[] = {1.1, 0.9, 1.05, 0.95, 1, 1.02, 0.98};
    r = timing_compare(eager, noisy, 7, 0.5);
    assert_true(r.low < 2 && r.high > 2 && r.low > 1.8 && r.high < 2.2 && r.low <= r.ratio && r.ratio <= r.high);
    /* Ten values: the mean of all, of eight, of the middle two. */
    double ten[] = {100, 1, 2, 3, 4, 5, 6, 7, 8, 0};
    assert_true(fabs(timing_centre(ten, 10, 0) - 13.6) < 1e-12 && fabs(timing_centre(ten, 10, 0.1) - 4.5) < 1e-12);
    assert_true(timing_quantile(ten, 10, 0.25) == 2 && timing_quantile(ten, 10, 1) == 100);
    assert_true(timing_quantile(ten, 10, 0) == 0);
    assert_true(timing_centre(ten, 10, 0.5) == 4.5 && timing_centre(ten, 1, 0.5) == 100);
    /* An outlier that the median does not see; with the mean it is half of everything. */
    double spiked[40], steady[40];
    for (int i = 0; i < 40; i++) {
        spiked[i] = i == 7 ? 41 : 1;
        steady[i] = 1;
    }
    assert_true(timing_compare(spiked, steady, 40, 0.5).ratio == 1);
    assert_true(fabs(timing_compare(spiked, steady, 40, 0.25).ratio - 1) < 1e-12);
    /* A machine that works half of the time at half its speed: pairs know nothing of it, medians may be of either. */
    double fast[21], slow[21];
    for (int i = 0; i < 21; i++) {
        fast[i] = i % 2 ? 1 : 2;
        slow[i] = fast[i] * (i == 4 ? 1 : 2); /* once it changes between the two of a pair */
    }
    assert_true(fabs(timing_compare(fast, slow, 21, 0.25).ratio - 0.5) < 1e-12);
    r = timing_compare(spiked, steady, 40, 0);
    assert_true(fabs(r.ratio - 2) < 1e-12 && r.low < 1 && r.high >= 2);
}

static void test_timing_hidden(void **state) {
    (void)state;
    double reply[40], rest[40], usual[40], whole[40], none[40] = {0};
    for (int i = 0; i < 40; i++) {
        /* Jitter alone, on both sides, with one that is far off. */
        usual[i] = 3e-4 + 1e-5 * (i * 7 % 11) + (i == 5 ? 1e-2 : 0);
        rest[i] = 3e-4 + 1e-5 * (i * 5 % 11) + (i == 9 ? 2e-2 : 0);
    }
    assert_true(timing_hidden(usual, rest, 40, 0.5, 2e-4) == 0);
    assert_true(timing_hidden(usual, rest, 40, 0.1, 2e-4) == 0);
    /* Three milliseconds of work, of which a part lies behind the reply, in whichever requests: the parts add up. */
    const int shares[] = {0, 15, 21, 40};
    for (size_t k = 0; k < ARRAY_LEN(shares); k++) {
        for (int trimmed = 0; trimmed < 2; trimmed++) {
            const double trim = trimmed ? 0.1 : 0.5;
            for (int i = 0; i < 40; i++) {
                rest[i] = i * 17 % 40 < shares[k] ? 2e-3 + 1e-5 * (i % 9) : 0;
                reply[i] = 3e-3 - rest[i];
                whole[i] = 3e-3;
            }
            const double charged = timing_hidden(none, rest, 40, trim, 2e-4) + timing_centre(reply, 40, trim);
            assert_true(fabs(charged - timing_centre(whole, 40, trim)) < 1e-9);
        }
    }
}

/* What an H200's host was seen to do: asking takes 0.2 ms and some, half a millisecond more behind a third of an
 * answer's requests and half of the reference's. left_s: work that an answer has left behind its reply; it takes turns
 * with us. */
static double asked_until_rest(struct timing_rest *rest, uint64_t seed, uint64_t *step, bool is_reference,
                               double left_s) {
    double sum_s = 0;
    for (int i = 0; i < 200; i++) {
        const double turn_s = fmin(left_s, 2e-3), u = rng_f64(seed, 1, ++*step), v = rng_f64(seed, 1, ++*step);
        double one_s = 2e-4 - 3e-5 * log(1 - u) + turn_s;
        if (v < (is_reference ? 0.5 : 0.33)) one_s += 2e-4 + 3e-4 * rng_f64(seed, 1, ++*step);
        left_s -= turn_s;
        sum_s += one_s;
        if (timing_at_rest(rest, one_s, is_reference && i == 0, 2e-4)) return sum_s;
    }
    fail_msg("no rest");
    return 0;
}

static void test_rest_behind_replies(void **state) {
    (void)state;
    enum { ROUNDS = 24, VERDICTS = 300 };
    static const double left_s[] = {0, 1e-3, 5e-3, 2e-2};
    for (size_t k = 0; k < ARRAY_LEN(left_s); k++) {
        int charged = 0, right = 0;
        for (uint64_t seed = 0; seed < VERDICTS; seed++) {
            struct timing_rest rest = {.n = 0};
            double eager[ROUNDS], mine[ROUNDS];
            uint64_t step = 0;
            for (int i = 0; i < ROUNDS; i++) {
                if (i % 2 == 0) eager[i] = asked_until_rest(&rest, seed, &step, true, 0);
                mine[i] = asked_until_rest(&rest, seed, &step, false, left_s[k]);
                if (i % 2 == 1) eager[i] = asked_until_rest(&rest, seed, &step, true, 0);
            }
            const double hidden_s = timing_hidden(eager, mine, ROUNDS, 0.5, 2e-4);
            charged += hidden_s > 0;
            right += hidden_s >= 0.9 * left_s[k] && hidden_s <= 1.3 * left_s[k] + 1e-3;
        }
        printf("%.0f ms left: %d of %d charged, %d by what it was\n", left_s[k] * 1e3, charged, VERDICTS, right);
        assert_true(left_s[k] > 0 ? charged == VERDICTS : charged <= VERDICTS / 100);
        assert_true(right >= VERDICTS * 99 / 100);
    }
}

/* Calls of 10 us to 5 ms whose ratio is between 1/4 and 8, by requests that are off by some 30 us and take 30 us more
 * alone, and a device that is seen at rest up to 0.3 ms later behind one side: none is said to overlap. Each is when it
 * overlaps so that it seems five times as fast, from 2 ms on. */
static void test_timing_overlaps(void **state) {
    (void)state;
    enum { TRIES = 4000, PAIRS = 6 };
    int honest = 0, caught = 0, long_ones = 0;
    for (uint64_t i = 0; i < TRIES; i++) {
        double took[2][PAIRS];
        const double mine_s = 1e-5 * pow(500, rng_f64(1, 1, i)), ratio = 0.25 * pow(32, rng_f64(1, 2, i));
        const double rest_s = 6e-4 * (rng_f64(1, 3, i) - 0.5);
        for (uint64_t k = 0; k < PAIRS; k++)
            for (uint64_t side = 0; side < 2; side++)
                took[side][k] = mine_s * (side ? 1 : ratio) + fmax(side ? rest_s : -rest_s, 0) + 3e-5 +
                                6e-5 * (rng_f64(2 + side, i, k) - 0.5);
        const double lone_s[2] = {timing_median(took[0], PAIRS), timing_median(took[1], PAIRS)};
        honest += timing_overlaps(ratio, lone_s, 4e-4);
        if (mine_s < 2e-3) continue;
        long_ones++;
        caught += timing_overlaps(5 * ratio, lone_s, 4e-4);
    }
    printf("%d of %d honest ones, %d of %d that overlap\n", honest, TRIES, caught, long_ones);
    assert_true(honest == 0 && long_ones > TRIES / 10 && caught == long_ones);
}

static void test_timing_plans(void **state) {
    (void)state;
    struct verify_options o = {.timed_calls = 50};
    struct timing_plan p = timing_plan_of(&o);
    assert_true(p.calls == 50 && p.trim == 0.25 && !p.single && p.interval == 0.03 && p.patience_s == 0.5);
    /* Patience for short calls and for what is far from known; as much as the budget has where an interval was asked
     * for. */
    assert_true(timing_patience_s(&p, &(struct timing_ratio){1, 0.98, 1.03}, 1e-3) == 0.5);
    assert_true(timing_patience_s(&p, &(struct timing_ratio){1, 0.98, 1.03}, 5e-5) == 2);
    assert_true(timing_patience_s(&p, &(struct timing_ratio){1, 0.95, 1.02}, 1e-3) == 2);
    assert_true(timing_patience_s(&p, &(struct timing_ratio){4, 3.9, 4.1}, 1e-3) == 0.5);
    o.interval = 0.01;
    p = timing_plan_of(&o);
    assert_true(p.interval == 0.01 && timing_patience_s(&p, &(struct timing_ratio){1, 0.9, 1.1}, 5e-5) == 0);
    o.interval = 0;
    for (int m = 0; m <= TIMING_nsight_python_time; m++) {
        enum timing_method back;
        assert_true(timing_method_from_name(timing_method_name((enum timing_method)m), &back) && (int)back == m);
    }
    o.timing_method = TIMING_calibrated;
    p = timing_plan_of(&o);
    assert_true(p.calls == 50 && p.warm_calls == 20 && p.trim == 0.1 && p.interval == 0.02 && p.patience_s == 0 &&
                p.single);
    o.warm_calls = 7;
    o.trim = 0.25;
    o.interval = 0.1;
    p = timing_plan_of(&o);
    assert_true(p.warm_calls == 7 && p.trim == 0.25 && p.interval == 0.1);
    o.timing_method = TIMING_interleaved; /* what is asked for is waited for */
    p = timing_plan_of(&o);
    assert_true(p.interval == 0.1 && p.patience_s == 0);
    o = (struct verify_options){.timed_calls = 50, .timing_method = TIMING_do_bench};
    p = timing_plan_of(&o);
    assert_true(p.warm_s == 0.025 && p.rep_s == 0.1 && p.trim == 0 && p.single);
    enum timing_method none;
    assert_false(timing_method_from_name("events", &none));
}

static void test_verdict_json(void **state) {
    (void)state;
    struct verdict v = {.outcome = OUTCOME_WRONG_OUTPUT, .tests_passed = 2, .tests_total = 5, .max_error = (double)NAN};
    memcpy(v.message, "a \"quote\"\nand a line", sizeof "a \"quote\"\nand a line");
    memcpy(v.problem_flags, "random", sizeof "random");
    v.remeasured = true;
    struct str s = STR_INIT;
    verdict_to_json(&v, &s);
    json_t *j = json_loads(s.p, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(j, "outcome")), "wrong_output");
    assert_string_equal(json_string_value(json_object_get(j, "passed_stage")), "run");
    assert_string_equal(json_string_value(json_object_get(j, "message")), v.message);
    assert_true(json_is_null(json_object_get(j, "max_error")) && json_is_null(json_object_get(j, "speedup")));
    assert_int_equal(json_integer_value(json_object_get(j, "tests_passed")), 2);
    struct verdict back;
    struct err e = {0};
    assert_int_equal(verdict_from_json(j, "back", &back, &e), ST_OK);
    assert_true(back.remeasured && strcmp(back.problem_flags, "random") == 0);
    json_decref(j);
    str_free(&s);
    assert_string_equal(outcome_name(OUTCOME_OUT_OF_BOUNDS), "out_of_bounds");
    assert_int_equal(outcome_class(OUTCOME_UNSTABLE), 'H');
}

static void test_replies(void **state) {
    (void)state;
    static const struct {
        const char *text;
        enum status st;
    } replies[] = {
        {"{\"ok\":true}", ST_OK},
        {"{\"ok\":false,\"kind\":\"problem\",\"error\":\"x\"}", ST_INVALID},
        {"{\"ok\":false,\"kind\":\"internal\",\"error\":\"x\"}", ST_WORKER},
        {"{\"ok\":false,\"kind\":\"import\",\"error\":\"x\"}", ST_UNSUPPORTED},
        {"{\"ok\":false}", ST_WORKER},
        {"{}", ST_WORKER},
        {"[]", ST_WORKER},
        {"", ST_WORKER},
        {"{\"ok\":true", ST_WORKER},
    };
    for (size_t i = 0; i < ARRAY_LEN(replies); i++) {
        json_t *j = NULL;
        struct err e = {0};
        assert_int_equal(refworker_parse_reply(replies[i].text, strlen(replies[i].text), &j, &e), replies[i].st);
        assert_true((j != NULL) == (replies[i].st == ST_OK));
        json_decref(j);
    }
}

/* A Python that closes its socket before it says why it ends, as 3.13 does where torch fails on import: its reason is
 * in the message. Both sorts of worker start so. */
static void test_last_words(void **state) {
    (void)state;
    static const char script[] = "#!/bin/sh\nexec 3>&-\nsleep 0.2\necho 'ImportError: no libtorch' >&2\nexit 1\n";
    char path[] = "/tmp/kernelrl-python-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && fs_write_all(fd, script, sizeof script - 1) && fchmod(fd, 0700) == 0 && close(fd) == 0);
    for (int role = WORKER_REFERENCE; role <= WORKER_ZYGOTE; role++) {
        struct refworker w;
        struct err e = {0};
        assert_int_equal(refworker_open(&w, path, 1, (enum worker_role)role, NULL, &e), ST_WORKER);
        assert_non_null(strstr(e.msg, "it ended: ImportError: no libtorch"));
    }
    assert_int_equal(unlink(path), 0);
}

/* The account: by who and what, the largest first, and empty once it was read. */
static void test_spent(void **state) {
    (void)state;
    CLEANUP_STR struct str ignored = STR_INIT, a = STR_INIT, b = STR_INIT;
    spent_take(&ignored);
    spent_note("referee", "{\"op\":\"stage\",\"lanes\":[0]}", 0.25);
    spent_note("referee", "{\"op\":\"judge\"}", 1);
    spent_note("referee", "{\"op\":\"stage\"}", 0.5);
    spent_note("process", "no request", 0.125);
    spent_add("process", "end", 2);
    spent_take(&a);
    assert_string_equal(str_c(&a),
                        "{\"process end\":[2.0000,1],\"referee judge\":[1.0000,1],\"referee stage\":[0.7500,2],"
                        "\"process \":[0.1250,1]}");
    for (int i = 0; i < 1000; i++) { /* more names than there is room for */
        char name[8];
        snprintf(name, sizeof name, "%d", i);
        spent_add("x", name, 1);
    }
    spent_take(&ignored);
    spent_take(&b);
    assert_string_equal(str_c(&b), "{}");
}

/* Nothing of a message moves a terminal's cursor; other letters than English ones stay. */
static void test_verdict_clean(void **state) {
    (void)state;
    struct verdict v = {0};
    VERDICT_SAY(&v, "a\tb\n\x1b[2J\r\x07\x7f\xc2\x9b"
                    "1m \xc3\x9c\xc2\xb5\xc2");
    verdict_clean(&v);
    assert_string_equal(v.message, "a\tb\n?[2J???\?\?1m \xc3\x9c\xc2\xb5\xc2");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load_finds_what_runs),
        cmocka_unit_test(test_load_refuses_what_it_cannot_read),
        cmocka_unit_test(test_lint_accepts),
        cmocka_unit_test(test_lint_refuses),
        cmocka_unit_test(test_spec),
        cmocka_unit_test(test_allocators_are_seen),
        cmocka_unit_test(test_spec_refuses),
        cmocka_unit_test(test_compare_floats),
        cmocka_unit_test(test_compare_scale),
        cmocka_unit_test(test_compare_rows),
        cmocka_unit_test(test_compare_types),
        cmocka_unit_test(test_sets),
        cmocka_unit_test(test_sets_behind_the_slots),
        cmocka_unit_test(test_timing),
        cmocka_unit_test(test_timing_hidden),
        cmocka_unit_test(test_rest_behind_replies),
        cmocka_unit_test(test_timing_overlaps),
        cmocka_unit_test(test_timing_plans),
        cmocka_unit_test(test_verdict_json),
        cmocka_unit_test(test_verdict_clean),
        cmocka_unit_test(test_replies),
        cmocka_unit_test(test_last_words),
        cmocka_unit_test(test_spent),
    };
    return cmocka_run_group_tests_name("verify units", tests, NULL, NULL);
}
