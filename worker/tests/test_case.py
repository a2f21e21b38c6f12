"""Inputs of a module's case: whether they are drawn to where they belong or copied there, their numbers are those that
get_inputs draws, in every order that a problem may return them in."""

import unittest

import torch
from support import DOUBLES_INPUT, a_set, add_lane, case_of

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


class Families(unittest.TestCase):
    def test_what_a_family_does_to_zeros_and_both_signs(self):
        case = case_of(DOUBLES_INPUT % "8, 8")
        x = torch.linspace(-2, 2, 4001).reshape(-1, 1)
        before = x.clone()
        for fresh in (False, True):

            def of(family):
                given = x.clone() if fresh else x
                return case._change(given, family, torch.Generator().manual_seed(3), fresh)

            signs = torch.where(x == 0, torch.ones(()), of("signed") / x)
            self.assertTrue((signs.abs() == 1).all())
            self.assertTrue(1500 < int((signs > 0).sum()) < 2500)
            self.assertTrue(torch.equal(of("scaled"), x * signs * 3))
            self.assertTrue(torch.equal(of("small"), x * signs * 0.01))
            self.assertTrue(torch.equal(of("negated"), -x))
            self.assertTrue(torch.equal(of("offset"), torch.where(x != 0, x * signs + 50, x)))
            self.assertTrue(torch.equal(of("unit"), torch.where(x != 0, (1 + 0.01 * x) * signs, x)))
        self.assertTrue(torch.equal(x, before))


if __name__ == "__main__":
    unittest.main()
