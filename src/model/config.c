/* config.json of Hugging Face transformers, for the architectures of arch.c: old and new spellings. What this engine
 * does not compute is refused by name rather than ignored. */
#include <math.h>
#include <string.h>

#include "io/json.h"
#include "model/internal.h"
#include "tensor/experts.h"

static enum status positive(const json_t *j, const char *where, const char *key, int64_t max, int32_t *out,
                            struct err *e) {
    int64_t v = 0;
    TRY(js_get_i64(j, where, key, &v, e));
    if (v < 1 || v > max)
        return FAIL(e, ST_INVALID, "%s: %s: expected an integer in 1..%lld, got %lld", where, key, (long long)max,
                    (long long)v);
    *out = (int32_t)v;
    return ST_OK;
}

/* An optional number of the table of the rotary embedding, in lo < x < hi. */
static enum status rope_number(const json_t *r, const char *where, const char *key, double lo, double hi, double *out,
                               struct err *e) {
    TRY(js_opt_f64(r, where, key, out, e));
    if (*out > lo && *out < hi) return ST_OK;
    return FAIL(e, ST_INVALID, "%s: %s: expected a number above %g and below %g, got %g", where, key, lo, hi, *out);
}

static enum status rope_needs(const json_t *r, const char *where, const char *key, double lo, double hi, double *out,
                              struct err *e) {
    TRY(js_get_f64(r, where, key, out, e));
    return rope_number(r, where, key, lo, hi, out, e);
}

static enum status parse_yarn(const json_t *r, const char *where, struct rope_config *o, struct err *e) {
    double mscale = 0, all_dim = 0;
    o->beta_fast = 32;
    o->beta_slow = 1;
    o->truncate = true;
    TRY(rope_number(r, where, "beta_fast", 0, 1e6, &o->beta_fast, e));
    TRY(rope_number(r, where, "beta_slow", 0, 1e6, &o->beta_slow, e));
    TRY(rope_number(r, where, "mscale", -1, 1e3, &mscale, e));
    TRY(rope_number(r, where, "mscale_all_dim", -1, 1e3, &all_dim, e));
    TRY(js_opt_bool(r, where, "truncate", &o->truncate, e));
    o->attention_factor = rope_attention_factor(o->factor, mscale, all_dim);
    return rope_number(r, where, "attention_factor", 0, 1e3, &o->attention_factor, e);
}

/* What a type other than the default asks for. */
static enum status parse_stretched(const json_t *j, const json_t *r, const char *where, const char *table,
                                   struct model_config *c, struct err *e) {
    struct rope_config *o = &c->rope;
    CLEANUP_STR struct str in = STR_INIT;
    str_addf(&in, "%s: %s", where, table);
    TRY(rope_needs(r, in.p, "factor", 0, 1e6, &o->factor, e));
    if (o->type == ROPE_LINEAR) return ST_OK;
    o->original = c->max_positions;
    TRY(rope_number(r, in.p, "original_max_position_embeddings", 0, 1e9, &o->original, e));
    TRY(rope_number(j, where, "original_max_position_embeddings", 0, 1e9, &o->original, e)); /* this one counts */
    if (o->type == ROPE_YARN) return parse_yarn(r, in.p, o, e);
    TRY(rope_needs(r, in.p, "low_freq_factor", 0, 1e6, &o->low_freq_factor, e));
    TRY(rope_needs(r, in.p, "high_freq_factor", 0, 1e6, &o->high_freq_factor, e));
    if (o->low_freq_factor < o->high_freq_factor) return ST_OK;
    return FAIL(e, ST_INVALID, "%s: high_freq_factor: expected a number above low_freq_factor (%g), got %g", in.p,
                o->low_freq_factor, o->high_freq_factor);
}

/* A rotary embedding of a part of each head is not computed here, nor one for each kind of layer or of position. Those
 * have tables and lists in r. */
static enum status refuse_partial(json_t *r, const char *where, const char *table, struct err *e) {
    double part = 1;
    const char *key;
    json_t *v;
    TRY(js_opt_f64(r, where, "partial_rotary_factor", &part, e));
    if (part != 1)
        return FAIL(e, ST_UNSUPPORTED, "%s: partial_rotary_factor: %g is not supported, expected 1", where, part);
    if (table) json_object_foreach(r, key, v) {
            if (!json_is_object(v) && !json_is_array(v)) continue;
            return FAIL(e, ST_UNSUPPORTED, "%s: %s.%s: not supported, expected a number or a name", where, table, key);
        }
    return ST_OK;
}

static enum status parse_rope_table(const json_t *j, json_t *r, const char *where, const char *table,
                                    struct model_config *c, struct err *e) {
    if (!json_is_object(r)) return FAIL(e, ST_PARSE, "%s: %s: expected an object or null", where, table);
    const char *name = "default";
    TRY(refuse_partial(r, where, table, e));
    TRY(js_opt_str(r, where, "type", &name, e)); /* the older spelling */
    TRY(js_opt_str(r, where, "rope_type", &name, e));
    const int type = rope_type_find(name);
    if (type < 0)
        return FAIL(e, ST_UNSUPPORTED, "%s: %s: rope type \"%s\" is not supported, expected " ROPE_TYPE_NAMES, where,
                    table, name);
    c->rope.type = (enum rope_type)type;
    TRY(js_opt_f64(r, where, "rope_theta", &c->rope.theta, e));
    return type == ROPE_DEFAULT ? ST_OK : parse_stretched(j, r, where, table, c, e);
}

/* rope_theta stands at the top (older files) or in rope_parameters; rope_scaling may be null or absent. */
static enum status parse_rope(json_t *j, const char *where, struct model_config *c, struct err *e) {
    c->rope = (struct rope_config){.theta = 10000.0, .attention_factor = 1};
    TRY(js_opt_f64(j, where, "rope_theta", &c->rope.theta, e));
    TRY(refuse_partial(j, where, NULL, e));
    static const char *const tables[] = {"rope_parameters", "rope_scaling"};
    for (size_t i = 0; i < ARRAY_LEN(tables); i++) {
        json_t *r = json_object_get(j, tables[i]);
        if (r && !json_is_null(r)) TRY(parse_rope_table(j, r, where, tables[i], c, e));
    }
    const double theta = c->rope.theta, least = c->rope.type == ROPE_YARN ? 1 : 0;
    if (!(theta > least) || theta > 1e30)
        return FAIL(e, ST_INVALID, "%s: rope_theta: expected a number > %g, got %g", where, least, theta);
    return ST_OK;
}

static enum status parse_eos(const json_t *j, const char *where, struct model_config *c, struct err *e) {
    const json_t *v = json_object_get(j, "eos_token_id");
    if (!v || json_is_null(v)) return ST_OK;
    const size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > ARRAY_LEN(c->eos))
        return FAIL(e, ST_UNSUPPORTED, "%s: eos_token_id: at most %zu ids, got %zu", where, ARRAY_LEN(c->eos), n);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= c->V)
            return FAIL(e, ST_INVALID, "%s: eos_token_id: expected integers in 0..%d", where, c->V - 1);
        c->eos[c->n_eos++] = (int32_t)json_integer_value(id);
    }
    return ST_OK;
}

/* Layers that see the last so many positions alone. Some models mix them with full ones; only full attention is
 * computed here. */
static enum status refuse_windows(const json_t *j, const char *where, const struct model_config *c, struct err *e) {
    bool sliding = false;
    TRY(js_opt_bool(j, where, "use_sliding_window", &sliding, e));
    if (sliding) return FAIL(e, ST_UNSUPPORTED, "%s: use_sliding_window: true is not supported", where);
    int64_t window = c->max_positions;
    if (c->arch->sliding_window) TRY(js_opt_i64(j, where, "sliding_window", &window, e));
    if (window >= c->max_positions) return ST_OK;
    return FAIL(e, ST_UNSUPPORTED, "%s: sliding_window: %lld is not supported, expected null or at least %d positions",
                where, (long long)window, c->max_positions);
}

static enum status parse_attention(const json_t *j, const char *where, const struct model_config *c, struct err *e) {
    bool bias = c->arch->qkv_bias;
    TRY(js_opt_bool(j, where, "attention_bias", &bias, e));
    TRY(refuse_windows(j, where, c, e));
    if (bias != c->arch->qkv_bias)
        return FAIL(e, ST_UNSUPPORTED, "%s: attention_bias: %s is not supported for this architecture", where,
                    bias ? "true" : "false");
    const json_t *types = json_object_get(j, "layer_types"), *t;
    size_t i;
    if (json_is_array(types)) json_array_foreach(types, i, t) {
            const char *s = json_string_value(t);
            if (!s || strcmp(s, "full_attention") != 0)
                return FAIL(e, ST_UNSUPPORTED,
                            "%s: layer_types[%zu]: \"%s\" is not supported, expected \"full_attention\"", where, i,
                            s ? s : "?");
        }
    return ST_OK;
}

/* Products that are not as ours: with a bias, or cut into parts whose sums are rounded one by one. */
static enum status refuse_other_products(const json_t *j, const char *where, struct err *e) {
    static const char *const biases[] = {"mlp_bias", "attention_out_bias"};
    for (size_t i = 0; i < ARRAY_LEN(biases); i++) {
        bool bias = false;
        TRY(js_opt_bool(j, where, biases[i], &bias, e));
        if (bias) return FAIL(e, ST_UNSUPPORTED, "%s: %s: true is not supported", where, biases[i]);
    }
    int64_t parts = 1;
    TRY(js_opt_i64(j, where, "pretraining_tp", &parts, e));
    if (parts == 1) return ST_OK;
    return FAIL(e, ST_UNSUPPORTED, "%s: pretraining_tp: %lld is not supported, expected 1", where, (long long)parts);
}

/* Which layers are mixtures: every decoder_sparse_step-th one, but for those that mlp_only_layers names. */
static enum status parse_sparse_layers(const json_t *j, const char *where, struct model_config *c, struct err *e) {
    int64_t step = 1;
    TRY(js_opt_i64(j, where, "decoder_sparse_step", &step, e));
    if (step < 1)
        return FAIL(e, ST_INVALID, "%s: decoder_sparse_step: expected an integer >= 1, got %lld", where,
                    (long long)step);
    for (int32_t i = 0; i < c->L; i++) c->sparse[i] = (i + 1) % step == 0;
    const json_t *dense = json_object_get(j, "mlp_only_layers"), *v;
    size_t k;
    if (!dense || json_is_null(dense)) return ST_OK;
    if (!json_is_array(dense)) return FAIL(e, ST_PARSE, "%s: mlp_only_layers: expected an array or null", where);
    json_array_foreach(dense, k, v) {
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return FAIL(e, ST_INVALID, "%s: mlp_only_layers[%zu]: expected an integer >= 0", where, k);
        if (json_integer_value(v) < c->L) c->sparse[json_integer_value(v)] = false;
    }
    return ST_OK;
}

static enum status parse_experts(const json_t *j, const char *where, struct model_config *c, struct err *e) {
    bool any = false;
    if (!c->arch->experts) return ST_OK;
    /* transformers 5 saves num_experts under the other name. */
    const char *experts = json_object_get(j, "num_local_experts") ? "num_local_experts" : "num_experts";
    TRY(positive(j, where, experts, EXPERTS_MAX, &c->E, e));
    TRY(positive(j, where, "num_experts_per_tok", c->E, &c->top_k, e));
    TRY(positive(j, where, "moe_intermediate_size", 1 << 18, &c->moe_F, e));
    TRY(js_opt_bool(j, where, "norm_topk_prob", &c->norm_topk, e));
    TRY(parse_sparse_layers(j, where, c, e));
    for (int32_t i = 0; i < c->L; i++) any |= c->sparse[i];
    if (!any) c->E = 0; /* all layers are dense */
    return ST_OK;
}

static enum status parse_arch(const char *name, const char *where, struct model_config *c, struct err *e) {
    c->arch = arch_find(name);
    if (c->arch) return ST_OK;
    CLEANUP_STR struct str known = STR_INIT;
    arch_list(" or ", &known);
    return FAIL(e, ST_UNSUPPORTED, "%s: architectures: \"%s\" is not supported, expected %s", where, name, known.p);
}

double model_ffn_columns(const struct model_config *c, double n) {
    const double E = c->E, read = E > 0 ? E * (1 - pow(1 - c->top_k / E, n)) : 0;
    double columns = 0;
    for (int i = 0; i < c->L; i++) columns += c->sparse[i] ? read * c->moe_F : c->F;
    return columns / c->L;
}

enum status config_parse(json_t *j, const char *where, struct model_config *c, struct err *e) {
    *c = (struct model_config){0};
    const json_t *archs = json_object_get(j, "architectures");
    const char *name = json_string_value(json_array_get(archs, 0)), *type = NULL;
    TRY(js_opt_str(j, where, "model_type", &type, e));
    if (!name) name = type ? type : "(none)";
    TRY(parse_arch(name, where, c, e));
    TRY(positive(j, where, "vocab_size", 1 << 22, &c->V, e));
    TRY(positive(j, where, "hidden_size", 1 << 16, &c->D, e));
    TRY(positive(j, where, "intermediate_size", 1 << 18, &c->F, e));
    TRY(positive(j, where, "num_hidden_layers", MODEL_LAYERS_MAX, &c->L, e));
    TRY(positive(j, where, "num_attention_heads", 1024, &c->H, e));
    c->G = c->H;
    const json_t *kv = json_object_get(j, "num_key_value_heads");
    if (kv && !json_is_null(kv)) TRY(positive(j, where, "num_key_value_heads", 1024, &c->G, e));
    if (c->H % c->G)
        return FAIL(e, ST_INVALID, "%s: num_attention_heads (%d) is not a multiple of num_key_value_heads (%d)", where,
                    c->H, c->G);
    const json_t *hd = json_object_get(j, "head_dim");
    if (hd && !json_is_null(hd)) {
        TRY(positive(j, where, "head_dim", 1024, &c->K, e));
    } else {
        if (c->D % c->H)
            return FAIL(e, ST_INVALID, "%s: hidden_size (%d) is not a multiple of num_attention_heads (%d)", where,
                        c->D, c->H);
        c->K = c->D / c->H;
    }
    if (c->K % 2) return FAIL(e, ST_INVALID, "%s: head_dim: expected an even number, got %d", where, c->K);
    c->max_positions = c->arch->default_positions;
    const json_t *mp = json_object_get(j, "max_position_embeddings");
    if (mp && !json_is_null(mp)) TRY(positive(j, where, "max_position_embeddings", 1 << 24, &c->max_positions, e));
    double eps = 1e-6;
    TRY(js_opt_f64(j, where, "rms_norm_eps", &eps, e));
    if (!(eps >= 0 && eps < 1)) return FAIL(e, ST_INVALID, "%s: rms_norm_eps: expected 0 <= x < 1, got %g", where, eps);
    c->rms_eps = (float)eps;
    const char *act = "silu";
    TRY(js_opt_str(j, where, "hidden_act", &act, e));
    if (strcmp(act, "silu") != 0)
        return FAIL(e, ST_UNSUPPORTED, "%s: hidden_act: \"%s\" is not supported, expected \"silu\"", where, act);
    TRY(js_opt_bool(j, where, "tie_word_embeddings", &c->tied, e));
    c->tied |= strcmp(name, c->arch->embedder) == 0; /* it has no head, and nobody asks it for logits */
    TRY(parse_attention(j, where, c, e));
    TRY(refuse_other_products(j, where, e));
    TRY(parse_experts(j, where, c, e));
    TRY(parse_rope(j, where, c, e));
    return parse_eos(j, where, c, e);
}
