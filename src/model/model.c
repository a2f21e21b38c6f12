/* Weights: one slab of float32, views into it under their Hugging Face names, packed copies made by the backend. */
#include "model/declare.h"
#include "model/layer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/log.h"
#include "base/rng.h"
#include "io/json.h"
#include "model/coded_file.h"

/* ---- layout ------------------------------------------------------------------------------------------------------ */

/* Every weight of the model, in the order of checkpoints. */
static void declare_all(struct model *m) {
    const struct model_config *c = &m->cfg;
    struct declared d = {.m = m};
    struct weight *table = c->tied ? &m->head : &m->embed;
    m->table_name = declared_name(m, MODULE_EMBED);
    m->head_name = declared_name(m, MODULE_HEAD);
    declare_matrix(&d, table, c->V, c->D, c->tied);
    declare_rows(&d, MODULE_EMBED, 0, table, 0, c->V);
    d.in_layer = true;
    for (int i = 0; i < c->L; i++) layer_declare(&d, i);
    d.in_layer = false;
    declare_vector(&d, &m->final_norm, c->D);
    declare_part(&d, MODULE_FINAL_NORM, 0, "weight", &m->final_norm, 0, c->D);
    if (c->tied) return;
    declare_matrix(&d, &m->head, c->V, c->D, true);
    declare_rows(&d, MODULE_HEAD, 0, &m->head, 0, c->V);
}

static enum status choose_dtype(struct model *m, const struct model_options *opt, const char *where, struct err *e) {
    const char *want = opt && opt->dtype ? opt->dtype : "auto";
    if (strcmp(want, "auto") == 0)
        m->dt = m->be->bf16 && declared_matrix_elements(m) >= MODEL_AUTO_BF16 ? DT_BF16 : DT_F32;
    else if (strcmp(want, "bf16") == 0)
        m->dt = DT_BF16;
    else if (strcmp(want, "f32") == 0)
        m->dt = DT_F32;
    else
        return FAIL(e, ST_INVALID, "%s: dtype: expected auto, f32 or bf16, got \"%s\"", where, want);
    if (m->dt == DT_BF16 && !m->be->bf16)
        return FAIL(e, ST_UNSUPPORTED, "%s: dtype: bf16 is not supported on device %s, expected f32", where,
                    m->be->name);
    m->act = m->dt == DT_BF16 ? m->be->act : DT_F32;
    if (m->act == DT_BF16 && (m->cfg.K % 16 != 0 || m->cfg.K > 128))
        return FAIL(e, ST_UNSUPPORTED, "%s: head_dim is %d: bf16 on device %s takes multiples of 16 up to 128; use f32",
                    where, m->cfg.K, m->be->name);
    m->activation_memory = opt ? opt->activation_memory : 0;
    m->empty = opt && opt->empty;
    m->plain = m->dt == DT_BF16 && opt && opt->frozen ? FORMAT_BF16 : FORMAT_F32;
    return ST_OK;
}

/* What codes the base shall be in, and the format of every matrix. */
static enum status choose_formats(struct model *m, const struct model_options *opt, const struct st_file *f,
                                  const char *where, struct err *e) {
    const char *want = opt && opt->base_dtype ? opt->base_dtype : "auto";
    const int named = format_find(want);
    const bool codes = named >= 0 && format_is_coded((enum weight_format)named), decoded = strcmp(want, "bf16") == 0;
    if (!codes && !decoded && strcmp(want, "auto") != 0)
        return FAIL(e, ST_INVALID, "%s: base_dtype: expected %s, got \"%s\"", where, CHOICE_TEXT(BASE_DTYPE_LIST),
                    want);
    TRY(coded_config(m->config, where, &m->in_file, e));
    m->codes = decoded ? FORMAT_F32 : codes ? (enum weight_format)named : m->in_file;
    if (codes && m->in_file != FORMAT_F32 && m->in_file != m->codes)
        return FAIL(e, ST_INVALID, "%s: base_dtype: the checkpoint is in %s, and %s is not made of that", where,
                    format_of(m->in_file)->name, want);
    if (m->codes != FORMAT_F32 && !(opt && opt->frozen))
        return FAIL(e, ST_INVALID,
                    "%s: base_dtype: training all parameters was asked for, but a base in %s is not trained: train "
                    "LoRA, or open it with base_dtype bf16",
                    where, format_of(m->codes)->name);
    if (m->codes != FORMAT_F32 && !m->be->weight_put_coded)
        return FAIL(e, ST_UNSUPPORTED, "%s: base_dtype: %s is not supported on device %s", where,
                    format_of(m->codes)->name, m->be->name);
    if (declared_choose(m, f, decoded, e) != ST_OK) return err_note(e, "%s", where);
    const int64_t bytes = declared_held_bytes(m), have = m->be->mem_available(m->be);
    if (bytes < have) return ST_OK;
    return FAIL(e, ST_MEMORY, "%s: the weights need %.2f GB, of which %.2f GB are free", where, (double)bytes * 1e-9,
                (double)have * 1e-9);
}

static enum status check_names(const struct model *m, const struct st_file *f, const char *dir, struct err *e);

/* A model with its slab allocated and nothing in it, for the weights in dir, which are opened into f (NULL: for
 * others). Takes ownership of config. */
static enum status model_new(json_t *config, const char *where, const struct model_options *opt, struct backend *be,
                             const char *dir, struct st_file *f, struct model **out, struct err *e) {
    struct model *m = xcalloc(1, sizeof *m);
    m->config = config;
    m->be = be;
    m->ts.T = -1;
    enum status st;
    TRY_GOTO(config_parse(config, where, &m->cfg, e), fail);
    if (m->cfg.E > 0 && !be->experts) {
        st = FAIL(e, ST_UNSUPPORTED, "%s: mixtures of experts are not supported on device %s", where, be->name);
        goto fail;
    }
    m->layer = xcalloc((size_t)m->cfg.L, sizeof *m->layer);
    declare_all(m);
    TRY_GOTO(choose_dtype(m, opt, where, e), fail);
    if (f) TRY_GOTO(st_open_dir(dir, f, e), fail);
    if (f) TRY_GOTO(check_names(m, f, dir, e), fail);
    TRY_GOTO(choose_formats(m, opt, f, where, e), fail);
    TRY_GOTO(declared_lay_out(m, e), fail);
    *out = m;
    return ST_OK;
fail:
    model_free(m);
    return st;
}

/* ---- load, init, save -------------------------------------------------------------------------------------------- */

enum { CONFIG_MAX_BYTES = 1 << 24 };

/* Elements of the largest parameter; of those that have float32 values unless all. */
static int64_t largest(const struct param *p, int n, bool all) {
    int64_t most = 1;
    for (int i = 0; i < n; i++)
        if (all || p[i].w) most = i64_max(most, p[i].n);
    return most;
}

/* NULL unless p is of a base matrix held in bf16 or in codes alone. */
static const struct param_place *place_of(const struct model *m, const struct param *p) {
    return p->w ? NULL : &m->place[p - m->param];
}

/* A matrix held in bf16 or in codes, which are made here. */
static void put_bf16(struct model *m, const struct param_place *at, const struct param *p, const uint16_t *src) {
    const struct format *format = format_of(at->in->format);
    struct coded_matrix coded;
    if (!format_is_coded(at->in->format)) {
        m->be->weight_put(m->be, at->in, at->row, p->dim[0], src);
        return;
    }
    format->quantise(src, p->dim[0], p->dim[1], m->be->pool, &coded);
    m->be->weight_put_coded(m->be, at->in, at->row, &coded);
    coded_release(&coded);
}

/* Straight from the file's map when that holds bf16; the slab a foreign type needs is in *spare. */
static enum status read_bf16(struct model *m, const struct param_place *at, const struct param *p,
                             const struct st_tensor *t, uint16_t **spare, struct err *e) {
    const uint16_t *src = (const uint16_t *)(const void *)t->data;
    if (t->dtype != ST_DTYPE_BF16 || !st_is_aligned(t)) {
        *spare = xrealloc(*spare, (size_t)p->n * sizeof **spare);
        TRY(st_read_bf16(t, *spare, e));
        src = *spare;
    }
    put_bf16(m, at, p, src);
    return ST_OK;
}

/* Codes of the file, as they are or decoded into a matrix that is not in codes. */
static enum status read_coded(struct model *m, const struct param *p, const struct st_file *f, const char *name,
                              struct err *e) {
    const struct param_place *at = &m->place[p - m->param];
    const struct format *format = format_of(m->in_file);
    struct coded_matrix coded;
    TRY(coded_read(f, name, m->in_file, p->dim[0], p->dim[1], &coded, e));
    if (at->in->format == m->in_file) {
        m->be->weight_put_coded(m->be, at->in, at->row, &coded);
    } else {
        CLEANUP_FREE uint16_t *plain = xmalloc((size_t)p->n * sizeof *plain);
        CLEANUP_FREE float *wide = at->in->w ? xmalloc((size_t)p->n * sizeof *wide) : NULL;
        format->decode(&coded, 0, p->n, plain);
        for (int64_t i = 0; wide && i < p->n; i++) wide[i] = st_bf16_to_f32(plain[i]);
        if (wide)
            m->be->mem_put(m->be, p->w, wide, (size_t)p->n * sizeof *wide);
        else
            m->be->weight_put(m->be, at->in, at->row, p->dim[0], plain);
    }
    coded_release(&coded);
    return ST_OK;
}

/* The name of a tensor in f. Embedders are saved without their outermost module: "embed_tokens.weight". Those that are
 * called language models all the same may lack a head; the embedding table stands in for it, as in a tied model. */
const char *name_in(const struct model *m, const struct st_file *f, const char *name) {
    const size_t outer = strcspn(m->table_name, ".") + 1; /* "model." */
    const char *table = m->table_name + outer;
    if (!st_find(f, table)) return name;
    if (strncmp(name, m->table_name, outer) == 0) return name + outer;
    return strcmp(name, m->head_name) == 0 && !st_find(f, name) ? table : name;
}

/* True: p is a matrix of the base. */
static bool of_base(const struct model *m, const struct param *p) {
    return p >= m->param && p < m->param + m->n_param && p->nd == 2;
}

/* The tensor of f that holds a parameter, under its own name or, where that is not there, as a part of one of all
 * experts, [E, rows, K]; *first is the part's first row then, else -1. NULL: f has neither. */
static const struct st_tensor *tensor_of_param(const struct model *m, const struct st_file *f, const struct param *p,
                                               int64_t *first) {
    const struct st_tensor *t = st_find(f, name_in(m, f, p->name));
    if (first) *first = -1;
    if (t || !of_base(m, p)) return t;
    const struct param_place *at = &m->place[p - m->param];
    if (at->at != MODULE_EXPERT_GATE && at->at != MODULE_EXPERT_UP && at->at != MODULE_EXPERT_DOWN) return NULL;
    CLEANUP_STR struct str fused = STR_INIT;
    arch_fused_experts(m->cfg.arch, at->at, at->layer, &fused);
    if (first) *first = at->expert * at->in->N + at->row;
    return st_find(f, name_in(m, f, fused.p));
}

/* The values of a parameter in f, whose shape is checked. */
static enum status values_of_param(const struct model *m, const struct st_file *f, const struct param *p,
                                   struct st_tensor *out, struct err *e) {
    int64_t first;
    const struct st_tensor *t = tensor_of_param(m, f, p, &first);
    if (!t || first < 0) {
        TRY(st_get(f, t ? t->name : name_in(m, f, p->name), p->nd, p->dim, &t, e));
        *out = *t;
        return ST_OK;
    }
    const struct weight *in = m->place[p - m->param].in;
    const int64_t all[3] = {m->cfg.E, in->N, in->K};
    const size_t each = st_dtype_bytes(t->dtype);
    TRY(st_get(f, t->name, 3, all, &t, e));
    *out = *t;
    out->nd = 2;
    memcpy(out->dim, p->dim, sizeof p->dim);
    out->numel = p->n;
    out->bytes = (size_t)p->n * each;
    out->data += (size_t)(first * in->K) * each;
    return ST_OK;
}

enum status params_read(struct model *m, const struct param *p, int n, const struct st_file *f, struct err *e) {
    CLEANUP_FREE float *host = NULL;
    CLEANUP_FREE uint16_t *spare = NULL;
    for (int i = 0; i < n; i++) {
        struct st_tensor t;
        const char *name = name_in(m, f, p[i].name);
        if (of_base(m, &p[i]) && coded_in_file(f, name, m->in_file)) {
            TRY(read_coded(m, &p[i], f, name, e));
            continue;
        }
        TRY(values_of_param(m, f, &p[i], &t, e));
        TRY(st_check_finite(&t, e));
        if (place_of(m, &p[i])) {
            TRY(read_bf16(m, place_of(m, &p[i]), &p[i], &t, &spare, e));
            continue;
        }
        if (!host) host = xmalloc((size_t)largest(p, n, false) * sizeof *host);
        TRY(st_read_f32(&t, host, e));
        model_param_put(m, &p[i], host);
    }
    return m->be->sync(m->be, e);
}

struct weight_fetch {
    const struct model *m;
    const struct param *p;
    float *host;
};

static enum status fetch_param(void *ctx, size_t i, const void **data, struct err *e) {
    struct weight_fetch *x = ctx;
    model_param_get(x->m, &x->p[i], x->host);
    *data = x->host;
    return x->m->be->sync(x->m->be, e); /* a file must not hold what a failed transfer left */
}

enum status params_write(const struct model *m, const struct param *p, int n, enum st_dtype dtype,
                         const char *const *metadata, const char *path, struct err *e) {
    CLEANUP_FREE struct st_entry *en = xcalloc((size_t)n + 1, sizeof *en);
    CLEANUP_FREE float *host = xmalloc((size_t)largest(p, n, true) * sizeof *host);
    for (int i = 0; i < n; i++)
        en[i] = (struct st_entry){
            .name = p[i].name, .dtype = dtype, .from = ST_DTYPE_F32, .nd = p[i].nd, .dim = {p[i].dim[0], p[i].dim[1]}};
    struct weight_fetch x = {m, p, host};
    return st_write_fetched(path, en, (size_t)n, metadata, fetch_param, &x, e);
}

static void add_name(struct str *list, int n, const char *name) {
    enum { SHOWN = 5 };
    if (n < SHOWN) str_addf(list, "%s%s", n ? ", " : "", name);
    if (n == SHOWN) str_adds(list, ", ...");
}

/* Names every tensor that is missing, and warns of those that nothing here reads. Not of these, which real checkpoints
 * carry along: the head of a model whose head is its embedding, and the frequencies of the rotary embedding. */
static enum status check_names(const struct model *m, const struct st_file *f, const char *dir, struct err *e) {
    CLEANUP_STR struct str missing = STR_INIT, unread = STR_INIT;
    CLEANUP_FREE bool *known = xcalloc(f->count + 1, sizeof *known);
    int n_missing = 0, n_unread = 0;
    for (int i = 0; i < m->n_param; i++) {
        const struct st_tensor *t = tensor_of_param(m, f, &m->param[i], NULL);
        if (t)
            known[t - f->tensor] = true;
        else
            add_name(&missing, n_missing++, m->param[i].name);
    }
    if (n_missing > 0)
        return FAIL(e, ST_INVALID, "%s: %d of %d tensors are missing in model.safetensors or its shards: %s", dir,
                    n_missing, m->n_param, str_c(&missing));
    for (size_t k = 0; k < f->count; k++) {
        CLEANUP_STR struct str weight = STR_INIT;
        const char *name = f->tensor[k].name;
        str_add(&weight, name, coded_beside(name));
        const struct st_tensor *t = weight.len > 0 ? st_find(f, weight.p) : NULL;
        const bool head = m->cfg.tied && strcmp(name, m->head_name) == 0;
        if (!known[k] && !head && !(t && known[t - f->tensor]) && !str_has_suffix(name, ".rotary_emb.inv_freq"))
            add_name(&unread, n_unread++, name);
    }
    if (n_unread > 0)
        log_warn("%s: %d tensor%s of no use to this architecture: %s", dir, n_unread, n_unread == 1 ? " is" : "s are",
                 str_c(&unread));
    return ST_OK;
}

enum status model_config_read(const char *path, struct model_config *out, struct err *e) {
    CLEANUP_JSON json_t *config = NULL;
    *out = (struct model_config){0};
    TRY(js_load(path, CONFIG_MAX_BYTES, &config, e));
    return config_parse(config, path, out, e);
}

enum status model_load(const char *dir, const struct model_options *opt, struct backend *be, struct model **out,
                       struct err *e) {
    CLEANUP_STR struct str path = STR_INIT;
    json_t *config = NULL;
    struct model *m = NULL;
    struct st_file f = {0};
    str_addf(&path, "%s/config.json", dir);
    TRY(js_load(path.p, CONFIG_MAX_BYTES, &config, e));
    enum status st = model_new(config, path.p, opt, be, dir, &f, &m, e);
    if (st == ST_OK) st = params_read(m, m->param, m->n_param, &f, e);
    st_close(&f);
    if (st != ST_OK) {
        model_free(m);
        return st;
    }
    model_params_changed(m);
    *out = m;
    return ST_OK;
}

/* The same PERIOD random numbers over and over, in bfloat16 and in codes. PERIOD is a prime, so that rows differ. */
enum { PERIOD = 65521, AT_ONCE = 1 << 24 };
/* Codes of these numbers, of which each matrix in codes gets rows from one of STARTS first rows on: to make codes of
 * every matrix takes longer than what is to be measured. */
enum { STARTS = 13, START_ROWS = 128, WIDTHS_MAX = 8 };
struct repeated {
    uint16_t *number;                         /* [n], owned; NULL: the model's numbers are not repeated */
    int64_t n;                                /* PERIOD, and as many more as are put at once */
    struct coded_matrix of_width[WIDTHS_MAX]; /* one for each K; a model has few */
    int n_widths;
};

static struct repeated repeated_numbers(const struct model *m, uint64_t seed) {
    int64_t most = AT_ONCE;
    for (int i = 0; i < m->n_param; i++)
        if (m->param[i].nd == 2) most = i64_max(most, m->param[i].dim[1]);
    struct rng r = rng_make(seed, (uint64_t)m->n_param);
    struct repeated x = {.number = xmalloc((size_t)(PERIOD + most) * sizeof(uint16_t)), .n = PERIOD + most};
    for (int64_t j = 0; j < x.n; j++)
        x.number[j] = j < PERIOD ? st_f32_to_bf16((float)(0.02 * rng_normal(&r))) : x.number[j - PERIOD];
    return x;
}

static void repeated_free(struct repeated *x) {
    for (int i = 0; i < x->n_widths; i++) coded_release(&x->of_width[i]);
    free(x->number);
}

/* Codes of enough rows for every matrix that is in them and has K columns. */
static const struct coded_matrix *repeated_codes(struct model *m, struct repeated *x, int64_t K) {
    for (int i = 0; i < x->n_widths; i++)
        if (x->of_width[i].K == K) return &x->of_width[i];
    int64_t most = 0;
    for (int i = 0; i < m->n_param; i++)
        if (m->param[i].nd == 2 && m->param[i].dim[1] == K && format_is_coded(m->place[i].in->format))
            most = i64_max(most, m->param[i].dim[0]);
    const int64_t rows = most + (STARTS - 1) * START_ROWS;
    CLEANUP_FREE uint16_t *all = xmalloc((size_t)(rows * K) * sizeof *all);
    for (int64_t j = 0; j < rows * K; j++) all[j] = j < PERIOD ? x->number[j] : all[j - PERIOD];
    ASSERT(x->n_widths < WIDTHS_MAX);
    struct coded_matrix *const out = &x->of_width[x->n_widths++];
    format_of(m->codes)->quantise(all, rows, K, m->be->pool, out);
    return out;
}

/* A matrix held in bf16 or in codes alone of these numbers, which begin elsewhere in each parameter. */
static void put_repeated(struct model *m, int i, struct repeated *x) {
    const struct param *p = &m->param[i];
    const struct param_place *at = place_of(m, p);
    const int64_t K = p->dim[1], rows = i64_max(1, AT_ONCE / K), first = (int64_t)i * 40503 % PERIOD;
    if (format_is_coded(at->in->format)) {
        const struct coded_matrix *codes = repeated_codes(m, x, K);
        const int64_t step = coded_rows_fit(codes, START_ROWS) ? START_ROWS : 0;
        const struct coded_matrix part = coded_rows(codes, i % STARTS * step, p->dim[0]);
        m->be->weight_put_coded(m->be, at->in, at->row, &part);
        return;
    }
    for (int64_t row = 0; row < p->dim[0]; row += rows)
        m->be->weight_put(m->be, at->in, at->row + row, i64_min(rows, p->dim[0] - row),
                          x->number + (first + row * K) % PERIOD);
}

enum status model_init(const char *config_json, uint64_t seed, const struct model_options *opt, struct backend *be,
                       struct model **out, struct err *e) {
    json_t *config = NULL;
    const bool text = config_json[strspn(config_json, " \t\r\n")] == '{';
    if (text)
        TRY(js_parse(config_json, strlen(config_json), "config.json", &config, e));
    else
        TRY(js_load(config_json, CONFIG_MAX_BYTES, &config, e));
    struct model *m;
    TRY(model_new(config, text ? "config.json" : config_json, opt, be, NULL, NULL, &m, e));
    const bool empty = m->empty;
    CLEANUP_FREE float *host = empty ? NULL : xmalloc((size_t)largest(m->param, m->n_param, true) * sizeof *host);
    for (int i = 0; empty && i < m->n_param; i++) {
        const struct param_place *at = place_of(m, &m->param[i]);
        const int64_t rows = m->param[i].dim[0];
        if (at && format_is_coded(at->in->format)) {
            const struct coded_matrix none = {.format = at->in->format, .rows = rows, .K = at->in->K};
            be->weight_put_coded(be, at->in, at->row, &none);
        } else if (at) {
            be->weight_put(be, at->in, at->row, rows, NULL);
        }
    }
    const bool repeats = !empty && opt && opt->repeat_random;
    const int64_t period = repeats ? PERIOD : INT64_MAX;
    struct repeated numbers = {0};
    if (repeats) numbers = repeated_numbers(m, seed);
    for (int i = 0; !empty && i < m->n_param; i++) {
        struct param *p = &m->param[i];
        struct rng r = rng_make(seed, (uint64_t)i); /* a stream per tensor */
        if (place_of(m, p) && p->n > period) {
            put_repeated(m, i, &numbers);
            continue;
        }
        const bool bias = strstr(p->name, ".bias") != NULL;
        for (int64_t j = 0; j < i64_min(p->n, period); j++)
            host[j] = p->nd == 2 ? (float)(0.02 * rng_normal(&r)) : bias ? 0.0f : 1.0f;
        for (int64_t j = period; j < p->n; j++) host[j] = host[j - period];
        model_param_put(m, p, host);
    }
    repeated_free(&numbers);
    model_params_changed(m);
    *out = m;
    return ST_OK;
}

static enum status save_config(const struct model *m, const char *dir, const char *dtype, struct err *e) {
    CLEANUP_JSON json_t *j = json_deep_copy(m->config);
    const char *name = strcmp(dtype, "bf16") == 0 ? "bfloat16" : "float32";
    json_object_del(j, "quantization_config"); /* what is written is not in codes */
    json_object_set_new(j, json_object_get(j, "dtype") ? "dtype" : "torch_dtype", json_string(name));
    CLEANUP_FREE char *text = json_dumps(j, JSON_INDENT(2));
    CLEANUP_STR struct str path = STR_INIT;
    str_addf(&path, "%s/config.json", dir);
    return fs_write_atomic(path.p, text, strlen(text), e);
}

struct model_memory model_memory(const struct model *m) {
    int64_t n = 0;
    for (int i = 0; i < m->n_param; i++) {
        const struct param *p = &m->param[i];
        const enum weight_format held = p->nd == 2 ? m->place[i].in->format : FORMAT_F32;
        n += format_of(held)->bytes(p->dim[0], p->nd == 2 ? p->dim[1] : 1);
    }
    return (struct model_memory){.weight_bytes = n,
                                 .activation_bytes = m->ts.cap_floats * (int64_t)sizeof(float),
                                 .recomputed_layers = m->ts.n_shared > 0 ? m->ts.n_shared - 1 : 0,
                                 .logits_kept = m->ts.logits_kept};
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
    CLEANUP_STR struct str path = STR_INIT;
    str_addf(&path, "%s/model.safetensors", dir);
    TRY(params_write(m, m->param, m->n_param, dt, NULL, path.p, e));
    return save_config(m, dir, dtype, e);
}

void model_free(struct model *m) {
    if (!m) return;
    struct backend *be = m->be;
    adapters_free(m);
    declared_free(m);
    train_space_free(m);
    step_space_free(m);
    be->mem_free(be, m->w);
    if (!m->keep) be->mem_free(be, m->g);
    be->mem_free(be, m->keep);
    be->mem_free(be, m->rope);
    for (int i = 0; m->layer && i < m->cfg.L; i++) {
        free(m->layer[i].moe.wgu);
        free(m->layer[i].moe.wd);
    }
    free(m->layer);
    free(m->name);
    json_decref(m->config);
    arena_free(&m->names);
    free(m);
}

const struct model_config *model_cfg(const struct model *m) { return &m->cfg; }

const char *model_dtype(const struct model *m) { return m->dt == DT_BF16 ? "bf16" : "f32"; }

const char *model_base_codes(const struct model *m) {
    return m->codes == FORMAT_F32 ? NULL : format_of(m->codes)->name;
}

void model_set_name(struct model *m, const char *name) {
    free(m->name);
    m->name = xstrdup(name);
}

struct backend *model_backend(const struct model *m) {
    return m->be;
}

/* ---- parameters and gradients ------------------------------------------------------------------------------------ */

const struct param *model_params(struct model *m, int *count) {
    const struct train_set s = model_train_set(m, ADAPTER_OWN);
    *count = s.n;
    return s.param;
}

void param_get_rows(const struct model *m, const struct param *p, int64_t row, int64_t rows, float *host) {
    const struct param_place *at = place_of(m, p);
    const int64_t width = p->nd == 2 ? p->dim[1] : p->n, n = rows * width;
    if (at) {
        CLEANUP_FREE uint16_t *narrow = xmalloc((size_t)n * sizeof *narrow);
        m->be->weight_get(m->be, at->in, at->row + row, rows, narrow);
        for (int64_t i = 0; i < n; i++) host[i] = st_bf16_to_f32(narrow[i]);
        return;
    }
    m->be->mem_get(m->be, host, p->w + row * width, (size_t)n * sizeof(float));
}

void model_param_get(const struct model *m, const struct param *p, float *w_host) {
    param_get_rows(m, p, 0, p->nd == 2 ? p->dim[0] : 1, w_host);
}

void model_param_put(struct model *m, const struct param *p, const float *w_host) {
    const struct param_place *at = place_of(m, p);
    if (at) {
        CLEANUP_FREE uint16_t *host = xmalloc((size_t)p->n * sizeof *host);
        for (int64_t i = 0; i < p->n; i++) host[i] = st_f32_to_bf16(w_host[i]);
        put_bf16(m, at, p, host);
        return;
    }
    m->be->mem_put(m->be, p->w, w_host, (size_t)p->n * sizeof(float));
}

void model_grad_get(const struct model *m, const struct param *p, float *g_host) {
    m->be->mem_get(m->be, g_host, p->g, (size_t)p->n * sizeof(float));
}

void model_grad_put(struct model *m, const struct param *p, const float *g_host) {
    m->be->mem_put(m->be, p->g, g_host, (size_t)p->n * sizeof(float));
}

enum status model_params_load(struct model *m, const char *path, struct err *e) {
    int n;
    const struct param *p = model_params(m, &n);
    struct st_file f;
    TRY(st_open(path, &f, e));
    const struct adapter *own = adapter_of(m, ADAPTER_OWN);
    const bool fused = own && p == own->param && fused_experts_in(m, &f);
    enum status st = fused ? fused_experts_read(m, &f, own, e) : params_read(m, p, n, &f, e);
    st_close(&f);
    model_params_changed(m);
    return st;
}

void model_params_changed(struct model *m) {
    struct adapter *own = adapter_of(m, ADAPTER_OWN);
    m->version++;
    m->ts.T = -1; /* activations of the old weights must not meet the new ones in backward */
    const bool trained = model_train_set(m, ADAPTER_OWN).base || m->full;
    if (!m->base_packed || (m->plain == FORMAT_F32 && trained)) declared_pack(m);
    if (own && !own->resting) adapter_pack(m, own);
    m->base_packed = true;
}

void model_limit_activations(struct model *m, int64_t bytes) { m->activation_memory = bytes; }

static enum status prepare_base(struct model *m, bool lent, struct err *e) {
    if (m->codes != FORMAT_F32)
        return FAIL(e, ST_INVALID, "training all parameters was asked for, but the model is held in %s",
                    format_of(m->codes)->name);
    if (m->plain != FORMAT_F32)
        return FAIL(e, ST_INVALID,
                    "training all parameters was asked for, but the model was opened frozen in bf16, without the "
                    "float32 values that training changes");
    int64_t cap = 0;
    if (lent) return m->keep ? ST_OK : declared_lend(m, e);
    if (m->keep) return FAIL(e, ST_INVALID, "training all parameters was asked for, but their values are lent out");
    if (!m->g) TRY(space_grow(m, &m->g, &cap, m->n_w, "the gradients", e));
    return ST_OK;
}

enum status model_train_prepare(struct model *m, enum train_what what, struct err *e) {
    if (what == TRAIN_LORA && !adapter_of(m, ADAPTER_OWN))
        return FAIL(e, ST_INVALID, "training LoRA was asked for, but the model has no LoRA weights");
    const bool lent = what == TRAIN_FULL_LENT;
    if (what == TRAIN_FULL || lent) TRY(prepare_base(m, lent, e));
    if (what == TRAIN_LORA)
        TRY(model_adapter_prepare(m, ADAPTER_OWN, e));
    else
        model_adapter_release(m, ADAPTER_OWN);
    m->full = what == TRAIN_FULL || lent;
    m->ts.T = -1;
    if (lent) return ST_OK;
    for (int i = 0; i < m->n_param; i++) m->param[i].g = m->full ? m->g + (m->param[i].w - m->w) : NULL;
    model_zero_grad(m);
    return ST_OK;
}

void model_zero_grad(struct model *m) {
    const struct train_set s = model_train_set(m, ADAPTER_OWN);
    if (s.g) m->be->mem_zero(m->be, s.g, (size_t)s.n_g * sizeof(float));
}

float *model_grad_slab(struct model *m, int64_t *n) {
    const struct train_set s = model_train_set(m, ADAPTER_OWN);
    ASSERT(s.g);
    *n = s.n_g;
    return s.g;
}

/* One sum over the slab: the gaps between the tensors are zero, in g as in w. */
double model_grad_norm(const struct model *m) {
    const struct train_set s = model_train_set(m, ADAPTER_OWN);
    return s.g ? sqrt(m->be->sum_squares(m->be, s.g, s.n_g)) : 0;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

enum status space_grow(struct model *m, float **mem, int64_t *cap, int64_t want, const char *what, struct err *e) {
    if (want <= *cap && *mem) return ST_OK;
    m->be->mem_free(m->be, *mem);
    *mem = NULL;
    *cap = 0;
    const int64_t bytes = want * (int64_t)sizeof(float), have = m->be->mem_available(m->be);
    if (bytes < have) *mem = m->be->mem_alloc(m->be, (size_t)bytes);
    if (!*mem)
        return FAIL(e, ST_MEMORY, "%s need %.2f GB, of which %.2f GB are free", what, (double)bytes * 1e-9,
                    (double)have * 1e-9);
    *cap = want;
    return ST_OK;
}
