#include "verify/build/kernel_names.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"

void kernel_names_free(struct kernel_names *n) { str_free(&n->list); }

static bool is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

static void add(struct kernel_names *n, const char *word, size_t size) {
    if (size == 0) return;
    if (n->list.len == 0) str_addc(&n->list, '\n');
    str_add(&n->list, word, size);
    str_addc(&n->list, '\n');
}

/* Returns what stands behind a pair of parentheses that begins at p. */
static const char *behind_parentheses(const char *p) {
    int depth = 0;
    for (; *p; p++) {
        depth += (*p == '(') - (*p == ')');
        if (depth == 0) return p + 1;
    }
    return p;
}

/* Notes the names of __global__ ... NAME(: the last word in front of a parenthesis that is no attribute's. */
static void note_cuda(struct kernel_names *n, const char *source) {
    static const char *const attributes[] = {"__launch_bounds__", "__attribute__", "__cluster_dims__",
                                             "__block_size__",    "__maxnreg__",   "alignas"};
    for (const char *p = source; (p = strstr(p, "__global__"));) {
        const char *word = NULL;
        size_t size = 0;
        p += 10;
        while (*p && *p != ';' && *p != '{' && *p != '}') {
            if (is_word(*p)) {
                word = p;
                while (is_word(*p)) p++;
                size = (size_t)(p - word);
            } else if (*p == '(') {
                bool attribute = false;
                for (size_t i = 0; i < ARRAY_LEN(attributes); i++)
                    attribute |= size == strlen(attributes[i]) && word && strncmp(word, attributes[i], size) == 0;
                if (!attribute) break;
                p = behind_parentheses(p);
            } else
                p++;
        }
        if (*p == '(' && word) add(n, word, size);
    }
}

/* Notes the names of @...jit, other decorators, def NAME(. */
static void note_triton(struct kernel_names *n, const char *source) {
    bool decorated = false;
    for (const char *line = source; *line;) {
        const char *p = line + strspn(line, " \t");
        size_t rest = strcspn(p, "\n");
        if (*p == '@') {
            size_t end = 1;
            while (is_word(p[end]) || p[end] == '.') end++;
            decorated |= end >= 4 && strncmp(p + end - 3, "jit", 3) == 0 && !is_word(p[end - 4]);
        } else if (rest > 4 && strncmp(p, "def ", 4) == 0) {
            size_t size = 0;
            p += 4 + strspn(p + 4, " \t");
            while (is_word(p[size])) size++;
            if (decorated) add(n, p, size);
            decorated = false;
        } else if (rest > 6 && strncmp(p, "class ", 6) == 0)
            /* Arguments of a decorator over several lines, comments and blanks change nothing. */
            decorated = false;
        line += strcspn(line, "\n");
        line += *line == '\n';
    }
}

void kernel_names_note(struct kernel_names *n, const char *source) {
    note_cuda(n, source);
    note_triton(n, source);
}

bool kernel_is_library(const char *name) {
    static const char *const marks[] = {"2at6native", "at::native", "at_cuda_detail", "cublas",     "cudnn",
                                        "nvjet",      "cusparse",   "cusolver",       "curand",     "3cub",
                                        "cub::",      "thrust",     "sm90_xmma",      "sm80_xmma",  "sm100_xmma",
                                        "ampere_",    "volta_",     "turing_",        "cutlass_8",  "cutlass_9",
                                        "magma",      "nccl",       "c10::",          "vector_fft", "regular_fft"};
    for (size_t i = 0; i < ARRAY_LEN(marks); i++)
        if (strstr(name, marks[i])) return true;
    /* An anonymous namespace is named after its file. An answer's file is kernel.cu, or has the name that extension.c
     * gave it. */
    const char *anonymous = strstr(name, "_GLOBAL__N__");
    return anonymous && !str_has_prefix(anonymous, "_GLOBAL__N__kernelrl") && !strstr(anonymous, "_kernel_cu_");
}

/* Returns whether `own` is the name: the whole of a C or Triton name (Triton has had suffixes such as _0d1d2), or one
 * identifier of a mangled name, where its length stands in front. */
static bool matches(const char *name, const char *own, size_t size) {
    if (strncmp(name, own, size) == 0 && (!name[size] || (name[size] == '_' && isdigit((unsigned char)name[size + 1]))))
        return true;
    if (!str_has_prefix(name, "_Z")) return false;
    char text[24];
    size_t digits = (size_t)snprintf(text, sizeof text, "%zu", size);
    for (const char *p = name; (p = strstr(p, text)); p++)
        if (!isdigit((unsigned char)p[-1]) && strncmp(p + digits, own, size) == 0) return true;
    return false;
}

bool kernel_is_own(const struct kernel_names *n, const char *name) {
    const char *end;
    for (const char *p = n->list.len ? n->list.p + 1 : ""; *p; p = end + 1) {
        end = strchr(p, '\n');
        if (matches(name, p, (size_t)(end - p))) return true;
    }
    return false;
}
