"""What families do to inputs, and where one element is changed."""

import unittest

import torch
from kernelrl_worker import families
from kernelrl_worker.constants import FAMILY_SCALED
from kernelrl_worker.scaling import Scaling


def generator(seed=3):
    return torch.Generator().manual_seed(seed)


class Changes(unittest.TestCase):
    def test_what_a_family_does_to_zeros_and_both_signs(self):
        x = torch.linspace(-2, 2, 4001).reshape(-1, 1)
        before = x.clone()
        for in_place in (False, True):

            def of(family):
                given = x.clone() if in_place else x
                return families.change(given, family, families.Signs(generator()), in_place)

            signs = torch.where(x == 0, torch.ones(()), of("signed") / x)
            self.assertTrue((signs.abs() == 1).all())
            self.assertTrue(1500 < int((signs > 0).sum()) < 2500)
            self.assertTrue(torch.equal(of("scaled"), x * signs * 3))
            self.assertTrue(torch.equal(of("small"), x * signs * 0.01))
            self.assertTrue(torch.equal(of("negated"), -x))
            self.assertTrue(torch.equal(of("offset"), torch.where(x != 0, x * signs + 50, x)))
            self.assertTrue(torch.equal(of("unit"), torch.where(x != 0, (1 + 0.01 * x) * signs, x)))
            spiked = of("spikes")
            changed = spiked != x
            self.assertTrue(2 <= int(changed.sum()) <= 9)
            self.assertTrue(torch.equal(spiked[changed].abs(), x[changed].abs() * 100 + 128))
        self.assertTrue(torch.equal(x, before))

    def test_a_symmetric_matrix_stays_symmetric(self):
        a = torch.randn(32, 32, generator=generator())
        symmetric = a + a.T
        for signs in (families.Signs(generator()), families.QuickSigns):
            for family, row in families.FAMILIES.items():
                if row.change and not (family == "spikes" and signs is families.QuickSigns):
                    changed = families.change(symmetric, family, signs)
                    self.assertTrue(torch.equal(changed, changed.T), family)
                    self.assertFalse(torch.equal(changed, symmetric), family)

    def test_quick_signs_are_signs(self):
        torch.manual_seed(5)
        signs = families.QuickSigns.like(torch.zeros(1001, 3, dtype=torch.bfloat16))
        self.assertEqual((signs.shape, signs.dtype), ((1001, 3), torch.bfloat16))
        self.assertTrue((signs.abs() == 1).all())
        self.assertLess(abs(float(signs.float().mean())), 0.1)
        self.assertFalse(torch.equal(signs[:500], signs[500:1000]))

    def test_integers_and_scalars_stay(self):
        for value in (torch.arange(4), 2.5, True, torch.zeros(0)):
            self.assertIs(families.change(value, "offset", families.Signs(generator())), value)

    def test_the_factor_of_scaled_is_the_problem_s_own(self):
        x = torch.rand(64)
        own = Scaling(1e3, signs=False, varies=True, blind=True)
        given = [families.change(x, FAMILY_SCALED, families.QuickSigns, False, own, seed) for seed in (1, 1, 2)]
        self.assertTrue(torch.equal(given[0], given[1]))
        self.assertFalse(torch.equal(given[0], given[2]))
        factor = float(given[0][0] / x[0])
        self.assertTrue(500 <= factor <= 2000)


class OneElement(unittest.TestCase):
    def test_a_value_is_tried_until_the_output_moves(self):
        x = torch.ones(64)
        seen = []

        def outputs_for(changed):
            at = int((changed != x).nonzero())
            seen.append(float(changed[at]))
            return [torch.full((64,), 1.0 + (float(changed[at]) > 1000))]

        self.assertEqual(families.value_that_shows(x, 9, [torch.ones(64)], outputs_for), 1e4)
        self.assertEqual(seen, [10.0, 300.0, 1e4])
        self.assertIsNone(families.value_that_shows(x, 9, [torch.ones(64)], lambda c: [torch.ones(64)]))
        self.assertIsNone(families.value_that_shows(x, 9, [torch.ones(64)], lambda c: [torch.ones(64) / 0]))
        half = torch.full((4,), 60000.0).half()
        self.assertIsNone(families.value_that_shows(half, 0, [half], lambda c: self.fail("out of range")))

    def test_at_most_three_inputs_are_touched(self):
        values = [torch.ones(2), torch.arange(2), 3.0, torch.ones(2), torch.ones(0), torch.ones(2), torch.ones(2)]
        self.assertEqual(families.find_touches(values, lambda i: 1.0 * i), [(0, 0.0), (3, 3.0), (5, 5.0)])
        self.assertEqual(families.find_touches(values, lambda i: None), [])

    def test_a_touch_changes_one_element_of_a_copy(self):
        values = [torch.ones(5, 7).T, torch.ones(3)]
        for seed in range(10):
            touched = families.touch(values, [(0, 9.0), (1, 5.0)], generator(seed))
            changes = [int((a != b).sum()) for a, b in zip(values, touched)]
            self.assertEqual(sorted(changes), [0, 1])
            self.assertTrue(all((v == 1).all() for v in values))
        self.assertIs(families.touch(values, None), values)
        written = families.touch(values, [(1, 5.0)], generator(), lambda x: True)
        self.assertIs(written[1], values[1])


if __name__ == "__main__":
    unittest.main()
