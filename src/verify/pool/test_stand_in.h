/* test_stand_in: a judge for tests and benchmarks of the pool, which runs nothing. It is part of no library and of no
 * command: a program has it by including this file, as tests/pool/stand_in.c and pool_test.c do.
 *
 * An answer says in comments what becomes of it, a directive a line:
 *     // sleep S        judging it takes S seconds
 *     // outcome NAME   its verdict; else one that problem, answer and nothing else decide
 *     // speedup X      that of a correct one
 *     // die FILE N     its process is killed, unless FILE has N lines already; one line is added each time
 *     // die            its process is killed, each time
 *     // stop S         its process stands still for S seconds, signs of life included
 *     // hang           judging it never ends
 *     // seed FILE      the seed of its inputs is appended to FILE
 * STAND_IN_SLEEP in the environment is the S of answers that have none, STAND_IN_PROBE what null probes read,
 * STAND_IN_VERSION what version of the program hello names, STAND_IN_CANNOT why no verifier can be opened,
 * STAND_IN_LIE makes all verdicts correct and ten times as fast, and STAND_IN_FULL says that its disk is full. */
#ifndef KERNELRL_VERIFY_POOL_TEST_STAND_IN_H
#define KERNELRL_VERIFY_POOL_TEST_STAND_IN_H

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "verify/pool/worker.h"

static struct {
    uint64_t seed;
    bool open;
} stand_in;

static void stand_in_sleep(double s, const volatile bool *cancel) {
    while (s > 0 && !(cancel && *cancel)) {
        const double part = s < 0.02 ? s : 0.02;
        nanosleep(&(struct timespec){.tv_nsec = (long)(part * 1e9)}, NULL);
        s -= part;
    }
}

/* The text behind "// NAME " in a line of the answer; false: there is no such line. */
static bool stand_in_says(const char *source, const char *name, char *out, size_t size) {
    char want[40];
    snprintf(want, sizeof want, "// %s", name);
    for (const char *p = source; p; p = strchr(p, '\n')) {
        p += *p == '\n';
        const size_t n = strlen(want);
        if (strncmp(p, want, n) != 0 || (p[n] != ' ' && p[n] != '\n' && p[n])) continue;
        p += n + (p[n] == ' ');
        snprintf(out, size, "%.*s", (int)strcspn(p, "\n"), p);
        return true;
    }
    return false;
}

static void stand_in_die(const char *how) {
    char path[400];
    int most = 0, lines = 0;
    if (sscanf(how, "%399s %d", path, &most) == 2) {
        FILE *f = fopen(path, "a+e");
        for (int c; f && (c = fgetc(f)) != EOF;) lines += c == '\n';
        if (f && lines < most) fputs("died\n", f);
        if (f) fclose(f);
        if (lines >= most) return;
    }
    kill(getpid(), SIGKILL);
}

/* Another process wakes this one. */
static void stand_in_stop(double s) {
    const pid_t me = getpid();
    if (fork() == 0) {
        stand_in_sleep(s, NULL);
        kill(me, SIGCONT);
        _exit(0);
    }
    kill(me, SIGSTOP);
}

static void stand_in_verdict(const struct verify_item *item, struct verdict *v) {
    static const enum outcome others[] = {OUTCOME_WRONG_OUTPUT, OUTCOME_COMPILE_ERROR, OUTCOME_CRASH};
    const struct digest key = verify_key(item->problem, item->source);
    const uint64_t h = hash_str(key.hex);
    char text[80];
    *v = (struct verdict){.tests_total = 5, .max_error = (double)NAN, .run_s = 0.001};
    v->outcome = h % 5 < 2 ? OUTCOME_CORRECT : others[h % 3];
    if (stand_in_says(item->source, "outcome", text, sizeof text))
        for (int o = 0; o <= OUTCOME_INFRASTRUCTURE; o++)
            if (strcmp(outcome_name((enum outcome)o), text) == 0) v->outcome = (enum outcome)o;
    if (getenv("STAND_IN_LIE")) v->outcome = OUTCOME_CORRECT;
    if (getenv("STAND_IN_FULL")) {
        v->outcome = OUTCOME_INFRASTRUCTURE;
        VERDICT_SAY(v, "/var/cache: No space left on device");
    }
    if (v->outcome != OUTCOME_CORRECT) return;
    v->tests_passed = 5;
    v->speedup = 0.5 + (double)(h >> 32) * 0x1p-32;
    if (stand_in_says(item->source, "speedup", text, sizeof text)) v->speedup = strtod(text, NULL);
    if (getenv("STAND_IN_LIE")) v->speedup *= 10;
    v->speedup_low = v->speedup * 0.99;
    v->speedup_high = v->speedup * 1.01;
    v->kernel_ms = 1;
    v->eager_ms = v->speedup;
}

static void stand_in_judge(struct verify_item *item, const volatile bool *cancel) {
    char text[500];
    const char *always = getenv("STAND_IN_SLEEP");
    if (stand_in_says(item->source, "seed", text, sizeof text)) {
        FILE *f = fopen(text, "ae");
        if (f) fprintf(f, "%016llx\n", (unsigned long long)hmac_u64(stand_in.seed, "problem", 0, "", 0));
        if (f) fclose(f);
    }
    if (stand_in_says(item->source, "sleep", text, sizeof text))
        stand_in_sleep(strtod(text, NULL), cancel);
    else if (always)
        stand_in_sleep(strtod(always, NULL), cancel);
    if (stand_in_says(item->source, "die", text, sizeof text)) stand_in_die(text);
    if (stand_in_says(item->source, "stop", text, sizeof text)) stand_in_stop(strtod(text, NULL));
    if (stand_in_says(item->source, "hang", text, sizeof text)) stand_in_sleep(INFINITY, cancel);
    stand_in_verdict(item, &item->verdict);
}

static enum status stand_in_batch(void *ctx, struct verify_item *items, size_t n, const volatile bool *cancel,
                                  struct err *e) {
    (void)ctx;
    for (size_t i = 0; i < n; i++) {
        stand_in_judge(&items[i], cancel);
        if (cancel && *cancel) return FAIL(e, ST_CANCELLED, "cancelled");
        if (items[i].judged) items[i].judged(items[i].judged_ctx, &items[i]);
    }
    return ST_OK;
}

static void stand_in_hardware(void *ctx, char *hardware, size_t hardware_size, char *device, size_t device_size) {
    (void)ctx;
    snprintf(hardware, hardware_size, "stand-in");
    snprintf(device, device_size, "cpu");
}

static enum status stand_in_open(void *ctx, const struct verify_options *o, struct judge *out, struct err *e) {
    const char *fails = getenv("STAND_IN_CANNOT");
    (void)ctx;
    if (fails) return FAIL(e, ST_SANDBOX, "%s", fails);
    stand_in.seed = o->seed;
    stand_in.open = true;
    *out = (struct judge){.batch = stand_in_batch, .hardware = stand_in_hardware};
    return ST_OK;
}

static void stand_in_close(void *ctx) {
    (void)ctx;
    stand_in.open = false;
}

static enum status stand_in_probe(void *ctx, const struct verify_options *o, double *ratio, struct err *e) {
    const char *read = getenv("STAND_IN_PROBE");
    (void)ctx;
    (void)o;
    (void)e;
    *ratio = read ? strtod(read, NULL) : 1;
    return ST_OK;
}

static bool stand_in_disturbed(void *ctx) {
    (void)ctx;
    return false;
}

static inline struct worker_judge stand_in_worker(void) {
    return (struct worker_judge){.version = getenv("STAND_IN_VERSION"),
                                 .open = stand_in_open,
                                 .close = stand_in_close,
                                 .probe = stand_in_probe,
                                 .disturbed = stand_in_disturbed};
}

#endif
