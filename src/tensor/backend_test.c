/* Opening backends by name: names, and every way in which a plugin can be missing or unfit. Plugins are made here with
 * the C compiler. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/str.h"
#include "tensor/backend.h"

static struct err err;
static char dir[] = "/tmp/kernelrl-backend-XXXXXX";

static int make_dir(void **state) {
    (void)state;
    return mkdtemp(dir) ? 0 : 1;
}

static int remove_dir(void **state) {
    (void)state;
    return fs_remove(dir, &err) == ST_OK ? 0 : 1;
}

static const char *in_dir(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void refused(const char *device, enum status want, const char *says) {
    struct backend *be = (struct backend *)&err; /* must be overwritten */
    err = (struct err){0};
    const enum status st = backend_open(device, NULL, &be, &err);
    if (st != want) fail_msg("%s: status %s, expected %s (%s)", device, status_name(st), status_name(want), err.msg);
    assert_null(be);
    if (!strstr(err.msg, says)) fail_msg("message \"%s\" does not say \"%s\"", err.msg, says);
}

static void names(void **state) {
    (void)state;
    static const char *const good[] = {"cpu", "cuda", "cuda:0", "cuda:7", "cuda:1023"};
    static const char *const bad[] = {"",       "CPU",     "cpu:0",   "cuda:",     "cuda:-1", "cuda:+1",
                                      "cuda:x", "cuda:1x", "cuda: 1", "cuda:1024", "cuda1",   "gpu"};
    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        if (!backend_device_valid(good[i])) fail_msg("\"%s\" was refused", good[i]);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        if (backend_device_valid(bad[i])) fail_msg("\"%s\" was taken", bad[i]);
        refused(bad[i], ST_CONFIG, "expected cpu, cuda or cuda:N");
    }
}

static void cpu_opens(void **state) {
    (void)state;
    struct backend *be;
    assert_int_equal(backend_open("cpu", NULL, &be, &err), ST_OK);
    assert_non_null(strstr(be->name, cpu_isa_name()));
    be->close(be);
}

/* Compiles a plugin; false when there is no C compiler. */
static bool compile(const char *name, const char *source) {
    CLEANUP_STR struct str c = STR_INIT, so = STR_INIT;
    str_addf(&c, "%s/%s.c", dir, name);
    str_addf(&so, "%s/%s.so", dir, name);
    assert_int_equal(fs_write_atomic(c.p, source, strlen(source), &err), ST_OK);
    const pid_t pid = fork();
    if (pid == 0) {
        execlp("cc", "cc", "-shared", "-fPIC", "-w", "-o", so.p, c.p, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127) return false;
    assert_int_equal(status, 0);
    setenv("KERNELRL_CUDA_PLUGIN", so.p, 1);
    return true;
}

#define OPEN "int kernelrl_cuda_open(int abi, int device, void *pool, void **out, char *msg, unsigned long n) "

static void plugins(void **state) {
    (void)state;
    /* None named: the message says how to get one, or what the one beside the program finds wrong with this machine. */
    unsetenv("KERNELRL_CUDA_PLUGIN");
    struct backend *be;
    err = (struct err){0};
    if (backend_open("cuda:1023", NULL, &be, &err) != ST_DEVICE || !strstr(err.msg, "cuda:1023"))
        fail_msg("%s", err.msg);
    setenv("KERNELRL_CUDA_PLUGIN", in_dir("absent.so"), 1);
    refused("cuda", ST_DEVICE, "absent.so: no such file");
    assert_int_equal(fs_write_atomic(in_dir("text.so"), "not a library", 13, &err), ST_OK);
    setenv("KERNELRL_CUDA_PLUGIN", in_dir("text.so"), 1);
    refused("cuda", ST_DEVICE, "cannot load");

    if (!compile("empty", "int nothing;\n")) {
        printf("skipped: no C compiler to make plugins with\n");
        skip();
    }
    refused("cuda", ST_DEVICE, "not a plugin");
    /* One of another version of the program, which refuses by the number it is given. */
    char source[512];
    snprintf(source, sizeof source,
             "#include <stdio.h>\n" OPEN "{ if (abi == %d) return 0; snprintf(msg, n, \"abi %%d, not %d\", abi); "
             "return 1; }\n",
             BACKEND_ABI + 1, BACKEND_ABI + 1);
    assert_true(compile("abi", source));
    snprintf(source, sizeof source, "abi %d, not %d", BACKEND_ABI, BACKEND_ABI + 1);
    refused("cuda", ST_DEVICE, source);
    assert_true(compile("silent", OPEN "{ *out = pool; return 1; }\n"));
    refused("cuda", ST_DEVICE, "could not be opened");
    assert_true(compile("lying", OPEN "{ return 0; }\n"));
    refused("cuda", ST_DEVICE, "could not be opened");
    /* One that works hands over what it opened, and was told the device. */
    assert_true(compile("good", "static long table[100];\n" OPEN "{ table[2] = device; *out = table; return 0; }\n"));
    assert_int_equal(backend_open("cuda:5", NULL, &be, &err), ST_OK);
    assert_int_equal((long)(uintptr_t)be->pool, 5); /* the table's third word */
    unsetenv("KERNELRL_CUDA_PLUGIN");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(names), cmocka_unit_test(cpu_opens), cmocka_unit_test(plugins)};
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
