#include "verify/compare.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "verify/worker_constants.h"

/* Compiled for several vector widths, of which one is picked when the program starts; the arithmetic is the same in
 * each. The sanitizers cannot run that early. */
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDE
#endif

static float f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
    if (exponent == 0) {
        float magnitude = (float)mantissa * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static float bf16_to_f32(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

double compare_element(enum arg_type type, const void *x, int64_t i) {
    switch (type) {
    case TYPE_F32: return (double)((const float *)x)[i];
    case TYPE_F16: return (double)f16_to_f32(((const uint16_t *)x)[i]);
    case TYPE_BF16: return (double)bf16_to_f32(((const uint16_t *)x)[i]);
    case TYPE_I64: return (double)((const int64_t *)x)[i];
    case TYPE_BOOL: return (double)((const uint8_t *)x)[i];
    }
    return 0;
}

static double base_tolerance(enum arg_type type) {
    switch (type) {
    case TYPE_F32: return TOLERANCE_SINGLE;
    case TYPE_F16:
    case TYPE_BF16: return TOLERANCE_HALF;
    case TYPE_I64:
    case TYPE_BOOL: return 0;
    }
    return 0;
}

struct compare_limit compare_no_limit(enum arg_type type) {
    /* Half types round by about their tolerance: no row can be held to less than a typical one. */
    return (struct compare_limit){.floor = type == TYPE_F32 ? FLOOR_SINGLE : FLOOR_HALF};
}

double compare_tolerance(enum arg_type type, const struct compare_limit *limit) {
    return type == TYPE_I64 || type == TYPE_BOOL ? 0 : fmax(base_tolerance(type), TOLERANCE_NOISES * limit->noise);
}

static double smallest_scale(enum arg_type type) {
    return (type == TYPE_F16 ? 0x1p-24 : (double)FLT_MIN) / base_tolerance(type);
}

static size_t element_bytes(enum arg_type type) {
    switch (type) {
    case TYPE_F32: return 4;
    case TYPE_F16:
    case TYPE_BF16: return 2;
    case TYPE_I64: return 8;
    case TYPE_BOOL: return 1;
    }
    return 1;
}

uint64_t compare_poison(enum arg_type type, uint64_t random) {
    switch (type) {
    case TYPE_F32: return 0x7fc00000u | (random & 0x3ffffeu) | 1;
    case TYPE_F16: return 0x7e00u | (random & 0x1feu) | 1;
    case TYPE_BF16: return 0x7fc0u | (random & 0x3eu) | 1;
    case TYPE_I64: return random | 1ull << 62;
    case TYPE_BOOL: return 2 + random % 254;
    }
    return 0;
}

void compare_fill(enum arg_type type, void *x, int64_t count, uint64_t poison) {
    size_t size = element_bytes(type), total = size * (size_t)count;
    if (total == 0) return;
    unsigned char *p = x;
    memcpy(p, &poison, size); /* little-endian: the low bytes are the element */
    for (size_t done = size; done < total;) {
        size_t n = done < 65536 ? done : 65536; /* from cache, and on multiples of the element */
        if (n > total - done) n = total - done;
        memcpy(p + done, p, n);
        done += n;
    }
}

static bool is_poison(enum arg_type type, const void *x, int64_t i, uint64_t poison) {
    size_t size = element_bytes(type);
    return memcmp((const unsigned char *)x + (size_t)i * size, &poison, size) == 0;
}

static void note_difference(int64_t i, double want, double got, bool poisoned, struct compare_result *out) {
    out->different++;
    if (poisoned)
        out->unwritten++;
    else if (isfinite(want) && !isfinite(got))
        out->not_finite++;
    if (out->first >= 0) return;
    out->first = i;
    out->got = got;
    out->want = want;
}

static void load_floats(enum arg_type type, const void *x, int64_t from, int64_t n, float *out) {
    switch (type) {
    case TYPE_F32: memcpy(out, (const float *)x + from, (size_t)n * sizeof *out); return;
    case TYPE_F16:
        for (int64_t i = 0; i < n; i++) out[i] = f16_to_f32(((const uint16_t *)x)[from + i]);
        return;
    case TYPE_BF16:
        for (int64_t i = 0; i < n; i++) out[i] = bf16_to_f32(((const uint16_t *)x)[from + i]);
        return;
    case TYPE_I64:
    case TYPE_BOOL: ASSERT(!"a float type");
    }
}

typedef float vf __attribute__((vector_size(32)));
typedef int32_t vi __attribute__((vector_size(32)));
typedef double vd __attribute__((vector_size(64)));
typedef int64_t vl __attribute__((vector_size(64)));
enum { LANES = 8 };

/* Sums of squares and numbers of the finite elements of rows of floats. */
WIDE static void add_squares(const float *x, int64_t rows, int64_t row, double *sums, int64_t *finites) {
    for (int64_t r = 0; r < rows; r++, x += row) {
        vd sum = {0};
        vl finite = {0};
        double s = 0;
        int64_t f = 0;
        for (int64_t i = 0; i < row; i += LANES) {
            vf part = {0};
            size_t m = row - i < LANES ? (size_t)(row - i) : (size_t)LANES;
            if (m == LANES)
                memcpy(&part, x + i, sizeof part);
            else
                memcpy(&part, x + i, m * sizeof(float));
            vd v = __builtin_convertvector(part, vd);
            vl ok = v - v == 0; /* -1, or 0 for infinities and NaN */
            v = (vd)((vl)v & ok);
            sum += v * v;
            finite -= ok;
            for (int k = (int)m; k < LANES; k++) finite[k]--; /* the zeros behind the end */
        }
        for (int k = 0; k < LANES; k++) {
            s += sum[k];
            f += finite[k];
        }
        sums[r] += s;
        finites[r] += f;
    }
}

int64_t compare_row(const struct arg *a) {
    int64_t row = 1;
    for (int d = a->nd - 1; d >= 0 && row < ROW_ELEMENTS; d--) {
        int64_t part = a->dim[d];
        if (row > 1 && row * part >= ROW_ELEMENTS) /* not all of it, where less will do */
            for (part = 1; a->dim[d] % part != 0 || row * part < ROW_ELEMENTS;) part++;
        row *= part;
    }
    return i64_max(row, 1);
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A bucket for each power of two. */
static unsigned bucket_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (unsigned)(bits >> 52); /* x is not negative */
}

/* The lower median of those that are not zero; 0: all are. Of the middle bucket alone anything is sorted. */
static double median(const double *x, int64_t n) {
    int64_t count[2048] = {0}, m = 0, before = 0, k = 0;
    unsigned middle = 0;
    for (int64_t i = 0; i < n; i++)
        if (x[i] > 0) {
            count[bucket_of(x[i])]++;
            m++;
        }
    if (m == 0) return 0;
    while (before + count[middle] <= (m - 1) / 2) before += count[middle++];
    double *some = xmalloc((size_t)count[middle] * sizeof *some);
    for (int64_t i = 0; i < n; i++)
        if (x[i] > 0 && bucket_of(x[i]) == middle) some[k++] = x[i];
    qsort(some, (size_t)k, sizeof *some, ascending);
    const double result = some[(m - 1) / 2 - before];
    free(some);
    return result;
}

void compare_scales(enum arg_type type, const void *want, int64_t count, int64_t row, const struct compare_limit *limit,
                    double *scales) {
    enum { CHUNK = 512 };
    const int64_t rows = count / row;
    double all = 0;
    int64_t finite_all = 0;
    memset(scales, 0, (size_t)rows * sizeof *scales);
    if (type == TYPE_I64 || type == TYPE_BOOL) return;
    int64_t *finites = xcalloc((size_t)rows, sizeof *finites);
    if (type == TYPE_F32) add_squares(want, rows, row, scales, finites);
    for (int64_t r = 0; r < rows && type != TYPE_F32; r++)
        for (int64_t done = 0; done < row; done += CHUNK) {
            float chunk[CHUNK];
            const int64_t n = i64_min(CHUNK, row - done);
            load_floats(type, want, r * row + done, n, chunk);
            add_squares(chunk, 1, n, &scales[r], &finites[r]);
        }
    for (int64_t r = 0; r < rows; r++) {
        all += scales[r];
        finite_all += finites[r];
        scales[r] = finites[r] ? sqrt(scales[r] / (double)finites[r]) : 0;
    }
    free(finites);
    const double least = fmax(limit->typical, smallest_scale(type)), whole = sqrt(all / (double)i64_max(finite_all, 1));
    const double lowest = whole > 0 ? limit->floor * median(scales, rows) : ZERO_SCALE;
    for (int64_t r = 0; r < rows; r++) {
        double scale = fmax(scales[r], lowest);
        if (whole > 0) scale = fmin(scale, whole);
        scales[r] = fmax(scale, least);
    }
}

/* Every element on its own, in double precision. */
static void compare_slowly(enum arg_type type, const void *want, const void *got, int64_t count,
                           const struct compare_rule *rule, struct compare_result *out) {
    enum { CHUNK = 512 };
    float wants[CHUNK], gots[CHUNK];
    double t = base_tolerance(type);
    for (int64_t from = 0; from < count; from += CHUNK) {
        int64_t n = i64_min(CHUNK, count - from);
        load_floats(type, want, from, n, wants);
        load_floats(type, got, from, n, gots);
        for (int64_t k = 0; k < n; k++) {
            double w = (double)wants[k], g = (double)gots[k];
            bool poisoned = isnan(g) && is_poison(type, got, from + k, rule->poison), good = false;
            if (!isfinite(w))
                good = isnan(w) ? isnan(g) && !poisoned : g == w;
            else if (isfinite(g)) {
                double d = fabs(g - w), error = d / (rule->scales[(from + k) / rule->row] + fabs(w));
                if (error > out->max_error) out->max_error = error;
                good = error <= rule->tolerance && (!rule->compatible || d <= t + t * fabs(w));
            }
            if (!good) note_difference(from + k, w, g, poisoned, out);
        }
    }
}

struct fine {
    vf top; /* largest errors */
    vi bad; /* -1: an element that is not fine */
};

static inline __attribute__((always_inline)) void look(const float *want, const float *got, size_t n, float scale,
                                                       float tolerance, bool compatible, struct fine *f) {
    const float t = 1e-4f;
    const vi no_sign = {0x7fffffff, 0x7fffffff, 0x7fffffff, 0x7fffffff, 0x7fffffff, 0x7fffffff, 0x7fffffff, 0x7fffffff};
    vf w = {0}, g = {0};
    memcpy(&w, want, n * sizeof(float));
    memcpy(&g, got, n * sizeof(float));
    vf diff = g - w;
    vi diff_bits = (vi)diff & no_sign, want_bits = (vi)w & no_sign;
    vf d = (vf)diff_bits, a = (vf)want_bits;
    vf error = d / (scale + a);
    f->bad |= ~(error <= tolerance); /* a NaN is not <= anything */
    if (compatible) f->bad |= ~(d <= t + t * a);
    vi greater = error > f->top;
    f->top = (vf)((greater & (vi)error) | (~greater & (vi)f->top));
}

static inline __attribute__((always_inline)) struct fine
look_at_rows(const float *want, const float *got, int64_t count, const struct compare_rule *rule, bool compatible) {
    const float tolerance = (float)rule->tolerance;
    const int64_t row = rule->row;
    struct fine f = {{0}, {0}};
    for (int64_t start = 0, r = 0; start < count; start += row, r++) {
        const float scale = (float)rule->scales[r];
        const float *w = want + start, *g = got + start;
        for (int64_t k = 0; k + LANES <= row; k += LANES) look(w + k, g + k, LANES, scale, tolerance, compatible, &f);
        if (row < LANES)
            look(w, g, (size_t)row, scale, tolerance, compatible, &f);
        else if (row % LANES) /* some of these for the second time */
            look(w + row - LANES, g + row - LANES, LANES, scale, tolerance, compatible, &f);
    }
    return f;
}

/* The common case, all elements fine, eight at a time. Returns false, having decided nothing, when any is not. */
WIDE static bool compare_f32_fast(const float *want, const float *got, int64_t count, const struct compare_rule *rule,
                                  double *max_error) {
    const struct fine f =
        rule->compatible ? look_at_rows(want, got, count, rule, true) : look_at_rows(want, got, count, rule, false);
    float m = 0;
    for (int k = 0; k < LANES; k++) {
        if (f.bad[k]) return false;
        if (f.top[k] > m) m = f.top[k];
    }
    *max_error = (double)m;
    return true;
}

void compare_tensor(enum arg_type type, const void *want, const void *got, int64_t count,
                    const struct compare_rule *rule, struct compare_result *out) {
    *out = (struct compare_result){.first = -1};
    if (count == 0) return;
    if (type == TYPE_I64 || type == TYPE_BOOL) {
        if (memcmp(want, got, element_bytes(type) * (size_t)count) == 0) return;
        size_t size = element_bytes(type);
        for (int64_t i = 0; i < count; i++) {
            size_t at = (size_t)i * size;
            if (memcmp((const unsigned char *)want + at, (const unsigned char *)got + at, size) == 0) continue;
            note_difference(i, compare_element(type, want, i), compare_element(type, got, i),
                            is_poison(type, got, i, rule->poison), out);
        }
        out->max_error = 1;
        return;
    }
    if (type == TYPE_F32 && compare_f32_fast(want, got, count, rule, &out->max_error)) return;
    out->max_error = 0;
    compare_slowly(type, want, got, count, rule, out);
}
