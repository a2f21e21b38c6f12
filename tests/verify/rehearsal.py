#!/usr/bin/env python3
"""tests/verify/rehearsal.py: what worker/kernelrl_worker/harness.py does with an answer ahead of its turn, with a stand-in for
Triton that counts what is compiled and what is launched, and how it waits for and records calls, with one for a device.
Needs torch, no GPU. Prints "ok" or what is wrong."""
import os
import sys
import tempfile
import types

HOME = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(HOME, "worker"))
compiled, launched = [], []


class JITFunction:
    """As Triton's: kernel[grid](...) is run(grid=grid, warmup=False, ...)."""

    def __init__(self, fn):
        self.fn = fn

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

    def run(self, *args, grid, warmup, **kwargs):
        key = (self.fn.__module__, self.fn.__name__, [getattr(a, "shape", a) for a in args], kwargs)
        compiled.append(key)
        if not warmup:
            launched.append(key)
            self.fn(*args)


class Other(JITFunction):
    """A Triton whose kernels are not run by that method."""

    def __getitem__(self, grid):
        return lambda *args, **kwargs: launched.append(args)


def install(jit):
    triton = types.ModuleType("triton")
    triton.jit = jit
    triton.cdiv = lambda a, b: -(-a // b)
    for name in ("triton.language", "triton.runtime", "triton.runtime.jit"):
        sys.modules[name] = types.ModuleType(name)
    triton.language = sys.modules["triton.language"]
    triton.language.constexpr = int
    sys.modules["triton.runtime.jit"].JITFunction = jit
    sys.modules["triton"] = triton


import torch  # noqa: E402

from kernelrl_worker import build, harness, tensors, zygote  # noqa: E402

# As before an answer of the verifier's. PyTorch's own imports find the real Triton here, or none: they want more of it than
# the stand-in has.
prepared = zygote.Zygote.__new__(zygote.Zygote).handle({"op": "prepare", "step": 1}, None)
install(JITFunction)
from kernelrl_worker import warmup  # noqa: E402

ANSWER = """
import torch, triton
calls = []
@triton.jit
def kernel(x, w, out, n):
    out.copy_(x * w)
class ModelNew(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(n))
    def forward(self, x, factor):
        calls.append(x.device.type)
        out = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 64),)](x, self.weight, out, x.numel(), BLOCK=64)
        return out * factor
"""


def check(good, what):
    if not good:
        print(f"not {what}: compiled {compiled}, launched {launched}")
        sys.exit(1)


def load(text):
    with open(harness.ANSWER, "w") as f:
        f.write(text)
    h = harness.Harness(None, {"device": "cpu"})
    h.dtype = torch.float32
    h.cls = tensors.load_file(harness.ANSWER, "answer").ModelNew
    return h


with tempfile.TemporaryDirectory() as folder:
    harness.ANSWER = os.path.join(folder, "answer.py")
    x = {"name": "x", "shape": [6, 8], "stride": [8, 1], "dtype": "float32"}
    request = {"op": "rehearse", "inputs": [x], "values": tensors.pack([None, 2.0]), "init": tensors.pack([8])}
    h = load(ANSWER)
    mine = sys.modules["answer"]
    check(h.handle(request) == {"ok": True}, "a reply")
    check(len(compiled) == 1 and not launched, "compiled without a launch")
    module, name, arguments, options = compiled[0]
    check((module, name) == ("answer", "kernel") and options == {"BLOCK": 64}, "the answer's kernel")
    check([tuple(a) if isinstance(a, torch.Size) else a for a in arguments] == [(6, 8), (8,), (6, 8), 48], "its arguments")
    check(sys.modules["answer"] is mine and mine.calls == [], "the answer's own module untouched")
    with torch.no_grad():
        out = h.cls(8)(torch.full((6, 8), 3.0), 2.0)
    check(len(launched) == 1 and bool((out == 6).all()) and mine.calls == ["cpu"], "launched when it is called")
    for wrong in (ANSWER.replace("torch.empty_like(x)", "nothing"), ANSWER.replace("calls.append", "import os; os.nothing")):
        check(load(wrong).handle(request) == {"ok": True}, "silent about what is wrong with it")
    before = len(compiled)
    for word in ("autotune", "ctypes"):
        load(f"{ANSWER}# {word}").handle(request)
        check(len(compiled) == before, f"left to its turn with {word}")
    with torch.no_grad():
        h.cls(8)(torch.ones(6, 8), 2.0)
    check(len(launched) == 2, "kernels run again afterwards")
    # The verifier waits for the reply: nothing may be compiled by it meanwhile, and what it has compiled may launch.
    said = []
    build.intercept(types.SimpleNamespace(send=said.append))
    compiles = ANSWER.replace("        super().__init__()\n", "        super().__init__()\n        load_inline('x', '')\n")
    compiles = compiles.replace("import torch, triton", "import torch, triton\nfrom torch.utils.cpp_extension import load_inline")
    before = len(compiled)
    check(load(compiles).handle(request) == {"ok": True} and not said, "silent where an extension is compiled")
    build.Builds.asked = 1
    check(load(ANSWER).handle(request) == {"ok": True} and len(compiled) == before, "left to its turn with an extension")
    build.Builds.asked = 0
    check(load(ANSWER).handle(request) == {"ok": True} and len(compiled) == before + 1, "allowed again afterwards")
    check(build.Builds.allowed, "open for compilers afterwards")
    # Calls that are recorded, and waited for one by one, on a device that does nothing.
    waits = []
    h = load(ANSWER.replace("kernel[(triton.cdiv(x.numel(), 64),)](x, self.weight, out, x.numel(), BLOCK=64)", "out.zero_()"))
    h.gpu, h.tick, h.cuda = True, torch.zeros(1), types.SimpleNamespace(synchronize=lambda: waits.append(1))
    h.models, h.inputs = {0: h.cls(8)}, {slot: (torch.ones(6, 8), 2.0) for slot in range(3)}
    for apart, wanted in ((False, 2), (True, 5)):
        waits.clear()
        reply = h.handle({"op": "call", "param_set": 0, "slots": [0, 1, 2], "nonce": 7, "apart": apart})
        check(reply["ok"] and reply["nonce"] == 7 and len(reply["pointers"]) == 3 and len(waits) == wanted, "waited for")
    ours = ("add", 0, 1, 7)
    for records, kernels, elsewhere in (
        ([], [], False),
        ([ours], [], False),
        ([ours, ("a", 2, 5, 7), ("b", 5, 6, 7), ("a", 6, 8, 7)], [["a", 2, 5], ["b", 1, 1]], False),
        ([ours, ("a", 2, 5, 7), (None, 5, 6, 9)], [["a", 1, 3]], True),
        ([("a", 0, 1, 9), ours], [["add", 1, 1]], True),
    ):
        harness.cupti.Trace = lambda: types.SimpleNamespace(stop=lambda: records)
        check(h.handle({"op": "record", "on": True}) == {"ok": True}, "recording")
        told = h.handle({"op": "record", "on": False})
        check(told["kernels"] == kernels and told["elsewhere"] is elsewhere, f"what {records} are")
    # With a Triton that would launch them nothing is done.
    install(Other)
    warmup.JITFunction = Other
    compiled.clear(), launched.clear()
    h = load(ANSWER)
    check(h.handle(request) == {"ok": True} and len(launched) <= 1 and sys.modules["answer"].calls == [], "left alone")
check(prepared == {}, "prepared")
for text in ("CUDA error: out of memory", "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED"):
    check(build.kind_of(RuntimeError(text), "runtime") == "memory", f"memory: {text}")
print("ok")
