/* Mixtures of experts: what the routing op chooses, also where logits are equal; that a row's experts are its own
 * affair, whatever adapters are beside it; that work is done for the chosen experts alone; the layouts of checkpoints;
 * files of adapters; what is refused. Gradients and the bits of sampling are in model_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/str.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/model.h"
#include "tensor/experts.h"

#define CONFIG_OF(experts, more)                                                                                     \
    "{\"model_type\":\"qwen3_moe\",\"vocab_size\":90,\"hidden_size\":40,\"intermediate_size\":72,"                   \
    "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":12,"                   \
    "\"max_position_embeddings\":400,\"num_experts\":" experts ",\"num_experts_per_tok\":2,\"norm_topk_prob\":true," \
    "\"moe_intermediate_size\":24,\"tie_word_embeddings\":false" more "}"
static const char config[] = CONFIG_OF("6", "");
enum { V = 90, L = 3, E = 6, K = 2, T = 40 };

static struct pool *pool;
static struct backend *be, *one;
static struct err err;
static int32_t ids[T];
static char tmp_dir[] = "/tmp/kernelrl-moe-XXXXXX";
#define CHECK(x)                                   \
    do {                                           \
        if ((x) != ST_OK) fail_msg("%s", err.msg); \
    } while (0)

static int setup(void **state) {
    (void)state;
    pool = pool_create(2);
    struct rng r = rng_make(3, 0);
    for (int i = 0; i < T; i++) ids[i] = (int32_t)rng_below(&r, V);
    if (cpu_backend_open(pool, &be, &err) != ST_OK || cpu_backend_open(NULL, &one, &err) != ST_OK) return 1;
    return mkdtemp(tmp_dir) ? 0 : 1;
}

static int teardown(void **state) {
    (void)state;
    be->close(be);
    one->close(one);
    pool_destroy(pool);
    return fs_remove(tmp_dir, &err) == ST_OK ? 0 : 1;
}

static const char *in_tmp(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", tmp_dir, name);
    return path;
}

/* With weights that make rows choose differently. */
static struct model *make(const char *text, struct backend *on) {
    struct model *m;
    CHECK(model_init(text, 5, NULL, on, &m, &err));
    int n;
    const struct param *p = model_params(m, &n);
    for (int i = 0; i < n; i++)
        for (int64_t j = 0; p[i].nd == 2 && j < p[i].n; j++) p[i].w[j] *= 12;
    model_params_changed(m);
    return m;
}

static const struct param *param_named(struct model *m, const char *name) {
    int n;
    const struct param *p = model_params(m, &n);
    for (int i = 0; i < n; i++)
        if (strcmp(p[i].name, name) == 0) return &p[i];
    fail_msg("no parameter %s", name);
    return NULL;
}

static int adapter_with(struct model *m, int rank, int expert_rank, uint64_t seed) {
    int index;
    const struct adapter_shape shape = {.rank = rank, .alpha = 2.0f * (float)rank, .expert_rank = expert_rank};
    CHECK(model_adapter_create(m, &shape, seed, &index, &err));
    CHECK(model_adapter_prepare(m, index, &err));
    const struct train_set s = model_train_set(m, index);
    for (int i = 1; i < s.n; i += 2) { /* B */
        struct rng r = rng_make(seed, (uint64_t)i);
        for (int64_t j = 0; j < s.param[i].n; j++) s.param[i].w[j] = 0.2f * (float)rng_normal(&r);
    }
    model_adapter_changed(m, index);
    model_adapter_release(m, index);
    return index;
}

/* Logits of the rows of one segment alone, [n,V]; malloc'ed. */
static float *logits_of(struct model *m, const int32_t *row, int64_t n, int adapter) {
    const struct segment seg = {0, n, -1, adapter};
    const struct train_batch b = {.ids = row, .T = n, .seg = &seg, .n_seg = 1, .forward_only = true};
    float *out = xmalloc((size_t)(n * V) * sizeof *out);
    CHECK(model_logits(m, &b, out, &err));
    return out;
}

/* ---- the op ------------------------------------------------------------------------------------------------------ */

/* Numbers of few values, so that many are equal. */
static void check_route(int64_t rows, int n_experts, int k, bool normalised) {
    const int64_t words = routing_words(rows, n_experts, k), pairs = rows * k;
    float *logits = xmalloc((size_t)(rows * n_experts + 1) * sizeof *logits);
    int32_t *memory[2] = {xcalloc((size_t)words, sizeof(int32_t)), xcalloc((size_t)words, sizeof(int32_t))};
    struct rng rng = rng_make(7, (uint64_t)(rows * 1000 + n_experts));
    for (int64_t i = 0; i < rows * n_experts; i++) logits[i] = (float)rng_below(&rng, 5) - 2.0f;
    const struct routing r = routing_in(memory[0], rows, n_experts, k), r1 = routing_in(memory[1], rows, n_experts, k);
    be->experts->route(be, &r, tensor_full(logits, rows, n_experts), normalised, false);
    one->experts->route(one, &r1, tensor_full(logits, rows, n_experts), normalised, false);
    assert_memory_equal(memory[0], memory[1], (size_t)words * sizeof(int32_t));
    for (int64_t t = 0; t < rows; t++) {
        const float *l = logits + t * n_experts;
        double all = 0, chosen = 0;
        for (int e = 0; e < n_experts; e++) all += exp((double)l[e]);
        for (int j = 0; j < k; j++) chosen += exp((double)l[r.expert[t * k + j]]);
        for (int j = 0; j < k; j++) {
            const int32_t id = r.expert[t * k + j];
            int better = 0; /* a larger logit, or an equal one with a lower id */
            assert_true(id >= 0 && id < n_experts && (j == 0 || id > r.expert[t * k + j - 1]));
            for (int e = 0; e < n_experts; e++) better += l[e] > l[id] || (l[e] == l[id] && e < id);
            assert_true(better < k);
            const double want = exp((double)l[id]) / (normalised ? chosen : all);
            assert_true(fabs((double)r.weight[t * k + j] / want - 1) < 1e-6);
        }
    }
    assert_int_equal(r.begin[0], 0);
    assert_int_equal(r.begin[n_experts], pairs);
    for (int64_t i = 0; i < pairs; i++) {
        const int32_t place = r.place[i], e = r.expert[i];
        assert_int_equal(r.pair[place], i);
        assert_true(place >= r.begin[e] && place < r.begin[e + 1]);
        assert_true(place == r.begin[e] || r.pair[place - 1] < i);
    }
    /* Rows of a run. */
    int32_t lo[EXPERTS_MAX], hi[EXPERTS_MAX];
    const int64_t row = rows / 3, n = rows / 2;
    int64_t sum = 0;
    be->experts->rows_of(be, (struct expert_places){lo, hi}, &r, row, n);
    for (int e = 0; e < n_experts; e++)
        for (int32_t p = r.begin[e]; p < r.begin[e + 1]; p++) {
            const bool in = p >= lo[e] && p < hi[e];
            assert_int_equal(in, r.pair[p] / k >= row && r.pair[p] / k < row + n);
            sum += in;
        }
    assert_int_equal(sum, n * k);
    free(logits);
    free(memory[0]);
    free(memory[1]);
}

static void test_route(void **state) {
    (void)state;
    for (int normalised = 0; normalised < 2; normalised++) {
        check_route(0, 4, 2, normalised);
        check_route(1, 1, 1, normalised);
        check_route(9, 5, 5, normalised);
        check_route(300, 7, 3, normalised);
        check_route(40, 128, 8, normalised);
        check_route(5, EXPERTS_MAX, 8, normalised);
    }
}

/* All instruction sets and the plain C give the same bits. */
static void test_route_bits(void **state) {
    (void)state;
    enum { ROWS = 30, N = 60, OF = 4 };
    static const char *const isa[] = {"reference", "avx2", "avx512", "avx512bf16", "amx"};
    CLEANUP_STR struct str usual = STR_INIT;
    float logits[ROWS * N], dweight[ROWS * OF], x[ROWS * OF * N], first[ROWS * N], d_first[ROWS * N];
    int32_t memory[2][4 * ROWS * OF + N + 1];
    struct rng rng = rng_make(4, 1);
    for (int i = 0; i < ROWS * N; i++) logits[i] = (float)rng_normal(&rng);
    for (int i = 0; i < ROWS * OF; i++) dweight[i] = (float)rng_normal(&rng);
    for (int i = 0; i < ROWS * OF * N; i++) x[i] = (float)rng_normal(&rng);
    str_adds(&usual, cpu_isa_name());
    int seen = 0;
    for (size_t i = 0; i < ARRAY_LEN(isa); i++) {
        struct backend *b;
        float out[ROWS * N], d[ROWS * N];
        if (!cpu_isa_force(isa[i])) continue;
        CHECK(cpu_backend_open(pool, &b, &err));
        const struct routing r = routing_in(memory[seen > 0], ROWS, N, OF);
        b->experts->route(b, &r, tensor_full(logits, ROWS, N), false, false);
        b->experts->route_grad(b, tensor_full(d, ROWS, N), &r, dweight, tensor_full(logits, ROWS, N), false);
        b->experts->combine(b, tensor_full(out, ROWS, N), tensor_full(logits, ROWS, N), tensor_full(x, ROWS * OF, N),
                            &r, true);
        if (seen++ > 0) {
            assert_memory_equal(memory[0], memory[1], sizeof memory[0]);
            assert_memory_equal(out, first, sizeof out);
            assert_memory_equal(d, d_first, sizeof d);
        } else {
            memcpy(first, out, sizeof out);
            memcpy(d_first, d, sizeof d);
        }
        b->close(b);
    }
    assert_true(seen > 0 && cpu_isa_force(usual.p));
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Where all logits of the router are equal, experts 0 and 1 are taken, by the sampler and by the trainer: the others
 * hold no numbers. */
static void test_ties(void **state) {
    (void)state;
    struct model *m = make(config, be);
    int n;
    const struct param *p = model_params(m, &n);
    for (int i = 0; i < n; i++) {
        const char *expert = strstr(p[i].name, ".experts.");
        const bool other = expert && strtol(expert + strlen(".experts."), NULL, 10) >= K;
        if (other || str_has_suffix(p[i].name, ".mlp.gate.weight"))
            for (int64_t j = 0; j < p[i].n; j++) p[i].w[j] = other ? NAN : 0.0f;
    }
    model_params_changed(m);
    int32_t seen[L][T][K];
    model_experts(m, &seen[0][0][0], false);
    CLEANUP_FREE float *trained = logits_of(m, ids, T, ADAPTER_OWN);
    model_experts(m, NULL, false);
    for (int i = 0; i < L * T * K; i++) assert_int_equal((&seen[0][0][0])[i], i % K);
    struct kv_cache *kv;
    CHECK(kv_create(m, 1, T, 0, &kv, &err));
    for (int t = 0; t < T; t++) {
        const int seq = 0, len = 1;
        float logits[V];
        CHECK(model_step(m, kv, 1, &seq, &len, &ids[t], logits, &err));
        for (int v = 0; v < V; v++) assert_true(isfinite(logits[v]));
        assert_memory_equal(logits, trained + t * V, sizeof logits);
    }
    kv_free(kv);
    model_free(m);
}

/* Rows of three adapters, whose experts have ranks of their own, and of the base: the bits of each alone. */
static void test_adapters_in_a_batch(void **state) {
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct model *m;
        const struct model_options opt = {.dtype = bf16 ? "bf16" : "f32", .frozen = true};
        CHECK(model_init(config, 5, &opt, be, &m, &err));
        const int a = adapter_with(m, 8, 0, 1), b = adapter_with(m, 3, 5, 2), c = adapter_with(m, 4, 1, 3);
        const int of[] = {b, a, ADAPTER_BASE, c, a};
        enum { SEGS = 5, EACH = 8 };
        struct segment seg[SEGS];
        float *alone[SEGS], all[T * V];
        for (int i = 0; i < SEGS; i++) seg[i] = (struct segment){i * EACH, EACH, -1, of[i]};
        for (int i = 0; i < SEGS; i++) alone[i] = logits_of(m, ids + i * EACH, EACH, of[i]);
        const struct train_batch mixed = {.ids = ids, .T = T, .seg = seg, .n_seg = SEGS, .forward_only = true};
        CHECK(model_logits(m, &mixed, all, &err));
        for (int i = 0; i < SEGS; i++) {
            assert_memory_equal(alone[i], all + i * EACH * V, sizeof *all * EACH * V);
            CLEANUP_FREE float *base = logits_of(m, ids + i * EACH, EACH, ADAPTER_BASE);
            assert_int_equal(memcmp(base, alone[i], sizeof *base * EACH * V) == 0, of[i] == ADAPTER_BASE);
            free(alone[i]);
        }
        model_free(m);
    }
}

/* Experts in another order are the same model under other names. */
static void test_experts_in_another_order(void **state) {
    (void)state;
    struct model *m = make(config, be), *other = make(config, be);
    static const int to[E] = {3, 0, 5, 1, 4, 2};
    for (int l = 0; l < L; l++) {
        char name[96], renamed[96];
        snprintf(name, sizeof name, "model.layers.%d.mlp.gate.weight", l);
        const struct param *from = param_named(m, name), *into = param_named(other, name);
        const int64_t D = from->dim[1];
        for (int e = 0; e < E; e++) memcpy(into->w + to[e] * D, from->w + e * D, (size_t)D * sizeof(float));
        static const char *const part[] = {"gate_proj", "up_proj", "down_proj"};
        for (int e = 0; e < E; e++)
            for (size_t k = 0; k < ARRAY_LEN(part); k++) {
                snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight", l, e, part[k]);
                snprintf(renamed, sizeof renamed, "model.layers.%d.mlp.experts.%d.%s.weight", l, to[e], part[k]);
                from = param_named(m, name);
                memcpy(param_named(other, renamed)->w, from->w, (size_t)from->n * sizeof(float));
            }
    }
    model_params_changed(other);
    int32_t seen[2][L][T][K];
    model_experts(m, &seen[0][0][0][0], false);
    model_experts(other, &seen[1][0][0][0], false);
    CLEANUP_FREE float *a = logits_of(m, ids, T, ADAPTER_OWN), *b = logits_of(other, ids, T, ADAPTER_OWN);
    double worst = 0; /* two experts add up in another order */
    for (int i = 0; i < T * V; i++) worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
    assert_true(worst < 1e-4);
    bool used[E] = {false};
    for (int i = 0; i < L * T; i++) {
        const int32_t *x = &seen[0][0][0][0] + i * K, *y = &seen[1][0][0][0] + i * K;
        const int lo = to[x[0]] < to[x[1]] ? to[x[0]] : to[x[1]], hi = to[x[0]] + to[x[1]] - lo;
        assert_true(y[0] == lo && y[1] == hi);
        used[x[0]] = used[x[1]] = true;
    }
    for (int e = 0; e < E; e++) assert_true(used[e]);
    model_free(m);
    model_free(other);
}

/* ---- work -------------------------------------------------------------------------------------------------------- */

/* Multiplications of products with weights. */
static double work;
static void (*real_linear)(struct backend *, struct tensor, struct tensor, const struct weight *, const float *, bool);
static void counted(struct backend *b, struct tensor y, struct tensor x, const struct weight *w, const float *bias,
                    bool accumulate) {
    work += (double)x.rows * (double)w->N * (double)w->K;
    real_linear(b, y, x, w, bias, accumulate);
}

static double work_of(const char *text) {
    struct model *m = make(text, one);
    real_linear = one->linear;
    one->linear = counted;
    work = 0;
    free(logits_of(m, ids, T, ADAPTER_OWN));
    one->linear = real_linear;
    model_free(m);
    return work;
}

/* Of 64 experts two are chosen, as of 8: only the router has more to do. */
static void test_work_grows_with_the_chosen(void **state) {
    (void)state;
    const double D = 40, F = 24, few = work_of(CONFIG_OF("8", "")), many = work_of(CONFIG_OF("64", ""));
    assert_true(many - few == L * T * D * (64 - 8));
    const double rest = L * T * (D * (4 + 2 * 2) * 12 + D * 4 * 12) + T * V * D;
    assert_true(few == rest + L * T * (D * 8 + K * 3 * D * F));
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* The checkpoint of m with the experts of a layer in one tensor each, as newer versions of transformers may write it.
 * short_by: so many experts fewer. */
static void save_fused(struct model *m, const char *dir, int short_by) {
    enum { MOST = 80 };
    struct st_entry en[MOST];
    char names[L][2][80];
    float *owned[2 * L];
    int n, count = 0, made = 0;
    const struct param *p = model_params(m, &n);
    CHECK(model_save(m, dir, "f32", &err)); /* its config.json */
    for (int i = 0; i < n; i++) {
        if (strstr(p[i].name, ".experts.")) continue;
        assert_true(count < MOST);
        en[count++] = (struct st_entry){.name = p[i].name,
                                        .dtype = ST_DTYPE_F32,
                                        .from = ST_DTYPE_F32,
                                        .nd = p[i].nd,
                                        .dim = {p[i].dim[0], p[i].dim[1]},
                                        .data = p[i].w};
    }
    for (int l = 0; l < L; l++)
        for (int down = 0; down < 2; down++) {
            const int64_t D = 40, F = 24, rows = down ? D : 2 * F, cols = down ? F : D;
            float *all = owned[made++] = xmalloc((size_t)(E * rows * cols) * sizeof *all), *at = all;
            for (int e = 0; e < E; e++)
                for (int k = down ? 2 : 0; k < (down ? 3 : 2); k++) {
                    static const char *const part[] = {"gate_proj", "up_proj", "down_proj"};
                    char name[96];
                    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight", l, e, part[k]);
                    const struct param *one_of = param_named(m, name);
                    memcpy(at, one_of->w, (size_t)one_of->n * sizeof *at);
                    at += one_of->n;
                }
            snprintf(names[l][down], sizeof names[l][down], "model.layers.%d.mlp.experts.%s", l,
                     down ? "down_proj" : "gate_up_proj");
            assert_true(count < MOST);
            en[count++] = (struct st_entry){.name = names[l][down],
                                            .dtype = ST_DTYPE_F32,
                                            .from = ST_DTYPE_F32,
                                            .nd = 3,
                                            .dim = {E - short_by, rows, cols},
                                            .data = all};
        }
    CLEANUP_STR struct str path = STR_INIT;
    str_addf(&path, "%s/model.safetensors", dir);
    CHECK(st_write(path.p, en, (size_t)count, NULL, &err));
    for (int i = 0; i < made; i++) free(owned[i]);
}

static void test_checkpoints(void **state) {
    (void)state;
    struct model *m = make(config, be), *back;
    CLEANUP_FREE float *want = logits_of(m, ids, T, ADAPTER_OWN);
    for (int fused = 0; fused < 2; fused++) {
        if (fused)
            save_fused(m, in_tmp("fused"), 0);
        else
            CHECK(model_save(m, in_tmp("plain"), "f32", &err));
        CHECK(model_load(in_tmp(fused ? "fused" : "plain"), NULL, be, &back, &err));
        CLEANUP_FREE float *got = logits_of(back, ids, T, ADAPTER_OWN);
        assert_memory_equal(got, want, sizeof *got * T * V);
        model_free(back);
    }
    save_fused(m, in_tmp("short"), 1);
    assert_int_equal(model_load(in_tmp("short"), NULL, be, &back, &err), ST_INVALID);
    assert_non_null(
        strstr(err.msg, "\"model.layers.0.mlp.experts.gate_up_proj\": expected shape [6, 48, 40], got [5,"));
    model_free(m);
}

/* The router keeps its bits where the rest is rounded to bf16 or made codes; experts in codes are the matrices that
 * these decode to. */
static void test_router_is_exact(void **state) {
    (void)state;
    struct model *m = make(config, be), *back;
    CHECK(model_save(m, in_tmp("exact"), "f32", &err));
    static const char *const codes[] = {NULL, "fp8", "nf4"};
    for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
        const struct model_options opt = {.dtype = "bf16", .frozen = true, .base_dtype = codes[i]};
        CHECK(model_load(in_tmp("exact"), &opt, be, &back, &err));
        const struct param *a = param_named(m, "model.layers.1.mlp.gate.weight");
        const struct param *b = param_named(back, "model.layers.1.mlp.gate.weight");
        assert_memory_equal(a->w, b->w, (size_t)a->n * sizeof(float));
        assert_null(param_named(back, "model.layers.1.mlp.experts.0.up_proj.weight")->w);
        CLEANUP_FREE float *l = logits_of(back, ids, T, ADAPTER_OWN);
        for (int k = 0; k < T * V; k++) assert_true(isfinite(l[k]));
        if (codes[i]) { /* what the codes decode to is a model with the same bits */
            struct model *decoded;
            const struct model_options plain = {.dtype = "bf16", .frozen = true, .base_dtype = "bf16"};
            CHECK(model_save(back, in_tmp("decoded"), "f32", &err));
            CHECK(model_load(in_tmp("decoded"), &plain, be, &decoded, &err));
            assert_null(model_base_codes(decoded));
            assert_string_equal(model_base_codes(back), codes[i]);
            CLEANUP_FREE float *same = logits_of(decoded, ids, T, ADAPTER_OWN);
            assert_memory_equal(same, l, sizeof *l * T * V);
            model_free(decoded);
        }
        model_free(back);
    }
    model_free(m);
}

/* A new adapter's files say what rank experts have, by patterns that PEFT reads; loaded again it gives the same bits.
 */
static void test_adapter_files(void **state) {
    (void)state;
    struct model *m = make(config, be);
    const int a = adapter_with(m, 8, 0, 1);
    struct adapter_info info;
    assert_true(model_adapter_info(m, a, &info));
    assert_int_equal(info.shape.expert_rank, 8 / K);
    CHECK(model_adapter_save(m, a, in_tmp("adapter"), &err));
    int b;
    CHECK(model_adapter_load(m, in_tmp("adapter"), &b, &err));
    assert_true(model_adapter_info(m, b, &info));
    assert_int_equal(info.shape.rank, 8);
    assert_int_equal(info.shape.expert_rank, 8 / K);
    CLEANUP_FREE float *x = logits_of(m, ids, T, a), *y = logits_of(m, ids, T, b);
    assert_memory_equal(x, y, sizeof *x * T * V);

    /* Experts of one mixture are alike. */
    json_t *j;
    CHECK(js_load(in_tmp("adapter/adapter_config.json"), 1 << 20, &j, &err));
    json_t *ranks = json_object_get(j, "rank_pattern");
    assert_int_equal(json_object_size(ranks), 5); /* three modules, and two by the names of all experts' parameters */
    json_object_clear(ranks);
    json_object_set_new(ranks, "mlp\\.experts\\.4\\.up_proj", json_integer(4));
    CLEANUP_FREE char *text = json_dumps(j, 0);
    json_decref(j);
    CHECK(fs_write_atomic(in_tmp("adapter/adapter_config.json"), text, strlen(text), &err));
    assert_int_equal(model_adapter_load(m, in_tmp("adapter"), &b, &err), ST_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "model.layers.0.mlp.experts.4.up_proj has another rank"));
    model_free(m);
}

/* Weights of an adapter by name. */
static float *weights_named(struct model *m, int adapter, const char *name, const struct param **out) {
    const struct train_set s = model_train_set(m, adapter);
    for (int i = 0; i < s.n; i++)
        if (strcmp(s.param[i].name, name) == 0) {
            if (out) *out = &s.param[i];
            return s.param[i].w;
        }
    fail_msg("no weights %s", name);
    return NULL;
}

static void expert_name(char *out, size_t n, int layer, int expert, const char *module, char matrix) {
    snprintf(out, n, "base_model.model.model.layers.%d.mlp.experts.%d.%s.lora_%c.weight", layer, expert, module,
             matrix);
}

/* Sets members of adapter_config.json; NULL: removes it. */
static void edit_config(const char *dir, const char *key, json_t *value) {
    CLEANUP_STR struct str path = STR_INIT;
    str_addf(&path, "%s/adapter_config.json", dir);
    json_t *j;
    CHECK(js_load(path.p, 1 << 20, &j, &err));
    if (value)
        json_object_set_new(j, key, value);
    else
        json_object_del(j, key);
    CLEANUP_FREE char *text = json_dumps(j, 0);
    json_decref(j);
    CHECK(fs_write_atomic(path.p, text, strlen(text), &err));
}

static bool has_tensor(const char *dir, const char *name) {
    CLEANUP_STR struct str path = STR_INIT;
    struct st_file f;
    str_addf(&path, "%s/adapter_model.safetensors", dir);
    CHECK(st_open(path.p, &f, &err));
    const bool there = st_find(&f, name) != NULL;
    st_close(&f);
    return there;
}

static void refuse_fused_of_dense(void) {
    struct model *m;
    CHECK(model_init(CONFIG_OF("6", ",\"mlp_only_layers\":[0,1,2]"), 1, NULL, be, &m, &err));
    CHECK(model_expert_files(m, EXPERT_FILES_AUTO, &err));
    assert_int_equal(model_expert_files(m, EXPERT_FILES_FUSED, &err), ST_INVALID);
    model_free(m);
}

/* One pair of tensors for all experts of a layer: where each number stands, and that it comes back bit for bit. */
static void test_fused_files(void **state) {
    (void)state;
    enum { D = 40, F = 24, RANK = 3 };
    struct model *m = make(config, be);
    const int a = adapter_with(m, 8, RANK, 1);
    CHECK(model_adapter_prepare(m, a, &err)); /* lists its weights */
    CLEANUP_FREE float *want = logits_of(m, ids, T, a);
    CHECK(model_expert_files(m, EXPERT_FILES_FUSED, &err));
    CLEANUP_STR struct str dir = STR_INIT, again = STR_INIT, path = STR_INIT;
    str_adds(&dir, in_tmp("fused-adapter"));
    str_adds(&again, in_tmp("fused-again"));
    CHECK(model_adapter_save(m, a, dir.p, &err));
    static const char inner[] = "base_model.model.model.layers.2.mlp.experts.base_layer.lora_A.weight";
    static const char outer[] = "base_model.model.model.layers.2.mlp.experts.lora_B.weight";
    assert_true(has_tensor(dir.p, inner) && has_tensor(dir.p, outer));
    assert_false(has_tensor(dir.p, "base_model.model.model.layers.2.mlp.experts.0.up_proj.lora_A.weight"));

    /* Column i E + e of B, row e R + i of A; up behind gate. */
    struct st_file f;
    str_addf(&path, "%s/adapter_model.safetensors", dir.p);
    CHECK(st_open(path.p, &f, &err));
    const struct st_tensor *t;
    CLEANUP_FREE float *ga = xmalloc(2 * RANK * E * D * sizeof(float)),
                       *gb = xmalloc(2 * F * 2 * RANK * E * sizeof(float)), *db = xmalloc(D * RANK * E * sizeof(float));
    CHECK(st_get(&f, inner, 2, (const int64_t[]){2 * RANK * E, D}, &t, &err));
    CHECK(st_read_f32(t, ga, &err));
    CHECK(st_get(&f, "base_model.model.model.layers.2.mlp.experts.base_layer.lora_B.weight", 2,
                 (const int64_t[]){2 * F, 2 * RANK * E}, &t, &err));
    CHECK(st_read_f32(t, gb, &err));
    CHECK(st_get(&f, outer, 2, (const int64_t[]){D, RANK * E}, &t, &err));
    CHECK(st_read_f32(t, db, &err));
    st_close(&f);
    for (int e = 0; e < E; e++)
        for (int i = 0; i < RANK; i++)
            for (int up = 0; up < 2; up++) {
                char name[2][96];
                const int row = up * RANK + i;
                expert_name(name[0], sizeof name[0], 2, e, up ? "up_proj" : "gate_proj", 'A');
                expert_name(name[1], sizeof name[1], 2, e, up ? "up_proj" : "gate_proj", 'B');
                assert_memory_equal(weights_named(m, a, name[0], NULL) + i * D, ga + (e * 2 * RANK + row) * D,
                                    D * sizeof(float));
                for (int o = 0; o < F; o++) {
                    assert_true(gb[(up * F + o) * 2 * RANK * E + row * E + e] ==
                                weights_named(m, a, name[1], NULL)[o * RANK + i]);
                    assert_true(gb[((1 - up) * F + o) * 2 * RANK * E + row * E + e] == 0);
                }
                expert_name(name[0], sizeof name[0], 2, e, "down_proj", 'B');
                for (int o = 0; o < D; o++)
                    assert_true(db[o * RANK * E + i * E + e] == weights_named(m, a, name[0], NULL)[o * RANK + i]);
            }

    /* Read, it is what it was, and is written so again unless tensors of each expert are asked for. */
    struct model *other = make(config, be);
    int b, c;
    struct adapter_info info;
    CHECK(model_adapter_load(other, dir.p, &b, &err));
    assert_true(model_adapter_info(other, b, &info));
    assert_true(info.shape.rank == 8 && info.shape.expert_rank == RANK);
    CLEANUP_FREE float *got = logits_of(other, ids, T, b);
    assert_memory_equal(got, want, sizeof *got * T * V);
    CHECK(model_adapter_prepare(other, b, &err));
    const struct train_set x = model_train_set(m, a), y = model_train_set(other, b);
    assert_int_equal(x.n, y.n);
    for (int i = 0; i < x.n; i++) {
        assert_string_equal(x.param[i].name, y.param[i].name);
        assert_memory_equal(x.param[i].w, y.param[i].w, (size_t)x.param[i].n * sizeof(float));
    }
    model_adapter_release(other, b);
    CHECK(model_adapter_save(other, b, again.p, &err));
    assert_true(has_tensor(again.p, inner));
    CHECK(model_expert_files(other, EXPERT_FILES_EACH, &err));
    CHECK(model_adapter_save(other, b, again.p, &err));
    assert_false(has_tensor(again.p, inner));
    CHECK(model_adapter_load(other, again.p, &c, &err));
    CLEANUP_FREE float *each = logits_of(other, ids, T, c);
    assert_memory_equal(each, want, sizeof *each * T * V);

    /* Into an adapter of another rank. */
    struct model *wide = make(config, be);
    CHECK(model_lora_create(wide, &(struct adapter_shape){8, 16, 0, RANK + 1}, 1, &err));
    CHECK(model_train_prepare(wide, TRAIN_LORA, &err));
    CLEANUP_STR struct str file = STR_INIT;
    str_addf(&file, "%s/adapter_model.safetensors", dir.p);
    assert_int_equal(model_params_load(wide, file.p, &err), ST_INVALID);
    assert_non_null(strstr(err.msg, "is of rank 6, expected 8"));
    model_free(wide);
    /* What is damaged. */
    edit_config(dir.p, "rank_pattern", json_object());
    assert_int_equal(model_adapter_load(other, dir.p, &c, &err), ST_INVALID);
    assert_non_null(strstr(err.msg, "is of rank 6, and r or rank_pattern says 8"));
    model_free(other);
    model_free(m);
    refuse_fused_of_dense();
}

/* As PEFT trains it: gate and up share A, and B has numbers in every column. */
static void test_fused_of_others(void **state) {
    (void)state;
    enum { D = 40, F = 24, R = 2 };
    struct model *m = make(config, be);
    const int a = adapter_with(m, R, R, 4);
    CHECK(model_adapter_prepare(m, a, &err));
    for (int l = 0; l < L; l++) /* gate and up share A */
        for (int e = 0; e < E; e++) {
            char gate[96], up[96];
            expert_name(gate, sizeof gate, l, e, "gate_proj", 'A');
            expert_name(up, sizeof up, l, e, "up_proj", 'A');
            memcpy(weights_named(m, a, up, NULL), weights_named(m, a, gate, NULL), R * D * sizeof(float));
        }
    model_adapter_changed(m, a);
    CLEANUP_FREE float *want = logits_of(m, ids, T, a);
    CLEANUP_STR struct str dir = STR_INIT, path = STR_INIT;
    str_adds(&dir, in_tmp("shared"));
    CHECK(model_adapter_save(m, a, dir.p, &err));
    str_addf(&path, "%s/adapter_model.safetensors", dir.p);
    enum { MOST = 40 };
    struct st_entry en[MOST];
    char names[MOST][96];
    float *owned[MOST];
    int n = 0, made = 0;
    const struct train_set s = model_train_set(m, a);
    for (int i = 0; i < s.n; i++)
        if (!strstr(s.param[i].name, ".experts."))
            en[n++] = (struct st_entry){.name = s.param[i].name,
                                        .dtype = ST_DTYPE_F32,
                                        .from = ST_DTYPE_F32,
                                        .nd = 2,
                                        .dim = {s.param[i].dim[0], s.param[i].dim[1]},
                                        .data = s.param[i].w};
    for (int l = 0; l < L; l++)
        for (int down = 0; down < 2; down++)
            for (int b = 0; b < 2; b++) {
                const int in = down ? F : D, out = down ? D : 2 * F;
                float *v = owned[made] = xcalloc((size_t)(b ? out * R * E : R * E * in), sizeof *v);
                for (int e = 0; e < E; e++)
                    for (int part = 0; part < (down ? 1 : 2); part++) {
                        char from[96];
                        expert_name(from, sizeof from, l, e,
                                    down   ? "down_proj"
                                    : part ? "up_proj"
                                           : "gate_proj",
                                    b ? 'B' : 'A');
                        const float *w = weights_named(m, a, from, NULL);
                        if (!b) memcpy(v + e * R * in, w, (size_t)(R * in) * sizeof *v);
                        for (int o = 0; b && o < (down ? D : F); o++)
                            for (int i = 0; i < R; i++) v[(part * F + o) * R * E + i * E + e] = w[o * R + i];
                    }
                /* The nesting is the other way round than ours: shapes tell which is which. */
                snprintf(names[made], sizeof names[made],
                         "base_model.model.model.layers.%d.mlp.experts%s.lora_%c.weight", l, down ? ".base_layer" : "",
                         b ? 'B' : 'A');
                assert_true(n < MOST);
                en[n++] = (struct st_entry){.name = names[made++],
                                            .dtype = ST_DTYPE_F32,
                                            .from = ST_DTYPE_F32,
                                            .nd = 2,
                                            .dim = {b ? out : R * E, b ? R * E : in},
                                            .data = v};
            }
    CHECK(st_write(path.p, en, (size_t)n, NULL, &err));
    edit_config(dir.p, "target_parameters", json_pack("[ss]", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"));
    int back;
    CHECK(model_adapter_load(m, dir.p, &back, &err));
    CLEANUP_FREE float *got = logits_of(m, ids, T, back);
    assert_memory_equal(got, want, sizeof *got * T * V);
    /* Written and read once more, also with a B that is zero where another's columns would be. */
    CHECK(model_adapter_save(m, back, in_tmp("shared-again"), &err));
    CHECK(model_adapter_load(m, in_tmp("shared-again"), &back, &err));
    CLEANUP_FREE float *more = logits_of(m, ids, T, back);
    assert_memory_equal(more, want, sizeof *more * T * V);

    /* A tensor that is missing, and one of another model. */
    CHECK(st_write(path.p, en, (size_t)n - 1, NULL, &err));
    assert_int_equal(model_adapter_load(m, dir.p, &back, &err), ST_INVALID);
    assert_non_null(strstr(err.msg, "layers.2.mlp.experts.base_layer.lora_B.weight\" is missing"));
    en[n - 1].dim[0] = D / 2;
    CHECK(st_write(path.p, en, (size_t)n, NULL, &err));
    assert_int_equal(model_adapter_load(m, dir.p, &back, &err), ST_INVALID);
    assert_non_null(strstr(err.msg, "their shapes fit neither"));
    for (int i = 0; i < made; i++) free(owned[i]);
    model_free(m);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

static void refuse(const char *text, enum status st, const char *why) {
    struct model *m = NULL;
    assert_int_equal(model_init(text, 1, NULL, be, &m, &err), st);
    if (!strstr(err.msg, why)) fail_msg("\"%s\" lacks \"%s\"", err.msg, why);
}

static void test_configs(void **state) {
    (void)state;
    refuse(CONFIG_OF("0", ""), ST_INVALID, "num_experts: expected an integer in 1..1024, got 0");
    refuse(CONFIG_OF("6", ",\"num_local_experts\":0"), ST_INVALID, "num_local_experts: expected an integer in 1..1024");
    refuse(CONFIG_OF("1", ""), ST_INVALID, "num_experts_per_tok: expected an integer in 1..1, got 2");
    refuse(CONFIG_OF("6", ",\"decoder_sparse_step\":0"), ST_INVALID, "decoder_sparse_step");
    refuse(CONFIG_OF("6", ",\"mlp_only_layers\":3"), ST_PARSE, "mlp_only_layers");
    refuse(CONFIG_OF("6", ",\"mlp_only_layers\":[0,-1]"), ST_INVALID, "mlp_only_layers[1]");
    refuse(CONFIG_OF("6", ",\"norm_topk_prob\":3"), ST_PARSE, "norm_topk_prob");
    struct model *m;
    CHECK(model_init(CONFIG_OF("6", ",\"decoder_sparse_step\":2,\"mlp_only_layers\":[7]"), 1, NULL, be, &m, &err));
    const struct model_config *c = model_cfg(m);
    assert_true(!c->sparse[0] && c->sparse[1] && !c->sparse[2] && c->E == 6 && c->top_k == 2 && c->moe_F == 24);
    model_free(m);
    CHECK(model_init(CONFIG_OF("6", ",\"num_local_experts\":4"), 1, NULL, be, &m, &err));
    assert_int_equal(model_cfg(m)->E, 4);
    model_free(m);
    CHECK(model_init(CONFIG_OF("6", ",\"mlp_only_layers\":[0,1,2]"), 1, NULL, be, &m, &err));
    assert_int_equal(model_cfg(m)->E, 0);
    free(logits_of(m, ids, T, ADAPTER_OWN));
    model_free(m);
    /* A backend without the ops. */
    const struct expert_ops *ops = be->experts;
    be->experts = NULL;
    refuse(config, ST_UNSUPPORTED, "mixtures of experts are not supported on device");
    be->experts = ops;
}

int main(void) {
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_route),
        cmocka_unit_test(test_route_bits),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_adapters_in_a_batch),
        cmocka_unit_test(test_experts_in_another_order),
        cmocka_unit_test(test_work_grows_with_the_chosen),
        cmocka_unit_test(test_checkpoints),
        cmocka_unit_test(test_router_is_exact),
        cmocka_unit_test(test_adapter_files),
        cmocka_unit_test(test_fused_files),
        cmocka_unit_test(test_fused_of_others),
        cmocka_unit_test(test_configs),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
