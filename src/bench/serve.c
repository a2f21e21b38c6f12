/* kernelrl bench serve: load on any server that speaks OpenAI's API, with the flags, the names and the formulas of
 * vLLM's `bench serve`. Prompts are of random words or ids, so that no server has seen their beginning. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/rng.h"
#include "bench/bench.h"
#include "bench/load_stats.h"
#include "io/json.h"

enum { POOL_WORDS = 4000, HEADERS_MAX = 16, MAX_DATASET_BYTES = 1 << 30 };

struct serve_args {
    const char *base_url, *host, *endpoint, *model, *key, *dataset, *extra_body;
    const char *header[HEADERS_MAX];
    int n_headers, port;
    enum load_api api;
    int num_prompts, input_len, output_len, max_concurrency, warmups, verify;
    double range_ratio, request_rate, burstiness, temperature;
    uint64_t seed;
    bool ignore_eos, no_stream, json;
    struct load_report report;
};

struct serve_bench {
    const struct serve_args *a;
    struct load_options load;
    struct str base, url, model;
    json_t *extra;
    int32_t *pool; /* ids of ordinary text, as the server's tokenizer gives them; none: it does not say */
    int n_pool;
    double tokens_per_word;       /* where it does */
    struct load_request *request; /* [n], with bodies of its own */
    struct load_reply *reply;
    int n;
};

/* ---- prompts ------------------------------------------------------------------------------------------------------*/

static void add_word(struct rng *r, struct str *out) {
    if (out->len > 0) str_addc(out, ' ');
    for (uint64_t n = 3 + rng_below(r, 6); n > 0; n--) str_addc(out, (char)('a' + rng_below(r, 26)));
}

static void add_words(struct rng *r, int n, struct str *out) {
    while (n-- > 0) add_word(r, out);
}

/* Asks the server for the ids of a long text (POST /tokenize of vLLM and others), to make prompts of exact length. */
static void find_pool(struct serve_bench *b) {
    CLEANUP_STR struct str url = STR_INIT, body = STR_INIT, text = STR_INIT;
    CLEANUP_JSON json_t *all = NULL;
    struct rng r = rng_make(b->a->seed, 1);
    struct err e = {0};
    add_words(&r, POOL_WORDS, &text);
    js_begin(&body, NULL, '{');
    js_put_str(&body, "model", b->model.p);
    js_put_str(&body, "prompt", text.p);
    js_put_bool(&body, "add_special_tokens", false);
    js_end(&body, '}');
    str_addf(&url, "%s/tokenize", b->base.p);
    const json_t *tokens = NULL;
    if (load_json(&b->load, url.p, body.p, &all, &e) == ST_OK) tokens = json_object_get(all, "tokens");
    const size_t n = json_array_size(tokens);
    if (n == 0) {
        fprintf(stderr, "the server does not tokenize: input lengths are words\n");
        return;
    }
    b->pool = xmalloc(n * sizeof *b->pool);
    for (size_t i = 0; i < n; i++) b->pool[i] = (int32_t)json_integer_value(json_array_get(tokens, i));
    b->n_pool = (int)n;
    b->tokens_per_word = (double)n / POOL_WORDS;
}

/* A length around `mean`, within the range that is asked for. */
static int length_near(const struct serve_args *a, int mean, struct rng *r) {
    const int low = (int)floor(mean * (1 - a->range_ratio)), high = (int)ceil(mean * (1 + a->range_ratio));
    const int n = low + (int)rng_below(r, (uint64_t)(high - low + 1));
    return n > 0 ? n : 1;
}

static json_t *random_prompt(const struct serve_bench *b, int n, struct rng *r) {
    if (b->n_pool > 0 && b->a->api == LOAD_COMPLETIONS) {
        json_t *ids = json_array();
        for (int i = 0; i < n; i++)
            json_array_append_new(ids, json_integer(b->pool[rng_below(r, (uint64_t)b->n_pool)]));
        return ids;
    }
    CLEANUP_STR struct str text = STR_INIT;
    const int words = b->n_pool > 0 ? (int)lround(n / b->tokens_per_word) : n;
    add_words(r, words > 0 ? words : 1, &text);
    return json_string(text.p);
}

/* The body of a request. Takes the prompt. */
static char *make_body(const struct serve_bench *b, json_t *prompt, int output_len, int i, bool stream) {
    const struct serve_args *a = b->a;
    CLEANUP_JSON json_t *all = json_pack("{s:s}", "model", b->model.p);
    if (a->api == LOAD_CHAT) {
        json_object_set_new(all, "messages", json_pack("[{s:s, s:o}]", "role", "user", "content", prompt));
        json_object_set_new(all, "max_completion_tokens", json_integer(output_len));
    } else {
        json_object_set_new(all, "prompt", prompt);
        json_object_set_new(all, "max_tokens", json_integer(output_len));
    }
    if (a->temperature >= 0) json_object_set_new(all, "temperature", json_real(a->temperature));
    if (a->verify > 0) json_object_set_new(all, "seed", json_integer((json_int_t)(a->seed & INT32_MAX) + i));
    if (a->ignore_eos) json_object_set_new(all, "ignore_eos", json_true());
    if (stream) {
        json_object_set_new(all, "stream", json_true());
        json_object_set_new(all, "stream_options", json_pack("{s:b}", "include_usage", 1));
    }
    if (b->extra) json_object_update(all, b->extra);
    return json_dumps(all, JSON_COMPACT);
}

static void add_request(struct serve_bench *b, json_t *prompt, int input_len, int output_len) {
    b->request = xrealloc(b->request, (size_t)(b->n + 1) * sizeof *b->request);
    b->request[b->n] = (struct load_request){.body = make_body(b, prompt, output_len, b->n, !b->a->no_stream),
                                             .stream = !b->a->no_stream,
                                             .input_tokens = input_len};
    b->n++;
}

/* The lines of a file in turn, {"prompt": TEXT} each, as vLLM's custom data set has them. */
static enum status from_dataset(struct serve_bench *b, struct err *e) {
    const struct serve_args *a = b->a;
    CLEANUP_FREE char *text = NULL;
    size_t n;
    TRY(fs_read(a->dataset, MAX_DATASET_BYTES, &text, &n, e));
    while (b->n < a->num_prompts) {
        const int before = b->n;
        int line = 0;
        for (const char *p = text, *end = text + n; p < end && b->n < a->num_prompts;) {
            const char *eol = memchr(p, '\n', (size_t)(end - p));
            const size_t len = (size_t)((eol ? eol : end) - p);
            CLEANUP_JSON json_t *row = NULL;
            char where[600];
            snprintf(where, sizeof where, "%s:%d", a->dataset, ++line);
            const char *at = p;
            p += len + 1;
            if (len == 0) continue;
            int64_t output_len = a->output_len;
            const char *prompt;
            TRY(js_parse(at, len, where, &row, e));
            TRY(js_get_str(row, where, "prompt", &prompt, e));
            TRY(js_opt_i64(row, where, "output_tokens", &output_len, e));
            if (output_len < 1 || output_len > INT32_MAX)
                return FAIL(e, ST_INVALID, "%s: output_tokens: expected a number >= 1", where);
            add_request(b, json_string(prompt), 0, (int)output_len);
        }
        if (b->n == before) return FAIL(e, ST_INVALID, "%s: expected lines of JSON with a prompt", a->dataset);
    }
    return ST_OK;
}

static enum status make_requests(struct serve_bench *b, struct err *e) {
    const struct serve_args *a = b->a;
    if (a->dataset) return from_dataset(b, e);
    find_pool(b);
    struct rng r = rng_make(a->seed, 2);
    for (int i = 0; i < a->num_prompts; i++) {
        const int input = length_near(a, a->input_len, &r), output = length_near(a, a->output_len, &r);
        add_request(b, random_prompt(b, input, &r), input, output);
    }
    return ST_OK;
}

/* ---- arrivals -----------------------------------------------------------------------------------------------------*/

/* A number of the gamma distribution of this shape and scale 1 (Marsaglia and Tsang 2000). */
static double gamma_of(struct rng *r, double shape) {
    if (shape < 1) return gamma_of(r, shape + 1) * pow(1 - rng_next_f64(r), 1 / shape);
    const double d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        const double x = rng_normal(r), v = pow(1 + c * x, 3);
        if (v > 0 && log(1 - rng_next_f64(r)) < 0.5 * x * x + d - d * v + d * log(v)) return d * v;
    }
}

/* Intervals of a gamma distribution, with burstiness 1 those of a Poisson process, scaled so that the last request is
 * due when the rate says. */
static void set_arrivals(struct serve_bench *b) {
    const struct serve_args *a = b->a;
    struct rng r = rng_make(a->seed, 3);
    double at = 0;
    if (!isfinite(a->request_rate)) return;
    for (int i = 0; i < b->n; i++) {
        at += isfinite(a->burstiness) ? gamma_of(&r, a->burstiness) : 1;
        b->request[i].due_s = at;
    }
    for (int i = 0; i < b->n; i++) b->request[i].due_s *= b->n / a->request_rate / at;
}

/* ---- the run ------------------------------------------------------------------------------------------------------*/

static enum status find_model(struct serve_bench *b, struct err *e) {
    CLEANUP_STR struct str url = STR_INIT;
    CLEANUP_JSON json_t *all = NULL;
    if (b->a->model) {
        str_adds(&b->model, b->a->model);
        return ST_OK;
    }
    str_addf(&url, "%s/v1/models", b->base.p);
    TRY(load_json(&b->load, url.p, NULL, &all, e));
    const char *id = json_string_value(json_object_get(json_array_get(json_object_get(all, "data"), 0), "id"));
    if (!id) return FAIL(e, ST_INVALID, "%s: expected a list with a model; give --model NAME", url.p);
    str_adds(&b->model, id);
    return ST_OK;
}

static enum status open_bench(struct serve_bench *b, struct err *e) {
    const struct serve_args *a = b->a;
    const char *key = a->key ? a->key : getenv("OPENAI_API_KEY");
    if (a->base_url)
        str_add(&b->base, a->base_url, strlen(a->base_url) - str_has_suffix(a->base_url, "/"));
    else
        str_addf(&b->base, "http://%s:%d", a->host, a->port);
    str_addf(&b->url, "%s%s", b->base.p,
             a->endpoint           ? a->endpoint
             : a->api == LOAD_CHAT ? "/v1/chat/completions"
                                   : "/v1/completions");
    b->load = (struct load_options){.url = b->url.p,
                                    .key = key,
                                    .headers = a->header,
                                    .n_headers = a->n_headers,
                                    .api = a->api,
                                    .max_concurrency = a->max_concurrency,
                                    .keep_text = a->verify > 0 || a->report.detailed};
    if (a->extra_body) {
        TRY(js_parse(a->extra_body, strlen(a->extra_body), "--extra-body", &b->extra, e));
        if (!json_is_object(b->extra)) return FAIL(e, ST_USAGE, "--extra-body: expected a JSON object");
    }
    TRY(find_model(b, e));
    return make_requests(b, e);
}

static void free_replies(struct load_reply *r, int n) {
    for (int i = 0; i < n; i++) load_reply_free(&r[i]);
    free(r);
}

static void close_bench(struct serve_bench *b) {
    for (int i = 0; i < b->n; i++) free((void *)(uintptr_t)b->request[i].body);
    free(b->request);
    free_replies(b->reply, b->reply ? b->n : 0);
    free(b->pool);
    json_decref(b->extra);
    str_free(&b->base);
    str_free(&b->url);
    str_free(&b->model);
}

static void show_progress(int done, int total) {
    if (!isatty(STDERR_FILENO)) return;
    const int step = total / 20 > 0 ? total / 20 : 1;
    if (done % step == 0 || done == total)
        fprintf(stderr, "\r%d of %d requests%s", done, total, done == total ? "\n" : "");
}

static enum status warm_up(struct serve_bench *b, struct err *e) {
    const int n = b->a->warmups < b->n ? b->a->warmups : b->n;
    struct load_reply *r = xcalloc((size_t)n + 1, sizeof *r);
    double seconds;
    const enum status st = n > 0 ? load_run(&b->load, b->request, n, r, NULL, &seconds, e) : ST_OK;
    free_replies(r, n);
    return st;
}

/* Asks the first requests again, one after the other and not streamed; *different: answers that are not what they
 * were. */
static enum status ask_again(struct serve_bench *b, int *different, struct err *e) {
    const int n = b->a->verify < b->n ? b->a->verify : b->n;
    struct load_options alone = b->load;
    alone.max_concurrency = 1;
    for (int i = 0; i < n; i++) {
        CLEANUP_JSON json_t *body = NULL;
        TRY(js_parse(b->request[i].body, strlen(b->request[i].body), "a request", &body, e));
        json_object_del(body, "stream");
        json_object_del(body, "stream_options");
        CLEANUP_FREE char *text = json_dumps(body, JSON_COMPACT);
        const struct load_request q = {.body = text};
        struct load_reply r = {0};
        double seconds;
        TRY(load_run(&alone, &q, 1, &r, NULL, &seconds, e));
        const struct load_reply *was = &b->reply[i];
        const bool same = was->ok && r.ok && r.text.len == was->text.len && r.output_tokens == was->output_tokens &&
                          memcmp(str_c(&r.text), str_c(&was->text), r.text.len) == 0;
        *different += !same;
        if (!same && *different <= 10)
            fprintf(stderr, "request %d: asked again, the answer differs%s%s\n", i, *r.error ? ": " : "", r.error);
        load_reply_free(&r);
    }
    return ST_OK;
}

static void print_json(const struct serve_bench *b, const struct load_stats *s, int different) {
    const struct serve_args *a = b->a;
    struct str out = STR_INIT;
    js_begin(&out, NULL, '{');
    js_put_str(&out, "bench", "serve");
    js_put_str(&out, "backend", a->api == LOAD_CHAT ? "openai-chat" : "openai");
    js_put_str(&out, "model_id", b->model.p);
    js_put_i64(&out, "num_prompts", b->n);
    if (isfinite(a->request_rate))
        js_put_f64(&out, "request_rate", a->request_rate);
    else
        js_put_str(&out, "request_rate", "inf");
    js_put_f64(&out, "burstiness", a->burstiness);
    if (a->max_concurrency > 0)
        js_put_i64(&out, "max_concurrency", a->max_concurrency);
    else
        js_put_null(&out, "max_concurrency");
    if (a->verify > 0) js_put_i64(&out, "different_answers", different);
    load_stats_json(s, &a->report, b->reply, b->n, &out);
    js_end(&out, '}');
    printf("%s\n", out.p);
    str_free(&out);
}

static void report(const struct serve_bench *b, double duration_s, int different, int *failed) {
    const struct serve_args *a = b->a;
    const struct load_stats s = load_stats(b->reply, b->n, duration_s, &a->report);
    struct str table = STR_INIT;
    int shown = 0;
    for (int i = 0; i < b->n && shown < 10; i++)
        if (!b->reply[i].ok) fprintf(stderr, "Error %d: %s\n", shown++, b->reply[i].error);
    load_stats_table(&s, &a->report, &table);
    if (a->verify > 0) str_addf(&table, "%-40s %-10d\n", "Answers that differ when asked again:", different);
    fprintf(a->json ? stderr : stdout, "%s", table.p);
    if (a->json) print_json(b, &s, different);
    *failed = s.failed;
    str_free(&table);
}

/* True: each request was answered, and the same when it was asked again. */
static enum status run(const struct serve_args *a, bool *good, struct err *e) {
    struct serve_bench b = {.a = a};
    double duration_s = 0;
    int different = 0, failed = 0;
    enum status st = open_bench(&b, e);
    if (st == ST_OK) st = warm_up(&b, e);
    if (st == ST_OK) {
        set_arrivals(&b);
        b.reply = xcalloc((size_t)b.n, sizeof *b.reply);
        st = load_run(&b.load, b.request, b.n, b.reply, show_progress, &duration_s, e);
    }
    if (st == ST_OK && a->verify > 0) st = ask_again(&b, &different, e);
    if (st == ST_OK) report(&b, duration_s, different, &failed);
    *good = failed + different == 0;
    close_bench(&b);
    return st;
}

/* ---- flags --------------------------------------------------------------------------------------------------------*/

static enum status take_rate(double *out, const char *text, struct err *e) {
    if (strcmp(text, "inf") == 0) {
        *out = INFINITY;
        return ST_OK;
    }
    if (parse_f64(text, out) && *out > 0 && *out <= 1e9) return ST_OK;
    return FAIL(e, ST_USAGE, "expected a number above 0 or inf, got \"%s\"", text);
}
static enum status take_request_rate(void *values, const char *text, struct err *e) {
    struct serve_args *a = values;
    TRY(take_rate(&a->request_rate, text, e));
    a->report.request_rate = a->request_rate;
    return ST_OK;
}
static enum status take_burstiness(void *values, const char *text, struct err *e) {
    return take_rate(&((struct serve_args *)values)->burstiness, text, e);
}

static enum status metric_named(const char *name, size_t n, int *out, struct err *e) {
    static const char *const names[] = {
        [LOAD_TTFT] = "ttft", [LOAD_TPOT] = "tpot", [LOAD_ITL] = "itl", [LOAD_E2EL] = "e2el"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strlen(names[i]) == n && memcmp(names[i], name, n) == 0) {
            *out = (int)i;
            return ST_OK;
        }
    return FAIL(e, ST_USAGE, "expected ttft, tpot, itl or e2el, got \"%.*s\"", (int)n, name);
}

static enum status take_metrics(void *values, const char *text, struct err *e) {
    struct load_report *r = &((struct serve_args *)values)->report;
    memset(r->metric, 0, sizeof r->metric);
    for (const char *p = text;; p++) {
        const size_t n = strcspn(p, ",");
        int m;
        TRY(metric_named(p, n, &m, e));
        r->metric[m] = true;
        p += n;
        if (!*p) return ST_OK;
    }
}

static enum status take_percentiles(void *values, const char *text, struct err *e) {
    struct load_report *r = &((struct serve_args *)values)->report;
    r->n_percentiles = 0;
    for (const char *p = text;; p++) {
        const size_t n = strcspn(p, ",");
        CLEANUP_FREE char *one = xstrndup(p, n);
        double v;
        if (!parse_f64(one, &v) || !(v >= 0 && v <= 100) || r->n_percentiles == LOAD_PERCENTILES)
            return FAIL(e, ST_USAGE, "expected at most %d numbers from 0 to 100, got \"%s\"", LOAD_PERCENTILES, text);
        r->percentile[r->n_percentiles++] = v;
        p += n;
        if (!*p) return ST_OK;
    }
}

static enum status take_goodput(void *values, const char *text, struct err *e) {
    struct load_report *r = &((struct serve_args *)values)->report;
    const size_t n = strcspn(text, ":");
    int m;
    double v;
    TRY(metric_named(text, n, &m, e));
    if (m == LOAD_ITL || !text[n] || !parse_f64(text + n + 1, &v) || !(v > 0))
        return FAIL(e, ST_USAGE, "expected ttft:MS, tpot:MS or e2el:MS, got \"%s\"", text);
    r->goodput_ms[m] = v;
    return ST_OK;
}

static enum status take_header(void *values, const char *text, struct err *e) {
    struct serve_args *a = values;
    if (!strchr(text, ':') || strpbrk(text, "\r\n"))
        return FAIL(e, ST_USAGE, "expected \"NAME: VALUE\", got \"%s\"", text);
    if (a->n_headers == HEADERS_MAX) return FAIL(e, ST_USAGE, "expected at most %d headers", HEADERS_MAX);
    a->header[a->n_headers++] = text;
    return ST_OK;
}

#define A struct serve_args
static const struct args_flag flags[] = {
    FLAG_SECTION("Server"),
    FLAG_TEXT(A, base_url, "base-url", "URL", NULL, "The server's address, without /v1: http://HOST:PORT."),
    FLAG_TEXT(A, host, "host", "HOST", "127.0.0.1", "Its host, where there is no --base-url."),
    FLAG_INT(A, port, "port", "N", 1, 65535, "8000", "Its port."),
    FLAG_CHOICE(A, api, "backend", "API", "openai|openai-chat", "openai", "Requests are completions, or chats."),
    FLAG_TEXT(A, endpoint, "endpoint", "PATH", "the API's", "Requests go there."),
    FLAG_TEXT(A, model, "model", "NAME", "the server's first", "The model that is asked."),
    FLAG_TEXT(A, key, "api-key", "KEY", "$OPENAI_API_KEY", "The key that the server wants."),
    FLAG_CALL(take_header, "header", "\"NAME: VALUE\"", NULL, "Every request has this header.", .repeats = true),
    FLAG_SECTION("Requests"),
    FLAG_INT(A, num_prompts, "num-prompts", "N", 1, 10000000, "1000", "So many requests are sent."),
    FLAG_INT(A, input_len, "input-len", "N", 1, 1 << 20, "1024",
             "A prompt has so many tokens; of a chat, and where the server has no /tokenize, about as many."),
    FLAG_INT(A, output_len, "output-len", "N", 1, 1 << 20, "128", "An answer has so many tokens at most."),
    FLAG_FLOAT(A, range_ratio, "random-range-ratio", "X", 0, 1, "0", "Lengths vary by this share of themselves."),
    FLAG_TEXT(A, dataset, "dataset-path", "FILE", NULL,
              "Prompts are the rows of this file, JSON lines with \"prompt\" and perhaps \"output_tokens\"."),
    FLAG_BOOL(A, ignore_eos, "ignore-eos",
              "Answers do not end before --output-len tokens, where the server can do that."),
    FLAG_FLOAT(A, temperature, "temperature", "T", 0, 100, "the server's", "Answers are drawn at this temperature."),
    FLAG_TEXT(A, extra_body, "extra-body", "JSON", NULL, "These fields are added to every request."),
    FLAG_BOOL(A, no_stream, "no-stream", "Answers come whole; times to tokens then mean nothing."),
    FLAG_INT(A, seed, "seed", "N", 0, INT64_MAX, "0", "Prompts and intervals are drawn with it."),
    FLAG_SECTION("Load"),
    FLAG_CALL(take_request_rate, "request-rate", "X", "inf", "So many requests a second are sent; inf: all at once."),
    FLAG_CALL(take_burstiness, "burstiness", "X", "1",
              "1: intervals of a Poisson process; less: more in bursts; inf: equal intervals."),
    FLAG_INT(A, max_concurrency, "max-concurrency", "N", 1, 1000000, "no bound",
             "So many requests are under way at most."),
    FLAG_INT(A, warmups, "num-warmups", "N", 0, 1000000, "0", "So many of the requests are sent before, uncounted."),
    FLAG_SECTION("Report"),
    FLAG_CALL(take_metrics, "percentile-metrics", "NAME,...", "ttft,tpot,itl", "These times are reported; also e2el."),
    FLAG_CALL(take_percentiles, "metric-percentiles", "P,...", "99", "Of these times these percentiles."),
    FLAG_CALL(take_goodput, "goodput", "NAME:MS", NULL,
              "A good request takes at most that long, of ttft, tpot or e2el; their throughput is reported.",
              .repeats = true),
    FLAG_INT(A, verify, "verify", "N", 1, 10000000, NULL,
             "The first N requests, which then have seeds, are asked again one by one and not streamed, and answers "
             "compared."),
    FLAG_BOOL(A, json, "json", "A JSON object is printed, with vLLM's keys; the table goes to stderr."),
    FLAG_BOOL(A, report.detailed, "save-detailed", "The JSON has the times and the text of each request, too."),
};
#undef A

const struct args_command bench_serve_command = {
    .name = "bench serve",
    .usage = "[FLAG]...",
    .about = "Sends load to a server that speaks OpenAI's API and prints what vLLM's `bench serve` prints, by the same "
             "names. The exit status is 1 when a request failed or an answer differed.",
    .flags = flags,
    .n_flags = ARRAY_LEN(flags),
};

int bench_serve(int argc, char **argv) {
    const struct args_command *c = &bench_serve_command;
    struct serve_args a = {.host = "127.0.0.1",
                           .port = 8000,
                           .num_prompts = 1000,
                           .input_len = 1024,
                           .output_len = 128,
                           .request_rate = INFINITY,
                           .burstiness = 1,
                           .temperature = -1,
                           .report = {.metric = {[LOAD_TTFT] = true, [LOAD_TPOT] = true, [LOAD_ITL] = true},
                                      .percentile = {99},
                                      .n_percentiles = 1,
                                      .request_rate = INFINITY}};
    struct args given;
    struct err e = {0};
    bool good = false;
    if (!args_parse(c, argc, argv, &a, &given)) return given.code;
    if (a.report.detailed && !a.json) return args_wrong(c, &given, "--save-detailed: expected --json, too");
    if (a.no_stream && !args_has(c, &given, "percentile-metrics"))
        memcpy(a.report.metric, (bool[LOAD_N_METRICS]){[LOAD_E2EL] = true}, sizeof a.report.metric);
    a.report.max_concurrency = a.max_concurrency;
    a.report.metric[LOAD_QUEUE] = a.max_concurrency > 0;
    if (run(&a, &good, &e) != ST_OK) return args_report(&e);
    return good ? 0 : 1;
}
