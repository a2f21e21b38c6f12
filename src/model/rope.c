#include "model/rope.h"

#include <math.h>
#include <string.h>

static const char *const type_names[] = {
    [ROPE_DEFAULT] = "default", [ROPE_LINEAR] = "linear", [ROPE_LLAMA3] = "llama3", [ROPE_YARN] = "yarn"};

int rope_type_find(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(type_names); i++)
        if (strcmp(name, type_names[i]) == 0) return (int)i;
    return -1;
}

/* theta^(2j/K). The exponent and the power are float32's. */
static float power_of(const struct rope_config *r, int32_t K, int32_t j) {
    return (float)pow((double)(float)r->theta, (double)((float)(2 * j) / (float)K));
}

/* number / x as PyTorch divides a number by a tensor: the reciprocal is rounded before it is multiplied. */
static float number_over(double number, float x) { return 1.0f / x * (float)number; }

static float llama3(const struct rope_config *r, float inv) {
    const float wavelength = number_over(2 * M_PI, inv);
    const bool longer = wavelength > (float)(r->original / r->low_freq_factor);
    const bool shorter = wavelength < (float)(r->original / r->high_freq_factor);
    if (longer) return inv / (float)r->factor;
    if (shorter) return inv;
    const float smooth = (number_over(r->original, wavelength) - (float)r->low_freq_factor) /
                         (float)(r->high_freq_factor - r->low_freq_factor);
    return (1.0f - smooth) * inv / (float)r->factor + smooth * inv;
}

/* ---- yarn -------------------------------------------------------------------------------------------------------- */

static double mscale_of(double scale, double mscale) { return scale <= 1 ? 1.0 : 0.1 * mscale * log(scale) + 1.0; }

double rope_attention_factor(double factor, double mscale, double mscale_all_dim) {
    if (mscale > 0 && mscale_all_dim > 0) return mscale_of(factor, mscale) / mscale_of(factor, mscale_all_dim);
    return mscale_of(factor, 1.0);
}

/* The pair that turns so many times within the original context; K / 2 pairs there are. */
static double pair_of_turns(const struct rope_config *r, int32_t K, double turns) {
    return K * log(r->original / (turns * 2 * M_PI)) / (2 * log(r->theta));
}

static void yarn(const struct rope_config *r, int32_t K, float *inv) {
    double low = pair_of_turns(r, K, r->beta_fast), high = pair_of_turns(r, K, r->beta_slow);
    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, K - 1);
    if (low == high) high += 0.001;
    for (int32_t j = 0; j < K / 2; j++) {
        const float power = power_of(r, K, j), ramp = ((float)j - (float)low) / (float)(high - low);
        const float kept = 1.0f - fminf(fmaxf(ramp, 0.0f), 1.0f);
        inv[j] = 1.0f / ((float)r->factor * power) * (1.0f - kept) + 1.0f / power * kept;
    }
}

/* ------------------------------------------------------------------------------------------------------------------ */

void rope_frequencies(const struct rope_config *r, int32_t K, float *inv) {
    if (r->type == ROPE_YARN) {
        yarn(r, K, inv);
        return;
    }
    for (int32_t j = 0; j < K / 2; j++) {
        inv[j] = 1.0f / power_of(r, K, j);
        if (r->type == ROPE_LINEAR) inv[j] /= (float)r->factor;
        if (r->type == ROPE_LLAMA3) inv[j] = llama3(r, inv[j]);
    }
}
