/* The host side of the CUDA backend: memory, transfers, the op table.
 *
 * Everything goes to one stream, so work runs in the order in which it was asked for. Index arrays travel through a
 * ring of pinned memory. Results for the host land in pinned memory. They are handed over at sync or, where they were
 * posted, at collect. The first error of any call is kept, and every later op does nothing; sync reports the error.
 * attention_plan.c has attention's work lists. */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/host/host.h"

#define PLUGIN_API __attribute__((visibility("default")))

/* ---- errors ------------------------------------------------------------------------------------------------------ */

bool cuda_ok(struct cuda_backend *c, const char *op, int rc) {
    if (rc == cudaSuccess) return true;
    if (!c->error[0]) {
        snprintf(c->error, sizeof c->error, "%s: %s", op, cudaGetErrorString((cudaError_t)rc));
        cudaGetLastError(); /* Clears CUDA's own error, so that no later call reports it. */
    }
    return false;
}

void cuda_refuse(struct cuda_backend *c, const char *op, const char *why) {
    if (!c->error[0]) snprintf(c->error, sizeof c->error, "%s: %s", op, why);
}

/* The device is a property of the calling thread. So it is set at the start of every op, but only once for the hundreds
 * of ops of a pass that is recorded or replayed. */
struct cuda_backend *cuda_begin(struct backend *be, const char *op) {
    struct cuda_backend *c = (struct cuda_backend *)be;
    c->known.stats = NULL;
    c->rounded.data = NULL;
    if (c->error[0]) return NULL;
    /* In a recorded pass, pass_begin has set the device. */
    if (c->pass.mode == PASS_RUN && !cuda_ok(c, op, cudaSetDevice(c->device))) return NULL;
    if (c->owed.n > 0) bf16_settle(c);
    return c;
}

struct cuda_backend *cuda_begin_owed(struct backend *be, const char *op, struct tensor x) {
    struct owed *const owed = &((struct cuda_backend *)be)->owed, keep = *owed;
    const struct tensor y = keep.y;
    if (y.data == x.data && y.rows == x.rows && y.cols == x.cols && y.ld == x.ld) owed->n = 0;
    const bool kept = owed->n != keep.n;
    struct cuda_backend *c = cuda_begin(be, op);
    if (kept) *owed = keep;
    return c;
}

/* The same for ops that cannot be recorded. */
static struct cuda_backend *begin(struct backend *be, const char *op) {
    struct cuda_backend *c = cuda_begin(be, op);
    if (c && c->profile) profile_mark(c, op);
    if (!c || c->pass.mode == PASS_RUN) return c;
    c->pass.abort = c->pass.rec->never = true;
    return NULL;
}

/* See host.h. */
struct cuda_backend *cuda_begin_product(struct backend *be, const char *op) {
    const struct tensor rounded = ((struct cuda_backend *)be)->rounded;
    struct cuda_backend *c = begin(be, op);
    if (c) c->rounded = rounded;
    return c;
}

/* ---- host to device: a ring of pinned memory and its twin on the device --------------------------------------------
 */

static void ring_free(struct cuda_backend *c) {
    struct ring *r = &c->ring;
    cudaFreeHost(r->host);
    device_free(c, r->dev);
    r->host = r->dev = NULL;
    r->bytes = 0;
}

static bool ring_make(struct cuda_backend *c, const char *op, size_t bytes) {
    struct ring *r = &c->ring;
    if (!cuda_ok(c, op, cudaStreamSynchronize(c->stream))) return false;
    ring_free(c);
    void *dev = NULL, *host = NULL;
    if (!cuda_ok(c, op, device_alloc(c, &dev, bytes))) return false;
    r->dev = dev;
    if (!cuda_ok(c, op, cudaMallocHost(&host, bytes))) return false;
    r->host = host;
    r->bytes = bytes;
    r->at = 0;
    r->now = 0;
    r->turns += 2; /* Nothing of the old ring is there any more. */
    r->half_used[0] = r->half_used[1] = false;
    return true;
}

/* Makes room for `bytes` in one half of the ring. Before a half is written again, the copies out of it must have run.
 * An event marks the moment when the host moved on to the other half. */
bool stage_begin(struct cuda_backend *c, const char *op, size_t bytes, struct host_stage *s) {
    struct ring *r = &c->ring;
    if (c->pass.mode != PASS_RUN) return pass_stage(c, bytes, s);
    bytes = (bytes + 255) & ~(size_t)255;
    if (2 * bytes > r->bytes && !ring_make(c, op, (size_t)cuda_ring_bytes((int64_t)bytes))) return false;
    const size_t half = r->bytes / 2;
    if (r->at + bytes > ((size_t)r->now + 1) * half) { /* This half is full: move on to the other one. */
        if (!cuda_ok(c, op, cudaEventRecord(r->left[r->now], c->stream))) return false;
        r->half_used[r->now] = true;
        r->now = !r->now;
        r->turns++;
        if (r->half_used[r->now] && !cuda_ok(c, op, cudaEventSynchronize(r->left[r->now]))) return false;
        r->at = (size_t)r->now * half;
    }
    *s = (struct host_stage){.host = r->host + r->at, .dev = r->dev + r->at, .bytes = bytes};
    r->at += bytes;
    return true;
}

void *stage_add(struct host_stage *s, const void *src, size_t bytes) {
    const size_t at = s->used;
    s->used += (bytes + 15) & ~(size_t)15;
    ASSERT(s->used <= s->bytes);
    if (src && bytes) memcpy(s->host + at, src, bytes);
    return s->dev + at;
}

void *stage_host(const struct host_stage *s, const void *dev) { return s->host + ((const char *)dev - s->dev); }

bool stage_send(struct cuda_backend *c, const char *op, const struct host_stage *s) {
    /* An array of a recorded pass has the size that it had when the pass was recorded: another size makes another pass.
     * All arrays of the pass are copied at its end. */
    NOTE(c, NULL, s->used, ADDRESS(s->dev));
    if (c->pass.mode != PASS_RUN || s->used == 0) return true;
    return cuda_ok(c, op, cudaMemcpyAsync(s->dev, s->host, s->used, cudaMemcpyHostToDevice, c->stream));
}

/* ---- device to host: results wait on the device until sync ----------------------------------------------------------
 */

/* Computes log-probabilities as logprob_row of tensor/ops.h does: the same operations on the same numbers. */
static void finish_logprobs(const struct result_item *x, const struct cu_row_stats *s) {
    for (size_t i = 0; i < x->bytes / sizeof *s; i++) {
        const double log_l = log((double)s[i].s);
        if (x->id) x->id[i] = s[i].id;
        if (x->entropy) x->entropy[i] = (float)(log_l - (double)s[i].w / (double)s[i].s);
        x->logp[i] = (float)((double)s[i].x - (double)s[i].max - log_l);
    }
}

static void hand_over(const struct result_item *item, int n, const char *host) {
    for (const struct result_item *x = item; x < item + n; x++) {
        if (x->dst)
            memcpy(x->dst, host + x->at, x->bytes);
        else
            finish_logprobs(x, (const struct cu_row_stats *)(const void *)(host + x->at));
    }
}

/* Hands over the results that were posted first. They have arrived. */
static void hand_over_posted(struct cuda_backend *c) {
    struct posted *p = &c->posted[c->first_posted];
    hand_over(p->item, p->n, p->host);
    c->first_posted = (c->first_posted + 1) % POSTS_MAX;
    c->n_posted--;
}

static bool results_deliver(struct cuda_backend *c, const char *op) {
    struct results *r = &c->results;
    if (r->used && !cuda_ok(c, op, cudaMemcpyAsync(r->host, r->dev, r->used, cudaMemcpyDeviceToHost, c->stream)))
        return false;
    if (!cuda_ok(c, op, cudaStreamSynchronize(c->stream))) return false;
    while (c->n_posted > 0) hand_over_posted(c);
    hand_over(r->item, r->n, r->host);
    r->n = 0;
    r->used = 0;
    return true;
}

/* Posts the results: queues their copy to the host. The device writes the next results to the same place, but behind
 * this copy. */
static void cuda_post(struct backend *be) {
    struct cuda_backend *c = begin(be, "post");
    if (!c) return;
    ASSERT(c->n_posted < POSTS_MAX);
    struct results *r = &c->results;
    struct posted *p = &c->posted[(c->first_posted + c->n_posted) % POSTS_MAX];
    if (p->bytes < r->bytes) {
        void *host = NULL;
        cudaFreeHost(p->host);
        p->host = NULL;
        p->bytes = 0;
        if (!cuda_ok(c, "post", cudaMallocHost(&host, r->bytes))) return;
        p->host = host;
        p->bytes = r->bytes;
    }
    if (r->used && !cuda_ok(c, "post", cudaMemcpyAsync(p->host, r->dev, r->used, cudaMemcpyDeviceToHost, c->stream)))
        return;
    if (!cuda_ok(c, "post", cudaEventRecord(p->there, c->stream))) return;
    struct result_item *const item = p->item;
    const int cap = p->cap;
    p->item = r->item;
    p->cap = r->cap;
    p->n = r->n;
    r->item = item;
    r->cap = cap;
    r->n = 0;
    r->used = 0;
    c->n_posted++;
}

/* Makes room for n results of `bytes` each. The results that wait may have to be delivered first. */
static bool results_room(struct cuda_backend *c, const char *op, size_t bytes, int n) {
    struct results *r = &c->results;
    const size_t room = ((bytes + 15) & ~(size_t)15) * (size_t)n;
    if (r->n + n > r->cap) {
        r->cap = 2 * (r->cap + n);
        r->item = xrealloc(r->item, (size_t)r->cap * sizeof *r->item);
    }
    if (r->used + room <= r->bytes) return true;
    if (c->pass.mode != PASS_RUN) { /* Nothing can be delivered while a pass is recorded. */
        c->pass.abort = true;
        return false;
    }
    if (!results_deliver(c, op)) return false;
    if (room <= r->bytes) return true;
    recordings_drop(c);
    const size_t want = (size_t)cuda_results_bytes((int64_t)room);
    device_free(c, r->dev);
    cudaFreeHost(r->host);
    r->dev = r->host = NULL;
    r->bytes = 0;
    void *dev = NULL, *host = NULL;
    if (!cuda_ok(c, op, device_alloc(c, &dev, want))) return false;
    r->dev = dev;
    if (!cuda_ok(c, op, cudaMallocHost(&host, want))) return false;
    r->host = host;
    r->bytes = want;
    return true;
}

/* Returns device memory, from the room made before, whose contents go to dst (host) at the next sync. */
static void *result(struct cuda_backend *c, void *dst, size_t bytes) {
    struct results *r = &c->results;
    struct result_item *item = &r->item[r->n++];
    *item = (struct result_item){.dst = dst, .at = r->used, .bytes = bytes};
    r->used += (bytes + 15) & ~(size_t)15;
    return r->dev + item->at;
}

/* Says that log-probabilities are computed from the last result. */
static void result_logprobs(struct cuda_backend *c, int32_t *id, float *logp, float *entropy) {
    struct result_item *item = &c->results.item[c->results.n - 1];
    item->id = id;
    item->logp = logp;
    item->entropy = entropy;
}

/* ---- device memory -------------------------------------------------------------------------------------------------
 */

int device_alloc(struct cuda_backend *c, void **p, size_t bytes) {
    const cudaError_t rc = cudaMalloc(p, bytes);
    if (rc == cudaSuccess) mem_held_add(&c->held, *p, (int64_t)bytes);
    return (int)rc;
}

int device_free(struct cuda_backend *c, void *p) {
    mem_held_drop(&c->held, p);
    return (int)cudaFree(p);
}

/* The slab grows to a high-water mark. Its contents live until the next call of the same op. */
void *device_room(struct cuda_backend *c, const char *op, struct device_slab *s, int64_t bytes) {
    if (bytes <= (int64_t)s->bytes && s->p) return s->p;
    if (c->pass.mode != PASS_RUN) {
        c->pass.abort = true;
        return NULL;
    }
    recordings_drop(c);
    if (s->p && !cuda_ok(c, op, cudaStreamSynchronize(c->stream))) return NULL;
    device_free(c, s->p);
    const size_t want = (size_t)cuda_slab_bytes((int64_t)s->bytes, bytes);
    s->p = NULL;
    s->bytes = 0;
    if (!cuda_ok(c, op, device_alloc(c, &s->p, want))) return NULL;
    s->bytes = want;
    return s->p;
}

void *cuda_scratch(struct cuda_backend *c, const char *op, enum cuda_slab s, int64_t bytes) {
    return device_room(c, op, &c->slab[s], bytes);
}

unsigned *zeroed_counts(struct cuda_backend *c, const char *op, enum cuda_slab slab, int64_t n) {
    const struct device_slab *s = &c->slab[slab];
    const size_t had = s->bytes;
    unsigned *p = cuda_scratch(c, op, slab, n * (int64_t)sizeof *p);
    if (p && s->bytes != had && !cuda_ok(c, op, cudaMemsetAsync(p, 0, s->bytes, c->stream))) return NULL;
    return p;
}

static void *mem_alloc(struct backend *be, size_t bytes) {
    struct cuda_backend *c = begin(be, "mem_alloc");
    if (!c || bytes > c->total_bytes) return NULL;
    void *p = NULL;
    const int rc = device_alloc(c, &p, bytes ? bytes : 1);
    if (rc == cudaSuccess) return p;
    cudaGetLastError(); /* Running out of memory harms nothing that is there. */
    if (rc != cudaErrorMemoryAllocation) cuda_ok(c, "mem_alloc", rc);
    return NULL;
}

static void mem_free(struct backend *be, void *p) {
    struct cuda_backend *c = (struct cuda_backend *)be; /* This runs after an error, too: cleaning up must work. */
    if (!p || cudaSetDevice(c->device) != cudaSuccess) return;
    if (!c->error[0]) bf16_settle(c);
    cuda_ok(c, "mem_free", cudaStreamSynchronize(c->stream));
    cuda_ok(c, "mem_free", device_free(c, p));
}

static int64_t mem_peak(struct backend *be) { return ((const struct cuda_backend *)be)->held.peak; }

static int64_t mem_available(struct backend *be) {
    struct cuda_backend *c = begin(be, "mem_available");
    size_t have = 0, total = 0;
    if (!c || !cuda_ok(c, "mem_available", cudaMemGetInfo(&have, &total))) return 0;
    return (int64_t)have;
}

/* Pageable host memory has been read when cudaMemcpyAsync returns. */
static void mem_put(struct backend *be, void *dst, const void *src, size_t bytes) {
    struct cuda_backend *c = begin(be, "mem_put");
    if (c && bytes) cuda_ok(c, "mem_put", cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, c->stream));
}

static void mem_get(struct backend *be, void *dst, const void *src, size_t bytes) {
    struct cuda_backend *c = begin(be, "mem_get");
    if (!c || !bytes) return;
    if (cuda_ok(c, "mem_get", cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, c->stream)))
        cuda_ok(c, "mem_get", cudaStreamSynchronize(c->stream));
}

static void mem_copy(struct backend *be, void *dst, const void *src, size_t bytes) {
    struct cuda_backend *c = begin(be, "mem_copy");
    if (c && bytes) cuda_ok(c, "mem_copy", cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, c->stream));
}

static void mem_zero(struct backend *be, void *dst, size_t bytes) {
    struct cuda_backend *c = begin(be, "mem_zero");
    if (c && bytes) cuda_ok(c, "mem_zero", cudaMemsetAsync(dst, 0, bytes, c->stream));
}

static enum status first_error(struct backend *be, struct err *e) {
    const struct cuda_backend *c = (struct cuda_backend *)be;
    if (e) {
        *e = (struct err){.code = ST_DEVICE, .file = __FILE__, .line = __LINE__};
        snprintf(e->msg, sizeof e->msg, "%s: %s", c->name, c->error);
    }
    return ST_DEVICE;
}

static enum status cuda_sync(struct backend *be, struct err *e) {
    struct cuda_backend *c = begin(be, "sync");
    return c && results_deliver(c, "sync") && nccl_whole(c) ? ST_OK : first_error(be, e);
}

static enum status cuda_collect(struct backend *be, struct err *e) {
    struct cuda_backend *c = begin(be, "collect");
    if (!c) return first_error(be, e);
    if (c->n_posted == 0) return ST_OK; /* a sync has handed them over */
    if (!cuda_ok(c, "collect", cudaEventSynchronize(c->posted[c->first_posted].there))) return first_error(be, e);
    hand_over_posted(c);
    return ST_OK;
}

static void cuda_close(struct backend *be) {
    if (!be) return;
    struct cuda_backend *c = (struct cuda_backend *)be;
    if (cudaSetDevice(c->device) == cudaSuccess) {
        if (c->stream) cudaStreamSynchronize(c->stream);
        nccl_close(c);
        ring_free(c);
        device_free(c, c->results.dev);
        cudaFreeHost(c->results.host);
        for (int i = 0; i < CUDA_SLABS; i++) device_free(c, c->slab[i].p);
        for (int i = 0; i < POSTS_MAX; i++) {
            cudaFreeHost(c->posted[i].host);
            if (c->posted[i].there) cudaEventDestroy(c->posted[i].there);
        }
        plan16_free(c);
        recordings_free(c);
        lt_close(c->lt);
        if (c->profile) profile_print(c, stderr);
        plan_free(c, &c->forward);
        plan_free(c, &c->backward);
        for (int i = 0; i < 2; i++)
            if (c->ring.left[i]) cudaEventDestroy(c->ring.left[i]);
        if (c->fork) cudaEventDestroy(c->fork);
        if (c->join) cudaEventDestroy(c->join);
        if (c->side) cudaStreamDestroy(c->side);
        if (c->stream) cudaStreamDestroy(c->stream);
    }
    free(c->results.item);
    for (int i = 0; i < POSTS_MAX; i++) free(c->posted[i].item);
    free(c->slot);
    free(c->held.block);
    pieces_close(&c->pieces);
    free(c);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

struct cu_mat mat_of(struct tensor t) {
    ASSERT(t.dt == DT_F32);
    return (struct cu_mat){t.data, t.rows, t.cols, t.ld};
}

/* float32 weights are multiplied as they lie in memory. */
static void weight_pack(struct backend *be, struct weight *w) {
    if (w->dt == DT_BF16)
        bf16_weight_pack(be, w);
    else
        w->packed = w->w;
}

static void weight_free(struct backend *be, struct weight *w) {
    if (format_is_coded(w->format))
        coded_free(be, w);
    else if (w->dt == DT_BF16)
        pieces_give(&((struct cuda_backend *)be)->pieces, be, w->packed);
    w->packed = NULL;
}

static void weight_get(struct backend *be, const struct weight *w, int64_t row, int64_t rows, uint16_t *dst) {
    if (format_is_coded(w->format))
        coded_get(be, w, row, rows, dst);
    else
        bf16_weight_get(be, w, row, rows, dst);
}

static void op_linear(struct backend *be, struct tensor y, struct tensor x, const struct weight *w, const float *bias,
                      bool accumulate) {
    ASSERT(y.rows == x.rows && y.cols == w->N && x.cols == w->K && !(bias && accumulate));
    const bool mixed = w->dt == DT_F32 && x.dt == DT_BF16;
    struct cuda_backend *c = w->dt == DT_BF16 || mixed ? cuda_begin(be, "linear") : begin(be, "linear");
    struct weight plain;
    if (!c || y.rows == 0) return;
    if (mixed) {
        bf16_linear_exact(c, y, x, w);
        return;
    }
    if (w->dt == DT_BF16) {
        bf16_linear(c, y, x, w, bias, accumulate);
        return;
    }
    if (!coded_expand(c, "linear", w, &plain)) return;
    w = &plain;
    ASSERT(x.dt == DT_F32 && y.dt == DT_F32);
    const struct cu_gemm g = {x.data, w->w, y.data, x.ld, w->K, y.ld, bias, accumulate, y.rows, w->N, w->K};
    cuda_ok(c, "linear", cu_gemm(&c->dev, CU_GEMM_NT, &g));
}

static void op_linear_dx(struct backend *be, struct tensor dx, struct tensor dy, const struct weight *w,
                         bool accumulate) {
    ASSERT(dx.rows == dy.rows && dy.cols == w->N && dx.cols == w->K);
    struct cuda_backend *c = cuda_begin_product(be, "linear_dx");
    struct weight plain;
    if (!c || dx.rows == 0 || !coded_expand(c, "linear_dx", w, &plain)) return;
    w = &plain;
    if (w->dt == DT_BF16) {
        bf16_linear_dx(c, dx, dy, w, 1.0f, accumulate);
        return;
    }
    if (dx.dt == DT_BF16) {
        bf16_linear_exact_dx(c, dx, dy, w, accumulate);
        return;
    }
    ASSERT(dx.dt == DT_F32 && dy.dt == DT_F32);
    const struct cu_gemm g = {dy.data, w->w, dx.data, dy.ld, w->K, dx.ld, NULL, accumulate, dx.rows, w->K, w->N};
    cuda_ok(c, "linear_dx", cu_gemm(&c->dev, CU_GEMM_NN, &g));
}

static void op_linear_dw(struct backend *be, float *dw, struct tensor dy, struct tensor x, enum dtype dt) {
    ASSERT(dy.rows == x.rows);
    struct cuda_backend *c = cuda_begin_product(be, "linear_dw");
    if (!c || x.rows == 0) return;
    if (dt == DT_BF16) {
        bf16_linear_dw(c, dw, dy, x);
        return;
    }
    struct tensor *const operands[] = {&dy, &x};
    if (!bf16_widen(c, "linear_dw", operands, 2)) return;
    const struct cu_gemm g = {dy.data, x.data, dw, dy.ld, x.ld, x.cols, NULL, true, dy.cols, x.cols, x.rows};
    cuda_ok(c, "linear_dw", cu_gemm(&c->dev, CU_GEMM_TN, &g));
}

static void op_bias_grad(struct backend *be, float *db, struct tensor dy) {
    /* No factor of a product is written here, so the kept rounding stays valid. */
    struct cuda_backend *c = cuda_begin_product(be, "bias_grad");
    struct tensor *const operands[] = {&dy};
    if (c && dy.dt == DT_BF16 && bf16_bias_grad(c, db, dy)) return;
    if (c && bf16_widen(c, "bias_grad", operands, 1)) cuda_ok(c, "bias_grad", cu_bias_grad(&c->dev, db, mat_of(dy)));
}

/* ---- rows by index -------------------------------------------------------------------------------------------------
 */

static void gather(struct backend *be, const char *op, struct tensor y, const float *x, int64_t ldx,
                   const int32_t *rows) {
    struct cuda_backend *c = cuda_begin(be, op);
    if (!c || y.rows == 0) return;
    const int32_t *d_rows = pass_send(c, op, rows, (size_t)y.rows * sizeof *rows);
    if (d_rows && NOTE(c, op, OF_TENSOR(y), ADDRESS(x), (uint64_t)ldx, ADDRESS(d_rows), ADDRESS(c->slab[CUDA_DRAWN].p)))
        cuda_ok(c, op, cu_gather_rows(&c->dev, mat_of(y), x, ldx, d_rows, c->slab[CUDA_DRAWN].p));
}

static void op_gather_rows(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows) {
    ASSERT(x.cols == y.cols && x.dt == y.dt);
    struct cuda_backend *c = x.dt == DT_BF16 ? cuda_begin(be, "gather_rows") : NULL;
    if (c)
        bf16_gather(c, y, x, rows);
    else if (x.dt == DT_F32)
        gather(be, "gather_rows", y, x.data, x.ld, rows);
}

static void op_embed(struct backend *be, struct tensor x, const struct weight *table, const int32_t *ids) {
    if (table->w) {
        gather(be, "embed", x, table->w, x.cols, ids);
        return;
    }
    struct cuda_backend *c = cuda_begin(be, "embed");
    if (c) bf16_embed(c, x, table, ids);
}

/* Lists the rows that are added to one destination together, each list in ascending order, so that one block of threads
 * can add them in order. c->slot[id] is the list of destination id during a call. */
static void scatter(struct backend *be, const char *op, float *y, int64_t ldy, struct tensor x, const int32_t *rows,
                    const float *scale) {
    struct cuda_backend *c = begin(be, op);
    const int64_t n = x.rows;
    if (!c || n == 0 || x.cols == 0) return;
    int64_t top = 0;
    for (int64_t i = 0; i < n; i++) {
        ASSERT(rows[i] >= 0);
        top = i64_max(top, rows[i]);
    }
    if (top >= c->n_slot) {
        const int64_t want = i64_max(top + 1, 2 * c->n_slot);
        c->slot = xrealloc(c->slot, (size_t)want * sizeof *c->slot);
        for (int64_t i = c->n_slot; i < want; i++) c->slot[i] = -1;
        c->n_slot = want;
    }
    struct host_stage s;
    const size_t bytes = (size_t)n * sizeof(int32_t);
    if (!stage_begin(c, op, 4 * bytes + 160, &s)) return;
    const float *const d_scale = scale ? stage_add(&s, scale, bytes) : NULL;
    int32_t *const d_order = stage_add(&s, NULL, bytes);
    int32_t *const d_dst = stage_add(&s, NULL, bytes);
    int32_t *const d_start = stage_add(&s, NULL, bytes + sizeof(int32_t));
    int32_t *const order = stage_host(&s, d_order), *const dst = stage_host(&s, d_dst);
    int32_t *const start = stage_host(&s, d_start);
    int32_t lists = 0;
    for (int64_t i = 0; i < n; i++) { /* First start[u+1] counts the rows of list u. */
        int32_t u = c->slot[rows[i]];
        if (u < 0) {
            u = c->slot[rows[i]] = lists++;
            dst[u] = rows[i];
            start[u + 1] = 0;
        }
        start[u + 1]++;
    }
    start[0] = 0;
    for (int32_t u = 0; u < lists; u++) start[u + 1] += start[u];
    for (int64_t i = n - 1; i >= 0; i--) order[--start[c->slot[rows[i]] + 1]] = (int32_t)i;
    /* Now start[u+1] is where list u begins: move back by one. */
    for (int32_t u = 0; u < lists; u++) {
        start[u] = start[u + 1];
        c->slot[dst[u]] = -1;
    }
    start[lists] = (int32_t)n;
    if (!stage_send(c, op, &s)) return;
    cuda_ok(c, op, cu_scatter_add_rows(&c->dev, y, ldy, mat_of(x), d_scale, lists, d_dst, d_start, d_order));
}

static void op_scatter_add_rows(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows,
                                const float *scale) {
    ASSERT(x.cols == y.cols);
    scatter(be, "scatter_add_rows", y.data, y.ld, x, rows, scale);
}

static void op_embed_grad(struct backend *be, float *dtable, struct tensor dx, const int32_t *ids) {
    scatter(be, "embed_grad", dtable, dx.cols, dx, ids, NULL);
}

static void op_axpby(struct backend *be, struct tensor y, float a, struct tensor x, float b) {
    ASSERT(x.rows == y.rows && x.cols == y.cols);
    struct cuda_backend *c = begin(be, "axpby");
    if (c) cuda_ok(c, "axpby", cu_axpby(&c->dev, mat_of(y), a, mat_of(x), b));
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void op_rmsnorm(struct backend *be, struct tensor y, struct tensor x, const float *gain, float eps) {
    ASSERT(y.rows == x.rows && y.cols == x.cols);
    struct cuda_backend *c = y.dt == DT_BF16 ? cuda_begin_owed(be, "rmsnorm", x) : begin(be, "rmsnorm");
    if (c && y.dt == DT_BF16)
        bf16_rmsnorm(c, y, x, gain, eps);
    else if (c)
        cuda_ok(c, "rmsnorm", cu_rmsnorm(&c->dev, mat_of(y), mat_of(x), gain, eps));
}

static void op_rmsnorm_grad(struct backend *be, struct tensor dx, float *dgain, struct tensor dy, struct tensor x,
                            const float *gain, float eps, bool accumulate) {
    ASSERT(dx.rows == x.rows && dy.rows == x.rows && dx.cols == x.cols && dy.cols == x.cols);
    struct cuda_backend *c = begin(be, "rmsnorm_grad");
    if (!c) return;
    float *s = cuda_scratch(c, "rmsnorm_grad", CUDA_SCRATCH, cuda_block_sums_bytes(x.rows, x.rows, x.cols));
    if (s)
        cuda_ok(
            c, "rmsnorm_grad",
            cu_rmsnorm_grad(&c->dev, mat_of(dx), dgain, mat_of(dy), mat_of(x), gain, eps, accumulate, s, s + x.rows));
}

static bool rope_begin(struct cuda_backend *c, const char *op, const struct rope_args *r, int64_t rows,
                       struct cu_rope *a) {
    const int32_t *pos = pass_send(c, op, r->pos, (size_t)rows * sizeof *pos);
    *a = (struct cu_rope){r->H,     r->G,      r->K,      pos,    r->cos_t,
                          r->sin_t, r->q_gain, r->k_gain, r->eps, 1.0f / sqrtf((float)r->K)};
    return pos != NULL;
}

static void op_rope(struct backend *be, struct tensor qk, struct tensor qkv, const struct rope_args *r) {
    ASSERT(qk.rows == qkv.rows && qkv.cols >= qk.cols);
    ASSERT(qk.cols == (r->H + (qk.dt == DT_BF16 ? 2 : 1) * r->G) * r->K);
    struct cuda_backend *c = qk.dt == DT_BF16 ? cuda_begin(be, "rope") : begin(be, "rope");
    struct cu_rope a;
    if (c && qk.dt == DT_BF16)
        bf16_rope(c, qk, qkv, r);
    else if (c && qk.rows && rope_begin(c, "rope", r, qk.rows, &a))
        cuda_ok(c, "rope", cu_rope(&c->dev, mat_of(qk), mat_of(qkv), &a));
}

static void op_rope_grad(struct backend *be, struct tensor dqkv, float *dq_gain, float *dk_gain, struct tensor qkv,
                         const struct rope_args *r) {
    ASSERT(dqkv.rows == qkv.rows && (dq_gain == NULL) == (dk_gain == NULL));
    struct cuda_backend *c = begin(be, "rope_grad");
    struct cu_rope a;
    if (!c || !dqkv.rows || !rope_begin(c, "rope_grad", r, dqkv.rows, &a)) return;
    if (dqkv.dt == DT_BF16) {
        bf16_rope_grad(c, dqkv, dq_gain, dk_gain, qkv, &a);
        return;
    }
    const int64_t heads = dqkv.rows * (r->H + r->G);
    float *s = cuda_scratch(c, "rope_grad", CUDA_SCRATCH, cuda_block_sums_bytes(heads, dqkv.rows, 2 * r->K));
    if (s)
        cuda_ok(c, "rope_grad", cu_rope_grad(&c->dev, mat_of(dqkv), dq_gain, dk_gain, mat_of(qkv), &a, s, s + heads));
}

static void op_swiglu(struct backend *be, struct tensor y, struct tensor gu) {
    ASSERT(gu.cols == 2 * y.cols && gu.rows == y.rows);
    struct cuda_backend *c = y.dt == DT_BF16 ? cuda_begin(be, "swiglu") : begin(be, "swiglu");
    if (c && y.dt == DT_BF16)
        bf16_swiglu(c, y, gu);
    else if (c)
        cuda_ok(c, "swiglu", cu_swiglu(&c->dev, mat_of(y), mat_of(gu)));
}

static void op_swiglu_grad(struct backend *be, struct tensor dgu, struct tensor dy, struct tensor gu) {
    ASSERT(gu.cols == 2 * dy.cols && dgu.cols == gu.cols && gu.rows == dy.rows && dgu.rows == dy.rows);
    struct cuda_backend *c = begin(be, "swiglu_grad");
    if (c && gu.dt == DT_BF16)
        bf16_swiglu_grad(c, dgu, dy, gu);
    else if (c)
        cuda_ok(c, "swiglu_grad", cu_swiglu_grad(&c->dev, mat_of(dgu), mat_of(dy), mat_of(gu)));
}

/* No factor of a product is written here, so the kept rounding stays valid. */
static void op_swiglu_both(struct backend *be, struct tensor dgu, struct tensor y, struct tensor dy, struct tensor gu) {
    ASSERT(gu.cols == 2 * dy.cols && dgu.cols == gu.cols && gu.rows == dy.rows && dgu.rows == dy.rows);
    ASSERT(y.rows == dy.rows && y.cols == dy.cols && y.data != dy.data && y.dt == DT_BF16);
    struct cuda_backend *c = cuda_begin_product(be, "swiglu_both");
    if (c) bf16_swiglu_both(c, dgu, y, dy, gu);
}

/* Short rows share a block of threads. */
static bool logprob_stats(struct cuda_backend *c, const char *op, struct cu_row_stats *stats, struct tensor logits,
                          const int32_t *d_targets) {
    if (logits.cols <= LOGIT_CHUNK) return cuda_ok(c, op, cu_logprob_rows(&c->dev, stats, mat_of(logits), d_targets));
    void *scratch = cuda_scratch(c, op, CUDA_CHUNKS, cuda_chunks_bytes(logits.rows, logits.cols));
    return scratch && cuda_ok(c, op, cu_logprob_stats(&c->dev, stats, mat_of(logits), d_targets, scratch));
}

static void op_logprob(struct backend *be, float *logp, float *entropy, struct tensor logits, const int32_t *targets) {
    struct cuda_backend *c = begin(be, "logprob");
    const size_t bytes = (size_t)logits.rows * sizeof(struct cu_row_stats);
    if (!c || !bytes) return;
    const int32_t *d_targets = pass_send(c, "logprob", targets, (size_t)logits.rows * sizeof *targets);
    if (!d_targets || !results_room(c, "logprob", bytes, 1)) return;
    struct cu_row_stats *stats = result(c, NULL, bytes);
    result_logprobs(c, NULL, logp, entropy);
    if (logprob_stats(c, "logprob", stats, logits, d_targets)) c->known = (struct known_logits){logits, stats};
}

static void op_draw(struct backend *be, struct tensor logits, int32_t limit, const struct draw *how, int32_t *id,
                    float *logp, float *entropy) {
    ASSERT(limit > 0 && limit <= logits.cols);
    struct cuda_backend *c = cuda_begin(be, "draw");
    const size_t n = (size_t)logits.rows, bytes = n * sizeof(struct cu_row_stats);
    struct host_stage s;
    if (!c || !n || !results_room(c, "draw", bytes, 1) || !stage_begin(c, "draw", n * sizeof(struct cu_draw) + 16, &s))
        return;
    struct cu_draw *const dev = stage_add(&s, NULL, n * sizeof *dev), *const host = stage_host(&s, dev);
    for (size_t i = 0; i < n; i++)
        host[i] = (struct cu_draw){how[i].temperature > 0 ? 1.0f / how[i].temperature : 0.0f, how[i].min_p, how[i].u};
    struct cu_row_stats *stats = result(c, NULL, bytes);
    result_logprobs(c, id, logp, entropy);
    void *scratch = cuda_scratch(c, "draw", CUDA_CHUNKS, cuda_chunks_bytes(logits.rows, logits.cols));
    int32_t *const ids = cuda_scratch(c, "draw", CUDA_DRAWN, logits.rows * (int64_t)sizeof *ids);
    if (scratch && ids && stage_send(c, "draw", &s) &&
        NOTE(c, "draw", OF_TENSOR(logits), (uint64_t)limit, ADDRESS(dev), ADDRESS(stats), ADDRESS(ids),
             ADDRESS(scratch)))
        cuda_ok(c, "draw", cu_draw(&c->dev, stats, ids, mat_of(logits), limit, dev, scratch));
}

/* With `rounded` the gradient is rounded to bfloat16 and goes there, rows end to end. The logits are undefined
 * afterwards. */
static void logprob_grad(struct backend *be, struct tensor logits, const int32_t *targets, const float *g,
                         uint16_t *rounded) {
    const struct known_logits known = ((struct cuda_backend *)be)->known;
    struct cuda_backend *c = begin(be, "logprob_grad");
    const size_t bytes = (size_t)logits.rows * sizeof(float);
    struct host_stage s;
    if (!c || !bytes || !stage_begin(c, "logprob_grad", 2 * bytes + 32, &s)) return;
    const int32_t *d_targets = stage_add(&s, targets, bytes);
    const float *d_g = stage_add(&s, g, bytes);
    if (!stage_send(c, "logprob_grad", &s)) return;
    const struct tensor *k = &known.logits;
    const bool same = k->data == logits.data && k->rows == logits.rows && k->cols == logits.cols && k->ld == logits.ld;
    if (known.stats && same) {
        uint16_t *const there = rounded && bf16_lines_up(logits) ? rounded : NULL;
        if (cuda_ok(c, "logprob_grad", cu_logits_grad(&c->dev, mat_of(logits), there, d_targets, known.stats, d_g)) &&
            rounded && !there)
            bf16_round_to(c, "logprob_grad", rounded, logits);
        return;
    }
    if (logits.cols <= LOGIT_CHUNK) {
        if (cuda_ok(c, "logprob_grad", cu_logprob_grad(&c->dev, mat_of(logits), d_targets, d_g)) && rounded)
            bf16_round_to(c, "logprob_grad", rounded, logits);
        return;
    }
    struct cu_row_stats *stats = cuda_scratch(c, "logprob_grad", CUDA_SCRATCH, logits.rows * CUDA_ROW_STATS_BYTES);
    if (stats && logprob_stats(c, "logprob_grad", stats, logits, d_targets) &&
        cuda_ok(c, "logprob_grad", cu_logits_grad(&c->dev, mat_of(logits), NULL, d_targets, stats, d_g)) && rounded)
        bf16_round_to(c, "logprob_grad", rounded, logits);
}

static void op_logprob_grad(struct backend *be, struct tensor logits, const int32_t *targets, const float *g) {
    logprob_grad(be, logits, targets, g, NULL);
}

static void op_logprob_grad16(struct backend *be, struct tensor dl, struct tensor logits, const int32_t *targets,
                              const float *g) {
    ASSERT(dl.dt == DT_BF16 && dl.rows == logits.rows && dl.cols == logits.cols && dl.ld == dl.cols);
    logprob_grad(be, logits, targets, g, dl.data);
}

/* ---- optimizer -----------------------------------------------------------------------------------------------------
 */

static void op_adamw(struct backend *be, float *w, float *m, float *v, const float *g, int64_t n,
                     const struct adamw_args *a) {
    struct cuda_backend *c = begin(be, "adamw");
    if (!c) return;
    const struct cu_adamw args = {a->beta1, a->beta2, a->eps, a->scale, a->decay, a->step_size, a->inv_sqrt_bias2};
    cuda_ok(c, "adamw", cu_adamw(&c->dev, w, m, v, g, n, &args));
}

static double op_sum_squares(struct backend *be, const float *x, int64_t n) {
    struct cuda_backend *c = begin(be, "sum_squares");
    double sum = 0;
    if (!c || n <= 0) return sum;
    double *s = cuda_scratch(c, "sum_squares", CUDA_SCRATCH, (1 + cuda_sum_doubles(n)) * (int64_t)sizeof *s);
    if (s && cuda_ok(c, "sum_squares", cu_sum_squares(&c->dev, s, s + 1, x, n))) mem_get(be, &sum, s, sizeof sum);
    return sum;
}

/* ---- attention -----------------------------------------------------------------------------------------------------
 */

static void op_kv_write(struct backend *be, struct tensor k, struct tensor v, const struct attn_seq *seq, int n_seq,
                        struct attn_shape s) {
    struct cuda_backend *c = k.dt == DT_BF16 ? cuda_begin(be, "kv_write") : begin(be, "kv_write");
    if (c && k.dt == DT_BF16)
        bf16_kv_write(c, k, v, seq, n_seq, s);
    else if (c)
        plan_kv_write(c, k, v, seq, n_seq, s);
}

static void op_attention(struct backend *be, struct tensor o, float *stats, struct tensor q, struct tensor k,
                         struct tensor v, const struct attn_seq *seq, int n_seq, struct attn_shape s) {
    ASSERT(s.H % s.G == 0 && q.cols == s.H * s.K && o.cols == q.cols);
    struct cuda_backend *c = q.dt == DT_BF16 ? cuda_begin(be, "attention") : begin(be, "attention");
    if (!c) return;
    if (q.dt == DT_BF16) {
        bf16_attention(c, o, stats, q, k, v, seq, n_seq, s);
        return;
    }
    struct cu_attn a = {.q = mat_of(q), .k = mat_of(k), .v = mat_of(v), .o = mat_of(o), .stats = stats};
    plan_attention(c, &a, seq, n_seq, s);
}

static void op_attention_grad(struct backend *be, struct tensor dq, struct tensor dk, struct tensor dv,
                              struct tensor d_o, struct tensor o, const float *stats, struct tensor q, struct tensor k,
                              struct tensor v, const struct attn_seq *seq, int n_seq, struct attn_shape s) {
    ASSERT(s.H % s.G == 0 && q.cols == s.H * s.K && o.cols == q.cols && d_o.cols == q.cols);
    struct cuda_backend *c = begin(be, "attention_grad");
    if (!c) return;
    if (q.dt == DT_BF16) {
        bf16_attention_grad(c, dq, dk, dv, d_o, o, stats, q, k, v, seq, n_seq, s);
        return;
    }
    struct cu_attn a = {.q = mat_of(q),
                        .k = mat_of(k),
                        .v = mat_of(v),
                        .o = mat_of(o),
                        .d_o = mat_of(d_o),
                        .dq = mat_of(dq),
                        .dk = mat_of(dk),
                        .dv = mat_of(dv),
                        .stats = (float *)(uintptr_t)stats};
    plan_attention_grad(c, &a, seq, n_seq, s);
}

/* ---- the table -----------------------------------------------------------------------------------------------------
 */

static const struct backend table = {
    .bf16 = true,
    .act = DT_BF16,
    .logit_chunk_bytes = CUDA_LOGIT_CHUNK,
    .mem_alloc = mem_alloc,
    .mem_free = mem_free,
    .mem_available = mem_available,
    .mem_peak = mem_peak,
    .mem_put = mem_put,
    .mem_get = mem_get,
    .mem_copy = mem_copy,
    .mem_zero = mem_zero,
    .sync = cuda_sync,
    .close = cuda_close,
    .weight_pack = weight_pack,
    .weight_free = weight_free,
    .linear = op_linear,
    .linear_dx = op_linear_dx,
    .linear_dw = op_linear_dw,
    .bias_grad = op_bias_grad,
    .embed = op_embed,
    .embed_grad = op_embed_grad,
    .rmsnorm = op_rmsnorm,
    .rmsnorm_grad = op_rmsnorm_grad,
    .rope = op_rope,
    .rope_grad = op_rope_grad,
    .swiglu = op_swiglu,
    .swiglu_grad = op_swiglu_grad,
    .kv_write = op_kv_write,
    .attention = op_attention,
    .attention_grad = op_attention_grad,
    .logprob = op_logprob,
    .logprob_grad = op_logprob_grad,
    .axpby = op_axpby,
    .gather_rows = op_gather_rows,
    .scatter_add_rows = op_scatter_add_rows,
    .adamw = op_adamw,
    .sum_squares = op_sum_squares,
    .weight_put = bf16_weight_put,
    .weight_get = weight_get,
    .weight_put_coded = coded_put,
    .lora_down = bf16_lora_down,
    .lora_up = bf16_lora_up,
    .lora_swiglu = bf16_lora_swiglu,
    .draw = op_draw,
    .post = cuda_post,
    .collect = cuda_collect,
    .pass_begin = pass_begin,
    .pass_end = pass_end,
    .rope_kv = bf16_rope_kv,
    .swiglu_both = op_swiglu_both,
    .lora_dt = bf16_lora_dt,
    .weights_pack = bf16_weights_pack,
    .rmsnorm_back = bf16_rmsnorm_back,
    .linear_add = bf16_linear_add,
    .linear_swiglu = bf16_linear_swiglu,
    .logprob_grad16 = op_logprob_grad16,
    .gather_scaled = bf16_gather_scaled,
    .peers_id = nccl_id,
    .peers_join = nccl_join,
    .peers_exchange = nccl_exchange,
    .peers_end = nccl_end,
    .experts = &cuda_experts,
};

static void name_device(struct cuda_backend *c, const struct cudaDeviceProp *p) {
    char products[64];
    lt_text(c->lt, products, sizeof products);
    snprintf(c->kind, sizeof c->kind, "%s, %d multiprocessors, %s", p->name, p->multiProcessorCount, products);
    snprintf(c->name, sizeof c->name, "cuda:%d (%s, %s)", c->device, p->name, products);
}

/* Looks at the device for the first time. Returns what is wrong, in words that a user can act on; NULL when the device
 * can be used. */
static const char *open_device(struct cuda_backend *c, int device, char *why, size_t size) {
    int n = 0, driver = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc != cudaSuccess || n == 0) {
        cudaDriverGetVersion(&driver);
        if (rc == cudaErrorInsufficientDriver && driver > 0) {
            int runtime = 0;
            cudaRuntimeGetVersion(&runtime);
            snprintf(why, size, "the NVIDIA driver is too old: it serves CUDA %d.%d, the plugin needs %d.%d",
                     driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
        } else {
            const char *visible = getenv("CUDA_VISIBLE_DEVICES");
            snprintf(why, size, "no CUDA device (%s)%s%s", rc ? cudaGetErrorString(rc) : "none is visible",
                     visible  ? "; CUDA_VISIBLE_DEVICES is "
                     : driver ? ""
                              : "; is the NVIDIA driver installed?",
                     !visible   ? ""
                     : *visible ? visible
                                : "empty");
        }
        return why;
    }
    if (device < 0 || device >= n) {
        snprintf(why, size, "there is no device %d: %d %s visible", device, n, n == 1 ? "is" : "are");
        return why;
    }
    struct cudaDeviceProp p;
    int low = 0, high = 0; /* Work on the side stream takes the multiprocessors that the main stream leaves. */
    if ((rc = cudaSetDevice(device)) != cudaSuccess || (rc = cudaGetDeviceProperties(&p, device)) != cudaSuccess ||
        (rc = cudaDeviceGetStreamPriorityRange(&low, &high)) != cudaSuccess ||
        (rc = cudaStreamCreateWithPriority(&c->stream, cudaStreamNonBlocking, high)) != cudaSuccess ||
        (rc = cudaStreamCreateWithPriority(&c->side, cudaStreamNonBlocking, low)) != cudaSuccess ||
        (rc = cudaEventCreateWithFlags(&c->fork, cudaEventDisableTiming)) != cudaSuccess ||
        (rc = cudaEventCreateWithFlags(&c->join, cudaEventDisableTiming)) != cudaSuccess ||
        (rc = cudaEventCreateWithFlags(&c->ring.left[0], cudaEventDisableTiming)) != cudaSuccess ||
        (rc = cudaEventCreateWithFlags(&c->ring.left[1], cudaEventDisableTiming)) != cudaSuccess ||
        (rc = cudaEventCreateWithFlags(&c->arenas.read[0], cudaEventDisableTiming)) != cudaSuccess ||
        (rc = cudaEventCreateWithFlags(&c->arenas.read[1], cudaEventDisableTiming)) != cudaSuccess ||
        (rc = cudaEventCreateWithFlags(&c->posted[0].there, cudaEventDisableTiming)) != cudaSuccess ||
        (rc = cudaEventCreateWithFlags(&c->posted[1].there, cudaEventDisableTiming)) != cudaSuccess ||
        (rc = (cudaError_t)cu_probe()) != cudaSuccess) {
        const char *hint = "";
        size_t have = 0, total = 0;
        if (rc == cudaErrorNoKernelImageForDevice)
            hint = ": the plugin was built for other GPUs, see CUDA_ARCH in the Makefile";
        else if (rc == cudaErrorDevicesUnavailable)
            hint = ": another process has it for itself (compute mode)";
        else if (rc == cudaErrorMemoryAllocation || cudaMemGetInfo(&have, &total) == cudaErrorMemoryAllocation)
            hint = ": other processes have taken its memory";
        snprintf(why, size, "device %d: %s%s", device, cudaGetErrorString(rc), hint);
        return why;
    }
    c->device = device;
    c->total_bytes = p.totalGlobalMem;
    c->dev =
        (struct cu_dev){c->stream, p.multiProcessorCount, (int)p.sharedMemPerBlockOptin, p.major >= 9, p.major == 9};
    c->lt = lt_open();
    c->profile = profile_open();
    name_device(c, &p);
    return NULL;
}

PLUGIN_API backend_plugin_open_fn kernelrl_cuda_open;
int kernelrl_cuda_open(int abi, int device, struct pool *pool, struct backend **out, char *msg, size_t msg_bytes) {
    *out = NULL;
    if (abi != BACKEND_ABI) {
        snprintf(msg, msg_bytes, "the plugin's table has version %d, the program's %d: build both again", BACKEND_ABI,
                 abi);
        return 1;
    }
    struct cuda_backend *c = xcalloc(1, sizeof *c);
    c->be = table;
    c->be.pool = pool;
    c->be.name = c->name;
    c->be.kind = c->kind;
    c->device = device;
    if (open_device(c, device, msg, msg_bytes)) {
        cuda_close(&c->be);
        cudaGetLastError(); /* Clears the error left by closing a half-opened device, so that no later launch reports
                               it. */
        return 1;
    }
    *out = &c->be;
    return 0;
}
