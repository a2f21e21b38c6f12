/* LoRA (Hu et al. 2021) on the seven projections, in PEFT's file format. Never merged: sampler and trainer compute the
 * same y = x W^T + scale (x A^T) B^T. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/rng.h"
#include "io/json.h"
#include "model/internal.h"

static const char peft_outer[] = "base_model.model."; /* what PEFT puts in front of the base's names */

const int lora_first[LORA_INPUTS + 1] = {MODULE_Q, MODULE_O, MODULE_GATE, MODULE_DOWN, LORA_SITES};

void lora_site_dims(const struct model_config *c, int site, int64_t *in, int64_t *out) {
    const int64_t HK = (int64_t)c->H * c->K, GK = (int64_t)c->G * c->K;
    const int64_t ins[LORA_SITES] = {c->D, c->D, c->D, HK, c->D, c->D, c->F};
    const int64_t outs[LORA_SITES] = {HK, GK, GK, c->D, c->F, c->F, c->D};
    *in = ins[site];
    *out = outs[site];
}

static void adapter_free(struct model *m, struct adapter *ad) {
    for (int i = 0; ad->layer && i < m->cfg.L; i++) {
        for (int g = 0; g < LORA_INPUTS; g++) m->be->weight_free(m->be, &ad->layer[i].a[g]);
        for (int s = 0; s < LORA_SITES; s++) m->be->weight_free(m->be, &ad->layer[i].b[s]);
    }
    m->be->mem_free(m->be, ad->w);
    free(ad->layer);
    free(ad->param);
    json_decref(ad->peft);
    arena_free(&ad->names);
    *ad = (struct adapter){0};
}

void lora_free(struct model *m) {
    adapter_free(m, &m->own);
    m->be->mem_free(m->be, m->lg);
    m->lg = NULL;
    if (m->train == TRAIN_LORA) m->train = TRAIN_NOTHING;
}

static void pack(struct model *m, struct weight *const *w, int n) {
    if (n > 0 && m->be->weights_pack && w[0]->dt == DT_BF16) {
        m->be->weights_pack(m->be, w, n);
        return;
    }
    for (int i = 0; i < n; i++) m->be->weight_pack(m->be, w[i]);
}

void adapter_pack(struct model *m, struct adapter *ad) {
    enum { OF_LAYER = LORA_INPUTS + (int)LORA_SITES, AT_ONCE = 64 };
    struct weight *w[AT_ONCE];
    int n = 0;
    for (int i = 0; ad->layer && i < m->cfg.L; i++) {
        struct lora *l = &ad->layer[i];
        for (int g = 0; g < LORA_INPUTS; g++)
            if (l->a[g].w) w[n++] = &l->a[g];
        for (int s = 0; s < LORA_SITES; s++)
            if (l->b[s].w) w[n++] = &l->b[s];
        if (n + OF_LAYER <= AT_ONCE) continue;
        pack(m, w, n);
        n = 0;
    }
    pack(m, w, n);
}

/* PEFT's name of a matrix of a site: what is "lora_A.weight" or "lora_B.weight". */
static void peft_name(const struct arch *a, int site, int layer, const char *what, struct str *out) {
    str_adds(out, peft_outer);
    arch_tensor(a, (enum arch_module)site, layer, what, out);
}

static struct param matrix_param(const struct arch *a, struct adapter *ad, const struct weight *w, int layer, int site,
                                 const char *what) {
    CLEANUP_STR struct str name = STR_INIT;
    peft_name(a, site, layer, what, &name);
    return (struct param){
        .name = arena_strdup(&ad->names, name.p), .w = w->w, .n = w->N * w->K, .nd = 2, .dim = {w->N, w->K}};
}

/* Hands the matrices of the sites in `use` out of the slab and lists them as parameters; a slab without memory only
 * counts. */
static void lora_carve(const struct model *m, struct adapter *ad, struct carve *slab, const bool use[LORA_SITES]) {
    const int64_t R = ad->rank;
    for (int i = 0; i < m->cfg.L; i++)
        for (int g = 0; g < LORA_INPUTS; g++) {
            int64_t in = 0, out, n = 0;
            for (int s = lora_first[g]; s < lora_first[g + 1]; s++) n += use[s];
            if (n == 0) continue;
            lora_site_dims(&m->cfg, lora_first[g], &in, &out);
            struct lora *l = &ad->layer[i];
            float *a = carve(slab, n * R * in);
            if (slab->base) l->a[g] = (struct weight){.w = a, .N = n * R, .K = in, .dt = m->act};
            for (int s = lora_first[g]; s < lora_first[g + 1]; s++) {
                if (!use[s]) continue;
                lora_site_dims(&m->cfg, s, &in, &out);
                float *b = carve(slab, out * R);
                if (!slab->base) continue;
                l->b[s] = (struct weight){.w = b, .N = out, .K = R, .dt = m->act};
                const struct weight of_site = {.w = a, .N = R, .K = in};
                ad->param[ad->n_param++] = matrix_param(m->cfg.arch, ad, &of_site, i, s, "lora_A.weight");
                ad->param[ad->n_param++] = matrix_param(m->cfg.arch, ad, &l->b[s], i, s, "lora_B.weight");
                a += R * in;
            }
        }
}

/* Views and the parameter list for the sites in `use`, of zeros, in *ad, which was zero; to be freed also after an
 * error. */
static enum status adapter_new(struct model *m, struct adapter *ad, int rank, float alpha, bool rslora,
                               const bool use[LORA_SITES], struct err *e) {
    if (rank < 1 || rank > 4096) return FAIL(e, ST_INVALID, "LoRA rank: expected 1..4096, got %d", rank);
    if (!(alpha > 0) || !isfinite(alpha))
        return FAIL(e, ST_INVALID, "LoRA alpha: expected a number > 0, got %g", alpha);
    ad->rank = rank;
    ad->alpha = alpha;
    ad->rslora = rslora;
    ad->scale = rslora ? alpha / sqrtf((float)rank) : alpha / (float)rank;
    ad->layer = xcalloc((size_t)m->cfg.L, sizeof *ad->layer);
    struct carve slab = {0};
    lora_carve(m, ad, &slab, use); /* counts */
    int64_t cap = 0;
    ad->n_w = slab.used;
    TRY(space_grow(m, &ad->w, &cap, ad->n_w, "the LoRA weights", e));
    m->be->mem_zero(m->be, ad->w, (size_t)ad->n_w * sizeof(float));
    ad->param = xcalloc(2 * LORA_SITES * (size_t)m->cfg.L + 1, sizeof *ad->param);
    slab = (struct carve){.base = ad->w};
    lora_carve(m, ad, &slab, use);
    return ST_OK;
}

enum status model_lora_init(struct model *m, int rank, float alpha, uint64_t seed, struct err *e) {
    const bool all[LORA_SITES] = {true, true, true, true, true, true, true};
    lora_free(m);
    const enum status st = adapter_new(m, &m->own, rank, alpha, false, all, e);
    if (st != ST_OK) {
        lora_free(m);
        return st;
    }
    for (int i = 0; i < m->own.n_param && !m->empty;
         i += 2) { /* A; every B stays zero, so the model starts unchanged */
        struct param *p = &m->own.param[i];
        struct rng r = rng_make(seed, (uint64_t)i);
        const double bound = 1.0 / sqrt((double)p->dim[1]); /* Kaiming uniform with a = sqrt(5), as PEFT does */
        CLEANUP_FREE float *host = xmalloc((size_t)p->n * sizeof *host);
        for (int64_t j = 0; j < p->n; j++) host[j] = (float)((2.0 * rng_next_f64(&r) - 1.0) * bound);
        model_param_put(m, p, host);
    }
    model_params_changed(m);
    return ST_OK;
}

/* Options of PEFT that would change the arithmetic and are not computed here. */
static enum status refuse_unsupported(const json_t *j, const char *where, struct err *e) {
    static const char *const flags[] = {"use_dora", "fan_in_fan_out", "lora_bias", "use_qalora", "use_bdlora"};
    for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
        bool on = false;
        TRY(js_opt_bool(j, where, flags[i], &on, e));
        if (on) return FAIL(e, ST_UNSUPPORTED, "%s: %s: true is not supported", where, flags[i]);
    }
    static const char *const empty[] = {"rank_pattern",        "alpha_pattern",     "modules_to_save",
                                        "layers_to_transform", "target_parameters", "trainable_token_indices"};
    for (size_t i = 0; i < ARRAY_LEN(empty); i++) {
        const json_t *v = json_object_get(j, empty[i]);
        if (v && !json_is_null(v) && !(json_is_object(v) && json_object_size(v) == 0) &&
            !(json_is_array(v) && json_array_size(v) == 0))
            return FAIL(e, ST_UNSUPPORTED, "%s: %s is not supported, expected null or empty", where, empty[i]);
    }
    const char *type = "LORA", *bias = "none";
    TRY(js_opt_str(j, where, "peft_type", &type, e));
    TRY(js_opt_str(j, where, "bias", &bias, e));
    if (strcmp(type, "LORA") != 0)
        return FAIL(e, ST_UNSUPPORTED, "%s: peft_type: \"%s\" is not supported, expected \"LORA\"", where, type);
    if (strcmp(bias, "none") != 0)
        return FAIL(e, ST_UNSUPPORTED, "%s: bias: \"%s\" is not supported, expected \"none\"", where, bias);
    return ST_OK;
}

/* Adds to the message which model the adapter says it is for. Returns st. */
static enum status other_base(const json_t *peft, struct err *e, enum status st) {
    const char *base = json_string_value(json_object_get(peft, "base_model_name_or_path"));
    const struct err first = *e;
    if (!base || !*base) return st;
    return FAIL(e, st, "%s (the adapter was made for \"%.200s\")", first.msg, base);
}

/* Into *ad, which was zero; zero again after an error. */
static enum status adapter_read(struct model *m, const char *peft_dir, struct adapter *ad, struct err *e) {
    CLEANUP_STR struct str path = STR_INIT;
    str_addf(&path, "%s/adapter_config.json", peft_dir);
    CLEANUP_JSON json_t *j = NULL;
    TRY(js_load(path.p, 1 << 24, &j, e));
    TRY(refuse_unsupported(j, path.p, e));
    int64_t rank = 0;
    double alpha = 0;
    bool rslora = false;
    TRY(js_get_i64(j, path.p, "r", &rank, e));
    TRY(js_get_f64(j, path.p, "lora_alpha", &alpha, e));
    TRY(js_opt_bool(j, path.p, "use_rslora", &rslora, e));
    if (rank < 1 || rank > 4096)
        return FAIL(e, ST_INVALID, "%s: r: expected 1..4096, got %lld", path.p, (long long)rank);

    str_clear(&path);
    str_addf(&path, "%s/adapter_model.safetensors", peft_dir);
    struct st_file f;
    TRY(st_open(path.p, &f, e));
    enum status st;
    /* Sites are told by what the file holds; a tensor that fits none of them is an error below. */
    bool use[LORA_SITES] = {false};
    for (int s = 0; s < LORA_SITES; s++) {
        CLEANUP_STR struct str name = STR_INIT;
        peft_name(m->cfg.arch, s, 0, "lora_A.weight", &name);
        use[s] = st_find(&f, name.p) != NULL;
    }
    TRY_GOTO(adapter_new(m, ad, (int)rank, (float)alpha, rslora, use, e), done);
    if ((st = params_read(m, ad->param, ad->n_param, &f, e)) != ST_OK) {
        if (st == ST_INVALID) st = other_base(j, e, st);
        goto done;
    }
    if (f.count != (size_t)ad->n_param || f.count == 0) {
        const char *extra = "no LoRA weights at all";
        for (size_t k = 0; k < f.count; k++) {
            bool known = false;
            for (int i = 0; i < ad->n_param; i++) known |= strcmp(ad->param[i].name, f.tensor[k].name) == 0;
            if (!known) extra = f.tensor[k].name;
        }
        const size_t outer = strlen(peft_outer);
        if (str_has_prefix(extra, peft_outer) && arch_layer(m->cfg.arch, extra + outer) >= m->cfg.L)
            st = other_base(j, e,
                            FAIL(e, ST_INVALID, "%s: tensor \"%s\": the model has %d layers", path.p, extra, m->cfg.L));
        else
            st = FAIL(e, ST_UNSUPPORTED, "%s: %s: expected lora_A and lora_B of the attention and MLP projections only",
                      path.p, extra);
        goto done;
    }
    ad->peft = json_incref(j);
    st = ST_OK;
done:
    st_close(&f);
    if (st != ST_OK) adapter_free(m, ad);
    return st;
}

enum status model_lora_load(struct model *m, const char *peft_dir, struct err *e) {
    lora_free(m);
    TRY(adapter_read(m, peft_dir, &m->own, e));
    model_params_changed(m);
    return ST_OK;
}

enum status model_lora_save(const struct model *m, const char *peft_dir, struct err *e) {
    const struct adapter *ad = &m->own;
    if (!ad->w) return FAIL(e, ST_INVALID, "%s: the model has no LoRA weights to save", peft_dir);
    TRY(fs_mkdirs(peft_dir, e));
    CLEANUP_STR struct str path = STR_INIT;
    str_addf(&path, "%s/adapter_model.safetensors", peft_dir);
    TRY(params_write(m, ad->param, ad->n_param, ST_DTYPE_F32, path.p, e));
    CLEANUP_JSON json_t *j = ad->peft ? json_deep_copy(ad->peft) : json_object();
    json_object_set_new(j, "peft_type", json_string("LORA"));
    json_object_set_new(j, "task_type", json_string("CAUSAL_LM"));
    json_object_set_new(j, "r", json_integer(ad->rank));
    json_object_set_new(j, "lora_alpha", json_real((double)ad->alpha));
    json_object_set_new(j, "lora_dropout", json_real(0.0));
    json_object_set_new(j, "bias", json_string("none"));
    json_object_set_new(j, "fan_in_fan_out", json_false());
    json_object_set_new(j, "inference_mode", json_true());
    json_object_set_new(j, "use_rslora", json_boolean(ad->rslora));
    if (m->name) json_object_set_new(j, "base_model_name_or_path", json_string(m->name));
    if (!json_object_get(j, "base_model_name_or_path")) json_object_set_new(j, "base_model_name_or_path", json_null());
    json_t *targets = json_array();
    for (int s = 0; s < LORA_SITES; s++)
        if (ad->layer[0].b[s].w)
            json_array_append_new(targets, json_string(arch_short_name(m->cfg.arch, (enum arch_module)s)));
    json_object_set_new(j, "target_modules", targets);
    CLEANUP_FREE char *text = json_dumps(j, JSON_INDENT(2));
    str_clear(&path);
    str_addf(&path, "%s/adapter_config.json", peft_dir);
    return fs_write_atomic(path.p, text, strlen(text), e);
}

/* ---- further adapters ---------------------------------------------------------------------------------------------
 */

static int add_adapter(struct model *m, const struct adapter *ad) {
    m->more = xrealloc(m->more, ((size_t)m->n_more + 1) * sizeof *m->more);
    m->more[m->n_more] = xmalloc(sizeof *ad);
    *m->more[m->n_more] = *ad;
    return ++m->n_more;
}

enum status model_adapter_load(struct model *m, const char *peft_dir, int *index, struct err *e) {
    struct adapter ad = {0};
    TRY(adapter_read(m, peft_dir, &ad, e));
    adapter_pack(m, &ad);
    *index = add_adapter(m, &ad);
    return m->be->sync(m->be, e);
}

int model_adapter_keep(struct model *m) {
    ASSERT(m->own.w);
    const int index = add_adapter(m, &m->own);
    m->own = (struct adapter){0};
    lora_free(m);
    struct adapter *ad = m->more[index - 1];
    for (int i = 0; i < ad->n_param; i++) ad->param[i].g = NULL;
    model_params_changed(m); /* the own one's rows are the base's from here on */
    return index;
}

void model_adapter_drop(struct model *m, int index) {
    ASSERT(index > ADAPTER_OWN && model_adapter_there(m, index));
    struct adapter **at = &m->more[index - 1];
    adapter_free(m, *at);
    free(*at);
    *at = NULL;
    m->ts.T = -1; /* the last batch may have gone through it */
}

void adapters_free(struct model *m) {
    for (int i = 1; i <= m->n_more; i++)
        if (m->more[i - 1]) model_adapter_drop(m, i);
    free(m->more);
}

bool model_adapter_there(const struct model *m, int index) {
    return index == ADAPTER_OWN || index == ADAPTER_BASE || (index >= 1 && index <= m->n_more && m->more[index - 1]);
}

const struct adapter *adapter_of(const struct model *m, int index) {
    ASSERT(model_adapter_there(m, index));
    if (index == ADAPTER_OWN) return m->own.w ? &m->own : NULL;
    return index == ADAPTER_BASE ? NULL : m->more[index - 1];
}

int64_t lora_cols(const struct model *m) {
    int most = m->own.rank;
    for (int i = 0; i < m->n_more; i++)
        if (m->more[i] && m->more[i]->rank > most) most = m->more[i]->rank;
    return 3 * (int64_t)most;
}
