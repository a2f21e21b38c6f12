"""tests/triton_answers.py DIR: runs the Triton answers of `kernelrl problems generate --answers --backend triton --out
DIR` without Triton and without a GPU, and compares each with its module. Prints "N answers, N wrong" and the wrong
ones.

Triton is replaced by a stand-in of the few functions that the generator's kernels use: a kernel runs once, its program
id is a column of all programs, so that every value is a matrix of (programs, block). It finds wrong arithmetic, indices
and masks; it does not say that Triton compiles the text."""

import json
import sys
import types

import torch


class Pointer:
    def __init__(self, flat, at=0):
        self.flat, self.at = flat, at

    def __add__(self, at):
        return Pointer(self.flat, self.at + at)


def load(p, mask=None, other=None):
    at = torch.as_tensor(p.at)
    if mask is not None:
        at, mask = torch.broadcast_tensors(at, mask)
        at = torch.where(mask, at, torch.zeros_like(at))
    if at.min() < 0 or at.max() >= p.flat.numel():
        raise IndexError(f"load at {int(at.min())} to {int(at.max())} of {p.flat.numel()}")
    v = p.flat[at]
    if mask is not None:  # what a masked element holds is unknown, unless the answer says what
        fill = other if other is not None else float("nan") if v.is_floating_point() else 1 << 40
        v = torch.where(mask, v, torch.as_tensor(fill, dtype=v.dtype))
    return v


def store(p, v, mask=None):
    at = torch.as_tensor(p.at)
    v = torch.as_tensor(v)
    if mask is None:
        mask = torch.ones_like(at, dtype=torch.bool)
    at, v, mask = torch.broadcast_tensors(at, v, mask)
    at, v = at[mask], v[mask]
    if at.min() < 0 or at.max() >= p.flat.numel():
        raise IndexError(f"store at {int(at.min())} to {int(at.max())} of {p.flat.numel()}")
    if at.unique().numel() != at.numel():
        raise IndexError("an element is stored twice")
    p.flat[at] = v.to(p.flat.dtype)


def scalar(f):  # Triton takes numbers where torch wants tensors
    return lambda *a: f(*[torch.as_tensor(x) for x in a])


class Kernel:
    def __init__(self, f):
        self.f = f

    def __getitem__(self, grid):
        def launch(*args, BLOCK):
            if BLOCK & (BLOCK - 1):
                raise ValueError(f"BLOCK={BLOCK}: not a power of two")
            self.grid = grid
            programs[0] = torch.arange(grid[0]).view(-1, 1)
            args = [Pointer(x.view(-1)) if isinstance(x, torch.Tensor) else x for x in args]
            self.f(*args, BLOCK=BLOCK)

        return launch


programs = [None]
tl = types.ModuleType("triton.language")
tl.constexpr, tl.float32 = int, torch.float32
tl.program_id = lambda axis: programs[axis]
tl.arange = lambda a, b: torch.arange(a, b).view(1, -1)
tl.load, tl.store = load, store
tl.where = scalar(torch.where)
tl.maximum, tl.minimum = scalar(torch.maximum), scalar(torch.minimum)
tl.exp, tl.log, tl.abs, tl.sqrt, tl.rsqrt = torch.exp, torch.log, torch.abs, torch.sqrt, torch.rsqrt
tl.sigmoid, tl.erf = torch.sigmoid, torch.erf
tl.sum = lambda v, axis: v.sum(dim=-1, keepdim=True)
tl.max = lambda v, axis: v.amax(dim=-1, keepdim=True)
tl.min = lambda v, axis: v.amin(dim=-1, keepdim=True)
tl.argmax = lambda v, axis: v.argmax(dim=-1, keepdim=True)
tl.cumsum = lambda v, axis: v.cumsum(dim=-1)
tl.zeros = lambda shape, dtype: torch.zeros(shape, dtype=dtype).view(1, -1)
tl.full = lambda shape, value, dtype: torch.full(shape, value, dtype=dtype).view(1, -1)
triton = types.ModuleType("triton")
triton.jit, triton.language = Kernel, tl
triton.cdiv = lambda a, b: -(-a // b)
triton.next_power_of_2 = lambda n: 1 << (n - 1).bit_length()
sys.modules["triton"], sys.modules["triton.language"] = triton, tl


def main(folder):
    codes = {}
    for line in open(f"{folder}/problems.jsonl"):
        row = json.loads(line)
        codes[row["key"]] = row["code"]
    total = wrong = 0
    for line in open(f"{folder}/answers.jsonl"):
        row = json.loads(line)
        total += 1
        module, answer = {}, {}
        try:
            exec(codes[row["key"]], module)
            exec(row["source"], answer)
            init = module["get_init_inputs"]()
            torch.manual_seed(1)
            inputs = module["get_inputs"]()
            inputs = [x * 2 - 0.7 if x.is_floating_point() else x for x in inputs]
            models = []
            for cls in (module["Model"], answer["ModelNew"]):
                torch.manual_seed(2)
                m = cls(*init)
                with torch.no_grad():
                    for p in m.parameters():
                        p.add_(torch.rand_like(p))
                models.append(m)
            with torch.no_grad():
                want, got = models[0](*inputs), models[1](*inputs)
            if want.shape != got.shape or want.dtype != got.dtype:
                raise ValueError(f"{tuple(got.shape)} {got.dtype}, expected {tuple(want.shape)} {want.dtype}")
            error = (got.double() - want.double()).abs().max() / want.double().abs().max().clamp(min=1e-6)
            if not error < 1e-4:
                raise ValueError(f"error {float(error):.3g} of the largest output")
        except Exception as e:  # whatever an answer does is its verdict
            wrong += 1
            print(f"{row['key']} ({row['style']}): {type(e).__name__}: {e}\n{codes[row['key']]}\n{row['source']}")
    print(f"{total} answers, {wrong} wrong")
    return 1 if wrong or not total else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
