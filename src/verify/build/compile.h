/* compile: makes shared objects of units, in the jail, on all cores, through a cache that is addressed by contents. */
#ifndef KERNELRL_VERIFY_BUILD_COMPILE_H
#define KERNELRL_VERIFY_BUILD_COMPILE_H

#include <pthread.h>

#include "base/err.h"
#include "base/str.h"
#include "verify/jail/jail_shell.h"

struct compiler {
    const struct jail *jail;
    const char *runner;                       /* The path of the runner. NULL: every unit gets a jail of its own. */
    struct jail_file extra[JAIL_EXTRA_FILES]; /* Files that make compiling faster. They are made once, or not at all. */
    double timeout_s;
    int jobs;
    char version[256]; /* The version of the compiler, and the CPU. They are part of every cache key. */
    char cache[600];   /* The directory of objects. Empty: there is none. */
    int64_t cache_bytes;
    pthread_mutex_t cache_lock;
};

/* Asks the compiler for its version inside the jail. runner and cache_dir may be NULL. ST_SANDBOX says what to install
 * when gcc does not run there. jail and runner must outlive the compiler. */
enum status compiler_open(struct compiler *c, const struct jail *jail, const char *runner, const char *cache_dir,
                          double timeout_s, int jobs, struct err *e) MUST_USE;
void compiler_close(struct compiler *c);

/* COMPILE_BROKEN: no compiler was run, or a control in a jail of its own has shown that none works on this machine. No
 * unit, no options and no message brings this result about. */
enum compile_result { COMPILE_OK, COMPILE_FAILED, COMPILE_SLOW, COMPILE_BROKEN };
struct compile_job {
    const char *unit;
    size_t unit_bytes;
    /* A script that reads the unit from standard input and writes the object to standard output, in the jail, with
     * these arguments (ended by NULL). NULL: the C compiler of the native ABI. */
    const char *script;
    char *const *args;
    double timeout_s; /* 0: the compiler's. */
    /* These are results. */
    enum compile_result result;
    void *object; /* The shared object. The caller frees it. */
    size_t object_bytes;
    char message[2000]; /* What the compiler said, or what broke. */
    double seconds;     /* Wall time. 0: the object came from the cache. */
};
/* Compiles one unit. Several threads may call it at once. */
void compile_one(struct compiler *c, struct compile_job *job);

/* Appends what the C compiler says of a unit's loops, a line each, at most `most`: "line 4: vectorised, 64 bytes at a
 * time", "line 9: not vectorised: ...". Lines are those behind `#line 1 "kernel.c"`. Nothing where it says nothing. */
void compile_notes(struct compiler *c, const char *unit, size_t unit_bytes, int most, struct str *out);

/* A batch that compiles in the background, c->jobs at a time and in order, while the caller does something else. */
struct compile_batch;
/* Begins a batch. Jobs and what they point to must stay until compile_finish(). Once *cancel (which may be NULL) is
 * true, no further job is begun. Where no thread can be started, compile_wait() compiles. */
struct compile_batch *compile_start(struct compiler *c, struct compile_job *const *jobs, size_t n,
                                    const volatile bool *cancel);
/* Waits until job i is done. False: it was cancelled before it was begun. */
bool compile_wait(struct compile_batch *b, size_t i);
/* Returns whether no compiler runs any more and none will: the processors are the caller's then. */
bool compile_idle(struct compile_batch *b);
/* Seconds since `since_s` (clock_now_s) during which compilers may have run. */
double compile_busy_s(struct compile_batch *b, double since_s);
/* Waits for all jobs that were begun, and frees the batch. b may be NULL. */
void compile_finish(struct compile_batch *b);

#endif
