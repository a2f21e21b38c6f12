/* static_check: what an answer's text shows before it runs: KernelBench's rules and the ways around them, over tokens,
 * so that neither comments nor strings count, and a hash in a string hides nothing. CUDA and C++ inside Python strings
 * is looked at as C++. Advice: behaviour decides what an answer is worth, unless lint=strict was asked for. */
#ifndef KERNELRL_STATIC_CHECK_H
#define KERNELRL_STATIC_CHECK_H

#include "base/str.h"
#include "verify/verify.h"

enum check_severity { CHECK_WARN, CHECK_STRICT };

struct finding {
    const char *rule; /* string constant: "code_bypass" */
    enum check_severity severity;
    int line; /* of the answer, from 1 */
};

enum { CHECK_MAX_FINDINGS = 64 };
struct static_findings {
    struct finding items[CHECK_MAX_FINDINGS];
    int n; /* one per rule and line, the first CHECK_MAX_FINDINGS */
};

/* Looks at an answer of a backend; for c and cuda_native the whole text is C. precision: what the answer was asked to
 * compute in ("fp32": less is a warning). */
void static_check(enum verify_backend backend, const char *precision, const char *source, struct static_findings *out);
/* "code_bypass:12 stream_injection:30", worst first. */
void findings_text(const struct static_findings *f, struct str *out);
/* The first strict finding; NULL. */
const struct finding *findings_strict(const struct static_findings *f);

#endif
