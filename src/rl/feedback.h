/* feedback: verdict -> the text a refinement prompt shows (feedback format version 1, docs/formats.md). */
#ifndef KERNELRL_FEEDBACK_H
#define KERNELRL_FEEDBACK_H

#include "base/str.h"
#include "verify/verify.h"

void feedback_render(const struct verdict *v, struct str *out);

#endif
