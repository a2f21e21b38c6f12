/* Many models over one base: adapters that are trained, sampled from, put to rest, woken, dropped and made anew in a
 * random order give, each, the bits that they give alone. KERNELRL_TEST_DEVICE names another device than the CPU
 * (tests/e2e/cuda.sh: the emulated one); with KERNELRL_TEST_SEED it is another order. */
#include <math.h>

#include "base/hash.h"
#include "engine/engine.h"
#include "rl/test_util.h"
#include "train/step.h"

static const char config[] = "{\"model_type\":\"qwen2\",\"vocab_size\":64,\"hidden_size\":32,"
                             "\"intermediate_size\":48,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
                             "\"num_key_value_heads\":1,\"max_position_embeddings\":128,"
                             "\"tie_word_embeddings\":true}";
enum { JOBS = 5, OPS = 14, FEW_JOBS = 3, FEW_OPS = 8, TEXTS = 2, TEXT = 9, NEW = 6, V = 64, PROMPT = 4 };
static const struct adapter_shape shape[JOBS] = {{4, 8, ADAPTER_LAYERS},
                                                 {3, 32, ADAPTER_LAYERS | ADAPTER_HEAD},
                                                 {8, 16, ADAPTER_HEAD},
                                                 {2, 4, ADAPTER_ATTENTION},
                                                 {5, 10, ADAPTER_MLP | ADAPTER_HEAD}};

static struct backend *be;
static const char *device;
static int n_jobs, n_ops; /* fewer on a device, which may be emulated */

struct world {
    struct model *m;
    struct engine *en;
    struct rng order;
    int files;
    int64_t rested, woken; /* by the engine */
};
struct job {
    uint64_t order;   /* of the schedule: another one, other ops */
    int number, done; /* ops */
    int index;        /* of its adapter */
    struct trainer *t;
};
/* What came of an op. */
enum op_kind { OP_CREATE, OP_ACCUMULATE, OP_STEP, OP_SAMPLE, OP_SNAPSHOT, OP_SAVED };
struct op_result {
    enum op_kind kind;
    float logp[TEXTS][TEXT];
    double norm;
    int32_t ids[NEW];
    float sampled[NEW];
    uint64_t weights;
};

/* ---- the ops of a job, which the schedule and two numbers tell
 * -----------------------------------------------------------*/

static uint64_t number_of(const struct job *j) {
    return (j->order * 100 + (uint64_t)j->number) * 100 + (uint64_t)j->done;
}

static enum op_kind kind_of(const struct job *j) {
    struct rng r = rng_make(41, number_of(j));
    const uint64_t x = rng_below(&r, 20);
    if (j->done == 0) return OP_CREATE;
    if (j->done + 1 == n_ops) return OP_SAVED;
    return x < 7 ? OP_ACCUMULATE : x < 13 ? OP_STEP : x < 17 ? OP_SAMPLE : x < 18 ? OP_SNAPSHOT : OP_CREATE;
}

static void end_job(struct world *w, struct job *j) {
    if (!j->t) return;
    trainer_close(j->t);
    j->t = NULL;
    model_adapter_release(w->m, j->index);
    CHECK(engine_adapter_drop(w->en, j->index, &err));
}

/* A new model in the place of the one that there is. B is not zero, so that all gradients are there at once. */
static void create(struct world *w, struct job *j) {
    const uint64_t seed = number_of(j);
    end_job(w, j);
    CHECK(model_adapter_create(w->m, &shape[j->number], seed, &j->index, &err));
    CHECK(model_adapter_prepare(w->m, j->index, &err));
    const struct train_set s = model_train_set(w->m, j->index);
    for (int i = 1; i < s.n; i += 2) {
        struct rng r = rng_make(seed, 500 + (uint64_t)i);
        float *b = xmalloc((size_t)s.param[i].n * sizeof *b);
        for (int64_t k = 0; k < s.param[i].n; k++) b[k] = 0.1f * (float)rng_normal(&r);
        model_param_put(w->m, &s.param[i], b);
        free(b);
    }
    model_adapter_changed(w->m, j->index);
    CHECK(trainer_open(test_comm(), w->m, j->index, TEXT + 2, &j->t, &err)); /* a micro-batch each */
}

static void accumulate(const struct job *j, struct op_result *out) {
    static const float weights[TEXT] = {1, -0.5f, 2, 0.25f, -1, 1, 0.5f, 1, -2};
    const struct train_call c = {.loss.kind = LOSS_CROSS_ENTROPY};
    struct rng r = rng_make(43, number_of(j));
    int32_t ids[TEXTS][TEXT + 1];
    struct datum d[TEXTS];
    struct train_stats s = {0};
    for (int i = 0; i < TEXTS; i++) {
        for (int k = 0; k <= TEXT; k++) ids[i][k] = (int32_t)rng_below(&r, V);
        d[i] = (struct datum){.ids = ids[i],
                              .n = TEXT,
                              .prompt = 3,
                              .begin = 0,
                              .end = TEXT,
                              .targets = ids[i] + 1,
                              .weights = weights,
                              .scale = 0.5,
                              .logp = out->logp[i]};
    }
    CHECK(train_accumulate(j->t, &c, d, TEXTS, &s, &err));
}

/* Samples of the job's adapter; among others also some of other jobs. */
static void sample(struct world *w, const struct job *j, const struct job *all, int adapter, struct op_result *out) {
    static const int32_t prompt[PROMPT] = {5, 60, 17, 2};
    struct request q[JOBS + 1];
    struct sample s[JOBS + 1] = {{0}};
    int n = 0;
    for (int i = -1; i < n_jobs; i++) {
        const bool own = i < 0;
        if (!own && (!all || !all[i].t || rng_below(&w->order, 2))) continue;
        q[n++] = (struct request){.prompt = prompt,
                                  .n_prompt = PROMPT,
                                  .n_samples = 1,
                                  .id = own ? number_of(j) : 7,
                                  .adapter = own ? adapter : all[i].index,
                                  .params = {.temperature = 1, .top_p = 1, .max_tokens = NEW, .seed = 3}};
    }
    CHECK(engine_run(w->en, q, n, s, NULL, NULL, &err));
    w->rested += engine_stats(w->en).adapters_rested;
    w->woken += engine_stats(w->en).adapters_woken;
    memcpy(out->ids, s[0].ids, sizeof out->ids);
    memcpy(out->sampled, s[0].logp, sizeof out->sampled);
    for (int i = 0; i < n; i++) sample_free(&s[i]);
}

static uint64_t weights_of(struct world *w, const struct job *j) {
    const struct train_set s = model_train_set(w->m, j->index);
    uint64_t sum = 0;
    for (int i = 0; i < s.n; i++) {
        float *host = xmalloc((size_t)s.param[i].n * sizeof *host);
        model_param_get(w->m, &s.param[i], host);
        sum = hash_bytes(host, (size_t)s.param[i].n * sizeof *host, sum);
        free(host);
    }
    return sum;
}

static void next_op(struct world *w, struct job *j, const struct job *all, struct op_result *out) {
    static const struct adamw_config adam = {
        .learning_rate = 0.02, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-12, .weight_decay = 0.01};
    struct adapter_info info;
    int copy;
    *out = (struct op_result){.kind = kind_of(j)};
    if (out->kind != OP_CREATE && out->kind != OP_SAMPLE) CHECK(trainer_wake(j->t, &err));
    switch (out->kind) {
    case OP_CREATE: create(w, j); break;
    case OP_ACCUMULATE: accumulate(j, out); break;
    case OP_STEP: CHECK(train_optimizer_step(j->t, &adam, 1, 0, &out->norm, &err)); break;
    case OP_SAMPLE: sample(w, j, all, j->index, out); break;
    case OP_SNAPSHOT:
        CHECK(model_adapter_wake(w->m, j->index, &err));
        CHECK(model_adapter_copy(w->m, j->index, &copy, &err));
        sample(w, j, all, copy, out);
        assert_true(model_adapter_info(w->m, copy, &info) && !info.prepared);
        CHECK(engine_adapter_drop(w->en, copy, &err));
        break;
    case OP_SAVED: out->weights = weights_of(w, j); break;
    }
    j->done++;
}

/* ---- worlds -------------------------------------------------------------------------------------------------------*/

static void open_world(const char *dtype, bool alone, uint64_t order, struct world *w) {
    const struct model_options mo = {.dtype = dtype, .frozen = true};
    *w = (struct world){.order = rng_make(order, 1)};
    CHECK(model_init(config, 5, &mo, be, &w->m, &err));
    /* Room for two or three of them. */
    const struct engine_options eo = {.max_batch = 8,
                                      .adapter_bytes = alone ? 0 : 24000,
                                      .adapter_dir = alone ? NULL : in_tmp("adapters"),
                                      .adapter_host_bytes = 8000};
    CHECK(engine_open(w->m, &eo, &w->en, &err));
}

static void close_world(struct world *w, struct job *jobs, int n) {
    for (int i = 0; i < n; i++) trainer_close(jobs[i].t);
    engine_close(w->en);
    model_free(w->m);
}

static const char *new_file(struct world *w, const char *what) {
    char name[64];
    snprintf(name, sizeof name, "%s-%d.safetensors", what, w->files++);
    return in_tmp(name);
}

/* Somebody goes to rest, or wakes. */
static void disturb(struct world *w, struct job *j) {
    struct adapter_info info;
    if (!j->t || !model_adapter_info(w->m, j->index, &info)) return;
    const bool in_file = rng_below(&w->order, 2);
    switch (rng_below(&w->order, 5)) {
    case 0:
    case 1:
        if (!j->t->rest || (in_file && !rest_path(j->t->rest)))
            CHECK(trainer_rest(j->t, in_file ? new_file(w, "trainer") : NULL, &err));
        break;
    case 2: CHECK(trainer_wake(j->t, &err)); break;
    case 3:
        if (info.prepared)
            CHECK_FAILS(engine_adapter_rest(w->en, j->index, &err), ST_INVALID, "prepared for training");
        else
            CHECK(engine_adapter_rest(w->en, j->index, &err));
        break;
    default:
        if (info.place == ADAPTER_IN_MEMORY || (info.place == ADAPTER_AWAKE && !info.prepared))
            CHECK(model_adapter_rest(w->m, j->index, new_file(w, "adapter"), &err));
    }
}

static int64_t by_engine; /* adapters put to rest and woken */

static void run_schedule(const char *dtype, uint64_t order) {
    static struct op_result got[JOBS][OPS];
    struct job jobs[JOBS] = {{0}};
    struct world all;
    int rested = 0;
    open_world(dtype, false, order, &all);
    for (int i = 0; i < n_jobs; i++) jobs[i] = (struct job){.order = order, .number = i};
    for (int left = n_jobs * n_ops; left > 0;) {
        struct job *j = &jobs[rng_below(&all.order, (uint64_t)n_jobs)];
        if (j->done == n_ops) continue;
        for (int k = 0; k < 2; k++) disturb(&all, &jobs[rng_below(&all.order, (uint64_t)n_jobs)]);
        for (int k = 0; k < n_jobs; k++) rested += jobs[k].t && jobs[k].t->rest;
        next_op(&all, j, jobs, &got[j->number][j->done]);
        left--;
    }
    assert_true(rested > n_jobs * n_ops / 4);
    by_engine += all.rested + all.woken;
    close_world(&all, jobs, n_jobs);
    for (int i = 0; i < n_jobs; i++) {
        struct job one = {.order = order, .number = i};
        struct world alone;
        open_world(dtype, true, order, &alone);
        for (int k = 0; k < n_ops; k++) {
            struct op_result want;
            next_op(&alone, &one, NULL, &want);
            if (memcmp(&want, &got[i][k], sizeof want) != 0)
                fail_msg("%s, order %llu: op %d (kind %d) of job %d has other bits than alone", dtype,
                         (unsigned long long)order, k, (int)want.kind, i);
        }
        close_world(&alone, &one, 1);
    }
}

static void schedules_give_the_bits_of_each_alone(void **state) {
    (void)state;
    const char *seed = getenv("KERNELRL_TEST_SEED");
    const uint64_t first = seed ? strtoull(seed, NULL, 10) : 2;
    const bool cpu = strcmp(device, "cpu") == 0;
    for (uint64_t k = first; k < first + (cpu ? 4 : 1); k++) {
        if (cpu) run_schedule("f32", k);
        run_schedule("bf16", k);
    }
    assert_true(by_engine > 0);
}

static int setup(void **state) {
    device = getenv("KERNELRL_TEST_DEVICE");
    if (!device) device = "cpu";
    const bool cpu = strcmp(device, "cpu") == 0;
    n_jobs = cpu ? JOBS : FEW_JOBS;
    n_ops = cpu ? OPS : FEW_OPS;
    CHECK(backend_open(device, NULL, &be, &err));
    return make_tmp_dir(state);
}

static int teardown(void **state) {
    be->close(be);
    return remove_tmp_dir(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(schedules_give_the_bits_of_each_alone)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
