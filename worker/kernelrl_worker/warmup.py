"""A Triton kernel that is compiled in front of an answer's own: the first one takes a second longer than any other."""

import torch
import triton
import triton.language as tl


@triton.jit
def kernelrl_touch(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    tl.store(x + at, v + 1.0, mask=at < n)


def touch(device):
    x = torch.zeros(128, device=device)
    kernelrl_touch[(1,)](x, 128, BLOCK=128)
    torch.cuda.synchronize()
