/* Metrics: our own families, and those of vLLM that clients and dashboards have built in. No label comes from a client.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "serve/generation.h"

static const double seconds[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                 1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 320, 640},
                    token_seconds[] = {.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5},
                    tokens[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5};

static struct histogram over(const double *bound, size_t n) { return (struct histogram){.bound = bound, .n = (int)n}; }

void serve_metrics_begin(struct serve_metrics *m) {
    struct histogram *const times[] = {&m->first_token, &m->whole, &m->queued, &m->prefill, &m->decode, &m->inference};
    for (size_t i = 0; i < ARRAY_LEN(times); i++) *times[i] = over(seconds, ARRAY_LEN(seconds));
    m->between_tokens = over(token_seconds, ARRAY_LEN(token_seconds));
    m->prompt_tokens = m->generated_tokens = over(tokens, ARRAY_LEN(tokens));
}

static int64_t resident_bytes(void) {
    long long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%lld %lld", &pages, &resident) != 2) resident = 0;
    if (f) fclose(f);
    return resident * sysconf(_SC_PAGESIZE);
}

static void put_own(struct serve *s, struct str *out) {
    const struct serve_metrics *m = &s->metrics;
    const struct engine_load load =
        serve_ready(s) ? engine_load(model_thread_policy(s->thread)->engine) : (struct engine_load){0};
    metrics_single(out, "kernelrl_requests_running", "gauge", "Prompts in the engine", NULL, load.running);
    metrics_single(out, "kernelrl_requests_waiting", "gauge", "Prompts that wait for the engine", NULL, load.waiting);
    metrics_single(out, "kernelrl_sequences_running", "gauge", "Sequences in flight", NULL, load.samples);
    metrics_single(out, "kernelrl_sequences_waiting", "gauge", "Sequences without a token yet", NULL,
                   (double)model_thread_waiting(s->thread));
    metrics_single(out, "kernelrl_embeddings_pending", "gauge", "Requests for embeddings that are not computed", NULL,
                   s->n_embeddings);
    metrics_family(out, "kernelrl_requests_left_total", "counter", "Requests whose client left before the end");
    metrics_value(out, "kernelrl_requests_left_total", "phase=\"queued\"", (double)m->left_waiting);
    metrics_value(out, "kernelrl_requests_left_total", "phase=\"decode\"", (double)m->left_running);
    metrics_family(out, "kernelrl_requests_refused_total", "counter", "Requests refused because others are in front");
    metrics_value(out, "kernelrl_requests_refused_total", "reason=\"queue\"", (double)m->refused_queue);
    metrics_value(out, "kernelrl_requests_refused_total", "reason=\"wait\"", (double)m->refused_wait);
    metrics_single(out, "kernelrl_resident_bytes", "gauge", "Memory of the process", NULL, (double)resident_bytes());
    if (s->o->aside.seconds)
        metrics_single(out, "kernelrl_model_aside_seconds_total", "counter",
                       "Seconds for which the model stood aside while answers were timed", NULL,
                       s->o->aside.seconds(s->o->aside.ctx));
    metrics_single(out, "kernelrl_paused", "gauge", "1: the engine is paused", NULL, s->pausing == PAUSED);
    metrics_single(out, "kernelrl_build_info", "gauge", "The version, always 1", "version=\"" KERNELRL_VERSION "\"", 1);
}

static void put_gauges(struct serve *s, struct str *out, const char *l) {
    const struct engine_load load = engine_load(model_thread_policy(s->thread)->engine);
    const double used = load.blocks > 0 ? 1 - (double)load.blocks_free / (double)load.blocks : 0;
    const struct engine_stats st = model_thread_stats(s->thread);
    metrics_single(out, "vllm:num_requests_running", "gauge", "Requests in execution batches", l, load.running);
    metrics_single(out, "vllm:num_requests_waiting", "gauge", "Requests waiting to be processed", l, load.waiting);
    metrics_single(out, "vllm:kv_cache_usage_perc", "gauge", "KV-cache usage, 1 means 100 percent", l, used);
    metrics_single(out, "vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked for in the prefix cache", l,
                   (double)(st.cached_tokens + st.prefilled_tokens));
    metrics_single(out, "vllm:prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache", l,
                   (double)st.cached_tokens);
    metrics_single(out, "vllm:num_preemptions_total", "counter", "Sequences that gave up their blocks", l,
                   (double)st.preemptions);
}

static void put_counters(const struct serve *s, struct str *out, const char *l) {
    const struct serve_metrics *m = &s->metrics;
    static const char *const reason[] = {"stop", "length", "abort"};
    const int64_t ended[] = {m->stopped, m->too_long, m->aborted};
    metrics_single(out, "vllm:prompt_tokens_total", "counter", "Prefill tokens processed", l, (double)m->prompt);
    metrics_single(out, "vllm:generation_tokens_total", "counter", "Generation tokens processed", l,
                   (double)m->generated);
    metrics_family(out, "vllm:request_success_total", "counter", "Sequences that have ended");
    for (size_t i = 0; i < ARRAY_LEN(reason); i++) {
        CLEANUP_STR struct str labels = STR_INIT;
        str_adds(&labels, l);
        metrics_label(&labels, "finished_reason", reason[i]);
        metrics_value(out, "vllm:request_success_total", labels.p, (double)ended[i]);
    }
}

static void put_histograms(const struct serve *s, struct str *out, const char *l) {
    const struct serve_metrics *m = &s->metrics;
    const struct {
        const char *name, *help;
        const struct histogram *h;
    } all[] = {
        {"vllm:time_to_first_token_seconds", "Time to first token", &m->first_token},
        {"vllm:inter_token_latency_seconds", "Time between tokens, mean of a request", &m->between_tokens},
        {"vllm:time_per_output_token_seconds", "Time per output token, mean of a request", &m->between_tokens},
        {"vllm:e2e_request_latency_seconds", "Time of a request from begin to end", &m->whole},
        {"vllm:request_queue_time_seconds", "Time in the queue", &m->queued},
        {"vllm:request_prefill_time_seconds", "Time in prefill", &m->prefill},
        {"vllm:request_decode_time_seconds", "Time in decode", &m->decode},
        {"vllm:request_inference_time_seconds", "Time in the engine", &m->inference},
        {"vllm:request_prompt_tokens", "Prompt tokens of a request", &m->prompt_tokens},
        {"vllm:request_generation_tokens", "Tokens of a sequence", &m->generated_tokens},
    };
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        metrics_family(out, all[i].name, "histogram", all[i].help);
        metrics_histogram(out, all[i].name, l, all[i].h);
    }
}

/* Which adapters have requests that run and that wait. */
static void put_adapters(const struct serve *s, struct str *out) {
    CLEANUP_STR struct str running = STR_INIT, waiting = STR_INIT, labels = STR_INIT;
    char most[16];
    for (const struct served_model *m = s->models.first; m; m = m->next) {
        int runs = 0, waits = 0;
        if (!m->dir) continue;
        for (const struct generation *g = s->generations; g; g = g->next) {
            if (!g->model || strcmp(g->model, m->name) != 0 || !g->job) continue;
            if (g->job->waiting < g->n_samples)
                runs++;
            else
                waits++;
        }
        if (runs > 0) str_addf(&running, "%s%s", running.len ? "," : "", m->name);
        if (waits > 0) str_addf(&waiting, "%s%s", waiting.len ? "," : "", m->name);
    }
    snprintf(most, sizeof most, "%d", s->o->max_adapters);
    metrics_label(&labels, "running_lora_adapters", str_c(&running));
    metrics_label(&labels, "waiting_lora_adapters", str_c(&waiting));
    metrics_label(&labels, "max_lora", most);
    metrics_single(out, "vllm:lora_requests_info", "gauge", "Adapters of the requests there are", labels.p,
                   s->models.n_loaded);
}

void serve_put_metrics(void *serve, struct str *out) {
    struct serve *s = serve;
    CLEANUP_STR struct str model = STR_INIT;
    put_own(s, out);
    if (!serve_ready(s)) return;
    metrics_label(&model, "model_name", s->models.first->name);
    put_gauges(s, out, model.p);
    put_counters(s, out, model.p);
    put_histograms(s, out, model.p);
    put_adapters(s, out);
}
