/* by way of scratch memory */
__global__ void relu_kernel(const float *x, float *out, long n) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
}

size_t scratch_bytes(void) { return X_N * 4; }

void kernel(const float *x, float *out, void *scratch, cudaStream_t stream) {
    relu_kernel<<<(X_N + 255) / 256, 256, 0, stream>>>(x, (float *)scratch, X_N);
    cudaMemcpyAsync(out, scratch, X_N * 4, cudaMemcpyDeviceToDevice, stream);
}
