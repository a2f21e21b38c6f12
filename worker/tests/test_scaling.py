"""The factor of `scaled`, and how long inputs take."""

import unittest
from unittest import mock

import torch
from kernelrl_worker import scaling
from kernelrl_worker.scaling import Scaling


class Factor(unittest.TestCase):
    def test_inputs_that_tell_need_no_factor(self):
        run = lambda one, which: [torch.full((64,), 1.0 + which)]
        found = scaling.find_scaling(run, lambda one: self.fail("not asked"), lambda: False)
        self.assertEqual((found.factor, found.blind), (scaling.USUAL_FACTOR, False))

    def test_the_first_factor_that_tells_and_stands_is_taken(self):
        def run(one, which):
            if one and one.factor == 0.01:
                return None  # as a problem that fails on such inputs
            telling = one is not None and one.factor in (30.0, 1e3) and one.varies
            return [torch.full((64,), 1.0 + which * telling)]

        found = scaling.find_scaling(run, lambda one: one.factor == 1e3, lambda: False)
        self.assertEqual((found.factor, found.signs, found.varies, found.blind), (1e3, True, True, True))
        late = scaling.find_scaling(run, lambda one: True, lambda: True)
        self.assertEqual((late.factor, late.blind), (scaling.USUAL_FACTOR, False))

    def test_a_result_that_is_not_finite_tells_nothing(self):
        run = lambda one, which: [torch.full((64,), 1.0 + which if one is None or not which else float("inf"))]
        blind = lambda one, which: [torch.ones(64)] if one is None else run(one, which)
        self.assertFalse(scaling.find_scaling(blind, lambda one: True, lambda: False).blind)

    def test_the_output_that_differs_least_counts(self):
        one = torch.ones(64)
        self.assertAlmostEqual(scaling.differ([one, one], [one * 2, one * 1.02]), 100, 1)
        self.assertEqual(scaling.differ([torch.arange(2)], [torch.arange(2)]), 0.0)
        self.assertEqual(scaling.differ([torch.zeros(0)], [torch.zeros(0)]), float("inf"))

    def test_a_factor_varies_by_up_to_two(self):
        varied = [Scaling(5.0, varies=True).factor_for(seed) for seed in range(50)]
        self.assertTrue(2.5 <= min(varied) < 4 and 6 < max(varied) <= 10)
        self.assertEqual(Scaling(5.0).factor_for(3), 5.0)


class Time(unittest.TestCase):
    def test_inputs_that_take_longer_are_refused_after_four_looks(self):
        asked = []

        def seconds(inputs):
            asked.append(inputs)
            return {"shipped": 1.0, "slow": 1.3, "alike": 1.2}[inputs]

        self.assertTrue(scaling.same_time(seconds, "alike", "shipped"))
        self.assertEqual(len(asked), 2 * scaling.SAME_TIME_RUNS)
        asked.clear()
        self.assertFalse(scaling.same_time(seconds, "slow", "shipped"))
        self.assertEqual(len(asked), 2 * scaling.SAME_TIME_RUNS * scaling.SAME_TIME_LOOKS)

    def test_one_slow_run_among_three_does_not_count(self):
        times = iter([1.0, 9.0, 9.0, 9.0, 1.0, 9.0])
        with mock.patch.object(scaling, "SAME_TIME_LOOKS", 1):
            self.assertTrue(scaling.same_time(lambda inputs: next(times), "these", "shipped"))


if __name__ == "__main__":
    unittest.main()
