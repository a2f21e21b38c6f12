#include "tensor/formats.h"

#include <string.h>

float fp8_value(uint8_t code) {
    const unsigned e = code >> 3 & 15u, m = code & 7u;
    const uint32_t u = (uint32_t)(code & 0x80u) << 24 | (e + 120u) << 23 | m << 20;
    float x;
    memcpy(&x, &u, sizeof x);
    if (e > 0) return x;
    return (code & 0x80u ? -1.0f : 1.0f) * (float)m * 0.001953125f; /* 2^-9 */
}

static int64_t bytes_f32(int64_t rows, int64_t K) { return rows * K * (int64_t)sizeof(float); }
static int64_t bytes_bf16(int64_t rows, int64_t K) { return rows * K * (int64_t)sizeof(uint16_t); }

static int64_t bytes_fp8(int64_t rows, int64_t K) {
    return rows * K + format_blocks(rows, FP8_BLOCK) * format_blocks(K, FP8_BLOCK) * (int64_t)sizeof(float);
}

static int64_t bytes_nf4(int64_t rows, int64_t K) {
    const int64_t blocks = nf4_blocks(rows, K);
    return (rows * K + 1) / 2 + blocks +
           (format_blocks(blocks, NF4_NESTED) + NF4_SCALES + NF4_CODES) * (int64_t)sizeof(float);
}

static void decode_fp8(const struct coded_matrix *m, int64_t first, int64_t n, uint16_t *out) {
    const int64_t across = format_blocks(m->K, FP8_BLOCK);
    for (int64_t i = first; i < first + n; i++) {
        const int64_t row = i / m->K, k = i % m->K;
        *out++ = coded_round(fp8_value(m->codes[i]) * m->scale[row / FP8_BLOCK * across + k / FP8_BLOCK]);
    }
}

static void decode_nf4(const struct coded_matrix *m, int64_t first, int64_t n, uint16_t *out) {
    for (int64_t i = first; i < first + n;) {
        const int64_t b = i / NF4_BLOCK;
        const float scale = nf4_scale(m, b);
        for (; i < first + n && i < (b + 1) * NF4_BLOCK; i++) *out++ = coded_round(m->map[nf4_code(m, i)] * scale);
    }
}

static const struct format formats[FORMAT_COUNT] = {
    [FORMAT_F32] = {.name = "f32", .bits = 32, .trainable = true, .bytes = bytes_f32},
    [FORMAT_BF16] = {.name = "bf16", .bits = 16, .bytes = bytes_bf16},
    [FORMAT_FP8] = {.name = "fp8",
                    .block_rows = FP8_BLOCK,
                    .block_cols = FP8_BLOCK,
                    .bits = 8,
                    .bytes = bytes_fp8,
                    .decode = decode_fp8,
                    .quantise = fp8_quantise},
    [FORMAT_NF4] = {.name = "nf4",
                    .block_rows = 1,
                    .block_cols = NF4_BLOCK,
                    .bits = 4,
                    .bytes = bytes_nf4,
                    .decode = decode_nf4,
                    .quantise = nf4_quantise},
};

const struct format *format_of(enum weight_format f) { return &formats[f]; }

int format_find(const char *name) {
    for (int f = 0; f < FORMAT_COUNT; f++)
        if (strcmp(formats[f].name, name) == 0) return f;
    return -1;
}
