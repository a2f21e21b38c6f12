/* A processor for what is timed: taken once on a machine, and bound to by all threads of a process. */
#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/pool.h"
#include "verify/jail/cpu_pin.h"

static int up[2];

/* Says that it is there, and sleeps. */
static void *thread_main(void *unused) {
    (void)unused;
    if (write(up[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
    return NULL;
}

static int threads_on(pid_t pid, const cpu_set_t *want) {
    char path[60];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%ld/task", (long)pid);
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *one; (one = readdir(d));) {
        cpu_set_t set;
        long thread = strtol(one->d_name, NULL, 10);
        if (thread > 0 && sched_getaffinity((pid_t)thread, sizeof set, &set) == 0) n += CPU_EQUAL(&set, want) != 0;
    }
    closedir(d);
    return n;
}

static void test_bound(void **state) {
    (void)state;
    struct cpu_pin p;
    cpu_set_t one;
    char c;
    place_open(&p, 2);
    if (p.cpu < 0) {
        printf("skipped: one processor, or all are taken by verifiers\n");
        skip();
    }
    assert_int_equal(pipe(up), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        pthread_t t;
        for (int i = 0; i < 2; i++)
            if (pthread_create(&t, NULL, thread_main, NULL) != 0) _exit(1);
        for (;;) pause();
    }
    for (int i = 0; i < 2; i++) assert_int_equal(read(up[0], &c, 1), 1);
    CPU_ZERO(&one);
    CPU_SET((size_t)p.cpu, &one);
    assert_false(CPU_ISSET((size_t)p.cpu, &p.others));
    const int left = CPU_COUNT(&p.others);
    assert_true(left >= 1 && left < CPU_COUNT(&p.all));
    assert_true(place_on(&p, pid));
    assert_int_equal(threads_on(pid, &one), 3);
    assert_true(place_beside(&p, pid));
    assert_int_equal(threads_on(pid, &p.others), 3);
    /* The calling thread alone, there and back. */
    const int before = pool_cpu_count();
    assert_true(place_beside(&p, 0));
    assert_int_equal(pool_cpu_count(), left);
    place_free(&p);
    assert_int_equal(pool_cpu_count(), before);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_false(place_on(&p, pid)); /* gone */
    place_close(&p);
    close(up[0]);
    close(up[1]);
}

static void test_taken_once(void **state) {
    (void)state;
    struct cpu_pin a, b, c, none;
    place_open(&a, 2);
    if (a.cpu < 0) {
        printf("skipped: one processor, or all are taken by verifiers\n");
        skip();
    }
    place_open(&b, 2);
    assert_int_not_equal(a.cpu, b.cpu);
    const int free_again = a.cpu;
    place_close(&a);
    place_open(&c, 2);
    assert_int_equal(c.cpu, free_again);
    place_close(&b);
    place_close(&c);
    place_open(&none, CPU_SETSIZE + 1);
    assert_int_equal(none.cpu, -1);
    assert_false(place_on(&none, 0));
    assert_false(place_beside(&none, 0));
    place_free(&none);
    place_close(&none);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bound), cmocka_unit_test(test_taken_once)};
    return cmocka_run_group_tests_name("place", tests, NULL, NULL);
}
