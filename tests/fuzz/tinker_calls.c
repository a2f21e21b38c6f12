/* Fuzz target: bodies of the Tinker protocol's calls in JSON, and its paths. The first byte says which. What a reader
 * takes on keeps the bounds that its users rely on. */
#include <math.h>
#include <string.h>

#include "io/json.h"
#include "tinker/calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Log-probabilities of targets that came as CSR are written as CSR; read again they stand at their places, and 0 at
 * all others. */
static void check_csr(const struct call_sample *c, struct arena *a) {
    CLEANUP_STR struct str bytes = STR_INIT;
    struct wire_sample again;
    struct err e = {0};
    const int64_t rows = c->n_prompt - 1, columns = c->n_targets, n = rows * columns;
    struct wire_tensor t = {.dtype = WIRE_F32, .nd = 2, .dim = {rows, columns}, .n = n};
    t.crow = c->target_crow;
    t.col = c->target_col;
    t.f = arena_array(a, float, c->n_listed);
    for (int64_t i = 0; i < c->n_listed; i++) t.f[i] = -1 - (float)i;
    wire_put_sample(&bytes, &(struct wire_sample){.target = &t});
    ASSERT(wire_read_sample(bytes.p, bytes.len, a, &again, &e) == ST_OK && again.target && again.target->n == n);
    int64_t listed = 0;
    for (int64_t i = 0; i < n; i++)
        if (again.target->f[i] != 0) ASSERT(again.target->f[i] == t.f[listed++]);
    ASSERT(listed == c->n_listed && listed == t.crow[rows]);
}

static void check_sample(const struct call_sample *c, struct arena *a) {
    volatile int64_t sum = 0;
    ASSERT(c->sampler_id && c->n_samples >= 1 && c->n_prompt >= 1 && c->max_tokens >= -1);
    ASSERT(c->temperature >= 0 && isfinite(c->temperature) && c->top_p > 0 && c->top_p <= 1 && c->top_k >= 0);
    ASSERT(c->n_stop_texts <= CALL_MAX_STOPS && c->n_stop_ids <= CALL_MAX_STOPS);
    ASSERT(c->top_prompt >= 0 && c->top_sample >= 0 && c->prompt_last_n >= -1);
    for (int64_t i = 0; i < c->n_prompt; i++) {
        ASSERT(c->prompt[i] >= 0);
        sum += c->prompt[i];
    }
    for (int64_t i = 0; c->target && i < c->n_listed; i++) sum += c->target[i];
    if (c->target_crow) check_csr(c, a);
    for (int i = 0; i < c->n_stop_texts; i++) sum += (int64_t)strlen(c->stop_text[i]);
}

static void check_optim(const struct call_optim *c) {
    ASSERT(c->model_id); /* whoever takes the call checks its number */
    ASSERT(isfinite(c->learning_rate) && isfinite(c->eps) && isfinite(c->weight_decay) && isfinite(c->grad_clip_norm));
    ASSERT(c->beta1 >= 0 && c->beta1 < 1 && c->beta2 >= 0 && c->beta2 < 1);
}

static void read_json(int which, const json_t *j, struct arena *a) {
    struct err e = {0};
    struct call_create_model create;
    struct call_load load;
    struct call_optim optim;
    struct call_save save;
    struct call_sampler sampler;
    struct call_sample sample;
    switch (which) {
    case 0:
        if (call_read_create_model(j, &create, &e) == ST_OK) ASSERT(create.session_id && create.model_seq_id >= 0);
        break;
    case 1:
        if (call_read_load(j, &load, &e) == ST_OK) ASSERT(load.path && (load.session_id || load.model_id));
        break;
    case 2:
        if (call_read_optim(j, &optim, &e) == ST_OK) check_optim(&optim);
        break;
    case 3:
        if (call_read_save(j, true, &save, &e) == ST_OK)
            ASSERT(save.model_id && (!save.name || call_name_is_safe(save.name)));
        break;
    case 4:
        if (call_read_sampler(j, &sampler, &e) == ST_OK)
            ASSERT(sampler.session_id && (sampler.base_model || sampler.model_path));
        break;
    default:
        if (call_read_sample(j, a, &sample, &e) == ST_OK) check_sample(&sample, a);
        break;
    }
    ASSERT(e.code == ST_OK || e.msg[0]);
}

static void read_paths(const char *text, struct arena *a) {
    struct checkpoint_path p;
    const char *rest;
    struct err e = {0};
    if (call_read_path(text, a, &p, &e) == ST_OK)
        ASSERT(call_name_is_safe(p.name) && !strchr(p.run, '/') && p.kind < CHECKPOINT_KINDS);
    if (call_read_checkpoint_url(text, a, &p, &rest, &e) == ST_OK)
        ASSERT(call_name_is_safe(p.name) && p.kind < CHECKPOINT_KINDS && rest);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct arena a = ARENA_INIT;
    struct err e = {0};
    json_t *j = NULL;
    if (size < 1) return 0;
    if (data[0] % 7 == 6) {
        read_paths(arena_strndup(&a, (const char *)data + 1, size - 1), &a);
    } else if (js_parse((const char *)data + 1, size - 1, "body", &j, &e) == ST_OK) {
        if (json_is_object(j)) read_json(data[0] % 7, j, &a);
        json_decref(j);
    }
    arena_free(&a);
    return 0;
}
