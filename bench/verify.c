/* verify: how fast answers are judged. One batch as a training step makes it: 8 problems of the generator, for each 5
 * right answers of different styles and 3 broken ones, judged and timed as `kernelrl train` has it.
 * Usage: build/bench/verify [ROUNDS [SEED [THREADS]]]. Every round judges other problems, so that nothing is cached.
 * Prints per round: answers/s, CPU time per answer (user + system: of the whole machine, of this process, of the
 * reference worker; what is left is compilers and answers, whose processes end unseen in their namespaces, and whatever
 * else the machine does), the wall time that the verdicts' stages add up to per answer (compilations run side by side),
 * and the outcomes. On a busy machine compare CPU time rather than rates, and builds in turn rather than one after the
 * other. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/str.h"
#include "problem/generator.h"
#include "verify/verify.h"

enum { PROBLEMS = 8, RIGHT = 5, GROUP = 8, ANSWERS = PROBLEMS * GROUP };

struct cpu {
    double machine, self, worker; /* seconds */
};

static double self_s(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* First line of /proc/stat: user, nice and system time of all processors. */
static double machine_s(void) {
    unsigned long long t[3] = {0};
    FILE *f = fopen("/proc/stat", "re");
    int n = f ? fscanf(f, "cpu %llu %llu %llu", &t[0], &t[1], &t[2]) : 0;
    if (f) fclose(f);
    return n == 3 ? (double)(t[0] + t[1] + t[2]) / (double)sysconf(_SC_CLK_TCK) : 0;
}

/* Processor seconds of the children that are alive, between batches the reference worker: /proc/PID/stat, fields 14 to
 * 17. */
static double living_s(void) {
    double sum = 0;
    char path[64], *text, *pids = NULL;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    if (fs_read(path, 1 << 16, &pids, NULL, NULL) != ST_OK) return 0;
    char *save = NULL;
    for (char *pid = strtok_r(pids, " ", &save); pid; pid = strtok_r(NULL, " ", &save)) {
        unsigned long long t[4];
        snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
        if (fs_read(path, 1 << 16, &text, NULL, NULL) != ST_OK) continue;
        const char *rest = strrchr(text, ')');
        if (rest && sscanf(rest, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %llu %llu", &t[0], &t[1],
                           &t[2], &t[3]) == 4)
            sum += (double)(t[0] + t[1] + t[2] + t[3]) / (double)sysconf(_SC_CLK_TCK);
        free(text);
    }
    free(pids);
    return sum;
}

static struct cpu cpu_now(void) { return (struct cpu){machine_s(), self_s(), living_s()}; }

/* Adds an answer unless it is NULL or the group is full or has it already (styles may differ in their plan alone). */
static void add(struct verify_item *group, int *n, int limit, const struct problem *p, const char *text) {
    if (!text || *n >= limit) return;
    for (int k = 0; k < *n; k++)
        if (strcmp(strchr(group[k].source, '\n'), strchr(text, '\n')) == 0) return;
    group[(*n)++] = (struct verify_item){.problem = p, .source = text};
}

/* RIGHT different right answers (fewer when the problem has fewer), the rest broken variants of different kinds. */
static void make_group(const struct gen_item *it, uint64_t seed, struct arena *a, struct verify_item *out) {
    int n = 0;
    for (uint64_t s = 0; s < GEN_STYLES; s++) add(out, &n, RIGHT, &it->problem, it->answers[(s + seed) % GEN_STYLES]);
    for (uint64_t k = 0; k < 10 * GEN_BREAKS && n < GROUP; k++)
        add(out, &n, GROUP, &it->problem,
            generator_break(it->answers[k % GEN_STYLES], (enum gen_break)((seed + k) % GEN_BREAKS), seed + k, a));
    while (n < GROUP) out[n++] = (struct verify_item){.problem = &it->problem, .source = NULL};
}

static enum status round_of(struct verifier *v, const struct generator *g, uint64_t seed, int r, struct err *e) {
    struct arena a = ARENA_INIT;
    struct gen_item problems[PROBLEMS];
    struct verify_item items[ANSWERS];
    for (int p = 0; p < PROBLEMS; p++) {
        generator_make(g, seed, (uint64_t)(r * PROBLEMS + p), &a, &problems[p]);
        make_group(&problems[p], seed + (uint64_t)p, &a, items + p * GROUP);
    }
    struct cpu c0 = cpu_now();
    double t0 = clock_now_s();
    enum status st = verify_batch(v, items, ANSWERS, NULL, e);
    double wall = clock_now_s() - t0;
    struct cpu c1 = cpu_now();
    double compile = 0, run = 0, timing = 0;
    int outcomes[32] = {0};
    for (int i = 0; i < ANSWERS; i++) {
        const struct verdict *d = &items[i].verdict;
        compile += d->compile_s;
        run += d->run_s;
        timing += d->time_s;
        outcomes[d->outcome]++;
    }
    const double ms = 1e3 / ANSWERS;
    printf("round %d: %5.1f answers/s; CPU ms per answer: machine %5.1f, verifier %4.1f, reference %5.1f; wall ms of "
           "the stages: compile %5.1f, run %5.1f, time %5.1f;",
           r, ANSWERS / wall, (c1.machine - c0.machine) * ms, (c1.self - c0.self) * ms, (c1.worker - c0.worker) * ms,
           compile * ms, run * ms, timing * ms);
    for (int o = 0; o < 32; o++)
        if (outcomes[o]) printf(" %s %d", outcome_name((enum outcome)o), outcomes[o]);
    printf("\n");
    fflush(stdout);
    arena_free(&a);
    return st;
}

int main(int argc, char **argv) {
    int64_t rounds = 3, seed = 1, threads = 0;
    if (argc > 4 || (argc > 1 && !parse_i64(argv[1], &rounds)) || (argc > 2 && !parse_i64(argv[2], &seed)) ||
        (argc > 3 && !parse_i64(argv[3], &threads))) {
        fprintf(stderr, "usage: build/bench/verify [ROUNDS [SEED [THREADS]]]\n");
        return 2;
    }
    struct err e = {0};
    struct generator *g = NULL;
    struct verifier *v = NULL;
    struct verify_options o = {.threads = (int)threads, .measure = true};
    enum status st;
    TRY_GOTO(generator_open(NULL, &g, &e), done);
    TRY_GOTO(verifier_open(&o, &v, &e), done);
    for (int64_t r = 0; r < rounds && st == ST_OK; r++) st = round_of(v, g, (uint64_t)seed, (int)r, &e);
done:
    if (st != ST_OK) fprintf(stderr, "bench/verify: %s\n", e.msg);
    verifier_close(v);
    generator_close(g);
    return st == ST_OK ? 0 : 1;
}
