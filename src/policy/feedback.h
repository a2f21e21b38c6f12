/* feedback: verdict -> the text a refinement prompt shows (docs/formats.md). */
#ifndef KERNELRL_POLICY_FEEDBACK_H
#define KERNELRL_POLICY_FEEDBACK_H

#include "base/str.h"
#include "policy/prompt.h"
#include "verify/verify.h"

/* Version 1: the outcome in a line, then details. */
void feedback_render(const struct verdict *v, struct str *out);

/* What went wrong, in the order of how far the answer got. */
enum feedback_category {
    FEEDBACK_FORMAT,
    FEEDBACK_COMPILE,
    FEEDBACK_RUNTIME,
    FEEDBACK_WRONG,
    FEEDBACK_FORBIDDEN,
    FEEDBACK_SLOW, /* correct, slower than PyTorch */
    FEEDBACK_GOOD,
};
enum feedback_category feedback_category(const struct verdict *v);

/* Version 2: status, compiled or not, tests passed, speed, cleaned details in a fence, advice for the category and the
 * backend. */
void feedback_render_full(const struct verdict *v, const struct backend_info *backend, struct str *out);

#endif
