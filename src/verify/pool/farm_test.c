/* A farm on this machine: a real nats-server with rights and TLS as `verifiers setup` makes them, hosts that judge
 * nothing (test_stand_in.h), and a pool. Hosts, server and trainer are killed; keys are stolen and verdicts forged. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/rng.h"
#include "cli/cli.h"
#include "verify/jail/process.h"
#include "verify/pool/farm.h"
#include "verify/pool/farm_setup.h"
#include "verify/pool/jetstream.h"
#include "verify/pool/nkey.h"
#include "verify/pool/pool.h"
#include "verify/pool/registry.h"
#include "verify/pool/secret.h"
#include "verify/pool/test_stand_in.h"

static struct err err;
static char tmp_dir[64], self[4096], class[CLASS_BYTES], server_program[4096];
static int port;
static pid_t server;
#define CHECK(x)                                   \
    do {                                           \
        if ((x) != ST_OK) fail_msg("%s", err.msg); \
    } while (0)

static const struct problem problems[] = {{.key = "a", .name = "a", .code = "class Model: a"},
                                          {.key = "b", .name = "b", .code = "class Model: b"}};
static const struct verify_options judged_by = {.trials = 5, .measure = true};

static const char *in_tmp(const char *name) {
    static char path[16][300];
    static int at;
    at = (at + 1) % 16;
    snprintf(path[at], sizeof path[at], "%s/%s", tmp_dir, name);
    return path[at];
}

/* ---- processes ----------------------------------------------------------------------------------------------------*/

enum { PROCESSES = 32 };
static pid_t started[PROCESSES];

static pid_t start(char *const *argv, const char *folder, const char *env, const char *log) {
    const pid_t pid = fork();
    if (pid == 0) {
        const int out = open(in_tmp(log), O_WRONLY | O_CREAT | O_APPEND, 0644);
        if ((folder && chdir(folder) != 0) || out < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) _exit(126);
        if (env) putenv((char *)(uintptr_t)env);
        setpgid(0, 0);
        execv(argv[0], argv);
        _exit(127);
    }
    assert_true(pid > 0);
    for (int i = 0; i < PROCESSES; i++)
        if (!started[i]) {
            started[i] = pid;
            return pid;
        }
    fail_msg("too many processes");
    return 0;
}

static void end(pid_t pid, int sig) {
    for (int i = 0; i < PROCESSES; i++)
        if (started[i] == pid) started[i] = 0;
    kill(sig == SIGKILL ? -pid : pid, sig);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* A host ends as when its machine loses its power: the process that feeds it, and all its verifiers. */
static void end_host(pid_t pid) { end(pid, SIGKILL); }

/* A test that waits for what never comes ends by this alarm, and leaves what its server and hosts have said. */
enum { TEST_S = 500 };
static void on_alarm(int sig) {
    char sh[300];
    snprintf(sh, sizeof sh, "tail -n 20 %s/*.log", tmp_dir);
    const pid_t tail = fork();
    if (tail == 0) {
        execl("/bin/sh", "sh", "-c", sh, (char *)NULL);
        _exit(127);
    }
    waitpid(tail, NULL, 0);
    signal(sig, SIG_DFL);
    raise(sig);
}
static int begin(void **state) {
    (void)state;
    signal(SIGALRM, on_alarm);
    alarm(TEST_S);
    return 0;
}

static int end_all(void **state) {
    (void)state;
    alarm(0);
    for (int i = 0; i < PROCESSES; i++)
        if (started[i]) {
            kill(-started[i], SIGKILL);
            waitpid(started[i], NULL, 0);
            started[i] = 0;
        }
    return 0;
}

/* ---- a farm -------------------------------------------------------------------------------------------------------*/

static int free_port(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, n), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    close(fd);
    return ntohs(a.sin_port);
}

static void wait_for_server(void) {
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (const double until = clock_now_s() + 100; clock_now_s() < until; usleep(20000)) {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const bool up = connect(fd, (struct sockaddr *)&a, sizeof a) == 0;
        close(fd);
        if (up) return;
    }
    fail_msg("nats-server does not listen");
}

static void start_server(void) {
    char *argv[] = {server_program, (char[]){"-c"}, (char[]){"nats.conf"}, NULL};
    server = start(argv, in_tmp("farm/server"), NULL, "server.log");
    wait_for_server();
}

static int make_farm(void **state) {
    char h1[120], h2[120], h3[120], other[] = "stranger=cuda-nvidia-abacus";
    (void)state;
    snprintf(tmp_dir, sizeof tmp_dir, "/tmp/kernelrl_farm_XXXXXX");
    if (!mkdtemp(tmp_dir)) return 1;
    hardware_cpu_class(class);
    snprintf(h1, sizeof h1, "h1=%s", class);
    snprintf(h2, sizeof h2, "h2=%s", class);
    snprintf(h3, sizeof h3, "h3=%s", class);
    const char *workers[] = {h1, h2, h3, other};
    CLEANUP_STR struct str next = STR_INIT;
    struct farm_setup s = {
        .folder = in_tmp("farm"), .server = "127.0.0.1", .port = port = free_port(), .worker = workers, .n_workers = 2};
    if (farm_setup(&s, &next, &err) != ST_OK) return 1;
    s.n_workers = 4; /* two are added later */
    if (farm_setup(&s, &next, &err) != ST_OK || !strstr(next.p, "worker-h3")) return 1;
    return 0;
}

static int remove_farm(void **state) {
    (void)end_all(state);
    return fs_remove(tmp_dir, &err) == ST_OK ? 0 : 1;
}

static const char *url(void) {
    static char text[80];
    snprintf(text, sizeof text, "tls://127.0.0.1:%d", port);
    return text;
}

/* A host with two slots. env: a variable, or NULL. */
static pid_t start_host(const char *name, const char *env) {
    char nats[100], credentials[300], host[40];
    snprintf(nats, sizeof nats, "--nats=%s", url());
    snprintf(credentials, sizeof credentials, "--credentials=%s/farm/worker-%s", tmp_dir, name);
    snprintf(host, sizeof host, "--name=%s", name);
    char *argv[] = {self,
                    (char[]){"verify-worker"},
                    nats,
                    credentials,
                    host,
                    (char[]){"--slots=2"},
                    (char[]){"--beat=0.2"},
                    (char[]){"--lease=5"},
                    (char[]){"--probe=0.5"},
                    NULL};
    return start(argv, NULL, env, "hosts.log");
}

static char *hosts_text(void) {
    static char text[120];
    snprintf(text, sizeof text, "nats:%s", url());
    return text;
}

static struct pool_options options(void) {
    static char trainer[300];
    snprintf(trainer, sizeof trainer, "%s/farm/trainer", tmp_dir);
    return (struct pool_options){.hosts = hosts_text(),
                                 .program = self,
                                 .lease_s = 2,
                                 .beat_s = 0.2,
                                 .deadline_s = 60,
                                 .hedge_s = 60,
                                 .credentials = trainer};
}

static struct verify_pool *open_pool(const struct pool_options *o) {
    struct verify_pool *p;
    CHECK(verify_pool_open(o, &judged_by, NULL, &p, &err));
    return p;
}

struct answers {
    struct verify_item *item;
    char (*source)[400], (*place)[40];
    int n;
};

static struct answers make_answers(const char *name, int n, const char *extra) {
    struct answers a = {xcalloc((size_t)n, sizeof *a.item), xcalloc((size_t)n, sizeof *a.source),
                        xcalloc((size_t)n, sizeof *a.place), n};
    for (int i = 0; i < n; i++) {
        snprintf(a.source[i], sizeof a.source[i], "%s %d\n%s", name, i, extra ? extra : "");
        snprintf(a.place[i], sizeof a.place[i], "%s/%d", name, i);
        a.item[i] = (struct verify_item){.problem = &problems[i % 2], .source = a.source[i], .place = a.place[i]};
    }
    return a;
}

static void free_answers(struct answers *a) {
    free(a->item);
    free(a->source);
    free(a->place);
}

static void assert_verdict(const struct verify_item *item) {
    struct verify_item want = *item;
    stand_in_verdict(&want, &want.verdict);
    if (item->verdict.outcome != want.verdict.outcome)
        fail_msg("%s: expected %s, got %s: %s", item->source, outcome_name(want.verdict.outcome),
                 outcome_name(item->verdict.outcome), item->verdict.message);
    assert_true(item->verdict.speedup == want.verdict.speedup);
}

static void judge(struct verify_pool *p, const struct answers *a) {
    const struct judge j = judge_by_pool(p);
    CHECK(j.batch(j.ctx, a->item, (size_t)a->n, NULL, &err));
}

static struct pool_stats stats(struct verify_pool *p) {
    struct pool_stats s = verify_pool_stats(p);
    free(s.host);
    s.host = NULL;
    return s;
}

/* Collects what was submitted. */
static void collect_all(struct verify_pool *p, const struct answers *a) {
    const struct judge j = judge_by_pool(p);
    int n = 0;
    for (const double until = clock_now_s() + 400; n < a->n && clock_now_s() < until;) {
        struct verify_item *done[8];
        const size_t m = j.stream->collect(j.ctx, done, 8, 0.2);
        for (size_t i = 0; i < m; i++) j.stream->settle(j.ctx, done[i], true);
        n += (int)m;
    }
    assert_int_equal(n, a->n);
}

/* Submits all, and collects until every one has its verdict; `meanwhile` is called between. */
static void judge_while(struct verify_pool *p, const struct answers *a, void (*meanwhile)(int done)) {
    const struct judge j = judge_by_pool(p);
    CLEANUP_FREE int *seen = xcalloc((size_t)a->n, sizeof *seen);
    int n = 0;
    for (int i = 0; i < a->n; i++) j.stream->submit(j.ctx, &a->item[i]);
    for (const double until = clock_now_s() + 400; n < a->n && clock_now_s() < until;) {
        struct verify_item *done[32];
        const size_t m = j.stream->collect(j.ctx, done, 32, 0.05);
        for (size_t i = 0; i < m; i++) {
            seen[done[i] - a->item]++;
            j.stream->settle(j.ctx, done[i], true);
        }
        n += (int)m;
        meanwhile(n);
    }
    assert_int_equal(n, a->n);
    for (int i = 0; i < a->n; i++) assert_int_equal(seen[i], 1);
}

/* ---- verdicts -----------------------------------------------------------------------------------------------------*/

static void through_the_queue(void **state) {
    (void)state;
    start_server();
    start_host("h1", NULL);
    start_host("h2", NULL);
    start_host("h3", NULL);
    const struct pool_options o = options();
    struct verify_pool *p = open_pool(&o);
    struct answers a = make_answers("q", 200, NULL);
    CLEANUP_FREE char *big = xmalloc(120001); /* packed on its way */
    memset(big, 'y', 120000);
    big[120000] = 0;
    a.item[5].source = big;
    judge(p, &a);
    for (int i = 0; i < a.n; i++) assert_verdict(&a.item[i]);
    const struct pool_stats s = stats(p);
    assert_int_equal(s.verdicts, 200);
    assert_true(s.slots >= 2 && s.missing == 0 && s.refused == 0);
    CLEANUP_STR struct str shown = STR_INIT, json = STR_INIT;
    const struct judge j = judge_by_pool(p);
    for (const double until = clock_now_s() + 100; j.stream->width(j.ctx) < 6 && clock_now_s() < until;) usleep(20000);
    CHECK(registry_show(url(), o.credentials, false, &shown, &err));
    assert_true(strstr(shown.p, "h1 ") && strstr(shown.p, "h3 ") && strstr(shown.p, class));
    CHECK(registry_show(url(), o.credentials, true, &json, &err));
    assert_non_null(strstr(json.p, "\"queues\":[{\"name\":\""));
    free_answers(&a);
    verify_pool_close(p);
}

static pid_t host_pid[3];
static int next_kill; /* so many verdicts are to be there first */
static int killed;
static struct rng kill_rng;

static void kill_a_host(int done) {
    static const char *const names[] = {"h1", "h2", "h3"};
    if (done < next_kill || done > 180) return;
    const int k = (int)rng_below(&kill_rng, 3);
    next_kill = done + 10 + (int)rng_below(&kill_rng, 30);
    end_host(host_pid[k]);
    host_pid[k] = start_host(names[k], NULL);
    killed++;
}

/* Three hosts, 200 jobs, random kills from a fixed seed: a lost lease is given again, each job has one verdict. */
static void hosts_that_die(void **state) {
    (void)state;
    start_server();
    for (int k = 0; k < 3; k++) {
        char name[3] = {'h', (char)('1' + k), 0};
        host_pid[k] = start_host(name, NULL);
    }
    const struct pool_options o = options();
    struct verify_pool *p = open_pool(&o);
    struct answers a = make_answers("dying", 200, "// sleep 0.05\n");
    kill_rng = rng_make(4, 4);
    next_kill = 5;
    killed = 0;
    judge_while(p, &a, kill_a_host);
    int missing = 0;
    for (int i = 0; i < a.n; i++) {
        if (outcome_class(a.item[i].verdict.outcome) == 'I')
            missing++;
        else
            assert_verdict(&a.item[i]);
    }
    assert_true(killed >= 4);
    assert_true(missing < 10);
    free_answers(&a);
    verify_pool_close(p);
}

static bool wipes;
static int server_deaths;
static void kill_the_server(int done) {
    if (done < 20 || server_deaths > 0) return;
    server_deaths++;
    end(server, SIGKILL);
    if (wipes) assert_int_equal(fs_remove(in_tmp("farm/server/jetstream"), &err), ST_OK);
    start_server();
}

static void server_dies(bool wiped) {
    start_server();
    start_host("h1", NULL);
    start_host("h2", NULL);
    const struct pool_options o = options();
    struct verify_pool *p = open_pool(&o);
    struct answers a = make_answers(wiped ? "wiped" : "kept", 60, "// sleep 0.05\n");
    wipes = wiped;
    server_deaths = 0;
    judge_while(p, &a, kill_the_server);
    for (int i = 0; i < a.n; i++) assert_verdict(&a.item[i]);
    assert_int_equal(server_deaths, 1);
    free_answers(&a);
    verify_pool_close(p);
}

static void server_that_dies_and_keeps_its_disk(void **state) {
    (void)state;
    server_dies(false);
}
static void server_that_dies_and_loses_its_disk(void **state) {
    (void)state;
    server_dies(true);
}

/* The process of a verifier dies: its host says so, and goes on. */
static void a_verifier_dies(void **state) {
    (void)state;
    char once[400];
    start_server();
    start_host("h1", NULL);
    struct pool_options o = options();
    o.lease_s = 30; /* nobody else is lost here, however busy this machine is */
    struct verify_pool *p = open_pool(&o);
    struct answers a = make_answers("child", 12, NULL);
    snprintf(once, sizeof once, "child 3\n// die %s 1\n", in_tmp("once"));
    a.item[3].source = once;
    judge(p, &a);
    for (int i = 0; i < a.n; i++) assert_verdict(&a.item[i]);
    free_answers(&a);
    verify_pool_close(p);
}

static void poison_in_the_queue(void **state) {
    (void)state;
    char kept[300];
    start_server();
    start_host("h1", NULL);
    start_host("h2", NULL);
    struct pool_options o = options();
    snprintf(kept, sizeof kept, "%s/poison", tmp_dir);
    o.kept = kept;
    struct verify_pool *p = open_pool(&o);
    struct answers a = make_answers("poison", 20, NULL);
    a.item[7].source = "poison\n// die\n";
    judge(p, &a);
    for (int i = 0; i < a.n; i++)
        if (i != 7) assert_verdict(&a.item[i]);
    assert_int_equal(a.item[7].verdict.outcome, OUTCOME_INFRASTRUCTURE);
    assert_non_null(strstr(a.item[7].verdict.message, "3 workers were lost"));
    assert_true(fs_is_dir(kept));
    free_answers(&a);
    verify_pool_close(p);
}

/* ---- trainers that die --------------------------------------------------------------------------------------------*/

static int lines_of(const char *path) {
    CLEANUP_FREE char *text = NULL;
    int n = 0;
    if (!fs_is_file(path)) return 0;
    CHECK(fs_read(path, 1 << 20, &text, NULL, &err));
    for (const char *p = text; (p = strchr(p, '\n')); p++) n++;
    return n;
}

static struct js *connect_as(const char *folder) {
    struct js *c;
    const struct js_options o = {.url = url(), .name = "test", .folder = folder, .ping_s = 5};
    CHECK(js_open(&o, &c, &err));
    for (const double until = clock_now_s() + 100; !js_connected(c) && clock_now_s() < until;) usleep(10000);
    return c;
}

static const struct nats_api *real;
static nats_sign_fn *real_sign;
static atomic_int with_zero; /* so many signatures begin with a byte 0 */
static bool sign_with_zero(void *ctx, const char *nonce, unsigned char signature[64]) {
    if (!real_sign(ctx, nonce, signature)) return false;
    if (with_zero > 0) {
        signature[0] = 0;
        with_zero--;
    }
    return true;
}
static enum status open_with_zero(const struct nats_connect *how, struct nats_connection **out, struct err *e) {
    struct nats_connect h = *how;
    real_sign = h.sign;
    h.sign = sign_with_zero;
    return real->open(&h, out, e);
}

/* The client library loses such a signature: the connection is tried again with another one, and is not refused. */
static void a_signature_that_begins_with_zero(void **state) {
    (void)state;
    struct js *c;
    const struct js_options o = {.url = url(), .name = "test", .folder = in_tmp("farm/worker-h1"), .ping_s = 5};
    CHECK(nats_api_load(&real, &err));
    struct nats_api api = *real;
    api.open = open_with_zero;
    start_server();
    for (int again = 0; again < 2; again++) { /* the first connection, and one after the server's death */
        with_zero = again ? 2 : 1;
        if (again) {
            end(server, SIGKILL);
            start_server();
        } else {
            CHECK(js_open_with(&api, &o, &c, &err));
        }
        for (const double until = clock_now_s() + 100; (with_zero > 0 || !js_connected(c)) && clock_now_s() < until;)
            usleep(10000);
        assert_true(js_connected(c));
        assert_int_equal(with_zero, 0);
    }
    js_close(c);
}

static int heard;

static void on_subjects(void *ctx, const struct js_reply *r) {
    const json_t *subjects = r->good ? json_object_get(json_object_get(r->json, "state"), "subjects") : NULL;
    const char *name;
    json_t *n;
    int sum = 0;
    json_object_foreach((json_t *)(uintptr_t)subjects, name, n) sum += (int)json_integer_value(n);
    *(int *)ctx = sum;
}

/* How many verdicts of a run the server has. */
static int verdicts_kept(const char *run) {
    char body[80];
    int n = -1;
    struct js *c = connect_as(in_tmp("farm/trainer"));
    snprintf(body, sizeof body, "{\"subjects_filter\":\"krl.verdict.%s\"}", run);
    js_request(c, "$JS.API.STREAM.INFO.KRL_VERDICTS", body, 30, on_subjects, &n);
    while (n < 0) {
        struct pollfd p = {.fd = js_fd(c), .events = POLLIN};
        (void)poll(&p, 1, 50);
        js_step(c);
    }
    js_close(c);
    return n;
}

/* A trainer is killed between asking and hearing. The one that goes on in its place asks again, and gets what was found
 * out meanwhile: nothing is judged twice. */
static void a_trainer_that_comes_back(void **state) {
    (void)state;
    char extra[400], judged[300];
    start_server();
    start_host("h1", NULL);
    start_host("h2", NULL);
    snprintf(judged, sizeof judged, "%s/judged", tmp_dir);
    snprintf(extra, sizeof extra, "// sleep 0.2\n// seed %s\n", judged);
    struct pool_options o = options();
    o.run = "00000000000000aa";
    o.lease_s = 30; /* nobody loses a lease here, however busy this machine is */
    const pid_t trainer = fork();
    if (trainer == 0) {
        struct verify_pool *p;
        struct answers a = make_answers("back", 8, extra);
        if (verify_pool_open(&o, &judged_by, NULL, &p, &err) != ST_OK) _exit(1);
        const struct judge j = judge_by_pool(p);
        for (int i = 0; i < a.n; i++) j.stream->submit(j.ctx, &a.item[i]);
        for (;;) pause();
    }
    for (const double until = clock_now_s() + 200; lines_of(judged) < 8 && clock_now_s() < until;) usleep(20000);
    kill(trainer, SIGKILL);
    assert_int_equal(waitpid(trainer, NULL, 0), trainer);
    for (const double until = clock_now_s() + 200; verdicts_kept(o.run) < 8 && clock_now_s() < until;) usleep(20000);
    struct verify_pool *p = open_pool(&o);
    struct answers a = make_answers("back", 10, extra); /* two of them are new */
    judge(p, &a);
    for (int i = 0; i < a.n; i++) assert_verdict(&a.item[i]);
    assert_int_equal(lines_of(judged), 10);
    free_answers(&a);
    verify_pool_close(p);
}

/* ---- between a verdict and the end of a lease
 * ----------------------------------------------------------------------*/

/* Takes one job as a host does, posts its verdict, and is gone before it says that the job is done. */
static void on_last_job(void *ctx, const struct js_message *m) {
    CLEANUP_STR struct str line = STR_INIT, text = STR_INIT;
    struct pool_message job;
    char subject[80], id[60], sig[90];
    struct js *c = ctx;
    CHECK(pool_message_read(m->data, m->n, "job", &job, &err));
    struct verify_item item = {.problem = &job.job.problem, .source = job.job.source};
    const struct pool_witness w = {.worker = "h1", .class = class, .sm_mhz = (double)NAN, .probe = (double)NAN};
    stand_in_verdict(&item, &item.verdict);
    pool_put_verdict(job.j, job.attempt, &item.verdict, &w, false, false, &line);
    snprintf(subject, sizeof subject, "krl.verdict.%s", job.job.terms.run);
    snprintf(id, sizeof id, "%s.%d", job.j, job.attempt);
    farm_signed_text(subject, line.p, line.len - 1, &text);
    assert_true(js_sign(c, text.p, text.len, sig));
    const struct nats_header headers[] = {{"Krl-Key", js_public_key(c)}, {"Krl-Sig", sig}, {NULL, NULL}};
    js_publish(c, subject, id, headers, line.p, line.len - 1, 5, NULL, NULL);
    pool_message_free(&job);
    heard++;
}

static void a_host_that_dies_behind_its_verdict(void **state) {
    (void)state;
    char extra[400], judged[300], name[120];
    struct verify_item *done[8];
    start_server();
    snprintf(judged, sizeof judged, "%s/behind", tmp_dir);
    snprintf(extra, sizeof extra, "// seed %s\n", judged);
    const pid_t host = start_host("h2", NULL);
    struct pool_options o = options();
    o.run = "00000000000000dd";
    struct verify_pool *p = open_pool(&o);
    end_host(host); /* the class is known; nobody serves it now */
    const struct judge j = judge_by_pool(p);
    struct answers a = make_answers("behind", 1, extra);
    j.stream->submit(j.ctx, &a.item[0]);
    struct js *c = connect_as(in_tmp("farm/worker-h1"));
    snprintf(name, sizeof name, "w-%s", class);
    struct js_pull *pull = js_pull_make(c, "KRL_JOBS", name, on_last_job, c);
    heard = 0;
    size_t n = 0;
    for (const double until = clock_now_s() + 200; (heard == 0 || n == 0) && clock_now_s() < until;) {
        struct pollfd f = {.fd = js_fd(c), .events = POLLIN};
        if (heard == 0 && js_pull_open(pull) == 0) js_pull_ask(pull, 1, 5);
        (void)poll(&f, 1, 50);
        js_step(c);
        n += j.stream->collect(j.ctx, done, 8, 0);
    }
    assert_int_equal(n, 1);
    assert_verdict(&a.item[0]);
    js_close(c);
    /* The job is given again, to a host that judges it. Its verdict is the second of its name: the first one stays. */
    start_host("h2", NULL);
    for (const double until = clock_now_s() + 200; lines_of(judged) == 0 && clock_now_s() < until;) usleep(20000);
    assert_true(lines_of(judged) >= 1);
    struct answers b = make_answers("afterwards", 4, NULL);
    for (int i = 0; i < b.n; i++) j.stream->submit(j.ctx, &b.item[i]);
    j.stream->settle(j.ctx, &a.item[0], true);
    collect_all(p, &b); /* nothing else comes */
    for (int i = 0; i < b.n; i++) assert_verdict(&b.item[i]);
    assert_int_equal(verdicts_kept(o.run), 5);
    free_answers(&a);
    free_answers(&b);
    verify_pool_close(p);
}

/* ---- draining -----------------------------------------------------------------------------------------------------*/

static pid_t drained;
static void drain_a_host(int done) {
    if (!drained || done < 10) return;
    kill(drained, SIGTERM);
    int status;
    const double until = clock_now_s() + 200;
    while (waitpid(drained, &status, WNOHANG) == 0 && clock_now_s() < until) usleep(20000);
    for (int i = 0; i < PROCESSES; i++)
        if (started[i] == drained) started[i] = 0;
    assert_int_equal(status, 0);
    drained = 0;
}

static void a_host_that_drains(void **state) {
    (void)state;
    start_server();
    drained = start_host("h1", NULL);
    start_host("h2", NULL);
    const struct pool_options o = options();
    struct verify_pool *p = open_pool(&o);
    const struct judge j = judge_by_pool(p);
    for (const double until = clock_now_s() + 100; j.stream->width(j.ctx) < 4 && clock_now_s() < until;) usleep(20000);
    struct answers a = make_answers("drain", 60, "// sleep 0.05\n");
    judge_while(p, &a, drain_a_host);
    for (int i = 0; i < a.n; i++) assert_verdict(&a.item[i]);
    assert_int_equal(drained, 0);
    CLEANUP_STR struct str shown = STR_INIT;
    CHECK(registry_show(url(), o.credentials, false, &shown, &err));
    assert_true(!strstr(shown.p, "h1 ") && strstr(shown.p, "h2 "));
    free_answers(&a);
    verify_pool_close(p);
}

/* ---- the cache of hosts -------------------------------------------------------------------------------------------*/

/* Judged by one host, once more by another: then the third run gets it without judging. */
static void verdicts_of_other_runs(void **state) {
    (void)state;
    char extra[400], judged[300];
    snprintf(judged, sizeof judged, "%s/cache", tmp_dir);
    snprintf(extra, sizeof extra, "// seed %s\n", judged);
    start_server();
    static const char *const names[] = {"h1", "h1", "h2", "h3"};
    static const int total[] = {6, 12, 18, 18}; /* the same host's second judgement confirms nothing */
    for (int run = 0; run < 4; run++) {
        const pid_t host = start_host(names[run], NULL);
        struct pool_options o = options();
        o.lease_s = 30; /* nothing is judged twice because this machine is busy */
        struct verify_pool *p = open_pool(&o);
        struct answers a = make_answers("cache", 6, extra);
        judge(p, &a);
        for (int i = 0; i < a.n; i++) {
            assert_verdict(&a.item[i]);
            assert_int_equal(a.item[i].verdict.cached, run == 3);
        }
        assert_int_equal(lines_of(judged), total[run]);
        free_answers(&a);
        verify_pool_close(p);
        end(host, SIGTERM);
    }
}

/* ---- hostile ------------------------------------------------------------------------------------------------------*/

struct said {
    bool there, good;
    char error[200];
};
static void on_said(void *ctx, const struct js_reply *r) {
    struct said *s = ctx;
    s->there = true;
    s->good = r->good;
    snprintf(s->error, sizeof s->error, "%s", r->error ? r->error : "");
}

static struct said ask(struct js *c, const char *subject, const char *body) {
    struct said s = {0};
    js_request(c, subject, body, 0.3, on_said, &s);
    while (!s.there) {
        struct pollfd p = {.fd = js_fd(c), .events = POLLIN};
        (void)poll(&p, 1, 50);
        js_step(c);
    }
    return s;
}

static void on_heard(void *ctx, const struct js_message *m) {
    (void)ctx;
    (void)m;
    heard++;
}

/* A stolen worker's key takes jobs of its class and posts verdicts, and can do nothing else. */
static void a_stolen_key(void **state) {
    (void)state;
    char subject[300];
    start_server();
    start_host("h1", NULL);
    const struct pool_options o = options();
    struct verify_pool *p = open_pool(&o); /* streams and consumers are there */
    struct js *thief = connect_as(in_tmp("farm/worker-stranger"));
    assert_true(js_connected(thief));
    static const char *const forbidden[] = {"$JS.API.STREAM.DELETE.KRL_JOBS",        "$JS.API.STREAM.PURGE.KRL_JOBS",
                                            "$JS.API.STREAM.INFO.KRL_JOBS",          "$JS.API.STREAM.NAMES",
                                            "$JS.API.STREAM.MSG.GET.KRL_JOBS",       "$JS.API.CONSUMER.LIST.KRL_JOBS",
                                            "$JS.API.STREAM.MSG.DELETE.KRL_VERDICTS"};
    for (size_t i = 0; i < ARRAY_LEN(forbidden); i++) assert_false(ask(thief, forbidden[i], "{\"seq\":1}").good);
    snprintf(subject, sizeof subject, "$JS.API.CONSUMER.INFO.KRL_JOBS.w-%s", class);
    assert_false(ask(thief, subject, "").good); /* another class */
    struct js_pull *pull = NULL;
    char consumer[120];
    snprintf(consumer, sizeof consumer, "w-%s", class);
    pull = js_pull_make(thief, "KRL_JOBS", consumer, on_heard, NULL);
    heard = 0;
    js_pull_ask(pull, 10, 2);
    CHECK(js_listen(thief, "krl.job.>", on_heard, NULL, &err));
    CHECK(js_listen(thief, "_INBOX_>", on_heard, NULL, &err));
    snprintf(subject, sizeof subject, "krl.job.%s.p", class);
    struct said s = {0};
    js_publish(thief, subject, "x", NULL, "{}", 2, 0.7, on_said, &s); /* nor can it post jobs */
    struct answers a = make_answers("stolen", 20, NULL);
    judge(p, &a);
    for (int i = 0; i < a.n; i++) assert_verdict(&a.item[i]);
    for (int i = 0; i < 20; i++) {
        usleep(20000);
        js_step(thief);
    }
    assert_int_equal(heard, 0);
    assert_false(s.there && s.good);
    js_close(thief);
    /* Somebody without a key of the farm's is not let in. */
    CHECK(fs_mkdirs(in_tmp("foreign"), &err));
    struct nkey k;
    CHECK(nkey_make(&k, &err));
    CHECK(nkey_write(&k, in_tmp("foreign/nkey"), &err));
    struct js *foreign;
    const struct js_options f = {.url = url(), .name = "test", .folder = in_tmp("foreign"), .ping_s = 5};
    if (js_open(&f, &foreign, &err) == ST_OK) {
        for (int i = 0; i < 20; i++) usleep(50000);
        assert_false(js_connected(foreign));
        js_close(foreign);
    }
    free_answers(&a);
    verify_pool_close(p);
}

/* Verdicts that somebody else has made up are refused by name, and the true ones count. */
static void forged_verdicts(void **state) {
    (void)state;
    start_server();
    const pid_t host = start_host("h1", "STAND_IN_SLEEP=0.3");
    struct pool_options o = options();
    o.run = "00000000000000bb";
    struct verify_pool *p = open_pool(&o);
    const struct judge j = judge_by_pool(p);
    struct answers a = make_answers("forged", 4, NULL);
    struct js *forger = connect_as(in_tmp("farm/worker-h2"));
    const struct verdict lie = {.outcome = OUTCOME_CORRECT, .speedup = 99, .tests_total = 5, .tests_passed = 5};
    const struct pool_witness w = {.worker = "h1", .class = class, .sm_mhz = (double)NAN, .probe = (double)NAN};
    for (int i = 0; i < a.n; i++) j.stream->submit(j.ctx, &a.item[i]);
    struct nkey k;
    CHECK(nkey_make(&k, &err));
    for (int i = 0; i < a.n; i++) {
        CLEANUP_STR struct str name = STR_INIT, line = STR_INIT, text = STR_INIT;
        char id[33], sig[90];
        const struct digest answer = verify_key(a.item[i].problem, a.item[i].source);
        str_addf(&name, "job\n%s\n%s\n%s", o.run, a.item[i].place, answer.hex);
        snprintf(id, sizeof id, "%s", digest_of(name.p, name.len).hex);
        pool_put_verdict(id, 1, &lie, &w, i == 3, false, &line);
        farm_signed_text("krl.verdict.00000000000000bb", line.p, line.len - 1, &text);
        CHECK(nkey_sign(&k, text.p, text.len, sig, &err));
        const struct nats_header unknown[] = {{"Krl-Key", k.public_key}, {"Krl-Sig", sig}, {NULL, NULL}},
                                 wrong[] = {{"Krl-Key", js_public_key(forger)}, {"Krl-Sig", sig}, {NULL, NULL}};
        char own[90];
        assert_true(js_sign(forger, text.p, text.len, own));
        const struct nats_header cached[] = {{"Krl-Key", js_public_key(forger)}, {"Krl-Sig", own}, {NULL, NULL}};
        /* Unsigned; with an unknown key; with somebody's key and another one's signature; "from the cache". */
        const struct nats_header *const how[] = {NULL, unknown, wrong, cached};
        js_publish(forger, "krl.verdict.00000000000000bb", NULL, how[i], line.p, line.len - 1, 1, NULL, NULL);
    }
    collect_all(p, &a);
    for (int i = 0; i < a.n; i++) assert_verdict(&a.item[i]);
    int64_t refused = 0;
    for (const double until = clock_now_s() + 100; refused < 4 && clock_now_s() < until; usleep(20000))
        refused += stats(p).refused;
    assert_true(refused >= 4);
    js_close(forger);
    (void)host;
    free_answers(&a);
    verify_pool_close(p);
}

/* A host of another version, or without the farm's secret, refuses with both values; others do its part. */
static void hosts_of_another_kind(void **state) {
    (void)state;
    start_server();
    start_host("h1", "STAND_IN_VERSION=0.1.3");
    CLEANUP_FREE char *text = NULL;
    CHECK(fs_remove(in_tmp("farm/worker-h2/secret"), &err));
    CHECK(secret_make_file(in_tmp("farm/worker-h2/secret"), &err));
    start_host("h2", NULL);
    const struct pool_options o = options();
    struct verify_pool *p = open_pool(&o);
    const struct judge j = judge_by_pool(p);
    struct answers a = make_answers("kind", 30, NULL);
    int64_t refused = 0;
    for (int i = 0; i < a.n; i++) j.stream->submit(j.ctx, &a.item[i]);
    for (const double until = clock_now_s() + 200; refused == 0 && clock_now_s() < until; usleep(50000))
        refused += stats(p).refused;
    assert_true(refused > 0);
    start_host("h3", NULL);
    collect_all(p, &a);
    for (int i = 0; i < a.n; i++) assert_verdict(&a.item[i]);
    CHECK(fs_read(in_tmp("hosts.log"), 1 << 20, &text, NULL, &err));
    assert_true(strstr(text, "another version of the program") || strstr(text, "another secret"));
    free_answers(&a);
    verify_pool_close(p);
    CHECK(fs_remove(in_tmp("farm/worker-h2/secret"), &err));
    CLEANUP_FREE char *secret = NULL;
    size_t n;
    CHECK(fs_read(in_tmp("farm/trainer/secret"), 1000, &secret, &n, &err));
    CHECK(fs_write_atomic(in_tmp("farm/worker-h2/secret"), secret, n, &err));
    assert_int_equal(chmod(in_tmp("farm/worker-h2/secret"), 0600), 0);
}

/* The secret of a run, and what it is made from, are nowhere in what the server keeps, nor in logs. */
static void the_server_learns_no_secret(void **state) {
    (void)state;
    uint64_t seed;
    char hex[17], sh[700];
    CLEANUP_FREE char *secret = NULL;
    start_server();
    start_host("h1", NULL);
    struct pool_options o = options();
    o.run = "00000000000000cc";
    struct verify_pool *p = open_pool(&o);
    struct answers a = make_answers("secret", 20, NULL);
    judge(p, &a);
    verify_pool_close(p);
    CHECK(fs_read(in_tmp("farm/trainer/secret"), 1000, &secret, NULL, &err));
    CHECK(secret_of_run(in_tmp("farm/trainer/secret"), o.run, &seed, &err));
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)seed);
    secret[64] = 0;
    snprintf(sh, sizeof sh,
             "cd %s && test -d farm/server/jetstream && ! grep -rqF -e %s -e %s -e %llu farm/server *.log", tmp_dir,
             secret, hex, (unsigned long long)seed);
    char *argv[] = {(char[]){"/bin/sh"}, (char[]){"-c"}, sh, NULL};
    const pid_t pid = start(argv, NULL, NULL, "grep.txt");
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    for (int i = 0; i < PROCESSES; i++)
        if (started[i] == pid) started[i] = 0;
    assert_int_equal(status, 0);
    free_answers(&a);
}

static void configure(const char *line) {
    CLEANUP_STR struct str text = STR_INIT;
    CLEANUP_FREE char *old = NULL;
    size_t n;
    CHECK(fs_read(in_tmp("farm/server/nats.conf"), 1 << 20, &old, &n, &err));
    str_addf(&text, "%s\n%s", line, old);
    CHECK(fs_write_atomic(in_tmp("farm/server/full.conf"), text.p, text.len, &err));
}

static bool hosts_have_said(const char *what) {
    for (const double until = clock_now_s() + 200; clock_now_s() < until; usleep(50000)) {
        CLEANUP_FREE char *text = NULL;
        if (fs_is_file(in_tmp("hosts.log")) && fs_read(in_tmp("hosts.log"), 1 << 20, &text, NULL, &err) == ST_OK &&
            strstr(text, what))
            return true;
    }
    return false;
}

/* A server that takes no more connections ends the library's own tries: a host goes on trying, and gets in. */
static void a_server_that_is_full(void **state) {
    (void)state;
    char *argv[] = {server_program, (char[]){"-c"}, (char[]){"full.conf"}, NULL};
    (void)unlink(in_tmp("hosts.log"));
    configure("max_connections: 2");
    server = start(argv, in_tmp("farm/server"), NULL, "server.log");
    wait_for_server();
    struct js *first = connect_as(in_tmp("farm/worker-h2")), *second = connect_as(in_tmp("farm/worker-h3"));
    assert_true(js_connected(first) && js_connected(second));
    start_host("h1", NULL);
    assert_true(hosts_have_said("trying again"));
    js_close(first);
    js_close(second);
    const struct pool_options o = options();
    struct verify_pool *p = open_pool(&o);
    struct answers a = make_answers("full", 6, NULL);
    judge(p, &a);
    for (int i = 0; i < a.n; i++) assert_verdict(&a.item[i]);
    free_answers(&a);
    verify_pool_close(p);
}

/* A host of a farm probes itself, too, with the settings of its last job, and takes no more when that reads wrong. */
static void a_host_of_a_farm_whose_probe_reads_wrong(void **state) {
    (void)state;
    start_server();
    (void)unlink(in_tmp("hosts.log"));
    const pid_t bad = start_host("h1", "STAND_IN_PROBE=1.2");
    const struct pool_options o = options();
    struct verify_pool *p = open_pool(&o);
    const struct judge j = judge_by_pool(p);
    struct answers a = make_answers("probed", 20, NULL), b = make_answers("later", 10, NULL);
    for (int i = 0; i < a.n; i++) j.stream->submit(j.ctx, &a.item[i]);
    assert_true(hosts_have_said("its own answer read 1.200 and 1.200")); /* before or after it has judged all of them */
    start_host("h2", NULL);
    collect_all(p, &a);
    for (int i = 0; i < a.n; i++) assert_verdict(&a.item[i]);
    judge(p, &b);
    for (int i = 0; i < b.n; i++) assert_verdict(&b.item[i]);
    int status;
    assert_int_equal(waitpid(bad, &status, 0), bad);
    for (int i = 0; i < PROCESSES; i++)
        if (started[i] == bad) started[i] = 0;
    assert_int_equal(status, 0);
    free_answers(&a);
    free_answers(&b);
    verify_pool_close(p);
}

/* A host whose key the server does not know says so, and ends. */
static void a_host_without_a_key(void **state) {
    (void)state;
    struct nkey k;
    int status = 0;
    start_server();
    (void)unlink(in_tmp("hosts.log"));
    CHECK(fs_mkdirs(in_tmp("farm/worker-unknown"), &err));
    CHECK(nkey_make(&k, &err));
    CHECK(nkey_write(&k, in_tmp("farm/worker-unknown/nkey"), &err));
    static const char *const files[] = {"ca.pem", "cert.pem", "key.pem", "secret"};
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        char from[80], to[80];
        CLEANUP_FREE char *text = NULL;
        size_t n;
        snprintf(from, sizeof from, "farm/worker-h1/%s", files[i]);
        snprintf(to, sizeof to, "farm/worker-unknown/%s", files[i]);
        if (!fs_is_file(in_tmp(from))) continue;
        CHECK(fs_read(in_tmp(from), 1 << 20, &text, &n, &err));
        CHECK(fs_write_atomic(in_tmp(to), text, n, &err));
        assert_int_equal(chmod(in_tmp(to), 0600), 0);
    }
    const pid_t host = start_host("unknown", NULL);
    assert_int_equal(waitpid(host, &status, 0), host);
    for (int i = 0; i < PROCESSES; i++)
        if (started[i] == host) started[i] = 0;
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    assert_true(hosts_have_said("uthoriz") || hosts_have_said("uthentic"));
}

static void no_server(void **state) {
    (void)state;
    struct verify_pool *p;
    struct pool_options o = options();
    o.credentials = in_tmp("nowhere");
    assert_int_equal(verify_pool_open(&o, &judged_by, NULL, &p, &err), ST_IO);
    assert_non_null(strstr(err.msg, "nowhere/secret"));
    o = options();
    struct verify_options seeded = judged_by;
    seeded.seed = 5;
    assert_int_equal(verify_pool_open(&o, &seeded, NULL, &p, &err), ST_CONFIG);
    assert_non_null(strstr(err.msg, "which would see it"));
}

static bool can_run(void) {
    const struct nats_api *api;
    if (!process_find("nats-server", server_program, sizeof server_program) &&
        !process_find("/usr/sbin/nats-server", server_program, sizeof server_program)) {
        printf("skipped: the farm: no nats-server (tools/setup nats installs it)\n");
        return false;
    }
    if (nats_api_load(&api, &err) == ST_OK) return true;
    printf("skipped: the farm: %s\n", err.msg);
    return false;
}

int main(int argc, char **argv) {
    const struct worker_judge stand_in_here = stand_in_worker();
    signal(SIGPIPE, SIG_IGN);
    if (argc > 1 && strcmp(argv[1], "verify-worker") == 0)
        return verify_worker_with(argc - 1, argv + 1, &stand_in_here);
    if (argc > 1 && strcmp(argv[1], "verifiers") == 0) return cmd_verifiers(argc - 1, argv + 1);
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    log_set_level(LOG_ERROR);

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end_all)
    /* The others are run where the argument is "all" (tests/faults/farm_unit.sh): they wait for leases to end. */
    enum { FEW = 5 };
    const struct CMUnitTest tests[] = {
        TEST(a_stolen_key),
        TEST(forged_verdicts),
        TEST(the_server_learns_no_secret),
        TEST(no_server),
        TEST(a_signature_that_begins_with_zero),
        TEST(through_the_queue),
        TEST(hosts_that_die),
        TEST(server_that_dies_and_keeps_its_disk),
        TEST(server_that_dies_and_loses_its_disk),
        TEST(a_verifier_dies),
        TEST(poison_in_the_queue),
        TEST(a_trainer_that_comes_back),
        TEST(a_host_that_dies_behind_its_verdict),
        TEST(a_host_that_drains),
        TEST(verdicts_of_other_runs),
        TEST(hosts_of_another_kind),
        TEST(a_server_that_is_full),
        TEST(a_host_without_a_key),
        TEST(a_host_of_a_farm_whose_probe_reads_wrong),
    };
    const size_t n_tests = argc > 1 ? ARRAY_LEN(tests) : FEW;
    if (argc > 1 && strcmp(argv[1], "all") != 0) cmocka_set_test_filter(argv[1]);
    if (!can_run()) {
        /* The name of each test that is not run. */
        printf("[==========] Running %zu test(s).\n", n_tests);
        for (size_t i = 0; i < n_tests; i++) printf("[  SKIPPED ] %s\n", tests[i].name);
        return 0;
    }
    return _cmocka_run_group_tests("farm", tests, n_tests, make_farm, remove_farm);
}
