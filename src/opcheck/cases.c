/* Builds cases and runs them on a backend: memory, guards, random contents. Counts what is found. */
#include "opcheck/cases.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

#define X(op, error, grad, ulp, flags, shapes, variants) \
    {#op, error, grad, ulp, flags, &shapes_##shapes, variants, &op_##op},
const struct checked_op opcheck_ops[] = {OP_LIST(X)};
#undef X
const int opcheck_n_ops = (int)ARRAY_LEN(opcheck_ops);

/* ---- building ---------------------------------------------------------------------------------------------------- */

static float poison(void) {
    const uint32_t u = POISON;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static bool is_poison(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u == POISON;
}

/* Draws a number that is about normal (a sum of four 16-bit uniforms, variance 1), has all 24 bits and is never zero.
 * Each takes one step of splitmix64 (Steele et al., OOPSLA 2014), because millions are drawn. */
static float draw(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    const int64_t sum = (int64_t)((z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48)) - 2 * 0xffff;
    return (float)(sum ? sum : 1) * (1.7320508f / 0x1p16f);
}

/* Fills an operand with random numbers, none of them zero. Some are replaced as `special` says. Only one row in one to
 * three gets an infinity or a NaN, so that not all of a product is NaN. */
static void fill_random(struct op_case *c, struct operand *a, float scale) {
    static const float extremes[] = {0.0f, -0.0f, 1e-42f, -3e-39f, 0x1p-126f, 1e-20f, 3e5f, -2e9f, 88.4f, -87.4f, 200};
    static const float not_finite[] = {NAN, INFINITY, -INFINITY, 0x1.fffffep127f, -1e38f};
    struct rng r = rng_make(c->seed, (uint64_t)(a - c->a));
    uint64_t state = rng_next(&r);
    for (int64_t i = 0; i < a->rows; i++)
        for (int64_t j = 0; j < a->cols; j++) {
            float v = scale * draw(&state);
            if (c->special && rng_below(&r, 9) == 0) v = extremes[rng_below(&r, ARRAY_LEN(extremes))];
            a->init[a->off + i * a->ld + j] = v;
        }
    if (c->special == 2 && a->cols > 0)
        for (int64_t i = 0; i < a->rows; i += 3)
            a->init[a->off + i * a->ld + (int64_t)rng_below(&r, (uint64_t)a->cols)] =
                not_finite[rng_below(&r, ARRAY_LEN(not_finite))];
}

void operand_add(struct op_case *c, int i, const char *name, enum operand_role role, int64_t rows, int64_t cols,
                 unsigned flags, float scale) {
    struct operand *a = &c->a[i];
    *a = (struct operand){.name = name, .role = role, .rows = rows, .cols = cols, .ld = cols};
    a->place = flags & ON_HOST ? HOST : DEVICE;
    a->per_row = (flags & PER_ROW) != 0;
    if (!(flags & SOLID)) {
        a->ld += c->view == 1 ? 3 : c->view == 2 ? 4 : 0;
        a->off = c->view == 1 ? 1 + i % 2 : c->view == 2 ? 4 : 0;
    }
    a->n = a->off + rows * a->ld + GUARD;
    a->init = xaligned((size_t)a->n * sizeof(float));
    for (int64_t j = 0; j < a->n; j++) a->init[j] = poison();
    if (role != OUT && !(flags & STALE)) fill_random(c, a, scale);
}

void operand_index(struct op_case *c, int i, const char *name, int64_t n, int64_t below) {
    struct operand *a = &c->a[i];
    *a = (struct operand){.name = name, .place = INDEX, .rows = n, .cols = 1, .ld = 1, .n = n, .per_row = true};
    a->index = xcalloc((size_t)i64_max(n, 1), sizeof *a->index);
    struct rng r = rng_make(c->seed, 100 + (uint64_t)i);
    for (int64_t j = 0; j < n; j++) a->index[j] = (int32_t)rng_below(&r, (uint64_t)below);
}

void case_build(struct op_case *c, const struct checked_op *op, const int64_t s[SHAPE], int variant, int view,
                int special) {
    *c = (struct op_case){.op = op, .variant = variant, .view = view, .special = special, .weight = -1};
    memcpy(c->s, s, sizeof c->s);
    c->seed = 1 + (uint64_t)(op - opcheck_ops);
    for (int i = 0; i < SHAPE; i++) c->seed = c->seed * 1000003 + (uint64_t)s[i];
    op->f->build(c);
}

void case_free(struct op_case *c) {
    for (int i = 0; i < OPERANDS_MAX; i++) {
        free(c->a[i].init);
        free(c->a[i].index);
    }
    free(c->seq);
    free(c->fill);
    free(c->blocks);
    *c = (struct op_case){0};
}

int64_t case_units(const struct op_case *c) { return c->seq ? c->n_seq : c->rows; }

struct op_case case_cut(const struct op_case *c, int64_t from, int64_t n) {
    struct op_case cut = *c;
    if (c->seq) { /* Sequences name their rows themselves. */
        cut.seq += from;
        cut.n_seq = (int)n;
        return cut;
    }
    cut.rows = n;
    for (int i = 0; i < OPERANDS_MAX; i++)
        if (c->a[i].name && c->a[i].per_row) {
            cut.a[i].off += from * c->a[i].ld;
            cut.a[i].rows = n;
        }
    return cut;
}

double case_work(const struct op_case *c) {
    double flop, bytes;
    c->op->f->cost(c, &flop, &bytes);
    double held = 0; /* Bytes that are filled, sent, fetched and compared. */
    for (int i = 0; i < OPERANDS_MAX; i++) held += (double)c->a[i].n;
    return flop + 8 * held;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static size_t operand_bytes(const struct operand *a) {
    return (size_t)i64_max(a->n, 1) * (a->place == INDEX ? sizeof(int32_t) : sizeof(float));
}

static void operand_put(const struct side *s, const struct operand *a, int i) {
    if (a->place == INDEX)
        memcpy(s->mem[i], a->index, (size_t)a->n * sizeof(int32_t));
    else if (a->place == HOST)
        memcpy(s->mem[i], a->init, (size_t)a->n * sizeof(float));
    else
        s->be->mem_put(s->be, s->mem[i], a->init, (size_t)a->n * sizeof(float));
}

enum status side_open(struct side *s, const struct op_case *c, struct backend *be, struct err *e) {
    *s = (struct side){.be = be};
    for (int i = 0; i < OPERANDS_MAX; i++) {
        const struct operand *a = &c->a[i];
        if (!a->name || a->role == WRT) continue;
        s->mem[i] = a->place == DEVICE ? be->mem_alloc(be, operand_bytes(a)) : xmalloc(operand_bytes(a));
        if (!s->mem[i]) {
            side_close(s, c);
            return FAIL(e, ST_MEMORY, "%s: %s of %s: no memory for %lld floats", be->name, a->name, c->op->name,
                        (long long)a->n);
        }
        operand_put(s, a, i);
    }
    if (c->weight >= 0) {
        const struct operand *a = &c->a[c->weight];
        s->w = (struct weight){.w = side_floats(c, s, c->weight), .N = a->rows, .K = a->cols, .dt = c->dt};
        if (c->alone) {
            CLEANUP_FREE uint16_t *bits = xmalloc((size_t)i64_max(a->rows * a->cols, 1) * sizeof *bits);
            for (int64_t i = 0; i < a->rows * a->cols; i++) bits[i] = bf16_bits(a->init[a->off + i]);
            s->w.w = NULL;
            const int64_t cut[] = {0, a->rows / 3, a->rows / 2, a->rows}; /* In parts, as a loader does it. */
            for (int i = 0; i < 3; i++) be->weight_put(be, &s->w, cut[i], cut[i + 1] - cut[i], bits + cut[i] * a->cols);
        } else {
            be->weight_pack(be, &s->w);
            be->weight_pack(be, &s->w); /* Once more over the first packing, as after a step of the optimizer. */
        }
    }
    if (c->op->f->prepare) c->op->f->prepare(c, s);
    return ST_OK;
}

void side_reset(struct side *s, const struct op_case *c) {
    for (int i = 0; i < OPERANDS_MAX; i++)
        if (c->a[i].name && (c->a[i].role == OUT || c->a[i].role == INOUT)) operand_put(s, &c->a[i], i);
    if (c->op->f->prepare) c->op->f->prepare(c, s);
}

void side_close(struct side *s, const struct op_case *c) {
    if (s->w.packed) s->be->weight_free(s->be, &s->w);
    for (int i = 0; i < OPERANDS_MAX; i++)
        if (c->a[i].place == DEVICE)
            s->be->mem_free(s->be, s->mem[i]);
        else
            free(s->mem[i]);
    *s = (struct side){0};
}

enum status side_fetch(struct side *s, const struct op_case *c, float *out[OPERANDS_MAX], struct err *e) {
    memset(out, 0, OPERANDS_MAX * sizeof *out);
    if (s->be->sync(s->be, e) != ST_OK) return err_note(e, "%s: %s", s->be->name, c->op->name);
    for (int i = 0; i < OPERANDS_MAX; i++) {
        const struct operand *a = &c->a[i];
        if (!a->name || a->role == WRT || a->place == INDEX) continue;
        out[i] = xaligned((size_t)a->n * sizeof(float));
        if (a->place == HOST)
            memcpy(out[i], s->mem[i], (size_t)a->n * sizeof(float));
        else
            s->be->mem_get(s->be, out[i], s->mem[i], (size_t)a->n * sizeof(float));
    }
    if (s->be->sync(s->be, e) == ST_OK) return ST_OK;
    fetched_free(out);
    return err_note(e, "%s: %s", s->be->name, c->op->name);
}

void fetched_free(float *out[OPERANDS_MAX]) {
    for (int i = 0; i < OPERANDS_MAX; i++) {
        free(out[i]);
        out[i] = NULL;
    }
}

void doubles_of(const struct op_case *c, double *v[OPERANDS_MAX]) {
    for (int i = 0; i < OPERANDS_MAX; i++) {
        const struct operand *a = &c->a[i];
        v[i] = NULL;
        if (!a->name || a->place == INDEX) continue;
        v[i] = xaligned((size_t)a->n * sizeof(double));
        for (int64_t j = 0; j < a->n; j++) v[i][j] = (double)a->init[j];
    }
}

void doubles_free(double *v[OPERANDS_MAX]) {
    for (int i = 0; i < OPERANDS_MAX; i++) free(v[i]);
}

/* ---- bfloat16 ---------------------------------------------------------------------------------------------------- */

/* From the definition: eight of the 24 significant bits stay. */
float bf16_rounded(float x) {
    if (isnan(x) || isinf(x) || x == 0) return x;
    int e;
    const double f = frexp((double)x, &e); /* x = f 2^e with 1/2 <= |f| < 1. */
    if (e <= -126) return copysignf(0.0f, x);
    return (float)ldexp(nearbyint(ldexp(f, 8)), e - 8);
}

uint16_t bf16_bits(float x) {
    const float r = bf16_rounded(x);
    uint32_t u;
    memcpy(&u, &r, sizeof u);
    return (uint16_t)(u >> 16 | (isnan(x) ? 0x40 : 0)); /* A NaN stays one when its payload is cut off. */
}

/* ---- findings ---------------------------------------------------------------------------------------------------- */

void finding(struct op_findings *f, const struct op_case *c, const char *fmt, ...) {
    if (f->first[0]) return;
    static const char *const special[] = {"", ", extreme values", ", NaN and infinities"};
    int n = snprintf(f->first, sizeof f->first, "shape");
    for (int i = 0; i < SHAPE; i++)
        n += snprintf(f->first + n, sizeof f->first - (size_t)n, "%c%lld", i ? ',' : ' ', (long long)c->s[i]);
    n += snprintf(f->first + n, sizeof f->first - (size_t)n, " variant %d view %d%s: ", c->variant, c->view,
                  special[c->special]);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(f->first + n, sizeof f->first - (size_t)n, fmt, ap);
    va_end(ap);
}

bool same_float(float a, float b) { return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b)); }

static int64_t ordered(float f) { /* Neighbours in value are neighbours here. */
    int32_t i;
    memcpy(&i, &f, sizeof i);
    return i < 0 ? -(int64_t)(i & 0x7fffffff) : i;
}

void compare_bits(struct op_findings *f, const struct op_case *c, float *const want[], float *const got[], int64_t ulp,
                  const char *what) {
    for (int i = 0; i < OPERANDS_MAX; i++) {
        const struct operand *a = &c->a[i];
        if (!got[i] || a->role == IN) continue;
        for (int64_t r = 0; r < a->rows; r++)
            for (int64_t j = 0; j < a->cols; j++) {
                const float w = want[i][at(c, i, r, j)], g = got[i][at(c, i, r, j)];
                f->values++;
                if (same_float(w, g) && is_poison(w) == is_poison(g)) continue;
                if ((c->op->flags & ZERO_SIGN) && w == 0 && g == 0) continue;
                int64_t apart = isnan(w) || isnan(g) ? INT64_MAX : llabs(ordered(w) - ordered(g));
                if (apart == 0) apart = 1; /* These are +0 and -0. */
                f->differ++;
                f->max_ulp = i64_max(f->max_ulp, apart);
                if (apart > ulp)
                    finding(f, c, "%s[%lld,%lld] = %a, %s: %a", a->name, (long long)r, (long long)j, (double)g, what,
                            (double)w);
            }
    }
}

static const char *class_of(const struct checked_op *op) {
    if (op->flags & ROWS) return op->ulp ? "T I" : "E I";
    return op->ulp ? "T" : "E";
}

static void json_number(FILE *out, const char *key, double x) {
    if (isfinite(x))
        fprintf(out, ", \"%s\": %.6g", key, x);
    else
        fprintf(out, ", \"%s\": null", key);
}

void findings_report(const struct opcheck_options *o, struct opcheck_tally *t, const struct checked_op *op,
                     const char *mode, const struct op_findings *f, double bound, bool ok) {
    ok ? t->passed++ : t->failed++;
    if (o->json) {
        fprintf(
            o->out,
            "{\"mode\": \"%s\", \"op\": \"%s\", \"class\": \"%s\", \"cases\": %lld, \"left_out\": %lld, \"values\": "
            "%lld, \"differ\": %lld, \"misplaced\": %lld",
            mode, op->name, class_of(op), (long long)f->cases, (long long)f->left_out, (long long)f->values,
            (long long)f->differ, (long long)f->misplaced);
        if (bound >= 0) {
            json_number(o->out, "max_error", f->max_error);
            json_number(o->out, "bound", bound);
        }
        fprintf(o->out, ", \"pass\": %s}\n", ok ? "true" : "false");
    } else {
        fprintf(o->out, "%s %-10s %-16s %-3s %5lld cases %10lld values", ok ? "PASS" : "FAIL", mode, op->name,
                class_of(op), (long long)f->cases, (long long)f->values);
        if (strcmp(mode, "grad") != 0) fprintf(o->out, " %6lld differ", (long long)f->differ);
        if (f->differ && f->max_ulp < INT64_MAX) fprintf(o->out, " by %lld ulp", (long long)f->max_ulp);
        if (bound > 0) fprintf(o->out, "  error %.1e of %.1e", f->max_error, bound);
        if (f->misplaced) fprintf(o->out, "  %lld misplaced", (long long)f->misplaced);
        if (f->left_out) fprintf(o->out, "  (%lld larger ones left out)", (long long)f->left_out);
        fputc('\n', o->out);
        if (!ok && f->first[0]) fprintf(o->out, "     %s\n", f->first);
    }
    fflush(o->out);
}

void report_skip(const struct opcheck_options *o, struct opcheck_tally *t, const struct checked_op *op,
                 const char *mode, const char *why) {
    t->skipped++;
    if (o->json)
        fprintf(o->out, "{\"mode\": \"%s\", \"op\": \"%s\", \"skipped\": \"%s\"}\n", mode, op->name, why);
    else
        fprintf(o->out, "SKIP %-10s %-16s %s\n", mode, op->name, why);
}
