#include "verify/pool/worker.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "verify/pool/lines.h"
#include "verify/pool/secret.h"

enum { RUNS_MAX = 64, READ_BYTES = 1 << 16 };

/* How long a worker that drains may take for what it has begun, and how long it waits for a verifier to stop when its
 * parent has gone. */
static const double drain_s = 30, leave_s = 2;

struct worker_job {
    struct pool_message m; /* the job; owns its texts */
    struct verify_item item;
    struct worker *w;
    double begun_s;
    bool begun, said, cancelled; /* said: its verdict has been written */
    struct worker_job *next;
};

struct run_secret {
    char run[17];
    uint64_t seed;
};

struct worker {
    const struct worker_options *o;
    struct worker_judge with;
    char host[HOST_NAME_BYTES], class[2][CLASS_BYTES];
    int n_classes;
    pthread_mutex_t lock; /* of all below */
    pthread_mutex_t writing;
    pthread_cond_t changed;
    struct worker_job *jobs; /* the oldest first; those that are begun stand in front */
    int n_jobs;
    struct run_secret secret[RUNS_MAX]; /* the latest ones */
    int n_secrets;
    struct pool_message *to_open; /* settings to be ready for; NULL: none are asked for */
    bool draining;
    double drain_from_s;
    char drain_why[400];
    volatile bool cancel; /* of the batch at hand */
    atomic_bool gone;     /* true: the parent has gone; set without the lock */
    double probe;         /* the latest; NaN: none was made */
    /* Of the judging thread alone. */
    struct judge judge;
    bool is_open;
    char open_hash[17];
    uint64_t open_seed;
    char open_class[CLASS_BYTES];
    double next_probe_s;
    int bad_probes;
    double bad_probe;
};

static volatile sig_atomic_t told_to_end;
static void on_term(int sig) {
    (void)sig;
    told_to_end = 1;
}

/* ---- lines out ----------------------------------------------------------------------------------------------------*/

static void say(struct worker *w, const struct str *lines) {
    pthread_mutex_lock(&w->writing);
    const bool written = fs_write_all(w->o->out, lines->p, lines->len);
    pthread_mutex_unlock(&w->writing);
    if (written) return;
    w->gone = w->cancel = true; /* the caller may hold the lock */
    pthread_cond_broadcast(&w->changed);
}

static void say_about(struct worker *w, enum message_type t, const struct pool_message *m, const char *reason) {
    CLEANUP_STR struct str line = STR_INIT;
    pool_put_about(t, m->j, m->attempt, 0, reason, &line);
    say(w, &line);
}

static void refuse(struct worker *w, const struct pool_message *m, const char *what, const char *here,
                   const char *there, const char *reason) {
    CLEANUP_STR struct str line = STR_INIT;
    pool_put_refused(m ? m->j : NULL, m ? m->attempt : 0, what, here, there, reason, &line);
    say(w, &line);
}

static const char *version(const struct worker *w) { return w->with.version ? w->with.version : KERNELRL_VERSION; }

static void say_hello(struct worker *w) {
    struct pool_message m = {.protocol = PROTOCOL_VERSION,
                             .program = version(w),
                             .host = w->host,
                             .slots = 1,
                             .ahead = w->o->ahead,
                             .beat_s = w->o->beat_s,
                             .n_classes = w->n_classes};
    CLEANUP_STR struct str line = STR_INIT;
    for (int i = 0; i < w->n_classes; i++) m.class[i] = w->class[i];
    pool_put_hello(&m, &line);
    say(w, &line);
}

static void say_verdict(struct worker *w, struct worker_job *job) {
    CLEANUP_STR struct str line = STR_INIT;
    const bool on_gpu = pool_settings_on_gpu(&job->m.job.terms.settings);
    const char *gpu = on_gpu ? w->o->gpu : NULL;
    if (job->item.verdict.speedup > 0 && w->with.disturbed(w->with.ctx)) {
        job->item.verdict = (struct verdict){.outcome = OUTCOME_INFRASTRUCTURE, .max_error = (double)NAN};
        VERDICT_SAY(&job->item.verdict, "the machine could not be had alone while times were measured");
    }
    const struct pool_witness witness = {.worker = w->host,
                                         .class = job->m.job.terms.class,
                                         .gpu = gpu,
                                         .sm_mhz = gpu ? hardware_sm_mhz(gpu) : (double)NAN,
                                         .probe = w->probe,
                                         .spent_s = clock_now_s() - job->begun_s};
    pool_put_verdict(job->m.j, job->m.attempt, &job->item.verdict, &witness, false, false, &line);
    job->said = true;
    say(w, &line);
}

/* ---- lines in -----------------------------------------------------------------------------------------------------*/

static void drop_job(struct worker *w, struct worker_job **at) {
    struct worker_job *job = *at;
    *at = job->next;
    w->n_jobs--;
    pool_message_free(&job->m);
    free(job);
}

/* Jobs that are not begun go back; those that are begun come to their end. The lock is held. */
static void begin_drain(struct worker *w, const char *why) {
    CLEANUP_STR struct str line = STR_INIT;
    if (w->draining) return;
    w->draining = true;
    w->drain_from_s = clock_now_s();
    snprintf(w->drain_why, sizeof w->drain_why, "%s", why);
    pool_put_draining(why, &line);
    say(w, &line);
    for (struct worker_job **at = &w->jobs; *at;) {
        if ((*at)->begun) {
            at = &(*at)->next;
            continue;
        }
        say_about(w, MESSAGE_RETURNED, &(*at)->m, w->drain_why);
        drop_job(w, at);
    }
    pthread_cond_broadcast(&w->changed);
}

static bool knows_class(const struct worker *w, const char *class) {
    for (int i = 0; i < w->n_classes; i++)
        if (strcmp(w->class[i], class) == 0) return true;
    return false;
}

/* The seed of a run; false: nobody has told it. The lock is held. */
static bool seed_of(struct worker *w, const struct pool_terms *t, uint64_t *seed, struct err *e) {
    for (int i = 0; i < w->n_secrets; i++)
        if (strcmp(w->secret[i].run, t->run) == 0) {
            *seed = w->secret[i].seed;
            return true;
        }
    return w->o->secret_file && secret_of_run(w->o->secret_file, t->run, seed, e) == ST_OK;
}

/* Whether the terms can be kept here; what they are refused for is said. The lock is held. */
static bool fits(struct worker *w, const struct pool_message *m, const struct pool_terms *t) {
    char hash[17], tag[17], ours[2 * CLASS_BYTES + 4];
    uint64_t seed;
    struct err e = {.msg = "no `open` has told its secret"};
    pool_settings_hash(&t->settings, hash);
    snprintf(ours, sizeof ours, "%s%s%s", w->class[0], w -> n_classes > 1 ? ", " : "",
             w->n_classes > 1 ? w->class[1] : "");
    if (strcmp(t->program, version(w)) != 0)
        refuse(w, m, "program", version(w), t->program, "another version of the program");
    else if (strcmp(hash, t->settings_hash) != 0)
        refuse(w, m, "settings", hash, t->settings_hash, "these settings mean something else to this program");
    else if (t->class && !knows_class(w, t->class))
        refuse(w, m, "class", ours, t->class, "another kind of machine");
    else if (!seed_of(w, t, &seed, &e))
        refuse(w, m, "secret", NULL, NULL, e.msg);
    else if (pool_seed_tag(seed, tag), strcmp(tag, t->seed_tag) != 0)
        refuse(w, m, "secret", tag, t->seed_tag, "another secret than the run's (these are tags of both)");
    else
        return true;
    return false;
}

static struct worker_job **find_job(struct worker *w, const char *j) {
    struct worker_job **at = &w->jobs;
    while (*at && strcmp((*at)->m.j, j) != 0) at = &(*at)->next;
    return at;
}

static bool not_here(const struct worker *w, const struct pool_job_text *job) {
    for (int i = 0; i < job->n_not_on; i++)
        if (strcmp(job->not_on[i], w->host) == 0) return true;
    return false;
}

/* Takes a job, or says why not. The message is the job's from here on. The lock is held. */
static void take_job(struct worker *w, struct pool_message *m) {
    char ours[16], theirs[16];
    snprintf(ours, sizeof ours, "%d", PROTOCOL_VERSION);
    snprintf(theirs, sizeof theirs, "%d", m->protocol);
    if (m->protocol != PROTOCOL_VERSION)
        refuse(w, m, "protocol", ours, theirs, "another version of the protocol");
    else if (!fits(w, m, &m->job.terms)) {
    } else if (w->draining || w->n_jobs > w->o->ahead + 1)
        say_about(w, MESSAGE_RETURNED, m, w->draining ? w->drain_why : "more jobs than were asked for");
    else if (*find_job(w, m->j))
        say_about(w, MESSAGE_RETURNED, m, "it is at hand here already");
    else if (not_here(w, &m->job))
        say_about(w, MESSAGE_RETURNED, m, "it is not to be judged on this host");
    else {
        struct worker_job *job = xcalloc(1, sizeof *job), **at = &w->jobs;
        job->m = *m;
        job->w = w;
        *m = (struct pool_message){.type = MESSAGE_UNKNOWN};
        while (*at) at = &(*at)->next;
        *at = job;
        w->n_jobs++;
        pthread_cond_broadcast(&w->changed);
    }
}

static void take_open(struct worker *w, struct pool_message *m) {
    if (m->seed) {
        const int at = w->n_secrets < RUNS_MAX ? w->n_secrets++ : RUNS_MAX - 1;
        for (int i = at; i > 0; i--) w->secret[i] = w->secret[i - 1];
        snprintf(w->secret[0].run, sizeof w->secret[0].run, "%s", m->terms.run);
        w->secret[0].seed = m->seed;
    }
    if (!fits(w, NULL, &m->terms)) return;
    if (w->to_open) {
        pool_message_free(w->to_open);
        free(w->to_open);
    }
    w->to_open = xmalloc(sizeof *w->to_open);
    *w->to_open = *m;
    *m = (struct pool_message){.type = MESSAGE_UNKNOWN};
    pthread_cond_broadcast(&w->changed);
}

/* A job that is not begun is returned; the batch at hand is given up once nobody wants anything of it. */
static void cancel_jobs(struct worker *w, const char *j, const char *run, bool waiting) {
    bool wanted = false, any = false;
    for (struct worker_job **at = &w->jobs; *at;) {
        struct worker_job *job = *at;
        const bool this = j ? strcmp(job->m.j, j) == 0 : run && strcmp(job->m.job.terms.run, run) == 0;
        if (this && !job->begun) {
            say_about(w, MESSAGE_RETURNED, &job->m, "nobody wants it any more");
            drop_job(w, at);
            continue;
        }
        job->cancelled |= this && !waiting;
        any |= this && !waiting;
        wanted |= job->begun && !job->cancelled;
        at = &job->next;
    }
    if (any && !wanted) w->cancel = true;
}

static void take_line(struct worker *w, const char *line, size_t n) {
    struct pool_message m;
    struct err e;
    if (pool_message_read(line, n, "kernelrl verify-worker: standard input", &m, &e) != ST_OK) {
        refuse(w, m.j ? &m : NULL, "line", NULL, NULL, e.msg);
        pool_message_free(&m);
        return;
    }
    pthread_mutex_lock(&w->lock);
    switch (m.type) {
    case MESSAGE_JOB: take_job(w, &m); break;
    case MESSAGE_OPEN: take_open(w, &m); break;
    case MESSAGE_CANCEL: cancel_jobs(w, m.j, m.run, m.waiting); break;
    case MESSAGE_DRAIN: begin_drain(w, "it was told to"); break;
    default: break; /* of a later version, or nothing for a worker */
    }
    pthread_mutex_unlock(&w->lock);
    pool_message_free(&m);
}

static void take_bytes(struct worker *w, struct line_reader *r, const char *bytes, size_t n) {
    char *line, size[24], most[24];
    uint64_t length;
    line_reader_feed(r, bytes, n);
    for (enum line_kind k; (k = line_reader_next(r, &line, &length)) != LINE_NONE;) {
        if (k == LINE_WHOLE) {
            take_line(w, line, (size_t)length);
            continue;
        }
        snprintf(size, sizeof size, "%llu", (unsigned long long)length);
        snprintf(most, sizeof most, "%d", PROTOCOL_LINE_BYTES);
        refuse(w, NULL, "size", most, size, "a line of more bytes than a job may have");
    }
}

/* Reads until the parent goes. */
static void *read_lines(void *ctx) {
    struct worker *w = ctx;
    struct line_reader r = line_reader_make(PROTOCOL_LINE_BYTES);
    CLEANUP_FREE char *bytes = xmalloc(READ_BYTES);
    for (;;) {
        struct pollfd p = {.fd = w->o->in, .events = POLLIN};
        const int ready = poll(&p, 1, 200);
        if (told_to_end) {
            pthread_mutex_lock(&w->lock);
            begin_drain(w, "it was asked to end (SIGTERM)");
            pthread_mutex_unlock(&w->lock);
        }
        if (ready <= 0) continue;
        const ssize_t n = read(w->o->in, bytes, READ_BYTES);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        take_bytes(w, &r, bytes, (size_t)n);
    }
    line_reader_free(&r);
    w->gone = w->cancel = true;
    pthread_cond_broadcast(&w->changed);
    nanosleep(&(struct timespec){.tv_sec = (time_t)leave_s}, NULL);
    _exit(1); /* the verifier did not stop in time */
}

static void *beat(void *ctx) {
    struct worker *w = ctx;
    for (;;) {
        CLEANUP_STR struct str line = STR_INIT;
        const double s = w->o->beat_s;
        nanosleep(&(struct timespec){.tv_sec = (time_t)s, .tv_nsec = (long)((s - floor(s)) * 1e9)}, NULL);
        pthread_mutex_lock(&w->lock);
        pool_put_beat(w->n_jobs, w->probe, &line);
        pthread_mutex_unlock(&w->lock);
        if (w->gone) return NULL;
        say(w, &line);
    }
}

/* ---- judging ------------------------------------------------------------------------------------------------------*/

static void close_judge(struct worker *w) {
    if (w->is_open) w->with.close(w->with.ctx);
    w->is_open = false;
}

/* The options of a run with what is this machine's. The lock is held. */
static struct verify_options options_of(struct worker *w, const struct pool_terms *t, uint64_t *seed) {
    struct verify_options o = t->settings;
    struct err ignored;
    *seed = 0;
    (void)seed_of(w, t, seed, &ignored); /* it was there when the terms were looked at */
    o.device = pool_settings_on_gpu(&o) ? "cuda:0" : "cpu";
    o.seed = *seed;
    o.python = w->o->python;
    o.cache_dir = w->o->cache_dir;
    o.allow_weaker = w->o->allow_weaker;
    o.compile_jobs = w->o->compile_jobs;
    return o;
}

/* Opens what judges under these terms, unless it is open. The lock is not held. */
static enum status be_open(struct worker *w, const struct pool_terms *t, struct err *e) {
    uint64_t seed;
    pthread_mutex_lock(&w->lock);
    const struct verify_options o = options_of(w, t, &seed);
    pthread_mutex_unlock(&w->lock);
    if (w->is_open && strcmp(w->open_hash, t->settings_hash) == 0 && w->open_seed == seed) return ST_OK;
    close_judge(w);
    TRY(w->with.open(w->with.ctx, &o, &w->judge, e));
    w->is_open = true;
    snprintf(w->open_hash, sizeof w->open_hash, "%s", t->settings_hash);
    w->open_seed = seed;
    if (w->next_probe_s == 0) w->next_probe_s = clock_now_s() + w->o->probe_s;
    return ST_OK;
}

/* Answers `open`. */
static void get_ready(struct worker *w, const struct pool_message *m) {
    CLEANUP_STR struct str line = STR_INIT;
    char hardware[160] = "", device[40] = "";
    struct err e;
    if (be_open(w, &m->terms, &e) != ST_OK) {
        refuse(w, NULL, "verifier", NULL, NULL, e.msg);
        return;
    }
    if (w->judge.hardware) w->judge.hardware(w->judge.ctx, hardware, sizeof hardware, device, sizeof device);
    pool_put_ready(hardware, &line);
    say(w, &line);
}

static void on_judged(void *ctx, struct verify_item *item) {
    struct worker_job *job = ctx;
    job->item.verdict = item->verdict;
    say_verdict(job->w, job);
}

/* Chooses what is judged together: the oldest job and those that wait behind it under the same terms. The lock is held.
 * Returns their number. */
static size_t choose(struct worker *w, struct worker_job **batch, size_t max) {
    size_t n = 0;
    struct worker_job *first = w->jobs;
    for (struct worker_job *job = first; job && n < max; job = job->next) {
        const struct pool_terms *a = &first->m.job.terms, *b = &job->m.job.terms;
        if (strcmp(a->settings_hash, b->settings_hash) != 0 || strcmp(a->run, b->run) != 0) continue;
        if (job != first && (first->m.job.alone || job->m.job.alone)) continue;
        job->begun = true;
        job->begun_s = clock_now_s();
        job->item = (struct verify_item){.problem = &job->m.job.problem, .source = job->m.job.source};
        batch[n++] = job;
    }
    w->cancel = false;
    return n;
}

static void judge_jobs(struct worker *w, struct worker_job *const *batch, size_t n) {
    CLEANUP_FREE struct verify_item *items = xcalloc(n, sizeof *items);
    struct err e = {0};
    for (size_t i = 0; i < n; i++) {
        say_about(w, MESSAGE_BEGUN, &batch[i]->m, NULL);
        items[i] = batch[i]->item;
        items[i].judged = on_judged;
        items[i].judged_ctx = batch[i];
    }
    enum status st = be_open(w, &batch[0]->m.job.terms, &e);
    if (st != ST_OK) {
        for (size_t i = 0; i < n; i++) refuse(w, &batch[i]->m, "verifier", NULL, NULL, e.msg);
        return;
    }
    st = w->judge.batch(w->judge.ctx, items, n, &w->cancel, &e);
    for (size_t i = 0; i < n; i++) {
        if (batch[i]->said) continue;
        batch[i]->item.verdict = items[i].verdict;
        if (st == ST_OK)
            say_verdict(w, batch[i]);
        else
            say_about(w, st == ST_CANCELLED ? MESSAGE_RETURNED : MESSAGE_LOST, &batch[i]->m, e.msg);
    }
    if (st != ST_OK && st != ST_CANCELLED) close_judge(w); /* beyond repair: begin anew */
}

/* A null probe; twice outside of what it has to lie in, and the worker drains. */
static void make_probe(struct worker *w, const struct pool_terms *t) {
    struct err e;
    double ratio;
    uint64_t seed;
    char why[400];
    pthread_mutex_lock(&w->lock);
    const struct verify_options o = options_of(w, t, &seed);
    pthread_mutex_unlock(&w->lock);
    w->next_probe_s = clock_now_s() + w->o->probe_s;
    if (w->with.probe(w->with.ctx, &o, &ratio, &e) != ST_OK) {
        log_warn("null probe: %s", e.msg);
        return;
    }
    const bool bad = !(ratio >= WORKER_PROBE_LOW && ratio <= WORKER_PROBE_HIGH);
    pthread_mutex_lock(&w->lock);
    w->probe = ratio;
    if (bad && ++w->bad_probes >= 2) {
        snprintf(why, sizeof why,
                 "a reference that was its own answer read %.3f and %.3f of its own speed, expected %.2f to %.2f",
                 w->bad_probe, ratio, WORKER_PROBE_LOW, WORKER_PROBE_HIGH);
        begin_drain(w, why);
    }
    pthread_mutex_unlock(&w->lock);
    w->bad_probe = ratio;
    if (!bad) w->bad_probes = 0;
    if (bad) w->next_probe_s = clock_now_s(); /* once more, at once */
}

/* Waits for something to do. The lock is held. False: it is time to end. */
static bool wait_for_work(struct worker *w, bool *probe) {
    for (;;) {
        const double now = clock_now_s();
        *probe = w->is_open && w->o->probe_s > 0 && now >= w->next_probe_s && !w->draining;
        if (w->gone || (w->draining && w->n_jobs == 0)) return false;
        if (w->n_jobs > 0 || w->to_open || *probe) return true;
        double until = now + 3600;
        if (w->is_open && w->o->probe_s > 0) until = fmin(until, w->next_probe_s);
        const struct timespec at = {.tv_sec = (time_t)until, .tv_nsec = (long)((until - floor(until)) * 1e9)};
        pthread_cond_timedwait(&w->changed, &w->lock, &at);
    }
}

/* Gives others that are on their way the time to arrive: each that comes gives the next one as much. The lock is held.
 */
static void linger(struct worker *w) {
    const double from = clock_now_s(), most_s = fmax(w->o->linger_s, 0.1);
    double until = from + w->o->linger_s;
    for (int n = w->n_jobs; n <= w->o->ahead && !w->gone && clock_now_s() < until;) {
        const struct timespec at = {.tv_sec = (time_t)until, .tv_nsec = (long)((until - floor(until)) * 1e9)};
        (void)pthread_cond_timedwait(&w->changed, &w->lock, &at);
        if (w->n_jobs > n) until = fmin(clock_now_s() + w->o->linger_s, from + most_s);
        n = w->n_jobs;
    }
}

static void keep_terms(struct pool_message *last, struct pool_message *job) {
    pool_message_free(last);
    *last = *job;
    *job = (struct pool_message){.type = MESSAGE_UNKNOWN};
}

/* True: it ended behind a drain, with nothing left to do, whether or not its input has ended meanwhile. */
static bool work(struct worker *w) {
    CLEANUP_FREE struct worker_job **batch = xcalloc((size_t)w->o->ahead + 2, sizeof *batch);
    struct pool_message last = {.type =
                                    MESSAGE_UNKNOWN}; /* the latest `open` or job: its settings are those of probes */
    bool probe;
    pthread_mutex_lock(&w->lock);
    while (wait_for_work(w, &probe)) {
        if (w->to_open) {
            pool_message_free(&last);
            last = *w->to_open;
            free(w->to_open);
            w->to_open = NULL;
            pthread_mutex_unlock(&w->lock);
            get_ready(w, &last);
            pthread_mutex_lock(&w->lock);
        } else if (probe && last.type != MESSAGE_UNKNOWN) {
            pthread_mutex_unlock(&w->lock);
            make_probe(w, last.type == MESSAGE_OPEN ? &last.terms : &last.job.terms);
            pthread_mutex_lock(&w->lock);
        } else if (w->n_jobs > 0) {
            linger(w);
            const size_t n = choose(w, batch, (size_t)w->o->ahead + 1);
            pthread_mutex_unlock(&w->lock);
            if (n > 0) judge_jobs(w, batch, n);
            pthread_mutex_lock(&w->lock);
            for (size_t i = 0; i < n; i++) {
                struct worker_job **at = find_job(w, batch[i]->m.j);
                if (i == 0) keep_terms(&last, &batch[i]->m); /* through a queue, no `open` comes */
                drop_job(w, at);
            }
        } else
            w->next_probe_s += w->o->probe_s; /* no terms are known yet */
    }
    const bool drained = w->draining && w->n_jobs == 0;
    pthread_mutex_unlock(&w->lock);
    pool_message_free(&last);
    return drained;
}

/* ---- the process --------------------------------------------------------------------------------------------------*/

static void set_up(struct worker *w, const struct worker_options *o, const struct worker_judge *with) {
    pthread_condattr_t monotonic;
    *w = (struct worker){.o = o, .with = *with, .probe = (double)NAN};
    if (o->name)
        hardware_slug(o->name, w->host, sizeof w->host);
    else
        hardware_host(w->host);
    if (o->gpu) hardware_gpu_class(o->gpu_model, w->class[w->n_classes++]);
    hardware_cpu_class(w->class[w->n_classes++]);
    pthread_mutex_init(&w->lock, NULL);
    pthread_mutex_init(&w->writing, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/* A worker that drains and does not come to an end gives up what it has begun. */
static void *watch_drain(void *ctx) {
    struct worker *w = ctx;
    while (!w->gone) {
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
        pthread_mutex_lock(&w->lock);
        if (w->draining && clock_now_s() - w->drain_from_s > drain_s) w->cancel = true;
        pthread_mutex_unlock(&w->lock);
    }
    return NULL;
}

int worker_run(const struct worker_options *o, const struct worker_judge *with) {
    static struct worker w; /* the threads that wait for lines and beat outlive this function */
    pthread_t reader, beater, watcher;
    struct sigaction sa = {.sa_handler = on_term};
    sigaction(SIGTERM, &sa, NULL);
    signal(SIGPIPE, SIG_IGN);
    set_up(&w, o, with);
    say_hello(&w);
    if (pthread_create(&reader, NULL, read_lines, &w) != 0 || pthread_create(&beater, NULL, beat, &w) != 0 ||
        pthread_create(&watcher, NULL, watch_drain, &w) != 0) {
        log_error("verify-worker: cannot start a thread");
        return 1;
    }
    const bool drained = work(&w);
    close_judge(&w);
    return drained ? 0 : 1;
}
