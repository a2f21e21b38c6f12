/* The share of the machine that each process of a launcher gets. */
#include "ranks/ranks.h"
#include "rl/test_util.h"

static void each_has_a_device(void **state) {
    (void)state;
    const char *device = "cuda";
    int64_t threads = 3;
    assert_true(ranks_place("auto", &device, &threads));
    assert_string_equal(device, "cuda");
    setenv("OMPI_COMM_WORLD_RANK", "3", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1", 1);
    assert_true(ranks_place("self", &device, &threads));
    assert_string_equal(device, "cuda");
    assert_false(ranks_place("auto", &device, &threads));
    assert_string_equal(device, "cuda:1");
    assert_int_equal(threads, 3);
    device = "cpu";
    assert_false(ranks_place("auto", &device, &threads));
    assert_string_equal(device, "cpu");
    /* Slurm shows each task the GPU that it has bound it to. */
    device = "cuda";
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    assert_false(ranks_place("auto", &device, &threads));
    assert_string_equal(device, "cuda:0");
    device = "cuda";
    setenv("CUDA_VISIBLE_DEVICES", "0,1", 1);
    assert_false(ranks_place("auto", &device, &threads));
    assert_string_equal(device, "cuda:1");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_has_a_device)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
