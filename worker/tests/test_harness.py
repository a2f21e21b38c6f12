"""What the harness does with an answer ahead of its turn, with a stand-in for Triton that counts what is compiled and
what is launched; and how it waits for and records calls, with a stand-in for a device."""

import sys
import tempfile
import types
import unittest
from unittest import mock

import torch
from torch.utils import cpp_extension

from kernelrl_worker import build, harness, tensors, zygote

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
LAUNCH = "kernel[(triton.cdiv(x.numel(), 64),)](x, self.weight, out, x.numel(), BLOCK=64)"
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


def stand_in(jit):
    """The modules of a Triton with this class of kernels."""
    names = ("triton", "triton.language", "triton.runtime", "triton.runtime.jit")
    modules = {name: types.ModuleType(name) for name in names}
    modules["triton"].jit = jit
    modules["triton"].cdiv = lambda a, b: -(-a // b)
    modules["triton"].language = modules["triton.language"]
    modules["triton.language"].constexpr = int
    modules["triton.runtime.jit"].JITFunction = jit
    return modules


class WithAnswer(unittest.TestCase):
    jit = JITFunction

    @classmethod
    def setUpClass(cls):
        # PyTorch's own imports find the real Triton here, or none: they want more of it than the stand-in has.
        cls.prepared = zygote.Zygote.__new__(zygote.Zygote).handle({"op": "prepare", "step": 1}, None)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        ours = ("kernelrl_worker.warmup", "answer")
        modules = {name: module for name, module in sys.modules.items() if name not in ours}
        patches = [
            mock.patch.dict(sys.modules, modules, clear=True),
            mock.patch.dict(sys.modules, stand_in(self.jit)),
            mock.patch.multiple(build.Builds, asked=0, allowed=True),
        ]
        for patch in patches:
            patch.start()
            self.addCleanup(patch.stop)
        import kernelrl_worker

        vars(kernelrl_worker).pop("warmup", None)
        compiled.clear()
        launched.clear()
        x = {"name": "x", "shape": [6, 8], "stride": [8, 1], "dtype": "float32"}
        self.request = {"op": "rehearse", "inputs": [x], "values": tensors.pack([None, 2.0]), "init": tensors.pack([8])}

    def load(self, text):
        h = harness.Harness(None, {"device": "cpu", "folder": self.folder})
        with open(h.path, "w", encoding="utf-8") as f:
            f.write(text)
        h.dtype = torch.float32
        h.cls = tensors.load_file(h.path, "answer").ModelNew
        return h

    def rehearse(self, text):
        return self.load(text).handle(self.request)


class Rehearsal(WithAnswer):
    def test_preparing_says_nothing(self):
        self.assertEqual(self.prepared, {})

    def test_kernels_are_compiled_and_not_launched(self):
        h = self.load(ANSWER)
        mine = sys.modules["answer"]
        self.assertEqual(h.handle(self.request), {"ok": True})
        self.assertEqual((len(compiled), len(launched)), (1, 0))
        module, name, arguments, options = compiled[0]
        self.assertEqual((module, name, options), ("answer", "kernel", {"BLOCK": 64}))
        self.assertEqual([tuple(a) if isinstance(a, torch.Size) else a for a in arguments], [(6, 8), (8,), (6, 8), 48])
        self.assertIs(sys.modules["answer"], mine)
        self.assertEqual(mine.calls, [])
        for times in (1, 2):
            with torch.no_grad():
                out = h.cls(8)(torch.full((6, 8), 3.0), 2.0)
            self.assertEqual(len(launched), times)
            self.assertTrue(bool((out == 6).all()))

    def test_what_is_wrong_is_left_to_the_call(self):
        for wrong in (
            ANSWER.replace("torch.empty_like(x)", "nothing"),
            ANSWER.replace("calls.append", "import os; os.nothing"),
        ):
            self.assertEqual(self.rehearse(wrong), {"ok": True})

    def test_answers_that_tune_or_call_the_driver_wait(self):
        for word in ("autotune", "ctypes"):
            self.assertEqual(self.rehearse(f"{ANSWER}# {word}"), {"ok": True})
        self.assertEqual(compiled, [])

    def test_nothing_is_asked_of_the_verifier_meanwhile(self):
        said = []
        with mock.patch.multiple(cpp_extension, load_inline=None, load=None):
            build.intercept(types.SimpleNamespace(send=said.append))
            text = ANSWER.replace(
                "        super().__init__()\n", "        super().__init__()\n        load_inline('x', '')\n"
            )
            text = text.replace(
                "import torch, triton", "import torch, triton\nfrom torch.utils.cpp_extension import load_inline"
            )
            self.assertEqual(self.rehearse(text), {"ok": True})
        self.assertEqual((said, compiled), ([], []))
        self.assertTrue(build.Builds.allowed)
        build.Builds.asked = 1  # an answer that has had an extension compiled waits
        self.assertEqual(self.rehearse(ANSWER), {"ok": True})
        self.assertEqual(compiled, [])
        build.Builds.asked = 0
        self.assertEqual(self.rehearse(ANSWER), {"ok": True})
        self.assertEqual(len(compiled), 1)


class OtherTriton(WithAnswer):
    jit = Other

    def test_nothing_is_done_with_a_triton_that_would_launch(self):
        self.assertEqual(self.rehearse(ANSWER), {"ok": True})
        self.assertLessEqual(len(launched), 1)
        self.assertEqual(sys.modules["answer"].calls, [])


class Calls(WithAnswer):
    def setUp(self):
        super().setUp()
        self.waits = []
        self.harness = h = self.load(ANSWER.replace(LAUNCH, "out.zero_()"))
        h.gpu, h.tick = True, torch.zeros(1)
        h.cuda = types.SimpleNamespace(synchronize=lambda: self.waits.append(1))
        h.models, h.inputs = {0: h.cls(8)}, {slot: (torch.ones(6, 8), 2.0) for slot in range(3)}

    def test_calls_are_waited_for_together_or_one_by_one(self):
        for apart, wanted in ((False, 2), (True, 5)):
            self.waits.clear()
            reply = self.harness.handle({"op": "call", "param_set": 0, "slots": [0, 1, 2], "nonce": 7, "apart": apart})
            self.assertTrue(reply["ok"])
            self.assertEqual((reply["nonce"], len(reply["pointers"]), len(self.waits)), (7, 3, wanted))

    def test_a_recording_names_kernels_and_other_streams(self):
        ours = ("add", 0, 1, 7)
        for records, kernels, elsewhere in (
            ([], [], False),
            ([ours], [], False),
            ([ours, ("a", 2, 5, 7), ("b", 5, 6, 7), ("a", 6, 8, 7)], [["a", 2, 5], ["b", 1, 1]], False),
            ([ours, ("a", 2, 5, 7), (None, 5, 6, 9)], [["a", 1, 3]], True),
            ([("a", 0, 1, 9), ours], [["add", 1, 1]], True),
        ):
            trace = types.SimpleNamespace(stop=lambda records=records: records)
            with mock.patch.object(harness.cupti, "Trace", lambda trace=trace: trace):
                self.assertEqual(self.harness.handle({"op": "record", "on": True}), {"ok": True})
                told = self.harness.handle({"op": "record", "on": False})
            self.assertEqual((told["kernels"], told["elsewhere"]), (kernels, elsewhere))


class Failures(unittest.TestCase):
    def test_which_outcome_an_exception_stands_for(self):
        for text in (
            "CUDA error: out of memory",
            "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY",
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED",
        ):
            self.assertEqual(build.kind_of(RuntimeError(text), "runtime"), "memory")
        self.assertEqual(build.kind_of(build.BuildError("nvcc: out of memory"), "runtime"), "compile")
        self.assertEqual(build.kind_of(SyntaxError("x"), "runtime"), "compile")
        self.assertEqual(build.kind_of(ValueError("x"), "runtime"), "runtime")

    def test_an_explanation_can_be_sent(self):
        self.assertEqual(harness.explain(ValueError("a\0b\udc80")), "ValueError: a?b?")


if __name__ == "__main__":
    unittest.main()
