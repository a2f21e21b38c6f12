/* Judges a batch of answers in order. While one is judged, those behind it are made ready. */
#include "verify/torch/batch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "verify/torch/judge.h"
#include "verify/torch/load.h"
#include "verify/torch/process.h"
#include "verify/torch/reference.h"

/* ---- one answer ---- */

/* Bytes of the GPU's memory that were free when the problem was loaded. 0 on a CPU. */
static int64_t free_bytes(const struct modcase *c) {
    return json_integer_value(json_object_get(c->loaded, "free_bytes"));
}

/* Loads the problem and opens the answer's memory. What goes wrong is not written into the verdict yet, because a
 * thread may be loading the answer. */
static enum status prepare_case(struct torch_answer *r, const struct problem *p, struct err *e) {
    struct module_judge *j = r->j;
    struct modcase *c;
    enum status st = modcase_get(&j->cases, p->code, &c, e);
    if (r->c != c) r->c = c; /* It is not written needlessly, because a thread may be reading it. */
    if (st == ST_OK && r->c != j->current) {
        reference_drop(j);
        r->c->ahead = false;
        modcase_drop_others(&j->cases, r->c);
    }
    if (st == ST_OK) run_note_interface(r);
    return st == ST_OK ? modcase_open_lane(&j->cases, r->c, LANE_ANSWER, e) : st;
}

static void init_run(struct torch_answer *r, struct module_judge *j, const char *source, struct verdict *out) {
    char lint[sizeof out->lint];
    memcpy(lint, out->lint, sizeof lint);
    *out = (struct verdict){.outcome = OUTCOME_CORRECT}; /* This holds until something else turns out. */
    memcpy(out->lint, lint, sizeof lint);
    /* An answer that is judged a second time is looked at in other places. So what it saw the first time does not help
     * it. */
    const uint64_t random = hmac_u64(j->seed, "run", ++j->runs, source, strlen(source));
    *r = (struct torch_answer){.j = j, .out = out, .source = source, .random = random};
}

/* ---- a batch ---- */

/* Threads load the answers, in order, some of them ahead of the one that is judged. So compilers keep the processors
 * busy while the GPU works. On a CPU there are no such threads where something is timed, because what is timed wants
 * the processors for itself. A native answer is compiled against its problem's interface, so a thread can begin with it
 * once that interface is known. The interface is known when the first answer to the problem before it has its turn. The
 * same holds for what a Triton answer compiles in its first call. */
struct loading {
    struct module_judge *j;
    struct module_item *items;
    struct torch_answer *runs; /* One for each item. */
    size_t n;                  /* How many items there are. */
    size_t next;               /* The first item that no thread has begun to load. */
    size_t judged; /* How many items have their verdicts, which is also the number of the one that is judged. */
    size_t ahead;  /* Threads load the items below judged + ahead. */
    bool *known;   /* [i] true: what item i is compiled against is known, or it needs nothing, or its problem cannot be
                      loaded. */
    bool *loaded;  /* [i] true: a thread is through with loading item i, with or without success. */
    bool *dropped; /* [i] true: item i was loaded ahead and ended again. It is loaded in its turn. */
    bool stop;     /* true: the batch is over, and the threads return. */
    bool blind;    /* true: no more problems are loaded ahead of their turn, because the referee had no room
                    * for one, or was lost over it. */
    pthread_mutex_t lock;   /* Protects next, judged, known, loaded, dropped and stop. */
    pthread_cond_t changed; /* One of them has changed. */
};

/* true: there is what the answer has to be compiled against before it is loaded, or the answer needs nothing. */
static bool has_interface(const struct module_judge *j, const struct torch_answer *r) {
    return !loader_of(j)->compiled || r->c;
}

/* Waits until item i's problem is known. True: the item's turn has not come yet. False: its turn has come, or the batch
 * ends here. */
static bool wait_early(struct loading *l, size_t i) {
    pthread_mutex_lock(&l->lock);
    while (!l->known[i] && !l->stop) pthread_cond_wait(&l->changed, &l->lock);
    const bool early = !l->stop && l->judged < i;
    pthread_mutex_unlock(&l->lock);
    return early;
}

static void *load_main(void *v) {
    struct loading *l = v;
    pthread_mutex_lock(&l->lock);
    while (l->next < l->n && !l->stop) {
        if (l->next >= l->judged + l->ahead || (loader_of(l->j)->compiled && !l->known[l->next])) {
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        size_t i = l->next++;
        pthread_mutex_unlock(&l->lock);
        struct torch_answer *r = &l->runs[i];
        if (has_interface(l->j, r)) run_fork_and_load(r, l->items[i].source);
        if (r->process.up) run_warm(r);
        if (r->process.up && loader_of(l->j)->rehearsed && wait_early(l, i) && r->interface)
            run_rehearse(r, l->items[i].source);
        /* What the answer's module has left running must not disturb the answers that are timed before this one. */
        if (r->process.up) modrun_pause(&r->process.run);
        pthread_mutex_lock(&l->lock);
        l->loaded[i] = true;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* Item i's problem is known now: all answers to it may be compiled. c NULL: the problem cannot be loaded, so there is
 * nothing to compile them against. */
static void announce(struct loading *l, size_t i, struct modcase *c) {
    pthread_mutex_lock(&l->lock);
    for (size_t k = i; k < l->n; k++) {
        if (l->known[k] || strcmp(l->items[k].problem->code, l->items[i].problem->code) != 0) continue;
        l->runs[k].c = c;
        if (c) run_note_interface(&l->runs[k]);
        l->known[k] = true;
    }
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

/* Loads the first problem behind item i that is not known yet, so that the answers to it are compiled meanwhile. The
 * referee keeps that problem until its turn, unless its parameters are large: there are eight copies of them, in double
 * precision and as they were. Two of the largest problems would be in each other's way. False: there is no such
 * problem, or no room for it. */
static bool look_ahead(struct loading *l, size_t i) {
    /* A problem is loaded ahead while the one that is judged takes up to 1/4 of the free memory. It is kept for its
     * turn if its parameters take up to 1/3. */
    static const int64_t large = 4, most = 3;
    struct modcase *c = l->runs[i].c;
    struct err e = {0};
    int64_t bytes = c->input_bytes + 4 * c->param_bytes;
    size_t k = i + 1;
    for (int o = 0; o < c->n_outputs; o++) bytes += c->output_bytes[o];
    while (k < l->n && l->known[k]) k++;
    const int64_t room = free_bytes(c);
    if (l->blind || k >= l->n || k > i + l->ahead || (room > 0 && bytes > room / large)) return false;
    enum status st = modcase_get(&l->j->cases, l->items[k].problem->code, &c, &e);
    l->blind = st != ST_OK && st != ST_INVALID; /* The item's own turn shows what the trouble is. */
    if (l->blind) return false;
    announce(l, k, st == ST_OK ? c : NULL);
    if (st != ST_OK) return true;
    c->ahead = free_bytes(c) == 0 || 8 * c->param_bytes <= free_bytes(c) / most;
    if (!c->ahead) modcase_drop_others(&l->j->cases, l->runs[i].c);
    return true;
}

/* ---- behind a verdict ---- */

/* If no test has passed and no output was found wrong, nothing was compared that could have an error. */
static void settle_error(struct verdict *v) {
    if (v->tests_passed == 0 && v->outcome != OUTCOME_WRONG_OUTPUT && v->outcome != OUTCOME_NOT_FINITE)
        v->max_error = (double)NAN;
}

/* There was trouble of ours, or too little memory. The reason may be that the GPU's memory was full. If the answer
 * itself has most of that memory, the answer is at fault, and the verdict says so. True: others have most of it, or may
 * have. */
static bool blame(struct torch_answer *r) {
    static const double most = 0.5;
    const enum outcome o = r->out->outcome;
    int64_t before = 0, after = 0, total = 0;
    struct err e = {0};
    if (o != OUTCOME_INFRASTRUCTURE && o != OUTCOME_MEMORY_LIMIT) return false;
    if (!on_gpu(r->j)) return true;
    const bool up = r->process.up;
    enum status st = up ? modcases_room(&r->j->cases, &before, &total, &e) : ST_OK;
    run_end(r);
    if (st == ST_OK) st = modcases_room(&r->j->cases, &after, &total, &e);
    if (st != ST_OK) return true;
    if (!up || (double)(after - before) <= most * (double)total) return (double)after < (1 - most) * (double)total;
    r->out->outcome = OUTCOME_MEMORY_LIMIT;
    VERDICT_SAY(r->out, "%.1f of the GPU's %.1f GB were in its use", (double)(after - before) * 1e-9,
                (double)total * 1e-9);
    return false;
}

/* Ends the answers behind item i that were loaded ahead of their turn, because one of them may have taken the memory
 * that item i wants. They are loaded again in their turn. So are answers that could not be loaded ahead for want of
 * memory. Returns how many were ended. */
static int drop_ahead(struct loading *l, size_t i) {
    int n = 0;
    pthread_mutex_lock(&l->lock);
    for (size_t k = i + 1; k < l->n; k++) {
        struct torch_answer *r = &l->runs[k];
        if (!l->loaded[k] || !r->process.up) continue;
        run_end(r);
        l->dropped[k] = true;
        n++;
    }
    pthread_mutex_unlock(&l->lock);
    return n;
}

/* Whether the process of some answer lives, as far as this thread knows: of item i's, or of one that is loaded ahead.
 */
static bool any_lives(struct loading *l, size_t i) {
    bool any = false;
    pthread_mutex_lock(&l->lock);
    for (size_t k = i; k < l->n && !any; k++) any = l->loaded[k] ? l->runs[k].process.up : k < l->next;
    pthread_mutex_unlock(&l->lock);
    return any;
}

/* Notes in r->certain whether the problem itself is at fault, from what prepare_case() returned. A problem that fails
 * while the process of an answer lives may fail because of that answer. Such a problem is loaded again. */
static void note_fault(struct loading *l, size_t i, struct torch_answer *r, enum status st) {
    if (st != ST_INVALID) return;
    r->certain = r->c->certain || r->control || !any_lives(l, i);
    if (r->c->broken) r->c->broken = r->c->certain = r->certain;
}

/* true: the verdict says that we are at fault, or that the problem is, and an answer may have brought that about. */
static bool is_doubtful(const struct torch_answer *r) {
    const enum outcome o = r->out->outcome;
    return o == OUTCOME_INFRASTRUCTURE || (o == OUTCOME_PROBLEM_ERROR && !r->certain);
}

/* Judges the answer, or the reference in its place, from the start to the end of its process. */
static void judge_anew(struct loading *l, size_t i, struct torch_answer *r, const char *source) {
    struct err e = {0};
    enum status st = prepare_case(r, l->items[i].problem, &e);
    note_fault(l, i, r, st);
    if (st != ST_OK)
        verdict_of_trouble(r->out, st, &e);
    else {
        run_fork_and_load(r, source);
        if (r->process.up) run_judge(r);
    }
    settle_error(r->out);
    run_finish(r);
}

/* The control: whether the problem's own reference is found correct in the place of the answer, while no process of an
 * answer lives. If so, then we, the machine and the problem are well. */
static bool control_passes(struct loading *l, size_t i) {
    struct verdict v = {0};
    struct torch_answer control;
    drop_ahead(l, i);
    reference_drop(l->j);
    init_run(&control, l->j, l->items[i].problem->code, &v);
    control.process.never_spare = control.control = true;
    judge_anew(l, i, &control, l->items[i].problem->code);
    log_debug("the reference as an answer: %s; %s", outcome_name(v.outcome), v.message);
    return v.outcome == OUTCOME_CORRECT;
}

/* Judges the answer again from the start, after our own trouble (a worker that was lost), or when it ran out of memory
 * that others may hold. An answer that brings about such trouble in every try, while the reference in its place does
 * not, is itself at fault. */
static void try_again(struct loading *l, size_t i) {
    enum { TRIES = 3 };
    struct torch_answer *r = &l->runs[i];
    for (int n = 2; n <= TRIES && (n == 2 || is_doubtful(r)); n++) {
        log_warn("%s; judging the answer again", r->out->message);
        if (on_gpu(l->j))
            reference_drop(l->j); /* The memory that was lacking may be the memory that the reference holds. */
        init_run(r, l->j, l->items[i].source, l->items[i].verdict);
        r->last_try = n == TRIES;
        judge_anew(l, i, r, l->items[i].source);
    }
    if (!is_doubtful(r) || !control_passes(l, i)) return;
    char why[sizeof r->out->message];
    memcpy(why, r->out->message, sizeof why);
    r->out->outcome = OUTCOME_CRASH;
    r->out->speedup = 0;
    VERDICT_SAY(r->out, "it cannot be judged, while the reference in its place can; after %d tries: %.1000s", TRIES,
                why);
}

static void judge_next(struct loading *l, size_t i, bool threads) {
    struct torch_answer *r = &l->runs[i];
    /* The problem comes first, so that the reference runs while compilers work. */
    struct err e = {0};
    enum status st = prepare_case(r, l->items[i].problem, &e);
    note_fault(l, i, r, st);
    if (threads && !l->known[i]) announce(l, i, st == ST_OK ? r->c : NULL);
    const bool ahead = threads && st == ST_OK && r->interface;
    if (ahead) look_ahead(l, i);
    if (threads) {
        pthread_mutex_lock(&l->lock);
        while (!l->loaded[i]) {
            pthread_mutex_unlock(&l->lock);
            const bool looked = ahead && look_ahead(l, i); /* There is nothing better to do meanwhile. */
            pthread_mutex_lock(&l->lock);
            if (!looked && !l->loaded[i]) pthread_cond_wait(&l->changed, &l->lock);
        }
        pthread_mutex_unlock(&l->lock);
    }
    /* The referee may have been lost meanwhile. Then this loads the problem again. */
    if (ahead) st = prepare_case(r, l->items[i].problem, &e);
    if (ahead) note_fault(l, i, r, st);
    const bool known = st == ST_OK;
    /* The answer could not be loaded ahead for want of memory. It is loaded once more in its turn, because memory may
     * have been freed since. */
    const bool lacked = threads && !r->process.up && r->out->outcome == OUTCOME_MEMORY_LIMIT;
    const bool late = lacked || (threads && !r->process.up && l->dropped[i]);
    if (lacked && blame(r)) drop_ahead(l, i);
    if (late) {
        kernel_names_free(&r->kernels);
        json_decref(r->interface);
        init_run(r, l->j, l->items[i].source, l->items[i].verdict);
        st = prepare_case(r, l->items[i].problem, &e);
        note_fault(l, i, r, st);
    }
    if ((!threads || late) && st == ST_OK) run_fork_and_load(r, l->items[i].source);
    /* If both the problem and the answer are at fault, the verdict names the problem: without the problem nobody knows
     * what the answer should have done. */
    if (!known || st != ST_OK) verdict_of_trouble(r->out, st, &e);
    if (known && r->process.up) run_judge(r);
    const bool crowded = blame(r) || (r->out->outcome == OUTCOME_PROBLEM_ERROR && !r->certain);
    settle_error(r->out);
    const bool dropped = crowded && drop_ahead(l, i) > 0;
    const bool again = is_doubtful(r) || dropped;
    if (i + 1 == l->n && on_gpu(l->j) && !again) {
        l->j->rest.last = xmalloc(sizeof *r);
        *l->j->rest.last = *r;
        return;
    }
    run_finish(r);
    if (again) try_again(l, i);
}

enum status module_verify(struct module_judge *j, struct module_item *items, size_t n, const volatile bool *cancel,
                          struct err *e) {
    enum { MAX_LOADERS = 64 };
    pthread_t threads[MAX_LOADERS];
    struct loading l = {.j = j, .items = items, .n = n};
    enum status st = ST_OK;
    const bool ahead = on_gpu(j) || (loader_of(j)->compiled && !j->o->measure);
    int started = 0, wanted = ahead ? (int)i64_min(i64_min(j->compiler->jobs, MAX_LOADERS), (int64_t)n) : 0;
    module_rested(j);
    module_keep_clear(j); /* This comes before the threads are started, because they inherit it. */
    pthread_mutex_init(&l.lock, NULL);
    pthread_cond_init(&l.changed, NULL);
    l.runs = xcalloc(n + 1, sizeof *l.runs);
    l.loaded = xcalloc(n + 1, sizeof *l.loaded);
    l.known = xcalloc(n + 1, sizeof *l.known);
    l.dropped = xcalloc(n + 1, sizeof *l.dropped);
    for (size_t i = 0; i < n; i++) {
        init_run(&l.runs[i], j, items[i].source, items[i].verdict);
        l.known[i] = !loader_of(j)->interface;
        l.runs[i].process.never_spare = on_gpu(j) && i > 0;
    }
    l.ahead = (size_t)wanted + 4;
    while (started < wanted && pthread_create(&threads[started], NULL, load_main, &l) == 0) started++;
    size_t i = 0;
    for (; i < n && st == ST_OK; i++) {
        if (cancel && *cancel) {
            st = FAIL(e, ST_CANCELLED, "cancelled");
            break;
        }
        judge_next(&l, i, started > 0);
        if (items[i].done) items[i].done(items[i].of);
        if (j->o->progress) j->o->progress(i + 1, n);
        pthread_mutex_lock(&l.lock);
        l.judged = i + 1;
        pthread_cond_broadcast(&l.changed);
        pthread_mutex_unlock(&l.lock);
    }
    pthread_mutex_lock(&l.lock);
    l.stop = true;
    pthread_cond_broadcast(&l.changed);
    pthread_mutex_unlock(&l.lock);
    for (int t = 0; t < started; t++) pthread_join(threads[t], NULL);
    for (; i < n; i++) {
        run_end(&l.runs[i]);
        kernel_names_free(&l.runs[i].kernels);
        json_decref(l.runs[i].interface);
    }
    for (size_t k = 0; k < j->cases.count; k++) j->cases.items[k]->ahead = false;
    module_begin_rest(j);
    place_free(&j->place);
    free(l.runs);
    free(l.loaded);
    free(l.known);
    free(l.dropped);
    pthread_cond_destroy(&l.changed);
    pthread_mutex_destroy(&l.lock);
    return st;
}
