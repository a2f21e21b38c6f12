#include "verdicts/shapes.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static const json_t *member(const json_t *o, const char *name) {
    const json_t *v = json_object_get(o, name);
    return json_is_null(v) ? NULL : v;
}

/* What is worth a curve, the same for each verdict. An answer that is not correct has speed-up 0. */
struct shape_numbers {
    bool compiled, correct;
    double format, speedup;
};

static bool numbers_of(const json_t *result, struct shape_numbers *n) {
    const json_t *verdict = member(result, "verdict"), *reward = member(result, "reward");
    if (!verdict || !reward || !json_is_number(json_object_get(reward, "total"))) return false;
    n->compiled = json_number_value(json_object_get(reward, "compile")) > 0;
    n->correct = json_is_true(json_object_get(verdict, "correct"));
    n->format = json_number_value(json_object_get(reward, "format"));
    n->speedup = json_number_value(json_object_get(verdict, "speedup")); /* 0 of null */
    return true;
}

/* ---- NeMo-Gym -----------------------------------------------------------------------------------------------------*/

/* Appends the texts of a message. */
static void add_texts(const json_t *message, struct str *out) {
    size_t i;
    json_t *part;
    json_array_foreach(json_object_get(message, "content"), i, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *text = json_object_get(part, "text");
        if (type && strcmp(type, "output_text") == 0 && json_is_string(text))
            str_add(out, json_string_value(text), json_string_length(text));
    }
}

bool nemo_gym_request(const json_t *row, json_t **out, struct verdict_refusal *why) {
    CLEANUP_STR struct str text = STR_INIT;
    const json_t *response = member(row, "response"), *about = member(row, "verifier_metadata");
    const json_t *output = member(response, "output");
    size_t i;
    json_t *item;
    *out = NULL;
    if (!json_is_object(member(row, "responses_create_params")))
        return verdict_refuse(why, 400, NULL, "responses_create_params", "responses_create_params: it is needed");
    if (!json_is_object(about))
        return verdict_refuse(why, 400, NULL, "verifier_metadata",
                              "verifier_metadata: expected a request without its solution, {\"problem\": ...}");
    if (!json_is_array(output))
        return verdict_refuse(why, 400, NULL, "response", "response: expected a response with a list as output");
    if (member(about, "solution") || member(about, "extract"))
        return verdict_refuse(why, 400, NULL, "verifier_metadata",
                              "verifier_metadata: the solution is what the response says");
    json_array_foreach(output, i, item) {
        const char *type = json_string_value(json_object_get(item, "type"));
        if (type && strcmp(type, "message") == 0) add_texts(item, &text);
    }
    json_t *solution = json_stringn(str_c(&text), text.len);
    if (!solution) return verdict_refuse(why, 400, NULL, "response", "response: its text is not UTF-8");
    json_t *request = json_deep_copy(about);
    const json_t *tokens = member(member(response, "usage"), "output_tokens");
    json_object_set_new(request, "solution", solution);
    json_object_set_new(request, "extract", json_true());
    if (json_is_integer(tokens) && !member(about, "tokens"))
        json_object_set_new(request, "tokens", json_integer(json_integer_value(tokens)));
    *out = request;
    return true;
}

bool nemo_gym_reply(json_t *row, const json_t *result) {
    const json_t *reward = member(result, "reward");
    struct shape_numbers n;
    const char *name;
    json_t *v;
    if (!numbers_of(result, &n)) return false;
    json_t *parts = json_object();
    json_object_foreach((json_t *)reward, name, v) {
        if (strcmp(name, "total") != 0 && json_is_number(v)) json_object_set(parts, name, v);
    }
    json_object_set_new(row, "reward", json_real(json_number_value(json_object_get(reward, "total"))));
    json_object_set_new(row, "reward_components", parts);
    json_object_set_new(row, "verdict", json_deep_copy(json_object_get(result, "verdict")));
    json_object_set_new(row, "format", json_real(n.format));
    json_object_set_new(row, "compiled", json_boolean(n.compiled));
    json_object_set_new(row, "correct", json_boolean(n.correct));
    json_object_set_new(row, "speedup", json_real(n.speedup));
    return true;
}

bool nemo_gym_means(const json_t *body, struct str *out, struct verdict_refusal *why) {
    static const char *const names[] = {"reward", "format", "compiled", "correct", "speedup"};
    static const char *const places[] = {"agent_metrics", "key_metrics"};
    const json_t *list = member(body, "verify_responses");
    if (!json_is_array(list))
        return verdict_refuse(why, 400, NULL, "verify_responses", "verify_responses: expected a list of replies");
    js_begin(out, NULL, '{');
    js_begin(out, "group_level_metrics", '[');
    js_end(out, ']');
    for (size_t p = 0; p < ARRAY_LEN(places); p++) {
        js_begin(out, places[p], '{');
        for (size_t k = 0; k < ARRAY_LEN(names); k++) {
            double sum = 0;
            size_t n = 0, i;
            char key[40];
            json_t *one;
            json_array_foreach(list, i, one) {
                const json_t *v = member(one, names[k]);
                if (!json_is_number(v) && !json_is_boolean(v)) continue;
                sum += json_is_number(v) ? json_number_value(v) : json_is_true(v);
                n++;
            }
            snprintf(key, sizeof key, "mean/%s", names[k]);
            if (n > 0) js_put_f64(out, key, sum / (double)n);
        }
        js_end(out, '}');
    }
    js_end(out, '}');
    return true;
}

/* ---- KernelGYM: a task --------------------------------------------------------------------------------------------*/

bool kernel_gym_id(const json_t *o, const char *name, const char **id, struct verdict_refusal *why) {
    const json_t *v = member(o, name);
    if (!v) return verdict_refuse(why, 400, NULL, name, "%s: it is needed", name);
    if (!verdict_read_text(v, name, KERNEL_GYM_ID_BYTES, id, why)) return false;
    return **id || verdict_refuse(why, 400, NULL, name, "%s: expected 1 to %d bytes", name, KERNEL_GYM_ID_BYTES);
}

/* Fields with which a task asks for what is not judged here: any other value is refused. */
static bool only_value(const json_t *task, const char *name, const char *value, struct verdict_refusal *why) {
    const json_t *v = member(task, name);
    const char *text = json_string_value(v);
    if (!v || (text && strcmp(text, value) == 0)) return true;
    return verdict_refuse(why, 400, "unsupported_parameter", name, "%s: expected \"%s\"", name, value);
}

static bool read_codes(const json_t *task, json_t *request, struct verdict_refusal *why) {
    const char *id, *reference, *kernel;
    if (!kernel_gym_id(task, "task_id", &id, why)) return false;
    if (!verdict_read_text(json_object_get(task, "reference_code"), "reference_code", VERDICT_PROBLEM_BYTES, &reference,
                           why) ||
        !verdict_read_text(json_object_get(task, "kernel_code"), "kernel_code", VERDICT_SOLUTION_BYTES, &kernel, why))
        return false;
    json_object_set_new(request, "id", json_string(id));
    json_object_set_new(request, "problem", json_pack("{s:s}", "code", reference));
    json_object_set_new(request, "solution", json_string(kernel));
    return true;
}

static bool read_measuring(const json_t *task, json_t *options, struct verdict_refusal *why) {
    static const char *const times[] = {"measure_performance", "run_performance"}; /* the second one counts */
    const json_t *trials = member(task, "num_correct_trials"), *calls = member(task, "num_perf_trials");
    const json_t *check = member(task, "run_correctness");
    int64_t n;
    int flag;
    if (trials) {
        if (!verdict_read_int(trials, "num_correct_trials", 1, 20, &n, why)) return false;
        json_object_set_new(options, "trials", json_integer(n));
    }
    if (calls) {
        if (!verdict_read_int(calls, "num_perf_trials", 1, 1000, &n, why)) return false;
        json_object_set_new(options, "timed_calls", json_integer(n));
    }
    for (size_t i = 0; i < ARRAY_LEN(times); i++) {
        const json_t *v = member(task, times[i]);
        if (!v) continue;
        if (!verdict_read_bool(v, times[i], &flag, why)) return false;
        json_object_set_new(options, "measure", json_boolean(flag));
    }
    if (check && !json_is_true(check))
        return verdict_refuse(why, 400, "unsupported_parameter", "run_correctness",
                              "run_correctness: an answer is never timed unless it is correct");
    return true;
}

static bool read_handling(const json_t *task, json_t *request, double *wait_s, struct verdict_refusal *why) {
    const json_t *backend = member(task, "backend"), *fresh = member(task, "force_refresh");
    const json_t *priority = member(task, "priority"), *timeout = member(task, "timeout");
    const char *text;
    int64_t n = 300;
    int flag;
    if (backend) {
        if (!verdict_read_text(backend, "backend", VERDICT_NAME_BYTES, &text, why)) return false;
        if (strcmp(text, "auto") != 0) json_object_set_new(request, "backend", json_string(text));
    }
    if (fresh) {
        if (!verdict_read_bool(fresh, "force_refresh", &flag, why)) return false;
        json_object_set_new(request, "force", json_boolean(flag));
    }
    if (priority) {
        if (!verdict_read_text(priority, "priority", VERDICT_NAME_BYTES, &text, why)) return false;
        const int level = str_index_in("low|normal|high", text, '|');
        if (level < 0)
            return verdict_refuse(why, 400, NULL, "priority", "priority: expected low, normal or high, got \"%.40s\"",
                                  text);
        json_object_set_new(request, "priority", json_integer(level));
    }
    if (timeout && !verdict_read_int(timeout, "timeout", 1, 3600, &n, why)) return false;
    *wait_s = (double)n;
    return true;
}

bool kernel_gym_request(const json_t *task, json_t **out, double *wait_s, struct verdict_refusal *why) {
    CLEANUP_JSON json_t *request = json_object();
    json_t *options = json_object();
    *out = NULL;
    json_object_set_new(request, "options", options);
    if (!json_is_object(task)) return verdict_refuse(why, 400, NULL, NULL, "expected a task, a JSON object");
    if (!only_value(task, "entry_point", "Model", why) || !only_value(task, "precision", "fp32", why) ||
        !only_value(task, "toolkit", "kernelbench", why) || !only_value(task, "backend_adapter", "kernelbench", why) ||
        !only_value(task, "workflow", "kernelbench", why))
        return false;
    if (!read_codes(task, request, why) || !read_measuring(task, options, why) ||
        !read_handling(task, request, wait_s, why))
        return false;
    *out = json_incref(request);
    return true;
}

/* ---- KernelGYM: replies -------------------------------------------------------------------------------------------*/

const char *kernel_gym_state(enum job_status s) {
    switch (s) {
    case JOB_SUCCEEDED: return "completed";
    case JOB_FAILED: return "failed";
    case JOB_CANCELLED: return "cancelled";
    case JOB_RUNNING: return "processing";
    default: return "pending";
    }
}

static void put_time(struct str *out, const char *key, double t) {
    char text[40];
    const time_t whole = (time_t)t;
    struct tm parts;
    if (t <= 0 || !gmtime_r(&whole, &parts) || strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0)
        js_put_null(out, key);
    else
        js_put_str(out, key, text);
}

static void put_number(struct str *out, const char *key, const json_t *v) {
    if (json_is_number(v))
        js_put_f64(out, key, json_number_value(v));
    else
        js_put_null(out, key);
}

/* What is to be known of an answer that is not right, or has no verdict. */
static const char *message_of(const json_t *result) {
    const json_t *verdict = member(result, "verdict"), *error = member(result, "error");
    if (verdict && json_is_true(json_object_get(verdict, "correct"))) return NULL;
    return json_string_value(json_object_get(verdict ? verdict : error, "message"));
}

static void put_verdict(const json_t *result, struct str *out) {
    const json_t *verdict = member(result, "verdict");
    const char *outcome = json_string_value(json_object_get(verdict, "outcome"));
    struct shape_numbers n;
    if (!outcome || !numbers_of(result, &n)) {
        static const char *const members[] = {"compiled",          "correctness",    "decoy_kernel",
                                              "reference_runtime", "kernel_runtime", "speedup"};
        for (size_t i = 0; i < ARRAY_LEN(members); i++) js_put_null(out, members[i]);
        return;
    }
    js_put_bool(out, "compiled", n.compiled);
    js_put_bool(out, "correctness", n.correct);
    js_put_bool(out, "decoy_kernel", strcmp(outcome, "no_kernel_ran") == 0 || strcmp(outcome, "hidden_work") == 0);
    put_number(out, "reference_runtime", json_object_get(verdict, "eager_ms"));
    put_number(out, "kernel_runtime", json_object_get(verdict, "kernel_ms"));
    put_number(out, "speedup", json_object_get(verdict, "speedup"));
}

void kernel_gym_put_result(const char *id, const struct job_row *r, const json_t *result, struct str *out) {
    const json_t *verdict = member(result, "verdict"), *reward = member(result, "reward");
    js_begin(out, NULL, '{');
    js_put_str(out, "task_id", id);
    js_put_str(out, "status", kernel_gym_state(r->status));
    put_verdict(result, out);
    js_begin(out, "metadata", '{');
    js_put_str(out, "job", r->name);
    if (verdict) js_put_json(out, "verdict", verdict);
    if (reward) js_put_json(out, "reward", reward);
    js_end(out, '}');
    js_put_str(out, "error_message", message_of(result));
    js_put_null(out, "error_code");
    put_time(out, "submitted_at", r->created);
    put_time(out, "completed_at", r->finished);
    if (r->finished > 0 && r->started > 0)
        js_put_f64(out, "processing_time", r->finished - r->started);
    else
        js_put_null(out, "processing_time");
    js_end(out, '}');
}

void kernel_gym_put_status(const char *id, const struct job_row *r, const json_t *result, int64_t position,
                           struct str *out) {
    js_begin(out, NULL, '{');
    js_put_str(out, "task_id", id);
    js_put_str(out, "status", kernel_gym_state(r->status));
    js_put_f64(out, "progress", job_is_over(r->status) ? 100 : 0);
    if (position > 0)
        js_put_i64(out, "queue_position", position);
    else
        js_put_null(out, "queue_position");
    js_put_str(out, "error_message", job_is_over(r->status) ? message_of(result) : NULL);
    js_end(out, '}');
}
