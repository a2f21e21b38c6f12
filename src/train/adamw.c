#include "train/adamw.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/str.h"
#include "io/safetensors.h"

struct adamw *adamw_create(const struct param *p, int n_params) {
    struct adamw *a = xcalloc(1, sizeof *a);
    a->n_params = n_params;
    a->m = xcalloc((size_t)n_params, sizeof *a->m);
    a->v = xcalloc((size_t)n_params, sizeof *a->v);
    for (int i = 0; i < n_params; i++) {
        a->m[i] = xaligned((size_t)p[i].n * sizeof(float));
        a->v[i] = xaligned((size_t)p[i].n * sizeof(float));
    }
    return a;
}

void adamw_free(struct adamw *a) {
    if (!a) return;
    for (int i = 0; i < a->n_params; i++) {
        free(a->m[i]);
        free(a->v[i]);
    }
    free(a->m);
    free(a->v);
    free(a);
}

double adamw_grad_norm(const struct param *p, int n_params) {
    double sum = 0;
    for (int i = 0; i < n_params; i++)
        for (int64_t j = 0; j < p[i].n; j++) sum += (double)p[i].g[j] * (double)p[i].g[j];
    return sqrt(sum);
}

struct job {
    float *w, *m, *v;
    const float *g;
    float beta1, beta2, eps, scale, decay, step_size, inv_sqrt_bias2;
};

static void update_range(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct job *j = ctx;
    for (int64_t i = begin; i < end; i++) {
        float g = j->g[i] * j->scale, w = j->w[i] * j->decay;
        float m = j->m[i] + (1 - j->beta1) * (g - j->m[i]);
        float v = j->v[i] * j->beta2 + (1 - j->beta2) * g * g;
        j->m[i] = m;
        j->v[i] = v;
        j->w[i] = w - j->step_size * m / (sqrtf(v) * j->inv_sqrt_bias2 + j->eps);
    }
}

void adamw_step(struct adamw *a, const struct param *p, int n_params, const struct adamw_config *c, double grad_scale,
                bool decay_all, struct pool *pool) {
    ASSERT(n_params == a->n_params);
    a->step++;
    double bias1 = 1 - pow(c->beta1, (double)a->step), bias2 = 1 - pow(c->beta2, (double)a->step);
    for (int i = 0; i < n_params; i++) {
        bool decays = decay_all || p[i].nd > 1;
        struct job j = {.w = p[i].w,
                        .m = a->m[i],
                        .v = a->v[i],
                        .g = p[i].g,
                        .beta1 = (float)c->beta1,
                        .beta2 = (float)c->beta2,
                        .eps = (float)c->eps,
                        .scale = (float)grad_scale,
                        .decay = decays ? (float)(1 - c->learning_rate * c->weight_decay) : 1,
                        .step_size = (float)(c->learning_rate / bias1),
                        .inv_sqrt_bias2 = (float)(1 / sqrt(bias2))};
        pool_for(pool, p[i].n, 1024, update_range, &j);
    }
}

enum status adamw_save(const struct adamw *a, const struct param *p, const char *path, struct err *e) {
    struct arena arena = ARENA_INIT;
    size_t n = (size_t)a->n_params;
    struct st_entry *entries = arena_array(&arena, struct st_entry, 2 * n);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < 2; k++) {
            struct st_entry *t = &entries[2 * i + k];
            *t = (struct st_entry){.name = arena_printf(&arena, "%c.%s", k ? 'v' : 'm', p[i].name),
                                   .dtype = ST_DTYPE_F32,
                                   .from = ST_DTYPE_F32,
                                   .nd = p[i].nd,
                                   .data = k ? a->v[i] : a->m[i]};
            for (int d = 0; d < p[i].nd; d++) t->dim[d] = p[i].dim[d];
        }
    const char *metadata[] = {"step", arena_printf(&arena, "%lld", (long long)a->step), NULL};
    enum status st = st_write(path, entries, 2 * n, metadata, e);
    arena_free(&arena);
    return st;
}

enum status adamw_load(struct adamw *a, const struct param *p, int n_params, const char *path, struct err *e) {
    ASSERT(n_params == a->n_params);
    struct st_file f;
    TRY(st_open(path, &f, e));
    enum status st = ST_OK;
    const char *step = st_metadata(&f, "step");
    if (!step || !parse_i64(step, &a->step) || a->step < 0)
        st = FAIL(e, ST_PARSE, "%s: metadata \"step\": expected a number of updates", path);
    for (int i = 0; st == ST_OK && i < n_params; i++)
        for (int k = 0; st == ST_OK && k < 2; k++) {
            char name[512];
            snprintf(name, sizeof name, "%c.%s", k ? 'v' : 'm', p[i].name);
            const struct st_tensor *t;
            st = st_get(&f, name, p[i].nd, p[i].dim, &t, e);
            if (st == ST_OK) st = st_check_finite(t, e);
            if (st == ST_OK) st = st_read_f32(t, k ? a->v[i] : a->m[i], e);
        }
    st_close(&f);
    return st;
}
