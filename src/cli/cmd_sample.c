/* kernelrl sample: one prompt in, answers out. */
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "cli/cli.h"
#include "engine/engine.h"
#include "rl/learn/session.h"
#include "rl/options/find_model.h"
#include "tensor/backend.h"
#include "text/chat.h"

static const char usage[] =
    "sample --model MODEL --prompt TEXT [--adapter MODEL] [--system TEXT] [--raw] [--renderer NAME]\n"
    "       [--thinking] [--n N] [--temperature T] [--top-k K] [--top-p P] [--min-p P]\n"
    "       [--max-tokens N] [--seed N] [--stop STR]... [--device NAME] [--dtype TYPE] [--kv-memory BYTES]\n"
    "       [--threads N] [--json]\n"
    "Samples N answers (default 1) at temperature 1 of up to 512 tokens. The prompt is a user message in the model's\n"
    "chat format, as in training (--renderer qwen2.5, qwen3, qwen3_disable_thinking or qwen3_instruct forces one);\n"
    "--raw takes it as it is, special tokens included. --stop ends an answer at a string. --json prints one object a\n"
    "line: text, ids, logprobs, stop. MODEL is a folder, or a name on the Hub (ORG/NAME or ORG/NAME@REVISION); an\n"
    "adapter likewise. --device is cpu (default), cuda, or cuda:N for the N-th GPU from 0. --min-p leaves out tokens "
    "less\n"
    "than P times as probable as the most probable one. --kv-memory bounds the memory for keys and values (default: a\n"
    "quarter of what is free); with less, fewer answers are sampled at a time, with the same result. --dtype\n"
    "is what matrices are held and multiplied in: f32, bf16, or auto (default): bf16 from 100 million parameters on\n"
    "where the device has it.";

enum { MAX_STOPS = 16 };

struct sample_options {
    const char *model, *adapter, *prompt, *system, *renderer, *device, *dtype, *stop[MAX_STOPS];
    int n_stop, n, threads;
    int64_t kv_memory;
    struct sample_params params;
    bool raw, thinking, json;
};

static const char *token_bytes(void *ctx, int32_t id, size_t *n) { return tokenizer_bytes(ctx, id, n); }

/* A model trained on chats ends its turn with one of its end tokens. */
static void collect_stops(const struct model_config *c, const struct tokenizer *t, struct ids *stops) {
    for (int i = 0; i < c->n_eos; i++) ids_add(stops, c->eos[i]);
    static const char *const names[] = {"<|im_end|>", "<|endoftext|>"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        int32_t id = tokenizer_id(t, names[i]);
        if (id >= 0) ids_add(stops, id);
    }
}

static enum status make_prompt(const struct sample_options *o, const struct model_config *c, struct tokenizer *t,
                               struct ids *ids, struct err *e) {
    if (o->raw) {
        tokenizer_encode(t, o->prompt, strlen(o->prompt), true, ids);
    } else {
        enum chat_style style;
        TRY(session_style(o->renderer, c->qwen3, o->thinking, &style, e));
        struct chat_message m[2];
        size_t n = 0;
        if (o->system) m[n++] = (struct chat_message){"system", o->system};
        m[n++] = (struct chat_message){"user", o->prompt};
        chat_encode(t, style, m, n, true, ids);
    }
    return ids->len ? ST_OK : FAIL(e, ST_USAGE, "--prompt: expected some text");
}

/* Text up to the stop: a stop string and what follows it, and a stop token, are no part of the answer. */
static void answer_text(const struct sample_options *o, const struct tokenizer *t, const struct sample *s,
                        struct str *out) {
    tokenizer_decode(t, s->ids, (size_t)(s->stop == STOP_TOKEN ? s->n - 1 : s->n), false, out);
    if (s->stop != STOP_STRING) return;
    const char *cut = NULL;
    for (int i = 0; i < o->n_stop; i++) {
        const char *hit = mem_find(str_c(out), out->len, o->stop[i], strlen(o->stop[i]));
        if (hit && (!cut || hit < cut)) cut = hit;
    }
    if (!cut) return;
    out->len = (size_t)(cut - out->p);
    out->p[out->len] = 0;
}

/* JSON strings are UTF-8; what an answer has beside is replaced by U+FFFD (the ids hold the truth). */
static json_t *json_text(const struct str *s) {
    json_t *j = json_stringn(str_c(s), s->len);
    if (j) return j;
    struct str clean = STR_INIT;
    for (size_t i = 0; i < s->len;) {
        size_t len = 1;
        while (len <= 4 && i + len <= s->len && !(j = json_stringn(s->p + i, len))) len++;
        if (j)
            str_add(&clean, s->p + i, len);
        else
            str_adds(&clean, "\xef\xbf\xbd");
        i += j ? len : 1;
        json_decref(j);
        j = NULL;
    }
    j = json_stringn(str_c(&clean), clean.len);
    str_free(&clean);
    return j;
}

static void print_json(const struct sample *s, const struct str *text) {
    json_t *ids = json_array(), *logp = json_array();
    for (int i = 0; i < s->n; i++) {
        json_array_append_new(ids, json_integer(s->ids[i]));
        json_array_append_new(logp, json_real((double)s->logp[i]));
    }
    json_t *j = json_pack("{s:o,s:o,s:o,s:s}", "text", json_text(text), "ids", ids, "logprobs", logp, "stop",
                          stop_reason_name(s->stop));
    ASSERT(j);
    json_dumpf(j, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(j);
}

struct progress {
    const volatile bool *cancel;
    double start;
};

static bool show_progress(void *ctx, int64_t tokens, int done, int total) {
    const struct progress *p = ctx;
    if (clock_now_s() - p->start > 1)
        log_progress("%lld tokens, %d of %d answers done", (long long)tokens, done, total);
    return !*p->cancel;
}

static enum status sample_all(struct sample_options *o, struct engine *en, const struct model_config *c,
                              struct tokenizer *t, struct err *e) {
    struct ids prompt = {0}, stops = {0};
    CLEANUP_STR struct str text = STR_INIT;
    struct sample *out = xcalloc((size_t)o->n, sizeof *out);
    const volatile bool *cancel = interrupt_flag();
    enum status st;
    TRY_GOTO(make_prompt(o, c, t, &prompt, e), done);
    collect_stops(c, t, &stops);
    o->params.stop_ids = stops.p;
    o->params.n_stop_ids = (int)stops.len;
    o->params.stop_strings = o->stop;
    o->params.n_stop_strings = o->n_stop;
    struct request r = {.prompt = prompt.p, .n_prompt = (int)prompt.len, .n_samples = o->n, .params = o->params};
    struct progress progress = {cancel, clock_now_s()};
    TRY_GOTO(engine_run(en, &r, 1, out, show_progress, &progress, e), done);
    double seconds = clock_now_s() - progress.start;
    log_progress_end();
    int64_t tokens = 0;
    for (int i = 0; i < o->n; i++) {
        tokens += out[i].n;
        str_clear(&text);
        answer_text(o, t, &out[i], &text);
        if (o->json) {
            print_json(&out[i], &text);
            continue;
        }
        if (o->n > 1) printf("--- answer %d of %d (%s)\n", i + 1, o->n, stop_reason_name(out[i].stop));
        fwrite(str_c(&text), 1, text.len, stdout);
        putchar('\n');
    }
    fprintf(stderr, "%zu prompt tokens, %lld sampled in %.2f s: %.1f tokens/s\n", prompt.len, (long long)tokens,
            seconds, (double)tokens / (seconds > 0 ? seconds : 1));
    if (*cancel) st = FAIL(e, ST_CANCELLED, "interrupted");
done:
    for (int i = 0; i < o->n; i++) sample_free(&out[i]);
    free(out);
    ids_free(&prompt);
    ids_free(&stops);
    return st;
}

static enum status run(struct sample_options *o, struct err *e) {
    struct pool *pool = pool_create(o->threads);
    struct backend *be = NULL;
    struct model *m = NULL;
    struct tokenizer *t = NULL;
    struct engine *en = NULL;
    CLEANUP_FREE char *dir = NULL, *adapter = NULL;
    const volatile bool *cancel = interrupt_flag();
    enum status st;
    const struct model_options mo = {.dtype = o->dtype, .frozen = true};
    TRY_GOTO(locate("--model", HUB_MODEL, o->model, NULL, cancel, &dir, e), done);
    if (o->adapter) TRY_GOTO(locate("--adapter", HUB_ADAPTER, o->adapter, NULL, cancel, &adapter, e), done);
    TRY_GOTO(backend_open(o->device, pool, &be, e), done);
    TRY_GOTO(model_load(dir, &mo, be, &m, e), done);
    if (adapter) TRY_GOTO(model_lora_load(m, adapter, e), done);
    TRY_GOTO(tokenizer_open(dir, &t, e), done);
    const struct engine_options eo = {
        .memory_bytes = o->kv_memory, .vocab_limit = tokenizer_vocab(t), .token_bytes = token_bytes, .token_ctx = t};
    TRY_GOTO(engine_open(m, &eo, &en, e), done);
    st = sample_all(o, en, model_cfg(m), t, e);
done:
    engine_close(en);
    tokenizer_close(t);
    model_free(m);
    if (be) be->close(be);
    pool_destroy(pool);
    return st;
}

static bool int_option(const char *name, int64_t min, int64_t max, int64_t *out) {
    if (parse_i64(optarg, out) && *out >= min && *out <= max) return true;
    fprintf(stderr, "kernelrl: --%s: expected an integer from %lld to %lld, got \"%s\"\n", name, (long long)min,
            (long long)max, optarg);
    return false;
}

static bool real_option(const char *name, double min, double max, double *out) {
    if (parse_f64(optarg, out) && *out >= min && *out <= max) return true;
    fprintf(stderr, "kernelrl: --%s: expected a number from %g to %g, got \"%s\"\n", name, min, max, optarg);
    return false;
}

int cmd_sample(int argc, char **argv) {
    static const struct option options[] = {
        {"model", required_argument, NULL, 'm'},
        {"adapter", required_argument, NULL, 'a'},
        {"prompt", required_argument, NULL, 'p'},
        {"system", required_argument, NULL, 's'},
        {"raw", no_argument, NULL, 'r'},
        {"renderer", required_argument, NULL, 'R'},
        {"thinking", no_argument, NULL, 'N'},
        {"n", required_argument, NULL, 'n'},
        {"temperature", required_argument, NULL, 't'},
        {"top-k", required_argument, NULL, 'k'},
        {"top-p", required_argument, NULL, 'P'},
        {"min-p", required_argument, NULL, 'i'},
        {"kv-memory", required_argument, NULL, 'K'},
        {"max-tokens", required_argument, NULL, 'M'},
        {"seed", required_argument, NULL, 'S'},
        {"stop", required_argument, NULL, 'x'},
        {"device", required_argument, NULL, 'D'},
        {"dtype", required_argument, NULL, 'Y'},
        {"threads", required_argument, NULL, 'T'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    struct sample_options o = {.device = "cpu", .n = 1, .params = {.temperature = 1, .top_p = 1, .max_tokens = 512}};
    int c;
    int64_t i;
    double d;
    optind = 1;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        bool good = true;
        switch (c) {
        case 'm': o.model = optarg; break;
        case 'a': o.adapter = optarg; break;
        case 'p': o.prompt = optarg; break;
        case 's': o.system = optarg; break;
        case 'r': o.raw = true; break;
        case 'R': o.renderer = optarg; break;
        case 'N': o.thinking = true; break;
        case 'j': o.json = true; break;
        case 'D':
            o.device = optarg;
            if (!(good = backend_device_valid(optarg)))
                fprintf(stderr, "kernelrl: --device: expected cpu, cuda or cuda:N, got \"%s\"\n", optarg);
            break;
        case 'Y': good = cli_dtype(o.dtype = optarg); break;
        case 'n':
            if ((good = int_option("n", 1, 100000, &i))) o.n = (int)i;
            break;
        case 'k':
            if ((good = int_option("top-k", 0, INT32_MAX, &i))) o.params.top_k = (int)i;
            break;
        case 'M':
            if ((good = int_option("max-tokens", 1, INT32_MAX, &i))) o.params.max_tokens = (int)i;
            break;
        case 'T':
            if ((good = int_option("threads", 0, 1024, &i))) o.threads = (int)i;
            break;
        case 'S':
            if ((good = int_option("seed", 0, INT64_MAX, &i))) o.params.seed = (uint64_t)i;
            break;
        case 't':
            if ((good = real_option("temperature", 0, 100, &d))) o.params.temperature = (float)d;
            break;
        case 'P':
            if ((good = real_option("top-p", 1e-6, 1, &d))) o.params.top_p = (float)d;
            break;
        case 'i':
            if ((good = real_option("min-p", 0, 1, &d))) o.params.min_p = (float)d;
            break;
        case 'K': good = int_option("kv-memory", 0, INT64_MAX, &o.kv_memory); break;
        case 'x':
            good = *optarg && o.n_stop < MAX_STOPS;
            if (good)
                o.stop[o.n_stop++] = optarg;
            else
                fprintf(stderr, "kernelrl: --stop: expected up to %d strings, none empty\n", MAX_STOPS);
            break;
        case 'h': printf("usage: kernelrl %s\n", usage); return 0;
        default: return cli_usage(usage);
        }
        if (!good) return 2;
    }
    bool chat_options = o.system || o.renderer || o.thinking;
    if (!o.model || !o.prompt) return cli_wrong(usage, "sample: --model and --prompt are needed");
    if (optind != argc) return cli_wrong(usage, "sample: unexpected argument \"%s\"", argv[optind]);
    if (o.raw && chat_options)
        return cli_wrong(usage, "sample: --raw takes the prompt as it is: no --system, --renderer or --thinking");
    if (o.renderer && o.thinking)
        return cli_wrong(usage, "sample: --renderer says itself whether it thinks: no --thinking");
    struct err e = {0};
    return run(&o, &e) == ST_OK ? 0 : args_report(&e);
}
