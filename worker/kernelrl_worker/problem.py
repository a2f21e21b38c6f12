"""What both kinds of references share: a problem's code, how it is run, and whose fault an error is.

A problem is a Python module in KernelBench's format, with `Model`, `get_inputs()` and `get_init_inputs()`. The model
stays in training mode and runs without gradients, as KernelBench does it.
"""

import copy
import gc
import random
import sys
import traceback

import torch

from kernelrl_worker import tensors
from kernelrl_worker.families import is_float


class ProblemError(Exception):
    """The problem itself, or what it asks for, cannot be used; the message is for its author."""


class NoRoom(Exception):
    """The memory of a GPU is used up. Others use it as well, so this is nobody's fault."""


def lacks_room(error):
    """Whether an error came for want of a GPU's memory, which others use too: no fault of the problem."""
    return any(t in str(error) for t in ("CUDA out of memory", "CUDA_ERROR_OUT_OF_MEMORY", "_STATUS_ALLOC_FAILED"))


def give_back():
    """Returns to the GPU what the allocator keeps for later."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def explain(error, file_name):
    """One line: the exception, and the problem's own line it came from."""
    text = f"{type(error).__name__}: {error}".strip()
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file_name]
    return f"line {lines[-1]}: {text}" if lines else text


def seed_all(seed):
    """Seeds everything that a problem may draw from: PyTorch, Python's random and, where it is loaded, NumPy."""
    random.seed(seed)
    tensors.seed_everything(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def another_seed(seed, index):
    return (seed + index * 0x9E3779B97F4A7C15) % 2**63


def load(code, file_name):
    """The problem's module. It has been executed."""
    module = tensors.load_code(code, "kernelrl_problem", file_name)
    for name in ("Model", "get_inputs"):
        if not hasattr(module, name):
            raise ProblemError(f"defines no {name}")
    return module


def init_inputs(module):
    return module.get_init_inputs() if hasattr(module, "get_init_inputs") else []


def check_list(values):
    """get_inputs() must return a list."""
    if not isinstance(values, (list, tuple)):
        raise ProblemError(f"get_inputs() returns {type(values).__name__}; a list is needed")
    return values


def clones(values):
    return [v.clone() if isinstance(v, torch.Tensor) else v for v in values]


def shaken(value):
    """An input that differs in the last bits of its elements."""
    if not is_float(value):
        return value.clone() if isinstance(value, torch.Tensor) else value
    return value * (1 + (torch.randint(0, 3, value.shape) - 1).to(value) * torch.finfo(value.dtype).eps)


def is_constant(parameter):
    flat = parameter.detach().reshape(-1)
    return parameter.is_floating_point() and flat.numel() > 0 and bool((flat == flat[0]).all())


def touch_constants(module, seed):
    """Changes one element of each parameter that is constant (tensors.touch_constant)."""
    seed_all(seed)
    for parameter in module.parameters():
        if is_constant(parameter):
            tensors.touch_constant(parameter)


def disturb_statistics(module):
    """Moves running statistics away from 0 and 1, since nothing initialises them at random."""
    for name, buffer in module.named_buffers():
        if name.endswith("running_mean"):
            buffer.add_(0.25 * torch.randn(buffer.shape).to(buffer))
        elif name.endswith("running_var"):
            buffer.mul_(1 + 0.5 * torch.rand(buffer.shape).to(buffer))


def restore(tensors_of_model, saved):
    """Puts the contents back that a model's tensors had."""
    with torch.no_grad():
        for t, value in zip(tensors_of_model, saved):
            t.copy_(value)


class Double:
    """A model in float64, made when it is first wanted. It says how far the float32 model is to be trusted."""

    def __init__(self, model):
        self.source = model
        self.model, self.buffers = None, []
        self.lost = False  # true: the model cannot run in float64, because it asks for one type somewhere

    def ready(self):
        """Makes the model where there is none. True: it may be run."""
        if self.model is None and not self.lost:
            try:
                self.model = copy.deepcopy(self.source).double()
                self.buffers = [b.clone() for b in self.model.buffers()]
            except Exception:
                self.give_up()
        return not self.lost

    def give_up(self):
        self.forget()
        self.lost = True

    def forget(self):
        """Drops the model, which can be made again."""
        self.model, self.buffers = None, []

    def bytes(self):
        return sum(t.numel() * t.element_size() for t in self.model.state_dict().values()) if self.model else 0

    def run(self, values, seed, collect):
        """collect(what forward() returns) for these inputs in float64. The model is left as it was."""
        wide = [v.double() if is_float(v) else v.clone() if isinstance(v, torch.Tensor) else v for v in values]
        seed_all(seed)
        try:
            with torch.no_grad():
                return collect(self.model(*wide))
        finally:
            restore(self.model.buffers(), self.buffers)
