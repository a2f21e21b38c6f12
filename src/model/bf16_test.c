/* Models that compute in bf16: one forward for sampling and training, the same bits with and without float32 values
 * beside the packed ones, gradients close to those of float32, and what a frozen model holds, saves and refuses. */
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

static const char tied[] = "{\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":150,\"hidden_size\":72,"
                           "\"intermediate_size\":136,\"num_hidden_layers\":2,\"num_attention_heads\":6,"
                           "\"num_key_value_heads\":2,\"head_dim\":20,\"max_position_embeddings\":4000,"
                           "\"tie_word_embeddings\":true}";
static const char untied[] = "{\"model_type\":\"qwen2\",\"vocab_size\":150,\"hidden_size\":48,"
                             "\"intermediate_size\":70,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
                             "\"num_key_value_heads\":2,\"max_position_embeddings\":400,"
                             "\"tie_word_embeddings\":false}";
static const char mixture[] = "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"vocab_size\":150,\"hidden_size\":48,"
                              "\"intermediate_size\":70,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
                              "\"num_key_value_heads\":2,\"max_position_embeddings\":400,\"head_dim\":12,"
                              "\"tie_word_embeddings\":false,\"num_experts\":5,\"num_experts_per_tok\":2,"
                              "\"moe_intermediate_size\":24}";
static const struct model_options f32 = {.dtype = "f32"}, bf16 = {.dtype = "bf16"},
                                  frozen = {.dtype = "bf16", .frozen = true};

static struct pool *pool;
static struct backend *two, *one;
static char tmp_dir[] = "/tmp/kernelrl-bf16-XXXXXX";
static struct err err;

#define CHECK(x)                                   \
    do {                                           \
        if ((x) != ST_OK) fail_msg("%s", err.msg); \
    } while (0)

static int setup(void **state) {
    (void)state;
    pool = pool_create(2);
    if (cpu_backend_open(pool, &two, &err) != ST_OK || cpu_backend_open(NULL, &one, &err) != ST_OK) return 1;
    return mkdtemp(tmp_dir) ? 0 : 1;
}

static int teardown(void **state) {
    (void)state;
    two->close(two);
    one->close(one);
    pool_destroy(pool);
    return fs_remove(tmp_dir, &err) == ST_OK ? 0 : 1;
}

static const char *in_tmp(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", tmp_dir, name);
    return path;
}

/* A checkpoint in bf16 whose weights bend softmax and SiLU, at tmp/name. */
static void write_checkpoint(const char *config, const char *name) {
    struct model *m;
    CHECK(model_init(config, 5, &f32, two, &m, &err));
    int n;
    const struct param *p = model_params(m, &n);
    for (int i = 0; i < n; i++) {
        struct rng r = rng_make(9, (uint64_t)i);
        for (int64_t j = 0; j < p[i].n; j++)
            p[i].w[j] = p[i].nd == 2 ? p[i].w[j] * 6 : p[i].w[j] + 0.3f * (float)rng_normal(&r);
    }
    CHECK(model_save(m, in_tmp(name), "bf16", &err));
    model_free(m);
}

static struct model *load(const char *name, const struct model_options *opt, struct backend *be, int lora_rank) {
    struct model *m;
    CHECK(model_load(in_tmp(name), opt, be, &m, &err));
    if (!lora_rank) return m;
    CHECK(model_lora_init(m, lora_rank, 8.0f, 11, &err));
    CHECK(model_train_prepare(m, TRAIN_LORA, &err));
    int n;
    const struct param *p = model_params(m, &n);
    for (int i = 1; i < n; i += 2) { /* B, which starts at zero */
        struct rng r = rng_make(10, (uint64_t)i);
        for (int64_t j = 0; j < p[i].n; j++) p[i].w[j] = 0.1f * (float)rng_normal(&r);
    }
    model_params_changed(m);
    return m;
}

static void same_bits(const float *a, const float *b, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof *a) != 0)
            fail_msg("%s: element %lld: %.9g is not %.9g", what, (long long)i, (double)a[i], (double)b[i]);
}

enum { PROMPT = 37, ANSWERS = 3, ANSWER = 21, T = PROMPT + ANSWERS * ANSWER, N = ANSWERS * ANSWER, V = 150 };

struct group {
    int32_t ids[T], rows[N], targets[N];
    struct segment seg[1 + ANSWERS];
    struct train_batch b;
    float g[N];
};

static void make_group(struct group *x) {
    struct rng r = rng_make(21, 0);
    for (int i = 0; i < T; i++) x->ids[i] = (int32_t)rng_below(&r, V);
    for (int i = 0; i < N; i++) x->g[i] = (float)rng_normal(&r);
    x->seg[0] = (struct segment){0, PROMPT, -1, 0};
    for (int a = 0; a < ANSWERS; a++) {
        x->seg[1 + a] = (struct segment){PROMPT + a * ANSWER, ANSWER, 0, 0};
        for (int i = 0; i < ANSWER; i++) {
            x->rows[a * ANSWER + i] = i ? PROMPT + a * ANSWER + i - 1 : PROMPT - 1;
            x->targets[a * ANSWER + i] = x->ids[PROMPT + a * ANSWER + i];
        }
    }
    x->b = (struct train_batch){x->ids, T, x->seg, 1 + ANSWERS, x->rows, x->targets, N, false};
}

/* What a sampler records, one token of all answers at a time behind a shared prompt. */
static void sampled(struct model *m, const struct group *x, float *logp) {
    struct kv_cache *kv;
    CHECK(kv_create(m, ANSWERS, PROMPT + ANSWER, 0, &kv, &err));
    static float logits[ANSWERS * V];
    int seq[ANSWERS] = {0}, len[ANSWERS] = {PROMPT};
    CHECK(model_step(m, kv, 1, seq, len, x->ids, logits, &err));
    for (int a = 0; a < ANSWERS; a++) {
        seq[a] = a;
        len[a] = 1;
        if (a) kv_share(kv, a, 0);
        if (a) memcpy(logits + a * V, logits, V * sizeof *logits);
    }
    for (int i = 0; i < ANSWER; i++) {
        int32_t ids[ANSWERS];
        for (int a = 0; a < ANSWERS; a++) {
            ids[a] = x->targets[a * ANSWER + i];
            logp[a * ANSWER + i] = logprob_row(logits + a * V, V, ids[a], NULL);
        }
        if (i + 1 < ANSWER) CHECK(model_step(m, kv, ANSWERS, seq, len, ids, logits, &err));
    }
    kv_free(kv);
}

static void test_one_forward(void **state) {
    (void)state;
    static struct group x;
    make_group(&x);
    for (int which = 0; which < 2; which++) {
        write_checkpoint(which ? untied : tied, "policy");
        float first[N];
        for (int variant = 0; variant < 4; variant++) { /* with and without float32, on two threads and on one */
            struct model *m = load("policy", variant % 2 ? &frozen : &bf16, variant / 2 ? one : two, 5);
            assert_string_equal(model_dtype(m), "bf16");
            float trained[N], recorded[N];
            CHECK(model_forward(m, &x.b, trained, NULL, NULL, &err));
            sampled(m, &x, recorded);
            same_bits(recorded, trained, N, "sampled and trained");
            if (variant == 0) memcpy(first, trained, sizeof first);
            same_bits(trained, first, N, "held in bf16 alone");
            model_free(m);
        }
        struct model *exact = load("policy", &f32, two, 5); /* and it is not the float32 model in disguise */
        float logp[N];
        double off = 0;
        CHECK(model_forward(exact, &x.b, logp, NULL, NULL, &err));
        for (int i = 0; i < N; i++) off = fmax(off, fabs((double)logp[i] - (double)first[i]));
        assert_true(off > 1e-5 && off < 0.2);
        model_free(exact);
    }
}

/* Several targets of a row: its logits are computed once, and have the bits of one alone. */
static void test_soft_targets(void **state) {
    (void)state;
    static struct group x;
    static int32_t rows[3 * N], targets[3 * N];
    float alone[N], soft[3 * N];
    make_group(&x);
    write_checkpoint(untied, "policy");
    struct model *m = load("policy", &bf16, two, 5);
    CHECK(model_forward(m, &x.b, alone, NULL, NULL, &err));
    for (int i = 0; i < 3 * N; i++) {
        rows[i] = x.rows[i / 3];
        targets[i] = i % 3 == 1 ? 7 : x.targets[i / 3];
    }
    x.b.rows = rows;
    x.b.targets = targets;
    x.b.N = 3 * N;
    CHECK(model_forward(m, &x.b, soft, NULL, NULL, &err));
    for (int i = 0; i < N; i++) {
        same_bits(&soft[3 * i], &alone[i], 1, "first");
        same_bits(&soft[3 * i + 2], &alone[i], 1, "last");
    }
    model_free(m);
}

/* |a - b| / |b| over all gradients of two models. */
static double gradients_off(struct model *a, struct model *b) {
    int n;
    const struct param *p = model_params(a, &n), *q = model_params(b, &n);
    double diff = 0, norm = 0;
    for (int i = 0; i < n; i++) {
        double d = 0, s = 0;
        for (int64_t j = 0; j < p[i].n; j++) {
            d += pow((double)p[i].g[j] - (double)q[i].g[j], 2);
            s += pow((double)q[i].g[j], 2);
        }
        assert_true(s > 0 && sqrt(d / s) < 0.1); /* no tensor is off as a whole */
        diff += d;
        norm += s;
    }
    return sqrt(diff / norm);
}

/* Rounding to 8 bits leaves about 1 percent of noise in a gradient; a wrong one would be off by all of it. Float32
 * gradients are held to finite differences by model_test. */
static void test_gradients(void **state) {
    (void)state;
    static struct group x;
    make_group(&x);
    float logp[N];
    for (int which = 0; which < 2; which++) {
        write_checkpoint(which ? untied : tied, "grad");
        for (int full = 0; full < 2; full++) {
            struct model *exact = load("grad", &f32, two, full ? 0 : 5);
            struct model *half = load("grad", full ? &bf16 : &frozen, two, full ? 0 : 5);
            struct model *alone = load("grad", &bf16, one, full ? 0 : 5);
            struct model *all[] = {exact, half, alone};
            for (int i = 0; i < 3; i++) {
                if (full) CHECK(model_train_prepare(all[i], TRAIN_FULL, &err));
                CHECK(model_forward(all[i], &x.b, logp, NULL, NULL, &err));
                CHECK(model_backward(all[i], &x.b, x.g, &err));
            }
            const double off = gradients_off(half, exact);
            assert_true(off > 1e-5 && off < 0.03);
            int n;
            const struct param *p = model_params(half, &n), *q = model_params(alone, &n);
            for (int i = 0; i < n; i++) same_bits(p[i].g, q[i].g, p[i].n, p[i].name);
            for (int i = 0; i < 3; i++) model_free(all[i]);
        }
    }
}

/* A lent base: its gradients, and what becomes of it with new values, have the bits of one that holds its values. */
static void test_lent(void **state) {
    (void)state;
    static const char *const configs[] = {tied, untied, mixture};
    static struct group x;
    make_group(&x);
    for (size_t which = 0; which < sizeof configs / sizeof *configs; which++) {
        write_checkpoint(configs[which], "lent");
        struct model *whole = load("lent", &bf16, two, 0), *lent = load("lent", &bf16, two, 0);
        CHECK(model_train_prepare(whole, TRAIN_FULL, &err));
        CHECK(model_train_prepare(lent, TRAIN_FULL_LENT, &err));
        const struct train_set a = model_train_set(whole, ADAPTER_OWN), b = model_train_set(lent, ADAPTER_OWN);
        assert_true(b.lent && !a.lent && a.n_g == b.n_g);
        const size_t bytes = (size_t)a.n_g * sizeof(float);
        float *values = malloc(bytes), logp[N], other[N];
        model_values_out(lent);
        memcpy(values, b.g, bytes);
        for (int step = 0; step < 2; step++) {
            CHECK(model_forward(whole, &x.b, logp, NULL, NULL, &err));
            CHECK(model_forward(lent, &x.b, other, NULL, NULL, &err));
            same_bits(other, logp, N, "log-probabilities");
            model_zero_grad(whole);
            model_zero_grad(lent);
            CHECK(model_backward(whole, &x.b, x.g, &err));
            CHECK(model_backward(lent, &x.b, x.g, &err));
            same_bits(b.g, a.g, a.n_g, "gradients");
            for (int i = 0; i < a.n; i++)
                for (int64_t j = 0; j < a.param[i].n; j++) {
                    float *const value = values + (b.param[i].g - b.g) + j;
                    a.param[i].w[j] -= 0.01f * a.param[i].g[j];
                    *value -= 0.01f * b.param[i].g[j];
                }
            memcpy(b.g, values, bytes);
            model_values_in(lent);
            model_params_changed(whole);
            model_params_changed(lent);
            for (int i = 0; i < a.n; i++) same_bits(b.param[i].w, a.param[i].w, a.param[i].n, a.param[i].name);
        }
        /* A value that is no number is found while values lie in the slab; a gradient there is not taken for one. */
        char where[300];
        const struct param *const lost = &b.param[2];
        assert_ptr_equal(lost->w, lost->g);
        lost->w[3] = NAN;
        assert_true(model_find_nonfinite(lent, ADAPTER_OWN, FIND_WEIGHTS, where, sizeof where));
        assert_non_null(strstr(where, lost->name));
        lost->w[3] = 0;
        CHECK(model_forward(lent, &x.b, other, NULL, NULL, &err));
        CHECK(model_backward(lent, &x.b, x.g, &err));
        lost->g[3] = NAN;
        assert_false(model_find_nonfinite(lent, ADAPTER_OWN, FIND_WEIGHTS, where, sizeof where));
        assert_int_equal(model_train_prepare(lent, TRAIN_FULL, &err), ST_INVALID);
        free(values);
        model_free(whole);
        model_free(lent);
    }
}

/* Full training changes float32 values; the packed ones must follow. */
static void test_repack(void **state) {
    (void)state;
    static struct group x;
    make_group(&x);
    write_checkpoint(tied, "repack");
    struct model *m = load("repack", &bf16, two, 0), *fresh;
    int n;
    const struct param *p = model_params(m, &n);
    for (int i = 0; i < n; i++)
        for (int64_t j = 0; j < p[i].n; j++) p[i].w[j] *= 1.0f + 0.01f * (float)(j % 7);
    model_params_changed(m);
    CHECK(model_save(m, in_tmp("repacked"), "f32", &err));
    CHECK(model_load(in_tmp("repacked"), &bf16, two, &fresh, &err));
    float a[N], b[N];
    CHECK(model_forward(m, &x.b, a, NULL, NULL, &err));
    CHECK(model_forward(fresh, &x.b, b, NULL, NULL, &err));
    same_bits(a, b, N, "after an update");
    model_free(m);
    model_free(fresh);
}

static void test_frozen(void **state) {
    (void)state;
    for (int which = 0; which < 2; which++) {
        write_checkpoint(which ? untied : tied, "base");
        struct model *m = load("base", &frozen, two, 0), *plain = load("base", &f32, two, 0), *again;
        int n, n_plain;
        const struct param *p = model_params(m, &n), *q = model_params(plain, &n_plain);
        assert_int_equal(n, n_plain);
        float *got = NULL;
        for (int i = 0; i < n; i++) { /* every matrix without float32, every value that of the file */
            assert_string_equal(p[i].name, q[i].name);
            assert_true((p[i].w == NULL) == (p[i].nd == 2));
            got = xrealloc(got, (size_t)p[i].n * sizeof *got);
            model_param_get(m, &p[i], got);
            same_bits(got, q[i].w, p[i].n, p[i].name);
        }
        CHECK(model_save(m, in_tmp("copy"), "bf16", &err));
        char file[2][300];
        size_t len[2];
        char *text[2];
        snprintf(file[0], sizeof file[0], "%s/base/model.safetensors", tmp_dir);
        snprintf(file[1], sizeof file[1], "%s/copy/model.safetensors", tmp_dir);
        for (int i = 0; i < 2; i++) CHECK(fs_read(file[i], 1 << 24, &text[i], &len[i], &err));
        assert_int_equal(len[0], len[1]);
        assert_memory_equal(text[0], text[1], len[0]);
        free(text[0]), free(text[1]);

        assert_int_equal(model_train_prepare(m, TRAIN_FULL, &err), ST_INVALID);
        assert_non_null(strstr(err.msg, "frozen"));
        CHECK(model_save(plain, in_tmp("wide"), "f32", &err)); /* a float32 file is rounded */
        CHECK(model_load(in_tmp("wide"), &frozen, two, &again, &err));
        const struct param *r = model_params(again, &n);
        for (int i = 0; i < n; i++) {
            got = xrealloc(got, (size_t)r[i].n * sizeof *got);
            model_param_get(again, &r[i], got);
            same_bits(got, q[i].w, r[i].n, r[i].name);
        }
        free(got);
        model_free(m);
        model_free(plain);
        model_free(again);
    }
}

static void test_put(void **state) {
    (void)state;
    write_checkpoint(untied, "put");
    struct model *m = load("put", &frozen, two, 0);
    int n;
    const struct param *p = model_params(m, &n), *v = NULL;
    for (int i = 0; i < n; i++)
        if (strstr(p[i].name, "layers.1.self_attn.v_proj.weight")) v = &p[i];
    assert_non_null(v);
    float *w = xcalloc((size_t)v->n, sizeof *w);
    for (int64_t j = 0; j < v->n; j++) w[j] = 1.00390625f + (float)j; /* 1 + 2^-8: halfway, to the even neighbour */
    model_param_put(m, v, w);
    model_param_get(m, v, w);
    assert_true(w[0] == 1.0f && w[1] == 2.0f);
    for (int64_t j = 0; j < v->n; j++) assert_true(w[j] == st_bf16_to_f32(st_f32_to_bf16(1.00390625f + (float)j)));
    free(w);
    model_free(m);
}

static void test_choice(void **state) {
    (void)state;
    struct model *m = NULL;
    CHECK(model_init(tied, 1, NULL, two, &m, &err)); /* small: float32 */
    assert_string_equal(model_dtype(m), "f32");
    model_free(m);
    const struct model_options bad = {.dtype = "fp8"};
    assert_int_equal(model_init(tied, 1, &bad, two, &m, &err), ST_INVALID);
    assert_non_null(strstr(err.msg, "dtype: expected auto, f32 or bf16, got \"fp8\""));
    struct backend without = *two;
    without.bf16 = false;
    assert_int_equal(model_init(tied, 1, &bf16, &without, &m, &err), ST_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "bf16 is not supported"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_forward), cmocka_unit_test(test_soft_targets), cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_lent),        cmocka_unit_test(test_repack),       cmocka_unit_test(test_frozen),
        cmocka_unit_test(test_put),         cmocka_unit_test(test_choice),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
