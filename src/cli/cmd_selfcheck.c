/* kernelrl selfcheck onpolicy is in onpolicy.c, kernelrl selfcheck ops in selfcheck_ops.c,
 * kernelrl selfcheck ranks in selfcheck_ranks.c. kernelrl selfcheck golden DIR
 * [--device NAME] [--dtype f32|bf16]: the engine against numbers of another implementation. DIR holds config.json,
 * model.safetensors, adapter/ (PEFT) and expected.safetensors with, for i = 0, 1, ...: ids_i, logits_i, hidden_i (final
 * norm, optional), greedy_i (prompt and continuation, optional), lora_logits_i, lora_logp_i, adv_i; loss, grad.NAME,
 * after.NAME for LoRA; full_loss, fullgrad.NAME for the base. Without full_loss the base is one that is not trained,
 * and without lora_logits_0 there is no adapter; what adapters become after a step (after.NAME) is optional, too. Every
 * tensor in the file is either checked or reported as unknown; where there is a decoded.safetensors, the base is one in
 * codes, and that holds its matrices as decoding must give them, bit for bit, maybe nothing else; one line each group
 * with the largest error and its limit. The limits of bf16 say that nothing is wrong at large: the expected numbers are
 * float32's.
 * Of a mixture of experts in bf16, rows go through the experts that float32 chooses: near ties fall either way, and
 * what comes of the other way is another function. How many choices differ is a line of its own.
 * --measure FILE: what was measured goes to FILE as lines of JSON, and no limit is held against it. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/str.h"
#include "bench/onpolicy.h"
#include "cli/cli.h"
#include "cli/selfcheck_ops.h"
#include "cli/selfcheck_ranks.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/model.h"
#include "tensor/backend.h"
#include "tensor/formats.h"
#include "train/adamw.h"

#define LR 1e-2
#define BETA1 0.9
#define BETA2 0.95
#define ADAM_EPS 1e-8
#define WEIGHT_DECAY 0.01

struct check {
    const char *dir, *base_dtype;
    struct backend *be;
    struct arena arena;
    struct st_file f;
    bool *used; /* per tensor of f */
    int n_seq;
    int32_t **ids;
    int64_t *len;
    int failed;
    bool bf16;
    FILE *measured; /* NULL: limits are checked */
    /* A mixture of experts in bf16: the same in float32, and how many of all experts chosen so far the two differ in.
     */
    struct model *exact;
    int64_t differ, chosen;
};

static double limit_of(const struct check *c, double f32, double bf16) { return c->bf16 ? bf16 : f32; }

static void verdict(struct check *c, const char *what, double worst, double limit) {
    const bool ok = c->measured ? isfinite(worst) : worst <= limit; /* false for NaN */
    if (c->measured)
        printf("%-34s %12.3e\n", what, worst);
    else
        printf("%-34s %12.3e  limit %8.1e  %s\n", what, worst, limit, ok ? "ok" : "FAIL");
    c->failed += !ok;
}

/* A line of the file: what was measured, and up to three numbers with their names. */
static void measure(struct check *c, const char *what, const char *const name[3], const double value[3]) {
    CLEANUP_STR struct str line = STR_INIT;
    if (!c->measured) return;
    js_begin(&line, NULL, '{');
    js_put_str(&line, "what", what);
    for (int i = 0; i < 3 && name[i]; i++) js_put_f64(&line, name[i], value[i]);
    js_end(&line, '}');
    fprintf(c->measured, "%s\n", line.p);
}
#define MEASURE(c, what, a, x, b, y, d, z) measure(c, what, (const char *const[3]){a, b, d}, (const double[3]){x, y, z})

/* NaN sticks. */
static double worse(double a, double b) { return isnan(a) || isnan(b) ? NAN : fmax(a, b); }

static const struct st_tensor *find(struct check *c, const char *name) {
    const struct st_tensor *t = st_find(&c->f, name);
    if (t) c->used[t - c->f.tensor] = true;
    return t;
}

static const char *indexed(struct check *c, const char *what, int i) {
    return arena_printf(&c->arena, "%s_%d", what, i);
}

/* A required tensor of n floats in the arena. */
static enum status read_floats(struct check *c, const char *name, int64_t n, float **out, struct err *e) {
    const struct st_tensor *t = find(c, name);
    if (!t) return FAIL(e, ST_INVALID, "%s/expected.safetensors: no tensor %s", c->dir, name);
    if (t->numel != n)
        return FAIL(e, ST_INVALID, "%s: %s: expected %lld values, got %lld", t->file, name, (long long)n,
                    (long long)t->numel);
    *out = arena_array(&c->arena, float, n);
    return st_read_f32(t, *out, e);
}

static enum status read_ids(struct check *c, const struct st_tensor *t, int32_t **out, struct err *e) {
    int64_t *wide = arena_array(&c->arena, int64_t, t->numel);
    TRY(st_read_i64(t, wide, e));
    *out = arena_array(&c->arena, int32_t, t->numel);
    for (int64_t i = 0; i < t->numel; i++) {
        if (wide[i] < 0 || wide[i] > INT32_MAX)
            return FAIL(e, ST_INVALID, "%s: %s: token %lld is out of range", t->file, t->name, (long long)wide[i]);
        (*out)[i] = (int32_t)wide[i];
    }
    return ST_OK;
}

static enum status load_sequences(struct check *c, struct err *e) {
    while (st_find(&c->f, indexed(c, "ids", c->n_seq))) c->n_seq++;
    if (c->n_seq == 0) return FAIL(e, ST_INVALID, "%s/expected.safetensors: no tensor ids_0", c->dir);
    c->ids = arena_array(&c->arena, int32_t *, c->n_seq);
    c->len = arena_array(&c->arena, int64_t, c->n_seq);
    for (int i = 0; i < c->n_seq; i++) {
        const struct st_tensor *t = find(c, indexed(c, "ids", i));
        if (t->numel < 1) return FAIL(e, ST_INVALID, "%s: %s: expected at least one token", t->file, t->name);
        c->len[i] = t->numel;
        TRY(read_ids(c, t, &c->ids[i], e));
    }
    return ST_OK;
}

/* All sequences end to end, every next token wanted. */
static struct train_batch whole_batch(struct check *c) {
    struct train_batch b = {.n_seg = c->n_seq};
    for (int i = 0; i < c->n_seq; i++) {
        b.T += c->len[i];
        b.N += c->len[i] - 1;
    }
    int32_t *ids = arena_array(&c->arena, int32_t, b.T), *rows = arena_array(&c->arena, int32_t, b.N);
    int32_t *targets = arena_array(&c->arena, int32_t, b.N);
    struct segment *seg = arena_array(&c->arena, struct segment, c->n_seq);
    int64_t t = 0, n = 0;
    for (int i = 0; i < c->n_seq; i++) {
        seg[i] = (struct segment){.start = t, .len = c->len[i], .prefix = -1};
        for (int64_t j = 0; j < c->len[i]; j++, t++) {
            ids[t] = c->ids[i][j];
            if (j + 1 < c->len[i]) {
                rows[n] = (int32_t)t;
                targets[n++] = c->ids[i][j + 1];
            }
        }
    }
    b.ids = ids;
    b.rows = rows;
    b.targets = targets;
    b.seg = seg;
    return b;
}

static double max_abs_diff(const float *a, const float *b, int64_t n) {
    double worst = 0;
    for (int64_t i = 0; i < n; i++) worst = worse(worst, fabs((double)a[i] - (double)b[i]));
    return worst;
}

static double sum_squares_diff(const float *a, const float *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sum;
}

/* Lengths, and the angle between. */
static void measure_matrix(struct check *c, const char *what, const float *got, const float *want, int64_t n) {
    double own = 0, expected = 0, product = 0;
    for (int64_t i = 0; c->measured && i < n; i++) {
        own += (double)got[i] * (double)got[i];
        expected += (double)want[i] * (double)want[i];
        product += (double)got[i] * (double)want[i];
    }
    MEASURE(c, what, "norm", sqrt(own), "expected_norm", sqrt(expected), "cosine", product / sqrt(own * expected));
}

/* |a-b| / |b|, Euclidean. */
static double relative_diff(const float *a, const float *b, int64_t n) {
    double d = 0, s = 0;
    for (int64_t i = 0; i < n; i++) {
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        s += (double)b[i] * (double)b[i];
    }
    return d == 0 ? 0 : sqrt(d) / sqrt(s);
}

/* Has the rows of b in m go through the experts that float32 chooses, where that is another model. */
static enum status hold_experts(struct check *c, struct model *m, const struct train_batch *b, struct err *e) {
    const struct model_config *cfg = model_cfg(m);
    if (!c->exact) return ST_OK;
    struct train_batch look = *b;
    look.forward_only = true;
    look.N = 0;
    look.targets = NULL;
    const int64_t n = cfg->L * b->T * cfg->top_k;
    int32_t *want = arena_array(&c->arena, int32_t, n), *own = arena_array(&c->arena, int32_t, n);
    model_experts(c->exact, want, false);
    TRY(model_forward(c->exact, &look, NULL, NULL, NULL, e));
    model_experts(m, own, false);
    TRY(model_forward(m, &look, NULL, NULL, NULL, e));
    for (int64_t i = 0; i < n; i++) {
        const int64_t layer = i / (b->T * cfg->top_k), row = i / cfg->top_k * cfg->top_k;
        bool there = false;
        if (!cfg->sparse[layer]) continue;
        for (int64_t j = row; j < row + cfg->top_k; j++) there |= own[i] == want[j];
        c->differ += !there;
        c->chosen++;
    }
    model_experts(m, want, true);
    return ST_OK;
}

static enum status check_logits(struct check *c, struct model *m, const char *what, struct err *e) {
    const int64_t V = model_cfg(m)->V;
    double worst = 0, sum = 0, n = 0, largest = 0;
    for (int i = 0; i < c->n_seq; i++) {
        const struct segment seg = {.start = 0, .len = c->len[i], .prefix = -1};
        const struct train_batch b = {.ids = c->ids[i], .T = c->len[i], .seg = &seg, .n_seg = 1};
        float *want, *got = arena_array(&c->arena, float, c->len[i] * V);
        TRY(read_floats(c, indexed(c, what, i), c->len[i] * V, &want, e));
        TRY(hold_experts(c, m, &b, e));
        TRY(model_logits(m, &b, got, e));
        worst = worse(worst, max_abs_diff(got, want, c->len[i] * V));
        sum += sum_squares_diff(got, want, c->len[i] * V);
        n += (double)(c->len[i] * V);
        for (int64_t j = 0; j < c->len[i] * V; j++) largest = fmax(largest, fabs((double)want[j]));
    }
    MEASURE(c, what, "max", worst, "rms", sqrt(sum / n), NULL, 0);
    /* Large logits: two units in the last place that bfloat16 has for the largest. */
    verdict(c, what, worst, limit_of(c, 2e-4, fmax(0.06, largest / 64)));
    return ST_OK;
}

static enum status check_hidden(struct check *c, struct model *m, struct err *e) {
    const int64_t D = model_cfg(m)->D;
    double worst = 0;
    int seen = 0;
    const struct train_batch b = whole_batch(c);
    float *logp = arena_array(&c->arena, float, b.N), *got = arena_array(&c->arena, float, b.T *D);
    TRY(hold_experts(c, m, &b, e));
    TRY(model_forward(m, &b, logp, NULL, got, e));
    for (int i = 0; i < c->n_seq; i++) {
        if (!st_find(&c->f, indexed(c, "hidden", i))) continue;
        float *want;
        TRY(read_floats(c, indexed(c, "hidden", i), c->len[i] * D, &want, e));
        worst = worse(worst, max_abs_diff(got + b.seg[i].start * D, want, c->len[i] * D));
        seen++;
    }
    if (seen) verdict(c, "hidden", worst, limit_of(c, 2e-4, 0.06));
    return ST_OK;
}

/* Greedy continuation through the KV cache; counts tokens that differ. */
static enum status check_greedy(struct check *c, struct model *m, struct err *e) {
    const int64_t V = model_cfg(m)->V;
    int64_t wrong = 0, tokens = 0;
    int seen = 0;
    for (int i = 0; i < c->n_seq; i++) {
        const struct st_tensor *t = find(c, indexed(c, "greedy", i));
        if (!t) continue;
        seen++;
        int32_t *want;
        TRY(read_ids(c, t, &want, e));
        if (t->numel < c->len[i]) return FAIL(e, ST_INVALID, "%s: %s is shorter than its prompt", t->file, t->name);
        struct kv_cache *kv;
        TRY(kv_create(m, 1, t->numel, 0, &kv, e));
        float *logits = arena_array(&c->arena, float, V);
        const int seq = 0;
        int n = (int)c->len[i];
        const int32_t *ids = c->ids[i];
        for (int64_t j = c->len[i]; j < t->numel; j++) {
            enum status st = model_step(m, kv, 1, &seq, &n, ids, logits, e);
            if (st != ST_OK) {
                kv_free(kv);
                return st;
            }
            int32_t best = 0;
            for (int32_t v = 1; v < V; v++)
                if (logits[v] > logits[best]) best = v;
            wrong += best != want[j];
            tokens++;
            ids = &want[j]; /* go on along the expected text, so that one slip does not hide the rest */
            n = 1;
        }
        kv_free(kv);
    }
    if (seen) MEASURE(c, "greedy", "differ", (double)wrong, "tokens", (double)tokens, NULL, 0);
    if (seen) verdict(c, "greedy tokens that differ", (double)wrong, limit_of(c, 0, 4));
    return ST_OK;
}

static enum status check_grads(struct check *c, const struct model *m, const struct param *p, int n, const char *prefix,
                               float **want, struct err *e) {
    double worst = 0;
    const char *where = "";
    for (int i = 0; i < n; i++) {
        TRY(read_floats(c, arena_printf(&c->arena, "%s.%s", prefix, p[i].name), p[i].n, &want[i], e));
        float *got = arena_array(&c->arena, float, p[i].n);
        model_grad_get(m, &p[i], got);
        measure_matrix(c, arena_printf(&c->arena, "%s.%s", prefix, p[i].name), got, want[i], p[i].n);
        const double d = relative_diff(got, want[i], p[i].n);
        if (!(d <= worst)) where = p[i].name;
        worst = worse(worst, d);
    }
    /* An expert's gradient in bf16 is a sum over few rows, whose roundings do not average out. A GPU rounds more of
     * what goes into such a sum than the CPU does: the worst LoRA gradient of an expert errs by 0.06 there, and by 0.02
     * on the CPU; the median gradient by 0.015 and 0.009. */
    const bool wide = c->exact && strncmp(c->be->name, "cuda", 4) == 0;
    const double limit = limit_of(c, 1e-4, wide ? 0.1 : 0.05);
    verdict(c, arena_printf(&c->arena, "%s (%d tensors)", prefix, n), worst, limit);
    if (!(worst <= limit)) printf("    worst in %s\n", where);
    return ST_OK;
}

/* One AdamW step from the gradients in p[].g; the weights are put back afterwards. */
static enum status after_one_step(struct check *c, struct model *m, const struct param *p, int n, float **want,
                                  float **mask, const char *what, double limit, struct err *e) {
    struct adamw *opt;
    TRY(adamw_create(c->be, p, n, &opt, e));
    const struct adamw_config config = {LR, BETA1, BETA2, ADAM_EPS, WEIGHT_DECAY};
    float **before = arena_array(&c->arena, float *, n);
    for (int i = 0; i < n; i++) {
        before[i] = arena_array(&c->arena, float, p[i].n);
        model_param_get(m, &p[i], before[i]);
    }
    adamw_step(opt, p, n, &config, 1.0, true);
    double worst = 0;
    for (int i = 0; i < n; i++) {
        double rms = 0;
        float *got = arena_array(&c->arena, float, p[i].n);
        model_param_get(m, &p[i], got);
        for (int64_t j = 0; mask && j < p[i].n; j++) rms += (double)mask[i][j] * (double)mask[i][j];
        rms = sqrt(rms / (double)p[i].n);
        for (int64_t j = 0; j < p[i].n; j++)
            if (!mask || fabs((double)mask[i][j]) >= 1e-3 * rms)
                worst = worse(worst, fabs((double)got[j] - (double)want[i][j]));
        model_param_put(m, &p[i], before[i]);
    }
    verdict(c, what, worst, limit);
    adamw_free(opt);
    return c->be->sync(c->be, e);
}

static enum status check_lora(struct check *c, struct model *m, struct err *e) {
    CLEANUP_STR struct str dir = STR_INIT;
    str_addf(&dir, "%s/adapter", c->dir);
    TRY(model_lora_load(m, dir.p, e));
    if (c->exact) TRY(model_lora_load(c->exact, dir.p, e));
    TRY(check_logits(c, m, "lora_logits", e));
    TRY(model_train_prepare(m, TRAIN_LORA, e));
    const struct train_batch b = whole_batch(c);
    float *logp = arena_array(&c->arena, float, b.N), *g = arena_array(&c->arena, float, b.N);
    TRY(hold_experts(c, m, &b, e));
    TRY(model_forward(m, &b, logp, NULL, NULL, e));
    double worst = 0, loss = 0;
    int64_t at = 0;
    for (int i = 0; i < c->n_seq; i++) {
        const int64_t n = c->len[i] - 1;
        float *want, *adv;
        TRY(read_floats(c, indexed(c, "lora_logp", i), n, &want, e));
        TRY(read_floats(c, indexed(c, "adv", i), n, &adv, e));
        worst = worse(worst, relative_diff(logp + at, want, n));
        for (int64_t j = 0; j < n; j++) {
            loss -= (double)adv[j] * (double)logp[at + j];
            g[at + j] = -adv[j];
        }
        at += n;
    }
    verdict(c, "lora_logp", worst, limit_of(c, 1e-4, 0.01));
    float *want_loss;
    TRY(read_floats(c, "loss", 1, &want_loss, e));
    MEASURE(c, "loss", "value", loss, "expected", (double)*want_loss, NULL, 0);
    verdict(c, "loss", fabs(loss - (double)*want_loss) / fabs((double)*want_loss), limit_of(c, 1e-4, 0.01));
    TRY(model_backward(m, &b, g, e));

    int n;
    const struct param *p = model_params(m, &n);
    float **want_g = arena_array(&c->arena, float *, n), **after = arena_array(&c->arena, float *, n);
    TRY(check_grads(c, m, p, n, "grad", want_g, e));
    if (!st_find(&c->f, arena_printf(&c->arena, "after.%s", p[0].name))) return ST_OK;
    for (int i = 0; i < n; i++)
        TRY(read_floats(c, arena_printf(&c->arena, "after.%s", p[i].name), p[i].n, &after[i], e));
    TRY(after_one_step(c, m, p, n, after, want_g, "after, own gradients", limit_of(c, 1e-5, 2.5 * LR), e));
    for (int i = 0; i < n; i++) model_grad_put(m, &p[i], want_g[i]);
    return after_one_step(c, m, p, n, after, NULL, "after, given gradients", 1e-6, e);
}

static enum status check_full(struct check *c, struct model *m, struct err *e) {
    TRY(model_train_prepare(m, TRAIN_FULL, e));
    const struct train_batch b = whole_batch(c);
    float *logp = arena_array(&c->arena, float, b.N), *g = arena_array(&c->arena, float, b.N), *want;
    TRY(hold_experts(c, m, &b, e));
    TRY(model_forward(m, &b, logp, NULL, NULL, e));
    double loss = 0;
    for (int64_t i = 0; i < b.N; i++) {
        loss -= (double)logp[i] / (double)b.N;
        g[i] = (float)(-1.0 / (double)b.N);
    }
    TRY(read_floats(c, "full_loss", 1, &want, e));
    MEASURE(c, "full_loss", "value", loss, "expected", (double)*want, NULL, 0);
    verdict(c, "full_loss", fabs(loss - (double)*want) / fabs((double)*want), limit_of(c, 1e-4, 0.01));
    TRY(model_backward(m, &b, g, e));
    int n;
    const struct param *p = model_params(m, &n);
    float **want_g = arena_array(&c->arena, float *, n);
    return check_grads(c, m, p, n, "fullgrad", want_g, e);
}

/* Matrices of a base in codes: how many numbers have other bits than decoding must give. */
static enum status check_decoded(struct check *c, struct model *m, struct err *e) {
    CLEANUP_STR struct str path = STR_INIT;
    struct st_file f;
    int n;
    int64_t wrong = 0, seen = 0;
    const struct param *p = model_params(m, &n);
    str_addf(&path, "%s/decoded.safetensors", c->dir);
    if (access(path.p, F_OK) != 0) return ST_OK;
    TRY(st_open(path.p, &f, e));
    enum status st = ST_OK;
    for (int i = 0; i < n && st == ST_OK; i++) {
        const struct st_tensor *t = st_find(&f, p[i].name);
        if (!t) continue;
        float *want = arena_array(&c->arena, float, p[i].n), *got = arena_array(&c->arena, float, p[i].n);
        st = st_get(&f, p[i].name, p[i].nd, p[i].dim, &t, e);
        if (st == ST_OK) st = st_read_f32(t, want, e);
        if (st != ST_OK) break;
        model_param_get(m, &p[i], got);
        st = c->be->sync(c->be, e);
        for (int64_t j = 0; j < p[i].n; j++) wrong += memcmp(&want[j], &got[j], sizeof *got) != 0;
        seen++;
    }
    if (st == ST_OK && (size_t)seen != f.count)
        st = FAIL(e, ST_INVALID, "%s: %zu tensors, of which the model has %lld", path.p, f.count, (long long)seen);
    st_close(&f);
    if (st != ST_OK) return st;
    MEASURE(c, "decoded", "differ", (double)wrong, "tensors", (double)seen, NULL, 0);
    verdict(c, arena_printf(&c->arena, "decoded (%lld tensors) that differ", (long long)seen), (double)wrong, 0);
    return ST_OK;
}

/* A folder that holds nothing beside matrices as decoding must give them. */
static enum status only_decoded(struct check *c, struct err *e) {
    const struct model_options o = {.dtype = c->bf16 ? "bf16" : "f32", .base_dtype = c->base_dtype, .frozen = true};
    struct model *m;
    TRY(model_load(c->dir, &o, c->be, &m, e));
    const enum status st = check_decoded(c, m, e);
    model_free(m);
    return st;
}

static enum status run_golden(struct check *c, struct err *e) {
    CLEANUP_STR struct str path = STR_INIT;
    CLEANUP_STR struct str decoded = STR_INIT;
    str_addf(&path, "%s/expected.safetensors", c->dir);
    str_addf(&decoded, "%s/decoded.safetensors", c->dir);
    if (access(path.p, F_OK) != 0 && access(decoded.p, F_OK) == 0) return only_decoded(c, e);
    TRY(st_open(path.p, &c->f, e));
    c->used = arena_array(&c->arena, bool, c->f.count);
    TRY(load_sequences(c, e));
    struct model *m;
    const bool trained = st_find(&c->f, "full_loss") != NULL, adapter = st_find(&c->f, "lora_logits_0") != NULL;
    const struct model_options exact = {
        .dtype = c->bf16 ? "bf16" : "f32", .base_dtype = c->base_dtype, .frozen = !trained};
    TRY(model_load(c->dir, &exact, c->be, &m, e));
    const struct model_options f32 = {.dtype = "f32", .base_dtype = c->base_dtype, .frozen = true};
    enum status st = ST_OK;
    if (c->bf16 && model_cfg(m)->E > 0) st = model_load(c->dir, &f32, c->be, &c->exact, e);
    if (st == ST_OK) st = check_decoded(c, m, e);
    if (st == ST_OK) st = check_logits(c, m, "logits", e);
    if (st == ST_OK) st = check_hidden(c, m, e);
    if (st == ST_OK) st = check_greedy(c, m, e);
    if (st == ST_OK && trained) st = check_full(c, m, e);
    if (st == ST_OK && adapter) st = check_lora(c, m, e);
    model_free(m);
    model_free(c->exact);
    TRY(st);
    const double other = c->chosen > 0 ? (double)c->differ / (double)c->chosen : 0;
    if (c->exact) MEASURE(c, "experts", "differ", (double)c->differ, "chosen", (double)c->chosen, NULL, 0);
    if (c->exact) verdict(c, "experts other than float32's", other, 0.05);
    for (size_t i = 0; i < c->f.count; i++)
        if (!c->used[i]) {
            printf("%-34s is not a quantity this check knows  FAIL\n", c->f.tensor[i].name);
            c->failed++;
        }
    return ST_OK;
}

struct golden_args {
    const char *device, *measure, *base_dtype;
    bool bf16;
};

#define A struct golden_args
static const struct args_flag flags[] = {
    FLAG_TEXT(A, device, "device", "NAME", "cpu", "The device: cpu, cuda or cuda:N.", .valid = backend_device_valid,
              .expected = "cpu, cuda or cuda:N"),
    FLAG_CHOICE(A, bf16, "dtype", "TYPE", "f32|bf16", "f32", "Matrices are held and multiplied in it."),
    FLAG_CHOICE(A, base_dtype, "base-dtype", "TYPE", CHOICE_TEXT(BASE_DTYPE_LIST), "auto",
                "The layers' matrices are held in it; auto is as the folder has them."),
    FLAG_TEXT(A, measure, "measure", "FILE", NULL,
              "Differences are written to FILE, as lines of JSON; no limit is held against them."),
};

static const struct args_sub subs[] = {
    {.name = "golden",
     .words = "DIR",
     .min = 1,
     .max = 1,
     .help = "Checks the engine against numbers of another implementation, which DIR holds."},
    {.name = "onpolicy",
     .words = "[FLAG]...",
     .max = -1,
     .help = "Compares sampler and trainer bit by bit; its flags stand below.",
     .rest = true},
    {.name = "ops",
     .words = "[FLAG]...",
     .max = -1,
     .help = "Checks every op of a device; its flags stand below.",
     .rest = true},
    {.name = "ranks",
     .words = "[FLAG]...",
     .max = -1,
     .help = "Started by mpirun: checks that all ranks compute the same bits; its flags stand below.",
     .rest = true},
};

static const struct args_command *const more[] = {&onpolicy_command, &ops_command, &ranks_command, NULL};

const struct args_command selfcheck_command = {
    .name = "selfcheck",
    .usage = "golden DIR [FLAG]...\nonpolicy --model MODEL [FLAG]...\nops [FLAG]...\nranks --model MODEL [FLAG]...",
    .flags = flags,
    .n_flags = ARRAY_LEN(flags),
    .subs = subs,
    .n_subs = ARRAY_LEN(subs),
    .more = more,
};

int cmd_selfcheck(int argc, char **argv) {
    if (argc >= 2 && strcmp(argv[1], "onpolicy") == 0) return selfcheck_onpolicy(argc - 1, argv + 1);
    if (argc >= 2 && strcmp(argv[1], "ops") == 0) return selfcheck_ops(argc - 1, argv + 1);
    if (argc >= 2 && strcmp(argv[1], "ranks") == 0) return selfcheck_ranks(argc - 1, argv + 1);
    struct golden_args a = {.device = "cpu"};
    struct args given;
    if (!args_parse(&selfcheck_command, argc, argv, &a, &given)) return given.code;
    if (strcmp(given.sub->name, "golden") != 0)
        return args_wrong(&selfcheck_command, &given, "this word comes in front of its flags");
    struct check c = {.dir = given.word[0], .base_dtype = a.base_dtype, .bf16 = a.bf16};
    struct err e = {0};
    struct pool *pool = pool_create(0);
    enum status st = backend_open(a.device, pool, &c.be, &e);
    if (st == ST_OK && a.measure && !(c.measured = fopen(a.measure, "w")))
        st = FAIL(&e, ST_IO, "%s: %s", a.measure, strerror(errno));
    if (st == ST_OK) st = run_golden(&c, &e);
    if (c.measured && fclose(c.measured) != 0 && st == ST_OK) st = FAIL(&e, ST_IO, "%s: cannot be written", a.measure);
    st_close(&c.f);
    arena_free(&c.arena);
    if (c.be) c.be->close(c.be);
    pool_destroy(pool);
    if (st != ST_OK) return args_report(&e);
    printf("%s\n", c.failed ? "selfcheck: FAILED" : "selfcheck: ok");
    return c.failed ? 1 : 0;
}
