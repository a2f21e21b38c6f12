/* kernelrl bench: how fast the engine is here, beside what the machine could do. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench/bench.h"
#include "cli/cli.h"
#include "io/json.h"

static const char usage[] =
    "bench decode|prefill|train|train-lora|train-full|rlstep|matmul|all (--arch NAME | --model DIR) "
    "[--random-weights]\n"
    "       [--batch N,N,...] [--context FROM-TO] [--tokens N] [--lora-rank R] [--adapters N] [--train-tokens N]\n"
    "       [--answers N] [--new-tokens N] [--activation-memory BYTES] [--repeat N] [--dtype TYPE] [--numerics "
    "exact|fast] [--threads N]\n"
    "       [--device NAME]\n"
    "bench verify [--device cpu|cuda:N] [--backend cuda,triton,cuda_native] [--answers N] [--threads N] [--rows N]\n"
    "  [--allow-weaker]: verdicts a second, or the seconds of single ones (GPU; --answers 0: of these\n"
    "  alone, --rows 0: of none)\n"
    "Prints one JSON object a measurement (docs/formats.md) and, on stderr, a table. Each says what share it reaches "
    "of\n"
    "the limit: what memory and the best matrix product allow, measured in the same run.\n"
    "  decode   steps of N sequences at once (1,16,64) while their context grows (256-512 tokens)\n"
    "  prefill  prompts of --tokens (512), N at once (1)\n"
    "  train    one optimizer step over N (8) sequences of --tokens (512), and the most memory it took: of LoRA\n"
    "           (train-lora; rank 16) and of all parameters (train-full), in micro-batches of --train-tokens rows "
    "(1024);\n"
    "           --activation-memory as in `train`\n"
    "  rlstep   --answers (16) answers of exactly --new-tokens (1024) tokens to each of N (8) prompts of --tokens, and "
    "one\n"
    "           optimizer step of LoRA on them, in micro-batches of --train-tokens rows (on a GPU a prompt's, or what "
    "there is\n           memory for); no verdicts\n"
    "  matmul   the model's products one by one over N rows (512,64,16,1), and their gradients\n"
    "  all      all of these but rlstep, as they are in brackets\n"
    "--arch is qwen2.5-0.5b, qwen2.5-1.5b, qwen2.5-7b or tiny, with random weights in any case; of a --model\n"
    "--random-weights takes the shape alone. --repeat: measured prefills (7) or training steps (3), after one to warm "
    "up.\n"
    "--dtype is f32, bf16 or auto, as in `train`. With --lora-rank decode and prefill run with an adapter,\n"
    "with --adapters N, too, with N of them, which the sequences share evenly.";

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

static enum status open_model(struct bench *b, bool frozen, struct model **m, struct err *e) {
    const struct bench_options *o = b->o;
    const struct model_options mo = {
        .dtype = o->dtype, .frozen = frozen, .activation_memory = o->activation_memory, .repeat_random = true};
    if (o->model && !o->random) return model_load(o->model, &mo, b->be, m, e);
    if (o->model) {
        CLEANUP_STR struct str path = STR_INIT;
        str_addf(&path, "%s/config.json", o->model);
        return model_init(path.p, 1, &mo, b->be, m, e);
    }
    if (bench_arch(o->arch)) return model_init(bench_arch(o->arch), 1, &mo, b->be, m, e);
    return FAIL(e, ST_USAGE, "--arch: expected qwen2.5-0.5b, qwen2.5-1.5b, qwen2.5-7b or tiny, got \"%s\"", o->arch);
}

static enum status run_frozen(struct bench *b, struct err *e) {
    const int what = b->o->what;
    struct model *m;
    TRY(open_model(b, true, &m, e));
    const enum dtype dt = strcmp(model_dtype(m), "bf16") == 0 ? DT_BF16 : DT_F32;
    enum status st = bench_limits_raise(b, model_cfg(m), dt, e);
    if (st == ST_OK)
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
    const enum status st = bench_train(b, m, TRAIN_FULL, e);
    model_free(m);
    return st;
}

static enum status run(const struct bench_options *o, struct err *e) {
    struct bench b = {.o = o, .pool = pool_create(o->threads), .name = o->arch ? o->arch : o->model};
    enum status st = backend_open(o->device, b.pool, &b.be, e);
    if (st == ST_OK) b.be->fast = o->fast;
    if (st == ST_OK && o->what & ~BENCH_TRAIN_FULL) st = run_frozen(&b, e);
    if (st == ST_OK && o->what & BENCH_TRAIN_FULL) st = run_full(&b, e);
    if (b.be) b.be->close(b.be);
    pool_destroy(b.pool);
    return st;
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

/* False, said on stderr, unless text is a whole number from low to high. */
static bool number(const char *name, const char *text, int64_t low, int64_t high, int64_t *out) {
    if (parse_i64(text, out) && *out >= low && *out <= high) return true;
    fprintf(stderr, "kernelrl: bench: %s: expected a whole number from %lld to %lld, got \"%s\"\n", name,
            (long long)low, (long long)high, text);
    return false;
}

static bool number_list(const char *text, struct bench_options *o) {
    for (o->n_batch = 0; o->n_batch < BENCH_LIST;) {
        const size_t n = strcspn(text, ",");
        CLEANUP_FREE char *one = xstrndup(text, n);
        int64_t v;
        if (!number("--batch", one, 1, 1 << 16, &v)) return false;
        o->batch[o->n_batch++] = (int)v;
        if (!text[n]) return true;
        text += n + 1;
    }
    fprintf(stderr, "kernelrl: bench: --batch: expected at most %d numbers\n", BENCH_LIST);
    return false;
}

static bool context_range(const char *text, struct bench_options *o) {
    const size_t n = strcspn(text, "-");
    CLEANUP_FREE char *from = xstrndup(text, n);
    if (!text[n]) {
        fprintf(stderr, "kernelrl: bench: --context: expected FROM-TO, got \"%s\"\n", text);
        return false;
    }
    return number("--context", from, 1, 1 << 20, &o->context_begin) &&
           number("--context", text + n + 1, o->context_begin + 1, 1 << 20, &o->context_end);
}

enum {
    OPT_BATCH = 256,
    OPT_CONTEXT,
    OPT_TOKENS,
    OPT_RANK,
    OPT_MEMORY,
    OPT_MICRO,
    OPT_NUMERICS,
    OPT_ANSWERS,
    OPT_NEW,
    OPT_ADAPTERS,
    OPT_REPEAT
};

/* Which measurements an option belongs to: given for others it would mean nothing. */
static const struct {
    int opt;
    const char *name;
    int what;
} belongs[] = {
    {OPT_CONTEXT, "--context", BENCH_DECODE},
    {OPT_TOKENS, "--tokens", BENCH_PREFILL | BENCH_TRAIN_LORA | BENCH_TRAIN_FULL | BENCH_RL},
    {OPT_REPEAT, "--repeat", BENCH_PREFILL | BENCH_TRAIN_LORA | BENCH_TRAIN_FULL | BENCH_RL},
    {OPT_RANK, "--lora-rank", BENCH_DECODE | BENCH_PREFILL | BENCH_TRAIN_LORA | BENCH_RL},
    {OPT_ADAPTERS, "--adapters", BENCH_DECODE | BENCH_PREFILL},
    {OPT_MICRO, "--train-tokens", BENCH_TRAIN_LORA | BENCH_TRAIN_FULL | BENCH_RL},
    {OPT_MEMORY, "--activation-memory", BENCH_TRAIN_LORA | BENCH_TRAIN_FULL | BENCH_RL},
    {OPT_ANSWERS, "--answers", BENCH_RL},
    {OPT_NEW, "--new-tokens", BENCH_RL},
};

static bool check(const char *name, const struct bench_options *o, const bool *given) {
    if (!o->arch == !o->model) {
        fprintf(stderr, "kernelrl: bench: expected --arch NAME or --model DIR\n");
        return false;
    }
    if (given[0] && strcmp(name, "all") == 0) {
        fprintf(stderr, "kernelrl: bench: --batch is for one measurement, not for all\n");
        return false;
    }
    for (size_t i = 0; i < ARRAY_LEN(belongs); i++)
        if (given[belongs[i].opt - OPT_BATCH] && !(o->what & belongs[i].what)) {
            fprintf(stderr, "kernelrl: bench: %s means nothing to %s\n", belongs[i].name, name);
            return false;
        }
    if (o->adapters && !o->sample_lora) {
        fprintf(stderr, "kernelrl: bench: --adapters: expected --lora-rank R, which is theirs, too\n");
        return false;
    }
    if (backend_device_valid(o->device)) return true;
    fprintf(stderr, "kernelrl: bench: --device: expected cpu, cuda or cuda:N, got \"%s\"\n", o->device);
    return false;
}

int cmd_bench(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "verify") == 0) return bench_verify(argc - 1, argv + 1);
    static const struct option longopts[] = {
        {"arch", required_argument, NULL, 'a'},
        {"model", required_argument, NULL, 'm'},
        {"random-weights", no_argument, NULL, 'w'},
        {"dtype", required_argument, NULL, 'y'},
        {"device", required_argument, NULL, 'd'},
        {"threads", required_argument, NULL, 't'},
        {"batch", required_argument, NULL, OPT_BATCH},
        {"context", required_argument, NULL, OPT_CONTEXT},
        {"tokens", required_argument, NULL, OPT_TOKENS},
        {"lora-rank", required_argument, NULL, OPT_RANK},
        {"adapters", required_argument, NULL, OPT_ADAPTERS},
        {"train-tokens", required_argument, NULL, OPT_MICRO},
        {"numerics", required_argument, NULL, OPT_NUMERICS},
        {"repeat", required_argument, NULL, OPT_REPEAT},
        {"answers", required_argument, NULL, OPT_ANSWERS},
        {"new-tokens", required_argument, NULL, OPT_NEW},
        {"activation-memory", required_argument, NULL, OPT_MEMORY},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    struct bench_options o = {.device = "cpu",
                              .dtype = "auto",
                              .context_begin = 256,
                              .context_end = 512,
                              .tokens = 512,
                              .lora_rank = 16,
                              .answers = 16,
                              .new_tokens = 1024};
    bool given[OPT_REPEAT - OPT_BATCH + 1] = {false};
    int64_t v = 0;
    int c;
    optind = 1;
    while ((c = getopt_long(argc, argv, "", longopts, NULL)) != -1) {
        bool ok = true;
        if (c >= OPT_BATCH) given[c - OPT_BATCH] = true;
        switch (c) {
        case 'a': o.arch = optarg; break;
        case 'm': o.model = optarg; break;
        case 'w': o.random = true; break;
        case 'd': o.device = optarg; break;
        case 'y':
            o.dtype = optarg;
            ok = cli_dtype(optarg);
            break;
        case 't':
            ok = number("--threads", optarg, 0, 256, &v);
            o.threads = (int)v;
            break;
        case OPT_BATCH: ok = number_list(optarg, &o); break;
        case OPT_CONTEXT: ok = context_range(optarg, &o); break;
        case OPT_TOKENS: ok = number("--tokens", optarg, 1, 1 << 20, &o.tokens); break;
        case OPT_ANSWERS:
            ok = number("--answers", optarg, 1, 1024, &v);
            o.answers = (int)v;
            break;
        case OPT_NEW: ok = number("--new-tokens", optarg, 1, 1 << 20, &o.new_tokens); break;
        case OPT_REPEAT: ok = number("--repeat", optarg, 1, 1000, &o.repeat); break;
        case OPT_MICRO: ok = number("--train-tokens", optarg, 1, 1 << 20, &o.train_tokens); break;
        case OPT_MEMORY: ok = number("--activation-memory", optarg, 0, INT64_MAX, &o.activation_memory); break;
        case OPT_RANK:
            ok = number("--lora-rank", optarg, 1, 1024, &v);
            o.lora_rank = (int)v;
            o.sample_lora = true;
            break;
        case OPT_ADAPTERS:
            ok = number("--adapters", optarg, 1, 64, &v);
            o.adapters = (int)v;
            break;
        case OPT_NUMERICS:
            o.fast = strcmp(optarg, "fast") == 0;
            if (!(ok = o.fast || strcmp(optarg, "exact") == 0))
                fprintf(stderr, "kernelrl: bench: --numerics: expected exact or fast, got \"%s\"\n", optarg);
            break;
        case 'h': printf("usage: kernelrl %s\n", usage); return 0;
        default: return cli_usage(usage);
        }
        if (!ok) return 2;
    }
    if (optind + 1 != argc) return cli_usage(usage);
    for (size_t i = 0; i < ARRAY_LEN(subcommands); i++)
        if (strcmp(subcommands[i].name, argv[optind]) == 0) o.what = subcommands[i].what;
    if (!o.what) return cli_usage(usage);
    if (!check(argv[optind], &o, given)) return 2;
    struct err e = {0};
    return run(&o, &e) == ST_OK ? 0 : args_report(&e);
}
