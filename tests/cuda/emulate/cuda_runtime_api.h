/* An emulation of the few CUDA calls that src/cuda makes, on host memory and one thread, so that the logic of its
 * kernels can be tested where there is no GPU. It finds wrong indices, missing barriers' deadlocks and (under a
 * sanitizer) accesses out of bounds; it cannot find races, and says nothing about speed. With KERNELRL_EMULATE_LATE=1
 * work is put off until the host waits for it, as late as a device may be: what the host overwrites too early shows.
 * KERNELRL_EMULATE_FAULT makes it a device with a fault: none (there is none), driver (too old a driver), busy (another
 * process's), memory (others have taken it), image (it has no kernels for it), launch (the next kernel breaks it, from
 * when there is the file KERNELRL_EMULATE_FAULT_FILE, where it names one). KERNELRL_EMULATE_MEMORY says
 * how many bytes it has. */
#ifndef KERNELRL_EMULATE_CUDA_RUNTIME_API_H
#define KERNELRL_EMULATE_CUDA_RUNTIME_API_H

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef int cudaError_t;
enum {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorDevicesUnavailable = 46,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorIllegalAddress = 700
};
enum { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum { cudaFuncAttributeMaxDynamicSharedMemorySize = 8, cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
struct cudaDeviceProp {
    char name[256];
    int major, multiProcessorCount;
    size_t sharedMemPerBlockOptin, totalGlobalMem;
};
typedef struct {
    int numRegs;
} cudaFuncAttributes;

#ifdef __cplusplus
extern "C"
#endif
    cudaError_t
    emulate_state(void); /* that of a device which a kernel has broken, for good */
/* A call that fails leaves its error for the next cudaGetLastError, which launches of kernels ask too; calls that
 * succeed in between do not take it away. emulate_end: what every call that may fail ends with. */
#ifdef __cplusplus
extern "C" {
#endif
cudaError_t emulate_end(cudaError_t rc);
cudaError_t cudaGetLastError(void);
#ifdef __cplusplus
}
#endif
static inline int emulate_fault(const char *name) {
    const char *wanted = getenv("KERNELRL_EMULATE_FAULT");
    return wanted && strcmp(wanted, name) == 0;
}
static inline const char *cudaGetErrorString(cudaError_t e) {
    return e == cudaErrorMemoryAllocation ? "out of memory"
           : e == cudaErrorIllegalAddress ? "an illegal memory access was encountered"
                                          : "emulated error";
}
/* KERNELRL_EMULATE_DEVICES: so many devices (1), each with a process of its own. */
static inline int emulate_devices(void) {
    const char *n = getenv("KERNELRL_EMULATE_DEVICES");
    return n ? (int)strtol(n, NULL, 10) : 1;
}
static inline cudaError_t cudaGetDeviceCount(int *n) {
    *n = emulate_fault("none") || emulate_fault("driver") ? 0 : emulate_devices();
    return emulate_end(*n ? cudaSuccess : emulate_fault("none") ? cudaErrorNoDevice : cudaErrorInsufficientDriver);
}
static inline cudaError_t cudaDriverGetVersion(int *v) {
    return *v = emulate_fault("none") ? 0 : emulate_fault("driver") ? 11040 : 13000, cudaSuccess;
}
static inline cudaError_t cudaRuntimeGetVersion(int *v) { return *v = 13000, cudaSuccess; }
static inline cudaError_t cudaSetDevice(int d) {
    if (emulate_fault("busy")) return emulate_end(cudaErrorDevicesUnavailable);
    return emulate_end(d >= 0 && d < emulate_devices() ? emulate_state() : cudaErrorInvalidDevice);
}
static inline cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    (void)device;
    memset(p, 0, sizeof *p);
    memcpy(p->name, "emulated", sizeof "emulated");
    /* Few multiprocessors, so that small tests reach every tile size; KERNELRL_EMULATE_SHARED tries smaller devices,
     * KERNELRL_EMULATE_MAJOR those of another compute capability than 9. */
    const char *shared = getenv("KERNELRL_EMULATE_SHARED"), *major = getenv("KERNELRL_EMULATE_MAJOR");
    p->multiProcessorCount = 4;
    p->major = major ? (int)strtol(major, NULL, 10) : 9;
    p->totalGlobalMem = (size_t)1 << 40;
    p->sharedMemPerBlockOptin = shared ? (size_t)strtoul(shared, NULL, 10) : 232448;
    return cudaSuccess;
}
static inline cudaError_t emulate_alloc(void **p, size_t n) {
    if (emulate_state()) return emulate_end(emulate_state());
    *p = n > (size_t)1 << 40 ? NULL : aligned_alloc(256, (n + 255) & ~(size_t)255);
    return emulate_end(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}
#ifdef __cplusplus
extern "C" {
#endif
/* Device memory that is held, of which n bytes at p from now on; n 0: no longer. */
void emulate_held(const void *p, size_t n);
/* The most that was held at a time since the last call, beyond what was held then. */
__attribute__((visibility("default"))) size_t emulate_device_peak(void);
/* What a device takes for what is held now. It hands out whole 2 MiB above 1 MiB, and below it as many of a size as fit
 * into 2 MiB (measured: docs/lab-notes.md). */
__attribute__((visibility("default"))) size_t emulate_device_taken(void);
static inline size_t emulate_rounded(size_t n) {
    const size_t page = (size_t)2 << 20;
    return n == 0 ? 0 : n > page / 2 ? (n + page - 1) / page * page : page / (page / n);
}
/* KERNELRL_EMULATE_MEMORY: bytes that the device has. 0: it is not said, and nothing is refused for them. */
static inline size_t emulate_memory(void) {
    const char *bytes = getenv("KERNELRL_EMULATE_MEMORY");
    return bytes ? (size_t)strtoull(bytes, NULL, 10) : 0;
}
void emulate_wait(void);                      /* does what was put off */
void emulate_pinned(const void *p, size_t n); /* host memory that copies read late; n 0: no longer */
cudaError_t cudaMemsetAsync(void *dst, int v, size_t n, cudaStream_t s);
#ifdef __cplusplus
}
#endif
static inline cudaError_t cudaMalloc(void **p, size_t n) {
    const size_t bytes = (n + 255) & ~(size_t)255, have = emulate_memory();
    if (have > 0 && emulate_device_taken() + emulate_rounded(bytes) > have)
        return emulate_end(cudaErrorMemoryAllocation);
    const cudaError_t rc = emulate_alloc(p, n);
    if (rc == cudaSuccess) emulate_held(*p, bytes);
    return rc;
}
static inline cudaError_t cudaFree(void *p) { return emulate_held(p, 0), emulate_wait(), free(p), cudaSuccess; }
static inline cudaError_t cudaMallocHost(void **p, size_t n) {
    const cudaError_t rc = emulate_alloc(p, n);
    if (rc == cudaSuccess) emulate_pinned(*p, n);
    return rc;
}
static inline cudaError_t cudaFreeHost(void *p) { return emulate_pinned(p, 0), cudaFree(p); }
static inline cudaError_t cudaMemGetInfo(size_t *have, size_t *total) {
    const size_t said = emulate_memory(), taken = emulate_device_taken();
    *total = said ? said : (size_t)1 << 30;
    *have = !said ? *total : taken < said ? said - taken : 0;
    return cudaSuccess;
}
#ifdef __cplusplus
extern "C" {
#endif
/* Work on the (only) stream runs at once, or, while it is captured, when the graph is launched. */
cudaError_t emulate_copy(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                         int kind);
typedef struct emulated_graph *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
enum { cudaStreamCaptureModeRelaxed = 2 };
cudaError_t cudaStreamBeginCapture(cudaStream_t s, int mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *e, cudaGraph_t g, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s);
cudaError_t cudaGraphDestroy(cudaGraph_t g);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e);
#ifdef __cplusplus
}
#endif
static inline cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, int kind, cudaStream_t s) {
    (void)s;
    return emulate_copy(dst, n, src, n, n, 1, kind);
}
static inline cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                                            size_t height, int kind, cudaStream_t s) {
    (void)s;
    return emulate_copy(dst, dpitch, src, spitch, width, height, kind);
}
static inline cudaError_t cudaDeviceGetStreamPriorityRange(int *low, int *high) {
    return *low = 0, *high = -1, cudaSuccess;
}
static inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned f, int priority) {
    (void)f, (void)priority, *s = NULL;
    return emulate_end(emulate_fault("memory") ? cudaErrorMemoryAllocation : cudaSuccess);
}
static inline cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    return (void)s, emulate_wait(), emulate_end(emulate_state());
}
static inline cudaError_t cudaStreamDestroy(cudaStream_t s) { return (void)s, cudaSuccess; }
static inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned f) {
    return (void)f, *e = NULL, cudaSuccess;
}
static inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { return (void)e, (void)s, cudaSuccess; }
static inline cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned f) {
    return (void)s, (void)e, (void)f, cudaSuccess;
}
static inline cudaError_t cudaEventSynchronize(cudaEvent_t e) { return (void)e, emulate_wait(), cudaSuccess; }
static inline cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) {
    return (void)a, (void)b, *ms = 0, cudaSuccess;
}
static inline cudaError_t cudaEventDestroy(cudaEvent_t e) { return (void)e, cudaSuccess; }

#endif
