/* What a plugin owes beside its ops, which `kernelrl selfcheck ops --device cuda` checks: versions and devices it must
 * refuse, memory, the ring its index transfers go through, attention over bfloat16 (walked, split and recorded: the
 * same bits), drawing tokens, recorded passes, and steps that mix adapters. cuda_plugin PLUGIN.so; with
 * tests/cuda/emulate built as the plugin it runs without a GPU. Ends with "N passed, N failed". */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "engine/engine.h"
#include "tensor/backend.h"

static int passed, failed;

static void report(const char *name, bool ok) {
    ok ? passed++ : failed++;
    printf("%s %s\n", ok ? "PASS" : "FAIL", name);
    fflush(stdout);
}

static void test_opening(backend_plugin_open_fn *open_plugin) {
    char msg[512] = "";
    struct backend *none = NULL;
    report("a plugin of another version is refused",
           open_plugin(BACKEND_ABI + 1, 0, NULL, &none, msg, sizeof msg) && msg[0]);
    msg[0] = 0;
    report("a device that is not there is refused",
           open_plugin(BACKEND_ABI, 999, NULL, &none, msg, sizeof msg) && msg[0]);
}

/* Devices with faults, of which only the emulated one is capable: what is wrong is said. */
static void test_faults_of_opening(backend_plugin_open_fn *open_plugin) {
    static const char *const fault[][2] = {{"none", "no CUDA device"},
                                           {"driver", "the NVIDIA driver is too old: it serves CUDA 11.4"},
                                           {"busy", "another process has it for itself"},
                                           {"memory", "other processes have taken its memory"},
                                           {"image", "the plugin was built for other GPUs"}};
    for (size_t i = 0; i < ARRAY_LEN(fault); i++) {
        char msg[512] = "", name[100];
        struct backend *none = NULL;
        setenv("KERNELRL_EMULATE_FAULT", fault[i][0], 1);
        const int rc = open_plugin(BACKEND_ABI, 0, NULL, &none, msg, sizeof msg);
        unsetenv("KERNELRL_EMULATE_FAULT");
        snprintf(name, sizeof name, "a device with a fault is refused: %s", fault[i][0]);
        report(name, rc != 0 && !none && strstr(msg, fault[i][1]));
    }
}

/* A kernel that breaks the device: the first op to notice is named, every later sync says the same, nothing else
 * happens any more, and all can be closed. */
static void test_broken_device(struct backend *gpu) {
    struct err e[2];
    enum { N = 16 };
    float host[N] = {1, 2, 3}, back[N] = {0};
    float *x = gpu->mem_alloc(gpu, sizeof host);
    gpu->mem_put(gpu, x, host, sizeof host);
    bool ok = gpu->sync(gpu, &e[0]) == ST_OK;
    setenv("KERNELRL_EMULATE_FAULT", "launch", 1);
    gpu->axpby(gpu, tensor_full(x, 1, N), 2, tensor_full(x, 1, N), 0);
    unsetenv("KERNELRL_EMULATE_FAULT");
    ok &= gpu->sync(gpu, &e[0]) == ST_DEVICE && strstr(e[0].msg, "illegal memory access") != NULL;
    gpu->axpby(gpu, tensor_full(x, 1, N), 2, tensor_full(x, 1, N), 0);
    ok &= gpu->mem_alloc(gpu, sizeof host) == NULL;
    gpu->mem_get(gpu, back, x, sizeof back);
    ok &= gpu->sync(gpu, &e[1]) == ST_DEVICE && strcmp(e[0].msg, e[1].msg) == 0 && back[0] == 0;
    gpu->mem_free(gpu, x);
    report("a kernel that breaks the device: every sync says so from then on", ok);
}

static void test_memory(struct backend *gpu) {
    struct err e;
    void *huge = gpu->mem_alloc(gpu, (size_t)1 << 46);
    report("too much memory gives NULL and harms nothing", !huge && gpu->sync(gpu, &e) == ST_OK);
    report("memory available", gpu->mem_available(gpu) > 0);
    float host[100], back[100];
    for (int i = 0; i < 100; i++) host[i] = (float)i + 0.5f;
    float *a = gpu->mem_alloc(gpu, sizeof host), *b = gpu->mem_alloc(gpu, sizeof host);
    gpu->mem_put(gpu, a, host, sizeof host);
    gpu->mem_copy(gpu, b, a, sizeof host);
    gpu->mem_zero(gpu, a, 40);
    gpu->mem_get(gpu, back, b, sizeof back);
    bool ok = gpu->sync(gpu, &e) == ST_OK && memcmp(host, back, sizeof host) == 0;
    gpu->mem_get(gpu, back, a, sizeof back);
    for (int i = 0; i < 100; i++) ok &= back[i] == (i < 10 ? 0 : host[i]);
    report("put, copy, zero, get", ok && gpu->sync(gpu, &e) == ST_OK);
    gpu->mem_free(gpu, a);
    gpu->mem_free(gpu, b);
    gpu->mem_free(gpu, NULL);
}

/* sum[i] += table[ids[i]], `rounds` times with other ids, which are overwritten as soon as the op has returned. */
static bool gathers_right(struct backend *gpu, int64_t n, int64_t rounds) {
    enum { R = 777 };
    struct err e;
    struct rng r = rng_make(11, (uint64_t)n);
    float table[R], *want = xcalloc((size_t)n, sizeof *want), *got = xcalloc((size_t)n, sizeof *got);
    int32_t *ids = xcalloc((size_t)n, sizeof *ids);
    const size_t bytes = (size_t)n * sizeof(float);
    float *t = gpu->mem_alloc(gpu, sizeof table), *y = gpu->mem_alloc(gpu, bytes), *sum = gpu->mem_alloc(gpu, bytes);
    for (int i = 0; i < R; i++) table[i] = (float)rng_below(&r, 1000); /* their sums are exact */
    gpu->mem_put(gpu, t, table, sizeof table);
    gpu->mem_zero(gpu, sum, bytes);
    for (int64_t k = 0; k < rounds; k++) {
        for (int64_t i = 0; i < n; i++) {
            ids[i] = (int32_t)rng_below(&r, R);
            want[i] += table[ids[i]];
        }
        gpu->gather_rows(gpu, tensor_full(y, n, 1), tensor_full(t, R, 1), ids);
        gpu->axpby(gpu, tensor_full(sum, n, 1), 1, tensor_full(y, n, 1), 1);
        memset(ids, 0, (size_t)n * sizeof *ids);
    }
    gpu->mem_get(gpu, got, sum, bytes);
    const bool ok = gpu->sync(gpu, &e) == ST_OK && memcmp(got, want, bytes) == 0;
    gpu->mem_free(gpu, t);
    gpu->mem_free(gpu, y);
    gpu->mem_free(gpu, sum);
    free(want), free(got), free(ids);
    return ok;
}

/* ---- attention in bfloat16 --------------------------------------------------------------------------------------- */

enum { H = 6, G = 2, K = 80, K_MAX = 128, S = 12, BLOCKS = 8, QK = (H + 2 * G) * K };

struct attention {
    struct backend *gpu;
    struct rng rng;
    int64_t K; /* dimensions of a head: of attention alone, the rotary embedding's have K */
    void *kv, *rows, *o;
    int32_t table[S][BLOCKS];
};

static uint16_t bf16_random(struct rng *r) {
    const float f = (float)rng_normal(r);
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)(u >> 16);
}
static double bf16_value(uint16_t b) {
    const uint32_t u = (uint32_t)b << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return (double)f;
}

static void fill(struct attention *a, void *dev, int64_t n) {
    uint16_t *host = xmalloc((size_t)n * sizeof *host);
    for (int64_t i = 0; i < n; i++) host[i] = bf16_random(&a->rng);
    a->gpu->mem_put(a->gpu, dev, host, (size_t)n * sizeof *host);
    free(host);
}
static void *randoms(struct attention *a, int64_t n) {
    void *dev = a->gpu->mem_alloc(a->gpu, (size_t)n * sizeof(uint16_t));
    fill(a, dev, n);
    return dev;
}

static int64_t qk_width(const struct attention *a) { return (H + 2 * G) * a->K; }

static struct attn_shape shape_of(const struct attention *a) {
    return (struct attn_shape){H, G, a->K, a->kv, kv_layer_floats_of(DT_BF16, G, a->K)};
}

/* Writes the rows' keys and values and attends; the outputs of `rows` rows are in host memory afterwards. */
static void attend(struct attention *a, const struct attn_seq *seq, int n_seq, int64_t rows, uint64_t key,
                   uint16_t *out) {
    struct backend *gpu = a->gpu;
    struct tensor qk = tensor_of(a->rows, DT_BF16, rows, qk_width(a)), o = tensor_of(a->o, DT_BF16, rows, H * a->K);
    struct tensor k = tensor_cols(qk, H * a->K, G * a->K), v = tensor_cols(qk, (H + G) * a->K, G * a->K);
    struct err e;
    do {
        gpu->pass_begin(gpu, key);
        gpu->kv_write(gpu, k, v, seq, n_seq, shape_of(a));
        gpu->attention(gpu, o, NULL, tensor_cols(qk, 0, H * a->K), k, v, seq, n_seq, shape_of(a));
    } while (!gpu->pass_end(gpu));
    gpu->mem_get(gpu, out, a->o, (size_t)(rows * H * a->K) * sizeof *out);
    if (gpu->sync(gpu, &e) != ST_OK) printf("%s\n", e.msg);
}

/* Steps of one row for each of S sequences as long as past[], recorded after the second and replayed from the third on,
 * also when their tables have grown, give what the same step without a recording gives. */
static bool recorded_attention(struct attention *a) {
    static const int64_t past[] = {300, 301, 302, 303, 330, 331, 332, 333, 440, 3, 4, 5, 300, 330};
    struct attn_seq seq[S];
    uint16_t got[S * H * K_MAX], want[S * H * K_MAX];
    bool ok = true;
    for (size_t i = 0; i < (a->K == K ? ARRAY_LEN(past) : 4); i++) {
        for (int s = 0; s < S; s++)
            seq[s] = (struct attn_seq){.row = s, .len = s % 5 != 4, .past = past[i], .blocks = a->table[s]};
        fill(a, a->rows, S * qk_width(a));
        attend(a, seq, S, S, 7, got);
        attend(a, seq, S, S, 0, want);
        for (int s = 0; s < S; s++)
            ok &= s % 5 == 4 || memcmp(got + s * H * a->K, want + s * H * a->K, (size_t)(H * a->K) * sizeof *got) == 0;
    }
    return ok;
}

/* A run of rows behind a past, walked, against the same rows one by one, many and few at a time, and against sums in
 * double precision. */
static bool walked_and_split(struct attention *a) {
    enum { PAST = 200, LEN = 70 };
    const int len = a->K == K ? LEN : 20; /* enough to have the split tasks of a last round, too */
    static uint16_t walked[LEN * H * K_MAX], split[LEN * H * K_MAX], qk[LEN * (H + 2 * G) * K_MAX],
        cache[S * BLOCKS * 2 * G * KV_BLOCK * K_MAX];
    const size_t out = (size_t)(len * H * a->K) * sizeof *walked;
    struct backend *gpu = a->gpu;
    char name[100];
    fill(a, a->rows, len * qk_width(a));
    struct attn_seq run = {.len = len, .past = PAST, .blocks = a->table[1]}, one[LEN];
    for (int t = 0; t < len; t++)
        one[t] = (struct attn_seq){.row = t, .len = 1, .past = PAST + t, .blocks = a->table[1]};
    attend(a, &run, 1, len, 0, walked);
    attend(a, one, len, len, 0, split);
    gpu->mem_get(gpu, qk, a->rows, (size_t)(len * qk_width(a)) * sizeof *qk);
    gpu->mem_get(gpu, cache, a->kv, (size_t)(S * BLOCKS * 2 * G * KV_BLOCK * a->K) * sizeof *cache);
    double worst = 0;
    for (int t = 0; t < len; t += 23)
        for (int h = 0; h < H; h++) {
            const int g = h / (H / G), n = PAST + t + 1;
            double p[PAST + LEN], max = -INFINITY, sum = 0;
            for (int j = 0; j < n; j++) {
                const uint16_t *block = cache + (int64_t)a->table[1][j / KV_BLOCK] * 2 * G * KV_BLOCK * a->K;
                p[j] = 0;
                for (int d = 0; d < a->K; d++)
                    p[j] += bf16_value(qk[t * qk_width(a) + h * a->K + d]) *
                            bf16_value(block[(g * KV_BLOCK + j % KV_BLOCK) * a->K + d]);
                max = fmax(max, p[j]);
            }
            for (int j = 0; j < n; j++) sum += p[j] = exp(p[j] - max);
            for (int d = 0; d < a->K; d++) {
                double want = 0;
                for (int j = 0; j < n; j++) {
                    const uint16_t *block = cache + (int64_t)a->table[1][j / KV_BLOCK] * 2 * G * KV_BLOCK * a->K;
                    want += p[j] / sum * bf16_value(block[((G + g) * a->K + d) * KV_BLOCK + j % KV_BLOCK]);
                }
                worst = fmax(worst, fabs(bf16_value(walked[(t * H + h) * a->K + d]) - want));
            }
        }
    snprintf(name, sizeof name, "attention, bfloat16, heads of %lld: within 0.02 of double precision", (long long)a->K);
    report(name, worst < 0.02);
    /* Many at a time have a block each; few are split into runs of units, one into single ones. */
    bool same = memcmp(walked, split, out) == 0;
    for (int n = 1; n <= 5; n += 2)
        for (int t = len - n; t > 0; t -= 31) {
            fill(a, a->o, len * H * a->K);
            attend(a, one + t, n, len, 0, split);
            same &= memcmp(walked + t * H * a->K, split + t * H * a->K, (size_t)(n * H * a->K) * sizeof *split) == 0;
        }
    return same;
}

/* rope_kv against rope and kv_write: the queries and all of the cache, for one row each and for runs over the ends of
 * blocks, with and without a norm. */
static bool rope_into_cache(struct attention *a) {
    enum { T = 100, POS = 512, CACHE = S * BLOCKS * 2 * G * KV_BLOCK * K };
    struct backend *gpu = a->gpu;
    static uint16_t got[2][T * H * K], cache[2][CACHE], before[CACHE];
    static float host[T * QK], tables[POS * K + K];
    struct attn_seq seq[S];
    int32_t pos[T];
    int64_t rows = 0;
    struct err e;
    bool ok = true;
    for (int i = 0; i < T * QK; i++) host[i] = (float)rng_normal(&a->rng);
    for (int i = 0; i < POS * K + K; i++) tables[i] = (float)rng_normal(&a->rng);
    float *qkv = gpu->mem_alloc(gpu, sizeof host), *table = gpu->mem_alloc(gpu, sizeof tables);
    void *qk = gpu->mem_alloc(gpu, T * QK * sizeof(uint16_t));
    gpu->mem_put(gpu, qkv, host, sizeof host);
    gpu->mem_put(gpu, table, tables, sizeof tables);
    gpu->mem_get(gpu, before, a->kv, sizeof before);
    for (int s = 0; s < S; s++) {
        const int64_t len = s < 9 ? 1 : s == 9 ? 0 : 30 * (s - 9), past = s * 13;
        seq[s] = (struct attn_seq){.row = rows, .len = len, .past = past, .blocks = a->table[s]};
        for (int64_t t = 0; t < len; t++) pos[rows + t] = (int32_t)(past + t);
        rows += len;
    }
    for (int norm = 0; norm < 2; norm++) {
        const float *gain = norm ? table + POS * K : NULL;
        const struct rope_args r = {H, G, K, pos, table, table + POS * K / 2, gain, gain, 1e-6f};
        struct tensor in = tensor_full(qkv, rows, QK), out = tensor_of(qk, DT_BF16, rows, QK);
        for (int fused = 0; fused < 2; fused++) {
            gpu->mem_put(gpu, a->kv, before, sizeof before);
            if (fused) {
                gpu->rope_kv(gpu, out, in, &r, seq, S, shape_of(a));
            } else {
                gpu->rope(gpu, out, in, &r);
                gpu->kv_write(gpu, tensor_cols(out, H * K, G * K), tensor_cols(out, (H + G) * K, G * K), seq, S,
                              shape_of(a));
            }
            for (int64_t t = 0; t < rows; t++)
                gpu->mem_get(gpu, got[fused] + t * H * K, (uint16_t *)qk + t * QK, H * K * sizeof(uint16_t));
            gpu->mem_get(gpu, cache[fused], a->kv, sizeof cache[fused]);
            ok &= gpu->sync(gpu, &e) == ST_OK;
        }
        ok &= memcmp(got[0], got[1], (size_t)(rows * H * K) * sizeof(uint16_t)) == 0;
        ok &= memcmp(cache[0], cache[1], sizeof cache[0]) == 0 && memcmp(cache[0], before, sizeof before) != 0;
    }
    gpu->mem_free(gpu, qkv);
    gpu->mem_free(gpu, table);
    gpu->mem_free(gpu, qk);
    return ok;
}

/* A recorded rope and the same one not recorded, while its tables move: cosines and sines together, as when they are
 * made anew elsewhere, and sines alone, as when they grow where they lie. */
static bool recorded_rope(struct attention *a) {
    enum { T = 3, POS = 64 };
    static const int cos_at[] = {0, 0, 0, 0, POS, 0, 0, 0}, sin_at[] = {POS, POS, POS, 2 * POS, 2 * POS, 3 * POS, 0, 0};
    static float tables[4 * POS * K / 2], host[T * QK];
    static uint16_t got[2][T * QK];
    struct backend *gpu = a->gpu;
    struct err e;
    bool ok = true;
    for (size_t i = 0; i < ARRAY_LEN(tables); i++) tables[i] = (float)rng_normal(&a->rng);
    for (int i = 0; i < T * QK; i++) host[i] = (float)rng_normal(&a->rng);
    float *qkv = gpu->mem_alloc(gpu, sizeof host), *table = gpu->mem_alloc(gpu, sizeof tables);
    void *qk = gpu->mem_alloc(gpu, sizeof got[0]);
    gpu->mem_put(gpu, qkv, host, sizeof host);
    gpu->mem_put(gpu, table, tables, sizeof tables);
    for (int fused = 0; fused < (gpu->rope_kv ? 2 : 1); fused++)
        for (size_t i = 0; i < ARRAY_LEN(cos_at); i++) {
            int32_t pos[T];
            struct attn_seq seq[T];
            for (int t = 0; t < T; t++) {
                pos[t] = (int32_t)(i + 7 * (size_t)t);
                seq[t] = (struct attn_seq){.row = t, .len = 1, .past = pos[t], .blocks = a->table[t]};
            }
            const struct rope_args r = {H,    G,    K,    pos, table + cos_at[i] * K / 2, table + sin_at[i] * K / 2,
                                        NULL, NULL, 1e-6f};
            for (int recorded = 0; recorded < 2; recorded++) {
                struct tensor in = tensor_full(qkv, T, QK), out = tensor_of(qk, DT_BF16, T, QK);
                gpu->mem_zero(gpu, qk, sizeof got[0]);
                do {
                    gpu->pass_begin(gpu, recorded ? 11 + (uint64_t)fused : 0);
                    if (fused)
                        gpu->rope_kv(gpu, out, in, &r, seq, T, shape_of(a));
                    else
                        gpu->rope(gpu, out, in, &r);
                } while (!gpu->pass_end(gpu));
                gpu->mem_get(gpu, got[recorded], qk, sizeof got[0]);
                ok &= gpu->sync(gpu, &e) == ST_OK;
            }
            ok &= memcmp(got[0], got[1], sizeof got[0]) == 0;
        }
    gpu->mem_free(gpu, qkv);
    gpu->mem_free(gpu, table);
    gpu->mem_free(gpu, qk);
    return ok;
}

/* Heads narrower than a tile of the kernels, and as wide as one. */
static void test_attention(struct backend *gpu, int64_t head) {
    struct attention a = {.gpu = gpu, .rng = rng_make(21, 1), .K = head};
    char name[100];
    for (int i = 0; i < S * BLOCKS; i++) a.table[i % S][i / S] = i; /* of different sequences side by side */
    a.kv = randoms(&a, (int64_t)S * BLOCKS * 2 * G * KV_BLOCK * a.K);
    a.o = randoms(&a, 128 * H * a.K);
    a.rows = randoms(&a, 128 * qk_width(&a));
    snprintf(name, sizeof name, "attention, bfloat16, heads of %lld: walked and split give the same bits",
             (long long)head);
    report(name, walked_and_split(&a));
    if (head == K) {
        report("rope_kv gives what rope and kv_write give", rope_into_cache(&a));
        report("rope: recorded and not give the same bits while its tables move", recorded_rope(&a));
    }
    snprintf(name, sizeof name, "attention, bfloat16, heads of %lld: recorded and not give the same bits",
             (long long)head);
    report(name, recorded_attention(&a));
    gpu->mem_free(gpu, a.kv);
    gpu->mem_free(gpu, a.o);
    gpu->mem_free(gpu, a.rows);
}

/* ---- LoRA -------------------------------------------------------------------------------------------------------- */

static float widened(uint16_t b) { return (float)bf16_value(b); }
static double rounded(double x) { /* to bfloat16, to nearest even */
    float f = (float)x;
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return bf16_value((uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16));
}

/* Two sites with one input against sums in double precision; and a row's bits are the same with other rows below. */
static bool lora_right(struct backend *gpu) {
    enum { T = 37, D = 200, R = 8, N0 = 56, N1 = 24, N = N0 + N1 };
    struct rng r = rng_make(41, 1);
    struct err e;
    static uint16_t x[T * D], a[2 * R * D], b0[N0 * R], b1[N1 * R], xa[T * 2 * R], dt[T * R];
    static float y[T * N], got[T * N], few[2 * N];
    for (int i = 0; i < T * D; i++) x[i] = bf16_random(&r);
    for (int i = 0; i < 2 * R * D; i++) a[i] = bf16_random(&r);
    for (int i = 0; i < N0 * R; i++) b0[i] = bf16_random(&r);
    for (int i = 0; i < N1 * R; i++) b1[i] = bf16_random(&r);
    for (int i = 0; i < T * N; i++) y[i] = (float)rng_normal(&r);
    struct weight wa = {.N = 2 * R, .K = D, .dt = DT_BF16}, w0 = {.N = N0, .K = R, .dt = DT_BF16},
                  w1 = {.N = N1, .K = R, .dt = DT_BF16};
    gpu->weight_put(gpu, &wa, 0, 2 * R, a);
    gpu->weight_put(gpu, &w0, 0, N0, b0);
    gpu->weight_put(gpu, &w1, 0, N1, b1);
    void *dx = gpu->mem_alloc(gpu, sizeof x);
    float *dy = gpu->mem_alloc(gpu, sizeof y);
    void *dxa = gpu->mem_alloc(gpu, sizeof xa);
    gpu->mem_put(gpu, dx, x, sizeof x);
    for (int rows = T; rows > 0; rows = rows == T ? 2 : 0) {
        struct tensor all = tensor_full(dy, rows, N), ta = tensor_of(dxa, DT_BF16, rows, 2 * R);
        const struct lora_site_args site[] = {{&w0, tensor_cols(all, 0, N0)}, {&w1, tensor_cols(all, N0, N1)}};
        gpu->mem_put(gpu, dy, y, sizeof y);
        gpu->lora_down(gpu, tensor_of(dx, DT_BF16, rows, D), &wa, ta, 0.5f);
        gpu->lora_up(gpu, ta, site, 2);
        gpu->mem_get(gpu, rows == T ? got : few, dy, (size_t)(rows * N) * sizeof *got);
        if (rows == T) gpu->mem_get(gpu, xa, dxa, sizeof xa);
    }
    gpu->mem_put(gpu, dy, y, sizeof y);
    gpu->lora_dt(gpu, tensor_of(dxa, DT_BF16, T, R), tensor_cols(tensor_full(dy, T, N), 0, N0), &w0, 0.3f);
    gpu->mem_get(gpu, dt, dxa, sizeof dt);
    bool ok = gpu->sync(gpu, &e) == ST_OK && memcmp(got, few, sizeof few) == 0;
    for (int t = 0; t < T; t++)
        for (int j = 0; j < R; j++) {
            double s = 0;
            for (int n = 0; n < N0; n++) s += 0.3 * rounded((double)y[t * N + n]) * bf16_value(b0[n * R + j]);
            ok &= fabs(bf16_value(dt[t * R + j]) - s) < 1e-3 + 0.004 * fabs(s);
        }
    for (int t = 0; t < T; t++) {
        double down[2 * R];
        for (int j = 0; j < 2 * R; j++) {
            double s = 0;
            for (int d = 0; d < D; d++) s += (double)(widened(x[t * D + d]) * widened(a[j * D + d]));
            down[j] = bf16_value(xa[t * 2 * R + j]);
            ok &= fabs(down[j] - 0.5 * s) < 1e-4 + 0.004 * fabs(s);
        }
        for (int n = 0; n < N; n++) {
            double s = (double)y[t * N + n];
            for (int j = 0; j < R; j++)
                s += n < N0 ? down[j] * bf16_value(b0[n * R + j]) : down[R + j] * bf16_value(b1[(n - N0) * R + j]);
            ok &= fabs((double)got[t * N + n] - s) < 1e-4;
        }
    }
    gpu->weight_free(gpu, &wa);
    gpu->weight_free(gpu, &w0);
    gpu->weight_free(gpu, &w1);
    gpu->mem_free(gpu, dx);
    gpu->mem_free(gpu, dy);
    gpu->mem_free(gpu, dxa);
    return ok;
}

/* ---- gradients in bfloat16 --------------------------------------------------------------------------------------- */

static uint16_t bf16_near(double x) {
    const float f = (float)x;
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}
/* How far numbers are from `want`: the largest distance, relative to a number or to the root mean square of all, and
 * the root mean square of the distances. */
struct distance {
    double most, all;
};
static struct distance distance_of(const uint16_t *got, const double *want, int64_t n) {
    double square = 0, off = 0;
    struct distance d = {0, 0};
    for (int64_t i = 0; i < n; i++) square += want[i] * want[i];
    const double rms = sqrt(square / (double)n);
    for (int64_t i = 0; i < n; i++) {
        const double x = fabs(bf16_value(got[i]) - want[i]);
        d.most = isnan(x) ? INFINITY : fmax(d.most, x / fmax(fabs(want[i]), rms));
        off += x * x;
    }
    d.all = isnan(off) ? INFINITY : sqrt(off / square);
    return d;
}

/* The gradients of attention in double precision, by their definition; and o and stats for the op. qkv is [T, (h+2g)k],
 * grad laid out alike. */
struct grad_case {
    int h, g, k, n_seq;
    const struct attn_seq *seq;
    int64_t rows;
};
static void attention_oracle(const struct grad_case *c, const uint16_t *qkv, const uint16_t *d_o, uint16_t *o,
                             float *stats, double *grad) {
    const int64_t cols = (c->h + 2 * c->g) * c->k, keys_at = (int64_t)c->h * c->k, values_at = keys_at + c->g * c->k;
    double *p = xcalloc((size_t)c->rows, sizeof *p), *dp = xcalloc((size_t)c->rows, sizeof *dp);
    for (int i = 0; i < c->n_seq; i++)
        for (int64_t r = 0; r < c->seq[i].len; r++)
            for (int h = 0; h < c->h; h++) {
                const struct attn_seq *s = &c->seq[i];
                const int64_t t = s->row + r, n = s->past + r + 1, g = h / (c->h / c->g) * c->k, head = h * c->k;
                double max = -INFINITY, sum = 0, delta = 0;
                for (int64_t j = 0; j < n; j++) {
                    const uint16_t *k = qkv + (j < s->past ? s->past_row + j : s->row + j - s->past) * cols;
                    p[j] = dp[j] = 0;
                    for (int d = 0; d < c->k; d++) {
                        p[j] += bf16_value(qkv[t * cols + head + d]) * bf16_value(k[keys_at + g + d]);
                        dp[j] += bf16_value(d_o[t * keys_at + head + d]) * bf16_value(k[values_at + g + d]);
                    }
                    max = fmax(max, p[j]);
                }
                for (int64_t j = 0; j < n; j++) sum += p[j] = exp(p[j] - max);
                stats[(t * c->h + h) * 2] = (float)max;
                stats[(t * c->h + h) * 2 + 1] = (float)(1 / sum);
                for (int64_t j = 0; j < n; j++) delta += (p[j] /= sum) * dp[j];
                for (int d = 0; d < c->k; d++) {
                    double out = 0;
                    for (int64_t j = 0; j < n; j++) {
                        const int64_t row = (j < s->past ? s->past_row + j : s->row + j - s->past) * cols;
                        const double ds = p[j] * (dp[j] - delta);
                        out += p[j] * bf16_value(qkv[row + values_at + g + d]);
                        grad[t * cols + head + d] += ds * bf16_value(qkv[row + keys_at + g + d]);
                        grad[row + keys_at + g + d] += ds * bf16_value(qkv[t * cols + head + d]);
                        grad[row + values_at + g + d] += p[j] * bf16_value(d_o[t * keys_at + head + d]);
                    }
                    o[t * keys_at + head + d] = bf16_near(out);
                }
            }
    free(p);
    free(dp);
}

static struct distance attention_grad_error(struct backend *gpu, const struct grad_case *c, bool *repeats) {
    const int64_t cols = (c->h + 2 * c->g) * c->k, width = (int64_t)c->h * c->k, n = c->rows * cols;
    struct rng r = rng_make(41, (uint64_t)(c->h * 1000 + c->k));
    uint16_t *host[3], *got[2]; /* qkv, d_o, o */
    void *dev[4];               /* and the gradient */
    double *want = xcalloc((size_t)n, sizeof *want);
    float *stats = xcalloc((size_t)(c->rows * c->h * 2), sizeof *stats);
    struct err e;
    for (int i = 0; i < 3; i++) {
        host[i] = xcalloc((size_t)n, sizeof **host);
        for (int64_t j = 0; j < n; j++) /* q holds the 1/sqrt(k) */
            host[i][j] = bf16_near(rng_normal(&r) / (i == 0 && j % cols < width ? sqrt((double)c->k) : 1));
    }
    attention_oracle(c, host[0], host[1], host[2], stats, want);
    for (int i = 0; i < 4; i++) dev[i] = gpu->mem_alloc(gpu, (size_t)n * 2);
    float *dev_stats = gpu->mem_alloc(gpu, (size_t)(c->rows * c->h * 2) * sizeof *stats);
    for (int i = 0; i < 3; i++) gpu->mem_put(gpu, dev[i], host[i], (size_t)n * 2);
    gpu->mem_put(gpu, dev_stats, stats, (size_t)(c->rows * c->h * 2) * sizeof *stats);
    const struct tensor qkv = tensor_of(dev[0], DT_BF16, c->rows, cols), d = tensor_of(dev[3], DT_BF16, c->rows, cols);
    const struct tensor d_o = tensor_of(dev[1], DT_BF16, c->rows, width),
                        o = tensor_of(dev[2], DT_BF16, c->rows, width);
    const int64_t gk = c->g * c->k;
    for (int i = 0; i < 2; i++) {
        got[i] = xcalloc((size_t)n, sizeof **got);
        memset(got[i], 0xff, (size_t)n * 2); /* NaN: whatever is not written shows */
        gpu->mem_put(gpu, dev[3], got[i], (size_t)n * 2);
        gpu->attention_grad(gpu, tensor_cols(d, 0, width), tensor_cols(d, width, gk), tensor_cols(d, width + gk, gk),
                            d_o, o, dev_stats, tensor_cols(qkv, 0, width), tensor_cols(qkv, width, gk),
                            tensor_cols(qkv, width + gk, gk), c->seq, c->n_seq,
                            (struct attn_shape){c->h, c->g, c->k, NULL, 0});
        gpu->mem_get(gpu, got[i], dev[3], (size_t)n * 2);
    }
    struct distance worst = {INFINITY, INFINITY};
    if (gpu->sync(gpu, &e) == ST_OK) worst = distance_of(got[0], want, n);
    *repeats &= memcmp(got[0], got[1], (size_t)n * 2) == 0;
    for (int i = 0; i < 4; i++) gpu->mem_free(gpu, dev[i]);
    gpu->mem_free(gpu, dev_stats);
    for (int i = 0; i < 3; i++) free(host[i]);
    for (int i = 0; i < 2; i++) free(got[i]);
    free(want);
    free(stats);
    return worst;
}

static void test_attention_grad(struct backend *gpu) {
    static const struct attn_seq one[] = {{.len = 1}}, alone[] = {{.len = 150}};
    static const struct attn_seq packed[] = {{.len = 70}, /* its first 65 rows, all of it, all of it; and none */
                                             {.row = 70, .len = 40, .past = 65},
                                             {.row = 110, .len = 1, .past = 70},
                                             {.row = 111, .len = 66, .past = 70},
                                             {.row = 177, .len = 33}};
    static const struct grad_case cases[] = {
        {6, 2, 48, 5, packed, 210}, {3, 1, 128, 5, packed, 210}, {2, 2, 64, 1, alone, 150}, {2, 1, 128, 1, one, 1}};
    bool repeats = true, right = true;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) { /* P, dS and o are rounded to 8 bits: 2^-9 of each */
        const struct distance d = attention_grad_error(gpu, &cases[i], &repeats);
        if (d.most < 0.1 && d.all < 0.005) continue;
        printf("  heads %d, %d of %d: at most %.4f, all %.5f\n", cases[i].h, cases[i].g, cases[i].k, d.most, d.all);
        right = false;
    }
    report("attention_grad, bfloat16: within 0.5 % of double precision", right);
    report("attention_grad, bfloat16: the same bits again", repeats);
}

/* swiglu_both against swiglu and swiglu_grad, bit for bit: rows of whole eights, and others. */
static bool swiglu_both_same_bits(struct backend *gpu, int64_t F) {
    enum { T = 7 };
    struct rng r = rng_make(83, (uint64_t)F);
    struct err e;
    const int64_t n = T * F, all = 6 * n; /* gu, dy, y, dgu */
    uint16_t *host = xcalloc((size_t)all, sizeof *host), *got[2];
    for (int64_t i = 0; i < all; i++) host[i] = bf16_near(2 * rng_normal(&r));
    uint16_t *const dev = gpu->mem_alloc(gpu, (size_t)all * 2);
    const struct tensor gu = tensor_of(dev, DT_BF16, T, 2 * F), dy = tensor_of(dev + 2 * n, DT_BF16, T, F),
                        y = tensor_of(dev + 3 * n, DT_BF16, T, F), dgu = tensor_of(dev + 4 * n, DT_BF16, T, 2 * F);
    for (int both = 0; both < 2; both++) {
        got[both] = xcalloc((size_t)all, sizeof *host);
        gpu->mem_put(gpu, dev, host, (size_t)all * 2);
        if (both) {
            gpu->swiglu_both(gpu, dgu, y, dy, gu);
        } else {
            gpu->swiglu(gpu, y, gu);
            gpu->swiglu_grad(gpu, dgu, dy, gu);
        }
        gpu->mem_get(gpu, got[both], dev, (size_t)all * 2);
    }
    const bool same = gpu->sync(gpu, &e) == ST_OK && memcmp(got[0], got[1], (size_t)all * 2) == 0 &&
                      memcmp(got[0] + 3 * n, host + 3 * n, (size_t)(3 * n) * 2) != 0;
    for (int i = 0; i < 2; i++) free(got[i]);
    gpu->mem_free(gpu, dev);
    free(host);
    return same;
}

#include "expert_checks.h"
#include "few_checks.h" /* with the helpers above */
#include "train_checks.h"

/* ---- sums in parts -------------------------------------------------------------------------------------------------
 */

/* A product long and narrow enough to be added in parts, over many rows and over the first few of them: with a norm
 * behind it, another op, or nothing; added to what is there and to something else. The same bits every time, and near
 * the sums in double precision. */
static bool sums_in_parts(struct backend *gpu) {
    enum { ROWS = 260, FEW = 5, IN = 4096, OUT = 32, BEHIND = 4 };
    struct rng r = rng_make(81, 0);
    struct err e;
    struct weight w = {.N = OUT, .K = IN, .dt = DT_BF16};
    uint16_t *const x = xmalloc((size_t)(ROWS * IN) * sizeof *x), *const m = xmalloc((size_t)(OUT * IN) * sizeof *m);
    float *const y = xmalloc((size_t)(ROWS * OUT) * sizeof *y), *const many = xmalloc((size_t)(ROWS * OUT) * sizeof *y);
    float few[FEW * OUT], twice[FEW * OUT], gain[OUT];
    uint16_t normed[2][FEW * OUT];
    for (int i = 0; i < ROWS * IN; i++) x[i] = bf16_random(&r);
    for (int i = 0; i < OUT * IN; i++) m[i] = bf16_random(&r);
    for (int i = 0; i < ROWS * OUT; i++) y[i] = 100.0f * (float)rng_normal(&r);
    for (int i = 0; i < OUT; i++) gain[i] = 1.0f + 0.1f * (float)rng_normal(&r);
    gpu->weight_put(gpu, &w, 0, OUT, m);
    void *const dx = gpu->mem_alloc(gpu, (size_t)(ROWS * IN) * sizeof *x);
    float *const dy = gpu->mem_alloc(gpu, (size_t)(ROWS * OUT) * sizeof *y),
                 *const dz = gpu->mem_alloc(gpu, (size_t)(ROWS * OUT) * sizeof *y),
                 *const dgain = gpu->mem_alloc(gpu, sizeof gain);
    void *const dn = gpu->mem_alloc(gpu, sizeof normed[0]);
    const struct tensor all = tensor_full(dy, ROWS, OUT), top = tensor_full(dy, FEW, OUT),
                        norm = tensor_of(dn, DT_BF16, FEW, OUT);
    gpu->mem_put(gpu, dx, x, (size_t)(ROWS * IN) * sizeof *x);
    gpu->mem_put(gpu, dgain, gain, sizeof gain);
    gpu->mem_put(gpu, dy, y, (size_t)(ROWS * OUT) * sizeof *y);
    gpu->linear(gpu, all, tensor_of(dx, DT_BF16, ROWS, IN), &w, NULL, true);
    gpu->mem_get(gpu, many, dy, (size_t)(ROWS * OUT) * sizeof *y);
    gpu->rmsnorm(gpu, norm, top, dgain, 1e-6f);
    gpu->mem_get(gpu, normed[0], dn, sizeof normed[0]);
    gpu->linear(gpu, top, tensor_of(dx, DT_BF16, FEW, IN), &w, NULL, true);
    gpu->mem_get(gpu, twice, dy, sizeof twice);
    bool ok = gpu->sync(gpu, &e) == ST_OK;
    for (int t = 0; t < ROWS; t += 37)
        for (int n = 0; n < OUT; n++) {
            double s = (double)y[t * OUT + n];
            for (int k = 0; k < IN; k++) s += (double)(widened(x[t * IN + k]) * widened(m[n * IN + k]));
            ok &= fabs((double)many[t * OUT + n] - s) < 2e-3;
        }
    for (int how = 0; how < BEHIND; how++) {
        const bool recorded = how == 2;
        gpu->mem_zero(gpu, dn, sizeof normed[0]);
        for (int round = 0; round < (recorded ? 3 : 1); round++) {
            gpu->mem_put(gpu, how == 3 ? dz : dy, y, sizeof few);
            do {
                if (recorded) gpu->pass_begin(gpu, 77);
                if (how == 3)
                    gpu->linear_add(gpu, top, tensor_of(dx, DT_BF16, FEW, IN), &w, tensor_full(dz, FEW, OUT));
                else
                    gpu->linear(gpu, top, tensor_of(dx, DT_BF16, FEW, IN), &w, NULL, true);
                if (how > 0) gpu->rmsnorm(gpu, norm, top, dgain, 1e-6f);
                if (recorded)
                    gpu->linear(gpu, top, tensor_of(dx, DT_BF16, FEW, IN), &w, NULL, true); /* owed at the end */
            } while (recorded && !gpu->pass_end(gpu));
        }
        gpu->mem_get(gpu, few, dy, sizeof few);
        gpu->mem_get(gpu, normed[1], dn, sizeof normed[1]);
        ok &= gpu->sync(gpu, &e) == ST_OK && memcmp(few, recorded ? twice : many, sizeof few) == 0;
        if (how > 0) ok &= memcmp(normed[0], normed[1], sizeof normed[0]) == 0;
    }
    gpu->weight_free(gpu, &w);
    void *const dev[] = {dx, dy, dz, dgain, dn};
    for (size_t i = 0; i < ARRAY_LEN(dev); i++) gpu->mem_free(gpu, dev[i]);
    free(x), free(m), free(y), free(many);
    return ok;
}

/* ---- gradients' products ------------------------------------------------------------------------------------------
 */

/* Products with one gradient in common, the last of which writes to it, alone and with a foreign op in front of each,
 * before which nothing is kept: bit for bit. */
static bool rounded_once_same_bits(struct backend *gpu) {
    enum { ROWS = 40, OUT = 48, IN = 64 };
    struct rng r = rng_make(71, 0);
    struct err e;
    const struct weight w = random_weight(gpu, &r, OUT, IN), square = random_weight(gpu, &r, OUT, OUT);
    const size_t n_dy = ROWS * OUT, n_dx = ROWS * IN, n_dw = OUT * IN, n = n_dy + 3 * n_dx + n_dw;
    float *host = xmalloc(n * sizeof *host), *got[2], *dev = gpu->mem_alloc(gpu, n * sizeof *host), *one;
    one = gpu->mem_alloc(gpu, sizeof *one);
    for (size_t i = 0; i < n; i++) host[i] = (float)rng_normal(&r);
    const struct tensor dy = tensor_full(dev, ROWS, OUT), x = tensor_full(dev + n_dy, ROWS, IN),
                        first = tensor_full(dev + n_dy + n_dx, ROWS, IN),
                        last = tensor_full(dev + n_dy + 2 * n_dx, ROWS, IN);
    float *const dw = dev + n_dy + 3 * n_dx;
    for (int apart = 0; apart < 2; apart++) {
        got[apart] = xmalloc(n * sizeof *host);
        gpu->mem_put(gpu, dev, host, n * sizeof *host);
        for (int round = 0; round < 2; round++) { /* in the second the scratch is large enough from the start */
            gpu->linear_dx(gpu, first, dy, &w, true);
            if (apart) gpu->mem_zero(gpu, one, sizeof *one);
            gpu->linear_dw(gpu, dw, dy, x, DT_BF16);
            if (apart) gpu->mem_zero(gpu, one, sizeof *one);
            gpu->linear_dx(gpu, dy, dy, &square, true);
            if (apart) gpu->mem_zero(gpu, one, sizeof *one);
            gpu->linear_dx(gpu, last, dy, &w, true);
            if (apart) gpu->mem_zero(gpu, one, sizeof *one);
        }
        gpu->mem_get(gpu, got[apart], dev, n * sizeof *host);
    }
    const bool same = gpu->sync(gpu, &e) == ST_OK && memcmp(got[0], got[1], n * sizeof *host) == 0 &&
                      memcmp(got[0], host, n_dy * sizeof *host) != 0;
    struct weight both[2] = {w, square};
    for (int i = 0; i < 2; i++) gpu->weight_free(gpu, &both[i]), free(got[i]);
    gpu->mem_free(gpu, dev);
    gpu->mem_free(gpu, one);
    free(host);
    return same;
}

/* ---- log-probabilities --------------------------------------------------------------------------------------------
 */

/* The gradient right behind logprob, which has left it the maxima and sums, against the gradient alone: bit for bit.
 * Behind logprob of other logits it must not believe them. A product follows, of the gradient rounded by itself or as
 * an op of its own leaves it. */
static bool logprob_grad_same_bits(struct backend *gpu, int64_t V) {
    enum { N = 5, WAYS = 5, OUT = 16 };
    struct rng r = rng_make(61, (uint64_t)V);
    struct err e;
    const size_t n = (size_t)(N * V), bytes = n * sizeof(float);
    float *x = xmalloc(bytes), *got[WAYS], product[WAYS][N * OUT], logp[N], g[N];
    struct weight w = random_weight(gpu, &r, V, OUT);
    int32_t target[N];
    for (size_t i = 0; i < n; i++) x[i] = 3 * (float)rng_normal(&r);
    for (int i = 0; i < N; i++) {
        g[i] = (float)rng_normal(&r);
        target[i] = (int32_t)rng_below(&r, (uint64_t)V);
    }
    float *dev = gpu->mem_alloc(gpu, bytes), *other = gpu->mem_alloc(gpu, bytes);
    float *out = gpu->mem_alloc(gpu, sizeof product[0]);
    uint16_t *dl_room = gpu->mem_alloc(gpu, n * sizeof *dl_room);
    const struct tensor dl = tensor_of(dl_room, DT_BF16, N, V);
    for (int way = 0; way < WAYS; way++) {
        got[way] = xmalloc(bytes);
        gpu->mem_put(gpu, dev, x, bytes);
        gpu->mem_zero(gpu, other, bytes);
        if (way > 0 && way < 4) gpu->logprob(gpu, logp, NULL, tensor_full(way == 2 ? other : dev, N, V), target);
        struct tensor grad = tensor_full(dev, N, V);
        if (way >= 3)
            gpu->logprob_grad16(gpu, dl, grad, target, g), grad = dl;
        else
            gpu->logprob_grad(gpu, grad, target, g);
        gpu->linear_dx(gpu, tensor_full(out, N, OUT), grad, &w, false);
        gpu->mem_get(gpu, got[way], dev, bytes);
        gpu->mem_get(gpu, product[way], out, sizeof product[0]);
    }
    bool ok = gpu->sync(gpu, &e) == ST_OK && memcmp(got[0], x, bytes) != 0;
    for (int way = 1; way < WAYS; way++)
        ok &= (way >= 3 || memcmp(got[0], got[way], bytes) == 0) &&
              memcmp(product[0], product[way], sizeof product[0]) == 0;
    for (int way = 0; way < WAYS; way++) free(got[way]);
    gpu->weight_free(gpu, &w);
    gpu->mem_free(gpu, dl_room);
    gpu->mem_free(gpu, out);
    gpu->mem_free(gpu, dev);
    gpu->mem_free(gpu, other);
    free(x);
    return ok;
}

/* ---- drawing ----------------------------------------------------------------------------------------------------- */

/* Ids drawn from rows of random logits against running sums in double precision, greedy and min-p among them; and their
 * log-probabilities against the host's, bit for bit. */
static bool draws_right(struct backend *gpu, int64_t V, int32_t limit) {
    enum { N = 12 };
    struct rng r = rng_make(31, (uint64_t)V);
    struct err e;
    float *x = xcalloc((size_t)(N * V), sizeof *x), logp[N], entropy[N];
    int32_t id[N];
    struct draw how[N];
    for (int64_t i = 0; i < N * V; i++) x[i] = 3 * (float)rng_normal(&r);
    for (int i = 0; i < N; i++)
        how[i] = (struct draw){i % 4 == 3 ? 0 : i % 4 == 2 ? 0.7f : 1, i % 3 == 2 ? 0.05f : 0, (i + 0.37) / N};
    float *dev = gpu->mem_alloc(gpu, (size_t)(N * V) * sizeof *x);
    gpu->mem_put(gpu, dev, x, (size_t)(N * V) * sizeof *x);
    gpu->draw(gpu, tensor_full(dev, N, V), limit, how, id, logp, entropy);
    bool ok = gpu->sync(gpu, &e) == ST_OK;
    for (int i = 0; i < N && ok; i++) {
        const float *row = x + i * V;
        double max = -INFINITY, all = 0, sum = 0, before = 0;
        int32_t best = 0;
        ok &= id[i] >= 0 && id[i] < limit;
        for (int32_t j = 0; j < limit; j++) {
            if (row[j] > row[best]) best = j;
            max = fmax(max, (double)row[j]);
        }
        for (int32_t j = 0; j < limit && how[i].temperature > 0; j++) {
            const double w = exp(((double)row[j] - max) / (double)how[i].temperature);
            all += w < (double)how[i].min_p ? 0 : w;
        }
        for (int32_t j = 0; j <= id[i] && how[i].temperature > 0; j++) {
            const double w = exp(((double)row[j] - max) / (double)how[i].temperature);
            before = sum;
            sum += w < (double)how[i].min_p ? 0 : w;
        }
        float host_entropy;
        const float host = logprob_row(row, V, id[i], &host_entropy);
        ok &= memcmp(&host, &logp[i], sizeof host) == 0 && memcmp(&host_entropy, &entropy[i], sizeof host) == 0;
        if (how[i].temperature > 0)
            ok &= before <= (how[i].u + 1e-5) * all && sum >= (how[i].u - 1e-5) * all && sum > before;
        else
            ok &= id[i] == best;
        if (!ok) printf("  row %d: id %d, logp %g, the host's %g\n", i, id[i], (double)logp[i], (double)host);
    }
    gpu->mem_free(gpu, dev);
    free(x);
    return ok;
}

/* ---- recorded passes --------------------------------------------------------------------------------------------- */

/* More keys than there is room for recordings, some of them again and again: each pass does what it was asked for. */
static bool recordings_come_and_go(struct backend *gpu) {
    enum { KEYS = 110, ROWS = 5, COLS = 3, TABLE = 400 };
    struct err e;
    float table[TABLE * COLS], got[ROWS * COLS];
    for (int i = 0; i < TABLE * COLS; i++) table[i] = (float)i;
    float *x = gpu->mem_alloc(gpu, sizeof table), *y = gpu->mem_alloc(gpu, sizeof got);
    gpu->mem_put(gpu, x, table, sizeof table);
    bool ok = true;
    for (int i = 0; i < 3 * KEYS && ok; i++)
        for (int hot = 0; hot < 2; hot++) {
            int32_t rows[ROWS];
            for (int r = 0; r < ROWS; r++) rows[r] = (i * 7 + r * 31 + hot) % TABLE;
            do {
                gpu->pass_begin(gpu, hot ? 1000 + (uint64_t)(i % 3) : 1 + (uint64_t)(i % KEYS));
                gpu->gather_rows(gpu, tensor_full(y, ROWS, COLS), tensor_full(x, TABLE, COLS), rows);
            } while (!gpu->pass_end(gpu));
            gpu->mem_get(gpu, got, y, sizeof got);
            ok &= gpu->sync(gpu, &e) == ST_OK;
            for (int k = 0; k < ROWS * COLS; k++) ok &= got[k] == table[rows[k / COLS] * COLS + k % COLS];
        }
    gpu->mem_free(gpu, x);
    gpu->mem_free(gpu, y);
    return ok;
}

#include "engine_checks.h" /* with the helpers above */
#include "memory_checks.h"

/* ---- training ---------------------------------------------------------------------------------------------------- */

/* A training pass with each layer kept, with all but one computed again, and without the ops that put several steps
 * into one: the same log-probabilities in every way; the gradients of the first two in the same bits, the third's near.
 */
static bool trains(struct backend *gpu, bool lora, unsigned parts, struct err *e) {
    enum { T = 21, N = 140, WAYS = 3, LAYERS = 3 }; /* rows are wanted several times */
    static const char config[] =
        "{\"model_type\":\"qwen2\",\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":48,"
        "\"num_hidden_layers\":3,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
        "\"max_position_embeddings\":256,\"tie_word_embeddings\":true}";
    struct backend whole = *gpu;
    gpu->logit_chunk_bytes = 4096; /* several chunks */
    int32_t ids[T], rows[N], targets[N];
    float logp[WAYS][N], g[N], *grad[WAYS] = {NULL};
    int64_t n_grad = 0;
    int again[WAYS] = {0};
    bool ok = true;
    for (int i = 0; i < T; i++) ids[i] = (7 * i + 3) % 64;
    for (int i = 0; i < N; i++) rows[i] = (13 * i + 3) % T, targets[i] = (5 * i + 1) % 64, g[i] = i % 2 ? -1.0f : 0.5f;
    const struct segment seg = {0, T, -1, ADAPTER_OWN};
    const struct train_batch b = {ids, T, &seg, 1, rows, targets, N, false};
    int64_t least = 0;
    for (int way = 0; ok && way < WAYS; way++) {
        const struct model_options mo = {.dtype = "bf16", .frozen = lora, .activation_memory = way == 1 ? least : 0};
        struct model *m = NULL;
        if (way == 2) {
            gpu->lora_swiglu = NULL, gpu->linear_add = NULL;
            gpu->logprob_grad16 = NULL, gpu->rmsnorm_back = NULL;
        }
        ok = model_init(config, 3, &mo, gpu, &m, e) == ST_OK &&
             (lora ? adapter_of_noise(m, 8, parts, e) : model_train_prepare(m, TRAIN_FULL, e) == ST_OK);
        if (ok && way == 0) least = model_activation_bytes(m, T, N, LAYERS);
        ok = ok && model_forward(m, &b, logp[way], NULL, NULL, e) == ST_OK && model_backward(m, &b, g, e) == ST_OK;
        if (ok) again[way] = model_memory(m).recomputed_layers;
        int n = 0;
        const struct param *p = ok ? model_params(m, &n) : NULL;
        n_grad = 0;
        for (int i = 0; i < n; i++) n_grad += p[i].n;
        grad[way] = xcalloc((size_t)n_grad + 1, sizeof(float));
        float *at = grad[way];
        for (int i = 0; i < n; at += p[i++].n) model_grad_get(m, &p[i], at);
        model_free(m);
    }
    *gpu = whole;
    ok = ok && n_grad > 0 && again[0] == 0 && again[1] == LAYERS - 1;
    for (int way = 1; ok && way < WAYS; way++) ok = memcmp(logp[0], logp[way], sizeof logp[0]) == 0;
    ok = ok && memcmp(grad[0], grad[1], (size_t)n_grad * sizeof(float)) == 0;
    double off = 0, all = 0;
    for (int64_t i = 0; ok && i < n_grad; i++) {
        const double d = (double)grad[0][i] - (double)grad[2][i];
        off += d * d;
        all += (double)grad[2][i] * (double)grad[2][i];
    }
    if (!ok || !(off < 1e-4 * all))
        printf("  again %d and %d, off %g of %g\n", again[0], again[1], sqrt(off), sqrt(all));
    for (int way = 0; way < WAYS; way++) free(grad[way]);
    return ok && all > 0 && off < 1e-4 * all;
}

int main(int argc, char **argv) {
    if (argc != 2) return fprintf(stderr, "usage: cuda_plugin PLUGIN.so\n"), 2;
    void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    void *symbol = plugin ? dlsym(plugin, "kernelrl_cuda_open") : NULL;
    if (!symbol) return fprintf(stderr, "%s: %s\n", argv[1], dlerror()), 2;
    backend_plugin_open_fn *open_plugin;
    memcpy(&open_plugin, &symbol, sizeof open_plugin);
    char msg[512] = "";
    struct backend *gpu = NULL;
    if (open_plugin(BACKEND_ABI, 0, NULL, &gpu, msg, sizeof msg) != 0)
        return fprintf(stderr, "%s: %s\n", argv[1], msg), 2;
    printf("%s\n", gpu->name);
    test_opening(open_plugin);
    const bool emulated = strstr(gpu->name, "emulated") != NULL;
    test_experts(gpu, emulated);
    if (emulated) test_faults_of_opening(open_plugin);
    test_memory(gpu);
    report("more indices than the ring holds, without a sync between", gathers_right(gpu, 16384, 250));
    report("a transfer larger than the ring", gathers_right(gpu, emulated ? 400000 : 3000000, 1));
    test_attention(gpu, K);
    test_attention(gpu, 128);
    report("LoRA of two sites", lora_right(gpu));
    test_attention_grad(gpu);
    report("SwiGLU and its gradient at once: rows of 64", swiglu_both_same_bits(gpu, 64));
    report("SwiGLU and its gradient at once: rows of 37", swiglu_both_same_bits(gpu, 37));
    report("a norm and its gradient at once: 1,536 columns", norm_back_right(gpu, 1536));
    report("a norm and its gradient at once: 2,600 columns", norm_back_right(gpu, 2600));
    report("a norm and its gradient at once: 42 columns", norm_back_right(gpu, 42));
    report("a bias's gradient of 300 rows in bfloat16", bias_grad_right(gpu, 300, 200) && bias_grad_right(gpu, 20, 37));
    report("LoRA within SwiGLU gives the bits of both: few rows, rank 32", lora_into_swiglu(gpu, 37, 32));
    report("LoRA within SwiGLU gives the bits of both: more rows, rank 40", lora_into_swiglu(gpu, 75, 40));
    report("LoRA within SwiGLU gives the bits of both: many rows, rank 32", lora_into_swiglu(gpu, 1030, 32));
    report("LoRA within SwiGLU gives the bits of both: many rows, rank 40", lora_into_swiglu(gpu, 1024, 40));
    report("thin gradients: 700 rows in parts, rank 8", thin_right(gpu, 700, 72, 8));
    report("thin gradients: 530 rows, rank 40", thin_right(gpu, 530, 200, 40));
    report("thin gradients: 1,536 columns, rank 32", thin_right(gpu, 512, emulated ? 256 : 1536, 32));
    report("LoRA over some rows gives the bits of few: rank 32", lora_same_bits(gpu, 75, 40, 544, 32));
    report("LoRA over some rows gives the bits of few: rank 3", lora_same_bits(gpu, 66, 40, 72, 3));
    report("LoRA over some rows gives the bits of few: a long sum", lora_same_bits(gpu, 66, 40, 8224, 16));
    report("LoRA over many rows gives the bits of few: rank 8", lora_same_bits(gpu, 1046, 600, 72, 8));
    report("LoRA over many rows gives the bits of few: rank 32", lora_same_bits(gpu, 1029, 600, 136, 32));
    report("LoRA over many rows gives the bits of few: rank 40", lora_same_bits(gpu, 1024, 600, 40, 40));
    test_few_rows(gpu, emulated);
    test_coded_rows(gpu, emulated);
    report("a long sum in parts: over many rows and over few", sums_in_parts(gpu));
    report("a gradient rounded once for several products", rounded_once_same_bits(gpu));
    report("the gradient of 20,000 logits behind their log-probabilities", logprob_grad_same_bits(gpu, 20000));
    report("the gradient of 4,999 logits behind their log-probabilities", logprob_grad_same_bits(gpu, 4999));
    report("the gradient of 37 logits behind their log-probabilities", logprob_grad_same_bits(gpu, 37));
    report("drawing from 30,011 ids", draws_right(gpu, 30011, 29990));
    report("drawing from 5,000 ids", draws_right(gpu, 5000, 5000));
    report("drawing from 37 ids", draws_right(gpu, 37, 30));
    report("more keys of passes than recordings", recordings_come_and_go(gpu));
    struct err e = {0};
    report("several adapters in recorded steps: the samples of each alone", adapters_mixed(gpu, &e));
    if (e.msg[0]) printf("  %s\n", e.msg);
    report("steps ahead of their results: the samples of steps one by one", steps_ahead_same(gpu, &e));
    if (e.msg[0]) printf("  %s\n", e.msg);
    report("steps ahead of their results: a device that fails among them", steps_ahead_fail(gpu, &e));
    if (e.msg[0]) printf("  %s\n", e.msg);
    report("training LoRA: layers kept, computed again, and without the ops that join steps", trains(gpu, true, 0, &e));
    if (e.msg[0]) printf("  %s\n", e.msg);
    report("training LoRA on layers and head: likewise", trains(gpu, true, ADAPTER_LAYERS | ADAPTER_HEAD, &e));
    if (e.msg[0]) printf("  %s\n", e.msg);
    report("training LoRA on the head alone: likewise", trains(gpu, true, ADAPTER_HEAD, &e));
    if (e.msg[0]) printf("  %s\n", e.msg);
    report("training all: layers kept, computed again, and without the ops that join steps", trains(gpu, false, 0, &e));
    if (e.msg[0]) printf("  %s\n", e.msg);
    if (emulated) { /* what other devices than those with wgmma compute */
        struct backend *other = NULL;
        setenv("KERNELRL_EMULATE_MAJOR", "8", 1);
        if (open_plugin(BACKEND_ABI, 0, NULL, &other, msg, sizeof msg) != 0)
            return fprintf(stderr, "%s: %s\n", argv[1], msg), 2;
        test_attention_grad(other);
        other->close(other);
    }
    if (emulated) test_memory_as_planned(plugin, open_plugin);
    if (emulated) test_pieces(plugin, open_plugin);
    if (emulated) test_broken_device(gpu); /* it stays broken */
    gpu->close(gpu);
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
