/* A part of plugin_test.c: what a plan says of a run's memory (rl/options/memory_plan.h) against what the same model
 * asks the device for. */
#ifndef KERNELRL_MEMORY_CHECKS_H
#define KERNELRL_MEMORY_CHECKS_H

#include "rl/options/memory_plan.h"
#include "train/step.h"

/* It has long rows of logits, a long sum and gains, so that most slabs are used. */
static const char planned_model[] =
    "{\"model_type\":\"qwen3\",\"vocab_size\":5000,\"hidden_size\":96,\"intermediate_size\":4096,"
    "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":48,"
    "\"max_position_embeddings\":512,\"tie_word_embeddings\":false}";
enum { PLANNED_ANSWERS = 4, PLANNED_PROMPT = 14, PLANNED_TOKENS = 13, PLANNED_ROWS = 108, PLANNED_CHUNK = 32 };

struct planned_run {
    struct backend *be;
    struct model *m;
    struct comm *comm;
    struct trainer *trainer;
    struct engine *en;
    struct sample out[PLANNED_ANSWERS];
};

static void planned_close(struct planned_run *r) {
    for (size_t i = 0; i < ARRAY_LEN(r->out); i++) sample_free(&r->out[i]);
    if (r->en) engine_close(r->en);
    trainer_close(r->trainer);
    comm_close(r->comm);
    model_free(r->m);
    r->be->close(r->be);
}

/* As a session does it: the model, its trainer, then the answers of a step, which end one after the other, then a
 * micro-batch. */
static enum status planned_step(struct planned_run *r, const struct train_plan *p, bool lora, struct err *e) {
    const struct model_options mo = {.dtype = "bf16", .frozen = lora, .activation_memory = p->activation_budget};
    int32_t ids[PLANNED_ROWS] = {0}, rows[PLANNED_ROWS];
    float logp[PLANNED_ROWS], g[PLANNED_ROWS] = {0};
    struct request req[PLANNED_ANSWERS];
    TRY(model_init(planned_model, 1, &mo, r->be, &r->m, e));
    if (lora) TRY(model_lora_init(r->m, 8, 1, 1, e));
    TRY(model_train_prepare(r->m, lora ? TRAIN_LORA : TRAIN_FULL, e));
    TRY(comm_open("self", NULL, &r->comm, e));
    TRY(trainer_open(r->comm, r->m, ADAPTER_OWN, PLANNED_ROWS, &r->trainer, e));
    const struct engine_options eo = {.memory_bytes = p->kv_budget, .max_batch = ENGINE_BATCH_GPU};
    TRY(engine_open(r->m, &eo, &r->en, e));
    for (int i = 0; i < PLANNED_ANSWERS; i++)
        req[i] =
            (struct request){.prompt = ids,
                             .n_prompt = PLANNED_PROMPT,
                             .n_samples = 1,
                             .id = (uint64_t)i,
                             .params = {.temperature = 1, .top_p = 1, .max_tokens = PLANNED_TOKENS - 3 * i, .seed = 4}};
    TRY(engine_run(r->en, req, PLANNED_ANSWERS, r->out, NULL, NULL, e));
    for (int i = 0; i < PLANNED_ROWS; i++) rows[i] = i;
    const struct segment seg = {0, PLANNED_ROWS, -1, 0};
    const struct train_batch batch = {ids, PLANNED_ROWS, &seg, 1, rows, ids, PLANNED_ROWS, false};
    TRY(model_forward(r->m, &batch, logp, NULL, NULL, e));
    TRY(model_backward(r->m, &batch, g, e));
    (void)model_grad_norm(r->m);
    return r->be->sync(r->be, e);
}

static enum status planned_options(bool lora, struct config *c, struct train_options *o, struct err *e) {
    char key[][40] = {"device=cuda",  "dtype=bf16",    "lora_rank=8",         "batch_size=4",
                      "group_size=1", "max_tokens=13", "prompt_max_tokens=14"};
    char *argv[ARRAY_LEN(key)];
    for (size_t i = 0; i < ARRAY_LEN(key); i++) argv[i] = key[i];
    if (!lora) memcpy(key[2], "lora_rank=0", sizeof "lora_rank=0");
    config_init(c, &train_schema, o);
    TRY(config_args(c, ARRAY_LEN(key), argv, e));
    return train_options_finish(c, o, e);
}

/* The emulated device counts what it hands out; the backend's own count is the same, and the plan's within 5 %. */
static void planned_compare(void *plugin, backend_plugin_open_fn *open_plugin, bool lora) {
    size_t (*device_peak)(void);
    void *symbol = dlsym(plugin, "emulate_device_peak");
    memcpy(&device_peak, &symbol, sizeof device_peak);
    char msg[512] = "";
    struct err e = {0};
    struct planned_run r = {0};
    struct config c;
    struct train_options o;
    struct train_plan p;
    (void)device_peak();
    if (open_plugin(BACKEND_ABI, 0, NULL, &r.be, msg, sizeof msg) != 0) {
        report(msg, false);
        return;
    }
    r.be->logit_chunk_bytes = PLANNED_CHUNK * 5000 * (int64_t)sizeof(float);
    const struct paper device = paper_of(r.be);
    bool ok = planned_options(lora, &c, &o, &e) == ST_OK && train_plan(&o, planned_model, &device, &p, &e) == ST_OK &&
              planned_step(&r, &p, lora, &e) == ST_OK;
    if (!ok) printf("  %s\n", e.msg);
    report(lora ? "LoRA's memory is planned, and taken" : "full training's memory is planned, and taken", ok);
    const int64_t peak = r.be->mem_peak(r.be), planned = ok ? plan_asked(&p) : 0;
    const double ratio = (double)planned / (double)peak;
    report("the backend counts what the device was asked for", peak == (int64_t)device_peak());
    printf("  planned %lld, taken %lld bytes: %.3f\n", (long long)planned, (long long)peak, ratio);
    report("the plan is right within 5 %", fabs(ratio - 1) < 0.05);
    config_free(&c);
    planned_close(&r);
}

/* ---- weights that share chunks (tensor/pieces.h) ----------------------------------------------------------------- */

enum { PIECES = 123, PIECE_ROWS = 100, PIECE_COLS = 4063, PIECES_CODED = 6, PIECE_EDGE = 900 };
struct piece_weights {
    struct backend *be;
    struct weight w[PIECES + PIECES_CODED];
    uint16_t *bits; /* of weight i: from element i */
    uint8_t *codes;
    float *scale;
};

static size_t pieces_device_taken(void *plugin) {
    size_t (*device_taken)(void);
    void *symbol = dlsym(plugin, "emulate_device_taken");
    memcpy(&device_taken, &symbol, sizeof device_taken);
    return device_taken();
}

static void pieces_put(struct piece_weights *p, int i) {
    if (i < PIECES) {
        p->w[i] = (struct weight){.N = PIECE_ROWS, .K = PIECE_COLS, .dt = DT_BF16, .format = FORMAT_BF16};
        p->be->weight_put(p->be, &p->w[i], 0, PIECE_ROWS, p->bits + i);
        return;
    }
    const struct coded_matrix m = {
        .format = FORMAT_FP8, .rows = PIECE_EDGE, .K = PIECE_EDGE, .codes = p->codes, .scale = p->scale};
    p->w[i] = (struct weight){.N = PIECE_EDGE, .K = PIECE_EDGE, .dt = DT_BF16, .format = FORMAT_FP8};
    p->be->weight_put_coded(p->be, &p->w[i], 0, &m);
}

/* The matrices of a mixture's experts: the device takes a sixteenth more than they have, each keeps its elements, and
 * all is given back in another order. */
static void pieces_of_a_mixture(void *plugin, struct piece_weights *p) {
    const size_t before = pieces_device_taken(plugin);
    const int64_t n = (int64_t)PIECE_ROWS * PIECE_COLS;
    struct err e;
    for (int i = 0; i < PIECES; i++) pieces_put(p, i);
    const size_t taken = pieces_device_taken(plugin) - before, asked = PIECES * (size_t)n * sizeof(uint16_t);
    printf("  %.2f MB in %.2f MB\n", 1e-6 * (double)asked, 1e-6 * (double)taken);
    report("small weights take a sixteenth more than they have", taken >= asked && taken <= asked + asked / 16);
    for (int i = PIECES; i < PIECES + PIECES_CODED; i++) pieces_put(p, i);
    uint16_t *const back = xmalloc((size_t)n * sizeof *back);
    bool ok = true;
    for (int i = 0; i < PIECES; i++) {
        p->be->weight_get(p->be, &p->w[i], 0, PIECE_ROWS, back);
        ok &= memcmp(back, p->bits + i, (size_t)n * sizeof *back) == 0;
    }
    report("each has its own place", p->be->sync(p->be, &e) == ST_OK && ok);
    free(back);
    for (int i = 0; i < PIECES + PIECES_CODED; i++) /* 67 and their number have no divisor in common */
        p->be->weight_free(p->be, &p->w[i * 67 % (PIECES + PIECES_CODED)]);
    report("and all of them give it back", pieces_device_taken(plugin) == before);
}

/* A device that is nearly full takes smaller chunks, then none. */
static void pieces_of_a_full_device(void *plugin, struct piece_weights *p) {
    enum { ROOM = 20 << 20, MOST = 60 };
    const size_t before = pieces_device_taken(plugin);
    char room[30];
    struct err e;
    int n = 0;
    snprintf(room, sizeof room, "%zu", before + ROOM);
    setenv("KERNELRL_EMULATE_MEMORY", room, 1);
    do pieces_put(p, n);
    while (p->be->sync(p->be, &e) == ST_OK && ++n < MOST);
    unsetenv("KERNELRL_EMULATE_MEMORY");
    report("a full device refuses a weight by name", n < MOST && strstr(e.msg, "weight: out of device memory"));
    report("and takes what there is room for",
           (size_t)n * PIECE_ROWS * PIECE_COLS * sizeof(uint16_t) > (size_t)ROOM / 16 * 15);
    for (int i = 0; i < n; i++) p->be->weight_free(p->be, &p->w[i]);
    report("and gives it back after the error", pieces_device_taken(plugin) == before);
}

static void test_pieces(void *plugin, backend_plugin_open_fn *open_plugin) {
    const int64_t n = (int64_t)PIECE_ROWS * PIECE_COLS + PIECES;
    struct piece_weights p = {.bits = xmalloc((size_t)n * sizeof *p.bits),
                              .codes = xcalloc((size_t)PIECE_EDGE * PIECE_EDGE, 1),
                              .scale = xcalloc(64, sizeof *p.scale)};
    char msg[512] = "";
    for (int64_t i = 0; i < n; i++) p.bits[i] = (uint16_t)rng_u64(28, 1, (uint64_t)i);
    const bool opened = open_plugin(BACKEND_ABI, 0, NULL, &p.be, msg, sizeof msg) == 0;
    report("a device for weights in pieces", opened);
    if (opened) {
        pieces_of_a_mixture(plugin, &p);
        pieces_of_a_full_device(plugin, &p);
        p.be->close(p.be);
    }
    free(p.bits);
    free(p.codes);
    free(p.scale);
}

static void test_memory_as_planned(void *plugin, backend_plugin_open_fn *open_plugin) {
    planned_compare(plugin, open_plugin, true);
    planned_compare(plugin, open_plugin, false);
}

#endif
