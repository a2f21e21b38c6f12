"""Files of `kernelrl optimize`: what is wrong with one is said in one line, with the line's number where it has one."""

import os
import tempfile
import unittest

from kernelrl_worker import module_file

MODULE = """import torch
from torch import nn
class M(nn.Module):
    def forward(self, x):
        return x + torch.ones(3)
"""
WRONG = {
    "a syntax error": ("def f(:", "line 1: "),
    "no module": ("x = 1", "no class that is an nn.Module"),
    "no inputs": (MODULE, r"no get_inputs\(\) and no example_inputs"),
    "a module that does not run": (MODULE + "example_inputs = torch.ones(4)", r"forward\(\): line 5: RuntimeError"),
    "an import that is missing": ("import no_such_thing", "line 1: ModuleNotFoundError"),
    "inputs that are none": (MODULE + "def get_inputs(): return 3", "expected a list of inputs, got int"),
    "shapes that are none": (
        MODULE + "def get_inputs(): return [torch.ones(3)]\nshapes = [3]",
        "shapes: expected a list of dicts",
    ),
    "a constructor that wants more": (
        "import torch\nclass M(torch.nn.Module):\n    def __init__(self, n): super().__init__()\n"
        "def get_inputs(): return []",
        "the module cannot be made: .*TypeError",
    ),
}


class Files(unittest.TestCase):
    def describe(self, text, wanted=None):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "file.py")
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
            return module_file.describe(path, wanted)

    def test_what_is_wrong(self):
        for name, (text, said) in WRONG.items():
            with self.subTest(name), self.assertRaisesRegex(module_file.Wrong, said):
                self.describe(text)

    def test_a_class_that_is_not_there(self):
        with self.assertRaisesRegex(module_file.Wrong, "no class Other.* there is M"):
            self.describe(MODULE + "example_inputs = torch.ones(3)", "Other")

    def test_one_that_is_right(self):
        found = self.describe(MODULE + "example_inputs = torch.ones(3)")
        self.assertEqual(found["module"], "M")
        self.assertEqual([(s["label"], s["weight"]) for s in found["shapes"]], [("", 1.0)])
        self.assertIn("class Model(M):", found["shapes"][0]["code"])
