/* Codes of a matrix in bfloat16. FP8 as the Hub's FP8 models are made: a block's scale is its largest magnitude over
 * 448. NF4 as bitsandbytes makes it: the nearest of 16 values, and the scales of blocks in 8 bits once more. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/formats.h"

static float widened(uint16_t h) {
    const uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

void coded_release(struct coded_matrix *m) {
    free(m->own);
    *m = (struct coded_matrix){0};
}

bool coded_rows_fit(const struct coded_matrix *m, int64_t row) {
    return m->format == FORMAT_FP8 ? row % FP8_BLOCK == 0 : row * m->K % ((int64_t)NF4_BLOCK * NF4_NESTED) == 0;
}

struct coded_matrix coded_rows(const struct coded_matrix *m, int64_t row, int64_t rows) {
    ASSERT(coded_rows_fit(m, row) && row >= 0 && row + rows <= m->rows);
    const bool fp8 = m->format == FORMAT_FP8;
    const int64_t first = row * m->K, block = first / NF4_BLOCK;
    struct coded_matrix part = *m;
    part.rows = rows;
    part.own = NULL;
    part.codes += fp8 ? first : first / 2;
    if (m->scale) part.scale += fp8 ? row / FP8_BLOCK * format_blocks(m->K, FP8_BLOCK) : block;
    if (m->absmax) part.absmax += block;
    if (m->absmax) part.nested += block / NF4_NESTED;
    return part;
}

/* ---- FP8 --------------------------------------------------------------------------------------------------------- */

enum { FP8_LARGEST = 448 };

/* The nearest code, to even; magnitudes beyond the largest become it. */
static uint8_t fp8_code(float x) {
    const uint8_t sign = signbit(x) ? 0x80 : 0;
    const float a = fabsf(x);
    if (a >= FP8_LARGEST) return sign | 0x7e;
    if (a < 0.015625f) return sign | (uint8_t)lrintf(a * 512.0f); /* subnormal, or the smallest normal */
    uint32_t u;
    memcpy(&u, &a, sizeof u);
    u += 0x7ffffu + (u >> 20 & 1u); /* 3 of 23 bits stay */
    return sign | (uint8_t)((u >> 20) - (120u << 3));
}

struct fp8_work {
    const uint16_t *w;
    int64_t rows, K;
    uint8_t *codes;
    float *scale;
};

/* Strips of blocks are cut over threads. */
static void fp8_strips(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct fp8_work *p = ctx;
    const int64_t across = format_blocks(p->K, FP8_BLOCK);
    for (int64_t b = begin * across; b < end * across; b++) {
        const int64_t r0 = b / across * FP8_BLOCK, r1 = i64_min(r0 + FP8_BLOCK, p->rows);
        const int64_t k0 = b % across * FP8_BLOCK, k1 = i64_min(k0 + FP8_BLOCK, p->K);
        float most = 0;
        for (int64_t r = r0; r < r1; r++)
            for (int64_t k = k0; k < k1; k++) most = fmaxf(most, fabsf(widened(p->w[r * p->K + k])));
        const float scale = most > FP8_LARGEST * CODED_SMALLEST_SCALE ? most / FP8_LARGEST : 1.0f;
        p->scale[b] = scale;
        for (int64_t r = r0; r < r1; r++)
            for (int64_t k = k0; k < k1; k++) p->codes[r * p->K + k] = fp8_code(widened(p->w[r * p->K + k]) / scale);
    }
}

void fp8_quantise(const uint16_t *w, int64_t rows, int64_t K, struct pool *pool, struct coded_matrix *out) {
    const int64_t strips = format_blocks(rows, FP8_BLOCK), scales = strips * format_blocks(K, FP8_BLOCK);
    float *scale = xmalloc((size_t)scales * sizeof *scale + (size_t)(rows * K) + 1);
    struct fp8_work p = {w, rows, K, (uint8_t *)(scale + scales), scale};
    pool_for(pool, strips, 1, fp8_strips, &p);
    *out = (struct coded_matrix){
        .format = FORMAT_FP8, .rows = rows, .K = K, .codes = p.codes, .scale = scale, .own = scale};
}

/* ---- NF4 --------------------------------------------------------------------------------------------------------- */

const float nf4_map[NF4_CODES] = {-1.0f,
                                  -0.6961928009986877f,
                                  -0.5250730514526367f,
                                  -0.39491748809814453f,
                                  -0.28444138169288635f,
                                  -0.18477343022823334f,
                                  -0.09105003625154495f,
                                  0.0f,
                                  0.07958029955625534f,
                                  0.16093020141124725f,
                                  0.24611230194568634f,
                                  0.33791524171829224f,
                                  0.44070982933044434f,
                                  0.5626170039176941f,
                                  0.7229568362236023f,
                                  1.0f};

static int ascending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Seven decades of both signs, the i-th with the middles of 2^i equal parts of 0.1 .. 1; and 0 and 1. */
void nf4_nested_map(float map[NF4_SCALES]) {
    static const double decade[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
    int n = 0;
    for (int i = 0; i < 7; i++) {
        const int parts = 1 << i;
        const float step = (1.0f - 0.1f) / (float)parts;
        float edge[65];
        /* From both ends, as the library that bitsandbytes asks makes evenly spaced numbers. */
        for (int k = 0; k <= parts; k++)
            edge[k] = k < (parts + 1) / 2 ? fmaf(step, (float)k, 0.1f) : fmaf(-step, (float)(parts - k), 1.0f);
        for (int k = 0; k < parts; k++) {
            const float middle = (edge[k] + edge[k + 1]) / 2.0f * (float)decade[i];
            map[n++] = middle;
            map[n++] = -middle;
        }
    }
    map[n++] = 0;
    map[n++] = 1;
    qsort(map, (size_t)n, sizeof *map, ascending);
}

struct nf4_work {
    const uint16_t *w;
    int64_t n;
    float *most; /* of each block */
    uint8_t *codes;
    float bound[NF4_CODES - 1];
};

/* Blocks of 64, whose codes are whole bytes, are cut over threads. */
static void nf4_codes(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct nf4_work *p = ctx;
    for (int64_t b = begin; b < end; b++) {
        const int64_t first = b * NF4_BLOCK;
        const int n = (int)i64_min(NF4_BLOCK, p->n - first);
        float x[NF4_BLOCK] = {0}, most = 0;
        uint8_t code[NF4_BLOCK];
        for (int i = 0; i < n; i++) x[i] = widened(p->w[first + i]);
        for (int i = 0; i < n; i++) most = fmaxf(most, fabsf(x[i]));
        p->most[b] = most;
        const float inverse = 1.0f / fmaxf(most, 1e-38f);
        for (int i = 0; i < NF4_BLOCK; i++) {
            const float v = x[i] * inverse; /* what lies beyond -1 or 1 has the outermost code */
            int c = 0;
            for (int k = 0; k < NF4_CODES - 1; k++) c += v > p->bound[k];
            code[i] = (uint8_t)c;
        }
        for (int i = 0; i < n; i += 2) p->codes[(first + i) / 2] = (uint8_t)(code[i] << 4 | code[i + 1]);
    }
}

/* The nearest entry of the map, the lower of equals. */
static uint8_t nearest(const float map[NF4_SCALES], float x) {
    int lo = 0, hi = NF4_SCALES - 1;
    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        if (x > (map[mid] + map[mid + 1]) / 2.0f)
            lo = mid + 1;
        else
            hi = mid;
    }
    return (uint8_t)lo;
}

/* The scales of blocks, less their mean, in blocks of 256. */
static void nf4_scales(const float *most, int64_t blocks, const float *map, uint8_t *absmax, float *nested,
                       float offset) {
    for (int64_t b = 0; b < blocks; b += NF4_NESTED) {
        const int64_t end = i64_min(b + NF4_NESTED, blocks);
        float top = 0;
        for (int64_t i = b; i < end; i++) top = fmaxf(top, fabsf(most[i] - offset));
        nested[b / NF4_NESTED] = top;
        const float inverse = 1.0f / fmaxf(top, 1e-38f);
        for (int64_t i = b; i < end; i++)
            absmax[i] = nearest(map, fminf(fmaxf((most[i] - offset) * inverse, -1.0f), 1.0f));
    }
}

void nf4_quantise(const uint16_t *w, int64_t rows, int64_t K, struct pool *pool, struct coded_matrix *out) {
    const int64_t n = rows * K, blocks = nf4_blocks(rows, K), groups = format_blocks(blocks, NF4_NESTED);
    float *const nested_map = xmalloc((size_t)(NF4_SCALES + groups) * sizeof(float) + (size_t)(blocks + (n + 1) / 2));
    float *const nested = nested_map + NF4_SCALES;
    uint8_t *const absmax = (uint8_t *)(nested + groups);
    struct nf4_work p = {.w = w, .n = n, .most = xmalloc((size_t)blocks * sizeof(float) + 1), .codes = absmax + blocks};
    for (int k = 0; k + 1 < NF4_CODES; k++) p.bound[k] = (nf4_map[k] + nf4_map[k + 1]) / 2.0f;
    pool_for(pool, blocks, 64, nf4_codes, &p);
    double sum = 0;
    for (int64_t b = 0; b < blocks; b++) sum += (double)p.most[b];
    const float offset = blocks > 0 ? (float)(sum / (double)blocks) : 0;
    nf4_nested_map(nested_map);
    nf4_scales(p.most, blocks, nested_map, absmax, nested, offset);
    free(p.most);
    *out = (struct coded_matrix){.format = FORMAT_NF4,
                                 .rows = rows,
                                 .K = K,
                                 .codes = p.codes,
                                 .map = nf4_map,
                                 .absmax = absmax,
                                 .nested = nested,
                                 .nested_map = nested_map,
                                 .offset = offset,
                                 .own = nested_map};
}
