/* The process of a ModelNew answer, as the verifier sees it: its children, whichever thread has them, what it does
 * while it should stand still, and numbers of requests that it cannot foresee. A GPU's jail without a GPU: it forbids
 * less. Needs PyTorch and a sandbox; says so and skips where they are missing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/rng.h"
#include "io/json.h"
#include "verify/torch/answer.h"

static struct jail jail;
static struct zygote zygote;

static int open_all(void **state) {
    (void)state;
    struct err e = {0};
    enum status st = jail_open(&jail, false, &e);
    if (st == ST_OK) st = zygote_open(&zygote, &jail, NULL, 1, false, &e);
    if (st != ST_OK) printf("%s\n", e.msg);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    zygote_close(&zygote);
    jail_close(&jail);
    return 0;
}

static bool ask(struct modrun *r, struct str *q) {
    json_t *reply = NULL;
    const bool good = modrun_call(r, q, -1, 20, &reply, NULL) == MODRUN_OK;
    if (!good && reply) printf("%s\n", json_string_value(json_object_get(reply, "error")));
    json_decref(reply);
    return good;
}

/* A process that has executed this module. The caller ends it. */
static struct modrun started(const char *code) {
    struct modrun r;
    struct err e = {0};
    CLEANUP_STR struct str q = STR_INIT, text = STR_INIT;
    if (!zygote.jail) skip();
    const struct modrun_options o = {.device = "cuda:0", .threads = 1, .cpu_s = 60};
    if (modrun_start(&r, &zygote, &o, 5, &e) != ST_OK) fail_msg("%s", e.msg);
    str_addf(
        &text,
        "import ctypes\nimport os\nimport signal\nimport threading\nimport time\n%s\n\nclass ModelNew:\n    pass\n",
        code);
    js_begin(&q, NULL, '{');
    js_put_str(&q, "op", "load");
    js_put_str(&q, "code", str_c(&text));
    js_put_str(&q, "entry", "ModelNew");
    js_put_str(&q, "backend", "torch_cpu");
    js_put_str(&q, "precision", "fp32");
    js_put_i64(&q, "seed", 1);
    assert_true(ask(&r, &q));
    return r;
}

static void test_children(void **state) {
    (void)state;
    static const char *const codes[] = {"", "if os.fork() == 0:\n    time.sleep(60)\n",
                                        "forked = threading.Event()\n\n\ndef work():\n    if os.fork() == 0:\n"
                                        "        time.sleep(60)\n    forked.set()\n    time.sleep(60)\n\n\n"
                                        "threading.Thread(target=work, daemon=True).start()\nforked.wait()\n"};
    for (int i = 0; i < 3; i++) {
        struct modrun r = started(codes[i]);
        assert_int_equal(modrun_children(&r), i > 0);
        modrun_end(&r, NULL, NULL, NULL, 0);
    }
}

/* Seconds of a processor that a process uses while it is told to stand still for 0.2 s. */
static double moved_s(const char *code) {
    struct modrun r = started(code);
    modrun_pause(&r);
    modrun_moved_s(&r);
    const double end = clock_now_s() + 0.2;
    while (clock_now_s() < end) {}
    modrun_resume(&r);
    const double s = modrun_moved_s(&r);
    assert_true(modrun_moved_s(&r) == 0); /* said once */
    modrun_end(&r, NULL, NULL, NULL, 0);
    return s;
}

static void test_stands_still(void **state) {
    (void)state;
    static const char spins[] = "def work():\n    while True:\n        pass\n\n\n"
                                "threading.Thread(target=work, daemon=True).start()\n";
    /* Many, because one whose signal is under way when the process is stopped is heard no more. */
    static const char wakes[] =
        "libc = ctypes.CDLL(None)\nevent = (ctypes.c_int * 16)()\n"
        "event[2], event[3] = signal.SIGCONT, 0\ntimers = [ctypes.c_void_p() for _ in range(64)]\n"
        "libc.signal(signal.SIGCONT, ctypes.cast(libc.getpid, ctypes.c_void_p))\n"
        "for i, timer in enumerate(timers):\n"
        "    assert libc.timer_create(1, event, ctypes.byref(timer)) == 0\n"
        "    often = (ctypes.c_long * 4)(0, 128000000, 0, 2000000 * (i + 1))\n"
        "    libc.timer_settime(timer, 0, often, None)\n";
    char code[1200];
    snprintf(code, sizeof code, "%s%s", spins, wakes);
    const double still = moved_s(spins), woken = moved_s(code);
    printf("told to stand still for 0.2 s: %.2f ms, with a timer that continues it %.2f ms\n", still * 1e3,
           woken * 1e3);
    assert_true(still < 0.02);
    assert_true(woken > still + 0.005);
}

/* What would let an answer go on when it is stopped, or give it rights, is refused where that can be done. */
static void test_refused(void **state) {
    (void)state;
    struct modrun r = started("import fcntl\nlibc = ctypes.CDLL(None, use_errno=True)\n"
                              "SYS_CLONE, CLONE_NEWUSER, F_SETSIG, EPERM = 56, 0x10000000, 10, 1\n"
                              "assert libc.syscall(SYS_CLONE, CLONE_NEWUSER | signal.SIGCHLD, 0, 0, 0, 0) == -1\n"
                              "assert ctypes.get_errno() == EPERM\n"
                              "assert libc.fcntl(2, F_SETSIG, int(signal.SIGCONT)) == -1\n"
                              "assert ctypes.get_errno() == EPERM\n");
    modrun_end(&r, NULL, NULL, NULL, 0);
}

static void test_numbers(void **state) {
    (void)state;
    struct modrun r = started("");
    for (int i = 0; i < 3; i++) {
        CLEANUP_STR struct str q = STR_INIT;
        const uint64_t last = r.nonce;
        str_addf(&q, "{\"op\":\"threads\"");
        assert_true(ask(&r, &q));
        assert_true(r.nonce != last && r.nonce != rng_u64(last, 7, 1) >> 11);
    }
    modrun_end(&r, NULL, NULL, NULL, 0);
}

/* A timed request that gets no reply takes its limit, once. */
static void test_late(void **state) {
    (void)state;
    CLEANUP_STR struct str q = STR_INIT;
    json_t *reply = NULL;
    int64_t ns = 0;
    struct modrun r = started("");
    js_begin(&q, NULL, '{');
    js_put_str(&q, "op", "load");
    js_put_str(&q, "code", "import time\ntime.sleep(60)\n");
    js_put_str(&q, "entry", "ModelNew");
    js_put_str(&q, "backend", "torch_cpu");
    js_put_str(&q, "precision", "fp32");
    js_put_i64(&q, "seed", 1);
    const double from = clock_now_s();
    assert_int_equal(modrun_call(&r, &q, -1, 1, &reply, &ns), MODRUN_LATE);
    assert_true(ns >= 1000000000 && clock_now_s() - from < 1.9);
    modrun_end(&r, NULL, NULL, NULL, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_children), cmocka_unit_test(test_stands_still), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_numbers),  cmocka_unit_test(test_late),
    };
    return cmocka_run_group_tests_name("modrun", tests, open_all, close_all);
}
