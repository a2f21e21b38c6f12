/* Extensions through the compilers' jail: C++ with the stand-in, and, where nvcc is installed, CUDA for Hopper. Nothing
 * is run here; tests/honest has answers that are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "io/json.h"
#include "verify/build/extension.h"

static struct jail jail;
static struct compiler compiler;
static struct extension_tools tools;
static bool ready;

static int setup(void **state) {
    (void)state;
    struct err e = {0};
    CLEANUP_JSON json_t *paths = json_pack("{s:[],s:[]}", "include", "library");
    if (jail_open(&jail, false, &e) != ST_OK) return 0;
    if (extension_open(&tools, &jail, paths, "90", &e) != ST_OK) fail_msg("%s", e.msg);
    if (compiler_open(&compiler, &jail, NULL, NULL, 60, 1, &e) != ST_OK) return 0;
    ready = true;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    if (ready) compiler_close(&compiler);
    extension_close(&tools);
    jail_close(&jail);
    return 0;
}

static void need(bool there, const char *what) {
    if (ready && there) return;
    printf("skipped: needs %s\n", ready ? what : "bubblewrap and gcc");
    skip();
}

static const char cpp[] = "#include <torch/extension.h>\n"
                          "torch::Tensor twice(torch::Tensor x, double by, c10::optional<torch::Tensor> other) {\n"
                          "    TORCH_CHECK(x.dim() == 2 && x.is_contiguous(), \"expected a matrix, got \", x.dim());\n"
                          "    auto out = torch::zeros({x.size(0), 2 * x.size(-1)}, x.options());\n"
                          "    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), \"twice\", ([&] {\n"
                          "        for (int64_t i = 0; i < x.numel(); i++)\n"
                          "            out.data_ptr<scalar_t>()[i] = x.data_ptr<scalar_t>()[i] * (scalar_t)by;\n"
                          "    }));\n"
                          "    return out;\n}\n"
                          "std::vector<torch::Tensor> both(std::vector<torch::Tensor> x) { return x; }\n";

static void build(const char *c, const char *cuda, const char *flags, enum compile_result expected, const char *said) {
    struct compile_job job;
    bool standin = false;
    CLEANUP_JSON json_t *request = json_pack("{s:s,s:s,s:[s,s],s:[],s:[s],s:[]}", "cpp", c, "cuda", cuda, "functions",
                                             "twice", "both", "cflags", "cuda_cflags", flags, "ldflags");
    assert_non_null(request);
    extension_build(&tools, &compiler, request, 60, &job, &standin);
    if (job.result != expected || !strstr(job.message, said))
        fail_msg("result %d, expected %d; \"%s\" in: %s", job.result, expected, said, job.message);
    if (expected == COMPILE_OK) {
        assert_true(standin);
        assert_true(job.object_bytes > 1000);
        assert_memory_equal(job.object, "\177ELF", 4);
    }
    free(job.object);
}

static void plain_cpp(void **state) {
    (void)state;
    need(true, "");
    build(cpp, "", "-O2", COMPILE_OK, "");
    /* The message names the answer's own line. */
    build("#include <torch/extension.h>\nint twice() { return nothing; }\n", "", "-O2", COMPILE_FAILED, "main.cpp:2");
    /* What is bound must be there. */
    build("int both() { return 1; }\n", "", "-O2", COMPILE_FAILED, "twice");
    /* Nothing private to include. */
    build("#include \"/etc/shadow\"\nint twice() { return 1; }\nint both() { return 1; }\n", "", "-O2", COMPILE_FAILED,
          "shadow");
}

static void plain_cuda(void **state) {
    (void)state;
    need(tools.nvcc[0] != 0, "nvcc");
    static const char kernel[] = "#include <torch/extension.h>\n#include <ATen/cuda/CUDAContext.h>\n"
                                 "__global__ void k(const float *x, float *y) { y[threadIdx.x] = x[threadIdx.x]; }\n"
                                 "torch::Tensor twice(torch::Tensor x) {\n    auto y = torch::empty_like(x);\n"
                                 "    k<<<1, 32, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), "
                                 "y.data_ptr<float>());\n    C10_CUDA_KERNEL_LAUNCH_CHECK();\n    return y;\n}\n"
                                 "int both(int n) { return n; }\n";
    build("torch::Tensor twice(torch::Tensor x);\nint both(int n);\n", kernel, "-std=c++14", COMPILE_OK, "");
    build("torch::Tensor twice(torch::Tensor x);\nint both(int n);\n", "__global__ void k() { x; }\n",
          "--use_fast_math", COMPILE_FAILED, "kernel.cu(1)");
}

/* The two sides are compiled at once when nvcc's plan is as expected: then the module has the name that we gave it. */
static void two_sides(void **state) {
    (void)state;
    need(tools.nvcc[0] != 0, "nvcc");
    static const char source[] =
        "namespace {\n__global__ void k(float *x) { x[threadIdx.x] = 1; }\n}\n"
        "int twice(int n) { k<<<1, 32>>>(nullptr); return n; }\nint both(int n) { return n; }\n";
    CLEANUP_JSON json_t *request =
        json_pack("{s:s,s:s,s:[s,s],s:[],s:[],s:[]}", "cpp", "int twice(int n);\nint both(int n);\n", "cuda", source,
                  "functions", "twice", "both", "cflags", "cuda_cflags", "ldflags");
    struct compile_job job;
    bool standin = false;
    extension_build(&tools, &compiler, request, 60, &job, &standin);
    if (job.result != COMPILE_OK) fail_msg("%s", job.message);
    bool ours = memmem(job.object, job.object_bytes, "_kernelrl_", 10) || /* the name of the anonymous namespace */
                memmem(job.object, job.object_bytes, "__kernelrl", 10);
    free(job.object);
    need(ours, "an nvcc whose --dryrun has the form that extension.c knows; this one's sides follow each other");
}

static void native_unit(void **state) {
    (void)state;
    need(tools.nvcc[0] != 0, "nvcc");
    static const char json[] = "{\"args\":[{\"name\":\"x\",\"role\":\"input\",\"type\":\"f32\",\"shape\":[64]},"
                               "{\"name\":\"out\",\"role\":\"output\",\"type\":\"bf16\",\"shape\":[64]}]}";
    static const char source[] = "__global__ void copy(const float *x, __nv_bfloat16 *y) {\n"
                                 "    y[threadIdx.x] = __float2bfloat16(x[threadIdx.x]);\n}\n"
                                 "size_t scratch_bytes(void) { return 256; }\n"
                                 "void kernel(const float *restrict x, uint16_t *restrict out, void *scratch, "
                                 "cudaStream_t stream) {\n"
                                 "    copy<<<1, X_N, 0, stream>>>(x, (__nv_bfloat16 *)out);\n}\n";
    struct arena a = ARENA_INIT;
    struct spec spec;
    struct err e = {0};
    struct compile_job job;
    if (spec_parse(&a, json, sizeof json - 1, &spec, &e) != ST_OK) fail_msg("%s", e.msg);
    extension_build_native(&tools, &compiler, &spec, source, 60, &job);
    if (job.result != COMPILE_OK) fail_msg("%s", job.message);
    free(job.object);
    /* Headers of 16-bit types that no name asks for are there all the same. */
    extension_build_native(&tools, &compiler, &spec,
                           "#define PASTED(a, b) a##b\n__global__ void set(PASTED(__nv_b, float16) *y) { *y = 1.0f; }\n"
                           "void kernel(const float *restrict x, uint16_t *restrict out, cudaStream_t stream) {\n"
                           "    set<<<1, 1, 0, stream>>>((PASTED(__nv_b, float16) *)out);\n}\n",
                           60, &job);
    if (job.result != COMPILE_OK) fail_msg("%s", job.message);
    free(job.object);
    extension_build_native(&tools, &compiler, &spec, "void kernel(const float *restrict x, cudaStream_t s) {}\n", 60,
                           &job);
    assert_int_equal(job.result, COMPILE_FAILED);
    assert_non_null(strstr(job.message, "kernel"));
    free(job.object);
    arena_free(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_cpp),
        cmocka_unit_test(plain_cuda),
        cmocka_unit_test(two_sides),
        cmocka_unit_test(native_unit),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
