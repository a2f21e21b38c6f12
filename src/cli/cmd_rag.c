/* kernelrl build-rag-index, kernelrl query-rag-index. */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "cli/cli.h"
#include "generate/generator.h"
#include "io/json.h"
#include "rag/rag.h"
#include "rl/rollout/raicl.h"
#include "verify/verify.h"

/* ---- build --------------------------------------------------------------------------------------------------------*/

static const char build_usage[] =
    "build-rag-index --output DIR [--corpus WHAT]... [--triton-only|--cuda-only] [--model M]\n"
    "                [--sakana-levels 1,2,3] [--include-incorrect] [--count N] [--no-verify] [--batch-size N]\n"
    "                [--query-prefix TEXT] [--device D] [--threads N] [--cache-dir DIR]";
static const char build_help[] =
    "\n"
    "An index of solved problems, of which training and evaluation take examples (prompt_option: raicl).\n"
    "The same command goes on with a build that was interrupted.\n"
    "\n"
    "  --output DIR         folder of the index\n"
    "  --corpus WHAT        kernelbook (Triton, from the Hub), sakana (CUDA, from the Hub), generator (C, needs no\n"
    "                       download), or a .jsonl or .parquet file, or a folder of them, or of `problems generate\n"
    "                       --answers --verify`; may be repeated. Default: kernelbook and sakana\n"
    "  --triton-only        leave out all but Triton; --cuda-only: all but CUDA\n"
    "  --model M            what embeds: a Qwen2 or Qwen3 embedding model, by folder or name on the Hub\n"
    "                       (BAAI/bge-code-v1), or lexical, which needs no weights\n"
    "  --sakana-levels L    KernelBench levels to take of sakana (1,2,3)\n"
    "  --include-incorrect  records that are known to be wrong, too\n"
    "  --count N            problems of the generator (2000)\n"
    "  --no-verify          take the generator's answers without judging them\n"
    "  --batch-size N       records embedded at a time (32)\n"
    "  --query-prefix TEXT  instruction in front of what is asked about; default: the one the model is known for\n"
    "  --device D           cpu, cuda or cuda:N, of the embedding model; RAG_DEVICE overrules it\n"
    "  --threads N          threads (all CPUs)\n"
    "  --cache-dir DIR      where the Hub's files are kept (HF_HUB_CACHE)\n";

enum { CORPORA_MAX = 16, GENERATED_BATCH = 32 };

struct build_args {
    const char *output, *model, *device, *prefix, *levels, *corpus[CORPORA_MAX];
    int n_corpus;
    bool triton, cuda, incorrect, no_verify;
    int64_t count, batch, threads;
    struct corpus_filter filter;
    struct corpus_counts counts;
    const volatile bool *cancel;
};

/* A right answer to each of n problems of the generator, in one of the four fastest styles by turns. Judged, unless v
 * is NULL; only those that pass are taken, with their speed. */
static enum status add_generated(struct build_args *a, const struct generator *g, struct verifier *v, int64_t first,
                                 int n, struct rag_builder *b, struct err *e) {
    struct arena ar = ARENA_INIT;
    struct gen_item items[GENERATED_BATCH];
    struct verify_item w[GENERATED_BATCH] = {0};
    enum status st = ST_OK;
    for (int i = 0; i < n; i++) {
        generator_make(g, 0, (uint64_t)(first + i), &ar, &items[i]);
        const int style = GEN_STYLES - 1 - (int)((first + i) % 4);
        w[i] = (struct verify_item){.problem = &items[i].problem, .source = items[i].answers[style]};
    }
    if (v) st = verify_batch(v, w, (size_t)n, a->cancel, e);
    if (st == ST_OK && a->cancel && *a->cancel) st = FAIL(e, ST_CANCELLED, "interrupted");
    for (int i = 0; i < n && st == ST_OK; i++) {
        a->counts.rows++;
        if (v && w[i].verdict.outcome != OUTCOME_CORRECT) {
            a->counts.incorrect++;
            continue;
        }
        a->counts.taken++;
        const struct rag_record r = {.pytorch_code = items[i].problem.code,
                                     .kernel_code = w[i].source,
                                     .backend = "c",
                                     .source = "generator",
                                     .name = items[i].problem.name,
                                     .speedup = v && w[i].verdict.speedup > 0 ? w[i].verdict.speedup : (double)NAN,
                                     .correct = true};
        st = rag_builder_add(b, &r, e);
    }
    arena_free(&ar);
    return st;
}

static enum status gather_generated(struct build_args *a, struct rag_builder *b, struct err *e) {
    struct generator *g = NULL;
    struct verifier *v = NULL;
    enum status st;
    TRY(generator_open(NULL, &g, e));
    if (!a->no_verify) {
        const struct verify_options vo = {.threads = (int)a->threads, .measure = true};
        TRY_GOTO(verifier_open(&vo, &v, e), out);
    }
    st = ST_OK;
    for (int64_t at = 0; at < a->count && st == ST_OK; at += GENERATED_BATCH) {
        st = add_generated(a, g, v, at, (int)i64_min(GENERATED_BATCH, a->count - at), b, e);
        log_progress("  generator: %lld of %lld problems", (long long)i64_min(at + GENERATED_BATCH, a->count),
                     (long long)a->count);
    }
    log_progress_end();
out:
    verifier_close(v);
    generator_close(g);
    return st;
}

/* A corpus of the Hub that cannot be had is passed over, with a warning: the other one may do. */
static enum status gather(struct build_args *a, struct rag_builder *b, struct err *e) {
    for (int i = 0; i < a->n_corpus; i++) {
        const char *what = a->corpus[i], *backend = corpus_backend(what);
        a->counts = (struct corpus_counts){0};
        if (backend && a->filter.backend && strcmp(backend, a->filter.backend) != 0) continue;
        enum status st = strcmp(what, "generator") == 0
                             ? gather_generated(a, b, e)
                             : corpus_read(what, &a->filter, a->cancel, rag_builder_add, b, &a->counts, e);
        const struct corpus_counts *n = &a->counts;
        if (st != ST_OK && st != ST_CANCELLED && backend && n->rows == 0) {
            log_warn("%s; going on without it", e->msg);
            continue;
        }
        TRY(st);
        log_info("%s: %lld of %lld records (left out: %lld incorrect, %lld empty, %lld too long, %lld of another kind)",
                 what, (long long)n->taken, (long long)n->rows, (long long)n->incorrect, (long long)n->empty,
                 (long long)n->too_long, (long long)n->elsewhere);
    }
    return ST_OK;
}

/* Everything that decides what the index holds; what a file holds is not asked, its name is. */
static char *identity(const struct build_args *a) {
    struct str s = STR_INIT;
    str_addf(&s, "version 1\nmodel %s\nprefix %s\nbackend %s\nlevels %x\nincorrect %d\ncount %lld verify %d\n",
             a->model, a->prefix ? a->prefix : "(known)", a->filter.backend ? a->filter.backend : "all",
             a->filter.sakana_levels, a->incorrect, (long long)a->count, !a->no_verify);
    for (int i = 0; i < a->n_corpus; i++) str_addf(&s, "corpus %s\n", a->corpus[i]);
    return str_steal(&s);
}

static enum status build(struct build_args *a, struct err *e) {
    CLEANUP_FREE char *id = identity(a);
    struct rag_builder *b = NULL;
    struct rag_embedder em = {0};
    struct rag_build_counts n = {0};
    struct pool *pool = pool_create((int)a->threads);
    const bool lexical = strcmp(a->model, RAG_LEXICAL) == 0;
    const double t0 = clock_now_s();
    bool gathered = false;
    enum status st;
    /* First the model: nothing is downloaded for an index that cannot be made. */
    if (!lexical) TRY_GOTO(raicl_embedder(a->model, a->prefix, a->device, pool, a->cancel, &em, e), out);
    TRY_GOTO(fs_mkdirs(a->output, e), out);
    TRY_GOTO(rag_builder_open(a->output, id, &b, &gathered, e), out);
    rag_builder_query_prefix(b, lexical ? NULL : a->prefix);
    if (!gathered) TRY_GOTO(gather(a, b, e), out);
    st = rag_builder_finish(b, a->model, lexical ? NULL : &em, (int)a->batch, a->cancel, &n, e);
    if (st == ST_OK)
        log_info("%s: %lld records by %s (%lld embedded now, %lld duplicates left out), %.1f s", a->output,
                 (long long)n.records, a->model, (long long)n.embedded, (long long)n.duplicates, clock_now_s() - t0);
out:
    rag_builder_close(b);
    if (em.close) em.close(em.ctx);
    pool_destroy(pool);
    return st;
}

static enum status parse_levels(const char *text, uint32_t *out, struct err *e) {
    *out = 0;
    for (const char *p = text; p && *p;) {
        if (*p < '1' || *p > '9' || (p[1] && p[1] != ','))
            return FAIL(e, ST_USAGE, "--sakana-levels: expected levels such as 1,2,3, got \"%s\"", text);
        *out |= 1u << (*p - '0');
        p += p[1] ? 2 : 1;
    }
    return ST_OK;
}

static enum status parse_whole(const char *name, const char *text, int64_t low, int64_t high, int64_t *out,
                               struct err *e) {
    if (parse_i64(text, out) && *out >= low && *out <= high) return ST_OK;
    return FAIL(e, ST_USAGE, "--%s: expected a whole number in [%lld, %lld], got \"%s\"", name, (long long)low,
                (long long)high, text);
}

/* ST_CANCELLED: help was asked for and given. */
static enum status parse_build(int argc, char **argv, struct build_args *a, struct err *e) {
    enum { CORPUS = 256, TRITON, CUDA, LEVELS, INCORRECT, COUNT, NO_VERIFY, PREFIX, DEVICE, THREADS, CACHE, HELP };
    static const struct option options[] = {
        {"output", required_argument, NULL, 'o'},
        {"corpus", required_argument, NULL, CORPUS},
        {"triton-only", no_argument, NULL, TRITON},
        {"cuda-only", no_argument, NULL, CUDA},
        {"model", required_argument, NULL, 'm'},
        {"sakana-levels", required_argument, NULL, LEVELS},
        {"include-incorrect", no_argument, NULL, INCORRECT},
        {"count", required_argument, NULL, COUNT},
        {"no-verify", no_argument, NULL, NO_VERIFY},
        {"batch-size", required_argument, NULL, 'b'},
        {"query-prefix", required_argument, NULL, PREFIX},
        {"device", required_argument, NULL, DEVICE},
        {"threads", required_argument, NULL, THREADS},
        {"cache-dir", required_argument, NULL, CACHE},
        {"help", no_argument, NULL, HELP},
        {NULL, 0, NULL, 0},
    };
    opterr = 0;
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, "o:m:b:h", options, NULL)) != -1;) {
        switch (c) {
        case 'o': a->output = optarg; break;
        case CORPUS:
            if (a->n_corpus == CORPORA_MAX) return FAIL(e, ST_USAGE, "--corpus: at most %d", CORPORA_MAX);
            a->corpus[a->n_corpus++] = optarg;
            break;
        case TRITON: a->triton = true; break;
        case CUDA: a->cuda = true; break;
        case 'm': a->model = optarg; break;
        case LEVELS: a->levels = optarg; break;
        case INCORRECT: a->incorrect = true; break;
        case COUNT: TRY(parse_whole("count", optarg, 1, 1000000, &a->count, e)); break;
        case NO_VERIFY: a->no_verify = true; break;
        case 'b': TRY(parse_whole("batch-size", optarg, 1, 4096, &a->batch, e)); break;
        case PREFIX: a->prefix = optarg; break;
        case DEVICE: a->device = optarg; break;
        case THREADS: TRY(parse_whole("threads", optarg, 1, 1024, &a->threads, e)); break;
        case CACHE: setenv("HF_HUB_CACHE", optarg, 1); break;
        case 'h':
        case HELP: printf("usage: kernelrl %s\n%s", build_usage, build_help); return ST_CANCELLED;
        default: return FAIL(e, ST_USAGE, "bad option or missing value: %s", argv[optind - 1]);
        }
    }
    if (optind < argc) return FAIL(e, ST_USAGE, "unexpected argument \"%s\"", argv[optind]);
    if (!a->output) return FAIL(e, ST_USAGE, "--output: expected the folder of the index");
    if (a->triton && a->cuda) return FAIL(e, ST_USAGE, "--triton-only and --cuda-only leave nothing");
    if (a->n_corpus == 0) {
        a->corpus[a->n_corpus++] = "kernelbook";
        a->corpus[a->n_corpus++] = "sakana";
    }
    a->filter.backend = a->triton ? "triton" : a->cuda ? "cuda" : NULL;
    a->filter.include_incorrect = a->incorrect;
    return parse_levels(a->levels, &a->filter.sakana_levels, e);
}

int cmd_build_rag_index(int argc, char **argv) {
    struct build_args a = {.model = RAG_DEFAULT_MODEL, .count = 2000, .batch = 32, .levels = "1,2,3"};
    struct err e = {0};
    enum status st = parse_build(argc, argv, &a, &e);
    if (st == ST_CANCELLED) return 0;
    if (st == ST_USAGE) {
        args_report(&e);
        return cli_usage(build_usage);
    }
    a.cancel = interrupt_flag();
    if (st == ST_OK) st = build(&a, &e);
    return st == ST_OK ? 0 : args_report(&e);
}

/* ---- query --------------------------------------------------------------------------------------------------------*/

static const char query_usage[] =
    "query-rag-index --index DIR --problem P [--source SRC] [--backend B] [-k N] [--keep-copies]\n"
    "                [--device D] [--threads N] [--full] [--json]";
static const char query_help[] =
    "\n"
    "The solved problems of an index that stand nearest to a problem, best first.\n"
    "\n"
    "  --index DIR    folder of build-rag-index\n"
    "  --problem P    a .py file, or the key of a problem of the source (19_ReLU, 1/19)\n"
    "  --source SRC   builtin, a KernelBench folder, a .jsonl file, ...; default: KERNELBENCH_ROOT, else builtin\n"
    "  --backend B    only records of this backend: c, triton or cuda\n"
    "  -k N           how many (3)\n"
    "  --keep-copies  do not leave out solutions of the problem itself\n"
    "  --device D     cpu, cuda or cuda:N, of the embedding model; RAG_DEVICE overrules it\n"
    "  --full         print modules and kernels, too\n"
    "  --json         one JSON object a line\n";

enum { QUERY_K_MAX = 1000 };

struct query_args {
    const char *index, *problem, *source, *backend, *device;
    int64_t k, threads;
    bool keep, full, json;
};

static void print_example(const struct query_args *a, const struct rag_example *x) {
    struct str s = STR_INIT;
    if (a->json) {
        js_begin(&s, NULL, '{');
        js_put_i64(&s, "id", x->id);
        js_put_f64(&s, "score", (double)x->score);
        js_put_str(&s, "backend", x->r.backend);
        js_put_str(&s, "source", x->r.source);
        js_put_str(&s, "name", x->r.name);
        js_put_f64(&s, "speedup", x->r.speedup);
        js_put_bool(&s, "correct", x->r.correct);
        if (a->full) js_put_str(&s, "pytorch_code", x->r.pytorch_code);
        if (a->full) js_put_str(&s, "kernel_code", x->r.kernel_code);
        js_end(&s, '}');
    } else {
        str_addf(&s, "%.4f  %6lld  %-7s %-12s %s", (double)x->score, (long long)x->id, x->r.backend, x->r.source,
                 x->r.name);
        if (isfinite(x->r.speedup)) str_addf(&s, "  (%.2fx)", x->r.speedup);
        if (!x->r.correct) str_adds(&s, "  (incorrect)");
        if (a->full) str_addf(&s, "\n%s\n%s", x->r.pytorch_code, x->r.kernel_code);
    }
    puts(str_c(&s));
    str_free(&s);
}

static enum status query(const struct query_args *a, struct err *e) {
    struct problem_set set = {0};
    struct rag_index *x = NULL;
    struct arena ar = ARENA_INIT;
    struct pool *pool = pool_create((int)a->threads);
    const bool file = fs_is_file(a->problem);
    enum status st;
    TRY_GOTO(problem_set_load(file ? a->problem : a->source, &set, e), out);
    const struct problem *p = file && set.count == 1 ? &set.items[0] : problem_find(&set, a->problem);
    if (!p) {
        st = FAIL(e, ST_INVALID, "--problem %s: no such file, and no such problem in %s", a->problem,
                  a->source ? a->source : "the default source");
        goto out;
    }
    TRY_GOTO(rag_index_open(a->index, pool, &x, e), out);
    if (strcmp(rag_index_model(x), RAG_LEXICAL) != 0) {
        struct rag_embedder em;
        TRY_GOTO(raicl_embedder(rag_index_model(x), rag_index_query_prefix(x), a->device, pool, NULL, &em, e), out);
        TRY_GOTO(rag_index_embedder(x, em, e), out);
    }
    struct rag_example *found = arena_array(&ar, struct rag_example, a->k);
    const struct rag_query q = {p->code, p->name, a->backend, (int)a->k, a->keep};
    int n;
    const double t0 = clock_now_s();
    TRY_GOTO(rag_retrieve(x, &q, &ar, found, &n, e), out);
    log_info("%d of %lld records in %.1f ms", n, (long long)rag_index_count(x), 1e3 * (clock_now_s() - t0));
    for (int i = 0; i < n; i++) print_example(a, &found[i]);
out:
    rag_index_close(x);
    pool_destroy(pool);
    problem_set_free(&set);
    arena_free(&ar);
    return st;
}

int cmd_query_rag_index(int argc, char **argv) {
    enum { SOURCE = 256, BACKEND, KEEP, DEVICE, THREADS, FULL, JSON, HELP };
    static const struct option options[] = {
        {"index", required_argument, NULL, 'i'},     {"problem", required_argument, NULL, 'p'},
        {"source", required_argument, NULL, SOURCE}, {"backend", required_argument, NULL, BACKEND},
        {"k", required_argument, NULL, 'k'},         {"keep-copies", no_argument, NULL, KEEP},
        {"device", required_argument, NULL, DEVICE}, {"threads", required_argument, NULL, THREADS},
        {"full", no_argument, NULL, FULL},           {"json", no_argument, NULL, JSON},
        {"help", no_argument, NULL, HELP},           {NULL, 0, NULL, 0},
    };
    struct query_args a = {.k = 3};
    struct err e = {0};
    enum status st = ST_OK;
    opterr = 0;
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, "i:p:k:h", options, NULL)) != -1 && st == ST_OK;) {
        switch (c) {
        case 'i': a.index = optarg; break;
        case 'p': a.problem = optarg; break;
        case SOURCE: a.source = optarg; break;
        case BACKEND: a.backend = optarg; break;
        case 'k': st = parse_whole("k", optarg, 1, QUERY_K_MAX, &a.k, &e); break;
        case KEEP: a.keep = true; break;
        case DEVICE: a.device = optarg; break;
        case THREADS: st = parse_whole("threads", optarg, 1, 1024, &a.threads, &e); break;
        case FULL: a.full = true; break;
        case JSON: a.json = true; break;
        case 'h':
        case HELP: printf("usage: kernelrl %s\n%s", query_usage, query_help); return 0;
        default: return cli_wrong(query_usage, "query-rag-index: bad option or missing value: %s", argv[optind - 1]);
        }
    }
    if (st == ST_OK && optind < argc)
        return cli_wrong(query_usage, "query-rag-index: unexpected argument \"%s\"", argv[optind]);
    if (st == ST_OK && (!a.index || !a.problem))
        return cli_wrong(query_usage, "query-rag-index: --index and --problem are needed");
    if (st == ST_OK) st = query(&a, &e);
    return st == ST_OK ? 0 : args_report(&e);
}
