#include "bench/load_stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"

static const struct {
    const char *attribute, *name, *heading;
} metrics[] = {
#define X(value, ...) [value] = {__VA_ARGS__},
    LOAD_METRICS(X)
#undef X
};

/* ---- numbers ------------------------------------------------------------------------------------------------------*/

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* p of 100, between neighbours as NumPy does it by default. */
static double percentile(const double *sorted, int n, double p) {
    const double at = p / 100 * (n - 1);
    const int low = (int)floor(at), high = low + 1 < n ? low + 1 : low;
    return sorted[low] + (sorted[high] - sorted[low]) * (at - low);
}

struct load_summary load_summarize(double *v, int n, const struct load_report *report) {
    struct load_summary s = {0};
    if (n == 0) return s;
    double sum = 0, squares = 0;
    qsort(v, (size_t)n, sizeof *v, ascending);
    for (int i = 0; i < n; i++) sum += v[i];
    s.mean = sum / n;
    for (int i = 0; i < n; i++) squares += (v[i] - s.mean) * (v[i] - s.mean);
    s.deviation = sqrt(squares / n);
    s.median = percentile(v, n, 50);
    for (int i = 0; i < report->n_percentiles; i++) s.percentile[i] = percentile(v, n, report->percentile[i]);
    return s;
}

/* Of one reply; NaN: it has no such time. */
static double value_of(const struct load_reply *r, enum load_metric m) {
    switch (m) {
    case LOAD_TTFT: return r->ttft_s;
    case LOAD_TPOT: return r->output_tokens > 1 ? (r->latency_s - r->ttft_s) / (double)(r->output_tokens - 1) : NAN;
    case LOAD_E2EL: return r->latency_s;
    case LOAD_QUEUE: return r->queued_s;
    case LOAD_ITL:
    case LOAD_N_METRICS: break;
    }
    return NAN;
}

static bool is_good(const struct load_reply *r, const struct load_report *report) {
    for (int m = 0; m < LOAD_N_METRICS; m++)
        if (report->goodput_ms[m] > 0 && value_of(r, (enum load_metric)m) * 1e3 > report->goodput_ms[m]) return false;
    return true; /* one without a TPOT has the best one */
}

static struct load_summary summary_of(const struct load_reply *reply, int n, enum load_metric m,
                                      const struct load_report *report) {
    int count = 0;
    for (int i = 0; i < n; i++) count += m == LOAD_ITL ? reply[i].n_itl : 1;
    CLEANUP_FREE double *v = xmalloc((size_t)(count + 1) * sizeof *v);
    count = 0;
    for (int i = 0; i < n; i++) {
        const struct load_reply *r = &reply[i];
        if (!r->ok) continue;
        if (m == LOAD_ITL) {
            if (r->n_itl > 0) memcpy(v + count, r->itl_s, (size_t)r->n_itl * sizeof *v);
            count += r->n_itl;
        } else if (!isnan(value_of(r, m))) {
            v[count++] = value_of(r, m);
        }
    }
    return load_summarize(v, count, report);
}

struct event {
    double at;
    int change; /* requests under way; 0: a piece has come */
};

static int earlier(const void *a, const void *b) {
    const struct event *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return x->change - y->change; /* one that ends makes room for one that begins */
}

static void find_peaks(const struct load_reply *reply, int n, struct load_stats *s) {
    int count = 0, under_way = 0;
    double begin = INFINITY;
    for (int i = 0; i < n; i++) {
        if (!reply[i].ok) continue;
        count += 3 + reply[i].n_itl;
        begin = fmin(begin, reply[i].start_s);
    }
    CLEANUP_FREE struct event *events = xmalloc((size_t)(count + 1) * sizeof *events);
    count = 0;
    for (int i = 0; i < n; i++) {
        const struct load_reply *r = &reply[i];
        if (!r->ok) continue;
        double at = r->start_s + r->ttft_s;
        events[count++] = (struct event){r->start_s, 1};
        events[count++] = (struct event){r->start_s + r->latency_s, -1};
        events[count++] = (struct event){at, 0};
        for (int k = 0; k < r->n_itl; k++) events[count++] = (struct event){at += r->itl_s[k], 0};
    }
    qsort(events, (size_t)count, sizeof *events, earlier);
    double second = -1, tokens = 0;
    for (int i = 0; i < count; i++) {
        under_way += events[i].change;
        if (under_way > s->peak_requests) s->peak_requests = under_way;
        if (events[i].change != 0) continue;
        const double now = floor(events[i].at - begin);
        tokens = now == second ? tokens + 1 : 1;
        second = now;
        s->peak_tokens = fmax(s->peak_tokens, tokens);
    }
}

struct load_stats load_stats(const struct load_reply *reply, int n, double duration_s,
                             const struct load_report *report) {
    struct load_stats s = {.duration_s = duration_s};
    for (int i = 0; i < n; i++) {
        const struct load_reply *r = &reply[i];
        s.completed += r->ok;
        s.failed += !r->ok;
        if (!r->ok) continue;
        s.input_tokens += r->input_tokens;
        s.output_tokens += r->output_tokens;
        s.good += is_good(r, report);
    }
    for (int m = 0; m < LOAD_N_METRICS; m++) s.of[m] = summary_of(reply, n, (enum load_metric)m, report);
    find_peaks(reply, n, &s);
    return s;
}

/* ---- the table ----------------------------------------------------------------------------------------------------*/

enum { WIDTH = 50 };

static void heading(struct str *out, const char *text, char fill) {
    const size_t n = strlen(text), all = n < WIDTH ? WIDTH - n : 0;
    for (size_t i = 0; i < all / 2; i++) str_addc(out, fill);
    str_adds(out, text);
    for (size_t i = 0; i < all - all / 2; i++) str_addc(out, fill);
    str_addc(out, '\n');
}

static void row(struct str *out, const char *label, double v) { str_addf(out, "%-40s %-10.2f\n", label, v); }
static void count_row(struct str *out, const char *label, int64_t v) {
    str_addf(out, "%-40s %-10lld\n", label, (long long)v);
}

static bool has_goodput(const struct load_report *report) {
    for (int m = 0; m < LOAD_N_METRICS; m++)
        if (report->goodput_ms[m] > 0) return true;
    return false;
}

static void metric_rows(const struct load_stats *s, const struct load_report *report, int m, struct str *out) {
    const struct load_summary *of = &s->of[m];
    char label[80];
    heading(out, metrics[m].heading, '-');
    snprintf(label, sizeof label, "Mean %s (ms):", metrics[m].name);
    row(out, label, of->mean * 1e3);
    snprintf(label, sizeof label, "Median %s (ms):", metrics[m].name);
    row(out, label, of->median * 1e3);
    for (int i = 0; i < report->n_percentiles; i++) {
        snprintf(label, sizeof label, "P%g %s (ms):", report->percentile[i], metrics[m].name);
        row(out, label, of->percentile[i] * 1e3);
    }
}

void load_stats_table(const struct load_stats *s, const struct load_report *report, struct str *out) {
    heading(out, " Serving Benchmark Result ", '=');
    count_row(out, "Successful requests:", s->completed);
    count_row(out, "Failed requests:", s->failed);
    if (report->max_concurrency > 0) count_row(out, "Maximum request concurrency:", report->max_concurrency);
    if (isfinite(report->request_rate)) row(out, "Request rate configured (RPS):", report->request_rate);
    row(out, "Benchmark duration (s):", s->duration_s);
    count_row(out, "Total input tokens:", s->input_tokens);
    count_row(out, "Total generated tokens:", s->output_tokens);
    row(out, "Request throughput (req/s):", s->completed / s->duration_s);
    if (has_goodput(report)) row(out, "Request goodput (req/s):", s->good / s->duration_s);
    row(out, "Output token throughput (tok/s):", (double)s->output_tokens / s->duration_s);
    row(out, "Peak output token throughput (tok/s):", s->peak_tokens);
    row(out, "Peak concurrent requests:", s->peak_requests);
    row(out, "Total token throughput (tok/s):", (double)(s->input_tokens + s->output_tokens) / s->duration_s);
    for (int m = 0; m < LOAD_N_METRICS; m++)
        if (report->metric[m]) metric_rows(s, report, m, out);
    heading(out, "", '=');
}

/* ---- JSON ---------------------------------------------------------------------------------------------------------*/

static void metric_keys(const struct load_stats *s, const struct load_report *report, int m, struct str *out) {
    const struct load_summary *of = &s->of[m];
    char key[80];
    const struct {
        const char *name;
        double v;
    } three[] = {{"mean", of->mean}, {"median", of->median}, {"std", of->deviation}};
    for (size_t i = 0; i < ARRAY_LEN(three); i++) {
        snprintf(key, sizeof key, "%s_%s_ms", three[i].name, metrics[m].attribute);
        js_put_f64(out, key, three[i].v * 1e3);
    }
    for (int i = 0; i < report->n_percentiles; i++) {
        snprintf(key, sizeof key, "p%g_%s_ms", report->percentile[i], metrics[m].attribute);
        js_put_f64(out, key, of->percentile[i] * 1e3);
    }
}

/* Lists with an entry for every request. */
static void detailed_keys(const struct load_reply *reply, int n, struct str *out) {
#define LIST(key, put)                              \
    do {                                            \
        js_begin(out, key, '[');                    \
        for (int i = 0; i < n; i++) {               \
            const struct load_reply *r = &reply[i]; \
            put;                                    \
        }                                           \
        js_end(out, ']');                           \
    } while (0)
    LIST("input_lens", js_put_i64(out, NULL, r->input_tokens));
    LIST("output_lens", js_put_i64(out, NULL, r->ok ? r->output_tokens : 0));
    LIST("ttfts", js_put_f64(out, NULL, r->ttft_s));
    LIST("latencies", js_put_f64(out, NULL, r->latency_s));
    LIST("start_times", js_put_f64(out, NULL, r->start_s));
    LIST("queue_times", js_put_f64(out, NULL, r->queued_s));
    LIST("generated_texts", js_put_strn(out, NULL, str_c(&r->text), r->text.len));
    LIST("errors", js_put_str(out, NULL, r->error));
    LIST("itls", js_begin(out, NULL, '['); for (int k = 0; k < r->n_itl; k++) js_put_f64(out, NULL, r->itl_s[k]);
         js_end(out, ']'));
#undef LIST
}

void load_stats_json(const struct load_stats *s, const struct load_report *report, const struct load_reply *reply,
                     int n, struct str *out) {
    js_put_f64(out, "duration", s->duration_s);
    js_put_i64(out, "completed", s->completed);
    js_put_i64(out, "failed", s->failed);
    js_put_i64(out, "total_input_tokens", s->input_tokens);
    js_put_i64(out, "total_output_tokens", s->output_tokens);
    js_put_f64(out, "request_throughput", s->completed / s->duration_s);
    if (has_goodput(report))
        js_put_f64(out, "request_goodput", s->good / s->duration_s);
    else
        js_put_null(out, "request_goodput");
    js_put_f64(out, "output_throughput", (double)s->output_tokens / s->duration_s);
    js_put_f64(out, "total_token_throughput", (double)(s->input_tokens + s->output_tokens) / s->duration_s);
    js_put_f64(out, "max_output_tokens_per_s", s->peak_tokens);
    js_put_i64(out, "max_concurrent_requests", s->peak_requests);
    for (int m = 0; m < LOAD_N_METRICS; m++)
        if (report->metric[m]) metric_keys(s, report, m, out);
    if (report->detailed) detailed_keys(reply, n, out);
}
