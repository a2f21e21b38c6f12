/* perf: the time of every op at the shapes of two models, beside the limit of the machine that it ran on. The limit is
 * the larger of two times: that of the bytes at the measured bandwidth of memory, and that of the operations at the
 * measured rate of a large matrix product. Calls go round through copies of the operands that take COLD_BYTES, so that
 * operands come out of memory. Where that would be too many copies, the line says that they came from caches. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bandwidth.h"
#include "base/clock.h"
#include "opcheck/cases.h"

/* D: hidden, F: feed-forward, V: vocabulary, H: query heads, G: key/value heads, K: head dimension. */
struct dims {
    const char *name;
    int64_t D, F, V, H, G, K;
    bool qk_norm;
};
static const struct dims models[] = {{"Qwen2.5-0.5B", 896, 4864, 151936, 14, 2, 64, false},
                                     {"models/tiny", 256, 768, 2048, 4, 2, 64, true}};

enum { DECODE_ROWS = 16, TRAIN_ROWS = 512, HEAD_ROWS = 64, DECODE_PAST = 300, COPIES_MAX = 256, ROUNDS = 15 };
#define COLD_BYTES 256e6
#define HELD_BYTES 1e9 /* All copies together take at most this. */
#define ROUND_S 0.004  /* A round takes about this long. The fastest round counts. */
#define BANDWIDTH_S 0.1

/* What was measured of an op at one shape. */
struct perf_line {
    const struct checked_op *op;
    const struct dims *model;
    char what[40], shape[80];
    double seconds, flop, bytes;
    bool bf16, cold;
};
struct perf {
    const struct opcheck_env *env;
    const struct opcheck_options *o;
    struct opcheck_tally *t;
    /* Of float32 and of bf16 products, the highest rate that there was. */
    double bytes_per_s, flop_per_s[2];
    struct perf_line line[256];
    int n_lines;
};

/* ---- limits ------------------------------------------------------------------------------------------------------ */

/* Bytes a second: of host memory as all threads read it, of a device's as it copies (a byte is read and written). */
static enum status bandwidth(const struct opcheck_env *env, size_t bytes, double *out, struct err *e) {
    struct backend *be = env->target;
    void *p = be->mem_alloc(be, bytes), *q = env->host ? NULL : be->mem_alloc(be, bytes);
    enum status st =
        !p || (!env->host && !q) ? FAIL(e, ST_MEMORY, "%s: no memory to measure bandwidth", be->name) : ST_OK;
    if (st == ST_OK && env->host) {
        bandwidth_fill(p, (int64_t)bytes);
        *out = bandwidth_read(be->pool, p, (int64_t)bytes, BANDWIDTH_S);
    } else if (st == ST_OK) {
        void *contents = xmalloc(bytes);
        double best = INFINITY;
        bandwidth_fill(contents, (int64_t)bytes);
        be->mem_put(be, p, contents, bytes);
        st = be->sync(be, e);
        for (int i = 0; i < 16 && st == ST_OK; i++) {
            const double t0 = clock_now_s();
            be->mem_copy(be, q, p, bytes);
            st = be->sync(be, e);
            best = fmin(best, clock_now_s() - t0);
        }
        free(contents);
        *out = 2 * (double)bytes / best;
    }
    be->mem_free(be, p);
    be->mem_free(be, q);
    return st;
}

/* ---- timing ------------------------------------------------------------------------------------------------------ */

/* Seconds that a call of the case takes, the best of ROUNDS. *cold: whether what the copies touch is COLD_BYTES. */
static enum status time_case(const struct op_case *c, struct backend *be, double *seconds, bool *cold, struct err *e) {
    double flop, touched, held = 0;
    c->op->f->cost(c, &flop, &touched);
    for (int i = 0; i < OPERANDS_MAX; i++) held += c->a[i].role == WRT ? 0 : 4 * (double)c->a[i].n;
    const int copies = (int)fmax(1, fmin(COPIES_MAX, fmin(COLD_BYTES / fmax(touched, 1), HELD_BYTES / held)));
    *cold = copies * touched >= 0.5 * COLD_BYTES;
    struct side *side = xcalloc((size_t)copies, sizeof *side);
    enum status st = ST_OK;
    int open = 0;
    for (; open < copies && st == ST_OK; open++) st = side_open(&side[open], c, be, e);
    if (st != ST_OK) open--;
    *seconds = INFINITY;
    int64_t calls = 1, next = 0;
    /* The first round finds out how many calls fill a round. */
    for (int round = -1; round < ROUNDS && st == ST_OK; round++) {
        /* Ops that work in place change their operands with every call, but none so often that they become
         * subnormal. */
        for (int i = 0; i < copies && c->op->f->prepare == NULL && st == ST_OK; i++) side_reset(&side[i], c);
        st = be->sync(be, e);
        const double t0 = clock_now_s();
        for (int64_t i = 0; i < calls; i++) c->op->f->call(c, &side[next++ % copies]);
        if (st == ST_OK) st = be->sync(be, e);
        const double s = (clock_now_s() - t0) / (double)calls;
        if (round < 0)
            calls = (int64_t)fmax(1, fmin(16.0 * copies, ROUND_S / fmax(s, 1e-8)));
        else
            *seconds = fmin(*seconds, s);
    }
    while (open > 0) side_close(&side[--open], c);
    free(side);
    return st;
}

static const struct checked_op *op_named(const char *name) {
    const struct checked_op *op = opcheck_ops;
    while (strcmp(op->name, name) != 0) op++;
    return op;
}

static bool wanted(const struct perf *p, const char *op) { return !p->o->op || strcmp(p->o->op, op) == 0; }

static enum status measure(struct perf *p, const struct dims *m, const char *op_name, const char *what, int variant,
                           const int64_t s[SHAPE], struct err *e) {
    const struct checked_op *op = op_named(op_name);
    if (!wanted(p, op_name) || ((op->flags & BF16) && !p->env->target->bf16)) return ST_OK;
    struct op_case c;
    bool cold;
    double seconds, flop, bytes;
    case_build(&c, op, s, variant, 0, 0);
    op->f->cost(&c, &flop, &bytes);
    const bool bf16 = c.dt == DT_BF16;
    const enum status st = time_case(&c, p->env->target, &seconds, &cold, e);
    case_free(&c);
    TRY(st);
    ASSERT(p->n_lines < (int)ARRAY_LEN(p->line));
    struct perf_line *l = &p->line[p->n_lines++];
    *l = (struct perf_line){
        .op = op, .model = m, .seconds = seconds, .flop = flop, .bytes = bytes, .bf16 = bf16, .cold = cold};
    snprintf(l->what, sizeof l->what, "%s", what);
    int n = 0;
    for (int i = 0; i < SHAPE && (s[i] || i == 0); i++)
        n += snprintf(l->shape + n, sizeof l->shape - (size_t)n, "%s%lld", i ? "," : "", (long long)s[i]);
    /* A product may be the fastest that there was. Then it is the limit. */
    if (op->shapes == &shapes_product) p->flop_per_s[bf16] = fmax(p->flop_per_s[bf16], flop / seconds);
    const bool ok = isfinite(seconds) && seconds > 0;
    ok ? p->t->passed++ : p->t->failed++;
    return ST_OK;
}

static void print_line(const struct perf *p, const struct perf_line *l) {
    const double by_memory = l->bytes / p->bytes_per_s, by_flop = l->flop / p->flop_per_s[l->bf16];
    const double percent = 100 * fmax(by_memory, by_flop) / l->seconds;
    const char *limit = by_memory >= by_flop ? "memory" : "products";
    if (p->o->json)
        fprintf(
            p->o->out,
            "{\"mode\": \"perf\", \"op\": \"%s\", \"model\": \"%s\", \"what\": \"%s\", \"shape\": [%s], \"us\": %.3f, "
            "\"gb_per_s\": %.3f, \"gflop_per_s\": %.3f, \"limit\": \"%s\", \"percent\": %.2f, \"cold\": %s}\n",
            l->op->name, l->model->name, l->what, l->shape, l->seconds * 1e6, l->bytes / l->seconds * 1e-9,
            l->flop / l->seconds * 1e-9, limit, percent, l->cold ? "true" : "false");
    else
        fprintf(p->o->out, "%-16s %-18s %-18s %10.1f us %8.2f GB/s %9.2f GFLOP/s %6.1f%% of %s%s\n", l->op->name,
                l->what, l->shape, l->seconds * 1e6, l->bytes / l->seconds * 1e-9, l->flop / l->seconds * 1e-9, percent,
                limit, l->cold ? "" : ", from caches");
}

/* ---- the shapes of a model --------------------------------------------------------------------------------------- */

#define MEASURE(op, what, variant, ...) TRY(measure(p, m, op, what, variant, (const int64_t[SHAPE]){__VA_ARGS__}, e))

static enum status products(struct perf *p, const struct dims *m, struct err *e) {
    const struct {
        const char *name;
        int64_t N, K;
    } w[] = {{"qkv", (m->H + 2 * m->G) * m->K, m->D},
             {"o", m->D, m->H * m->K},
             {"gate_up", 2 * m->F, m->D},
             {"down", m->D, m->F},
             {"head", m->V, m->D}};
    char what[40];
    for (size_t i = 0; i < ARRAY_LEN(w); i++) {
        /* The head goes through its rows in chunks. */
        const int64_t train = i == 4 ? HEAD_ROWS : TRAIN_ROWS;
        snprintf(what, sizeof what, "%s, decode", w[i].name);
        MEASURE("linear", what, 0, DECODE_ROWS, w[i].N, w[i].K);
        MEASURE("linear_bf16", what, 3, DECODE_ROWS, w[i].N, w[i].K);
        snprintf(what, sizeof what, "%s, train", w[i].name);
        MEASURE("linear", what, 0, train, w[i].N, w[i].K);
        MEASURE("linear_dx", what, 0, train, w[i].N, w[i].K);
        MEASURE("linear_dw", what, 0, train, w[i].N, w[i].K);
        MEASURE("linear_bf16", what, 3, train, w[i].N, w[i].K);
        MEASURE("linear_dx_bf16", what, 2, train, w[i].N, w[i].K);
        MEASURE("linear_dw_bf16", what, 0, train, w[i].N, w[i].K);
    }
    return ST_OK;
}

static enum status rows(struct perf *p, const struct dims *m, int64_t T, struct err *e) {
    const char *what = T == TRAIN_ROWS ? "train" : "decode";
    const bool train = T == TRAIN_ROWS;
    const int64_t rows_logits = train ? HEAD_ROWS : T;
    MEASURE("embed", what, 0, T, m->D, m->V);
    MEASURE("embed_bf16", what, 1, T, m->D, m->V);
    MEASURE("rmsnorm", what, 0, T, m->D);
    MEASURE("rope", what, m->qk_norm, T, m->H, m->G, m->K);
    MEASURE("swiglu", what, 0, T, m->F);
    MEASURE("axpby", what, 3, T, m->D);
    MEASURE("gather_rows", what, 0, T, m->D, T);
    MEASURE("logprob", what, 0, rows_logits, m->V);
    if (!train) {
        MEASURE("kv_write", what, 0, m->H, m->G, m->K, -1, T, DECODE_PAST, 1);
        MEASURE("attention_cached", what, 0, m->H, m->G, m->K, -1, T, DECODE_PAST, 1);
        return ST_OK;
    }
    MEASURE("bias_grad", "qkv", 0, T, (m->H + 2 * m->G) * m->K);
    MEASURE("embed_grad", what, 0, T, m->D, m->V);
    MEASURE("rmsnorm_grad", what, 1, T, m->D);
    MEASURE("rope_grad", what, m->qk_norm, T, m->H, m->G, m->K);
    MEASURE("swiglu_grad", what, 0, T, m->F);
    MEASURE("scatter_add_rows", what, 0, T, m->D, T);
    MEASURE("logprob_grad", what, 0, rows_logits, m->V);
    /* A prompt of 250 tokens with four answers, and two smaller groups. */
    MEASURE("attention", what, 0, m->H, m->G, m->K, 5);
    MEASURE("attention_grad", what, 0, m->H, m->G, m->K, 5);
    MEASURE("adamw", "a matrix", 0, 2 * m->F * m->D);
    MEASURE("sum_squares", "a matrix", 0, 2 * m->F * m->D);
    return ST_OK;
}

/* Raises the limits to what the machine gives now. It may have been busier before. */
static enum status raise_limits(struct perf *p, struct err *e) {
    const struct opcheck_env *env = p->env;
    double bytes_per_s, seconds;
    TRY(bandwidth(env, (size_t)(p->o->quick ? 64 : 256) << 20, &bytes_per_s, e));
    p->bytes_per_s = fmax(p->bytes_per_s, bytes_per_s);
    for (int bf16 = 0; bf16 < (env->target->bf16 ? 2 : 1); bf16++) {
        const int64_t n = p->o->quick ? 256 : env->host ? 1024 : 4096, s[SHAPE] = {n, n, n};
        struct op_case c;
        bool cold;
        case_build(&c, op_named(bf16 ? "linear_bf16" : "linear"), s, 0, 0, 0);
        const enum status st = time_case(&c, env->target, &seconds, &cold, e);
        case_free(&c);
        TRY(st);
        p->flop_per_s[bf16] = fmax(p->flop_per_s[bf16], 2 * pow((double)n, 3) / seconds);
    }
    return ST_OK;
}

enum status perf_ops(const struct opcheck_env *env, const struct opcheck_options *o, struct opcheck_tally *t,
                     struct err *e) {
    struct perf p = {.env = env, .o = o, .t = t};
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        TRY(raise_limits(&p, e));
        TRY(products(&p, &models[i], e));
        TRY(raise_limits(&p, e));
        TRY(rows(&p, &models[i], DECODE_ROWS, e));
        TRY(rows(&p, &models[i], TRAIN_ROWS, e));
    }
    TRY(raise_limits(&p, e));
    if (o->json)
        fprintf(o->out,
                "{\"mode\": \"perf\", \"gb_per_s\": %.3f, \"f32_gflop_per_s\": %.3f, \"bf16_gflop_per_s\": %.3f}\n",
                p.bytes_per_s * 1e-9, p.flop_per_s[0] * 1e-9, p.flop_per_s[1] * 1e-9);
    else
        fprintf(o->out, "limits: memory %.1f GB/s, products %.1f GFLOP/s in float32, %.1f in bf16\n",
                p.bytes_per_s * 1e-9, p.flop_per_s[0] * 1e-9, p.flop_per_s[1] * 1e-9);
    const struct dims *m = NULL;
    for (int i = 0; i < p.n_lines; i++) {
        if (p.line[i].model != m && !o->json) {
            m = p.line[i].model;
            fprintf(o->out, "%s: D %lld F %lld V %lld H %lld G %lld K %lld\n", m->name, (long long)m->D,
                    (long long)m->F, (long long)m->V, (long long)m->H, (long long)m->G, (long long)m->K);
        }
        print_line(&p, &p.line[i]);
    }
    fflush(o->out);
    return ST_OK;
}
