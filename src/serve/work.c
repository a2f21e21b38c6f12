#include "serve/work.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "serve/internal.h"

struct work_list {
    struct work *first, **end;
};

struct work_thread {
    struct serve *s;
    pthread_t thread;
    bool started, quit;
    int fd; /* eventfd: some is done */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct work_list todo, done;
    struct tokenizer *tok; /* the thread's own, opened when it is first needed */
};

static void list_begin(struct work_list *l) { *l = (struct work_list){NULL, &l->first}; }

static void list_add(struct work_list *l, struct work *w) {
    w->next = NULL;
    *l->end = w;
    l->end = &w->next;
}

static struct work *list_take(struct work_list *l) {
    struct work *w = l->first;
    if (w) l->first = w->next;
    if (!l->first) l->end = &l->first;
    return w;
}

/* The thread's own tokenizer; the server's is in use by the server's thread. */
static struct tokenizer *own_tokenizer(struct work_thread *t) {
    struct err e;
    if (!t->tok && tokenizer_open(model_thread_policy(t->s->thread)->folder, &t->tok, &e) != ST_OK)
        log_error("tokenizer: %s", e.msg);
    return t->tok;
}

static void *work_main(void *thread) {
    struct work_thread *t = thread;
    const uint64_t one = 1;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        struct work *w = list_take(&t->todo);
        if (!w && t->quit) break;
        if (!w) {
            pthread_cond_wait(&t->wake, &t->lock);
            continue;
        }
        pthread_mutex_unlock(&t->lock);
        w->run(w, own_tokenizer(t));
        pthread_mutex_lock(&t->lock);
        list_add(&t->done, w);
        while (write(t->fd, &one, sizeof one) < 0 && errno == EINTR) {}
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static void finish(struct work *w) {
    w->pending = false;
    str_free(&w->body);
    if (!w->x || !http_replied(w->x)) w->done(w); /* else it was cut off meanwhile, and ends */
}

void work_begin(struct work *w, struct serve *s, struct http_exchange *x) {
    struct work_thread *t = s->worker;
    w->s = s;
    w->x = x;
    http_take_body(x, &w->body);
    if (w->body.len <= WORK_AT_ONCE_BYTES && !w->aside) {
        w->run(w, model_thread_policy(s->thread)->tok);
        finish(w);
        return;
    }
    w->pending = true;
    pthread_mutex_lock(&t->lock);
    list_add(&t->todo, w);
    pthread_cond_signal(&t->wake);
    pthread_mutex_unlock(&t->lock);
}

/* Takes it back from the thread, where that has not begun with it. */
static bool take_back(struct work_thread *t, struct work *w) {
    pthread_mutex_lock(&t->lock);
    struct work **at = &t->todo.first;
    while (*at && *at != w) at = &(*at)->next;
    const bool found = *at != NULL;
    if (found && !(*at = w->next)) t->todo.end = at;
    pthread_mutex_unlock(&t->lock);
    return found;
}

bool work_end(struct work *w) {
    w->x = NULL;
    if (w->pending && take_back(w->s->worker, w)) {
        w->pending = false;
        str_free(&w->body);
    }
    return !w->pending;
}

enum status work_thread_start(struct serve *s, struct work_thread **out, struct err *e) {
    struct work_thread *t = xcalloc(1, sizeof *t);
    *out = NULL;
    t->s = s;
    list_begin(&t->todo);
    list_begin(&t->done);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    t->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    t->started = t->fd >= 0 && pthread_create(&t->thread, NULL, work_main, t) == 0;
    if (!t->started) {
        const enum status st = FAIL(e, ST_IO, "the thread for large requests does not start: %s", strerror(errno));
        work_thread_stop(t);
        return st;
    }
    *out = t;
    return ST_OK;
}

int work_thread_fd(const struct work_thread *t) { return t->fd; }

void work_thread_collect(void *work_thread) {
    struct work_thread *t = work_thread;
    uint64_t count;
    if (read(t->fd, &count, sizeof count) < 0 && errno != EAGAIN) log_error("eventfd: %s", strerror(errno));
    for (;;) {
        pthread_mutex_lock(&t->lock);
        struct work *w = list_take(&t->done);
        pthread_mutex_unlock(&t->lock);
        if (!w) return;
        finish(w);
    }
}

void work_thread_stop(struct work_thread *t) {
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    t->quit = true;
    pthread_cond_signal(&t->wake);
    pthread_mutex_unlock(&t->lock);
    if (t->started) pthread_join(t->thread, NULL);
    if (t->fd >= 0) work_thread_collect(t);
    if (t->fd >= 0) close(t->fd);
    if (t->tok) tokenizer_close(t->tok);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->wake);
    free(t);
}
