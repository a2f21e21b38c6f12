#!/usr/bin/env python3
"""Wrong mutants of right answers, as a folder of generations that `kernelrl verify --run-dir` judges.

usage: mutate.py PROBLEMS OUT: for each PROBLEMS/*.py the reference, renamed, is the right answer. Its expressions are
changed one at a time (operators, constants, arguments, calls left out), and so is what it returns (one element, a row,
a factor, fewer bits). A mutant counts only when it is witnessed wrong: in float64, on some inputs near those of the
problem, its output is off by more than a thousandth of the output's scale. OUT/level1 gets the problems, OUT/run the
mutants, OUT/mutants.tsv what was done to each.
"""

import ast
import copy
import os
import shutil
import sys

import torch

THRESHOLD = 1e-3
SWAPS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.MatMult: None, ast.Pow: ast.Mult}


def variants(node):
    """(what, replacement) of one expression."""
    if isinstance(node, ast.BinOp) and SWAPS.get(type(node.op)):
        other = copy.deepcopy(node)
        other.op = SWAPS[type(node.op)]()
        yield "operator", other
        yield "left operand only", copy.deepcopy(node.left)
        yield "right operand only", copy.deepcopy(node.right)
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        for value in (node.value + 1, node.value - 1, node.value * 1.01, -node.value):
            if value != node.value and (isinstance(node.value, float) or float(value).is_integer()):
                yield f"{node.value} to {value}", ast.Constant(type(node.value)(value))
    if isinstance(node, ast.Call) and node.args:
        yield "call left out", copy.deepcopy(node.args[0])
        if len(node.args) > 1:
            other = copy.deepcopy(node)
            other.args[0], other.args[1] = other.args[1], other.args[0]
            yield "arguments swapped", other
    if isinstance(node, ast.Subscript):
        yield "index left out", copy.deepcopy(node.value)


class Replace(ast.NodeTransformer):
    def __init__(self, index, which):
        self.index, self.which, self.seen, self.what = index, which, 0, None

    def visit(self, node):
        if isinstance(node, ast.expr):
            here, self.seen = self.seen, self.seen + 1
            if here == self.index:
                for number, (what, other) in enumerate(variants(node)):
                    if number == self.which:
                        self.what = what
                        return ast.copy_location(other, node)
        return self.generic_visit(node)


# What is returned, changed: y is each output tensor.
OUTPUT = {
    "factor 1.01": "y * 1.01",
    "factor 1.002": "y * 1.002",
    "sign": "-y",
    "absolute": "y.abs()",
    "clamped at 0": "y.clamp(min=0) - y.clamp(max=0) * 0.99",
    "clamped above": "torch.minimum(y, y.mean() + 2 * y.std(unbiased=False))",
    "offset": "y + 0.01 * y.std(unbiased=False) + 0.01",
    "bfloat16": "y.bfloat16().to(y.dtype)",
    "few bits": "torch.round(y * 64) / 64",
    "first element": "torch.cat([y.reshape(-1)[:1] + 1, y.reshape(-1)[1:]]).view_as(y)",
    "last element": "torch.cat([y.reshape(-1)[:-1], y.reshape(-1)[-1:] * 0 - 1]).view_as(y)",
    "tail missing": "torch.cat([y.reshape(-1)[: y.numel() - y.numel() // 8], "
    "0 * y.reshape(-1)[y.numel() - y.numel() // 8 :]]).view_as(y) + (0 if y.numel() > 8 else 1)",
    "rolled": "torch.roll(y.reshape(-1), 1).view_as(y) + (0 if y.numel() > 1 else 1)",
    "reversed": "torch.flip(y.reshape(-1), [0]).view_as(y) + (0 if y.numel() > 1 else 1)",
    "zeros": "torch.zeros_like(y)",
    "ones": "torch.ones_like(y)",
    "mean everywhere": "torch.ones_like(y) * y.mean() + (0 if y.numel() > 1 else 1)",
    "squashed": "torch.tanh(y / 4) * 4",
    "tiny dropped": "torch.where(y.abs() < 0.3 * y.std(unbiased=False), torch.zeros_like(y), y) * 1.0005",
    "float16 less": "y.half().to(y.dtype) * 1.003",
    "odd elements": "torch.cat([y.reshape(-1)[::2], 0 * y.reshape(-1)[1::2]]).view_as(y) + (0 if y.numel() > 1 else 1)",
    "every 31st zero": "y * (torch.arange(y.numel(), device=y.device) % 31 != 0).view_as(y)",
    "second half from first": "torch.cat([y.reshape(-1)[: (y.numel() + 1) // 2], y.reshape(-1)[: y.numel() // 2]])"
    ".view_as(y) + (0 if y.numel() > 1 else 1)",
    "two swapped": "torch.cat([y.reshape(-1)[1:2], y.reshape(-1)[:1], y.reshape(-1)[2:]]).view_as(y) "
    "+ (0 if y.numel() > 1 else 1)",
    "last row again": "torch.cat([y[:-1], y[:1]]) if y.dim() and y.shape[0] > 1 else y * 1.02",
    "infinite": "torch.where(y == y.max(), torch.full_like(y, float('inf')), y)",
    "nan": "torch.where(y == y.max(), torch.full_like(y, float('nan')), y)",
}


def answer(tree):
    """The module's text with Model renamed and the problem's own functions left out."""
    tree = copy.deepcopy(tree)
    tree.body = [n for n in tree.body if not isinstance(n, ast.FunctionDef)]
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Model":
            node.name = "ModelNew"
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def sources(code):
    tree = ast.parse(code)
    forward = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "forward")
    count = sum(isinstance(n, ast.expr) for n in ast.walk(forward))
    for index in range(count):
        for which in range(6):
            other = copy.deepcopy(tree)
            body = next(n for n in ast.walk(other) if isinstance(n, ast.FunctionDef) and n.name == "forward")
            change = Replace(index, which)
            body.body = [change.visit(s) for s in body.body]
            if change.what:
                yield change.what, answer(other)
    for what, expression in OUTPUT.items():
        text = answer(tree).replace("def forward(", "def forward_right(")
        text += "\n\ndef changed(y):\n    return " + expression + "\n\n\ndef forward(self, *a):\n"
        text += "    r = self.forward_right(*a)\n"
        text += "    return tuple(changed(y) for y in r) if isinstance(r, tuple) else changed(r)\n\n\n"
        text += "ModelNew.forward = forward\n"
        yield what, text


def run(code, name, seed, kind, inputs, init):
    torch.manual_seed(seed)
    space = {}
    exec(compile(code, name, "exec"), space)
    module = space[kind](*init).double()
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            generator = torch.Generator().manual_seed(number)
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        torch.manual_seed(seed)
        result = module(*[v.clone() for v in inputs])
    return result if isinstance(result, tuple) else (result,)


def witnessed(code, mutant):
    """True when the mutant gives another answer; None when it fails, which needs no judge."""
    space = {}
    exec(compile(code, "problem", "exec"), space)
    init = space["get_init_inputs"]()
    try:
        for seed in range(3):
            torch.manual_seed(seed)
            inputs = [v.double() if v.is_floating_point() else v for v in space["get_inputs"]()]
            if seed:
                inputs = [v * torch.sign(torch.randn_like(v)) * seed if v.is_floating_point() else v for v in inputs]
            right = run(code, "problem", seed, "Model", inputs, init)
            wrong = run(mutant, "mutant", seed, "ModelNew", inputs, init)
            if len(right) != len(wrong) or any(a.shape != b.shape for a, b in zip(right, wrong)):
                return None
            for a, b in zip(right, wrong):
                a, b = a.double(), b.double()
                scale = float(a.pow(2).mean().sqrt()) + 1e-12
                if not bool(torch.isfinite(b).all()) or float(((a - b).abs() / (a.abs() + scale)).max()) > THRESHOLD:
                    return True
    except Exception:
        return None
    return False


def main():
    problems, out = sys.argv[1], sys.argv[2]
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out + "/run")
    os.makedirs(out + "/problems/level1")
    total, twenty = 0, 0
    with open(out + "/mutants.tsv", "w", encoding="utf-8") as index:
        for number, name in enumerate(sorted(n for n in os.listdir(problems) if n.endswith(".py")), 1):
            with open(os.path.join(problems, name), encoding="utf-8") as f:
                code = f.read()
            shutil.copy(os.path.join(problems, name), f"{out}/problems/level1/{number}_{name}")
            kept, seen = 0, set()
            for what, text in sources(code):
                if text in seen or not witnessed(code, text):
                    continue
                seen.add(text)
                with open(f"{out}/run/level_1_problem_{number}_sample_{kept}_kernel.py", "w", encoding="utf-8") as f:
                    f.write(text)
                index.write(f"{number}\t{kept}\t{name}\t{what}\n")
                kept += 1
            total += kept
            twenty += kept >= 20
            print(f"{name}: {kept} wrong mutants")
    print(f"{total} in all, 20 or more of {twenty} problems")


if __name__ == "__main__":
    main()
