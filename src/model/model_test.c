/* The model against an independent one: a naive forward in double that reads the parameters by name, its finite
 * differences as gradients. Then the promises of model.h: equal bits whatever surrounds a row, one forward for sampling
 * and training, shared prompts, round trips, refused input. */
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
#include "base/str.h"
#include "io/safetensors.h"
#include "model/arch.h"
#include "model/model.h"
#include "tensor/backend.h"

static const char qwen3_tiny[] = "{\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":13,\"hidden_size\":10,"
                                 "\"intermediate_size\":12,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
                                 "\"num_key_value_heads\":2,\"head_dim\":6,\"max_position_embeddings\":400,"
                                 "\"rope_theta\":100.0,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":false,"
                                 "\"eos_token_id\":[3,4]}";
static const char qwen2_tiny[] = "{\"model_type\":\"qwen2\",\"vocab_size\":13,\"hidden_size\":12,"
                                 "\"intermediate_size\":9,\"num_hidden_layers\":2,\"num_attention_heads\":2,"
                                 "\"num_key_value_heads\":1,\"max_position_embeddings\":400,"
                                 "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":50.0},"
                                 "\"tie_word_embeddings\":true,\"eos_token_id\":5,\"rope_scaling\":null}";
/* Wide enough that every loop of the kernels has whole and partial steps. */
static const char qwen3_wide[] = "{\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":150,\"hidden_size\":72,"
                                 "\"intermediate_size\":136,\"num_hidden_layers\":2,\"num_attention_heads\":6,"
                                 "\"num_key_value_heads\":2,\"head_dim\":20,\"max_position_embeddings\":4000,"
                                 "\"tie_word_embeddings\":true}";

/* Mixtures of experts: dense layers among them, experts that are no power of two, weights of experts that add up to 1
 * or do not. */
#define MOE_OF(layers, more)                                                                                \
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"vocab_size\":13,\"hidden_size\":10,"                    \
    "\"intermediate_size\":12,\"num_hidden_layers\":" layers ",\"num_attention_heads\":4,"                  \
    "\"num_key_value_heads\":2,\"head_dim\":6,\"max_position_embeddings\":400,\"moe_intermediate_size\":7," \
    "\"rope_theta\":100.0,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":false," more "}"
static const char moe_tiny[] = MOE_OF("3", "\"num_experts\":5,\"num_experts_per_tok\":3,\"mlp_only_layers\":[1]");
static const char moe_norm_tiny[] = MOE_OF("2", "\"num_experts\":3,\"num_experts_per_tok\":2,"
                                                "\"norm_topk_prob\":true,\"decoder_sparse_step\":2");
static const char moe_wide[] = "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"vocab_size\":150,\"hidden_size\":72,"
                               "\"intermediate_size\":136,\"num_hidden_layers\":2,\"num_attention_heads\":6,"
                               "\"num_key_value_heads\":2,\"head_dim\":20,\"max_position_embeddings\":4000,"
                               "\"tie_word_embeddings\":true,\"num_experts\":11,\"num_experts_per_tok\":3,"
                               "\"moe_intermediate_size\":52,\"norm_topk_prob\":true,\"mlp_only_layers\":[0]}";

static struct pool *pool;
static struct backend *two, *one; /* the CPU with two threads and with one: parameters can be read in place */
static char tmp_dir[] = "/tmp/kernelrl-model-XXXXXX";

static int setup(void **state) {
    (void)state;
    struct err e;
    pool = pool_create(2);
    if (cpu_backend_open(pool, &two, &e) != ST_OK || cpu_backend_open(NULL, &one, &e) != ST_OK) return 1;
    return mkdtemp(tmp_dir) ? 0 : 1;
}

static int teardown(void **state) {
    (void)state;
    two->close(two);
    one->close(one);
    pool_destroy(pool);
    struct err e;
    return fs_remove(tmp_dir, &e) == ST_OK ? 0 : 1;
}

#define CHECK(x)                                   \
    do {                                           \
        struct err *e_ = &err;                     \
        if ((x) != ST_OK) fail_msg("%s", e_->msg); \
    } while (0)
static struct err err;

static const char *in_tmp(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", tmp_dir, name);
    return path;
}

/* A model whose every parameter matters: weights large enough to bend softmax and SiLU, gains and biases not trivial.
 */
static struct model *make(const char *config, struct backend *be, int lora_rank) {
    struct model *m;
    CHECK(model_init(config, 5, NULL, be, &m, &err));
    int n;
    const struct param *p = model_params(m, &n);
    for (int i = 0; i < n; i++) {
        struct rng r = rng_make(9, (uint64_t)i);
        for (int64_t j = 0; j < p[i].n; j++)
            p[i].w[j] = p[i].nd == 2 ? p[i].w[j] * 15 : p[i].w[j] + 0.3f * (float)rng_normal(&r);
    }
    model_params_changed(m);
    if (lora_rank) {
        CHECK(model_lora_init(m, lora_rank, 3.0f, 11, &err));
        CHECK(model_train_prepare(m, TRAIN_LORA, &err));
        p = model_params(m, &n);
        for (int i = 1; i < n; i += 2) { /* B, which starts at zero */
            struct rng r = rng_make(10, (uint64_t)i);
            for (int64_t j = 0; j < p[i].n; j++) p[i].w[j] = 0.3f * (float)rng_normal(&r);
        }
        model_params_changed(m);
    }
    return m;
}

/* ---- the oracle -------------------------------------------------------------------------------------------------- */

struct oracle {
    const struct model_config *c;
    const struct param *base, *lora;
    int n_base, n_lora;
    double lora_scale;
    const float *nudged; /* this element counts as its value plus nudge */
    double nudge;
};

static const struct param *by_name(const struct param *p, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (strcmp(p[i].name, name) == 0) return &p[i];
    return NULL;
}

static double at(const struct oracle *o, const float *p) { return (double)*p + (p == o->nudged ? o->nudge : 0); }

static void o_norm(const struct oracle *o, double *y, const double *x, const char *gain, int n) {
    const struct param *g = by_name(o->base, o->n_base, gain);
    assert_non_null(g);
    double s = 0;
    for (int i = 0; i < n; i++) s += x[i] * x[i];
    s = 1 / sqrt(s / n + (double)o->c->rms_eps);
    for (int i = 0; i < n; i++) y[i] = x[i] * s * at(o, g->w + i);
}

/* y = W x + b + LoRA of module `name` */
static void o_linear(const struct oracle *o, double *y, const double *x, const char *name) {
    char full[128];
    snprintf(full, sizeof full, "%s.weight", name);
    const struct param *w = by_name(o->base, o->n_base, full);
    assert_non_null(w);
    snprintf(full, sizeof full, "%s.bias", name);
    const struct param *b = by_name(o->base, o->n_base, full);
    for (int64_t i = 0; i < w->dim[0]; i++) {
        y[i] = b ? at(o, b->w + i) : 0;
        for (int64_t j = 0; j < w->dim[1]; j++) y[i] += at(o, w->w + i * w->dim[1] + j) * x[j];
    }
    snprintf(full, sizeof full, "base_model.model.%s.lora_A.weight", name);
    const struct param *la = by_name(o->lora, o->n_lora, full);
    if (!la) return;
    snprintf(full, sizeof full, "base_model.model.%s.lora_B.weight", name);
    const struct param *lb = by_name(o->lora, o->n_lora, full);
    for (int64_t r = 0; r < la->dim[0]; r++) {
        double a = 0;
        for (int64_t j = 0; j < la->dim[1]; j++) a += at(o, la->w + r * la->dim[1] + j) * x[j];
        for (int64_t i = 0; i < w->dim[0]; i++) y[i] += o->lora_scale * at(o, lb->w + i * lb->dim[1] + r) * a;
    }
}

enum { MAX_LEN = 12, MAX_DIM = 64 };

static void o_ffn(const struct oracle *o, double *y, const double *h, const char *in, int F) {
    double a[MAX_DIM], u[MAX_DIM];
    char name[128];
#define OF(what) (snprintf(name, sizeof name, "%s." what, in), name)
    o_linear(o, a, h, OF("gate_proj"));
    o_linear(o, u, h, OF("up_proj"));
    for (int i = 0; i < F; i++) a[i] = a[i] / (1 + exp(-a[i])) * u[i];
    o_linear(o, y, a, OF("down_proj"));
}

/* The experts in no order, the largest first. */
static void o_mixture(const struct oracle *o, double *y, const double *h, int l) {
    const struct model_config *c = o->c;
    double p[MAX_DIM], all = 0, chosen = 0, out[MAX_DIM];
    bool used[MAX_DIM] = {false};
    char name[96];
    snprintf(name, sizeof name, "model.layers.%d.mlp.gate", l);
    o_linear(o, p, h, name);
    for (int e = 0; e < c->E; e++) all += p[e] = exp(p[e]);
    for (int j = 0; j < c->top_k; j++) {
        int best = -1;
        for (int e = 0; e < c->E; e++)
            if (!used[e] && (best < 0 || p[e] > p[best])) best = e;
        used[best] = true;
        chosen += p[best];
    }
    for (int i = 0; i < c->D; i++) y[i] = 0;
    for (int e = 0; e < c->E; e++) {
        if (!used[e]) continue;
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d", l, e);
        o_ffn(o, out, h, name, c->moe_F);
        for (int i = 0; i < c->D; i++) y[i] += p[e] / (c->norm_topk ? chosen : all) * out[i];
    }
}

/* sum_t g[t] log p(ids[t+1] | ids[0..t]) for t in [from, n-1). */
static double o_forward(const struct oracle *o, const int32_t *ids, int n, const float *g, int from) {
    static double x[MAX_LEN][MAX_DIM], q[MAX_LEN][MAX_DIM], k[MAX_LEN][MAX_DIM], v[MAX_LEN][MAX_DIM];
    const struct model_config *c = o->c;
    const int D = c->D, K = c->K, half = K / 2;
    double h[MAX_DIM], a[MAX_DIM], y[MAX_DIM];
    char s[96];
    const struct param *em = by_name(o->base, o->n_base, "model.embed_tokens.weight");
    for (int t = 0; t < n; t++)
        for (int i = 0; i < D; i++) x[t][i] = at(o, em->w + ids[t] * D + i);
    for (int l = 0; l < c->L; l++) {
#define NAME(what) (snprintf(s, sizeof s, "model.layers.%d." what, l), s)
        for (int t = 0; t < n; t++) {
            o_norm(o, h, x[t], NAME("input_layernorm.weight"), D);
            o_linear(o, q[t], h, NAME("self_attn.q_proj"));
            o_linear(o, k[t], h, NAME("self_attn.k_proj"));
            o_linear(o, v[t], h, NAME("self_attn.v_proj"));
            for (int i = 0; i < c->H + c->G; i++) {
                double *z = i < c->H ? q[t] + i * K : k[t] + (i - c->H) * K;
                if (c->arch->qk_norm && i < c->H) o_norm(o, z, z, NAME("self_attn.q_norm.weight"), K);
                if (c->arch->qk_norm && i >= c->H) o_norm(o, z, z, NAME("self_attn.k_norm.weight"), K);
                for (int j = 0; j < half; j++) {
                    const double w = t * pow(c->rope.theta, -2.0 * j / K), p = z[j], r = z[j + half];
                    z[j] = p * cos(w) - r * sin(w);
                    z[j + half] = r * cos(w) + p * sin(w);
                }
            }
        }
        for (int t = 0; t < n; t++) {
            for (int i = 0; i < c->H; i++) {
                const int kv = i / (c->H / c->G) * K;
                double p[MAX_LEN], sum = 0;
                for (int j = 0; j <= t; j++) {
                    p[j] = 0;
                    for (int d = 0; d < K; d++) p[j] += q[t][i * K + d] * k[j][kv + d] / sqrt((double)K);
                    sum += p[j] = exp(p[j]);
                }
                for (int d = 0; d < K; d++) {
                    a[i * K + d] = 0;
                    for (int j = 0; j <= t; j++) a[i * K + d] += p[j] / sum * v[j][kv + d];
                }
            }
            o_linear(o, y, a, NAME("self_attn.o_proj"));
            for (int i = 0; i < D; i++) x[t][i] += y[i];
            o_norm(o, h, x[t], NAME("post_attention_layernorm.weight"), D);
            if (c->sparse[l])
                o_mixture(o, y, h, l);
            else
                o_ffn(o, y, h, NAME("mlp"), c->F);
            for (int i = 0; i < D; i++) x[t][i] += y[i];
        }
    }
    double loss = 0;
    const struct param *head = by_name(o->base, o->n_base, c->tied ? "model.embed_tokens.weight" : "lm_head.weight");
    for (int t = from; t + 1 < n; t++) {
        o_norm(o, h, x[t], "model.norm.weight", D);
        double sum = 0, target = 0;
        for (int w = 0; w < c->V; w++) {
            double z = 0;
            for (int i = 0; i < D; i++) z += at(o, head->w + w * D + i) * h[i];
            sum += exp(z);
            if (w == ids[t + 1]) target = z;
        }
        loss += (double)g[t - from] * (target - log(sum));
    }
    return loss;
}

/* A prompt of 4, two answers that continue it (3 and 5 tokens), and a lone sequence of 6. */
static const int32_t tiny_ids[18] = {1, 5, 12, 0, 7, 2, 9, 3, 3, 11, 6, 4, 8, 8, 10, 1, 2, 0};
static const struct segment tiny_seg[4] = {{0, 4, -1, 0}, {4, 3, 0, 0}, {7, 5, 0, 0}, {12, 6, -1, 0}};
static const int32_t tiny_rows[13] = {3, 4, 5, 3, 7, 8, 9, 10, 12, 13, 14, 15, 16};
static const int32_t tiny_targets[13] = {7, 2, 9, 3, 3, 11, 6, 4, 8, 10, 1, 2, 0};
static const float tiny_g[13] = {0.5f, -1.0f, 0.3f, 1.2f, -0.4f, 0.8f, -0.9f, 0.1f, 1.0f, -0.2f, 0.6f, 0.7f, -1.1f};
static const struct train_batch tiny = {tiny_ids, 18, tiny_seg, 4, tiny_rows, tiny_targets, 13, false};

static double tiny_loss(const struct oracle *o) {
    int32_t a[7], b[9];
    memcpy(a, tiny_ids, 4 * sizeof *a);
    memcpy(a + 4, tiny_ids + 4, 3 * sizeof *a);
    memcpy(b, tiny_ids, 4 * sizeof *b);
    memcpy(b + 4, tiny_ids + 7, 5 * sizeof *b);
    return o_forward(o, a, 7, tiny_g, 3) + o_forward(o, b, 9, tiny_g + 3, 3) +
           o_forward(o, tiny_ids + 12, 6, tiny_g + 8, 0);
}

static void gradients_of(const char *config, enum train_what what) {
    struct model *m = make(config, two, what == TRAIN_LORA || config == qwen3_tiny ? 3 : 0);
    struct oracle o = {.c = model_cfg(m), .lora_scale = 1.0};
    CHECK(model_train_prepare(m, TRAIN_NOTHING, &err));
    o.base = model_params(m, &o.n_base);
    if (what == TRAIN_LORA || config == qwen3_tiny) {
        CHECK(model_train_prepare(m, TRAIN_LORA, &err));
        o.lora = model_params(m, &o.n_lora);
    }
    CHECK(model_train_prepare(m, what, &err));
    float logp[13], twice = 0;
    CHECK(model_forward(m, &tiny, logp, NULL, NULL, &err));
    double sum = 0;
    for (int i = 0; i < 13; i++) sum += (double)tiny_g[i] * (double)logp[i];
    assert_true(fabs(sum - tiny_loss(&o)) < 1e-5);
    CHECK(model_backward(m, &tiny, tiny_g, &err));
    int n;
    const struct param *p = model_params(m, &n);
    for (int i = 0; i < n; i++) {
        double diff = 0, norm = 0;
        const bool expert = strstr(p[i].name, ".experts.") != NULL; /* nobody may have chosen it */
        for (int64_t j = 0; j < p[i].n; j++) {
            o.nudged = p[i].w + j;
            o.nudge = 1e-4;
            double d = tiny_loss(&o);
            o.nudge = -1e-4;
            d = (d - tiny_loss(&o)) / 2e-4;
            diff += (d - (double)p[i].g[j]) * (d - (double)p[i].g[j]);
            norm += d * d;
        }
        if (expert && norm == 0 && diff == 0) continue;
        if (!(norm > 1e-8) || !(sqrt(diff / norm) < 2e-5))
            fail_msg("%s: gradient of norm %g is off by %g", p[i].name, sqrt(norm), sqrt(diff));
    }
    double norm = 0;
    for (int i = 0; i < n; i++)
        for (int64_t j = 0; j < p[i].n; j++) norm += (double)p[i].g[j] * (double)p[i].g[j];
    assert_true(fabs(model_grad_norm(m) / sqrt(norm) - 1) < 1e-12);
    /* Backward adds, and may be called again after one forward. */
    twice = p[0].g[p[0].n - 1];
    CHECK(model_backward(m, &tiny, tiny_g, &err));
    assert_true(p[0].g[p[0].n - 1] == 0 ? twice == 0 : fabsf(p[0].g[p[0].n - 1] / twice - 2) < 1e-5f);
    model_zero_grad(m);
    assert_true(p[0].g[p[0].n - 1] == 0 && model_grad_norm(m) == 0);
    model_params_changed(m);
    assert_int_equal(model_backward(m, &tiny, tiny_g, &err), ST_INVALID); /* stale activations */
    model_free(m);
}

static void test_gradients(void **state) {
    (void)state;
    gradients_of(qwen2_tiny, TRAIN_FULL);
    gradients_of(qwen3_tiny, TRAIN_FULL); /* with LoRA in the way */
    gradients_of(qwen2_tiny, TRAIN_LORA);
    gradients_of(qwen3_tiny, TRAIN_LORA);
    gradients_of(moe_tiny, TRAIN_FULL);
    gradients_of(moe_tiny, TRAIN_LORA);
    gradients_of(moe_norm_tiny, TRAIN_FULL);
    gradients_of(moe_norm_tiny, TRAIN_LORA);
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */

static void same_bits(const float *a, const float *b, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof *a) != 0)
            fail_msg("%s: element %lld: %.9g is not %.9g", what, (long long)i, (double)a[i], (double)b[i]);
}

enum { PROMPT = 75, N_ANSWERS = 3, ANSWER = 70, TOTAL = PROMPT + N_ANSWERS * ANSWER, N_ROWS = N_ANSWERS * ANSWER };

struct group {
    int32_t ids[TOTAL], rows[N_ROWS], targets[N_ROWS];
    struct segment seg[1 + N_ANSWERS];
    struct train_batch b;
    float g[N_ROWS];
};

static void make_group(struct group *x) {
    struct rng r = rng_make(21, 0);
    for (int i = 0; i < TOTAL; i++) x->ids[i] = (int32_t)rng_below(&r, 150);
    for (int i = 0; i < N_ROWS; i++) x->g[i] = (float)rng_normal(&r);
    x->seg[0] = (struct segment){0, PROMPT, -1, 0};
    for (int a = 0; a < N_ANSWERS; a++) {
        x->seg[1 + a] = (struct segment){PROMPT + a * ANSWER, ANSWER, 0, 0};
        for (int i = 0; i < ANSWER; i++) {
            x->rows[a * ANSWER + i] = i ? PROMPT + a * ANSWER + i - 1 : PROMPT - 1;
            x->targets[a * ANSWER + i] = x->ids[PROMPT + a * ANSWER + i];
        }
    }
    x->b = (struct train_batch){x->ids, TOTAL, x->seg, 1 + N_ANSWERS, x->rows, x->targets, N_ROWS, false};
}

/* Each answer alone behind a prompt of its own, one batch each: the same bits. Gradients agree to rounding. */
static void shared_prompt(const char *config) {
    static struct group x;
    make_group(&x);
    struct model *m = make(config, two, 0), *m1 = make(config, one, 0);
    CHECK(model_train_prepare(m, TRAIN_FULL, &err));
    CHECK(model_train_prepare(m1, TRAIN_FULL, &err));
    float logp[N_ROWS], ent[N_ROWS], logp1[N_ROWS], ent1[N_ROWS];
    CHECK(model_forward(m, &x.b, logp, ent, NULL, &err));
    CHECK(model_forward(m1, &x.b, logp1, ent1, NULL, &err));
    same_bits(logp1, logp, N_ROWS, "logp, one thread");
    same_bits(ent1, ent, N_ROWS, "entropy, one thread");
    CHECK(model_backward(m, &x.b, x.g, &err));
    CHECK(model_backward(m1, &x.b, x.g, &err));
    int n;
    const struct param *p = model_params(m, &n), *p1 = model_params(m1, &n);
    for (int i = 0; i < n; i++) same_bits(p1[i].g, p[i].g, p[i].n, "gradients, one thread");

    model_zero_grad(m1);
    for (int a = N_ANSWERS - 1; a >= 0; a--) {
        int32_t ids[PROMPT + ANSWER], rows[ANSWER];
        memcpy(ids, x.ids, sizeof(int32_t) * PROMPT);
        memcpy(ids + PROMPT, x.ids + PROMPT + a * ANSWER, sizeof(int32_t) * ANSWER);
        for (int i = 0; i < ANSWER; i++) rows[i] = PROMPT + i - 1;
        const struct segment seg = {0, PROMPT + ANSWER, -1, 0};
        const struct train_batch b = {ids, PROMPT + ANSWER, &seg, 1, rows, x.targets + a * ANSWER, ANSWER, false};
        CHECK(model_forward(m1, &b, logp1, ent1, NULL, &err));
        same_bits(logp1, logp + a * ANSWER, ANSWER, "logp behind a private prompt");
        same_bits(ent1, ent + a * ANSWER, ANSWER, "entropy behind a private prompt");
        CHECK(model_backward(m1, &b, x.g + a * ANSWER, &err));
    }
    for (int i = 0; i < n; i++) {
        double d = 0, s = 0;
        for (int64_t j = 0; j < p[i].n; j++) {
            d += ((double)p[i].g[j] - (double)p1[i].g[j]) * ((double)p[i].g[j] - (double)p1[i].g[j]);
            s += (double)p[i].g[j] * (double)p[i].g[j];
        }
        if (!(s > 0) || !(sqrt(d / s) < 1e-5))
            fail_msg("%s: shared and private prompts differ by %g", p[i].name, sqrt(d / s));
    }
    model_free(m);
    model_free(m1);
}

static void test_shared_prompt(void **state) {
    (void)state;
    shared_prompt(qwen3_wide);
    shared_prompt(moe_wide);
}

/* ---- several targets of a row -------------------------------------------------------------------------------------*/

enum { SOFT = 5, SOFT_ROWS = 70, SOFT_N = SOFT * SOFT_ROWS };

static int64_t head_products; /* rows of all products with the head of a wide model */
static void (*plain_linear)(struct backend *, struct tensor, struct tensor, const struct weight *, const float *, bool);
static void counted_linear(struct backend *be, struct tensor y, struct tensor x, const struct weight *w,
                           const float *bias, bool accumulate) {
    if (w->N == 150 && w->K == 72) head_products += x.rows;
    plain_linear(be, y, x, w, bias, accumulate);
}

/* SOFT targets of each row, one behind the other; or `apart`, where an entry without a gradient stands between any two,
 * so that no neighbours want one row. */
struct soft {
    int32_t ids[SOFT_ROWS + 1], rows[2 * SOFT_N], targets[2 * SOFT_N];
    struct segment seg;
    struct train_batch b;
    float g[2 * SOFT_N], logp[2 * SOFT_N], entropy[2 * SOFT_N];
};
static void make_soft(struct soft *x, bool apart) {
    struct rng r = rng_make(31, 0);
    const int stride = apart ? 2 : 1;
    *x = (struct soft){.seg = {0, SOFT_ROWS + 1, -1, 0}};
    for (int i = 0; i <= SOFT_ROWS; i++) x->ids[i] = (int32_t)rng_below(&r, 150);
    for (int i = 0; i < SOFT_N; i++) {
        x->rows[i * stride] = i / SOFT;
        x->targets[i * stride] = (int32_t)rng_below(&r, 150);
        x->g[i * stride] = (float)rng_normal(&r);
        if (apart) x->rows[i * stride + 1] = SOFT_ROWS;
    }
    x->b = (struct train_batch){x->ids, SOFT_ROWS + 1, &x->seg, 1, x->rows, x->targets, SOFT_N * stride, false};
}

/* What the batch has taken where there was memory for all of it. */
static int64_t soft_bytes(struct model *m, struct soft *x) {
    CHECK(model_forward(m, &x->b, x->logp, x->entropy, NULL, &err));
    return model_memory(m).activation_bytes;
}

/* A row of the head is computed once for all its targets, but for those at a border between two chunks, with the bits
 * of one that is computed for each. kept: there is memory for the logits until the backward pass. most: so many rows of
 * the head in a forward and a backward pass. */
static void soft_targets(const char *config, bool full, bool kept, int64_t most) {
    static struct soft x[2];
    const struct adapter_shape shape = {.rank = 5, .alpha = 3, .parts = ADAPTER_ATTENTION | ADAPTER_MLP | ADAPTER_HEAD};
    struct model *m[2];
    struct train_set set[2];
    for (int k = 0; k < 2; k++) {
        int adapter = ADAPTER_BASE;
        make_soft(&x[k], k == 1);
        m[k] = make(config, two, 0);
        if (full) CHECK(model_train_prepare(m[k], TRAIN_FULL, &err));
        if (!full) CHECK(model_adapter_create(m[k], &shape, 3, &adapter, &err));
        if (!full) CHECK(model_adapter_prepare(m[k], adapter, &err));
        set[k] = model_train_set(m[k], adapter);
        for (int i = 1; !full && i < set[k].n; i += 2) { /* B, which starts at zero */
            struct rng r = rng_make(10, (uint64_t)i);
            for (int64_t j = 0; j < set[k].param[i].n; j++) set[k].param[i].w[j] = 0.3f * (float)rng_normal(&r);
        }
        if (!full) model_adapter_changed(m[k], adapter);
        x[k].seg.adapter = adapter;
        if (!kept) model_limit_activations(m[k], soft_bytes(m[k], &x[k]) - 1);
        head_products = 0;
        plain_linear = two->linear;
        two->linear = counted_linear;
        CHECK(model_forward(m[k], &x[k].b, x[k].logp, x[k].entropy, NULL, &err));
        CHECK(model_backward(m[k], &x[k].b, x[k].g, &err));
        two->linear = plain_linear;
        if (k == 0) assert_in_range(head_products, SOFT_ROWS, most);
        assert_int_equal(model_memory(m[k]).logits_kept, kept);
    }
    for (int i = 0; i < SOFT_N; i++) {
        same_bits(&x[0].logp[i], &x[1].logp[2 * i], 1, "logp");
        same_bits(&x[0].entropy[i], &x[1].entropy[2 * i], 1, "entropy");
    }
    for (int i = 0; i < set[0].n; i++) {
        const struct param *p = &set[0].param[i];
        same_bits(p->g, set[1].param[i].g, p->n, p->name);
    }
    model_free(m[0]);
    model_free(m[1]);
}

static void test_soft_targets(void **state) {
    (void)state;
    soft_targets(qwen3_wide, true, true, SOFT_ROWS + 2);
    soft_targets(qwen3_wide, false, true, SOFT_ROWS + 2);
    soft_targets(moe_wide, false, true, SOFT_ROWS + 2);
    soft_targets(qwen3_wide, true, false, 2 * (SOFT_ROWS + 2));
    soft_targets(qwen3_wide, false, false, 2 * (SOFT_ROWS + 2));
}

/* The cache gives the trainer's bits, however the tokens are cut into steps and whoever else is in the batch. */
static void test_sampling_equals_training(void **state) {
    (void)state;
    static struct group x;
    make_group(&x);
    for (int k = 0; k < 4; k++) {
        const int lora = k % 2;
        struct model *m = make(k < 2 ? qwen3_wide : moe_wide, two, lora ? 5 : 0);
        const int32_t V = model_cfg(m)->V;
        float logp[N_ROWS], ent[N_ROWS], *logits = xcalloc((size_t)(N_ANSWERS + 1) * (size_t)V, sizeof *logits);
        CHECK(model_forward(m, &x.b, logp, ent, NULL, &err));
        struct kv_cache *kv;
        CHECK(kv_create(m, N_ANSWERS + 1, PROMPT + ANSWER, 0, &kv, &err));
        /* Prefill in three uneven steps, then copy to every answer. */
        const int seq0 = 0, cut[] = {1, 40, PROMPT - 41};
        for (int i = 0, done = 0; i < 3; done += cut[i++])
            CHECK(model_step(m, kv, 1, &seq0, &cut[i], x.ids + done, logits, &err));
        assert_int_equal(kv_len(kv, 0), PROMPT);
        for (int a = 1; a <= N_ANSWERS; a++) {
            kv_share(kv, a, 0);
            memcpy(logits + a * V, logits, (size_t)V * sizeof(float));
        }
        kv_reset(kv, 0);
        assert_int_equal(kv_len(kv, 0), 0);
        for (int i = 0; i < ANSWER; i++) {
            for (int a = 0; a < N_ANSWERS; a++) {
                const int at_row = a * ANSWER + i;
                float entropy, lp = logprob_row(logits + (a + 1) * V, V, x.targets[at_row], &entropy);
                same_bits(&lp, logp + at_row, 1, "sampled logp");
                same_bits(&entropy, ent + at_row, 1, "sampled entropy");
            }
            /* Decode all answers, in an order that changes, beside a sequence that prefills. */
            int seq[4], n[4], count = 0;
            int32_t ids[8];
            int32_t *w = ids;
            for (int a = 0; a < N_ANSWERS; a++) {
                const int who = (a + i) % N_ANSWERS;
                seq[count] = who + 1;
                n[count++] = 1;
                *w++ = x.targets[who * ANSWER + i];
            }
            if (i < 20) {
                seq[count] = 0;
                n[count++] = 2;
                *w++ = x.ids[i];
                *w++ = x.ids[i + 1];
            }
            float *out = xcalloc((size_t)count * (size_t)V, sizeof *out);
            CHECK(model_step(m, kv, count, seq, n, ids, out, &err));
            for (int j = 0; j < count; j++) memcpy(logits + seq[j] * V, out + j * V, (size_t)V * sizeof(float));
            free(out);
        }
        kv_free(kv);
        free(logits);
        model_free(m);
    }
}

/* A prompt longer than one wave of the step, beside others: same logits as alone. */
static void test_long_prefill(void **state) {
    (void)state;
    struct model *m = make(qwen3_wide, two, 0);
    enum { LONG = 2500, SHORT = 30 };
    const int32_t V = model_cfg(m)->V;
    int32_t *ids = xcalloc(SHORT + LONG + SHORT, sizeof *ids);
    struct rng r = rng_make(31, 0);
    for (int i = 0; i < SHORT + LONG + SHORT; i++) ids[i] = (int32_t)rng_below(&r, (uint64_t)V);
    const int seq[3] = {2, 0, 1}, n[3] = {SHORT, LONG, SHORT};
    float *logits = xcalloc(3 * (size_t)V, sizeof *logits), *want = xcalloc(SHORT * (size_t)V, sizeof *want);
    struct kv_cache *kv;
    CHECK(kv_create(m, 3, LONG, 0, &kv, &err));
    CHECK(model_step(m, kv, 3, seq, n, ids, logits, &err));
    for (int i = 0; i < 3; i += 2) {
        const struct segment s = {0, SHORT, -1, 0};
        const struct train_batch b = {.ids = i ? ids + SHORT + LONG : ids, .T = SHORT, .seg = &s, .n_seg = 1};
        CHECK(model_logits(m, &b, want, &err));
        same_bits(logits + i * V, want + (SHORT - 1) * V, V, "logits beside a long prompt");
    }
    const struct segment s = {0, LONG, -1, 0};
    const int32_t row = LONG - 1, target = 7;
    const struct train_batch b = {ids + SHORT, LONG, &s, 1, &row, &target, 1, false};
    float logp, lp = logprob_row(logits + V, V, target, NULL);
    CHECK(model_forward(m, &b, &logp, NULL, NULL, &err));
    same_bits(&lp, &logp, 1, "logp behind a long prompt");
    free(ids), free(logits), free(want);
    kv_free(kv);
    model_free(m);
}

/* The error of a call must be this status and say this. */
static void refused(enum status got, enum status want, const char *says) {
    if (got != want) fail_msg("status %s, expected %s (%s)", status_name(got), status_name(want), says);
    if (!strstr(err.msg, says)) fail_msg("message \"%s\" does not say \"%s\"", err.msg, says);
}

/* Sequences that share blocks, copies of begun ones, remembered prefixes, and what happens when blocks run out: always
 * the logits of a sequence of its own. */
static void test_shared_blocks(void **state) {
    (void)state;
    struct model *m = make(qwen3_wide, two, 0);
    enum { TOKENS = 200, SEQS = 4, BLOCKS = 8 };
    const int32_t V = model_cfg(m)->V;
    float *logits = xcalloc((size_t)V, sizeof *logits), *want = xcalloc((size_t)TOKENS * (size_t)V, sizeof *want);
    int32_t ids[2][TOKENS];
    struct rng r = rng_make(8, 0);
    for (int i = 0; i < TOKENS; i++) { /* they part at token 100 */
        ids[0][i] = (int32_t)rng_below(&r, (uint64_t)V);
        ids[1][i] = i < 100 ? ids[0][i] : (int32_t)rng_below(&r, (uint64_t)V);
    }
    struct kv_cache *kv;
    CHECK(kv_create(m, SEQS, TOKENS, BLOCKS, &kv, &err));
    assert_int_equal(kv_available(kv), BLOCKS);
    const int s0 = 0, s1 = 1, s2 = 2, s3 = 3, to_100 = 100, rest = 100;
    for (int which = 0; which < 2; which++) {
        const struct segment s = {0, TOKENS, -1, 0};
        const struct train_batch b = {.ids = ids[which], .T = TOKENS, .seg = &s, .n_seg = 1};
        CHECK(model_logits(m, &b, want, &err));
        if (which == 0) {
            CHECK(model_step(m, kv, 1, &s0, &to_100, ids[0], logits, &err));
            same_bits(logits, want + 99 * V, V, "shared prefix");
            kv_share(kv, s1, s0);
            assert_int_equal(kv_len(kv, s1), 100);
            assert_int_equal(kv_available(kv), BLOCKS - 2);
        }
        /* Both go on from the same begun block; the one that writes first copies it. */
        const int *seq = which ? &s1 : &s0;
        CHECK(model_step(m, kv, 1, seq, &rest, ids[which] + 100, logits, &err));
        same_bits(logits, want + 199 * V, V, "behind a shared prefix");
        assert_int_equal(kv_available(kv), which ? 1 : BLOCKS - 5);
    }
    /* Blocks run out: refused, and nobody is harmed. 100 tokens need two blocks, one is left. */
    refused(model_step(m, kv, 1, &s2, &to_100, ids[0], logits, &err), ST_MEMORY, "no block");
    assert_int_equal(kv_len(kv, s2), 0);
    assert_int_equal(kv_available(kv), 1);
    /* What is remembered costs no block, is found token by token, and only in whole blocks. */
    assert_int_equal(kv_match(kv, s2, ids[1], TOKENS), 192);
    assert_int_equal(kv_available(kv), 1);
    const int eight = 8;
    CHECK(model_step(m, kv, 1, &s2, &eight, ids[1] + 192, logits, &err));
    same_bits(logits, want + 199 * V, V, "behind a remembered prefix");
    ids[1][130]++;
    assert_int_equal(kv_match(kv, s3, ids[1], TOKENS), 128);
    assert_int_equal(kv_match(kv, s3, ids[1] + 128, 72), 0);
    kv_reset(kv, s3);
    assert_int_equal(kv_match(kv, s3, ids[1], 127), 64);
    ids[1][130]--;
    assert_int_equal(kv_match(kv, s3, ids[1] + 64, 136), 128); /* goes on where it ended */
    for (int i = 0; i < SEQS; i++) kv_reset(kv, i);
    assert_int_equal(kv_available(kv), BLOCKS);
    assert_int_equal(kv_match(kv, s0, ids[0], TOKENS), 192); /* still known */
    /* Other weights: nothing is found, nor does what a sequence already held ever get found. */
    model_params_changed(m);
    assert_int_equal(kv_match(kv, s1, ids[0], TOKENS), 0);
    CHECK(model_step(m, kv, 1, &s0, &eight, ids[0] + 192, logits, &err));
    assert_int_equal(kv_match(kv, s1, ids[0], TOKENS), 0);
    kv_free(kv);
    free(logits), free(want);
    model_free(m);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void tiny_logp(struct model *m, float logp[13]) { CHECK(model_forward(m, &tiny, logp, NULL, NULL, &err)); }

static void test_round_trips(void **state) {
    (void)state;
    struct model *m = make(qwen3_tiny, two, 3), *back, *half;
    float want[13], got[13];
    tiny_logp(m, want);
    CHECK(model_save(m, in_tmp("f32"), "f32", &err));
    CHECK(model_lora_save(m, in_tmp("adapter"), &err));
    CHECK(model_load(in_tmp("f32"), NULL, two, &back, &err));
    assert_true(model_cfg(back)->n_eos == 2 && model_cfg(back)->eos[1] == 4 && model_cfg(back)->K == 6);
    tiny_logp(back, got);
    assert_true(memcmp(want, got, sizeof got) != 0); /* no adapter yet */
    CHECK(model_lora_load(back, in_tmp("adapter"), &err));
    tiny_logp(back, got);
    same_bits(got, want, 13, "logp after a round trip");
    CHECK(model_lora_save(back, in_tmp("adapter2"), &err));
    struct model *again;
    CHECK(model_load(in_tmp("f32"), NULL, two, &again, &err));
    CHECK(model_lora_load(again, in_tmp("adapter2"), &err));
    tiny_logp(again, got);
    same_bits(got, want, 13, "logp after two round trips");

    CHECK(model_save(back, in_tmp("bf16"), "bf16", &err));
    CHECK(model_load(in_tmp("bf16"), NULL, two, &half, &err));
    int n;
    CHECK(model_train_prepare(back, TRAIN_NOTHING, &err));
    const struct param *a = model_params(back, &n), *b = model_params(half, &n);
    for (int i = 0; i < n; i++)
        for (int64_t j = 0; j < a[i].n; j++) assert_true(b[i].w[j] == st_bf16_to_f32(st_f32_to_bf16(a[i].w[j])));
    assert_int_equal(model_save(m, in_tmp("q8"), "q8", &err), ST_INVALID);
    assert_int_equal(model_lora_save(half, in_tmp("none"), &err), ST_INVALID);
    model_free(m);
    model_free(back);
    model_free(again);
    model_free(half);
}

/* An adapter of three sites alone, none the first of those that share their input, does what one of all sites does
 * whose other B are zero; to its own matrices it gives the same gradients. */
static void test_partial_adapter(void **state) {
    (void)state;
    static const char *const sites[] = {"k_proj", "up_proj", "down_proj"};
    struct model *m = make(qwen3_tiny, two, 3), *part;
    int n, n_part;
    const struct param *p = model_params(m, &n);
    struct st_entry *kept = xcalloc((size_t)n, sizeof *kept);
    size_t n_kept = 0;
    for (int i = 0; i < n; i++) {
        bool keep = false;
        for (size_t k = 0; k < ARRAY_LEN(sites); k++) keep |= strstr(p[i].name, sites[k]) != NULL;
        if (keep)
            kept[n_kept++] = (struct st_entry){.name = p[i].name,
                                               .dtype = ST_DTYPE_F32,
                                               .from = ST_DTYPE_F32,
                                               .nd = 2,
                                               .dim = {p[i].dim[0], p[i].dim[1]},
                                               .data = p[i].w};
        else if (strstr(p[i].name, "lora_B"))
            memset(p[i].w, 0, (size_t)p[i].n * sizeof(float));
    }
    model_params_changed(m);
    CHECK(model_lora_save(m, in_tmp("part"), &err)); /* its configuration holds for the part */
    CHECK(st_write(in_tmp("part/adapter_model.safetensors"), kept, n_kept, NULL, &err));
    part = make(qwen3_tiny, two, 0);
    CHECK(model_lora_load(part, in_tmp("part"), &err));
    float want[13], got[13];
    tiny_logp(m, want);
    CHECK(model_backward(m, &tiny, tiny_g, &err));
    CHECK(model_train_prepare(part, TRAIN_LORA, &err));
    tiny_logp(part, got);
    same_bits(got, want, 13, "logp of a partial adapter");
    CHECK(model_backward(part, &tiny, tiny_g, &err));
    const struct param *q = model_params(part, &n_part);
    assert_int_equal(n_part, n_kept);
    for (int i = 0; i < n_part; i++) {
        const struct param *same = by_name(p, n, q[i].name);
        same_bits(q[i].g, same->g, q[i].n, q[i].name);
    }
    free(kept);
    model_free(m);
    model_free(part);
}

/* New LoRA weights leave the model as it was, and equal seeds give equal models. */
static void test_initial_state(void **state) {
    (void)state;
    struct model *m = make(qwen2_tiny, two, 0), *same = make(qwen2_tiny, one, 0);
    float want[13], got[13];
    tiny_logp(m, want);
    tiny_logp(same, got);
    same_bits(got, want, 13, "same seed");
    CHECK(model_lora_init(m, 4, 8, 1, &err));
    tiny_logp(m, got);
    same_bits(got, want, 13, "fresh LoRA");
    assert_int_equal(model_lora_init(m, 0, 8, 1, &err), ST_INVALID);
    model_free(m);
    model_free(same);
}

static void write_file(const char *name, const char *text) {
    CHECK(fs_write_atomic(in_tmp(name), text, strlen(text), &err));
}

static void test_bad_config(void **state) {
    (void)state;
    static const struct {
        const char *from, *to;
        enum status st;
        const char *says;
    } cases[] = {
        {"Qwen3ForCausalLM", "GemmaForCausalLM", ST_UNSUPPORTED, "GemmaForCausalLM"},
        {"\"num_key_value_heads\":2", "\"num_key_value_heads\":3", ST_INVALID, "num_key_value_heads"},
        {"\"head_dim\":6", "\"head_dim\":5", ST_INVALID, "head_dim"},
        {"\"head_dim\":6,", "", ST_INVALID, "hidden_size (10)"},
        {"\"vocab_size\":13", "\"vocab_size\":0", ST_INVALID, "vocab_size"},
        {"\"vocab_size\":13", "\"vocab_size\":\"x\"", ST_PARSE, "vocab_size"},
        {"\"hidden_size\":10,", "", ST_PARSE, "hidden_size"},
        {"\"eos_token_id\":[3,4]", "\"eos_token_id\":13", ST_INVALID, "eos_token_id"},
        {"\"rope_theta\":100.0", "\"rope_theta\":-1.0", ST_INVALID, "rope_theta"},
        {"\"rope_theta\":100.0", "\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4.0}", ST_UNSUPPORTED, "dynamic"},
        {"\"rope_theta\":100.0", "\"rope_parameters\":{\"rope_type\":\"llama3\"}", ST_PARSE, "rope_parameters: factor"},
        {"\"rope_theta\":100.0", "\"attention_bias\":true", ST_UNSUPPORTED, "attention_bias"},
        {"\"rope_theta\":100.0", "\"use_sliding_window\":true", ST_UNSUPPORTED, "use_sliding_window"},
        {"Qwen3ForCausalLM\"],", "LlamaForCausalLM\"],\"attention_bias\":true,", ST_UNSUPPORTED,
         "attention_bias: true"},
        {"Qwen3ForCausalLM\"],", "LlamaForCausalLM\"],\"mlp_bias\":true,", ST_UNSUPPORTED, "mlp_bias: true"},
        {"Qwen3ForCausalLM\"],", "SeedOssForCausalLM\"],\"attention_out_bias\":true,", ST_UNSUPPORTED,
         "attention_out_bias: true"},
        {"Qwen3ForCausalLM\"],", "LlamaForCausalLM\"],\"pretraining_tp\":2,", ST_UNSUPPORTED, "pretraining_tp: 2"},
        {"Qwen3ForCausalLM\"],", "MistralForCausalLM\"],\"sliding_window\":64,", ST_UNSUPPORTED, "sliding_window: 64"},
        {"Qwen3ForCausalLM\"],", "Qwen2ForCausalLM\"],\"attention_bias\":false,", ST_UNSUPPORTED,
         "attention_bias: false"},
        {"\"rope_theta\":100.0", "\"layer_types\":[\"sliding_attention\"]", ST_UNSUPPORTED, "layer_types[0]"},
        {"\"rope_theta\":100.0", "\"hidden_act\":\"gelu\"", ST_UNSUPPORTED, "gelu"},
        {"\"rms_norm_eps\":1e-5", "\"rms_norm_eps\":-1", ST_INVALID, "rms_norm_eps"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        CLEANUP_STR struct str s = STR_INIT;
        const char *hit = strstr(qwen3_tiny, cases[i].from);
        assert_non_null(hit);
        str_add(&s, qwen3_tiny, (size_t)(hit - qwen3_tiny));
        str_adds(&s, cases[i].to);
        str_adds(&s, hit + strlen(cases[i].from));
        struct model *m = NULL;
        refused(model_init(s.p, 1, NULL, one, &m, &err), cases[i].st, cases[i].says);
    }
    struct model *m;
    assert_int_equal(model_init(in_tmp("absent.json"), 1, NULL, one, &m, &err), ST_IO);
    write_file("config-only.json", qwen3_tiny);
    CHECK(model_init(in_tmp("config-only.json"), 1, NULL, one, &m, &err));
    model_free(m);
}

/* One tensor of a good checkpoint spoilt at a time. */
static void test_bad_weights(void **state) {
    (void)state;
    struct model *m = make(qwen3_tiny, one, 0), *bad;
    int n;
    const struct param *p = model_params(m, &n);
    CHECK(fs_mkdirs(in_tmp("bad"), &err));
    write_file("bad/config.json", qwen3_tiny);
    struct st_entry *en = xcalloc((size_t)n, sizeof *en);
    for (int spoil = 0; spoil < 4; spoil++) {
        int count = 0;
        for (int i = 0; i < n; i++) {
            const bool this = strcmp(p[i].name, "model.layers.1.mlp.up_proj.weight") == 0;
            if (spoil == 0 && this) continue;
            en[count] = (struct st_entry){.name = p[i].name,
                                          .dtype = ST_DTYPE_F32,
                                          .from = ST_DTYPE_F32,
                                          .nd = p[i].nd,
                                          .dim = {p[i].dim[0], p[i].dim[1]},
                                          .data = p[i].w};
            if (spoil == 1 && this) {
                en[count].dim[0] = p[i].dim[1];
                en[count].dim[1] = p[i].dim[0];
            }
            if (spoil == 2 && this) p[i].w[17] = NAN;
            if (spoil == 3 && this) p[i].w[17] = INFINITY;
            count++;
        }
        CHECK(st_write(in_tmp("bad/model.safetensors"), en, (size_t)count, NULL, &err));
        refused(model_load(in_tmp("bad"), NULL, one, &bad, &err), ST_INVALID, "model.layers.1.mlp.up_proj.weight");
    }
    free(en);
    CHECK(fs_remove(in_tmp("bad/model.safetensors"), &err));
    assert_int_equal(model_load(in_tmp("bad"), NULL, one, &bad, &err), ST_IO);
    model_free(m);
}

static void test_bad_adapters(void **state) {
    (void)state;
    struct model *m = make(qwen3_tiny, one, 3), *other = make(qwen2_tiny, one, 0);
    CHECK(model_lora_save(m, in_tmp("ad"), &err));
    refused(model_lora_load(other, in_tmp("ad"), &err), ST_INVALID, "lora_A"); /* of another model */
    assert_null(strstr(err.msg, "made for"));
    model_set_name(m, "org/base");
    CHECK(model_lora_save(m, in_tmp("ad"), &err));
    refused(model_lora_load(other, in_tmp("ad"), &err), ST_INVALID, "expected shape");
    assert_non_null(strstr(err.msg, "made for \"org/base\""));
    static const struct {
        const char *config, *says;
        enum status st;
    } cases[] = {
        {"{\"peft_type\":\"LORA\",\"r\":3,\"lora_alpha\":3,\"use_dora\":true}", "use_dora", ST_UNSUPPORTED},
        {"{\"peft_type\":\"LOHA\",\"r\":3,\"lora_alpha\":3}", "LOHA", ST_UNSUPPORTED},
        {"{\"peft_type\":\"LORA\",\"r\":3,\"lora_alpha\":3,\"bias\":\"all\"}", "bias", ST_UNSUPPORTED},
        {"{\"peft_type\":\"LORA\",\"r\":3,\"lora_alpha\":3,\"modules_to_save\":[\"lm_head\"]}", "modules_to_save",
         ST_UNSUPPORTED},
        {"{\"peft_type\":\"LORA\",\"r\":0,\"lora_alpha\":3}", "r: expected", ST_INVALID},
        {"{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":3}", "lora_A", ST_INVALID},
        {"{\"peft_type\":\"LORA\",\"lora_alpha\":3}", "r:", ST_PARSE},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        write_file("ad/adapter_config.json", cases[i].config);
        refused(model_lora_load(m, in_tmp("ad"), &err), cases[i].st, cases[i].says);
    }
    model_free(m);
    model_free(other);
}

static void test_bad_calls(void **state) {
    (void)state;
    struct model *m = make(qwen3_tiny, one, 0);
    float logp[13], logits[3 * 13];
    struct train_batch b = tiny;
    assert_int_equal(model_backward(m, &b, tiny_g, &err), ST_INVALID);
    refused(model_train_prepare(m, TRAIN_LORA, &err), ST_INVALID, "LoRA");
    int32_t ids[18];
    memcpy(ids, tiny_ids, sizeof ids);
    ids[5] = 13;
    b.ids = ids;
    refused(model_forward(m, &b, logp, NULL, NULL, &err), ST_INVALID, "token 13");
    b.ids = tiny_ids;
    b.T = 17;
    refused(model_forward(m, &b, logp, NULL, NULL, &err), ST_INVALID, "18 rows of 17");
    b.T = 18;
    struct segment seg[4];
    memcpy(seg, tiny_seg, sizeof seg);
    b.seg = seg;
    seg[2].prefix = 1; /* which has a prefix itself */
    refused(model_forward(m, &b, logp, NULL, NULL, &err), ST_INVALID, "segment 2");
    seg[2].prefix = 0;
    seg[3].start = 11;
    refused(model_forward(m, &b, logp, NULL, NULL, &err), ST_INVALID, "segment 3");

    struct kv_cache *kv;
    assert_int_equal(kv_create(m, 1, 401, 0, &kv, &err), ST_INVALID);
    assert_int_equal(kv_create(m, 1 << 30, 400, 0, &kv, &err), ST_MEMORY);
    CHECK(kv_create(m, 2, 4, 0, &kv, &err));
    const int twice[2] = {1, 1}, n[2] = {1, 1}, five = 5, none = 0;
    refused(model_step(m, kv, 2, twice, n, tiny_ids, logits, &err), ST_INVALID, "twice");
    refused(model_step(m, kv, 1, twice, &five, tiny_ids, logits, &err), ST_INVALID, "do not fit");
    refused(model_step(m, kv, 1, twice, &none, tiny_ids, logits, &err), ST_INVALID, "at least one");
    refused(model_step(m, kv, 1, twice, n, ids + 5, logits, &err), ST_INVALID, "token 13");
    assert_int_equal(kv_len(kv, 1), 0); /* a refused step leaves no trace */
    kv_free(kv);
    kv_free(NULL);
    model_free(m);
    model_free(NULL);
}

/* Each kind of trouble is found where it began, and said by name. */
static void test_find_nonfinite(void **state) {
    (void)state;
    enum { ALL = FIND_WEIGHTS | FIND_ACTIVATIONS | FIND_GRADIENTS };
    struct model *m = make(qwen3_tiny, one, 0);
    float logp[13];
    char buf[200] = "";
    CHECK(model_train_prepare(m, TRAIN_FULL, &err));
    int n;
    const struct param *p = model_params(m, &n);
    tiny_logp(m, logp);
    CHECK(model_backward(m, &tiny, tiny_g, &err));
    assert_false(model_find_nonfinite(m, ADAPTER_OWN, ALL, buf, sizeof buf));

    p[3].g[1] = NAN; /* below p[5], whose gradient it would have come from */
    p[5].g[2] = -INFINITY;
    assert_true(model_find_nonfinite(m, ADAPTER_OWN, ALL, buf, sizeof buf));
    assert_non_null(strstr(buf, "gradient of "));
    assert_non_null(strstr(buf, p[5].name));
    assert_non_null(strstr(buf, "element 2 of "));
    assert_non_null(strstr(buf, "infinite"));
    assert_false(model_find_nonfinite(m, ADAPTER_OWN, FIND_WEIGHTS | FIND_ACTIVATIONS, buf, sizeof buf));

    /* Finite weights whose product is not: seen in the activations of the layer it happens in. */
    model_zero_grad(m);
    for (int i = 0; i < n; i++)
        if (strcmp(p[i].name, "model.layers.1.mlp.gate_proj.weight") == 0)
            for (int64_t k = 0; k < p[i].n; k++) p[i].w[k] = k % 2 ? 3e38f : -3e38f;
    model_params_changed(m);
    tiny_logp(m, logp);
    assert_true(model_find_nonfinite(m, ADAPTER_OWN, ALL, buf, sizeof buf));
    assert_non_null(strstr(buf, "activations of layer 1, gate and up projection"));

    p[n - 1].w[0] = NAN;
    assert_true(model_find_nonfinite(m, ADAPTER_OWN, ALL, buf, sizeof buf));
    assert_non_null(strstr(buf, "weight "));
    assert_non_null(strstr(buf, p[n - 1].name));
    assert_non_null(strstr(buf, "element 0 of "));
    model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find_nonfinite),  cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_shared_prompt),   cmocka_unit_test(test_sampling_equals_training),
        cmocka_unit_test(test_soft_targets),    cmocka_unit_test(test_long_prefill),
        cmocka_unit_test(test_shared_blocks),   cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_partial_adapter), cmocka_unit_test(test_initial_state),
        cmocka_unit_test(test_bad_config),      cmocka_unit_test(test_bad_weights),
        cmocka_unit_test(test_bad_adapters),    cmocka_unit_test(test_bad_calls),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
