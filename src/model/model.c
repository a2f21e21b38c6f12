/* Weights: one slab of float32, views into it under their Hugging Face names, packed copies made by the backend. */
#include "model/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/rng.h"
#include "io/json.h"
#include "io/safetensors.h"

/* ---- layout ------------------------------------------------------------------------------------------------------ */

/* Walks all base parameters in checkpoint order. On the counting pass (base NULL) only sizes matter; on the second the
 * views are set and the list is filled. */
struct layout {
    struct model *m;
    struct carve slab;
    int n;
};

static void add_param(struct layout *y, const char *name, float *w, int nd, int64_t d0, int64_t d1) {
    if (y->m->param)
        y->m->param[y->n] =
            (struct param){.name = name, .w = w, .n = d0 * (nd == 2 ? d1 : 1), .nd = nd, .dim = {d0, d1}};
    y->n++;
}

static const char *layer_name(struct model *m, int i, const char *what) {
    return arena_printf(&m->names, "model.layers.%d.%s", i, what);
}

static void lay_out(struct layout *y) {
    struct model *m = y->m;
    const struct model_config *c = &m->cfg;
    const int64_t D = c->D, F = c->F, K = c->K, HK = (int64_t)c->H * K, GK = (int64_t)c->G * K, Q = qkv_cols(c);
    struct carve *s = &y->slab;
    m->embed = carve(s, c->V * D);
    add_param(y, "model.embed_tokens.weight", m->embed, 2, c->V, D);
    for (int i = 0; i < c->L; i++) {
        struct layer *l = &m->layer[i];
        l->ln1 = carve(s, D);
        l->wqkv = (struct weight){.w = carve(s, Q * D), .N = Q, .K = D};
        l->bqkv = c->qkv_bias ? carve(s, Q) : NULL;
        l->qn = c->qwen3 ? carve(s, K) : NULL;
        l->kn = c->qwen3 ? carve(s, K) : NULL;
        l->wo = (struct weight){.w = carve(s, D * HK), .N = D, .K = HK};
        l->ln2 = carve(s, D);
        l->wgu = (struct weight){.w = carve(s, 2 * F * D), .N = 2 * F, .K = D};
        l->wd = (struct weight){.w = carve(s, D * F), .N = D, .K = F};
        static const char *const part[] = {"q_proj", "k_proj", "v_proj"};
        const int64_t rows[] = {HK, GK, GK}, first[] = {0, HK, HK + GK};
        const bool second = m->param != NULL;
        add_param(y, second ? layer_name(m, i, "input_layernorm.weight") : NULL, l->ln1, 1, D, 0);
        for (int j = 0; j < 3; j++) {
            char name[48];
            snprintf(name, sizeof name, "self_attn.%s.weight", part[j]);
            add_param(y, second ? layer_name(m, i, name) : NULL, second ? l->wqkv.w + first[j] * D : NULL, 2, rows[j],
                      D);
            if (!c->qkv_bias) continue;
            snprintf(name, sizeof name, "self_attn.%s.bias", part[j]);
            add_param(y, second ? layer_name(m, i, name) : NULL, second ? l->bqkv + first[j] : NULL, 1, rows[j], 0);
        }
        if (c->qwen3) {
            add_param(y, second ? layer_name(m, i, "self_attn.q_norm.weight") : NULL, l->qn, 1, K, 0);
            add_param(y, second ? layer_name(m, i, "self_attn.k_norm.weight") : NULL, l->kn, 1, K, 0);
        }
        if (!second) { /* counting */
            y->n += 5;
            continue;
        }
        add_param(y, layer_name(m, i, "self_attn.o_proj.weight"), l->wo.w, 2, D, HK);
        add_param(y, layer_name(m, i, "post_attention_layernorm.weight"), l->ln2, 1, D, 0);
        add_param(y, layer_name(m, i, "mlp.gate_proj.weight"), l->wgu.w, 2, F, D);
        add_param(y, layer_name(m, i, "mlp.up_proj.weight"), l->wgu.w + F * D, 2, F, D);
        add_param(y, layer_name(m, i, "mlp.down_proj.weight"), l->wd.w, 2, D, F);
    }
    m->final_norm = carve(s, D);
    add_param(y, "model.norm.weight", m->final_norm, 1, D, 0);
    m->head = (struct weight){.w = m->embed, .N = c->V, .K = D};
    if (!c->tied) {
        m->head.w = carve(s, c->V * D);
        add_param(y, "lm_head.weight", m->head.w, 2, c->V, D);
    }
}

/* A model with its slab allocated and nothing in it. Takes ownership of config. */
static enum status model_new(json_t *config, const char *where, struct pool *pool, struct model **out, struct err *e) {
    struct model *m = xcalloc(1, sizeof *m);
    m->config = config;
    m->ts.T = -1;
    enum status st;
    TRY_GOTO(config_parse(config, where, &m->cfg, e), fail);
    TRY_GOTO(cpu_backend_open(pool, &m->be, e), fail);
    m->layer = xcalloc((size_t)m->cfg.L, sizeof *m->layer);
    struct layout y = {.m = m};
    lay_out(&y);
    m->n_w = y.slab.used;
    int64_t cap = 0;
    TRY_GOTO(space_grow(m, &m->w, &cap, m->n_w, "the weights", e), fail);
    memset(m->w, 0, (size_t)m->n_w * sizeof(float)); /* the gaps between tensors */
    m->param = xcalloc((size_t)y.n, sizeof *m->param);
    m->n_param = y.n;
    y = (struct layout){.m = m, .slab.base = m->w};
    lay_out(&y);
    ASSERT(y.n == m->n_param && y.slab.used == m->n_w);
    *out = m;
    return ST_OK;
fail:
    model_free(m);
    return st;
}

/* ---- load, init, save -------------------------------------------------------------------------------------------- */

enum { CONFIG_MAX_BYTES = 1 << 24 };

static enum status read_weights(struct model *m, const char *dir, struct err *e) {
    struct st_file f;
    TRY(st_open_dir(dir, &f, e));
    enum status st = ST_OK;
    for (int i = 0; i < m->n_param && st == ST_OK; i++) {
        const struct param *p = &m->param[i];
        const struct st_tensor *t;
        st = st_get(&f, p->name, p->nd, p->dim, &t, e);
        if (st == ST_OK) st = st_check_finite(t, e);
        if (st == ST_OK) st = st_read_f32(t, p->w, e);
    }
    st_close(&f);
    return st;
}

enum status model_load(const char *dir, struct pool *pool, struct model **out, struct err *e) {
    CLEANUP_FREE char *path = NULL;
    struct str s = STR_INIT;
    str_addf(&s, "%s/config.json", dir);
    path = str_steal(&s);
    json_t *config = NULL;
    TRY(js_load(path, CONFIG_MAX_BYTES, &config, e));
    struct model *m;
    TRY(model_new(config, path, pool, &m, e));
    enum status st = read_weights(m, dir, e);
    if (st != ST_OK) {
        model_free(m);
        return st;
    }
    model_params_changed(m);
    *out = m;
    return ST_OK;
}

enum status model_init(const char *config_json, uint64_t seed, struct pool *pool, struct model **out, struct err *e) {
    json_t *config = NULL;
    const bool text = config_json[strspn(config_json, " \t\r\n")] == '{';
    if (text)
        TRY(js_parse(config_json, strlen(config_json), "config.json", &config, e));
    else
        TRY(js_load(config_json, CONFIG_MAX_BYTES, &config, e));
    struct model *m;
    TRY(model_new(config, text ? "config.json" : config_json, pool, &m, e));
    for (int i = 0; i < m->n_param; i++) {
        struct param *p = &m->param[i];
        struct rng r = rng_make(seed, (uint64_t)i); /* a stream per tensor */
        const bool bias = strstr(p->name, ".bias") != NULL;
        for (int64_t j = 0; j < p->n; j++) p->w[j] = p->nd == 2 ? (float)(0.02 * rng_normal(&r)) : bias ? 0.0f : 1.0f;
    }
    model_params_changed(m);
    *out = m;
    return ST_OK;
}

static enum status save_config(const struct model *m, const char *dir, const char *dtype, struct err *e) {
    CLEANUP_JSON json_t *j = json_deep_copy(m->config);
    const char *name = strcmp(dtype, "bf16") == 0 ? "bfloat16" : "float32";
    json_object_set_new(j, json_object_get(j, "dtype") ? "dtype" : "torch_dtype", json_string(name));
    CLEANUP_FREE char *text = json_dumps(j, JSON_INDENT(2));
    CLEANUP_STR struct str path = STR_INIT;
    str_addf(&path, "%s/config.json", dir);
    return fs_write_atomic(path.p, text, strlen(text), e);
}

enum status model_save(const struct model *m, const char *dir, const char *dtype, struct err *e) {
    enum st_dtype dt;
    if (strcmp(dtype, "bf16") == 0)
        dt = ST_DTYPE_BF16;
    else if (strcmp(dtype, "f32") == 0)
        dt = ST_DTYPE_F32;
    else
        return FAIL(e, ST_INVALID, "%s: dtype \"%s\": expected \"bf16\" or \"f32\"", dir, dtype);
    TRY(fs_mkdirs(dir, e));
    CLEANUP_FREE struct st_entry *en = xcalloc((size_t)m->n_param, sizeof *en);
    for (int i = 0; i < m->n_param; i++) {
        const struct param *p = &m->param[i];
        en[i] = (struct st_entry){.name = p->name,
                                  .dtype = dt,
                                  .from = ST_DTYPE_F32,
                                  .nd = p->nd,
                                  .dim = {p->dim[0], p->dim[1]},
                                  .data = p->w};
    }
    CLEANUP_STR struct str path = STR_INIT;
    str_addf(&path, "%s/model.safetensors", dir);
    TRY(st_write(path.p, en, (size_t)m->n_param, NULL, e));
    return save_config(m, dir, dtype, e);
}

void model_free(struct model *m) {
    if (!m) return;
    if (m->be) {
        lora_free(m);
        for (int i = 0; m->layer && i < m->cfg.L; i++) {
            struct layer *l = &m->layer[i];
            m->be->weight_free(m->be, &l->wqkv);
            m->be->weight_free(m->be, &l->wo);
            m->be->weight_free(m->be, &l->wgu);
            m->be->weight_free(m->be, &l->wd);
        }
        m->be->weight_free(m->be, &m->head);
        train_space_free(m);
        step_space_free(m);
        m->be->mem_free(m->be, m->w);
        m->be->mem_free(m->be, m->g);
        m->be->close(m->be);
    }
    free(m->cos_t);
    free(m->sin_t);
    free(m->layer);
    free(m->param);
    json_decref(m->config);
    arena_free(&m->names);
    free(m);
}

const struct model_config *model_cfg(const struct model *m) { return &m->cfg; }

/* ---- parameters and gradients ------------------------------------------------------------------------------------ */

const struct param *model_params(struct model *m, int *count) {
    const bool lora = m->train == TRAIN_LORA;
    *count = lora ? m->n_lora_param : m->n_param;
    return lora ? m->lora_param : m->param;
}

void model_params_changed(struct model *m) {
    struct backend *be = m->be;
    m->ts.T = -1; /* activations of the old weights must not meet the new ones in backward */
    const bool base = m->train != TRAIN_LORA || !m->head.packed;
    for (int i = 0; i < m->cfg.L; i++) {
        struct layer *l = &m->layer[i];
        if (base) {
            be->weight_pack(be, &l->wqkv);
            be->weight_pack(be, &l->wo);
            be->weight_pack(be, &l->wgu);
            be->weight_pack(be, &l->wd);
        }
        for (int s = 0; s < LORA_SITES; s++) {
            if (!l->lora[s].a.w) continue;
            be->weight_pack(be, &l->lora[s].a);
            be->weight_pack(be, &l->lora[s].b);
        }
    }
    if (base) be->weight_pack(be, &m->head);
}

enum status model_train_prepare(struct model *m, enum train_what what, struct err *e) {
    if (what == TRAIN_LORA && !m->lw)
        return FAIL(e, ST_INVALID, "training LoRA was asked for, but the model has no LoRA weights");
    const bool full = what == TRAIN_FULL, lora = what == TRAIN_LORA;
    int64_t cap = 0;
    if (full && !m->g) TRY(space_grow(m, &m->g, &cap, m->n_w, "the gradients", e));
    cap = 0;
    if (lora && !m->lg) TRY(space_grow(m, &m->lg, &cap, m->n_lw, "the LoRA gradients", e));
    m->train = what;
    m->ts.T = -1;
    for (int i = 0; i < m->n_param; i++) m->param[i].g = m->g ? m->g + (m->param[i].w - m->w) : NULL;
    for (int i = 0; i < m->n_lora_param; i++) m->lora_param[i].g = m->lg ? m->lg + (m->lora_param[i].w - m->lw) : NULL;
    model_zero_grad(m);
    return ST_OK;
}

void model_zero_grad(struct model *m) {
    if (m->train == TRAIN_FULL) memset(m->g, 0, (size_t)m->n_w * sizeof(float));
    if (m->train == TRAIN_LORA) memset(m->lg, 0, (size_t)m->n_lw * sizeof(float));
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

int64_t memory_available(void) {
    FILE *f = fopen("/proc/meminfo", "r");
    if (!f) return INT64_MAX;
    char line[128];
    long long kb = -1;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lld kB", &kb) == 1) break;
    fclose(f);
    return kb < 0 ? INT64_MAX : kb * 1024;
}

enum status space_grow(struct model *m, float **mem, int64_t *cap, int64_t want, const char *what, struct err *e) {
    if (want <= *cap && *mem) return ST_OK;
    m->be->mem_free(m->be, *mem);
    *mem = NULL;
    *cap = 0;
    const int64_t bytes = want * (int64_t)sizeof(float), have = memory_available();
    if (bytes < have) *mem = m->be->mem_alloc(m->be, (size_t)bytes);
    if (!*mem)
        return FAIL(e, ST_MEMORY, "%s need %.2f GB, of which %.2f GB are free", what, (double)bytes * 1e-9,
                    (double)have * 1e-9);
    *cap = want;
    return ST_OK;
}
