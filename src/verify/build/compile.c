#include "verify/build/compile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/pool.h"
#include "base/str.h"
#include "verify/build/c_source.h"
#include "verify/jail/wire.h"

/* Reads the unit from standard input, and writes the object to standard output by way of TMPDIR, because the linker
 * seeks.
 *
 * The headers that each unit includes are compiled before (make_header); a compiler that cannot use this form reads the
 * text.
 *
 * Linking against the system's libraries takes longer than compiling a small unit, because of their thousands of
 * symbols. So the unit is first linked with stubs of these libraries (make_stubs), which have the few symbols that
 * answers use. A unit that they cannot resolve is linked in full, and the answer's author hears what is said then.
 *
 * Neither link adds code that runs when the object is loaded, so any such code is the answer's (object_check.h). There
 * are no start files; all they would be used for is __dso_handle, a name for atexit(). libgcc's look at the processor
 * waits until it is asked for (FLAGS). The linker's plugin would run what an answer has put into sections of LTO.
 * Without the plugin gcc would do so itself, if there were no -fno-lto. */
static const char compile_script[] =
    "if test -e /extra/headers.h.gch; then set -- -include /extra/headers.h \"$@\"; fi\n"
    "cd \"$TMPDIR\" && gcc \"$@\" -c -o answer.o - || exit 1\n"
    "if test ! -e /extra/libm || ! ld -shared --hash-style=gnu --eh-frame-hdr --as-needed -z defs -z now -o answer.so "
    "answer.o /extra/libm /extra/libgomp /extra/libc >stub.log 2>&1; then\n"
    "    echo 'SECTIONS { /DISCARD/ : { *libgcc.a:cpuinfo.o(.init_array*) } } INSERT BEFORE .init_array;' >start.ld\n"
    "    gcc -shared -nostartfiles -fno-use-linker-plugin -fno-lto -fopenmp -Wl,-z,defs,-z,now,-T,start.ld"
    " -Wl,--defsym=__dso_handle=_DYNAMIC " UNIT_LINK_OPTIONS " answer.o -o answer.so -lm || exit 1\n"
    "fi\n"
    "exec cat answer.so";
#define FLAGS(X)                                                                      \
    X("-x")                                                                           \
    X("c")                                                                            \
    X("-pipe")                                                                        \
    X("-std=gnu11")                                                                   \
    X("-O3")                                                                          \
    X("-march=native")                                                                \
    X("-fopenmp")                                                                     \
    X("-fno-math-errno")                                                              \
    X("-fPIC")                                                                        \
    X("-fvisibility=hidden")                                                          \
    X("-Werror=implicit-function-declaration")                                        \
    X("-fmax-errors=8")                                                               \
    X("-fno-diagnostics-show-option")                                                 \
    X("-fdiagnostics-color=never")                                                    \
    X("-D__builtin_cpu_supports(x)=(__builtin_cpu_init(),__builtin_cpu_supports(x))") \
    X("-D__builtin_cpu_is(x)=(__builtin_cpu_init(),__builtin_cpu_is(x))")
static const char flags_text[] =
#define X(s) s " "
    FLAGS(X)
#undef X
    ;

enum { MAX_OBJECT_BYTES = 64 << 20 };
static const int64_t max_cache_bytes = (int64_t)512 << 20;

/* ---- cache: HEX.so holds the object and, after it, the XXH3 of the object. The sum tells torn files from whole ones.
 * The name alone says that an object belongs to its text: no answer can write to the folder. ---- */

/* Adds one of the texts that decide what the compiler makes, with its length in front, so that nobody can misread where
 * it ends. */
static void key_part(struct str *key, const char *text, size_t n) {
    str_addf(key, "%zu:", n);
    str_add(key, text, n);
}

static void cache_path(const struct compiler *c, const struct compile_job *job, char *path, size_t size) {
    CLEANUP_STR struct str key = STR_INIT;
    const char *script = job->script ? job->script : compile_script;
    key_part(&key, c->version, strlen(c->version));
    key_part(&key, script, strlen(script));
    key_part(&key, job->unit, job->unit_bytes);
    if (!job->script) key_part(&key, flags_text, strlen(flags_text));
    for (size_t i = 0; job->script && job->args[i]; i++) key_part(&key, job->args[i], strlen(job->args[i]));
    snprintf(path, size, "%s/%s.so", c->cache, digest_of(key.p, key.len).hex);
}

static bool cache_get(struct compiler *c, struct compile_job *job) {
    char path[700];
    if (!c->cache[0]) return false;
    cache_path(c, job, path, sizeof path);
    char *data;
    size_t n;
    if (fs_read(path, MAX_OBJECT_BYTES + 8, &data, &n, NULL) != ST_OK) return false;
    uint64_t sum;
    if (n > 8) memcpy(&sum, data + n - 8, 8);
    if (n <= 8 || sum != hash_bytes(data, n - 8, 0)) {
        /* A crash has cut this entry short. It is compiled again and replaced. */
        free(data);
        return false;
    }
    job->object = data;
    job->object_bytes = n - 8;
    return true;
}

struct cached {
    char *name;
    int64_t bytes;
    struct timespec used;
};

static int older_first(const void *a, const void *b) {
    const struct timespec *x = &((const struct cached *)a)->used, *y = &((const struct cached *)b)->used;
    if (x->tv_sec != y->tv_sec) return x->tv_sec < y->tv_sec ? -1 : 1;
    return x->tv_nsec < y->tv_nsec ? -1 : x->tv_nsec > y->tv_nsec;
}

/* Counts the cache. Above the limit, removes the oldest entries until half of it is free. The caller holds the lock. */
static void cache_trim(struct compiler *c) {
    char **names;
    size_t n;
    if (fs_list(c->cache, &names, &n, NULL) != ST_OK) return;
    struct cached *all = xcalloc(n + 1, sizeof *all);
    int64_t total = 0;
    char path[900];
    for (size_t i = 0; i < n; i++) {
        struct stat sb;
        snprintf(path, sizeof path, "%s/%s", c->cache, names[i]);
        if (stat(path, &sb) == 0)
            all[i] = (struct cached){names[i], (int64_t)sb.st_size, sb.st_mtim};
        else
            all[i] = (struct cached){.name = names[i]};
        total += all[i].bytes;
    }
    if (total > max_cache_bytes) {
        qsort(all, n, sizeof *all, older_first);
        for (size_t i = 0; i < n && total > max_cache_bytes / 2; i++) {
            snprintf(path, sizeof path, "%s/%s", c->cache, all[i].name);
            if (unlink(path) == 0) total -= all[i].bytes;
        }
    }
    c->cache_bytes = total;
    for (size_t i = 0; i < n; i++) free(names[i]);
    free(names);
    free(all);
}

/* A cache that cannot be written is no error: the next run compiles again. There is no fsync, because the sum detects a
 * torn file. */
static void cache_put(struct compiler *c, const struct compile_job *job) {
    if (!c->cache[0]) return;
    char path[700], tmp[740];
    static atomic_int serial;
    cache_path(c, job, path, sizeof path);
    snprintf(tmp, sizeof tmp, "%s.tmp.%d.%d", path, (int)getpid(), atomic_fetch_add(&serial, 1));
    FILE *f = fopen(tmp, "we");
    if (!f) return;
    uint64_t sum = hash_bytes(job->object, job->object_bytes, 0);
    bool ok = fwrite(job->object, 1, job->object_bytes, f) == job->object_bytes && fwrite(&sum, 8, 1, f) == 1;
    ok = fclose(f) == 0 && ok && rename(tmp, path) == 0;
    if (!ok) unlink(tmp);
    pthread_mutex_lock(&c->cache_lock);
    c->cache_bytes += (int64_t)job->object_bytes + 8;
    if (c->cache_bytes > max_cache_bytes) cache_trim(c);
    pthread_mutex_unlock(&c->cache_lock);
}

/* ---- compiling ---- */

static void read_text(int fd, char *out, size_t size) {
    ssize_t n = pread(fd, out, size - 1, 0);
    out[n > 0 ? n : 0] = 0;
    if (n == (ssize_t)size - 1) {
        /* The text ends with a whole line rather than in the middle of one. */
        char *eol = strrchr(out, '\n');
        if (eol && eol > out) *eol = 0;
    }
}

static bool read_object(int fd, struct compile_job *job) {
    struct stat sb;
    if (fstat(fd, &sb) != 0 || sb.st_size < 64 || sb.st_size > MAX_OBJECT_BYTES) return false;
    job->object_bytes = (size_t)sb.st_size;
    job->object = xmalloc(job->object_bytes);
    if (pread(fd, job->object, job->object_bytes, 0) == (ssize_t)job->object_bytes) return true;
    free(job->object);
    job->object = NULL;
    return false;
}

/* Whether a run of the compiler shows who is at fault, the job or this machine. */
enum blame { BLAME_KNOWN, BLAME_OPEN };

/* Returns whether a script and its arguments, some of which answers choose, fit into a request to the shell. */
static bool fits(const char *script, char *const *args) {
    size_t bytes = strlen(script) + 1;
    int n = 0;
    for (; args[n]; n++) bytes += strlen(args[n]) + 1;
    return n <= WIRE_SHELL_ARGS && bytes < WIRE_SHELL_BYTES;
}

/* Runs the job's script and fills in its result. Nothing that a compiler says, or does not say, makes COMPILE_BROKEN:
 * that result is for what failed before the script began. BLAME_OPEN: the script, or its jail, ended in a way that a
 * machine in trouble brings about as well. The result is COMPILE_FAILED for now. */
static enum blame run_compiler(struct shell *shell, struct compile_job *job, const char *tmp_dir) {
    char *args[] = {
#define X(s) (char[]){s},
        FLAGS(X)
#undef X
            NULL};
    CLEANUP_FD int src = process_memfd("unit", job->unit, job->unit_bytes);
    CLEANUP_FD int out = process_memfd("object", NULL, 0);
    CLEANUP_FD int text = process_memfd("diagnostics", NULL, 0);
    struct err e = {0};
    int status = 0;
    job->result = COMPILE_BROKEN;
    if (src < 0 || out < 0 || text < 0) {
        snprintf(job->message, sizeof job->message, "memfd_create: %s", strerror(errno));
        return BLAME_KNOWN;
    }
    int fds[3] = {src, out, text};
    const char *script = job->script ? job->script : compile_script;
    char *const *words = job->script ? job->args : args;
    if (!fits(script, words)) {
        job->result = COMPILE_FAILED;
        snprintf(job->message, sizeof job->message, "the compiler's options are too long");
        return BLAME_KNOWN;
    }
    switch (shell_run(shell, script, words, tmp_dir, fds, &status, &e)) {
    case SHELL_ENDED: break;
    case SHELL_BROKEN: snprintf(job->message, sizeof job->message, "%s", e.msg); return BLAME_KNOWN;
    case SHELL_SLOW:
        job->result = COMPILE_SLOW;
        snprintf(job->message, sizeof job->message, "the compiler did not finish within %.0f s", shell->timeout_s);
        return BLAME_KNOWN;
    case SHELL_DIED:
        job->result = COMPILE_FAILED;
        snprintf(job->message, sizeof job->message, "compiling it ended the compiler's jail, twice");
        return BLAME_OPEN;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && read_object(out, job)) {
        job->result = COMPILE_OK;
        return BLAME_KNOWN;
    }
    job->result = COMPILE_FAILED;
    read_text(text, job->message, sizeof job->message);
    const bool silent = !job->message[0];
    if (silent && WIFSIGNALED(status))
        snprintf(job->message, sizeof job->message, "the compiler was ended by signal %d and said nothing",
                 WTERMSIG(status));
    else if (silent)
        snprintf(job->message, sizeof job->message, "the compiler ended with status %d, no object and no message",
                 WEXITSTATUS(status));
    /* Without a shell that stays up, the text may be bubblewrap's. */
    return silent || WIFSIGNALED(status) || !shell->runner ? BLAME_OPEN : BLAME_KNOWN;
}

/* The control: returns whether this machine compiles a unit that has nothing wrong, in a jail of its own. */
static bool compiles_at_all(const struct compiler *c, const char *tmp_dir) {
    static const char unit[] = "__attribute__((visibility(\"default\"))) int works(void) { return 7; }\n";
    struct compile_job job = {.unit = unit, .unit_bytes = sizeof unit - 1};
    struct shell shell;
    shell_init(&shell, c->jail, c->runner, c->extra, c->timeout_s);
    run_compiler(&shell, &job, tmp_dir);
    shell_close(&shell);
    free(job.object);
    return job.result == COMPILE_OK;
}

/* Runs the compiler. When it did not work and it is open whose fault that was, the control decides. */
static void compile_judged(const struct compiler *c, struct shell *shell, struct compile_job *job,
                           const char *tmp_dir) {
    for (int attempt = 0; attempt < 2; attempt++) {
        if (run_compiler(shell, job, tmp_dir) == BLAME_OPEN) {
            shell_close(shell);
            if (!compiles_at_all(c, tmp_dir)) job->result = COMPILE_BROKEN;
        }
        if (job->result != COMPILE_BROKEN) break;
    }
}

static void compile_in(struct compiler *c, struct shell *shell, struct compile_job *job) {
    job->object = NULL;
    job->message[0] = 0;
    job->seconds = 0;
    if (cache_get(c, job)) {
        job->result = COMPILE_OK;
        return;
    }
    double t0 = clock_now_s();
    char tmp_dir[] = "/tmp/kernelrl-XXXXXX";
    if (c->jail->weak && !mkdtemp(tmp_dir)) {
        job->result = COMPILE_BROKEN;
        snprintf(job->message, sizeof job->message, "%s: %s", tmp_dir, strerror(errno));
        return;
    }
    compile_judged(c, shell, job, tmp_dir);
    struct err ignored;
    if (c->jail->weak && fs_remove(tmp_dir, &ignored) != ST_OK) { /* Leftovers in /tmp harm nobody. */
    }
    job->seconds = clock_now_s() - t0;
    if (job->result == COMPILE_OK) cache_put(c, job);
}

void compile_one(struct compiler *c, struct compile_job *job) {
    struct shell shell;
    shell_init(&shell, c->jail, c->runner, c->extra, job->timeout_s > 0 ? job->timeout_s : c->timeout_s);
    compile_in(c, &shell, job);
    shell_close(&shell);
}

/* ---- notes ---- */

/* The object of this job is the text: what GCC says of vectorising, of the answer's own lines. */
static const char notes_script[] =
    "cd \"$TMPDIR\" && gcc \"$@\" -c -o notes.o -fopt-info-vec-all - 2>&1 | grep '^kernel\\.c:[0-9]*:[0-9]*: ' |"
    " grep -e 'optimized: loop vectorized' -e \"couldn't vectorize loop\" -e 'missed: not vectorized' | head -n 200;"
    " echo end";

/* One line of GCC's: "kernel.c:4:21: missed: couldn't vectorize loop", and behind it the reason, whose own place is of
 * no interest. *loop: the line of the loop that the reason is for; 0: none waits for one. */
static void read_note(const char *p, size_t n, int64_t *loop, struct str *out) {
    static const char fast[] = "optimized: loop vectorized using ",
                      reason[] = "missed: not vectorized: ", slow[] = "couldn't vectorize loop";
    char number[24];
    const char *from = memchr(p, ':', n), *hit;
    if (!from) return;
    const size_t digits = strspn(from + 1, "0123456789");
    snprintf(number, sizeof number, "%.*s", (int)(digits < 20 ? digits : 20), from + 1);
    int64_t line;
    if (!parse_i64(number, &line)) return;
    CLEANUP_STR struct str note = STR_INIT;
    if ((hit = mem_find(p, n, fast, sizeof fast - 1))) {
        str_addf(&note, "line %lld: vectorised, %.*s bytes at a time\n", (long long)line,
                 (int)strspn(hit + sizeof fast - 1, "0123456789"), hit + sizeof fast - 1);
    } else if (mem_find(p, n, slow, sizeof slow - 1)) {
        *loop = line;
    } else if (*loop > 0 && (hit = mem_find(p, n, reason, sizeof reason - 1))) {
        hit += sizeof reason - 1;
        str_addf(&note, "line %lld: not vectorised: %.*s\n", (long long)*loop, (int)(p + n - hit), hit);
        *loop = 0;
    }
    if (note.len > 0 && !strstr(str_c(out), note.p)) str_add(out, note.p, note.len);
}

void compile_notes(struct compiler *c, const char *unit, size_t unit_bytes, int most, struct str *out) {
    char *args[] = {
#define X(s) (char[]){s},
        FLAGS(X)
#undef X
            NULL};
    struct compile_job job = {.unit = unit, .unit_bytes = unit_bytes, .script = notes_script, .args = args};
    CLEANUP_STR struct str notes = STR_INIT;
    int64_t loop = 0;
    compile_one(c, &job);
    const char *p = job.object, *end = p ? p + job.object_bytes : p;
    while (job.result == COMPILE_OK && p < end) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        const size_t n = (size_t)((stop ? stop : end) - p);
        read_note(p, n, &loop, &notes);
        p += n + 1;
    }
    p = str_c(&notes);
    for (int i = 0; i < most && *p; i++) {
        const size_t n = strcspn(p, "\n") + 1;
        str_add(out, p, n);
        p += n;
    }
    free(job.object);
}

/* ---- a batch ---- */

enum { MAX_THREADS = 256 };

struct compile_batch {
    struct compiler *c;
    struct compile_job *const *jobs;
    size_t n;
    const volatile bool *cancel;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* A job is done, or a thread has ended. */
    size_t next;            /* The first job that nobody has begun. */
    bool *done;
    int threads, ended; /* How many threads were started, and how many of those have ended. */
    double idle_s;      /* When the last one ended. */
    pthread_t thread[MAX_THREADS];
};

/* Takes the next job. Returns n when there is none, or when all are cancelled. The caller holds the lock. */
static size_t take(struct compile_batch *b) {
    if (b->cancel && *b->cancel) return b->n;
    return b->next < b->n ? b->next++ : b->n;
}

static void *batch_main(void *v) {
    struct compile_batch *b = v;
    struct shell shell;
    shell_init(&shell, b->c->jail, b->c->runner, b->c->extra, b->c->timeout_s);
    pthread_mutex_lock(&b->lock);
    for (size_t i; (i = take(b)) < b->n;) {
        pthread_mutex_unlock(&b->lock);
        compile_in(b->c, &shell, b->jobs[i]);
        pthread_mutex_lock(&b->lock);
        b->done[i] = true;
        pthread_cond_broadcast(&b->changed);
    }
    pthread_mutex_unlock(&b->lock);
    /* This comes before the thread counts as ended, because nothing of it may run beside a timing. */
    shell_close(&shell);
    pthread_mutex_lock(&b->lock);
    b->ended++;
    b->idle_s = clock_now_s();
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

struct compile_batch *compile_start(struct compiler *c, struct compile_job *const *jobs, size_t n,
                                    const volatile bool *cancel) {
    struct compile_batch *b = xcalloc(1, sizeof *b);
    *b = (struct compile_batch){
        .c = c, .jobs = jobs, .n = n, .cancel = cancel, .done = xcalloc(n + 1, sizeof(bool)), .idle_s = clock_now_s()};
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
    int64_t want = i64_min(i64_min(c->jobs, MAX_THREADS), (int64_t)n);
    /* The lock is held while threads are counted: a thread that ends at once must not be seen before it is counted. */
    pthread_mutex_lock(&b->lock);
    while (b->threads < want && pthread_create(&b->thread[b->threads], NULL, batch_main, b) == 0) b->threads++;
    pthread_mutex_unlock(&b->lock);
    return b;
}

bool compile_wait(struct compile_batch *b, size_t i) {
    pthread_mutex_lock(&b->lock);
    while (!b->done[i] && b->ended < b->threads) pthread_cond_wait(&b->changed, &b->lock);
    if (b->threads == 0 && !b->done[i] && !(b->cancel && *b->cancel)) {
        compile_one(b->c, b->jobs[i]);
        b->done[i] = true;
    }
    bool done = b->done[i];
    pthread_mutex_unlock(&b->lock);
    return done;
}

bool compile_idle(struct compile_batch *b) {
    pthread_mutex_lock(&b->lock);
    bool idle = b->ended == b->threads;
    pthread_mutex_unlock(&b->lock);
    return idle;
}

double compile_busy_s(struct compile_batch *b, double since_s) {
    pthread_mutex_lock(&b->lock);
    double until = b->ended == b->threads ? b->idle_s : clock_now_s();
    pthread_mutex_unlock(&b->lock);
    return until > since_s ? until - since_s : 0;
}

void compile_finish(struct compile_batch *b) {
    if (!b) return;
    for (int i = 0; i < b->threads; i++) pthread_join(b->thread[i], NULL);
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
    free(b->done);
    free(b);
}

/* ---- opening ---- */

/* -march=native makes objects belong to a CPU, so its name and features are part of the key. */
static uint64_t cpu_identity(void) {
    char *text;
    uint64_t h = 0;
    if (fs_read("/proc/cpuinfo", 16 << 20, &text, NULL, NULL) != ST_OK) return 0;
    static const char *const keys[] = {"model name", "flags", "Features", "CPU part"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        const char *p = strstr(text, keys[i]);
        if (p) h = hash_bytes(p, strcspn(p, "\n"), h);
    }
    free(text);
    return h;
}

static enum status ask_version(struct compiler *c, struct err *e) {
    CLEANUP_FD int out = process_memfd("version", NULL, 0);
    if (out < 0) return FAIL(e, ST_SANDBOX, "memfd_create: %s", strerror(errno));
    char *args[] = {NULL};
    int fds[3] = {-1, out, out}, status;
    struct process p;
    TRY(jail_start_compiler(c->jail, "gcc -dumpfullversion -dumpmachine", args, "/tmp", fds, 20, &p, e));
    if (!process_wait(&p, clock_now_s() + 20, &status)) {
        process_kill(&p);
        return FAIL(e, ST_SANDBOX, "gcc --version did not answer within 20 s");
    }
    char text[200];
    ssize_t n = pread(out, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        text[strcspn(text, "\n")] = 0;
        return FAIL(e, ST_SANDBOX, "gcc does not run in the sandbox (%.150s); install gcc and libc6-dev", text);
    }
    for (char *s = text; *s; s++)
        if (*s == '\n') *s = ' ';
    snprintf(c->version, sizeof c->version, "gcc %scpu %016llx", text, (unsigned long long)cpu_identity());
    return ST_OK;
}

/* Prints a library that has nothing but the named symbols, in their newest versions. $1: the library for gcc, $2: its
 * soname, $3: the names, an extended regular expression. */
static const char stub_script[] =
    "set -e; cd \"$TMPDIR\"\n"
    "nm -D \"$(gcc -print-file-name=\"$1\")\" | sed -nE 's/^[0-9a-f]+ [TWi] ([A-Za-z0-9_]+)@@(.+)$/\\2 \\1/p' |\n"
    "    grep -E \" ($3)\\$\" | sort >names\n"
    "sed 's/.* \\(.*\\)/.globl \\1\\n.type \\1,%function\\n\\1:/' names >stub.s\n"
    "echo '.section .note.GNU-stack,\"\",%progbits' >>stub.s\n"
    "v=\n"
    "while read n f; do\n"
    "    test \"$n\" = \"$v\" || echo \"${v:+\\};} $n {\"\n"
    "    v=$n; echo \"$f;\"\n"
    "done <names >map\n"
    "echo '};' >>map\n"
    "as -o stub.o stub.s\n"
    "ld -shared -soname \"$2\" --version-script map -o stub stub.o\n"
    "exec cat stub";
/* What answers use of the libraries. An answer that uses a name that is missing here only takes longer to link. */
static const struct {
    const char *file, *library, *soname, *names;
} stubs[] = {
    {"libm", "libm.so.6", "libm.so.6",
     "(a?(sin|cos|tan)h?|atan2|exp|exp2|expm1|log|log2|log10|log1p|pow|sqrt|cbrt|hypot|erfc?|[lt]gamma|ceil|floor|"
     "trunc|"
     "rint|round|nearbyint|ll?r(ound|int)|fmod|remainder|fma|fmax|fmin|fdim|copysign|ldexp|frexp|modf|scalbl?n|logb|"
     "sincos|fabs)f?"},
    {"libgomp", "libgomp.so", "libgomp.so.1",
     "GOMP_(parallel|loop|barrier|critical|atomic|single|sections|ordered|task)[a-z_]*|omp_(get|set)_[a-z_]*[a-z]"},
    {"libc", "libc.so.6", "libc.so.6", "mem(cpy|move|set|cmp)|abort|l?l?abs|qsort|__stack_chk_fail"},
};

/* Compiles the headers of standard input with the flags of a unit. */
static const char header_script[] = "set -e; cd \"$TMPDIR\"\n"
                                    "cat >headers.h\n"
                                    "gcc \"$@\" -x c-header -o headers.h.gch headers.h\n"
                                    "exec cat headers.h.gch";

/* Runs a script that makes one of the extra files from `text` (NULL: from nothing). -1: it does not work here. */
static int make_extra(struct shell *shell, const char *script, char *const *args, const char *text) {
    struct err ignored = {0};
    int status = 1;
    CLEANUP_FD int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    CLEANUP_FD int in = process_memfd("text", text, text ? strlen(text) : 0);
    int made = process_memfd("extra", NULL, 0), fds[3] = {in, made, null_fd};
    if (in >= 0 && made >= 0 && null_fd >= 0 &&
        shell_run(shell, script, args, "/tmp", fds, &status, &ignored) == SHELL_ENDED && status == 0)
        return made;
    if (made >= 0) close(made);
    return -1;
}

/* Gives up some of the extra files. */
static void drop_extras(struct jail_file *f, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (f[i].fd >= 0) close(f[i].fd);
        f[i].fd = -1;
    }
}

/* Makes all stubs or none: without one of them every unit is linked in full. */
static bool make_stubs(struct shell *shell, struct jail_file *out) {
    bool good = true;
    for (size_t i = 0; i < ARRAY_LEN(stubs); i++) {
        char *args[] = {(char *)(uintptr_t)stubs[i].library, (char *)(uintptr_t)stubs[i].soname,
                        (char *)(uintptr_t)stubs[i].names, NULL};
        out[i] = (struct jail_file){good ? make_extra(shell, stub_script, args, NULL) : -1, stubs[i].file};
        good &= out[i].fd >= 0;
    }
    if (!good) drop_extras(out, ARRAY_LEN(stubs));
    return good;
}

/* Makes the headers' text and their compiled form, or neither: a compiler that cannot use the compiled form needs the
 * text. */
static bool make_header(struct shell *shell, struct jail_file out[2]) {
    char *args[] = {
#define X(s) (char[]){s},
        FLAGS(X)
#undef X
            NULL};
    out[0] = (struct jail_file){process_memfd("headers", UNIT_HEADERS, strlen(UNIT_HEADERS)), "headers.h"};
    out[1] = (struct jail_file){make_extra(shell, header_script, args, UNIT_HEADERS), "headers.h.gch"};
    const bool good = out[0].fd >= 0 && out[1].fd >= 0;
    if (!good) drop_extras(out, 2);
    return good;
}

static void make_extras(struct compiler *c) {
    struct shell shell;
    _Static_assert(ARRAY_LEN(stubs) + 2 == JAIL_EXTRA_FILES, "stubs, headers and those compiled");
    struct jail_file made[JAIL_EXTRA_FILES];
    shell_init(&shell, c->jail, c->runner, c->extra, c->timeout_s);
    if (!make_stubs(&shell, made))
        log_debug(
            "compiler: the stubs of the system's libraries could not be made: each answer is linked in full, which "
            "takes longer");
    if (!make_header(&shell, made + ARRAY_LEN(stubs)))
        log_debug("compiler: the headers could not be compiled ahead: each answer reads them itself, which takes "
                  "longer");
    shell_close(&shell);
    /* They are known only from now on: the jail of this shell has none of them. */
    memcpy(c->extra, made, sizeof made);
}

enum status compiler_open(struct compiler *c, const struct jail *jail, const char *runner, const char *cache_dir,
                          double timeout_s, int jobs, struct err *e) {
    *c = (struct compiler){
        .jail = jail, .runner = runner, .timeout_s = timeout_s, .jobs = jobs > 0 ? jobs : pool_cpu_count()};
    for (int i = 0; i < JAIL_EXTRA_FILES; i++) c->extra[i].fd = -1;
    pthread_mutex_init(&c->cache_lock, NULL);
    TRY(ask_version(c, e));
    if (runner && !jail->weak) make_extras(c);
    if (cache_dir) {
        if (snprintf(c->cache, sizeof c->cache, "%s/objects", cache_dir) >= (int)sizeof c->cache)
            return FAIL(e, ST_CONFIG, "cache directory: path too long: %s", cache_dir);
        TRY(fs_mkdirs(c->cache, e));
        cache_trim(c);
    }
    return ST_OK;
}

void compiler_close(struct compiler *c) {
    for (int i = 0; c->jail && i < JAIL_EXTRA_FILES; i++)
        if (c->extra[i].fd >= 0) close(c->extra[i].fd);
    pthread_mutex_destroy(&c->cache_lock);
}
