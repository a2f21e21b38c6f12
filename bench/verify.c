/* verify: how fast answers are judged.
 * Usage: build/bench/verify [ROUNDS [SEED [TRACES]]]
 * Without TRACES a round is one batch of 8 problems of the generator and 8 different answers to each, 5 right ones of
 * different styles and 3 broken ones. With TRACES, the traces.jsonl of a run, a round is a step of that run, as it was
 * judged then: what the model made of its problems, equal answers included. Every round has other problems; nothing is
 * cached between them.
 * Prints per round: answers/s, CPU time per answer (user + system: of the whole machine, of this process, of the
 * reference worker; what is left is compilers and answers, whose processes end unseen in their namespaces, and whatever
 * else the machine does), the wall time that the verdicts' stages add up to per answer (stages run side by side), and
 * the outcomes. On a busy machine compare CPU time rather than rates, and builds in turn rather than one after the
 * other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/str.h"
#include "generate/generator.h"
#include "io/json.h"
#include "io/jsonl.h"
#include "policy/parse.h"
#include "verify/verify.h"

enum { PROBLEMS = 8, RIGHT = 5, GROUP = 8, MAX_ANSWERS = 256 };

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
static void make_group(const struct gen_item *it, const struct problem *p, uint64_t seed, struct arena *a,
                       struct verify_item *out) {
    int n = 0;
    for (uint64_t s = 0; s < GEN_STYLES; s++) add(out, &n, RIGHT, p, it->answers[(s + seed) % GEN_STYLES]);
    for (uint64_t k = 0; k < 10 * GEN_BREAKS && n < GROUP; k++)
        add(out, &n, GROUP, p,
            generator_break(it->answers[k % GEN_STYLES], (enum gen_break)((seed + k) % GEN_BREAKS), seed + k, a));
    while (n < GROUP) out[n++] = (struct verify_item){.problem = p, .source = NULL};
}

/* A batch, with the arena that its texts live in. */
struct batch {
    struct arena arena;
    struct problem problems[MAX_ANSWERS];
    struct verify_item items[MAX_ANSWERS];
    int n_problems, n;
};

static void generated_batch(const struct generator *g, uint64_t seed, int round, struct batch *b) {
    for (int p = 0; p < PROBLEMS; p++) {
        struct gen_item it;
        generator_make(g, seed, (uint64_t)(round * PROBLEMS + p), &b->arena, &it);
        b->problems[p] = it.problem;
        make_group(&it, &b->problems[p], seed + (uint64_t)p, &b->arena, b->items + p * GROUP);
    }
    b->n = PROBLEMS * GROUP;
}

/* The problem with this key: of the generator, else of the built-in set; NULL when there is none. */
static const struct problem *problem_of(const struct generator *g, const struct problem_set *set, const char *key,
                                        struct batch *b) {
    unsigned long long seed, index;
    for (int p = 0; p < b->n_problems; p++)
        if (strcmp(b->problems[p].key, key) == 0) return &b->problems[p];
    struct problem *out = &b->problems[b->n_problems];
    if (sscanf(key, "generated/%llu_%llu", &seed, &index) == 2) {
        struct gen_item it;
        generator_make(g, seed, index, &b->arena, &it);
        *out = it.problem;
    } else {
        const struct problem *known = problem_find(set, key);
        if (!known) return NULL;
        *out = *known;
    }
    b->n_problems++;
    return out;
}

/* The answers of step `step`, at most MAX_ANSWERS; none when the run has no such step. */
static enum status traced_batch(const struct generator *g, const struct problem_set *set, const char *path, int step,
                                struct batch *b, struct err *e) {
    struct jsonl_reader *r = NULL;
    const char *line, *key, *text;
    size_t len;
    enum status st;
    TRY(jsonl_open(path, 16 << 20, &r, e));
    for (int64_t at = -1; b->n < MAX_ANSWERS && at <= step;) {
        TRY_GOTO(jsonl_next(r, &line, &len, e), done);
        if (!line) break;
        json_t *row = json_loadb(line, len, 0, NULL);
        if (!row) {
            st = FAIL(e, ST_PARSE, "%s: line %lld is not JSON", path, (long long)jsonl_line(r));
            goto done;
        }
        if ((st = js_get_i64(row, path, "step", &at, e)) == ST_OK && at == step &&
            (st = js_get_str(row, path, "problem", &key, e)) == ST_OK &&
            (st = js_get_str(row, path, "text", &text, e)) == ST_OK) {
            struct parsed parsed;
            const struct problem *p = problem_of(g, set, key, b);
            parse_completion(text, strlen(text), ANSWER_C, &parsed);
            if (p)
                b->items[b->n++] = (struct verify_item){
                    .problem = p,
                    .source = parsed.kernel.p ? arena_strndup(&b->arena, parsed.kernel.p, parsed.kernel.n) : NULL};
            else
                st = FAIL(e, ST_INVALID, "%s: no problem %s", path, key);
        }
        json_decref(row);
        if (st != ST_OK) goto done;
    }
done:
    jsonl_close(r);
    return st;
}

static enum status judge(struct verifier *v, struct batch *b, int r, struct err *e) {
    struct cpu c0 = cpu_now();
    double t0 = clock_now_s();
    enum status st = verify_batch(v, b->items, (size_t)b->n, NULL, e);
    double wall = clock_now_s() - t0;
    struct cpu c1 = cpu_now();
    double compile = 0, run = 0, timing = 0;
    int outcomes[32] = {0}, repeats = 0;
    for (int i = 0; i < b->n; i++) {
        const struct verdict *d = &b->items[i].verdict;
        outcomes[d->outcome]++;
        repeats += d->cached;
        if (d->cached) continue;
        compile += d->compile_s;
        run += d->run_s;
        timing += d->time_s;
    }
    const double ms = 1e3 / b->n;
    printf("round %d: %5.1f answers/s; CPU ms per answer: machine %5.1f, verifier %4.1f, reference %5.1f; wall ms of "
           "the stages: compile %5.1f, run %5.1f, time %5.1f; %d answers, repeated %d,",
           r, b->n / wall, (c1.machine - c0.machine) * ms, (c1.self - c0.self) * ms, (c1.worker - c0.worker) * ms,
           compile * ms, run * ms, timing * ms, b->n, repeats);
    for (int o = 0; o < 32; o++)
        if (outcomes[o]) printf(" %s %d", outcome_name((enum outcome)o), outcomes[o]);
    printf("\n");
    fflush(stdout);
    return st;
}

int main(int argc, char **argv) {
    int64_t rounds = 3, seed = 1;
    if (argc > 4 || (argc > 1 && !parse_i64(argv[1], &rounds)) || (argc > 2 && !parse_i64(argv[2], &seed))) {
        fprintf(stderr, "usage: build/bench/verify [ROUNDS [SEED [TRACES]]]\n");
        return 2;
    }
    const char *traces = argc > 3 ? argv[3] : NULL;
    struct err e = {0};
    struct generator *g = NULL;
    struct verifier *v = NULL;
    struct problem_set set = {0};
    struct verify_options o = {.measure = true};
    enum status st;
    TRY_GOTO(generator_open(NULL, &g, &e), done);
    TRY_GOTO(problem_set_load("builtin", &set, &e), done);
    TRY_GOTO(verifier_open(&o, &v, &e), done);
    static struct batch b;
    for (int r = 0; r < rounds && st == ST_OK; r++) {
        b = (struct batch){.n = 0};
        if (traces)
            st = traced_batch(g, &set, traces, r, &b, &e);
        else
            generated_batch(g, (uint64_t)seed, r, &b);
        if (st == ST_OK && b.n > 0) st = judge(v, &b, r, &e);
        arena_free(&b.arena);
    }
done:
    if (st != ST_OK) fprintf(stderr, "bench/verify: %s\n", e.msg);
    verifier_close(v);
    problem_set_free(&set);
    generator_close(g);
    return st == ST_OK ? 0 : 1;
}
