/* kernelrl doctor: tries each thing that the program can use, prints a line about it, and says at the end what to do
 * about what is missing. */
#include <dlfcn.h>
#include <linux/landlock.h>
#include <seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
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
#include "tensor/backend.h"
#include "verify/build/compile.h"
#include "verify/jail/ref_worker.h"
#include "verify/pool/hardware.h"

/* What the user should do, in the order of the checks. A text beyond the last place is dropped. */
struct advice {
    const char *line[8]; /* borrowed */
    int n;
    bool cannot_verify; /* true: answers (kernels that a model writes) cannot be judged here; the exit status is 1 */
};

static void advise(struct advice *a, const char *line) {
    if (a->n < (int)ARRAY_LEN(a->line)) a->line[a->n++] = line;
}

static void show(const char *what, const char *text) { printf("%-12s %s\n", what, text); }

/* Runs a program and appends the first line of its stdout to out. Nothing is appended where it fails or takes longer
 * than 20 s. */
static void says(char *const *argv, struct str *out) {
    struct process p;
    char text[512];
    int status;
    CLEANUP_FD int fd = process_memfd("said", NULL, 0);
    struct process_start s = {.path = argv[0], .argv = argv, .envp = environ, .fds = {-1, fd, -1}, .n_fds = 3};
    if (fd < 0 || process_start(&s, &p, NULL) != ST_OK) return;
    if (!process_wait(&p, clock_now_s() + 20, &status)) {
        process_kill(&p);
        return;
    }
    const ssize_t n = pread(fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) str_add(out, text, strcspn(text, "\n"));
}

/* Copies the value of the first line "key : value" in the text of /proc/cpuinfo. False: it has none. */
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

/* Prints the classes of hardware under which this machine takes work when it judges answers for others (docs/farm.md):
 * one for its CPU and one for each kind of GPU. */
static void check_classes(void) {
    struct gpu_device gpu[GPUS_MAX];
    CLEANUP_STR struct str text = STR_INIT;
    char class[CLASS_BYTES];
    hardware_cpu_class(class);
    str_adds(&text, class);
    const int n = hardware_gpus(gpu);
    for (int i = 0; i < n; i++) {
        hardware_gpu_class(gpu[i].model, class);
        if (!strstr(text.p, class)) str_addf(&text, ", %s", class);
    }
    show("classes", text.p);
}

static void check_memory(struct advice *a) {
    double gib = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / (double)(1 << 30);
    double free_gib = (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / (double)(1 << 30);
    printf("%-12s %.1f GiB, %.1f GiB free\n", "memory", gib, free_gib);
    if (gib < 4) advise(a, "less than 4 GiB of memory: the embedded model fits, larger ones do not");
}

/* True: j is open, and the caller closes it. */
static bool check_jail(struct jail *j, struct advice *a) {
    struct err e = {0};
    if (jail_open(j, false, &e) == ST_OK) {
        CLEANUP_STR struct str version = STR_INIT;
        char *argv[] = {j->bwrap, (char[]){"--version"}, NULL};
        says(argv, &version);
        printf("%-12s %s works%s\n", "sandbox", version.len ? version.p : "bubblewrap",
               j->drop_root ? " (answers run as nobody)" : "");
        return true;
    }
    printf("%-12s no: %s\n", "sandbox", e.msg);
    advise(a, "the sandbox: see the line above; without it answers are not run (or give --allow-weaker)");
    a->cannot_verify = true;
    return false;
}

/* Prints which parts of a sandbox the kernel has, and the version of libseccomp, which makes the system call filters.
 * Nothing here is advice: check_jail has tried whether the sandbox works. */
static void check_kernel(void) {
    char *text = NULL;
    const struct scmp_version *v = seccomp_version();
    const bool filters = fs_read("/proc/sys/kernel/seccomp/actions_avail", 4096, &text, NULL, NULL) == ST_OK,
               landlock = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION) > 0;
    struct utsname u;
    uname(&u);
    printf("%-12s Linux %s, filters %s\n", "seccomp", u.release, filters ? "there" : "not there: answers are not run");
    printf("%-12s %u.%u.%u\n", "libseccomp", v ? v->major : 0, v ? v->minor : 0, v ? v->micro : 0);
    show("namespaces", fs_is_file("/proc/self/ns/user")
                           ? "user namespaces there"
                           : "no user namespaces: bubblewrap needs root or its setuid bit");
    show("landlock", landlock ? "there" : "not there; it hides files where --allow-weaker does without bubblewrap");
    free(text);
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
    if (refworker_open(&w, NULL, pool_cpu_count(), WORKER_REFERENCE, NULL, &e) == ST_OK) {
        printf("%-12s %s (%s), PyTorch %s\n", "python", w.python, w.python_version, w.torch);
    } else {
        printf("%-12s no: %s\n", "python", e.msg);
        advise(a,
               "PyTorch: apt-get install python3-torch python3-setuptools libopenblas0-pthread, or pip install torch "
               "setuptools, or point KERNELRL_PYTHON at a Python that has them");
        a->cannot_verify = true;
    }
    refworker_close(&w);
}

/* Python packages that only some answers, data or tests need. */
static const struct package {
    const char *name;    /* as it is shown */
    const char *import;  /* the module */
    const char *install; /* what pip calls it */
    const char *what_for;
} packages[] = {
    {"triton", "triton", "triton", "answers in Triton (backend triton)"},
    {"tilelang", "tilelang", "tilelang", "answers in TileLang (backend tilelang)"},
    {"cute", "cutlass", "nvidia-cutlass-dsl", "answers in CuTe (backend cute)"},
    {"parquet", "pyarrow", "pyarrow", "data sets in Parquet; everything else can be read without it"},
    {"faiss", "faiss", "faiss-cpu", "a test that reads this program's indices with it"},
    {"transformers", "transformers", "transformers", "tests, and problems of KernelBench's fourth level"},
    {"peft", "peft", "peft", "a test that loads adapters with it"},
};

/* Prints for each package its version, or what it would be for. A package is looked for where check_python looks for
 * torch, but in each Python: the one that is shown need not be the one that has torch. */
static void check_packages(void) {
    /* Prints VERSION|; the bar alone, where the package is not there. */
    static const char probe[] = "import importlib.util as u, importlib.metadata as m, sys\n"
                                "def of(name, package):\n"
                                "    try:\n"
                                "        return m.version(package) if u.find_spec(name) else ''\n"
                                "    except Exception:\n"
                                "        return 'of unknown version'\n"
                                "print('|'.join(of(*a.split('=')) for a in sys.argv[1:]) + '|')";
    const char *given = getenv("KERNELRL_PYTHON");
    const char *const usual[] = {given && *given ? given : "./.venv/bin/python", "python3", "/usr/bin/python3"};
    for (size_t k = 0; k < ARRAY_LEN(packages); k++) {
        const struct package *p = &packages[k];
        CLEANUP_STR struct str version = STR_INIT, name = STR_INIT;
        char path[512];
        str_addf(&name, "%s=%s", p->import, p->install);
        for (size_t i = 0; i < (given && *given ? 1 : ARRAY_LEN(usual)) && version.len <= 1; i++) {
            if (!process_find(usual[i], path, sizeof path)) continue;
            char *argv[] = {path, (char[]){"-c"}, (char *)(uintptr_t)probe, name.p, NULL};
            str_clear(&version);
            says(argv, &version);
        }
        if (version.len > 1)
            printf("%-12s %.*s (%s)\n", p->name, (int)version.len - 1, version.p, path);
        else
            printf("%-12s not found (pip install %s); for %s\n", p->name, p->install, p->what_for);
    }
}

/* Opens NVIDIA's driver by name: the program is not linked with it, because it must start on machines without one. */
static void check_driver(void) {
    union {
        void *p;
        int (*init)(unsigned);
        int (*number)(int *);
    } init, count, version;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int devices = 0, number = 0;
    if (!driver) {
        show("driver", "not found; for models and answers on an NVIDIA GPU");
        return;
    }
    init.p = dlsym(driver, "cuInit");
    count.p = dlsym(driver, "cuDeviceGetCount");
    version.p = dlsym(driver, "cuDriverGetVersion");
    if (!init.p || !count.p || init.init(0) != 0 || count.number(&devices) != 0) devices = 0;
    if (!version.p || version.number(&number) != 0) number = 0;
    printf("%-12s CUDA %d.%d, %d device%s\n", "driver", number / 1000, number % 1000 / 10, devices,
           devices == 1 ? "" : "s");
}

/* Opens the CUDA plugin, the shared library that computes models on a GPU, and prints its device or why there is none.
 */
static void check_plugin(void) {
    struct pool *pool = pool_create(1);
    struct backend *be = NULL;
    struct err e = {0};
    if (backend_open("cuda", pool, &be, &e) == ST_OK) {
        show("cuda", be->name);
        be->close(be);
    } else {
        printf("%-12s no: %s; for models on an NVIDIA GPU\n", "cuda", e.msg);
    }
    pool_destroy(pool);
}

/* Copies what stands between `word` and the next comma or blank. out is empty where `word` is not in the line. */
static void word_behind(const char *line, const char *word, char *out, size_t size) {
    const char *at = strstr(line, word);
    snprintf(out, size, "%.*s", at ? (int)strcspn(at + strlen(word), ", ") : 0, at ? at + strlen(word) : "");
}

/* Programs that only some answers, builds or tests need. */
static const struct program {
    const char *name;
    const char *places[2]; /* where it may be: the first that is found counts */
    const char *shell;     /* a command of sh whose first line holds the version; $0 is the program */
    const char *word;      /* what stands in front of the version in that line */
    const char *what_for;
} programs[] = {
    {"nvcc",
     {"nvcc", "/usr/local/cuda/bin/nvcc"},
     "\"$0\" --version | grep release",
     "release ",
     "building the plugin, and answers in CUDA"},
    {"g++",
     {"g++", NULL},
     "\"$0\" -dumpfullversion",
     "",
     "answers with C++ of their own, and the emulated GPU of tests"},
    {"clang", {"clang", NULL}, "\"$0\" --version", "version ", "fuzzing (make fuzz)"},
    {"clang-format", {"clang-format", NULL}, "\"$0\" --version", "version ", "make fmt and make tidy"},
    {"zstd", {"zstd", NULL}, "\"$0\" --version", " v", "tests and tools that read traces"},
};

static void check_programs(void) {
    for (size_t i = 0; i < ARRAY_LEN(programs); i++) {
        const struct program *p = &programs[i];
        CLEANUP_STR struct str line = STR_INIT;
        char path[512] = "", sh[512], version[64] = "";
        bool there = false;
        for (size_t k = 0; k < ARRAY_LEN(p->places) && p->places[k] && !there; k++)
            there = process_find(p->places[k], path, sizeof path);
        if (!there || !process_find("sh", sh, sizeof sh)) {
            printf("%-12s not found; for %s\n", p->name, p->what_for);
            continue;
        }
        char *argv[] = {sh, (char[]){"-c"}, (char *)(uintptr_t)p->shell, path, NULL};
        says(argv, &line);
        if (line.len) word_behind(line.p, p->word, version, sizeof version);
        printf("%-12s %s (%s)\n", p->name, *version ? version : "of unknown version", path);
    }
}

/* Prints what else may be installed: oneDNN, which only bench/matmul is linked with, and the folders of
 * ThunderKittens and KernelBench, which environment variables name. */
static void check_libraries(void) {
    static const char *const names[] = {"libdnnl.so.3", "libdnnl.so.2"};
    const char *kittens = getenv("THUNDERKITTENS_ROOT"), *kernelbench = getenv("KERNELBENCH_ROOT");
    void *library = NULL;
    for (size_t i = 0; i < ARRAY_LEN(names) && !library; i++) library = dlopen(names[i], RTLD_LAZY);
    union {
        void *p;
        const int *(*of)(void);
    } version = {library ? dlsym(library, "dnnl_version") : NULL}; /* gives major, minor and patch first */
    if (version.p)
        printf("%-12s %d.%d.%d\n", "oneDNN", version.of()[0], version.of()[1], version.of()[2]);
    else
        show("oneDNN", "not found (libdnnl); for the rival that bench/matmul is measured beside");
    if (library) dlclose(library);
    show("kittens", kittens && fs_is_dir(kittens) ? kittens
                                                  : "not found: THUNDERKITTENS_ROOT names no folder; for answers with "
                                                    "ThunderKittens");
    show("kernelbench", kernelbench && *kernelbench ? kernelbench
                                                    : "KERNELBENCH_ROOT is not set; for its problems (those of "
                                                      "problems/ are used)");
}

/* True: `python -c code` has ended with status 0 within 20 s. */
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

/* Prints where a model's name is looked up, in that order, and which architectures can be loaded. No request is sent to
 * the Hugging Face Hub: doctor must work without a network. */
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

const struct args_command doctor_command = {
    .name = "doctor",
    .usage = "",
    .about = "Tries everything that the program needs.",
    .notes = "Exit status: 0 answers can be judged here, 1 they cannot, 2 usage.",
};

int cmd_doctor(int argc, char **argv) {
    struct args given;
    if (!args_parse(&doctor_command, argc, argv, NULL, &given)) return given.code;
    struct advice a = {.n = 0};
    struct jail j;
    printf("kernelrl %s, files in %s\n", KERNELRL_VERSION, home_dir());
    check_cpu();
    check_classes();
    check_memory(&a);
    if (check_jail(&j, &a)) {
        check_compiler(&j, &a);
        jail_close(&j);
    }
    check_kernel();
    check_python(&a);
    check_packages();
    check_driver();
    check_plugin();
    check_programs();
    check_libraries();
    check_tensorboard();
    check_models();
    CLEANUP_STR struct str sources = STR_INIT; /* only a source tree has tools/demo and a Makefile */
    str_addf(&sources, "%s/tools/demo", home_dir());
    printf("\n%s\n", a.n                     ? "To do:"
                     : fs_is_file(sources.p) ? "All that is needed is there. Next: make demo."
                                             : "All that is needed is there. Next: kernelrl demo.");
    for (int i = 0; i < a.n; i++) printf("  - %s\n", a.line[i]);
    return a.cannot_verify ? 1 : 0;
}
