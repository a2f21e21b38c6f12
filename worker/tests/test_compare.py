"""When an output is right. (src/verify/rule_test.c compares this rule with the verifier's own, on 600 tensors.)"""

import math
import unittest

import torch
from kernelrl_worker import compare
from kernelrl_worker.compare import Limit, Scales


class Rows(unittest.TestCase):
    def test_a_row_has_64_elements_and_is_no_part_of_the_last_dimension(self):
        for shape, length in (
            ((), 1),
            ((5,), 5),
            ((1000,), 1000),
            ((100, 3), 75),
            ((7, 128), 128),
            ((4, 4, 4), 64),
            ((3, 5, 7), 105),
            ((16, 32, 2), 64),
            ((6, 10, 0), 1),
        ):
            self.assertEqual(compare.row_length(shape), length, shape)
            self.assertEqual(math.prod(shape) % length, 0)

    def test_the_scale_of_a_row_has_a_floor_and_a_ceiling(self):
        want = torch.ones(4, 64)
        want[1] *= 1e-6  # floor: a hundredth of the median
        want[2, 0] = 1e4  # ceiling: the scale of all rows together
        rows = Scales(want, Limit(torch.float32)).rows
        self.assertAlmostEqual(float(rows[0]), 1.0, 6)
        self.assertAlmostEqual(float(rows[1]), 1e-2, 6)
        self.assertAlmostEqual(float(rows[2]) / float((want.double() ** 2).mean().sqrt()), 1.0, 6)
        self.assertEqual(float(Scales(torch.zeros(64), Limit(torch.float32)).rows[0]), 1e-3)

    def test_squares_that_overflow_or_are_not_finite(self):
        self.assertAlmostEqual(compare.rms_of(torch.full((64,), 1e30)) / 1e30, 1.0, 5)
        self.assertEqual(compare.rms_of(torch.tensor([3.0, math.nan, math.inf, 3.0])), 3.0)
        self.assertEqual(compare.rms_of(torch.tensor([3, 4])), 0.0)


class Errors(unittest.TestCase):
    def test_the_error_is_relative_to_the_row_and_the_element(self):
        want = torch.ones(64)
        got = want.clone()
        got[7] += 2e-4
        result = compare.compare(want, got, 2e-4, None)
        self.assertEqual(result["different"], 0)
        self.assertAlmostEqual(result["max_error"], 1e-4, 7)
        result = compare.compare(want, got, 0.9e-4, None)
        self.assertEqual((result["different"], result["first"]), (1, 7))
        self.assertAlmostEqual(result["got"], 1.0002, 6)

    def test_allclose_is_asked_beside_the_tolerance(self):
        want, got = torch.full((64,), 1e-3), torch.full((64,), 1e-3 + 5e-4)
        self.assertEqual(compare.compare(want, got, None, 1e-4)["different"], 64)
        self.assertEqual(compare.compare(want, got, 0.5, None)["different"], 0)

    def test_what_is_not_finite_must_be_the_same(self):
        inf, nan = math.inf, math.nan
        want = torch.tensor([inf, -inf, nan, 1.0, inf])
        result = compare.compare(want, torch.tensor([inf, -inf, nan, nan, -inf]), 1e-4, None)
        self.assertEqual((result["different"], result["not_finite"], result["first"]), (2, 1, 3))

    def test_integers_must_be_equal(self):
        result = compare.compare(torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4]), 0.0, None)
        self.assertEqual((result["different"], result["first"]), (1, 2))

    def test_chunks_change_nothing(self):
        generator = torch.Generator().manual_seed(1)
        want = torch.randn(50, 96, generator=generator)
        got = want * (1 + 1e-3 * torch.randn(want.shape, generator=generator))
        whole = compare.compare(want, got, 1e-4, 1e-4)
        saved, compare.CHUNK = compare.CHUNK, 1000
        try:
            self.assertEqual(compare.compare(want, got, 1e-4, 1e-4), whole)
        finally:
            compare.CHUNK = saved
        self.assertGreater(whole["different"], 1000)
        self.assertAlmostEqual(compare.largest_error(want, got), whole["max_error"], 9)


class Limits(unittest.TestCase):
    def test_a_reference_that_is_off_widens_the_tolerance(self):
        want = torch.ones(8, 64)
        limit = compare.limit_of([(want, want.double() * (1 + 4e-4))])
        self.assertAlmostEqual(limit.noise, 2e-4, 6)
        self.assertAlmostEqual(limit.tolerance(torch.float32), 2e-3, 5)
        self.assertEqual(compare.limit_of([(want, want.double())]).tolerance(torch.float32), 1e-4)

    def test_a_small_row_that_is_off_is_held_to_less(self):
        want = torch.ones(8, 64)
        want[0] = 1e-3
        true = want.double()
        true[0] *= 1.005
        self.assertGreater(compare.limit_of([(want, true)]).floor, compare.FLOORS[0])
        self.assertEqual(compare.limit_of([(want, true)], known=False).floor, 1.0)

    def test_few_elements_get_their_scale_from_several_draws(self):
        draws = [(torch.tensor([x]), torch.tensor([x]).double()) for x in (1e-3, 2.0, 3.0)]
        self.assertEqual(compare.limit_of(draws).typical, 2.0)
        self.assertEqual(compare.draws_wanted([torch.zeros(63)]), compare.MORE_DRAWS)
        self.assertEqual(compare.draws_wanted([torch.zeros(64), torch.zeros(3, dtype=torch.int64)]), 0)

    def test_float64_is_not_asked_again_when_it_cannot_run(self):
        asked = []
        one = torch.ones(4)

        def exact(*draw):
            asked.append(draw[2])
            return [one.double()] if draw[2] == 1 else None

        shaken = lambda inputs, outputs, seed: [[one], [one * 1.5]]
        limits = compare.limits_of([([], [one], seed) for seed in (1, 2, 3)], exact, shaken)
        self.assertEqual(asked, [1, 2])
        self.assertAlmostEqual(limits[0].noise, 0.25, 6)
        self.assertEqual(compare.limits_of([([], [one], 9)], exact, lambda *_: [None])[0].noise, 0.0)

    def test_how_far_outputs_have_moved(self):
        one = torch.ones(64)
        self.assertAlmostEqual(compare.moved([one, torch.arange(3)], [one * 1.02, torch.arange(3)]), 100, 2)
        self.assertIsNone(compare.moved([one, one], [one * 2, one / 0]))
        self.assertEqual(compare.moved([torch.zeros(0)], [torch.zeros(0)]), 0.0)


if __name__ == "__main__":
    unittest.main()
