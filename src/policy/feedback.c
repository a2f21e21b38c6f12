#include "policy/feedback.h"

#include <string.h>

enum { DETAIL_BYTES = 1000, CLEAN_BYTES = 800, CLEAN_LINES = 10 };

void feedback_render(const struct verdict *v, struct str *out) {
    str_adds(out, outcome_text(v->outcome));
    if (v->outcome == OUTCOME_CORRECT) {
        if (v->speedup > 0) str_addf(out, ", %.2fx the speed of PyTorch", v->speedup);
        return;
    }
    size_t n = strlen(v->message);
    while (n > 0 && v->message[n - 1] == '\n') n--;
    if (n > DETAIL_BYTES) { /* cut at a line end where there is one */
        n = DETAIL_BYTES;
        while (n > DETAIL_BYTES / 2 && v->message[n] != '\n') n--;
    }
    if (n == 0) return;
    str_addc(out, '\n');
    str_add(out, v->message, n);
}

enum feedback_category feedback_category(const struct verdict *v) {
    switch (outcome_class(v->outcome)) {
    case 'F': return FEEDBACK_FORMAT;
    case 'B': return FEEDBACK_COMPILE;
    case 'R': return FEEDBACK_RUNTIME;
    case 'W': return FEEDBACK_WRONG;
    case 'C': return v->speedup > 0 && v->speedup < 1 ? FEEDBACK_SLOW : FEEDBACK_GOOD;
    default: return FEEDBACK_FORBIDDEN;
    }
}

static const struct {
    const char *status, *c, *cuda, *python; /* advice for C, native CUDA and Python modules */
} categories[] = {
    [FEEDBACK_FORMAT] = {"no kernel found in the answer", "Put the whole function `kernel` in one fenced block.",
                         "Put the whole translation unit in one fenced block.",
                         "Put the whole module with the class `ModelNew` in one fenced block."},
    [FEEDBACK_COMPILE] = {"the build failed", "Fix the syntax, declare what is used, and keep the given prototype.",
                          "Fix the syntax, declare what is used, and keep the given prototype.",
                          "Fix syntax, imports, decorators and the names of the kernel language's functions."},
    [FEEDBACK_RUNTIME] = {"it crashed", "Check every index against the size macros, and scratch memory.",
                          "Check indices, the launch configuration and shared memory.",
                          "Check shapes, indices, masks and the launch configuration."},
    [FEEDBACK_WRONG] = {"the output is wrong", "Check the algorithm, the first and last elements, and reductions.",
                        "Check the algorithm, boundaries, reductions and missing barriers.",
                        "Check the algorithm, masks at the boundaries, and reductions."},
    [FEEDBACK_FORBIDDEN] = {"it did something that is not allowed", "Compute every output in every call.",
                            "Compute every output in every call.", "Compute every output in every call."},
    [FEEDBACK_SLOW] = {"correct, but slower than PyTorch", "Look at memory access, tiling, vector loops and threads.",
                       "Look at coalescing, tiling in shared memory and occupancy.",
                       "Look at memory access, block sizes and fusing more operators."},
    [FEEDBACK_GOOD] = {"correct", "Keep it correct and make it faster.", "Keep it correct and make it faster.",
                       "Keep it correct and make it faster."},
};

static bool is_noise(const char *line, size_t n) {
    static const char *const starts[] = {"Traceback", "File \"", "During handling of"};
    while (n > 0 && (*line == ' ' || *line == '\t')) {
        line++;
        n--;
    }
    if (n == 0) return true;
    for (size_t i = 0; i < ARRAY_LEN(starts); i++)
        if (n >= strlen(starts[i]) && memcmp(line, starts[i], strlen(starts[i])) == 0) return true;
    return false;
}

/* The first lines that say something: no stack frames, no empty lines. */
static void add_clean(const char *message, struct str *out) {
    size_t bytes = 0;
    for (int lines = 0; *message && lines < CLEAN_LINES && bytes < CLEAN_BYTES;) {
        size_t n = strcspn(message, "\n");
        if (!is_noise(message, n)) {
            const size_t take = n < CLEAN_BYTES - bytes ? n : CLEAN_BYTES - bytes;
            str_add(out, message, take);
            str_addc(out, '\n');
            bytes += take;
            lines++;
        }
        message += n + (message[n] == '\n');
    }
}

void feedback_render_full(const struct verdict *v, const struct backend_info *backend, struct str *out) {
    const enum feedback_category category = feedback_category(v);
    const enum stage stage = outcome_stage(v->outcome);
    str_addf(out, "%s\n", categories[category].status);
    if (category != FEEDBACK_FORMAT) str_addf(out, "Compiled: %s\n", stage >= STAGE_COMPILE ? "yes" : "no");
    if (v->tests_total > 0) str_addf(out, "Tests passed: %d of %d\n", v->tests_passed, v->tests_total);
    if (v->speedup > 0) str_addf(out, "Speed: %.2fx PyTorch\n", v->speedup);
    CLEANUP_STR struct str details = STR_INIT;
    if (category < FEEDBACK_SLOW) add_clean(v->message, &details);
    if (details.len > 0) str_addf(out, "Details:\n```\n%s```\n", details.p);
    const char *advice = !backend || strcmp(backend->name, "c") == 0 ? categories[category].c
                         : !backend->is_module                       ? categories[category].cuda
                                                                     : categories[category].python;
    str_addf(out, "%s Keep what works and the signature.", advice);
    if (!backend || !backend->is_module) return;
    str_adds(out, " Do not leave the work to PyTorch operators.");
}
