/* What a pool is made of: lines, messages, the list of hosts, leases of a machine, secrets, shared verdicts. */
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/rng.h"
#include "verify/host_lease.h"
#include "verify/pool/hardware.h"
#include "verify/pool/hosts.h"
#include "verify/pool/lines.h"
#include "verify/pool/places.h"
#include "verify/pool/protocol.h"
#include "verify/pool/secret.h"
#include "verify/pool/store.h"

static struct err err;
static char tmp_dir[64];
#define CHECK(x)                                   \
    do {                                           \
        if ((x) != ST_OK) fail_msg("%s", err.msg); \
    } while (0)
#define CHECK_FAILS(x, status, text)                                                       \
    do {                                                                                   \
        err = (struct err){0};                                                             \
        assert_int_equal((x), (status));                                                   \
        if (!strstr(err.msg, (text))) fail_msg("expected \"%s\" in: %s", (text), err.msg); \
    } while (0)

static int make_tmp_dir(void **state) {
    (void)state;
    snprintf(tmp_dir, sizeof tmp_dir, "/tmp/kernelrl_pool_XXXXXX");
    if (!mkdtemp(tmp_dir)) return 1;
    setenv("KERNELRL_LEASE_DIR", tmp_dir, 1);
    return 0;
}
static int remove_tmp_dir(void **state) {
    (void)state;
    return fs_remove(tmp_dir, &err) == ST_OK ? 0 : 1;
}
static const char *in_tmp(const char *name) {
    static char path[8][200];
    static int at;
    at = (at + 1) % 8;
    snprintf(path[at], sizeof path[at], "%s/%s", tmp_dir, name);
    return path[at];
}

/* ---- lines --------------------------------------------------------------------------------------------------------*/

/* Lines of any length, cut into pieces anywhere, come out as they went in; those over the limit as their length. */
static void lines_in_pieces(void **state) {
    (void)state;
    enum { LINES = 400, MAX = 64 };
    struct rng r = rng_make(3, 5);
    CLEANUP_STR struct str all = STR_INIT;
    size_t length[LINES];
    for (int i = 0; i < LINES; i++) {
        length[i] = rng_below(&r, 8) == 0 ? MAX + 1 + rng_below(&r, 3000) : rng_below(&r, MAX + 1);
        for (size_t k = 0; k < length[i]; k++) str_addc(&all, (char)('a' + i % 26));
        str_addc(&all, '\n');
    }
    struct line_reader reader = line_reader_make(MAX);
    int next = 0;
    for (size_t at = 0; at < all.len;) {
        const size_t piece = (size_t)i64_min((int64_t)(1 + rng_below(&r, 300)), (int64_t)(all.len - at));
        char *line;
        uint64_t n;
        line_reader_feed(&reader, all.p + at, piece);
        at += piece;
        for (enum line_kind k; (k = line_reader_next(&reader, &line, &n)) != LINE_NONE; next++) {
            while (next < LINES && length[next] == 0) next++; /* passed over */
            assert_true(next < LINES);
            assert_int_equal(n, length[next]);
            assert_int_equal(k, length[next] > MAX ? LINE_TOO_LONG : LINE_WHOLE);
            for (size_t i = 0; k == LINE_WHOLE && i < n; i++) assert_int_equal(line[i], 'a' + next % 26);
        }
        assert_true(reader.cap <= 2 * (MAX + 301)); /* nothing of a long line is kept */
    }
    while (next < LINES && length[next] == 0) next++;
    assert_int_equal(next, LINES);
    line_reader_free(&reader);
}

/* ---- messages -----------------------------------------------------------------------------------------------------*/

static struct pool_message read_back(struct str *line) {
    struct pool_message m;
    assert_int_equal(line->p[line->len - 1], '\n');
    CHECK(pool_message_read(line->p, line->len - 1, "test", &m, &err));
    return m;
}

static const char id[] = "0123456789abcdef0123456789abcdef";

static struct pool_job_text a_job(const struct problem *problem, const char *source) {
    static char hash[17], tag[17];
    struct verify_options o = {.backend = BACKEND_triton,
                               .device = "cuda:3",
                               .precision = "bf16",
                               .trials = 7,
                               .trim = 0.25,
                               .memory_bytes = (int64_t)3 << 30,
                               .timing_method = TIMING_do_bench,
                               .staged = STAGED_OFF,
                               .measure = true,
                               .python = "/usr/bin/python3",
                               .seed = 77};
    pool_settings_hash(&o, hash);
    pool_seed_tag(77, tag);
    return (struct pool_job_text){.j = id,
                                  .attempt = 3,
                                  .terms = {.run = "00000000000000ff",
                                            .class = "cuda-nvidia-h200",
                                            .settings = o,
                                            .program = KERNELRL_VERSION,
                                            .settings_hash = hash,
                                            .seed_tag = tag},
                                  .place = "12/train/3/0/1",
                                  .problem = *problem,
                                  .source = source,
                                  .budget_s = 300,
                                  .alone = true,
                                  .not_on = {"h1", "h2"},
                                  .n_not_on = 2};
}

static void job_round_trip(void **state) {
    (void)state;
    static const char *const sources[] = {"void kernel() { /* \"\t\\ \xc3\xa9 */ }\n",
                                          "bytes that are no UTF-8: \xff\xfe\x80 end", "\xff", "\xff\xfe"};
    const struct problem problem = {.key = "level1/1_ReLU",
                                    .name = "1_ReLU",
                                    .code = "import torch\n# \xe2\x82\xac\n",
                                    .level = 1,
                                    .problem_id = 1};
    for (size_t i = 0; i < ARRAY_LEN(sources); i++) {
        CLEANUP_STR struct str line = STR_INIT;
        const struct pool_job_text job = a_job(&problem, sources[i]);
        char hash[17];
        pool_put_job(&job, &line);
        struct pool_message m = read_back(&line);
        assert_int_equal(m.type, MESSAGE_JOB);
        assert_int_equal(m.protocol, PROTOCOL_VERSION);
        assert_string_equal(m.job.j, id);
        assert_int_equal(m.job.attempt, 3);
        assert_string_equal(m.job.source, sources[i]);
        assert_string_equal(m.job.problem.code, problem.code);
        assert_int_equal(m.job.problem.level, 1);
        assert_string_equal(m.job.terms.class, "cuda-nvidia-h200");
        assert_string_equal(m.job.terms.settings.device, "cuda"); /* which of them is the worker's business */
        assert_string_equal(m.job.terms.settings.precision, "bf16");
        assert_true(m.job.terms.settings.trim == 0.25 && m.job.terms.settings.memory_bytes == (int64_t)3 << 30);
        assert_int_equal(m.job.terms.settings.timing_method, TIMING_do_bench);
        assert_true(m.job.alone && m.job.n_not_on == 2 && strcmp(m.job.not_on[1], "h2") == 0);
        /* Both ends find the same name for the settings, and neither the seed nor a path of the sender is in the line.
         */
        pool_settings_hash(&m.job.terms.settings, hash);
        assert_string_equal(hash, m.job.terms.settings_hash);
        assert_int_equal(m.job.terms.settings.seed, 0);
        assert_null(m.job.terms.settings.python);
        assert_null(strstr(line.p, "/usr/bin/python3"));
        pool_message_free(&m);
    }
}

/* Every option that decides verdicts decides the name of the settings. */
static void settings_have_names(void **state) {
    (void)state;
    const struct verify_options o = {.trials = 5, .device = "cpu"};
    char a[17], b[17];
    pool_settings_hash(&o, a);
    struct verify_options other[] = {o, o, o, o, o, o};
    other[0].trials = 6;
    other[1].backend = BACKEND_torch_cpu;
    other[2].run_timeout_s = 1;
    other[3].measure = true;
    other[4].threads = 3;
    other[5].staged = STAGED_ON;
    for (size_t i = 0; i < ARRAY_LEN(other); i++) {
        pool_settings_hash(&other[i], b);
        assert_string_not_equal(a, b);
    }
    struct verify_options same = o;
    same.seed = 5;
    same.python = "elsewhere";
    same.device = NULL; /* of backend c: the processor */
    pool_settings_hash(&same, b);
    assert_string_equal(a, b);
}

static void verdict_round_trip(void **state) {
    (void)state;
    struct verdict v = {
        .outcome = OUTCOME_CORRECT, .tests_passed = 5, .tests_total = 5, .speedup = 1.1, .max_error = 0.1};
    v.speedup_low = 1.0 / 3;
    v.speedup_high = 7.0 / 3;
    VERDICT_SAY(&v, "line\nbreak");
    const struct pool_witness w = {
        .worker = "h1", .class = "cpu-x", .gpu = NULL, .sm_mhz = 1980, .probe = 1.01, .spent_s = 2};
    CLEANUP_STR struct str line = STR_INIT, x = STR_INIT, y = STR_INIT;
    pool_put_verdict(id, 2, &v, &w, false, true, &line);
    struct pool_message m = read_back(&line);
    verdict_to_json(&v, &x);
    verdict_to_json(&m.verdict, &y);
    assert_string_equal(x.p, y.p);
    assert_true(m.replayed && !m.cached && m.attempt == 2 && m.witness.sm_mhz == 1980);
    assert_string_equal(m.witness.worker, "h1");
    assert_null(m.witness.gpu);
    pool_message_free(&m);
}

static void other_messages(void **state) {
    (void)state;
    struct pool_message hello = {.protocol = 1, .program = "0.2.0", .host = "h", .slots = 8, .ahead = 7, .beat_s = 2};
    hello.class[0] = "cpu-a-x2";
    hello.class[1] = "cuda-b";
    hello.n_classes = 2;
    const struct problem problem = {.key = "k", .name = "n", .code = "c"};
    const struct pool_job_text job = a_job(&problem, "s");
    CLEANUP_STR struct str line = STR_INIT;
    struct pool_message m;
#define SAID(put)     \
    str_clear(&line); \
    put;              \
    m = read_back(&line);
    SAID(pool_put_hello(&hello, &line));
    assert_true(m.type == MESSAGE_HELLO && m.slots == 8 && m.n_classes == 2 && strcmp(m.class[1], "cuda-b") == 0);
    pool_message_free(&m);
    SAID(pool_put_open(&job.terms, 0xfedcba9876543210, &line));
    assert_true(m.type == MESSAGE_OPEN && m.seed == 0xfedcba9876543210);
    assert_string_equal(m.terms.settings_hash, job.terms.settings_hash);
    pool_message_free(&m);
    SAID(pool_put_open(&job.terms, 0, &line)); /* through a queue no seed travels */
    assert_true(m.seed == 0 && !strstr(line.p, "\"seed\""));
    pool_message_free(&m);
    SAID(pool_put_about(MESSAGE_LOST, id, 4, 2, "why", &line));
    assert_true(m.type == MESSAGE_LOST && m.losses == 2 && m.attempt == 4 && strcmp(m.reason, "why") == 0);
    pool_message_free(&m);
    SAID(pool_put_refused(id, 1, "settings", "a", "b", "no", &line));
    assert_true(m.type == MESSAGE_REFUSED && strcmp(m.here, "a") == 0 && strcmp(m.there, "b") == 0);
    pool_message_free(&m);
    SAID(pool_put_recall(id, 1, &line));
    assert_true(m.type == MESSAGE_CANCEL && m.waiting);
    pool_message_free(&m);
    SAID(pool_put_cancel_run("00000000000000ff", &line));
    assert_true(m.type == MESSAGE_CANCEL && !m.j && strcmp(m.run, "00000000000000ff") == 0);
    pool_message_free(&m);
    CHECK(pool_message_read("{\"type\":\"later\",\"x\":1}", 22, "t", &m, &err));
    assert_int_equal(m.type, MESSAGE_UNKNOWN);
    pool_message_free(&m);
}

static void lines_that_are_no_messages(void **state) {
    (void)state;
    static const struct {
        const char *line, *says;
    } bad[] = {
        {"", "no JSON object"},
        {"[1]", "no JSON object"},
        {"{\"type\":1}", "type"},
        {"{\"type\":\"job\"", "no JSON object"},
        {"{\"type\":\"job\"}", "j: missing"},
        {"{\"type\":\"job\",\"j\":\"xyz\"}", "32 hex digits"},
        {"{\"type\":\"verdict\",\"j\":\"0123456789abcdef0123456789abcdef\",\"attempt\":0}", "attempt"},
        {"{\"type\":\"verdict\",\"j\":\"0123456789abcdef0123456789abcdef\",\"attempt\":1}", "verdict"},
        {"{\"type\":\"hello\",\"protocol\":1,\"program\":\"p\",\"host\":\"h\",\"slots\":-1}", "slots"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct pool_message m;
        CHECK_FAILS(pool_message_read(bad[i].line, strlen(bad[i].line), "from", &m, &err), ST_PARSE, bad[i].says);
        assert_true(strncmp(err.msg, "from:", 5) == 0);
        pool_message_free(&m);
    }
    /* A secret in a broken line is not repeated in the error. */
    struct pool_message m;
    const char secret[] = "{\"type\":\"open\",\"seed\":\"deadbeefdeadbeef\",";
    assert_int_equal(pool_message_read(secret, strlen(secret), "from", &m, &err), ST_PARSE);
    assert_null(strstr(err.msg, "deadbeef"));
    pool_message_free(&m);
}

/* ---- hosts --------------------------------------------------------------------------------------------------------*/

static void lists_of_hosts(void **state) {
    (void)state;
    struct pool_hosts h;
    CHECK(pool_hosts_read("local:3,local:cuda:1-3+6,ssh:h1:8,ssh:me@h2,ssh:h3:cuda,ssh:[::1]:2,ssh:h4:cuda:0-1", &h,
                          &err));
    assert_int_equal(h.n, 7);
    assert_true(h.item[0].kind == POOL_LOCAL && h.item[0].slots == 3);
    assert_true(h.item[1].n_gpus == 4 && h.item[1].gpu[3] == 6 && h.item[1].slots == 0);
    assert_true(h.item[2].kind == POOL_SSH && h.item[2].slots == 8 && strcmp(h.item[2].name, "h1") == 0);
    assert_true(h.item[3].slots == 1 && strcmp(h.item[3].name, "me@h2") == 0);
    assert_true(h.item[4].all_gpus && h.item[4].slots == 0);
    assert_true(h.item[5].slots == 2 && strcmp(h.item[5].name, "::1") == 0);
    assert_true(h.item[6].n_gpus == 2);
    pool_hosts_free(&h);
    CHECK(pool_hosts_read("nats:tls://farm:4222", &h, &err));
    assert_true(h.item[0].kind == POOL_NATS && strcmp(h.item[0].name, "tls://farm:4222") == 0);
    pool_hosts_free(&h);
    static const char *const bad[] = {"",
                                      "local",
                                      "local:0",
                                      "local:-1",
                                      "local:x",
                                      "local:cuda:",
                                      "local:cuda:3-1",
                                      "local:cuda:1+1",
                                      "ssh:",
                                      "ssh:-oProxyCommand=x",
                                      "ssh:a b:1",
                                      "ssh:h:0",
                                      "ssh:h;x:1",
                                      "nats:farm",
                                      "nats:nats://u:p@farm",
                                      "local:1,",
                                      "farm:4",
                                      "local:1025",
                                      "nats:nats://a,local:1"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        CHECK_FAILS(pool_hosts_read(bad[i], &h, &err), ST_CONFIG, "verify_hosts: ");
        assert_null(h.item);
    }
}

static void slugs(void **state) {
    (void)state;
    char out[CLASS_BYTES], small[6];
    hardware_gpu_class("NVIDIA H100 80GB HBM3", out);
    assert_string_equal(out, "cuda-nvidia-h100-80gb-hbm3");
    hardware_slug("  A.b__C!! ", out, sizeof out);
    assert_string_equal(out, "a-b-c");
    hardware_slug("abcd efg", small, sizeof small);
    assert_string_equal(small, "abcd");
    hardware_cpu_class(out);
    assert_true(strncmp(out, "cpu-", 4) == 0 && strstr(out, "-x"));
    hardware_host(out);
    assert_true(out[0]);
}

static void command_lines(void **state) {
    (void)state;
    struct line_link l;
    struct worker_place p = {.gpu = {.index = 5, .uuid = "GPU-abc"}, .cpus = "8-11"};
    link_init(&l, "l");
    worker_command(&l, &p, "/bin/x", "name", (const char *const[]){"--beat=1", NULL});
    static const char *const want[] = {"kernelrl", "verify-worker", "--name=name",
                                       "--gpu=5",  "--cpus=8-11",   "--beat=1"};
    for (size_t i = 0; i < ARRAY_LEN(want); i++) assert_string_equal(l.argv[i], want[i]);
    assert_string_equal(l.set[0], "CUDA_VISIBLE_DEVICES=GPU-abc");
    link_free(&l);
    assert_false(worker_pin("x"));
    assert_false(worker_pin("3-1"));
    assert_false(worker_pin("0;1"));
    const pid_t pid = fork();
    if (pid == 0) { /* bound to the processor that it may use anyhow */
        cpu_set_t all;
        char one[16];
        int cpu = 0;
        if (sched_getaffinity(0, sizeof all, &all) != 0) _exit(1);
        while (!CPU_ISSET((size_t)cpu, &all)) cpu++;
        snprintf(one, sizeof one, "%d", cpu);
        if (!worker_pin(one) || sched_getaffinity(0, sizeof all, &all) != 0) _exit(1);
        _exit(CPU_COUNT(&all) == 1 ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* ---- leases -------------------------------------------------------------------------------------------------------*/

/* A process that takes the lease, says so, and waits to be killed. */
static pid_t holder(bool alone) {
    int up[2];
    char c;
    assert_int_equal(pipe(up), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        struct host_lease l;
        if (host_lease_open("test", &l, &err) != ST_OK) _exit(1);
        if (!(alone ? host_lease_take(&l, 5) : host_lease_share(&l, 5))) _exit(1);
        if (write(up[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    close(up[1]);
    assert_int_equal(read(up[0], &c, 1), 1);
    close(up[0]);
    return pid;
}

static void end_holder(pid_t pid) {
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void leases_end_with_their_process(void **state) {
    (void)state;
    struct host_lease l;
    CHECK(host_lease_open("test", &l, &err));
    pid_t pid = holder(true);
    assert_false(host_lease_take(&l, 0));
    assert_false(host_lease_share(&l, 0.05));
    assert_false(host_lease_wanted(&l)); /* somebody has it, nobody waits */
    end_holder(pid);
    assert_true(host_lease_take(&l, 5));
    host_lease_release(&l);
    pid = holder(false);
    assert_true(host_lease_share(&l, 5));
    assert_false(host_lease_take(&l, 0.05)); /* not alone, and now it has nothing */
    end_holder(pid);
    assert_true(host_lease_take(&l, 5));
    host_lease_close(&l);
}

/* Who wants it alone is not kept out by others that come and go. */
static void alone_goes_first(void **state) {
    (void)state;
    struct host_lease l, other;
    CHECK(host_lease_open("test", &l, &err));
    CHECK(host_lease_open("test", &other, &err));
    assert_true(host_lease_share(&l, 5));
    const pid_t pid = fork();
    if (pid == 0) {
        struct host_lease mine;
        _exit(host_lease_open("test", &mine, &err) == ST_OK && host_lease_take(&mine, 20) ? 0 : 1);
    }
    const double until = clock_now_s() + 20;
    while (!host_lease_wanted(&l) && clock_now_s() < until) usleep(1000);
    assert_true(host_lease_wanted(&l));
    assert_false(host_lease_share(&other, 0.05)); /* comes later: waits, though the room is only shared */
    host_lease_release(&l);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_true(host_lease_share(&other, 5));
    host_lease_close(&other);
    host_lease_close(&l);
}

/* ---- secrets ------------------------------------------------------------------------------------------------------*/

static void secrets_of_runs(void **state) {
    (void)state;
    uint64_t a, b, c;
    char run[RUN_NAME_BYTES], other[RUN_NAME_BYTES];
    const char *file = in_tmp("secret");
    CHECK(secret_make_file(file, &err));
    CHECK_FAILS(secret_make_file(file, &err), ST_IO, "exists");
    CHECK(secret_run_name(run, &err));
    CHECK(secret_run_name(other, &err));
    assert_string_not_equal(run, other);
    CHECK(secret_of_run(file, run, &a, &err));
    CHECK(secret_of_run(file, run, &b, &err));
    CHECK(secret_of_run(file, other, &c, &err));
    assert_true(a == b && a != c && a != 0);
    CHECK(secret_draw(&a, &err));
    CHECK(secret_draw(&b, &err));
    assert_true(a != b && a != 0);
    assert_int_equal(chmod(file, 0644), 0);
    CHECK_FAILS(secret_of_run(file, run, &a, &err), ST_INVALID, "chmod 600");
    CHECK_FAILS(secret_of_run(in_tmp("nowhere"), run, &a, &err), ST_IO, "nowhere");
    CHECK(fs_write_atomic(file, "abc\n", 4, &err));
    assert_int_equal(chmod(file, 0600), 0);
    CHECK_FAILS(secret_of_run(file, run, &a, &err), ST_INVALID, "64 hex digits");
}

/* ---- shared verdicts ----------------------------------------------------------------------------------------------*/

static void shared_verdicts(void **state) {
    (void)state;
    struct verdict_store *s, *other;
    struct verdict v = {.outcome = OUTCOME_CORRECT, .tests_total = 5, .speedup = 2, .max_error = 0}, got;
    const struct digest key = digest_of("k", 1), name = verdict_store_name("h", "cpu-x", &key);
    CHECK(verdict_store_open(in_tmp("store"), &s, &err));
    CHECK(verdict_store_open(in_tmp("store"), &other, &err));
    assert_false(verdict_store_find(s, &name, &got));
    verdict_store_add(s, &name, "h1", &v);
    assert_false(verdict_store_find(other, &name, &got)); /* judged once: it gives nobody a reward */
    v.speedup = 2.1;
    verdict_store_add(other, &name, "h2", &v);
    assert_true(verdict_store_find(s, &name, &got));
    assert_true(got.cached && got.speedup == 2);
    /* Another class, other settings, another answer: another name. */
    const struct digest k2 = digest_of("l", 1);
    const struct digest names[] = {verdict_store_name("h", "cpu-y", &key), verdict_store_name("i", "cpu-x", &key),
                                   verdict_store_name("h", "cpu-x", &k2)};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) assert_false(verdict_store_find(s, &names[i], &got));
    /* Two that do not agree begin anew. */
    verdict_store_add(s, &names[0], "h1", &v);
    v.outcome = OUTCOME_WRONG_OUTPUT;
    v.speedup = 0;
    verdict_store_add(s, &names[0], "h2", &v);
    assert_false(verdict_store_find(s, &names[0], &got));
    verdict_store_add(s, &names[0], "h3", &v);
    assert_true(verdict_store_find(s, &names[0], &got));
    assert_int_equal(got.outcome, OUTCOME_WRONG_OUTPUT);
    /* Missing and cached ones are not kept. */
    v.outcome = OUTCOME_INFRASTRUCTURE;
    for (int i = 0; i < 2; i++) verdict_store_add(s, &names[1], "h1", &v);
    assert_false(verdict_store_find(s, &names[1], &got));
    /* A file that somebody has spoilt is none. */
    CLEANUP_STR struct str path = STR_INIT;
    str_addf(&path, "%s/store/%.2s/%s.json", tmp_dir, name.hex, name.hex);
    CHECK(fs_write_atomic(path.p, "{\"judgements\":[{}", 17, &err));
    assert_false(verdict_store_find(s, &name, &got));
    verdict_store_close(s);
    verdict_store_close(other);
}

/* Processes that add to one entry at once leave a whole file. */
static void shared_at_once(void **state) {
    (void)state;
    enum { WRITERS = 4 };
    pid_t pid[WRITERS];
    struct verdict got;
    const struct digest key = digest_of("at once", 7), name = verdict_store_name("h", "cpu-x", &key);
    for (int i = 0; i < WRITERS; i++) {
        pid[i] = fork();
        if (pid[i] != 0) continue;
        struct verdict_store *s;
        const struct verdict v = {.outcome = OUTCOME_CORRECT, .tests_total = 5, .speedup = 2};
        if (verdict_store_open(in_tmp("many"), &s, &err) != ST_OK) _exit(1);
        for (int k = 0; k < 30; k++) {
            verdict_store_add(s, &name, "h", &v);
            (void)verdict_store_find(s, &name, &got);
        }
        _exit(0);
    }
    for (int i = 0; i < WRITERS; i++) {
        int status;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_int_equal(status, 0);
    }
    struct verdict_store *s;
    CHECK(verdict_store_open(in_tmp("many"), &s, &err));
    assert_true(verdict_store_find(s, &name, &got));
    verdict_store_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_in_pieces),     cmocka_unit_test(job_round_trip),
        cmocka_unit_test(settings_have_names), cmocka_unit_test(verdict_round_trip),
        cmocka_unit_test(other_messages),      cmocka_unit_test(lines_that_are_no_messages),
        cmocka_unit_test(lists_of_hosts),      cmocka_unit_test(slugs),
        cmocka_unit_test(command_lines),       cmocka_unit_test(leases_end_with_their_process),
        cmocka_unit_test(alone_goes_first),    cmocka_unit_test(secrets_of_runs),
        cmocka_unit_test(shared_verdicts),     cmocka_unit_test(shared_at_once),
    };
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
