#include "verify/backends.h"

#include <string.h>

#include "base/base.h"

static const struct backend_info rows[N_BACKENDS] = {
#define X(id, name, title, fence, ending, ...) [id] = {#name, title, fence, ending, __VA_ARGS__},
    BACKEND_LIST(X)
#undef X
};

const struct backend_info *backend_info(enum verify_backend b) {
    ASSERT(b >= 0 && b < N_BACKENDS);
    return &rows[b];
}

const char *backend_name(enum verify_backend b) { return backend_info(b)->name; }

bool backend_from_name(const char *name, enum verify_backend *out) {
    for (int b = 0; b < N_BACKENDS; b++)
        if (strcmp(rows[b].name, name) == 0) {
            *out = (enum verify_backend)b;
            return true;
        }
    return false;
}

const struct backend_info *backend_named(const char *name) {
    enum verify_backend b;
    return backend_from_name(name, &b) ? &rows[b] : NULL;
}
