/* Problems of KernelBench whose verdicts must be read with care. The defects were published, or found by arithmetic at
 * the problems' present sizes. A problem is known by its level, its number and a word of its name: another problem in
 * the same place has no flags. */
#include <ctype.h>
#include <string.h>

#include "problem/problem.h"

enum {
    ZEROS = 1,       /* Every expected value lies within KernelBench's absolute tolerance. */
    BLIND = 2,       /* On its own inputs, the output hardly depends on them. */
    ESTIMATE = 4,    /* On its own inputs, a sample or a closed form comes within the tolerance. */
    IDENTITY = 8,    /* Its own inputs, or parameters as initialised, leave an operator without effect. */
    RANDOM = 16,     /* forward() draws random numbers. */
    OVERFLOWS = 32,  /* Values are not finite in fp16, or vanish: most of the work leaves no trace. */
    TIES = 64,       /* Elements are equal in half types: right answers differ. */
    INTEGERS = 128,  /* It has integer inputs, which KernelBench casts to the float type. */
    LARGE = 256,     /* It has gigabytes of inputs. */
    SHORTCUT = 512,  /* An exact rewriting does a small part of the work: large ratios may be honest. */
    REDUNDANT = 1024 /* The reference does needless work: likewise. */
};

static const char *const names[] = {"zeros_pass", "input_blind", "estimable",    "identity", "random",  "overflows",
                                    "ties",       "integers",    "large_inputs", "shortcut", "wasteful"};

static const struct defect {
    int level, id;
    const char *word; /* A word of the name, in lower case. */
    int flags;
} defects[] = {
    {1, 4, "vector", ESTIMATE | OVERFLOWS},
    {1, 6, "matmul", ESTIMATE | OVERFLOWS},
    {1, 12, "diag", REDUNDANT},
    {1, 19, "relu", IDENTITY},
    {1, 20, "relu", IDENTITY},
    {1, 23, "softmax", ZEROS},
    {1, 31, "elu", IDENTITY},
    {1, 32, "tanh", IDENTITY},
    {1, 33, "norm", ESTIMATE | IDENTITY},
    {1, 34, "norm", ESTIMATE},
    {1, 35, "norm", ESTIMATE | IDENTITY},
    {1, 37, "norm", ZEROS},
    {1, 38, "norm", ESTIMATE},
    {1, 39, "norm", ESTIMATE},
    {1, 40, "norm", ESTIMATE | IDENTITY | SHORTCUT},
    {1, 45, "pooling", LARGE},
    {1, 49, "max", ESTIMATE},
    {1, 51, "argmax", TIES},
    {1, 52, "argmin", TIES},
    {1, 53, "min", ESTIMATE},
    {1, 90, "cumprod", OVERFLOWS},
    {1, 93, "cumsum", INTEGERS},
    {1, 94, "loss", ESTIMATE},
    {1, 95, "loss", ESTIMATE | INTEGERS},
    {1, 96, "loss", ESTIMATE},
    {1, 98, "loss", ESTIMATE},
    {1, 100, "loss", BLIND | ESTIMATE | LARGE},
    {2, 13, "softmax", BLIND},
    {2, 14, "gemm", SHORTCUT},
    {2, 18, "matmul", SHORTCUT},
    {2, 23, "groupnorm", ZEROS | BLIND},
    {2, 38, "softmax", ZEROS},
    {2, 42, "logsumexp", BLIND | SHORTCUT},
    {2, 44, "globalavgpool", BLIND | SHORTCUT},
    {2, 49, "softmax", BLIND},
    {2, 50, "avgpool", SHORTCUT},
    {2, 51, "globalavgpool", SHORTCUT},
    {2, 66, "dropout", RANDOM},
    {2, 80, "subtract", ZEROS | BLIND},
    {2, 83, "clamp", ZEROS | BLIND},
    {2, 85, "scale", IDENTITY},
    {2, 91, "softmax", BLIND},
    {2, 96, "globalavgpool", SHORTCUT},
    {3, 35, "lstm", RANDOM | BLIND},
    {3, 47, "netvlad", BLIND},
};

static bool mentions(const char *name, const char *word) {
    const size_t n = strlen(word);
    for (; *name; name++) {
        size_t i = 0;
        while (i < n && tolower((unsigned char)name[i]) == word[i]) i++;
        if (i == n) return true;
    }
    return false;
}

void problem_flags(const struct problem *p, struct str *out) {
    int flags = p->level == 4 && p->problem_id > 0 && p->name && strchr(p->name, '-') ? INTEGERS : 0; /* token ids */
    for (size_t i = 0; i < ARRAY_LEN(defects); i++)
        if (defects[i].level == p->level && defects[i].id == p->problem_id && p->name &&
            mentions(p->name, defects[i].word))
            flags |= defects[i].flags;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (flags & 1 << i) str_addf(out, "%s%s", out->len ? " " : "", names[i]);
}
