"""another stream that nobody waits for: charged in full"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    tl.store(out + at, tl.maximum(v, 0.0), mask=at < n)


@triton.jit
def slow_kernel(x, out, n, times, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    for _ in range(times):
        v = tl.sin(v) + 0.5
    tl.store(out + at, v, mask=at < n)


SIDE = torch.cuda.Stream()


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        n = x.numel()
        with torch.cuda.stream(SIDE):
            slow_kernel[(triton.cdiv(n, 4096),)](x, out, n, 20000, BLOCK=4096)
            relu_kernel[(triton.cdiv(n, 4096),)](x, out, n, BLOCK=4096)
        return out
