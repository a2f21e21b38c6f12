/* kernelrl build-rag-index, kernelrl query-rag-index. */
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
#include "cli/verify_hosts.h"
#include "generate/find.h"
#include "generate/generator.h"
#include "io/json.h"
#include "rag/rag.h"
#include "rl/rollout/raicl.h"
#include "verify/verify.h"

/* ---- build --------------------------------------------------------------------------------------------------------*/

enum { CORPORA_MAX = 16, GENERATED_BATCH = 32 };

struct build_args {
    const char *output, *model, *device, *prefix, *corpus[CORPORA_MAX];
    int n_corpus;
    bool triton, cuda, incorrect, no_verify;
    int64_t count, batch, threads;
    struct corpus_filter filter;
    struct corpus_counts counts;
    const volatile bool *cancel;
    struct pool_options pool;
};

/* A right answer to each of n problems of the generator, in one of the four fastest styles by turns. Judged, unless v
 * is NULL; only those that pass are taken, with their speed. */
static enum status add_generated(struct build_args *a, const struct generator *g, const struct judge *v, int64_t first,
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
    if (v) st = v->batch(v->ctx, w, (size_t)n, a->cancel, e);
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
    struct judge_owner v = {0};
    enum status st;
    TRY(generator_open(NULL, &g, e));
    if (!a->no_verify) {
        const struct verify_options vo = {.threads = (int)a->threads, .measure = true};
        TRY_GOTO(judge_open(&a->pool, &vo, a->cancel, &v, e), out);
    }
    st = ST_OK;
    for (int64_t at = 0; at < a->count && st == ST_OK; at += GENERATED_BATCH) {
        st =
            add_generated(a, g, a->no_verify ? NULL : &v.judge, at, (int)i64_min(GENERATED_BATCH, a->count - at), b, e);
        log_progress("  generator: %lld of %lld problems", (long long)i64_min(at + GENERATED_BATCH, a->count),
                     (long long)a->count);
    }
    log_progress_end();
out:
    judge_close(&v);
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

/* Everything that decides what the index holds. It covers the names of the files, not their contents. */
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

static enum status take_corpus(void *values, const char *text, struct err *e) {
    struct build_args *a = values;
    if (a->n_corpus == CORPORA_MAX) return FAIL(e, ST_USAGE, "at most %d", CORPORA_MAX);
    a->corpus[a->n_corpus++] = text;
    return ST_OK;
}

/* Sets a bit for each level of "1,2,3". */
static enum status take_levels(void *values, const char *text, struct err *e) {
    uint32_t *out = &((struct build_args *)values)->filter.sakana_levels;
    *out = 0;
    for (const char *p = text; *p;) {
        if (*p < '1' || *p > '9' || (p[1] && p[1] != ','))
            return FAIL(e, ST_USAGE, "expected levels such as 1,2,3, got \"%s\"", text);
        *out |= 1u << (*p - '0');
        p += p[1] ? 2 : 1;
    }
    return ST_OK;
}

static enum status take_cache(void *values, const char *text, struct err *e) {
    (void)values;
    (void)e;
    setenv("HF_HUB_CACHE", text, 1);
    return ST_OK;
}

#define A struct build_args
static const struct args_flag build_flags[] = {
    FLAG_SECTION("What goes in"),
    FLAG_TEXT(A, output, "output", "DIR", NULL, "The index is in this folder.", .letter = 'o'),
    FLAG_CALL(
        take_corpus, "corpus", "WHAT", "kernelbook and sakana",
        "A source of records: kernelbook (Triton, from the Hub), sakana (CUDA, from the Hub), generator (C, needs "
        "no download), or a .jsonl or .parquet file, or a folder of them, or of `problems generate --answers "
        "--verify`.",
        .repeats = true),
    FLAG_BOOL(A, triton, "triton-only", "All but Triton is left out."),
    FLAG_BOOL(A, cuda, "cuda-only", "All but CUDA is left out."),
    FLAG_CALL(take_levels, "sakana-levels", "L,L,...", "1,2,3", "These KernelBench levels are taken of sakana."),
    FLAG_BOOL(A, incorrect, "include-incorrect", "Records that are known to be wrong are taken, too."),
    FLAG_INT(A, count, "count", "N", 1, 1000000, "2000", "The generator makes so many problems."),
    FLAG_BOOL(A, no_verify, "no-verify", "The generator's answers are taken without judging them."),
    VERIFY_HOSTS_FLAGS(A, pool),
    FLAG_SECTION("Embedding"),
    FLAG_TEXT(A, model, "model", "M", RAG_DEFAULT_MODEL,
              "What embeds: a Qwen2 or Qwen3 embedding model, by folder or name on the Hub, or lexical, which needs no "
              "weights.",
              .letter = 'm'),
    FLAG_INT(A, batch, "batch-size", "N", 1, 4096, "32", "So many records are embedded at a time.", .letter = 'b'),
    FLAG_TEXT(A, prefix, "query-prefix", "TEXT", "the one the model is known for",
              "This instruction stands in front of what is asked about."),
    FLAG_TEXT(A, device, "device", "D", NULL,
              "The embedding model is on cpu, cuda or cuda:N; RAG_DEVICE overrules it."),
    FLAG_INT(A, threads, "threads", "N", 1, 1024, "all CPUs", "So many threads work."),
    FLAG_CALL(take_cache, "cache-dir", "DIR", "HF_HUB_CACHE", "The Hub's files are kept there."),
};
#undef A

const struct args_command build_rag_index_command = {
    .name = "build-rag-index",
    .usage = "--output DIR [--corpus WHAT]... [FLAG]...",
    .about = "Makes an index of solved problems, of which training and evaluation take examples (prompt_option: "
             "raicl). The same command goes on with a build that was interrupted.",
    .flags = build_flags,
    .n_flags = ARRAY_LEN(build_flags),
};

int cmd_build_rag_index(int argc, char **argv) {
    const struct args_command *c = &build_rag_index_command;
    struct build_args a = {
        .model = RAG_DEFAULT_MODEL, .count = 2000, .batch = 32, .filter = {.sakana_levels = 1 << 1 | 1 << 2 | 1 << 3}};
    struct args given;
    struct err e = {0};
    if (!args_parse(c, argc, argv, &a, &given)) return given.code;
    if (!a.output) return args_wrong(c, &given, "--output: expected the folder of the index");
    if (a.triton && a.cuda) return args_wrong(c, &given, "--triton-only and --cuda-only leave nothing");
    if (a.n_corpus == 0) {
        a.corpus[a.n_corpus++] = "kernelbook";
        a.corpus[a.n_corpus++] = "sakana";
    }
    a.filter.backend = a.triton ? "triton" : a.cuda ? "cuda" : NULL;
    a.filter.include_incorrect = a.incorrect;
    a.cancel = interrupt_flag();
    return build(&a, &e) == ST_OK ? 0 : args_report(&e);
}

/* ---- query --------------------------------------------------------------------------------------------------------*/

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
    const struct problem *p;
    enum status st = problem_named(&set, a->source, a->problem, &p, e);
    if (st != ST_OK) {
        err_note(e, "--problem");
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

#define A struct query_args
static const struct args_flag query_flags[] = {
    FLAG_SECTION("What is asked"),
    FLAG_TEXT(A, index, "index", "DIR", NULL, "The folder of build-rag-index.", .letter = 'i'),
    FLAG_TEXT(A, problem, "problem", "P", NULL,
              "A .py file, or the key of a problem: one of the source (19_ReLU, 1/19) or generated/SEED_INDEX.",
              .letter = 'p'),
    FLAG_TEXT(A, source, "source", "SRC", "KERNELBENCH_ROOT, else builtin",
              "Problems come from there: builtin, a KernelBench folder, a .jsonl file and others."),
    FLAG_TEXT(A, backend, "backend", "B", NULL, "Only records of this backend are looked at: c, triton or cuda."),
    FLAG_INT(A, k, "k", "N", 1, QUERY_K_MAX, "3", "So many are found.", .letter = 'k'),
    FLAG_BOOL(A, keep, "keep-copies", "Solutions of the problem itself are not left out."),
    FLAG_SECTION("Device"),
    FLAG_TEXT(A, device, "device", "D", NULL,
              "The embedding model is on cpu, cuda or cuda:N; RAG_DEVICE overrules it."),
    FLAG_INT(A, threads, "threads", "N", 1, 1024, "all CPUs", "So many threads work."),
    FLAG_SECTION("Output"),
    FLAG_BOOL(A, full, "full", "Modules and kernels are printed, too."),
    FLAG_BOOL(A, json, "json", "Each one is a JSON object a line."),
};

const struct args_command query_rag_index_command = {
    .name = "query-rag-index",
    .usage = "--index DIR --problem P [FLAG]...",
    .about = "Prints the solved problems of an index that stand nearest to a problem, best first.",
    .flags = query_flags,
    .n_flags = ARRAY_LEN(query_flags),
};

int cmd_query_rag_index(int argc, char **argv) {
    struct query_args a = {.k = 3};
    struct args given;
    struct err e = {0};
    if (!args_parse(&query_rag_index_command, argc, argv, &a, &given)) return given.code;
    if (!a.index || !a.problem) return args_wrong(&query_rag_index_command, &given, "--index and --problem are needed");
    return query(&a, &e) == ST_OK ? 0 : args_report(&e);
}
