/* limits: what bounds the time of a module on this machine, for prompts and reports. */
#ifndef KERNELRL_OPTIMIZE_LIMITS_H
#define KERNELRL_OPTIMIZE_LIMITS_H

#include "base/err.h"
#include "base/str.h"

struct limits {
    bool known;
    double flops, bytes;             /* of a call; bytes: inputs, parameters and outputs, each once */
    double flops_per_s, bytes_per_s; /* the most of either that the device was seen to do */
};
/* Asks a Python with torch (worker/kernelrl_worker/module_limits.py) about a problem's code. device: "cpu", "cuda:0".
 */
enum status limits_find(const char *code, const char *device, struct limits *out, struct err *e) MUST_USE;

/* The least a call can take, in ms (the roofline of Williams et al. 2009); 0: unknown. */
double limits_least_ms(const struct limits *l);
/* The share of that in a measured time; 0: unknown. */
double limits_share(const struct limits *l, double ms);
/* Appends a sentence or two: what a call reads, writes and computes, how long that takes at least, and by what a call
 * of so many ms is bound. Nothing when the limits are not known. */
void limits_text(const struct limits *l, double ms, struct str *out);

#endif
