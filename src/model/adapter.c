/* Adapters: what they are made of, and the table of those that a model has. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/str.h"
#include "model/internal.h"

static const char peft_outer[] = "base_model.model."; /* what PEFT puts in front of the base's names */

enum arch_module adapter_module(const struct model_config *c, int site, int layer) {
    const bool experts = site >= MODULE_GATE && site < N_PROJECTIONS && c->sparse[layer];
    return (enum arch_module)(experts ? MODULE_EXPERT_GATE + (site - MODULE_GATE) : site);
}

void adapter_tensor(const struct model_config *c, int site, int layer, int64_t expert, const char *what,
                    struct str *out) {
    str_adds(out, peft_outer);
    arch_expert_tensor(c->arch, adapter_module(c, site, layer), layer, expert, what, out);
}

const char *adapter_base_name(const char *tensor) {
    return str_has_prefix(tensor, peft_outer) ? tensor + strlen(peft_outer) : NULL;
}

void adapter_outer_name(struct str *out) { str_adds(out, peft_outer); }

/* ---- one adapter --------------------------------------------------------------------------------------------------*/

static bool is_part(int site, unsigned parts) {
    if (site == MODULE_HEAD) return parts & ADAPTER_HEAD;
    return parts & (site <= MODULE_O ? ADAPTER_ATTENTION : ADAPTER_MLP);
}

static unsigned parts_of(const struct adapter *ad) {
    unsigned parts = 0;
    for (int s = 0; s < LORA_SITES; s++)
        if (ad->use[s]) parts |= s == MODULE_HEAD ? ADAPTER_HEAD : s <= MODULE_O ? ADAPTER_ATTENTION : ADAPTER_MLP;
    return parts;
}

/* The places in adapter.layer that have an input. */
static bool input_is_in(const struct model *m, int layer, enum lora_input input) {
    return (layer == m->cfg.L) == (input == LORA_OF_HN);
}

enum { LORA_A, LORA_B, LORA_MATRICES };

/* The name of a matrix, which is the same in all adapters: made once, and the model's. */
static const char *matrix_name(struct model *m, int layer, int site, int64_t expert, int matrix) {
    static const char *const what[LORA_MATRICES] = {[LORA_A] = "lora_A.weight", [LORA_B] = "lora_B.weight"};
    const int64_t copies = i64_max(1, m->cfg.E);
    if (!m->lora_name)
        m->lora_name = arena_array(&m->names, const char *, (m->cfg.L + 1) * LORA_SITES * copies * LORA_MATRICES);
    const char **name =
        &m->lora_name[(((int64_t)layer * LORA_SITES + site) * copies + expert) * LORA_MATRICES + matrix];
    if (!*name) {
        CLEANUP_STR struct str s = STR_INIT;
        adapter_tensor(&m->cfg, site, layer, expert, what[matrix], &s);
        *name = arena_strdup(&m->names, s.p);
    }
    return *name;
}

/* As the next parameter. */
static void list_matrix(struct model *m, struct adapter *ad, const struct weight *w, int layer, int site,
                        int64_t expert, int matrix) {
    ad->param[ad->n_param++] = (struct param){
        .name = matrix_name(m, layer, site, expert, matrix), .w = w->w, .n = w->N * w->K, .nd = 2, .dim = {w->N, w->K}};
}

static const struct lora_site *site_of(const struct adapter *ad, int layer, int site) {
    return &ad->at[layer * LORA_SITES + site];
}

static float scale_of(const struct adapter *ad, const struct lora_site *at) {
    return ad->rslora ? at->alpha / sqrtf((float)at->rank) : at->alpha / (float)at->rank;
}

/* Puts the sites of an input that are alike into one group; returns the number of groups. */
static int group_sites(const struct adapter *ad, int layer, enum lora_input input,
                       struct lora_group group[LORA_SITES_MAX]) {
    int n = 0;
    for (int s = lora_first[input]; s < lora_first[input + 1]; s++) {
        const struct lora_site *at = site_of(ad, layer, s);
        const float scale = scale_of(ad, at);
        int k = 0;
        if (!ad->use[s]) continue;
        while (k < n && (group[k].rank != at->rank || group[k].scale != scale)) k++;
        if (k == n) group[n++] = (struct lora_group){.rank = at->rank, .scale = scale};
        group[k].sites |= 1u << s;
    }
    return n;
}

/* The rows of a site's A among those of its group, of an expert. */
static struct weight a_of_site(const struct lora_group *g, int site, int64_t expert) {
    const int before = __builtin_popcount(g->sites & ((1u << site) - 1));
    const struct weight *a = &g->a[expert];
    return (struct weight){.w = a->w + (int64_t)before * g->rank * a->K, .N = g->rank, .K = a->K};
}

/* Matrices [N,K] out of the slab, one behind the other, and where they are: views in ad->weight. A slab without memory
 * only counts. */
static struct weight *carve_matrices(const struct model *m, struct adapter *ad, struct carve *slab, int64_t copies,
                                     int64_t N, int64_t K) {
    struct weight *w = slab->base ? ad->weight + ad->n_weights : NULL;
    for (int64_t e = 0; e < copies; e++) {
        float *at = carve(slab, N * K);
        if (w) w[e] = (struct weight){.w = at, .N = N, .K = K, .dt = m->act};
    }
    ad->n_weights += copies;
    return w;
}

/* Hands the matrices of an input's sites out of the slab and lists them as parameters; a slab without memory only
 * counts. */
static void carve_input(struct model *m, struct adapter *ad, struct carve *slab, int layer, enum lora_input input) {
    struct lora_group group[LORA_SITES_MAX];
    struct lora *l = slab->base ? &ad->layer[layer] : NULL;
    const int64_t copies = lora_copies(&m->cfg, layer, input);
    const int n = group_sites(ad, layer, input, group);
    int64_t in = 0, out;
    lora_site_dims(&m->cfg, layer, lora_first[input], &in, &out);
    for (int k = 0; k < n; k++) {
        const int64_t rows = (int64_t)__builtin_popcount(group[k].sites) * group[k].rank;
        group[k].a = carve_matrices(m, ad, slab, copies, rows, in);
        if (l) l->group[lora_first[input] + k] = group[k];
    }
    if (l) l->layer = layer;
    if (l) l->groups[input] = n;
    for (int s = lora_first[input]; s < lora_first[input + 1]; s++) {
        if (!ad->use[s]) continue;
        int k = 0;
        lora_site_dims(&m->cfg, layer, s, &in, &out);
        struct weight *b = carve_matrices(m, ad, slab, copies, out, site_of(ad, layer, s)->rank);
        if (!l) {
            ad->n_param += LORA_MATRICES * (int)copies;
            continue;
        }
        while (!(group[k].sites >> s & 1)) k++;
        l->b[s] = b;
        for (int64_t e = 0; e < copies; e++) {
            const struct weight a = a_of_site(&group[k], s, e);
            list_matrix(m, ad, &a, layer, s, e, LORA_A);
            list_matrix(m, ad, &b[e], layer, s, e, LORA_B);
        }
    }
}

static void carve_all(struct model *m, struct adapter *ad, struct carve *slab) {
    ad->n_weights = 0;
    ad->n_param = 0;
    for (int i = 0; i <= m->cfg.L; i++)
        for (int g = 0; g < LORA_INPUTS; g++)
            if (input_is_in(m, i, (enum lora_input)g)) carve_input(m, ad, slab, i, (enum lora_input)g);
}

/* A slab of zeros for its weights, and the lists of them, which are views of it. */
static enum status take_memory(struct model *m, struct adapter *ad, struct err *e) {
    int64_t cap = 0;
    ad->layer = xcalloc((size_t)m->cfg.L + 1, sizeof *ad->layer);
    ad->param = xcalloc((size_t)ad->n_param + 1, sizeof *ad->param);
    ad->weight = xcalloc((size_t)ad->n_weights + 1, sizeof *ad->weight);
    TRY(space_grow(m, &ad->w, &cap, ad->n_w, "the LoRA weights", e));
    m->be->mem_zero(m->be, ad->w, (size_t)ad->n_w * sizeof(float));
    struct carve slab = {.base = ad->w};
    carve_all(m, ad, &slab);
    ad->rest_bytes = rest_bytes(ad->param, ad->n_param);
    return ST_OK;
}

/* What is left takes some 100 bytes for each layer: a server has thousands of adapters at rest. */
static void give_memory(struct model *m, struct adapter *ad) {
    for (int64_t i = 0; ad->w && i < ad->n_weights; i++) m->be->weight_free(m->be, &ad->weight[i]);
    m->be->mem_free(m->be, ad->w);
    free(ad->layer);
    free(ad->param);
    free(ad->weight);
    ad->w = NULL;
    ad->layer = NULL;
    ad->param = NULL;
    ad->weight = NULL;
}

static enum status check_site(const struct lora_site *s, struct err *e) {
    if (s->rank < 1 || s->rank > 4096) return FAIL(e, ST_INVALID, "LoRA rank: expected 1..4096, got %d", s->rank);
    if (s->alpha > 0 && isfinite(s->alpha)) return ST_OK;
    return FAIL(e, ST_INVALID, "LoRA alpha: expected a number > 0, got %g", (double)s->alpha);
}

static bool is_of_expert(const struct model_config *c, int layer, int site) {
    return layer < c->L && adapter_module(c, site, layer) != (enum arch_module)site;
}

/* The rank and alpha of every site, and the largest rank of those in use. */
static void set_sites(const struct model *m, const struct adapter_spec *s, struct adapter *ad) {
    const int n = (m->cfg.L + 1) * (int)LORA_SITES;
    ad->at = xcalloc((size_t)n, sizeof *ad->at);
    for (int i = 0; i < n; i++) {
        ad->at[i] = s->at ? s->at[i] : (struct lora_site){s->rank, s->alpha};
        const int layer = i / (int)LORA_SITES, site = i % (int)LORA_SITES;
        const bool there = (layer == m->cfg.L) == (site == MODULE_HEAD) && s->use[site];
        const int columns = ad->at[i].rank * (there && is_of_expert(&m->cfg, layer, site) ? m->cfg.top_k : 1);
        if (there && columns > ad->widest) ad->widest = columns;
    }
}

enum status adapter_new(struct model *m, const struct adapter_spec *s, struct adapter **out, struct err *e) {
    const int64_t places = m->cfg.L + 1;
    TRY(check_site(&(struct lora_site){s->rank, s->alpha}, e));
    for (int64_t i = 0; s->at && i < places * LORA_SITES; i++) TRY(check_site(&s->at[i], e));
    struct adapter *ad = xcalloc(1, sizeof *ad);
    *ad = (struct adapter){.rank = s->rank, .alpha = s->alpha, .rslora = s->rslora};
    set_sites(m, s, ad);
    for (int i = 0; i < LORA_SITES; i++) ad->use[i] = s->use[i];
    struct carve slab = {0};
    carve_all(m, ad, &slab); /* counts */
    ad->n_w = slab.used;
    const enum status st = take_memory(m, ad, e);
    if (st != ST_OK) {
        adapter_free(m, ad);
        return st;
    }
    *out = ad;
    return ST_OK;
}

static void release(struct model *m, struct adapter *ad) {
    if (!ad->g) return;
    m->be->mem_free(m->be, ad->g);
    ad->g = NULL;
    for (int i = 0; i < ad->n_param; i++) ad->param[i].g = NULL;
    m->n_prepared--;
    m->ts.T = -1;
}

void adapter_free(struct model *m, struct adapter *ad) {
    if (!ad) return;
    release(m, ad);
    give_memory(m, ad);
    rest_free(ad->resting);
    free(ad->at);
    json_decref(ad->peft);
    free(ad);
}

/* Float32 values that are multiplied as they lie have no packed copy. */
static int64_t packed_bytes(const struct weight *w) {
    if (!w->packed || w->packed == w->w) return 0;
    return w->N * w->K * (w->dt == DT_BF16 ? 2 : 4);
}

static void pack(struct model *m, struct adapter *ad, struct weight *const *w, int n) {
    fused_weights_pack(m->be, w, n);
    for (int i = 0; i < n; i++) ad->bytes += packed_bytes(w[i]);
}

static void pack_all(struct model *m, struct adapter *ad) {
    enum { AT_ONCE = 64 };
    struct weight *w[AT_ONCE] = {0};
    int n = 0;
    ad->bytes = ad->n_w * (int64_t)sizeof(float);
    for (int64_t i = 0; i < ad->n_weights; i++) {
        w[n++] = &ad->weight[i];
        if (n < AT_ONCE) continue;
        pack(m, ad, w, n);
        n = 0;
    }
    pack(m, ad, w, n);
}

void adapter_pack(struct model *m, struct adapter *ad) {
    pack_all(m, ad);
    ad->stamp = ++m->stamps;
    m->ts.T = -1; /* activations of the old weights must not meet the new ones in backward */
}

/* ---- the table ----------------------------------------------------------------------------------------------------*/

struct adapter *adapter_of(const struct model *m, int index) {
    return index >= 0 && index < m->n_adapters ? m->adapter[index] : NULL;
}

bool model_adapter_there(const struct model *m, int index) {
    return index == ADAPTER_OWN || index == ADAPTER_BASE || adapter_of(m, index);
}

int model_adapter_count(const struct model *m) { return m->n_adapters > 1 ? m->n_adapters : 1; }

enum status adapter_use(const struct model *m, int index, struct err *e) {
    struct adapter *ad = adapter_of(m, index);
    if (!model_adapter_there(m, index)) return FAIL(e, ST_INVALID, "there is no adapter %d", index);
    if (ad && ad->resting) return FAIL(e, ST_INVALID, "adapter %d is at rest (model_adapter_wake)", index);
    if (ad) ad->used = m->passes;
    return ST_OK;
}

enum status adapter_awake(const struct model *m, int index, struct adapter **out, struct err *e) {
    *out = adapter_of(m, index);
    if (!*out) return FAIL(e, ST_INVALID, "there is no adapter %d", index);
    if ((*out)->resting) return FAIL(e, ST_INVALID, "adapter %d is at rest (model_adapter_wake)", index);
    return ST_OK;
}

int32_t adapter_stamp(const struct model *m, int index) {
    const struct adapter *ad = adapter_of(m, index);
    return ad ? ad->stamp : 0;
}

static void put(struct model *m, int index, struct adapter *ad) {
    if (index >= m->cap_adapters) {
        const int cap = index + 1 > 2 * m->cap_adapters ? index + 1 : 2 * m->cap_adapters;
        m->adapter = xrealloc(m->adapter, (size_t)cap * sizeof(struct adapter *));
        m->cap_adapters = cap;
    }
    while (m->n_adapters <= index) m->adapter[m->n_adapters++] = NULL;
    m->adapter[index] = ad;
    if (!ad) return;
    ad->used = m->passes;
    m->n_heads += has_head(ad);
    if (ad->widest > m->widest) m->widest = ad->widest;
}

/* Takes one out of the table, and returns it. */
static struct adapter *take(struct model *m, int index) {
    struct adapter *ad = adapter_of(m, index);
    if (!ad) return NULL;
    m->adapter[index] = NULL;
    m->n_heads -= has_head(ad);
    m->widest = 0;
    for (int i = 0; i < m->n_adapters; i++)
        if (m->adapter[i] && m->adapter[i]->widest > m->widest) m->widest = m->adapter[i]->widest;
    m->ts.T = -1; /* the last batch may have gone through it */
    return ad;
}

int adapter_add(struct model *m, struct adapter *ad) {
    const int index = model_adapter_count(m);
    put(m, index, ad);
    return index;
}

void adapter_put_own(struct model *m, struct adapter *ad) {
    adapter_free(m, take(m, ADAPTER_OWN));
    if (ad) put(m, ADAPTER_OWN, ad);
}

void model_adapter_drop(struct model *m, int index) {
    ASSERT(index > ADAPTER_OWN && adapter_of(m, index));
    adapter_free(m, take(m, index));
}

int model_adapter_keep(struct model *m) {
    struct adapter *own = take(m, ADAPTER_OWN);
    ASSERT(own);
    release(m, own);
    model_params_changed(m); /* the own one's rows are the base's from here on */
    return adapter_add(m, own);
}

void adapters_free(struct model *m) {
    for (int i = 0; i < m->n_adapters; i++) adapter_free(m, m->adapter[i]);
    free(m->adapter);
}

int adapter_expert_rank(const struct model *m, const struct adapter *ad) {
    for (int i = 0; i < m->cfg.L; i++)
        for (int s = MODULE_GATE; s < N_PROJECTIONS; s++)
            if (ad->use[s] && is_of_expert(&m->cfg, i, s)) return site_of(ad, i, s)->rank;
    return 0;
}

bool model_adapter_info(const struct model *m, int index, struct adapter_info *out) {
    const struct adapter *ad = adapter_of(m, index);
    *out = (struct adapter_info){0};
    if (!ad) return false;
    *out = (struct adapter_info){.shape = {ad->rank, ad->alpha, parts_of(ad), adapter_expert_rank(m, ad)},
                                 .prepared = ad->g,
                                 .bytes = ad->bytes,
                                 .rest_bytes = ad->rest_bytes,
                                 .used = ad->used};
    if (ad->resting) out->place = rest_path(ad->resting) ? ADAPTER_IN_FILE : ADAPTER_IN_MEMORY;
    return true;
}

/* ---- new ones -----------------------------------------------------------------------------------------------------*/

/* Kaiming uniform with a = sqrt(5), as PEFT does. */
static void draw_a(struct model *m, const struct param *p, struct rng r) {
    const double bound = 1.0 / sqrt((double)p->dim[1]);
    CLEANUP_FREE float *host = xmalloc((size_t)p->n * sizeof *host);
    for (int64_t j = 0; j < p->n; j++) host[j] = (float)((2.0 * rng_next_f64(&r) - 1.0) * bound);
    model_param_put(m, p, host);
}

/* Every A; every B stays zero, so the model starts unchanged. The parameters are listed by layer, site and expert. */
static void draw_all(struct model *m, const struct adapter *ad, uint64_t seed) {
    const struct param *p = ad->param;
    for (int i = 0; i <= m->cfg.L; i++)
        for (int s = 0; s < LORA_SITES; s++)
            if (ad->use[s] && (i == m->cfg.L) == (s == MODULE_HEAD)) {
                const uint64_t stream = (uint64_t)(2 * (N_PROJECTIONS * i + (s == MODULE_HEAD ? 0 : s)));
                const int64_t copies = is_of_expert(&m->cfg, i, s) ? m->cfg.E : 1;
                for (int64_t e = 0; e < copies; e++, p += 2) draw_a(m, p, rng_make(seed, stream | (uint64_t)e << 32));
            }
    ASSERT(p == ad->param + ad->n_param);
}

/* Experts have a rank of their own, and the scale of all sites. */
static struct lora_site *sites_for(const struct model *m, const struct adapter_shape *s) {
    const int n = (m->cfg.L + 1) * (int)LORA_SITES;
    struct lora_site *at = xmalloc((size_t)n * sizeof *at);
    const int rank = s->expert_rank > 0 ? s->expert_rank : (int)i64_max(1, s->rank / i64_max(1, m->cfg.top_k));
    for (int i = 0; i < n; i++) {
        const bool expert = is_of_expert(&m->cfg, i / (int)LORA_SITES, i % (int)LORA_SITES);
        at[i] = (struct lora_site){s->rank, s->alpha};
        if (expert) at[i] = (struct lora_site){rank, s->alpha * (float)rank / (float)s->rank};
    }
    return at;
}

static enum status create(struct model *m, const struct adapter_shape *s, uint64_t seed, struct adapter **out,
                          struct err *e) {
    unsigned parts = s->parts ? s->parts : ADAPTER_LAYERS;
    struct adapter_spec spec = {.rank = s->rank, .alpha = s->alpha};
    if (parts & ~(unsigned)(ADAPTER_LAYERS | ADAPTER_HEAD))
        return FAIL(e, ST_INVALID, "LoRA parts: expected attention (1), mlp (2), head (4) or a sum, got %u", parts);
    if (s->expert_rank != 0 && m->cfg.E == 0)
        return FAIL(e, ST_INVALID, "LoRA rank of experts: expected 0, since the model has none, got %d",
                    s->expert_rank);
    if (s->expert_rank < 0) parts &= ~(unsigned)ADAPTER_MLP;
    for (int i = 0; i < LORA_SITES; i++) spec.use[i] = is_part(i, parts);
    TRY(check_site(&(struct lora_site){s->rank, s->alpha}, e));
    CLEANUP_FREE struct lora_site *at = sites_for(m, s);
    spec.at = at;
    TRY(adapter_new(m, &spec, out, e));
    if (!m->empty) draw_all(m, *out, seed);
    return ST_OK;
}

enum status model_adapter_create(struct model *m, const struct adapter_shape *s, uint64_t seed, int *index,
                                 struct err *e) {
    struct adapter *ad;
    TRY(create(m, s, seed, &ad, e));
    adapter_pack(m, ad);
    *index = adapter_add(m, ad);
    return m->be->sync(m->be, e);
}

enum status model_lora_create(struct model *m, const struct adapter_shape *s, uint64_t seed, struct err *e) {
    struct adapter *ad;
    adapter_put_own(m, NULL);
    TRY(create(m, s, seed, &ad, e));
    adapter_put_own(m, ad);
    model_params_changed(m);
    return ST_OK;
}

enum status model_lora_init(struct model *m, int rank, float alpha, uint64_t seed, struct err *e) {
    return model_lora_create(m, &(struct adapter_shape){.rank = rank, .alpha = alpha}, seed, e);
}

enum status model_adapter_copy(struct model *m, int from, int *index, struct err *e) {
    struct adapter *of, *ad;
    TRY(adapter_awake(m, from, &of, e));
    struct adapter_spec spec = {.rank = of->rank, .alpha = of->alpha, .at = of->at, .rslora = of->rslora};
    for (int i = 0; i < LORA_SITES; i++) spec.use[i] = of->use[i];
    TRY(adapter_new(m, &spec, &ad, e));
    ASSERT(ad->n_w == of->n_w);
    m->be->mem_copy(m->be, ad->w, of->w, (size_t)of->n_w * sizeof(float));
    ad->peft = json_incref(of->peft);
    ad->fused = of->fused;
    adapter_pack(m, ad);
    *index = adapter_add(m, ad);
    return m->be->sync(m->be, e);
}

/* ---- training -----------------------------------------------------------------------------------------------------*/

enum status model_adapter_prepare(struct model *m, int index, struct err *e) {
    struct adapter *ad;
    int64_t cap = 0;
    TRY(adapter_awake(m, index, &ad, e));
    m->ts.T = -1;
    if (!ad->g) {
        TRY(space_grow(m, &ad->g, &cap, ad->n_w, "the LoRA gradients", e));
        m->n_prepared++;
        for (int i = 0; i < ad->n_param; i++) ad->param[i].g = ad->g + (ad->param[i].w - ad->w);
    }
    m->be->mem_zero(m->be, ad->g, (size_t)ad->n_w * sizeof(float));
    return ST_OK;
}

void model_adapter_release(struct model *m, int index) {
    struct adapter *ad = adapter_of(m, index);
    if (ad) release(m, ad);
}

struct train_set model_train_set(const struct model *m, int adapter) {
    const struct adapter *ad = adapter_of(m, adapter);
    if (ad && ad->g) return (struct train_set){.param = ad->param, .n = ad->n_param, .g = ad->g, .n_g = ad->n_w};
    return (struct train_set){
        .param = m->param, .n = m->n_param, .base = true, .lent = m->keep, .g = m->full ? m->g : NULL, .n_g = m->n_w};
}

void model_adapter_changed(struct model *m, int adapter) {
    struct adapter *ad = adapter_of(m, adapter);
    ASSERT(!ad || !ad->resting);
    if (ad)
        adapter_pack(m, ad);
    else
        model_params_changed(m);
}

/* ---- at rest ------------------------------------------------------------------------------------------------------*/

enum status model_adapter_rest(struct model *m, int index, const char *path, struct err *e) {
    struct adapter *ad = adapter_of(m, index);
    if (!ad) return FAIL(e, ST_INVALID, "there is no adapter %d", index);
    if (ad->g)
        return FAIL(e, ST_INVALID,
                    "adapter %d is prepared for training: its gradients must be given up first (trainer_rest, "
                    "model_adapter_release)",
                    index);
    if (ad->resting && rest_path(ad->resting))
        return FAIL(e, ST_INVALID, "adapter %d is at rest in %s already", index, rest_path(ad->resting));
    if (ad->resting) return path ? rest_to_file(ad->resting, path, e) : ST_OK;
    m->ts.T = -1; /* the last batch may have gone through it */
    TRY(rest_store(m->be, ad->param, ad->n_param, path, &ad->resting, e));
    give_memory(m, ad);
    return ST_OK;
}

enum status model_adapter_wake(struct model *m, int index, struct err *e) {
    struct adapter *ad = adapter_of(m, index);
    if (!ad) return FAIL(e, ST_INVALID, "there is no adapter %d", index);
    if (!ad->resting) return ST_OK;
    const int64_t have = m->be->mem_available(m->be);
    if (ad->bytes >= have)
        return FAIL(e, ST_MEMORY, "adapter %d needs %.2f GB to wake, of which %.2f GB are free", index,
                    (double)ad->bytes * 1e-9, (double)have * 1e-9);
    enum status st = take_memory(m, ad, e);
    if (st == ST_OK) st = rest_load(m->be, ad->resting, ad->param, ad->n_param, e);
    if (st == ST_OK) {
        pack_all(m, ad);
        st = m->be->sync(m->be, e);
    }
    if (st != ST_OK) {
        give_memory(m, ad);
        err_note(e, "adapter %d", index);
        return st;
    }
    rest_free(ad->resting);
    ad->resting = NULL;
    return ST_OK;
}
