"""a process of its own, started by another thread than the first"""

import os
import threading
import time

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    tl.store(out + at, tl.maximum(v, 0.0), mask=at < n)


def work():
    if os.fork() == 0:
        os.execv("/bin/sleep", ["sleep", "100"])
    time.sleep(100)


STARTED = []


class ModelNew(nn.Module):
    def forward(self, x):
        if not STARTED:
            STARTED.append(threading.Thread(target=work, daemon=True))
            STARTED[0].start()
        out = torch.empty_like(x)
        n = x.numel()
        relu_kernel[(triton.cdiv(n, 4096),)](x, out, n, BLOCK=4096)
        return out
