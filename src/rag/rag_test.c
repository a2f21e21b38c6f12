/* Retrieval: what is read of a module, the lexical embedding, exact search, corpora, and an index from end to end. */
#include "rag/rag.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fs.h"
#include "base/home.h"
#include "base/rng.h"
#include "base/str.h"
#include "io/json.h"
#include "model/model.h"
#include "rag/embedder.h"
#include "rag/flat.h"
#include "rag/lexical.h"
#include "tensor/backend.h"
#include "text/tokenizer.h"

static struct err e;
static char dir[] = "/tmp/kernelrl_rag_XXXXXX";

static void ok(enum status st) {
    if (st != ST_OK) fail_msg("%s", e.msg);
}
static void refused(enum status st, const char *part) {
    assert_int_not_equal(st, ST_OK);
    if (!strstr(e.msg, part)) fail_msg("\"%s\" lacks \"%s\"", e.msg, part);
}
static char *path_of(const char *name) {
    static char path[4][300];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}
static char *put(const char *name, const char *text) {
    char *path = path_of(name);
    ok(fs_write_atomic(path, text, strlen(text), &e));
    return path;
}

/* ---- modules ------------------------------------------------------------------------------------------------------*/

#define MODULE(members, body)                                                                                     \
    "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\nclass Model(nn.Module):\n"           \
    "    def __init__(self, n=64):\n        super().__init__()\n" members "    def forward(self, x):\n" body "\n" \
    "def get_inputs():\n    return [torch.rand(16, 1024)]\n"

static void ops_are(const char *code, const char *want) {
    struct arena a = ARENA_INIT;
    struct module_text m;
    struct str s = STR_INIT;
    module_text_read(code, strlen(code), &a, &m);
    for (int i = 0; i < m.n_ops; i++) str_addf(&s, "%s%s", i ? " " : "", m.ops[i]);
    assert_string_equal(str_c(&s), want);
    str_free(&s);
    arena_free(&a);
}

static void operators(void **state) {
    (void)state;
    /* One computation in many spellings. */
    ops_are(MODULE("        self.fc = nn.Linear(64, 32)\n", "        return F.relu(self.fc(x))\n"), "linear relu");
    ops_are(MODULE("        self.fc = nn.Linear(64, 32)\n        self.act = nn.ReLU()\n",
                   "        x = self.fc(x)\n        x = self.act(x)  # relu\n        return x\n"),
            "linear relu");
    ops_are(
        MODULE("        self.net = nn.Sequential(\n            nn.Linear(64, 32),\n            nn.ReLU(),\n        )\n",
               "        return self.net(x)\n"),
        "linear relu");
    ops_are(MODULE("        self.fc = nn.Linear(64, 32)\n        self.act = F.relu\n",
                   "        return self.act(self.fc(x.view(x.size(0) * 2, -1)))\n"),
            "linear relu");
    ops_are(MODULE("        self.w = nn.Parameter(torch.rand(4))\n",
                   "        return torch.softmax(x @ self.w * 0.5, dim=-1)\n"),
            "matmul mul softmax");
    ops_are(
        "class Block(nn.Module):\n    def __init__(self):\n        self.a = nn.Conv2d(1, 2, 3)\n"
        "    def forward(self, x):\n        return torch.relu(self.a(x))\n" MODULE(
            "        self.one = Block()\n        self.two = Block()\n", "        return self.two(self.one(x)) + x\n"),
        "conv2d relu conv2d relu add");
    ops_are("", "");
    ops_are("no python ((( at all '", "");
    ops_are("class Model:\n def forward(self, x):\n  return ((((", "");

    /* Any bytes at all. */
    struct arena a = ARENA_INIT;
    struct rng r = rng_make(3, 1);
    for (int i = 0; i < 300; i++) {
        char bytes[200];
        static const char alphabet[] = "class def forward(self).=+*@\"'\n\\#[]{},:_x1";
        const size_t n = rng_below(&r, sizeof bytes);
        for (size_t k = 0; k < n; k++)
            bytes[k] = i % 2 ? (char)rng_next(&r) : alphabet[rng_below(&r, sizeof alphabet - 1)];
        struct module_text m;
        module_text_read(bytes, n, &a, &m);
        assert_true(m.n_ops <= MODULE_OPS_MAX);
        arena_reset(&a);
    }
    arena_free(&a);
}

static void similarity(void **state) {
    (void)state;
    struct arena a = ARENA_INIT;
    struct module_text x, resized, other;
    static const char one[] = MODULE("        self.fc = nn.Linear(64, 32)\n", "        return F.relu(self.fc(x))\n"),
                      two[] = MODULE("        self.fc = nn.Linear(128, 8)  # other sizes\n",
                                     "\n        return F.relu( self.fc(x) )\n"),
                      three[] = MODULE("        self.norm = nn.LayerNorm(64)\n        self.p = 0.5\n",
                                       "        y = self.norm(x) * self.p\n        return torch.cumsum(y, dim=1)\n");
    module_text_read(one, strlen(one), &a, &x);
    module_text_read(two, strlen(two), &a, &resized);
    module_text_read(three, strlen(three), &a, &other);
    assert_true(module_text_similarity(&x, &resized) == 1.0);
    assert_true(module_text_similarity(&x, &other) < MODULE_COPY_SIMILARITY);
    assert_true(module_text_ops_similarity(&x, &resized) == 1.0);
    assert_true(module_text_ops_similarity(&x, &other) == 0.0);
    assert_true(module_text_is_copy(&x, &resized));
    assert_false(module_text_is_copy(&x, &other));

    struct lexical *l = xcalloc(1, sizeof *l), *back = xcalloc(1, sizeof *back);
    float v[3][LEXICAL_DIM], again[LEXICAL_DIM];
    lexical_count(l, &x);
    lexical_count(l, &other);
    ok(lexical_save(l, path_of("lexical.bin"), &e));
    ok(lexical_load(path_of("lexical.bin"), back, &e));
    lexical_embed(l, &x, v[0]);
    lexical_embed(l, &resized, v[1]);
    lexical_embed(l, &other, v[2]);
    lexical_embed(back, &x, again);
    assert_memory_equal(again, v[0], sizeof again);
    double dot[3] = {0};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < LEXICAL_DIM; k++) dot[i] += (double)v[0][k] * (double)v[i][k];
    assert_true(dot[0] > 0.9999 && dot[0] < 1.0001 && dot[1] > 0.999 && dot[2] < 0.7);
    truncate(path_of("lexical.bin"), 1000);
    refused(lexical_load(path_of("lexical.bin"), back, &e), "lexical.bin: 1000 bytes");
    free(l);
    free(back);
    arena_free(&a);
}

/* ---- exact search -------------------------------------------------------------------------------------------------*/

static struct flat *index_of(const float *v, int64_t n, int dim, struct pool *pool) {
    struct flat *f;
    ok(fs_write_atomic(path_of("rows"), v, (size_t)n * (size_t)dim * sizeof *v, &e));
    ok(flat_write(path_of("i.faiss"), path_of("rows"), n, dim, &e));
    ok(flat_open(path_of("i.faiss"), pool, &f, &e));
    assert_int_equal(flat_count(f), n);
    assert_int_equal(flat_dim(f), dim);
    return f;
}

static const float *sorting;
static int64_t best_first(int64_t x, int64_t y) {
    return sorting[x] != sorting[y] ? (sorting[x] > sorting[y] ? -1 : 1) : x - y;
}
static int compare_ids(const void *a, const void *b) {
    const int64_t d = best_first(*(const int64_t *)a, *(const int64_t *)b);
    return (d > 0) - (d < 0);
}

/* Against sorting all products. */
static void finds_the_best(struct flat *f, const float *v, const float *query, int k, const uint8_t *allowed) {
    const int64_t n = flat_count(f);
    const int dim = flat_dim(f);
    CLEANUP_FREE float *score = xmalloc((size_t)n * sizeof *score + 1);
    CLEANUP_FREE int64_t *id = xmalloc((size_t)n * sizeof *id + 1);
    CLEANUP_FREE struct flat_hit *hits = xmalloc((size_t)k * sizeof *hits);
    int64_t m = 0;
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int d = 0; d < dim; d++) sum += (double)v[i * dim + d] * (double)query[d];
        score[i] = (float)sum;
        if (!allowed || allowed[i]) id[m++] = i;
    }
    sorting = score;
    qsort(id, (size_t)m, sizeof *id, compare_ids);
    const int found = flat_search(f, query, k, allowed, hits);
    assert_int_equal(found, i64_min(k, m));
    for (int i = 0; i < found; i++) {
        assert_int_equal(hits[i].id, id[i]);
        assert_true(hits[i].score == score[id[i]]);
    }
}

static void search_is_exact(const float *v, int64_t n, int dim, const float *query, int k, const uint8_t *allowed,
                            struct pool *pool) {
    struct flat *f = index_of(v, n, dim, pool);
    finds_the_best(f, v, query, k, allowed);
    flat_close(f);
}

/* Numbers of kinds that roundings, norms and comparisons stumble over. */
enum hard { NORMAL, TIES, ZEROS, COPIES, HUGE_ONES, TINY, LENGTHS, OUTLIERS, ONE_SIGN, NEAR, HARD_KINDS };
static void hard_rows(enum hard kind, float *v, int64_t n, int dim, struct rng *r) {
    for (int64_t i = 0; i < n; i++) {
        const float length = powf(10, (float)rng_normal(r) * 8);
        for (int d = 0; d < dim; d++) {
            float *x = &v[i * dim + d], normal = (float)rng_normal(r);
            switch (kind) {
            case TIES: *x = (float)rng_below(r, 3) - 1; break;
            case ZEROS: *x = rng_below(r, (uint64_t)dim) ? 0 : normal; break;
            case COPIES: *x = i < 5 ? normal : v[i % 5 * dim + d]; break;
            case HUGE_ONES: *x = normal * 1e37f; break;
            case TINY: *x = normal * 1e-44f; break;
            case LENGTHS: *x = normal * length; break;
            case OUTLIERS: *x = d % 97 ? normal : normal * 1000; break;
            case ONE_SIGN: *x = -fabsf(normal); break;
            case NEAR: *x = i < 2 ? normal : v[i % 2 * dim + d] * (1 + 1e-7f * (float)(i % 4)); break;
            case NORMAL:
            case HARD_KINDS: *x = normal; break;
            }
        }
    }
}

static void hard_searches(void **state) {
    (void)state;
    enum { N = 150, D = 1100 };
    static const int dims[] = {1, 2, 7, 64, 65, 513, D};
    static const char *const cpus[] = {"", "avx2", "reference"};
    static float v[N * D], q[4 * D];
    struct rng r = rng_make(11, 0);
    for (enum hard kind = NORMAL; kind < HARD_KINDS; kind++)
        for (size_t i = 0; i < ARRAY_LEN(dims); i++) {
            const int dim = dims[i];
            hard_rows(kind, v, N, dim, &r);
            hard_rows(kind, q, 2, dim, &r);
            hard_rows(NORMAL, q + 2 * dim, 1, dim, &r);
            memcpy(q + 3 * dim, v + 17 * dim, (size_t)dim * sizeof *q);
            flat_close(index_of(v, N, dim, NULL));
            for (size_t c = 0; c < ARRAY_LEN(cpus); c++) {
                struct flat *f;
                setenv("KERNELRL_CPU", cpus[c], 1);
                ok(flat_open(path_of("i.faiss"), NULL, &f, &e));
                for (int k = 0; k < 4; k++) {
                    finds_the_best(f, v, q + k * dim, 1, NULL);
                    finds_the_best(f, v, q + k * dim, 20, NULL);
                }
                flat_close(f);
            }
            unsetenv("KERNELRL_CPU");
        }
    /* All that tells the rows apart is lost when the query is rounded; the rows themselves are not rounded. */
    memset(q, 0, sizeof q);
    for (int d = 0; d < 64; d++) q[d] = d ? 0.001f * (float)rng_normal(&r) : 1;
    for (int i = 0; i < N; i++)
        for (int d = 0; d < 64; d++) v[i * 64 + d] = d == 0 ? 0 : rng_below(&r, 2) ? 127 : -127;
    search_is_exact(v, N, 64, q, 20, NULL, NULL);
}

/* What the planes are for: few vectors are read in full, even where no vector stands near. */
static void few_are_read(void **state) {
    (void)state;
    enum { N = 4000, D = 512 };
    static float v[N * D], q[D];
    struct rng r = rng_make(12, 0);
    hard_rows(NORMAL, v, N, D, &r);
    hard_rows(NORMAL, q, 1, D, &r);
    struct flat *f = index_of(v, N, D, NULL);
    finds_the_best(f, v, q, 5, NULL);
    assert_in_range(flat_rescored(f), 5, 40);
    finds_the_best(f, v, v + 1000 * D, 1, NULL);
    assert_in_range(flat_rescored(f), 1, 2);
    flat_close(f);
}

static void search(void **state) {
    (void)state;
    enum { N = 3000, D = 100 };
    static float v[N * D], q[D];
    static uint8_t allowed[N];
    struct rng r = rng_make(7, 0);
    struct pool *pool = pool_create(2);
    for (int i = 0; i < N * D; i++) v[i] = (float)rng_normal(&r);
    for (int i = 0; i < N; i++) allowed[i] = rng_below(&r, 3) == 0;
    for (int i = 0; i < D; i++) q[i] = (float)rng_normal(&r);
    search_is_exact(v, N, D, q, 10, NULL, pool);
    search_is_exact(v, N, D, q, 10, NULL, NULL);
    search_is_exact(v, N, D, q, 50, allowed, pool);
    search_is_exact(v, 5, D, q, 10, NULL, pool);
    search_is_exact(v, 1, 1, q, 1, NULL, NULL);
    /* Clusters closer than 8 bits tell apart, copies, zeros, and lengths of all sizes. */
    for (int i = 0; i < N; i++)
        for (int d = 0; d < D; d++) v[i * D + d] = v[i % 7 * D + d] + (i % 5 ? 1e-4f * (float)rng_normal(&r) : 0.0f);
    for (int d = 0; d < D; d++) v[100 * D + d] = 0;
    for (int d = 0; d < D; d++) v[200 * D + d] *= 1000;
    search_is_exact(v, N, D, v, 40, NULL, pool);
    search_is_exact(v, N, D, v, N, NULL, pool);
    memset(q, 0, sizeof q);
    search_is_exact(v, N, D, q, 3, NULL, pool);
    memset(allowed, 0, sizeof allowed);
    search_is_exact(v, N, D, q, 3, allowed, pool);

    struct flat *f = index_of(v, 10, D, pool);
    flat_close(f);
    ok(truncate(path_of("i.faiss"), 2000) == 0 ? ST_OK : ST_IO);
    refused(flat_open(path_of("i.faiss"), pool, &f, &e), "was cut");
    put("i.faiss", "short");
    refused(flat_open(path_of("i.faiss"), pool, &f, &e), "no FAISS index");
    put("i.faiss", "IxF2................................................");
    assert_int_equal(flat_open(path_of("i.faiss"), pool, &f, &e), ST_UNSUPPORTED);
    pool_destroy(pool);
}

/* ---- corpora ------------------------------------------------------------------------------------------------------*/

struct seen {
    int n;
    char names[400];
};
static enum status see(void *ctx, const struct rag_record *r, struct err *err) {
    (void)err;
    struct seen *s = ctx;
    const size_t at = strlen(s->names);
    s->n++;
    snprintf(s->names + at, sizeof s->names - at, "%s:%s:%s:%.1f ", r->backend, r->source, r->name, r->speedup);
    return ST_OK;
}

static void corpora(void **state) {
    (void)state;
    struct corpus_filter f = {.sakana_levels = 1u << 1 | 1u << 2};
    struct corpus_counts n;
    struct seen s = {0};
    ok(fs_mkdirs(path_of("mixed/deep"), &e));
    put("mixed/a.jsonl",
        "{\"pytorch_code\": \"p\", \"kernel_code\": \"k\", \"backend\": \"c\", \"speedup\": 2}\n"
        "{\"python_code\": \"p\", \"triton_code\": \"t\", \"entry_point\": \"Net\", \"stars\": 3}\n"
        "{\"python_code\": \"p\", \"triton_code\": \"t\", \"entry_point\": null, \"module_name\": \"M\"}\n"
        "{\"python_code\": \" \\n\", \"triton_code\": \"t\"}\n");
    put("mixed/deep/b.jsonl",
        "{\"PyTorch_Code_Module\": \"p\", \"CUDA_Code\": \"c\", \"Correct\": true, \"Level_ID\": \"level_1\", "
        "\"Op_Name\": \"1_Op\", \"CUDA_Speedup_Native\": 1.5}\n"
        "{\"PyTorch_Code_Module\": \"p\", \"CUDA_Code\": \"c\", \"Correct\": \"False\", \"Level_ID\": 2, \"Op_Name\": "
        "\"bad\"}\n"
        "{\"PyTorch_Code_Module\": \"p\", \"CUDA_Code\": \"c\", \"Correct\": 1, \"Level_ID\": \"3\", \"Op_Name\": "
        "\"far\"}\n");
    ok(corpus_read(path_of("mixed"), &f, NULL, see, &s, &n, &e));
    assert_string_equal(s.names,
                        "c:a.jsonl::2.0 triton:kernelbook:Net:nan triton:kernelbook:M:nan cuda:sakana:1_Op:1.5 ");
    assert_int_equal(n.rows, 7);
    assert_int_equal(n.taken, 4);
    assert_int_equal(n.empty, 1);
    assert_int_equal(n.incorrect, 1);
    assert_int_equal(n.elsewhere, 1);
    s = (struct seen){0};
    f = (struct corpus_filter){.backend = "cuda", .include_incorrect = true};
    ok(corpus_read(path_of("mixed"), &f, NULL, see, &s, &n, &e));
    assert_int_equal(s.n, 3);

    ok(fs_mkdirs(path_of("gen"), &e));
    put("gen/problems.jsonl", "{\"key\": \"g/1\", \"code\": \"class Model\"}\n");
    put("gen/answers.jsonl", "{\"key\": \"g/1\", \"source\": \"good\", \"outcome\": \"correct\", \"speedup\": 3}\n"
                             "{\"key\": \"g/1\", \"source\": \"bad\", \"outcome\": \"crash\", \"broken\": \"crash\"}\n"
                             "{\"key\": \"g/1\", \"source\": \"nobody looked\"}\n");
    s = (struct seen){0};
    f = (struct corpus_filter){0};
    ok(corpus_read(path_of("gen"), &f, NULL, see, &s, &n, &e));
    assert_string_equal(s.names, "c:generator:g/1:3.0 ");
    assert_int_equal(n.incorrect, 2);

    struct str big = STR_INIT;
    str_adds(&big, "{\"backend\":\"c\",\"kernel_code\":\"k\",\"pytorch_code\":\"");
    for (int i = 0; i <= CORPUS_MAX_MODULE_CHARS; i++) str_addc(&big, 'x');
    str_adds(&big, "\"}\n");
    ok(corpus_read(put("long.jsonl", str_c(&big)), &f, NULL, see, &s, &n, &e));
    assert_int_equal(n.too_long, 1);
    str_free(&big);

    refused(corpus_read(put("x.jsonl", "{\"code\": 1}\n"), &f, NULL, see, &s, &n, &e),
            "x.jsonl:1: expected the columns");
    refused(corpus_read(put("x.jsonl", "{\"code\": \n"), &f, NULL, see, &s, &n, &e), "x.jsonl:1");
    refused(corpus_read(put("x.jsonl", ""), &f, NULL, see, &s, &n, &e), "not a single row");
    refused(corpus_read(path_of("none.jsonl"), &f, NULL, see, &s, &n, &e), "none.jsonl: expected kernelbook");
    put("gen/answers.jsonl", "{\"key\": \"g/2\", \"source\": \"good\", \"outcome\": \"correct\"}\n");
    refused(corpus_read(path_of("gen"), &f, NULL, see, &s, &n, &e), "\"g/2\" is not in problems.jsonl");
    assert_string_equal(corpus_backend("sakana"), "cuda");
    assert_null(corpus_backend("mixed"));
}

/* ---- an index -----------------------------------------------------------------------------------------------------*/

/* Six modules, of which 1 has the problem's operators, 2 its text, 3 its name; 4 and 5 are copies of each other. */
static const char problem[] =
    MODULE("        self.fc = nn.Linear(64, 32)\n", "        return F.relu(self.fc(x)) * 2.0\n");
static const struct rag_record records[] = {
    {MODULE("        self.fc = nn.Linear(64, 32)\n", "        return F.gelu(self.fc(x))\n"), "k0", "c", "s", "a", 2,
     true},
    {MODULE("        self.w = nn.Linear(8, 8)\n        self.r = nn.ReLU()\n",
            "        y = self.w(x)\n        y = self.r(y)\n        y = y * 3\n        return y\n"),
     "k1", "c", "s", "b", 2, true},
    {MODULE("        self.fc = nn.Linear(64, 32)\n", "        return F.relu(self.fc(x)) * 2.0 + 0\n"), "k2", "c", "s",
     "c", 2, true},
    {MODULE("", "        return torch.cumsum(x, dim=1)\n"), "k3", "c", "s", "7_Problem", 2, true},
    {MODULE("        self.n = nn.LayerNorm(64)\n", "        return self.n(x)\n"), "k4", "c", "s", "d", 2, true},
    {MODULE("        self.n = nn.LayerNorm(128)\n", "        return self.n(x)\n"), "k5", "c", "s", "e", 2, true},
    {MODULE("        self.fc = nn.Linear(64, 32)\n", "        return F.gelu(self.fc(x))\n"), "k6", "triton", "s", "f",
     2, true},
};

/* Stands in for a model: five numbers, and it can be told to fail. */
struct stub {
    int left; /* records until it fails; -1: never */
};
static enum status stub_embed(void *ctx, const char *const *codes, int n, bool query, float *out, struct err *err) {
    struct stub *s = ctx;
    for (int i = 0; i < n; i++) {
        if (s->left == 0) return FAIL(err, ST_DEVICE, "the device fell over");
        if (s->left > 0) s->left--;
        for (int k = 0; k < 5; k++) out[i * 5 + k] = (float)(strlen(codes[i]) % (size_t)(k + 2)) + (float)query;
    }
    return ST_OK;
}

static enum status build(const char *name, const char *identity, struct rag_embedder *em, struct rag_build_counts *n) {
    struct rag_builder *b;
    bool gathered;
    const volatile bool no = false;
    ok(fs_mkdirs(path_of(name), &e));
    ok(rag_builder_open(path_of(name), identity, &b, &gathered, &e));
    for (size_t i = 0; !gathered && i < ARRAY_LEN(records); i++) ok(rag_builder_add(b, &records[i], &e));
    if (!gathered) ok(rag_builder_add(b, &records[0], &e));
    const enum status st = rag_builder_finish(b, em ? "org/stub" : RAG_LEXICAL, em, 2, &no, n, &e);
    rag_builder_close(b);
    return st;
}

static void same_file(const char *a, const char *b) {
    CLEANUP_FREE char *x = NULL, *y = NULL;
    size_t n, m;
    ok(fs_read(path_of(a), 1 << 24, &x, &n, &e));
    ok(fs_read(path_of(b), 1 << 24, &y, &m, &e));
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
}

static void building(void **state) {
    (void)state;
    struct rag_build_counts n;
    struct stub s = {-1};
    struct rag_embedder em = {5, &s, stub_embed, NULL};
    ok(build("whole", "id", &em, &n));
    assert_int_equal(n.records, 7);
    assert_int_equal(n.duplicates, 1);
    assert_int_equal(n.embedded, 7);
    s.left = 5; /* fails in its third batch */
    refused(build("cut", "id", &em, &n), "fell over");
    assert_int_equal(n.embedded, 4);
    struct rag_index *x;
    refused(rag_index_open(path_of("cut"), NULL, &x, &e), "no index here");
    truncate(path_of("cut/building/vectors"), 3 * 20 + 7); /* killed while it wrote a vector */
    s.left = -1;
    ok(build("cut", "id", &em, &n));
    assert_int_equal(n.embedded, 4);
    assert_false(fs_is_dir(path_of("cut/building")));
    same_file("whole/index.faiss", "cut/index.faiss");
    same_file("whole/records.jsonl", "cut/records.jsonl");
    same_file("whole/metadata.json", "cut/metadata.json");
    /* What another build left is of no use; the index that is there stays until the new one is whole. */
    s.left = 5;
    refused(build("cut", "id", &em, &n), "fell over");
    s.left = 6;
    refused(build("cut", "another id", &em, &n), "fell over");
    assert_int_equal(n.embedded, 6);
    ok(rag_index_open(path_of("cut"), NULL, &x, &e));
    rag_index_close(x);
    /* An embedder that gives what is no number is found out. */
    struct rag_builder *b;
    bool gathered;
    ok(rag_builder_open(path_of("empty"), "id", &b, &gathered, &e));
    refused(rag_builder_finish(b, "org/stub", &em, 2, NULL, &n, &e), "no record");
    rag_builder_close(b);
}

static void expect(struct rag_index *x, const struct rag_query *q, const char *want) {
    struct arena a = ARENA_INIT;
    struct rag_example out[10];
    char got[100] = "";
    int n;
    ok(rag_retrieve(x, q, &a, out, &n, &e));
    for (int i = 0; i < n; i++) snprintf(got + strlen(got), sizeof got - strlen(got), "%s ", out[i].r.kernel_code);
    for (int i = 1; i < n; i++) assert_true(out[i].score <= out[i - 1].score);
    assert_string_equal(got, want);
    arena_free(&a);
}

static void asking(void **state) {
    (void)state;
    struct rag_build_counts n;
    struct rag_index *x;
    ok(build("lex", "id", NULL, &n));
    ok(rag_index_open(path_of("lex"), NULL, &x, &e));
    assert_string_equal(rag_index_model(x), "lexical");
    assert_int_equal(rag_index_count(x), 7);
    expect(x, &(struct rag_query){problem, "7_Problem", "c", 5, false}, "k0 k4 ");
    expect(x, &(struct rag_query){problem, "7_Problem", "c", 1, false}, "k0 ");
    expect(x, &(struct rag_query){problem, "8_Other", "c", 5, false}, "k0 k4 k3 ");
    expect(x, &(struct rag_query){problem, NULL, "triton", 5, false}, "k6 ");
    expect(x, &(struct rag_query){problem, NULL, "hip", 5, false}, "");
    expect(x, &(struct rag_query){problem, NULL, "c", 1, true}, "k1 ");
    rag_index_close(x);

    struct stub s = {-1};
    struct rag_embedder em = {5, &s, stub_embed, NULL}, wide = {6, &s, stub_embed, NULL};
    ok(build("stub", "id", &em, &n));
    ok(rag_index_open(path_of("stub"), NULL, &x, &e));
    struct arena a = ARENA_INIT;
    struct rag_example out[2];
    int found;
    const struct rag_query q = {problem, NULL, "c", 2, false};
    refused(rag_retrieve(x, &q, &a, out, &found, &e), "org/stub, which is not open");
    refused(rag_index_embedder(x, wide, &e), "5 numbers, those of the embedder 6");
    ok(rag_index_embedder(x, em, &e));
    ok(rag_retrieve(x, &q, &a, out, &found, &e));
    assert_int_equal(found, 2);
    rag_index_close(x);
    arena_free(&a);

    /* Files that do not fit. */
    put("stub/metadata.json", "{\"model_name\": \"bge-small\", \"num_examples\": 7}");
    refused(rag_index_open(path_of("stub"), NULL, &x, &e), "another program");
    put("stub/metadata.json", "{\"version\": 1, \"model_name\": \"m\", \"num_examples\": 6, \"dim\": 5}");
    refused(rag_index_open(path_of("stub"), NULL, &x, &e), "metadata.json says 6 of 5");
    put("lex/records.jsonl", "{\"backend\":\"c\"}\n");
    refused(rag_index_open(path_of("lex"), NULL, &x, &e), "1 records, metadata.json says 7");
    put("lex/records.jsonl", "{\"backend\":\"c\"");
    refused(rag_index_open(path_of("lex"), NULL, &x, &e), "was cut");
    ok(fs_remove(path_of("lex/index.faiss"), &e));
    refused(rag_index_open(path_of("lex"), NULL, &x, &e), "index.faiss");
}

/* ---- the model that embeds ----------------------------------------------------------------------------------------*/

static void copy_model(const char *to, const char *arch, const char *post_processor) {
    static const char *const files[] = {"config.json", "tokenizer.json", "model.safetensors"};
    ok(fs_mkdirs(path_of(to), &e));
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        struct str from = STR_INIT;
        CLEANUP_FREE char *text = NULL;
        size_t n;
        str_addf(&from, "%s/models/tiny/%s", home_dir(), files[i]);
        ok(fs_read(from.p, 1 << 28, &text, &n, &e));
        str_clear(&from);
        str_addf(&from, "%s/%s", to, files[i]);
        if (i < 2) {
            CLEANUP_JSON json_t *j = NULL;
            ok(js_parse(text, n, files[i], &j, &e));
            if (i == 0 && arch) json_object_set_new(j, "architectures", json_pack("[s]", arch));
            if (i == 1 && post_processor) json_object_set_new(j, "post_processor", json_loads(post_processor, 0, NULL));
            free(text);
            text = json_dumps(j, JSON_COMPACT);
            n = strlen(text);
        } else if (arch) { /* "model.x" loses its first module; the JSON header keeps its length */
            for (size_t at = 0; at + 7 < n && at < 1 << 16; at++)
                if (memcmp(text + at, "\"model.", 7) == 0) {
                    char *end = strchr(text + at + 1, '"');
                    memmove(text + at + 1, text + at + 7, (size_t)(end - text) - at - 6);
                    memset(end - 5, ' ', 6);
                }
        }
        ok(fs_write_atomic(path_of(from.p), text, n, &e));
        str_free(&from);
    }
}

static void embeddings(void **state) {
    (void)state;
    char tiny[4200];
    snprintf(tiny, sizeof tiny, "%s/models/tiny", home_dir());
    snprintf(tiny + strlen(tiny), sizeof tiny - strlen(tiny), "/model.safetensors");
    if (!fs_is_file(tiny)) {
        print_message("skipped: models/tiny has no model.safetensors\n");
        skip();
    }
    *strrchr(tiny, '/') = 0;
    const char *codes[] = {records[0].pytorch_code, "x", "", problem};
    struct embedder_options o = {.dir = tiny, .name = "org/tiny", .device = "cpu", .dtype = "f32", .max_tokens = 64};
    struct rag_embedder em;
    ok(embedder_open(&o, &em, &e));
    CLEANUP_FREE float *all = xcalloc(4 * (size_t)em.dim, sizeof *all), *one = xcalloc((size_t)em.dim, sizeof *one);
    ok(em.embed(em.ctx, codes, 4, false, all, &e));
    for (int i = 0; i < 4; i++) { /* alone: the same bits, of length 1 */
        ok(em.embed(em.ctx, &codes[i], 1, false, one, &e));
        assert_memory_equal(one, all + i * em.dim, (size_t)em.dim * sizeof *one);
        double norm = 0;
        for (int k = 0; k < em.dim; k++) norm += (double)one[k] * (double)one[k];
        assert_true(norm > 0.9999 && norm < 1.0001);
    }
    ok(em.embed(em.ctx, &codes[1], 1, true, one, &e)); /* no instruction is known for this name */
    assert_memory_equal(one, all + em.dim, (size_t)em.dim * sizeof *one);
    em.close(em.ctx);

    /* So do texts of many lengths, whatever passes they share: these are more than one takes. */
    enum { MANY = 40 };
    struct str text[MANY] = {STR_INIT};
    const char *texts[MANY];
    CLEANUP_FREE float *many = xcalloc(MANY * (size_t)em.dim, sizeof *many);
    for (int i = 0; i < MANY; i++) {
        for (int k = 0; k < (i * 7919) % 400 + 100; k++) str_addf(&text[i], "x%d = ", i + k);
        texts[i] = str_c(&text[i]);
    }
    o.max_tokens = 300;
    ok(embedder_open(&o, &em, &e));
    ok(em.embed(em.ctx, texts, MANY, false, many, &e));
    for (int i = 0; i < MANY; i += 7) {
        ok(em.embed(em.ctx, &texts[i], 1, false, one, &e));
        assert_memory_equal(one, many + i * em.dim, (size_t)em.dim * sizeof *one);
    }
    em.close(em.ctx);
    for (int i = 0; i < MANY; i++) str_free(&text[i]);
    o.max_tokens = 64;

    /* Against what the definition says, computed apart: each text alone through the model, the last token behind the
     * final norm, of length 1. */
    struct backend *be;
    struct model *m;
    struct tokenizer *tok;
    ok(backend_open("cpu", NULL, &be, &e));
    ok(model_load(tiny, &(struct model_options){.dtype = "f32", .frozen = true}, be, &m, &e));
    ok(tokenizer_open(tiny, &tok, &e));
    for (int i = 0; i < 2; i++) {
        struct ids ids = {0};
        tokenizer_encode(tok, codes[i], strlen(codes[i]), false, &ids);
        if (ids.len > 64) ids.len = 64; /* max_tokens */
        const struct segment whole = {0, (int64_t)ids.len, -1, 0};
        const struct train_batch b = {
            .ids = ids.p, .T = (int64_t)ids.len, .seg = &whole, .n_seg = 1, .forward_only = true};
        CLEANUP_FREE float *hidden = xcalloc(ids.len * (size_t)em.dim, sizeof *hidden);
        ok(model_forward(m, &b, NULL, NULL, hidden, &e));
        const float *last = hidden + (ids.len - 1) * (size_t)em.dim;
        double norm = 0;
        for (int k = 0; k < em.dim; k++) norm += (double)last[k] * (double)last[k];
        for (int k = 0; k < em.dim; k++)
            assert_true(fabs((double)last[k] / sqrt(norm) - (double)all[i * em.dim + k]) < 1e-6);
        ids_free(&ids);
    }
    tokenizer_close(tok);
    model_free(m);
    be->close(be);

    /* The instructions of known models, as their cards have them, stand in front of questions alone. */
    static const char *const known[][2] = {
        {"BAAI/bge-code-v1",
         "<instruct>Given a PyTorch module, retrieve modules that compute similar things.\n<query>x"},
        {"Qwen/Qwen3-Embedding-0.6B",
         "Instruct: Given a PyTorch module, retrieve modules that compute similar things.\nQuery:x"},
        {"nomic-ai/nomic-embed-code", "Represent this query for searching relevant code: x"}};
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        CLEANUP_FREE float *asked = xcalloc((size_t)em.dim, sizeof *asked);
        o.name = known[i][0];
        o.max_tokens = 0;
        ok(embedder_open(&o, &em, &e));
        ok(em.embed(em.ctx, &codes[1], 1, true, asked, &e));
        ok(em.embed(em.ctx, &known[i][1], 1, false, one, &e));
        assert_memory_equal(one, asked, (size_t)em.dim * sizeof *one);
        ok(em.embed(em.ctx, &codes[1], 1, false, one, &e));
        assert_memory_equal(one, all + em.dim, (size_t)em.dim * sizeof *one);
        assert_memory_not_equal(one, asked, (size_t)em.dim * sizeof *one);
        em.close(em.ctx);
    }
    o.name = "org/tiny";
    o.max_tokens = 64;

    o.prefix = "Represent: ";
    ok(embedder_open(&o, &em, &e));
    const char *prefixed[] = {"Represent: x"};
    CLEANUP_FREE float *other = xcalloc((size_t)em.dim, sizeof *other);
    ok(em.embed(em.ctx, &codes[1], 1, true, one, &e));
    ok(em.embed(em.ctx, prefixed, 1, false, other, &e));
    assert_memory_equal(one, other, (size_t)em.dim * sizeof *one);
    em.close(em.ctx);

    /* As embedders are saved: without their outermost module and a head. */
    o.prefix = NULL;
    copy_model("headless", "Qwen3Model", NULL);
    o.dir = path_of("headless");
    ok(embedder_open(&o, &em, &e));
    ok(em.embed(em.ctx, codes, 1, false, one, &e));
    assert_memory_equal(one, all, (size_t)em.dim * sizeof *one);
    em.close(em.ctx);

    /* The token that a tokenizer's template puts behind the text is the one that is pooled, of cut texts, too. */
    copy_model(
        "ended", NULL,
        "{\"type\": \"Sequence\", \"processors\": [{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": "
        "{\"id\": \"A\", \"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"<|endoftext|>\", \"type_id\": 0}}], "
        "\"special_tokens\": {\"<|endoftext|>\": {\"id\": \"<|endoftext|>\", \"ids\": [2043]}}}]}");
    o.dir = path_of("ended");
    ok(embedder_open(&o, &em, &e));
    ok(em.embed(em.ctx, codes, 2, false, all, &e));
    em.close(em.ctx);
    o.max_tokens = 2; /* "x" and the end */
    ok(embedder_open(&o, &em, &e));
    ok(em.embed(em.ctx, &codes[1], 1, false, one, &e));
    assert_memory_equal(one, all + em.dim, (size_t)em.dim * sizeof *one);
    em.close(em.ctx);
}

static int make_dir(void **state) {
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}
static int remove_dir(void **state) {
    (void)state;
    return fs_remove(dir, &e) == ST_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operators),     cmocka_unit_test(similarity),   cmocka_unit_test(search),
        cmocka_unit_test(hard_searches), cmocka_unit_test(few_are_read), cmocka_unit_test(corpora),
        cmocka_unit_test(building),      cmocka_unit_test(asking),       cmocka_unit_test(embeddings),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
