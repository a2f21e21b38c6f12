/* A part of plugin_test.c: checks of the engine's steps on a device. */
#ifndef KERNELRL_ENGINE_CHECKS_H
#define KERNELRL_ENGINE_CHECKS_H

static const char few_layers[] =
    "{\"model_type\":\"qwen2\",\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":32,"
    "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
    "\"max_position_embeddings\":256,\"tie_word_embeddings\":true}";

/* ---- several adapters in one batch ------------------------------------------------------------------------------- */

static struct {
    void (*begin)(struct backend *be, uint64_t key);
    int64_t keyed; /* passes that may be recorded */
} passes;
static void counted_begin(struct backend *be, uint64_t key) {
    passes.keyed += key != 0;
    passes.begin(be, key);
}

static bool adapter_of_noise(struct model *m, int rank, unsigned parts, struct err *e) {
    const struct adapter_shape shape = {rank, 2.0f * (float)rank, parts, 0};
    if (model_lora_create(m, &shape, (uint64_t)rank, e) != ST_OK) return false;
    if (model_train_prepare(m, TRAIN_LORA, e) != ST_OK) return false;
    int n;
    const struct param *p = model_params(m, &n);
    for (int i = 1; i < n; i += 2) { /* B */
        struct rng r = rng_make(9, (uint64_t)(rank * 100 + i));
        float *b = xmalloc((size_t)p[i].n * sizeof *b);
        for (int64_t j = 0; j < p[i].n; j++) b[j] = 0.2f * (float)rng_normal(&r);
        model_param_put(m, &p[i], b);
        free(b);
    }
    model_params_changed(m);
    return true;
}

/* Samples of the base, the own adapter, one of the head alone and one of the layers, in one engine, whose steps are
 * recorded: those of each request alone, and the log-probabilities of a training pass. */
static bool adapters_mixed(struct backend *gpu, struct err *e) {
    enum { ADAPTERS = 4, PROMPT = 3, NEW = 6, SAMPLES = 2 };
    static const int32_t prompt[PROMPT] = {3, 60, 17};
    const struct model_options mo = {.dtype = "bf16", .frozen = true};
    struct model *m = NULL;
    struct engine *en = NULL;
    struct sample mixed[ADAPTERS * SAMPLES] = {{0}}, alone[SAMPLES] = {{0}};
    struct request r[ADAPTERS];
    bool ok = model_init(few_layers, 3, &mo, gpu, &m, e) == ST_OK;
    for (int rank = 5; ok && rank <= 16; rank += 3 + (rank == 8) * 5) { /* 5, 8, 16 */
        ok = adapter_of_noise(m, rank, rank == 5 ? ADAPTER_LAYERS : rank == 8 ? ADAPTER_HEAD : 7, e);
        if (ok && rank < 16) (void)model_adapter_keep(m);
    }
    ok = ok && engine_open(m, &(struct engine_options){.max_batch = 16}, &en, e) == ST_OK;
    for (int i = 0; i < ADAPTERS; i++)
        r[i] = (struct request){.prompt = prompt,
                                .n_prompt = PROMPT,
                                .n_samples = SAMPLES,
                                .id = (uint64_t)i,
                                .adapter = i - 1, /* ADAPTER_BASE, ADAPTER_OWN, 1, 2 */
                                .params = {.temperature = 1, .top_p = 1, .max_tokens = NEW, .seed = 4}};
    passes.begin = gpu->pass_begin;
    passes.keyed = 0;
    gpu->pass_begin = counted_begin;
    ok = ok && engine_run(en, r, ADAPTERS, mixed, NULL, NULL, e) == ST_OK && passes.keyed >= NEW - 1;
    for (int i = 0; ok && i < ADAPTERS; i++) {
        ok = engine_run(en, &r[i], 1, alone, NULL, NULL, e) == ST_OK;
        for (int s = 0; ok && s < SAMPLES; s++) {
            const struct sample *a = &mixed[i * SAMPLES + s];
            int32_t ids[PROMPT + NEW], rows[NEW];
            float logp[NEW];
            ok = a->n == NEW && memcmp(a->ids, alone[s].ids, NEW * sizeof *a->ids) == 0 &&
                 memcmp(a->logp, alone[s].logp, NEW * sizeof *a->logp) == 0;
            memcpy(ids, prompt, sizeof prompt);
            memcpy(ids + PROMPT, alone[s].ids, NEW * sizeof *ids);
            for (int t = 0; t < NEW; t++) rows[t] = PROMPT - 1 + t;
            const struct segment seg = {0, PROMPT + NEW, -1, r[i].adapter};
            const struct train_batch b = {ids, PROMPT + NEW, &seg, 1, rows, ids + PROMPT, NEW, true};
            ok = ok && model_forward(m, &b, logp, NULL, NULL, e) == ST_OK && memcmp(a->logp, logp, sizeof logp) == 0;
            /* Of the same first row no two adapters think the same. */
            if (ok && i > 0) ok = a->logp[0] != mixed[(i - 1) * SAMPLES + s].logp[0];
            if (!ok) printf("  adapter %d, sample %d\n", r[i].adapter, s);
            sample_free(&alone[s]);
        }
    }
    for (int i = 0; i < ADAPTERS * SAMPLES; i++) sample_free(&mixed[i]);
    gpu->pass_begin = passes.begin;
    engine_close(en);
    model_free(m);
    return ok;
}

/* ---- steps ahead of their results -------------------------------------------------------------------------------- */

static struct {
    void (*post)(struct backend *be);
    int64_t n;
} posts;
static void counted_post(struct backend *be) {
    posts.n++;
    posts.post(be);
}

/* Cancels as soon as it has heard of `*ctx` finished samples. */
static bool enough(void *ctx, int64_t tokens, int done, int total) {
    (void)tokens, (void)total;
    return done < *(const int *)ctx;
}

/* Samples that end early and late, wait for places and for blocks, and are cancelled: with steps ahead and one by one.
 * Those that a cancelled run has finished are the same in both; of the others it may have fewer. */
static bool steps_ahead_same(struct backend *gpu, struct err *e) {
    enum { REQUESTS = 4, SAMPLES = 2, ALL = REQUESTS * SAMPLES, NEW = 12, PROMPT = KV_BLOCK - 6, WAYS = 2 };
    static const int32_t stops[] = {7, 30};
    int32_t prompt[PROMPT + REQUESTS];
    static const struct {
        int batch, blocks; /* of the cache; 0: enough */
        int enough;        /* finished samples behind which it is cancelled */
    } run[] = {{5, 6, ALL + 1}, {3, 0, 3}};
    const struct model_options mo = {.dtype = "bf16", .frozen = true};
    struct model *m = NULL;
    struct request r[REQUESTS];
    for (int i = 0; i < PROMPT + REQUESTS; i++) prompt[i] = (i * 37 + 11) % 64;
    bool ok = model_init(few_layers, 5, &mo, gpu, &m, e) == ST_OK && adapter_of_noise(m, 8, 7, e);
    for (int i = 0; i < REQUESTS; i++)
        r[i] = (struct request){.prompt = prompt + i,
                                .n_prompt = PROMPT - i,
                                .n_samples = SAMPLES,
                                .id = (uint64_t)i,
                                .adapter = i % 2 - 1,
                                .params = {.temperature = i == 2 ? 0 : 1.5f,
                                           .top_p = 1,
                                           .top_k = i == 3 ? 40 : 0, /* such tokens the host draws */
                                           .max_tokens = i == 1 ? 5 : NEW,
                                           .seed = 4,
                                           .stop_ids = stops,
                                           .n_stop_ids = i % 2 ? 2 : 0}};
    posts.post = gpu->post;
    for (size_t k = 0; ok && k < ARRAY_LEN(run); k++) {
        struct sample out[WAYS][ALL] = {{{0}}};
        int64_t preempted[WAYS] = {0}, ahead[WAYS] = {0};
        for (int way = 0; ok && way < WAYS; way++) {
            const struct engine_options o = {.max_batch = run[k].batch,
                                             .memory_bytes = run[k].blocks * kv_block_bytes(m)};
            struct engine *en = NULL;
            int most = run[k].enough;
            posts.n = 0;
            gpu->post = way == 0 ? NULL : counted_post;
            ok =
                engine_open(m, &o, &en, e) == ST_OK && engine_run(en, r, REQUESTS, out[way], enough, &most, e) == ST_OK;
            preempted[way] = en ? engine_stats(en).preemptions : 0;
            ahead[way] = posts.n;
            engine_close(en);
        }
        ok = ok && ahead[0] == 0 && ahead[1] > 0 && (run[k].blocks == 0 || (preempted[0] > 0 && preempted[1] > 0));
        int whole = 0;
        for (int i = 0; ok && i < ALL; i++) {
            const struct sample *a = &out[0][i], *b = &out[1][i];
            const int n = a->n < b->n ? a->n : b->n;
            const bool both = a->stop != STOP_CANCELLED && b->stop != STOP_CANCELLED;
            whole += both;
            ok = (!both || (a->n == b->n && a->stop == b->stop)) &&
                 (n == 0 || (memcmp(a->ids, b->ids, (size_t)n * sizeof *a->ids) == 0 &&
                             memcmp(a->logp, b->logp, (size_t)n * sizeof *a->logp) == 0 &&
                             memcmp(a->entropy, b->entropy, (size_t)n * sizeof *a->entropy) == 0));
            if (!ok) printf("  run %zu, sample %d: %d and %d tokens\n", k, i, a->n, b->n);
        }
        ok = ok && (run[k].enough <= ALL ? whole > 0 && whole < ALL : whole == ALL);
        if (!ok && !e->msg[0])
            printf("  run %zu: %lld steps ahead, %lld and %lld preempted, %d whole\n", k, (long long)ahead[1],
                   (long long)preempted[0], (long long)preempted[1], whole);
        for (int i = 0; i < WAYS * ALL; i++) sample_free(&out[i / ALL][i % ALL]);
    }
    gpu->post = posts.post;
    model_free(m);
    return ok;
}

static struct {
    enum status (*collect)(struct backend *be, struct err *e);
    int left; /* the last of so many fails */
} collects;
static enum status failing_collect(struct backend *be, struct err *e) {
    if (--collects.left == 0) return FAIL(e, ST_DEVICE, "the device is gone");
    return collects.collect(be, e);
}

/* A device that fails while steps are under way: the run says so and gives nothing out, no step stays open, and the
 * same engine's next run gives the samples of the one before. At the first collect, in the middle, and at the last. */
static bool steps_ahead_fail(struct backend *gpu, struct err *e) {
    enum { SAMPLES = 3, NEW = 9 };
    static const int32_t prompt[] = {3, 60, 17};
    const struct model_options mo = {.dtype = "bf16", .frozen = true};
    const struct request r = {.prompt = prompt,
                              .n_prompt = (int)ARRAY_LEN(prompt),
                              .n_samples = SAMPLES,
                              .params = {.temperature = 1, .top_p = 1, .max_tokens = NEW, .seed = 4}};
    struct model *m = NULL;
    struct engine *en = NULL;
    struct sample right[SAMPLES] = {{0}}, out[SAMPLES] = {{0}};
    bool ok = model_init(few_layers, 5, &mo, gpu, &m, e) == ST_OK &&
              engine_open(m, &(struct engine_options){.max_batch = SAMPLES}, &en, e) == ST_OK;
    collects.collect = gpu->collect;
    collects.left = 0;
    gpu->collect = failing_collect;
    ok = ok && engine_run(en, &r, 1, right, NULL, NULL, e) == ST_OK;
    const int all = -collects.left;
    ok = ok && all > 2;
    for (int k = 0; ok && k < 3; k++) {
        struct err told = {0};
        collects.left = k == 0 ? 1 : k == 1 ? all / 2 : all;
        ok = engine_run(en, &r, 1, out, NULL, NULL, &told) == ST_DEVICE &&
             strcmp(told.msg, "the device is gone") == 0 && model_steps_begun(m) == 0;
        for (int i = 0; ok && i < SAMPLES; i++) ok = out[i].n == 0 && !out[i].ids;
        collects.left = 0;
        ok = ok && engine_run(en, &r, 1, out, NULL, NULL, e) == ST_OK;
        for (int i = 0; ok && i < SAMPLES; i++)
            ok = out[i].n == right[i].n &&
                 memcmp(out[i].ids, right[i].ids, (size_t)out[i].n * sizeof *out[i].ids) == 0 &&
                 memcmp(out[i].logp, right[i].logp, (size_t)out[i].n * sizeof *out[i].logp) == 0;
        if (!ok) printf("  failure %d of %d collects: %s\n", k, all, told.msg);
        for (int i = 0; i < SAMPLES; i++) sample_free(&out[i]);
    }
    for (int i = 0; i < SAMPLES; i++) sample_free(&right[i]);
    gpu->collect = collects.collect;
    engine_close(en);
    model_free(m);
    return ok;
}

#endif
