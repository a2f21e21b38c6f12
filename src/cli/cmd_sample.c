/* kernelrl sample: one prompt in, answers out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "cli/cli.h"
#include "io/json.h"
#include "policy/answer.h"
#include "policy/policy.h"
#include "tensor/backend.h"
#include "tensor/formats.h"

enum { MAX_STOPS = 16 };

struct sample_options {
    const char *model, *adapter, *prompt, *system, *renderer, *device, *dtype, *base_dtype, *stop[MAX_STOPS];
    int n_stop, n, threads;
    int64_t kv_memory;
    struct sample_params params;
    bool raw, thinking, json;
};

static enum status take_stop(void *values, const char *text, struct err *e) {
    struct sample_options *o = values;
    if (!*text || o->n_stop == MAX_STOPS) return FAIL(e, ST_USAGE, "expected up to %d strings, none empty", MAX_STOPS);
    o->stop[o->n_stop++] = text;
    return ST_OK;
}

#define S struct sample_options
static const struct args_flag flags[] = {
    FLAG_SECTION("Model"),
    FLAG_TEXT(S, model, "model", "MODEL", NULL,
              "The model: a folder, or a name on the Hub (ORG/NAME or ORG/NAME@REVISION)."),
    FLAG_TEXT(S, adapter, "adapter", "MODEL", NULL, "This adapter is put on it, named likewise."),
    FLAG_SECTION("Prompt"),
    FLAG_TEXT(S, prompt, "prompt", "TEXT", NULL,
              "The prompt: a user message in the model's chat format, as in training."),
    FLAG_TEXT(S, system, "system", "TEXT", NULL, "A system message stands in front of it."),
    FLAG_TEXT(S, renderer, "renderer", "NAME", "the model's", "The chat format: " CHAT_STYLE_EXPECTED "."),
    FLAG_BOOL(S, thinking, "thinking", "The model is asked to think first."),
    FLAG_BOOL(S, raw, "raw", "The prompt is taken as it is, special tokens included."),
    FLAG_SECTION("Sampling"),
    FLAG_INT(S, n, "n", "N", 1, 100000, "1", "So many answers are sampled."),
    FLAG_INT(S, params.max_tokens, "max-tokens", "N", 1, INT32_MAX, "512", "An answer has so many tokens at most."),
    FLAG_FLOAT(S, params.temperature, "temperature", "T", 0, 100, "1", "The temperature; 0 is greedy."),
    FLAG_INT(S, params.top_k, "top-k", "K", 0, INT32_MAX, "0, off", "Only the K most probable tokens are drawn."),
    FLAG_FLOAT(S, params.top_p, "top-p", "P", 1e-6, 1, "1, off",
               "Only the most probable tokens that have P of the probability together are drawn."),
    FLAG_FLOAT(S, params.min_p, "min-p", "P", 0, 1, "0, off",
               "Tokens less than P times as probable as the most probable one are left out."),
    FLAG_CALL(take_stop, "stop", "STR", NULL, "An answer ends at this string.", .repeats = true),
    FLAG_INT(S, params.seed, "seed", "N", 0, INT64_MAX, "0", "Tokens are drawn from that stream."),
    FLAG_SECTION("Device"),
    FLAG_TEXT(S, device, "device", "NAME", "cpu", "The device: cpu, cuda, or cuda:N for the N-th GPU from 0.",
              .valid = backend_device_valid, .expected = "cpu, cuda or cuda:N"),
    FLAG_CHOICE(S, dtype, "dtype", "TYPE", "auto|f32|bf16", "auto",
                "Matrices are held and multiplied in it; auto is bf16 from 100 million parameters on where the device "
                "has it."),
    FLAG_CHOICE(S, base_dtype, "base-dtype", "TYPE", CHOICE_TEXT(BASE_DTYPE_LIST), "auto",
                "The layers' matrices are held in it: fp8 and nf4 mean the bf16 matrices that they decode to, auto is "
                "as the checkpoint has them."),
    FLAG_INT(S, kv_memory, "kv-memory", "BYTES", 0, INT64_MAX, "a quarter of what is free",
             "Keys and values may take so much memory; with less, fewer answers are sampled at a time, with the same "
             "result."),
    FLAG_INT(S, threads, "threads", "N", 0, 1024, "0, all CPUs", "So many threads work."),
    FLAG_SECTION("Output"),
    FLAG_BOOL(S, json, "json", "Each answer is one JSON object a line: text, ids, logprobs, stop."),
};
#undef S

const struct args_command sample_command = {
    .name = "sample",
    .usage = "--model MODEL --prompt TEXT [FLAG]...",
    .about = "Samples answers to a prompt.",
    .flags = flags,
    .n_flags = ARRAY_LEN(flags),
};

static enum status make_prompt(const struct sample_options *o, const struct policy *p, struct ids *ids, struct err *e) {
    if (o->raw) {
        tokenizer_encode_whole(p->tok, o->prompt, strlen(o->prompt), true, ids);
    } else {
        struct chat_message m[2];
        size_t n = 0;
        if (o->system) m[n++] = (struct chat_message){.role = "system", .content = o->system};
        m[n++] = (struct chat_message){.role = "user", .content = o->prompt};
        chat_encode(p->tok, p->style, m, n, CHAT_GENERATE, ids);
    }
    return ids->len ? ST_OK : FAIL(e, ST_USAGE, "--prompt: expected some text");
}

static void print_json(const struct sample *s, const struct str *text) {
    CLEANUP_STR struct str out = STR_INIT;
    js_begin(&out, NULL, '{');
    js_put_strn(&out, "text", str_c(text), text->len); /* what is no UTF-8 is replaced; the ids hold the truth */
    js_begin(&out, "ids", '[');
    for (int i = 0; i < s->n; i++) js_put_i64(&out, NULL, s->ids[i]);
    js_end(&out, ']');
    js_begin(&out, "logprobs", '[');
    for (int i = 0; i < s->n; i++) {
        if (i > 0) str_addc(&out, ',');
        js_add_f32(&out, s->logp[i]);
    }
    js_end(&out, ']');
    js_put_str(&out, "stop", stop_reason_name(s->stop));
    js_end(&out, '}');
    puts(str_c(&out));
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

static enum status sample_all(struct sample_options *o, const struct policy *p, struct err *e) {
    struct ids prompt = {0};
    CLEANUP_STR struct str text = STR_INIT;
    struct sample *out = xcalloc((size_t)o->n, sizeof *out);
    const volatile bool *cancel = interrupt_flag();
    enum status st;
    TRY_GOTO(make_prompt(o, p, &prompt, e), done);
    const struct stop_set stops = answer_stops(p->tok, p->style, model_cfg(p->model), true);
    o->params.stop_ids = stops.ids;
    o->params.n_stop_ids = stops.n;
    o->params.stop_strings = o->stop;
    o->params.n_stop_strings = o->n_stop;
    struct request r = {.prompt = prompt.p, .n_prompt = (int)prompt.len, .n_samples = o->n, .params = o->params};
    struct progress progress = {cancel, clock_now_s()};
    TRY_GOTO(engine_run(p->engine, &r, 1, out, show_progress, &progress, e), done);
    double seconds = clock_now_s() - progress.start;
    log_progress_end();
    int64_t tokens = 0;
    for (int i = 0; i < o->n; i++) {
        tokens += out[i].n;
        str_clear(&text);
        answer_text(p->tok, &out[i], &o->params, false, &text);
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
    return st;
}

static enum status run(struct sample_options *o, struct err *e) {
    struct pool *pool = pool_create(o->threads);
    struct policy p;
    const struct policy_options po = {.model = {"--model", o->model, NULL, HUB_MODEL},
                                      .start = {"--adapter", o->adapter, NULL, HUB_ADAPTER},
                                      .device = o->device,
                                      .pool = pool,
                                      .weights = {.dtype = o->dtype, .base_dtype = o->base_dtype, .frozen = true},
                                      .style = o->renderer,
                                      .no_chat = o->raw,
                                      .thinking = o->thinking,
                                      .engine.memory_bytes = o->kv_memory};
    enum status st = policy_open(&po, interrupt_flag(), &p, e);
    if (st == ST_OK) st = sample_all(o, &p, e);
    policy_close(&p);
    pool_destroy(pool);
    return st;
}

int cmd_sample(int argc, char **argv) {
    const struct args_command *c = &sample_command;
    struct sample_options o = {.device = "cpu", .n = 1, .params = {.temperature = 1, .top_p = 1, .max_tokens = 512}};
    struct args given;
    struct err e = {0};
    if (!args_parse(c, argc, argv, &o, &given)) return given.code;
    if (!o.model || !o.prompt) return args_wrong(c, &given, "--model and --prompt are needed");
    if (o.raw && (o.system || o.renderer || o.thinking))
        return args_wrong(c, &given, "--raw takes the prompt as it is: no --system, --renderer or --thinking");
    if (o.renderer && o.thinking)
        return args_wrong(c, &given, "--renderer says itself whether it thinks: no --thinking");
    return run(&o, &e) == ST_OK ? 0 : args_report(&e);
}
