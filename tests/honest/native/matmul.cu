/* a product, one thread an element */
__global__ void product_kernel(const float *a, const float *b, float *out) {
    long i = blockIdx.y, j = blockIdx.x * (long)blockDim.x + threadIdx.x;
    float sum = 0;
    for (long k = 0; k < A_D1; k++) sum += a[i * A_D1 + k] * b[k * B_D1 + j];
    if (j < B_D1) out[i * B_D1 + j] = sum;
}

void kernel(const float *a, const float *b, float *out, cudaStream_t stream) {
    product_kernel<<<dim3((B_D1 + 127) / 128, A_D0), 128, 0, stream>>>(a, b, out);
}
