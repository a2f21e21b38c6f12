/* Passes. A sampling step has hundreds of small kernels. They are recorded once, as a CUDA graph, and then replayed
 * with other contents of the index arrays.
 *
 * In a replay every op is called as ever. It leaves its arrays where the recording reads them, and notes what it would
 * have launched, but launches nothing. If these notes differ from those of the recording, in any address or size, the
 * recording is dropped, and pass_end returns false: the caller asks for the pass once more, which then runs as usual.
 */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cuda/host/host.h"

static uint64_t mix(uint64_t h, uint64_t x) {
    h = (h ^ x) * 0x9e3779b97f4a7c15ull;
    return h ^ (h >> 29);
}

/* The notes of a pass are one hash, p->sign. An op's name counts by its address, so `op` is a literal. */
bool pass_note(struct cuda_backend *c, const char *op, const uint64_t *values, int n) {
    struct pass_state *p = &c->pass;
    if (c->profile && op) profile_mark(c, op);
    if (p->mode == PASS_RUN) return true;
    uint64_t h = mix(p->sign, (uint64_t)(uintptr_t)op);
    for (int i = 0; i < n; i++) h = mix(h, values[i]);
    p->sign = h;
    return p->mode == PASS_CAPTURE;
}

void recordings_drop(struct cuda_backend *c) {
    for (int i = 0; i < c->n_recordings; i++) {
        struct recording *r = &c->recording[i];
        if (r->exec) cudaGraphExecDestroy(r->exec);
        r->exec = NULL;
        r->seen = 0;
    }
}

void recordings_free(struct cuda_backend *c) {
    recordings_drop(c);
    for (int i = 0; i < c->n_recordings; i++) device_free(c, c->recording[i].dev);
    free(c->recording);
    for (int i = 0; i < 2; i++) {
        cudaFreeHost(c->arenas.host[i]);
        if (c->arenas.read[i]) cudaEventDestroy(c->arenas.read[i]);
    }
}

/* Finds or creates the recording of a key. When the table is full, the new recording takes the place, and the device
 * memory, of the recording whose last pass lies furthest back. The result is valid until the next call, which may move
 * the table. */
static struct recording *recording_of(struct cuda_backend *c, uint64_t key) {
    struct recording *old = NULL;
    for (int i = 0; i < c->n_recordings; i++) {
        struct recording *r = &c->recording[i];
        if (r->key == key) return r;
        if (!old || r->serial < old->serial) old = r;
    }
    if (c->n_recordings == CUDA_RECORDINGS) {
        if (old->exec) cudaGraphExecDestroy(old->exec); /* A graph that is running is freed when it has ended. */
        *old = (struct recording){.key = key, .dev = old->dev};
        return old;
    }
    if (c->n_recordings == c->cap_recordings) {
        c->cap_recordings = 2 * c->cap_recordings + 16;
        c->recording = xrealloc(c->recording, (size_t)c->cap_recordings * sizeof *c->recording);
    }
    struct recording *r = &c->recording[c->n_recordings++];
    *r = (struct recording){.key = key};
    return r;
}

/* Prepares memory for the index arrays of a recording. On the host, passes use two places in turn: this one gets the
 * place of the pass before last, and waits until the device has read what that pass left there. On the device one place
 * is enough for each recording, because the stream copies to it only after the replay before has ended. */
static bool arena_of(struct cuda_backend *c, struct recording *r) {
    struct arenas *a = &c->arenas;
    void *host = NULL, *dev = NULL;
    a->now = !a->now;
    if (!a->host[a->now] && !cuda_ok(c, "pass", cudaMallocHost(&host, CUDA_ARENA_BYTES))) return false;
    if (host) a->host[a->now] = host;
    if (a->used[a->now] && !cuda_ok(c, "pass", cudaEventSynchronize(a->read[a->now]))) return false;
    a->used[a->now] = false;
    if (r->dev) return true;
    if (!cuda_ok(c, "pass", device_alloc(c, &dev, CUDA_ARENA_BYTES))) return false;
    r->dev = dev;
    return true;
}

void pass_begin(struct backend *be, uint64_t key) {
    struct cuda_backend *c = (struct cuda_backend *)be;
    struct pass_state *p = &c->pass;
    bf16_settle(c);
    *p = (struct pass_state){.mode = PASS_RUN, .serial = p->serial + 1, .open = true};
    if (c->error[0] || key == 0 || c->profile || c->no_recording) return;
    struct recording *r = recording_of(c, key);
    p->rec = r;
    r->serial = p->serial;
    p->results_n = c->results.n;
    p->results_used = c->results.used;
    /* The first pass with a key is run as usual: it finds and grows everything that a recording must find in place. A
     * pass is also run as usual while results of earlier ops wait to be read, because a recording has the addresses of
     * results in it, and these depend on how many wait. */
    if (r->never || r->seen++ == 0 || p->results_n > 0) return;
    if (!cuda_ok(c, "pass", cudaSetDevice(c->device)) || !arena_of(c, r)) return;
    if (r->exec) {
        p->mode = PASS_REPLAY;
    } else if (cuda_ok(c, "pass", cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeRelaxed))) {
        p->mode = PASS_CAPTURE;
    }
}

/* Takes back what the pass has noted; the device has done nothing of it. What pass_end returns: false asks the caller
 * for the pass again, and true ends it after an error, which asking again would not mend. The next pass with this key
 * runs as usual (seen), and lists that were made for this pass are not taken for the next one's (serial, plan16_of). */
static bool undo(struct cuda_backend *c) {
    c->results.n = c->pass.results_n;
    c->results.used = c->pass.results_used;
    c->pass.rec->seen = 0;
    c->pass.abort = false; /* It would hold back ops outside of passes, too. */
    c->pass.serial++;
    return c->error[0] != 0;
}

/* Copies the index arrays to the device, all at once, and launches the graph that reads them. */
static void play(struct cuda_backend *c, struct recording *r) {
    struct arenas *a = &c->arenas;
    if (r->used > 0 &&
        (!cuda_ok(c, "pass", cudaMemcpyAsync(r->dev, a->host[a->now], r->used, cudaMemcpyHostToDevice, c->stream)) ||
         !cuda_ok(c, "pass", cudaEventRecord(a->read[a->now], c->stream))))
        return;
    a->used[a->now] = r->used > 0;
    cuda_ok(c, "pass", cudaGraphLaunch(r->exec, c->stream));
}

static bool finish_capture(struct cuda_backend *c, struct recording *r) {
    cudaGraph_t graph = NULL;
    const struct pass_state *p = &c->pass;
    const cudaError_t rc = cudaStreamEndCapture(c->stream, &graph);
    if (p->abort || rc != cudaSuccess || c->error[0]) {
        cudaGetLastError();
        if (graph) cudaGraphDestroy(graph);
        /* CUDA refused: some op in this pass cannot be recorded. (After an abort pass_stage has set never.) */
        if (!p->abort && !c->error[0]) r->never = true;
        return undo(c);
    }
    const bool ok = cuda_ok(c, "pass", cudaGraphInstantiate(&r->exec, graph, 0));
    cudaGraphDestroy(graph);
    if (!ok) r->exec = NULL;
    r->sign = p->sign;
    r->used = p->used;
    if (ok) play(c, r);
    return true;
}

bool pass_end(struct backend *be) {
    struct cuda_backend *c = (struct cuda_backend *)be;
    struct pass_state *p = &c->pass;
    bf16_settle(c);
    struct recording *r = p->rec;
    const enum pass_mode mode = p->mode;
    p->open = false;
    p->mode = PASS_RUN;
    if (c->profile) profile_mark(c, NULL);
    if (mode == PASS_CAPTURE) return finish_capture(c, r);
    if (mode == PASS_RUN) return true;
    if (p->abort || p->sign != r->sign || p->used != r->used || c->error[0]) {
        cudaGraphExecDestroy(r->exec);
        r->exec = NULL;
        return undo(c);
    }
    play(c, r);
    return true;
}

/* ---- the index arrays of a pass ---------------------------------------------------------------------------------- */

bool pass_stage(struct cuda_backend *c, size_t bytes, struct host_stage *s) {
    struct pass_state *p = &c->pass;
    bytes = (bytes + 255) & ~(size_t)255;
    if (p->used + bytes > CUDA_ARENA_BYTES) {
        p->abort = true;
        p->rec->never = true;
        return false;
    }
    *s = (struct host_stage){
        .host = c->arenas.host[c->arenas.now] + p->used, .dev = p->rec->dev + p->used, .bytes = bytes};
    p->used += bytes;
    return true;
}

/* An array that was sent in this pass already is not sent again: all layers share the positions. It is known by its
 * address and size, so the caller leaves it as it is until pass_end. */
void *pass_send(struct cuda_backend *c, const char *op, const void *src, size_t bytes) {
    struct pass_state *p = &c->pass;
    struct sent *old = NULL;
    for (int i = 0; p->open && i < p->n_sent; i++) {
        if (p->sent[i].src != src || p->sent[i].bytes != bytes) continue;
        /* A recording's memory keeps the array for the whole pass. The ring overwrites it when the host comes back to
         * the half in which it lies: that is the second turn from then on. */
        if (p->mode != PASS_RUN || c->ring.turns - p->sent[i].turns < 2) return p->sent[i].dev;
        old = &p->sent[i];
    }
    struct host_stage s;
    if (!stage_begin(c, op, bytes, &s)) return NULL;
    void *dev = stage_add(&s, src, bytes);
    if (!stage_send(c, op, &s)) return NULL;
    if (p->open && !old && p->n_sent < (int)ARRAY_LEN(p->sent)) old = &p->sent[p->n_sent++];
    if (old) *old = (struct sent){src, bytes, dev, c->ring.turns};
    return dev;
}

/* ---- where the time goes: KERNELRL_CUDA_PROFILE=1 ---------------------------------------------------------------- */

enum { MARKS = 4096, KINDS = 128, NAMES = 64, NAME_BYTES = 40 };
struct profile {
    cudaEvent_t mark[MARKS];
    const char *op[MARKS];
    int n;
    struct {
        const char *op;
        double ms;
        int64_t n;
    } kind[KINDS];
    int n_kinds;
    char name[NAMES][NAME_BYTES];
    int n_names;
};

struct profile *profile_open(void) {
    const char *on = getenv("KERNELRL_CUDA_PROFILE");
    if (!on || !*on || strcmp(on, "0") == 0) return NULL;
    struct profile *p = xcalloc(1, sizeof *p);
    for (int i = 0; i < MARKS; i++)
        if (cudaEventCreateWithFlags(&p->mark[i], 0) != cudaSuccess) p->mark[i] = NULL;
    return p;
}

static void profile_collect(struct profile *p) {
    if (p->n > 0) cudaEventSynchronize(p->mark[p->n - 1]);
    for (int i = 0; i + 1 < p->n; i++) {
        float ms = 0;
        int k = 0;
        if (!p->op[i] || cudaEventElapsedTime(&ms, p->mark[i], p->mark[i + 1]) != cudaSuccess) continue;
        while (k < p->n_kinds && strcmp(p->kind[k].op, p->op[i]) != 0) k++;
        if (k == KINDS) continue;
        if (k == p->n_kinds) p->kind[p->n_kinds++].op = p->op[i];
        p->kind[k].ms += (double)ms;
        p->kind[k].n++;
    }
    p->n = 0;
}

const char *profile_name(struct cuda_backend *c, const char *op, int64_t n, int64_t k) {
    struct profile *p = c->profile;
    if (!p) return op;
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s %lld x %lld", op, (long long)n, (long long)k);
    for (int i = 0; i < p->n_names; i++)
        if (strcmp(p->name[i], name) == 0) return p->name[i];
    if (p->n_names == NAMES) return op;
    return memcpy(p->name[p->n_names++], name, sizeof name);
}

/* Notes that what follows on the stream is `op`. NULL: nothing of interest follows. */
void profile_mark(struct cuda_backend *c, const char *op) {
    struct profile *p = c->profile;
    if (p->n == MARKS) {
        const char *last = p->op[p->n - 1];
        profile_collect(p);
        if (last) profile_mark(c, last);
    }
    if (!p->mark[p->n] || cudaEventRecord(p->mark[p->n], c->stream) != cudaSuccess) return;
    p->op[p->n++] = op;
}

void profile_print(struct cuda_backend *c, FILE *f) {
    struct profile *p = c->profile;
    double all = 0;
    profile_collect(p);
    for (int i = 0; i < p->n_kinds; i++) all += p->kind[i].ms;
    for (int i = 0; i < p->n_kinds; i++)
        fprintf(f, "profile: %-28s %9lld calls %10.3f ms %8.2f us each %5.1f %%\n", p->kind[i].op,
                (long long)p->kind[i].n, p->kind[i].ms, p->kind[i].ms * 1e3 / (double)p->kind[i].n,
                p->kind[i].ms / all * 100);
    for (int i = 0; i < MARKS; i++)
        if (p->mark[i]) cudaEventDestroy(p->mark[i]);
    free(p);
}
