/* kernelrl bench: how fast the engine is here, beside what the machine could do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench/bench.h"
#include "cli/cli.h"
#include "io/json.h"
#include "tensor/formats.h"

static const struct {
    const char *name, *config;
} archs[] = {
#define QWEN25(D, L, F, H, G, V, tied)                                                                               \
    "{\"architectures\":[\"Qwen2ForCausalLM\"],\"hidden_size\":" #D ",\"num_hidden_layers\":" #L                     \
    ",\"intermediate_size\":" #F ",\"num_attention_heads\":" #H ",\"num_key_value_heads\":" #G ",\"vocab_size\":" #V \
    ",\"tie_word_embeddings\":" #tied                                                                                \
    ",\"max_position_embeddings\":32768,\"rope_theta\":1000000.0,\"rms_norm_eps\":1e-6}"
    {"qwen2.5-0.5b", QWEN25(896, 24, 4864, 14, 2, 151936, true)},
    {"qwen2.5-1.5b", QWEN25(1536, 28, 8960, 12, 2, 151936, true)},
    {"qwen2.5-7b", QWEN25(3584, 28, 18944, 28, 4, 152064, false)},
    {"qwen2.5-14b", QWEN25(5120, 48, 13824, 40, 8, 152064, false)},
    {"llama3.1-8b",
     "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":4096,\"num_hidden_layers\":32,"
     "\"intermediate_size\":14336,\"num_attention_heads\":32,\"num_key_value_heads\":8,\"vocab_size\":128256,"
     "\"tie_word_embeddings\":false,\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-5,\"rope_theta\":500000.0,"
     "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
     "\"original_max_position_embeddings\":8192}}"},
    {"qwen3-30b-a3b",
     "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"hidden_size\":2048,\"num_hidden_layers\":48,"
     "\"intermediate_size\":6144,\"num_attention_heads\":32,\"num_key_value_heads\":4,\"head_dim\":128,"
     "\"num_experts\":128,\"num_experts_per_tok\":8,\"moe_intermediate_size\":768,\"norm_topk_prob\":true,"
     "\"vocab_size\":151936,\"tie_word_embeddings\":false,\"max_position_embeddings\":40960,\"rms_norm_eps\":1e-6,"
     "\"rope_theta\":1000000.0}"},
    {"tiny", "{\"architectures\":[\"Qwen3ForCausalLM\"],\"hidden_size\":256,\"num_hidden_layers\":6,"
             "\"intermediate_size\":768,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":64,"
             "\"vocab_size\":2048,\"tie_word_embeddings\":true,\"max_position_embeddings\":8192}"},
};

static const struct {
    const char *name;
    int what;
} subcommands[] = {
    {"decode", BENCH_DECODE},
    {"prefill", BENCH_PREFILL},
    {"train", BENCH_TRAIN_LORA | BENCH_TRAIN_FULL},
    {"train-lora", BENCH_TRAIN_LORA},
    {"train-full", BENCH_TRAIN_FULL},
    {"matmul", BENCH_MATMUL},
    {"rlstep", BENCH_RL},
    {"all", BENCH_DECODE | BENCH_PREFILL | BENCH_TRAIN_LORA | BENCH_TRAIN_FULL | BENCH_MATMUL},
};

const char *bench_arch(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(archs); i++)
        if (strcmp(archs[i].name, name) == 0) return archs[i].config;
    return NULL;
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void bench_begin(struct bench *b) {
    b->limits = (struct bench_limits){0};
    b->wall_s = clock_now_s();
    b->cpu_s = cpu_s();
}

void bench_line(const struct bench *b, const char *what, const char *dtype, struct str *s) {
    double load = 0;
    js_begin(s, NULL, '{');
    js_put_str(s, "bench", what);
    js_put_str(s, "program", "kernelrl");
    js_put_str(s, "model", b->name);
    js_put_str(s, "dtype", dtype);
    js_put_str(s, "device", b->be->name);
    js_put_i64(s, "threads", pool_threads(b->pool));
    if (b->o->fast) js_put_str(s, "numerics", "fast");
    if (getloadavg(&load, 1) == 1) js_put_f64(s, "load", load);
}

void bench_line_end(const struct bench *b, struct str *s, const char *label, const struct bench_times *t, double per_s,
                    const char *unit, double limit_s) {
    char key[32];
    snprintf(key, sizeof key, "%ss_per_s", unit);
    js_put_f64(s, key, per_s);
    js_put_f64(s, "median_ms", t->median * 1e3);
    js_put_f64(s, "low_ms", t->low * 1e3);
    js_put_f64(s, "high_ms", t->high * 1e3);
    js_put_f64(s, "spread", t->spread);
    js_put_f64(s, "limit_ms", limit_s * 1e3);
    js_put_f64(s, "of_limit", limit_s / t->median);
    js_put_f64(s, "of_limit_best", limit_s / t->low);
    js_put_f64(s, "cpu_share", (cpu_s() - b->cpu_s) / (clock_now_s() - b->wall_s) / pool_threads(b->pool));
    js_put_f64(s, "memory_gb_per_s", b->limits.bytes_s * 1e-9);
    js_put_f64(s, "matmul_gflops_per_s", b->limits.flop_s * 1e-9);
    js_end(s, '}');
    printf("%s\n", s->p);
    fflush(stdout);
    const char *what = s->p + strlen("{\"bench\":\"");
    fprintf(stderr, "%-10.*s %-34s %9.1f %s/s %9.2f ms (spread %2.0f %%) %4.0f %% of the limit (best %.0f)\n",
            (int)strcspn(what, "\""), what, label, per_s, strcmp(unit, "token") == 0 ? "tok" : "GFLOP", t->median * 1e3,
            t->spread * 100, limit_s / t->median * 100, limit_s / t->low * 100);
    str_free(s);
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

/* A config.json's path or text. */
static enum status shape_of(const struct bench_options *o, struct str *out, struct err *e) {
    if (o->model)
        str_addf(out, "%s/config.json", o->model);
    else if (bench_arch(o->arch))
        str_adds(out, bench_arch(o->arch));
    else
        return FAIL(e, ST_USAGE, "--arch: expected " BENCH_ARCHS ", got \"%s\"", o->arch);
    return ST_OK;
}

static enum status open_model(struct bench *b, bool frozen, struct model **m, struct err *e) {
    const struct bench_options *o = b->o;
    CLEANUP_STR struct str shape = STR_INIT;
    const struct model_options mo = {.dtype = o->dtype,
                                     .base_dtype = frozen ? o->base_dtype : NULL,
                                     .frozen = frozen,
                                     .activation_memory = o->activation_memory,
                                     .repeat_random = true};
    if (o->model && !o->random) return model_load(o->model, &mo, b->be, m, e);
    TRY(shape_of(o, &shape, e));
    return model_init(shape.p, 1, &mo, b->be, m, e);
}

static enum status run_frozen(struct bench *b, struct err *e) {
    const int what = b->o->what;
    struct model *m;
    TRY(open_model(b, true, &m, e));
    const enum dtype dt = strcmp(model_dtype(m), "bf16") == 0 ? DT_BF16 : DT_F32;
    enum status st = b->o->planned ? ST_OK : bench_limits_raise(b, model_cfg(m), dt, e);
    if (st == ST_OK && !b->o->planned)
        fprintf(stderr, "%s, %s, %d threads: %s; memory %.1f GB/s, products %.0f GFLOP/s\n", b->be->name,
                model_dtype(m), pool_threads(b->pool), b->name, b->limits.bytes_s * 1e-9, b->limits.flop_s * 1e-9);
    if (st == ST_OK && what & BENCH_MATMUL) st = bench_matmul(b, model_cfg(m), dt, e);
    if (st == ST_OK && what & (BENCH_DECODE | BENCH_PREFILL) && b->o->sample_lora) st = bench_adapter(b, m, e);
    if (st == ST_OK && what & BENCH_DECODE) st = bench_decode(b, m, e);
    if (st == ST_OK && what & BENCH_PREFILL) st = bench_prefill(b, m, e);
    if (st == ST_OK && what & BENCH_TRAIN_LORA) st = bench_train(b, m, TRAIN_LORA, e);
    if (st == ST_OK && what & BENCH_RL) st = bench_rl_step(b, m, e);
    model_free(m);
    return st;
}

static enum status run_full(struct bench *b, struct err *e) {
    struct model *m;
    TRY(open_model(b, false, &m, e));
    const enum status st = b->o->what & BENCH_RL ? bench_rl_step(b, m, e) : bench_train(b, m, TRAIN_FULL, e);
    model_free(m);
    return st;
}

static enum status run(const struct bench_options *o, struct err *e) {
    struct bench b = {.o = o, .pool = pool_create(o->threads), .name = o->arch ? o->arch : o->model};
    enum status st = backend_open(o->device, b.pool, &b.be, e);
    if (st == ST_OK) b.be->fast = o->fast;
    const bool rl_full = o->what & BENCH_RL && o->full;
    CLEANUP_STR struct str shape = STR_INIT;
    if (st == ST_OK && o->planned) st = shape_of(o, &shape, e);
    if (st == ST_OK && o->planned) st = bench_rl_plan(&b, shape.p, e);
    if (st == ST_OK && o->what & ~BENCH_TRAIN_FULL && !rl_full) st = run_frozen(&b, e);
    if (st == ST_OK && (o->what & BENCH_TRAIN_FULL || rl_full)) st = run_full(&b, e);
    if (b.be) b.be->close(b.be);
    pool_destroy(b.pool);
    return st;
}

/* ---- flags ------------------------------------------------------------------------------------------------------- */

static enum status take_number(const char *text, int64_t low, int64_t high, int64_t *out, struct err *e) {
    if (parse_i64(text, out) && *out >= low && *out <= high) return ST_OK;
    return FAIL(e, ST_USAGE, "expected a whole number from %lld to %lld, got \"%s\"", (long long)low, (long long)high,
                text);
}

static enum status take_batch(void *values, const char *text, struct err *e) {
    struct bench_options *o = values;
    for (o->n_batch = 0; o->n_batch < BENCH_LIST;) {
        const size_t n = strcspn(text, ",");
        CLEANUP_FREE char *one = xstrndup(text, n);
        int64_t v;
        TRY(take_number(one, 1, 1 << 16, &v, e));
        o->batch[o->n_batch++] = (int)v;
        if (!text[n]) return ST_OK;
        text += n + 1;
    }
    return FAIL(e, ST_USAGE, "expected at most %d numbers", BENCH_LIST);
}

static enum status take_context(void *values, const char *text, struct err *e) {
    struct bench_options *o = values;
    const size_t n = strcspn(text, "-");
    CLEANUP_FREE char *from = xstrndup(text, n);
    if (!text[n]) return FAIL(e, ST_USAGE, "expected FROM-TO, got \"%s\"", text);
    TRY(take_number(from, 1, 1 << 20, &o->context_begin, e));
    return take_number(text + n + 1, o->context_begin + 1, 1 << 20, &o->context_end, e);
}

/* A flag belongs to some measurements; given for others it would mean nothing. */
#define OF_TRAINING "train train-lora train-full rlstep all"
#define A struct bench_options
static const struct args_flag flags[] = {
    FLAG_SECTION("Model"),
    FLAG_TEXT(A, arch, "arch", "NAME", NULL, "A shape with random weights: " BENCH_ARCHS "."),
    FLAG_TEXT(A, model, "model", "DIR", NULL, "The model in this folder."),
    FLAG_BOOL(A, random, "random-weights", "Of that folder only the shape is taken."),
    FLAG_CHOICE(A, dtype, "dtype", "TYPE", "auto|f32|bf16", "auto", "Matrices are held and multiplied in it."),
    FLAG_CHOICE(A, base_dtype, "base-dtype", "TYPE", CHOICE_TEXT(BASE_DTYPE_LIST), "auto",
                "The layers' matrices are held in it; auto is as the checkpoint has them.",
                .of = "decode prefill train-lora rlstep"),
    FLAG_CHOICE(A, fast, "numerics", "HOW", "exact|fast", "exact", "Sums are made that way, as in `train`."),
    FLAG_SECTION("Size"),
    FLAG_CALL(take_batch, "batch", "N,N,...", "the measurement's",
              "So many sequences are measured at a time, one after the other; of products so many rows.",
              .of = "decode prefill train train-lora train-full rlstep matmul"),
    FLAG_CALL(take_context, "context", "FROM-TO", "256-512",
              "The context of sequences grows so while they are decoded.", .of = "decode all"),
    FLAG_INT(A, tokens, "tokens", "N", 1, 1 << 20, "512", "A sequence or prompt has so many tokens.",
             .of = "prefill " OF_TRAINING),
    FLAG_INT(A, repeat, "repeat", "N", 1, 1000, NULL,
             "So many steps are measured after those that warm up: by default 7 prefills, 3 training steps, 1 rlstep, "
             "and of a product as many as 0.4 seconds hold, at least 5.",
             .of = "prefill matmul " OF_TRAINING),
    FLAG_INT(A, lora_rank, "lora-rank", "R", 1, 1024, "16",
             "Adapters have this rank; with it decode and prefill run with an adapter.",
             .of = "decode prefill train train-lora rlstep all"),
    FLAG_INT(A, lora_expert_rank, "lora-expert-rank", "R", -1, 1024, "0",
             "Adapters have this rank on each expert of a mixture. 0: the other rank over the experts of a token; -1: "
             "experts have none.",
             .of = "decode prefill train train-lora rlstep all"),
    FLAG_INT(A, adapters, "adapters", "N", 1, 64, NULL, "With --lora-rank the sequences share so many adapters evenly.",
             .of = "decode prefill all"),
    FLAG_INT(A, train_tokens, "train-tokens", "N", 1, 1 << 20, NULL,
             "A micro-batch has so many rows: by default 1024, for rlstep on a GPU a prompt's, or what there is memory "
             "for.",
             .of = OF_TRAINING),
    FLAG_INT(A, activation_memory, "activation-memory", "BYTES", 0, INT64_MAX, NULL,
             "Activations may take so much memory, as in `train`.", .of = OF_TRAINING),
    FLAG_INT(A, answers, "answers", "N", 1, 1024, "16", "A prompt has so many answers.", .of = "rlstep"),
    FLAG_INT(A, new_tokens, "new-tokens", "N", 1, 1 << 20, "1024", "An answer has exactly so many tokens.",
             .of = "rlstep"),
    FLAG_BOOL(A, full, "full", "All parameters are trained in the place of LoRA.", .of = "rlstep"),
    FLAG_BOOL(
        A, planned, "planned",
        "The step gets the memory that `train` would plan for it, and the line says how much that is, and how much "
        "was taken, in the place of limits.",
        .of = "rlstep"),
    FLAG_SECTION("Device"),
    FLAG_TEXT(A, device, "device", "NAME", "cpu", "The device: cpu, cuda or cuda:N.", .valid = backend_device_valid,
              .expected = "cpu, cuda or cuda:N"),
    FLAG_INT(A, threads, "threads", "N", 0, 256, "0, all CPUs", "So many threads work."),
};

static const struct args_sub measurements[] = {
    {.name = "decode", .help = "Steps of N sequences at once (1,16,64) while their context grows."},
    {.name = "prefill", .help = "Prompts of --tokens, N at once (1)."},
    {.name = "train",
     .help = "One optimizer step over N (8) sequences of --tokens, and the most memory it took: of LoRA and of all "
             "parameters, in micro-batches of --train-tokens rows."},
    {.name = "train-lora", .help = "The same of LoRA alone."},
    {.name = "train-full", .help = "The same of all parameters alone."},
    {.name = "rlstep",
     .help = "--answers answers of exactly --new-tokens tokens to each of N (8) prompts of --tokens, and one optimizer "
             "step of LoRA on them; no verdicts."},
    {.name = "matmul", .help = "The model's products one by one over N rows (512,64,16,1), and their gradients."},
    {.name = "all", .help = "All of these but rlstep, as they are by default."},
    {.name = "verify", .words = "[FLAG]...", .max = -1, .help = "Verdicts; its flags stand below.", .rest = true},
    {.name = "serve",
     .words = "[FLAG]...",
     .max = -1,
     .help = "Load on a server; its flags stand below.",
     .rest = true},
};

static const struct args_command *const more[] = {&bench_verify_command, &bench_serve_command, NULL};

const struct args_command bench_command = {
    .name = "bench",
    .usage = "MEASUREMENT (--arch NAME | --model DIR) [FLAG]...\nverify [FLAG]...\nserve [FLAG]...",
    .about = "Prints one JSON object a measurement (docs/formats.md) and, on stderr, a table. Each says what share it "
             "reaches of the limit: what memory and the best matrix product allow, measured in the same run.",
    .flags = flags,
    .n_flags = ARRAY_LEN(flags),
    .subs = measurements,
    .n_subs = ARRAY_LEN(measurements),
    .more = more,
};

int cmd_bench(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "verify") == 0) return bench_verify(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "serve") == 0) return bench_serve(argc - 1, argv + 1);
    struct bench_options o = {.device = "cpu",
                              .dtype = "auto",
                              .context_begin = 256,
                              .context_end = 512,
                              .tokens = 512,
                              .lora_rank = 16,
                              .answers = 16,
                              .new_tokens = 1024};
    const struct args_command *c = &bench_command;
    struct args given;
    if (!args_parse(c, argc, argv, &o, &given)) return given.code;
    for (size_t i = 0; i < ARRAY_LEN(subcommands); i++)
        if (strcmp(subcommands[i].name, given.sub->name) == 0) o.what = subcommands[i].what;
    o.sample_lora = args_has(c, &given, "lora-rank");
    if (!o.what) return args_wrong(c, &given, "this word comes in front of its flags");
    if (!o.arch == !o.model) return args_wrong(c, &given, "expected --arch NAME or --model DIR");
    if (o.adapters && !o.sample_lora)
        return args_wrong(c, &given, "--adapters: expected --lora-rank R, which is theirs, too");
    struct err e = {0};
    return run(&o, &e) == ST_OK ? 0 : args_report(&e);
}
