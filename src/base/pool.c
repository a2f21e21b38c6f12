#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

struct pool {
    int n;
    pthread_t *threads;
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    /* The current job. It is written under the lock, before the generation moves. */
    pool_fn *fn;
    void *ctx;
    int64_t items, grain;
    _Atomic uint64_t generation;
    _Atomic int running;
    bool stop;
};
struct worker_arg {
    struct pool *p;
    int index;
};

int pool_cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

/* Runs the range of thread i: whole grains, spread as evenly as they go. */
static void run_range(const struct pool *p, int i) {
    int64_t grains = (p->items + p->grain - 1) / p->grain;
    int64_t begin = grains * i / p->n * p->grain, end = grains * (i + 1) / p->n * p->grain;
    if (end > p->items) end = p->items;
    if (begin < end) p->fn(p->ctx, begin, end, i);
}

static inline void cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Ops follow each other within microseconds, so a worker spins briefly before it sleeps. */
enum { SPIN = 4000 };

static void *worker_main(void *v) {
    struct worker_arg *arg = v;
    struct pool *p = arg->p;
    int index = arg->index;
    free(arg);
    uint64_t seen = 0;
    for (;;) {
        for (int i = 0; i < SPIN && atomic_load_explicit(&p->generation, memory_order_acquire) == seen; i++)
            cpu_relax();
        if (atomic_load_explicit(&p->generation, memory_order_acquire) == seen) {
            pthread_mutex_lock(&p->lock);
            while (atomic_load(&p->generation) == seen) pthread_cond_wait(&p->wake, &p->lock);
            pthread_mutex_unlock(&p->lock);
        }
        seen++;
        if (p->stop) return NULL;
        run_range(p, index);
        if (atomic_fetch_sub(&p->running, 1) == 1) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

struct pool *pool_create(int n_threads) {
    struct pool *p = xcalloc(1, sizeof *p);
    p->n = n_threads > 0 ? n_threads : pool_cpu_count();
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    p->threads = xcalloc((size_t)p->n, sizeof *p->threads);
    for (int i = 1; i < p->n; i++) {
        struct worker_arg *arg = xmalloc(sizeof *arg);
        *arg = (struct worker_arg){p, i};
        if (pthread_create(&p->threads[i], NULL, worker_main, arg) != 0) {
            free(arg);
            /* There are fewer threads than asked for. The partition follows p->n, and the bits do not change. */
            p->n = i;
            break;
        }
    }
    return p;
}

static void pool_start(struct pool *p) {
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->running, p->n - 1);
    atomic_fetch_add_explicit(&p->generation, 1, memory_order_release);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

void pool_destroy(struct pool *p) {
    if (!p) return;
    p->stop = true;
    pool_start(p);
    for (int i = 1; i < p->n; i++) pthread_join(p->threads[i], NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->done);
    free(p->threads);
    free(p);
}

int pool_threads(const struct pool *p) { return p ? p->n : 1; }

void pool_for(struct pool *p, int64_t n, int64_t grain, pool_fn *fn, void *ctx) {
    if (n <= 0) return;
    ASSERT(grain >= 1);
    if (!p || p->n == 1 || n <= grain) {
        fn(ctx, 0, n, 0);
        return;
    }
    p->fn = fn;
    p->ctx = ctx;
    p->items = n;
    p->grain = grain;
    pool_start(p);
    run_range(p, 0);
    for (int i = 0; i < SPIN && atomic_load_explicit(&p->running, memory_order_acquire) != 0; i++) cpu_relax();
    if (atomic_load_explicit(&p->running, memory_order_acquire) == 0) return;
    pthread_mutex_lock(&p->lock);
    while (atomic_load(&p->running) != 0) pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
