#include "verdicts/first_prompts.h"

#include <pthread.h>
#include <stdlib.h>

#include "io/json.h"
#include "rl/learn/session.h"

/* Who is asked for prototypes keeps every problem that it has been asked for; after so many another one is asked. */
enum { SESSIONS = 4, PROTOTYPES_AT_ONCE = 256 };

/* A session that makes prompts for one configuration and one backend. */
struct prompt_session {
    const struct train_options *of; /* NULL: the place is free */
    struct train_options options;   /* the same with the backend */
    struct session s;
    int asked;
    int64_t used;
};

struct first_prompts {
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    struct prompt_ask *first, **end;
    volatile bool closing; /* read without the lock, too */
    /* The thread's alone. */
    struct prompt_session session[SESSIONS];
    int64_t turn;
};

static void close_session(struct prompt_session *s) {
    if (s->of) session_close(&s->s);
    s->of = NULL;
}

/* The session of this ask, opened where it is not there yet, in the place of the one that was used least lately. */
static enum status session_for(struct first_prompts *p, const struct prompt_ask *a, struct prompt_session **out,
                               struct err *e) {
    struct prompt_session *place = &p->session[0];
    for (int i = 0; i < SESSIONS; i++) {
        struct prompt_session *s = &p->session[i];
        if (s->of == a->options && s->options.verify.backend == a->backend) {
            s->used = ++p->turn;
            *out = s;
            return s->asked++ % PROTOTYPES_AT_ONCE ? ST_OK : session_prototypes(&s->options, &s->s, e);
        }
        if (s->used < place->used) place = s;
    }
    close_session(place);
    place->options = *a->options;
    place->options.verify.backend = a->backend;
    place->of = a->options;
    place->asked = 1;
    place->used = ++p->turn;
    *out = place;
    return session_open_prompts(&place->options, false, &p->closing, &place->s, e);
}

static enum status make(struct first_prompts *p, struct prompt_ask *a, struct err *e) {
    struct arena arena = ARENA_INIT;
    struct chat_message messages[2];
    struct ids ids = {0};
    struct prompt_session *s = NULL;
    enum status st = session_for(p, a, &s, e);
    if (st == ST_OK)
        st = rollout_messages(&s->s.actor, a->problem, s->options.rollout.max_tokens, &arena, messages, &ids, e);
    if (st == ST_OK) {
        str_addc(&a->messages, '{');
        rollout_put_messages(&a->messages, "messages", messages);
        a->messages.p[0] = ',';
    } else {
        close_session(s); /* whoever was asked may be beyond repair */
    }
    ids_free(&ids);
    arena_free(&arena);
    return st;
}

static void *first_prompts_main(void *prompts) {
    struct first_prompts *p = prompts;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->first && !p->closing) pthread_cond_wait(&p->changed, &p->lock);
        struct prompt_ask *a = p->first;
        if (!a) break;
        p->first = a->next;
        if (!p->first) p->end = &p->first;
        pthread_mutex_unlock(&p->lock);
        a->status = p->closing ? FAIL(&a->err, ST_CANCELLED, "the server ends") : make(p, a, &a->err);
        a->done(a->ctx, a);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < SESSIONS; i++) close_session(&p->session[i]);
    return NULL;
}

struct first_prompts *first_prompts_open(void) {
    struct first_prompts *p = xcalloc(1, sizeof *p);
    p->end = &p->first;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    return p;
}

void first_prompts_submit(struct first_prompts *p, struct prompt_ask *a) {
    a->next = NULL;
    pthread_mutex_lock(&p->lock);
    if (!p->started) p->started = pthread_create(&p->thread, NULL, first_prompts_main, p) == 0;
    const bool started = p->started;
    if (started) {
        *p->end = a;
        p->end = &a->next;
        pthread_cond_signal(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    if (started) return;
    a->status = FAIL(&a->err, ST_IO, "the thread that makes prompts does not start");
    a->done(a->ctx, a);
}

void first_prompts_close(struct first_prompts *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->lock);
    if (p->started) pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
