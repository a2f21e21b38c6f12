"""What both kinds of references share: seeds, explanations, and the model in float64."""

import random
import unittest

import torch
from kernelrl_worker import problem


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        self.mean += x.mean()
        return x - self.mean


class Float64(unittest.TestCase):
    def test_the_model_is_left_as_it_was(self):
        double = problem.Double(Norm())
        self.assertTrue(double.ready())
        x = torch.rand(9)
        results = [double.run([x, 3][:1], 1, lambda y: y.clone()) for _ in range(2)]
        self.assertEqual(results[0].dtype, torch.float64)
        self.assertTrue(torch.equal(*results))
        self.assertEqual(double.bytes(), 8)
        double.forget()
        self.assertEqual((double.bytes(), double.lost), (0, False))

    def test_a_model_that_asks_for_one_type_is_given_up(self):
        double = problem.Double(torch.nn.Linear(2, 2))
        double.ready()
        double.give_up()
        self.assertFalse(double.ready())
        self.assertIsNone(double.model)

    def test_shaken_inputs_differ_in_their_last_bits(self):
        torch.manual_seed(1)
        x = torch.rand(1000) + 0.1
        y = problem.shaken(x)
        self.assertTrue(0 < int((x != y).sum()) < 1000)
        self.assertLess(float(((x - y) / x).abs().max()), 2.5e-7)
        whole = torch.arange(3)
        self.assertTrue(torch.equal(problem.shaken(whole), whole))
        self.assertIsNot(problem.shaken(whole), whole)
        self.assertEqual(problem.shaken(2.0), 2.0)
        self.assertEqual(problem.shaken(torch.rand(3, device="meta")).device.type, "meta")  # wherever they lie


class Words(unittest.TestCase):
    def test_an_error_names_the_problem_s_line(self):
        try:
            problem.load("Model = 1\n\nget_inputs = 1 // 0\n", "<problem>")
        except ZeroDivisionError as error:
            said = problem.explain(error, "<problem>")
        self.assertRegex(said, "^line 3: ZeroDivisionError: ")
        self.assertEqual(problem.explain(ValueError("x"), "<problem>"), "ValueError: x")

    def test_want_of_memory_is_nobody_s_fault(self):
        self.assertTrue(problem.lacks_room(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")))
        self.assertFalse(problem.lacks_room(RuntimeError("invalid argument")))

    def test_seeds_reach_every_generator(self):
        draws = []
        for _ in range(2):
            problem.seed_all(5)
            draws.append((random.random(), float(torch.rand(()))))
        self.assertEqual(*draws)
        self.assertNotEqual(problem.another_seed(5, 1), problem.another_seed(5, 2))

    def test_running_statistics_move(self):
        norm = torch.nn.BatchNorm1d(16)
        with torch.no_grad():
            problem.disturb_statistics(norm)
        self.assertTrue(bool((norm.running_mean != 0).all()))
        self.assertTrue(bool((norm.running_var > 1).any() and (norm.running_var < 1.51).all()))


if __name__ == "__main__":
    unittest.main()
