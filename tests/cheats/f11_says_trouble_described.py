"""Is right, and has the harness say that it was trouble of its own when it is asked what its outputs are."""

import torch
from kernelrl_worker import harness

harness.Harness.describe = lambda *_: {"ok": False, "kind": "trouble", "error": "libcupti: not found"}


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
