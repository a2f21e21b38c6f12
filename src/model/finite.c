/* Where the first number is that is none: for the message of a run that must stop. */
#include <math.h>
#include <stdio.h>

#include "model/layer.h"

/* Index of the first NaN or infinity among n numbers of the device, -1 without one. Copies them in pieces. */
static int64_t first_bad(struct model *m, const void *x, enum dtype dt, int64_t n, float *value) {
    enum { PIECE = 1 << 16 };
    CLEANUP_FREE float *host = xmalloc(PIECE * sizeof *host);
    uint16_t *const half = (uint16_t *)(void *)host + PIECE; /* widened from the front: never overtaken */
    struct err ignored;
    for (int64_t at = 0; at < n; at += PIECE) {
        const int64_t len = i64_min(PIECE, n - at);
        const char *from = (const char *)x + (size_t)at * dtype_bytes(dt);
        m->be->mem_get(m->be, dt == DT_F32 ? (void *)host : half, from, (size_t)len * dtype_bytes(dt));
        if (m->be->sync(m->be, &ignored) != ST_OK) return -1; /* a lost device has a message of its own */
        for (int64_t i = 0; i < len && dt == DT_BF16; i++) host[i] = st_bf16_to_f32(half[i]);
        for (int64_t i = 0; i < len; i++)
            if (!isfinite(host[i])) {
                *value = host[i];
                return at + i;
            }
    }
    return -1;
}

static bool say_of(struct model *m, const void *x, enum dtype dt, int64_t n, char *buf, size_t bytes, const char *what,
                   const char *name) {
    float v = 0;
    const int64_t i = x ? first_bad(m, x, dt, n, &v) : -1;
    if (i < 0) return false;
    snprintf(buf, bytes, "%s%s: element %lld of %lld is %s", what, name, (long long)i, (long long)n,
             isnan(v) ? "NaN" : "infinite");
    return true;
}

static bool say(struct model *m, const float *x, int64_t n, char *buf, size_t bytes, const char *what,
                const char *name) {
    return say_of(m, x, DT_F32, n, buf, bytes, what, name);
}

static bool bad_weight(struct model *m, int adapter, char *buf, size_t bytes) {
    const struct adapter *ad = adapter_of(m, adapter);
    for (int i = 0; i < m->n_param; i++) {
        const struct param *p = &m->param[i];
        if (p->w == p->g && !m->values_there) continue; /* a gradient lies there, or nothing does */
        if (say(m, p->w, p->n, buf, bytes, "weight ", p->name)) return true;
    }
    for (int i = 0; ad && i < ad->n_param; i++)
        if (say(m, ad->param[i].w, ad->param[i].n, buf, bytes, "weight ", ad->param[i].name)) return true;
    return false;
}

/* In the order in which the forward pass made them. */
static bool bad_in_layer(struct model *m, int i, char *buf, size_t bytes) {
    static const char *const input[LAYER_BLOCKS] = {"its input", "the sum with attention"};
    const struct layer_block *const *b = layer_blocks(&m->cfg, i);
    const struct layer_acts *a = &m->ts.layer[i];
    const int64_t T = m->ts.T;
    char layer[40];
    snprintf(layer, sizeof layer, "activations of layer %d, ", i);
    for (int k = 0; k < LAYER_BLOCKS; k++) {
        struct kept_array list[KEPT_MAX];
        if (say(m, a->x[k], T * m->cfg.D, buf, bytes, layer, input[k])) return true;
        const int n = b[k]->kept(m, a, list);
        for (int j = 0; j < n; j++)
            if (say_of(m, list[j].x, list[j].dt, T * list[j].cols, buf, bytes, layer, list[j].name)) return true;
    }
    return false;
}

static bool bad_activation(struct model *m, char *buf, size_t bytes) {
    const struct train_space *w = &m->ts;
    const struct model_config *c = &m->cfg;
    const int64_t T = w->T;
    if (T <= 0) return false;
    for (int i = 0; i < c->L; i++) {
        model_layer_recall(m, i);
        if (bad_in_layer(m, i, buf, bytes)) return true;
    }
    return say(m, w->x_last, T * c->D, buf, bytes, "activations of the last layer, ", "its output") ||
           say_of(m, w->hn, m->act, T * c->D, buf, bytes, "activations of ", "the final norm");
}

/* The backward pass spreads it downwards, so that the tensor nearest to the loss is where it began. */
static bool bad_gradient(struct model *m, int adapter, char *buf, size_t bytes) {
    const struct train_set s = model_train_set(m, adapter);
    for (int i = s.n - 1; i >= 0; i--)
        if (say(m, s.param[i].g, s.param[i].n, buf, bytes, "gradient of ", s.param[i].name)) return true;
    return false;
}

bool model_find_nonfinite(struct model *m, int adapter, int what, char *buf, size_t bytes) {
    return (what & FIND_WEIGHTS && bad_weight(m, adapter, buf, bytes)) ||
           (what & FIND_ACTIVATIONS && bad_activation(m, buf, bytes)) ||
           (what & FIND_GRADIENTS && bad_gradient(m, adapter, buf, bytes));
}
