#include "verify/torch/calls.h"

#include "base/clock.h"
#include "base/rng.h"
#include "verify/jail/time_account.h"
#include "verify/torch/failure.h"
#include "verify/torch/gpu.h"
#include "verify/torch/request.h"

static bool ask_ready(struct torch_answer *r, const int *slots, int n) {
    CLEANUP_STR struct str q = STR_INIT;
    run_open_request(&q, "ready");
    js_begin(&q, "slots", '[');
    for (int i = 0; i < n; i++) js_put_i64(&q, NULL, slots[i]);
    js_end(&q, ']');
    return modrun_ask(&r->process.run, &q, -1);
}

static bool is_ready(struct torch_answer *r, bool asked, const char *where) {
    const double timeout_s = r->j->o->run_timeout_s;
    json_t *reply = NULL;
    enum modrun_result result = asked ? modrun_receive(&r->process.run, timeout_s, &reply) : MODRUN_DEAD;
    bool good = run_conclude(r, result, timeout_s, where, &reply);
    json_decref(r->process.segments);
    r->process.segments = json_incref(json_object_get(reply, "segments"));
    json_decref(reply);
    /* The answer's memory is watched now and then, and nobody can know when. It is not watched always, because that
     * costs a pass over this memory. */
    if (good && is_timed(r) && r->process.segments && is_hardened(r->j) &&
        rng_u64(r->random, 9, ++r->random_step) % 8 == 0)
        modcase_watch(r->c, r->process.segments);
    return good;
}

bool run_ready(struct torch_answer *r, const int *slots, int n, const char *where) {
    return is_ready(r, ask_ready(r, slots, n), where);
}

bool run_ready_both(struct torch_answer *a, struct torch_answer *b, const int *slots, int n, const char *where) {
    const double t0 = clock_now_s();
    const bool asked_a = ask_ready(a, slots, n), asked_b = ask_ready(b, slots, n);
    const bool ready_a = is_ready(a, asked_a, where), ready_b = is_ready(b, asked_b, where);
    spent_add("process", "ready, two", clock_now_s() - t0);
    return ready_a && ready_b;
}

bool run_poison(struct torch_answer *r, int byte) {
    CLEANUP_STR struct str q = STR_INIT;
    run_open_request(&q, "poison");
    js_put_i64(&q, "byte", byte);
    js_begin(&q, "sizes", '[');
    for (int i = 0; i < r->c->n_outputs; i++) js_put_i64(&q, NULL, r->c->output_bytes[i]);
    js_end(&q, ']');
    return run_simple(r, &q, -1, r->j->o->run_timeout_s, "between calls");
}

bool run_call(struct torch_answer *r, const int *slots, int n, const struct modset *sets, double timeout_s,
              const char *where, json_t **reply, int64_t *ns) {
    CLEANUP_STR struct str q = STR_INIT;
    if (is_timed(r) && n > 0 && on_gpu(r->j) && is_hardened(r->j) && !run_has_waited(r)) return false;
    run_open_request(&q, "call");
    js_put_i64(&q, "param_set", sets[0].param_set);
    js_put_bool(&q, "apart", r->process.own_streams);
    js_begin(&q, "slots", '[');
    for (int i = 0; i < n; i++) js_put_i64(&q, NULL, slots[i]);
    js_end(&q, ']');
    if (r->c->random) {
        js_begin(&q, "seeds", '[');
        for (int i = 0; i < n; i++) js_put_i64(&q, NULL, (int64_t)modcase_forward_seed(r->c, &sets[i]));
        js_end(&q, ']');
    }
    return run_request(r, &q, -1, timeout_s, where, reply, ns);
}

const json_t *run_place(const json_t *reply, int i, int k) {
    const json_t *calls = json_object_get(reply, "pointers");
    return json_array_get(json_array_get(calls, (size_t)i), (size_t)k);
}

uint64_t run_pointer(const json_t *reply, int i, int k) {
    return (uint64_t)json_integer_value(json_array_get(run_place(reply, i, k), 0));
}
