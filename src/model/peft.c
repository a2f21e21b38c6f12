/* Adapters as PEFT writes and reads them: a folder with adapter_config.json and adapter_model.safetensors. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/log.h"
#include "base/str.h"
#include "io/json.h"
#include "model/internal.h"

/* Options of PEFT that would change the arithmetic and are not computed here. experts: the model has some, whose
 * parameters may be targets; what else is a target has tensors that are refused later. */
static enum status refuse_unsupported(const json_t *j, const char *where, bool experts, struct err *e) {
    static const char *const flags[] = {"use_dora", "fan_in_fan_out", "lora_bias", "use_qalora", "use_bdlora"};
    for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
        bool on = false;
        TRY(js_opt_bool(j, where, flags[i], &on, e));
        if (on) return FAIL(e, ST_UNSUPPORTED, "%s: %s: true is not supported", where, flags[i]);
    }
    static const char *const empty[] = {"modules_to_save", "layers_to_transform", "trainable_token_indices",
                                        "target_parameters"};
    for (size_t i = 0; i < ARRAY_LEN(empty) - (experts ? 1 : 0); i++) {
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

/* Which sites the file has is told by the tensors of the first layer and of the head; a tensor that fits none of them
 * is found later. */
static void sites_of(const struct model *m, const struct st_file *f, bool use[LORA_SITES]) {
    for (int s = 0; s < LORA_SITES; s++) {
        CLEANUP_STR struct str name = STR_INIT;
        adapter_tensor(&m->cfg, s, 0, 0, "lora_A.weight", &name);
        use[s] = st_find(f, name.p) != NULL;
    }
}

/* The parameter of the base that a tensor of the file is a copy of, by its name; NULL: none. Where the head or the
 * embeddings have adapters PEFT writes what lies under them, too, and calls it "lm_head.base_layer.weight". */
static const struct param *copied_param(const struct model *m, const char *tensor) {
    static const char under[] = ".base_layer.weight";
    const char *inner = adapter_base_name(tensor);
    if (!inner) return NULL;
    CLEANUP_STR struct str name = STR_INIT;
    str_adds(&name, inner);
    if (str_has_suffix(inner, under)) {
        str_clear(&name);
        str_add(&name, inner, strlen(inner) - strlen(under));
        str_adds(&name, ".weight");
    }
    const char *want = m->cfg.tied && strcmp(name.p, m->head_name) == 0 ? m->table_name : name.p;
    for (int i = 0; i < m->n_param; i++)
        if (strcmp(m->param[i].name, want) == 0) return &m->param[i];
    return NULL;
}

/* True: n numbers are equal, to the accuracy of bfloat16 where one side is held in less than float32. */
static bool same_values(const float *a, const float *b, int64_t n, bool narrow) {
    for (int64_t i = 0; i < n; i++)
        if (a[i] != b[i] && !(narrow && st_f32_to_bf16(a[i]) == st_f32_to_bf16(b[i]))) return false;
    return true;
}

/* A copy of the base's weights says nothing new; other weights would be another base. */
static enum status check_copy(const struct model *m, const struct param *p, const struct st_file *f, const char *name,
                              struct err *e) {
    enum { PIECE = 1 << 20 };
    const struct st_tensor *t;
    TRY(st_get(f, name, p->nd, p->dim, &t, e));
    const int64_t width = p->nd == 2 ? p->dim[1] : p->n, rows = p->n / width, most = i64_max(1, PIECE / width);
    CLEANUP_FREE float *mine = xmalloc((size_t)(most * width) * sizeof *mine),
                       *theirs = xmalloc((size_t)(most * width) * sizeof *theirs);
    for (int64_t row = 0; row < rows; row += most) {
        struct st_tensor part = *t;
        const int64_t n = i64_min(most, rows - row);
        part.data += (size_t)(row * width) * st_dtype_bytes(t->dtype);
        part.numel = n * width;
        part.bytes = (size_t)part.numel * st_dtype_bytes(t->dtype);
        TRY(st_read_f32(&part, theirs, e));
        param_get_rows(m, p, row, n, mine);
        TRY(m->be->sync(m->be, e));
        if (!same_values(mine, theirs, n * width, t->dtype != ST_DTYPE_F32 || !p->w))
            return FAIL(
                e, ST_UNSUPPORTED,
                "%s: tensor \"%s\" is not that of the base, and an adapter with weights of the base of its own is "
                "not supported",
                t->file, name);
    }
    return ST_OK;
}

/* What a file holds beside the adapter's parameters: copies of the base's, or something that is refused. */
static enum status check_others(const struct model *m, const struct adapter *ad, const struct st_file *f,
                                const json_t *j, const char *path, struct err *e) {
    if (f->count == 0 || ad->n_param == 0)
        return FAIL(e, ST_UNSUPPORTED,
                    "%s: %s: expected lora_A and lora_B of the attention and MLP projections and of the head", path,
                    f->count == 0 ? "no LoRA weights at all" : f->tensor[0].name);
    if (f->count == (size_t)ad->n_param) return ST_OK;
    for (size_t k = 0; k < f->count; k++) {
        const char *name = f->tensor[k].name, *inner = adapter_base_name(name);
        const struct param *copied = copied_param(m, name);
        bool known = false;
        if (ad->fused) known = fused_experts_named(m, name);
        for (int i = 0; i < ad->n_param && !known; i++) known = strcmp(ad->param[i].name, name) == 0;
        if (copied) TRY(check_copy(m, copied, f, name, e));
        if (known || copied) continue;
        if (inner && arch_layer(m->cfg.arch, inner) >= m->cfg.L)
            return other_base(j, e,
                              FAIL(e, ST_INVALID, "%s: tensor \"%s\": the model has %d layers", path, name, m->cfg.L));
        return FAIL(e, ST_UNSUPPORTED,
                    "%s: %s: expected lora_A and lora_B of the attention and MLP projections and of the head only",
                    path, name);
    }
    return ST_OK;
}

/* ---- ranks and alphas of their own --------------------------------------------------------------------------------*/

/* *yes true: the key of a pattern means the module: it is a regular expression for the end of the module's name, behind
 * a dot or at the beginning. Patterns of PEFT are Python's; PCRE2 reads them alike. */
static enum status key_means(const char *key, const char *module, bool *yes, struct err *e) {
    CLEANUP_STR struct str pattern = STR_INIT;
    int code;
    PCRE2_SIZE at;
    str_addf(&pattern, "(.*\\.)?(%s)$", key);
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)pattern.p, pattern.len, PCRE2_ANCHORED | PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    if (!re) return FAIL(e, ST_INVALID, "\"%.100s\" is no regular expression", key);
    pcre2_match_data *match = pcre2_match_data_create_from_pattern(re, NULL);
    ASSERT(match);
    code = pcre2_match(re, (PCRE2_SPTR)module, strlen(module), 0, 0, match, NULL);
    *yes = code >= 0;
    pcre2_match_data_free(match);
    pcre2_code_free(re);
    if (code >= 0 || code == PCRE2_ERROR_NOMATCH) return ST_OK;
    return FAIL(e, ST_INVALID, "\"%.100s\" takes too long to match", key);
}

/* The value of the first key that means a module; NULL: none does. */
static enum status pattern_of(const json_t *table, const char *module, const json_t **out, struct err *e) {
    const char *key;
    json_t *v;
    *out = NULL;
    json_object_foreach((json_t *)(uintptr_t)table, key, v) {
        bool yes = false;
        TRY(key_means(key, module, &yes, e));
        if (!yes) continue;
        *out = v;
        return ST_OK;
    }
    return ST_OK;
}

enum status peft_site(const json_t *j, const char *module, struct lora_site *s, struct err *e) {
    const json_t *rank, *alpha;
    if (pattern_of(json_object_get(j, "rank_pattern"), module, &rank, e) != ST_OK) return err_note(e, "rank_pattern");
    if (pattern_of(json_object_get(j, "alpha_pattern"), module, &alpha, e) != ST_OK)
        return err_note(e, "alpha_pattern");
    if (rank && (!json_is_integer(rank) || json_integer_value(rank) < 1 || json_integer_value(rank) > 4096))
        return FAIL(e, ST_INVALID, "rank_pattern: %s: expected an integer in 1..4096", module);
    if (alpha && !(json_is_number(alpha) && json_number_value(alpha) > 0))
        return FAIL(e, ST_INVALID, "alpha_pattern: %s: expected a number > 0", module);
    if (rank) s->rank = (int)json_integer_value(rank);
    if (alpha) s->alpha = (float)json_number_value(alpha);
    return ST_OK;
}

/* Experts of one mixture are alike: their products are done together. */
static enum status site_at(const struct model *m, const json_t *j, int layer, int site, struct lora_site *out,
                           struct err *e) {
    const enum arch_module at = adapter_module(&m->cfg, site, layer);
    const int64_t copies = at == (enum arch_module)site ? 1 : m->cfg.E;
    const struct lora_site usual = *out;
    for (int64_t k = 0; k < copies; k++) {
        CLEANUP_STR struct str module = STR_INIT;
        struct lora_site own = usual;
        arch_expert_tensor(m->cfg.arch, at, layer, k, "", &module);
        module.p[module.len - 1] = 0; /* without the dot */
        TRY(peft_site(j, module.p, &own, e));
        if (k == 0) *out = own;
        if (own.rank != out->rank || own.alpha != out->alpha)
            return FAIL(e, ST_UNSUPPORTED,
                        "rank_pattern, alpha_pattern: %s has another rank or alpha than expert 0, which is not "
                        "supported",
                        module.p);
    }
    return ST_OK;
}

/* The rank and alpha of every site. */
static enum status sites_from(const struct model *m, const json_t *j, struct lora_site *at, struct err *e) {
    for (int i = 0; i <= m->cfg.L; i++)
        for (int s = 0; s < LORA_SITES; s++) {
            if ((i == m->cfg.L) == (s == MODULE_HEAD)) TRY(site_at(m, j, i, s, &at[i * LORA_SITES + s], e));
        }
    return ST_OK;
}

static enum status check_pattern(const json_t *j, const char *where, const char *key, struct err *e) {
    const json_t *v = json_object_get(j, key);
    if (!v || json_is_null(v) || json_is_object(v)) return ST_OK;
    return FAIL(e, ST_PARSE, "%s: %s: expected an object or null", where, key);
}

/* ---- reading ------------------------------------------------------------------------------------------------------*/

/* r, lora_alpha and what changes them; *at is the caller's to free. */
static enum status read_shape(const struct model *m, const json_t *j, const char *where, struct adapter_spec *spec,
                              struct lora_site **at, struct err *e) {
    int64_t rank = 0;
    double alpha = 0;
    TRY(js_get_i64(j, where, "r", &rank, e));
    TRY(js_get_f64(j, where, "lora_alpha", &alpha, e));
    TRY(js_opt_bool(j, where, "use_rslora", &spec->rslora, e));
    TRY(check_pattern(j, where, "rank_pattern", e));
    TRY(check_pattern(j, where, "alpha_pattern", e));
    if (rank < 1 || rank > 4096)
        return FAIL(e, ST_INVALID, "%s: r: expected 1..4096, got %lld", where, (long long)rank);
    spec->rank = (int)rank;
    spec->alpha = (float)alpha;
    const int n = (m->cfg.L + 1) * (int)LORA_SITES;
    *at = xmalloc((size_t)n * sizeof **at);
    for (int i = 0; i < n; i++) (*at)[i] = (struct lora_site){spec->rank, spec->alpha};
    spec->at = *at;
    return sites_from(m, j, *at, e) == ST_OK ? ST_OK : err_note(e, "%s", where);
}

static enum status read_weights(struct model *m, const struct st_file *f, const json_t *j, const char *path,
                                struct adapter *ad, struct err *e) {
    const enum status st = ad->fused ? fused_experts_read(m, f, ad, e) : params_read(m, ad->param, ad->n_param, f, e);
    if (st != ST_OK) return st == ST_INVALID ? other_base(j, e, st) : st;
    return check_others(m, ad, f, j, path, e);
}

/* The codes of the base that an adapter was trained on, where it was in codes: a key of its file's metadata. What other
 * codes decode to is another base; the matrices they were made of are nearly the same. */
#define BASE_DTYPE "base_dtype"
static enum status check_base_dtype(const struct model *m, const struct st_file *f, const char *path, struct err *e) {
    const char *trained_on = st_metadata(f, BASE_DTYPE), *own = model_base_codes(m);
    if (!trained_on || (own && strcmp(trained_on, own) == 0)) return ST_OK;
    if (own)
        return FAIL(e, ST_INVALID, "%s: " BASE_DTYPE ": it was trained on a base in %.20s, and this one is in %s", path,
                    trained_on, own);
    log_warn("%s: " BASE_DTYPE ": it was trained on a base in %.20s, and this one is not in codes", path, trained_on);
    return ST_OK;
}

/* An adapter that is in no table yet. */
static enum status adapter_read(struct model *m, const char *peft_dir, struct adapter **out, struct err *e) {
    CLEANUP_STR struct str path = STR_INIT;
    str_addf(&path, "%s/adapter_config.json", peft_dir);
    CLEANUP_JSON json_t *j = NULL;
    TRY(js_load(path.p, 1 << 24, &j, e));
    TRY(refuse_unsupported(j, path.p, m->cfg.E > 0, e));
    struct adapter_spec spec = {0};
    CLEANUP_FREE struct lora_site *at = NULL;
    TRY(read_shape(m, j, path.p, &spec, &at, e));

    str_clear(&path);
    str_addf(&path, "%s/adapter_model.safetensors", peft_dir);
    struct st_file f;
    struct adapter *ad = NULL;
    TRY(st_open(path.p, &f, e));
    sites_of(m, &f, spec.use);
    const bool fused = fused_experts_in(m, &f);
    const struct lora_site usual = {spec.rank, spec.alpha};
    enum status st = check_base_dtype(m, &f, path.p, e);
    if (st == ST_OK && fused) st = fused_experts_sites(m, &f, j, spec.rslora, &usual, spec.use, at, e);
    if (st == ST_OK) st = adapter_new(m, &spec, &ad, e);
    if (st == ST_OK) ad->fused = fused;
    if (st == ST_OK) st = read_weights(m, &f, j, path.p, ad, e);
    st_close(&f);
    if (st != ST_OK) {
        adapter_free(m, ad);
        return st;
    }
    ad->peft = json_incref(j);
    *out = ad;
    return ST_OK;
}

enum status model_lora_load(struct model *m, const char *peft_dir, struct err *e) {
    struct adapter *ad;
    adapter_put_own(m, NULL);
    TRY(adapter_read(m, peft_dir, &ad, e));
    adapter_put_own(m, ad);
    model_params_changed(m);
    return ST_OK;
}

enum status model_adapter_load(struct model *m, const char *peft_dir, int *index, struct err *e) {
    struct adapter *ad;
    TRY(adapter_read(m, peft_dir, &ad, e));
    adapter_pack(m, ad);
    *index = adapter_add(m, ad);
    return m->be->sync(m->be, e);
}

/* True: the site is a module that PEFT is to adapt. A site that only experts have is none: its matrices are parameters.
 */
static bool is_module(const struct model *m, int site, bool fused) {
    bool module = !fused || site == MODULE_HEAD;
    for (int i = 0; i < m->cfg.L && !module; i++) module = adapter_module(&m->cfg, site, i) == (enum arch_module)site;
    return module;
}

static json_t *config_of(const struct model *m, const struct adapter *ad, bool fused) {
    json_t *j = ad->peft ? json_deep_copy(ad->peft) : json_object();
    json_object_set_new(j, "peft_type", json_string("LORA"));
    json_object_set_new(j, "task_type", json_string("CAUSAL_LM"));
    json_object_set_new(j, "r", json_integer(ad->rank));
    json_object_set_new(j, "lora_alpha", json_real((double)ad->alpha));
    json_object_set_new(j, "lora_dropout", json_real(0.0));
    json_object_set_new(j, "bias", json_string("none"));
    json_object_set_new(j, "fan_in_fan_out", json_false());
    json_object_set_new(j, "inference_mode", json_true());
    json_object_set_new(j, "use_rslora", json_boolean(ad->rslora));
    if (m->cfg.E > 0) fused_experts_patterns(m, ad, fused, j);
    if (m->cfg.E > 0) fused_experts_targets(m, ad, fused, j);
    if (m->name) json_object_set_new(j, "base_model_name_or_path", json_string(m->name));
    if (!json_object_get(j, "base_model_name_or_path")) json_object_set_new(j, "base_model_name_or_path", json_null());
    json_t *targets = json_array();
    for (int s = 0; s < LORA_SITES; s++)
        if (ad->use[s] && is_module(m, s, fused))
            json_array_append_new(targets, json_string(arch_short_name(m->cfg.arch, (enum arch_module)s)));
    json_object_set_new(j, "target_modules", targets);
    return j;
}

/* *fused true: all experts of a layer are to have one pair of tensors. */
static enum status choose_files(const struct model *m, const struct adapter *ad, bool *fused, struct err *e) {
    const bool asked = m->expert_files == EXPERT_FILES_FUSED, some = adapter_expert_rank(m, ad) > 0;
    *fused = some && (asked || (m->expert_files == EXPERT_FILES_AUTO && ad->fused));
    if (!*fused || fused_experts_fit(m, ad)) return ST_OK;
    *fused = false;
    if (!asked) return ST_OK;
    return FAIL(
        e, ST_UNSUPPORTED,
        "an adapter whose experts have a rank or alpha of gate_proj that is not up_proj's, or use_rslora, cannot "
        "be written with the experts of a layer in one tensor");
}

enum status model_expert_files(struct model *m, enum expert_files how, struct err *e) {
    bool fused;
    const struct adapter *own = adapter_of(m, ADAPTER_OWN);
    if (how != EXPERT_FILES_AUTO && m->cfg.E == 0)
        return FAIL(e, ST_INVALID, "files of experts: expected auto, since the model has no experts");
    m->expert_files = how;
    return own ? choose_files(m, own, &fused, e) : ST_OK;
}

enum status model_adapter_save(const struct model *m, int index, const char *peft_dir, struct err *e) {
    const struct adapter *ad = adapter_of(m, index);
    if (!ad && index > ADAPTER_OWN) return FAIL(e, ST_INVALID, "%s: there is no adapter %d to save", peft_dir, index);
    if (!ad) return FAIL(e, ST_INVALID, "%s: the model has no LoRA weights to save", peft_dir);
    if (ad->resting) return FAIL(e, ST_INVALID, "%s: adapter %d is at rest (model_adapter_wake)", peft_dir, index);
    bool fused;
    if (choose_files(m, ad, &fused, e) != ST_OK) return err_note(e, "%s", peft_dir);
    TRY(fs_mkdirs(peft_dir, e));
    CLEANUP_STR struct str path = STR_INIT;
    str_addf(&path, "%s/adapter_model.safetensors", peft_dir);
    const char *const trained_on[] = {BASE_DTYPE, model_base_codes(m), NULL};
    const char *const *metadata = model_base_codes(m) ? trained_on : NULL;
    if (fused)
        TRY(fused_experts_write(m, ad, metadata, path.p, e));
    else
        TRY(params_write(m, ad->param, ad->n_param, ST_DTYPE_F32, metadata, path.p, e));
    CLEANUP_JSON json_t *j = config_of(m, ad, fused);
    CLEANUP_FREE char *text = json_dumps(j, JSON_INDENT(2));
    str_clear(&path);
    str_addf(&path, "%s/adapter_config.json", peft_dir);
    return fs_write_atomic(path.p, text, strlen(text), e);
}

enum status model_lora_save(const struct model *m, const char *peft_dir, struct err *e) {
    return model_adapter_save(m, ADAPTER_OWN, peft_dir, e);
}
