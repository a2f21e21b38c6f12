/* kernelrl doctor: what this machine can do, each thing really tried, and what to do about the rest. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/home.h"
#include "base/pool.h"
#include "cli/cli.h"
#include "io/hub.h"
#include "model/arch.h"
#include "verify/build/compile.h"
#include "verify/jail/ref_worker.h"

/* What is missing, in the order in which it matters. */
struct advice {
    const char *line[8];
    int n;
    bool cannot_verify; /* the program's main job does not work here */
};

static void advise(struct advice *a, const char *line) {
    if (a->n < (int)ARRAY_LEN(a->line)) a->line[a->n++] = line;
}

static void show(const char *what, const char *text) { printf("%-12s %s\n", what, text); }

/* The value of the first "key : value" line of /proc/cpuinfo; false when absent. */
static bool cpu_field(const char *cpuinfo, const char *key, char *out, size_t size) {
    const char *p = strstr(cpuinfo, key);
    if (!p || !(p = strchr(p, ':'))) return false;
    p += strspn(p, ": \t");
    return snprintf(out, size, "%.*s", (int)strcspn(p, "\n"), p) > 0;
}

static void check_cpu(void) {
    char name[128] = "unknown", flags[8192] = "";
    char *text;
    struct utsname u;
    if (fs_read("/proc/cpuinfo", 64 << 20, &text, NULL, NULL) == ST_OK) {
        cpu_field(text, "model name", name, sizeof name);
        if (!cpu_field(text, "flags", flags, sizeof flags)) cpu_field(text, "Features", flags, sizeof flags);
        free(text);
    }
    uname(&u);
    printf("%-12s %s, %s, %d cores for this process\n", "cpu", name, u.machine, pool_cpu_count());
    static const char *const wanted[] = {"avx2",        "fma",      "f16c",  "avx512f", "avx512bw", "avx512_bf16",
                                         "avx512_vnni", "amx_bf16", "asimd", "bf16",    "sve"};
    CLEANUP_STR struct str have = STR_INIT;
    size_t n = strlen(flags);
    flags[n < sizeof flags - 1 ? n : n - 1] = ' '; /* so that the last word ends in a blank as well */
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        char word[32];
        snprintf(word, sizeof word, " %s ", wanted[i]);
        if (strstr(flags, word)) str_addf(&have, "%s%s", have.len ? " " : "", wanted[i]);
    }
    show("features", have.len ? have.p : "none of the vector extensions that the fast paths use");
}

static void check_memory(struct advice *a) {
    double gib = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / (double)(1 << 30);
    double free_gib = (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / (double)(1 << 30);
    printf("%-12s %.1f GiB, %.1f GiB free\n", "memory", gib, free_gib);
    if (gib < 4) advise(a, "less than 4 GiB of memory: the embedded model fits, larger ones do not");
}

static bool check_jail(struct jail *j, struct advice *a) {
    struct err e = {0};
    if (jail_open(j, false, &e) == ST_OK) {
        show("sandbox", j->drop_root ? "bubblewrap works (answers run as nobody)" : "bubblewrap works");
        return true;
    }
    printf("%-12s no: %s\n", "sandbox", e.msg);
    advise(a, "the sandbox: see the line above; without it answers are not run (or give --allow-weaker)");
    a->cannot_verify = true;
    return false;
}

static void check_compiler(const struct jail *j, struct advice *a) {
    struct compiler c;
    struct err e = {0};
    if (compiler_open(&c, j, NULL, NULL, 20, 1, &e) != ST_OK) {
        printf("%-12s no: %s\n", "compiler", e.msg);
        advise(a, "a C compiler: apt-get install gcc libc6-dev");
        a->cannot_verify = true;
        compiler_close(&c);
        return;
    }
    static const char unit[] =
        "#include <omp.h>\n#include <immintrin.h>\nint f(void) { return omp_get_max_threads(); }\n";
    struct compile_job job = {.unit = unit, .unit_bytes = sizeof unit - 1};
    compile_one(&c, &job);
    if (job.result == COMPILE_OK)
        printf("%-12s %s; a unit in %.0f ms\n", "compiler", c.version, job.seconds * 1e3);
    else {
        printf("%-12s %s, but: %s\n", "compiler", c.version, job.message);
        advise(a, "a working gcc with OpenMP: apt-get install gcc libc6-dev");
        a->cannot_verify = true;
    }
    free(job.object);
    compiler_close(&c);
}

static void check_python(struct advice *a) {
    struct refworker w;
    struct err e = {0};
    if (refworker_open(&w, NULL, pool_cpu_count(), WORKER_REFERENCE, &e) == ST_OK) {
        printf("%-12s %s (%s), PyTorch %s\n", "python", w.python, w.python_version, w.torch);
    } else {
        printf("%-12s no: %s\n", "python", e.msg);
        advise(a, "PyTorch: apt-get install python3-torch, or point KERNELRL_PYTHON at a Python that has it");
        a->cannot_verify = true;
    }
    refworker_close(&w);
}

/* cuInit and cuDeviceGetCount of the driver, without its headers: the program runs where there is none. */
static void check_cuda(void) {
    char nvcc[512];
    bool compiler = process_find("nvcc", nvcc, sizeof nvcc);
    if (!compiler) compiler = process_find("/usr/local/cuda/bin/nvcc", nvcc, sizeof nvcc);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int devices = 0;
    if (driver) {
        union {
            void *p;
            int (*init)(unsigned);
            int (*count)(int *);
        } init = {dlsym(driver, "cuInit")}, count = {dlsym(driver, "cuDeviceGetCount")};
        if (!init.p || !count.p || init.init(0) != 0 || count.count(&devices) != 0) devices = 0;
    }
    printf("%-12s %s, %d device%s, nvcc %s\n", "cuda", driver ? "driver found" : "no driver", devices,
           devices == 1 ? "" : "s", compiler ? nvcc : "not found");
}

/* True when `python -c code` ends with status 0 within the time. */
static bool python_runs(const char *python, const char *code) {
    struct process p;
    int status;
    char *argv[] = {(char *)(uintptr_t)python, (char[]){"-c"}, (char *)(uintptr_t)code, NULL};
    struct process_start s = {.path = python, .argv = argv, .envp = environ, .fds = {-1, -1, -1}, .n_fds = 3};
    if (process_start(&s, &p, NULL) != ST_OK) return false;
    if (!process_wait(&p, clock_now_s() + 20, &status)) {
        process_kill(&p);
        return false;
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void check_tensorboard(void) {
    static const char probe[] = "import importlib.util, sys; sys.exit(not importlib.util.find_spec('tensorboard'))";
    static const char *const pythons[] = {"./.venv/bin/python", "python3", "/usr/bin/python3"};
    char path[512];
    if (process_find("tensorboard", path, sizeof path)) {
        show("tensorboard", path);
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(pythons); i++)
        if (process_find(pythons[i], path, sizeof path) && python_runs(path, probe)) {
            printf("%-12s %s -m tensorboard.main\n", "tensorboard", path);
            return;
        }
    show("tensorboard", "not found; runs are recorded all the same (metrics.jsonl and event files)");
}

/* Where a model's name is looked up, in that order, and which architectures are understood. The server is not asked: a
 * machine may well be without one. */
static void check_models(void) {
    struct hub_settings h;
    char **names = NULL;
    size_t n = 0, models = 0;
    hub_settings_read(&h);
    if (fs_is_dir(h.cache) && fs_list(h.cache, &names, &n, NULL) == ST_OK) {
        for (size_t i = 0; i < n; i++) {
            models += str_has_prefix(names[i], "models--");
            free(names[i]);
        }
        free(names);
    }
    printf("%-12s folders here, then in %s, then in %s (%zu there), then %s%s\n", "models", home_dir(), h.cache, models,
           h.endpoint,
           h.offline ? ", but HF_HUB_OFFLINE is set: nothing is downloaded"
           : h.token ? " (with a token)"
                     : " (no token: public models only)");
    hub_settings_free(&h);
    CLEANUP_STR struct str loaded = STR_INIT;
    arch_list(" and ", &loaded);
    show("loads", loaded.p);
}

static void check_parquet(void) {
    static const char probe[] = "import importlib.util, sys; sys.exit(not importlib.util.find_spec('pyarrow'))";
    const char *given = getenv("KERNELRL_PYTHON");
    const char *const usual[] = {given && *given ? given : "./.venv/bin/python", "python3", "/usr/bin/python3"};
    char path[512];
    for (size_t i = 0; i < (given && *given ? 1 : ARRAY_LEN(usual)); i++)
        if (process_find(usual[i], path, sizeof path) && python_runs(path, probe)) {
            show("parquet", path);
            return;
        }
    show("parquet", "no Python with pyarrow; data sets in Parquet cannot be read, everything else can");
}

const struct args_command doctor_command = {
    .name = "doctor",
    .usage = "",
    .about = "Tries everything that the program needs.",
    .notes = "Exit status: 0 all there, 1 something is missing, 2 usage.",
};

int cmd_doctor(int argc, char **argv) {
    struct args given;
    if (!args_parse(&doctor_command, argc, argv, NULL, &given)) return given.code;
    struct advice a = {.n = 0};
    struct jail j;
    printf("kernelrl %s, files in %s\n", KERNELRL_VERSION, home_dir());
    check_cpu();
    check_memory(&a);
    if (check_jail(&j, &a)) {
        check_compiler(&j, &a);
        jail_close(&j);
    }
    check_python(&a);
    check_cuda();
    check_tensorboard();
    check_models();
    check_parquet();
    printf("\n%s\n", a.n ? "To do:" : "All that is needed is there. Next: kernelrl demo, or make demo.");
    for (int i = 0; i < a.n; i++) printf("  - %s\n", a.line[i]);
    return a.cannot_verify ? 1 : 0;
}
