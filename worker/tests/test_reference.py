"""Problems as answers in C meet them: the interface, and input sets in shared memory."""

import mmap
import os
import types
import unittest

import torch
from kernelrl_worker import problem, reference, tensors
from kernelrl_worker.service import Service

CODE = """import torch, torch.nn as nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_buffer("count", torch.zeros(1))
    def forward(self, x, factor):
        self.count += 1
        return self.linear(x) * factor
def get_inputs():
    return [torch.rand(16, 8), 2.0]
def get_init_inputs():
    return []
"""
ALIGN = 64


def layout_of(args, sets):
    """Places as the verifier chooses them: parameters, then for each set inputs and outputs."""
    sizes = {"f32": 4, "f16": 2, "bf16": 2, "i64": 8, "bool": 1}

    def places(wanted):
        at, offsets = 0, []
        for arg in args:
            if not wanted(arg):
                offsets.append(-1)
                continue
            offsets.append(at)
            size = 8 if arg.get("scalar") else torch.Size(arg["shape"]).numel() * sizes[arg["type"]]
            at += (size + ALIGN - 1) // ALIGN * ALIGN
        return offsets, at

    inputs, input_stride = places(lambda a: a["role"] == "input")
    params, param_stride = places(lambda a: a["role"] in ("param", "buffer"))
    outputs, output_stride = places(lambda a: a["role"] == "output" or a.get("mutated"))
    layout = {
        "param_base": 0,
        "param_stride": param_stride,
        "set_base": 2 * param_stride,
        "set_stride": input_stride + output_stride,
        "input_stride": input_stride,
        "input": inputs,
        "param": params,
        "output": outputs,
    }
    return layout, 2 * param_stride + sets * (input_stride + output_stride)


class Sets(unittest.TestCase):
    def setUp(self):
        self.service = Service()
        self.args = self.ask(op="load", code=CODE, param_seeds=[1, 2], touched=False)["spec"]["args"]
        self.layout, size = layout_of(self.args, 3)
        fd = os.memfd_create("sets")
        os.ftruncate(fd, size)
        self.mine = tensors.Memory(0, size, "cpu", mmap.mmap(fd, size))
        self.fd = fd
        reply = self.ask(op="attach", bytes=size, layout=self.layout, families=True, seed=7)
        self.assertEqual(reply, {"blind": False})

    def ask(self, **request):
        channel = types.SimpleNamespace(take_fd=lambda: self.fd)
        return self.service.handle(dict(request, problem=1), channel)

    def fill(self, index, family, seed, param_set):
        one = {"set": index, "family": family, "seed": seed, "param_set": param_set}
        return self.ask(op="fill", sets=[one], noise=True)["sets"][0]

    def array(self, index, kind, which):
        arg = self.args[which]
        base = self.layout["set_base"] + index * self.layout["set_stride"]
        base += self.layout["input_stride"] if kind == "output" else 0
        return self.mine.array(base + self.layout[kind][which], arg["shape"], tensors.SPEC_TYPES[arg["type"]])

    def params(self, param_set):
        base = param_set * self.layout["param_stride"]
        named = {a["name"]: (a, o) for a, o in zip(self.args, self.layout["param"]) if o >= 0}
        return {n: self.mine.array(base + o, a["shape"], torch.float32) for n, (a, o) in named.items()}

    def test_the_interface(self):
        told = [(a["name"], a["role"], a.get("scalar", False), a.get("mutated", False)) for a in self.args]
        self.assertEqual(
            told,
            [
                ("x", "input", False, False),
                ("factor", "input", True, False),
                ("linear.weight", "param", False, False),
                ("linear.bias", "param", False, False),
                ("count", "buffer", False, True),
                ("out", "output", False, False),
            ],
        )

    def test_a_set_has_inputs_and_what_the_model_makes_of_them(self):
        for index, (family, param_set) in enumerate((("shipped", 0), ("signed", 1), ("touched", 0))):
            said = self.fill(index, family, 11, param_set)
            self.assertTrue(said["finite"])
            x, out = self.array(index, "input", 0), self.array(index, "output", 5)
            params = self.params(param_set)
            want = torch.nn.functional.linear(x, params["linear.weight"], params["linear.bias"]) * 2
            self.assertLess(float((out - want).abs().max()), 1e-4 * float(want.abs().max()))
            self.assertEqual(float(self.array(index, "output", 4)), 1.0)  # the buffer that a forward changes
            self.assertEqual(len(said["limits"]), 2)
            self.fill(index, family, 12, param_set)
            other = x.clone()
            for seed, same in ((11, False), (12, True)):
                self.fill(index, family, seed, param_set)
                self.assertEqual(torch.equal(x, other), same)
        self.assertTrue(bool((self.array(1, "input", 0) < 0).any()))
        a, b = self.params(0), self.params(1)
        self.assertFalse(any(torch.equal(a[n], b[n]) for n in ("linear.weight", "linear.bias")))

    def test_eager_pytorch_is_timed_on_sets(self):
        for index in range(2):
            self.fill(index, "shipped", 20 + index, 0)
        for turn in (0, 1):
            self.assertGreater(self.ask(op="time", sets=[0, 1, 0], round=turn)["seconds"], 0)
        one = self.service.problems[1]
        self.assertEqual(len(one.copies), 3)
        self.assertEqual(float(list(one.models[0].buffers())[0]), 0.0)
        self.ask(op="drop")
        self.assertEqual(one.copies, [])

    def test_an_unknown_request_is_a_fault_of_ours(self):
        with self.assertRaises(ValueError):
            self.ask(op="dance")


class Refused(unittest.TestCase):
    def test_a_problem_that_cannot_be_used_says_why(self):
        for old, new, message in (
            ("* factor", "* factor * torch.rand(())", "forward.. is random"),
            ("2.0]", "'x']", "an input of type str is not supported"),
            ("return self.linear(x) * factor", "return {}", "forward.. returns dict"),
            ("torch.rand(16, 8)", "torch.rand(16, 8, dtype=torch.complex64)", "tensors of type torch.complex64"),
            ("nn.Linear(8, 4)", "nn.Linear(9, 4)", "line 9: RuntimeError"),
        ):
            self.assertIn(old, CODE)
            with self.assertRaisesRegex(problem.ProblemError, message):
                reference.Problem(CODE.replace(old, new), [1, 2])

    def test_one_element_of_a_constant_parameter_is_touched(self):
        code = CODE.replace("nn.Linear(8, 4)", "nn.LayerNorm(8)")
        for touched, others in ((True, 1), (False, 0)):
            norm = reference.Problem(code, [1, 2], touched).models[0].linear
            self.assertEqual((int((norm.weight != 1).sum()), int((norm.bias != 0).sum())), (others, others))


if __name__ == "__main__":
    unittest.main()
