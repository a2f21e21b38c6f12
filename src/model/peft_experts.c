/* Adapters of mixtures in PEFT's files. There a matrix of an expert has tensors of its own, or one pair of tensors acts
 * on all experts of a layer, as PEFT's target_parameters make it. Of the second kind, with R columns an expert:
 *
 *   A [R E, in]    row e R + i is row i of expert e
 *   B [out, R E]   column i E + e is column i of expert e: another order than A's
 *
 * Gate and up are one matrix there, gate over up, and share A. Where they have matrices A of their own, of rank r, the
 * file has both, one under the other: R is 2 r, and B is zero where gate's columns meet up's rows and the other way
 * round. So what is written comes back as it was. A file whose B is not zero there is read with A as that of both. */
#include <math.h>
#include <string.h>

#include "base/str.h"
#include "model/internal.h"

/* What one pair of tensors acts on. */
struct pair_sites {
    int first, n; /* sites [first, first + n) */
};
static const struct pair_sites pairs[] = {{MODULE_GATE, 2}, {MODULE_DOWN, 1}};
enum { PAIRS = 2 };

static bool has_experts(const struct model *m, const struct adapter *ad, int layer, int site) {
    return ad->use[site] && m->cfg.sparse[layer] && adapter_module(&m->cfg, site, layer) != (enum arch_module)site;
}

static const struct lora_site *site_of(const struct adapter *ad, int layer, int site) {
    return &ad->at[layer * LORA_SITES + site];
}

/* PEFT wraps the parameters of a module one around the other: what lies inside has ".base_layer" in its name. */
static void pair_name(const struct model *m, int layer, bool inside, const char *what, struct str *out) {
    CLEANUP_STR struct str name = STR_INIT;
    arch_fused_experts(m->cfg.arch, MODULE_EXPERT_DOWN, layer, &name);
    adapter_outer_name(out);
    str_add(out, name.p, (size_t)(strrchr(name.p, '.') - name.p));
    str_addf(out, "%s.%s", inside ? ".base_layer" : "", what);
}

/* ---- reading ------------------------------------------------------------------------------------------------------*/

struct pair_tensors {
    const struct st_tensor *a, *b; /* NULL: absent */
};

static enum status shape_of_pair(const struct model *m, int layer, const struct pair_tensors *t, int *which,
                                 struct err *e) {
    for (int k = 0; k < PAIRS; k++) {
        int64_t in, out;
        lora_site_dims(&m->cfg, layer, pairs[k].first, &in, &out);
        if (t->a->nd != 2 || t->b->nd != 2 || t->a->dim[1] != in || t->b->dim[0] != pairs[k].n * out) continue;
        if (t->a->dim[0] != t->b->dim[1] || t->a->dim[0] < 1 || t->a->dim[0] % m->cfg.E != 0) continue;
        *which = k;
        return ST_OK;
    }
    return FAIL(e, ST_INVALID,
                "%s: tensors \"%s\" and lora_B beside it: their shapes fit neither gate_up_proj nor down_proj of the "
                "experts",
                t->a->file, t->a->name);
}

static enum status find_pairs(const struct model *m, const struct st_file *f, int layer,
                              struct pair_tensors found[PAIRS], struct err *e) {
    memset(found, 0, PAIRS * sizeof *found);
    for (int inside = 0; inside < 2; inside++) {
        CLEANUP_STR struct str a = STR_INIT, b = STR_INIT;
        pair_name(m, layer, inside, "lora_A.weight", &a);
        pair_name(m, layer, inside, "lora_B.weight", &b);
        const struct pair_tensors t = {st_find(f, a.p), st_find(f, b.p)};
        int which = 0;
        if (!t.a && !t.b) continue;
        if (!t.a || !t.b)
            return FAIL(e, ST_INVALID, "%s: tensor \"%s\" is missing", t.a ? t.a->file : t.b->file, t.a ? b.p : a.p);
        TRY(shape_of_pair(m, layer, &t, &which, e));
        if (found[which].a)
            return FAIL(e, ST_INVALID, "%s: tensor \"%s\" has the shape of \"%s\"", t.a->file, a.p,
                        found[which].a->name);
        found[which] = t;
    }
    return ST_OK;
}

bool fused_experts_in(const struct model *m, const struct st_file *f) {
    for (int i = 0; i < m->cfg.L; i++)
        for (int inside = 0; m->cfg.sparse[i] && inside < 2; inside++) {
            CLEANUP_STR struct str name = STR_INIT;
            pair_name(m, i, inside, "lora_A.weight", &name);
            if (st_find(f, name.p)) return true;
        }
    return false;
}

bool fused_experts_named(const struct model *m, const char *name) {
    const char *inner = adapter_base_name(name);
    const int layer = inner ? arch_layer(m->cfg.arch, inner) : -1;
    if (layer < 0 || layer >= m->cfg.L || !m->cfg.sparse[layer]) return false;
    for (int k = 0; k < 4; k++) {
        CLEANUP_STR struct str own = STR_INIT;
        pair_name(m, layer, k & 1, k & 2 ? "lora_B.weight" : "lora_A.weight", &own);
        if (strcmp(own.p, name) == 0) return true;
    }
    return false;
}

/* *yes true: gate and up have columns of their own in B. */
static enum status apart(const struct model *m, const struct st_tensor *b, bool *yes, struct err *e) {
    const int64_t E = m->cfg.E, F = m->cfg.moe_F, cols = b->dim[1], R = cols / E;
    CLEANUP_FREE float *host = xmalloc((size_t)b->numel * sizeof *host);
    TRY(st_read_f32(b, host, e));
    *yes = R % 2 == 0;
    for (int64_t row = 0; row < 2 * F && *yes; row++) {
        const int64_t other = row < F ? R / 2 : 0; /* its first column of the other */
        for (int64_t c = other * E; c < (other + R / 2) * E; c++) *yes &= host[row * cols + c] == 0;
    }
    return ST_OK;
}

static enum status all_apart(const struct model *m, const struct st_file *f, bool *yes, struct err *e) {
    *yes = true;
    for (int i = 0; i < m->cfg.L && *yes; i++) {
        struct pair_tensors t[PAIRS];
        if (!m->cfg.sparse[i]) continue;
        TRY(find_pairs(m, f, i, t, e));
        if (t[0].b) TRY(apart(m, t[0].b, yes, e));
    }
    return ST_OK;
}

enum status fused_experts_sites(const struct model *m, const struct st_file *f, const json_t *j, bool rslora,
                                const struct lora_site *usual, bool *use, struct lora_site *at, struct err *e) {
    bool two = false;
    if (!rslora) TRY(all_apart(m, f, &two, e));
    for (int i = 0; i < m->cfg.L; i++) {
        struct pair_tensors t[PAIRS];
        if (!m->cfg.sparse[i]) continue;
        TRY(find_pairs(m, f, i, t, e));
        for (int k = 0; k < PAIRS; k++) {
            CLEANUP_STR struct str module = STR_INIT;
            struct lora_site s = *usual;
            if (!t[k].a) continue;
            arch_fused_experts(m->cfg.arch, adapter_module(&m->cfg, pairs[k].first, i), i, &module);
            TRY(peft_site(j, module.p, &s, e));
            const int64_t R = t[k].a->dim[0] / m->cfg.E;
            if (s.rank != R)
                return FAIL(e, ST_INVALID, "%s: tensor \"%s\" is of rank %lld, and r or rank_pattern says %d",
                            t[k].a->file, t[k].a->name, (long long)R, s.rank);
            const int half = pairs[k].n == 2 && two ? 2 : 1;
            for (int site = pairs[k].first; site < pairs[k].first + pairs[k].n; site++) {
                use[site] = true;
                at[i * LORA_SITES + site] = (struct lora_site){s.rank / half, s.alpha / (float)half};
            }
        }
    }
    return ST_OK;
}

/* The first of a site's parameters in ad->param: those of its experts follow, A and B in turn. */
static const struct param *params_at(const struct model *m, const struct adapter *ad, int layer, int site) {
    const struct param *p = ad->param;
    for (int i = 0; i <= layer; i++)
        for (int s = 0; s < LORA_SITES && (i < layer || s < site); s++)
            if (ad->use[s] && s != MODULE_HEAD) p += 2 * (has_experts(m, ad, i, s) ? m->cfg.E : 1);
    return p;
}

/* One site of a pair: its experts' matrices from the pair's values. */
static void put_site(struct model *m, const struct adapter *ad, int layer, int site, const struct pair_sites *of,
                     const struct st_tensor *t, const float *values, bool b) {
    const int64_t E = m->cfg.E, r = site_of(ad, layer, site)->rank, R = (b ? t->dim[1] : t->dim[0]) / E;
    const int64_t part = site - of->first, first = R > r ? part * r : 0; /* the site's columns among those R */
    const struct param *p = params_at(m, ad, layer, site);
    CLEANUP_FREE float *own = b ? xmalloc((size_t)p[1].n * sizeof *own) : NULL;
    for (int64_t x = 0; x < E; x++) {
        if (!b) {
            model_param_put(m, &p[2 * x], values + (x * R + first) * t->dim[1]);
            continue;
        }
        for (int64_t o = 0; o < p[1].dim[0]; o++)
            for (int64_t i = 0; i < r; i++)
                own[o * r + i] = values[(part * p[1].dim[0] + o) * R * E + (first + i) * E + x];
        model_param_put(m, &p[2 * x + 1], own);
    }
}

static enum status read_pair(struct model *m, const struct adapter *ad, int layer, const struct pair_sites *of,
                             const struct pair_tensors *t, struct err *e) {
    const int64_t r = site_of(ad, layer, of->first)->rank, R = t->a->dim[0] / m->cfg.E;
    if (R != r && R != of->n * r)
        return FAIL(e, ST_INVALID, "%s: tensor \"%s\" is of rank %lld, expected %lld", t->a->file, t->a->name,
                    (long long)R, (long long)(of->n * r));
    for (int b = 0; b < 2; b++) {
        const struct st_tensor *from = b ? t->b : t->a;
        CLEANUP_FREE float *values = xmalloc((size_t)from->numel * sizeof *values);
        TRY(st_check_finite(from, e));
        TRY(st_read_f32(from, values, e));
        for (int s = of->first; s < of->first + of->n; s++) put_site(m, ad, layer, s, of, from, values, b);
        TRY(m->be->sync(m->be, e));
    }
    return ST_OK;
}

enum status fused_experts_read(struct model *m, const struct st_file *f, const struct adapter *ad, struct err *e) {
    const struct param *p = ad->param, *end = ad->param + ad->n_param;
    for (int i = 0; i <= m->cfg.L; i++) {
        struct pair_tensors t[PAIRS];
        if (i < m->cfg.L && m->cfg.sparse[i]) TRY(find_pairs(m, f, i, t, e));
        for (int s = 0; s < LORA_SITES; s++) {
            if (!ad->use[s] || (i == m->cfg.L) != (s == MODULE_HEAD)) continue;
            if (i == m->cfg.L || !has_experts(m, ad, i, s)) {
                TRY(params_read(m, p, 2, f, e));
                p += 2;
                continue;
            }
            p += 2 * m->cfg.E;
            const int k = s == MODULE_DOWN;
            if (!t[k].a)
                return FAIL(e, ST_INVALID, "%s: experts of layer %d have no tensors, and others have",
                            f->tensor[0].file, i);
            if (s == pairs[k].first) TRY(read_pair(m, ad, i, &pairs[k], &t[k], e));
        }
    }
    ASSERT(p == end);
    return ST_OK;
}

/* ---- writing ------------------------------------------------------------------------------------------------------*/

bool fused_experts_fit(const struct model *m, const struct adapter *ad) {
    for (int i = 0; i < m->cfg.L; i++) {
        if (!m->cfg.sparse[i]) continue;
        const struct lora_site *gate = site_of(ad, i, MODULE_GATE), *up = site_of(ad, i, MODULE_UP);
        if (ad->use[MODULE_GATE] != ad->use[MODULE_UP]) return false;
        if (ad->use[MODULE_GATE] && (gate->rank != up->rank || gate->alpha != up->alpha)) return false;
        if (ad->rslora && (ad->use[MODULE_GATE] || ad->use[MODULE_DOWN])) return false; /* sqrt(2 r) would round */
    }
    return true;
}

struct tensor_out {
    const struct param *p; /* of a pair: the first of its first site */
    int parts;             /* sites of a pair; 0: it is the parameter as it is */
    bool b;
};
struct fetch {
    const struct model *m;
    const struct tensor_out *t;
    float *whole, *own;
};

/* parts[0]: A or B of expert 0 in the pair's first site; the second site's lie behind those of all experts. */
static enum status fetch_tensor(void *ctx, size_t i, const void **data, struct err *e) {
    struct fetch *x = ctx;
    const struct tensor_out *t = &x->t[i];
    const int64_t E = x->m->cfg.E;
    *data = x->whole;
    if (t->parts == 0) {
        model_param_get(x->m, t->p, x->whole);
        return x->m->be->sync(x->m->be, e);
    }
    const int64_t r = t->p[0].dim[0], in = t->p[0].dim[1], out = t->p[1].dim[0], R = t->parts * r;
    if (t->b) memset(x->whole, 0, (size_t)(t->parts * out * R * E) * sizeof(float));
    for (int64_t part = 0; part < t->parts; part++)
        for (int64_t k = 0; k < E; k++) {
            const struct param *p = t->p + 2 * (part * E + k);
            if (!t->b) {
                model_param_get(x->m, &p[0], x->whole + (k * R + part * r) * in);
                continue;
            }
            model_param_get(x->m, &p[1], x->own);
            TRY(x->m->be->sync(x->m->be, e));
            for (int64_t o = 0; o < out; o++)
                for (int64_t c = 0; c < r; c++)
                    x->whole[(part * out + o) * R * E + (part * r + c) * E + k] = x->own[o * r + c];
        }
    return x->m->be->sync(x->m->be, e);
}

/* Lists a layer's tensors; returns their number. */
static int list_layer(const struct model *m, const struct adapter *ad, int layer, struct arena *names,
                      struct st_entry *en, struct tensor_out *t) {
    int n = 0;
    for (int s = 0; s < LORA_SITES; s++) {
        if (!ad->use[s] || (layer == m->cfg.L) != (s == MODULE_HEAD)) continue;
        const bool fused = layer < m->cfg.L && has_experts(m, ad, layer, s);
        if (fused && s == MODULE_UP) continue; /* it is gate's second part */
        const int parts = !fused ? 0 : pairs[s == MODULE_DOWN].n;
        const struct param *p = params_at(m, ad, layer, s);
        for (int b = 0; b < 2; b++, n++) {
            CLEANUP_STR struct str name = STR_INIT;
            const bool inside = s == MODULE_GATE && ad->use[MODULE_DOWN];
            const int64_t R = fused ? parts * p[0].dim[0] * m->cfg.E : 0;
            t[n] = (struct tensor_out){fused ? p : p + b, parts, b};
            en[n] = (struct st_entry){.name = p[b].name,
                                      .dtype = ST_DTYPE_F32,
                                      .from = ST_DTYPE_F32,
                                      .nd = 2,
                                      .dim = {p[b].dim[0], p[b].dim[1]}};
            if (!fused) continue;
            pair_name(m, layer, inside, b ? "lora_B.weight" : "lora_A.weight", &name);
            en[n].name = arena_strdup(names, name.p);
            en[n].dim[0] = b ? parts * p[1].dim[0] : R;
            en[n].dim[1] = b ? R : p[0].dim[1];
        }
    }
    return n;
}

enum status fused_experts_write(const struct model *m, const struct adapter *ad, const char *const *metadata,
                                const char *path, struct err *e) {
    const int64_t most = 2 * (int64_t)LORA_SITES * (m->cfg.L + 1);
    CLEANUP_FREE struct st_entry *en = xcalloc((size_t)most, sizeof *en);
    CLEANUP_FREE struct tensor_out *t = xcalloc((size_t)most, sizeof *t);
    struct arena names = {0};
    int64_t n = 0, largest = 1, own = 1;
    for (int i = 0; i <= m->cfg.L; i++) n += list_layer(m, ad, i, &names, en + n, t + n);
    for (int64_t i = 0; i < n; i++) largest = i64_max(largest, en[i].dim[0] * en[i].dim[1]);
    for (int i = 0; i < ad->n_param; i++) own = i64_max(own, ad->param[i].n);
    CLEANUP_FREE float *whole = xmalloc((size_t)largest * sizeof *whole), *one = xmalloc((size_t)own * sizeof *one);
    struct fetch x = {m, t, whole, one};
    const enum status st = st_write_fetched(path, en, (size_t)n, metadata, fetch_tensor, &x, e);
    arena_free(&names);
    return st;
}

/* ---- ranks in adapter_config.json ---------------------------------------------------------------------------------*/

/* A regular expression of PEFT's for the modules of a site: in a layer, or in all where layer is -1. */
static void pattern_key(const struct model *m, int layer, int site, bool fused, struct str *out) {
    CLEANUP_STR struct str name = STR_INIT;
    const char *module = m->cfg.arch->module[MODULE_EXPERT_GATE + (site - MODULE_GATE)];
    arch_fused_experts(m->cfg.arch, (enum arch_module)(MODULE_EXPERT_GATE + (site - MODULE_GATE)),
                       layer < 0 ? 0 : layer, &name);
    const char *from = layer < 0 ? name.p + strcspn(module, "*") + strlen("0.") : name.p, *last = strrchr(from, '.');
    for (const char *c = from; *c && (fused || c <= last); c++) str_addf(out, "%s%c", *c == '.' ? "\\" : "", *c);
    if (!fused) str_addf(out, "\\d+\\.%s", arch_short_name(m->cfg.arch, (enum arch_module)site));
}

static void say_site(const struct model *m, const struct adapter *ad, int layer, int site, json_t *rank,
                     json_t *alpha) {
    const struct lora_site *at = site_of(ad, layer < 0 ? 0 : layer, site);
    for (int i = 0; layer < 0 && i < m->cfg.L; i++)
        if (m->cfg.sparse[i]) at = site_of(ad, i, site);
    for (int fused = 0; fused < 2; fused++) {
        CLEANUP_STR struct str key = STR_INIT;
        if (fused && site == MODULE_UP) continue;
        const int parts = fused ? pairs[site == MODULE_DOWN].n : 1;
        pattern_key(m, layer, site, fused, &key);
        json_object_set_new(rank, key.p, json_integer((int64_t)parts * at->rank));
        json_object_set_new(alpha, key.p,
                            json_real((double)at->alpha * (ad->rslora ? sqrt((double)parts) : (double)parts)));
    }
}

/* True: each site has one rank and alpha in all mixtures. *usual true: these are those of all modules. */
static bool sites_alike(const struct model *m, const struct adapter *ad, bool *usual) {
    bool alike = true;
    *usual = true;
    for (int s = MODULE_GATE; s < N_PROJECTIONS; s++) {
        const struct lora_site *first = NULL;
        for (int i = 0; i < m->cfg.L; i++) {
            if (!has_experts(m, ad, i, s)) continue;
            const struct lora_site *at = site_of(ad, i, s);
            if (!first) first = at;
            alike &= at->rank == first->rank && at->alpha == first->alpha;
            *usual &= at->rank == ad->rank && at->alpha == ad->alpha;
        }
    }
    return alike;
}

/* Ours in front of those that were loaded: the first that fits counts. */
static void put_patterns(json_t *j, const char *key, json_t *ours) {
    json_t *loaded = json_object_get(j, key);
    if (json_is_object(loaded)) json_object_update_missing(ours, loaded);
    json_object_set_new(j, key, ours);
}

void fused_experts_patterns(const struct model *m, const struct adapter *ad, bool fused, json_t *j) {
    bool usual;
    const bool alike = sites_alike(m, ad, &usual);
    json_t *rank = json_object(), *alpha = json_object();
    for (int s = MODULE_GATE; s < N_PROJECTIONS; s++)
        for (int i = alike ? -1 : 0; i < (alike ? 0 : m->cfg.L); i++)
            if (ad->use[s] && (alike || has_experts(m, ad, i, s))) say_site(m, ad, i, s, rank, alpha);
    if (adapter_expert_rank(m, ad) > 0 && (fused || !usual)) {
        put_patterns(j, "rank_pattern", json_incref(rank));
        put_patterns(j, "alpha_pattern", json_incref(alpha));
    }
    json_decref(rank);
    json_decref(alpha);
}

void fused_experts_targets(const struct model *m, const struct adapter *ad, bool fused, json_t *j) {
    json_t *list = json_array();
    for (int k = 0; k < PAIRS; k++) {
        CLEANUP_STR struct str name = STR_INIT;
        const int site = pairs[k].first;
        if (!fused || !ad->use[site]) continue;
        arch_fused_experts(m->cfg.arch, (enum arch_module)(MODULE_EXPERT_GATE + (site - MODULE_GATE)), 0, &name);
        const char *dot = strchr(name.p + strcspn(m->cfg.arch->module[MODULE_EXPERT_GATE], "*"), '.');
        json_array_append_new(list, json_string(dot + 1)); /* "mlp.experts.gate_up_proj" */
    }
    if (json_array_size(list) > 0)
        json_object_set(j, "target_parameters", list);
    else if (json_object_get(j, "target_parameters"))
        json_object_set_new(j, "target_parameters", json_null());
    json_decref(list);
}
