#include "rl/run/watch.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "rl/run/watch_runs.h"

enum { WIDTH = 48 };

static const struct line {
    const char *label, *metric, *format;
    double factor;
} lines[] = {
    {"reward", "reward/mean", "%8.3f", 1},
    {"compile", "kernel/compile_rate", "%6.1f %%", 100},
    {"correct", "kernel/correct_rate", "%6.1f %%", 100},
    {"faster", "kernel/fast_1_rate", "%6.1f %%", 100},
    {"speed-up", "kernel/geomean_speedup", "%7.2fx", 1},
    {"cheats", "kernel/cheat_rate", "%6.1f %%", 100},
    {"solved", "multiturn/success_rate", "%6.1f %%", 100},
    {"turns", "multiturn/avg_turns", "%8.2f", 1},
    {"entropy", "policy/entropy", "%8.3f", 1},
    {"tokens", "policy/answer_tokens", "%8.0f", 1},
    {"grad norm", "train/grad_norm", "%8.3f", 1},
    {"s a step", "time/total_s", "%8.1f", 1},
};
enum { LINES = ARRAY_LEN(lines), GENERATE = LINES, VERIFY, TRAIN, POOL };
/* Of runs whose answers other hosts judge. */
static const char *const pool_names[] = {"verify/slots", "verify/hosts",      "verify/queue",  "verify/in_flight",
                                         "verify/lost",  "verify/busy_share", "verify/missing"};
enum { POOL_SLOTS, POOL_HOSTS, POOL_QUEUE, POOL_FLIGHT, POOL_LOST, POOL_BUSY, POOL_MISSING, POOL_NAMES };
enum { SERIES = POOL + POOL_NAMES };

/* One line: what verifies, what it has to do, and what went wrong in the last ten steps. */
static void pool_line(const struct run_series *s, struct str *out) {
    if (isnan(series_last(s, POOL + POOL_SLOTS))) return;
    str_addf(out, "verifiers  %.0f slots at %.0f places, %.0f waiting, %.0f at work", series_last(s, POOL + POOL_SLOTS),
             series_last(s, POOL + POOL_HOSTS), series_last(s, POOL + POOL_QUEUE), series_last(s, POOL + POOL_FLIGHT));
    const double busy = series_mean(s, POOL + POOL_BUSY, 10), lost = series_mean(s, POOL + POOL_LOST, 10),
                 missing = series_mean(s, POOL + POOL_MISSING, 10);
    if (!isnan(busy)) str_addf(out, ", busy %.0f %%", 100 * busy);
    if (lost > 0) str_addf(out, ", %.1f lost a step", lost);
    if (missing > 0) str_addf(out, ", %.1f missing a step", missing);
    str_addc(out, '\n');
}

/* A bar cut into the shares of the three parts of a step. */
static void time_split(const struct run_series *s, struct str *out) {
    static const char *const mark[] = {"\u2588", "\u2593", "\u2591"};
    double part[3], total = 0;
    for (int k = 0; k < 3; k++) {
        part[k] = series_mean(s, GENERATE + k, 10);
        if (isnan(part[k])) part[k] = 0;
        total += part[k];
    }
    if (!(total > 0)) return;
    str_adds(out, "time       ");
    for (int k = 0, drawn = 0; k < 3; k++) {
        double upto = 0;
        for (int i = 0; i <= k; i++) upto += part[i];
        for (const int end = (int)lround(upto / total * WIDTH); drawn < end; drawn++) str_adds(out, mark[k]);
    }
    str_addf(out, "\n           %s sampling %.0f %%   %s verdicts %.0f %%   %s training %.0f %%   (last 10 steps)\n",
             mark[0], 100 * part[0] / total, mark[1], 100 * part[1] / total, mark[2], 100 * part[2] / total);
}

static enum status draw(const char *dir, bool *running, struct str *out, struct err *e) {
    const char *names[SERIES];
    struct run_info r;
    struct run_series s;
    for (int i = 0; i < LINES; i++) names[i] = lines[i].metric;
    names[GENERATE] = "time/generate_s";
    names[VERIFY] = "time/verify_s";
    names[TRAIN] = "time/train_s";
    for (int i = 0; i < POOL_NAMES; i++) names[POOL + i] = pool_names[i];
    TRY(run_info_read(dir, &r, e));
    *running = r.state == RUN_RUNNING;
    const enum status st = run_series_read(dir, names, SERIES, false, &s, e);
    if (st == ST_OK) {
        str_addf(out, "%s  %s", r.dir, run_state_name(r.state));
        if (r.pid > 0) str_addf(out, " (process %d)", (int)r.pid);
        str_addf(out, "  %lld steps", (long long)s.n);
        if (!isnan(r.fraction)) {
            str_addf(out, ", %.0f %% done", 100 * r.fraction);
            const double left = r.fraction > 0 ? (double)s.n / r.fraction - (double)s.n : 0;
            const double each = series_mean(&s, LINES - 1, 10);
            if (r.state == RUN_RUNNING && left > 0.5 && !isnan(each))
                str_addf(out, ", about %.0f min left", left * each / 60);
        }
        str_adds(out, "\n\n");
        if (r.error) str_addf(out, "%s\n\n", r.error);
        if (s.n == 0) str_adds(out, "no step is done yet\n");
        for (int i = 0; i < LINES && s.n > 0; i++) {
            const double last = series_last(&s, i);
            if (isnan(last)) continue;
            str_addf(out, "%-10s ", lines[i].label);
            struct str bars = STR_INIT;
            sparkline(s.value[i], s.n, WIDTH, &bars);
            str_adds(out, str_c(&bars));
            for (int64_t k = i64_min(s.n, WIDTH); k < WIDTH; k++) str_addc(out, ' ');
            str_addc(out, ' ');
            char text[32];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
            snprintf(text, sizeof text, lines[i].format, lines[i].factor * last);
#pragma GCC diagnostic pop
            str_addf(out, "%s\n", text);
            str_free(&bars);
        }
        if (s.n > 0) time_split(&s, out);
        if (s.n > 0) pool_line(&s, out);
        run_series_free(&s);
    }
    run_info_free(&r);
    return st;
}

enum status watch_run(const char *dir, double interval_s, bool once, const volatile bool *cancel, struct err *e) {
    const bool terminal = isatty(STDOUT_FILENO);
    for (bool running = true; running;) {
        CLEANUP_STR struct str picture = STR_INIT;
        TRY(draw(dir, &running, &picture, e));
        printf("%s%s", terminal && !once ? "\033[H\033[2J" : "", str_c(&picture));
        fflush(stdout);
        if (once) break;
        for (const double end = clock_now_s() + interval_s; running && clock_now_s() < end && !(cancel && *cancel);)
            poll(NULL, 0, 100);
        if (cancel && *cancel) break;
    }
    return ST_OK;
}
