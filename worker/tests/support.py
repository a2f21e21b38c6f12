"""What the tests share: cases made of a problem's text, and lanes of memory for them."""

import mmap

from kernelrl_worker import case, tensors

DOUBLES_INPUT = """import torch, torch.nn as nn
class Model(nn.Module):
    def forward(self, a):
        return a * 2
def get_init_inputs():
    return []
def get_inputs():
    return [torch.rand(%s)]
"""


def case_of(code, precision="fp32"):
    """A problem as the referee knows it, on the CPU."""
    request = {"device": "cpu", "precision": precision, "cpu_inputs": False, "code": code, "init_seeds": [1, 2]}
    return case.Case(request | {"constants": tensors.PLAIN})


def add_lane(case, lane, slots):
    """Gives a case memory of its own for so many sets of inputs."""
    size = slots * case.inputs_layout.bytes
    memory = tensors.Memory(0, size, "cpu", mmap.mmap(-1, size))
    memory.slot_base, memory.slot_stride = 0, case.inputs_layout.bytes
    case.lanes[lane] = memory


def a_set(family="shipped", seed=3, slot=0, param_set=0):
    return {"family": family, "seed": seed, "param_set": param_set, "slot": slot, "forward_seed": 4}
