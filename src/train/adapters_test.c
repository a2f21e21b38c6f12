/* Many models over one base: adapters that are trained, sampled from, put to rest, woken, dropped and made anew in a
 * random order give, each, the bits that they give alone. KERNELRL_TEST_DEVICE names another device than the CPU
 * (tests/e2e/cuda.sh: the emulated one); with KERNELRL_TEST_SEED it is another order. */
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

#include "base/hash.h"
#include "engine/engine.h"
#include "rl/test_util.h"
#include "train/step.h"

static const char config[] = "{\"model_type\":\"qwen2\",\"vocab_size\":64,\"hidden_size\":32,"
                             "\"intermediate_size\":48,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
                             "\"num_key_value_heads\":1,\"max_position_embeddings\":128,"
                             "\"tie_word_embeddings\":true}";
enum { JOBS = 5, OPS = 14, TEXTS = 2, TEXT = 9, NEW = 6, V = 64, PROMPT = 4 };
static const struct adapter_shape shape[JOBS] = {{4, 8, ADAPTER_LAYERS, 0},
                                                 {3, 32, ADAPTER_LAYERS | ADAPTER_HEAD, 0},
                                                 {8, 16, ADAPTER_HEAD, 0},
                                                 {2, 4, ADAPTER_ATTENTION, 0},
                                                 {5, 10, ADAPTER_MLP | ADAPTER_HEAD, 0}};

static struct backend *be;
static const char *device;

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
    if (j->done + 1 == OPS) return OP_SAVED;
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
    for (int i = -1; i < JOBS; i++) {
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
    for (int i = 0; i < JOBS; i++) jobs[i] = (struct job){.order = order, .number = i};
    for (int left = JOBS * OPS; left > 0;) {
        struct job *j = &jobs[rng_below(&all.order, JOBS)];
        if (j->done == OPS) continue;
        for (int k = 0; k < 2; k++) disturb(&all, &jobs[rng_below(&all.order, JOBS)]);
        for (int k = 0; k < JOBS; k++) rested += jobs[k].t && jobs[k].t->rest;
        next_op(&all, j, jobs, &got[j->number][j->done]);
        left--;
    }
    assert_true(rested > JOBS * OPS / 4);
    by_engine += all.rested + all.woken;
    close_world(&all, jobs, JOBS);
    for (int i = 0; i < JOBS; i++) {
        struct job one = {.order = order, .number = i};
        struct world alone;
        open_world(dtype, true, order, &alone);
        for (int k = 0; k < OPS; k++) {
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
    assert_true(!cpu || by_engine > 0); /* one schedule of another device may do without */
}

/* ---- what goes wrong ----------------------------------------------------------------------------------------------*/

static void *(*whole_alloc)(struct backend *b, size_t bytes);
static int allocations_left;
static void *scarce_alloc(struct backend *b, size_t bytes) {
    return allocations_left-- > 0 ? whole_alloc(b, bytes) : NULL;
}

/* A job with gradients since its last step, which has moments. */
static void begin_job(struct world *w, struct job *j) {
    static const struct adamw_config adam = {.learning_rate = 0.02, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-12};
    struct op_result unread;
    double norm;
    *j = (struct job){.number = 1};
    create(w, j);
    accumulate(j, &unread);
    CHECK(train_optimizer_step(j->t, &adam, 1, 0, &norm, &err));
    accumulate(j, &unread);
}

static uint64_t end_of_job(struct world *w, struct job *j) {
    static const struct adamw_config adam = {.learning_rate = 0.02, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-12};
    double norm;
    CHECK(train_optimizer_step(j->t, &adam, 1, 0, &norm, &err));
    return weights_of(w, j);
}

static uint64_t undisturbed(void) {
    struct world w;
    struct job j;
    open_world("f32", true, 1, &w);
    begin_job(&w, &j);
    const uint64_t weights = end_of_job(&w, &j);
    close_world(&w, &j, 1);
    return weights;
}

/* A full disk, a damaged file and memory that ends anywhere: the trainer is what it was, awake or at rest, and the step
 * has the bits that it would have had. */
static void what_fails_loses_nothing(void **state) {
    (void)state;
    const uint64_t want = undisturbed();
    const char *path = in_tmp("moments");
    struct rlimit before, small;
    struct world w;
    struct job j;
    char *text;
    size_t n;
    open_world("f32", true, 1, &w);
    begin_job(&w, &j);
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 3000;
    signal(SIGXFSZ, SIG_IGN);
    for (int in_memory = 0; in_memory < 2; in_memory++) {
        if (in_memory) CHECK(trainer_rest(j.t, NULL, &err));
        setrlimit(RLIMIT_FSIZE, &small);
        err = (struct err){0};
        const enum status st = trainer_rest(j.t, path, &err);
        setrlimit(RLIMIT_FSIZE, &before);
        assert_true(st == ST_IO && strstr(err.msg, path) && !fs_is_file(path) && !j.t->rest == !in_memory);
    }
    CHECK(trainer_rest(j.t, path, &err));
    CHECK_FAILS(trainer_rest(j.t, NULL, &err), ST_INVALID, "moments");
    CHECK_FAILS(train_accumulate(j.t, &(struct train_call){0}, NULL, 0, NULL, &err), ST_INVALID, "is at rest");
    CHECK_FAILS(train_optimizer_step(j.t, &(struct adamw_config){0}, 0, 0, &(double){0}, &err), ST_INVALID, "at rest");
    CHECK(fs_read(path, 1 << 22, &text, &n, &err));
    for (size_t at = n / 2; at < n; at += n / 7) {
        text[at] ^= 8;
        CHECK(fs_write_atomic(path, text, n, &err));
        CHECK_FAILS(trainer_wake(j.t, &err), ST_INVALID, "moments");
        text[at] ^= 8;
    }
    CHECK(fs_remove(path, &err));
    CHECK_FAILS(trainer_wake(j.t, &err), ST_IO, "moments");
    CHECK(fs_write_atomic(path, text, n, &err));
    CHECK(model_adapter_rest(w.m, j.index, in_tmp("weights"), &err));
    whole_alloc = be->mem_alloc;
    be->mem_alloc = scarce_alloc;
    int failed = 0;
    for (;; failed++) {
        allocations_left = failed;
        const enum status st = trainer_wake(j.t, &err);
        if (st == ST_OK) break;
        assert_true(st == ST_MEMORY && j.t->rest && !j.t->opt && !j.t->sum);
    }
    be->mem_alloc = whole_alloc;
    assert_true(failed >= 3 && !fs_is_file(path) && !fs_is_file(in_tmp("weights")));
    assert_true(end_of_job(&w, &j) == want);
    close_world(&w, &j, 1);
    free(text);
}

/* A trainer that forgets its gradients while it is at rest begins at zero; one of all weights, and one whose adapter is
 * not prepared, are refused. */
static void who_cannot_rest_is_refused(void **state) {
    (void)state;
    struct world w;
    struct job j;
    struct trainer *t;
    double norm;
    open_world("f32", true, 1, &w);
    CHECK_FAILS(trainer_open(test_comm(), w.m, ADAPTER_OWN, 1, &t, &err), ST_INVALID, "adapter 0 is not prepared");
    begin_job(&w, &j);
    CHECK(trainer_rest(j.t, NULL, &err));
    train_forget(j.t);
    CHECK(trainer_wake(j.t, &err));
    CHECK(train_optimizer_step(j.t, &(struct adamw_config){.eps = 1}, 0, 0, &norm, &err));
    assert_true(norm == 0);
    model_adapter_release(w.m, j.index);
    CHECK_FAILS(trainer_rest(j.t, NULL, &err), ST_INVALID, "is not prepared for training any more");
    close_world(&w, &j, 1);
    struct model *full = tiny_model(1, false);
    CHECK(trainer_open(test_comm(), full, ADAPTER_OWN, 1, &t, &err));
    CHECK_FAILS(trainer_rest(t, NULL, &err), ST_INVALID, "a trainer of all weights cannot rest");
    trainer_close(t);
    model_free(full);
}

static int setup(void **state) {
    device = getenv("KERNELRL_TEST_DEVICE");
    if (!device) device = "cpu";
    CHECK(backend_open(device, NULL, &be, &err));
    return make_tmp_dir(state);
}

static int teardown(void **state) {
    be->close(be);
    return remove_tmp_dir(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(schedules_give_the_bits_of_each_alone),
                                       cmocka_unit_test(what_fails_loses_nothing),
                                       cmocka_unit_test(who_cannot_rest_is_refused)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
