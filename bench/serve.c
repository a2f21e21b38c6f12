/* What a server is measured against: the engine without one. Runs N requests of IN tokens, all at once, with answers of
 * OUT tokens, as `kernelrl serve` would have them, ROUNDS times. Usage: build/bench/serve MODEL N IN OUT [ROUNDS].
 * Prints one JSON object: the tokens a second of the best round, and of all. bench/serve_table.py compares. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/str.h"
#include "policy/policy.h"

static int32_t *random_prompts(int64_t n, int64_t tokens, int32_t vocab, uint64_t stream) {
    int32_t *ids = xmalloc((size_t)(n * tokens) * sizeof *ids);
    struct rng r = rng_make(11, stream);
    for (int64_t i = 0; i < n * tokens; i++) ids[i] = (int32_t)rng_below(&r, (uint64_t)vocab);
    return ids;
}

/* One round; prompts are new each time, so that the cache knows none. */
static enum status round_of(struct policy *p, int n, int in, int out, uint64_t number, double *rate, struct err *e) {
    struct request *req = xcalloc((size_t)n, sizeof *req);
    struct sample *s = xcalloc((size_t)n, sizeof *s);
    int32_t *ids = random_prompts(n, in, tokenizer_vocab(p->tok), number);
    for (int i = 0; i < n; i++)
        req[i] = (struct request){
            .prompt = ids + (int64_t)i * in,
            .n_prompt = in,
            .n_samples = 1,
            .params = {.temperature = 1, .top_p = 1, .max_tokens = out, .seed = (uint64_t)i},
        };
    const double from = clock_now_s();
    const enum status st = engine_run(p->engine, req, n, s, NULL, NULL, e);
    *rate = (double)n * out / (clock_now_s() - from);
    for (int i = 0; st == ST_OK && i < n; i++) sample_free(&s[i]);
    free(req);
    free(s);
    free(ids);
    return st;
}

int main(int argc, char **argv) {
    int64_t v[4] = {64, 128, 128, 1};
    bool fine = argc >= 2 && argc <= 6;
    for (int i = 2; i < argc && fine; i++) fine = parse_i64(argv[i], &v[i - 2]) && v[i - 2] >= 1 && v[i - 2] <= 100000;
    if (!fine) return fprintf(stderr, "usage: serve MODEL N IN OUT [ROUNDS]\n"), 2;
    const struct policy_options o = {.model = {"model", argv[1], NULL, HUB_MODEL},
                                     .device = "cpu",
                                     .weights = {.frozen = true},
                                     .engine.max_batch = ENGINE_BATCH_CPU};
    struct policy p;
    struct err e = {0};
    double best = 0, seconds = 0;
    enum status st = policy_open(&o, NULL, &p, &e);
    for (int64_t r = 0; r < v[3] && st == ST_OK; r++) {
        double rate;
        st = round_of(&p, (int)v[0], (int)v[1], (int)v[2], (uint64_t)r, &rate, &e);
        if (st != ST_OK) break;
        best = rate > best ? rate : best;
        seconds += (double)(v[0] * v[2]) / rate;
    }
    if (st == ST_OK)
        printf("{\"tokens_per_s\": %.1f, \"best_tokens_per_s\": %.1f}\n", (double)(v[0] * v[2] * v[3]) / seconds, best);
    else
        fprintf(stderr, "serve: %s\n", e.msg);
    policy_close(&p);
    return st == ST_OK ? 0 : 1;
}
