"""A problem as modules meet it: what is told of it, its inputs, which families may be used, and verdicts."""

import importlib.util
import unittest
from unittest import mock

import torch
from kernelrl_worker import case as module
from kernelrl_worker import problem
from support import a_set, add_lane, case_of

HEAD = """import torch, torch.nn as nn
class Model(nn.Module):
    def forward(self, a, b=None):
        return a * 2 if b is None else a @ b.T if a.shape[1] == b.shape[1] else a @ b
def get_init_inputs():
    return []
def get_inputs():
    """
BODIES = {
    "as they come": "return [torch.rand(64, 32), torch.rand(32, 64)]",
    "swapped": "a = torch.rand(64, 64); b = torch.rand(64, 64); return [b, a]",
    "one twice": "a = torch.rand(64, 64); return [a, a]",
    "and a part of it": "a = torch.rand(64, 64); return [a, a[32:]]",
    "transposed": "a = torch.rand(64, 64); return [a.T, torch.rand(64, 64)]",
    "worked on": "a = torch.rand(64, 64); return [a * 3, torch.rand(64, 64)]",
    "symmetric": "a = torch.rand(64, 64); return [torch.rand(64, 64).triu(), a + a.T]",
    "shapes as lists": "return [torch.rand([64, 64]), torch.rand((64, 64))]",
    "rounded": "return [torch.rand(64, 64).half().float(), torch.rand(128, 64)[:64]]",
}
FAMILIES = ("shipped", "spikes", "signed", "offset", "unit", "negated")
SEEDS = (11, 12)


class StagedInputs(unittest.TestCase):
    """Whether inputs are drawn to where they belong or copied there, their numbers are those that get_inputs draws, in
    every order that a problem may return them in."""

    def make(self, name):
        case = case_of(HEAD + BODIES[name] + "\n")
        for lane in (0, 1):
            add_lane(case, lane, 2)
        return case

    def drawn_directly(self, case, family):
        drawn = case._draw(family, SEEDS[0], 0, into=case._places(0, 0))
        return any(case.lanes[0].holds(v) for v in drawn)

    def check_staged(self, case, family, lanes, want):
        sets = [a_set(family, seed, i) for i, seed in enumerate(SEEDS)]
        case.stage(lanes, sets)
        for lane in lanes:
            for i in range(len(sets)):
                for got, wanted in zip(case._places(lane, i), want[i]):
                    self.assertTrue(torch.equal(got, wanted), (lane, i))
        self.assertEqual(len(case.staged), 2 if 0 in lanes else 0)
        for one, w in zip(sets, want):
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(case.expected(one)[0], w)))
        kept = [t for kept in case.kept.values() for part in kept[:2] for t in part]
        self.assertTrue(kept)
        self.assertFalse(any(case.lanes[lane].holds(t) for t in kept for lane in (0, 1)))
        case.kept, case.kept_bytes = {}, 0

    def test_staged_inputs_are_what_get_inputs_draws(self):
        for name in BODIES:
            case = self.make(name)
            for family in FAMILIES:
                with self.subTest(problem=name, family=family):
                    want = [case._draw(family, seed, 0) for seed in SEEDS]
                    again = [case._draw(family, seed, 0) for seed in SEEDS]
                    for w, v in zip(want, again):
                        self.assertTrue(all(torch.equal(a, b) for a, b in zip(w, v)))
                    for lanes in ([0, 1], [1]):
                        self.check_staged(case, family, lanes, want)
            self.assertGreaterEqual(int((case._draw("spikes", 11, 0)[0].abs() > 1).sum()), 2)

    def test_inputs_are_drawn_to_where_they_belong(self):
        for name, family in (
            ("as they come", "shipped"),
            ("as they come", "spikes"),
            ("as they come", "offset"),
            ("shapes as lists", "shipped"),
        ):
            self.assertTrue(self.drawn_directly(self.make(name), family), (name, family))

    def test_what_lies_in_another_input_is_not_changed_in_place(self):
        for name in ("one twice", "and a part of it"):
            case = self.make(name)
            for family in FAMILIES[1:]:
                self.assertFalse(self.drawn_directly(case, family), (name, family))


class Described(unittest.TestCase):
    def test_what_the_verifier_is_told_of_a_problem(self):
        code = """import torch, torch.nn as nn
class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.BatchNorm1d(n)
    def forward(self, x, factor):
        return self.norm(x) * factor
def get_init_inputs():
    return [8]
def get_inputs():
    return [torch.rand(16, 8), 2.0]
"""
        case = case_of(code)
        self.assertEqual((case.random, case.mutates, case.aliases, case.structure), (False, False, False, "T"))
        self.assertEqual(case.outputs, [{"dtype": "float32", "shape": [16, 8], "overlapping": False}])
        self.assertEqual(case.values, [None, 2.0])
        spec = [(a["name"], a["role"], a["type"], a["shape"]) for a in case.native_spec()["args"]]
        self.assertEqual(spec[:2], [("x", "input", "f32", [16, 8]), ("factor", "input", "f32", [])])
        self.assertEqual(spec[2:4], [("norm.weight", "param", "f32", [8]), ("norm.bias", "param", "f32", [8])])
        self.assertEqual([s[1] for s in spec[4:]], ["buffer", "buffer", "output"])
        # No parameter and no statistic of the second set is constant.
        for name, t in list(case.models[1].named_parameters()) + list(case.models[1].named_buffers()):
            self.assertTrue(name.endswith("num_batches_tracked") or bool((t != t.reshape(-1)[0]).any()), name)
        # The model is left as it was, although a forward moves its statistics.
        before = [t.clone() for t in case.models[0].buffers()]
        case._run(0, [torch.rand(16, 8), 2.0], 5)
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(before, case.models[0].buffers())))

    def test_what_a_forward_does_beside_computing(self):
        body = "import torch, torch.nn as nn\nclass Model(nn.Module):\n    def forward(self, a):\n        return %s\n"
        body += "def get_inputs():\n    return [torch.rand(64)]\n"
        for expression, random, mutates, aliases in (
            ("a + torch.rand(())", True, False, False),
            ("a.mul_(2) + 1", False, True, False),
            ("a", False, False, True),
            ("a + 0 * torch.rand(())", True, False, False),  # it draws, and it does not show
        ):
            case = case_of(body % expression)
            self.assertEqual((case.random, case.mutates, case.aliases), (random, mutates, aliases), expression)

    def test_a_problem_that_cannot_be_used_says_why(self):
        for code, message in (
            ("x = 1", "defines no Model"),
            (HEAD + "return 7\n", "get_inputs.. returns int; a list is needed"),
            (HEAD + "return [torch.rand(2, 3), torch.rand(5, 7)]\n", "line 4: RuntimeError"),
        ):
            with self.assertRaisesRegex(problem.ProblemError, message):
                case_of(code)


class OtherGenerators(unittest.TestCase):
    def test_a_problem_may_draw_from_python_and_numpy(self):
        code = HEAD + "import random; return [torch.full((64,), random.random()) + torch.rand(64)]\n"
        texts = [code]
        if importlib.util.find_spec("numpy"):
            texts.append(code.replace("random.random", "numpy.random.rand").replace("import random", "import numpy"))
        for text in texts:
            case = case_of(text)
            self.assertTrue(torch.equal(case._draw("shipped", 7, 0)[0], case._draw("shipped", 7, 0)[0]))
            self.assertFalse(torch.equal(case._draw("shipped", 7, 0)[0], case._draw("shipped", 8, 0)[0]))


class Survey(unittest.TestCase):
    def test_which_families_may_be_used(self):
        case = case_of(HEAD + "return [torch.rand(64, 64)]\n")
        wanted = [("shipped", 0), ("signed", 0), ("offset", 1), ("touched", 0), ("scaled", 0)]
        usable = [r["usable"] for r in case.survey(wanted, 5, 9, False)]
        # `scaled` is for problems whose own inputs tell nothing.
        self.assertEqual(usable, [True, True, True, True, False])
        self.assertEqual(len(case.survey(wanted, 5, 2, False)), 2)
        entry = a_set("offset", 9, 0, 1)
        self.assertEqual(len(case.expected(entry)[1]), 1)

    def test_scaled_inputs_are_timed_where_they_take_as_long(self):
        for as_long in (True, False):
            case = case_of(HEAD + "return [torch.rand(64, 64)]\n")
            case._same_time = lambda values, seed, as_long=as_long: as_long
            self.assertFalse(case.survey([("scaled", 0)], 5, 9, False)[0]["usable"])
            timed = case.survey([("scaled", 0), ("spikes", 0), ("signed", 0)], 5, 3, True)
            self.assertEqual([r["usable"] for r in timed], [as_long, True, True])
            self.assertFalse(case.scaling.blind)

    def test_what_is_far_needs_float64(self):
        code = HEAD.replace(
            "return a * 2 if b is None", "return (a * 2).float() * torch.ones(64) if a.dtype == torch.float32"
        )
        code += "return [torch.rand(64, 64)]\n"
        case = case_of(code.replace("else a @ b.T", "else a.missing"))
        usable = {f: case.survey([(f, 0)], 5, 1, False)[0]["usable"] for f in ("signed", "offset", "spikes", "touched")}
        self.assertTrue(case.doubles[0].lost)
        self.assertEqual(usable, {"signed": True, "offset": False, "spikes": False, "touched": False})

    def test_a_probe_changes_one_element_and_the_output(self):
        case = case_of(HEAD + "return [torch.rand(64, 64)]\n")
        plain, probed = case._draw("shipped", 7, 0)[0], case._draw("probe", 7, 0)[0]
        self.assertEqual(int((plain != probed).sum()), 1)
        self.assertTrue(torch.equal(probed, case._draw("probe", 7, 0)[0]))


class Judgement(unittest.TestCase):
    def setUp(self):
        self.case = case_of(HEAD + "return [torch.rand(64, 64)]\n")
        add_lane(self.case, 1, 1)

    def test_a_verdict_names_the_place(self):
        entry = a_set()
        self.case.stage([1], [entry])
        right = self.case._draw("shipped", entry["seed"], 0)[0] * 2
        self.assertEqual(self.case.judge(1, entry, [right], True)["verdict"], "equal")
        for value, word in ((1e6, "different"), (float("nan"), "not_finite")):
            wrong = right.clone()
            wrong[3, 5] = value
            said = self.case.judge(1, entry, [wrong], True)
            self.assertEqual((said["verdict"], said["output"], said["place"]), (word, 0, [3, 5]))

    def test_expected_outputs_are_kept_while_there_is_room(self):
        self.case.expected(a_set(seed=1))
        self.assertEqual(len(self.case.kept), 1)
        with mock.patch.dict(module.KEEP_BYTES, {"cpu": self.case.kept_bytes}):
            self.case.expected(a_set(seed=2))
        self.assertEqual(len(self.case.kept), 1)
        self.case.forget()
        self.assertEqual((self.case.kept, self.case.kept_bytes), ({}, 0))


if __name__ == "__main__":
    unittest.main()
