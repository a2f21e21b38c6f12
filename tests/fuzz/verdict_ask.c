/* Fuzz target: requests for verdicts, of any bytes. What is taken names a problem and a solution and keeps to its
 * ranges; what is refused says why, in UTF-8, with a status of the client's fault. */
#include <string.h>

#include "io/json.h"
#include "verdicts/ask.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct verdict_ask *a) {
    ASSERT(!a->key != !a->code && a->solution);
    ASSERT(!a->code || (strlen(a->code) <= VERDICT_PROBLEM_BYTES && !a->source));
    ASSERT(strlen(a->solution) <= VERDICT_SOLUTION_BYTES);
    ASSERT(!a->key || (*a->key && strlen(a->key) <= VERDICT_NAME_BYTES));
    ASSERT(a->priority >= 0 && a->priority < VERDICT_PRIORITIES);
    ASSERT(a->trials == -1 || (a->trials >= 1 && a->trials <= 100));
    ASSERT(a->timed_calls == -1 || (a->timed_calls >= 1 && a->timed_calls <= 10000));
    ASSERT(a->tokens >= -1 && a->tokens <= INT32_MAX);
    ASSERT(a->measure >= -1 && a->measure <= 1 && a->single_input >= -1 && a->single_input <= 1);
    ASSERT(a->backend >= -1 && a->staged >= -1 && a->timing_method >= -1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    CLEANUP_JSON json_t *request = NULL;
    struct verdict_ask a;
    struct verdict_refusal why;
    struct err e;
    if (js_parse((const char *)data, size, "line 1", &request, &e) != ST_OK) return 0;
    if (verdict_ask_read(request, &a, &why)) {
        check(&a);
    } else {
        ASSERT(why.status >= 400 && why.status < 500 && why.message[0]);
        CLEANUP_STR struct str s = STR_INIT;
        str_addc(&s, '{');
        verdict_refusal_json(&why, "error", &s);
        ASSERT(js_utf8_prefix(s.p, s.len) == s.len);
    }
    return 0;
}
