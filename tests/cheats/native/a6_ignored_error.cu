/* more shared memory than there is; the error is ignored */
__global__ void relu_kernel(const float *x, float *out, long n) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
}

void kernel(const float *x, float *out, cudaStream_t stream) {
    relu_kernel<<<(X_N + 255) / 256, 256, 1 << 22, stream>>>(x, out, X_N);
    cudaGetLastError();
}
