/* compile: units to shared objects, in the jail, on all cores, through a content-addressed cache. */
#ifndef KERNELRL_VERIFY_BUILD_COMPILE_H
#define KERNELRL_VERIFY_BUILD_COMPILE_H

#include <pthread.h>

#include "base/err.h"
#include "base/str.h"
#include "verify/jail/jail_shell.h"

struct compiler {
    const struct jail *jail;
    const char *runner;                       /* path; NULL: every unit gets a jail of its own */
    struct jail_file extra[JAIL_EXTRA_FILES]; /* what makes compiling faster, made once; or none */
    double timeout_s;
    int jobs;
    char version[256]; /* compiler and CPU, part of every cache key */
    char cache[600];   /* directory of objects; empty: none */
    int64_t cache_bytes;
    pthread_mutex_t cache_lock;
};

/* Asks the compiler for its version inside the jail. runner and cache_dir may be NULL. ST_SANDBOX names what to install
 * when gcc does not run there. jail and runner must outlive the compiler. */
enum status compiler_open(struct compiler *c, const struct jail *jail, const char *runner, const char *cache_dir,
                          double timeout_s, int jobs, struct err *e) MUST_USE;
void compiler_close(struct compiler *c);

/* COMPILE_BROKEN: no compiler was run, or none works on this machine, as a control in a jail of its own has shown; it
 * is never what a unit, its options or what is said about them brings about. */
enum compile_result { COMPILE_OK, COMPILE_FAILED, COMPILE_SLOW, COMPILE_BROKEN };
struct compile_job {
    const char *unit;
    size_t unit_bytes;
    /* How: a script that reads the unit from standard input and writes the object to standard output, in the jail, with
     * these arguments (NULL-terminated). NULL: the native ABI's C compiler. */
    const char *script;
    char *const *args;
    double timeout_s; /* 0: the compiler's */
    /* out */
    enum compile_result result;
    void *object; /* the shared object; malloc'ed, the caller frees */
    size_t object_bytes;
    char message[2000]; /* what the compiler said, or what broke */
    double seconds;     /* wall time; 0 from the cache */
};
/* Compiles one unit; safe to call from several threads. */
void compile_one(struct compiler *c, struct compile_job *job);

/* Appends what the C compiler says of a unit's loops, a line each, at most `most`: "line 4: vectorised, 64 bytes at a
 * time", "line 9: not vectorised: ...". Lines are those behind `#line 1 "kernel.c"`. Nothing where it says nothing. */
void compile_notes(struct compiler *c, const char *unit, size_t unit_bytes, int most, struct str *out);

/* A batch that compiles in the background, c->jobs at a time and in order, while the caller does something else. */
struct compile_batch;
/* Begins. Jobs and what they point to must stay until compile_finish(). Once *cancel (may be NULL) is true no further
 * job is begun. Where no thread can be started, compile_wait() compiles. */
struct compile_batch *compile_start(struct compiler *c, struct compile_job *const *jobs, size_t n,
                                    const volatile bool *cancel);
/* Waits until job i is done. False: it was cancelled before it was begun. */
bool compile_wait(struct compile_batch *b, size_t i);
/* True when no compiler runs any more and none will: the processors are the caller's. */
bool compile_idle(struct compile_batch *b);
/* Seconds since `since_s` (clock_now_s) during which compilers may have run. */
double compile_busy_s(struct compile_batch *b, double since_s);
/* Waits for all jobs that were begun, and frees. NULL is fine. */
void compile_finish(struct compile_batch *b);

#endif
