/* config.json of Hugging Face transformers, for the architectures of arch.c: old and new spellings. What this engine
 * does not compute is refused by name rather than ignored. */
#include <math.h>
#include <string.h>

#include "io/json.h"
#include "model/internal.h"

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

/* rope_theta stands at the top (older files) or in rope_parameters; scaling may be null, absent or of type default. */
static enum status parse_rope(const json_t *j, const char *where, struct model_config *c, struct err *e) {
    double theta = 10000.0;
    TRY(js_opt_f64(j, where, "rope_theta", &theta, e));
    static const char *const tables[] = {"rope_parameters", "rope_scaling"};
    for (size_t i = 0; i < ARRAY_LEN(tables); i++) {
        const json_t *r = json_object_get(j, tables[i]);
        if (!r || json_is_null(r)) continue;
        if (!json_is_object(r)) return FAIL(e, ST_PARSE, "%s: %s: expected an object or null", where, tables[i]);
        const char *type = "default";
        TRY(js_opt_str(r, where, "type", &type, e)); /* the older spelling */
        TRY(js_opt_str(r, where, "rope_type", &type, e));
        if (strcmp(type, "default") != 0)
            return FAIL(e, ST_UNSUPPORTED, "%s: %s: rope type \"%s\" is not supported, expected \"default\"", where,
                        tables[i], type);
        TRY(js_opt_f64(r, where, "rope_theta", &theta, e));
    }
    if (!(theta > 0) || !isfinite(theta))
        return FAIL(e, ST_INVALID, "%s: rope_theta: expected a number > 0, got %g", where, theta);
    c->rope_theta = (float)theta;
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

/* Some models mix sliding and full layers; only full attention is computed here. */
static enum status parse_attention(const json_t *j, const char *where, const struct model_config *c, struct err *e) {
    bool sliding = false, bias = c->arch->qkv_bias;
    TRY(js_opt_bool(j, where, "use_sliding_window", &sliding, e));
    TRY(js_opt_bool(j, where, "attention_bias", &bias, e));
    if (sliding) return FAIL(e, ST_UNSUPPORTED, "%s: use_sliding_window: true is not supported", where);
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

static enum status parse_arch(const char *name, const char *where, struct model_config *c, struct err *e) {
    c->arch = arch_find(name);
    if (c->arch) return ST_OK;
    CLEANUP_STR struct str known = STR_INIT;
    arch_list(" or ", &known);
    return FAIL(e, ST_UNSUPPORTED, "%s: architectures: \"%s\" is not supported, expected %s", where, name, known.p);
}

enum status config_parse(const json_t *j, const char *where, struct model_config *c, struct err *e) {
    *c = (struct model_config){0};
    const json_t *archs = json_object_get(j, "architectures");
    const char *name = json_string_value(json_array_get(archs, 0)), *type = NULL;
    TRY(js_opt_str(j, where, "model_type", &type, e));
    if (!name) name = type ? type : "(none)";
    TRY(parse_arch(name, where, c, e));
    TRY(positive(j, where, "vocab_size", 1 << 22, &c->V, e));
    TRY(positive(j, where, "hidden_size", 1 << 16, &c->D, e));
    TRY(positive(j, where, "intermediate_size", 1 << 18, &c->F, e));
    TRY(positive(j, where, "num_hidden_layers", 512, &c->L, e));
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
    c->max_positions = 32768;
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
    TRY(parse_rope(j, where, c, e));
    return parse_eos(j, where, c, e);
}
