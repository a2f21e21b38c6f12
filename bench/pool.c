/* bench/pool: what a pool costs and carries (docs/farm.md).
 *     pool local [--jobs N] [--workers N]    verdicts a second through pipes, by workers that judge nothing
 *     pool nats  [--jobs N] [--workers N] [--slots N]    the same through a nats-server that it starts; a host has N
 *                                            of the workers (8)
 *     pool verify [--answers N] [--pairs N] [--measure 0|1] [--cpu FILE]  the real verifier in this process and through
 *                                            local:1, in turns. FILE: cpuacct.usage of a control group that this runs
 * in: the ratio is that of seconds of processors, of all processes that take part g=/sys/fs/cgroup/cpuacct/pool; mkdir
 * $g; (echo $BASHPID >$g/cgroup.procs; exec pool verify --cpu $g/cpuacct.usage) Verdicts go through the judging thread
 * into a journal on the disk, as those of a run do. One JSON object a line. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/home.h"
#include "base/log.h"
#include "generate/generator.h"
#include "rl/rollout/judging.h"
#include "verify/jail/process.h"
#include "verify/pool/pool.h"
#include "verify/pool/secret.h"

enum { WORKERS_MAX = 256 };

struct bench {
    int jobs, workers, slots, answers, pairs, measure;
    const char *cpu; /* file of a control group; NULL: none */
    char tmp[64], stand_in[4096];
    pid_t started[WORKERS_MAX + 1];
    int n_started;
};

static void stop(const char *why) {
    fprintf(stderr, "pool: %s\n", why);
    exit(1);
}

static void start(struct bench *b, char *const *argv) {
    const pid_t pid = fork();
    if (pid == 0) {
        const int null = open("/dev/null", O_WRONLY);
        setpgid(0, 0);
        if (null < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0) _exit(126);
        execvp(argv[0], argv);
        _exit(127);
    }
    if (pid < 0) stop("fork failed");
    b->started[b->n_started++] = pid;
}

static void end_all(struct bench *b) {
    for (int i = 0; i < b->n_started; i++) {
        kill(-b->started[i], SIGKILL);
        waitpid(b->started[i], NULL, 0);
    }
    b->n_started = 0;
}

/* ---- rates --------------------------------------------------------------------------------------------------------*/

/* Seconds for all jobs, from the first to the last verdict in the journal. */
static double run_jobs(const struct bench *b, const struct judge *judge) {
    struct err e;
    struct journal *j;
    char path[120];
    struct judging_batch batch = {0};
    const struct problem problem = {.key = "p", .name = "p", .code = "class Model: a problem of two lines\n    pass\n"};
    char(*source)[2000] = xcalloc((size_t)b->jobs, sizeof *source);
    struct verdict *v = xcalloc((size_t)b->jobs, sizeof *v);
    snprintf(path, sizeof path, "%s/verdicts.jsonl", b->tmp);
    if (journal_open(path, (struct verify_identity){.now = 1}, 0, NULL, &j, &e) != ST_OK) stop(e.msg);
    struct judging *q = judging_create(j, judge, true, NULL);
    for (int i = 0; i < b->jobs; i++) /* two kilobytes, as an answer has */
        snprintf(source[i], sizeof source[i], "answer %d of %d\n%1900s", i, getpid(), "// and what it does");
    const double from = clock_now_s();
    for (int i = 0; i < b->jobs; i++) {
        const struct journal_place at = {.group = i / 8, .sample = i % 8};
        judging_add(q, &batch, &problem, source[i], &at, &v[i]);
    }
    if (judging_wait(q, &batch, &e) != ST_OK) stop(e.msg);
    const double seconds = clock_now_s() - from;
    int missing = 0;
    for (int i = 0; i < b->jobs; i++) missing += outcome_class(v[i].outcome) == 'I';
    if (missing > 0) stop("verdicts are missing");
    judging_free(q);
    journal_close(j);
    free(source);
    free(v);
    return seconds;
}

static void rate(struct bench *b, const char *what, struct pool_options *o) {
    const struct verify_options judged_by = {.trials = 5, .measure = true};
    struct verify_pool *p;
    struct err e;
    o->program = b->stand_in;
    if (verify_pool_open(o, &judged_by, NULL, &p, &e) != ST_OK) stop(e.msg);
    const struct judge judge = judge_by_pool(p);
    for (const double until = clock_now_s() + 60; judge.stream->width(judge.ctx) < b->workers && clock_now_s() < until;)
        usleep(20000);
    const int slots = judge.stream->width(judge.ctx);
    const double seconds = run_jobs(b, &judge);
    struct pool_stats s = verify_pool_stats(p);
    printf("{\"bench\":\"pool\",\"transport\":\"%s\",\"jobs\":%d,\"slots\":%d,\"seconds\":%.2f,\"verdicts_per_s\":%.0f,"
           "\"lost\":%lld,\"duplicates\":%lld}\n",
           what, b->jobs, slots, seconds, b->jobs / seconds, (long long)s.lost, (long long)s.duplicates);
    fflush(stdout);
    free(s.host);
    verify_pool_close(p);
}

static void bench_local(struct bench *b) {
    char hosts[40];
    snprintf(hosts, sizeof hosts, "local:%d", b->workers);
    rate(b, "pipes", &(struct pool_options){.hosts = hosts});
}

static int free_port(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fd, (struct sockaddr *)&a, n) != 0 || getsockname(fd, (struct sockaddr *)&a, &n) != 0) stop("no port");
    close(fd);
    return ntohs(a.sin_port);
}

static void bench_nats(struct bench *b) {
    struct err e;
    char conf[120], text[300], secret[120], url[60], nats[80], hosts[80], credentials[120], name[40], slots[40];
    char server[4096];
    const int port = free_port();
    if (!process_find("nats-server", server, sizeof server) &&
        !process_find("/usr/sbin/nats-server", server, sizeof server))
        stop("no nats-server (tools/setup nats installs it)");
    snprintf(conf, sizeof conf, "%s/nats.conf", b->tmp);
    snprintf(secret, sizeof secret, "%s/secret", b->tmp);
    snprintf(url, sizeof url, "nats://127.0.0.1:%d", port);
    snprintf(nats, sizeof nats, "--nats=%s", url);
    snprintf(hosts, sizeof hosts, "nats:%s", url);
    snprintf(credentials, sizeof credentials, "--credentials=%s", b->tmp);
    snprintf(text, sizeof text, "listen: \"127.0.0.1:%d\"\nmax_payload: 4MB\njetstream { store_dir: \"%s/js\" }\n",
             port, b->tmp);
    if (fs_write_atomic(conf, text, strlen(text), &e) != ST_OK || secret_make_file(secret, &e) != ST_OK) stop(e.msg);
    start(b, (char *[]){server, (char[]){"-c"}, conf, NULL});
    usleep(500000);
    for (int i = 0, left = b->workers; left > 0; i++, left -= b->slots) {
        snprintf(name, sizeof name, "--name=host%d", i);
        snprintf(slots, sizeof slots, "--slots=%d", left < b->slots ? left : b->slots);
        start(b, (char *[]){b->stand_in, (char[]){"verify-worker"}, nats, credentials, name, slots, NULL});
    }
    rate(b, "nats", &(struct pool_options){.hosts = hosts, .credentials = b->tmp});
    end_all(b);
}

/* ---- the real verifier --------------------------------------------------------------------------------------------*/

struct cost {
    double wall_s, cpu_s;
};

/* Seconds of processors so far, as the control group counts them; those on the clock where there is none. */
static double cpu_s(const char *file) {
    unsigned long long ns = 0;
    if (!file) return clock_now_s();
    FILE *f = fopen(file, "re");
    if (!f || fscanf(f, "%llu", &ns) != 1) stop("--cpu: it holds no number");
    fclose(f);
    return (double)ns * 1e-9;
}

static struct cost judge_answers(const struct bench *b, const struct judge *j, struct verify_item *items,
                                 double *correct) {
    struct err e;
    const double from = clock_now_s(), cpu = cpu_s(b->cpu);
    if (j->batch(j->ctx, items, (size_t)b->answers, NULL, &e) != ST_OK) stop(e.msg);
    const struct cost c = {clock_now_s() - from, cpu_s(b->cpu) - cpu};
    for (int i = 0; i < b->answers; i++) *correct += items[i].verdict.outcome == OUTCOME_CORRECT;
    return c;
}

/* Different answers to eight problems of the generator, and as many others each time, so that nothing is in a cache. */
static void make_answers(const struct generator *g, struct arena *arena, int round, int n, struct gen_item *made,
                         struct verify_item *items) {
    enum { PROBLEMS = 8 };
    for (int k = 0; k < PROBLEMS; k++) generator_make(g, 77, (uint64_t)k, arena, &made[k]);
    for (int i = 0; i < n; i++) {
        const struct gen_item *it = &made[i % PROBLEMS];
        const char *answer = NULL;
        for (int s = 0; s < GEN_STYLES && !answer; s++) answer = it->answers[(i / PROBLEMS + s) % GEN_STYLES];
        struct str text = STR_INIT;
        str_addf(&text, "// %d %d\n%s", round, i, answer);
        items[i] = (struct verify_item){.problem = &it->problem, .source = arena_strdup(arena, text.p)};
        str_free(&text);
    }
}

static void bench_verify(const struct bench *b) {
    const struct verify_options o = {.measure = b->measure, .seed = 1234};
    char kernelrl[4096];
    if (!home_beside_program("kernelrl", kernelrl, sizeof kernelrl)) stop("no build/kernelrl");
    const struct pool_options po = {.hosts = "local:1", .program = kernelrl};
    struct judge_owner here, pool;
    struct generator *g;
    struct err e;
    struct arena arena = ARENA_INIT;
    struct gen_item made[8];
    struct verify_item *items = xcalloc((size_t)b->answers, sizeof *items);
    double sum = 0, squares = 0, correct[2] = {0, 0};
    if (generator_open(NULL, &g, &e) != ST_OK || judge_open(NULL, &o, NULL, &here, &e) != ST_OK ||
        judge_open(&po, &o, NULL, &pool, &e) != ST_OK)
        stop(e.msg);
    for (int r = -1; r < b->pairs; r++) { /* the first pair warms both */
        struct cost c[2];
        arena_reset(&arena);
        for (int side = 0; side < 2; side++) {
            const bool in_pool = side == (r & 1);
            make_answers(g, &arena, 2 * r + side + 2, b->answers, made, items);
            c[in_pool] = judge_answers(b, in_pool ? &pool.judge : &here.judge, items, &correct[in_pool]);
        }
        if (r < 0) continue;
        const double log_ratio = log(c[1].cpu_s / c[0].cpu_s);
        sum += log_ratio;
        squares += log_ratio * log_ratio;
        printf("{\"bench\":\"pool\",\"transport\":\"local:1\",\"pair\":%d,\"answers\":%d,\"in_process_s\":%.2f,"
               "\"pool_s\":%.2f,\"in_process_cpu_s\":%.2f,\"pool_cpu_s\":%.2f,\"ratio\":%.4f}\n",
               r, b->answers, c[0].wall_s, c[1].wall_s, c[0].cpu_s, c[1].cpu_s, exp(log_ratio));
        fflush(stdout);
    }
    const double mean = sum / b->pairs, variance = fmax(0, squares / b->pairs - mean * mean);
    const double half = b->pairs > 1 ? 2 * sqrt(variance / (b->pairs - 1)) : (double)NAN;
    printf("{\"bench\":\"pool\",\"transport\":\"local:1\",\"pairs\":%d,\"ratio\":%.4f,\"low\":%.4f,\"high\":%.4f,"
           "\"correct_in_process\":%.0f,\"correct_pool\":%.0f}\n",
           b->pairs, exp(mean), exp(mean - half), exp(mean + half), correct[0], correct[1]);
    judge_close(&pool);
    judge_close(&here);
    generator_close(g);
    arena_free(&arena);
    free(items);
}

static int number(int argc, char **argv, const char *flag, int otherwise) {
    for (int i = 2; i + 1 < argc; i++)
        if (strcmp(argv[i], flag) == 0) return (int)strtol(argv[i + 1], NULL, 10);
    return otherwise;
}

int main(int argc, char **argv) {
    struct bench b = {.jobs = number(argc, argv, "--jobs", 10000),
                      .workers = number(argc, argv, "--workers", 64),
                      .slots = number(argc, argv, "--slots", 8),
                      .answers = number(argc, argv, "--answers", 32),
                      .pairs = number(argc, argv, "--pairs", 4),
                      .measure = number(argc, argv, "--measure", 1)};
    for (int i = 2; i + 1 < argc; i++)
        if (strcmp(argv[i], "--cpu") == 0) b.cpu = argv[i + 1];
    struct err e;
    signal(SIGPIPE, SIG_IGN);
    log_set_level(LOG_WARN);
    snprintf(b.tmp, sizeof b.tmp, "/tmp/kernelrl_pool_bench_XXXXXX");
    if (argc < 2 || b.workers < 1 || b.workers > WORKERS_MAX || b.jobs < 1 || b.slots < 1 || b.answers < 1 ||
        b.pairs < 1 || !mkdtemp(b.tmp))
        stop("usage: pool local|nats|verify [--jobs N] [--workers N] [--slots N] [--answers N] [--pairs N] [--measure "
             "0|1] [--cpu FILE]");
    if (!home_beside_program("test/pool/stand_in", b.stand_in, sizeof b.stand_in)) stop("no build/test/pool/stand_in");
    if (strcmp(argv[1], "local") == 0)
        bench_local(&b);
    else if (strcmp(argv[1], "nats") == 0)
        bench_nats(&b);
    else if (strcmp(argv[1], "verify") == 0)
        bench_verify(&b);
    if (fs_remove(b.tmp, &e) != ST_OK) log_warn("%s", e.msg);
    return 0;
}
