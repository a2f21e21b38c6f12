"""Has the harness say that there was no memory when it is started."""

import torch
from kernelrl_worker import harness


def attach(*_):
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory")


harness.Harness.attach = attach


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
