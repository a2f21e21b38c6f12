/* work: what is to be done with a request's body before anything else, parsing and tokenising it. A small body takes
 * microseconds and is worked on at once. A large one goes to a thread that does nothing else, with a tokenizer of its
 * own, so that no stream waits for it. */
#ifndef KERNELRL_SERVE_WORK_H
#define KERNELRL_SERVE_WORK_H

#include "http/http.h"
#include "text/tokenizer.h"

struct serve;
struct work_thread;

struct work {
    /* Any thread: works on `body`. It reads of the server what does not change, and writes what is its own. */
    void (*run)(struct work *w, struct tokenizer *t);
    /* The server's thread, behind run(). x is NULL where the exchange has ended meanwhile: then `done` gives up what
     * the work belongs to. */
    void (*done)(struct work *w);
    struct serve *s;
    struct http_exchange *x;
    struct str body;
    bool aside;   /* true: the body goes to the thread whatever its size, since it is packed */
    bool pending; /* true: begun and not done */
    struct work *next;
};
enum { WORK_AT_ONCE_BYTES = 32 << 10 };

/* Takes the body of x and works on it; done() may have been called when this returns. */
void work_begin(struct work *w, struct serve *s, struct http_exchange *x);
/* The exchange has ended. False: the thread has begun with the work, and its done() will be called with no exchange. */
bool work_end(struct work *w);

enum status work_thread_start(struct serve *s, struct work_thread **out, struct err *e) MUST_USE;
void work_thread_stop(struct work_thread *t); /* NULL is fine */
int work_thread_fd(const struct work_thread *t);
void work_thread_collect(void *work_thread); /* http_fd_fn */

#endif
