/* hardware: what a worker judges on. A class names the kind of it: "cpu-<processor>-x<processors>" or "cuda-<GPU>", in
 * lower case. Times and ratios are compared within a class only. */
#ifndef KERNELRL_VERIFY_POOL_HARDWARE_H
#define KERNELRL_VERIFY_POOL_HARDWARE_H

#include "base/base.h"

enum { CLASS_BYTES = 80, GPUS_MAX = 64, GPU_ID_BYTES = 64, HOST_NAME_BYTES = 80 };

void hardware_cpu_class(char out[CLASS_BYTES]);
/* "cuda-nvidia-h200" of "NVIDIA H200". */
void hardware_gpu_class(const char *model, char out[CLASS_BYTES]);
/* Letters, digits and single hyphens of a text, in lower case: what a class, a host and a subject of a queue may hold.
 */
void hardware_slug(const char *text, char *out, size_t size);

struct gpu_device {
    int index; /* as the driver counts */
    char model[64], uuid[GPU_ID_BYTES];
};
/* The GPUs that CUDA_VISIBLE_DEVICES leaves this process, as the driver's management library tells them; 0 where there
 * is no driver. */
int hardware_gpus(struct gpu_device out[GPUS_MAX]);
/* The present clock of a GPU's multiprocessors in MHz; NaN: unknown. */
double hardware_sm_mhz(const char *uuid);

/* This machine's name, as a slug. */
void hardware_host(char out[HOST_NAME_BYTES]);

#endif
