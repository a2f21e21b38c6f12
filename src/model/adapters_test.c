/* Several adapters over one base, in one batch: every row has the bits of a model that holds its adapter alone, in
 * training passes and in steps with a cache, whatever stands beside it, on the head as in the layers; prefixes are
 * shared within an adapter alone; a batch trains the adapter that it is of; what cannot be is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/rng.h"
#include "io/safetensors.h"
#include "model/model.h"
#include "tensor/backend.h"

static const char policy[] = "{\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":150,\"hidden_size\":72,"
                             "\"intermediate_size\":136,\"num_hidden_layers\":2,\"num_attention_heads\":6,"
                             "\"num_key_value_heads\":2,\"head_dim\":20,\"max_position_embeddings\":400,"
                             "\"tie_word_embeddings\":true}";
static const char untied[] = "{\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":150,\"hidden_size\":72,"
                             "\"intermediate_size\":136,\"num_hidden_layers\":2,\"num_attention_heads\":6,"
                             "\"num_key_value_heads\":2,\"head_dim\":20,\"max_position_embeddings\":400,"
                             "\"tie_word_embeddings\":false}";
static const char wider[] = "{\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":150,\"hidden_size\":80,"
                            "\"intermediate_size\":136,\"num_hidden_layers\":2,\"num_attention_heads\":6,"
                            "\"num_key_value_heads\":2,\"head_dim\":20,\"max_position_embeddings\":400,"
                            "\"tie_word_embeddings\":true}";
static const char *const dtypes[] = {"f32", "bf16"};

static struct backend *two; /* the CPU: parameters can be written in place */
static struct pool *pool;
static char tmp_dir[] = "/tmp/kernelrl-adapters-XXXXXX";
static struct err err;

#define CHECK(x)                                   \
    do {                                           \
        struct err *e_ = &err;                     \
        if ((x) != ST_OK) fail_msg("%s", e_->msg); \
    } while (0)

static const char *in_tmp(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", tmp_dir, name);
    return path;
}

/* B, which starts at zero. */
static void fill_b(struct model *m, int adapter, uint64_t seed) {
    CHECK(model_adapter_prepare(m, adapter, &err));
    const struct train_set s = model_train_set(m, adapter);
    for (int i = 1; i < s.n; i += 2) {
        struct rng r = rng_make(seed, 100 + (uint64_t)i);
        for (int64_t j = 0; j < s.param[i].n; j++) s.param[i].w[j] = 0.1f * (float)rng_normal(&r);
    }
    model_adapter_changed(m, adapter);
}

/* A model with an adapter of this rank, these parts and this seed; rank 0: without. */
static struct model *make(const char *config, const char *dtype, int rank, unsigned parts, uint64_t seed) {
    struct model *m;
    const struct model_options o = {.dtype = dtype};
    CHECK(model_init(config, 5, &o, two, &m, &err));
    int n;
    const struct param *p = model_params(m, &n);
    for (int i = 0; i < n; i++)
        for (int64_t j = 0; j < p[i].n && p[i].nd == 2; j++) p[i].w[j] *= 6;
    model_params_changed(m);
    if (rank == 0) return m;
    CHECK(model_lora_create(m, &(struct adapter_shape){rank, 8.0f, parts, 0}, seed, &err));
    fill_b(m, ADAPTER_OWN, seed);
    return m;
}

/* Ranks and parts apart; of the last one the up projection alone. */
enum { ADAPTERS = 6 }; /* the base, the own one, four others */
static const int which[ADAPTERS] = {ADAPTER_BASE, ADAPTER_OWN, 1, 2, 3, 4}, ranks[ADAPTERS] = {0, 5, 3, 8, 2, 8};
static const unsigned parts[ADAPTERS] = {
    0, ADAPTER_LAYERS, ADAPTER_ATTENTION, ADAPTER_LAYERS | ADAPTER_HEAD, ADAPTER_HEAD, ADAPTER_MLP};
static const char *const folder[ADAPTERS] = {NULL, "own", "first", "second", "third", "fourth"};

static struct model *alone(const char *config, const char *dtype, int i) {
    struct model *m = make(config, dtype, i == 1 ? ranks[1] : 0, parts[1], (uint64_t)i);
    if (i > 1) CHECK(model_lora_load(m, in_tmp(folder[i]), &err));
    return m;
}

static struct model *with_all(const char *config, const char *dtype) {
    struct model *m = make(config, dtype, ranks[1], parts[1], 1);
    for (int i = 2, index; i < ADAPTERS; i++) {
        CHECK(model_adapter_load(m, in_tmp(folder[i]), &index, &err));
        assert_int_equal(index, which[i]);
    }
    return m;
}

static int setup(void **state) {
    (void)state;
    struct err e;
    pool = pool_create(2);
    if (cpu_backend_open(pool, &two, &e) != ST_OK || !mkdtemp(tmp_dir)) return 1;
    for (int i = 2; i < ADAPTERS; i++) {
        struct model *m = make(policy, "f32", ranks[i], parts[i], (uint64_t)i);
        CHECK(model_lora_save(m, in_tmp(folder[i]), &err));
        int n;
        const struct param *p = model_params(m, &n);
        struct st_entry *kept = xcalloc((size_t)n, sizeof *kept);
        size_t n_kept = 0;
        for (int k = 0; k < n; k++)
            if (i + 1 < ADAPTERS || strstr(p[k].name, "up_proj"))
                kept[n_kept++] = (struct st_entry){.name = p[k].name,
                                                   .dtype = ST_DTYPE_F32,
                                                   .from = ST_DTYPE_F32,
                                                   .nd = 2,
                                                   .dim = {p[k].dim[0], p[k].dim[1]},
                                                   .data = p[k].w};
        char path[64];
        snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder[i]);
        CHECK(st_write(in_tmp(path), kept, n_kept, NULL, &err));
        free(kept);
        model_free(m);
    }
    return 0;
}

static int teardown(void **state) {
    (void)state;
    two->close(two);
    pool_destroy(pool);
    struct err e;
    return fs_remove(tmp_dir, &e) == ST_OK ? 0 : 1;
}

static void same_bits(const float *a, const float *b, int64_t n, const char *what, int adapter) {
    for (int64_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof *a) != 0)
            fail_msg("%s, adapter %d: element %lld: %.9g is not %.9g", what, adapter, (long long)i, (double)a[i],
                     (double)b[i]);
}

/* A prompt longer than a block of the cache, and its answers. */
enum { PROMPT = 70, ANSWERS = 2, ANSWER = 9, T = PROMPT + ANSWERS * ANSWER, N = ANSWERS * ANSWER, V = 150 };
struct group {
    int32_t ids[ADAPTERS * T], rows[ADAPTERS * N], targets[ADAPTERS * N];
    struct segment seg[ADAPTERS * (1 + ANSWERS)];
};

/* The group once for each adapter of the list, adapters[] = its places in `which`. */
static struct train_batch batch_of(struct group *x, const int *adapters, int n) {
    for (int k = 0; k < n; k++) {
        struct rng r = rng_make(21, 0);
        for (int i = 0; i < T; i++) x->ids[k * T + i] = (int32_t)rng_below(&r, V);
        const int first = k * (1 + ANSWERS), adapter = which[adapters[k]];
        x->seg[first] = (struct segment){k * T, PROMPT, -1, adapter};
        for (int a = 0; a < ANSWERS; a++) {
            const int start = k * T + PROMPT + a * ANSWER;
            x->seg[first + 1 + a] = (struct segment){start, ANSWER, first, adapter};
            for (int i = 0; i < ANSWER; i++) {
                x->rows[k * N + a * ANSWER + i] = i ? start + i - 1 : k * T + PROMPT - 1;
                x->targets[k * N + a * ANSWER + i] = x->ids[start + i];
            }
        }
    }
    return (struct train_batch){.ids = x->ids,
                                .T = n * T,
                                .seg = x->seg,
                                .n_seg = n * (1 + ANSWERS),
                                .rows = x->rows,
                                .targets = x->targets,
                                .N = n * N,
                                .forward_only = true};
}

/* logp of the group under each adapter, by a model that has it alone; and no two are alike. */
static void expected(const char *config, const char *dtype, float want[ADAPTERS][N]) {
    static struct group x;
    static const int own = 1;
    for (int i = 0; i < ADAPTERS; i++) {
        struct model *m = alone(config, dtype, i);
        struct train_batch b = batch_of(&x, &own, 1);
        b.forward_only = false;
        CHECK(model_forward(m, &b, want[i], NULL, NULL, &err));
        model_free(m);
        for (int k = 0; k < i; k++)
            for (int j = 0; j < N; j++) assert_true(want[k][j] != want[i][j]);
    }
}

static void test_mixed_forward(void **state) {
    (void)state;
    static struct group x;
    static const int order[][ADAPTERS] = {{0, 1, 2, 3, 4, 5}, {3, 1, 0, 2, 5, 4}, {2, 0, 2, 1, 3, 3},
                                          {1, 1, 0, 0, 4, 3}, {3, 3, 3, 3, 3, 3}, {4, 4, 4, 4, 4, 4}};
    for (size_t d = 0; d < 2 * ARRAY_LEN(dtypes); d++) {
        static float want[ADAPTERS][N], got[ADAPTERS * N], logits[ADAPTERS * T * V];
        const char *config = d % 2 ? untied : policy, *dtype = dtypes[d / 2];
        expected(config, dtype, want);
        struct model *m = with_all(config, dtype);
        for (size_t i = 0; i < ARRAY_LEN(order); i++) {
            const struct train_batch b = batch_of(&x, order[i], ADAPTERS);
            CHECK(model_forward(m, &b, got, NULL, NULL, &err));
            for (int k = 0; k < ADAPTERS; k++) same_bits(got + k * N, want[order[i][k]], N, dtype, which[order[i][k]]);
        }
        /* Wanted rows in an order of their own, and the logits of all rows. */
        struct train_batch b = batch_of(&x, order[0], ADAPTERS);
        for (int j = 0; j < ADAPTERS * N; j++) {
            const int from = j * 7 % (ADAPTERS * N);
            b.rows = x.rows + from, b.targets = x.targets + from, b.N = 1;
            CHECK(model_forward(m, &b, got, NULL, NULL, &err));
            same_bits(got, &want[from / N][from % N], 1, "one row", which[from / N]);
        }
        CHECK(model_logits(m, &b, logits, &err));
        for (int j = 0; j < ADAPTERS * N; j++) {
            const float logp = logprob_row(logits + x.rows[j] * V, V, x.targets[j], NULL);
            same_bits(&logp, &want[j / N][j % N], 1, "logits", which[j / N]);
        }
        model_free(m);
    }
}

/* Many more rows are wanted than there are: the head's part has room for chunks of them. */
static void test_many_wanted(void **state) {
    (void)state;
    enum { LEN = 2, MANY = 700 };
    static const int32_t ids[LEN] = {3, 77};
    static int32_t rows[MANY], targets[MANY];
    static float got[MANY], g[MANY], one[LEN][V];
    const struct segment seg = {0, LEN, -1, ADAPTER_OWN};
    struct train_batch b = {ids, LEN, &seg, 1, rows, targets, MANY, false};
    struct model *m = make(policy, "f32", 3, ADAPTER_LAYERS | ADAPTER_HEAD, 4);
    CHECK(model_logits(m, &b, one[0], &err));
    for (int i = 0; i < MANY; i++) rows[i] = i % 2, targets[i] = i % V, g[i] = 1;
    CHECK(model_forward(m, &b, got, NULL, NULL, &err));
    for (int i = 0; i < MANY; i++) {
        const float want = logprob_row(one[rows[i]], V, targets[i], NULL);
        same_bits(got + i, &want, 1, "wanted row", i);
    }
    CHECK(model_backward(m, &b, g, &err));
    model_free(m);
}

/* Steps with one sequence of each adapter and answer, in an order that changes; prompts come in with whatever the cache
 * remembers, which is what this adapter has put there. */
static void test_mixed_steps(void **state) {
    (void)state;
    static struct group x;
    static const int own = 1;
    (void)batch_of(&x, &own, 1);
    enum { SEQS = ADAPTERS * ANSWERS };
    for (size_t d = 0; d < 2 * ARRAY_LEN(dtypes); d++) {
        const char *config = d % 2 ? untied : policy, *dtype = dtypes[d / 2];
        static float want[ADAPTERS][N], logits[(SEQS + 1) * V], out[SEQS * V];
        expected(config, dtype, want);
        struct model *m = with_all(config, dtype);
        struct kv_cache *kv;
        CHECK(kv_create(m, SEQS + 1, PROMPT + ANSWER, 0, &kv, &err));
        for (int round = 0; round < 2; round++) {
            for (int k = 0; k < ADAPTERS; k++) {
                const int seq = k * ANSWERS;
                kv_reset(kv, seq);
                kv_set_adapter(kv, seq, which[k]);
                const int64_t known = kv_match(kv, seq, x.ids, PROMPT - 1);
                assert_int_equal(known, round ? KV_BLOCK : 0);
                const int n = PROMPT - (int)known;
                CHECK(model_step(m, kv, 1, &seq, &n, x.ids + known, logits + seq * V, &err));
                for (int a = 1; a < ANSWERS; a++) {
                    kv_share(kv, seq + a, seq);
                    memcpy(logits + (seq + a) * V, logits + seq * V, V * sizeof *logits);
                }
            }
            for (int i = 0; i < ANSWER; i++) {
                int seq[SEQS], n[SEQS];
                int32_t ids[SEQS];
                for (int j = 0; j < SEQS; j++) {
                    const int s = (j * 5 + i) % SEQS, a = s % ANSWERS; /* 5 and 12: all of them, adapters apart */
                    const int32_t target = x.targets[a * ANSWER + i];
                    const float logp = logprob_row(logits + s * V, V, target, NULL);
                    same_bits(&logp, &want[s / ANSWERS][a * ANSWER + i], 1, dtype, which[s / ANSWERS]);
                    seq[j] = s;
                    n[j] = 1;
                    ids[j] = target;
                }
                CHECK(model_step(m, kv, SEQS, seq, n, ids, out, &err));
                for (int j = 0; j < SEQS; j++) memcpy(logits + seq[j] * V, out + j * V, V * sizeof *out);
            }
        }
        /* One of them changes: its blocks are not found any more, nor is the one that a sequence goes on with. */
        const int begun = SEQS, fed[2] = {10, KV_BLOCK - 10};
        kv_reset(kv, begun);
        kv_set_adapter(kv, begun, 2);
        CHECK(model_step(m, kv, 1, &begun, &fed[0], x.ids, logits, &err));
        model_adapter_changed(m, 2);
        CHECK(model_step(m, kv, 1, &begun, &fed[1], x.ids + fed[0], logits, &err));
        for (int k = 0; k < ADAPTERS; k++) {
            kv_reset(kv, SEQS);
            kv_set_adapter(kv, SEQS, which[k]);
            assert_int_equal(kv_match(kv, SEQS, x.ids, PROMPT), which[k] == 2 ? 0 : KV_BLOCK);
        }
        model_params_changed(m); /* of the base; nobody's are found */
        kv_reset(kv, SEQS);
        kv_set_adapter(kv, SEQS, 1);
        assert_int_equal(kv_match(kv, SEQS, x.ids, PROMPT), 0);
        kv_free(kv);
        model_free(m);
    }
}

/* Sequences that were begun with weights of an adapter that are no more go on over what they have, each for itself:
 * they share nothing with one another, though their tokens are the same. */
static void test_changed_under_way(void **state) {
    (void)state;
    enum { SEQS = 2, AT = KV_BLOCK + 8 };
    static const int fed[SEQS] = {10, 40}, one = 1;
    static float want[SEQS][V], got[V];
    int32_t ids[AT];
    for (int i = 0; i < AT; i++) ids[i] = i * 11 % V;
    for (int together = 0; together < 2; together++)
        for (int alone = 0; alone < (together ? 1 : SEQS); alone++) {
            struct model *m = with_all(policy, "f32");
            struct kv_cache *kv;
            CHECK(kv_create(m, SEQS, AT, 0, &kv, &err));
            for (int s = 0; s < SEQS; s++) {
                kv_set_adapter(kv, s, 1);
                if (together || s == alone) CHECK(model_step(m, kv, 1, &s, &fed[s], ids, got, &err));
            }
            fill_b(m, 1, 77);
            for (int s = 0; s < SEQS; s++) {
                if (!together && s != alone) continue;
                for (int t = fed[s]; t < AT; t++) CHECK(model_step(m, kv, 1, &s, &one, &ids[t], got, &err));
                if (together)
                    same_bits(got, want[s], V, "changed under way", s);
                else
                    memcpy(want[s], got, sizeof got);
            }
            kv_free(kv);
            model_free(m);
        }
    assert_true(memcmp(want[0], want[1], sizeof got) != 0);
}

static void refused(enum status got, enum status want, const char *says) {
    assert_int_equal(got, want);
    if (!strstr(err.msg, says)) fail_msg("\"%s\" does not say \"%s\"", err.msg, says);
}

/* The gradients of an adapter, alone and among others that are trained in turns: to the bit. Nobody's are touched by
 * others' batches or by one that mixes; what is not prepared is refused by name. */
static void test_each_has_its_gradients(void **state) {
    (void)state;
    static struct group x, y;
    static const int all[] = {1, 0, 2, 3, 4, 5}, none[] = {0}, turns[] = {3, 1, 5, 3, 4, 2, 1, 4, 5, 2};
    static float logp[ADAPTERS * N], g[ADAPTERS * N];
    for (int i = 0; i < ADAPTERS * N; i++) g[i] = (float)(i % 5) - 2;
    for (size_t d = 0; d < 2 * ARRAY_LEN(dtypes); d++) {
        const char *config = d % 2 ? untied : policy, *dtype = dtypes[d / 2];
        struct model *m = with_all(config, dtype), *one[ADAPTERS] = {0};
        struct train_batch b = batch_of(&x, &all[2], 1);
        b.forward_only = false;
        refused(model_forward(m, &b, logp, NULL, NULL, &err), ST_INVALID, "segment 0 is of adapter 1, which is not");
        for (int i = 2; i < ADAPTERS; i++) CHECK(model_adapter_prepare(m, which[i], &err));
        for (size_t k = 0; k < ARRAY_LEN(turns); k++) { /* each twice: gradients add up */
            const int i = turns[k];
            struct model *at[2] = {m, one[i] ? one[i] : alone(config, dtype, i)};
            one[i] = at[1];
            if (!model_train_set(one[i], ADAPTER_OWN).g) CHECK(model_train_prepare(one[i], TRAIN_LORA, &err));
            for (int side = 0; side < 2; side++) {
                b = batch_of(&x, &i, 1);
                b.forward_only = false;
                for (int j = 0; side && j < b.n_seg; j++) x.seg[j].adapter = ADAPTER_OWN;
                CHECK(model_forward(at[side], &b, logp, NULL, NULL, &err));
                CHECK(model_backward(at[side], &b, g, &err));
            }
        }
        struct train_batch mixed = batch_of(&y, all, ADAPTERS), base = batch_of(&x, none, 1);
        CHECK(model_forward(m, &mixed, logp, NULL, NULL, &err));
        refused(model_backward(m, &mixed, g, &err), ST_INVALID, "forward_only");
        mixed.forward_only = base.forward_only = false;
        refused(model_forward(m, &mixed, logp, NULL, NULL, &err), ST_INVALID,
                "segment 3 is of adapter -1, segment 0 of adapter 0");
        refused(model_forward(m, &base, logp, NULL, NULL, &err), ST_INVALID, "adapter -1, which is not trained");
        refused(model_backward(m, &base, g, &err), ST_INVALID, "not the last one");
        for (int i = 1; i < ADAPTERS; i++) {
            const struct train_set p = model_train_set(one[i], ADAPTER_OWN), q = model_train_set(m, which[i]);
            double sum = 0;
            assert_true(!p.base && !q.base && p.n == q.n && p.n_g == q.n_g);
            for (int k = 0; k < p.n; k++) {
                assert_string_equal(p.param[k].name, q.param[k].name);
                same_bits(q.param[k].g, p.param[k].g, p.param[k].n, p.param[k].name, which[i]);
                for (int64_t j = 0; j < p.param[k].n; j++) sum += p.param[k].g[j] != 0;
            }
            assert_true(sum > 0);
            model_free(one[i]);
        }
        model_free(m);
    }
}

/* The base and an adapter over it, each with its gradients; all weights' own go through the adapter that the batch is
 * of. */
static void test_the_base_beside_adapters(void **state) {
    (void)state;
    static struct group x;
    static const int none[] = {0}, third[] = {4};
    static float logp[N], g[N];
    struct model *m = with_all(policy, "f32"), *full = alone(policy, "f32", 0), *lora = alone(policy, "f32", 4);
    for (int i = 0; i < N; i++) g[i] = (float)(i % 5) - 2;
    CHECK(model_train_prepare(m, TRAIN_FULL, &err)); /* and the own one is not trained any more */
    CHECK(model_adapter_prepare(m, which[4], &err));
    CHECK(model_train_prepare(full, TRAIN_FULL, &err));
    CHECK(model_train_prepare(lora, TRAIN_LORA, &err));
    struct model *at[] = {m, m, full, lora};
    for (int k = 0; k < 4; k++) {
        struct train_batch b = batch_of(&x, k % 2 ? third : none, 1);
        b.forward_only = false;
        for (int j = 0; k > 1 && j < b.n_seg; j++) x.seg[j].adapter = ADAPTER_OWN;
        CHECK(model_forward(at[k], &b, logp, NULL, NULL, &err));
        CHECK(model_backward(at[k], &b, g, &err));
    }
    for (int k = 0; k < 2; k++) {
        const struct train_set p = model_train_set(k ? lora : full, ADAPTER_OWN),
                               q = model_train_set(m, k ? which[4] : ADAPTER_OWN);
        assert_true(p.base == !k && q.base == !k && p.n == q.n);
        for (int i = 0; i < p.n; i++) same_bits(q.param[i].g, p.param[i].g, p.param[i].n, p.param[i].name, k);
    }
    /* Through an adapter that is not trained the base's gradient is another one, the head's part included. */
    struct train_batch b = batch_of(&x, &(const int){3}, 1);
    b.forward_only = false;
    model_zero_grad(m);
    CHECK(model_forward(m, &b, logp, NULL, NULL, &err));
    CHECK(model_backward(m, &b, g, &err));
    const struct train_set p = model_train_set(full, ADAPTER_OWN), q = model_train_set(m, ADAPTER_OWN);
    assert_true(memcmp(p.param[0].g, q.param[0].g, (size_t)p.param[0].n * sizeof(float)) != 0);
    model_free(lora);
    model_free(full);
    model_free(m);
}

/* Equal seeds give equal matrices, whatever other parts there are; and a copy is a snapshot. */
static void test_new_ones(void **state) {
    (void)state;
    static const unsigned some[] = {ADAPTER_LAYERS, ADAPTER_ATTENTION, ADAPTER_MLP, ADAPTER_HEAD, 7};
    static struct group x;
    static float before[N], after[N];
    struct model *m = make(policy, "f32", 4, ADAPTER_LAYERS | ADAPTER_HEAD, 7);
    const struct train_set whole = model_train_set(m, ADAPTER_OWN);
    assert_int_equal(whole.n, 2 * (2 * 7 + 1));
    for (int i = 0; i < whole.n; i += 2) { /* a stream for each matrix, by layer and module */
        struct rng r = rng_make(7, (uint64_t)i);
        const double bound = 1 / sqrt((double)whole.param[i].dim[1]);
        assert_true(whole.param[i].w[0] == (float)((2 * rng_next_f64(&r) - 1) * bound));
    }
    for (size_t k = 0; k < ARRAY_LEN(some); k++) {
        int index, n = 0;
        struct adapter_info info;
        CHECK(model_adapter_create(m, &(struct adapter_shape){4, 16, some[k], 0}, 7, &index, &err));
        assert_int_equal(index, (int)k + 1);
        assert_true(model_adapter_info(m, index, &info) && info.shape.rank == 4 && info.shape.parts == some[k]);
        assert_true(!info.prepared && info.bytes > 0 && info.shape.alpha == 16);
        CHECK(model_adapter_prepare(m, index, &err));
        const struct train_set part = model_train_set(m, index);
        for (int i = 0; i < whole.n; i += 2)
            for (int j = 0; j < part.n; j += 2)
                if (strcmp(whole.param[i].name, part.param[j].name) == 0) {
                    assert_memory_equal(whole.param[i].w, part.param[j].w, (size_t)part.param[j].n * sizeof(float));
                    for (int64_t b = 0; b < part.param[j + 1].n; b++) assert_true(part.param[j + 1].w[b] == 0);
                    n++;
                }
        assert_int_equal(2 * n, part.n);
    }
    int index;
    refused(model_adapter_create(m, &(struct adapter_shape){0, 16, 1, 0}, 7, &index, &err), ST_INVALID, "rank");
    refused(model_adapter_create(m, &(struct adapter_shape){4, 0, 1, 0}, 7, &index, &err), ST_INVALID, "alpha");
    refused(model_adapter_create(m, &(struct adapter_shape){4, 1, 8, 0}, 7, &index, &err), ST_INVALID, "parts");
    refused(model_adapter_copy(m, 9, &index, &err), ST_INVALID, "no adapter 9");
    refused(model_adapter_prepare(m, 9, &err), ST_INVALID, "no adapter 9");
    CHECK(model_adapter_copy(m, ADAPTER_OWN, &index, &err));
    struct train_batch b = batch_of(&x, &(const int){1}, 1);
    CHECK(model_forward(m, &b, before, NULL, NULL, &err));
    fill_b(m, ADAPTER_OWN, 99);
    for (int j = 0; j < b.n_seg; j++) x.seg[j].adapter = index;
    CHECK(model_forward(m, &b, after, NULL, NULL, &err));
    same_bits(after, before, N, "a copy", index);
    model_free(m);
}

/* Kept from the own one, dropped, loaded again: indices are new every time, and what is gone is refused. */
static void test_coming_and_going(void **state) {
    (void)state;
    static struct group x;
    static const int list[] = {2}, own[] = {1};
    static float want[ADAPTERS][N], got[N];
    expected(policy, "f32", want);
    struct model *m = make(policy, "f32", ranks[1], parts[1], 1);
    assert_true(model_adapter_there(m, ADAPTER_BASE) && model_adapter_there(m, ADAPTER_OWN));
    assert_false(model_adapter_there(m, 1) || model_adapter_there(m, -2));
    struct train_batch b = batch_of(&x, list, 1);
    refused(model_forward(m, &b, got, NULL, NULL, &err), ST_INVALID, "no adapter 1");
    assert_int_equal(model_adapter_keep(m), 1);
    CHECK(model_forward(m, &b, got, NULL, NULL, &err));
    same_bits(got, want[1], N, "kept", 1);
    b = batch_of(&x, own, 1);
    CHECK(model_forward(m, &b, got, NULL, NULL, &err));
    same_bits(got, want[0], N, "the base is left", 0);
    refused(model_train_prepare(m, TRAIN_LORA, &err), ST_INVALID, "no LoRA weights");
    CHECK(model_lora_load(m, in_tmp("first"), &err)); /* the own one is another now */
    CHECK(model_forward(m, &b, got, NULL, NULL, &err));
    same_bits(got, want[2], N, "a new own one", 0);
    int index;
    CHECK(model_adapter_load(m, in_tmp("second"), &index, &err));
    assert_int_equal(index, 2);

    struct kv_cache *kv;
    static float logits[V];
    const int seq = 0, n = 3;
    CHECK(kv_create(m, 1, 20, 0, &kv, &err));
    kv_set_adapter(kv, seq, 1);
    CHECK(model_step(m, kv, 1, &seq, &n, x.ids, logits, &err));
    model_adapter_drop(m, 1);
    assert_false(model_adapter_there(m, 1));
    refused(model_step(m, kv, 1, &seq, &n, x.ids, logits, &err), ST_INVALID, "no adapter 1");
    kv_free(kv);
    b = batch_of(&x, list, 1);
    refused(model_forward(m, &b, got, NULL, NULL, &err), ST_INVALID, "no adapter 1");
    CHECK(model_adapter_load(m, in_tmp("second"), &index, &err));
    assert_int_equal(index, 3);

    struct train_batch torn = batch_of(&x, own, 1);
    x.seg[1].adapter = 2; /* continues a prompt of the own one */
    refused(model_forward(m, &torn, got, NULL, NULL, &err), ST_INVALID, "continues one of adapter 0");
    model_free(m);
}

/* An adapter of another base, or none: refused, and what was there works on. */
static void test_malformed(void **state) {
    (void)state;
    static struct group x;
    static const int list[] = {1, 2, 3};
    static float before[3 * N], after[3 * N];
    struct model *m = with_all(policy, "f32"), *other = make(wider, "f32", 3, 0, 1);
    struct train_batch b = batch_of(&x, list, 3);
    CHECK(model_forward(m, &b, before, NULL, NULL, &err));
    model_set_name(other, "org/wider");
    CHECK(model_lora_save(other, in_tmp("wider"), &err));
    int index = 77;
    refused(model_adapter_load(m, in_tmp("wider"), &index, &err), ST_INVALID, "made for \"org/wider\"");
    assert_true(model_adapter_load(m, in_tmp("nothing"), &index, &err) != ST_OK);
    int n;
    struct param *p = (struct param *)(uintptr_t)model_params(other, &n);
    p[0].w[0] = (float)INFINITY;
    CHECK(model_lora_save(other, in_tmp("infinite"), &err));
    struct model *same = make(wider, "f32", 0, 0, 1);
    assert_int_equal(model_adapter_load(same, in_tmp("infinite"), &index, &err), ST_INVALID);
    assert_int_equal(index, 77);
    assert_false(model_adapter_there(m, 5) || model_adapter_there(same, 1));
    CHECK(model_forward(m, &b, after, NULL, NULL, &err));
    same_bits(after, before, 3 * N, "after what was refused", 0);
    model_free(same);
    model_free(other);
    model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mixed_forward),
        cmocka_unit_test(test_many_wanted),
        cmocka_unit_test(test_mixed_steps),
        cmocka_unit_test(test_changed_under_way),
        cmocka_unit_test(test_each_has_its_gradients),
        cmocka_unit_test(test_the_base_beside_adapters),
        cmocka_unit_test(test_new_ones),
        cmocka_unit_test(test_coming_and_going),
        cmocka_unit_test(test_malformed),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
