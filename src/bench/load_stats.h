/* load_stats: what vLLM's `bench serve` reports of a load, by the same names and formulas (vllm/benchmarks/serve.py):
 * TTFT, time to first token; TPOT, time per output token without the first; ITL, inter-token latency; E2EL, end-to-end
 * latency. Standard deviations are of the whole population, percentiles are interpolated between neighbours. */
#ifndef KERNELRL_BENCH_LOAD_STATS_H
#define KERNELRL_BENCH_LOAD_STATS_H

#include "bench/load.h"

/* X(value, attribute, name, heading) */
#define LOAD_METRICS(X)                                                     \
    X(LOAD_TTFT, "ttft", "TTFT", "Time to First Token")                     \
    X(LOAD_TPOT, "tpot", "TPOT", "Time per Output Token (excl. 1st token)") \
    X(LOAD_ITL, "itl", "ITL", "Inter-token Latency")                        \
    X(LOAD_E2EL, "e2el", "E2EL", "End-to-end Latency")                      \
    X(LOAD_QUEUE, "client_queue_time", "Client Queue Time", "Client-side Queueing")
enum load_metric {
#define X(value, ...) value,
    LOAD_METRICS(X)
#undef X
        LOAD_N_METRICS
};
enum { LOAD_PERCENTILES = 16 };

struct load_report { /* what is asked for */
    bool metric[LOAD_N_METRICS];
    double percentile[LOAD_PERCENTILES];
    int n_percentiles;
    double
        goodput_ms[LOAD_N_METRICS]; /* at most so much of TTFT, TPOT and E2EL makes a request a good one; 0: no bound */
    double request_rate;            /* per second; INFINITY: at once */
    int max_concurrency;            /* 0: no bound */
    bool detailed;                  /* the JSON has each request's numbers */
};

struct load_summary { /* seconds */
    double mean, median, deviation, percentile[LOAD_PERCENTILES];
};
struct load_stats {
    int completed, failed;
    int64_t input_tokens, output_tokens;
    double duration_s;
    int good;
    double peak_tokens; /* pieces in the best whole second behind the first request */
    int peak_requests;  /* under way at once */
    struct load_summary of[LOAD_N_METRICS];
};

/* Of n >= 0 values, which get sorted; zeros where there are none. */
struct load_summary load_summarize(double *v, int n, const struct load_report *report);
struct load_stats load_stats(const struct load_reply *reply, int n, double duration_s,
                             const struct load_report *report);
/* Appends the table, 50 columns wide; and the keys of vLLM's JSON, inside an object. */
void load_stats_table(const struct load_stats *s, const struct load_report *report, struct str *out);
void load_stats_json(const struct load_stats *s, const struct load_report *report, const struct load_reply *reply,
                     int n, struct str *out);

#endif
