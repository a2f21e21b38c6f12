/* rope: the frequencies of the rotary embedding, plain or stretched for contexts longer than a model was first trained
 * for. They are computed as Hugging Face transformers does (modeling_rope_utils.py): in float32, operation by
 * operation, because a position of 100,000 turns the last bit of a frequency into an angle that can be seen. */
#ifndef KERNELRL_ROPE_H
#define KERNELRL_ROPE_H

#include "base/base.h"

enum rope_type {
    ROPE_DEFAULT, /* theta^(-2j/K) */
    ROPE_LINEAR,  /* all frequencies divided by the factor (Chen et al. 2023) */
    ROPE_LLAMA3,  /* long wavelengths divided, short ones kept, a ramp between (Llama 3.1) */
    ROPE_YARN,    /* the same with a ramp over dimensions, and longer queries and keys (Peng et al. 2023) */
};

/* What config.json says, under the names that its keys have there. */
struct rope_config {
    enum rope_type type;
    double theta;
    double factor;                            /* all types but the default */
    double original;                          /* original_max_position_embeddings; llama3, yarn */
    double low_freq_factor, high_freq_factor; /* llama3; low < high */
    double beta_fast, beta_slow;              /* yarn */
    double attention_factor;                  /* cosine and sine are multiplied by it; 1 but for yarn */
    bool truncate;                            /* yarn: the ends of the ramp are whole dimensions */
};

/* The type of a name, "llama3"; -1: not computed here. */
int rope_type_find(const char *name);
/* The names of all types: "a, b or c". */
#define ROPE_TYPE_NAMES "default, linear, llama3 or yarn"
/* yarn's attention_factor where config.json gives none: from the factor, and from mscale and mscale_all_dim if both are
 * above 0. */
double rope_attention_factor(double factor, double mscale, double mscale_all_dim);
/* The angle of pair j at position p is (float)p * inv[j]: inv [K/2] for heads of K. */
void rope_frequencies(const struct rope_config *r, int32_t K, float *inv);

#endif
