/* Fuzz target: what NeMo-Gym and KernelGYM send, of any bytes. What is taken makes a request that verdict_ask_read()
 * can read or refuse; a reply is JSON, and has a reward only where the result has a verdict. The input's first byte
 * says whose body it is; NeMo-Gym's is taken for a job's result, too. */
#include <string.h>

#include "verdicts/shapes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_request(bool taken, json_t *request, const struct verdict_refusal *refusal) {
    struct verdict_refusal why;
    struct verdict_ask a;
    ASSERT(taken == (request != NULL));
    if (!taken) {
        ASSERT(refusal->status >= 400 && refusal->status < 500 && refusal->message[0]);
        return;
    }
    if (!verdict_ask_read(request, &a, &why)) ASSERT(why.status >= 400 && why.status < 500);
    json_decref(request);
}

static void check_json(const struct str *s) {
    CLEANUP_JSON json_t *o = NULL;
    struct err e;
    ASSERT(js_parse(s->p, s->len, "a reply", &o, &e) == ST_OK);
}

static void check_nemo(json_t *body) {
    CLEANUP_STR struct str means = STR_INIT, reply = STR_INIT;
    CLEANUP_JSON json_t *row = json_object(), *result = json_deep_copy(body);
    struct verdict_refusal why = {0};
    json_t *request = NULL;
    const bool taken = nemo_gym_request(body, &request, &why);
    check_request(taken, request, &why);
    if (nemo_gym_means(body, &means, &why)) check_json(&means);
    if (!nemo_gym_reply(row, result)) {
        ASSERT(json_object_size(row) == 0);
        return;
    }
    ASSERT(json_is_object(json_object_get(result, "reward")) && json_is_real(json_object_get(row, "reward")));
    js_put_json(&reply, NULL, row);
    check_json(&reply);
}

static void check_kernel_gym(const json_t *body) {
    CLEANUP_STR struct str s = STR_INIT;
    struct verdict_refusal why = {0};
    const struct job_row r = {.name = "vj-1", .status = JOB_SUCCEEDED, .created = 1e9, .finished = 2e9};
    json_t *request = NULL;
    double wait_s;
    const bool taken = kernel_gym_request(body, &request, &wait_s, &why);
    if (taken) ASSERT(wait_s >= 1 && wait_s <= 3600);
    check_request(taken, request, &why);
    kernel_gym_put_result("t", &r, body, &s);
    check_json(&s);
    s.len = 0;
    kernel_gym_put_status("t", &r, body, 1, &s);
    check_json(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    CLEANUP_JSON json_t *body = NULL;
    struct err e;
    if (size == 0 || js_parse((const char *)data + 1, size - 1, "the body", &body, &e) != ST_OK) return 0;
    if (data[0] % 2)
        check_nemo(body);
    else
        check_kernel_gym(body);
    return 0;
}
