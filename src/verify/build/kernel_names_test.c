#include "verify/build/kernel_names.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check(const char *source, const char *expected) {
    struct kernel_names n = {0};
    kernel_names_note(&n, source);
    assert_string_equal(n.list.len ? str_c(&n.list) : "", expected);
    kernel_names_free(&n);
}

static void test_names(void **state) {
    (void)state;
    check("", "");
    check("__global__ void relu(const float *x) { y(); }", "\nrelu\n");
    check("template <int N>\n__global__ static void\n__launch_bounds__(256, (2)) a_1(float *x) {}\n"
          "extern \"C\" __global__ __cluster_dims__(2, 1, 1) void b(int) {}",
          "\na_1\nb\n");
    check("auto s = \"__global__\"; int f();", "");
    check("__global__", "");
    check("@triton.jit\ndef one(x):\n    pass\n\ndef two():\n    pass\n", "\none\n");
    check("@triton.autotune(\n    configs=[],\n    key=[\"n\"],\n)\n@triton.jit\ndef three(x):\n  pass\n@jit\n  def "
          "four(): 1\n",
          "\nthree\nfour\n");
    check("@functools.cache\ndef no():\n    pass\n@unjit\ndef neither():\n    pass\n", "");
    check("CUDA = '''\n__global__ void k(float *x) {}\n'''\n", "\nk\n");
}

static void test_own(void **state) {
    (void)state;
    struct kernel_names n = {0};
    assert_false(kernel_is_own(&n, "relu"));
    kernel_names_note(
        &n, "__global__ void relu_kernel(float *x) {}\n__global__ void e(int) {}\n@triton.jit\ndef soft(x):\n");
    static const char *const own[] = {"relu_kernel", "_Z11relu_kernelPf", "_ZN1a11relu_kernelIfEEvPT_",
                                      "soft",        "soft_0d1d2",        "_Z1ei"};
    static const char *const others[] = {
        "relu_kernel2",       "my_relu_kernel", "_Z12relu_kernel2Pf", "softmax",  "softmax_warp_forward",
        "_Z111relu_kernelPf", "the_e",          "_Z4element",         "soft_max", "_ZN3cub6reduceEv"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (!kernel_is_own(&n, own[i])) fail_msg("%s", own[i]);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (kernel_is_own(&n, others[i])) fail_msg("%s", others[i]);
    kernel_names_free(&n);
}

static void test_library(void **state) {
    (void)state;
    static const char *const theirs[] = {
        "_ZN2at6native29vectorized_elementwise_kernelILi4EE", "nvjet_tst_128x64_64x6", "ampere_sgemm_128x64_tn",
        "_ZN43_GLOBAL__N__00000000_10_SoftMax_cu_9f978f6320softmax_warp_forwardIfffLi9ELb0ELb0EEEvPT0_PKT_iii",
        "_Z17gemv2T_kernel_valIiifffLi128E18cublasGemvParamsExI"};
    static const char *const not_theirs[] = {"relu_kernel", "_Z11relu_kernelPf", "_ZN20_GLOBAL__N__kernelrl1kEPf",
                                             "_ZN57_GLOBAL__N__6db92839_9_kernel_cu_1d7726911kEPf"};
    for (size_t i = 0; i < sizeof theirs / sizeof theirs[0]; i++)
        if (!kernel_is_library(theirs[i])) fail_msg("%s", theirs[i]);
    for (size_t i = 0; i < sizeof not_theirs / sizeof not_theirs[0]; i++)
        if (kernel_is_library(not_theirs[i])) fail_msg("%s", not_theirs[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_own),
        cmocka_unit_test(test_library),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
