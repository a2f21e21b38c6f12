#include "base/home.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/fs.h"

enum { LEVELS = 5 };

/* Calls fn with the program's folder, then with the folders above it, until fn returns true. */
static bool upwards(int levels, bool (*fn)(void *ctx, const char *dir), void *ctx) {
    char dir[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", dir, sizeof dir - 1);
    dir[n > 0 ? n : 0] = 0;
    for (int i = 0; i < levels; i++) {
        char *slash = strrchr(dir, '/');
        if (!slash || slash == dir) return false;
        *slash = 0;
        if (fn(ctx, dir)) return true;
    }
    return false;
}

static char home[PATH_MAX];

static bool is_home(void *ctx, const char *dir) {
    static const char *const below[] = {"", "/share/kernelrl"};
    char probe[PATH_MAX + 64];
    (void)ctx;
    for (size_t i = 0; i < ARRAY_LEN(below); i++) {
        snprintf(probe, sizeof probe, "%s%s/worker/kernelrl_worker", dir, below[i]);
        const int n = fs_is_dir(probe) ? snprintf(home, sizeof home, "%s%s", dir, below[i]) : -1;
        if (n > 0 && (size_t)n < sizeof home) return true;
    }
    return false;
}

static void find_home(void) {
    const char *env = getenv("KERNELRL_HOME");
    if (env && *env)
        snprintf(home, sizeof home, "%s", env);
    else if (!upwards(INT_MAX, is_home, NULL))
        snprintf(home, sizeof home, ".");
}

const char *home_dir(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_home);
    return home;
}

struct wanted_file {
    const char *name;
    char *path;
    size_t size;
};

static bool is_there(void *ctx, const char *dir) {
    static const char *const below[] = {"", "/libexec/kernelrl"};
    const struct wanted_file *w = ctx;
    for (size_t i = 0; i < ARRAY_LEN(below); i++) {
        const int n = snprintf(w->path, w->size, "%s%s/%s", dir, below[i], w->name);
        if (n > 0 && (size_t)n < w->size && access(w->path, R_OK) == 0) return true;
    }
    return false;
}

bool home_beside_program(const char *name, char *path, size_t size) {
    return upwards(LEVELS, is_there, &(struct wanted_file){name, path, size});
}
