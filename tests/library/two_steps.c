/* two_steps MODEL OUT: a program of somebody else. It opens a policy with a new adapter, samples answers, makes two
 * optimizer steps that prefer short ones, and saves the adapter. It needs no header of rl/. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/policy.h"
#include "train/step.h"

enum { ANSWERS = 4, TOKENS = 12 };

static enum status step(struct policy *p, struct trainer *t, int64_t number, struct err *e) {
    const struct chat_message ask = {.role = "user", .content = "Write a C kernel that adds two vectors."};
    const struct adamw_config adam = {1e-3, 0.9, 0.95, 1e-8, 0};
    const struct train_call call = {.loss.kind = LOSS_IMPORTANCE_SAMPLING, .on_policy = true, .exact = true};
    struct ids prompt = {0};
    chat_encode(p->tok, p->style, &ask, 1, CHAT_GENERATE, &prompt);
    const struct request r = {.prompt = prompt.p,
                              .n_prompt = (int)prompt.len,
                              .n_samples = ANSWERS,
                              .id = (uint64_t)number,
                              .params = {.temperature = 1, .top_p = 1, .max_tokens = TOKENS, .seed = 1}};
    struct sample s[ANSWERS];
    struct datum d[ANSWERS];
    struct train_stats stats = {0};
    double norm;
    TRY(engine_run(p->engine, &r, 1, s, NULL, NULL, e));
    const size_t n = prompt.len;
    for (int i = 0; i < ANSWERS; i++) {
        int32_t *ids = malloc((n + (size_t)s[i].n) * sizeof *ids);
        float *weights = malloc((size_t)s[i].n * sizeof *weights);
        memcpy(ids, prompt.p, n * sizeof *ids);
        memcpy(ids + n, s[i].ids, (size_t)s[i].n * sizeof *ids);
        for (int k = 0; k < s[i].n; k++) weights[k] = (float)(i - s[i].n);
        d[i] = (struct datum){.ids = ids, .n = (int64_t)n + s[i].n - 1, .prompt = (int64_t)n, .targets = ids + n};
        d[i].begin = d[i].prompt - 1, d[i].end = d[i].n, d[i].scale = 1.0 / ANSWERS;
        d[i].weights = weights, d[i].sampled = s[i].logp;
    }
    TRY(train_accumulate(t, &call, d, ANSWERS, &stats, e));
    TRY(train_optimizer_step(t, &adam, 1, number, &norm, e));
    printf("step %lld: %lld rows, gradient %.6g, ratio %.6g\n", (long long)number, (long long)stats.rows, norm,
           stats.loss.ratio / (double)stats.loss.n);
    return ST_OK; /* the system takes back what is left */
}

int main(int argc, char **argv) {
    const struct policy_options o = {.model = {"MODEL", argc > 1 ? argv[1] : "models/tiny", NULL, HUB_MODEL},
                                     .device = "cpu",
                                     .weights = {.dtype = "f32", .frozen = true},
                                     .lora = {.rank = 4, .alpha = 8, .seed = 1}};
    struct policy p;
    struct comm *c;
    struct trainer *t;
    struct err e = {0};
    if (policy_open(&o, NULL, &p, &e) || model_train_prepare(p.model, TRAIN_LORA, &e) ||
        comm_open("auto", NULL, &c, &e) || trainer_open(c, p.model, ADAPTER_OWN, 4096, &t, &e) || step(&p, t, 0, &e) ||
        step(&p, t, 1, &e) || model_lora_save(p.model, argc > 2 ? argv[2] : "adapter", &e))
        return fprintf(stderr, "%s\n", e.msg), 1;
    return 0;
}
