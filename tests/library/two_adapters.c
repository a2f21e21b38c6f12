/* two_adapters MODEL OUT: two models over one base in one process, as a server of hosted training has them. One acts on
 * layers and head, one on the head alone. They are trained in turns; between their turns they rest, in memory and in a
 * file. Both are asked in one batch, and saved for PEFT as OUT/0 and OUT/1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/policy.h"
#include "train/step.h"

enum { N = 2, STEPS = 3 };

static enum status train(struct policy *p, struct trainer *t, int number, struct err *e) {
    static const char *const texts[N] = {"for (int i = 0; i < n; i++)", "#pragma omp parallel for"};
    const struct adamw_config adam = {3e-3, 0.9, 0.95, 1e-8, 0};
    const struct train_call call = {.loss.kind = LOSS_CROSS_ENTROPY};
    struct train_stats stats = {0};
    struct ids ids = {0};
    double norm;
    TRY(trainer_wake(t, e)); /* and its adapter */
    tokenizer_encode(p->tok, texts[number], strlen(texts[number]), false, &ids);
    float *weights = malloc(ids.len * sizeof *weights);
    for (size_t i = 0; i < ids.len; i++) weights[i] = 1;
    const int64_t n = (int64_t)ids.len - 1;
    const struct datum d = {ids.p, n, 1, 0, n, .targets = ids.p + 1, .weights = weights, .scale = 1.0 / (double)n};
    TRY(train_accumulate(t, &call, &d, 1, &stats, e));
    TRY(train_optimizer_step(t, &adam, 1, 0, &norm, e));
    printf("adapter %d: loss %.6g\n", t->adapter, stats.loss.loss / (double)stats.loss.n);
    return ST_OK;
}

static enum status ask(struct policy *p, const int index[N], struct err *e) {
    const int32_t prompt[] = {10, 11, 12};
    struct request r[N];
    struct sample s[N];
    for (int i = 0; i < N; i++)
        r[i] = (struct request){prompt, 3, 1, .adapter = index[i], .params = {.top_p = 1, .max_tokens = 8}};
    TRY(engine_run(p->engine, r, N, s, NULL, NULL, e)); /* those at rest wake */
    for (int i = 0; i < N; i++) printf("adapter %d: %.9g\n", index[i], (double)s[i].logp[0]);
    return ST_OK;
}

static enum status run(struct policy *p, struct comm *c, const char *out, struct err *e) {
    const struct adapter_shape shape[N] = {{4, 8, ADAPTER_LAYERS | ADAPTER_HEAD, 0}, {8, 32, ADAPTER_HEAD, 0}};
    struct trainer *t[N];
    int index[N];
    char path[N][4096], rest[4096];
    for (int i = 0; i < N; i++) {
        TRY(model_adapter_create(p->model, &shape[i], 1 + (uint64_t)i, &index[i], e));
        TRY(model_adapter_prepare(p->model, index[i], e));
        TRY(trainer_open(c, p->model, index[i], 4096, &t[i], e));
        snprintf(path[i], sizeof path[i], "%s/%d", out, i);
    }
    snprintf(rest, sizeof rest, "%s/trainer.safetensors", out);
    for (int k = 0; k < N * STEPS; k++) {
        const int i = k % N;
        TRY(train(p, t[i], i, e));
        TRY(trainer_rest(t[i], i ? rest : NULL, e));
        TRY(engine_adapter_rest(p->engine, index[i], e));
        if (k % 3 == 0) TRY(ask(p, index, e));
    }
    TRY(ask(p, index, e));
    for (int i = 0; i < N; i++) {
        TRY(trainer_wake(t[i], e));
        TRY(model_adapter_save(p->model, index[i], path[i], e));
    }
    return ST_OK;
}

int main(int argc, char **argv) {
    const char *out = argc > 2 ? argv[2] : "adapters";
    const struct policy_options o = {.model = {"MODEL", argc > 1 ? argv[1] : "models/tiny", NULL, HUB_MODEL},
                                     .device = "cpu",
                                     .weights = {.dtype = "f32", .frozen = true}};
    struct policy p;
    struct comm *c;
    struct err e = {0};
    if (policy_open(&o, NULL, &p, &e) || comm_open("auto", NULL, &c, &e) || run(&p, c, out, &e))
        return fprintf(stderr, "%s\n", e.msg), 1;
    return 0;
}
