/* The clock of ModelNew answers on known times: waits of known ratios, hidden work, and what each timing method
 * changes. Other programs may keep this machine busy, so that times are compared by their smallest: waiting never takes
 * less than it says. Needs PyTorch and a sandbox; says so and skips where they are missing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "verify/verify.c" /* for its options */

static const char head[] = "import threading\nimport time\nimport torch\nimport torch.nn as nn\n\n\n"
                           "def wait(seconds):\n    end = time.perf_counter() + seconds\n    while time.perf_counter() "
                           "< end:\n        pass\n\n\n";
static const char tail[] =
    "\n\ndef get_inputs():\n    return [torch.rand(64, 64)]\n\n\ndef get_init_inputs():\n    return []\n";

/* Right for what torch.rand makes, and wherever nothing is below zero. */
static const char identity[] = "class ModelNew(nn.Module):\n    def forward(self, x):\n        return x.clone()\n";
static const char identity_c[] = "void kernel(const float *restrict x, float *restrict out) {\n"
                                 "    for (long i = 0; i < X_N; i++) out[i] = x[i];\n}\n";

static int quiet_calls, quiet_depth;
static void note_quiet(void *ctx, bool on) {
    (void)ctx;
    quiet_calls += on;
    quiet_depth += on ? 1 : -1;
    assert_true(quiet_depth == 0 || quiet_depth == 1);
}

static struct verifier *verifiers[2]; /* c, torch_cpu */

/* The backend's verifier with these options. */
static struct verifier *with(struct verify_options o) {
    struct verifier **v = &verifiers[o.backend == BACKEND_torch_cpu];
    struct err e = {0};
    o.threads = 1;
    o.seed = 5;
    enum status st = *v ? ST_OK : verifier_open(&o, v, &e);
    if (st == ST_WORKER || st == ST_SANDBOX) {
        printf("skipped: %s\n", e.msg);
        skip();
    } else if (st != ST_OK)
        fail_msg("%s", e.msg);
    struct verify_options *now = &(*v)->o;
    now->measure = o.measure;
    now->timed_calls = o.timed_calls ? o.timed_calls : 100;
    now->timing_method = o.timing_method;
    now->interval = o.interval;
    now->timing_budget_s = o.timing_budget_s > 0 ? o.timing_budget_s : 20;
    now->run_timeout_s = o.run_timeout_s > 0 ? o.run_timeout_s : 10;
    now->quiet = o.quiet;
    now->staged = o.staged;
    now->single_input = (*v)->references.single_input = o.single_input;
    return *v;
}

static struct verifier *timed_with(struct verify_options o) {
    o.backend = BACKEND_torch_cpu;
    o.measure = true;
    return with(o);
}

static int close_all(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(verifiers); i++) verifier_close(verifiers[i]);
    return 0;
}

static int judgements; /* calls of judged() so far */

/* The reference waits for eager_s; `answer` is ModelNew's module after `head`. */
static struct verdict judged(struct verifier *v, double eager_s, const char *answer) {
    struct str code = STR_INIT, source = STR_INIT;
    struct err e = {0};
    str_addf(&code, "# %d\n", ++judgements); /* no verdict is taken from an equal answer judged otherwise */
    str_addf(&code,
             "%sclass Model(nn.Module):\n    def forward(self, x):\n        wait(%g)\n        return torch.relu(x)\n%s",
             head, eager_s, tail);
    bool native = str_has_prefix(answer, "void");
    str_addf(&source, "%s%s", native ? "" : head, answer);
    struct problem p = {.key = "wait", .name = "wait", .code = str_c(&code)};
    struct verify_item it = {.problem = &p, .source = str_c(&source)};
    if (verify_batch(v, &it, 1, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
    str_free(&code);
    str_free(&source);
    return it.verdict;
}

static struct verdict waiting(struct verifier *v, double eager_s, double answer_s) {
    char text[300];
    snprintf(text, sizeof text,
             "class ModelNew(nn.Module):\n    def forward(self, x):\n        wait(%g)\n        return torch.relu(x)\n",
             answer_s);
    struct verdict d;
    for (int attempt = 0; attempt < 4; attempt++) { /* others on the machine may spoil one measurement, not each */
        d = judged(v, eager_s, text);
        if (d.outcome != OUTCOME_UNSTABLE) break;
        printf("unstable: %s\n", d.message);
    }
    if (d.outcome != OUTCOME_CORRECT) fail_msg("%s: %s", outcome_name(d.outcome), d.message);
    assert_true(d.speedup_low <= d.speedup && d.speedup <= d.speedup_high && d.speedup_low > 0);
    return d;
}

static void test_known_ratios(void **state) {
    (void)state;
    struct verifier *v = timed_with((struct verify_options){.timed_calls = 20, .quiet = note_quiet});
    static const double ratios[] = {0.5, 1, 2, 5};
    const int before = judgements;
    quiet_calls = quiet_depth = 0;
    for (size_t i = 0; i < ARRAY_LEN(ratios); i++) {
        bool good = false;
        /* Alone on its machine within 5 %, each time. Others may spoil one measurement, but not each time. */
        for (int attempt = 0; attempt < 4 && !good; attempt++) {
            struct verdict d = waiting(v, 10e-3, 10e-3 / ratios[i]);
            double best = d.eager.min_ms / d.kernel.min_ms;
            printf("ratio %g: %.3f by medians, %.3f by the smallest times\n", ratios[i], d.speedup, best);
            assert_true(d.kernel.calls >= 20 && d.eager.calls == d.kernel.calls);
            assert_true(d.kernel.min_ms <= d.kernel.mean_ms && d.kernel.mean_ms <= d.kernel.max_ms);
            good = best > 0.85 * ratios[i] && best < 1.1 * ratios[i] && !d.remeasured;
        }
        if (!good) fail_msg("a ratio of %g is not seen", ratios[i]);
    }
    struct verdict d = waiting(v, 20e-3, 5e-5); /* hundreds of times: in a second process, before it counts */
    assert_true(d.remeasured && d.speedup > 0);
    assert_true(quiet_calls == judgements - before &&
                quiet_depth == 0); /* the machine to itself, and back, each time */
}

/* Work that is hidden from the clock costs its time all the same, or the answer. */
static void test_hidden_work(void **state) {
    (void)state;
    static const struct {
        const char *what, *answer;
    } answers[] = {
        {"a thread", "class ModelNew(nn.Module):\n    def forward(self, x):\n"
                     "        threading.Thread(target=wait, args=(2e-3,)).start()\n        return torch.relu(x)\n"},
        {"slow when asked for nothing, so that more is taken off",
         "from kernelrl_worker import harness\n\nreal = harness.Harness.call\n\n\n"
         "def call(self, request, rest):\n    if not request['slots']:\n        time.sleep(0.05)\n"
         "    return real(self, request, rest)\n\n\nharness.Harness.call = call\n\n\n"
         "class ModelNew(nn.Module):\n    def forward(self, x):\n        wait(2e-3)\n        return torch.relu(x)\n"},
        {"in front of the call, as soon as inputs are there",
         "from kernelrl_worker import harness\n\nreal = harness.Harness.ready\nKNOWN = {}\n\n\n"
         "def ready(self, request, rest):\n    reply = real(self, request, rest)\n    KNOWN.clear()\n"
         "    for x in self.inputs.values():\n        wait(2e-3)\n        KNOWN[x[0].data_ptr()] = torch.relu(x[0])\n"
         "    return reply\n\n\nharness.Harness.ready = ready\n\n\n"
         "class ModelNew(nn.Module):\n    def forward(self, x):\n        return KNOWN[x.data_ptr()]\n"},
        {"at the beginning of a request, as if that were what requests cost",
         "from kernelrl_worker import harness\n\nreal = harness.Harness.call\n\n\n"
         "def call(self, request, rest):\n    for _ in request['slots']:\n        wait(2e-3)\n"
         "    return real(self, request, rest)\n\n\nharness.Harness.call = call\n\n\n"
         "class ModelNew(nn.Module):\n    def forward(self, x):\n        return torch.relu(x)\n"},
        {"between the first byte of a reply and the others",
         "from kernelrl_worker import channel\n\n\n"
         "class Slow:\n    def __init__(self, socket):\n        self.socket = socket\n\n"
         "    def __getattr__(self, name):\n        return getattr(self.socket, name)\n\n"
         "    def sendall(self, data):\n        self.socket.send(data[:1])\n        wait(2e-3)\n"
         "        self.socket.sendall(data[1:])\n\n\n"
         "def send(self, message, real=channel.Channel.send):\n    if 'pointers' in message and 'nonce' in message:\n"
         "        self.socket = Slow(self.socket)\n    real(self, message)\n\n\nchannel.Channel.send = send\n\n\n"
         "class ModelNew(nn.Module):\n    def forward(self, x):\n        return torch.relu(x)\n"},
    };
    struct verifier *v = timed_with((struct verify_options){.timed_calls = 10, .run_timeout_s = 3});
    for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
        struct verdict d = judged(v, 2e-3, answers[i].answer);
        printf("%s: %s, at least %.3f ms\n", answers[i].what, outcome_name(d.outcome), d.kernel.min_ms);
        assert_true(d.outcome != OUTCOME_INFRASTRUCTURE && d.outcome != OUTCOME_PROBLEM_ERROR);
        if (d.outcome == OUTCOME_CORRECT && d.kernel.min_ms < 1.9) fail_msg("%s: not charged", answers[i].what);
    }
}

/* Each method changes what it says. */
static void test_methods(void **state) {
    (void)state;
    struct verifier *v = timed_with((struct verify_options){.timed_calls = 60, .timing_method = TIMING_cuda_event});
    struct verdict event = {.kernel.min_ms = 1}, host = {.kernel.min_ms = 0};
    for (int i = 0; i < 4 && host.kernel.min_ms <= event.kernel.min_ms; i++) {
        event = waiting(v, 2e-4, 2e-4);
        v = timed_with((struct verify_options){.timed_calls = 60, .timing_method = TIMING_host_time});
        host = waiting(v, 2e-4, 2e-4);
        v = timed_with((struct verify_options){.timed_calls = 60, .timing_method = TIMING_cuda_event});
        printf("cuda_event %.4f ms, host_time %.4f ms\n", event.kernel.min_ms, host.kernel.min_ms);
        assert_int_equal(event.kernel.calls, 60);
        assert_int_equal(host.kernel.calls, 60);
    }
    assert_true(host.kernel.min_ms > event.kernel.min_ms); /* the messages' time */
    v = timed_with((struct verify_options){.timed_calls = 12, .timing_method = TIMING_do_bench});
    struct verdict bench = waiting(v, 1e-3, 1e-3);
    /* until both sides' calls, in turns, add up to 100 ms; 12 calls are 24 ms */
    assert_true(bench.kernel.calls > 12);
    assert_true((bench.kernel.mean_ms + bench.eager.mean_ms) * bench.kernel.calls >= 90);
    /* Several calls a request, and six requests at least. */
    v = timed_with((struct verify_options){.timed_calls = 2, .timing_method = TIMING_do_bench_impl});
    struct verdict queued = {0}; /* on a busy machine a call may seem too long for that */
    for (int i = 0; i < 4 && queued.kernel.calls <= 6; i++) queued = waiting(v, 2e-5, 2e-5);
    assert_true(queued.kernel.calls > 6);
    /* No interval is a millionth wide: on until the budget is spent. */
    v = timed_with((struct verify_options){
        .timed_calls = 6, .timing_method = TIMING_calibrated, .interval = 1e-6, .timing_budget_s = 2});
    struct verdict calibrated = waiting(v, 1e-3, 1e-3);
    assert_true(calibrated.kernel.calls > 12 && calibrated.time_s >= 2);
    struct verify_options o = {
        .backend = BACKEND_torch_cpu, .device = "cpu", .measure = true, .timing_method = TIMING_nsight_python_time};
    struct err e = {0};
    assert_int_equal(verifier_open(&o, &v, &e), ST_CONFIG); /* there are no kernels to list on a CPU */
    assert_non_null(strstr(e.msg, "nsight_python_time"));
}

/* A verdict on `answer` beside a reference whose module is `model`, behind `head`. */
static struct verdict judged_beside(struct verifier *v, const char *model, const char *answer) {
    CLEANUP_STR struct str code = STR_INIT, source = STR_INIT;
    struct err e = {0};
    static int serial;
    str_addf(&code, "# %d, beside\n%s%s%s", ++serial, head, model, tail);
    str_addf(&source, "%s%s", head, answer);
    struct problem p = {.key = "beside", .name = "beside", .code = str_c(&code)};
    struct verify_item it = {.problem = &p, .source = str_c(&source)};
    if (verify_batch(v, &it, 1, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
    printf("%s, ratio %.2f, timing %.1f s; %s\n", outcome_name(it.verdict.outcome), it.verdict.speedup,
           it.verdict.time_s, it.verdict.message);
    return it.verdict;
}

/* A reference that is slower as long as there is an answer, whoever makes it so, counts as it is without one. Calls of
 * this length are made one a request: 4 to warm up, 10 in turns, then those that ask again. */
static void test_slowed_reference(void **state) {
    (void)state;
    static const char model[] = "class Model(nn.Module):\n    calls = 0\n\n    def forward(self, x):\n"
                                "        Model.calls += 1\n        wait(%g if Model.calls <= 14 else %g)\n"
                                "        return torch.relu(x)\n";
    static const char answer[] =
        "class ModelNew(nn.Module):\n    def forward(self, x):\n        wait(0.03)\n        return torch.relu(x)\n";
    struct verifier *v = timed_with((struct verify_options){.timed_calls = 10, .timing_method = TIMING_cuda_event});
    char slowed[400], honest[400];
    snprintf(slowed, sizeof slowed, model, 0.12, 0.03);
    snprintf(honest, sizeof honest, model, 0.12, 0.12);
    /* Others may keep the machine busy in one measurement, not in all; what nobody has slowed down keeps its ratio. */
    bool seen = false, kept = false;
    for (int i = 0; i < 4 && !(seen && kept); i++) {
        const struct verdict d = judged_beside(v, slowed, answer);
        seen |= d.outcome == OUTCOME_CORRECT && d.speedup < 1.5 && d.eager_ms < 60;
        const struct verdict k = judged_beside(v, honest, answer);
        kept |= k.outcome == OUTCOME_CORRECT && k.speedup > 3 && k.eager_ms >= 119;
    }
    assert_true(seen && kept);
}

/* A reference that fails beside the answer alone is the answer's doing; one that fails without it too is not. */
static void test_failing_reference(void **state) {
    (void)state;
    /* Asked what its outputs are, it fails: which it is not without an answer. */
    static const char beside[] =
        "from kernelrl_worker import harness\n\n\ndef describe(self, request, rest):\n    raise ValueError('no')\n\n\n"
        "class Model(nn.Module):\n    def forward(self, x):\n        harness.Harness.describe = describe\n"
        "        return torch.relu(x)\n";
    static const char always[] = "class Model(nn.Module):\n    calls = 0\n\n    def forward(self, x):\n"
                                 "        import sys\n        Model.calls += 'answer' in sys.modules\n"
                                 "        if Model.calls == 3:\n            raise ValueError('no')\n"
                                 "        return torch.relu(x)\n";
    static const char answer[] =
        "class ModelNew(nn.Module):\n    def forward(self, x):\n        return torch.relu(x)\n";
    struct verifier *v = timed_with((struct verify_options){.timed_calls = 10});
    assert_int_equal(judged_beside(v, beside, answer).outcome, OUTCOME_HIDDEN_WORK);
    assert_int_equal(judged_beside(v, always, answer).outcome, OUTCOME_INFRASTRUCTURE);
}

/* What an answer takes of our time is bounded over all of its timing; a slow one is asked for fewer calls. */
static void test_budget(void **state) {
    (void)state;
    static const char model[] = "class Model(nn.Module):\n    def forward(self, x):\n        return torch.relu(x)\n";
    static const char stalls[] = "class ModelNew(nn.Module):\n    calls = 0\n\n    def forward(self, x):\n"
                                 "        ModelNew.calls += 1\n        time.sleep(%g if ModelNew.calls > 5 else 0)\n"
                                 "        return torch.relu(x)\n";
    struct verifier *v = timed_with((struct verify_options){.timing_budget_s = 1, .run_timeout_s = 3});
    char answer[400];
    snprintf(answer, sizeof answer, stalls, 2.5);
    struct verdict d = judged_beside(v, model, answer);
    assert_int_equal(d.outcome, OUTCOME_TIMEOUT);
    snprintf(answer, sizeof answer, stalls, 0.2);
    bool good = false; /* a busy machine may be late once */
    for (int i = 0; i < 3 && !good; i++) {
        d = judged_beside(v, model, answer);
        good = d.outcome == OUTCOME_CORRECT && d.kernel.min_ms >= 199;
    }
    assert_true(good);
}

/* Times that are quick and slow by the answer's doing say nothing. */
static void test_wild_times(void **state) {
    (void)state;
    static const char model[] =
        "class Model(nn.Module):\n    def forward(self, x):\n        wait(0.025)\n        return torch.relu(x)\n";
    static const char answer[] = "class ModelNew(nn.Module):\n    calls = 0\n\n    def forward(self, x):\n"
                                 "        ModelNew.calls += 1\n"
                                 "        wait((0.4, 0.025, 0.025, 0.4, 0.025, 0.4, 0.4)[ModelNew.calls % 7])\n"
                                 "        return torch.relu(x)\n";
    struct verifier *v = timed_with((struct verify_options){.timed_calls = 14, .timing_method = TIMING_cuda_event});
    bool unstable = false; /* others may make the reference's as wild, not each time */
    for (int i = 0; i < 3 && !unstable; i++) unstable = judged_beside(v, model, answer).outcome == OUTCOME_UNSTABLE;
    assert_true(unstable);
}

static struct verdict judged_with(struct verify_options o, const char *answer) { return judged(with(o), 0, answer); }

static void stage_is(const struct verdict *v, const char *stage) {
    CLEANUP_STR struct str s = STR_INIT;
    char wanted[60];
    verdict_to_json(v, &s);
    snprintf(wanted, sizeof wanted, "\"passed_stage\":\"%s\"", stage);
    if (!strstr(str_c(&s), wanted)) fail_msg("no %s in %s", wanted, str_c(&s));
}

/* `staged`: how far an answer goes after it has failed. `single_input`: what it is tried on. */
static void test_staging_and_inputs(void **state) {
    (void)state;
    const struct verify_options python = {.backend = BACKEND_torch_cpu}, c = {.backend = BACKEND_c};
    struct verify_options o = python;
    struct verdict d = judged_with(o, identity);
    assert_true(d.outcome == OUTCOME_WRONG_OUTPUT && d.tests_passed == 1 && d.tests_total == 5);
    stage_is(&d, "run");
    o.staged = STAGED_OFF; /* among four other families some are never negative where it shows */
    d = judged_with(o, identity);
    assert_true(d.outcome == OUTCOME_WRONG_OUTPUT && d.tests_passed > 1 && d.tests_passed < 5);
    assert_non_null(strstr(d.message, "test 2 of 5"));
    o = python;
    o.single_input = true;
    d = judged_with(o, identity);
    assert_true(d.outcome == OUTCOME_CORRECT && d.tests_passed == 5);
    stage_is(&d, "correct"); /* not timed */
    /* Shipped, signed, shipped, scaled, signed: two of five, or the one in front of the first failure. */
    o = c;
    d = judged_with(o, identity_c);
    assert_true(d.outcome == OUTCOME_WRONG_OUTPUT && d.tests_passed == 2);
    o.staged = STAGED_ON;
    d = judged_with(o, identity_c);
    assert_true(d.outcome == OUTCOME_WRONG_OUTPUT && d.tests_passed == 1);
    o = c;
    o.single_input = o.measure = true;
    d = judged_with(o, identity_c);
    assert_true(d.outcome == OUTCOME_CORRECT && d.tests_passed == 5 && d.speedup > 0);
    stage_is(&d, "timed");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_ratios),     cmocka_unit_test(test_hidden_work),
        cmocka_unit_test(test_methods),          cmocka_unit_test(test_staging_and_inputs),
        cmocka_unit_test(test_slowed_reference), cmocka_unit_test(test_failing_reference),
        cmocka_unit_test(test_budget),           cmocka_unit_test(test_wild_times),
    };
    return cmocka_run_group_tests(tests, NULL, close_all);
}
