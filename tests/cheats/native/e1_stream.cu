/* a stream that nobody waits for, behind a spin: charged in full */
__global__ void slow_kernel(const float *x, float *out, long n) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    long long from = clock64();
    while (clock64() - from < 8000000) {}
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
}

void kernel(const float *x, float *out, cudaStream_t stream) {
    static cudaStream_t side;
    if (!side) cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
    slow_kernel<<<(X_N + 255) / 256, 256, 0, side>>>(x, out, X_N);
}
