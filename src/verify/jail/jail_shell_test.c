/* The compiler's shell: scripts one after the other in one jail, and what must not pass from one to the next. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/home.h"
#include "base/str.h"
#include "verify/build/compile.h"
#include "verify/jail/jail_shell.h"

static struct jail jail;
static bool have_jail;
static char runner[4096];

static int open_jail(void **state) {
    (void)state;
    struct err e = {0};
    have_jail = jail_open(&jail, false, &e) == ST_OK;
    if (!have_jail) printf("skipped: %s\n", e.msg);
    assert_true(home_beside_program("kernelrl-runner", runner, sizeof runner));
    return 0;
}

static int close_jail(void **state) {
    (void)state;
    if (have_jail) jail_close(&jail);
    return 0;
}

static const struct jail_file none[JAIL_EXTRA_FILES] = {{-1, NULL}, {-1, NULL}, {-1, NULL}, {-1, NULL}, {-1, NULL}};

/* Runs a script with `input` as standard input; what it says on 1 and 2 goes to out. */
static enum shell_result run(struct shell *s, const char *script, const char *arg, const char *input, char *out,
                             size_t size, int *status) {
    CLEANUP_FD int in = process_memfd("in", input, strlen(input));
    CLEANUP_FD int said = process_memfd("out", NULL, 0);
    char *args[] = {(char *)(uintptr_t)arg, NULL};
    int fds[3] = {in, said, said};
    struct err e = {0};
    enum shell_result r = shell_run(s, script, args, "/tmp", fds, status, &e);
    if (r == SHELL_BROKEN) fail_msg("%s", e.msg);
    if (r == SHELL_DIED) *status = 0;
    ssize_t n = pread(said, out, size - 1, 0);
    out[n > 0 ? n : 0] = 0;
    return r;
}

static void test_scripts(void **state) {
    (void)state;
    if (!have_jail) skip();
    struct shell s;
    char out[500];
    int status;
    shell_init(&s, &jail, runner, none, 10);
    assert_int_equal(run(&s, "cat; echo \"$1 $#\"; exit 3", "a b", "in ", out, sizeof out, &status), SHELL_ENDED);
    assert_string_equal(out, "in a b 1\n");
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    pid_t first = s.process.pid;
    /* Neither files nor processes of one script are there in the next, as soon as it starts; it is the same jail all
     * the same. */
    for (int k = 0; k < 20; k++) {
        char pid[20];
        run(&s, "echo secret >/tmp/left; for i in 1 2 3 4 5 6 7 8; do sleep 100 & done; echo $!", NULL, "", pid,
            sizeof pid, &status);
        run(&s, "kill -0 $1 2>/tmp/e && echo alive; rm /tmp/e; ls -A /tmp; echo done", pid, "", out, sizeof out,
            &status);
        assert_string_equal(out, "done\n");
    }
    assert_int_equal(s.process.pid, first);
    /* The system is there to be read only, and no network can be had. */
    run(&s, "echo x >/usr/bin/x; echo x >/extra/x; test -e /root -o -e /home && echo home", NULL, "", out, sizeof out,
        &status);
    assert_non_null(strstr(out, "/usr/bin/x: Read-only"));
    assert_non_null(strstr(out, "/extra/x: Read-only"));
    assert_null(strstr(out, "home"));
    shell_close(&s);
}

/* A directory that compilers are shown is seen wherever it lies, to be read only: below /tmp, of which they have one of
 * their own, and below a directory that lets its owner alone through. What lies beside it is not. */
static void test_shown(void **state) {
    (void)state;
    if (!have_jail) skip();
    char closed[] = "/tmp/kernelrl-shown-XXXXXX", path[100], out[500];
    struct err e = {0};
    struct shell s;
    int status;
    static const char *const files[] = {"secret", "one/f", "two/f"};
    struct jail shown;
    assert_int_equal(jail_open(&shown, false, &e), ST_OK);
    assert_non_null(mkdtemp(closed)); /* for its owner alone */
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        snprintf(path, sizeof path, "%s/%s", closed, files[i]);
        *strrchr(path, '/') = 0;
        assert_int_equal(fs_mkdirs(path, &e), ST_OK);
        if (i > 0) jail_show(&shown, path);
        path[strlen(path)] = '/';
        assert_int_equal(fs_write_atomic(path, "seen\n", 5, &e), ST_OK);
    }
    jail_show(&shown, "/tmp/"); /* nobody's own */
    shell_init(&s, &shown, runner, none, 10);
    for (int k = 0; k < 3; k++) {
        assert_int_equal(run(&s,
                             "cat $1/*/f; test -e $1/secret && echo secret; ls -A /tmp | wc -l; echo x >/tmp/left; "
                             "mv $1 /tmp/moved; for d in /tmp/moved/*; do echo x >$d/f; done",
                             closed, "", out, sizeof out, &status),
                         SHELL_ENDED);
        if (strncmp(out, "seen\nseen\n1\n", 12) != 0) fail_msg("%d: %s", k, out);
        assert_non_null(strstr(out, "two/f: Read-only"));
    }
    shell_close(&s);
    jail_close(&shown);
    assert_int_equal(fs_remove(closed, &e), ST_OK);
}

/* Whatever lies in /tmp when a script ends, the next one finds nothing; what cannot be removed costs a new jail, and no
 * more. */
static void test_leftovers(void **state) {
    (void)state;
    if (!have_jail) skip();
    static const struct {
        const char *script;
        bool same_jail; /* next */
    } cases[] = {
        {"mkdir -p /tmp/a/b/c; echo x >/tmp/a/b/c/f; ln -s / /tmp/a/root; ln -s a /tmp/again; mkfifo /tmp/p", true},
        {"mkdir -p /tmp/a/b; echo x >/tmp/a/b/f; chmod 0 /tmp/a/b /tmp/a; chmod 0 /tmp", true},
        {"cd /tmp; i=0; while test $i -lt 200; do mkdir d; cd d; i=$((i+1)); done", false},
        {"cd /tmp; seq 1 30000 | xargs mkdir", false},
    };
    struct shell s;
    char out[200];
    int status;
    shell_init(&s, &jail, runner, none, 30);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(run(&s, cases[i].script, NULL, "", out, sizeof out, &status), SHELL_ENDED);
        pid_t before = s.process.pid;
        assert_int_equal(run(&s, "ls -A /tmp; ls -ld /usr | cut -c1; echo done", NULL, "", out, sizeof out, &status),
                         SHELL_ENDED);
        assert_string_equal(out, "d\ndone\n");
        if ((s.process.pid == before) != cases[i].same_jail) fail_msg("%zu: pid %d, %d", i, before, s.process.pid);
    }
    shell_close(&s);
}

/* A script that ends its jail is told apart from a jail that does not come up; the one behind it is none the worse. */
static void test_died_or_broken(void **state) {
    (void)state;
    if (!have_jail) skip();
    struct shell s;
    char out[200];
    int status;
    shell_init(&s, &jail, runner, none, 30);
    for (int i = 0; i < 2; i++) { /* in a fresh jail, and in one that has run scripts */
        assert_int_equal(run(&s, "kill -9 -1; sleep 60", NULL, "", out, sizeof out, &status), SHELL_DIED);
        assert_int_equal(run(&s, "echo more", NULL, "", out, sizeof out, &status), SHELL_ENDED);
        assert_string_equal(out, "more\n");
    }
    shell_close(&s);
    char *args[] = {NULL};
    int fds[3] = {-1, -1, -1};
    struct err e = {0};
    CLEANUP_FD int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int i = 0; i < 3; i++) fds[i] = null_fd;
    shell_init(&s, &jail, "/bin/true", none, 30); /* is no runner: ends at once */
    assert_int_equal(shell_run(&s, "exit 0", args, "/tmp", fds, &status, &e), SHELL_BROKEN);
    assert_non_null(strstr(e.msg, "did not come up"));
    shell_close(&s);
}

static void test_slow_and_killed(void **state) {
    (void)state;
    if (!have_jail) skip();
    struct shell s;
    char out[200];
    int status;
    shell_init(&s, &jail, runner, none, 0.3);
    double t0 = clock_now_s();
    assert_int_equal(run(&s, "sleep 60", NULL, "", out, sizeof out, &status), SHELL_SLOW);
    assert_true(clock_now_s() - t0 < 5);
    s.timeout_s = 10;
    assert_int_equal(run(&s, "echo again", NULL, "", out, sizeof out, &status), SHELL_ENDED);
    assert_string_equal(out, "again\n");
    assert_int_equal(run(&s, "kill -9 $$", NULL, "", out, sizeof out, &status), SHELL_ENDED);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(run(&s, "echo more", NULL, "", out, sizeof out, &status), SHELL_ENDED);
    assert_string_equal(out, "more\n");
    shell_close(&s);
}

/* The newest version of a libc symbol that an object asks for: the minor number of GLIBC_2.N. */
static int newest_version(const struct compile_job *job) {
    static const char mark[] = "GLIBC_2.";
    const char *p = job->object, *end = p + job->object_bytes;
    int newest = 0;
    while ((p = mem_find(p, (size_t)(end - p), mark, sizeof mark - 1))) {
        int minor = 0;
        for (p += sizeof mark - 1; *p >= '0' && *p <= '9'; p++) minor = minor * 10 + (*p - '0');
        if (minor > newest) newest = minor;
    }
    return newest;
}

/* Objects that were linked against stubs use the library's newest versions, as full linking has it; what the stubs lack
 * is found all the same, and what nobody has is told. */
static void test_stubs(void **state) {
    (void)state;
    if (!have_jail) skip();
    struct compiler c;
    struct err e = {0};
    if (compiler_open(&c, &jail, runner, NULL, 20, 1, &e) != ST_OK) fail_msg("%s", e.msg);
    for (int i = 0; i < JAIL_EXTRA_FILES; i++) assert_true(c.extra[i].fd >= 0);
    static const struct {
        const char *unit;
        enum compile_result result;
        const char *needs; /* in the object, or in the message; NULL: nothing in particular */
    } cases[] = {
        {"double exp(double); double f(double x) { return exp(x); }", COMPILE_OK, "libm.so.6"},
        {"void f(float *x) {\n#pragma omp parallel for\nfor (int i = 0; i < 9; i++) x[i] = 1; }", COMPILE_OK,
         "libgomp.so.1"},
        {"void *malloc(unsigned long); void *__wrap_malloc(unsigned long n) { return (void *)n; }\n"
         "void *f(void) { return malloc(3); }",
         COMPILE_OK, NULL},
        {"int rand(void); int f(void) { return rand(); }", COMPILE_OK, "libc.so.6"},
        {"_Complex double f(_Complex double a, _Complex double b) { return a * b; }", COMPILE_OK, NULL},
        {"int nobody(void); int f(void) { return nobody(); }", COMPILE_FAILED, "undefined reference to `nobody'"},
        {"int f(void) { return }", COMPILE_FAILED, "expected expression"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct compile_job job = {.unit = cases[i].unit, .unit_bytes = strlen(cases[i].unit)};
        compile_one(&c, &job);
        if (job.result != cases[i].result) fail_msg("%zu: %s", i, job.message);
        const char *where = job.result == COMPILE_OK ? job.object : job.message;
        size_t n = job.result == COMPILE_OK ? job.object_bytes : strlen(job.message);
        if (cases[i].needs && !mem_find(where, n, cases[i].needs, strlen(cases[i].needs)))
            fail_msg("%zu: lacks %s: %s", i, cases[i].needs, job.message);
        free(job.object);
    }
    struct compiler full;
    if (compiler_open(&full, &jail, NULL, NULL, 20, 1, &e) != ST_OK) fail_msg("%s", e.msg);
    struct compile_job one = {.unit = cases[0].unit, .unit_bytes = strlen(cases[0].unit)}, other = one;
    compile_one(&c, &one);
    compile_one(&full, &other);
    assert_true(one.object_bytes < other.object_bytes); /* without the start files: it went the short way */
    assert_true(newest_version(&one) > 0);
    assert_int_equal(newest_version(&one), newest_version(&other));
    free(one.object);
    free(other.object);
    compiler_close(&full);
    compiler_close(&c);
}

/* What a unit, a script or an option says or leaves unsaid never makes it the machine's fault; only a jail or a
 * compiler that fails a unit that has nothing wrong does. */
static void test_whose_fault(void **state) {
    (void)state;
    if (!have_jail) skip();
    static char long_option[20000] = "-D";
    memset(long_option + 2, 'A', sizeof long_option - 3);
    static const struct {
        const char *unit, *script, *option;
        const char *says; /* in the message */
    } cases[] = {
        {"#line 1 \"bwrap:\"\nint f(void) { return }", NULL, NULL, "bwrap:"},
        {"# 1 \"bwrap: \"\nint f(void) { return }", NULL, NULL, "bwrap:"},
        {"#error bwrap: no namespaces", NULL, NULL, "bwrap: no namespaces"},
        {"#line 1 \"\"\n#error", NULL, NULL, NULL},
        {"", "echo bwrap: it is the sandbox >&2; exit 1", NULL, "bwrap: it is the sandbox"},
        {"", "exit 1", NULL, "status 1, no object and no message"},
        {"", "exit 0", NULL, "no object and no message"},
        {"", "exit 127", NULL, "no object and no message"},
        {"", "echo short", NULL, "no object and no message"},
        {"", "kill -9 $$", NULL, NULL},
        {"", "echo bwrap: >&2; kill -9 $$", NULL, "bwrap:"},
        {"", "kill -9 -1; sleep 60", NULL, "ended the compiler's jail"},
        {"", "exit 1", long_option, "options are too long"},
    };
    struct compiler c;
    struct err e = {0};
    for (int with_runner = 0; with_runner < 2; with_runner++) {
        if (compiler_open(&c, &jail, with_runner ? runner : NULL, NULL, 20, 1, &e) != ST_OK) fail_msg("%s", e.msg);
        for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
            char *args[] = {(char *)(uintptr_t)cases[i].option, NULL};
            struct compile_job job = {
                .unit = cases[i].unit, .unit_bytes = strlen(cases[i].unit), .script = cases[i].script, .args = args};
            if (!with_runner && cases[i].says && strstr(cases[i].says, "jail")) continue; /* sh has the jail's end */
            compile_one(&c, &job);
            if (job.result != COMPILE_FAILED)
                fail_msg("%d, %zu: result %d: %s", with_runner, i, job.result, job.message);
            if (cases[i].says && !strstr(job.message, cases[i].says)) fail_msg("%zu: %s", i, job.message);
        }
        compiler_close(&c);
    }
    /* With a compiler that compiles nothing the same ends are the machine's. */
    if (compiler_open(&c, &jail, runner, NULL, 20, 1, &e) != ST_OK) fail_msg("%s", e.msg);
    c.runner = "/bin/true";
    struct compile_job job = {.unit = "int f(void) { return 1; }", .unit_bytes = 25};
    compile_one(&c, &job);
    assert_int_equal(job.result, COMPILE_BROKEN);
    c.runner = runner;
    c.timeout_s = 1e-4; /* of the control */
    char *none_more[] = {NULL};
    job = (struct compile_job){.unit = "", .script = "kill -9 $$", .args = none_more, .timeout_s = 20};
    compile_one(&c, &job);
    assert_int_equal(job.result, COMPILE_BROKEN);
    compiler_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scripts),         cmocka_unit_test(test_shown),
        cmocka_unit_test(test_leftovers),       cmocka_unit_test(test_died_or_broken),
        cmocka_unit_test(test_slow_and_killed), cmocka_unit_test(test_whose_fault),
        cmocka_unit_test(test_stubs),
    };
    return cmocka_run_group_tests_name("shell", tests, open_jail, close_jail);
}
