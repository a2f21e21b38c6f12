/* engine: sampling rates of the whole engine over a small model with random weights: prompts of PROMPT tokens that
 * share their first half, SAMPLES answers each. Usage: build/bench/engine [ROUNDS]. One line a case, the fastest of
 * ROUNDS runs (default 3). An answer never ends early, so every run draws the same number of tokens. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/str.h"
#include "engine/engine.h"
#include "tensor/backend.h"

enum { PROMPT = 300, ANSWER = 200, MOST = 64, V = 2048 };

static const char config[] =
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"hidden_size\":256,\"num_hidden_layers\":6,\"intermediate_size\":768,"
    "\"vocab_size\":2048,\"num_attention_heads\":8,\"num_key_value_heads\":4,\"head_dim\":32,"
    "\"tie_word_embeddings\":true,\"max_position_embeddings\":4096}";

static enum status run(struct model *m, int n_req, int n_samples, int max_batch, int rounds, struct err *e) {
    static int32_t ids[MOST][PROMPT];
    struct request req[MOST];
    struct sample *out = xcalloc((size_t)n_req * (size_t)n_samples, sizeof *out);
    struct rng r = rng_make(5, 0);
    for (int i = 0; i < n_req; i++) {
        for (int k = 0; k < PROMPT; k++) ids[i][k] = i > 0 && k < PROMPT / 2 ? ids[0][k] : (int32_t)rng_below(&r, V);
        req[i] = (struct request){.prompt = ids[i], .n_prompt = PROMPT, .n_samples = n_samples, .id = (uint64_t)i};
        req[i].params = (struct sample_params){.temperature = 1, .top_p = 1, .max_tokens = ANSWER, .seed = 1};
    }
    double best = 1e9;
    for (int k = 0; k < rounds; k++) {
        struct engine *en; /* a fresh one, which remembers nothing */
        TRY(engine_open(m, &(struct engine_options){.max_batch = max_batch}, &en, e));
        const double t0 = clock_now_s();
        enum status st = engine_run(en, req, n_req, out, NULL, NULL, e);
        const double t = clock_now_s() - t0;
        best = t < best ? t : best;
        engine_close(en);
        if (st != ST_OK) return st;
        for (int i = 0; i < n_req * n_samples; i++) sample_free(&out[i]);
    }
    printf("%2d prompts of %d tokens x %2d answers of %d, %2d at a time: %.2f s, %.0f sampled tokens/s\n", n_req,
           PROMPT, n_samples, ANSWER, max_batch, best, (double)n_req * n_samples * ANSWER / best);
    free(out);
    return ST_OK;
}

int main(int argc, char **argv) {
    int64_t rounds = 3;
    if (argc > 2 || (argc == 2 && (!parse_i64(argv[1], &rounds) || rounds < 1 || rounds > 1000)))
        return fprintf(stderr, "usage: engine [ROUNDS]\n"), 2;
    struct err e = {0};
    struct pool *pool = pool_create(0);
    struct backend *be;
    struct model *m;
    enum status st = cpu_backend_open(pool, &be, &e);
    if (st == ST_OK) st = model_init(config, 1, NULL, be, &m, &e);
    if (st == ST_OK) st = run(m, 16, 4, 64, (int)rounds, &e);
    if (st == ST_OK) st = run(m, 32, 4, 64, (int)rounds, &e);
    if (st == ST_OK) st = run(m, 16, 1, 16, (int)rounds, &e);
    if (st == ST_OK) st = run(m, 2, 1, 1, (int)rounds, &e);
    if (st != ST_OK) return fprintf(stderr, "bench/engine: %s\n", e.msg), 1;
    model_free(m);
    be->close(be);
    pool_destroy(pool);
    return 0;
}
