"""Fails when it is called, and has the harness say that it was trouble of its own."""

import torch
from kernelrl_worker import build


class ModelNew(torch.nn.Module):
    def forward(self, x):
        build.kind_of = lambda *_: "trouble"
        raise RuntimeError("cuptiActivityRegisterCallbacks: error 15")
