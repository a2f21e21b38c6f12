#include "tinker/calls.h"

#include <math.h>
#include <string.h>

const char *const checkpoint_kind_names[CHECKPOINT_KINDS] = {"weights", "sampler_weights", "external_weights"};
const char *const checkpoint_type_names[CHECKPOINT_KINDS] = {"training", "sampler", "external"};

static const char body[] = "body";

bool call_name_is_safe(const char *name) {
    const size_t n = strlen(name);
    if (n < 1 || n > 128 || *name == '.') return false;
    return strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.=+") == n;
}

/* A number that must be there, and not be negative. */
static enum status need_count(const json_t *j, const char *key, int64_t *out, struct err *e) {
    TRY(js_get_i64(j, body, key, out, e));
    if (*out < 0 || *out > INT32_MAX)
        return FAIL(e, ST_PARSE, "body: %s: expected 0 to %d, got %lld", key, INT32_MAX, (long long)*out);
    return ST_OK;
}

static enum status in_range(const char *key, int64_t v, int64_t low, int64_t high, struct err *e) {
    if (v >= low && v <= high) return ST_OK;
    return FAIL(e, ST_PARSE, "body: %s: expected %lld to %lld, got %lld", key, (long long)low, (long long)high,
                (long long)v);
}

static enum status opt_object(const json_t *j, const char *key, const json_t **out, struct err *e) {
    const json_t *v = json_object_get(j, key);
    *out = NULL;
    if (!v || json_is_null(v)) return ST_OK;
    if (!json_is_object(v)) return FAIL(e, ST_PARSE, "body: %s: expected an object", key);
    *out = v;
    return ST_OK;
}

enum status call_read_label(const json_t *j, const char *key, const char **out, struct err *e) {
    const char *text = NULL;
    TRY(js_opt_str(j, body, key, &text, e));
    if (text && strlen(text) > CALL_MAX_LABEL)
        return FAIL(e, ST_PARSE, "body: %s: expected at most %d bytes", key, CALL_MAX_LABEL);
    if (text) *out = text;
    return ST_OK;
}

enum status call_read_metadata(const json_t *j, const json_t **out, struct err *e) {
    TRY(opt_object(j, "user_metadata", out, e));
    if (*out && json_dumpb(*out, NULL, 0, JSON_COMPACT) > CALL_MAX_METADATA)
        return FAIL(e, ST_PARSE, "body: user_metadata: expected at most %d bytes of JSON", CALL_MAX_METADATA);
    return ST_OK;
}

static enum status check_optimizer(const json_t *j, struct err *e) {
    const json_t *o;
    const char *type = "adamw";
    TRY(opt_object(j, "optimizer_config", &o, e));
    if (o) TRY(js_opt_str(o, "body: optimizer_config", "type", &type, e));
    if (strcmp(type, "adamw") != 0)
        return FAIL(e, ST_UNSUPPORTED,
                    "optimizer_config: the optimizer \"%.100s\" is not supported here: use \"adamw\"", type);
    return ST_OK;
}

/* ---- models -------------------------------------------------------------------------------------------------------*/

enum status call_read_create_model(const json_t *j, struct call_create_model *out, struct err *e) {
    const json_t *lora;
    int64_t seed = 0;
    *out = (struct call_create_model){.rank = 32, .train_unembed = true, .train_mlp = true, .train_attn = true};
    TRY(js_get_str(j, body, "session_id", &out->session_id, e));
    TRY(need_count(j, "model_seq_id", &out->model_seq_id, e));
    TRY(js_opt_str(j, body, "base_model", &out->base_model, e));
    TRY(call_read_metadata(j, &out->user_metadata, e));
    TRY(opt_object(j, "lora_config", &lora, e));
    if (lora) {
        static const char where[] = "body: lora_config";
        const json_t *s = json_object_get(lora, "seed");
        TRY(js_opt_i64(lora, where, "rank", &out->rank, e));
        TRY(js_opt_i64(lora, where, "seed", &seed, e));
        TRY(js_opt_bool(lora, where, "train_unembed", &out->train_unembed, e));
        TRY(js_opt_bool(lora, where, "train_mlp", &out->train_mlp, e));
        TRY(js_opt_bool(lora, where, "train_attn", &out->train_attn, e));
        out->seeded = s && !json_is_null(s);
        out->seed = (uint64_t)seed;
    }
    return check_optimizer(j, e);
}

enum status call_read_load(const json_t *j, struct call_load *out, struct err *e) {
    const char *token = NULL;
    *out = (struct call_load){0};
    TRY(js_opt_str(j, body, "session_id", &out->session_id, e));
    if (out->session_id) {
        TRY(need_count(j, "model_seq_id", &out->model_seq_id, e));
    } else {
        TRY(js_get_str(j, body, "model_id", &out->model_id, e));
        TRY(need_count(j, "seq_id", &out->seq_id, e));
    }
    TRY(js_get_str(j, body, "path", &out->path, e));
    TRY(js_opt_bool(j, body, "optimizer", &out->optimizer, e));
    TRY(js_opt_str(j, body, "base_model", &out->base_model, e));
    TRY(call_read_metadata(j, &out->user_metadata, e));
    TRY(js_opt_str(j, body, "weights_access_token", &token, e));
    if (token)
        return FAIL(e, ST_UNSUPPORTED, "weights_access_token is not supported here: checkpoints are this server's");
    return check_optimizer(j, e);
}

enum status call_read_optim(const json_t *j, struct call_optim *out, struct err *e) {
    static const char where[] = "body: adam_params";
    const json_t *adam, *other;
    *out = (struct call_optim){.learning_rate = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-12};
    TRY(js_get_str(j, body, "model_id", &out->model_id, e));
    TRY(need_count(j, "seq_id", &out->seq_id, e));
    TRY(opt_object(j, "optimizer_params", &other, e));
    if (other) return FAIL(e, ST_UNSUPPORTED, "optimizer_params: only adam_params are supported here (AdamW)");
    TRY(opt_object(j, "adam_params", &adam, e));
    if (!adam) return ST_OK;
    TRY(js_opt_f64(adam, where, "learning_rate", &out->learning_rate, e));
    TRY(js_opt_f64(adam, where, "beta1", &out->beta1, e));
    TRY(js_opt_f64(adam, where, "beta2", &out->beta2, e));
    TRY(js_opt_f64(adam, where, "eps", &out->eps, e));
    TRY(js_opt_f64(adam, where, "weight_decay", &out->weight_decay, e));
    TRY(js_opt_f64(adam, where, "grad_clip_norm", &out->grad_clip_norm, e));
    if (!(out->beta1 >= 0 && out->beta1 < 1 && out->beta2 >= 0 && out->beta2 < 1))
        return FAIL(e, ST_PARSE, "adam_params: beta1 and beta2 must be at least 0 and below 1");
    if (!(out->eps >= 0)) return FAIL(e, ST_PARSE, "adam_params: eps must not be negative");
    return ST_OK;
}

enum status call_read_save(const json_t *j, bool unnamed, struct call_save *out, struct err *e) {
    const char *kind = "snapshot";
    const json_t *recipients = json_object_get(j, "age_encryption_recipients"),
                 *sampler = json_object_get(j, "sampling_session_seq_id");
    *out = (struct call_save){0};
    TRY(js_get_str(j, body, "model_id", &out->model_id, e));
    TRY(need_count(j, "seq_id", &out->seq_id, e));
    TRY(js_opt_str(j, body, "path", &out->name, e));
    TRY(js_opt_i64(j, body, "ttl_seconds", &out->ttl_s, e));
    TRY(js_opt_bool(j, body, "overwrite", &out->overwrite, e));
    TRY(call_read_metadata(j, &out->user_metadata, e));
    TRY(js_opt_str(j, body, "kind", &kind, e));
    if (strcmp(kind, "snapshot") != 0 && strcmp(kind, "inflight") != 0)
        return FAIL(e, ST_PARSE, "body: kind: expected \"snapshot\" or \"inflight\"");
    if (out->ttl_s != 0) TRY(in_range("ttl_seconds", out->ttl_s, 3600, 10LL * 366 * 86400, e));
    if (json_is_array(recipients) && json_array_size(recipients) > 0)
        return FAIL(e, ST_UNSUPPORTED, "age_encryption_recipients: encryption with age is not supported here");
    if (unnamed && !out->name) {
        if (!sampler || json_is_null(sampler))
            return FAIL(e, ST_PARSE, "body: expected path or sampling_session_seq_id");
        return need_count(j, "sampling_session_seq_id", &out->sampler_seq_id, e);
    }
    if (!out->name) return FAIL(e, ST_PARSE, "body: path: expected the checkpoint's name");
    if (!call_name_is_safe(out->name))
        return FAIL(e, ST_PARSE,
                    "body: path: a checkpoint's name has 1 to 128 letters, digits and -_.=+, and no dot in front");
    return ST_OK;
}

enum status call_read_sampler(const json_t *j, struct call_sampler *out, struct err *e) {
    *out = (struct call_sampler){0};
    TRY(js_get_str(j, body, "session_id", &out->session_id, e));
    TRY(need_count(j, "sampling_session_seq_id", &out->sampler_seq_id, e));
    TRY(js_opt_str(j, body, "base_model", &out->base_model, e));
    TRY(js_opt_str(j, body, "model_path", &out->model_path, e));
    if (!out->base_model && !out->model_path)
        return FAIL(e, ST_PARSE, "body: expected base_model or model_path, one of them at least");
    return ST_OK;
}

/* ---- sampling -----------------------------------------------------------------------------------------------------*/

/* Appends the tokens of a list; out NULL: they are only counted. */
static enum status read_tokens(const json_t *list, int32_t *out, int64_t *n, struct err *e) {
    size_t i;
    const json_t *v;
    if (!json_is_array(list)) return FAIL(e, ST_PARSE, "body: prompt: tokens: expected a list of ids");
    json_array_foreach((json_t *)(uintptr_t)list, i, v) {
        const json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id > INT32_MAX)
            return FAIL(e, ST_PARSE, "body: prompt: token %zu of a chunk is no id", i);
        if (out) out[*n] = (int32_t)id;
        (*n)++;
    }
    return ST_OK;
}

static enum status read_chunks(const json_t *chunks, int32_t *out, int64_t *n, struct err *e) {
    size_t i;
    const json_t *c;
    *n = 0;
    json_array_foreach((json_t *)(uintptr_t)chunks, i, c) {
        const char *type = "encoded_text";
        if (!json_is_object(c)) return FAIL(e, ST_PARSE, "body: prompt: chunk %zu is no object", i);
        TRY(js_opt_str(c, "body: prompt", "type", &type, e));
        if (strcmp(type, "encoded_text") != 0)
            return FAIL(e, ST_UNSUPPORTED, "prompt: chunks of type \"%.50s\" are not supported here, only encoded_text",
                        type);
        TRY(read_tokens(json_object_get(c, "tokens"), out, n, e));
    }
    return ST_OK;
}

static enum status read_prompt(const json_t *j, struct arena *a, struct call_sample *out, struct err *e) {
    json_t *prompt, *chunks;
    TRY(js_get_object(j, body, "prompt", &prompt, e));
    TRY(js_get_array(prompt, "body: prompt", "chunks", &chunks, e));
    TRY(read_chunks(chunks, NULL, &out->n_prompt, e));
    if (out->n_prompt == 0) return FAIL(e, ST_PARSE, "body: prompt: it has no token");
    out->prompt = arena_array(a, int32_t, out->n_prompt);
    return read_chunks(chunks, out->prompt, &out->n_prompt, e);
}

static enum status read_stop(const json_t *stop, struct arena *a, struct call_sample *out, struct err *e) {
    size_t i;
    const json_t *v;
    if (!stop || json_is_null(stop)) return ST_OK;
    if (json_is_string(stop)) {
        out->stop_text[out->n_stop_texts++] = arena_strdup(a, json_string_value(stop));
        return ST_OK;
    }
    if (!json_is_array(stop)) return FAIL(e, ST_PARSE, "body: stop: expected a text, or a list of texts or ids");
    if (json_array_size(stop) > CALL_MAX_STOPS)
        return FAIL(e, ST_PARSE, "body: stop: more than %d of them", CALL_MAX_STOPS);
    out->stops_off = json_array_size(stop) == 0;
    json_array_foreach((json_t *)(uintptr_t)stop, i, v) {
        if (json_is_string(v))
            out->stop_text[out->n_stop_texts++] = arena_strdup(a, json_string_value(v));
        else if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= INT32_MAX)
            out->stop_id[out->n_stop_ids++] = (int32_t)json_integer_value(v);
        else
            return FAIL(e, ST_PARSE, "body: stop: element %zu is neither a text nor an id", i);
    }
    return ST_OK;
}

static enum status read_params(const json_t *j, struct arena *a, struct call_sample *out, struct err *e) {
    static const char where[] = "body: sampling_params";
    const json_t *p;
    int64_t seed = 0;
    TRY(opt_object(j, "sampling_params", &p, e));
    if (!p) return ST_OK;
    const json_t *s = json_object_get(p, "seed");
    TRY(js_opt_i64(p, where, "max_tokens", &out->max_tokens, e));
    TRY(js_opt_f64(p, where, "temperature", &out->temperature, e));
    TRY(js_opt_f64(p, where, "top_p", &out->top_p, e));
    TRY(js_opt_i64(p, where, "top_k", &out->top_k, e));
    TRY(js_opt_i64(p, where, "seed", &seed, e));
    out->seeded = s && !json_is_null(s);
    out->seed = (uint64_t)seed;
    if (out->top_k <= 0) out->top_k = 0;
    if (out->max_tokens != -1) TRY(in_range("max_tokens", out->max_tokens, 0, INT32_MAX, e));
    TRY(in_range("top_k", out->top_k, 0, INT32_MAX, e));
    if (!(out->temperature >= 0 && out->temperature <= 1e6))
        return FAIL(e, ST_PARSE, "body: temperature: expected 0 or more");
    if (!(out->top_p > 0 && out->top_p <= 1)) return FAIL(e, ST_PARSE, "body: top_p: expected more than 0, at most 1");
    return read_stop(json_object_get(p, "stop"), a, out, e);
}

static const char of_targets[] = "body: target_prompt_logprobs";

/* A list of numbers from `low` on, in the arena. */
static enum status read_numbers(const json_t *t, const char *key, int64_t low, struct arena *a, int64_t **out,
                                size_t *n, struct err *e) {
    json_t *list, *v;
    size_t i;
    TRY(js_get_array(t, of_targets, key, &list, e));
    *n = json_array_size(list);
    *out = arena_array(a, int64_t, *n);
    json_array_foreach(list, i, v) {
        (*out)[i] = json_integer_value(v);
        if (!json_is_integer(v) || (*out)[i] < low || (*out)[i] > INT32_MAX)
            return FAIL(e, ST_PARSE, "target_prompt_logprobs: %s: element %zu is none", key, i);
    }
    return ST_OK;
}

/* Reads where the listed ids of a CSR tensor stand. */
static enum status read_places(const json_t *t, struct arena *a, struct call_sample *out, struct err *e) {
    const int64_t rows = out->n_prompt - 1, columns = out->n_targets, listed = out->n_listed;
    size_t n_crow, n_col;
    TRY(read_numbers(t, "sparse_crow_indices", 0, a, &out->target_crow, &n_crow, e));
    TRY(read_numbers(t, "sparse_col_indices", 0, a, &out->target_col, &n_col, e));
    const int64_t *crow = out->target_crow, *col = out->target_col;
    if (n_crow != (size_t)rows + 1 || n_col != (size_t)listed || crow[0] != 0 || crow[rows] != listed)
        return FAIL(e, ST_PARSE, "target_prompt_logprobs: the indices do not fit the shape and the data");
    for (int64_t r = 0; r < rows; r++) {
        if (crow[r] > crow[r + 1] || crow[r + 1] > listed)
            return FAIL(e, ST_PARSE, "target_prompt_logprobs: sparse_crow_indices must rise");
        for (int64_t k = crow[r]; k < crow[r + 1]; k++)
            if (col[k] >= columns || (k > crow[r] && col[k] <= col[k - 1]))
                return FAIL(e, ST_PARSE, "target_prompt_logprobs: sparse_col_indices of a row must rise, below %lld",
                            (long long)columns);
    }
    return ST_OK;
}

/* target_prompt_logprobs: ids [P-1, K], dense or CSR. */
static enum status read_targets(const json_t *j, struct arena *a, struct call_sample *out, struct err *e) {
    const json_t *t;
    size_t n;
    TRY(opt_object(j, "target_prompt_logprobs", &t, e));
    if (!t) return ST_OK;
    const json_t *crow = json_object_get(t, "sparse_crow_indices"), *shape = json_object_get(t, "shape");
    const bool sparse = crow && !json_is_null(crow);
    const int64_t rows = out->n_prompt - 1;
    TRY(read_numbers(t, "data", -1, a, &out->target, &n, e));
    out->n_listed = (int64_t)n;
    out->n_targets = json_integer_value(json_array_get(shape, 1));
    if (!json_is_array(shape) || json_array_size(shape) != 2 || rows == 0 ||
        json_integer_value(json_array_get(shape, 0)) != rows || out->n_targets < 0 ||
        out->n_targets > WIRE_MAX_CELLS / rows || (!sparse && out->n_listed != rows * out->n_targets))
        return FAIL(e, ST_PARSE, "target_prompt_logprobs: expected the shape [%lld, K], and as many ids",
                    (long long)rows);
    return sparse ? read_places(t, a, out, e) : ST_OK;
}

static enum status read_stream(const json_t *j, struct call_sample *out, struct err *e) {
    json_t *stream = json_object_get(j, "stream");
    int64_t id = 0;
    if (!stream || json_is_null(stream)) return ST_OK;
    if (!json_is_object(stream)) return FAIL(e, ST_PARSE, "body: stream: expected an object");
    TRY(js_opt_i64(stream, "body: stream", "id", &id, e));
    TRY(js_opt_i64(stream, "body: stream", "first", &out->first, e));
    out->stream = (uint64_t)id;
    return in_range("stream: first", out->first, 0, INT32_MAX - CALL_MAX_SAMPLES, e);
}

enum status call_read_sample(const json_t *j, struct arena *a, struct call_sample *out, struct err *e) {
    int64_t alternatives = 0;
    *out = (struct call_sample){.n_samples = 1, .max_tokens = -1, .temperature = 1, .top_p = 1, .prompt_last_n = -1};
    TRY(js_opt_str(j, body, "sampling_session_id", &out->sampler_id, e));
    if (!out->sampler_id)
        return FAIL(e, ST_PARSE,
                    "body: sampling_session_id is missing: base_model and model_path alone are the form of "
                    "old clients");
    out->sampler_id = arena_strdup(a, out->sampler_id);
    TRY(js_get_i64(j, body, "seq_id", &out->seq_id, e));
    TRY(js_opt_i64(j, body, "num_samples", &out->n_samples, e));
    TRY(in_range("num_samples", out->n_samples, 1, CALL_MAX_SAMPLES, e));
    TRY(read_prompt(j, a, out, e));
    TRY(read_params(j, a, out, e));
    TRY(read_stream(j, out, e));
    TRY(js_opt_bool(j, body, "prompt_logprobs", &out->prompt_logprobs, e));
    TRY(js_opt_i64(j, body, "prompt_logprobs_last_n", &out->prompt_last_n, e));
    TRY(js_opt_i64(j, body, "topk_prompt_logprobs", &out->top_prompt, e));
    TRY(js_opt_i64(j, body, "topk_sample_logprobs", &out->top_sample, e));
    TRY(js_opt_i64(j, body, "prompt_alt_tokens_k", &alternatives, e));
    TRY(in_range("prompt_logprobs_last_n", out->prompt_last_n, -1, INT32_MAX, e));
    TRY(in_range("topk_prompt_logprobs", out->top_prompt, 0, CALL_MAX_TOPK, e));
    TRY(in_range("topk_sample_logprobs", out->top_sample, 0, CALL_MAX_TOPK, e));
    if (alternatives != 0) return FAIL(e, ST_UNSUPPORTED, "prompt_alt_tokens_k is not supported here");
    return read_targets(j, a, out, e);
}

/* ---- checkpoints --------------------------------------------------------------------------------------------------*/

static enum status take_apart(const char *run, size_t n_run, const char *kind, struct arena *a,
                              struct checkpoint_path *out, const char **rest, struct err *e) {
    const char *name = NULL;
    out->kind = CHECKPOINT_KINDS;
    for (int k = 0; k < CHECKPOINT_KINDS; k++) {
        const size_t n = strlen(checkpoint_kind_names[k]);
        if (strncmp(kind, checkpoint_kind_names[k], n) != 0 || kind[n] != '/') continue;
        out->kind = (enum checkpoint_kind)k;
        name = kind + n + 1;
    }
    if (!name || n_run == 0)
        return FAIL(e, ST_INVALID,
                    "expected tinker://RUN/KIND/NAME with KIND weights, "
                    "sampler_weights or external_weights");
    const size_t n = strcspn(name, "/");
    out->run = arena_strndup(a, run, n_run);
    out->name = arena_strndup(a, name, n);
    *rest = name + n;
    if (**rest == '/') ++*rest;
    if (!call_name_is_safe(out->name)) return FAIL(e, ST_INVALID, "\"%.128s\" is no name of a checkpoint", out->name);
    return ST_OK;
}

enum status call_read_path(const char *path, struct arena *a, struct checkpoint_path *out, struct err *e) {
    static const char scheme[] = "tinker://";
    const char *rest, *run = path + sizeof scheme - 1;
    if (!str_has_prefix(path, scheme) || !strchr(run, '/'))
        return FAIL(e, ST_INVALID, "\"%.200s\" is no path of a checkpoint: expected tinker://RUN/KIND/NAME", path);
    const size_t n = strcspn(run, "/");
    TRY(take_apart(run, n, run + n + 1, a, out, &rest, e));
    return *rest || path[strlen(path) - 1] == '/'
               ? FAIL(e, ST_INVALID, "a path has three parts: tinker://RUN/KIND/NAME")
               : ST_OK;
}

enum status call_read_checkpoint_url(const char *tail, struct arena *a, struct checkpoint_path *out, const char **rest,
                                     struct err *e) {
    static const char word[] = "/checkpoints/";
    const char *at = strstr(tail, word);
    if (!at) return FAIL(e, ST_INVALID, "expected RUN/checkpoints/KIND/NAME");
    return take_apart(tail, (size_t)(at - tail), at + sizeof word - 1, a, out, rest, e);
}
